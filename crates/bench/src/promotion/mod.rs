//! What promotion on hit is worth: the latency of a read before it and after it, and how long it takes.
//!
//! The counter of SSD reads is read around every read, so that no sample is counted for the wrong state: before, each
//! read must raise it, and after, none may. The method is that of the change that brought promotion to the incumbent
//! (kvcache-ai/Mooncake, pull request 2071), so that the tables can be laid side by side.

mod embedded;
mod room;
mod served;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use slackwater_base::{ByteSize, Instant, hash64};
use slackwater_report::{Better, Bound, Compared};
use slackwater_wait::now;
use slackwater_wire::{ReplicaAt, ReplicaState};
use thiserror::Error;

use crate::cluster::ClusterError;
use crate::machine::Machine;
use crate::store;
use crate::tiers::raw;

/// The load and sizes of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the store's directory is made: on the device that is to be measured.
    pub directory: PathBuf,
    /// Objects, each read in every state.
    pub samples: usize,
    /// Length of each.
    pub value_bytes: usize,
    /// How to start this program so that it calls [`crate::cluster::child`] with the arguments that follow: a master and two nodes
    /// are measured, each a process. None measures a store in this process.
    pub served: Option<Vec<OsString>>,
}

impl Options {
    /// The published benchmark, in `directory`.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            samples: 1000,
            value_bytes: 1 << 20,
            served: None,
        }
    }

    /// Bytes of all values.
    fn whole(&self) -> u64 {
        self.samples as u64 * self.value_bytes as u64
    }

    /// Memory that takes all values and stays below the watermark of admission.
    fn memory(&self) -> ByteSize {
        ByteSize((self.whole() * 5 / 4).max(ByteSize::mib(16).0))
    }

    fn ssd(&self) -> ByteSize {
        ByteSize((self.whole() * 2).max(ByteSize::mib(64).0))
    }

    fn keys(&self) -> Vec<String> {
        (0..self.samples)
            .map(|number| format!("object-{number}"))
            .collect()
    }
}

/// Why there is no report.
#[derive(Debug, Error)]
pub enum Failure {
    /// The store or a file failed, or a read came from another tier than the state it is a sample of.
    #[error(transparent)]
    Store(#[from] store::Failure),
    /// A process or a call to it failed.
    #[error(transparent)]
    Served(#[from] ClusterError),
    /// The raw device could not be measured.
    #[error(transparent)]
    Raw(#[from] crate::tiers::Error),
    /// The values would not fit.
    #[error(
        "{samples} values of {value} need {needed} of {what}, and {free} are free: give fewer --samples or shorter --value-bytes"
    )]
    Room {
        /// What they do not fit on.
        what: String,
        /// How many there are to be.
        samples: usize,
        /// Length of each.
        value: ByteSize,
        /// Space for all of them, in bytes.
        needed: ByteSize,
        /// Space that is free, in bytes.
        free: ByteSize,
    },
}

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where it was measured.
    pub machine: Machine,
    /// Whether the values are in other processes than their reader.
    pub served: bool,
    /// Reads from SSD.
    pub pre: Percentiles,
    /// Reads from memory, after promotion.
    pub post: Percentiles,
    /// How many times faster the second are.
    pub speedup: Speedup,
    /// Objects in each state.
    pub samples: usize,
    /// Length of each.
    pub value_bytes: usize,
    /// SSD reads that the reads after promotion caused: 0, or promotion has no effect.
    pub post_ssd_reads: u64,
    /// From the begin of the read that earns a promotion, itself from SSD, to the moment the copy in memory can be read.
    pub promote_delay_p50_us: f64,
    /// The same, 99 of 100 at most.
    pub promote_delay_p99_us: f64,
    /// Promotions a second when every object becomes hot at once, their own reads included.
    pub burst_promotions_per_s: f64,
    /// Direct reads of as many bytes from a plain file, several at once, a second.
    pub ssd_reads_per_s: f64,
    /// Bytes that promotion read from SSD for each byte that it brought back.
    pub ssd_bytes_per_promoted_byte: f64,
    /// The same with the reads that earned the promotions.
    pub burst_ssd_bytes_per_promoted_byte: f64,
    /// How SSD reads were done.
    pub io: String,
    /// The times of the report side by side, one row a state.
    pub rows: Vec<Row>,
    /// Reads where nothing is ever promoted, and those of what was.
    pub compared: Vec<Compared>,
    /// What the figures should be.
    pub bounds: Vec<Bound>,
}

/// What was timed in one state of the objects.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What it is the time of.
    pub what: &'static str,
    /// How often it was timed.
    pub samples: usize,
    /// Its distribution.
    #[serde(flatten)]
    pub times: Percentiles,
}

