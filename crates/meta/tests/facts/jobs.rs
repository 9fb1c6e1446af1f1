//! Copies, moves and drains: what they carry, what they leave, and what ends them.

use std::time::Duration;

use slackwater_meta::{Input, MasterConfig, OffloadMode};
use slackwater_wire::*;

use crate::world::*;

const SECOND: NodeId = NodeId(2);
const THIRD: NodeId = NodeId(3);

/// Memory of the nodes 1 to 3, each so large.
fn three(bytes: u64) -> World {
    let mut world = World::memory(plain(), bytes);
    for node in [SECOND, THIRD] {
        world.mount(node, SegmentId(node.0 * 10), SegmentKind::Memory, bytes);
    }
    world
}

fn spec(work: JobWork) -> JobSpec {
    JobSpec {
        work,
        concurrency: 0,
        bytes_per_second: None,
        time: None,
    }
}

fn copy(name: &str, targets: &[&str]) -> JobSpec {
    spec(JobWork::Copy {
        tenant: Tenant::DEFAULT,
        key: key(name),
        targets: targets.iter().map(ToString::to_string).collect(),
    })
}

fn shift(name: &str, source: Option<&str>, target: &str) -> JobSpec {
    spec(JobWork::Move {
        tenant: Tenant::DEFAULT,
        key: key(name),
        source: source.map(ToOwned::to_owned),
        target: target.to_owned(),
    })
}

fn drain(places: &[&str], targets: &[&str]) -> JobSpec {
    let all = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    spec(JobWork::Drain {
        places: all(places),
        targets: all(targets),
        disks: true,
    })
}

impl World {
    fn begin(&mut self, spec: JobSpec) -> JobId {
        match self.ask(Request::StartJob(spec)) {
            Reply::Job(state) => state.job,
            other => panic!("{other:?}"),
        }
    }

    fn job(&mut self, job: JobId) -> JobState {
        match self.ask(Request::QueryJob { job }) {
            Reply::Job(state) => *state,
            other => panic!("{other:?}"),
        }
    }

    /// The next copy that was ordered is made, or not.
    fn copied(&mut self, result: Result<(), ErrorCode>) -> CopyTask {
        let (_, task) = self.copies.pop_front().expect("a copy was ordered");
        let ticket = task.ticket;
        self.input(Input::Copied { ticket, result });
        task
    }

    /// Makes every copy that is ordered, until there is none left.
    fn carry_all(&mut self) -> usize {
        let mut carried = 0;
        loop {
            while !self.copies.is_empty() {
                self.copied(Ok(()));
                carried += 1;
            }
            if self.master.next_deadline().is_none_or(|at| at > self.now) {
                return carried;
            }
            self.pass(Duration::ZERO);
        }
    }

    fn nodes_of(&mut self, name: &str) -> Vec<u32> {
        let (tenant, key) = (Tenant::DEFAULT, key(name));
        let Reply::Describe(found) = self.ask(Request::Describe { tenant, key }) else {
            return Vec::new();
        };
        let mut nodes: Vec<u32> = found
            .replicas
            .iter()
            .map(|(at, ..)| match at {
                ReplicaAt::Memory(extent) => match extent.segment {
                    MEMORY => 1,
                    SegmentId(other) => other / 10,
                },
                ReplicaAt::Disk { node, .. } => node.0,
            })
            .collect();
        nodes.sort_unstable();
        nodes
    }

    fn put_at(&mut self, name: &str, bytes: u64, segment: &str) -> Version {
        let config = PutConfig {
            preferred: vec![segment.to_owned()],
            ..PutConfig::default()
        };
        self.put_with(name, bytes, config)
    }
}

