//! The master's process: the core, its clock, and its connections.

use std::collections::BTreeMap;
use std::sync::Arc;

use slackwater_meta::{Input, Journaled, Master, Output};
use slackwater_wire::{ClientId, NodeId, OperationId, Permissions, Report, Request, Version};

use crate::check::Checked;
use crate::clock::DriftingClock;
use crate::engine::Seed;
use crate::net::Process;
use crate::options::Options;

use super::event::{Control, Event, SessionId};
use super::operator::OPERATOR;
use super::{Timer, World};

/// The master's process.
pub(crate) struct MasterHost {
    pub(crate) core: Option<Master>,
    pub(crate) life: u64,
    pub(crate) clock: DriftingClock,
    timer: Timer,
    /// Connections of the nodes that have identified themselves.
    nodes: BTreeMap<NodeId, SessionId>,
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
            nodes: BTreeMap::new(),
            clients: BTreeMap::new(),
            announced: false,
            journal: Journaled::default(),
            client_permissions: Permissions::client(options.tenants()),
            out: Vec::new(),
            seed,
            drift_ppm: options.drift_ppm,
        }
    }

    /// Number of nodes that the master considers alive.
    pub(crate) fn attached(&self) -> usize {
        self.nodes.len()
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
        host.nodes.clear();
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
        self.operator.forget();
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
            Control::Register(node) => {
                // Messages on a connection that the node has closed may arrive after the first ones of the next.
                if self
                    .master
                    .nodes
                    .get(&node)
                    .is_some_and(|newer| *newer > session)
                {
                    return Ok(());
                }
                if self.master.nodes.insert(node, session).is_some() {
                    // The node came back before its old connection was found broken.
                    self.master_step(Input::NodeLost(node))?;
                }
                Ok(())
            }
            Control::Request { operation, request } => {
                let client = self.client_id(session);
                let newest = self.master.clients.entry(client).or_insert(session);
                *newest = session.max(*newest);
                let peer = self.session_peer(session);
                if let Some(Process::Node(node)) = peer
                    && self.master.nodes.get(&NodeId(node)) != Some(&session)
                {
                    return Ok(());
                }
                let host = peer.map(|peer| self.host_of(peer));
                let permissions = match peer {
                    Some(Process::Node(node)) => Permissions::node(NodeId(node)),
                    _ => self.master.client_permissions.clone(),
                };
                self.master_step(Input::Request {
                    client,
                    host,
                    permissions,
                    operation,
                    request,
                })
            }
            Control::Report(report) => {
                let Some((node, _)) = self.master.nodes.iter().find(|(_, of)| **of == session)
                else {
                    return Ok(());
                };
                let node = *node;
                if matches!(report, Report::Announced { .. }) {
                    self.master.announced = true;
                }
                self.master_step(Input::Report { node, report })
            }
            Control::Copied { ticket, result } => {
                let of_node = self.master.nodes.values().any(|of| *of == session);
                match of_node {
                    true => self.master_step(Input::Copied { ticket, result }),
                    false => Ok(()),
                }
            }
            Control::Reply { .. } | Control::Order(_) | Control::Copy(_) => Ok(()),
        }
    }

    /// The master detected that a connection is broken.
    pub(super) fn master_lost(&mut self, session: SessionId) -> Checked {
        let client = self.client_id(session);
        if !self.has_another_session(session) {
            self.master.clients.remove(&client);
            self.void_answers(|of, request| {
                of == client && matches!(request, Request::PutStart(_) | Request::Get(_))
            });
            self.master_step(Input::ClientLost(client))?;
        }
        let node = self
            .master
            .nodes
            .iter()
            .find(|(_, of)| **of == session)
            .map(|(node, _)| *node);
        let Some(node) = node else { return Ok(()) };
        self.master.nodes.remove(&node);
        self.master_step(Input::NodeLost(node))
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
        }
        self.master_outputs(out)
    }

    /// Passes one input to the core and performs its outputs.
    pub(crate) fn master_step(&mut self, input: Input) -> Checked {
        let now = self.local(Process::Master);
        let mut out = std::mem::take(&mut self.master.out);
        if let Some(core) = &mut self.master.core {
            core.handle(now, input, &mut out);
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
                    if let Some(session) = self.master.nodes.get(&node).copied() {
                        self.say(session, Process::Master, Control::Order(order));
                    }
                }
                Output::Copy { node, task } => {
                    if let Some(session) = self.master.nodes.get(&node).copied() {
                        let body = Control::Copy(Box::new(task));
                        self.say(session, Process::Master, body);
                    }
                }
                // No node of these outlives its master.
                Output::AnnounceFirst { .. } => {}
            }
            self.note_sent(Process::Master)?;
        }
        self.master.out = out;
        self.arm_master();
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
