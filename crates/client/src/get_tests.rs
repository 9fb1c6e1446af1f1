use std::time::Duration;

use slackwater_base::{Checksum, Instant, Rng};
use slackwater_wire::{
    Chain, Class, ErrorCode, ExtentRef, Get, GuardId, Hold, Incarnation, Key, Lookup, NodeId,
    Object, OperationId, ReplicaAt, Reply, Request, SegmentId, Tenant, Version,
};

use super::*;
use crate::{LocalFirst, Operations};

const GOOD: Checksum = Checksum(42);
const BAD: Checksum = Checksum(43);

fn memory(segment: u32) -> ReplicaAt {
    let (segment, incarnation) = (SegmentId(segment), Incarnation(1));
    ReplicaAt::Memory(ExtentRef {
        segment,
        incarnation,
        offset: 0,
        bytes: 4096,
        generation: 1,
    })
}

fn disk() -> ReplicaAt {
    ReplicaAt::Disk {
        node: NodeId(1),
        segment: SegmentId(9),
    }
}

fn object(replicas: &[ReplicaAt]) -> Object {
    Object {
        version: Version(7),
        bytes: 100,
        checksum: GOOD,
        replicas: replicas.into(),
        lease: Duration::from_secs(10),
        guard: Some(GuardId(5)),
    }
}

fn found(replicas: &[ReplicaAt]) -> Lookup {
    Lookup::Found(object(replicas))
}

struct World {
    flow: GetFlow,
    out: Vec<Action>,
    now: Instant,
    /// The last operation that was sent.
    operation: OperationId,
}

impl World {
    fn new(keys: &[&str], hold: Hold, attempts: u32) -> Self {
        Self::at(0, keys, hold, attempts)
    }

    /// The keys begin at this position of their chain.
    fn at(position: u32, keys: &[&str], hold: Hold, attempts: u32) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let get = Get {
            tenant: Tenant::DEFAULT,
            keys: keys
                .iter()
                .map(|key| Key::try_from(*key).unwrap())
                .collect(),
            chain: Chain {
                position,
                ..Chain::default()
            },
            hold,
            prefix_only: false,
        };
        let options = FlowOptions {
            deadline: now + Duration::from_secs(30),
            attempts,
            answer_timeout: Duration::from_secs(60),
            backoff: FlowOptions::BACKOFF,
            jitter: Rng::new(1),
            operations: Operations::remote(),
        };
        let mut out = vec![];
        let flow = GetFlow::start(now, get, options, Box::new(LocalFirst::default()), &mut out);
        let operation = OperationId(0);
        let mut world = Self {
            flow,
            out,
            now,
            operation,
        };
        assert_eq!(world.asks(), [keys.len()]);
        world
    }

    fn reply(&mut self, lookups: Vec<Lookup>) {
        self.answer(Reply::Get(lookups));
    }

    /// Answers the last operation that was sent.
    fn answer(&mut self, reply: Reply) {
        self.flow
            .on_reply(self.now, self.operation, reply, &mut self.out);
    }

    fn read(&mut self, index: usize, result: Result<Checksum, ReadFailure>) {
        self.flow.on_read(self.now, index, result, &mut self.out);
    }

    fn tick(&mut self) {
        self.now = self.flow.next_deadline().unwrap();
        self.flow.on_deadline(self.now, &mut self.out);
    }

    /// Takes the requests: the number of keys of each.
    fn asks(&mut self) -> Vec<usize> {
        let mut asks = vec![];
        for action in &self.out {
            if let Action::Ask { operation, request } = action {
                let Request::Get(get) = request else {
                    panic!("unexpected {request:?}");
                };
                self.operation = *operation;
                asks.push(get.keys.len());
            }
        }
        self.out
            .retain(|action| !matches!(action, Action::Ask { .. }));
        asks
    }

    fn reads(&mut self) -> Vec<(usize, ReplicaAt)> {
        let reads = self.out.iter().filter_map(|action| match action {
            Action::Read { index, from, .. } => Some((*index, *from)),
            _ => None,
        });
        let reads = reads.collect();
        self.out
            .retain(|action| !matches!(action, Action::Read { .. }));
        reads
    }

    fn tells(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.out)
            .into_iter()
            .map(|action| match action {
                Action::Tell { request, .. } => request,
                other => panic!("unexpected {other:?}"),
            })
            .collect()
    }
}

fn guards_back() -> Request {
    Request::GetEnd(GetEnd {
        guards: vec![GuardId(5)],
    })
}

