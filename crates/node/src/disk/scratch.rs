use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_base::{AllocError, BLOCK_BYTES, Extent, ExtentAllocator};
use slackwater_memory::Mapping;
use slackwater_tier::LogConfig;
use slackwater_wait::{Event, Park, Site, Waiting};

use super::buffer::AlignedBuffer;
use crate::config::HugePages;
use crate::region;

/// Memory of a device for reads that do not go straight into an extent: mostly the copies of reclaim, of which so many bytes are
/// under way at most. What finds no place takes memory of its own.
pub(super) const BUFFER_BYTES: usize = LogConfig::RECLAIM_BYTES as usize;

/// Aligned memory for reads, bounded in all: a thread that finds none waits for another to give its buffer back, or does without.
///
/// The memory is of huge pages where the kernel has some: a device is told of each physical page of a transfer, and one
/// whose queue has 256 places, as that of a virtual machine, takes two reads of 512 KiB on ordinary pages at a time.
#[derive(Debug)]
pub(crate) struct Buffers {
    memory: Mapping,
    state: Mutex<BufferState>,
    given_back: Event,
    pub(super) site: Site,
}

#[derive(Debug)]
struct BufferState {
    room: ExtentAllocator,
    given_out: usize,
    /// One that is longer than all the memory has been given out, by itself.
    alone: bool,
}

/// Memory for one transfer, and for what was read until it is used. What was taken from [`Buffers`] goes back when it is dropped,
/// however the transfer ends.
#[derive(Debug)]
pub(crate) struct Scratch {
    memory: Memory,
    home: Option<Arc<Buffers>>,
}

#[derive(Debug)]
enum Memory {
    Own(AlignedBuffer),
    /// A piece of the memory of `home`.
    Lent(Extent),
}

impl Scratch {
    /// First address; see [`AlignedBuffer::address`].
    pub(super) fn address(&mut self) -> *mut u8 {
        match (&mut self.memory, &self.home) {
            (Memory::Lent(extent), Some(home)) => home.address(*extent),
            (Memory::Own(buffer), _) => buffer.address(),
            (Memory::Lent(_), None) => unreachable!("what is lent has a home until it is dropped"),
        }
    }
}

impl From<AlignedBuffer> for Scratch {
    fn from(buffer: AlignedBuffer) -> Self {
        Self {
            memory: Memory::Own(buffer),
            home: None,
        }
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match (&self.memory, &self.home) {
            (Memory::Lent(extent), Some(home)) => {
                // SAFETY: the extent is a range of the mapping, whose bytes are initialised, and until this is dropped it
                // is given to nobody else.
                unsafe { std::slice::from_raw_parts(home.address(*extent), extent.bytes as usize) }
            }
            (Memory::Own(buffer), _) => buffer,
            (Memory::Lent(_), None) => unreachable!("what is lent has a home until it is dropped"),
        }
    }
}

impl AsRef<[u8]> for Scratch {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (start, bytes) = (self.address(), self.len());
        // SAFETY: as in `deref`, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.give_back(&self.memory);
        }
    }
}

impl Buffers {
    /// # Panics
    /// When the operating system gives no address space for `limit` bytes.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        let (memory, _) = region::map(limit, HugePages::Transparent)
            .expect("there is address space for the buffers of reads");
        let room = ExtentAllocator::new(memory.bytes().min(limit) as u64, BLOCK_BYTES, 1);
        Arc::new(Self {
            memory,
            state: Mutex::new(BufferState {
                room,
                given_out: 0,
                alone: false,
            }),
            given_back: Event::new(),
            site: Site::new("read, buffer"),
        })
    }

    #[cfg(test)]
    pub(super) fn limit(&self) -> usize {
        self.lock().room.books().capacity as usize
    }

    /// A buffer of at least `bytes` bytes. One above the limit is given out alone.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Scratch {
        loop {
            let seen = self.given_back.seen();
            if let Some(scratch) = self.try_take(bytes) {
                return scratch;
            }
            // Another read has to end first, which takes longer than any spin.
            let _ = self
                .given_back
                .wait(seen, &Waiting::at(&self.site).by(&Park));
        }
    }

    /// The same if there is one at once.
    pub(crate) fn try_take(self: &Arc<Self>, bytes: usize) -> Option<Scratch> {
        if bytes == 0 {
            return Some(AlignedBuffer::zeroed(0).into());
        }
        let memory = match self.lock().take(bytes)? {
            Some(extent) => Memory::Lent(extent),
            None => Memory::Own(AlignedBuffer::zeroed(bytes)),
        };
        let home = Some(Arc::clone(self));
        Some(Scratch { memory, home })
    }

    fn address(&self, extent: Extent) -> *mut u8 {
        self.memory
            .start()
            .as_ptr()
            .wrapping_add(extent.offset as usize)
    }

    fn give_back(&self, memory: &Memory) {
        let mut state = self.lock();
        state.given_out -= 1;
        match memory {
            Memory::Own(_) => state.alone = false,
            Memory::Lent(extent) => {
                state.room.retire(*extent);
                state.room.release(*extent);
            }
        }
        drop(state);
        self.given_back.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, BufferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn given_out(&self) -> usize {
        self.lock().given_out
    }
}

impl BufferState {
    /// A piece of the memory, or the right to one beside it, where all of it is too little.
    fn take(&mut self, bytes: usize) -> Option<Option<Extent>> {
        if self.alone {
            return None;
        }
        let taken = match self.room.allocate(bytes as u64) {
            Ok(extent) => Some(extent),
            Err(AllocError::TooLarge { .. }) if self.given_out == 0 => {
                self.alone = true;
                None
            }
            Err(_) => return None,
        };
        self.given_out += 1;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_reused_and_bounded_and_a_large_one_goes_alone() {
        let buffers = Buffers::new(3 * 4096);
        let (a, b) = (buffers.take(4096), buffers.take(8192));
        let place = a.as_ptr();
        assert!(buffers.try_take(4096).is_none());
        assert!(buffers.try_take(1 << 20).is_none(), "others are out");
        drop(a);
        let again = buffers.try_take(4096).unwrap();
        assert_eq!(again.as_ptr(), place);
        drop((again, b));
        let large = buffers.try_take(1 << 20).unwrap();
        assert_eq!(large.len(), 1 << 20);
        assert!(buffers.try_take(4096).is_none());
        drop(large);
        assert_eq!(buffers.state.lock().unwrap().room.books().live, 0);
        assert!(buffers.try_take(4096).is_some());
    }

    #[test]
    fn what_is_lent_to_one_is_not_lent_to_another() {
        let buffers = Buffers::new(1 << 20);
        let mut lent: Vec<Scratch> = Vec::new();
        for turn in 0..200usize {
            if let Some(mut scratch) = buffers.try_take(1 + turn * 977 % 100_000) {
                assert!(scratch.len().is_multiple_of(4096));
                assert!(scratch.address().addr().is_multiple_of(4096));
                scratch.fill(turn as u8);
                lent.push(scratch);
            }
            if turn % 3 == 2 && !lent.is_empty() {
                let scratch = lent.swap_remove(turn % lent.len());
                assert!(scratch.iter().all(|byte| *byte == scratch[0]));
            }
        }
        let whole = |scratch: &Scratch| scratch.iter().all(|byte| *byte == scratch[0]);
        assert!(lent.iter().all(whole) && lent.len() > 5);
    }
}
