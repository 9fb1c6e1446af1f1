use std::sync::Arc;

use slackwater_base::Checksum;
use slackwater_engine::Remote;
use slackwater_transfer::{
    BatchError, Buffers, Carried, Cause, Mover, Notice, Op, Refusal, SingleRequest, Status, Submit,
    TcpConfig, WhenFull,
};
use slackwater_wait::now;

use crate::sealed::{ALICE, BOB, sealed};
use crate::support::*;

#[test]
fn every_size_arrives_in_both_directions() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let (here, there) = (region(&alice, 5 << 20), region(&bob, 5 << 20));
    let (peer, capability) = (alice.open(bob.segment().clone()), grant(&bob, &there));
    for (turn, bytes) in [
        1,
        63,
        64,
        65,
        4095,
        4096,
        4097,
        65_536,
        1 << 20,
        (1 << 20) + 1,
        (4 << 20) + 7,
    ]
    .into_iter()
    .enumerate()
    {
        let (from, to) = (turn as u64 * 3 + 1, turn as u64 * 5 + 2);
        fill(&here, turn as u64);
        let local = vec![range(&here, from, bytes)];
        let write = request(Op::Write, local, target(peer, capability, to));
        assert_eq!(both_ways(&alice, &write, 20 * SECOND), [Ok(()), Ok(())]);
        let sent = bytes_of(&here, from, bytes as usize);
        assert!(
            bytes_of(&there, to, bytes as usize) == sent,
            "{bytes} bytes written"
        );
        fill(&here, 99);
        let read = request(
            Op::Read,
            vec![range(&here, 7, bytes)],
            target(peer, capability, to),
        );
        alice
            .submit(vec![read], &within(20 * SECOND))
            .wait(&slackwater_wait::Waiting::at(&SITE))
            .unwrap();
        assert!(
            bytes_of(&here, 7, bytes as usize) == sent,
            "{bytes} bytes read"
        );
        let (mut plain, place) = (vec![0; bytes as usize], target(peer, capability, to));
        alice.read_now(&place, &mut plain, 20 * SECOND).unwrap();
        assert!(plain == sent, "{bytes} bytes read by a waiting caller");
        alice
            .write_now(&target(peer, capability, 0), &plain, 20 * SECOND)
            .unwrap();
        assert!(
            bytes_of(&there, 0, bytes as usize) == sent,
            "{bytes} bytes written by a waiting caller"
        );
    }
}

/// The caller's own thread sums a long value piece by piece, while more of it comes or the peer takes it in; what goes by the
/// lanes, as sealed, is summed at the end.
#[test]
fn checksums_that_are_taken_in_passing_are_those_of_the_bytes() {
    let alone = |config| TcpConfig {
        stripe_bytes_min: 8 << 20,
        ..config
    };
    for (name, ours, theirs) in [
        ("plain", alone(config()), config()),
        ("sealed", sealed(ALICE, &[]), sealed(BOB, &[ALICE])),
    ] {
        let (alice, bob) = (engine("alice", ours), engine("bob", theirs));
        let there = region(&bob, 5 << 20);
        let (peer, capability) = (alice.open(bob.segment().clone()), grant(&bob, &there));
        for bytes in [
            1,
            65_536,
            131_071,
            131_072,
            131_073,
            1 << 20,
            (4 << 20) + 77,
        ] {
            fill(&there, bytes as u64);
            let place = target(peer, capability, 5);
            let mut value = vec![0; bytes];
            let read = alice.read_checked(&place, &mut value, 20 * SECOND);
            assert!(value == bytes_of(&there, 5, bytes), "{name}: {bytes} bytes");
            assert_eq!(read, Ok(Checksum::of(&value)), "{name}: {bytes} bytes");
            value.reverse();
            let written = alice.write_checked(&place, &value, 20 * SECOND);
            assert!(value == bytes_of(&there, 5, bytes), "{name}: {bytes} bytes");
            assert_eq!(written, Ok(Checksum::of(&value)), "{name}: {bytes} bytes");
        }
    }
}

