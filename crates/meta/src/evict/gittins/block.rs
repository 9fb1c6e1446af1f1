//! What is known of one resident block: seventeen bytes, by slot.

use super::segments::NONE;

/// A resident block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) segment: u32,
    /// Neighbours within the segment: towards the root and towards the leaf.
    pub(super) up: u32,
    pub(super) down: u32,
    /// By which it is remembered once it is gone.
    pub(super) tag: u32,
}

/// A block's reuse count in seven bits, and whether it is parked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark(u8);

pub(super) const NO_NODE: Node = Node {
    segment: NONE,
    up: NONE,
    down: NONE,
    tag: 0,
};
/// Between two segments, in the midst of a call.
pub(super) const IN_HAND: u32 = u32::MAX - 1;

impl Mark {
    const PARKED: u8 = 0x80;
    const MOST: u8 = 0x7f;

    pub(super) const fn count(self) -> u8 {
        self.0 & Self::MOST
    }

    pub(super) fn set_count(&mut self, count: u8) {
        self.0 = self.0 & Self::PARKED | count.min(Self::MOST);
    }

    pub(super) const fn is_parked(self) -> bool {
        self.0 & Self::PARKED != 0
    }

    pub(super) const fn set_parked(&mut self, parked: bool) {
        self.0 = self.0 & Self::MOST | if parked { Self::PARKED } else { 0 };
    }
}
