//! The nodes of a pool as its master knows them: their links, and what is under way on each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_mq::{ConnectionId, Mq, SendOptions};
use slackwater_transfer::Segment as Contact;
use slackwater_wire::{
    AnnounceFirst, Epoch, KnownNode, Marks, NodeHello, NodeId, NodeLife, NodeStanding,
    NumberedReceiver, NumberedSender, ObjectName, Order, Orders, OutOfStep, Report, Reports,
    SegmentKind, body,
};
use slackwater_zmtp::PublicKey;

use crate::serve::minter::Minter;

/// See the module. Its lock is taken under the master's, and nothing else is taken under it.
pub(super) struct Members {
    epoch: Epoch,
    /// None before it is known and after the end: the message layer holds this.
    mq: Mutex<Option<Mq>>,
    state: Mutex<MembersState>,
}

#[derive(Default)]
struct MembersState {
    nodes: BTreeMap<NodeId, Member>,
    links: BTreeMap<ConnectionId, NodeId>,
}

struct Member {
    life: NodeLife,
    link: Option<ConnectionId>,
    /// The key that its link proved; none without encryption.
    key: Option<PublicKey>,
    orders: NumberedSender<Order>,
    /// Marks of the master that the node has not taken.
    marks: Marks,
    reports: NumberedReceiver,
    contact: Contact,
    minter: Arc<Minter>,
    memory_bytes: u64,
    /// It said that it ends: it is not waited for when its link is gone.
    leaves: bool,
}

