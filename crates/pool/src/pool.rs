use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::thread::{self, JoinHandle};

use slackwater_wait::{Completion, Cpus};

use crate::affinity;
use crate::config::{Config, CrewPlan, NODES_MAX, Pin, PoolError};
use crate::crew::{Crew, Taken, run_alone};
use crate::job::{Cancel, Class, Indexed, JobError, Kind, Verdict};
use crate::member::Member;
use crate::record::{PoolCounts, Record, add};
use crate::scope::Scope;
use crate::slot::Work;
use crate::task::{Handle, SubmitError};
use crate::topology::NodeId;

/// A fork-join pool for short bursts of CPU work.
///
/// The caller of a job takes part in it; workers join while they are free, so a job progresses whatever the workers do,
/// and jobs may be started inside of jobs and by several threads at once. Threads without work watch for a learned time
/// and then sleep. Dropping the pool waits for what runs and joins the threads; what is queued is dropped.
pub struct Pool {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    crews: Box<[Crew]>,
    threads: usize,
    /// The most participants of a job at present.
    restricted: AtomicUsize,
    callers: Record,
    jobs: AtomicU64,
    alone: AtomicU64,
    panics: AtomicU64,
    /// The fork generation it was started in: a child has none of the threads.
    born: u64,
}

/// A job to be run: how many indices, and how.
#[derive(Clone, Copy, Debug)]
#[must_use = "a job runs when one of its run methods is called"]
pub struct Job<'a> {
    inner: &'a Inner,
    len: usize,
    threads_max: usize,
    node: Option<NodeId>,
    class: Class,
    kind: Option<&'a Kind>,
    cancel: Option<&'a Cancel>,
}

