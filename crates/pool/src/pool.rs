use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use slackwater_wait::{Completion, Costs, Waiting};

use crate::config::{Config, PoolError};
use crate::crew::Crew;
use crate::job::{Cancel, Class, Indexed, JobError, Kind, Verdict};
use crate::member::Member;
use crate::placement::{Placement, watch_forks};
use crate::record::{PoolCounts, add};
use crate::scope::Scope;
use crate::slot::PublishedJob;
use crate::spread::Inner;
use crate::task::{Handle, SubmitError};
use slackwater_wait::NumaId;

/// A fork-join pool for short bursts of CPU work.
///
/// The caller of a job takes part in it; workers join while they are free, so a job progresses whatever the workers do,
/// and jobs may be started inside of jobs and by several threads at once. Threads without work watch for a learned time
/// and then sleep. Dropping the pool waits for what runs and joins the threads; what is queued is dropped.
pub struct Pool {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
}

/// A job to be run: how many indices, and how.
#[derive(Clone, Copy, Debug)]
#[must_use = "a job runs when one of its run methods is called"]
pub struct Job<'a> {
    inner: &'a Inner,
    pub(crate) len: usize,
    pub(crate) threads_max: usize,
    pub(crate) node: Option<NumaId>,
    pub(crate) class: Class,
    pub(crate) kind: Option<&'a Kind>,
    cancel: Option<&'a Cancel>,
}

impl Pool {
    /// Starts the threads.
    ///
    /// # Errors
    /// Names what in the configuration cannot be, or the thread that could not be started or placed.
    pub fn start(config: &Config) -> Result<Self, PoolError> {
        watch_forks();
        // Measured here, so that no wait has to: the first look at the costs takes a moment.
        let _ = Costs::now();
        let plans = config.plan()?;
        let inner = Arc::new(Inner::new(config, &plans));
        let mut pool = Self {
            inner: Arc::clone(&inner),
            threads: Vec::new(),
        };
        let started: Vec<Completion<Result<(), std::io::Error>>> = plans
            .iter()
            .enumerate()
            .flat_map(|(crew, plan)| {
                (0..inner.crews[crew].workers()).map(move |worker| (crew, plan, worker))
            })
            .map(|(crew, plan, worker)| {
                let (started, wait) = Completion::new();
                let place =
                    Placement::of(config, plan, worker + usize::from(crew == 0), plans.len());
                let (inner, thread) = (Arc::clone(&inner), inner.crews[crew].thread_index(worker));
                let builder = thread::Builder::new().name(format!("slackwater-{thread}"));
                let handle = builder.spawn(move || {
                    let placed = place.take();
                    let go = placed.is_ok();
                    started.complete(placed);
                    if go {
                        inner.crews[crew].work(worker);
                    }
                });
                pool.threads
                    .push(handle.map_err(|cause| PoolError::Thread { thread, cause })?);
                Ok(wait)
            })
            .collect::<Result<_, PoolError>>()?;
        for (thread, mut wait) in started.into_iter().enumerate() {
            let placed = wait.wait(&Waiting::at(&inner.callers.idle));
            // A thread that ends without a word has panicked, which placing does not.
            if let Ok(Err(cause)) = placed {
                return Err(PoolError::Thread {
                    thread: thread + 1,
                    cause,
                });
            }
        }
        Ok(pool)
    }

    /// The threads that take part in a job, the caller among them.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.inner.threads
    }

    /// The NUMA nodes that have a crew of their own.
    pub fn nodes(&self) -> impl Iterator<Item = NumaId> + '_ {
        self.inner.crews.iter().filter_map(|crew| crew.node)
    }

    /// Lets at most `threads` threads take part in a job from now on, the caller among them; the others cost nothing.
    /// More than the pool has counts as all, and 0 as the caller alone.
    pub fn restrict(&self, threads: usize) {
        self.inner
            .restricted
            .store(threads.clamp(1, self.inner.threads), Ordering::Relaxed);
    }

    /// A job over the indices `0..len`.
    pub fn job(&self, len: usize) -> Job<'_> {
        self.inner.job(len)
    }

    /// Runs `body` once for each index in `0..len`, in any order, on as many threads as are free.
    ///
    /// # Panics
    /// With the first panic of `body`, after all threads have left the job.
    pub fn run(&self, len: usize, body: impl Fn(usize) + Sync) {
        self.inner.run(len, body);
    }

    /// Runs both, at the same time if a thread is free, and returns both results.
    ///
    /// # Panics
    /// With the first panic of either, after both have ended.
    pub fn join<A: Send, B: Send>(
        &self,
        a: impl FnOnce() -> A + Send,
        b: impl FnOnce() -> B + Send,
    ) -> (A, B) {
        self.inner.join(a, b)
    }

    /// Runs `f`, which may spawn tasks that borrow from outside, and returns when all of them have ended. The caller
    /// helps with them at the end.
    ///
    /// # Panics
    /// With the first panic of `f` or of a task, after all have ended.
    pub fn scope<'env, R>(
        &self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    ) -> R {
        crate::scope::run(&self.inner, f)
    }

    /// Queues a task for a worker that has nothing more urgent to do, and returns a handle to its result.
    ///
    /// # Errors
    /// The queue is full, or this process is a fork of the one that started the pool.
    pub fn spawn<T: Send + 'static>(
        &self,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Handle<T>, SubmitError> {
        crate::task::spawn(&self.inner, task)
    }

    /// Queues a job over the indices `0..len` and returns a handle to wait for it, or to cancel it.
    ///
    /// # Errors
    /// As [`Pool::spawn`].
    pub fn submit(
        &self,
        len: usize,
        body: impl Fn(usize) + Send + Sync + 'static,
    ) -> Result<Handle<()>, SubmitError> {
        crate::task::submit(&self.inner, len, body)
    }

    /// What the pool did so far.
    #[must_use]
    pub fn counts(&self) -> PoolCounts {
        let inner = &self.inner;
        let workers = inner.crews.iter().flat_map(|crew| {
            let records = crew.records.iter().enumerate();
            records.map(|(worker, record)| record.counts(crew.thread_index(worker), crew.node))
        });
        PoolCounts {
            threads: std::iter::once(inner.callers.counts(0, None))
                .chain(workers)
                .collect(),
            jobs: inner.jobs.load(Ordering::Relaxed),
            alone: inner.alone.load(Ordering::Relaxed),
            panics: inner.panics.load(Ordering::Relaxed),
            wakes: inner.crews.iter().map(Crew::wakes).sum(),
            queued: inner.crews.iter().map(Crew::queued).sum(),
        }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let inner = &self.inner;
        inner.crews.iter().for_each(Crew::close);
        for thread in self.threads.drain(..) {
            // A pool dropped by its own task cannot wait for the thread that drops it; after a fork there is none.
            if thread.thread().id() != thread::current().id() && !inner.is_orphaned() {
                // Workers catch the panics of tasks.
                let _ = thread.join();
            }
        }
        inner.crews.iter().for_each(Crew::drop_queued);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.inner.threads)
            .finish_non_exhaustive()
    }
}

