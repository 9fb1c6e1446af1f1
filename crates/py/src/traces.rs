//! Traces of OpenTelemetry: the one that a caller is in, and the export of what was done for it.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::intern;
use pyo3::marker::Ungil;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use slackwater_otel::{Endpoint, ExportError, ExportOptions, export};
use slackwater_trace::{Exporter, within};
use slackwater_wire::{ErrorCode, TraceContext, Traceparent};

use crate::errors::exception;
use crate::store::forks;

/// Runs a call while other threads of Python run, within the trace that its caller is in.
pub(crate) fn detached<T: Ungil>(py: Python<'_>, call: impl Send + FnOnce() -> T) -> T {
    match caller(py) {
        Some(parent) => py.detach(|| within(parent, call)),
        None => py.detach(call),
    }
}

/// The span that the caller is in by the package `opentelemetry`, which may not be recorded; none where the package is not
/// loaded, or there is no span. A package that fails does not fail the call.
pub(crate) fn caller(py: Python<'_>) -> Option<Traceparent> {
    static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let modules = MODULES.get_or_try_init(py, || {
        let modules = py.import("sys")?.getattr("modules")?;
        Ok::<_, PyErr>(modules.cast_into::<PyDict>()?.unbind())
    });
    let name = intern!(py, "opentelemetry.trace");
    let package = modules.ok()?.bind(py).get_item(name);
    span_of(&package.ok()??).unwrap_or_else(|error| {
        // It is for the caller, to whom it comes after the call instead.
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            let thread = py.import("_thread");
            let again = thread.and_then(|thread| thread.call_method0("interrupt_main"));
            if let Err(error) = again {
                error.write_unraisable(py, None);
            }
        }
        None
    })
}

fn span_of(package: &Bound<'_, PyAny>) -> PyResult<Option<Traceparent>> {
    let py = package.py();
    let span = package.call_method0(intern!(py, "get_current_span"))?;
    let context = span.call_method0(intern!(py, "get_span_context"))?;
    let trace: u128 = context.getattr(intern!(py, "trace_id"))?.extract()?;
    let own: u64 = context.getattr(intern!(py, "span_id"))?.extract()?;
    let flags: u64 = context.getattr(intern!(py, "trace_flags"))?.extract()?;
    let context = TraceContext::new(trace, own);
    Ok(context.map(|context| Traceparent((flags & 1 != 0).then_some(context))))
}

/// What exports the spans of this process, and the number of forks before it began.
static EXPORTER: Mutex<Option<(Exporter, u64)>> = Mutex::new(None);

/// export_traces(endpoint, *, share=0.0, service="slackwater")
///
/// Tells a collector of OpenTelemetry at `endpoint` (`http://HOST:PORT`) what this process did for calls that are
/// traced, as OTLP over HTTP: calls within a span of the package `opentelemetry`, and of the others the share `share` (0 to
/// 1), which begin traces of their own. `None` ends that, once what was done is told. A fork tells nothing until it calls this
/// itself. Raises where the module was built without OpenTelemetry.
#[pyfunction]
#[pyo3(signature = (endpoint, *, share=0.0, service="slackwater"))]
pub(crate) fn export_traces(
    py: Python<'_>,
    endpoint: Option<&str>,
    share: f64,
    service: &str,
) -> PyResult<()> {
    if !(0.0..=1.0).contains(&share) {
        let wrong = format!("share: {share} is not from 0 to 1");
        return Err(PyValueError::new_err(wrong));
    }
    let endpoint = endpoint.map(str::parse::<Endpoint>).transpose();
    let endpoint = endpoint.map_err(|error| PyValueError::new_err(format!("endpoint: {error}")))?;
    let exported = py.detach(|| {
        let mut present = EXPORTER.lock().unwrap_or_else(PoisonError::into_inner);
        match present.take() {
            // Its thread is the parent's.
            Some((exporter, before)) if before != forks() => exporter.forked(),
            before => drop(before),
        }
        if let Some(endpoint) = endpoint {
            let service = service.to_owned();
            let exporter = export(&ExportOptions {
                endpoint,
                service,
                share,
            })?;
            *present = Some((exporter, forks()));
        }
        Ok(())
    });
    exported.map_err(|error: ExportError| {
        let code = match error {
            ExportError::NotBuilt => ErrorCode::NotSupported,
            _ => ErrorCode::InternalError,
        };
        exception(py, code, &error.to_string())
    })
}
