//! A node's side of its link to the master. The node lasts when the link breaks or the master dies: it connects again, says who
//! it is, and goes on, or announces what it holds to a master that knows nothing of it.

use std::time::Duration;

use slackwater_base::Rng;
use slackwater_tier::{AgentInput, AgentOutput};
use slackwater_wire::data::{MacKind, Segment as Contact};
use slackwater_wire::{
    AnnounceFirst, Attached, Epoch, Incarnation, MemoryAccess, Mount, NodeHello, NodeId, NodeLife,
    NodeWelcome, NumberedReceiver, NumberedSender, Order, Orders, Report, Reports, Secret,
    SegmentKind,
};

use crate::check::{Checked, Invariant, Violation};
use crate::net::Process;

use super::World;
use super::event::{Control, Event, SessionId};
use super::members::out_of_step;

/// See the module.
pub(crate) struct Uplink {
    life: NodeLife,
    /// A master has welcomed this life.
    welcomed: bool,
    pub(super) session: Option<SessionId>,
    /// The master has welcomed the node on that link.
    heard: bool,
    /// The latest epoch that was seen.
    epoch: Epoch,
    orders: NumberedReceiver,
    /// The last order that was carried out.
    taken: u64,
    /// The master wants to hear at once how far it came.
    asked: bool,
    pub(super) reports: NumberedSender<Report>,
}

impl Uplink {
    pub(super) fn new(rng: &mut Rng) -> Self {
        Self {
            life: life(rng),
            welcomed: false,
            session: None,
            heard: false,
            epoch: Epoch(0),
            orders: NumberedReceiver::default(),
            taken: 0,
            asked: false,
            reports: NumberedSender::new(),
        }
    }

    /// The master does not know this life: the next one is new to it, and has taken and reported nothing.
    fn begin_again(&mut self, life: NodeLife) {
        *self = Self {
            life,
            welcomed: false,
            session: self.session,
            heard: false,
            epoch: self.epoch,
            orders: NumberedReceiver::default(),
            taken: 0,
            asked: false,
            reports: NumberedSender::new(),
        };
    }

    /// Whether a master of this epoch is to be listened to: none of a later one has spoken.
    fn hears(&mut self, epoch: Epoch) -> bool {
        let is_new = epoch >= self.epoch;
        self.epoch = self.epoch.max(epoch);
        is_new
    }

    /// What is to be sent now.
    fn next(&mut self, clock_nanos: u64) -> Option<(SessionId, Reports)> {
        let link = self.session.filter(|_| self.heard)?;
        let next = self.reports.take();
        let owes = self.orders.owes() || self.asked;
        let (first, reports) = next.or_else(|| owes.then(Default::default))?;
        self.orders.tell();
        self.asked = false;
        let reports = Reports {
            epoch: self.epoch,
            taken: self.taken,
            first,
            clock_nanos,
            reports,
        };
        Some((link, reports))
    }
}

fn life(rng: &mut Rng) -> NodeLife {
    NodeLife([rng.next_u64(), rng.next_u64()])
}

impl World {
    /// Connects a node to the master, and says who it is.
    pub(super) fn node_connects(&mut self, index: u32, life: u64) {
        let process = Process::Node(index);
        let uplink = &self.nodes[index as usize].uplink;
        if uplink.session.is_some() || !self.lives(process, life) {
            return;
        }
        let session = self.connect(process);
        self.nodes[index as usize].uplink.session = Some(session);
        self.node_greets(index, session);
    }

    fn node_greets(&mut self, index: u32, session: SessionId) {
        let segments = self.mounts(index);
        let clock_nanos = self.local(Process::Node(index)).as_nanos();
        let node = &mut self.nodes[index as usize];
        let hello = NodeHello {
            epoch: node.uplink.epoch,
            node: NodeId(index),
            life: node.uplink.life,
            welcomed: node.uplink.welcomed,
            taken: node.uplink.taken,
            segments,
            memory: MemoryAccess {
                contact: Contact {
                    name: format!("node{index}"),
                    incarnation: Incarnation(node.life),
                    addresses: Vec::new(),
                    public_key: None,
                    host: None,
                },
                region: 0,
                secret: Secret([0; 32]),
                clock_nanos,
                macs: MacKind::LATEST.number(),
            },
        };
        self.say(
            session,
            Process::Node(index),
            Control::Hello(Box::new(hello)),
        );
    }

    /// What a node lends.
    fn mounts(&self, index: u32) -> Vec<Mount> {
        let node = &self.nodes[index as usize];
        let highest = || {
            node.agent
                .as_ref()
                .map(slackwater_tier::Agent::highest_generation)
        };
        let generations = (!self.options.embedded).then(highest).flatten();
        let mount = |segment, name, kind, bytes| Mount {
            segment,
            name,
            node: NodeId(index),
            incarnation: Incarnation(node.life),
            kind,
            bytes,
            host: String::new(),
            generations,
            watermarks: self.options.watermarks(index, kind),
        };
        let memory = self.options.segments(index).into_iter().map(|it| {
            let name = format!("memory{}", it.segment);
            mount(it.segment, name, SegmentKind::Memory, it.bytes)
        });
        let log = self.options.agent(index).log.map(|log| {
            let name = format!("disk{}", log.segment);
            mount(log.segment, name, SegmentKind::Disk, log.capacity)
        });
        memory.chain(log).collect()
    }

    /// The link of a node is broken: it connects again.
    pub(super) fn node_lost_master(&mut self, index: u32, session: SessionId) {
        let node = &mut self.nodes[index as usize];
        if node.uplink.session != Some(session) {
            return;
        }
        (node.uplink.session, node.uplink.heard) = (None, false);
        let event = Event::Reconnect {
            node: index,
            life: node.life,
        };
        self.engine.push(self.engine.now() + RECONNECT, event);
    }

