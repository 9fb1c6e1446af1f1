use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::pace::{LOOKS_PER_CLOCK, learn_wake};
use crate::rhythm::Rhythm;

/// The buckets of a site's histogram of gaps: half octaves from 1 µs to 4 ms, then octaves to 1 s.
pub const GAP_BUCKETS: usize = 32;

const FIRST_EDGE_NANOS: u64 = 1_000;
const HALF_OCTAVES: usize = 24;

/// Waits between two looks at what was learned.
const RELEARN_WAITS: u32 = 64;

/// One kind of wait, such as "store get, 1 MiB, TCP": how long such waits lasted, and what they did.
///
/// Shared by all threads that wait this way. Everything is relaxed and approximate under contention; nothing allocates.
/// A site can be a `static`.
#[derive(Debug)]
pub struct Site {
    name: &'static str,
    /// What a sleep costs, in wakes.
    sleep_wakes: u32,
    learned: CachePadded<Learned>,
    pub(crate) rhythm: CachePadded<Rhythm>,
    counters: CachePadded<Counters>,
}

#[derive(Debug)]
struct Learned {
    gaps: [AtomicU32; GAP_BUCKETS],
    /// The spin that costs least, in nanoseconds; `UNKNOWN` before the first look at the gaps.
    budget_nanos: AtomicU64,
    /// Waits that will not spin because a spinner lost its CPU.
    braked: AtomicU32,
    since_relearned: AtomicU32,
}

const UNKNOWN: u64 = u64::MAX;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        #[derive(Debug)]
        struct Counters {
            $($name: AtomicU64,)+
        }

        impl Counters {
            const fn new() -> Self {
                Self { $($name: AtomicU64::new(0),)+ }
            }
        }

        /// What the waits of one site did so far.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct SiteCounts {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// The spin that costs least by what was learned; `None` before enough was seen.
            pub budget: Option<Duration>,
        }

        impl Site {
            /// What the waits of this site did so far, and the budget in force.
            #[must_use]
            pub fn counts(&self) -> SiteCounts {
                SiteCounts {
                    $($name: self.counters.$name.load(Relaxed),)+
                    budget: self.budget().map(Duration::from_nanos),
                }
            }
        }
    };
}

counters! {
    /// Waits that did not find their word ready at once.
    waits,
    /// Waits that found it ready.
    ready,
    /// Waits that ended in the spin.
    spin_hits,
    /// Looks at the word while spinning.
    looks,
    /// Clock reads while spinning.
    clock_reads,
    /// Time spent spinning, in nanoseconds.
    spin_nanos,
    /// Times a waiter slept in the kernel.
    parks,
    /// Time spent asleep, in nanoseconds.
    park_nanos,
    /// Sleeps that ended with a look of the waiter's own, before it was woken.
    naps,
    /// Waits whose end such a look found: no wake was needed.
    nap_hits,
    /// Parks that ended although nothing was ready.
    spurious,
    /// Waits that ended at their deadline.
    timeouts,
    /// Spins given up because the thread had lost its CPU.
    preempted,
    /// Waits that would have spun, had a CPU been free.
    crowded,
    /// Wakes whose latency was seen.
    wakes_seen,
    /// The sum of their latencies, in nanoseconds.
    wake_nanos,
    /// Times the budget moved.
    budget_changes,
}

/// What a spin did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spun {
    pub(crate) looks: u64,
    pub(crate) clock_reads: u64,
    pub(crate) nanos: u64,
}

