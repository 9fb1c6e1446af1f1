//! Jobs: copies and moves of single objects, and drains of segments.
//!
//! A job is cut into units, one object each. A unit that is begun holds a replica as its source, has an extent at its target,
//! and is carried by the target's node; it ends once. A job knows segments by their ids, so that one may go away under it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use slackwater_base::{Instant, Planted, planted};
use slackwater_wire::{
    ChainPlace, ErrorCode, Incarnation, JobId, JobSpec, JobState, JobStatus, JobWork, Key, Reply,
    SegmentId, SegmentKind, TicketId, Version,
};

use crate::budget::Budget;
use crate::catalog::{ObjectId, ReplicaId, TenantIndex};
use crate::journal::Note;
use crate::master::{Caller, Due, Master};

mod copy;
mod kept;
mod place;
mod run;
mod start;

pub(crate) use copy::Whose;

/// Jobs, and what they have under way.
#[derive(Default)]
pub(crate) struct Jobs {
    all: BTreeMap<JobId, Job>,
    copies: BTreeMap<TicketId, Copying>,
    /// Replicas on segments that are drained and that cannot go yet: their drain looks at them again when that changes.
    awaited: BTreeMap<ReplicaId, Awaiting>,
    /// Segments that were mounted again after a drain of them had succeeded: something may have come back with them.
    returned: BTreeSet<(SegmentId, Incarnation)>,
}

/// What waits for a change of a replica.
#[derive(Clone, Copy, Debug)]
struct Awaiting {
    job: JobId,
    /// How often its unit was tried.
    tries: u32,
    /// It is being written to SSD, which counts as being carried.
    offloads: bool,
}

struct Job {
    spec: JobSpec,
    status: JobStatus,
    begun: Instant,
    /// When its status became what it is.
    changed: Instant,
    /// Units that are not begun.
    queue: VecDeque<Unit>,
    sweep: Sweep,
    /// Where a drain may carry what it finds; empty for any memory.
    targets: Arc<[SegmentId]>,
    /// The segments that a drain empties, in the lives of their nodes.
    drained: Vec<(SegmentId, Incarnation)>,
    /// It was cancelled: what it drained takes new values again, if no later drain is there.
    released: bool,
    /// It was begun by an earlier master.
    restored: bool,
    /// It waits for nodes to tell what they hold.
    unplanned: bool,
    budget: Budget,
    active: usize,
    /// Values that are being written to the SSD of their own node.
    offloading: usize,
    /// A node that it needs lost its link a moment ago.
    awaits_node: bool,
    done: u64,
    done_bytes: u64,
    failed: u64,
    errors: VecDeque<(Key, ErrorCode)>,
    waiters: Vec<Caller>,
}

/// The segments of a drain that are still to be looked through.
#[derive(Default)]
struct Sweep {
    segments: VecDeque<SegmentId>,
    slot: usize,
}

/// One object that is to be carried.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) object: ObjectId,
    pub(crate) version: Version,
    key: Key,
    /// The segment that it is to leave; none for a copy.
    from: Option<SegmentId>,
    /// The segments that it may go to; empty for any memory.
    to: Arc<[SegmentId]>,
    /// The place of the object in the chain of its reader, where that is known.
    pub(crate) chain: ChainPlace,
    /// Whether the object may be at one of them already.
    drains: bool,
    tries: u32,
    not_before: Instant,
}

impl Unit {
    /// The segments that it may go to; empty for any memory.
    pub(crate) fn to(&self) -> &[SegmentId] {
        &self.to
    }

    /// Another replica of an object.
    pub(crate) fn copy_of(
        object: ObjectId,
        version: Version,
        key: Key,
        to: Arc<[SegmentId]>,
    ) -> Self {
        Self {
            object,
            version,
            key,
            from: None,
            to,
            chain: ChainPlace::default(),
            drains: false,
            tries: 0,
            not_before: Instant::ZERO,
        }
    }
}

/// A unit that is being carried.
struct Copying {
    whose: Whose,
    unit: Unit,
    tenant: TenantIndex,
    bytes: u64,
    source: ReplicaId,
    staged: ReplicaId,
}

