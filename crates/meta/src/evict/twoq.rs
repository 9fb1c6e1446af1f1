use slackwater_base::Instant;

use super::ghosts::{Ghosts, tag};
use super::queues::{Queues, grow};
use super::{Evict, Slot, Walk};

/// 2Q (Johnson and Shasha, VLDB 1994), aware of requests: what is new stands in a first-in-first-out queue, what was
/// read again in a queue by recency, and ghosts of the first let late returns into the second.
///
/// The original takes no notice of hits in the first queue, because they may be echoes of the same request. Here a
/// request names each block once, so a second read is a true return and promotes at once.
#[derive(Debug)]
pub(super) struct TwoQ {
    queues: Queues<2>,
    tags: Vec<u32>,
    ghosts: Ghosts,
    named: Option<Slot>,
}

const NEW: usize = 0;
const AGAIN: usize = 1;
/// The new blocks' share of everything is one in this many, as the paper recommends.
const NEW_SHARE: u64 = 4;

impl TwoQ {
    pub(super) fn new() -> Self {
        Self { queues: Queues::new(), tags: Vec::new(), ghosts: Ghosts::default(), named: None }
    }

    fn choose(&mut self) -> Option<Slot> {
        let new_is_over = self.queues.units(NEW) * NEW_SHARE > self.queues.all_units();
        let (first, second) = if new_is_over { (NEW, AGAIN) } else { (AGAIN, NEW) };
        self.queues.coldest(first).or_else(|| self.queues.coldest(second))
    }

    fn forget_name(&mut self, slot: Slot) {
        if self.named == Some(slot) {
            self.named = None;
        }
    }
}

impl Evict for TwoQ {
    fn name(&self) -> &'static str {
        "twoq"
    }

    fn read(&mut self, walk: &Walk<'_>) {
        for slot in walk.links.iter().rev().filter_map(|link| link.slot) {
            if self.queues.queue(slot).is_some() {
                self.forget_name(slot);
                self.queues.move_to(slot, AGAIN);
            }
        }
    }

    fn insert(&mut self, walk: &Walk<'_>) {
        for link in walk.links.iter().rev() {
            let Some(slot) = link.slot else { continue };
            self.forget_name(slot);
            let tag = tag(link.hash);
            let queue = if self.ghosts.take(tag) { AGAIN } else { NEW };
            self.queues.insert(slot, queue, link.bytes);
            grow(&mut self.tags, slot.0 as usize, 0);
            self.tags[slot.0 as usize] = tag;
        }
    }

    fn remove(&mut self, slot: Slot) {
        self.forget_name(slot);
        self.queues.remove(slot);
    }

    fn victim(&mut self, _now: Instant) -> Option<Slot> {
        if self.named.is_none() {
            self.named = self.choose();
        }
        self.named
    }

    fn evicted(&mut self, _now: Instant, slot: Slot) {
        self.forget_name(slot);
        if self.queues.queue(slot) == Some(NEW) {
            self.ghosts.push(self.tags[slot.0 as usize], self.queues.resident());
        }
        self.queues.remove(slot);
    }

    fn park(&mut self, slot: Slot) {
        self.forget_name(slot);
        self.queues.park(slot);
    }

    fn unpark(&mut self, slot: Slot) {
        self.queues.unpark(slot);
    }

    fn set_capacity(&mut self, _bytes: u64) {}

    fn overhead_bytes(&self) -> usize {
        self.queues.overhead_bytes() + self.tags.capacity() * size_of::<u32>() + self.ghosts.overhead_bytes()
    }
}
