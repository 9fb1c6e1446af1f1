use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use slackwater_wait::{Site, now};
use thiserror::Error;

use crate::claim::Chunk;
use crate::member::Member;
use crate::record::add;
use crate::slot::Seat;

/// The urgency of a job: workers search for latency jobs first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// Somebody waits for it right now.
    #[default]
    Latency,
    /// Copies, checksums, encodings: after the others.
    Bulk,
}

/// A kind of job whose tasks cost about the same each time: what the pool learns about it.
///
/// Can be a `static`. With it, claims are made long enough to cost little, and a burst so short that it would be over
/// before a sleeper is awake is run by the caller alone.
#[derive(Debug)]
pub struct Kind {
    name: &'static str,
    /// The average cost of a task in 1/16 nanoseconds; 0 is unknown.
    task_cost: AtomicU64,
    pub(crate) join: Site,
}

/// A claim should last at least this long, so that its own cost of some 20 ns stays about 2 %.
const CLAIM_NANOS_MIN: u64 = 1_000;
/// Longest claim: what a thread has claimed cannot be stolen when the thread loses its CPU.
const CLAIM_NANOS_MAX: u64 = 8_000;

impl Kind {
    /// A kind of which nothing is known.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            task_cost: AtomicU64::new(0),
            join: Site::new(name),
        }
    }

    /// The name given at the start.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How submitters of this kind waited for the others to end.
    #[must_use]
    pub fn join_site(&self) -> &Site {
        &self.join
    }

    /// The learned cost of one task, in nanoseconds; `None` before the first job.
    #[must_use]
    pub fn task_nanos(&self) -> Option<f64> {
        match self.task_cost.load(Ordering::Relaxed) {
            0 => None,
            cost => Some(cost as f64 / 16.0),
        }
    }

    pub(crate) fn chunk(&self) -> Chunk {
        match self.task_cost.load(Ordering::Relaxed) {
            0 => Chunk::UNKNOWN,
            cost => {
                let min = (CLAIM_NANOS_MIN * 16)
                    .div_ceil(cost)
                    .min(u64::from(u32::MAX)) as u32;
                let max = (CLAIM_NANOS_MAX * 16 / cost).min(u64::from(u32::MAX)) as u32;
                Chunk {
                    min,
                    max: max.max(min),
                }
            }
        }
    }

    fn learn(&self, tasks: u64, nanos: u64) {
        let sample = (nanos * 16 / tasks.max(1)).max(1);
        let before = self.task_cost.load(Ordering::Relaxed);
        let after = if before == 0 {
            sample
        } else {
            before - before / 8 + sample.min(before * 4) / 8
        };
        self.task_cost.store(after.max(1), Ordering::Relaxed);
    }
}

/// Asks a job to stop handing out tasks. Tasks under way end normally.
#[derive(Debug, Default)]
pub struct Cancel(AtomicBool);

impl Cancel {
    /// Nothing is cancelled yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Cancels, for good.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The payload of a panic in a task.
pub struct Panic(pub Box<dyn Any + Send>);

impl Panic {
    /// Goes on panicking in this thread.
    pub fn resume(self) -> ! {
        resume_unwind(self.0)
    }

    /// The message, if the payload is one.
    #[must_use]
    pub fn message(&self) -> &str {
        if let Some(text) = self.0.downcast_ref::<&'static str>() {
            return text;
        }
        self.0
            .downcast_ref::<String>()
            .map_or("no message", String::as_str)
    }
}

impl fmt::Debug for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Panic").field(&self.message()).finish()
    }
}

/// Why a job did not run all its tasks.
#[derive(Debug, Error)]
pub enum JobError {
    /// A task panicked; the first payload.
    #[error("a task panicked: {}", .0.message())]
    Panicked(Panic),
    /// It was cancelled.
    #[error("job cancelled")]
    Cancelled,
}

impl JobError {
    /// Goes on panicking if that is what happened.
    pub(crate) fn resume_panic(self) -> Self {
        match self {
            Self::Panicked(panic) => panic.resume(),
            Self::Cancelled => self,
        }
    }
}

/// Keeps the payload of a panic if it is the first.
pub(crate) fn keep_first(first: &mut Option<Panic>, payload: Box<dyn Any + Send>) {
    match first {
        None => *first = Some(Panic(payload)),
        Some(_) => discard(payload),
    }
}

/// Drops the payload of a panic that is not resumed. Its destructor may panic as well; the payload of that panic is
/// leaked, since this could go on without end.
pub(crate) fn discard(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

/// The first panic among participants.
#[derive(Default)]
pub(crate) struct Verdict {
    stopped: AtomicBool,
    /// Indices were left out because the job was cancelled.
    skipped: AtomicBool,
    payload: Mutex<Option<Panic>>,
}

impl Verdict {
    pub(crate) fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Runs `f`; keeps its panic if it is the first.
    pub(crate) fn guard<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(value) => Some(value),
            Err(payload) => {
                self.stopped.store(true, Ordering::Relaxed);
                keep_first(
                    &mut self.payload.lock().unwrap_or_else(PoisonError::into_inner),
                    payload,
                );
                None
            }
        }
    }

    pub(crate) fn into_result(self) -> Result<(), JobError> {
        let payload = self
            .payload
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        match payload {
            Some(panic) => Err(JobError::Panicked(panic)),
            None if self.skipped.into_inner() => Err(JobError::Cancelled),
            None => Ok(()),
        }
    }
}

