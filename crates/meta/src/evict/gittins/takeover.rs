//! Blocks that come from another tier with their class and age; their neighbours follow one by one.

use super::Gittins;
use super::ages::End;
use super::block::{IN_HAND, Mark, NO_NODE, Node};
use super::class::{CLASSES, Class, Features, Tick};
use super::opinion::ticks;
use super::segments::{ChainSegment, NONE, Place};
use super::shelves::octave;
use crate::evict::ghosts::tag;
use crate::evict::queues::grow;
use crate::evict::{Link, Slot, Standing};

impl Gittins {
    /// Adds a block with its standing in another tier. Tiers pass on chains from one end to the other, so the block
    /// that came just before is usually its neighbour, and then they share a segment.
    pub(super) fn take_over(&mut self, link: Link, standing: Standing) {
        let Some(slot) = link.slot else { return };
        self.discard(slot);
        let at = slot.0 as usize;
        grow(&mut self.nodes, at, NO_NODE);
        grow(&mut self.marks, at, Mark::default());
        self.marks[at] = Mark::default();
        self.marks[at].set_count(standing.reuses);
        self.nodes[at] = Node {
            tag: tag(link.hash),
            ..NO_NODE
        };
        self.resident += 1;
        self.shelves.add_block(link.bytes);
        if !self.join_neighbour(slot, octave(link.bytes), standing) {
            self.found(slot, octave(link.bytes), standing);
        }
        self.taken_over = Some((slot, standing));
    }

    /// Adds the block to the segment of the one that came last, if that is its neighbour: evicted chains come leaf
    /// first, promoted ones root first.
    fn join_neighbour(&mut self, slot: Slot, octave: u8, standing: Standing) -> bool {
        let Some((other, before)) = self.taken_over.filter(|(other, _)| *other != slot) else {
            return false;
        };
        let Some(number) = self.segment_of(other).filter(|&number| number != IN_HAND) else {
            return false;
        };
        let segment = self.segments[number];
        let (class, kept_as) = (
            Class::clamped(standing.class),
            Class::clamped(standing.kept_as),
        );
        let alike = before.chain == standing.chain
            && (segment.class, segment.kept_as, segment.octave) == (class, kept_as, octave)
            && segment.cached > 0
            // A stuck segment waits for an excluded block, and the new block would be in no order with it.
            && segment.place != Place::Stuck
            && segment.blocks < u16::MAX
            && self.now.since(segment.last_use).abs_diff(ticks(standing.age)) <= 1;
        let neighbour = self.nodes[other.0 as usize];
        let is_parent = standing.position + 1 == segment.start && neighbour.up == NONE;
        let is_child = standing.position == segment.end()
            && segment.tail == other.0
            && segment.blocks == segment.cached;
        if !alike || !(is_parent || is_child) {
            return false;
        }
        self.tables
            .enter(segment.class.cell(segment.bin), 1, segment.last_use);
        let record = &mut self.segments[number];
        record.blocks += 1;
        record.cached += 1;
        let (parent, child) = if is_parent {
            (slot.0, other.0)
        } else {
            (other.0, slot.0)
        };
        if is_parent {
            record.start -= 1;
        } else {
            record.tail = slot.0;
        }
        self.nodes[slot.0 as usize].segment = number;
        self.nodes[parent as usize].down = child;
        self.nodes[child as usize].up = parent;
        true
    }

    fn list_by_age(&mut self, number: u32) {
        let (bin, last_use) = (
            usize::from(self.segments[number].bin),
            self.segments[number].last_use,
        );
        let oldest = self.ages.oldest(bin);
        let is_oldest =
            oldest.is_some_and(|oldest| last_use.since(self.segments[oldest].last_use) == 0);
        self.age_from(number, if is_oldest { End::Oldest } else { End::Newest });
    }

    /// Makes a segment of the single block.
    fn found(&mut self, slot: Slot, octave: u8, standing: Standing) {
        let age = ticks(standing.age).min(self.now.0);
        let (class, last_use) = (Class::clamped(standing.class), Tick(self.now.0 - age));
        let segment = ChainSegment {
            tail: slot.0,
            blocks: 1,
            cached: 1,
            octave,
            kept_as: Class::clamped(standing.kept_as),
            bin: self.tables.bin_of(age),
            ..ChainSegment::new(
                standing.position,
                last_use,
                class,
                Features(standing.features),
            )
        };
        let number = self.segments.add(segment);
        self.nodes[slot.0 as usize].segment = number;
        self.tables.enter(class.cell(segment.bin), 1, last_use);
        self.list_by_age(number);
        self.shelve(number);
    }
}

const _: () = assert!(
    CLASSES <= u8::MAX as usize,
    "a standing holds the number of a class"
);
