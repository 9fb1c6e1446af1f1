/// A count-min sketch (Cormode and Muthukrishnan, 2005) with aging: how often a key was read lately, never too low
/// except by aging, in memory that does not grow with the number of keys.
///
/// Four rows of saturating `u8` counters. After as many additions as there are counters, all are halved, so that
/// frequency means recent frequency (Einziger, Friedman and Manes, TinyLFU, 2017).
#[derive(Clone, Debug)]
pub struct Sketch {
    counters: Box<[u8]>,
    mask: u64,
    additions: u64,
}

impl Sketch {
    /// A sketch for about `keys` distinct keys: `keys` rounded up to a power of two counters a row, 4,096 at least.
    #[must_use]
    pub fn for_keys(keys: usize) -> Self {
        let width = keys.clamp(SMALLEST_WIDTH, 1 << 30).next_power_of_two();
        Self {
            counters: vec![0; width * DEPTH].into_boxed_slice(),
            mask: width as u64 - 1,
            additions: 0,
        }
    }

    /// Counts one read of `hash` and returns the estimate after it, from 1 to 255.
    pub fn add(&mut self, hash: u64) -> u8 {
        let mut least = u8::MAX;
        for slot in self.slots(hash) {
            let counter = &mut self.counters[slot];
            *counter = counter.saturating_add(1);
            least = least.min(*counter);
        }
        self.additions += 1;
        if self.additions as usize >= self.counters.len() {
            self.age();
        }
        least
    }

    /// How often `hash` was read lately, at least: 0 to 255.
    #[must_use]
    pub fn estimate(&self, hash: u64) -> u8 {
        self.slots(hash)
            .into_iter()
            .map(|slot| self.counters[slot])
            .min()
            .unwrap_or(0)
    }

    /// Memory of the counters, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.counters.len()
    }

    fn age(&mut self) {
        self.additions = 0;
        for counter in &mut self.counters {
            *counter /= 2;
        }
    }

    /// One counter a row: double hashing from the two halves of a mixed hash (Kirsch and Mitzenmacher, 2008).
    fn slots(&self, hash: u64) -> [usize; DEPTH] {
        let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (first, step) = (mixed, mixed.rotate_left(32) | 1);
        std::array::from_fn(|row| {
            let column = first.wrapping_add(step.wrapping_mul(row as u64)) & self.mask;
            row * (self.mask as usize + 1) + column as usize
        })
    }
}

const DEPTH: usize = 4;
const SMALLEST_WIDTH: usize = 4096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn never_estimates_below_the_truth_before_aging(hashes in prop::collection::vec(0u64..500, 1..2000)) {
            let mut sketch = Sketch::for_keys(4096);
            let mut truth = [0u32; 500];
            for hash in hashes {
                sketch.add(hash);
                truth[hash as usize] += 1;
                prop_assert!(u32::from(sketch.estimate(hash)) >= truth[hash as usize].min(255));
            }
        }
    }

    #[test]
    fn counters_saturate_and_halve() {
        let mut sketch = Sketch::for_keys(1);
        for _ in 0..16_383 {
            sketch.add(1);
        }
        assert_eq!(sketch.estimate(1), 255);
        sketch.add(1);
        assert_eq!(sketch.estimate(1), 127);
    }

    #[test]
    fn a_sketch_sized_for_its_keys_distinguishes_one_read_from_two() {
        let mut sketch = Sketch::for_keys(100_000);
        let mut wrong = 0;
        for key in 0..50_000u64 {
            wrong += u32::from(sketch.add(key.wrapping_mul(0x2545_f491_4f6c_dd1d)) > 1);
        }
        assert!(
            wrong < 1_000,
            "{wrong} of 50,000 keys read once look read twice"
        );
    }
}
