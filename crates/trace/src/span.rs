use std::pin::Pin;
use std::time::{Duration, SystemTime};

use slackwater_base::Instant;
use slackwater_wait::now;
use slackwater_wire::{ErrorCode, SpanId, TraceContext, Traceparent};

use crate::here::{awaited_within, current, said, within};
use crate::identity::{fresh_span, fresh_trace};
use crate::recorder;

/// On which side of an exchange a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// It asks another process.
    Client,
    /// It answers another process.
    Server,
    /// It is a part of a span of the same process.
    Internal,
}

/// What is noted of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A number.
    Number(u64),
    /// Words.
    Text(&'static str),
}

impl From<u64> for Note {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<&'static str> for Note {
    fn from(text: &'static str) -> Self {
        Self::Text(text)
    }
}

/// A span that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedSpan {
    /// Its trace and its own id.
    pub context: TraceContext,
    /// The span that it is a part of; none for the first of a trace.
    pub parent: Option<SpanId>,
    /// The name of what was done, as it stands in traces.
    pub name: &'static str,
    /// On which side.
    pub kind: SpanKind,
    /// When it began, on the wall.
    pub began: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// What was noted of it.
    pub notes: Vec<(&'static str, Note)>,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// A part of a trace that ends when this is dropped. Where no trace is recorded, or this process exports none, it is
/// nothing; then what it asks of others belongs to its parent.
#[derive(Debug, Default)]
pub struct TraceSpan {
    context: Option<TraceContext>,
    recording: Option<Box<Recording>>,
}

#[derive(Debug)]
struct Recording {
    span: FinishedSpan,
    begun: Instant,
}

/// Notes of one span at most.
const NOTES_MAX: usize = 16;
/// Longest reason of a failure, in bytes.
const FAILURE_BYTES_MAX: usize = 256;

impl TraceSpan {
    /// A part of the span that a message named.
    #[must_use]
    pub fn of(parent: Option<TraceContext>, name: &'static str, kind: SpanKind) -> Self {
        let Some(parent) = parent else {
            return Self::default();
        };
        let context = recorder::is_recording().then(|| fresh_span(parent));
        match context.flatten() {
            Some(context) => Self::begin(context, Some(parent.span), name, kind),
            None => Self {
                context: Some(parent),
                recording: None,
            },
        }
    }

    /// A part of what this thread is within.
    #[must_use]
    pub fn here(name: &'static str, kind: SpanKind) -> Self {
        Self::of(current(), name, kind)
    }

    /// As [`TraceSpan::here`]; where nobody has said what this thread is within, a trace begins for a share of the calls.
    #[must_use]
    pub fn root(name: &'static str, kind: SpanKind) -> Self {
        if said().is_some() {
            return Self::here(name, kind);
        }
        let context = recorder::samples().then(fresh_trace);
        match context.flatten() {
            Some(context) => Self::begin(context, None, name, kind),
            None => Self::default(),
        }
    }

    fn begin(
        context: TraceContext,
        parent: Option<SpanId>,
        name: &'static str,
        kind: SpanKind,
    ) -> Self {
        let span = FinishedSpan {
            context,
            parent,
            name,
            kind,
            began: SystemTime::now(),
            took: Duration::ZERO,
            notes: Vec::new(),
            failure: None,
        };
        let begun = now();
        Self {
            context: Some(context),
            recording: Some(Box::new(Recording { span, begun })),
        }
    }

    /// Whether what is noted of it is kept.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.recording.is_some()
    }

    /// What is asked of others for this span belongs to this.
    #[must_use]
    pub fn context(&self) -> Option<TraceContext> {
        self.context
    }

    /// Runs `step` within this span.
    pub fn during<T>(&self, step: impl FnOnce() -> T) -> T {
        match self.context {
            Some(_) => within(Traceparent(self.context), step),
            None => step(),
        }
    }

    /// Awaits `step` within this span, as [`awaited_within`] does.
    pub async fn awaiting<T>(&self, step: Pin<&mut impl Future<Output = T>>) -> T {
        match self.context {
            Some(_) => awaited_within(Traceparent(self.context), step).await,
            None => step.await,
        }
    }

    /// Notes something of it.
    pub fn note(&mut self, name: &'static str, note: impl Into<Note>) {
        if let Some(recording) = &mut self.recording
            && recording.span.notes.len() < NOTES_MAX
        {
            recording.span.notes.push((name, note.into()));
        }
    }

    /// It failed if a part of it did, for the reason of the first; what is not there is no failure. Errors of calls name
    /// keys, which are nothing for a collector: their codes are.
    fn fail_first(&mut self, mut codes: impl Iterator<Item = ErrorCode>) {
        if self.is_recording()
            && let Some(code) = codes.find(|code| *code != ErrorCode::ObjectNotFound)
        {
            self.fail(&code);
        }
    }

    /// It is about so many keys.
    #[must_use]
    pub fn keys(mut self, count: usize) -> Self {
        self.note("slackwater.keys", count as u64);
        self
    }

    /// Makes a call within it, with which it ends.
    ///
    /// # Errors
    /// Those of the call.
    pub fn call<T, E>(
        self,
        call: impl FnOnce() -> Result<T, E>,
        code: impl Fn(&E) -> ErrorCode,
    ) -> Result<T, E> {
        let outcome = self.during(call);
        self.over(outcome, code)
    }

    /// Ends with a call that was made within it.
    ///
    /// # Errors
    /// Those of the call.
    pub fn over<T, E>(
        mut self,
        outcome: Result<T, E>,
        code: impl Fn(&E) -> ErrorCode,
    ) -> Result<T, E> {
        self.fail_first(outcome.as_ref().err().into_iter().map(code));
        outcome
    }

    /// Makes a call for many keys within it, with which it ends.
    pub fn call_each<T, E>(
        self,
        call: impl FnOnce() -> Vec<Result<T, E>>,
        code: impl Fn(&E) -> ErrorCode,
    ) -> Vec<Result<T, E>> {
        let outcomes = self.during(call);
        self.each_over(outcomes, code)
    }

    /// Ends with a call for many keys that was made within it.
    pub fn each_over<T, E>(
        mut self,
        outcomes: Vec<Result<T, E>>,
        code: impl Fn(&E) -> ErrorCode,
    ) -> Vec<Result<T, E>> {
        let failed = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        self.fail_first(failed.map(code));
        outcomes
    }

    /// Reads values for many keys within it, with which it ends. It notes how many there were, and how long.
    pub fn read_each<T, E>(
        self,
        read: impl FnOnce() -> Vec<Result<Option<T>, E>>,
        bytes: impl Fn(&T) -> usize,
        code: impl Fn(&E) -> ErrorCode,
    ) -> Vec<Result<Option<T>, E>> {
        let outcomes = self.during(read);
        self.reads_over(outcomes, bytes, code)
    }

    /// Ends with reads for many keys that were made within it; notes as [`TraceSpan::read_each`].
    pub fn reads_over<T, E>(
        mut self,
        outcomes: Vec<Result<Option<T>, E>>,
        bytes: impl Fn(&T) -> usize,
        code: impl Fn(&E) -> ErrorCode,
    ) -> Vec<Result<Option<T>, E>> {
        if self.is_recording() {
            let found = outcomes.iter().flatten().flatten().map(bytes);
            let (hits, bytes) = found.fold((0u64, 0), |(hits, sum), bytes| (hits + 1, sum + bytes));
            self.note("slackwater.hits", hits);
            self.note("slackwater.bytes", bytes as u64);
        }
        let failed = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        self.fail_first(failed.map(code));
        outcomes
    }

    /// It failed, for this reason.
    pub fn fail(&mut self, why: &(impl ToString + ?Sized)) {
        if let Some(recording) = &mut self.recording {
            let mut why = why.to_string();
            why.truncate(why.floor_char_boundary(FAILURE_BYTES_MAX));
            recording.span.failure = Some(why);
        }
    }
}

impl Drop for TraceSpan {
    fn drop(&mut self) {
        if let Some(recording) = self.recording.take() {
            let Recording { mut span, begun } = *recording;
            span.took = begun.until(now());
            recorder::record(span);
        }
    }
}
