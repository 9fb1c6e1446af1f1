//! A transfer engine by address: memory of this process and of peers, whose descriptions callers carry to one another.
//!
//! A call that waits returns when nothing touches its memory any more. Memory of a call that does not wait is registered,
//! and the end of its registration waits for the call.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::{Value, json};
use slackwater_transfer::{
    Batch, BatchError, BatchId, Capability, Cause, Engine, EngineConfig, GrantSpec, LocalRange,
    Location, Memory, Notice, Op, PeerId, Priority, Region, RegionSpec, Request, Rights, Segment,
    Status, Submit, Target,
};
use slackwater_wait::{Site, Waiting, now};

use crate::options::seconds_of;
use crate::raw::{Number, Range, Reasons};
use crate::store::forks;

/// What a call gives that failed.
const FAILED: i64 = -1;
/// What it gives when the peer is to be described again: it is not open, its memory is not known, or it is another process.
const STALE: i64 = -2;
const TIMED_OUT: i64 = -3;
/// How long the end of a registration waits for what is under way.
const RELEASE: Duration = Duration::from_secs(60);

static BATCHES: Site = Site::new("python, transfer batches");

/// Moves bytes between registered memory of this process and that of peers.
#[pyclass(frozen, module = "slackwater._native", weakref)]
pub(crate) struct RawEngine {
    engine: Engine,
    own: Mutex<Own>,
    peers: Mutex<BTreeMap<String, Arc<Peer>>>,
    reasons: Reasons,
    forks: u64,
}

/// Why a call failed, and its code.
struct Failure {
    code: i64,
    reason: String,
}

#[derive(Default)]
struct Own {
    /// By first address.
    regions: BTreeMap<usize, OwnRegion>,
    next: u64,
}

struct OwnRegion {
    region: Arc<Region>,
    /// What every peer gets.
    capability: Capability,
    /// When it was registered, among others.
    order: u64,
}

struct Peer {
    id: PeerId,
    /// Where its memory is registered, in the order of registration.
    ranges: Vec<PeerRange>,
    /// Index in `ranges`, by first address.
    by_start: BTreeMap<u64, usize>,
}

struct PeerRange {
    start: u64,
    bytes: u64,
    capability: Capability,
}

/// Runs of memory here and at a peer.
struct Runs {
    local: Vec<Range>,
    remote: Vec<u64>,
}

