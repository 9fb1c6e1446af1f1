use rustix::thread::Timespec;
#[cfg(not(loom))]
use rustix::time::{ClockId, clock_gettime};
use slackwater_base::Instant;

/// The monotonic clock: the origin is that of `CLOCK_MONOTONIC`, so futex deadlines are the same points.
///
/// A read costs some 20 ns; nothing here reads it more often than once in 128 looks at a word.
#[must_use]
#[cfg(not(loom))]
pub fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    Instant::from_nanos(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}

/// Loom's time passes in sleeps only, and for each thread by itself.
#[cfg(loom)]
mod model {
    use std::cell::Cell;

    use slackwater_base::Instant;

    loom::thread_local! {
        static NOW: Cell<Instant> = Cell::new(Instant::ZERO);
    }

    /// The time of the calling thread.
    #[must_use]
    pub fn now() -> Instant {
        NOW.with(Cell::get)
    }

    /// The calling thread slept until `at`.
    pub(crate) fn slept(at: Instant) {
        NOW.with(|now| now.set(now.get().max(at)));
    }
}

#[cfg(loom)]
pub use model::now;
#[cfg(loom)]
pub(crate) use model::slept;

/// The point as the kernel takes it; `None` for one that never comes.
#[cfg_attr(loom, expect(dead_code, reason = "loom's kernel has no clock"))]
pub(crate) fn timespec(at: Instant) -> Option<Timespec> {
    if at == Instant::NEVER {
        return None;
    }
    let nanos = at.as_nanos();
    Some(Timespec {
        tv_sec: (nanos / 1_000_000_000).cast_signed(),
        tv_nsec: (nanos % 1_000_000_000).cast_signed(),
    })
}
