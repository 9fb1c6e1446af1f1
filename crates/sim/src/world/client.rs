//! A client's process: it runs its script with the real flows and moves the bytes itself.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use slackwater_base::{Checksum, Instant, Rng};
use slackwater_client::{
    Action, Answer, Backoff, CallFlow, FlowOptions, GetFlow, GetOutcome, LocalFirst, PutFlow, PutOutcome, ReadFailure,
    WriteFailure,
};
use slackwater_wire::{
    CallId, DiskEntry, Exists, ExtentRef, Get, GetEnd, GuardId, Key, List, Lookup, PutEntry, PutStart, Remove,
    RemoveAll, RemoveMatching, ReplicaAt, Reply, Request, Version,
};

use crate::check::{Checked, Invariant, Violation};
use crate::clock::Clock;
use crate::engine::Seed;
use crate::history::{Name, Read};
use crate::load::{Operation, Step};
use crate::net::Process;
use crate::options::Options;
use crate::value::{self, PutId};

use super::event::{Control, Data, Event, SessionId, TransferId};
use super::judge::Call;
use super::{Timer, World};

/// A client's process.
pub(crate) struct Client {
    pub(crate) up: bool,
    pub(crate) life: u64,
    pub(crate) clock: Clock,
    pub(crate) session: Option<SessionId>,
    /// Steps not yet begun, the next one last.
    script: Vec<Step>,
    pub(crate) running: Option<Running>,
    pub(crate) tally: Tally,
    /// Signs of life tried after healing, and whether one succeeded.
    pub(crate) probes: u64,
    pub(crate) alive: bool,
    timer: Timer,
    rng: Rng,
    next_call: u64,
    seed: Seed,
    index: u32,
    drift_ppm: u64,
}

/// How the operations of a client ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Operations begun.
    pub begun: u64,
    /// Values stored.
    pub stored: u64,
    /// Values found and right.
    pub hits: u64,
    /// Of these, read from SSD.
    pub disk_hits: u64,
    /// Keys not found.
    pub misses: u64,
    /// Keys or calls that ended in an error.
    pub failed: u64,
    /// Keys or calls of which nobody knows what became.
    pub unknown: u64,
    /// Operations cut off by the end of the process.
    pub cut_off: u64,
}

/// One operation under way.
pub(crate) struct Running {
    flow: Flow,
    /// Why it runs: from the script, or to see whether the cluster lives.
    pub(crate) probe: Option<Probe>,
    began: Instant,
    /// When it must have ended, on the client's clock.
    deadline: Instant,
    names: Vec<Name>,
    values: Vec<Rc<[u8]>>,
    puts: Vec<PutId>,
    /// The call whose answer the flow waits for.
    ask: Option<CallId>,
    asked_at: Instant,
    reads: BTreeMap<usize, Arrived>,
    writes: BTreeMap<usize, Writing>,
    transfers: BTreeMap<TransferId, Transfer>,
    tells: Vec<CallId>,
}

enum Flow {
    Get(GetFlow),
    Put(PutFlow),
    Call(CallFlow),
}

/// How far the sign of life of a healed cluster has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// The value is being put.
    Put,
    /// The value is being read back.
    Get,
    /// Everything is being read at the end.
    ReadBack,
}

#[derive(Clone, Debug, Default)]
struct Arrived {
    version: Version,
    began: Instant,
    bytes: Option<Rc<[u8]>>,
}

#[derive(Clone, Copy, Debug)]
struct Writing {
    open: usize,
    failure: Option<WriteFailure>,
}

struct Transfer {
    index: usize,
    to: Process,
    attempts: u32,
    what: Moves,
}

#[derive(Clone)]
enum Moves {
    Read(Data),
    /// In so many pieces.
    Write(ExtentRef, usize),
}

impl Tally {
    /// Adds the operations of another client.
    pub(crate) fn add(&mut self, other: &Self) {
        self.begun += other.begun;
        self.stored += other.stored;
        self.hits += other.hits;
        self.disk_hits += other.disk_hits;
        self.misses += other.misses;
        self.failed += other.failed;
        self.unknown += other.unknown;
        self.cut_off += other.cut_off;
    }
}

