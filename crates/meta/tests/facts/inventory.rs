//! Memory that outlives its master.

use std::collections::BTreeMap;
use std::time::Duration;

use slackwater_meta::{Input, MasterConfig};
use slackwater_wire::*;

use crate::world::*;

/// The first version of the second master.
const LATER: Version = Version(1 << 40);

/// What the node has been told that its memory holds, by the first byte.
#[derive(Default)]
pub(crate) struct Inventory(BTreeMap<u64, Published>);

impl Inventory {
    /// Takes the orders of the master in.
    pub(crate) fn learn(&mut self, world: &mut World) {
        for order in world.taken(|order| match order {
            Order::Published(_) | Order::Fence(_) => Some(order.clone()),
            _ => None,
        }) {
            match order {
                Order::Published(entries) => {
                    let each = entries.into_iter();
                    self.0.extend(each.map(|it| (it.extent.offset, it)));
                }
                Order::Fence(extents) => extents.iter().for_each(|it| {
                    self.0.remove(&it.offset);
                }),
                _ => {}
            }
        }
    }

    pub(crate) fn entries(&self) -> Vec<Published> {
        self.0.values().cloned().collect()
    }
}

fn mount(world: &mut World, generations: u64) {
    mount_as(world, MEMORY, SegmentKind::Memory, generations);
}

pub(crate) fn mount_as(world: &mut World, segment: SegmentId, kind: SegmentKind, generations: u64) {
    let mount = Mount {
        segment,
        name: "lent".to_owned(),
        node: NODE,
        incarnation: Incarnation(1),
        kind,
        bytes: 16 * BLOCK,
        host: String::new(),
        generations: Some(generations),
        watermarks: None,
    };
    assert_eq!(world.ask(Request::Mount(mount)), Reply::Done);
}

pub(crate) fn holds(world: &mut World, entries: Vec<Published>) {
    let segment = MEMORY;
    world.report(
        NODE,
        Report::Holds {
            segment,
            entries,
            ahead: false,
        },
    );
}

/// Before their turn.
pub(crate) fn holds_ahead(world: &mut World, entries: Vec<Published>) {
    let (segment, ahead) = (MEMORY, true);
    let report = Report::Holds {
        segment,
        entries,
        ahead,
    };
    world.report(NODE, report);
}

pub(crate) fn announced(world: &mut World) {
    let (segment, highest) = (MEMORY, Version(0));
    world.report(NODE, Report::Announced { segment, highest });
}

/// A master with a node that holds nothing yet.
fn first() -> World {
    let mut world = World::new(MasterConfig {
        granule: BLOCK,
        ..plain()
    });
    mount(&mut world, 0);
    announced(&mut world);
    world.obedient = false;
    world
}

/// The next master, to which the node has said hello.
fn next() -> World {
    let mut world = first();
    world.input(Input::NodeLost(NODE));
    world.master.start_above(LATER);
    mount(&mut world, 1 << 20);
    world
}

fn fences(world: &mut World) -> Vec<ExtentRef> {
    let fences = |order: &Order| match order {
        Order::Fence(extents) => Some(extents.clone()),
        _ => None,
    };
    world.taken(fences).concat()
}

pub(crate) fn entry(name: &str, version: u64, at: u64) -> Published {
    let ReportedEntry {
        entry,
        bytes,
        checksum,
    } = reported(name, version, BLOCK);
    Published {
        extent: ExtentRef {
            segment: MEMORY,
            incarnation: Incarnation(1),
            offset: at * BLOCK,
            bytes: BLOCK,
            generation: 7 + at,
        },
        entry,
        bytes,
        checksum,
        writer: ME,
        pin: Pin::None,
        durability: Durability::Memory,
        group: None,
        chain: ChainPlace::default(),
    }
}

