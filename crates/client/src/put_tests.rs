use std::time::Duration;

use slackwater_base::{Checksum, Instant, Rng};
use slackwater_wire::{
    Class, ErrorCode, ExtentRef, Incarnation, Key, PutConfig, PutEntry, SegmentId, Tenant,
};

use super::*;
use crate::{FlowOptions, Operations};

fn extent() -> ExtentRef {
    ExtentRef {
        segment: SegmentId(1),
        incarnation: Incarnation(1),
        offset: 0,
        bytes: 4096,
        generation: 1,
    }
}

fn granted(version: u64) -> PutStarted {
    PutStarted::Granted {
        version: Version(version),
        extents: vec![extent()],
    }
}

fn key(name: &str) -> Key {
    Key::try_from(name).unwrap()
}

struct World {
    flow: PutFlow,
    out: Vec<Action>,
    now: Instant,
    /// The last operation that was sent.
    operation: OperationId,
}

impl World {
    fn new(names: &[&str], attempts: u32) -> Self {
        Self::of(names, attempts, PutConfig::default())
    }

    fn of(names: &[&str], attempts: u32, config: PutConfig) -> Self {
        let entries = names
            .iter()
            .map(|name| PutEntry {
                key: key(name),
                bytes: 100,
            })
            .collect();
        let start = PutStart {
            tenant: Tenant::DEFAULT,
            entries,
            chain: Default::default(),
            config,
        };
        let options = FlowOptions {
            deadline: Instant::ZERO + Duration::from_secs(5),
            attempts,
            answer_timeout: Duration::from_secs(60),
            backoff: FlowOptions::BACKOFF,
            jitter: Rng::new(1),
            operations: Operations::remote(),
        };
        let (now, mut out) = (Instant::ZERO, vec![]);
        let flow = PutFlow::start(now, start, options, &mut out);
        let operation = OperationId(0);
        let mut world = Self {
            flow,
            out,
            now,
            operation,
        };
        assert!(matches!(world.asks()[..], [Request::PutStart(_)]));
        world
    }

    /// Answers the last operation that was sent.
    fn answer(&mut self, reply: Reply) {
        self.flow
            .on_reply(self.now, self.operation, reply, &mut self.out);
    }

    fn started(&mut self, started: Vec<PutStarted>) {
        self.answer(Reply::PutStart(started));
    }

    /// Takes the items that are to be written.
    fn writes(&mut self) -> Vec<usize> {
        let write = |action: &Action| match action {
            Action::Write { index, .. } => Some(*index),
            _ => None,
        };
        let writes = self.out.iter().filter_map(write).collect();
        self.out.retain(|action| write(action).is_none());
        writes
    }

    fn written(&mut self, index: usize, result: Result<Checksum, WriteFailure>) {
        self.flow.on_written(self.now, index, result, &mut self.out);
    }

    fn tick(&mut self) {
        self.now = self.flow.next_deadline().unwrap();
        self.flow.on_deadline(self.now, &mut self.out);
    }

    fn lose_link(&mut self) {
        self.flow.on_link_lost(self.now, &mut self.out);
    }

    fn cancel(&mut self) {
        self.flow.cancel(&mut self.out);
    }

