//! Every interleaving of the protocols with up to three threads, searched by loom. A lost wake-up shows as a deadlock.
//!
//! The models park at once: a spin would only delay reads that loom explores at every point anyway.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicUsize as Tally, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use loom::model::Builder;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use slackwater_base::Instant;

use crate::sync::Arc;
use crate::{
    Abandoned, Completion, Countdown, Ended, Event, Hook, Park, Plan, Site, Stopped, Then, Wait,
    Waiting,
};

static SITE: Site = Site::new("model");

fn forever() -> Waiting<'static> {
    Waiting::at(&SITE).by(&Park)
}

/// A strategy that looks twice by itself before it sleeps until woken; the first look is soon enough that the completer
/// need not wake it.
#[derive(Debug)]
struct Napper;

impl Wait for Napper {
    fn plan(&self, _site: &Site) -> Plan {
        let then = Then::Nap {
            first: Duration::ZERO,
            last: Duration::from_micros(20),
        };
        Plan {
            spin: Duration::ZERO,
            needs_cpu: false,
            then,
        }
    }
}

/// A wait whose deadline comes as soon as it falls asleep.
fn hasty() -> Waiting<'static> {
    forever().until(Instant::ZERO)
}

fn search(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn complete_reaches_the_waiter_with_its_value() {
    search(|| {
        let (completer, mut completion) = Completion::new();
        let mover = thread::spawn(move || completer.complete(7));
        assert_eq!(completion.wait(&forever()), Ok(7));
        mover.join().unwrap();
    });
}

#[test]
fn a_napper_finds_the_end_with_or_without_a_wake() {
    search(|| {
        let (completer, mut completion) = Completion::new();
        let mover = thread::spawn(move || completer.complete(7));
        assert_eq!(completion.wait(&Waiting::at(&SITE).by(&Napper)), Ok(7));
        mover.join().unwrap();
    });
}

/// A waiter that finds the bit set by a napping one must still announce its own sleep to the completer, or the
/// completer would wake neither.
#[test]
fn a_sleeper_beside_a_napper_is_woken() {
    search(|| {
        let batch = Arc::new(Countdown::<()>::new(1));
        let waiters = [&Napper as &(dyn Wait + 'static), &Park].map(|strategy| {
            let batch = Arc::clone(&batch);
            thread::spawn(move || batch.wait(&Waiting::at(&SITE).by(strategy)))
        });
        batch.complete();
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Ok(()));
        }
    });
}

#[test]
fn a_dropped_completer_ends_the_wait() {
    search(|| {
        let (completer, mut completion) = Completion::<u8>::new();
        let mover = thread::spawn(move || drop(completer));
        assert_eq!(completion.wait(&forever()), Err(Stopped::Failed(Abandoned)));
        mover.join().unwrap();
    });
}

#[test]
fn a_dropped_waiter_leaves_the_value_to_be_dropped_once() {
    static DROPS: Tally = Tally::new(0);
    struct Value;
    impl Drop for Value {
        fn drop(&mut self) {
            DROPS.fetch_add(1, SeqCst);
        }
    }
    search(|| {
        DROPS.store(0, SeqCst);
        let (completer, completion) = Completion::new();
        let mover = thread::spawn(move || completer.complete(Value));
        drop(completion);
        mover.join().unwrap();
        assert_eq!(DROPS.load(SeqCst), 1);
    });
}

#[test]
fn cancel_against_complete_ends_the_wait_either_way() {
    search(|| {
        let (completer, mut completion) = Completion::new();
        let cancel = completion.canceller();
        let mover = thread::spawn(move || completer.complete(7));
        let other = thread::spawn(move || cancel());
        match completion.wait(&forever()) {
            Ok(7) => {}
            Err(Stopped::Ended(Ended::Cancelled)) => {
                mover.join().unwrap();
                other.join().unwrap();
                // The cancelled wait lost nothing: the value is there.
                assert_eq!(completion.wait(&forever()), Ok(7));
                return;
            }
            unexpected => panic!("{unexpected:?}"),
        }
        mover.join().unwrap();
        other.join().unwrap();
    });
}

#[test]
fn cancel_against_an_await_reaches_the_task() {
    struct Told(AtomicU32);
    impl Wake for Told {
        fn wake(self: StdArc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    search(|| {
        let (completer, mut completion) = Completion::<u8>::new();
        let cancel = completion.canceller();
        let other = thread::spawn(move || cancel());
        let told = StdArc::new(Told(AtomicU32::new(0)));
        let waker = Waker::from(StdArc::clone(&told));
        let first = Pin::new(&mut completion).poll(&mut Context::from_waker(&waker));
        assert!(other.join().unwrap());
        assert!(
            first.is_ready() || told.0.load(Ordering::SeqCst) == 1,
            "it was told to look again"
        );
        drop(completer);
    });
}

#[test]
fn a_timed_out_waiter_finds_the_value_later() {
    search(|| {
        let (completer, mut completion) = Completion::new();
        let mover = thread::spawn(move || completer.complete(7));
        let first = completion.wait(&hasty());
        assert!(
            matches!(first, Ok(7) | Err(Stopped::Ended(Ended::TimedOut))),
            "{first:?}"
        );
        mover.join().unwrap();
        if first.is_err() {
            assert_eq!(completion.wait(&hasty()), Ok(7));
        }
    });
}

#[test]
fn the_last_of_two_parts_wakes_and_shows_both_results() {
    search(|| {
        let batch = Arc::new((
            Countdown::<()>::new(2),
            [AtomicU32::new(0), AtomicU32::new(0)],
        ));
        let movers: Vec<_> = (0..2)
            .map(|part| {
                let batch = Arc::clone(&batch);
                thread::spawn(move || {
                    batch.1[part].store(1, Ordering::Relaxed);
                    batch.0.complete();
                })
            })
            .collect();
        assert_eq!(batch.0.wait(&forever()), Ok(()));
        assert!(
            batch
                .1
                .iter()
                .all(|result| result.load(Ordering::Relaxed) == 1)
        );
        for mover in movers {
            mover.join().unwrap();
        }
    });
}

#[test]
fn a_failed_part_is_told_when_all_parts_are_over() {
    search(|| {
        let batch = Arc::new(Countdown::new(2));
        let (good, bad) = (Arc::clone(&batch), Arc::clone(&batch));
        let movers = [
            thread::spawn(move || good.complete()),
            thread::spawn(move || bad.fail("torn")),
        ];
        assert_eq!(batch.wait(&forever()), Err(Stopped::Failed("torn")));
        assert!(batch.is_done());
        for mover in movers {
            mover.join().unwrap();
        }
    });
}

#[test]
fn one_end_wakes_two_waiters() {
    search(|| {
        let batch = Arc::new(Countdown::<()>::new(1));
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let batch = Arc::clone(&batch);
                thread::spawn(move || batch.wait(&forever()))
            })
            .collect();
        batch.complete();
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Ok(()));
        }
    });
}

