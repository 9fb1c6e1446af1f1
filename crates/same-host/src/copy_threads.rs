use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_pool::{Config, Pool, PoolError};
use slackwater_wait::{Event, Site, Waiting};

use super::cache_history::CacheHistory;

/// The copy threads: at most `at_work_max` run at a time, none while nothing is queued.
pub(super) struct CopyThreads {
    pool: Pool,
    cache_history: CacheHistory,
    at_work_max: usize,
    state: Mutex<State>,
    /// Notified when a thread has gone idle.
    idle: Event,
}

thread_local! {
    /// Whether this thread runs copy tasks now.
    static AT_WORK: Cell<bool> = const { Cell::new(false) };
}

pub(crate) static SETTLING: Site = Site::new("host crew");

#[derive(Default)]
struct State {
    ready: VecDeque<CopyTask>,
    at_work: usize,
}

/// One task. If it panics, what it holds is dropped and the next task runs.
pub(super) type CopyTask = Box<dyn FnOnce() + Send>;

impl CopyThreads {
    /// `threads` copy threads (at least one).
    pub(super) fn start(threads: usize) -> Result<Arc<Self>, PoolError> {
        let at_work_max = threads.max(1);
        // The pool counts the calling thread, and here no thread waits in a call; it gives every second one of the
        // others to background tasks.
        let pool = Pool::start(&Config::threads(2 * at_work_max))?;
        Ok(Arc::new(Self {
            pool,
            cache_history: CacheHistory::new(),
            at_work_max,
            state: Mutex::default(),
            idle: Event::new(),
        }))
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn cache_history(&self) -> &CacheHistory {
        &self.cache_history
    }

    /// Queues a task; an idle thread takes it.
    pub(super) fn push(self: &Arc<Self>, run: CopyTask) {
        {
            let mut state = self.state();
            state.ready.push_back(run);
            if state.at_work == self.at_work_max {
                return;
            }
            state.at_work += 1;
        }
        let copy_threads = Arc::clone(self);
        if self.pool.spawn(move || copy_threads.run()).is_err() {
            // No thread takes it (a forked process has none): it runs here, so that no task stays queued.
            self.run();
        }
    }

    /// Waits until nothing is queued or under way, unless this is one of the copy threads.
    pub(super) fn settle(&self) {
        loop {
            let seen = self.idle.seen();
            if self.state().at_work == 0 || AT_WORK.get() {
                return;
            }
            // There is no deadline and the event is never closed: the wait returns when a thread has gone idle.
            let _ = self.idle.wait(seen, &Waiting::at(&SETTLING));
        }
    }

    fn run(&self) {
        let outer = AT_WORK.replace(true);
        loop {
            let run = {
                let mut state = self.state();
                let Some(run) = state.ready.pop_front() else {
                    state.at_work -= 1;
                    break;
                };
                run
            };
            // What the task holds is dropped with it, and the panic hook has reported it. Uncaught, the panic would
            // leave this thread counted as working for ever.
            let _ = catch_unwind(AssertUnwindSafe(run));
        }
        AT_WORK.set(outer);
        self.idle.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for CopyThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew")
            .field("at_work_max", &self.at_work_max)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// The pool gives every second worker to background tasks, so two copy threads were one: batches ran on one
    /// processor.
    #[test]
    fn as_many_work_at_a_time_as_were_asked_for() {
        let copy_threads = CopyThreads::start(3).unwrap();
        let (tell, told) = channel();
        let (goes, go): (Vec<_>, Vec<_>) = (0..3).map(|_| channel::<()>()).unzip();
        for go in go {
            let tell = tell.clone();
            copy_threads.push(Box::new(move || {
                tell.send(()).unwrap();
                // Ends when all have begun, or the test has failed.
                let _ = go.recv();
            }));
        }
        for _ in 0..3 {
            told.recv_timeout(PATIENCE)
                .expect("all three begin before the first ends");
        }
        drop(goes);
        copy_threads.settle();
    }

    /// A hook of a batch panicked on a copy thread, which counted as working from then on: closing the engine hung.
    #[test]
    fn work_that_panics_ends_alone() {
        let copy_threads = CopyThreads::start(1).unwrap();
        let (tell, told) = channel();
        copy_threads.push(Box::new(|| panic!("as a hook might")));
        copy_threads.push(Box::new(move || tell.send(()).unwrap()));
        told.recv_timeout(PATIENCE).expect("the next is done");
        copy_threads.settle();
    }
}