#[pymethods]
impl RawEngine {
    /// RawEngine(name, host, log)
    ///
    /// An engine that is reached at an address of this machine; options are read from the environment. `log(method, code,
    /// reason)` is called once for each method and code.
    #[new]
    fn new(py: Python<'_>, name: &str, host: std::net::IpAddr, log: Py<PyAny>) -> PyResult<Self> {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let mut config = EngineConfig::from_env(name, variables).map_err(|wrong| {
            let wrong: Vec<String> = wrong.iter().map(ToString::to_string).collect();
            PyValueError::new_err(wrong.join("; "))
        })?;
        config.tcp.bind = vec![(host, 0).into()];
        let started = py.detach(|| Engine::start(config));
        let engine = started.map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Self {
            engine,
            own: Mutex::default(),
            peers: Mutex::default(),
            reasons: Reasons::new(log),
            forks: forks(),
        })
    }

    /// Registers memory, which peers may then read and write: whether it is memory, and none of it was registered.
    fn register(&self, py: Python<'_>, start: Number, bytes: Number) -> bool {
        let range = Range::new(start, bytes).filter(|range| range.bytes() > 0);
        let (Some(range), true) = (range, self.is_here()) else {
            return false;
        };
        py.detach(|| self.add(range))
    }

    /// Ends a registration by its first address, and waits until nothing touches the memory: 0; -1 when it is still touched
    /// after a minute, and -2 when there is none.
    fn unregister(&self, py: Python<'_>, start: Number) -> i64 {
        if !self.is_here() {
            return FAILED;
        }
        py.detach(|| {
            let Some(found) = lock(&self.own).regions.remove(&start.0) else {
                return STALE;
            };
            match self.engine.unregister(found.region.id(), RELEASE) {
                Ok(()) => 0,
                Err(_) => {
                    // Closed to new accesses; another call goes on.
                    lock(&self.own).regions.insert(start.0, found);
                    FAILED
                }
            }
        })
    }

    /// Whether all of a range is registered here.
    fn is_registered(&self, start: Number, bytes: Number) -> bool {
        let range = Range::new(start, bytes);
        range.is_some_and(|range| self.local(range).is_some())
    }

    /// How peers reach this engine and its memory.
    fn describe<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let own = lock(&self.own);
        let mut ordered: Vec<(&usize, &OwnRegion)> = own.regions.iter().collect();
        ordered.sort_unstable_by_key(|(_, one)| one.order);
        let range = |(start, one): (&usize, &OwnRegion)| {
            json!([
                start,
                one.region.bytes(),
                one.capability.to_bytes().to_vec()
            ])
        };
        let ranges: Vec<Value> = ordered.into_iter().map(range).collect();
        let described = json!({ "segment": self.engine.segment(), "ranges": ranges });
        PyBytes::new(py, described.to_string().as_bytes())
    }

    /// Takes the description of a peer in the place of an earlier one; the first address of its memory, or none.
    fn open(&self, name: &str, described: &[u8]) -> PyResult<Option<u64>> {
        let wrong =
            |what: &str| PyValueError::new_err(format!("{name} describes no engine: {what}"));
        let described: Value =
            serde_json::from_slice(described).map_err(|error| wrong(&error.to_string()))?;
        let segment: Segment = serde_json::from_value(described["segment"].clone())
            .map_err(|error| wrong(&error.to_string()))?;
        let ranges = described["ranges"].as_array();
        let ranges: Option<Vec<PeerRange>> =
            ranges.and_then(|ranges| ranges.iter().map(PeerRange::of).collect());
        let ranges = ranges.ok_or_else(|| wrong("its memory"))?;
        let starts = ranges.iter().enumerate();
        let peer = Peer {
            id: self.engine.open(segment),
            by_start: starts.map(|(index, range)| (range.start, index)).collect(),
            ranges,
        };
        let first = peer.ranges.first().map(|range| range.start);
        let id = peer.id;
        let before = lock(&self.peers).insert(name.to_owned(), Arc::new(peer));
        if let Some(before) = before.filter(|before| before.id != id) {
            self.engine.forget(before.id);
        }
        Ok(first)
    }

    /// Moves runs of bytes and waits: 0; -1 when it failed, -3 when it took too long, and -2 when the peer is to be described
    /// again. A notice, of a name and a text, is with the peer when it returns 0.
    #[pyo3(signature = (peer, write, starts, addresses, lengths, seconds, notice=None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "a call by address names all of it"
    )]
    fn transfer(
        &self,
        py: Python<'_>,
        peer: &str,
        write: bool,
        starts: Vec<Number>,
        addresses: Vec<Number>,
        lengths: Vec<Number>,
        seconds: f64,
        notice: Option<(String, String)>,
    ) -> PyResult<i64> {
        let timeout = seconds_of("seconds", seconds)?;
        let (Some(runs), true) = (Runs::of(&starts, &addresses, &lengths), self.is_here()) else {
            return Ok(FAILED);
        };
        let moved = py.detach(|| self.carry(peer, op(write), &runs, timeout, notice));
        Ok(self.told(py, "transfer", moved.map(|()| 0)))
    }

    /// Begins to move runs of bytes of registered memory: the number of the batch, or as `transfer`.
    #[expect(
        clippy::too_many_arguments,
        reason = "a call by address names all of it"
    )]
    fn submit(
        &self,
        py: Python<'_>,
        peer: &str,
        write: bool,
        starts: Vec<Number>,
        addresses: Vec<Number>,
        lengths: Vec<Number>,
        seconds: f64,
    ) -> PyResult<i64> {
        let submit = Submit {
            timeout: seconds_of("seconds", seconds)?,
            ..Submit::default()
        };
        let (Some(runs), true) = (Runs::of(&starts, &addresses, &lengths), self.is_here()) else {
            return Ok(FAILED);
        };
        let begun = py.detach(|| {
            let peer = self.peer(peer)?;
            let requests = self.requests(&peer, op(write), &runs)?;
            let requests = requests.ok_or_else(|| Failure {
                code: FAILED,
                reason: "memory that is not registered cannot be used without waiting".to_owned(),
            })?;
            let batch = self.engine.submit(requests, &submit);
            Ok(self.engine.keep(&batch).0.cast_signed())
        });
        Ok(self.told(py, "transfer", begun))
    }

    /// How a batch is: 1 while it is under way, then, once, 0 or as `transfer`.
    fn check(&self, py: Python<'_>, batch: u64) -> i64 {
        let id = BatchId(batch);
        match self.engine.batch(id).filter(|_| self.is_here()) {
            None => FAILED,
            Some(batch) if !batch.is_done() => 1,
            Some(batch) => {
                self.engine.free(id);
                self.told(py, "transfer", result(&batch))
            }
        }
    }

    /// Waits for a batch: as `transfer`.
    fn wait(&self, py: Python<'_>, batch: u64) -> i64 {
        let id = BatchId(batch);
        let Some(batch) = self.engine.batch(id).filter(|_| self.is_here()) else {
            return FAILED;
        };
        let waited = py.detach(|| {
            // Its requests have deadlines.
            let _ = batch.wait(&Waiting::at(&BATCHES));
            self.engine.free(id);
            result(&batch)
        });
        self.told(py, "transfer", waited)
    }

    /// Whether a peer answers: 0 or as `transfer`.
    fn probe(&self, py: Python<'_>, peer: &str, seconds: f64) -> PyResult<i64> {
        let timeout = seconds_of("seconds", seconds)?;
        if !self.is_here() {
            return Ok(FAILED);
        }
        let probed = py.detach(|| {
            let peer = self.peer(peer)?;
            self.engine.probe(peer.id, timeout).map_err(Failure::from)
        });
        Ok(self.told(py, "send_probe", probed.map(|()| 0)))
    }

    /// Takes the notices that peers sent: names and texts.
    fn notices(&self, py: Python<'_>) -> Vec<(String, String)> {
        if !self.is_here() {
            return Vec::new();
        }
        let taken = py.detach(|| self.engine.take_notices(now()));
        let text = |notice: Notice| String::from_utf8_lossy(&notice.bytes).into_owned();
        let taken = taken.into_iter();
        taken
            .map(|(_, notice)| (notice.name.clone(), text(notice)))
            .collect()
    }
}

