//! How requests end: once, with a cause, and with no access to their memory left.

use std::time::Duration;

use slackwater_transfer::{Cause, GrantSpec, Op, Refusal, Rights, Status, Submit, Target};
use slackwater_zmtp::PublicKey;

use crate::check;
use crate::world::{PATIENCE, at, noise, over, request, submit};

fn refusal(world: &crate::world::World, request: slackwater_transfer::Request) -> Option<Cause> {
    let batch = world.near.engine.submit(vec![request], &submit());
    over(world.name, &batch);
    batch.outcome(0).unwrap().cause
}

#[test]
fn what_the_capability_does_not_allow_is_refused() {
    check(|world| {
        let (near, far) = (world.near.field(4096), world.far.filled(&noise(3, 4096)));
        let before = far.load();
        let read_only = world.target_with(&far, Rights::READ);
        let part = GrantSpec {
            offset: 1000,
            bytes: 100,
            ..GrantSpec::whole(&far.region, Rights::BOTH)
        };
        let part = Target {
            capability: world.far.engine.grant(far.region.id(), &part).unwrap(),
            ..read_only
        };
        let mut forged = read_only.capability.to_bytes();
        forged[12] ^= 3;
        let forged = Target {
            capability: slackwater_transfer::Capability::from_bytes(&forged),
            ..read_only
        };
        for (target, bytes, expected) in [
            (read_only, 1, Refusal::Rights),
            (at(part, 1000), 101, Refusal::Range),
            (at(part, 999), 1, Refusal::Range),
            (forged, 1, Refusal::Forged),
        ] {
            let cause = refusal(
                world,
                request(Op::Write, vec![near.range(0, bytes)], target),
            );
            assert_eq!(cause, Some(Cause::Refused(expected)), "{}", world.name);
        }
        assert!(
            far.load() == before,
            "{}: refused writes change nothing",
            world.name
        );
        world
            .near
            .engine
            .transfer(
                vec![request(Op::Write, vec![near.range(0, 100)], at(part, 1000))],
                &submit(),
            )
            .unwrap();
    });
}

#[test]
fn a_stale_generation_is_refused_and_changes_no_byte() {
    check(|world| {
        let (near, far) = (
            world.near.filled(&vec![9; 4096]),
            world.far.filled(&vec![1; 4096]),
        );
        let stale = world.target(&far);
        world
            .near
            .engine
            .transfer(
                vec![request(Op::Write, vec![near.range(0, 10)], stale)],
                &submit(),
            )
            .unwrap();
        world
            .far
            .engine
            .invalidate(far.region.id(), PATIENCE)
            .unwrap();
        far.store(&vec![2; 4096]);
        for op in [Op::Write, Op::Read] {
            let cause = refusal(world, request(op, vec![near.range(0, 100)], stale));
            assert_eq!(
                cause,
                Some(Cause::Refused(Refusal::Generation)),
                "{}: {op:?}",
                world.name
            );
        }
        assert!(far.load() == vec![2; 4096], "{}", world.name);
        let fresh = world.target(&far);
        world
            .near
            .engine
            .transfer(
                vec![request(Op::Write, vec![near.range(0, 100)], fresh)],
                &submit(),
            )
            .unwrap();
        assert!(
            far.load()[..100] == [9; 100],
            "{}: the next generation",
            world.name
        );
    });
}

#[test]
fn a_region_that_is_gone_is_refused() {
    check(|world| {
        let (near, far) = (world.near.field(4096), world.far.field(4096));
        let target = world.target(&far);
        world
            .near
            .engine
            .transfer(
                vec![request(Op::Read, vec![near.range(0, 10)], target)],
                &submit(),
            )
            .unwrap();
        world
            .far
            .engine
            .unregister(far.region.id(), PATIENCE)
            .unwrap();
        let cause = refusal(world, request(Op::Read, vec![near.range(0, 10)], target));
        let expected = [
            Cause::Refused(Refusal::Region),
            Cause::Refused(Refusal::Generation),
        ];
        assert!(
            cause.as_ref().is_some_and(|cause| expected.contains(cause)),
            "{}: {cause:?}",
            world.name
        );
    });
}

