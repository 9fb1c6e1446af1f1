//! What the checkers remember: every byte that was placed in the target's memory, and every request.

use std::collections::BTreeSet;

use slackwater_data_plane::Cause;
use slackwater_wire::data::Op;

/// One request of the simulated callers.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) op: Op,
    pub(super) extent: usize,
    /// From the start of the extent.
    pub(super) offset: u64,
    pub(super) generation: u64,
    /// Its local memory.
    pub(super) memory: Box<[u8]>,
    pub(super) started: u64,
    pub(super) ended: Option<Result<u64, Cause>>,
    /// A read's bytes when it ended.
    pub(super) seen: Option<Box<[u8]>>,
    /// Whether its right held when a write was to count, or a read began.
    pub(super) counts: bool,
    /// Its connection, or its initiator, ended before the target had answered: bytes on their way may still arrive, for
    /// as long as its capability allows them.
    pub(super) unanswered: bool,
}

/// Bytes placed in one byte of the target's memory, in order.
#[derive(Debug, Default)]
struct History(Vec<Placed>);

#[derive(Clone, Copy, Debug)]
struct Placed {
    step: u64,
    generation: u64,
    value: u8,
    /// None for the owner.
    job: Option<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) jobs: Vec<Job>,
    bytes: Vec<History>,
    /// Jobs that have not ended.
    pub(super) open: BTreeSet<usize>,
}

/// A byte that only this job writes, as far as bytes suffice.
pub(super) fn value_of(job: usize) -> u8 {
    (job % 251) as u8 + 1
}

impl Ledger {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            bytes: (0..bytes).map(|_| History::default()).collect(),
            ..Self::default()
        }
    }

    /// The owner gives bytes another use.
    pub(super) fn reused(&mut self, range: std::ops::Range<usize>, generation: u64, step: u64) {
        for byte in &mut self.bytes[range] {
            byte.0.push(Placed {
                step,
                generation,
                value: 0,
                job: None,
            });
        }
    }

    /// Bytes of a job were placed at `at`, in an extent that has this generation now.
    pub(super) fn placed(
        &mut self,
        job: usize,
        at: usize,
        values: &[u8],
        (generation, step): (u64, u64),
    ) -> Result<(), String> {
        let record = &self.jobs[job];
        if record.op != Op::Write {
            return Err(format!("job {job} only reads, and changed bytes"));
        }
        if record.generation != generation {
            return Err(format!(
                "job {job} of generation {} changed bytes of generation {generation}",
                record.generation
            ));
        }
        match &record.ended {
            None => {}
            Some(Err(_)) if record.unanswered => {}
            Some(ended) => {
                return Err(format!(
                    "job {job} had ended as {ended:?}, and changed bytes"
                ));
            }
        }
        for (byte, value) in self.bytes[at..].iter_mut().zip(values) {
            byte.0.push(Placed {
                step,
                generation,
                value: *value,
                job: Some(job),
            });
        }
        Ok(())
    }

    /// A job has ended.
    pub(super) fn ended(
        &mut self,
        job: usize,
        outcome: Result<u64, Cause>,
        base: usize,
    ) -> Result<(), String> {
        if !self.open.remove(&job) {
            return Err(format!("job {job} ended twice"));
        }
        if outcome.is_ok() {
            self.check_completed(job, base)?;
        }
        let record = &mut self.jobs[job];
        record.seen = (record.op == Op::Read).then(|| record.memory.clone());
        record.ended = Some(outcome);
        Ok(())
    }

    /// A job that completed has all its bytes, under a right that held.
    fn check_completed(&self, job: usize, base: usize) -> Result<(), String> {
        let record = &self.jobs[job];
        if !record.counts {
            return Err(format!("job {job} counts, and its right had ended"));
        }
        let at = base + record.offset as usize;
        for (index, value) in record.memory.iter().enumerate() {
            let history = &self.bytes[at + index].0;
            let of_generation = |placed: &&Placed| placed.generation == record.generation;
            let found = match record.op {
                Op::Write => history
                    .iter()
                    .any(|placed| placed.job == Some(job) && placed.value == *value),
                Op::Read => {
                    let before = history
                        .iter()
                        .rev()
                        .find(|placed| placed.step < record.started);
                    let since = history
                        .iter()
                        .filter(|placed| placed.step >= record.started);
                    since
                        .chain(before)
                        .filter(of_generation)
                        .any(|placed| placed.value == *value)
                }
            };
            if !found {
                return Err(format!(
                    "job {job}, {:?}, completed without its byte {index}: {value}",
                    record.op
                ));
            }
        }
        Ok(())
    }

    /// Everything is at rest: all jobs have ended, and nothing touched their memory afterwards.
    pub(super) fn check_rest(&self) -> Result<(), String> {
        if let Some(job) = self.open.first() {
            return Err(format!("job {job} never ended: {:?}", self.jobs[*job]));
        }
        let changed = |record: &Job| {
            record
                .seen
                .as_ref()
                .is_some_and(|seen| *seen != record.memory)
        };
        match self.jobs.iter().position(changed) {
            Some(job) => Err(format!("memory of job {job} changed after its end")),
            None => Ok(()),
        }
    }
}
