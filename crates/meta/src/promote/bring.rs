//! Promotion to the reader's node: a value whose record is on another host is brought into memory beside its reader, where a
//! node has room for it. It is a copy as those of jobs are, of which no byte passes the master; where it cannot begin or
//! fails, the node that has the record promotes as if nothing were known of the reader.

use std::sync::Arc;

use slackwater_base::Instant;
use slackwater_wire::{ErrorCode, Presence, ReplicaState, SegmentKind};

use super::admit::PromotionRequest;
use crate::catalog::{Mark, ObjectId, ReplicaId, SegmentIndex};
use crate::jobs::{Unit, Whose};
use crate::master::Master;

/// Values that are brought at once. The rest is promoted where its record is.
const ACTIVE_MAX: usize = 16;

impl Master {
    /// Whether an object is on its way to its reader's host.
    pub(super) fn is_brought(&self, id: ObjectId) -> bool {
        self.jobs.carries(id, Whose::Reader)
    }

    /// Promotions under way, those to readers' hosts among them.
    pub(super) fn under_way(&self) -> usize {
        self.promotions.tickets.len() + self.jobs.copies_of(Whose::Reader)
    }

    pub(super) fn is_queue_full(&self) -> bool {
        self.under_way() >= self.config.promotion.queue_limit
    }

    /// The record of an object that is on other hosts than its reader, and memory of the reader's host that has room for it.
    pub(super) fn place_beside(
        &self,
        now: Instant,
        id: ObjectId,
        reader: Option<&str>,
    ) -> Option<(ReplicaId, SegmentIndex)> {
        let reader = reader.filter(|host| !host.is_empty())?;
        if !self.catalog.is_object(id) {
            return None;
        }
        let object = self.catalog.object(id);
        if object.is(Mark::Open) || object.is(Mark::Promotion) {
            return None;
        }
        // What the put preferred comes first, also where that is beside the record.
        let rank = |index: SegmentIndex| self.wishes.rank(id, &self.segments.at(index).name);
        let (mut record, mut preferred) = (None, usize::MAX);
        for (replica, facts) in self.catalog.replicas(id) {
            let segment = self.segments.at(facts.segment);
            let is_beside = *segment.host == *reader;
            if segment.kind() == SegmentKind::Memory || is_beside {
                return None;
            }
            if segment.presence == Presence::Here && facts.state == ReplicaState::Complete {
                record.get_or_insert(replica);
                let above = self.segments.of_node(segment.node);
                preferred = above.into_iter().map(rank).fold(preferred, usize::min);
            }
        }
        let charge = self.charge_of(object.bytes);
        let places = self.segments.iter().filter(|(_, segment)| {
            *segment.host == *reader
                && segment.kind() == SegmentKind::Memory
                && segment.takes_new()
                && segment
                    .memory()
                    .is_some_and(|it| it.extents.books().free >= charge)
                && !self.replicating.rests(now, segment.node)
                && self.has_room(segment.node)
        });
        let (target, _) = places.min_by_key(|(index, segment)| (rank(*index), segment.used()))?;
        if preferred < rank(target) {
            return None;
        }
        let has_slot = self.jobs.copies_of(Whose::Reader) < ACTIVE_MAX && !self.is_queue_full();
        (has_slot && !self.jobs.is_carried(id)).then_some((record?, target))
    }

    /// Has the target's node bring an object; whether it has begun.
    pub(super) fn begin_bringing(
        &mut self,
        now: Instant,
        request: PromotionRequest<'_>,
        source: ReplicaId,
        target: SegmentIndex,
    ) -> bool {
        let id = request.object;
        let object = self.catalog.object(id);
        let (version, key) = (object.version, object.key.clone());
        if self.promotions.budget.take(now, object.bytes).is_err() {
            return false;
        }
        let to = Arc::from([self.segments.at(target).id]);
        let mut unit = Unit::copy_of(id, version, key, to);
        unit.chain = request.chain;
        let begun = self.begin_copy(now, Whose::Reader, unit, source, target);
        if begun.is_ok() {
            self.decided_to_promote(now, request, source);
            self.metrics.promotion.admitted += 1;
            self.metrics.promotion.in_flight += 1;
        }
        begun.is_ok()
    }

    /// A value was brought to its reader's host: its replica there, unless it was removed or replaced meanwhile.
    pub(crate) fn brought(&mut self, now: Instant, unit: &Unit, made: Option<ReplicaId>) {
        let metrics = &mut self.metrics.promotion;
        metrics.in_flight -= 1;
        let Some(replica) = made else {
            metrics.cancelled += 1;
            return;
        };
        metrics.completed += 1;
        metrics.completed_bytes += self.catalog.object(unit.object).bytes;
        metrics.to_reader += 1;
        self.grant_grace(now, replica);
    }

    /// A value could not be brought. The node that has it is asked to promote it, after a pause.
    pub(crate) fn not_brought(
        &mut self,
        now: Instant,
        unit: &Unit,
        code: ErrorCode,
        is_current: bool,
    ) {
        let metrics = &mut self.metrics.promotion;
        metrics.in_flight -= 1;
        let is_lost = code == ErrorCode::SegmentNotFound;
        if is_lost || !is_current {
            metrics.cancelled += 1;
        } else {
            metrics.failed += 1;
            self.rest_target(now, unit);
        }
        if is_current {
            self.remember(now, unit.object, unit.chain);
        }
    }
}
