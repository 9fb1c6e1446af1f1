/// The most frequent of many names, counted with a fixed number of counters (Space-Saving: Metwally, Agrawal and El Abbadi,
/// "Efficient computation of frequent and top-k elements in data streams", 2005).
///
/// A name without a counter takes over the one that counts least, with its count: so no count is too low, and none is too
/// high by more than the counter says, which is never more than all that was counted over the number of counters. A name
/// that makes up a greater share than that has a counter.
#[derive(Clone, Debug)]
pub struct HeavyHitters<T> {
    /// Hashes beside the counters, where a search reads them in one piece.
    hashes: Vec<u64>,
    counters: Vec<Counter<T>>,
    most: usize,
    total: f64,
}

/// One name and how often it was counted.
#[derive(Clone, Debug, PartialEq)]
pub struct Counter<T> {
    /// The name, as it was given with its first count.
    pub name: T,
    /// How often, at most. Halved counts have fractions.
    pub count: f64,
    /// How much of the count may be that of other names.
    pub excess: f64,
}

impl<T> HeavyHitters<T> {
    /// One with this many counters, one at least.
    #[must_use]
    pub fn with_counters(most: usize) -> Self {
        Self {
            hashes: Vec::new(),
            counters: Vec::new(),
            most: most.max(1),
            total: 0.0,
        }
    }

    /// Counts the name with this hash once more; `name` gives it where it has no counter. Names of one hash are one name.
    pub fn add(&mut self, hash: u64, name: impl FnOnce() -> T) {
        self.total += 1.0;
        if let Some(at) = self.hashes.iter().position(|other| *other == hash) {
            self.counters[at].count += 1.0;
        } else if self.counters.len() < self.most {
            self.hashes.push(hash);
            self.counters.push(Counter {
                name: name(),
                count: 1.0,
                excess: 0.0,
            });
        } else {
            let least = self.least();
            let counter = &mut self.counters[least];
            *counter = Counter {
                name: name(),
                count: counter.count + 1.0,
                excess: counter.count,
            };
            self.hashes[least] = hash;
        }
    }

    /// The names that were counted most, the first of them first.
    #[must_use]
    pub fn top(&self, most: usize) -> Vec<&Counter<T>> {
        let mut all: Vec<&Counter<T>> = self.counters.iter().collect();
        all.sort_by(|a, b| b.count.total_cmp(&a.count));
        all.truncate(most);
        all
    }

    /// All that was counted.
    #[must_use]
    pub const fn total(&self) -> f64 {
        self.total
    }

    /// Halves every count, so that frequent means frequent lately.
    pub fn halve(&mut self) {
        self.total /= 2.0;
        for counter in &mut self.counters {
            counter.count /= 2.0;
            counter.excess /= 2.0;
        }
    }

    /// Forgets all names.
    pub fn clear(&mut self) {
        self.hashes.clear();
        self.counters.clear();
        self.total = 0.0;
    }

    fn least(&self) -> usize {
        let counts = self.counters.iter().enumerate();
        let least = counts.min_by(|(_, a), (_, b)| a.count.total_cmp(&b.count));
        least.map_or(0, |(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// What may be wrong by the rounding of fractions.
    const ROUNDING: f64 = 1e-6;

    proptest! {
        #[test]
        fn counts_are_as_wrong_as_they_say_and_no_more_than_their_share(
            counters in 1usize..20,
            // Some names come often; each tenth number halves.
            drawn in prop::collection::vec((0u64..200, 0u64..200, 0u8..100), 1..600),
        ) {
            let mut hitters = HeavyHitters::with_counters(counters);
            let mut truth: BTreeMap<u64, f64> = BTreeMap::new();
            for (a, b, other) in drawn {
                if other == 0 {
                    hitters.halve();
                    truth.values_mut().for_each(|count| *count /= 2.0);
                }
                let name = a.min(b) / 4;
                hitters.add(name.wrapping_mul(0x9e37_79b9_7f4a_7c15), || name);
                *truth.entry(name).or_default() += 1.0;
                let all: f64 = truth.values().sum();
                let share = all / counters as f64;
                prop_assert!((hitters.total() - all).abs() < ROUNDING);
                let top = hitters.top(usize::MAX);
                prop_assert!(top.len() <= counters);
                prop_assert!(top.windows(2).all(|two| two[0].count >= two[1].count));
                for Counter { name, count, excess } in &top {
                    let exact = truth[name];
                    prop_assert!(*count >= exact - ROUNDING && count - excess <= exact + ROUNDING);
                    prop_assert!(*excess <= share + ROUNDING);
                }
                for (name, exact) in &truth {
                    let counted = top.iter().any(|it| it.name == *name);
                    prop_assert!(counted || *exact <= share + ROUNDING, "{name} is missing");
                }
            }
        }
    }

    #[test]
    fn the_first_are_the_most_frequent() {
        let mut hitters = HeavyHitters::with_counters(3);
        for (name, times) in [("a", 2), ("b", 5), ("c", 1)] {
            for _ in 0..times {
                hitters.add(name.as_bytes()[0].into(), || name);
            }
        }
        let names = |hitters: &HeavyHitters<&'static str>| -> Vec<_> {
            let top = hitters.top(2);
            top.iter()
                .map(|it| (it.name, it.count, it.excess))
                .collect()
        };
        assert_eq!(names(&hitters), [("b", 5.0, 0.0), ("a", 2.0, 0.0)]);
        // It takes over the counter of "c" twice.
        hitters.add(100, || "d");
        hitters.add(100, || "d");
        assert_eq!(names(&hitters), [("b", 5.0, 0.0), ("d", 3.0, 1.0)]);
        hitters.halve();
        assert_eq!(
            (hitters.total(), names(&hitters)[0]),
            (5.0, ("b", 2.5, 0.0))
        );
        hitters.clear();
        assert_eq!((hitters.total(), hitters.top(9).len()), (0.0, 0));
    }
}
