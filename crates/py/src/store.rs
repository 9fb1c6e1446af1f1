use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use slackwater_node::{GetOptions, StoreError, Stored};
use slackwater_wire::{ErrorCode, Key, List, MetricsFormat, QuotaState};

use crate::buffers::{KeyBytes, Memory, disjoint};
use crate::calls::{
    cut, each, get_options, put_options, read_one, remove_options, same_count, size_of, was_there,
};
use crate::errors::{exception, not_opened, refused};
use crate::options::{Chain, bytes_of, configuration, seconds_of, size_text};
use crate::traces::detached;
use crate::view::{View, shown, shown_together, view_options};

/// Number of forks between this process and the one that loaded the module.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// See [`crate::after_fork`].
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    slackwater_trace::forked();
}

/// Number of forks before this process, for what has threads and so does not survive one.
pub(crate) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Most keys that a list returns whose caller names no limit.
pub(crate) const LIST_KEYS_MAX: usize = 1_000_000;

/// SSD space where a path is given and no size.
const SSD_DEFAULT: &str = "16GiB";

/// A tiered store inside this process: values in DRAM over SSD.
///
/// Store(path=None, *, memory="1GiB", ssd=None, config=None, **options)
///
/// `path` is the directory of the SSD tier, made if it is missing and open in one process at a time; without one,
/// values are kept in memory only. `memory` and `ssd` are bytes, or texts such as "64GiB"; with a path, `ssd` is 16GiB
/// unless it is given. `config` is a TOML file. Every other option of the store is a keyword, with underscores for
/// dots: `policy="lru"`, `promotion_threshold=3`, `offload="on-evict"`; `slackwater config --explain` lists them. What
/// is not given comes from the environment (`SLACKWATER_…`), the file, or the defaults.
///
/// Keys are `bytes`, or `str` taken as UTF-8, of 1 to 1,024 bytes. Values are anything with the buffer protocol (bytes,
/// bytearray, memoryview, numpy arrays) or a contiguous CPU tensor. All methods may be called from any thread; other
/// threads run meanwhile. Errors are `slackwater.SlackwaterError` and its subclasses, with the number in `.code`.
#[pyclass(frozen, module = "slackwater", weakref)]
pub(crate) struct Store {
    inner: Mutex<Option<slackwater_node::Store>>,
    /// The value of [`FORKS`] in the process that opened it.
    forks: u64,
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (path=None, *, memory=None, ssd=None, config=None, **options))]
    fn new(
        py: Python<'_>,
        path: Option<PathBuf>,
        memory: Option<&Bound<'_, PyAny>>,
        ssd: Option<&Bound<'_, PyAny>>,
        config: Option<PathBuf>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut named = Vec::new();
        if let Some(memory) = memory {
            named.push(("memory".to_owned(), size_text("memory", memory)?));
        }
        if let Some(ssd) = ssd {
            named.push(("ssd".to_owned(), size_text("ssd", ssd)?));
        }
        let tiered = path.is_some();
        if let Some(path) = path {
            let path = path
                .to_str()
                .ok_or_else(|| PyValueError::new_err("path: not UTF-8"))?;
            named.push(("dir".to_owned(), path.to_owned()));
        }
        let mut config = configuration(py, config, named, options)?;
        if tiered {
            config
                .default_to("ssd", SSD_DEFAULT)
                .map_err(PyValueError::new_err)?;
        }
        let opened = py.detach(|| slackwater_node::Store::open(config));
        let store = opened.map_err(|error| not_opened(py, &error))?;
        Ok(Self {
            inner: Mutex::new(Some(store)),
            forks: FORKS.load(Ordering::Relaxed),
        })
    }

    /// put(key, value, *, upsert=False, pin=None, group=None, durable=False, wait=None, tenant=None, chain=None)
    ///
    /// Puts one value. Returns True if it was stored, False if a value of that key was there and stays; with `upsert`
    /// the new value replaces it. `pin` is "soft", "hard", or the seconds of a soft pin. Values of one `group` (a number)
    /// are evicted together. With `durable` the call returns when the value is synced to SSD. `wait` is how many seconds
    /// to wait for space.
    #[pyo3(signature = (key, value, *, upsert=false, pin=None, group=None, durable=false, wait=None, tenant=None, chain=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn put(
        &self,
        py: Python<'_>,
        key: KeyBytes,
        value: &Bound<'_, PyAny>,
        upsert: bool,
        pin: Option<&Bound<'_, PyAny>>,
        group: Option<u64>,
        durable: bool,
        wait: Option<f64>,
        tenant: Option<&str>,
        chain: Option<&Bound<'_, Chain>>,
    ) -> PyResult<bool> {
        let options = put_options(upsert, pin, group, durable, wait, tenant, chain)?;
        let (store, value) = (self.store(py)?, Memory::of(value)?);
        let (key, bytes) = (key.as_slice(), value.as_slice());
        let stored = detached(py, || store.put(key, bytes, &options));
        stored
            .map(|stored| stored == Stored::New)
            .map_err(|error| refused(py, &error))
    }

    /// put_batch(keys, values, *, upsert=False, pin=None, group=None, durable=False, wait=None, tenant=None, chain=None)
    ///
    /// Puts values; their order is the order of a chain. Returns a list with, for each key, what `put` returns, or the
    /// exception that it would raise: one failure does not affect the others.
    #[pyo3(signature = (keys, values, *, upsert=false, pin=None, group=None, durable=false, wait=None, tenant=None, chain=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn put_batch<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<KeyBytes>,
        values: Vec<Bound<'py, PyAny>>,
        upsert: bool,
        pin: Option<&Bound<'py, PyAny>>,
        group: Option<u64>,
        durable: bool,
        wait: Option<f64>,
        tenant: Option<&str>,
        chain: Option<&Bound<'py, Chain>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let options = put_options(upsert, pin, group, durable, wait, tenant, chain)?;
        same_count(py, keys.len(), "values", values.len())?;
        let store = self.store(py)?;
        let values: Vec<Memory> = values.iter().map(Memory::of).collect::<PyResult<_>>()?;
        let entries: Vec<(&[u8], &[u8])> = keys
            .iter()
            .zip(&values)
            .map(|(key, value)| (key.as_slice(), value.as_slice()))
            .collect();
        let results = detached(py, || store.put_batch(&entries, &options));
        each(py, results, |stored| Ok(stored == Stored::New))
    }

    /// get(key, *, tenant=None)
    ///
    /// The value as bytes, or None if there is none.
    #[pyo3(signature = (key, *, tenant=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: KeyBytes,
        tenant: Option<&str>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let store = self.store(py)?;
        let options = GetOptions {
            tenant: crate::options::tenant(tenant)?,
            ..GetOptions::default()
        };
        read_one(py, &store, key.as_slice(), &options)
    }

    /// get_into(key, buffer, *, tenant=None)
    ///
    /// Reads the value into the buffer, without a copy between. Returns its length, or None if there is none. The buffer
    /// may be longer; one that is shorter raises.
    #[pyo3(signature = (key, buffer, *, tenant=None))]
    fn get_into(
        &self,
        py: Python<'_>,
        key: KeyBytes,
        buffer: &Bound<'_, PyAny>,
        tenant: Option<&str>,
    ) -> PyResult<Option<usize>> {
        let store = self.store(py)?;
        let options = GetOptions {
            tenant: crate::options::tenant(tenant)?,
            ..GetOptions::default()
        };
        let mut buffer = Memory::of(buffer)?.writable()?;
        let (key, bytes) = (key.as_slice(), buffer.as_mut());
        let got = detached(py, || store.get_into(key, bytes, &options));
        got.map(|got| got.map(|got| got.bytes))
            .map_err(|error| refused(py, &error))
    }

    /// get_batch(keys, *, prefix_only=False, tenant=None, chain=None)
    ///
    /// Reads values; the order of the keys is the order of a chain. Returns a list with, for each key, the bytes, None,
    /// or the exception. With `prefix_only` the first key that is missing ends the reading: the rest are None.
    #[pyo3(signature = (keys, *, prefix_only=false, tenant=None, chain=None))]
    fn get_batch<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<KeyBytes>,
        prefix_only: bool,
        tenant: Option<&str>,
        chain: Option<&Bound<'py, Chain>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let store = self.store(py)?;
        let options = get_options(prefix_only, tenant, chain)?;
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        let sizes = py.detach(|| {
            keys.iter()
                .map(|key| size_of(&store, key, &options.tenant))
                .collect::<Vec<_>>()
        });
        let mut values = Vec::with_capacity(keys.len());
        let mut memory = Vec::with_capacity(keys.len());
        for size in sizes {
            let (value, bytes) = Memory::fresh(py, size)?;
            values.push(value);
            memory.push(bytes);
        }
        let mut buffers: Vec<&mut [u8]> = memory.iter_mut().map(AsMut::as_mut).collect();
        let results = detached(py, || store.get_batch_into(&keys, &mut buffers, &options));
        let list = PyList::empty(py);
        for ((result, value), key) in results.into_iter().zip(values).zip(keys) {
            list.append(match result {
                Ok(Some(got)) => cut(py, value, got)?.into_any(),
                Ok(None) => py.None().into_bound(py),
                // Put or replaced since its size was looked up.
                Err(StoreError::BufferTooSmall { .. }) => read_one(py, &store, key, &options)?
                    .into_pyobject(py)?
                    .into_any(),
                Err(error) => refused(py, &error).into_value(py).into_bound(py).into_any(),
            })?;
        }
        Ok(list)
    }

    /// get_batch_into(keys, buffers, *, prefix_only=False, tenant=None, chain=None)
    ///
    /// Reads values into buffers, one each, without a copy between. Returns a list with, for each key, the length of its
    /// value, None, or the exception.
    #[pyo3(signature = (keys, buffers, *, prefix_only=false, tenant=None, chain=None))]
    fn get_batch_into<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<KeyBytes>,
        buffers: Vec<Bound<'py, PyAny>>,
        prefix_only: bool,
        tenant: Option<&str>,
        chain: Option<&Bound<'py, Chain>>,
    ) -> PyResult<Bound<'py, PyList>> {
        same_count(py, keys.len(), "buffers", buffers.len())?;
        let store = self.store(py)?;
        let options = get_options(prefix_only, tenant, chain)?;
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        let memory: Vec<Memory> = buffers.iter().map(Memory::of).collect::<PyResult<_>>()?;
        let mut memory = disjoint(memory)?;
        let mut buffers: Vec<&mut [u8]> = memory.iter_mut().map(AsMut::as_mut).collect();
        let results = detached(py, || store.get_batch_into(&keys, &mut buffers, &options));
        each(py, results, |got| Ok(got.map(|got| got.bytes)))
    }

    /// view(key, *, verify=False, tenant=None, chain=None)
    ///
    /// A view of the value where it lies, without a copy; None if there is none. `with store.view(key) as memory` gives a
    /// read-only memoryview. The memory stays as it is until the view is closed, as at the end of the block, and nothing
    /// else refers to it, whatever becomes of the key and of the store meanwhile. With `verify` its bytes are compared with
    /// their checksum once more.
    #[pyo3(signature = (key, *, verify=false, tenant=None, chain=None))]
    fn view(
        &self,
        py: Python<'_>,
        key: KeyBytes,
        verify: bool,
        tenant: Option<&str>,
        chain: Option<&Bound<'_, Chain>>,
    ) -> PyResult<Option<View>> {
        let store = self.store(py)?;
        let options = view_options(false, verify, tenant, chain)?;
        let key = key.as_slice();
        let view = detached(py, || store.view(key, &options));
        let view = view.map_err(|error| refused(py, &error))?;
        view.map(|view| shown(py, view)).transpose()
    }

    /// view_batch(keys, *, prefix_only=False, verify=False, tenant=None, chain=None)
    ///
    /// Views of values; the order of the keys is the order of a chain. Returns a list with, for each key, what `view`
    /// returns, or the exception that it would raise. The list is a context manager that gives the memoryview of each and
    /// closes them all.
    #[pyo3(signature = (keys, *, prefix_only=false, verify=false, tenant=None, chain=None))]
    fn view_batch<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<KeyBytes>,
        prefix_only: bool,
        verify: bool,
        tenant: Option<&str>,
        chain: Option<&Bound<'py, Chain>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let store = self.store(py)?;
        let options = view_options(prefix_only, verify, tenant, chain)?;
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        let views = detached(py, || store.view_batch(&keys, &options));
        shown_together(py, views)
    }

    /// exists(key, *, tenant=None)
    ///
    /// Whether the key has a value that can be read.
    #[pyo3(signature = (key, *, tenant=None))]
    fn exists(&self, py: Python<'_>, key: KeyBytes, tenant: Option<&str>) -> PyResult<bool> {
        Ok(self
            .exists_batch(py, vec![key], tenant)?
            .first()
            .copied()
            .unwrap_or(false))
    }

    /// exists_batch(keys, *, tenant=None)
    ///
    /// Whether each key has a value that can be read.
    #[pyo3(signature = (keys, *, tenant=None))]
    fn exists_batch(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        tenant: Option<&str>,
    ) -> PyResult<Vec<bool>> {
        let (store, tenant) = (self.store(py)?, crate::options::tenant(tenant)?);
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        let there = detached(py, || store.exists(&keys, &tenant));
        there.map_err(|error| refused(py, &error))
    }

    fn __contains__(&self, py: Python<'_>, key: KeyBytes) -> PyResult<bool> {
        self.exists(py, key, None)
    }

    /// remove(key, *, force=False, tenant=None)
    ///
    /// Removes the value for good. Returns False if there was none. A value that a reader holds a lease on raises
    /// unless `force` is set.
    #[pyo3(signature = (key, *, force=false, tenant=None))]
    fn remove(
        &self,
        py: Python<'_>,
        key: KeyBytes,
        force: bool,
        tenant: Option<&str>,
    ) -> PyResult<bool> {
        let (store, options) = (self.store(py)?, remove_options(force, tenant)?);
        let key = key.as_slice();
        let removed = detached(py, || store.remove(&[key], &options));
        removed
            .into_iter()
            .next()
            .map_or(Ok(false), was_there)
            .map_err(|error| refused(py, &error))
    }

    /// remove_batch(keys, *, force=False, tenant=None)
    ///
    /// Removes values. Returns a list with, for each key, what `remove` returns, or the exception.
    #[pyo3(signature = (keys, *, force=false, tenant=None))]
    fn remove_batch<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<KeyBytes>,
        force: bool,
        tenant: Option<&str>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (store, options) = (self.store(py)?, remove_options(force, tenant)?);
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        let removed = detached(py, || store.remove(&keys, &options));
        each(py, removed.into_iter().map(was_there).collect(), Ok)
    }

    /// remove_matching(pattern, *, force=False, tenant=None)
    ///
    /// Removes every value in whose key the regular expression is found. Returns how many.
    #[pyo3(signature = (pattern, *, force=false, tenant=None))]
    fn remove_matching(
        &self,
        py: Python<'_>,
        pattern: &str,
        force: bool,
        tenant: Option<&str>,
    ) -> PyResult<u64> {
        let (store, options) = (self.store(py)?, remove_options(force, tenant)?);
        let removed = detached(py, || store.remove_matching(pattern, &options));
        removed.map_err(|error| refused(py, &error))
    }

    /// remove_all(*, force=False, tenant=None)
    ///
    /// Removes every value of the tenant. Returns how many.
    #[pyo3(signature = (*, force=false, tenant=None))]
    fn remove_all(&self, py: Python<'_>, force: bool, tenant: Option<&str>) -> PyResult<u64> {
        let (store, options) = (self.store(py)?, remove_options(force, tenant)?);
        let removed = detached(py, || store.remove_all(&options));
        removed.map_err(|error| refused(py, &error))
    }

    /// list(*, pattern=None, after=None, limit=None, tenant=None)
    ///
    /// Keys in byte order as a list of bytes: those after `after`, only those in which the regular expression is found.
    /// With `limit`, at most that many; a list that is shorter than `limit` contains the last key. Pass its last key as
    /// `after` for the next page. Without `limit`, all of them, and an error when there are more than 1,000,000.
    #[pyo3(signature = (*, pattern=None, after=None, limit=None, tenant=None))]
    fn list<'py>(
        &self,
        py: Python<'py>,
        pattern: Option<String>,
        after: Option<KeyBytes>,
        limit: Option<usize>,
        tenant: Option<&str>,
    ) -> PyResult<Bound<'py, PyList>> {
        let store = self.store(py)?;
        let after = after.map(|key| Key::new(key.as_slice())).transpose();
        let after = after.map_err(|error| refused(py, &StoreError::Key(error)))?;
        let list = List {
            tenant: crate::options::tenant(tenant)?,
            pattern,
            after,
            limit: u32::MAX,
        };
        let keys = py
            .detach(|| match limit {
                Some(limit) => store.list_up_to(list, limit),
                None => store.list_all(list, LIST_KEYS_MAX),
            })
            .map_err(|error| refused(py, &error))?;
        PyList::new(py, keys.iter().map(|key| PyBytes::new(py, key.as_bytes())))
    }

    /// set_quota(tenant, *, memory, ssd=None)
    ///
    /// Sets or changes how many bytes the tenant may keep in memory and on SSD. With the option `tenants`, a tenant needs
    /// a quota before its first put.
    #[pyo3(signature = (tenant, *, memory, ssd=None))]
    fn set_quota(
        &self,
        py: Python<'_>,
        tenant: &str,
        memory: &Bound<'_, PyAny>,
        ssd: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (store, tenant) = (self.store(py)?, crate::options::tenant(Some(tenant))?);
        let memory = bytes_of("memory", memory)?;
        let ssd = ssd.map_or(Ok(0), |ssd| bytes_of("ssd", ssd))?;
        py.detach(|| store.set_quota(&tenant, memory, ssd))
            .map_err(|error| refused(py, &error))
    }

    /// delete_quota(tenant)
    ///
    /// Forgets the quota of a tenant that has no values.
    fn delete_quota(&self, py: Python<'_>, tenant: &str) -> PyResult<()> {
        let (store, tenant) = (self.store(py)?, crate::options::tenant(Some(tenant))?);
        py.detach(|| store.delete_quota(&tenant))
            .map_err(|error| refused(py, &error))
    }

    /// quotas()
    ///
    /// Quotas and use of every tenant that has either, as a list of dictionaries: `tenant`, `memory_quota` and `ssd_quota`
    /// (bytes, None without a quota), `memory_bytes` and `ssd_bytes` that it holds, `objects`. The default tenant's name
    /// is "default".
    fn quotas<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let store = self.store(py)?;
        let states = py
            .detach(|| store.quotas())
            .map_err(|error| refused(py, &error))?;
        quotas_of(py, &states)
    }

    /// explain(key, *, tenant=None)
    ///
    /// Why each tier keeps the value, or will evict it: a list of dictionaries with `tier`, `held`, `policy`, `learned`
    /// (class, reuses, age_s, index, lowest_index, returns) and `words`. None if there is no value.
    #[pyo3(signature = (key, *, tenant=None))]
    fn explain<'py>(
        &self,
        py: Python<'py>,
        key: KeyBytes,
        tenant: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (store, tenant) = (self.store(py)?, crate::options::tenant(tenant)?);
        let key = key.as_slice();
        let reasons = py
            .detach(|| store.explain(key, &tenant))
            .map_err(|error| refused(py, &error))?;
        as_objects(py, serde_json::to_string(&reasons))
    }

    /// stats()
    ///
    /// What the store counts, as nested dictionaries: objects, memory, ssd, reads, puts, promotions, evictions, latency.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let store = self.store(py)?;
        let text = py.detach(|| serde_json::to_string(&store.stats()));
        as_objects(py, text)
    }

    /// metrics()
    ///
    /// The same as metrics in the text form of Prometheus.
    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        let store = self.store(py)?;
        Ok(py.detach(|| store.metrics_text(MetricsFormat::Prometheus)))
    }

    /// flush(timeout=60.0)
    ///
    /// Returns when everything queued for SSD is durable, or raises after `timeout` seconds.
    #[pyo3(signature = (timeout=60.0))]
    fn flush(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let (store, timeout) = (self.store(py)?, seconds_of("timeout", timeout)?);
        py.detach(|| store.flush(timeout))
            .map_err(|error| refused(py, &error))
    }

    /// close()
    ///
    /// Writes what the offload mode requires, and closes. Later calls raise; closing again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(store) = self.take() else {
            return Ok(());
        };
        py.detach(|| store.close())
            .map_err(|error| refused(py, &error))
    }

    /// Whether the store was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_none()
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(
        &self,
        py: Python<'_>,
        _exception: &Bound<'_, pyo3::types::PyTuple>,
    ) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> &'static str {
        if self.closed() {
            "<slackwater.Store, closed>"
        } else {
            "<slackwater.Store, open>"
        }
    }
}

