//! The domain's words and their bytes: ids, error codes, and the messages between client, master and node.
//!
//! These types are the vocabulary of every crate above: the master's mind takes a [`Request`] itself, so no second
//! struct copies it. Bodies travel as MessagePack with named fields; unknown fields are skipped, new ones default. Answers to
//! look-ups have a fixed layout beside that, for clients that say that they read it.
#![forbid(unsafe_code)]

mod attach;
pub mod body;
pub mod data;
mod described;
mod error;
mod id;
mod job;
mod key;
mod key_list;
pub mod kv_events;
mod marks;
mod metrics;
mod name;
mod numbered;
mod order;
mod permissions;
mod pool;
mod replicas;
mod reply;
mod request;
mod trace;

pub use attach::{
    AnnounceFirst, Attached, BytesCopied, CheckWritten, CopyBytes, KnownNode, MemoryAccess,
    NodeHello, NodeLeave, NodeLeft, NodeLife, NodeStanding, NodeWelcome, ObjectName, Orders,
    Reports, Secret, StageRecord, Written, WrittenChecked,
};
pub use described::{Described, DescribedReplica};
pub use error::{Class, ErrorCode};
pub use id::{
    ClientId, Epoch, GuardId, Incarnation, JobId, NodeId, OperationId, SegmentId, TicketId, Version,
};
pub use job::{CopyTask, JobSpec, JobState, JobStatus, JobWork, TooManyPlaces};
pub use key::{Key, KeyError, Tenant, TenantError};
pub use key_list::KeyList;
pub use marks::Marks;
pub use metrics::MetricsFormat;
pub use name::{NodeName, NodeNameError};
pub use numbered::{Numbered, NumberedReceiver, NumberedSender, OutOfStep};
pub use order::{
    ChainPlace, DiskEntry, DiskState, OffloadTask, Order, PromoteTask, PromotionFailure, Published,
    Report, ReportedEntry, TaskFailure,
};
pub use permissions::{NodePermission, Permissions, TenantPermission};
pub use pool::{
    Answered, Asked, ExtentUse, Hello, ReadRecord, RecordStaged, Release, StagedRecord, Welcome,
};
pub use replicas::Replicas;
pub use reply::{
    Description, Draining, ExtentRef, Listed, Lookup, Object, Presence, PutStarted, QuotaState,
    ReplicaAt, ReplicaState, Reply, SegmentState,
};
pub use request::{
    Chain, Durability, Exists, Expectation, Get, GetEnd, Hold, List, Mount, Pin, PutConfig,
    PutDone, PutEnd, PutEntry, PutMode, PutStart, ReadCall, Reads, Remove, RemoveAll,
    RemoveMatching, ReplicaClear, Request, SegmentKind, Watermarks,
};
pub use trace::{SpanId, TraceContext, TraceId, Traceparent, TraceparentError};

/// The checksum as a plain number on the wire: its crate knows no serialisation.
pub(crate) mod checksum_serde {
    use serde::{Deserialize, Deserializer, Serializer};
    use slackwater_base::Checksum;

    pub(crate) fn serialize<S: Serializer>(
        checksum: &Checksum,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(checksum.0)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Checksum, D::Error> {
        u64::deserialize(deserializer).map(Checksum)
    }
}

/// Limits on what a message may carry, checked before anything is allocated for it.
pub mod limits {
    /// Longest key, in bytes.
    pub const KEY_BYTES_MAX: usize = 1024;
    /// Longest tenant name, in bytes.
    pub const TENANT_BYTES_MAX: usize = 128;
    /// Most keys in one request, and most items in one report.
    pub const BATCH_KEYS_MAX: usize = 4096;
    /// Longest request as bytes: so many keys of the greatest length fit.
    pub const REQUEST_BYTES_MAX: usize = 8 << 20;
    /// Longest message as bytes that is about one object, or none.
    pub const SMALL_BYTES_MAX: usize = 16 << 10;
    /// Longest reply, order or report as bytes.
    pub const BODY_BYTES_MAX: usize = 128 << 20;
}
