//! The options of a run: every choice is drawn from the seed, and printed with a failure.

mod absences;

use std::time::Duration;

use slackwater_base::Rng;
use slackwater_meta::evict::PolicyKind;
use slackwater_meta::{
    Absence, Eviction, Limits, MasterConfig, Offload, OffloadMode, OnHit, Placement, Promotion,
    PutPolicy, SoftPinned, Tenancy,
};
use slackwater_tier::arena::MemorySegment;
use slackwater_tier::{AgentConfig, LogConfig};
use slackwater_wire::{
    Hold, Incarnation, NodeId, Request, SegmentId, SegmentKind, Tenant, Watermarks,
};

use crate::engine::Seed;
use crate::fault::FaultKinds;
use crate::load::LoadOptions;
use crate::net::{LinkOptions, MessageFaults};

/// The kind of runs that seeds are drawn for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Anything.
    #[default]
    Ordinary,
    /// Bugs of reclaim and recovery.
    Churn,
    /// As `Churn`, on a disk whose reads fail and whose bits rot while the log is in use.
    ChurnRot,
    /// Copies, moves and drains.
    Jobs,
    /// Masters that are started again and again under their nodes.
    Restarts,
    /// Nodes that are hidden and given up, and come back.
    Absences,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Self; 6] = [
        Self::Ordinary,
        Self::Churn,
        Self::ChurnRot,
        Self::Jobs,
        Self::Restarts,
        Self::Absences,
    ];

    /// The name of the profile on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ordinary => "ordinary",
            Self::Churn => "churn",
            Self::ChurnRot => "churn-rot",
            Self::Jobs => "jobs",
            Self::Restarts => "restarts",
            Self::Absences => "absences",
        }
    }

    /// The options of a seed.
    #[must_use]
    pub fn options(self, seed: Seed) -> Options {
        match self {
            Self::Ordinary => Options::of(seed),
            Self::Churn => Options::churn(seed),
            Self::ChurnRot => Options::churn_rot(seed),
            Self::Jobs => Options::jobs(seed),
            Self::Restarts => Options::restarts(seed),
            Self::Absences => Options::absences(seed),
        }
    }
}

impl std::str::FromStr for Profile {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|profile| profile.name() == name);
        known.ok_or_else(|| format!("`{name}` is none of {:?}", Self::ALL.map(Self::name)))
    }
}

/// All options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether everything runs in one process: it ends as a whole, and no message is lost.
    pub embedded: bool,
    /// Storage nodes.
    pub nodes: u32,
    /// Clients.
    pub clients: u32,
    /// Memory segments of each node.
    pub segments: u32,
    /// Bytes of each memory segment.
    pub segment_bytes: u64,
    /// When the memory and the log of each node are evicted from, where it says so.
    pub watermarks: Vec<[Option<Watermarks>; 2]>,
    /// Bytes of each node's log; zero for none.
    pub log_bytes: u64,
    /// Bytes of each file of a log.
    pub log_file_bytes: u64,
    /// Bytes of each node's disk.
    pub disk_bytes: u64,
    /// Most operations that a disk may be asked for at once.
    pub disk_in_flight_max: usize,
    /// Longest time that a record waits for others to share its batch.
    pub batch_delay: Duration,
    /// Longest time that written records wait for their sync, where nobody waits for it.
    pub sync_delay: Duration,
    /// Most bytes of one piece of a write.
    pub piece_bytes: u64,
    /// Largest drift of a clock, in parts per million.
    pub drift_ppm: u64,
    /// Most extents in one report of what memory holds.
    pub announce_extents_max: usize,
    /// Reports under way on a node's link at which it announces nothing more.
    pub reports_max: usize,
    /// Delays and faults of the links.
    pub links: LinkOptions,
    /// Silence after which a connection counts as broken.
    pub link_timeout: Duration,
    /// How long a client waits for bytes before it asks again.
    pub transfer_timeout: Duration,
    /// How long a node waits for the next piece of a value.
    pub serve_timeout: Duration,
    /// How long an operation may take, on the client's clock.
    pub deadline: Duration,
    /// Most attempts of a flow.
    pub attempts: u32,
    /// How long an answer may take before a flow repeats its operation.
    pub answer_timeout: Duration,
    /// Share of operations that are cancelled by their caller.
    pub cancels: f64,
    /// The master's configuration.
    pub master: MasterConfig,
    /// The calls of the clients.
    pub load: LoadOptions,
    /// Kinds of fault that may happen.
    pub fault_kinds: FaultKinds,
    /// Number of planned faults.
    pub faults: u32,
    /// How often the operator begins a job, or cancels one.
    pub jobs: u32,
}

