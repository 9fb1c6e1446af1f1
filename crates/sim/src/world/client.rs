//! A client's process: it runs its script with the flows of the client crate and moves the bytes
//! itself.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use slackwater_base::{Backoff, Instant, Rng};
use slackwater_client::{
    Action, CallFlow, FlowOptions, GetFlow, LocalFirst, Operations, PutFlow, Tells,
};
use slackwater_wire::{
    Exists, Get, List, OperationId, PutEntry, PutStart, Remove, RemoveAll, RemoveMatching, Reply,
    Request,
};

use crate::check::Checked;
use crate::clock::DriftingClock;
use crate::engine::Seed;
use crate::history::Name;
use crate::load::{Operation, Step};
use crate::net::Process;
use crate::options::Options;
use crate::value::{self, PutId};

use super::event::{Control, Event, SessionId, TransferId};
use super::judge::Asked;
use super::session::client_name;
use super::transfer::{Arrived, Transfer, Writing};
use super::{Timer, World};

/// A client's process.
pub(crate) struct Client {
    pub(crate) up: bool,
    pub(crate) life: u64,
    pub(crate) clock: DriftingClock,
    pub(crate) session: Option<SessionId>,
    /// Steps not yet begun, the next one last.
    script: Vec<Step>,
    pub(crate) running: Option<Running>,
    pub(crate) tally: OperationCounts,
    /// Probes begun after healing, and whether one succeeded.
    pub(crate) probes: u64,
    pub(crate) alive: bool,
    timer: Timer,
    pub(super) rng: Rng,
    /// The numbers of this life's operations.
    operations: Operations,
    /// Requests that no flow waits for and that the master has not answered yet.
    pub(crate) tells: Tells,
    /// Operations and probes begun so far, over all lives.
    begun: u64,
    seed: Seed,
    index: u32,
    drift_ppm: u64,
}

/// How the operations of a client ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCounts {
    /// Operations begun.
    pub begun: u64,
    /// Values stored.
    pub stored: u64,
    /// Values that were found and right.
    pub hits: u64,
    /// Hits that were read from SSD.
    pub disk_hits: u64,
    /// Keys not found.
    pub misses: u64,
    /// Keys or calls that ended in an error.
    pub failed: u64,
    /// Keys or calls whose effect is not known.
    pub unknown: u64,
    /// Operations interrupted by the end of the process.
    pub cut_off: u64,
    /// Operations that their caller cancelled.
    pub cancelled: u64,
}

/// One operation under way.
pub(crate) struct Running {
    pub(super) flow: Flow,
    /// The step of a probe that it is; `None` for an operation of the script.
    pub(crate) probe: Option<Probe>,
    pub(super) began: Instant,
    /// When it must have ended, on the client's clock.
    pub(super) deadline: Instant,
    pub(super) names: Vec<Name>,
    pub(super) values: Vec<Rc<[u8]>>,
    pub(super) puts: Vec<PutId>,
    /// The operation that the flow requested last, and when it first did so.
    pub(super) asked: Option<OperationId>,
    pub(super) asked_at: Instant,
    pub(super) reads: BTreeMap<usize, Arrived>,
    pub(super) writes: BTreeMap<usize, Writing>,
    pub(super) transfers: BTreeMap<TransferId, Transfer>,
    /// Its number among all that its client has begun.
    pub(super) number: u64,
}

/// The flow that drives an operation.
pub(crate) enum Flow {
    Get(GetFlow),
    Put(PutFlow),
    Call(CallFlow),
}

/// The step of a probe, which checks that a healed cluster works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// The value is being put.
    Put,
    /// The value is being read back.
    Get,
    /// Everything is being read at the end.
    ReadBack,
}

impl OperationCounts {
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
        self.cancelled += other.cancelled;
    }
}

impl Client {
    pub(crate) fn new(seed: Seed, options: &Options, index: u32, mut script: Vec<Step>) -> Self {
        script.reverse();
        Self {
            up: false,
            life: 0,
            clock: DriftingClock::new(
                &mut seed.stream("clock of a client", u64::from(index)),
                options.drift_ppm,
            ),
            session: None,
            script,
            running: None,
            tally: OperationCounts::default(),
            probes: 0,
            alive: false,
            timer: Timer::default(),
            rng: seed.stream("client", u64::from(index)),
            operations: Operations::remote(),
            tells: tells(seed, index, 0),
            begun: 0,
            seed,
            index,
            drift_ppm: options.drift_ppm,
        }
    }

