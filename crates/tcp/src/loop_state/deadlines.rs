//! When the connections of a loop are to be looked at.

use std::collections::BTreeSet;
use std::time::Duration;

use slackwater_base::Instant;

/// The time of each connection, by its index, and those times in order.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    of: Vec<Instant>,
    queue: BTreeSet<(Instant, usize)>,
}

/// How late connections may be looked at: by this part of the time until then, within these bounds. Those that are due about then are
/// looked at together.
const PART: u32 = 128;
const SLACK_MIN: Duration = Duration::from_millis(1);
const SLACK_MAX: Duration = Duration::from_millis(250);

impl Deadlines {
    /// The connection is to be looked at then or a little later, and not when was said before.
    pub(super) fn set(&mut self, now: Instant, index: usize, at: Instant) {
        if at == Instant::NEVER {
            return self.forget(index);
        }
        if self.of.len() <= index {
            self.of.resize(index + 1, Instant::NEVER);
        }
        let slack = (now.until(at) / PART).clamp(SLACK_MIN, SLACK_MAX);
        let known = self.of[index];
        if (at..=at + slack).contains(&known) {
            return;
        }
        let quantum = 1 << slack.as_nanos().ilog2();
        let late = at.as_nanos().checked_next_multiple_of(quantum);
        let late = late.map_or(Instant::NEVER, Instant::from_nanos);
        self.queue.remove(&(known, index));
        self.queue.insert((late, index));
        self.of[index] = late;
    }

    /// The connection is gone.
    pub(super) fn forget(&mut self, index: usize) {
        if let Some(at) = self.of.get_mut(index) {
            self.queue.remove(&(*at, index));
            *at = Instant::NEVER;
        }
    }

    /// When the first is due.
    pub(super) fn next(&self) -> Instant {
        self.queue.first().map_or(Instant::NEVER, |(at, _)| *at)
    }

    /// A connection that is due. Its time is forgotten: who looks at it says when to look again.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<usize> {
        let (_, index) = *self.queue.first().filter(|(at, _)| *at <= now)?;
        self.forget(index);
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(milliseconds)
    }

    fn due(deadlines: &mut Deadlines, now: Instant) -> Vec<usize> {
        std::iter::from_fn(|| deadlines.take_due(now)).collect()
    }

    /// Each deadline of one of a thousand connections had all of them looked at: five seconds after they were opened, one by one,
    /// they cost a tenth of a second, in hundreds of turns of their loop.
    #[test]
    fn only_those_that_are_due_are_looked_at_and_many_together() {
        let mut deadlines = Deadlines::default();
        for index in 0..1000 {
            deadlines.set(at(index), index as usize, at(30_000 + index));
        }
        let (mut looks, mut turns) = (Vec::new(), 0);
        while deadlines.next() < Instant::NEVER {
            let now = deadlines.next();
            let taken = due(&mut deadlines, now);
            for index in &taken {
                let own = at(30_000 + *index as u64);
                assert!((own..=own + SLACK_MAX).contains(&now), "{index} at {now:?}");
            }
            looks.extend(taken);
            turns += 1;
        }
        looks.sort_unstable();
        assert_eq!(looks, (0..1000).collect::<Vec<_>>());
        assert!(turns <= 10, "{turns} turns");
    }

    /// What is near is not late: a request of some milliseconds would be.
    #[test]
    fn what_is_near_is_looked_at_in_time() {
        let mut deadlines = Deadlines::default();
        deadlines.set(at(1000), 0, at(1005));
        assert!((at(1005)..=at(1006)).contains(&deadlines.next()));
        assert_eq!(due(&mut deadlines, at(1004)), [0_usize; 0]);
        assert_eq!(due(&mut deadlines, at(1006)), [0]);
    }

    /// A thousand connections that had proven themselves were looked at once each when the time to do so was over.
    #[test]
    fn a_connection_is_there_once_at_its_last_time_until_it_is_gone() {
        let mut deadlines = Deadlines::default();
        for time in [9, 5, 5, 7] {
            deadlines.set(at(0), 3, at(time));
        }
        deadlines.set(at(0), 0, at(2));
        assert_eq!(deadlines.queue.len(), 2);
        assert_eq!(due(&mut deadlines, at(6)), [0]);
        assert_eq!(due(&mut deadlines, at(8)), [3]);
        assert_eq!(due(&mut deadlines, at(1000)), [0_usize; 0]);
        deadlines.set(at(0), 3, at(9));
        assert!(deadlines.next() < at(11), "it was taken, and is said anew");
        deadlines.forget(77);
        deadlines.set(at(0), 3, Instant::NEVER);
        assert_eq!(
            (deadlines.next(), deadlines.queue.len()),
            (Instant::NEVER, 0)
        );
    }
}
