use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_wait::now;

/// The clock of a store: that of the process, ahead by the time that a replay skipped.
#[derive(Debug)]
pub(crate) struct SkippingClock {
    opened: Instant,
    skipped_nanos: AtomicU64,
}

impl SkippingClock {
    pub(crate) fn start() -> Self {
        Self {
            opened: now(),
            skipped_nanos: AtomicU64::new(0),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        now() + self.skipped()
    }

    /// The point on the clock of the process, which waits count by, at which this clock reaches `at` if nothing more is
    /// skipped.
    pub(crate) fn wait_until(&self, at: Instant) -> Instant {
        if at < Instant::NEVER {
            at - self.skipped()
        } else {
            at
        }
    }

    /// Whether `since_open` or more has passed since the store was opened.
    pub(crate) fn is_ahead_of(&self, since_open: Duration) -> bool {
        self.now() >= self.opened + since_open
    }

    /// Makes at least `since_open` have passed since the store was opened; time never goes back.
    pub(crate) fn skip_to(&self, since_open: Duration) {
        let missing = now().until(self.opened + since_open.min(SKIP_MAX));
        self.skipped_nanos
            .fetch_max(missing.as_nanos() as u64, Ordering::AcqRel);
    }

    fn skipped(&self) -> Duration {
        Duration::from_nanos(self.skipped_nanos.load(Ordering::Acquire))
    }
}

/// The longest time that can be skipped, so that deadlines still fit behind it: some 290 years.
const SKIP_MAX: Duration = Duration::from_nanos(u64::MAX / 2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipping_never_turns_back() {
        let clock = SkippingClock::start();
        let (hour, minute) = (Duration::from_secs(3600), Duration::from_secs(60));
        assert!(!clock.is_ahead_of(minute));
        clock.skip_to(hour);
        let skipped = clock.now();
        assert!(clock.is_ahead_of(hour) && skipped >= clock.opened + hour);
        clock.skip_to(minute);
        assert!(clock.now() >= skipped);
        clock.skip_to(Duration::MAX);
        assert!(clock.now() < Instant::NEVER);
    }

    #[test]
    fn waits_count_by_the_clock_of_the_process() {
        let clock = SkippingClock::start();
        let hour = Duration::from_secs(3600);
        assert_eq!(clock.wait_until(clock.opened + hour), clock.opened + hour);
        clock.skip_to(hour);
        let due = clock.wait_until(clock.now());
        assert!(due >= clock.opened && due <= now());
        assert_eq!(clock.wait_until(Instant::NEVER), Instant::NEVER);
    }
}
