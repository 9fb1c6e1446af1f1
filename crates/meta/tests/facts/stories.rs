//! Bugs that the simulator found, each with its story.

use std::time::Duration;

use slackwater_meta::{Eviction, Input, MasterConfig, Offload, OffloadMode};
use slackwater_wire::*;

use crate::world::*;

fn config(step: usize, queue_limit: usize) -> MasterConfig {
    let eviction = Eviction {
        step,
        high_watermark: 0.7,
        low_watermark: 0.5,
        ..Eviction::default()
    };
    let offload = Offload {
        mode: OffloadMode::OnEvict,
        queue_limit,
        cap_ratio: 1.0,
        ..Offload::default()
    };
    MasterConfig {
        eviction,
        offload,
        lease_ttl: Duration::ZERO,
        ..plain()
    }
}

fn report_all(world: &mut World, result: Result<(), TaskFailure>) {
    let done = offloads(world)
        .into_iter()
        .map(|task| (task.ticket, result))
        .collect();
    world.report(NODE, Report::Offloaded(done));
}

/// Eviction found the queue of offloads full when its budget was used up, and scheduled another step at once, without
/// end, as only a report could help. The same happened with a soft-pinned victim, because the pass without soft-pinned
/// ones spent its step on setting it aside again, and with a group larger than a step, whose members were tried step
/// after step.
#[test]
fn eviction_that_waits_for_a_report_does_not_ask_for_now_again_and_again() {
    for (story, pin, group) in [
        ("unpinned", Pin::None, None),
        ("soft-pinned", Pin::Soft(None), None),
        ("grouped", Pin::None, Some(1)),
    ] {
        for step in 1..4 {
            let mut world = World::tiers(config(step, 1), 8 * BLOCK, 1024 * BLOCK);
            let patient = || PutConfig {
                pin,
                group,
                ..wait(seconds(10))
            };
            for n in 0..8 {
                world.put_with(&format!("k{n}"), BLOCK, patient());
            }
            let call = world.send(ME, start("one more", 2 * BLOCK, patient()));
            world.pass(Duration::ZERO);
            assert!(
                world.master.metrics().offload.skipped_full > 0,
                "{story}, step {step}: the queue was full"
            );
            for _ in 0..8 {
                report_all(&mut world, Ok(()));
                world.pass(Duration::ZERO);
            }
            let reply = world.reply(call);
            assert!(
                is_granted(&reply),
                "{story}, step {step}: the report resumes it: {reply:?}"
            );
        }
    }
}

/// The log never accepts a version that it was told to drop. The version was offered again at once, refused, and
/// offered, without end.
#[test]
fn what_the_ssd_refuses_for_good_leaves_memory_instead_of_being_offered_for_ever() {
    let mut world = World::tiers(config(8, 16), 8 * BLOCK, 1024 * BLOCK);
    for n in 0..8 {
        world.put(&format!("k{n}"), BLOCK);
    }
    let offered = world.master.metrics().offload.started;
    assert!(offered > 0);
    report_all(&mut world, Err(TaskFailure::Cancelled));
    let metrics = world.master.metrics();
    assert_eq!(
        (metrics.offload.started, metrics.evictions),
        (offered, offered),
        "each was offered once, and is gone"
    );
}

/// Puts that may not wait were refused, and nothing was evicted for them, so the next found no room either.
#[test]
fn a_put_that_may_not_wait_makes_room_for_the_next() {
    let mut world = World::memory(
        MasterConfig {
            lease_ttl: Duration::ZERO,
            ..plain()
        },
        20 * BLOCK,
    );
    for n in 0..18 {
        world.put(&format!("k{n}"), BLOCK);
    }
    let hasty = || wait(Duration::ZERO);
    let refused = world.start("large", 4 * BLOCK, hasty());
    assert_eq!(refused, PutStarted::Failed(ErrorCode::NoAvailableHandle));
    let PutStarted::Granted { .. } = world.start("large", 4 * BLOCK, hasty()) else {
        panic!("the first made room for the second");
    };
}

