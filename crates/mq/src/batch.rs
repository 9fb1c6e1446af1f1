use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;

use crate::TaggedThread;
use crate::context::Context;
use crate::jobs::Task;

/// Where a job runs.
#[derive(Clone, Default)]
pub enum RunOn {
    /// On a worker.
    #[default]
    Pool,
    /// On a thread of its own name.
    Thread(TaggedThread),
    /// On the thread that finds it due: a promise not to block.
    Inline,
}

impl std::fmt::Debug for RunOn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RunOn::Pool => f.write_str("Pool"),
            RunOn::Thread(thread) => write!(f, "Thread({})", thread.name()),
            RunOn::Inline => f.write_str("Inline"),
        }
    }
}

/// The outcome of one job: its value, or the text of its panic.
pub type JobOutcome<R> = Result<R, String>;

/// Why a batch did not start.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BatchError {
    /// It has no job.
    #[error("a batch needs at least one job")]
    Empty,
    /// Some queue takes no more; jobs that had been queued before that still run, the completion does not.
    #[error("no room for the batch")]
    Full,
}

type Job<R> = (RunOn, Box<dyn FnOnce() -> R + Send>);

/// Jobs that run side by side, and one function that receives the outcomes of all of them.
pub struct Batch<R> {
    jobs: Vec<Job<R>>,
}

impl<R: Send + 'static> Batch<R> {
    /// No jobs yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { jobs: Vec::new() }
    }

    /// Adds a job for the pool.
    pub fn add(&mut self, job: impl FnOnce() -> R + Send + 'static) -> &mut Self {
        self.add_on(RunOn::Pool, job)
    }

    /// Adds a job for a certain place.
    pub fn add_on(&mut self, on: RunOn, job: impl FnOnce() -> R + Send + 'static) -> &mut Self {
        self.jobs.push((on, Box::new(job)));
        self
    }

    pub(crate) fn start(
        self,
        context: &Arc<Context>,
        on: RunOn,
        completion: impl FnOnce(Vec<JobOutcome<R>>) + Send + 'static,
    ) -> Result<(), BatchError> {
        if self.jobs.is_empty() {
            return Err(BatchError::Empty);
        }
        let outcomes = self.jobs.iter().map(|_| None).collect();
        let state = Arc::new(Mutex::new(Progress {
            outcomes,
            missing: self.jobs.len(),
            completion: Some(completion),
        }));
        for (index, (place, job)) in self.jobs.into_iter().enumerate() {
            let (state, context_, on) = (Arc::clone(&state), Arc::clone(context), on.clone());
            let task: Task = Box::new(move || {
                let outcome = catch_unwind(AssertUnwindSafe(job)).map_err(|panic| text_of(&*panic));
                let finished = {
                    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                    state.outcomes[index] = Some(outcome);
                    state.missing -= 1;
                    (state.missing == 0)
                        .then(|| (std::mem::take(&mut state.outcomes), state.completion.take()))
                };
                if let Some((outcomes, Some(completion))) = finished {
                    let outcomes: Vec<JobOutcome<R>> = outcomes.into_iter().flatten().collect();
                    // If the place of the completion has no room, it runs here, as it must run.
                    let carried = Carried(Some(Box::new(move || completion(outcomes))));
                    let _ = on.run(&context_, Box::new(move || carried.run()));
                }
            });
            place
                .run(context, task)
                .map_err(|Refused| BatchError::Full)?;
        }
        Ok(())
    }
}

impl<R: Send + 'static> Default for Batch<R> {
    fn default() -> Self {
        Self::new()
    }
}

struct Progress<R, F> {
    outcomes: Vec<Option<JobOutcome<R>>>,
    missing: usize,
    completion: Option<F>,
}

/// A task that runs when it is dropped, if it has not run before.
struct Carried(Option<Task>);

impl Carried {
    fn run(mut self) {
        if let Some(task) = self.0.take() {
            task();
        }
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task();
        }
    }
}

/// The place takes no more jobs.
pub(crate) struct Refused;

impl RunOn {
    pub(crate) fn run(&self, context: &Context, task: Task) -> Result<(), Refused> {
        match self {
            RunOn::Pool => context.jobs.batch(task).map_err(|_| Refused),
            RunOn::Thread(thread) => thread.push(task).map_err(|_| Refused),
            RunOn::Inline => {
                if catch_unwind(AssertUnwindSafe(task)).is_err() {
                    context.metrics.rare(&context.metrics.jobs_panicked);
                }
                Ok(())
            }
        }
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a text".to_owned())
}
