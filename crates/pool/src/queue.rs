use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_base::Instant;
use slackwater_wait::{Event, Site, Waiting};

use crate::crew::Task;
use crate::job::{Panic, keep_first};
use crate::pool::Pool;
use crate::spread::Inner;
use crate::task::SubmitError;

/// Tasks that run one after the other, in the order they were given, on whichever worker is free.
#[derive(Debug)]
pub struct Queue {
    inner: Arc<Inner>,
    lane: Arc<Lane>,
}

struct Lane {
    state: Mutex<State>,
    /// A task ended.
    changed: Event,
    len_max: usize,
}

struct State {
    tasks: VecDeque<Task>,
    /// Tasks given and not ended.
    pending: usize,
    turn: Turn,
    panic: Option<Panic>,
}

/// Who runs the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Nobody: there are none.
    Nobody,
    /// The pool was asked for a worker.
    Asked,
    /// Somebody is at it.
    Taken,
}

static SITE: Site = Site::new("pool queue");

impl Queue {
    /// A queue in front of `pool` in which at most `len_max` tasks wait.
    #[must_use]
    pub fn new(pool: &Pool, len_max: usize) -> Self {
        let state = State {
            tasks: VecDeque::new(),
            pending: 0,
            turn: Turn::Nobody,
            panic: None,
        };
        let lane = Lane {
            state: Mutex::new(state),
            changed: Event::new(),
            len_max,
        };
        Self {
            inner: Arc::clone(pool.inner()),
            lane: Arc::new(lane),
        }
    }

    /// Appends a task.
    ///
    /// # Errors
    /// This queue or the pool's is full, or this process is a fork of the one that started the pool.
    pub fn enqueue(&self, task: impl FnOnce() + Send + 'static) -> Result<(), SubmitError> {
        if self.inner.is_orphaned() {
            return Err(SubmitError::Forked);
        }
        let mut state = self.lane.lock();
        if state.tasks.len() >= self.lane.len_max {
            return Err(SubmitError::Full {
                limit: self.lane.len_max,
            });
        }
        if state.turn == Turn::Nobody {
            let (lane, crew) = (Arc::clone(&self.lane), self.inner.quietest());
            if crew.enqueue(Box::new(move || lane.drain())).is_err() {
                return Err(SubmitError::Full {
                    limit: crew.queue_max(),
                });
            }
            state.turn = Turn::Asked;
        }
        state.tasks.push_back(Box::new(task));
        state.pending += 1;
        Ok(())
    }

    /// Tasks given and not ended.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.lane.lock().pending
    }

    /// Waits until at most `pending_max` tasks have not ended; says whether that came before `deadline`. If no worker has
    /// begun with the tasks, this thread runs them.
    ///
    /// # Errors
    /// A task panicked since the last call: the first payload. The tasks after it run all the same.
    pub fn sync(&self, pending_max: usize, deadline: Instant) -> Result<bool, Panic> {
        let mut in_time = true;
        loop {
            let seen = self.lane.changed.seen();
            let mut state = self.lane.lock();
            if state.pending <= pending_max || !in_time {
                let in_time = state.pending <= pending_max;
                return state.panic.take().map_or(Ok(in_time), Err);
            }
            let asked = state.turn == Turn::Asked;
            drop(state);
            if asked {
                self.lane.drain();
                continue;
            }
            let waiting = Waiting::at(&SITE).until(deadline);
            in_time = self.lane.changed.wait(seen, &waiting).is_ok();
        }
    }
}

impl Lane {
    /// Runs tasks until there are none, unless somebody else is at it.
    fn drain(&self) {
        {
            let mut state = self.lock();
            if state.turn != Turn::Asked {
                return;
            }
            state.turn = Turn::Taken;
        }
        loop {
            let task = {
                let mut state = self.lock();
                let Some(task) = state.tasks.pop_front() else {
                    state.turn = Turn::Nobody;
                    return;
                };
                task
            };
            let result = catch_unwind(AssertUnwindSafe(task));
            {
                let mut state = self.lock();
                state.pending -= 1;
                if let Err(payload) = result {
                    keep_first(&mut state.panic, payload);
                }
            }
            self.changed.notify_all();
        }
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
            .field("turn", &state.turn)
            .finish_non_exhaustive()
    }
}
