//! Further replicas of objects that are read much, in memory of other nodes, so that one node need not serve all readers.
//!
//! Each read of an object in memory is counted; with enough of them in a window it is proposed. A proposal never makes room: it
//! takes memory that is free below a watermark, and within the quota of its tenant. What it made is an extra replica, the first
//! to go when memory is short.

use std::collections::BTreeMap;
use std::sync::Arc;

use slackwater_base::Instant;
use slackwater_wire::{NodeId, Presence, ReplicaState, SegmentId, SegmentKind};

use crate::catalog::{Excluded, Mark, ObjectId, ReplicaId, SegmentIndex, TenantIndex};
use crate::config::{Replication, ReplicationMode};
use crate::jobs::{Unit, Whose};
use crate::master::Master;
use crate::pressure::Evicted;
use crate::segment::Segment;
use crate::tenant::Ledger;

mod extras;
mod heat;
mod queue;

use extras::Extras;
use heat::Heat;
use queue::Queue;

/// What is read much, what is to be done about it, and what was.
pub(crate) struct Replicating {
    heat: Heat,
    queue: Queue,
    extras: Extras,
    /// Nodes to which a copy has failed, that get no other until then.
    resting: BTreeMap<NodeId, Instant>,
    /// Where the look at segments goes on.
    next_segment: usize,
}

/// Why an object gets no further replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// It has as many as it may have, or another one is on its way.
    Enough,
    /// No node without it has memory to spare.
    NoRoom,
    /// Its tenant's quota is used up.
    Quota,
    /// It cannot be read now, or is being replaced.
    Unready,
}

/// Copies that are under way at once.
const ACTIVE_MAX: usize = 16;
/// Proposals that are looked at in one step.
const STEP: usize = 64;
/// Extra replicas that are looked at for one that may go.
const EXAMINED: usize = 64;
/// Segments that are looked at for the place of one replica.
const PLACES: usize = 256;

impl Replicating {
    pub(crate) fn new(config: &Replication) -> Self {
        Self {
            heat: Heat::new(config.window, config.tracked_limit),
            queue: Queue::new(config.queue_limit),
            extras: Extras::default(),
            resting: BTreeMap::new(),
            next_segment: 0,
        }
    }

    /// Whether a node gets no copy, as one to it has failed a moment ago.
    pub(crate) fn rests(&self, now: Instant, node: NodeId) -> bool {
        self.resting.get(&node).is_some_and(|until| *until > now)
    }
}

impl Master {
    /// An object was read that is in memory.
    pub(crate) fn heat(&mut self, now: Instant, id: ObjectId) {
        let config = &self.config.replication;
        if config.mode == ReplicationMode::Off {
            return;
        }
        let threshold = config.reads;
        let version = self.catalog.object(id).version;
        let counted = self.replicating.heat.read(now, id, version);
        let metrics = &mut self.metrics.replication;
        metrics.untracked += u64::from(counted.is_none());
        if let Some(reads) = counted.filter(|reads| *reads >= threshold) {
            metrics.hot += 1;
            self.propose(now, id, reads);
        }
        self.metrics.replication.tracked = self.replicating.heat.len() as u64;
    }

    /// What is to become of it is decided at the end of the input, where the work is bounded.
    fn propose(&mut self, now: Instant, id: ObjectId, reads: u32) {
        let object = self.catalog.object(id);
        let (tenant, version, bytes) = (object.tenant, object.version, object.bytes);
        let rest = now + self.config.replication.rest;
        self.replicating.heat.rest(id, version, rest);
        let queue = &mut self.replicating.queue;
        let dropped = queue.add(now, tenant, (id, version), (reads, bytes));
        self.metrics.replication.rejected_queue += u64::from(dropped.is_some());
        self.unsettled.jobs();
    }

    fn refuse_replica(&mut self, id: ObjectId, refused: Refused) {
        let metrics = &mut self.metrics.replication;
        let count = match refused {
            Refused::Enough => &mut metrics.rejected_enough,
            Refused::NoRoom => &mut metrics.rejected_room,
            Refused::Quota => &mut metrics.rejected_quota,
            Refused::Unready => &mut metrics.rejected_unready,
        };
        *count += 1;
        if refused == Refused::Enough {
            let replicas = self.catalog.replicas(id);
            let replicas: Vec<ReplicaId> = replicas.map(|(replica, _)| replica).collect();
            for replica in replicas {
                self.replicating.extras.renew(replica);
            }
        }
    }