impl RawEngine {
    /// Whether this is the process that started it: a fork has none of its threads.
    fn is_here(&self) -> bool {
        self.forks == forks()
    }

    fn add(&self, range: Range) -> bool {
        let start = std::ptr::with_exposed_provenance_mut(range.start());
        let Some(start) = NonNull::new(start) else {
            return false;
        };
        // SAFETY: the caller of the call promises that the memory is there until it is registered no more, and that peers
        // may read and write it until then. Slices over it are made only for calls that name it as theirs.
        let memory = unsafe { Memory::borrowed(start, range.bytes(), Location::Host) };
        let registered = self.engine.register(RegionSpec {
            memory,
            rights: Rights::BOTH,
            gate: None,
        });
        let Ok(region) = registered else {
            return false;
        };
        let granted = self
            .engine
            .grant(region.id(), &GrantSpec::whole(&region, Rights::BOTH));
        let Ok(capability) = granted else {
            return false;
        };
        let mut own = lock(&self.own);
        let order = own.next;
        own.next += 1;
        let region = OwnRegion {
            region,
            capability,
            order,
        };
        own.regions.insert(range.start(), region);
        true
    }

    /// The number of a result. A peer that is to be described again is no failure yet.
    fn told(&self, py: Python<'_>, method: &str, result: Result<i64, Failure>) -> i64 {
        result.unwrap_or_else(|failure| {
            if failure.code != STALE {
                self.reasons.tell(py, method, failure.code, &failure.reason);
            }
            failure.code
        })
    }

    fn peer(&self, name: &str) -> Result<Arc<Peer>, Failure> {
        let peer = lock(&self.peers).get(name).cloned();
        peer.ok_or_else(Failure::stale)
    }

    fn local(&self, range: Range) -> Option<LocalRange> {
        let regions = self.engine.home().regions();
        let found = regions.find(range.start(), range.bytes())?;
        Some(LocalRange {
            region: found.region.id(),
            offset: found.offset,
            bytes: range.bytes() as u64,
        })
    }

    /// The requests of runs; none when memory here is not registered.
    fn requests(&self, peer: &Peer, op: Op, runs: &Runs) -> Result<Option<Vec<Request>>, Failure> {
        let mut requests = Vec::with_capacity(runs.local.len());
        for (local, remote) in runs.local.iter().zip(&runs.remote) {
            let target = peer.target(*remote, local.bytes() as u64)?;
            let Some(local) = self.local(*local) else {
                return Ok(None);
            };
            requests.push(Request {
                op,
                local: vec![local],
                target,
                timeout: None,
                priority: Priority::default(),
            });
        }
        Ok(Some(requests))
    }

