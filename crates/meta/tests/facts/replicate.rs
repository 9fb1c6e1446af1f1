//! Further replicas of what is read much.

use std::time::Duration;

use slackwater_meta::{
    Input, MasterConfig, Metrics, Offload, OffloadMode, Replication, ReplicationMetrics,
    ReplicationMode, Tenancy,
};
use slackwater_wire::*;

use crate::jobs::{SECOND, THIRD, copy, drain, three_with};
use crate::world::*;

/// Reads in a window that make an object hot.
const HOT: usize = 8;

fn config(mode: ReplicationMode) -> MasterConfig {
    MasterConfig {
        lease_ttl: Duration::from_secs(1),
        replication: Replication {
            mode,
            ..Replication::DEFAULT
        },
        ..plain()
    }
}

fn enforced() -> MasterConfig {
    config(ReplicationMode::Enforce)
}

impl World {
    fn read(&mut self, name: &str, times: usize) {
        for _ in 0..times {
            self.found(name);
        }
    }

    fn replication(&self) -> ReplicationMetrics {
        self.master.metrics().replication
    }

    /// An object on node 1 that has an extra replica on another node.
    fn replicated(&mut self, name: &str) {
        self.put_at(name, BLOCK, "segment-1");
        self.read(name, HOT);
        assert_eq!(self.carry_all(), 1);
    }
}

#[test]
fn what_is_read_often_in_a_window_gets_a_replica_on_the_node_with_most_room() {
    for (mode, expected) in [
        (ReplicationMode::Off, (0, 0, 0)),
        (ReplicationMode::Observe, (1, 1, 0)),
        (ReplicationMode::Enforce, (1, 0, 1)),
    ] {
        let mut world = three_with(config(mode), MIB);
        world.put_at("other", BLOCK, "segment-20");
        world.put_at("k", BLOCK, "segment-1");
        world.read("k", HOT - 1);
        world.pass(seconds(10));
        world.read("k", HOT - 1);
        assert_eq!(world.replication().hot, 0, "each window has too few");
        world.read("k", 1);
        let (_, _, made) = expected;
        assert_eq!(world.carry_all(), made);
        let counted = world.replication();
        let found = (counted.hot, counted.observed, counted.completed);
        let (hot, observed, made) = expected;
        assert_eq!(found, (hot, observed, made as u64), "{mode:?}");
        let nodes: &[u32] = if made == 1 { &[1, 3] } else { &[1] };
        assert_eq!(world.nodes_of("k"), nodes);
        assert_eq!(world.found("k").replicas.len(), nodes.len());
        world.master.check_books().unwrap();
    }
}

fn mount(world: &mut World, node: u32, host: &str, watermarks: Option<Watermarks>) {
    let mount = Mount {
        segment: SegmentId(node * 10),
        name: format!("segment-{node}0"),
        node: NodeId(node),
        incarnation: Incarnation(1),
        kind: SegmentKind::Memory,
        bytes: MIB,
        host: host.to_owned(),
        generations: None,
        watermarks,
    };
    assert_eq!(world.ask(Request::Mount(mount)), Reply::Done);
}

#[test]
fn another_host_comes_before_a_node_with_more_room() {
    let mut world = World::new(enforced());
    for (node, host) in [(1, "a"), (2, "a"), (3, "b")] {
        mount(&mut world, node, host, None);
    }
    world.put_at("other", BLOCK, "segment-30");
    world.put_at("k", BLOCK, "segment-10");
    world.read("k", HOT);
    world.carry_all();
    assert_eq!(world.nodes_of("k"), [1, 3]);
}

#[test]
fn after_a_decision_reads_do_not_count_for_a_while() {
    let mut world = three_with(enforced(), MIB);
    world.replicated("k");
    world.read("k", 4 * HOT);
    assert_eq!(world.replication().hot, 1);
    world.pass(seconds(30));
    world.read("k", HOT);
    let counted = world.replication();
    assert_eq!((counted.hot, counted.rejected_enough), (2, 1));
    assert_eq!(world.nodes_of("k").len(), 2);
    // Another value under the same name begins anew.
    world.pass(seconds(2));
    assert_eq!(world.remove_with("k", true), Ok(()));
    world.replicated("k");
}

#[test]
fn a_replica_takes_what_is_free_and_makes_no_room() {
    let most = MIB / BLOCK * 85 / 100;
    for (held, made) in [(most - 1, 1), (most, 0)] {
        let mut world = three_with(enforced(), MIB);
        for node in ["20", "30"] {
            for name in 0..held {
                world.put_at(&format!("{node}-{name}"), BLOCK, &format!("segment-{node}"));
            }
        }
        world.put_at("k", BLOCK, "segment-1");
        world.read("k", HOT);
        assert_eq!(world.carry_all(), made, "beside {held}");
        let counted = world.replication();
        let refused = (counted.rejected_room, world.master.metrics().evictions);
        assert_eq!(refused, (1 - made as u64, 0));
    }
}

