use slackwater_base::Instant;

use crate::sync::AtomicU32;

/// Why a park ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parked {
    /// One wake was spent on this sleeper.
    Woken,
    /// The word had already changed, or a signal came: look again.
    Disturbed,
    /// The deadline passed.
    TimedOut,
}

/// A 32-bit value that threads can sleep on.
#[derive(Debug)]
pub(crate) struct Futex {
    pub(crate) value: AtomicU32,
    #[cfg(loom)]
    bed: (loom::sync::Mutex<Bed>, loom::sync::Condvar),
}

#[cfg(not(loom))]
mod kernel {
    use std::num::NonZeroU32;

    use rustix::io::Errno;
    use rustix::thread::futex::{self, Flags};

    use super::{AtomicU32, Futex, Instant, Parked};
    use crate::clock::timespec;

    impl Futex {
        pub(crate) const fn new(value: u32) -> Self {
            Self {
                value: AtomicU32::new(value),
            }
        }

        /// Sleeps while the value is `expected`, until woken or until `deadline` on the monotonic clock.
        pub(crate) fn park(&self, expected: u32, deadline: Instant) -> Parked {
            // The bitset form takes an absolute deadline, so a retry after a signal needs no arithmetic.
            match futex::wait_bitset(
                &self.value,
                Flags::PRIVATE,
                expected,
                timespec(deadline).as_ref(),
                NonZeroU32::MAX,
            ) {
                // Zero means that a wake took this thread off the queue, even if a signal or the deadline came as well.
                Ok(()) => Parked::Woken,
                Err(Errno::TIMEDOUT) => Parked::TimedOut,
                Err(_) => Parked::Disturbed,
            }
        }

        /// Wakes up to `count` sleepers and says how many there were.
        pub(crate) fn wake(&self, count: u32) -> usize {
            // The kernel takes a signed count.
            futex::wake(
                &self.value,
                Flags::PRIVATE,
                count.min(i32::MAX.cast_unsigned()),
            )
            .unwrap_or(0)
        }
    }
}

/// Who sleeps in loom's kernel.
#[cfg(loom)]
#[derive(Debug, Default)]
struct Bed {
    asleep: usize,
    /// Wakes given but not yet spent.
    wakes: usize,
}

/// The kernel's contract as loom can search it: the comparison and the falling asleep are one step against every wake.
#[cfg(loom)]
mod model {
    use loom::sync::atomic::Ordering;
    use loom::sync::{Condvar, Mutex};

    use super::{AtomicU32, Bed, Futex, Instant, Parked};
    use crate::clock::slept;

    impl Futex {
        pub(crate) fn new(value: u32) -> Self {
            Self {
                value: AtomicU32::new(value),
                bed: (Mutex::new(Bed::default()), Condvar::new()),
            }
        }

        /// A deadline that is not "never" has come as soon as the word is found unchanged: the worst clock.
        pub(crate) fn park(&self, expected: u32, deadline: Instant) -> Parked {
            let mut bed = self
                .bed
                .0
                .lock()
                .expect("no model panics while it holds the bed");
            if self.value.load(Ordering::SeqCst) != expected {
                return Parked::Disturbed;
            }
            if deadline != Instant::NEVER {
                slept(deadline);
                return Parked::TimedOut;
            }
            bed.asleep += 1;
            while bed.wakes == 0 {
                bed = self
                    .bed
                    .1
                    .wait(bed)
                    .expect("no model panics while it holds the bed");
            }
            bed.wakes -= 1;
            Parked::Woken
        }

        pub(crate) fn wake(&self, count: u32) -> usize {
            let mut bed = self
                .bed
                .0
                .lock()
                .expect("no model panics while it holds the bed");
            let woken = bed.asleep.min(count as usize);
            bed.asleep -= woken;
            bed.wakes += woken;
            self.bed.1.notify_all();
            woken
        }
    }
}
