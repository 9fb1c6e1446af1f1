//! Memory of this process for allocators of other packages, which call C functions by their addresses:
//! `void *allocate(size_t)` and `void release(void *)`. Both may be called by any thread, without the interpreter.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use slackwater_memory::{Mapping, Pages};

/// What is allocated, by its first address.
static ALLOCATED: Mutex<BTreeMap<usize, Mapping>> = Mutex::new(BTreeMap::new());

/// get_alloc_func_addr() -> int
///
/// The address of `void *allocate(size_t)`: zeroed memory on huge pages where there are any; null when there is none.
#[pyfunction]
pub(crate) fn get_alloc_func_addr() -> usize {
    (allocate as *const ()).expose_provenance()
}

/// get_free_func_addr() -> int
///
/// The address of `void release(void *)`, which gives back what `allocate` gave; for any other address it does nothing.
#[pyfunction]
pub(crate) fn get_free_func_addr() -> usize {
    (release as *const ()).expose_provenance()
}

extern "C" fn allocate(bytes: usize) -> *mut c_void {
    let Ok((mapping, _)) = Mapping::private(bytes, Pages::TransparentHuge) else {
        return std::ptr::null_mut();
    };
    let start = mapping.start().as_ptr();
    let mut allocated = ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner);
    allocated.insert(start.expose_provenance(), mapping);
    start.cast()
}

extern "C" fn release(start: *mut c_void) {
    let mut allocated = ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner);
    let mapping = allocated.remove(&start.expose_provenance());
    // Other threads need not wait for the system to take it.
    drop(allocated);
    drop(mapping);
}
