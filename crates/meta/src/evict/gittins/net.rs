//! The safety net: small simulated caches that see a sample of the chains, each under one rule, and the rule that the real
//! cache follows (miniature simulation; Waldspurger, Saemundsson, Ahmad and Park, USENIX ATC 2017).

use std::cell::Cell;

use super::block::Mark;
use super::class::{Class, Features, count_bucket};
use super::pending::GhostRuns;
use super::rule::{RULES, Race, Rule};
use super::sample::Sample;
use super::shadow::{ENTRY_BYTES, Shadows, Visit};
use super::tables::Tables;
use super::{Gittins, Walk};
use crate::evict::ghosts::tag;
use crate::evict::{Contender, Leader, Slot};

/// The simulated caches and the race between them.
#[derive(Debug)]
pub(super) struct Net {
    sample: Sample,
    shadows: Shadows,
    pub(super) race: Race,
    visits: Vec<Visit>,
}

/// Blocks of each simulated cache: one in so many of the real one's, ...
const SHARE: usize = 300;
/// ... though never fewer: less says nothing about a cache of chains.
const LEAST_BLOCKS: usize = 256;

impl Net {
    pub(super) fn new() -> Self {
        Self {
            sample: Sample::new(),
            shadows: Shadows::default(),
            race: Race::new(),
            visits: Vec::new(),
        }
    }

    pub(super) fn overhead_bytes(&self) -> usize {
        size_of::<Self>()
            + self.shadows.overhead_bytes()
            + self.visits.capacity() * size_of::<Visit>()
    }

    /// The part of it that a small cache has too.
    pub(super) fn fixed_bytes(&self) -> usize {
        let least = size_of::<Self>() + RULES * LEAST_BLOCKS * 2 * ENTRY_BYTES;
        least.min(self.overhead_bytes())
    }
}

/// The classes of one request's blocks by bucket of reuse count. Neighbours mostly share a bucket.
struct Classes<'a> {
    tables: &'a Tables,
    features: Features,
    output_tokens: Option<u32>,
    latest: Cell<Option<(u8, Class)>>,
}

impl<'a> Classes<'a> {
    const fn new(tables: &'a Tables, features: Features, output_tokens: Option<u32>) -> Self {
        Self {
            tables,
            features,
            output_tokens,
            latest: Cell::new(None),
        }
    }

    /// The class of a block that was reused `count` times.
    fn of(&self, count: u8) -> Class {
        let bucket = count_bucket(count);
        if let Some((latest, class)) = self.latest.get()
            && latest == bucket
        {
            return class;
        }
        let features = self.features.with_count(bucket);
        let class = self.tables.class(bucket, features, self.output_tokens);
        self.latest.set(Some((bucket, class)));
        class
    }
}

fn count_of(marks: &[Mark], slot: Slot) -> u8 {
    marks.get(slot.0 as usize).map_or(0, |mark| mark.count())
}

/// Blocks of each simulated cache beside a real one of `resident` blocks; as many in a cache of few.
fn shadow_blocks(resident: usize) -> usize {
    (resident / SHARE).max(LEAST_BLOCKS).min(resident)
}

/// How many real blocks each simulated one stands for, beside `resident` blocks.
fn share(resident: usize) -> usize {
    resident / shadow_blocks(resident).max(1)
}

/// Hashes of 32 bits below this are in the sample, so that the simulated caches see as much for each of their blocks as
/// the real one.
fn threshold(resident: usize) -> u64 {
    let shadow = shadow_blocks(resident).max(1) as u64;
    (shadow << 32) / (resident as u64).max(1)
}

impl Gittins {
    /// The request was read: the simulated caches see it too if its chain is in the sample. Returns whether it is.
    pub(super) fn simulate_read(
        &mut self,
        walk: &Walk<'_>,
        features: Features,
        ghosts: &GhostRuns,
    ) -> bool {
        let Some(net) = &mut self.net else {
            return false;
        };
        let Some(begin) = net.sample.admit(walk, threshold(self.resident)) else {
            return false;
        };
        let classes = Classes::new(&self.tables, features, walk.output_tokens);
        net.visits.clear();
        let own = walk.links.iter().enumerate().skip(begin);
        net.visits.extend(own.map(|(at, link)| {
            let count = match link.slot {
                Some(slot) => count_of(&self.marks, slot),
                None => ghosts.count(walk.position + at as u32),
            };
            Visit {
                tag: tag(link.hash),
                class: classes.of(count),
                kept: link.slot.is_some(),
            }
        }));
        // Those of other blocks are of segments that were opened.
        let gone = net.visits.iter().filter(|visit| !visit.kept);
        let mut taken_in = false;
        for visit in gone {
            taken_in |= self.tables.cover(visit.class);
        }
        if taken_in {
            self.shelves.rank_anew(&self.tables);
        }
        let hits = net.shadows.visit(&net.visits, None, self.now);
        net.race.count(net.visits.len(), hits);
        let blocks = shadow_blocks(self.resident);
        net.shadows.shrink(blocks, &self.tables, self.now);
        true
    }

    /// The sampled request inserted blocks.
    pub(super) fn simulate_insert(&mut self, walk: &Walk<'_>, features: Features) {
        let Some(net) = &mut self.net else { return };
        let classes = Classes::new(&self.tables, features, walk.output_tokens);
        net.visits.clear();
        let placed = walk
            .links
            .iter()
            .filter_map(|link| Some((link, link.slot?)));
        net.visits.extend(placed.map(|(link, slot)| Visit {
            tag: tag(link.hash),
            class: classes.of(count_of(&self.marks, slot)),
            kept: true,
        }));
        net.shadows
            .visit(&net.visits, walk.parent.map(tag), self.now);
        let blocks = shadow_blocks(self.resident);
        net.shadows.shrink(blocks, &self.tables, self.now);
    }

    /// Follows the rule that leads now.
    pub(super) fn follow(&mut self) {
        let share = share(self.resident);
        if let Some(rule) = self.net.as_mut().and_then(|net| net.race.judge(share)) {
            self.switch(rule);
        }
    }

    /// Follows `rule`: the lists stay as they are, and their ranks are computed anew.
    pub(super) fn switch(&mut self, rule: Rule) {
        self.tables.follow(rule);
        self.shelves.rank_anew(&self.tables);
    }

    pub(super) fn leading(&self) -> Option<Leader> {
        let race = &self.net.as_ref()?.race;
        let contender = |rule: Rule| Contender {
            policy: rule.name(),
            hit_rate: race.rate(rule),
        };
        Some(Leader {
            policy: race.leader.name(),
            contenders: Rule::ALL.map(contender).to_vec(),
            changes: race.changes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_caches_are_small_and_see_their_share() {
        for (resident, blocks, times) in [
            (0, 0, 0),
            (100, 100, 1),
            (1_024, 256, 4),
            (4_096, 256, 16),
            (76_800, 256, 300),
            (3_000_000, 10_000, 300),
        ] {
            assert_eq!(shadow_blocks(resident), blocks, "{resident}");
            assert_eq!(share(resident), times, "{resident}");
            let seen = threshold(resident) as f64 / 2f64.powi(32);
            let expected = 1.0 / times.max(1) as f64;
            assert!((seen - expected).abs() < 1e-6, "{resident}: {seen}");
        }
    }
}
