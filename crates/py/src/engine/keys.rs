//! What engines with keys ask each other.

use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use slackwater_transfer::{Question, SealError};

use super::lock;

/// What a peer is asked for: its description.
pub(super) const DESCRIBE: &[u8] = b"describe";
/// How an environment names the file of the key and that of the list, in this order.
pub(super) const KEY_VARIABLES: [&str; 2] =
    ["SLACKWATER_TCP_SEAL_KEY", "SLACKWATER_TCP_SEAL_CLIENTS"];

/// A question to a peer that waits for its answer.
#[pyclass(frozen, module = "slackwater._native")]
pub(crate) struct RawQuestion(Mutex<Option<Question>>);

impl RawQuestion {
    pub(super) fn new(question: Question) -> Self {
        Self(Mutex::new(Some(question)))
    }

    /// The question, once.
    pub(super) fn take(&self) -> Option<Question> {
        lock(&self.0).take()
    }
}

pub(super) fn refused(error: SealError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
