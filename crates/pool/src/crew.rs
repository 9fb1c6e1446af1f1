use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64 as Counter, Ordering};

use crossbeam_utils::CachePadded;
use slackwater_wait::{Costs, Event, Wait, Waiting, free_cpus};

use crate::affinity_guard::AffinityGuard;
use crate::job::{Class, Kind, discard};
use crate::member::Member;
use crate::permits::Permits;
use crate::record::{Record, add};
use crate::slot::{JobSlot, PublishedJob, Seat, Source};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard};
use slackwater_wait::NumaId;

/// Jobs of one crew at a time; further submitters run theirs alone.
const SLOTS: usize = if cfg!(loom) { 1 } else { 32 };

/// A background task: no thread waits for it now.
pub(crate) type Task = Box<dyn FnOnce() + Send>;

/// The threads of one NUMA node, with the jobs published to them.
#[derive(Debug)]
pub(crate) struct Crew {
    pub(crate) node: Option<NumaId>,
    /// The thread index of the first worker in the pool.
    first_thread: usize,
    /// By strategy of the pool; the process's if `None`.
    strategy: Option<Box<dyn Wait>>,
    /// Something was published.
    event: Event,
    /// Idle workers: they spin on the event, or sleep on it.
    idle: CachePadded<AtomicU32>,
    /// Free slots, one bit each.
    free: CachePadded<AtomicU64>,
    /// Slots with an open door, by class. A hint: the door decides.
    open: [CachePadded<AtomicU64>; 2],
    slots: Box<[JobSlot]>,
    background: Background,
    pub(crate) records: Box<[CachePadded<Record>]>,
    wakes: Counter,
}

/// The bounded queue of tasks, and how many run.
struct Background {
    tasks: Mutex<VecDeque<Task>>,
    /// Length of the queue, to be read without the lock.
    len: AtomicUsize,
    permits: Permits,
    len_max: usize,
}

/// One thread of the crew.
#[derive(Debug)]
struct Worker<'a> {
    member: Member,
    record: &'a Record,
    /// The slot at which it begins to search for open doors.
    first_slot: u32,
    affinity: AffinityGuard,
}

/// A slot taken for one job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken(usize);

impl Crew {
    pub(crate) fn new(
        node: Option<NumaId>,
        threads: std::ops::Range<usize>,
        background_max: usize,
        strategy: Option<Box<dyn Wait>>,
    ) -> Self {
        let workers = threads.len();
        Self {
            node,
            first_thread: threads.start,
            strategy,
            event: Event::new(),
            idle: CachePadded::new(AtomicU32::new(0)),
            free: CachePadded::new(AtomicU64::new((1 << SLOTS) - 1)),
            open: std::array::from_fn(|_| CachePadded::new(AtomicU64::new(0))),
            // One seat more than workers: the caller's.
            slots: (0..SLOTS).map(|_| JobSlot::new(workers + 1)).collect(),
            background: Background {
                tasks: Mutex::new(VecDeque::new()),
                len: AtomicUsize::new(0),
                len_max: background_max,
                // Half of the workers are kept for jobs that a thread waits for.
                permits: Permits::new(workers.div_ceil(2)),
            },
            records: (0..workers)
                .map(|_| CachePadded::new(Record::new("pool worker idle")))
                .collect(),
            wakes: Counter::new(0),
        }
    }

