//! Promotions to a node of the reader's host.

use std::time::Duration;

use slackwater_meta::{MasterConfig, OffloadMode, Promotion};
use slackwater_wire::*;

use super::*;
use crate::world::*;

const NEAR: NodeId = NodeId(2);
const NEAR_MEMORY: SegmentId = SegmentId(20);
const OTHER_NEAR: SegmentId = SegmentId(30);
/// The hosts of the nodes 1 and 2.
const FAR_HOST: &str = "host-1";
const NEAR_HOST: &str = "host-2";

/// Blocks on the SSD of node 1, read from the host of node 2, which lends memory alone.
fn world_with(config: MasterConfig, names: &[&str]) -> World {
    let mut world = cold_as(config, names);
    world.mount(NEAR, NEAR_MEMORY, SegmentKind::Memory, 64 * BLOCK);
    world.host = Some(NEAR_HOST);
    world
}

fn world(names: &[&str]) -> World {
    world_with(config(Promotion::default()), names)
}

/// Reads often enough for a promotion: to which node it is brought, or which one is asked to promote it.
fn earned(world: &mut World, name: &str) -> (Vec<NodeId>, Vec<NodeId>) {
    world.found(name);
    world.found(name);
    let brought = world.copies.iter().map(|(node, _)| *node).collect();
    let is_promotion = |(_, order): &&(NodeId, Order)| matches!(order, Order::Promote(_));
    let orders = world.orders.iter().filter(is_promotion);
    (brought, orders.map(|(node, _)| *node).collect())
}

#[test]
fn what_is_read_on_another_host_is_brought_there() {
    let mut world = world(&["a"]);
    assert_eq!(earned(&mut world, "a"), (vec![NEAR], vec![]));
    let (_, task) = world.copies.front().unwrap().clone();
    let from = ReplicaAt::Disk {
        node: NODE,
        segment: DISK,
    };
    assert_eq!((task.from, task.source), (NODE, from));
    assert_eq!(task.target.segment, NEAR_MEMORY);
    // More reads bring it once.
    assert_eq!(earned(&mut world, "a"), (vec![NEAR], vec![]));
    assert_eq!((funnel(&world).admitted, funnel(&world).in_flight), (1, 1));
    world.copied(Ok(()));
    let replicas = world.found("a").replicas;
    assert!(
        matches!(&replicas[0], ReplicaAt::Memory(extent) if extent.segment == NEAR_MEMORY),
        "{replicas:?}"
    );
    let funnel = funnel(&world);
    assert_eq!(
        (funnel.completed, funnel.completed_bytes, funnel.to_reader),
        (1, BLOCK, 1)
    );
    assert_eq!(funnel.in_flight, 0);
    assert_eq!(world.master.metrics().copied_bytes, BLOCK);
}

#[test]
fn the_node_of_the_record_promotes_where_none_is_nearer() {
    let half = Promotion {
        watermark: 0.5,
        ..Promotion::default()
    };
    let check = |what: &str, change: fn(&mut World)| {
        let mut world = world_with(config(half.clone()), &["a"]);
        change(&mut world);
        assert_eq!(earned(&mut world, "a"), (vec![], vec![NODE]), "{what}");
    };
    check("no host is known", |world| world.host = None);
    check("a host without a name", |world| world.host = Some(""));
    check("the reader is there", |world| world.host = Some(FAR_HOST));
    check("no node is beside it", |world| world.host = Some("host-9"));
    check("that node is gone", |world| {
        world.input(slackwater_meta::Input::NodeLost(NEAR))
    });
    check("that node has no link", |world| {
        world.input(slackwater_meta::Input::NodeAway(NEAR));
    });
    check("its memory is full", |world| {
        for at in 0..32 {
            let preferred = vec!["segment-20".to_owned()];
            let config = PutConfig {
                preferred,
                ..PutConfig::default()
            };
            world.put_with(&format!("k{at}"), BLOCK, config);
        }
    });
}

/// A copy that ended badly left its promotion in flight for ever, or was the only one that was ever tried.
#[test]
fn what_cannot_be_brought_is_promoted_where_it_is() {
    let check = |code: ErrorCode, failed: u64| {
        let mut world = world(&["a", "b"]);
        assert_eq!(earned(&mut world, "a").0, [NEAR]);
        world.copied(Err(code));
        let before = funnel(&world);
        assert_eq!(
            (before.failed, before.cancelled),
            (failed, 1 - failed),
            "{code}"
        );
        assert_eq!(before.in_flight, 0, "{code}");
        world.pass(Duration::from_secs(1));
        assert_eq!(task(&mut world).entry.key, key("a"), "{code}");
        // A node that failed a moment ago is not asked again.
        let (brought, asked) = earned(&mut world, "b");
        let expected = match failed {
            1 => (vec![], vec![NODE]),
            _ => (vec![NEAR], vec![]),
        };
        assert_eq!((brought, asked), expected, "{code}");
    };
    check(ErrorCode::TransferFail, 1);
    check(ErrorCode::ChecksumMismatch, 1);
    check(ErrorCode::SegmentNotFound, 0);
}

