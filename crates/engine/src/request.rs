//! What a caller asks of an engine.

use std::time::Duration;

use slackwater_data_plane::Notice;
use slackwater_wire::data::{Capability, Op};

use crate::job::{Priority, RegionKey, Remote};
use crate::mover::WhenFull;
use crate::region::RegionId;

/// An opened segment of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId {
    pub(crate) index: u32,
    /// Distinguishes it from earlier entries with the same index.
    pub(crate) serial: u32,
}

/// A range of a local region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalRange {
    /// The region.
    pub region: RegionId,
    /// First byte, from its start.
    pub offset: u64,
    /// Bytes from there.
    pub bytes: u64,
}

/// A place in a region of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The peer.
    pub peer: PeerId,
    /// First byte, from the start of the region that the capability names.
    pub offset: u64,
    /// The right to reach it.
    pub capability: Capability,
    /// The key of the region at the peer, for fabrics that need one.
    pub key: Option<RegionKey>,
}

/// One transfer: the bytes of the local ranges, in order, from or to one run of bytes at the target.
#[derive(Clone, Debug)]
pub struct Request {
    /// Read from the target, or write to it.
    pub op: Op,
    /// Local memory: scattered into by a read, gathered from by a write.
    pub local: Vec<LocalRange>,
    /// The peer's memory.
    pub target: Target,
    /// How long it may take, if less than the batch.
    pub timeout: Option<Duration>,
    /// The order among waiting requests.
    pub priority: Priority,
}

/// How to submit.
#[derive(Clone, Debug)]
pub struct Submit {
    /// How long the requests may take.
    pub timeout: Duration,
    /// What to do when a queue is full.
    pub when_full: WhenFull,
    /// A notice for a peer when all of them are complete there; the batch ends when the peer has it.
    pub notice: Option<(PeerId, Notice)>,
}

impl Target {
    /// The place as movers take it, with the trace that this thread is in.
    pub(crate) fn remote(&self) -> Remote {
        Remote {
            offset: self.offset,
            capability: self.capability,
            key: self.key,
            trace: slackwater_trace::current(),
        }
    }
}

impl Default for Submit {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            when_full: WhenFull::Wait,
            notice: None,
        }
    }
}
