use slackwater_base::Instant;

use super::ghosts::{Ghosts, tag};
use super::queues::{Queues, grow};
use super::{Evict, Slot, Walk};

/// S3-FIFO (Yang, Zhang, Qiu, Yue and Rashmi, SOSP 2023): a small probationary queue in front of a main queue with
/// lazy promotion, and ghosts that let what returns soon pass straight into the main queue.
///
/// The queues are sized as shares of what is resident, not of the capacity: the catalog evicts below a watermark, and
/// a share of memory that is never filled would never be a limit.
#[derive(Debug)]
pub(super) struct S3Fifo {
    queues: Queues<2>,
    tags: Vec<u32>,
    ghosts: Ghosts,
    named: Option<Slot>,
}

const SMALL: usize = 0;
const MAIN: usize = 1;
/// The small queue's share is one in this many.
const SMALL_SHARE: u64 = 10;
const MOST_READS: u8 = 3;
/// Reads in the small queue that earn a place in the main one.
const PROMOTION_READS: u8 = 2;

impl S3Fifo {
    pub(super) fn new() -> Self {
        Self { queues: Queues::new(), tags: Vec::new(), ghosts: Ghosts::default(), named: None }
    }

    fn choose(&mut self) -> Option<Slot> {
        loop {
            let small = self.queues.coldest(SMALL);
            let main = self.queues.coldest(MAIN);
            let small_is_over = self.queues.units(SMALL) * SMALL_SHARE > self.queues.all_units();
            match (small, main) {
                (None, None) => return None,
                (Some(slot), main) if small_is_over || main.is_none() => {
                    if self.queues.mark(slot) < PROMOTION_READS {
                        return Some(slot);
                    }
                    self.queues.set_mark(slot, 0);
                    self.queues.move_to(slot, MAIN);
                }
                (_, Some(slot)) => {
                    let mark = self.queues.mark(slot);
                    if mark == 0 {
                        return Some(slot);
                    }
                    self.queues.set_mark(slot, mark - 1);
                    self.queues.move_to(slot, MAIN);
                }
                (Some(slot), None) => return Some(slot),
            }
        }
    }

    fn forget_name(&mut self, slot: Slot) {
        if self.named == Some(slot) {
            self.named = None;
        }
    }
}

impl Evict for S3Fifo {
    fn name(&self) -> &'static str {
        "s3fifo"
    }

    fn read(&mut self, walk: &Walk<'_>) {
        for slot in walk.links.iter().filter_map(|link| link.slot) {
            if self.queues.queue(slot).is_some() {
                self.queues.set_mark(slot, (self.queues.mark(slot) + 1).min(MOST_READS));
                self.forget_name(slot);
            }
        }
    }

    fn insert(&mut self, walk: &Walk<'_>) {
        for link in walk.links.iter().rev() {
            let Some(slot) = link.slot else { continue };
            self.forget_name(slot);
            let tag = tag(link.hash);
            let queue = if self.ghosts.take(tag) { MAIN } else { SMALL };
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
        if self.queues.queue(slot) == Some(SMALL) {
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

    fn warm(&self, slot: Slot) -> u64 {
        self.queues.warm(slot)
    }

    fn overhead_bytes(&self) -> usize {
        self.queues.overhead_bytes() + self.tags.capacity() * size_of::<u32>() + self.ghosts.overhead_bytes()
    }
}
