//! Copies, moves and drains of the pool: their beginning, their cancellation, and what must hold of them.

use super::*;

/// Who begins jobs, and waits for each of them.
pub(super) const WATCHER: ClientId = ClientId(3);
/// Who looks where values are.
pub(super) const READER: ClientId = ClientId(2);
/// Simulated time in which jobs end once nothing fails any more.
const HEALING: Duration = Duration::from_secs(60);

/// What was begun, and what is needed to judge it.
#[derive(Default)]
pub(super) struct Jobs {
    known: BTreeMap<JobId, Known>,
    /// By extents that were published: key and version.
    published: BTreeMap<(u32, u64, u64, u64), (u64, u64)>,
    /// The highest version that is known.
    pub(super) highest: u64,
    /// Evictions that the master had counted before.
    evictions: u64,
    /// What a node announces is being taken in, or refused.
    pub(super) adopts: bool,
    pub(super) succeeded: u64,
}

/// A job that was begun.
struct Known {
    spec: JobSpec,
    over: Option<JobStatus>,
    /// The master that began it.
    epoch: u64,
    /// Nodes that are drained, in their lives.
    drained: Vec<(u32, u64)>,
    /// For a move that no other job may disturb: the version and where it was.
    moves: Option<(u64, BTreeSet<SegmentId>)>,
    /// Values that it was to carry were lost.
    doomed: bool,
}

/// What the outputs of one step say of jobs, to be judged after them.
#[derive(Default)]
pub(super) struct Judged {
    /// Replicas that were let go: the number of the key, and the version.
    let_go: Vec<(u64, u64)>,
    /// Values that became readable.
    published: Vec<Published>,
    ended: Vec<JobState>,
}

impl Judged {
    pub(super) fn see(&mut self, output: &Output, jobs: &mut Jobs) {
        match output {
            Output::Order {
                order: Order::Fence(extents),
                ..
            } => {
                let held = extents
                    .iter()
                    .filter_map(|it| jobs.published.get(&name_of(it)));
                self.let_go.extend(held.copied());
            }
            Output::Order {
                order: Order::Published(entries),
                ..
            } => {
                self.published.extend_from_slice(entries);
                for Published { extent, entry, .. } in entries {
                    let version = entry.version.0;
                    jobs.highest = jobs.highest.max(version);
                    jobs.published
                        .insert(name_of(extent), (number(&entry.key), version));
                }
            }
            Output::Reply {
                client: WATCHER,
                reply,
                ..
            } => match reply {
                Reply::Job(state) => self.ended.push((**state).clone()),
                other => panic!("a job was forgotten: {other:?}"),
            },
            _ => {}
        }
    }
}

impl Pool {
    pub(super) fn begin_job(&mut self) {
        let work = match self.rng.below(10) {
            0..3 => JobWork::Copy {
                tenant: Tenant::DEFAULT,
                key: name(self.rng.below(self.keys)),
                targets: self.places(2),
            },
            3..6 => JobWork::Move {
                tenant: Tenant::DEFAULT,
                key: name(self.rng.below(self.keys)),
                source: self.places(1).pop().filter(|_| self.rng.below(2) == 0),
                target: self.place(),
            },
            _ => JobWork::Drain {
                places: self.places(2),
                targets: match self.rng.below(3) {
                    0 => self.places(2),
                    _ => Vec::new(),
                },
                disks: self.rng.below(2) == 0,
            },
        };
        let spec = JobSpec {
            work,
            concurrency: self.rng.below(4) as u32,
            bytes_per_second: (self.rng.below(4) == 0).then(|| 16384 << self.rng.below(4)),
            time: (self.rng.below(6) == 0).then(|| Duration::from_secs(1 + self.rng.below(20))),
        };
        let moves = self.holders_of(&spec.work);
        let out = self.watch(Request::StartJob(spec.clone()));
        let begun = out.iter().find_map(|output| match output {
            Output::Reply {
                client: WATCHER,
                reply: Reply::Job(state),
                ..
            } => Some(state.job),
            _ => None,
        });
        let Some(job) = begun else {
            // It makes no sense now.
            let refused = |it: &Output| {
                matches!(
                    it,
                    Output::Reply {
                        client: WATCHER,
                        ..
                    }
                )
            };
            return self.outputs(out.into_iter().filter(|it| !refused(it)).collect());
        };
        let running = self.jobs.known.values_mut().filter(|it| it.over.is_none());
        let alone = running.map(|other| other.moves = None).count() == 0;
        let known = Known {
            drained: self.drained_by(&spec.work),
            spec,
            over: None,
            epoch: self.epoch,
            doomed: false,
            moves: moves.filter(|_| alone),
        };
        let before = self.jobs.known.insert(job, known);
        assert!(before.is_none(), "{job:?} was begun twice");
        self.outputs(out);
        self.await_job(job);
    }

    fn place(&mut self) -> String {
        let node = self.rng.below(self.nodes.len() as u64);
        match self.rng.below(2) {
            0 => node.to_string(),
            _ => format!("memory{node}"),
        }
    }

    fn places(&mut self, most: u64) -> Vec<String> {
        (0..=self.rng.below(most)).map(|_| self.place()).collect()
    }

