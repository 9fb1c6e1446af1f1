//! Operations that arrive twice, late or after they were revoked.

use std::time::Duration;

use slackwater_meta::{Limits, MasterConfig};
use slackwater_wire::*;

use crate::world::*;

/// A world whose master keeps this many answers for each client.
fn keeping(answers: usize) -> World {
    let limits = Limits {
        reply_window: answers,
        ..Limits::default()
    };
    World::memory(MasterConfig { limits, ..plain() }, 16 * BLOCK)
}

fn op(number: u64) -> OperationId {
    OperationId(1_000_000 + number)
}

fn get_by_guard(name: &str) -> Request {
    Request::Get(Get {
        tenant: Tenant::DEFAULT,
        keys: vec![key(name)],
        chain: Chain::default(),
        hold: Hold::Guard,
        prefix_only: false,
    })
}

fn revoke(operation: OperationId) -> Request {
    Request::Revoke { operation }
}

/// A client whose put start was answered on a link that broke repeated it, found the put that it had itself been
/// granted, and told its caller that the key existed; the room stayed taken until it timed out.
#[test]
fn a_repeated_put_start_is_granted_the_same_room() {
    let mut world = keeping(2);
    let put = start("a", BLOCK, PutConfig::default());
    let first = world.repeat(ME, op(1), &put);
    assert!(matches!(
        first,
        Some(Reply::PutStart(ref started)) if matches!(started[..], [PutStarted::Granted { .. }])
    ));
    assert_eq!(world.repeat(ME, op(1), &put), first);
    assert_eq!(world.master.metrics().operations_repeated, 1);
    assert_eq!(world.master.books().open_puts, 1);
    let other = world.repeat(OTHER, op(1), &put);
    assert_eq!(other, Some(Reply::PutStart(vec![PutStarted::Exists])));
}

#[test]
fn an_operation_older_than_the_answers_kept_is_refused_and_not_executed() {
    let mut world = keeping(2);
    let put = start("a", BLOCK, PutConfig::default());
    world.repeat(ME, op(1), &put);
    for number in 2..=3 {
        world.repeat(ME, op(number), &remove("x", false));
    }
    let too_old = Some(Reply::Failed(ErrorCode::OperationTooOld));
    assert_eq!(world.repeat(ME, op(1), &put), too_old);
    let late = start("b", BLOCK, PutConfig::default());
    assert_eq!(world.repeat(ME, op(0), &late), too_old);
    assert_eq!(world.master.books().open_puts, 1);
}

/// A removal was executed again when its answer had been lost, and removed what another client had put since.
#[test]
fn a_repeated_removal_does_not_remove_what_was_put_since() {
    let mut world = keeping(8);
    world.put("a", BLOCK);
    let gone = world.repeat(ME, op(1), &remove("a", true));
    assert_eq!(gone, Some(Reply::Each(vec![Ok(())])));
    let version = world.put("a", BLOCK);
    assert_eq!(world.repeat(ME, op(1), &remove("a", true)), gone);
    assert_eq!(world.found("a").version, version);
}

#[test]
fn a_repeated_read_by_guard_is_granted_the_same_guard() {
    let mut world = keeping(8);
    world.put("a", BLOCK);
    let first = world.repeat(ME, op(1), &get_by_guard("a"));
    assert_eq!(world.repeat(ME, op(1), &get_by_guard("a")), first);
    assert_eq!(world.master.books().guards, 1);
}

#[test]
fn an_operation_that_cannot_repeat_leaves_no_answer() {
    let mut world = keeping(8);
    let (operation, put) = (
        OperationId::unrepeated(1),
        start("a", BLOCK, PutConfig::default()),
    );
    let first = world.repeat(ME, operation, &put);
    assert_ne!(world.repeat(ME, operation, &put), first);
}

/// Guards were given back by the answer that named them. A caller in the master's process cancelled a read before its
/// answer arrived; of such an operation no answer is kept, and its object could not be evicted until the client went
/// away. The answers of a remote client that were dropped for newer ones left their guards in the same way.
#[test]
fn a_revoked_read_gives_its_guards_back_when_its_answer_is_not_kept() {
    let check = |operation: OperationId, later: &[u64]| {
        let mut world = keeping(2);
        world.put("held", BLOCK);
        for at in [operation, OperationId(operation.0 + 1)] {
            world.repeat(ME, at, &get_by_guard("held"));
        }
        for number in later {
            world.repeat(ME, op(*number), &remove("x", false));
        }
        world.repeat(ME, op(9), &revoke(operation));
        assert_eq!(world.master.books().guards, 1, "{operation:?}: one of two");
    };
    check(OperationId::unrepeated(1), &[]);
    check(op(1), &[3, 4]);
}

