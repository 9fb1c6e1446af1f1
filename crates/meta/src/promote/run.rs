//! The course of an admitted promotion: it is sent to its node, staged, and ended once.

use std::time::Duration;

use slackwater_base::{Instant, Planted, planted};
use slackwater_wire::{
    ChainPlace, ExtentRef, NodeId, Order, PromoteTask, PromotionFailure, SegmentKind, TicketId,
};

use super::{Exit, Next, Promoting, Stage};
use crate::catalog::{Mark, ObjectId, ReplicaId, SegmentIndex};
use crate::evict::{self, Slot};
use crate::master::{Due, Master};
use crate::pressure::Evictable;
use crate::release::Reason;
use crate::tenant::Ledger;

impl Master {
    /// Sends a node as many promotions as it may work on; the rest stays queued.
    pub(super) fn deliver(&mut self, now: Instant, node: NodeId) {
        let slots = self.config.promotion.batch_max;
        let mut tasks = Vec::new();
        loop {
            match self.promotions.take_next(now, node, slots) {
                Next::Task(ticket) => {
                    let promoting = &self.promotions.tickets[&ticket];
                    tasks.push(PromoteTask {
                        ticket,
                        entry: promoting.entry.clone(),
                        bytes: promoting.bytes,
                        checksum: self.catalog.object(promoting.object).checksum,
                    });
                }
                Next::NotBefore(at) => {
                    self.due.set(Due::Promotions, at);
                    break;
                }
                Next::Nothing => break,
            }
        }
        if !tasks.is_empty() {
            self.outbox.order(node, Order::Promote(tasks));
        }
    }

    pub(crate) fn deliver_all(&mut self, now: Instant) {
        for node in self.promotions.waited_for() {
            self.deliver(now, node);
        }
    }

    /// The node is about to read: allocates an extent, if the promotion is still open.
    pub(crate) fn stage(&mut self, now: Instant, node: NodeId, ticket: TicketId, bytes: u64) {
        let Some(promoting) = self.promotions.of_node(node, ticket) else {
            // It has expired, was cancelled, or belongs to another node: the node is to cancel it.
            return self.outbox.order(node, Order::Cancel { ticket });
        };
        if bytes != promoting.bytes {
            return self.refuse(now, ticket, Exit::Failed);
        }
        if promoting.stage != Stage::Sent {
            return;
        }
        let (object, tenant, chain, tried) = (
            promoting.object,
            promoting.tenant,
            promoting.chain,
            promoting.tried,
        );
        let charge = self.charge_of(bytes);
        if !self.fit_quota(now, tenant, Ledger::Memory, charge) {
            return self.refuse(now, ticket, Exit::Failed);
        }
        let Some(staged) = self.allocate_near(now, node, object, bytes) else {
            self.refuse(now, ticket, Exit::Failed);
            return self.remember_again(now, object, chain, tried);
        };
        let extent = self.extent_of(staged);
        self.tenants.charge(tenant, Ledger::Memory, extent.bytes);
        self.promotions.stage(ticket, staged);
        self.due
            .set(Due::Promotion(ticket), now + self.config.promotion.window);
        self.outbox.order(node, Order::Staged { ticket, extent });
    }

    /// Allocates on one of the node's memory segments: those that the put preferred, then the emptiest.
    fn allocate_near(
        &mut self,
        now: Instant,
        node: NodeId,
        object: ObjectId,
        bytes: u64,
    ) -> Option<ReplicaId> {
        let mut memory = self.segments.of_node(node);
        memory.retain(|index| {
            let segment = self.segments.at(*index);
            let may = segment.kind() == SegmentKind::Memory && segment.takes_new();
            may && !self.is_bound_for(object, *index)
        });
        memory.sort_by_key(|index| {
            let segment = self.segments.at(*index);
            (self.wishes.rank(object, &segment.name), segment.used())
        });
        let found = memory
            .iter()
            .find_map(|index| self.segments.allocate(&mut self.catalog, *index, bytes));
        match found {
            Some(_) => self.room_taken(now),
            None => self.make_room_for_promotion(now, node),
        }
        found
    }

    /// Ends a promotion that the node has not ended, tells the node, and gives its slot to the next.
    fn refuse(&mut self, now: Instant, ticket: TicketId, exit: Exit) {
        self.tell_to_forget(ticket);
        let Promoting { node, .. } = self.end_promotion(now, ticket, exit);
        self.deliver(now, node);
    }

    /// The bytes are in place: publishes exactly the staged replica.
    pub(crate) fn promoted(
        &mut self,
        now: Instant,
        node: NodeId,
        ticket: TicketId,
        extent: ExtentRef,
    ) {
        let Some(promoting) = self.promotions.of_node(node, ticket) else {
            return;
        };
        let Stage::Staged(staged) = promoting.stage else {
            return self.refuse(now, ticket, Exit::Failed);
        };
        if self.extent_of(staged) != extent {
            return self.refuse(now, ticket, Exit::Failed);
        }
        let Promoting {
            object,
            bytes,
            chain,
            source,
            ..
        } = self.end_promotion(now, ticket, Exit::Completed);
        let standing = self.standing_of(now, source, chain);
        self.metrics.promotion.completed_bytes += bytes;
        self.publish_copy(now, object, staged, chain, standing);
        let segment = self.catalog.replica(staged).segment;
        self.grant_grace(now, staged);
        self.unsettled.press(segment);
        self.deliver(now, node);
    }