    /// Decides on what waits, as long as there are slots.
    pub(crate) fn work_on_replicas(&mut self, now: Instant) {
        if self.replicating.queue.len() == 0 {
            return;
        }
        let enforced = self.config.replication.mode == ReplicationMode::Enforce;
        for _ in 0..STEP {
            if enforced && self.jobs.copies_of(Whose::Heat) >= ACTIVE_MAX {
                return;
            }
            let Some(next) = self.replicating.queue.pop() else {
                return;
            };
            let id = next.object;
            let is_there = self.catalog.is_object(id);
            let late = next.at + self.config.replication.rest <= now;
            if late || !is_there || self.catalog.object(id).version != next.version {
                self.metrics.replication.rejected_unready += 1;
                continue;
            }
            match self.plan_replica(now, id) {
                Ok((source, target)) if enforced => self.begin_replica(now, id, source, target),
                Ok(_) => self.metrics.replication.observed += 1,
                Err(refused) => self.refuse_replica(id, refused),
            }
        }
        // The rest in another step.
        if self.replicating.queue.len() > 0 {
            self.unsettled.jobs();
        }
    }

    fn begin_replica(
        &mut self,
        now: Instant,
        id: ObjectId,
        source: ReplicaId,
        target: SegmentIndex,
    ) {
        let object = self.catalog.object(id);
        let to = Arc::from([self.segments.at(target).id]);
        let unit = Unit::copy_of(id, object.version, object.key.clone(), to);
        match self.begin_copy(now, Whose::Heat, unit, source, target) {
            Ok(_) => {
                self.metrics.replication.admitted += 1;
                self.metrics.replication.in_flight += 1;
            }
            Err(_) => self.refuse_replica(id, Refused::NoRoom),
        }
    }

    /// A copy for what is read much has ended: with its replica, if that is readable, or with whether its target is at fault.
    pub(crate) fn replicated(&mut self, now: Instant, unit: &Unit, made: Result<ReplicaId, bool>) {
        let metrics = &mut self.metrics.replication;
        metrics.in_flight -= 1;
        match made {
            Ok(replica) => {
                metrics.completed += 1;
                metrics.completed_bytes += self.catalog.object(unit.object).bytes;
                let segment = self.catalog.replica(replica).segment;
                let tenant = self.catalog.object(unit.object).tenant;
                self.replicating.extras.add(replica, segment, tenant);
            }
            Err(at_fault) => {
                metrics.failed += 1;
                if at_fault {
                    self.rest_target(now, unit);
                }
            }
        }
        self.count_extras();
        if self.catalog.is_object(unit.object) {
            let rest = now + self.config.replication.rest;
            let (id, version) = (unit.object, unit.version);
            self.replicating.heat.rest(id, version, rest);
        }
    }

    /// A copy has failed: another place may fare better.
    pub(crate) fn rest_target(&mut self, now: Instant, unit: &Unit) {
        let to = unit.to().first().and_then(|id| self.segments.find(*id));
        let until = now + self.config.replication.rest_after_loss;
        let resting = &mut self.replicating.resting;
        resting.retain(|_, until| *until > now);
        if let Some(index) = to {
            resting.insert(self.segments.at(index).node, until);
        }
    }

    /// From where and to where an object would be copied.
    fn plan_replica(
        &mut self,
        now: Instant,
        id: ObjectId,
    ) -> Result<(ReplicaId, SegmentIndex), Refused> {
        let config = &self.config.replication;
        let object = self.catalog.object(id);
        let charge = self.charge_of(object.bytes);
        let replicas = self.catalog.replicas(id);
        let replicas = replicas.map(|(replica, it)| (replica, it, self.segments.at(it.segment)));
        // What is on a node that is hidden serves nobody.
        let in_memory = replicas.filter(|(_, it, segment)| {
            let complete = it.state == ReplicaState::Complete;
            let memory = segment.kind() == SegmentKind::Memory;
            complete && memory && segment.presence != Presence::Hidden
        });
        let in_memory: Vec<(ReplicaId, &Segment)> = in_memory
            .map(|(replica, _, segment)| (replica, segment))
            .collect();
        let mut here = in_memory.iter();
        let here = here.find(|(_, segment)| segment.presence == Presence::Here);
        let Some((source, _)) = here.filter(|_| !object.is(Mark::Open)) else {
            return Err(Refused::Unready);
        };
        if in_memory.len() >= config.replicas_max || self.jobs.is_carried(id) {
            return Err(Refused::Enough);
        }
        if !self.is_within_quota(object.tenant, charge) {
            return Err(Refused::Quota);
        }
        let mut best: Option<((bool, f64), SegmentIndex)> = None;
        let start = self.replicating.next_segment;
        let (before, from) = (
            self.segments.iter().take(start),
            self.segments.iter().skip(start),
        );
        for (index, segment) in from.chain(before).take(PLACES) {
            let rests = self.replicating.rests(now, segment.node);
            let has_it = in_memory.iter().any(|(_, it)| it.node == segment.node);
            let memory = segment.kind() == SegmentKind::Memory;
            if !memory || has_it || rests || !segment.takes_new() {
                continue;
            }
            let (used, capacity) = (segment.used() + charge, segment.capacity());
            let free = segment.memory().map_or(0, |it| it.extents.books().free);
            let share = used as f64 / capacity as f64;
            // Beyond its own watermark a segment evicts.
            let most = config.watermark.min(self.watermarks_of(segment).high);
            if free < charge || share > most {
                continue;
            }
            let near = |it: &Segment| !it.host.is_empty() && it.host == segment.host;
            let rank = (in_memory.iter().any(|(_, it)| near(it)), share);
            if best.is_none_or(|(least, _)| rank < least) {
                best = Some((rank, index));
            }
        }
        let source = *source;
        let all = self.segments.iter().count();
        if all > PLACES {
            self.replicating.next_segment = (start + PLACES) % all;
        }
        let (_, target) = best.ok_or(Refused::NoRoom)?;
        Ok((source, target))
    }