#[test]
fn a_deadline_that_has_passed_ends_every_request() {
    check(|world| {
        let (near, far) = (world.near.filled(&vec![1; 4096]), world.far.field(4096));
        let target = world.target(&far);
        let requests = (0..100)
            .map(|_| request(Op::Write, vec![near.range(0, 4096)], target))
            .collect();
        let batch = world.near.engine.submit(
            requests,
            &Submit {
                timeout: Duration::ZERO,
                ..submit()
            },
        );
        over(world.name, &batch);
        for index in 0..100 {
            assert_eq!(
                batch.status(index),
                Some(Status::TimedOut),
                "{}",
                world.name
            );
        }
    });
}

#[test]
fn a_cancelled_batch_ends_soon_and_each_request_once() {
    check(|world| {
        let (near, far) = (
            world.near.filled(&noise(5, 8 << 20)),
            world.far.field(8 << 20),
        );
        let target = world.target(&far);
        let requests: Vec<_> = (0..64)
            .map(|_| request(Op::Write, vec![near.range(0, 8 << 20)], target))
            .collect();
        let batch = world.near.engine.submit(requests, &submit());
        batch.cancel();
        over(world.name, &batch);
        for index in 0..64 {
            let status = batch.status(index).unwrap();
            assert!(
                matches!(status, Status::Completed | Status::Cancelled),
                "{}: {status:?}",
                world.name
            );
        }
        // No access is left: both regions can be reused at once.
        world
            .near
            .engine
            .invalidate(near.region.id(), PATIENCE)
            .unwrap();
        world
            .far
            .engine
            .invalidate(far.region.id(), PATIENCE)
            .unwrap();
    });
}

#[test]
fn a_fence_comes_after_what_was_submitted_before() {
    check(|world| {
        let (near, far) = (
            world.near.filled(&noise(6, 4 << 20)),
            world.far.field(4 << 20),
        );
        let target = world.target(&far);
        let requests: Vec<_> = (0..16)
            .map(|_| request(Op::Write, vec![near.range(0, 4 << 20)], target))
            .collect();
        let batch = world.near.engine.submit(requests, &submit());
        world.near.engine.fence(world.peer, PATIENCE).unwrap();
        assert!(batch.is_done(), "{}", world.name);
        assert!(far.load() == near.load(), "{}", world.name);
    });
}

#[test]
fn a_peer_answers_and_takes_notices() {
    check(|world| {
        world.near.engine.probe(world.peer, PATIENCE).unwrap();
        let notice = slackwater_transfer::Notice {
            name: "kv ready".to_owned(),
            bytes: noise(7, 1000),
        };
        world
            .near
            .engine
            .notify(world.peer, notice.clone(), PATIENCE)
            .unwrap();
        let taken = world
            .far
            .engine
            .take_notices(slackwater_wait::now() + PATIENCE);
        let near = &world.near.engine;
        // Where keys are proven the claimed incarnation does not count.
        let key = near.segment().public_key.map(PublicKey::from_bytes);
        let sender = key.map_or(near.home().incarnation(), |key| {
            slackwater_transfer::holder_of(&key)
        });
        assert!(
            taken == [(sender, notice)],
            "{}: from {:?}",
            world.name,
            taken.first().map(|(from, _)| from)
        );
    });
}

#[test]
fn a_closed_engine_ends_what_is_left() {
    check(|world| {
        let (near, far) = (world.near.field(4 << 20), world.far.field(4 << 20));
        let target = world.target(&far);
        let requests: Vec<_> = (0..64)
            .map(|_| request(Op::Write, vec![near.range(0, 4 << 20)], target))
            .collect();
        let batch = world.near.engine.submit(requests, &submit());
        world.near.engine.close();
        over(world.name, &batch);
        for index in 0..64 {
            let outcome = batch.outcome(index).unwrap();
            assert!(
                matches!(outcome.cause, None | Some(Cause::Closed)),
                "{}: {outcome:?}",
                world.name
            );
        }
    });
}

#[test]
fn many_peers_use_one_region_at_a_time() {
    check(|world| {
        let far = world.far.filled(&noise(8, 1 << 20));
        let target = world.target(&far);
        let expected = far.load();
        std::thread::scope(|threads| {
            for _ in 0..8 {
                threads.spawn(|| {
                    let near = world.near.field(1 << 20);
                    for _ in 0..10 {
                        let requests = (0..16)
                            .map(|index| {
                                let offset = index * 65_536;
                                request(
                                    Op::Read,
                                    vec![near.range(offset, 65_536)],
                                    at(target, offset),
                                )
                            })
                            .collect();
                        world.near.engine.transfer(requests, &submit()).unwrap();
                        assert!(near.load() == expected, "{}", world.name);
                    }
                });
            }
        });
    });
}
