//! The rules by which a cache can be run from the same state, and which of them it follows.

/// How a block is valued. All rules use the same segments, classes and ages, so that changing the rule loses nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Rule {
    /// By the learned index.
    #[default]
    Index,
    /// By age alone.
    Recency,
    /// By age, where a block that was reused counts as younger.
    Reused,
}

/// Number of rules.
pub(super) const RULES: usize = 3;
/// How many times as young a reused block counts under [`Rule::Reused`].
const YOUNGER: u64 = 8;

impl Rule {
    pub(super) const ALL: [Self; RULES] = [Self::Index, Self::Recency, Self::Reused];

    /// The name in explanations, reports and metrics.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Index => "gittins",
            Self::Recency => "lru",
            Self::Reused => "lru-reused",
        }
    }

    /// What a block of an age in ticks is worth by age alone; of no meaning outside comparisons. `None` where the rule
    /// values by what was learned.
    pub(super) fn by_age(self, reused: bool, age: u32) -> Option<f64> {
        let age = self.age_counted(reused, age) as f64 / YOUNGER as f64;
        (self != Self::Index).then(|| 1.0 / (1.0 + age))
    }

    /// The age that a block counts as under the other rules, in parts of a tick: of two blocks the one with the higher is
    /// worth less.
    pub(super) const fn age_counted(self, reused: bool, age: u32) -> u64 {
        match self {
            Self::Reused if reused => age as u64,
            Self::Index | Self::Recency | Self::Reused => age as u64 * YOUNGER,
        }
    }
}

/// Which rule leads among the simulated caches.
#[derive(Clone, Debug)]
pub(super) struct Race {
    pub(super) leader: Rule,
    /// Block references that the simulated caches saw, and the hits of each, both decaying.
    references: f64,
    hits: [f64; RULES],
    /// For each rule, the sum and the sum of squares of its hits less those of the leader, a request each.
    leads: [(f64, f64); RULES],
    /// How often another rule took the lead.
    pub(super) changes: u64,
}

/// Factor by which the sums decay with each request that the simulated caches see: a half-life of 700.
const DECAY: f64 = 0.999;
/// A rule takes the lead when it is ahead by this many standard deviations of the difference.
const SIGMAS: f64 = 2.5;
/// Age alone takes it sooner, because by following it nothing is lost to the policy that this one replaces, ...
const SIGMAS_PLAIN: f64 = 1.0;
/// ... where a simulated block stands for no more real ones than this. Of a larger cache few requests are seen, and one that
/// is still filling is small.
const SEEN_WELL: usize = 16;
/// The learned index takes the lead back sooner still: it gains more where it is better.
const SIGMAS_BACK: f64 = 0.5;
/// A rule that takes the lead is ahead by this share of the references too: following another one has to be worth the change.
const LEAST_LEAD: f64 = 0.001;

impl Race {
    pub(super) const fn new() -> Self {
        Self {
            leader: Rule::Index,
            references: 0.0,
            hits: [0.0; RULES],
            leads: [(0.0, 0.0); RULES],
            changes: 0,
        }
    }

    /// A request of `references` blocks had so many hits under each rule.
    pub(super) fn count(&mut self, references: usize, hits: [usize; RULES]) {
        self.references = self.references * DECAY + references as f64;
        let led = hits[self.leader as usize] as f64;
        for (at, &hits) in hits.iter().enumerate() {
            self.hits[at] = self.hits[at] * DECAY + hits as f64;
            let (sum, squares) = &mut self.leads[at];
            let lead = hits as f64 - led;
            *sum = *sum * DECAY + lead;
            *squares = *squares * DECAY + lead * lead;
        }
    }

    /// The rule that takes the lead now; `None` when none is clearly ahead.
    ///
    /// `share` is how many blocks of the real cache there are for each that is simulated.
    pub(super) fn judge(&mut self, share: usize) -> Option<Rule> {
        let ahead = |at: usize| {
            let (sum, squares) = self.leads[at];
            let sigmas = match Rule::ALL[at] {
                Rule::Index => SIGMAS_BACK,
                Rule::Recency if share <= SEEN_WELL => SIGMAS_PLAIN,
                Rule::Recency | Rule::Reused => SIGMAS,
            };
            sum > sigmas * squares.sqrt() && sum > LEAST_LEAD * self.references
        };
        let best = (0..RULES)
            .filter(|&at| ahead(at))
            .max_by(|&a, &b| self.leads[a].0.total_cmp(&self.leads[b].0))?;
        self.leader = Rule::ALL[best];
        self.leads = [(0.0, 0.0); RULES];
        self.changes += 1;
        Some(self.leader)
    }

