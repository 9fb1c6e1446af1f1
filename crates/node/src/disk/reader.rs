use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slackwater_base::{BLOCK_BYTES, Checksum};
use slackwater_tier::io::{DiskError, FileId};
use slackwater_wait::Site;

use super::directory::Directory;
use super::job::Job;
use super::ring::{Landed, Ring};
use super::scratch::{Buffers, Scratch};
use super::transfer::{Room, Transfer, errno_error, straight_bytes};

/// A lone record from this length on is read in two halves: below, what the overlap saves is less than what the ring
/// costs.
const HALVED_BYTES_MIN: usize = 1 << 20;

/// Most bytes of a run: longer reads are no cheaper by the byte, and several at once let the checksums of one be taken while
/// the next is under way.
const RUN_BYTES_MAX: u64 = 512 << 10;

/// Rings kept for later batches; further ones at the same time are made and dropped.
const RINGS_KEPT: usize = 8;

/// Reads of records by the threads that want them: a caller drives its own read, one by a blocking call and several
/// through a ring, and nothing touches its buffers after the call.
pub struct Readers {
    directory: Arc<Directory>,
    depth: usize,
    /// `None` when reads are done by blocking calls alone.
    rings: Option<Mutex<Vec<Ring>>>,
    buffers: Arc<Buffers>,
    reads: AtomicU64,
    bytes: AtomicU64,
}

/// One record to be read.
#[derive(Debug)]
pub struct RecordRead<'a> {
    /// Its file.
    pub file: FileId,
    /// Where its bytes begin.
    pub offset: u64,
    /// Its length with padding, whole blocks.
    pub bytes: u64,
    /// Where the value goes: exactly its length.
    pub into: &'a mut [u8],
    /// The checksum of what arrived, once it was read.
    pub result: Option<Result<Checksum, DiskError>>,
    /// How long that took.
    pub took: Duration,
    /// How long it waited before for the other reads of its call.
    pub waited: Duration,
}

