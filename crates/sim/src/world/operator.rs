//! The operator of the pool: begins copies, moves and drains at the master, cancels some of them, and judges how they end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use slackwater_base::Rng;
use slackwater_meta::Input;
use slackwater_wire::{
    ClientId, JobId, JobSpec, JobState, JobStatus, JobWork, OperationId, Permissions, Reply,
    Request,
};

use crate::check::{Checked, Invariant, Violation};
use crate::engine::Seed;
use crate::net::Process;
use crate::plan::Plan;

use super::World;
use super::event::Event;

/// The name of the operator at the master.
pub(crate) const OPERATOR: ClientId = ClientId(1);

/// The jobs that were begun.
pub(crate) struct Operator {
    rng: Rng,
    next_operation: u64,
    /// How each job ended that has.
    begun: BTreeMap<JobId, Option<JobStatus>>,
    unawaited: Vec<JobId>,
    /// Values that succeeded jobs have carried.
    pub(crate) carried: u64,
}

impl Operator {
    pub(crate) fn new(seed: Seed) -> Self {
        Self {
            rng: seed.stream("operator", 0),
            next_operation: 0,
            begun: BTreeMap::new(),
            unawaited: Vec::new(),
            carried: 0,
        }
    }

    /// A new master has begun: it knows of the jobs of earlier ones if they kept a journal, and nobody waits for them.
    pub(super) fn master_began(&mut self, kept_journal: bool) {
        if !kept_journal {
            self.begun.clear();
        }
        let running = self.begun.iter().filter(|(_, over)| over.is_none());
        self.unawaited = running.map(|(job, _)| *job).collect();
    }
}

impl World {
    /// Has the operator act as often as the options say, while the load lasts.
    pub(super) fn plan_jobs(&mut self) {
        let Plan {
            options, scripts, ..
        } = &self.plan;
        let steps = scripts.iter().map(Vec::len).max().unwrap_or(0);
        // A pause lasts half of the longest one, on average.
        let lasts = (options.load.think * steps as u32 / 2).as_nanos() as u64;
        for _ in 0..options.jobs {
            let at = Duration::from_nanos(self.operator.rng.below(lasts.max(1)));
            self.engine.push(self.engine.now() + at, Event::Operator);
        }
    }

    pub(super) fn on_operator(&mut self) -> Checked {
        if self.healed {
            return Ok(());
        }
        let jobs = self.operator.begun.len() as u64;
        let cancels = jobs > 0 && self.operator.rng.below(4) == 0;
        let request = match cancels {
            true => {
                let at = self.operator.rng.below(jobs) as usize;
                let job = *self.operator.begun.keys().nth(at).expect("one of them");
                Request::CancelJob { job }
            }
            false => Request::StartJob(self.draw_job()),
        };
        self.operate(request)?;
        for job in std::mem::take(&mut self.operator.unawaited) {
            self.operate(Request::AwaitJob { job })?;
        }
        Ok(())
    }

    fn operate(&mut self, request: Request) -> Checked {
        if self.master.core.is_none() {
            return Ok(());
        }
        self.operator.next_operation += 1;
        self.master_step(Input::Request {
            client: OPERATOR,
            host: None,
            permissions: Permissions::FULL,
            operation: OperationId(self.operator.next_operation),
            request,
        })
    }

    fn draw_job(&mut self) -> JobSpec {
        let names = self.history.names().count() as u64;
        let kind = match names {
            0 => 2,
            _ => self.operator.rng.below(5),
        };
        let at = self.operator.rng.below(names.max(1)) as usize;
        let name = self.history.names().nth(at).cloned();
        let work = match (kind, name) {
            (0, Some((tenant, key))) => JobWork::Copy {
                tenant,
                key,
                targets: self.places(2),
            },
            (1, Some((tenant, key))) => JobWork::Move {
                tenant,
                key,
                source: None,
                target: self.place(),
            },
            _ => JobWork::Drain {
                places: self.places(2),
                targets: match self.operator.rng.below(3) {
                    0 => self.places(2),
                    _ => Vec::new(),
                },
                disks: self.operator.rng.below(2) == 0,
            },
        };
        let rng = &mut self.operator.rng;
        JobSpec {
            work,
            concurrency: rng.below(4) as u32,
            bytes_per_second: (rng.below(4) == 0).then_some(1 << 20),
            time: (rng.below(6) == 0).then(|| Duration::from_millis(100 + rng.below(2000))),
        }
    }

