//! Puts that wait for room: in which order they are served, and who waits no longer.

use std::time::Duration;

use slackwater_meta::{Input, MasterConfig, PutPolicy};
use slackwater_wire::*;

use super::jobs::drain;
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
    assert!(is_granted(&world.reply(call)));
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

/// A put found nothing to evict, as all other values were still being written. It was not tried again when they were
/// complete and the segment was below its watermark: it waited until its time was over.
#[test]
fn a_put_is_given_the_room_of_values_that_are_complete_now() {
    let mut world = world();
    let (held, _) = granted(world.start("held", 12 * BLOCK, PutConfig::default()));
    let call = world.send(OTHER, start("large", 8 * BLOCK, wait(seconds(5))));
    assert_eq!(world.reply(call), None, "a value in writing stays");
    world.end(ME, "held", held);
    let reply = world.reply(call);
    assert!(is_granted(&reply), "{reply:?}");
    assert!(!world.has("held"));
}

/// Room was made in the segment with most of it, and in no other: a segment of a node that was drained or away, or one
/// too small for the value, had most and gave none, and the put waited until its time was over.
#[test]
fn room_is_made_where_a_put_can_be_given_it() {
    let check = |name: &str, far_blocks: u64, make_useless: &dyn Fn(&mut World)| {
        let mut world = world();
        let far = NodeId(2);
        world.mount(far, SegmentId(5), SegmentKind::Memory, far_blocks * BLOCK);
        world.put_at("far", BLOCK, "segment-5");
        make_useless(&mut world);
        world.put_at("old", 12 * BLOCK, "segment-1");
        let call = world.send(ME, start("large", 14 * BLOCK, wait(seconds(5))));
        let reply = world.reply(call);
        assert!(is_granted(&reply), "{name}: {reply:?}");
        let stays = world.master.books().objects;
        assert_eq!(
            (stays, world.has("old")),
            (2, false),
            "{name}: `far` and the put"
        );
    };
    check("drained", 32, &|world| {
        world.begin(drain(&["segment-5"], &[]));
    });
    check("away", 32, &|world| {
        world.input(Input::NodeAway(NodeId(2)));
    });
    check("too small", 13, &|_| {});
    check("in use", 16, &|world| {
        world.remove("far").expect("far is there");
        let hard = PutConfig {
            pin: Pin::Hard,
            preferred: vec!["segment-5".into()],
            ..PutConfig::default()
        };
        world.put_with("pinned", 10 * BLOCK, hard);
    });
}

/// A put waited for room that was being made on one node. When no more was placed there, it was not tried elsewhere.
#[test]
fn a_put_does_not_wait_for_a_node_that_takes_nothing() {
    let check = |name: &str, close: &dyn Fn(&mut World)| {
        let mut world = world();
        let far = NodeId(2);
        world.mount(far, SegmentId(5), SegmentKind::Memory, 32 * BLOCK);
        world.put_at("old", 12 * BLOCK, "segment-1");
        world.put_at("far", 30 * BLOCK, "segment-5");
        world.obedient = false;
        world.remove("far").expect("far is there");
        let call = world.send(ME, start("large", 14 * BLOCK, wait(seconds(5))));
        assert_eq!(world.reply(call), None, "{name}: not fenced yet");
        close(&mut world);
        let here = world.taken(|order| match order {
            Order::Fence(extents) => Some(extents.clone()),
            _ => None,
        });
        let here = here.concat().into_iter().filter(|it| it.segment == MEMORY);
        world.report(NODE, Report::Fenced(here.collect()));
        let reply = world.reply(call);
        assert!(is_granted(&reply), "{name}: {reply:?}");
        assert!(!world.has("old"), "{name}");
    };
    check("away", &|world| world.input(Input::NodeAway(NodeId(2))));
    check("gone", &|world| world.input(Input::NodeLost(NodeId(2))));
    check("drained", &|world| {
        world.begin(drain(&["segment-5"], &[]));
    });
}

/// A value that only a drained segment could hold was first in its turn: room was made for nobody behind it.
#[test]
fn what_only_a_drained_node_could_hold_holds_nobody_up() {
    let mut world = world();
    world.mount(NodeId(2), SegmentId(5), SegmentKind::Memory, 32 * BLOCK);
    let drained = world.begin(drain(&["segment-5"], &[]));
    world.put_at("old", 12 * BLOCK, "segment-1");
    let larger = world.send(ME, start("larger", 20 * BLOCK, wait(seconds(5))));
    assert_eq!((world.reply(larger), world.has("old")), (None, true));
    let large = world.send(OTHER, start("large", 14 * BLOCK, wait(seconds(5))));
    assert!(is_granted(&world.reply(large)) && world.reply(larger).is_none());
    world.ask(Request::CancelJob { job: drained });
    assert!(
        is_granted(&world.reply(larger)),
        "it takes new values again"
    );
}

/// Room that is coming and cannot suffice kept a put from what another segment could give.
#[test]
fn room_that_is_too_little_is_not_waited_for() {
    let mut world = world();
    let far = NodeId(2);
    world.mount(far, SegmentId(5), SegmentKind::Memory, 32 * BLOCK);
    let hard = PutConfig {
        pin: Pin::Hard,
        preferred: vec!["segment-5".into()],
        ..PutConfig::default()
    };
    world.put_with("pinned", 21 * BLOCK, hard);
    world.put_at("far", BLOCK, "segment-5");
    world.put_at("old", 12 * BLOCK, "segment-1");
    world.obedient = false;
    world.remove("far").expect("far is there");
    let call = world.send(ME, start("large", 14 * BLOCK, wait(seconds(5))));
    assert!(!world.has("old"), "11 blocks are free or coming there");
    world.obey();
    assert!(matches!(world.reply(call), Some(Reply::PutStart(_))));
}

/// A soft pin gave way in the segment with most room, although another had values without one.
#[test]
fn soft_pins_give_way_when_no_segment_has_anything_else() {
    let mut world = world();
    world.mount(NodeId(2), SegmentId(5), SegmentKind::Memory, 17 * BLOCK);
    let soft = PutConfig {
        pin: Pin::Soft(Some(seconds(60))),
        preferred: vec!["segment-5".into()],
        ..PutConfig::default()
    };
    world.put_with("pinned", 12 * BLOCK, soft);
    world.put_at("old", 12 * BLOCK, "segment-1");
    let call = world.send(ME, start("large", 14 * BLOCK, wait(seconds(5))));
    assert!(matches!(world.reply(call), Some(Reply::PutStart(_))));
    assert_eq!((world.has("pinned"), world.has("old")), (true, false));
    let call = world.send(ME, start("more", 14 * BLOCK, wait(seconds(5))));
    assert!(world.reply(call).is_some() && !world.has("pinned"));
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
    assert!(is_granted(&granted), "{granted:?}");
}
