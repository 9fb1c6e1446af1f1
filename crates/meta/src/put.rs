//! Putting: room first, then bytes, then publication. And the queue of those who wait for room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use slackwater_base::{AllocError, Checksum, Instant, Map};
use slackwater_wire::{
    Chain, ClientId, Durability, ErrorCode, ExtentRef, Key, Pin, PutConfig, PutDone, PutEnd, PutMode, PutStart,
    PutStarted, ReplicaState, Reply, Tenant, Version,
};

use crate::catalog::{Aside, ObjectId, PinKind, Replica, ReplicaId, SegmentIndex, TenantIndex};
use crate::evict::{self, Link, Slot, Walk};
use crate::master::{Caller, Due, Master};
use crate::outbox::{AckId, Answer, Waiter};
use crate::place::Seat;
use crate::pressure::Pass;
use crate::tenant::Ledger;

/// Puts in flight, and calls that wait for room.
#[derive(Default)]
pub(crate) struct Puts {
    pub(crate) open: Map<ObjectId, OpenPut>,
    of: Map<ClientId, BTreeSet<ObjectId>>,
    waiting: BTreeMap<u64, Waiting>,
    next_waiting: u64,
    /// First in, first out: who waits for space, and who for quota, which is no other tenant's concern.
    for_space: BTreeSet<u64>,
    for_quota: BTreeMap<TenantIndex, BTreeSet<u64>>,
}

/// A put whose room was given and whose bytes are under way. Readers do not see it.
#[derive(Debug)]
pub(crate) struct OpenPut {
    pub(crate) version: Version,
    pub(crate) client: ClientId,
    pub(crate) bytes: u64,
    pub(crate) replicas: Vec<ReplicaId>,
    started: Instant,
    pin: Pin,
    group: Option<u64>,
    durability: Durability,
    place: ChainPlace,
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

/// A call some of whose entries have no room yet.
struct Waiting {
    caller: Caller,
    tenant: TenantIndex,
    config: PutConfig,
    entries: VecDeque<Wanted>,
    results: Vec<PutStarted>,
    short: Shortage,
}

/// One entry of a put before it has room.
#[derive(Clone, Debug)]
struct Wanted {
    at: usize,
    key: Key,
    hash: u64,
    bytes: u64,
    place: ChainPlace,
}

/// What came of asking for room.
enum Grant {
    Decided(PutStarted),
    Short(Shortage),
}

/// What there is too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shortage {
    Space,
    Quota,
}

impl Puts {
    pub(crate) fn anyone_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn add(&mut self, object: ObjectId, put: OpenPut) {
        self.of.entry(put.client).or_default().insert(object);
        assert!(self.open.insert(object, put).is_none(), "an object has one put in flight");
    }

    fn take(&mut self, object: ObjectId) -> OpenPut {
        let put = self.open.remove(&object).expect("the object's mark says that a put is open");
        let all = self.of.get_mut(&put.client).expect("clients with puts are listed");
        all.remove(&object);
        if all.is_empty() {
            self.of.remove(&put.client);
        }
        put
    }

    fn enqueue(&mut self, waiting: Waiting) -> u64 {
        let number = self.next_waiting;
        self.next_waiting += 1;
        self.list(number, waiting.tenant, waiting.short);
        self.waiting.insert(number, waiting);
        number
    }

    fn list(&mut self, number: u64, tenant: TenantIndex, short: Shortage) {
        match short {
            Shortage::Space => self.for_space.insert(number),
            Shortage::Quota => self.for_quota.entry(tenant).or_default().insert(number),
        };
    }

    fn unlist(&mut self, number: u64, tenant: TenantIndex) {
        self.for_space.remove(&number);
        if let Some(queue) = self.for_quota.get_mut(&tenant) {
            queue.remove(&number);
            if queue.is_empty() {
                self.for_quota.remove(&tenant);
            }
        }
    }

