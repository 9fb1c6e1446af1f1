//! Replays a trace of requests against an eviction policy, without bytes or I/O, on the clock of the trace.
//!
//! What is counted is the strict prefix hit: a block counts only when all blocks before it in its chain were present
//! too, because an engine cannot use it otherwise. The module also computes the offline optimum, so that a rate can be
//! given as a share of what was possible.

mod tiers;

use std::collections::BinaryHeap;

use slackwater_base::{Instant, Map};
use slackwater_wire::Expectation;

use crate::evict::{Evict, Link, Slot, Walk};

pub use tiers::TieredOutcome;

/// One request of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Time of arrival, on the clock of the trace.
    pub now: Instant,
    /// Its chain of blocks from the root, each named by an identity that includes what comes before it.
    pub blocks: Vec<u64>,
    /// Length of its prompt in tokens: a last block that is not full is read but never kept.
    pub input_tokens: u64,
    /// Tokens that it generated, where known.
    pub output_tokens: Option<u32>,
    /// The caller's opaque hint, where there is one.
    pub hint: Option<u32>,
    /// What the caller expects of the chain, where it says so.
    pub expect: Option<Expectation>,
}

/// A trace prepared for replays: blocks are numbered densely, so that a replay spends its time in the policy.
#[derive(Clone, Debug)]
pub struct Trace {
    requests: Vec<Head>,
    blocks: Vec<u32>,
    hashes: Vec<u64>,
    block_tokens: u32,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    now: Instant,
    start: usize,
    blocks: usize,
    full_blocks: usize,
    output_tokens: Option<u32>,
    hint: Option<u32>,
    expect: Option<Expectation>,
}

impl Head {
    /// A walk of the request from its root.
    const fn walk<'a>(&self, links: &'a [Link]) -> Walk<'a> {
        let Self {
            now,
            hint,
            expect,
            output_tokens,
            ..
        } = *self;
        Walk {
            now,
            links,
            parent: None,
            position: 0,
            found: 0,
            hint,
            expect,
            output_tokens,
            placed: None,
        }
    }
}

/// What a replay counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Block references in all requests.
    pub references: u64,
    /// References to blocks that were found together with all blocks before them.
    pub hits: u64,
    /// Most blocks that were kept at once.
    pub blocks_kept: usize,
}

impl Outcome {
    /// What was counted after `earlier`, which is an outcome of the same replay.
    #[must_use]
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            references: self.references - earlier.references,
            hits: self.hits - earlier.hits,
            blocks_kept: self.blocks_kept,
        }
    }

    /// Hits as a share of all references; zero for an empty trace.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        if self.references == 0 {
            0.0
        } else {
            self.hits as f64 / self.references as f64
        }
    }
}

/// Length of a block as given to the policies; any constant does, since all blocks of a replay have the same length.
pub const BLOCK_BYTES: u64 = 65_536;

impl Trace {
    /// Numbers the blocks of `requests`, whose blocks hold `block_tokens` tokens each.
    ///
    /// # Panics
    /// If `block_tokens` is zero or the trace names 2^32 distinct blocks.
    pub fn new(requests: impl IntoIterator<Item = Request>, block_tokens: u32) -> Self {
        assert!(block_tokens > 0, "a block holds at least one token");
        let mut trace = Self {
            requests: Vec::new(),
            blocks: Vec::new(),
            hashes: Vec::new(),
            block_tokens,
        };
        let mut numbers: Map<u64, u32> = Map::default();
        for request in requests {
            let start = trace.blocks.len();
            for &block in &request.blocks {
                let next =
                    u32::try_from(trace.hashes.len()).expect("fewer than 2^32 distinct blocks");
                let number = *numbers.entry(block).or_insert(next);
                if number == next {
                    trace.hashes.push(mix(block));
                }
                trace.blocks.push(number);
            }
            let full = usize::try_from(request.input_tokens / u64::from(block_tokens))
                .unwrap_or(usize::MAX);
            trace.requests.push(Head {
                now: request.now,
                start,
                blocks: request.blocks.len(),
                full_blocks: full.min(request.blocks.len()),
                output_tokens: request.output_tokens,
                hint: request.hint,
                expect: request.expect,
            });
        }
        trace
    }

    /// How many requests there are.
    #[must_use]
    pub const fn requests(&self) -> usize {
        self.requests.len()
    }

    /// How many block references there are.
    #[must_use]
    pub const fn references(&self) -> usize {
        self.blocks.len()
    }

    /// How many different blocks there are.
    #[must_use]
    pub const fn distinct_blocks(&self) -> usize {
        self.hashes.len()
    }

