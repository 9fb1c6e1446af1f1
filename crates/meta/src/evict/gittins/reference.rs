//! The reference implementation of the policy, slow and simple: segments are lists of blocks, every choice is a search.
//! It shares the learned tables and the requests under way, but none of the data structures: links, arrays by slot,
//! bitmaps, table of checkpoints.

mod calls;

use std::collections::BTreeMap;

use slackwater_base::Instant;

use super::ages::AGED_A_CALL;
use super::class::{
    BINS, Class, Features, NO_GAP, Origin, TICK_SECONDS, Tick, count_bucket, gap_bucket,
    hint_bucket, new_bucket,
};
use super::pending::{Found, GhostRuns, Pending, Requests};
use super::segments::{CHECKPOINT_SPACING, Place};
use super::tables::{Exposure, Tables};
use super::{BOOKS_BYTES, CHECKPOINT_BYTES, CHECKPOINT_QUARTERS};
use crate::evict::ghosts::tag;
use crate::evict::{Evict, Link, Slot, Walk};

#[derive(Clone, Debug)]
struct Block {
    tag: u32,
    slot: Option<Slot>,
    count: u8,
    excluded: bool,
    /// Whether it is gone and kept by its hash.
    noted: bool,
}

#[derive(Clone, Debug)]
struct ChainSegment {
    start: u32,
    last_use: Tick,
    class: Class,
    kept_as: Class,
    features: Features,
    bin: u8,
    place: Place,
    /// Root first; the gone ones are the last.
    blocks: Vec<Block>,
    /// The segment that continued the chain when both were last used.
    continued_by: Option<u32>,
    /// Reuse count of the block that was the last to be resident.
    count: u8,
    /// Position in the order of age, and in that of eviction: lower is earlier.
    by_age: i64,
    by_place: i64,
}

pub(super) struct Reference {
    segments: BTreeMap<u32, ChainSegment>,
    next_number: u32,
    next_place: i64,
    pub(super) tables: Tables,
    pending: Requests,
    origin: Origin,
    now: Tick,
    behind: bool,
    requests: u64,
    estimated_at: u64,
}

struct Known {
    matched: u32,
    last_use: Option<Tick>,
    ghosts: GhostRuns,
}

impl ChainSegment {
    fn cached(&self) -> usize {
        self.blocks
            .iter()
            .filter(|block| block.slot.is_some())
            .count()
    }

    fn tail(&self) -> &Block {
        &self.blocks[self.cached() - 1]
    }

    fn is_checkpoint(&self, at: usize) -> bool {
        (self.start + at as u32) % CHECKPOINT_SPACING == CHECKPOINT_SPACING - 1
            || at + 1 == self.blocks.len()
    }

    fn checkpoints(&self) -> usize {
        (self.cached()..self.blocks.len())
            .filter(|&at| self.is_checkpoint(at))
            .count()
    }
}

impl Reference {
    pub(super) fn new() -> Self {
        let mut tables = Tables::new();
        tables.cover_all();
        Self {
            segments: BTreeMap::new(),
            next_number: 0,
            next_place: 0,
            tables,
            pending: Requests::new(),
            origin: Origin::default(),
            now: Tick(0),
            behind: false,
            requests: 0,
            estimated_at: 0,
        }
    }

    fn find(&self, slot: Slot) -> Option<(u32, usize)> {
        self.segments.iter().find_map(|(&number, segment)| {
            let at = segment
                .blocks
                .iter()
                .position(|block| block.slot == Some(slot))?;
            Some((number, at))
        })
    }

    fn segment(&mut self, number: u32) -> &mut ChainSegment {
        self.segments.get_mut(&number).expect("the segment exists")
    }

    fn place(&mut self) -> i64 {
        self.next_place += 1;
        self.next_place
    }

    fn advance(&mut self, now: Instant) {
        let tick = self.origin.advance(now);
        if tick.since(self.now) == 0 && !self.behind {
            return;
        }
        (self.now, self.behind) = (tick, false);
        let mut left = AGED_A_CALL;
        for bin in 0..BINS as u8 - 1 {
            loop {
                let in_bin = self
                    .segments
                    .iter()
                    .filter(|(_, segment)| segment.bin == bin);
                let Some((&number, oldest)) = in_bin.min_by_key(|(_, segment)| segment.by_age)
                else {
                    break;
                };
                if tick.since(oldest.last_use) < self.tables.bin_start(bin + 1) {
                    break;
                }
                if left == 0 {
                    self.behind = true;
                    return;
                }
                left -= 1;
                self.age(number);
            }
        }
    }

