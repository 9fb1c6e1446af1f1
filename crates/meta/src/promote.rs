//! Promotion on hit: an object that is on SSD only and is read often gets a copy in memory, without delaying the read
//! that earns it. Who is admitted is decided here and nowhere else; the node that holds the record does the work.
//!
//! A promotion is admitted, sent, staged, and ends in exactly one of four ways; every end goes through
//! [`Master::end_promotion`], so that `admitted = completed + failed + cancelled + expired + in flight` holds always.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use slackwater_base::{Instant, Map, Planted, Sketch, planted};
use slackwater_wire::{
    DiskEntry, ExtentRef, NodeId, Order, PromoteTask, PromotionFailure, SegmentKind, TicketId,
};

use crate::budget::Budget;
use crate::candidate::{Candidates, Reason, Tried};
use crate::catalog::{Aside, ObjectId, ReplicaId, SegmentIndex, TenantIndex};
use crate::config::{OnHit, Promotion};
use crate::evict::{self, Link, Slot};
use crate::master::{Due, Master};
use crate::pressure::{Pass, Standing};
use crate::publish::Fresh;
use crate::put::ChainPlace;
use crate::release::Why;
use crate::tenant::Ledger;

/// Promotions under way, those who may become one, and what decides between them.
pub(crate) struct Promotions {
    sketch: Option<Sketch>,
    tickets: Map<TicketId, Promoting>,
    of: Map<ObjectId, TicketId>,
    holders: BTreeMap<NodeId, Holder>,
    budget: Budget,
    pub(crate) candidates: Candidates,
}

/// One promotion in flight. The record that it reads is held until its end.
struct Promoting {
    object: ObjectId,
    entry: DiskEntry,
    bytes: u64,
    tenant: TenantIndex,
    source: ReplicaId,
    node: NodeId,
    heat: u8,
    place: ChainPlace,
    stage: Stage,
    /// Retries that led here: one that comes to nothing for want of room goes on counting.
    tried: Option<Tried>,
}

/// How far a promotion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Admitted; the node does not know of it yet.
    Queued,
    /// The node has it.
    Sent,
    /// The node may write to this replica, and no other may be published.
    Staged(ReplicaId),
}

/// What a node works on, and what waits for it: hottest first, then oldest.
#[derive(Default)]
struct Holder {
    queue: BTreeSet<(Reverse<u8>, TicketId)>,
    active: usize,
    /// Bytes admitted and not yet staged.
    coming: u64,
}

/// How a promotion ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Completed,
    Failed,
    Cancelled,
    Expired,
}

/// What the gates said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Admitted,
    /// It may be let in later.
    Rejected(Reason),
    /// There is nothing to promote (any more).
    Ineligible,
}

impl Promotions {
    pub(crate) fn new(config: &Promotion) -> Self {
        let on = config.on_hit == OnHit::Promote;
        Self {
            sketch: on.then(|| Sketch::for_keys(config.sketch_keys)),
            tickets: Map::default(),
            of: Map::default(),
            holders: BTreeMap::new(),
            budget: Budget::new(config.bytes_per_second),
            candidates: Candidates::default(),
        }
    }

    pub(crate) fn sketch_bytes(&self) -> usize {
        self.sketch.as_ref().map_or(0, Sketch::bytes)
    }

    fn holder(&mut self, node: NodeId) -> &mut Holder {
        self.holders.entry(node).or_default()
    }
}

impl Master {
    /// Looks at what a read found on SSD only: gates 1 and 2, then the rest.
    pub(crate) fn consider(
        &mut self,
        now: Instant,
        links: &[Link],
        cold: &[(ObjectId, u32)],
        chain: ChainPlace,
    ) {
        for (id, at) in cold {
            // What an earlier one made way for may have been this one.
            if !self.catalog.is_object(*id) {
                continue;
            }
            let hash = links[*at as usize].hash;
            let Some(sketch) = &mut self.promotions.sketch else {
                return;
            };
            let heat = sketch.add(hash);
            if !self.has_earned(now, *id, heat) {
                continue;
            }
            let before = at.checked_sub(1).map(|before| links[before as usize].hash);
            let position = chain.position.saturating_add(*at);
            let place = ChainPlace {
                parent: before.or(chain.parent),
                position,
                ..chain
            };
            match self.admit(now, *id, heat, place) {
                Admission::Rejected(reason) if self.catalog.is_object(*id) => {
                    self.remember(now, *id, reason, place)
                }
                Admission::Rejected(_) => {}
                Admission::Admitted => {
                    self.forget_candidate(*id);
                    self.admit_group(now, *id, heat);
                }
                Admission::Ineligible => self.forget_candidate(*id),
            }
        }
    }

