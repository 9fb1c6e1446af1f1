use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use thiserror::Error;

use crate::countdown::{AlreadyHooked, Countdown, Hook};
use crate::routine::{Ended, Stopped, Waiting};
use crate::sync::{Arc, UnsafeCell};

/// The receiving end of one value.
///
/// Wait for it on a thread, or await it. Dropping it is no message: the completer's value is dropped in its turn.
pub struct Completion<T> {
    shared: Arc<Shared<T>>,
}

/// The sending end of one value. If it is dropped without one, the wait ends with an error.
#[must_use = "a completer that is dropped abandons its waiter"]
pub struct Completer<T> {
    shared: Arc<Shared<T>>,
    sent: bool,
}

/// The completer was dropped without a value.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the completing side went away without a result")]
pub struct Abandoned;

struct Shared<T> {
    countdown: Countdown<Abandoned>,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the value is written by the one completer before the countdown ends and taken by the one receiver after, so
// it is never reached by two threads at once; it crosses threads, hence `Send`.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above; nothing else in it is bound to a thread.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Completion<T> {
    /// Both ends of one value.
    pub fn new() -> (Completer<T>, Self) {
        let shared = Arc::new(Shared {
            countdown: Countdown::new(1),
            value: UnsafeCell::new(None),
        });
        (
            Completer {
                shared: Arc::clone(&shared),
                sent: false,
            },
            Self { shared },
        )
    }

    /// Waits for the value and takes it.
    ///
    /// # Errors
    /// [`Stopped::Ended`] when the deadline passed or the wait was cancelled; the value may still come, and another
    /// wait finds it. [`Stopped::Failed`] when the completer is gone, or the value was taken before.
    pub fn wait(&mut self, waiting: &Waiting<'_>) -> Result<T, Stopped<Abandoned>> {
        self.shared.countdown.wait(waiting)?;
        self.take().ok_or(Stopped::Failed(Abandoned))
    }

    /// Makes the present and future waits end; the completer learns of it when it asks. Says whether this call did it.
    pub fn cancel(&self) -> bool {
        self.shared.countdown.cancel()
    }

    /// A handle that cancels from another thread.
    pub fn canceller(&self) -> impl Fn() -> bool + Send + Sync + use<T>
    where
        T: Send,
    {
        let shared = Arc::clone(&self.shared);
        move || shared.countdown.cancel()
    }

    /// Whether the value is there, or never will be.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.shared.countdown.is_done()
    }

    /// Whether waits end without the value unless it is there: it was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.countdown.is_cancelled()
    }

    /// Runs `hook` once when the value is there, or never will be. Awaiting the value afterwards replaces it.
    ///
    /// # Errors
    /// There is one already.
    pub fn hook(&self, hook: Hook) -> Result<(), AlreadyHooked> {
        self.shared.countdown.hook(hook)
    }

    /// Takes the value. The countdown must have ended.
    fn take(&mut self) -> Option<T> {
        // SAFETY: the countdown ended, so the completer has written and will not write again; `&mut self` keeps every
        // other receiver away, and canceller handles never reach the value.
        self.shared
            .value
            .with_mut(|value| unsafe { (*value).take() })
    }
}

impl<T> Future for Completion<T> {
    type Output = Result<T, Stopped<Abandoned>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.shared.countdown.poll_done(context).is_ready() {
            return Poll::Ready(self.take().ok_or(Stopped::Failed(Abandoned)));
        }
        if self.shared.countdown.is_cancelled() {
            return Poll::Ready(Err(Ended::Cancelled.into()));
        }
        Poll::Pending
    }
}

impl<T> Completer<T> {
    /// Hands the value over and wakes the waiter if it sleeps.
    pub fn complete(mut self, value: T) {
        // SAFETY: this is the only completer and it is consumed; the receiver reads only after the countdown ended.
        self.shared
            .value
            .with_mut(|slot| unsafe { *slot = Some(value) });
        self.sent = true;
        self.shared.countdown.complete();
    }

    /// Whether the waiter is gone.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.countdown.is_cancelled()
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        if !self.sent {
            self.shared.countdown.fail(Abandoned);
        }
    }
}

impl<T> fmt::Debug for Completion<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("countdown", &self.shared.countdown)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Completer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completer")
            .field("countdown", &self.shared.countdown)
            .finish_non_exhaustive()
    }
}
