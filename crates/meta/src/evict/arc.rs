use slackwater_base::Instant;

use super::ghosts::{Ghosts, tag};
use super::queues::{Queues, grow};
use super::{Evict, Slot, Walk};

/// ARC (Megiddo and Modha, FAST 2003): blocks read once and blocks read again in two queues, with ghosts of both that
/// move the border between them towards the one that was cut too short.
#[derive(Debug)]
pub(super) struct Arc {
    queues: Queues<2>,
    ghosts: [Ghosts; 2],
    tags: Vec<u32>,
    /// What the queue of blocks read once may hold, in the queues' units.
    once_target: f64,
    named: Option<Slot>,
}

const ONCE: usize = 0;
const AGAIN: usize = 1;

impl Arc {
    pub(super) fn new() -> Self {
        Self {
            queues: Queues::new(),
            ghosts: [Ghosts::default(), Ghosts::default()],
            tags: Vec::new(),
            once_target: 0.0,
            named: None,
        }
    }

    fn choose(&mut self) -> Option<Slot> {
        let once_is_over = self.queues.units(ONCE) as f64 > self.once_target;
        let (first, second) = if once_is_over { (ONCE, AGAIN) } else { (AGAIN, ONCE) };
        self.queues.coldest(first).or_else(|| self.queues.coldest(second))
    }

    /// The queue a new block belongs in. A ghost says which queue was too short, and by how much more often.
    fn place(&mut self, tag: u32) -> usize {
        let lengths = [self.ghosts[ONCE].len().max(1) as f64, self.ghosts[AGAIN].len().max(1) as f64];
        let block = self.queues.all_units() as f64 / self.queues.resident().max(1) as f64;
        let step = if self.ghosts[ONCE].take(tag) {
            (lengths[AGAIN] / lengths[ONCE]).max(1.0)
        } else if self.ghosts[AGAIN].take(tag) {
            -(lengths[ONCE] / lengths[AGAIN]).max(1.0)
        } else {
            return ONCE;
        };
        self.once_target = (self.once_target + step * block).clamp(0.0, self.queues.all_units() as f64);
        AGAIN
    }

    fn forget_name(&mut self, slot: Slot) {
        if self.named == Some(slot) {
            self.named = None;
        }
    }
}

impl Evict for Arc {
    fn name(&self) -> &'static str {
        "arc"
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
            let queue = self.place(tag);
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
        let Some(queue) = self.queues.queue(slot) else { return };
        self.queues.remove(slot);
        let resident = self.queues.resident();
        self.ghosts[queue].push(self.tags[slot.0 as usize], resident);
        // Read once, here or gone: no more than the cache holds. All four lists: no more than twice that.
        let others = self.ghosts[AGAIN].len();
        let once_limit = resident.saturating_sub(self.queues.slots(ONCE)).min(resident.saturating_sub(others));
        self.ghosts[ONCE].trim(once_limit.max(1));
        self.ghosts[AGAIN].trim(resident.saturating_sub(self.ghosts[ONCE].len()).max(1));
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
        let ghosts: usize = self.ghosts.iter().map(Ghosts::overhead_bytes).sum();
        self.queues.overhead_bytes() + self.tags.capacity() * size_of::<u32>() + ghosts
    }
}
