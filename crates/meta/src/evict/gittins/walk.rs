//! One request's walk along its chain: the blocks that it reuses are removed from old segments and become new ones at
//! age zero.

use super::block::{IN_HAND, Mark, NO_NODE, Node};
use super::class::{
    COUNT_BUCKETS, Class, Features, NO_GAP, TICK_SECONDS, Tick, count_bucket, gap_bucket,
    hint_bucket, new_bucket,
};
use super::pending::{Found, GhostRuns, Pending};
use super::segments::{CHECKPOINT_SPACING, ChainSegment, NONE, Place};
use super::shelves::octave;
use super::{Evict, Gittins, Link, Walk};
use crate::evict::WARM_STEPS;
use crate::evict::ghosts::tag;
use crate::evict::queues::grow;

/// What is known of a request before its blocks are placed.
struct Known {
    /// Position after the deepest known block, resident or gone. Blocks before it are not new either, though they may
    /// be in another tier: they existed when it was inserted.
    matched: u32,
    /// When that block was last used.
    last_use: Option<Tick>,
    ghosts: GhostRuns,
}

/// A segment under construction.
struct Growing {
    number: u32,
    bucket: u8,
    octave: u8,
    /// The slot of its last block.
    last: u32,
    /// The position of its last block.
    position: u32,
    blocks: u16,
}

/// Tables of fewer blocks than this stay in a processor's caches, where reading ahead would cost a tenth of a call.
const WARMED_BLOCKS: usize = 1 << 18;

impl Gittins {
    pub(super) fn read_walk(&mut self, walk: &Walk<'_>) {
        if self.nodes.len() >= WARMED_BLOCKS {
            self.warm_walk(walk);
        }
        let mut known = self.take_resident(walk);
        self.match_ghosts(walk, &mut known);
        known.matched = known.matched.max(walk.position + walk.found);
        let features = self.features(walk, &known);
        self.build(walk, features, |_, mark| mark.count());
        let found = self.publish(Found::default());
        let sampled = self.simulate_read(walk, features, &known.ghosts);
        if let Some(key) = continuation(walk) {
            self.pending.put(Pending {
                key,
                features,
                ghosts: known.ghosts,
                found,
                sampled,
            });
        }
    }

    pub(super) fn insert_walk(&mut self, walk: &Walk<'_>) {
        let Some(key) = walk.parent.or(walk.links.first().map(|link| link.hash)) else {
            return;
        };
        let pending = self.pending.take(key).unwrap_or_else(|| self.unread(walk));
        for (_, link, slot) in walk.placed() {
            match self.segment_of(slot) {
                Some(IN_HAND) => continue,
                Some(_) => self.discard(slot),
                None => {}
            }
            let at = slot.0 as usize;
            grow(&mut self.nodes, at, NO_NODE);
            grow(&mut self.marks, at, Mark::default());
            self.nodes[at] = Node {
                segment: IN_HAND,
                tag: tag(link.hash),
                ..NO_NODE
            };
            self.marks[at] = Mark::default();
            self.resident += 1;
            self.shelves.add_block(link.bytes);
        }
        let ghosts = pending.ghosts;
        self.build(walk, pending.features, |position, _| ghosts.count(position));
        let found = self.publish(pending.found);
        if pending.sampled {
            self.simulate_insert(walk, pending.features);
        }
        if let Some(last) = walk.links.last() {
            self.pending.put(Pending {
                key: last.hash,
                found,
                ..pending
            });
        }
    }

    /// Reads what the walk will need, a step for all of its blocks before the next one, so that their cache misses overlap.
    fn warm_walk(&self, walk: &Walk<'_>) {
        for step in 0..WARM_STEPS {
            let slots = walk.placed().map(|(.., slot)| slot);
            std::hint::black_box(slots.fold(0, |seen, slot| seen ^ self.warm(slot, step)));
        }
    }

