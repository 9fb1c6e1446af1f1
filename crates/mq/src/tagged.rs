use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use thiserror::Error;

use crate::jobs::Task;
use crate::metrics::Metrics;

/// A thread with a name and a queue of its own: jobs given to it run one after the other, in order.
#[derive(Clone)]
pub struct TaggedThread {
    name: Arc<str>,
    queue: SyncSender<Option<Task>>,
}

/// The thread's queue is full, or the thread has ended; the job was not taken.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the thread takes no more jobs")]
pub struct TaggedFull;

/// A thread that is to start with the message layer.
pub(crate) struct Planned {
    name: Arc<str>,
    start: Task,
    queue: Receiver<Option<Task>>,
    handle: TaggedThread,
}

/// Jobs that may wait for one thread.
const QUEUE: usize = 4096;

impl TaggedThread {
    pub(crate) fn plan(name: &str, start: Task) -> (Planned, TaggedThread) {
        let (sender, queue) = sync_channel(QUEUE);
        let name: Arc<str> = name.into();
        let handle = Self {
            name: Arc::clone(&name),
            queue: sender,
        };
        (
            Planned {
                name,
                start,
                queue,
                handle: handle.clone(),
            },
            handle,
        )
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Queues a job.
    ///
    /// # Errors
    /// [`TaggedFull`] when the queue is full or the thread has ended.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> Result<(), TaggedFull> {
        self.push(Box::new(job))
    }

    pub(crate) fn push(&self, task: Task) -> Result<(), TaggedFull> {
        match self.queue.try_send(Some(task)) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Err(TaggedFull),
        }
    }
}

impl Planned {
    /// Starts the thread; [`Started::stop`] ends it after the job it is at.
    pub(crate) fn start(self, metrics: Arc<Metrics>) -> Result<Started, (String, std::io::Error)> {
        let Planned {
            name,
            start,
            queue,
            handle,
        } = self;
        let thread_name = name.to_string();
        let spawned = std::thread::Builder::new()
            .name(thread_name.clone())
            .spawn(move || {
                let run = |task: Task| {
                    if catch_unwind(AssertUnwindSafe(task)).is_err() {
                        metrics.rare(&metrics.jobs_panicked);
                    }
                };
                run(start);
                while let Ok(Some(task)) = queue.recv() {
                    run(task);
                }
            });
        let thread = spawned.map_err(|error| (thread_name, error))?;
        Ok(Started { handle, thread })
    }
}

pub(crate) struct Started {
    handle: TaggedThread,
    thread: JoinHandle<()>,
}

impl Started {
    /// Lets the thread finish what is queued and waits for it, unless called from it.
    pub(crate) fn stop(self) {
        if self.handle.queue.send(None).is_ok()
            && self.thread.thread().id() != std::thread::current().id()
        {
            let _ = self.thread.join();
        }
    }
}
