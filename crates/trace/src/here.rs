use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;

use slackwater_wire::{TraceContext, Traceparent};

thread_local! {
    /// What this thread is within; none where nobody has said.
    static HERE: Cell<Option<Traceparent>> = const { Cell::new(None) };
}

/// The trace that this thread works for, if there is one that is recorded.
#[inline]
#[must_use]
pub fn current() -> Option<TraceContext> {
    said().and_then(|parent| parent.0)
}

/// What was said of this thread, which may be that its trace is not recorded.
pub(crate) fn said() -> Option<Traceparent> {
    HERE.get()
}

/// Runs `step` within the trace of `parent`. In one that is not recorded no trace begins either.
pub fn within<T>(parent: Traceparent, step: impl FnOnce() -> T) -> T {
    let _before = Before(HERE.replace(Some(parent)));
    step()
}

/// Awaits `step`, which is within the trace of `parent` whenever it is polled, on whatever thread. It stays where it is pinned: a
/// future that took it in would be several times as large.
pub async fn awaited_within<T>(
    parent: Traceparent,
    mut step: Pin<&mut (impl Future<Output = T> + ?Sized)>,
) -> T {
    poll_fn(|context| within(parent, || step.as_mut().poll(context))).await
}

/// What this thread was within, and is again when this is dropped.
struct Before(Option<Traceparent>);

impl Drop for Before {
    fn drop(&mut self) {
        HERE.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn a_thread_is_where_it_was_afterwards_also_after_a_panic() {
        let [outer, inner] = [1, 2].map(|span| TraceContext::new(7, span));
        assert_eq!(current(), None);
        within(Traceparent(outer), || {
            within(Traceparent(inner), || assert_eq!(current(), inner));
            let broken = catch_unwind(|| within(Traceparent(inner), || panic!("as planned")));
            assert!(broken.is_err());
            within(Traceparent(None), || {
                assert_eq!((current(), said()), (None, Some(Traceparent(None))));
            });
            assert_eq!(current(), outer);
            let elsewhere = std::thread::spawn(current).join().unwrap();
            assert_eq!(elsewhere, None);
        });
        assert_eq!(said(), None);
    }
}