#[test]
fn a_hit_reads_memory_first_and_gives_its_guard_back() {
    let mut world = World::new(&["a", "b"], Hold::Guard, 1);
    world.reply(vec![found(&[disk(), memory(1)]), Lookup::Missing]);
    assert_eq!(world.reads(), [(0, memory(1))]);
    assert!(world.flow.outcomes().is_none());
    world.read(0, Ok(GOOD));
    assert_eq!(world.tells(), [guards_back()]);
    let outcomes = [
        GetOutcome::Hit {
            bytes: 100,
            from: memory(1),
        },
        GetOutcome::Miss,
    ];
    assert_eq!(world.flow.outcomes().unwrap(), outcomes);
    assert_eq!(world.flow.next_deadline(), None);
}

/// The master would take a request with a used number for a copy of an earlier one, and not carry it out.
#[test]
fn each_request_of_a_read_has_a_number_of_its_own() {
    let mut world = World::new(&["a"], Hold::Guard, 1);
    let mut numbers = vec![world.operation];
    world.reply(vec![found(&[memory(1), disk()])]);
    world.read(0, Ok(BAD));
    world.read(0, Ok(GOOD));
    for action in world.out {
        if let Action::Tell { operation, .. } = action {
            assert!(!numbers.contains(&operation), "{operation:?}");
            numbers.push(operation);
        }
    }
    assert_eq!(numbers.len(), 3, "the look-up, the suspicion, the guard");
}

#[test]
fn wrong_bytes_are_reported_and_the_next_replica_is_read() {
    let mut world = World::new(&["a"], Hold::Guard, 1);
    world.reply(vec![found(&[memory(1), disk()])]);
    world.reads();
    world.read(0, Ok(BAD));
    assert_eq!(world.reads(), [(0, disk())]);
    world.read(0, Ok(GOOD));
    let tells = world.tells();
    assert!(
        matches!(&tells[0], Request::Suspect { at, version: Version(7), .. } if *at == memory(1)),
        "{tells:?}"
    );
    assert_eq!(tells[1], guards_back());
    assert_eq!(
        world.flow.outcomes().unwrap(),
        [GetOutcome::Hit {
            bytes: 100,
            from: disk()
        }]
    );
}

#[test]
fn when_no_replica_is_right_it_is_a_miss_and_never_wrong_bytes() {
    let mut world = World::new(&["a"], Hold::Guard, 1);
    world.reply(vec![found(&[memory(1), disk()])]);
    world.read(0, Ok(BAD));
    world.read(0, Err(ReadFailure::Corrupt));
    assert_eq!(world.flow.outcomes().unwrap(), [GetOutcome::Miss]);
}

/// A reader paused past its lease may have copied bytes of the extent's next object: even a right checksum does not
/// make the read valid, so it looks up again.
#[test]
fn a_read_that_outlasts_its_lease_is_repeated() {
    let mut world = World::new(&["a"], Hold::Lease, 2);
    world.reply(vec![found(&[memory(1)])]);
    world.now += Duration::from_millis(9_001);
    world.read(0, Ok(GOOD));
    assert!(world.flow.outcomes().is_none());
    world.out.clear();
    world.tick();
    assert_eq!(world.asks(), [1]);
    world.reply(vec![found(&[memory(1)])]);
    world.read(0, Ok(GOOD));
    assert_eq!(
        world.flow.outcomes().unwrap(),
        [GetOutcome::Hit {
            bytes: 100,
            from: memory(1)
        }]
    );
}

/// The margin of a lease is a tenth of it and at least 100 ms: clocks drift, and what is read in the margin may have been
/// reused by then.
#[test]
fn a_lease_is_trusted_up_to_its_margin() {
    let check = |lease: u64, usable: u64| {
        let lease = Duration::from_millis(lease);
        let mut object = object(&[memory(1)]);
        object.lease = lease;
        for late in [Duration::ZERO, Duration::from_nanos(1)] {
            let mut world = World::new(&["a"], Hold::Lease, 2);
            world.reply(vec![Lookup::Found(object.clone())]);
            world.now += Duration::from_millis(usable) + late;
            world.read(0, Ok(GOOD));
            let trusted = world.flow.outcomes().is_some();
            assert_eq!(trusted, late.is_zero(), "{lease:?} and {late:?}");
        }
    };
    check(20_000, 18_000);
    check(1_000, 900);
    check(500, 400);
    check(100, 0);
    check(50, 0);
}

#[test]
fn wrong_bytes_after_the_lease_are_not_reported() {
    let mut world = World::new(&["a"], Hold::Lease, 1);
    world.reply(vec![found(&[memory(1)])]);
    world.reads();
    world.now += Duration::from_secs(11);
    world.read(0, Ok(BAD));
    assert_eq!(world.tells(), [guards_back()]);
    assert_eq!(world.flow.outcomes().unwrap(), [GetOutcome::Miss]);
}