#[test]
fn a_cancelled_batch_settles() {
    search(|| {
        let batch = Arc::new(Countdown::<()>::new(1));
        let (mover, canceller) = (Arc::clone(&batch), Arc::clone(&batch));
        let threads = [
            thread::spawn(move || mover.complete()),
            thread::spawn(move || assert!(canceller.cancel() || canceller.is_done())),
        ];
        assert_eq!(batch.settle(&forever()), Ok(()));
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_hook_runs_once_whether_it_comes_before_or_after_the_end() {
    search(|| {
        let runs = Arc::new(AtomicU32::new(0));
        let batch = Arc::new(Countdown::<()>::new(1));
        let (mover, told) = (Arc::clone(&batch), Arc::clone(&runs));
        let thread = thread::spawn(move || mover.complete());
        let call = Hook::Call(Box::new(move || {
            assert_eq!(told.fetch_add(1, Ordering::Relaxed), 0)
        }));
        batch.hook(call).unwrap();
        thread.join().unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn an_event_is_not_missed_between_the_look_and_the_sleep() {
    search(|| {
        let shared = Arc::new((Event::new(), AtomicU32::new(0)));
        let other = Arc::clone(&shared);
        let notifier = thread::spawn(move || {
            other.1.store(1, Ordering::Relaxed);
            other.0.notify_all();
        });
        loop {
            let seen = shared.0.seen();
            if shared.1.load(Ordering::Relaxed) == 1 {
                break;
            }
            shared.0.wait(seen, &forever()).unwrap();
        }
        notifier.join().unwrap();
    });
}

#[test]
fn two_notifications_wake_two_sleepers_one_each() {
    search(|| {
        let shared = Arc::new((Event::new(), AtomicU32::new(0)));
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    loop {
                        let seen = shared.0.seen();
                        let left = shared.1.load(Ordering::Acquire);
                        if left > 0 {
                            let taken = shared.1.compare_exchange(
                                left,
                                left - 1,
                                Ordering::AcqRel,
                                Ordering::Relaxed,
                            );
                            if taken.is_ok() {
                                return;
                            }
                            continue;
                        }
                        shared.0.wait(seen, &forever()).unwrap();
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            shared.1.fetch_add(1, Ordering::AcqRel);
            shared.0.notify(1);
        }
        for taker in takers {
            taker.join().unwrap();
        }
    });
}

/// A submitter that leaves the watchers alone and wakes sleepers only, as the pool does. Counted before the event had moved
/// on, a watcher could fall asleep behind its back, and nobody came.
#[test]
fn a_watcher_that_falls_asleep_is_woken_or_sees_the_event() {
    struct Crew {
        event: Event,
        idle: AtomicU32,
        open: AtomicU32,
        came: Event,
    }
    search(|| {
        let crew = Arc::new(Crew {
            event: Event::new(),
            idle: AtomicU32::new(0),
            open: AtomicU32::new(0),
            came: Event::new(),
        });
        let other = Arc::clone(&crew);
        let worker = thread::spawn(move || {
            loop {
                let seen = other.event.seen();
                if other.open.load(Ordering::Relaxed) == 1 {
                    other.came.close();
                    return;
                }
                other.idle.fetch_add(1, Ordering::Relaxed);
                other.event.wait(seen, &forever()).unwrap();
                other.idle.fetch_sub(1, Ordering::Relaxed);
            }
        });
        let came = crew.came.seen();
        crew.open.store(1, Ordering::Relaxed);
        crew.event.notify_by(|asleep| {
            1u32.saturating_sub(crew.idle.load(Ordering::Relaxed).saturating_sub(asleep))
        });
        assert_eq!(crew.came.wait(came, &forever()), Err(Ended::Cancelled));
        worker.join().unwrap();
    });
}

#[test]
fn a_closed_event_lets_everybody_go() {
    search(|| {
        let event = Arc::new(Event::new());
        let waiter = {
            let event = Arc::clone(&event);
            thread::spawn(move || event.wait(event.seen(), &forever()))
        };
        event.close();
        assert_eq!(waiter.join().unwrap(), Err(Ended::Cancelled));
    });
}
