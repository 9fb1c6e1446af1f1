//! Ending a put: its bytes become readable, or its room goes back.

use std::collections::BTreeSet;

use slackwater_base::{Checksum, Instant, Map};
use slackwater_wire::{
    ClientId, Durability, ErrorCode, Key, Pin, PutDone, PutEnd, ReplicaState, Reply, Tenant,
    Version,
};

use crate::catalog::{Aside, ObjectId, PinKind, Replica, ReplicaId, SegmentIndex, TenantIndex};
use crate::evict::{self, Link, Slot, Walk};
use crate::master::{Caller, Due, Master};
use crate::outbox::{AckId, Answer, Waiter};
use crate::tenant::Ledger;

/// Puts in flight.
#[derive(Default)]
pub(crate) struct Puts {
    pub(crate) open: Map<ObjectId, OpenPut>,
    of: Map<ClientId, BTreeSet<ObjectId>>,
}

/// A put whose room was given and whose bytes are under way. Readers do not see it.
#[derive(Debug)]
pub(crate) struct OpenPut {
    pub(crate) version: Version,
    pub(crate) client: ClientId,
    pub(crate) bytes: u64,
    pub(crate) replicas: Vec<ReplicaId>,
    pub(crate) started: Instant,
    pub(crate) pin: Pin,
    pub(crate) group: Option<u64>,
    pub(crate) durability: Durability,
    pub(crate) place: ChainPlace,
}

/// Where a block stands in its chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChainPlace {
    pub(crate) parent: Option<u64>,
    pub(crate) position: u32,
    pub(crate) hint: Option<u32>,
    pub(crate) output_tokens: Option<u32>,
}

/// A replica that became readable and of which its policy is yet to hear.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh {
    pub(crate) segment: SegmentIndex,
    pub(crate) slot: u32,
    pub(crate) hash: u64,
    pub(crate) bytes: u64,
    pub(crate) place: ChainPlace,
    /// What the policy of the tier that it came from knew of it.
    pub(crate) standing: Option<evict::Standing>,
}

impl Puts {
    pub(crate) fn add(&mut self, object: ObjectId, put: OpenPut) {
        self.of.entry(put.client).or_default().insert(object);
        assert!(
            self.open.insert(object, put).is_none(),
            "an object has one put in flight"
        );
    }

    fn at_mut(&mut self, object: ObjectId) -> &mut OpenPut {
        self.open
            .get_mut(&object)
            .expect("the object's mark says that a put is open")
    }

    fn take(&mut self, object: ObjectId) -> OpenPut {
        let put = self
            .open
            .remove(&object)
            .expect("the object's mark says that a put is open");
        let all = self
            .of
            .get_mut(&put.client)
            .expect("clients with puts are listed");
        all.remove(&object);
        if all.is_empty() {
            self.of.remove(&put.client);
        }
        put
    }
}

impl Master {
    pub(crate) fn put_end(&mut self, now: Instant, caller: &Caller, end: &PutEnd) {
        if let Err(code) = self.each_limits(end.puts.len()) {
            return self
                .outbox
                .reply(caller.client, caller.operation, Reply::Failed(code));
        }
        let ack = self.acks.open(
            caller.client,
            caller.operation,
            Answer::Each(vec![Ok(()); end.puts.len()]),
        );
        let mut fresh = Vec::with_capacity(end.puts.len());
        let mut published = Vec::with_capacity(end.puts.len());
        for (at, done) in end.puts.iter().enumerate() {
            let waiter = Waiter { ack, at: at as u32 };
            match self.end_one(now, caller.client, &end.tenant, done, waiter, &mut fresh) {
                Ok(Some((object, durability))) => published.push((object, durability, waiter)),
                Ok(None) => {}
                Err(code) => self.acks.fail(waiter, code),
            }
        }
        // Policies first: what follows may ask them about the new residents.
        self.introduce(now, &mut fresh);
        for (object, durability, waiter) in published {
            if durability == Durability::Disk {
                self.promise(now, object, waiter);
            }
            self.offload_eagerly(now, object);
        }
        self.settle(ack);
        if let Some(tenant) = self.tenant(&end.tenant) {
            self.trim(now, tenant, Ledger::Memory);
        }
        fresh.dedup_by_key(|fresh| fresh.segment);
        for fresh in fresh {
            self.relieve(now, fresh.segment);
        }
    }

    /// One thing that the answer waits for is done.
    pub(crate) fn settle(&mut self, ack: AckId) {
        if let Some((client, operation, reply)) = self.acks.done(ack) {
            self.outbox.reply(client, operation, reply);
        }
    }