    /// How often an object was read lately, without counting this as a read.
    pub(crate) fn heat_of(&self, id: ObjectId) -> u8 {
        let hash = self.catalog.object(id).hash;
        self.promotions
            .sketch
            .as_ref()
            .map_or(0, |sketch| sketch.estimate(hash))
    }

    /// Gates 3 to 11 of the specification, in order.
    pub(crate) fn admit(
        &mut self,
        now: Instant,
        id: ObjectId,
        heat: u8,
        place: ChainPlace,
    ) -> Admission {
        let sources = self.sources(id);
        let roomy = sources
            .iter()
            .find(|(_, node)| self.has_room_for_promotion(*node))
            .copied();
        if let (None, Some((_, node))) = (roomy, sources.first()) {
            self.metrics.promotion.rejected_watermark += 1;
            self.make_way(now, *node);
            return Admission::Rejected(Reason::Watermark);
        }
        let object = self.catalog.object(id);
        if object.is(Aside::Promotion) {
            self.promotion_reheated(id, heat);
            return Admission::Ineligible;
        }
        let in_memory = self
            .catalog
            .replicas(id)
            .any(|(_, replica)| self.segments.at(replica.segment).kind() == SegmentKind::Memory);
        let Some((source, node)) = roomy else {
            return Admission::Ineligible;
        };
        if object.is(Aside::Open) || in_memory {
            return Admission::Ineligible;
        }
        if self.promotions.tickets.len() >= self.config.promotion.queue_limit {
            self.metrics.promotion.rejected_cap += 1;
            return Admission::Rejected(Reason::QueueFull);
        }
        self.begin_promotion(now, id, (source, node), heat, place);
        self.deliver(now, node);
        Admission::Admitted
    }

    /// The SSD copies of an object whose owners have memory to promote to, least busy first.
    pub(crate) fn sources(&self, id: ObjectId) -> Vec<(ReplicaId, NodeId)> {
        let mut sources: Vec<(usize, ReplicaId, NodeId)> = Vec::new();
        for (replica, facts) in self.catalog.replicas(id) {
            let segment = self.segments.at(facts.segment);
            let fits = |index: SegmentIndex| {
                let memory = self.segments.at(index).memory();
                memory.is_some_and(|memory| {
                    memory.extents.books().capacity >= self.catalog.object(id).bytes
                })
            };
            if segment.kind() == SegmentKind::Disk
                && self.segments.of_node(segment.node).into_iter().any(fits)
            {
                let holder = self.promotions.holders.get(&segment.node);
                let load = holder.map_or(0, |holder| holder.active + holder.queue.len());
                sources.push((load, replica, segment.node));
            }
        }
        sources.sort_unstable();
        sources
            .into_iter()
            .map(|(_, replica, node)| (replica, node))
            .collect()
    }

    /// Whether a node's memory, with what is promised already, is below the watermark of admission.
    fn has_room_for_promotion(&self, node: NodeId) -> bool {
        let (mut staying, mut capacity) = (0, 0);
        for index in self.segments.of_node(node) {
            let segment = self.segments.at(index);
            if segment.kind() == SegmentKind::Memory {
                staying += segment.staying();
                capacity += segment.capacity();
            }
        }
        let coming = self
            .promotions
            .holders
            .get(&node)
            .map_or(0, |holder| holder.coming);
        ((staying + coming) as f64) < capacity as f64 * self.config.promotion.watermark
    }

    /// Something hot was refused for want of room: what is colder goes, down to the low watermark.
    fn make_way(&mut self, now: Instant, node: NodeId) {
        for index in self.segments.of_node(node) {
            let segment = self.segments.at(index);
            let low = self.marks(index).1;
            if segment.kind() == SegmentKind::Memory && segment.staying() > low {
                let mut budget = self.config.eviction.step;
                self.evict(
                    now,
                    index,
                    segment.staying() - low,
                    Pass::Plain,
                    &mut budget,
                );
            }
        }
    }

