//! Drains that lost something, or did not end.

use std::time::Duration;

use slackwater_meta::{Input, MasterConfig, Offload, OffloadMode};
use slackwater_wire::*;

use super::*;

/// A drain that had ended was cancelled while another one emptied the same segment. The segment then passed for one that
/// keeps its values, so that each of them was "elsewhere", and the only replica was let go.
#[test]
fn a_cancelled_drain_does_not_open_what_another_empties() {
    let mut world = three(MIB);
    let over = world.begin(drain(&["1"], &[]));
    assert_eq!(world.job(over).status, JobStatus::Succeeded);
    world.ask(Request::CancelJob { job: over });
    for name in 0..8 {
        world.put_at(&format!("k{name}"), BLOCK, "segment-1");
    }
    let job = world.begin(drain(&["1"], &["3"]));
    world.ask(Request::CancelJob { job: over });
    let of_first = |world: &World| {
        let segments = world.master.segments();
        let first = segments.iter().find(|it| it.segment == MEMORY);
        first.map(|it| it.draining)
    };
    assert_eq!(of_first(&world), Some(Draining::Running));
    assert_eq!(world.carry_all(), 8);
    assert_eq!(world.master.books().objects, 8);
    assert_eq!(world.job(job).status, JobStatus::Succeeded);
    world.ask(Request::CancelJob { job });
    assert_eq!(of_first(&world), Some(Draining::No));
}

/// A node was mounted anew in the middle of its drain and announced what it held. Its segment took new values again, so
/// each value was "elsewhere", on the very segment that it was to leave.
#[test]
fn a_drain_discards_nothing_of_a_segment_that_was_mounted_anew() {
    let mut world = World::memory(plain(), MIB);
    world.mount(SECOND, SegmentId(20), SegmentKind::Memory, MIB);
    let mount = |generations: u64, incarnation: u64| Mount {
        segment: SegmentId(30),
        name: "segment-30".to_owned(),
        node: THIRD,
        incarnation: Incarnation(incarnation),
        kind: SegmentKind::Memory,
        bytes: MIB,
        host: String::new(),
        generations: Some(generations),
        watermarks: None,
    };
    assert_eq!(world.ask(Request::Mount(mount(1, 1))), Reply::Done);
    let announced = || Report::Announced {
        segment: SegmentId(30),
        highest: Version(0),
    };
    world.report(THIRD, announced());
    world.put_at("k", BLOCK, "segment-30");
    let told: Vec<Published> = world
        .taken(|order| match order {
            Order::Published(entries) => Some(entries.clone()),
            _ => None,
        })
        .concat();
    let job = world.begin(drain(&["3"], &["2"]));
    // Its link was gone for a moment, and the master took it for another life.
    assert_eq!(world.ask(Request::Mount(mount(100, 2))), Reply::Done);
    let entries = told.into_iter().map(|it| Published {
        extent: ExtentRef {
            incarnation: Incarnation(2),
            ..it.extent
        },
        ..it
    });
    world.report(
        THIRD,
        Report::Holds {
            segment: SegmentId(30),
            entries: entries.collect(),
            ahead: false,
        },
    );
    world.report(THIRD, announced());
    world.pass(Duration::from_secs(1));
    world.carry_all();
    assert_eq!(world.nodes_of("k"), [3]);
    assert!(world.job(job).status.is_over());
}

/// The link to a node was gone for a moment in the middle of its drain. What could not be read then counted as done, and the
/// drain as a success; with the node its only replica went.
#[test]
fn a_drain_does_not_succeed_while_its_node_is_away() {
    for back in [true, false] {
        let mut world = three(MIB);
        for name in 0..8 {
            world.put_at(&format!("k{name}"), BLOCK, "segment-1");
        }
        let job = world.begin(drain(&["1"], &["3"]));
        world.input(Input::NodeAway(NODE));
        for _ in 0..4 {
            world.copied(Err(ErrorCode::UnavailableInCurrentStatus));
        }
        assert_eq!(world.job(job).status, JobStatus::Running);
        // Longer than three tries take.
        world.pass(Duration::from_secs(1));
        assert_eq!(world.job(job).status, JobStatus::Running);
        match back {
            true => world.input(Input::NodeBack(NODE)),
            // Nobody waits for it any more.
            false => world.pass(Duration::from_secs(11)),
        };
        world.pass(Duration::from_secs(1));
        world.carry_all();
        let state = world.job(job);
        let expected = match back {
            true => (JobStatus::Succeeded, 8, 0, 0),
            false => (JobStatus::Failed, 0, 8, 8 * BLOCK),
        };
        let ended = (state.status, state.done, state.failed, state.left_bytes);
        assert_eq!(ended, expected);
        assert_eq!(world.master.books().objects, 8);
    }
}

