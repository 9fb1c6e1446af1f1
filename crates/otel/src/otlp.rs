//! Spans in the words of OpenTelemetry, and on their way to a collector.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind as Kind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use slackwater_trace::{FinishedSpan, Note, Sink, SpanKind};

use crate::addresses::Addresses;
use crate::export::{ExportError, ExportOptions};
use crate::post::{Destination, post};

/// How long an exchange may take, the look-up of the collector's name included.
const TIME: Duration = Duration::from_secs(3);

/// Sends spans to a collector.
#[derive(Debug)]
pub(crate) struct Otlp {
    exporter: SpanExporter,
    scope: InstrumentationScope,
}

impl Otlp {
    pub(crate) fn new(options: &ExportOptions) -> Result<Self, ExportError> {
        let client = Poster {
            addresses: Addresses::of(options.endpoint.authority().to_owned()),
            path: options.endpoint.path().to_owned(),
        };
        let built = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(options.endpoint.to_string())
            .with_timeout(TIME)
            .build();
        let mut exporter = built.map_err(|error| ExportError::Sink(error.to_string()))?;
        let version = env!("CARGO_PKG_VERSION");
        let resource = Resource::builder_empty()
            .with_attributes([
                KeyValue::new("service.name", options.service.clone()),
                KeyValue::new("service.version", version),
                KeyValue::new("process.pid", i64::from(std::process::id())),
            ])
            .build();
        exporter.set_resource(&resource);
        let scope = InstrumentationScope::builder("slackwater")
            .with_version(version)
            .build();
        Ok(Self { exporter, scope })
    }

    fn data(&self, span: FinishedSpan) -> SpanData {
        let FinishedSpan {
            context,
            parent,
            name,
            kind,
            began,
            took,
            notes,
            failure,
        } = span;
        let trace = TraceId::from(context.trace.0.get());
        let own = SpanId::from(context.span.0.get());
        SpanData {
            span_context: SpanContext::new(
                trace,
                own,
                TraceFlags::SAMPLED,
                false,
                TraceState::default(),
            ),
            parent_span_id: parent.map_or(SpanId::INVALID, |parent| SpanId::from(parent.0.get())),
            parent_span_is_remote: kind == SpanKind::Server,
            span_kind: match kind {
                SpanKind::Client => Kind::Client,
                SpanKind::Server => Kind::Server,
                SpanKind::Internal => Kind::Internal,
            },
            name: name.into(),
            start_time: began,
            end_time: began + took,
            attributes: notes.into_iter().map(attribute).collect(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: failure.map_or(Status::Unset, Status::error),
            instrumentation_scope: self.scope.clone(),
        }
    }
}

fn attribute((name, note): (&'static str, Note)) -> KeyValue {
    match note {
        Note::Number(number) => KeyValue::new(name, i64::try_from(number).unwrap_or(i64::MAX)),
        Note::Text(text) => KeyValue::new(name, text),
    }
}

impl Sink for Otlp {
    fn export(&mut self, spans: Vec<FinishedSpan>) -> Result<(), String> {
        let batch = spans.into_iter().map(|span| self.data(span)).collect();
        let exported = at_once(self.exporter.export(batch));
        let exported = exported.ok_or("the exporter waits for something else")?;
        exported.map_err(|error| error.to_string())
    }
}

/// The result of a future that waits for nothing but its own blocking calls.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Posts requests by blocking calls.
#[derive(Debug)]
struct Poster {
    addresses: Addresses,
    path: String,
}

impl HttpClient for Poster {
    fn send_bytes<'client, 'exchange>(
        &'client self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'exchange>>
    where
        'client: 'exchange,
        Self: 'exchange,
    {
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let framing = ["host", "connection", "content-length"];
            let headers = head.headers.iter().filter_map(|(name, value)| {
                let value = value.to_str().ok()?;
                let is_ours = framing.contains(&name.as_str());
                (!is_ours).then(|| (name.to_string(), value.to_owned()))
            });
            let headers: Vec<(String, String)> = headers.collect();
            let until = Instant::now() + TIME;
            let to = Destination {
                addresses: &self.addresses.find(until)?,
                authority: self.addresses.authority(),
                path: &self.path,
            };
            let status = post(to, &headers, &body, until)?;
            let answer = Response::builder().status(status).body(Bytes::new())?;
            Ok(answer)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use slackwater_wire::TraceContext;

    use super::*;

    #[test]
    fn a_span_is_the_same_in_the_words_of_opentelemetry() {
        let options = ExportOptions {
            endpoint: "http://127.0.0.1".parse().unwrap(),
            service: "test".to_owned(),
            share: 0.0,
        };
        let otlp = Otlp::new(&options).unwrap();
        let context = TraceContext::new(0xa1 << 64, 0xb1).unwrap();
        let began = SystemTime::UNIX_EPOCH + Duration::from_secs(9);
        let span = |kind, parent: Option<u64>, failure: Option<&str>| FinishedSpan {
            context,
            parent: parent.map(|id| TraceContext::new(1, id).unwrap().span),
            name: "slackwater.get",
            kind,
            began,
            took: Duration::from_millis(5),
            notes: vec![
                ("bytes", Note::Number(u64::MAX)),
                ("way", Note::Text("tcp")),
            ],
            failure: failure.map(str::to_owned),
        };
        let kinds = [
            (SpanKind::Client, Kind::Client),
            (SpanKind::Server, Kind::Server),
            (SpanKind::Internal, Kind::Internal),
        ];
        for (ours, theirs) in kinds {
            let data = otlp.data(span(ours, Some(0xc1), None));
            assert_eq!(data.span_kind, theirs);
            assert_eq!(data.parent_span_id, SpanId::from(0xc1));
            assert_eq!(data.parent_span_is_remote, ours == SpanKind::Server);
            assert_eq!(data.status, Status::Unset);
        }
        let data = otlp.data(span(SpanKind::Client, None, Some("too late")));
        assert_eq!(data.span_context.trace_id(), TraceId::from(0xa1 << 64));
        assert_eq!(data.span_context.span_id(), SpanId::from(0xb1));
        assert!(data.span_context.is_sampled());
        assert_eq!(data.parent_span_id, SpanId::INVALID);
        assert_eq!(data.name, "slackwater.get");
        assert_eq!(data.start_time, began);
        assert_eq!(data.end_time, began + Duration::from_millis(5));
        let most = KeyValue::new("bytes", i64::MAX);
        assert_eq!(data.attributes, [most, KeyValue::new("way", "tcp")]);
        assert_eq!(data.status, Status::error("too late"));
    }
}
