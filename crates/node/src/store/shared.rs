use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::JoinHandle;

use slackwater_base::{Instant, format_duration};
use slackwater_wait::{Event, Park, now};
use slackwater_wire::{Reply, Request};

use super::StoreError;
use super::copier::Copier;
use super::core::{Asked, Core};
use super::learned::Saver;
use super::meters::Meters;
use super::open::Identity;
use super::remote::{Deliver, Served};
use super::slot::{Later, Waits};
use super::views::NewlyLate;
use crate::clock::SkippingClock;
use crate::config::Config;
use crate::disk::{Buffers, Directory, Disk, Segment};
use crate::selection::Selection;

/// What callers and the store's own threads share.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) clock: SkippingClock,
    pub(super) segment: Segment,
    pub(super) disk: Option<Ssd>,
    pub(super) pages: Selection,
    pub(super) warnings: Vec<String>,
    /// What a store has that other processes reach too.
    pub(super) served: Option<Served>,
    pub(super) identity: Identity,
    pub(super) meters: Meters,
    pub(super) waits: Waits,
    pub(super) saver: Saver,
    pub(super) copier: Copier,
    /// Memory for views of values on SSD.
    pub(super) view_buffers: Arc<Buffers>,
    core: Mutex<Core>,
    /// Threads that wait for the lock.
    waiting: AtomicUsize,
    /// Takes what is for other processes, where the store is served.
    deliver: OnceLock<Arc<dyn Deliver>>,
    /// Wakes the steward when something falls due before its next deadline.
    bell: Event,
    /// Calls are refused from here on.
    closed: AtomicBool,
    /// The store's own threads end as soon as they have nothing under way.
    ending: AtomicBool,
    /// What a thread said when it died.
    broken: OnceLock<String>,
    /// What the SSD did not take when the store was closed.
    pub(super) unwritten: AtomicU64,
}

/// The SSD side of a store.
pub(super) struct Ssd {
    pub(super) directory: Arc<Directory>,
    pub(super) disk: Disk,
    /// Records found at opening.
    pub(super) recovered: AtomicU64,
}

/// What a store is put together from.
pub(super) struct Parts {
    pub(super) config: Config,
    pub(super) core: Core,
    pub(super) segment: Segment,
    pub(super) disk: Option<Ssd>,
    pub(super) pages: Selection,
    pub(super) warnings: Vec<String>,
    pub(super) served: Option<Served>,
    pub(super) identity: Identity,
}

