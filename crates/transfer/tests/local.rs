//! The engine over its simplest mover: facts that hold for every request, over any mover.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::sync::Arc;
use std::time::Duration;

use slackwater_transfer::{
    BatchError, Cause, Engine, GrantSpec, Home, Local, LocalRange, Memory, Mover, Notice, Op,
    Refusal, Region, RegionSpec, RegisterError, Request, Rights, Segment, Status, Submit, Target,
};
use slackwater_wait::now;

const SECOND: Duration = Duration::from_secs(1);

fn engine(name: &str) -> Engine {
    let life = Home::open().unwrap();
    let movers: Vec<Arc<dyn Mover>> = vec![Arc::new(Local::new(&life))];
    let segment = Segment {
        name: name.to_owned(),
        incarnation: life.incarnation(),
        addresses: Vec::new(),
        public_key: None,
        host: None,
    };
    Engine::assemble(life, segment, movers)
}

fn region(engine: &Engine, bytes: usize) -> Arc<Region> {
    engine
        .register(RegionSpec {
            memory: Memory::anonymous(bytes).unwrap(),
            rights: Rights::BOTH,
            gate: None,
        })
        .unwrap()
}

fn request(op: Op, local: &Region, bytes: u64, target: Target) -> Request {
    let local = vec![LocalRange {
        region: local.id(),
        offset: 0,
        bytes,
    }];
    Request {
        op,
        local,
        target,
        timeout: None,
        priority: slackwater_transfer::Priority::Normal,
    }
}

#[test]
fn bytes_arrive_and_a_notice_follows() {
    let (alice, bob) = (engine("alice"), engine("bob"));
    let (here, there) = (region(&alice, 8192), region(&bob, 8192));
    let peer = alice.open(bob.segment().clone());
    let capability = bob
        .grant(there.id(), &GrantSpec::whole(&there, Rights::BOTH))
        .unwrap();
    let target = Target {
        peer,
        offset: 100,
        capability,
        key: None,
    };
    here.access(0, 5).unwrap().copy_in(0, b"hello");
    let notice = Notice {
        name: "done".into(),
        bytes: b"5".to_vec(),
    };
    let submit = Submit {
        notice: Some((peer, notice.clone())),
        ..Submit::default()
    };
    alice
        .transfer(vec![request(Op::Write, &here, 5, target)], &submit)
        .unwrap();
    let mut got = [0; 5];
    there.access(100, 5).unwrap().copy_out(0, &mut got);
    assert_eq!(&got, b"hello");
    assert_eq!(
        bob.take_notices(now() + SECOND),
        [(alice.home().incarnation(), notice)]
    );
    let batch = alice.submit(
        vec![request(Op::Read, &here, 0, target)],
        &Submit::default(),
    );
    assert!(batch.is_done());
    assert_eq!(batch.status(0), Some(Status::Completed));
    assert!(alice.submit(Vec::new(), &Submit::default()).is_done());
}

#[test]
fn nothing_granted_before_an_invalidation_reaches_a_byte() {
    let (alice, bob) = (engine("alice"), engine("bob"));
    let (here, there) = (region(&alice, 64), region(&bob, 64));
    let peer = alice.open(bob.segment().clone());
    let capability = bob
        .grant(there.id(), &GrantSpec::whole(&there, Rights::BOTH))
        .unwrap();
    let target = Target {
        peer,
        offset: 0,
        capability,
        key: None,
    };
    let refused = |refusal| Err(BatchError::Failed(Cause::Refused(refusal)));
    let write = |target| {
        alice.transfer(
            vec![request(Op::Write, &here, 64, target)],
            &Submit::default(),
        )
    };
    assert_eq!(write(target), Ok(()));
    bob.invalidate(there.id(), SECOND).unwrap();
    assert_eq!(write(target), refused(Refusal::Generation));
    let again = bob
        .grant(there.id(), &GrantSpec::whole(&there, Rights::READ))
        .unwrap();
    assert_eq!(
        write(Target {
            capability: again,
            ..target
        }),
        refused(Refusal::Rights)
    );
    bob.home().rotate(Duration::ZERO).unwrap();
    assert_eq!(
        write(Target {
            capability: again,
            ..target
        }),
        refused(Refusal::Forged)
    );
    bob.unregister(there.id(), SECOND).unwrap();
    assert!(
        bob.grant(there.id(), &GrantSpec::whole(&there, Rights::BOTH))
            .is_err()
    );
}