/// A mover that left all sums to the end would give the same checksums, later.
#[test]
fn a_mover_that_carries_a_request_alone_gives_its_checksum() {
    let near = TcpConfig {
        loopback_buffer_bytes: 64 << 10,
        ..config()
    };
    let ((_alice, mover), bob) = (engine_and_mover("alice", near), engine("bob", config()));
    let there = region(&bob, 1 << 20);
    fill(&there, 3);
    let (segment, capability) = (Arc::new(bob.segment().clone()), grant(&bob, &there));
    let mut value = vec![7; 1 << 20];
    let mut check = |op, checksum, bytes: usize, taken: bool| {
        // SAFETY: the bytes outlive the request, and are not touched before it has ended.
        let buffers = unsafe { Buffers::borrowed(value.as_mut_ptr(), bytes) };
        let single = SingleRequest {
            op,
            buffers,
            remote: Remote {
                offset: 0,
                capability,
                key: None,
                trace: None,
            },
            deadline: now() + 20 * SECOND,
            checksum,
            may_wait: true,
        };
        let Carried::Done(sum) = mover.carry_now(&segment, single) else {
            panic!("{op:?} of {bytes} bytes is carried by the caller");
        };
        let expected = taken.then(|| Checksum::of(&value[..bytes]));
        assert_eq!(sum, Ok(expected), "{op:?} of {bytes} bytes");
    };
    for op in [Op::Write, Op::Read] {
        check(op, true, 4096, false);
        check(op, true, 1 << 20, true);
        check(op, true, (1 << 20) - 1, true);
        check(op, false, 1 << 20, false);
    }
}

#[test]
fn scattered_and_gathered_bytes_keep_their_order() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let (here, there) = (region(&alice, 4 << 20), region(&bob, 4 << 20));
    let (peer, capability) = (alice.open(bob.segment().clone()), grant(&bob, &there));
    fill(&here, 1);
    // Many uneven ranges, backwards, together above the size that is striped over lanes.
    let ranges: Vec<_> = (0..600u64)
        .rev()
        .map(|index| range(&here, index * 6000 + index % 7, 4000 + index % 13))
        .collect();
    let expected: Vec<u8> = ranges
        .iter()
        .flat_map(|range| bytes_of(&here, range.offset, range.bytes as usize))
        .collect();
    alice
        .transfer(
            vec![request(
                Op::Write,
                ranges.clone(),
                target(peer, capability, 11),
            )],
            &within(20 * SECOND),
        )
        .unwrap();
    assert!(bytes_of(&there, 11, expected.len()) == expected);
    let all = alice
        .home()
        .regions()
        .access(here.id(), 0, here.bytes())
        .unwrap();
    all.copy_in(0, &vec![0; here.bytes() as usize]);
    drop(all);
    alice
        .transfer(
            vec![request(
                Op::Read,
                ranges.clone(),
                target(peer, capability, 11),
            )],
            &within(20 * SECOND),
        )
        .unwrap();
    let got: Vec<u8> = ranges
        .iter()
        .flat_map(|range| bytes_of(&here, range.offset, range.bytes as usize))
        .collect();
    assert!(got == expected);
}

/// A small read was received in one call, payload and acknowledgement together. With more ranges than one call takes,
/// the buffer of the acknowledgement stood behind the last range that had room in the call: payload was received into
/// it, the ranges behind got what followed, and the read ended with wrong bytes or a protocol error.
#[test]
fn a_small_read_into_more_ranges_than_one_call_takes_is_whole() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let (here, there) = (region(&alice, 256 << 10), region(&bob, 64 << 10));
    let (peer, capability) = (alice.open(bob.segment().clone()), grant(&bob, &there));
    fill(&there, 3);
    for (ranges, bytes) in [
        (254, 64),
        (255, 64),
        (256, 64),
        (257, 64),
        (1024, 64),
        (2000, 7),
    ] {
        fill(&here, 4);
        let local = (0..ranges)
            .map(|index| range(&here, index * 100, bytes))
            .collect();
        let read = request(Op::Read, local, target(peer, capability, 0));
        assert_eq!(
            alice.transfer(vec![read], &within(20 * SECOND)),
            Ok(()),
            "{ranges} ranges"
        );
        let got: Vec<u8> = (0..ranges)
            .flat_map(|index| bytes_of(&here, index * 100, bytes as usize))
            .collect();
        assert!(
            got == bytes_of(&there, 0, got.len()),
            "{ranges} ranges of {bytes} bytes"
        );
    }
}

