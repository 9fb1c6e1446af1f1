//! Every interleaving of a job with two workers, and of two workers with a queue, searched by loom: each index runs
//! once, the submitter's borrow outlives everybody who uses it, and no task is left lying. A lost wake-up shows as a deadlock, a use after the borrow as a failed assertion.

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use slackwater_wait::{Event, Park, Site, Waiting};

use crate::claim::{Chunk, Ranges};
use crate::door::Door;
use crate::turns::Turns;

static SITE: Site = Site::new("model");

struct Job {
    door: Door,
    ranges: Ranges,
    seats: usize,
    runs: [AtomicU32; LEN as usize],
    /// Stands for what the job borrows from its submitter: loom reports a write beside a read.
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
            // SAFETY: the submitter writes only when nobody is inside.
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
        // SAFETY: nobody has heard of the job yet.
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

/// Once a worker that found no turn counted itself in for a moment; the holder of the turn, looking once more, saw no
/// turn either, and both slept beside the task.
#[test]
fn a_task_is_not_left_lying_by_two_workers_with_one_turn() {
    struct Queue {
        event: Event,
        turns: Turns,
        tasks: Mutex<u32>,
        done: AtomicU32,
    }
    const TASKS: u32 = 2;
    let work = |queue: &Queue| loop {
        let seen = queue.event.seen();
        if queue.event.is_closed() {
            return;
        }
        if *queue.tasks.lock().unwrap() > 0 && queue.turns.take() {
            let mut tasks = queue.tasks.lock().unwrap();
            let found = *tasks > 0;
            *tasks -= u32::from(found);
            drop(tasks);
            queue.turns.give_back();
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
            turns: Turns::new(1),
            tasks: Mutex::new(TASKS),
            done: AtomicU32::new(0),
        });
        let other = Arc::clone(&queue);
        let worker = thread::spawn(move || work(&other));
        work(&queue);
        worker.join().unwrap();
    });
}
