//! Timers, batches, threads of their own, injected work, draining.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use common::*;
use slackwater_mq::*;

#[test]
fn timers_fire_until_cancelled_and_then_free_their_function() {
    let mq = client(1);
    let (fire, fired) = channel();
    let options = TimerOptions {
        interval: Duration::from_millis(2),
        squelch: false,
        on: RunOn::Pool,
    };
    let timer = mq.add_timer(options, move || fire.send(()).unwrap());
    (0..3).for_each(|_| next(&fired, "it fires"));
    timer.cancel();
    timer.cancel();
    // The sender goes with the function.
    let end = std::iter::repeat_with(|| fired.recv_timeout(LONG)).find_map(Result::err);
    assert_eq!(end, Some(RecvTimeoutError::Disconnected));
    assert_eq!(mq.books()[4], 0);
}

#[test]
fn a_squelched_timer_waits_for_its_last_run() {
    let mq = client(1);
    let (began, begun) = channel();
    let (release, held) = channel::<()>();
    let held = std::sync::Mutex::new(held);
    let running = Arc::new(AtomicU64::new(0));
    let inside = Arc::clone(&running);
    let options = TimerOptions {
        interval: Duration::from_millis(1),
        squelch: true,
        on: RunOn::Pool,
    };
    let timer = mq.add_timer(options, move || {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two runs at once");
        let _ = began.send(());
        let _ = held.lock().unwrap().recv();
        inside.fetch_sub(1, Ordering::SeqCst);
    });
    next(&begun, "the first run");
    let other = mq.add_timer(
        TimerOptions {
            interval: Duration::from_millis(1),
            squelch: false,
            on: RunOn::Inline,
        },
        || {},
    );
    assert!(
        begun.recv_timeout(Duration::from_millis(20)).is_err(),
        "a second run began beside the first"
    );
    drop(release);
    next(&begun, "a run after the first has ended");
    timer.cancel();
    other.cancel();
    assert!(mq.drain(LONG));
    assert_eq!(mq.metrics().jobs_panicked.get(), 0);
}

#[test]
fn a_batch_receives_every_value_and_every_panic() {
    let mut builder = Builder::new(options(1));
    let thread = builder.tagged_thread("own", || {});
    let mq = builder.start().unwrap();
    let (done, outcomes) = channel();
    let mut batch = Batch::new();
    for number in 0..20u64 {
        batch.add(move || if number == 7 { panic!("seven") } else { number });
    }
    batch.add_on(RunOn::Thread(thread.clone()), || {
        std::thread::current()
            .name()
            .map_or(0, |name| name.len() as u64)
    });
    mq.batch(batch, RunOn::Thread(thread), move |outcomes| {
        done.send(outcomes).unwrap()
    })
    .unwrap();
    let outcomes = next(&outcomes, "the completion");
    assert_eq!(outcomes.len(), 21);
    for (number, outcome) in outcomes.iter().enumerate() {
        match number {
            7 => assert_eq!(outcome, &Err("seven".to_owned())),
            20 => assert_eq!(outcome, &Ok(3)),
            _ => assert_eq!(outcome, &Ok(number as u64)),
        }
    }
    assert_eq!(
        mq.batch(Batch::<()>::new(), RunOn::Pool, |_| {}),
        Err(BatchError::Empty)
    );
}

#[test]
fn a_tagged_thread_runs_in_order_after_its_start() {
    let mut builder = Builder::new(options(1));
    let (said, order) = channel();
    let first = said.clone();
    let thread = builder.tagged_thread("own", move || first.send(0).unwrap());
    let mq = builder.start().unwrap();
    for number in 1..100 {
        let said = said.clone();
        mq.job(RunOn::Thread(thread.clone()), move || {
            said.send(number).unwrap()
        })
        .unwrap();
    }
    for number in 0..100 {
        assert_eq!(next(&order, "a number"), number);
    }
}

#[test]
fn injected_work_obeys_its_category() {
    let mut builder = Builder::new(Options {
        workers: Workers {
            general: 1,
            batch: 1,
            replies: 1,
            admissions: 3,
            lookups: 1,
        },
        ..options(1)
    });
    let queueing = Queueing {
        queue: Some(0),
        ..Queueing::default()
    };
    builder
        .category(
            "tight",
            Category {
                queueing,
                ..Category::default()
            },
        )
        .unwrap();
    let mq = builder.start().unwrap();
    let (began, begun) = channel();
    let (release, held) = channel::<()>();
    mq.inject("tight", 0, move || {
        began.send(()).unwrap();
        let _ = held.recv();
    })
    .unwrap();
    next(&begun, "the work");
    assert_eq!(mq.inject("tight", 0, || {}), Err(SendError::Full));
    assert_eq!(mq.inject("unknown", 0, || {}), Err(SendError::Gone));
    drop(release);
    assert!(mq.drain(LONG));
}

#[test]
fn draining_answers_what_is_queued_and_takes_nothing_new() {
    let mut builder = Builder::new(Options {
        workers: Workers {
            general: 1,
            batch: 1,
            replies: 1,
            admissions: 3,
            lookups: 1,
        },
        ..options(1)
    });
    builder.category("slow", Category::default()).unwrap();
    let (release, held) = channel::<()>();
    let held = std::sync::Mutex::new(held);
    builder
        .request_command("slow.work", move |call| {
            let _ = held.lock().unwrap().recv();
            call.reply(["done"]).unwrap();
        })
        .unwrap();
    let server = builder.start().unwrap();
    let address = listen(&server, &everybody(false));
    let client = client(2);
    let to = connect(&client, &address);
    let (told, outcomes) = channel();
    for _ in 0..5 {
        let told = told.clone();
        client.request(
            to,
            "slow.work",
            [""; 0],
            &RequestOptions::default(),
            move |o| told.send(o.map(drop)).unwrap(),
        );
    }
    until(&server, "four wait", |server| {
        server.waiting_commands() == [4]
    });
    assert!(!server.drain(Duration::from_millis(10)), "one is at work");
    drop(release);
    assert!(server.drain(LONG));
    (0..5).for_each(|_| assert_eq!(next(&outcomes, "an answer"), Ok(())));
    let short = ConnectOptions {
        timeout: Some(Duration::from_millis(100)),
        ..ConnectOptions::default()
    };
    assert!(client.connect_wait(&address, &short).is_err());
}

/// Only the store read `SLACKWATER_WAIT`: a message layer neither waited as it says nor told that it was misspelt.
#[test]
fn a_misspelt_wait_strategy_is_refused_at_the_start() {
    const CHILD: &str = "MQ_TEST_MISSPELT";
    const NAME: &str = "a_misspelt_wait_strategy_is_refused_at_the_start";
    if std::env::var_os(CHILD).is_some() {
        let error = Builder::new(options(1)).start().err().expect("no start");
        let text = error.to_string();
        let begin = "SLACKWATER_WAIT: `sping` is no wait strategy (known: adaptive,";
        assert!(text.starts_with(begin), "{text}");
        return;
    }
    let program = std::env::current_exe().unwrap();
    let child = std::process::Command::new(program)
        .args(["--exact", NAME])
        .env(CHILD, "1")
        .env("SLACKWATER_WAIT", "sping")
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
}
