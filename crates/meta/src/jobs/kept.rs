//! Jobs in the journal. A master that was started again knows their numbers and what they are to do, and goes on with those
//! that were under way as soon as its nodes have told what they hold: what was carried by then is there, and is not carried
//! again.

use std::collections::BTreeMap;
use std::sync::Arc;

use slackwater_base::{Instant, Planted, planted};
use slackwater_wire::{
    Draining, ErrorCode, Incarnation, JobId, JobSpec, JobStatus, JobWork, Mount, SegmentId,
    SegmentKind, Version,
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
            let kept = KeptJob {
                state,
                drained: job.drained.clone(),
                released: job.released,
            };
            self.notes.note(|| Note::Job(Box::new(kept)));
        }
    }

    /// Takes in the jobs of an earlier master. Their times begin anew.
    pub(crate) fn restore_jobs(&mut self, now: Instant, kept: BTreeMap<JobId, KeptJob>) {
        for (id, kept) in kept {
            let KeptJob {
                state,
                drained,
                released,
            } = kept;
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
                released,
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
    pub(crate) fn drained_before(&mut self, mount: &Mount) -> Draining {
        let place = (mount.segment, mount.incarnation);
        let last = self.jobs.last_drain_of(&place);
        match last.filter(|(_, job)| !job.released) {
            None => Draining::No,
            // Records stay where they are when they are drained.
            Some((_, job)) if job.status == JobStatus::Succeeded => match mount.kind {
                SegmentKind::Disk => Draining::Done,
                SegmentKind::Memory if planted(Planted::ReturnedCountsAsDrained) => Draining::Done,
                SegmentKind::Memory => {
                    self.jobs.returned.insert(place);
                    self.unsettled.jobs();
                    Draining::Running
                }
            },
            Some(_) => Draining::Running,
        }
    }

    /// Segments that were drained are mounted again, and their nodes have told what they hold: where that is anything, it is
    /// drained again.
    pub(super) fn drain_returned(&mut self, now: Instant) {
        let returned = std::mem::take(&mut self.jobs.returned);
        for place in returned {
            let Some(index) = self.mounted(&place) else {
                continue;
            };
            let segment = self.segments.at(index);
            if segment.announcing {
                self.jobs.returned.insert(place);
                continue;
            }
            let last = self.jobs.last_drain_of(&place);
            let stands = |job: &Job| job.status == JobStatus::Succeeded && !job.released;
            let Some((_, last)) = last.filter(|(_, job)| stands(job)) else {
                // Another drain has begun meanwhile.
                continue;
            };
            if segment.used() == 0 {
                self.segments.at_mut(index).draining = Draining::Done;
                continue;
            }
            let targets = match &last.spec.work {
                JobWork::Drain { targets, .. } => targets.clone(),
                JobWork::Copy { .. } | JobWork::Move { .. } => Vec::new(),
            };
            let name = segment.name.to_string();
            // Where it went before may be gone.
            let named = self.plan_for(vec![place.0], &targets);
            let (plan, targets) = match named {
                Ok(plan) => (Ok(plan), targets),
                Err(_) => (self.plan_for(vec![place.0], &[]), Vec::new()),
            };
            if let Ok(plan) = plan {
                let spec = JobSpec {
                    work: JobWork::Drain {
                        places: vec![name],
                        targets,
                        disks: false,
                    },
                    concurrency: 0,
                    bytes_per_second: None,
                    time: None,
                };
                self.begin_job(now, spec, plan);
            }
        }
    }

    /// A segment is mounted: a drain that it was lost to looks through it from the beginning.
    pub(crate) fn drain_again(&mut self, segment: SegmentId, life: Incarnation) {
        if planted(Planted::ReturnedNotSwept) {
            return;
        }
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
                // They may come back as full as they were.
                let missing = missing.into_iter();
                missing.for_each(|id| job.note_segment(id, ErrorCode::SegmentNotFound));
                job.queue = plan.units;
                job.sweep.segments = plan.drained.into();
                job.targets = plan.targets;
            }
            Err(code) => {
                match job.spec.work.clone() {
                    JobWork::Copy { key, .. } | JobWork::Move { key, .. } => job.note(key, code),
                    JobWork::Drain { .. } => {
                        let drained = job.drained.clone();
                        let drained = drained.into_iter();
                        drained.for_each(|(id, _)| job.note_segment(id, code));
                    }
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
