use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_base::Instant;
use slackwater_wait::{Event, Park, Site, Waiting};

/// Ends calls from another thread. Clones are handles to the same one.
///
/// A call whose options hold it ends soon after [`Cancel::cancel`], once nothing touches the caller's buffers any more.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Inner>);

#[derive(Default)]
struct Inner {
    cancelled: AtomicBool,
    rung: Event,
    /// Ends the wait for an answer.
    ends: Mutex<Registered>,
}

#[derive(Default)]
struct Registered {
    next: u64,
    ends: Vec<(u64, Box<dyn Fn() + Send>)>,
}

static PAUSE: Site = Site::new("client, pause");

impl Cancel {
    /// A handle that no call has been cancelled by.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels the calls that hold it, now and later.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::SeqCst);
        self.0.rung.close();
        self.registered().ends.iter().for_each(|(_, end)| end());
    }

    /// Whether calls are cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::SeqCst)
    }

    /// Has `end` called when calls are cancelled, or now if they were before, until what is returned is dropped.
    pub(crate) fn ends(&self, end: impl Fn() + Send + 'static) -> Ends<'_> {
        let mut registered = self.registered();
        if self.is_cancelled() {
            end();
        }
        registered.next += 1;
        let number = registered.next;
        registered.ends.push((number, Box::new(end)));
        Ends {
            cancel: self,
            number,
        }
    }

    /// Sleeps until then, or until calls are cancelled.
    pub(crate) fn pause(&self, until: Instant) {
        let waiting = Waiting::at(&PAUSE).by(&Park).until(until);
        // Either end is what the caller looks at next.
        let _ = self.0.rung.wait(self.0.rung.seen(), &waiting);
    }

    fn registered(&self) -> MutexGuard<'_, Registered> {
        self.0.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wait that a cancellation ends, until it is dropped.
pub(crate) struct Ends<'a> {
    cancel: &'a Cancel,
    number: u64,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let mut registered = self.cancel.registered();
        registered.ends.retain(|(number, _)| *number != self.number);
    }
}

impl std::fmt::Debug for Cancel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled()).finish()
    }
}