impl Readers {
    pub(super) fn new(
        directory: Arc<Directory>,
        uring: bool,
        depth: usize,
        buffer_bytes: usize,
    ) -> Self {
        Self {
            directory,
            depth,
            rings: uring.then(Mutex::default),
            buffers: Buffers::new(buffer_bytes),
            reads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Reads of one call that may be under way at once.
    #[cfg(test)]
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Most bytes that reads borrow beside their callers' buffers.
    #[cfg(test)]
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffers.limit()
    }

    /// Reads all of them; each gets its result. Records that lie one after another, as those of a chain often do, are read
    /// together: the device and the kernel take about as long for a long read as for a short one.
    pub fn read(&self, records: &mut [RecordRead<'_>]) {
        self.reads
            .fetch_add(records.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(
            records.iter().map(|record| record.bytes).sum(),
            Ordering::Relaxed,
        );
        if let [record] = records
            && self.rings.is_some()
            && record.into.len() >= HALVED_BYTES_MIN
        {
            return self.read_in_halves(record);
        }
        let runs = runs(records);
        let again = match runs.as_slice() {
            [] | [_] => self.read_by_calls(records, &runs),
            _ if self.rings.is_some() => self.read_through_ring(records, &runs),
            _ => self.read_by_calls(records, &runs),
        };
        // Of a run that failed nobody knows which record cannot be read.
        let alone: Vec<Run> = again.into_iter().map(|at| vec![at]).collect();
        self.read_by_calls(records, &alone);
    }

    /// Records read since the start.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// How reads wait for memory.
    pub fn site(&self) -> &Site {
        &self.buffers.site
    }

    /// Bytes read since the start, padding included.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Reads runs one after the other; gives the records of those that failed and are longer than one.
    fn read_by_calls(&self, records: &mut [RecordRead<'_>], runs: &[Run]) -> Vec<usize> {
        let (batch, mut again) = (Instant::now(), Vec::new());
        for run in runs {
            let begun = Instant::now();
            let scratch = self.buffers.take(scratch_bytes(records, run));
            // SAFETY: what the records borrow is borrowed for longer than this loop turn, in which the job ends.
            let transfer = unsafe { self.transfer(records, run, scratch) };
            let sums = transfer.and_then(|transfer| {
                let mut job = Job::Move(transfer);
                job.finish().map(|()| job.settle())
            });
            let times = (begun - batch, begun.elapsed());
            give(records, run, sums, times, &mut again);
        }
        again
    }

    /// The first half is checksummed while the second is under way.
    fn read_in_halves(&self, record: &mut RecordRead<'_>) {
        let RecordRead {
            file,
            offset,
            bytes,
            ..
        } = *record;
        let begun = Instant::now();
        let first = (record.into.len() as u64 / 2).next_multiple_of(BLOCK_BYTES);
        let (head, tail) = record.into.split_at_mut(first as usize);
        let tail_bytes = tail.len() as u64;
        let half = |offset, bytes, into| RecordRead {
            file,
            offset,
            bytes,
            into,
            result: None,
            took: Duration::ZERO,
            waited: Duration::ZERO,
        };
        let mut halves = [
            half(offset, first, head),
            half(offset + first, bytes.saturating_sub(first), tail),
        ];
        self.read_through_ring(&mut halves, &[vec![0], vec![1]]);
        let [head, tail] = halves.map(|half| half.result.expect("every record gets its result"));
        record.result = Some(head.and_then(|head| Ok(head.followed_by(tail?, tail_bytes))));
        record.took = begun.elapsed();
    }

    /// As [`Readers::read_by_calls`], with many under way at once.
    fn read_through_ring(&self, records: &mut [RecordRead<'_>], runs: &[Run]) -> Vec<usize> {
        let Some(mut ring) = self.take_ring() else {
            return self.read_by_calls(records, runs);
        };
        let (mut next, mut landed, mut again) = (0, Vec::new(), Vec::new());
        let batch = Instant::now();
        let mut begun = vec![batch; runs.len()];
        while next < runs.len() || !ring.is_empty() {
            while next < runs.len() && ring.room() > 0 {
                let run = &runs[next];
                let want = scratch_bytes(records, run);
                // Waiting for another thread's buffer while holding some could be waiting for each other.
                let scratch = if ring.is_empty() {
                    Some(self.buffers.take(want))
                } else {
                    self.buffers.try_take(want)
                };
                let Some(scratch) = scratch else { break };
                begun[next] = Instant::now();
                // SAFETY: what the records borrow is borrowed for longer than this call, in which every started job ends:
                // by landing, or when the ring is dropped, which waits for it.
                match unsafe { self.transfer(records, run, scratch) } {
                    Ok(transfer) => ring.start(next as u64, Job::Move(transfer)),
                    Err(error) => {
                        let times = (begun[next] - batch, Duration::ZERO);
                        give(records, run, Err(error), times, &mut again);
                    }
                }
                next += 1;
            }
            if ring.is_empty() {
                continue;
            }
            if let Err(error) = ring.turn(&mut landed) {
                tracing::warn!(%error, "io_uring failed; the batch is read again by blocking calls");
                // What is in flight writes to the same buffers: it has landed when this returns.
                drop(ring);
                return self.read_by_calls(records, runs);
            }
            for Landed { tag, job, result } in landed.drain(..) {
                let run = tag as usize;
                let sums = result.map(|()| job.settle());
                let times = (begun[run] - batch, begun[run].elapsed());
                give(records, &runs[run], sums, times, &mut again);
            }
        }
        self.give_ring_back(ring);
        again
    }

    /// # Safety
    /// What the records of the run borrow stays borrowed until the transfer is dropped.
    unsafe fn transfer(
        &self,
        records: &mut [RecordRead<'_>],
        run: &Run,
        scratch: Scratch,
    ) -> Result<Transfer, DiskError> {
        let RecordRead { file, offset, .. } = records[run[0]];
        let file = self.directory.open(file).map_err(errno_error)?;
        let mut rooms = Vec::with_capacity(run.len());
        for at in run {
            let RecordRead { into, bytes, .. } = &mut records[*at];
            if into.len() as u64 > *bytes {
                return Err(DiskError::Missing);
            }
            rooms.push(Room {
                start: into.as_mut_ptr(),
                length: into.len(),
                bytes: *bytes as usize,
            });
        }
        // SAFETY: each buffer is valid for its own length, and borrowed alone by the caller's promise.
        Ok(unsafe { Transfer::read_to(file, offset, rooms, scratch) })
    }

    /// Has the next batch go through a ring that fails; false when no ring is used.
    #[cfg(test)]
    pub(super) fn fail_ring(&self, failure: super::ring::Failure) -> bool {
        let Some(mut ring) = self.take_ring() else {
            return false;
        };
        ring.fail(failure);
        self.give_ring_back(ring);
        true
    }

    /// Buffers that a read has at the moment.
    #[cfg(test)]
    pub(super) fn buffers_given_out(&self) -> usize {
        self.buffers.given_out()
    }

    fn take_ring(&self) -> Option<Ring> {
        let kept = self
            .rings
            .as_ref()?
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        kept.or_else(|| {
            let made = Ring::new(self.depth);
            made.inspect_err(
                |error| tracing::warn!(%error, "no further io_uring: a batch is read one by one"),
            )
            .ok()
        })
    }

    fn give_ring_back(&self, ring: Ring) {
        let Some(rings) = &self.rings else { return };
        let mut rings = rings.lock().unwrap_or_else(PoisonError::into_inner);
        if rings.len() < RINGS_KEPT {
            rings.push(ring);
        }
    }
}

/// Records that lie one after another, by their places in the batch.
type Run = Vec<usize>;

/// The records in the order of the device, in runs that are read as one.
fn runs(records: &[RecordRead<'_>]) -> Vec<Run> {
    let mut order: Vec<usize> = (0..records.len()).collect();
    order.sort_by_key(|at| (records[*at].file, records[*at].offset));
    let mut runs: Vec<Run> = Vec::new();
    let mut bytes = 0;
    for at in order {
        let record = &records[at];
        let follows = runs.last().and_then(|run| run.last()).is_some_and(|last| {
            let last = &records[*last];
            last.file == record.file && last.offset + last.bytes == record.offset
        });
        match runs.last_mut() {
            Some(run) if follows && bytes + record.bytes <= RUN_BYTES_MAX => {
                bytes += record.bytes;
                run.push(at);
            }
            _ => {
                bytes = record.bytes;
                runs.push(vec![at]);
            }
        }
    }
    runs
}

/// Gives the records of a run their outcome. Where it failed, and is longer than one, they are to be read again.
fn give(
    records: &mut [RecordRead<'_>],
    run: &Run,
    sums: Result<Vec<Checksum>, DiskError>,
    (waited, took): (Duration, Duration),
    again: &mut Vec<usize>,
) {
    let mut end = |at: usize, result| {
        let record = &mut records[at];
        (record.result, record.waited, record.took) = (Some(result), waited, took);
    };
    match sums {
        Ok(sums) => {
            for (at, sum) in run.iter().zip(sums) {
                end(*at, Ok(sum));
            }
        }
        Err(_) if run.len() > 1 => again.extend(run),
        Err(error) => {
            for at in run {
                end(*at, Err(error));
            }
        }
    }
}

/// Scratch memory that the read of a run needs beside the callers' buffers.
fn scratch_bytes(records: &[RecordRead<'_>], run: &Run) -> usize {
    let one = |at: &usize| {
        let record = &records[*at];
        let bytes = record.bytes as usize;
        bytes - straight_bytes(record.into.as_ptr(), record.into.len()).min(bytes)
    };
    run.iter().map(one).sum()
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
