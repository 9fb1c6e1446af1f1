//! Ends of puts: the bytes become readable, or their room is freed.

use slackwater_base::{Checksum, Instant};
use slackwater_wire::{
    ClientId, Durability, ErrorCode, ExtentRef, Key, OperationId, Pin, PutDone, PutEnd, Reply,
    Tenant, Version,
};

use crate::catalog::{Mark, ObjectId, PinKind, Replica, SegmentIndex, TenantIndex};
use crate::master::{Caller, Due, Master};
use crate::outbox::{Answer, Waiter};
use crate::publish::{self, Fresh};
use crate::put::{Losing, OpenPut};
use crate::tenant::Ledger;

/// Puts of a lost client that are ended in one step.
const LOST_STEP: usize = 256;

impl Master {
    /// The extents that a client is writing under this version of a key, and the length of the value; none when the put
    /// is not its own, or over.
    #[must_use]
    pub fn extents_being_written(
        &self,
        client: ClientId,
        tenant: &Tenant,
        done: &PutDone,
    ) -> Vec<(ExtentRef, u64)> {
        let Ok((_, object)) = self.find_put(tenant, &done.key) else {
            return Vec::new();
        };
        let own = |put: &&OpenPut| put.client == client && put.version == done.version;
        let put = self.puts.open.get(&object).filter(own);
        let replicas = put.into_iter().flat_map(|put| &put.replicas);
        let bytes = put.map_or(0, |put| put.bytes);
        replicas
            .map(|replica| (self.extent_of(*replica), bytes))
            .collect()
    }

    pub(crate) fn put_end(&mut self, now: Instant, caller: &Caller, end: &PutEnd) {
        let limits = self.each_limits(end.puts.len());
        if let Err(code) = limits.and_then(|()| self.all_announced(end)) {
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
            match self.end_one(now, caller.client, end, done, waiter, &mut fresh) {
                Ok(Some((object, durability))) => published.push((object, durability, waiter)),
                Ok(None) => {}
                Err(code) => self.acks.fail(waiter, code),
            }
        }
        // Policies are told first, as the next steps may ask them about the new replicas.
        publish::introduce(
            &mut self.catalog,
            &mut self.segments,
            self.config.offload.mode,
            now,
            &mut fresh,
        );
        for (object, durability, waiter) in published {
            match durability {
                Durability::Memory => {}
                Durability::Disk => self.promise(now, object, waiter),
                Durability::Replicated => self.await_noted(object, waiter),
            }
            self.offload_eagerly(now, object);
        }
        self.acks.done(ack, &mut self.outbox);
        if let Some(tenant) = self.tenants.find(&end.tenant) {
            self.trim(now, tenant, Ledger::Memory);
        }
        fresh.dedup_by_key(|fresh| fresh.segment);
        for fresh in fresh {
            self.unsettled.press(fresh.segment);
        }
    }

    fn end_one(
        &mut self,
        now: Instant,
        client: ClientId,
        end: &PutEnd,
        done: &PutDone,
        waiter: Waiter,
        fresh: &mut Vec<Fresh>,
    ) -> Result<Option<(ObjectId, Durability)>, ErrorCode> {
        let (_, object) = self.find_put(&end.tenant, &done.key)?;
        if !self.owns_put(client, object, done.version)? {
            // An earlier request ended this put, and its answer may be lost: this one waits for the same.
            return self.rejoin(now, object, end.hosts, waiter).map(|()| None);
        }
        let put = &self.puts.open[&object];
        if put.replicas.len() < put.needed {
            // A node is gone, and what is left is less than was asked for.
            self.reclaim(now, object);
            self.unsettled.room();
            return Err(ErrorCode::ReplicaIsGone);
        }
        let durability = self.publish(now, object, done.checksum, waiter, fresh);
        Ok(Some((object, durability)))
    }

    fn rejoin(
        &mut self,
        now: Instant,
        id: ObjectId,
        hosts: Option<u32>,
        waiter: Waiter,
    ) -> Result<(), ErrorCode> {
        if let Some(hosts) = hosts {
            // An earlier master granted them, and what is left may be less.
            if self.hosts_of(id) < hosts as usize {
                return Err(ErrorCode::ReplicaIsGone);
            }
            self.await_noted(id, waiter);
        }
        let object = self.catalog.object(id);
        let (key, hash) = (object.key.clone(), object.hash);
        let tenant = self.tenants.at(object.tenant).tenant.clone();
        self.await_drops(&tenant, &key, hash, waiter);
        self.await_promise(id, waiter);
        let is_disk = |replica: &Replica| self.segments.at(replica.segment).disk().is_some();
        let on_disk = self.catalog.replicas(id).any(|(_, it)| is_disk(it));
        if self.catalog.object(id).is(Mark::Promised) && !on_disk {
            // An earlier master promised it, and the node has no record.
            self.promise(now, id, waiter);
        }
        Ok(())
    }