    /// A node, or a memory segment.
    fn place(&mut self) -> String {
        let rng = &mut self.operator.rng;
        let node = rng.below(u64::from(self.options.nodes)) as u32;
        let segments = self.options.segments(node);
        match rng.below(2 * segments.len() as u64) as usize {
            at if at < segments.len() => format!("memory{}", segments[at].segment),
            _ => node.to_string(),
        }
    }

    /// The memory segments at a place, with their nodes.
    fn segments_at(&self, place: &str) -> Vec<(u32, u32)> {
        let nodes = 0..self.options.nodes;
        let all = nodes.flat_map(|node| {
            let segments = self.options.segments(node).into_iter();
            segments.map(move |it| (node, it.segment.0))
        });
        let named = |(node, segment): &(u32, u32)| {
            node.to_string() == place || format!("memory{segment}") == place
        };
        all.filter(named).collect()
    }

    fn places(&mut self, most: u64) -> Vec<String> {
        let count = 1 + self.operator.rng.below(most);
        (0..count).map(|_| self.place()).collect()
    }

    /// The master answers the operator.
    pub(super) fn operator_answered(&mut self, reply: &Reply) -> Checked {
        let Reply::Job(state) = reply else {
            // What makes no sense is refused; what was begun is known.
            let known = *reply != Reply::Failed(slackwater_wire::ErrorCode::JobNotFound);
            return self.ensure_jobs(known, || "a job was forgotten".to_owned());
        };
        let before = self.operator.begun.get(&state.job).copied();
        match before {
            None => self.operator.unawaited.push(state.job),
            Some(Some(over)) => {
                return self.ensure_jobs(over == state.status, || {
                    format!("a job was {over:?}: {state:?}")
                });
            }
            Some(None) => {}
        }
        let over = state.status.is_over().then_some(state.status);
        self.operator.begun.insert(state.job, over);
        match state.status {
            JobStatus::Succeeded => self.judge_success(state),
            JobStatus::Running | JobStatus::Failed | JobStatus::Cancelled => Ok(()),
        }
    }

    fn judge_success(&mut self, state: &JobState) -> Checked {
        self.operator.carried += state.done;
        let books = self
            .master
            .core
            .as_ref()
            .map(slackwater_meta::Master::books);
        // What is still read goes with its readers.
        let read = books.is_none_or(|books| books.orphans > 0);
        let whole = match &state.spec.work {
            JobWork::Copy { targets, .. } => {
                // A node may lend only a part yet of what it is going to.
                let places = targets.iter().map(|it| self.segments_at(it));
                let places: BTreeSet<Vec<(u32, u32)>> = places.collect();
                let nodes = places.iter().flatten().map(|(node, _)| node);
                let nodes = nodes.collect::<BTreeSet<_>>().len();
                (nodes as u64..=places.len() as u64).contains(&state.done)
            }
            JobWork::Move { .. } => state.done == 1,
            JobWork::Drain { .. } => read || state.left_bytes == 0,
        };
        self.ensure_jobs(whole && state.failed == 0, || {
            format!("a job has not done what it says: {state:?}")
        })
    }

    fn ensure_jobs(&self, holds: bool, what: impl FnOnce() -> String) -> Checked {
        match holds {
            true => Ok(()),
            false => Err(Violation::new(Invariant::BooksBalance, what())),
        }
    }

    /// Once the faults are over every job ends; then segments take new values again.
    pub(super) fn end_jobs(&mut self) -> Checked {
        self.must(
            self.options.rest_bound() + JOBS_TIME,
            "a job did not end",
            |world| world.jobs().iter().all(|job| job.status.is_over()),
        )?;
        let known: BTreeSet<JobId> = self.jobs().iter().map(|state| state.job).collect();
        let forgotten = self.operator.begun.keys().find(|job| !known.contains(job));
        self.ensure_jobs(forgotten.is_none(), || {
            format!("the master does not know {forgotten:?}")
        })?;
        // Among them are those whose beginning the operator never heard of, and drains that a master began itself.
        for job in known {
            self.operate(Request::CancelJob { job })?;
        }
        Ok(())
    }

    /// The jobs that the master knows.
    fn jobs(&self) -> Vec<JobState> {
        let now = self.local(Process::Master);
        let core = self.master.core.iter();
        core.flat_map(|core| core.job_states(now, usize::MAX))
            .collect()
    }
}

/// Time beyond the bound of rest that the jobs may take at their rates, all together.
const JOBS_TIME: Duration = Duration::from_secs(120);
