//! What each size of memory and SSD is worth on a trace, and the smallest that is nearly as good as the best.

use serde::Serialize;
use slackwater_meta::evict::PolicyKind;
use slackwater_meta::replay::Trace;

/// Part of the best that the chosen size reaches.
const NEAR: f64 = 0.98;

/// Sizes of a default grid in each direction.
const STEPS: u32 = 7;

/// What is known of the load and of the machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Facts {
    /// Tokens of a block.
    pub(super) block_tokens: u32,
    /// Bytes of KV cache a token.
    pub(super) kv_bytes_per_token: u64,
    /// Tokens of a prompt that are computed a second, where known.
    pub(super) prefill_tokens_per_s: Option<f64>,
    /// Bytes a second that an SSD reads.
    pub(super) ssd_bytes_per_s: f64,
    /// Bytes a second that come from another machine.
    pub(super) network_bytes_per_s: f64,
    /// Part of memory that values may fill before eviction begins.
    pub(super) memory_high: f64,
    /// The same of the SSD.
    pub(super) ssd_high: f64,
    /// Time of the trace; none where its requests have no times.
    pub(super) seconds: Option<f64>,
}

/// One size of memory over one of SSD.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Point {
    /// Bytes of memory.
    pub(super) memory_bytes: u64,
    /// Bytes of SSD; zero is none.
    pub(super) ssd_bytes: u64,
    /// Share of all blocks that are found in memory.
    pub(super) memory_hit_rate: f64,
    /// Share of all blocks that are found in either tier.
    pub(super) hit_rate: f64,
    /// Prompt tokens that need not be computed, in an hour.
    pub(super) tokens_saved_per_hour: Option<f64>,
    /// Seconds of prefill that are saved in an hour, after the time that blocks take from SSD.
    pub(super) seconds_saved_per_hour: Option<f64>,
    /// Bytes that the SSD reads and writes a second, on average over the trace.
    pub(super) ssd_load_bytes_per_s: Option<f64>,
    /// Whether the SSD can do that.
    pub(super) bearable: bool,
}

/// Reading a block beside computing it again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Source {
    /// Bytes a second that it gives.
    pub(super) bytes_per_s: f64,
    /// Seconds that a block takes.
    pub(super) block_s: f64,
    /// Prefill speed, in tokens a second, above which computing again is faster.
    pub(super) breaks_even_at_tokens_per_s: f64,
    /// Whether reading is the slower one at the prefill speed, where that is known.
    pub(super) slower_than_computing: Option<bool>,
}

impl Facts {
    /// Bytes of a block.
    pub(super) fn block_bytes(&self) -> u64 {
        self.kv_bytes_per_token * u64::from(self.block_tokens)
    }

    /// Seconds that computing a block takes.
    pub(super) fn prefill_s(&self) -> Option<f64> {
        self.prefill_tokens_per_s
            .map(|speed| f64::from(self.block_tokens) / speed)
    }

    /// A source of blocks that gives so many bytes a second.
    pub(super) fn source(&self, bytes_per_s: f64) -> Source {
        let block_s = self.block_bytes() as f64 / bytes_per_s;
        Source {
            bytes_per_s,
            block_s,
            breaks_even_at_tokens_per_s: bytes_per_s / self.kv_bytes_per_token as f64,
            slower_than_computing: self.prefill_s().map(|prefill_s| block_s > prefill_s),
        }
    }

    fn memory_blocks(&self, bytes: u64) -> usize {
        self.blocks(bytes, self.memory_high)
    }

    fn ssd_blocks(&self, bytes: u64) -> usize {
        self.blocks(bytes, self.ssd_high)
    }

    /// Blocks that fit below a watermark; policies number them by 32 bits.
    fn blocks(&self, bytes: u64, high: f64) -> usize {
        let blocks = bytes as f64 * high / self.block_bytes() as f64;
        (blocks as usize).min(u32::MAX as usize)
    }

    /// Replays the trace with these sizes.
    pub(super) fn point(&self, trace: &Trace, policy: PolicyKind, memory: u64, ssd: u64) -> Point {
        let (blocks, ssd_blocks) = (self.memory_blocks(memory), self.ssd_blocks(ssd));
        // A block that does not fit anywhere is never found; policies take sizes from one block on.
        let counted = match (blocks, ssd_blocks) {
            (0, _) => Counted {
                references: trace.references() as u64,
                ..Counted::default()
            },
            (_, 0) => {
                let outcome = trace.replay(&mut *policy.build(0), blocks, |_, _| ());
                Counted {
                    references: outcome.references,
                    memory_hits: outcome.hits,
                    ..Counted::default()
                }
            }
            _ => {
                let outcome = trace.replay_tiers(
                    (&mut *policy.build(0), blocks),
                    (&mut *policy.build(0), ssd_blocks),
                );
                Counted {
                    references: outcome.references,
                    memory_hits: outcome.memory_hits,
                    ssd_hits: outcome.ssd_hits,
                    ssd_writes: outcome.writes,
                }
            }
        };
        self.judge(memory, ssd, counted)
    }