    /// Unlinks every resident block of the walk, and records one event for each run of them in a segment.
    fn take_resident(&mut self, walk: &Walk<'_>) -> Known {
        let mut known = Known {
            matched: walk.position,
            last_use: None,
            ghosts: GhostRuns::default(),
        };
        let mut run: Option<(u32, u16)> = None;
        for (at, _, slot) in walk.placed() {
            let Some(number) = self.segment_of(slot).filter(|&number| number != IN_HAND) else {
                continue;
            };
            if run.is_some_and(|(segment, _)| segment != number) {
                self.reuse(run.take());
            }
            known.last_use = Some(self.segments[number].last_use);
            known.matched = walk.position + at as u32 + 1;
            if self.nodes[slot.0 as usize].up != NONE {
                // It is not the first of its segment: the gone blocks after it have no position any more.
                self.reuse(run.take());
                self.drop_ghost(number);
            }
            self.forget_name(slot);
            run = Some((number, run.map_or(1, |(_, blocks)| blocks + 1)));
            self.unlink(slot.0);
            self.segments[number].blocks += 1;
            self.nodes[slot.0 as usize].segment = IN_HAND;
            let mark = &mut self.marks[slot.0 as usize];
            mark.set_count(mark.count() + 1);
        }
        self.reuse(run);
        known
    }

    /// A run of blocks of a segment returned. They are unlinked already but still counted in it.
    fn reuse(&mut self, run: Option<(u32, u16)>) {
        let Some((number, blocks)) = run else { return };
        let segment = self.segments[number];
        self.settle(number, blocks);
        self.tables
            .reuse(segment.class, segment.bin, segment.features, blocks.into());
        self.segments[number].blocks -= blocks;
        self.tidy(number);
    }

    /// Extends the known blocks by gone blocks that are kept as ghosts.
    fn match_ghosts(&mut self, walk: &Walk<'_>, known: &mut Known) {
        let mut end = known.matched;
        for (at, link) in walk
            .links
            .iter()
            .enumerate()
            .skip((end - walk.position) as usize)
        {
            let position = walk.position + at as u32;
            if position >= end + CHECKPOINT_SPACING {
                return;
            }
            let tag = tag(link.hash);
            let Some(number) = self.ghost_at(tag, end, position) else {
                continue;
            };
            let segment = self.segments[number];
            let blocks = (position + 1 - segment.start) as u16;
            self.checkpoints.remove(tag, number, segment.generation);
            let before = segment.checkpoints();
            self.settle(number, blocks);
            self.tables
                .reuse(segment.class, segment.bin, segment.features, blocks.into());
            let rest = &mut self.segments[number];
            rest.start += u32::from(blocks);
            rest.blocks -= blocks;
            self.ghost_entries -= before - rest.checkpoints();
            self.tidy(number);
            end = position + 1;
            known
                .ghosts
                .push(end, (segment.tail as u8).saturating_add(1));
            known.matched = end;
            known.last_use = Some(segment.last_use);
        }
    }

    /// The segment, nothing of it resident, that holds the gone blocks from `end` to `position`; the latest of several.
    fn ghost_at(&self, tag: u32, end: u32, position: u32) -> Option<u32> {
        let candidates = self.checkpoints.find(tag).filter(|&(number, generation)| {
            self.segments
                .living(number, generation)
                .is_some_and(|segment| {
                    let holds = (segment.start..segment.end()).contains(&position);
                    segment.place == Place::Ghost
                        && segment.start <= end
                        && holds
                        && segment.is_checkpoint(position)
                })
        });
        candidates
            .map(|(number, _)| number)
            .min_by_key(|&number| self.now.since(self.segments[number].last_use))
    }

    fn features(&self, walk: &Walk<'_>, known: &Known) -> Features {
        let end = walk.position + walk.links.len() as u32;
        let new = f64::from(end - known.matched) * self.block_scale;
        let gap = match known.last_use {
            Some(last_use) if known.matched > 1 => {
                gap_bucket(f64::from(self.now.since(last_use)) * TICK_SECONDS)
            }
            _ => NO_GAP,
        };
        Features::new(new_bucket(new), gap, hint_bucket(walk.hint), walk.expect)
    }

    /// The request of an insertion that no read came before.
    fn unread(&mut self, walk: &Walk<'_>) -> Pending {
        self.requests += 1;
        let mut known = Known {
            matched: walk.position,
            last_use: None,
            ghosts: GhostRuns::default(),
        };
        self.match_ghosts(walk, &mut known);
        Pending {
            features: self.features(walk, &known),
            ghosts: known.ghosts,
            ..Pending::default()
        }
    }

