use std::sync::mpsc::{Sender, channel};

use super::*;

const LONG: Duration = Duration::from_secs(20);
const LIMITS: AdmissionLimits = AdmissionLimits {
    total: 8,
    per_source: 4,
    abreast: 1,
};

fn jobs(general: usize, categories: &[Queueing]) -> Jobs {
    let workers = Workers {
        general,
        batch: 1,
        replies: 1,
        admissions: 2,
        lookups: 1,
    };
    Jobs::new(workers, LIMITS, categories, Arc::new(Metrics::default()))
}

/// Keeps a worker busy with a command of the first category until the returned sender is used or dropped.
fn hold_a_worker(jobs: &Jobs) -> Sender<()> {
    let (release, held) = channel::<()>();
    let (began, begun) = channel();
    let task = move || {
        began.send(()).unwrap();
        let _ = held.recv();
    };
    jobs.command(0, 0, Box::new(task)).unwrap();
    begun.recv_timeout(LONG).unwrap();
    release
}

#[test]
fn a_full_queue_refuses_and_another_category_goes_on() {
    let one = Queueing {
        queue: Some(1),
        ..Queueing::default()
    };
    let reserved = Queueing {
        reserved: 1,
        ..Queueing::default()
    };
    let jobs = jobs(1, &[one, reserved]);
    let release = hold_a_worker(&jobs);
    assert_eq!(jobs.command(0, 0, Box::new(|| {})), Ok(()));
    assert_eq!(jobs.command(0, 0, Box::new(|| {})), Err(Full));
    assert_eq!(jobs.waiting(), [1, 0]);
    let (done, finished) = channel();
    jobs.command(1, 0, Box::new(move || done.send(()).unwrap()))
        .unwrap();
    finished
        .recv_timeout(LONG)
        .expect("its reserved worker runs it");
    release.send(()).unwrap();
    assert!(jobs.rest(LONG));
    assert_eq!(jobs.waiting(), [0, 0]);
}

/// A worker that had ended a command of a category with a reserved worker went on with a command of another, for which
/// a general worker had become free. No worker was woken for the next command of the first category, which waited for
/// that other one although its reserved worker was free.
#[test]
fn a_job_that_ends_may_make_room_for_two() {
    let reserved = Queueing {
        reserved: 1,
        ..Queueing::default()
    };
    let jobs = jobs(1, &[reserved, Queueing::default()]);
    let release = hold_a_worker(&jobs);
    let (other, held) = channel::<()>();
    let task = move || assert!(held.recv().is_err());
    jobs.command(1, 0, Box::new(task)).unwrap();
    let (done, finished) = channel();
    jobs.command(0, 0, Box::new(move || done.send(()).unwrap()))
        .unwrap();
    assert_eq!(jobs.waiting(), [1, 1]);
    drop(release);
    finished
        .recv_timeout(LONG)
        .expect("its reserved worker runs it");
    drop(other);
    assert!(jobs.rest(LONG));
}

#[test]
fn queues_are_bounded_in_bytes() {
    let jobs = jobs(
        1,
        &[Queueing {
            queue: None,
            queue_bytes: 100,
            ..Queueing::default()
        }],
    );
    let release = hold_a_worker(&jobs);
    assert_eq!(jobs.command(0, 60, Box::new(|| {})), Ok(()));
    assert_eq!(jobs.command(0, 60, Box::new(|| {})), Err(Full));
    drop(release);
    assert!(jobs.rest(LONG));
}

#[test]
fn a_reply_overtakes_a_waiting_command() {
    let jobs = jobs(1, &[Queueing::default()]);
    let release = hold_a_worker(&jobs);
    let (said, order) = channel();
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
    let jobs = Jobs::new(
        Workers::with_general(1),
        LIMITS,
        &[Queueing::default()],
        Arc::clone(&metrics),
    );
    jobs.command(0, 0, Box::new(|| panic!("on purpose")))
        .unwrap();
    assert!(jobs.rest(LONG));
    let (done, finished) = channel();
    jobs.command(0, 0, Box::new(move || done.send(()).unwrap()))
        .unwrap();
    finished.recv_timeout(LONG).unwrap();
    assert_eq!(metrics.jobs_panicked.get(), 1);
}

#[test]
fn stopping_drops_what_waits() {
    let jobs = jobs(1, &[Queueing::default()]);
    let release = hold_a_worker(&jobs);
    let dropped = Arc::new(());
    let inside = Arc::clone(&dropped);
    jobs.command(0, 0, Box::new(move || drop(inside))).unwrap();
    jobs.stop();
    assert_eq!(Arc::strong_count(&dropped), 1);
    assert_eq!(jobs.command(0, 0, Box::new(|| {})), Err(Full));
    drop(release);
}

/// Two commands came before the worker that was called for the first had taken it: the second counted as waiting behind
/// it, so no worker was woken for it, and it waited until the first was done although workers were idle.
#[test]
fn commands_that_come_together_are_carried_out_together() {
    let jobs = jobs(
        2,
        &[Queueing {
            queue: Some(0),
            ..Queueing::default()
        }],
    );
    let (met, both) = (Arc::new(std::sync::Barrier::new(2)), channel());
    for _ in 0..2 {
        let (met, done) = (Arc::clone(&met), both.0.clone());
        let together = move || {
            met.wait();
            done.send(()).unwrap();
        };
        assert_eq!(
            jobs.command(0, 0, Box::new(together)),
            Ok(()),
            "two workers are free, nothing has to queue"
        );
    }
    for _ in 0..2 {
        both.1.recv_timeout(LONG).expect("each waits for the other");
    }
    assert!(jobs.rest(LONG));
}

#[test]
fn decisions_on_admission_take_no_worker_from_commands() {
    let jobs = jobs(1, &[Queueing::default()]);
    let (release, held) = channel::<()>();
    let host = |last| slackwater_net::Origin::Host(std::net::IpAddr::from([127, 0, 0, last]));
    jobs.admission(host(1), Box::new(move || assert!(held.recv().is_err())))
        .unwrap();
    for _ in 0..3 {
        jobs.admission(host(1), Box::new(|| {})).unwrap();
    }
    assert_eq!(
        jobs.admission(host(1), Box::new(|| {})),
        Err(Full),
        "one source waits for itself"
    );
    let (said, heard) = channel();
    let also = said.clone();
    jobs.admission(host(2), Box::new(move || also.send("decision").unwrap()))
        .unwrap();
    assert_eq!(heard.recv_timeout(LONG), Ok("decision"));
    jobs.command(0, 0, Box::new(move || said.send("command").unwrap()))
        .unwrap();
    assert_eq!(heard.recv_timeout(LONG), Ok("command"));
    drop(release);
    assert!(jobs.rest(LONG));
}
