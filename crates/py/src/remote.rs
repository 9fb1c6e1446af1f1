use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use slackwater_mq::Address;
use slackwater_remote::{
    CallOptions, ClientError, ConnectOptions, GetOptions, PutOptions, RemoveOptions, Stored,
};
use slackwater_wire::{ErrorCode, Key, List};

use crate::buffers::{KeyBytes, Memory, disjoint};
use crate::calls::{each, put_options, same_count, was_there};
use crate::cancelling::current;
use crate::errors::{exception, not_connected, refused};
use crate::options::{Chain, chain, seconds_of, tenant};
use crate::store::{LIST_KEYS_MAX, forks};
use crate::traces::detached;

/// connect(address="tcp://127.0.0.1:50051", *, key_file=None, timeout=10.0)
///
/// Connects to a store that another process serves, as `slackwater serve` does. `address` with the server's public key
/// (`curve://HOST:PORT/KEY`) encrypts everything, and needs the file of our secret key. Each call may take `timeout`
/// seconds; while the server is away, calls wait for it until then.
#[pyfunction]
#[pyo3(signature = (address=None, *, key_file=None, timeout=10.0))]
pub(crate) fn connect(
    py: Python<'_>,
    address: Option<&str>,
    key_file: Option<PathBuf>,
    timeout: f64,
) -> PyResult<Client> {
    let defaults = ConnectOptions::default();
    let address = match address {
        Some(text) => text
            .parse::<Address>()
            .map_err(|error| PyValueError::new_err(format!("address: {error}")))?,
        None => defaults.address,
    };
    let deadline = seconds_of("timeout", timeout)?;
    let options = ConnectOptions {
        address,
        key_file,
        deadline,
        connect_timeout: defaults.connect_timeout.min(deadline),
        ..defaults
    };
    let connected = py.detach(|| slackwater_remote::Client::connect(&options));
    let client = connected.map_err(|error| not_connected(py, &error))?;
    Ok(Client {
        inner: Mutex::new(Some(client)),
        forks: forks(),
    })
}

/// A client of a store that another process serves; made by `slackwater.connect`.
///
/// Its methods are those of `Store` that make sense from afar, with the same arguments and results.
#[pyclass(frozen, module = "slackwater", weakref)]
pub(crate) struct Client {
    inner: Mutex<Option<slackwater_remote::Client>>,
    /// The number of forks before the process that connected.
    forks: u64,
}