#[test]
fn one_slow_key_does_not_delay_the_others_and_is_looked_up_alone() {
    let mut world = World::new(&["a", "b", "c"], Hold::Guard, 3);
    world.reply(vec![found(&[memory(1)]), Lookup::NotReady, Lookup::Missing]);
    assert_eq!(world.reads(), [(0, memory(1))]);
    world.read(0, Ok(GOOD));
    world.out.clear();
    world.tick();
    let chain = match &world.out[0] {
        Action::Ask {
            request: Request::Get(get),
            ..
        } => get.chain.clone(),
        other => panic!("unexpected {other:?}"),
    };
    assert_eq!(
        (chain.position, chain.parent),
        (1, Some(Key::try_from("a").unwrap()))
    );
    assert_eq!(world.asks(), [1]);
    world.reply(vec![Lookup::Missing]);
    assert_eq!(world.flow.outcomes().unwrap()[1], GetOutcome::Miss);
}

#[test]
fn refusals_are_final_and_silence_ends_at_the_deadline() {
    let check = |reply: Option<Reply>, outcome: GetOutcome| {
        let mut world = World::new(&["a"], Hold::Guard, 3);
        match reply {
            Some(reply) => world.answer(reply),
            None => world.tick(),
        }
        assert_eq!(world.flow.outcomes().unwrap(), [outcome]);
    };
    let failed = GetOutcome::Failed;
    check(
        Some(Reply::Failed(ErrorCode::InvalidParams)),
        failed(ErrorCode::InvalidParams),
    );
    check(
        Some(Reply::Get(vec![Lookup::Failed(ErrorCode::InvalidKey)])),
        failed(ErrorCode::InvalidKey),
    );
    check(Some(Reply::Done), failed(ErrorCode::InternalError));
    check(None, failed(ErrorCode::DeadlinePassed));
}

#[test]
fn a_small_buffer_is_refused_without_trying_other_replicas() {
    let mut world = World::new(&["a"], Hold::Guard, 3);
    world.reply(vec![found(&[memory(1), disk()])]);
    world.reads();
    world.read(0, Err(ReadFailure::BufferTooSmall));
    assert_eq!(world.reads(), []);
    assert_eq!(
        world.flow.outcomes().unwrap(),
        [GetOutcome::Failed(ErrorCode::InvalidParams)]
    );
}

fn cancels(world: &mut World) -> Vec<usize> {
    let cancel = |action: &Action| match action {
        Action::Cancel { index } => Some(*index),
        _ => None,
    };
    let cancels = world.out.iter().filter_map(cancel).collect();
    world.out.retain(|action| cancel(action).is_none());
    cancels
}

/// At its deadline a read gave its guards back and returned to its caller while bytes were still moving: into a buffer
/// that the caller could reuse, from an extent that could be given to another put.
#[test]
fn a_read_out_of_time_ends_when_its_bytes_have_stopped_moving() {
    let check = |end: fn(&mut World), code: ErrorCode, last: Result<Checksum, ReadFailure>| {
        let mut world = World::new(&["a", "b", "c"], Hold::Guard, 3);
        world.reply(vec![
            found(&[memory(1), disk()]),
            found(&[memory(2)]),
            Lookup::NotReady,
        ]);
        world.reads();
        end(&mut world);
        assert_eq!(cancels(&mut world), [0, 1]);
        assert_eq!(world.tells(), [], "guards hold while bytes move");
        assert_eq!(world.flow.next_deadline(), None);
        world.read(1, Err(ReadFailure::Cancelled));
        assert_eq!(world.flow.outcomes(), None);
        assert_eq!(world.tells(), []);
        world.read(0, last);
        let guards = vec![GuardId(5), GuardId(5)];
        assert_eq!(world.tells(), [Request::GetEnd(GetEnd { guards })]);
        let failed = GetOutcome::Failed(code);
        assert_eq!(
            world.flow.outcomes().unwrap(),
            [failed.clone(), failed.clone(), failed]
        );
    };
    let deadline = |world: &mut World| world.tick();
    let cancel = |world: &mut World| world.flow.cancel(&mut world.out);
    for last in [
        Ok(GOOD),
        Ok(BAD),
        Err(ReadFailure::Stale),
        Err(ReadFailure::Cancelled),
    ] {
        check(deadline, ErrorCode::DeadlinePassed, last);
        check(cancel, ErrorCode::Cancelled, last);
    }
}

/// A read was granted guards in an answer that was lost, and repeated when that answer was no longer kept: the guards were
/// held for as long as the client lived.
#[test]
fn a_read_that_is_too_old_revokes_what_it_may_have_been_granted() {
    let mut world = World::new(&["a"], Hold::Guard, 1);
    let operation = world.operation;
    world.answer(Reply::Failed(ErrorCode::OperationTooOld));
    assert_eq!(world.tells(), [Request::Revoke { operation }]);
    assert!(world.flow.outcomes().is_some());
}

