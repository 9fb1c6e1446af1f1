//! What nodes and the master of a pool say to each other: what a node lends and how its memory is reached, then orders and
//! reports, numbered so that a link that breaks loses and repeats none of them (see [`crate::NumberedSender`]).

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use slackwater_base::Checksum;

use crate::data::{Capability, MacKind, Segment};
use crate::{
    DiskEntry, Epoch, ErrorCode, ExtentRef, JobState, Key, Mount, NodeId, Numbered,
    NumberedReceiver, NumberedSender, Order, Published, ReadRecord, Report, Tenant, checksum_serde,
};

/// One life of a node, or as much of it as one master has known without a break: random, and compared for equality only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeLife(pub [u64; 2]);

/// The first message of a node on a link. Answered by [`NodeWelcome`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeHello {
    /// The latest epoch that the node has seen.
    pub epoch: Epoch,
    /// Its number, which belongs to the key of its link where links have keys.
    pub node: NodeId,
    /// Its life.
    pub life: NodeLife,
    /// Whether a master has welcomed this life before: then its memory is in use, and it can only be resumed.
    pub welcomed: bool,
    /// The last order that it has taken.
    pub taken: u64,
    /// Its memory, and its SSD if it has one.
    #[serde(deserialize_with = "crate::body::list")]
    pub segments: Vec<Mount>,
    /// How its memory is reached.
    pub memory: MemoryAccess,
}

/// What a hello is, by what its master knows of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeStanding {
    /// Its node begins a life.
    New,
    /// It goes on with the life that is known: what is not taken is to be sent again on the new link. The last report that was taken.
    Resumed(u64),
    /// Nothing is known of its life.
    Unknown,
    /// Another process is that node now.
    Replaced,
}

/// What a master knows of a node that belongs to its pool.
#[derive(Debug)]
pub struct KnownNode<'a> {
    /// Its life.
    pub life: NodeLife,
    /// Whether it has a link.
    pub is_linked: bool,
    /// What it is told.
    pub orders: &'a mut NumberedSender<Order>,
    /// What it has said.
    pub reports: &'a mut NumberedReceiver,
}

impl NodeHello {
    /// What this is to a master that knows the node as `known`. A life that goes on does so on a new link.
    pub fn standing(&self, known: Option<KnownNode<'_>>) -> NodeStanding {
        match known {
            Some(known) if known.life == self.life && self.welcomed => {
                match known.orders.resume(self.taken) {
                    Ok(()) => NodeStanding::Resumed(known.reports.tell()),
                    Err(_) => NodeStanding::Unknown,
                }
            }
            Some(known) if self.welcomed && known.is_linked => NodeStanding::Replaced,
            _ if self.welcomed => NodeStanding::Unknown,
            _ => NodeStanding::New,
        }
    }
}

/// How clients reach the memory of a node, and with what the master permits it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryAccess {
    /// How to reach the node's data plane.
    pub contact: Segment,
    /// The region of its memory there.
    pub region: u32,
    /// The secret under which capabilities for the region are made.
    pub secret: Secret,
    /// The clock that capabilities expire by, in nanoseconds, when this was sent.
    pub clock_nanos: u64,
    /// The latest kind of MAC that the node verifies, by its number, and all before it: see
    /// [`MacKind`](crate::data::MacKind). Nodes of earlier releases verify the first.
    #[serde(default, skip_serializing_if = "is_first")]
    pub macs: u8,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_first(macs: &u8) -> bool {
    *macs == MacKind::default().number()
}

/// Bytes that are not shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The master's answer to [`NodeHello`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeWelcome {
    /// The epoch of the master.
    pub epoch: Epoch,
    /// Whether the node belongs to the pool now.
    pub attached: Attached,
    /// Up to which format the master reads reports, and which kinds of them: see [`encode_reports`](crate::body::encode_reports).
    /// Masters of earlier releases read the first.
    #[serde(
        default = "crate::pool::first",
        skip_serializing_if = "crate::pool::is_first"
    )]
    pub reads: u8,
}

