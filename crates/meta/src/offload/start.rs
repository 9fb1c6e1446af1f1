//! Starts of offloads: what is worth writing, and whether there is room and quota for it.

use slackwater_base::Instant;
use slackwater_wire::{ErrorCode, NodeId, OffloadTask, SegmentKind};

use super::{Cause, OffloadStart, Offloading};
use crate::catalog::{Mark, ObjectId, Replica, ReplicaId, SegmentIndex};
use crate::config::OffloadMode;
use crate::decisions::{Choice, Kind};
use crate::evict::{Link, Slot};
use crate::master::{Due, Master};
use crate::outbox::Waiter;
use crate::pressure::Pass;
use crate::segment::record_bytes;
use crate::tenant::Ledger;

/// Members of a group that are examined for whether the group is worth writing; a group of one block has fewer.
const GROUP_SAMPLE: usize = 64;

impl Master {
    /// Queues a memory replica to be written to its owner's SSD.
    pub(crate) fn offload(
        &mut self,
        now: Instant,
        source: ReplicaId,
        cause: Cause,
    ) -> OffloadStart {
        let start = self.try_offload(now, source, cause);
        self.decided_not_to_offload(now, source, start);
        start
    }

    fn try_offload(&mut self, now: Instant, source: ReplicaId, cause: Cause) -> OffloadStart {
        let replica = *self.catalog.replica(source);
        let id = replica.object().expect("published replicas have an object");
        let node = self.segments.at(replica.segment).node;
        let object = self.catalog.object(id);
        let (hash, bytes, version, tenant) =
            (object.hash, object.bytes, object.version, object.tenant);
        let record = record_bytes(&object.key, bytes);
        if object.is(Mark::Shed) {
            self.metrics.offload.skipped_no_disk += 1;
            return OffloadStart::NoDisk;
        }
        let disk = match self.disk_for(now, node, record) {
            Ok(disk) => disk,
            Err(asked) => {
                match self.has_failing_disk(node) {
                    true => self.metrics.offload.skipped_failing += 1,
                    false => self.metrics.offload.skipped_no_disk += 1,
                }
                return asked;
            }
        };
        if let Some(ticket) = self.offloads.of.get(&(version, disk)) {
            return OffloadStart::Queued(*ticket);
        }
        if self.queue_is_full(cause) || self.drops.is_pending(hash, version, disk) {
            self.metrics.offload.skipped_full += 1;
            return OffloadStart::NotNow;
        }
        if cause != Cause::Promise && !self.is_worth_writing(now, source, disk) {
            self.metrics.offload.skipped_not_worth += 1;
            return OffloadStart::NotWorth;
        }
        if !self.fit_quota(now, tenant, Ledger::Disk, record) || !self.fit_disk(now, disk, record) {
            self.metrics.offload.skipped_no_disk += 1;
            return OffloadStart::NoDisk;
        }
        self.issue(now, id, source, disk, cause)
    }

    /// Whether the SSD has free room, or would keep the object longer than something that it holds. For a group it is
    /// enough that one member is worth it, as a part of a block is of no use without the others.
    fn is_worth_writing(&mut self, now: Instant, source: ReplicaId, disk: SegmentIndex) -> bool {
        let replica = self.catalog.replica(source);
        let (id, above) = (
            replica.object().expect("published replicas have an object"),
            replica.segment,
        );
        let object = self.catalog.object(id);
        if !object.is(Mark::Group) {
            return self.is_worth_writing_alone(now, source, disk);
        }
        let members = self
            .groups
            .members(object.tenant, id)
            .flat_map(|member| self.catalog.replicas(member));
        let members = members
            .filter(|(_, it)| it.segment == above)
            .map(|(id, _)| id);
        let members: Vec<ReplicaId> = members.take(GROUP_SAMPLE).collect();
        members
            .into_iter()
            .any(|id| self.is_worth_writing_alone(now, id, disk))
    }

    fn is_worth_writing_alone(
        &mut self,
        now: Instant,
        source: ReplicaId,
        disk: SegmentIndex,
    ) -> bool {
        let replica = *self.catalog.replica(source);
        let object = self
            .catalog
            .object(replica.object().expect("published replicas have an object"));
        let link = Link {
            hash: object.hash,
            slot: None,
            bytes: object.bytes,
        };
        if self.segments.at(disk).used() + record_bytes(&object.key, object.bytes)
            <= self.marks(disk).1
        {
            return true;
        }
        let known = self.segments.at(disk);
        let standing = match replica.prospect() {
            Some(slot) => known.policy.standing(now, slot),
            None => self
                .segments
                .at(replica.segment)
                .policy
                .standing(now, Slot(replica.slot)),
        };
        let policy = &mut self.segments.at_mut(disk).policy;
        match standing {
            Some(standing) => policy.would_keep_as(now, link, standing),
            None => policy.would_keep(now, link),
        }
    }