    /// Whether the script is done and nothing is under way.
    pub(crate) fn idle(&self) -> bool {
        self.script.is_empty() && self.running.is_none()
    }

    /// Whether the master has answered all requests.
    pub(crate) fn at_rest(&self) -> bool {
        self.idle() && self.tells.is_empty()
    }
}

impl World {
    pub(crate) fn start_client(&mut self, index: u32) {
        let client = &mut self.clients[index as usize];
        client.life += 1;
        client.up = true;
        let mut rng = client.seed.stream(
            "clock of a client",
            u64::from(client.index) << 32 | client.life,
        );
        client.clock = DriftingClock::new(&mut rng, client.drift_ppm);
        client.timer = Timer::default();
        client.session = None;
        client.operations = if self.options.embedded {
            Operations::in_process()
        } else {
            Operations::remote()
        };
        client.tells = tells(client.seed, index, client.life);
        if self.healed {
            self.schedule_probe(index);
        } else {
            self.schedule_next(index);
        }
    }

    /// Ends the process of a client and interrupts its operation.
    pub(crate) fn stop_client(&mut self, index: u32) {
        let client = &mut self.clients[index as usize];
        client.up = false;
        client.session = None;
        client.tells = tells(client.seed, index, client.life);
        if let Some(running) = client.running.take() {
            client.tally.cut_off += 1;
            if running.probe == Some(Probe::Put) {
                client.tally.unknown += 1;
            }
        }
    }

    /// Schedules a probe by a client of a healed cluster.
    pub(crate) fn schedule_probe(&mut self, index: u32) {
        let client = &self.clients[index as usize];
        let at = self.engine.now() + PROBE_PAUSE;
        self.engine.push(
            at,
            Event::Next {
                client: index,
                life: client.life,
            },
        );
    }

