use std::time::Duration;

use crate::Rng;

/// The pauses between retries: the ceiling grows with every attempt up to a limit, and each pause is a random part of
/// it, so that clients that failed together do not return together ("full jitter": Brooker, "Exponential Backoff and
/// Jitter", 2015).
///
/// It holds no state: the caller counts the attempts, and starts the count again after a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The ceiling of the first pause.
    pub first: Duration,
    /// The longest pause.
    pub max: Duration,
    /// By how much the ceiling grows from one attempt to the next; 1 keeps it at `first`.
    pub factor: u32,
    /// Which part of the ceiling is drawn.
    pub jitter: Jitter,
}

/// Which part of the ceiling a pause is drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    /// From all of it, except the lowest tenth of the first ceiling: spreads many clients best.
    Full,
    /// From its upper half: a retry is never immediate.
    UpperHalf,
}

impl Backoff {
    /// Ceilings that double from `first` to `max`.
    #[must_use]
    pub const fn doubling(first: Duration, max: Duration) -> Self {
        Self {
            first,
            max,
            factor: 2,
            jitter: Jitter::Full,
        }
    }

    /// The same back-off with pauses drawn from this part of their ceilings.
    #[must_use]
    pub const fn with_jitter(self, jitter: Jitter) -> Self {
        Self { jitter, ..self }
    }

    /// The longest pause after failure number `attempt`, counted from 0: `first` × `factor`^`attempt`, at most `max`.
    #[must_use]
    pub fn ceiling(&self, attempt: u32) -> Duration {
        self.first
            .saturating_mul(self.factor.saturating_pow(attempt))
            .min(self.max)
    }

    /// The pause after failure number `attempt`, counted from 0: anything below [`ceiling`](Self::ceiling), and at
    /// least a tenth of `first` or half of the ceiling, so that a run of short draws does not cause many retries at
    /// once.
    #[must_use]
    pub fn pause(&self, attempt: u32, random: &mut Rng) -> Duration {
        let ceiling = self.ceiling(attempt);
        let span = match self.jitter {
            Jitter::Full => ceiling,
            Jitter::UpperHalf => ceiling / 2,
        };
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX).max(1);
        let drawn = Duration::from_nanos(random.below(nanos));
        match self.jitter {
            Jitter::Full => drawn.max((self.first / 10).min(self.max)),
            Jitter::UpperHalf => ceiling - span + drawn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn ceilings_grow_by_the_factor_to_the_limit() {
        let check = |backoff: Backoff, expected: &[u64]| {
            for (attempt, expected) in (0..).zip(expected) {
                assert_eq!(backoff.ceiling(attempt), ms(*expected), "{attempt}");
            }
            for attempt in [31, 32, 33, 64, u32::MAX] {
                assert_eq!(backoff.ceiling(attempt), ms(*expected.last().unwrap()));
            }
        };
        let limit = ms(2_000);
        check(
            Backoff::doubling(ms(250), limit),
            &[250, 500, 1_000, 2_000, 2_000],
        );
        check(
            Backoff {
                first: ms(3),
                max: limit,
                factor: 10,
                jitter: Jitter::Full,
            },
            &[3, 30, 300, 2_000],
        );
        check(
            Backoff {
                first: ms(7),
                max: limit,
                factor: 1,
                jitter: Jitter::UpperHalf,
            },
            &[7, 7],
        );
        check(Backoff::doubling(ms(3_000), limit), &[2_000]);
        check(Backoff::doubling(Duration::ZERO, limit), &[0, 0]);
    }

    #[test]
    fn pauses_spread_below_the_ceiling_and_never_vanish() {
        let mut jitter = Rng::new(1);
        let backoff = Backoff::doubling(ms(250), ms(5_000));
        for attempt in [0, 1, 4, 5, u32::MAX] {
            let ceiling = backoff.ceiling(attempt);
            let drawn: Vec<Duration> = (0..200)
                .map(|_| backoff.pause(attempt, &mut jitter))
                .collect();
            assert!(drawn.iter().all(|pause| (ms(25)..=ceiling).contains(pause)));
            assert!(drawn.iter().any(|pause| *pause < ceiling / 4));
            assert!(drawn.iter().any(|pause| *pause > ceiling * 3 / 4));
        }
        assert!((0..200).any(|_| backoff.pause(0, &mut jitter) == ms(25)));
        let tiny = Backoff::doubling(ms(100), ms(1));
        assert!((0..20).all(|attempt| tiny.pause(attempt, &mut jitter) <= ms(1)));
        let none = Backoff::doubling(Duration::ZERO, Duration::ZERO);
        assert_eq!(none.pause(9, &mut jitter), Duration::ZERO);
        let huge = Backoff::doubling(Duration::MAX, Duration::MAX);
        assert!(huge.pause(u32::MAX, &mut jitter) >= Duration::MAX / 10);
    }

    #[test]
    fn pauses_from_the_upper_half_stay_there() {
        let mut random = Rng::new(1);
        let backoff = Backoff::doubling(ms(100), ms(2_000)).with_jitter(Jitter::UpperHalf);
        for attempt in [0, 1, 4, 5, u32::MAX] {
            let ceiling = backoff.ceiling(attempt);
            let drawn: Vec<Duration> = (0..200)
                .map(|_| backoff.pause(attempt, &mut random))
                .collect();
            assert!(drawn.iter().all(|it| (ceiling / 2..ceiling).contains(it)));
            assert!(drawn.iter().any(|pause| *pause < ceiling * 5 / 8));
            assert!(drawn.iter().any(|pause| *pause > ceiling * 7 / 8));
        }
        let none = Backoff::doubling(Duration::ZERO, Duration::ZERO).with_jitter(Jitter::UpperHalf);
        assert_eq!(none.pause(0, &mut random), Duration::ZERO);
    }
}
