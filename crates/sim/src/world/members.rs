//! The nodes as their master knows them, and its side of their links: they break, and what was not taken is sent again.

use std::collections::BTreeMap;

use slackwater_meta::Input;
use slackwater_wire::body;
use slackwater_wire::{
    AnnounceFirst, Attached, ClientId, CopyTask, Epoch, ErrorCode, KnownNode, Marks, Mount,
    NodeHello, NodeId, NodeLife, NodeStanding, NodeWelcome, NumberedReceiver, NumberedSender,
    ObjectName, OperationId, Order, Orders, OutOfStep, Permissions, ReplicaAt, Report, Reports,
    Request, SegmentKind, TicketId,
};

use crate::check::{Checked, Invariant, Violation};
use crate::net::Process;

use super::World;
use super::event::{Control, SessionId};
use super::master::host_name;

/// The name under which the segments of nodes are mounted.
pub(super) const MOUNTS: ClientId = ClientId(2);

/// See the module.
#[derive(Default)]
pub(crate) struct Members {
    nodes: BTreeMap<NodeId, Member>,
    links: BTreeMap<SessionId, NodeId>,
    /// Copies that nodes were asked for, with the links on which the answers come.
    copies: BTreeMap<TicketId, SessionId>,
}

struct Member {
    life: NodeLife,
    link: Option<SessionId>,
    /// It was welcomed on that link.
    greeted: bool,
    orders: NumberedSender<Order>,
    /// Marks of the master that the node has not taken.
    marks: Marks,
    reports: NumberedReceiver,
}

impl Member {
    fn known(&mut self) -> KnownNode<'_> {
        KnownNode {
            life: self.life,
            is_linked: self.link.is_some(),
            orders: &mut self.orders,
            reports: &mut self.reports,
        }
    }
}

impl Members {
    /// Number of nodes that have a link.
    pub(crate) fn linked(&self) -> usize {
        let linked = |member: &&Member| member.link.is_some() && member.greeted;
        self.nodes.values().filter(linked).count()
    }

    /// The node of a link.
    pub(super) fn at(&self, link: SessionId) -> Option<NodeId> {
        self.links.get(&link).copied()
    }

    pub(super) fn queue(&mut self, node: NodeId, order: Order) {
        if let Some(member) = self.nodes.get_mut(&node) {
            member.orders.push(order);
        }
    }

    /// Says when a node has taken the orders that are queued for it now.
    pub(super) fn mark(&mut self, node: NodeId, mark: u64) {
        if let Some(member) = self.nodes.get_mut(&node) {
            let last = member.orders.last();
            member.marks.push(last, mark);
        }
    }

    /// The last of its marks that a node has taken since the last call.
    fn taken(&mut self, node: NodeId) -> Option<u64> {
        let member = self.nodes.get_mut(&node)?;
        member.marks.reached(member.orders.taken())
    }

    /// What a link whose end was detected was for: its node, and the copies that nobody answers any more.
    pub(super) fn unlink(&mut self, link: SessionId) -> (Option<NodeId>, Vec<TicketId>) {
        let unanswered = self.copies.extract_if(.., |_, on| *on == link);
        let unanswered = unanswered.map(|(ticket, _)| ticket).collect();
        let node = self.links.remove(&link);
        if let Some(member) = node.and_then(|node| self.nodes.get_mut(&node)) {
            (member.link, member.greeted) = (None, false);
        }
        (node, unanswered)
    }

    /// The answer to a copy has come; false when nobody waits for it.
    pub(super) fn copied(&mut self, link: SessionId, ticket: TicketId) -> bool {
        let asked = self.copies.get(&ticket) == Some(&link);
        asked && self.copies.remove(&ticket).is_some()
    }

    /// Nothing is known of nodes without a link that the master has given up.
    pub(super) fn retain(&mut self, has_node: impl Fn(NodeId) -> bool) {
        self.nodes
            .retain(|node, member| member.link.is_some() || has_node(*node));
    }

