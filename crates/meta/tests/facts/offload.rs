use std::time::Duration;

use slackwater_meta::{Input, MasterConfig, Offload, OffloadMode};
use slackwater_wire::*;

use crate::world::*;

fn config(mode: OffloadMode) -> MasterConfig {
    MasterConfig {
        offload: Offload {
            mode,
            ..Offload::default()
        },
        ..plain()
    }
}

fn durable() -> PutConfig {
    PutConfig {
        durability: Durability::Disk,
        ..PutConfig::default()
    }
}

fn world(mode: OffloadMode) -> World {
    World::tiers(config(mode), 20 * BLOCK, 1024 * BLOCK)
}

fn fill(world: &mut World, count: usize) {
    for n in 0..count {
        world.put(&format!("k{n}"), BLOCK);
    }
}

fn fail(world: &mut World, failure: TaskFailure) {
    let failed: Vec<_> = offloads(world)
        .into_iter()
        .map(|task| (task.ticket, Err(failure)))
        .collect();
    world.report(NODE, Report::Offloaded(failed));
}

fn tiers(world: &mut World, name: &str) -> (bool, bool) {
    let Lookup::Found(object) = world.get(name) else {
        return (false, false);
    };
    let memory = object
        .replicas
        .iter()
        .any(|at| matches!(at, ReplicaAt::Memory(_)));
    let disk = object
        .replicas
        .iter()
        .any(|at| matches!(at, ReplicaAt::Disk { .. }));
    (memory, disk)
}

#[test]
fn each_mode_offloads_at_its_time() {
    let check = |mode: OffloadMode, at_put: usize, at_eviction: usize| {
        let mut world = world(mode);
        fill(&mut world, 19);
        assert_eq!(offloads(&mut world).len(), at_put, "{mode:?}");
        world.put("one more", BLOCK);
        let more = offloads(&mut world).len();
        assert_eq!(more, at_eviction, "{mode:?}");
    };
    check(OffloadMode::Off, 0, 0);
    check(OffloadMode::Eager, 19, 1);
    check(OffloadMode::OnEvict, 0, 2);
    check(OffloadMode::OnEvictForced, 0, 2);
}

#[test]
fn an_offload_names_object_and_source() {
    let mut world = world(OffloadMode::Eager);
    let version = world.put("a", 100);
    let task = offloads(&mut world).remove(0);
    let entry = DiskEntry {
        tenant: Tenant::DEFAULT,
        key: key("a"),
        version,
    };
    assert_eq!(
        (task.entry, task.bytes, task.checksum.0),
        (entry, 100, version.0 * 31)
    );
    let ReplicaAt::Memory(extent) = world.found("a").replicas[0] else {
        panic!()
    };
    assert_eq!(task.source, extent);
}

#[test]
fn memory_is_kept_until_the_ssd_copy_is_durable_and_dropped_then() {
    let mut world = world(OffloadMode::OnEvict);
    fill(&mut world, 20);
    assert_eq!(world.used(MEMORY), 20 * BLOCK);
    assert!(world.has("k0"));
    offload_all(&mut world);
    assert_eq!(world.used(MEMORY), 18 * BLOCK);
    assert_eq!(tiers(&mut world, "k0"), (false, true));
    assert_eq!(world.master.metrics().offload.completed, 2);
}

#[test]
fn an_object_read_while_being_written_stays_and_is_clean() {
    let mut world = world(OffloadMode::OnEvict);
    fill(&mut world, 20);
    world.found("k0");
    offload_all(&mut world);
    assert_eq!(tiers(&mut world, "k0"), (true, true));
    assert_eq!(tiers(&mut world, "k1"), (false, true));
}

#[test]
fn clean_objects_are_dropped_at_once() {
    let mut world = world(OffloadMode::Eager);
    fill(&mut world, 19);
    offload_all(&mut world);
    world.put("one more", BLOCK);
    assert_eq!(world.used(MEMORY), 18 * BLOCK);
    assert_eq!(world.master.metrics().evictions_clean, 2);
    assert_eq!(tiers(&mut world, "k0"), (false, true));
}

#[test]
fn the_source_is_held_while_it_is_written() {
    let mut world = world(OffloadMode::Eager);
    fill(&mut world, 20);
    let call = world.send(ME, start("one more", BLOCK, wait(seconds(5))));
    assert_eq!(
        (world.reply(call), world.used(MEMORY)),
        (None, 20 * BLOCK),
        "nothing may go before its report"
    );
    offload_all(&mut world);
    assert!(world.reply(call).is_some() && !matches!(world.get("k19"), Lookup::Missing));
}

