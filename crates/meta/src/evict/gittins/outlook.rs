//! What hints tell: which of them mark requests whose blocks return, and which mark those whose blocks do not.
//!
//! The values of an opaque hint have no meaning until it is learned. What a caller expects has one, and is believed until
//! events speak against it: a caller may be wrong, or always wrong. A hint changes not only how often blocks return but
//! also when: a chain that is going to be continued soon is, or it is not at all. Blocks with such hints are of shapes of
//! their own.

use slackwater_wire::Expectation;

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

/// Returns by value of the hint, beside what is expected of all blocks of their ages. A group of rows for each group of
/// reuse count: one for each opaque hint, of which the first is of blocks without one, then one for each expectation.
#[derive(Clone, Debug)]
pub(super) struct Outlooks {
    rows: [HintCount; Self::COUNT],
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HintCount {
    pub(super) reused: f64,
    pub(super) expected: f64,
}

/// Groups by which a hint is judged: blocks that were not reused yet, or once. Those after them mostly return.
const JUDGED_GROUPS: usize = GROUPS - 1;
const ROWS: usize = HINT_BUCKETS + 2;
/// Returns by which the ratio of an opaque hint is drawn to one, in typical events.
const OPAQUE_WEIGHT: f64 = 8.0;
/// Returns by which the ratio of an expectation is drawn to [`EXPECTED_RATIO`] or its inverse, in typical events: a caller
/// that is wrong is soon not believed.
const EXPECTED_WEIGHT: f64 = 3.0;
/// A little more than what tells something.
const EXPECTED_RATIO: f64 = 1.5;
/// A hint tells something when blocks return this many times as often, or as rarely, as all of their kind.
const TELLING: f64 = 1.3;

impl Outlooks {
    /// How many counts there are.
    pub(super) const COUNT: usize = JUDGED_GROUPS * ROWS;

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
        self.change(features, |row| row.expected += blocks);
    }

    /// Blocks with these features returned.
    pub(super) fn reuse(&mut self, features: Features, blocks: f64) {
        self.change(features, |row| row.reused += blocks);
    }

    fn change(&mut self, features: Features, change: impl Fn(&mut HintCount)) {
        if features.group() >= JUDGED_GROUPS {
            return;
        }
        let first = features.group() * ROWS;
        change(&mut self.rows[first + features.hint().unwrap_or(0)]);
        if let Some(expect) = features.expect() {
            change(&mut self.rows[first + row_of(expect)]);
        }
    }

    /// What the hint of a request says, where a typical event has `weight` blocks. An expectation goes before an opaque
    /// hint.
    pub(super) fn outlook(&self, features: Features, weight: f64) -> Outlook {
        let (row, prior, ratio) = match (features.expect(), features.hint()) {
            (Some(expect @ Expectation::Continues), _) => {
                (row_of(expect), EXPECTED_WEIGHT, EXPECTED_RATIO)
            }
            (Some(expect @ Expectation::Ends), _) => {
                (row_of(expect), EXPECTED_WEIGHT, 1.0 / EXPECTED_RATIO)
            }
            (None, Some(hint)) => (hint, OPAQUE_WEIGHT, 1.0),
            (None, None) => return Outlook::Unknown,
        };
        let (mut reused, mut expected) = (prior * weight * ratio, prior * weight);
        for group in self.rows.chunks_exact(ROWS) {
            // Every block is in one of the rows of opaque hints.
            let all = group[..HINT_BUCKETS]
                .iter()
                .fold(HintCount::default(), |sum, row| HintCount {
                    reused: sum.reused + row.reused,
                    expected: sum.expected + row.expected,
                });
            if all.expected > 0.0 {
                reused += group[row].reused;
                expected += group[row].expected * all.reused / all.expected;
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

const fn row_of(expect: Expectation) -> usize {
    match expect {
        Expectation::Ends => HINT_BUCKETS,
        Expectation::Continues => HINT_BUCKETS + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::super::class::{NO_GAP, hint_bucket};
    use super::*;

    fn features(bucket: u8, hint: Option<u32>) -> Features {
        Features::new(0, NO_GAP, hint_bucket(hint), None).with_count(bucket)
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

    /// A caller that is wrong costs little: what it says is believed until some returns have told otherwise.
    #[test]
    fn an_expectation_is_believed_until_events_speak_against_it() {
        use Expectation::{Continues, Ends};
        let says = |expect, hint| Features::new(0, NO_GAP, hint_bucket(hint), Some(expect));
        let check = |story: &str, seen: &[(Expectation, f64, f64)], expected: [Outlook; 2]| {
            let mut outlooks = Outlooks::new();
            outlooks.reuse(features(0, None), 1e4);
            outlooks.expect(features(0, None), 1e4);
            for &(expect, reused, expected) in seen {
                outlooks.reuse(says(expect, None), reused);
                outlooks.expect(says(expect, None), expected);
            }
            let found = [Ends, Continues].map(|it| outlooks.outlook(says(it, Some(3)), 10.0));
            assert_eq!(found, expected, "{story}");
        };
        let meant = [Outlook::Leaves, Outlook::Returns];
        check("nothing seen", &[], meant);
        check(
            "little seen",
            &[(Ends, 4.0, 4.0), (Continues, 4.0, 4.0)],
            meant,
        );
        check(
            "right",
            &[(Ends, 50.0, 200.0), (Continues, 400.0, 200.0)],
            meant,
        );
        let random = [(Ends, 200.0, 200.0), (Continues, 200.0, 200.0)];
        check("at random", &random, [Outlook::Unknown; 2]);
        let wrong = [(Ends, 400.0, 200.0), (Continues, 50.0, 200.0)];
        check("always wrong", &wrong, [Outlook::Returns, Outlook::Leaves]);
        check("one of them wrong", &wrong[1..], [Outlook::Leaves; 2]);
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