#[test]
fn ten_thousand_small_requests_are_one_batch() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let (here, there) = (region(&alice, 10_000 * 100), region(&bob, 10_000 * 100));
    let (peer, capability) = (alice.open(bob.segment().clone()), grant(&bob, &there));
    fill(&there, 5);
    let requests = (0..10_000u64).map(|index| {
        request(
            Op::Read,
            vec![range(&here, index * 100, 100)],
            target(peer, capability, index * 100),
        )
    });
    let batch = alice.submit(requests.collect(), &within(20 * SECOND));
    let notice = Notice {
        name: "read".to_owned(),
        bytes: vec![1, 2, 3],
    };
    batch.wait(&slackwater_wait::Waiting::at(&SITE)).unwrap();
    assert!((0..10_000).all(|request| batch.status(request) == Some(Status::Completed)));
    assert!(bytes_of(&here, 0, 1_000_000) == bytes_of(&there, 0, 1_000_000));
    alice.notify(peer, notice.clone(), 20 * SECOND).unwrap();
    assert_eq!(
        bob.take_notices(now() + 20 * SECOND),
        [(alice.home().incarnation(), notice)]
    );
    alice.fence(peer, 20 * SECOND).unwrap();
}

/// A notice that was longer than targets accept broke the connection that it was sent on.
#[test]
fn a_notice_that_is_too_long_is_not_sent() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let peer = alice.open(bob.segment().clone());
    let notice = |bytes| Notice {
        name: "n".to_owned(),
        bytes: vec![0; bytes],
    };
    alice
        .notify(peer, notice((64 << 10) - 1), 20 * SECOND)
        .unwrap();
    let ended = alice.notify(peer, notice(64 << 10), 20 * SECOND);
    assert!(
        matches!(ended, Err(BatchError::Failed(Cause::Invalid(_)))),
        "{ended:?}"
    );
}

static SITE: slackwater_wait::Site = slackwater_wait::Site::new("test");

#[test]
fn many_threads_share_an_engine() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let there = region(&bob, 1 << 20);
    fill(&there, 3);
    let (peer, capability) = (alice.open(bob.segment().clone()), grant(&bob, &there));
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let (alice, there) = (alice.clone(), there.clone());
            std::thread::spawn(move || {
                let here = region(&alice, 64 << 10);
                for turn in 0..50u64 {
                    let at = (thread * 7919 + turn * 104_729) % (900 << 10);
                    let local = vec![range(&here, 0, 64 << 10)];
                    let read = vec![request(Op::Read, local, target(peer, capability, at))];
                    alice.transfer(read, &within(20 * SECOND)).unwrap();
                    assert!(bytes_of(&here, 0, 64 << 10) == bytes_of(&there, at, 64 << 10));
                }
                alice.unregister(here.id(), 20 * SECOND).unwrap();
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert_eq!(alice.stats(peer)[0].1.completed, 400);
}

#[test]
fn the_target_refuses_what_was_not_granted_and_serves_on() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let (here, there) = (region(&alice, 1 << 20), region(&bob, 1 << 20));
    let (peer, capability) = (alice.open(bob.segment().clone()), grant(&bob, &there));
    let mut forged = capability.to_bytes();
    forged[20] ^= 1;
    let forged = slackwater_transfer::Capability::from_bytes(&forged);
    let local = || vec![range(&here, 0, 1 << 20)];
    let batch = alice.submit(
        vec![
            request(Op::Write, local(), target(peer, forged, 0)),
            request(Op::Write, local(), target(peer, capability, 1)),
            request(Op::Read, local(), target(peer, forged, 0)),
            request(Op::Write, local(), target(peer, capability, 0)),
            request(Op::Read, local(), target(peer, capability, 0)),
        ],
        &within(20 * SECOND),
    );
    let ended = batch
        .wait(&slackwater_wait::Waiting::at(&SITE))
        .unwrap_err();
    assert!(
        matches!(ended, BatchError::Failed(Cause::Refused(_))),
        "{ended}"
    );
    let causes: Vec<_> = (0..5)
        .map(|request| batch.outcome(request).unwrap().cause)
        .collect();
    let refused = |refusal| Some(Cause::Refused(refusal));
    // A waiting caller is refused as well, and its connection serves on.
    let mut plain = vec![0; 100_000];
    for bytes in [1, 10, 100, 100_000] {
        let wrong = alice.read_now(&target(peer, forged, 0), &mut plain[..bytes], 20 * SECOND);
        assert_eq!(wrong, Err(Cause::Refused(Refusal::Forged)));
        let wrong = alice.write_now(&target(peer, forged, 0), &plain[..bytes], 20 * SECOND);
        assert_eq!(wrong, Err(Cause::Refused(Refusal::Forged)));
        alice
            .read_now(
                &target(peer, capability, 0),
                &mut plain[..bytes],
                20 * SECOND,
            )
            .unwrap();
    }
    assert_eq!(
        causes,
        [
            refused(Refusal::Forged),
            refused(Refusal::Range),
            refused(Refusal::Forged),
            None,
            None
        ]
    );
}

