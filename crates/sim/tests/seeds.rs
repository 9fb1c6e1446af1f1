//! Thousands of clusters, each with its own shape, load and faults: every invariant must hold in all of them.
use std::sync::mpsc;

use slackwater_sim::check::Violation;
use slackwater_sim::engine::Seed;
use slackwater_sim::options::Profile;
use slackwater_sim::plan::Plan;
use slackwater_sim::run::{run_seed, run_seeds, shrink};

const SEEDS: u64 = 2000;
/// Seeds of the profile that looks for bugs of reclaim and recovery.
const CHURNED: u64 = 300;
/// Seeds of the same on a disk that decays.
const ROTTEN: u64 = 300;
/// Seeds of the profile in which an operator carries values between nodes.
const CARRIED: std::ops::Range<u64> = 820_000..820_300;
/// Seeds of the profile in which masters are started again under their nodes.
const RESTARTED: u64 = 300;
/// Seeds of the profile in which nodes are hidden and given up, and come back.
const ABSENT: u64 = 300;
const JOBS: usize = 2;
/// Most runs for shrinking a failure.
const TRIES: u32 = 300;

#[test]
fn every_invariant_holds_for_every_seed() {
    hold(Profile::Ordinary, 0..SEEDS);
}

#[test]
fn every_invariant_holds_while_logs_churn_and_nodes_end_twice() {
    hold(Profile::Churn, 0..CHURNED);
}

#[test]
fn every_invariant_holds_while_logs_churn_on_a_disk_that_decays() {
    hold(Profile::ChurnRot, 0..ROTTEN);
}

#[test]
fn every_invariant_holds_while_jobs_carry_values() {
    hold(Profile::Jobs, CARRIED);
    let carried = |seed| run_seed(Profile::Jobs, seed, None).stats.carried;
    let carried: u64 = CARRIED.take(50).map(carried).sum();
    assert!(carried > 200, "{carried} values were carried");
}

#[test]
fn every_invariant_holds_while_nodes_outlive_their_masters() {
    hold(Profile::Restarts, 0..RESTARTED);
    let stats = (0..50).map(|seed| run_seed(Profile::Restarts, seed, None).stats);
    let (mut resumed, mut announced) = (0, 0);
    for stats in stats {
        resumed += stats.links_resumed;
        announced += stats.extents_announced;
    }
    assert!(
        resumed > 20 && announced > 1000,
        "{resumed} links were resumed, {announced} extents announced"
    );
}

#[test]
fn every_invariant_holds_while_nodes_are_given_up_and_come_back() {
    hold(Profile::Absences, 0..ABSENT);
    let masters = (0..50).filter_map(|seed| run_seed(Profile::Absences, seed, None).stats.master);
    let (mut hidden, mut given_up, mut expired, mut evicted, mut weighed) = (0, 0, 0, 0, 0);
    for master in masters {
        hidden += master.nodes_hidden;
        given_up += master.nodes_given_up;
        expired += master.offload.expired;
        evicted += master.disk_evictions;
        weighed += master.disk_evictions_at_reclaim;
    }
    assert!(
        hidden > 100 && given_up > 30 && expired > 30 && evicted > 500 && weighed > 20,
        "{hidden} nodes were hidden, {given_up} given up, {expired} offloads expired, {evicted} records were evicted, {weighed} of them \
         because their file was emptied"
    );
}

fn hold(profile: Profile, seeds: std::ops::Range<u64>) {
    let (failed, failures) = mpsc::channel();
    run_seeds(profile, seeds, JOBS, None, |seed, _, violation| {
        failed
            .send((seed, violation.clone()))
            .expect("the receiver outlives the runs");
    });
    drop(failed);
    let mut failures: Vec<(u64, Violation)> = failures.iter().collect();
    failures.sort_by_key(|(seed, _)| *seed);
    assert!(failures.is_empty(), "{}", report(profile, &failures));
}