    fn forget(&mut self, node: NodeId) {
        if let Some(link) = self.nodes.remove(&node).and_then(|member| member.link) {
            self.links.remove(&link);
        }
    }

    fn linked_at(&self, node: NodeId) -> Option<SessionId> {
        let member = self.nodes.get(&node)?;
        member.link.filter(|_| member.greeted)
    }

    /// Takes a hello in: what it is answered, or none for one that is to be attached.
    fn greet(&mut self, link: SessionId, hello: &NodeHello) -> Option<Attached> {
        let mut member = self.nodes.get_mut(&hello.node);
        match hello.standing(member.as_deref_mut().map(Member::known)) {
            NodeStanding::Resumed(taken) => {
                let old = member.and_then(|member| member.link.replace(link));
                if let Some(old) = old {
                    self.links.remove(&old);
                }
                self.links.insert(link, hello.node);
                Some(Attached::Resumed { taken })
            }
            NodeStanding::Replaced => Some(Attached::Refused(ErrorCode::IllegalClient)),
            NodeStanding::Unknown => Some(Attached::Unknown),
            NodeStanding::New => None,
        }
    }

    /// Takes in what came on a link: its node, and the reports that are new.
    fn take(
        &mut self,
        link: SessionId,
        message: Reports,
    ) -> Result<Option<(NodeId, Vec<Report>)>, OutOfStep> {
        let Some(node) = self.at(link) else {
            return Ok(None);
        };
        let Some(member) = self.nodes.get_mut(&node) else {
            return Ok(None);
        };
        member.orders.acknowledge(message.taken)?;
        let reports = member.reports.accept(message.first, message.reports)?;
        Ok(Some((node, reports)))
    }

    /// What is to be sent to a node now, with its link.
    fn next(&mut self, node: NodeId, epoch: Epoch) -> Option<(SessionId, Orders)> {
        let member = self.nodes.get_mut(&node).filter(|member| member.greeted)?;
        let link = member.link?;
        let next = member.orders.take();
        let (first, orders) = next.or_else(|| member.reports.owes().then(Default::default))?;
        let taken = member.reports.tell();
        let orders = Orders {
            epoch,
            taken,
            first,
            orders,
            asks: !member.marks.is_empty(),
        };
        Some((link, orders))
    }
}

impl World {
    /// A node says who it is.
    pub(super) fn master_greets(&mut self, link: SessionId, hello: &NodeHello) -> Checked {
        let node = hello.node;
        // Messages on a link that the node has closed may arrive after the first ones of the next.
        let member = self.master.members.nodes.get(&node);
        if member.is_some_and(|member| member.link > Some(link)) {
            return Ok(());
        }
        let known = self.master.core.as_ref();
        if !known.is_some_and(|core| core.has_node(node)) {
            self.master.members.forget(node);
        }
        let attached = match self.master.members.greet(link, hello) {
            Some(attached) => attached,
            None => self.attach(link, hello)?,
        };
        if let Attached::Resumed { .. } = attached {
            self.master_step(Input::NodeBack(node))?;
            self.note_taken(node)?;
        }
        let goes_on = matches!(attached, Attached::Resumed { .. } | Attached::New { .. });
        if let Some(member) = self.master.members.nodes.get_mut(&node)
            && member.link == Some(link)
        {
            member.greeted = goes_on;
        }
        let welcome = NodeWelcome {
            epoch: self.epoch(),
            attached,
            reads: body::EMPTYING,
        };
        self.say(link, Process::Master, Control::Welcome(welcome));
        self.note_sent(Process::Master)?;
        self.order(node)
    }