impl Pool {
    /// Starts the threads.
    ///
    /// # Errors
    /// Names what in the configuration cannot be, or the thread that could not be started or placed.
    pub fn start(config: &Config) -> Result<Self, PoolError> {
        watch_forks();
        let plans = config.plan()?;
        let inner = Arc::new(Inner::new(config, &plans));
        let mut pool = Self { inner: Arc::clone(&inner), threads: Vec::new() };
        let started: Vec<Completion<Result<(), std::io::Error>>> = plans
            .iter()
            .enumerate()
            .flat_map(|(crew, plan)| (0..inner.crews[crew].workers()).map(move |worker| (crew, plan, worker)))
            .map(|(crew, plan, worker)| {
                let (started, wait) = Completion::new();
                let place = Place::of(config, plan, worker + usize::from(crew == 0), plans.len());
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
                pool.threads.push(handle.map_err(|cause| PoolError::Thread { thread, cause })?);
                Ok(wait)
            })
            .collect::<Result<_, PoolError>>()?;
        for (thread, mut wait) in started.into_iter().enumerate() {
            let placed = wait.wait(&slackwater_wait::Waiting::at(&inner.callers.idle));
            // A thread that ends without a word has panicked, which placing does not.
            if let Ok(Err(cause)) = placed {
                return Err(PoolError::Thread { thread: thread + 1, cause });
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
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.inner.crews.iter().filter_map(|crew| crew.node)
    }

    /// Lets at most `threads` threads take part in a job from now on, the caller among them; the others cost nothing.
    /// More than the pool has counts as all, and 0 as the caller alone.
    pub fn restrict(&self, threads: usize) {
        self.inner.restricted.store(threads.clamp(1, self.inner.threads), Ordering::Relaxed);
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
    pub fn join<A: Send, B: Send>(&self, a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B + Send) -> (A, B) {
        self.inner.join(a, b)
    }

    /// Runs `f`, which may spawn tasks that borrow from outside, and returns when all of them have ended. The caller
    /// helps with them at the end.
    ///
    /// # Panics
    /// With the first panic of `f` or of a task, after all have ended.
    pub fn scope<'env, R>(&self, f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R) -> R {
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
    pub fn submit(&self, len: usize, body: impl Fn(usize) + Send + Sync + 'static) -> Result<Handle<()>, SubmitError> {
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
            threads: std::iter::once(inner.callers.counts(0, None)).chain(workers).collect(),
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
        f.debug_struct("Pool").field("threads", &self.inner.threads).finish_non_exhaustive()
    }
}

impl<'a> Job<'a> {
    /// At most this many threads take part, the caller among them.
    pub fn threads_max(self, threads_max: usize) -> Self {
        Self { threads_max: threads_max.max(1), ..self }
    }

    /// Only the workers of this node take part, and the caller. A node without a crew leaves the caller alone.
    pub fn on(self, node: NodeId) -> Self {
        Self { node: Some(node), ..self }
    }

    /// How urgent it is.
    pub fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// Which kind it is: the pool learns what its tasks cost.
    pub fn kind(self, kind: &'a Kind) -> Self {
        Self { kind: Some(kind), ..self }
    }

    /// Stops handing out tasks when `cancel` says so.
    pub fn cancel(self, cancel: &'a Cancel) -> Self {
        Self { cancel: Some(cancel), ..self }
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
        let shared = Indexed { init, body, finalize, len: self.len, stride, kind, cancel, verdict: Verdict::default() };
        let work = Work { data: (&raw const shared).cast(), enter: entry(&shared), base: 0, seats: 1, lasting: false };
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
fn entry<S, I, B, F>(_of: &Indexed<'_, I, B, F>) -> unsafe fn(*const (), &crate::slot::Seat<'_>) -> bool
where
    I: Fn(Member) -> S + Sync,
    B: Fn(&mut S, Range<usize>) + Sync,
    F: Fn(S) + Sync,
{
    Indexed::<I, B, F>::enter::<S>
}

impl Inner {
    fn new(config: &Config, plans: &[CrewPlan]) -> Self {
        let strategy = || config.wait.map(slackwater_wait::Choice::strategy);
        let mut next_thread = 1;
        let crews = plans
            .iter()
            .enumerate()
            .map(|(crew, plan)| {
                // The caller is one of the first crew. A pool of one thread still has a worker, which serves the queue.
                let workers = if crew == 0 { plan.threads.saturating_sub(1) } else { plan.threads };
                let workers = if plans.len() == 1 { workers.max(1) } else { workers };
                let first = next_thread;
                next_thread += workers;
                let node = (plans.len() > 1 || !config.nodes.is_empty()).then_some(plan.node.id);
                Crew::new(node, first..next_thread, config.background_max, strategy())
            })
            .collect();
        let threads = plans.iter().map(|plan| plan.threads).sum();
        Self {
            crews,
            threads,
            restricted: AtomicUsize::new(threads),
            callers: Record::new("pool submitter"),
            jobs: AtomicU64::new(0),
            alone: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            born: forks(),
        }
    }

    /// Whether this process is a fork of the one that started the pool: it has the memory but not the threads.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.born != forks()
    }

    /// The crew that takes background tasks next: the one with the shortest queue.
    pub(crate) fn quietest(&self) -> &Crew {
        let crews = self.crews.iter().filter(|crew| crew.workers() > 0);
        crews.min_by_key(|crew| crew.queued()).unwrap_or(&self.crews[0])
    }

    pub(crate) fn job(&self, len: usize) -> Job<'_> {
        Job { inner: self, len, threads_max: usize::MAX, node: None, class: Class::Latency, kind: None, cancel: None }
    }

    pub(crate) fn run(&self, len: usize, body: impl Fn(usize) + Sync) {
        if let Err(error) = self.job(len).run(body) {
            // Without a cancel handle only a panic ends a job early.
            error.resume_panic();
        }
    }

    pub(crate) fn join<A: Send, B: Send>(&self, a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B + Send) -> (A, B) {
        use std::sync::{Mutex, PoisonError};
        let (a, b) = (Mutex::new((Some(a), None)), Mutex::new((Some(b), None)));
        self.run(2, |index| {
            if index == 0 {
                let task = a.lock().unwrap_or_else(PoisonError::into_inner).0.take();
                let value = task.map(|task| task());
                a.lock().unwrap_or_else(PoisonError::into_inner).1 = value;
            } else {
                let task = b.lock().unwrap_or_else(PoisonError::into_inner).0.take();
                let value = task.map(|task| task());
                b.lock().unwrap_or_else(PoisonError::into_inner).1 = value;
            }
        });
        let (a, b) = (a.into_inner(), b.into_inner());
        let value = "both have run: each index runs once, and a panic was passed on";
        let (a, b) = (a.unwrap_or_else(PoisonError::into_inner).1, b.unwrap_or_else(PoisonError::into_inner).1);
        (a.expect(value), b.expect(value))
    }

    /// The crew of a lasting job, such as a scope's: the caller's own.
    pub(crate) fn home(&self) -> &Crew {
        &self.crews[0]
    }

    /// The member that the calling thread is in a job it submits.
    pub(crate) fn caller(&self) -> Member {
        Member::current().unwrap_or(Member { thread: 0, node: None })
    }

    /// Threads that can take part in a job of `len` tasks now.
    fn participants(&self, job: &Job<'_>, len: u32) -> usize {
        if self.is_orphaned() {
            return 1;
        }
        // More participants than CPUs would only wait for each other's time slices.
        let cpus = Cpus::current().usable as usize;
        let restricted = self.restricted.load(Ordering::Relaxed);
        job.threads_max.min(restricted).min(cpus).min(len as usize)
    }

    /// Spreads a job over the crews, takes part in it, and returns when nobody uses it any more.
    ///
    /// # Safety
    /// `work` is valid during the call, from any thread.
    unsafe fn spread(&self, job: &Job<'_>, work: Work, len: u32) {
        add(&self.jobs, 1);
        let participants = self.participants(job, len);
        let member = self.caller();
        let short = self.crews.len() == 1 && self.home().is_too_short(job.kind, job.len);
        if participants == 1 || short {
            add(&self.alone, 1);
            // SAFETY: the caller's promise.
            return unsafe { run_alone(work, len, member, &self.callers) };
        }
        let mut parts = Parts::new();
        self.deal(job, len, participants, &mut parts);
        // The crews of other nodes first: their workers have the longer way.
        for part in parts.iter_mut().rev() {
            let crew = &self.crews[part.crew];
            let work = Work { base: part.base, seats: part.seats, ..work };
            part.slot = crew.take_slot();
            if let Some(slot) = part.slot {
                // SAFETY: the slot was just taken; `work` is valid until it is retired below.
                unsafe { crew.publish(slot, work, part.len, part.places, job.class) };
                crew.summon(part.places);
            }
        }
        for part in parts.iter() {
            let crew = &self.crews[part.crew];
            match part.slot {
                // SAFETY: published above. Seat 0 is the submitter's in the crew where it has a place.
                Some(slot) if part.places < part.seats => unsafe {
                    crew.participate(slot, member, &self.callers);
                },
                Some(slot) => crew.visit(slot, member, &self.callers),
                // SAFETY: the caller's promise.
                None => unsafe { run_alone(Work { base: part.base, ..work }, part.len, member, &self.callers) },
            }
        }
        for part in parts.iter() {
            if let Some(slot) = part.slot {
                let crew = &self.crews[part.crew];
                let site = job.kind.map_or(&self.callers.idle, Kind::join_site);
                crew.retire(slot, job.class, &crew.waiting(site));
            }
        }
    }

    /// Cuts the indices into one part for each crew, in proportion to the threads that take part: the same index meets
    /// the same node each time.
    fn deal(&self, job: &Job<'_>, len: u32, participants: usize, parts: &mut Parts) {
        let mut left = participants - 1;
        for (index, crew) in self.crews.iter().enumerate() {
            // The first crew is the caller's, unless a node was asked for: then it is that node's.
            let wanted = job.node.is_none_or(|node| crew.node == Some(node));
            let places = if wanted { crew.workers().min(left) } else { 0 };
            left -= places;
            let seats = places + usize::from(parts.is_empty() && (wanted || index + 1 == self.crews.len()));
            if seats > 0 {
                parts.push(Part { crew: index, base: 0, len: 0, seats, places, slot: None });
            }
        }
        let seats: usize = parts.iter().map(|part| part.seats).sum();
        let (mut dealt, mut seated) = (0, 0);
        for part in parts.iter_mut() {
            seated += part.seats;
            let end = (u64::from(len) * seated as u64 / seats as u64) as u32;
            (part.base, part.len) = (dealt, end - dealt);
            dealt = end;
        }
    }
}

/// The part of a job that one crew gets.
#[derive(Clone, Copy, Debug)]
struct Part {
    crew: usize,
    base: u32,
    len: u32,
    /// Participants, and how many of them are workers.
    seats: usize,
    places: usize,
    slot: Option<Taken>,
}

/// Up to one part for each node, without an allocation.
#[derive(Debug)]
struct Parts {
    parts: [Option<Part>; NODES_MAX],
    len: usize,
}

impl Parts {
    fn new() -> Self {
        Self { parts: [None; NODES_MAX], len: 0 }
    }

    fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn push(&mut self, part: Part) {
        self.parts[self.len] = Some(part);
        self.len += 1;
    }

    fn iter(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().flatten()
    }

    fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Part> {
        self.parts.iter_mut().flatten()
    }
}

/// Where one worker belongs.
#[derive(Debug)]
struct Place {
    cpus: Vec<usize>,
    memory: Option<NodeId>,
}

impl Place {
    /// The place of the `seat`-th thread of a crew; in the first one the caller has seat 0.
    fn of(config: &Config, plan: &CrewPlan, seat: usize, crews: usize) -> Self {
        let cpus = match config.pin {
            Pin::Core => plan.node.cores[seat % plan.node.cores.len()].iter().take(1).copied().collect(),
            Pin::Node if crews > 1 || !config.nodes.is_empty() => plan.node.cpus(),
            Pin::Node => Vec::new(),
        };
        let memory = (config.bind_memory && crews > 1).then_some(plan.node.id);
        Self { cpus, memory }
    }

    fn take(&self) -> std::io::Result<()> {
        if !self.cpus.is_empty() {
            affinity::run_on(&self.cpus)?;
        }
        self.memory.map_or(Ok(()), affinity::allocate_on)
    }
}

static FORKS: AtomicU64 = AtomicU64::new(0);

/// How often this process came from a fork since the first pool was started.
fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

fn watch_forks() {
    static ONCE: Once = Once::new();
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    ONCE.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed between fork and exec.
        let result = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        debug_assert_eq!(result, 0, "out of memory for a fork handler");
    });
}
