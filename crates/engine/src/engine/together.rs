//! Several requests on memory that is not registered, whose caller waits for all of them.

use std::future::poll_fn;
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

/// Who waits for requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiter {
    /// The calling thread, which nobody else ends.
    Thread,
    /// The calling thread, whose wait another may end.
    WatchedThread,
    /// A task: the thread that polls it does not wait, and copies no more than takes as little time.
    Task,
}

/// Most bytes that the thread of a task copies itself, of all requests together.
const TASK_COPY_MAX: u64 = 64 << 10;

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
        // SAFETY: the slices are borrowed alone until this returns, and `together` returns only when nothing touches them.
        let requests = unsafe { read_requests(reads) };
        let outcomes = self.together(Op::Read, requests, Waiter::Thread, |_| ());
        summed_of(outcomes, reads.iter().map(|(_, into, _)| &**into))
    }

    /// [`Engine::read_all`] that another thread may end: `watch` is given the batch of the requests that go over a wire, and what
    /// it returns is dropped at their end. After [`Batch::cancel`] the wait is short, and what had not come fails.
    pub fn read_all_watched<G>(
        &self,
        reads: &mut [(Target, &mut [u8], Duration)],
        watch: impl FnOnce(&Batch) -> G,
    ) -> Vec<Result<Checksum, Cause>> {
        // SAFETY: as in `read_all`.
        let requests = unsafe { read_requests(reads) };
        let outcomes = self.together(Op::Read, requests, Waiter::WatchedThread, watch);
        summed_of(outcomes, reads.iter().map(|(_, into, _)| &**into))
    }

    /// [`Engine::read_all_watched`] for a task. To drop it before its end ends the requests, and waits for that.
    ///
    /// # Safety
    /// It writes to the slices from its first poll until it has ended or is dropped: if it is leaked between the two, their
    /// memory must never be used again.
    pub async unsafe fn read_all_awaited<G: Send>(
        &self,
        reads: &mut [(Target, &mut [u8], Duration)],
        watch: impl FnOnce(&Batch) -> G + Send,
    ) -> Vec<Result<Checksum, Cause>> {
        // SAFETY: the slices are borrowed alone by this, which ends only when nothing touches them, or is leaked with them.
        let requests = unsafe { read_requests(reads) };
        let outcomes = self.together_awaited(Op::Read, requests, watch).await;
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
        // SAFETY: the slices are borrowed until this returns, and `together` returns only when nothing touches them.
        let requests = unsafe { write_requests(writes, timeout) };
        let outcomes = self.together(Op::Write, requests, Waiter::Thread, |_| ());
        summed_of(outcomes, writes.iter().map(|(_, from)| *from))
    }

    /// [`Engine::write_all`] that another thread may end, as [`Engine::read_all_watched`].
    pub fn write_all_watched<G>(
        &self,
        writes: &[(Target, &[u8])],
        timeout: Duration,
        watch: impl FnOnce(&Batch) -> G,
    ) -> Vec<Result<Checksum, Cause>> {
        // SAFETY: as in `write_all`.
        let requests = unsafe { write_requests(writes, timeout) };
        let outcomes = self.together(Op::Write, requests, Waiter::WatchedThread, watch);
        summed_of(outcomes, writes.iter().map(|(_, from)| *from))
    }

    /// [`Engine::write_all_watched`] for a task, as [`Engine::read_all_awaited`].
    ///
    /// # Safety
    /// It reads from the slices from its first poll until it has ended or is dropped: if it is leaked between the two, their
    /// memory must never be used again.
    pub async unsafe fn write_all_awaited<G: Send>(
        &self,
        writes: &[(Target, &[u8])],
        timeout: Duration,
        watch: impl FnOnce(&Batch) -> G + Send,
    ) -> Vec<Result<Checksum, Cause>> {
        // SAFETY: the slices are borrowed by this, which ends only when nothing touches them, or is leaked with them.
        let requests = unsafe { write_requests(writes, timeout) };
        let outcomes = self.together_awaited(Op::Write, requests, watch).await;
        summed_of(outcomes, writes.iter().map(|(_, from)| *from))
    }

    fn together<G>(
        &self,
        op: Op,
        requests: Vec<(Target, Buffers, Duration)>,
        waiter: Waiter,
        watch: impl FnOnce(&Batch) -> G,
    ) -> Vec<Result<Option<Checksum>, Cause>> {
        let begun = now();
        let (mut outcomes, joint) = self.apart(op, requests, waiter);
        let Some(last) = joint.iter().map(|(.., single)| single.deadline).max() else {
            return outcomes;
        };
        let (batch, places) = self.send(joint, WhenFull::Wait);
        // The memory is the caller's: all requests have ended when this returns, whatever their outcomes.
        let end = End(&batch, last + last.since(begun));
        let watched = watch(&batch);
        drop(end);
        drop(watched);
        gather(&batch, places, &mut outcomes);
        outcomes
    }

    async fn together_awaited<G: Send>(
        &self,
        op: Op,
        requests: Vec<(Target, Buffers, Duration)>,
        watch: impl FnOnce(&Batch) -> G + Send,
    ) -> Vec<Result<Option<Checksum>, Cause>> {
        let (mut outcomes, joint) = self.apart(op, requests, Waiter::Task);
        if joint.is_empty() {
            return outcomes;
        }
        // Who makes many tasks bounds them.
        let (batch, places) = self.send(joint, WhenFull::Exceed);
        // Where this is dropped instead, they are ended at once.
        let end = End(&batch, Instant::ZERO);
        let watched = watch(&batch);
        poll_fn(|context| batch.poll_done(context)).await;
        drop(end);
        drop(watched);
        gather(&batch, places, &mut outcomes);
        outcomes
    }

    /// Carries what this thread copies by itself. The outcomes of that, and the requests that go together instead.
    fn apart(
        &self,
        op: Op,
        requests: Vec<(Target, Buffers, Duration)>,
        waiter: Waiter,
    ) -> (Vec<Result<Option<Checksum>, Cause>>, Vec<Joint>) {
        let begun = now();
        let mut outcomes = Vec::with_capacity(requests.len());
        let mut joint: Vec<Joint> = Vec::new();
        // Over a wire too this thread is the fastest for a lone request, and no other thread could end it then.
        let is_lone = requests.len() == 1 && waiter == Waiter::Thread;
        let mut copied = 0;
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
            let copies = match waiter {
                Waiter::Thread | Waiter::WatchedThread => mover.abilities().one_sided,
                Waiter::Task => {
                    copied += buffers.bytes();
                    mover.abilities().one_sided && copied <= TASK_COPY_MAX
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
            let carried = match is_lone || copies {
                true => mover.carry_now(&segment, single),
                false => Carried::Back(single),
            };
            match carried {
                Carried::Done(outcome) => outcomes[index] = outcome,
                Carried::Back(single) => joint.push((index, segment, single)),
            }
        }
        (outcomes, joint)
    }

    /// Sends requests together: their batch, and the place of each.
    fn send(&self, joint: Vec<Joint>, when_full: WhenFull) -> (Batch, Vec<usize>) {
        let (batch, parts) = self.new_batch(joint.len(), None);
        let mut places = Vec::new();
        let jobs = joint.into_iter().zip(parts).map(|(joint, part)| {
            let (index, segment, single) = joint;
            places.push(index);
            (segment, single.into_job(part))
        });
        for (segment, jobs) in by_peer(jobs) {
            self.0.dispatch(&segment, jobs, when_full);
        }
        (batch, places)
    }
}

