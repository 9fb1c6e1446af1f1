//! Replays one trace against many policies and sizes: hit rate, share of the optimum, time and memory a block.

pub mod robust;

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;
use slackwater_meta::evict::PolicyKind;
use slackwater_meta::replay::{Outcome, Request, Trace};

/// The trace and the policies of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The policies, in the order of the report.
    pub policies: Vec<PolicyKind>,
    /// Sizes of the cache, in blocks.
    pub sizes: Vec<usize>,
    /// Size of an SSD below each of the sizes, in blocks, where two tiers are to be replayed too.
    pub ssd_blocks: Option<usize>,
    /// Tokens that a block of the trace holds.
    pub block_tokens: u32,
    /// The same requests with hints, to show what policies gain by them.
    pub hinted: Option<Vec<Request>>,
}

impl Default for Options {
    fn default() -> Self {
        let sizes = vec![1_000, 3_000, 10_000, 20_000, 30_000];
        Self {
            policies: PolicyKind::ALL.to_vec(),
            sizes,
            ssd_blocks: None,
            block_tokens: 512,
            hinted: None,
        }
    }
}

/// What the replays gave.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// One a policy and size.
    pub rows: Vec<Row>,
    /// The same with an SSD below, one a policy and size; only where an SSD was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierRow>,
    /// The hit ratios that bound every policy.
    pub limits: Limits,
}

/// One policy in a memory of one size over an SSD: blocks that are hit on SSD are promoted, those that leave memory are
/// written where the SSD's policy would keep them.
#[derive(Clone, Debug, Serialize)]
pub struct TierRow {
    /// The policy's name.
    pub policy: &'static str,
    /// Size of memory in blocks.
    pub size: usize,
    /// Size of the SSD in blocks.
    pub ssd: usize,
    /// Hits in memory as a share of all block references.
    pub memory_hit_rate: f64,
    /// Hits in either tier as a share of all block references.
    pub hit_rate: f64,
    /// Blocks written to SSD for each that was put.
    pub writes_per_put: f64,
}

/// One policy at one size.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The policy's name.
    pub policy: &'static str,
    /// Size of the cache in blocks.
    pub size: usize,
    /// Strict prefix hits as a share of all block references.
    pub hit_rate: f64,
    /// The hit rate on the same requests with hints; only where hints were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hinted_hit_rate: Option<f64>,
    /// The same as a share of what the offline optimum reaches.
    pub offline_share: f64,
    /// Wall time of the whole replay a block reference, scheduled estimation included.
    pub ns_per_access: f64,
    /// Memory of the policy a kept block, without tables whose size is fixed.
    pub bytes_per_block: f64,
    /// Memory of the tables whose size is fixed.
    pub fixed_bytes: usize,
}

/// What no policy can pass.
#[derive(Clone, Debug, Serialize)]
pub struct Limits {
    /// Hit rate of the offline optimum by size.
    pub offline: BTreeMap<usize, f64>,
}

/// Requests between two reports of progress.
const PROGRESS_STEP: usize = 1024;

/// Replays `requests` once for every policy and size.
///
/// `progress` is told how many of how many requests are done, over all replays.
///
/// # Panics
/// When `options.block_tokens` is zero.
pub fn run(
    options: &Options,
    requests: impl IntoIterator<Item = Request>,
    mut progress: impl FnMut(usize, usize),
) -> Report {
    let trace = Trace::new(requests, options.block_tokens);
    let hinted = options.hinted.clone();
    let hinted = hinted.map(|requests| Trace::new(requests, options.block_tokens));
    let offline: BTreeMap<usize, f64> = options
        .sizes
        .iter()
        .map(|&size| (size, trace.offline_optimum(size).hit_rate()))
        .collect();
    let total = trace.requests() * options.sizes.len() * options.policies.len();
    let (mut rows, mut tiers) = (Vec::new(), Vec::new());
    for &kind in &options.policies {
        for &size in &options.sizes {
            let before = rows.len() * trace.requests();
            let watch = |done: usize, _| {
                if done.is_multiple_of(PROGRESS_STEP) || done == trace.requests() {
                    progress(before + done, total);
                }
            };
            let mut row = row(&trace, kind, size, offline[&size], watch);
            row.hinted_hit_rate = hinted.as_ref().map(|trace| {
                trace
                    .replay(&mut *kind.build(0), size, |_, _| ())
                    .hit_rate()
            });
            rows.push(row);
            tiers.extend(
                options
                    .ssd_blocks
                    .map(|ssd| tier_row(&trace, kind, size, ssd)),
            );
        }
    }
    Report {
        rows,
        tiers,
        limits: Limits { offline },
    }
}