    fn age(&mut self, number: u32) {
        let segment = self.segments[&number].clone();
        let (bin, blocks) = (segment.bin, segment.blocks.len() as u32);
        let ticks = self.tables.bin_start(bin + 1) - self.tables.bin_start(bin);
        self.tables.expose(exposure(&segment, blocks, ticks));
        self.tables
            .leave(segment.class.cell(bin), blocks, segment.last_use);
        self.tables
            .enter(segment.class.cell(bin + 1), blocks, segment.last_use);
        let (by_age, by_place) = (self.place(), self.place());
        let segment = self.segment(number);
        (segment.bin, segment.by_age) = (bin + 1, by_age);
        if segment.place == Place::Shelved {
            segment.by_place = by_place;
        }
    }

    fn settle(&mut self, number: u32, blocks: usize) {
        let segment = self.segments[&number].clone();
        let in_bin = self
            .now
            .since(segment.last_use)
            .saturating_sub(self.tables.bin_start(segment.bin));
        self.tables
            .expose(exposure(&segment, blocks as u32, in_bin));
        self.tables.leave(
            segment.class.cell(segment.bin),
            blocks as u32,
            segment.last_use,
        );
    }

    fn tidy(&mut self, number: u32) {
        let by_place = self.place();
        let segment = self.segment(number);
        if segment.blocks.is_empty() {
            self.segments.remove(&number);
        } else if segment.cached() == 0 && segment.place != Place::Ghost {
            (segment.place, segment.by_place) = (Place::Ghost, by_place);
        }
    }

    fn drop_ghost(&mut self, number: u32) {
        let Some(segment) = self.segments.get(&number) else {
            return;
        };
        let (cached, gone) = (segment.cached(), segment.blocks.len() - segment.cached());
        if gone > 0 {
            self.settle(number, gone);
            self.segment(number).blocks.truncate(cached);
            self.tidy(number);
        }
    }

    fn discard(&mut self, slot: Slot) {
        let Some((number, at)) = self.find(slot) else {
            return;
        };
        if at > 0 || self.segments[&number].cached() == 1 {
            self.drop_ghost(number);
        }
        self.settle(number, 1);
        let segment = self.segment(number);
        segment.blocks.remove(at);
        segment.start += u32::from(at == 0);
        self.tidy(number);
    }

    fn resident(&self) -> usize {
        self.segments.values().map(ChainSegment::cached).sum()
    }

    fn limit_ghosts(&mut self, evicting: u32) {
        let resident = self.resident();
        loop {
            let entries: usize = self.segments.values().map(ChainSegment::checkpoints).sum();
            let bytes = self.segments.len() * 44 + entries * CHECKPOINT_BYTES;
            if entries <= resident * CHECKPOINT_QUARTERS / 4 && bytes <= resident * BOOKS_BYTES {
                return;
            }
            let ghosts = self
                .segments
                .iter()
                .filter(|(_, segment)| segment.place == Place::Ghost);
            let Some((&oldest, _)) = ghosts.min_by_key(|(_, segment)| segment.by_place) else {
                return self.drop_ghost(evicting);
            };
            self.drop_ghost(oldest);
        }
    }

    /// Removes the resident blocks of the walk from their segments and returns them by slot.
    fn take(&mut self, walk: &Walk<'_>) -> (BTreeMap<Slot, Block>, Known) {
        let mut known = Known {
            matched: walk.position,
            last_use: None,
            ghosts: GhostRuns::default(),
        };
        let mut taken = BTreeMap::new();
        let mut run: Vec<(u32, Block)> = Vec::new();
        for (at, link) in walk.links.iter().enumerate() {
            let Some(slot) = link
                .slot
                .filter(|slot| !run.iter().any(|(_, block)| block.slot == Some(*slot)))
            else {
                continue;
            };
            let Some((number, inside)) = self.find(slot) else {
                continue;
            };
            if run.last().is_some_and(|(other, _)| *other != number) {
                self.reuse(&mut run, &mut taken);
            }
            known.last_use = Some(self.segments[&number].last_use);
            known.matched = walk.position + at as u32 + 1;
            if inside > run.len() {
                self.reuse(&mut run, &mut taken);
                self.drop_ghost(number);
            }
            run.push((number, self.segments[&number].blocks[inside].clone()));
        }
        self.reuse(&mut run, &mut taken);
        (taken, known)
    }

