//! Removal: acknowledged when no crash can bring the value back.

use slackwater_base::Instant;
use slackwater_wire::{ClientId, ErrorCode, Remove, ReplicaClear, Reply, SegmentKind, Version};

use crate::catalog::{Mark, ObjectId, ReplicaId, SegmentIndex};
use crate::master::{Caller, Master};
use crate::outbox::{Answer, Waiter};
use crate::release::Reason;

/// How a removal treats active leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leases {
    /// The object stays.
    Respected,
    /// The object is removed.
    Overridden,
}

impl Leases {
    pub(crate) fn of(force: bool) -> Self {
        if force {
            Self::Overridden
        } else {
            Self::Respected
        }
    }
}

impl Master {
    pub(crate) fn remove(&mut self, now: Instant, caller: &Caller, remove: &Remove) {
        self.metrics.removes += 1;
        if let Err(code) = self.each_limits(remove.keys.len()) {
            return self
                .outbox
                .reply(caller.client, caller.operation, Reply::Failed(code));
        }
        let ack = self.acks.open(
            caller.client,
            caller.operation,
            Answer::Each(vec![Ok(()); remove.keys.len()]),
        );
        for (at, key) in remove.keys.iter().enumerate() {
            let waiter = Waiter { ack, at: at as u32 };
            let hash = self
                .tenants
                .hash_of(self.tenants.effective(&remove.tenant), key);
            let found = self
                .tenants
                .find(&remove.tenant)
                .and_then(|tenant| self.catalog.find(tenant, key, hash));
            let result = match found {
                Some(object) => self.remove_one(now, object, Leases::of(remove.force), waiter),
                None => {
                    let tenant = self.tenants.effective(&remove.tenant).clone();
                    let newest = self.numbers.newest_version();
                    self.end_spared(&tenant, key, hash, newest);
                    self.await_drops(&tenant, key, hash, waiter);
                    self.owed.key(&tenant, hash, newest);
                    Err(ErrorCode::ObjectNotFound)
                }
            };
            if let Err(code) = result {
                self.acks.fail(waiter, code);
            }
        }
        self.acks.done(ack, &mut self.outbox);
        self.unsettled.room();
    }

    pub(crate) fn remove_one(
        &mut self,
        now: Instant,
        id: ObjectId,
        leases: Leases,
        waiter: Waiter,
    ) -> Result<(), ErrorCode> {
        self.may_remove(now, id, leases)?;
        self.cancel_promotion(now, id);
        self.withdraw(now, id, self.numbers.newest_version(), Some(waiter));
        self.metrics.objects_removed += 1;
        self.erase_if_empty(now, id);
        Ok(())
    }

    fn may_remove(&self, now: Instant, id: ObjectId, leases: Leases) -> Result<(), ErrorCode> {
        let object = self.catalog.object(id);
        if object.is(Mark::Open) || self.promotions.staged_of(id).is_some() {
            return Err(ErrorCode::ReplicaIsNotReady);
        }
        let leased = self.lease_end(id) > now
            || self
                .catalog
                .replicas(id)
                .any(|(replica, _)| self.is_guarded(replica));
        if leases == Leases::Respected && leased {
            Err(ErrorCode::ObjectHasLease)
        } else {
            Ok(())
        }
    }

    /// Whether readers hold a replica: it has more references than offloads and promotions account for.
    fn is_guarded(&self, id: ReplicaId) -> bool {
        let replica = self.catalog.replica(id);
        let promotions = self.promotions.holding(replica.object(), id);
        replica.refs > 0 && replica.refs as usize > self.offloads_from(id) + promotions
    }

    /// Removes every replica of a value that is replaced or removed, in memory and on SSD, finished or under way. The
    /// waiter's answer waits until no crash can bring back that value, nor any version of the key up to `up_to`.
    pub(crate) fn withdraw(
        &mut self,
        now: Instant,
        id: ObjectId,
        up_to: Version,
        waiter: Option<Waiter>,
    ) {
        self.cancel_offloads(id, |_| true, waiter);
        let replicas: Vec<(ReplicaId, SegmentIndex)> = self
            .catalog
            .replicas(id)
            .map(|(replica, facts)| (replica, facts.segment))
            .collect();
        for (replica, segment) in replicas {
            self.withdraw_replica(now, id, replica, segment, waiter);
        }
        self.await_end(id, up_to, waiter);
    }

