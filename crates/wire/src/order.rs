use serde::{Deserialize, Serialize};
use slackwater_base::Checksum;

use crate::{
    ClientId, Durability, Expectation, ExtentRef, Key, NodeId, Pin, SegmentId, Tenant, TicketId,
    Version, checksum_serde,
};

/// An order of the master to a node. Orders are pushed down the open link the moment they are decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// Write these memory replicas to the SSD log. Each source stays pinned until its report.
    Offload(Vec<OffloadTask>),
    /// Bring these objects from the SSD log into memory, in this order: hottest first.
    Promote(Vec<PromoteTask>),
    /// A promotion may write its bytes to this extent.
    Staged {
        /// The promotion.
        ticket: TicketId,
        /// Where its bytes go.
        extent: ExtentRef,
    },
    /// A promotion has ended for the master: forget it, and report nothing more about it.
    Cancel {
        /// The promotion.
        ticket: TicketId,
    },
    /// Forget these records for good; report when a crash can no longer bring them back.
    Drop(Vec<DiskEntry>),
    /// These extents are dead: refuse every access under their generation, and report once none can still arrive.
    Fence(Vec<ExtentRef>),
    /// These extents hold objects: announce them to a later master, until they are fenced.
    Published(Vec<Published>),
}

/// An extent of memory and the object in it: what a node knows, so that a later master learns it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// Where the bytes are.
    pub extent: ExtentRef,
    /// The object and version.
    pub entry: DiskEntry,
    /// Length of the value in bytes.
    pub bytes: u64,
    /// The checksum of the value.
    #[serde(with = "checksum_serde")]
    pub checksum: Checksum,
    /// The client that put it.
    pub writer: ClientId,
    /// Whether it may be evicted; the time is what is left of it.
    pub pin: Pin,
    /// What its writer was promised.
    pub durability: Durability,
    /// Its group.
    pub group: Option<u64>,
    /// Its place in its chain.
    pub chain: ChainPlace,
}

/// The place of a block in its chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainPlace {
    /// The hash of the block before it.
    pub parent: Option<u64>,
    /// Its position, in blocks from the root.
    pub position: u32,
    /// The hint of the request that wrote it.
    pub hint: Option<u32>,
    /// What that request expected of the chain.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::request::known_expectation"
    )]
    pub expect: Option<Expectation>,
    /// Tokens that that request generated.
    pub output_tokens: Option<u32>,
}

/// One record of an SSD log, named by what it holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DiskEntry {
    /// The tenant of the object.
    pub tenant: Tenant,
    /// Its key.
    pub key: Key,
    /// The version of the put that wrote it.
    pub version: Version,
}

/// One object to be written to the SSD log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OffloadTask {
    /// Names the task in its report.
    pub ticket: TicketId,
    /// The object and version to be written.
    pub entry: DiskEntry,
    /// Its length in bytes.
    pub bytes: u64,
    /// The checksum of its bytes.
    #[serde(with = "checksum_serde")]
    pub checksum: Checksum,
    /// Where its bytes are now.
    pub source: ExtentRef,
    /// Whether somebody was promised that the record is durable when its end is reported. Otherwise the end is reported
    /// as soon as the record can be read, and a crash shortly after may lose it.
    pub promised: bool,
}

/// One object to be brought into memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromoteTask {
    /// Names the task in its reports.
    pub ticket: TicketId,
    /// The object and version to be read.
    pub entry: DiskEntry,
    /// Its length in bytes, as admitted.
    pub bytes: u64,
    /// The checksum that its bytes must have.
    #[serde(with = "checksum_serde")]
    pub checksum: Checksum,
}