    fn dequeue(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&number)?;
        self.unlist(number, waiting.tenant);
        Some(waiting)
    }

    /// Bytes that calls wait for, at least those of the first.
    fn bytes_wanted(&self) -> u64 {
        let calls = self.for_space.iter().take(WANTED_CALLS).filter_map(|number| self.waiting.get(number));
        calls.flat_map(|call| call.entries.iter().take(WANTED_CALLS).map(|entry| entry.bytes)).sum()
    }
}

/// Calls and entries looked at when it is guessed how much room is wanted.
const WANTED_CALLS: usize = 64;

impl Master {
    pub(crate) fn put_start(&mut self, now: Instant, caller: &Caller, start: PutStart) {
        let tenant = match self.put_tenant(&start) {
            Ok(tenant) => tenant,
            Err(code) => return self.outbox.reply(caller.client, caller.call, Reply::Failed(code)),
        };
        let mut results = vec![PutStarted::Exists; start.entries.len()];
        let mut entries = self.wanted(tenant, &start.entries, &start.chain);
        let short = self.grant_all(now, caller, tenant, &start.config, &mut entries, &mut results);
        let Some(short) = short else {
            return self.outbox.reply(caller.client, caller.call, Reply::PutStart(results));
        };
        let wait = start.config.wait.unwrap_or(self.config.put.wait).min(self.config.put.wait_max);
        if wait == Duration::ZERO || self.puts.waiting() >= self.config.put.queue_limit {
            self.metrics.puts_refused += entries.len() as u64;
            if short == Shortage::Space {
                // It does not wait, but it wants: without room made now the next one would find none either.
                let (all, first) = (entries.iter().map(|entry| entry.bytes).sum(), entries[0].bytes);
                self.make_room(now, all, first);
            }
            return self.give_up(caller, short, entries, results);
        }
        self.metrics.puts_waited += 1;
        let config = start.config;
        let number = self.puts.enqueue(Waiting { caller: caller.clone(), tenant, config, entries, results, short });
        self.due.set(Due::Wait(number), now + wait);
        if short == Shortage::Space {
            self.make_room(now, self.puts.bytes_wanted(), self.puts.first_bytes());
        }
    }

    /// Whose put it is, if the request as a whole is in order.
    fn put_tenant(&mut self, start: &PutStart) -> Result<TenantIndex, ErrorCode> {
        let limits = &self.config.limits;
        let replicas = start.config.replicas;
        if start.entries.len() > limits.batch_keys || replicas == 0 || replicas > limits.replicas {
            return Err(ErrorCode::InvalidParams);
        }
        let tenant = self.tenants.find(&start.tenant).ok_or(ErrorCode::TenantNotRegistered)?;
        if self.tenants.registered(tenant) { Ok(tenant) } else { Err(ErrorCode::TenantNotRegistered) }
    }

    fn wanted(&self, tenant: TenantIndex, entries: &[slackwater_wire::PutEntry], chain: &Chain) -> VecDeque<Wanted> {
        let mut place = self.chain_start(tenant, chain);
        let all = entries.iter().enumerate();
        all.map(|(at, entry)| {
            let hash = self.tenants.hash(tenant, &entry.key);
            let wanted = Wanted { at, key: entry.key.clone(), hash, bytes: entry.bytes, place };
            place = ChainPlace { parent: Some(hash), position: place.position.saturating_add(1), ..place };
            wanted
        })
        .collect()
    }

    pub(crate) fn chain_start(&self, tenant: TenantIndex, chain: &Chain) -> ChainPlace {
        ChainPlace {
            parent: chain.parent.as_ref().map(|key| self.tenants.hash(tenant, key)),
            position: chain.position,
            hint: chain.hint,
            output_tokens: chain.output_tokens,
        }
    }

    /// Gives room to entries in order; stops at the first for which there is none.
    fn grant_all(
        &mut self,
        now: Instant,
        caller: &Caller,
        tenant: TenantIndex,
        config: &PutConfig,
        entries: &mut VecDeque<Wanted>,
        results: &mut [PutStarted],
    ) -> Option<Shortage> {
        while let Some(entry) = entries.front() {
            match self.grant(now, caller, tenant, config, entry) {
                Grant::Decided(result) => {
                    match result {
                        PutStarted::Granted { .. } => self.metrics.puts_granted += 1,
                        PutStarted::Exists => self.metrics.puts_existed += 1,
                        PutStarted::Failed(_) => self.metrics.puts_refused += 1,
                    }
                    results[entry.at] = result;
                    entries.pop_front();
                }
                Grant::Short(short) => return Some(short),
            }
        }
        None
    }

