//! The state of one resident block: seventeen bytes, by slot.

use super::segments::NONE;

/// A resident block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) segment: u32,
    /// The neighbour within the segment towards the root, and the one towards the leaf.
    pub(super) up: u32,
    pub(super) down: u32,
    /// The bits of its hash by which it is found once it is gone.
    pub(super) tag: u32,
}

/// A block's reuse count in seven bits, and whether it is excluded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark(u8);

pub(super) const NO_NODE: Node = Node {
    segment: NONE,
    up: NONE,
    down: NONE,
    tag: 0,
};
/// Marks a block that is between two segments during a call.
pub(super) const IN_HAND: u32 = u32::MAX - 1;

impl Mark {
    const EXCLUDED: u8 = 0x80;
    const MOST: u8 = 0x7f;

    pub(super) const fn count(self) -> u8 {
        self.0 & Self::MOST
    }

    pub(super) fn set_count(&mut self, count: u8) {
        self.0 = self.0 & Self::EXCLUDED | count.min(Self::MOST);
    }

    pub(super) const fn is_excluded(self) -> bool {
        self.0 & Self::EXCLUDED != 0
    }

    pub(super) const fn set_excluded(&mut self, excluded: bool) {
        self.0 = self.0 & Self::MOST | if excluded { Self::EXCLUDED } else { 0 };
    }
}