    /// One event: a run of blocks of one segment returned.
    fn reuse(&mut self, run: &mut Vec<(u32, Block)>, taken: &mut BTreeMap<Slot, Block>) {
        let Some((number, first)) = run.first().cloned() else {
            return;
        };
        let segment = self.segments[&number].clone();
        self.settle(number, run.len());
        self.tables.reuse(
            segment.class,
            segment.bin,
            segment.features,
            run.len() as u32,
        );
        let began_at_root = segment.blocks[0].slot == first.slot;
        for (_, block) in run.drain(..) {
            let segment = self.segment(number);
            segment.blocks.retain(|other| other.slot != block.slot);
            segment.start += u32::from(began_at_root);
            segment.count = block.count;
            let slot = block.slot.expect("resident");
            taken.insert(
                slot,
                Block {
                    count: (block.count + 1).min(127),
                    ..block
                },
            );
        }
        self.tidy(number);
    }

    fn match_ghosts(&mut self, walk: &Walk<'_>, known: &mut Known) {
        let skip = (known.matched - walk.position) as usize;
        for (at, link) in walk.links.iter().enumerate().skip(skip) {
            let position = walk.position + at as u32;
            if position >= known.matched + CHECKPOINT_SPACING {
                return;
            }
            let found = self.segments.iter().filter(|(_, segment)| {
                let inside = position.wrapping_sub(segment.start) as usize;
                segment.place == Place::Ghost
                    && segment.start <= known.matched
                    && segment
                        .blocks
                        .iter()
                        .any(|block| block.noted && block.tag == tag(link.hash))
                    && inside < segment.blocks.len()
                    && segment.is_checkpoint(inside)
            });
            let latest = found.min_by_key(|(_, segment)| self.now.since(segment.last_use));
            let Some((&number, segment)) = latest else {
                continue;
            };
            let segment = segment.clone();
            let blocks = (position + 1 - segment.start) as usize;
            self.settle(number, blocks);
            self.tables
                .reuse(segment.class, segment.bin, segment.features, blocks as u32);
            let rest = self.segment(number);
            rest.blocks.drain(..blocks);
            rest.start += blocks as u32;
            self.tidy(number);
            known.matched = position + 1;
            known.ghosts.push(position + 1, segment.count + 1);
            known.last_use = Some(segment.last_use);
        }
    }

    fn features(&self, walk: &Walk<'_>, known: &Known) -> Features {
        let new = walk.position + walk.links.len() as u32 - known.matched;
        let gap = match known.last_use {
            Some(last_use) if known.matched > 1 => {
                gap_bucket(f64::from(self.now.since(last_use)) * TICK_SECONDS)
            }
            _ => NO_GAP,
        };
        Features::new(
            new_bucket(f64::from(new)),
            gap,
            hint_bucket(walk.hint),
            walk.expect,
        )
    }

    /// Makes segments of `blocks`, each with its position; `None` breaks a run. Returns their numbers, root first.
    fn build(
        &mut self,
        walk: &Walk<'_>,
        features: Features,
        blocks: Vec<Option<Block>>,
    ) -> Vec<u32> {
        let mut fresh: Vec<u32> = Vec::new();
        let mut bucket_of_last = None;
        for (at, block) in blocks.into_iter().enumerate() {
            let Some(block) = block else {
                bucket_of_last = None;
                continue;
            };
            let bucket = count_bucket(block.count);
            if bucket_of_last != Some(bucket) {
                let features = features.with_count(bucket);
                let class = self.tables.class(bucket, features, walk.output_tokens);
                let segment = ChainSegment {
                    start: walk.position + at as u32,
                    last_use: self.now,
                    class,
                    kept_as: class,
                    features,
                    bin: 0,
                    place: Place::Stuck,
                    blocks: Vec::new(),
                    continued_by: None,
                    count: 0,
                    by_age: 0,
                    by_place: 0,
                };
                self.segments.insert(self.next_number, segment);
                fresh.push(self.next_number);
                self.next_number += 1;
            }
            bucket_of_last = Some(bucket);
            let number = *fresh.last().expect("opened above");
            self.segment(number).blocks.push(block);
        }
        fresh
    }

