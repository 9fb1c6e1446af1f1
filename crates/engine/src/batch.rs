//! A group of requests with one completion word.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use slackwater_data_plane::Cause;
use slackwater_wait::{AlreadyHooked, Countdown, Hook, Stopped, Waiting};
use slackwater_wire::data::Refusal;
use thiserror::Error;

/// Names a batch of this process, for faces that cannot hold a [`Batch`]. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// Requests that were submitted together. Clones are handles to the same batch; dropping them all cancels nothing.
#[derive(Clone)]
pub struct Batch(Arc<Core>);

/// The status of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Queued.
    Waiting,
    /// A mover has started it.
    Pending,
    /// Complete: every byte is at its destination.
    Completed,
    /// Failed; the cause says why.
    Failed,
    /// Ended by its deadline.
    TimedOut,
    /// Ended by a cancellation.
    Cancelled,
    /// Not started: the request itself is invalid.
    Invalid,
}

/// The outcome of one request. Once there is one, nothing touches the request's memory any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes that are known to be at their destination; all of them when there is no cause.
    pub bytes: u64,
    /// Why it is not complete; none when it is.
    pub cause: Option<Cause>,
}

/// Why a batch did not complete. Nothing touches its memory any more.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BatchError {
    /// A request failed; the first to do so is named, the outcomes tell of all.
    #[error("a transfer failed: {0}")]
    Failed(Cause),
    /// The deadline of the wait passed; the batch was cancelled and its memory is released.
    #[error("deadline passed while waiting for a transfer")]
    TimedOut,
    /// It was cancelled; its memory is released.
    #[error("transfer cancelled")]
    Cancelled,
}

/// The shared state of a batch.
pub(crate) struct Core {
    id: BatchId,
    countdown: Countdown<Cause>,
    slots: Box<[Mutex<RequestState>]>,
    /// Requests, without the follower.
    requests: u32,
    /// Requests that have not ended; the follower is not one of them.
    requests_left: AtomicU32,
    failed: AtomicBool,
    follower: Mutex<Option<Follower>>,
    tell_movers: Box<dyn Fn(BatchId) + Send + Sync>,
}

/// Started once every request is complete, with the last part of the batch.
pub type Follower = Box<dyn FnOnce(Part) + Send>;

#[derive(Debug, Default)]
struct RequestState {
    /// Parts that movers hold.
    parts: u32,
    bytes: u64,
    started: bool,
    cause: Option<Cause>,
    over: bool,
}

/// The duty to end one request, or one piece of it, exactly once. If it is dropped instead, the request fails with
/// [`Cause::Dropped`]: so a panic in a mover ends its requests.
///
/// A mover ends a part only after it has released the request's memory, and the target's as far as that is up to the
/// mover.
pub struct Part {
    core: Option<Arc<Core>>,
    slot: u32,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

impl Status {
    /// That of a request that ended so.
    fn failed(cause: &Cause) -> Self {
        match cause {
            Cause::TimedOut(_) => Self::TimedOut,
            Cause::Cancelled | Cause::Refused(Refusal::Cancelled) => Self::Cancelled,
            Cause::Invalid(_) => Self::Invalid,
            _ => Self::Failed,
        }
    }
}

impl Batch {
    /// A batch of `requests` requests and the parts that end them. `follower`, if any, is started when all of them are
    /// complete, and ends before the batch does; `cancel` tells the movers that the batch was cancelled.
    pub fn new(
        requests: u32,
        follower: Option<Follower>,
        cancel: impl Fn(BatchId) + Send + Sync + 'static,
    ) -> (Self, Vec<Part>) {
        let slots = requests + u32::from(follower.is_some());
        let core = Arc::new(Core {
            id: BatchId(NEXT.fetch_add(1, Ordering::Relaxed)),
            countdown: Countdown::new(slots),
            slots: (0..slots)
                .map(|_| {
                    Mutex::new(RequestState {
                        parts: 1,
                        ..RequestState::default()
                    })
                })
                .collect(),
            requests,
            requests_left: AtomicU32::new(requests),
            failed: AtomicBool::new(false),
            follower: Mutex::new(follower),
            tell_movers: Box::new(cancel),
        });
        if requests == 0 {
            core.begin_follower();
        }
        let parts = (0..requests)
            .map(|slot| Part {
                core: Some(Arc::clone(&core)),
                slot,
            })
            .collect();
        (Self(core), parts)
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> BatchId {
        self.0.id
    }

    /// Requests in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.requests as usize
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ready when every request has ended, cancelled or not; the task of `context` is woken then. One task awaits a batch, which
    /// has no hook besides.
    pub fn poll_done(&self, context: &mut Context<'_>) -> Poll<()> {
        self.0.countdown.poll_done(context)
    }

    /// Whether every request has ended; one atomic load.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.countdown.is_done()
    }

    /// The number of requests that have not ended.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.0.countdown.remaining()
    }

    /// The outcome of a request; none before its end, or when there is no such request.
    #[must_use]
    pub fn outcome(&self, request: usize) -> Option<Outcome> {
        let slot = lock(self.0.slots.get(request)?);
        slot.over.then(|| Outcome {
            bytes: slot.bytes,
            cause: slot.cause.clone(),
        })
    }

    /// The status of a request; none when there is no such request.
    #[must_use]
    pub fn status(&self, request: usize) -> Option<Status> {
        let slot = lock(self.0.slots.get(request)?);
        Some(match &slot.cause {
            Some(cause) if slot.over => Status::failed(cause),
            None if slot.over => Status::Completed,
            _ if slot.started => Status::Pending,
            _ => Status::Waiting,
        })
    }