impl Client {
    pub(crate) fn new(seed: Seed, options: &Options, index: u32, mut script: Vec<Step>) -> Self {
        script.reverse();
        Self {
            up: false,
            life: 0,
            clock: Clock::new(&mut seed.stream("clock of a client", u64::from(index)), options.drift_ppm),
            session: None,
            script,
            running: None,
            tally: Tally::default(),
            probes: 0,
            alive: false,
            timer: Timer::default(),
            rng: seed.stream("client", u64::from(index)),
            next_call: 0,
            seed,
            index,
            drift_ppm: options.drift_ppm,
        }
    }

    /// Whether it has nothing left to do.
    pub(crate) fn idle(&self) -> bool {
        self.script.is_empty() && self.running.is_none()
    }
}

impl World {
    pub(crate) fn start_client(&mut self, index: u32) {
        let client = &mut self.clients[index as usize];
        client.life += 1;
        client.up = true;
        let mut rng = client.seed.stream("clock of a client", u64::from(client.index) << 32 | client.life);
        client.clock = Clock::new(&mut rng, client.drift_ppm);
        client.timer = Timer::default();
        client.session = None;
        if self.healed {
            self.schedule_probe(index);
        } else {
            self.schedule_next(index);
        }
    }

    /// The process of a client ends; what it had under way is cut off.
    pub(crate) fn stop_client(&mut self, index: u32) {
        let client = &mut self.clients[index as usize];
        client.up = false;
        client.session = None;
        if let Some(running) = client.running.take() {
            client.tally.cut_off += 1;
            if running.probe == Some(Probe::Put) {
                client.tally.unknown += 1;
            }
        }
    }

    /// A client whose cluster is healed tries soon whether it lives.
    pub(crate) fn schedule_probe(&mut self, index: u32) {
        let client = &self.clients[index as usize];
        let at = self.engine.now() + PROBE_PAUSE;
        self.engine.push(at, Event::Next { client: index, life: client.life });
    }

    fn schedule_next(&mut self, index: u32) {
        let client = &self.clients[index as usize];
        let Some(step) = client.script.last() else { return };
        let at = self.engine.now() + step.think;
        self.engine.push(at, Event::Next { client: index, life: client.life });
    }

    pub(super) fn on_next(&mut self, index: u32, life: u64) -> Checked {
        let client = &mut self.clients[index as usize];
        if !client.up || client.life != life || client.running.is_some() {
            return Ok(());
        }
        match client.script.pop() {
            Some(step) => self.begin(index, step.operation, None),
            None if self.healed && !client.alive => self.begin_probe(index),
            None => Ok(()),
        }
    }

    /// Begins an operation.
    pub(crate) fn begin(&mut self, index: u32, operation: Operation, probe: Option<Probe>) -> Checked {
        let (now, local) = (self.engine.now(), self.local(Process::Client(index)));
        let line = format!("client{index} begins {operation:?}");
        self.trace.note(now, format_args!("{line}"));
        let options = self.flow_options(index, local);
        let deadline = options.deadline;
        let mut running = Running {
            flow: Flow::Call(CallFlow::start(Request::Quotas, options.clone(), &mut Vec::new())),
            probe,
            began: now,
            deadline,
            names: Vec::new(),
            values: Vec::new(),
            puts: Vec::new(),
            ask: None,
            asked_at: now,
            reads: BTreeMap::new(),
            writes: BTreeMap::new(),
            transfers: BTreeMap::new(),
            tells: Vec::new(),
        };
        let mut actions = Vec::new();
        running.flow = self.open_flow(&mut running, operation, (local, options), &mut actions);
        let client = &mut self.clients[index as usize];
        client.tally.begun += 1;
        client.running = Some(running);
        self.act(index, actions)
    }

    fn flow_options(&mut self, index: u32, local: Instant) -> FlowOptions {
        let client = &mut self.clients[index as usize];
        let deadline = local + self.options.deadline;
        FlowOptions { deadline, attempts: self.options.attempts, backoff: Backoff::new(client.rng.next_u64()) }
    }