/// A drain of a node that had not told yet what it holds found nothing, and was a success; a node that left just after a restart
/// of its master so took its values along.
#[test]
fn a_drain_waits_for_what_its_node_has_to_tell() {
    let mut world = World::memory(plain(), MIB);
    world.mount(SECOND, SegmentId(20), SegmentKind::Memory, MIB);
    let mount = Mount {
        segment: SegmentId(30),
        name: "segment-30".to_owned(),
        node: THIRD,
        incarnation: Incarnation(1),
        kind: SegmentKind::Memory,
        bytes: MIB,
        host: String::new(),
        generations: Some(1),
        watermarks: None,
    };
    assert_eq!(world.ask(Request::Mount(mount)), Reply::Done);
    let job = world.begin(drain(&["3"], &["2"]));
    world.pass(Duration::from_secs(1));
    assert_eq!(world.job(job).status, JobStatus::Running);
    world.report(
        THIRD,
        Report::Announced {
            segment: SegmentId(30),
            highest: Version(0),
        },
    );
    world.pass(Duration::from_secs(1));
    assert_eq!(world.job(job).status, JobStatus::Succeeded);
}

/// A copy was under way to a segment when its drain began. The drain waited for the replica, was not told when it was
/// published, and never ended.
#[test]
fn a_drain_goes_on_when_a_copy_to_its_segment_is_published() {
    let mut world = three(MIB);
    world.put_at("k", BLOCK, "segment-1");
    world.begin(copy("k", &["2"]));
    let job = world.begin(drain(&["2"], &["3"]));
    assert_eq!(world.job(job).status, JobStatus::Running);
    world.carry_all();
    assert_eq!(world.job(job).status, JobStatus::Succeeded);
    assert_eq!(world.nodes_of("k"), [1]);
}

/// Two copies of an object to one place were under way at once, and it had two replicas on one segment.
#[test]
fn a_segment_has_one_replica_of_an_object() {
    let mut world = three(MIB);
    world.put_at("k", BLOCK, "segment-1");
    let first = world.begin(copy("k", &["2"]));
    let again = world.begin(copy("k", &["2"]));
    assert_eq!(world.carry_all(), 1);
    assert_eq!(world.nodes_of("k"), [1, 2]);
    assert_eq!(world.job(first).status, JobStatus::Succeeded);
    let state = world.job(again);
    assert_eq!(state.status, JobStatus::Failed);
    assert_eq!(state.errors, [(key("k"), ErrorCode::ReplicaAlreadyExists)]);
    // A drain waits for what is on its way to the only place where it could carry the value too.
    world.put_at("m", BLOCK, "segment-1");
    let copying = world.begin(copy("m", &["3"]));
    let drained = world.begin(drain(&["1"], &["3"]));
    assert_eq!(world.job(drained).status, JobStatus::Running);
    assert_eq!(world.carry_all(), 1);
    assert_eq!(
        (world.nodes_of("k"), world.nodes_of("m")),
        (vec![2], vec![3])
    );
    for job in [copying, drained] {
        assert_eq!(world.job(job).status, JobStatus::Succeeded);
    }
}

