//! Eviction that learns which blocks return.
//!
//! A cached chain is a few segments, each with one last use and one class. Online, the policy learns how likely each
//! class is to return at each age; from that follows the best rate of hits a block-second that holding a block can
//! still give, its Gittins index. The victim is the tail of the segment with the lowest index per byte, which may be
//! what has just been inserted; a segment that is continued by others goes after them, since they are of no use without
//! it. Gone blocks are kept for some time as a few of their hashes (ghosts), so that
//! the policy also learns from blocks that returned too late.
//!
//! Every list operation is constant time; estimation runs as a scheduled step whose cost depends on the number of
//! classes and ages alone.

mod ages;
mod block;
mod checkpoints;
mod class;
mod estimate;
mod hinted;
mod leave;
mod net;
mod opinion;
mod outlook;
mod pending;
#[cfg(test)]
mod reference;
mod rule;
mod sample;
mod saved;
mod segments;
mod shadow;
mod shelves;
mod tables;
mod takeover;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twins;
mod victim;
mod walk;

use std::time::Duration;

use slackwater_base::Instant;

use super::{Evict, Explanation, Leader, Link, RestoreError, Slot, Standing, Walk};
use ages::{Ages, End};
use block::{Mark, NO_NODE, Node};
use checkpoints::Checkpoints;
use class::{Class, Origin, Tick};
use net::Net;
use opinion::{COPY_WORTH, MOVE_WORTH};
use pending::Requests;
use segments::{By, ChainSegment, ChainSegments, List, NONE, Place};
use shelves::Shelves;
use tables::{Exposure, Tables};

/// The policy, as described in the module.
#[derive(Debug)]
pub(super) struct Gittins {
    nodes: Vec<Node>,
    marks: Vec<Mark>,
    segments: ChainSegments,
    ages: Ages,
    shelves: Shelves,
    aside: List,
    ghosts: List,
    checkpoints: Checkpoints,
    /// Entries that the ghosts may claim among the checkpoints.
    ghost_entries: usize,
    tables: Tables,
    /// What tells when another rule than the learned index does better; `None` where none is followed.
    net: Option<Net>,
    pending: Requests,
    /// ChainSegments made in the call under way, root first.
    fresh: Vec<u32>,
    named: Option<Slot>,
    now: Tick,
    origin: Origin,
    last_call: Instant,
    resident: usize,
    /// The last block that came from another tier, and its standing there.
    taken_over: Option<(Slot, Standing)>,
    /// The last block that was marked as leaving.
    leaving: Option<Slot>,
    /// Tokens of a block relative to the block length that the buckets of new length are defined for.
    block_scale: f64,
    requests: u64,
    estimated_at_request: u64,
    estimated_at: Instant,
}

/// Most checkpoints of gone blocks for each resident block, in quarters.
const CHECKPOINT_QUARTERS: usize = 5;
/// Bytes for each resident block that segments and checkpoints may take together.
const BOOKS_BYTES: usize = 42;
/// Bytes of a checkpoint in its table, including unused room.
const CHECKPOINT_BYTES: usize = 10;
const FIRST_ESTIMATE: u64 = 16;
const MOST_BETWEEN_ESTIMATES: u64 = 512;
const LEAST_BETWEEN_ESTIMATES: Duration = Duration::from_millis(250);
const TYPICAL_BLOCK_TOKENS: f64 = 512.0;

