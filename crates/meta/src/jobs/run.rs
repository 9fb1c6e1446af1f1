//! The course of a job: its units are begun as its limits allow, and each of them ends once.

use std::sync::Arc;
use std::time::Duration;

use slackwater_base::{Instant, Planted, planted};
use slackwater_wire::{
    Class, Draining, ErrorCode, JobId, JobStatus, ReplicaState, SegmentId, SegmentKind,
};

use super::{Awaiting, CARRIED_MAX, Job, PAUSE, STEP, TRIES, Unit, Whose};
use crate::catalog::{ObjectId, ReplicaId, SegmentIndex};
use crate::master::{Due, Master};
use crate::offload::{Cause, OffloadStart};
use crate::prospect;
use crate::release::Reason;

/// The outcome of an attempt to begin a unit.
enum Begun {
    /// It is being carried.
    Carried,
    /// There is nothing to be carried, or it is looked at again when it has gone another way.
    Done,
    /// The whole job waits until then.
    Later(Instant),
    /// The whole job waits until a node is back, or no longer waited for.
    Away,
    /// It cannot be, for this reason.
    Failed(ErrorCode),
}

impl Master {
    /// Begins what may be begun, a limited number in each step.
    pub(crate) fn work_on_jobs(&mut self, now: Instant) {
        self.drain_returned(now);
        let running = self.jobs.all.iter();
        let running = running.filter(|(_, job)| !job.status.is_over());
        let mut running: Vec<JobId> = running.map(|(id, _)| *id).collect();
        // Drains do not wait for what clients have begun.
        running.sort_by_key(|id| !self.jobs.all[id].is_drain());
        let mut left = STEP;
        for id in running {
            self.work_on_job(now, id, &mut left);
            if left == 0 {
                self.unsettled.jobs();
                return;
            }
        }
    }

    fn work_on_job(&mut self, now: Instant, id: JobId, left: &mut usize) {
        if self.jobs.all[&id].unplanned {
            if self.is_partial() {
                return;
            }
            self.plan_again(now, id);
        }
        while *left > 0 && !self.jobs.all[&id].status.is_over() {
            let job = &self.jobs.all[&id];
            let all = match job.is_drain() {
                true => CARRIED_MAX.0,
                false => CARRIED_MAX.1,
            };
            let busy = job.active + job.offloading >= job.concurrency();
            if busy || self.jobs.copies.len() >= all || job.awaits_node {
                // The end of a copy or of an offload, or the node, goes on.
                return;
            }
            *left -= 1;
            let ready = job.queue.iter().position(|unit| unit.not_before <= now);
            match ready {
                Some(at) => {
                    if let Err(later) = self.begin_unit(now, id, at) {
                        return self.work_later(later);
                    }
                }
                None if self.may_sweep(id) => {
                    let looked = self.sweep_on(now, id, *left);
                    *left = left.saturating_sub(looked);
                }
                None => return self.rest_job(now, id),
            }
        }
    }

    /// Begins one unit of the queue; an error says when the rate allows it.
    fn begin_unit(&mut self, now: Instant, id: JobId, at: usize) -> Result<(), Instant> {
        let Some(job) = self.jobs.all.get_mut(&id) else {
            return Ok(());
        };
        let Some(unit) = job.queue.remove(at) else {
            return Ok(());
        };
        // What it takes of the rate is known when it is begun; the bucket only has to be full enough.
        if let Err(later) = job.budget.take(now, 0) {
            job.queue.push_front(unit);
            return Err(later);
        }
        match self.begin(now, id, &unit) {
            Begun::Carried | Begun::Done => {}
            Begun::Later(at) => {
                if let Some(job) = self.jobs.all.get_mut(&id) {
                    job.queue.push_front(unit);
                }
                return Err(at);
            }
            Begun::Away if planted(Planted::AwayUnitForgotten) => {}
            Begun::Away => {
                if let Some(job) = self.jobs.all.get_mut(&id) {
                    job.queue.push_front(unit);
                    job.awaits_node = true;
                }
            }
            Begun::Failed(code) => self.unit_failed(now, id, unit, code),
        }
        Ok(())
    }

