//! What an SSD is about to write again, because it empties the file.

use slackwater_meta::evict::PolicyKind;
use slackwater_meta::{Eviction, Input, MasterConfig, Offload, OffloadMode};
use slackwater_wire::*;

use crate::world::*;

/// What a record of one block takes on SSD, its part of the headers included.
const RECORD: u64 = BLOCK + 512;

/// An SSD between its watermarks, which are 90 and 95 records, with records of no use for an hour but for `k0` to `k9`.
fn world(policy: PolicyKind) -> World {
    world_of(policy, 5, &[])
}

/// The same where leases last so long; these were read before the hour.
fn world_of(policy: PolicyKind, lease_seconds: u64, read: &[u64]) -> World {
    let config = MasterConfig {
        eviction: Eviction {
            policy,
            ..plain().eviction
        },
        lease_ttl: seconds(lease_seconds),
        ..plain()
    };
    let mut world = World::tiers(config, 100 * BLOCK, 100 * RECORD);
    let entries = (0..94).map(|n| reported(&name(n), n + 1, BLOCK)).collect();
    let segment = DISK;
    world.report(NODE, Report::Announce { segment, entries });
    let highest = Version(94);
    world.report(NODE, Report::Announced { segment, highest });
    for n in read {
        world.found(&name(*n));
    }
    world.pass(seconds(3600));
    for n in 0..10 {
        world.found(&name(n));
    }
    world.pass(seconds(10));
    assert_eq!(world.used(DISK), 94 * RECORD);
    world
}

fn name(n: u64) -> String {
    format!("k{n}")
}

fn empties(world: &mut World, node: NodeId, records: impl IntoIterator<Item = (u64, u64)>) {
    let entry = |(n, version)| reported(&name(n), version, BLOCK).entry;
    world.report(
        node,
        Report::Emptying(records.into_iter().map(entry).collect()),
    );
}

/// Those that are gone.
fn gone(world: &mut World) -> Vec<u64> {
    let gone = (0..94).filter(|n| !world.has(&name(*n))).collect();
    world.master.check_books().expect("the books balance");
    gone
}

#[test]
fn what_is_hardly_better_than_the_next_victim_is_evicted_instead_down_to_the_low_watermark() {
    let check = |policy, records: Vec<u64>, expected: &[u64]| {
        let mut world = world(policy);
        empties(&mut world, NODE, records.iter().map(|n| (*n, n + 1)));
        assert_eq!(gone(&mut world), expected, "{policy:?}: {records:?}");
        let metrics = world.master.metrics();
        let evicted = (metrics.disk_evictions, metrics.disk_evictions_at_reclaim);
        assert_eq!(evicted, (expected.len() as u64, expected.len() as u64));
    };
    for policy in [PolicyKind::Gittins, PolicyKind::Adaptive] {
        check(policy, vec![5, 50, 6, 60], &[50, 60]);
        check(policy, vec![3], &[]);
        check(policy, (20..40).collect(), &[20, 21, 22, 23]);
        check(policy, vec![], &[]);
    }
    // What only keeps an order does not say what a record is worth.
    check(PolicyKind::Lru, (20..40).collect(), &[]);
}

#[test]
fn what_may_not_be_evicted_or_is_another_record_is_written_again() {
    let check = |story: &str, act: &dyn Fn(&mut World), node: NodeId, record: (u64, u64)| {
        let mut world = world(PolicyKind::Gittins);
        act(&mut world);
        empties(&mut world, node, [record]);
        assert_eq!(gone(&mut world), [0_u64; 0], "{story}");
    };
    check("of another version", &|_| {}, NODE, (50, 50));
    check("of another node", &|_| {}, NodeId(9), (50, 51));
    check("unknown", &|_| {}, NODE, (500, 501));
    // A node whose own SSD is as full names records of this one.
    let beside = |world: &mut World| {
        let segment = SegmentId(8);
        world.mount(NodeId(2), segment, SegmentKind::Disk, 100 * RECORD);
        let own = |n: u64| reported(&format!("own{n}"), 1000 + n, BLOCK);
        let entries = (0..94).map(own).collect();
        world.report(NodeId(2), Report::Announce { segment, entries });
        assert_eq!(world.used(segment), 94 * RECORD);
    };
    check("of an SSD of another node", &beside, NodeId(2), (50, 51));
    // An SSD that is read at this moment: what else it holds is not known.
    let announcing = |world: &mut World| {
        world.input(Input::NodeLost(NODE));
        let mount = Mount {
            segment: DISK,
            name: "again".to_owned(),
            node: NODE,
            incarnation: Incarnation(2),
            kind: SegmentKind::Disk,
            bytes: 100 * RECORD,
            host: "host".to_owned(),
            generations: Some(1),
            watermarks: None,
        };
        assert_eq!(world.ask(Request::Mount(mount)), Reply::Done);
        let entries = (0..94).map(|n| reported(&name(n), n + 1, BLOCK)).collect();
        let segment = DISK;
        world.report(NODE, Report::Announce { segment, entries });
        world.pass(seconds(3600));
        assert_eq!(world.used(DISK), 94 * RECORD);
    };
    check("announcing", &announcing, NODE, (50, 51));
    let removed = |world: &mut World| {
        for n in 80..84 {
            world.remove(&name(n)).unwrap();
        }
        for n in 80..84 {
            world.put(&name(n), BLOCK);
        }
    };
    check("of an SSD with room", &removed, NODE, (50, 51));
}

#[test]
fn what_is_leased_or_belongs_to_a_group_or_is_in_memory_too_is_written_again() {
    let check = |lease: u64, expected: &[u64]| {
        let mut world = world_of(PolicyKind::Gittins, lease, &[50, 51]);
        empties(&mut world, NODE, [(50, 51), (51, 52)]);
        assert_eq!(gone(&mut world), expected, "leases of {lease} s");
    };
    check(60, &[50, 51]);
    check(7200, &[]);

    // Of 94 values that were put one after the other memory has the last ones that it has room for.
    let check = |group: Option<u64>, memory: u64, expected: u64| {
        let offload = Offload {
            mode: OffloadMode::Eager,
            ..Offload::default()
        };
        let config = MasterConfig { offload, ..plain() };
        let mut world = World::tiers(config, memory * BLOCK, 100 * RECORD);
        let mut versions = Vec::new();
        for n in 0..94 {
            let config = PutConfig {
                group: group.filter(|_| (50..52).contains(&n)),
                ..PutConfig::default()
            };
            versions.push(world.put_with(&name(n), BLOCK, config));
            offload_all(&mut world);
            world.pass(seconds(300));
        }
        assert!(
            world.used(DISK) > 90 * RECORD,
            "{}",
            world.used(DISK) / RECORD
        );
        world.pass(seconds(3600));
        empties(&mut world, NODE, [(50, versions[50].0)]);
        let evicted = world.master.metrics().disk_evictions;
        assert_eq!(evicted, expected, "{group:?}, memory of {memory}");
    };
    check(None, 20, 1);
    check(Some(1), 20, 0);
    check(None, 100, 0);
}
