use slackwater_base::{Instant, Sketch};

use super::ghosts::tag;
use super::queues::{Queues, grow};
use super::{Evict, Slot, Walk};

/// W-TinyLFU (Einziger, Friedman and Manes, ACM TOS 2017): a window where all begin, and a segmented main part that
/// admits what leaves the window only if it was read no less often lately than what it would displace. (The paper
/// decides ties for what is there; of blocks read once, which are most of a KV cache, the newer is the better bet.)
///
/// The parts are shares of what is resident, see [`super::s3fifo`]. The window is a fifth, far more than the 1 % that
/// general caches use: a conversation's next turn comes late, and frequency says little about blocks read once.
#[derive(Debug)]
pub(super) struct WTinyLfu {
    queues: Queues<3>,
    tags: Vec<u32>,
    sketch: Sketch,
    sketch_keys: usize,
    /// Size of everything when space was last short; zero before that.
    full_units: u64,
    named: Option<Slot>,
}

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;
/// The window's share of everything is one in this many.
const WINDOW_SHARE: u64 = 5;
/// The protected part's share of the main part, in fifths.
const PROTECTED_FIFTHS: u64 = 4;
const FIRST_SKETCH_KEYS: usize = 4096;

impl WTinyLfu {
    pub(super) fn new() -> Self {
        Self {
            queues: Queues::new(),
            tags: Vec::new(),
            sketch: Sketch::for_keys(FIRST_SKETCH_KEYS),
            sketch_keys: FIRST_SKETCH_KEYS,
            full_units: 0,
            named: None,
        }
    }

    fn choose(&mut self) -> Option<Slot> {
        let main = self.queues.coldest(PROBATION).or_else(|| self.queues.coldest(PROTECTED));
        let window = self.queues.coldest(WINDOW);
        let window_is_over = self.queues.units(WINDOW) * WINDOW_SHARE > self.queues.all_units();
        let (Some(candidate), Some(resident)) = (window, main) else { return window.or(main) };
        if !window_is_over {
            return Some(resident);
        }
        if self.reads(candidate) < self.reads(resident) {
            return Some(candidate);
        }
        self.queues.move_to(candidate, PROBATION);
        Some(resident)
    }

    fn reads(&self, slot: Slot) -> u8 {
        self.sketch.estimate(u64::from(self.tags[slot.0 as usize]))
    }

    /// A read in probation earns protection; what protection has too much of falls back.
    fn touch(&mut self, slot: Slot) {
        let Some(queue) = self.queues.queue(slot) else { return };
        if queue == WINDOW {
            return self.queues.move_to(slot, WINDOW);
        }
        self.queues.move_to(slot, PROTECTED);
        let main = self.queues.units(PROBATION) + self.queues.units(PROTECTED);
        if self.queues.units(PROTECTED) * 5 > main * PROTECTED_FIFTHS
            && let Some(coldest) = self.queues.coldest(PROTECTED)
        {
            self.queues.move_to(coldest, PROBATION);
        }
    }

    /// While there is room the window's overflow enters the main part unopposed; two moves an insert keep up with it.
    fn fill_main(&mut self) {
        let is_full = self.full_units > 0 && self.queues.all_units() * 8 > self.full_units * 7;
        for _ in 0..2 {
            if is_full || self.queues.units(WINDOW) * WINDOW_SHARE <= self.queues.all_units() {
                return;
            }
            let Some(coldest) = self.queues.coldest(WINDOW) else { return };
            self.queues.move_to(coldest, PROBATION);
        }
    }

    /// A sketch too small for what is resident cannot tell once from twice. A larger one starts empty.
    fn size_sketch(&mut self) {
        if self.queues.resident() > self.sketch_keys {
            self.sketch_keys *= 2;
            self.sketch = Sketch::for_keys(self.sketch_keys);
        }
    }

    fn forget_name(&mut self, slot: Slot) {
        if self.named == Some(slot) {
            self.named = None;
        }
    }
}

impl Evict for WTinyLfu {
    fn name(&self) -> &'static str {
        "wtinylfu"
    }

    fn read(&mut self, walk: &Walk<'_>) {
        for link in walk.links.iter().rev() {
            self.sketch.add(u64::from(tag(link.hash)));
            if let Some(slot) = link.slot {
                self.forget_name(slot);
                self.touch(slot);
            }
        }
    }

    fn insert(&mut self, walk: &Walk<'_>) {
        for link in walk.links.iter().rev() {
            let Some(slot) = link.slot else { continue };
            self.forget_name(slot);
            self.queues.insert(slot, WINDOW, link.bytes);
            grow(&mut self.tags, slot.0 as usize, 0);
            self.tags[slot.0 as usize] = tag(link.hash);
            self.fill_main();
        }
        self.size_sketch();
    }

    fn remove(&mut self, slot: Slot) {
        self.forget_name(slot);
        self.queues.remove(slot);
    }

    fn victim(&mut self, _now: Instant) -> Option<Slot> {
        if self.named.is_none() {
            self.full_units = self.queues.all_units();
            self.named = self.choose();
        }
        self.named
    }

    fn evicted(&mut self, _now: Instant, slot: Slot) {
        self.remove(slot);
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
        self.queues.overhead_bytes() + self.tags.capacity() * size_of::<u32>() + self.sketch.bytes()
    }
}
