//! Starts of puts: whether they are permitted, and where their bytes go.

use std::collections::{BTreeSet, VecDeque};

use slackwater_base::Instant;
use slackwater_wire::{
    Chain, Durability, ErrorCode, Key, PutConfig, PutMode, PutStart, PutStarted, Reply,
};

use super::left::LeftRoom;
use super::{ChainPlace, OpenPut};
use crate::catalog::{Mark, ObjectId, ReplicaId, SegmentIndex, TenantIndex};
use crate::master::{Caller, Due, Master};
use crate::placement::{self, PREFERRED_MAX, Wish, Wishes};
use crate::segment::{Domain, Segment, Segments};
use crate::tenant::Ledger;

/// A call that starts puts.
pub(crate) struct PutCall {
    pub(crate) caller: Caller,
    pub(crate) tenant: TenantIndex,
    pub(crate) config: PutConfig,
    /// What is kept of the segments that it prefers.
    pub(crate) wish: Wish,
    /// Entries without room, in the order of the call.
    pub(crate) entries: VecDeque<Wanted>,
    pub(crate) results: Vec<PutStarted>,
    /// Its number among the calls that wait, if it is one.
    pub(crate) number: Option<u64>,
}

impl PutCall {
    /// Whether it needs each of its replicas on another host.
    pub(crate) fn is_across_hosts(&self) -> bool {
        needed(&self.config) > 1
    }

    /// What it waits for that finds no room.
    fn short_of_room(&self) -> Shortage {
        match self.is_across_hosts() {
            true => Shortage::Hosts,
            false => Shortage::Space,
        }
    }

    /// Bytes that it takes in this process, about.
    pub(crate) fn held_bytes(&self) -> usize {
        let entry = |wanted: &Wanted| size_of::<Wanted>() + wanted.key.as_bytes().len();
        let entries: usize = self.entries.iter().map(entry).sum();
        entries + self.results.len() * size_of::<PutStarted>() + size_of::<Self>()
    }
}

/// One entry of a put before it has room.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) at: usize,
    pub(crate) key: Key,
    pub(crate) hash: u64,
    pub(crate) bytes: u64,
    /// Bytes that all its replicas take in memory.
    pub(crate) charge: u64,
    pub(crate) chain: ChainPlace,
}

/// What an entry waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shortage {
    Space,
    Quota,
    /// Nothing that takes new values could hold it: a node comes, or comes back.
    Node,
    /// Room on as many hosts as it needs.
    Hosts,
}

impl Shortage {
    /// What calls wait for, the first of a tenant for all of them, that hold nobody else up.
    pub(crate) const APART: [Self; 2] = [Self::Quota, Self::Node];

    /// Whether room is made for it.
    pub(crate) fn is_of_room(self) -> bool {
        matches!(self, Self::Space | Self::Hosts)
    }
}

/// The decision about an entry, made before anything is changed.
enum Verdict {
    Decided(PutStarted),
    /// It waits, for a node or as others wait for space before it.
    Wait(Shortage),
    /// It is given room, if there is any.
    Room(Claim),
}

/// What an entry takes when it gets its room.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// The object of its key, if there is one.
    object: Option<ObjectId>,
    older: Older,
}

/// A put in flight of the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Older {
    None,
    /// Its writer is late: it is ended before room is looked for, as its room may be needed.
    Stale,
    /// It is ended once the new put has room, and not while that may still be refused.
    Live,
}

/// Replicas without which a put is refused: one, or all that it asks for.
fn needed(config: &PutConfig) -> usize {
    match config.durability {
        Durability::Replicated => config.replicas as usize,
        Durability::Memory | Durability::Disk => 1,
    }
}

/// Farthest position in a chain that is told from farther ones: policies count on from it without an overflow.
const POSITION_MAX: u32 = 1 << 30;

impl Master {
    pub(crate) fn put_start(&mut self, now: Instant, caller: &Caller, mut start: PutStart) {
        let tenant = match self.put_tenant(&start) {
            Ok(tenant) => tenant,
            Err(code) => {
                return self
                    .outbox
                    .reply(caller.client, caller.operation, Reply::Failed(code));
            }
        };
        start.config.preferred.truncate(PREFERRED_MAX);
        let mut call = PutCall {
            caller: caller.clone(),
            tenant,
            wish: Wishes::of(&self.segments, &start.config.preferred),
            results: vec![PutStarted::Exists; start.entries.len()],
            entries: self.wanted(tenant, &start),
            config: start.config,
            number: None,
        };
        match self.grant_all(now, &mut call) {
            None => self.answer_put(call),
            Some(short) => self.wait_or_refuse(now, call, short),
        }
    }

    pub(crate) fn answer_put(&mut self, call: PutCall) {
        let Caller {
            client, operation, ..
        } = call.caller;
        self.outbox
            .reply(client, operation, Reply::PutStart(call.results));
    }

    /// The tenant of the put, if the request as a whole is valid.
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

