//! What must hold of jobs: each time one ends, at any time, and once nothing fails any more.

use super::jobs::Known;
use super::*;

/// Simulated time in which jobs end once nothing fails any more.
const HEALING: Duration = Duration::from_secs(60);

/// Jobs that did what they say, by what they do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Succeeded {
    pub(super) copies: u64,
    pub(super) moves: u64,
    pub(super) drains: u64,
    /// Drains that a master began by itself.
    pub(super) again: u64,
}

impl Succeeded {
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            copies: self.copies + other.copies,
            moves: self.moves + other.moves,
            drains: self.drains + other.drains,
            again: self.again + other.again,
        }
    }
}

impl Pool {
    pub(super) fn judge_job(&mut self, state: &JobState) {
        let job = state.job;
        let epoch = self.epoch;
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
        match state.status {
            JobStatus::Succeeded => {
                assert_eq!(state.failed, 0, "{state:?}");
                assert!(!known.doomed, "values were lost, and {state:?}");
            }
            JobStatus::Cancelled => {
                assert!(known.cancelled, "nobody cancelled {state:?}");
                return;
            }
            JobStatus::Failed | JobStatus::Running => {
                let says_why = state.failed > 0 && !state.errors.is_empty();
                assert!(
                    says_why || state.spec.time.is_some(),
                    "it does not say why: {state:?}"
                );
                return self.judge_failed_drain(state);
            }
        }
        let succeeded = &mut self.jobs.succeeded;
        match &state.spec.work {
            JobWork::Copy { targets, .. } => {
                succeeded.copies += 1;
                let nodes: BTreeSet<&str> = targets
                    .iter()
                    .map(|it| it.trim_start_matches("memory"))
                    .collect();
                let all = known.epoch != epoch || state.done == nodes.len() as u64;
                assert!(all, "a copy forgot a target: {state:?}");
            }
            JobWork::Move { key, .. } => {
                succeeded.moves += 1;
                self.judge_move(job, number(key));
            }
            JobWork::Drain { .. } => {
                succeeded.drains += 1;
                self.judge_drain(state);
            }
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
        // A later master than the one that numbered the job has its end from the journal, and drains again what comes back.
        let is_told = state.job.0 >> 20 != self.epoch;
        self.judge_empty(&drained, state);
        for (node, life) in drained {
            let lives = self.nodes[node as usize].process == life;
            let is_known = self.master.has_node(NodeId(node));
            assert!(
                is_known || !lives || is_told,
                "node {node} may come back: {state:?}"
            );
        }
        // What a copy still reads goes with it.
        let read = self.master.books().orphans > 0;
        assert!(read || state.left_bytes == 0, "bytes are left: {state:?}");
    }

    /// What a drain leaves in memory is what it says, as long as its errors have room for all of it.
    fn judge_failed_drain(&mut self, state: &JobState) {
        let told = state.failed == state.errors.len() as u64;
        let of_segments = |(key, _): &(Key, ErrorCode)| key.as_bytes().starts_with(b"segment");
        if state.spec.time.is_some() || !told || state.errors.iter().any(of_segments) {
            return;
        }
        let drained = self.jobs.known[&state.job].drained.clone();
        for key in 0..KEYS {
            let Some((version, at)) = self.describe(key) else {
                continue;
            };
            let mut places = at.iter().map(|it| (it.segment.0 >> 1, it.incarnation.0));
            if !places.any(|place| drained.contains(&place)) {
                continue;
            }
            // What was lost with its node may be back.
            let could_not = |(of, code): &(Key, ErrorCode)| {
                number(of) == key && *code != ErrorCode::ReplicaIsGone
            };
            let says_so = state.errors.iter().any(could_not);
            assert!(
                says_so,
                "key {key}, version {version}, is left without a word: {state:?}"
            );
        }
    }

    fn judge_empty(&mut self, drained: &[(u32, u64)], why: &impl std::fmt::Debug) {
        for key in 0..KEYS {
            let Some((version, at)) = self.describe(key) else {
                continue;
            };
            for extent in at {
                let place = (extent.segment.0 >> 1, extent.incarnation.0);
                let is_drained = drained.contains(&place);
                assert!(
                    !is_drained,
                    "key {key}, version {version}, is left by {why:?}"
                );
            }
        }
    }

    /// Drains that the master began by itself: of segments that came back after they had been drained.
    fn meet_jobs(&mut self) {
        let states = self.master.job_states(self.now, usize::MAX);
        let unknown = states
            .iter()
            .filter(|state| !self.jobs.known.contains_key(&state.job));
        let unknown: Vec<JobState> = unknown.cloned().collect();
        for state in unknown {
            let kept = self.journal.jobs[&state.job].drained.iter();
            let drained: Vec<_> = kept.map(|(of, life)| (of.0 >> 1, life.0)).collect();
            let mut before = self.jobs.known.values();
            let was_drained = before.any(|it| {
                let same = drained.iter().all(|place| it.drained.contains(place));
                same && it.over == Some(JobStatus::Succeeded)
            });
            assert!(was_drained && drained.len() == 1, "nobody began {state:?}");
            self.jobs.succeeded.again += 1;
            let known = Known::new(state.spec, self.epoch, drained);
            self.jobs.known.insert(state.job, known);
            self.await_job(state.job);
        }
    }

    /// What segments say of themselves is what their last drains have come to.
    fn judge_drained(&mut self) {
        let states = self.master.segments();
        for state in states {
            let Some(member) = self.members.get(&state.node.0) else {
                continue;
            };
            let place = (state.node.0, member.process);
            let known = self.jobs.known.iter().rev();
            let mut drains = known.filter(|(_, it)| it.drained.contains(&place));
            let last = drains.next().map(|(job, it)| (*job, it));
            let expected: &[Draining] = match last {
                None => &[Draining::No],
                Some((_, it)) if it.cancelled => &[Draining::No],
                Some((_, it)) if it.over == Some(JobStatus::Succeeded) => {
                    // Until its node has told what it holds, once it is back.
                    &[Draining::Done, Draining::Running]
                }
                Some(_) => &[Draining::Running],
            };
            assert!(
                expected.contains(&state.draining),
                "{state:?} after {:?}",
                last.map(|(job, it)| (job, it.over, &it.spec))
            );
            if state.draining == Draining::Done {
                self.judge_empty(&[place], &state);
                let read = self.master.books().orphans > 0;
                assert!(read || state.used_bytes == 0, "bytes are left: {state:?}");
            }
        }
    }

    /// Whether only a node has a value.
    fn has_last(&mut self, node: u32) -> bool {
        let last = |at: &[ExtentRef]| {
            let here = at.iter().all(|extent| extent.segment == memory(node));
            here && !at.is_empty()
        };
        (0..KEYS).any(|key| self.describe(key).is_some_and(|(_, at)| last(&at)))
    }

    fn is_drained(&self, node: u32) -> bool {
        let Some(member) = self.members.get(&node) else {
            return false;
        };
        let place = (node, member.process);
        let mut known = self.jobs.known.values();
        known.any(|it| it.over.is_none() && it.drained.contains(&place))
    }

    /// A node is about to be lost: a drain of it that runs cannot succeed when only that node has a value.
    pub(super) fn doom_drains(&mut self, node: u32) {
        if self.is_drained(node) && self.has_last(node) {
            self.doom(node);
        }
    }

    fn doom(&mut self, node: u32) {
        let Some(process) = self.members.get(&node).map(|it| it.process) else {
            return;
        };
        let known = self.jobs.known.values_mut();
        let running = known.filter(|it| it.over.is_none());
        let of_it = running.filter(|it| it.drained.contains(&(node, process)));
        of_it.for_each(|it| it.doomed = true);
    }

    /// Nodes that may be given up at the next deadline, with values that a drain of them was to save.
    pub(super) fn at_risk(&mut self) -> Vec<u32> {
        let hidden = self.master.segments().into_iter();
        let hidden = hidden.filter(|it| it.presence == Presence::Hidden);
        let mut nodes: Vec<u32> = hidden.map(|it| it.node.0).collect();
        nodes.retain(|node| self.is_drained(*node) && self.has_last(*node));
        nodes
    }

    /// Those of them that were given up.
    pub(super) fn doom_given_up(&mut self, nodes: Vec<u32>) {
        for node in nodes {
            if !self.master.has_node(NodeId(node)) {
                self.doom(node);
            }
        }
    }

    /// A new master cannot know what was lost with a node whose process has ended. What was given up may be back.
    pub(super) fn doom_ended(&mut self) {
        let nodes = &self.nodes;
        let ended = |(node, process): &(u32, u64)| nodes[*node as usize].process != *process;
        let known = self.jobs.known.values_mut();
        let running = known.filter(|it| it.over.is_none());
        running.for_each(|it| it.doomed = it.drained.iter().any(ended));
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
        self.meet_jobs();
        self.judge_drained();
    }

    /// Nothing fails any more, and every job ends in time, except those that wait for a put that was given up.
    pub(super) fn end_jobs(&mut self) {
        self.carries.healed = true;
        let known = self.jobs.known.iter();
        let slow = known.filter(|(_, it)| it.spec.bytes_per_second.is_some_and(|it| it < 1024));
        let slow: Vec<JobId> = slow.map(|(job, _)| *job).collect();
        slow.into_iter().for_each(|job| self.cancel(job));
        let until = self.now + HEALING;
        while self.now < until && self.has_running() {
            self.rest_once();
            self.pass(Duration::from_millis(100));
            self.meet_jobs();
        }
    }

    fn has_running(&self) -> bool {
        self.jobs.known.values().any(|it| it.over.is_none())
    }

    pub(super) fn judge_end(&mut self) {
        self.meet_jobs();
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

    /// With every node there, and room elsewhere, a drain that was cancelled or has failed before succeeds.
    pub(super) fn drain_in_peace(&mut self) {
        let drains = self.jobs.known.iter();
        let drains = drains.filter(|(_, it)| !it.drained.is_empty());
        let drains: Vec<JobId> = drains.map(|(job, _)| *job).collect();
        drains.into_iter().for_each(|job| self.cancel(job));
        self.judge_all();
        let states = self.master.segments();
        let Some(first) = states.iter().find(|it| it.segment == memory(0)) else {
            return;
        };
        let half = GRANULES * GRANULE / 2;
        let others = states.iter().filter(|it| it.node != first.node);
        if !others
            .clone()
            .any(|it| it.used_bytes + first.used_bytes < half)
        {
            return;
        }
        let job = self.begin(JobSpec {
            work: JobWork::Drain {
                places: vec!["0".to_owned()],
                targets: Vec::new(),
                disks: true,
            },
            concurrency: 0,
            bytes_per_second: None,
            time: None,
        });
        self.end_jobs();
        self.rest();
        let job = job.expect("nothing is drained now");
        let over = self.jobs.known[&job].over;
        let state = self.master.job_states(self.now, usize::MAX).pop();
        assert_eq!(over, Some(JobStatus::Succeeded), "{state:?}");
        self.judge_all();
    }
}
