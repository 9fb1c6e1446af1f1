//! How many jobs there may be, and what they may name.

use super::*;

fn listed(world: &mut World) -> Vec<JobId> {
    match world.ask(Request::Jobs) {
        Reply::Jobs(jobs) => jobs.iter().map(|job| job.job).collect(),
        other => panic!("{other:?}"),
    }
}

/// Copies, which any client may begin, and drains shared all places: a client that began enough of them kept the operator from
/// draining a node.
#[test]
fn copies_leave_room_for_drains() {
    let mut world = three(16 * MIB);
    world.checks = false;
    for name in 0..1024 {
        world.put_at(&format!("k{name}"), 4096, "segment-1");
        world.begin(copy(&format!("k{name}"), &["2"]));
    }
    world.put_at("more", 4096, "segment-1");
    let more = world.ask(Request::StartJob(copy("more", &["2"])));
    assert_eq!(
        more,
        Reply::Failed(ErrorCode::TaskPendingLimitExceeded),
        "of copies"
    );
    world.put_at("k", BLOCK, "segment-30");
    let before = world.copies.len();
    let job = world.begin(drain(&["3"], &["2"]));
    assert_eq!(world.copies.len(), before + 1, "it does not wait for them");
    assert_eq!(before, 192);
    let last = world.copies.pop_back().expect("it was ordered last");
    world.copies.push_front(last);
    world.copied(Ok(()));
    assert_eq!(world.job(job).status, JobStatus::Succeeded);
}

/// What is remembered was one list for all: a client's copies that had ended pushed a drain out of it, and then nobody could end
/// what it had begun. The drain was not listed either.
#[test]
fn a_drain_is_remembered_whatever_clients_begin() {
    let mut world = three(MIB);
    world.checks = false;
    world.put_at("k", BLOCK, "segment-1");
    let job = world.begin(drain(&["3"], &[]));
    let copies: Vec<JobId> = (0..1030).map(|_| world.begin(copy("k", &["1"]))).collect();
    assert_eq!(world.job(job).status, JobStatus::Succeeded);
    let first = Request::QueryJob { job: copies[5] };
    assert_eq!(world.ask(first), Reply::Failed(ErrorCode::JobNotFound));
    world.job(copies[6]);
    let mut expected = vec![job];
    expected.extend(&copies[1030 - 63..]);
    assert_eq!(listed(&mut world), expected);
    for _ in 0..100 {
        let next = world.begin(drain(&["3"], &[]));
        expected.push(next);
    }
    let of_drains = expected[expected.len() - 32..].iter();
    let latest: Vec<JobId> = copies[1030 - 32..]
        .iter()
        .chain(of_drains)
        .copied()
        .collect();
    assert_eq!(listed(&mut world), latest, "half of them");
}

/// A job that ran long enough was forgotten at its end: it was the oldest of those that were over.
#[test]
fn of_jobs_that_are_over_those_that_ended_last_are_remembered() {
    let mut world = three(MIB);
    world.checks = false;
    world.put_at("k", BLOCK, "segment-1");
    let long = world.begin(copy("k", &["2"]));
    for _ in 0..1030 {
        world.begin(copy("k", &["1"]));
    }
    world.pass(seconds(1));
    world.carry_all();
    assert_eq!(world.job(long).status, JobStatus::Succeeded);
}

/// A job could name any number of targets, each of which was looked for among all segments under the master's lock; and the same
/// one twice, which failed.
#[test]
fn a_job_names_a_limited_number_of_places_and_each_counts_once() {
    let mut world = three(MIB);
    world.put_at("k", BLOCK, "segment-1");
    let mut check = |spec: JobSpec| {
        let reply = world.ask(Request::StartJob(spec));
        assert_eq!(reply, Reply::Failed(ErrorCode::InvalidParams));
    };
    let many = ["2"; 1025];
    check(copy("k", &many));
    check(drain(&many, &[]));
    check(drain(&["1"], &many));
    let job = world.begin(copy("k", &["3", "2", "segment-20", "3"]));
    let mut to = Vec::new();
    while !world.copies.is_empty() {
        to.push(world.copied(Ok(())).target.segment);
    }
    assert_eq!(to, [SegmentId(30), SegmentId(20)]);
    assert_eq!(world.job(job).status, JobStatus::Succeeded);
    let most = world.begin(copy("k", &many[..1024]));
    assert_eq!(world.job(most).failed, 1, "it is there already");
}
