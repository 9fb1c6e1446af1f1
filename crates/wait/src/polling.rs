use std::time::Duration;

use slackwater_base::Instant;

use crate::pace::wake_nanos;
use crate::site::Site;

/// The thrift of an event loop that waits in its own poll: after a poll that found work, it polls again without
/// sleeping as long as the learned gap promises more, and otherwise sleeps.
///
/// Time is an argument: the loop knows it anyway.
#[derive(Debug)]
pub struct Polling {
    found_at: Instant,
    /// Empty polls since the last useful one.
    empty: u32,
    spent: bool,
}

/// The most empty polls for a useful one.
const EMPTY_MAX: u32 = 2;

impl Polling {
    /// A loop that begins at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            found_at: now,
            empty: 0,
            spent: true,
        }
    }

    /// How long the next poll may sleep, with `deadline` the next timer: zero to look again at once.
    #[must_use]
    pub fn timeout(&self, site: &Site, now: Instant, deadline: Instant) -> Duration {
        let budget = Duration::from_nanos(site.budget().unwrap_or(0));
        if !self.spent && self.empty < EMPTY_MAX && now.since(self.found_at) < budget {
            return Duration::ZERO;
        }
        now.until(deadline)
    }

    /// A poll returned at `now` with `found` things to do.
    pub fn polled(&mut self, site: &Site, now: Instant, found: usize) {
        if found == 0 {
            self.empty += 1;
            self.spent = self.empty >= EMPTY_MAX;
            return;
        }
        site.learn_gap(now.since(self.found_at));
        site.relearn(wake_nanos(), MAX_SPIN_NANOS, 1.0);
        self.found_at = now;
        self.empty = 0;
        self.spent = false;
    }
}

/// The longest time a loop looks without sleeping.
const MAX_SPIN_NANOS: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: u64 = 1_000;

    fn run(gap: u64, rounds: u32) -> (u32, u32) {
        let site = Site::new("loop");
        let (mut at, mut polling) = (Instant::ZERO, Polling::new(Instant::ZERO));
        let (mut empty, mut useful) = (0, 0);
        for _ in 0..rounds {
            let next = at + Duration::from_nanos(gap);
            while at < next {
                let timeout = polling.timeout(&site, at, Instant::NEVER);
                if timeout.is_zero() {
                    at += Duration::from_nanos(MICRO);
                    if at < next {
                        empty += 1;
                        polling.polled(&site, at, 0);
                    }
                } else {
                    at = next;
                }
            }
            useful += 1;
            polling.polled(&site, at, 1);
        }
        (empty, useful)
    }

    #[test]
    fn a_busy_loop_polls_emptily_at_most_twice_for_a_useful_poll() {
        let (empty, useful) = run(5 * MICRO, 1_000);
        assert!(
            empty > 0 && empty <= 2 * useful,
            "{empty} empty, {useful} useful"
        );
    }

    #[test]
    fn a_quiet_loop_sleeps_at_once() {
        let (empty, _) = run(2_000 * MICRO, 1_000);
        assert_eq!(empty, 0);
    }
}
