use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_pool::{Config, Pool, PoolError};
use slackwater_wait::{Event, Site, Waiting};

use super::warmth::Warmth;

/// The copy threads: at most so many at work at a time, none while there is nothing to do.
pub(super) struct Crew {
    pool: Pool,
    warmth: Warmth,
    at_work_max: usize,
    state: Mutex<State>,
    /// A thread has nothing more to do.
    idle: Event,
}

thread_local! {
    /// Whether this thread is at work for a crew.
    static AT_WORK: Cell<bool> = const { Cell::new(false) };
}

static SETTLING: Site = Site::new("host crew");

#[derive(Default)]
struct State {
    ready: VecDeque<Work>,
    at_work: usize,
}

/// One thing to do. It does not panic.
pub(super) type Work = Box<dyn FnOnce() + Send>;

impl Crew {
    /// `threads` copy threads (at least one).
    pub(super) fn start(threads: usize) -> Result<Arc<Self>, PoolError> {
        let at_work_max = threads.max(1);
        // One more than are to copy: a pool counts whoever calls it, and here nobody waits in a call.
        let pool = Pool::start(&Config::threads(at_work_max + 1))?;
        Ok(Arc::new(Self { pool, warmth: Warmth::new(), at_work_max, state: Mutex::default(), idle: Event::new() }))
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn warmth(&self) -> &Warmth {
        &self.warmth
    }

    /// Queues work; a thread that has nothing to do takes it.
    pub(super) fn push(self: &Arc<Self>, work: Work) {
        {
            let mut state = self.state();
            state.ready.push_back(work);
            if state.at_work == self.at_work_max {
                return;
            }
            state.at_work += 1;
        }
        let crew = Arc::clone(self);
        if self.pool.spawn(move || crew.work()).is_err() {
            // No thread takes it (a fork has none): it is done here, so that nothing is left lying.
            self.work();
        }
    }

    /// Waits until nothing is queued or under way, unless this thread is one of those at work.
    pub(super) fn settle(&self) {
        loop {
            let seen = self.idle.seen();
            if self.state().at_work == 0 || AT_WORK.get() {
                return;
            }
            // There is no deadline and nobody closes it: it returns when a thread has gone idle.
            let _ = self.idle.wait(seen, &Waiting::at(&SETTLING));
        }
    }

    fn work(&self) {
        let outer = AT_WORK.replace(true);
        loop {
            let work = {
                let mut state = self.state();
                let Some(work) = state.ready.pop_front() else {
                    state.at_work -= 1;
                    break;
                };
                work
            };
            work();
        }
        AT_WORK.set(outer);
        self.idle.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("at_work_max", &self.at_work_max).finish_non_exhaustive()
    }
}