    fn asks(&mut self) -> Vec<Request> {
        let mut asks = vec![];
        for action in &self.out {
            if let Action::Ask { operation, request } = action {
                self.operation = *operation;
                asks.push(request.clone());
            }
        }
        self.out
            .retain(|action| !matches!(action, Action::Ask { .. }));
        asks
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

const SUM: Checksum = Checksum(9);

fn revoke(puts: &[(&str, u64)]) -> Request {
    Request::PutRevoke {
        tenant: Tenant::DEFAULT,
        puts: puts
            .iter()
            .map(|(name, version)| (key(name), Version(*version)))
            .collect(),
    }
}

#[test]
fn what_is_written_completely_is_published_and_the_rest_revoked() {
    let mut world = World::new(&["a", "b", "c", "d"], 1);
    world.started(vec![
        granted(1),
        PutStarted::Exists,
        granted(2),
        PutStarted::Failed(ErrorCode::NoAvailableHandle),
    ]);
    assert_eq!(world.writes(), [0, 2]);
    world.written(2, Err(WriteFailure::Transfer));
    assert_eq!(world.out, [], "one write is still under way");
    world.written(0, Ok(SUM));
    let done = PutDone {
        key: key("a"),
        version: Version(1),
        checksum: SUM,
    };
    let end = Request::PutEnd(PutEnd {
        tenant: Tenant::DEFAULT,
        puts: vec![done],
        hosts: None,
    });
    assert_eq!(world.asks(), [end]);
    assert_eq!(world.tells(), [revoke(&[("c", 2)])]);
    world.answer(Reply::Each(vec![Ok(())]));
    let outcomes = [
        PutOutcome::Stored,
        PutOutcome::Existed,
        PutOutcome::Failed(ErrorCode::TransferFail),
        PutOutcome::Failed(ErrorCode::NoAvailableHandle),
    ];
    assert_eq!(world.flow.outcomes().unwrap(), outcomes);
    assert_eq!(world.flow.next_deadline(), None);
}

#[test]
fn a_put_of_nothing_but_existing_keys_ends_at_once() {
    let mut world = World::new(&["a"], 1);
    world.started(vec![PutStarted::Exists]);
    assert_eq!(world.flow.outcomes().unwrap(), [PutOutcome::Existed]);
    assert_eq!(world.out, []);
}

#[test]
fn a_request_is_retried_when_the_master_is_busy_and_not_when_it_refuses() {
    let mut world = World::new(&["a"], 2);
    let first = world.operation;
    world.answer(Reply::Failed(ErrorCode::RpcFail));
    world.tick();
    assert!(matches!(&world.asks()[..], [Request::PutStart(start)] if start.entries.len() == 1));
    assert_ne!(world.operation, first, "the first operation is answered");
    world.answer(Reply::Failed(ErrorCode::TenantQuotaExceeded));
    assert_eq!(
        world.flow.outcomes().unwrap(),
        [PutOutcome::Failed(ErrorCode::TenantQuotaExceeded)]
    );
}

/// A put start that was repeated when its link broke found the room that it had itself been granted, and its caller was
/// told that the key existed.
#[test]
fn what_is_not_answered_is_repeated_under_its_number() {
    let mut world = World::new(&["a"], 4);
    let start = world.operation;
    world.lose_link();
    world.tick();
    assert!(matches!(world.asks()[..], [Request::PutStart(_)]));
    assert_eq!(world.operation, start);
    world.started(vec![granted(1)]);
    world.writes();
    world.started(vec![granted(1)]);
    assert_eq!(world.writes(), [], "a second answer changes nothing");
    world.written(0, Ok(SUM));
    assert!(matches!(world.asks()[..], [Request::PutEnd(_)]));
    let end = world.operation;
    assert_ne!(start, end);
    world.lose_link();
    world.tick();
    assert!(matches!(world.asks()[..], [Request::PutEnd(_)]));
    assert_eq!(world.operation, end);
}

/// The answer to the start of a put came after its deadline: it was dropped, and the room that it granted stayed taken
/// until it timed out.
#[test]
fn a_put_that_ends_without_an_answer_to_its_start_revokes_the_operation() {
    let check = |end: fn(&mut World), code: ErrorCode| {
        let mut world = World::new(&["a"], 1);
        let operation = world.operation;
        end(&mut world);
        assert_eq!(world.tells(), [Request::Revoke { operation }]);
        assert_eq!(world.flow.outcomes().unwrap(), [PutOutcome::Failed(code)]);
        world.started(vec![granted(1)]);
        assert_eq!(world.out, [], "what it grants is revoked");
        assert_eq!(world.flow.next_deadline(), None);
    };
    check(World::tick, ErrorCode::DeadlinePassed);
    check(World::cancel, ErrorCode::Cancelled);
    check(World::lose_link, ErrorCode::RpcFail);
    check(|world| world.answer(Reply::Done), ErrorCode::InternalError);
}

/// Whose entry a result speaks of is known by its position alone.
#[test]
fn an_answer_of_another_length_is_used_for_nothing_and_revoked() {
    let failed = Some(vec![PutOutcome::Failed(ErrorCode::InternalError); 2]);
    for results in [0, 1, 3] {
        let mut start = World::new(&["a", "b"], 1);
        let operation = start.operation;
        start.started(vec![granted(1); results]);
        assert_eq!(start.tells(), [Request::Revoke { operation }], "{results}");
        assert_eq!(start.flow.outcomes(), failed, "{results} of a start");
        let mut end = World::new(&["a", "b"], 1);
        end.started(vec![granted(1), granted(2)]);
        end.writes();
        end.written(0, Ok(SUM));
        end.written(1, Ok(SUM));
        end.asks();
        end.answer(Reply::Each(vec![Ok(()); results]));
        assert_eq!(end.tells(), [revoke(&[("a", 1), ("b", 2)])], "{results}");
        assert_eq!(end.flow.outcomes(), failed, "{results} of an end");
    }
}

/// The end of a put was not answered, perhaps because it was lost: the put stayed open until it timed out.
#[test]
fn a_put_whose_end_is_not_answered_is_revoked_and_unknown_never_stored() {
    let check = |end: fn(&mut World), outcome: PutOutcome| {
        let mut world = World::new(&["a"], 1);
        world.started(vec![granted(1)]);
        world.writes();
        world.written(0, Ok(SUM));
        world.asks();
        end(&mut world);
        assert_eq!(world.tells(), [revoke(&[("a", 1)])]);
        assert_eq!(world.flow.outcomes().unwrap(), [outcome]);
    };
    check(World::tick, PutOutcome::Unknown);
    check(World::cancel, PutOutcome::Unknown);
    check(World::lose_link, PutOutcome::Unknown);
    let failed = PutOutcome::Failed;
    check(
        |world| world.answer(Reply::Failed(ErrorCode::InvalidParams)),
        failed(ErrorCode::InvalidParams),
    );
    check(
        |world| world.answer(Reply::Done),
        failed(ErrorCode::InternalError),
    );
}

/// A put was published, and the answer that said so was lost. Its end was repeated when the answer was no longer kept, or
/// to a master that had been restarted: the caller was told that nothing was stored, while readers found the value.
#[test]
fn a_put_whose_repeated_end_is_not_known_any_more_is_unknown() {
    let check = |repeat: bool, answer: Reply, outcome: PutOutcome| {
        let mut world = World::new(&["a"], 2);
        world.started(vec![granted(1)]);
        world.writes();
        world.written(0, Ok(SUM));
        world.asks();
        if repeat {
            world.lose_link();
            world.tick();
            assert!(matches!(world.asks()[..], [Request::PutEnd(_)]));
        }
        world.answer(answer.clone());
        let outcomes = world.flow.outcomes();
        assert_eq!(outcomes, Some(vec![outcome]), "{repeat} {answer:?}");
    };
    let (each, failed) = (|result| Reply::Each(vec![result]), PutOutcome::Failed);
    let (gone, too_long) = (ErrorCode::InvalidVersion, ErrorCode::ValueTooLong);
    check(false, each(Err(gone)), failed(gone));
    check(true, each(Err(gone)), PutOutcome::Unknown);
    check(true, each(Err(too_long)), failed(too_long));
    check(true, each(Ok(())), PutOutcome::Stored);
    let too_old = Reply::Failed(ErrorCode::OperationTooOld);
    for repeat in [false, true] {
        check(repeat, too_old.clone(), PutOutcome::Unknown);
    }
}

/// The start of a put was granted room in an answer that was lost, and repeated when that answer was no longer kept: the
/// put failed, and the room stayed taken until it timed out.
#[test]
fn a_put_whose_start_is_too_old_revokes_what_it_may_have_been_granted() {
    let mut world = World::new(&["a"], 2);
    let operation = world.operation;
    world.answer(Reply::Failed(ErrorCode::OperationTooOld));
    assert_eq!(world.tells(), [Request::Revoke { operation }]);
    let failed = PutOutcome::Failed(ErrorCode::OperationTooOld);
    assert_eq!(world.flow.outcomes(), Some(vec![failed]));
}

/// At its deadline a put returned to its caller while its bytes were still being read from the caller's buffer.
#[test]
fn a_put_out_of_time_ends_when_its_bytes_have_stopped_moving() {
    let check = |end: fn(&mut World), code: ErrorCode, last: Result<Checksum, WriteFailure>| {
        let mut world = World::new(&["a", "b", "c"], 3);
        world.started(vec![granted(1), granted(2), granted(3)]);
        world.writes();
        world.written(0, Ok(SUM));
        end(&mut world);
        let cancels = [1, 2].map(|index| Action::Cancel { index });
        assert_eq!(std::mem::take(&mut world.out), cancels);
        assert_eq!(world.flow.next_deadline(), None);
        world.written(2, Err(WriteFailure::Cancelled));
        assert_eq!((world.flow.outcomes(), &world.out[..]), (None, &[][..]));
        world.written(1, last);
        assert_eq!(world.tells(), [revoke(&[("a", 1), ("b", 2), ("c", 3)])]);
        let failed = [PutOutcome::Failed(code); 3];
        assert_eq!(world.flow.outcomes().unwrap(), failed);
    };
    for last in [
        Ok(SUM),
        Err(WriteFailure::Stale),
        Err(WriteFailure::Cancelled),
    ] {
        check(World::tick, ErrorCode::DeadlinePassed, last);
        check(World::cancel, ErrorCode::Cancelled, last);
    }
}

/// Every code at each place where a put can get one: its class alone decides whether the put retries, and nothing
/// granted remains.
#[test]
fn the_class_alone_decides_what_a_put_does_about_a_code() {
    for code in ErrorCode::ALL {
        let again = code.class() == Class::Retry;
        let failed = Some(vec![PutOutcome::Failed(*code)]);
        let mut start = World::new(&["a"], 2);
        start.answer(Reply::Failed(*code));
        assert_eq!(start.flow.outcomes().is_none(), again, "{code} of a start");
        let mut entry = World::new(&["a"], 2);
        entry.started(vec![PutStarted::Failed(*code)]);
        assert_eq!(entry.flow.outcomes(), failed, "{code} of an entry");
        let mut end = World::new(&["a"], 2);
        end.started(vec![granted(1)]);
        end.writes();
        end.written(0, Ok(SUM));
        end.asks();
        end.answer(Reply::Failed(*code));
        let refused = match code {
            ErrorCode::OperationTooOld => Some(vec![PutOutcome::Unknown]),
            _ => failed.clone(),
        };
        assert_eq!(end.flow.outcomes().is_none(), again, "{code} of an end");
        if again {
            end.tick();
            assert!(matches!(end.asks()[..], [Request::PutEnd(_)]), "{code}");
            end.answer(Reply::Failed(*code));
        }
        assert_eq!(end.tells(), [revoke(&[("a", 1)])], "{code}");
        assert_eq!(end.flow.outcomes(), refused, "{code}");
        let mut result = World::new(&["a"], 2);
        result.started(vec![granted(1)]);
        result.writes();
        result.written(0, Ok(SUM));
        result.asks();
        result.answer(Reply::Each(vec![Err(*code)]));
        assert_eq!(result.flow.outcomes(), refused, "{code} of a result");
    }
}

/// A master that was started again did not know how many hosts had been promised.
#[test]
fn the_end_of_a_put_says_how_many_hosts_it_needs() {
    let check = |durability, expected| {
        let config = PutConfig {
            replicas: 3,
            durability,
            ..PutConfig::default()
        };
        let mut world = World::of(&["a"], 1, config);
        world.started(vec![granted(1)]);
        assert_eq!(world.writes(), [0]);
        world.written(0, Ok(SUM));
        let [Request::PutEnd(end)] = &world.asks()[..] else {
            panic!("it is ended");
        };
        assert_eq!(end.hosts, expected);
    };
    check(Durability::Memory, None);
    check(Durability::Disk, None);
    check(Durability::Replicated, Some(3));
}