/// A caller gave up, its flow dropped the late answer, and what that answer had granted stayed taken until the client's
/// link was lost.
#[test]
fn a_revoked_operation_gives_back_what_it_was_granted() {
    let check = |request: &Request| {
        let mut world = keeping(8);
        world.put("held", BLOCK);
        let at_rest = world.master.books();
        world.repeat(ME, op(1), request);
        assert_ne!(
            world.master.books(),
            at_rest,
            "{request:?} is granted something"
        );
        for _ in 0..2 {
            assert_eq!(world.repeat(ME, op(2), &revoke(op(1))), Some(Reply::Done));
            let books = world.master.books();
            assert_eq!((books.open_puts, books.guards), (0, 0), "{request:?}");
            assert_eq!(books.segments, at_rest.segments, "{request:?}");
            assert_eq!(books.tenants, at_rest.tenants, "{request:?}");
        }
        let cancelled = Some(Reply::Failed(ErrorCode::Cancelled));
        assert_eq!(world.repeat(ME, op(1), request), cancelled, "{request:?}");
    };
    check(&start("a", BLOCK, PutConfig::default()));
    check(&get_by_guard("held"));
}

#[test]
fn an_operation_that_is_revoked_before_it_arrives_is_granted_nothing() {
    let mut world = keeping(8);
    world.repeat(ME, op(2), &revoke(op(1)));
    let put = start("a", BLOCK, PutConfig::default());
    let cancelled = Some(Reply::Failed(ErrorCode::Cancelled));
    assert_eq!(world.repeat(ME, op(1), &put), cancelled);
    assert_eq!(world.master.books().open_puts, 0);
    let other = world.repeat(OTHER, op(1), &put);
    assert!(matches!(other, Some(Reply::PutStart(_))), "{other:?}");
}

#[test]
fn a_revoked_put_start_waits_no_longer_and_its_repetition_meanwhile_is_not_a_second_one() {
    let mut world = keeping(8);
    let pinned = PutConfig {
        pin: Pin::Hard,
        ..PutConfig::default()
    };
    for number in 0..16 {
        world.put_with(&format!("full{number}"), BLOCK, pinned.clone());
    }
    let patient = PutConfig {
        wait: Some(Duration::from_secs(9)),
        ..PutConfig::default()
    };
    let put = start("a", BLOCK, patient);
    for _ in 0..2 {
        assert_eq!(world.repeat(ME, op(1), &put), None);
        assert_eq!(world.master.books().waiting_puts, 1);
    }
    world.repeat(ME, op(2), &revoke(op(1)));
    assert_eq!(world.master.books().waiting_puts, 0);
    world.ask(remove("full0", true));
    assert_eq!(world.master.books().open_puts, 0);
}

#[test]
fn a_published_put_outlives_the_revocation_of_its_start() {
    let mut world = keeping(8);
    let Some(Reply::PutStart(started)) =
        world.repeat(ME, op(1), &start("a", BLOCK, PutConfig::default()))
    else {
        panic!("the master answers at once");
    };
    let PutStarted::Granted { version, .. } = started[0] else {
        panic!("there is room");
    };
    world.end(ME, "a", version);
    world.repeat(ME, op(3), &revoke(op(1)));
    assert_eq!(world.found("a").version, version);
}

/// What a client was granted is taken back when its links are gone. A repetition afterwards must not be answered with
/// the lost grant; but an earlier removal is not executed again.
#[test]
fn a_client_that_was_lost_is_granted_anew_and_removes_nothing_again() {
    let mut world = keeping(8);
    world.put("r", BLOCK);
    let put = start("a", BLOCK, PutConfig::default());
    let first = world.repeat(ME, op(1), &put);
    world.repeat(ME, op(2), &remove("r", true));
    world.input(slackwater_meta::Input::ClientLost(ME));
    assert_eq!(world.master.books().open_puts, 0);
    let version = world.put("r", BLOCK);
    world.repeat(ME, op(2), &remove("r", true));
    assert_eq!(world.found("r").version, version);
    let second = world.repeat(ME, op(1), &put);
    assert!(matches!(second, Some(Reply::PutStart(_))) && second != first);
    assert_eq!(world.master.books().open_puts, 1);
}

