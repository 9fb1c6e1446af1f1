//! Segments that come back in the life of their node after a drain of them, and drains that follow one another.

use super::kept::Pool;
use super::review::{mount_again, mount_untold, three_that_outlive};
use super::*;

impl World {
    fn draining(&self, node: NodeId) -> Draining {
        let segments = self.master.segments();
        let found = segments.iter().find(|it| it.node == node);
        found.expect("mounted").draining
    }

    /// What nodes were told that they hold.
    fn told(&mut self) -> Vec<Published> {
        let told = self.taken(|order| match order {
            Order::Published(entries) => Some(entries.clone()),
            _ => None,
        });
        told.concat()
    }
}

/// A node was given up in the middle of its drain, and what it held was elsewhere too. The drain was a success; the node came back
/// in the same life, as drained, and full.
#[test]
fn a_drain_whose_node_is_gone_is_no_success() {
    let mut world = three_that_outlive();
    world.put_at("k", BLOCK, "segment-30");
    world.begin(copy("k", &["1"]));
    world.carry_all();
    let mut told = world.told();
    told.retain(|it| it.extent.segment == SegmentId(30));
    world.input(Input::NodeLost(THIRD));
    mount_untold(&mut world, THIRD, 1, &told);
    let job = world.begin(drain(&["3"], &["2"]));
    assert_eq!(world.job(job).status, JobStatus::Running);
    world.input(Input::NodeLost(THIRD));
    world.pass(seconds(1));
    let state = world.job(job);
    assert_eq!((state.status, state.failed), (JobStatus::Failed, 1));
    let missing = (key("segment 30"), ErrorCode::SegmentNotFound);
    assert_eq!(state.errors, [missing]);
    mount_again(&mut world, THIRD, 1, &told);
    assert_eq!(world.draining(THIRD), Draining::Running);
    assert_eq!(world.nodes_of("k"), [1, 3]);
    let again = world.begin(drain(&["3"], &["2"]));
    assert_eq!(world.job(again).status, JobStatus::Succeeded);
    assert_eq!(world.nodes_of("k"), [1]);
}

/// A node was drained, and did not hear of it before it was given up. It came back with everything, and passed for drained: what
/// only it had by then went with it.
#[test]
fn what_comes_back_with_a_drained_node_is_drained_again() {
    let check = |elsewhere: bool, expected: &[u32]| {
        let mut world = three_that_outlive();
        world.put_at("k", BLOCK, "segment-30");
        let told = world.told();
        let job = world.begin(drain(&["3"], &["1"]));
        world.carry_all();
        assert_eq!(world.job(job).status, JobStatus::Succeeded);
        assert_eq!(world.draining(THIRD), Draining::Done);
        world.input(Input::NodeLost(THIRD));
        if !elsewhere {
            world.input(Input::NodeLost(NODE));
        }
        mount_untold(&mut world, THIRD, 1, &told);
        world.pass(seconds(1));
        assert_eq!(world.draining(THIRD), Draining::Running, "not told yet");
        let highest = Version(0);
        let segment = SegmentId(30);
        world.report(THIRD, Report::Announced { segment, highest });
        world.carry_all();
        assert_eq!(world.nodes_of("k"), expected);
        assert_eq!(world.draining(THIRD), Draining::Done);
        let Reply::Jobs(jobs) = world.ask(Request::Jobs) else {
            panic!("jobs are listed");
        };
        let over = jobs.iter().map(|it| (it.status, it.left_bytes));
        let succeeded = (JobStatus::Succeeded, 0);
        assert_eq!(over.collect::<Vec<_>>(), [succeeded, succeeded]);
    };
    check(true, &[1]);
    // Where it went before is gone too.
    check(false, &[2]);
}

/// A node without anything came back after its drain: nothing is to be done, and nothing new comes to it.
#[test]
fn a_drained_node_that_comes_back_empty_is_drained() {
    let mut world = three_that_outlive();
    let job = world.begin(drain(&["3"], &[]));
    assert_eq!(world.job(job).status, JobStatus::Succeeded);
    world.input(Input::NodeLost(THIRD));
    mount_again(&mut world, THIRD, 1, &[]);
    assert_eq!(world.draining(THIRD), Draining::Done);
    assert_eq!(world.master.job_states(world.now, 9).len(), 1);
    world.ask(Request::CancelJob { job });
    assert_eq!(world.draining(THIRD), Draining::No);
    world.input(Input::NodeLost(THIRD));
    mount_again(&mut world, THIRD, 1, &[]);
    assert_eq!(world.draining(THIRD), Draining::No, "it was cancelled");
}

/// Of several drains of a segment any that had failed decided whether it takes new values when it is mounted again; and the end of the
/// first ended the second, too.
#[test]
fn the_last_drain_of_a_segment_decides() {
    let mut world = three_that_outlive();
    world.put_at("k", BLOCK, "segment-30");
    let first = world.begin(drain(&["3"], &["2"]));
    for _ in 0..3 {
        world.copied(Err(ErrorCode::TransferFail));
        world.pass(seconds(1));
    }
    assert_eq!(world.job(first).status, JobStatus::Failed);
    let second = world.begin(drain(&["3"], &["2"]));
    world.carry_all();
    assert_eq!(world.job(second).status, JobStatus::Succeeded);
    let back = |world: &mut World, expected| {
        world.input(Input::NodeLost(THIRD));
        mount_again(world, THIRD, 1, &[]);
        assert_eq!(world.draining(THIRD), expected);
    };
    back(&mut world, Draining::Done);
    world.ask(Request::CancelJob { job: first });
    assert_eq!(world.draining(THIRD), Draining::Done);
    world.ask(Request::CancelJob { job: second });
    assert_eq!(world.draining(THIRD), Draining::No);
    back(&mut world, Draining::No);
}

/// A drain that was over was cancelled, and forgot which life of its node it had emptied: what came to the next one counted as
/// left by it.
#[test]
fn a_cancelled_drain_knows_what_it_emptied() {
    let mut world = three_that_outlive();
    let job = world.begin(drain(&["3"], &[]));
    world.ask(Request::CancelJob { job });
    world.input(Input::NodeLost(THIRD));
    mount_again(&mut world, THIRD, 2, &[]);
    world.put_at("new", BLOCK, "segment-30");
    let state = world.job(job);
    assert_eq!((state.status, state.left_bytes), (JobStatus::Succeeded, 0));
}

/// As [`the_last_drain_of_a_segment_decides`], for the next master.
#[test]
fn the_last_drain_decides_after_a_restart() {
    let mut pool = Pool::new();
    pool.put_all(0..2);
    let first = pool.world.begin(drain(&["1"], &["2"]));
    for _ in 0..6 {
        pool.world.copied(Err(ErrorCode::TransferFail));
        pool.world.pass(seconds(1));
    }
    assert_eq!(pool.world.job(first).status, JobStatus::Failed);
    let second = pool.world.begin(drain(&["1"], &["3"]));
    pool.keep();
    let held = pool.restart();
    assert_eq!(pool.draining(), Draining::Running);
    pool.announce_all(&held);
    assert_eq!(pool.world.carry_all(), 2);
    assert_eq!(pool.draining(), Draining::Done);
    pool.keep();
    let held = pool.restart();
    assert_eq!(pool.draining(), Draining::Running, "not told yet");
    pool.announce_all(&held);
    assert_eq!(pool.draining(), Draining::Done);
    pool.world.ask(Request::CancelJob { job: second });
    pool.keep();
    pool.restart();
    assert_eq!(pool.draining(), Draining::No);
}
