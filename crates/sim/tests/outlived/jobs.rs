//! Copies, moves and drains of the pool: their beginning, their cancellation, and what must hold of them.

use super::*;

/// Who begins jobs, and waits for each of them.
pub(super) const WATCHER: ClientId = ClientId(3);
/// Who looks where values are.
pub(super) const READER: ClientId = ClientId(2);

/// What was begun, and what is needed to judge it.
#[derive(Default)]
pub(super) struct Jobs {
    pub(super) known: BTreeMap<JobId, Known>,
    /// By extents that were published: key and version.
    published: BTreeMap<(u32, u64, u64, u64), (u64, u64)>,
    /// The highest version that is known.
    pub(super) highest: u64,
    /// Evictions that the master had counted before.
    evictions: u64,
    /// What a node announces is being taken in, or refused.
    pub(super) adopts: bool,
    pub(super) succeeded: Succeeded,
}

/// A job that was begun.
pub(super) struct Known {
    pub(super) spec: JobSpec,
    pub(super) over: Option<JobStatus>,
    /// The master that began it.
    pub(super) epoch: u64,
    /// Nodes that are drained, in their lives.
    pub(super) drained: Vec<(u32, u64)>,
    /// For a move that no other job may disturb: the version and where it was.
    pub(super) moves: Option<(u64, BTreeSet<SegmentId>)>,
    /// Values that it was to carry were lost.
    pub(super) doomed: bool,
    /// It was cancelled, under way or when it was over.
    pub(super) cancelled: bool,
}

impl Known {
    pub(super) fn new(spec: JobSpec, epoch: u64, drained: Vec<(u32, u64)>) -> Self {
        Self {
            spec,
            over: None,
            epoch,
            drained,
            moves: None,
            doomed: false,
            cancelled: false,
        }
    }
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
                // It was over before it was cancelled.
                Reply::Failed(ErrorCode::UnavailableInCurrentStatus) => {}
                other => panic!("a job was forgotten: {other:?}"),
            },
            _ => {}
        }
    }
}

impl Pool {
    pub(super) fn begin_job(&mut self) {
        let work = match self.rng.below(10) {
            0..4 => JobWork::Copy {
                tenant: Tenant::DEFAULT,
                key: name(self.rng.below(self.keys)),
                targets: self.places(2),
            },
            4..7 => JobWork::Move {
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
            bytes_per_second: (self.rng.below(4) == 0).then(|| 16 << self.rng.below(12)),
            time: (self.rng.below(6) == 0).then(|| Duration::from_secs(1 + self.rng.below(20))),
        };
        self.begin(spec);
    }

    /// A node of a slow drain of two is lost, and comes back before the drain is over.
    pub(super) fn lose_drained(&mut self, node: usize) {
        let other = (node + 1) % self.nodes.len();
        self.begin(JobSpec {
            work: JobWork::Drain {
                places: vec![node.to_string(), other.to_string()],
                targets: Vec::new(),
                disks: true,
            },
            concurrency: 0,
            bytes_per_second: Some(8),
            time: None,
        });
        self.cut(node);
        self.wait_without(node);
        self.rest();
        for _ in 0..30 {
            self.pass(Duration::from_secs(100));
            self.rest_once();
        }
    }

    pub(super) fn begin(&mut self, spec: JobSpec) -> Option<JobId> {
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
            self.outputs(out.into_iter().filter(|it| !refused(it)).collect());
            return None;
        };
        let running = self.jobs.known.values_mut().filter(|it| it.over.is_none());
        let alone = running.map(|other| other.moves = None).count() == 0;
        let drained = self.drained_by(&spec.work);
        let known = Known {
            moves: moves.filter(|_| alone),
            ..Known::new(spec, self.epoch, drained)
        };
        let before = self.jobs.known.insert(job, known);
        assert!(before.is_none(), "{job:?} was begun twice");
        self.outputs(out);
        self.await_job(job);
        Some(job)
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
        // Nothing new comes to what is drained, so drains are cancelled more often than others.
        let of_drains = self.rng.below(4) > 0;
        let known = self.jobs.known.iter();
        let some = known.filter(|(_, it)| !of_drains || !it.drained.is_empty() && !it.cancelled);
        let some: Vec<JobId> = some.map(|(job, _)| *job).collect();
        if !some.is_empty() {
            let at = self.rng.below(some.len() as u64) as usize;
            self.cancel(some[at]);
        }
    }

    pub(super) fn cancel(&mut self, job: JobId) {
        if let Some(known) = self.jobs.known.get_mut(&job) {
            known.cancelled = true;
        }
        let out = self.watch(Request::CancelJob { job });
        self.outputs(out);
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

    pub(super) fn await_job(&mut self, job: JobId) {
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