/// The SSD was told to drop a record for lack of room while its value was still in memory, and later to write it again.
/// The log wrote it, but the tombstone of the first covered it: it was durable, and dead after the next start.
#[test]
fn a_version_that_was_dropped_from_ssd_is_not_written_there_again() {
    for (story, drop) in [
        (
            "under pressure",
            Report::Disk(DiskState {
                node: NODE,
                accepting: true,
                failing: false,
                capacity: 1024 * BLOCK,
                pressure: MIB,
            }),
        ),
        (
            "lost",
            Report::Lost(vec![DiskEntry {
                tenant: Tenant::DEFAULT,
                key: key("a"),
                version: Version(1),
            }]),
        ),
    ] {
        let mut world = World::tiers(config(8, 16), 8 * BLOCK, 1024 * BLOCK);
        let durable = |mode| PutConfig {
            mode,
            durability: Durability::Disk,
            ..PutConfig::default()
        };
        let PutStarted::Granted { version, .. } = world.start("a", BLOCK, durable(PutMode::Create))
        else {
            panic!()
        };
        world.send(ME, end("a", version));
        offload_all(&mut world);
        assert_eq!(
            (version, world.found("a").replicas.len()),
            (Version(1), 2),
            "{story}"
        );
        world.report(NODE, drop);
        assert_eq!(
            world.found("a").replicas.len(),
            1,
            "{story}: it is in memory alone"
        );
        let offers = |world: &mut World| {
            offloads(world)
                .iter()
                .filter(|task| task.entry.key == key("a"))
                .count()
        };
        for n in 0..8 {
            world.start(&format!("k{n}"), BLOCK, wait(Duration::ZERO));
        }
        assert_eq!(
            (offers(&mut world), world.get("a")),
            (0, Lookup::Missing),
            "{story}: it left without a copy"
        );
        for n in 0..8 {
            world.input(Input::ClientLost(ME));
            world.remove_as(ME, &format!("k{n}"));
        }
        let PutStarted::Granted { version, .. } = world.start("a", BLOCK, durable(PutMode::Upsert))
        else {
            panic!()
        };
        world.send(ME, end("a", version));
        assert_eq!(offers(&mut world), 1, "{story}: a new version is written");
    }
}

/// After a restart versions began at one again. The log still had tombstones of higher versions, which made the new
/// records dead at the next start: only the versions of live records had been announced.
#[test]
fn versions_continue_above_everything_that_a_log_has_seen() {
    let mut world = World::memory(plain(), 20 * BLOCK);
    world.mount(NODE, DISK, SegmentKind::Disk, 1024 * BLOCK);
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries: vec![reported("old", 5, BLOCK)],
        },
    );
    assert!(world.put("a", 1) > Version(5));
    world.report(
        NODE,
        Report::Announced {
            segment: DISK,
            highest: Version(77),
        },
    );
    assert!(
        world.put("b", 1) > Version(77),
        "77 was dropped, and its tombstone is there"
    );
}

/// The sync of a record failed. The catalog did not have the record, so it was not dropped when its key was replaced or
/// removed. It had reached the medium all the same, and the next start found it.
#[test]
fn a_record_that_a_failing_device_may_hold_is_dropped_before_a_removal_is_acknowledged() {
    for replaced in [false, true] {
        let offload = Offload {
            mode: OffloadMode::Eager,
            ..Offload::default()
        };
        let mut world = World::tiers(MasterConfig { offload, ..plain() }, 8 * BLOCK, 1024 * BLOCK);
        world.obedient = false;
        let version = world.put("a", BLOCK);
        report_all(&mut world, Err(TaskFailure::Device));
        let call = if replaced {
            let PutStarted::Granted { version, .. } = world.start("a", BLOCK, upsert()) else {
                panic!("no room")
            };
            world.send(ME, end("a", version))
        } else {
            world.send(ME, remove("a", true))
        };
        assert_eq!(world.reply(call), None, "the record may come back");
        let drops = world.taken(|order| {
            if let Order::Drop(entries) = order {
                Some(entries.clone())
            } else {
                None
            }
        });
        assert_eq!(
            drops.concat(),
            [DiskEntry {
                tenant: Tenant::DEFAULT,
                key: key("a"),
                version
            }]
        );
        world.report(NODE, Report::Dropped(drops.concat()));
        assert_eq!(world.reply(call), Some(Reply::Each(vec![Ok(())])));
    }
}

/// A removal waited for one node's tombstone. Meanwhile another node, which had not been told of the removal, mounted
/// and announced its copy: the removal was acknowledged, and the value was back.
#[test]
fn a_node_that_mounts_during_a_removal_cannot_bring_the_value_back() {
    let (other, its_disk) = (NodeId(2), SegmentId(8));
    let mut world = World::tiers(plain(), 8 * BLOCK, 1024 * BLOCK);
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries: vec![reported("a", 5, BLOCK)],
        },
    );
    world.obedient = false;
    let call = world.send(ME, remove("a", true));
    assert_eq!(world.reply(call), None);
    world.mount(other, its_disk, SegmentKind::Disk, 1024 * BLOCK);
    world.report(
        other,
        Report::Announce {
            segment: its_disk,
            entries: vec![reported("a", 5, BLOCK)],
        },
    );
    world.input(Input::Report {
        node: other,
        report: Report::Announced {
            segment: its_disk,
            highest: Version(5),
        },
    });
    world.obey();
    assert_eq!(world.reply(call), Some(Reply::Each(vec![Ok(())])));
    assert_eq!(world.get("a"), Lookup::Missing);
}