#[test]
fn a_copy_adds_a_replica_and_a_move_takes_one_along() {
    let mut world = three(MIB);
    world.put_at("k", BLOCK, "segment-1");
    let job = world.begin(copy("k", &["2", "segment-30"]));
    let first = world.copied(Ok(()));
    assert_eq!((first.from, first.bytes), (NODE, BLOCK));
    assert_eq!(world.nodes_of("k"), [1, 2]);
    assert_eq!(world.job(job).status, JobStatus::Running);
    world.copied(Ok(()));
    assert_eq!(world.nodes_of("k"), [1, 2, 3]);
    let state = world.job(job);
    let ended = (state.status, state.done, state.done_bytes, state.active);
    assert_eq!(ended, (JobStatus::Succeeded, 2, 2 * BLOCK, 0));
    world.put_at("m", BLOCK, "segment-1");
    let job = world.begin(shift("m", None, "3"));
    assert_eq!(
        world.nodes_of("m"),
        [1],
        "it stays until the other is there"
    );
    world.copied(Ok(()));
    assert_eq!(world.nodes_of("m"), [3]);
    assert_eq!(world.job(job).status, JobStatus::Succeeded);
    world.begin(shift("k", Some("segment-20"), "1"));
    assert!(world.copies.is_empty(), "it is there already");
}

#[test]
fn what_makes_no_sense_is_refused_with_the_code_that_tools_know() {
    let mut world = three(MIB);
    world.put_at("k", BLOCK, "segment-1");
    let mut check = |spec: JobSpec, expected: ErrorCode| {
        let reply = world.ask(Request::StartJob(spec.clone()));
        assert_eq!(reply, Reply::Failed(expected), "{spec:?}");
    };
    check(copy("k", &[]), ErrorCode::InvalidParams);
    check(copy("k", &["9"]), ErrorCode::SegmentNotFound);
    check(copy("x", &["2"]), ErrorCode::ObjectNotFound);
    check(shift("k", None, "1"), ErrorCode::ReplicaNotInLocalMemory);
    check(
        shift("k", Some("2"), "3"),
        ErrorCode::ReplicaNotInLocalMemory,
    );
    check(drain(&[], &[]), ErrorCode::SegmentNotFound);
    check(drain(&["1", "9"], &[]), ErrorCode::SegmentNotFound);
    check(drain(&["1"], &["1"]), ErrorCode::InvalidParams);
    let unknown = Request::QueryJob { job: JobId(77) };
    assert_eq!(world.ask(unknown), Reply::Failed(ErrorCode::JobNotFound));
    let there = world.begin(copy("k", &["1"]));
    let state = world.job(there);
    assert_eq!(state.status, JobStatus::Failed);
    assert_eq!(state.errors, [(key("k"), ErrorCode::ReplicaAlreadyExists)]);
    world.begin(drain(&["3"], &[]));
    let drained = Request::StartJob(copy("k", &["3"]));
    let expected = Reply::Failed(ErrorCode::UnavailableInCurrentStatus);
    assert_eq!(world.ask(drained), expected);
}

#[test]
fn a_drain_empties_a_segment_which_takes_nothing_new() {
    let mut world = three(4 * MIB);
    for name in 0..30 {
        world.put_at(&format!("k{name}"), BLOCK, "segment-1");
    }
    let hard = PutConfig {
        preferred: vec!["segment-1".into()],
        pin: Pin::Hard,
        ..PutConfig::default()
    };
    world.put_with("pinned", BLOCK, hard);
    let two = PutConfig {
        replicas: 2,
        preferred: vec!["segment-1".into(), "segment-20".into()],
        ..PutConfig::default()
    };
    world.put_with("two", BLOCK, two);
    let job = world.begin(drain(&["1"], &["3"]));
    assert_eq!(world.copies.len(), 4, "as many at a time as usual");
    world.put_at("late", BLOCK, "segment-1");
    assert_ne!(world.nodes_of("late"), [1]);
    assert_eq!(world.carry_all(), 31, "one was elsewhere already");
    for name in 0..30 {
        assert_eq!(world.nodes_of(&format!("k{name}")), [3]);
    }
    assert_eq!(
        (world.nodes_of("pinned"), world.nodes_of("two")),
        (vec![3], vec![2])
    );
    let state = world.job(job);
    let ended = (state.status, state.done, state.failed, state.left_bytes);
    assert_eq!(ended, (JobStatus::Succeeded, 31, 0, 0));
    let segments = world.master.segments();
    let first = segments.iter().find(|it| it.segment == MEMORY).unwrap();
    assert_eq!((first.used_bytes, first.draining), (0, Draining::Done));
    world.ask(Request::CancelJob { job });
    world.put_at("again", BLOCK, "segment-1");
    assert_eq!(world.nodes_of("again"), [1], "it takes new values again");
}