    fn grant(
        &mut self,
        now: Instant,
        caller: &Caller,
        tenant: TenantIndex,
        config: &PutConfig,
        wanted: &Wanted,
    ) -> Grant {
        let failed = |code| Grant::Decided(PutStarted::Failed(code));
        let found = self.catalog.find(tenant, &wanted.key, wanted.hash);
        if let Some(Err(result)) = found.map(|object| self.may_put(now, object, tenant, config)) {
            return Grant::Decided(result);
        }
        let is_new = found.is_none_or(|object| !self.catalog.is_object(object));
        if let Err(code) = self.put_limits(tenant, config, wanted, is_new) {
            return failed(code);
        }
        if self.puts.for_space.first().is_some_and(|first| !self.is_head(*first, caller)) {
            return Grant::Short(Shortage::Space);
        }
        let charge = self.charge_of(wanted.bytes).saturating_mul(u64::from(config.replicas));
        if self.tenants.allowed(tenant, Ledger::Memory).is_some_and(|allowed| charge > allowed) {
            return failed(ErrorCode::TenantQuotaExceeded);
        }
        if !self.fit_quota(now, tenant, Ledger::Memory, charge) {
            return Grant::Short(Shortage::Quota);
        }
        let replicas = self.allocate(caller.host.as_deref(), config, wanted.bytes);
        if replicas.is_empty() {
            return Grant::Short(Shortage::Space);
        }
        if replicas.len() < config.replicas as usize {
            self.metrics.puts_partial += 1;
        }
        Grant::Decided(self.open_put(now, caller.client, tenant, config, wanted, replicas))
    }

    fn is_head(&self, number: u64, caller: &Caller) -> bool {
        let head = &self.puts.waiting.get(&number);
        head.is_none_or(|head| head.caller.client == caller.client && head.caller.call == caller.call)
    }

    /// Whether the key is free for this put; a put in flight that has to give way is taken back.
    fn may_put(
        &mut self,
        now: Instant,
        id: ObjectId,
        tenant: TenantIndex,
        config: &PutConfig,
    ) -> Result<(), PutStarted> {
        let object = self.catalog.object(id);
        let complete = object.has_replicas();
        if config.mode == PutMode::Create && complete {
            return Err(PutStarted::Exists);
        }
        if complete && object.is(Aside::Promotion) {
            return Err(PutStarted::Failed(ErrorCode::ObjectHasReplicationTask));
        }
        if complete && config.group.is_some() && config.group != self.groups.of(id) {
            return Err(PutStarted::Failed(ErrorCode::InvalidParams));
        }
        if object.is(Aside::Open) {
            let stale = now >= self.puts.open[&id].started + self.config.put.discard_timeout;
            if config.mode == PutMode::Create && !stale {
                return Err(PutStarted::Exists);
            }
            self.metrics.puts_preempted += 1;
            self.close_put(now, tenant, id);
            self.erase_if_empty(id);
        }
        Ok(())
    }

    fn put_limits(
        &self,
        tenant: TenantIndex,
        config: &PutConfig,
        wanted: &Wanted,
        is_new: bool,
    ) -> Result<(), ErrorCode> {
        let limits = &self.config.limits;
        let memory = || self.segments.iter().filter_map(|(_, segment)| segment.memory());
        let largest = memory().map(|memory| memory.extents.books().capacity).max();
        let members = config.group.map_or(0, |group| self.groups.size((tenant, group)));
        let no_disk = config.durability == Durability::Disk && self.segments.iter().all(|(_, it)| it.disk().is_none());
        match largest {
            _ if wanted.bytes == 0 => Err(ErrorCode::InvalidParams),
            None => Err(ErrorCode::NoAvailableHandle),
            Some(largest) if self.charge_of(wanted.bytes) > largest => Err(ErrorCode::InvalidParams),
            _ if no_disk => Err(ErrorCode::UnableOffload),
            _ if is_new && self.catalog.len() >= limits.objects => Err(ErrorCode::NoAvailableHandle),
            _ if self.puts.open.len() >= limits.open_puts => Err(ErrorCode::TaskPendingLimitExceeded),
            _ if members >= limits.group_members => Err(ErrorCode::InvalidParams),
            _ => Ok(()),
        }
    }

