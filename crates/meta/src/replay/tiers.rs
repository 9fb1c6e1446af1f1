//! A replay of two tiers as the store has them, without its I/O: memory over SSD, promotion at the first hit, offload
//! on eviction of what the SSD's policy would keep. Where the store has fewer hits than this, the cause is not the
//! policy.

use slackwater_base::Instant;

use super::{BLOCK_BYTES, Head, ReplayCatalog, Trace};
use crate::evict::{Evict, Link, Slot, Standing, Walk};

/// What a replay of two tiers counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TieredOutcome {
    /// Block references in all requests.
    pub references: u64,
    /// References found in memory, with all blocks before them in either tier.
    pub memory_hits: u64,
    /// References found on SSD only, with all blocks before them in either tier.
    pub ssd_hits: u64,
    /// Blocks put into memory because they were in neither tier.
    pub puts: u64,
    /// Blocks written to SSD.
    pub writes: u64,
}

impl TieredOutcome {
    /// Hits in memory as a share of all references; zero for an empty trace.
    #[must_use]
    pub fn memory_hit_rate(&self) -> f64 {
        self.memory_hits as f64 / self.references.max(1) as f64
    }

    /// Hits in either tier as a share of all references; zero for an empty trace.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        (self.memory_hits + self.ssd_hits) as f64 / self.references.max(1) as f64
    }

    /// Blocks written to SSD for each that was put.
    #[must_use]
    pub fn writes_per_put(&self) -> f64 {
        self.writes as f64 / self.puts.max(1) as f64
    }
}

impl Trace {
    /// Replays the trace against two fresh policies, one of memory and one of an SSD, each with room for the given
    /// number of blocks.
    pub fn replay_tiers<'a>(
        &self,
        memory: (&'a mut dyn Evict, usize),
        ssd: (&'a mut dyn Evict, usize),
    ) -> TieredOutcome {
        let mut outcome = TieredOutcome {
            references: self.references() as u64,
            ..TieredOutcome::default()
        };
        let (memory, ssd) = (Tier::new(self, memory), Tier::new(self, ssd));
        let mut tiers = Tiers {
            memory,
            ssd,
            written: vec![false; self.distinct_blocks()],
            on_ssd: 0,
        };
        for head in &self.requests {
            tiers.request(self, head, &mut outcome);
        }
        outcome
    }
}

struct Tier<'a> {
    policy: &'a mut dyn Evict,
    catalog: ReplayCatalog,
}

struct Tiers<'a> {
    memory: Tier<'a>,
    /// Its catalog also has the blocks in memory that are not written: its policy chooses from all of them.
    ssd: Tier<'a>,
    written: Vec<bool>,
    on_ssd: usize,
}