#[test]
fn what_was_published_is_found_by_the_next_master() {
    let (mut old, mut inventory) = (first(), Inventory::default());
    let config = PutConfig {
        pin: Pin::Soft(Some(seconds(100))),
        group: Some(4),
        ..PutConfig::default()
    };
    let versions = [
        old.put("a", BLOCK),
        old.put_with("b", 2 * BLOCK - 5, config),
        old.put("c", BLOCK),
    ];
    let objects = ["a", "b"].map(|name| old.found(name));
    old.pass(seconds(60));
    let call = old.send(ME, remove("c", true));
    assert_eq!(old.reply(call), None, "the node has not heard of it");
    inventory.learn(&mut old);
    let entries = inventory.entries();
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[1].pin, Pin::Soft(Some(seconds(100))));

    let mut new = next();
    assert!(new.master.is_partial());
    let (one, rest) = entries.split_at(1);
    holds(&mut new, one.to_vec());
    let found = new.found("a");
    assert_eq!(
        (found.version, found.checksum, &found.replicas),
        (versions[0], objects[0].checksum, &objects[0].replicas)
    );
    assert_eq!(new.get("b"), Lookup::Missing, "it serves what it knows");
    holds(&mut new, rest.to_vec());
    announced(&mut new);
    assert!(!new.master.is_partial());
    let found = new.found("b");
    assert_eq!(
        (found.version, found.bytes, &found.replicas),
        (versions[1], 2 * BLOCK - 5, &objects[1].replicas)
    );
    assert_eq!(new.get("c"), Lookup::Missing);
    let Reply::Describe(description) = new.ask(Request::Describe {
        tenant: Tenant::DEFAULT,
        key: key("b"),
    }) else {
        panic!("it is there");
    };
    assert_eq!(description.pin, Pin::Soft(Some(seconds(100))));
    // The end of a put whose answer was lost with the old master.
    assert_eq!(
        new.end(ME, "b", versions[1]),
        Reply::Each(vec![Ok(())]),
        "its writer is known"
    );
    assert_eq!(
        new.end(OTHER, "b", versions[1]),
        Reply::Each(vec![Err(ErrorCode::IllegalClient)])
    );
}

#[test]
fn nothing_is_placed_before_all_is_announced_nor_under_a_known_generation() {
    let mut world = next();
    let call = world.send(ME, start("new", BLOCK, wait(seconds(5))));
    holds(&mut world, vec![entry("a", 5, 0), entry("b", 6, 3)]);
    assert_eq!(world.reply(call), None, "it waits for room");
    announced(&mut world);
    let Some(Reply::PutStart(started)) = world.reply(call) else {
        panic!("there is room");
    };
    let [PutStarted::Granted { version, extents }] = &started[..] else {
        panic!("{started:?}");
    };
    assert!(*version > LATER && extents[0].generation > LATER.0);
    assert!(![0, 3 * BLOCK].contains(&extents[0].offset));
    // An announcement that comes late is none.
    holds(&mut world, vec![entry("c", 7, 9)]);
    assert_eq!(world.get("c"), Lookup::Missing);
}

/// A master gave a node up that was only cut off. When it came back, a writer of before had the generation that was given
/// to the next one.
#[test]
fn a_node_that_comes_back_gets_other_generations() {
    let mut world = first();
    let PutStarted::Granted { extents, .. } = world.start("a", BLOCK, PutConfig::default()) else {
        panic!("there is room");
    };
    world.input(Input::NodeLost(NODE));
    mount(&mut world, 0);
    let floor = world.master.generations_from(MEMORY).unwrap();
    assert!(floor > extents[0].generation, "{floor} {extents:?}");
}

#[test]
fn dead_and_useless_extents_are_fenced_and_their_room_comes_back() {
    let check = |prepare: fn(&mut World), entries: Vec<Published>, dead: &[u64]| {
        let mut world = next();
        prepare(&mut world);
        fences(&mut world);
        holds(&mut world, entries.clone());
        announced(&mut world);
        let mut fenced = fences(&mut world);
        fenced.sort_by_key(|extent| extent.offset);
        let offsets: Vec<u64> = fenced.iter().map(|it| it.offset / BLOCK).collect();
        assert_eq!(offsets, dead, "{entries:?}");
        world.report(NODE, Report::Fenced(fenced));
        let books = world.master.check_books().unwrap();
        assert_eq!((books.segments[0].quarantined, books.drops), (0, 0));
    };
    let nothing = |_: &mut World| {};
    check(nothing, vec![entry("a", 5, 0), entry("b", 5, 1)], &[]);
    // Of two versions the larger wins, in either order.
    check(nothing, vec![entry("a", 5, 0), entry("a", 6, 1)], &[0]);
    check(nothing, vec![entry("a", 6, 0), entry("a", 5, 1)], &[1]);
    check(nothing, vec![entry("a", 6, 0), entry("a", 6, 1)], &[1]);
    // What was removed before it was announced stays removed.
    let removed = |world: &mut World| {
        assert_eq!(world.remove("a"), Err(ErrorCode::ObjectNotFound));
    };
    check(removed, vec![entry("a", 5, 0), entry("b", 5, 1)], &[0]);
    // What is no extent of the segment, or of no value.
    let mut long = entry("a", 5, 2);
    long.bytes = BLOCK + 1;
    let mut empty = entry("b", 5, 3);
    empty.bytes = 0;
    let mut newer = entry("c", 5, 4);
    newer.extent.generation = LATER.0 + (1 << 30);
    let mut beyond = entry("d", 5, 16);
    beyond.entry.version = Version(9);
    let overlapping = entry("e", 5, 2);
    let mut versionless = entry("f", 5, 6);
    versionless.entry.version = Version(u64::MAX);
    check(
        nothing,
        vec![long, empty, newer, overlapping, versionless, beyond],
        &[2, 2, 3, 4, 6, 16],
    );
}

