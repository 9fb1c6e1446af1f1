//! Copies of values from node to node, for jobs and for what is read much.

use slackwater_base::{Instant, Planted, planted};
use slackwater_wire::{CopyTask, ErrorCode, JobId, ReplicaAt, ReplicaState, SegmentKind, TicketId};

use super::{COPY_TIME, Copying, Job, Unit};
use crate::catalog::{ReplicaId, SegmentIndex};
use crate::master::{Due, Master};
use crate::pressure::Evictable;
use crate::release::Reason;
use crate::tenant::Ledger;

/// For what a value is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// For a job.
    Job(JobId),
    /// Because it is read much.
    Heat,
    /// It is promoted to a node of its reader's host.
    Reader,
}

impl Master {
    fn job_of(&mut self, whose: Whose) -> Option<&mut Job> {
        match whose {
            Whose::Job(id) => self.jobs.all.get_mut(&id),
            Whose::Heat | Whose::Reader => None,
        }
    }

    /// Takes room at the target and has its node bring the bytes; how many.
    pub(crate) fn begin_copy(
        &mut self,
        now: Instant,
        whose: Whose,
        unit: Unit,
        source: ReplicaId,
        target: SegmentIndex,
    ) -> Result<u64, ErrorCode> {
        let record = self.catalog.object(unit.object);
        let (tenant, bytes, checksum) = (record.tenant, record.bytes, record.checksum);
        self.hold(source);
        let charge = self.charge_of(bytes);
        let fits = match whose {
            // A replica that moves takes its room twice for a moment only.
            Whose::Job(_) if unit.from.is_some() => true,
            Whose::Job(_) | Whose::Reader => self.fit_quota(now, tenant, Ledger::Memory, charge),
            // Its place was chosen within the quota: nothing goes for what nobody asked for.
            Whose::Heat => true,
        };
        let staged = match fits {
            true => self.segments.allocate(&mut self.catalog, target, bytes),
            false => None,
        };
        let Some(staged) = staged else {
            self.unhold(now, source);
            self.unsettled.press(target);
            return Err(match fits {
                true => ErrorCode::NoAvailableHandle,
                false => ErrorCode::TenantQuotaExceeded,
            });
        };
        self.room_taken(now);
        let extent = self.extent_of(staged);
        self.tenants.charge(tenant, Ledger::Memory, extent.bytes);
        let held = *self.catalog.replica(source);
        let from = self.segments.at(held.segment);
        let (from_node, at) = match from.kind() {
            SegmentKind::Memory => (from.node, ReplicaAt::Memory(self.extent_of(source))),
            SegmentKind::Disk => {
                let (node, segment) = (from.node, from.id);
                (node, ReplicaAt::Disk { node, segment })
            }
        };
        let ticket = self.numbers.ticket();
        let task = CopyTask {
            ticket,
            entry: self.entry(unit.object),
            bytes,
            checksum,
            from: from_node,
            source: at,
            target: extent,
        };
        self.outbox.copy(self.segments.at(target).node, task);
        self.due.set(Due::Copy(ticket), now + COPY_TIME);
        let copying = Copying {
            whose,
            unit,
            tenant,
            bytes,
            source,
            staged,
        };
        self.jobs.copies.insert(ticket, copying);
        Ok(bytes)
    }

