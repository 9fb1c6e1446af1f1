//! Where units come from and where they may go.

use slackwater_base::{Planted, planted};
use slackwater_wire::{Draining, ErrorCode, Presence, ReplicaState, SegmentId, SegmentKind};

use super::Unit;
use crate::catalog::{ObjectId, ReplicaId, SegmentIndex};
use crate::master::Master;

impl Master {
    /// Whether a segment's node lost its link a moment ago.
    pub(super) fn is_away(&self, index: SegmentIndex) -> bool {
        self.segments.at(index).presence == Presence::Away
    }

    /// Whether a unit has a place to go to when a node is back.
    pub(super) fn awaits_target(&self, unit: &Unit) -> bool {
        let mut all = self.segments.iter();
        all.any(|(index, it)| {
            let fits = unit.to.is_empty() || unit.to.contains(&it.id);
            let memory = it.kind() == SegmentKind::Memory;
            fits && memory && it.draining == Draining::No && self.is_away(index)
        })
    }

    /// The replica that a drain is to empty its segment of; none when it is gone, or stays because the segment is drained no
    /// more.
    pub(super) fn leaving(&self, unit: &Unit) -> Option<ReplicaId> {
        let index = self.segments.find(unit.from?)?;
        let drained = self.segments.at(index).draining == Draining::Running;
        let mut replicas = self.catalog.replicas(unit.object);
        let held = replicas
            .find(|(_, it)| it.segment == index && it.state == ReplicaState::Complete)
            .map(|(id, _)| id);
        held.filter(|_| drained)
    }

    /// Whether a replica of an object is at a segment, or on its way there.
    pub(crate) fn is_bound_for(&self, object: ObjectId, index: SegmentIndex) -> bool {
        let at = |id: ReplicaId| self.catalog.replica(id).segment == index;
        let copies = self.jobs.copies.values();
        let mut copies = copies.filter(|copying| copying.unit.object == object);
        let mut replicas = self.catalog.replicas(object);
        replicas.any(|(_, it)| it.segment == index)
            || copies.any(|copying| at(copying.staged))
            || self.promotions.staged_of(object).is_some_and(at)
    }

    /// The replica that a unit reads: the one that is to leave, or the best that there is.
    pub(super) fn source_of(&self, unit: &Unit) -> Option<ReplicaId> {
        let readable = self.catalog.replicas(unit.object).filter(|(_, replica)| {
            let segment = self.segments.at(replica.segment);
            let wanted = unit.from.is_none_or(|from| from == segment.id);
            wanted && segment.presence == Presence::Here && replica.state == ReplicaState::Complete
        });
        let kind = |replica: &crate::catalog::Replica| self.segments.at(replica.segment).kind();
        let best = readable.min_by_key(|(_, replica)| kind(replica) == SegmentKind::Disk);
        best.map(|(id, _)| id)
    }

    /// Whether an object can be read without the segment that it is to leave, and without others that are drained.
    pub(super) fn is_elsewhere(&self, unit: &Unit) -> bool {
        let mut replicas = self.catalog.replicas(unit.object);
        replicas.any(|(_, it)| {
            let segment = self.segments.at(it.segment);
            let other = unit.from != Some(segment.id) && segment.takes_new();
            let other = other || planted(Planted::DrainedIsElsewhere);
            other && it.state == ReplicaState::Complete
        })
    }

    /// The memory that a unit goes to: of those that it may go to and where the object is not, the one with most room.
    pub(super) fn target_for(&self, unit: &Unit) -> Result<SegmentIndex, ErrorCode> {
        let bytes = self.charge_of(self.catalog.object(unit.object).bytes);
        let fits = |id: SegmentId| unit.to.is_empty() || unit.to.contains(&id);
        let all = self.segments.iter().filter(|(_, it)| fits(it.id));
        let memory = all.filter(|(_, it)| it.kind() == SegmentKind::Memory);
        let (mut known, mut taking, mut best) = (false, false, None);
        for (index, segment) in memory {
            known = true;
            if !segment.takes_new() {
                continue;
            }
            taking = true;
            if self.is_bound_for(unit.object, index) {
                if !unit.drains {
                    return Err(ErrorCode::ReplicaAlreadyExists);
                }
                continue;
            }
            let free = segment.memory().map_or(0, |it| it.extents.books().free);
            // Beyond the watermark something else would be evicted for it.
            let (high, _) = self.marks(index);
            let fits = free >= bytes && segment.used() + bytes <= high;
            if fits && best.is_none_or(|(most, _)| free > most) {
                best = Some((free, index));
            }
        }
        match (best, known, taking) {
            (Some((_, index)), ..) => Ok(index),
            (None, false, _) => Err(ErrorCode::SegmentNotFound),
            (None, true, false) => Err(ErrorCode::UnavailableInCurrentStatus),
            (None, true, true) => Err(ErrorCode::NoAvailableHandle),
        }
    }
}