/// A report of a node to the master.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// Offloads that came to an end. A success is durable.
    #[serde(deserialize_with = "crate::body::list")]
    Offloaded(Vec<(TicketId, Result<(), TaskFailure>)>),
    /// A promotion is about to read: it needs an extent of this length.
    Stage {
        /// The promotion.
        ticket: TicketId,
        /// Its length in bytes, which must be the admitted one.
        bytes: u64,
    },
    /// The bytes of a promotion are in its extent, verified.
    Promoted {
        /// The promotion.
        ticket: TicketId,
        /// The extent that was filled: exactly the staged one.
        extent: ExtentRef,
    },
    /// A promotion failed.
    PromotionFailed {
        /// The promotion.
        ticket: TicketId,
        /// The step that failed.
        failure: PromotionFailure,
    },
    /// Records that no crash can bring back any more.
    #[serde(deserialize_with = "crate::body::list")]
    Dropped(Vec<DiskEntry>),
    /// Records that turned out unreadable or wrong and are dropped.
    #[serde(deserialize_with = "crate::body::list")]
    Lost(Vec<DiskEntry>),
    /// No access under these dead generations can arrive any more.
    #[serde(deserialize_with = "crate::body::list")]
    Fenced(Vec<ExtentRef>),
    /// These extents are dead and will not be announced, though accesses to them have not ended.
    #[serde(deserialize_with = "crate::body::list")]
    Retired(Vec<ExtentRef>),
    /// What a segment of memory holds, in the order of its addresses: the node's part of rebuilding the catalog.
    Holds {
        /// The segment.
        segment: SegmentId,
        /// Some of its extents.
        #[serde(deserialize_with = "crate::body::list")]
        entries: Vec<Published>,
        /// These were asked for, and are said before their turn: see [`AnnounceFirst`](crate::AnnounceFirst). They are said
        /// again in their turn.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ahead: bool,
    },
    /// Whether the SSD log takes records; sent when that changes.
    Disk(DiskState),
    /// What the SSD log holds: the node's part of rebuilding the catalog.
    Announce {
        /// The segment that represents the log.
        segment: SegmentId,
        /// Some of its records.
        #[serde(deserialize_with = "crate::body::list")]
        entries: Vec<ReportedEntry>,
    },
    /// Everything that a segment holds has been announced.
    Announced {
        /// The segment.
        segment: SegmentId,
        /// The newest version that a log remembers, of records that are gone too: puts must be newer.
        highest: Version,
    },
    /// Living records of a file that the SSD log is about to empty. Those that are not dropped now are written again.
    #[serde(deserialize_with = "crate::body::list")]
    Emptying(Vec<DiskEntry>),
}

/// One record that a node announces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportedEntry {
    /// The object and version in the record.
    pub entry: DiskEntry,
    /// Its length in bytes.
    pub bytes: u64,
    /// The checksum of its bytes.
    #[serde(with = "checksum_serde")]
    pub checksum: Checksum,
}

/// Whether an SSD log takes records, and how full it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskState {
    /// The owner.
    pub node: NodeId,
    /// Whether it takes new records.
    pub accepting: bool,
    /// Whether it takes none because its device answers writes with errors; owners of earlier builds do not say.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failing: bool,
    /// Bytes of records it can hold, their headers included.
    pub capacity: u64,
    /// Bytes of records, padding included, that the owner needs freed before it can take more, beyond what watermarks free
    /// anyway.
    pub pressure: u64,
}

/// Why an offload failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TaskFailure {
    /// The log has no room, or the disk is full.
    NoRoom,
    /// The value is longer than the log's files take, however empty it is.
    TooLarge,
    /// A write of the record failed, and the device may hold it or not: only a drop makes sure.
    Device,
    /// The device answers writes with errors. Nothing of the record was written: it may be offered again.
    Failing,
    /// The source is not what the task says.
    Stale,
    /// The object was dropped meanwhile.
    Cancelled,
}

/// Why a promotion failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PromotionFailure {
    /// The task is malformed: no bytes, or another length than the record's.
    Size,
    /// The log has no such record.
    Missing,
    /// The record's bytes are not those that were put: it is dropped.
    Corrupt,
    /// The device reported an error.
    Device,
    /// The node's queue of promotions is full.
    Busy,
    /// The staged extent is dead.
    Stale,
}
