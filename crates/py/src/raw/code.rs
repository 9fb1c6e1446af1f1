//! Errors as the numbers that integrations know, and why they came about.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use slackwater_remote::ClientError;
use slackwater_wire::ErrorCode;

/// The number of an error. Slackwater's own codes become those of the same meaning that callers act on; a transfer that
/// failed is a call that failed, since nothing touches the caller's memory any more.
pub(crate) fn code_of(error: &ClientError) -> i64 {
    let code = match error {
        // No segment has that much room.
        ClientError::ValueTooLarge { .. } => ErrorCode::NoAvailableHandle,
        error => error.code(),
    };
    let known = match code {
        ErrorCode::InvalidKey | ErrorCode::BufferOverflow => ErrorCode::InvalidParams,
        ErrorCode::DeadlinePassed => ErrorCode::RpcTimeout,
        ErrorCode::TransferFail
        | ErrorCode::ChecksumMismatch
        | ErrorCode::ShuttingDown
        | ErrorCode::StaleEpoch
        | ErrorCode::OperationTooOld
        | ErrorCode::Cancelled => ErrorCode::RpcFail,
        ErrorCode::RoleNotPermitted | ErrorCode::TenantNotPermitted => ErrorCode::IllegalClient,
        // The replica is there, and this client cannot read it.
        ErrorCode::ValueTooLong => ErrorCode::InvalidReplica,
        ErrorCode::DiskFull | ErrorCode::TooFewHosts => ErrorCode::NoAvailableHandle,
        code => code,
    };
    i64::from(known.number())
}

/// Tells the reason of each code once for each method.
pub(crate) struct Reasons {
    log: Py<PyAny>,
    told: Mutex<BTreeSet<(String, i64)>>,
}

impl Reasons {
    pub(crate) fn new(log: Py<PyAny>) -> Self {
        Self {
            log,
            told: Mutex::default(),
        }
    }

    pub(crate) fn tell(&self, py: Python<'_>, method: &str, code: i64, error: &dyn Display) {
        // An absent key is an outcome.
        if code == i64::from(ErrorCode::ObjectNotFound.number()) {
            return;
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let new = told.insert((method.to_owned(), code));
        drop(told);
        if new && let Err(raised) = self.log.call1(py, (method, code, error.to_string())) {
            // No call raises for what is logged. Ctrl-C is there again once the call has returned, and is raised then.
            let again = raised.is_instance_of::<PyKeyboardInterrupt>(py)
                && py
                    .import("_thread")
                    .and_then(|threads| threads.call_method0("interrupt_main"))
                    .is_ok();
            if !again {
                raised.write_unraisable(py, None);
            }
        }
    }
}