/// Drains that may be under way at a time, and as many that are over are remembered; the same of copies and moves, which
/// clients begin: those leave the room of drains alone.
const JOBS_MAX: usize = 1024;
/// Values that are carried at a time for one job when nothing else is asked for, and at most.
const CONCURRENCY: (u32, u32) = (4, 64);
/// Values that are carried at a time for all jobs, and so many before copies and moves begin no others.
const CARRIED_MAX: (usize, usize) = (256, 192);
/// Jobs that one answer tells of.
pub(crate) const JOBS_LISTED: usize = 64;
/// How often a unit is tried.
const TRIES: u32 = 3;
/// Pause before another try, for each one before.
const PAUSE: Duration = Duration::from_millis(50);
/// How long one value may be carried.
const COPY_TIME: Duration = Duration::from_secs(60);
/// Errors that are remembered for each job.
const ERRORS_KEPT: usize = 8;
/// Requests that may wait for the end of one job.
const WAITERS_MAX: usize = 64;
/// Units that are begun and slots that are looked at in one step.
const STEP: usize = 256;

impl Job {
    fn concurrency(&self) -> usize {
        let (usual, most) = CONCURRENCY;
        match self.spec.concurrency {
            0 => usual as usize,
            asked => asked.min(most) as usize,
        }
    }

    fn is_drain(&self) -> bool {
        matches!(self.spec.work, JobWork::Drain { .. })
    }

    fn waits(&self, caller: &Caller) -> bool {
        let mut waiters = self.waiters.iter();
        waiters.any(|it| it.client == caller.client && it.operation == caller.operation)
    }

    /// A segment of a drain could not be emptied.
    fn note_segment(&mut self, segment: SegmentId, code: ErrorCode) {
        if let Ok(name) = Key::new(format!("segment {segment}").as_bytes()) {
            self.note(name, code);
        }
    }

    fn note(&mut self, key: Key, code: ErrorCode) {
        self.failed += 1;
        if self.errors.len() == ERRORS_KEPT {
            self.errors.pop_front();
        }
        self.errors.push_back((key, code));
    }
}

impl Jobs {
    /// Whether what each job counts is what there is.
    pub(crate) fn balance(&self) -> bool {
        let active = |id: JobId| self.copies_of(Whose::Job(id));
        let offloading = |id: JobId| {
            let awaited = self.awaited.values();
            awaited.filter(|it| it.job == id && it.offloads).count()
        };
        self.all
            .iter()
            .all(|(id, job)| job.active == active(*id) && job.offloading == offloading(*id))
    }

    /// Values that are being carried.
    pub(crate) fn copies_of(&self, whose: Whose) -> usize {
        let copies = self.copies.values();
        copies.filter(|copy| copy.whose == whose).count()
    }

    /// Whether a replica of an object is on its way.
    pub(crate) fn is_carried(&self, object: ObjectId) -> bool {
        let mut copies = self.copies.values();
        copies.any(|copying| copying.unit.object == object)
    }

    /// Whether an object is being carried for this.
    pub(crate) fn carries(&self, object: ObjectId, whose: Whose) -> bool {
        let mut copies = self.copies.values();
        copies.any(|copying| copying.unit.object == object && copying.whose == whose)
    }

    fn count_offload(&mut self, job: JobId, offloads: bool) {
        if let Some(job) = self.all.get_mut(&job).filter(|_| offloads) {
            job.offloading += 1;
        }
    }

    fn uncount_offload(&mut self, awaiting: Awaiting) {
        let Awaiting { job, offloads, .. } = awaiting;
        if let Some(job) = self.all.get_mut(&job).filter(|_| offloads) {
            job.offloading -= 1;
        }
    }

    /// Forgets the drains that were over first, or the others, beyond as many as are remembered; says which.
    fn prune(&mut self, drains: bool) -> Vec<JobId> {
        let of_kind = |job: &Job| job.status.is_over() && job.is_drain() == drains;
        let over = self.all.iter().filter(|(_, job)| of_kind(job));
        let mut over: Vec<(Instant, JobId)> = over.map(|(id, job)| (job.changed, *id)).collect();
        over.sort_unstable();
        over.truncate(over.len().saturating_sub(JOBS_MAX));
        let forgotten: Vec<JobId> = over.into_iter().map(|(_, id)| id).collect();
        forgotten.iter().for_each(|id| drop(self.all.remove(id)));
        forgotten
    }

    /// Whether another job of a kind may begin.
    fn has_room(&self, drain: bool) -> bool {
        let running = self.all.values().filter(|job| !job.status.is_over());
        running.filter(|job| job.is_drain() == drain).count() < JOBS_MAX
    }