/// A removal was acknowledged while the order to forget the object was still under way. The master died, and its successor
/// was told of the object.
#[test]
fn a_removal_waits_until_the_node_has_forgotten_the_object() {
    let answers: [fn(Vec<ExtentRef>) -> Report; 2] = [Report::Fenced, Report::Retired];
    for answer in answers {
        let mut world = first();
        world.put("a", BLOCK);
        let call = world.send(ME, remove("a", false));
        assert_eq!(world.reply(call), None);
        let again = world.send(ME, remove("a", false));
        assert_eq!(world.reply(again), None, "it is gone, and may come back");
        let fenced = fences(&mut world);
        let mut other = fenced.clone();
        other[0].generation += 1;
        world.report(NODE, answer(other));
        assert_eq!(world.reply(call), None);
        world.report(NODE, answer(fenced.clone()));
        assert_eq!(world.reply(call), Some(Reply::Each(vec![Ok(())])));
        let gone = Err(ErrorCode::ObjectNotFound);
        assert_eq!(world.reply(again), Some(Reply::Each(vec![gone])));
        world.report(NODE, Report::Fenced(fenced));
        assert_eq!(world.master.check_books().unwrap().drops, 0);
    }
}

#[test]
fn the_end_of_a_put_waits_until_the_value_before_it_is_forgotten() {
    let mut world = first();
    world.put("a", BLOCK);
    let PutStarted::Granted { version, .. } = world.start("a", BLOCK, upsert()) else {
        panic!("there is room");
    };
    let call = world.send(ME, end("a", version));
    assert_eq!(world.reply(call), None);
    let fenced = fences(&mut world);
    world.report(NODE, Report::Fenced(fenced));
    assert_eq!(world.reply(call), Some(Reply::Each(vec![Ok(())])));
}

#[test]
fn what_was_evicted_is_awaited_too() {
    let mut world = first();
    for at in 0..17 {
        let call = world.send(ME, start(&format!("k{at}"), BLOCK, wait(seconds(1))));
        let Some(Reply::PutStart(started)) = world.reply(call) else {
            break;
        };
        let [PutStarted::Granted { version, .. }] = started[..] else {
            panic!("{started:?}");
        };
        world.end(ME, &format!("k{at}"), version);
    }
    let evicted = fences(&mut world);
    assert!(!evicted.is_empty());
    let call = world.send(ME, remove("k0", false));
    assert_eq!(world.reply(call), None, "the node may still announce it");
    world.report(NODE, Report::Fenced(evicted));
    let gone = Err(ErrorCode::ObjectNotFound);
    assert_eq!(world.reply(call), Some(Reply::Each(vec![gone])));
}

/// A value could not be put again for as long as the node was away that had its last version.
#[test]
fn removals_of_memory_are_kept_for_a_node_that_is_away_for_long() {
    let mut world = first();
    let version = world.put("a", BLOCK);
    world.put("b", BLOCK);
    let call = world.send(ME, remove("a", false));
    world.input(Input::NodeAway(NODE));
    assert_eq!(world.reply(call), None);
    world.pass(seconds(20));
    assert_eq!(world.reply(call), Some(Reply::Each(vec![Ok(())])));
    assert_eq!(world.remove("b"), Ok(()));
    assert_eq!(world.master.check_books().unwrap().drops, 2);
    fences(&mut world);
    // It comes back as one that the master does not know, and has not forgotten.
    world.input(Input::NodeLost(NODE));
    mount(&mut world, 1 << 20);
    holds(&mut world, vec![entry("a", version.0, 0)]);
    announced(&mut world);
    assert_eq!(world.get("a"), Lookup::Missing);
    assert_eq!(fences(&mut world).len(), 1);
}

