//! Segments by age: a list for each bin, and when the next segment is too old for its bin.

use slackwater_base::Instant;

use super::Gittins;
use super::class::{BINS, Tick};
use super::exposure;
use super::segments::{By, List, NONE, Place};

/// See the module.
#[derive(Debug)]
pub(super) struct Ages {
    lists: [List; BINS],
    /// No segment is too old for its bin before this tick: a call that comes earlier looks at none.
    due: Tick,
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
            due: Tick(0),
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

    fn advance_to(&mut self, tick: Tick) {
        self.now = tick;
        if self.ages.due.since(tick) > 0 && !self.ages.behind {
            return;
        }
        (self.ages.behind, self.ages.due) = (false, tick.after(FAR));
        let mut left = AGED_A_CALL;
        for bin in 0..BINS - 1 {
            while let Some(oldest) = self.ages.oldest(bin) {
                if self.ticks_left(oldest) > 0 {
                    self.note_age(oldest);
                    break;
                }
                if left == 0 {
                    self.ages.behind = true;
                    return;
                }
                left -= 1;
                self.age(oldest);
            }
        }
    }

    /// Moves the oldest segment of its bin of age to the next one.
    fn age(&mut self, number: u32) {
        let segment = self.segments[number];
        let bin = usize::from(segment.bin);
        let (from, to) = (
            self.tables.bin_start(segment.bin),
            self.tables.bin_start(segment.bin + 1),
        );
        self.tables
            .expose(exposure(&segment, segment.blocks, to - from));
        self.tables.pass_on(
            segment.class.cell(segment.bin),
            segment.blocks.into(),
            segment.last_use,
        );
        self.ages.lists[bin].remove(&mut self.segments, By::Age, number);
        self.ages.lists[bin + 1].push_newest(&mut self.segments, By::Age, number);
        if segment.place == Place::Shelved {
            self.shelves
                .pass_on(&mut self.segments, &self.tables, number);
        }
        self.segments[number].bin += 1;
    }

    /// Adds a segment to the list of its bin.
    pub(super) fn age_from(&mut self, number: u32, end: End) {
        let list = &mut self.ages.lists[usize::from(self.segments[number].bin)];
        match end {
            End::Newest => list.push_newest(&mut self.segments, By::Age, number),
            End::Oldest => list.push_oldest(&mut self.segments, By::Age, number),
        }
        self.note_age(number);
    }

    /// Removes a segment from the list of its bin.
    pub(super) fn end_age(&mut self, number: u32) {
        let bin = usize::from(self.segments[number].bin);
        self.ages.lists[bin].remove(&mut self.segments, By::Age, number);
        // A list is only nearly in the order of last uses: the next one may be due before the one that was in front of it.
        if let Some(oldest) = self.ages.oldest(bin) {
            self.note_age(oldest);
        }
    }

    /// Has the next call at which this segment is too old for its bin look.
    fn note_age(&mut self, number: u32) {
        if usize::from(self.segments[number].bin) == BINS - 1 {
            return;
        }
        let due = self.now.after(self.ticks_left(number));
        if self.ages.due.since(due) > 0 {
            self.ages.due = due;
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
        for (slot, age) in [(0, 1_300), (1, 1_050), (2, 1_200)] {
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
        assert_eq!(bins(&policy), [1; 3]);
        policy.advance(at(150));
        assert_eq!(bins(&policy), [2, 1, 1], "older than 1.41 s");
        policy.advance(at(250));
        assert_eq!(bins(&policy), [2, 1, 1], "one waits behind a younger one");
        policy.remove(Slot(1));
        policy.advance(at(270));
        assert_eq!(bin(&policy, 2), 2);
        let left = policy.ages.due.since(policy.now);
        assert!(left > 10, "nobody looks before the next is due: {left}");
    }
}