    fn begin_promotion(
        &mut self,
        now: Instant,
        id: ObjectId,
        (source, node): (ReplicaId, NodeId),
        heat: u8,
        place: ChainPlace,
    ) {
        let ticket = self.ticket();
        let entry = self.entry(id);
        let object = self.catalog.object_mut(id);
        object.mark(Aside::Promotion);
        let (bytes, tenant) = (object.bytes, object.tenant);
        self.hold(source);
        let stage = Stage::Queued;
        let tried = None;
        let promoting = Promoting {
            object: id,
            entry,
            bytes,
            tenant,
            source,
            node,
            heat,
            place,
            stage,
            tried,
        };
        self.promotions.tickets.insert(ticket, promoting);
        self.promotions.of.insert(id, ticket);
        let holder = self.promotions.holder(node);
        holder.queue.insert((Reverse(heat), ticket));
        holder.coming += bytes;
        self.due
            .set(Due::Promotion(ticket), now + self.config.promotion.window);
        self.metrics.promotion.admitted += 1;
        self.metrics.promotion.in_flight += 1;
    }

    /// A queued promotion was earned again: it moves up.
    fn promotion_reheated(&mut self, id: ObjectId, heat: u8) {
        let ticket = self.promotions.of[&id];
        let promoting = self
            .promotions
            .tickets
            .get_mut(&ticket)
            .expect("both tables agree");
        let before = std::mem::replace(&mut promoting.heat, heat);
        let (node, stage) = (promoting.node, promoting.stage);
        if stage == Stage::Queued {
            let queue = &mut self.promotions.holder(node).queue;
            queue.remove(&(Reverse(before), ticket));
            queue.insert((Reverse(heat), ticket));
        }
    }

    /// Sends a node as much as it may work on; the rest stays queued.
    fn deliver(&mut self, now: Instant, node: NodeId) {
        let mut tasks = Vec::new();
        loop {
            let most = self.config.promotion.batch_max;
            let holder = self.promotions.holder(node);
            let Some((heat, ticket)) = holder
                .queue
                .first()
                .copied()
                .filter(|_| holder.active < most)
            else {
                break;
            };
            let bytes = self.promotions.tickets[&ticket].bytes;
            if let Err(at) = self.promotions.budget.take(now, bytes) {
                self.due.set(Due::Promotions, at);
                break;
            }
            let holder = self.promotions.holder(node);
            holder.queue.remove(&(heat, ticket));
            holder.active += 1;
            let promoting = self
                .promotions
                .tickets
                .get_mut(&ticket)
                .expect("queues name open tickets");
            promoting.stage = Stage::Sent;
            let checksum = self.catalog.object(promoting.object).checksum;
            tasks.push(PromoteTask {
                ticket,
                entry: promoting.entry.clone(),
                bytes,
                checksum,
            });
        }
        if !tasks.is_empty() {
            self.outbox.order(node, Order::Promote(tasks));
        }
    }

    pub(crate) fn deliver_all(&mut self, now: Instant) {
        let waiting = self
            .promotions
            .holders
            .iter()
            .filter(|(_, holder)| !holder.queue.is_empty());
        for node in waiting.map(|(node, _)| *node).collect::<Vec<_>>() {
            self.deliver(now, node);
        }
    }

    /// The promotion of an object is a retry of so many.
    pub(crate) fn note_tries(&mut self, id: ObjectId, tried: Tried) {
        if let Some(ticket) = self.promotions.of.get(&id)
            && let Some(promoting) = self.promotions.tickets.get_mut(ticket)
        {
            promoting.tried = Some(tried);
        }
    }