    /// There is nothing to be begun now: the job is over, or waits for something.
    fn rest_job(&mut self, now: Instant, id: JobId) {
        let Some(job) = self.jobs.all.get_mut(&id) else {
            return;
        };
        if let Some(at) = job.queue.iter().map(|unit| unit.not_before).min() {
            return self.work_later(at);
        }
        let awaits = self.jobs.awaited.values().any(|it| it.job == id);
        if job.active > 0 || awaits || !job.sweep.segments.is_empty() {
            return;
        }
        // What was lost with another life of its node was counted then.
        let all = job.failed == 0 && !planted(Planted::MissingCountsAsDrained);
        let missing = job.drained.iter().filter(|_| all);
        let missing = missing.map(|(segment, _)| *segment);
        let missing: Vec<SegmentId> = missing
            .filter(|id| self.segments.find(*id).is_none())
            .collect();
        // They may come back as full as they were.
        let missing = missing.into_iter();
        missing.for_each(|id| job.note_segment(id, ErrorCode::SegmentNotFound));
        if job.failed > 0 {
            return self.end_job(now, id, JobStatus::Failed);
        }
        let drained = job.drained.clone();
        let drained: Vec<SegmentIndex> = drained.iter().filter_map(|it| self.mounted(it)).collect();
        for index in drained {
            self.segments.at_mut(index).draining = Draining::Done;
        }
        self.end_job(now, id, JobStatus::Succeeded);
    }

    fn work_later(&mut self, at: Instant) {
        let sooner = self.due.at(&Due::Jobs).is_some_and(|set| set <= at);
        if !sooner {
            self.due.set(Due::Jobs, at);
        }
    }

    /// Whether a segment of a drain can be looked through: what its node has not told yet may be on it alone. It comes first
    /// then.
    fn may_sweep(&mut self, id: JobId) -> bool {
        let segments = &self.segments;
        let told = |segment: &SegmentId| {
            let index = segments.find(*segment);
            index.is_none_or(|index| !segments.at(index).announcing)
        };
        let Some(job) = self.jobs.all.get_mut(&id) else {
            return false;
        };
        match job.sweep.segments.iter().position(told) {
            Some(0) => true,
            Some(at) => {
                job.sweep.segments.swap(0, at);
                job.sweep.slot = 0;
                true
            }
            None => false,
        }
    }

    /// A node is back, or no longer waited for: jobs that waited for it go on.
    pub(crate) fn resume_jobs(&mut self) {
        for job in self.jobs.all.values_mut() {
            job.awaits_node = false;
        }
        self.unsettled.jobs();
    }

    /// Looks at some slots of the segment that a drain is at; says at how many.
    fn sweep_on(&mut self, now: Instant, id: JobId, most: usize) -> usize {
        let Some(job) = self.jobs.all.get_mut(&id) else {
            return 0;
        };
        let Some(segment) = job.sweep.segments.front().copied() else {
            return 0;
        };
        let found = self.segments.find(segment);
        let (held, next) = match found {
            Some(index) => {
                let step = most.clamp(1, STEP);
                self.segments.at(index).replicas_from(job.sweep.slot, step)
            }
            None => (Vec::new(), None),
        };
        match next {
            Some(slot) => job.sweep.slot = slot,
            None => {
                job.sweep.segments.pop_front();
                job.sweep.slot = 0;
            }
        }
        let looked = held.len();
        for replica in held {
            let is_prospect = found.is_some_and(|at| prospect::is(&self.catalog, at, replica));
            if !is_prospect {
                self.look_at(now, id, replica, 0);
            }
        }
        looked
    }