    fn drained_by(&self, work: &JobWork) -> Vec<(u32, u64)> {
        let JobWork::Drain { places, .. } = work else {
            return Vec::new();
        };
        let named = |node: &u32| {
            let names = [node.to_string(), format!("memory{node}")];
            names.iter().any(|name| places.contains(name))
        };
        let members = self.members.iter().filter(|(node, _)| named(node));
        members.map(|(node, it)| (*node, it.process)).collect()
    }

    /// Where the object of a move is, outside of its target.
    fn holders_of(&mut self, work: &JobWork) -> Option<(u64, BTreeSet<SegmentId>)> {
        let JobWork::Move {
            key,
            source,
            target,
            ..
        } = work
        else {
            return None;
        };
        let is = |place: &str, it: SegmentId| {
            let node = it.0 >> 1;
            place == node.to_string() || place == format!("memory{node}")
        };
        let (version, at) = self.describe(number(key))?;
        let leaving = |it: &SegmentId| match source {
            Some(source) => is(source, *it),
            None => !is(target, *it),
        };
        let at = at.into_iter().map(|extent| extent.segment);
        Some((version, at.filter(leaving).collect()))
    }

    pub(super) fn cancel_job(&mut self) {
        let jobs = self.jobs.known.len() as u64;
        if jobs > 0 {
            let at = self.rng.below(jobs) as usize;
            let job = *self.jobs.known.keys().nth(at).expect("it is one of them");
            let out = self.watch(Request::CancelJob { job });
            self.outputs(out);
        }
    }

    fn watch(&mut self, request: Request) -> Vec<Output> {
        self.next_operation += 1;
        let mut out = Vec::new();
        let input = Input::Request {
            client: WATCHER,
            host: None,
            permissions: Permissions::FULL,
            operation: OperationId(self.next_operation),
            request,
        };
        self.master.handle(self.now, input, &mut out);
        out
    }

    fn await_job(&mut self, job: JobId) {
        let out = self.watch(Request::AwaitJob { job });
        self.outputs(out);
    }

    /// Asks a new master for every job.
    pub(super) fn await_jobs(&mut self) {
        self.jobs.evictions = 0;
        let jobs: Vec<JobId> = self.jobs.known.keys().copied().collect();
        jobs.into_iter().for_each(|job| self.await_job(job));
    }

    pub(super) fn judge(&mut self, judged: Judged) {
        let evictions = self.master.metrics().evictions;
        let evicted = std::mem::replace(&mut self.jobs.evictions, evictions) != evictions;
        for Published { entry, .. } in &judged.published {
            // A copy may still hold what was replaced.
            let ending = self.ending.entry(number(&entry.key)).or_default();
            *ending = (entry.version.0 - 1).max(*ending);
        }
        let pardoned = evicted || std::mem::take(&mut self.jobs.adopts);
        for (key, version) in judged.let_go.into_iter().filter(|_| !pardoned) {
            let ending = self.ending.get(&key).is_some_and(|up_to| version <= *up_to);
            if let Some(left) = self.ask_for(key).filter(|_| !ending) {
                let remains = |(found, at): &(u64, Vec<_>)| *found > version || !at.is_empty();
                assert!(
                    left.as_ref().is_some_and(remains),
                    "the last replica of key {key}, version {version}, was let go: {left:?}"
                );
            }
        }
        for Published {
            extent,
            checksum,
            bytes,
            ..
        } in judged.published
        {
            let node = &self.nodes[(extent.segment.0 >> 1) as usize];
            let first = (extent.offset / GRANULE) as usize;
            let held = &node.stamps[first..first + bytes.div_ceil(GRANULE) as usize];
            let right = held.iter().all(|it| Checksum(*it) == checksum);
            let alive = node.process == extent.incarnation.0;
            assert!(right || !alive, "{extent:?} was published with other bytes");
        }
        for state in judged.ended {
            self.judge_job(&state);
        }
    }

    fn judge_job(&mut self, state: &JobState) {
        let job = state.job;
        let Some(known) = self.jobs.known.get_mut(&job) else {
            return;
        };
        assert_eq!(state.spec, known.spec);
        if let Some(over) = known.over {
            assert_eq!(state.status, over, "{job:?} was over");
            return;
        }
        if !state.status.is_over() {
            return;
        }
        known.over = Some(state.status);
        if state.status != JobStatus::Succeeded {
            return;
        }
        assert_eq!(state.failed, 0, "{state:?}");
        assert!(!known.doomed, "values were lost, and {state:?}");
        self.jobs.succeeded += 1;
        match &state.spec.work {
            JobWork::Copy { targets, .. } => {
                let known = &self.jobs.known[&job];
                let all = known.epoch != self.epoch || state.done == targets.len() as u64;
                assert!(all, "a copy forgot a target: {state:?}");
            }
            JobWork::Move { key, .. } => self.judge_move(job, number(key)),
            JobWork::Drain { .. } => self.judge_drain(state),
        }
    }

