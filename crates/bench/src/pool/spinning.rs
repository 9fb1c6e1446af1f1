//! The pool that people come from: its workers spin for 50 ms before they sleep, and read the clock at each look.
//!
//! Written after the description of kt-kernel's pool: a status word for each worker, one counter of tasks, a mutex and a condition
//! variable for each worker that has fallen asleep, and a submitter that looks at every status in turn until all are done. It is a peer
//! of the benchmark and nothing else: its spins are not bounded, as those were not.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use slackwater_wait::now;

use super::bursts::task;
use super::samples::computing;

/// How a worker without work looks for some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looking {
    /// As published: no pause, and a clock read at each look.
    ClockEachLook,
    /// The published repair: a pause at each look, a clock read at each hundredth.
    Sparse,
}

/// How long a worker spins without work.
const SPIN: Duration = Duration::from_millis(50);
const LOOKS_PER_CLOCK: u32 = 100;

const WAITING: u32 = 0;
const WORKING: u32 = 1;
const ENDING: u32 = 2;

/// The pool; dropping it ends its threads.
#[derive(Debug)]
pub(crate) struct Spinning {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    looking: Looking,
    workers: Vec<Worker>,
    next: AtomicUsize,
    tasks: AtomicUsize,
    steps: AtomicU64,
}

/// A worker's own lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Worker {
    status: AtomicU32,
    asleep: Mutex<bool>,
    woken: Condvar,
}

impl Spinning {
    /// Starts a pool of so many threads, of which the caller is one.
    pub(crate) fn start(threads: usize, looking: Looking) -> Self {
        let shared = Arc::new(Shared {
            looking,
            workers: (1..threads).map(|_| Worker::default()).collect(),
            next: AtomicUsize::new(0),
            tasks: AtomicUsize::new(0),
            steps: AtomicU64::new(0),
        });
        let start = |at| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.work(&shared.workers[at]))
        };
        let threads = (0..shared.workers.len()).map(start).collect();
        Self { shared, threads }
    }

    /// Runs so many tasks of so many steps and returns when all are done.
    pub(crate) fn burst(&self, tasks: usize, steps: u64) {
        let shared = &self.shared;
        shared.tasks.store(tasks, Ordering::Relaxed);
        shared.steps.store(steps, Ordering::Relaxed);
        shared.next.store(0, Ordering::Relaxed);
        let wanted = tasks.saturating_sub(1).min(shared.workers.len());
        let workers = &shared.workers[..wanted];
        workers.iter().for_each(|worker| worker.tell(WORKING));
        shared.take_tasks();
        for worker in workers {
            while worker.status.load(Ordering::Acquire) == WORKING {}
        }
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        for worker in &self.shared.workers {
            worker.tell(ENDING);
        }
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            debug_assert!(ended.is_ok(), "a worker only computes");
        }
    }
}

impl Worker {
    fn tell(&self, status: u32) {
        self.status.store(status, Ordering::Release);
        // The lock makes a worker either see the status or be asleep already.
        drop(self.asleep.lock().unwrap_or_else(PoisonError::into_inner));
        self.woken.notify_one();
    }

    fn sleep(&self) {
        let mut asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        *asleep = true;
        while self.status.load(Ordering::Acquire) == WAITING {
            asleep = self
                .woken
                .wait(asleep)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *asleep = false;
    }
}

impl Shared {
    fn work(&self, worker: &Worker) {
        let (mut idle_since, mut looks) = (now(), 0_u32);
        loop {
            match worker.status.load(Ordering::Acquire) {
                WAITING => {
                    looks = looks.wrapping_add(1);
                    if self.looking == Looking::Sparse {
                        spin_loop();
                        if !looks.is_multiple_of(LOOKS_PER_CLOCK) {
                            continue;
                        }
                    }
                    if now().since(idle_since) > SPIN {
                        worker.sleep();
                        idle_since = now();
                    }
                }
                WORKING => {
                    self.take_tasks();
                    worker.status.store(WAITING, Ordering::Release);
                    idle_since = now();
                }
                _ => return,
            }
        }
    }

    fn take_tasks(&self) {
        let (tasks, steps) = (
            self.tasks.load(Ordering::Relaxed),
            self.steps.load(Ordering::Relaxed),
        );
        while self.next.fetch_add(1, Ordering::Relaxed) < tasks {
            computing(|| task(steps));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_of_a_burst_is_taken_and_idle_workers_spin_for_their_time_only() {
        for looking in [Looking::ClockEachLook, Looking::Sparse] {
            let pool = Spinning::start(3, looking);
            for tasks in [0, 1, 2, 64] {
                pool.burst(tasks, 10);
                let taken = pool.shared.next.load(Ordering::Relaxed);
                assert!(taken >= tasks, "{taken} of {tasks}");
            }
            let began = now();
            let asleep = |worker: &Worker| *worker.asleep.lock().unwrap();
            while !pool.shared.workers.iter().all(asleep) {
                assert!(
                    now().since(began) < SPIN * 600,
                    "{looking:?}: still spinning"
                );
                std::thread::sleep(SPIN / 10);
            }
        }
    }
}
