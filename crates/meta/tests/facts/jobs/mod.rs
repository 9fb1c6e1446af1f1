//! Copies, moves and drains: what they carry, what they leave, and what ends them.

mod again;
mod kept;
mod review;
mod room;

use std::time::Duration;

use slackwater_meta::{Input, MasterConfig, OffloadMode};
use slackwater_wire::*;

use crate::world::*;

pub(crate) const SECOND: NodeId = NodeId(2);
pub(crate) const THIRD: NodeId = NodeId(3);

/// Memory of the nodes 1 to 3, each so large.
pub(crate) fn three(bytes: u64) -> World {
    three_with(plain(), bytes)
}

pub(crate) fn three_with(config: MasterConfig, bytes: u64) -> World {
    let mut world = World::memory(config, bytes);
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

pub(crate) fn copy(name: &str, targets: &[&str]) -> JobSpec {
    spec(JobWork::Copy {
        tenant: Tenant::DEFAULT,
        key: key(name),
        targets: targets.iter().map(ToString::to_string).collect(),
    })
}

pub(crate) fn shift(name: &str, source: Option<&str>, target: &str) -> JobSpec {
    spec(JobWork::Move {
        tenant: Tenant::DEFAULT,
        key: key(name),
        source: source.map(ToOwned::to_owned),
        target: target.to_owned(),
    })
}

pub(crate) fn drain(places: &[&str], targets: &[&str]) -> JobSpec {
    let all = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    spec(JobWork::Drain {
        places: all(places),
        targets: all(targets),
        disks: true,
    })
}

impl World {
    pub(crate) fn begin(&mut self, spec: JobSpec) -> JobId {
        match self.ask(Request::StartJob(spec)) {
            Reply::Job(state) => state.job,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn job(&mut self, job: JobId) -> JobState {
        match self.ask(Request::QueryJob { job }) {
            Reply::Job(state) => *state,
            other => panic!("{other:?}"),
        }
    }

    /// The next copy that was ordered is made, or not.
    pub(crate) fn copied(&mut self, result: Result<(), ErrorCode>) -> CopyTask {
        let (_, task) = self.copies.pop_front().expect("a copy was ordered");
        let ticket = task.ticket;
        self.input(Input::Copied { ticket, result });
        task
    }

    /// Makes every copy that is ordered, until there is none left.
    pub(crate) fn carry_all(&mut self) -> usize {
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

    pub(crate) fn nodes_of(&mut self, name: &str) -> Vec<u32> {
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

    pub(crate) fn put_at(&mut self, name: &str, bytes: u64, segment: &str) -> Version {
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
    world.pass(Duration::from_secs(3));
    let state = world.job(job);
    assert_eq!(
        (state.status, state.unchanged),
        (JobStatus::Running, state.age)
    );
    world.copied(Ok(()));
    assert_eq!(world.nodes_of("k"), [1, 2, 3]);
    let state = world.job(job);
    let ended = (state.status, state.done, state.done_bytes, state.active);
    assert_eq!(ended, (JobStatus::Succeeded, 2, 2 * BLOCK, 0));
    world.pass(Duration::from_secs(2));
    let state = world.job(job);
    let (age, unchanged) = (Duration::from_secs(5), Duration::from_secs(2));
    assert_eq!((state.age, state.unchanged), (age, unchanged));
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
    let carried = |world: &World| {
        let metrics = world.master.metrics();
        (metrics.values_copied, metrics.copied_bytes)
    };
    assert_eq!(carried(&world), (3, 3 * BLOCK));
    world.begin(copy("m", &["1"]));
    world.copied(Err(ErrorCode::TransferFail));
    assert_eq!(carried(&world), (3, 3 * BLOCK), "it did not come");
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
    check(shift("k", Some("nowhere"), "2"), ErrorCode::SegmentNotFound);
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

/// Who cancelled a job that was over, or one that was cancelled before, was told that it was done.
#[test]
fn a_job_that_is_over_is_cancelled_only_where_that_gives_something_back() {
    let over = Reply::Failed(ErrorCode::UnavailableInCurrentStatus);
    let mut world = three(4 * MIB);
    world.put_at("k", BLOCK, "segment-1");
    let cancel = |world: &mut World, job| world.ask(Request::CancelJob { job });
    let copied = world.begin(copy("k", &["2"]));
    assert_eq!(world.carry_all(), 1);
    assert_eq!(world.job(copied).status, JobStatus::Succeeded);
    assert_eq!(cancel(&mut world, copied), over);
    assert_eq!(world.job(copied).status, JobStatus::Succeeded);
    // A drain that is over goes on to keep new values away, until it is cancelled.
    let drained = world.begin(drain(&["1"], &[]));
    world.carry_all();
    assert_eq!(world.job(drained).status, JobStatus::Succeeded);
    assert!(matches!(cancel(&mut world, drained), Reply::Job(_)));
    assert_eq!(cancel(&mut world, drained), over);
    let running = world.begin(drain(&["2"], &[]));
    assert!(matches!(cancel(&mut world, running), Reply::Job(_)));
    assert_eq!(cancel(&mut world, running), over);
    let unknown = Reply::Failed(ErrorCode::JobNotFound);
    assert_eq!(cancel(&mut world, JobId(12_345)), unknown);
}

/// A node with memory and an SSD, on which alone there is a value `old`.
fn with_a_record() -> World {
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
    world
}

/// What is brought from a node's own SSD has not come from another one.
#[test]
fn a_copy_within_a_node_is_none_between_nodes() {
    let mut world = with_a_record();
    world.begin(copy("old", &["1"]));
    let task = world.copied(Ok(()));
    assert!(matches!(task.source, ReplicaAt::Disk { node: NODE, .. }));
    assert_eq!(world.nodes_of("old"), [1, 1]);
    assert_eq!(world.master.metrics().values_copied, 0);
}

/// What is on SSD only is carried into the memory of another node, and the record stays.
#[test]
fn a_drain_carries_records_too() {
    let mut world = with_a_record();
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
        watermarks: None,
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