    fn open_flow(
        &mut self,
        running: &mut Running,
        operation: Operation,
        (local, options): (Instant, FlowOptions),
        out: &mut Vec<Action>,
    ) -> Flow {
        let call = |request: Request, out: &mut Vec<Action>| Flow::Call(CallFlow::start(request, options.clone(), out));
        match operation {
            Operation::Put { tenant, entries, chain, config } => {
                let now = self.engine.now();
                for (key, bytes) in &entries {
                    let name = (tenant.clone(), key.clone());
                    let put = self.history.begin_put(name.clone(), now);
                    running.values.push(value::make(&tenant, key, put, *bytes).into());
                    running.names.push(name);
                    running.puts.push(put);
                }
                let entries = entries.into_iter().map(|(key, bytes)| PutEntry { key, bytes: bytes as u64 }).collect();
                Flow::Put(PutFlow::start(PutStart { tenant, entries, chain, config }, options, out))
            }
            Operation::Get { tenant, keys, chain, hold, prefix_only } => {
                running.names = keys.iter().map(|key| (tenant.clone(), key.clone())).collect();
                let get = Get { tenant, keys, chain, hold, prefix_only };
                Flow::Get(GetFlow::start(local, get, options, Box::new(LocalFirst::default()), out))
            }
            Operation::Exists { tenant, keys } => call(Request::Exists(Exists { tenant, keys }), out),
            Operation::Remove { tenant, keys, force } => call(Request::Remove(Remove { tenant, keys, force }), out),
            Operation::RemoveMatching { tenant, pattern, force } => {
                call(Request::RemoveMatching(RemoveMatching { tenant, pattern, force }), out)
            }
            Operation::RemoveAll { tenant, force } => {
                call(Request::RemoveAll(RemoveAll { tenant: Some(tenant), force }), out)
            }
            Operation::List { tenant, limit } => {
                call(Request::List(List { tenant, pattern: None, after: None, limit }), out)
            }
            Operation::Describe { tenant, key } => call(Request::Describe { tenant, key }, out),
        }
    }

    /// Does what the flow of a client wants, then looks whether it has ended.
    fn act(&mut self, index: u32, actions: Vec<Action>) -> Checked {
        for action in actions {
            match action {
                Action::Ask(request) => {
                    let call = self.ask(index, request);
                    let now = self.engine.now();
                    if let Some(running) = &mut self.clients[index as usize].running {
                        running.ask = Some(call);
                        running.asked_at = now;
                    }
                }
                Action::Tell(request) => {
                    let call = self.ask(index, request);
                    if let Some(running) = &mut self.clients[index as usize].running {
                        running.tells.push(call);
                    }
                }
                Action::Read { index: item, key, version, bytes, from, .. } => {
                    self.begin_read(index, item, (key, version, bytes), from);
                }
                Action::Write { index: item, extents } => self.begin_write(index, item, &extents),
            }
            self.spoke(Process::Client(index))?;
            if !self.clients[index as usize].up {
                return Ok(());
            }
        }
        self.finish_if_over(index)?;
        self.arm_client(index);
        Ok(())
    }

    fn ask(&mut self, index: u32, request: Request) -> CallId {
        let process = Process::Client(index);
        let session = match self.clients[index as usize].session {
            Some(session) => session,
            None => self.connect(process),
        };
        let client = &mut self.clients[index as usize];
        client.session = Some(session);
        client.next_call += 1;
        let call = CallId(client.next_call);
        if let Some(running) = &client.running {
            let puts = running.names.iter().cloned().zip(running.puts.iter().copied()).collect();
            self.calls.insert(
                (super::session::client_id(session), call),
                Call { began: running.began, request: request.clone(), puts, answered: false },
            );
        }
        self.say(session, process, Control::Request { call, request });
        call
    }

    pub(super) fn client_answered(&mut self, index: u32, call: CallId, reply: Reply) -> Checked {
        let local = self.local(Process::Client(index));
        let waiting = self.clients[index as usize].running.as_mut().filter(|running| running.ask == Some(call));
        let Some(running) = waiting else {
            self.give_back(index, &reply);
            return Ok(());
        };
        running.ask = None;
        let mut actions = Vec::new();
        match &mut running.flow {
            Flow::Get(flow) => flow.on_reply(local, reply, &mut actions),
            Flow::Put(flow) => flow.on_reply(local, reply, &mut actions),
            Flow::Call(flow) => flow.on_reply(local, reply),
        }
        self.act(index, actions)
    }