    fn carry(
        &self,
        peer: &str,
        op: Op,
        runs: &Runs,
        timeout: Duration,
        notice: Option<(String, String)>,
    ) -> Result<(), Failure> {
        let peer = self.peer(peer)?;
        let notice = notice.map(|(name, text)| Notice {
            name,
            bytes: text.into_bytes(),
        });
        let Some(requests) = self.requests(&peer, op, runs)? else {
            return self.carry_unregistered(&peer, op, runs, timeout, notice);
        };
        let submit = Submit {
            timeout,
            notice: notice.map(|notice| (peer.id, notice)),
            ..Submit::default()
        };
        Ok(self.engine.transfer(requests, &submit)?)
    }

    /// Memory that is not registered is used while the caller waits, one run after another.
    fn carry_unregistered(
        &self,
        peer: &Peer,
        op: Op,
        runs: &Runs,
        timeout: Duration,
        notice: Option<Notice>,
    ) -> Result<(), Failure> {
        for (local, remote) in runs.local.iter().zip(&runs.remote) {
            let target = peer.target(*remote, local.bytes() as u64)?;
            let moved = match op {
                // SAFETY: the caller of the call promises that the memory is there and stays as it is until it returns.
                Op::Write => self
                    .engine
                    .write_now(&target, unsafe { local.as_slice() }, timeout),
                // SAFETY: the caller of the call promises that the memory is there and that nothing else uses it until it
                // returns.
                Op::Read => self
                    .engine
                    .read_now(&target, unsafe { local.as_mut_slice() }, timeout),
            };
            moved.map_err(BatchError::Failed)?;
        }
        match notice {
            None => Ok(()),
            Some(notice) => Ok(self.engine.notify(peer.id, notice, timeout)?),
        }
    }
}

impl Drop for RawEngine {
    fn drop(&mut self) {
        if !self.is_here() {
            // Its threads are not here to be joined.
            std::mem::forget(self.engine.clone());
            return;
        }
        Python::attach(|py| py.detach(|| self.engine.close()));
    }
}

impl Peer {
    fn target(&self, address: u64, bytes: u64) -> Result<Target, Failure> {
        let found = self.by_start.range(..=address).next_back();
        let (start, index) = found.ok_or_else(Failure::stale)?;
        let (offset, range) = (address - start, &self.ranges[*index]);
        match offset.checked_add(bytes) {
            Some(end) if end <= range.bytes => Ok(Target {
                peer: self.id,
                offset,
                capability: range.capability,
                key: None,
            }),
            _ => Err(Failure::stale()),
        }
    }
}

impl PeerRange {
    fn of(described: &Value) -> Option<Self> {
        let bytes = described[2].as_array()?.iter();
        let bytes: Option<Vec<u8>> = bytes
            .map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok()))
            .collect();
        Some(Self {
            start: described[0].as_u64()?,
            bytes: described[1].as_u64()?,
            capability: Capability::from_bytes(bytes?.as_slice().try_into().ok()?),
        })
    }
}

impl Runs {
    /// `None` when lists do not fit together, or a run is no memory. Runs of no bytes are left out.
    fn of(starts: &[Number], addresses: &[Number], lengths: &[Number]) -> Option<Self> {
        if starts.len() != lengths.len() || addresses.len() != lengths.len() {
            return None;
        }
        let mut runs = Self {
            local: Vec::with_capacity(lengths.len()),
            remote: Vec::with_capacity(lengths.len()),
        };
        for ((start, address), length) in starts.iter().zip(addresses).zip(lengths) {
            if length.0 > 0 {
                runs.local.push(Range::new(*start, *length)?);
                runs.remote.push(address.0 as u64);
            }
        }
        Some(runs)
    }
}

fn op(write: bool) -> Op {
    if write { Op::Write } else { Op::Read }
}

impl Failure {
    fn stale() -> Self {
        Self {
            code: STALE,
            reason: "the peer has no such memory".to_owned(),
        }
    }
}

impl From<BatchError> for Failure {
    fn from(error: BatchError) -> Self {
        let code = match &error {
            BatchError::Failed(Cause::Refused(_) | Cause::Gone { .. }) => STALE,
            BatchError::Failed(cause) if cause.status() == Status::TimedOut => TIMED_OUT,
            BatchError::TimedOut => TIMED_OUT,
            BatchError::Failed(_) | BatchError::Cancelled => FAILED,
        };
        let reason = error.to_string();
        Self { code, reason }
    }
}

/// The result of a batch that is over.
fn result(batch: &Batch) -> Result<i64, Failure> {
    let causes = (0..batch.len()).filter_map(|request| batch.outcome(request)?.cause);
    let failures = causes.map(|cause| Failure::from(BatchError::Failed(cause)));
    failures
        .min_by_key(|failure| failure.code)
        .map_or(Ok(0), Err)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