/// A distribution of times in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Percentiles {
    /// Half are shorter.
    pub p50_us: f64,
    /// 95 of 100 are shorter.
    pub p95_us: f64,
    /// 99 of 100 are shorter.
    pub p99_us: f64,
}

/// Ratios of the percentiles.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Speedup {
    /// Of the medians.
    pub p50: f64,
    /// Of the 95th percentiles.
    pub p95: f64,
    /// Of the 99th percentiles.
    pub p99: f64,
}

/// What one form of the store gave; times in microseconds.
struct Measured {
    pre: Vec<f64>,
    post: Vec<f64>,
    delays: Vec<f64>,
    post_ssd_reads: u64,
    burst: Burst,
    io: String,
}

/// What happened while every object became hot at once.
struct Burst {
    promotions: u64,
    seconds: f64,
    /// Records that were read to be promoted and for nothing else.
    promotion_reads: u64,
    promoted_bytes: u64,
    /// All bytes that were read from SSD.
    read_bytes: u64,
}

/// Measures.
///
/// # Errors
/// When the values do not fit, the store or a process fails, or a read comes from another tier than the state it is a sample of.
pub fn run(options: &Options) -> Result<Report, Failure> {
    room::check(options, room::Free::look(&options.directory)?)?;
    let measured = match &options.served {
        None => embedded::measure(options)?,
        Some(child) => served::measure(options, child)?,
    };
    let reads = options.samples.min(READS_MAX) as u64;
    let ssd_reads_per_s = raw::reads_per_s(&options.directory, options.value_bytes, reads)?;
    Ok(report(options, measured, ssd_reads_per_s))
}

fn report(options: &Options, measured: Measured, ssd_reads_per_s: f64) -> Report {
    let [pre, post, delays] = [measured.pre, measured.post, measured.delays].map(percentiles);
    let burst = &measured.burst;
    let burst_promotions_per_s = burst.promotions as f64 / burst.seconds;
    let promoted_bytes = burst.promoted_bytes as f64;
    let record_bytes = options.value_bytes.next_multiple_of(4096) as u64;
    let ssd_bytes_per_promoted_byte =
        (burst.promotion_reads * record_bytes) as f64 / promoted_bytes;
    let row = |what, times| Row {
        what,
        samples: options.samples,
        times,
    };
    let bounds = vec![
        Bound::at_most(
            "reads from SSD after promotion",
            measured.post_ssd_reads as f64,
            0.0,
        ),
        Bound::at_least(
            "p50 before promotion over after",
            pre.p50_us / post.p50_us,
            2.0,
        ),
        Bound::at_most(
            "ms from the earning read to memory, p50",
            delays.p50_us / 1e3,
            20.0,
        ),
        Bound::at_least(
            "rate of a burst over that of direct reads from SSD",
            burst_promotions_per_s / ssd_reads_per_s,
            0.5,
        ),
        Bound::at_most(
            "SSD bytes that promotion reads for a promoted byte",
            ssd_bytes_per_promoted_byte,
            1.05,
        ),
    ];
    let of = [
        ("p50", pre.p50_us, post.p50_us),
        ("p95", pre.p95_us, post.p95_us),
        ("p99", pre.p99_us, post.p99_us),
    ];
    let compared = of.map(|(what, before, ours)| {
        let what = format!(
            "a read of {}, {what}, µs",
            ByteSize(options.value_bytes as u64)
        );
        Compared::new(what, Better::Less, ours).before(Some(before))
    });
    Report {
        compared: compared.into(),
        rows: vec![row(PRE, pre), row(POST, post), row(DELAY, delays)],
        bounds,
        machine: Machine::detect(),
        served: options.served.is_some(),
        speedup: Speedup {
            p50: pre.p50_us / post.p50_us,
            p95: pre.p95_us / post.p95_us,
            p99: pre.p99_us / post.p99_us,
        },
        pre,
        post,
        samples: options.samples,
        value_bytes: options.value_bytes,
        post_ssd_reads: measured.post_ssd_reads,
        promote_delay_p50_us: delays.p50_us,
        promote_delay_p99_us: delays.p99_us,
        burst_promotions_per_s,
        ssd_reads_per_s,
        ssd_bytes_per_promoted_byte,
        burst_ssd_bytes_per_promoted_byte: burst.read_bytes as f64 / promoted_bytes,
        io: measured.io,
    }
}

const PRE: &str = "read from SSD";
const POST: &str = "read from memory, after promotion";
const DELAY: &str = "from the read that earns a promotion to memory";
/// A promotion that takes longer is an error.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most direct reads from which the rate of the SSD is taken.
const READS_MAX: usize = 2000;
/// Reads that earn a promotion.
pub(crate) const THRESHOLD: u32 = 2;