/// A value that was being written when the drain looked at it was left behind.
#[test]
fn a_drain_waits_for_what_is_being_written() {
    let mut world = three(MIB);
    let config = PutConfig {
        preferred: vec!["segment-1".into()],
        ..PutConfig::default()
    };
    let PutStarted::Granted { version, .. } = world.start("k", BLOCK, config.clone()) else {
        panic!("there is room");
    };
    let PutStarted::Granted { .. } = world.start("given up", BLOCK, config) else {
        panic!("there is room");
    };
    let job = world.begin(drain(&["1"], &[]));
    assert_eq!(world.job(job).status, JobStatus::Running);
    world.end(ME, "k", version);
    assert_eq!(world.carry_all(), 1);
    assert_eq!(world.nodes_of("k").len(), 1);
    assert_ne!(world.nodes_of("k"), [1]);
    assert_eq!(world.job(job).status, JobStatus::Running);
    world.input(Input::ClientLost(ME));
    assert_eq!(world.job(job).status, JobStatus::Succeeded);
}

#[test]
fn a_leased_object_is_published_elsewhere_before_it_leaves() {
    let mut world = three(MIB);
    world.put_at("k", BLOCK, "segment-1");
    assert!(
        matches!(world.get("k"), Lookup::Found(_)),
        "which leases it"
    );
    world.begin(drain(&["1"], &[]));
    assert_eq!(world.nodes_of("k"), [1]);
    world.carry_all();
    assert_ne!(world.nodes_of("k"), [1]);
    assert_eq!(world.nodes_of("k").len(), 1);
}

/// A value that was removed, or replaced, while it was being carried came back with the copy.
#[test]
fn what_is_removed_or_replaced_meanwhile_does_not_come_back() {
    for replaced in [false, true] {
        for reopened in [false, true] {
            let mut world = three(MIB);
            let version = world.put_at("k", BLOCK, "segment-1");
            let job = world.begin(copy("k", &["2"]));
            let remove = Request::Remove(Remove {
                tenant: Tenant::DEFAULT,
                keys: vec![key("k")],
                force: true,
            });
            let upsert = PutConfig {
                mode: PutMode::Upsert,
                preferred: vec!["segment-30".into()],
                ..PutConfig::default()
            };
            if reopened {
                // Its only replica is gone while it is put anew.
                let source = world.copies[0].1.source;
                world.start("k", BLOCK, upsert.clone());
                world.ask(Request::Suspect {
                    tenant: Tenant::DEFAULT,
                    key: key("k"),
                    version,
                    at: source,
                });
            } else {
                assert_eq!(world.ask(remove), Reply::Each(vec![Ok(())]));
            }
            if replaced {
                world.put_with("k", 2 * BLOCK, upsert);
            }
            let before = world.nodes_of("k");
            world.copied(Ok(()));
            assert_eq!(world.nodes_of("k"), before, "{replaced} {reopened}");
            let state = world.job(job);
            assert_eq!((state.status, state.done), (JobStatus::Failed, 0));
            assert_eq!(state.errors, [(key("k"), ErrorCode::ObjectNotFound)]);
        }
    }
}

