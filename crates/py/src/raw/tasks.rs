//! Copies and moves of single values, which are jobs of the master.

use slackwater_remote::ClientError;
use slackwater_wire::{ErrorCode, JobId, JobSpec, JobState, JobStatus, JobWork, Key};

use super::session::{Outcome, Session};
use super::{ABSENT, WRONG};

/// How a task is: its number, whether it moves, its status by number, milliseconds since it began and since its status is
/// what it is, and what went wrong.
pub(super) type Task = (u64, bool, u8, u64, u64, String);

/// The numbers of statuses, as integrations know them.
const PENDING: u8 = 0;
const PROCESSING: u8 = 1;
const FAILED: u8 = 2;
const SUCCEEDED: u8 = 3;
/// There is no such task.
const UNKNOWN: i64 = ErrorCode::TaskNotFound.number() as i64;
/// What is to be moved is not where it is said to be.
const NOT_THERE: i64 = ErrorCode::ReplicaNotFound.number() as i64;

impl Session {
    /// Begins a copy or a move of a value: its number, or a code.
    pub(super) fn start_task(
        &self,
        key: &[u8],
        source: Option<String>,
        targets: Vec<String>,
    ) -> Outcome {
        let Ok(key) = Key::new(key) else {
            return Ok(ABSENT);
        };
        let call = self.call();
        let tenant = call.tenant.clone();
        let work = match (source, targets) {
            (None, targets) => JobWork::Copy {
                tenant,
                key,
                targets,
            },
            (Some(source), mut targets) => JobWork::Move {
                tenant,
                key,
                source: Some(source),
                target: targets.pop().unwrap_or_default(),
            },
        };
        let spec = JobSpec {
            work,
            concurrency: 0,
            bytes_per_second: None,
            time: None,
        };
        match self.client.start_job(spec, &call) {
            Ok(state) => Ok(state.job.0.cast_signed()),
            Err(error) => match error.code() {
                ErrorCode::SegmentNotFound => Ok(WRONG),
                ErrorCode::ReplicaNotInLocalMemory => Ok(NOT_THERE),
                _ => Err(error),
            },
        }
    }

    /// How a task is.
    pub(super) fn query_task(&self, job: u64) -> Result<Result<Task, i64>, ClientError> {
        match self.client.query_job(JobId(job), &self.call()) {
            Ok(state) => Ok(task(&state).ok_or(UNKNOWN)),
            Err(error) if error.code() == ErrorCode::JobNotFound => Ok(Err(UNKNOWN)),
            Err(error) => Err(error),
        }
    }
}

/// A job as a task; none for one that empties nodes.
fn task(state: &JobState) -> Option<Task> {
    let moves = match state.spec.work {
        JobWork::Copy { .. } => false,
        JobWork::Move { .. } => true,
        JobWork::Drain { .. } => return None,
    };
    let status = match state.status {
        JobStatus::Running if state.active == 0 && state.done == 0 => PENDING,
        JobStatus::Running => PROCESSING,
        JobStatus::Succeeded => SUCCEEDED,
        JobStatus::Failed | JobStatus::Cancelled => FAILED,
    };
    let cancelled = (state.status == JobStatus::Cancelled).then(|| "it was cancelled".to_owned());
    let errors = state.errors.iter().map(|(_, code)| code.to_string());
    let message: Vec<String> = errors.chain(cancelled).collect();
    let milliseconds = |time: std::time::Duration| time.as_millis() as u64;
    let (age, unchanged) = (milliseconds(state.age), milliseconds(state.unchanged));
    Some((
        state.job.0,
        moves,
        status,
        age,
        unchanged,
        message.join("; "),
    ))
}