/// Where eviction begins earlier than replication ends, a replica went as soon as it was made.
#[test]
fn no_replica_is_made_beyond_a_nodes_own_watermark() {
    for (high, made) in [(0.5, 0), (0.9, 1)] {
        let mut world = World::new(enforced());
        for (node, high) in [(1, 0.9), (2, high)] {
            mount(&mut world, node, "", Some(Watermarks { low: 0.1, high }));
        }
        for name in 0..MIB / BLOCK / 2 {
            world.put_at(&format!("other{name}"), BLOCK, "segment-20");
        }
        world.put_at("k", BLOCK, "segment-10");
        world.read("k", HOT);
        assert_eq!(world.carry_all(), made, "eviction begins at {high}");
        assert_eq!(world.master.metrics().evictions, 0);
    }
}

#[test]
fn a_replica_is_within_the_quota_of_its_tenant() {
    let tenant = Tenant::new("t").unwrap();
    // Up to 95 % of a quota, from where its own objects are evicted.
    for (quota, made) in [(3 * BLOCK, 1), (2 * BLOCK, 0)] {
        let mut world = three_with(
            MasterConfig {
                tenancy: Tenancy::On,
                ..enforced()
            },
            MIB,
        );
        let set = Request::SetQuota {
            tenant: tenant.clone(),
            memory_bytes: quota,
            disk_bytes: 0,
        };
        assert_eq!(world.ask(set), Reply::Done);
        let mut put = start("k", BLOCK, PutConfig::default());
        if let Request::PutStart(put) = &mut put {
            put.tenant = tenant.clone();
        }
        let Reply::PutStart(started) = world.ask(put) else {
            panic!("it is put");
        };
        let PutStarted::Granted { version, .. } = started[0] else {
            panic!("{started:?}");
        };
        let mut end = end("k", version);
        if let Request::PutEnd(end) = &mut end {
            end.tenant = tenant.clone();
        }
        world.ask(end);
        let get = Request::Get(Get {
            tenant: tenant.clone(),
            keys: vec![key("k")],
            chain: Chain::default(),
            hold: Hold::Lease,
            prefix_only: false,
        });
        for _ in 0..HOT {
            world.ask(get.clone());
        }
        assert_eq!(world.carry_all(), made, "{quota}");
        assert_eq!(world.replication().rejected_quota, 1 - made as u64);
    }
}

#[test]
fn extra_replicas_are_the_first_to_go() {
    let mut world = three_with(enforced(), MIB);
    world.put_at("third", BLOCK, "segment-30");
    for name in 0..8 {
        world.put_at(&format!("old{name}"), BLOCK, "segment-20");
    }
    world.replicated("k");
    world.replicated("m");
    assert_eq!(
        (world.nodes_of("k"), world.nodes_of("m")),
        (vec![1, 3], vec![1, 3])
    );
    world.pass(seconds(2));
    let mut put = 0;
    while world.replication().extras_evicted == 0 {
        world.put_at(&format!("n{put}"), BLOCK, "segment-30");
        put += 1;
        assert!(put < 2 * MIB / BLOCK, "nothing had to go");
    }
    let counted = world.replication();
    assert_eq!(
        (counted.extras, counted.extras_evicted),
        (0, 2),
        "a step takes both"
    );
    assert_eq!(
        (world.nodes_of("k"), world.nodes_of("m")),
        (vec![1], vec![1])
    );
    // It does not come back at once.
    world.read("k", HOT);
    assert_eq!(world.carry_all(), 0);
    world.pass(seconds(60));
    world.read("k", HOT);
    assert_eq!(world.carry_all(), 1);
    world.master.check_books().unwrap();
}

#[test]
fn a_quota_takes_extra_replicas_first() {
    let mut world = three_with(
        MasterConfig {
            tenancy: Tenancy::On,
            ..enforced()
        },
        MIB,
    );
    world.put_at("old", BLOCK, "segment-1");
    world.replicated("k");
    world.pass(seconds(2));
    let set = Request::SetQuota {
        tenant: Tenant::DEFAULT,
        memory_bytes: 2 * BLOCK,
        disk_bytes: 0,
    };
    assert_eq!(world.ask(set), Reply::Done);
    assert_eq!(world.nodes_of("k"), [1]);
    assert!(world.replication().extras_evicted > 0);
}