/// Another node is the process that a hello names. Clients tell processes apart by their incarnations: they would read and write
/// what is that node's at this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken;

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
    pub(super) fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            mq: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Sends by this message layer.
    pub(super) fn send_by(&self, mq: Mq) {
        *lock(&self.mq) = Some(mq);
    }

    /// Sends nothing any more.
    pub(super) fn end(&self) {
        lock(&self.mq).take();
    }

    /// The message layer, while there is one.
    pub(super) fn mq(&self) -> Option<Mq> {
        lock(&self.mq).clone()
    }

    /// Takes a hello in. A life that is known goes on, on this link.
    ///
    /// # Errors
    /// When it is new and another node is its process.
    pub(super) fn greet(
        &self,
        link: ConnectionId,
        hello: &NodeHello,
    ) -> Result<NodeStanding, Taken> {
        let mut state = self.state();
        let MembersState { nodes, links } = &mut *state;
        let named = hello.memory.contact.incarnation;
        let mut others = nodes.iter().filter(|(node, _)| **node != hello.node);
        let is_taken = others.any(|(_, member)| member.contact.incarnation == named);
        let mut member = nodes.get_mut(&hello.node);
        let standing = hello.standing(member.as_deref_mut().map(Member::known));
        match (standing, member) {
            (NodeStanding::Resumed(_), Some(member)) => {
                member.minter.hear(hello.memory.clock_nanos);
                if let Some(old) = member.link.replace(link) {
                    links.remove(&old);
                }
                links.insert(link, hello.node);
            }
            (NodeStanding::New, _) if is_taken => return Err(Taken),
            _ => {}
        }
        Ok(standing)
    }

    /// A node belongs to the pool from now on.
    pub(super) fn add(
        &self,
        link: ConnectionId,
        key: Option<PublicKey>,
        hello: &NodeHello,
        minter: Arc<Minter>,
    ) {
        let memory = hello
            .segments
            .iter()
            .filter(|mount| mount.kind == SegmentKind::Memory);
        let member = Member {
            life: hello.life,
            link: Some(link),
            key,
            orders: NumberedSender::new(),
            marks: Marks::default(),
            reports: NumberedReceiver::default(),
            contact: hello.memory.contact.clone(),
            minter,
            memory_bytes: memory.map(|mount| mount.bytes).max().unwrap_or(0),
            leaves: false,
        };
        let mut state = self.state();
        state.nodes.insert(hello.node, member);
        state.links.insert(link, hello.node);
    }

    /// Forgets a node, with its link.
    pub(super) fn forget(&self, node: NodeId) {
        let mut state = self.state();
        if let Some(link) = state.nodes.remove(&node).and_then(|member| member.link) {
            state.links.remove(&link);
        }
    }

    /// Whether a link is a node's.
    pub(super) fn is_link(&self, link: ConnectionId) -> bool {
        self.state().links.contains_key(&link)
    }

    /// The life of the node of a link.
    pub(super) fn life_at(&self, link: ConnectionId) -> Option<(NodeId, NodeLife)> {
        let state = self.state();
        let node = *state.links.get(&link)?;
        Some((node, state.nodes.get(&node)?.life))
    }

    /// A life of a node is about to end.
    pub(super) fn leaves(&self, node: NodeId, life: NodeLife) {
        let mut state = self.state();
        let member = state.nodes.get_mut(&node);
        if let Some(member) = member.filter(|member| member.life == life) {
            member.leaves = true;
        }
    }

    /// Whether a node said that it ends.
    pub(super) fn has_left(&self, node: NodeId) -> bool {
        let state = self.state();
        state.nodes.get(&node).is_some_and(|member| member.leaves)
    }

    /// A link is gone; the node that it belonged to.
    pub(super) fn unlink(&self, link: ConnectionId) -> Option<NodeId> {
        let mut state = self.state();
        let node = state.links.remove(&link)?;
        if let Some(member) = state.nodes.get_mut(&node) {
            member.link = None;
        }
        Some(node)
    }

    /// Nodes that have no link.
    pub(super) fn absent(&self) -> Vec<NodeId> {
        let state = self.state();
        let absent = state.nodes.iter().filter(|(_, it)| it.link.is_none());
        absent.map(|(node, _)| *node).collect()
    }

    /// Nodes that have one.
    pub(super) fn linked(&self) -> usize {
        self.state().links.len()
    }

    /// The link of a node.
    pub(super) fn link_of(&self, node: NodeId) -> Option<ConnectionId> {
        self.state().nodes.get(&node).and_then(|member| member.link)
    }

    /// The key that the link of a node proved.
    pub(super) fn key_of(&self, node: NodeId) -> Option<PublicKey> {
        self.state().nodes.get(&node).and_then(|member| member.key)
    }

    /// How the memory of a node is reached.
    pub(super) fn contact_of(&self, node: NodeId) -> Option<Contact> {
        let state = self.state();
        state.nodes.get(&node).map(|member| member.contact.clone())
    }

    /// How the memory of each node is reached, and the size of the largest.
    pub(super) fn contacts(&self) -> (Vec<Contact>, Option<u64>) {
        let state = self.state();
        let contacts = state.nodes.values().map(|member| member.contact.clone());
        let largest = state.nodes.values().map(|member| member.memory_bytes).max();
        (contacts.collect(), largest)
    }

    /// Queues orders, with marks behind them: under the master's lock, so that each node gets them in their order. The nodes that
    /// they are for.
    pub(super) fn queue(
        &self,
        orders: Vec<(NodeId, Order)>,
        marks: Vec<(NodeId, u64)>,
    ) -> BTreeSet<NodeId> {
        let mut told = BTreeSet::new();
        if orders.is_empty() {
            return told;
        }
        let mut state = self.state();
        for (node, order) in orders {
            if let Some(member) = state.nodes.get_mut(&node) {
                member.orders.push(order);
                told.insert(node);
            }
        }
        for (node, mark) in marks {
            if let Some(member) = state.nodes.get_mut(&node) {
                let last = member.orders.last();
                member.marks.push(last, mark);
            }
        }
        told
    }

    /// The last of its marks that a node has taken since the last call.
    pub(super) fn taken(&self, node: NodeId) -> Option<u64> {
        let mut state = self.state();
        let member = state.nodes.get_mut(&node)?;
        member.marks.reached(member.orders.taken())
    }

    /// Takes in what came on a link: the reports that are new, with their node. `None` when the link is no node's.
    ///
    /// # Errors
    /// When the numbers are not those of the node's link: it is to be made anew.
    pub(super) fn take(
        &self,
        link: ConnectionId,
        message: Reports,
    ) -> Result<Option<(NodeId, Vec<Report>)>, OutOfStep> {
        let mut state = self.state();
        let MembersState { nodes, links } = &mut *state;
        let Some(node) = links.get(&link) else {
            return Ok(None);
        };
        let Some(member) = nodes.get_mut(node) else {
            return Ok(None);
        };
        member.minter.hear(message.clock_nanos);
        member.orders.acknowledge(message.taken)?;
        let reports = member.reports.accept(message.first, message.reports)?;
        Ok(Some((*node, reports)))
    }

    /// Sends a node what is queued for it, and how far its reports were taken if it waits for that.
    pub(super) fn send(&self, node: NodeId) {
        let mut state = self.state();
        let Some(member) = state.nodes.get_mut(&node) else {
            return;
        };
        let (Some(link), Some(mq)) = (member.link, self.mq()) else {
            return;
        };
        loop {
            let next = member.orders.take();
            let Some((first, orders)) =
                next.or_else(|| member.reports.owes().then(Default::default))
            else {
                return;
            };
            let message = Orders {
                epoch: self.epoch,
                taken: member.reports.tell(),
                first,
                orders,
                asks: !member.marks.is_empty(),
            };
            match body::encode(&message) {
                Ok(body) => {
                    let other = mq.clone();
                    // What a link cannot take is sent again on the next one.
                    let on_failure = move |_| other.renew(link);
                    let options = SendOptions {
                        on_failure: Some(Box::new(on_failure)),
                        ..SendOptions::default()
                    };
                    mq.send_with(link, "node.orders", [body], options);
                }
                Err(error) => {
                    tracing::error!(%error, %node, "an order could not be sent");
                    return;
                }
            }
        }
    }

    /// Tells nodes which keys to announce first. What does not reach one has its turn.
    pub(super) fn ask_first(&self, nodes: &[NodeId], names: Vec<ObjectName>) {
        let message = AnnounceFirst {
            epoch: self.epoch,
            names,
        };
        let (Some(mq), Ok(body)) = (self.mq(), body::encode(&message)) else {
            return;
        };
        for link in nodes.iter().filter_map(|node| self.link_of(*node)) {
            mq.send(link, "node.announce_first", [body.clone()]);
        }
    }

    fn state(&self) -> MutexGuard<'_, MembersState> {
        lock(&self.state)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use slackwater_wire::data::MacKind;
    use slackwater_wire::{DiskState, Incarnation, MemoryAccess, Mount, Secret, SegmentId};
    use slackwater_zmtp::PublicKey;

    use super::*;

    const NODE: NodeId = NodeId(300);

    fn link(number: u8) -> ConnectionId {
        ConnectionId::Node(PublicKey::from_bytes([number; 32]))
    }

    fn hello(life: u64, welcomed: bool, taken: u64) -> NodeHello {
        NodeHello {
            epoch: Epoch(1),
            node: NODE,
            life: NodeLife([life, 0]),
            welcomed,
            taken,
            segments: vec![Mount {
                segment: SegmentId(600),
                name: "memory".into(),
                node: NODE,
                incarnation: Incarnation(life),
                kind: SegmentKind::Memory,
                bytes: 1 << 20,
                host: String::new(),
                generations: None,
                watermarks: None,
            }],
            memory: MemoryAccess {
                contact: Contact {
                    name: "a".into(),
                    incarnation: Incarnation(life),
                    addresses: Vec::new(),
                    public_key: None,
                    host: None,
                },
                region: 0,
                secret: Secret([0; 32]),
                clock_nanos: 0,
                macs: MacKind::LATEST.number(),
            },
        }
    }

    fn members() -> Members {
        let (members, hello) = (Members::new(Epoch(1)), hello(1, false, 0));
        assert_eq!(members.greet(link(1), &hello), Ok(NodeStanding::New));
        members.add(link(1), None, &hello, Arc::new(Minter::of(&hello.memory)));
        members
    }

    fn reports(first: u64, taken: u64) -> Reports {
        let state = DiskState {
            node: NODE,
            accepting: true,
            failing: false,
            capacity: 1,
            pressure: 0,
        };
        Reports {
            epoch: Epoch(1),
            taken,
            first,
            clock_nanos: 0,
            reports: vec![Report::Disk(state)],
        }
    }

    #[test]
    fn a_hello_is_judged_by_the_life_that_is_known() {
        let check = |linked: bool, hello: NodeHello, expected| {
            let members = members();
            if !linked {
                assert_eq!(members.unlink(link(1)), Some(NODE));
            }
            assert_eq!(members.greet(link(2), &hello), Ok(expected), "{hello:?}");
        };
        for linked in [true, false] {
            // The old link may be noticed to be gone only after the new one is there.
            check(linked, hello(1, true, 0), NodeStanding::Resumed(0));
            // It has not heard that it was welcomed, nor what it is to announce.
            check(linked, hello(1, false, 0), NodeStanding::New);
            check(linked, hello(1, true, 1), NodeStanding::Unknown);
            check(linked, hello(2, false, 0), NodeStanding::New);
        }
        check(true, hello(2, true, 5), NodeStanding::Replaced);
        check(false, hello(2, true, 5), NodeStanding::Unknown);
        let none = Members::new(Epoch(1));
        let greeted = none.greet(link(1), &hello(1, true, 0));
        assert_eq!(greeted, Ok(NodeStanding::Unknown));
    }

    /// A node that named the process of another one as its own got what clients wrote to that.
    #[test]
    fn a_process_is_one_node() {
        let members = members();
        let other = |incarnation: u64| NodeHello {
            node: NodeId(301),
            ..hello(incarnation, false, 0)
        };
        assert_eq!(members.greet(link(2), &other(1)), Err(Taken));
        assert_eq!(members.greet(link(2), &other(2)), Ok(NodeStanding::New));
        let again = hello(1, false, 0);
        let greeted = members.greet(link(2), &again);
        assert_eq!(greeted, Ok(NodeStanding::New), "it is that one");
        members.forget(NODE);
        let greeted = members.greet(link(2), &other(1));
        assert_eq!(greeted, Ok(NodeStanding::New), "that one is gone");
    }

    /// The end of an old link was taken for the end of the node, which had made a new one by then.
    #[test]
    fn what_comes_on_an_old_link_does_not_count() {
        let members = members();
        let resumed = members.greet(link(2), &hello(1, true, 0));
        assert_eq!(resumed, Ok(NodeStanding::Resumed(0)));
        assert_eq!(members.unlink(link(1)), None);
        assert_eq!(
            (members.link_of(NODE), members.linked()),
            (Some(link(2)), 1)
        );
        assert_eq!(members.take(link(1), reports(1, 0)), Ok(None));
        let taken = members.take(link(2), reports(1, 0)).unwrap();
        assert_eq!(
            taken.map(|(node, reports)| (node, reports.len())),
            Some((NODE, 1))
        );
        let again = members.take(link(2), reports(1, 0)).unwrap();
        assert_eq!(again, Some((NODE, Vec::new())), "it was taken before");
        assert!(
            members.take(link(2), reports(3, 0)).is_err(),
            "one is missing"
        );
        assert!(
            members.take(link(2), reports(2, 7)).is_err(),
            "no such order"
        );
        members.unlink(link(2));
        assert_eq!(members.absent(), [NODE]);
        let resumed = members.greet(link(3), &hello(1, true, 0));
        assert_eq!(resumed, Ok(NodeStanding::Resumed(1)));
    }

    /// A node left, and was slow to end. The mark of its end was set on the next life of the node, which had begun by then: a
    /// moment without a link ended that life, and what it held was lost.
    #[test]
    fn the_end_of_a_life_does_not_end_the_next_one() {
        let members = members();
        let leaving = members.life_at(link(1));
        assert_eq!(leaving, Some((NODE, NodeLife([1, 0]))));
        assert_eq!(members.life_at(link(2)), None);
        let next = hello(2, false, 0);
        members.forget(NODE);
        members.add(link(2), None, &next, Arc::new(Minter::of(&next.memory)));
        members.leaves(NODE, NodeLife([1, 0]));
        assert!(!members.has_left(NODE));
        members.leaves(NODE, NodeLife([2, 0]));
        assert!(members.has_left(NODE));
    }

    #[test]
    fn a_mark_is_taken_with_the_orders_before_it() {
        let members = members();
        let order = || (NODE, Order::Fence(Vec::new()));
        members.queue(vec![order(), order()], vec![(NODE, 1)]);
        members.queue(vec![order()], vec![(NODE, 2), (NodeId(301), 3)]);
        members.queue(vec![order()], vec![(NODE, 4)]);
        assert_eq!(members.taken(NODE), None);
        let sent = |members: &Members| {
            let mut state = members.state();
            let member = state.nodes.get_mut(&NODE).unwrap();
            member.orders.take();
        };
        sent(&members);
        let check = |taken, expected| {
            members.take(link(1), reports(1, taken)).unwrap();
            assert_eq!(members.taken(NODE), expected, "{taken}");
        };
        check(1, None);
        check(3, Some(2));
        check(3, None);
        // The rest is taken when its node is back.
        members.unlink(link(1));
        let resumed = members.greet(link(2), &hello(1, true, 4));
        assert_eq!(resumed, Ok(NodeStanding::Resumed(1)));
        assert_eq!(members.taken(NODE), Some(4));
        assert_eq!(members.taken(NodeId(301)), None);
    }

    /// A node kept its link and never said what it had taken: each replicated put left a mark behind for ever.
    #[test]
    fn a_node_that_takes_nothing_leaves_a_limited_number_of_marks() {
        let members = members();
        let marks = |members: &Members| members.state().nodes[&NODE].marks.len();
        let many = 100_000;
        let mut most = 0;
        for mark in 1..=many {
            let order = Order::Fence(Vec::new());
            members.queue(vec![(NODE, order)], vec![(NODE, mark)]);
            most = most.max(marks(&members));
        }
        assert!(most <= 1024, "{most} marks");
        assert_eq!(members.taken(NODE), None);
        // It does in the end: what was promised to wait for it goes on.
        let mut taken = 0;
        while taken < many {
            taken += members
                .state()
                .nodes
                .get_mut(&NODE)
                .unwrap()
                .orders
                .take()
                .unwrap()
                .1
                .len() as u64;
            members.take(link(1), reports(1, taken)).unwrap();
            members.taken(NODE);
        }
        assert_eq!(marks(&members), 0);
    }

    #[test]
    fn orders_wait_for_the_link_of_their_node_and_go_with_it() {
        let members = members();
        let order = || {
            let ticket = slackwater_wire::TicketId(1);
            Order::Cancel { ticket }
        };
        let told = members.queue(vec![(NODE, order()), (NodeId(301), order())], Vec::new());
        assert_eq!(told, BTreeSet::from([NODE]), "nobody else is known");
        members.send(NODE);
        members.forget(NODE);
        assert!(members.queue(vec![(NODE, order())], Vec::new()).is_empty());
        assert_eq!(members.contacts().1, None);
    }
}
