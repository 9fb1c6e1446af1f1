use slackwater_meta::{Input, MasterConfig, Offload, OffloadMode};
use slackwater_wire::*;

use crate::world::*;

/// What a record of one block takes on SSD, its part of the headers included.
const RECORD: u64 = BLOCK + 512;

fn world() -> World {
    World::tiers(plain(), 100 * BLOCK, 100 * RECORD)
}

fn announce(world: &mut World, entries: Vec<ReportedEntry>) {
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries,
        },
    );
}

fn state(world: &mut World, capacity: u64, pressure: u64) {
    world.report(
        NODE,
        Report::Disk(DiskState {
            node: NODE,
            accepting: true,
            failing: false,
            capacity,
            pressure,
        }),
    );
}

fn drops(world: &mut World) -> Vec<DiskEntry> {
    world
        .taken(|order| {
            if let Order::Drop(entries) = order {
                Some(entries.clone())
            } else {
                None
            }
        })
        .concat()
}

#[test]
fn an_announcement_rebuilds_the_catalog() {
    let mut world = world();
    announce(
        &mut world,
        (0..10)
            .map(|n| reported(&format!("k{n}"), n + 1, BLOCK))
            .collect(),
    );
    let object = world.found("k3");
    assert_eq!(
        (object.version, object.bytes, object.checksum.0),
        (Version(4), BLOCK, 4 * 31)
    );
    assert_eq!(
        object.replicas,
        [ReplicaAt::Disk {
            node: NODE,
            segment: DISK
        }]
    );
    assert_eq!(
        (world.used(DISK), world.master.metrics().records_announced),
        (10 * RECORD, 10)
    );
}

#[test]
fn the_newest_version_wins_and_stale_records_are_dropped() {
    let mut world = world();
    world.obedient = false;
    let both = vec![
        reported("a", 5, BLOCK),
        reported("a", 3, BLOCK),
        reported("b", 3, BLOCK),
        reported("b", 5, BLOCK),
    ];
    announce(&mut world, both);
    assert_eq!(
        (world.found("a").version, world.found("b").version),
        (Version(5), Version(5))
    );
    let versions: Vec<u64> = drops(&mut world)
        .iter()
        .map(|entry| entry.version.0)
        .collect();
    assert_eq!(versions, [3, 3]);
    let newest = world.put_with("c", 1, upsert());
    announce(
        &mut world,
        vec![reported("c", newest.0 - 1, BLOCK), reported("a", 5, BLOCK)],
    );
    assert_eq!(
        (world.found("c").version, drops(&mut world).len()),
        (newest, 1)
    );
    assert_eq!(
        world.used(DISK),
        2 * RECORD,
        "what was announced twice is there once"
    );
}

#[test]
fn records_reported_by_an_unknown_node_are_ignored() {
    let mut world = world();
    world.report(
        NodeId(9),
        Report::Announce {
            segment: DISK,
            entries: vec![reported("a", 1, BLOCK)],
        },
    );
    world.report(
        NODE,
        Report::Announce {
            segment: MEMORY,
            entries: vec![reported("a", 1, BLOCK)],
        },
    );
    world.report(
        NODE,
        Report::Announce {
            segment: SegmentId(77),
            entries: vec![reported("a", 1, BLOCK)],
        },
    );
    announce(
        &mut world,
        vec![
            reported("empty", 1, 0),
            reported("huge", 1, u64::MAX),
            reported("zero", 0, 1),
        ],
    );
    assert_eq!(world.master.books().objects, 0);
}

#[test]
fn two_owners_may_hold_the_same_version() {
    let mut world = world();
    world.mount(NodeId(2), SegmentId(8), SegmentKind::Disk, 100 * RECORD);
    announce(&mut world, vec![reported("a", 1, BLOCK)]);
    world.report(
        NodeId(2),
        Report::Announce {
            segment: SegmentId(8),
            entries: vec![reported("a", 1, BLOCK)],
        },
    );
    assert_eq!(world.found("a").replicas.len(), 2);
    world.input(Input::NodeLost(NODE));
    assert_eq!(
        world.found("a").replicas,
        [ReplicaAt::Disk {
            node: NodeId(2),
            segment: SegmentId(8)
        }]
    );
}