    /// No replica is left of any version up to `up_to`: nodes are owed that.
    fn await_end(&mut self, id: ObjectId, up_to: Version, waiter: Option<Waiter>) {
        let object = self.catalog.object(id);
        let (key, hash) = (object.key.clone(), object.hash);
        let tenant = self.tenants.at(object.tenant).tenant.clone();
        self.end_spared(&tenant, &key, hash, up_to);
        if let Some(waiter) = waiter {
            self.await_drops(&tenant, &key, hash, waiter);
        }
        if self.owed.is_needed() {
            self.owed.key(&tenant, hash, up_to);
        }
    }

    pub(crate) fn withdraw_replica(
        &mut self,
        now: Instant,
        id: ObjectId,
        replica: ReplicaId,
        segment: SegmentIndex,
        waiter: Option<Waiter>,
    ) {
        if self.segments.at(segment).kind() == SegmentKind::Disk {
            let (hash, entry) = (self.catalog.object(id).hash, self.entry(id));
            self.drop_record(segment, hash, entry, waiter);
        }
        self.discard(now, replica, Reason::Removed);
    }

    pub(crate) fn replica_clear(&mut self, now: Instant, caller: &Caller, clear: &ReplicaClear) {
        if let Err(code) = self.each_limits(clear.keys.len()) {
            return self
                .outbox
                .reply(caller.client, caller.operation, Reply::Failed(code));
        }
        let ack = self.acks.open(
            caller.client,
            caller.operation,
            Answer::Each(vec![Ok(()); clear.keys.len()]),
        );
        for (at, key) in clear.keys.iter().enumerate() {
            let waiter = Waiter { ack, at: at as u32 };
            let result = self
                .find(&clear.tenant, key)
                .ok_or(ErrorCode::ObjectNotFound)
                .and_then(|id| match &clear.segment {
                    None => self
                        .may_clear(caller.client, id)
                        .and_then(|()| self.remove_one(now, id, Leases::Respected, waiter)),
                    Some(name) => self.clear_segment(now, caller.client, id, name, waiter),
                });
            if let Err(code) = result {
                self.acks.fail(waiter, code);
            }
        }
        self.acks.done(ack, &mut self.outbox);
        self.unsettled.room();
    }

    fn may_clear(&self, client: ClientId, id: ObjectId) -> Result<(), ErrorCode> {
        let held = || {
            self.catalog
                .replicas(id)
                .any(|(_, replica)| replica.refs > 0)
        };
        match self.catalog.object(id) {
            object if object.is(Mark::Open) => Err(ErrorCode::ReplicaIsNotReady),
            object if object.writer != client => Err(ErrorCode::IllegalClient),
            _ if held() => Err(ErrorCode::ObjectReplicaBusy),
            _ => Ok(()),
        }
    }

    fn clear_segment(
        &mut self,
        now: Instant,
        client: ClientId,
        id: ObjectId,
        name: &str,
        waiter: Waiter,
    ) -> Result<(), ErrorCode> {
        self.may_clear(client, id)?;
        if self.lease_end(id) > now {
            return Err(ErrorCode::ObjectHasLease);
        }
        let on_it = |segment: SegmentIndex| *self.segments.at(segment).name == *name;
        let all = self
            .catalog
            .replicas(id)
            .map(|(replica, facts)| (replica, facts.segment));
        let cleared: Vec<(ReplicaId, SegmentIndex)> =
            all.filter(|(_, segment)| on_it(*segment)).collect();
        if cleared.is_empty() {
            return Err(ErrorCode::ReplicaNotFound);
        }
        for (replica, segment) in cleared {
            self.withdraw_replica(now, id, replica, segment, Some(waiter));
        }
        if !self.catalog.object(id).has_replicas() {
            self.await_end(id, self.numbers.newest_version(), Some(waiter));
        }
        self.erase_if_empty(now, id);
        Ok(())
    }
}