    fn wanted(&self, tenant: TenantIndex, start: &PutStart) -> VecDeque<Wanted> {
        let replicas = u64::from(start.config.replicas);
        let mut chain = self.chain_start(tenant, &start.chain);
        let all = start.entries.iter().enumerate();
        all.map(|(at, entry)| {
            let hash = self.tenants.hash(tenant, &entry.key);
            let wanted = Wanted {
                at,
                key: entry.key.clone(),
                hash,
                bytes: entry.bytes,
                charge: self.charge_of(entry.bytes).saturating_mul(replicas),
                chain,
            };
            chain = ChainPlace {
                parent: Some(hash),
                position: chain.position + 1,
                ..chain
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
            position: chain.position.min(POSITION_MAX),
            hint: chain.hint,
            expect: chain.expect,
            output_tokens: chain.output_tokens,
        }
    }

    /// Gives room to entries in order; stops at the first for which there is none.
    pub(crate) fn grant_all(&mut self, now: Instant, call: &mut PutCall) -> Option<Shortage> {
        while let Some(wanted) = call.entries.front() {
            let result = match self.grant(now, call, wanted) {
                Ok(result) => result,
                Err(short) => return Some(short),
            };
            match result {
                PutStarted::Granted { .. } => self.metrics.puts_granted += 1,
                PutStarted::Exists => self.metrics.puts_existed += 1,
                PutStarted::Failed(_) => self.metrics.puts_refused += 1,
            }
            call.results[wanted.at] = result;
            call.entries.pop_front();
        }
        None
    }

    /// Decides about an entry without changing anything.
    fn plan_put(&self, now: Instant, call: &PutCall, wanted: &Wanted) -> Verdict {
        let failed = |code| Verdict::Decided(PutStarted::Failed(code));
        let (tenant, config) = (call.tenant, &call.config);
        let object = self.catalog.find(tenant, &wanted.key, wanted.hash);
        let older = match object.map_or(Ok(Older::None), |id| self.may_put(now, id, config)) {
            Ok(older) => older,
            Err(result) => return Verdict::Decided(result),
        };
        if let Err(code) = self.put_limits(tenant, config, wanted, object.is_none()) {
            return failed(code);
        }
        match self.lent_for(config, wanted) {
            Ok(()) => {}
            // After a restart of the master, nodes come one after the other.
            Err(ErrorCode::NoAvailableHandle) => return Verdict::Wait(Shortage::Node),
            Err(_) if self.is_partial() => return Verdict::Wait(Shortage::Node),
            Err(code) => return failed(code),
        }
        let charge = wanted.charge;
        if self.queue.holds_back(call, charge) {
            return Verdict::Wait(call.short_of_room());
        }
        let allowed = self.tenants.allowed(tenant, Ledger::Memory);
        if allowed.is_some_and(|allowed| charge > allowed) {
            return failed(ErrorCode::TenantQuotaExceeded);
        }
        Verdict::Room(Claim { object, older })
    }

    fn grant(
        &mut self,
        now: Instant,
        call: &PutCall,
        wanted: &Wanted,
    ) -> Result<PutStarted, Shortage> {
        let claim = match self.plan_put(now, call, wanted) {
            Verdict::Decided(result) => return Ok(result),
            Verdict::Wait(short) => return Err(short),
            Verdict::Room(claim) => claim,
        };
        let tenant = call.tenant;
        if let (Older::Stale, Some(object)) = (claim.older, claim.object) {
            self.preempt(now, tenant, object);
        }
        if !self.fit_quota(now, tenant, Ledger::Memory, wanted.charge) {
            return Err(Shortage::Quota);
        }
        let spared = self.queue.spared(call);
        let replicas = self.allocate(call, wanted.bytes, spared);
        if replicas.is_empty() {
            return Err(call.short_of_room());
        }
        if spared.is_none() {
            self.room_taken(now);
        }
        if replicas.len() < call.config.replicas as usize {
            self.metrics.puts_partial += 1;
        }
        if let (Older::Live, Some(object)) = (claim.older, claim.object) {
            self.preempt(now, tenant, object);
        }
        self.queue.granted(tenant, wanted.charge);
        Ok(self.open_put(now, call, wanted, replicas))
    }

    /// Whether the key is free for this put, and the put in flight that has to be ended for it.
    fn may_put(&self, now: Instant, id: ObjectId, config: &PutConfig) -> Result<Older, PutStarted> {
        let object = self.catalog.object(id);
        // What nobody can read may be put again; the put replaces it.
        let complete = self.segments.is_readable(&self.catalog, id);
        if config.mode == PutMode::Create && complete {
            return Err(PutStarted::Exists);
        }
        if complete && config.group.is_some() && config.group != self.groups.of(id) {
            return Err(PutStarted::Failed(ErrorCode::InvalidParams));
        }
        if object.is(Mark::Open) {
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
        let members = config
            .group
            .map_or(0, |group| self.groups.size((tenant, group)));
        if wanted.bytes == 0 || members >= limits.group_members {
            return Err(ErrorCode::InvalidParams);
        }
        if is_new && self.catalog.len() >= limits.objects {
            return Err(ErrorCode::NoAvailableHandle);
        }
        if self.puts.open.len() >= limits.open_puts {
            return Err(ErrorCode::TaskPendingLimitExceeded);
        }
        Ok(())
    }

    /// Whether what is lent could hold it, were it empty; `NoAvailableHandle` when no memory is lent at all, or what is
    /// large enough takes nothing now.
    fn lent_for(&self, config: &PutConfig, wanted: &Wanted) -> Result<(), ErrorCode> {
        let largest = |counts: &dyn Fn(&Segment) -> bool| {
            let all = self.segments.iter().filter(|(_, it)| counts(it));
            let memory = all.filter_map(|(_, segment)| segment.memory());
            memory.map(|memory| memory.extents.books().capacity).max()
        };
        let charge = self.charge_of(wanted.bytes);
        let needed = needed(config);
        let too_few = |counts: &dyn Fn(&Segment) -> bool| {
            if needed == 1 {
                return false;
            }
            let could = |segment: &Segment| {
                let capacity = segment.memory().map(|it| it.extents.books().capacity);
                capacity >= Some(charge) && counts(segment)
            };
            let all = self.segments.iter().map(|(_, segment)| segment);
            let domains = all.filter(|segment| could(segment)).map(Segment::domain);
            let domains: BTreeSet<Domain<'_>> = domains.collect();
            domains.len() < needed
        };
        let no_disk = config.durability == Durability::Disk
            && self.segments.iter().all(|(_, it)| it.disk().is_none());
        match largest(&|_| true) {
            None => Err(ErrorCode::NoAvailableHandle),
            Some(largest) if charge > largest => Err(ErrorCode::InvalidParams),
            Some(_) if no_disk => Err(ErrorCode::UnableOffload),
            Some(_) if too_few(&|_| true) => Err(ErrorCode::TooFewHosts),
            Some(_)
                if largest(&Segment::takes_new) < Some(charge) || too_few(&Segment::takes_new) =>
            {
                Err(ErrorCode::NoAvailableHandle)
            }
            Some(_) => Ok(()),
        }
    }

    /// Allocates on as many different segments as replicas are asked for, or on fewer, or on that many hosts where all are needed;
    /// on none when there is no room.
    fn allocate(&mut self, call: &PutCall, bytes: u64, spared: Option<u64>) -> Vec<ReplicaId> {
        let (mut found, config) = (Vec::new(), &call.config);
        let charge = self.charge_of(bytes);
        let mut left =
            spared.map(|bytes| LeftRoom::new(&self.segments, bytes, self.charge_of(bytes)));
        let stays = |left: &Option<LeftRoom>, segments: &Segments, index| {
            let left = left.as_ref();
            left.is_none_or(|left| left.stays(index, segments.at(index), charge))
        };
        let mut ranked = placement::rank(
            &self.segments,
            &mut *self.placement,
            call.caller.host.as_deref(),
            &config.preferred,
        );
        if config.durability == Durability::Replicated {
            ranked.retain(|index| stays(&left, &self.segments, *index));
            ranked = self.one_a_host(&ranked, bytes);
            if ranked.len() < needed(config) {
                return found;
            }
        }
        for index in ranked {
            if found.len() == config.replicas as usize {
                break;
            }
            if stays(&left, &self.segments, index) {
                found.extend(self.segments.allocate(&mut self.catalog, index, bytes));
            }
            if let Some(left) = &mut left {
                left.taken(index, self.segments.at(index));
            }
        }
        found
    }

    /// Of these segments those with room, the first of each host.
    fn one_a_host(&self, ranked: &[SegmentIndex], bytes: u64) -> Vec<SegmentIndex> {
        let mut domains = BTreeSet::new();
        let mut roomy = ranked.to_vec();
        roomy.retain(|index| {
            let segment = self.segments.at(*index);
            segment.has_room(bytes) && domains.insert(segment.domain())
        });
        roomy
    }

    fn open_put(
        &mut self,
        now: Instant,
        call: &PutCall,
        wanted: &Wanted,
        replicas: Vec<ReplicaId>,
    ) -> PutStarted {
        let (tenant, config) = (call.tenant, &call.config);
        let version = self.numbers.version();
        let object = self
            .catalog
            .find(tenant, &wanted.key, wanted.hash)
            .unwrap_or_else(|| {
                self.tenants.at_mut(tenant).objects += 1;
                self.catalog.add(tenant, wanted.key.clone(), wanted.hash)
            });
        // What is about to be replaced is brought to memory no more.
        self.cancel_promotion(now, object);
        self.catalog.object_mut(object).mark(Mark::Open);
        let mut extents = Vec::with_capacity(replicas.len());
        for id in &replicas {
            let extent = self.extent_of(*id);
            self.tenants.charge(tenant, Ledger::Memory, extent.bytes);
            extents.push(extent);
        }
        let put = OpenPut {
            version,
            client: call.caller.client,
            operation: call.caller.operation,
            bytes: wanted.bytes,
            replicas,
            started: now,
            pin: config.pin,
            group: config.group,
            durability: config.durability,
            needed: needed(config),
            chain: wanted.chain,
            wish: call.wish.clone(),
        };
        self.puts.add(object, put);
        self.due
            .set(Due::Put(object), now + self.config.put.release_timeout);
        PutStarted::Granted { version, extents }
    }
}
