//! Puts that wait for room on several hosts, and what others find meanwhile.

use slackwater_meta::{Input, MasterConfig, Tenancy};
use slackwater_wire::*;

use super::jobs::copy;
use super::put::granted;
use super::replicated::{of_hosts, on, pool_of};
use crate::world::*;

/// A put of so many hosts and blocks that waits.
fn across(name: &str, hosts: u32, blocks: u64) -> Request {
    let config = PutConfig {
        wait: Some(seconds(60)),
        ..on(hosts)
    };
    start(name, blocks * BLOCK, config)
}

/// A pool of these hosts, of which the last is full: the put that is written there, and ends without a value.
fn last_is_full(hosts: &[&str]) -> (World, Version) {
    let mut world = of_hosts(hosts);
    let last = PutConfig {
        preferred: vec![format!("segment-{}", hosts.len() * 10)],
        ..wait(seconds(0))
    };
    let (version, _) = granted(world.start("full", 16 * BLOCK, last));
    (world, version)
}

/// A put of such a name is given up.
fn ends(world: &mut World, name: &str, version: Version) {
    world.ask(Request::PutRevoke {
        tenant: Tenant::DEFAULT,
        puts: vec![(key(name), version)],
    });
}

/// A put waited for the one host that was full, and every later put of its tenant waited behind it, though there was room.
#[test]
fn a_full_host_holds_up_nobody_with_room_elsewhere() {
    let (mut world, full) = last_is_full(&["a", "b", "c"]);
    let waits = world.send(ME, across("k", 3, 2));
    assert_eq!(world.reply(waits), None);
    for (client, name) in [(ME, "own"), (OTHER, "other")] {
        let call = world.send(client, start(name, 2 * BLOCK, wait(seconds(60))));
        assert!(is_granted(&world.reply(call)), "{name}");
    }
    let fewer = world.send(ME, across("fewer", 2, 2));
    assert!(
        is_granted(&world.reply(fewer)),
        "on two hosts there is room"
    );
    ends(&mut world, "full", full);
    assert!(is_granted(&world.reply(waits)));
}

/// The room that the put has found stays, or others would take it while it waits for the rest.
#[test]
fn what_a_waiting_put_has_found_is_left_to_it() {
    let (mut world, full) = last_is_full(&["a", "b"]);
    let waits = world.send(ME, across("k", 2, 10));
    let small = |name: &str| start(name, 4 * BLOCK, wait(seconds(60)));
    let first = world.send(ME, small("first"));
    assert!(is_granted(&world.reply(first)), "there is room for both");
    let second = world.send(ME, small("second"));
    let third = world.send(OTHER, start("third", BLOCK, wait(seconds(60))));
    assert_eq!((world.reply(waits), world.reply(second)), (None, None));
    assert_eq!(world.reply(third), None, "it came after the second");
    ends(&mut world, "full", full);
    for call in [waits, second, third] {
        assert!(is_granted(&world.reply(call)));
    }
}

/// A host that was too small for the value that waited was left empty for it: the tenant's later puts were refused.
#[test]
fn a_host_that_can_never_serve_the_waiting_put_is_not_left_to_it() {
    let config = MasterConfig {
        tenancy: Tenancy::On,
        ..plain()
    };
    let mut world = pool_of(config, &[("a", 16), ("b", 16), ("c", 4)]);
    let full = PutConfig {
        preferred: vec!["segment-20".to_owned()],
        ..wait(seconds(0))
    };
    granted(world.start("full", 16 * BLOCK, full));
    let waits = world.send(ME, across("k", 2, 14));
    assert_eq!(world.reply(waits), None);
    let small = world.send(ME, start("small", 3 * BLOCK, wait(seconds(0))));
    assert!(is_granted(&world.reply(small)));
}

/// The first of two that wait keeps its place, and the second does not wait for it.
#[test]
fn puts_of_several_hosts_wait_for_what_each_of_them_lacks() {
    let mut world = of_hosts(&["a", "b", "c"]);
    let preferring = |segment: &str| PutConfig {
        preferred: vec![segment.to_owned()],
        ..wait(seconds(0))
    };
    let full = ["segment-20", "segment-30"].map(|segment| {
        let (version, _) = granted(world.start(segment, 15 * BLOCK, preferring(segment)));
        (version, segment)
    });
    let all = world.send(ME, across("all", 3, 4));
    let two = world.send(ME, across("two", 2, 4));
    assert_eq!((world.reply(all), world.reply(two)), (None, None));
    ends(&mut world, full[0].1, full[0].0);
    assert_eq!(world.reply(all), None);
    assert!(is_granted(&world.reply(two)), "it needs no third host");
    ends(&mut world, full[1].1, full[1].0);
    assert!(is_granted(&world.reply(all)));
}