fn row(
    trace: &Trace,
    kind: PolicyKind,
    size: usize,
    offline: f64,
    watch: impl FnMut(usize, Outcome),
) -> Row {
    let mut policy = kind.build(0);
    let began = Instant::now();
    let outcome = trace.replay(&mut *policy, size, watch);
    let nanos = began.elapsed().as_nanos() as f64;
    let growing = policy.overhead_bytes().saturating_sub(policy.fixed_bytes());
    Row {
        policy: kind.name(),
        size,
        hit_rate: outcome.hit_rate(),
        hinted_hit_rate: None,
        offline_share: if offline > 0.0 {
            outcome.hit_rate() / offline
        } else {
            1.0
        },
        ns_per_access: nanos / outcome.references.max(1) as f64,
        bytes_per_block: growing as f64 / outcome.blocks_kept.max(1) as f64,
        fixed_bytes: policy.fixed_bytes(),
    }
}

fn tier_row(trace: &Trace, kind: PolicyKind, size: usize, ssd: usize) -> TierRow {
    let outcome = trace.replay_tiers((&mut *kind.build(0), size), (&mut *kind.build(0), ssd));
    TierRow {
        policy: kind.name(),
        size,
        ssd,
        memory_hit_rate: outcome.memory_hit_rate(),
        hit_rate: outcome.hit_rate(),
        writes_per_put: outcome.writes_per_put(),
    }
}

#[cfg(test)]
mod tests {
    use slackwater_base::Instant as Moment;

    use super::*;

    fn requests(count: u64) -> Vec<Request> {
        let request = |at: u64| Request {
            now: Moment::from_nanos(at * 1_000_000_000),
            blocks: vec![0, 1 + at % 5, 10 + at % 5],
            input_tokens: 48,
            output_tokens: None,
            hint: None,
            expect: None,
        };
        (0..count).map(request).collect()
    }

    #[test]
    fn a_row_for_every_policy_and_size_and_progress_to_the_end() {
        let options = Options {
            sizes: vec![4, 100],
            block_tokens: 16,
            ..Options::default()
        };
        let mut last = (0, 0);
        let report = run(&options, requests(3_000), |done, total| {
            last = (done, total)
        });
        assert_eq!(report.rows.len(), 2 * PolicyKind::ALL.len());
        assert_eq!(last, (3_000 * report.rows.len(), 3_000 * report.rows.len()));
        for row in &report.rows {
            let offline = report.limits.offline[&row.size];
            assert!(
                row.hit_rate <= offline && row.offline_share <= 1.0,
                "{row:?}"
            );
            assert!(
                row.ns_per_access > 0.0 && row.bytes_per_block > 0.0,
                "{row:?}"
            );
            if row.size == 100 {
                // Everything fits: all but the eleven first reads hit.
                assert!(
                    (row.hit_rate - (9_000.0 - 11.0) / 9_000.0).abs() < 1e-9,
                    "{row:?}"
                );
            }
        }
    }

    #[test]
    fn the_report_has_the_promised_keys() {
        let options = Options {
            policies: vec![PolicyKind::Lru],
            sizes: vec![4],
            block_tokens: 16,
            ssd_blocks: Some(20),
            hinted: Some(requests(10)),
        };
        let json = serde_json::to_value(run(&options, requests(10), |_, _| ())).unwrap();
        let row = json["rows"][0].as_object().unwrap();
        for key in [
            "policy",
            "size",
            "hit_rate",
            "offline_share",
            "ns_per_access",
            "bytes_per_block",
            "hinted_hit_rate",
        ] {
            assert!(row.contains_key(key), "{key}");
        }
        assert_eq!(row["hinted_hit_rate"], row["hit_rate"]);
        let tiers = json["tiers"][0].as_object().unwrap();
        for key in [
            "policy",
            "size",
            "ssd",
            "memory_hit_rate",
            "hit_rate",
            "writes_per_put",
        ] {
            assert!(tiers.contains_key(key), "{key}");
        }
        assert!(json["limits"]["offline"]["4"].is_number());
    }

    #[test]
    fn an_empty_trace_gives_zero_rates() {
        let options = Options {
            policies: vec![PolicyKind::Gittins],
            sizes: vec![4],
            block_tokens: 16,
            ..Options::default()
        };
        let report = run(&options, Vec::new(), |_, _| ());
        assert_eq!(report.rows[0].hit_rate, 0.0);
        assert_eq!(report.rows[0].offline_share, 1.0);
    }
}