    /// Takes a node that begins a life, or of which this master knows nothing.
    fn attach(&mut self, link: SessionId, hello: &NodeHello) -> Checked<Attached> {
        let node = hello.node;
        self.master.members.forget(node);
        self.master_step(Input::NodeLost(node))?;
        let member = Member {
            life: hello.life,
            link: Some(link),
            greeted: false,
            orders: NumberedSender::new(),
            marks: Marks::default(),
            reports: NumberedReceiver::default(),
        };
        self.master.members.nodes.insert(node, member);
        self.master.members.links.insert(link, node);
        for mount in &hello.segments {
            let mount = Mount {
                host: host_name(node.0),
                ..mount.clone()
            };
            self.master_step(Input::Request {
                client: MOUNTS,
                host: None,
                permissions: Permissions::node(node),
                operation: OperationId::unrepeated(0),
                request: Request::Mount(mount),
            })?;
        }
        let memory = hello.segments.iter();
        let memory = memory.filter(|mount| mount.kind == SegmentKind::Memory);
        let floors = memory.filter_map(|mount| {
            let core = self.master.core.as_ref()?;
            core.generations_from(mount.segment)
        });
        let floor = floors.min().unwrap_or(u64::MAX);
        Ok(Attached::New { floor })
    }

    /// Reports of a node.
    pub(super) fn master_takes(&mut self, link: SessionId, message: Reports) -> Checked {
        let taken = self.master.members.take(link, message);
        let taken = taken.map_err(|error| out_of_step("reports", error))?;
        let Some((node, reports)) = taken else {
            return Ok(());
        };
        self.note_taken(node)?;
        for report in reports {
            if matches!(report, Report::Announced { .. }) {
                self.master.announced = true;
            }
            self.master_step(Input::Report { node, report })?;
        }
        self.order(node)
    }

    /// Tells the master which of its marks a node has taken.
    fn note_taken(&mut self, node: NodeId) -> Checked {
        match self.master.members.taken(node) {
            Some(mark) => self.master_step(Input::Taken { node, mark }),
            None => Ok(()),
        }
    }

    /// Sends a node what is queued for it.
    pub(super) fn order(&mut self, node: NodeId) -> Checked {
        let epoch = self.epoch();
        while self.master.core.is_some()
            && let Some((link, orders)) = self.master.members.next(node, epoch)
        {
            self.say(link, Process::Master, Control::Orders(orders));
            self.note_sent(Process::Master)?;
        }
        Ok(())
    }

    /// Asks a node for a copy; false when it cannot be asked.
    pub(super) fn ask_copy(&mut self, node: NodeId, task: CopyTask) -> Result<(), ErrorCode> {
        let members = &mut self.master.members;
        let link = members.linked_at(node);
        let link = link.ok_or(ErrorCode::UnavailableInCurrentStatus)?;
        let source = match task.source {
            ReplicaAt::Memory(_) => members.nodes.contains_key(&task.from),
            ReplicaAt::Disk { .. } => members.linked_at(task.from).is_some(),
        };
        if !source {
            return Err(ErrorCode::ReplicaIsGone);
        }
        members.copies.insert(task.ticket, link);
        self.say(link, Process::Master, Control::Copy(Box::new(task)));
        Ok(())
    }

    /// Tells nodes what to announce first. What does not reach one has its turn.
    pub(super) fn ask_first(&mut self, nodes: &[NodeId], names: &[ObjectName]) {
        for node in nodes {
            if let Some(link) = self.master.members.linked_at(*node) {
                let first = AnnounceFirst {
                    epoch: self.epoch(),
                    names: names.to_vec(),
                };
                self.say(link, Process::Master, Control::AnnounceFirst(first));
            }
        }
    }

    /// The epoch of the present master.
    pub(super) fn epoch(&self) -> Epoch {
        Epoch(self.master.life)
    }
}

/// Numbers that do not fit together: links of nodes lose nothing, so that something was left out or forged.
pub(super) fn out_of_step(what: &str, error: OutOfStep) -> Violation {
    Violation::new(Invariant::Contract, format!("{what} out of step: {error}"))
}
