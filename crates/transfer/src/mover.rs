//! The contract of everything that carries bytes.

use std::fmt;
use std::sync::Arc;

use crate::batch::{BatchId, Part};
use crate::cause::Cause;
use crate::job::{Buffers, Job, Remote};
use crate::memory::Location;
use crate::region::{Region, RegisterError};
use crate::segment::Segment;
use slackwater_wire::data::Op;

/// Carries requests to the peers that it reaches.
///
/// What every mover keeps, whatever carries the bytes:
/// 1. A part is completed when every byte is where it belongs: for a write, when the *destination* has applied it.
/// 2. A part is ended, in whatever way, once, and only when nothing that the mover started touches the request's
///    memory any more.
/// 3. No call blocks on the network, except [`Mover::submit`] with [`WhenFull::Wait`] when a queue is full.
/// 4. Every access to a region of this process, on behalf of a peer, is under an [`Access`](crate::Access) that
///    [`Home::admit`](crate::Home::admit) gave before the first byte, and is checked once more before it is
///    acknowledged.
/// 5. Deadlines are the mover's to keep: a job past its deadline ends with [`Cause::TimedOut`](crate::Cause).
/// 6. A panic inside ends the jobs it held and nothing else; parts see to that when they are dropped.
///
/// The calls are those of one-sided fabrics: registration gives a key, requests are slices under a key, completions come
/// through the parts, a fence orders, and invalidation comes before reuse.
pub trait Mover: Send + Sync + fmt::Debug {
    /// Its name, in metrics and messages.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn abilities(&self) -> Abilities;

    /// Whether it has a way to `segment`, as far as it knows without asking anybody.
    fn reaches(&self, segment: &Segment) -> bool;

    /// A region of this process is there. Called for memory that [`Abilities::takes`] allows, and again after an
    /// invalidation. The key, if there is one, is what peers must name besides their capability.
    ///
    /// # Errors
    /// The mover cannot reach this memory.
    fn register(&self, region: &Arc<Region>) -> Result<Option<RegionKey>, RegisterError> {
        let _ = region;
        Ok(None)
    }

    /// The region is closing: its key is void when this returns, and accesses to it are let go of as soon as may be.
    /// The caller waits for the last of them itself.
    fn invalidate(&self, region: &Arc<Region>);

    /// Takes jobs to `segment`, in order. What it cannot carry it gives back, unbegun, for another mover.
    #[must_use = "jobs that are given back are another mover's"]
    fn submit(&self, segment: &Arc<Segment>, submission: Submission) -> Vec<Job>;

    /// Carries one request while the caller waits, on the caller's own thread, where that is faster than a batch; gives
    /// it back, to be submitted as a batch of one, where it is not. When it returns, nothing touches the request's
    /// memory any more.
    fn carry_now(&self, segment: &Arc<Segment>, single: SingleRequest) -> Carried {
        let _ = segment;
        Carried::Back(single)
    }

    /// Nobody waits for this batch any more: its parts end soon, without its peer's help if need be.
    fn cancel(&self, batch: BatchId);

    /// Completes `part` when all jobs submitted to `segment` before are over and what they wrote can be seen there.
    fn fence(&self, segment: &Arc<Segment>, part: Part);

    /// Delivers a notice to the peer, once.
    fn notify(&self, segment: &Arc<Segment>, notice: Notice, part: Part);

    /// Completes `part` when the peer answers.
    fn probe(&self, segment: &Arc<Segment>, deadline: slackwater_base::Instant, part: Part);

    /// What it did with this peer.
    fn stats(&self, segment: &Segment) -> PeerStats;

    /// What it counts, by name: totals since it began, and levels now.
    fn metrics(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Ends everything; parts that are left end with [`Cause::Closed`](crate::Cause::Closed). Afterwards no callback
    /// comes any more.
    fn close(&self);
}

/// What a mover can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// The peer's CPU has no part in a transfer.
    pub one_sided: bool,
    /// It reaches memory of CUDA devices.
    pub cuda: bool,
    /// It reaches memory of the software device.
    pub software: bool,
}

impl Abilities {
    /// Host memory alone.
    pub const HOST: Abilities = Abilities {
        one_sided: false,
        cuda: false,
        software: false,
    };

    /// Whether it reaches memory there.
    #[must_use]
    pub const fn takes(self, location: Location) -> bool {
        match location {
            Location::Host | Location::Cpu(_) => true,
            Location::Cuda(_) => self.cuda,
            Location::Software(_) => self.software,
        }
    }
}

/// What the registration of a region gave, where a fabric has such a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionKey(pub u64);

/// One request whose caller waits for it.
#[derive(Debug)]
pub struct SingleRequest {
    /// What to do.
    pub op: Op,
    /// Local memory.
    pub buffers: Buffers,
    /// Memory of the peer.
    pub remote: Remote,
    /// After this the caller waits no more.
    pub deadline: slackwater_base::Instant,
}

/// What became of a request whose caller waits.
#[derive(Debug)]
pub enum Carried {
    /// It is over.
    Done(Result<(), Cause>),
    /// It is not begun.
    Back(SingleRequest),
}

/// Jobs that go together.
#[derive(Debug)]
pub struct Submission {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// What to do when the queue is full.
    pub when_full: WhenFull,
}

/// What a submitter does about a full queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenFull {
    /// Waits, at most until the jobs' deadlines.
    #[default]
    Wait,
    /// Has the jobs ended with [`Cause::Full`](crate::Cause::Full).
    Refuse,
}

/// A message that follows a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What it is about.
    pub name: String,
    /// What it says.
    pub bytes: Vec<u8>,
}

/// What a mover did with one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerStats {
    /// Requests completed.
    pub completed: u64,
    /// Requests that ended otherwise.
    pub failed: u64,
    /// Bytes read from the peer.
    pub bytes_read: u64,
    /// Bytes written to the peer.
    pub bytes_written: u64,
    /// Requests begun and not over.
    pub active: u64,
    /// Requests in line.
    pub pending: u64,
    /// Tries after a broken connection.
    pub retries: u64,
}
