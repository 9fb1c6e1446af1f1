use std::sync::atomic::Ordering;

use crate::sync::AtomicUsize;

/// A limit on how many threads do something at once.
///
/// A thread that gets no permit may park without asking again, because every thread that gives one back looks for work
/// once more before it parks. So a permit is taken in one step: a count that went up and down again in passing would hide
/// the permit from the thread that looks once more.
#[derive(Debug)]
pub(crate) struct Permits {
    taken: AtomicUsize,
    max: usize,
}

impl Permits {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            taken: AtomicUsize::new(0),
            max,
        }
    }

    /// Takes a permit, if one is left.
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
