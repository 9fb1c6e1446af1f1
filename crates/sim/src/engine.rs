//! The event queue, the trace, and the random streams that one seed is split into.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt::{self, Write as _};

use slackwater_base::{Instant, Rng, hash64};

/// The one seed of a run. Every part of the world draws from a stream of its own, named by its purpose, so that a new
/// stream never changes the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

impl Seed {
    /// The stream called `label`, the `index`-th of its kind.
    #[must_use]
    pub fn stream(self, label: &str, index: u64) -> Rng {
        let mut bytes = Vec::with_capacity(label.len() + 16);
        bytes.extend_from_slice(&self.0.to_le_bytes());
        bytes.extend_from_slice(&index.to_le_bytes());
        bytes.extend_from_slice(label.as_bytes());
        Rng::new(hash64(&bytes))
    }
}

/// Events in order of time, then of pushing. The clock of the world advances only when the next event is taken.
#[derive(Debug)]
pub struct Engine<E> {
    now: Instant,
    sequence: u64,
    queue: BinaryHeap<Entry<E>>,
}

#[derive(Debug)]
struct Entry<E> {
    at: Instant,
    sequence: u64,
    event: E,
}

impl<E> Engine<E> {
    /// An empty queue at time zero.
    #[must_use]
    pub fn new() -> Self {
        Self {
            now: Instant::ZERO,
            sequence: 0,
            queue: BinaryHeap::new(),
        }
    }

    /// The time of the world, which no process reads.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Makes `event` happen at `at`, or now if that time has passed.
    pub fn push(&mut self, at: Instant, event: E) {
        let entry = Entry {
            at: at.max(self.now),
            sequence: self.sequence,
            event,
        };
        self.sequence += 1;
        self.queue.push(entry);
    }

    /// Takes the next event and advances the time to it.
    pub fn pop(&mut self) -> Option<E> {
        let entry = self.queue.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }

    /// When the next event happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.queue.peek().map(|entry| entry.at)
    }
}

impl<E> Default for Engine<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// Reversed: the heap returns its largest element, and the earliest event is wanted.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

/// What happened, as one number and, for a listener, as lines of text.
///
/// The number is a hash over all lines, so two runs with the same hash did the same things at the same times.
pub struct Trace {
    hash: u64,
    lines: u64,
    listener: Option<fn(&str)>,
    line: String,
}

impl Trace {
    /// An empty trace; `listener` is called with each line.
    #[must_use]
    pub fn new(listener: Option<fn(&str)>) -> Self {
        Self {
            hash: 0,
            lines: 0,
            listener,
            line: String::new(),
        }
    }

    /// Adds a line.
    pub fn note(&mut self, now: Instant, what: fmt::Arguments<'_>) {
        self.line.clear();
        write!(self.line, "{now} {what}").expect("a string takes any text");
        self.hash = hash64(self.line.as_bytes())
            ^ self.hash.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.lines += 1;
        if let Some(listener) = self.listener {
            listener(&self.line);
        }
    }

    /// The hash over all lines so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Lines so far.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Trace {{ hash: {:#018x}, lines: {} }}",
            self.hash, self.lines
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_by_order_of_pushing() {
        let mut engine = Engine::new();
        for (at, name) in [(5, "c"), (1, "a"), (5, "d"), (2, "b")] {
            engine.push(Instant::from_nanos(at), name);
        }
        let mut seen = Vec::new();
        while let Some(event) = engine.pop() {
            seen.push((engine.now().as_nanos(), event));
        }
        assert_eq!(seen, [(1, "a"), (2, "b"), (5, "c"), (5, "d")]);
    }

    #[test]
    fn an_event_for_the_past_happens_now() {
        let mut engine = Engine::new();
        engine.push(Instant::from_nanos(9), ());
        engine.pop();
        engine.push(Instant::from_nanos(3), ());
        engine.pop();
        assert_eq!(engine.now(), Instant::from_nanos(9));
    }

    #[test]
    fn streams_are_independent_and_repeatable() {
        let seed = Seed(7);
        assert_eq!(
            seed.stream("disk", 1).next_u64(),
            seed.stream("disk", 1).next_u64()
        );
        assert_ne!(
            seed.stream("disk", 1).next_u64(),
            seed.stream("disk", 2).next_u64()
        );
        assert_ne!(
            seed.stream("disk", 1).next_u64(),
            seed.stream("link", 1).next_u64()
        );
        assert_ne!(
            seed.stream("disk", 1).next_u64(),
            Seed(8).stream("disk", 1).next_u64()
        );
    }

    #[test]
    fn the_hash_depends_on_order_time_and_text() {
        let hash = |lines: &[(u64, &str)]| {
            let mut trace = Trace::new(None);
            for (at, text) in lines {
                trace.note(Instant::from_nanos(*at), format_args!("{text}"));
            }
            trace.hash()
        };
        let base = hash(&[(1, "a"), (2, "b")]);
        assert_eq!(base, hash(&[(1, "a"), (2, "b")]));
        for other in [
            &[(2, "b"), (1, "a")][..],
            &[(1, "a"), (3, "b")],
            &[(1, "a"), (2, "c")],
            &[(1, "a")],
        ] {
            assert_ne!(base, hash(other));
        }
    }
}