    /// The hits of a rule as a share of what the simulated caches saw.
    pub(super) fn rate(&self, rule: Rule) -> f64 {
        if self.references == 0.0 {
            0.0
        } else {
            self.hits[rule as usize] / self.references
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first rule to take the lead within 400 requests, where a simulated block stands for `share` real ones.
    fn leader_of(share: usize, hits: &dyn Fn(usize) -> [usize; RULES]) -> Option<Rule> {
        let mut race = Race::new();
        let mut taken = None;
        for request in 0..400 {
            race.count(20, hits(request));
            taken = taken.or(race.judge(share));
        }
        assert_eq!(race.leader, taken.unwrap_or_default());
        taken
    }

    /// On generated chat the learned index stayed for hours with no more than two deviations against it. Where few requests are
    /// seen as much comes by luck, and so it does for a rule that may lose to plain age.
    #[test]
    fn age_alone_takes_the_lead_sooner_where_much_is_seen() {
        // Four requests with ten hits more: two deviations.
        let hits = |rule: Rule| {
            move |at: usize| {
                let mut hits = [10; RULES];
                hits[rule as usize] += if at % 100 == 7 { 10 } else { 0 };
                hits
            }
        };
        let check = |share: usize, rule: Rule, leader: Option<Rule>| {
            assert_eq!(leader_of(share, &hits(rule)), leader, "{share} {rule:?}");
        };
        check(SEEN_WELL, Rule::Recency, Some(Rule::Recency));
        check(SEEN_WELL + 1, Rule::Recency, None);
        check(SEEN_WELL, Rule::Reused, None);
    }

    #[test]
    fn a_rule_takes_the_lead_only_when_it_is_clearly_ahead() {
        let check = |story: &str, hits: &dyn Fn(usize) -> [usize; RULES], leader: Option<Rule>| {
            assert_eq!(leader_of(300, hits), leader, "{story}");
        };
        check("equal", &|_| [10, 10, 10], None);
        check("ahead", &|at| [10, 11 - at % 2, 10], Some(Rule::Recency));
        check(
            "the best of two",
            &|at| [10, 11 - at % 2, 11],
            Some(Rule::Reused),
        );
        check("behind", &|_| [10, 2, 9], None);
        check(
            "by luck",
            &|at| if at == 7 { [10, 20, 10] } else { [10, 10, 10] },
            None,
        );
        // Of a large cache the simulated ones see few requests. Two that hit more were enough to follow another rule, which
        // cost a hundredth of all hits.
        check(
            "by luck, six times",
            &|at| {
                if at % 75 == 7 {
                    [10, 20, 10]
                } else {
                    [10, 10, 10]
                }
            },
            None,
        );
        check(
            "by too little",
            &|at| [10, 10 + usize::from(at % 100 == 0), 10],
            None,
        );
    }

    #[test]
    fn the_lead_returns_to_who_earns_it() {
        let mut race = Race::new();
        let mut leaders = Vec::new();
        for request in 0..2_000 {
            race.count(
                20,
                if request < 1_000 {
                    [8, 10, 8]
                } else {
                    [10, 8, 8]
                },
            );
            leaders.extend(race.judge(1));
        }
        assert_eq!(leaders, [Rule::Recency, Rule::Index]);
        assert_eq!(race.changes, 2);
        assert!(race.rate(Rule::Index) > race.rate(Rule::Recency));
    }

    #[test]
    fn reused_blocks_count_as_younger_only_where_the_rule_says_so() {
        assert_eq!(Rule::Index.by_age(true, 5), None);
        assert_eq!(
            Rule::Recency.by_age(true, 8),
            Rule::Recency.by_age(false, 8)
        );
        assert_eq!(
            Rule::Reused.by_age(true, 80),
            Rule::Reused.by_age(false, 10)
        );
        assert!(Rule::Recency.by_age(false, 9) < Rule::Recency.by_age(false, 8));
    }
}
