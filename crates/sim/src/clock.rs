//! The monotonic clock of one process: it drifts, begins at any value, and differs from the clocks of other processes.

use std::time::Duration;

use slackwater_base::{Instant, Rng};

/// Converts the time of the world to the time that one process reads, and its deadlines back.
#[derive(Clone, Copy, Debug)]
pub struct DriftingClock {
    /// What the process reads at the world's time zero.
    origin: u64,
    /// Nanoseconds that pass in the process for every 2^20 of the world.
    rate: u64,
}

impl DriftingClock {
    /// A clock that drifts by at most `drift_ppm` parts in a million, either way, and begins within an hour of zero.
    pub fn new(rng: &mut Rng, drift_ppm: u64) -> Self {
        let span = (UNIT * drift_ppm) / 1_000_000;
        let rate = UNIT - span + rng.below(2 * span + 1);
        Self {
            origin: rng.below(3_600_000_000_000),
            rate,
        }
    }

    /// What the process reads when the world's time is `world`.
    #[must_use]
    pub fn local(&self, world: Instant) -> Instant {
        let passed = u128::from(world.as_nanos()) * u128::from(self.rate) / u128::from(UNIT);
        Instant::from_nanos(self.origin.saturating_add(passed as u64))
    }

    /// The first time of the world at which the process reads `local` or later.
    #[must_use]
    pub fn world(&self, local: Instant) -> Instant {
        if local == Instant::NEVER {
            return Instant::NEVER;
        }
        let passed = u128::from(local.as_nanos().saturating_sub(self.origin));
        let world = (passed * u128::from(UNIT)).div_ceil(u128::from(self.rate));
        Instant::from_nanos(u64::try_from(world).unwrap_or(u64::MAX))
    }

    /// The time in the world that `duration` on the process's clock takes.
    #[must_use]
    pub fn lasts(&self, duration: Duration) -> Duration {
        let nanos = duration.as_nanos() * u128::from(UNIT) / u128::from(self.rate);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

const UNIT: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_passes_exactly_at_its_time_in_the_world() {
        let mut rng = Rng::new(3);
        for _ in 0..1000 {
            let clock = DriftingClock::new(&mut rng, 50_000);
            let local = clock.local(Instant::from_nanos(rng.below(1 << 50)));
            let world = clock.world(local);
            assert!(clock.local(world) >= local);
            assert!(clock.local(world - Duration::from_nanos(2)) < local);
        }
    }

    #[test]
    fn drift_stays_within_its_bound() {
        let mut rng = Rng::new(4);
        for _ in 0..1000 {
            let clock = DriftingClock::new(&mut rng, 50_000);
            let second = clock
                .local(Instant::from_nanos(1_000_000_000))
                .since(clock.local(Instant::ZERO));
            assert!((950..=1050).contains(&second.as_millis()), "{second:?}");
        }
    }

    #[test]
    fn never_stays_never() {
        assert_eq!(
            DriftingClock::new(&mut Rng::new(1), 50_000).world(Instant::NEVER),
            Instant::NEVER
        );
    }
}