/// Whether a burst goes on: a slow device takes long for all of it, but not for the next promotion.
#[derive(Default)]
struct Progress {
    ended: u64,
    since: Option<Instant>,
}

impl Progress {
    /// Whether none has ended for too long, now that so many have.
    fn is_over(&mut self, ended: u64) -> bool {
        let since = self.since.get_or_insert_with(now);
        if std::mem::replace(&mut self.ended, ended) != ended {
            *since = now();
        }
        now().since(*since) > PATIENCE
    }
}

fn value(key: &str, bytes: usize) -> Vec<u8> {
    store::random(hash64(key.as_bytes()), bytes)
}

fn is_in_memory(replicas: &[(ReplicaAt, ReplicaState, u32)]) -> bool {
    let readable = |(at, state, _): &(ReplicaAt, ReplicaState, u32)| {
        matches!(at, ReplicaAt::Memory(_)) && *state == ReplicaState::Complete
    };
    replicas.iter().any(readable)
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn percentiles(mut samples: Vec<f64>) -> Percentiles {
    samples.sort_by(f64::total_cmp);
    let at = |quantile: f64| {
        samples[((samples.len() as f64 * quantile) as usize).min(samples.len() - 1)]
    };
    Percentiles {
        p50_us: at(0.50),
        p95_us: at(0.95),
        p99_us: at(0.99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_run_separates_the_states() {
        let root = tempfile::tempdir().unwrap();
        let options = Options {
            samples: 24,
            value_bytes: 100_000,
            ..Options::new(root.path().to_owned())
        };
        let report = run(&options).unwrap();
        assert_eq!((report.samples, report.post_ssd_reads), (24, 0));
        assert!(report.pre.p50_us > 0.0 && report.promote_delay_p50_us > 0.0);
        let compared = serde_json::to_value(&report.compared).unwrap();
        let row = (
            &compared[0]["before"],
            &compared[0]["ours"],
            &compared[0]["ahead"],
        );
        let of = [report.pre.p50_us, report.post.p50_us, report.speedup.p50]
            .map(serde_json::Value::from);
        assert_eq!(row, (&of[0], &of[1], &of[2]));
        assert!(report.ssd_bytes_per_promoted_byte <= 1.1, "{report:?}");
        assert!(!report.served && report.ssd_reads_per_s > 0.0);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["bounds"].as_array().map(Vec::len), Some(5));
        assert_eq!(json["bounds"][0]["holds"], true);
        assert!(json["speedup"]["p95"].is_number() && json["pre"]["p99_us"].is_number());
        for (row, what) in [PRE, POST, DELAY].into_iter().enumerate() {
            let row = &json["rows"][row];
            assert_eq!(
                (row["what"].as_str(), row["samples"].as_u64()),
                (Some(what), Some(24))
            );
            assert!(
                row["p50_us"].as_f64() > Some(0.0)
                    && row["p99_us"].as_f64() >= row["p50_us"].as_f64(),
                "{row}"
            );
        }
    }

    #[test]
    fn each_bound_judges_its_own_figure() {
        let good = || Measured {
            pre: vec![500.0; 4],
            post: vec![100.0; 4],
            delays: vec![2000.0; 4],
            post_ssd_reads: 0,
            burst: Burst {
                promotions: 4,
                seconds: 0.004,
                promotion_reads: 1,
                promoted_bytes: 4 << 20,
                read_bytes: 5 << 20,
            },
            io: String::new(),
        };
        let options = Options::new(PathBuf::new());
        let check = |change: fn(&mut Measured), broken: Option<usize>| {
            let mut measured = good();
            change(&mut measured);
            let report = report(&options, measured, 1000.0);
            let bounds = report.bounds.iter();
            let found: Vec<usize> = (0..)
                .zip(bounds)
                .filter_map(|(at, bound)| (!bound.holds()).then_some(at))
                .collect();
            assert_eq!(found, Vec::from_iter(broken), "{:?}", report.bounds);
        };
        check(|_| {}, None);
        check(|it| it.post_ssd_reads = 1, Some(0));
        check(|it| it.post = vec![260.0; 4], Some(1));
        check(|it| it.delays = vec![20_100.0; 4], Some(2));
        check(|it| it.burst.seconds = 0.0081, Some(3));
        check(|it| it.burst.promotion_reads = 5, Some(4));
        let report = report(&options, good(), 1000.0);
        assert_eq!(
            (
                report.burst_promotions_per_s,
                report.ssd_bytes_per_promoted_byte,
                report.burst_ssd_bytes_per_promoted_byte
            ),
            (1000.0, 0.25, 1.25)
        );
    }
}
