//! Puts that wait for room: in which order they are served, and who waits no longer.

use std::time::Duration;

use slackwater_meta::{Input, MasterConfig, PutPolicy};
use slackwater_wire::*;

use super::put::granted;
use crate::world::*;

fn world() -> World {
    World::memory(plain(), 16 * BLOCK)
}

#[test]
fn a_put_without_room_waits_and_is_served_the_moment_there_is_some() {
    let mut world = world();
    world.obedient = false;
    let holder = granted(world.start("big", 16 * BLOCK, PutConfig::default()));
    let call = world.send(OTHER, start("a", BLOCK, wait(seconds(5))));
    assert_eq!(world.reply(call), None);
    world.pass(seconds(3));
    world.ask(Request::PutRevoke {
        tenant: Tenant::DEFAULT,
        puts: vec![(key("big"), holder.0)],
    });
    assert_eq!(
        world.reply(call),
        None,
        "not before the old writer is fenced"
    );
    world.obey();
    assert!(
        matches!(world.reply(call), Some(Reply::PutStart(results)) if matches!(results[0], PutStarted::Granted { .. }))
    );
    assert_eq!(world.master.metrics().puts_waited, 1);
}

#[test]
fn a_put_that_finds_no_room_in_time_fails() {
    let mut world = world();
    world.start("big", 16 * BLOCK, PutConfig::default());
    let call = world.send(ME, start("a", BLOCK, wait(seconds(5))));
    world.pass(Duration::from_millis(4999));
    assert_eq!(world.reply(call), None);
    world.pass(Duration::from_millis(1));
    assert_eq!(
        world.reply(call),
        Some(Reply::PutStart(vec![PutStarted::Failed(
            ErrorCode::NoAvailableHandle
        )]))
    );
}

#[test]
fn waiting_puts_are_served_in_order() {
    let mut world = world();
    world.obedient = false;
    let (big, _) = granted(world.start("big", 15 * BLOCK, PutConfig::default()));
    let first = world.send(ME, start("first", 12 * BLOCK, wait(seconds(5))));
    let second = world.send(ME, start("second", BLOCK, wait(seconds(5))));
    let third = world.send(OTHER, start("third", BLOCK, wait(seconds(5))));
    assert_eq!(
        (world.reply(second), world.reply(third)),
        (None, None),
        "a block is free, but they came later"
    );
    world.ask(Request::PutRevoke {
        tenant: Tenant::DEFAULT,
        puts: vec![(key("big"), big)],
    });
    world.obey();
    for call in [first, second, third] {
        assert!(matches!(world.reply(call), Some(Reply::PutStart(_))));
    }
}

/// A put that was too large for the free room waited until its deadline and failed. The puts behind it were not tried
/// then: they waited although there was room for them, until something else happened.
#[test]
fn a_put_behind_one_that_is_given_up_is_served_at_once() {
    let mut world = world();
    world.start("held", 12 * BLOCK, PutConfig::default());
    let large = world.send(ME, start("large", 8 * BLOCK, wait(seconds(1))));
    let small = world.send(ME, start("small", BLOCK, wait(seconds(5))));
    world.pass(seconds(1));
    let results = [large, small].map(|call| world.reply(call));
    assert!(
        matches!(&results, [Some(Reply::PutStart(large)), Some(Reply::PutStart(small))]
            if large[0] == PutStarted::Failed(ErrorCode::NoAvailableHandle)
                && matches!(small[0], PutStarted::Granted { .. })),
        "{results:?}"
    );
}

#[test]
fn the_queue_of_waiting_puts_is_bounded() {
    let put = PutPolicy {
        queue_limit: 1,
        ..PutPolicy::default()
    };
    let mut world = World::memory(MasterConfig { put, ..plain() }, 16 * BLOCK);
    world.start("big", 16 * BLOCK, PutConfig::default());
    let first = world.send(ME, start("a", BLOCK, wait(seconds(5))));
    assert_eq!(
        world.start("b", BLOCK, wait(seconds(5))),
        PutStarted::Failed(ErrorCode::NoAvailableHandle)
    );
    assert_eq!(world.reply(first), None);
}