#[test]
fn the_ssd_is_kept_under_its_watermarks() {
    let mut world = world();
    announce(
        &mut world,
        (0..96)
            .map(|n| reported(&format!("k{n}"), n + 1, BLOCK))
            .collect(),
    );
    assert_eq!(world.used(DISK), 90 * RECORD);
    assert_eq!(world.master.metrics().disk_evictions, 6);
    assert_eq!(world.master.metrics().records_dropped, 6);
}

#[test]
fn pressure_frees_what_the_node_asks_for() {
    let mut world = world();
    announce(
        &mut world,
        (0..50)
            .map(|n| reported(&format!("k{n}"), n + 1, BLOCK))
            .collect(),
    );
    state(&mut world, 100 * RECORD, 10 * RECORD);
    assert_eq!(world.used(DISK), 40 * RECORD);
    state(&mut world, 20 * RECORD, 0);
    assert_eq!(
        world.used(DISK),
        18 * RECORD,
        "a smaller disk has lower marks"
    );
}

#[test]
fn records_in_use_are_not_evicted() {
    let mut world = world();
    announce(
        &mut world,
        (0..10)
            .map(|n| reported(&format!("k{n}"), n + 1, BLOCK))
            .collect(),
    );
    for n in 0..5 {
        world.get_with(&format!("k{n}"), Hold::Guard);
    }
    state(&mut world, 100 * RECORD, 10 * RECORD);
    assert_eq!(world.used(DISK), 5 * RECORD);
    world.input(Input::ClientLost(ME));
    world.pass(seconds(0));
    state(&mut world, 100 * RECORD, 5 * RECORD);
    assert_eq!(world.used(DISK), 0);
}

#[test]
fn a_lost_record_takes_its_replica_and_no_other() {
    let offload = Offload {
        mode: OffloadMode::Eager,
        ..Offload::default()
    };
    let mut world = World::tiers(
        MasterConfig { offload, ..plain() },
        100 * BLOCK,
        100 * RECORD,
    );
    let version = world.put("both", BLOCK);
    offload_all(&mut world);
    announce(&mut world, vec![reported("only", 1, BLOCK)]);
    let lost = |name: &str, version: Version| DiskEntry {
        tenant: Tenant::DEFAULT,
        key: key(name),
        version,
    };
    world.report(
        NODE,
        Report::Lost(vec![
            lost("both", Version(version.0 + 1)),
            lost("never", Version(1)),
        ]),
    );
    assert_eq!(world.found("both").replicas.len(), 2);
    world.report(
        NODE,
        Report::Lost(vec![lost("both", version), lost("only", Version(1))]),
    );
    assert_eq!(world.found("both").replicas.len(), 1);
    assert_eq!((world.get("only"), world.used(DISK)), (Lookup::Missing, 0));
    assert_eq!(world.master.metrics().records_lost, 2);
}

#[test]
fn a_lost_node_takes_what_only_it_had() {
    let mut world = world();
    announce(&mut world, vec![reported("cold", 1, BLOCK)]);
    world.put("warm", BLOCK);
    world.get_with("warm", Hold::Guard);
    world.get_with("cold", Hold::Guard);
    world.input(Input::NodeLost(NODE));
    assert_eq!(
        (world.get("cold"), world.get("warm")),
        (Lookup::Missing, Lookup::Missing)
    );
    let books = world.master.books();
    assert_eq!(
        (
            books.objects,
            books.replicas,
            books.guards,
            books.segments.len()
        ),
        (0, 0, 0, 0)
    );
    assert!(
        world.orders.is_empty(),
        "nothing is said to a node that is gone"
    );
}

#[test]
fn memory_goes_down_to_ssd_and_serves_from_there() {
    let offload = Offload {
        mode: OffloadMode::OnEvict,
        ..Offload::default()
    };
    let mut world = World::tiers(MasterConfig { offload, ..plain() }, 20 * BLOCK, 60 * RECORD);
    for n in 0..200 {
        world.put(&format!("k{n}"), BLOCK);
        offload_all(&mut world);
    }
    let here = (0..200).filter(|n| world.has(&format!("k{n}"))).count();
    assert!(
        (70..=80).contains(&here),
        "{here} of 200 are in memory or on SSD"
    );
    assert!(world.used(DISK) <= 57 * RECORD);
}
