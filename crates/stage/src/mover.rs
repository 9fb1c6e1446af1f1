use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_engine::{
    Abilities, Access, Batch, BatchId, Buffers, Cause, Deadline, Flow, FlowGuard, Job, Mover,
    Notice, Outcome, Part, PeerStats, Priority, Remote, Revocation, Span, Stage, StageError,
    Staged, Submission, WhenFull,
};
use slackwater_wait::{Hook, now};
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Op, Segment};

/// Carries requests whose local memory is that of a device: a chunk at a time goes between the device and pinned
/// memory while others are on the wire, which is that of another mover.
///
/// It needs nothing of that mover but its contract, and of the device but its [`Stage`], so it works over TCP as over
/// shared memory, and on the software device as on a GPU.
pub struct StagedMover {
    core: Arc<Core>,
}

struct Core {
    /// The movers that carry the chunks, the preferred one first.
    wires: Vec<Arc<dyn Mover>>,
    lines: Mutex<BTreeMap<Incarnation, Arc<PeerFlow>>>,
    /// What is on the wire, by the batch that it is a part of.
    on_wire: Mutex<BTreeMap<BatchId, Vec<Batch>>>,
    /// The pieces that wait for host memory, by the batch that they are a part of and a number of their own.
    waiting: Mutex<BTreeMap<(BatchId, u64), Piece>>,
    next_number: AtomicU64,
    closed: AtomicBool,
}

/// The most unfinished jobs to one peer.
const JOBS_MAX: usize = 65_536;

/// How long closing waits for copies under way.
const CLOSING: Duration = Duration::from_secs(2);

/// What is under way with one peer.
#[derive(Default)]
struct PeerFlow {
    flow: Arc<Flow>,
    stats: Mutex<PeerStats>,
}

/// A job, as long as one of its pieces is not over.
struct Whole {
    line: Arc<PeerFlow>,
    op: Op,
    bytes: u64,
    failed: AtomicBool,
    _ticket: FlowGuard,
}

/// What goes over the wire as one request: a chunk of device memory, or a range of host memory beside it.
struct Piece {
    core: Arc<Core>,
    wire: Arc<dyn Mover>,
    segment: Arc<Segment>,
    op: Op,
    local: PieceMemory,
    bytes: usize,
    remote: Remote,
    deadline: Instant,
    priority: Priority,
    part: Part,
    whole: Arc<Whole>,
}

/// Local memory of a piece.
#[derive(Clone)]
enum PieceMemory {
    Host(Buffers),
    Device {
        stage: Arc<dyn Stage>,
        access: Arc<Access>,
        offset: u64,
    },
}

impl StagedMover {
    /// Staging over these movers, the preferred one first.
    #[must_use]
    pub fn over(wires: Vec<Arc<dyn Mover>>) -> Self {
        Self {
            core: Arc::new(Core {
                wires,
                lines: Mutex::default(),
                on_wire: Mutex::default(),
                waiting: Mutex::default(),
                next_number: AtomicU64::new(0),
                closed: AtomicBool::new(false),
            }),
        }
    }
}

impl Core {
    fn line(&self, segment: &Segment) -> Arc<PeerFlow> {
        Arc::clone(lock(&self.lines).entry(segment.incarnation).or_default())
    }

    /// Takes a waiting piece, if it is still there.
    fn leave(&self, place: (BatchId, u64)) -> Option<Piece> {
        lock(&self.waiting).remove(&place)
    }

    fn wire(&self, segment: &Segment) -> Option<&Arc<dyn Mover>> {
        self.wires.iter().find(|wire| wire.reaches(segment))
    }

    /// Cuts a job into pieces; gives it back if its memory has no stage.
    fn cut(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        wire: &Arc<dyn Mover>,
        job: Job,
    ) -> Result<Vec<Piece>, Box<Job>> {
        let mut cuts: Vec<(PieceMemory, u64, usize)> = Vec::new();
        let mut at = 0;
        for span in job.buffers.spans() {
            let Some((stage, access)) = staged(span) else {
                if !span.is_host() {
                    return Err(Box::new(job));
                }
                cuts.push((
                    PieceMemory::Host(job.buffers.cut(at, span.bytes() as u64)),
                    at,
                    span.bytes(),
                ));
                at += span.bytes() as u64;
                continue;
            };
            let start = (span.start().addr() - access.start().addr()) as u64;
            let mut done = 0;
            while done < span.bytes() {
                let bytes = stage.chunk_bytes().min(span.bytes() - done);
                let local = PieceMemory::Device {
                    stage: Arc::clone(&stage),
                    access: Arc::clone(&access),
                    offset: start + done as u64,
                };
                cuts.push((local, at, bytes));
                done += bytes;
                at += bytes as u64;
            }
        }
        let line = self.line(segment);
        let Job {
            op,
            buffers,
            remote,
            deadline,
            priority,
            part,
        } = job;
        let whole = Arc::new(Whole {
            op,
            bytes: buffers.bytes(),
            failed: AtomicBool::new(false),
            _ticket: line.flow.begin(),
            line,
        });
        let parts = part.split(cuts.len() as u32);
        let piece = |((local, at, bytes), part)| Piece {
            core: Arc::clone(self),
            wire: Arc::clone(wire),
            segment: Arc::clone(segment),
            op,
            local,
            bytes,
            remote: Remote {
                offset: remote.offset + at,
                ..remote
            },
            deadline,
            priority,
            part,
            whole: Arc::clone(&whole),
        };
        Ok(cuts.into_iter().zip(parts).map(piece).collect())
    }
}

