//! Segments of a node that are unmounted one after the other: memory takes with it what is nowhere else, and what is on SSD is as
//! good as before when it is mounted again.

use slackwater_meta::MasterConfig;
use slackwater_wire::*;

use crate::inventory::Inventory;
use crate::kept_drops::{ENDS, Pool};
use crate::world::*;

fn unmount(pool: &mut Pool, segment: SegmentId) {
    assert_eq!(pool.world.ask(Request::Unmount { segment }), Reply::Done);
}

/// The records that the node was told to drop.
fn dropped(pool: &mut Pool) -> Vec<DiskEntry> {
    let drops = |order: &Order| match order {
        Order::Drop(entries) => Some(entries.clone()),
        _ => None,
    };
    pool.world.taken(drops).concat()
}

/// A pool whose node writes its only value, of which nothing is heard, and whose memory is unmounted meanwhile.
fn writing() -> (Pool, TicketId) {
    let mut pool = Pool::new();
    let version = pool.put();
    let tasks = offloads(&mut pool.world);
    assert_eq!(tasks.len(), 1);
    pool.records.push(reported("a", version.0, BLOCK));
    unmount(&mut pool, MEMORY);
    assert!(!pool.world.has("a"));
    (pool, tasks[0].ticket)
}

/// The memory of a value on SSD had made room, or its record was being written: with both segments unmounted the record counted
/// as removed, and was refused when they were mounted again.
#[test]
fn a_record_lives_whatever_of_its_node_is_unmounted_first() {
    type Leaves = fn(&mut Pool);
    let leaves: [(&str, Leaves); 3] = [
        ("on both", Pool::put_on_both),
        ("its memory made room", |pool| {
            pool.put_on_both();
            pool.make_room();
        }),
        ("it is written, and nothing is heard", |pool| {
            let version = pool.put();
            assert_eq!(offloads(&mut pool.world).len(), 1);
            pool.records.push(reported("a", version.0, BLOCK));
        }),
    ];
    let check = |what: &str, leaves: Leaves, order: [SegmentId; 2], removed: Option<usize>| {
        for (end, ends) in [("unmounted", (|_| {}) as Leaves), ENDS[1]] {
            let mut pool = Pool::new();
            leaves(&mut pool);
            for at in 0..3 {
                if removed == Some(at) {
                    pool.world.send(ME, remove("a", true));
                }
                if let Some(segment) = order.get(at) {
                    unmount(&mut pool, *segment);
                }
            }
            let told = dropped(&mut pool);
            ends(&mut pool);
            // What its memory held went with it.
            pool.memory = Inventory::default();
            pool.comes_back();
            let case = format!("{what}, {order:?}, removed {removed:?}, {end}");
            assert_eq!(pool.world.has("a"), removed.is_none(), "{case}");
            if removed.is_none() {
                assert_eq!(told, [], "{case}");
                assert_eq!(dropped(&mut pool), [], "{case}");
            }
        }
    };
    for (what, leaves) in leaves {
        for order in [[DISK, MEMORY], [MEMORY, DISK]] {
            for removed in [None, Some(0), Some(1), Some(2)] {
                check(what, leaves, order, removed);
            }
        }
    }
}

/// The record was ordered away as soon as the memory was unmounted that it was written from, and was the last copy.
#[test]
fn what_is_being_written_counts_though_its_memory_is_gone() {
    let (mut pool, ticket) = writing();
    let written = Report::Offloaded(vec![(ticket, Ok(()))]);
    pool.world.report(NODE, written.clone());
    let found = pool.world.found("a");
    assert!(matches!(found.replicas[..], [ReplicaAt::Disk { .. }]));
    assert_eq!(
        (found.version, found.checksum),
        (pool.records[0].entry.version, pool.records[0].checksum)
    );
    assert_eq!(dropped(&mut pool), []);
    pool.world.report(NODE, written);
    assert_eq!(pool.world.found("a").replicas.len(), 1, "said twice");
    // It is removed as any other.
    let call = pool.world.send(ME, remove("a", true));
    assert_eq!(pool.world.reply(call), None);
    assert_eq!(dropped(&mut pool).len(), 1);

    let (mut pool, ticket) = writing();
    let failed = Report::Offloaded(vec![(ticket, Err(TaskFailure::Stale))]);
    pool.world.report(NODE, failed);
    assert!(!pool.world.has("a"));
    assert_eq!(dropped(&mut pool), [], "there is none");

    // The log found it itself.
    let (mut pool, ticket) = writing();
    let (segment, entries) = (DISK, pool.records.clone());
    let announced = Report::Announce { segment, entries };
    pool.world.report(NODE, announced);
    assert!(pool.world.has("a"));
    let written = Report::Offloaded(vec![(ticket, Ok(()))]);
    pool.world.report(NODE, written);
    assert_eq!(pool.world.found("a").replicas.len(), 1);
    assert_eq!(dropped(&mut pool), []);
}