    /// Queues what a replica on a drained segment asks for.
    fn look_at(&mut self, now: Instant, id: JobId, replica: ReplicaId, tries: u32) {
        let held = self.catalog.replica(replica);
        let from = self.segments.at(held.segment).id;
        match (held.state, held.object()) {
            (ReplicaState::Processing, _) if planted(Planted::DrainForgetsPuts) => {}
            (ReplicaState::Processing, _) => self.await_replica(id, replica, tries, false),
            (ReplicaState::Complete, Some(object)) => {
                let record = self.catalog.object(object);
                let (version, key) = (record.version, record.key.clone());
                if let Some(job) = self.jobs.all.get_mut(&id) {
                    job.queue.push_back(Unit {
                        from: Some(from),
                        drains: true,
                        tries,
                        not_before: now,
                        ..Unit::copy_of(object, version, key, Arc::clone(&job.targets))
                    });
                }
            }
            // It goes as soon as nobody reads it.
            _ => {}
        }
    }

    /// A drain looks at a replica again when [`Self::wake_drains`] is told of it.
    fn await_replica(&mut self, job: JobId, replica: ReplicaId, tries: u32, offloads: bool) {
        let awaiting = Awaiting {
            job,
            tries,
            offloads,
        };
        let before = self.jobs.awaited.insert(replica, awaiting);
        self.jobs.count_offload(job, offloads);
        if let Some(before) = before {
            self.jobs.uncount_offload(before);
        }
    }

    /// A replica was published or is gone, or what was to become of it is decided: a drain may wait for that.
    pub(crate) fn wake_drains(&mut self, replica: ReplicaId) {
        if self.jobs.awaited.is_empty() {
            return;
        }
        if let Some(awaiting) = self.jobs.awaited.remove(&replica) {
            self.jobs.uncount_offload(awaiting);
            let Awaiting { job, tries, .. } = awaiting;
            if self.catalog.is_replica(replica) {
                self.look_at(Instant::ZERO, job, replica, tries);
            }
            self.unsettled.jobs();
        }
    }

    /// The same for every replica of an object.
    pub(crate) fn wake_drains_at(&mut self, object: ObjectId) {
        if self.jobs.awaited.is_empty() || !self.catalog.is_object(object) {
            return;
        }
        let replicas: Vec<ReplicaId> = self.catalog.replicas(object).map(|(id, _)| id).collect();
        replicas.into_iter().for_each(|id| self.wake_drains(id));
    }

    fn begin(&mut self, now: Instant, id: JobId, unit: &Unit) -> Begun {
        let same = |object| {
            let record = self.catalog.object(object);
            record.version == unit.version && record.has_replicas()
        };
        if !self.catalog.is_object(unit.object) || !same(unit.object) {
            return match unit.drains {
                true => Begun::Done,
                false => Begun::Failed(ErrorCode::ObjectNotFound),
            };
        }
        let leaving = if unit.drains {
            let Some(leaving) = self.leaving(unit) else {
                return Begun::Done;
            };
            if self.is_elsewhere(unit) {
                self.leave_behind(now, leaving);
                return Begun::Done;
            }
            if self.jobs.is_carried(unit.object) {
                self.await_replica(id, leaving, unit.tries, false);
                return Begun::Done;
            }
            Some(leaving)
        } else {
            None
        };
        let Some(source) = self.source_of(unit) else {
            // What leaves is there, but not its node.
            return match leaving {
                Some(leaving) if self.is_away(self.catalog.replica(leaving).segment) => Begun::Away,
                Some(_) => Begun::Failed(ErrorCode::UnavailableInCurrentStatus),
                None => Begun::Failed(ErrorCode::ReplicaIsGone),
            };
        };
        match (self.target_for(unit), leaving) {
            (Ok(target), _) => self.carry(now, id, unit, source, target),
            (Err(ErrorCode::NoAvailableHandle), Some(leaving)) => {
                self.keep_on_own_disk(now, id, unit, leaving)
            }
            // An earlier master has carried it.
            (Err(ErrorCode::ReplicaAlreadyExists), _) if self.jobs.all[&id].restored => {
                if unit.from.is_some() && self.is_elsewhere(unit) {
                    self.leave_behind(now, source);
                }
                Begun::Done
            }
            (Err(ErrorCode::UnavailableInCurrentStatus), Some(_)) if self.awaits_target(unit) => {
                Begun::Away
            }
            (Err(code), _) => {
                if code == ErrorCode::ReplicaAlreadyExists {
                    self.keep_extras(unit.object, &unit.to);
                }
                Begun::Failed(code)
            }
        }
    }

