use std::sync::atomic::Ordering;

use crate::sync::AtomicUsize;

/// How many may do something at once.
///
/// Whoever finds no turn may sleep without asking again, as long as everybody who gives one back looks once more before
/// it sleeps. So a turn is taken in one step: one that was counted up and down again in passing would hide itself from
/// the very thread that looks once more.
#[derive(Debug)]
pub(crate) struct Turns {
    taken: AtomicUsize,
    max: usize,
}

impl Turns {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            taken: AtomicUsize::new(0),
            max,
        }
    }

    /// Takes a turn, if there is one.
    pub(crate) fn take(&self) -> bool {
        let more = |taken| (taken < self.max).then_some(taken + 1);
        self.taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .is_ok()
    }

    pub(crate) fn give_back(&self) {
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }
}