    /// Replays the trace against `policy`, which is fresh, with room for `capacity` blocks.
    ///
    /// `watch` is called after every request with the number of requests done and what was counted so far.
    pub fn replay(
        &self,
        policy: &mut dyn Evict,
        capacity: usize,
        mut watch: impl FnMut(usize, Outcome),
    ) -> Outcome {
        policy.set_capacity(capacity as u64 * BLOCK_BYTES);
        policy.set_block_tokens(self.block_tokens);
        let mut catalog = ReplayCatalog::new(self.distinct_blocks(), capacity);
        let mut outcome = Outcome::default();
        for (done, head) in self.requests.iter().enumerate() {
            outcome.references += head.blocks as u64;
            outcome.hits += catalog.request(self, head, policy);
            outcome.blocks_kept = outcome.blocks_kept.max(catalog.kept);
            watch(done + 1, outcome);
        }
        outcome
    }

    /// The most hits that any policy could have with room for `capacity` blocks and knowledge of the future: keep what
    /// is used soonest, admit only what is used sooner than something kept (Belady 1966, with bypass).
    ///
    /// An ancestor is never used later than its descendants, so what is kept is closed towards the root and plain hits
    /// are strict prefix hits.
    #[must_use]
    pub fn offline_optimum(&self, capacity: usize) -> Outcome {
        const NEVER: usize = usize::MAX;
        let mut next_use = vec![NEVER; self.blocks.len()];
        let mut last_seen = vec![NEVER; self.distinct_blocks()];
        for (at, &block) in self.blocks.iter().enumerate().rev() {
            next_use[at] = std::mem::replace(&mut last_seen[block as usize], at);
        }
        let mut kept_until = vec![NEVER; self.distinct_blocks()];
        let mut farthest: BinaryHeap<(usize, u32)> = BinaryHeap::new();
        let mut outcome = Outcome {
            references: self.references() as u64,
            ..Outcome::default()
        };
        let mut kept = 0;
        for (at, &block) in self.blocks.iter().enumerate() {
            let number = block as usize;
            let was_kept = kept_until[number] != NEVER;
            outcome.hits += u64::from(was_kept);
            kept -= usize::from(was_kept);
            kept_until[number] = next_use[at];
            if next_use[at] == NEVER {
                continue;
            }
            farthest.push((next_use[at], block));
            kept += 1;
            while kept > capacity {
                let (until, block) = farthest.pop().expect("everything kept is in the heap");
                if kept_until[block as usize] == until {
                    kept_until[block as usize] = NEVER;
                    kept -= 1;
                }
            }
            outcome.blocks_kept = outcome.blocks_kept.max(kept);
        }
        outcome
    }
}

/// The catalog of a replay: the slots of blocks.
struct ReplayCatalog {
    slots: Vec<u32>,
    blocks: Vec<u32>,
    free: Vec<u32>,
    kept: usize,
    capacity: usize,
    links: Vec<Link>,
}

const NO_SLOT: u32 = u32::MAX;

impl ReplayCatalog {
    fn new(distinct: usize, capacity: usize) -> Self {
        let (blocks, free, links) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            slots: vec![NO_SLOT; distinct],
            blocks,
            free,
            kept: 0,
            capacity,
            links,
        }
    }

    /// Serves one request and returns the number of its hits.
    fn request(&mut self, trace: &Trace, head: &Head, policy: &mut dyn Evict) -> u64 {
        let blocks = &trace.blocks[head.start..head.start + head.blocks];
        let mut links = std::mem::take(&mut self.links);
        links.clear();
        links.extend(blocks.iter().map(|&block| self.link(trace, block)));
        let hits = links.iter().take_while(|link| link.slot.is_some()).count();
        let now = head.now;
        policy.read(&Walk {
            found: hits as u32,
            ..head.walk(&links)
        });
        if hits < head.full_blocks {
            for (link, &block) in links
                .iter_mut()
                .zip(blocks)
                .take(head.full_blocks)
                .skip(hits)
            {
                link.slot = if link.slot.is_none() {
                    Some(self.place(block))
                } else {
                    None
                };
            }
            let parent = hits.checked_sub(1).map(|last| links[last].hash);
            let links = &links[hits..head.full_blocks];
            policy.insert(&Walk {
                parent,
                position: hits as u32,
                ..head.walk(links)
            });
        }
        self.links = links;
        while self.is_over() {
            let slot = policy.victim(now).expect("nothing is excluded in a replay");
            policy.evicted(now, slot);
            self.release(slot);
        }
        if policy.next_deadline().is_some_and(|due| due <= now) {
            policy.on_deadline(now);
        }
        hits as u64
    }

    fn slot(&self, block: u32) -> Option<Slot> {
        let slot = self.slots[block as usize];
        (slot != NO_SLOT).then_some(Slot(slot))
    }

    fn link(&self, trace: &Trace, block: u32) -> Link {
        Link {
            hash: trace.hashes[block as usize],
            slot: self.slot(block),
            bytes: BLOCK_BYTES,
        }
    }

    fn links(&self, trace: &Trace, blocks: &[u32]) -> Vec<Link> {
        blocks
            .iter()
            .map(|&block| self.link(trace, block))
            .collect()
    }

    const fn is_over(&self) -> bool {
        self.kept > self.capacity
    }

    fn place(&mut self, block: u32) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.blocks.push(block);
            self.blocks.len() as u32 - 1
        });
        self.blocks[slot as usize] = block;
        self.slots[block as usize] = slot;
        self.kept += 1;
        Slot(slot)
    }

    /// Takes the slot from its block, which it returns.
    fn release(&mut self, slot: Slot) -> u32 {
        let block = self.blocks[slot.0 as usize];
        self.slots[block as usize] = NO_SLOT;
        self.free.push(slot.0);
        self.kept -= 1;
        block
    }
}

