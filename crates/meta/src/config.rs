use std::ops::RangeInclusive;
use std::time::Duration;

use slackwater_base::Backoff;
use thiserror::Error;

use crate::evict::PolicyKind;

/// The configuration of a master. Every queue and table has its limit here.
#[derive(Clone, Debug, PartialEq)]
pub struct MasterConfig {
    /// How long a read or a first probe keeps an object from being evicted or removed.
    pub lease_ttl: Duration,
    /// How long a soft pin without a time lasts.
    pub soft_pin_ttl: Duration,
    /// The longest soft pin; longer ones are shortened to it.
    pub soft_pin_ttl_max: Duration,
    /// Whether tenants are separate.
    pub tenancy: Tenancy,
    /// How segments for new replicas are chosen.
    pub placement: Placement,
    /// Memory extents are multiples of this many bytes; a power of two.
    pub granule: u64,
    /// How puts wait, and when unfinished ones are ended.
    pub put: PutPolicy,
    /// Which replicas are evicted, and when.
    pub eviction: Eviction,
    /// Which objects are written to SSD, and when.
    pub offload: Offload,
    /// Which objects are promoted to memory, and when.
    pub promotion: Promotion,
    /// Which objects get further replicas in memory because they are read much.
    pub replication: Replication,
    /// How long nodes without a link are waited for.
    pub absence: Absence,
    /// Limits of tables and queues.
    pub limits: Limits,
}

/// How long nodes without a link are waited for.
#[derive(Clone, Debug, PartialEq)]
pub struct Absence {
    /// Time without a link after which a node's replicas are hidden. They are shown again when it comes back.
    pub hidden_after: Duration,
    /// Time after that in which it may come back with what its memory holds.
    pub given_up_after: Duration,
    /// How long after a restart of the master look-ups wait for nodes that have yet to say what they hold.
    pub restart_wait: Duration,
}

/// Whether tenants are separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenancy {
    /// All tenants are the default one.
    Off,
    /// Tenants are separate; one other than the default needs a quota before it can put.
    On,
}

/// How segments for new replicas are chosen, after those that the put prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In random order.
    Random,
    /// The largest free share first.
    FreeRatioFirst,
    /// Segments of the writer's host first.
    LocalFirst,
}

/// How puts are treated.
#[derive(Clone, Debug, PartialEq)]
pub struct PutPolicy {
    /// Time after which another put may replace one of the same key that was not ended.
    pub discard_timeout: Duration,
    /// Time after which a put that was not ended is discarded and its room freed.
    pub release_timeout: Duration,
    /// How long a put that states no time waits for space.
    pub wait: Duration,
    /// The longest wait; longer ones are shortened to it.
    pub wait_max: Duration,
    /// Most calls that wait for space at once; zero means that none ever waits.
    pub queue_limit: usize,
    /// Most bytes that calls take in this process, mostly of their keys, while they wait for space.
    pub queue_bytes: usize,
}

/// Which replicas are evicted, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Eviction {
    /// The policy of every segment.
    pub policy: PolicyKind,
    /// Tokens that a block of the engine holds.
    pub block_tokens: u32,
    /// Eviction of a memory segment begins when more than this share of it is used.
    pub high_watermark: f64,
    /// Eviction continues until no more than this share is used.
    pub low_watermark: f64,
    /// As `high_watermark`, for SSD.
    pub disk_high_watermark: f64,
    /// As `low_watermark`, for SSD.
    pub disk_low_watermark: f64,
    /// Whether soft-pinned objects may be evicted when nothing else can.
    pub soft_pinned: SoftPinned,
    /// Replicas examined in one step: bounds how long a request waits for an eviction.
    pub step: usize,
}

/// Whether soft-pinned objects are evicted when no unpinned one can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftPinned {
    /// The object is evicted, after all others.
    Last,
    /// The object stays until its pin is over.
    Never,
}

