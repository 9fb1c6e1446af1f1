use std::num::NonZeroU32;

use slab::Slab;
use slackwater_base::Instant;

/// A timer that is set; cancelling it after it fired, or twice, does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerId {
    slot: u32,
    generation: NonZeroU32,
}

/// A hierarchical timing wheel (Varghese and Lauck, 1987) with ticks of one millisecond: setting and cancelling take
/// constant time, and a million timers that are far away cost nothing until they come near.
#[derive(Debug)]
pub struct Wheel<T> {
    entries: Slab<Entry<T>>,
    slots: Box<[[u32; SLOTS]; LEVELS]>,
    occupied: [u64; LEVELS],
    /// The tick up to which everything has fired.
    elapsed: u64,
    next_generation: NonZeroU32,
}

#[derive(Debug)]
struct Entry<T> {
    payload: T,
    tick: u64,
    generation: NonZeroU32,
    level: u8,
    slot: u8,
    prev: u32,
    next: u32,
}

const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
const LEVELS: usize = 7;
const NONE: u32 = u32::MAX;
const TICK_NANOS: u64 = 1_000_000;
/// Farther timers wait here and are looked at again: 2^41 milliseconds is 70 years.
const FARTHEST: u64 = 1 << 41;

impl<T> Wheel<T> {
    /// A wheel that has fired everything up to `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            entries: Slab::new(),
            slots: Box::new([[NONE; SLOTS]; LEVELS]),
            occupied: [0; LEVELS],
            elapsed: now.as_nanos() / TICK_NANOS,
            next_generation: NonZeroU32::MIN,
        }
    }

    /// Sets a timer. It fires with the first [`Wheel::advance`] that reaches `at`, never before.
    pub fn set(&mut self, at: Instant, payload: T) -> TimerId {
        let tick = at
            .as_nanos()
            .div_ceil(TICK_NANOS)
            .clamp(self.elapsed + 1, self.elapsed + FARTHEST);
        let generation = self.next_generation;
        self.next_generation = generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
        let entry = Entry {
            payload,
            tick,
            generation,
            level: 0,
            slot: 0,
            prev: NONE,
            next: NONE,
        };
        let key = self.entries.insert(entry) as u32;
        self.link(key);
        TimerId {
            slot: key,
            generation,
        }
    }

    /// Takes a timer back; its payload, if it has not fired.
    pub fn cancel(&mut self, id: TimerId) -> Option<T> {
        let entry = self.entries.get(id.slot as usize)?;
        if entry.generation != id.generation {
            return None;
        }
        self.unlink(id.slot);
        Some(self.entries.remove(id.slot as usize).payload)
    }

    /// A time before which no timer fires; none without timers.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let (_, _, tick) = self.next_slot()?;
        Some(Instant::from_nanos(tick.saturating_mul(TICK_NANOS)))
    }

    /// Moves time to `now` and appends the payloads of the timers that fire, earliest tick first.
    pub fn advance(&mut self, now: Instant, fired: &mut Vec<T>) {
        let to = now.as_nanos() / TICK_NANOS;
        while let Some((level, slot, tick)) = self.next_slot() {
            if tick > to {
                break;
            }
            self.elapsed = tick.max(self.elapsed);
            let mut key = std::mem::replace(&mut self.slots[level][slot], NONE);
            self.occupied[level] &= !(1 << slot);
            while key != NONE {
                let next = self.entries[key as usize].next;
                if self.entries[key as usize].tick <= self.elapsed {
                    fired.push(self.entries.remove(key as usize).payload);
                } else {
                    self.link(key);
                }
                key = next;
            }
        }
        self.elapsed = self.elapsed.max(to);
    }

    /// Timers that are set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no timer is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The earliest slot with timers and the tick at which it begins. A lower level always comes first: its slots
    /// lie within the current slot of the level above.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        for level in 0..LEVELS {
            if self.occupied[level] == 0 {
                continue;
            }
            let shift = BITS * level as u32;
            let here = (self.elapsed >> shift) & (SLOTS as u64 - 1);
            let ahead = self.occupied[level]
                .rotate_right(here as u32)
                .trailing_zeros() as u64;
            let slot = (here + ahead) as usize % SLOTS;
            let begins = ((self.elapsed >> shift) + ahead) << shift;
            return Some((level, slot, begins));
        }
        None
    }

    fn link(&mut self, key: u32) {
        let tick = self.entries[key as usize].tick;
        // The level is that of the highest digit in which the tick differs from now.
        let differing = (tick ^ self.elapsed) | (SLOTS as u64 - 1);
        let level = (((63 - differing.leading_zeros()) / BITS) as usize).min(LEVELS - 1);
        let slot = ((tick >> (BITS * level as u32)) & (SLOTS as u64 - 1)) as usize;
        let head = std::mem::replace(&mut self.slots[level][slot], key);
        if head != NONE {
            self.entries[head as usize].prev = key;
        }
        self.occupied[level] |= 1 << slot;
        let entry = &mut self.entries[key as usize];
        (entry.level, entry.slot, entry.prev, entry.next) = (level as u8, slot as u8, NONE, head);
    }

    fn unlink(&mut self, key: u32) {
        let Entry {
            level,
            slot,
            prev,
            next,
            ..
        } = self.entries[key as usize];
        let (level, slot) = (usize::from(level), usize::from(slot));
        if next != NONE {
            self.entries[next as usize].prev = prev;
        }
        if prev != NONE {
            self.entries[prev as usize].next = next;
        } else {
            self.slots[level][slot] = next;
            if next == NONE {
                self.occupied[level] &= !(1 << slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    proptest! {
        /// Against the obvious model: a list of (deadline, number).
        #[test]
        fn fires_what_is_due_and_nothing_else(
            steps in prop::collection::vec((0u8..4, prop_oneof![0u64..200, 0u64..100_000, 0u64..20_000_000_000]), 1..80),
        ) {
            let mut wheel = Wheel::new(Instant::ZERO);
            let mut model: Vec<(u64, usize, TimerId)> = Vec::new();
            let mut now = 0;
            for (number, (action, value)) in steps.into_iter().enumerate() {
                match action {
                    0 | 1 => {
                        let id = wheel.set(at(now + value), number);
                        model.push(((now + value).max(now + 1), number, id));
                    }
                    2 => if let Some(chosen) = (!model.is_empty()).then(|| model.remove(value as usize % model.len())) {
                        prop_assert_eq!(wheel.cancel(chosen.2), Some(chosen.1));
                        prop_assert_eq!(wheel.cancel(chosen.2), None);
                    },
                    _ => {
                        now += value;
                        let mut fired = Vec::new();
                        wheel.advance(at(now), &mut fired);
                        fired.sort_unstable();
                        let (mut due, rest): (Vec<_>, Vec<_>) = model.into_iter().partition(|timer| timer.0 <= now);
                        due.sort_by_key(|timer| timer.1);
                        prop_assert_eq!(fired, due.iter().map(|timer| timer.1).collect::<Vec<_>>());
                        model = rest;
                    }
                }
                prop_assert_eq!(wheel.len(), model.len());
                match (wheel.next_deadline(), model.iter().map(|timer| timer.0).min()) {
                    (None, None) => {}
                    (Some(bound), Some(first)) => prop_assert!(bound <= at(first) && bound > at(now)),
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
    }

    #[test]
    fn a_deadline_between_ticks_is_not_early() {
        let mut wheel = Wheel::new(Instant::ZERO);
        wheel.set(Instant::from_nanos(1_500_000), ());
        let mut fired = Vec::new();
        wheel.advance(Instant::from_nanos(1_999_999), &mut fired);
        assert!(fired.is_empty());
        wheel.advance(at(2), &mut fired);
        assert_eq!(fired.len(), 1);
    }

    #[test]
    fn never_is_far_but_no_overflow() {
        let mut wheel = Wheel::new(at(5));
        wheel.set(Instant::NEVER, ());
        let mut fired = Vec::new();
        wheel.advance(at(1 << 40), &mut fired);
        assert!(fired.is_empty());
    }
}