/// A drain without room elsewhere counted as done what was only queued for the SSD. It said that it had succeeded; the write
/// failed, or the node ended before it.
#[test]
fn a_drain_ends_when_the_ssd_has_what_it_is_to_keep() {
    for written in [true, false] {
        let config = MasterConfig {
            offload: slackwater_meta::Offload {
                mode: OffloadMode::OnEvict,
                ..plain().offload
            },
            ..plain()
        };
        let mut world = World::tiers(config, MIB, 16 * MIB);
        world.put_at("a", BLOCK, "segment-1");
        let job = world.begin(JobSpec {
            work: JobWork::Drain {
                places: vec!["1".into()],
                targets: Vec::new(),
                disks: false,
            },
            ..drain(&["1"], &[])
        });
        // Without any other memory there is nowhere to go.
        world.mount(SECOND, SegmentId(20), SegmentKind::Memory, BLOCK / 2);
        world.pass(Duration::from_secs(1));
        assert_eq!(world.job(job).status, JobStatus::Running);
        let task = offloads(&mut world).pop().expect("it is to be written");
        let result = match written {
            true => Ok(()),
            false => Err(TaskFailure::Device),
        };
        world.report(NODE, Report::Offloaded(vec![(task.ticket, result)]));
        world.pass(Duration::from_secs(1));
        let state = world.job(job);
        let expected = match written {
            true => (JobStatus::Succeeded, 0, 0),
            false => (JobStatus::Failed, 1, BLOCK),
        };
        assert_eq!((state.status, state.failed, state.left_bytes), expected);
    }
}

/// Values that were to stay on the SSD of their node did not count as being carried: all of them were queued at once, and left no
/// room in the queue of the SSD for puts that asked for it.
#[test]
fn a_drain_writes_as_many_values_at_a_time_as_it_carries() {
    let config = MasterConfig {
        offload: slackwater_meta::Offload {
            mode: OffloadMode::OnEvict,
            ..plain().offload
        },
        ..plain()
    };
    let mut world = World::tiers(config, MIB, 16 * MIB);
    for name in 0..8 {
        world.put_at(&format!("k{name}"), BLOCK, "segment-1");
    }
    world.mount(SECOND, SegmentId(20), SegmentKind::Memory, BLOCK / 2);
    let job = world.begin(JobSpec {
        work: JobWork::Drain {
            places: vec!["segment-1".into()],
            targets: vec!["2".into()],
            disks: false,
        },
        concurrency: 3,
        ..drain(&[], &[])
    });
    for expected in [3, 3, 2] {
        world.pass(Duration::from_secs(1));
        let tasks = offloads(&mut world);
        assert_eq!(tasks.len(), expected);
        let done = tasks.into_iter().map(|task| (task.ticket, Ok(())));
        world.report(NODE, Report::Offloaded(done.collect()));
    }
    world.pass(Duration::from_secs(1));
    assert_eq!(world.job(job).status, JobStatus::Succeeded);
}

/// The only node that a drain may fill lost its link for a second: its values were tried three times meanwhile, and failed.
#[test]
fn a_drain_waits_for_a_target_that_is_away() {
    let mut world = three(MIB);
    for name in 0..8 {
        world.put_at(&format!("k{name}"), BLOCK, "segment-1");
    }
    let job = world.begin(drain(&["1"], &["2"]));
    world.input(Input::NodeAway(SECOND));
    for _ in 0..4 {
        world.copied(Err(ErrorCode::UnavailableInCurrentStatus));
    }
    world.pass(Duration::from_secs(1));
    assert_eq!(world.job(job).status, JobStatus::Running);
    world.input(Input::NodeBack(SECOND));
    world.carry_all();
    let state = world.job(job);
    assert_eq!((state.status, state.done), (JobStatus::Succeeded, 8));
}

/// More values were to stay on the SSD of their node than its queue takes: those beyond it counted as failed.
#[test]
fn a_drain_waits_for_room_in_the_queue_of_the_ssd() {
    let config = MasterConfig {
        offload: slackwater_meta::Offload {
            mode: OffloadMode::OnEvict,
            queue_limit: 2,
            ..plain().offload
        },
        ..plain()
    };
    let mut world = World::tiers(config, MIB, 16 * MIB);
    for name in 0..8 {
        world.put_at(&format!("k{name}"), BLOCK, "segment-1");
    }
    world.mount(SECOND, SegmentId(20), SegmentKind::Memory, BLOCK / 2);
    let job = world.begin(JobSpec {
        work: JobWork::Drain {
            places: vec!["segment-1".into()],
            targets: vec!["2".into()],
            disks: false,
        },
        ..drain(&[], &[])
    });
    for _ in 0..4 {
        assert_eq!(world.job(job).status, JobStatus::Running);
        offload_all(&mut world);
        world.pass(Duration::from_millis(100));
    }
    let state = world.job(job);
    let ended = (state.status, state.failed, state.left_bytes);
    assert_eq!(ended, (JobStatus::Succeeded, 0, 0));
}

