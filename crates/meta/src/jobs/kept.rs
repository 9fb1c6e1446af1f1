//! Jobs in the journal. A master that was started again knows their numbers and what they are to do, and goes on with those
//! that were under way as soon as its nodes have told what they hold: what was carried by then is there, and is not carried
//! again.

use std::collections::BTreeMap;
use std::sync::Arc;

use slackwater_base::{Instant, Planted, planted};
use slackwater_wire::{
    Draining, ErrorCode, Incarnation, JobId, JobStatus, JobWork, Key, SegmentId, Version,
};

use super::start::Plan;
use super::{Job, Sweep};
use crate::budget::Budget;
use crate::journal::{KeptJob, Note};
use crate::master::{Due, Master};

impl Master {
    /// Notes how far a job is.
    pub(super) fn note_job(&mut self, now: Instant, id: JobId) {
        if !self.notes.is_on() || planted(Planted::JobNotNoted) {
            return;
        }
        if let (Some(state), Some(job)) = (self.job_state(now, id), self.jobs.all.get(&id)) {
            let drained = job.drained.clone();
            let kept = KeptJob { state, drained };
            self.notes.note(|| Note::Job(Box::new(kept)));
        }
    }

    /// Takes in the jobs of an earlier master. Their times begin anew.
    pub(crate) fn restore_jobs(&mut self, now: Instant, kept: BTreeMap<JobId, KeptJob>) {
        for (id, KeptJob { state, drained }) in kept {
            self.numbers.start_above(Version(id.0));
            let unplanned = !state.status.is_over();
            if let Some(time) = state.spec.time.filter(|_| unplanned) {
                self.due.set(Due::Job(id), now + time);
            }
            let job = Job {
                budget: Budget::new(state.spec.bytes_per_second),
                spec: state.spec,
                status: state.status,
                begun: now,
                changed: now,
                queue: Default::default(),
                sweep: Sweep::default(),
                targets: Arc::default(),
                drained,
                restored: true,
                unplanned,
                active: 0,
                offloading: 0,
                awaits_node: false,
                done: state.done,
                done_bytes: state.done_bytes,
                failed: state.failed,
                errors: state.errors.into(),
                waiters: Vec::new(),
            };
            self.jobs.all.insert(id, job);
        }
    }

    /// Whether a segment that is mounted is being drained, or was, before it was lost or under an earlier master. With a new
    /// life of its node that is over.
    pub(crate) fn drained_before(&self, segment: SegmentId, life: Incarnation) -> Draining {
        let mut found = Draining::No;
        let jobs = self.jobs.all.values();
        for job in jobs.filter(|job| job.drained.contains(&(segment, life))) {
            match job.status {
                JobStatus::Running | JobStatus::Failed => return Draining::Running,
                JobStatus::Succeeded => found = Draining::Done,
                JobStatus::Cancelled => {}
            }
        }
        found
    }

    /// A segment is mounted: a drain that it was lost to looks through it from the beginning.
    pub(crate) fn drain_again(&mut self, segment: SegmentId, life: Incarnation) {
        let drains = self.jobs.all.values_mut();
        let running = drains.filter(|job| !job.status.is_over() && !job.unplanned);
        for job in running.filter(|job| job.drained.contains(&(segment, life))) {
            // It was looked through in part, if it was lost on the way.
            job.sweep.segments.retain(|it| *it != segment);
            job.sweep.segments.push_back(segment);
            job.sweep.slot = 0;
            self.unsettled.jobs();
        }
    }

    /// Plans a job of an earlier master, once nothing is left to be announced.
    pub(super) fn plan_again(&mut self, now: Instant, id: JobId) {
        let plan = self.plan_restored(id);
        let Some(job) = self.jobs.all.get_mut(&id) else {
            return;
        };
        job.unplanned = false;
        match plan {
            Ok(plan) => {
                let known = |id: &SegmentId| plan.drained.contains(id);
                let drained = job.drained.iter().map(|(segment, _)| *segment);
                let missing: Vec<SegmentId> = drained.filter(|id| !known(id)).collect();
                for segment in missing {
                    // It may come back as full as it was.
                    if let Ok(name) = Key::new(format!("segment {segment}").as_bytes()) {
                        job.note(name, ErrorCode::SegmentNotFound);
                    }
                }
                job.queue = plan.units;
                job.sweep.segments = plan.drained.into();
                job.targets = plan.targets;
            }
            Err(code) => {
                if let JobWork::Copy { key, .. } | JobWork::Move { key, .. } = &job.spec.work {
                    job.note(key.clone(), code);
                }
                self.end_job(now, id, JobStatus::Failed);
            }
        }
    }

    fn plan_restored(&self, id: JobId) -> Result<Plan, ErrorCode> {
        let job = &self.jobs.all[&id];
        if let JobWork::Drain { targets, .. } = &job.spec.work {
            let drained = job.drained.iter();
            let drained = drained.filter(|place| self.mounted(place).is_some());
            let drained: Vec<SegmentId> = drained.map(|(segment, _)| *segment).collect();
            return match drained.is_empty() {
                true => Err(ErrorCode::SegmentNotFound),
                false => self.plan_for(drained, targets),
            };
        }
        match self.plan_job(&job.spec) {
            // The node that it was to leave may be gone by now.
            Err(ErrorCode::ReplicaNotInLocalMemory | ErrorCode::SegmentNotFound)
                if self.has_moved(&job.spec.work) =>
            {
                Ok(Plan::default())
            }
            plan => plan,
        }
    }

    /// Whether a value is where a move was to bring it.
    fn has_moved(&self, work: &JobWork) -> bool {
        let JobWork::Move {
            tenant,
            key,
            target,
            ..
        } = work
        else {
            return false;
        };
        let to = self.segments_at(std::slice::from_ref(target));
        self.find(tenant, key).is_some_and(|object| {
            let mut replicas = self.catalog.replicas(object);
            replicas.any(|(_, it)| to.contains(&self.segments.at(it.segment).id))
        })
    }
}
