use std::time::Duration;

use slackwater_base::Instant;

/// A token bucket of bytes that fills at a steady rate. A transfer that finds it not below zero may take any number of
/// bytes, and the next one waits until the level is no longer below zero: so no transfer is too long, and the rate is
/// kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    bytes_per_second: Option<u64>,
    /// In billionths of a byte; below zero when more was taken than has accrued.
    level: i128,
    filled: Instant,
}

const SECOND: i128 = 1_000_000_000;
/// Unused budget is kept for this long.
const BURST: Duration = Duration::from_millis(100);

impl Budget {
    pub(crate) fn new(bytes_per_second: Option<u64>) -> Self {
        Self {
            bytes_per_second: bytes_per_second.map(|rate| rate.max(1)),
            level: 0,
            filled: Instant::ZERO,
        }
    }

    /// Takes `bytes`, or returns when to ask again.
    pub(crate) fn take(&mut self, now: Instant, bytes: u64) -> Result<(), Instant> {
        let Some(rate) = self.bytes_per_second.map(i128::from) else {
            return Ok(());
        };
        let most = rate * BURST.as_nanos() as i128;
        self.level = (self.level + now.since(self.filled).as_nanos() as i128 * rate).min(most);
        self.filled = self.filled.max(now);
        if self.level >= 0 {
            self.level -= i128::from(bytes) * SECOND;
            return Ok(());
        }
        let wait = (-self.level + rate - 1) / rate;
        Err(now + Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_whatever_the_pieces() {
        for piece in [1u64, 999, 1 << 20, 50 << 20] {
            let rate = 10u64 << 20;
            let mut budget = Budget::new(Some(rate));
            let begin = Instant::from_nanos(5_000_000_000);
            let (mut now, mut taken) = (begin, 0);
            while taken < 10 * rate {
                match budget.take(now, piece) {
                    Ok(()) => taken += piece,
                    Err(at) => {
                        assert!(at > now);
                        now = at;
                    }
                }
            }
            let seconds = now.since(begin).as_secs_f64();
            let least = (taken - piece) as f64 / rate as f64 - BURST.as_secs_f64();
            assert!(
                seconds >= least - 0.001 && seconds <= least + 0.2,
                "{piece}: {taken} bytes in {seconds} s"
            );
        }
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        assert_eq!(Budget::new(None).take(Instant::ZERO, u64::MAX), Ok(()));
    }
}
