//! A client as calls by address see it: results are numbers, at least 0 for success and negative for an error code, and
//! values lie where the caller says. The package `mooncake` of Slackwater is written on top of it.
//!
//! No call touches a caller's memory after it has returned, whatever it returned.

mod calling;
mod code;
mod handle;
mod memory;
mod plan;
mod session;
mod sessions;
mod tasks;
mod transfer;

use std::sync::Mutex;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use slackwater_node::pool::FileMemory;
use slackwater_remote::{ClientError, Stored};
use slackwater_wire::{ErrorCode, NodeId, ReplicaAt, ReplicaState};

use crate::buffers::{KeyBytes, Memory};
use crate::options::seconds_of;
use crate::store::forks;
pub(crate) use code::Reasons;
pub(crate) use handle::BufferHandle;
use handle::Buffered;
pub(crate) use memory::{Number, Range, checksum};
pub(crate) use plan::RawPlan;
use session::{Opening, Session};
use sessions::Parts;

/// A client by address and code. `log(method, code, reason)` is called once for each method and code.
#[pyclass(frozen, module = "slackwater._native", weakref)]
pub(crate) struct RawClient {
    session: Mutex<Option<std::sync::Arc<Session>>>,
    reasons: Reasons,
    forks: u64,
}

/// What a call gives that is made in a fork of the process that made the client.
const IN_FORK: i64 = ErrorCode::NotSupported.number() as i64;
/// What it gives before the client is open, and after its end.
const NOT_OPEN: i64 = ErrorCode::InvalidParams.number() as i64;
const WRONG: i64 = ErrorCode::InvalidParams.number() as i64;
const NO_ROOM: i64 = ErrorCode::NoAvailableHandle.number() as i64;
const ABSENT: i64 = ErrorCode::ObjectNotFound.number() as i64;

#[pymethods]
impl RawClient {
    #[new]
    fn new(log: Py<PyAny>) -> Self {
        Self {
            session: Mutex::default(),
            reasons: Reasons::new(log),
            forks: forks(),
        }
    }