impl Gittins {
    pub(super) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            marks: Vec::new(),
            segments: ChainSegments::default(),
            ages: Ages::new(),
            shelves: Shelves::default(),
            aside: List::EMPTY,
            ghosts: List::EMPTY,
            checkpoints: Checkpoints::default(),
            ghost_entries: 0,
            tables: Tables::new(),
            net: None,
            pending: Requests::new(),
            fresh: Vec::new(),
            named: None,
            origin: Origin::default(),
            now: Tick(0),
            last_call: Instant::ZERO,
            resident: 0,
            taken_over: None,
            leaving: None,
            block_scale: 1.0,
            requests: 0,
            estimated_at_request: 0,
            estimated_at: Instant::ZERO,
        }
    }

    /// The policy with its safety net: it follows a simpler rule while that does better.
    pub(super) fn adaptive() -> Self {
        Self {
            net: Some(Net::new()),
            ..Self::new()
        }
    }

    fn segment_of(&self, slot: Slot) -> Option<u32> {
        self.nodes
            .get(slot.0 as usize)
            .map(|node| node.segment)
            .filter(|&segment| segment != NONE)
    }

    /// `blocks` blocks of a segment are no longer at risk: adds the time that they were, and subtracts them from the
    /// segment's cell. The caller subtracts them from the segment.
    fn settle(&mut self, number: u32, blocks: u16) {
        let segment = self.segments[number];
        let in_bin = self
            .now
            .since(segment.last_use)
            .saturating_sub(self.tables.bin_start(segment.bin));
        self.tables.expose(exposure(&segment, blocks, in_bin));
        self.tables.leave(
            segment.class.cell(segment.bin),
            blocks.into(),
            segment.last_use,
        );
    }

    /// Puts a segment in the order of eviction, behind those of its list.
    fn shelve(&mut self, number: u32) {
        let segment = self.segments[number];
        self.cover(segment.class);
        self.cover(segment.kept_as);
        self.shelves
            .push_newest(&mut self.segments, &self.tables, number);
    }

    /// Has the tables value blocks of a class.
    #[inline]
    fn cover(&mut self, class: Class) {
        if !self.tables.covers(class) {
            self.cover_anew(class);
        }
    }

    /// Apart from [`Self::cover`], which is asked four times for each block that is read.
    #[cold]
    #[inline(never)]
    fn cover_anew(&mut self, class: Class) {
        self.tables.cover(class);
        self.shelves.rank_anew(&self.tables);
    }

    /// Adds a segment to its cell and lists, at age zero.
    fn enlist(&mut self, number: u32) {
        let segment = self.segments[number];
        self.tables.enter(
            segment.class.cell(0),
            segment.blocks.into(),
            segment.last_use,
        );
        self.age_from(number, End::Newest);
        self.shelve(number);
    }

    /// Removes a segment from the list that its place names.
    fn displace(&mut self, number: u32) {
        match self.segments[number].place {
            Place::Shelved => self
                .shelves
                .remove(&mut self.segments, &self.tables, number),
            Place::Aside => self.aside.remove(&mut self.segments, By::Place, number),
            Place::Ghost => self.ghosts.remove(&mut self.segments, By::Place, number),
            Place::Stuck | Place::Free => {}
        }
    }

    /// After a segment lost blocks: moves it to the ghosts if nothing of it is resident, and frees it if nothing is
    /// left at all.
    fn tidy(&mut self, number: u32) {
        let segment = &self.segments[number];
        let (cached, blocks, place) = (segment.cached, segment.blocks, segment.place);
        if cached > 0 || (blocks > 0 && place == Place::Ghost) {
            return;
        }
        self.displace(number);
        if blocks > 0 {
            self.segments[number].place = Place::Ghost;
            self.ghosts
                .push_newest(&mut self.segments, By::Place, number);
            return;
        }
        self.end_age(number);
        self.segments.free(number);
    }

    /// Removes the gone blocks of a segment.
    fn drop_ghost(&mut self, number: u32) {
        let segment = &self.segments[number];
        let gone = segment.blocks - segment.cached;
        if gone == 0 {
            return;
        }
        self.ghost_entries -= segment.checkpoints();
        self.settle(number, gone);
        self.segments[number].blocks -= gone;
        self.tidy(number);
    }

    /// The tail of a segment was evicted: keeps it as gone.
    fn evict_tail(&mut self, number: u32, slot: u32) {
        let node = std::mem::replace(&mut self.nodes[slot as usize], NO_NODE);
        let segment = &mut self.segments[number];
        segment.cached -= 1;
        segment.tail = node.up;
        if segment.cached > 0 {
            self.nodes[node.up as usize].down = NONE;
        } else {
            segment.tail = self.marks[slot as usize].count().into();
        }
        let segment = &self.segments[number];
        if segment.is_checkpoint(segment.ghost_start()) {
            self.ghost_entries += 1;
            let (generation, segments) = (segment.generation, &self.segments);
            self.checkpoints.size_for(node.tag, self.ghost_entries);
            self.checkpoints.add(node.tag, number, generation, |entry| {
                entry.segment().is_some_and(|(number, generation)| {
                    segments.living(number, generation).is_some()
                })
            });
        }
        self.tidy(number);
        self.limit_ghosts(number);
    }

    /// Removes the oldest ghosts beyond the limit; if there are none, the gone blocks of `evicting`.
    fn limit_ghosts(&mut self, evicting: u32) {
        let entries = self.ghost_limit();
        let bytes = self.resident * BOOKS_BYTES;
        while self.ghost_entries > entries
            || self.segments.in_use() * size_of::<ChainSegment>()
                + self.ghost_entries * CHECKPOINT_BYTES
                > bytes
        {
            let oldest = self.ghosts.oldest;
            if oldest == NONE {
                return self.drop_ghost(evicting);
            }
            self.drop_ghost(oldest);
        }
    }

    fn ghost_limit(&self) -> usize {
        self.resident * CHECKPOINT_QUARTERS / 4
    }

    /// Unlinks a slot from its segment, at any position, without learning. The caller updates the segment's counts.
    fn unlink(&mut self, slot: u32) {
        let node = self.nodes[slot as usize];
        let segment = &mut self.segments[node.segment];
        if node.up == NONE {
            segment.start += 1;
        }
        if node.down == NONE {
            segment.tail = node.up;
        } else {
            self.nodes[node.down as usize].up = node.up;
        }
        if node.up != NONE {
            self.nodes[node.up as usize].down = node.down;
        }
        let segment = &mut self.segments[node.segment];
        segment.cached -= 1;
        segment.blocks -= 1;
        if segment.cached == 0 {
            segment.tail = self.marks[slot as usize].count().into();
        }
    }

    /// A slot left its segment for another reason than eviction or reuse.
    fn discard(&mut self, slot: Slot) {
        let Some(number) = self.segment_of(slot) else {
            return;
        };
        self.forget_name(slot);
        // Gone blocks come after the last resident block: a hole before it would break the chain.
        if self.nodes[slot.0 as usize].up != NONE || self.segments[number].cached == 1 {
            self.drop_ghost(number);
        }
        self.settle(number, 1);
        self.unlink(slot.0);
        self.nodes[slot.0 as usize] = NO_NODE;
        self.resident -= 1;
        self.shelves.remove_block(self.segments[number].octave);
        self.tidy(number);
    }

    fn estimate(&mut self) {
        self.tables.estimate(self.now);
        self.shelves.rank_anew(&self.tables);
    }

    fn forget_name(&mut self, slot: Slot) {
        if self.named == Some(slot) {
            self.named = None;
        }
    }
}