#[test]
fn a_region_is_not_taken_back_while_somebody_is_at_it() {
    let bob = engine("bob");
    let there = region(&bob, 64);
    let access = there.access(0, 64).unwrap();
    assert!(bob.unregister(there.id(), Duration::ZERO).is_err());
    assert!(!access.is_live() && there.access(0, 1).is_err());
    let waiting = std::thread::spawn({
        let (bob, id) = (bob.clone(), there.id());
        move || bob.unregister(id, 20 * SECOND)
    });
    drop(access);
    waiting.join().unwrap().unwrap();
    assert!(bob.home().regions().get(there.id()).is_none());
}

#[test]
fn wrong_requests_are_invalid_and_hurt_no_other() {
    let (alice, bob) = (engine("alice"), engine("bob"));
    let (here, there) = (region(&alice, 64), region(&bob, 64));
    let peer = alice.open(bob.segment().clone());
    let capability = bob
        .grant(there.id(), &GrantSpec::whole(&there, Rights::BOTH))
        .unwrap();
    let target = Target {
        peer,
        offset: 0,
        capability,
        key: None,
    };
    let forgotten = alice.open(Segment {
        name: "carol".into(),
        ..bob.segment().clone()
    });
    alice.forget(forgotten);
    let batch = alice.submit(
        vec![
            request(Op::Write, &here, 65, target),
            request(
                Op::Write,
                &here,
                64,
                Target {
                    peer: forgotten,
                    ..target
                },
            ),
            request(
                Op::Write,
                &here,
                64,
                Target {
                    offset: 1,
                    ..target
                },
            ),
            request(Op::Write, &here, 64, target),
        ],
        &Submit::default(),
    );
    let statuses: Vec<_> = (0..4)
        .map(|request| batch.status(request).unwrap())
        .collect();
    assert_eq!(
        statuses,
        [
            Status::Invalid,
            Status::Invalid,
            Status::Failed,
            Status::Completed
        ]
    );
    assert_eq!(batch.status(4), None);
    let id = alice.keep(&batch);
    assert!(
        alice.batch(id).is_some() && alice.free(id) && !alice.free(id) && alice.batch(id).is_none()
    );
}

#[test]
fn registration_refuses_what_cannot_be_kept_apart() {
    let bob = engine("bob");
    let there = region(&bob, 4096);
    let start = there.memory().start();
    // SAFETY: registration looks at addresses only, and each of these is refused.
    let again = |from: usize, bytes: usize| unsafe {
        let start = std::ptr::NonNull::new(start.as_ptr().wrapping_add(from)).unwrap();
        let memory = Memory::borrowed(start, bytes, slackwater_transfer::Location::Host);
        bob.register(RegionSpec {
            memory,
            rights: Rights::READ,
            gate: None,
        })
        .unwrap_err()
    };
    assert_eq!(again(0, 0), RegisterError::Empty);
    assert_eq!(
        again(4095, 10),
        RegisterError::Overlap { other: there.id() }
    );
    assert!(matches!(again(0, usize::MAX), RegisterError::Wraps { .. }));
    // SAFETY: as above.
    let device = unsafe { Memory::borrowed(start, 1, slackwater_transfer::Location::Cuda(0)) };
    let refused = bob
        .register(RegionSpec {
            memory: device,
            rights: Rights::READ,
            gate: None,
        })
        .unwrap_err();
    assert_eq!(
        refused,
        RegisterError::Unsupported(slackwater_transfer::Location::Cuda(0))
    );
    let found = bob
        .home()
        .regions()
        .find(start.as_ptr().addr() + 7, 4089)
        .unwrap();
    assert_eq!((found.region.id(), found.offset), (there.id(), 7));
    assert!(
        bob.home()
            .regions()
            .find(start.as_ptr().addr() + 8, 4089)
            .is_none()
    );
}
