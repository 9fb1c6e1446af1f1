//! Places among numbered messages of which their sender is told that the receiver has taken them.

use std::collections::VecDeque;

use crate::numbered::WINDOW;

/// Most places that are told apart: one for each message that may be under way. Those of a receiver that takes nothing would have
/// no bound otherwise.
const MARKS_MAX: usize = WINDOW;

/// Marks that rise, each behind a message. To have reached one is to have reached all before it.
#[derive(Clone, Debug, Default)]
pub struct Marks(VecDeque<(u64, u64)>);

impl Marks {
    /// Adds a mark behind the message of this number, and behind all other marks. Of too many the last two become one, which is
    /// reached when both are.
    pub fn push(&mut self, number: u64, mark: u64) {
        if self.0.len() >= MARKS_MAX {
            self.0.pop_back();
        }
        self.0.push_back((number, mark));
    }

    /// Removes the marks behind messages up to this number: the last of them, if there is any.
    pub fn reached(&mut self, number: u64) -> Option<u64> {
        let mut last = None;
        while let Some((_, mark)) = self.0.pop_front_if(|(of, _)| *of <= number) {
            last = Some(mark);
        }
        last
    }

    /// Whether nothing is to be reached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of places that are told apart.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receiver that acknowledged nothing had its sender keep a mark for each message.
    #[test]
    fn marks_of_a_receiver_that_takes_nothing_are_limited_and_none_is_lost() {
        let many = 10 * MARKS_MAX as u64;
        let mut marks = Marks::default();
        for number in 1..=many {
            marks.push(number, 2 * number);
            assert!(marks.len() <= MARKS_MAX);
        }
        assert_eq!(marks.reached(0), None);
        assert_eq!(marks.reached(7), Some(14));
        // What was made one is not reached before the last of it.
        let apart = MARKS_MAX as u64 - 1;
        assert_eq!(marks.reached(many - 1), Some(2 * apart));
        assert_eq!(marks.reached(many), Some(2 * many));
        assert!(marks.is_empty());
    }
}
