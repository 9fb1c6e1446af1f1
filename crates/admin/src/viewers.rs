//! The stream of samples that pages follow: what is there, told once an interval to everybody who looks.
//!
//! One task samples for all viewers, while there is at least one; without viewers nothing runs and nothing wakes. A sample
//! holds counters and not what happened since the one before, so a viewer that is slow skips samples and misses nothing.
//! One that takes none for long is not a viewer any more: its place and the sampling end, whatever its connection does. What
//! buffers of its connection hold counts as taken, so that a peer that reads nothing may keep its place for many samples,
//! yet not for longer than its stream's time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use slackwater_wire::ErrorCode;
use tokio::sync::{Notify, watch};

use crate::arguments::Arguments;
use crate::guard::TokenInForce;
use crate::json::Json;
use crate::paths::call;
use crate::sample::Sampler;
use crate::{Failure, Source};

/// Time between samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// Sampling takes no more than one part of this of a thread: where one sample takes long, the next is taken later.
const SHARE: u32 = 100;
/// Viewers at a time; connections are left for everybody else.
const VIEWERS_MAX: usize = 16;
/// A viewer that has not taken so many samples in a row is gone.
const UNTAKEN_MAX: u64 = 10;
/// A stream ends after this time, before its connection would be cut off; its page asks for another one.
const STREAM_TIME: Duration = Duration::from_secs(10 * 60);

/// How an event with a sample begins, and how every event ends.
const SAMPLE: &str = "event: sample\ndata: ";
const EVENT_END: &str = "\n\n";

/// Who looks, and what they are told.
pub(crate) struct Viewers {
    source: Arc<dyn Source>,
    token: TokenInForce,
    ended: watch::Receiver<bool>,
    /// The latest sample, as an event; empty before the first.
    latest: watch::Sender<Event>,
    open: Mutex<Open>,
    /// Held while a sample is taken: who wants one meanwhile gets that one.
    sampler: tokio::sync::Mutex<Sampler>,
    /// The last viewer has gone.
    gone: Notify,
    begun: Instant,
}

#[derive(Default)]
struct Open {
    /// The viewers, by their numbers.
    places: BTreeMap<u64, Place>,
    next: u64,
    /// Whether the sampler runs.
    is_sampled: bool,
    /// When the next sample may be taken, though viewers come and go meanwhile; none before the first.
    due: Option<tokio::time::Instant>,
}

/// What is known of a viewer that may never ask for anything again.
struct Place {
    /// The number of the last sample that it has taken.
    taken: u64,
    /// When its stream ends.
    until: tokio::time::Instant,
}

impl Open {
    /// Gives up those whose time is over. A connection that takes nothing does not ask its stream, so the stream cannot.
    fn expire(&mut self) {
        let now = tokio::time::Instant::now();
        self.places.retain(|_, place| now < place.until);
    }
}

#[derive(Clone, Default)]
struct Event {
    number: u64,
    text: Bytes,
    /// Why there is no sample in it.
    failure: Option<Failure>,
}

