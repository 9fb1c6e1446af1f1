//! The cluster: its processes, the events between them, and the checks of every step.

mod bring;
mod client;
mod event;
mod faults;
mod gate;
mod judge;
mod master;
mod members;
mod node;
mod operator;
mod outcome;
mod phases;
mod serve;
mod session;
mod transfer;
mod uplink;

use std::collections::BTreeMap;

use slackwater_base::Instant;
use slackwater_wire::{ClientId, OperationId};

use crate::check::{Checked, Invariant, Violation};
use crate::clock::DriftingClock;
use crate::engine::{Engine, Trace};
use crate::history::History;
use crate::net::{Net, Process};
use crate::options::Options;
use crate::plan::Plan;
use crate::promised::Promised;
use crate::refusals::Refusals;

use client::Client;
use event::{Control, Data, Event};
use faults::PendingEnd;
use judge::Asked;
use master::MasterHost;
use node::Node;
use operator::Operator;
use session::Sessions;

pub use phases::Stats;

/// A cluster during its run.
pub struct World {
    pub(crate) plan: Plan,
    pub(crate) options: Options,
    pub(crate) engine: Engine<Event>,
    pub(crate) trace: Trace,
    pub(crate) net: Net,
    pub(crate) history: History,
    pub(crate) promised: Promised,
    pub(crate) refusals: Refusals,
    pub(crate) sessions: Sessions,
    pub(crate) asked: BTreeMap<(ClientId, OperationId), Asked>,
    pub(crate) master: MasterHost,
    pub(crate) nodes: Vec<Node>,
    pub(crate) clients: Vec<Client>,
    pub(crate) operator: Operator,
    /// When the pauses of processes end.
    pub(crate) paused: BTreeMap<Process, Instant>,
    /// When the last pause of each process ended or will end.
    pub(crate) last_pause: BTreeMap<Process, Instant>,
    /// Processes that end after some more messages or at an operation of their disk.
    pub(crate) ending: BTreeMap<Process, PendingEnd>,
    pub(crate) next_transfer: u64,
    pub(crate) events: u64,
    /// Events since time last moved.
    spun: u64,
    /// Planned faults that have happened.
    pub(crate) faults_done: usize,
    /// Whether faults are over: the cluster must come to rest.
    pub(crate) healed: bool,
    /// Whether control messages are written as bytes and read again, which every eighth seed does.
    encodes: bool,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Hash over everything that happened.
    pub trace_hash: u64,
    /// The invariant that did not hold, and when.
    pub violation: Option<(Instant, Violation)>,
    /// Counters of the run.
    pub stats: Stats,
}

impl World {
    /// A cluster that is about to start, with the plan of its run.
    #[must_use]
    pub fn new(plan: Plan, listener: Option<fn(&str)>) -> Self {
        let seed = plan.seed;
        let options = plan.options.clone();
        let mut world = Self {
            engine: Engine::new(),
            trace: Trace::new(listener),
            net: Net::new(seed, options.links),
            history: History::default(),
            promised: Promised::default(),
            refusals: Refusals::default(),
            sessions: Sessions::default(),
            asked: BTreeMap::new(),
            master: MasterHost::new(seed, &options),
            nodes: (0..options.nodes)
                .map(|node| Node::new(seed, &options, node))
                .collect(),
            clients: Vec::new(),
            operator: Operator::new(seed),
            paused: BTreeMap::new(),
            last_pause: BTreeMap::new(),
            ending: BTreeMap::new(),
            next_transfer: 0,
            events: 0,
            spun: 0,
            faults_done: 0,
            healed: false,
            encodes: seed
                .stream("bytes of control messages", 0)
                .next_u64()
                .is_multiple_of(8),
            plan,
            options,
        };
        for client in 0..world.options.clients {
            let script = world.plan.scripts[client as usize].clone();
            world
                .clients
                .push(Client::new(seed, &world.options, client, script));
        }
        world
    }