/// The only replica must not go as an extra one.
#[test]
fn an_extra_replica_that_is_left_alone_is_one_like_any_other() {
    let mut world = three_with(enforced(), MIB);
    world.put_at("third", BLOCK, "segment-30");
    world.put_at("old", BLOCK, "segment-20");
    world.replicated("k");
    let [_, extra] = world.nodes_of("k")[..] else {
        panic!("two nodes have it");
    };
    world.input(Input::NodeLost(NODE));
    world.pass(seconds(2));
    // One that is old has to go; it is older than the replica.
    let mut put = 0;
    while world.master.metrics().evictions == 0 {
        world.put_at(&format!("n{put}"), BLOCK, &format!("segment-{extra}0"));
        put += 1;
    }
    let Metrics { replication, .. } = world.master.metrics();
    assert_eq!((replication.extras, replication.extras_evicted), (0, 0));
    world.master.check_books().unwrap();
}

#[test]
fn what_goes_away_during_its_copy_is_not_published() {
    let removed: fn(&mut World) = |world| {
        assert_eq!(world.remove_with("k", true), Ok(()));
    };
    let replaced: fn(&mut World) = |world| {
        world.put_with("k", BLOCK, upsert());
    };
    let target_lost: fn(&mut World) = |world| {
        for node in [SECOND, THIRD] {
            world.input(Input::NodeLost(node));
        }
    };
    let source_lost: fn(&mut World) = |world| world.input(Input::NodeLost(NODE));
    let late: fn(&mut World) = |world| world.pass(seconds(61));
    for (what, change, left) in [
        ("removed", removed, 0),
        ("replaced", replaced, 1),
        ("target lost", target_lost, 1),
        ("source lost", source_lost, 0),
        ("late", late, 1),
    ] {
        let mut world = three_with(enforced(), MIB);
        world.put_at("k", BLOCK, "segment-1");
        world.read("k", HOT);
        world.pass(seconds(2));
        change(&mut world);
        world.copied(Ok(()));
        assert_eq!(world.nodes_of("k").len(), left, "{what}");
        let counted = world.replication();
        assert_eq!((counted.failed, counted.extras), (1, 0), "{what}");
        world.master.check_books().unwrap();
    }
}

#[test]
fn few_copies_are_under_way_at_once_and_the_others_follow() {
    let mut world = three_with(enforced(), 4 * MIB);
    for name in 0..20 {
        world.put_at(&format!("k{name}"), BLOCK, "segment-1");
    }
    for name in 0..20 {
        world.read(&format!("k{name}"), HOT);
    }
    assert_eq!(world.copies.len(), 16);
    world.copied(Ok(()));
    assert_eq!(world.copies.len(), 16);
    assert_eq!(world.carry_all(), 19);
    assert_eq!(world.replication().extras, 20);
}

#[test]
fn a_drain_takes_the_extra_replica_for_the_one_that_stays() {
    let mut world = three_with(enforced(), MIB);
    world.put_at("k", BLOCK, "segment-1");
    world.read("k", HOT);
    let job = world.begin(drain(&["1"], &[]));
    assert_eq!(world.job(job).status, JobStatus::Running);
    assert_eq!(world.carry_all(), 1);
    assert_eq!(world.job(job).status, JobStatus::Succeeded);
    assert_eq!(world.nodes_of("k").len(), 1);
    assert_ne!(world.nodes_of("k"), [1]);
}

#[test]
fn a_node_that_takes_nothing_new_gets_no_replica() {
    let drained: fn(&mut World) = |world| {
        world.begin(drain(&["3"], &[]));
    };
    let away: fn(&mut World) = |world| world.input(Input::NodeAway(THIRD));
    for (what, leave) in [("drained", drained), ("away", away)] {
        let mut world = three_with(enforced(), MIB);
        world.put_at("old", BLOCK, "segment-20");
        leave(&mut world);
        world.replicated("k");
        assert_eq!(world.nodes_of("k"), [1, 2], "{what}");
    }
}

#[test]
fn what_a_job_copies_has_enough() {
    let mut world = three_with(enforced(), MIB);
    world.put_at("k", BLOCK, "segment-1");
    world.begin(copy("k", &["2"]));
    world.read("k", HOT);
    assert_eq!(world.carry_all(), 1);
    assert_eq!(world.nodes_of("k"), [1, 2]);
    let counted = world.replication();
    assert_eq!((counted.rejected_enough, counted.extras), (1, 0));
}

