//! The paths, and what each answers.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, RawQuery, Request, State};
use axum::http::header::{CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value, json};
use slackwater_wire::{Described, ErrorCode, Key, List, QuotaState, Tenant};
use tokio::sync::watch;

use crate::arguments::Arguments;
use crate::guard::TokenInForce;
use crate::json::Json;
use crate::viewers::Viewers;
use crate::{Failure, Segment, Source, accept, drop_in, jobs, page, viewers};

/// Longest body of a request, in bytes.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Keys in a page when none are asked for, and at most.
const PAGE_KEYS: (u32, u32) = (1_000, 65_536);

pub(crate) type Shared = State<Arc<dyn Source>>;

/// Every path. Those without a check tell that the process is there and whether it serves, which probes ask for that hold
/// no secrets, and bring the page, which asks for the rest.
pub(crate) fn router(
    source: Arc<dyn Source>,
    token: TokenInForce,
    ended: watch::Receiver<bool>,
) -> Router {
    let viewers = Viewers::new(Arc::clone(&source), token.clone(), ended);
    let open = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .merge(page::router());
    let guarded = Router::new()
        .route("/metrics", get(metrics))
        .route("/debug/books", get(books))
        .route("/api/v1/stats", get(stats))
        .route("/api/v1/keys", get(keys))
        .route("/api/v1/object", get(object))
        .route("/api/v1/explain", get(explain))
        .route("/api/v1/segments", get(segments))
        .route("/api/v1/decisions", get(decisions))
        .route("/api/v1/hottest", get(hottest))
        .route(
            "/api/v1/tenant_quotas",
            get(quotas).put(set_quota).delete(delete_quota),
        )
        .route("/api/v1/reload", post(reload))
        .route("/api/v1/remove", post(remove))
        .route("/api/v1/remove_all", post(remove_all))
        .merge(jobs::router())
        .merge(drop_in::router())
        .merge(viewers::router().with_state(viewers))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(token, guard));
    open.merge(guarded).with_state(source)
}

