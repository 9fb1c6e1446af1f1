//! Calls that another thread can end.

use std::cell::RefCell;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use slackwater_remote::Cancel;

thread_local! {
    /// What ends the calls of clients that this thread makes now.
    static CURRENT: RefCell<Option<Cancel>> = const { RefCell::new(None) };
}

/// What ends the call that this thread is about to make, if anything.
pub(crate) fn current() -> Option<Cancel> {
    CURRENT.with_borrow(Clone::clone)
}

/// Runs `calls` on this thread, whose calls of clients `cancel` ends.
pub(crate) fn cancelled_by<T>(cancel: &Cancel, calls: impl FnOnce() -> T) -> T {
    let before = CURRENT.replace(Some(cancel.clone()));
    let result = calls();
    CURRENT.set(before);
    result
}

/// Ends the calls of clients that are made by `run`, from another thread.
#[pyclass(frozen, module = "slackwater._native")]
pub(crate) struct Cancelling(Cancel);

#[pymethods]
impl Cancelling {
    #[new]
    fn new() -> Self {
        Self(Cancel::new())
    }

    /// cancel()
    ///
    /// Ends them soon, now and later: they return once nothing touches the caller's memory any more.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.0.cancel());
    }

    /// run(function, arguments, keywords)
    ///
    /// Calls a function on this thread, whose calls of clients can be ended.
    fn run<'py>(
        &self,
        function: &Bound<'py, PyAny>,
        arguments: &Bound<'py, PyTuple>,
        keywords: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        cancelled_by(&self.0, || function.call(arguments, Some(keywords)))
    }
}