/// Its readers may be at it.
#[test]
fn an_extra_replica_stays_while_its_object_is_leased() {
    let mut world = three_with(enforced(), MIB);
    world.put_at("third", BLOCK, "segment-30");
    world.put_at("old", BLOCK, "segment-20");
    world.replicated("k");
    let [_, extra] = world.nodes_of("k")[..] else {
        panic!("two nodes have it");
    };
    let mut put = 0;
    while world.master.metrics().evictions == 0 {
        world.put_at(&format!("n{put}"), BLOCK, &format!("segment-{extra}0"));
        put += 1;
    }
    assert_eq!(world.nodes_of("k"), [1, extra]);
}

/// Extra replicas in use were examined again with each step and took it for themselves: what else the segment had was not
/// evicted for a put that waited, and the next step was due at once, until their leases ended.
#[test]
fn extra_replicas_in_use_do_not_take_every_step() {
    let mut config = enforced();
    config.eviction.step = 1;
    let mut world = three_with(config, 16 * BLOCK);
    world.replicated("k");
    let [_, extra] = world.nodes_of("k")[..] else {
        panic!("two nodes have it");
    };
    for node in [1, 2, 3] {
        let name = if node == 1 { 1 } else { node * 10 };
        let config = PutConfig {
            pin: if node == extra { Pin::None } else { Pin::Hard },
            preferred: vec![format!("segment-{name}")],
            ..PutConfig::default()
        };
        world.put_with(&format!("at{node}"), 12 * BLOCK, config);
    }
    let call = world.send(ME, start("large", 14 * BLOCK, wait(seconds(1))));
    world.pass(std::time::Duration::ZERO);
    let reply = world.reply(call);
    assert!(is_granted(&reply), "{reply:?}");
    assert_eq!(world.nodes_of("k"), [1, extra]);
}

/// Pins kept extra replicas for ever, though the other replica has the pin too; 64 of them hid those behind.
#[test]
fn pins_do_not_keep_extra_replicas() {
    for pin in [Pin::Hard, Pin::Soft(None)] {
        let mut world = three_with(enforced(), MIB);
        world.put_at("third", BLOCK, "segment-30");
        world.put_at("old", BLOCK, "segment-20");
        world.put_at("old too", BLOCK, "segment-20");
        let config = PutConfig {
            preferred: vec!["segment-1".to_owned()],
            pin,
            ..PutConfig::default()
        };
        world.put_with("k", BLOCK, config);
        world.read("k", HOT);
        assert_eq!(world.carry_all(), 1);
        assert_eq!(world.nodes_of("k"), [1, 3]);
        world.pass(seconds(2));
        let mut put = 0;
        while world.master.metrics().evictions == 0 {
            world.put_at(&format!("n{put}"), BLOCK, "segment-30");
            put += 1;
        }
        assert_eq!(world.nodes_of("k"), [1], "{pin:?}");
        assert_eq!(world.replication().extras_evicted, 1);
    }
}

/// The look for an extra replica of a tenant ended after 64 of others.
#[test]
fn a_quota_takes_the_tenants_own_extra_replicas() {
    let config = MasterConfig {
        tenancy: Tenancy::On,
        ..enforced()
    };
    let mut world = three_with(config, 16 * MIB);
    let quota = |name: &str, memory_bytes: u64| Request::SetQuota {
        tenant: Tenant::new(name).unwrap(),
        memory_bytes,
        disk_bytes: 0,
    };
    let put = |world: &mut World, tenant: &str, name: &str| {
        let tenant = Tenant::new(tenant).unwrap();
        let preferred = vec!["segment-1".to_owned()];
        let config = PutConfig {
            preferred,
            ..PutConfig::default()
        };
        let Request::PutStart(put) = start(name, BLOCK, config) else {
            unreachable!("it is the start of a put")
        };
        let put = PutStart {
            tenant: tenant.clone(),
            ..put
        };
        let Reply::PutStart(started) = world.ask(Request::PutStart(put)) else {
            panic!("it is put");
        };
        let PutStarted::Granted { version, .. } = started[0] else {
            panic!("{started:?}");
        };
        let Request::PutEnd(ended) = end(name, version) else {
            unreachable!("it is the end of a put")
        };
        world.ask(Request::PutEnd(PutEnd {
            tenant: tenant.clone(),
            ..ended
        }));
        let get = Get {
            tenant,
            keys: vec![key(name)],
            chain: Chain::default(),
            hold: Hold::Lease,
            prefix_only: false,
        };
        for _ in 0..HOT {
            world.ask(Request::Get(get.clone()));
        }
        assert_eq!(world.carry_all(), 1);
    };
    for name in ["many", "few"] {
        assert_eq!(world.ask(quota(name, 16 * MIB)), Reply::Done);
    }
    (0..65).for_each(|name| put(&mut world, "many", &format!("m{name}")));
    put(&mut world, "few", "f");
    world.pass(seconds(2));
    assert_eq!(world.ask(quota("few", BLOCK * 3 / 2)), Reply::Done);
    assert_eq!(world.replication().extras_evicted, 1);
    assert_eq!(world.master.metrics().evictions, 1);
    world.master.check_books().unwrap();
}