/// The stage of a span of device memory.
fn staged(span: &Span) -> Option<(Arc<dyn Stage>, Arc<Access>)> {
    let access = span.access()?;
    let memory = access.region().memory();
    let stage = memory.stage().filter(|_| !memory.location().is_host())?;
    Some((Arc::clone(stage), Arc::clone(access)))
}

impl Piece {
    fn begin(self) {
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

    fn end(self, result: Result<(), Cause>) {
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

impl Drop for Whole {
    fn drop(&mut self) {
        let mut stats = lock(&self.line.stats);
        match (*self.failed.get_mut(), self.op) {
            (true, _) => stats.failed += 1,
            (false, Op::Read) => {
                (stats.completed, stats.bytes_read) =
                    (stats.completed + 1, stats.bytes_read + self.bytes)
            }
            (false, Op::Write) => {
                (stats.completed, stats.bytes_written) =
                    (stats.completed + 1, stats.bytes_written + self.bytes);
            }
        }
    }
}

impl Mover for StagedMover {
    fn name(&self) -> &'static str {
        "staged"
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            one_sided: false,
            devices: true,
        }
    }

    fn reaches(&self, segment: &Segment) -> bool {
        self.core.wire(segment).is_some()
    }

    /// The accesses are those of jobs under way, which end by themselves.
    fn invalidate(&self, _revoked: &Revocation) {}

    fn submit(&self, segment: &Arc<Segment>, submission: Submission) -> Vec<Job> {
        let Some(wire) = self.core.wire(segment) else {
            return submission.jobs;
        };
        let mut given_back = Vec::new();
        let flow = Arc::clone(&self.core.line(segment).flow);
        for job in submission.jobs {
            if job.buffers.are_host() {
                given_back.push(job);
                continue;
            }
            if let Err(cause) = flow.room(JOBS_MAX, &job, submission.when_full) {
                let Job { buffers, part, .. } = job;
                drop(buffers);
                part.fail(cause);
                continue;
            }
            match self.core.cut(segment, wire, job) {
                Ok(pieces) => pieces.into_iter().for_each(Piece::begin),
                Err(job) => given_back.push(*job),
            }
        }
        given_back
    }

    fn cancel(&self, batch: BatchId) {
        let on_wire = lock(&self.core.on_wire)
            .get(&batch)
            .cloned()
            .unwrap_or_default();
        on_wire.iter().for_each(|batch| {
            batch.cancel();
        });
        let of_batch = (batch, 0)..=(batch, u64::MAX);
        let waiting: Vec<_> = lock(&self.core.waiting)
            .extract_if(of_batch, |_, _| true)
            .collect();
        waiting.into_iter().for_each(|(_, piece)| piece.begin());
    }

    fn fence(&self, segment: &Arc<Segment>, part: Part) {
        let wire = self.core.wire(segment).map(Arc::clone);
        let segment = Arc::clone(segment);
        self.core
            .line(&segment)
            .flow
            .fence(Box::new(move || match wire {
                Some(wire) => wire.fence(&segment, part),
                None => part.complete(0),
            }));
    }

    fn notify(&self, segment: &Arc<Segment>, notice: Notice, part: Part) {
        match self.core.wire(segment) {
            Some(wire) => wire.notify(segment, notice, part),
            None => part.fail(Cause::NoMover(segment.name.clone())),
        }
    }

    fn probe(&self, segment: &Arc<Segment>, deadline: Instant, part: Part) {
        match self.core.wire(segment) {
            Some(wire) => wire.probe(segment, deadline, part),
            None => part.fail(Cause::NoMover(segment.name.clone())),
        }
    }

    fn stats(&self, segment: &Segment) -> PeerStats {
        let Some(line) = lock(&self.core.lines)
            .get(&segment.incarnation)
            .map(Arc::clone)
        else {
            return PeerStats::default();
        };
        let stats = *lock(&line.stats);
        PeerStats {
            active: line.flow.unfinished() as u64,
            ..stats
        }
    }

    fn close(&self) {
        self.core.closed.store(true, Ordering::Release);
        let on_wire: Vec<Batch> = lock(&self.core.on_wire)
            .values()
            .flatten()
            .cloned()
            .collect();
        on_wire.iter().for_each(|batch| {
            batch.cancel();
        });
        let waiting = std::mem::take(&mut *lock(&self.core.waiting));
        waiting.into_values().for_each(Piece::begin);
        // A device that hangs delays the closing only so long; what it still ends then, ends as closed.
        let deadline = now() + CLOSING;
        let lines: Vec<Arc<PeerFlow>> = lock(&self.core.lines).values().map(Arc::clone).collect();
        for line in lines {
            loop {
                let seen = line.flow.seen();
                if line.flow.unfinished() == 0 || !line.flow.wait(seen, deadline) {
                    break;
                }
            }
            // Ends the waits of submitters.
            line.flow.close();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for StagedMover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StagedMover")
            .field("wires", &self.core.wires)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
