use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use slackwater_base::Instant;
use slackwater_wait::{Completion, Site, Stopped, Waiting};
use thiserror::Error;

use crate::crew::Task;
use crate::job::{Cancel, JobError, Panic};
use crate::spread::Inner;

/// Why a task was not queued.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SubmitError {
    /// As many wait as may.
    #[error("the queue of background tasks is full ({limit} waiting)")]
    Full {
        /// The most that may wait.
        limit: usize,
    },
    /// The threads stayed in the parent process.
    #[error("the pool was started before this process was forked and has no threads in it")]
    Forked,
}

/// A queued task: its result when there is one.
pub struct Handle<T> {
    completion: Completion<Result<T, JobError>>,
    /// The task itself while no worker has begun it: a thread that waits for it may run it.
    task: Arc<Mutex<Option<Task>>>,
    cancel: Arc<Cancel>,
}

static SITE: Site = Site::new("pool handle");

pub(crate) fn spawn<T: Send + 'static>(
    inner: &Arc<Inner>,
    task: impl FnOnce() -> T + Send + 'static,
) -> Result<Handle<T>, SubmitError> {
    queue(inner, Arc::new(Cancel::new()), move || {
        match catch_unwind(AssertUnwindSafe(task)) {
            Ok(value) => Ok(value),
            Err(payload) => Err(JobError::Panicked(Panic(payload))),
        }
    })
}

pub(crate) fn submit(
    inner: &Arc<Inner>,
    len: usize,
    body: impl Fn(usize) + Send + Sync + 'static,
) -> Result<Handle<()>, SubmitError> {
    let cancel = Arc::new(Cancel::new());
    let (pool, stop) = (Arc::clone(inner), Arc::clone(&cancel));
    queue(inner, cancel, move || pool.job(len).cancel(&stop).run(body))
}

fn queue<T: Send + 'static>(
    inner: &Arc<Inner>,
    cancel: Arc<Cancel>,
    task: impl FnOnce() -> Result<T, JobError> + Send + 'static,
) -> Result<Handle<T>, SubmitError> {
    if inner.is_orphaned() {
        return Err(SubmitError::Forked);
    }
    let (completer, completion) = Completion::new();
    let task: Task = Box::new(move || completer.complete(task()));
    let task = Arc::new(Mutex::new(Some(task)));
    let shared = Arc::clone(&task);
    let crew = inner.quietest();
    match crew.enqueue(Box::new(move || run(&shared))) {
        Ok(()) => Ok(Handle {
            completion,
            task,
            cancel,
        }),
        Err(_) => Err(SubmitError::Full {
            limit: crew.queue_max(),
        }),
    }
}

/// Runs the task unless another thread has.
fn run(task: &Mutex<Option<Task>>) {
    let task = task.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(task) = task {
        task();
    }
}

impl<T> Handle<T> {
    /// Waits for the result. If no worker has begun the task, this thread runs it.
    ///
    /// # Errors
    /// The task panicked, or was cancelled, or its pool is gone.
    pub fn wait(self) -> Result<T, JobError> {
        self.wait_until(Instant::NEVER)
            .unwrap_or(Err(JobError::Cancelled))
    }

    /// [`Handle::wait`] up to `deadline`; gives the handle back when that passes first. A task that this thread runs
    /// itself is not interrupted.
    ///
    /// # Errors
    /// The deadline passed.
    pub fn wait_until(mut self, deadline: Instant) -> Result<Result<T, JobError>, Self> {
        run(&self.task);
        match self.completion.wait(&Waiting::at(&SITE).until(deadline)) {
            Ok(result) => Ok(result),
            Err(Stopped::Ended(_)) => Err(self),
            // Dropped with its queue.
            Err(Stopped::Failed(_)) => Ok(Err(JobError::Cancelled)),
        }
    }

    /// Takes the task out of the queue, or stops it from handing out indices if it is a job that runs. Says whether it
    /// had not begun.
    pub fn cancel(&self) -> bool {
        self.cancel.cancel();
        // Dropping the task drops its completer, which ends every wait.
        self.task
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .is_some()
    }

    /// Whether the result is there.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.completion.is_done()
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("completion", &self.completion)
            .finish_non_exhaustive()
    }
}