/// How a link of a node begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attached {
    /// Its segments are mounted, and it is to announce what they hold. Orders and reports are numbered from one.
    New {
        /// Generations of extents below this one are dead, except those of what the node announces.
        floor: u64,
    },
    /// The last link goes on: nothing is lost, and nothing is announced.
    Resumed {
        /// The last report that the master has taken.
        taken: u64,
    },
    /// The master does not know this life: the node is to say hello as one that is new, and to announce what it holds.
    Unknown,
    /// It may not be a node of this pool.
    Refused(ErrorCode),
}

/// Orders of the master to a node, pushed down its link. Not answered: the node says what it has taken in its reports, at once
/// where it is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Orders {
    /// The epoch of the master.
    pub epoch: Epoch,
    /// The last report that the master has taken.
    pub taken: u64,
    /// The number of the first of the orders.
    pub first: u64,
    /// Orders in a row; none where only a number is said.
    #[serde(deserialize_with = "crate::body::list")]
    pub orders: Vec<Order>,
    /// The node is to say at once how far it came, as somebody waits for that. Nodes of earlier releases say it with their next
    /// report, within a minute.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asks: bool,
}

/// Reports of a node to the master. Not answered: the master says what it has taken in its orders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reports {
    /// The latest epoch that the node has seen.
    pub epoch: Epoch,
    /// The last order that the node has taken.
    pub taken: u64,
    /// The number of the first of the reports.
    pub first: u64,
    /// The clock that capabilities expire by, in nanoseconds, when this was sent.
    pub clock_nanos: u64,
    /// Reports in a row; none where only a number is said.
    #[serde(deserialize_with = "crate::body::list")]
    pub reports: Vec<Report>,
}

/// A tenant and a key of it.
pub type ObjectName = (Tenant, Key);

/// Has a node that is announcing what it holds say at once what it has of these keys, which somebody waits for. Not
/// answered: what it has comes with its reports, and what it has not does not come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AnnounceFirst {
    /// The epoch of the master.
    pub epoch: Epoch,
    /// The keys, with their tenants.
    #[serde(deserialize_with = "crate::body::list")]
    pub names: Vec<ObjectName>,
}

/// Asks a node to take no more writes to these extents, and whether they hold what their writer says. Answered by
/// [`WrittenChecked`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckWritten {
    /// The epoch of the master.
    pub epoch: Epoch,
    /// The extents of puts that are about to be published.
    #[serde(deserialize_with = "crate::body::list")]
    pub written: Vec<Written>,
}

/// An extent of a put that its writer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// The extent.
    pub extent: ExtentRef,
    /// Length of the value.
    pub bytes: u64,
    /// The checksum of the value, as its writer says.
    #[serde(with = "checksum_serde")]
    pub checksum: Checksum,
}

/// Whether extents hold what their writer says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WrittenChecked {
    /// The latest epoch that the node has seen.
    pub epoch: Epoch,
    /// Nothing, when all of them do.
    pub result: Result<(), ErrorCode>,
}

/// Has a node read a record of its SSD into memory that is lent to a client. Answered by
/// [`RecordStaged`](crate::RecordStaged).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageRecord {
    /// The record, and the client.
    pub record: ReadRecord,
    /// The key of the client's link, which alone may read it; none where links have no keys.
    pub holder: Option<[u8; 32]>,
    /// How long the memory is lent.
    pub lease: Duration,
}

/// Has a node bring a value of another one into an extent of its own. Answered by [`BytesCopied`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopyBytes {
    /// The epoch of the master.
    pub epoch: Epoch,
    /// How the memory of the other node is reached.
    pub contact: Segment,
    /// The right to read there.
    #[serde(with = "crate::pool::capability")]
    pub capability: Capability,
    /// First byte, from the start of the region that the capability names.
    pub offset: u64,
    /// Length of the value.
    pub bytes: u64,
    /// The checksum that its bytes must have.
    #[serde(with = "checksum_serde")]
    pub checksum: Checksum,
    /// The extent of the node that gets it, which nobody else may write.
    pub target: ExtentRef,
}