/// Identities of published traces are small consecutive numbers; policies expect hashes (SplitMix64's finisher).
const fn mix(block: u64) -> u64 {
    let mut z = block.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::evict::PolicyKind;

    fn trace(chains: &[&[u64]]) -> Trace {
        let request = |(at, blocks): (usize, &&[u64])| Request {
            now: Instant::from_nanos(at as u64 * 1_000_000_000),
            blocks: blocks.to_vec(),
            input_tokens: 512 * blocks.len() as u64,
            output_tokens: None,
            hint: None,
            expect: None,
        };
        Trace::new(chains.iter().enumerate().map(request), 512)
    }

    #[test]
    fn a_block_counts_only_with_everything_before_it() {
        // Room for two: after the second request blocks 4 and 5 are there, so 3 of the third chain hits nothing.
        let trace = trace(&[&[1, 2], &[4, 5], &[1, 5]]);
        let outcome = trace.replay(&mut *PolicyKind::Lru.build(0), 2, |_, _| ());
        assert_eq!(
            (outcome.references, outcome.hits, outcome.blocks_kept),
            (6, 0, 2)
        );
    }

    #[test]
    fn a_last_block_that_is_not_full_is_never_kept() {
        let mut request = Request {
            now: Instant::ZERO,
            blocks: vec![1, 2],
            input_tokens: 1023,
            output_tokens: None,
            hint: None,
            expect: None,
        };
        let first = request.clone();
        request.now = Instant::from_nanos(1);
        let trace = Trace::new([first, request], 512);
        assert_eq!(
            trace
                .replay(&mut *PolicyKind::Lru.build(0), 10, |_, _| ())
                .hits,
            1
        );
    }

    #[test]
    fn the_optimum_does_not_admit_what_is_never_read_again() {
        let trace = trace(&[&[1], &[2], &[3], &[1], &[4], &[1]]);
        assert_eq!(trace.offline_optimum(1).hits, 2);
        assert_eq!(
            trace
                .replay(&mut *PolicyKind::Lru.build(0), 1, |_, _| ())
                .hits,
            0
        );
    }

    #[test]
    fn a_hit_on_ssd_brings_its_block_into_memory() {
        let trace = trace(&[&[1], &[2], &[1], &[1]]);
        let mut policies = [PolicyKind::Lru.build(0), PolicyKind::Lru.build(0)];
        let [memory, ssd] = &mut policies;
        let outcome = trace.replay_tiers((&mut **memory, 1), (&mut **ssd, 10));
        let counts = (outcome.ssd_hits, outcome.memory_hits);
        assert_eq!(counts, (1, 1), "{outcome:?}");
        assert_eq!((outcome.puts, outcome.writes), (2, 2), "{outcome:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// On any trace of chains no policy has more hits than the optimum, in one tier or in two, and with room for
        /// everything each has as many.
        #[test]
        fn no_policy_exceeds_the_optimum(
            picks in prop::collection::vec((0u64..6, 1u64..12), 1..80),
            capacity in 1usize..40,
            below in 1usize..40,
        ) {
            let chains: Vec<Vec<u64>> =
                picks.iter().map(|&(chain, length)| (0..length).map(|at| 100 * chain + at).collect()).collect();
            let chains: Vec<&[u64]> = chains.iter().map(Vec::as_slice).collect();
            let trace = trace(&chains);
            let best = trace.offline_optimum(capacity);
            let all = trace.offline_optimum(usize::MAX);
            for kind in PolicyKind::ALL {
                let outcome = trace.replay(&mut *kind.build(0), capacity, |_, _| ());
                prop_assert!(outcome.hits <= best.hits, "{kind}: {} of {}", outcome.hits, best.hits);
                prop_assert!(outcome.blocks_kept <= capacity);
                prop_assert_eq!(trace.replay(&mut *kind.build(0), 1000, |_, _| ()).hits, all.hits);
                let tiers = |memory, ssd| trace.replay_tiers((&mut *kind.build(0), memory), (&mut *kind.build(0), ssd));
                let both = trace.offline_optimum(capacity + below);
                let outcome = tiers(capacity, below);
                prop_assert!(outcome.memory_hits + outcome.ssd_hits <= both.hits, "{kind}: {outcome:?}");
                prop_assert!(outcome.writes <= outcome.puts, "{kind}: {outcome:?}");
                prop_assert_eq!((tiers(1000, 1).memory_hits, tiers(1000, 1).writes), (all.hits, 0));
                let outcome = tiers(1, 1000);
                prop_assert_eq!(outcome.memory_hits + outcome.ssd_hits, all.hits, "{}: {:?}", kind, outcome);
            }
        }
    }
}