    /// open(address, *, key_file, timeout, connect_timeout, force_tcp, tenant, staging)
    ///
    /// Connects. `staging` is the length of the longest value that is put from bytes; 0 refuses those calls.
    #[pyo3(signature = (address, *, key_file=None, timeout=10.0, connect_timeout=10.0, force_tcp=false, tenant=None, staging=0))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn open(
        &self,
        py: Python<'_>,
        address: &str,
        key_file: Option<std::path::PathBuf>,
        timeout: f64,
        connect_timeout: f64,
        force_tcp: bool,
        tenant: Option<&str>,
        staging: usize,
    ) -> PyResult<()> {
        let opening = Opening {
            address: session::address(address)?,
            key_file,
            deadline: seconds_of("timeout", timeout)?,
            connect_timeout: seconds_of("connect_timeout", connect_timeout)?,
            force_tcp,
            tenant: crate::options::tenant(tenant)?,
            staging,
        };
        let opened = py.detach(|| Session::open(opening));
        let opened = opened.map_err(|error| crate::errors::not_connected(py, &error))?;
        *self.session() = Some(std::sync::Arc::new(opened));
        Ok(())
    }

    /// lend(memory, *, name=None, ssd=None, directory=None, data=None, key_file=None, allow=None, timeout=10.0, file=None, offset=0)
    ///
    /// Lends memory of this process, or a piece of a file from `offset` on, and an SSD, to the master: the number of the node that it is there. Otherwise a text
    /// that says why the master takes none.
    #[pyo3(signature = (memory, *, name=None, ssd=None, directory=None, data=None, key_file=None, allow=None, timeout=10.0, file=None, offset=0))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn lend(
        &self,
        py: Python<'_>,
        memory: u64,
        name: Option<&str>,
        ssd: Option<u64>,
        directory: Option<std::path::PathBuf>,
        data: Option<&str>,
        key_file: Option<std::path::PathBuf>,
        allow: Option<std::path::PathBuf>,
        timeout: f64,
        file: Option<std::path::PathBuf>,
        offset: u64,
    ) -> PyResult<(Option<u32>, Option<String>)> {
        let timeout: Duration = seconds_of("timeout", timeout)?;
        let session = self.open_session().map_err(|_| {
            crate::errors::exception(py, ErrorCode::ShuttingDown, "the client is closed")
        })?;
        let loan = session::Loan {
            memory,
            file: file.map(|path| FileMemory { path, offset }),
            ssd: ssd.zip(directory),
            data: data.map(session::data_address).transpose()?,
            keys: key_file.zip(allow),
            timeout,
            name: name.map(session::node_name).transpose()?,
        };
        match py.detach(|| session.lend(loan)) {
            Ok(Ok(node)) => Ok((Some(node.0), None)),
            Ok(Err(why)) => Ok((None, Some(why))),
            Err(problem) => Err(problem.exception(py)),
        }
    }

    /// take_back(node, seconds)
    ///
    /// Takes back what a node lends, whose values have so long to go to others. False when there is no such node.
    fn take_back(&self, py: Python<'_>, node: u32, seconds: f64) -> PyResult<bool> {
        let time = seconds_of("seconds", seconds)?;
        let taken = self.detached(py, |session| session.take_back(NodeId(node), time));
        Ok(taken.unwrap_or(false))
    }

    /// close()
    ///
    /// Ends the client and takes back what it lends.
    fn close(&self, py: Python<'_>) {
        let session = self.take();
        py.detach(|| session.map(|session| session.close()));
    }

    /// Whether calls can be made.
    fn state(&self) -> i64 {
        self.open_session().map_or_else(|code| code, |_| 0)
    }

    /// Whether the master answers: 0 or a code.
    fn ping(&self, py: Python<'_>) -> i64 {
        self.call(py, "health_check", |session| {
            let asked = session.client.exists(&[b"\0"], &session.call());
            asked.map(|_| 0)
        })
    }

    /// How often reads asked for what is on SSD only; 0 before the client is open and after its end.
    fn record_reads(&self) -> u64 {
        let session = self.open_session();
        session.map_or(0, |session| session.client.record_reads())
    }

    fn register(&self, py: Python<'_>, start: Number, bytes: Number) -> i64 {
        self.call(py, "register_buffer", |session| {
            let added = session.registered.add(Range::new(start, bytes));
            Ok(if added { 0 } else { WRONG })
        })
    }

    fn unregister(&self, py: Python<'_>, start: Number) -> i64 {
        // Waits for the calls that use memory, of which it is none.
        match self.detached(py, |session| session.registered.remove(start)) {
            Ok(true) => 0,
            Ok(false) => WRONG,
            Err(code) => code,
        }
    }

    /// Puts the concatenation of buffers.
    fn put(
        &self,
        py: Python<'_>,
        key: KeyBytes,
        parts: Vec<Bound<'_, PyAny>>,
        plan: &RawPlan,
    ) -> PyResult<i64> {
        let Some(parts) = memories(&parts)? else {
            return Ok(WRONG);
        };
        let key = key.as_slice();
        Ok(self.call(py, "put", |session| {
            // One buffer may be named many times.
            let lengths = parts.iter().map(|part| part.as_slice().len());
            let bytes = lengths.fold(0, usize::saturating_add);
            if !plan.fits(1) || bytes > session.staging_bytes || bytes == 0 {
                return Ok(WRONG);
            }
            let (options, _) = session.put_options(plan, 0, 1);
            if let [value] = &parts[..] {
                return session
                    .client
                    .put(key, value.as_slice(), &options)
                    .map(stored);
            }
            let Some(mut value) = session.staging.take(bytes) else {
                return Ok(NO_ROOM);
            };
            let mut at = 0;
            for part in &parts {
                let part = part.as_slice();
                value[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            let put = session.client.put(key, &value[..bytes], &options);
            session.staging.give_back(value);
            put.map(stored)
        }))
    }

    fn put_batch(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        values: Vec<Bound<'_, PyAny>>,
        plan: &RawPlan,
    ) -> PyResult<i64> {
        let Some(values) = memories(&values)? else {
            return Ok(WRONG);
        };
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        let put = self.each(py, "put_batch", 1, |session| {
            let too_long = |value: &Memory| {
                let bytes = value.as_slice().len();
                bytes == 0 || bytes > session.staging_bytes
            };
            if keys.len() != values.len() || !plan.fits(keys.len()) || values.iter().any(too_long) {
                return vec![Ok(WRONG)];
            }
            let values: Vec<Option<&[u8]>> =
                values.iter().map(|value| Some(value.as_slice())).collect();
            session.put_given(&keys, 0, &values, plan)
        });
        Ok(put.into_iter().find(|code| *code < 0).unwrap_or(0))
    }

    fn get<'py>(&self, py: Python<'py>, key: KeyBytes) -> Bound<'py, PyBytes> {
        let values = self.values(py, "get", &[key]);
        let value = values.into_iter().find_map(Result::ok).unwrap_or_default();
        PyBytes::new(py, &value)
    }

    fn get_batch<'py>(&self, py: Python<'py>, keys: Vec<KeyBytes>) -> PyResult<Bound<'py, PyList>> {
        let values = self.values(py, "get_batch", &keys);
        let values = values.into_iter();
        let bytes: Vec<_> = values
            .map(|value| PyBytes::new(py, &value.unwrap_or_default()))
            .collect();
        PyList::new(py, bytes)
    }

    fn get_buffers(&self, py: Python<'_>, keys: Vec<KeyBytes>) -> Vec<Option<BufferHandle>> {
        let values = self.values(py, "batch_get_buffer", &keys).into_iter();
        values
            .map(|value| value.ok().map(BufferHandle::new))
            .collect()
    }

    /// The values in memory of their own, and a code for each that was not read.
    fn read_buffers(&self, py: Python<'_>, keys: Vec<KeyBytes>) -> Vec<Buffered> {
        let values = self.values(py, "batch_get_buffer", &keys).into_iter();
        values.map(Buffered::new).collect()
    }

    fn exists(&self, py: Python<'_>, keys: Vec<KeyBytes>) -> Vec<i64> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        self.each(py, "is_exist", keys.len(), |session| session.exist(&keys))
    }

    fn size(&self, py: Python<'_>, key: KeyBytes) -> i64 {
        let key = key.as_slice();
        self.call(py, "get_size", |session| {
            match session.client.stat(key, &session.call()) {
                Ok(Some(found)) => Ok(found.bytes.cast_signed()),
                Ok(None) | Err(ClientError::Key(_)) => Ok(ABSENT),
                Err(error) => Err(error),
            }
        })
    }

    /// For each key: None, or the length of its value and its replicas.
    fn describe(&self, py: Python<'_>, keys: Vec<KeyBytes>) -> Vec<Option<Described>> {
        self.stats(py, "get_replica_desc", &keys, |found| {
            let replicas = found.named().map(described);
            (found.bytes, replicas.collect())
        })
    }

    /// For each key: None, or the length and the checksum of its value, which no lease keeps in place for that.
    fn checksums(&self, py: Python<'_>, keys: Vec<KeyBytes>) -> Vec<Option<(u64, u64)>> {
        self.stats(py, "checksums", &keys, |found| {
            (found.bytes, found.checksum.0)
        })
    }

    /// Puts values that lie in runs of memory: for each key its addresses and lengths.
    fn put_from(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        starts: Vec<Number>,
        sizes: Vec<Number>,
        plan: &RawPlan,
    ) -> Vec<i64> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        self.each(py, "put_from", keys.len(), |session| {
            if starts.len() != keys.len() || sizes.len() != keys.len() || !plan.fits(keys.len()) {
                return vec![Ok(WRONG); keys.len()];
            }
            let runs = starts.iter().zip(&sizes);
            let runs = runs.map(|(start, size)| Range::new(*start, *size));
            session.put_from(&keys, &runs.collect::<Vec<_>>(), plan)
        })
    }

    fn put_from_many(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        starts: Vec<Vec<Number>>,
        sizes: Vec<Vec<Number>>,
        plan: &RawPlan,
    ) -> Vec<i64> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        self.each(py, "put_from", keys.len(), |session| {
            if starts.len() != keys.len() || sizes.len() != keys.len() || !plan.fits(keys.len()) {
                return vec![Ok(WRONG); keys.len()];
            }
            session.gather(&keys, &transfer::pieces(&starts, &sizes), plan)
        })
    }

    fn get_into(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        starts: Vec<Number>,
        sizes: Vec<Number>,
    ) -> Vec<i64> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        if let ([key], [start], [size]) = (&*keys, &*starts, &*sizes)
            && let Some(read) = self.read_at_hand(py, key, *start, *size)
        {
            return vec![read];
        }
        self.each(py, "get_into", keys.len(), |session| {
            if starts.len() != keys.len() || sizes.len() != keys.len() {
                return vec![Ok(WRONG); keys.len()];
            }
            let runs = starts.iter().zip(&sizes);
            let runs = runs.map(|(start, size)| Range::new(*start, *size));
            session.get_into(&keys, &runs.collect::<Vec<_>>())
        })
    }

    fn get_into_many(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        starts: Vec<Vec<Number>>,
        sizes: Vec<Vec<Number>>,
    ) -> Vec<i64> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        self.each(py, "get_into", keys.len(), |session| {
            if starts.len() != keys.len() || sizes.len() != keys.len() {
                return vec![Ok(WRONG); keys.len()];
            }
            session.scatter(&keys, &transfer::pieces(&starts, &sizes))
        })
    }

    /// Copies parts of values to offsets from one address. For each key the offsets there, the offsets in the value and the
    /// lengths of its parts; one result a part.
    fn get_parts(
        &self,
        py: Python<'_>,
        start: Number,
        keys: Vec<KeyBytes>,
        to: Vec<Vec<Number>>,
        from: Vec<Vec<Number>>,
        sizes: Vec<Vec<Number>>,
    ) -> Vec<Vec<i64>> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        let wanted = transfer::Wanted::new(start, &to, &from, &sizes, keys.len());
        let mut counts = wanted.counts();
        let flat = self.each(py, "get_into_ranges", counts.iter().sum(), |session| {
            session.get_parts(&keys, &wanted)
        });
        let mut flat = flat.into_iter();
        let of_key = |count: &mut usize| flat.by_ref().take(*count).collect();
        counts.iter_mut().map(of_key).collect()
    }

    /// Reads parts of values alone: for each key the addresses, the lengths and the offsets in the value. The lengths of the
    /// values; a part that is not in its value is left as it is. They are compared with no checksum, unless the only part of
    /// a key is the whole value.
    fn read_alone(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        starts: Vec<Vec<Number>>,
        sizes: Vec<Vec<Number>>,
        offsets: Vec<Vec<Number>>,
    ) -> Vec<i64> {
        let parts = Parts {
            starts,
            sizes,
            offsets,
        };
        self.parts(py, "get_into_ranges", &keys, &parts, Session::read_alone)
    }

    fn start_reads(&self, py: Python<'_>, keys: Vec<KeyBytes>) -> Vec<i64> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        self.each(py, "batch_get_session_start", keys.len(), |session| {
            session.start_reads(&keys)
        })
    }

    fn read_parts(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        starts: Vec<Vec<Number>>,
        sizes: Vec<Vec<Number>>,
        offsets: Vec<Vec<Number>>,
    ) -> Vec<i64> {
        let parts = Parts {
            starts,
            sizes,
            offsets,
        };
        let method = "batch_get_into_multi_buffer_ranges";
        self.parts(py, method, &keys, &parts, Session::read_parts)
    }

    fn end_reads(&self, py: Python<'_>, keys: Vec<KeyBytes>) -> i64 {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        self.call(py, "batch_get_session_end", |session| {
            session.end_reads(&keys);
            Ok(0)
        })
    }

    fn start_writes(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        sizes: Vec<Number>,
        plan: &RawPlan,
    ) -> Vec<i64> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        self.each(py, "batch_put_session_start", keys.len(), |session| {
            session.start_writes(&keys, &sizes, plan)
        })
    }

    fn write_parts(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        starts: Vec<Vec<Number>>,
        sizes: Vec<Vec<Number>>,
        offsets: Vec<Vec<Number>>,
    ) -> Vec<i64> {
        let parts = Parts {
            starts,
            sizes,
            offsets,
        };
        let method = "batch_put_from_multi_buffer_ranges";
        self.parts(py, method, &keys, &parts, Session::write_parts)
    }

    fn end_writes(&self, py: Python<'_>, keys: Vec<KeyBytes>) -> Vec<i64> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        self.each(py, "batch_put_session_end", keys.len(), |session| {
            session.end_writes(&keys)
        })
    }

    fn revoke_writes(&self, py: Python<'_>, keys: Vec<KeyBytes>) -> Vec<i64> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        self.each(py, "batch_put_session_revoke", keys.len(), |session| {
            session.revoke_writes(&keys)
        })
    }

    fn remove(&self, py: Python<'_>, keys: Vec<KeyBytes>, force: bool) -> Vec<i64> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        self.each(py, "remove", keys.len(), |session| {
            let removed = session.client.remove(&keys, &session.remove_options(force));
            let code = |one: Result<(), ClientError>| match one {
                Ok(()) => Ok(0),
                Err(ClientError::Key(_)) => Ok(ABSENT),
                Err(error) => Err(error),
            };
            removed.into_iter().map(code).collect()
        })
    }

    /// Removes objects that this client put and that nobody reads, or what a segment has of them.
    fn replica_clear(
        &self,
        py: Python<'_>,
        keys: Vec<KeyBytes>,
        segment: Option<&str>,
    ) -> Vec<i64> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        self.each(py, "batch_replica_clear", keys.len(), |session| {
            let cleared = session
                .client
                .replica_clear(&keys, segment, &session.call());
            cleared.into_iter().map(|one| one.map(|()| 0)).collect()
        })
    }

    /// Begins a copy of a value to targets, or a move from a source to one: its number, or a code.
    fn start_task(
        &self,
        py: Python<'_>,
        key: KeyBytes,
        source: Option<String>,
        targets: Vec<String>,
    ) -> i64 {
        let method = source
            .as_ref()
            .map_or("create_copy_task", |_| "create_move_task");
        let key = key.as_slice();
        self.call(py, method, |session| {
            session.start_task(key, source, targets)
        })
    }

    /// How a task is, and 0; None and a code where nothing is known of it.
    fn query_task(&self, py: Python<'_>, task: u64) -> (Option<tasks::Task>, i64) {
        let mut found = None;
        let code = self.call(py, "query_task", |session| {
            match session.query_task(task)? {
                Ok(task) => found = Some(task),
                Err(code) => return Ok(code),
            }
            Ok(0)
        });
        (found, code)
    }

    fn remove_matching(&self, py: Python<'_>, pattern: &str, force: bool) -> i64 {
        self.call(py, "remove_by_regex", |session| {
            let options = session.remove_options(force);
            let removed = session.client.remove_matching(pattern, &options);
            removed.map(u64::cast_signed)
        })
    }

    fn remove_all(&self, py: Python<'_>, force: bool) -> i64 {
        self.call(py, "remove_all", |session| {
            let removed = session.client.remove_all(&session.remove_options(force));
            removed.map(u64::cast_signed)
        })
    }
}

/// The memory of objects; `None` where one has memory of which no single run of bytes can be made.
fn memories(objects: &[Bound<'_, PyAny>]) -> PyResult<Option<Vec<Memory>>> {
    let memories: PyResult<Vec<Memory>> = objects.iter().map(Memory::of).collect();
    match memories {
        Ok(memories) => Ok(Some(memories)),
        Err(error)
            if objects
                .first()
                .is_some_and(|one| error.is_instance_of::<PyValueError>(one.py())) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Length of a value, and of each replica: whether it is in memory, its state, the name of its segment, and its offset there.
type Described = (u64, Vec<(bool, u8, String, u64)>);

fn described(
    ((at, state, _), name): (&(ReplicaAt, ReplicaState, u32), &str),
) -> (bool, u8, String, u64) {
    let name = name.to_owned();
    match at {
        ReplicaAt::Memory(extent) => (true, *state as u8, name, extent.offset),
        ReplicaAt::Disk { .. } => (false, *state as u8, name, 0),
    }
}

fn stored(_: Stored) -> i64 {
    0
}