impl Site {
    /// A site that has learned nothing.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            sleep_wakes: 1,
            learned: CachePadded::new(Learned {
                gaps: [const { AtomicU32::new(0) }; GAP_BUCKETS],
                budget_nanos: AtomicU64::new(UNKNOWN),
                braked: AtomicU32::new(0),
                since_relearned: AtomicU32::new(0),
            }),
            rhythm: CachePadded::new(Rhythm::new()),
            counters: CachePadded::new(Counters::new()),
        }
    }

    /// The name given at the start: what metrics show.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The histogram of gaps: how many of the recent waits lasted how long. Bucket `i` ends at [`Site::gap_edge`]`(i)`.
    #[must_use]
    pub fn gaps(&self) -> [u32; GAP_BUCKETS] {
        std::array::from_fn(|i| self.learned.gaps[i].load(Relaxed))
    }

    /// The same where a sleep costs as much as so many wakes: where what is waited for is slower when nobody is there to take it.
    #[must_use]
    pub const fn with_dear_sleeps(self, wakes: u32) -> Self {
        Self {
            sleep_wakes: wakes,
            ..self
        }
    }

    /// What a sleep here costs where a wake takes so long.
    pub(crate) fn sleep_nanos(&self, wake_nanos: u64) -> u64 {
        wake_nanos.saturating_mul(u64::from(self.sleep_wakes))
    }

    /// The upper edge of a bucket; the last one has none.
    #[must_use]
    pub fn gap_edge(bucket: usize) -> Option<Duration> {
        (bucket + 1 < GAP_BUCKETS).then(|| Duration::from_nanos(upper_edge(bucket)))
    }

    /// The learned budget in nanoseconds.
    pub(crate) fn budget(&self) -> Option<u64> {
        match self.learned.budget_nanos.load(Relaxed) {
            UNKNOWN => None,
            nanos => Some(nanos),
        }
    }

    /// Recomputes the budget if enough waits passed since the last time.
    pub(crate) fn relearn(&self, sleep_nanos: u64, max_nanos: u64, cpu_price: f64) {
        if self.learned.since_relearned.load(Relaxed) < RELEARN_WAITS {
            return;
        }
        self.learned.since_relearned.store(0, Relaxed);
        let gaps = self.gaps();
        let budget = best_budget(&gaps, sleep_nanos, max_nanos, cpu_price);
        if self.learned.budget_nanos.swap(budget, Relaxed) != budget {
            self.counters.budget_changes.fetch_add(1, Relaxed);
        }
        for (bucket, &count) in self.learned.gaps.iter().zip(&gaps) {
            // Half is forgotten each time, so a change of phase shows within some 300 waits. What was added since the
            // read above is lost with it, now and then.
            bucket.store(count / 2, Relaxed);
        }
    }

    /// Whether the brake is on; each call lets it go a little.
    pub(crate) fn braked(&self) -> bool {
        let left = self.learned.braked.load(Relaxed);
        if left == 0 {
            return false;
        }
        self.learned.braked.store(left - 1, Relaxed);
        true
    }

    /// Keeps the next waits from spinning.
    pub(crate) fn brake(&self, waits: u32) {
        self.learned.braked.store(waits, Relaxed);
    }

    pub(crate) fn was_ready(&self) {
        self.counters.ready.fetch_add(1, Relaxed);
    }

    pub(crate) fn began(&self) {
        self.counters.waits.fetch_add(1, Relaxed);
    }

    pub(crate) fn was_crowded(&self) {
        self.counters.crowded.fetch_add(1, Relaxed);
    }

    pub(crate) fn timed_out(&self) {
        self.counters.timeouts.fetch_add(1, Relaxed);
    }

    pub(crate) fn was_preempted(&self) {
        self.counters.preempted.fetch_add(1, Relaxed);
    }

    pub(crate) fn spun(&self, spun: Spun, hit: bool) {
        debug_assert!(
            spun.clock_reads * LOOKS_PER_CLOCK <= spun.looks,
            "the clock is read rarely: {spun:?}"
        );
        self.counters.looks.fetch_add(spun.looks, Relaxed);
        self.counters.spin_nanos.fetch_add(spun.nanos, Relaxed);
        if spun.clock_reads > 0 {
            self.counters
                .clock_reads
                .fetch_add(spun.clock_reads, Relaxed);
        }
        if hit {
            self.counters.spin_hits.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn parked(&self, nanos: u64, spurious: bool) {
        self.counters.parks.fetch_add(1, Relaxed);
        self.counters.park_nanos.fetch_add(nanos, Relaxed);
        if spurious {
            self.counters.spurious.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn napped(&self, hit: bool) {
        self.counters.naps.fetch_add(1, Relaxed);
        if hit {
            self.counters.nap_hits.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn woke(&self, latency_nanos: u64) {
        self.counters.wakes_seen.fetch_add(1, Relaxed);
        self.counters.wake_nanos.fetch_add(latency_nanos, Relaxed);
        learn_wake(latency_nanos);
    }

    pub(crate) fn gap(&self, nanos: u64) {
        self.learned.gaps[bucket_of(nanos)].fetch_add(1, Relaxed);
        self.learned.since_relearned.fetch_add(1, Relaxed);
        self.rhythm.learn(nanos);
    }
}

/// The bucket a gap falls into.
fn bucket_of(nanos: u64) -> usize {
    (0..GAP_BUCKETS - 1)
        .find(|&bucket| nanos <= upper_edge(bucket))
        .unwrap_or(GAP_BUCKETS - 1)
}

/// 1, 1.5, 2, 3, 4, 6 … µs up to 4 ms, then 8, 16 … ms.
const fn upper_edge(bucket: usize) -> u64 {
    if bucket < HALF_OCTAVES {
        let octave = FIRST_EDGE_NANOS << (bucket / 2);
        if bucket.is_multiple_of(2) {
            octave
        } else {
            octave + octave / 2
        }
    } else {
        FIRST_EDGE_NANOS << (HALF_OCTAVES / 2 + bucket - HALF_OCTAVES)
    }
}

/// The spin that minimises the expected cost of a wait,
///
/// cost(S) = Σ over gaps g ≤ S of p(g)·g·price + Σ over gaps g > S of p(g)·(S·price + W),
///
/// where W is the cost of a park and its wake: the classic rent-or-buy question (Karlin et al., "Empirical Studies of
/// Competitive Spinning for a Shared-Memory Multiprocessor", SOSP 1991) with the distribution known. Without gaps it is
/// W, which is never worse than twice the best.
fn best_budget(gaps: &[u32; GAP_BUCKETS], wake_nanos: u64, max_nanos: u64, cpu_price: f64) -> u64 {
    let total: f64 = gaps.iter().map(|&n| f64::from(n)).sum();
    if total == 0.0 {
        return wake_nanos.min(max_nanos);
    }
    let wake = wake_nanos as f64;
    let (mut inside, mut inside_cost) = (0.0, 0.0);
    let mut costs = [f64::INFINITY; GAP_BUCKETS];
    for (bucket, &count) in gaps.iter().enumerate().take(GAP_BUCKETS - 1) {
        let edge = upper_edge(bucket);
        if edge > max_nanos {
            break;
        }
        let (count, edge_cost) = (f64::from(count), edge as f64 * cpu_price);
        let lower = if bucket == 0 {
            0
        } else {
            upper_edge(bucket - 1)
        };
        inside += count;
        inside_cost += count * (lower + edge) as f64 / 2.0 * cpu_price;
        costs[bucket] = inside_cost + (total - inside) * (edge_cost + wake);
    }
    let best = costs.iter().copied().fold(f64::INFINITY, f64::min);
    if total * wake <= best {
        return 0;
    }
    // Where the cost is flat, a spin up to W costs no more and spares the odd long gap a park.
    let cheapest = costs
        .iter()
        .position(|&cost| cost <= best)
        .map_or(0, upper_edge);
    let flat = |&bucket: &usize| costs[bucket] <= best * FLAT && upper_edge(bucket) <= wake_nanos;
    (0..GAP_BUCKETS - 1)
        .rev()
        .find(flat)
        .map_or(0, upper_edge)
        .max(cheapest)
}

/// Costs this close are the same.
const FLAT: f64 = 1.05;

#[cfg(test)]
mod tests {
    use super::*;

    const WAKE: u64 = 25_000;
    const MAX: u64 = 100_000;

    fn learned(gaps_nanos: &[(u64, u32)]) -> u64 {
        let mut gaps = [0; GAP_BUCKETS];
        for &(nanos, count) in gaps_nanos {
            gaps[bucket_of(nanos)] += count;
        }
        best_budget(&gaps, WAKE, MAX, 1.0)
    }

    #[test]
    fn the_edges_rise_from_a_microsecond_to_half_a_second() {
        assert_eq!(upper_edge(0), 1_000);
        assert_eq!(upper_edge(1), 1_500);
        assert_eq!(upper_edge(2), 2_000);
        assert!((1..GAP_BUCKETS - 1).all(|bucket| upper_edge(bucket) > upper_edge(bucket - 1)));
        assert_eq!(upper_edge(GAP_BUCKETS - 2), 262_144_000);
        for nanos in [
            0,
            1,
            999,
            1_000,
            1_001,
            47_000,
            3_999_999,
            900_000_000,
            u64::MAX,
        ] {
            let bucket = bucket_of(nanos);
            assert!(
                bucket == GAP_BUCKETS - 1 || nanos <= upper_edge(bucket),
                "{nanos}"
            );
            assert!(bucket == 0 || nanos > upper_edge(bucket - 1), "{nanos}");
        }
    }

    #[test]
    fn short_gaps_are_spun_through_and_long_ones_are_not() {
        assert_eq!(
            learned(&[(5_000, 100)]),
            24_000,
            "up to W, where a longer spin costs nothing"
        );
        assert_eq!(learned(&[(2_000_000, 100)]), 0);
        assert_eq!(
            learned(&[(100_000, 100)]),
            0,
            "a spin of 100 µs saves less than it costs"
        );
        assert_eq!(
            learned(&[(5_000, 90), (2_000_000, 10)]),
            8_000,
            "the few long ones cost little"
        );
        assert_eq!(learned(&[(5_000, 5), (2_000_000, 95)]), 0);
    }

    #[test]
    fn without_gaps_the_spin_lasts_as_long_as_a_park_costs() {
        assert_eq!(best_budget(&[0; GAP_BUCKETS], WAKE, MAX, 1.0), WAKE);
        assert_eq!(best_budget(&[0; GAP_BUCKETS], WAKE, 10_000, 1.0), 10_000);
    }

    #[test]
    fn dear_cpu_time_shortens_the_spin() {
        let mut gaps = [0; GAP_BUCKETS];
        gaps[bucket_of(20_000)] = 100;
        assert!(best_budget(&gaps, WAKE, MAX, 1.0) > 0);
        assert_eq!(best_budget(&gaps, WAKE, MAX, 3.0), 0);
    }

    /// A loop in the middle of a large payload parked, since no look was cheaper than a wake: the peer's writes took twice the time.
    #[test]
    fn dear_sleeps_lengthen_the_spin() {
        let learned = |site: &Site| {
            for _ in 0..1_000 {
                site.gap(60_000);
                site.relearn(site.sleep_nanos(WAKE), MAX, 1.0);
            }
            site.budget()
        };
        assert_eq!(learned(&Site::new("cheap")), Some(0));
        let dear = learned(&Site::new("dear").with_dear_sleeps(16));
        assert!(dear >= Some(60_000), "{dear:?}");
    }

    #[test]
    fn a_new_phase_is_learned_within_a_few_hundred_waits() {
        let site = Site::new("phases");
        for _ in 0..1_000 {
            site.gap(3_000);
            site.relearn(WAKE, MAX, 1.0);
        }
        assert!(site.budget() >= Some(3_000), "{:?}", site.budget());
        for _ in 0..320 {
            site.gap(2_000_000);
            site.relearn(WAKE, MAX, 1.0);
        }
        assert_eq!(site.budget(), Some(0));
    }
}