#[pymethods]
impl Client {
    /// put(key, value, *, upsert=False, pin=None, group=None, durable=False, wait=None, tenant=None, chain=None)
    ///
    /// As `Store.put`.
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
        let options = from_afar(put_options(
            upsert, pin, group, durable, wait, tenant, chain,
        )?);
        let (client, value) = (self.client(py)?, Memory::of(value)?);
        let (key, bytes) = (key.as_slice(py), value.as_slice());
        let stored = detached(py, || client.put(key, bytes, &options));
        stored
            .map(|stored| stored == Stored::New)
            .map_err(|error| refused(py, &error))
    }

    /// put_batch(keys, values, *, upsert=False, pin=None, group=None, durable=False, wait=None, tenant=None, chain=None)
    ///
    /// As `Store.put_batch`.
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
        let options = from_afar(put_options(
            upsert, pin, group, durable, wait, tenant, chain,
        )?);
        same_count(py, keys.len(), "values", values.len())?;
        let client = self.client(py)?;
        let values: Vec<Memory> = values.iter().map(Memory::of).collect::<PyResult<_>>()?;
        let entries: Vec<(&[u8], &[u8])> = keys
            .iter()
            .zip(&values)
            .map(|(key, value)| (key.as_slice(py), value.as_slice()))
            .collect();
        let results = detached(py, || client.put_batch(&entries, &options));
        each(py, results, |stored| Ok(stored == Stored::New))
    }

    /// get(key, *, tenant=None)
    ///
    /// As `Store.get`.
    #[pyo3(signature = (key, *, tenant=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: KeyBytes,
        tenant: Option<&str>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let (client, options) = (self.client(py)?, get_options(false, tenant, None)?);
        let key = key.as_slice(py);
        let value = detached(py, || client.get(key, &options));
        let value = value.map_err(|error| refused(py, &error))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    /// get_into(key, buffer, *, tenant=None)
    ///
    /// As `Store.get_into`.
    #[pyo3(signature = (key, buffer, *, tenant=None))]
    fn get_into(
        &self,
        py: Python<'_>,
        key: KeyBytes,
        buffer: &Bound<'_, PyAny>,
        tenant: Option<&str>,
    ) -> PyResult<Option<usize>> {
        let (client, options) = (self.client(py)?, get_options(false, tenant, None)?);
        let mut buffer = Memory::of(buffer)?;
        let (key, bytes) = (key.as_slice(py), buffer.as_mut_slice()?);
        if let Some(read) = client.get_into_at_hand(key, bytes, &options) {
            return Ok(Some(read));
        }
        let got = detached(py, || client.get_into(key, bytes, &options));
        got.map_err(|error| refused(py, &error))
    }

    /// get_batch(keys, *, prefix_only=False, tenant=None, chain=None)
    ///
    /// As `Store.get_batch`.
    #[pyo3(signature = (keys, *, prefix_only=false, tenant=None, chain=None))]
    fn get_batch<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<KeyBytes>,
        prefix_only: bool,
        tenant: Option<&str>,
        chain: Option<&Bound<'py, Chain>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let client = self.client(py)?;
        let options = get_options(prefix_only, tenant, chain)?;
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice(py)).collect();
        let results = detached(py, || client.get_batch(&keys, &options));
        each(py, results, |value| {
            Ok(value.map(|value| PyBytes::new(py, &value)))
        })
    }

    /// get_batch_into(keys, buffers, *, prefix_only=False, tenant=None, chain=None)
    ///
    /// As `Store.get_batch_into`.
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
        let client = self.client(py)?;
        let options = get_options(prefix_only, tenant, chain)?;
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice(py)).collect();
        let mut memory: Vec<Memory> = buffers.iter().map(Memory::of).collect::<PyResult<_>>()?;
        let mut buffers = disjoint(&mut memory)?;
        let results = detached(py, || client.get_batch_into(&keys, &mut buffers, &options));
        each(py, results, Ok)
    }

    /// exists(key, *, tenant=None)
    ///
    /// As `Store.exists`.
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
    /// As `Store.exists_batch`.
    #[pyo3(signature = (keys, *, tenant=None))]
    fn exists_batch(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        tenant: Option<&str>,
    ) -> PyResult<Vec<bool>> {
        let (client, options) = (self.client(py)?, call_options(tenant)?);
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice(py)).collect();
        let there = detached(py, || client.exists(&keys, &options));
        there.map_err(|error| refused(py, &error))
    }

    fn __contains__(&self, py: Python<'_>, key: KeyBytes) -> PyResult<bool> {
        self.exists(py, key, None)
    }

    /// remove(key, *, force=False, tenant=None)
    ///
    /// As `Store.remove`.
    #[pyo3(signature = (key, *, force=false, tenant=None))]
    fn remove(
        &self,
        py: Python<'_>,
        key: KeyBytes,
        force: bool,
        tenant: Option<&str>,
    ) -> PyResult<bool> {
        let (client, call) = (self.client(py)?, call_options(tenant)?);
        let (key, options) = (key.as_slice(py), RemoveOptions { call, force });
        let removed = detached(py, || client.remove(&[key], &options));
        removed
            .into_iter()
            .next()
            .map_or(Ok(false), was_there)
            .map_err(|error| refused(py, &error))
    }

    /// remove_batch(keys, *, force=False, tenant=None)
    ///
    /// As `Store.remove_batch`.
    #[pyo3(signature = (keys, *, force=false, tenant=None))]
    fn remove_batch<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<KeyBytes>,
        force: bool,
        tenant: Option<&str>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (client, call) = (self.client(py)?, call_options(tenant)?);
        let options = RemoveOptions { call, force };
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice(py)).collect();
        let removed = detached(py, || client.remove(&keys, &options));
        each(py, removed.into_iter().map(was_there).collect(), Ok)
    }

    /// list(*, pattern=None, after=None, limit=None, tenant=None)
    ///
    /// As `Store.list`.
    #[pyo3(signature = (*, pattern=None, after=None, limit=None, tenant=None))]
    fn list<'py>(
        &self,
        py: Python<'py>,
        pattern: Option<String>,
        after: Option<KeyBytes>,
        limit: Option<usize>,
        tenant: Option<&str>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (client, options) = (self.client(py)?, call_options(tenant)?);
        let after = after.map(|key| Key::new(key.as_slice(py))).transpose();
        let after = after.map_err(|error| refused(py, &ClientError::Key(error)))?;
        let list = List {
            tenant: options.tenant.clone(),
            pattern,
            after,
            limit: u32::MAX,
        };
        let most = limit.unwrap_or(LIST_KEYS_MAX);
        let (keys, more) = py
            .detach(|| client.list_up_to(list, most, &options))
            .map_err(|error| refused(py, &error))?;
        if more && limit.is_none() {
            let message = format!(
                "more than {most} keys: name a limit, and go on after the last key of each list"
            );
            return Err(exception(py, ErrorCode::InvalidParams, &message));
        }
        PyList::new(py, keys.iter().map(|key| PyBytes::new(py, key.as_bytes())))
    }

    /// close()
    ///
    /// Ends the connection. Later calls raise; closing again does nothing.
    fn close(&self, py: Python<'_>) {
        let client = self.take();
        py.detach(|| drop(client));
    }

    /// Whether the client was closed.
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
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> &'static str {
        if self.closed() {
            "<slackwater.Client, closed>"
        } else {
            "<slackwater.Client, open>"
        }
    }
}

