mod admissions;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackwater_base::{Counted, Tally};
use slackwater_net::Origin;
use slackwater_wait::{Event, Seen, Site, Waiting as Wait, now};

use crate::metrics::Metrics;
use crate::resolve::LOOKUPS;
pub(crate) use admissions::AdmissionLimits;
use admissions::{Admissions, Deciding};

pub(crate) type Task = Box<dyn FnOnce() + Send>;

/// Worker threads: how many there are and what they do next.
///
/// A command starts when its category runs fewer than it has reserved, or when fewer jobs than general workers run.
/// Otherwise it queues, up to its category's limit. Batch jobs come first, then replies and callbacks, then commands
/// in the order of arrival. Decisions on admission and look-ups of names each have workers of their own and take no
/// others. Threads start when first needed; the one that became idle last is used first.
pub(crate) struct Jobs {
    shared: Arc<Pool>,
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
    /// For decisions on admission, which run nowhere else. One address never has them all, unless there is only one.
    pub admissions: usize,
    /// For looking up host names, which runs nowhere else: a resolver may take seconds for each.
    pub lookups: usize,
}

impl Workers {
    /// Upstream's proportions for a number of general workers, at least one.
    #[must_use]
    pub fn with_general(general: usize) -> Self {
        let general = general.max(1);
        let admissions = general.div_ceil(2).max(4);
        Self {
            general,
            batch: general.div_ceil(2),
            replies: general.div_ceil(8),
            admissions,
            lookups: 2,
        }
    }
}

impl Default for Workers {
    fn default() -> Self {
        Self::with_general(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

/// The limits of a category.
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
        Self {
            reserved: 0,
            queue: Some(200),
            queue_bytes: 64 << 20,
        }
    }
}

/// The queue that would take the job is full; the job was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Jobs that share the general workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Batch,
    Reply,
    Command(usize),
}

/// A job that runs; it is given back when it has ended.
enum Running {
    /// On a general worker, or one kept for its class.
    Shared {
        class: Class,
        of_class: Counted,
        of_all: Counted,
    },
    Admission(Deciding),
    Lookup(Counted),
}

struct Pool {
    state: Mutex<Queues>,
    /// Notified when nothing runs and nothing waits.
    rested: Event,
    workers: Workers,
    limit: usize,
    metrics: Arc<Metrics>,
}

struct Queues {
    categories: Vec<Category>,
    batch: VecDeque<Task>,
    replies: VecDeque<Task>,
    admissions: Admissions,
    lookups: VecDeque<Task>,
    lookups_active: Tally,
    batch_active: Tally,
    replies_active: Tally,
    active: Tally,
    arrivals: u64,
    /// Idle workers, each with the event that wakes it.
    idle: Vec<Arc<Event>>,
    threads: usize,
    stopping: bool,
}

struct Category {
    queueing: Queueing,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    active: Tally,
}

struct Waiting {
    arrival: u64,
    bytes: usize,
    task: Task,
}

/// Replies and callbacks that may wait; they are small, and each belongs to something that is itself limited.
const REPLIES: usize = 65_536;
const BATCH_JOBS: usize = 1 << 20;

pub(crate) static REST: Site = Site::new("mq worker");
pub(crate) static DRAIN: Site = Site::new("mq drain");

