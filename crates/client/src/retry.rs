use std::time::Duration;

use slackwater_base::{Backoff, Instant, Rng};

/// How long a flow may take and how it asks again.
#[derive(Clone, Debug)]
pub struct FlowOptions {
    /// When the flow ends, whatever has come of it.
    pub deadline: Instant,
    /// How often it may ask in all, the first time included; 1 or more.
    pub attempts: u32,
    /// Pauses between attempts.
    pub backoff: Backoff,
    /// Randomness of the pauses.
    pub jitter: Rng,
}

impl FlowOptions {
    /// The usual pauses: from at most 5 ms growing to at most 1 s.
    pub const BACKOFF: Backoff =
        Backoff::doubling(Duration::from_millis(5), Duration::from_secs(1));

    /// One attempt until `deadline`: for a master in the same process, where asking again changes nothing.
    #[must_use]
    pub fn once(deadline: Instant) -> Self {
        Self {
            deadline,
            attempts: 1,
            backoff: Self::BACKOFF,
            jitter: Rng::new(0),
        }
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
        let options = &mut self.options;
        let pause = options.backoff.pause(self.used - 1, &mut options.jitter);
        let at = now + pause;
        if at >= options.deadline {
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
    fn attempts_end_by_count_and_by_deadline() {
        let deadline = Instant::ZERO + Duration::from_secs(1);
        let mut one = Attempts::first(FlowOptions::once(deadline));
        assert!(!one.plan(Instant::ZERO));
        let options = FlowOptions {
            deadline,
            attempts: 3,
            backoff: FlowOptions::BACKOFF,
            jitter: Rng::new(1),
        };
        let mut three = Attempts::first(options.clone());
        assert!(three.plan(Instant::ZERO) && !three.take_due(Instant::ZERO));
        assert!(three.take_due(deadline) && !three.take_due(deadline));
        let mut late = Attempts::first(options);
        assert!(!late.plan(deadline));
    }
}
