//! A pool of several processes: one master, and nodes that lend memory and SSDs to it.
//!
//! [`MasterServer`] has the master's host and no memory. [`NodeServer`] has the store of one node whose master is
//! elsewhere. Between them is one link, which the node opens: orders go down and reports come up, numbered, so that a
//! link that breaks loses and repeats none of them. Clients have links to the master alone, and reach the memory of nodes
//! by transfers, under capabilities that the master makes with the keys that nodes hand to it.

mod at_once;
mod bring;
mod checks;
mod copies;
mod journal;
mod leave;
mod master;
mod members;
mod node;
mod operated;
mod requests;
mod uplink;

pub(crate) use journal::COMMIT;
pub(crate) use leave::LEAVING;
pub(crate) use master::STEWARD;
pub(crate) use operated::ANSWER;
pub(crate) use uplink::HAPPENED;

pub use journal::JournalError;
pub use master::{MasterOptions, MasterServer};
pub use node::{FileMemory, NodeError, NodeOptions, NodeServer};
pub use operated::{NodeStats, NodesStats, PoolMaster, PoolStats};

use slackwater_wire::{NodeId, SegmentId};

use crate::store::Identity;

/// The numbers of a node's segments follow from its own, so that a node can speak for no segment of another.
fn identity(node: NodeId) -> Identity {
    Identity {
        node,
        memory: SegmentId(node.0 << 1),
        disk: SegmentId(node.0 << 1 | 1),
    }
}

/// The node whose segment has this number.
fn owner_of(segment: SegmentId) -> NodeId {
    NodeId(segment.0 >> 1)
}
