use slackwater_base::Instant;

use super::queues::Queues;
use super::{Evict, Slot, Walk};

/// Least recently used, tail of the chain first: of blocks read together the leaf goes before the root, because a
/// block without its ancestors is of no use.
#[derive(Debug)]
pub(super) struct Lru {
    queues: Queues<1>,
}

impl Lru {
    pub(super) const fn new() -> Self {
        Self { queues: Queues::new() }
    }
}

impl Evict for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn read(&mut self, walk: &Walk<'_>) {
        for slot in walk.links.iter().rev().filter_map(|link| link.slot) {
            if self.queues.queue(slot).is_some() {
                self.queues.move_to(slot, 0);
            }
        }
    }

    fn insert(&mut self, walk: &Walk<'_>) {
        for link in walk.links.iter().rev() {
            if let Some(slot) = link.slot {
                self.queues.insert(slot, 0, link.bytes);
            }
        }
    }

    fn remove(&mut self, slot: Slot) {
        self.queues.remove(slot);
    }

    fn victim(&mut self, _now: Instant) -> Option<Slot> {
        self.queues.coldest(0)
    }

    fn evicted(&mut self, _now: Instant, slot: Slot) {
        self.queues.remove(slot);
    }

    fn park(&mut self, slot: Slot) {
        self.queues.park(slot);
    }

    fn unpark(&mut self, slot: Slot) {
        self.queues.unpark(slot);
    }

    fn set_capacity(&mut self, _bytes: u64) {}

    fn warm(&self, slot: Slot) -> u64 {
        self.queues.warm(slot)
    }

    fn overhead_bytes(&self) -> usize {
        self.queues.overhead_bytes()
    }
}
