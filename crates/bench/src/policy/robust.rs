//! One policy beside its peers on many traffics: a policy that is left on must lose on none of them.

use serde::Serialize;
use slackwater_meta::MasterConfig;
use slackwater_meta::evict::PolicyKind;
use slackwater_meta::replay::{Outcome, Request, Trace};

/// The judged policy, the policies beside it, and the sizes of the comparison.
#[derive(Clone, Debug)]
pub struct Options {
    /// The policy that is judged.
    pub subject: PolicyKind,
    /// The policies of which the best one is the measure.
    pub peers: Vec<PolicyKind>,
    /// Sizes of the cache, in blocks.
    pub sizes: Vec<usize>,
    /// Tokens that a block holds.
    pub block_tokens: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            subject: MasterConfig::DEFAULT.eviction.policy,
            peers: PEERS.to_vec(),
            sizes: vec![1_000, 3_000, 10_000, 30_000],
            block_tokens: 512,
        }
    }
}

/// The policies that the subject is compared with unless others are named.
pub const PEERS: [PolicyKind; 4] = [
    PolicyKind::Lru,
    PolicyKind::S3Fifo,
    PolicyKind::Arc,
    PolicyKind::TwoQ,
];
/// How far below the best peer the subject may be, as a share of all block references: what dropping 2 % of the
/// requests at random changes.
pub const TOLERANCE: f64 = 0.003;

/// What the replays gave.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The judged policy's name.
    pub subject: &'static str,
    /// One a traffic and size.
    pub rows: Vec<Row>,
    /// Whether the subject is nowhere below the best peer by more than [`TOLERANCE`].
    pub holds: bool,
}

/// All policies on one traffic at one size.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the traffic.
    pub traffic: String,
    /// Size of the cache in blocks.
    pub size: usize,
    /// The hit rate of each policy over the whole traffic, the subject last.
    pub rates: Vec<Rate>,
    /// The peer with the most hits.
    pub best_peer: &'static str,
    /// The subject's hit rate less that of the best peer, over the whole traffic.
    pub margin: f64,
    /// The same over the first half of the requests, on which parameters may be chosen.
    pub margin_first_half: f64,
    /// The same over the second half, which is to be reported.
    pub margin_second_half: f64,
    /// The rule that the subject follows at the end, and how often another one took the lead; where it has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<Followed>,
    /// Whether neither the whole nor the second half is below the best peer by more than [`TOLERANCE`].
    pub holds: bool,
}

/// The rule that a policy follows.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Followed {
    /// Its name.
    pub name: &'static str,
    /// Its hit rate less that of the best other rule in the simulated caches.
    pub lead: f64,
    /// How often another rule took the lead.
    pub changes: u64,
}

/// Hit rates of one policy.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rate {
    /// The policy's name.
    pub policy: &'static str,
    /// Strict prefix hits as a share of all block references.
    pub whole: f64,
    /// In the first half of the requests.
    pub first_half: f64,
    /// In the second half, after the first.
    pub second_half: f64,
}

/// Replays the traffics, each once for every policy and size. `done` is told after each traffic how many are done.
///
/// # Panics
/// When `options.block_tokens` is zero, or `options` names no peer.
pub fn run<R: IntoIterator<Item = Request>>(
    options: &Options,
    traffics: impl IntoIterator<Item = (String, R)>,
    mut done: impl FnMut(usize),
) -> Report {
    let mut rows = Vec::new();
    for (number, (name, requests)) in traffics.into_iter().enumerate() {
        let trace = Trace::new(requests, options.block_tokens);
        for &size in &options.sizes {
            let rate = |kind: &PolicyKind| rate(&trace, *kind, size);
            let peers: Vec<Rate> = options.peers.iter().map(|kind| rate(kind).0).collect();
            let (subject, rule) = rate(&options.subject);
            rows.push(Row {
                rule,
                ..row(&name, size, peers, subject)
            });
        }
        done(number + 1);
    }
    Report {
        subject: options.subject.name(),
        holds: rows.iter().all(|row| row.holds),
        rows,
    }
}

