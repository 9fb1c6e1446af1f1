use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use slackwater_node::config::ConfigProblem;
use slackwater_node::disk::DirectoryError;
use slackwater_node::{OpenError, StoreError};
use slackwater_remote::{ClientError, ConnectError};
use slackwater_wire::{Class, ErrorCode};

/// The exception of an error: `slackwater.errors` holds one class for each class of codes.
pub(crate) fn exception(py: Python<'_>, code: ErrorCode, message: &str) -> PyErr {
    match make(py, code, message) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// An error of a call, whose code says which exception stands for it.
pub(crate) trait Coded: std::fmt::Display {
    fn code(&self) -> ErrorCode;
}

impl Coded for StoreError {
    fn code(&self) -> ErrorCode {
        self.code()
    }
}

impl Coded for ClientError {
    fn code(&self) -> ErrorCode {
        self.code()
    }
}

/// The exception of an error of a call.
pub(crate) fn refused(py: Python<'_>, error: &impl Coded) -> PyErr {
    exception(py, error.code(), &error.to_string())
}

/// The exception of a client that finds no server.
pub(crate) fn not_connected(py: Python<'_>, error: &ConnectError) -> PyErr {
    exception(py, error.code(), &error.to_string())
}

/// The exception of a store that does not open.
pub(crate) fn not_opened(py: Python<'_>, error: &OpenError) -> PyErr {
    let code = match error {
        OpenError::Config(_) => ErrorCode::InvalidParams,
        OpenError::Directory(DirectoryError::Held { .. }) => ErrorCode::FileLockFail,
        OpenError::Directory(_) => ErrorCode::FileOpenFail,
        OpenError::Log { .. } => ErrorCode::FileReadFail,
        _ => ErrorCode::UnavailableInCurrentMode,
    };
    exception(py, code, &error.to_string())
}

/// The exception for a configuration that is refused: every problem on a line.
pub(crate) fn misconfigured(py: Python<'_>, problems: &[ConfigProblem]) -> PyErr {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    exception(py, ErrorCode::InvalidParams, &lines.join("\n"))
}

fn make<'py>(py: Python<'py>, code: ErrorCode, message: &str) -> PyResult<Bound<'py, PyAny>> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = match code.class() {
        Class::Retry => "retry",
        Class::Refused => "refused",
        Class::Gone => "gone",
        Class::Fatal => "fatal",
    };
    let make = MAKE.import(py, "slackwater.errors", "_make")?;
    make.call1((class, code.number(), message))
}