    /// An answer that came after its operation had ended: nobody will read under its guards.
    fn give_back(&mut self, index: u32, reply: &Reply) {
        let Reply::Get(lookups) = reply else { return };
        let guard = |lookup: &Lookup| if let Lookup::Found(object) = lookup { object.guard } else { None };
        let guards: Vec<GuardId> = lookups.iter().filter_map(guard).collect();
        if !guards.is_empty() {
            self.ask(index, Request::GetEnd(GetEnd { guards }));
        }
    }

    pub(super) fn client_lost_master(&mut self, index: u32, session: SessionId) -> Checked {
        let local = self.local(Process::Client(index));
        let client = &mut self.clients[index as usize];
        if client.session != Some(session) {
            return Ok(());
        }
        client.session = None;
        let Some(running) = &mut client.running else { return Ok(()) };
        if running.ask.take().is_none() {
            return Ok(());
        }
        let mut actions = Vec::new();
        match &mut running.flow {
            Flow::Get(flow) => flow.on_link_lost(local, &mut actions),
            Flow::Put(flow) => flow.on_link_lost(local),
            Flow::Call(flow) => flow.on_link_lost(local),
        }
        self.act(index, actions)
    }

    pub(super) fn client_wakes(&mut self, index: u32, life: u64) -> Checked {
        if !self.lives(Process::Client(index), life) {
            return Ok(());
        }
        let local = self.local(Process::Client(index));
        let client = &mut self.clients[index as usize];
        client.timer.rang();
        let mut actions = Vec::new();
        if let Some(running) = &mut client.running
            && running.flow.next_deadline().is_some_and(|at| at <= local)
        {
            match &mut running.flow {
                Flow::Get(flow) => flow.on_deadline(local, &mut actions),
                Flow::Put(flow) => flow.on_deadline(local, &mut actions),
                Flow::Call(flow) => flow.on_deadline(local, &mut actions),
            }
        }
        self.act(index, actions)
    }

    fn arm_client(&mut self, index: u32) {
        let now = self.engine.now();
        let client = &mut self.clients[index as usize];
        let deadline = client.running.as_ref().and_then(|running| running.flow.next_deadline());
        let world = deadline.map(|at| client.clock.world(at));
        if let Some(at) = client.timer.arm(now, world) {
            let life = client.life;
            self.engine.push(at, Event::Wake { process: Process::Client(index), life });
        }
    }

    fn begin_read(&mut self, index: u32, item: usize, (key, version, bytes): (Key, Version, u64), from: ReplicaAt) {
        let Some(running) = &mut self.clients[index as usize].running else { return };
        running.reads.insert(item, Arrived { version, began: running.asked_at, bytes: None });
        let tenant = running.names[item].0.clone();
        self.next_transfer += 1;
        let transfer = TransferId(self.next_transfer);
        let (to, data) = match from {
            ReplicaAt::Memory(extent) => {
                (self.options.owner(extent.segment), Data::ReadMemory { transfer, extent, bytes })
            }
            ReplicaAt::Disk { node, .. } => {
                let entry = DiskEntry { tenant, key, version };
                (node.0, Data::ReadRecord { transfer, entry })
            }
        };
        self.open_transfer(index, transfer, item, Process::Node(to), Moves::Read(data));
    }

    fn begin_write(&mut self, index: u32, item: usize, extents: &[ExtentRef]) {
        let Some(running) = &mut self.clients[index as usize].running else { return };
        running.writes.insert(item, Writing { open: extents.len(), failure: None });
        for extent in extents {
            self.next_transfer += 1;
            let transfer = TransferId(self.next_transfer);
            let to = Process::Node(self.options.owner(extent.segment));
            let chunks = 1 + self.clients[index as usize].rng.below(3) as usize;
            self.open_transfer(index, transfer, item, to, Moves::Write(*extent, chunks));
        }
    }

    fn open_transfer(&mut self, index: u32, transfer: TransferId, item: usize, to: Process, what: Moves) {
        let Some(running) = &mut self.clients[index as usize].running else { return };
        running.transfers.insert(transfer, Transfer { index: item, to, attempts: 0, what });
        self.send_transfer(index, transfer);
    }

