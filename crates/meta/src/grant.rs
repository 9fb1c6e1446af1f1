//! Starting a put: whether it may, and where its bytes go.

use std::collections::VecDeque;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_wire::{
    Chain, ClientId, Durability, ErrorCode, ExtentRef, Key, PutConfig, PutEntry, PutMode, PutStart,
    PutStarted, Reply,
};

use crate::catalog::{Aside, ObjectId, Replica, ReplicaId, SegmentIndex, TenantIndex};
use crate::master::{Caller, Due, Master};
use crate::place::Seat;
use crate::put::{ChainPlace, OpenPut};
use crate::queue::{Shortage, Waiting};
use crate::tenant::Ledger;

/// One entry of a put before it has room.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) at: usize,
    pub(crate) key: Key,
    pub(crate) hash: u64,
    pub(crate) bytes: u64,
    pub(crate) place: ChainPlace,
}

/// What came of asking for room.
enum Grant {
    Decided(PutStarted),
    Short(Shortage),
}

/// A put in flight of the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Older {
    None,
    /// Its writer is late: it gives way before room is looked for, as its room may be what there is.
    Stale,
    /// It gives way to one that has room, and not to one that may yet be refused.
    Live,
}

impl Master {
    pub(crate) fn put_start(&mut self, now: Instant, caller: &Caller, start: PutStart) {
        let tenant = match self.put_tenant(&start) {
            Ok(tenant) => tenant,
            Err(code) => {
                return self
                    .outbox
                    .reply(caller.client, caller.operation, Reply::Failed(code));
            }
        };
        let mut results = vec![PutStarted::Exists; start.entries.len()];
        let mut entries = self.wanted(tenant, &start.entries, &start.chain);
        let short = self.grant_all(
            now,
            caller,
            tenant,
            &start.config,
            &mut entries,
            &mut results,
        );
        let Some(short) = short else {
            return self
                .outbox
                .reply(caller.client, caller.operation, Reply::PutStart(results));
        };
        let wait = start
            .config
            .wait
            .unwrap_or(self.config.put.wait)
            .min(self.config.put.wait_max);
        if wait == Duration::ZERO || self.queue.len() >= self.config.put.queue_limit {
            self.metrics.puts_refused += entries.len() as u64;
            if short == Shortage::Space {
                // It does not wait, but it wants: without room made now the next one would find none either.
                let (all, first) = (
                    entries.iter().map(|entry| entry.bytes).sum(),
                    entries[0].bytes,
                );
                self.make_room(now, all, first);
            }
            return self.give_up(caller, short, entries, results);
        }
        self.metrics.puts_waited += 1;
        let config = start.config;
        let number = self.queue.enqueue(Waiting {
            caller: caller.clone(),
            tenant,
            config,
            entries,
            results,
            short,
        });
        self.due.set(Due::Wait(number), now + wait);
        if short == Shortage::Space {
            self.make_room(now, self.queue.bytes_wanted(), self.queue.first_bytes());
        }
    }

    /// Whose put it is, if the request as a whole is in order.
    fn put_tenant(&mut self, start: &PutStart) -> Result<TenantIndex, ErrorCode> {
        let limits = &self.config.limits;
        let replicas = start.config.replicas;
        if start.entries.len() > limits.batch_keys || replicas == 0 || replicas > limits.replicas {
            return Err(ErrorCode::InvalidParams);
        }
        let tenant = self
            .tenants
            .find(&start.tenant)
            .ok_or(ErrorCode::TenantNotRegistered)?;
        if self.tenants.registered(tenant) {
            Ok(tenant)
        } else {
            Err(ErrorCode::TenantNotRegistered)
        }
    }

    fn wanted(&self, tenant: TenantIndex, entries: &[PutEntry], chain: &Chain) -> VecDeque<Wanted> {
        let mut place = self.chain_start(tenant, chain);
        let all = entries.iter().enumerate();
        all.map(|(at, entry)| {
            let hash = self.tenants.hash(tenant, &entry.key);
            let wanted = Wanted {
                at,
                key: entry.key.clone(),
                hash,
                bytes: entry.bytes,
                place,
            };
            place = ChainPlace {
                parent: Some(hash),
                position: place.position.saturating_add(1),
                ..place
            };
            wanted
        })
        .collect()
    }

