use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use slackwater_base::Checksum;

use crate::{
    GuardId, Incarnation, JobId, JobSpec, Key, KeyList, NodeId, OperationId, ReplicaAt, SegmentId,
    Tenant, Version, checksum_serde,
};

/// What a client asks of the master.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Where are these objects? Grants a lease or a guard on each that is found.
    Get(Get),
    /// Objects were read where earlier answers said that they are. Counts as those reads, and renews their leases.
    /// Answered as [`Request::Get`] of all the keys.
    Reads(Reads),
    /// The reads under these guards are over.
    GetEnd(GetEnd),
    /// Are these objects there? Answers [`crate::Reply::Exists`].
    Exists(Exists),
    /// Room for new objects.
    PutStart(PutStart),
    /// The bytes of these puts are in place: publish them.
    PutEnd(PutEnd),
    /// These puts will not be finished: take the room back.
    PutRevoke {
        /// The tenant of the objects.
        tenant: Tenant,
        /// Key and version of each, as granted.
        #[serde(deserialize_with = "crate::body::list")]
        puts: Vec<(Key, Version)>,
    },
    /// The client has given this operation up, with or without its answer: take back what it was granted, and grant it
    /// nothing when it arrives later.
    Revoke {
        /// The operation, of the same client.
        operation: OperationId,
    },
    /// Remove these objects.
    Remove(Remove),
    /// Remove every object whose key a pattern matches.
    RemoveMatching(RemoveMatching),
    /// Remove every object of a tenant, or of all.
    RemoveAll(RemoveAll),
    /// Drop replicas of one's own objects.
    ReplicaClear(ReplicaClear),
    /// A reader got wrong bytes from this replica: drop it, if it still holds that version.
    Suspect {
        /// The tenant of the object.
        tenant: Tenant,
        /// Its key.
        key: Key,
        /// The version that was read.
        version: Version,
        /// The replica it was read from.
        at: ReplicaAt,
    },
    /// Keys, in order.
    List(List),
    /// Everything known about one object; neither leases nor promotes.
    Describe {
        /// The tenant of the object.
        tenant: Tenant,
        /// Its key.
        key: Key,
    },
    /// Lend a segment to the pool.
    Mount(Mount),
    /// Set or change the byte quota of a tenant.
    SetQuota {
        /// The tenant.
        tenant: Tenant,
        /// Bytes of memory replicas, complete and in flight.
        memory_bytes: u64,
        /// Bytes of SSD replicas.
        disk_bytes: u64,
    },
    /// Forget the quota of a tenant that has no objects.
    DeleteQuota {
        /// The tenant.
        tenant: Tenant,
    },
    /// Quotas and use of every tenant that has either.
    Quotas,
    /// Begin a job. Answers [`crate::Reply::Job`] at once.
    StartJob(JobSpec),
    /// How far is this job?
    QueryJob {
        /// The job.
        job: JobId,
    },
    /// Answers as [`Self::QueryJob`], once the job is over.
    AwaitJob {
        /// The job.
        job: JobId,
    },
    /// End this job: what is being carried arrives, and nothing more is begun. Segments that are drained take new values
    /// again, also when their job is over. Refused where the job is over and there is nothing to end.
    CancelJob {
        /// The job.
        job: JobId,
    },
    /// The latest jobs, 64 at most, the oldest first.
    Jobs,
}

/// What the caller knows about the chain that the keys of a batch belong to.
///
/// The order of keys in one batch *is* the chain: each block is the parent of the next. A caller that passes a chain
/// in pieces says where the piece begins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Chain {
    /// The block before the first key, when the batch does not begin at the root.
    pub parent: Option<Key>,
    /// Position of the first key in its chain, in blocks from the root; [`Chain::POSITION_UNKNOWN`] where the caller does
    /// not know it.
    pub position: u32,
    /// An opaque small number that callers expect to distinguish returning requests from others.
    pub hint: Option<u32>,
    /// What the caller expects of the chain. Without one the field is left out, as peers of earlier versions do, which
    /// skip it; a word of a later version counts as none.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "known_expectation"
    )]
    pub expect: Option<Expectation>,
    /// Tokens that the request generated, where the caller knows.
    pub output_tokens: Option<u32>,
}

impl Chain {
    /// The position of a block of which the caller does not know how many come before it; those after it count from there.
    /// It is deeper than any chain, so that nobody takes the block for a root.
    pub const POSITION_UNKNOWN: u32 = 1 << 29;

    /// Whether the first key of the batch is the root of its chain.
    pub fn begins_at_root(&self) -> bool {
        self.parent.is_none() && self.position == 0
    }
}

/// What the caller of a request expects of its chain. It may be wrong in some cases: how often is learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expectation {
    /// Another request continues the chain within ten minutes.
    Continues,
    /// None does.
    Ends,
}

