//! The choice of the next victim, and excluded blocks in its way.

use super::Gittins;
use super::ages::End;
use super::segments::{By, ChainSegment, NONE, Place};
use crate::evict::Slot;

impl Gittins {
    pub(super) fn choose(&mut self) -> Option<Slot> {
        let now = self.now;
        while let Some(lowest) = self.shelves.take_lowest(&self.segments, &self.tables, now) {
            let number = self.segments.deepest(lowest);
            let tail = self.segments[number].tail;
            if !self.marks[tail as usize].is_excluded() {
                return Some(Slot(tail));
            }
            self.shelves
                .remove(&mut self.segments, &self.tables, number);
            self.segments[number].place = Place::Aside;
            self.aside
                .push_newest(&mut self.segments, By::Place, number);
        }
        // Only segments with an excluded tail are left: an ancestor has to be evicted before its descendant.
        while !self.aside.is_empty() {
            let number = self.aside.oldest;
            let tail = self.segments[number].tail;
            if !self.marks[tail as usize].is_excluded() {
                return Some(Slot(tail));
            }
            self.split_tail(number);
        }
        None
    }

    /// Splits the excluded tail of a segment into a segment of its own, which is in no order until it is included.
    pub(super) fn split_tail(&mut self, number: u32) {
        let segment = self.segments[number];
        let tail = segment.tail;
        if segment.cached == 1 {
            self.displace(number);
            self.segments[number].place = Place::Stuck;
            return;
        }
        self.drop_ghost(number);
        let mut own = ChainSegment {
            place: Place::Stuck,
            blocks: 1,
            cached: 1,
            ..segment
        };
        own.start = segment.ghost_start() - 1;
        let own = self.segments.add(own);
        self.age_from(own, End::Newest);
        let node = &mut self.nodes[tail as usize];
        node.segment = own;
        let up = std::mem::replace(&mut node.up, NONE);
        self.nodes[up as usize].down = NONE;
        let rest = &mut self.segments[number];
        rest.tail = up;
        rest.cached -= 1;
        rest.blocks -= 1;
    }
}
