use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A point on the monotonic clock of one process, in nanoseconds since an origin that the shell chooses.
///
/// Cores never read a clock: the shell or the simulator passes `now`. Arithmetic saturates, so that a hostile or absurd
/// duration gives "never" and does not wrap into the past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin of the clock.
    pub const ZERO: Instant = Instant(0);
    /// A point that no clock reaches, as the deadline of something that never ends.
    pub const NEVER: Instant = Instant(u64::MAX);

    /// The point `nanos` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`; zero when `earlier` is in the future.
    #[must_use]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Time left until `later`; zero when it has passed.
    #[must_use]
    pub const fn until(self, later: Instant) -> Duration {
        later.since(self)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(nanos(duration)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    fn sub(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_sub(nanos(duration)))
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "+{}.{:09}s",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Instant::from_nanos(5) + Duration::MAX, Instant::NEVER);
        assert_eq!(
            Instant::from_nanos(5) - Duration::from_nanos(9),
            Instant::ZERO
        );
        assert_eq!(
            Instant::from_nanos(5).since(Instant::from_nanos(9)),
            Duration::ZERO
        );
        assert_eq!(
            Instant::from_nanos(5).until(Instant::from_nanos(9)),
            Duration::from_nanos(4)
        );
    }

    #[test]
    fn shows_seconds_and_nanoseconds() {
        assert_eq!(
            Instant::from_nanos(1_500_000_000).to_string(),
            "+1.500000000s"
        );
    }
}
