//! The conversions of every call: options from keywords, and results into Python objects.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use slackwater_node::{GetOptions, Got, PutOptions, RemoveOptions, StoreError};
use slackwater_wire::{Durability, ErrorCode, PutMode, Tenant};

use crate::buffers::Memory;
use crate::errors::{Coded, exception, refused};
use crate::options::{Chain, chain, pin, seconds_of, tenant};
use crate::traces::detached;

pub(crate) fn put_options(
    upsert: bool,
    pinned: Option<&Bound<'_, PyAny>>,
    group: Option<u64>,
    durable: bool,
    wait: Option<f64>,
    name: Option<&str>,
    given: Option<&Bound<'_, Chain>>,
) -> PyResult<PutOptions> {
    Ok(PutOptions {
        tenant: tenant(name)?,
        mode: if upsert {
            PutMode::Upsert
        } else {
            PutMode::Create
        },
        pin: pin(pinned)?,
        group,
        durability: if durable {
            Durability::Disk
        } else {
            Durability::Memory
        },
        wait: wait
            .map(|seconds| seconds_of("wait", seconds))
            .transpose()?,
        chain: chain(given),
    })
}

pub(crate) fn get_options(
    prefix_only: bool,
    name: Option<&str>,
    given: Option<&Bound<'_, Chain>>,
) -> PyResult<GetOptions> {
    Ok(GetOptions {
        tenant: tenant(name)?,
        chain: chain(given),
        prefix_only,
    })
}

pub(crate) fn remove_options(force: bool, name: Option<&str>) -> PyResult<RemoveOptions> {
    Ok(RemoveOptions {
        tenant: tenant(name)?,
        force,
    })
}

pub(crate) fn same_count(py: Python<'_>, keys: usize, what: &str, count: usize) -> PyResult<()> {
    if keys == count {
        return Ok(());
    }
    Err(exception(
        py,
        ErrorCode::InvalidParams,
        &format!("{keys} keys but {count} {what}"),
    ))
}

/// The list of results: the value of each, or its exception.
pub(crate) fn each<'py, T, V: IntoPyObject<'py>>(
    py: Python<'py>,
    results: Vec<Result<T, impl Coded>>,
    value: impl Fn(T) -> PyResult<V>,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for result in results {
        match result {
            Ok(given) => list.append(value(given)?)?,
            Err(error) => list.append(refused(py, &error).into_value(py))?,
        }
    }
    Ok(list)
}

/// Removing a value that is not there is not an error.
pub(crate) fn was_there<E: Coded>(removed: Result<(), E>) -> Result<bool, E> {
    match removed {
        Ok(()) => Ok(true),
        Err(error) if error.code() == ErrorCode::ObjectNotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Length of the value now; zero if there is none or the look-up fails: the read then reports why.
pub(crate) fn size_of(store: &slackwater_node::Store, key: &[u8], tenant: &Tenant) -> usize {
    let described = store.describe(key, tenant).ok().flatten();
    described.map_or(0, |description| {
        usize::try_from(description.bytes).unwrap_or(0)
    })
}

/// Reads into fresh bytes of the right length. A value that is replaced by a longer one meanwhile is looked up again.
pub(crate) fn read_one<'py>(
    py: Python<'py>,
    store: &slackwater_node::Store,
    key: &[u8],
    options: &GetOptions,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    for _ in 0..LOOKUPS_MAX {
        let size = py.detach(|| size_of(store, key, &options.tenant));
        let (value, mut memory) = Memory::fresh(py, size)?;
        let bytes = memory.as_mut();
        match detached(py, || store.get_into(key, bytes, options)) {
            Ok(Some(got)) => return cut(py, value, got).map(Some),
            Ok(None) => return Ok(None),
            Err(StoreError::BufferTooSmall { .. }) => {}
            Err(error) => return Err(refused(py, &error)),
        }
    }
    let value = detached(py, || store.get(key, options));
    let value = value.map_err(|error| refused(py, &error))?;
    Ok(value.map(|value| PyBytes::new(py, &value)))
}

/// Attempts, each of which found a longer value, before the store allocates the memory itself.
const LOOKUPS_MAX: usize = 4;

/// The value at the length that was read: shorter only if it was replaced since its size was looked up.
pub(crate) fn cut<'py>(
    py: Python<'py>,
    value: Bound<'py, PyBytes>,
    got: Got,
) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = value.as_bytes();
    if bytes.len() == got.bytes {
        Ok(value)
    } else {
        Ok(PyBytes::new(py, &bytes[..got.bytes]))
    }
}