/// When objects are written to SSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadMode {
    /// Only for puts that ask for it.
    Off,
    /// When the put ends.
    Eager,
    /// When the object is evicted from memory; it stays there until the SSD copy is durable.
    OnEvict,
    /// As `OnEvict`, but an object that cannot be queued is dropped without an SSD copy.
    OnEvictForced,
}

/// How objects are written to SSD.
#[derive(Clone, Debug, PartialEq)]
pub struct Offload {
    /// When an object is written.
    pub mode: OffloadMode,
    /// Most objects on their way to SSD at once.
    pub queue_limit: usize,
    /// Share of `queue_limit` that evictions may use.
    pub cap_ratio: f64,
    /// An offload without a report for this long has failed.
    pub timeout: Duration,
    /// Pause of offloads to an SSD after a failure of its device or for lack of room.
    pub retry_after: Duration,
}

/// How objects on SSD are promoted to memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Promotion {
    /// Whether reads promote objects at all.
    pub on_hit: OnHit,
    /// The condition for a promotion.
    pub admission: PromotionAdmission,
    /// Reads after which an object is promoted, under [`PromotionAdmission::Frequency`]; from 1 to 255.
    pub threshold: u32,
    /// Most promotions in flight, in the whole cluster.
    pub queue_limit: usize,
    /// Most promotions that one node works on at once.
    pub batch_max: usize,
    /// Promotion is refused when at least this share of the node's memory is used. It is below the watermark of
    /// eviction, so that a promoted object is not evicted at once.
    pub watermark: f64,
    /// Longest time until a promotion is staged, and again from there to its end.
    pub window: Duration,
    /// How long the promoted copy is not evicted.
    pub grace: Duration,
    /// Bytes a second that promotions may read, in the whole cluster; `None` for no limit.
    pub bytes_per_second: Option<u64>,
    /// Keys that the sketch is sized for.
    pub sketch_keys: usize,
    /// Most keys remembered for a retry.
    pub candidates_limit: usize,
    /// How long a key is remembered after it was last read.
    pub candidate_ttl: Duration,
    /// Most retries of a key between two reads.
    pub candidate_retries: u32,
    /// Time between two retries of a key, at least: those that fall due within one first pause are tried together.
    pub backoff: Backoff,
}

/// Whether a read may bring an object back to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHit {
    /// Reads never promote.
    Stay,
    /// Reads that pass every gate promote.
    Promote,
}

/// The condition for promoting an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromotionAdmission {
    /// The object was read [`Promotion::threshold`] times lately.
    Frequency,
    /// The policy of the memory would keep the object, given what the policy of the SSD knows of it. Policies that
    /// learn nothing keep everything.
    Index,
}

/// Further replicas of objects that are read much.
#[derive(Clone, Debug, PartialEq)]
pub struct Replication {
    /// Whether they are made.
    pub mode: ReplicationMode,
    /// The time in which the reads of an object are counted together.
    pub window: Duration,
    /// Reads in such a time from which an object has another replica.
    pub reads: u32,
    /// Replicas in memory that an object has at most so.
    pub replicas_max: usize,
    /// Used part of a node's memory up to which replicas are made there.
    pub watermark: f64,
    /// Time after a decision on an object in which its reads do not count.
    pub rest: Duration,
    /// The same after a replica of it was evicted.
    pub rest_after_loss: Duration,
    /// Most objects whose reads are counted.
    pub tracked_limit: usize,
    /// Most objects that wait for another replica.
    pub queue_limit: usize,
}

/// Whether further replicas are made of what is read much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicationMode {
    /// Reads are not counted.
    Off,
    /// What would be made is counted.
    Observe,
    /// They are made.
    Enforce,
}

