use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{self, Duration};

use slackwater_base::Instant;

/// The one clock of a store: monotonic, its origin the moment the store was opened, ahead by what was skipped.
#[derive(Debug)]
pub(crate) struct Clock {
    origin: time::Instant,
    skipped_nanos: AtomicU64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            origin: time::Instant::now(),
            skipped_nanos: AtomicU64::new(0),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.waited_nanos() + self.skipped_nanos.load(Ordering::Acquire))
    }

    /// Whether so long has passed since the origin.
    pub(crate) fn is_ahead_of(&self, since_origin: Duration) -> bool {
        self.now() >= Instant::ZERO + since_origin
    }

    /// Makes it at least `since_origin` later than the origin; what is past stays past.
    pub(crate) fn skip_to(&self, since_origin: Duration) {
        let nanos = u64::try_from(since_origin.as_nanos())
            .unwrap_or(u64::MAX / 2)
            .min(u64::MAX / 2);
        self.skipped_nanos
            .fetch_max(nanos.saturating_sub(self.waited_nanos()), Ordering::AcqRel);
    }

    fn waited_nanos(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipping_never_turns_back() {
        let clock = Clock::start();
        clock.skip_to(Duration::from_secs(3600));
        let skipped = clock.now();
        assert!(skipped >= Instant::ZERO + Duration::from_secs(3600));
        clock.skip_to(Duration::from_secs(60));
        assert!(clock.now() >= skipped);
    }
}
