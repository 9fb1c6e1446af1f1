use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slackwater_base::Instant;

use crate::clock::now;
use crate::futex::{Futex, Parked};
use crate::routine::{Ended, Waiting, Watched, wait};
use crate::sync::{AtomicU32, fence};

/// Bit 0 of the generation word: no more events.
const CLOSED: u32 = 1;
/// One generation.
const GENERATION: u32 = 2;

/// A reusable signal: "something changed, check again".
///
/// A waiter takes a [`Seen`], looks at the state it is interested in, and waits for a later generation. A notifier
/// changes the state and then notifies. This is an eventcount (Vyukov's, as in Eigen and folly): the state itself stays
/// outside, in whatever form it has.
#[derive(Debug)]
#[repr(align(128))]
pub struct Event {
    generation: Futex,
    /// Those asleep or about to be, less those that a wake is on its way to. Written on the way into and out of the
    /// kernel only, never while spinning.
    sleepers: AtomicU32,
    woken_at: AtomicU64,
}

/// The generation at which a waiter last looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(u32);

impl Event {
    /// An event that was never notified.
    #[must_use]
    pub fn new() -> Self {
        Self {
            generation: Futex::new(0),
            sleepers: AtomicU32::new(0),
            woken_at: AtomicU64::new(0),
        }
    }

    /// The present generation. Take it before looking at the state.
    #[must_use]
    pub fn seen(&self) -> Seen {
        Seen(self.generation.value.load(Ordering::Acquire))
    }

    /// Waits for a generation after `seen`.
    ///
    /// # Errors
    /// The deadline passed, or the event was closed.
    pub fn wait(&self, seen: Seen, waiting: &Waiting<'_>) -> Result<(), Ended> {
        if seen.0 & CLOSED != 0 {
            return Err(Ended::Cancelled);
        }
        if !wait(&Watch { event: self, seen }, waiting) {
            return Err(Ended::TimedOut);
        }
        if self.is_closed() {
            Err(Ended::Cancelled)
        } else {
            Ok(())
        }
    }

    /// Starts a generation and wakes up to `count` sleepers, with one system call and only if a waiter sleeps. Returns
    /// how many were woken. Spinners see the generation by themselves.
    pub fn notify(&self, count: u32) -> usize {
        self.notify_by(|_| count)
    }

    /// [`Event::notify`] of as many as `count` makes of the number asleep. `count` is called after the generation has
    /// begun, so a waiter that is not asleep by then does not fall asleep.
    pub fn notify_by(&self, count: impl FnOnce(u32) -> u32) -> usize {
        self.generation
            .value
            .fetch_add(GENERATION, Ordering::AcqRel);
        self.wake(count)
    }

    /// [`Event::notify`] of everybody.
    pub fn notify_all(&self) -> usize {
        self.notify(u32::MAX)
    }

    /// Ends all present and future waits.
    pub fn close(&self) {
        self.generation.value.fetch_or(CLOSED, Ordering::AcqRel);
        self.wake(|_| u32::MAX);
    }

    /// Whether it was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.generation.value.load(Ordering::Acquire) & CLOSED != 0
    }

    /// How many sleep, or are about to, and have not been woken.
    #[must_use]
    pub fn sleepers(&self) -> u32 {
        self.sleepers.load(Ordering::Relaxed)
    }

    fn wake(&self, count: impl FnOnce(u32) -> u32) -> usize {
        // Pairs with the fence of a sleeper: either it sees the new generation, or this sees the sleeper.
        fence(Ordering::SeqCst);
        let asleep = self.sleepers.load(Ordering::Relaxed);
        let count = if asleep == 0 { 0 } else { count(asleep) };
        if count == 0 {
            return 0;
        }
        self.woken_at.store(now().as_nanos(), Ordering::Relaxed);
        let woken = self.generation.wake(count);
        // Subtracted here and not by the woken waiters, so that the next notifier knows how many are still to be woken.
        self.sleepers.fetch_sub(woken as u32, Ordering::Relaxed);
        woken
    }
}

impl Default for Event {
    fn default() -> Self {
        Self::new()
    }
}

struct Watch<'a> {
    event: &'a Event,
    seen: Seen,
}

impl Watched for Watch<'_> {
    fn done(&self) -> bool {
        self.event.generation.value.load(Ordering::Acquire) != self.seen.0
    }

    fn park(&self, longest: Option<Duration>, _looks_by: Instant) -> Parked {
        self.event.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // The kernel compares the generation, which is the second look after the announcement.
        let parked = self.event.generation.park(self.seen.0, longest);
        if parked != Parked::Woken {
            self.event.sleepers.fetch_sub(1, Ordering::Relaxed);
        }
        parked
    }

    fn woken_at(&self) -> Instant {
        Instant::from_nanos(self.event.woken_at.load(Ordering::Relaxed))
    }
}
