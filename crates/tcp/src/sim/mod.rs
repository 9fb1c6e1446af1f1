//! The data plane on one thread, by seed: initiators, responders, their memory and their owner's orders, without sockets.
//!
//! Bytes are carried a few at a time between ends that may be cut apart or killed at any of them; extents are given
//! another use under late writers, keys are changed, capabilities expire. The protocol is the real one, and so is the code
//! that cuts bytes into frames and payload (`tcp::wire`); what is here is a shell for each end, a network, and checkers:
//! no byte outside what a valid capability allows, no completion without all bytes, each request ends exactly once,
//! nothing is left behind.

mod gate;
mod ledger;
mod run;
mod target;

use run::World;

/// A mistake of a shell that a checker must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// Extents are given another use without waiting for accesses under way.
    ReuseWithoutFence,
    /// A write counts without a second look at its right.
    CommitUnchecked,
    /// Capabilities do not expire at admission.
    ExpiryIgnored,
    /// Capabilities of an old key are admitted.
    RotationIgnored,
    /// A write that was begun on a connection that broke is begun again on another.
    BegunWritesAgain,
    /// The last byte of a piece of payload is reported as arrived and not placed.
    ByteNotPlaced,
    /// The end of a copy for a request that has ended is not reported.
    CopyNotReported,
    /// A device goes on copying for a request whose access has been released.
    CopyWithoutAccess,
    /// A task that ended is ended a second time when its connection breaks.
    EndedTwice,
    /// The tasks of a connection that broke are forgotten.
    TasksForgotten,
    /// The gate admits whatever names an extent in use, under any generation that the region has had.
    GenerationOfRegion,
    /// A fence ends the transfers at all extents of its region.
    NeighboursReleased,
    /// The gate is not told of the end of an access.
    EndNotTold,
}

const BUGS: [Bug; 13] = [
    Bug::ReuseWithoutFence,
    Bug::CommitUnchecked,
    Bug::ExpiryIgnored,
    Bug::RotationIgnored,
    Bug::BegunWritesAgain,
    Bug::ByteNotPlaced,
    Bug::CopyNotReported,
    Bug::CopyWithoutAccess,
    Bug::EndedTwice,
    Bug::TasksForgotten,
    Bug::GenerationOfRegion,
    Bug::NeighboursReleased,
    Bug::EndNotTold,
];

const SEEDS: u64 = 2000;

/// Runs one seed; returns what a checker found.
fn run(seed: u64, bug: Option<Bug>) -> Result<Met, String> {
    let mut world = World::new(seed, bug);
    let ran = world.run();
    ran.map(|()| world.met)
        .map_err(|found| format!("seed {seed}: {found}"))
}

/// How often each thing happened.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    completed: u64,
    refused: u64,
    cancelled: u64,
    late: u64,
    lost: u64,
    again: u64,
    cuts: u64,
    kills: u64,
    reuses: u64,
    /// Extents that were fenced under way, with transfers under way at others.
    fenced_beside: u64,
    rotations: u64,
    staged: u64,
}

#[test]
fn two_thousand_seeds_hold_and_meet_everything() {
    let mut all = Met::default();
    for seed in 0..SEEDS {
        let met = run(seed, None).unwrap_or_else(|found| panic!("{found}"));
        all.completed += met.completed;
        all.refused += met.refused;
        all.cancelled += met.cancelled;
        all.late += met.late;
        all.lost += met.lost;
        all.again += met.again;
        all.cuts += met.cuts;
        all.kills += met.kills;
        all.reuses += met.reuses;
        all.fenced_beside += met.fenced_beside;
        all.rotations += met.rotations;
        all.staged += met.staged;
    }
    let Met {
        completed,
        refused,
        cancelled,
        late,
        lost,
        again,
        cuts,
        kills,
        reuses,
        fenced_beside,
        rotations,
        staged,
    } = all;
    let met = [
        completed,
        refused,
        cancelled,
        late,
        lost,
        again,
        cuts,
        kills,
        reuses,
        fenced_beside,
        rotations,
        staged,
    ];
    assert!(met.iter().all(|count| *count >= SEEDS / 20), "{all:?}");
    assert!(completed >= 5 * SEEDS, "{all:?}");
}

#[test]
fn every_planted_bug_is_noticed() {
    for bug in BUGS {
        let noticed = (0..SEEDS).find_map(|seed| run(seed, Some(bug)).err());
        assert!(noticed.is_some(), "{bug:?} was not noticed");
    }
}

#[test]
fn a_seed_runs_the_same_twice() {
    for seed in 0..20 {
        let twice = [run(seed, None), run(seed, None)].map(|met| format!("{met:?}"));
        assert_eq!(twice[0], twice[1]);
    }
}
