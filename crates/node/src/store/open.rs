use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use slackwater_base::ByteSize;
use slackwater_memory::FilePiece;
use slackwater_meta::{
    Absence, ConfigWarning, Eviction, Limits, Master, MasterConfig, Offload, OffloadMode, OnHit,
    Promotion, PutPolicy, Replication, ReplicationMode, Tenancy,
};
use slackwater_tier::arena::MemorySegment;
use slackwater_tier::io::LogFile;
use slackwater_tier::{Agent, AgentConfig, AgentInput, LogConfig};
use slackwater_wire::{
    Epoch, Incarnation, Mount, NodeId, ReplicaAt, Reply, Request, SegmentId, SegmentKind, Tenant,
};

use super::core::{Core, NODE};
use super::remote::Served;
use super::shared::{Parts, Shared, Ssd};
use super::socket::{Answer, AnswerSocket, Question};
use super::views::Views;
use super::{MEMORY_NAME, OpenError, StoreError};
use crate::config::Config;
use crate::disk::{self, Directory, Segment, Use};
use crate::kv_events::EventQueue;
use crate::region;
use crate::serve::{ExtentGate, epoch};

/// How a store is opened whose memory other processes reach too.
#[derive(Clone)]
pub(crate) struct Sharing {
    /// More memory, behind that of the store in the same mapping.
    pub(crate) beside: ByteSize,
    /// The file that it is a piece of, which has room for both; none for memory of this process.
    pub(crate) piece: Option<FilePiece>,
    /// The node that it is to a master in another process; none when its master is in this one.
    pub(crate) identity: Option<Identity>,
    /// Where its master tells what becomes readable and what goes.
    pub(crate) events: Option<Arc<EventQueue>>,
}

/// The numbers of a node and of its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) node: NodeId,
    pub(crate) memory: SegmentId,
    pub(crate) disk: SegmentId,
}

impl Identity {
    /// That of the only node of a store.
    pub(crate) const OWN: Self = Self {
        node: NODE,
        memory: SegmentId(1),
        disk: SegmentId(2),
    };

    /// The replica of whatever is in the log.
    pub(super) fn disk_replica(&self) -> ReplicaAt {
        ReplicaAt::Disk {
            node: self.node,
            segment: self.disk,
        }
    }
}

/// What extents are multiples of: a block, so that the device reads and writes them where they are.
pub(crate) const GRANULE: u64 = slackwater_base::BLOCK_BYTES;