    /// Waits until every request has ended. At the deadline of `waiting` it cancels the batch and waits until the
    /// movers have released its memory: when this returns, nothing touches the memory any more.
    ///
    /// # Errors
    /// A request failed, the deadline passed, or the batch was cancelled.
    pub fn wait(&self, waiting: &Waiting<'_>) -> Result<(), BatchError> {
        match self.0.countdown.wait(waiting) {
            Ok(()) => Ok(()),
            Err(Stopped::Failed(cause)) => Err(self.0.ended(cause)),
            Err(Stopped::Ended(slackwater_wait::Ended::TimedOut)) => {
                self.cancel();
                self.settle(waiting);
                // The end may have come between the deadline and the cancellation.
                match self.0.countdown.is_cancelled() {
                    true => Err(BatchError::TimedOut),
                    false => self.result(),
                }
            }
            Err(Stopped::Ended(slackwater_wait::Ended::Cancelled)) => {
                self.settle(waiting);
                Err(BatchError::Cancelled)
            }
        }
    }

    /// Waits until every request has ended, or the deadline passed; says whether they have. Cancels nothing.
    #[must_use]
    pub fn watch(&self, waiting: &Waiting<'_>) -> bool {
        self.0.countdown.settle(waiting).is_ok()
    }

    /// Asks the movers to stop. The batch ends soon, its unfinished requests as cancelled; [`Batch::wait`] returns
    /// then. Says whether this call was the one that cancelled it.
    pub fn cancel(&self) -> bool {
        let first = self.0.countdown.cancel();
        if first {
            (self.0.tell_movers)(self.0.id);
        }
        first
    }

    /// Runs `hook` once when the batch is over, or now if it is: a task's waker, or a call such as
    /// a write to an eventfd for those who wait on a descriptor.
    ///
    /// # Errors
    /// There is one already.
    pub fn hook(&self, hook: Hook) -> Result<(), AlreadyHooked> {
        self.0.countdown.hook(hook)
    }

    fn settle(&self, waiting: &Waiting<'_>) {
        let settled = self
            .0
            .countdown
            .settle(&waiting.until(slackwater_base::Instant::NEVER));
        debug_assert!(
            settled.is_ok(),
            "a wait without a deadline ends with what it waits for"
        );
    }

    fn result(&self) -> Result<(), BatchError> {
        match (0..self.0.slots.len())
            .find_map(|request| self.outcome(request).and_then(|outcome| outcome.cause))
        {
            None => Ok(()),
            Some(cause) => Err(self.0.ended(cause)),
        }
    }
}

impl Core {
    fn ended(&self, cause: Cause) -> BatchError {
        match cause {
            Cause::Cancelled => BatchError::Cancelled,
            cause => BatchError::Failed(cause),
        }
    }

    fn end(self: &Arc<Self>, slot: u32, bytes: u64, cause: Option<Cause>) {
        let ended = {
            let mut state = lock(&self.slots[slot as usize]);
            state.bytes += bytes;
            state.parts -= 1;
            if state.cause.is_none() {
                state.cause = cause;
            }
            if state.parts > 0 {
                return;
            }
            state.over = true;
            state.cause.clone()
        };
        if ended.is_some() {
            self.failed.store(true, Ordering::Release);
        }
        if slot < self.requests && self.requests_left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.begin_follower();
        }
        match ended {
            None => self.countdown.complete(),
            Some(cause) => self.countdown.fail(cause),
        }
    }

    fn begin_follower(self: &Arc<Self>) {
        let Some(follower) = lock(&self.follower).take() else {
            return;
        };
        let part = Part {
            core: Some(Arc::clone(self)),
            slot: self.slots.len() as u32 - 1,
        };
        match self.failed.load(Ordering::Acquire) {
            true => part.fail(Cause::Cancelled),
            false => follower(part),
        }
    }
}

impl Part {
    /// A mover has started it.
    pub fn started(&self) {
        if let Some(core) = &self.core {
            lock(&core.slots[self.slot as usize]).started = true;
        }
    }

    /// Ends it as complete: `bytes` bytes are at their destination.
    pub fn complete(mut self, bytes: u64) {
        if let Some(core) = self.core.take() {
            core.end(self.slot, bytes, None);
        }
    }

    /// Ends it as failed.
    pub fn fail(mut self, cause: Cause) {
        if let Some(core) = self.core.take() {
            core.end(self.slot, 0, Some(cause));
        }
    }

    /// Cuts the duty into `parts` (at least one); the request ends with the last of them, and is complete when all are.
    #[must_use]
    pub fn split(self, parts: u32) -> Vec<Part> {
        let Some(core) = self.core.clone() else {
            return Vec::new();
        };
        let more = parts.saturating_sub(1);
        lock(&core.slots[self.slot as usize]).parts += more;
        let slot = self.slot;
        std::iter::once(self)
            .chain((0..more).map(|_| Part {
                core: Some(Arc::clone(&core)),
                slot,
            }))
            .collect()
    }

    /// The batch.
    #[must_use]
    pub fn batch(&self) -> BatchId {
        self.core.as_ref().map_or(BatchId(0), |core| core.id)
    }

    /// Whether the batch was cancelled: a request that was not started need not be.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.core
            .as_ref()
            .is_some_and(|core| core.countdown.is_cancelled())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            core.end(self.slot, 0, Some(Cause::Dropped));
        }
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("id", &self.0.id)
            .field("countdown", &self.0.countdown)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part")
            .field("batch", &self.batch())
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