    pub(crate) fn chain_start(&self, tenant: TenantIndex, chain: &Chain) -> ChainPlace {
        ChainPlace {
            parent: chain
                .parent
                .as_ref()
                .map(|key| self.tenants.hash(tenant, key)),
            position: chain.position,
            hint: chain.hint,
            output_tokens: chain.output_tokens,
        }
    }

    /// Gives room to entries in order; stops at the first for which there is none.
    pub(crate) fn grant_all(
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
        let older = match found.map_or(Ok(Older::None), |object| self.may_put(now, object, config))
        {
            Ok(older) => older,
            Err(result) => return Grant::Decided(result),
        };
        if let Err(code) = self.put_limits(tenant, config, wanted, found.is_none()) {
            return failed(code);
        }
        if self.queue.is_before(caller) {
            return Grant::Short(Shortage::Space);
        }
        let charge = self
            .charge_of(wanted.bytes)
            .saturating_mul(u64::from(config.replicas));
        if self
            .tenants
            .allowed(tenant, Ledger::Memory)
            .is_some_and(|allowed| charge > allowed)
        {
            return failed(ErrorCode::TenantQuotaExceeded);
        }
        if let (Older::Stale, Some(object)) = (older, found) {
            self.preempt(now, tenant, object);
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
        if let (Older::Live, Some(object)) = (older, found) {
            self.preempt(now, tenant, object);
        }
        Grant::Decided(self.open_put(now, caller.client, tenant, config, wanted, replicas))
    }

    /// Whether the key is free for this put, and which put in flight has to give way to it.
    fn may_put(&self, now: Instant, id: ObjectId, config: &PutConfig) -> Result<Older, PutStarted> {
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
            return Ok(if stale { Older::Stale } else { Older::Live });
        }
        Ok(Older::None)
    }

    fn preempt(&mut self, now: Instant, tenant: TenantIndex, id: ObjectId) {
        self.metrics.puts_preempted += 1;
        self.close_put(tenant, id);
        self.erase_if_empty(now, id);
    }

    fn put_limits(
        &self,
        tenant: TenantIndex,
        config: &PutConfig,
        wanted: &Wanted,
        is_new: bool,
    ) -> Result<(), ErrorCode> {
        let limits = &self.config.limits;
        let memory = || {
            self.segments
                .iter()
                .filter_map(|(_, segment)| segment.memory())
        };
        let largest = memory().map(|memory| memory.extents.books().capacity).max();
        let members = config
            .group
            .map_or(0, |group| self.groups.size((tenant, group)));
        let no_disk = config.durability == Durability::Disk
            && self.segments.iter().all(|(_, it)| it.disk().is_none());
        match largest {
            _ if wanted.bytes == 0 => Err(ErrorCode::InvalidParams),
            None => Err(ErrorCode::NoAvailableHandle),
            Some(largest) if self.charge_of(wanted.bytes) > largest => {
                Err(ErrorCode::InvalidParams)
            }
            _ if no_disk => Err(ErrorCode::UnableOffload),
            _ if is_new && self.catalog.len() >= limits.objects => {
                Err(ErrorCode::NoAvailableHandle)
            }
            _ if self.puts.open.len() >= limits.open_puts => {
                Err(ErrorCode::TaskPendingLimitExceeded)
            }
            _ if members >= limits.group_members => Err(ErrorCode::InvalidParams),
            _ => Ok(()),
        }
    }

    /// Bytes that a replica of `bytes` takes in memory.
    pub(crate) fn charge_of(&self, bytes: u64) -> u64 {
        bytes
            .checked_next_multiple_of(self.config.granule)
            .unwrap_or(u64::MAX)
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
        let extent = segment.allocate(bytes).ok()?;
        let id = self
            .catalog
            .add_replica(Replica::new(index, 0, extent.slot()));
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
                preferred
                    .iter()
                    .position(|wish| wish == name)
                    .unwrap_or(usize::MAX)
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
        let object = self
            .catalog
            .find(tenant, &wanted.key, wanted.hash)
            .unwrap_or_else(|| {
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
        self.due
            .set(Due::Put(object), now + self.config.put.release_timeout);
        PutStarted::Granted { version, extents }
    }

    /// Where a memory replica's bytes are.
    pub(crate) fn extent_of(&self, id: ReplicaId) -> ExtentRef {
        let replica = self.catalog.replica(id);
        let segment = self.segments.at(replica.segment);
        segment.reference(segment.extent(replica.piece))
    }
}
