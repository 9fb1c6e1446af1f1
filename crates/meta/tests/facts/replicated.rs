//! Puts that are acknowledged when several hosts have their values.

use slackwater_meta::{Input, MasterConfig};
use slackwater_wire::*;

use super::jobs::drain;
use super::put::granted;
use crate::world::*;

/// A pool whose node 1 has segment 10 on the first of these hosts, and so on, 16 blocks each unless said; a node without a host
/// does not say its own.
fn pool(hosts: &[(&str, u64)]) -> World {
    pool_of(plain(), hosts)
}

/// The same with a master of this configuration.
pub(crate) fn pool_of(config: MasterConfig, hosts: &[(&str, u64)]) -> World {
    let mut world = World::new(config);
    for (node, (host, blocks)) in (1..).zip(hosts) {
        let mount = Mount {
            segment: SegmentId(node * 10),
            name: format!("segment-{}", node * 10),
            node: NodeId(node),
            incarnation: Incarnation(1),
            kind: SegmentKind::Memory,
            bytes: blocks * BLOCK,
            host: (*host).to_owned(),
            generations: None,
            watermarks: None,
        };
        assert_eq!(world.ask(Request::Mount(mount)), Reply::Done);
    }
    world
}

pub(crate) fn of_hosts(hosts: &[&str]) -> World {
    let sized: Vec<(&str, u64)> = hosts.iter().map(|host| (*host, 16)).collect();
    pool(&sized)
}

/// A put that so many hosts must have, and that does not wait.
pub(crate) fn on(replicas: u32) -> PutConfig {
    PutConfig {
        replicas,
        durability: Durability::Replicated,
        ..wait(seconds(0))
    }
}

fn segments(world: &mut World, name: &str) -> Vec<u32> {
    let replicas = world.found(name).replicas;
    let mut segments: Vec<u32> = replicas
        .iter()
        .map(|replica| match replica {
            ReplicaAt::Memory(extent) => extent.segment.0,
            ReplicaAt::Disk { .. } => panic!("there is no SSD"),
        })
        .collect();
    segments.sort_unstable();
    segments
}

/// Two replicas of a value were on two nodes of one machine, and both went with it.
#[test]
fn each_replica_is_on_another_host_whatever_is_preferred() {
    let mut world = of_hosts(&["a", "a", "a", "b", ""]);
    let preferred = ["segment-10", "segment-20", "segment-30"];
    let near = PutConfig {
        preferred: preferred.map(str::to_owned).into(),
        ..on(2)
    };
    for name in ["k1", "k2", "k3"] {
        world.put_with(name, BLOCK, near.clone());
        let found = segments(&mut world, name);
        assert!(found[0] <= 30 && found[1] >= 40, "{found:?}");
    }
    world.put_with("all", BLOCK, on(3));
    assert_eq!(segments(&mut world, "all")[1..], [40, 50]);
    // Any two nodes will do for one that asks for two copies only.
    let two = PutConfig {
        durability: Durability::Memory,
        ..near
    };
    world.put_with("near", BLOCK, two);
    assert_eq!(segments(&mut world, "near"), [10, 20]);
}

/// Fewer segments gave fewer replicas, and the put was acknowledged all the same.
#[test]
fn a_put_that_needs_more_hosts_than_there_are_is_refused_at_once() {
    let check = |hosts: &[(&str, u64)], replicas: u32, expected: Option<ErrorCode>| {
        let mut world = pool(hosts);
        let patient = PutConfig {
            wait: Some(seconds(5)),
            ..on(replicas)
        };
        let call = world.send(ME, start("k", 8 * BLOCK, patient));
        let reply = world.reply(call).expect("it does not wait");
        match expected {
            Some(code) => {
                let refused = Reply::PutStart(vec![PutStarted::Failed(code)]);
                assert_eq!(reply, refused, "{hosts:?}");
                assert!(!world.has("k"));
            }
            None => assert!(is_granted(&Some(reply)), "{hosts:?}"),
        }
    };
    let few = Some(ErrorCode::TooFewHosts);
    check(&[("a", 16)], 1, None);
    check(&[("a", 16)], 2, few);
    check(&[("a", 16), ("a", 16)], 2, few);
    check(&[("a", 16), ("b", 16)], 2, None);
    check(&[("a", 16), ("b", 16)], 3, few);
    // Each node that says no host is one of its own.
    check(&[("a", 16), ("", 16)], 2, None);
    check(&[("", 16), ("", 16)], 2, None);
    check(&[("", 16), ("", 16)], 3, few);
    // What could not hold the value does not count.
    check(&[("a", 16), ("b", 4)], 2, few);
    check(&[("a", 4), ("b", 4)], 2, Some(ErrorCode::InvalidParams));
}

