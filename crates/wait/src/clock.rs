#[cfg(not(loom))]
use rustix::time::{ClockId, clock_gettime};
#[cfg(not(loom))]
use slackwater_base::Instant;

/// The clock of the process: time since the machine booted, suspends included (`CLOCK_BOOTTIME`).
///
/// Every deadline in the process is a point on this clock. It continues while the machine is suspended, so a lease that
/// ended meanwhile is over afterwards. A read costs as much as one of the monotonic clock, some 20 ns; nothing here
/// reads it more often than once in 128 looks at a word.
#[inline]
#[must_use]
#[cfg(not(loom))]
pub fn now() -> Instant {
    // Miri knows the monotonic clock only, which is the same one on a machine that is never suspended.
    let time = clock_gettime(if cfg!(miri) {
        ClockId::Monotonic
    } else {
        ClockId::Boottime
    });
    Instant::from_nanos(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}

/// Loom's time passes in sleeps only, and for each thread by itself.
#[cfg(loom)]
mod model {
    use std::cell::Cell;
    use std::time::Duration;

    use slackwater_base::Instant;

    loom::thread_local! {
        static NOW: Cell<Instant> = Cell::new(Instant::ZERO);
    }

    /// The time of the calling thread.
    #[must_use]
    pub fn now() -> Instant {
        NOW.with(Cell::get)
    }

    /// The calling thread slept this long.
    pub(crate) fn slept(time: Duration) {
        NOW.with(|now| now.set(now.get() + time));
    }
}

#[cfg(loom)]
pub use model::now;
#[cfg(loom)]
pub(crate) use model::slept;
