use std::fmt;
use std::task::{Context, Poll, Waker};

use thiserror::Error;

use crate::routine::{Ended, Stopped, Waiting};
use crate::sync::{Mutex, MutexGuard};
use crate::word::Word;

/// A part failed; its cause is beside the word, written before it.
const FAILED: u32 = 1 << 1;
/// Waits end; the parts go on.
const CANCELLED: u32 = 1 << 2;
/// A hook is to be run at the end.
const HOOKED: u32 = 1 << 3;
/// One part.
const PART: u32 = 1 << 4;
/// All parts.
const PARTS: u32 = !(PART - 1);

/// The end of a batch: counts its parts down and wakes all waiters once, with the last.
///
/// The first failure is kept; waiters learn of it only when every part is over, since until then the batch may still
/// touch memory. Completers and waiters share it by reference or [`Arc`](std::sync::Arc), so it outlives the wake.
pub struct Countdown<E = ()> {
    word: Word,
    cause: Mutex<Option<E>>,
    hook: Mutex<Option<Hook>>,
}

/// What happens at the end instead of waking a parked thread: for asynchronous users.
pub enum Hook {
    /// A task to poll again.
    Waker(Waker),
    /// Anything else, such as setting an eventfd. Runs on the completer's thread and must not block or panic.
    Call(Box<dyn FnOnce() + Send>),
}

/// A batch has one hook at most.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the batch already has somebody to tell of its end")]
pub struct AlreadyHooked;

impl<E> Countdown<E> {
    /// The most parts of one batch.
    pub const PARTS_MAX: u32 = PARTS / PART;

    /// A batch of `parts` parts. One without parts is over at once.
    ///
    /// # Panics
    /// There are more parts than [`Countdown::PARTS_MAX`].
    #[must_use]
    pub fn new(parts: u32) -> Self {
        assert!(
            parts <= Self::PARTS_MAX,
            "{parts} parts, more than {}",
            Self::PARTS_MAX
        );
        Self {
            word: Word::new(parts * PART),
            cause: Mutex::new(None),
            hook: Mutex::new(None),
        }
    }

    /// One part succeeded. The last one wakes the waiters.
    ///
    /// # Panics
    /// There was no part left.
    pub fn complete(&self) {
        let before = self.word.subtract(PART);
        assert!(
            before & PARTS != 0,
            "a part completed that the batch does not have"
        );
        if before & PARTS == PART {
            self.finish(before);
        }
    }

    /// One part failed. The first cause is kept.
    pub fn fail(&self, cause: E) {
        {
            let mut first = self
                .cause
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            first.get_or_insert(cause);
        }
        self.word.set(FAILED);
        self.complete();
    }

    /// Makes present and future waits end with [`Ended::Cancelled`], also those of tasks, while the parts of the batch
    /// continue. Returns whether this call cancelled it.
    pub fn cancel(&self) -> bool {
        let before = self.word.set(CANCELLED);
        if before & CANCELLED != 0 || before & PARTS == 0 {
            return false;
        }
        self.word.wake(before);
        if before & HOOKED != 0 {
            self.wake_task();
        }
        true
    }

    /// Whether the batch is cancelled, so that a mover may skip its remaining parts.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.word.load() & CANCELLED != 0
    }

    /// Whether all parts are over.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.word.load() & PARTS == 0
    }

    /// The parts not over yet.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        (self.word.load() & PARTS) / PART
    }

    /// Waits until all parts are over.
    ///
    /// # Errors
    /// [`Stopped::Ended`] when the deadline passed or the batch was cancelled first: parts may still be under way.
    /// [`Stopped::Failed`] when all are over and one failed.
    pub fn wait(&self, waiting: &Waiting<'_>) -> Result<(), Stopped<E>>
    where
        E: Clone,
    {
        let over = self.word.wait(waiting, |value| {
            value & PARTS == 0 || value & CANCELLED != 0
        });
        if !over {
            return Err(Ended::TimedOut.into());
        }
        if self.is_done() {
            self.result()
        } else {
            Err(Ended::Cancelled.into())
        }
    }

    /// Waits until no part can touch anything any more, cancelled or not.
    ///
    /// # Errors
    /// The deadline passed.
    pub fn settle(&self, waiting: &Waiting<'_>) -> Result<(), Ended> {
        if self.word.wait(waiting, |value| value & PARTS == 0) {
            Ok(())
        } else {
            Err(Ended::TimedOut)
        }
    }

    /// Runs `hook` once after the last part, or now if that is over.
    ///
    /// # Errors
    /// There is one already.
    pub fn hook(&self, hook: Hook) -> Result<(), AlreadyHooked> {
        {
            let mut slot = self.lock_hook();
            if slot.is_some() || self.word.load() & HOOKED != 0 {
                return Err(AlreadyHooked);
            }
            *slot = Some(hook);
        }
        self.announce_hook();
        Ok(())
    }

    /// Ready when all parts are over, cancelled or not; the task of `context` is woken then. One task awaits a countdown: it
    /// takes the place of a hook, and of a task before it.
    pub fn poll_done(&self, context: &mut Context<'_>) -> Poll<()> {
        if !self.is_done() {
            self.hook_waker(context.waker());
        }
        // Looked at again: the last part may have come before the waker was in place.
        match self.is_done() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Replaces the waker of a task that polls again, or a hook.
    pub(crate) fn hook_waker(&self, waker: &Waker) {
        {
            let mut slot = self.lock_hook();
            match &mut *slot {
                Some(Hook::Waker(held)) => held.clone_from(waker),
                _ => *slot = Some(Hook::Waker(waker.clone())),
            }
        }
        self.announce_hook();
    }

    /// Either the last part sees the bit, or this sees the last part: the hook runs, and it is taken once.
    fn announce_hook(&self) {
        if self.word.set(HOOKED) & PARTS == 0 {
            self.run_hook();
        }
    }

    fn run_hook(&self) {
        let hook = self.lock_hook().take();
        match hook {
            Some(Hook::Waker(waker)) => waker.wake(),
            Some(Hook::Call(call)) => call(),
            None => {}
        }
    }

    /// Lets the task look, and keeps its waker for the end.
    fn wake_task(&self) {
        let waker = match &*self.lock_hook() {
            Some(Hook::Waker(waker)) => waker.clone(),
            Some(Hook::Call(_)) | None => return,
        };
        waker.wake();
    }

    fn lock_hook(&self) -> MutexGuard<'_, Option<Hook>> {
        self.hook
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// After the last part, given the value before it.
    fn finish(&self, before: u32) {
        self.word.wake(before);
        if before & HOOKED != 0 {
            self.run_hook();
        }
    }

    fn result(&self) -> Result<(), Stopped<E>>
    where
        E: Clone,
    {
        if self.word.load() & FAILED == 0 {
            return Ok(());
        }
        let cause = self
            .cause
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        Err(Stopped::Failed(cause.clone().expect(
            "the cause is written before the bit that says there is one",
        )))
    }
}

impl<E> fmt::Debug for Countdown<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.word.load();
        f.debug_struct("Countdown")
            .field("remaining", &((value & PARTS) / PART))
            .field("failed", &(value & FAILED != 0))
            .field("cancelled", &(value & CANCELLED != 0))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waker(_) => "Waker",
            Self::Call(_) => "Call",
        })
    }
}