/// The size and number of a memory segment that a node is going to lend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentShape {
    pub(crate) segment: SegmentId,
    pub(crate) bytes: u64,
    granule: u64,
}

impl SegmentShape {
    pub(crate) fn lent(self, incarnation: Incarnation) -> MemorySegment {
        MemorySegment {
            segment: self.segment,
            incarnation,
            bytes: self.bytes,
            granule: self.granule,
        }
    }
}

impl Options {
    /// The options of a seed.
    #[must_use]
    pub fn of(seed: Seed) -> Self {
        let rng = &mut seed.stream("options", 0);
        let embedded = rng.chance(0.3);
        let nodes = if embedded { 1 } else { 1 + rng.below(3) as u32 };
        let clients = 1 + rng.below(4) as u32;
        let log = rng.chance(0.85);
        let tenancy = if rng.chance(0.5) {
            Tenancy::On
        } else {
            Tenancy::Off
        };
        let log_bytes = if log { LOG_BYTES } else { 0 };
        let mut fault_kinds = FaultKinds::draw(rng);
        if embedded {
            fault_kinds.links = false;
            fault_kinds.pauses = false;
        }
        if !log {
            (
                fault_kinds.disk_errors,
                fault_kinds.disk_rot,
                fault_kinds.disk_loss,
            ) = (false, false, false);
        }
        // Drawn from a stream of its own, so that other choices of a seed do not change.
        let meets_faults = fault_kinds != FaultKinds::default();
        fault_kinds.outages = log && meets_faults && seed.stream("outages", 0).chance(0.3);
        let mut master = master(rng, log, tenancy);
        let lease_ttl = master.lease_ttl;
        let mut load = load(rng, log, tenancy, embedded);
        load.replicated = replicated(seed, nodes);
        let asks = &mut seed.stream("requests and answers", 0);
        if asks.chance(0.6) {
            // What a client does not release stays held: no time-out hides a leak.
            (master.put.discard_timeout, master.put.release_timeout) = (NEVER, NEVER);
        }
        if seed.stream("windows", 0).chance(0.3) {
            // Promotions expire while their bytes are on the way.
            master.promotion.window = Duration::from_millis(4);
        }
        master.absence = absence(&mut seed.stream("absence", 0));
        let announcing = &mut seed.stream("announcements", 0);
        let messages = messages(asks);
        let writes = &mut seed.stream("writes", 0);
        Self {
            embedded,
            nodes,
            clients,
            segments: 1 + rng.below(2) as u32,
            watermarks: watermarks(&mut seed.stream("watermarks of nodes", 0)),
            segment_bytes: pick(rng, &[96 << 10, 192 << 10, 384 << 10]),
            log_bytes,
            log_file_bytes: 1 << 20,
            disk_bytes: LOG_BYTES * 2,
            disk_in_flight_max: 256,
            batch_delay: pick(
                rng,
                &[
                    Duration::from_millis(1),
                    Duration::from_millis(20),
                    Duration::from_millis(100),
                ],
            ),
            sync_delay: pick(
                writes,
                &[
                    Duration::ZERO,
                    Duration::from_millis(5),
                    Duration::from_millis(100),
                ],
            ),
            piece_bytes: pick(writes, &[4 << 10, 16 << 10, 2 << 20]),
            drift_ppm: pick(rng, &[0, 100, 50_000]),
            announce_extents_max: pick(announcing, &[1, 4, 1024]),
            // The receiver says by itself how far it is after so many.
            reports_max: pick(announcing, &[64, 512]),
            links: if embedded {
                INSIDE
            } else {
                LinkOptions {
                    messages,
                    ..links(rng)
                }
            },
            link_timeout: Duration::from_millis(300),
            transfer_timeout: Duration::from_millis(30),
            serve_timeout: Duration::from_millis(60),
            deadline: lease_ttl.max(Duration::from_millis(500)) + Duration::from_millis(500),
            attempts: pick(rng, &[1, 3, 8]),
            answer_timeout: if embedded {
                Duration::MAX
            } else {
                pick(
                    asks,
                    &[Duration::from_millis(20), Duration::from_millis(100)],
                )
            },
            cancels: pick(asks, &[0.0, 0.05, 0.2]),
            master,
            load,
            fault_kinds,
            faults: 1 + rng.below(14) as u32,
            jobs: 0,
        }
    }