    pub(super) fn schedule_next(&mut self, index: u32) {
        let client = &self.clients[index as usize];
        let Some(step) = client.script.last() else {
            return;
        };
        let at = self.engine.now() + step.think;
        self.engine.push(
            at,
            Event::Next {
                client: index,
                life: client.life,
            },
        );
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
    pub(crate) fn begin(
        &mut self,
        index: u32,
        operation: Operation,
        probe: Option<Probe>,
    ) -> Checked {
        let (now, local) = (self.engine.now(), self.local(Process::Client(index)));
        let line = format!("client{index} begins {operation:?}");
        self.trace.note(now, format_args!("{line}"));
        let options = self.flow_options(index, local);
        let deadline = options.deadline;
        let client = &mut self.clients[index as usize];
        client.begun += 1;
        let number = client.begun;
        let mut running = Running {
            flow: Flow::Call(CallFlow::start(
                local,
                Request::Quotas,
                FlowOptions::once(local),
                &mut Vec::new(),
            )),
            probe,
            began: now,
            deadline,
            names: Vec::new(),
            values: Vec::new(),
            puts: Vec::new(),
            asked: None,
            asked_at: now,
            reads: BTreeMap::new(),
            writes: BTreeMap::new(),
            transfers: BTreeMap::new(),
            number,
        };
        let mut actions = Vec::new();
        running.flow = self.open_flow(&mut running, operation, (local, options), &mut actions);
        let client = &mut self.clients[index as usize];
        client.tally.begun += 1;
        client.running = Some(running);
        if probe.is_none() {
            self.schedule_cancel(index, number);
        }
        self.act(index, actions)
    }

    /// Schedules the cancellation of some operations by their callers.
    fn schedule_cancel(&mut self, index: u32, number: u64) {
        let client = &self.clients[index as usize];
        let rng = &mut client
            .seed
            .stream("cancel", u64::from(index) << 32 | number);
        if !rng.chance(self.options.cancels) {
            return;
        }
        let patience = Duration::from_nanos(rng.below(CANCEL_AFTER_NANOS_MAX));
        let event = Event::CallerCancels {
            client: index,
            life: client.life,
            begun: number,
        };
        self.engine.push(self.engine.now() + patience, event);
    }

    pub(super) fn on_caller_cancels(&mut self, index: u32, life: u64, begun: u64) -> Checked {
        if !self.lives(Process::Client(index), life) {
            return Ok(());
        }
        let client = &mut self.clients[index as usize];
        let running = client.running.as_mut();
        let Some(running) = running.filter(|running| running.number == begun) else {
            return Ok(());
        };
        client.tally.cancelled += 1;
        let mut actions = Vec::new();
        match &mut running.flow {
            Flow::Get(flow) => flow.cancel(&mut actions),
            Flow::Put(flow) => flow.cancel(&mut actions),
            Flow::Call(flow) => flow.cancel(),
        }
        self.act(index, actions)
    }

    fn flow_options(&mut self, index: u32, local: Instant) -> FlowOptions {
        let client = &mut self.clients[index as usize];
        let deadline = local + self.options.deadline;
        FlowOptions {
            deadline,
            attempts: self.options.attempts,
            answer_timeout: self.options.answer_timeout,
            operations: client.operations.clone(),
            backoff: FlowOptions::BACKOFF,
            jitter: client.rng.split(),
        }
    }

    fn open_flow(
        &mut self,
        running: &mut Running,
        operation: Operation,
        (local, options): (Instant, FlowOptions),
        out: &mut Vec<Action>,
    ) -> Flow {
        let call = |request: Request, out: &mut Vec<Action>| {
            Flow::Call(CallFlow::start(local, request, options.clone(), out))
        };
        match operation {
            Operation::Put {
                tenant,
                entries,
                chain,
                config,
            } => {
                let now = self.engine.now();
                for (key, bytes) in &entries {
                    let name = (tenant.clone(), key.clone());
                    let put = self.history.begin_put(name.clone(), now);
                    running
                        .values
                        .push(value::make(&tenant, key, put, *bytes).into());
                    running.names.push(name);
                    running.puts.push(put);
                }
                let entries = entries
                    .into_iter()
                    .map(|(key, bytes)| PutEntry {
                        key,
                        bytes: bytes as u64,
                    })
                    .collect();
                Flow::Put(PutFlow::start(
                    local,
                    PutStart {
                        tenant,
                        entries,
                        chain,
                        config,
                    },
                    options,
                    out,
                ))
            }
            Operation::Get {
                tenant,
                keys,
                chain,
                hold,
                prefix_only,
            } => {
                running.names = keys
                    .iter()
                    .map(|key| (tenant.clone(), key.clone()))
                    .collect();
                let get = Get {
                    tenant,
                    keys,
                    chain,
                    hold,
                    prefix_only,
                };
                Flow::Get(GetFlow::start(
                    local,
                    get,
                    options,
                    Box::new(LocalFirst::default()),
                    out,
                ))
            }
            Operation::Exists { tenant, keys } => {
                let keys = keys.into();
                call(Request::Exists(Exists { tenant, keys }), out)
            }
            Operation::Remove {
                tenant,
                keys,
                force,
            } => call(
                Request::Remove(Remove {
                    tenant,
                    keys,
                    force,
                }),
                out,
            ),
            Operation::RemoveMatching {
                tenant,
                pattern,
                force,
            } => call(
                Request::RemoveMatching(RemoveMatching {
                    tenant,
                    pattern,
                    force,
                }),
                out,
            ),
            Operation::RemoveAll { tenant, force } => call(
                Request::RemoveAll(RemoveAll {
                    tenant: Some(tenant),
                    force,
                }),
                out,
            ),
            Operation::List { tenant, limit } => call(
                Request::List(List {
                    tenant,
                    pattern: None,
                    after: None,
                    limit,
                }),
                out,
            ),
            Operation::Describe { tenant, key } => call(Request::Describe { tenant, key }, out),
        }
    }

    /// Performs the actions of a client's flow, then ends the operation if the flow has ended.
    pub(super) fn act(&mut self, index: u32, actions: Vec<Action>) -> Checked {
        for action in actions {
            match action {
                Action::Ask { operation, request } => {
                    let now = self.engine.now();
                    if let Some(running) = &mut self.clients[index as usize].running
                        && running.asked != Some(operation)
                    {
                        // The answer to a repetition may be that to the first request.
                        (running.asked, running.asked_at) = (Some(operation), now);
                    }
                    self.ask(index, operation, request)?;
                }
                Action::Tell { operation, request } => {
                    let local = self.local(Process::Client(index));
                    let client = &mut self.clients[index as usize];
                    client.tells.tell(local, operation, request.clone());
                    self.ask(index, operation, request)?;
                }
                Action::Cancel { index: item } => self.cancel_transfers(index, item),
                Action::Read {
                    index: item,
                    key,
                    version,
                    bytes,
                    from,
                    ..
                } => {
                    self.begin_read(index, item, (key, version, bytes), from);
                }
                Action::Write {
                    index: item,
                    extents,
                } => self.begin_write(index, item, &extents),
            }
            self.note_sent(Process::Client(index))?;
            if !self.clients[index as usize].up {
                return Ok(());
            }
        }
        self.finish_if_over(index)?;
        self.arm_client(index);
        Ok(())
    }

    fn ask(&mut self, index: u32, operation: OperationId, request: Request) -> Checked {
        let process = Process::Client(index);
        let session = match self.clients[index as usize].session {
            Some(session) => session,
            None => self.connect(process),
        };
        let client = &mut self.clients[index as usize];
        client.session = Some(session);
        if let Some(running) = &client.running {
            let puts = running
                .names
                .iter()
                .cloned()
                .zip(running.puts.iter().copied())
                .collect();
            let asked = Asked {
                began: running.began,
                request: request.clone(),
                puts,
                answer: None,
            };
            let name = client_name(index, client.life);
            self.note_request(name, operation, asked)?;
        }
        let body = Control::Request { operation, request };
        self.say(session, process, body);
        Ok(())
    }

    pub(super) fn client_answered(
        &mut self,
        index: u32,
        operation: OperationId,
        reply: Reply,
    ) -> Checked {
        let local = self.local(Process::Client(index));
        let client = &mut self.clients[index as usize];
        let mut actions = Vec::new();
        if !client.tells.on_reply(operation, &reply)
            && let Some(running) = &mut client.running
        {
            match &mut running.flow {
                Flow::Get(flow) => flow.on_reply(local, operation, reply, &mut actions),
                Flow::Put(flow) => flow.on_reply(local, operation, reply, &mut actions),
                Flow::Call(flow) => flow.on_reply(local, operation, reply),
            }
        }
        self.act(index, actions)
    }

    pub(super) fn client_lost_master(&mut self, index: u32, session: SessionId) -> Checked {
        let local = self.local(Process::Client(index));
        let client = &mut self.clients[index as usize];
        if client.session != Some(session) {
            return Ok(());
        }
        client.session = None;
        let Some(running) = &mut client.running else {
            return Ok(());
        };
        let mut actions = Vec::new();
        match &mut running.flow {
            Flow::Get(flow) => flow.on_link_lost(local, &mut actions),
            Flow::Put(flow) => flow.on_link_lost(local, &mut actions),
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
        client.timer.fired();
        let (mut actions, mut again) = (Vec::new(), Vec::new());
        client.tells.on_deadline(local, &mut again);
        if let Some(running) = &mut client.running
            && running.flow.next_deadline().is_some_and(|at| at <= local)
        {
            match &mut running.flow {
                Flow::Get(flow) => flow.on_deadline(local, &mut actions),
                Flow::Put(flow) => flow.on_deadline(local, &mut actions),
                Flow::Call(flow) => flow.on_deadline(local, &mut actions),
            }
        }
        for (operation, request) in again {
            self.ask(index, operation, request)?;
        }
        self.act(index, actions)
    }

    fn arm_client(&mut self, index: u32) {
        let now = self.engine.now();
        let client = &mut self.clients[index as usize];
        let deadline = client
            .running
            .as_ref()
            .and_then(|running| running.flow.next_deadline());
        let deadline = deadline
            .into_iter()
            .chain(client.tells.next_deadline())
            .min();
        let world = deadline.map(|at| client.clock.world(at));
        if let Some(at) = client.timer.arm(now, world) {
            let life = client.life;
            self.engine.push(
                at,
                Event::Wake {
                    process: Process::Client(index),
                    life,
                },
            );
        }
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

fn tells(seed: Seed, index: u32, life: u64) -> Tells {
    let jitter = seed.stream("tells", u64::from(index) << 32 | life);
    let pauses = Backoff::doubling(Duration::from_millis(30), Duration::from_millis(500));
    Tells::new(TELLS_MAX, pauses, jitter)
}

/// More unanswered requests of one client than any run makes.
const TELLS_MAX: usize = 1 << 16;
/// Longest time after which a caller cancels, in nanoseconds.
const CANCEL_AFTER_NANOS_MAX: u64 = 60_000_000;
/// Pause between two probes of a client.
const PROBE_PAUSE: Duration = Duration::from_millis(5);
