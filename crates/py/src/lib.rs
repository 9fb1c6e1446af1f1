//! The Python module of Slackwater: `slackwater._native`, re-exported by the package `slackwater`.
//!
//! Every call that may block, copy or take a lock lets other Python threads run meanwhile. Values are read from and
//! written into the caller's own memory: bytes, bytearray, memoryview, numpy arrays, tensors on the CPU.

mod allocator;
mod awaiting;
mod buffers;
mod calls;
mod cancelling;
mod engine;
mod errors;
mod options;
mod raw;
mod remote;
mod store;
mod traces;
mod view;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use slackwater_wire::ErrorCode;

/// The native part of the package `slackwater`.
#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<store::Store>()?;
    module.add_class::<view::View>()?;
    module.add_class::<remote::Client>()?;
    module.add_function(wrap_pyfunction!(remote::connect, module)?)?;
    module.add_class::<options::Chain>()?;
    module.add_class::<cancelling::Cancelling>()?;
    module.add_class::<awaiting::Awaiting>()?;
    module.add_class::<awaiting::Ends>()?;
    module.add_class::<awaiting::UnderWay>()?;
    module.add_class::<raw::RawClient>()?;
    module.add_class::<engine::RawEngine>()?;
    module.add_class::<engine::RawQuestion>()?;
    module.add_class::<raw::RawPlan>()?;
    module.add_class::<raw::BufferHandle>()?;
    module.add_function(wrap_pyfunction!(traces::export_traces, module)?)?;
    module.add_function(wrap_pyfunction!(error_codes, module)?)?;
    module.add_function(wrap_pyfunction!(raw::checksum, module)?)?;
    module.add_function(wrap_pyfunction!(allocator::get_alloc_func_addr, module)?)?;
    module.add_function(wrap_pyfunction!(allocator::get_free_func_addr, module)?)?;
    module.add_function(wrap_pyfunction!(after_fork, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}

/// Every error code: name and number.
#[pyfunction]
fn error_codes(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let codes = PyDict::new(py);
    for code in ErrorCode::ALL {
        codes.set_item(code.name(), code.number())?;
    }
    Ok(codes)
}

/// Marks this process as a fork: stores that its parent opened are not usable here.
#[pyfunction]
fn after_fork() {
    store::forked();
}