/// The answer to a read came after its deadline: it was dropped, and the guards that it granted were held for as long as
/// the client lived.
#[test]
fn a_read_that_ends_without_an_answer_revokes_its_operation() {
    let check = |end: fn(&mut World), hold: Hold| {
        let mut world = World::new(&["a"], hold, 1);
        let operation = world.operation;
        end(&mut world);
        let revoked = match hold {
            Hold::Guard => vec![Request::Revoke { operation }],
            Hold::Lease => vec![],
        };
        assert_eq!(world.tells(), revoked);
        assert!(world.flow.outcomes().is_some());
        world.reply(vec![found(&[memory(1)])]);
        assert_eq!(world.out, [], "what it grants is revoked");
    };
    for hold in [Hold::Guard, Hold::Lease] {
        check(|world| world.tick(), hold);
        check(|world| world.flow.cancel(&mut world.out), hold);
        check(
            |world| world.flow.on_link_lost(world.now, &mut world.out),
            hold,
        );
        check(|world| world.answer(Reply::Done), hold);
    }
}

/// Whose key a look-up speaks of is known by its position alone.
#[test]
fn an_answer_of_another_length_is_used_for_nothing_and_revoked() {
    for lookups in [0, 1, 3] {
        let mut world = World::new(&["a", "b"], Hold::Guard, 1);
        let operation = world.operation;
        world.reply(vec![found(&[memory(1)]); lookups]);
        assert_eq!(world.tells(), [Request::Revoke { operation }], "{lookups}");
        let failed = GetOutcome::Failed(ErrorCode::InternalError);
        let outcomes = world.flow.outcomes();
        assert_eq!(outcomes, Some(vec![failed; 2]), "{lookups}");
    }
}

/// The lease was counted from the repetition of a request whose first copy the master had answered before.
#[test]
fn a_lease_counts_from_the_first_request_of_its_operation() {
    let mut world = World::new(&["a"], Hold::Lease, 3);
    let first = world.operation;
    world.now += Duration::from_secs(5);
    world.flow.on_link_lost(world.now, &mut world.out);
    world.tick();
    assert_eq!((world.asks(), world.operation), (vec![1], first));
    world.reply(vec![found(&[memory(1)])]);
    world.reads();
    world.now += Duration::from_millis(4_500);
    world.read(0, Ok(GOOD));
    assert_eq!(world.flow.outcomes(), None, "the lease is over");
    world.tick();
    assert_eq!(world.asks(), [1]);
    assert_ne!(world.operation, first);
}

/// The position of a question about the rest of a batch was counted past the end of the number.
#[test]
fn the_last_position_of_a_chain_is_not_passed() {
    let mut world = World::at(u32::MAX, &["a", "b"], Hold::Guard, 2);
    world.reply(vec![Lookup::Missing, Lookup::NotReady]);
    world.tick();
    assert_eq!(world.asks(), [1]);
}

#[test]
fn a_second_answer_changes_nothing() {
    let mut world = World::new(&["a"], Hold::Guard, 3);
    world.reply(vec![found(&[memory(1)])]);
    assert_eq!(world.reads().len(), 1);
    world.reply(vec![found(&[memory(1)])]);
    assert_eq!(world.out, []);
}

/// Every code at each place where a read can get one: its class alone decides.
#[test]
fn the_class_alone_decides_what_a_read_does_about_a_code() {
    for code in ErrorCode::ALL {
        let again = matches!(code.class(), Class::Retry | Class::Gone);
        let mut whole = World::new(&["a"], Hold::Guard, 2);
        whole.answer(Reply::Failed(*code));
        assert_eq!(
            whole.flow.outcomes().is_none(),
            again,
            "{code} of a request"
        );
        let mut one = World::new(&["a"], Hold::Guard, 2);
        one.reply(vec![Lookup::Failed(*code)]);
        let again = code.class() == Class::Retry;
        assert_eq!(one.flow.outcomes().is_none(), again, "{code} of a key");
        for world in [&mut whole, &mut one] {
            if world.flow.outcomes().is_none() {
                world.tick();
                assert_eq!(world.asks(), [1], "{code}");
                world.answer(Reply::Failed(*code));
            }
            let outcomes = world.flow.outcomes().unwrap();
            assert!(!matches!(outcomes[0], GetOutcome::Hit { .. }), "{code}");
        }
    }
}

#[path = "get_known_tests.rs"]
mod known;

#[test]
fn a_read_says_whether_another_replica_is_left() {
    let mut world = World::new(&["a"], Hold::Guard, 1);
    world.reply(vec![found(&[disk(), memory(1), memory(2)])]);
    let mut last = Vec::new();
    for _ in 0..3 {
        let reads = world.out.iter().filter_map(|action| match action {
            Action::Read { is_last, .. } => Some(*is_last),
            _ => None,
        });
        last.extend(reads);
        world.out.clear();
        world.read(0, Err(ReadFailure::Transfer));
    }
    assert_eq!(last, [false, false, true]);
}
