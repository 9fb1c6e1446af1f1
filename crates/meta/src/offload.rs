//! Offload: what is written to SSD and when, and its effects on memory.

use std::collections::BTreeMap;

use slackwater_base::{Instant, Map};
use slackwater_wire::{
    DiskEntry, ErrorCode, NodeId, OffloadTask, ReplicaState, SegmentKind, TaskFailure, TicketId,
    Version,
};

use crate::catalog::{Excluded, Mark, ObjectId, Replica, ReplicaId, SegmentIndex, TenantIndex};
use crate::config::OffloadMode;
use crate::evict::{Link, Slot};
use crate::master::{Due, Master};
use crate::outbox::Waiter;
use crate::pressure::{Evictable, Evicted, Pass};
use crate::prospect;
use crate::publish::{self, Fresh};
use crate::put::ChainPosition;
use crate::release::Reason;
use crate::segment::record_bytes;
use crate::tenant::Ledger;

/// Members of a group that are examined for whether the group is worth writing; a group of one block has fewer.
const GROUP_SAMPLE: usize = 64;

/// Offloads under way, at most one for each version and SSD.
#[derive(Default)]
pub(crate) struct Offloads {
    tickets: Map<TicketId, Offloading>,
    of: BTreeMap<(Version, SegmentIndex), TicketId>,
}

/// One object on its way to SSD. Its source replica is held until the report.
struct Offloading {
    /// None when the object was removed or replaced meanwhile.
    object: Option<ObjectId>,
    entry: DiskEntry,
    hash: u64,
    bytes: u64,
    tenant: TenantIndex,
    source: ReplicaId,
    disk: SegmentIndex,
    cause: Cause,
    waiters: Vec<Waiter>,
}

/// Why an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Its put ended.
    Eager,
    /// It is evicted from memory.
    Eviction,
    /// Its put is acknowledged once it is on SSD.
    Promise,
}

/// The outcome of a request for an offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffloadStart {
    Queued(TicketId),
    /// The queue is full, or an older record is still being dropped.
    NotNow,
    /// There is no SSD that accepts it.
    NoDisk,
    /// The value is too long for the SSD, however empty it is.
    TooLong,
    /// The SSD would evict it first.
    NotWorth,
}

