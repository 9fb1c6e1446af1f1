//! The master's process: the core, its clock, and its connections.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use slackwater_meta::{Input, Journaled, Master, Output};
use slackwater_wire::{ClientId, ErrorCode, OperationId, Permissions, Reply, Request, Version};

use crate::check::{Checked, Invariant, Violation};
use crate::clock::DriftingClock;
use crate::engine::Seed;
use crate::net::Process;
use crate::options::Options;

use super::event::{Control, Event, SessionId};
use super::judge::Said;
use super::members::{MOUNTS, Members};
use super::operator::OPERATOR;
use super::{Timer, World};

/// The master's process.
pub(crate) struct MasterHost {
    pub(crate) core: Option<Master>,
    pub(crate) life: u64,
    pub(crate) clock: DriftingClock,
    timer: Timer,
    /// The nodes, and their links.
    pub(super) members: Members,
    /// The newest connection of each client: answers go there.
    clients: BTreeMap<ClientId, SessionId>,
    /// What every life of the master knows of the ones before; an embedded one has none.
    pub(super) journal: Journaled,
    /// Whether a node has announced its records in this life: from then on the embedded store is open.
    pub(crate) announced: bool,
    /// What the keys of clients permit: the tenants of the load.
    client_permissions: Permissions,
    out: Vec<Output>,
    seed: Seed,
    drift_ppm: u64,
}

impl MasterHost {
    pub(crate) fn new(seed: Seed, options: &Options) -> Self {
        Self {
            core: None,
            life: 0,
            clock: DriftingClock::new(
                &mut seed.stream("clock of the master", 0),
                options.drift_ppm,
            ),
            timer: Timer::default(),
            members: Members::default(),
            clients: BTreeMap::new(),
            announced: false,
            journal: Journaled::default(),
            client_permissions: Permissions::client(options.tenants()),
            out: Vec::new(),
            seed,
            drift_ppm: options.drift_ppm,
        }
    }

    /// Number of nodes that have a link.
    pub(crate) fn attached(&self) -> usize {
        self.members.linked()
    }
}

impl World {
    /// Starts the master with an empty catalog, which the nodes' announcements fill.
    pub(crate) fn start_master(&mut self) -> Checked {
        let host = &mut self.master;
        host.life += 1;
        host.clock = DriftingClock::new(
            &mut host.seed.stream("clock of the master", host.life),
            host.drift_ppm,
        );
        host.timer = Timer::default();
        host.members = Members::default();
        host.clients.clear();
        host.announced = false;
        let seed = host.seed.stream("master", host.life).next_u64();
        let mut core = Master::new(self.options.master.clone(), seed);
        if !self.options.embedded {
            // Takes the place of a fencing epoch: nodes announce their records after the first puts of this life.
            core.start_above(Version(host.life << 40));
            let now = host.clock.local(self.engine.now());
            core.restore(now, host.journal.clone());
        }
        host.core = Some(core);
        self.void_answers(|_, _| true);
        self.operator.master_began(!self.options.embedded);
        for request in self.options.quotas() {
            self.master_step(Input::Request {
                client: ClientId(0),
                host: None,
                permissions: Permissions::FULL,
                operation: OperationId::unrepeated(0),
                request,
            })?;
        }
        Ok(())
    }

    /// Handles a message at the master.
    pub(super) fn master_receives(&mut self, session: SessionId, body: Control) -> Checked {
        match body {
            Control::Hello(hello) => self.master_greets(session, &hello),
            Control::Reports(reports) => self.master_takes(session, reports),
            Control::Request { operation, request } => {
                let client = self.client_id(session);
                let newest = self.master.clients.entry(client).or_insert(session);
                *newest = session.max(*newest);
                let peer = self.session_peer(session);
                let host = peer.map(|peer| self.host_of(peer));
                let permissions = self.master.client_permissions.clone();
                self.master_step(Input::Request {
                    client,
                    host,
                    permissions,
                    operation,
                    request,
                })
            }
            Control::Copied { ticket, result } => {
                match self.master.members.copied(session, ticket) {
                    true => self.master_step(Input::Copied { ticket, result }),
                    false => Ok(()),
                }
            }
            Control::Welcome(_)
            | Control::Reply { .. }
            | Control::Orders(_)
            | Control::AnnounceFirst(_)
            | Control::Copy(_) => Ok(()),
        }
    }

