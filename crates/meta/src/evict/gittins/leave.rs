//! Blocks marked as leaving: they leave their segment at once, so that the block before them can be the next victim.

use super::Gittins;
use super::block::{IN_HAND, NO_NODE};
use super::segments::{NONE, Place};
use crate::evict::Slot;

impl Gittins {
    /// Splits an excluded tail off its segment. Neighbours that leave one after the other share a segment again, in
    /// which they become ghosts together.
    pub(super) fn take_leave(&mut self, slot: Slot, number: u32) {
        let segment = self.segments[number];
        if segment.tail != slot.0 || segment.place == Place::Stuck {
            return;
        }
        if segment.cached == 1 || !self.join_leaving(slot, number) {
            self.split_tail(number);
        }
        self.leaving = Some(slot);
    }

    fn join_leaving(&mut self, slot: Slot, number: u32) -> bool {
        let segment = self.segments[number];
        let Some(child) = self.leaving.filter(|child| *child != slot) else {
            return false;
        };
        let Some(left) = self.segment_of(child).filter(|&left| left != IN_HAND) else {
            return false;
        };
        let other = self.segments[left];
        let same = other.place == Place::Stuck
            && segment.blocks == segment.cached
            && other.start == segment.ghost_start()
            && (other.class, other.bin, other.octave)
                == (segment.class, segment.bin, segment.octave)
            && other.last_use == segment.last_use
            && other.cached > 0
            && other.blocks < u16::MAX
            && self.nodes[child.0 as usize].up == NONE;
        if !same {
            return false;
        }
        let node = std::mem::replace(&mut self.nodes[slot.0 as usize], NO_NODE);
        self.nodes[node.up as usize].down = NONE;
        let rest = &mut self.segments[number];
        rest.tail = node.up;
        rest.cached -= 1;
        rest.blocks -= 1;
        let record = &mut self.segments[left];
        record.start -= 1;
        record.cached += 1;
        record.blocks += 1;
        self.nodes[child.0 as usize].up = slot.0;
        let joined = &mut self.nodes[slot.0 as usize];
        (joined.segment, joined.down, joined.tag) = (left, child.0, node.tag);
        true
    }
}