impl Viewers {
    pub(crate) fn new(
        source: Arc<dyn Source>,
        token: TokenInForce,
        ended: watch::Receiver<bool>,
    ) -> Arc<Self> {
        let begun = Instant::now();
        Arc::new(Self {
            source,
            token,
            ended,
            latest: watch::Sender::default(),
            open: Mutex::default(),
            sampler: tokio::sync::Mutex::new(Sampler::new(begun)),
            gone: Notify::new(),
            begun,
        })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One viewer more; none when there are enough.
    fn join(self: &Arc<Self>, headers: HeaderMap) -> Option<Viewer> {
        let mut open = self.open();
        open.expire();
        if open.places.len() >= VIEWERS_MAX {
            return None;
        }
        if !std::mem::replace(&mut open.is_sampled, true) {
            if open
                .due
                .is_none_or(|due| due <= tokio::time::Instant::now())
            {
                // What was true when somebody looked last is told to nobody.
                self.latest.send_modify(|latest| latest.text = Bytes::new());
            }
            tokio::spawn(Arc::clone(self).sample());
        }
        let mut samples = self.latest.subscribe();
        // The others were told this a moment ago.
        samples.mark_changed();
        let taken = samples.borrow().number;
        let until = tokio::time::Instant::now() + STREAM_TIME;
        let number = open.next;
        open.next += 1;
        open.places.insert(number, Place { taken, until });
        Some(Viewer {
            number,
            headers,
            samples,
            ended: self.ended.clone(),
            until,
            of: Arc::clone(self),
        })
    }

    /// Samples until nobody looks any more.
    async fn sample(self: Arc<Self>) {
        let mut ended = self.ended.clone();
        loop {
            let due = self.open().due;
            if let Some(due) = due {
                tokio::select! {
                    () = tokio::time::sleep_until(due) => {}
                    () = self.nobody() => {}
                    _ = ended.wait_for(|ended| *ended) => {}
                }
            }
            if self.is_over(*ended.borrow()) {
                return;
            }
            self.renew().await;
        }
    }

    /// Takes a sample, unless the latest is one that the next is not due after yet.
    async fn renew(&self) {
        let mut kept = self.sampler.lock().await;
        if self.is_fresh() {
            return;
        }
        // By the clock of `due`.
        let begun = tokio::time::Instant::now();
        let mut sampler = std::mem::replace(&mut *kept, Sampler::new(self.begun));
        let taken = call(Arc::clone(&self.source), move |source| {
            let sample = sampler.take(source);
            (sampler, sample)
        });
        let sample = match taken.await {
            Ok((again, sample)) => {
                *kept = again;
                sample
            }
            Err(failure) => Err(failure),
        };
        self.tell(sample, pause_after(begun.elapsed()));
    }

    fn is_fresh(&self) -> bool {
        let now = tokio::time::Instant::now();
        let is_due = self.open().due.is_none_or(|due| due <= now);
        !is_due && !self.latest.borrow().text.is_empty()
    }

    /// The latest sample, as an event, for somebody who asks once: the one that viewers were told, until the next is due.
    async fn latest(self: &Arc<Self>) -> Event {
        let viewers = Arc::clone(self);
        // Who asked may be gone before it is taken; others are told it all the same.
        let renewed = tokio::spawn(async move { viewers.renew().await });
        // A sample that panicked is told as a failure.
        let _ = renewed.await;
        self.latest.borrow().clone()
    }

    /// Tells every viewer, and gives up those who take nothing; the next sample is taken after `pause`.
    fn tell(&self, sample: Result<Value, Failure>, pause: Duration) {
        let number = self.latest.borrow().number + 1;
        let mut open = self.open();
        open.places
            .retain(|_, place| number - place.taken <= UNTAKEN_MAX);
        open.due = Some(tokio::time::Instant::now() + pause);
        self.latest.send_replace(Event::of(number, sample));
    }

    /// Waits until there is no viewer.
    async fn nobody(&self) {
        while !self.open().places.is_empty() {
            self.gone.notified().await;
        }
    }

    /// Whether to sample no more. It is noted with the lock held, so that the next viewer begins anew.
    fn is_over(&self, ended: bool) -> bool {
        let mut open = self.open();
        open.expire();
        let over = ended || open.places.is_empty();
        open.is_sampled = !over;
        over
    }
}

/// How long after a sample that took so long the next one may be taken.
fn pause_after(took: Duration) -> Duration {
    INTERVAL.max(took * SHARE)
}

/// One stream.
struct Viewer {
    number: u64,
    /// Those of its request, which are judged again with each sample: a token may have been replaced.
    headers: HeaderMap,
    samples: watch::Receiver<Event>,
    ended: watch::Receiver<bool>,
    until: tokio::time::Instant,
    of: Arc<Viewers>,
}

impl Viewer {
    /// The next sample, the latest there is; none at the end of the stream.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            tokio::select! {
                changed = self.samples.changed() => changed.ok()?,
                _ = self.ended.wait_for(|ended| *ended) => return None,
                () = tokio::time::sleep_until(self.until) => return None,
            }
            let Event { number, text, .. } = self.samples.borrow_and_update().clone();
            if self.of.token.judge(&self.headers).is_err() {
                return None;
            }
            self.of.open().places.get_mut(&self.number)?.taken = number;
            if !text.is_empty() {
                return Some(text);
            }
        }
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut open = self.of.open();
        open.places.remove(&self.number);
        if open.places.is_empty() {
            self.of.gone.notify_one();
        }
    }
}

pub(crate) fn router() -> Router<Arc<Viewers>> {
    Router::new()
        .route("/api/v1/events", get(events))
        .route("/api/v1/sample", get(sample))
}

/// The latest sample without a stream: who asks often gets the same one until the next is due.
async fn sample(
    State(viewers): State<Arc<Viewers>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    Arguments::of(query.as_deref(), &[])?;
    let Event { text, failure, .. } = viewers.latest().await;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let end = text.len() - text.len().min(EVENT_END.len());
    let kind = [
        (CONTENT_TYPE, "application/json"),
        (CACHE_CONTROL, "no-store"),
    ];
    if text.starts_with(SAMPLE.as_bytes()) {
        return Ok((kind, text.slice(SAMPLE.len()..end)).into_response());
    }
    // Who was to take it has panicked.
    Err(Failure::new(
        ErrorCode::InternalError,
        "no sample could be taken; the log says why",
    ))
}

async fn events(
    State(viewers): State<Arc<Viewers>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    Arguments::of(query.as_deref(), &[])?;
    let Some(viewer) = viewers.join(headers) else {
        let message =
            format!("{VIEWERS_MAX} pages look already: close one, or ask /api/v1/stats instead");
        let body = json!({ "success": false, "error_message": message });
        let status = StatusCode::SERVICE_UNAVAILABLE;
        return Ok((status, [(RETRY_AFTER, "10")], Json(body)).into_response());
    };
    let samples = futures_util::stream::unfold(viewer, |mut viewer| async move {
        let sample = viewer.next().await?;
        Some((Ok::<_, std::convert::Infallible>(sample), viewer))
    });
    let kind = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-store"),
        // Another stream on this connection would be cut off by the connection's own time.
        (CONNECTION, "close"),
    ];
    Ok((kind, Body::from_stream(samples)).into_response())
}

impl Event {
    /// JSON has no line feeds of its own, so that the event is one line of data.
    fn of(number: u64, sample: Result<Value, Failure>) -> Self {
        let (text, failure) = match sample {
            Ok(sample) => (format!("{SAMPLE}{sample}{EVENT_END}"), None),
            Err(failure) => {
                let said =
                    json!({ "error_name": failure.code.name(), "error_message": failure.message });
                (
                    format!("event: failure\ndata: {said}{EVENT_END}"),
                    Some(failure),
                )
            }
        };
        Self {
            number,
            text: text.into(),
            failure,
        }
    }
}

#[cfg(test)]
mod tests;
