//! Views: memory of a store, or memory that a client read into, as a read-only `memoryview`.
//!
//! Python cannot take a buffer back that it has given out, so the memory stays in place as long as anything refers to it.
//! A slice of the `memoryview` and an array of numpy refer to the [`Shown`] behind it. `torch.frombuffer` keeps only the
//! `memoryview` that it was given, which would let go of the memory when it is released: so the end of a block releases
//! it only if nobody else holds it.

use std::ffi::c_int;
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyMemoryView, PyTuple};
use slackwater_node::{Tier, Verify, ViewOptions};

use crate::calls::get_options;
use crate::errors::{Coded, refused};
use crate::options::Chain;

/// The bytes of one value, which stay where and as they are until they are dropped.
pub(crate) trait Value: Deref<Target = [u8]> + Send + Sync + 'static {
    /// Where the value was, by its name in Python.
    fn tier(&self) -> &'static str;
}

impl Value for slackwater_node::View {
    fn tier(&self) -> &'static str {
        match self.tier() {
            Tier::Memory => "memory",
            Tier::Disk => "ssd",
        }
    }
}

impl Value for slackwater_remote::View {
    fn tier(&self) -> &'static str {
        self.kind().tier()
    }
}

/// The memory of one value, which every buffer over it keeps alive.
#[pyclass(frozen, module = "slackwater")]
struct Shown {
    value: Box<dyn Value>,
}

impl Shown {
    /// Fills a buffer over the memory.
    ///
    /// # Safety
    /// `buffer` may be written.
    unsafe fn fill(
        shown: &Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes: &[u8] = &shown.get().value;
        let start = bytes.as_ptr().cast_mut().cast();
        let length = bytes.len().cast_signed();
        // SAFETY: the caller's promise for `buffer`. The bytes live and stay as they are while the value lives, which the
        // reference in the buffer keeps alive; the buffer is read-only.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(buffer, shown.as_ptr(), start, length, 1, flags) };
        if filled == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(shown.py()))
        }
    }
}

#[pymethods]
impl Shown {
    /// # Safety
    /// Python calls it with a buffer to be filled.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: Python's promise.
        unsafe { Self::fill(&slf, buffer, flags) }
    }
}

/// A value of a store that is shown where it lies, without a copy, or one that a client read into memory of the view.
///
/// A context manager that gives a read-only `memoryview`, and itself a buffer: `numpy.frombuffer(view)` works. Its memory
/// stays as it is until the view is closed and nothing else refers to the memory any more, whatever becomes of the key
/// and of the store meanwhile.
#[pyclass(frozen, module = "slackwater")]
pub(crate) struct View {
    open: Mutex<Option<Open>>,
    bytes: usize,
    tier: &'static str,
}

/// What a view holds until it is closed.
struct Open {
    shown: Py<Shown>,
    /// The `memoryview` that a block was given.
    given: Option<Py<PyMemoryView>>,
}

#[pymethods]
impl View {
    /// close()
    ///
    /// Ends the view. Its memoryview is released, unless something else holds it; memory that is still referred to stays
    /// in place until it no longer is.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let taken = self.open().take();
        let Some(Open { shown, given }) = taken else {
            return Ok(());
        };
        drop(shown);
        let Some(given) = given else {
            return Ok(());
        };
        // Ours, and the variable of the block.
        const EXPECTED: isize = 2;
        // SAFETY: the object is alive, as `given` refers to it.
        if unsafe { ffi::Py_REFCNT(given.as_ptr()) } > EXPECTED {
            return Ok(());
        }
        match given.call_method0(py, "release") {
            Err(error) if error.is_instance_of::<PyBufferError>(py) => Ok(()),
            released => released.map(drop),
        }
    }

    /// Whether the view was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open().is_none()
    }

    /// Where the value was when the view was opened: "memory" or "ssd".
    #[getter]
    fn tier(&self) -> &'static str {
        self.tier
    }

    fn __len__(&self) -> usize {
        self.bytes
    }

    fn __enter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        let mut open = self.open();
        let Open { shown, given } = open.as_mut().ok_or_else(closed)?;
        if given.is_none() {
            *given = Some(PyMemoryView::from(shown.bind(py).as_any())?.unbind());
        }
        let given = given.as_ref().map(|given| given.bind(py).clone());
        Ok(given.expect("made above"))
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    /// # Safety
    /// Python calls it with a buffer to be filled.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let shown = slf
            .get()
            .open()
            .as_ref()
            .map(|open| open.shown.clone_ref(slf.py()));
        let shown = shown.ok_or_else(closed)?;
        // SAFETY: Python's promise.
        unsafe { Shown::fill(shown.bind(slf.py()), buffer, flags) }
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { ", closed" } else { "" };
        format!(
            "<slackwater.View of {} bytes from {}{state}>",
            self.bytes, self.tier
        )
    }
}

impl View {
    fn open(&self) -> std::sync::MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn closed() -> PyErr {
    PyValueError::new_err("the view is closed")
}

/// How a call views values.
pub(crate) fn view_options(
    prefix_only: bool,
    verify: bool,
    tenant: Option<&str>,
    chain: Option<&Bound<'_, Chain>>,
) -> PyResult<ViewOptions> {
    Ok(ViewOptions {
        read: get_options(prefix_only, tenant, chain)?,
        verify: if verify {
            Verify::Always
        } else {
            Verify::OnArrival
        },
    })
}

/// A view as Python has it.
pub(crate) fn shown(py: Python<'_>, value: impl Value) -> PyResult<View> {
    let (bytes, tier) = (value.len(), value.tier());
    let value = Box::new(value);
    let shown = Py::new(py, Shown { value })?;
    let open = Mutex::new(Some(Open { shown, given: None }));
    Ok(View { open, bytes, tier })
}

/// The views of a batch, which end together: the view of each key, None, or the exception.
pub(crate) fn shown_together<'py>(
    py: Python<'py>,
    values: Vec<Result<Option<impl Value>, impl Coded>>,
) -> PyResult<Bound<'py, PyAny>> {
    static VIEWS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let list = PyList::empty(py);
    for value in values {
        match value {
            Ok(Some(value)) => list.append(Bound::new(py, shown(py, value)?)?)?,
            Ok(None) => list.append(py.None())?,
            Err(error) => list.append(refused(py, &error).into_value(py))?,
        }
    }
    VIEWS
        .import(py, "slackwater.views", "Views")?
        .call1((list,))
}