    /// The node is about to read: it needs an extent, if the promotion still stands.
    pub(crate) fn stage(&mut self, now: Instant, node: NodeId, ticket: TicketId, bytes: u64) {
        let Some(promoting) = self
            .promotions
            .tickets
            .get(&ticket)
            .filter(|promoting| promoting.node == node)
        else {
            // Reaped, cancelled, or another node's: whoever asks is to forget it.
            return self.outbox.order(node, Order::Cancel { ticket });
        };
        if bytes != promoting.bytes {
            return self.refuse(now, ticket, Exit::Failed);
        }
        if promoting.stage != Stage::Sent {
            return;
        }
        let (object, tenant, place, tried) = (
            promoting.object,
            promoting.tenant,
            promoting.place,
            promoting.tried,
        );
        let charge = self.charge_of(bytes);
        if !self.fit_quota(now, tenant, Ledger::Memory, charge) {
            return self.refuse(now, ticket, Exit::Failed);
        }
        let Some(staged) = self.allocate_near(now, node, bytes) else {
            self.refuse(now, ticket, Exit::Failed);
            return self.remember_again(now, object, place, tried);
        };
        let extent = self.extent_of(staged);
        self.tenants.charge(tenant, Ledger::Memory, extent.bytes);
        let promoting = self
            .promotions
            .tickets
            .get_mut(&ticket)
            .expect("found above");
        promoting.stage = Stage::Staged(staged);
        self.promotions.holder(node).coming -= bytes;
        self.due
            .set(Due::Promotion(ticket), now + self.config.promotion.window);
        self.outbox.order(node, Order::Staged { ticket, extent });
    }

    /// Room on one of the node's memory segments, the emptiest first.
    fn allocate_near(&mut self, now: Instant, node: NodeId, bytes: u64) -> Option<ReplicaId> {
        let mut memory = self.segments.of_node(node);
        memory.retain(|index| self.segments.at(*index).kind() == SegmentKind::Memory);
        memory.sort_by_key(|index| self.segments.at(*index).used());
        let found = memory
            .iter()
            .find_map(|index| self.segments.allocate(&mut self.catalog, *index, bytes));
        if found.is_none() {
            self.make_way(now, node);
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
        let Some(promoting) = self
            .promotions
            .tickets
            .get(&ticket)
            .filter(|promoting| promoting.node == node)
        else {
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
            place,
            source,
            ..
        } = self.end_promotion(now, ticket, Exit::Completed);
        let record = self.catalog.replica(source);
        // What a policy says of the middle of a segment is the position of its head.
        let standing = self
            .segments
            .at(record.segment)
            .policy
            .standing(now, Slot(record.slot));
        let position = |standing: evict::Standing| {
            if place.parent.is_some() {
                place.position
            } else {
                standing.position
            }
        };
        let standing = standing.map(|standing| evict::Standing {
            position: position(standing),
            ..standing
        });
        self.metrics.promotion.completed_bytes += bytes;
        self.attach(object, staged, Ledger::Memory);
        let replica = *self.catalog.replica(staged);
        let hash = self.catalog.object(object).hash;
        self.introduce(
            now,
            &mut [Fresh {
                segment: replica.segment,
                slot: replica.slot,
                hash,
                bytes,
                place,
                standing,
            }],
        );
        if self.config.promotion.grace > std::time::Duration::ZERO {
            self.set_aside(staged, Standing::Until(now + self.config.promotion.grace));
        }
        self.relieve(now, replica.segment);
        self.deliver(now, node);
    }

    /// The node could not do it. Saying so again changes nothing.
    pub(crate) fn promotion_failed(
        &mut self,
        now: Instant,
        node: NodeId,
        ticket: TicketId,
        failure: PromotionFailure,
    ) {
        let Some(promoting) = self
            .promotions
            .tickets
            .get(&ticket)
            .filter(|promoting| promoting.node == node)
        else {
            return;
        };
        let (object, source, place, tried) = (
            promoting.object,
            promoting.source,
            promoting.place,
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
                self.discard(now, source, Why::Removed);
                self.erase_if_empty(now, object);
            }
            PromotionFailure::Missing => {
                self.metrics.records_lost += 1;
                self.discard(now, source, Why::Removed);
                self.erase_if_empty(now, object);
            }
            PromotionFailure::Busy | PromotionFailure::Stale => {
                self.remember_again(now, object, place, tried)
            }
            PromotionFailure::Size | PromotionFailure::Device => {}
        }
        self.deliver(now, node);
        self.serve(now);
    }