fn row(traffic: &str, size: usize, peers: Vec<Rate>, subject: Rate) -> Row {
    let best = |of: fn(&Rate) -> f64| {
        let best = peers.iter().max_by(|a, b| of(a).total_cmp(&of(b)));
        *best.expect("at least one peer is named")
    };
    let (whole, first) = (best(|rate| rate.whole), best(|rate| rate.first_half));
    let second = best(|rate| rate.second_half);
    let margin = subject.whole - whole.whole;
    let margin_second_half = subject.second_half - second.second_half;
    Row {
        traffic: traffic.to_owned(),
        size,
        best_peer: whole.policy,
        margin,
        margin_first_half: subject.first_half - first.first_half,
        margin_second_half,
        rule: None,
        holds: margin.min(margin_second_half) >= -TOLERANCE,
        rates: peers.into_iter().chain(std::iter::once(subject)).collect(),
    }
}

fn rate(trace: &Trace, kind: PolicyKind, size: usize) -> (Rate, Option<Followed>) {
    let half = trace.requests() / 2;
    let mut first = Outcome::default();
    let mut policy = kind.build(0);
    let whole = trace.replay(&mut *policy, size, |done, so_far| {
        if done == half {
            first = so_far;
        }
    });
    let rule = policy.leader().map(|leader| Followed {
        name: leader.policy,
        lead: leader.lead(),
        changes: leader.changes,
    });
    let rate = Rate {
        policy: kind.name(),
        whole: whole.hit_rate(),
        first_half: first.hit_rate(),
        second_half: whole.since(&first).hit_rate(),
    };
    (rate, rule)
}

#[cfg(test)]
mod tests {
    use slackwater_base::Instant;

    use super::*;

    /// Two chains in turn, of which only one fits; in the second half only one of them.
    fn requests() -> Vec<Request> {
        let request = |at: u64| Request {
            now: Instant::from_nanos(at * 1_000_000_000),
            blocks: vec![if at < 100 { at % 2 } else { 0 }],
            input_tokens: 512,
            output_tokens: None,
            hint: None,
            expect: None,
        };
        (0..200).map(request).collect()
    }

    #[test]
    fn halves_are_counted_apart_and_margins_are_to_the_best_peer() {
        let options = Options {
            subject: PolicyKind::Lru,
            sizes: vec![1, 2],
            ..Options::default()
        };
        let mut told = 0;
        let report = run(&options, [("two".to_owned(), requests())], |done| {
            told = done
        });
        assert_eq!((told, report.rows.len()), (1, 2));
        let lru = report.rows[0].rates[4];
        assert_eq!(lru.policy, "lru");
        assert_eq!((lru.first_half, lru.second_half), (0.0, 0.99));
        assert_eq!(lru.whole, 0.495);
        for row in &report.rows {
            let best = row.rates[..4]
                .iter()
                .map(|rate| rate.whole)
                .fold(0.0, f64::max);
            assert_eq!(row.margin, row.rates[4].whole - best, "{row:?}");
        }
    }

    #[test]
    fn a_subject_below_a_peer_by_more_than_the_tolerance_does_not_hold() {
        let rate = |policy, whole, second_half| Rate {
            policy,
            whole,
            first_half: whole,
            second_half,
        };
        let peers = || vec![rate("lru", 0.5, 0.5), rate("arc", 0.4, 0.6)];
        for (whole, second, holds) in [
            (0.5 - 0.9 * TOLERANCE, 0.6, true),
            (0.5 - 1.1 * TOLERANCE, 0.6, false),
            (0.5, 0.6 - 1.1 * TOLERANCE, false),
        ] {
            let row = row("any", 10, peers(), rate("gittins", whole, second));
            assert_eq!(row.holds, holds, "{row:?}");
            assert_eq!(row.best_peer, "lru");
        }
    }
}