    /// The master detected that a connection is broken. A node whose link it was may live on.
    pub(super) fn master_lost(&mut self, session: SessionId) -> Checked {
        let client = self.client_id(session);
        if !self.has_another_session(session) {
            self.master.clients.remove(&client);
            self.void_answers(|of, request| {
                of == client && matches!(request, Request::PutStart(_) | Request::Get(_))
            });
            self.master_step(Input::ClientLost(client))?;
        }
        let (node, unanswered) = self.master.members.unlink(session);
        for ticket in unanswered {
            let result = Err(ErrorCode::UnavailableInCurrentStatus);
            self.master_step(Input::Copied { ticket, result })?;
        }
        match node {
            Some(node) => self.master_step(Input::NodeAway(node)),
            None => Ok(()),
        }
    }

    pub(super) fn master_wakes(&mut self, life: u64) -> Checked {
        if !self.lives(Process::Master, life) {
            return Ok(());
        }
        self.master.timer.fired();
        let now = self.local(Process::Master);
        let mut out = std::mem::take(&mut self.master.out);
        if let Some(core) = &mut self.master.core
            && core.next_deadline().is_some_and(|at| at <= now)
        {
            core.on_deadline(now, &mut out);
            self.master.members.retain(|node| core.has_node(node));
        }
        self.master_outputs(out)
    }

    /// Passes one input to the core and performs its outputs.
    pub(crate) fn master_step(&mut self, input: Input) -> Checked {
        let now = self.local(Process::Master);
        let mut out = std::mem::take(&mut self.master.out);
        self.note_removals(&input);
        if let Some(core) = &mut self.master.core {
            let said = Said::of(&input, core);
            core.handle(now, input, &mut out);
            if let Some(said) = said {
                self.judge_refusals(&said, &out)?;
            }
        }
        self.master_outputs(out)
    }

    fn master_outputs(&mut self, mut out: Vec<Output>) -> Checked {
        // Durable before anything that follows from it is said.
        if let Some(core) = &mut self.master.core {
            let notes = core.take_notes();
            notes
                .iter()
                .for_each(|note| self.master.journal.apply(note));
        }
        let (mut told, mut refused) = (BTreeSet::new(), Vec::new());
        for output in out.drain(..) {
            if self.master.core.is_none() {
                break;
            }
            self.judge_output(&output)?;
            match output {
                Output::Reply {
                    client: OPERATOR,
                    reply,
                    ..
                } => self.operator_answered(&reply)?,
                Output::Reply {
                    client: MOUNTS,
                    reply: Reply::Failed(code),
                    ..
                } => {
                    let what = format!("a mount was refused: {code}");
                    return Err(Violation::new(Invariant::Contract, what));
                }
                Output::Reply {
                    client,
                    operation,
                    reply,
                } => {
                    if let Some(session) = self.master.clients.get(&client).copied() {
                        let body = Control::Reply { operation, reply };
                        self.say(session, Process::Master, body);
                    }
                }
                Output::Order { node, order } => {
                    self.master.members.queue(node, order);
                    told.insert(node);
                }
                Output::AwaitTaken { node, mark } => self.master.members.mark(node, mark),
                Output::Copy { node, task } => {
                    let ticket = task.ticket;
                    if let Err(code) = self.ask_copy(node, task) {
                        refused.push((ticket, Err(code)));
                    }
                }
                Output::AnnounceFirst { nodes, names } => self.ask_first(&nodes, &names),
            }
            self.note_sent(Process::Master)?;
        }
        self.master.out = out;
        self.arm_master();
        for node in told {
            self.order(node)?;
        }
        for (ticket, result) in refused {
            self.master_step(Input::Copied { ticket, result })?;
        }
        Ok(())
    }

    fn arm_master(&mut self) {
        let Some(core) = &self.master.core else {
            return;
        };
        let deadline = core.next_deadline().map(|at| self.master.clock.world(at));
        let now = self.engine.now();
        if let Some(at) = self.master.timer.arm(now, deadline) {
            self.engine.push(
                at,
                Event::Wake {
                    process: Process::Master,
                    life: self.master.life,
                },
            );
        }
    }

    fn host_of(&self, process: Process) -> Arc<str> {
        let host = match process {
            Process::Master => 0,
            Process::Node(node) => node,
            Process::Client(client) => client % self.options.nodes,
        };
        format!("host{host}").into()
    }
}

/// The name of the host that a node runs on.
pub(crate) fn host_name(node: u32) -> String {
    format!("host{node}")
}