    /// The options of a seed for [`Profile::Churn`]: a log of many small files, values that are often replaced and
    /// removed, and nodes that end while they write and again soon after they are back.
    #[must_use]
    pub fn churn(seed: Seed) -> Self {
        let mut options = Self::of(seed);
        let rng = &mut seed.stream("churn", 0);
        options.nodes = 1;
        options.load.replicated = 0.0;
        options.clients = options.clients.max(2);
        (options.log_bytes, options.log_file_bytes) = (CHURNED_BYTES, CHURNED_BYTES / 16);
        options.batch_delay = Duration::from_millis(1);
        options.links.messages = MessageFaults::default();
        options.cancels = 0.0;
        options.fault_kinds = FaultKinds {
            crashes: rng.chance(0.5),
            kills_then_power_cuts: true,
            ..FaultKinds::default()
        };
        options.faults = 4 + rng.below(12) as u32;
        options.master.offload.mode = OffloadMode::Eager;
        options.load = LoadOptions {
            operations: 1200,
            keys: pick(rng, &[24, 48]),
            chain: 4,
            bytes_max: pick(rng, &[4_000, 12_000]),
            reads: 0.2,
            removes: pick(rng, &[0.2, 0.4]),
            upserts: 0.5,
            durable: pick(rng, &[0.2, 0.8]),
            think: pick(rng, &[Duration::from_millis(2), Duration::from_millis(6)]),
            ..options.load
        };
        options
    }

    /// The options of a seed for [`Profile::ChurnRot`]: twice as many files of half the length, so that wrong reads
    /// fall on files that are being reclaimed, and a disk that decays while the log is in use.
    #[must_use]
    pub fn churn_rot(seed: Seed) -> Self {
        let mut options = Self::churn(seed);
        let rng = &mut seed.stream("churn-rot", 0);
        options.log_file_bytes = CHURNED_BYTES / 32;
        options.load.bytes_max = pick(rng, &[2_000, 6_000]);
        options.fault_kinds.decay = true;
        options.faults = 8 + rng.below(16) as u32;
        options
    }

    /// The options of a seed for [`Profile::Jobs`]: several nodes, and an operator who carries values between them.
    #[must_use]
    pub fn jobs(seed: Seed) -> Self {
        let mut options = Self::of(seed);
        let rng = &mut seed.stream("jobs", 0);
        options.embedded = false;
        options.nodes = 2 + rng.below(3) as u32;
        options.load.replicated = replicated(seed, options.nodes);
        options.faults = rng.below(8) as u32;
        options.jobs = 4 + rng.below(16) as u32;
        options
    }

    /// The options of a seed for [`Profile::Restarts`]: many small values in memory, much of which is announced again and again,
    /// a few at a time, while it is read and removed.
    #[must_use]
    pub fn restarts(seed: Seed) -> Self {
        let mut options = Self::of(seed);
        let rng = &mut seed.stream("restarts", 0);
        options.embedded = false;
        options.nodes = 1 + rng.below(2) as u32;
        options.load.replicated = replicated(seed, options.nodes);
        // What is evicted early is not announced.
        options.watermarks.fill([None; 2]);
        options.clients = options.clients.max(2);
        options.segment_bytes = 384 << 10;
        (options.announce_extents_max, options.reports_max) = (1, 64);
        options.master.absence.restart_wait = Duration::from_secs(5);
        options.fault_kinds = FaultKinds {
            crashes: rng.chance(0.3),
            restarts: true,
            ..FaultKinds::default()
        };
        options.faults = 4 + rng.below(12) as u32;
        options.load = LoadOptions {
            operations: 400 + rng.below(800) as u32,
            keys: pick(rng, &[160, 400]),
            bytes_max: pick(rng, &[4_000, 12_000]),
            reads: pick(rng, &[0.2, 0.5]),
            removes: pick(rng, &[0.1, 0.3]),
            think: pick(rng, &[Duration::from_millis(8), Duration::from_millis(25)]),
            ..options.load
        };
        options
    }

