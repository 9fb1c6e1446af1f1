//! One request on the wire of another mover, from its chunk of host memory to its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use slackwater_base::Instant;
use slackwater_engine::{
    Access, Batch, Buffers, Cause, Deadline, Job, Mover, Outcome, Part, Priority, Remote, Stage,
    StageError, Staged, Submission, WhenFull,
};
use slackwater_wait::{Hook, now};
use slackwater_wire::data::{Op, Segment};

use super::{Core, Whole, lock};

/// What goes over the wire as one request: a chunk of device memory, or a range of host memory beside it.
pub(super) struct Piece {
    pub(super) core: Arc<Core>,
    pub(super) wire: Arc<dyn Mover>,
    pub(super) segment: Arc<Segment>,
    pub(super) op: Op,
    pub(super) local: PieceMemory,
    pub(super) bytes: usize,
    pub(super) remote: Remote,
    pub(super) deadline: Instant,
    pub(super) priority: Priority,
    pub(super) part: Part,
    pub(super) whole: Arc<Whole>,
}

/// Local memory of a piece.
#[derive(Clone)]
pub(super) enum PieceMemory {
    Host(Buffers),
    Device {
        stage: Arc<dyn Stage>,
        access: Arc<Access>,
        offset: u64,
    },
}

impl Piece {
    pub(super) fn begin(self) {
        if let Err(cause) = self.stop() {
            return self.end(Err(cause));
        }
        self.part.started();
        match (self.local.clone(), self.op) {
            (PieceMemory::Host(buffers), _) => {
                self.send(buffers, |piece, outcome| piece.end(result(outcome)))
            }
            (PieceMemory::Device { stage, access, .. }, _) => self.borrow(&stage, &access),
        }
    }

    /// Waits for host memory, without holding any of the device's: so a cancelled or late piece ends in line.
    fn borrow(self, stage: &Arc<dyn Stage>, access: &Arc<Access>) {
        let core = Arc::clone(&self.core);
        let (bytes, deadline) = (self.bytes, self.deadline);
        let place = (
            self.part.batch(),
            core.next_number.fetch_add(1, Ordering::Relaxed),
        );
        lock(&core.waiting).insert(place, self);
        let again = Arc::clone(&core);
        let free = Box::new(move |_turn| {
            if let Some(piece) = again.leave(place) {
                piece.begin();
            }
        });
        let staged = stage.lend(access, bytes, deadline, free);
        let Some(staged) = staged else {
            // Checked again, now that a cancellation would find it.
            let vain = lock(&core.waiting)
                .get(&place)
                .is_some_and(|piece| piece.stop().is_err());
            if vain && let Some(piece) = core.leave(place) {
                piece.begin();
            }
            return;
        };
        let Some(piece) = core.leave(place) else {
            return;
        };
        match piece.op {
            Op::Write => piece.load(staged),
            Op::Read => piece.receive(staged),
        }
    }

    /// A write: first out of the device, then over the wire.
    fn load(self, staged: Staged) {
        let PieceMemory::Device {
            stage,
            access,
            offset,
        } = self.local.clone()
        else {
            return;
        };
        let bytes = self.bytes;
        let loaded = move |loaded: Result<Staged, StageError>| match loaded {
            Ok(staged) => {
                let buffers = loan(&staged, self.bytes);
                self.send(buffers, move |piece, outcome| {
                    drop(staged);
                    piece.end(result(outcome));
                });
            }
            Err(error) => self.end(Err(Cause::Memory(error.to_string()))),
        };
        stage.load(access, offset, staged, bytes, Box::new(loaded));
    }

    /// A read: first over the wire, then into the device.
    fn receive(self, staged: Staged) {
        let buffers = loan(&staged, self.bytes);
        self.send(buffers, move |piece, outcome| {
            match (result(outcome), piece.local.clone()) {
                (
                    Ok(()),
                    PieceMemory::Device {
                        stage,
                        access,
                        offset,
                    },
                ) => {
                    let bytes = piece.bytes;
                    let stored = move |stored: Result<(), StageError>| {
                        piece.end(stored.map_err(|error| Cause::Memory(error.to_string())));
                    };
                    stage.store(access, offset, staged, bytes, Box::new(stored));
                }
                (result, _) => {
                    drop(staged);
                    piece.end(result);
                }
            }
        });
    }