    /// The object is elsewhere, so this replica need not be. A record stays: it is the same value whenever its node is back.
    fn leave_behind(&mut self, now: Instant, source: ReplicaId) {
        let segment = self.catalog.replica(source).segment;
        if self.segments.at(segment).kind() == SegmentKind::Memory {
            self.discard(now, source, Reason::Removed);
            self.unsettled.room();
        }
    }

    /// Nowhere else is room: the SSD of the same node keeps the value, if there is one. It has left memory only when it is
    /// written, so it is looked at again then.
    fn keep_on_own_disk(
        &mut self,
        now: Instant,
        id: JobId,
        unit: &Unit,
        leaving: ReplicaId,
    ) -> Begun {
        let segment = self.catalog.replica(leaving).segment;
        let is_memory = self.segments.at(segment).kind() == SegmentKind::Memory;
        if !is_memory || unit.tries >= TRIES {
            return Begun::Failed(ErrorCode::NoAvailableHandle);
        }
        match self.offload(now, leaving, Cause::Promise) {
            OffloadStart::Queued(_) if planted(Planted::QueuedCountsAsKept) => Begun::Done,
            OffloadStart::Queued(_) => {
                let bytes = self.catalog.object(unit.object).bytes;
                self.await_replica(id, leaving, unit.tries + 1, true);
                if let Some(job) = self.jobs.all.get_mut(&id) {
                    // It was not below zero a moment ago.
                    let _ = job.budget.take(now, bytes);
                }
                Begun::Done
            }
            OffloadStart::NotNow => Begun::Later(now + PAUSE),
            OffloadStart::NoDisk | OffloadStart::TooLong | OffloadStart::NotWorth => {
                Begun::Failed(ErrorCode::NoAvailableHandle)
            }
        }
    }

    fn carry(
        &mut self,
        now: Instant,
        id: JobId,
        unit: &Unit,
        source: ReplicaId,
        target: SegmentIndex,
    ) -> Begun {
        match self.begin_copy(now, Whose::Job(id), unit.clone(), source, target) {
            Ok(bytes) => {
                if let Some(job) = self.jobs.all.get_mut(&id) {
                    job.active += 1;
                    // It was not below zero a moment ago.
                    let _ = job.budget.take(now, bytes);
                }
                Begun::Carried
            }
            Err(code) => Begun::Failed(code),
        }
    }

    /// Tries a unit again, or counts it as failed.
    pub(super) fn unit_failed(&mut self, now: Instant, id: JobId, mut unit: Unit, code: ErrorCode) {
        let Some(job) = self.jobs.all.get_mut(&id) else {
            return;
        };
        unit.tries += 1;
        let again = matches!(code.class(), Class::Retry | Class::Gone)
            && code != ErrorCode::ObjectNotFound
            && unit.tries < TRIES
            && !job.status.is_over();
        if again {
            let pause: Duration = PAUSE * unit.tries;
            unit.not_before = now + pause;
            job.queue.push_back(unit);
            self.unsettled.jobs();
        } else {
            job.note(unit.key, code);
        }
    }

    /// An object has lost a replica with a segment that is being removed. If that was the last one, a drain of the segment came
    /// too late for it.
    pub(crate) fn lost_in_drain(&mut self, index: SegmentIndex, object: ObjectId) {
        let segment = self.segments.at(index);
        let place = (segment.id, segment.incarnation);
        let running = self.jobs.all.values_mut();
        let mut running = running.filter(|job| !job.status.is_over());
        let drains = |job: &&mut Job| job.drained.contains(&place);
        let record = self.catalog.object(object);
        if record.has_replicas() || planted(Planted::LossInDrainForgotten) {
            return;
        }
        if let Some(job) = running.find(drains) {
            job.note(record.key.clone(), ErrorCode::ReplicaIsGone);
        }
    }
}