#[test]
fn one_offload_a_version_and_ssd() {
    let mut world = world(OffloadMode::Eager);
    let PutStarted::Granted { version, .. } = world.start("a", BLOCK, durable()) else {
        panic!()
    };
    world.send(ME, end("a", version));
    assert_eq!(offloads(&mut world).len(), 1);
}

#[test]
fn a_full_queue_skips_waits_or_drops_by_mode() {
    let full = |mode| {
        let offload = Offload {
            mode,
            queue_limit: 2,
            cap_ratio: 0.5,
            ..Offload::default()
        };
        let mut world = World::tiers(
            MasterConfig { offload, ..plain() },
            20 * BLOCK,
            1024 * BLOCK,
        );
        fill(&mut world, 20);
        world
    };
    let mut eager = full(OffloadMode::Eager);
    assert_eq!(
        (
            offloads(&mut eager).len(),
            eager.master.metrics().offload.skipped_full
        ),
        (2, 20),
        "18 when they were put, and two that the last put was to displace"
    );
    assert!(eager.has("k2"), "what cannot be queued is not evicted");
    let mut lazy = full(OffloadMode::OnEvict);
    assert_eq!(
        (offloads(&mut lazy).len(), lazy.used(MEMORY)),
        (1, 20 * BLOCK)
    );
    assert!(lazy.has("k1"), "what cannot be queued is not evicted");
    let mut forced = full(OffloadMode::OnEvictForced);
    assert_eq!(
        (offloads(&mut forced).len(), forced.used(MEMORY)),
        (1, 19 * BLOCK)
    );
    assert!(
        forced.has("k0") && !forced.has("k1"),
        "beyond the cap memory is dropped"
    );
}

#[test]
fn a_waiting_put_is_served_when_the_offload_that_frees_its_room_is_durable() {
    let mut world = world(OffloadMode::OnEvict);
    fill(&mut world, 20);
    let call = world.send(ME, start("a", 2 * BLOCK, wait(seconds(5))));
    assert_eq!(world.reply(call), None);
    offload_all(&mut world);
    assert!(world.reply(call).is_some());
}

#[test]
fn after_a_failure_the_ssd_is_not_used_for_a_time_and_memory_works_without() {
    for failure in [
        TaskFailure::NoRoom,
        TaskFailure::Device,
        TaskFailure::Failing,
    ] {
        let mut world = world(OffloadMode::OnEvict);
        fill(&mut world, 20);
        fail(&mut world, failure);
        assert_eq!(world.used(MEMORY), 18 * BLOCK, "dropped without a copy");
        assert_eq!(
            (
                world.master.metrics().offload.failed,
                offloads(&mut world).len()
            ),
            (2, 0)
        );
        world.pass(Duration::from_millis(100));
        world.put("x", BLOCK);
        world.put("y", BLOCK);
        assert_eq!(offloads(&mut world).len(), 2, "and tried again later");
    }
}

/// One failed write marked objects so that they were never offered to the SSD again: they left memory without a copy long
/// after the device worked. Those of which nothing was written were marked too, and ordered to be dropped.
#[test]
fn after_an_outage_what_stayed_in_memory_is_offered_again() {
    for mode in [
        OffloadMode::Eager,
        OffloadMode::OnEvict,
        OffloadMode::OnEvictForced,
    ] {
        for failure in [TaskFailure::Failing, TaskFailure::Device] {
            let mut world = world(mode);
            let PutStarted::Granted { version, .. } = world.start("a", BLOCK, durable()) else {
                panic!()
            };
            world.send(ME, end("a", version));
            fail(&mut world, failure);
            world.pass(seconds(1));
            fill(&mut world, 19);
            let offered: Vec<Key> = offloads(&mut world)
                .into_iter()
                .map(|task| task.entry.key)
                .collect();
            assert!(
                offered.contains(&key("a")),
                "{mode:?}, {failure:?}: {offered:?}"
            );
        }
    }
}

