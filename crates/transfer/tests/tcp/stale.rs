//! Late and replayed writes to memory that has another use change no byte.

use slackwater_transfer::{BatchError, Cause, Op, Refusal, Status};
use slackwater_wait::Waiting;

use crate::support::*;

static SITE: slackwater_wait::Site = slackwater_wait::Site::new("test");

#[test]
fn writes_under_way_when_a_region_gets_another_use_change_nothing_after() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let (here, there) = (region(&alice, 8 << 20), region(&bob, 8 << 20));
    let peer = alice.open(bob.segment().clone());
    fill(&here, 1);
    for round in 0..30u64 {
        let old = grant(&bob, &there);
        let requests = (0..8u64).map(|index| {
            request(
                Op::Write,
                vec![range(&here, index << 20, 1 << 20)],
                target(peer, old, index << 20),
            )
        });
        let batch = alice.submit(requests.collect(), &within(20 * SECOND));
        // Somewhere in the middle of it, at another place each round.
        let enough = (round % 8) as u32;
        until("writes arrive", || batch.remaining() <= 8 - enough);
        bob.invalidate(there.id(), 20 * SECOND).unwrap();
        let use_after = pattern(1000 + round, 8 << 20);
        there.access(0, 8 << 20).unwrap().copy_in(0, &use_after);
        let _ = batch.wait(&Waiting::at(&SITE));
        let replay = request(
            Op::Write,
            vec![range(&here, 0, 1 << 20)],
            target(peer, old, 0),
        );
        let refused = alice.transfer(vec![replay], &within(20 * SECOND));
        assert_eq!(
            refused,
            Err(BatchError::Failed(Cause::Refused(Refusal::Generation)))
        );
        assert!(
            bytes_of(&there, 0, 8 << 20) == use_after,
            "round {round}: a late write changed a byte"
        );
        for index in 0..8 {
            let outcome = batch.outcome(index).unwrap();
            let fit = matches!(
                outcome.cause,
                None | Some(Cause::Refused(Refusal::Generation))
            );
            assert!(fit, "round {round}: {outcome:?}");
        }
    }
}

#[test]
fn reads_under_way_when_a_region_gets_another_use_bring_old_bytes_or_fail() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let (here, there) = (region(&alice, 4 << 20), region(&bob, 4 << 20));
    let peer = alice.open(bob.segment().clone());
    for round in 0..30u64 {
        fill(&there, round);
        let (old, before) = (grant(&bob, &there), bytes_of(&there, 0, 4 << 20));
        let requests = (0..4u64).map(|index| {
            request(
                Op::Read,
                vec![range(&here, index << 20, 1 << 20)],
                target(peer, old, index << 20),
            )
        });
        let batch = alice.submit(requests.collect(), &within(20 * SECOND));
        until("reads arrive", || {
            batch.remaining() <= 4 - (round % 4) as u32
        });
        bob.invalidate(there.id(), 20 * SECOND).unwrap();
        fill(&there, 5000);
        let _ = batch.wait(&Waiting::at(&SITE));
        for index in 0..4 {
            if batch.status(index) == Some(Status::Completed) {
                let at = index << 20;
                assert!(
                    bytes_of(&here, at as u64, 1 << 20) == before[at..at + (1 << 20)],
                    "round {round}"
                );
            }
        }
    }
}
