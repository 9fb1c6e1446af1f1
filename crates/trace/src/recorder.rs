//! The thread that exports spans. It sleeps until there is one, gathers what follows for a moment, and hands them over
//! together.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_wait::{Park, Site, Waiting, now};
use thiserror::Error;

use crate::identity::sampled;
use crate::queue::{BATCH_MAX, SpanQueue};
use crate::span::FinishedSpan;

/// Takes spans that have ended, on a thread of its own.
pub trait Sink: Send + 'static {
    /// Exports spans together.
    ///
    /// # Errors
    /// Why they are lost.
    fn export(&mut self, spans: Vec<FinishedSpan>) -> Result<(), String>;
}

/// Exports the spans of this process until it is dropped, which waits for those that have ended, a few seconds at most.
#[derive(Debug)]
pub struct Exporter {
    recorder: Arc<Recorder>,
    thread: Option<JoinHandle<()>>,
}

/// Why spans are not exported.
#[derive(Debug, Error)]
pub enum RecorderError {
    /// Another sink takes them.
    #[error("this process exports its spans already")]
    Twice,
    /// There is no thread.
    #[error("a thread for the export of spans: {0}")]
    Thread(#[source] io::Error),
}

/// Spans by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceCounts {
    /// Spans that were exported.
    pub exported: u64,
    /// Spans that were lost: too many waited, or what they were exported to did not take them.
    pub dropped: u64,
}

#[derive(Debug)]
struct Recorder {
    queue: SpanQueue,
    /// Of the calls that belong to no trace, the share that begin one.
    share: f64,
    exported: AtomicU64,
}

pub(crate) static SPANS: Site = Site::new("trace, spans");

/// How long the first span of a batch waits for others.
const GATHER: Duration = Duration::from_millis(500);
/// How long batches are begun for at the end. A process that ends is waited for, and killed where that takes too long.
const LAST: Duration = Duration::from_secs(3);

/// Whether there is a recorder: all that calls look at while there is none.
static RECORDING: AtomicBool = AtomicBool::new(false);
static RECORDER: RwLock<Option<Arc<Recorder>>> = RwLock::new(None);

/// Exports the spans of this process to a sink. Of the calls that belong to no trace, `share` (0 to 1) begin one.
///
/// # Errors
/// When spans are exported already, or there is no thread.
pub fn export_to(sink: impl Sink, share: f64) -> Result<Exporter, RecorderError> {
    let recorder = Arc::new(Recorder {
        queue: SpanQueue::default(),
        share,
        exported: AtomicU64::new(0),
    });
    let mut present = RECORDER.write().unwrap_or_else(PoisonError::into_inner);
    if present.is_some() {
        return Err(RecorderError::Twice);
    }
    let other = Arc::clone(&recorder);
    let thread = thread(move || other.run(sink, LAST)).map_err(RecorderError::Thread)?;
    *present = Some(Arc::clone(&recorder));
    RECORDING.store(true, Ordering::Release);
    Ok(Exporter {
        recorder,
        thread: Some(thread),
    })
}

fn thread(run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("slack-traces".to_owned())
        .spawn(run)
}

/// The spans of this process by how they ended, since it exports them.
#[must_use]
pub fn counts() -> TraceCounts {
    recorder().map_or_else(TraceCounts::default, |recorder| recorder.counts())
}

/// This process is a fork of one that may have exported its spans, whose thread it does not have: nothing is recorded until
/// spans are exported anew.
pub fn forked() {
    RECORDING.store(false, Ordering::Release);
}

/// Whether this process exports spans.
#[must_use]
pub fn is_recording() -> bool {
    RECORDING.load(Ordering::Acquire)
}

/// Whether a call that belongs to no trace begins one.
pub(crate) fn samples() -> bool {
    is_recording() && recorder().is_some_and(|recorder| sampled(recorder.share))
}

/// Takes a span that has ended.
pub(crate) fn record(span: FinishedSpan) {
    if let Some(recorder) = recorder() {
        recorder.queue.push(span);
    }
}

fn recorder() -> Option<Arc<Recorder>> {
    let present = RECORDER.read().unwrap_or_else(PoisonError::into_inner);
    present.clone()
}

impl Recorder {
    fn counts(&self) -> TraceCounts {
        TraceCounts {
            exported: self.exported.load(Ordering::Relaxed),
            dropped: self.queue.dropped(),
        }
    }

    fn run(&self, mut sink: impl Sink, last: Duration) {
        let (bell, mut was_taken, mut end) = (&self.queue.bell, true, None);
        loop {
            // Taken before the look, so that a ring from here on ends the wait.
            let (seen, is_closed) = (bell.seen(), bell.is_closed());
            let (count, since) = self.queue.state();
            let end = is_closed.then(|| *end.get_or_insert_with(|| now() + last));
            if end.is_some_and(|end| end <= now()) {
                return self.queue.count_dropped(count as u64);
            }
            let until = since.map_or(Instant::NEVER, |since| since + GATHER);
            if count > 0 && (is_closed || count >= BATCH_MAX || until <= now()) {
                let is_taken = self.export(&mut sink, was_taken);
                // At the end nobody waits for what does not take one batch to take the others.
                if is_closed && !is_taken {
                    return self.queue.count_dropped(self.queue.state().0 as u64);
                }
                was_taken = is_taken;
            } else if is_closed {
                return;
            } else {
                // Rung, due or closed: the next turn looks at all three.
                let _ = bell.wait(seen, &Waiting::at(&SPANS).by(&Park).until(until));
            }
        }
    }