/// A node died in the middle of its drain. What was queued was gone, which passed for what clients had removed: the drain said
/// that it had succeeded.
#[test]
fn a_drain_whose_node_dies_says_what_was_lost() {
    let mut world = three(MIB);
    for name in 0..8 {
        world.put_at(&format!("k{name}"), BLOCK, "segment-1");
    }
    let of_both = world.begin(copy("k7", &["2"]));
    assert_eq!(world.carry_all(), 1);
    assert_eq!(world.job(of_both).status, JobStatus::Succeeded);
    let job = world.begin(drain(&["1"], &["3"]));
    assert_eq!(world.remove_with("k6", true), Ok(()));
    world.input(Input::NodeLost(NODE));
    world.pass(Duration::from_secs(1));
    let state = world.job(job);
    assert_eq!((state.status, state.failed), (JobStatus::Failed, 6));
    let lost = |(_, code): &(Key, ErrorCode)| *code == ErrorCode::ReplicaIsGone;
    assert!(state.errors.iter().all(lost), "{:?}", state.errors);
    assert_eq!(world.nodes_of("k7"), [2]);
}

/// Three nodes that live on without their master; what the third one has is told.
pub(super) fn three_that_outlive() -> World {
    let mut world = World::memory(plain(), MIB);
    for node in [SECOND, THIRD] {
        mount_again(&mut world, node, 1, &[]);
    }
    world
}

/// A node whose memory lives on is mounted in this life, and tells what it holds.
pub(super) fn mount_again(world: &mut World, node: NodeId, life: u64, held: &[Published]) {
    let segment = mount_untold(world, node, life, held);
    let highest = Version(0);
    world.report(node, Report::Announced { segment, highest });
}

/// The same, before it has told everything.
pub(super) fn mount_untold(
    world: &mut World,
    node: NodeId,
    life: u64,
    held: &[Published],
) -> SegmentId {
    let segment = SegmentId(node.0 * 10);
    let mount = Mount {
        segment,
        name: format!("segment-{segment}"),
        node,
        incarnation: Incarnation(life),
        kind: SegmentKind::Memory,
        bytes: MIB,
        host: String::new(),
        generations: Some(1),
        watermarks: None,
    };
    assert_eq!(world.ask(Request::Mount(mount)), Reply::Done);
    let entries = held.to_vec();
    world.report(
        node,
        Report::Holds {
            segment,
            entries,
            ahead: false,
        },
    );
    segment
}

/// A node was without a link in the middle of its drain until it was given up, and came back in the same life. Its segment took
/// new values again, and the drain was a success with all of them still there.
#[test]
fn a_drain_goes_on_when_a_node_that_was_given_up_comes_back() {
    let mut world = three_that_outlive();
    world.put_at("k", BLOCK, "segment-30");
    let told = world.taken(|order| match order {
        Order::Published(entries) => Some(entries.clone()),
        _ => None,
    });
    // A value that another drain waits for keeps the job under way.
    let config = PutConfig {
        preferred: vec!["segment-1".into()],
        ..PutConfig::default()
    };
    world.start("open", BLOCK, config);
    let job = world.begin(drain(&["3", "1"], &["2"]));
    world.input(Input::NodeLost(THIRD));
    mount_again(&mut world, THIRD, 1, &told.concat());
    let segments = world.master.segments();
    let third = segments.iter().find(|it| it.node == THIRD);
    assert_eq!(third.expect("mounted").draining, Draining::Running);
    world.carry_all();
    assert_eq!(world.nodes_of("k"), [2]);
    assert_eq!(
        world.job(job).left_bytes,
        BLOCK,
        "the put that is under way"
    );
}