    /// Bytes that a replica of `bytes` takes in memory.
    pub(crate) fn charge_of(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.config.granule).unwrap_or(u64::MAX)
    }

    /// Room on up to as many different segments as replicas are asked for; on none when there is no room.
    fn allocate(&mut self, host: Option<&str>, config: &PutConfig, bytes: u64) -> Vec<ReplicaId> {
        let mut found = Vec::new();
        for index in self.placement(host, &config.preferred) {
            if found.len() == config.replicas as usize {
                break;
            }
            if let Some(id) = self.allocate_on(index, bytes) {
                found.push(id);
            }
        }
        found
    }

    /// A replica in the making on this memory segment, if there is room.
    pub(crate) fn allocate_on(&mut self, index: SegmentIndex, bytes: u64) -> Option<ReplicaId> {
        let segment = self.segments.at_mut(index);
        let extent = match segment.allocate(bytes) {
            Ok(extent) => extent,
            Err(AllocError::NoSpace { .. } | AllocError::TooLarge { .. } | AllocError::Empty) => return None,
        };
        let id = self.catalog.add_replica(Replica::new(index, 0, extent.slot()));
        self.catalog.replica_mut(id).slot = segment.number(id).0;
        Some(id)
    }

    /// Memory segments in the order in which they are to be tried.
    fn placement(&mut self, host: Option<&str>, preferred: &[String]) -> Vec<SegmentIndex> {
        let seat = |(index, segment): (SegmentIndex, &'_ crate::segment::Segment)| {
            let books = segment.memory()?.extents.books();
            Some((index, books))
        };
        let memory: Vec<_> = self.segments.iter().filter_map(seat).collect();
        if let [(only, _)] = memory[..] {
            return vec![only];
        }
        let mut seats: Vec<Seat<'_>> = memory
            .into_iter()
            .map(|(index, books)| Seat {
                index,
                free: books.free,
                capacity: books.capacity,
                host: &self.segments.at(index).host,
            })
            .collect();
        self.place.order(&mut seats, host);
        let mut order: Vec<SegmentIndex> = seats.into_iter().map(|seat| seat.index).collect();
        if !preferred.is_empty() {
            order.sort_by_key(|index| {
                let name = &self.segments.at(*index).name;
                preferred.iter().position(|wish| wish == name).unwrap_or(usize::MAX)
            });
        }
        order
    }

    fn open_put(
        &mut self,
        now: Instant,
        client: ClientId,
        tenant: TenantIndex,
        config: &PutConfig,
        wanted: &Wanted,
        replicas: Vec<ReplicaId>,
    ) -> PutStarted {
        let version = self.version();
        let object = self.catalog.find(tenant, &wanted.key, wanted.hash).unwrap_or_else(|| {
            self.tenants.at_mut(tenant).objects += 1;
            self.catalog.add(tenant, wanted.key.clone(), wanted.hash)
        });
        self.catalog.object_mut(object).mark(Aside::Open);
        let mut extents = Vec::with_capacity(replicas.len());
        for id in &replicas {
            let extent = self.extent_of(*id);
            self.tenants.charge(tenant, Ledger::Memory, extent.bytes);
            extents.push(extent);
        }
        let put = OpenPut {
            version,
            client,
            bytes: wanted.bytes,
            replicas,
            started: now,
            pin: config.pin,
            group: config.group,
            durability: config.durability,
            place: wanted.place,
        };
        self.puts.add(object, put);
        self.due.set(Due::Put(object), now + self.config.put.release_timeout);
        PutStarted::Granted { version, extents }
    }

    /// Where a memory replica's bytes are.
    pub(crate) fn extent_of(&self, id: ReplicaId) -> ExtentRef {
        let replica = self.catalog.replica(id);
        let segment = self.segments.at(replica.segment);
        segment.reference(segment.extent(replica.piece))
    }

    pub(crate) fn put_end(&mut self, now: Instant, caller: &Caller, end: &PutEnd) {
        if let Err(code) = self.each_limits(end.puts.len()) {
            return self.outbox.reply(caller.client, caller.call, Reply::Failed(code));
        }
        let ack = self.acks.open(caller.client, caller.call, Answer::Each(vec![Ok(()); end.puts.len()]));
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
        if let Some((client, call, reply)) = self.acks.done(ack) {
            self.outbox.reply(client, call, reply);
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
        let object = self.catalog.find(tenant, key, hash).ok_or(ErrorCode::ObjectNotFound)?;
        Ok((tenant, object))
    }

    /// Whether this is the client's put in flight; false when it is published already.
    fn owns_put(&mut self, client: ClientId, id: ObjectId, version: Version) -> Result<bool, ErrorCode> {
        let object = self.catalog.object(id);
        if object.is(Aside::Open) && self.puts.open[&id].version == version {
            let owner = self.puts.open[&id].client;
            return if owner == client { Ok(true) } else { Err(ErrorCode::IllegalClient) };
        }
        if object.has_replicas() && object.version == version {
            return if object.writer == client { Ok(false) } else { Err(ErrorCode::IllegalClient) };
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
                self.groups.join((tenant, group), id);
            }
        }
        for replica in &put.replicas {
            self.attach(id, *replica, Ledger::Memory);
            let Replica { segment, slot, .. } = *self.catalog.replica(*replica);
            fresh.push(Fresh { segment, slot, hash, bytes: put.bytes, place: put.place, standing: None });
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
            self.tenants.touch(self.catalog.object(object).tenant, ledger, id);
        }
    }

    fn apply_pin(&mut self, now: Instant, id: ObjectId, pin: Pin) {
        let kind = match pin {
            Pin::None => PinKind::None,
            Pin::Hard => PinKind::Hard,
            Pin::Soft(time) => {
                let time = time.unwrap_or(self.config.soft_pin_ttl).min(self.config.soft_pin_ttl_max);
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
                .map(|fresh| Link { hash: fresh.hash, slot: Some(Slot(fresh.slot)), bytes: fresh.bytes })
                .collect();
            if let (Some(standing), [link]) = (run[0].standing, links.as_slice()) {
                self.segments.at_mut(run[0].segment).policy.insert_as(now, *link, standing);
                continue;
            }
            let place = run[0].place;
            let walk = Walk {
                now,
                links: &links,
                parent: place.parent,
                position: place.position,
                hint: place.hint,
                output_tokens: place.output_tokens,
            };
            self.segments.at_mut(run[0].segment).policy.insert(&walk);
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
        self.close_put(now, tenant, object);
        self.erase_if_empty(object);
        Ok(())
    }

    /// Ends a put in flight without a value: its room comes back after the fence.
    fn close_put(&mut self, _now: Instant, tenant: TenantIndex, id: ObjectId) {
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
        let calls = self.puts.waiting.iter().filter(|(_, call)| call.caller.client == client);
        for number in calls.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.due.cancel(Due::Wait(number));
            self.puts.dequeue(number);
        }
    }

    pub(crate) fn put_expired(&mut self, now: Instant, object: ObjectId) {
        self.reclaim(now, object);
        self.serve(now);
    }

    fn reclaim(&mut self, now: Instant, object: ObjectId) {
        self.metrics.puts_reclaimed += 1;
        let tenant = self.catalog.object(object).tenant;
        self.close_put(now, tenant, object);
        self.erase_if_empty(object);
    }

    /// Gives room to those who wait, first come first served.
    pub(crate) fn serve(&mut self, now: Instant) {
        while let Some(number) = self.puts.for_space.first().copied() {
            if !self.serve_one(now, number) {
                break;
            }
        }
        if self.puts.for_quota.is_empty() {
            return;
        }
        for tenant in self.puts.for_quota.keys().copied().collect::<Vec<_>>() {
            while let Some(number) = self.puts.for_quota.get(&tenant).and_then(|queue| queue.first()).copied() {
                if !self.serve_one(now, number) {
                    break;
                }
            }
        }
    }

    /// Whether this call is answered, or waits for something else than before.
    fn serve_one(&mut self, now: Instant, number: u64) -> bool {
        let mut call = self.puts.waiting.remove(&number).expect("queues name waiting calls");
        let Waiting { caller, tenant, config, entries, results, short } = &mut call;
        let (caller, tenant, before) = (caller.clone(), *tenant, *short);
        let left = self.grant_all(now, &caller, tenant, config, entries, results);
        let Some(left) = left else {
            self.puts.unlist(number, tenant);
            self.due.cancel(Due::Wait(number));
            self.outbox.reply(caller.client, caller.call, Reply::PutStart(call.results));
            return true;
        };
        call.short = left;
        if left != before {
            self.puts.unlist(number, tenant);
            self.puts.list(number, tenant, left);
        }
        self.puts.waiting.insert(number, call);
        if left == Shortage::Space {
            self.make_room(now, self.puts.bytes_wanted(), self.puts.first_bytes());
        }
        left != before
    }

    /// Evicts what those who wait need, unless it is on its way already.
    fn make_room(&mut self, now: Instant, wanted: u64, first: u64) {
        let coming = |segment: &crate::segment::Segment| {
            let books = segment.memory().map(|memory| memory.extents.books())?;
            Some((books.free, books.quarantined + segment.leaving))
        };
        let all = self.segments.iter().filter_map(|(index, segment)| Some((index, coming(segment)?)));
        let Some((index, (free, coming))) = all.max_by_key(|(_, (free, coming))| free + coming) else { return };
        let missing = match coming {
            0 => wanted,
            _ => wanted.saturating_sub(free + coming),
        };
        let most = (self.segments.at(index).capacity() / 8).max(first);
        let mut budget = self.config.eviction.step;
        let missing = missing.min(most);
        let freed = self.evict(now, index, missing, Pass::Last, &mut budget);
        if freed < missing && budget == 0 {
            self.due.set(Due::Relieve(index), now);
        }
    }

    pub(crate) fn wait_expired(&mut self, number: u64) {
        let Some(call) = self.puts.dequeue(number) else { return };
        self.metrics.puts_timed_out += 1;
        self.give_up(&call.caller, call.short, call.entries, call.results);
    }

    fn give_up(&mut self, caller: &Caller, short: Shortage, entries: VecDeque<Wanted>, mut results: Vec<PutStarted>) {
        let code = match short {
            Shortage::Space => ErrorCode::NoAvailableHandle,
            Shortage::Quota => ErrorCode::TenantQuotaExceeded,
        };
        for entry in entries {
            results[entry.at] = PutStarted::Failed(code);
        }
        self.outbox.reply(caller.client, caller.call, Reply::PutStart(results));
    }
}

impl Puts {
    fn first_bytes(&self) -> u64 {
        let first = self.for_space.first().and_then(|number| self.waiting.get(number));
        first.and_then(|call| call.entries.front()).map_or(0, |entry| entry.bytes)
    }
}

impl Master {
    /// A segment is going: puts lose the replicas that they have there, and end when none is left.
    pub(crate) fn lose_open_puts(&mut self, now: Instant, index: SegmentIndex) {
        let catalog = &self.catalog;
        let hit = |put: &OpenPut| put.replicas.iter().any(|id| catalog.replica(*id).segment == index);
        let mut objects: Vec<ObjectId> =
            self.puts.open.iter().filter(|(_, put)| hit(put)).map(|(object, _)| *object).collect();
        objects.sort_unstable();
        for object in objects {
            self.reclaim(now, object);
        }
    }
}
