//! Answers that wait until nodes have taken what they were told: memory that outlives its master is found by the next one only
//! where its node has heard what is published there.
//!
//! The shell is told a mark behind the orders of a step and says when the node has taken them. Marks rise, and to have taken one
//! is to have taken all before it.

use std::collections::BTreeMap;

use slackwater_base::{Planted, planted};
use slackwater_wire::{ErrorCode, NodeId, Presence, SegmentKind};

use crate::catalog::{ObjectId, ReplicaId};
use crate::master::Master;
use crate::outbox::Waiter;
use crate::segment::Domain;

/// What waits, by its node and mark.
#[derive(Default)]
pub(crate) struct Untaken {
    newest: u64,
    waiting: BTreeMap<(NodeId, u64), Vec<Waiter>>,
    /// How many wait for each node.
    of_node: BTreeMap<NodeId, usize>,
}

impl Untaken {
    fn add(&mut self, node: NodeId, mark: u64, waiter: Waiter) {
        self.waiting.entry((node, mark)).or_default().push(waiter);
        *self.of_node.entry(node).or_default() += 1;
    }

    /// What waits for a node and for marks up to this one.
    fn take(&mut self, node: NodeId, mark: u64) -> Vec<Waiter> {
        let marks = (self.waiting).extract_if((node, 0)..=(node, mark), |_, _| true);
        let taken: Vec<Waiter> = marks.flat_map(|(_, waiting)| waiting).collect();
        if let Some(count) = self.of_node.get_mut(&node) {
            *count -= taken.len();
            if *count == 0 {
                self.of_node.remove(&node);
            }
        }
        taken
    }
}

impl Master {
    /// Makes the waiter wait until each node that has an object in memory has taken that it has.
    pub(crate) fn await_noted(&mut self, id: ObjectId, waiter: Waiter) {
        if planted(Planted::AcknowledgedBeforeNoted) {
            return;
        }
        for replica in self.in_memory(id) {
            let index = self.catalog.replica(replica).segment;
            let segment = self.segments.at(index);
            if !segment.outlives {
                continue;
            }
            if segment.presence == Presence::Hidden {
                self.acks
                    .fail(waiter, ErrorCode::UnavailableInCurrentStatus);
                continue;
            }
            let node = segment.node;
            let waiting = self.untaken.of_node.get(&node).copied().unwrap_or(0);
            if waiting >= self.config.limits.untaken {
                self.acks.fail(waiter, ErrorCode::TaskPendingLimitExceeded);
                continue;
            }
            let mark = self.outbox.mark(node, &mut self.untaken.newest);
            self.untaken.add(node, mark, self.acks.wait(waiter));
        }
    }

    /// How many hosts have an object in memory.
    pub(crate) fn hosts_of(&self, id: ObjectId) -> usize {
        let replicas = self.in_memory(id).into_iter();
        let segments = replicas.map(|id| self.segments.at(self.catalog.replica(id).segment));
        let domains: std::collections::BTreeSet<Domain<'_>> =
            segments.map(|segment| segment.domain()).collect();
        domains.len()
    }

    fn in_memory(&self, id: ObjectId) -> Vec<ReplicaId> {
        let replicas = self.catalog.replicas(id);
        let memory = replicas
            .filter(|(_, replica)| self.segments.at(replica.segment).kind() == SegmentKind::Memory);
        memory.map(|(id, _)| id).collect()
    }

    /// A node has taken its orders up to a mark.
    pub(crate) fn taken(&mut self, node: NodeId, mark: u64) {
        for waiter in self.untaken.take(node, mark) {
            self.acks.done(waiter.ack, &mut self.outbox);
        }
    }

    /// It may be long before a node takes its orders, if it ever does.
    pub(crate) fn lose_untaken(&mut self, node: NodeId, code: ErrorCode) {
        for waiter in self.untaken.take(node, u64::MAX) {
            self.acks.fail(waiter, code);
            self.acks.done(waiter.ack, &mut self.outbox);
        }
    }
}
