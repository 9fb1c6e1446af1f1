use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use slackwater_wait::current_cpu;

use crate::claim::{Chunk, Ranges};
use crate::door::Door;
use crate::member::Member;
use crate::record::Record;
use crate::sync::UnsafeCell;

/// A job as workers see it: where to enter and with what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishedJob {
    pub(crate) data: *const (),
    /// Takes part in the job; says whether there was anything to do.
    ///
    /// # Safety
    /// `data` is what was published beside it, and the participant is inside the door (or is the submitter).
    pub(crate) enter: unsafe fn(data: *const (), seat: &Seat<'_>) -> bool,
    /// The first index of this slot's part of the job.
    pub(crate) base: u32,
    /// Participants in all.
    pub(crate) seats: usize,
    /// More may be to do later: a participant that finds nothing may come again.
    pub(crate) lasting: bool,
}

/// Exists while others may use what a published job borrows. The borrow must not end by unwinding: what the closures of a
/// job do is caught, and should anything else panic (a strategy of waiting can be the user's own), the process ends.
#[derive(Debug)]
pub(crate) struct Borrowed(());

impl Borrowed {
    pub(crate) fn begin() -> Self {
        Self(())
    }

    /// Nobody uses it any more.
    pub(crate) fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// A place where one job at a time is published.
#[derive(Debug)]
pub(crate) struct JobSlot {
    pub(crate) door: Door,
    pub(crate) ranges: Ranges,
    /// The CPU on which the job was published.
    submitter_cpu: AtomicU32,
    work: UnsafeCell<Option<PublishedJob>>,
}

// SAFETY: `work` is written only by the owner of the slot while the door is closed and no participant is inside, and
// read only from inside; the door's word orders the two. The pointers in it are shared between threads by the
// submitter's promise that what they point at may be.
unsafe impl Sync for JobSlot {}
// SAFETY: as above.
unsafe impl Send for JobSlot {}

impl JobSlot {
    pub(crate) fn new(seats: usize) -> Self {
        Self {
            door: Door::new(),
            ranges: Ranges::new(seats),
            submitter_cpu: AtomicU32::new(0),
            work: UnsafeCell::new(None),
        }
    }

    /// Publishes a job of `len` indices with `places` for workers.
    ///
    /// # Safety
    /// - The caller owns the slot: it took it from the free ones and has not published since.
    /// - What `work` points at stays valid, and may be shared between threads, until the door was closed and found empty.
    pub(crate) unsafe fn publish(&self, work: PublishedJob, len: u32, places: usize) {
        self.ranges.deal(len, work.seats);
        self.submitter_cpu
            .store(current_cpu() as u32, Ordering::Relaxed);
        // SAFETY: the caller owns the slot, so the door is closed and no thread reads.
        self.work.with_mut(|cell| unsafe { *cell = Some(work) });
        self.door.open(places);
    }

    /// The CPU on which the job was published; a hint.
    pub(crate) fn submitter_cpu(&self) -> usize {
        self.submitter_cpu.load(Ordering::Relaxed) as usize
    }

    /// The published job.
    ///
    /// # Safety
    /// The caller is inside the door, or published the job.
    pub(crate) unsafe fn work(&self) -> PublishedJob {
        // SAFETY: no thread writes while a participant is inside.
        let work = self.work.with(|cell| unsafe { *cell });
        work.expect("a door opens after its work was written")
    }
}

/// A participant's place in a job.
#[derive(Debug)]
pub(crate) struct Seat<'a> {
    pub(crate) from: Source<'a>,
    pub(crate) base: u32,
    pub(crate) member: Member,
    pub(crate) record: &'a Record,
}

/// Where a participant's indices come from.
#[derive(Debug)]
pub(crate) enum Source<'a> {
    /// Dealt and stolen.
    Shared {
        ranges: &'a Ranges,
        seat: usize,
        among: usize,
    },
    /// The whole range for one participant.
    Alone { left: Cell<(u32, u32)> },
}

impl Seat<'_> {
    /// The next of its own indices.
    pub(crate) fn claim(&self, chunk: Chunk) -> Option<Range<u32>> {
        let range = match &self.from {
            Source::Shared { ranges, seat, .. } => ranges.own(*seat, chunk)?,
            Source::Alone { left } => {
                let (start, end) = left.get();
                if start == end {
                    return None;
                }
                let middle = start + chunk.of(&(start..end));
                left.set((middle, end));
                start..middle
            }
        };
        Some(self.based(range))
    }

    /// Steals indices of another participant.
    pub(crate) fn steal(&self, chunk: Chunk) -> Option<Range<u32>> {
        match &self.from {
            Source::Shared {
                ranges,
                seat,
                among,
            } => Some(self.based(ranges.steal(*seat, *among, chunk)?)),
            Source::Alone { .. } => None,
        }
    }

    fn based(&self, range: Range<u32>) -> Range<u32> {
        range.start + self.base..range.end + self.base
    }

    /// Takes back the indices that are not claimed yet.
    pub(crate) fn stop(&self) {
        match &self.from {
            Source::Shared { ranges, .. } => ranges.clear(),
            Source::Alone { left } => left.set((0, 0)),
        }
    }
}
