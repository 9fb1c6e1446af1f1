use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::Cancel;

/// How a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// The thread that polls it waits: the first poll ends it.
    Thread,
    /// It is pending meanwhile, and its task is woken.
    Task,
}

/// Who makes a call.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) waits: Waits,
    pub(crate) cancel: Option<&'a Cancel>,
}

impl Caller<'_> {
    /// A thread that nobody cancels.
    pub(crate) const THREAD: Self = Self {
        waits: Waits::Thread,
        cancel: None,
    };

    /// Whether it has cancelled its calls.
    pub(crate) fn is_cancelled(self) -> bool {
        self.cancel.is_some_and(Cancel::is_cancelled)
    }
}

/// The outcome of a call whose thread waits.
///
/// # Panics
/// The call was begun to be awaited by a task.
pub fn here<T>(call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => unreachable!("a thread that waits is not told to come back"),
    }
}