/// One node that could not bring anything was the emptiest, and every copy went there.
#[test]
fn a_node_to_which_a_copy_failed_is_left_alone_for_a_while() {
    let mut world = three_with(enforced(), MIB);
    world.put_at("old", BLOCK, "segment-20");
    world.put_at("k", BLOCK, "segment-1");
    world.put_at("m", BLOCK, "segment-1");
    world.read("k", HOT);
    let failed = world.copied(Err(ErrorCode::UnavailableInCurrentStatus));
    assert_eq!(failed.target.segment, SegmentId(30));
    world.read("m", HOT);
    let other = world.copied(Ok(()));
    assert_eq!(other.target.segment, SegmentId(20));
    world.pass(seconds(61));
    world.read("k", HOT);
    let again = world.copied(Ok(()));
    assert_eq!(again.target.segment, SegmentId(30));
}

/// A value that was often replaced had all nodes left alone.
#[test]
fn a_node_is_not_left_alone_because_a_value_was_replaced() {
    for result in [Ok(()), Err(ErrorCode::ReplicaIsGone)] {
        let mut world = three_with(enforced(), MIB);
        world.put_at("old", BLOCK, "segment-20");
        world.put_at("m", BLOCK, "segment-1");
        world.put_at("k", BLOCK, "segment-1");
        world.read("k", HOT);
        world.pass(seconds(2));
        let again = PutConfig {
            preferred: vec!["segment-1".to_owned()],
            ..upsert()
        };
        world.put_with("k", BLOCK, again);
        assert_eq!(world.copied(result).target.segment, SegmentId(30));
        world.read("m", HOT);
        assert_eq!(world.copied(Ok(())).target.segment, SegmentId(30));
    }
}

/// The hot objects of a node that died had "enough" replicas for ten minutes, with one node to serve all readers.
#[test]
fn what_a_hidden_node_has_does_not_count() {
    let mut world = three_with(enforced(), MIB);
    world.replicated("k");
    let [_, extra] = world.nodes_of("k")[..] else {
        panic!("two nodes have it");
    };
    world.input(Input::NodeAway(NodeId(extra)));
    world.pass(seconds(31));
    world.read("k", HOT);
    assert_eq!(world.carry_all(), 1);
    assert_eq!(world.found("k").replicas.len(), 2);
}

/// A replica on a node that had died passed for a copy, so that the last one that could be read was dropped without a record.
#[test]
fn a_copy_on_a_node_without_a_link_makes_no_replica_clean() {
    for (link, offloaded) in [(true, 0), (false, 1)] {
        let config = MasterConfig {
            offload: Offload {
                mode: OffloadMode::OnEvict,
                ..plain().offload
            },
            ..enforced()
        };
        let mut world = World::tiers(config, MIB, 16 * MIB);
        world.mount(SECOND, SegmentId(20), SegmentKind::Memory, MIB);
        let both = PutConfig {
            replicas: 2,
            ..PutConfig::default()
        };
        world.put_with("k", BLOCK, both);
        if !link {
            world.input(Input::NodeAway(SECOND));
        }
        world.pass(seconds(2));
        let mut put = 0;
        let evicted = |world: &World| {
            world.master.metrics().evictions + world.master.metrics().offload.started
        };
        while evicted(&world) == 0 {
            world.put_at(&format!("n{put}"), BLOCK, "segment-1");
            put += 1;
        }
        let of_k = offloads(&mut world)
            .iter()
            .filter(|task| task.entry.key == key("k"))
            .count();
        assert_eq!(of_k, offloaded, "with a link: {link}");
    }
}

/// A caller copied a value to a node that had an extra replica of it, was told that it was there, and it went first.
#[test]
fn what_a_caller_asks_for_is_extra_no_more() {
    let mut world = three_with(enforced(), MIB);
    world.replicated("k");
    let [_, extra] = world.nodes_of("k")[..] else {
        panic!("two nodes have it");
    };
    let job = world.begin(copy("k", &[&extra.to_string()]));
    assert_eq!(world.job(job).errors[0].1, ErrorCode::ReplicaAlreadyExists);
    assert_eq!(world.replication().extras, 0);
}