impl Client {
    /// The client behind this object, for one call.
    fn client(&self, py: Python<'_>) -> PyResult<slackwater_remote::Client> {
        if self.forks != forks() {
            let message =
                "this process is a fork of the one that connected: connect after the fork";
            return Err(exception(py, ErrorCode::NotSupported, message));
        }
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || exception(py, ErrorCode::ShuttingDown, "the client is closed");
        inner.clone().ok_or_else(closed)
    }

    /// The client, to be closed. In a fork its threads do not exist, so they are not joined.
    fn take(&self) -> Option<slackwater_remote::Client> {
        let client = self
            .inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()?;
        if self.forks == forks() {
            return Some(client);
        }
        std::mem::forget(client);
        None
    }
}

impl Drop for Client {
    /// Closing joins threads: other threads of Python may run meanwhile.
    fn drop(&mut self) {
        if let Some(client) = self.take() {
            Python::attach(|py| py.detach(|| drop(client)));
        }
    }
}

fn call_options(name: Option<&str>) -> PyResult<CallOptions> {
    Ok(CallOptions {
        tenant: tenant(name)?,
        cancel: current(),
        ..CallOptions::default()
    })
}

fn get_options(
    prefix_only: bool,
    name: Option<&str>,
    given: Option<&Bound<'_, Chain>>,
) -> PyResult<GetOptions> {
    Ok(GetOptions {
        call: call_options(name)?,
        chain: chain(given),
        prefix_only,
    })
}

/// The options of a put by a client, from those of an embedded one.
fn from_afar(options: slackwater_node::PutOptions) -> PutOptions {
    PutOptions {
        call: CallOptions {
            tenant: options.tenant,
            cancel: current(),
            ..CallOptions::default()
        },
        mode: options.mode,
        pin: options.pin,
        group: options.group,
        durability: options.durability,
        wait: options.wait,
        chain: options.chain,
        ..PutOptions::default()
    }
}
