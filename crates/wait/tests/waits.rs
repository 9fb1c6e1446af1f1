//! What every strategy owes its callers, run on all of them with real threads and a real kernel.
#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use slackwater_wait::{
    Abandoned, AlreadyHooked, Choice, Completion, Countdown, Ended, Event, Hook, Plan, Site,
    Stopped, Then, Wait, Waiting, now,
};

/// Looks by itself from the start until `last`.
#[derive(Debug)]
struct Napper {
    last: Duration,
}

impl Wait for Napper {
    fn plan(&self, _site: &Site) -> Plan {
        let then = Then::Nap {
            first: Duration::ZERO,
            last: self.last,
        };
        Plan {
            spin: Duration::ZERO,
            needs_cpu: false,
            then,
        }
    }
}

/// Runs `story` once by each strategy.
fn by_each(story: impl Fn(&dyn Wait)) {
    for choice in [
        Choice::default(),
        Choice::Spin,
        Choice::Park,
        Choice::Sleep(Duration::from_micros(10)),
    ] {
        story(&*choice.strategy());
    }
    story(&Napper {
        last: Duration::from_micros(200),
    });
}

/// At 16 waiters on one copying thread, a wake for each of them took the thread a twentieth of its time.
#[test]
fn a_napper_that_is_about_to_look_is_not_woken() {
    let site = Site::new("nap");
    let napper = Napper {
        last: Duration::from_secs(3600),
    };
    for round in 0..100 {
        let (completer, mut completion) = Completion::new();
        let mover = thread::spawn(move || completer.complete(round));
        assert_eq!(completion.wait(&Waiting::at(&site).by(&napper)), Ok(round));
        mover.join().unwrap();
    }
    assert_eq!(site.counts().wakes_seen, 0, "{:?}", site.counts());
}

#[test]
fn a_value_arrives_from_another_thread() {
    by_each(|strategy| {
        let site = Site::new("value");
        for round in 0..200 {
            let (completer, mut completion) = Completion::new();
            let mover = thread::spawn(move || completer.complete(round));
            assert_eq!(completion.wait(&Waiting::at(&site).by(strategy)), Ok(round));
            mover.join().unwrap();
        }
        let counts = site.counts();
        assert_eq!(
            counts.ready + counts.waits,
            200,
            "every wait is counted: {counts:?}"
        );
    });
}

#[test]
fn a_deadline_ends_the_wait_and_not_before() {
    by_each(|strategy| {
        let site = Site::new("deadline");
        let batch = Countdown::<()>::new(1);
        let deadline = now() + Duration::from_millis(3);
        let waiting = Waiting::at(&site).until(deadline).by(strategy);
        assert_eq!(batch.wait(&waiting), Err(Stopped::Ended(Ended::TimedOut)));
        assert!(now() >= deadline);
        assert_eq!(site.counts().timeouts, 1);
        assert_eq!(batch.remaining(), 1, "the batch goes on");
    });
}

#[test]
fn a_past_deadline_still_takes_what_is_ready() {
    by_each(|strategy| {
        let site = Site::new("ready");
        let batch = Countdown::<()>::new(1);
        batch.complete();
        assert_eq!(
            batch.wait(&Waiting::at(&site).until(now()).by(strategy)),
            Ok(())
        );
    });
}

#[test]
fn cancel_ends_the_wait_and_the_batch_still_settles() {
    by_each(|strategy| {
        let site = Site::new("cancel");
        let batch = Countdown::<()>::new(1);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| batch.wait(&Waiting::at(&site).by(strategy)));
            assert!(batch.cancel());
            assert!(!batch.cancel(), "the second cancel is none");
            assert_eq!(
                waiter.join().unwrap(),
                Err(Stopped::Ended(Ended::Cancelled))
            );
        });
        assert!(!batch.is_done());
        batch.complete();
        assert_eq!(batch.settle(&Waiting::at(&site).by(strategy)), Ok(()));
        assert_eq!(
            batch.wait(&Waiting::at(&site).by(strategy)),
            Ok(()),
            "done wins over cancelled"
        );
    });
}