/// An SSD that was failing when a put ended was not offered the object again in eager mode: the object left memory
/// without a copy. And what was not written because a device failed was counted as what it had no room for.
#[test]
fn in_eager_mode_what_was_skipped_is_counted_by_its_reason_and_offered_at_eviction() {
    for failing in [true, false] {
        let mut world = world(OffloadMode::Eager);
        let state = |accepting| {
            Report::Disk(DiskState {
                node: NODE,
                accepting,
                failing: failing && !accepting,
                capacity: 1024 * BLOCK,
                pressure: 0,
            })
        };
        world.report(NODE, state(false));
        fill(&mut world, 10);
        assert_eq!(offloads(&mut world).len(), 0);
        let skipped = world.master.metrics().offload;
        let by_reason = (skipped.skipped_failing, skipped.skipped_no_disk);
        assert_eq!(by_reason, if failing { (10, 0) } else { (0, 10) });
        world.report(NODE, state(true));
        for n in 10..30 {
            world.put(&format!("k{n}"), BLOCK);
            offload_all(&mut world);
        }
        assert_eq!(tiers(&mut world, "k0"), (false, true));
    }
}

/// A durable put of a value that is too long for every SSD was answered as one to be tried again.
#[test]
fn a_durable_put_that_is_too_long_is_refused() {
    let mut world = World::tiers(config(OffloadMode::Eager), 20 * BLOCK, 4 * BLOCK);
    let PutStarted::Granted { version, .. } = world.start("a", 5 * BLOCK, durable()) else {
        panic!()
    };
    let call = world.send(ME, end("a", version));
    let code = ErrorCode::ValueTooLong;
    assert_eq!(world.reply(call), Some(Reply::Each(vec![Err(code)])));
    assert_eq!(code.class(), Class::Refused);
}

/// A long value was refused for want of room on the SSD although short ones could go: one step of the eviction was not enough of them.
#[test]
fn a_durable_put_takes_the_place_of_more_short_values_than_a_step_evicts() {
    let mut config = config(OffloadMode::Eager);
    config.eviction.step = 2;
    let mut world = World::tiers(config, 100 * BLOCK, 40 * BLOCK);
    for n in 0..30 {
        world.put(&format!("k{n}"), BLOCK);
        offload_all(&mut world);
    }
    let PutStarted::Granted { version, .. } = world.start("long", 20 * BLOCK, durable()) else {
        panic!()
    };
    let call = world.send(ME, end("long", version));
    offload_all(&mut world);
    assert_eq!(world.reply(call), Some(Reply::Each(vec![Ok(())])));
}

/// One value longer than a file of the log was answered as a full disk, and for 100 ms no values went to SSD.
#[test]
fn a_value_too_large_for_the_ssd_leaves_without_a_copy_and_no_other_does() {
    let mut world = world(OffloadMode::OnEvict);
    fill(&mut world, 20);
    fail(&mut world, TaskFailure::TooLarge);
    assert_eq!(world.used(MEMORY), 18 * BLOCK, "dropped without a copy");
    world.put("x", BLOCK);
    world.put("y", BLOCK);
    assert_eq!(offloads(&mut world).len(), 2, "the SSD is asked at once");
}

#[test]
fn a_refusing_ssd_degrades_to_memory_and_recovers() {
    let mut world = world(OffloadMode::OnEvict);
    let state = |accepting| {
        Report::Disk(DiskState {
            node: NODE,
            accepting,
            failing: false,
            capacity: 1024 * BLOCK,
            pressure: 0,
        })
    };
    world.report(NODE, state(false));
    fill(&mut world, 30);
    assert_eq!((offloads(&mut world).len(), world.has("k0")), (0, false));
    world.report(NODE, state(true));
    for n in 30..40 {
        world.put(&format!("k{n}"), BLOCK);
        offload_all(&mut world);
    }
    assert!(world.master.metrics().offload.completed > 0);
}

#[test]
fn a_durable_put_is_acknowledged_when_it_is_durable() {
    let mut world = world(OffloadMode::OnEvict);
    let begin = |world: &mut World, name: &str| {
        let PutStarted::Granted { version, .. } = world.start(name, BLOCK, durable()) else {
            panic!()
        };
        (world.send(ME, end(name, version)), version)
    };
    let (call, version) = begin(&mut world, "a");
    let again = world.send(ME, end("a", version));
    assert_eq!((world.reply(call), world.reply(again)), (None, None));
    offload_all(&mut world);
    assert_eq!(world.reply(call), Some(Reply::Each(vec![Ok(())])));
    assert_eq!(world.reply(again), Some(Reply::Each(vec![Ok(())])));

    let failures = [
        (TaskFailure::NoRoom, ErrorCode::DiskFull),
        (TaskFailure::Device, ErrorCode::WriteFail),
        (TaskFailure::Failing, ErrorCode::WriteFail),
        (TaskFailure::TooLarge, ErrorCode::ValueTooLong),
    ];
    for (name, (failure, code)) in ["b", "c", "e", "f"].into_iter().zip(failures) {
        let (call, _) = begin(&mut world, name);
        fail(&mut world, failure);
        assert_eq!(world.reply(call), Some(Reply::Each(vec![Err(code)])));
        world.pass(seconds(1));
    }

    let (call, _) = begin(&mut world, "d");
    assert_eq!(world.remove_as(OTHER, "d"), None);
    assert_eq!(
        world.reply(call),
        Some(Reply::Each(vec![Err(ErrorCode::ObjectNotFound)]))
    );
}

