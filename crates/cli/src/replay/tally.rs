use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use slackwater_node::StoreError;

/// What a replay has counted itself, beside what the store counts.
pub(super) struct ReplayCounts {
    /// Requests played.
    pub(super) requests: u64,
    /// Blocks of their chains.
    pub(super) blocks: u64,
    /// Blocks read, each after all blocks before it.
    pub(super) prefix_hits: u64,
    /// Of those, from memory.
    pub(super) memory_hits: u64,
    /// Of those, from SSD.
    pub(super) ssd_hits: u64,
    /// Blocks that were there behind one that was not: of no use to a request.
    pub(super) present_beyond_prefix: u64,
    /// Bytes put that were not there.
    pub(super) put_bytes: u64,
    /// Bytes read.
    pub(super) get_bytes: u64,
    /// Blocks read that were not what was put.
    pub(super) corrupt_reads: u64,
    /// Reads that failed, by code.
    pub(super) read_errors: BTreeMap<&'static str, u64>,
    /// Puts that failed, by code.
    pub(super) put_errors: BTreeMap<&'static str, u64>,
    /// Time of read calls that found something, in nanoseconds: what a request waits for its prefix.
    pub(super) read_calls: Histogram<u64>,
    /// Time in calls of the store and in checking what they gave.
    pub(super) busy: Duration,
}

impl Default for ReplayCounts {
    fn default() -> Self {
        let longest = Duration::from_secs(3600).as_nanos() as u64;
        Self {
            requests: 0,
            blocks: 0,
            prefix_hits: 0,
            memory_hits: 0,
            ssd_hits: 0,
            present_beyond_prefix: 0,
            put_bytes: 0,
            get_bytes: 0,
            corrupt_reads: 0,
            read_errors: BTreeMap::new(),
            put_errors: BTreeMap::new(),
            read_calls: Histogram::new_with_bounds(1, longest, 3)
                .expect("the bounds and digits are in range"),
            busy: Duration::ZERO,
        }
    }
}

impl ReplayCounts {
    pub(super) fn put(&mut self, bytes: usize) {
        self.put_bytes += bytes as u64;
    }

    pub(super) fn read_call(&mut self, found: usize, took: Duration) {
        if found > 0 {
            self.read_calls
                .saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    pub(super) fn read_error(&mut self, error: &StoreError) {
        *self.read_errors.entry(error.code().name()).or_default() += 1;
    }

    pub(super) fn put_error(&mut self, error: &StoreError) {
        *self.put_errors.entry(error.code().name()).or_default() += 1;
    }

    /// Blocks that a request had to do without.
    pub(super) fn misses(&self) -> u64 {
        self.blocks - self.prefix_hits
    }

    /// Part of all blocks that were read after all blocks before them.
    pub(super) fn prefix_hit_rate(&self) -> f64 {
        share(self.prefix_hits, self.blocks)
    }

    /// Part of all blocks that were there.
    pub(super) fn block_hit_rate(&self) -> f64 {
        share(self.prefix_hits + self.present_beyond_prefix, self.blocks)
    }
}

/// A part of a whole; zero of nothing.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}