    fn issue(
        &mut self,
        now: Instant,
        id: ObjectId,
        source: ReplicaId,
        disk: SegmentIndex,
        cause: Cause,
    ) -> OffloadStart {
        self.decided(now, source, Kind::Offload, Choice::Offloaded(cause));
        let ticket = self.numbers.ticket();
        let entry = self.entry(id);
        let object = self.catalog.object(id);
        let (hash, bytes, tenant, checksum) =
            (object.hash, object.bytes, object.tenant, object.checksum);
        let version = object.version;
        let record = record_bytes(&object.key, bytes);
        self.tenants.charge(tenant, Ledger::Disk, record);
        let segment = self.segments.at_mut(disk);
        segment.disk_mut().expect("offloads go to SSD").reserved += record;
        let node = segment.node;
        let task = OffloadTask {
            ticket,
            entry: entry.clone(),
            bytes,
            checksum,
            source: self.extent_of(source),
            promised: cause == Cause::Promise,
        };
        self.hold(source);
        self.outbox.offload(node, task);
        self.offloads.of.insert((version, disk), ticket);
        let waiters = Vec::new();
        let offloading = Offloading {
            object: Some(id),
            entry,
            hash,
            bytes,
            tenant,
            source,
            disk,
            cause,
            waiters,
        };
        self.offloads.tickets.insert(ticket, offloading);
        self.due
            .set(Due::Offload(ticket), now + self.config.offload.timeout);
        self.metrics.offload.started += 1;
        self.metrics.offload.in_flight += 1;
        OffloadStart::Queued(ticket)
    }

    /// Whether the node's SSD takes nothing because its device fails.
    fn has_failing_disk(&self, node: NodeId) -> bool {
        let disk = self.segments.disk_of(node);
        disk.and_then(|index| self.segments.at(index).disk())
            .is_some_and(|disk| disk.failing)
    }

    /// The node's SSD, if it accepts a record of this length now.
    fn disk_for(
        &self,
        now: Instant,
        node: NodeId,
        record: u64,
    ) -> Result<SegmentIndex, OffloadStart> {
        let index = self.segments.disk_of(node).ok_or(OffloadStart::NoDisk)?;
        let disk = self.segments.at(index).disk().ok_or(OffloadStart::NoDisk)?;
        if record > disk.capacity {
            return Err(OffloadStart::TooLong);
        }
        let here = self.segments.at(index).takes_new();
        if !here || !disk.accepting || now < disk.refusing_until {
            return Err(OffloadStart::NoDisk);
        }
        Ok(index)
    }

    fn queue_is_full(&self, cause: Cause) -> bool {
        let offload = &self.config.offload;
        let limit = match cause {
            Cause::Eviction => (offload.queue_limit as f64 * offload.cap_ratio) as usize,
            Cause::Eager | Cause::Promise => offload.queue_limit,
        };
        self.offloads.tickets.len() >= limit
    }

    /// Whether the record fits the SSD, after evicting from it if need be.
    fn fit_disk(&mut self, now: Instant, index: SegmentIndex, record: u64) -> bool {
        let over = |master: &Self| {
            let segment = master.segments.at(index);
            (segment.used() + record).saturating_sub(segment.capacity())
        };
        let missing = over(self);
        if missing > 0 {
            let mut budget = self.config.eviction.only_step();
            self.evict(now, index, missing, Pass::Last, &mut budget);
        }
        over(self) == 0
    }

    /// Makes the waiter's answer wait until the object is durable.
    pub(crate) fn promise(&mut self, now: Instant, id: ObjectId, waiter: Waiter) {
        let in_memory = |(id, replica): (ReplicaId, &Replica)| {
            (self.segments.at(replica.segment).kind() == SegmentKind::Memory).then_some(id)
        };
        let sources: Vec<ReplicaId> = self.catalog.replicas(id).filter_map(in_memory).collect();
        let mut too_long = !sources.is_empty();
        for source in sources {
            match self.offload(now, source, Cause::Promise) {
                OffloadStart::Queued(ticket) => {
                    let waiter = self.acks.wait(waiter);
                    self.offloads
                        .tickets
                        .get_mut(&ticket)
                        .expect("just queued")
                        .waiters
                        .push(waiter);
                    return;
                }
                asked => too_long &= asked == OffloadStart::TooLong,
            }
        }
        let code = if too_long {
            ErrorCode::ValueTooLong
        } else {
            ErrorCode::UnableOffloading
        };
        self.acks.fail(waiter, code);
    }

    /// Makes the answer to a repeated put end wait for the same record as the first one.
    pub(crate) fn await_promise(&mut self, id: ObjectId, waiter: Waiter) {
        let version = self.catalog.object(id).version;
        let range = (version, SegmentIndex(0))..=(version, SegmentIndex(u16::MAX));
        for ticket in self.offloads.of.range(range).map(|(_, ticket)| *ticket) {
            let offloading = self
                .offloads
                .tickets
                .get_mut(&ticket)
                .expect("both tables agree");
            if offloading.cause == Cause::Promise {
                offloading.waiters.push(self.acks.wait(waiter));
            }
        }
    }

    /// Queues what a put published, if the mode is eager.
    pub(crate) fn offload_eagerly(&mut self, now: Instant, id: ObjectId) {
        if self.config.offload.mode != OffloadMode::Eager {
            return;
        }
        let sources: Vec<ReplicaId> = self.catalog.replicas(id).map(|(id, _)| id).collect();
        for source in sources {
            if self
                .segments
                .at(self.catalog.replica(source).segment)
                .kind()
                == SegmentKind::Memory
            {
                self.offload(now, source, Cause::Eager);
            }
        }
    }
}