    /// The latest drain of a segment in a life of its node, which says whether that takes new values.
    fn last_drain_of(&self, place: &(SegmentId, Incarnation)) -> Option<(JobId, &Job)> {
        let mut drains = self
            .all
            .iter()
            .filter(|(_, job)| job.drained.contains(place));
        let found = match planted(Planted::FirstDrainDecides) {
            true => drains.next(),
            false => drains.next_back(),
        };
        found.map(|(id, job)| (*id, job))
    }
}

impl Master {
    /// How far the latest jobs are, so many at most, the oldest first. Half of the places are for drains, where there are as many.
    #[must_use]
    pub fn job_states(&self, now: Instant, most: usize) -> Vec<JobState> {
        let latest = |drains: bool, most: usize| {
            let all = self.jobs.all.iter().rev();
            let of_kind = all.filter(move |(_, job)| job.is_drain() == drains);
            of_kind.map(|(id, _)| *id).take(most).collect::<Vec<_>>()
        };
        let tasks = latest(false, most);
        let drains = latest(true, most - tasks.len().min(most / 2));
        let mut ids = drains;
        ids.extend(tasks.into_iter().take(most - ids.len()));
        ids.sort_unstable();
        ids.into_iter()
            .filter_map(|id| self.job_state(now, id))
            .collect()
    }

    fn job_state(&self, now: Instant, id: JobId) -> Option<JobState> {
        let job = self.jobs.all.get(&id)?;
        let drained = match &job.spec.work {
            JobWork::Drain { places, .. } => self.segments_at(places),
            JobWork::Copy { .. } | JobWork::Move { .. } => Vec::new(),
        };
        let left = drained.into_iter().filter_map(|id| {
            let segment = self.segments.at(self.segments.find(id)?);
            // A node that started again is drained no more.
            let same = job.drained.contains(&(id, segment.incarnation));
            (same && segment.kind() == SegmentKind::Memory).then(|| segment.used())
        });
        Some(JobState {
            job: id,
            spec: job.spec.clone(),
            status: job.status,
            age: now.since(job.begun),
            unchanged: now.since(job.changed),
            active: job.active as u64,
            done: job.done,
            done_bytes: job.done_bytes,
            failed: job.failed,
            left_bytes: left.sum(),
            errors: job.errors.iter().cloned().collect(),
        })
    }

    pub(crate) fn query_job(&self, now: Instant, id: JobId) -> Reply {
        match self.job_state(now, id) {
            Some(state) => Reply::Job(Box::new(state)),
            None => Reply::Failed(ErrorCode::JobNotFound),
        }
    }

    /// Answers once the job is over.
    pub(crate) fn await_job(&mut self, now: Instant, caller: &Caller, id: JobId) {
        let waits = self.jobs.all.get_mut(&id);
        let reply = match waits.filter(|job| !job.status.is_over()) {
            None => self.query_job(now, id),
            // A request that is repeated waits once.
            Some(job) if job.waits(caller) => return,
            Some(job) if job.waiters.len() < WAITERS_MAX => {
                return job.waiters.push(caller.clone());
            }
            Some(_) => Reply::Failed(ErrorCode::TaskPendingLimitExceeded),
        };
        self.outbox.reply(caller.client, caller.operation, reply);
    }

    /// A job has ended: the callers that wait for it are told.
    fn end_job(&mut self, now: Instant, id: JobId, status: JobStatus) {
        let Some(job) = self.jobs.all.get_mut(&id) else {
            return;
        };
        job.status = status;
        job.changed = now;
        job.queue.clear();
        job.sweep = Sweep::default();
        job.offloading = 0;
        let waiters = std::mem::take(&mut job.waiters);
        self.due.cancel(Due::Job(id));
        self.jobs.awaited.retain(|_, awaiting| awaiting.job != id);
        for caller in waiters {
            let reply = self.query_job(now, id);
            self.outbox.reply(caller.client, caller.operation, reply);
        }
        self.note_job(now, id);
        let drains = self.jobs.all[&id].is_drain();
        for forgotten in self.jobs.prune(drains) {
            self.notes.note(|| Note::ForgetJob(forgotten));
        }
    }

    /// The time of a job is over. What is being carried arrives.
    pub(crate) fn job_late(&mut self, now: Instant, id: JobId) {
        self.end_job(now, id, JobStatus::Failed);
    }
}
