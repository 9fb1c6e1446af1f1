//! The paths that tools of other stores ask for, with the names and forms that they read.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Map, Value, json};
use slackwater_base::ByteSize;
use slackwater_wire::limits::BATCH_KEYS_MAX;
use slackwater_wire::{
    Description, Draining, ErrorCode, Key, List, Presence, ReplicaAt, ReplicaState, SegmentState,
    Tenant,
};

use crate::arguments::{self, Arguments};
use crate::json::Json;
use crate::paths::{Shared, call, metrics, plain};
use crate::{Failure, Segment, Source};

const TEXT: &str = "text/plain; charset=utf-8";
/// Keys of a list that are in memory at a time.
const PAGE_KEYS: u32 = 16_384;

pub(crate) fn router() -> Router<Arc<dyn Source>> {
    Router::new()
        .route("/health", get(health))
        .route(
            "/role",
            get(|| async { plain("leader\n".to_owned(), TEXT) }),
        )
        .route(
            "/ha_status",
            get(|| async { plain("serving\n".to_owned(), TEXT) }),
        )
        .route("/leader", get(leader))
        .route("/metrics/summary", get(metrics))
        .route("/get_all_keys", get(all_keys))
        .route("/get_all_segments", get(all_segments))
        .route("/get_segments_detail", get(segments_detail))
        .route("/query_segment", get(query_segment))
        .route("/query_key", get(query_key))
        .route("/batch_query_keys", get(query_keys))
        .route("/kv_events/status", get(kv_events))
        .route("/api/v1/segments/status", get(segment_status))
}

/// One master without standbys leads as long as it runs; its view is the epoch.
async fn health(State(source): Shared) -> Result<Json, Failure> {
    let (ready, address, epoch) = call(source, |source| {
        (source.ready(), source.address(), source.epoch())
    })
    .await?;
    Ok(Json(json!({
        "status": if ready.is_ok() { "ok" } else { "unready" },
        "role": "leader",
        "ha_state": "serving",
        "service_ready": ready.is_ok(),
        "leader_address": address,
        "view_version": epoch,
    })))
}

async fn leader(State(source): Shared) -> Result<Json, Failure> {
    let (address, epoch) = call(source, |source| (source.address(), source.epoch())).await?;
    Ok(Json(json!({
        "present": true,
        "leader_address": address,
        "view_version": epoch,
    })))
}

/// All keys, a line each, read page by page while they are sent: keys that come or go meanwhile may or may not be there.
async fn all_keys(State(source): Shared, RawQuery(query): RawQuery) -> Result<Response, Failure> {
    let arguments = Arguments::of(query.as_deref(), &["tenant"])?;
    let tenant = arguments.tenant()?;
    let pages = futures_util::stream::unfold(Some(None), move |after: Option<Option<Key>>| {
        let (source, tenant) = (Arc::clone(&source), tenant.clone());
        async move {
            let list = List {
                tenant,
                pattern: None,
                after: after?,
                limit: PAGE_KEYS,
            };
            let page = match call(source, |source| source.list(list)).await {
                Ok(Ok(page)) => page,
                // The answer has begun: it is cut off, which its reader sees.
                Ok(Err(failure)) | Err(failure) => {
                    return Some((Err(std::io::Error::other(failure.message)), None));
                }
            };
            let lines: String = page.keys.iter().map(|key| key.line() + "\n").collect();
            let next = page.keys.last().cloned().filter(|_| page.more);
            (!lines.is_empty()).then(|| (Ok(lines), next.map(Some)))
        }
    });
    Ok(([(CONTENT_TYPE, TEXT)], Body::from_stream(pages)).into_response())
}

async fn all_segments(State(source): Shared) -> Result<Response, Failure> {
    let segments = call(source, |source| source.segments()).await??;
    let names = segments
        .iter()
        .map(|segment| segment.state.name.clone() + "\n");
    Ok(plain(names.collect(), TEXT))
}