/// Limits of tables and queues.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Most objects in the catalog.
    pub objects: usize,
    /// Most mounted segments.
    pub segments: usize,
    /// Most tenants known at once.
    pub tenants: usize,
    /// Most clients whose replies are kept.
    pub clients: usize,
    /// Most guards held at once.
    pub guards: usize,
    /// Most puts in flight.
    pub open_puts: usize,
    /// Most replicas of one object that a put may ask for.
    pub replicas: u32,
    /// Most keys in one request.
    pub batch_keys: usize,
    /// Most objects of one group.
    pub group_members: usize,
    /// Most replies that wait for records to be dropped or written.
    pub acks: usize,
    /// Most outcomes of replicated puts that wait for one node to take its orders; beyond that none is acknowledged there, so
    /// that a node which takes nothing has no more of the master's memory.
    pub untaken: usize,
    /// Most scans at once.
    pub scans: usize,
    /// Objects examined in one step of a scan.
    pub scan_step: usize,
    /// Most keys in one page of a list.
    pub list_page: usize,
    /// Most bytes that a compiled pattern may take.
    pub pattern_bytes: usize,
    /// Most nodes with an SSD that removals are remembered for; what others hold that is older than their mount is
    /// given up. Removals are remembered from the start of the master until so many have mounted: zero for a store that
    /// has no SSD.
    pub nodes: usize,
    /// Most removals remembered for a node that is away, and for all nodes that have not mounted yet.
    pub owed: usize,
    /// Most look-ups that wait for nodes after a restart of the master, of which a client may keep a quarter; others are
    /// answered at once.
    pub held_calls: usize,
    /// Most keys of these look-ups, of which a client may keep a quarter.
    pub held_keys: usize,
    /// Answers kept for each client, so that a repeated operation is answered again and not executed again; zero keeps
    /// none. A client with more operations in flight is told to try again later.
    pub reply_window: usize,
    /// Most keys in all kept answers; beyond that, the oldest answers of the client with most of them are dropped.
    pub reply_keys: usize,
}

/// An option that has no effect or was changed; logged once at start.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ConfigWarning {
    /// Promotion is on and offload is off, so nothing is ever on SSD.
    #[error(
        "promotion on hit is on, but it does nothing: offload is off, so nothing is ever on SSD"
    )]
    PromotionWithoutOffload,
    /// The sketch counts to 255.
    #[error("promotion threshold {given} is not between 1 and 255: {used} is used")]
    ThresholdClamped {
        /// The configured value.
        given: u32,
        /// The nearest value in the range, which is used.
        used: u32,
    },
    /// A limit was zero where at least one is needed, or out of its range.
    #[error("{option} = {given} is out of range: {used} is used")]
    Clamped {
        /// The name of the option, as a path of fields.
        option: &'static str,
        /// The configured value.
        given: f64,
        /// The nearest value in the range, which is used.
        used: f64,
    },
}

impl MasterConfig {
    /// The default values. They are declared only here: the options of a shell take their defaults from these
    /// constants.
    pub const DEFAULT: Self = Self {
        lease_ttl: Duration::from_secs(10),
        soft_pin_ttl: Duration::from_secs(30 * 60),
        soft_pin_ttl_max: Duration::from_secs(24 * 60 * 60),
        tenancy: Tenancy::Off,
        placement: Placement::FreeRatioFirst,
        granule: 4096,
        put: PutPolicy::DEFAULT,
        eviction: Eviction::DEFAULT,
        offload: Offload::DEFAULT,
        promotion: Promotion::DEFAULT,
        replication: Replication::DEFAULT,
        absence: Absence::DEFAULT,
        limits: Limits::DEFAULT,
    };
}

impl PutPolicy {
    /// See [`MasterConfig::DEFAULT`].
    pub const DEFAULT: Self = Self {
        discard_timeout: Duration::from_secs(30),
        release_timeout: Duration::from_secs(600),
        wait: Duration::from_secs(2),
        wait_max: Duration::from_secs(60),
        queue_limit: 4096,
        queue_bytes: 64 << 20,
    };
}

impl Eviction {
    /// Replicas examined where something is refused for want of room after a single step: a long value may need that many short
    /// ones to go.
    pub(crate) fn only_step(&self) -> usize {
        self.step.max(1024)
    }

