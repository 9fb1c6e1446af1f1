//! Jobs that outlive their master.

use std::collections::BTreeMap;
use std::time::Duration;

use slackwater_meta::{Absence, Journaled, MasterConfig};
use slackwater_wire::*;

use super::*;

/// A master with a journal, and three nodes that live on without it.
pub(super) struct Pool {
    pub(super) world: World,
    journal: Journaled,
    /// What nodes were told that they hold.
    told: Vec<Published>,
    /// The lives of the nodes.
    lives: BTreeMap<NodeId, u64>,
    restarts: u64,
}

impl Pool {
    pub(super) fn new() -> Self {
        let lives = [NODE, SECOND, THIRD].map(|node| (node, 1));
        let mut pool = Self {
            world: World::new(config()),
            journal: Journaled::default(),
            told: Vec::new(),
            lives: lives.into(),
            restarts: 0,
        };
        pool.begin_master(Journaled::default());
        pool.mount_all();
        pool.announce_all(&[]);
        pool
    }

    fn begin_master(&mut self, journal: Journaled) {
        let now = self.world.now;
        self.world = World::new(config());
        self.world.now = now;
        self.world.master.restore(now, journal);
    }

    fn mount_all(&mut self) {
        for (node, life) in self.lives.clone() {
            let mount = Mount {
                segment: segment_of(node),
                name: format!("segment-{}", segment_of(node)),
                node,
                incarnation: Incarnation(life),
                kind: SegmentKind::Memory,
                bytes: MIB,
                host: String::new(),
                generations: Some(self.restarts << 20),
                watermarks: None,
            };
            assert_eq!(self.world.ask(Request::Mount(mount)), Reply::Done);
        }
    }

    pub(super) fn announce_all(&mut self, held: &[Published]) {
        for (node, life) in self.lives.clone() {
            let segment = segment_of(node);
            let of_it = |it: &&Published| {
                let extent = it.extent;
                (extent.segment, extent.incarnation) == (segment, Incarnation(life))
            };
            let entries: Vec<Published> = held.iter().filter(of_it).cloned().collect();
            self.world.report(
                node,
                Report::Holds {
                    segment,
                    entries,
                    ahead: false,
                },
            );
            let highest = Version(0);
            self.world
                .report(node, Report::Announced { segment, highest });
        }
    }

    /// What the master noted is durable.
    pub(super) fn keep(&mut self) {
        let notes = self.world.master.take_notes();
        notes.iter().for_each(|note| self.journal.apply(note));
    }

    /// What the nodes hold now.
    fn held(&mut self) -> Vec<Published> {
        let told = self.world.taken(|order| match order {
            Order::Published(entries) => Some(entries.clone()),
            _ => None,
        });
        self.told.extend(told.concat());
        let mut held = self.told.clone();
        held.retain(|it| {
            let Reply::Describe(found) = self.world.ask(Request::Describe {
                tenant: Tenant::DEFAULT,
                key: it.entry.key.clone(),
            }) else {
                return false;
            };
            let mut at = found.replicas.iter().map(|(at, ..)| at);
            at.any(|at| *at == ReplicaAt::Memory(it.extent))
        });
        held.sort_by_key(|it| (it.extent.segment, it.extent.offset));
        held
    }

    /// The master dies, with what it noted since the last time or without. Its nodes have yet to announce this.
    pub(super) fn restart(&mut self) -> Vec<Published> {
        let held = self.held();
        self.restarts += 1;
        self.begin_master(self.journal.clone());
        self.mount_all();
        held
    }

    pub(super) fn draining(&self) -> Draining {
        let segments = self.world.master.segments();
        let first = segments.iter().find(|it| it.node == NODE);
        first.expect("mounted").draining
    }

    pub(super) fn put_all(&mut self, names: std::ops::Range<u32>) {
        names.for_each(|at| _ = self.world.put_at(&format!("k{at}"), BLOCK, "segment-1"));
    }
}

fn config() -> MasterConfig {
    MasterConfig {
        granule: BLOCK,
        absence: Absence {
            restart_wait: Duration::ZERO,
            ..plain().absence
        },
        ..plain()
    }
}

