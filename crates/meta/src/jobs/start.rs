//! Starts and cancellations of jobs: whether they make sense, and the units that they begin with.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use slackwater_base::Instant;
use slackwater_wire::{
    Draining, ErrorCode, Incarnation, JobId, JobSpec, JobStatus, JobWork, Key, NodeId, Reply,
    SegmentId, SegmentKind, Tenant,
};

use super::{Job, Sweep, Unit};
use crate::budget::Budget;
use crate::catalog::{ObjectId, SegmentIndex};
use crate::master::{Due, Master};

/// What a job begins with.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) units: VecDeque<Unit>,
    pub(super) drained: Vec<SegmentId>,
    pub(super) targets: Arc<[SegmentId]>,
}

impl Master {
    pub(crate) fn start_job(&mut self, now: Instant, spec: JobSpec) -> Reply {
        if spec.work.check().is_err() {
            return Reply::Failed(ErrorCode::InvalidParams);
        }
        let drain = matches!(spec.work, JobWork::Drain { .. });
        if !self.jobs.has_room(drain) {
            return Reply::Failed(ErrorCode::TaskPendingLimitExceeded);
        }
        match self.plan_job(&spec) {
            Ok(plan) => {
                let id = self.begin_job(now, spec, plan);
                self.query_job(now, id)
            }
            Err(code) => Reply::Failed(code),
        }
    }

    pub(super) fn begin_job(&mut self, now: Instant, spec: JobSpec, plan: Plan) -> JobId {
        // Numbers of versions are never given again, by no later master either.
        let id = JobId(self.numbers.version().0);
        for segment in &plan.drained {
            if let Some(index) = self.segments.find(*segment) {
                self.segments.at_mut(index).draining = Draining::Running;
                // Puts that waited for room there look elsewhere.
                self.unsettled.room();
            }
        }
        if let Some(time) = spec.time {
            self.due.set(Due::Job(id), now + time);
        }
        let life = |segment: &SegmentId| {
            let index = self.segments.find(*segment)?;
            Some((*segment, self.segments.at(index).incarnation))
        };
        let job = Job {
            drained: plan.drained.iter().filter_map(life).collect(),
            released: false,
            restored: false,
            unplanned: false,
            budget: Budget::new(spec.bytes_per_second),
            spec,
            status: JobStatus::Running,
            begun: now,
            changed: now,
            queue: plan.units,
            sweep: Sweep {
                segments: plan.drained.into(),
                slot: 0,
            },
            targets: plan.targets,
            active: 0,
            offloading: 0,
            awaits_node: false,
            done: 0,
            done_bytes: 0,
            failed: 0,
            errors: VecDeque::new(),
            waiters: Vec::new(),
        };
        self.jobs.all.insert(id, job);
        self.note_job(now, id);
        self.unsettled.jobs();
        id
    }

    pub(crate) fn cancel_job(&mut self, now: Instant, id: JobId) -> Reply {
        let Some(job) = self.jobs.all.get_mut(&id) else {
            return Reply::Failed(ErrorCode::JobNotFound);
        };
        // Of a drain that is over this has its segments take new values again, once.
        if job.status.is_over() && (job.released || job.drained.is_empty()) {
            return Reply::Failed(ErrorCode::UnavailableInCurrentStatus);
        }
        job.released = true;
        let drained = job.drained.clone();
        match job.status.is_over() {
            true => self.note_job(now, id),
            false => self.end_job(now, id, JobStatus::Cancelled),
        }
        for place in drained {
            // A later drain may be at a segment that this one has emptied before.
            let last = self.jobs.last_drain_of(&place);
            let is_last = last.is_some_and(|(last, _)| last == id);
            if let Some(index) = self.mounted(&place).filter(|_| is_last) {
                self.segments.at_mut(index).draining = Draining::No;
                self.unsettled.room();
            }
        }
        self.query_job(now, id)
    }

    pub(super) fn plan_job(&self, spec: &JobSpec) -> Result<Plan, ErrorCode> {
        match &spec.work {
            JobWork::Copy {
                tenant,
                key,
                targets,
            } => {
                let object = self.object_to_carry(tenant, key)?;
                if targets.is_empty() {
                    return Err(ErrorCode::InvalidParams);
                }
                let to = targets.iter().map(|target| self.target(target));
                let mut to: Vec<Arc<[SegmentId]>> = to.collect::<Result<_, _>>()?;
                // A place may be named twice, also by its number and its name.
                let mut named = BTreeSet::new();
                to.retain(|to| named.insert(Arc::clone(to)));
                let units = to.into_iter().map(|to| self.unit(object, key, None, to));
                Ok(Plan {
                    units: units.collect(),
                    ..Plan::default()
                })
            }
            JobWork::Move {
                tenant,
                key,
                source,
                target,
            } => {
                let object = self.object_to_carry(tenant, key)?;
                let to = self.target(target)?;
                let from = self.source(object, source.as_deref(), &to)?;
                let unit = self.unit(object, key, Some(from), to);
                Ok(Plan {
                    units: VecDeque::from([unit]),
                    ..Plan::default()
                })
            }
            JobWork::Drain {
                places,
                targets,
                disks,
            } => self.plan_drain(places, targets, *disks),
        }
    }