    /// Sends all of a transfer, again or for the first time, and looks after it later.
    fn send_transfer(&mut self, index: u32, id: TransferId) {
        let from = Process::Client(index);
        let client = &mut self.clients[index as usize];
        let life = client.life;
        let Some(running) = &mut client.running else { return };
        let Some(transfer) = running.transfers.get_mut(&id) else { return };
        transfer.attempts += 1;
        let (to, item) = (transfer.to, transfer.index);
        let pieces = match transfer.what.clone() {
            Moves::Read(data) => vec![data],
            Moves::Write(extent, chunks) => pieces(id, extent, &running.values[item], chunks),
        };
        for piece in &pieces {
            self.send(from, to, piece);
        }
        let at = self.engine.now() + self.options.transfer_timeout;
        self.engine.push(at, Event::Resend { client: index, life, transfer: id });
    }

    pub(super) fn on_resend(&mut self, index: u32, life: u64, id: TransferId) -> Checked {
        if !self.lives(Process::Client(index), life) {
            return Ok(());
        }
        let Some(running) = &mut self.clients[index as usize].running else { return Ok(()) };
        let Some(transfer) = running.transfers.get(&id) else { return Ok(()) };
        if transfer.attempts < TRANSFER_ATTEMPTS {
            self.send_transfer(index, id);
            return Ok(());
        }
        match transfer.what {
            Moves::Read(_) => self.read_ended(index, id, Err(ReadFailure::Transfer)),
            Moves::Write(..) => self.write_ended(index, id, Err(WriteFailure::Transfer)),
        }
    }

    pub(super) fn client_data(&mut self, index: u32, data: Data) -> Checked {
        match data {
            Data::Bytes { transfer, result } => self.read_ended(index, transfer, result),
            Data::Written { transfer, result } => self.write_ended(index, transfer, result),
            Data::Write { .. } | Data::ReadMemory { .. } | Data::ReadRecord { .. } => Ok(()),
        }
    }

    fn read_ended(&mut self, index: u32, id: TransferId, result: Result<Rc<[u8]>, ReadFailure>) -> Checked {
        let local = self.local(Process::Client(index));
        let Some(running) = &mut self.clients[index as usize].running else { return Ok(()) };
        let Some(transfer) = running.transfers.remove(&id) else { return Ok(()) };
        let item = transfer.index;
        let seen = result.as_ref().map(|bytes| Checksum::of(bytes)).map_err(|failure| *failure);
        if let (Ok(bytes), Some(arrived)) = (result, running.reads.get_mut(&item)) {
            arrived.bytes = Some(bytes);
        }
        let mut actions = Vec::new();
        if let Flow::Get(flow) = &mut running.flow {
            flow.on_read(local, item, seen, &mut actions);
        }
        self.act(index, actions)
    }

    fn write_ended(&mut self, index: u32, id: TransferId, result: Result<(), WriteFailure>) -> Checked {
        let Some(running) = &mut self.clients[index as usize].running else { return Ok(()) };
        let Some(transfer) = running.transfers.remove(&id) else { return Ok(()) };
        let item = transfer.index;
        let Some(writing) = running.writes.get_mut(&item) else { return Ok(()) };
        writing.open -= 1;
        writing.failure = writing.failure.or(result.err());
        if writing.open > 0 {
            return Ok(());
        }
        let written = match writing.failure {
            Some(failure) => Err(failure),
            None => Ok(Checksum::of(&running.values[item])),
        };
        let mut actions = Vec::new();
        if let Flow::Put(flow) = &mut running.flow {
            flow.on_written(item, written, &mut actions);
        }
        self.act(index, actions)
    }

    fn finish_if_over(&mut self, index: u32) -> Checked {
        let Some(running) = self.clients[index as usize].running.take() else { return Ok(()) };
        let over = match &running.flow {
            Flow::Get(flow) => flow.outcomes().map(|outcomes| self.got(index, &running, &outcomes)),
            Flow::Put(flow) => flow.outcomes().map(|outcomes| Ok(self.put(index, &running, &outcomes))),
            Flow::Call(flow) => flow.answer().map(|answer| Ok(self.called(index, answer))),
        };
        let Some(checked) = over else {
            self.clients[index as usize].running = Some(running);
            return Ok(());
        };
        let success = checked?;
        self.check_deadline(index, &running)?;
        if let Some(probe) = running.probe {
            return self.go_on_probing(index, probe, success);
        }
        self.schedule_next(index);
        Ok(())
    }

