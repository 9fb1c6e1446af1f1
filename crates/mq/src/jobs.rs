use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::metrics::Metrics;

pub(crate) type Task = Box<dyn FnOnce() + Send>;

/// Worker threads: how many there are and what they do next.
///
/// A command starts when its category runs fewer than it has reserved, or when fewer jobs than general workers run.
/// Otherwise it queues, up to its category's limit. Batch jobs come first, then replies and callbacks, then commands
/// in the order of arrival. Threads start when first needed; the one that rested last works first.
pub(crate) struct Jobs {
    shared: Arc<Shared>,
}

/// How many workers there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// For everything.
    pub general: usize,
    /// Kept for batches beside the general ones.
    pub batch: usize,
    /// Kept for replies and callbacks beside the general ones.
    pub replies: usize,
}

impl Workers {
    /// Upstream's proportions for a number of general workers, at least one.
    #[must_use]
    pub fn with_general(general: usize) -> Self {
        let general = general.max(1);
        Self { general, batch: general.div_ceil(2), replies: general.div_ceil(8) }
    }
}

impl Default for Workers {
    fn default() -> Self {
        Self::with_general(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

/// What a category may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queueing {
    /// Workers kept for it beside the general ones.
    pub reserved: usize,
    /// Commands that may wait; none for no limit but the bytes.
    pub queue: Option<usize>,
    /// Bytes of waiting commands.
    pub queue_bytes: usize,
}

impl Default for Queueing {
    fn default() -> Self {
        Self { reserved: 0, queue: Some(200), queue_bytes: 64 << 20 }
    }
}

/// The queue that would take the job is full; the job was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Batch,
    Reply,
    Command(usize),
}

struct Shared {
    state: Mutex<State>,
    rested: Condvar,
    workers: Workers,
    limit: usize,
    metrics: Arc<Metrics>,
}

struct State {
    categories: Vec<Category>,
    batch: VecDeque<Task>,
    replies: VecDeque<Task>,
    batch_active: usize,
    replies_active: usize,
    active: usize,
    arrivals: u64,
    idle: Vec<Arc<Bed>>,
    threads: usize,
    stopping: bool,
}

struct Category {
    queueing: Queueing,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    active: usize,
}

struct Waiting {
    arrival: u64,
    bytes: usize,
    task: Task,
}

/// Where one worker rests.
struct Bed {
    called: Mutex<bool>,
    changed: Condvar,
}

/// Replies and callbacks that may wait; they are small, and each belongs to something that is itself limited.
const REPLIES: usize = 65_536;
const BATCH_JOBS: usize = 1 << 20;

impl Jobs {
    pub(crate) fn new(workers: Workers, categories: &[Queueing], metrics: Arc<Metrics>) -> Self {
        let reserved: usize = categories.iter().map(|queueing| queueing.reserved).sum();
        let categories = categories
            .iter()
            .map(|queueing| Category { queueing: *queueing, waiting: VecDeque::new(), waiting_bytes: 0, active: 0 })
            .collect();
        let state = State {
            categories,
            batch: VecDeque::new(),
            replies: VecDeque::new(),
            batch_active: 0,
            replies_active: 0,
            active: 0,
            arrivals: 0,
            idle: Vec::new(),
            threads: 0,
            stopping: false,
        };
        let limit = workers.general + workers.batch + workers.replies + reserved;
        let shared = Shared { state: Mutex::new(state), rested: Condvar::new(), workers, limit, metrics };
        Self { shared: Arc::new(shared) }
    }

    /// Runs `task` under the limits of a category; `bytes` is what it holds while it waits.
    pub(crate) fn command(&self, category: usize, bytes: usize, task: Task) -> Result<(), Full> {
        let mut state = self.shared.lock();
        if state.stopping {
            return Err(Full);
        }
        let starts =
            self.shared.may_start(&state, Class::Command(category)) && state.categories[category].waiting.is_empty();
        let entry = &mut state.categories[category];
        let over = entry.queueing.queue.is_some_and(|limit| entry.waiting.len() >= limit)
            || entry.waiting_bytes + bytes > entry.queueing.queue_bytes;
        if !starts && over {
            return Err(Full);
        }
        entry.waiting_bytes += bytes;
        state.arrivals += 1;
        let arrival = state.arrivals;
        state.categories[category].waiting.push_back(Waiting { arrival, bytes, task });
        self.shared.call_worker(state, starts);
        Ok(())
    }

    /// Runs a reply, an admission or an event callback.
    pub(crate) fn reply(&self, task: Task) -> Result<(), Full> {
        let mut state = self.shared.lock();
        if state.stopping || state.replies.len() >= REPLIES {
            return Err(Full);
        }
        state.replies.push_back(task);
        let starts = self.shared.may_start(&state, Class::Reply);
        self.shared.call_worker(state, starts);
        Ok(())
    }