    /// Sends a piece over the wire, as a batch of its own; `then` runs when nothing touches the memory any more.
    fn send(self, buffers: Buffers, then: impl FnOnce(Piece, Option<Outcome>) + Send + 'static) {
        if let Err(cause) = self.stop() {
            drop(buffers);
            return then(
                self,
                Some(Outcome {
                    bytes: 0,
                    cause: Some(cause),
                }),
            );
        }
        let outer = self.part.batch();
        let (wire, segment) = (Arc::clone(&self.wire), Arc::clone(&self.segment));
        let cancel = Arc::clone(&wire);
        let (batch, mut parts) = Batch::new(1, None, move |batch| cancel.cancel(batch));
        let Some(part) = parts.pop() else { return };
        let core = Arc::clone(&self.core);
        lock(&core.on_wire)
            .entry(outer)
            .or_default()
            .push(batch.clone());
        let Self {
            op,
            remote,
            deadline,
            priority,
            ..
        } = self;
        // Looked at again now that a cancellation would find the batch.
        let late = self.part.is_cancelled();
        let ended = batch.clone();
        let hook = Hook::Call(Box::new(move || {
            {
                let mut on_wire = lock(&self.core.on_wire);
                if let Some(batches) = on_wire.get_mut(&outer) {
                    batches.retain(|batch| batch.id() != ended.id());
                    if batches.is_empty() {
                        on_wire.remove(&outer);
                    }
                }
            }
            then(self, ended.outcome(0));
        }));
        let hooked = batch.hook(hook);
        debug_assert!(hooked.is_ok(), "nobody else knows the batch");
        let job = Job {
            op,
            buffers,
            remote,
            deadline,
            priority,
            part,
        };
        if late {
            let Job { buffers, part, .. } = job;
            drop(buffers);
            return part.fail(Cause::Cancelled);
        }
        // Never waits: this may be the event loop, or the thread of the device, that would make room. Pinned memory
        // bounds the pieces.
        for job in wire.submit(
            &segment,
            Submission {
                jobs: vec![job],
                when_full: WhenFull::Exceed,
            },
        ) {
            let Job { buffers, part, .. } = job;
            drop(buffers);
            part.fail(Cause::NoMover(segment.name.clone()));
        }
    }

    fn stop(&self) -> Result<(), Cause> {
        if self.core.closed.load(Ordering::Acquire) {
            return Err(Cause::Closed);
        }
        if self.part.is_cancelled() {
            return Err(Cause::Cancelled);
        }
        // After the failure of one piece the others need not be carried.
        if self.whole.failed.load(Ordering::Relaxed) {
            return Err(Cause::Cancelled);
        }
        match now() >= self.deadline {
            true => Err(Cause::TimedOut(Deadline::Total)),
            false => Ok(()),
        }
    }

    pub(super) fn end(self, result: Result<(), Cause>) {
        let Self {
            core,
            local,
            part,
            whole,
            bytes,
            ..
        } = self;
        drop(local);
        let closed = core.closed.load(Ordering::Acquire) && !part.is_cancelled();
        match result {
            Err(Cause::Cancelled) if closed => {
                whole.failed.store(true, Ordering::Relaxed);
                part.fail(Cause::Closed);
            }
            Ok(()) => part.complete(bytes as u64),
            Err(cause) => {
                whole.failed.store(true, Ordering::Relaxed);
                part.fail(cause);
            }
        }
    }
}

/// The bytes of a loan that a piece uses.
fn loan(staged: &Staged, bytes: usize) -> Buffers {
    // SAFETY: the loan is at least as long and nobody else's; it is kept until the request on it has ended, and with it
    // these buffers.
    unsafe { Buffers::borrowed(staged.start().as_ptr(), bytes) }
}

fn result(outcome: Option<Outcome>) -> Result<(), Cause> {
    match outcome.map(|outcome| outcome.cause) {
        Some(None) => Ok(()),
        Some(Some(cause)) => Err(cause),
        None => Err(Cause::Dropped),
    }
}