/// Opens a store: maps memory, takes the directory, starts the threads, and reads what the log holds.
pub(super) fn open(
    mut config: Config,
    sharing: Option<Sharing>,
) -> Result<super::Handle, OpenError> {
    let problems = config.problems();
    if !problems.is_empty() {
        return Err(OpenError::Config(problems));
    }
    config
        .isa
        .install()
        .expect("a path that the processor lacks is a problem of the configuration");
    config.memory = ByteSize(config.memory.0 / GRANULE * GRANULE);
    let mut warnings = config.warnings();
    let mapped = match &sharing {
        None => region::map(config.memory.0 as usize, config.huge_pages),
        Some(Sharing {
            piece: Some(piece), ..
        }) => region::map_piece(piece),
        Some(sharing) => region::map_shared((config.memory.0 + sharing.beside.0) as usize),
    };
    let (region, pages) = mapped.map_err(|why| OpenError::Memory {
        bytes: config.memory,
        why,
    })?;
    let [seed, life] = random()?;
    let incarnation = Incarnation(life);
    let elsewhere = sharing.as_ref().and_then(|sharing| sharing.identity);
    let events = sharing.as_ref().and_then(|sharing| sharing.events.clone());
    let identity = elsewhere.unwrap_or(Identity::OWN);
    let segment = Segment {
        id: identity.memory,
        incarnation,
        region: Arc::new(region),
    };
    let disk = open_disk(&config, &segment)?;
    let mut master = match elsewhere {
        None => {
            // Of a served store the service says so.
            if config.replication_mode != ReplicationMode::Off && sharing.is_none() {
                let no_other = "there is no other node for a further replica";
                warnings.push(format!("`replication.mode` has no effect: {no_other}"));
            }
            Some(Master::new(master_config(&config), seed))
        }
        Some(_) => None,
    };
    let served = sharing
        .map(|sharing| -> Result<Served, OpenError> {
            let bytes = config.memory.0 + sharing.beside.0;
            let gate = Arc::new(ExtentGate::new(bytes, GRANULE));
            let Some(master) = &mut master else {
                let epoch = Epoch(0);
                return Ok(Served { gate, epoch });
            };
            // Under the lock of the directory, so that no two masters begin the same epoch.
            let directory = disk.as_ref().map(|ssd| ssd.directory.path());
            let epoch = epoch::begin(directory).map_err(|why| OpenError::System {
                what: "the number of a new epoch",
                why,
            })?;
            master.start_above(epoch::versions_above(epoch));
            Ok(Served { gate, epoch })
        })
        .transpose()?;
    let mut core = Core::new(
        master,
        agent(&config, &identity, incarnation),
        views(&config),
    );
    if let Some(served) = &served {
        core = core
            .gated_by(Arc::clone(&served.gate))
            .telling(events.clone(), served.epoch);
    }
    for warning in core.master().into_iter().flat_map(Master::warnings) {
        // Both are said by `Config::warnings` in the words of its options.
        let known = matches!(
            warning,
            ConfigWarning::PromotionWithoutOffload | ConfigWarning::ThresholdClamped { .. }
        );
        if !known {
            tracing::warn!("{warning}");
        }
    }
    warnings
        .iter()
        .for_each(|warning| tracing::warn!("{warning}"));
    let shared = Arc::new(Shared::new(Parts {
        config,
        core,
        segment,
        disk,
        pages,
        warnings,
        served,
        identity,
    }));
    if let Some(events) = events {
        let asked = Arc::downgrade(&shared);
        events.ask_by(move |more| {
            let tell = |core: &mut Core, _| core.tell_more_events(more);
            asked
                .upgrade()
                .is_some_and(|shared| shared.with(tell).is_ok())
        });
    }
    let threads = shared.start().map_err(|why| OpenError::System {
        what: "a thread",
        why,
    })?;
    let handle = super::Handle {
        shared,
        threads: Mutex::new(threads),
        socket: Mutex::new(None),
    };
    if elsewhere.is_some() {
        // Its log is opened when there is something that takes what it announces.
        return Ok(handle);
    }
    mount(&handle.shared)?;
    recover(&handle.shared)?;
    let socket = answer_socket(&handle.shared);
    *handle.socket.lock().unwrap_or_else(PoisonError::into_inner) = socket;
    Ok(handle)
}

fn open_disk(config: &Config, segment: &Segment) -> Result<Option<Ssd>, OpenError> {
    let (Some(path), true) = (&config.dir, config.ssd.0 > 0) else {
        return Ok(None);
    };
    let directory = Arc::new(Directory::hold(path)?);
    let (backend, depth) = (config.io, config.io_depth as usize);
    let how = Use {
        backend,
        depth,
        read_buffer_bytes: config.read_buffers.0 as usize,
    };
    let disk = disk::start(&directory, segment.clone(), how);
    let disk = disk.map_err(|error| OpenError::Device {
        why: error.to_string(),
    })?;
    tracing::info!(io = disk.choice.chosen, reason = disk.choice.reason, directory = %path.display(), "the SSD tier");
    Ok(Some(Ssd {
        directory,
        disk,
        recovered: AtomicU64::new(0),
    }))
}

fn log_error(shared: &Shared, why: &StoreError) -> OpenError {
    OpenError::Log {
        directory: shared.config.dir.clone().unwrap_or_default(),
        why: why.to_string(),
    }
}