    /// Memory segments of a node.
    pub(crate) fn segments(&self, node: u32) -> Vec<SegmentShape> {
        let shape = |index| SegmentShape {
            segment: SegmentId(node * PER_NODE + index),
            bytes: self.segment_bytes,
            granule: self.master.granule,
        };
        (0..self.segments).map(shape).collect()
    }

    /// When a segment of a node is evicted from, where the node says so.
    pub(crate) fn watermarks(&self, node: u32, kind: SegmentKind) -> Option<Watermarks> {
        let [memory, disk] = self.watermarks[node as usize];
        match kind {
            SegmentKind::Memory => memory,
            SegmentKind::Disk => disk,
        }
    }

    /// The node that a segment belongs to.
    pub(crate) fn owner(&self, segment: SegmentId) -> u32 {
        segment.0 / PER_NODE
    }

    /// Whether nodes have an SSD log.
    pub(crate) fn has_log(&self) -> bool {
        self.log_bytes > 0
    }

    /// The configuration of a node's agent.
    pub(crate) fn agent(&self, node: u32) -> AgentConfig {
        let mut config = AgentConfig::new(NodeId(node));
        config.outlives = !self.embedded;
        config.announce_extents_max = self.announce_extents_max;
        config.promotions_in_flight_max = 4;
        config.promotions_queued_max = 64;
        if self.has_log() {
            let segment = SegmentId(node * PER_NODE + PER_NODE - 1);
            let mut log = LogConfig::new(segment, slackwater_base::ByteSize(self.log_bytes));
            log.file_bytes = self.log_file_bytes;
            log.batch_bytes = (self.log_file_bytes / 4).min(128 << 10);
            log.batch_delay = self.batch_delay;
            log.sync_delay = self.sync_delay;
            log.sync_bytes = 8 * log.batch_bytes;
            log.pace.piece_bytes_max = self.piece_bytes;
            log.pace.piece_bytes_min = self.piece_bytes.min(log.pace.piece_bytes_min);
            log.records_queued_max = 64;
            log.reclaim_bytes_in_flight_max = 256 << 10;
            log.announce_entries_max = 16;
            log.retry_delay_min = Duration::from_millis(5);
            log.retry_delay_max = Duration::from_millis(200);
            config.log = Some(log);
        }
        config
    }

    /// Tenants of the load.
    pub(crate) fn tenants(&self) -> Vec<Tenant> {
        self.load
            .tenants
            .iter()
            .map(|name| Tenant::new(name).expect("the names of the load are well-formed"))
            .collect()
    }

    /// The requests with which an operator sets the tenants' quotas at a new master.
    pub(crate) fn quotas(&self) -> Vec<Request> {
        let memory = self.segment_bytes * u64::from(self.segments * self.nodes) / 2;
        let named = self
            .tenants()
            .into_iter()
            .filter(|tenant| !tenant.is_default());
        let quota = |tenant| Request::SetQuota {
            tenant,
            memory_bytes: memory,
            disk_bytes: self.log_bytes,
        };
        named.map(quota).collect()
    }

    /// The time after the last fault within which a put and a get must succeed: three leases, and the time to detect
    /// broken connections, read logs, let pins and unfinished puts expire, and try again.
    pub(crate) fn liveness_bound(&self) -> Duration {
        let unfinished = self.master.put.release_timeout;
        let unfinished = if unfinished == NEVER {
            Duration::ZERO
        } else {
            unfinished
        };
        self.master.lease_ttl * 3
            + unfinished
            + self.link_timeout * 2
            + self.deadline * 2
            + Duration::from_secs(2)
    }

    /// The time within which everything under way has ended.
    pub(crate) fn rest_bound(&self) -> Duration {
        let tickets = self.master.offload.timeout
            + self.master.promotion.window * 2
            + self.master.promotion.candidate_ttl;
        self.liveness_bound() + tickets
    }
}

