//! What hints tell: which of their values mark requests whose blocks return, and which mark those whose blocks do not.
//!
//! Hints are opaque, so that this is learned too. A hint changes not only how often blocks return but also when:
//! a chain that is going to be continued soon is, or it is not at all. Blocks with such hints are of shapes of their own.

use super::class::{Features, GROUPS, HINT_BUCKETS};

/// What a hint says about the blocks of a request, as far as it was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// There is no hint, or it tells nothing.
    Unknown,
    /// They return less often than others.
    Leaves,
    /// They return more often than others.
    Returns,
}

/// Returns by value of the hint, beside what is expected of all blocks of their ages.
#[derive(Clone, Debug)]
pub(super) struct Outlooks {
    rows: [HintCount; JUDGED_GROUPS * HINT_BUCKETS],
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HintCount {
    pub(super) reused: f64,
    pub(super) expected: f64,
}

/// Blocks that were not reused yet, or once. Those after them return whatever the hint says.
const JUDGED_GROUPS: usize = GROUPS - 1;
/// Returns by which the ratio of a hint is drawn to one, in typical events.
const WEIGHT: f64 = 8.0;
/// A hint tells something when blocks return this many times as often, or as rarely, as all of their kind.
const TELLING: f64 = 1.3;

impl Outlooks {
    /// How many counts there are.
    pub(super) const COUNT: usize = JUDGED_GROUPS * HINT_BUCKETS;

    pub(super) const fn new() -> Self {
        const NONE: HintCount = HintCount {
            reused: 0.0,
            expected: 0.0,
        };
        Self {
            rows: [NONE; Self::COUNT],
        }
    }

    /// Blocks with these features were at risk, and so many would have returned if they were like all others.
    pub(super) fn expect(&mut self, features: Features, blocks: f64) {
        if let Some(row) = self.rows.get_mut(features.any_hint_row()) {
            row.expected += blocks;
        }
    }

    /// Blocks with these features returned.
    pub(super) fn reuse(&mut self, features: Features, blocks: f64) {
        if let Some(row) = self.rows.get_mut(features.any_hint_row()) {
            row.reused += blocks;
        }
    }

    /// What the hint of a request says, where a typical event has `weight` blocks.
    pub(super) fn outlook(&self, features: Features, weight: f64) -> Outlook {
        let Some(hint) = features.hint() else {
            return Outlook::Unknown;
        };
        let prior = WEIGHT * weight;
        let (mut reused, mut expected) = (prior, prior);
        for group in self.rows.chunks_exact(HINT_BUCKETS) {
            let all = group
                .iter()
                .fold(HintCount::default(), |sum, row| HintCount {
                    reused: sum.reused + row.reused,
                    expected: sum.expected + row.expected,
                });
            if all.expected > 0.0 {
                reused += group[hint].reused;
                expected += group[hint].expected * all.reused / all.expected;
            }
        }
        match reused / expected {
            ratio if ratio >= TELLING => Outlook::Returns,
            ratio if ratio <= 1.0 / TELLING => Outlook::Leaves,
            _ => Outlook::Unknown,
        }
    }

    pub(super) fn decay(&mut self, keep: f64) {
        for row in &mut self.rows {
            row.reused *= keep;
            row.expected *= keep;
        }
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = &HintCount> {
        self.rows.iter()
    }

    pub(super) fn counts_mut(&mut self) -> impl Iterator<Item = &mut HintCount> {
        self.rows.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::super::class::{NO_GAP, hint_bucket};
    use super::*;

    fn features(bucket: u8, hint: Option<u32>) -> Features {
        Features::new(0, NO_GAP, hint_bucket(hint)).with_count(bucket)
    }

    #[test]
    fn a_hint_tells_by_what_followed_it_beside_blocks_as_often_reused() {
        let check = |story: &str, seen: &[(u8, Option<u32>, f64, f64)], expected: Outlook| {
            let mut outlooks = Outlooks::new();
            for &(bucket, hint, reused, expected) in seen {
                outlooks.reuse(features(bucket, hint), reused);
                outlooks.expect(features(bucket, hint), expected);
            }
            let outlook = outlooks.outlook(features(0, Some(3)), 10.0);
            assert_eq!(outlook, expected, "{story}");
            let unhinted = outlooks.outlook(features(0, None), 10.0);
            assert_eq!(unhinted, Outlook::Unknown, "{story}");
        };
        let (plain, other) = ((0, None, 1e4, 1e4), (1, None, 4e4, 1e4));
        check("nothing seen", &[], Outlook::Unknown);
        check(
            "as others",
            &[plain, (0, Some(3), 500.0, 500.0)],
            Outlook::Unknown,
        );
        check(
            "more",
            &[plain, (0, Some(3), 900.0, 500.0)],
            Outlook::Returns,
        );
        check(
            "fewer",
            &[plain, (0, Some(3), 100.0, 500.0)],
            Outlook::Leaves,
        );
        check(
            "too few to tell",
            &[plain, (0, Some(3), 9.0, 5.0)],
            Outlook::Unknown,
        );
        check(
            "another's",
            &[plain, (0, Some(4), 900.0, 500.0)],
            Outlook::Unknown,
        );
        // Four times as many of the blocks that were reused once return, with the hint or without it.
        check(
            "as others of their kind",
            &[plain, other, (1, Some(3), 2e3, 500.0)],
            Outlook::Unknown,
        );
        check(
            "often reused",
            &[plain, (2, Some(3), 9e3, 500.0)],
            Outlook::Unknown,
        );
    }

    #[test]
    fn what_is_long_past_is_forgotten() {
        let mut outlooks = Outlooks::new();
        outlooks.expect(features(0, None), 1e4);
        outlooks.reuse(features(0, None), 1e4);
        outlooks.reuse(features(0, Some(3)), 900.0);
        outlooks.expect(features(0, Some(3)), 500.0);
        outlooks.decay(0.01);
        assert_eq!(
            outlooks.outlook(features(0, Some(3)), 10.0),
            Outlook::Unknown
        );
    }
}