/// A put was tried before the one whose room it left alone. When that was served, it was the first, and no room was made for it.
#[test]
fn room_is_made_for_the_next_put_when_the_first_is_served() {
    let config = MasterConfig {
        tenancy: Tenancy::On,
        ..plain()
    };
    let mut world = pool_of(config, &[("x", 16), ("y", 16)]);
    let tenant = |name: &str| Tenant::new(name).expect("a tenant name");
    for name in ["a", "b"] {
        let set = Request::SetQuota {
            tenant: tenant(name),
            memory_bytes: 32 * BLOCK,
            disk_bytes: 0,
        };
        assert_eq!(world.ask(set), Reply::Done);
    }
    for block in 0..16 {
        world.put_at(&format!("cached-{block}"), BLOCK, "segment-20");
    }
    world.obedient = false;
    let of = |name: &str| match across("k", 2, 8) {
        Request::PutStart(start) => Request::PutStart(PutStart {
            tenant: tenant(name),
            ..start
        }),
        other => other,
    };
    let calls = ["b", "a"].map(|name| world.send(ME, of(name)));
    assert!(calls.iter().all(|call| world.reply(*call).is_none()));
    // The first fences are those of the first put's room.
    (0..4).for_each(|_| world.obey());
    for call in calls {
        assert!(is_granted(&world.reply(call)));
    }
}

/// Room for both is made where both fit, and nothing is evicted where they never do.
#[test]
fn room_is_made_beside_what_a_waiting_put_has_found() {
    let check = |waiting: u64, expected: bool| {
        let (mut world, _) = last_is_full(&["a", "b"]);
        for name in ["c1", "c2", "c3", "c4"] {
            world.put_at(name, BLOCK, "segment-10");
        }
        let cached = |world: &mut World| ["c1", "c2", "c3", "c4"].map(|name| world.has(name));
        let waits = world.send(ME, across("k", 2, waiting));
        let small = world.send(ME, start("small", 5 * BLOCK, wait(seconds(60))));
        assert_eq!(world.reply(waits), None);
        assert_eq!(is_granted(&world.reply(small)), expected, "{waiting}");
        let stay = cached(&mut world)
            .into_iter()
            .filter(|there| *there)
            .count();
        assert_eq!(stay == 4, !expected, "{waiting}: {stay} of 4 stay");
        world.pass(seconds(60));
        let none = PutStarted::Failed(ErrorCode::NoAvailableHandle);
        assert_eq!(world.reply(waits), Some(Reply::PutStart(vec![none])));
    };
    check(10, true);
    check(12, false);
}

/// A put took room on two segments of one host, each of which was left room beside the other.
#[test]
fn a_host_of_several_segments_is_left_room_on_one_of_them() {
    let (mut world, full) = last_is_full(&["a", "a", "b"]);
    let waits = world.send(ME, across("k", 2, 10));
    let twice = PutConfig {
        replicas: 2,
        ..wait(seconds(0))
    };
    world.put_with("twice", 8 * BLOCK, twice);
    let replicas = world.found("twice").replicas.len();
    assert_eq!(replicas, 1, "the other segment is left as it is");
    ends(&mut world, "full", full);
    assert!(is_granted(&world.reply(waits)));
}

/// A copy took the room that a put had found. Nobody made it again, as nothing but what frees room lets puts be tried.
#[test]
fn room_is_made_again_where_a_copy_has_taken_it() {
    let (mut world, _) = last_is_full(&["a", "b"]);
    world.mount(NodeId(3), SegmentId(30), SegmentKind::Memory, 16 * BLOCK);
    world.put_at("far", 8 * BLOCK, "segment-30");
    for n in 0..4 {
        world.put_at(&format!("cached-{n}"), BLOCK, "segment-10");
    }
    let waits = world.send(ME, across("k", 3, 8));
    assert_eq!(world.reply(waits), None);
    world.begin(copy("far", &["segment-10"]));
    assert_eq!(world.copies.len(), 1);
    assert!(world.has("cached-0"));
    world.pass(seconds(0));
    assert!(!world.has("cached-0"), "room is made");
}

/// A put that nobody waits for any more keeps no room.
#[test]
fn a_client_that_goes_lets_others_have_its_room() {
    let (mut world, _) = last_is_full(&["a", "b"]);
    let waits = world.send(OTHER, across("k", 2, 14));
    let small = world.send(ME, start("small", 4 * BLOCK, wait(seconds(60))));
    assert_eq!((world.reply(waits), world.reply(small)), (None, None));
    world.input(Input::ClientLost(OTHER));
    assert!(is_granted(&world.reply(small)));
}

/// Of the puts that wait for several hosts only the first sixteen were tried: with those stuck, one behind them that could have been
/// served was not, however much room there was.
#[test]
fn a_put_is_tried_whatever_number_of_others_is_stuck_before_it() {
    for stuck in [15, 16, 17, 40] {
        let (mut world, full) = last_is_full(&["a", "b", "c"]);
        let last = PutConfig {
            preferred: vec!["segment-20".to_owned()],
            ..wait(seconds(0))
        };
        let (second, _) = granted(world.start("second", 16 * BLOCK, last));
        let stuck: Vec<OperationId> = (0..stuck)
            .map(|n| world.send(ME, across(&format!("k{n}"), 3, 10)))
            .collect();
        let two = world.send(OTHER, across("two", 2, 2));
        assert_eq!(world.reply(two), None, "there is room on one host alone");
        ends(&mut world, "second", second);
        world.pass(seconds(0));
        assert!(is_granted(&world.reply(two)), "behind {}", stuck.len());
        assert!(stuck.iter().all(|call| world.reply(*call).is_none()));
        ends(&mut world, "full", full);
        world.pass(seconds(0));
        let served = stuck.iter().filter(|call| world.reply(**call).is_some());
        assert_eq!(served.count(), 1, "there is room for one of them");
    }
}