    fn plan_drain(
        &self,
        places: &[String],
        targets: &[String],
        disks: bool,
    ) -> Result<Plan, ErrorCode> {
        let known = |place: &String| !self.segments_at(std::slice::from_ref(place)).is_empty();
        if places.is_empty() || !places.iter().all(known) {
            return Err(ErrorCode::SegmentNotFound);
        }
        let kind = |id: &SegmentId| {
            let index = self.segments.find(*id);
            index.map(|index| self.segments.at(index).kind())
        };
        let mut drained = self.segments_at(places);
        drained.retain(|id| disks || kind(id) == Some(SegmentKind::Memory));
        // Memory first: a record may have a copy there.
        drained.sort_by_key(|id| kind(id) == Some(SegmentKind::Disk));
        let busy = self.drained_now();
        if drained.is_empty() || drained.iter().any(|id| busy.contains(id)) {
            return Err(ErrorCode::UnavailableInCurrentStatus);
        }
        self.plan_for(drained, targets)
    }

    /// The plan of a drain of these segments.
    pub(super) fn plan_for(
        &self,
        drained: Vec<SegmentId>,
        targets: &[String],
    ) -> Result<Plan, ErrorCode> {
        let mut to = BTreeSet::new();
        for target in targets {
            to.extend(self.target(target)?.iter().copied());
        }
        if drained.iter().any(|segment| to.contains(segment)) {
            return Err(ErrorCode::InvalidParams);
        }
        Ok(Plan {
            units: VecDeque::new(),
            drained,
            targets: to.into_iter().collect(),
        })
    }

    /// A drain that runs and empties memory of a node.
    #[must_use]
    pub fn drain_of(&self, node: NodeId) -> Option<JobId> {
        let of_node = |place: &(SegmentId, Incarnation)| {
            let index = self.mounted(place);
            index.is_some_and(|index| self.segments.at(index).node == node)
        };
        let running = self.jobs.all.iter();
        let mut running = running.filter(|(_, job)| !job.status.is_over());
        let found = running.find(|(_, job)| job.drained.iter().any(of_node));
        found.map(|(id, _)| *id)
    }

    /// The segments that drains are at. What was mounted since under the same name, or in another life, is not among them.
    fn drained_now(&self) -> BTreeSet<SegmentId> {
        let running = self.jobs.all.values().filter(|job| !job.status.is_over());
        let drained = running.flat_map(|job| &job.drained);
        let mounted = drained.filter(|place| self.mounted(place).is_some());
        mounted.map(|(segment, _)| *segment).collect()
    }

    /// A segment, if it is mounted in that life of its node.
    pub(super) fn mounted(
        &self,
        (segment, life): &(SegmentId, Incarnation),
    ) -> Option<SegmentIndex> {
        let index = self.segments.find(*segment)?;
        (self.segments.at(index).incarnation == *life).then_some(index)
    }

    fn object_to_carry(&self, tenant: &Tenant, key: &Key) -> Result<ObjectId, ErrorCode> {
        let found = self.find(tenant, key);
        let found = found.filter(|id| self.segments.is_readable(&self.catalog, *id));
        found.ok_or(ErrorCode::ObjectNotFound)
    }

    fn unit(
        &self,
        object: ObjectId,
        key: &Key,
        from: Option<SegmentId>,
        to: Arc<[SegmentId]>,
    ) -> Unit {
        let version = self.catalog.object(object).version;
        Unit {
            from,
            ..Unit::copy_of(object, version, key.clone(), to)
        }
    }

    /// The segments that places name: numbers of nodes, or names of segments.
    pub(super) fn segments_at(&self, places: &[String]) -> Vec<SegmentId> {
        let named = |place: &String, segment: &crate::segment::Segment| {
            *segment.name == **place || place.parse() == Ok(segment.node.0)
        };
        let all = self.segments.iter();
        let named = all.filter(|(_, it)| places.iter().any(|place| named(place, it)));
        named.map(|(_, segment)| segment.id).collect()
    }

    /// The memory at a place, which must take new values.
    fn target(&self, place: &String) -> Result<Arc<[SegmentId]>, ErrorCode> {
        let at = |id: &SegmentId| self.segments.find(*id).map(|it| self.segments.at(it));
        let mut memory = self.segments_at(std::slice::from_ref(place));
        memory.retain(|id| at(id).is_some_and(|it| it.kind() == SegmentKind::Memory));
        if memory.is_empty() {
            return Err(ErrorCode::SegmentNotFound);
        }
        memory.retain(|id| at(id).is_some_and(crate::segment::Segment::takes_new));
        if memory.is_empty() {
            return Err(ErrorCode::UnavailableInCurrentStatus);
        }
        Ok(memory.into())
    }

    /// The segment with the replica in memory that is to leave: the one that is named, or any that is no target.
    fn source(
        &self,
        object: ObjectId,
        place: Option<&str>,
        to: &[SegmentId],
    ) -> Result<SegmentId, ErrorCode> {
        let named = place.map(|place| self.segments_at(&[place.to_owned()]));
        if named.as_ref().is_some_and(Vec::is_empty) {
            return Err(ErrorCode::SegmentNotFound);
        }
        let fits = |id: &SegmentId| match &named {
            Some(named) => named.contains(id),
            None => !to.contains(id),
        };
        let replicas = self.catalog.replicas(object);
        let segments = replicas.map(|(_, replica)| self.segments.at(replica.segment));
        let memory = segments.filter(|it| it.kind() == SegmentKind::Memory);
        let found = memory.map(|segment| segment.id).find(fits);
        found.ok_or(ErrorCode::ReplicaNotInLocalMemory)
    }
}
