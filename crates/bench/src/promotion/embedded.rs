//! Promotion in a store of this process.

use std::time::{Duration, Instant};

use slackwater_base::Rng;
use slackwater_node::{Config, GetOptions, PutOptions, Stats, Store, Tier};
use slackwater_wire::Tenant;

use super::{Burst, Measured, Options, PATIENCE, Progress, THRESHOLD, is_in_memory, micros, value};
use crate::store::{Failure, expect, shuffled};

/// Objects that one call of the burst reads.
const BATCH: usize = 32;

pub(super) fn measure(options: &Options) -> Result<Measured, Failure> {
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
    Ok(Measured {
        pre,
        post,
        delays,
        post_ssd_reads: after.ssd_reads - before.ssd_reads,
        burst,
        io: after.io.chosen,
    })
}

struct Bench {
    config: Config,
    keys: Vec<String>,
    bytes: usize,
    buffer: Vec<u8>,
    rng: Rng,
}

impl Bench {
    /// Puts every object and leaves all of them on SSD.
    fn new(options: &Options) -> Result<Self, Failure> {
        let bytes = options.value_bytes;
        let config = Config {
            memory: options.memory(),
            ssd: options.ssd(),
            dir: Some(options.directory.join("store")),
            promotion_threshold: THRESHOLD,
            ..Config::default()
        };
        let bench = Self {
            config,
            keys: options.keys(),
            bytes,
            buffer: vec![0; bytes],
            rng: Rng::new(7),
        };
        let store = bench.open()?;
        for key in &bench.keys {
            store.put(key.as_bytes(), &value(key, bytes), &PutOptions::default())?;
        }
        store.close()?;
        Ok(bench)
    }

    fn open(&self) -> Result<Store, Failure> {
        Ok(Store::open(self.config.clone())?)
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
        if self.buffer != value(key, self.bytes) {
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
        let mut progress = Progress::default();
        while done(&stats) < all {
            if progress.is_over(done(&stats)) {
                return Err(Failure::Unexpected(format!(
                    "{} of {all} promoted: {stats:?}",
                    done(&stats)
                )));
            }
            std::thread::sleep(Duration::from_micros(200));
            stats = store.stats();
        }
        let seconds = begun.elapsed().as_secs_f64();
        let (ended, began) = (stats.promotions, before.promotions);
        let read = |stats: &Stats| stats.ssd.map_or(0, |ssd| ssd.read_bytes);
        Ok(Burst {
            promotions: all,
            seconds,
            promotion_reads: stats.promotion_reads - before.promotion_reads,
            promoted_bytes: ended.completed_bytes - began.completed_bytes,
            read_bytes: read(&stats) - read(&before),
        })
    }
}

fn in_memory(store: &Store, key: &str) -> Result<bool, Failure> {
    let description = store.describe(key.as_bytes(), &Tenant::DEFAULT)?;
    Ok(description.is_some_and(|description| is_in_memory(&description.replicas)))
}