fn master(rng: &mut Rng, log: bool, tenancy: Tenancy) -> MasterConfig {
    let modes = [
        OffloadMode::Off,
        OffloadMode::Eager,
        OffloadMode::OnEvict,
        OffloadMode::OnEvictForced,
    ];
    let mode = if log {
        pick(rng, &modes)
    } else {
        OffloadMode::Off
    };
    let defaults = MasterConfig::default();
    MasterConfig {
        lease_ttl: pick(
            rng,
            &[
                Duration::from_millis(150),
                Duration::from_millis(400),
                Duration::from_secs(2),
            ],
        ),
        soft_pin_ttl: Duration::from_millis(500),
        soft_pin_ttl_max: Duration::from_secs(1),
        tenancy,
        placement: pick(
            rng,
            &[
                Placement::Random,
                Placement::FreeRatioFirst,
                Placement::LocalFirst,
            ],
        ),
        put: PutPolicy {
            discard_timeout: Duration::from_millis(600),
            release_timeout: Duration::from_millis(1500),
            wait: Duration::from_millis(100),
            wait_max: Duration::from_millis(400),
            queue_limit: pick(rng, &[0, 2, 64]),
            ..PutPolicy::DEFAULT
        },
        eviction: Eviction {
            policy: pick(rng, &PolicyKind::ALL),
            block_tokens: 512,
            high_watermark: pick(rng, &[0.7, 0.95, 1.0]),
            low_watermark: pick(rng, &[0.5, 0.9]),
            disk_high_watermark: pick(rng, &[0.6, 0.95]),
            disk_low_watermark: pick(rng, &[0.4, 0.9]),
            soft_pinned: if rng.chance(0.3) {
                SoftPinned::Never
            } else {
                SoftPinned::Last
            },
            step: pick(rng, &[1, 8, 1024]),
        },
        offload: Offload {
            mode,
            queue_limit: pick(rng, &[2, 16, 1000]),
            cap_ratio: pick(rng, &[0.5, 1.0]),
            timeout: Duration::from_secs(2),
            retry_after: Duration::from_millis(20),
        },
        promotion: Promotion {
            on_hit: if rng.chance(0.7) {
                OnHit::Promote
            } else {
                OnHit::Stay
            },
            threshold: pick(rng, &[1, 2, 3]),
            queue_limit: pick(rng, &[1, 4, 1000]),
            batch_max: pick(rng, &[1, 4, 32]),
            watermark: pick(rng, &[0.6, 0.94]),
            window: pick(rng, &[Duration::from_millis(100), Duration::from_secs(1)]),
            grace: pick(rng, &[Duration::ZERO, Duration::from_millis(100)]),
            bytes_per_second: rng.chance(0.3).then_some(4 << 20),
            sketch_keys: 4096,
            candidates_limit: pick(rng, &[4, 1000]),
            candidate_ttl: Duration::from_secs(1),
            ..Promotion::default()
        },
        limits: Limits {
            owed: 1 << 16,
            scan_step: pick(rng, &[8, 16_384]),
            reply_window: pick(rng, &[16, 64]),
            ..Limits::default()
        },
        ..defaults
    }
}

/// Shares of two media that nodes want to be used, of those that want other ones than the rest.
fn watermarks(rng: &mut Rng) -> Vec<[Option<Watermarks>; 2]> {
    let mut own = || {
        let high = pick(rng, &[0.4, 0.8, 1.0]);
        let low = high * pick(rng, &[0.5, 0.9, 1.0]);
        rng.chance(0.25).then_some(Watermarks { low, high })
    };
    (0..NODES_MAX).map(|_| [own(), own()]).collect()
}

/// The share of puts that several hosts have to hold, in a stream of its own, so that other choices of a seed do not change.
fn replicated(seed: Seed, nodes: u32) -> f64 {
    let rng = &mut seed.stream("levels of puts", 0);
    match nodes {
        1 => 0.0,
        _ => pick(rng, &[0.0, 0.2, 0.5]),
    }
}

