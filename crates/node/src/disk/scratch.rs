use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_wait::{Event, Park, Site, Waiting};

use super::buffer::AlignedBuffer;

/// Aligned memory for reads, bounded in all: a reader that finds none waits for another to give its buffer back.
#[derive(Debug)]
pub(crate) struct Buffers {
    limit: usize,
    state: Mutex<BufferState>,
    given_back: Event,
    pub(super) site: Site,
}

#[derive(Debug, Default)]
struct BufferState {
    free: Vec<AlignedBuffer>,
    /// Bytes of buffers given out and free.
    bytes: usize,
    given_out: usize,
}

/// Memory for one transfer. What was taken from [`Buffers`] goes back when it is dropped, however the transfer ends.
#[derive(Debug)]
pub(crate) struct Scratch {
    buffer: AlignedBuffer,
    home: Option<Arc<Buffers>>,
}

impl Scratch {
    /// First address; see [`AlignedBuffer::address`].
    pub(super) fn address(&mut self) -> *mut u8 {
        self.buffer.address()
    }
}

impl From<AlignedBuffer> for Scratch {
    fn from(buffer: AlignedBuffer) -> Self {
        Self { buffer, home: None }
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.give_back(std::mem::replace(
                &mut self.buffer,
                AlignedBuffer::zeroed(0),
            ));
        }
    }
}

impl Buffers {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            state: Mutex::default(),
            given_back: Event::new(),
            site: Site::new("read, buffer"),
        })
    }

    #[cfg(test)]
    pub(super) fn limit(&self) -> usize {
        self.limit
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
        let buffer = self.lock().take(bytes, self.limit)?;
        Some(self.lend(buffer))
    }

    fn lend(self: &Arc<Self>, buffer: AlignedBuffer) -> Scratch {
        let home = (!buffer.is_empty()).then(|| Arc::clone(self));
        Scratch { buffer, home }
    }

    fn give_back(&self, buffer: AlignedBuffer) {
        let mut state = self.lock();
        state.given_out -= 1;
        if state.bytes > self.limit {
            state.bytes -= buffer.len();
        } else {
            state.free.push(buffer);
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
        let buffers = Buffers::new(3 * 4096);
        let (a, b) = (buffers.take(4096), buffers.take(8192));
        let place = a.as_ptr();
        assert!(buffers.try_take(4096).is_none());
        drop(a);
        let again = buffers.try_take(4096).unwrap();
        assert_eq!(again.as_ptr(), place);
        drop((again, b));
        let large = buffers.try_take(1 << 20).unwrap();
        assert!(buffers.try_take(4096).is_none());
        drop(large);
        assert_eq!(buffers.state.lock().unwrap().bytes, 0);
        assert!(buffers.try_take(4096).is_some());
    }
}