#[test]
fn one_batch_wakes_sixteen_waiters_once_all_parts_are_over() {
    by_each(|strategy| {
        let site = Site::new("crowd");
        let batch = Countdown::<&'static str>::new(8);
        let applied = AtomicU32::new(0);
        thread::scope(|scope| {
            let waiters: Vec<_> = (0..16)
                .map(|_| {
                    scope.spawn(|| {
                        let result = batch.wait(&Waiting::at(&site).by(strategy));
                        (result, applied.load(Ordering::Relaxed))
                    })
                })
                .collect();
            for part in 0..8 {
                let (batch, applied) = (&batch, &applied);
                scope.spawn(move || {
                    applied.fetch_add(1, Ordering::Relaxed);
                    if part == 3 {
                        batch.fail("part 3")
                    } else {
                        batch.complete()
                    }
                });
            }
            for waiter in waiters {
                assert_eq!(waiter.join().unwrap(), (Err(Stopped::Failed("part 3")), 8));
            }
        });
    });
}

#[test]
fn an_event_hands_a_thousand_turns_back_and_forth() {
    by_each(|strategy| {
        let site = Site::new("turns");
        let (event, turn) = (Event::new(), AtomicU32::new(0));
        let play = |mine: u32| {
            loop {
                let seen = event.seen();
                let at = turn.load(Ordering::Acquire);
                if at >= 1_000 {
                    return;
                }
                if at % 2 == mine {
                    turn.store(at + 1, Ordering::Release);
                    event.notify_all();
                } else {
                    event.wait(seen, &Waiting::at(&site).by(strategy)).unwrap();
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| play(0));
            scope.spawn(|| play(1));
        });
        assert_eq!(turn.into_inner(), 1_000);
    });
}

#[test]
fn a_batch_without_parts_is_over_at_once() {
    assert!(Countdown::<()>::new(0).is_done());
}

#[test]
fn an_abandoned_waiter_is_told() {
    let site = Site::new("abandoned");
    let (completer, mut completion) = Completion::<u8>::new();
    drop(completer);
    assert_eq!(
        completion.wait(&Waiting::at(&site)),
        Err(Stopped::Failed(Abandoned))
    );
}

#[test]
#[cfg_attr(
    miri,
    ignore = "its looks are so slow there that few fit before the deadline"
)]
fn a_spinner_reads_the_clock_once_in_a_hundred_looks_at_most() {
    // A busy machine may take the processor away for as long as a wait lasts.
    let long = (0..100).find_map(|_| {
        let site = Site::new("rare clock");
        let batch = Countdown::<()>::new(1);
        let waiting = Waiting::at(&site).until(now() + Duration::from_millis(5));
        assert!(batch.wait(&waiting.by(&slackwater_wait::Spin)).is_err());
        Some(site.counts()).filter(|counts| counts.looks >= 1_000)
    });
    let counts = long.expect("a thousand looks take less than five milliseconds");
    assert!(counts.clock_reads * 100 <= counts.looks, "{counts:?}");
}

#[test]
#[cfg_attr(miri, ignore = "it has no clock of the machine")]
fn the_clock_is_that_of_the_machine() {
    let boot = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(
            time.tv_sec.unsigned_abs(),
            time.tv_nsec.unsigned_abs() as u32,
        )
    };
    let (before, read, after) = (boot(), now(), boot());
    let read = Duration::from_nanos(read.as_nanos());
    assert!(
        before <= read && read <= after,
        "{before:?} {read:?} {after:?}"
    );
}

#[test]
fn a_hook_is_told_once_and_only_one_is_taken() {
    let runs = Arc::new(AtomicU32::new(0));
    let hook = || {
        let runs = Arc::clone(&runs);
        Hook::Call(Box::new(move || {
            runs.fetch_add(1, Ordering::Relaxed);
        }))
    };
    let batch = Countdown::<()>::new(1);
    batch.hook(hook()).unwrap();
    assert_eq!(batch.hook(hook()).unwrap_err(), AlreadyHooked);
    batch.complete();
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    let over = Countdown::<()>::new(0);
    over.hook(hook()).unwrap();
    assert_eq!(
        runs.load(Ordering::Relaxed),
        2,
        "the end was before the hook"
    );
}

struct Flag(AtomicU32);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_completion_can_be_awaited() {
    let flag = Arc::new(Flag(AtomicU32::new(0)));
    let waker = Waker::from(Arc::clone(&flag));
    let mut context = Context::from_waker(&waker);
    let (completer, completion) = Completion::new();
    let mut completion = std::pin::pin!(completion);
    assert_eq!(completion.as_mut().poll(&mut context), Poll::Pending);
    assert_eq!(completion.as_mut().poll(&mut context), Poll::Pending);
    completer.complete(5);
    assert_eq!(flag.0.load(Ordering::Relaxed), 1);
    assert_eq!(completion.as_mut().poll(&mut context), Poll::Ready(Ok(5)));
}