    fn judge(&self, memory_bytes: u64, ssd_bytes: u64, counted: Counted) -> Point {
        let Counted {
            references,
            memory_hits,
            ssd_hits,
            ssd_writes,
        } = counted;
        let share = |hits: u64| hits as f64 / references.max(1) as f64;
        let per_hour = |amount: f64| self.seconds.map(|seconds| amount * 3600.0 / seconds);
        let hits = memory_hits + ssd_hits;
        let saved = self.prefill_s().map(|prefill_s| {
            let read_s = self.source(self.ssd_bytes_per_s).block_s;
            // A block that is computed faster than it is read is computed.
            memory_hits as f64 * prefill_s + ssd_hits as f64 * (prefill_s - read_s).max(0.0)
        });
        let moved = (ssd_hits + ssd_writes) as f64 * self.block_bytes() as f64;
        let load = self.seconds.map(|seconds| moved / seconds);
        Point {
            memory_bytes,
            ssd_bytes,
            memory_hit_rate: share(memory_hits),
            hit_rate: share(hits),
            tokens_saved_per_hour: per_hour(hits as f64 * f64::from(self.block_tokens)),
            seconds_saved_per_hour: saved.and_then(per_hour),
            ssd_load_bytes_per_s: load,
            bearable: load.is_none_or(|load| load <= self.ssd_bytes_per_s),
        }
    }
}

/// What a replay counted, in blocks.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    references: u64,
    memory_hits: u64,
    ssd_hits: u64,
    ssd_writes: u64,
}

impl Point {
    /// What is to be large: time saved where it is known, hits otherwise.
    fn worth(&self) -> f64 {
        self.seconds_saved_per_hour.unwrap_or(self.hit_rate)
    }
}

/// The point with the least memory, and of those the least SSD, that is worth nearly as much as the best; of those whose
/// SSD can do what it is asked for. None where no point is worth anything.
pub(super) fn choose(points: &[Point]) -> Option<&Point> {
    let bearable = || points.iter().filter(|point| point.bearable);
    let best = bearable().map(Point::worth).fold(0.0, f64::max);
    let near = bearable().filter(|point| best > 0.0 && point.worth() >= best * NEAR);
    near.min_by_key(|point| (point.memory_bytes, point.ssd_bytes))
}

/// Sizes from 1/64 of `footprint` up to all of it, each twice the one before, in whole mebibytes.
pub(super) fn doubling(footprint: u64) -> Vec<u64> {
    let mut sizes: Vec<u64> = (0..STEPS)
        .rev()
        .map(|halvings| round_up(footprint >> halvings))
        .collect();
    sizes.dedup();
    sizes
}

/// To three binary digits of a mebibyte or more, upwards, so that sizes can be read.
fn round_up(bytes: u64) -> u64 {
    const MEBIBYTE: u64 = 1 << 20;
    let mebibytes = bytes.div_ceil(MEBIBYTE).max(1);
    let step = (mebibytes.next_power_of_two() / 16).max(1);
    mebibytes.next_multiple_of(step) * MEBIBYTE
}

#[cfg(test)]
mod tests {
    use slackwater_base::Instant;
    use slackwater_meta::replay::Request;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn facts() -> Facts {
        Facts {
            block_tokens: 16,
            kv_bytes_per_token: 65_536,
            prefill_tokens_per_s: Some(1_600.0),
            ssd_bytes_per_s: 1e9,
            network_bytes_per_s: 1e8,
            memory_high: 1.0,
            ssd_high: 0.5,
            seconds: Some(100.0),
        }
    }

    /// `rounds` requests for each of `chains` chains of two blocks, one after the other.
    fn trace(chains: u64, rounds: u64) -> Trace {
        let request = |number: u64| Request {
            now: Instant::from_nanos(number * 1_000_000_000),
            blocks: vec![2 * (number % chains), 2 * (number % chains) + 1],
            input_tokens: 32,
            output_tokens: None,
            hint: None,
            expect: None,
        };
        Trace::new((0..chains * rounds).map(request), 16)
    }

    #[test]
    fn a_block_is_read_or_computed_by_whichever_is_faster() {
        // A block is 1 MiB: 10 ms to compute, about 1 ms from SSD, about 10.5 ms from the network.
        let facts = facts();
        let (ssd, network) = (
            facts.source(facts.ssd_bytes_per_s),
            facts.source(facts.network_bytes_per_s),
        );
        assert_eq!(ssd.slower_than_computing, Some(false));
        assert_eq!(network.slower_than_computing, Some(true));
        assert!((ssd.block_s - 0.001_048_576).abs() < 1e-9);
        assert!((network.breaks_even_at_tokens_per_s - 1e8 / 65_536.0).abs() < 1e-6);
        let unknown = Facts {
            prefill_tokens_per_s: None,
            ..facts
        };
        assert_eq!(unknown.source(1e9).slower_than_computing, None);
    }

