mod piece;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_engine::{
    Abilities, Access, Batch, BatchId, Cause, Flow, FlowGuard, Job, Mover, Notice, Part, PeerStats,
    Remote, Revocation, Span, Stage, Submission,
};
use slackwater_wait::now;
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Op, Segment};

use piece::{Piece, PieceMemory};

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
