use std::time::Duration;

#[cfg(not(loom))]
use rustix::io::Errno;
#[cfg(not(loom))]
use rustix::thread::Timespec;
#[cfg(not(loom))]
use rustix::thread::futex::{self, Flags};

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
    sleepers: (loom::sync::Mutex<Sleepers>, loom::sync::Condvar),
}

#[cfg(not(loom))]
mod kernel {
    use rustix::thread::futex::{self, Flags};

    use super::{AtomicU32, Duration, Futex, Parked, park};

    impl Futex {
        pub(crate) const fn new(value: u32) -> Self {
            Self {
                value: AtomicU32::new(value),
            }
        }

        /// Sleeps while the value is `expected`, until woken, at most for `longest`.
        pub(crate) fn park(&self, expected: u32, longest: Option<Duration>) -> Parked {
            park(&self.value, Flags::PRIVATE, expected, longest)
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

/// Sleeps in the kernel while `value` is `expected`, until woken, at most for `longest`.
///
/// A length of time and not a deadline: futexes know no clock that counts suspends, as [`now`](crate::now) does.
#[cfg(not(loom))]
pub(crate) fn park(
    value: &AtomicU32,
    flags: Flags,
    expected: u32,
    longest: Option<Duration>,
) -> Parked {
    // A time beyond what the kernel's seconds hold is as good as none.
    let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
    match futex::wait(value, flags, expected, longest.as_ref()) {
        // Zero means that a wake took this thread off the queue, even if a signal or the timeout came as well.
        Ok(()) => Parked::Woken,
        Err(Errno::TIMEDOUT) => Parked::TimedOut,
        Err(_) => Parked::Disturbed,
    }
}

/// The queue of sleepers in loom's kernel.
#[cfg(loom)]
#[derive(Debug, Default)]
struct Sleepers {
    asleep: usize,
    /// Wakes given but not yet spent.
    wakes: usize,
}

/// The kernel's contract as loom can search it: the comparison and the falling asleep are one step against every wake.
#[cfg(loom)]
mod model {
    use loom::sync::atomic::Ordering;
    use loom::sync::{Condvar, Mutex};

    use super::{AtomicU32, Duration, Futex, Parked, Sleepers};
    use crate::clock::slept;

    impl Futex {
        pub(crate) fn new(value: u32) -> Self {
            Self {
                value: AtomicU32::new(value),
                sleepers: (Mutex::new(Sleepers::default()), Condvar::new()),
            }
        }

        /// A limit has passed as soon as the word is found unchanged: the worst clock.
        pub(crate) fn park(&self, expected: u32, longest: Option<Duration>) -> Parked {
            let mut sleepers = self
                .sleepers
                .0
                .lock()
                .expect("no model panics while it holds the sleepers");
            if self.value.load(Ordering::SeqCst) != expected {
                return Parked::Disturbed;
            }
            if let Some(longest) = longest {
                slept(longest);
                return Parked::TimedOut;
            }
            sleepers.asleep += 1;
            while sleepers.wakes == 0 {
                sleepers = self
                    .sleepers
                    .1
                    .wait(sleepers)
                    .expect("no model panics while it holds the sleepers");
            }
            sleepers.wakes -= 1;
            Parked::Woken
        }

        pub(crate) fn wake(&self, count: u32) -> usize {
            let mut sleepers = self
                .sleepers
                .0
                .lock()
                .expect("no model panics while it holds the sleepers");
            let woken = sleepers.asleep.min(count as usize);
            sleepers.asleep -= woken;
            sleepers.wakes += woken;
            self.sleepers.1.notify_all();
            woken
        }
    }
}