    /// Makes segments of the unlinked blocks: one for each run of neighbours of one bucket of reuse count and one
    /// octave of length.
    fn build(&mut self, walk: &Walk<'_>, features: Features, count: impl Fn(u32, Mark) -> u8) {
        self.fresh.clear();
        let mut growing: Option<Growing> = None;
        // Nothing that a class follows from changes meanwhile.
        let mut classes = [None; COUNT_BUCKETS];
        for (at, link, slot) in walk.placed() {
            if self.segment_of(slot) != Some(IN_HAND) {
                continue;
            }
            let (slot, position) = (slot.0, walk.position + at as u32);
            let mark = &mut self.marks[slot as usize];
            mark.set_count(count(position, *mark));
            let (bucket, octave) = (count_bucket(mark.count()), octave(link.bytes));
            let goes_on = |growing: &&mut Growing| {
                growing.position + 1 == position
                    && (growing.bucket, growing.octave) == (bucket, octave)
                    && growing.blocks < u16::MAX
            };
            let (number, up) = if let Some(growing) = growing.as_mut().filter(goes_on) {
                (growing.position, growing.blocks) = (position, growing.blocks + 1);
                let up = std::mem::replace(&mut growing.last, slot);
                self.nodes[up as usize].down = slot;
                (growing.number, up)
            } else {
                self.close(growing);
                let features = features.with_count(bucket);
                let class = *classes[usize::from(bucket)].get_or_insert_with(|| {
                    let tokens = walk.output_tokens;
                    self.tables.class(bucket, features, tokens)
                });
                let number = self.open(class, features, (position, octave));
                growing = Some(Growing {
                    number,
                    bucket,
                    octave,
                    last: slot,
                    position,
                    blocks: 1,
                });
                (number, NONE)
            };
            let node = &mut self.nodes[slot as usize];
            (node.segment, node.up, node.down) = (number, up, NONE);
        }
        self.close(growing);
    }

    /// The segment has all its blocks.
    fn close(&mut self, growing: Option<Growing>) {
        if let Some(growing) = growing {
            let segment = &mut self.segments[growing.number];
            segment.tail = growing.last;
            (segment.blocks, segment.cached) = (growing.blocks, growing.blocks);
        }
    }

    fn open(&mut self, class: Class, features: Features, (start, octave): (u32, u8)) -> u32 {
        self.cover(class);
        let segment = ChainSegment {
            octave,
            ..ChainSegment::new(start, self.now, class, features)
        };
        let number = self.segments.add(segment);
        self.fresh.push(number);
        number
    }

    /// Adds the new segments to the lists, and those of the same request that were `found` before.
    ///
    /// From the leaf to the root, so that of equal ones the leaf is evicted first. Each is kept by the highest index of
    /// itself and its descendants, because these are of no use without it.
    fn publish(&mut self, found: Found) -> Found {
        let mut best: Option<Class> = None;
        let fresh = std::mem::take(&mut self.fresh);
        for &number in fresh.iter().rev() {
            self.keep_as_best(number, &mut best);
            self.enlist(number);
        }
        let mut all = Found::default();
        for &(number, generation) in found.segments() {
            if self
                .segments
                .living(number, generation)
                .is_some_and(|segment| segment.cached > 0)
            {
                all.push((number, generation));
            }
        }
        if best.is_some() {
            for &(number, _) in all.segments().iter().rev() {
                self.refresh(number, &mut best);
            }
        }
        let mut above = all.segments().last().map(|&(number, _)| number);
        for &number in &fresh {
            if let Some(above) = above.replace(number) {
                self.segments.join(above, number);
            }
            all.push((number, self.segments[number].generation));
        }
        self.fresh = fresh;
        all
    }

    fn keep_as_best(&mut self, number: u32, best: &mut Option<Class>) {
        let own = self.segments[number].class;
        let kept_as = match *best {
            Some(best) if self.tables.index(best, 0) > self.tables.index(own, 0) => best,
            _ => own,
        };
        self.segments[number].kept_as = kept_as;
        *best = Some(kept_as);
    }

    /// The request that found this segment now adds blocks after it: it is used again, which does not count as an
    /// event.
    fn refresh(&mut self, number: u32, best: &mut Option<Class>) {
        let segment = self.segments[number];
        self.settle(number, segment.blocks);
        self.end_age(number);
        self.displace(number);
        let record = &mut self.segments[number];
        (record.last_use, record.bin) = (self.now, 0);
        self.keep_as_best(number, best);
        self.enlist(number);
    }
}

/// The hash by which a later insertion is matched with this read: that of the last resident block of the prefix, or of
/// the first block when nothing before it is known.
fn continuation(walk: &Walk<'_>) -> Option<u64> {
    match walk.found.checked_sub(1) {
        Some(last) => walk.links.get(last as usize).map(|link: &Link| link.hash),
        None => walk.parent.or(walk.links.first().map(|link| link.hash)),
    }
}