/// Nodes are waited for so long that they always come back in time, or so short that some do not.
fn absence(rng: &mut Rng) -> Absence {
    let millis = |rng: &mut Rng, choices: &[u64]| Duration::from_millis(pick(rng, choices));
    Absence {
        hidden_after: millis(rng, &[50, 400, 10_000]),
        given_up_after: millis(rng, &[300, 2_000, 600_000]),
        restart_wait: millis(rng, &[0, 100, 5_000]),
    }
}

fn load(rng: &mut Rng, log: bool, tenancy: Tenancy, embedded: bool) -> LoadOptions {
    LoadOptions {
        operations: 200 + rng.below(1000) as u32,
        keys: pick(rng, &[12, 48, 160]),
        chain: pick(rng, &[4, 12]),
        tenants: if tenancy == Tenancy::On {
            vec!["", "acme", "beta"]
        } else {
            vec![""]
        },
        bytes_max: pick(rng, &[6_000, 20_000, 60_000]),
        reads: pick(rng, &[0.3, 0.6, 0.8]),
        removes: 0.0,
        upserts: pick(rng, &[0.1, 0.5]),
        durable: if log {
            pick(rng, &[0.0, 0.2, 0.6])
        } else {
            pick(rng, &[0.0, 0.05])
        },
        replicated: 0.0,
        replicas_max: 1 + rng.below(3) as u32,
        pins: pick(rng, &[0.0, 0.05]),
        groups: pick(rng, &[0.0, 0.1]),
        hold: if embedded || rng.chance(0.2) {
            Hold::Guard
        } else {
            Hold::Lease
        },
        think: pick(
            rng,
            &[
                Duration::from_millis(1),
                Duration::from_millis(8),
                Duration::from_millis(25),
            ],
        ),
    }
}

fn links(rng: &mut Rng) -> LinkOptions {
    let rough = rng.chance(0.5);
    LinkOptions {
        delay_min: Duration::from_micros(20),
        delay_max: pick(rng, &[Duration::from_micros(200), Duration::from_millis(4)]),
        loss: if rough { pick(rng, &[0.01, 0.1]) } else { 0.0 },
        duplicate: if rough {
            pick(rng, &[0.0, 0.1, 0.4])
        } else {
            0.0
        },
        reorder: if rough { pick(rng, &[0.0, 0.1]) } else { 0.0 },
        reorder_max: pick(
            rng,
            &[Duration::from_millis(20), Duration::from_millis(1500)],
        ),
        bytes_per_second: pick(rng, &[20 << 20, 1 << 30]),
        messages: MessageFaults::default(),
    }
}

fn messages(rng: &mut Rng) -> MessageFaults {
    if rng.chance(0.3) {
        return MessageFaults::default();
    }
    MessageFaults {
        loss: pick(rng, &[0.0, 0.02, 0.1]),
        repeat: pick(rng, &[0.0, 0.1, 0.3]),
        delay: pick(rng, &[0.0, 0.05, 0.3]),
        delay_max: pick(rng, &[Duration::from_millis(30), MESSAGE_DELAY_MAX]),
    }
}

fn pick<T: Clone>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.below(choices.len() as u64) as usize].clone()
}

/// "Links" inside one process.
const INSIDE: LinkOptions = LinkOptions {
    delay_min: Duration::from_nanos(200),
    delay_max: Duration::from_micros(3),
    loss: 0.0,
    duplicate: 0.0,
    reorder: 0.0,
    reorder_max: Duration::ZERO,
    bytes_per_second: 1 << 33,
    messages: MessageFaults {
        loss: 0.0,
        repeat: 0.0,
        delay: 0.0,
        delay_max: Duration::ZERO,
    },
};

/// Longest delay of a request or an answer.
pub(crate) const MESSAGE_DELAY_MAX: Duration = Duration::from_millis(1500);
/// Longer than any run lasts.
const NEVER: Duration = Duration::from_secs(1 << 20);

/// The smallest possible log holds a few hundred values, so reclaim runs often.
const LOG_BYTES: u64 = 4 << 20;
/// A log of sixteen files: reclaim empties some whose tombstones keep records in others dead.
const CHURNED_BYTES: u64 = 2 << 20;
/// Most nodes of a cluster.
const NODES_MAX: u32 = 4;
/// Segment numbers reserved for each node.
const PER_NODE: u32 = 100;