impl<'a> Job<'a> {
    pub(crate) fn new(inner: &'a Inner, len: usize) -> Self {
        Self {
            inner,
            len,
            threads_max: usize::MAX,
            node: None,
            class: Class::Latency,
            kind: None,
            cancel: None,
        }
    }

    /// At most this many threads take part, the caller among them.
    pub fn threads_max(self, threads_max: usize) -> Self {
        Self {
            threads_max: threads_max.max(1),
            ..self
        }
    }

    /// Only the workers of this node take part, and the caller. A node without a crew leaves the caller alone.
    pub fn on(self, node: NumaId) -> Self {
        Self {
            node: Some(node),
            ..self
        }
    }

    /// How urgent it is.
    pub fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// Which kind it is: the pool learns what its tasks cost.
    pub fn kind(self, kind: &'a Kind) -> Self {
        Self {
            kind: Some(kind),
            ..self
        }
    }

    /// Stops handing out tasks when `cancel` says so.
    pub fn cancel(self, cancel: &'a Cancel) -> Self {
        Self {
            cancel: Some(cancel),
            ..self
        }
    }

    /// Runs `body` once for each index.
    ///
    /// # Errors
    /// A task panicked, or the job was cancelled before all indices were handed out.
    pub fn run(self, body: impl Fn(usize) + Sync) -> Result<(), JobError> {
        self.run_ranges(|range| range.for_each(&body))
    }

    /// Runs `body` for ranges that together are `0..len`.
    ///
    /// # Errors
    /// As [`Job::run`].
    pub fn run_ranges(self, body: impl Fn(Range<usize>) + Sync) -> Result<(), JobError> {
        self.run_with(|_| (), |(), range| body(range), |()| ())
    }

    /// Runs `body` for ranges that together are `0..len`. Every thread that takes part makes itself a state with `init`
    /// before its first range and gives it to `finalize` after its last, also when a task panicked.
    ///
    /// # Errors
    /// As [`Job::run`]; `init` and `finalize` count as tasks.
    pub fn run_with<S>(
        self,
        init: impl Fn(Member) -> S + Sync,
        body: impl Fn(&mut S, Range<usize>) + Sync,
        finalize: impl Fn(S) + Sync,
    ) -> Result<(), JobError> {
        if self.len == 0 {
            return Ok(());
        }
        let stride = self.len.div_ceil(u32::MAX as usize);
        let claims = self.len.div_ceil(stride) as u32;
        let (kind, cancel) = (self.kind, self.cancel);
        let shared = Indexed {
            init,
            body,
            finalize,
            len: self.len,
            stride,
            kind,
            cancel,
            verdict: Verdict::default(),
        };
        let work = PublishedJob {
            data: (&raw const shared).cast(),
            enter: entry(&shared),
            base: 0,
            seats: 1,
            lasting: false,
        };
        // SAFETY: `shared` lives until the call returns, and its closures are `Sync`, so any thread may call them.
        unsafe { self.inner.spread(&self, work, claims) };
        let result = shared.into_result();
        if matches!(result, Err(JobError::Panicked(_))) {
            add(&self.inner.panics, 1);
        }
        result
    }
}

/// The entry function of a job, with the types taken from the value.
fn entry<S, I, B, F>(
    _of: &Indexed<'_, I, B, F>,
) -> unsafe fn(*const (), &crate::slot::Seat<'_>) -> bool
where
    I: Fn(Member) -> S + Sync,
    B: Fn(&mut S, Range<usize>) + Sync,
    F: Fn(S) + Sync,
{
    Indexed::<I, B, F>::enter::<S>
}