impl Tiers<'_> {
    fn request(&mut self, trace: &Trace, head: &Head, outcome: &mut TieredOutcome) {
        let blocks = &trace.blocks[head.start..head.start + head.blocks];
        let hits = blocks
            .iter()
            .take_while(|&&block| self.holds(block))
            .count();
        let walk = Walk {
            found: hits as u32,
            ..head.walk(&[])
        };
        for tier in [&mut self.memory, &mut self.ssd] {
            let links = tier.catalog.links(trace, blocks);
            tier.policy.read(&Walk {
                links: &links,
                ..walk
            });
        }
        let cold: Vec<usize> = (0..hits)
            .filter(|&at| self.memory.catalog.slot(blocks[at]).is_none())
            .collect();
        outcome.memory_hits += (hits - cold.len()) as u64;
        outcome.ssd_hits += cold.len() as u64;
        if hits < head.full_blocks {
            let parent = hits
                .checked_sub(1)
                .map(|last| trace.hashes[blocks[last] as usize]);
            let place = Walk {
                parent,
                position: hits as u32,
                ..head.walk(&[])
            };
            outcome.puts += self.put(trace, &blocks[hits..head.full_blocks], &place);
        }
        for at in cold {
            self.promote(
                trace,
                blocks[at],
                &Walk {
                    position: at as u32,
                    ..head.walk(&[])
                },
            );
        }
        outcome.writes += self.make_room(head.now);
        for tier in [&mut self.memory, &mut self.ssd] {
            if tier
                .policy
                .next_deadline()
                .is_some_and(|due| due <= head.now)
            {
                tier.policy.on_deadline(head.now);
            }
        }
    }

    fn holds(&self, block: u32) -> bool {
        self.memory.catalog.slot(block).is_some() || self.written[block as usize]
    }

    /// Puts what neither tier has; returns the number of blocks.
    fn put(&mut self, trace: &Trace, blocks: &[u32], place: &Walk<'_>) -> u64 {
        let fresh: Vec<bool> = blocks.iter().map(|&block| !self.holds(block)).collect();
        for tier in [&mut self.memory, &mut self.ssd] {
            let mut links = tier.catalog.links(trace, blocks);
            for ((link, &block), &fresh) in links.iter_mut().zip(blocks).zip(&fresh) {
                link.slot = fresh.then(|| tier.catalog.place(block));
            }
            tier.policy.insert(&Walk {
                links: &links,
                ..*place
            });
        }
        fresh.into_iter().filter(|&fresh| fresh).count() as u64
    }

    fn promote(&mut self, trace: &Trace, block: u32, place: &Walk<'_>) {
        let slot = self
            .ssd
            .catalog
            .slot(block)
            .expect("what is written has a slot");
        let standing = self.ssd.policy.standing(place.now, slot);
        let slot = Some(self.memory.catalog.place(block));
        let link = Link {
            hash: trace.hashes[block as usize],
            slot,
            bytes: BLOCK_BYTES,
        };
        match standing {
            Some(standing) => {
                let standing = Standing {
                    position: place.position,
                    ..standing
                };
                self.memory.policy.insert_as(place.now, link, standing);
            }
            None => self.memory.policy.insert(&Walk {
                links: &[link],
                ..*place
            }),
        }
    }

    /// Evicts until both tiers fit; returns how many blocks were written.
    fn make_room(&mut self, now: Instant) -> u64 {
        let mut writes = 0;
        while self.memory.catalog.is_over() {
            let block = self.memory.evict(now);
            let Some(slot) = self
                .ssd
                .catalog
                .slot(block)
                .filter(|_| !self.written[block as usize])
            else {
                continue;
            };
            if self.is_worth_writing(now, slot) {
                self.written[block as usize] = true;
                self.on_ssd += 1;
                writes += 1;
            } else {
                self.ssd.drop_slot(now, slot);
            }
        }
        while self.on_ssd > self.ssd.catalog.capacity {
            let block = self.ssd.evict(now);
            self.on_ssd -= usize::from(std::mem::take(&mut self.written[block as usize]));
        }
        writes
    }

    fn is_worth_writing(&mut self, now: Instant, slot: Slot) -> bool {
        let link = Link {
            hash: 0,
            slot: None,
            bytes: BLOCK_BYTES,
        };
        let standing = self.ssd.policy.standing(now, slot);
        self.on_ssd < self.ssd.catalog.capacity
            || standing.is_none_or(|standing| self.ssd.policy.would_keep_as(now, link, standing))
    }
}

impl<'a> Tier<'a> {
    fn new(trace: &Trace, (policy, capacity): (&'a mut dyn Evict, usize)) -> Self {
        policy.set_capacity(capacity as u64 * BLOCK_BYTES);
        policy.set_block_tokens(trace.block_tokens);
        Self {
            policy,
            catalog: ReplayCatalog::new(trace.distinct_blocks(), capacity),
        }
    }

    fn evict(&mut self, now: Instant) -> u32 {
        let slot = self
            .policy
            .victim(now)
            .expect("nothing is excluded in a replay");
        self.drop_slot(now, slot)
    }

    fn drop_slot(&mut self, now: Instant, slot: Slot) -> u32 {
        self.policy.evicted(now, slot);
        self.catalog.release(slot)
    }
}