/// Seeds that failed once, each with what went wrong.
#[test]
fn seeds_that_failed_once_hold() {
    let check = |profile: Profile, seed: u64, story: &str| {
        let violation = run_seed(profile, seed, None).violation;
        let violation = violation.map(|(_, violation)| violation.to_string());
        assert_eq!(violation, None, "seed {seed} of {profile:?}: {story}");
    };
    // A recovery took a lower tombstone's file for that of the highest tombstone, and reclaim deleted the file that
    // held the highest.
    check(Profile::Churn, 5903, "a removed record is back");
    // The file of a removed record, which had kept an older one of its key dead, was deleted before its tombstone was
    // durable; the process was killed, and the next opening announced the older record.
    check(Profile::Churn, 24_038, "a dropped record is back");
    check(Profile::Churn, 36_357, "an overwritten record is back");
    // The ledger required a record of which a newer one had been dropped.
    check(Profile::Churn, 629_617, "an older record is gone");
    // The ledger required a value that was written from flipped memory, because an opening had announced it.
    check(Profile::Ordinary, 55_710, "a flawed record is gone");
    // A caller in the master's process cancelled a read before its answer arrived, and the revocation found no guards.
    check(Profile::Ordinary, 209, "a cancelled read holds its object");
    // A node that ended again and again while its master was away left a file each time, until its device was full of
    // them and none could be emptied.
    check(Profile::Ordinary, 1890, "a log has no room again");
    // The drop of an overwritten record was answered because of the newer one, whose bytes rotted before a later batch
    // confirmed it.
    check(Profile::Ordinary, 429_217, "an overwritten record is back");
    // The ledger required a record that was torn before it was durable, because an opening that could not read it had
    // announced it.
    check(Profile::Ordinary, 506_366, "a torn record is gone");
    // An opening could not read a torn copy of reclaim, which took the place of the durable record.
    check(Profile::Ordinary, 620_732, "a durable record is gone");
    // A write that went astray left no header by which to know the log.
    check(Profile::Ordinary, 608_303, "a damaged log is refused");
    // A client made 1,199 operations, of which messages were lost and late.
    check(Profile::Ordinary, 621_113, "the load takes long");
    // A node was paused again while it was paused, and orders that came in between were delivered in another order.
    check(
        Profile::Ordinary,
        1_795_918_166_317,
        "orders are out of step",
    );
    // A master restarted and removed a key before it knew of the node whose SSD held an older value of it.
    check(Profile::ChurnRot, 501_455, "a removed record is back");
}

/// The commands that reproduce the failures, and the smallest run found that still shows the first.
fn report(profile: Profile, failures: &[(u64, Violation)]) -> String {
    let name = profile.name();
    let mut text = format!("{} seeds failed\n", failures.len());
    for (seed, violation) in failures.iter().take(20) {
        text += &format!("seed {seed}: {violation}\n");
        text +=
            &format!("    cargo run -p slackwater-sim -- --profile {name} --seed {seed} --trace\n");
    }
    if let Some((seed, violation)) = failures.first() {
        let plan = Plan::of(profile, Seed(*seed));
        let least = shrink(&plan, None, violation.invariant, TRIES);
        text += &format!(
            "seed {seed} still fails with {} of {} faults and {} of {} operations (--shrink shows them):\n{:#?}\n{:#?}",
            least.faults.len(),
            plan.faults.len(),
            least.operations(),
            plan.operations(),
            least.faults,
            least.options,
        );
    }
    text
}

#[test]
fn the_same_seed_does_the_same_things_twice() {
    for seed in 0..20 {
        let (first, second) = (
            run_seed(Profile::Ordinary, seed, None),
            run_seed(Profile::Ordinary, seed, None),
        );
        assert_eq!(first.trace_hash, second.trace_hash, "seed {seed}");
        assert!(
            first.stats.lines > 100,
            "seed {seed} did nothing: {:?}",
            first.stats
        );
        assert_ne!(
            first.trace_hash,
            run_seed(Profile::Ordinary, seed + 1, None).trace_hash,
            "seeds {seed} and {seed} + 1 run alike"
        );
    }
}

/// The seeds together must exercise every part of the system; a run in which nothing happens proves nothing.
#[test]
fn the_seeds_meet_every_part_of_the_system() {
    let mut met = Met::default();
    for seed in 0..200 {
        met.add(&run_seed(Profile::Ordinary, seed, None).stats);
    }
    let Met {
        hits,
        disk_hits,
        misses,
        unknown,
        cut_off,
        restarts,
        torn,
        errors,
        promoted,
        offloaded,
        evicted,
        announced,
        cancelled,
        repeated,
        promised,
    } = met;
    let all = [
        hits, disk_hits, misses, unknown, cut_off, restarts, torn, errors, promoted, offloaded,
        evicted, announced, cancelled, repeated, promised,
    ];
    assert!(
        all.iter().all(|count| *count > 20),
        "some part was exercised too little: {all:?}"
    );
}

#[derive(Default)]
struct Met {
    hits: u64,
    disk_hits: u64,
    misses: u64,
    unknown: u64,
    cut_off: u64,
    restarts: u64,
    torn: u64,
    errors: u64,
    promoted: u64,
    offloaded: u64,
    evicted: u64,
    announced: u64,
    cancelled: u64,
    repeated: u64,
    promised: u64,
}

impl Met {
    fn add(&mut self, stats: &slackwater_sim::world::Stats) {
        self.hits += stats.tally.hits;
        self.disk_hits += stats.tally.disk_hits;
        self.misses += stats.tally.misses;
        self.unknown += stats.tally.unknown;
        self.cut_off += stats.tally.cut_off;
        self.cancelled += stats.tally.cancelled;
        self.promised += stats.promised;
        self.restarts += stats.master_lives + stats.node_lives;
        self.torn += stats.disk.torn;
        self.errors += stats.disk.errors;
        if let Some(master) = &stats.master {
            self.promoted += master.promotion.completed;
            self.offloaded += master.offload.completed;
            self.evicted += master.evictions;
            self.announced += master.records_announced;
            self.repeated += master.operations_repeated;
        }
    }
}