#[test]
fn removal_during_an_offload_waits_until_neither_can_come_back() {
    let mut world = world(OffloadMode::Eager);
    world.obedient = false;
    world.put("a", BLOCK);
    let task = offloads(&mut world).remove(0);
    let call = world.send(ME, remove("a", false));
    assert_eq!((world.reply(call), world.get("a")), (None, Lookup::Missing));
    assert_eq!(world.used(MEMORY), BLOCK, "the source is still being read");
    world.report(NODE, Report::Offloaded(vec![(task.ticket, Ok(()))]));
    assert_eq!((world.reply(call), world.get("a")), (None, Lookup::Missing));
    world.obey();
    assert_eq!(world.reply(call), Some(Reply::Each(vec![Ok(())])));
    assert_eq!((world.used(MEMORY), world.used(DISK)), (0, 0));
    assert_eq!(world.master.metrics().offload.cancelled, 1);
}

#[test]
fn an_upsert_during_an_offload_keeps_the_old_record_from_becoming_live() {
    let mut world = world(OffloadMode::Eager);
    world.put("a", BLOCK);
    let old = offloads(&mut world).remove(0);
    let new = world.put_with("a", BLOCK, upsert());
    world.report(NODE, Report::Offloaded(vec![(old.ticket, Ok(()))]));
    assert_eq!(tiers(&mut world, "a"), (true, false));
    offload_all(&mut world);
    assert_eq!(
        (tiers(&mut world, "a"), world.found("a").version),
        ((true, true), new)
    );
}

#[test]
fn an_offload_without_a_report_fails_in_the_end_and_leaves_no_record() {
    let mut world = world(OffloadMode::Eager);
    world.put("a", BLOCK);
    let task = offloads(&mut world).remove(0);
    world.pass(seconds(600));
    assert_eq!(
        (world.master.metrics().offload.expired, world.used(DISK)),
        (1, 0)
    );
    world.report(NODE, Report::Offloaded(vec![(task.ticket, Ok(()))]));
    assert_eq!(
        tiers(&mut world, "a"),
        (true, false),
        "a late report changes nothing"
    );
    assert_eq!(world.master.metrics().records_dropped, 1);
}

#[test]
fn offloads_of_a_lost_node_fail() {
    let mut world = world(OffloadMode::OnEvict);
    let PutStarted::Granted { version, .. } = world.start("a", BLOCK, durable()) else {
        panic!()
    };
    let call = world.send(ME, end("a", version));
    world.input(Input::NodeLost(NODE));
    assert_eq!(
        world.reply(call),
        Some(Reply::Each(vec![Err(
            ErrorCode::UnavailableInCurrentStatus
        )]))
    );
    assert_eq!(
        (
            world.master.metrics().offload.failed,
            world.master.books().objects
        ),
        (1, 0)
    );
}

#[test]
fn the_last_copy_in_memory_is_offloaded_and_extra_ones_are_dropped() {
    let mut world = World::tiers(config(OffloadMode::OnEvict), 20 * BLOCK, 1024 * BLOCK);
    world.mount(NodeId(2), SegmentId(7), SegmentKind::Memory, 1024 * BLOCK);
    world.put_with(
        "twice",
        BLOCK,
        PutConfig {
            replicas: 2,
            ..PutConfig::default()
        },
    );
    let prefer = || PutConfig {
        preferred: vec!["segment-1".to_owned()],
        ..PutConfig::default()
    };
    for n in 0..19 {
        world.put_with(&format!("k{n}"), BLOCK, prefer());
    }
    let names: Vec<String> = offloads(&mut world)
        .iter()
        .map(|task| task.entry.key.to_string())
        .collect();
    assert!(!names.contains(&"twice".to_owned()), "{names:?}");
    assert_eq!(world.found("twice").replicas.len(), 1);
}