    /// The master has answered a hello.
    pub(super) fn node_welcomed(
        &mut self,
        index: u32,
        session: SessionId,
        welcome: NodeWelcome,
    ) -> Checked {
        let now = self.local(Process::Node(index));
        let outlives = !self.options.embedded;
        let node = &mut self.nodes[index as usize];
        let Some(agent) = node.agent.as_mut() else {
            return Ok(());
        };
        if node.uplink.session != Some(session) {
            return Ok(());
        }
        let attached = match welcome.attached {
            _ if !node.uplink.hears(welcome.epoch) => {
                let what = format!("node{index} is welcomed by an earlier master");
                return Err(Violation::new(Invariant::Contract, what));
            }
            Attached::Resumed { taken } if node.uplink.reports.resume(taken).is_err() => {
                Attached::Unknown
            }
            attached => attached,
        };
        match attached {
            Attached::New { floor } => {
                (node.uplink.heard, node.uplink.welcomed) = (true, true);
                let mut out = Vec::new();
                if outlives {
                    node.gate.outlive(floor, agent.published());
                    node.announced.begin(&node.ledger);
                    node.floor = floor;
                    agent.begin_announcing(now, &mut out);
                }
                self.node_outputs(index, out)
            }
            Attached::Resumed { .. } => {
                node.uplink.heard = true;
                node.links_resumed += 1;
                self.node_speaks(index)
            }
            Attached::Unknown => {
                let life = life(&mut node.rng);
                // Before the queue is emptied: the next master must hear nothing of it.
                agent.stop_announcing();
                node.announced.stop();
                node.uplink.begin_again(life);
                self.node_greets(index, session);
                self.note_sent(Process::Node(index))
            }
            Attached::Refused(code) => {
                let what = format!("node{index} is refused: {code}");
                Err(Violation::new(Invariant::Contract, what))
            }
        }
    }

    /// Orders of the master.
    pub(super) fn node_takes(
        &mut self,
        index: u32,
        session: SessionId,
        message: Orders,
    ) -> Checked {
        let node = &mut self.nodes[index as usize];
        let uplink = &mut node.uplink;
        if uplink.session != Some(session) || !uplink.hears(message.epoch) {
            return Ok(());
        }
        let acknowledged = uplink.reports.acknowledge(message.taken);
        let orders =
            acknowledged.and_then(|()| uplink.orders.accept(message.first, message.orders));
        let orders = orders.map_err(|error| out_of_step("orders", error))?;
        let (life, asks) = (node.life, message.asks);
        for order in orders {
            self.node_ordered(index, order)?;
            if !self.lives(Process::Node(index), life) {
                return Ok(());
            }
        }
        let uplink = &mut self.nodes[index as usize].uplink;
        uplink.taken = uplink.orders.taken();
        uplink.asked |= asks;
        self.node_speaks(index)
    }

    /// The master wants to hear of these keys first.
    pub(super) fn node_announces_first(
        &mut self,
        index: u32,
        session: SessionId,
        asked: &AnnounceFirst,
    ) -> Checked {
        let node = &mut self.nodes[index as usize];
        let Some(agent) = node.agent.as_mut() else {
            return Ok(());
        };
        if node.uplink.session != Some(session) || !node.uplink.hears(asked.epoch) {
            return Ok(());
        }
        agent.announce_first(&asked.names);
        self.node_speaks(index)
    }

    /// Announces what there is room for, and sends what is queued, while there is a link on which the node was welcomed.
    pub(super) fn node_speaks(&mut self, index: u32) -> Checked {
        let process = Process::Node(index);
        let now = self.local(process);
        let most = self.options.reports_max;
        loop {
            let node = &mut self.nodes[index as usize];
            let Some(agent) = node.agent.as_mut() else {
                return Ok(());
            };
            let mut out = Vec::new();
            let reports = &node.uplink.reports;
            let room = reports.has_room() && reports.len() < most;
            if !room
                || !agent.is_announcing()
                || !agent.announce(now, node.gate.is_quiet(), &mut out)
            {
                break;
            }
            for output in out {
                if let AgentOutput::Report(report) = output {
                    self.node_reports(index, report)?;
                }
            }
        }
        let life = self.nodes[index as usize].life;
        while self.lives(process, life)
            && let Some((link, reports)) = self.nodes[index as usize].uplink.next(now.as_nanos())
        {
            self.say(link, process, Control::Reports(reports));
            self.note_sent(process)?;
        }
        Ok(())
    }

    fn node_ordered(&mut self, index: u32, order: Order) -> Checked {
        let node = &mut self.nodes[index as usize];
        match &order {
            Order::Offload(tasks) => {
                for task in tasks {
                    node.ledger.ordered(&task.entry);
                    node.tickets.insert(task.ticket, task.clone());
                }
            }
            Order::Drop(entries) => entries.iter().for_each(|entry| node.ledger.dropping(entry)),
            Order::Promote(tasks) => {
                node.promoting.extend(
                    tasks
                        .iter()
                        .map(|task| (task.ticket, (task.bytes, task.checksum))),
                );
            }
            Order::Fence(extents) => {
                node.announced.fence(extents);
                self.promised.fence(index, extents);
            }
            Order::Published(all) => {
                node.announced.publish(all)?;
                self.promised.publish(index, all);
            }
            Order::Staged { .. } | Order::Cancel { .. } => {}
        }
        self.node_step(index, AgentInput::Order(order))
    }
}

/// Time until a node connects again after it has lost the master.
const RECONNECT: Duration = Duration::from_millis(40);
