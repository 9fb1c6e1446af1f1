//! A transfer engine by address: memory of this process and of peers, whose descriptions callers carry to one another.
//!
//! A call that waits returns when nothing touches its memory any more. Memory of a call that does not wait is registered,
//! and the end of its registration waits for the call.
//!
//! With keys descriptions are sealed: who asks for one proves a key of the list and knows the key that the answer has to prove,
//! which has to be of the list too. Connections for bytes follow the same key.

mod failure;
mod keys;
mod peer;
mod plan;

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::{Value, json};
use slackwater_transfer::{
    AnsweredQuestions, Batch, BatchError, BatchId, Capability, Engine, EngineConfig, GrantSpec,
    KeysOfPeers, Location, Memory, Notice, Op, Region, RegionSpec, Rights, SealConfig, Submit,
};
use slackwater_wait::{Site, Waiting, now};

use crate::options::seconds_of;
use crate::raw::{Number, Range, Reasons};
use crate::store::forks;
use failure::{FAILED, Failure, STALE, result};
pub(crate) use keys::RawQuestion;
use keys::{DESCRIBE, KEY_VARIABLES, refused};
use peer::Peer;
use plan::Runs;

/// How long the end of a registration waits for what is under way.
const RELEASE: Duration = Duration::from_secs(60);

static BATCHES: Site = Site::new("python, transfer batches");

/// Moves bytes between registered memory of this process and that of peers.
#[pyclass(frozen, module = "slackwater._native", weakref)]
pub(crate) struct RawEngine {
    engine: Engine,
    /// The keys, where this engine has some: then it has no peer without.
    seal: Option<SealConfig>,
    answered: Mutex<AnsweredQuestions>,
    keys_of_peers: Mutex<KeysOfPeers>,
    own: Mutex<Own>,
    peers: Mutex<BTreeMap<String, Arc<Peer>>>,
    /// Those whose results nobody has yet, and their peers.
    batches: Mutex<BTreeMap<BatchId, (Batch, Arc<Peer>)>>,
    reasons: Reasons,
    forks: u64,
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

#[pymethods]
impl RawEngine {
    /// RawEngine(name, host, log, keys=None)
    ///
    /// An engine that is reached at an address of this machine; options are read from the environment. `log(method, code,
    /// reason)` is called once for each method and code. `keys` are the file of the key of this engine and that of the keys
    /// of its peers; without them the address is one of loopback.
    #[new]
    #[pyo3(signature = (name, host, log, keys=None))]
    fn new(
        py: Python<'_>,
        name: &str,
        host: std::net::IpAddr,
        log: Py<PyAny>,
        keys: Option<(String, String)>,
    ) -> PyResult<Self> {
        let files = keys.map(|(key_file, allow)| [key_file, allow]);
        let named = files
            .into_iter()
            .flat_map(|files| std::iter::zip(KEY_VARIABLES.map(str::to_owned), files));
        let mut config = configured(name, named)?;
        config.tcp.bind = vec![(host, 0).into()];
        let seal = config.tcp.seal.clone();
        let started = py.detach(|| config.start());
        let engine = started.map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Self {
            engine,
            seal,
            answered: Mutex::default(),
            keys_of_peers: Mutex::default(),
            own: Mutex::default(),
            peers: Mutex::default(),
            batches: Mutex::default(),
            reasons: Reasons::new(log),
            forks: forks(),
        })
    }