    /// See [`MasterConfig::DEFAULT`].
    pub const DEFAULT: Self = Self {
        policy: PolicyKind::Adaptive,
        block_tokens: 512,
        high_watermark: 0.95,
        low_watermark: 0.90,
        disk_high_watermark: 0.85,
        disk_low_watermark: 0.83,
        soft_pinned: SoftPinned::Last,
        step: 128,
    };
}

impl Offload {
    /// See [`MasterConfig::DEFAULT`].
    pub const DEFAULT: Self = Self {
        mode: OffloadMode::Eager,
        queue_limit: 50_000,
        cap_ratio: 0.5,
        timeout: Duration::from_secs(600),
        retry_after: Duration::from_millis(100),
    };
}

impl Promotion {
    /// Range of [`Self::threshold`]: the sketch counts to 255.
    pub const THRESHOLD: RangeInclusive<u32> = 1..=255;

    /// See [`MasterConfig::DEFAULT`].
    pub const DEFAULT: Self = Self {
        on_hit: OnHit::Promote,
        admission: PromotionAdmission::Frequency,
        threshold: 2,
        queue_limit: 50_000,
        batch_max: 16,
        watermark: 0.94,
        window: Duration::from_secs(10),
        grace: Duration::from_secs(1),
        bytes_per_second: None,
        sketch_keys: 1 << 20,
        candidates_limit: 50_000,
        candidate_ttl: Duration::from_secs(60),
        candidate_retries: 8,
        backoff: Backoff::doubling(Duration::from_millis(10), Duration::from_secs(1)),
    };
}

impl Replication {
    /// See [`MasterConfig::DEFAULT`].
    pub const DEFAULT: Self = Self {
        mode: ReplicationMode::Off,
        window: Duration::from_secs(10),
        reads: 8,
        replicas_max: 2,
        watermark: 0.85,
        rest: Duration::from_secs(30),
        rest_after_loss: Duration::from_secs(60),
        tracked_limit: 50_000,
        queue_limit: 50_000,
    };
}

impl Absence {
    /// See [`MasterConfig::DEFAULT`].
    pub const DEFAULT: Self = Self {
        hidden_after: Duration::from_secs(10),
        given_up_after: Duration::from_secs(600),
        restart_wait: Duration::from_secs(5),
    };
}

impl Limits {
    /// See [`MasterConfig::DEFAULT`].
    pub const DEFAULT: Self = Self {
        objects: 100_000_000,
        segments: 4096,
        tenants: 4096,
        clients: 65_536,
        guards: 1 << 20,
        open_puts: 1 << 20,
        replicas: 16,
        batch_keys: slackwater_wire::limits::BATCH_KEYS_MAX,
        group_members: 65_536,
        acks: 1 << 20,
        untaken: 65_536,
        scans: 16,
        scan_step: 4096,
        list_page: 65_536,
        pattern_bytes: 1 << 20,
        nodes: 4096,
        owed: 1 << 20,
        held_calls: 65_536,
        held_keys: 1 << 20,
        reply_window: 256,
        reply_keys: 1 << 22,
    };
}

/// Implements `Default` by the constant `DEFAULT`.
macro_rules! defaults {
    ($($kind:ty),*) => {
        $(impl Default for $kind {
            fn default() -> Self {
                Self::DEFAULT
            }
        })*
    };
}

defaults!(
    MasterConfig,
    PutPolicy,
    Eviction,
    Offload,
    Promotion,
    Limits
);