pub(crate) fn known_expectation<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Expectation>, D::Error> {
    let word: Option<String> = Option::deserialize(deserializer)?;
    Ok(match word.as_deref() {
        Some("Continues") => Some(Expectation::Continues),
        Some("Ends") => Some(Expectation::Ends),
        _ => None,
    })
}

/// How a read keeps its replica in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hold {
    /// For the configured lease time: for readers that may vanish.
    #[default]
    Lease,
    /// Until [`Request::GetEnd`], or the client's link is lost: for readers in the owner's process.
    Guard,
}

/// See [`Request::Get`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Get {
    /// The tenant of the objects.
    #[serde(default)]
    pub tenant: Tenant,
    /// The keys in chain order.
    #[serde(deserialize_with = "crate::body::list")]
    pub keys: Vec<Key>,
    /// The place of the keys in their chain.
    #[serde(default)]
    pub chain: Chain,
    /// How the replicas are kept in place.
    #[serde(default)]
    pub hold: Hold,
    /// Stop at the first key that is missing: the rest answer as missing and are neither held nor counted as reads.
    #[serde(default)]
    pub prefix_only: bool,
}

/// See [`Request::Reads`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reads {
    /// The tenant of the objects.
    #[serde(default)]
    pub tenant: Tenant,
    /// The calls, in their order. They have at most [`BATCH_KEYS_MAX`](crate::limits::BATCH_KEYS_MAX) keys together.
    #[serde(deserialize_with = "crate::body::list")]
    pub calls: Vec<ReadCall>,
}

/// One call that read objects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadCall {
    /// The keys in chain order.
    #[serde(deserialize_with = "crate::body::list")]
    pub keys: Vec<Key>,
    /// The versions that were read, one for each key: another one counts as missing, as nobody has read it. Without any, as
    /// clients that do not tell them, each counts.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "crate::body::list"
    )]
    pub versions: Vec<Version>,
    /// The place of the keys in their chain.
    #[serde(default)]
    pub chain: Chain,
}

impl Reads {
    /// The keys of all calls, in their order.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.calls.iter().flat_map(|call| &call.keys)
    }

    /// The versions that were read, in the order of the keys, where all calls tell them.
    pub fn versions(&self) -> impl Iterator<Item = Version> {
        self.calls.iter().flat_map(|call| &call.versions).copied()
    }
}

/// See [`Request::GetEnd`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetEnd {
    /// The guards given back.
    #[serde(deserialize_with = "crate::body::list")]
    pub guards: Vec<GuardId>,
}

/// See [`Request::Exists`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exists {
    /// The tenant of the objects.
    #[serde(default)]
    pub tenant: Tenant,
    /// The keys in chain order.
    pub keys: KeyList,
}

/// Whether an object may be evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pin {
    /// As any other.
    #[default]
    None,
    /// Only when nothing unpinned is left, until the time is over; `None` means the configured time.
    Soft(Option<Duration>),
    /// Never.
    Hard,
}

impl Pin {
    /// Its name, for people and tools.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Soft(_) => "soft",
            Self::Hard => "hard",
        }
    }
}

/// What a put does when an object of the same key exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PutMode {
    /// The put is refused with `OBJECT_ALREADY_EXISTS`.
    #[default]
    Create,
    /// The put replaces it: readers see the old value until the new one is published, and never again after.
    Upsert,
}

/// What an acknowledged put survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Durability {
    /// Bytes in memory, checksum known, visible.
    #[default]
    Memory,
    /// As `Memory`, and the record is written and synced on SSD.
    Disk,
    /// As `Memory`, in all the replicas that were asked for, each on another host: the object survives all but one of their
    /// nodes. Where a node does not say its host, it is one of its own. Masters of earlier releases refuse a put that asks for it.
    Replicated,
}

/// How a put wants its object kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PutConfig {
    /// What to do when the object exists.
    pub mode: PutMode,
    /// Memory replicas, on different segments; fewer segments give fewer replicas, but for [`Durability::Replicated`].
    pub replicas: u32,
    /// Segments to be tried first, of which a master takes the first 16; unknown names are not an error.
    #[serde(deserialize_with = "crate::body::list")]
    pub preferred: Vec<String>,
    /// Whether it may be evicted.
    pub pin: Pin,
    /// Objects of one group are leased and evicted together.
    pub group: Option<u64>,
    /// What an acknowledged put survives.
    pub durability: Durability,
    /// How long to wait for space before `NO_AVAILABLE_HANDLE`; `None` means the configured time.
    pub wait: Option<Duration>,
}

impl Default for PutConfig {
    fn default() -> Self {
        Self {
            mode: PutMode::Create,
            replicas: 1,
            preferred: Vec::new(),
            pin: Pin::None,
            group: None,
            durability: Durability::Memory,
            wait: None,
        }
    }
}

/// One object of a put.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PutEntry {
    /// Its key.
    pub key: Key,
    /// Its length in bytes, 1 or more.
    pub bytes: u64,
}