    /// Exports one batch; says whether it was taken.
    fn export(&self, sink: &mut impl Sink, was_taken: bool) -> bool {
        let spans = self.queue.take();
        let count = spans.len() as u64;
        match sink.export(spans) {
            Ok(()) => _ = self.exported.fetch_add(count, Ordering::Relaxed),
            Err(error) => {
                self.queue.count_dropped(count);
                if was_taken {
                    tracing::warn!(error, "spans of traces are not taken");
                }
                return false;
            }
        }
        if !was_taken {
            tracing::info!("spans of traces are taken again");
        }
        true
    }
}

impl Exporter {
    /// Exports what has ended, and says how that went.
    #[must_use]
    pub fn finish(mut self) -> TraceCounts {
        self.end();
        self.recorder.counts()
    }

    /// Ends it in a [`forked`] process, without the thread that this does not have.
    pub fn forked(mut self) {
        std::mem::forget(self.thread.take());
    }

    fn end(&mut self) {
        let mut present = RECORDER.write().unwrap_or_else(PoisonError::into_inner);
        let is_own = |recorder: &Arc<Recorder>| Arc::ptr_eq(recorder, &self.recorder);
        if present.as_ref().is_some_and(is_own) {
            RECORDING.store(false, Ordering::Release);
            *present = None;
        }
        drop(present);
        self.recorder.queue.bell.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that exports spans panicked");
        }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use slackwater_wire::{ErrorCode, TraceContext};

    use super::*;
    use crate::queue::QUEUED_MAX;
    use crate::span::{Note, SpanKind, TraceSpan};

    struct Collected(Sender<Vec<FinishedSpan>>);

    impl Sink for Collected {
        fn export(&mut self, spans: Vec<FinishedSpan>) -> Result<(), String> {
            self.0.send(spans).map_err(|error| error.to_string())
        }
    }

    /// Takes nothing, and tells of each attempt.
    struct Refusing(Sender<()>);

    impl Sink for Refusing {
        fn export(&mut self, _: Vec<FinishedSpan>) -> Result<(), String> {
            self.0.send(()).unwrap();
            Err("no".to_owned())
        }
    }

    fn alone(queue: SpanQueue) -> Recorder {
        Recorder {
            queue,
            share: 0.0,
            exported: AtomicU64::new(0),
        }
    }

    fn span(number: u64) -> FinishedSpan {
        FinishedSpan {
            context: TraceContext::new(1, number + 1).unwrap(),
            parent: None,
            name: "test",
            kind: SpanKind::Internal,
            began: std::time::SystemTime::UNIX_EPOCH,
            took: Duration::ZERO,
            notes: Vec::new(),
            failure: None,
        }
    }

    #[test]
    fn what_a_full_queue_does_not_take_is_counted() {
        let queue = SpanQueue::default();
        (0..QUEUED_MAX as u64 + 3).for_each(|number| queue.push(span(number)));
        assert_eq!((queue.state().0, queue.dropped()), (QUEUED_MAX, 3));
        assert_eq!(queue.take().len(), BATCH_MAX);
        queue.push(span(9));
        assert_eq!(queue.dropped(), 3);
        queue.bell.close();
        queue.push(span(9));
        assert_eq!(queue.dropped(), 4, "nobody would export it");
    }

    #[test]
    fn everything_that_has_ended_is_exported_at_the_end() {
        let (told, batches) = channel();
        let recorder = alone(SpanQueue::default());
        let all = 2 * BATCH_MAX as u64 + 1;
        (0..all).for_each(|number| recorder.queue.push(span(number)));
        recorder.queue.bell.close();
        recorder.run(Collected(told), LAST);
        let spans: Vec<FinishedSpan> = batches.iter().flatten().collect();
        assert_eq!(spans, (0..all).map(span).collect::<Vec<_>>());
        assert_eq!(recorder.exported.load(Ordering::Relaxed), all);
    }

    /// A collector that was gone made the end of a process wait for each of its batches.
    #[test]
    fn what_is_not_taken_is_lost_and_at_the_end_all_that_is_left_with_it() {
        let (asked, attempts) = channel();
        let recorder = alone(SpanQueue::default());
        let all = 3 * BATCH_MAX as u64;
        (0..all).for_each(|number| recorder.queue.push(span(number)));
        recorder.queue.bell.close();
        recorder.run(Refusing(asked), LAST);
        assert_eq!(attempts.iter().count(), 1);
        assert_eq!(recorder.queue.dropped(), all);
        assert_eq!(recorder.exported.load(Ordering::Relaxed), 0);
    }

