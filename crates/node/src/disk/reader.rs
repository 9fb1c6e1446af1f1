use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slackwater_base::Checksum;
use slackwater_tier::io::{DiskError, DiskOutcome, FileId};

use super::buffer::AlignedBuffer;
use super::directory::Directory;
use super::job::Job;
use super::ring::{Landed, Ring};
use super::transfer::{Place, Transfer, errno_error, straight_bytes};

/// Rings kept for later batches; further ones at the same time are made and dropped.
const RINGS_KEPT: usize = 8;

/// Reads of records by the threads that want them: a caller drives its own read, one by a blocking call and several
/// through a ring, and nothing touches its buffers after the call.
pub struct Readers {
    directory: Arc<Directory>,
    depth: usize,
    /// `None` when reads are done by blocking calls alone.
    rings: Option<Mutex<Vec<Ring>>>,
    buffers: Buffers,
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
    pub(super) fn new(directory: Arc<Directory>, uring: bool, depth: usize, buffer_bytes: usize) -> Self {
        Self {
            directory,
            depth,
            rings: uring.then(Mutex::default),
            buffers: Buffers { limit: buffer_bytes, state: Mutex::default(), given_back: Condvar::new() },
            reads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Reads all of them; each gets its result.
    pub fn read(&self, records: &mut [RecordRead<'_>]) {
        self.reads.fetch_add(records.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(records.iter().map(|record| record.bytes).sum(), Ordering::Relaxed);
        if records.len() > 1 && self.rings.is_some() {
            self.read_through_ring(records);
        } else {
            self.read_alone(records);
        }
    }

    /// Records read since the start.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
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
            let result = match unsafe { self.transfer(record, scratch) } {
                Ok(transfer) => {
                    let mut job = Job::Move(transfer);
                    let result = job.finish();
                    self.take_back(job);
                    result
                }
                Err(error) => Err(error),
            };
            record.result = Some(result.map(checksum));
            record.took = begun.elapsed();
        }
    }

    fn read_through_ring(&self, records: &mut [RecordRead<'_>]) {
        let Some(mut ring) = self.take_ring() else { return self.read_alone(records) };
        let (mut next, mut landed) = (0, Vec::new());
        let mut begun = vec![Instant::now(); records.len()];
        while next < records.len() || !ring.is_empty() {
            while next < records.len() && ring.room() > 0 {
                let record = &mut records[next];
                let want = scratch_bytes(record);
                // Waiting for another thread's buffer while holding some could be waiting for each other.
                let scratch = if ring.is_empty() { Some(self.buffers.take(want)) } else { self.buffers.try_take(want) };
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
                drop(ring);
                return self.read_alone(records);
            }
            for Landed { tag, result, job } in landed.drain(..) {
                self.take_back(job);
                let record = &mut records[tag as usize];
                record.result = Some(result.map(checksum));
                record.took = begun[tag as usize].elapsed();
            }
        }
        self.give_ring_back(ring);
    }

    /// # Safety
    /// `record.into` stays borrowed until the transfer is dropped.
    unsafe fn transfer(&self, record: &mut RecordRead<'_>, scratch: AlignedBuffer) -> Result<Transfer, DiskError> {
        let file = self.directory.open(record.file).map_err(errno_error)?;
        let length = record.into.len() as u64;
        if length > record.bytes {
            return Err(DiskError::Missing);
        }
        let place = Place { offset: record.offset, bytes: record.bytes, length };
        // SAFETY: the buffer is valid for its own length, and borrowed alone by the caller's promise.
        Ok(unsafe { Transfer::read_to(file, place, record.into.as_mut_ptr(), scratch) })
    }

    fn take_back(&self, job: Job) {
        if let Job::Move(transfer) = job {
            self.buffers.give_back(transfer.into_scratch());
        }
    }

    fn take_ring(&self) -> Option<Ring> {
        let kept = self.rings.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.or_else(|| {
            let made = Ring::new(self.depth);
            made.inspect_err(|error| tracing::warn!(%error, "no further io_uring: a batch is read one by one")).ok()
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
    record.bytes as usize - straight_bytes(record.into.as_ptr(), record.into.len()).min(record.bytes as usize)
}

/// Aligned memory for reads, bounded in all: who finds none waits for another reader's.
struct Buffers {
    limit: usize,
    state: Mutex<BufferState>,
    given_back: Condvar,
}

#[derive(Default)]
struct BufferState {
    free: Vec<AlignedBuffer>,
    /// Bytes of buffers given out and free.
    bytes: usize,
    given_out: usize,
}

impl Buffers {
    /// A buffer of at least `bytes` bytes. One above the limit is given out alone.
    fn take(&self, bytes: usize) -> AlignedBuffer {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(buffer) = state.take(bytes, self.limit) {
                return buffer;
            }
            state = self.given_back.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn try_take(&self, bytes: usize) -> Option<AlignedBuffer> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).take(bytes, self.limit)
    }

    fn give_back(&self, buffer: AlignedBuffer) {
        if buffer.is_empty() {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.given_out -= 1;
        if state.bytes > self.limit {
            state.bytes -= buffer.len();
        } else {
            state.free.push(buffer);
        }
        drop(state);
        self.given_back.notify_all();
    }
}

impl BufferState {
    fn take(&mut self, bytes: usize, limit: usize) -> Option<AlignedBuffer> {
        if bytes == 0 {
            return Some(AlignedBuffer::zeroed(0));
        }
        let fits = |buffer: &AlignedBuffer| buffer.len() >= bytes && buffer.len() / 2 <= bytes;
        let found = self.free.iter().position(fits);
        if found.is_none() {
            while self.bytes + bytes > limit
                && let Some(other) = self.free.pop()
            {
                self.bytes -= other.len();
            }
            if self.bytes + bytes > limit && self.given_out > 0 {
                return None;
            }
            self.bytes += bytes;
        }
        self.given_out += 1;
        Some(match found {
            Some(index) => self.free.swap_remove(index),
            None => AlignedBuffer::zeroed(bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_reused_and_bounded_and_a_large_one_goes_alone() {
        let buffers = Buffers { limit: 3 * 4096, state: Mutex::default(), given_back: Condvar::new() };
        let (a, b) = (buffers.take(4096), buffers.take(8192));
        let place = a.as_ptr();
        assert!(buffers.try_take(4096).is_none());
        buffers.give_back(a);
        let again = buffers.try_take(4096).unwrap();
        assert_eq!(again.as_ptr(), place);
        buffers.give_back(again);
        buffers.give_back(b);
        let large = buffers.try_take(1 << 20).unwrap();
        assert!(buffers.try_take(4096).is_none());
        buffers.give_back(large);
        assert_eq!(buffers.state.lock().unwrap().bytes, 0);
        assert!(buffers.try_take(4096).is_some());
    }
}
