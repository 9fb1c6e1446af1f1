//! Several requests on memory that is not registered, whose caller waits for all of them.

use std::sync::Arc;
use std::time::Duration;

use slackwater_base::{Checksum, Instant};
use slackwater_data_plane::Cause;
use slackwater_wait::{Waiting, now};
use slackwater_wire::data::{Op, Segment};

use super::{BATCHES, Engine, by_peer};
use crate::batch::Batch;
use crate::job::Buffers;
use crate::mover::{Carried, SingleRequest, WhenFull};
use crate::request::Target;

/// A request that goes with others: its place among them, its peer, and what it is.
type Joint = (usize, Arc<Segment>, SingleRequest);

/// Is given the batch of requests that go over a wire, which another thread may cancel, and what waits for its end.
pub type Watch<'a> = &'a dyn Fn(&Batch, &mut dyn FnMut());

impl Engine {
    /// Reads into memory that need not be registered, from several places at once, while the caller waits, for each as long as
    /// it says: an outcome each, with the checksum of what was read.
    pub fn read_all(
        &self,
        reads: &mut [(Target, &mut [u8], Duration)],
    ) -> Vec<Result<Checksum, Cause>> {
        if let [(target, into, timeout)] = reads {
            return vec![self.read_checked(target, into, *timeout)];
        }
        let requests = reads.iter_mut().map(|(target, into, timeout)| {
            // SAFETY: the slices are borrowed alone until this returns, and `together` returns only when nothing touches
            // them.
            let buffers = unsafe { Buffers::borrowed(into.as_mut_ptr(), into.len()) };
            (*target, buffers, *timeout)
        });
        let outcomes = self.together(Op::Read, requests.collect(), None);
        summed_of(outcomes, reads.iter().map(|(_, into, _)| &**into))
    }

    /// [`Engine::read_all`] that another thread may end: after [`Batch::cancel`] the wait is short, and what had not come
    /// fails.
    pub fn read_all_watched(
        &self,
        reads: &mut [(Target, &mut [u8], Duration)],
        watch: Watch<'_>,
    ) -> Vec<Result<Checksum, Cause>> {
        let requests = reads.iter_mut().map(|(target, into, timeout)| {
            // SAFETY: as in `read_all`.
            let buffers = unsafe { Buffers::borrowed(into.as_mut_ptr(), into.len()) };
            (*target, buffers, *timeout)
        });
        let outcomes = self.together(Op::Read, requests.collect(), Some(watch));
        summed_of(outcomes, reads.iter().map(|(_, into, _)| &**into))
    }

    /// Writes from memory that need not be registered, to several places at once, while the caller waits: an outcome
    /// each, with the checksum of what was written.
    pub fn write_all(
        &self,
        writes: &[(Target, &[u8])],
        timeout: Duration,
    ) -> Vec<Result<Checksum, Cause>> {
        if let [(target, from)] = writes {
            return vec![self.write_checked(target, from, timeout)];
        }
        let requests = writes.iter().map(|(target, from)| {
            // SAFETY: a write only reads from its buffers; the slices are borrowed until this returns, and `together`
            // returns only when nothing touches them.
            let buffers = unsafe { Buffers::borrowed(from.as_ptr().cast_mut(), from.len()) };
            (*target, buffers, timeout)
        });
        let outcomes = self.together(Op::Write, requests.collect(), None);
        summed_of(outcomes, writes.iter().map(|(_, from)| *from))
    }

    /// [`Engine::write_all`] that another thread may end, as [`Engine::read_all_watched`].
    pub fn write_all_watched(
        &self,
        writes: &[(Target, &[u8])],
        timeout: Duration,
        watch: Watch<'_>,
    ) -> Vec<Result<Checksum, Cause>> {
        let requests = writes.iter().map(|(target, from)| {
            // SAFETY: as in `write_all`.
            let buffers = unsafe { Buffers::borrowed(from.as_ptr().cast_mut(), from.len()) };
            (*target, buffers, timeout)
        });
        let outcomes = self.together(Op::Write, requests.collect(), Some(watch));
        summed_of(outcomes, writes.iter().map(|(_, from)| *from))
    }

