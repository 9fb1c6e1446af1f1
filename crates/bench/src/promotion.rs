//! What promotion on hit is worth: the latency of a read before it and after it, and how long it takes.
//!
//! The counter of SSD reads is read around every read, so that no sample is counted for the wrong state: before, each
//! read must raise it, and after, none may. The method is that of the change that brought promotion to the incumbent
//! (kvcache-ai/Mooncake, pull request 2071), so that the tables can be laid side by side.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;
use slackwater_base::{ByteSize, Rng, hash64};
use slackwater_node::{Config, GetOptions, PutOptions, Stats, Store, Tier};
use slackwater_report::Bound;
use slackwater_wire::{ReplicaAt, ReplicaState, Tenant};

use crate::machine::Machine;
pub use crate::store::Failure;
use crate::store::{expect, shuffled};

/// The load and sizes of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the store's directory is made: on the device that is to be measured.
    pub directory: PathBuf,
    /// Objects, each read in every state.
    pub samples: usize,
    /// Length of each.
    pub value_bytes: usize,
}

impl Options {
    /// The published benchmark, in `directory`.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            samples: 1000,
            value_bytes: 1 << 20,
        }
    }
}

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where it was measured.
    pub machine: Machine,
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
    /// Bytes that promotion read from SSD for each byte that it brought back.
    pub ssd_bytes_per_promoted_byte: f64,
    /// The same with the reads that earned the promotions.
    pub burst_ssd_bytes_per_promoted_byte: f64,
    /// How SSD reads were done.
    pub io: String,
    /// The times of the report side by side, one row a state.
    pub rows: Vec<Row>,
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

/// Measures.
///
/// # Errors
/// When the store fails, or a read comes from another tier than the state it is a sample of.
pub fn run(options: &Options) -> Result<Report, Failure> {
    let mut bench = Bench::new(options)?;
    let store = bench.open()?;
    let pre = bench.pass(&store, Tier::Disk)?;
    let delays = bench.promote(&store)?;
    let before = store.stats();
    let post = bench.pass(&store, Tier::Memory)?;
    let after = store.stats();
    store.close()?;
    let store = bench.open()?;
    let burst = bench.burst(&store)?;
    store.close()?;
    let (pre, post, delays) = (percentiles(pre), percentiles(post), percentiles(delays));
    let value_bytes = options.value_bytes;
    let row = |what, times| Row {
        what,
        samples: options.samples,
        times,
    };
    let post_ssd_reads = after.ssd_reads - before.ssd_reads;
    let bounds = vec![
        Bound::at_most("reads from SSD after promotion", post_ssd_reads as f64, 0.0),
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
            "rate of a burst over that of one read after another",
            burst.promotions_per_s * pre.p50_us / 1e6,
            0.5,
        ),
        Bound::at_most(
            "SSD bytes that promotion reads for a promoted byte",
            burst.promotion_bytes,
            1.05,
        ),
    ];
    Ok(Report {
        rows: vec![row(PRE, pre), row(POST, post), row(DELAY, delays)],
        bounds,
        machine: Machine::detect(),
        speedup: Speedup {
            p50: pre.p50_us / post.p50_us,
            p95: pre.p95_us / post.p95_us,
            p99: pre.p99_us / post.p99_us,
        },
        pre,
        post,
        samples: options.samples,
        value_bytes,
        post_ssd_reads,
        promote_delay_p50_us: delays.p50_us,
        promote_delay_p99_us: delays.p99_us,
        burst_promotions_per_s: burst.promotions_per_s,
        ssd_bytes_per_promoted_byte: burst.promotion_bytes,
        burst_ssd_bytes_per_promoted_byte: burst.all_bytes,
        io: after.io.chosen,
    })
}

const PRE: &str = "read from SSD";
const POST: &str = "read from memory, after promotion";
const DELAY: &str = "from the read that earns a promotion to memory";

struct Bench {
    config: Config,
    keys: Vec<String>,
    bytes: usize,
    buffer: Vec<u8>,
    rng: Rng,
}

struct Burst {
    promotions_per_s: f64,
    promotion_bytes: f64,
    all_bytes: f64,
}

impl Bench {
    /// Puts every object and leaves all of them on SSD.
    fn new(options: &Options) -> Result<Self, Failure> {
        let (samples, bytes) = (options.samples, options.value_bytes);
        let whole = (samples * bytes) as u64;
        let config = Config {
            memory: ByteSize((whole * 5 / 4).max(ByteSize::mib(16).0)),
            ssd: ByteSize((whole * 2).max(ByteSize::mib(64).0)),
            dir: Some(options.directory.join("store")),
            promotion_threshold: 2,
            ..Config::default()
        };
        let keys: Vec<String> = (0..samples)
            .map(|number| format!("object-{number}"))
            .collect();
        let bench = Self {
            config,
            keys,
            bytes,
            buffer: vec![0; bytes],
            rng: Rng::new(7),
        };
        let store = bench.open()?;
        for key in &bench.keys {
            store.put(key.as_bytes(), &bench.value(key), &PutOptions::default())?;
        }
        store.close()?;
        Ok(bench)
    }