/// The outcomes of a batch that is over, each to its place.
fn gather(batch: &Batch, places: Vec<usize>, outcomes: &mut [Result<Option<Checksum>, Cause>]) {
    for (position, index) in places.into_iter().enumerate() {
        outcomes[index] = match batch.outcome(position) {
            Some(outcome) => outcome.cause.map_or(Ok(None), Err),
            None => Err(Cause::Dropped),
        };
    }
}

/// Reads as requests.
///
/// # Safety
/// Nobody else may use the slices until the requests have ended.
unsafe fn read_requests(
    reads: &mut [(Target, &mut [u8], Duration)],
) -> Vec<(Target, Buffers, Duration)> {
    let requests = reads.iter_mut().map(|(target, into, timeout)| {
        // SAFETY: the caller's promise.
        let buffers = unsafe { Buffers::borrowed(into.as_mut_ptr(), into.len()) };
        (*target, buffers, *timeout)
    });
    requests.collect()
}

/// Writes as requests.
///
/// # Safety
/// Nobody may write to the slices until the requests have ended.
unsafe fn write_requests(
    writes: &[(Target, &[u8])],
    timeout: Duration,
) -> Vec<(Target, Buffers, Duration)> {
    let requests = writes.iter().map(|(target, from)| {
        // SAFETY: the caller's promise; a write only reads from its buffers.
        let buffers = unsafe { Buffers::borrowed(from.as_ptr().cast_mut(), from.len()) };
        (*target, buffers, timeout)
    });
    requests.collect()
}

/// The end of a batch, which has come when this is dropped: what has not ended by then is cancelled.
struct End<'a>(&'a Batch, Instant);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let _ = self.0.wait(&Waiting::at(&BATCHES).until(self.1));
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
