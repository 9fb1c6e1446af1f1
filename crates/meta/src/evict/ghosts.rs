use std::collections::VecDeque;

use slackwater_base::Map;

/// Blocks that were here lately: a bounded first-in-first-out memory of keys, without their bytes.
///
/// Keys are remembered by 32 bits: a mistaken match makes one block look reused that was not, which costs a policy
/// nothing that it would notice, and the memory halves.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    order: VecDeque<u32>,
    /// Number of the oldest in `order`; the numbers tell an entry from a later one of the same key.
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
        // Keys that were taken leave gaps in the order; these are bounded too.
        while self.members.len() > limit || self.order.len() > 2 * limit {
            self.pop();
        }
    }

    /// How many keys are remembered.
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

    /// Whether `tag` was remembered; it no longer is.
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
    fn a_key_that_came_back_is_not_forgotten_with_its_older_self() {
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
