use std::sync::Arc;

use slackwater_base::Instant;
use slackwater_wait::{Site, Waiting};

use crate::job::Panic;
use crate::lane::{Lane, NoRoom};
use crate::pool::Pool;
use crate::spread::Inner;
use crate::task::SubmitError;

/// Tasks that run one after the other, in the order they were given, on whichever worker is free.
#[derive(Debug)]
pub struct Queue {
    inner: Arc<Inner>,
    lane: Arc<Lane>,
}

static SITE: Site = Site::new("pool queue");

impl Queue {
    /// A queue in front of `pool` in which at most `len_max` tasks wait.
    #[must_use]
    pub fn new(pool: &Pool, len_max: usize) -> Self {
        Self {
            inner: Arc::clone(pool.inner()),
            lane: Arc::new(Lane::new(len_max)),
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
        let crew = self.inner.quietest();
        let pushed = self.lane.push(Box::new(task), || self.ask());
        pushed.map_err(|no_room| SubmitError::Full {
            limit: match no_room {
                NoRoom::Lane => self.lane.len_max(),
                NoRoom::Worker => crew.queue_max(),
            },
        })
    }

    /// Tasks given and not ended.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.lane.pending()
    }

    /// Waits until at most `pending_max` tasks have not ended; says whether that came before `deadline`. If no worker has
    /// begun with the tasks, this thread runs them meanwhile. A task that it runs is not interrupted by the deadline; the
    /// ones after it are left to a worker, unless the pool's own queue has no room to ask for one.
    ///
    /// # Errors
    /// A task panicked since the last call: the first payload. The tasks after it run all the same.
    pub fn sync(&self, pending_max: usize, deadline: Instant) -> Result<bool, Panic> {
        let waiting = Waiting::at(&SITE);
        self.lane
            .sync(pending_max, deadline, &waiting, || self.ask())
    }

    /// Asks the pool for a worker.
    fn ask(&self) -> bool {
        let lane = Arc::clone(&self.lane);
        !self.inner.is_orphaned()
            && self
                .inner
                .quietest()
                .enqueue(Box::new(move || lane.work()))
                .is_ok()
    }
}