#[test]
fn a_copy_is_tried_three_times_and_its_room_comes_back() {
    let mut world = three(MIB);
    world.put_at("k", BLOCK, "segment-1");
    let before = world.master.books();
    let job = world.begin(copy("k", &["2"]));
    for attempt in 1..=3 {
        assert_eq!(world.job(job).status, JobStatus::Running, "{attempt}");
        world.copied(Err(ErrorCode::TransferFail));
        assert!(world.copies.is_empty(), "not at once");
        world.pass(Duration::from_secs(1));
    }
    let state = world.job(job);
    assert_eq!(state.status, JobStatus::Failed);
    assert_eq!(state.errors, [(key("k"), ErrorCode::TransferFail)]);
    assert_eq!(world.master.books().segments, before.segments);
    // An answer that never comes is as good as a failure; a late one changes nothing.
    let job = world.begin(copy("k", &["2"]));
    let (_, late) = world.copies.pop_front().unwrap();
    world.pass(Duration::from_secs(70));
    let ticket = late.ticket;
    world.input(Input::Copied {
        ticket,
        result: Ok(()),
    });
    world.carry_all();
    assert_eq!(world.nodes_of("k"), [1, 2]);
    assert_eq!(world.job(job).status, JobStatus::Succeeded);
}

#[test]
fn without_room_elsewhere_nothing_is_lost() {
    let mut world = World::memory(plain(), MIB);
    world.mount(SECOND, SegmentId(20), SegmentKind::Memory, 3 * BLOCK);
    for name in ["a", "b", "c"] {
        world.put_at(name, BLOCK, "segment-1");
    }
    let job = world.begin(drain(&["1"], &[]));
    world.carry_all();
    for _ in 0..3 {
        world.pass(Duration::from_secs(1));
        world.carry_all();
    }
    let state = world.job(job);
    let ended = (state.status, state.done, state.failed, state.left_bytes);
    assert_eq!(ended, (JobStatus::Failed, 2, 1, BLOCK));
    assert_eq!(state.errors.len(), 1);
    assert_eq!(state.errors[0].1, ErrorCode::NoAvailableHandle);
    assert_eq!(world.master.books().objects, 3);
    world.mount(THIRD, SegmentId(30), SegmentKind::Memory, MIB);
    let job = world.begin(drain(&["1"], &[]));
    let busy = world.ask(Request::StartJob(drain(&["1"], &[])));
    assert_eq!(busy, Reply::Failed(ErrorCode::UnavailableInCurrentStatus));
    world.carry_all();
    assert_eq!(world.job(job).status, JobStatus::Succeeded);
}

#[test]
fn a_node_or_segment_that_goes_away_ends_what_is_carried() {
    for lost in [NODE, SECOND] {
        let mut world = three(MIB);
        world.put_at("k", BLOCK, "segment-1");
        let job = world.begin(copy("k", &["2"]));
        world.input(Input::NodeLost(lost));
        world.pass(Duration::from_secs(1));
        let state = world.job(job);
        assert_eq!((state.status, state.active), (JobStatus::Failed, 0));
        world.copied(Ok(()));
        let left = if lost == NODE { vec![] } else { vec![1] };
        assert_eq!(world.nodes_of("k"), left);
    }
}

#[test]
fn jobs_keep_their_rate_their_number_and_their_time() {
    let mut world = three(8 * MIB);
    for name in 0..20 {
        world.put_at(&format!("k{name}"), BLOCK, "segment-1");
    }
    let slow = JobSpec {
        concurrency: 2,
        bytes_per_second: Some(BLOCK),
        time: Some(Duration::from_secs(5)),
        ..drain(&["1"], &[])
    };
    let job = world.begin(slow);
    assert!(world.copies.len() <= 2);
    let mut carried = 0;
    for _ in 0..40 {
        carried += world.carry_all();
        world.pass(Duration::from_millis(100));
    }
    assert!((3..=6).contains(&carried), "{carried} in four seconds");
    assert_eq!(world.job(job).status, JobStatus::Running);
    let waits = world.send(OTHER, Request::AwaitJob { job });
    assert_eq!(world.reply(waits), None);
    world.pass(Duration::from_secs(2));
    let Some(Reply::Job(state)) = world.reply(waits) else {
        panic!("it is over");
    };
    assert_eq!(state.status, JobStatus::Failed);
    world.carry_all();
    assert!(world.job(job).left_bytes > 0);
    let Reply::Jobs(all) = world.ask(Request::Jobs) else {
        panic!("a list of jobs");
    };
    assert_eq!(all.len(), 1);
}