impl Shared {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts {
            config,
            core,
            segment,
            disk,
            pages,
            warnings,
            served,
            identity,
        } = parts;
        let clock = SkippingClock::start();
        Self {
            waits: Waits::new(config.wait),
            copier: Copier::new(config.copy_threads.count(), config.wait),
            view_buffers: Buffers::new(config.views_buffers.0 as usize),
            config,
            segment,
            disk,
            pages,
            warnings,
            served,
            identity,
            meters: Meters::default(),
            saver: Saver::new(clock.now()),
            clock,
            core: Mutex::new(core),
            waiting: AtomicUsize::new(0),
            deliver: OnceLock::new(),
            bell: Event::new(),
            closed: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            broken: OnceLock::new(),
            unwritten: AtomicU64::new(0),
        }
    }

    /// Runs `step` under the lock, then hands what it asked of the device on and wakes the steward if need be.
    ///
    /// # Errors
    /// When the store is broken, or breaks in this step.
    pub(super) fn with<T>(
        &self,
        step: impl FnOnce(&mut Core, Instant) -> T,
    ) -> Result<T, StoreError> {
        let mut core = self.lock();
        if let Some(why) = self.broken.get() {
            return Err(StoreError::Broken { why: why.clone() });
        }
        // A call after the last answer was given would wait for one for ever.
        if let Some(over) = &core.over {
            return Err(over.clone());
        }
        let now = self.clock.now();
        // A panic inside leaves the cores in an unknown state: nothing may look at them again.
        let deliver = self.deliver.get();
        let stepped = || {
            let result = step(&mut core, now);
            let told = deliver.is_some_and(|deliver| core.queue_reports(now, &**deliver));
            (result, told)
        };
        let (result, told) = match catch_unwind(AssertUnwindSafe(stepped)) {
            Ok(stepped) => stepped,
            Err(panic) => {
                let why = self.broken.get_or_init(|| panic_text(&*panic)).clone();
                drop(core);
                return Err(self.break_down(why));
            }
        };
        let mut ops = core.take_ops();
        let outbound = std::mem::take(&mut core.outbound);
        let next = core.next_deadline();
        let ring = next < core.steward_wakes;
        if ring {
            core.steward_wakes = next;
        }
        let events = core.take_rung();
        drop(core);
        if let Some(ssd) = &self.disk {
            ssd.disk.device.submit(&mut ops);
        }
        if let Some(deliver) = deliver
            && (told || !outbound.is_empty())
        {
            deliver.deliver(outbound);
        }
        if ring {
            self.ring();
        }
        if let Some((events, _dropped)) = events {
            events.ring();
        }
        Ok(result)
    }

    /// Looks at the cores, those of a closed store too; `None` when the store is broken.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Core) -> T) -> Option<T> {
        let core = self.lock();
        self.broken.get().is_none().then(|| look(&core))
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        match self.core.try_lock() {
            Ok(core) => core,
            Err(TryLockError::Poisoned(core)) => core.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                core
            }
        }
    }

    /// Takes steps under the lock until there is none, some thread waits for the lock, or the device has waited long enough for what
    /// they ask of it: the steward takes the others, with the lock free in between.
    pub(super) fn while_nobody_waits(&self, mut step: impl FnMut() -> bool) {
        for _ in 0..STEPS_A_HOLD {
            if self.is_waited_for() || !step() {
                return;
            }
        }
    }

    /// Whether some thread waits for the lock.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Has everything that is for other processes taken by `deliver` from now on.
    pub(super) fn deliver_to(&self, deliver: Arc<dyn Deliver>) {
        let first = self.deliver.set(deliver).is_ok();
        assert!(first, "a store is served once");
    }

    /// Makes a request of the master and waits for its answer, no longer than the configured deadline.
    pub(super) fn ask(&self, what: &'static str, request: Request) -> Result<Reply, StoreError> {
        match self.with(|core, now| core.ask(now, request))? {
            Asked::Now(reply) => Ok(reply),
            Asked::Later(later) => self.wait_in_time(what, later),
        }
    }

    /// Waits for an answer, no longer than the configured deadline.
    pub(super) fn wait_in_time<T>(
        &self,
        what: &'static str,
        later: Later<T>,
    ) -> Result<T, StoreError> {
        let after = self.config.deadline;
        later
            .wait_until(now() + after, self.waits.at(&self.waits.answer))
            .unwrap_or(Err(StoreError::Deadline { what, after }))
    }

    /// Whether calls are still taken.
    pub(super) fn check_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) {
            Err(StoreError::Closed)
        } else {
            Ok(())
        }
    }

    /// Refuses calls from now on. True for the first that closes.
    pub(super) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// Ends the store's own threads, and every wait.
    pub(super) fn end(&self, threads: Vec<JoinHandle<()>>) {
        self.ending.store(true, Ordering::Release);
        self.ring();
        if let Some(ssd) = &self.disk {
            ssd.disk.device.wake();
        }
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the store panicked outside its guard");
            }
        }
        self.core
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .fail_waiters(&StoreError::Closed);
    }

    /// Starts the store's own threads.
    ///
    /// # Errors
    /// When the operating system gives none; those already started end.
    pub(super) fn start(self: &Arc<Self>) -> std::io::Result<Vec<JoinHandle<()>>> {
        let mut threads = Vec::new();
        let mut spawn = |name: &str, body: fn(&Shared)| {
            let shared = Arc::clone(self);
            let builder = std::thread::Builder::new().name(name.to_owned());
            let guarded = move || {
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(&shared))) {
                    shared.break_down(panic_text(&*panic));
                }
            };
            builder.spawn(guarded).map(|thread| threads.push(thread))
        };
        let mut spawned = spawn("slack-steward", Shared::steward);
        if self.disk.is_some() && spawned.is_ok() {
            spawned = spawn("slack-disk", Shared::drive);
        }
        match spawned {
            Ok(()) => Ok(threads),
            Err(error) => {
                self.end(threads);
                Err(error)
            }
        }
    }

    /// The steward: does what falls due, and sleeps until the next thing does.
    fn steward(&self) {
        loop {
            // Taken before the look at what is due: a ring from here on ends the wait.
            let seen = self.bell.seen();
            if self.ending.load(Ordering::Acquire) {
                return;
            }
            let step = |core: &mut Core, now: Instant| {
                core.on_deadline(now);
                self.while_nobody_waits(|| core.catch_up(now));
                core.steward_wakes = core.next_deadline();
                (core.steward_wakes, core.views.take_newly_late())
            };
            let Ok((wakes, late)) = self.with(step) else {
                return;
            };
            if let Some(NewlyLate { views, key }) = late {
                let time = format_duration(self.config.views_time);
                tracing::warn!(views, %key, "views are open for more than {time}: their memory stays, and there are \
                    no further views until they end");
            }
            self.save_learned_at_times(self.clock.now());
            // No caller waits for the steward, so it never spins, whatever the strategy of the store.
            let waiting = self
                .waits
                .at(&self.waits.steward)
                .by(&Park)
                .until(self.clock.wait_until(wakes));
            // Rung or due: the next turn looks at both.
            let _ = self.bell.wait(seen, &waiting);
        }
    }

    /// Wakes the steward.
    pub(super) fn ring(&self) {
        self.bell.notify_all();
    }

    /// The disk thread: sleeps in the device and takes in what it did.
    fn drive(&self) {
        let Some(ssd) = &self.disk else { return };
        let mut done = Vec::new();
        while !self.ending.load(Ordering::Acquire) {
            if let Err(error) = ssd.disk.device.complete(&mut done) {
                self.break_down(format!("the device failed: {error}"));
                return;
            }
            if done.is_empty() {
                continue;
            }
            let step = |core: &mut Core, now: Instant| {
                core.disk_done(now, &mut done);
                self.while_nobody_waits(|| core.catch_up(now));
            };
            if self.with(step).is_err() {
                return;
            }
        }
    }

    /// Nothing the store does can be trusted any more: every wait ends, every later call is told why.
    fn break_down(&self, why: String) -> StoreError {
        tracing::error!(why, "the store is broken");
        let why = self.broken.get_or_init(|| why).clone();
        let error = StoreError::Broken { why };
        self.core
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .fail_waiters(&error);
        self.ending.store(true, Ordering::Release);
        self.ring();
        if let Some(ssd) = &self.disk {
            ssd.disk.device.wake();
        }
        error
    }
}

/// Most steps under one hold of the lock: some 3 ms.
pub(super) const STEPS_A_HOLD: usize = 32;

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