fn segment_of(node: NodeId) -> SegmentId {
    match node {
        NODE => MEMORY,
        other => SegmentId(other.0 * 10),
    }
}

/// A master was started again in the middle of a drain. The drain was forgotten, its number unknown, and new values were
/// placed on the node that was to be empty.
#[test]
fn a_drain_goes_on_after_a_restart_of_its_master() {
    let mut pool = Pool::new();
    pool.put_all(0..8);
    let job = pool.world.begin(drain(&["1"], &["3"]));
    for _ in 0..3 {
        pool.world.copied(Ok(()));
    }
    pool.keep();
    let held = pool.restart();
    assert_eq!(pool.world.job(job).status, JobStatus::Running);
    assert_eq!(pool.draining(), Draining::Running, "from the beginning on");
    assert!(pool.world.copies.is_empty(), "not all is announced");
    pool.announce_all(&held);
    pool.world.put_at("late", BLOCK, "segment-1");
    assert_ne!(pool.world.nodes_of("late"), [1]);
    assert_eq!(pool.world.carry_all(), 5, "three were carried before");
    (0..8).for_each(|at| assert_eq!(pool.world.nodes_of(&format!("k{at}")), [3]));
    let state = pool.world.job(job);
    let ended = (state.status, state.failed, state.left_bytes);
    assert_eq!(ended, (JobStatus::Succeeded, 0, 0));
    for cancelled in [false, true] {
        if cancelled {
            pool.world.ask(Request::CancelJob { job });
        }
        pool.keep();
        let held = pool.restart();
        pool.announce_all(&held);
        let expected = match cancelled {
            false => Draining::Done,
            true => Draining::No,
        };
        assert_eq!(pool.draining(), expected);
        assert_eq!(pool.world.job(job).status, JobStatus::Succeeded);
    }
}

#[test]
fn a_drain_is_over_with_the_life_of_its_node() {
    let mut pool = Pool::new();
    pool.put_all(0..2);
    let job = pool.world.begin(drain(&["1"], &["3"]));
    pool.keep();
    pool.lives.insert(NODE, 2);
    let held = pool.restart();
    assert_eq!(pool.draining(), Draining::No);
    pool.announce_all(&held);
    assert_eq!(pool.world.job(job).status, JobStatus::Failed);
}

/// Of a copy to two places one was made when the master died. The next one made it again, or counted it as failed.
#[test]
fn copies_and_moves_go_on_where_they_were() {
    let check = |spec: JobSpec, carried: usize, lost: bool, left: usize, at: &[u32]| {
        let mut pool = Pool::new();
        pool.world.put_at("k", BLOCK, "segment-1");
        let job = pool.world.begin(spec.clone());
        pool.keep();
        for _ in 0..carried {
            pool.world.copied(Ok(()));
        }
        if !lost {
            pool.keep();
        }
        let held = pool.restart();
        pool.announce_all(&held);
        assert_eq!(pool.world.carry_all(), left, "{spec:?}");
        assert_eq!(pool.world.nodes_of("k"), at, "{spec:?}");
        let state = pool.world.job(job);
        assert_eq!((state.status, state.failed), (JobStatus::Succeeded, 0));
        assert_eq!(state.spec, spec);
    };
    check(copy("k", &["2", "3"]), 0, false, 2, &[1, 2, 3]);
    check(copy("k", &["2", "3"]), 1, false, 1, &[1, 2, 3]);
    check(copy("k", &["2", "3"]), 2, true, 0, &[1, 2, 3]);
    check(shift("k", None, "3"), 0, false, 1, &[3]);
    check(shift("k", None, "3"), 1, false, 0, &[3]);
    check(shift("k", None, "3"), 1, true, 0, &[3]);
}

