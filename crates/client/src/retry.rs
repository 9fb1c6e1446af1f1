use std::time::Duration;

use slackwater_base::{Instant, Rng};

/// How long a flow may take and how it asks again.
#[derive(Clone, Debug)]
pub struct FlowOptions {
    /// When the flow ends, whatever has come of it.
    pub deadline: Instant,
    /// How often it may ask in all, the first time included; 1 or more.
    pub attempts: u32,
    /// Pauses between attempts.
    pub backoff: Backoff,
}

impl FlowOptions {
    /// One attempt until `deadline`: for a master in the same process, where asking again changes nothing.
    #[must_use]
    pub fn once(deadline: Instant) -> Self {
        Self {
            deadline,
            attempts: 1,
            backoff: Backoff::new(0),
        }
    }
}

/// Growing pauses with full jitter (Brooker, "Exponential Backoff and Jitter", 2015): attempt n waits a random time
/// up to `first` × 2^n, at most `longest`.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    attempt: u32,
    rng: Rng,
}

impl Backoff {
    /// Pauses from 5 ms growing to 1 s, jittered by `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            first: Duration::from_millis(5),
            longest: Duration::from_secs(1),
            attempt: 0,
            rng: Rng::new(seed),
        }
    }

    /// The next pause: at least half a millisecond, so that a run of short draws cannot become a storm.
    pub fn pause(&mut self) -> Duration {
        let ceiling = self
            .first
            .saturating_mul(1 << self.attempt.min(16))
            .min(self.longest);
        self.attempt += 1;
        let nanos = u64::try_from(ceiling.as_nanos()).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos(self.rng.below(nanos)).max(Duration::from_micros(500))
    }
}

/// Counts attempts and holds the time of the next one.
#[derive(Clone, Debug)]
pub(crate) struct Attempts {
    options: FlowOptions,
    used: u32,
    next: Option<Instant>,
}

impl Attempts {
    /// The first attempt is under way.
    pub(crate) fn first(options: FlowOptions) -> Self {
        Self {
            options,
            used: 1,
            next: None,
        }
    }

    /// Plans another attempt after a pause, unless one is planned already; false when there may be none.
    pub(crate) fn plan(&mut self, now: Instant) -> bool {
        if self.next.is_some() {
            return true;
        }
        if self.used >= self.options.attempts {
            return false;
        }
        let at = now + self.options.backoff.pause();
        if at >= self.options.deadline {
            return false;
        }
        self.used += 1;
        self.next = Some(at);
        true
    }

    /// Takes the planned attempt if its time has come.
    pub(crate) fn take_due(&mut self, now: Instant) -> bool {
        let due = self.next.is_some_and(|at| at <= now);
        if due {
            self.next = None;
        }
        due
    }

    /// Whether the flow's time is over.
    pub(crate) fn over(&self, now: Instant) -> bool {
        now >= self.options.deadline
    }

    /// The next moment at which the flow wants to be told the time.
    pub(crate) fn next_deadline(&self) -> Instant {
        self.next.unwrap_or(self.options.deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_ceiling_and_differ_by_seed() {
        let mut longest = Duration::ZERO;
        let (mut a, mut b) = (Backoff::new(1), Backoff::new(2));
        let mut differ = false;
        for attempt in 0..40u32 {
            let (pause, other) = (a.pause(), b.pause());
            let ceiling = Duration::from_millis(5)
                .saturating_mul(1 << attempt.min(16))
                .min(Duration::from_secs(1));
            assert!(pause <= ceiling && pause >= Duration::from_micros(500));
            differ |= pause != other;
            longest = longest.max(pause);
        }
        assert!(differ && longest > Duration::from_millis(500));
    }

    #[test]
    fn attempts_end_by_count_and_by_deadline() {
        let deadline = Instant::ZERO + Duration::from_secs(1);
        let mut one = Attempts::first(FlowOptions::once(deadline));
        assert!(!one.plan(Instant::ZERO));
        let options = FlowOptions {
            deadline,
            attempts: 3,
            backoff: Backoff::new(1),
        };
        let mut three = Attempts::first(options.clone());
        assert!(three.plan(Instant::ZERO) && !three.take_due(Instant::ZERO));
        assert!(three.take_due(deadline) && !three.take_due(deadline));
        let mut late = Attempts::first(options);
        assert!(!late.plan(deadline));
    }
}
