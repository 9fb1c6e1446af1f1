//! The contract of movers, which carry bytes between processes.

use std::fmt;
use std::sync::Arc;

use slackwater_base::{Checksum, Location};
use slackwater_data_plane::{Cause, Notice};
use slackwater_wire::data::{Op, Segment};

use crate::batch::{BatchId, Part};
use crate::job::{Buffers, Job, Priority, RegionKey, Remote};
use crate::region::{Region, RegisterError, Revocation};

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

    /// Whether it can reach `segment`, as far as it knows without asking a peer.
    fn reaches(&self, segment: &Segment) -> bool;

    /// Registers a region of this process. Called for memory that [`Abilities::takes`] allows, and again after an
    /// invalidation. The key, if there is one, is what peers must name besides their capability.
    ///
    /// # Errors
    /// The mover cannot reach this memory.
    fn register(&self, region: &Arc<Region>) -> Result<Option<RegionKey>, RegisterError> {
        let _ = region;
        Ok(None)
    }

    /// A region is closing, or an extent of it was fenced. The key of a closing region is invalid when this returns, and
    /// the accesses that the revocation covers are released as soon as possible: somebody waits for the last of them.
    fn invalidate(&self, revoked: &Revocation);

    /// Carries jobs to `segment`, in order. Returns those that it cannot carry, not started, for another mover.
    #[must_use = "jobs that are given back are another mover's"]
    fn submit(&self, segment: &Arc<Segment>, submission: Submission) -> Vec<Job>;

    /// Carries one request while the caller waits, on the caller's own thread, where that is faster than a batch;
    /// otherwise returns it, to be submitted as a batch of one. When this returns, nothing touches the request's memory
    /// any more.
    fn carry_now(&self, segment: &Arc<Segment>, single: SingleRequest) -> Carried {
        let _ = segment;
        Carried::Back(single)
    }

    /// The batch was cancelled: its parts end soon, if need be without an answer of the peer.
    fn cancel(&self, batch: BatchId);

    /// Completes `part` when all jobs submitted to `segment` before have ended and what they wrote can be seen there.
    fn fence(&self, segment: &Arc<Segment>, part: Part);

    /// Delivers a notice to the peer, once.
    fn notify(&self, segment: &Arc<Segment>, notice: Notice, part: Part);

    /// Completes `part` when the peer answers.
    fn probe(&self, segment: &Arc<Segment>, deadline: slackwater_base::Instant, part: Part);

    /// Its counters for this peer.
    fn stats(&self, segment: &Segment) -> PeerStats;

    /// Its counters by name: totals since it was started, and present levels.
    fn metrics(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Closes the mover; parts that are left end with [`Cause::Closed`](crate::Cause::Closed). Afterwards no callback
    /// comes any more.
    fn close(&self);
}

/// What a mover can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// The peer's CPU has no part in a transfer.
    pub one_sided: bool,
    /// It reaches what a stage brings in and out: memory of devices, and files.
    pub devices: bool,
}

impl Abilities {
    /// Host memory alone.
    pub const HOST: Abilities = Abilities {
        one_sided: false,
        devices: false,
    };

    /// Whether it reaches memory there.
    #[must_use]
    pub const fn takes(self, location: Location) -> bool {
        location.is_host() || self.devices
    }
}

/// One request whose caller waits for it.
#[derive(Debug)]
pub struct SingleRequest {
    /// Read or write.
    pub op: Op,
    /// Local memory.
    pub buffers: Buffers,
    /// Memory of the peer.
    pub remote: Remote,
    /// The caller stops waiting after this.
    pub deadline: slackwater_base::Instant,
    /// The caller wants the checksum of its bytes, which a mover that touches them itself takes in passing.
    pub checksum: bool,
    /// The calling thread may wait for the peer. Otherwise it carries what needs no answer of anybody.
    pub may_wait: bool,
}

impl SingleRequest {
    /// The same request as one of a batch, to be carried by another thread.
    #[must_use]
    pub(crate) fn into_job(self, part: Part) -> Job {
        Job {
            op: self.op,
            buffers: self.buffers,
            remote: self.remote,
            deadline: self.deadline,
            priority: Priority::Normal,
            part,
        }
    }
}

/// The result of carrying a request whose caller waits.
#[derive(Debug)]
pub enum Carried {
    /// It has ended; with the checksum of what was moved, if it was wanted and the mover took it.
    Done(Result<Option<Checksum>, Cause>),
    /// It was not started.
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

/// What a submitter does when the queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenFull {
    /// Waits, at most until the jobs' deadlines.
    #[default]
    Wait,
    /// The jobs end with [`Cause::Full`](crate::Cause::Full).
    Refuse,
    /// The jobs are queued all the same: the submitter bounds them by other means, and must not wait.
    Exceed,
}

/// The counters of a mover for one peer.
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
    /// Requests started and not ended.
    pub active: u64,
    /// Requests queued.
    pub pending: u64,
    /// Tries after a broken connection.
    pub retries: u64,
}

impl PeerStats {
    /// Those of two peers together.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self {
            completed: self.completed + other.completed,
            failed: self.failed + other.failed,
            bytes_read: self.bytes_read + other.bytes_read,
            bytes_written: self.bytes_written + other.bytes_written,
            active: self.active + other.active,
            pending: self.pending + other.pending,
            retries: self.retries + other.retries,
        }
    }
}