    fn end_one(
        &mut self,
        now: Instant,
        client: ClientId,
        tenant: &Tenant,
        done: &PutDone,
        waiter: Waiter,
        fresh: &mut Vec<Fresh>,
    ) -> Result<Option<(ObjectId, Durability)>, ErrorCode> {
        let (_, object) = self.find_put(tenant, &done.key)?;
        if !self.owns_put(client, object, done.version)? {
            // Ended before, by a call whose answer may be lost: this one waits for what that one waits for.
            self.rejoin(object, waiter);
            return Ok(None);
        }
        let durability = self.publish(now, object, done.checksum, waiter, fresh);
        Ok(Some((object, durability)))
    }

    fn rejoin(&mut self, id: ObjectId, waiter: Waiter) {
        let object = self.catalog.object(id);
        let (key, hash) = (object.key.clone(), object.hash);
        let tenant = self.tenants.at(object.tenant).tenant.clone();
        self.await_drops(&tenant, &key, hash, waiter);
        self.await_promise(id, waiter);
    }

    fn find_put(&self, tenant: &Tenant, key: &Key) -> Result<(TenantIndex, ObjectId), ErrorCode> {
        let tenant = self.tenant(tenant).ok_or(ErrorCode::ObjectNotFound)?;
        let hash = self.tenants.hash(tenant, key);
        let object = self
            .catalog
            .find(tenant, key, hash)
            .ok_or(ErrorCode::ObjectNotFound)?;
        Ok((tenant, object))
    }

    /// Whether this is the client's put in flight; false when it is published already.
    fn owns_put(
        &mut self,
        client: ClientId,
        id: ObjectId,
        version: Version,
    ) -> Result<bool, ErrorCode> {
        let object = self.catalog.object(id);
        if object.is(Aside::Open) && self.puts.open[&id].version == version {
            let owner = self.puts.open[&id].client;
            return if owner == client {
                Ok(true)
            } else {
                Err(ErrorCode::IllegalClient)
            };
        }
        if object.has_replicas() && object.version == version {
            return if object.writer == client {
                Ok(false)
            } else {
                Err(ErrorCode::IllegalClient)
            };
        }
        self.metrics.late_ends_refused += 1;
        Err(ErrorCode::InvalidVersion)
    }

    /// Makes a put's replicas the object's: readers see the old ones before this, and the new ones after.
    fn publish(
        &mut self,
        now: Instant,
        id: ObjectId,
        checksum: Checksum,
        waiter: Waiter,
        fresh: &mut Vec<Fresh>,
    ) -> Durability {
        let put = self.puts.take(id);
        self.due.cancel(Due::Put(id));
        let replaces = self.catalog.object(id).has_replicas();
        self.cancel_promotion(now, id);
        self.withdraw(now, id, Version(put.version.0 - 1), Some(waiter));
        let tenant = self.catalog.object(id).tenant;
        let object = self.catalog.object_mut(id);
        object.unmark(Aside::Open);
        object.unmark(Aside::Shed);
        object.version = put.version;
        object.checksum = checksum;
        object.bytes = put.bytes;
        object.writer = put.client;
        object.lease = Instant::ZERO;
        let hash = object.hash;
        if !replaces {
            self.apply_pin(now, id, put.pin);
            if let Some(group) = put.group {
                self.catalog.object_mut(id).mark(Aside::Group);
                let soft = self.soft_until.get(&id).copied().unwrap_or(Instant::ZERO);
                self.groups
                    .join((tenant, group), id, self.catalog.object(id).pin, soft);
            }
        }
        for replica in &put.replicas {
            self.attach(id, *replica, Ledger::Memory);
            let Replica { segment, slot, .. } = *self.catalog.replica(*replica);
            fresh.push(Fresh {
                segment,
                slot,
                hash,
                bytes: put.bytes,
                place: put.place,
                standing: None,
            });
        }
        self.metrics.puts_published += 1;
        self.metrics.puts_published_bytes += put.bytes;
        put.durability
    }

    /// From now on look-ups find this replica.
    pub(crate) fn attach(&mut self, object: ObjectId, id: ReplicaId, ledger: Ledger) {
        self.catalog.replica_mut(id).state = ReplicaState::Complete;
        self.catalog.attach(object, id);
        if self.catalog.object(object).pin != PinKind::Hard {
            self.tenants
                .touch(self.catalog.object(object).tenant, ledger, id);
        }
    }

    fn apply_pin(&mut self, now: Instant, id: ObjectId, pin: Pin) {
        let kind = match pin {
            Pin::None => PinKind::None,
            Pin::Hard => PinKind::Hard,
            Pin::Soft(time) => {
                let time = time
                    .unwrap_or(self.config.soft_pin_ttl)
                    .min(self.config.soft_pin_ttl_max);
                self.soft_until.insert(id, now + time);
                PinKind::Soft
            }
        };
        self.catalog.object_mut(id).pin = kind;
    }