#[test]
fn a_node_that_comes_back_in_time_is_owed_nothing_when_it_has_forgotten() {
    let mut world = first();
    let version = world.put("a", BLOCK);
    world.input(Input::NodeAway(NODE));
    world.pass(seconds(20));
    assert_eq!(world.remove("a"), Ok(()));
    world.input(Input::NodeBack(NODE));
    let fenced = fences(&mut world);
    assert_eq!(fenced.len(), 1);
    world.report(NODE, Report::Fenced(fenced));
    assert_eq!(world.master.check_books().unwrap().drops, 0);
    // Nothing is kept for it any more: were it told again, the master would believe it.
    world.input(Input::NodeLost(NODE));
    mount(&mut world, 1 << 20);
    holds(&mut world, vec![entry("a", version.0, 0)]);
    assert!(matches!(world.get("a"), Lookup::Found(_)));
}

/// A put was promised a record, and the master died before there was one. The repeated end of the put was answered as done.
#[test]
fn a_promise_of_an_earlier_master_is_kept() {
    let mut world = World::new(MasterConfig {
        granule: BLOCK,
        ..MasterConfig::DEFAULT
    });
    mount(&mut world, 1 << 20);
    world.mount(NODE, DISK, SegmentKind::Disk, 100 * MIB);
    let promised = Published {
        durability: Durability::Disk,
        ..entry("a", 5, 0)
    };
    holds(&mut world, vec![promised, entry("b", 6, 1)]);
    announced(&mut world);
    assert_eq!(world.end(ME, "b", Version(6)), Reply::Each(vec![Ok(())]));
    let call = world.send(ME, end("a", Version(5)));
    assert_eq!(world.reply(call), None);
    offload_all(&mut world);
    assert_eq!(world.reply(call), Some(Reply::Each(vec![Ok(())])));
    assert_eq!(world.end(ME, "a", Version(5)), Reply::Each(vec![Ok(())]));
    let entry = reported("a", 5, BLOCK).entry;
    assert_eq!(world.master.nodes_with_record(&entry), [NODE]);
}

/// The removal of an object on both tiers ended the master: it took a record for memory.
#[test]
fn both_tiers_are_announced_and_forgotten() {
    let mut world = World::new(MasterConfig {
        granule: BLOCK,
        ..MasterConfig::DEFAULT
    });
    world.obedient = false;
    mount(&mut world, 1 << 20);
    mount_as(&mut world, DISK, SegmentKind::Disk, 1 << 20);
    holds(&mut world, vec![entry("a", 5, 0), entry("b", 6, 1)]);
    announced(&mut world);
    assert!(world.master.is_partial(), "the log is not announced");
    let (segment, highest) = (DISK, Version(9));
    let entries = vec![
        reported("a", 5, BLOCK),
        reported("b", 4, BLOCK),
        reported("c", 7, BLOCK),
    ];
    world.report(NODE, Report::Announce { segment, entries });
    assert_eq!(offloads(&mut world), [], "nothing is written meanwhile");
    world.report(NODE, Report::Announced { segment, highest });
    assert!(!world.master.is_partial());
    let tiers = |world: &mut World, name: &str| world.found(name).replicas.len();
    assert_eq!(
        ["a", "b", "c"].map(|name| tiers(&mut world, name)),
        [2, 1, 1]
    );
    let old = world.taken(|order| match order {
        Order::Drop(entries) => Some(entries.clone()),
        _ => None,
    });
    assert_eq!(old.concat().len(), 1, "the older record of b");
    let call = world.send(ME, remove("a", true));
    let fenced = fences(&mut world);
    world.report(NODE, Report::Fenced(fenced));
    assert_eq!(world.reply(call), None, "the record is there");
    world.obey();
    assert_eq!(world.reply(call), Some(Reply::Each(vec![Ok(())])));
}