fn mount(shared: &Shared) -> Result<(), OpenError> {
    let log = |why: StoreError| log_error(shared, &why);
    let ask = |request| match shared.ask("a mount", request) {
        Ok(Reply::Failed(code)) => Err(log(StoreError::RefusedCall(code))),
        Ok(_) => Ok(()),
        Err(error) => Err(log(error)),
    };
    let incarnation = shared.segment.incarnation;
    let mounts = mounts(&shared.config, &shared.identity, incarnation);
    mounts.into_iter().map(Request::Mount).try_for_each(ask)
}

/// Opens the log, if there is one: what it holds is announced to the master.
pub(super) fn recover(shared: &Shared) -> Result<(), OpenError> {
    let log = |why: StoreError| log_error(shared, &why);
    let [fresh_high, fresh_low] = random()?;
    let fresh = u128::from(fresh_high) << 64 | u128::from(fresh_low);
    let Some(ssd) = &shared.disk else {
        return Ok(());
    };
    let files = ssd
        .directory
        .list()?
        .into_iter()
        .map(|(file, bytes)| LogFile { file, bytes })
        .collect();
    let opening = shared
        .with(|core, now| core.open(now, AgentInput::Open { files, fresh }))
        .map_err(log)?;
    let opened = opening
        .wait(&shared.waits.at(&shared.waits.log))
        .map_err(log)?
        .map_err(|error| OpenError::Log {
            directory: ssd.directory.path().to_owned(),
            why: error.to_string(),
        })?;
    shared.restore_learned();
    ssd.recovered.store(opened.records, Ordering::Relaxed);
    tracing::info!(
        records = opened.records,
        bytes = opened.bytes,
        torn = opened.torn,
        "the log is open"
    );
    Ok(())
}

/// The socket on which other processes ask; a store goes on without one.
fn answer_socket(shared: &Arc<Shared>) -> Option<AnswerSocket> {
    let ssd = shared.disk.as_ref()?;
    let asked = Arc::clone(shared);
    let answer = move |question: Question| {
        let explained = Tenant::new(&question.tenant)
            .map_err(|error| error.to_string())
            .and_then(|tenant| {
                let explained = asked.explain(&question.key, &tenant);
                explained.map_err(|error| error.to_string())
            });
        explained.map_or_else(Answer::Error, Answer::Tiers)
    };
    AnswerSocket::open(&ssd.directory, answer)
        .inspect_err(|error| {
            tracing::warn!(%error, "other processes cannot ask this store why it keeps an object");
        })
        .ok()
}

/// The segments of a store: its memory, and the log if there is one.
pub(super) fn mounts(config: &Config, identity: &Identity, incarnation: Incarnation) -> Vec<Mount> {
    let mount = |segment, name: &str, kind, bytes| Mount {
        segment,
        name: name.to_owned(),
        node: identity.node,
        incarnation,
        kind,
        bytes,
        host: String::new(),
        generations: None,
        watermarks: None,
    };
    let mut mounts = vec![mount(
        identity.memory,
        MEMORY_NAME,
        SegmentKind::Memory,
        config.memory.0,
    )];
    if config.ssd.0 > 0 {
        mounts.push(mount(
            identity.disk,
            DISK_NAME,
            SegmentKind::Disk,
            config.ssd.0,
        ));
    }
    mounts
}

/// The name of the segment that stands for the log.
const DISK_NAME: &str = "ssd";

/// The configuration of a master whose nodes are in other processes, and may have an SSD or not.
pub(crate) fn pool_config(config: &Config) -> MasterConfig {
    let with_ssd = Config {
        ssd: config.ssd.max(ByteSize(1)),
        ..config.clone()
    };
    let own = master_config(&with_ssd);
    MasterConfig {
        limits: Limits {
            nodes: Limits::DEFAULT.nodes,
            ..own.limits
        },
        ..own
    }
}

