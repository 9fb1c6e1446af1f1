//! Memory of Python objects as slices. Besides, there is unsafe code in `view`, the reverse, and in `raw` and `engine`, where
//! callers name memory by address.
//!
//! A [`Memory`] keeps its object alive and its memory in place until it is dropped: a buffer export blocks resizing,
//! and a tensor is held by a reference. Python code that writes to the memory while a call reads it gives the call
//! mixed bytes; the checksum is taken of what was copied, so what is stored is still whole.

use std::slice;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyString};

/// A key: `bytes`, or `str` taken as UTF-8.
pub(crate) enum KeyBytes {
    /// Memory of `bytes`.
    Object(Memory),
    /// A copy of text.
    Text(Vec<u8>),
}

/// Memory of a Python object.
pub(crate) struct Memory {
    start: *mut u8,
    bytes: usize,
    writable: bool,
    /// Keeps the memory where it is.
    _keep: Keep,
}

enum Keep {
    Buffer(#[expect(dead_code, reason = "held for its release")] PyUntypedBuffer),
    Object(#[expect(dead_code, reason = "held for its reference")] Py<PyAny>),
}

// SAFETY: the memory stays where it is until the value is dropped, from whichever thread it is read or written; the
// buffer and the reference inside are only ever dropped, which both may be on any thread.
unsafe impl Send for Memory {}
// SAFETY: as above; shared access only reads the three plain fields.
unsafe impl Sync for Memory {}

impl KeyBytes {
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            KeyBytes::Object(bytes) => bytes.as_slice(),
            KeyBytes::Text(text) => text,
        }
    }
}

impl AsRef<[u8]> for KeyBytes {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl<'py> FromPyObject<'_, 'py> for KeyBytes {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(KeyBytes::Object(Memory::of_bytes(&bytes)));
        }
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(KeyBytes::Text(text.to_cow()?.as_bytes().to_vec()));
        }
        let found = object.get_type().name()?;
        Err(PyTypeError::new_err(format!(
            "a key is bytes or str, not {found}"
        )))
    }
}

/// The layout of tensors whose values lie in one run of memory, as PyTorch names it.
const STRIDED: &str = "torch.strided";

impl Memory {
    /// The memory of anything with the buffer protocol or of a tensor on the CPU.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err(
                "a value is bytes or a buffer, not str",
            ));
        }
        match PyUntypedBuffer::get(object) {
            Ok(buffer) => Self::of_buffer(buffer),
            Err(_) if object.hasattr("data_ptr")? => Self::of_tensor(object),
            // Arrays without dimensions export no shape; flattened they do.
            Err(error) if error.is_instance_of::<PyBufferError>(object.py()) => {
                let flat = PyMemoryView::from(object)?.call_method1("cast", ("B",))?;
                Self::of_buffer(PyUntypedBuffer::get(&flat)?)
            }
            Err(error) => Err(error),
        }
    }

    fn of_buffer(buffer: PyUntypedBuffer) -> PyResult<Self> {
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("the buffer is not C-contiguous"));
        }
        let (start, bytes, writable) = (
            buffer.buf_ptr().cast::<u8>(),
            buffer.len_bytes(),
            !buffer.readonly(),
        );
        Ok(Self {
            start,
            bytes,
            writable,
            _keep: Keep::Buffer(buffer),
        })
    }

    /// A tensor with the attributes that PyTorch and similar libraries give it.
    fn of_tensor(tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let device: String = tensor.getattr("device")?.getattr("type")?.extract()?;
        if device != "cpu" {
            return Err(PyValueError::new_err(format!(
                "the tensor is on {device}, not on the CPU"
            )));
        }
        // Sparse and quantised tensors keep their values elsewhere than in one run of memory.
        let layout = match tensor.getattr_opt("layout")? {
            Some(layout) => layout.str()?.to_string(),
            None => STRIDED.to_owned(),
        };
        if layout != STRIDED {
            return Err(PyValueError::new_err(format!(
                "not a plain tensor: its layout is {layout}"
            )));
        }
        if !tensor.call_method0("is_contiguous")?.extract::<bool>()? {
            return Err(PyValueError::new_err("the tensor is not contiguous"));
        }
        let start: usize = tensor.call_method0("data_ptr")?.extract()?;
        let items: usize = tensor.call_method0("numel")?.extract()?;
        let item_bytes: usize = tensor.call_method0("element_size")?.extract()?;
        let bytes = items
            .checked_mul(item_bytes)
            .filter(|bytes| isize::try_from(*bytes).is_ok() && start.checked_add(*bytes).is_some())
            .ok_or_else(|| PyValueError::new_err("the tensor has no size"))?;
        // A tensor whose storage was freed keeps its shape.
        if start == 0 && bytes > 0 {
            return Err(PyValueError::new_err(
                "the tensor has no memory: its storage is empty",
            ));
        }
        let start = std::ptr::with_exposed_provenance_mut(start);
        Ok(Self {
            start,
            bytes,
            writable: true,
            _keep: Keep::Object(tensor.clone().unbind()),
        })
    }

    /// The memory of `bytes`, which stays as it is.
    fn of_bytes(object: &Bound<'_, PyBytes>) -> Self {
        let bytes = object.as_bytes();
        Self {
            start: bytes.as_ptr().cast_mut(),
            bytes: bytes.len(),
            writable: false,
            _keep: Keep::Object(object.clone().into_any().unbind()),
        }
    }

    /// The same to be written.
    pub(crate) fn writable(self) -> PyResult<Writable> {
        match self.writable {
            true => Ok(Writable(self)),
            false => Err(PyValueError::new_err("the buffer is read-only")),
        }
    }

    /// New `bytes` of this length that no Python code has yet, and their memory.
    pub(crate) fn fresh(py: Python<'_>, bytes: usize) -> PyResult<(Bound<'_, PyBytes>, Writable)> {
        let object = PyBytes::new_with(py, bytes, |_| Ok(()))?;
        let memory = Writable(Self::of_bytes(&object));
        Ok((object, memory))
    }

    /// The bytes, to be read.
    pub(crate) fn as_slice(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: `start` is not null and valid for `bytes` bytes: the exporter said so, and they are initialised, as
        // memory of Python objects is. They stay where they are while `self` lives.
        unsafe { slice::from_raw_parts(self.start, self.bytes) }
    }

    /// First byte and end of the memory.
    fn range(&self) -> (usize, usize) {
        (self.start.addr(), self.start.addr() + self.bytes)
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

/// Memory that may be written.
pub(crate) struct Writable(Memory);

impl AsMut<[u8]> for Writable {
    fn as_mut(&mut self) -> &mut [u8] {
        let Memory { start, bytes, .. } = self.0;
        // Empty `bytes` are one shared object, which must not be written.
        if bytes == 0 {
            return &mut [];
        }
        // SAFETY: as in `Memory::as_slice`; its exporter said that it may be written, or no Python code has it yet, and
        // `self` is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(start, bytes) }
    }
}

/// The memory of several buffers to be written in one call: overlapping ones cannot be.
pub(crate) fn disjoint(buffers: Vec<Memory>) -> PyResult<Vec<Writable>> {
    let mut ranges: Vec<(usize, usize)> = buffers
        .iter()
        .filter(|buffer| buffer.bytes > 0)
        .map(Memory::range)
        .collect();
    ranges.sort_unstable();
    if ranges.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return Err(PyValueError::new_err("buffers of one call overlap"));
    }
    buffers.into_iter().map(Memory::writable).collect()
}