impl Master {
    /// Queues a memory replica to be written to its owner's SSD.
    pub(crate) fn offload(
        &mut self,
        now: Instant,
        source: ReplicaId,
        cause: Cause,
    ) -> OffloadStart {
        let replica = *self.catalog.replica(source);
        let id = replica.object().expect("published replicas have an object");
        let node = self.segments.at(replica.segment).node;
        let object = self.catalog.object(id);
        let (hash, bytes, version, tenant) =
            (object.hash, object.bytes, object.version, object.tenant);
        let record = record_bytes(bytes);
        if object.is(Mark::Shed) {
            self.metrics.offload.skipped_no_disk += 1;
            return OffloadStart::NoDisk;
        }
        let disk = match self.disk_for(now, node, record) {
            Ok(disk) => disk,
            Err(asked) => {
                self.metrics.offload.skipped_no_disk += 1;
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
        if self.segments.at(disk).used() + record_bytes(object.bytes) <= self.marks(disk).1 {
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
        let ticket = self.ticket();
        let entry = self.entry(id);
        let object = self.catalog.object(id);
        let (hash, bytes, tenant, checksum) =
            (object.hash, object.bytes, object.tenant, object.checksum);
        let version = object.version;
        self.tenants
            .charge(tenant, Ledger::Disk, record_bytes(bytes));
        let segment = self.segments.at_mut(disk);
        segment.disk_mut().expect("offloads go to SSD").reserved += record_bytes(bytes);
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

    /// The key, tenant and version of an object's record.
    pub(crate) fn entry(&self, id: ObjectId) -> DiskEntry {
        let object = self.catalog.object(id);
        let tenant = self.tenants.at(object.tenant).tenant.clone();
        DiskEntry {
            tenant,
            key: object.key.clone(),
            version: object.version,
        }
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
        if !disk.accepting || now < disk.refusing_until {
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
            let mut budget = self.config.eviction.step;
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

    /// Evicts the last memory copy of an object that is not on SSD.
    pub(crate) fn evict_dirty(&mut self, now: Instant, id: ReplicaId) -> Evicted {
        let mode = self.config.offload.mode;
        let start = match mode {
            OffloadMode::Off => OffloadStart::NoDisk,
            // In eager mode it was offered when its put ended, and refused.
            OffloadMode::Eager | OffloadMode::OnEvict | OffloadMode::OnEvictForced => {
                self.offload(now, id, Cause::Eviction)
            }
        };
        match (start, mode) {
            (OffloadStart::Queued(_), _) => Evicted::Bytes(self.mark_leaving(now, id)),
            // It remains the next victim; the report that makes room in the queue resumes the eviction.
            (OffloadStart::NotNow, OffloadMode::Eager | OffloadMode::OnEvict) => Evicted::Stalled,
            _ => self.evict_now(now, id),
        }
    }

    pub(crate) fn offloaded(
        &mut self,
        now: Instant,
        node: NodeId,
        results: &[(TicketId, Result<(), TaskFailure>)],
    ) {
        let mut fresh = Vec::new();
        for (ticket, result) in results {
            let known = self.offloads.tickets.get(ticket);
            if known.is_some_and(|offloading| self.segments.at(offloading.disk).node == node) {
                self.end_offload(now, *ticket, *result, &mut fresh);
            }
        }
        publish::introduce(
            &mut self.catalog,
            &mut self.segments,
            self.config.offload.mode,
            now,
            &mut fresh,
        );
        self.resume(now, node);
    }

    fn end_offload(
        &mut self,
        now: Instant,
        ticket: TicketId,
        result: Result<(), TaskFailure>,
        fresh: &mut Vec<Fresh>,
    ) {
        let offloading = self.close_offload(ticket);
        let record = record_bytes(offloading.bytes);
        let metrics = &mut self.metrics.offload;
        match (result, offloading.object) {
            (_, None) => metrics.cancelled += 1,
            (Ok(()), Some(_)) => {
                metrics.completed += 1;
                metrics.completed_bytes += offloading.bytes;
            }
            (Err(_), Some(_)) => metrics.failed += 1,
        }
        if let (Ok(()), Some(object)) = (result, offloading.object) {
            let disk = self
                .segments
                .at_mut(offloading.disk)
                .disk_mut()
                .expect("offloads go to SSD");
            disk.live += record;
            let prospect = prospect::take(
                &mut self.catalog,
                &self.segments,
                offloading.source,
                offloading.disk,
            );
            let source = self.catalog.replica(offloading.source);
            let standing = self
                .segments
                .at(source.segment)
                .policy
                .standing(now, Slot(source.slot));
            let added = self.add_disk_replica(object, offloading.disk, prospect);
            if prospect.is_none() {
                fresh.push(Fresh { standing, ..added });
            }
        } else {
            self.tenants.refund(offloading.tenant, Ledger::Disk, record);
        }
        for waiter in &offloading.waiters {
            if let Err(failure) = result {
                self.acks.fail(*waiter, code_of(failure));
            }
            self.acks.done(waiter.ack, &mut self.outbox);
        }
        if let Err(TaskFailure::NoRoom | TaskFailure::Device | TaskFailure::Failing) = result {
            let until = now + self.config.offload.retry_after;
            self.segments
                .at_mut(offloading.disk)
                .disk_mut()
                .expect("offloads go to SSD")
                .refusing_until = until;
        }
        match (result, offloading.object) {
            // The device failed during the write: the next opening of the log may find the record, which no table here
            // has and no removal would drop. So it is dropped now, and a removal waits for that.
            (Err(TaskFailure::Device), Some(_)) => {
                self.drop_record(
                    offloading.disk,
                    offloading.hash,
                    offloading.entry.clone(),
                    None,
                );
            }
            (Err(TaskFailure::TooLarge), _) => self.shed(offloading.hash, &offloading.entry),
            _ => {}
        }
        self.let_go(now, &offloading, result);
    }

    /// Releases the source; if it was being evicted, it is freed now unless it was read meanwhile.
    ///
    /// A node never accepts a version that its log was once told to drop, because the SSD evicted it before, nor a
    /// value that is too large. A retry would be refused again for ever, so such an object is evicted as if there were
    /// no SSD.
    fn let_go(&mut self, now: Instant, offloading: &Offloading, result: Result<(), TaskFailure>) {
        let source = offloading.source;
        let leaving = offloading.object.is_some()
            && self.catalog.replica(source).excluded == Excluded::Leaving;
        if leaving {
            self.include(source);
        }
        self.unhold(now, source);
        if !leaving {
            return;
        }
        let forced = self.config.offload.mode == OffloadMode::OnEvictForced;
        let settled = matches!(
            result,
            Ok(()) | Err(TaskFailure::Cancelled | TaskFailure::TooLarge)
        );
        if (settled || forced) && self.evictable(now, source) == Evictable::Now {
            self.evict_now(now, source);
        }
    }

    fn close_offload(&mut self, ticket: TicketId) -> Offloading {
        let offloading = self
            .offloads
            .tickets
            .remove(&ticket)
            .expect("only open tickets are closed");
        self.offloads
            .of
            .remove(&(offloading.entry.version, offloading.disk));
        self.due.cancel(Due::Offload(ticket));
        self.metrics.offload.in_flight -= 1;
        let disk = self
            .segments
            .at_mut(offloading.disk)
            .disk_mut()
            .expect("offloads go to SSD");
        disk.reserved -= record_bytes(offloading.bytes);
        offloading
    }

    /// Adds the record of the object's value on this SSD. Its bytes are counted in the segment already.
    pub(crate) fn add_disk_replica(
        &mut self,
        object: ObjectId,
        index: SegmentIndex,
        known_as: Option<Slot>,
    ) -> Fresh {
        let id = self.catalog.add_replica(Replica::new(index, 0, 0));
        let segment = self.segments.at_mut(index);
        let Slot(slot) = match known_as {
            Some(slot) => {
                segment.renumber(slot, id);
                slot
            }
            None => segment.number(id),
        };
        self.catalog.replica_mut(id).slot = slot;
        debug_assert_eq!(self.catalog.replica(id).state, ReplicaState::Processing);
        publish::attach(
            &mut self.catalog,
            &mut self.tenants,
            object,
            id,
            Ledger::Disk,
        );
        let record = self.catalog.object(object);
        let chain = ChainPosition::default();
        Fresh {
            segment: index,
            slot,
            hash: record.hash,
            bytes: record.bytes,
            chain,
            standing: None,
        }
    }

    /// Cancels offloads of these replicas of an object: their records must not become live.
    pub(crate) fn cancel_offloads(
        &mut self,
        id: ObjectId,
        of: impl Fn(ReplicaId) -> bool,
        waiter: Option<Waiter>,
    ) {
        let version = self.catalog.object(id).version;
        let range = (version, SegmentIndex(0))..=(version, SegmentIndex(u16::MAX));
        let tickets = self.offloads.of.range(range).map(|(_, ticket)| *ticket);
        let tickets: Vec<TicketId> = tickets
            .filter(|ticket| of(self.offloads.tickets[ticket].source))
            .collect();
        for ticket in tickets {
            let offloading = self
                .offloads
                .tickets
                .get_mut(&ticket)
                .expect("both tables agree");
            offloading.object = None;
            let (disk, hash, entry) = (offloading.disk, offloading.hash, offloading.entry.clone());
            for promised in std::mem::take(&mut offloading.waiters) {
                self.acks.fail(promised, ErrorCode::ObjectNotFound);
                self.acks.done(promised.ack, &mut self.outbox);
            }
            self.drop_record(disk, hash, entry, waiter);
        }
    }

    pub(crate) fn offload_expired(&mut self, now: Instant, ticket: TicketId) {
        let offloading = self.close_offload(ticket);
        self.metrics.offload.expired += 1;
        self.tenants.refund(
            offloading.tenant,
            Ledger::Disk,
            record_bytes(offloading.bytes),
        );
        for waiter in &offloading.waiters {
            self.acks.fail(*waiter, ErrorCode::RpcTimeout);
            self.acks.done(waiter.ack, &mut self.outbox);
        }
        // If the record is written after all, no table here has it, so it must be dropped.
        self.drop_record(
            offloading.disk,
            offloading.hash,
            offloading.entry.clone(),
            None,
        );
        let node = self.segments.at(offloading.disk).node;
        self.let_go(now, &offloading, Err(TaskFailure::Device));
        self.resume(now, node);
    }

    /// Resumes evictions of this node that waited for something that has ended.
    pub(crate) fn resume(&mut self, now: Instant, node: NodeId) {
        for index in self.segments.of_node(node) {
            self.relieve(now, index);
        }
        self.serve(now);
    }

    /// A segment is being removed: offloads from or to it fail.
    pub(crate) fn lose_offloads(&mut self, now: Instant, index: SegmentIndex) {
        let hit = |offloading: &Offloading| {
            offloading.disk == index || self.catalog.replica(offloading.source).segment == index
        };
        let mut tickets: Vec<TicketId> = self
            .offloads
            .tickets
            .iter()
            .filter(|(_, it)| hit(it))
            .map(|(ticket, _)| *ticket)
            .collect();
        tickets.sort_unstable();
        for ticket in tickets {
            let offloading = self.close_offload(ticket);
            self.metrics.offload.failed += 1;
            self.tenants.refund(
                offloading.tenant,
                Ledger::Disk,
                record_bytes(offloading.bytes),
            );
            for waiter in &offloading.waiters {
                self.acks
                    .fail(*waiter, ErrorCode::UnavailableInCurrentStatus);
                self.acks.done(waiter.ack, &mut self.outbox);
            }
            if offloading.disk != index && offloading.object.is_some() {
                self.drop_record(
                    offloading.disk,
                    offloading.hash,
                    offloading.entry.clone(),
                    None,
                );
            }
            self.let_go(now, &offloading, Err(TaskFailure::Device));
        }
    }

    /// Number of offloads that hold this replica.
    pub(crate) fn offloads_from(&self, id: ReplicaId) -> usize {
        let Some(object) = self.catalog.replica(id).object() else {
            return 0;
        };
        let version = self.catalog.object(object).version;
        let range = (version, SegmentIndex(0))..=(version, SegmentIndex(u16::MAX));
        self.offloads
            .of
            .range(range)
            .filter(|(_, ticket)| self.offloads.tickets[*ticket].source == id)
            .count()
    }

    /// Whether an eviction may drop the replica at once, because its object has another copy.
    pub(crate) fn is_clean(&self, id: ReplicaId) -> bool {
        let object = self
            .catalog
            .replica(id)
            .object()
            .expect("published replicas have an object");
        self.catalog.replicas(object).nth(1).is_some()
    }

    /// Frees a replica that may be evicted.
    pub(crate) fn evict_now(&mut self, now: Instant, id: ReplicaId) -> Evicted {
        let replica = *self.catalog.replica(id);
        let object = replica.object().expect("published replicas have an object");
        let bytes = match self.segments.at(replica.segment).kind() {
            SegmentKind::Memory => {
                let bytes = self
                    .segments
                    .at(replica.segment)
                    .extent(replica.piece)
                    .bytes;
                self.metrics.evictions += 1;
                self.metrics.eviction_bytes += bytes;
                bytes
            }
            SegmentKind::Disk => {
                let bytes = record_bytes(self.catalog.object(object).bytes);
                self.metrics.disk_evictions += 1;
                self.metrics.disk_eviction_bytes += bytes;
                let (hash, entry) = (self.catalog.object(object).hash, self.entry(object));
                // The log refuses the version that it was told to drop as long as the tombstone exists, and an object
                // that the SSD evicts is old in memory too.
                self.shed(hash, &entry);
                self.drop_record(replica.segment, hash, entry, None);
                bytes
            }
        };
        self.discard(now, id, Reason::Evicted);
        self.erase_if_empty(now, object);
        Evicted::Bytes(bytes)
    }
}

fn code_of(failure: TaskFailure) -> ErrorCode {
    match failure {
        TaskFailure::NoRoom => ErrorCode::DiskFull,
        TaskFailure::TooLarge => ErrorCode::ValueTooLong,
        TaskFailure::Device | TaskFailure::Failing => ErrorCode::WriteFail,
        TaskFailure::Stale => ErrorCode::ReplicaIsGone,
        TaskFailure::Cancelled => ErrorCode::ObjectNotFound,
    }
}