#[test]
fn a_host_that_is_away_or_drained_is_waited_for() {
    let mut world = of_hosts(&["a", "b"]);
    let patient = PutConfig {
        wait: Some(seconds(5)),
        ..on(2)
    };
    let none = Some(Reply::PutStart(vec![PutStarted::Failed(
        ErrorCode::NoAvailableHandle,
    )]));
    world.input(Input::NodeAway(NodeId(2)));
    let call = world.send(ME, start("k", BLOCK, patient.clone()));
    assert_eq!(world.reply(call), None);
    world.input(Input::NodeBack(NodeId(2)));
    assert!(is_granted(&world.reply(call)));
    world.begin(drain(&["segment-20"], &[]));
    let call = world.send(ME, start("other", BLOCK, patient));
    assert_eq!(world.reply(call), None);
    world.pass(seconds(5));
    assert_eq!(world.reply(call), none);
}

/// One of two nodes was lost while it was written to: the put was published on the other alone, and acknowledged.
#[test]
fn a_put_is_not_acknowledged_that_lost_one_of_its_nodes() {
    let mut world = of_hosts(&["a", "b", "c"]);
    let (version, extents) = granted(world.start("k", BLOCK, on(2)));
    let lost = NodeId(extents[0].segment.0 / 10);
    world.input(Input::NodeLost(lost));
    let gone = Reply::Each(vec![Err(ErrorCode::ReplicaIsGone)]);
    assert_eq!(world.end(ME, "k", version), gone);
    assert_eq!(world.get("k"), Lookup::Missing);
    assert!(!world.has("k"));
    assert_eq!(world.used(extents[1].segment), 0);
    // The next try finds the two that are left.
    world.put_with("k", BLOCK, on(2));
    assert_eq!(segments(&mut world, "k").len(), 2);
}

/// A value that was there stays readable when the put that replaces it is not acknowledged.
#[test]
fn what_is_replaced_stays_where_its_successor_is_refused() {
    let mut world = of_hosts(&["a", "b"]);
    let before = world.put_with("k", BLOCK, on(2));
    let (version, extents) = granted(world.start(
        "k",
        BLOCK,
        PutConfig {
            mode: PutMode::Upsert,
            ..on(2)
        },
    ));
    world.input(Input::NodeLost(NodeId(extents[1].segment.0 / 10)));
    let gone = Reply::Each(vec![Err(ErrorCode::ReplicaIsGone)]);
    assert_eq!(world.end(ME, "k", version), gone);
    assert_eq!(world.found("k").version, before);
}

/// Room was made where there was most of it already, until nothing was left there, and the full host stayed full.
#[test]
fn room_is_made_on_hosts_that_have_none() {
    let mut world = of_hosts(&["a", "a", "b"]);
    for (segment, blocks) in [(10, 8), (20, 15), (30, 15)] {
        for n in 0..blocks {
            let name = format!("{segment}-{n}");
            world.put_at(&name, BLOCK, &format!("segment-{segment}"));
        }
    }
    let full = world.master.metrics().evictions;
    let call = world.send(
        ME,
        start(
            "k",
            4 * BLOCK,
            PutConfig {
                wait: Some(seconds(5)),
                ..on(2)
            },
        ),
    );
    assert!(is_granted(&world.reply(call)));
    let kept = |world: &mut World, segment: u32, blocks: u32| {
        let names = (0..blocks).map(|n| format!("{segment}-{n}"));
        names.filter(|name| world.has(name)).count()
    };
    assert_eq!((kept(&mut world, 10, 8), kept(&mut world, 20, 15)), (8, 15));
    let evicted = world.master.metrics().evictions - full;
    assert!(
        (3..=4).contains(&evicted),
        "{evicted} blocks of the full host"
    );
}

#[test]
fn nothing_is_taken_where_one_host_has_no_room() {
    let mut world = of_hosts(&["a", "b"]);
    let pinned = PutConfig {
        pin: Pin::Hard,
        preferred: vec!["segment-20".into()],
        ..PutConfig::default()
    };
    world.put_with("pinned", 14 * BLOCK, pinned);
    let none = PutStarted::Failed(ErrorCode::NoAvailableHandle);
    assert_eq!(world.start("k", 4 * BLOCK, on(2)), none);
    assert_eq!(world.used(SegmentId(10)), 0);
    // As many as there is room for are enough where they are not needed.
    let few = PutConfig {
        durability: Durability::Memory,
        ..on(2)
    };
    world.put_with("k", 4 * BLOCK, few);
    assert_eq!(segments(&mut world, "k"), [10]);
}