#[test]
fn clients_and_keys_of_kept_answers_are_bounded() {
    let limits = Limits {
        reply_window: 4,
        reply_keys: 8,
        clients: 3,
        ..Limits::default()
    };
    let config = MasterConfig { limits, ..plain() };
    let mut world = World::memory(config, 16 * BLOCK);
    let gone = Some(Reply::Each(vec![Err(ErrorCode::ObjectNotFound)]));
    for client in 10..20 {
        for number in 0..6 {
            let reply = world.repeat(ClientId(client), op(number), &remove("x", false));
            assert_eq!(reply, gone, "{client} {number}");
        }
    }
    assert_eq!(
        world.repeat(ClientId(10), op(0), &remove("x", false)),
        gone,
        "a client that was forgotten begins anew"
    );
}

/// An operation was refused because too many of its client were pending, and the refusal was not kept. The client took
/// it for the answer and asked again under another number; when a second copy of the request arrived later, it was
/// executed: a put was opened that nobody would end, and its owner was told that the key existed.
#[test]
fn an_operation_refused_for_too_many_pending_is_not_executed_later() {
    let mut world = keeping(1);
    let pinned = PutConfig {
        pin: Pin::Hard,
        ..PutConfig::default()
    };
    for number in 0..16 {
        world.put_with(&format!("full{number}"), BLOCK, pinned.clone());
    }
    let patient = PutConfig {
        wait: Some(Duration::from_secs(9)),
        ..PutConfig::default()
    };
    assert_eq!(world.repeat(ME, op(1), &start("a", BLOCK, patient)), None);
    let removal = remove("full1", true);
    let refused = Some(Reply::Failed(ErrorCode::TaskPendingLimitExceeded));
    assert_eq!(world.repeat(ME, op(2), &removal), refused);
    world.repeat(ME, op(3), &revoke(op(1)));
    let late = world.repeat(ME, op(2), &removal);
    assert!(matches!(late, Some(Reply::Failed(_))), "{late:?}");
    world.found("full1");
}

/// A client that filled the budget of keys made the master forget the answers of a client that had been silent for a moment:
/// its repeated removal was executed again, and removed what was put since.
#[test]
fn a_client_with_many_answers_does_not_push_out_those_of_others() {
    let limits = Limits {
        reply_window: 8,
        reply_keys: 64,
        ..Limits::default()
    };
    let config = MasterConfig { limits, ..plain() };
    let mut world = World::memory(config, 16 * BLOCK);
    world.put("a", BLOCK);
    let gone = world.repeat(ME, op(1), &remove("a", true));
    let version = world.put("a", BLOCK);
    let many = Request::Remove(Remove {
        tenant: Tenant::DEFAULT,
        keys: (0..40).map(|at| key(&format!("x{at}"))).collect(),
        force: false,
    });
    for client in 10..14 {
        for number in 0..4 {
            world.repeat(ClientId(client), op(number), &many);
        }
    }
    assert_eq!(world.repeat(ME, op(1), &remove("a", true)), gone);
    assert_eq!(world.found("a").version, version);
    let too_old = Some(Reply::Failed(ErrorCode::OperationTooOld));
    assert_eq!(world.repeat(ClientId(13), op(0), &many), too_old);
}

#[test]
fn every_guard_and_every_put_of_a_client_is_found_by_its_operation() {
    let check = |operation: OperationId| {
        let mut world = keeping(8);
        for name in ["a", "b", "c"] {
            world.put(name, BLOCK);
        }
        let mut get = get_by_guard("a");
        if let Request::Get(get) = &mut get {
            get.keys.extend(["b", "c"].map(key));
        }
        let put = start("d", BLOCK, PutConfig::default());
        world.repeat(ME, op(7), &get_by_guard("a"));
        world.repeat(ME, operation, &get);
        assert_eq!(world.master.books().guards, 4);
        world.repeat(ME, op(8), &revoke(operation));
        assert_eq!(world.master.books().guards, 1, "{operation:?}");
        world.repeat(ME, OperationId(operation.0 + 1), &put);
        assert_eq!(world.master.books().open_puts, 1);
        world.input(slackwater_meta::Input::ClientLost(ME));
        let books = world.master.books();
        assert_eq!((books.guards, books.open_puts), (0, 0), "{operation:?}");
    };
    check(op(1));
    check(OperationId::unrepeated(1));
}