impl Evict for Gittins {
    fn name(&self) -> &'static str {
        if self.net.is_some() {
            "adaptive"
        } else {
            "gittins"
        }
    }

    fn read(&mut self, walk: &Walk<'_>) {
        self.advance(walk.now);
        self.requests += 1;
        self.read_walk(walk);
    }

    fn warm(&self, slot: Slot, step: usize) -> u32 {
        match step {
            0 => {
                let mark = self.marks.get(slot.0 as usize);
                let count = mark.map_or(0, |mark| mark.count());
                self.segment_of(slot).unwrap_or_default() ^ u32::from(count)
            }
            1 => (self.segment_of(slot)).map_or(0, |number| self.segments.warm(number)),
            _ => (self.segment_of(slot)).map_or(0, |number| self.segments.warm_beside(number)),
        }
    }

    fn insert(&mut self, walk: &Walk<'_>) {
        self.advance(walk.now);
        self.insert_walk(walk);
    }

    fn insert_as(&mut self, now: Instant, link: Link, standing: Standing) {
        self.advance(now);
        self.take_over(link, standing);
    }

    fn remove(&mut self, slot: Slot) {
        self.discard(slot);
    }

    fn victim(&mut self, now: Instant) -> Option<Slot> {
        if self.named.is_none() {
            self.advance(now);
            self.named = self.choose();
        }
        self.named
    }

    fn evicted(&mut self, now: Instant, slot: Slot) {
        let Some(number) = self.segment_of(slot) else {
            return;
        };
        self.advance(now);
        if self.segments[number].tail != slot.0 {
            return self.discard(slot);
        }
        self.forget_name(slot);
        self.resident -= 1;
        self.shelves.remove_block(self.segments[number].octave);
        self.evict_tail(number, slot.0);
    }

    fn exclude(&mut self, slot: Slot) {
        if self.segment_of(slot).is_some() {
            self.forget_name(slot);
            self.marks[slot.0 as usize].set_excluded(true);
        }
    }

    fn mark_leaving(&mut self, slot: Slot) {
        self.exclude(slot);
        if let Some(number) = self.segment_of(slot) {
            self.take_leave(slot, number);
        }
    }

    fn include(&mut self, slot: Slot) {
        let Some(number) = self.segment_of(slot) else {
            return;
        };
        self.marks[slot.0 as usize].set_excluded(false);
        if matches!(self.segments[number].place, Place::Aside | Place::Stuck) {
            self.displace(number);
            self.shelves
                .push_oldest(&mut self.segments, &self.tables, number);
        }
    }

    fn set_capacity(&mut self, _bytes: u64) {}

    fn set_block_tokens(&mut self, tokens: u32) {
        self.block_scale = f64::from(tokens) / TYPICAL_BLOCK_TOKENS;
    }

    fn would_keep(&mut self, now: Instant, link: Link) -> bool {
        self.advance(now);
        let (class, age) = self.memory_of(link.hash);
        self.cover(class);
        self.keeps(link.bytes, class, age, COPY_WORTH)
    }

    fn would_keep_as(&mut self, now: Instant, link: Link, standing: Standing) -> bool {
        self.advance(now);
        let (class, age) = self.read_standing(standing);
        self.cover(class);
        self.keeps(link.bytes, class, age, COPY_WORTH)
    }

    fn would_move(&mut self, now: Instant, slot: Slot, bytes: u64) -> bool {
        self.advance(now);
        // By the other rules a block is before another, and not so many times as good.
        let Some(number) = self.segment_of(slot).filter(|_| self.tables.is_learned()) else {
            return true;
        };
        let segment = &self.segments[number];
        let age = self.now.since(segment.last_use);
        self.keeps(bytes, segment.kept_as, age, MOVE_WORTH)
    }

    fn standing(&self, now: Instant, slot: Slot) -> Option<Standing> {
        self.segment_of(slot)
            .map(|number| self.standing_of(now, slot, number))
    }

    fn explain(&self, now: Instant, slot: Slot) -> Option<Explanation> {
        self.segment_of(slot)
            .map(|number| self.explanation(now, slot, number))
    }

    fn next_deadline(&self) -> Option<Instant> {
        let since = self.requests - self.estimated_at_request;
        let wanted = (self.requests / 16).clamp(FIRST_ESTIMATE, MOST_BETWEEN_ESTIMATES);
        (since >= wanted).then(|| {
            self.last_call
                .max(self.estimated_at + LEAST_BETWEEN_ESTIMATES)
        })
    }

    fn on_deadline(&mut self, now: Instant) {
        self.advance(now);
        if self.next_deadline().is_none_or(|due| due > now) {
            return;
        }
        self.follow();
        self.estimate();
        self.tables.decay(self.requests - self.estimated_at_request);
        self.estimated_at_request = self.requests;
        self.estimated_at = now;
    }

    fn leader(&self) -> Option<Leader> {
        self.leading()
    }

    fn save(&self) -> Vec<u8> {
        saved::write(std::iter::once(self.requests as f64).chain(self.tables.numbers()))
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let numbers = saved::read(bytes, 1 + Tables::NUMBERS)?;
        self.requests = numbers[0] as u64;
        self.estimated_at_request = self.requests;
        self.tables.set_numbers(&numbers[1..]);
        self.estimate();
        Ok(())
    }

    fn overhead_bytes(&self) -> usize {
        self.fixed_bytes()
            + self.nodes.capacity() * size_of::<Node>()
            + self.marks.capacity()
            + self.segments.overhead_bytes()
            + self.checkpoints.overhead_bytes()
            + self
                .net
                .as_ref()
                .map_or(0, |net| net.overhead_bytes() - net.fixed_bytes())
            + self.fresh.capacity() * size_of::<u32>()
    }

    fn fixed_bytes(&self) -> usize {
        size_of::<Self>()
            + self.tables.overhead_bytes()
            + self.shelves.overhead_bytes()
            + self.pending.overhead_bytes()
            + self.net.as_ref().map_or(0, Net::fixed_bytes)
    }
}

const fn exposure(segment: &ChainSegment, blocks: u16, ticks: u32) -> Exposure {
    Exposure {
        class: segment.class,
        bin: segment.bin,
        features: segment.features,
        blocks: blocks as u32,
        ticks,
    }
}
