use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slackwater_base::{BLOCK_BYTES, Checksum};
use slackwater_tier::io::{DiskError, DiskOutcome, FileId};
use slackwater_wait::Site;

use super::directory::Directory;
use super::job::Job;
use super::ring::{Landed, Ring};
use super::scratch::{Buffers, Scratch};
use super::transfer::{Place, Transfer, errno_error, straight_bytes};

/// A lone record from this length on is read in two halves: below, what the overlap saves is less than what the ring
/// costs.
const HALVED_BYTES_MIN: usize = 1 << 20;

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

    /// Reads all of them; each gets its result.
    pub fn read(&self, records: &mut [RecordRead<'_>]) {
        self.reads
            .fetch_add(records.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(
            records.iter().map(|record| record.bytes).sum(),
            Ordering::Relaxed,
        );
        match records {
            [record] if self.rings.is_some() && record.into.len() >= HALVED_BYTES_MIN => {
                self.read_in_halves(record)
            }
            [] | [_] => self.read_alone(records),
            _ if self.rings.is_some() => self.read_through_ring(records),
            _ => self.read_alone(records),
        }
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

    fn read_alone(&self, records: &mut [RecordRead<'_>]) {
        for record in records {
            let begun = Instant::now();
            let scratch = self.buffers.take(scratch_bytes(record));
            // SAFETY: `record.into` is borrowed for longer than this loop turn, in which the job ends.
            let transfer = unsafe { self.transfer(record, scratch) };
            let result = transfer.and_then(|transfer| Job::Move(transfer).finish());
            record.result = Some(result.map(checksum));
            record.took = begun.elapsed();
        }
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
        };
        let mut halves = [
            half(offset, first, head),
            half(offset + first, bytes.saturating_sub(first), tail),
        ];
        self.read_through_ring(&mut halves);
        let [head, tail] = halves.map(|half| half.result.expect("every record gets its result"));
        record.result = Some(head.and_then(|head| Ok(head.followed_by(tail?, tail_bytes))));
        record.took = begun.elapsed();
    }

    fn read_through_ring(&self, records: &mut [RecordRead<'_>]) {
        let Some(mut ring) = self.take_ring() else {
            return self.read_alone(records);
        };
        let (mut next, mut landed) = (0, Vec::new());
        let mut begun = vec![Instant::now(); records.len()];
        while next < records.len() || !ring.is_empty() {
            while next < records.len() && ring.room() > 0 {
                let record = &mut records[next];
                let want = scratch_bytes(record);
                // Waiting for another thread's buffer while holding some could be waiting for each other.
                let scratch = if ring.is_empty() {
                    Some(self.buffers.take(want))
                } else {
                    self.buffers.try_take(want)
                };
                let Some(scratch) = scratch else { break };
                begun[next] = Instant::now();
                // SAFETY: `record.into` is borrowed for longer than this call, in which every started job ends: by
                // landing, or when the ring is dropped, which waits for it.
                match unsafe { self.transfer(record, scratch) } {
                    Ok(transfer) => ring.start(next as u64, Job::Move(transfer)),
                    Err(error) => record.result = Some(Err(error)),
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
                return self.read_alone(records);
            }
            for Landed { tag, result } in landed.drain(..) {
                let record = &mut records[tag as usize];
                record.result = Some(result.map(checksum));
                record.took = begun[tag as usize].elapsed();
            }
        }
        self.give_ring_back(ring);
    }

    /// # Safety
    /// `record.into` stays borrowed until the transfer is dropped.
    unsafe fn transfer(
        &self,
        record: &mut RecordRead<'_>,
        scratch: Scratch,
    ) -> Result<Transfer, DiskError> {
        let file = self.directory.open(record.file).map_err(errno_error)?;
        let length = record.into.len() as u64;
        if length > record.bytes {
            return Err(DiskError::Missing);
        }
        let place = Place {
            offset: record.offset,
            bytes: record.bytes,
            length,
        };
        // SAFETY: the buffer is valid for its own length, and borrowed alone by the caller's promise.
        Ok(unsafe { Transfer::read_to(file, place, record.into.as_mut_ptr(), scratch) })
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

fn checksum(outcome: DiskOutcome) -> Checksum {
    match outcome {
        DiskOutcome::Read { checksum, .. } => checksum,
        DiskOutcome::Done => unreachable!("the outcome of a read carries a checksum"),
    }
}

/// Scratch memory that the read of this record needs beside the caller's buffer.
fn scratch_bytes(record: &RecordRead<'_>) -> usize {
    record.bytes as usize
        - straight_bytes(record.into.as_ptr(), record.into.len()).min(record.bytes as usize)
}