    /// Runs a job of a batch.
    pub(crate) fn batch(&self, task: Task) -> Result<(), Full> {
        let mut state = self.shared.lock();
        if state.stopping || state.batch.len() >= BATCH_JOBS {
            return Err(Full);
        }
        state.batch.push_back(task);
        let starts = self.shared.may_start(&state, Class::Batch);
        self.shared.call_worker(state, starts);
        Ok(())
    }

    /// Commands that wait in each category.
    pub(crate) fn waiting(&self) -> Vec<usize> {
        self.shared.lock().categories.iter().map(|category| category.waiting.len()).collect()
    }

    /// Waits until nothing runs and nothing waits, at most `limit`; whether that came.
    pub(crate) fn rest(&self, limit: Duration) -> bool {
        let state = self.shared.lock();
        let (state, _) = self
            .shared
            .rested
            .wait_timeout_while(state, limit, |state| !state.is_at_rest())
            .unwrap_or_else(PoisonError::into_inner);
        state.is_at_rest()
    }

    /// Drops what waits; what runs ends by itself and its thread with it.
    pub(crate) fn stop(&self) {
        let mut state = self.shared.lock();
        state.stopping = true;
        let mut dropped: Vec<Task> = state.batch.drain(..).collect();
        dropped.extend(state.replies.drain(..).collect::<Vec<_>>());
        for category in &mut state.categories {
            dropped.extend(category.waiting.drain(..).map(|waiting| waiting.task));
            category.waiting_bytes = 0;
        }
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        // Dropping a job may run its owner's code, which may come back here.
        drop(dropped);
        idle.iter().for_each(|bed| bed.call());
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_start(&self, state: &State, class: Class) -> bool {
        let kept = match class {
            Class::Batch => state.batch_active < self.workers.batch,
            Class::Reply => state.replies_active < self.workers.replies,
            Class::Command(category) => {
                let category = &state.categories[category];
                category.active < category.queueing.reserved
            }
        };
        kept || state.active < self.workers.general
    }

    /// Wakes the worker that rested last, or starts one.
    fn call_worker(self: &Arc<Self>, mut state: MutexGuard<'_, State>, starts: bool) {
        if !starts {
            return;
        }
        if let Some(bed) = state.idle.pop() {
            drop(state);
            return bed.call();
        }
        if state.threads < self.limit {
            state.threads += 1;
            drop(state);
            let shared = Arc::clone(self);
            let spawned = std::thread::Builder::new().name("mq-worker".into()).spawn(move || shared.work());
            if spawned.is_err() {
                // Without a new thread the job waits for one that is busy.
                self.lock().threads -= 1;
            }
        }
    }

    fn work(&self) {
        let bed = Arc::new(Bed { called: Mutex::new(false), changed: Condvar::new() });
        let mut state = self.lock();
        loop {
            if let Some((class, task)) = self.next(&mut state) {
                state.began(class);
                drop(state);
                if catch_unwind(AssertUnwindSafe(task)).is_err() {
                    self.metrics.jobs_panicked.add(1);
                }
                state = self.lock();
                state.ended(class);
                if state.is_at_rest() {
                    self.rested.notify_all();
                }
                continue;
            }
            if state.stopping {
                state.threads -= 1;
                return;
            }
            state.idle.push(Arc::clone(&bed));
            drop(state);
            bed.rest();
            state = self.lock();
        }
    }

    fn next(&self, state: &mut State) -> Option<(Class, Task)> {
        if !state.batch.is_empty() && self.may_start(state, Class::Batch) {
            return state.batch.pop_front().map(|task| (Class::Batch, task));
        }
        if !state.replies.is_empty() && self.may_start(state, Class::Reply) {
            return state.replies.pop_front().map(|task| (Class::Reply, task));
        }
        let startable = (0..state.categories.len()).filter(|index| self.may_start(state, Class::Command(*index)));
        let first = startable.filter_map(|index| Some((state.categories[index].waiting.front()?.arrival, index))).min();
        let (_, index) = first?;
        let category = &mut state.categories[index];
        let waiting = category.waiting.pop_front()?;
        category.waiting_bytes -= waiting.bytes;
        Some((Class::Command(index), waiting.task))
    }
}

impl State {
    fn is_at_rest(&self) -> bool {
        self.active == 0
            && self.batch.is_empty()
            && self.replies.is_empty()
            && self.categories.iter().all(|category| category.waiting.is_empty())
    }

    fn began(&mut self, class: Class) {
        self.active += 1;
        *self.active_of(class) += 1;
    }

    fn ended(&mut self, class: Class) {
        self.active -= 1;
        *self.active_of(class) -= 1;
    }

