//! Every interleaving of a job with its workers, of submitters with the slots, and of threads with a queue, searched by
//! loom: each index runs once, a job's borrow outlives every use of it, and no task is forgotten. A lost wake-up shows
//! as a deadlock; a use after the borrow, or two owners of a slot, as a data race.

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use slackwater_base::Instant;
use slackwater_wait::{Event, Park, Site, Waiting};

use crate::claim::{Chunk, Ranges};
use crate::crew::Crew;
use crate::door::Door;
use crate::job::Class;
use crate::lane::Lane;
use crate::member::Member;
use crate::permits::Permits;
use crate::record::Record;
use crate::slot::{PublishedJob, Seat};

static SITE: Site = Site::new("model");

struct Job {
    door: Door,
    ranges: Ranges,
    seats: usize,
    runs: [AtomicU32; LEN as usize],
    /// In place of what the job borrows from its submitter: loom reports a write concurrent with a read.
    borrowed: UnsafeCell<u32>,
}

// SAFETY: loom checks every access to `borrowed`; that is the point of the model.
unsafe impl Sync for Job {}
// SAFETY: as above.
unsafe impl Send for Job {}

const LEN: u32 = 3;

impl Job {
    fn new(seats: usize) -> Self {
        Self {
            door: Door::new(),
            ranges: Ranges::new(seats),
            seats,
            runs: std::array::from_fn(|_| AtomicU32::new(0)),
            borrowed: UnsafeCell::new(0),
        }
    }

