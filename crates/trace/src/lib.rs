//! Traces that pass several processes: which one a thread is in, spans that are begun and ended, and their export.
//!
//! A thread is [`within`] a trace while it works for one. What it sends carries the [`TraceContext`], and the receiver
//! begins a [`TraceSpan`] of it; see the README beside this crate. Without a trace all of this costs a look at a variable of
//! the thread.
#![forbid(unsafe_code)]

mod here;
mod identity;
mod queue;
mod recorder;
mod span;

pub use here::{awaited_within, current, within};
pub use recorder::{
    Exporter, RecorderError, Sink, TraceCounts, counts, export_to, forked, is_recording,
};
pub use span::{FinishedSpan, Note, SpanKind, TraceSpan};

/// How the thread that exports spans waits.
#[must_use]
pub fn wait_sites() -> [&'static slackwater_wait::Site; 1] {
    [&recorder::SPANS]
}

/// The examples of the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
