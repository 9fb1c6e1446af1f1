//! When the master is asked to tell readers of events more of what there is.

use std::time::Duration;

use slackwater_base::Instant;

use super::queue::MoreEvents;

/// What there is to ask for, and whether it can be taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    /// A reader has missed events, and what there is was not told once more since.
    pub(super) is_missed: bool,
    /// The master has more to tell when it is asked.
    pub(super) has_more: bool,
    /// Nothing else is to be told, and the message layer has not enough to do.
    pub(super) is_idle: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Ask the master.
    Ask(MoreEvents),
    /// Wait for something else to be told, or for this moment.
    Wait(Instant),
}

/// The moments of what comes next.
#[derive(Debug, Default)]
pub(super) struct Pace {
    next_slice: Instant,
    next_repeat: Instant,
    /// Whether what is told now may be told once more: the pause begins when it is over.
    is_repeating: bool,
}

/// Objects of one slice of what there is, which readers are told anew: the master looks at them in some tens of microseconds.
const SLICE_OBJECTS: usize = 256;
/// Time between two slices: a million objects take eight seconds.
const SLICE_PAUSE: Duration = Duration::from_millis(2);
/// Time between two times that everything is told once more: all subscribers hear it.
const REPEAT_PAUSE: Duration = Duration::from_secs(30);

impl Pace {
    /// What comes next. What is being told is told to its end before it is told once more: of a large store readers would
    /// otherwise hear the beginning alone, if one of them asks again and again.
    pub(super) fn next(&mut self, now: Instant, need: Need) -> Next {
        let mut wakes = Instant::NEVER;
        if !need.has_more {
            if std::mem::take(&mut self.is_repeating) {
                self.next_repeat = now + REPEAT_PAUSE;
            }
            if need.is_missed && now >= self.next_repeat {
                self.is_repeating = true;
                return Next::Ask(MoreEvents::Repeated);
            }
            if need.is_missed {
                wakes = self.next_repeat;
            }
        } else if need.is_idle {
            if now >= self.next_slice {
                self.next_slice = now + SLICE_PAUSE;
                return Next::Ask(MoreEvents::Objects(SLICE_OBJECTS));
            }
            wakes = self.next_slice;
        }
        Next::Wait(wakes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Next = Next::Ask(MoreEvents::Objects(SLICE_OBJECTS));
    const REPEAT: Next = Next::Ask(MoreEvents::Repeated);
    const NEVER: Next = Next::Wait(Instant::NEVER);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1_000_000_000) + Duration::from_millis(millis)
    }

    fn need(is_missed: bool, has_more: bool, is_idle: bool) -> Need {
        Need {
            is_missed,
            has_more,
            is_idle,
        }
    }

    #[test]
    fn slices_come_at_their_pace_when_nothing_else_is_to_be_told() {
        let mut pace = Pace::default();
        assert_eq!(pace.next(at(0), need(false, false, true)), NEVER);
        assert_eq!(pace.next(at(1), need(false, true, true)), SLICE);
        let soon = Next::Wait(at(3));
        assert_eq!(pace.next(at(2), need(false, true, true)), soon);
        assert_eq!(pace.next(at(3), need(true, true, false)), NEVER);
        assert_eq!(pace.next(at(9), need(false, true, true)), SLICE);
        assert_eq!(pace.next(at(11), need(false, true, true)), SLICE);
        assert_eq!(pace.next(at(12), need(false, false, true)), NEVER);
    }

    /// A reader who asked each second had a store of many million objects told from the beginning again and again.
    #[test]
    fn what_is_told_once_more_is_told_to_its_end_and_followed_by_a_pause() {
        let mut pace = Pace::default();
        assert_eq!(pace.next(at(0), need(true, false, true)), REPEAT);
        for second in 0..90 {
            let asked_again = need(true, true, true);
            assert_eq!(pace.next(at(1_000 * second), asked_again), SLICE);
        }
        let over = Next::Wait(at(120_000));
        assert_eq!(pace.next(at(90_000), need(true, false, true)), over);
        assert_eq!(pace.next(at(119_999), need(true, false, true)), over);
        assert_eq!(pace.next(at(119_999), need(false, false, true)), NEVER);
        assert_eq!(pace.next(at(120_000), need(true, false, false)), REPEAT);
        // There was nothing to tell.
        let later = Next::Wait(at(150_001));
        assert_eq!(pace.next(at(120_001), need(true, false, true)), later);
    }
}
