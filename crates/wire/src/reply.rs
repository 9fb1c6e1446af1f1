use std::time::Duration;

use serde::{Deserialize, Serialize};
use slackwater_base::Checksum;

use crate::{
    ErrorCode, GuardId, Incarnation, JobState, Key, NodeId, Pin, Replicas, SegmentId, SegmentKind,
    Tenant, Version, checksum_serde,
};

/// The master's answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// One outcome a key, in the order of the request.
    Get(Vec<Lookup>),
    /// For each key whether it is there, in the order of the request.
    Exists(Vec<bool>),
    /// One outcome an entry, in the order of the request.
    PutStart(Vec<PutStarted>),
    /// One result a key, in the order of the request: put end, put revoke, remove, replica clear.
    Each(Vec<Result<(), ErrorCode>>),
    /// How many objects were removed.
    Count(u64),
    /// Keys in order.
    List(Listed),
    /// All that the master knows about an object.
    Describe(Box<Description>),
    /// Quotas and use.
    Quotas(Vec<QuotaState>),
    /// How far a job is.
    Job(Box<JobState>),
    /// How far jobs are.
    Jobs(Vec<JobState>),
    /// Done; there is nothing more to say.
    Done,
    /// The whole request was refused.
    Failed(ErrorCode),
}

/// Bytes of a memory segment under one generation: a reader or writer shows it to the owner, which checks it before
/// the first byte and again at commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExtentRef {
    /// The segment.
    pub segment: SegmentId,
    /// The life of its owner's process.
    pub incarnation: Incarnation,
    /// First byte, from the start of the segment.
    pub offset: u64,
    /// Length that belongs to the holder, a multiple of the segment's granule.
    pub bytes: u64,
    /// The number of this allocation of the bytes; never used again.
    pub generation: u64,
}

/// Where a replica is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReplicaAt {
    /// In memory.
    Memory(ExtentRef),
    /// In the SSD log of a node, under the object's version.
    Disk {
        /// The owner.
        node: NodeId,
        /// The segment that represents its log.
        segment: SegmentId,
    },
}

impl ReplicaAt {
    /// What the segment is made of.
    #[must_use]
    pub fn kind(&self) -> SegmentKind {
        match self {
            Self::Memory(_) => SegmentKind::Memory,
            Self::Disk { .. } => SegmentKind::Disk,
        }
    }
}

/// An object that can be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Object {
    /// The version of the put that wrote it.
    pub version: Version,
    /// Its length in bytes.
    pub bytes: u64,
    /// The checksum of its bytes.
    #[serde(with = "checksum_serde")]
    pub checksum: Checksum,
    /// Readable replicas, best first as far as the master knows.
    pub replicas: Replicas,
    /// How long the lease lasts, counted by the holder from its request.
    pub lease: Duration,
    /// The guard, when one was asked for.
    pub guard: Option<GuardId>,
}

/// What a look-up found. A miss is an outcome, not an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Lookup {
    /// It can be read.
    Found(Object),
    /// It exists, but nothing of it can be read yet.
    NotReady,
    /// There is no such object.
    Missing,
    /// The request was refused for this key.
    Failed(ErrorCode),
}

impl Lookup {
    /// The guard that the answer grants.
    #[must_use]
    pub fn guard(&self) -> Option<GuardId> {
        match self {
            Self::Found(object) => object.guard,
            Self::NotReady | Self::Missing | Self::Failed(_) => None,
        }
    }
}

/// The outcome of a put start for one entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PutStarted {
    /// Room was found: write all of these, then end the put.
    Granted {
        /// The put's version, to be shown at its end.
        version: Version,
        /// One extent a replica.
        extents: Vec<ExtentRef>,
    },
    /// An object of that key is there or being written (`OBJECT_ALREADY_EXISTS`).
    Exists,
    /// No room, a wrong argument or a refusal.
    Failed(ErrorCode),
}

/// One page of keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    /// Keys in byte order.
    pub keys: Vec<Key>,
    /// Whether more follow after the last.
    pub more: bool,
}

/// The life of a replica, with the numbers that integrations know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum ReplicaState {
    /// Its bytes are being written.
    Processing = 2,
    /// It can be read.
    Complete = 3,
    /// It is going away: no new read may begin.
    Removed = 4,
}

impl ReplicaState {
    /// Its name, for people and tools.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Processing => "being written",
            Self::Complete => "complete",
            Self::Removed => "being removed",
        }
    }
}

/// All that the master knows about an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Its key.
    pub key: Key,
    /// Its tenant.
    pub tenant: Tenant,
    /// The version of the put that wrote it.
    pub version: Version,
    /// Its length in bytes.
    pub bytes: u64,
    /// The checksum of its bytes.
    #[serde(with = "checksum_serde")]
    pub checksum: Checksum,
    /// Its group.
    pub group: Option<u64>,
    /// Its pin, with the time left of a soft one.
    pub pin: Pin,
    /// Time left of the longest lease.
    pub lease: Duration,
    /// Replicas with state and reference count.
    pub replicas: Vec<(ReplicaAt, ReplicaState, u32)>,
    /// The names of the segments that they are on, in the same order; none from masters of earlier versions.
    #[serde(default)]
    pub names: Vec<String>,
}

impl Description {
    /// The replicas, each with the name of its segment; an empty one where the master told none.
    pub fn named(&self) -> impl Iterator<Item = (&(ReplicaAt, ReplicaState, u32), &str)> {
        let names = self.names.iter().map(String::as_str);
        self.replicas.iter().zip(names.chain(std::iter::repeat("")))
    }
}

/// Quota and use of a tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuotaState {
    /// The tenant.
    pub tenant: Tenant,
    /// Bytes of memory it may hold; `None` without a quota.
    pub memory_quota: Option<u64>,
    /// Bytes of SSD it may hold; `None` without a quota.
    pub disk_quota: Option<u64>,
    /// Bytes of memory it holds, in flight included.
    pub memory_bytes: u64,
    /// Bytes of SSD it holds.
    pub disk_bytes: u64,
    /// Objects it holds.
    pub objects: u64,
}

/// Whether the node of a segment has a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Presence {
    /// It has one.
    #[default]
    Here,
    /// It lost its link a moment ago: nothing new is placed there.
    Away,
    /// It has been without a link for so long that its replicas are as good as gone, until it comes back.
    Hidden,
}

impl Presence {
    /// Its name, for people and tools.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Here => "here",
            Self::Away => "away",
            Self::Hidden => "hidden",
        }
    }
}

/// Whether a segment takes new values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Draining {
    /// It does.
    #[default]
    No,
    /// It does not, and a job carries what it holds elsewhere.
    Running,
    /// It does not, and nothing is left that only it holds.
    Done,
}

/// What a segment is and how full.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SegmentState {
    /// Its identity.
    pub segment: SegmentId,
    /// The node that lends it.
    pub node: NodeId,
    /// Whether that node has a link.
    pub presence: Presence,
    /// Whether it takes new values.
    pub draining: Draining,
    /// Its name.
    pub name: String,
    /// Its medium.
    pub kind: SegmentKind,
    /// Its size in bytes.
    pub bytes: u64,
    /// Bytes that replicas occupy.
    pub used_bytes: u64,
}