/// A node ended in the middle of its drain. What it alone had was lost, and the drain was a success; the bytes of its next life
/// counted as left.
#[test]
fn a_drain_whose_values_are_lost_is_no_success() {
    let check = |elsewhere: bool, expected: (JobStatus, u64)| {
        let mut world = three_that_outlive();
        for name in 0..8 {
            world.put_at(&format!("k{name}"), BLOCK, "segment-30");
            if elsewhere {
                world.begin(copy(&format!("k{name}"), &["1"]));
            }
        }
        world.carry_all();
        let job = world.begin(JobSpec {
            concurrency: 2,
            ..drain(&["3"], &["2"])
        });
        if !elsewhere {
            world.copied(Ok(()));
        }
        world.input(Input::NodeLost(THIRD));
        mount_again(&mut world, THIRD, 2, &[]);
        world.put_at("new", BLOCK, "segment-30");
        world.pass(Duration::from_secs(1));
        let state = world.job(job);
        assert_eq!((state.status, state.failed), expected);
        assert_eq!(state.left_bytes, 0, "of another life");
    };
    check(false, (JobStatus::Failed, 7));
    check(true, (JobStatus::Succeeded, 0));
}

/// A node was mounted under the name of one that was being drained. It could not leave with its values, as it passed for drained;
/// and it was drained when the other one was.
#[test]
fn a_drain_is_of_what_had_the_name_when_it_began() {
    let mut world = three(MIB);
    world.put_at("k", BLOCK, "segment-1");
    let job = world.begin(drain(&["segment-1"], &["3"]));
    let twin = Mount {
        segment: SegmentId(40),
        name: "segment-1".to_owned(),
        node: NodeId(4),
        incarnation: Incarnation(1),
        kind: SegmentKind::Memory,
        bytes: MIB,
        host: String::new(),
        generations: None,
        watermarks: None,
    };
    assert_eq!(world.ask(Request::Mount(twin)), Reply::Done);
    assert_eq!(world.master.drain_of(NODE), Some(job));
    assert_eq!(world.master.drain_of(NodeId(4)), None);
    let own = world.begin(drain(&["4"], &["3"]));
    world.carry_all();
    for job in [job, own] {
        assert_eq!(world.job(job).status, JobStatus::Succeeded);
    }
    let of = |world: &World, segment| {
        let segments = world.master.segments();
        let found = segments.iter().find(|it| it.segment == segment);
        found.map(|it| it.draining)
    };
    assert_eq!(of(&world, SegmentId(40)), Some(Draining::Done));
    world.ask(Request::CancelJob { job });
    let draining = [of(&world, MEMORY), of(&world, SegmentId(40))];
    assert_eq!(draining, [Some(Draining::No), Some(Draining::Done)]);
    world.ask(Request::CancelJob { job: own });
    assert_eq!(of(&world, SegmentId(40)), Some(Draining::No));
}

/// A value was moved while it was being written to SSD, and then evicted or cleared. The object's number was given to the next
/// one, and the record of the first became a replica of that: of another tenant's, even.
#[test]
fn a_record_of_a_value_that_moved_and_went_is_nobody_elses() {
    let config = MasterConfig {
        offload: Offload {
            mode: OffloadMode::Eager,
            ..Offload::DEFAULT
        },
        ..plain()
    };
    let mut world = three_with(config, 16 * BLOCK);
    world.mount(NODE, DISK, SegmentKind::Disk, 64 * BLOCK);
    world.put_at("moved", BLOCK, "segment-1");
    let [task] = &offloads(&mut world)[..] else {
        panic!("one offload")
    };
    world.begin(shift("moved", None, "segment-20"));
    world.copied(Ok(()));
    assert_eq!(world.nodes_of("moved"), [2]);
    let clear = ReplicaClear {
        tenant: Tenant::DEFAULT,
        keys: vec![key("moved")],
        segment: Some("segment-20".into()),
    };
    world.obedient = false;
    world.send(ME, Request::ReplicaClear(clear));
    assert!(!world.has("moved"));
    let other = world.put_at("other", BLOCK, "segment-30");
    world.report(NODE, Report::Offloaded(vec![(task.ticket, Ok(()))]));
    assert_eq!(world.nodes_of("other"), [3], "{other:?}");
    let dropped = world.taken(|order| match order {
        Order::Drop(entries) => Some(entries.clone()),
        _ => None,
    });
    assert!(dropped.concat().contains(&task.entry), "{dropped:?}");
}
