//! Promotions to the segments that puts preferred.

use slackwater_meta::{MasterConfig, Offload, OffloadMode, Promotion};
use slackwater_wire::*;

use super::*;
use crate::world::*;

const SECOND: SegmentId = SegmentId(8);
const FAR: NodeId = NodeId(2);
const FAR_MEMORY: SegmentId = SegmentId(9);
const FAR_DISK: SegmentId = SegmentId(10);

fn world() -> World {
    let eager = MasterConfig {
        offload: Offload {
            mode: OffloadMode::Eager,
            ..Offload::default()
        },
        ..config(Promotion::default())
    };
    World::tiers(eager, 64 * BLOCK, 1024 * BLOCK)
}

fn preferring(names: &[&str]) -> PutConfig {
    PutConfig {
        preferred: names.iter().map(|name| (*name).to_owned()).collect(),
        ..PutConfig::default()
    }
}

fn put_cold(world: &mut World, name: &str, config: PutConfig) {
    put_cold_by(world, NODE, name, config);
}

/// Puts a block that is on SSD alone after this.
fn put_cold_by(world: &mut World, node: NodeId, name: &str, config: PutConfig) -> Version {
    let version = world.put_with(name, BLOCK, config);
    let done = offloads(world)
        .into_iter()
        .map(|task| (task.ticket, Ok(())))
        .collect();
    world.report(node, Report::Offloaded(done));
    let segment = world
        .found(name)
        .replicas
        .iter()
        .find_map(|replica| match replica {
            ReplicaAt::Memory(extent) => Some(extent.segment),
            ReplicaAt::Disk { .. } => None,
        });
    world.pass(seconds(1));
    let clear = Request::ReplicaClear(ReplicaClear {
        tenant: Tenant::DEFAULT,
        keys: vec![key(name)],
        segment: Some(format!("segment-{}", segment.expect("it is in memory"))),
    });
    assert_eq!(world.ask(clear), Reply::Each(vec![Ok(())]));
    assert!(!in_memory(world, name));
    version
}

fn promoted_to(world: &mut World, name: &str) -> SegmentId {
    let task = earn(world, name);
    let extent = staged(world, task.ticket, task.bytes).expect("there is room");
    extent.segment
}

#[test]
fn a_promotion_goes_to_the_segment_that_the_put_preferred() {
    let check = |preferred: &[&str], want: SegmentId| {
        let mut world = world();
        world.mount(NODE, SECOND, SegmentKind::Memory, 64 * BLOCK);
        // The second segment is the fuller one, so nothing but the wish leads there.
        for at in 0..8 {
            world.put_with(&format!("k{at}"), BLOCK, preferring(&["segment-8"]));
        }
        put_cold(&mut world, "a", preferring(preferred));
        assert_eq!(promoted_to(&mut world, "a"), want, "{preferred:?}");
    };
    check(&[], MEMORY);
    check(&["nowhere"], MEMORY);
    check(&["segment-8"], SECOND);
    check(&["nowhere", "segment-8", "segment-1"], SECOND);
    check(&["segment-1", "segment-8"], MEMORY);
    // Of a long list the first ones count.
    check(&[&["nowhere"; 15][..], &["segment-8"]].concat(), SECOND);
    check(&[&["nowhere"; 16][..], &["segment-8"]].concat(), MEMORY);
}

#[test]
fn of_two_ssds_the_one_beside_the_preferred_segment_promotes() {
    let check = |preferred: &[&str], want: NodeId| {
        let mut world = world();
        world.mount(FAR, FAR_MEMORY, SegmentKind::Memory, 64 * BLOCK);
        world.mount(FAR, FAR_DISK, SegmentKind::Disk, 1024 * BLOCK);
        world.report(
            FAR,
            Report::Announced {
                segment: FAR_DISK,
                highest: Version(0),
            },
        );
        let (here, there) = match want {
            NODE => (NODE, (FAR, FAR_DISK)),
            _ => (FAR, (NODE, DISK)),
        };
        let version = put_cold_by(&mut world, here, "a", preferring(preferred));
        put_cold_by(&mut world, here, "b", preferring(preferred));
        world.report(
            there.0,
            Report::Announce {
                segment: there.1,
                entries: vec![reported("a", version.0, BLOCK)],
            },
        );
        // The node that is preferred is the busier one, so nothing but the wish leads there.
        assert_eq!(asked(&mut world, "b"), [here], "{preferred:?}");
        assert_eq!(asked(&mut world, "a"), [want], "{preferred:?}");
        assert_eq!(world.found("a").replicas.len(), 2, "{preferred:?}");
    };
    check(&["segment-9"], FAR);
    check(&["segment-1"], NODE);
    check(&["segment-1", "segment-9"], NODE);
    check(&["segment-9", "segment-1"], FAR);
}

/// The nodes that are ordered to promote an object once it was read often enough.
fn asked(world: &mut World, name: &str) -> Vec<NodeId> {
    world.orders.clear();
    world.found(name);
    world.found(name);
    let is_promotion = |(_, order): &&(NodeId, Order)| matches!(order, Order::Promote(_));
    let orders = world.orders.iter().filter(is_promotion);
    orders.map(|(node, _)| *node).collect()
}

#[test]
fn the_last_put_says_what_is_preferred() {
    let mut world = world();
    world.mount(NODE, SECOND, SegmentKind::Memory, 64 * BLOCK);
    put_cold(&mut world, "a", preferring(&["segment-8"]));
    put_cold(
        &mut world,
        "a",
        PutConfig {
            mode: upsert().mode,
            ..preferring(&["segment-1"])
        },
    );
    world.put_with("k", BLOCK, preferring(&["segment-1"]));
    assert_eq!(promoted_to(&mut world, "a"), MEMORY);

    put_cold(&mut world, "b", preferring(&["segment-8"]));
    put_cold(&mut world, "b", upsert());
    for at in 0..4 {
        world.put_with(&format!("s{at}"), BLOCK, preferring(&["segment-8"]));
    }
    assert_eq!(promoted_to(&mut world, "b"), MEMORY, "no wish any more");
}
