//! How many requests of a mover to one peer are unfinished, and what waits for their ends.

use std::collections::BTreeSet;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_base::Instant;
use slackwater_data_plane::{Cause, Deadline};
use slackwater_wait::{Event, Seen, Site, Waiting};

use crate::job::Job;
use crate::mover::WhenFull;

/// The unfinished requests to one peer, in the order in which they came: fences and queue limits depend on them.
#[derive(Default)]
pub struct Flow {
    state: Mutex<State>,
    /// Notified when a request has ended.
    room: Event,
}

#[derive(Default)]
struct State {
    next: u64,
    active: BTreeSet<u64>,
    fences: Vec<(u64, Fence)>,
}

/// Called once every request before it has ended. It must not block.
type Fence = Box<dyn FnOnce() + Send>;

/// A request that is unfinished until this is dropped.
pub struct FlowGuard {
    flow: Arc<Flow>,
    number: u64,
}

pub(crate) static ROOM: Site = Site::new("transfer room");

impl Flow {
    /// Begins one more request.
    pub fn begin(self: &Arc<Self>) -> FlowGuard {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.active.insert(number);
        FlowGuard {
            flow: Arc::clone(self),
            number,
        }
    }

    /// The number of unfinished requests.
    pub fn unfinished(&self) -> usize {
        self.state().active.len()
    }

    /// Calls `then` when every request that began before has ended; now, if all have.
    pub fn fence(&self, then: Fence) {
        {
            let mut state = self.state();
            let after = state.next;
            state.fences.push((after, then));
        }
        self.pass_fences();
    }

    /// To be taken before the length is read; see [`Flow::wait`].
    pub fn seen(&self) -> Seen {
        self.room.seen()
    }

    /// Waits until a request has ended since `seen`; says whether one has before the deadline or the closing.
    pub fn wait(&self, seen: Seen, deadline: Instant) -> bool {
        self.room
            .wait(seen, &Waiting::at(&ROOM).until(deadline))
            .is_ok()
    }

    /// Waits until fewer than `max` requests are unfinished, so that `job` may begin.
    ///
    /// # Errors
    /// Why the job may not begin; its holder releases its memory.
    pub fn room(&self, max: usize, job: &Job, when_full: WhenFull) -> Result<(), Cause> {
        loop {
            let seen = self.seen();
            let queued = self.unfinished();
            if queued < max || when_full == WhenFull::Exceed {
                return Ok(());
            }
            if when_full == WhenFull::Refuse {
                return Err(Cause::Full {
                    queued: queued as u64,
                });
            }
            if job.part.is_cancelled() {
                return Err(Cause::Cancelled);
            }
            if !self.wait(seen, job.deadline) {
                return Err(if self.room.is_closed() {
                    Cause::Closed
                } else {
                    Cause::TimedOut(Deadline::Total)
                });
            }
        }
    }

    /// Ends all waits for room.
    pub fn close(&self) {
        self.room.close();
    }

    fn pass_fences(&self) {
        let passed = {
            let mut state = self.state();
            let first = state.active.first().copied().unwrap_or(u64::MAX);
            let (passed, left) = take(&mut state.fences)
                .into_iter()
                .partition::<Vec<_>, _>(|(after, _)| *after <= first);
            state.fences = left;
            passed
        };
        passed.into_iter().for_each(|(_, then)| then());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FlowGuard {
    fn drop(&mut self) {
        let fenced = {
            let mut state = self.flow.state();
            state.active.remove(&self.number);
            !state.fences.is_empty()
        };
        self.flow.room.notify_all();
        if fenced {
            self.flow.pass_fences();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_fence_waits_for_what_came_before_and_for_nothing_else() {
        let flow = Arc::new(Flow::default());
        let passed = Arc::new(AtomicU32::new(0));
        let fence = || {
            let passed = Arc::clone(&passed);
            flow.fence(Box::new(move || {
                passed.fetch_add(1, Ordering::Relaxed);
            }));
        };
        fence();
        assert_eq!(passed.load(Ordering::Relaxed), 1, "nothing is before it");
        let (first, second) = (flow.begin(), flow.begin());
        fence();
        let third = flow.begin();
        drop(second);
        assert_eq!((passed.load(Ordering::Relaxed), flow.unfinished()), (1, 2));
        drop(first);
        assert_eq!(
            passed.load(Ordering::Relaxed),
            2,
            "the third came after the fence"
        );
        drop(third);
        assert_eq!(flow.unfinished(), 0);
    }
}
