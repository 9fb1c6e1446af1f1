//! Options by which a process tells a collector what it did for traces.

use anyhow::Result;
use clap::Args;
use slackwater_otel::{Endpoint, ExportOptions, export};
use slackwater_trace::{Exporter, within};
use slackwater_wire::Traceparent;

use crate::remote::note;

/// Where spans of traces go.
#[derive(Clone, Debug, Args)]
pub(crate) struct TraceArguments {
    /// Tell the collector at this address, as http://HOST:PORT, what was done for calls that are traced: OTLP over HTTP.
    /// Only where the command was built with the feature otel
    #[arg(
        long,
        env = "SLACKWATER_TRACES",
        hide_env_values = true,
        value_name = "URL"
    )]
    traces: Option<Endpoint>,
}

/// How one call is traced.
#[derive(Clone, Debug, Args)]
pub(crate) struct CallTraceArguments {
    #[command(flatten)]
    arguments: TraceArguments,

    /// The trace that the call belongs to, in the form of W3C Trace Context [default: with --traces one of its own]
    #[arg(long, value_name = "TRACEPARENT")]
    traceparent: Option<Traceparent>,
}

impl TraceArguments {
    /// Begins to export spans, as those of `service`; `share` of the calls that belong to no trace begin one.
    pub(crate) fn start(&self, service: &str, share: f64) -> Result<Option<Exporter>> {
        let Some(endpoint) = self.traces.clone() else {
            return Ok(None);
        };
        let options = ExportOptions {
            endpoint,
            service: service.to_owned(),
            share,
        };
        Ok(Some(export(&options)?))
    }
}

impl CallTraceArguments {
    /// Makes a call within its trace. What was done for it is exported before this returns.
    pub(crate) fn during<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let exporter = self.arguments.start("slackwater", 1.0)?;
        let done = match self.traceparent {
            Some(parent) => within(parent, call),
            None => call(),
        };
        if exporter.is_some_and(|exporter| exporter.finish().dropped > 0) {
            note("the collector did not take the spans of the call");
        }
        done
    }
}