    /// A collector that took each batch just in time made the end of a process wait for all that had waited for it.
    #[test]
    fn what_is_not_told_in_time_at_the_end_is_lost() {
        let (told, batches) = channel();
        let recorder = alone(SpanQueue::default());
        let all = 3 * BATCH_MAX as u64;
        (0..all).for_each(|number| recorder.queue.push(span(number)));
        recorder.queue.bell.close();
        recorder.run(Collected(told), Duration::ZERO);
        assert_eq!(batches.iter().count(), 0);
        assert_eq!(recorder.queue.dropped(), all);
    }

    /// The only test that has this process export, which it can do once at a time.
    #[test]
    fn spans_follow_their_parents_and_calls_without_one_are_sampled() {
        let parent = TraceContext::new(5, 6);
        // Nothing is exported yet: what comes from afar is passed on as it came.
        let passed = TraceSpan::of(parent, "passed", SpanKind::Server);
        assert_eq!(passed.context(), parent);
        assert_eq!(TraceSpan::root("none", SpanKind::Client).context(), None);
        drop(passed);
        let (told, batches): (_, Receiver<Vec<FinishedSpan>>) = channel();
        let exporter = export_to(Collected(told.clone()), 1.0).unwrap();
        let twice = export_to(Collected(told), 1.0);
        assert!(matches!(twice, Err(RecorderError::Twice)));
        let mut server = TraceSpan::of(parent, "server", SpanKind::Server);
        server.note("bytes", 7);
        let inner = server.during(|| {
            let mut inner = TraceSpan::root("inner", SpanKind::Internal);
            inner.fail("too late");
            inner.context().unwrap()
        });
        let outer = server.context().unwrap();
        drop(server);
        let first = TraceSpan::root("first", SpanKind::Client);
        let begun = first.context().unwrap();
        drop(first);
        crate::within(slackwater_wire::Traceparent(None), || {
            let none = TraceSpan::root("not recorded by its caller", SpanKind::Client);
            assert_eq!(none.context(), None);
        });
        let read = || {
            let lost = Err(ErrorCode::NoAvailableHandle);
            vec![Ok(Some(5)), Ok(None), lost, Ok(Some(4))]
        };
        let read = (TraceSpan::root("read", SpanKind::Client).keys(4)).read_each(
            read,
            |bytes| *bytes,
            |code| *code,
        );
        assert_eq!((read.len(), read[3]), (4, Ok(Some(4))));
        let missing = || vec![Err(ErrorCode::ObjectNotFound), Ok(())];
        let removed = TraceSpan::root("removed", SpanKind::Client).call_each(missing, |code| *code);
        assert_eq!(removed.len(), 2);
        let refused = || Err::<(), _>(ErrorCode::InvalidKey);
        let asked = TraceSpan::root("asked", SpanKind::Client).call(refused, |code| *code);
        assert_eq!(asked, Err(ErrorCode::InvalidKey));
        let mut long = TraceSpan::root("long", SpanKind::Client);
        (0..100u64).for_each(|number| long.note("number", number));
        // Its letters have two bytes, and the length that there is room for is in the middle of one.
        long.fail(&format!("x{}", "ä".repeat(1000)));
        drop(long);
        // A fork has no thread that would export them.
        forked();
        assert_eq!(
            TraceSpan::root("of a fork", SpanKind::Client).context(),
            None
        );
        let ended = exporter.finish();
        assert_eq!((ended.exported, ended.dropped), (7, 0));
        let spans: Vec<FinishedSpan> = batches.iter().flatten().collect();
        let [of_inner, of_server, of_first, read, removed, asked, long] = spans.as_slice() else {
            panic!("seven spans: {spans:?}");
        };
        assert_eq!(long.notes.len(), 16);
        assert_eq!(long.failure.as_ref().map(String::len), Some(255));
        let noted = [
            ("slackwater.keys", 4),
            ("slackwater.hits", 2),
            ("slackwater.bytes", 9),
        ];
        assert_eq!(read.notes, noted.map(|(name, of)| (name, Note::Number(of))));
        let no_room = ErrorCode::NoAvailableHandle.to_string();
        assert_eq!(read.failure.as_deref(), Some(&*no_room));
        assert_eq!(removed.failure, None, "what is not there is no failure");
        let wrong = ErrorCode::InvalidKey.to_string();
        assert_eq!(asked.failure.as_deref(), Some(&*wrong));
        assert_eq!(of_inner.parent, Some(outer.span));
        assert_eq!(of_inner.context, inner);
        assert_eq!(of_inner.failure.as_deref(), Some("too late"));
        assert_eq!(of_server.parent, parent.map(|parent| parent.span));
        assert_eq!(of_server.context.trace, parent.unwrap().trace);
        assert_eq!(of_server.notes, [("bytes", Note::Number(7))]);
        assert_eq!((of_first.parent, of_first.context), (None, begun));
        assert_ne!(begun.trace, outer.trace);
        assert_eq!(counts(), TraceCounts::default());
    }
}
