//! Tasks that run in order: which thread runs them, and how a thread waits until few are left.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

use slackwater_base::Instant;
use slackwater_wait::{Event, Waiting, now};

use crate::crew::Task;
use crate::job::{Panic, keep_first};
use crate::sync::{Mutex, MutexGuard};

/// The tasks of one [`Queue`](crate::Queue). At most one thread runs them at a time, so they run in order.
pub(crate) struct Lane {
    state: Mutex<State>,
    /// A task ended, or the thread that ran them stopped.
    changed: Event,
    len_max: usize,
}

struct State {
    tasks: VecDeque<Task>,
    /// Tasks given and not ended.
    pending: usize,
    /// A worker was asked for and has not come yet.
    asked: bool,
    /// A thread runs the tasks.
    running: bool,
    panic: Option<Panic>,
}

/// Why a task was not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// As many wait here as may.
    Lane,
    /// No worker could be asked for.
    Worker,
}

impl Lane {
    pub(crate) fn new(len_max: usize) -> Self {
        let state = State {
            tasks: VecDeque::new(),
            pending: 0,
            asked: false,
            running: false,
            panic: None,
        };
        Self {
            state: Mutex::new(state),
            changed: Event::new(),
            len_max,
        }
    }

    /// Appends a task. If no thread runs the tasks, `ask` asks for a worker that will call [`Lane::work`]; it says
    /// whether that could be done.
    pub(crate) fn push(&self, task: Task, ask: impl FnOnce() -> bool) -> Result<(), NoRoom> {
        let mut state = self.lock();
        if state.tasks.len() >= self.len_max {
            return Err(NoRoom::Lane);
        }
        if !state.running && !state.asked {
            if !ask() {
                return Err(NoRoom::Worker);
            }
            state.asked = true;
        }
        state.tasks.push_back(task);
        state.pending += 1;
        Ok(())
    }

    /// The most tasks that wait.
    pub(crate) fn len_max(&self) -> usize {
        self.len_max
    }

    /// Tasks given and not ended.
    pub(crate) fn pending(&self) -> usize {
        self.lock().pending
    }

    /// Runs tasks until there are none, unless another thread does: for the worker that was asked for.
    pub(crate) fn work(&self) {
        let mut state = self.lock();
        state.asked = false;
        if state.running {
            return;
        }
        state.running = true;
        while let Some(task) = state.tasks.pop_front() {
            state = self.run(state, task);
        }
        state.running = false;
    }

    /// Waits until at most `pending_max` tasks have not ended; says whether that came before `deadline`. While no other
    /// thread runs the tasks, this one does, and then `ask`s for a worker to go on with those that are left.
    pub(crate) fn sync(
        &self,
        pending_max: usize,
        deadline: Instant,
        waiting: &Waiting<'_>,
        ask: impl Fn() -> bool,
    ) -> Result<bool, Panic> {
        loop {
            // Taken before the look at the state: a change from here on ends the wait.
            let seen = self.changed.seen();
            let mut state = self.lock();
            if state.pending > pending_max && !state.running && now() < deadline {
                state.running = true;
                state = self.run_until(state, pending_max, deadline, &ask);
            }
            let in_time = state.pending <= pending_max;
            if in_time || now() >= deadline {
                return state.panic.take().map_or(Ok(in_time), Err);
            }
            drop(state);
            // Ended or not: the state says so.
            let _ = self.changed.wait(seen, &waiting.until(deadline));
        }
    }

    /// Runs tasks until at most `pending_max` are left or the deadline has passed. If no worker can take over the rest,
    /// the thread continues.
    fn run_until<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        pending_max: usize,
        deadline: Instant,
        ask: impl Fn() -> bool,
    ) -> MutexGuard<'a, State> {
        while let Some(task) = state.tasks.pop_front() {
            state = self.run(state, task);
            let enough = state.pending <= pending_max || now() >= deadline;
            if enough && !state.tasks.is_empty() && (state.asked || ask()) {
                state.asked = true;
                break;
            }
        }
        state.running = false;
        // Another thread that syncs may have to run what is left.
        self.changed.notify_all();
        state
    }

    /// Runs one task outside of the lock.
    fn run<'a>(&'a self, state: MutexGuard<'a, State>, task: Task) -> MutexGuard<'a, State> {
        drop(state);
        let result = catch_unwind(AssertUnwindSafe(task));
        let mut state = self.lock();
        state.pending -= 1;
        if let Err(payload) = result {
            keep_first(&mut state.panic, payload);
        }
        self.changed.notify_all();
        state
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Lane")
            .field("pending", &state.pending)
            .field("running", &state.running)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_worker_is_asked_for_when_none_runs_the_tasks_or_is_on_its_way() {
        let (lane, asked) = (Lane::new(2), Cell::new(0));
        let push = |answer: bool| {
            lane.push(Box::new(|| ()), || {
                asked.set(asked.get() + 1);
                answer
            })
        };
        assert_eq!(push(false), Err(NoRoom::Worker));
        assert_eq!((lane.pending(), asked.get()), (0, 1), "nothing is kept");
        assert_eq!(push(true), Ok(()));
        assert_eq!(push(true), Ok(()));
        assert_eq!((lane.pending(), asked.get()), (2, 2), "one is enough");
        assert_eq!(push(true), Err(NoRoom::Lane));
        lane.work();
        assert_eq!(lane.pending(), 0);
        assert_eq!(push(true), Ok(()));
        assert_eq!(asked.get(), 3, "the first one has come and gone");
    }
}