    /// What the policy of a replica's segment knows of its value, which is copied to another one.
    pub(crate) fn standing_of(
        &self,
        now: Instant,
        source: ReplicaId,
        chain: ChainPlace,
    ) -> Option<evict::Standing> {
        let record = self.catalog.replica(source);
        let policy = &self.segments.at(record.segment).policy;
        let standing = policy.standing(now, Slot(record.slot))?;
        // For a block inside a chain segment the policy knows only the position of the segment's head.
        let position = match chain.parent {
            Some(_) => chain.position,
            None => standing.position,
        };
        Some(evict::Standing {
            position,
            ..standing
        })
    }

    /// What was promoted is not evicted at once.
    pub(super) fn grant_grace(&mut self, now: Instant, promoted: ReplicaId) {
        let grace = self.config.promotion.grace;
        if grace > Duration::ZERO {
            self.set_aside(promoted, Evictable::NotBefore(now + grace));
        }
    }

    /// The node could not do it. A repeated report changes nothing.
    pub(crate) fn promotion_failed(
        &mut self,
        now: Instant,
        node: NodeId,
        ticket: TicketId,
        failure: PromotionFailure,
    ) {
        let Some(promoting) = self.promotions.of_node(node, ticket) else {
            return;
        };
        let (object, source, chain, tried) = (
            promoting.object,
            promoting.source,
            promoting.chain,
            promoting.tried,
        );
        self.end_promotion(now, ticket, Exit::Failed);
        match failure {
            PromotionFailure::Corrupt => {
                let (index, hash) = (
                    self.catalog.replica(source).segment,
                    self.catalog.object(object).hash,
                );
                self.metrics.records_lost += 1;
                let entry = self.entry(object);
                self.drop_record(index, hash, entry, None);
                self.discard(now, source, Reason::Removed);
                self.erase_if_empty(now, object);
            }
            PromotionFailure::Missing => {
                self.metrics.records_lost += 1;
                self.discard(now, source, Reason::Removed);
                self.erase_if_empty(now, object);
            }
            PromotionFailure::Busy | PromotionFailure::Stale => {
                self.remember_again(now, object, chain, tried)
            }
            PromotionFailure::Size | PromotionFailure::Device => {}
        }
        self.deliver(now, node);
        self.unsettled.room();
    }

    pub(crate) fn promotion_expired(&mut self, now: Instant, ticket: TicketId) {
        self.refuse(now, ticket, Exit::Expired);
        self.unsettled.room();
    }

    /// The only exit: releases the slot, the source, the staged extent and the quota, once.
    fn end_promotion(&mut self, now: Instant, ticket: TicketId, exit: Exit) -> Promoting {
        let promoting = self.promotions.remove(ticket, exit);
        self.due.cancel(Due::Promotion(ticket));
        self.catalog
            .object_mut(promoting.object)
            .unmark(Mark::Promotion);
        if let (Stage::Staged(staged), true) = (promoting.stage, exit != Exit::Completed) {
            self.free(staged, promoting.tenant, promoting.bytes);
        }
        let metrics = &mut self.metrics.promotion;
        metrics.in_flight -= 1;
        match exit {
            Exit::Completed => metrics.completed += 1,
            Exit::Failed => metrics.failed += 1,
            Exit::Cancelled => metrics.cancelled += 1,
            Exit::Expired => metrics.expired += 1,
        }
        let metrics = &self.metrics.promotion;
        let ended = metrics.completed + metrics.failed + metrics.cancelled + metrics.expired;
        assert_eq!(
            metrics.admitted,
            ended + metrics.in_flight,
            "every admission has one end"
        );
        assert_eq!(
            metrics.in_flight,
            self.under_way() as u64,
            "one slot a ticket"
        );
        if exit != Exit::Failed || !planted(Planted::PromotionKeepsSource) {
            self.unhold(now, promoting.source);
        }
        promoting
    }

    fn tell_to_forget(&mut self, ticket: TicketId) {
        let promoting = &self.promotions.tickets[&ticket];
        if promoting.stage != Stage::Queued {
            self.outbox.order(promoting.node, Order::Cancel { ticket });
        }
    }

    /// The object is removed or replaced: cancels its promotion.
    pub(crate) fn cancel_promotion(&mut self, now: Instant, id: ObjectId) {
        self.forget_candidate(id);
        if self.catalog.object(id).is(Mark::Promotion) {
            self.refuse(now, self.promotions.of[&id], Exit::Cancelled);
        }
    }

    /// A record is gone: cancels the promotions that would read it.
    pub(crate) fn cancel_promotions_from(&mut self, now: Instant, source: ReplicaId) {
        if self
            .promotions
            .holding(self.catalog.replica(source).object(), source)
            > 0
            && let Some(object) = self.catalog.replica(source).object()
        {
            self.cancel_promotion(now, object);
        }
    }

    /// A segment is being removed: cancels promotions from and to it.
    pub(crate) fn lose_promotions(&mut self, now: Instant, index: SegmentIndex) {
        for ticket in self.promotions.touching(&self.catalog, index) {
            self.tell_to_forget(ticket);
            self.end_promotion(now, ticket, Exit::Cancelled);
        }
        let node = self.segments.at(index).node;
        match self.segments.at(index).kind() {
            SegmentKind::Disk => drop(self.promotions.holders.remove(&node)),
            SegmentKind::Memory => self.deliver(now, node),
        }
    }
}