/// Addresses of memory are told to nobody: a range is named by its capability, so the base is always 0.
async fn segments_detail(State(source): Shared) -> Result<Json, Failure> {
    let segments = call(source, |source| source.segments()).await??;
    let detail = |segment: &Segment| {
        let state = &segment.state;
        json!({
            "segment_name": state.name,
            "segment_id": state.segment.to_string(),
            "client_id": state.node.to_string(),
            "base_address": 0,
            "size_bytes": state.bytes,
            "size_human": ByteSize(state.bytes).to_string(),
            "te_endpoint": segment.endpoint,
            "protocol": segment.protocol,
            "status": status_of(state).1,
            "allocator_used_bytes": state.used_bytes,
            "allocator_capacity_bytes": state.bytes,
            "allocator_usage_percent": percent(state.used_bytes, state.bytes),
        })
    };
    let details: Vec<Value> = segments.iter().map(detail).collect();
    Ok(Json(
        json!({ "total_segments": details.len(), "segments": details }),
    ))
}

/// The status of a segment, with the number that tools know. Of one whose node has no link nothing is known.
pub(crate) fn status_of(state: &SegmentState) -> (u8, &'static str) {
    match (state.presence, state.draining) {
        (Presence::Here, Draining::No) => (1, "OK"),
        (Presence::Here, Draining::Running) => (2, "DRAINING"),
        (Presence::Here, Draining::Done) => (3, "DRAINED"),
        (Presence::Away | Presence::Hidden, _) => (0, "UNDEFINED"),
    }
}

/// The status of segments of one name: who waits until it is drained waits for all of them, and for those of which nothing is
/// known.
fn status_of_all(states: &[SegmentState]) -> Option<(u8, &'static str)> {
    states.iter().map(status_of).min()
}

/// Bytes that segments use, and that they have.
fn bytes_of(states: &[SegmentState]) -> [u64; 2] {
    let sum = |of: fn(&SegmentState) -> u64| states.iter().map(of).sum();
    [sum(|it| it.used_bytes), sum(|it| it.bytes)]
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        100.0 * part as f64 / whole as f64
    }
}

/// The segments of a name: nodes may share one.
async fn named(
    source: Arc<dyn Source>,
    query: Option<&str>,
) -> Result<(String, Vec<SegmentState>), Failure> {
    let arguments = Arguments::of(query, &["segment"])?;
    arguments.needed("segment")?;
    let name = arguments.text("segment")?.unwrap_or_default().to_owned();
    let segments = call(source, |source| source.segments()).await??;
    let states = segments.into_iter().map(|segment| segment.state);
    let found = states.filter(|state| state.name == name).collect();
    Ok((name, found))
}

async fn query_segment(
    State(source): Shared,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    let (name, found) = named(source, query.as_deref()).await?;
    if found.is_empty() {
        let text = format!("no segment is named {name}\n");
        return Ok((StatusCode::INTERNAL_SERVER_ERROR, plain(text, TEXT)).into_response());
    }
    let [used, capacity] = bytes_of(&found);
    Ok(plain(
        format!("{name}\nUsed(bytes): {used}\nCapacity(bytes) : {capacity}\n"),
        TEXT,
    ))
}

async fn segment_status(State(source): Shared, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    let (name, found) = named(source, query.as_deref()).await?;
    let (number, status) = status_of_all(&found).ok_or(ErrorCode::SegmentNotFound)?;
    Ok(Json(
        json!({ "success": true, "segment": name, "status": number, "status_name": status }),
    ))
}

async fn query_key(State(source): Shared, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    let arguments = Arguments::of(query.as_deref(), &["key", "tenant"])?;
    let (tenant, key) = (arguments.tenant()?, arguments.key("key")?);
    let (found, ends) = call(source, move |source| {
        Ok::<_, Failure>((source.describe(&tenant, &key)?, source.segments()?))
    })
    .await??;
    let found = found.ok_or(ErrorCode::ObjectNotFound)?;
    Ok(Json(
        json!({ "success": true, "data": memory(&found, &ends) }),
    ))
}