    pub(crate) fn promotion_expired(&mut self, now: Instant, ticket: TicketId) {
        self.refuse(now, ticket, Exit::Expired);
        self.serve(now);
    }

    /// The one way out: the slot, the source, the staged room and the quota are given back once.
    fn end_promotion(&mut self, now: Instant, ticket: TicketId, exit: Exit) -> Promoting {
        let promoting = self
            .promotions
            .tickets
            .remove(&ticket)
            .expect("only open tickets end");
        self.promotions.of.remove(&promoting.object);
        self.due.cancel(Due::Promotion(ticket));
        self.catalog
            .object_mut(promoting.object)
            .unmark(Aside::Promotion);
        let holder = self.promotions.holder(promoting.node);
        match promoting.stage {
            Stage::Queued => {
                holder.queue.remove(&(Reverse(promoting.heat), ticket));
                holder.coming -= promoting.bytes;
            }
            Stage::Sent => {
                holder.active -= 1;
                holder.coming -= promoting.bytes;
            }
            Stage::Staged(staged) => {
                holder.active -= 1;
                if exit != Exit::Completed {
                    self.free(staged, promoting.tenant, promoting.bytes);
                }
            }
        }
        let metrics = &mut self.metrics.promotion;
        metrics.in_flight -= 1;
        match exit {
            Exit::Completed => metrics.completed += 1,
            Exit::Failed => metrics.failed += 1,
            Exit::Cancelled => metrics.cancelled += 1,
            Exit::Expired => metrics.expired += 1,
        }
        let ended = metrics.completed + metrics.failed + metrics.cancelled + metrics.expired;
        assert_eq!(
            metrics.admitted,
            ended + metrics.in_flight,
            "every admission has one end"
        );
        assert_eq!(
            metrics.in_flight,
            self.promotions.tickets.len() as u64,
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

    /// The object is removed or replaced: nothing of it is to be promoted.
    pub(crate) fn cancel_promotion(&mut self, now: Instant, id: ObjectId) {
        self.forget_candidate(id);
        if self.catalog.object(id).is(Aside::Promotion) {
            self.refuse(now, self.promotions.of[&id], Exit::Cancelled);
        }
    }

    /// The record is gone: who was to read it cannot.
    pub(crate) fn cancel_promotions_from(&mut self, now: Instant, source: ReplicaId) {
        if self.promotions_from(source) > 0
            && let Some(object) = self.catalog.replica(source).object()
        {
            self.cancel_promotion(now, object);
        }
    }

    /// A segment is going: promotions from or to it are cancelled.
    pub(crate) fn lose_promotions(&mut self, now: Instant, index: SegmentIndex) {
        let on = |id: ReplicaId| self.catalog.replica(id).segment == index;
        let hit = |promoting: &Promoting| {
            on(promoting.source) || matches!(promoting.stage, Stage::Staged(staged) if on(staged))
        };
        let mut tickets: Vec<TicketId> = self
            .promotions
            .tickets
            .iter()
            .filter(|(_, promoting)| hit(promoting))
            .map(|(id, _)| *id)
            .collect();
        tickets.sort_unstable();
        for ticket in tickets {
            self.tell_to_forget(ticket);
            self.end_promotion(now, ticket, Exit::Cancelled);
        }
        let node = self.segments.at(index).node;
        match self.segments.at(index).kind() {
            SegmentKind::Disk => drop(self.promotions.holders.remove(&node)),
            SegmentKind::Memory => self.deliver(now, node),
        }
    }

    pub(crate) fn promotion_is_staged(&self, id: ObjectId) -> bool {
        self.staged_of(id).is_some()
    }

    pub(crate) fn staged_of(&self, id: ObjectId) -> Option<ReplicaId> {
        let ticket = self.promotions.of.get(&id)?;
        match self.promotions.tickets[ticket].stage {
            Stage::Staged(staged) => Some(staged),
            Stage::Queued | Stage::Sent => None,
        }
    }

    /// Promotions that hold this replica.
    pub(crate) fn promotions_from(&self, id: ReplicaId) -> usize {
        let object = self.catalog.replica(id).object();
        let ticket = object.and_then(|object| self.promotions.of.get(&object));
        usize::from(ticket.is_some_and(|ticket| self.promotions.tickets[ticket].source == id))
    }
}