/// A job over indices: what its participants share, on the submitter's stack.
pub(crate) struct Indexed<'a, I, B, F> {
    pub(crate) init: I,
    pub(crate) body: B,
    pub(crate) finalize: F,
    pub(crate) len: usize,
    /// Real indices for each index that is claimed; 1 unless there are more than 2^32.
    pub(crate) stride: usize,
    pub(crate) kind: Option<&'a Kind>,
    pub(crate) cancel: Option<&'a Cancel>,
    pub(crate) verdict: Verdict,
}

impl<'a, I, B, F> Indexed<'a, I, B, F> {
    /// [`PublishedJob::enter`](crate::slot::PublishedJob::enter) for this kind of job.
    ///
    /// # Safety
    /// `data` points at a live `Self` whose closures may be called from this thread.
    pub(crate) unsafe fn enter<S>(data: *const (), seat: &Seat<'_>) -> bool
    where
        I: Fn(Member) -> S + Sync,
        B: Fn(&mut S, Range<usize>) + Sync,
        F: Fn(S) + Sync,
    {
        // SAFETY: the caller's promise.
        unsafe { &*data.cast::<Self>() }.participate(seat)
    }

    /// `init`, chunks until none is left, `finalize`. A panic in any of them ends the job for all.
    fn participate<S>(&self, seat: &Seat<'_>) -> bool
    where
        I: Fn(Member) -> S + Sync,
        B: Fn(&mut S, Range<usize>) + Sync,
        F: Fn(S) + Sync,
    {
        let mut share = Share::new(seat, self.kind.map_or(Chunk::UNKNOWN, Kind::chunk));
        let Some(mut range) = share.next() else {
            return false;
        };
        let inside = seat.member.enter();
        let start = now();
        if let Some(mut state) = self.verdict.guard(|| (self.init)(seat.member)) {
            loop {
                if self.is_over() {
                    seat.stop();
                    break;
                }
                share.tasks += range.len() as u64;
                let real = self.real(range);
                if self
                    .verdict
                    .guard(|| (self.body)(&mut state, real))
                    .is_none()
                {
                    seat.stop();
                    break;
                }
                match share.next() {
                    Some(next) => range = next,
                    None => break,
                }
            }
            self.verdict.guard(|| (self.finalize)(state));
        }
        let busy_nanos = now().since(start).as_nanos() as u64;
        drop(inside);
        share.record(busy_nanos);
        if let Some(kind) = self.kind {
            kind.learn(share.tasks, busy_nanos);
        }
        true
    }

    /// Whether what was claimed shall not run.
    fn is_over(&self) -> bool {
        if self.cancel.is_some_and(Cancel::is_cancelled) {
            self.verdict.skipped.store(true, Ordering::Relaxed);
            return true;
        }
        self.verdict.stopped()
    }

    fn real(&self, range: Range<u32>) -> Range<usize> {
        let end = (range.end as usize)
            .saturating_mul(self.stride)
            .min(self.len);
        range.start as usize * self.stride..end
    }

    pub(crate) fn into_result(self) -> Result<(), JobError> {
        self.verdict.into_result()
    }
}

/// What one participant claims of a job, and how often.
struct Share<'a> {
    seat: &'a Seat<'a>,
    chunk: Chunk,
    tasks: u64,
    claims: u64,
    steals: u64,
    steal_nanos: u64,
    /// The first and the last read of the participant are counted from the start.
    clock_reads: u64,
}

impl<'a> Share<'a> {
    fn new(seat: &'a Seat<'a>, chunk: Chunk) -> Self {
        Self {
            seat,
            chunk,
            tasks: 0,
            claims: 0,
            steals: 0,
            steal_nanos: 0,
            clock_reads: 2,
        }
    }

    fn next(&mut self) -> Option<Range<u32>> {
        if let Some(range) = self.seat.claim(self.chunk) {
            self.claims += 1;
            return Some(range);
        }
        // Steals are few, about the logarithm of the indices, so they can be timed.
        let start = now();
        let range = self.seat.steal(self.chunk);
        self.steal_nanos += now().since(start).as_nanos() as u64;
        self.clock_reads += 2;
        self.claims += u64::from(range.is_some());
        self.steals += u64::from(range.is_some());
        range
    }

    fn record(&self, busy_nanos: u64) {
        let record = self.seat.record;
        add(&record.jobs, 1);
        add(&record.busy_nanos, busy_nanos);
        add(&record.tasks, self.tasks);
        add(&record.claims, self.claims);
        add(&record.steals, self.steals);
        add(&record.steal_nanos, self.steal_nanos);
        add(&record.clock_reads, self.clock_reads);
    }
}
