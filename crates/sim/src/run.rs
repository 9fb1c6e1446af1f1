//! Runs of seeds, and the search for the smallest run that still fails.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use slackwater_base::{Instant, Planted, plant};

use crate::check::{Invariant, Violation};
use crate::engine::Seed;
use crate::options::Profile;
use crate::plan::Plan;
use crate::world::{Outcome, Stats, World};

/// Runs a plan, with a bug planted or none. A panic of a core is a violation like any other.
#[must_use]
pub fn run(plan: &Plan, bug: Option<Planted>, listener: Option<fn(&str)>) -> Outcome {
    plant(bug);
    let plan = plan.clone();
    let outcome = catch_unwind(AssertUnwindSafe(|| World::new(plan, listener).run()));
    plant(None);
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let what = format!("a core panicked: {}", text.unwrap_or_default());
        let violation = Some((Instant::NEVER, Violation::new(Invariant::Contract, what)));
        Outcome {
            trace_hash: 0,
            violation,
            stats: Stats::default(),
        }
    })
}

/// Runs a seed.
#[must_use]
pub fn run_seed(profile: Profile, seed: u64, bug: Option<Planted>) -> Outcome {
    run(&Plan::of(profile, Seed(seed)), bug, None)
}

/// Runs every seed of a range on `jobs` threads and calls `failed` for each that breaks an invariant, as it is found.
/// Returns their number.
pub fn run_seeds(
    profile: Profile,
    seeds: Range<u64>,
    jobs: usize,
    bug: Option<Planted>,
    failed: impl Fn(u64, Instant, &Violation) + Sync,
) -> u64 {
    let (next, failures) = (AtomicU64::new(seeds.start), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    if let Some((at, violation)) = run_seed(profile, seed, bug).violation {
                        failures.fetch_add(1, Ordering::Relaxed);
                        failed(seed, at, &violation);
                    }
                }
            });
        }
    });
    failures.into_inner()
}

/// The smallest plan found that breaks the same invariant: faults are left out first, then operations, in ever
/// smaller pieces (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002).
///
/// At most `tries` runs are made.
#[must_use]
pub fn shrink(plan: &Plan, bug: Option<Planted>, invariant: Invariant, tries: u32) -> Plan {
    let mut shrinker = Shrinker {
        bug,
        invariant,
        left: tries,
    };
    let mut best = plan.clone();
    loop {
        let before = (best.faults.len(), best.operations());
        best = shrinker.faults(best);
        for script in 0..best.scripts.len() {
            best = shrinker.script(best, script);
        }
        if (best.faults.len(), best.operations()) == before || shrinker.left == 0 {
            return best;
        }
    }
}

struct Shrinker {
    bug: Option<Planted>,
    invariant: Invariant,
    left: u32,
}

impl Shrinker {
    fn fails(&mut self, plan: &Plan) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        run(plan, self.bug, None)
            .violation
            .is_some_and(|(_, violation)| violation.invariant == self.invariant)
    }

    fn faults(&mut self, best: Plan) -> Plan {
        self.pieces(
            best,
            |plan| plan.faults.len(),
            |plan, from, to| drop(plan.faults.drain(from..to)),
        )
    }

    fn script(&mut self, best: Plan, script: usize) -> Plan {
        let count = |plan: &Plan| plan.scripts[script].len();
        self.pieces(best, count, |plan, from, to| {
            drop(plan.scripts[script].drain(from..to))
        })
    }

    /// Leaves out halves, quarters and so on, down to single items.
    fn pieces(
        &mut self,
        mut best: Plan,
        count: impl Fn(&Plan) -> usize,
        leave_out: impl Fn(&mut Plan, usize, usize),
    ) -> Plan {
        let mut size = count(&best);
        while size > 0 {
            let mut from = 0;
            while from < count(&best) {
                let mut smaller = best.clone();
                let to = (from + size).min(count(&best));
                leave_out(&mut smaller, from, to);
                if self.fails(&smaller) {
                    best = smaller;
                } else {
                    from = to;
                }
            }
            size /= 2;
        }
        best
    }
}
