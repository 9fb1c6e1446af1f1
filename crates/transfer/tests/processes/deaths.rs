//! A process ends, or is stopped, in the middle of a transfer.

use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use slackwater_transfer::{BatchError, Cause, EngineConfig, Op, Segment, Target};
use slackwater_wait::now;

use crate::child::{Child, end};
use crate::world::{End, PATIENCE, anonymous, noise, over, request, submit};
use crate::{alone, eventually, holdings};

const MIB: usize = 1 << 20;

#[test]
fn an_owner_killed_in_mid_batch_fails_what_is_left_and_leaves_nothing_behind() {
    let _alone = alone();
    for role in ["shared", "attached"] {
        let near = end("attached");
        let field = near.filled(&noise(1, 16 * MIB));
        let mut before = None;
        let (mut completed, mut failed) = (0, 0);
        for round in 0..25 {
            let child = Child::start(role, 16 * MIB);
            let peer = near.engine.open(child.segment.clone());
            let target = child.target(peer);
            // 1 GiB, of which some is under way when the owner ends: later in every round.
            let op = if round % 2 == 0 { Op::Write } else { Op::Read };
            let requests = (0..64)
                .map(|_| request(op, vec![field.range(0, 16 * MIB)], target))
                .collect();
            let batch = near.engine.submit(requests, &submit());
            eventually("a first request", || {
                batch.remaining() <= 64 - round.min(60)
            });
            child.kill();
            over(role, &batch);
            for index in 0..64 {
                let cause = batch.outcome(index).unwrap().cause;
                let known = matches!(
                    cause,
                    None | Some(Cause::Lost(_) | Cause::Unreachable(_) | Cause::NoMover(_))
                );
                assert!(known, "{role}: {cause:?}");
                (completed, failed) = (
                    completed + u32::from(cause.is_none()),
                    failed + u32::from(cause.is_some()),
                );
            }
            // The kernel ends a process before it hangs up its links: until that is told, what is mapped here works.
            eventually("that the process is gone", || {
                let one = vec![request(op, vec![field.range(0, 1)], target)];
                let after = near.engine.submit(one, &submit());
                over(role, &after);
                after.outcome(0).unwrap().cause.is_some()
            });
            near.engine.forget(peer);
            // An ended process leaves one thread, until the next is opened; the first rounds fill pools and caches.
            let held = || holdings();
            match before {
                None if round == 2 => before = Some(held()),
                Some(before) => eventually("what the process held", || {
                    let held = held();
                    held.0 <= before.0 && held.1 <= before.1 && held.2 <= before.2 + 1
                }),
                None => {}
            }
        }
        assert!(
            completed > 0 && failed > 0,
            "{role}: killed in the middle: {completed} completed, {failed} failed"
        );
    }
}

/// The end of a process was known, and what was asked of it afterwards was tried over TCP until its deadline. What it was
/// being asked in that moment failed for another reason than what was asked later.
#[test]
fn what_is_asked_of_a_process_that_was_killed_fails_at_once() {
    let _alone = alone();
    let near = end("whole");
    let field = near.field(4096);
    let child = Child::start("whole", 4096);
    let peer = near.engine.open(child.segment.clone());
    let target = child.target(peer);
    let read = || request(Op::Read, vec![field.range(0, 8)], target);
    near.engine.transfer(vec![read()], &submit()).unwrap();
    assert_eq!(near.engine.mover(peer), Some("host"));
    let lost = Err(BatchError::Failed(Cause::Lost(
        "the process has ended".to_owned(),
    )));
    stop(&child);
    thread::scope(|scope| {
        let asked = scope.spawn(|| near.engine.probe(peer, PATIENCE));
        // Most likely it is being asked by then; if not, it is asked later.
        thread::sleep(Duration::from_millis(50));
        child.kill();
        assert_eq!(asked.join().unwrap(), lost);
    });
    let begun = now();
    let patient = slackwater_transfer::Submit {
        timeout: PATIENCE,
        ..submit()
    };
    for _ in 0..3 {
        assert_eq!(near.engine.transfer(vec![read()], &patient), lost);
        // Two requests go together, and are none that a caller carries itself.
        assert_eq!(near.engine.transfer(vec![read(), read()], &patient), lost);
        assert_eq!(near.engine.probe(peer, PATIENCE), lost);
        assert!(near.engine.fence(peer, PATIENCE).is_ok());
    }
    assert!(begun.until(now()) < PATIENCE / 2, "it was tried for long");
}