    /// Tells policies of new residents, in runs along their chains.
    pub(crate) fn introduce(&mut self, now: Instant, fresh: &mut [Fresh]) {
        fresh.sort_by_key(|fresh| fresh.segment);
        let follows = |before: &Fresh, next: &Fresh| {
            before.segment == next.segment
                && next.place.parent == Some(before.hash)
                && next.place.position == before.place.position.wrapping_add(1)
                && next.place.hint == before.place.hint
                && next.standing.is_none()
        };
        for run in fresh.chunk_by(follows) {
            let links: Vec<Link> = run
                .iter()
                .map(|fresh| Link {
                    hash: fresh.hash,
                    slot: Some(Slot(fresh.slot)),
                    bytes: fresh.bytes,
                })
                .collect();
            if let (Some(standing), [link]) = (run[0].standing, links.as_slice()) {
                self.segments
                    .at_mut(run[0].segment)
                    .policy
                    .insert_as(now, *link, standing);
                continue;
            }
            let place = run[0].place;
            let walk = Walk {
                now,
                links: &links,
                parent: place.parent,
                position: place.position,
                found: 0,
                hint: place.hint,
                output_tokens: place.output_tokens,
            };
            self.segments.at_mut(run[0].segment).policy.insert(&walk);
            self.add_prospects(run, &walk);
        }
    }

    pub(crate) fn put_revoke(
        &mut self,
        now: Instant,
        caller: &Caller,
        tenant: &Tenant,
        puts: &[(Key, Version)],
    ) -> Reply {
        if puts.len() > self.config.limits.batch_keys {
            return Reply::Failed(ErrorCode::InvalidParams);
        }
        let mut results = Vec::with_capacity(puts.len());
        for (key, version) in puts {
            results.push(self.revoke_one(now, caller.client, tenant, key, *version));
        }
        self.serve(now);
        Reply::Each(results)
    }

    fn revoke_one(
        &mut self,
        now: Instant,
        client: ClientId,
        tenant: &Tenant,
        key: &Key,
        version: Version,
    ) -> Result<(), ErrorCode> {
        let (tenant, object) = self.find_put(tenant, key)?;
        if !self.owns_put(client, object, version)? {
            return Err(ErrorCode::InvalidWrite);
        }
        self.metrics.puts_revoked += 1;
        self.close_put(tenant, object);
        self.erase_if_empty(now, object);
        Ok(())
    }

    /// Ends a put in flight without a value: its room comes back after the fence.
    pub(crate) fn close_put(&mut self, tenant: TenantIndex, id: ObjectId) {
        let put = self.puts.take(id);
        self.due.cancel(Due::Put(id));
        self.catalog.object_mut(id).unmark(Aside::Open);
        for replica in put.replicas {
            self.free(replica, tenant, put.bytes);
        }
    }

    /// The writer's link is gone: nobody will end its puts.
    pub(crate) fn puts_lost(&mut self, now: Instant, client: ClientId) {
        for object in self.puts.of.get(&client).cloned().unwrap_or_default() {
            self.reclaim(now, object);
        }
        self.stop_waiting(client);
    }

    pub(crate) fn put_expired(&mut self, now: Instant, object: ObjectId) {
        self.reclaim(now, object);
        self.serve(now);
    }

    fn reclaim(&mut self, now: Instant, object: ObjectId) {
        self.metrics.puts_reclaimed += 1;
        let tenant = self.catalog.object(object).tenant;
        self.close_put(tenant, object);
        self.erase_if_empty(now, object);
    }

    /// A segment is going: puts lose the replicas that they have there, and end when none is left.
    pub(crate) fn lose_open_puts(&mut self, now: Instant, index: SegmentIndex) {
        let catalog = &self.catalog;
        let hit = |put: &OpenPut| {
            put.replicas
                .iter()
                .any(|id| catalog.replica(*id).segment == index)
        };
        let mut objects: Vec<ObjectId> = self
            .puts
            .open
            .iter()
            .filter(|(_, put)| hit(put))
            .map(|(object, _)| *object)
            .collect();
        objects.sort_unstable();
        for object in objects {
            self.lose_put_replicas(now, object, index);
        }
    }

    fn lose_put_replicas(&mut self, now: Instant, object: ObjectId, index: SegmentIndex) {
        let catalog = &self.catalog;
        let put = self.puts.at_mut(object);
        let (lost, kept): (Vec<_>, Vec<_>) = put
            .replicas
            .iter()
            .partition(|id| catalog.replica(**id).segment == index);
        if kept.is_empty() {
            return self.reclaim(now, object);
        }
        let bytes = put.bytes;
        put.replicas = kept;
        let tenant = self.catalog.object(object).tenant;
        for replica in lost {
            self.free(replica, tenant, bytes);
        }
    }
}