impl Jobs {
    pub(crate) fn new(
        workers: Workers,
        limits: AdmissionLimits,
        categories: &[Queueing],
        metrics: Arc<Metrics>,
    ) -> Self {
        let reserved: usize = categories.iter().map(|queueing| queueing.reserved).sum();
        let categories = categories
            .iter()
            .map(|queueing| Category {
                queueing: *queueing,
                waiting: VecDeque::new(),
                waiting_bytes: 0,
                active: Tally::default(),
            })
            .collect();
        let state = Queues {
            categories,
            batch: VecDeque::new(),
            replies: VecDeque::new(),
            admissions: Admissions::new(limits),
            lookups: VecDeque::new(),
            lookups_active: Tally::default(),
            batch_active: Tally::default(),
            replies_active: Tally::default(),
            active: Tally::default(),
            arrivals: 0,
            idle: Vec::new(),
            threads: 0,
            stopping: false,
        };
        let limit = workers.general
            + workers.batch
            + workers.replies
            + workers.admissions.max(1)
            + workers.lookups.max(1)
            + reserved;
        let shared = Pool {
            state: Mutex::new(state),
            rested: Event::new(),
            workers,
            limit,
            metrics,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Runs `task` under the limits of a category; `bytes` is what it holds while it waits.
    pub(crate) fn command(&self, category: usize, bytes: usize, task: Task) -> Result<(), Full> {
        let mut state = self.shared.lock();
        if state.stopping {
            return Err(Full);
        }
        // Commands that could start already have a worker that was woken for them.
        let starting = self.shared.startable(&state, category);
        let entry = &mut state.categories[category];
        let starts = entry.waiting.len() < starting;
        let over = entry
            .queueing
            .queue
            .is_some_and(|limit| entry.waiting.len() >= limit.saturating_add(starting))
            || entry.waiting_bytes + bytes > entry.queueing.queue_bytes;
        if !starts && over {
            return Err(Full);
        }
        entry.waiting_bytes += bytes;
        state.arrivals += 1;
        let arrival = state.arrivals;
        state.categories[category].waiting.push_back(Waiting {
            arrival,
            bytes,
            task,
        });
        self.shared.call_worker(state, starts);
        if !starts {
            // Tests and tools wait for this count.
            self.shared.metrics.changed().notify_all();
        }
        Ok(())
    }

    /// Runs a decision on a peer from `source`; each source has a bounded number of them.
    pub(crate) fn admission(&self, source: Origin, task: Task) -> Result<(), Full> {
        let mut state = self.shared.lock();
        if state.stopping {
            return Err(Full);
        }
        state.admissions.push(source, task)?;
        let starts = self.shared.may_decide(&state);
        self.shared.call_worker(state, starts);
        Ok(())
    }

    /// Looks a host name up.
    pub(crate) fn lookup(&self, task: Task) -> Result<(), Full> {
        let mut state = self.shared.lock();
        if state.stopping || state.lookups.len() >= LOOKUPS {
            return Err(Full);
        }
        state.lookups.push_back(task);
        let starts = self.shared.may_look_up(&state);
        self.shared.call_worker(state, starts);
        Ok(())
    }

    /// Runs a reply or an event callback.
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
        self.shared
            .lock()
            .categories
            .iter()
            .map(|category| category.waiting.len())
            .collect()
    }

    /// Waits until nothing runs and nothing waits, at most `limit`; whether that came.
    pub(crate) fn rest(&self, limit: Duration) -> bool {
        let waiting = Wait::at(&DRAIN).until(now() + limit);
        loop {
            let seen = self.shared.rested.seen();
            if self.shared.lock().is_at_rest() {
                return true;
            }
            if self.shared.rested.wait(seen, &waiting).is_err() {
                return self.shared.lock().is_at_rest();
            }
        }
    }

    /// Drops queued jobs; running ones end by themselves, and their threads with them.
    pub(crate) fn stop(&self) {
        let mut state = self.shared.lock();
        state.stopping = true;
        let mut dropped: Vec<Task> = state.batch.drain(..).collect();
        dropped.extend(std::mem::take(&mut state.replies));
        dropped.extend(state.admissions.drain());
        dropped.extend(std::mem::take(&mut state.lookups));
        for category in &mut state.categories {
            dropped.extend(category.waiting.drain(..).map(|waiting| waiting.task));
            category.waiting_bytes = 0;
        }
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        // Dropping a job may run its owner's code, which may come back here.
        drop(dropped);
        for wake in idle {
            wake.notify_all();
        }
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_start(&self, state: &Queues, class: Class) -> bool {
        let kept = match class {
            Class::Batch => state.batch_active.count() < self.workers.batch,
            Class::Reply => state.replies_active.count() < self.workers.replies,
            Class::Command(category) => {
                let category = &state.categories[category];
                category.active.count() < category.queueing.reserved
            }
        };
        kept || state.active.count() < self.workers.general
    }

    /// Commands of a category that could start now.
    fn startable(&self, state: &Queues, category: usize) -> usize {
        let entry = &state.categories[category];
        let reserved = entry.queueing.reserved.saturating_sub(entry.active.count());
        reserved.max(self.workers.general.saturating_sub(state.active.count()))
    }

    fn may_decide(&self, state: &Queues) -> bool {
        state.admissions.has_next() && state.admissions.active() < self.workers.admissions.max(1)
    }

    fn may_look_up(&self, state: &Queues) -> bool {
        !state.lookups.is_empty() && state.lookups_active.count() < self.workers.lookups.max(1)
    }

    /// Whether a job waits that could start now.
    fn has_startable(&self, state: &Queues) -> bool {
        (!state.batch.is_empty() && self.may_start(state, Class::Batch))
            || (!state.replies.is_empty() && self.may_start(state, Class::Reply))
            || self.may_decide(state)
            || self.may_look_up(state)
            || (0..state.categories.len()).any(|category| {
                !state.categories[category].waiting.is_empty()
                    && self.may_start(state, Class::Command(category))
            })
    }

    /// Wakes the worker that became idle last, or starts one.
    fn call_worker(self: &Arc<Self>, mut state: MutexGuard<'_, Queues>, starts: bool) {
        if !starts {
            return;
        }
        if let Some(wake) = state.idle.pop() {
            drop(state);
            wake.notify_all();
            return;
        }
        if state.threads < self.limit {
            state.threads += 1;
            drop(state);
            let shared = Arc::clone(self);
            let spawned = std::thread::Builder::new()
                .name("mq-worker".into())
                .spawn(move || shared.work());
            if spawned.is_err() {
                // Without a new thread the job waits for one that is busy.
                self.lock().threads -= 1;
            }
        }
    }

    fn work(self: &Arc<Self>) {
        let wake = Arc::new(Event::new());
        let mut state = self.lock();
        let mut has_ended_one = false;
        loop {
            if let Some((running, task)) = self.next(&mut state) {
                // One job that ends can make room for two: a reserved worker is free again, and a general one.
                let starts = has_ended_one && self.has_startable(&state);
                self.call_worker(state, starts);
                if catch_unwind(AssertUnwindSafe(task)).is_err() {
                    self.metrics.rare(&self.metrics.jobs_panicked);
                }
                state = self.lock();
                state.ended(running);
                has_ended_one = true;
                if state.is_at_rest() {
                    self.rested.notify_all();
                }
                continue;
            }
            if state.stopping {
                state.threads -= 1;
                return;
            }
            // Taken before any thread can find the wake, so that no call is missed.
            let seen: Seen = wake.seen();
            state.idle.push(Arc::clone(&wake));
            drop(state);
            wake.wait(seen, &Wait::at(&REST))
                .expect("nobody closes it, and it has no deadline");
            state = self.lock();
            has_ended_one = false;
        }
    }

    /// Begins the job that is next.
    fn next(&self, state: &mut Queues) -> Option<(Running, Task)> {
        if !state.batch.is_empty() && self.may_start(state, Class::Batch) {
            let task = state.batch.pop_front()?;
            return Some((state.began(Class::Batch), task));
        }
        if !state.replies.is_empty() && self.may_start(state, Class::Reply) {
            let task = state.replies.pop_front()?;
            return Some((state.began(Class::Reply), task));
        }
        if self.may_decide(state) {
            let (deciding, task) = state.admissions.next()?;
            return Some((Running::Admission(deciding), task));
        }
        if self.may_look_up(state) {
            let task = state.lookups.pop_front()?;
            return Some((Running::Lookup(state.lookups_active.add()), task));
        }
        let startable = (0..state.categories.len())
            .filter(|index| self.may_start(state, Class::Command(*index)));
        let first = startable
            .filter_map(|index| Some((state.categories[index].waiting.front()?.arrival, index)))
            .min();
        let (_, index) = first?;
        let category = &mut state.categories[index];
        let waiting = category.waiting.pop_front()?;
        category.waiting_bytes -= waiting.bytes;
        if !category.waiting.is_empty() {
            self.metrics.changed().notify_all();
        }
        Some((state.began(Class::Command(index)), waiting.task))
    }
}

impl Queues {
    fn is_at_rest(&self) -> bool {
        self.active.count() == 0
            && self.batch.is_empty()
            && self.replies.is_empty()
            && self.admissions.is_at_rest()
            && self
                .categories
                .iter()
                .all(|category| category.waiting.is_empty())
    }

    fn began(&mut self, class: Class) -> Running {
        Running::Shared {
            class,
            of_class: self.running_of(class).add(),
            of_all: self.active.add(),
        }
    }

    fn ended(&mut self, running: Running) {
        match running {
            Running::Shared {
                class,
                of_class,
                of_all,
            } => {
                self.running_of(class).remove(of_class);
                self.active.remove(of_all);
            }
            Running::Admission(deciding) => self.admissions.ended(deciding),
            Running::Lookup(counted) => self.lookups_active.remove(counted),
        }
    }

    /// The jobs of a class that run.
    fn running_of(&mut self, class: Class) -> &mut Tally {
        match class {
            Class::Batch => &mut self.batch_active,
            Class::Reply => &mut self.replies_active,
            Class::Command(category) => &mut self.categories[category].active,
        }
    }
}

#[cfg(test)]
mod tests;