#[test]
fn a_cancelled_job_begins_nothing_more() {
    let mut world = three(4 * MIB);
    for name in 0..20 {
        world.put_at(&format!("k{name}"), BLOCK, "segment-1");
    }
    let job = world.begin(drain(&["1"], &[]));
    let Reply::Job(state) = world.ask(Request::CancelJob { job }) else {
        panic!("it is there");
    };
    assert_eq!((state.status, state.active), (JobStatus::Cancelled, 4));
    assert_eq!(world.carry_all(), 4);
    let state = world.job(job);
    assert_eq!(
        (state.status, state.done, state.active),
        (JobStatus::Cancelled, 4, 0)
    );
    let segments = world.master.segments();
    assert!(segments.iter().all(|it| it.draining == Draining::No));
}

/// What is on SSD only is carried into the memory of another node, and the record stays.
#[test]
fn a_drain_carries_records_too() {
    let config = MasterConfig {
        offload: slackwater_meta::Offload {
            mode: OffloadMode::Eager,
            ..plain().offload
        },
        ..plain()
    };
    let mut world = World::tiers(config, MIB, 16 * MIB);
    let entry = DiskEntry {
        tenant: Tenant::DEFAULT,
        key: key("old"),
        version: Version(5),
    };
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries: vec![ReportedEntry {
                entry,
                bytes: BLOCK,
                checksum: slackwater_base::Checksum(5),
            }],
        },
    );
    world.mount(SECOND, SegmentId(20), SegmentKind::Memory, MIB);
    let job = world.begin(drain(&["1"], &[]));
    let task = world.copied(Ok(()));
    assert!(matches!(task.source, ReplicaAt::Disk { node: NODE, .. }));
    assert_eq!(world.nodes_of("old"), [1, 2]);
    assert_eq!(world.job(job).status, JobStatus::Succeeded);
}

/// A node that was not told of a copy did not say that it holds it when its master came back.
#[test]
fn the_node_of_a_copy_is_told_what_it_holds() {
    let mut world = World::memory(plain(), MIB);
    let mount = Mount {
        segment: SegmentId(20),
        name: "segment-20".to_owned(),
        node: SECOND,
        incarnation: Incarnation(1),
        kind: SegmentKind::Memory,
        bytes: MIB,
        host: String::new(),
        generations: Some(1),
    };
    assert_eq!(world.ask(Request::Mount(mount)), Reply::Done);
    let segment = SegmentId(20);
    let highest = Version(0);
    world.report(SECOND, Report::Announced { segment, highest });
    world.put_at("k", BLOCK, "segment-1");
    world.begin(copy("k", &["2"]));
    let target = world.copied(Ok(())).target;
    let told = world.orders.iter().find_map(|(node, order)| match order {
        Order::Published(entries) if *node == SECOND => entries.first().cloned(),
        _ => None,
    });
    let told = told.expect("the node is told");
    assert_eq!((told.extent, told.entry.key), (target, key("k")));
}

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
        if back {
            world.input(Input::NodeBack(NODE));
        }
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
    let twice = world.begin(copy("k", &["2", "2"]));
    let again = world.begin(copy("k", &["2"]));
    assert_eq!(world.carry_all(), 1);
    assert_eq!(world.nodes_of("k"), [1, 2]);
    for job in [twice, again] {
        let state = world.job(job);
        assert_eq!(state.status, JobStatus::Failed);
        assert_eq!(state.errors, [(key("k"), ErrorCode::ReplicaAlreadyExists)]);
    }
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