    fn open(&self) -> Result<Store, Failure> {
        Ok(Store::open(self.config.clone())?)
    }

    fn value(&self, key: &str) -> Vec<u8> {
        crate::store::random(hash64(key.as_bytes()), self.bytes)
    }

    /// Reads every object once, all of them from `tier`; the time of each in microseconds.
    fn pass(&mut self, store: &Store, tier: Tier) -> Result<Vec<f64>, Failure> {
        let order = shuffled(&mut self.rng, self.keys.len());
        order
            .into_iter()
            .map(|number| self.sample(store, number, tier))
            .collect()
    }

    fn sample(&mut self, store: &Store, number: usize, tier: Tier) -> Result<f64, Failure> {
        let key = &self.keys[number];
        let before = store.stats().ssd_reads;
        let begun = Instant::now();
        let got = store.get_into(key.as_bytes(), &mut self.buffer, &GetOptions::default())?;
        let took = begun.elapsed();
        let read = store.stats().ssd_reads - before;
        expect(got.map(|got| got.tier), tier, key)?;
        if read != u64::from(tier == Tier::Disk) {
            return Err(Failure::Unexpected(format!(
                "{key}: {read} SSD reads for a read from {tier:?}"
            )));
        }
        if self.buffer != self.value(key) {
            return Err(Failure::Unexpected(format!("{key}: wrong bytes")));
        }
        Ok(micros(took))
    }

    /// Reads every object once more, which earns it its promotion; how long each then took, in microseconds.
    fn promote(&mut self, store: &Store) -> Result<Vec<f64>, Failure> {
        let mut delays = Vec::with_capacity(self.keys.len());
        for number in shuffled(&mut self.rng, self.keys.len()) {
            let key = self.keys[number].clone();
            let earned = Instant::now();
            let got = store.get_into(key.as_bytes(), &mut self.buffer, &GetOptions::default())?;
            expect(got.map(|got| got.tier), Tier::Disk, &key)?;
            while !in_memory(store, &key)? {
                if earned.elapsed() > PATIENCE {
                    return Err(Failure::Unexpected(format!(
                        "{key}: not promoted: {:?}",
                        store.stats().promotions
                    )));
                }
                std::thread::yield_now();
            }
            delays.push(micros(earned.elapsed()));
        }
        Ok(delays)
    }

    /// Makes every object hot at once and waits until all are in memory.
    fn burst(&mut self, store: &Store) -> Result<Burst, Failure> {
        self.pass(store, Tier::Disk)?;
        let before = store.stats();
        let begun = Instant::now();
        let keys: Vec<&[u8]> = self.keys.iter().map(String::as_bytes).collect();
        let mut memory = vec![0; self.bytes * BATCH.min(keys.len())];
        for keys in keys.chunks(BATCH) {
            let mut targets: Vec<&mut [u8]> =
                memory.chunks_mut(self.bytes).take(keys.len()).collect();
            for got in store.get_batch_into(keys, &mut targets, &GetOptions::default()) {
                got?;
            }
        }
        let all = self.keys.len() as u64;
        let done = |stats: &Stats| stats.promotions.completed - before.promotions.completed;
        let mut stats = store.stats();
        while done(&stats) < all {
            if begun.elapsed() > PATIENCE {
                return Err(Failure::Unexpected(format!(
                    "{} of {all} promoted: {stats:?}",
                    done(&stats)
                )));
            }
            std::thread::sleep(Duration::from_micros(200));
            stats = store.stats();
        }
        let seconds = begun.elapsed().as_secs_f64();
        let promoted =
            (stats.promotions.completed_bytes - before.promotions.completed_bytes) as f64;
        let read = |stats: &Stats| stats.ssd.map_or(0, |ssd| ssd.read_bytes);
        let promotion_reads = (stats.promotion_reads - before.promotion_reads) as f64;
        Ok(Burst {
            promotions_per_s: all as f64 / seconds,
            promotion_bytes: promotion_reads * self.bytes.next_multiple_of(4096) as f64 / promoted,
            all_bytes: (read(&stats) - read(&before)) as f64 / promoted,
        })
    }
}

/// Objects that one call of the burst reads.
const BATCH: usize = 32;
/// A promotion that takes longer is an error.
const PATIENCE: Duration = Duration::from_secs(60);

fn in_memory(store: &Store, key: &str) -> Result<bool, Failure> {
    let description = store.describe(key.as_bytes(), &Tenant::DEFAULT)?;
    let readable = |(at, state, _): &(ReplicaAt, ReplicaState, u32)| {
        matches!(at, ReplicaAt::Memory(_)) && *state == ReplicaState::Complete
    };
    Ok(description.is_some_and(|description| description.replicas.iter().any(readable)))
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
        assert!(report.ssd_bytes_per_promoted_byte <= 1.1, "{report:?}");
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
}