/// What ends a value ends also its record of which nothing is heard, and is answered when no crash can bring that back.
#[test]
fn what_is_being_written_is_dropped_once_its_value_ends() {
    let sweep = RemoveAll {
        tenant: Some(Tenant::DEFAULT),
        force: true,
    };
    let pattern = RemoveMatching {
        tenant: Tenant::DEFAULT,
        pattern: "a".to_owned(),
        force: true,
    };
    let removals = [
        remove("a", true),
        Request::RemoveAll(sweep),
        Request::RemoveMatching(pattern),
    ];
    for removal in removals {
        let (mut pool, ticket) = writing();
        let call = pool.world.send(ME, removal.clone());
        pool.world.pass(std::time::Duration::from_millis(10));
        assert_eq!(pool.world.reply(call), None, "{removal:?}");
        assert_eq!(dropped(&mut pool).len(), 1, "{removal:?}");
        let written = Report::Offloaded(vec![(ticket, Ok(()))]);
        pool.world.report(NODE, written);
        assert!(!pool.world.has("a"), "{removal:?}");
        let entry = pool.records[0].entry.clone();
        pool.world.report(NODE, Report::Dropped(vec![entry]));
        assert!(pool.world.reply(call).is_some(), "{removal:?}");
        assert!(!pool.world.has("a"), "{removal:?}");
    }
    // Another key's removal ends nothing.
    let (mut pool, _) = writing();
    pool.world.send(ME, remove("b", true));
    assert_eq!(dropped(&mut pool), []);
    // A newer value.
    let (mut pool, ticket) = writing();
    let (other, segment) = (NodeId(2), SegmentId(3));
    (pool.world).mount(other, segment, SegmentKind::Memory, 16 * BLOCK);
    let PutStarted::Granted { version, .. } = pool.world.start("a", BLOCK, PutConfig::default())
    else {
        panic!("there is room");
    };
    pool.world.send(ME, end("a", version));
    assert_eq!(dropped(&mut pool).len(), 1);
    let written = Report::Offloaded(vec![(ticket, Ok(()))]);
    pool.world.report(NODE, written);
    let found = pool.world.found("a");
    assert_eq!((found.version, found.replicas.len()), (version, 1));
    // Nothing is ever heard.
    let (mut pool, ticket) = writing();
    pool.world.pass(MasterConfig::DEFAULT.offload.timeout);
    assert_eq!(dropped(&mut pool).len(), 1);
    let written = Report::Offloaded(vec![(ticket, Ok(()))]);
    pool.world.report(NODE, written);
    assert!(!pool.world.has("a"));
}

/// What a node says of a record that it writes is believed of no other node, and the time that it had is over once it was said.
#[test]
fn what_is_heard_of_a_record_ends_its_time_and_is_of_its_own_node() {
    let (mut pool, ticket) = writing();
    let (other, segment) = (NodeId(2), SegmentId(3));
    (pool.world).mount(other, segment, SegmentKind::Memory, 16 * BLOCK);
    let written = Report::Offloaded(vec![(ticket, Ok(()))]);
    pool.world.report(other, written.clone());
    assert!(!pool.world.has("a"));
    pool.world.report(NODE, written);
    pool.world.pass(MasterConfig::DEFAULT.offload.timeout);
    assert!(pool.world.has("a"));
    assert_eq!(dropped(&mut pool), []);
}

/// A write that failed may be found by the next opening of the log, and its value was not removed.
#[test]
fn what_failed_to_be_written_is_dropped_and_is_not_dead() {
    let (mut pool, ticket) = writing();
    let failed = Report::Offloaded(vec![(ticket, Err(TaskFailure::Device))]);
    pool.world.report(NODE, failed);
    assert_eq!(dropped(&mut pool).len(), 1);
    pool.lose();
    pool.memory = Inventory::default();
    pool.comes_back();
    assert!(pool.world.has("a"));
}

/// A newer value that is announced has replaced what is being written, also when it is gone before its node is.
#[test]
fn an_announced_value_ends_what_is_being_written_of_older_ones() {
    let record = Report::Announce {
        segment: SegmentId(4),
        entries: vec![reported("a", 1 << 41, BLOCK)],
    };
    let (mut pool, _) = writing();
    let other = NodeId(2);
    (pool.world).mount(other, SegmentId(4), SegmentKind::Disk, 16 * BLOCK);
    pool.world.report(other, record);
    assert_eq!(dropped(&mut pool).len(), 1);
    let entry = reported("a", 1 << 41, BLOCK).entry;
    pool.world.report(other, Report::Lost(vec![entry]));
    pool.lose();
    pool.memory = Inventory::default();
    pool.comes_back();
    assert!(!pool.world.has("a"));
}