    /// The copy of a unit has ended.
    pub(crate) fn copied(&mut self, now: Instant, ticket: TicketId, result: Result<(), ErrorCode>) {
        let Some(copying) = self.jobs.copies.remove(&ticket) else {
            // It was late, or a segment is gone.
            return;
        };
        self.due.cancel(Due::Copy(ticket));
        self.unsettled.jobs();
        let Copying {
            whose,
            unit,
            tenant,
            bytes,
            source,
            staged,
        } = copying;
        if let Some(job) = self.job_of(whose) {
            job.active -= 1;
        }
        let is_current = self.catalog.is_object(unit.object) && {
            let record = self.catalog.object(unit.object);
            // Without a replica it was removed, and must not come back.
            let same = record.version == unit.version;
            (same || planted(Planted::ReplacedCopyIsPublished)) && record.has_replicas()
        };
        if result.is_ok() && is_current {
            let node_of = |id| self.segments.at(self.catalog.replica(id).segment).node;
            if node_of(source) != node_of(staged) {
                self.metrics.values_copied += 1;
                self.metrics.copied_bytes += bytes;
            }
            self.publish_unit(now, &unit, source, staged);
            if let Some(job) = self.job_of(whose) {
                job.done += 1;
                job.done_bytes += bytes;
            }
        } else if !planted(Planted::FailedCopyKeepsRoom) {
            self.free(staged, tenant, bytes);
        }
        self.unhold(now, source);
        self.unsettled.room();
        let object = unit.object;
        let gone = result.is_ok() && !is_current;
        match (whose, result) {
            (Whose::Heat, Ok(())) => {
                let made = if gone { Err(false) } else { Ok(staged) };
                self.replicated(now, &unit, made);
            }
            // What was replaced meanwhile, or lost its segment, says nothing of the target.
            (Whose::Heat, Err(code)) => {
                let at_fault = is_current && code != ErrorCode::SegmentNotFound;
                self.replicated(now, &unit, Err(at_fault));
            }
            (Whose::Reader, Ok(())) => self.brought(now, &unit, (!gone).then_some(staged)),
            (Whose::Reader, Err(code)) => self.not_brought(now, &unit, code, is_current),
            (Whose::Job(_), Err(_)) if planted(Planted::FailedCopyLetsSourceGo) => {
                self.let_source_go(now, &unit, source);
            }
            (Whose::Job(job), Err(code)) => self.unit_failed(now, job, unit, code),
            (Whose::Job(job), Ok(())) if gone && !unit.drains => {
                self.unit_failed(now, job, unit, ErrorCode::ObjectNotFound);
            }
            (Whose::Job(_), Ok(())) => self.let_source_go(now, &unit, source),
        }
        self.wake_drains_at(object);
    }

    /// Makes a replica readable whose bytes were brought.
    fn publish_unit(&mut self, now: Instant, unit: &Unit, source: ReplicaId, staged: ReplicaId) {
        let from = *self.catalog.replica(source);
        let standing = match from.state {
            ReplicaState::Complete => self.standing_of(now, source, unit.chain),
            // Its policy has forgotten it.
            ReplicaState::Processing | ReplicaState::Removed => None,
        };
        self.publish_copy(now, unit.object, staged, unit.chain, standing);
        let segment = self.catalog.replica(staged).segment;
        let lease = self.lease_end(unit.object);
        if lease > now {
            self.set_aside(staged, Evictable::NotBefore(lease));
        }
        self.unsettled.press(segment);
    }

    /// The object was published elsewhere: the replica that was to leave goes. Readers that hold a lease on it find the new one.
    fn let_source_go(&mut self, now: Instant, unit: &Unit, source: ReplicaId) {
        let goes = self.catalog.is_replica(source) && {
            let replica = self.catalog.replica(source);
            let segment = self.segments.at(replica.segment);
            unit.from == Some(segment.id)
                && segment.kind() == SegmentKind::Memory
                && replica.state == ReplicaState::Complete
                && replica.object() == Some(unit.object)
        };
        if goes {
            self.discard(now, source, Reason::Removed);
            self.unsettled.room();
        }
    }

    /// A segment is being removed: ends what is carried from it and to it.
    pub(crate) fn lose_copies(&mut self, now: Instant, index: SegmentIndex) {
        self.resume_jobs();
        let touches = |id: ReplicaId| self.catalog.replica(id).segment == index;
        let copies = self.jobs.copies.iter();
        let lost = copies.filter(|(_, it)| touches(it.source) || touches(it.staged));
        let lost: Vec<TicketId> = lost.map(|(ticket, _)| *ticket).collect();
        for ticket in lost {
            self.copied(now, ticket, Err(ErrorCode::SegmentNotFound));
        }
    }
}