/// See [`Request::PutStart`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PutStart {
    /// The tenant of the objects.
    #[serde(default)]
    pub tenant: Tenant,
    /// The objects in chain order. Of two equal keys the first is put.
    #[serde(deserialize_with = "crate::body::list")]
    pub entries: Vec<PutEntry>,
    /// The place of the keys in their chain.
    #[serde(default)]
    pub chain: Chain,
    /// Options of the put, the same for all entries.
    #[serde(default)]
    pub config: PutConfig,
}

/// See [`Request::PutEnd`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PutEnd {
    /// The tenant of the objects.
    #[serde(default)]
    pub tenant: Tenant,
    /// The puts that are complete.
    #[serde(deserialize_with = "crate::body::list")]
    pub puts: Vec<PutDone>,
    /// Hosts that must have each of them, of puts of [`Durability::Replicated`]: a master that did not grant them knows it from
    /// here alone. Clients of earlier releases do not say it, and masters of earlier releases skip it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<u32>,
}

/// One put whose bytes are in place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PutDone {
    /// Its key.
    pub key: Key,
    /// Its version, as granted.
    pub version: Version,
    /// The checksum of the bytes as they entered.
    #[serde(with = "checksum_serde")]
    pub checksum: Checksum,
}

/// See [`Request::Remove`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Remove {
    /// The tenant of the objects.
    #[serde(default)]
    pub tenant: Tenant,
    /// The keys, in any order.
    #[serde(deserialize_with = "crate::body::list")]
    pub keys: Vec<Key>,
    /// Also while readers hold leases.
    #[serde(default)]
    pub force: bool,
}

/// See [`Request::RemoveMatching`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemoveMatching {
    /// The tenant of the objects.
    #[serde(default)]
    pub tenant: Tenant,
    /// A regular expression, searched for anywhere in the key.
    pub pattern: String,
    /// Also while readers hold leases.
    #[serde(default)]
    pub force: bool,
}

/// See [`Request::RemoveAll`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemoveAll {
    /// The tenant whose objects are removed; `None` means all tenants.
    pub tenant: Option<Tenant>,
    /// Also while readers hold leases.
    #[serde(default)]
    pub force: bool,
}

/// See [`Request::ReplicaClear`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicaClear {
    /// The tenant of the objects.
    #[serde(default)]
    pub tenant: Tenant,
    /// The keys, in any order.
    #[serde(deserialize_with = "crate::body::list")]
    pub keys: Vec<Key>,
    /// The segment to be cleared of them; `None` clears the whole object.
    pub segment: Option<String>,
}

/// See [`Request::List`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct List {
    /// The tenant of the objects.
    #[serde(default)]
    pub tenant: Tenant,
    /// Only keys in which this regular expression is found.
    #[serde(default)]
    pub pattern: Option<String>,
    /// Only keys after this one, in byte order.
    #[serde(default)]
    pub after: Option<Key>,
    /// At most this many.
    pub limit: u32,
}

/// The medium of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SegmentKind {
    /// Memory that movers reach by address.
    Memory,
    /// The SSD log of a node, which only that node reads and writes.
    Disk,
}

impl SegmentKind {
    /// The tier that it belongs to, by its name for people and tools.
    #[must_use]
    pub fn tier(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "ssd",
        }
    }
}

/// See [`Request::Mount`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mount {
    /// Its id, unique in the pool; names need not be unique.
    pub segment: SegmentId,
    /// Its name, which puts may prefer.
    pub name: String,
    /// The node that lends it.
    pub node: NodeId,
    /// The life of that node's process.
    pub incarnation: Incarnation,
    /// Its medium.
    pub kind: SegmentKind,
    /// Its size in bytes.
    pub bytes: u64,
    /// The host it is on: `local_first` prefers the writer's.
    pub host: String,
    /// Of a node that outlives its master, the highest generation that its extents had: it announces what it holds before
    /// anything is placed there, and is told what is published. None for one that ends with its master.
    #[serde(default)]
    pub generations: Option<u64>,
    /// When it is evicted from; none for what the master has for all segments, which masters of earlier releases take
    /// whatever is said here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watermarks: Option<Watermarks>,
}

/// Shares of a segment, from 0 to 1, between which eviction keeps its fill.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Watermarks {
    /// Eviction ends when no more than this share is used.
    pub low: f64,
    /// Eviction begins when more than this share is used.
    pub high: f64,
}

impl Watermarks {
    /// The least that `high` may be: below that next to nothing would stay.
    pub const HIGH_MIN: f64 = 0.01;

    /// Whether eviction can keep to them.
    #[must_use]
    pub fn are_sound(self) -> bool {
        let Self { low, high } = self;
        (Self::HIGH_MIN..=1.0).contains(&high) && (0.0..=high).contains(&low)
    }
}
