mod described;
mod figures;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use slackwater_mq::Address;
use slackwater_remote::{
    CallOptions, Calls, ClientError, ConnectOptions, GetOptions, PutOptions, RemoveOptions, Stored,
    Waits, here,
};
use slackwater_wire::{Described, Description, Durability, ErrorCode, Key, List};

use self::figures::Figures;
use crate::awaiting::awaited;
use crate::buffers::{KeyBytes, Memory, disjoint};
use crate::calls::{each, put_options, same_count, was_there};
use crate::cancelling::current;
use crate::errors::{exception, not_connected, refused};
use crate::options::{Chain, bytes_of, chain, seconds_of, tenant};
use crate::store::{LIST_KEYS_MAX, as_objects, forks, quotas_of};
use crate::traces::detached;
use crate::view::{shown, shown_together};

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
/// Its methods are those of `Store`, with the same arguments and results, and `stat`; each takes a `timeout` of its own. There
/// is no `flush`: the queue before the SSD is the server's, and a put with `durable` returns when its value is synced.
#[pyclass(frozen, module = "slackwater", weakref)]
pub(crate) struct Client {
    inner: Mutex<Option<slackwater_remote::Client>>,
    /// The number of forks before the process that connected.
    forks: u64,
}

#[pymethods]
impl Client {
    /// put(key, value, *, upsert=False, pin=None, group=None, durable=False, wait=None, replicas=1,
    /// replicated=False, preferred=None, tenant=None, chain=None, timeout=None)
    ///
    /// As `Store.put`, with `replicas` copies in memory of different nodes, fewer where there are fewer nodes, and the
    /// segments of these names tried first. With `replicated` the call returns when there are so many, each on another host,
    /// and is refused where there are fewer hosts.
    #[pyo3(signature = (key, value, *, upsert=false, pin=None, group=None, durable=false, wait=None, replicas=1, replicated=false, preferred=None, tenant=None, chain=None, timeout=None))]
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
        replicas: u32,
        replicated: bool,
        preferred: Option<Vec<String>>,
        tenant: Option<&str>,
        chain: Option<&Bound<'_, Chain>>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let options = put_options(upsert, pin, group, durable, wait, tenant, chain)?;
        let options = PutOptions {
            replicas,
            durability: replicated_or(options.durability, replicated)?,
            preferred: preferred.unwrap_or_default(),
            ..from_afar(options, timeout)?
        };
        let entry = vec![(key, Memory::of(value)?)];
        let put = async move |calls: Calls| calls.put_batch(entry, options).await;
        self.make(py, put, |py, (stored, entry)| {
            drop(entry);
            object(py, only(stored).map(|stored| stored == Stored::New))
        })
    }

    /// put_batch(keys, values, *, upsert=False, pin=None, group=None, durable=False, wait=None, replicas=1,
    /// replicated=False, preferred=None, tenant=None, chain=None, timeout=None)
    ///
    /// As `Store.put_batch`, with the further options of `put`.
    #[pyo3(signature = (keys, values, *, upsert=false, pin=None, group=None, durable=false, wait=None, replicas=1, replicated=false, preferred=None, tenant=None, chain=None, timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn put_batch(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        values: Vec<Bound<'_, PyAny>>,
        upsert: bool,
        pin: Option<&Bound<'_, PyAny>>,
        group: Option<u64>,
        durable: bool,
        wait: Option<f64>,
        replicas: u32,
        replicated: bool,
        preferred: Option<Vec<String>>,
        tenant: Option<&str>,
        chain: Option<&Bound<'_, Chain>>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let options = put_options(upsert, pin, group, durable, wait, tenant, chain)?;
        let options = PutOptions {
            replicas,
            durability: replicated_or(options.durability, replicated)?,
            preferred: preferred.unwrap_or_default(),
            ..from_afar(options, timeout)?
        };
        same_count(py, keys.len(), "values", values.len())?;
        let values: Vec<Memory> = values.iter().map(Memory::of).collect::<PyResult<_>>()?;
        let entries = keys.into_iter().zip(values).collect();
        let put = async move |calls: Calls| calls.put_batch(entries, options).await;
        self.make(py, put, |py, (results, entries)| {
            drop(entries);
            list_of(each(py, results, |stored| Ok(stored == Stored::New)))
        })
    }

    /// get(key, *, tenant=None, timeout=None)
    ///
    /// As `Store.get`.
    #[pyo3(signature = (key, *, tenant=None, timeout=None))]
    fn get(
        &self,
        py: Python<'_>,
        key: KeyBytes,
        tenant: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let options = get_options(false, tenant, None, timeout)?;
        let get = async move |calls: Calls| only(calls.get_batch(vec![key], options).await);
        self.make(py, get, |py, value| {
            let bytes = |value: Vec<u8>| PyBytes::new(py, &value).unbind();
            object(py, value.map(|value| value.map(bytes)))
        })
    }

    /// get_into(key, buffer, *, tenant=None, timeout=None)
    ///
    /// As `Store.get_into`.
    #[pyo3(signature = (key, buffer, *, tenant=None, timeout=None))]
    fn get_into(
        &self,
        py: Python<'_>,
        key: KeyBytes,
        buffer: &Bound<'_, PyAny>,
        tenant: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let (client, options) = (self.client(py)?, get_options(false, tenant, None, timeout)?);
        let mut buffer = Memory::of(buffer)?.writable()?;
        let at_hand = client.get_into_at_hand(key.as_slice(), buffer.as_mut(), &options);
        if let Some(read) = at_hand {
            return read.into_py_any(py);
        }
        let get = async move |calls: Calls| {
            let (read, buffers) = calls.get_batch_into(vec![key], vec![buffer], options).await;
            (only(read), buffers)
        };
        self.make(py, get, |py, (read, buffers)| {
            drop(buffers);
            object(py, read)
        })
    }

    /// get_batch(keys, *, prefix_only=False, tenant=None, chain=None, timeout=None)
    ///
    /// As `Store.get_batch`.
    #[pyo3(signature = (keys, *, prefix_only=false, tenant=None, chain=None, timeout=None))]
    fn get_batch(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        prefix_only: bool,
        tenant: Option<&str>,
        chain: Option<&Bound<'_, Chain>>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let options = get_options(prefix_only, tenant, chain, timeout)?;
        let get = async move |calls: Calls| calls.get_batch(keys, options).await;
        self.make(py, get, |py, results| {
            let bytes = |value: Vec<u8>| PyBytes::new(py, &value);
            list_of(each(py, results, |value| Ok(value.map(bytes))))
        })
    }

    /// get_batch_into(keys, buffers, *, prefix_only=False, tenant=None, chain=None, timeout=None)
    ///
    /// As `Store.get_batch_into`.
    #[pyo3(signature = (keys, buffers, *, prefix_only=false, tenant=None, chain=None, timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn get_batch_into(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        buffers: Vec<Bound<'_, PyAny>>,
        prefix_only: bool,
        tenant: Option<&str>,
        chain: Option<&Bound<'_, Chain>>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        same_count(py, keys.len(), "buffers", buffers.len())?;
        let options = get_options(prefix_only, tenant, chain, timeout)?;
        let memory: Vec<Memory> = buffers.iter().map(Memory::of).collect::<PyResult<_>>()?;
        let memory = disjoint(memory)?;
        let get = async move |calls: Calls| calls.get_batch_into(keys, memory, options).await;
        self.make(py, get, |py, (results, buffers)| {
            drop(buffers);
            list_of(each(py, results, Ok))
        })
    }

    /// view(key, *, verify=False, tenant=None, chain=None, timeout=None)
    ///
    /// As `Store.view`, of memory that belongs to the view: the value is read into it once, and stays there until nothing
    /// refers to the view any more. Nobody else waits for that, nor does a removal.
    #[pyo3(signature = (key, *, verify=false, tenant=None, chain=None, timeout=None))]
    fn view(
        &self,
        py: Python<'_>,
        key: KeyBytes,
        verify: bool,
        tenant: Option<&str>,
        chain: Option<&Bound<'_, Chain>>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let options = get_options(false, tenant, chain, timeout)?;
        let view = async move |calls: Calls| {
            let views = calls.view_batch(vec![key], options).await;
            verified(only(views), verify)
        };
        self.make(py, view, |py, view| {
            let view = view.map_err(|error| refused(py, &error))?;
            let shown = view.map(|view| shown(py, view)).transpose()?;
            shown.into_py_any(py)
        })
    }

    /// view_batch(keys, *, prefix_only=False, verify=False, tenant=None, chain=None, timeout=None)
    ///
    /// As `Store.view_batch`, of memory as that of `view`.
    #[pyo3(signature = (keys, *, prefix_only=false, verify=false, tenant=None, chain=None, timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn view_batch(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        prefix_only: bool,
        verify: bool,
        tenant: Option<&str>,
        chain: Option<&Bound<'_, Chain>>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let options = get_options(prefix_only, tenant, chain, timeout)?;
        let view = async move |calls: Calls| {
            let views = calls.view_batch(keys, options).await.into_iter();
            views.map(|view| verified(view, verify)).collect()
        };
        self.make(
            py,
            view,
            |py, views| Ok(shown_together(py, views)?.unbind()),
        )
    }

    /// exists(key, *, tenant=None, timeout=None)
    ///
    /// As `Store.exists`.
    #[pyo3(signature = (key, *, tenant=None, timeout=None))]
    fn exists(
        &self,
        py: Python<'_>,
        key: KeyBytes,
        tenant: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let options = call_options(tenant, timeout)?;
        let exists = async move |calls: Calls| calls.exists(vec![key], options).await;
        self.make(py, exists, |py, there| {
            object(py, there.map(|there| there == [true]))
        })
    }

    /// exists_batch(keys, *, tenant=None, timeout=None)
    ///
    /// As `Store.exists_batch`.
    #[pyo3(signature = (keys, *, tenant=None, timeout=None))]
    fn exists_batch(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        tenant: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let options = call_options(tenant, timeout)?;
        let exists = async move |calls: Calls| calls.exists(keys, options).await;
        self.make(py, exists, object)
    }

    fn __contains__(&self, py: Python<'_>, key: KeyBytes) -> PyResult<bool> {
        self.exists(py, key, None, None)?.extract(py)
    }

    /// remove(key, *, force=False, tenant=None, timeout=None)
    ///
    /// As `Store.remove`.
    #[pyo3(signature = (key, *, force=false, tenant=None, timeout=None))]
    fn remove(
        &self,
        py: Python<'_>,
        key: KeyBytes,
        force: bool,
        tenant: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let call = call_options(tenant, timeout)?;
        let options = RemoveOptions { call, force };
        let remove = async move |calls: Calls| only(calls.remove(vec![key], options).await);
        self.make(py, remove, |py, removed| object(py, was_there(removed)))
    }

    /// remove_batch(keys, *, force=False, tenant=None, timeout=None)
    ///
    /// As `Store.remove_batch`.
    #[pyo3(signature = (keys, *, force=false, tenant=None, timeout=None))]
    fn remove_batch(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        force: bool,
        tenant: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let call = call_options(tenant, timeout)?;
        let options = RemoveOptions { call, force };
        let remove = async move |calls: Calls| calls.remove(keys, options).await;
        self.make(py, remove, |py, removed| {
            list_of(each(py, removed.into_iter().map(was_there).collect(), Ok))
        })
    }

    /// remove_matching(pattern, *, force=False, tenant=None, timeout=None)
    ///
    /// As `Store.remove_matching`.
    #[pyo3(signature = (pattern, *, force=false, tenant=None, timeout=None))]
    fn remove_matching(
        &self,
        py: Python<'_>,
        pattern: String,
        force: bool,
        tenant: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let call = call_options(tenant, timeout)?;
        let options = RemoveOptions { call, force };
        let remove = async move |calls: Calls| calls.remove_matching(pattern, options).await;
        self.make(py, remove, object)
    }

    /// remove_all(*, force=False, tenant=None, timeout=None)
    ///
    /// As `Store.remove_all`.
    #[pyo3(signature = (*, force=false, tenant=None, timeout=None))]
    fn remove_all(
        &self,
        py: Python<'_>,
        force: bool,
        tenant: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let call = call_options(tenant, timeout)?;
        let options = RemoveOptions { call, force };
        let remove = async move |calls: Calls| calls.remove_all(options).await;
        self.make(py, remove, object)
    }

    /// list(*, pattern=None, after=None, limit=None, tenant=None, timeout=None)
    ///
    /// As `Store.list`; the time is that of each 4,096 keys.
    #[pyo3(signature = (*, pattern=None, after=None, limit=None, tenant=None, timeout=None))]
    fn list(
        &self,
        py: Python<'_>,
        pattern: Option<String>,
        after: Option<KeyBytes>,
        limit: Option<usize>,
        tenant: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let options = call_options(tenant, timeout)?;
        let after = after.map(|key| Key::new(key.as_slice())).transpose();
        let after = after.map_err(|error| refused(py, &ClientError::Key(error)))?;
        let list = List {
            tenant: options.tenant.clone(),
            pattern,
            after,
            limit: u32::MAX,
        };
        let most = limit.unwrap_or(LIST_KEYS_MAX);
        let get = async move |calls: Calls| calls.list_up_to(list, most, options).await;
        self.make(py, get, move |py, listed| {
            let (keys, more) = listed.map_err(|error| refused(py, &error))?;
            if more && limit.is_none() {
                let message = format!(
                    "more than {most} keys: name a limit, and go on after the last key of each list"
                );
                return Err(exception(py, ErrorCode::InvalidParams, &message));
            }
            let keys = keys.iter().map(|key| PyBytes::new(py, key.as_bytes()));
            list_of(PyList::new(py, keys))
        })
    }

    /// set_quota(tenant, *, memory, ssd=None, timeout=None)
    ///
    /// As `Store.set_quota`. Quotas need a key with the right of an operator where the server has keys.
    #[pyo3(signature = (tenant, *, memory, ssd=None, timeout=None))]
    fn set_quota(
        &self,
        py: Python<'_>,
        tenant: &str,
        memory: &Bound<'_, PyAny>,
        ssd: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let options = call_options(Some(tenant), timeout)?;
        let memory = bytes_of("memory", memory)?;
        let ssd = ssd.map_or(Ok(0), |ssd| bytes_of("ssd", ssd))?;
        let set = async move |calls: Calls| calls.set_quota(memory, ssd, options).await;
        self.make(py, set, |py, set| object(py, set.map(|()| None::<()>)))
    }

    /// delete_quota(tenant, *, timeout=None)
    ///
    /// As `Store.delete_quota`.
    #[pyo3(signature = (tenant, *, timeout=None))]
    fn delete_quota(
        &self,
        py: Python<'_>,
        tenant: &str,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let options = call_options(Some(tenant), timeout)?;
        let delete = async move |calls: Calls| calls.delete_quota(options).await;
        self.make(py, delete, |py, set| object(py, set.map(|()| None::<()>)))
    }

    /// quotas(*, timeout=None)
    ///
    /// As `Store.quotas`.
    #[pyo3(signature = (*, timeout=None))]
    fn quotas(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let options = call_options(None, timeout)?;
        let get = async move |calls: Calls| calls.quotas(options).await;
        self.make(py, get, |py, states| {
            let states = states.map_err(|error| refused(py, &error))?;
            list_of(quotas_of(py, &states))
        })
    }

    /// stat(key, *, tenant=None, timeout=None)
    ///
    /// What the master knows of the value as a dictionary, with the fields of `slackwater stat --json`: `key`, `tenant`,
    /// `bytes`, `version`, `checksum`, `pin`, `lease_ms` (how long readers hold it for), and `replicas`, a list of
    /// dictionaries with `tier`, `segment`, `state` and `readers`. Neither a read nor a lease. None if there is no value.
    #[pyo3(signature = (key, *, tenant=None, timeout=None))]
    fn stat(
        &self,
        py: Python<'_>,
        key: KeyBytes,
        tenant: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        self.describe(py, key, call_options(tenant, timeout)?, |found| {
            serde_json::to_string(&found.map(Described::from))
        })
    }

    /// explain(key, *, tenant=None, timeout=None)
    ///
    /// Where the value is and what keeps it there, as the master tells its clients: a list of dictionaries as that of
    /// `Store.explain`, one for each replica. What the policy of eviction has learned is not told to clients: `policy`,
    /// `learned` and `views` are None. None if there is no value.
    #[pyo3(signature = (key, *, tenant=None, timeout=None))]
    fn explain(
        &self,
        py: Python<'_>,
        key: KeyBytes,
        tenant: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        self.describe(py, key, call_options(tenant, timeout)?, |found| {
            serde_json::to_string(&found.map(described::reasons))
        })
    }

    /// stats()
    ///
    /// What this client counts, as nested dictionaries; the server's counts are `slackwater top`'s. `moved` has an entry for
    /// each way that values went between this process and the nodes that are known now (`host` for memory of this machine,
    /// `tcp`): requests that were `completed` and `failed`, are `active` and `pending`, their `retries`, `bytes_read` and
    /// `bytes_written`. `record_reads` is how often nodes were asked for what was on SSD only.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let client = self.client(py)?;
        let figures = py.detach(|| Figures::of(&client));
        as_objects(py, serde_json::to_string(&figures.to_json()))
    }

    /// metrics()
    ///
    /// The same as metrics in the text form of Prometheus.
    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        let client = self.client(py)?;
        Ok(py.detach(|| Figures::of(&client).to_prometheus()))
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

    /// Makes a call: its result as Python has it, or that it is awaited.
    fn make<T, F>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(Calls) -> F,
        result: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Py<PyAny>>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let client = self.client(py)?;
        match awaited(py) {
            Some(awaiting) => awaiting.begin(py, call(client.calls(Waits::Task)), result),
            None => {
                let call = call(client.calls(Waits::Thread));
                let outcome = detached(py, || here(call));
                result(py, outcome)
            }
        }
    }

    /// What the master knows of a value, as JSON says it.
    fn describe(
        &self,
        py: Python<'_>,
        key: KeyBytes,
        options: CallOptions,
        json: impl Fn(Option<&Description>) -> serde_json::Result<String> + Send + 'static,
    ) -> PyResult<Py<PyAny>> {
        let stat = async move |calls: Calls| calls.stat(key, options).await;
        self.make(py, stat, move |py, found| {
            let found = found.map_err(|error| refused(py, &error))?;
            Ok(as_objects(py, json(found.as_ref()))?.unbind())
        })
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

/// The only result of a call for one key.
fn only<T>(mut results: Vec<T>) -> T {
    results.pop().expect("one result for one key")
}

/// A result as Python has it.
fn object<T: for<'py> IntoPyObject<'py>>(
    py: Python<'_>,
    result: Result<T, ClientError>,
) -> PyResult<Py<PyAny>> {
    result.map_err(|error| refused(py, &error))?.into_py_any(py)
}

fn list_of(list: PyResult<Bound<'_, PyList>>) -> PyResult<Py<PyAny>> {
    Ok(list?.into_any().unbind())
}

/// How a call is made: without a time of its own, in that of the connection.
fn call_options(name: Option<&str>, timeout: Option<f64>) -> PyResult<CallOptions> {
    let deadline = timeout.map(|seconds| seconds_of("timeout", seconds));
    Ok(CallOptions {
        tenant: tenant(name)?,
        deadline: deadline.transpose()?,
        cancel: current(),
    })
}

fn get_options(
    prefix_only: bool,
    name: Option<&str>,
    given: Option<&Bound<'_, Chain>>,
    timeout: Option<f64>,
) -> PyResult<GetOptions> {
    Ok(GetOptions {
        call: call_options(name, timeout)?,
        chain: chain(given),
        prefix_only,
    })
}

/// What the return of a put means, which is one thing.
fn replicated_or(asked: Durability, replicated: bool) -> PyResult<Durability> {
    match (asked, replicated) {
        (asked, false) => Ok(asked),
        (Durability::Memory | Durability::Replicated, true) => Ok(Durability::Replicated),
        (Durability::Disk, true) => Python::attach(|py| {
            let why = "a put is durable or replicated, and not both";
            Err(exception(py, ErrorCode::InvalidParams, why))
        }),
    }
}

/// The options of a put by a client, from those of an embedded one.
fn from_afar(options: slackwater_node::PutOptions, timeout: Option<f64>) -> PyResult<PutOptions> {
    Ok(PutOptions {
        call: CallOptions {
            tenant: options.tenant,
            ..call_options(None, timeout)?
        },
        mode: options.mode,
        pin: options.pin,
        group: options.group,
        durability: options.durability,
        wait: options.wait,
        chain: options.chain,
        ..PutOptions::default()
    })
}

/// A view whose bytes are compared with their checksum once more, if that is asked for.
fn verified(
    viewed: Result<Option<slackwater_remote::View>, ClientError>,
    verify: bool,
) -> Result<Option<slackwater_remote::View>, ClientError> {
    match viewed {
        Ok(Some(view)) if verify && !view.is_intact() => {
            Err(ClientError::RefusedCall(ErrorCode::ChecksumMismatch))
        }
        viewed => viewed,
    }
}
