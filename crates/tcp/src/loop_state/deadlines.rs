//! When the connections of a loop are to be looked at.

use std::collections::BTreeSet;

use slackwater_base::Instant;

/// The time of each connection, by its index, and those times in order.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    of: Vec<Instant>,
    queue: BTreeSet<(Instant, usize)>,
}

impl Deadlines {
    /// The connection is to be looked at then, and not when was said before.
    pub(super) fn set(&mut self, index: usize, at: Instant) {
        if self.of.len() <= index {
            self.of.resize(index + 1, Instant::NEVER);
        }
        let known = std::mem::replace(&mut self.of[index], at);
        if at == known {
            return;
        }
        self.queue.remove(&(known, index));
        if at < Instant::NEVER {
            self.queue.insert((at, index));
        }
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

    /// A connection that is due, which is to be looked at never again until it is said anew.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<usize> {
        let (_, index) = *self.queue.first().filter(|(at, _)| *at <= now)?;
        self.forget(index);
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(milliseconds)
    }

    fn due(deadlines: &mut Deadlines, now: u64) -> Vec<usize> {
        std::iter::from_fn(|| deadlines.take_due(at(now))).collect()
    }

    /// Each deadline of one of a thousand connections had all of them looked at: five seconds after they were opened, one by one,
    /// they cost a tenth of a second.
    #[test]
    fn only_those_that_are_due_are_looked_at() {
        let mut deadlines = Deadlines::default();
        (0..1000).for_each(|index| deadlines.set(index, at(1 + index as u64)));
        for now in 1..=1000 {
            assert_eq!(deadlines.next(), at(now));
            assert_eq!(due(&mut deadlines, now), [now as usize - 1]);
        }
        assert_eq!(deadlines.next(), Instant::NEVER);
    }

    /// A thousand connections that had proven themselves were looked at once each when the time to do so was over.
    #[test]
    fn a_connection_is_there_once_at_its_last_time_until_it_is_gone() {
        let mut deadlines = Deadlines::default();
        for time in [9, 5, 5, 7] {
            deadlines.set(3, at(time));
        }
        deadlines.set(0, at(6));
        assert_eq!((deadlines.next(), deadlines.queue.len()), (at(6), 2));
        assert_eq!(due(&mut deadlines, 8), [0, 3]);
        assert_eq!(due(&mut deadlines, 1000), [0_usize; 0]);
        deadlines.set(3, at(9));
        assert_eq!(deadlines.next(), at(9), "it was taken, and is said anew");
        deadlines.forget(3);
        deadlines.forget(77);
        assert_eq!(deadlines.next(), Instant::NEVER);
        deadlines.set(3, Instant::NEVER);
        assert_eq!(
            (deadlines.next(), deadlines.queue.len()),
            (Instant::NEVER, 0)
        );
    }
}
