//! A value in memory of its own, which Python code may read and write.

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// The bytes of one value: a writable buffer of one dimension. The memory goes when the handle and every view of it are gone.
#[pyclass(frozen, module = "mooncake.store")]
pub(crate) struct BufferHandle {
    /// Of a box that only the end of the handle puts together again.
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to the handle; Rust neither reads nor writes it, and what Python code does with it is
// Python's affair.
unsafe impl Send for BufferHandle {}
// SAFETY: as above.
unsafe impl Sync for BufferHandle {}

impl BufferHandle {
    pub(crate) fn new(value: Vec<u8>) -> Self {
        let bytes = value.len();
        let start = Box::into_raw(value.into_boxed_slice()).cast::<u8>();
        Self { start, bytes }
    }
}

/// The outcome of reading one value.
#[derive(IntoPyObject)]
pub(super) enum Buffered {
    Value(BufferHandle),
    Code(i64),
}

impl Buffered {
    pub(super) fn new(read: Result<Vec<u8>, i64>) -> Self {
        read.map_or_else(Self::Code, |value| Self::Value(BufferHandle::new(value)))
    }
}

impl Drop for BufferHandle {
    fn drop(&mut self) {
        let value = std::ptr::slice_from_raw_parts_mut(self.start, self.bytes);
        // SAFETY: made by `into_raw` of a box of this length. Buffers over it hold the handle, so there is none any more.
        drop(unsafe { Box::from_raw(value) });
    }
}

#[pymethods]
impl BufferHandle {
    /// ptr() -> int
    ///
    /// The address of the first byte.
    fn ptr(&self) -> usize {
        self.start.expose_provenance()
    }

    /// size() -> int
    ///
    /// The number of bytes.
    fn size(&self) -> usize {
        self.bytes
    }

    fn __len__(&self) -> usize {
        self.bytes
    }

    /// # Safety
    /// Python calls it with a buffer to be filled.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if buffer.is_null() {
            return Err(PyBufferError::new_err("no buffer to fill"));
        }
        let handle = slf.get();
        let start = handle.start.cast();
        let length = handle.bytes.cast_signed();
        // SAFETY: Python's promise for `buffer`. The memory lives as long as the handle, which the reference in the buffer
        // keeps alive, and is not read or written by Rust.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(buffer, slf.as_ptr(), start, length, 0, flags) };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        if flags & ffi::PyBUF_FORMAT == ffi::PyBUF_FORMAT {
            // Signed bytes, which is what readers of these handles know.
            // SAFETY: filled above; the text lives for ever and is not written.
            unsafe { (*buffer).format = c"b".as_ptr().cast_mut() };
        }
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<BufferHandle of {} bytes>", self.bytes)
    }
}