/// A node that ended just after its last value had gone to its SSD lost that value: the copy in memory, which it had not said
/// yet to have forgotten, stood for a removal when it was back.
#[test]
fn what_only_made_room_is_not_dead_when_its_node_comes_back() {
    let check = |what: &str, comes_back: fn(&mut World), is_removed: bool| {
        let mut world = World::new(MasterConfig {
            granule: BLOCK,
            ..MasterConfig::DEFAULT
        });
        world.obedient = false;
        mount_tiers(&mut world, &[MEMORY, DISK], Incarnation(1));
        announced(&mut world);
        all_announced(&mut world, Vec::new());
        let records = ["a", "b"].map(|name| {
            let version = world.put(name, BLOCK);
            reported(name, version.0, BLOCK)
        });
        let work = JobWork::Drain {
            places: vec![NODE.to_string()],
            targets: Vec::new(),
            disks: false,
        };
        let drain = world.ask(Request::StartJob(JobSpec {
            work,
            concurrency: 8,
            bytes_per_second: None,
            time: None,
        }));
        assert!(matches!(drain, Reply::Job(_)), "{drain:?}");
        let mut fenced = 0;
        for _ in 0..4 {
            offload_all(&mut world);
            world.pass(Duration::from_millis(100));
            fenced += fences(&mut world).len();
        }
        assert_eq!(fenced, 2, "{what}: they made room");
        let removal = is_removed.then(|| world.send(ME, remove("a", true)));
        comes_back(&mut world);
        let failed = removal.map(|removal| world.reply(removal));
        assert!(failed.is_none_or(|reply| reply.is_some()), "{what}");
        announced(&mut world);
        all_announced(&mut world, records.to_vec());
        let there = ["a", "b"].map(|name| world.has(name));
        assert_eq!(there, [!is_removed, true], "{what}");
    };
    for is_removed in [false, true] {
        let lost = |world: &mut World| {
            world.input(Input::NodeLost(NODE));
            mount_tiers(world, &[MEMORY, DISK], Incarnation(2));
        };
        check("its loss was noticed", lost, is_removed);
        let memory_first = |world: &mut World| {
            mount_tiers(world, &[MEMORY, DISK], Incarnation(2));
        };
        check("it restarted, memory first", memory_first, is_removed);
        let disk_first = |world: &mut World| {
            mount_tiers(world, &[DISK, MEMORY], Incarnation(2));
        };
        check("it restarted, SSD first", disk_first, is_removed);
    }
}

pub(crate) fn mount_tiers(world: &mut World, segments: &[SegmentId], incarnation: Incarnation) {
    for segment in segments {
        let mount = Mount {
            segment: *segment,
            name: format!("segment-{segment}"),
            node: NODE,
            incarnation,
            kind: match *segment == DISK {
                true => SegmentKind::Disk,
                false => SegmentKind::Memory,
            },
            bytes: 16 * BLOCK,
            host: String::new(),
            generations: Some(1 << (20 + incarnation.0)),
            watermarks: None,
        };
        assert_eq!(world.ask(Request::Mount(mount)), Reply::Done);
    }
}

pub(crate) fn all_announced(world: &mut World, entries: Vec<ReportedEntry>) {
    let (segment, highest) = (DISK, Version(0));
    world.report(NODE, Report::Announce { segment, entries });
    world.report(NODE, Report::Announced { segment, highest });
}

/// A removal was kept for all nodes that were away when one of them lost a copy that had only made room: another one lost the last
/// copy of the same value by that.
#[test]
fn what_one_node_forgets_is_no_word_to_another() {
    const OTHER: NodeId = NodeId(77);
    const OTHERS: SegmentId = SegmentId(70);
    let mut world = World::new(MasterConfig {
        granule: BLOCK,
        ..MasterConfig::DEFAULT
    });
    world.obedient = false;
    let mount = |world: &mut World, node, segment, kind, incarnation| {
        let mount = Mount {
            segment,
            name: format!("segment-{segment}"),
            node,
            incarnation: Incarnation(incarnation),
            kind,
            bytes: 16 * BLOCK,
            host: String::new(),
            generations: Some(1 << (20 + incarnation)),
            watermarks: None,
        };
        assert_eq!(world.ask(Request::Mount(mount)), Reply::Done);
    };
    let (memory, disk) = (SegmentKind::Memory, SegmentKind::Disk);
    let announce = |world: &mut World| {
        let (segment, highest) = (OTHERS, Version(0));
        let entries = vec![reported("a", 5, BLOCK)];
        world.report(OTHER, Report::Announce { segment, entries });
        world.report(OTHER, Report::Announced { segment, highest });
    };
    mount(&mut world, NODE, MEMORY, memory, 1);
    mount(&mut world, OTHER, OTHERS, disk, 1);
    holds(&mut world, vec![entry("a", 5, 0)]);
    announced(&mut world);
    announce(&mut world);
    assert_eq!(world.found("a").replicas.len(), 2);
    let work = JobWork::Drain {
        places: vec![NODE.to_string()],
        targets: Vec::new(),
        disks: false,
    };
    world.ask(Request::StartJob(JobSpec {
        work,
        concurrency: 8,
        bytes_per_second: None,
        time: None,
    }));
    // The lease of the look-up above ends.
    world.pass(seconds(60));
    assert_eq!(fences(&mut world).len(), 1, "it made room");
    world.input(Input::NodeLost(OTHER));
    mount(&mut world, OTHER, OTHERS, disk, 2);
    world.input(Input::NodeLost(NODE));
    announce(&mut world);
    assert!(world.has("a"), "it was never removed");
}