    pub(crate) fn workers(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn thread_index(&self, worker: usize) -> usize {
        self.first_thread + worker
    }

    pub(crate) fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::Relaxed)
    }

    /// What worker `worker` does until the crew is closed.
    pub(crate) fn work(&self, worker: usize) {
        let mut worker = Worker {
            member: Member {
                thread: self.thread_index(worker),
                node: self.node,
            },
            record: &self.records[worker],
            first_slot: 0,
            affinity: AffinityGuard::default(),
        };
        loop {
            let seen = self.event.seen();
            if self.event.is_closed() {
                return;
            }
            if self.serve_jobs(&mut worker) || self.serve_background(&worker) {
                continue;
            }
            self.idle.fetch_add(1, Ordering::Relaxed);
            // Closed or not: the loop looks.
            let _ = self.event.wait(
                seen,
                &self
                    .waiting(&worker.record.idle)
                    .arranging(&worker.affinity),
            );
            self.idle.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A wait by the crew's strategy.
    pub(crate) fn waiting<'a>(&'a self, site: &'a slackwater_wait::Site) -> Waiting<'a> {
        match &self.strategy {
            Some(strategy) => Waiting::at(site).by(&**strategy),
            None => Waiting::at(site),
        }
    }

    pub(crate) fn close(&self) {
        self.event.close();
    }

    /// Whether a worker is awake and has nothing to do.
    pub(crate) fn is_watched(&self) -> bool {
        self.idle.load(Ordering::Relaxed) > self.event.sleepers()
    }

    /// Whether a job of `len` tasks of this kind would be over before a sleeper is awake.
    pub(crate) fn is_too_short(&self, kind: Option<&Kind>, len: usize) -> bool {
        let Some(task_nanos) = kind.and_then(Kind::task_nanos) else {
            return false;
        };
        // A helper that comes after W saves half of what is left then; waking it costs the caller some of W as well.
        task_nanos * len as f64 <= Costs::now().wake.as_nanos() as f64 * 1.25 && !self.is_watched()
    }

    /// Takes a free slot; `None` if there is none.
    pub(crate) fn take_slot(&self) -> Option<Taken> {
        let mut free = self.free.load(Ordering::Relaxed);
        while free != 0 {
            let slot = free.trailing_zeros();
            match self.free.compare_exchange_weak(
                free,
                free & !(1 << slot),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(Taken(slot as usize)),
                Err(now) => free = now,
            }
        }
        None
    }

    /// Opens the door of a job. Workers come when they are summoned.
    ///
    /// # Safety
    /// `taken` has not been published since it was taken, and what `work` points at stays valid until
    /// [`Crew::retire`] has returned.
    pub(crate) unsafe fn publish(
        &self,
        taken: Taken,
        work: PublishedJob,
        len: u32,
        places: usize,
        class: Class,
    ) {
        // SAFETY: the caller's promises are those of `JobSlot::publish`; the door is found empty in `retire`.
        unsafe { self.slots[taken.0].publish(work, len, places) };
        self.open[class as usize].fetch_or(1 << taken.0, Ordering::Release);
    }

    /// Makes `count` workers come: those awake see the event, sleepers are woken as far as CPUs are free.
    pub(crate) fn summon(&self, count: usize) {
        let woken = self.event.notify_by(|asleep| {
            let awake = self.idle.load(Ordering::Relaxed).saturating_sub(asleep);
            (count as u32).saturating_sub(awake).min(free_cpus())
        });
        add(&self.wakes, woken as u64);
    }

    /// Takes part in a published job as its submitter.
    ///
    /// # Safety
    /// The caller published `taken` and has not retired it.
    pub(crate) unsafe fn participate(&self, taken: Taken, member: Member, record: &Record) -> bool {
        let slot = &self.slots[taken.0];
        // SAFETY: the caller published the job, so its work is there and what it points at is alive.
        unsafe {
            let work = slot.work();
            let from = Source::Shared {
                ranges: &slot.ranges,
                seat: 0,
                among: work.seats,
            };
            (work.enter)(
                work.data,
                &Seat {
                    from,
                    base: work.base,
                    member,
                    record,
                },
            )
        }
    }

    /// Takes part in a job published to another crew, if there is a place.
    pub(crate) fn visit(&self, taken: Taken, member: Member, record: &Record) {
        self.enter(&self.slots[taken.0], member, record);
    }

    /// Ends a job: closes the door, waits until all participants have left, and frees the slot.
    pub(crate) fn retire(&self, taken: Taken, class: Class, waiting: &Waiting<'_>) {
        let (slot, bit) = (&self.slots[taken.0], 1 << taken.0);
        slot.door.close();
        self.open[class as usize].fetch_and(!bit, Ordering::Relaxed);
        slot.door.wait_empty(waiting);
        self.free.fetch_or(bit, Ordering::Release);
    }

    /// Looks through the open doors for one to enter, urgent ones first; says whether there was anything to do.
    fn serve_jobs(&self, worker: &mut Worker<'_>) -> bool {
        for class in &self.open {
            let open = class.load(Ordering::Acquire);
            // Begin after the one served last, so that several submitters get their turn.
            let mut turned = open.rotate_right(worker.first_slot);
            while turned != 0 {
                let at = (turned.trailing_zeros() + worker.first_slot) % 64;
                turned &= turned - 1;
                if turned != 0 {
                    self.pass_on();
                }
                let slot = &self.slots[at as usize];
                add(
                    &worker.record.moves,
                    u64::from(worker.affinity.meet(slot.submitter_cpu())),
                );
                if self.enter(slot, worker.member, worker.record) {
                    worker.first_slot = (at + 1) % 64;
                    return true;
                }
            }
        }
        false
    }

    /// More is open than this worker can serve: two submitters may have counted on the same watcher.
    fn pass_on(&self) {
        if self.event.sleepers() > 0 && !self.is_watched() && free_cpus() > 0 {
            add(&self.wakes, self.event.notify(1) as u64);
        }
    }

    /// Takes part in the job of `slot`, if there is a place; says whether there was anything to do.
    fn enter(&self, slot: &JobSlot, member: Member, record: &Record) -> bool {
        let Some(places) = slot.door.join() else {
            return false;
        };
        // SAFETY: inside the door, so the work is there and what it points at is alive.
        let (work, found) = unsafe {
            let work = slot.work();
            let from = Source::Shared {
                ranges: &slot.ranges,
                seat: work.seats - places,
                among: work.seats,
            };
            (
                work,
                (work.enter)(
                    work.data,
                    &Seat {
                        from,
                        base: work.base,
                        member,
                        record,
                    },
                ),
            )
        };
        if work.lasting {
            slot.door.step_out();
        } else {
            slot.door.leave();
        }
        found
    }

    /// Queues a task; gives it back when the queue is full.
    pub(crate) fn enqueue(&self, task: Task) -> Result<(), Task> {
        {
            let mut tasks = self.background.lock();
            if tasks.len() >= self.background.len_max {
                return Err(task);
            }
            tasks.push_back(task);
            self.background.len.store(tasks.len(), Ordering::Release);
        }
        // A watcher may be on its way to a job, so one sleeper is woken in any case.
        add(&self.wakes, self.event.notify(1) as u64);
        Ok(())
    }

    /// The most background tasks that wait.
    pub(crate) fn queue_max(&self) -> usize {
        self.background.len_max
    }

    pub(crate) fn queued(&self) -> usize {
        self.background.len.load(Ordering::Relaxed)
    }

    /// Runs one background task, if there is one and few enough run already.
    fn serve_background(&self, worker: &Worker<'_>) -> bool {
        let background = &self.background;
        if background.len.load(Ordering::Acquire) == 0 {
            return false;
        }
        if !background.permits.take() {
            return false;
        }
        let task = background.pop();
        let found = task.is_some();
        if let Some(task) = task {
            add(&worker.record.background, 1);
            let _inside = worker.member.enter();
            // Tasks catch their own panics. This is a panic of the destructor of a result that no thread waits for; the
            // panic hook has reported it.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(task)) {
                discard(payload);
            }
        }
        background.permits.give_back();
        found
    }

    /// Drops the queued tasks: a wait for one of them ends as cancelled.
    pub(crate) fn drop_queued(&self) {
        let tasks = std::mem::take(&mut *self.background.lock());
        self.background.len.store(0, Ordering::Release);
        drop(tasks);
    }
}

impl Background {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Task>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pop(&self) -> Option<Task> {
        let mut tasks = self.lock();
        let task = tasks.pop_front();
        self.len.store(tasks.len(), Ordering::Release);
        task
    }
}

impl std::fmt::Debug for Background {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Background")
            .field("len", &self.len)
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

/// Runs a part of a job alone.
///
/// # Safety
/// What `work` points at is alive for the whole call.
pub(crate) unsafe fn run_alone(work: PublishedJob, len: u32, member: Member, record: &Record) {
    let seat = Seat {
        from: Source::Alone {
            left: Cell::new((0, len)),
        },
        base: work.base,
        member,
        record,
    };
    // SAFETY: the caller's promise.
    unsafe { (work.enter)(work.data, &seat) };
}