/// Whether a value was brought.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BytesCopied {
    /// The latest epoch that the node has seen.
    pub epoch: Epoch,
    /// Nothing, when it is in its extent, verified.
    pub result: Result<(), ErrorCode>,
}

/// A node is about to end: what only its memory holds is to go to others. Answered by [`NodeLeft`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeLeave {
    /// The latest epoch that the node has seen.
    pub epoch: Epoch,
    /// How long it waits.
    pub time: Duration,
}

/// A node may end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeLeft {
    /// The epoch of the master.
    pub epoch: Epoch,
    /// What went and what did not.
    pub result: Result<Box<JobState>, ErrorCode>,
}

impl Numbered for Order {
    fn items(&self) -> usize {
        match self {
            Self::Offload(tasks) => tasks.len().max(1),
            Self::Promote(tasks) => tasks.len().max(1),
            Self::Drop(entries) => entries.len().max(1),
            Self::Fence(extents) => extents.len().max(1),
            Self::Published(entries) => entries.len().max(1),
            Self::Staged { .. } | Self::Cancel { .. } => 1,
        }
    }

    fn bytes(&self) -> usize {
        let variable = match self {
            Self::Offload(tasks) => named(tasks.iter().map(|task| &task.entry)),
            Self::Promote(tasks) => named(tasks.iter().map(|task| &task.entry)),
            Self::Drop(entries) => named(entries),
            Self::Published(entries) => published(entries),
            Self::Fence(_) | Self::Staged { .. } | Self::Cancel { .. } => 0,
        };
        variable + (1 + self.items()) * ITEM_BYTES
    }
}

impl Numbered for Report {
    fn items(&self) -> usize {
        match self {
            Self::Offloaded(results) => results.len().max(1),
            Self::Dropped(entries) | Self::Lost(entries) | Self::Emptying(entries) => {
                entries.len().max(1)
            }
            Self::Fenced(extents) | Self::Retired(extents) => extents.len().max(1),
            Self::Holds { entries, .. } => entries.len().max(1),
            Self::Announce { entries, .. } => entries.len().max(1),
            Self::Stage { .. }
            | Self::Promoted { .. }
            | Self::PromotionFailed { .. }
            | Self::Disk(_)
            | Self::Announced { .. } => 1,
        }
    }

    fn bytes(&self) -> usize {
        let variable = match self {
            Self::Dropped(entries) | Self::Lost(entries) | Self::Emptying(entries) => {
                named(entries)
            }
            Self::Announce { entries, .. } => named(entries.iter().map(|it| &it.entry)),
            Self::Holds { entries, .. } => published(entries),
            Self::Offloaded(_)
            | Self::Fenced(_)
            | Self::Retired(_)
            | Self::Stage { .. }
            | Self::Promoted { .. }
            | Self::PromotionFailed { .. }
            | Self::Disk(_)
            | Self::Announced { .. } => 0,
        };
        variable + (1 + self.items()) * ITEM_BYTES
    }
}

/// Bytes of one item of an order or report beside its key and tenant, and of what is around all items: a little more than
/// the longest takes.
const ITEM_BYTES: usize = 256;

/// Bytes of keys and tenants of extents, and of what else is long in their entries.
fn published(entries: &[Published]) -> usize {
    named(entries.iter().map(|it| &it.entry)) + entries.len() * ITEM_BYTES
}

/// Bytes of keys and tenants.
fn named<'a>(entries: impl IntoIterator<Item = &'a DiskEntry>) -> usize {
    let each = entries.into_iter();
    each.map(|entry| entry.key.as_bytes().len() + entry.tenant.name().len())
        .sum()
}
