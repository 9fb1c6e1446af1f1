//! Segments by age: a list for each bin, and when the next segment is too old for its bin.

use slackwater_base::Instant;

use super::Gittins;
use super::class::{BINS, Tick};
use super::segments::{By, List, NONE, Place};

/// See the module.
#[derive(Debug)]
pub(super) struct Ages {
    lists: [List; BINS],
    /// For each list, the tick from which its oldest segment is too old for its bin: before that nobody looks at it.
    dues: [Tick; BINS],
    /// Whether there are segments too old for their bin of age.
    pub(super) behind: bool,
}

/// Which end of its list a segment is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Newest,
    Oldest,
}

/// Most segments that one call moves to their next bin: after a long pause this is done in steps.
pub(super) const AGED_A_CALL: usize = 256;
/// As far ahead as a tick can be told from one that has passed.
const FAR: u32 = u32::MAX / 2;

impl Ages {
    pub(super) const fn new() -> Self {
        Self {
            lists: [List::EMPTY; BINS],
            dues: [Tick(0); BINS],
            behind: false,
        }
    }

    /// The segment at the old end of a bin's list.
    pub(super) fn oldest(&self, bin: usize) -> Option<u32> {
        let oldest = self.lists[bin].oldest;
        (oldest != NONE).then_some(oldest)
    }
}

impl Gittins {
    /// Advances the time and moves segments that are too old for their bin to the next one.
    #[inline]
    pub(super) fn advance(&mut self, now: Instant) {
        self.last_call = self.last_call.max(now);
        let tick = self.origin.advance(now);
        if tick.since(self.now) > 0 || self.ages.behind {
            self.advance_to(tick);
        }
    }

    /// Apart from [`Self::advance`], which is asked several times for each block within one tick.
    #[inline(never)]
    fn advance_to(&mut self, tick: Tick) {
        (self.now, self.ages.behind) = (tick, false);
        let mut left = AGED_A_CALL;
        for bin in 0..BINS - 1 {
            if self.ages.dues[bin].since(tick) == 0 {
                left = self.age(bin, left);
            }
            if self.ages.behind {
                return;
            }
        }
    }

    /// Moves the segments that are too old for a bin to the next one, oldest first, and no more than `left`. Returns how many
    /// more may be moved.
    fn age(&mut self, bin: usize, mut left: usize) -> usize {
        let end = self.tables.bin_start(bin as u8 + 1);
        let mut next = self.ages.lists[bin].oldest;
        let mut last = None;
        while next != NONE {
            let segment = &mut self.segments[next];
            if self.now.since(segment.last_use) < end {
                break;
            }
            if left == 0 {
                self.ages.behind = true;
                break;
            }
            left -= 1;
            last = Some(next);
            segment.bin += 1;
            self.tables.outlive(bin, segment);
            let (number, place) = (next, segment.place);
            next = segment.newer(By::Age);
            if place == Place::Shelved {
                let (segments, tables) = (&mut self.segments, &self.tables);
                self.shelves.pass_on(segments, tables, number);
            }
        }
        let [from, to, ..] = &mut self.ages.lists[bin..] else {
            return left;
        };
        let was_empty = to.is_empty();
        if let Some(last) = last {
            from.pass_on(to, &mut self.segments, By::Age, last);
        }
        if was_empty {
            self.note_oldest(bin + 1);
        }
        self.note_oldest(bin);
        left
    }

    /// Adds a segment to the list of its bin.
    pub(super) fn age_from(&mut self, number: u32, end: End) {
        let list = &mut self.ages.lists[usize::from(self.segments[number].bin)];
        match end {
            End::Newest => list.push_newest(&mut self.segments, By::Age, number),
            End::Oldest => list.push_oldest(&mut self.segments, By::Age, number),
        }
        if list.oldest == number {
            self.note_oldest(self.segments[number].bin.into());
        }
    }

    /// Removes a segment from the list of its bin.
    pub(super) fn end_age(&mut self, number: u32) {
        let bin = usize::from(self.segments[number].bin);
        let was_oldest = self.ages.lists[bin].oldest == number;
        self.ages.lists[bin].remove(&mut self.segments, By::Age, number);
        if was_oldest {
            self.note_oldest(bin);
        }
    }

    /// Another segment is the oldest of its list, or there is none any more. A list is only nearly in the order of last uses:
    /// this one may be due before the one that was in front of it.
    fn note_oldest(&mut self, bin: usize) {
        if bin + 1 < BINS {
            let oldest = self.ages.oldest(bin);
            let left = oldest.map_or(FAR, |oldest| self.ticks_left(oldest));
            self.ages.dues[bin] = self.now.after(left);
        }
    }

    /// For how many ticks a segment stays in its bin, which is not the last one.
    fn ticks_left(&self, number: u32) -> u32 {
        let segment = &self.segments[number];
        let end = self.tables.bin_start(segment.bin + 1);
        end.saturating_sub(self.now.since(segment.last_use))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::evict::{Evict, Link, Slot, Standing};

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(1_000_000 + millis)
    }

    /// A block that came from another tier stood behind a younger one. When that was removed, the block was too old for its bin
    /// and nobody looked until the younger one would have been.
    #[test]
    fn a_segment_that_comes_to_the_front_ages_at_once() {
        let mut policy = Gittins::new();
        policy.advance(Instant::ZERO);
        // At the old end the first one, then the second, and behind it the third, which is older.
        for (slot, age) in [(0, 13_800), (1, 9_000), (2, 11_900)] {
            let link = Link {
                hash: u64::from(slot) << 40 | 1,
                slot: Some(Slot(slot)),
                bytes: 4096,
            };
            let standing = Standing {
                age: Duration::from_millis(age),
                reuses: 0,
                position: 0,
                class: 0,
                kept_as: 0,
                features: 0,
                chain: slot,
            };
            policy.insert_as(at(0), link, standing);
        }
        let bin = |policy: &Gittins, slot: u32| {
            let number = policy.segment_of(Slot(slot)).unwrap();
            policy.segments[number].bin
        };
        let bins = |policy: &Gittins| [0, 1, 2].map(|slot| bin(policy, slot));
        assert_eq!(bins(&policy), [3; 3]);
        policy.advance(at(2_900));
        assert_eq!(bins(&policy), [4, 3, 3], "older than 16 s");
        policy.advance(at(4_800));
        assert_eq!(bins(&policy), [4, 3, 3], "one waits behind a younger one");
        policy.remove(Slot(1));
        policy.advance(at(5_200));
        assert_eq!(bin(&policy, 2), 4);
        let left = policy.ages.dues[4].since(policy.now);
        assert!(left > 10, "nobody looks before the next is due: {left}");
    }
}
