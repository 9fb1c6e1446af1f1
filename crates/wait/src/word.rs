use std::sync::atomic::{AtomicU32, AtomicU64 as Time, Ordering};
use std::time::Duration;

use slackwater_base::Instant;

use crate::clock::now;
use crate::cpus::current_cpu;
use crate::futex::{Futex, Parked};
use crate::routine::{SOON, Waiting, Watched, wait};
use crate::sync::AtomicU64;

/// A word that threads wait on: what [`Completion`](crate::Completion) and [`Countdown`](crate::Countdown) are made of,
/// and other protocols can be.
///
/// Bit 0 is [`Word::PARKED`] and belongs to the wait; bits 1 to 31 are the owner's. A thread that makes a change that can
/// end a wait calls [`Word::wake`] with the value before it; that costs a system call only if a thread sleeps.
///
/// On a cache line of its own, two lines where the prefetcher pairs them: spinners read it in a loop.
#[derive(Debug)]
#[repr(align(128))]
pub struct Word {
    futex: Futex,
    /// When the last wake was due, for the waiter to learn how long it waited. Written only if a waiter sleeps.
    woken_at: Time,
    /// The time by which every waiter that slept so far looks by itself. It only grows: a word on which a waiter once
    /// slept without a nap is always woken.
    looks_by: AtomicU64,
    /// The CPU of the last completer that woke a sleeper.
    woken_on: AtomicU32,
}

impl Word {
    /// Somebody sleeps on the word, or is about to.
    pub const PARKED: u32 = 1;

    /// A word of this value.
    ///
    /// # Panics
    /// [`Word::PARKED`] is set in it.
    #[must_use]
    pub fn new(value: u32) -> Self {
        assert_eq!(value & Self::PARKED, 0, "nobody sleeps on a new word");
        Self {
            futex: Futex::new(value),
            woken_at: Time::new(0),
            looks_by: AtomicU64::new(0),
            woken_on: AtomicU32::new(0),
        }
    }

    /// The value, with everything that was written before it was stored.
    #[must_use]
    pub fn load(&self) -> u32 {
        self.futex.value.load(Ordering::Acquire)
    }

    /// Subtracts `amount` and returns the value before.
    pub fn subtract(&self, amount: u32) -> u32 {
        // Release: the waiter sees what this part wrote. Acquire: the last part passes on what the others wrote.
        self.futex.value.fetch_sub(amount, Ordering::AcqRel)
    }

    /// Sets `bits` and returns the value before.
    pub fn set(&self, bits: u32) -> u32 {
        self.futex.value.fetch_or(bits, Ordering::AcqRel)
    }

    /// Clears `bits` and returns the value before.
    pub fn clear(&self, bits: u32) -> u32 {
        self.futex.value.fetch_and(!bits, Ordering::AcqRel)
    }

    /// Replaces the value by what `change` makes of it, unless that is nothing; returns the value before.
    ///
    /// # Errors
    /// `change` refused: the value it refused.
    pub fn change(&self, change: impl Fn(u32) -> Option<u32>) -> Result<u32, u32> {
        let mut seen = self.load();
        loop {
            let Some(next) = change(seen) else {
                return Err(seen);
            };
            match self.futex.value.compare_exchange_weak(
                seen,
                next,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(before) => return Ok(before),
                Err(now) => seen = now,
            }
        }
    }

    /// Wakes everybody that sleeps, given the value `before` the change that ends their wait, unless all of them look
    /// by themselves about as soon as a wake would make them.
    pub fn wake(&self, before: u32) {
        if before & Self::PARKED == 0 {
            return;
        }
        let now = now();
        self.woken_at.store(now.as_nanos(), Ordering::Relaxed);
        self.woken_on.store(current_cpu() as u32, Ordering::Relaxed);
        // Each sleeper wrote its time before it set the bit, and the change that gave `before` came after that.
        if now.until(Instant::from_nanos(self.looks_by.load(Ordering::Relaxed))) <= SOON {
            return;
        }
        // Cleared first: a thread that parks from now on sets it again, and the wake below reaches the others.
        self.clear(Self::PARKED);
        self.futex.wake(u32::MAX);
    }

    /// Waits until `done` holds of the value; says whether it does. Without it the deadline passed.
    pub fn wait(&self, waiting: &Waiting<'_>, done: impl Fn(u32) -> bool) -> bool {
        wait(&Watch { word: self, done }, waiting)
    }
}

struct Watch<'a, F> {
    word: &'a Word,
    done: F,
}

impl<F: Fn(u32) -> bool> Watched for Watch<'_, F> {
    const NAPS: bool = true;

    fn done(&self) -> bool {
        (self.done)(self.word.load())
    }

    fn park(&self, longest: Option<Duration>, looks_by: Instant) -> Parked {
        self.word
            .looks_by
            .fetch_max(looks_by.as_nanos(), Ordering::Relaxed);
        // A swap even if the bit is set: a completer that changes the word afterwards and sees the bit sees the time too.
        match self
            .word
            .change(|seen| (!(self.done)(seen)).then_some(seen | Word::PARKED))
        {
            Err(_) => Parked::Disturbed,
            // The kernel compares once more: a change since then, and with it a wake, makes the sleep end at once.
            Ok(seen) => self.word.futex.park(seen | Word::PARKED, longest),
        }
    }

    fn woken_at(&self) -> Instant {
        Instant::from_nanos(self.word.woken_at.load(Ordering::Relaxed))
    }

    fn completer_cpu(&self) -> Option<u32> {
        Some(self.word.woken_on.load(Ordering::Relaxed))
    }
}