/// The replicas in memory that can be read.
fn memory(found: &Description, ends: &[Segment]) -> Vec<Value> {
    let complete = found
        .replicas
        .iter()
        .filter(|(_, state, _)| *state == ReplicaState::Complete);
    let replicas = complete.filter_map(|(at, ..)| match at {
        ReplicaAt::Memory(extent) => Some(extent),
        ReplicaAt::Disk { .. } => None,
    });
    replicas
        .map(|extent| {
            let end = ends.iter().find(|end| end.state.segment == extent.segment);
            json!({
                "size_": found.bytes,
                "buffer_address_": extent.offset,
                "protocol_": end.map_or("", |end| end.protocol),
                "transport_endpoint_": end.map_or("", |end| &end.endpoint),
            })
        })
        .collect()
}

async fn query_keys(State(source): Shared, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    let arguments = Arguments::of(query.as_deref(), &["keys", "tenant"])?;
    let tenant = arguments.tenant()?;
    let names = arguments.needed("keys")?.split(|byte| *byte == b',');
    let keys: Vec<Key> = names
        .filter(|name| !name.is_empty())
        .map(arguments::key)
        .collect::<Result<_, _>>()?;
    if keys.is_empty() || keys.len() > BATCH_KEYS_MAX {
        return Err(Failure::argument(format!(
            "`keys` names {} keys: 1 to {BATCH_KEYS_MAX} are taken, with commas between them",
            keys.len()
        )));
    }
    let found = call(source, move |source| {
        let ends = source.segments()?;
        let of = |key: Key| Ok((key.line(), replicas_of(source, &tenant, &key, &ends)?));
        keys.into_iter()
            .map(of)
            .collect::<Result<Map<String, Value>, Failure>>()
    })
    .await??;
    Ok(Json(json!({ "success": true, "data": found })))
}

fn replicas_of(
    source: &dyn Source,
    tenant: &Tenant,
    key: &Key,
    ends: &[Segment],
) -> Result<Value, Failure> {
    let Some(found) = source.describe(tenant, key)? else {
        return Ok(json!({ "ok": false, "error": ErrorCode::ObjectNotFound.meaning() }));
    };
    let complete = found
        .replicas
        .iter()
        .filter(|(_, state, _)| *state == ReplicaState::Complete);
    let disk: Vec<Value> = complete
        .filter_map(|(at, ..)| match at {
            ReplicaAt::Disk { segment, .. } => {
                ends.iter().find(|end| end.state.segment == *segment)
            }
            ReplicaAt::Memory(_) => None,
        })
        .map(|end| json!({ "size_": found.bytes, "transport_endpoint_": end.endpoint }))
        .collect();
    Ok(json!({
        "ok": true,
        "error": "",
        "values": memory(&found, ends),
        "disk_values": [],
        "local_disk_values": disk,
        "nof_values": [],
    }))
}

async fn kv_events(State(source): Shared) -> Result<Json, Failure> {
    let counts = call(source, |source| source.kv_events()).await?;
    Ok(Json(json!(counts)))
}

#[cfg(test)]
mod tests {
    use slackwater_wire::{NodeId, SegmentId, SegmentKind};

    use super::*;

    /// Of segments that share a name only the first was looked at: a tool removed nodes of which the second was still full.
    #[test]
    fn a_shared_name_is_as_far_as_the_last_of_its_segments() {
        let check = |segments: &[(Presence, Draining)], expected: Option<&str>| {
            let states: Vec<SegmentState> = segments
                .iter()
                .map(|(presence, draining)| SegmentState {
                    segment: SegmentId(600),
                    node: NodeId(300),
                    presence: *presence,
                    draining: *draining,
                    name: "twins".to_owned(),
                    kind: SegmentKind::Memory,
                    bytes: 100,
                    used_bytes: 7,
                })
                .collect();
            let status = status_of_all(&states).map(|(_, status)| status);
            assert_eq!(status, expected, "{segments:?}");
            let count = states.len() as u64;
            assert_eq!(bytes_of(&states), [7 * count, 100 * count]);
        };
        let ok = (Presence::Here, Draining::No);
        let draining = (Presence::Here, Draining::Running);
        let drained = (Presence::Here, Draining::Done);
        let away = (Presence::Away, Draining::Done);
        check(&[], None);
        check(&[drained], Some("DRAINED"));
        check(&[drained, drained], Some("DRAINED"));
        check(&[drained, draining], Some("DRAINING"));
        check(&[draining, ok, drained], Some("OK"));
        check(&[drained, away], Some("UNDEFINED"));
    }
}
