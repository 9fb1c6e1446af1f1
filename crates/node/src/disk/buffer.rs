use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};

use slackwater_base::BLOCK_BYTES;

/// Bytes that begin on a block boundary, as direct I/O wants them. Zero when made.
#[derive(Debug)]
pub(super) struct AlignedBuffer {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the buffer owns its allocation, as a `Box<[u8]>` does.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared access gives out shared slices only.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// `bytes` zero bytes.
    #[must_use]
    pub(super) fn zeroed(bytes: usize) -> Self {
        if bytes == 0 {
            return Self {
                start: std::ptr::without_provenance_mut(BLOCK_BYTES as usize),
                bytes,
            };
        }
        let layout = layout(bytes);
        // SAFETY: the layout has at least one byte.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Self { start, bytes }
    }

    /// First address, for a device that reads or writes by address. It stays where it is when the buffer moves.
    pub(super) fn address(&mut self) -> *mut u8 {
        self.start
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` initialised bytes, owned by `self`; for zero bytes any aligned address will do.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated by `zeroed` with this very layout.
            unsafe { dealloc(self.start, layout(self.bytes)) };
        }
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, BLOCK_BYTES as usize)
        .expect("a buffer is shorter than the address space")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zero_aligned_and_writable() {
        for bytes in [0, 1, 4096, 10_000] {
            let mut buffer = AlignedBuffer::zeroed(bytes);
            assert!(buffer.address().addr().is_multiple_of(BLOCK_BYTES as usize));
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(7);
            assert_eq!(buffer.len(), bytes);
            assert!(buffer.iter().all(|byte| *byte == 7));
        }
    }
}