    /// Whether it can be said of each of these puts how many hosts have it: while nodes have yet to say what they hold, the
    /// client is to ask again.
    fn all_announced(&self, end: &PutEnd) -> Result<(), ErrorCode> {
        let Some(hosts) = end.hosts.filter(|_| self.is_partial()) else {
            return Ok(());
        };
        let is_known = |done: &PutDone| {
            let found = self.find_put(&end.tenant, &done.key);
            found.is_ok_and(|(_, object)| {
                let record = self.catalog.object(object);
                let published = record.version == done.version;
                record.is(Mark::Open)
                    || record.version > done.version
                    || (published && self.hosts_of(object) >= hosts as usize)
            })
        };
        match end.puts.iter().all(is_known) {
            true => Ok(()),
            false => Err(ErrorCode::UnavailableInCurrentStatus),
        }
    }

    fn find_put(&self, tenant: &Tenant, key: &Key) -> Result<(TenantIndex, ObjectId), ErrorCode> {
        let tenant = self.tenants.find(tenant).ok_or(ErrorCode::ObjectNotFound)?;
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
        if object.is(Mark::Open) && self.puts.open[&id].version == version {
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
        let object = self.catalog.object_mut(id);
        object.unmark(Mark::Open);
        object.unmark(Mark::Shed);
        object.unmark(Mark::Promised);
        object.version = put.version;
        object.checksum = checksum;
        object.bytes = put.bytes;
        object.writer = put.client;
        object.lease = Instant::ZERO;
        let hash = object.hash;
        self.held.heard(hash);
        self.wishes.set(id, put.wish);
        if !replaces {
            self.apply_pin(now, id, put.pin);
            self.join_group(id, put.group);
        }
        for replica in &put.replicas {
            self.attach(id, *replica, Ledger::Memory);
            self.tell_published(now, *replica, put.chain, put.durability);
            self.wake_drains(*replica);
            let Replica { segment, slot, .. } = *self.catalog.replica(*replica);
            fresh.push(Fresh {
                segment,
                slot,
                hash,
                bytes: put.bytes,
                chain: put.chain,
                standing: None,
            });
        }
        self.metrics.puts_published += 1;
        self.metrics.puts_published_bytes += put.bytes;
        put.durability
    }

    /// Adds an object to its group, unless it belongs to one.
    pub(crate) fn join_group(&mut self, id: ObjectId, group: Option<u64>) {
        let object = self.catalog.object_mut(id);
        let Some(group) = group.filter(|_| !object.is(Mark::Group)) else {
            return;
        };
        object.mark(Mark::Group);
        let (tenant, pin) = (object.tenant, object.pin);
        let soft = self.soft_until.get(&id).copied().unwrap_or(Instant::ZERO);
        self.groups.join((tenant, group), id, pin, soft);
    }

    pub(crate) fn apply_pin(&mut self, now: Instant, id: ObjectId, pin: Pin) {
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
        self.unsettled.room();
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

    /// The writer's link is gone: its puts end without values, and it waits for nothing any more.
    pub(crate) fn puts_lost(&mut self, now: Instant, client: ClientId) {
        let losing = Losing {
            next: (OperationId(0), ObjectId(0)),
            newest: self.numbers.newest_version(),
        };
        self.puts.lost.insert(client, losing);
        self.stop_waiting(client, None);
        self.lost_step(now, client);
    }

    /// Ends some of the puts of a client whose link is gone.
    pub(crate) fn lost_step(&mut self, now: Instant, client: ClientId) {
        let Some(losing) = self.puts.lost.remove(&client) else {
            return;
        };
        let mut puts = self.puts.of_client(client, losing.next, LOST_STEP + 1);
        if puts.len() > LOST_STEP
            && let Some(next) = puts.pop()
        {
            self.puts.lost.insert(client, Losing { next, ..losing });
            self.due.set(Due::Lost(client), now);
        }
        for (_, object) in puts {
            if self.puts.open[&object].version <= losing.newest {
                self.reclaim(now, object);
            }
        }
        self.unsettled.room();
    }

    pub(crate) fn put_expired(&mut self, now: Instant, object: ObjectId) {
        self.reclaim(now, object);
        self.unsettled.room();
    }

    fn reclaim(&mut self, now: Instant, object: ObjectId) {
        self.metrics.puts_reclaimed += 1;
        let tenant = self.catalog.object(object).tenant;
        self.close_put(tenant, object);
        self.erase_if_empty(now, object);
    }

    /// A segment is being removed: puts lose their replicas there, and end when none is left.
    pub(crate) fn lose_open_puts(&mut self, now: Instant, index: SegmentIndex) {
        for object in self.puts.on(&self.catalog, index) {
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