    fn active_of(&mut self, class: Class) -> &mut usize {
        match class {
            Class::Batch => &mut self.batch_active,
            Class::Reply => &mut self.replies_active,
            Class::Command(category) => &mut self.categories[category].active,
        }
    }
}

impl Bed {
    fn call(&self) {
        *self.called.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    fn rest(&self) {
        let called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        let mut called = self.changed.wait_while(called, |called| !*called).unwrap_or_else(PoisonError::into_inner);
        *called = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn jobs(general: usize, categories: &[Queueing]) -> Jobs {
        let workers = Workers { general, batch: 1, replies: 1 };
        Jobs::new(workers, categories, Arc::new(Metrics::default()))
    }

    #[test]
    fn a_full_queue_refuses_and_another_category_goes_on() {
        let one = Queueing { queue: Some(1), ..Queueing::default() };
        let reserved = Queueing { reserved: 1, ..Queueing::default() };
        let jobs = jobs(1, &[one, reserved]);
        let (release, held) = channel::<()>();
        let (began, begun) = channel();
        jobs.command(
            0,
            0,
            Box::new(move || {
                began.send(()).unwrap();
                let _ = held.recv();
            }),
        )
        .unwrap();
        begun.recv_timeout(LONG).unwrap();
        assert_eq!(jobs.command(0, 0, Box::new(|| {})), Ok(()));
        assert_eq!(jobs.command(0, 0, Box::new(|| {})), Err(Full));
        assert_eq!(jobs.waiting(), [1, 0]);
        let (done, finished) = channel();
        jobs.command(1, 0, Box::new(move || done.send(()).unwrap())).unwrap();
        finished.recv_timeout(LONG).expect("its reserved worker runs it");
        release.send(()).unwrap();
        assert!(jobs.rest(LONG));
        assert_eq!(jobs.waiting(), [0, 0]);
    }

    #[test]
    fn queues_are_bounded_in_bytes() {
        let jobs = jobs(1, &[Queueing { queue: None, queue_bytes: 100, ..Queueing::default() }]);
        let (release, held) = channel::<()>();
        let (began, begun) = channel();
        jobs.command(
            0,
            0,
            Box::new(move || {
                began.send(()).unwrap();
                let _ = held.recv();
            }),
        )
        .unwrap();
        begun.recv_timeout(LONG).unwrap();
        assert_eq!(jobs.command(0, 60, Box::new(|| {})), Ok(()));
        assert_eq!(jobs.command(0, 60, Box::new(|| {})), Err(Full));
        drop(release);
        assert!(jobs.rest(LONG));
    }

    #[test]
    fn a_reply_overtakes_a_waiting_command() {
        let jobs = jobs(1, &[Queueing::default()]);
        let (release, held) = channel::<()>();
        let (said, order) = channel();
        let (began, begun) = channel();
        jobs.command(
            0,
            0,
            Box::new(move || {
                began.send(()).unwrap();
                let _ = held.recv();
            }),
        )
        .unwrap();
        begun.recv_timeout(LONG).unwrap();
        let say = |word: &'static str| {
            let said = said.clone();
            Box::new(move || said.send(word).unwrap()) as Task
        };
        jobs.command(0, 0, say("command")).unwrap();
        jobs.reply(say("reply")).unwrap();
        assert_eq!(order.recv_timeout(LONG), Ok("reply"));
        drop(release);
        assert_eq!(order.recv_timeout(LONG), Ok("command"));
    }

    #[test]
    fn a_panic_ends_the_job_and_not_the_worker() {
        let metrics = Arc::new(Metrics::default());
        let jobs = Jobs::new(Workers::with_general(1), &[Queueing::default()], Arc::clone(&metrics));
        jobs.command(0, 0, Box::new(|| panic!("on purpose"))).unwrap();
        assert!(jobs.rest(LONG));
        let (done, finished) = channel();
        jobs.command(0, 0, Box::new(move || done.send(()).unwrap())).unwrap();
        finished.recv_timeout(LONG).unwrap();
        assert_eq!(metrics.jobs_panicked.get(), 1);
    }

    #[test]
    fn stopping_drops_what_waits() {
        let jobs = jobs(1, &[Queueing::default()]);
        let (release, held) = channel::<()>();
        let (began, begun) = channel();
        jobs.command(
            0,
            0,
            Box::new(move || {
                began.send(()).unwrap();
                let _ = held.recv();
            }),
        )
        .unwrap();
        begun.recv_timeout(LONG).unwrap();
        let dropped = Arc::new(());
        let inside = Arc::clone(&dropped);
        jobs.command(0, 0, Box::new(move || drop(inside))).unwrap();
        jobs.stop();
        assert_eq!(Arc::strong_count(&dropped), 1);
        assert_eq!(jobs.command(0, 0, Box::new(|| {})), Err(Full));
        drop(release);
    }
}