    fn publish(&mut self, fresh: &[u32], found: &Found) -> Found {
        let mut best: Option<Class> = None;
        for &number in fresh.iter().rev() {
            self.enlist(number, &mut best);
        }
        let mut all = Found::default();
        for &(number, generation) in found.segments() {
            if self
                .segments
                .get(&number)
                .is_some_and(|segment| segment.cached() > 0)
            {
                all.push((number, generation));
            }
        }
        if best.is_some() {
            for &(number, _) in all.segments().iter().rev() {
                self.settle(number, self.segments[&number].blocks.len());
                (self.segment(number).last_use, self.segment(number).bin) = (self.now, 0);
                self.enlist(number, &mut best);
            }
        }
        let mut above = all.segments().last().map(|&(number, _)| number);
        for &number in fresh {
            if let Some(above) = above.replace(number) {
                self.segment(above).continued_by = Some(number);
            }
            all.push((number, 0));
        }
        all
    }

    fn enlist(&mut self, number: u32, best: &mut Option<Class>) {
        let (by_age, by_place, own) = (self.place(), self.place(), self.segments[&number].class);
        let kept_as = best
            .filter(|&best| self.tables.index(best, 0) > self.tables.index(own, 0))
            .unwrap_or(own);
        *best = Some(kept_as);
        let segment = self.segment(number);
        (
            segment.kept_as,
            segment.by_age,
            segment.by_place,
            segment.place,
        ) = (kept_as, by_age, by_place, Place::Shelved);
        let (last_use, blocks) = (segment.last_use, segment.blocks.len() as u32);
        self.tables.enter(own.cell(0), blocks, last_use);
    }

    /// The shelved segment with the lowest value among the first of each class and bin.
    fn lowest(&self) -> Option<u32> {
        let mut firsts: BTreeMap<usize, (i64, u32)> = BTreeMap::new();
        for (&number, segment) in &self.segments {
            if segment.place != Place::Shelved {
                continue;
            }
            let cell = segment.kept_as.cell(segment.bin);
            let first = firsts
                .entry(self.tables.rank(cell))
                .or_insert((i64::MAX, 0));
            *first = (*first).min((segment.by_place, number));
        }
        let value = |&(_, number): &(i64, u32)| {
            let segment = &self.segments[&number];
            let cell = segment.kept_as.cell(segment.bin);
            self.tables.value(cell, self.now.since(segment.last_use))
        };
        let lowest = firsts.values().min_by(|a, b| value(a).total_cmp(&value(b)));
        lowest.map(|&(_, number)| number)
    }

    /// The last of the shelved segments that continue the chain of `number` and were used with it.
    fn deepest(&self, mut number: u32) -> u32 {
        loop {
            let above = &self.segments[&number];
            let below = above
                .continued_by
                .and_then(|below| Some((below, self.segments.get(&below)?)));
            let Some((below, next)) = below else {
                return number;
            };
            let continues = next.place == Place::Shelved
                && next.last_use == above.last_use
                && above.cached() == above.blocks.len()
                && next.start == above.start + above.blocks.len() as u32;
            if !continues {
                return number;
            }
            number = below;
        }
    }

    fn choose(&mut self) -> Option<Slot> {
        while let Some(lowest) = self.lowest() {
            let number = self.deepest(lowest);
            if !self.segments[&number].tail().excluded {
                return self.segments[&number].tail().slot;
            }
            let by_place = self.place();
            let segment = self.segment(number);
            (segment.place, segment.by_place) = (Place::Aside, by_place);
        }
        loop {
            let aside = self
                .segments
                .iter()
                .filter(|(_, segment)| segment.place == Place::Aside);
            let (&number, segment) = aside.min_by_key(|(_, segment)| segment.by_place)?;
            if !segment.tail().excluded {
                return segment.tail().slot;
            }
            if segment.cached() == 1 {
                self.segment(number).place = Place::Stuck;
                continue;
            }
            self.drop_ghost(number);
            let by_age = self.place();
            let segment = self.segment(number);
            let tail = segment.blocks.pop().expect("two at least");
            let start = segment.start + segment.blocks.len() as u32;
            let own = ChainSegment {
                start,
                blocks: vec![tail],
                place: Place::Stuck,
                by_age,
                ..segment.clone()
            };
            self.segments.insert(self.next_number, own);
            self.next_number += 1;
        }
    }
}

const fn exposure(segment: &ChainSegment, blocks: u32, ticks: u32) -> Exposure {
    Exposure {
        class: segment.class,
        bin: segment.bin,
        features: segment.features,
        blocks,
        ticks,
    }
}
