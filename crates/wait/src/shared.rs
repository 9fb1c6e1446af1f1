use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::futex::{self, Flags};
use slackwater_base::Instant;

use crate::futex::{Parked, park};
use crate::routine::{Waiting, Watched, wait};

/// A 64-bit word that may lie in memory which processes share; any of them waits on its lower half.
///
/// Bit 0 is [`SharedWord::PARKED`] and belongs to the wait; the rest is the owner's. Sleepers are found by the kernel in
/// the lower half only, so a change that can end a wait must change a bit below 32. The thread that makes it calls
/// [`SharedWord::wake`] with the value before, as for [`Word`](crate::Word).
///
/// What another process writes there is not to be trusted: the word decides how long a wait lasts, never which memory is
/// touched.
#[repr(transparent)]
pub struct SharedWord(AtomicU64);

impl SharedWord {
    /// Somebody sleeps on the word, or is about to.
    pub const PARKED: u64 = 1;

    /// A word of this value, in which [`SharedWord::PARKED`] is clear.
    #[must_use]
    pub const fn new(value: u64) -> Self {
        debug_assert!(value & Self::PARKED == 0);
        Self(AtomicU64::new(value))
    }

    /// The word that lies at `address`.
    ///
    /// # Safety
    /// - `address` is aligned to 8 bytes, and mapped for reads and writes as long as `'a`.
    /// - Meanwhile this process accesses those 8 bytes only by atomic operations of this width.
    #[must_use]
    pub const unsafe fn at<'a>(address: *mut u64) -> &'a Self {
        // SAFETY: the type is a transparent `AtomicU64`, of the size of a `u64`; the rest is the caller's promise.
        unsafe { &*address.cast::<Self>() }
    }

    /// The value, with everything that was written before it was stored.
    #[must_use]
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Adds `amount` and returns the value before.
    pub fn add(&self, amount: u64) -> u64 {
        // One location and read-modify-writes only: its modification order is all the order that its users need.
        self.0.fetch_add(amount, Ordering::AcqRel)
    }

    /// Subtracts `amount` and returns the value before.
    pub fn subtract(&self, amount: u64) -> u64 {
        self.0.fetch_sub(amount, Ordering::AcqRel)
    }

    /// Sets `bits` and returns the value before.
    pub fn set(&self, bits: u64) -> u64 {
        self.0.fetch_or(bits, Ordering::AcqRel)
    }

    /// Wakes everybody that sleeps, in whichever process, given the value `before` the change that ends their wait.
    pub fn wake(&self, before: u64) {
        if before & Self::PARKED == 0 {
            return;
        }
        // Cleared first, as in `Word`: a thread that parks from now on sets it again.
        self.0.fetch_and(!Self::PARKED, Ordering::AcqRel);
        let _ = futex::wake(self.lower_half(), Flags::empty(), i32::MAX.cast_unsigned());
    }

    /// Waits until `done` holds of the value; says whether it does. Without it the deadline passed.
    pub fn wait(&self, waiting: &Waiting<'_>, done: impl Fn(u64) -> bool) -> bool {
        wait(&Watch { word: self, done }, waiting)
    }

    /// The half of the word that is passed to the kernel. This process never accesses it by itself.
    fn lower_half(&self) -> &AtomicU32 {
        let halves = (&raw const self.0).cast::<AtomicU32>();
        // SAFETY: both halves lie within the word and are aligned for it; the word is atomic, so a shared reference to
        // memory that changes is allowed; and it is only handed to the kernel, whose 32-bit look is its own.
        unsafe { &*halves.add(usize::from(cfg!(target_endian = "big"))) }
    }
}

struct Watch<'a, F> {
    word: &'a SharedWord,
    done: F,
}

impl<F: Fn(u64) -> bool> Watched for Watch<'_, F> {
    fn done(&self) -> bool {
        (self.done)(self.word.load())
    }

    fn park(&self, longest: Option<Duration>, _looks_by: Instant) -> Parked {
        let before = self.word.set(SharedWord::PARKED);
        if (self.done)(before) {
            return Parked::Disturbed;
        }
        // The kernel compares once more: a change of the lower half since then makes the sleep end at once.
        let expected = (before | SharedWord::PARKED) as u32;
        park(self.word.lower_half(), Flags::empty(), expected, longest)
    }

    fn woken_at(&self) -> Instant {
        // No wake time is recorded: a time beside the word would be one more value that the other process may set
        // wrongly.
        Instant::ZERO
    }
}

impl fmt::Debug for SharedWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedWord")
            .field(&format_args!("{:#x}", self.load()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::*;
    use crate::{Choice, Site, now};

    static SITE: Site = Site::new("shared word test");
    const ONE: u64 = 4;

    #[test]
    #[cfg_attr(
        miri,
        ignore = "a futex looks at four of the word's eight bytes, which Miri takes for a race of the program"
    )]
    fn the_last_to_leave_wakes_a_waiter_by_any_strategy() {
        for choice in [
            Choice::Park,
            Choice::default(),
            Choice::Spin,
            Choice::Sleep(Duration::from_micros(50)),
        ] {
            let strategy = choice.strategy();
            let mut memory = 8 * ONE;
            // SAFETY: an aligned `u64` of this frame that is reached by the word alone until the scope has ended.
            let word = unsafe { SharedWord::at(&raw mut memory) };
            let left = AtomicU64::new(0);
            std::thread::scope(|threads| {
                for _ in 0..8 {
                    threads.spawn(|| {
                        left.fetch_add(1, Ordering::Relaxed);
                        let before = word.subtract(ONE);
                        if before & !SharedWord::PARKED == ONE {
                            word.wake(before);
                        }
                    });
                }
                let waiting = Waiting::at(&SITE)
                    .by(&*strategy)
                    .until(now() + Duration::from_secs(20));
                assert!(word.wait(&waiting, |value| value < ONE), "{choice:?}");
                assert_eq!(left.load(Ordering::Relaxed), 8, "{choice:?}");
            });
        }
    }

    #[test]
    fn a_word_that_nobody_changes_ends_at_the_deadline() {
        let word = SharedWord::new(ONE);
        let waiting = Waiting::at(&SITE).until(now() + Duration::from_millis(1));
        assert!(!word.wait(&waiting, |value| value < ONE));
        assert!(
            word.wait(&waiting, |value| value >= ONE),
            "what is over is over after the deadline too"
        );
    }
}