pub(super) fn master_config(config: &Config) -> MasterConfig {
    let defaults = MasterConfig::default();
    let on_hit =
        if config.promotion_enabled && config.ssd.0 > 0 && config.offload != OffloadMode::Off {
            OnHit::Promote
        } else {
            OnHit::Stay
        };
    let rate = config.promotion_rate.0;
    MasterConfig {
        lease_ttl: config.lease_ttl,
        soft_pin_ttl: config.soft_pin_ttl,
        tenancy: if config.tenants {
            Tenancy::On
        } else {
            Tenancy::Off
        },
        granule: GRANULE,
        put: PutPolicy {
            wait: config.put_wait,
            wait_max: config.deadline,
            ..defaults.put
        },
        absence: Absence {
            restart_wait: config.restart_wait,
            ..defaults.absence
        },
        eviction: Eviction {
            policy: config.policy,
            block_tokens: config.evict_block_tokens,
            high_watermark: config.evict_high.0,
            low_watermark: config.evict_low.0,
            disk_high_watermark: config.evict_ssd_high.0,
            disk_low_watermark: config.evict_ssd_low.0,
            ..defaults.eviction
        },
        offload: Offload {
            mode: if config.ssd.0 > 0 {
                config.offload
            } else {
                OffloadMode::Off
            },
            ..defaults.offload
        },
        replication: Replication {
            mode: config.replication_mode,
            reads: config.replication_reads,
            window: config.replication_window,
            replicas_max: config.replication_replicas as usize,
            watermark: config.replication_high.0,
            ..defaults.replication
        },
        promotion: Promotion {
            on_hit,
            admission: config.promotion_admission,
            threshold: config.promotion_threshold,
            queue_limit: config.promotion_limit as usize,
            batch_max: config.promotion_batch as usize,
            watermark: config.promoted_below().0,
            window: config.promotion_deadline,
            bytes_per_second: (rate > 0).then_some(rate),
            ..defaults.promotion
        },
        limits: Limits {
            nodes: usize::from(config.ssd.0 > 0),
            ..defaults.limits
        },
        ..defaults
    }
}

pub(super) fn agent(config: &Config, identity: &Identity, incarnation: Incarnation) -> Agent {
    let mut settings = AgentConfig::new(identity.node);
    // Only a node of a pool has another number.
    settings.outlives = identity.node != Identity::OWN.node;
    if config.ssd.0 > 0 {
        settings.log = Some(log(config, identity));
    }
    let mut agent = Agent::new(settings);
    let bytes = config.memory.0;
    agent.add_segment(MemorySegment {
        segment: identity.memory,
        incarnation,
        bytes,
        granule: GRANULE,
    });
    agent
}

pub(super) fn views(config: &Config) -> Views {
    Views::new(config.views_limit as usize, config.views_time)
}

/// The SSD log as `config` wants it.
pub(super) fn log(config: &Config, identity: &Identity) -> LogConfig {
    let mut log = LogConfig::new(identity.disk, config.ssd);
    log.file_bytes = config.file_bytes.0;
    log.batch_delay = config.flush_delay;
    log.pace.slowdown_max = f64::from(config.pace_read_percent) / 100.0;
    log.pace.share_min = config.pace_write_share.0;
    log
}

/// The operating system gives no random bytes.
pub(crate) fn no_randomness(error: getrandom::Error) -> OpenError {
    let why = std::io::Error::other(error.to_string());
    OpenError::System {
        what: "random bytes",
        why,
    }
}

/// Two random numbers.
pub(crate) fn random() -> Result<[u64; 2], OpenError> {
    let mut bytes = [0; 16];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(no_randomness)?;
    Ok(std::array::from_fn(|i| {
        u64::from_le_bytes(std::array::from_fn(|j| bytes[i * 8 + j]))
    }))
}

#[cfg(test)]
mod tests {
    use slackwater_base::ByteSize;

    use super::*;

    /// A store without an SSD waited for the only one to mount: it remembered every key that was put, up to a million.
    #[test]
    fn removals_are_remembered_for_the_ssd_of_the_store_alone() {
        for (ssd, nodes) in [(ByteSize(0), 0), (ByteSize::gib(1), 1)] {
            let config = Config {
                ssd,
                ..Config::default()
            };
            assert_eq!(master_config(&config).limits.nodes, nodes, "{ssd}");
        }
    }
}
