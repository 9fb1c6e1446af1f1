//! Ends of offloads: the record counts, or its room is given back, and what waited is answered.

use slackwater_base::Instant;
use slackwater_wire::{ChainPlace, ErrorCode, NodeId, ReplicaState, TaskFailure, TicketId};

use super::Offloading;
use crate::catalog::{Excluded, ObjectId, Replica, ReplicaId, SegmentIndex};
use crate::config::OffloadMode;
use crate::decisions::EvictionCause;
use crate::evict::Slot;
use crate::master::{Due, Master};
use crate::outbox::Waiter;
use crate::pressure::Evictable;
use crate::prospect;
use crate::publish::{self, Fresh};
use crate::tenant::Ledger;

impl Master {
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
        self.unsettled.resume(&self.segments, node);
    }

    fn end_offload(
        &mut self,
        now: Instant,
        ticket: TicketId,
        result: Result<(), TaskFailure>,
        fresh: &mut Vec<Fresh>,
    ) {
        let offloading = self.close_offload(ticket);
        let record = offloading.record();
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
        self.wake_drains_of(&offloading);
    }

    /// Releases the source; if it was being evicted, it is freed now unless it was read meanwhile.
    ///
    /// A node never accepts a version that its log was once told to drop, because the SSD evicted it before, nor a
    /// value that is too large. A retry would be refused again for ever, so such an object is evicted as if there were
    /// no SSD.
    fn let_go(&mut self, now: Instant, offloading: &Offloading, result: Result<(), TaskFailure>) {
        let source = offloading.source;
        if !self.release_source(now, offloading) {
            return;
        }
        let forced = self.config.offload.mode == OffloadMode::OnEvictForced;
        let settled = matches!(
            result,
            Ok(()) | Err(TaskFailure::Cancelled | TaskFailure::TooLarge)
        );
        if (settled || forced) && self.evictable(now, source) == Evictable::Now {
            let cause = match result {
                Ok(()) => EvictionCause::Written,
                Err(_) => EvictionCause::Room,
            };
            let before = std::mem::replace(&mut self.decisions.cause, cause);
            self.evict_now(now, source);
            self.decisions.cause = before;
        }
    }

    /// Whether the source was being evicted: it may be read and evicted like any other now.
    fn release_source(&mut self, now: Instant, offloading: &Offloading) -> bool {
        let source = offloading.source;
        let leaving = offloading.object.is_some()
            && self.catalog.replica(source).excluded == Excluded::Leaving;
        if leaving {
            self.include(source);
        }
        self.unhold(now, source);
        leaving
    }

    /// Drains may wait for the source, or, where its object has a new record, for any other replica of it.
    fn wake_drains_of(&mut self, offloading: &Offloading) {
        self.wake_drains(offloading.source);
        if let Some(object) = offloading.object {
            self.wake_drains_at(object);
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
        disk.reserved -= offloading.record();
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
        self.attach(object, id, Ledger::Disk);
        let record = self.catalog.object(object);
        let chain = ChainPlace::default();
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
        self.tenants
            .refund(offloading.tenant, Ledger::Disk, offloading.record());
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
        self.wake_drains_of(&offloading);
        self.unsettled.resume(&self.segments, node);
    }

    /// Segments are being removed: offloads from or to them fail. What was written to an SSD that is lost need not be dropped: if
    /// it is back, so is the table.
    pub(crate) fn lose_offloads(&mut self, now: Instant, lost: &[SegmentIndex]) {
        let above = |offloading: &Offloading| self.catalog.replica(offloading.source).segment;
        let hit = |offloading: &Offloading| {
            lost.contains(&offloading.disk) || lost.contains(&above(offloading))
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
            self.tenants
                .refund(offloading.tenant, Ledger::Disk, offloading.record());
            for waiter in &offloading.waiters {
                self.acks
                    .fail(*waiter, ErrorCode::UnavailableInCurrentStatus);
                self.acks.done(waiter.ack, &mut self.outbox);
            }
            if !lost.contains(&offloading.disk) && offloading.object.is_some() {
                let entry = offloading.entry.clone();
                self.drop_record(offloading.disk, offloading.hash, entry, None);
            }
            // What is on a lost segment makes no room by leaving it, and would not live on without it.
            let above = self.catalog.replica(offloading.source).segment;
            match lost.contains(&above) {
                true => _ = self.release_source(now, &offloading),
                false => self.let_go(now, &offloading, Err(TaskFailure::Device)),
            }
            self.wake_drains_of(&offloading);
        }
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