    fn participate(&self, seat: usize) {
        let claim = || {
            self.ranges
                .own(seat, Chunk::UNKNOWN)
                .or_else(|| self.ranges.steal(seat, self.seats, Chunk::UNKNOWN))
        };
        while let Some(range) = claim() {
            // SAFETY: the submitter writes only when no participant is inside.
            self.borrowed
                .with(|borrowed| assert_eq!(unsafe { *borrowed }, 1));
            for index in range {
                self.runs[index as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn search(seats: usize) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(if seats > 2 { 2 } else { 4 });
    builder.check(move || {
        let job = Arc::new(Job::new(seats));
        // SAFETY: the job is not published yet.
        job.borrowed.with_mut(|borrowed| unsafe { *borrowed = 1 });
        job.ranges.deal(LEN, seats);
        let workers: Vec<_> = (1..seats)
            .map(|_| {
                let job = Arc::clone(&job);
                thread::spawn(move || {
                    if let Some(places) = job.door.join() {
                        job.participate(seats - places);
                        job.door.leave();
                    }
                })
            })
            .collect();
        job.door.open(seats - 1);
        job.participate(0);
        job.door.close();
        job.door.wait_empty(&Waiting::at(&SITE).by(&Park));
        // SAFETY: everybody has left.
        job.borrowed.with_mut(|borrowed| unsafe { *borrowed = 2 });
        assert!(
            job.runs
                .iter()
                .all(|runs| runs.load(Ordering::Relaxed) == 1)
        );
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

#[test]
fn a_job_of_two_runs_each_index_once_before_its_borrow_ends() {
    search(2);
}

#[test]
fn a_job_of_three_runs_each_index_once_before_its_borrow_ends() {
    search(3);
}

/// A worker that found no permit once raised the count for a moment; the holder of the permit, looking once more, saw none
/// either, and both parked although a task was queued.
#[test]
fn a_task_is_not_forgotten_by_two_workers_with_one_permit() {
    struct Queue {
        event: Event,
        permits: Permits,
        tasks: Mutex<u32>,
        done: AtomicU32,
    }
    const TASKS: u32 = 2;
    let work = |queue: &Queue| loop {
        let seen = queue.event.seen();
        if queue.event.is_closed() {
            return;
        }
        if *queue.tasks.lock().unwrap() > 0 && queue.permits.take() {
            let mut tasks = queue.tasks.lock().unwrap();
            let found = *tasks > 0;
            *tasks -= u32::from(found);
            drop(tasks);
            queue.permits.give_back();
            if found {
                if queue.done.fetch_add(1, Ordering::Relaxed) + 1 == TASKS {
                    queue.event.close();
                }
                continue;
            }
        }
        let _ = queue.event.wait(seen, &Waiting::at(&SITE).by(&Park));
    };
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let queue = Arc::new(Queue {
            event: Event::new(),
            permits: Permits::new(1),
            tasks: Mutex::new(TASKS),
            done: AtomicU32::new(0),
        });
        let other = Arc::clone(&queue);
        let worker = thread::spawn(move || work(&other));
        work(&queue);
        worker.join().unwrap();
    });
}

/// Searches a model with at most `preemptions` in one execution.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn parked() -> Waiting<'static> {
    Waiting::at(&SITE).by(&Park)
}

/// If a worker that gives its place back did not wake the submitter, the tests with threads would hang only once in
/// some 60,000 rounds; these models always find it.
#[test]
fn a_worker_that_hands_its_place_back_wakes_the_submitter() {
    check(4, || {
        let door = Arc::new(Door::new());
        let other = Arc::clone(&door);
        door.open(1);
        let worker = thread::spawn(move || {
            // Comes again, as it does for a scope.
            for _ in 0..2 {
                if other.join().is_some() {
                    other.step_out();
                }
            }
        });
        door.close();
        door.wait_empty(&parked());
        worker.join().unwrap();
    });
}

/// What a job of a crew borrows.
struct Borrowed(UnsafeCell<u32>);

// SAFETY: loom checks every access.
unsafe impl Sync for Borrowed {}
// SAFETY: as above.
unsafe impl Send for Borrowed {}

/// # Safety
/// `data` points at a [`Borrowed`] that is alive.
unsafe fn read_borrowed(data: *const (), seat: &Seat<'_>) -> bool {
    // SAFETY: the caller's promise.
    let borrowed = unsafe { &*data.cast::<Borrowed>() };
    let mut found = false;
    while seat.claim(Chunk::UNKNOWN).is_some() {
        found = true;
        // SAFETY: the submitter writes only before the job is published and after it is retired.
        borrowed.0.with(|value| assert_eq!(unsafe { *value }, 1));
    }
    found
}

/// Runs a job of two indices on the crew, if a slot is free, with room for `places` workers.
fn run_job(crew: &Crew, places: usize) {
    let Some(taken) = crew.take_slot() else {
        return;
    };
    let borrowed = Borrowed(UnsafeCell::new(1));
    let work = PublishedJob {
        data: (&raw const borrowed).cast(),
        enter: read_borrowed,
        base: 0,
        seats: 1 + places,
        lasting: false,
    };
    let member = Member {
        thread: 0,
        node: None,
    };
    // SAFETY: the slot was just taken, and `borrowed` is alive until after `retire`.
    unsafe { crew.publish(taken, work, 2, places, Class::Latency) };
    if places > 0 {
        crew.summon(places);
    }
    // SAFETY: published above and not retired yet.
    unsafe { crew.participate(taken, member, &Record::new("model")) };
    crew.retire(taken, Class::Latency, &parked());
    // SAFETY: no participant is left.
    borrowed.0.with_mut(|value| unsafe { *value = 2 });
}

/// A slot must be taken with acquire order: otherwise its new owner writes the job while the one before may still be
/// writing its own. No test on x86 shows that.
#[test]
fn a_slot_passes_from_one_submitter_to_the_next() {
    check(3, || {
        let crew = Arc::new(Crew::new(None, 1..1, 1, Some(Box::new(Park))));
        let other = Arc::clone(&crew);
        let submitter = thread::spawn(move || run_job(&other, 0));
        run_job(&crew, 0);
        submitter.join().unwrap();
    });
}

#[test]
fn a_crew_runs_a_job_and_lets_go_of_it() {
    check(2, || {
        let crew = Arc::new(Crew::new(None, 1..2, 1, Some(Box::new(Park))));
        let other = Arc::clone(&crew);
        let worker = thread::spawn(move || other.work(0));
        run_job(&crew, 1);
        crew.close();
        worker.join().unwrap();
    });
}

/// If the generation were taken after reading the tasks, the last task could end in between, and the thread that waits
/// for it would sleep without end: once in some 60,000 rounds of a test with threads.
#[test]
fn a_thread_that_syncs_sees_the_last_task_end() {
    check(3, || {
        let lane = Arc::new(Lane::new(2));
        for _ in 0..2 {
            lane.push(Box::new(|| ()), || true).unwrap();
        }
        let other = Arc::clone(&lane);
        let worker = thread::spawn(move || other.work());
        let synced = lane.sync(0, Instant::NEVER, &parked(), || true);
        assert!(synced.is_ok_and(|in_time| in_time));
        assert_eq!(lane.pending(), 0);
        worker.join().unwrap();
    });
}

/// Both may run the tasks; the one that stops early leaves the rest to the other.
#[test]
fn of_two_threads_that_sync_neither_is_forgotten() {
    check(3, || {
        let lane = Arc::new(Lane::new(2));
        for _ in 0..2 {
            lane.push(Box::new(|| ()), || true).unwrap();
        }
        let other = Arc::clone(&lane);
        // No worker comes: the one that was woken is busy with another job.
        let first = thread::spawn(move || {
            let synced = other.sync(1, Instant::NEVER, &parked(), || true);
            assert!(synced.is_ok_and(|in_time| in_time));
        });
        let synced = lane.sync(0, Instant::NEVER, &parked(), || true);
        assert!(synced.is_ok_and(|in_time| in_time));
        first.join().unwrap();
    });
}