    fn together(
        &self,
        op: Op,
        requests: Vec<(Target, Buffers, Duration)>,
        watch: Option<Watch<'_>>,
    ) -> Vec<Result<Option<Checksum>, Cause>> {
        let begun = now();
        let mut outcomes = Vec::with_capacity(requests.len());
        let mut joint: Vec<Joint> = Vec::new();
        // Over a wire too this thread is the fastest for a lone request, and no other thread could end it then.
        let is_lone = requests.len() == 1 && watch.is_none();
        for (index, (target, buffers, timeout)) in requests.into_iter().enumerate() {
            outcomes.push(Ok(None));
            if buffers.bytes() == 0 {
                continue;
            }
            let (mover, segment) = match self.0.first_mover(target.peer) {
                Ok(found) => found,
                Err(cause) => {
                    outcomes[index] = Err(cause);
                    continue;
                }
            };
            let single = SingleRequest {
                op,
                buffers,
                remote: target.remote(),
                deadline: begun + timeout,
                checksum: true,
                // Several ask for all that they need at once.
                may_wait: is_lone,
            };
            // Where this thread copies by itself, the requests take their turns; over a wire they go together.
            let carried = match is_lone || mover.abilities().one_sided {
                true => mover.carry_now(&segment, single),
                false => Carried::Back(single),
            };
            match carried {
                Carried::Done(outcome) => outcomes[index] = outcome,
                Carried::Back(single) => joint.push((index, segment, single)),
            }
        }
        self.join(begun, joint, watch, &mut outcomes);
        outcomes
    }

    fn join(
        &self,
        begun: Instant,
        joint: Vec<Joint>,
        watch: Option<Watch<'_>>,
        outcomes: &mut [Result<Option<Checksum>, Cause>],
    ) {
        let Some(last) = joint.iter().map(|(.., single)| single.deadline).max() else {
            return;
        };
        let (batch, parts) = self.new_batch(joint.len(), None);
        let mut places = Vec::new();
        let jobs = joint.into_iter().zip(parts).map(|(joint, part)| {
            let (index, segment, single) = joint;
            places.push(index);
            (segment, single.into_job(part))
        });
        for (segment, jobs) in by_peer(jobs) {
            self.0.dispatch(&segment, jobs, WhenFull::Wait);
        }
        // The memory is the caller's: all requests have ended when this returns, whatever their outcomes.
        let end = End(&batch, last + last.since(begun));
        if let Some(watch) = watch {
            watch(&batch, &mut || end.wait());
        }
        drop(end);
        for (position, index) in places.into_iter().enumerate() {
            outcomes[index] = match batch.outcome(position) {
                Some(outcome) => outcome.cause.map_or(Ok(None), Err),
                None => Err(Cause::Dropped),
            };
        }
    }
}

/// The end of a batch, which has come when this is dropped, whatever its watcher does.
struct End<'a>(&'a Batch, Instant);

impl End<'_> {
    fn wait(&self) {
        let _ = self.0.wait(&Waiting::at(&BATCHES).until(self.1));
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.wait();
    }
}

/// The checksums of what was moved: of what a mover has not summed in passing, now.
fn summed_of<'a>(
    outcomes: Vec<Result<Option<Checksum>, Cause>>,
    moved: impl Iterator<Item = &'a [u8]>,
) -> Vec<Result<Checksum, Cause>> {
    let summed = outcomes.into_iter().zip(moved).map(|(outcome, bytes)| {
        let taken = outcome?;
        Ok(taken.unwrap_or_else(|| slackwater_pool::copy::checksum(bytes)))
    });
    summed.collect()
}
