//! Jobs: drains are begun, looked at and cancelled; all of them are listed.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value, json};
use slackwater_wire::{ErrorCode, JobId, JobSpec, JobState, JobWork};

use crate::arguments::Arguments;
use crate::json::Json;
use crate::paths::{Shared, call};
use crate::{Failure, Source};

pub(crate) fn router() -> Router<Arc<dyn Source>> {
    Router::new()
        .route("/api/v1/jobs", get(jobs))
        .route("/api/v1/drain_jobs", post(drain))
        .route("/api/v1/drain_jobs/query", get(query))
        .route("/api/v1/drain_jobs/cancel", post(cancel))
}

/// The body of a request for a drain.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewDrain {
    segments: Vec<String>,
    #[serde(default)]
    target_segments: Vec<String>,
    #[serde(default)]
    max_concurrency: u32,
    #[serde(default)]
    bytes_per_second: Option<u64>,
}

async fn drain(
    State(source): Shared,
    RawQuery(query): RawQuery,
    body: Bytes,
) -> Result<Json, Failure> {
    Arguments::of(query.as_deref(), &[])?;
    let asked: NewDrain = serde_json::from_slice(&body)
        .map_err(|error| Failure::argument(format!("the body is not what it must be: {error}")))?;
    let spec = JobSpec {
        work: JobWork::Drain {
            places: asked.segments,
            targets: asked.target_segments,
            disks: true,
        },
        concurrency: asked.max_concurrency,
        bytes_per_second: asked.bytes_per_second,
        time: None,
    };
    let check = spec.work.check();
    check.map_err(|error| Failure::argument(error.to_string()))?;
    let state = call(source, |source| source.start_job(spec)).await??;
    let job = state.job.to_string();
    Ok(Json(
        json!({ "success": true, "job_id": job, "status": "CREATED" }),
    ))
}

async fn query(State(source): Shared, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    let job = named(query.as_deref())?;
    let state = call(source, move |source| source.query_job(job)).await??;
    Ok(Json(job_described(&state)))
}

async fn cancel(State(source): Shared, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    let job = named(query.as_deref())?;
    let state = call(source, move |source| source.cancel_job(job)).await??;
    Ok(Json(job_described(&state)))
}

async fn jobs(State(source): Shared, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    Arguments::of(query.as_deref(), &[])?;
    let states = call(source, |source| source.jobs()).await??;
    let states: Vec<Value> = states.iter().map(job_described).collect();
    Ok(Json(json!({ "jobs": states })))
}

fn named(query: Option<&str>) -> Result<JobId, Failure> {
    let arguments = Arguments::of(query, &["job_id"])?;
    arguments.needed("job_id")?;
    let number = arguments.number("job_id")?;
    Ok(JobId(number.ok_or(ErrorCode::JobNotFound)?))
}

/// A job, as JSON.
#[must_use]
pub fn job_described(state: &JobState) -> Value {
    let work = match &state.spec.work {
        JobWork::Copy {
            tenant,
            key,
            targets,
        } => {
            json!({ "type": "copy", "tenant": tenant.name(), "key": key.line(), "targets": targets })
        }
        JobWork::Move {
            tenant,
            key,
            source,
            target,
        } => json!({
            "type": "move",
            "tenant": tenant.name(),
            "key": key.line(),
            "source": source,
            "target": target,
        }),
        JobWork::Drain {
            places,
            targets,
            disks,
        } => {
            json!({ "type": "drain", "segments": places, "target_segments": targets, "ssd": disks })
        }
    };
    let error = |(key, code): &(slackwater_wire::Key, ErrorCode)| json!({ "key": key.line(), "error_code": code.number(), "error_name": code.name() });
    let errors: Vec<Value> = state.errors.iter().map(error).collect();
    json!({
        "success": true,
        "job_id": state.job.to_string(),
        "work": work,
        "status": state.status.name(),
        "age_ms": state.age.as_millis() as u64,
        "unchanged_ms": state.unchanged.as_millis() as u64,
        "active_units": state.active,
        "succeeded_units": state.done,
        "failed_units": state.failed,
        "migrated_bytes": state.done_bytes,
        "left_bytes": state.left_bytes,
        "errors": errors,
    })
}