    fn judge_move(&mut self, job: JobId, key: u64) {
        let Some((version, before)) = self.jobs.known[&job].moves.clone() else {
            return;
        };
        if let Some((found, at)) = self.describe(key).filter(|it| it.0 == version) {
            let now: BTreeSet<_> = at.iter().map(|it| it.segment).collect();
            let left = before.intersection(&now).count();
            assert!(
                left < before.len(),
                "key {key}, version {found}, did not leave {before:?}: {now:?}"
            );
        }
    }

    /// Nothing is left in memory that is drained.
    fn judge_drain(&mut self, state: &JobState) {
        let drained = self.jobs.known[&state.job].drained.clone();
        for key in 0..KEYS {
            let Some((version, at)) = self.describe(key) else {
                continue;
            };
            for extent in at {
                let node = extent.segment.0 >> 1;
                let place = (node, extent.incarnation.0);
                let same = drained.iter().any(|(of, life)| place == (*of, *life));
                assert!(!same, "key {key}, version {version}, is left by {state:?}");
            }
        }
        // What a copy still reads goes with it.
        let read = self.master.books().orphans > 0;
        assert!(read || state.left_bytes == 0, "bytes are left: {state:?}");
    }

    /// The version of an object, and where it can be read. A master that waits for its nodes says nothing.
    pub(super) fn describe(&mut self, key: u64) -> Option<(u64, Vec<ExtentRef>)> {
        self.ask_for(key).flatten()
    }

    /// The same; none when there is no answer yet.
    fn ask_for(&mut self, key: u64) -> Option<Option<(u64, Vec<ExtentRef>)>> {
        let request = Request::Describe {
            tenant: Tenant::DEFAULT,
            key: name(key),
        };
        let input = Input::Request {
            client: READER,
            host: None,
            permissions: Permissions::FULL,
            operation: OperationId::unrepeated(0),
            request,
        };
        let mut out = Vec::new();
        self.master.handle(self.now, input, &mut out);
        let is_reply = |it: &Output| matches!(it, Output::Reply { client: READER, .. });
        let reply = out.iter().position(is_reply).map(|at| out.remove(at));
        if !out.is_empty() {
            self.outputs(out);
        }
        let Output::Reply { reply, .. } = reply? else {
            return None;
        };
        let Reply::Describe(found) = reply else {
            return Some(None);
        };
        let extents = found.replicas.iter().filter_map(|(at, state, _)| match at {
            ReplicaAt::Memory(extent) if *state == ReplicaState::Complete => Some(*extent),
            _ => None,
        });
        Some(Some((found.version.0, extents.collect())))
    }

    /// A node is about to be lost: a drain of it that runs cannot succeed when only that node has a value.
    pub(super) fn doom_drains(&mut self, node: u32) {
        let Some(process) = self.members.get(&node).map(|it| it.process) else {
            return;
        };
        let running = |it: &Known| it.over.is_none() && it.drained.contains(&(node, process));
        if !self.jobs.known.values().any(running) {
            return;
        }
        let last = |at: &[ExtentRef]| {
            let here = at.iter().all(|extent| extent.segment == memory(node));
            here && !at.is_empty()
        };
        let lost = (0..KEYS).any(|key| self.describe(key).is_some_and(|(_, at)| last(&at)));
        let known = self.jobs.known.values_mut().filter(|it| running(it));
        known.for_each(|it| it.doomed |= lost);
    }

    /// What must hold at any time.
    pub(super) fn judge_all(&mut self) {
        self.master.check_books().expect("the books balance");
        for key in 0..KEYS {
            if let Some((_, at)) = self.describe(key) {
                let segments: BTreeSet<_> = at.iter().map(|it| it.segment).collect();
                assert_eq!(
                    segments.len(),
                    at.len(),
                    "key {key} is twice at one place: {at:?}"
                );
            }
        }
    }

    /// Nothing fails any more, and every job ends in time, except those that wait for a put that was given up.
    pub(super) fn end_jobs(&mut self) {
        self.carries.healed = true;
        let until = self.now + HEALING;
        while self.now < until && self.has_running() {
            self.rest_once();
            self.pass(Duration::from_millis(100));
        }
    }

    fn has_running(&self) -> bool {
        self.jobs.known.values().any(|it| it.over.is_none())
    }

    pub(super) fn judge_end(&mut self) {
        let jobs = &self.jobs;
        let running = jobs.known.iter().find(|(_, it)| it.over.is_none());
        let spec = running.map(|(job, it)| (job, &it.spec));
        assert!(spec.is_none(), "a job does not end: {spec:?}");
        let found: usize = (0..KEYS)
            .filter_map(|key| self.describe(key))
            .map(|it| it.1.len())
            .sum();
        let books = self.master.books();
        assert_eq!(
            books.replicas, found as u64,
            "replicas that nobody finds: {books:?}"
        );
    }
}

pub(super) fn number(key: &Key) -> u64 {
    u64::from_be_bytes(key.as_bytes().try_into().expect("as it was made"))
}

fn name_of(extent: &ExtentRef) -> (u32, u64, u64, u64) {
    let ExtentRef {
        segment,
        incarnation,
        offset,
        generation,
        ..
    } = extent;
    (segment.0, incarnation.0, *offset, *generation)
}