/// Calls that wait were bounded by their number alone: 4,096 of them, each of thousands of long keys, took gigabytes.
#[test]
fn the_queue_of_waiting_puts_is_bounded_in_bytes_too() {
    let put = PutPolicy {
        queue_bytes: 4096,
        ..PutPolicy::default()
    };
    let mut world = World::memory(MasterConfig { put, ..plain() }, 16 * BLOCK);
    world.start("big", 16 * BLOCK, PutConfig::default());
    let first = world.send(ME, start("a", BLOCK, wait(seconds(5))));
    let mut check = |name: String, waits: bool| {
        let call = world.send(ME, start(&name, BLOCK, wait(seconds(1))));
        assert_eq!(world.reply(call).is_none(), waits, "{} bytes", name.len());
        world.pass(seconds(1));
        assert!(world.reply(call).is_some());
    };
    check("b".repeat(1000), true);
    check("c".repeat(1000), true);
    assert_eq!(world.reply(first), None);
    let long = |n| start(&format!("{n}").repeat(1000), BLOCK, wait(seconds(1)));
    let waits = [1, 2, 3, 4].map(|n| {
        let call = world.send(ME, long(n));
        world.reply(call).is_none()
    });
    assert_eq!(waits, [true, true, false, false]);
}

#[test]
fn a_batch_answers_when_its_last_entry_is_decided() {
    let mut world = world();
    let entries = (0..32)
        .map(|n| PutEntry {
            key: key(&format!("k{n}")),
            bytes: BLOCK,
        })
        .collect();
    let config = wait(seconds(1));
    let request = PutStart {
        tenant: Tenant::DEFAULT,
        entries,
        chain: Chain::default(),
        config,
    };
    let call = world.send(ME, Request::PutStart(request));
    world.pass(seconds(2));
    let Some(Reply::PutStart(results)) = world.reply(call) else {
        panic!()
    };
    let granted = results
        .iter()
        .filter(|result| matches!(result, PutStarted::Granted { .. }))
        .count();
    assert_eq!((granted, results.len()), (16, 32));
    assert_eq!(
        results[31],
        PutStarted::Failed(ErrorCode::NoAvailableHandle)
    );
}

#[test]
fn a_lost_client_waits_no_longer() {
    let mut world = world();
    world.start("big", 16 * BLOCK, PutConfig::default());
    world.send(OTHER, start("a", BLOCK, wait(seconds(5))));
    world.input(Input::ClientLost(OTHER));
    assert_eq!(world.master.books().waiting_puts, 0);
}

#[test]
fn what_is_revoked_or_lost_waits_no_longer_and_all_else_does() {
    let mut world = world();
    let (big, _) = granted(world.start("big", 16 * BLOCK, PutConfig::default()));
    let [first, second] =
        ["a", "b"].map(|name| world.send(ME, start(name, BLOCK, wait(seconds(5)))));
    let third = world.send(OTHER, start("c", BLOCK, wait(seconds(5))));
    world.ask(Request::Revoke { operation: first });
    assert_eq!(world.master.books().waiting_puts, 2);
    world.input(Input::ClientLost(OTHER));
    assert_eq!(world.master.books().waiting_puts, 1);
    let puts = vec![(key("big"), big)];
    let tenant = Tenant::DEFAULT;
    world.ask(Request::PutRevoke { tenant, puts });
    assert!(matches!(world.reply(second), Some(Reply::PutStart(_))));
    let cancelled = Reply::Failed(ErrorCode::Cancelled);
    assert_eq!(
        [first, third].map(|call| world.reply(call)),
        [Some(cancelled), None],
        "who is still there is told"
    );
}

/// Just after a restart of the master, before the first node had come, a put was refused at once, however long it was willing to
/// wait.
#[test]
fn a_put_waits_for_the_first_memory_that_is_lent() {
    let mut world = World::new(plain());
    let late = world.send(ME, start("late", BLOCK, wait(seconds(1))));
    let call = world.send(OTHER, start("a", BLOCK, wait(seconds(5))));
    world.pass(seconds(1));
    let none = PutStarted::Failed(ErrorCode::NoAvailableHandle);
    assert_eq!(world.reply(late), Some(Reply::PutStart(vec![none])));
    assert_eq!(world.reply(call), None);
    world.mount(NODE, MEMORY, SegmentKind::Memory, 16 * BLOCK);
    let granted = world.reply(call);
    assert!(
        matches!(&granted, Some(Reply::PutStart(results)) if matches!(results[0], PutStarted::Granted { .. })),
        "{granted:?}"
    );
}