/// The same where bytes go by TCP: the kernel of the host says that nobody listens any more.
#[test]
fn what_is_asked_by_tcp_of_a_process_of_this_host_that_was_killed_fails_at_once() {
    let _alone = alone();
    let near = EngineConfig {
        force_tcp: true,
        ..EngineConfig::new("near")
    };
    let near = End {
        engine: near.start().unwrap(),
        make: anonymous,
    };
    let field = near.field(4096);
    let child = Child::start("whole", 4096);
    let known = child.segment.clone();
    // Of one that names no host nothing can be known.
    let elsewhere = Segment {
        host: None,
        ..known.clone()
    };
    let capability = child.capability;
    let target = |segment: &Segment| Target {
        peer: near.engine.open(segment.clone()),
        offset: 0,
        capability,
        key: None,
    };
    let read = |segment: &Segment| request(Op::Read, vec![field.range(0, 8)], target(segment));
    let within = |timeout: Duration| slackwater_transfer::Submit {
        timeout,
        ..submit()
    };
    let patient = within(PATIENCE);
    near.engine.transfer(vec![read(&known)], &patient).unwrap();
    child.kill();
    let begun = now();
    for requests in [1, 2] {
        let requests = (0..requests).map(|_| read(&known)).collect();
        let failed = near.engine.transfer(requests, &patient);
        let fits = matches!(&failed, Err(BatchError::Failed(Cause::Unreachable(why))) if why.contains("refused"));
        assert!(fits, "{failed:?}");
    }
    assert!(begun.until(now()) < PATIENCE / 2, "it was tried for long");
    let (begun, second) = (now(), Duration::from_secs(1));
    let tried = near
        .engine
        .transfer(vec![read(&elsewhere)], &within(second));
    assert!(tried.is_err() && begun.until(now()) >= second);
}

#[test]
fn an_initiator_killed_in_mid_write_frees_the_memory_at_once() {
    let _alone = alone();
    for role in ["shared", "attached"] {
        let owner = end(role);
        let field = owner.filled(&vec![7; 16 * MIB]);
        for round in 0..10 {
            let mut child = Child::start("attached", 16 * MIB);
            child.ask(&format!(
                "open {}",
                serde_json::to_string(owner.engine.segment()).unwrap()
            ));
            let all = slackwater_transfer::GrantSpec::whole(
                &field.region,
                slackwater_transfer::Rights::BOTH,
            );
            let capability = owner.engine.grant(field.region.id(), &all).unwrap();
            assert_eq!(
                child.ask(&format!("flood {}", crate::child::hex(&capability))),
                "true"
            );
            child.kill();
            owner
                .engine
                .invalidate(field.region.id(), PATIENCE)
                .unwrap();
            let ours = vec![round; 16 * MIB];
            field.store(&ours);
            assert!(field.load() == ours, "{role}: nobody writes any more");
        }
    }
}

fn stop(child: &Child) -> Pid {
    let pid = Pid::from_raw(child.id()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    // The signal takes effect after the call that sends it.
    eventually("it has stopped", || {
        let told = waitpid(Some(pid), WaitOptions::UNTRACED | WaitOptions::NOHANG);
        told.unwrap().is_some_and(|(_, status)| status.stopped())
    });
    pid
}

#[test]
fn a_stopped_owner_delays_no_request_past_its_deadline() {
    let _alone = alone();
    let near = end("attached");
    let field = near.field(4096);
    let (stopped, other) = (Child::start("shared", 4096), Child::start("shared", 4096));
    let pid = stop(&stopped);
    let target = |child: &Child| {
        let peer = near.engine.open(child.segment.clone());
        child.target(peer)
    };
    let begun = now();
    let late = slackwater_transfer::Submit {
        timeout: Duration::from_millis(200),
        ..submit()
    };
    let waiting = near.engine.submit(
        vec![request(Op::Read, vec![field.range(0, 8)], target(&stopped))],
        &late,
    );
    near.engine
        .transfer(
            vec![request(Op::Read, vec![field.range(0, 8)], target(&other))],
            &submit(),
        )
        .unwrap();
    over("stopped", &waiting);
    assert!(
        now().since(begun) < Duration::from_secs(5),
        "{:?}",
        now().since(begun)
    );
    assert!(waiting.outcome(0).unwrap().cause.is_some());
    kill_process(pid, Signal::CONT).unwrap();
}
