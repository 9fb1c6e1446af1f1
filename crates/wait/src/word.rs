use std::sync::atomic::{AtomicU64, Ordering};

use slackwater_base::Instant;

use crate::clock::now;
use crate::futex::{Futex, Parked};
use crate::routine::{Waiting, Watched, stand};

/// Bit 0 of a word: somebody sleeps on it, or is about to.
pub(crate) const PARKED: u32 = 1;

/// The word that completions and countdowns are made of: bit 0 is [`PARKED`], the rest is the owner's.
///
/// On a cache line of its own, two lines where the prefetcher pairs them: spinners read it in a loop.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Word {
    futex: Futex,
    /// When the last wake was sent, for the waiter to learn what it cost. Written only if somebody sleeps.
    woken_at: AtomicU64,
}

impl Word {
    pub(crate) fn new(value: u32) -> Self {
        debug_assert_eq!(value & PARKED, 0);
        Self { futex: Futex::new(value), woken_at: AtomicU64::new(0) }
    }

    /// The value, with everything that was written before it was stored.
    pub(crate) fn load(&self) -> u32 {
        self.futex.value.load(Ordering::Acquire)
    }

    /// Subtracts `amount` and returns the value before.
    pub(crate) fn subtract(&self, amount: u32) -> u32 {
        // Release: the waiter sees what this part wrote. Acquire: the last part passes on what the others wrote.
        self.futex.value.fetch_sub(amount, Ordering::AcqRel)
    }

    /// Sets `bits` and returns the value before.
    pub(crate) fn set(&self, bits: u32) -> u32 {
        self.futex.value.fetch_or(bits, Ordering::AcqRel)
    }

    /// Wakes everybody that sleeps, given the value `before` the change that ends their wait. No system call unless
    /// [`PARKED`] was set.
    pub(crate) fn wake(&self, before: u32) {
        if before & PARKED == 0 {
            return;
        }
        // Cleared first: whoever falls asleep from now on sets it again, and the wake below reaches those who did not.
        self.futex.value.fetch_and(!PARKED, Ordering::AcqRel);
        self.woken_at.store(now().as_nanos(), Ordering::Relaxed);
        self.futex.wake(u32::MAX);
    }

    /// Waits until `done` holds of the value; says whether it does.
    pub(crate) fn wait(&self, waiting: &Waiting<'_>, done: impl Fn(u32) -> bool) -> bool {
        stand(&Watch { word: self, done }, waiting)
    }
}

struct Watch<'a, F> {
    word: &'a Word,
    done: F,
}

impl<F: Fn(u32) -> bool> Watched for Watch<'_, F> {
    fn done(&self) -> bool {
        (self.done)(self.word.load())
    }

    fn park(&self, deadline: Instant) -> Parked {
        let value = &self.word.futex.value;
        let mut seen = value.load(Ordering::Acquire);
        loop {
            if (self.done)(seen) {
                return Parked::Woken;
            }
            if seen & PARKED != 0 {
                break;
            }
            match value.compare_exchange_weak(seen, seen | PARKED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    seen |= PARKED;
                    break;
                }
                Err(now) => seen = now,
            }
        }
        // The kernel compares once more: a change since then, and with it a wake, makes the sleep end at once.
        self.word.futex.park(seen, deadline)
    }

    fn woken_at(&self) -> Instant {
        Instant::from_nanos(self.word.woken_at.load(Ordering::Relaxed))
    }
}