    /// Runs to the end or to the first violation.
    #[must_use]
    pub fn run(mut self) -> Outcome {
        let result = self.phases();
        let violation = result.err().map(|violation| (self.engine.now(), violation));
        if let Some((at, violation)) = &violation {
            let line = violation.to_string();
            self.trace.note(*at, format_args!("VIOLATION {line}"));
        }
        Outcome {
            trace_hash: self.trace.hash(),
            stats: self.stats(),
            violation,
        }
    }

    /// Handles events until `until`, or until `done` returns true; returns whether `done` did.
    pub(crate) fn step_until(&mut self, until: Instant, done: fn(&World) -> bool) -> Checked<bool> {
        loop {
            if done(self) {
                return Ok(true);
            }
            match self.engine.next_at() {
                Some(at) if at <= until => self.step()?,
                _ => return Ok(false),
            }
        }
    }

    fn step(&mut self) -> Checked {
        let before = self.engine.now();
        let Some(event) = self.engine.pop() else {
            return Ok(());
        };
        self.spun = if self.engine.now() == before {
            self.spun + 1
        } else {
            0
        };
        if self.spun > SPUN_MAX {
            let what = format!("{SPUN_MAX} events at one instant, the last {event:?}");
            return Err(Violation::new(Invariant::Liveness, what));
        }
        if let Some(process) = event.process()
            && let Some(until) = self.paused.get(&process).copied()
        {
            if until > self.engine.now() {
                self.engine.push(until, event);
                return Ok(());
            }
            self.paused.remove(&process);
        }
        self.events += 1;
        if self.events.is_multiple_of(CHECK_EVERY) {
            self.check_bounds()?;
        }
        match event {
            Event::Control { session, to, body } => self.on_control(session, to, body),
            Event::Data { from, to, data } => self.on_data(from, to, data),
            Event::SessionEnd { session, at } => self.on_session_end(session, at),
            Event::Wake { process, life } => self.on_wake(process, life),
            Event::Device { node, life, caller } => self.on_device(node, life, caller),
            Event::AgentDisk { node, life, done } => self.on_agent_disk(node, life, done),
            Event::ReaderDisk {
                node,
                life,
                reader,
                ended,
            } => self.on_reader_disk(node, life, reader, ended),
            Event::Copy {
                node,
                life,
                transfer,
            } => self.on_copy(node, life, transfer),
            Event::Fill { node, life, reader } => self.on_fill(node, life, reader),
            Event::BringLate {
                node,
                life,
                transfer,
            } => self.on_bring_late(node, life, transfer),
            Event::Brought {
                node,
                life,
                transfer,
            } => self.on_brought(node, life, transfer),
            Event::Operator => self.on_operator(),
            Event::Reconnect { node, life } => {
                self.node_connects(node, life);
                Ok(())
            }
            Event::Idle {
                node,
                life,
                transfer,
                chunks,
            } => self.on_idle(node, life, transfer, chunks),
            Event::Resend {
                client,
                life,
                transfer,
            } => self.on_resend(client, life, transfer),
            Event::Cancelled {
                client,
                life,
                transfer,
            } => self.on_cancelled(client, life, transfer),
            Event::CallerCancels {
                client,
                life,
                begun,
            } => self.on_caller_cancels(client, life, begun),
            Event::Next { client, life } => self.on_next(client, life),
            Event::Fault(index) => self.on_fault(index),
            Event::DiskFaultsEnd { node, window } => self.on_disk_calm(node, window),
            Event::EndOverdue { process, life } => self.on_end_overdue(process, life),
            Event::PowerCut { node, down } => {
                self.on_power_cut(node, down);
                Ok(())
            }
            Event::Start { process } => self.on_start(process),
        }
    }

