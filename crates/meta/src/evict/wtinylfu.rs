use slackwater_base::Sketch;

use super::Slot;
use super::queued::{Queued, Rules};
use super::queues::Queues;

/// W-TinyLFU (Einziger, Friedman and Manes, ACM TOS 2017): a window where all blocks begin, and a segmented main part
/// that admits a block from the window only if it was read no less often lately than the block that it would displace.
/// (The paper decides ties for the resident block; of blocks read once, which are most of a KV cache, the newer is more
/// likely to return.)
///
/// The parts are shares of what is resident, see [`super::s3fifo`]. The window is a fifth, far more than the 1 % that
/// general caches use: a conversation's next turn comes late, and frequency says little about blocks read once.
pub(super) type WTinyLfu = Queued<WindowAndMain, 3>;

#[derive(Debug)]
pub(super) struct WindowAndMain {
    sketch: Sketch,
    sketch_keys: usize,
    /// Size of all parts when space was last short; zero before that.
    full_units: u64,
}

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;
/// The window's share of everything is one in this many.
const WINDOW_SHARE: u64 = 5;
/// The protected part's share of the main part, in fifths.
const PROTECTED_FIFTHS: u64 = 4;
const FIRST_SKETCH_KEYS: usize = 4096;

impl Default for WindowAndMain {
    fn default() -> Self {
        Self {
            sketch: Sketch::for_keys(FIRST_SKETCH_KEYS),
            sketch_keys: FIRST_SKETCH_KEYS,
            full_units: 0,
        }
    }
}

impl WindowAndMain {
    /// While there is room the window's overflow enters the main part unopposed; two moves an insert keep up with it.
    fn fill_main(&self, queues: &mut Queues<3>) {
        let is_full = self.full_units > 0 && queues.all_units() * 8 > self.full_units * 7;
        for _ in 0..2 {
            if is_full || queues.units(WINDOW) * WINDOW_SHARE <= queues.all_units() {
                return;
            }
            let Some(coldest) = queues.coldest(WINDOW) else {
                return;
            };
            queues.move_to(coldest, PROBATION);
        }
    }

    /// Replaces a sketch that is too small for what is resident, whose counts would be too high. The larger one starts
    /// empty.
    fn size_sketch(&mut self, resident: usize) {
        if resident > self.sketch_keys {
            self.sketch_keys *= 2;
            self.sketch = Sketch::for_keys(self.sketch_keys);
        }
    }
}

impl Rules<3> for WindowAndMain {
    const NAME: &'static str = "wtinylfu";
    const HEEDS_MISSES: bool = true;

    /// A block read in the probation part moves to the protected part; what exceeds the protected part's share moves
    /// back.
    fn read(&mut self, queues: &mut Queues<3>, tag: u32, slot: Option<Slot>) {
        self.sketch.add(u64::from(tag));
        let Some(slot) = slot else { return };
        if queues.queue(slot) == Some(WINDOW) {
            return queues.move_to(slot, WINDOW);
        }
        queues.move_to(slot, PROTECTED);
        let main = queues.units(PROBATION) + queues.units(PROTECTED);
        if queues.units(PROTECTED) * 5 > main * PROTECTED_FIFTHS
            && let Some(coldest) = queues.coldest(PROTECTED)
        {
            queues.move_to(coldest, PROBATION);
        }
    }

    fn place(&mut self, _queues: &Queues<3>, _tag: u32) -> usize {
        WINDOW
    }

    fn placed(&mut self, queues: &mut Queues<3>) {
        self.fill_main(queues);
        self.size_sketch(queues.resident());
    }

    fn choose(&mut self, queues: &mut Queues<3>, tags: &[u32]) -> Option<Slot> {
        self.full_units = queues.all_units();
        let main = queues
            .coldest(PROBATION)
            .or_else(|| queues.coldest(PROTECTED));
        let window = queues.coldest(WINDOW);
        let window_is_over = queues.units(WINDOW) * WINDOW_SHARE > queues.all_units();
        let (Some(candidate), Some(resident)) = (window, main) else {
            return window.or(main);
        };
        let reads = |slot: Slot| self.sketch.estimate(u64::from(tags[slot.0 as usize]));
        if !window_is_over {
            return Some(resident);
        }
        if reads(candidate) < reads(resident) {
            return Some(candidate);
        }
        queues.move_to(candidate, PROBATION);
        Some(resident)
    }

    fn overhead_bytes(&self) -> usize {
        self.sketch.bytes()
    }
}