    /// Whether so many bytes more leave a tenant below where its own objects would be evicted.
    fn is_within_quota(&self, tenant: TenantIndex, more: u64) -> bool {
        let Some(allowed) = self.tenants.allowed(tenant, Ledger::Memory) else {
            return true;
        };
        let most = (allowed as f64 * self.config.eviction.high_watermark) as u64;
        self.tenants.at(tenant).used(Ledger::Memory) + more <= most
    }

    /// Frees an extra replica of a segment, if there is one that may go; how many bytes.
    pub(crate) fn evict_extra(&mut self, now: Instant, index: SegmentIndex) -> Option<u64> {
        let extras = self.replicating.extras.at(index).take(EXAMINED);
        let extras: Vec<ReplicaId> = extras.collect();
        self.evict_first(now, extras)
    }

    /// Frees an extra replica of a tenant, if there is one that may go; how many bytes.
    pub(crate) fn evict_extra_of(&mut self, now: Instant, tenant: TenantIndex) -> Option<u64> {
        let extras = self.replicating.extras.of_tenant(tenant).take(EXAMINED);
        let extras: Vec<ReplicaId> = extras.collect();
        self.evict_first(now, extras)
    }

    fn evict_first(&mut self, now: Instant, extras: Vec<ReplicaId>) -> Option<u64> {
        for id in extras {
            let replica = self.catalog.replica(id);
            let object = replica.object().expect("an extra replica is published");
            let version = self.catalog.object(object).version;
            let others = self.catalog.replicas(object).filter(|(it, _)| *it != id);
            let mut others = others.map(|(_, it)| (it, self.segments.at(it.segment)));
            let serves = others.any(|(it, segment)| {
                let stays = segment.takes_new() && it.excluded != Excluded::Leaving;
                let memory = segment.kind() == SegmentKind::Memory;
                memory && stays && it.state == ReplicaState::Complete
            });
            if !serves {
                // It is what serves its readers now.
                self.forget_extra(id);
                continue;
            }
            // Pins are kept by the other replica; readers may be at this one.
            let used = replica.refs > 0 || self.lease_end(object) > now;
            if used || replica.excluded == Excluded::Leaving {
                // Those behind it come before it the next time.
                self.replicating.extras.renew(id);
                continue;
            }
            let rest = now + self.config.replication.rest_after_loss;
            self.metrics.replication.extras_evicted += 1;
            if let Evicted::Bytes(bytes) = self.evict_now(now, id) {
                self.replicating.heat.rest(object, version, rest);
                return Some(bytes);
            }
        }
        None
    }

    /// A caller wants the replicas of an object that are on these segments: they go as others do.
    pub(crate) fn keep_extras(&mut self, object: ObjectId, segments: &[SegmentId]) {
        let replicas = self.catalog.replicas(object);
        let named = replicas.filter(|(_, it)| segments.contains(&self.segments.at(it.segment).id));
        let named: Vec<ReplicaId> = named.map(|(id, _)| id).collect();
        named.into_iter().for_each(|id| self.forget_extra(id));
    }

    /// A replica is not readable any more.
    pub(crate) fn forget_extra(&mut self, id: ReplicaId) {
        if self.replicating.extras.remove(id) {
            self.count_extras();
        }
    }

    fn count_extras(&mut self) {
        self.metrics.replication.extras = self.replicating.extras.len() as u64;
    }
}