#[test]
fn a_copy_whose_object_or_node_goes_publishes_nothing() {
    let remove = |world: &mut World| {
        world.pass(Duration::from_secs(1));
        let keys = vec![key("a")];
        let removed = world.ask(Request::Remove(Remove {
            tenant: Tenant::DEFAULT,
            keys,
            force: true,
        }));
        assert_eq!(removed, Reply::Each(vec![Ok(())]));
    };
    let mut world = world(&["a"]);
    assert_eq!(earned(&mut world, "a").0, [NEAR]);
    remove(&mut world);
    world.copied(Ok(()));
    assert!(!world.has("a"));
    assert_eq!((funnel(&world).cancelled, funnel(&world).in_flight), (1, 0));

    let mut world = self::world(&["a"]);
    assert_eq!(earned(&mut world, "a").0, [NEAR]);
    world.input(slackwater_meta::Input::NodeLost(NEAR));
    assert_eq!((funnel(&world).cancelled, funnel(&world).in_flight), (1, 0));
    // Its end comes late, and of nothing.
    world.copied(Ok(()));
    assert!(!in_memory(&mut world, "a"));
}

#[test]
fn a_preferred_segment_comes_before_the_reader() {
    let eager = MasterConfig {
        offload: Offload {
            mode: OffloadMode::Eager,
            ..Offload::default()
        },
        ..config(Promotion::default())
    };
    let check = |preferred: &str, want: (Vec<NodeId>, Vec<NodeId>)| {
        let mut world = world_with(eager.clone(), &[]);
        world.mount(NEAR, OTHER_NEAR, SegmentKind::Memory, 64 * BLOCK);
        let wish = PutConfig {
            preferred: vec![preferred.to_owned()],
            ..PutConfig::default()
        };
        let version = world.put_with("a", BLOCK, wish);
        let tasks = offloads(&mut world).into_iter();
        let done: Vec<_> = tasks.map(|task| (task.ticket, Ok(()))).collect();
        // A node without SSD writes nothing: the other one has the record from before.
        world.report(
            NODE,
            match done.is_empty() {
                false => Report::Offloaded(done),
                true => Report::Announce {
                    segment: DISK,
                    entries: vec![reported("a", version.0, BLOCK)],
                },
            },
        );
        let segment = world.found("a").replicas.iter().find_map(|at| match at {
            ReplicaAt::Memory(extent) => Some(extent.segment),
            ReplicaAt::Disk { .. } => None,
        });
        world.pass(Duration::from_secs(1));
        let clear = Request::ReplicaClear(ReplicaClear {
            tenant: Tenant::DEFAULT,
            keys: vec![key("a")],
            segment: segment.map(|segment| format!("segment-{segment}")),
        });
        assert_eq!(world.ask(clear), Reply::Each(vec![Ok(())]));
        world.orders.clear();
        assert_eq!(earned(&mut world, "a"), want, "{preferred}");
        let target = world.copies.front().map(|(_, task)| task.target.segment);
        let wished = (preferred == "segment-30").then_some(OTHER_NEAR);
        assert!(wished.is_none() || target == wished, "{target:?}");
    };
    check("segment-1", (vec![], vec![NODE]));
    check("segment-30", (vec![NEAR], vec![]));
    check("nowhere", (vec![NEAR], vec![]));
}

/// The limit counted those that a node promotes alone, and as many again were brought to readers.
#[test]
fn the_limit_of_promotions_counts_both_ways() {
    let limited = Promotion {
        queue_limit: 2,
        ..Promotion::default()
    };
    let mut world = world_with(config(limited), &["a", "b", "c"]);
    assert_eq!(earned(&mut world, "a").0, [NEAR]);
    world.host = None;
    assert_eq!(earned(&mut world, "b").1, [NODE]);
    for host in [None, Some(NEAR_HOST)] {
        world.host = host;
        assert_eq!(
            earned(&mut world, "c"),
            (vec![NEAR], vec![NODE]),
            "{host:?}"
        );
    }
    assert_eq!(funnel(&world).in_flight, 2);
}

#[test]
fn so_many_are_brought_at_once_and_the_rest_is_promoted_where_it_is() {
    let names: Vec<String> = (0..20).map(|at| format!("k{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = world(&names);
    names.iter().for_each(|name| drop(earned(&mut world, name)));
    assert_eq!(world.copies.len(), 16);
    let promoted: usize = tasks(&mut world).iter().map(Vec::len).sum();
    assert_eq!(promoted, 4);
    assert_eq!(funnel(&world).in_flight, 20);
    (0..16).for_each(|_| drop(world.copied(Ok(()))));
    assert_eq!(
        (funnel(&world).to_reader, funnel(&world).in_flight),
        (16, 4)
    );
}