    fn on_control(&mut self, session: event::SessionId, to: Process, body: Control) -> Checked {
        if !self.session_open(session, to) {
            return Ok(());
        }
        let body = if self.encodes { body.carried()? } else { body };
        let now = self.engine.now();
        self.trace
            .note(now, format_args!("{to:?} <- {session:?} {body:?}"));
        match (to, body) {
            (Process::Master, body) => self.master_receives(session, body),
            (Process::Node(node), Control::Welcome(welcome)) => {
                self.node_welcomed(node, session, welcome)
            }
            (Process::Node(node), Control::Orders(orders)) => {
                self.node_takes(node, session, orders)
            }
            (Process::Node(node), Control::AnnounceFirst(asked)) => {
                self.node_announces_first(node, session, &asked)
            }
            (Process::Node(node), Control::Copy(task)) => self.node_copies(node, session, *task),
            (Process::Client(client), Control::Reply { operation, reply }) => {
                self.client_answered(client, operation, reply)
            }
            (Process::Node(_) | Process::Client(_), _) => Ok(()),
        }
    }

    fn on_data(&mut self, from: Process, to: Process, data: Data) -> Checked {
        let now = self.engine.now();
        self.trace
            .note(now, format_args!("{to:?} <- {from:?} {}", data.line()));
        match to {
            Process::Node(node) => self.node_data(node, from, data),
            Process::Client(client) => self.client_data(client, data),
            Process::Master => Ok(()),
        }
    }

    fn on_wake(&mut self, process: Process, life: u64) -> Checked {
        match process {
            Process::Master => self.master_wakes(life),
            Process::Node(node) => self.node_wakes(node, life),
            Process::Client(client) => self.client_wakes(client, life),
        }
    }

    /// Sends a datagram.
    pub(crate) fn send(&mut self, from: Process, to: Process, data: &Data) {
        let now = self.engine.now();
        for at in self.net.datagram(now, from, to, data.bytes()) {
            self.engine.push(
                at,
                Event::Data {
                    from,
                    to,
                    data: data.clone(),
                },
            );
        }
    }

    /// The clock of a process.
    pub(crate) fn clock(&self, process: Process) -> &DriftingClock {
        match process {
            Process::Master => &self.master.clock,
            Process::Node(node) => &self.nodes[node as usize].clock,
            Process::Client(client) => &self.clients[client as usize].clock,
        }
    }

    /// What a process reads on its clock now.
    pub(crate) fn local(&self, process: Process) -> Instant {
        self.clock(process).local(self.engine.now())
    }

    /// The number of the current life of a process, and whether it is running.
    pub(crate) fn life(&self, process: Process) -> (u64, bool) {
        match process {
            Process::Master => (self.master.life, self.master.core.is_some()),
            Process::Node(node) => (
                self.nodes[node as usize].life,
                self.nodes[node as usize].agent.is_some(),
            ),
            Process::Client(client) => (
                self.clients[client as usize].life,
                self.clients[client as usize].up,
            ),
        }
    }

    /// Whether a process is running in the life that an event was meant for.
    pub(crate) fn lives(&self, process: Process, life: u64) -> bool {
        self.life(process) == (life, true)
    }
}

/// The timer of one process: set again only for an earlier deadline.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timer {
    armed: Option<Instant>,
}

impl Timer {
    /// The time to which the timer is to be set for `deadline`, in the world's time; `None` if it is set to an earlier
    /// time already.
    pub(crate) fn arm(&mut self, now: Instant, deadline: Option<Instant>) -> Option<Instant> {
        let deadline = deadline.filter(|at| *at != Instant::NEVER)?.max(now);
        if self.armed.is_some_and(|armed| armed <= deadline) {
            return None;
        }
        self.armed = Some(deadline);
        Some(deadline)
    }

    /// The timer has fired and is no longer set.
    pub(crate) fn fired(&mut self) {
        self.armed = None;
    }
}

/// Most events at one instant. More mean that a process sets its timer to the present and then does nothing.
const SPUN_MAX: u64 = 20_000;
/// Events between two checks of the books, which recount everything and take long.
const CHECK_EVERY: u64 = 64;
