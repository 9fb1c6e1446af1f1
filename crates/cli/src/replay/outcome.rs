use serde::Serialize;
use slackwater_meta::OffloadMetrics;
use slackwater_node::Stats;

use super::tally::ReplayCounts;

/// The result of a replay as `--json` prints it: field names are a contract with scripts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Outcome {
    /// Requests played.
    pub(super) requests: u64,
    /// Blocks of their chains.
    pub(super) blocks: u64,
    /// Part of the blocks that were read, each after all blocks before it.
    pub(super) prefix_hit_rate: f64,
    /// Part of the blocks that were there.
    pub(super) block_hit_rate: f64,
    /// Blocks read from memory.
    pub(super) memory_hits: u64,
    /// Blocks read from SSD.
    pub(super) ssd_hits: u64,
    /// Blocks that a request had to do without.
    pub(super) misses: u64,
    /// Bytes put that were not there.
    pub(super) put_bytes: u64,
    /// Bytes read.
    pub(super) get_bytes: u64,
    /// Median time of a block's read from memory.
    pub(super) memory_p50_us: f64,
    /// Its 99th percentile.
    pub(super) memory_p99_us: f64,
    /// Median time of a block's read from SSD.
    pub(super) ssd_p50_us: f64,
    /// Its 99th percentile.
    pub(super) ssd_p99_us: f64,
    /// Blocks written to SSD.
    pub(super) offloads: u64,
    /// Blocks that were not, by reason.
    pub(super) offloads_skipped: Skipped,
    /// Blocks and removals that the SSD did not take when the store was closed after the run.
    pub(super) unwritten_at_close: u64,
    /// Time that reads from SSD took longer because blocks were written, in sum.
    pub(super) ssd_read_delay_s: f64,
    /// Promotions that reads from SSD asked for, by outcome.
    pub(super) promotions: Promotions,
    /// Blocks that left memory for want of space.
    pub(super) evictions: u64,
    /// Blocks read that were not what was put.
    pub(super) corrupt_reads: u64,
    /// Time of the run.
    pub(super) wall_s: f64,
    /// Processor time of the run, all threads.
    pub(super) cpu_s: f64,
    /// The most memory that the process had resident.
    pub(super) peak_rss_bytes: u64,
}

/// Blocks that were not written to SSD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Skipped {
    /// Too many were being written, or an older record of the block was still being dropped.
    pub(super) full: u64,
    /// The SSD had no room.
    pub(super) no_room: u64,
    /// The SSD answered writes with errors.
    pub(super) failing: u64,
    /// The SSD would have evicted them first.
    pub(super) not_worth: u64,
    /// They were begun and came to nothing.
    pub(super) failed: u64,
}

impl Skipped {
    /// What is counted of a store until now.
    pub(super) fn of(offloads: &OffloadMetrics) -> Self {
        Self {
            full: offloads.skipped_full,
            no_room: offloads.skipped_no_disk,
            failing: offloads.skipped_failing,
            not_worth: offloads.skipped_not_worth,
            failed: offloads.failed + offloads.expired,
        }
    }

    /// Each reason in the words of the report.
    pub(super) fn reasons(&self) -> [(&'static str, u64); 5] {
        [
            ("queue full", self.full),
            ("no room", self.no_room),
            ("SSD failing", self.failing),
            ("not worth it", self.not_worth),
            ("failed", self.failed),
        ]
    }
}

/// The funnel of promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Promotions {
    /// Begun.
    pub(super) admitted: u64,
    /// Ended in memory.
    pub(super) completed: u64,
    /// Ended by an error.
    pub(super) failed: u64,
    /// Ended by their deadline.
    pub(super) expired: u64,
    /// Ended because the block went away.
    pub(super) cancelled: u64,
    /// Not begun: read too seldom.
    pub(super) rejected_frequency: u64,
    /// Not begun: memory too full.
    pub(super) rejected_watermark: u64,
    /// Not begun: too many under way.
    pub(super) rejected_cap: u64,
}

/// What a run cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    pub(super) wall_s: f64,
    pub(super) cpu_s: f64,
    pub(super) peak_rss_bytes: u64,
}

impl Outcome {
    pub(super) fn new(tally: &ReplayCounts, stats: &Stats, cost: Cost) -> Self {
        let funnel = stats.promotions;
        Self {
            requests: tally.requests,
            blocks: tally.blocks,
            prefix_hit_rate: tally.prefix_hit_rate(),
            block_hit_rate: tally.block_hit_rate(),
            memory_hits: tally.memory_hits,
            ssd_hits: tally.ssd_hits,
            misses: tally.misses(),
            put_bytes: tally.put_bytes,
            get_bytes: tally.get_bytes,
            memory_p50_us: stats.latency.memory.p50_us,
            memory_p99_us: stats.latency.memory.p99_us,
            ssd_p50_us: stats.latency.ssd.p50_us,
            ssd_p99_us: stats.latency.ssd.p99_us,
            offloads: stats.offloads.completed,
            offloads_skipped: Skipped::of(&stats.offloads),
            unwritten_at_close: 0,
            ssd_read_delay_s: read_delay_s(stats),
            promotions: Promotions {
                admitted: funnel.admitted,
                completed: funnel.completed,
                failed: funnel.failed,
                expired: funnel.expired,
                cancelled: funnel.cancelled,
                rejected_frequency: funnel.rejected_frequency,
                rejected_watermark: funnel.rejected_watermark,
                rejected_cap: funnel.rejected_cap,
            },
            evictions: stats.evictions.count,
            corrupt_reads: tally.corrupt_reads,
            wall_s: cost.wall_s,
            cpu_s: cost.cpu_s,
            peak_rss_bytes: cost.peak_rss_bytes,
        }
    }
}

/// How much longer reads from SSD took until now because blocks were written, in sum.
pub(super) fn read_delay_s(stats: &Stats) -> f64 {
    stats
        .ssd
        .map_or(0.0, |ssd| ssd.reads_delayed_us as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_are_the_contract() {
        let outcome = Outcome::new(&ReplayCounts::default(), &Stats::default(), Cost::default());
        let text = serde_json::to_string(&outcome).unwrap();
        let keys: Vec<&str> = text.split('"').skip(1).step_by(2).collect();
        let contract = "requests blocks prefix_hit_rate block_hit_rate memory_hits ssd_hits misses put_bytes get_bytes \
             memory_p50_us memory_p99_us ssd_p50_us ssd_p99_us offloads offloads_skipped full no_room failing not_worth \
             failed unwritten_at_close ssd_read_delay_s promotions admitted completed failed expired \
             cancelled rejected_frequency rejected_watermark rejected_cap evictions corrupt_reads wall_s cpu_s \
             peak_rss_bytes";
        assert_eq!(keys, contract.split_whitespace().collect::<Vec<_>>());
    }
}