    #[test]
    fn what_is_saved_is_counted_by_the_hour_after_the_time_of_reading() {
        let counted = Counted {
            references: 1_000,
            memory_hits: 100,
            ssd_hits: 200,
            ssd_writes: 300,
        };
        let point = facts().judge(MIB, 2 * MIB, counted);
        assert_eq!((point.memory_hit_rate, point.hit_rate), (0.1, 0.3));
        assert_eq!(point.tokens_saved_per_hour, Some(300.0 * 16.0 * 36.0));
        let seconds = 100.0 * 0.01 + 200.0 * (0.01 - 0.001_048_576);
        assert!((point.seconds_saved_per_hour.unwrap() - seconds * 36.0).abs() < 1e-6);
        assert!((point.ssd_load_bytes_per_s.unwrap() - 500.0 * 1_048_576.0 / 100.0).abs() < 1e-6);
        assert!(point.bearable);
        // Reading that is slower than computing saves nothing, and costs nothing either.
        let slow = Facts {
            ssd_bytes_per_s: 1e7,
            ..facts()
        }
        .judge(MIB, 2 * MIB, counted);
        assert!((slow.seconds_saved_per_hour.unwrap() - 36.0).abs() < 1e-6);
        let slower = Facts {
            ssd_bytes_per_s: 5e6,
            ..facts()
        };
        assert!(!slower.judge(MIB, MIB, counted).bearable);
        let timeless = Facts {
            seconds: None,
            ..facts()
        }
        .judge(MIB, MIB, counted);
        assert_eq!(
            (
                timeless.tokens_saved_per_hour,
                timeless.seconds_saved_per_hour
            ),
            (None, None)
        );
        assert!(timeless.bearable);
    }

    #[test]
    fn the_rates_are_those_of_the_replay_by_tier() {
        // 10 chains of two blocks, three times over: everything but the first round hits where all 20 blocks fit.
        let trace = trace(10, 3);
        let check = |memory: u64, ssd: u64, in_memory: f64, in_both: f64| {
            let point = facts().point(&trace, PolicyKind::Lru, memory * MIB, ssd * MIB);
            let found = (point.memory_hit_rate, point.hit_rate);
            assert!(
                (found.0 - in_memory).abs() < 1e-9 && (found.1 - in_both).abs() < 1e-9,
                "{memory} {ssd}: {found:?}"
            );
        };
        check(20, 0, 2.0 / 3.0, 2.0 / 3.0);
        // LRU finds nothing of a round trip through more than it holds; on the SSD, of which half is used, all of it fits.
        check(4, 0, 0.0, 0.0);
        check(4, 40, 0.0, 2.0 / 3.0);
        check(0, 40, 0.0, 0.0);
    }

    #[test]
    fn the_smallest_memory_that_is_nearly_as_good_is_chosen() {
        let point = |memory: u64, ssd: u64, hit_rate: f64, bearable: bool| Point {
            memory_bytes: memory,
            ssd_bytes: ssd,
            memory_hit_rate: 0.0,
            hit_rate,
            tokens_saved_per_hour: None,
            seconds_saved_per_hour: None,
            ssd_load_bytes_per_s: None,
            bearable,
        };
        let check = |points: &[Point], chosen: Option<(u64, u64)>| {
            let found = choose(points).map(|point| (point.memory_bytes, point.ssd_bytes));
            assert_eq!(found, chosen, "{points:?}");
        };
        check(
            &[
                point(4, 8, 0.5, true),
                point(2, 8, 0.491, true),
                point(2, 4, 0.489, true),
                point(1, 8, 0.4, true),
            ],
            Some((2, 8)),
        );
        check(
            &[point(4, 8, 0.5, true), point(1, 8, 0.5, false)],
            Some((4, 8)),
        );
        check(&[point(4, 8, 0.0, true)], None);
        check(&[], None);
    }

    #[test]
    fn default_sizes_double_up_to_everything() {
        let sizes = doubling(1000 * MIB);
        assert_eq!(sizes.len(), STEPS as usize);
        assert!(sizes.windows(2).all(|pair| pair[0] < pair[1]), "{sizes:?}");
        assert!(
            *sizes.last().unwrap() >= 1000 * MIB && sizes[0] <= 20 * MIB,
            "{sizes:?}"
        );
        assert_eq!(doubling(1), [MIB]);
        for bytes in [1, MIB, 17 * MIB, 1000 * MIB] {
            let rounded = round_up(bytes);
            assert!(
                rounded >= bytes && rounded <= (bytes * 9 / 8).max(MIB),
                "{bytes}: {rounded}"
            );
        }
    }
}
