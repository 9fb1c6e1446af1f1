use std::cell::Cell;

use slackwater_wait::NumaId;

/// The thread that runs a task, as its pool counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The thread's index in its pool, below [`Pool::threads`](crate::Pool::threads); 0 is the caller.
    pub thread: usize,
    /// The NUMA node of the thread, if the pool knows nodes.
    pub node: Option<NumaId>,
}

thread_local! {
    static CURRENT: Cell<Option<Member>> = const { Cell::new(None) };
}

impl Member {
    /// The member that this thread is at the moment; `None` outside of jobs.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.get()
    }

    /// Makes this thread a member until the guard is dropped. A thread that was not one before counts as working meanwhile.
    pub(crate) fn enter(self) -> Inside {
        let before = CURRENT.replace(Some(self));
        Inside {
            before,
            _working: before.is_none().then(slackwater_wait::working),
        }
    }
}

/// Restores what the thread was before.
#[derive(Debug)]
pub(crate) struct Inside {
    before: Option<Member>,
    _working: Option<slackwater_wait::Working>,
}

impl Drop for Inside {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}