    fn got(&mut self, index: u32, running: &Running, outcomes: &[GetOutcome]) -> Checked<bool> {
        let now = self.engine.now();
        for (item, outcome) in outcomes.iter().enumerate() {
            let name = &running.names[item];
            self.trace.note(now, format_args!("client{index} got {name:?} {outcome:?}"));
            let tally = &mut self.clients[index as usize].tally;
            match outcome {
                GetOutcome::Hit { from, bytes: length } => {
                    tally.hits += 1;
                    tally.disk_hits += u64::from(matches!(from, ReplicaAt::Disk { .. }));
                    let arrived = running.reads.get(&item).cloned().unwrap_or_default();
                    let bytes = arrived.bytes.unwrap_or_default();
                    if bytes.len() as u64 != *length {
                        let what = format!("a hit on {name:?} of {length} bytes has {}", bytes.len());
                        return Err(Violation::new(Invariant::NoWrongBytes, what));
                    }
                    let read = Read { began: arrived.began, ended: now, name, version: arrived.version, bytes: &bytes };
                    self.history.judge(&read)?;
                }
                GetOutcome::Miss => tally.misses += 1,
                GetOutcome::Failed(_) => tally.failed += 1,
            }
        }
        Ok(outcomes.iter().all(|outcome| matches!(outcome, GetOutcome::Hit { .. })))
    }

    fn put(&mut self, index: u32, running: &Running, outcomes: &[PutOutcome]) -> bool {
        let now = self.engine.now();
        for (name, outcome) in running.names.iter().zip(outcomes) {
            self.trace.note(now, format_args!("client{index} put {name:?} {outcome:?}"));
            let tally = &mut self.clients[index as usize].tally;
            match outcome {
                PutOutcome::Stored => tally.stored += 1,
                PutOutcome::Existed => {}
                PutOutcome::Failed(_) => tally.failed += 1,
                PutOutcome::Unknown => tally.unknown += 1,
            }
        }
        outcomes.iter().all(|outcome| *outcome == PutOutcome::Stored)
    }

    fn called(&mut self, index: u32, answer: &Answer) -> bool {
        let now = self.engine.now();
        self.trace.note(now, format_args!("client{index} heard {answer:?}"));
        let tally = &mut self.clients[index as usize].tally;
        match answer {
            Answer::Reply(Reply::Failed(_)) => tally.failed += 1,
            Answer::Reply(_) => {}
            Answer::Unknown => tally.unknown += 1,
        }
        *answer != Answer::Unknown
    }

    /// No operation outlives its deadline by more than a tick, unless its process stood still.
    fn check_deadline(&mut self, index: u32, running: &Running) -> Checked {
        let local = self.local(Process::Client(index));
        let late = local.since(running.deadline);
        let stood = self.last_pause.get(&Process::Client(index)).is_some_and(|end| *end >= running.began);
        if late > TICK && !stood {
            let what = format!("an operation of client{index} ended {late:?} after its deadline");
            return Err(Violation::new(Invariant::Liveness, what));
        }
        Ok(())
    }
}

impl Flow {
    fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::Get(flow) => flow.next_deadline(),
            Self::Put(flow) => flow.next_deadline(),
            Self::Call(flow) => flow.next_deadline(),
        }
    }
}

/// A value cut into datagrams.
fn pieces(transfer: TransferId, extent: ExtentRef, value: &Rc<[u8]>, chunks: usize) -> Vec<Data> {
    let size = value.len().div_ceil(chunks);
    let count = value.len().div_ceil(size);
    let piece = |(at, bytes): (usize, &[u8])| Data::Write {
        transfer,
        extent,
        offset: at * size,
        bytes: bytes.into(),
        chunks: count,
    };
    value.chunks(size).enumerate().map(piece).collect()
}

/// How often a client sends a transfer before it takes the link for broken.
const TRANSFER_ATTEMPTS: u32 = 3;
/// How long a client waits between two signs of life.
const PROBE_PAUSE: Duration = Duration::from_millis(5);
/// How late an operation may end.
const TICK: Duration = Duration::from_millis(5);