impl Store {
    /// The store behind this object, for one call.
    fn store(&self, py: Python<'_>) -> PyResult<slackwater_node::Store> {
        if self.forks != FORKS.load(Ordering::Relaxed) {
            let message =
                "this process is a fork of the one that opened the store: open one after the fork";
            return Err(exception(py, ErrorCode::NotSupported, message));
        }
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner
            .clone()
            .ok_or_else(|| refused(py, &StoreError::Closed))
    }

    /// The store, to be closed. In a fork its threads do not exist, so they are not joined.
    fn take(&self) -> Option<slackwater_node::Store> {
        let store = self
            .inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()?;
        if self.forks == FORKS.load(Ordering::Relaxed) {
            return Some(store);
        }
        std::mem::forget(store);
        None
    }
}

impl Drop for Store {
    /// Closing joins threads: other threads of Python may run meanwhile.
    fn drop(&mut self) {
        if let Some(store) = self.take() {
            Python::attach(|py| py.detach(|| drop(store)));
        }
    }
}

/// Quotas and use of tenants as dictionaries.
pub(crate) fn quotas_of<'py>(
    py: Python<'py>,
    states: &[QuotaState],
) -> PyResult<Bound<'py, PyList>> {
    let states: PyResult<Vec<_>> = states.iter().map(|state| quota_of(py, state)).collect();
    PyList::new(py, states?)
}

fn quota_of<'py>(py: Python<'py>, state: &QuotaState) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("tenant", state.tenant.to_string())?;
    entry.set_item("memory_quota", state.memory_quota)?;
    entry.set_item("ssd_quota", state.disk_quota)?;
    entry.set_item("memory_bytes", state.memory_bytes)?;
    entry.set_item("ssd_bytes", state.disk_bytes)?;
    entry.set_item("objects", state.objects)?;
    Ok(entry)
}

/// JSON as dictionaries, lists, numbers and texts of Python.
pub(crate) fn as_objects(
    py: Python<'_>,
    text: serde_json::Result<String>,
) -> PyResult<Bound<'_, PyAny>> {
    let text = text.map_err(|error| exception(py, ErrorCode::SerializeFail, &error.to_string()))?;
    py.import("json")?.call_method1("loads", (text,))
}