    /// Which network interfaces are near which memory, as JSON: of each location those to prefer and the rest. Raises `OSError`
    /// when the system does not tell its NUMA nodes, or the file that the environment names is wrong.
    #[staticmethod]
    fn topology(py: Python<'_>) -> PyResult<String> {
        let config = configured("", std::iter::empty())?;
        let topology = py.detach(|| config.tcp.topology());
        let topology = topology.map_err(|error| PyOSError::new_err(error.to_string()))?;
        serde_json::to_string(&topology.by_name())
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Registers memory, which peers may then read and write: whether it is memory, and none of it was registered. Its location
    /// is `cpu:N` for memory of a NUMA node; anything else says nothing.
    #[pyo3(signature = (start, bytes, location="*"))]
    fn register(&self, py: Python<'_>, start: Number, bytes: Number, location: &str) -> bool {
        let range = Range::new(start, bytes).filter(|range| range.bytes() > 0);
        let (Some(range), true) = (range, self.is_here()) else {
            return false;
        };
        let location = match location.parse() {
            Ok(Location::Cpu(node)) => Location::Cpu(node),
            _ => Location::Host,
        };
        py.detach(|| self.add(range, location))
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

    /// Ends all transfers and all registrations: whether nothing touches any of the memory any more, which it may wait a
    /// minute for.
    fn close(&self, py: Python<'_>) -> bool {
        self.is_here() && py.detach(|| self.end_all())
    }

    /// Whether all of a range is registered here.
    fn is_registered(&self, start: Number, bytes: Number) -> bool {
        let range = Range::new(start, bytes).filter(|_| self.is_here());
        range.is_some_and(|range| plan::local(self.engine.home(), range).is_some())
    }

    /// How peers reach this engine and its memory.
    fn describe<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        match self.seal {
            None => Ok(PyBytes::new(py, &self.described())),
            Some(_) => Err(PyValueError::new_err("it is told to who proves a key")),
        }
    }

    /// The public key of this engine in hexadecimal digits; none without keys.
    fn key(&self) -> Option<String> {
        let seal = self.seal.as_ref()?;
        Some(seal.keys.public().to_string())
    }

    /// A question to a peer that says it has this key, and what to send. Raises `ValueError` for a key that is not listed.
    fn ask<'py>(&self, py: Python<'py>, key: &str) -> PyResult<(RawQuestion, Bound<'py, PyBytes>)> {
        let target = key
            .parse()
            .map_err(|_| PyValueError::new_err("its key is none"))?;
        let (question, sent) = self.keys()?.ask(target, DESCRIBE).map_err(refused)?;
        Ok((RawQuestion::new(question), PyBytes::new(py, &sent)))
    }

