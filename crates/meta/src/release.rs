//! The ends of replicas and objects, each of which happens once.

use slackwater_base::{Instant, Planted, planted};
use slackwater_wire::ReplicaState;

use crate::catalog::{Excluded, Mark, ObjectId, PinKind, Replica, ReplicaId, TenantIndex};
use crate::evict::Slot;
use crate::lease::GroupKey;
use crate::master::{Due, Master, Orphan};
use crate::prospect;
use crate::segment::Medium;
use crate::tenant::Ledger;

/// Why a published replica is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The policy named it, or its group was evicted.
    Evicted,
    /// Removed, replaced, or its owner is lost.
    Removed,
}

impl Master {
    /// Detaches a published replica from its object. Its bytes are free once it is not referenced and, in memory, once
    /// the node has fenced it.
    pub(crate) fn discard(&mut self, now: Instant, id: ReplicaId, reason: Reason) {
        self.include(id);
        let replica = *self.catalog.replica(id);
        assert_eq!(
            replica.state,
            ReplicaState::Complete,
            "only published replicas are discarded"
        );
        let policy = &mut self.segments.at_mut(replica.segment).policy;
        match reason {
            Reason::Evicted => policy.evicted(now, Slot(replica.slot)),
            Reason::Removed => policy.remove(Slot(replica.slot)),
        }
        prospect::end(&mut self.catalog, &mut self.segments, now, id, reason);
        self.tenants.untouch(id);
        self.forget_extra(id);
        let object = self.catalog.detach(id);
        self.tell_removed(object, id);
        self.expect_forgotten(id, object);
        let (tenant, record) = (self.catalog.object(object).tenant, self.record_of(object));
        self.catalog.replica_mut(id).state = ReplicaState::Removed;
        if replica.refs > 0 {
            self.unhold_group(now, object);
            self.orphans.insert(id, Orphan { tenant, record });
        } else {
            self.free(id, tenant, record);
        }
    }

    /// Frees the room of a replica that has neither an object nor references: `record` bytes where it is on SSD.
    pub(crate) fn free(&mut self, id: ReplicaId, tenant: TenantIndex, record: u64) {
        let replica = self.catalog.take_replica(id);
        self.wake_drains(id);
        let segment = self.segments.at_mut(replica.segment);
        segment.unnumber(replica.slot);
        if let Medium::Disk(disk) = &mut segment.medium {
            disk.live -= record;
            self.tenants.refund(tenant, Ledger::Disk, record);
        } else {
            let extent = segment.retire(replica.piece);
            self.outbox.fence(segment.node, extent);
            self.tenants.refund(tenant, Ledger::Memory, extent.bytes);
        }
        self.tenants.forget_if_idle(tenant);
    }

    /// Adds a reference: the replica must stay.
    pub(crate) fn hold(&mut self, id: ReplicaId) {
        let replica = self.catalog.replica_mut(id);
        let before = replica.is_needed();
        replica.refs += 1;
        if !before {
            self.hold_group(id);
        }
    }

    /// Removes a reference.
    pub(crate) fn unhold(&mut self, now: Instant, id: ReplicaId) {
        let replica = self.catalog.replica_mut(id);
        let before = replica.is_needed();
        replica.refs -= 1;
        let Replica {
            refs,
            segment,
            excluded,
            ..
        } = *replica;
        let (object, let_go) = (replica.object(), before && !replica.is_needed());
        if refs == 0
            && let Some(orphan) = self.orphans.remove(&id)
        {
            self.free(id, orphan.tenant, orphan.record);
            return;
        }
        // With a deadline it stays set aside until then: a lease, or the grace of a promoted copy, ends later than the
        // read.
        if refs == 0 && excluded == Excluded::Held && self.due.at(&Due::Include(id)).is_none() {
            self.include(id);
            self.unsettled.press(segment);
        }
        if let (true, Some(object)) = (let_go, object) {
            self.unhold_group(now, object);
        }
    }

    /// Holds the group of a replica that is referenced now.
    fn hold_group(&mut self, id: ReplicaId) {
        let replica = self.catalog.replica(id);
        if let Some(object) = replica.object().filter(|_| replica.is_needed()) {
            let record = self.catalog.object(object);
            if record.is(Mark::Group) {
                self.groups.hold(record.tenant, object);
            }
        }
    }

    /// A replica of a group is no longer referenced. If it was the last one, the replicas that were set aside for it
    /// may be evicted again.
    pub(crate) fn unhold_group(&mut self, now: Instant, object: ObjectId) {
        let record = self.catalog.object(object);
        if !record.is(Mark::Group) || planted(Planted::MemberHoldsGroup) {
            return;
        }
        if let Some(group) = self.groups.unhold(record.tenant, object) {
            self.wake(now, group);
        }
    }

