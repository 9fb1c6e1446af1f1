use std::collections::VecDeque;

use slackwater_base::Map;

/// Blocks that were evicted lately: a bounded first-in-first-out list of keys, without their bytes.
///
/// Keys are kept as 32 bits, which halves the memory: a mistaken match makes one block look reused that was not, which
/// hardly changes what a policy does.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    order: VecDeque<u32>,
    /// Number of the oldest entry in `order`; the numbers distinguish entries of the same key.
    first: u32,
    members: Map<u32, u32>,
}

impl Ghosts {
    /// Remembers `tag` as the newest, and forgets the oldest until no more than `limit` are left.
    pub(super) fn push(&mut self, tag: u32, limit: usize) {
        let number = self.first.wrapping_add(self.order.len() as u32);
        self.order.push_back(tag);
        self.members.insert(tag, number);
        self.trim(limit);
    }

    /// Forgets the oldest until no more than `limit` are left.
    pub(super) fn trim(&mut self, limit: usize) {
        // Keys that were taken leave gaps in the order, which are bounded too.
        while self.members.len() > limit || self.order.len() > 2 * limit {
            self.pop();
        }
    }

    /// Number of keys.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    fn pop(&mut self) {
        let Some(tag) = self.order.pop_front() else {
            return;
        };
        if self.members.get(&tag) == Some(&self.first) {
            self.members.remove(&tag);
        }
        self.first = self.first.wrapping_add(1);
    }

    /// Removes `tag`; returns whether it was there.
    pub(super) fn take(&mut self, tag: u32) -> bool {
        self.members.remove(&tag).is_some()
    }

    pub(super) fn overhead_bytes(&self) -> usize {
        self.order.capacity() * size_of::<u32>() + self.members.allocation_size()
    }
}

/// The 32 bits by which policies remember a key.
pub(super) const fn tag(hash: u64) -> u32 {
    ((hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_added_again_is_not_removed_with_its_older_entry() {
        let mut ghosts = Ghosts::default();
        ghosts.push(1, 3);
        assert!(ghosts.take(1));
        ghosts.push(1, 3);
        ghosts.push(2, 3);
        ghosts.push(3, 3);
        assert!(
            ghosts.take(1),
            "the first entry of 1 fell out, the second did not"
        );
        assert!(!ghosts.take(1));
    }
}
