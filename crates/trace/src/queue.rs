use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use slackwater_base::Instant;
use slackwater_wait::{Event, now};

use crate::span::FinishedSpan;

/// Spans that wait to be exported; further ones are dropped and counted.
pub(crate) const QUEUED_MAX: usize = 8192;
/// Spans that leave together at most.
pub(crate) const BATCH_MAX: usize = 512;

/// Spans between the threads that end them and the one that exports them.
#[derive(Debug, Default)]
pub(crate) struct SpanQueue {
    waiting: Mutex<Waiting>,
    /// Notified by the first span of a batch and by the one that fills it; closed at the end.
    pub(crate) bell: Event,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    spans: VecDeque<FinishedSpan>,
    /// Since when the first of them waits.
    since: Option<Instant>,
}

impl SpanQueue {
    /// Adds a span, unless too many wait.
    pub(crate) fn push(&self, span: FinishedSpan) {
        let mut waiting = self.waiting();
        if waiting.spans.len() == QUEUED_MAX || self.bell.is_closed() {
            drop(waiting);
            return self.count_dropped(1);
        }
        waiting.spans.push_back(span);
        waiting.since.get_or_insert_with(now);
        let count = waiting.spans.len();
        drop(waiting);
        if count == 1 || count == BATCH_MAX {
            self.bell.notify_all();
        }
    }

    /// How many wait, and since when the first.
    pub(crate) fn state(&self) -> (usize, Option<Instant>) {
        let waiting = self.waiting();
        (waiting.spans.len(), waiting.since)
    }

    /// The next spans to be exported together.
    pub(crate) fn take(&self) -> Vec<FinishedSpan> {
        let mut waiting = self.waiting();
        let count = waiting.spans.len().min(BATCH_MAX);
        let batch = waiting.spans.drain(..count).collect();
        waiting.since = (!waiting.spans.is_empty()).then(now);
        batch
    }

    /// So many spans are lost.
    pub(crate) fn count_dropped(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
    }

    /// Spans that were lost.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
