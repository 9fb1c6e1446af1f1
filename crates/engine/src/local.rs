//! The mover inside one process: a copy by the calling thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use slackwater_data_plane::seal::holder_of;
use slackwater_data_plane::{Cause, Deadline, Notice};
use slackwater_wait::now;
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Op, Segment};
use slackwater_zmtp::PublicKey;

use crate::batch::{BatchId, Part};
use crate::home::Home;
use crate::job::Job;
use crate::mover::{Abilities, Mover, PeerStats, Submission};
use crate::region::{Access, Revocation};

/// Copies between regions of one process, on the threads that submit.
#[derive(Debug)]
pub struct Local {
    incarnation: Incarnation,
    /// Whose capabilities it uses.
    holder: Incarnation,
    stats: Mutex<BTreeMap<Incarnation, PeerStats>>,
}

impl Local {
    /// The mover of this home.
    #[must_use]
    pub fn new(home: &Home) -> Self {
        Self::of(home, home.incarnation())
    }

    /// The mover of this home, whose engine has a key: it uses what is granted to the holder of that, as its other movers do.
    #[must_use]
    pub fn with_key(home: &Home, key: &PublicKey) -> Self {
        Self::of(home, holder_of(key))
    }

    fn of(home: &Home, holder: Incarnation) -> Self {
        Self {
            incarnation: home.incarnation(),
            holder,
            stats: Mutex::default(),
        }
    }

    fn carry(&self, peer: &Home, job: &Job) -> Result<(), Cause> {
        if job.part.is_cancelled() {
            return Err(Cause::Cancelled);
        }
        if now() >= job.deadline {
            return Err(Cause::TimedOut(Deadline::Total));
        }
        let range = (job.remote.offset, job.buffers.bytes());
        let access = peer
            .admit(&job.remote.capability, job.op.right(), range, self.holder)
            .map_err(Cause::Refused)?;
        job.part.started();
        copy(job, &access);
        // A copy during which the region closed does not count. It did no harm: the closing waits for the access.
        match access.is_live() {
            true => Ok(()),
            false => Err(Cause::Refused(slackwater_wire::data::Refusal::Generation)),
        }
    }

    fn count(&self, peer: Incarnation, change: impl FnOnce(&mut PeerStats)) {
        change(
            self.stats
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(peer)
                .or_default(),
        );
    }
}

fn copy(job: &Job, access: &Access) {
    let mut theirs = access.start();
    for span in job.buffers.spans() {
        let (into, from) = match job.op {
            Op::Read => (span.start(), theirs),
            Op::Write => (theirs, span.start()),
        };
        // SAFETY: the span is held by its job and the range by its access, which is as long as all spans together; both
        // are host memory, as this mover takes no other. They may overlap, so this is not `copy_nonoverlapping` unless
        // they are found apart.
        unsafe {
            match into.addr().abs_diff(from.addr()) >= span.bytes() {
                true => slackwater_pool::copy::copy(into, from, span.bytes()),
                false => std::ptr::copy(from, into, span.bytes()),
            }
        }
        theirs = theirs.wrapping_add(span.bytes());
    }
}

impl Mover for Local {
    fn name(&self) -> &'static str {
        "local"
    }

    fn abilities(&self) -> Abilities {
        Abilities::HOST
    }

    fn reaches(&self, segment: &Segment) -> bool {
        Home::in_process(segment.incarnation).is_some()
    }

    fn invalidate(&self, _revoked: &Revocation) {}

    fn submit(&self, segment: &Arc<Segment>, submission: Submission) -> Vec<Job> {
        let Some(peer) = Home::in_process(segment.incarnation) else {
            return submission.jobs;
        };
        let mut given_back = Vec::new();
        for job in submission.jobs {
            let region = peer
                .regions()
                .by_index(job.remote.capability.claims().region);
            if !job.buffers.are_host()
                || region.is_some_and(|region| !region.memory().location().is_host())
            {
                given_back.push(job);
                continue;
            }
            let (outcome, bytes) = (self.carry(&peer, &job), job.buffers.bytes());
            self.count(segment.incarnation, |stats| match (&outcome, job.op) {
                (Err(_), _) => stats.failed += 1,
                (Ok(()), Op::Read) => {
                    (stats.completed, stats.bytes_read) =
                        (stats.completed + 1, stats.bytes_read + bytes)
                }
                (Ok(()), Op::Write) => {
                    (stats.completed, stats.bytes_written) =
                        (stats.completed + 1, stats.bytes_written + bytes);
                }
            });
            let Job { buffers, part, .. } = job;
            // Release local memory before the end is reported.
            drop(buffers);
            match outcome {
                Ok(()) => part.complete(bytes),
                Err(cause) => part.fail(cause),
            }
        }
        given_back
    }

    fn cancel(&self, _batch: BatchId) {}

    fn fence(&self, _segment: &Arc<Segment>, part: Part) {
        part.complete(0);
    }

    fn notify(&self, segment: &Arc<Segment>, notice: Notice, part: Part) {
        match Home::in_process(segment.incarnation) {
            Some(peer) if peer.deliver(self.incarnation, notice) => part.complete(0),
            Some(_) => part.fail(Cause::Refused(slackwater_wire::data::Refusal::Limit)),
            None => part.fail(Cause::Unreachable(format!(
                "{} has left this process",
                segment.name
            ))),
        }
    }

    fn probe(&self, segment: &Arc<Segment>, _deadline: slackwater_base::Instant, part: Part) {
        match Home::in_process(segment.incarnation) {
            Some(_) => part.complete(0),
            None => part.fail(Cause::Unreachable(format!(
                "{} has left this process",
                segment.name
            ))),
        }
    }

    fn stats(&self, segment: &Segment) -> PeerStats {
        let stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.get(&segment.incarnation).copied().unwrap_or_default()
    }

    fn close(&self) {}
}