#[test]
fn a_cancelled_batch_lets_go_of_its_memory_and_the_lane_goes_on() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let (here, there) = (region(&alice, 16 << 20), region(&bob, 16 << 20));
    let (peer, capability) = (alice.open(bob.segment().clone()), grant(&bob, &there));
    for op in [Op::Read, Op::Write] {
        for _ in 0..10 {
            let large = request(
                op,
                vec![range(&here, 0, 16 << 20)],
                target(peer, capability, 0),
            );
            let batch = alice.submit(vec![large.clone(), large], &within(20 * SECOND));
            batch.cancel();
            let ended = batch.wait(&slackwater_wait::Waiting::at(&SITE));
            assert!(
                matches!(ended, Ok(()) | Err(BatchError::Cancelled)),
                "{ended:?}"
            );
            assert!(batch.is_done());
            // No access is left, so the region can be reused at once.
            alice.invalidate(here.id(), SECOND).unwrap();
        }
    }
    fill(&here, 8);
    let small = request(
        Op::Write,
        vec![range(&here, 0, 100)],
        target(peer, capability, 0),
    );
    alice.transfer(vec![small], &within(20 * SECOND)).unwrap();
    assert!(bytes_of(&there, 0, 100) == bytes_of(&here, 0, 100));
}

#[test]
fn a_full_queue_makes_the_submitter_wait_or_tells_it() {
    let small = slackwater_transfer::TcpConfig {
        queue_entries: 4,
        max_transfers: 1,
        ..config()
    };
    let (alice, bob) = (engine("alice", small), engine("bob", config()));
    let (here, there) = (region(&alice, 1 << 20), region(&bob, 1 << 20));
    let (peer, capability) = (alice.open(bob.segment().clone()), grant(&bob, &there));
    let requests = |count: u64| {
        let one = |index| {
            request(
                Op::Read,
                vec![range(&here, index * 64, 64)],
                target(peer, capability, index * 64),
            )
        };
        (0..count).map(one).collect::<Vec<_>>()
    };
    for _ in 0..200 {
        let batch = alice.submit(requests(1), &within(20 * SECOND));
        drop(batch);
    }
    alice.fence(peer, 20 * SECOND).unwrap();
    assert_eq!(alice.stats(peer)[0].1.completed, 200);
    let refuse = Submit {
        when_full: WhenFull::Refuse,
        ..within(20 * SECOND)
    };
    let batches: Vec<_> = (0..500)
        .map(|_| alice.submit(requests(1), &refuse))
        .collect();
    let mut refused = 0;
    for batch in batches {
        match batch.wait(&slackwater_wait::Waiting::at(&SITE)) {
            Ok(()) => {}
            Err(BatchError::Failed(Cause::Full { .. })) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(alice.stats(peer)[0].1.completed, 700 - refused);
}

#[test]
fn a_callback_that_panics_hurts_only_itself() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let (here, there) = (region(&alice, 4096), region(&bob, 4096));
    let (peer, capability) = (alice.open(bob.segment().clone()), grant(&bob, &there));
    let read = || {
        request(
            Op::Read,
            vec![range(&here, 0, 4096)],
            target(peer, capability, 0),
        )
    };
    for _ in 0..5 {
        // Held back by its size until the hook is in place, or else the panic would be this thread's own.
        let batch = alice.submit((0..1000).map(|_| read()).collect(), &within(20 * SECOND));
        let hooked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            batch.hook(slackwater_wait::Hook::Call(Box::new(|| {
                panic!("on purpose")
            })))
        }));
        assert!(matches!(hooked, Ok(Ok(())) | Err(_)));
        batch.wait(&slackwater_wait::Waiting::at(&SITE)).unwrap();
        assert_eq!(both_ways(&alice, &read(), 20 * SECOND), [Ok(()), Ok(())]);
    }
}
