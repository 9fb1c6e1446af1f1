use std::ops::Range;
use std::sync::atomic::Ordering;

use crossbeam_utils::CachePadded;

use crate::sync::AtomicU64;

/// The indices of one job that are not claimed yet, as one range for each participant (seat).
///
/// A range is one word: first index in the low half, end in the high half. Its owner takes from the front, thieves take
/// half of the rest from the back, both by compare-and-swap. The word is the whole state of the range, so a swap that
/// succeeds late is still right: there is no ABA to guard against.
#[derive(Debug)]
pub(crate) struct Ranges {
    seats: Box<[CachePadded<AtomicU64>]>,
}

/// The most seats of a job.
pub(crate) const SEATS_MAX: usize = 4096;

/// A claim takes this part of what is left to its owner, so that few claims are needed and the last ones are small.
const SHARE: u32 = 8;

/// How many indices a claim takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// At least so many, so that claims cost little.
    pub(crate) min: u32,
    /// At most so many: what is claimed cannot be stolen from a thread that loses its CPU.
    pub(crate) max: u32,
}

impl Chunk {
    /// For tasks whose cost is not known.
    pub(crate) const UNKNOWN: Self = Self {
        min: 1,
        max: u32::MAX,
    };

    /// The length of the next claim from what is left.
    pub(crate) fn of(self, left: &Range<u32>) -> u32 {
        let len = left.end - left.start;
        (len / SHARE)
            .clamp(self.min, self.max.max(self.min))
            .clamp(1, len)
    }
}

impl Ranges {
    pub(crate) fn new(seats: usize) -> Self {
        Self {
            seats: (0..seats)
                .map(|_| CachePadded::new(AtomicU64::new(0)))
                .collect(),
        }
    }

    /// Deals the indices `0..len` to the first `seats` seats in order and in equal parts. The others get none.
    ///
    /// Nobody may be claiming; the job that starts with this is published afterwards.
    pub(crate) fn deal(&self, len: u32, seats: usize) {
        let total = u64::from(len);
        for (seat, range) in self.seats.iter().enumerate() {
            let edge = |seat: usize| (total * seat.min(seats) as u64 / seats as u64) as u32;
            range.store(pack(edge(seat)..edge(seat + 1)), Ordering::Relaxed);
        }
    }

    /// Takes everything back: no claim succeeds any more.
    pub(crate) fn clear(&self) {
        for range in &self.seats {
            range.store(0, Ordering::Relaxed);
        }
    }

    /// Claims one chunk from the range of `seat` itself.
    pub(crate) fn own(&self, seat: usize, chunk: Chunk) -> Option<Range<u32>> {
        self.take(seat, |range| {
            let taken = range.start..range.start + chunk.of(&range);
            (taken.clone(), taken.end..range.end)
        })
    }

    /// Moves half of what another has left to `seat`, whose own range is empty, and takes the next indices from it.
    /// `among` seats were dealt to.
    ///
    /// `None`: every index is handed out, or on its way between two seats.
    pub(crate) fn steal(&self, seat: usize, among: usize, chunk: Chunk) -> Option<Range<u32>> {
        let victims = (1..among).map(|step| (seat + step) % among);
        let mut range = victims
            .filter(|&victim| victim != seat)
            .find_map(|victim| self.back_half(victim, chunk.min))?;
        // Nobody adds to another's range, so a plain store into the empty one loses nothing.
        let first = range.start..range.start + chunk.of(&range);
        range.start = first.end;
        self.seats[seat].store(pack(range), Ordering::Relaxed);
        Some(first)
    }

    /// The back half of what `victim` has left, rounded up; all of it if that is no more than one chunk.
    fn back_half(&self, victim: usize, chunk_min: u32) -> Option<Range<u32>> {
        self.take(victim, |range| {
            let len = range.end - range.start;
            let half = if len <= chunk_min {
                len
            } else {
                len.div_ceil(2)
            };
            let middle = range.end - half;
            (middle..range.end, range.start..middle)
        })
    }

    /// Splits what `seat` has left into what is taken and what stays.
    fn take(
        &self,
        seat: usize,
        split: impl Fn(Range<u32>) -> (Range<u32>, Range<u32>),
    ) -> Option<Range<u32>> {
        let word = &self.seats[seat];
        // Relaxed throughout: the indices carry no data. What the tasks read was published with the job, and what they
        // wrote is published when their participant leaves it.
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let range = unpack(seen);
            if range.is_empty() {
                return None;
            }
            let (taken, left) = split(range);
            match word.compare_exchange_weak(seen, pack(left), Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some(taken),
                Err(now) => seen = now,
            }
        }
    }
}

fn pack(range: Range<u32>) -> u64 {
    u64::from(range.end) << 32 | u64::from(range.start)
}

fn unpack(word: u64) -> Range<u32> {
    word as u32..(word >> 32) as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Claims for `order`'s seats in turn until nothing is left, and counts how often each index came.
    fn check(len: u32, seats: usize, chunk: Chunk, order: &[usize]) {
        let ranges = Ranges::new(8);
        ranges.deal(len, seats);
        let mut times = vec![0; len as usize];
        let mut idle = 0;
        for &seat in order.iter().cycle() {
            match ranges
                .own(seat, chunk)
                .or_else(|| ranges.steal(seat, seats, chunk))
            {
                Some(range) => {
                    idle = 0;
                    range.for_each(|index| times[index as usize] += 1);
                }
                None => idle += 1,
            }
            if idle > order.len() {
                break;
            }
        }
        assert!(
            times.iter().all(|&times| times == 1),
            "{len} over {seats} by {chunk:?}: {times:?}"
        );
    }

    #[test]
    fn each_index_is_handed_out_once_by_any_order_of_claims() {
        let many = if cfg!(miri) { 300 } else { 10_007 };
        for len in [0, 1, 2, 7, 64, 192, many] {
            for seats in [1, 2, 3, 8] {
                for (min, max) in [(1, u32::MAX), (4, 4), (1_000, 1)] {
                    let chunk = Chunk { min, max };
                    check(len, seats, chunk, &[0]);
                    check(len, seats, chunk, &(0..seats).collect::<Vec<_>>());
                    check(len, seats, chunk, &(0..seats).rev().collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn the_largest_job_is_dealt_without_overflow() {
        let ranges = Ranges::new(2);
        ranges.deal(u32::MAX, 2);
        assert_eq!(
            ranges.own(1, Chunk::UNKNOWN),
            Some(0x7fff_ffff..0x8fff_ffff)
        );
    }

    #[test]
    fn a_cleared_job_hands_out_nothing() {
        let ranges = Ranges::new(2);
        ranges.deal(100, 2);
        ranges.clear();
        assert_eq!(
            ranges
                .own(0, Chunk::UNKNOWN)
                .or_else(|| ranges.steal(0, 2, Chunk::UNKNOWN)),
            None
        );
    }
}
