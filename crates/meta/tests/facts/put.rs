use std::time::Duration;

use slackwater_base::Checksum;
use slackwater_meta::{Input, MasterConfig, Placement};
use slackwater_wire::*;

use crate::world::*;

fn world() -> World {
    World::memory(plain(), 16 * BLOCK)
}

pub(crate) fn granted(started: PutStarted) -> (Version, Vec<ExtentRef>) {
    match started {
        PutStarted::Granted { version, extents } => (version, extents),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_was_put_is_found_with_its_checksum_and_extent() {
    let mut world = world();
    let (version, extents) = granted(world.start("a", 100, PutConfig::default()));
    assert_eq!(world.get("a"), Lookup::NotReady);
    assert_eq!(world.end(ME, "a", version), Reply::Each(vec![Ok(())]));
    let object = world.found("a");
    assert_eq!(
        (object.version, object.bytes, object.checksum.0),
        (version, 100, version.0 * 31)
    );
    assert_eq!(object.replicas, [ReplicaAt::Memory(extents[0])]);
    assert_eq!(extents[0].bytes, 4096);
}

#[test]
fn wrong_arguments_are_refused() {
    let mut world = world();
    let check = |world: &mut World, bytes: u64, config: PutConfig, expect: PutStarted| {
        assert_eq!(world.start("a", bytes, config), expect);
    };
    let invalid = PutStarted::Failed(ErrorCode::InvalidParams);
    check(&mut world, 0, PutConfig::default(), invalid.clone());
    check(
        &mut world,
        16 * BLOCK + 1,
        PutConfig::default(),
        invalid.clone(),
    );
    check(&mut world, u64::MAX, PutConfig::default(), invalid);
    let durable = PutConfig {
        durability: Durability::Disk,
        ..PutConfig::default()
    };
    check(
        &mut world,
        1,
        durable,
        PutStarted::Failed(ErrorCode::UnableOffload),
    );
    for replicas in [0, 17] {
        let config = PutConfig {
            replicas,
            ..PutConfig::default()
        };
        assert_eq!(
            world.ask(start("a", 1, config)),
            Reply::Failed(ErrorCode::InvalidParams)
        );
    }
    let mut nowhere = World::new(plain());
    check(
        &mut nowhere,
        1,
        wait(Duration::ZERO),
        PutStarted::Failed(ErrorCode::NoAvailableHandle),
    );
}

#[test]
fn of_equal_keys_in_a_batch_the_first_wins() {
    let mut world = world();
    let entries = vec![
        PutEntry {
            key: key("a"),
            bytes: 1,
        },
        PutEntry {
            key: key("b"),
            bytes: 0,
        },
        PutEntry {
            key: key("a"),
            bytes: 2,
        },
    ];
    let config = PutConfig::default();
    let start = PutStart {
        tenant: Tenant::DEFAULT,
        entries,
        chain: Chain::default(),
        config,
    };
    let Reply::PutStart(results) = world.ask(Request::PutStart(start)) else {
        panic!()
    };
    assert!(matches!(results[0], PutStarted::Granted { .. }));
    assert_eq!(
        results[1..],
        [
            PutStarted::Failed(ErrorCode::InvalidParams),
            PutStarted::Exists
        ]
    );
}

#[test]
fn ends_are_checked_and_idempotent() {
    let mut world = world();
    assert_eq!(
        world.end(ME, "a", Version(1)),
        Reply::Each(vec![Err(ErrorCode::ObjectNotFound)])
    );
    let (version, _) = granted(world.start("a", 1, PutConfig::default()));
    assert_eq!(
        world.end(OTHER, "a", version),
        Reply::Each(vec![Err(ErrorCode::IllegalClient)])
    );
    for _ in 0..2 {
        assert_eq!(world.end(ME, "a", version), Reply::Each(vec![Ok(())]));
    }
    assert_eq!(
        world.end(OTHER, "a", version),
        Reply::Each(vec![Err(ErrorCode::IllegalClient)])
    );
    assert_eq!(
        world.end(ME, "a", Version(99)),
        Reply::Each(vec![Err(ErrorCode::InvalidVersion)])
    );
    assert_eq!(
        world.start("a", 1, PutConfig::default()),
        PutStarted::Exists
    );
}

#[test]
fn a_revoked_put_leaves_nothing() {
    let mut world = world();
    let (version, _) = granted(world.start("a", 1, PutConfig::default()));
    let revoke = |version| Request::PutRevoke {
        tenant: Tenant::DEFAULT,
        puts: vec![(key("a"), version)],
    };
    assert_eq!(
        world.ask_as(OTHER, revoke(version)),
        Reply::Each(vec![Err(ErrorCode::IllegalClient)])
    );
    assert_eq!(world.ask(revoke(version)), Reply::Each(vec![Ok(())]));
    assert_eq!(
        world.ask(revoke(version)),
        Reply::Each(vec![Err(ErrorCode::ObjectNotFound)])
    );
    assert_eq!((world.used(MEMORY), world.get("a")), (0, Lookup::Missing));
    let version = world.put("a", 1);
    assert_eq!(
        world.ask(revoke(version)),
        Reply::Each(vec![Err(ErrorCode::InvalidWrite)])
    );
}

#[test]
fn the_room_of_a_lost_client_is_freed_at_once() {
    let mut world = world();
    world.start("a", 16 * BLOCK, PutConfig::default());
    assert_eq!(world.used(MEMORY), 16 * BLOCK);
    world.input(Input::ClientLost(ME));
    assert_eq!((world.used(MEMORY), world.get("a")), (0, Lookup::Missing));
}

/// The puts of a client whose link was gone were all ended in one step, under the lock that all others wait for.
#[test]
fn the_puts_of_a_lost_client_end_in_steps_and_its_next_life_keeps_its_own() {
    let mut world = World::memory(plain(), 1024 * BLOCK);
    for n in 0..600 {
        world.start(&format!("k{n}"), BLOCK, PutConfig::default());
    }
    world.input(Input::ClientLost(ME));
    let ended = world.master.metrics().puts_reclaimed;
    assert_eq!(ended, 256, "one step");
    let (version, _) = granted(world.start("again", BLOCK, PutConfig::default()));
    world.pass(seconds(0));
    assert_eq!(world.master.metrics().puts_reclaimed, 600);
    assert_eq!(world.end(ME, "again", version), Reply::Each(vec![Ok(())]));
    assert_eq!(world.used(MEMORY), BLOCK);
}

#[test]
fn a_stale_put_is_replaced_and_its_late_end_is_refused() {
    let mut world = world();
    let (late, _) = granted(world.start("a", 1, PutConfig::default()));
    world.pass(seconds(29));
    assert_eq!(
        world.start("a", 1, PutConfig::default()),
        PutStarted::Exists
    );
    world.pass(seconds(1));
    let (version, _) = granted(world.start("a", 1, PutConfig::default()));
    assert_eq!(
        world.end(ME, "a", late),
        Reply::Each(vec![Err(ErrorCode::InvalidVersion)])
    );
    assert_eq!(world.end(ME, "a", version), Reply::Each(vec![Ok(())]));
    assert_eq!(
        world.end(ME, "a", late),
        Reply::Each(vec![Err(ErrorCode::InvalidVersion)])
    );
    assert_eq!(world.found("a").version, version);
}

#[test]
fn a_put_that_is_never_ended_is_given_up() {
    let mut world = world();
    world.start("a", BLOCK, PutConfig::default());
    world.pass(seconds(599));
    assert_eq!(world.used(MEMORY), BLOCK);
    world.pass(seconds(1));
    assert_eq!((world.used(MEMORY), world.get("a")), (0, Lookup::Missing));
}

#[test]
fn freed_bytes_are_not_allocated_before_they_are_fenced() {
    let mut world = world();
    world.obedient = false;
    world.start("a", 16 * BLOCK, PutConfig::default());
    world.input(Input::ClientLost(ME));
    let full = PutStarted::Failed(ErrorCode::NoAvailableHandle);
    world.pass(seconds(1000));
    assert_eq!(
        world.start("b", 1, wait(Duration::ZERO)),
        full,
        "time alone frees nothing"
    );
    let fences = world.taken(|order| {
        if let Order::Fence(extents) = order {
            Some(extents.clone())
        } else {
            None
        }
    });
    let extents = fences.concat();
    assert_eq!(extents.len(), 1);
    let foreign = ExtentRef {
        incarnation: Incarnation(9),
        ..extents[0]
    };
    world.report(NODE, Report::Fenced(vec![foreign]));
    world.report(NodeId(5), Report::Fenced(extents.clone()));
    assert_eq!(
        world.start("b", 1, wait(Duration::ZERO)),
        full,
        "only its owner fences it"
    );
    for _ in 0..2 {
        world.report(NODE, Report::Fenced(extents.clone()));
    }
    let (_, again) = granted(world.start("b", 1, wait(Duration::ZERO)));
    assert_ne!(again[0].generation, extents[0].generation);
}

#[test]
fn an_upsert_is_seen_whole_or_not_at_all() {
    let mut world = world();
    let old = world.put("a", 100);
    let (new, _) = granted(world.start("a", 200, upsert()));
    assert_eq!(
        (world.found("a").version, world.found("a").bytes),
        (old, 100)
    );
    assert_eq!(world.end(ME, "a", new), Reply::Each(vec![Ok(())]));
    assert_eq!(
        (world.found("a").version, world.found("a").bytes),
        (new, 200)
    );
    assert_eq!(world.used(MEMORY), 4096, "the old extent is free");
}

#[test]
fn a_revoked_or_lost_upsert_keeps_the_old_value() {
    let mut world = world();
    let old = world.put("a", 100);
    granted(world.start("a", 200, upsert()));
    world.input(Input::ClientLost(ME));
    assert_eq!(world.found("a").version, old);
    let (new, _) = granted(world.start("a", 200, upsert()));
    world.ask(Request::PutRevoke {
        tenant: Tenant::DEFAULT,
        puts: vec![(key("a"), new)],
    });
    assert_eq!(world.found("a").version, old);
}

#[test]
fn an_upsert_preempts_a_put_in_flight_at_once() {
    let mut world = world();
    let (first, _) = granted(world.start("a", 1, PutConfig::default()));
    let (second, _) = granted(world.start("a", 1, upsert()));
    assert_eq!(
        world.end(ME, "a", first),
        Reply::Each(vec![Err(ErrorCode::InvalidVersion)])
    );
    assert_eq!(world.end(ME, "a", second), Reply::Each(vec![Ok(())]));
}

/// An upsert ended the put in flight before it looked for room: when it was refused, neither value was stored.
#[test]
fn an_upsert_that_is_refused_leaves_the_put_in_flight_alone() {
    let mut world = world();
    let (first, _) = granted(world.start("a", BLOCK, PutConfig::default()));
    let (rest, _) = granted(world.start("rest", 14 * BLOCK, PutConfig::default()));
    let refused = |code| PutStarted::Failed(code);
    let now = PutConfig {
        wait: Some(Duration::ZERO),
        ..upsert()
    };
    assert_eq!(
        world.start("a", 2 * BLOCK, now.clone()),
        refused(ErrorCode::NoAvailableHandle)
    );
    assert_eq!(
        world.start("a", 17 * BLOCK, now),
        refused(ErrorCode::InvalidParams)
    );
    assert_eq!(world.end(ME, "a", first), Reply::Each(vec![Ok(())]));
    assert_eq!(world.found("a").version, first);
    assert_eq!(world.end(ME, "rest", rest), Reply::Each(vec![Ok(())]));
}

/// The room of a put that is never ended may be all there is.
#[test]
fn a_stale_put_gives_its_room_to_the_one_that_waits() {
    let mut world = world();
    let (late, _) = granted(world.start("a", 16 * BLOCK, PutConfig::default()));
    world.pass(seconds(30));
    let (version, _) = granted(world.start("a", 16 * BLOCK, wait(seconds(1))));
    assert_eq!(
        world.end(ME, "a", late),
        Reply::Each(vec![Err(ErrorCode::InvalidVersion)])
    );
    assert_eq!(world.end(ME, "a", version), Reply::Each(vec![Ok(())]));
}

#[test]
fn an_upsert_keeps_pin_and_group_and_may_not_change_the_group() {
    let mut world = world();
    world.put_with(
        "a",
        1,
        PutConfig {
            pin: Pin::Hard,
            group: Some(7),
            ..PutConfig::default()
        },
    );
    let refused = PutStarted::Failed(ErrorCode::InvalidParams);
    assert_eq!(
        world.start(
            "a",
            1,
            PutConfig {
                group: Some(8),
                ..upsert()
            }
        ),
        refused
    );
    world.put_with("a", 1, upsert());
    let Reply::Describe(description) = world.ask(Request::Describe {
        tenant: Tenant::DEFAULT,
        key: key("a"),
    }) else {
        panic!()
    };
    assert_eq!((description.pin, description.group), (Pin::Hard, Some(7)));
    world.put("b", 1);
    assert_eq!(
        world.start(
            "b",
            1,
            PutConfig {
                group: Some(8),
                ..upsert()
            }
        ),
        refused
    );
}

#[test]
fn replicas_lie_on_different_segments_and_fewer_segments_give_fewer() {
    let mut world = world();
    world.mount(NodeId(2), SegmentId(5), SegmentKind::Memory, 16 * BLOCK);
    let (_, extents) = granted(world.start(
        "a",
        1,
        PutConfig {
            replicas: 3,
            ..PutConfig::default()
        },
    ));
    let mut segments: Vec<u32> = extents.iter().map(|extent| extent.segment.0).collect();
    segments.sort_unstable();
    assert_eq!(
        (segments, world.master.metrics().puts_partial),
        (vec![1, 5], 1)
    );
}

#[test]
fn a_preferred_segment_is_not_a_requirement() {
    let mut world = world();
    world.mount(NodeId(2), SegmentId(5), SegmentKind::Memory, BLOCK);
    let prefer = |name: &str| PutConfig {
        preferred: vec![name.to_owned()],
        ..PutConfig::default()
    };
    let (_, first) = granted(world.start("a", BLOCK, prefer("segment-5")));
    let (_, second) = granted(world.start("b", BLOCK, prefer("segment-5")));
    let (_, third) = granted(world.start("c", BLOCK, prefer("nowhere")));
    let segments = [first, second, third].map(|extents| extents[0].segment.0);
    assert_eq!(
        segments,
        [5, 1, 1],
        "no refusal while another segment has room"
    );
}

#[test]
fn local_first_places_on_the_writers_host() {
    let mut world = World::new(MasterConfig {
        placement: Placement::LocalFirst,
        ..plain()
    });
    for node in 1..=8 {
        world.mount(NodeId(node), SegmentId(node), SegmentKind::Memory, MIB);
    }
    let host = Some("host-6".into());
    let request = start("a", 1, PutConfig::default());
    let mut out = Vec::new();
    world.master.handle(
        world.now,
        Input::Request {
            client: ME,
            host,
            permissions: Permissions::FULL,
            operation: OperationId(1000),
            request,
        },
        &mut out,
    );
    let slackwater_meta::Output::Reply {
        reply: Reply::PutStart(results),
        ..
    } = &out[0]
    else {
        panic!("{out:?}")
    };
    assert_eq!(granted(results[0].clone()).1[0].segment, SegmentId(6));
}

#[test]
fn a_lost_segment_ends_the_puts_on_it() {
    let mut world = world();
    let (version, _) = granted(world.start("a", BLOCK, PutConfig::default()));
    world.input(Input::NodeLost(NODE));
    assert_eq!(
        world.end(ME, "a", version),
        Reply::Each(vec![Err(ErrorCode::ObjectNotFound)])
    );
    assert_eq!(world.master.books().objects, 0);
}

/// A put of two replicas whose first segment was lost was ended as a whole: its end was refused, and the bytes on
/// the other segment were discarded.
#[test]
fn a_put_that_loses_one_of_its_replicas_keeps_the_others() {
    let mut world = world();
    let (other, its_memory) = (NodeId(2), SegmentId(9));
    world.mount(other, its_memory, SegmentKind::Memory, 16 * BLOCK);
    let (version, extents) = granted(world.start(
        "a",
        BLOCK,
        PutConfig {
            replicas: 2,
            ..PutConfig::default()
        },
    ));
    assert_eq!(extents.len(), 2);
    world.input(Input::NodeLost(other));
    assert_eq!(world.end(ME, "a", version), Reply::Each(vec![Ok(())]));
    let places = world.found("a").replicas;
    assert_eq!(
        places,
        extents
            .into_iter()
            .filter(|extent| extent.segment == MEMORY)
            .map(ReplicaAt::Memory)
            .collect::<Vec<_>>()
    );
}

#[test]
fn mounts_are_checked() {
    let mut world = world();
    let mount = |segment: u32, incarnation: u64, bytes: u64| {
        Request::Mount(Mount {
            segment: SegmentId(segment),
            name: "equal names are no error".to_owned(),
            node: NODE,
            incarnation: Incarnation(incarnation),
            kind: SegmentKind::Memory,
            bytes,
            host: String::new(),
            generations: None,
            watermarks: None,
        })
    };
    assert_eq!(
        world.ask(mount(7, 1, 0)),
        Reply::Failed(ErrorCode::InvalidParams)
    );
    assert_eq!(world.ask(mount(7, 1, MIB)), Reply::Done);
    assert_eq!(world.ask(mount(8, 1, MIB)), Reply::Done);
    assert_eq!(
        world.ask(mount(7, 1, MIB)),
        Reply::Failed(ErrorCode::SegmentAlreadyExists)
    );
    world.put("a", 1);
    assert_eq!(
        world.ask(mount(1, 2, MIB)),
        Reply::Done,
        "a new life takes the place of the old"
    );
    let mounted = world.master.segments();
    let mounted: Vec<SegmentId> = mounted.iter().map(|it| it.segment).collect();
    assert_eq!(mounted, [SegmentId(1)]);
}

#[test]
fn a_restarted_master_counts_versions_on_from_what_is_announced() {
    let mut world = World::tiers(plain(), MIB, MIB);
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries: vec![reported("a", 5000, 1)],
        },
    );
    assert!(world.put("b", 1) > Version(5000));
    let object = world.found("a");
    assert_eq!(
        (object.version, object.checksum),
        (Version(5000), Checksum(5000 * 31))
    );
}