/// The old replica of a value that moved was announced once more, and stayed.
#[test]
fn a_move_ends_when_both_replicas_are_announced() {
    let mut pool = Pool::new();
    pool.world.put_at("k", BLOCK, "segment-1");
    let before = pool.held();
    let job = pool.world.begin(shift("k", None, "3"));
    pool.keep();
    pool.world.copied(Ok(()));
    let mut held = pool.restart();
    held.splice(0..0, before);
    pool.announce_all(&held);
    assert_eq!(pool.world.nodes_of("k"), [3]);
    assert_eq!(pool.world.job(job).status, JobStatus::Succeeded);
}

#[test]
fn what_cannot_go_on_says_why() {
    let mut pool = Pool::new();
    pool.world.put_at("k", BLOCK, "segment-1");
    let timed = JobSpec {
        time: Some(Duration::from_secs(5)),
        ..copy("k", &["2"])
    };
    let gone = pool.world.begin(copy("k", &["3"]));
    let late = pool.world.begin(timed);
    pool.keep();
    pool.restart();
    pool.world.pass(Duration::from_secs(6));
    assert_eq!(pool.world.job(late).status, JobStatus::Failed);
    assert_eq!(pool.world.job(gone).status, JobStatus::Running);
    // Its node has lost it.
    pool.announce_all(&[]);
    let state = pool.world.job(gone);
    assert_eq!(state.status, JobStatus::Failed);
    assert_eq!(state.errors, [(key("k"), ErrorCode::ObjectNotFound)]);
}

/// A node did not come back with the others. Jobs waited for it for ever, though it had been given up.
#[test]
fn jobs_wait_for_a_node_until_it_is_given_up() {
    let mut pool = Pool::new();
    pool.world.put_at("k", BLOCK, "segment-1");
    let job = pool.world.begin(copy("k", &["2"]));
    pool.keep();
    pool.lives.remove(&THIRD);
    let held = pool.restart();
    pool.announce_all(&held);
    assert!(pool.world.copies.is_empty());
    pool.world.pass(plain().absence.given_up_after);
    assert_eq!(pool.world.carry_all(), 1);
    assert_eq!(pool.world.job(job).status, JobStatus::Succeeded);
}

#[test]
fn of_jobs_that_are_over_only_the_last_are_kept() {
    let mut pool = Pool::new();
    pool.world.put_at("k", BLOCK, "segment-1");
    pool.world.checks = false;
    let jobs: Vec<JobId> = (0..1030)
        .map(|_| pool.world.begin(copy("k", &["1"])))
        .collect();
    pool.keep();
    assert_eq!(pool.journal.jobs.len(), 1024);
    pool.restart();
    let unknown = pool.world.ask(Request::QueryJob { job: jobs[5] });
    assert_eq!(unknown, Reply::Failed(ErrorCode::JobNotFound));
    assert_eq!(pool.world.job(jobs[6]).status, JobStatus::Failed);
    let next = pool.world.begin(drain(&["2"], &[]));
    assert!(next > jobs[1029], "{next:?}");
}

/// A drain of two nodes was planned again without the one that was away for long. It said that it had succeeded, and the other came
/// back as drained, and full.
#[test]
fn a_drain_that_misses_a_node_after_a_restart_does_not_succeed() {
    let mut pool = Pool::new();
    pool.put_all(0..4);
    pool.world.put_at("far", BLOCK, "segment-20");
    let job = pool.world.begin(drain(&["1", "2"], &["3"]));
    pool.keep();
    let life = pool.lives.remove(&SECOND).expect("it lives");
    let held = pool.restart();
    pool.announce_all(&held);
    let absence = MasterConfig::DEFAULT.absence;
    pool.world
        .pass(absence.hidden_after + absence.given_up_after);
    pool.world.carry_all();
    let state = pool.world.job(job);
    assert_eq!((state.status, state.failed), (JobStatus::Failed, 1));
    assert_eq!(state.errors[0].1, ErrorCode::SegmentNotFound);
    assert_eq!(pool.world.nodes_of("k0"), [3]);
    pool.lives = BTreeMap::from([(SECOND, life)]);
    pool.mount_all();
    let segments = pool.world.master.segments();
    let second = segments.iter().find(|it| it.node == SECOND);
    assert_eq!(second.map(|it| it.draining), Some(Draining::Running));
}
