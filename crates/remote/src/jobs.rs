use slackwater_wire::{JobId, JobSpec, JobState, Reply, Request};

use crate::client::refusal;
use crate::waits::here;
use crate::{CallOptions, Client, ClientError};

/// Jobs of the master, which need the right of an operator.
impl Client {
    /// Begins a job; its state at its beginning.
    ///
    /// # Errors
    /// When the job makes no sense, or the key has not the right; the deadline; a cancellation.
    pub fn start_job(&self, spec: JobSpec, options: &CallOptions) -> Result<JobState, ClientError> {
        self.ask_job(Request::StartJob(spec), options)
    }

    /// How far a job is.
    ///
    /// # Errors
    /// When there is no such job, or the key has not the right; the deadline; a cancellation.
    pub fn query_job(&self, job: JobId, options: &CallOptions) -> Result<JobState, ClientError> {
        self.ask_job(Request::QueryJob { job }, options)
    }

    /// Waits until a job is over.
    ///
    /// # Errors
    /// As [`Client::query_job`].
    pub fn await_job(&self, job: JobId, options: &CallOptions) -> Result<JobState, ClientError> {
        self.ask_job(Request::AwaitJob { job }, options)
    }

    /// Ends a job: what is being carried arrives. What it drained takes new values again, also when the job is over.
    ///
    /// # Errors
    /// As [`Client::query_job`].
    pub fn cancel_job(&self, job: JobId, options: &CallOptions) -> Result<JobState, ClientError> {
        self.ask_job(Request::CancelJob { job }, options)
    }

    /// The latest jobs, the oldest first.
    ///
    /// # Errors
    /// When the key has not the right; the deadline; a cancellation.
    pub fn jobs(&self, options: &CallOptions) -> Result<Vec<JobState>, ClientError> {
        match here(self.call(options).ask("a list of jobs", Request::Jobs))? {
            Reply::Jobs(jobs) => Ok(jobs),
            reply => Err(refusal(&reply)),
        }
    }

    fn ask_job(&self, request: Request, options: &CallOptions) -> Result<JobState, ClientError> {
        match here(self.call(options).ask("a job", request))? {
            Reply::Job(state) => Ok(*state),
            reply => Err(refusal(&reply)),
        }
    }
}