impl MasterConfig {
    /// The configuration as it will be used, and warnings for the operator.
    #[must_use]
    pub fn checked(mut self) -> (Self, Vec<ConfigWarning>) {
        let mut warnings = Vec::new();
        if self.promotion.on_hit == OnHit::Promote && self.offload.mode == OffloadMode::Off {
            warnings.push(ConfigWarning::PromotionWithoutOffload);
        }
        let given = self.promotion.threshold;
        let (least, most) = Promotion::THRESHOLD.into_inner();
        self.promotion.threshold = given.clamp(least, most);
        if self.promotion.threshold != given {
            warnings.push(ConfigWarning::ThresholdClamped {
                given,
                used: self.promotion.threshold,
            });
        }
        let mut clamp = |option, value: &mut f64, low: f64, high: f64| {
            let used = if value.is_nan() {
                high
            } else {
                value.clamp(low, high)
            };
            if used != *value {
                warnings.push(ConfigWarning::Clamped {
                    option,
                    given: *value,
                    used,
                });
                *value = used;
            }
        };
        let eviction = &mut self.eviction;
        clamp(
            "eviction.high_watermark",
            &mut eviction.high_watermark,
            0.01,
            1.0,
        );
        clamp(
            "eviction.low_watermark",
            &mut eviction.low_watermark,
            0.0,
            eviction.high_watermark,
        );
        clamp(
            "eviction.disk_high_watermark",
            &mut eviction.disk_high_watermark,
            0.01,
            1.0,
        );
        clamp(
            "eviction.disk_low_watermark",
            &mut eviction.disk_low_watermark,
            0.0,
            eviction.disk_high_watermark,
        );
        clamp(
            "replication.watermark",
            &mut self.replication.watermark,
            0.0,
            1.0,
        );
        self.replication.reads = self.replication.reads.max(1);
        clamp(
            "promotion.watermark",
            &mut self.promotion.watermark,
            0.0,
            eviction.high_watermark,
        );
        clamp("offload.cap_ratio", &mut self.offload.cap_ratio, 0.0, 1.0);
        let mut at_least_one = |option, value: &mut usize| {
            if *value == 0 {
                warnings.push(ConfigWarning::Clamped {
                    option,
                    given: 0.0,
                    used: 1.0,
                });
                *value = 1;
            }
        };
        at_least_one("eviction.step", &mut self.eviction.step);
        at_least_one("promotion.batch_max", &mut self.promotion.batch_max);
        at_least_one(
            "replication.replicas_max",
            &mut self.replication.replicas_max,
        );
        at_least_one("limits.scan_step", &mut self.limits.scan_step);
        at_least_one("limits.list_page", &mut self.limits.list_page);
        self.limits.segments = self.limits.segments.min(usize::from(u16::MAX));
        self.limits.tenants = self.limits.tenants.clamp(1, usize::from(u16::MAX));
        self.limits.objects = self.limits.objects.min(u32::MAX as usize - 1);
        self.put.wait = self.put.wait.min(self.put.wait_max);
        (self, warnings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r10_ineffective_and_clamped_promotion_options_are_warned_about() {
        let check = |threshold: u32, mode: OffloadMode, used: u32, count: usize| {
            let promotion = Promotion {
                on_hit: OnHit::Promote,
                threshold,
                ..Promotion::default()
            };
            let offload = Offload {
                mode,
                ..Offload::default()
            };
            let (config, warnings) = MasterConfig {
                promotion,
                offload,
                ..MasterConfig::default()
            }
            .checked();
            assert_eq!(
                (config.promotion.threshold, warnings.len()),
                (used, count),
                "{warnings:?}"
            );
        };
        check(2, OffloadMode::OnEvict, 2, 0);
        check(0, OffloadMode::OnEvict, 1, 1);
        check(256, OffloadMode::OnEvict, 255, 1);
        check(2, OffloadMode::Off, 2, 1);
        check(0, OffloadMode::Off, 1, 2);
    }

    #[test]
    fn watermarks_are_put_in_order() {
        let eviction = Eviction {
            high_watermark: 0.5,
            low_watermark: 0.9,
            ..Eviction::default()
        };
        let (config, warnings) = MasterConfig {
            eviction,
            ..MasterConfig::default()
        }
        .checked();
        assert!(config.eviction.low_watermark <= 0.5 && config.promotion.watermark <= 0.5);
        assert_eq!(warnings.len(), 2);
    }
}
