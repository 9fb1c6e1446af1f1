use slackwater_base::Instant;

use super::ghosts::tag;
use super::queues::{Queues, grow};
use super::{Evict, Link, Slot, Walk};

/// The rules in which policies of queues differ.
pub(super) trait Rules<const N: usize>: Send {
    /// The name of the policy in configuration and reports.
    const NAME: &'static str;

    /// Whether blocks that are not resident tell it something.
    const HEEDS_MISSES: bool = false;

    /// A block was requested; `slot` is set if it is resident.
    fn read(&mut self, queues: &mut Queues<N>, tag: u32, slot: Option<Slot>);

    /// The queue at whose hot end a new block begins.
    fn place(&mut self, queues: &Queues<N>, tag: u32) -> usize;

    /// A new block was put into the queue that [`Rules::place`] returned.
    fn placed(&mut self, _queues: &mut Queues<N>) {}

    /// Chooses the next victim. `tags` by slot.
    fn choose(&mut self, queues: &mut Queues<N>, tags: &[u32]) -> Option<Slot>;

    /// A block was evicted from `queue`, which it has left.
    fn gone(&mut self, _queues: &Queues<N>, _queue: usize, _tag: u32) {}

    /// Memory beside the queues, in bytes.
    fn overhead_bytes(&self) -> usize {
        0
    }
}

/// A policy over `N` queues: the state that all such policies have, and the [`Rules`] of one.
///
/// Walks go from the leaf to the root, so that of blocks read together the leaf is the colder one: a block without its
/// ancestors is of no use.
#[derive(Debug, Default)]
pub(super) struct Queued<R, const N: usize> {
    rules: R,
    queues: Queues<N>,
    tags: Vec<u32>,
    named: Option<Slot>,
}

impl<R, const N: usize> Queued<R, N> {
    fn forget_name(&mut self, slot: Slot) {
        self.named.take_if(|named| *named == slot);
    }
}

impl<R: Rules<N>, const N: usize> Queued<R, N> {
    fn read_one(&mut self, link: &Link, slot: Option<Slot>) {
        let slot = slot.filter(|slot| self.queues.queue(*slot).is_some());
        slot.into_iter().for_each(|slot| self.forget_name(slot));
        self.rules.read(&mut self.queues, tag(link.hash), slot);
    }
}

impl<R: Rules<N>, const N: usize> Evict for Queued<R, N> {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn read(&mut self, walk: &Walk<'_>) {
        self.queues.warm(walk.placed().map(|(.., slot)| slot));
        if R::HEEDS_MISSES {
            for link in walk.links.iter().rev() {
                self.read_one(link, link.slot);
            }
        } else {
            for (_, link, slot) in walk.placed().rev() {
                self.read_one(link, Some(slot));
            }
        }
    }

    fn insert(&mut self, walk: &Walk<'_>) {
        for (_, link, slot) in walk.placed().rev() {
            self.forget_name(slot);
            let tag = tag(link.hash);
            let queue = self.rules.place(&self.queues, tag);
            self.queues.insert(slot, queue, link.bytes);
            grow(&mut self.tags, slot.0 as usize, 0);
            self.tags[slot.0 as usize] = tag;
            self.rules.placed(&mut self.queues);
        }
    }

    fn remove(&mut self, slot: Slot) {
        self.forget_name(slot);
        self.queues.remove(slot);
    }

    fn victim(&mut self, _now: Instant) -> Option<Slot> {
        if self.named.is_none() {
            self.named = self.rules.choose(&mut self.queues, &self.tags);
        }
        self.named
    }

    fn evicted(&mut self, _now: Instant, slot: Slot) {
        let Some(queue) = self.queues.queue(slot) else {
            return;
        };
        self.remove(slot);
        self.rules
            .gone(&self.queues, queue, self.tags[slot.0 as usize]);
    }

    fn exclude(&mut self, slot: Slot) {
        self.forget_name(slot);
        self.queues.exclude(slot);
    }

    fn include(&mut self, slot: Slot) {
        self.queues.include(slot);
    }

    fn set_capacity(&mut self, _bytes: u64) {}

    fn overhead_bytes(&self) -> usize {
        self.queues.overhead_bytes()
            + self.tags.capacity() * size_of::<u32>()
            + self.rules.overhead_bytes()
    }
}