    /// The sealed description for a peer that has asked so. Raises `ValueError` for one that proves no listed key.
    fn answer<'py>(&self, py: Python<'py>, asked: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let seal = self.keys()?;
        let answered = py.detach(|| {
            seal.answer_question(asked, &self.answered, |text| match text == DESCRIBE {
                true => self.described(),
                false => Vec::new(),
            })
        });
        Ok(PyBytes::new(py, &answered.map_err(refused)?))
    }

    /// Reads the list of keys again; links of keys that are gone end. Raises `ValueError` when it cannot be read: the old one
    /// stays in force.
    fn reload(&self, py: Python<'_>) -> PyResult<()> {
        let clients = &self.keys()?.clients;
        py.detach(|| clients.reload())
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Takes the description of a peer, which was reached at an address, in the place of an earlier one; the first address of
    /// its memory, or none. With keys it is the answer to a question, and of an engine with the key that was asked.
    #[pyo3(signature = (name, reached, described, question=None))]
    fn open(
        &self,
        py: Python<'_>,
        name: &str,
        reached: std::net::IpAddr,
        described: &[u8],
        question: Option<&RawQuestion>,
    ) -> PyResult<Option<u64>> {
        if !self.is_here() {
            return Ok(None);
        }
        let opened = py.detach(|| {
            let question = question.and_then(RawQuestion::take);
            match (&self.seal, question) {
                (None, None) => Peer::read(described, reached, None),
                (Some(_), Some(question)) => {
                    let key = *question.target().as_bytes();
                    let text = question
                        .open(described)
                        .map_err(|error| error.to_string())?;
                    let described = Peer::read(&text, reached, Some(key))?;
                    let life = described.segment.incarnation;
                    if !lock(&self.keys_of_peers).is_of(life, &key) {
                        return Err("it is the process of another key".to_owned());
                    }
                    Ok(described)
                }
                _ => Err("a description is sealed exactly where there are keys".to_owned()),
            }
        });
        let opened = opened.map(|described| Peer::open(&self.engine, described));
        let peer = opened.map_err(|wrong| {
            PyValueError::new_err(format!("{name} describes no engine: {wrong}"))
        })?;
        let first = peer.first();
        let id = peer.id;
        let mut peers = lock(&self.peers);
        let before = peers.insert(name.to_owned(), Arc::new(peer));
        let before = before.filter(|before| before.id != id);
        // It may be known by several names.
        if let Some(before) = before
            && !peers.values().any(|other| other.id == before.id)
        {
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
            let plan = runs.plan(self.engine.home(), &peer, op(write))?;
            if !plan.unregistered.is_empty() {
                return Err(Failure {
                    code: FAILED,
                    reason: "memory that is not registered cannot be used without waiting"
                        .to_owned(),
                    asks_again: false,
                });
            }
            let batch = self.engine.submit(plan.requests, &submit);
            let id = batch.id();
            lock(&self.batches).insert(id, (batch, peer));
            Ok(id.0.cast_signed())
        });
        Ok(self.told(py, "transfer", begun))
    }

    /// How a batch is: 1 while it is under way, then, once, 0 or as `transfer`.
    fn check(&self, py: Python<'_>, batch: u64) -> i64 {
        match self.batch(BatchId(batch)) {
            None => FAILED,
            Some(batch) if !batch.is_done() => 1,
            Some(batch) => self.end(py, &batch),
        }
    }

    /// Waits for a batch: as `transfer`.
    fn wait(&self, py: Python<'_>, batch: u64) -> i64 {
        let Some(batch) = self.batch(BatchId(batch)) else {
            return FAILED;
        };
        // Its requests have deadlines.
        let _ = py.detach(|| batch.wait(&Waiting::at(&BATCHES)));
        self.end(py, &batch)
    }

    /// Whether a peer answers: 0 or as `transfer`.
    fn probe(&self, py: Python<'_>, peer: &str, seconds: f64) -> PyResult<i64> {
        let timeout = seconds_of("seconds", seconds)?;
        if !self.is_here() {
            return Ok(FAILED);
        }
        let probed = py.detach(|| {
            let peer = self.peer(peer)?;
            let probed = self.engine.probe(peer.id, timeout);
            probed.map_err(|error| peer.heed(Failure::from(error)))
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

    fn keys(&self) -> PyResult<&SealConfig> {
        let seal = self.seal.as_ref();
        seal.ok_or_else(|| PyValueError::new_err("this engine has no keys"))
    }

    fn described(&self) -> Vec<u8> {
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
        described.to_string().into_bytes()
    }

    fn add(&self, range: Range, location: Location) -> bool {
        let start = std::ptr::with_exposed_provenance_mut(range.start());
        let Some(start) = NonNull::new(start) else {
            return false;
        };
        // SAFETY: the caller of the call promises that the memory is there until it is registered no more, and that peers
        // may read and write it until then. No slice is made over registered memory.
        let memory = unsafe { Memory::borrowed(start, range.bytes(), location) };
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
            let _ = self.engine.unregister(region.id(), RELEASE);
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

    fn end_all(&self) -> bool {
        let until = now() + RELEASE;
        let regions = std::mem::take(&mut lock(&self.own).regions);
        let busy = regions.values().filter(|one| {
            let left = now().until(until);
            self.engine.unregister(one.region.id(), left).is_err()
        });
        let busy = busy.count();
        self.engine.close();
        busy == 0
    }

    /// The number of a result. A peer that is to be described again is no failure yet.
    fn told(&self, py: Python<'_>, method: &str, result: Result<i64, Failure>) -> i64 {
        match result {
            Ok(number) => number,
            Err(failure) if failure.code == STALE => STALE,
            Err(failure) => self.tell(py, method, &failure),
        }
    }

    fn tell(&self, py: Python<'_>, method: &str, failure: &Failure) -> i64 {
        self.reasons.tell(py, method, failure.code, &failure.reason);
        failure.code
    }

    fn peer(&self, name: &str) -> Result<Arc<Peer>, Failure> {
        let peer = lock(&self.peers).get(name).cloned();
        peer.filter(|peer| !peer.is_stale() && self.is_listed(peer))
            .ok_or_else(Failure::stale)
    }

    /// Whether the key of a peer is on the list, which may have changed since the peer was asked.
    fn is_listed(&self, peer: &Peer) -> bool {
        let lists = |seal: &SealConfig| peer.key.as_ref().is_some_and(|key| seal.lists(key));
        self.seal.as_ref().is_none_or(lists)
    }

    fn batch(&self, id: BatchId) -> Option<Batch> {
        if !self.is_here() {
            return None;
        }
        lock(&self.batches).get(&id).map(|(batch, _)| batch.clone())
    }

    /// Forgets a batch that is over: its result. That a peer refused it is found out only now, so the next call is told to
    /// have the peer described again.
    fn end(&self, py: Python<'_>, batch: &Batch) -> i64 {
        let Some((_, peer)) = lock(&self.batches).remove(&batch.id()) else {
            return FAILED;
        };
        match result(batch) {
            Ok(number) => number,
            Err(failure) => self.tell(py, "transfer", &peer.heed(failure)),
        }
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
        let carried = self.carry_to(&peer, op, runs, timeout, notice);
        carried.map_err(|failure| peer.heed(failure))
    }

    fn carry_to(
        &self,
        peer: &Peer,
        op: Op,
        runs: &Runs,
        timeout: Duration,
        notice: Option<(String, String)>,
    ) -> Result<(), Failure> {
        let until = now() + timeout;
        let plan = runs.plan(self.engine.home(), peer, op)?;
        let mut notice = notice.map(|(name, text)| Notice {
            name,
            bytes: text.into_bytes(),
        });
        let last = notice.take_if(|_| plan.unregistered.is_empty());
        if !plan.requests.is_empty() || last.is_some() {
            let submit = Submit {
                timeout,
                notice: last.map(|notice| (peer.id, notice)),
                ..Submit::default()
            };
            self.engine.transfer(plan.requests, &submit)?;
        }
        for (local, target) in plan.unregistered {
            let left = now().until(until);
            let moved = match op {
                // SAFETY: the caller of the call promises that the memory is there and that nothing else writes it until the
                // call returns; peers may not, as none of it is registered.
                Op::Write => self
                    .engine
                    .write_now(&target, unsafe { local.as_slice() }, left),
                // SAFETY: the caller of the call promises that the memory is there and that nothing else uses it until the
                // call returns; peers may not, as none of it is registered.
                Op::Read => self
                    .engine
                    .read_now(&target, unsafe { local.as_mut_slice() }, left),
            };
            moved.map_err(BatchError::Failed)?;
        }
        match notice {
            None => Ok(()),
            Some(notice) => {
                let left = now().until(until);
                Ok(self.engine.notify(peer.id, notice, left)?)
            }
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
        Python::attach(|py| py.detach(|| self.end_all()));
    }
}

/// The configuration that the environment sets, with further variables in the place of those of keys.
fn configured(
    name: &str,
    further: impl Iterator<Item = (String, String)>,
) -> PyResult<EngineConfig> {
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        let is_of_keys = KEY_VARIABLES.contains(&name.as_str());
        Some((name, value.into_string().ok()?)).filter(|_| !is_of_keys)
    });
    EngineConfig::from_env(name, variables.chain(further)).map_err(|wrong| {
        let wrong: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        PyValueError::new_err(wrong.join("; "))
    })
}

fn op(write: bool) -> Op {
    if write { Op::Write } else { Op::Read }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