    /// Lets the policies name the members of a group again while nothing of it is held, a limited number in each step.
    pub(crate) fn wake(&mut self, now: Instant, group: GroupKey) {
        let step = self.config.eviction.step;
        let released = self.groups.released(group, step);
        if released.len() == step {
            self.due.set(Due::Wake(group), now);
        }
        for id in released {
            self.include(id);
            self.unsettled.press(self.catalog.replica(id).segment);
        }
    }

    /// Lets the policy name a replica again.
    pub(crate) fn include(&mut self, id: ReplicaId) {
        let replica = self.catalog.replica_mut(id);
        let before = replica.is_needed();
        let excluded = std::mem::replace(&mut replica.excluded, Excluded::No);
        let (slot, piece, index) = (replica.slot, replica.piece, replica.segment);
        let segment = self.segments.at_mut(index);
        match excluded {
            Excluded::No => return,
            Excluded::Held => {
                let object = self
                    .catalog
                    .replica(id)
                    .object()
                    .expect("published replicas have an object");
                let record = self.catalog.object(object);
                if record.is(Mark::Group) {
                    self.groups.take_back(record.tenant, object, id);
                }
            }
            Excluded::Soft => segment.soft.cancel(id),
            Excluded::Leaving => {
                segment.leaving -= segment.extent(piece).bytes;
                if !before {
                    self.hold_group(id);
                }
            }
        }
        self.due.cancel(Due::Include(id));
        self.segments.at_mut(index).policy.include(Slot(slot));
    }

    /// The replica is freed when the offload that holds it is durable: the policy and its group do not wait for it.
    pub(crate) fn mark_leaving(&mut self, now: Instant, id: ReplicaId) -> u64 {
        self.include(id);
        let replica = self.catalog.replica_mut(id);
        let before = replica.is_needed();
        replica.excluded = Excluded::Leaving;
        let Replica {
            segment,
            slot,
            piece,
            ..
        } = *replica;
        let (object, let_go) = (replica.object(), before && !replica.is_needed());
        let segment = self.segments.at_mut(segment);
        let bytes = segment.extent(piece).bytes;
        segment.policy.mark_leaving(Slot(slot));
        segment.leaving += bytes;
        if let (true, Some(object)) = (let_go, object) {
            self.unhold_group(now, object);
        }
        bytes
    }

    /// Removes an object that has neither replicas nor a put in flight. Pin, group and candidacy end with the last
    /// replica, also when a put in flight keeps the object: that put has its own.
    pub(crate) fn erase_if_empty(&mut self, now: Instant, id: ObjectId) {
        let object = self.catalog.object_mut(id);
        if object.has_replicas() {
            return;
        }
        let tenant = object.tenant;
        let pin = std::mem::replace(&mut object.pin, PinKind::None);
        object.unmark(Mark::Group);
        // They hold the replica that they read, which may have left the object before: its number is another's soon.
        self.cancel_offloads(id, |_| true, None);
        self.cancel_promotion(now, id);
        if let Some(group) = self.groups.remove(tenant, id, pin) {
            self.wake(now, group);
        }
        self.soft_until.remove(&id);
        self.wishes.forget(id);
        if self.catalog.object(id).is(Mark::Open) {
            return;
        }
        self.catalog.take(id);
        self.tenants.at_mut(tenant).objects -= 1;
        self.tenants.forget_if_idle(tenant);
    }

    /// Ends a put in flight without a value: its room is free after the fence.
    pub(crate) fn close_put(&mut self, tenant: TenantIndex, id: ObjectId) {
        let put = self.puts.take(id);
        self.due.cancel(Due::Put(id));
        self.catalog.object_mut(id).unmark(Mark::Open);
        for replica in put.replicas {
            if planted(Planted::EndedPutKeepsQuota) {
                self.tenants.charge(tenant, Ledger::Memory, put.bytes);
            }
            self.free(replica, tenant, put.bytes);
        }
    }

    /// Promotion of the object is not tried again.
    pub(crate) fn forget_candidate(&mut self, id: ObjectId) {
        if self.catalog.object(id).is(Mark::Candidate) {
            self.catalog.object_mut(id).unmark(Mark::Candidate);
            self.due.cancel(Due::Candidate(id));
            self.metrics.promotion.candidates = self.promotions.forget_candidate(id) as u64;
        }
    }
}