async fn guard(State(token): State<TokenInForce>, request: Request, next: Next) -> Response {
    match token.judge(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Calls the source on a thread that may wait.
pub(crate) async fn call<T: Send + 'static>(
    source: Arc<dyn Source>,
    call: impl FnOnce(&dyn Source) -> T + Send + 'static,
) -> Result<T, Failure> {
    let called = tokio::task::spawn_blocking(move || call(&*source)).await;
    called.map_err(|_| {
        Failure::new(
            ErrorCode::InternalError,
            "the request failed; the log says why",
        )
    })
}

async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(source): Shared) -> Response {
    match call(source, |source| source.ready()).await {
        Ok(Ok(())) => "ok\n".into_response(),
        Ok(Err(why)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
        Err(failure) => failure.into_response(),
    }
}

pub(crate) async fn metrics(
    State(source): Shared,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let format = accept::metrics_format(&headers);
    let text = call(source, move |source| source.metrics(format)).await?;
    let mut response = plain(text, format.media_type());
    response
        .headers_mut()
        .insert(VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

pub(crate) fn plain(text: String, kind: &'static str) -> Response {
    const NO_SNIFF: (HeaderName, &str) =
        (HeaderName::from_static("x-content-type-options"), "nosniff");
    ([(CONTENT_TYPE, kind)], [NO_SNIFF], text).into_response()
}

async fn books(State(source): Shared) -> Result<Json, Failure> {
    call(source, |source| source.books()).await?.map(Json)
}

async fn stats(State(source): Shared) -> Result<Json, Failure> {
    call(source, |source| source.stats()).await?.map(Json)
}

async fn keys(State(source): Shared, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    let names = ["tenant", "pattern", "after", "limit"];
    let arguments = Arguments::of(query.as_deref(), &names)?;
    let limit = arguments.number("limit")?.unwrap_or(PAGE_KEYS.0);
    if limit == 0 || limit > PAGE_KEYS.1 {
        let most = PAGE_KEYS.1;
        return Err(Failure::argument(format!(
            "`limit` is 1 to {most}, not {limit}"
        )));
    }
    let list = List {
        tenant: arguments.tenant()?,
        pattern: arguments.text("pattern")?.map(str::to_owned),
        after: match arguments.bytes("after") {
            Some(_) => Some(arguments.key("after")?),
            None => None,
        },
        limit,
    };
    let listed = call(source, |source| source.list(list)).await??;
    let keys: Vec<String> = listed.keys.iter().map(Key::line).collect();
    Ok(Json(json!({ "keys": keys, "more": listed.more })))
}

async fn object(State(source): Shared, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    let arguments = Arguments::of(query.as_deref(), &["tenant", "key"])?;
    let (tenant, key) = (arguments.tenant()?, arguments.key("key")?);
    let found = call(source, move |source| source.describe(&tenant, &key)).await??;
    let found = found.ok_or(ErrorCode::ObjectNotFound)?;
    Ok(Json(json!(Described::from(&found))))
}

async fn explain(State(source): Shared, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    let arguments = Arguments::of(query.as_deref(), &["tenant", "key"])?;
    let (tenant, key) = (arguments.tenant()?, arguments.key("key")?);
    let found = call(source, move |source| source.explain(&tenant, &key)).await??;
    Ok(Json(found.ok_or(ErrorCode::ObjectNotFound)?))
}

async fn segments(State(source): Shared, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    Arguments::of(query.as_deref(), &[])?;
    let segments = call(source, |source| source.segments()).await??;
    let segments: Vec<Value> = segments.iter().map(segment).collect();
    Ok(Json(json!({ "segments": segments })))
}

async fn decisions(State(source): Shared, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    Arguments::of(query.as_deref(), &[])?;
    call(source, |source| source.decisions()).await?.map(Json)
}

async fn hottest(State(source): Shared, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    Arguments::of(query.as_deref(), &[])?;
    call(source, |source| source.hottest()).await?.map(Json)
}

pub(crate) fn segment(segment: &Segment) -> Value {
    let state = &segment.state;
    json!({
        "id": state.segment.0,
        "name": state.name,
        "node": state.node.0,
        "presence": state.presence.name(),
        "status": drop_in::status_of(state).1,
        "tier": state.kind.tier(),
        "capacity_bytes": state.bytes,
        "used_bytes": state.used_bytes,
        "endpoint": segment.endpoint,
        "protocol": segment.protocol,
        "low_watermark": segment.watermarks.low,
        "high_watermark": segment.watermarks.high,
    })
}

async fn quotas(State(source): Shared, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    let arguments = Arguments::of(query.as_deref(), &["tenant_id"])?;
    let named = arguments.named_tenant("tenant_id")?;
    let quotas = call(source, |source| source.quotas()).await??;
    Ok(Json(match named {
        Some(named) => {
            let found = quotas.iter().find(|quota| quota.tenant == named);
            quota(found.ok_or(ErrorCode::TenantNotRegistered)?)
        }
        None => json!({ "quotas": quotas.iter().map(quota).collect::<Vec<_>>() }),
    }))
}

pub(crate) fn quota(state: &QuotaState) -> Value {
    json!({
        "tenant_id": state.tenant.name(),
        "memory_quota_bytes": state.memory_quota,
        "ssd_quota_bytes": state.disk_quota,
        "memory_bytes": state.memory_bytes,
        "ssd_bytes": state.disk_bytes,
        "objects": state.objects,
    })
}

/// The body of a request for a quota.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewQuota {
    memory_quota_bytes: u64,
    ssd_quota_bytes: u64,
}

async fn set_quota(
    State(source): Shared,
    RawQuery(query): RawQuery,
    body: Bytes,
) -> Result<Json, Failure> {
    let tenant = whose(query.as_deref())?;
    let quota: NewQuota = serde_json::from_slice(&body)
        .map_err(|error| Failure::argument(format!("the body is not what it must be: {error}")))?;
    call(source, move |source| {
        source.set_quota(&tenant, quota.memory_quota_bytes, quota.ssd_quota_bytes)
    })
    .await??;
    Ok(done())
}

async fn delete_quota(State(source): Shared, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    let tenant = whose(query.as_deref())?;
    call(source, move |source| source.delete_quota(&tenant)).await??;
    Ok(done())
}

/// The tenant that a change is about, which must be named.
fn whose(query: Option<&str>) -> Result<Tenant, Failure> {
    let arguments = Arguments::of(query, &["tenant_id"])?;
    let named = arguments.named_tenant("tenant_id")?;
    named.ok_or_else(|| Failure::argument("the parameter `tenant_id` is missing"))
}

fn done() -> Json {
    Json(json!({ "success": true }))
}

async fn reload(State(source): Shared, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    Arguments::of(query.as_deref(), &[])?;
    call(source, |source| source.reload()).await??;
    Ok(done())
}

async fn remove(State(source): Shared, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    let arguments = Arguments::of(query.as_deref(), &["tenant", "key", "force"])?;
    let (tenant, key) = (arguments.tenant()?, arguments.key("key")?);
    let force = is_forced(&arguments)?;
    call(source, move |source| source.remove(&tenant, &key, force)).await??;
    Ok(done())
}

async fn remove_all(State(source): Shared, RawQuery(query): RawQuery) -> Result<Json, Failure> {
    let arguments = Arguments::of(query.as_deref(), &["tenant", "force"])?;
    let tenant = arguments.named_tenant("tenant")?;
    let force = is_forced(&arguments)?;
    let removed = call(source, move |source| {
        source.remove_all(tenant.as_ref(), force)
    })
    .await??;
    Ok(Json(json!({ "success": true, "removed": removed })))
}

/// Whether objects are removed that readers hold leases on.
fn is_forced(arguments: &Arguments) -> Result<bool, Failure> {
    match arguments.text("force")? {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => {
            let other = other.escape_default();
            Err(Failure::argument(format!(
                "`force` is true or false, not {other}"
            )))
        }
    }
}

async fn unknown(request: Request) -> Response {
    let message = format!("there is no path {}", request.uri().path());
    let body = json!({ "success": false, "error_message": message });
    (StatusCode::NOT_FOUND, Json(body)).into_response()
}

async fn wrong_method(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let message = format!("{path} does not take {method}");
    let body = json!({ "success": false, "error_message": message });
    (StatusCode::METHOD_NOT_ALLOWED, Json(body)).into_response()
}
