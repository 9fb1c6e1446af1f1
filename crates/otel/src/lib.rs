//! Exports the spans of this process to an OpenTelemetry collector, as OTLP over HTTP; see the README beside this crate.
//!
//! What it takes to do so is behind the feature `otel`. Without it [`export`] says how to build it.
#![forbid(unsafe_code)]

#[cfg(feature = "otel")]
mod addresses;
mod export;
#[cfg(feature = "otel")]
mod otlp;
#[cfg(feature = "otel")]
mod post;

pub use export::{Endpoint, EndpointError, ExportError, ExportOptions, export};
