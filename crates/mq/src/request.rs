use std::time::Duration;

use slackwater_wait::Completer;
use slackwater_zmtp::Message;
use thiserror::Error;

use crate::{Refusal, Route};

/// Why a request was not answered.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RequestError {
    /// No answer came in time.
    #[error("TIMEOUT")]
    Timeout,
    /// The link the request went to is gone, or there was none.
    #[error("the link is gone")]
    Gone,
    /// The link's queue is full.
    #[error("the link's queue is full")]
    Full,
    /// The peer refused.
    #[error("{}", .0.text())]
    Refused(Refusal),
    /// The caller is a handler that runs on a loop, which must not wait for it.
    #[error("a handler that runs inline must not wait for a reply")]
    InsideLoop,
}

/// The parts of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer(pub(crate) Message);

impl Answer {
    /// The parts, without the words of the protocol.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        self.0.parts().skip(2)
    }

    /// Part `index`.
    #[must_use]
    pub fn part(&self, index: usize) -> Option<&[u8]> {
        self.0.part(index + 2)
    }
}

/// How to request.
#[derive(Clone, Debug, Default)]
pub struct RequestOptions {
    /// How long it may take; the option of the message layer when none.
    pub timeout: Option<Duration>,
    /// Which links of a node may be taken.
    pub route: Route,
    /// Where the node is, asked before the look-up.
    pub hint: Option<crate::Address>,
    /// Whether the callback never blocks and may run where the reply is read.
    pub inline: bool,
}

type Callback = Box<dyn FnOnce(Result<Answer, RequestError>) + Send>;

/// The caller that waits for an answer. It is called exactly once: at the latest, with `Gone`, when this is dropped.
pub(crate) struct Waiter {
    callback: Option<Callback>,
    inline: bool,
}

impl Waiter {
    pub(crate) fn new(callback: Callback, inline: bool) -> Self {
        Self {
            callback: Some(callback),
            inline,
        }
    }

    /// A thread that waits for the other end of `completer`.
    pub(crate) fn of(completer: Completer<Result<Answer, RequestError>>) -> Self {
        Self::new(Box::new(|outcome| completer.complete(outcome)), true)
    }

    /// Reports the outcome, here or on a worker.
    pub(crate) fn tell(mut self, jobs: &crate::jobs::Jobs, outcome: Result<Answer, RequestError>) {
        let Some(callback) = self.callback.take() else {
            return;
        };
        if self.inline {
            return callback(outcome);
        }
        // The job owns the waiter, so that the waiter is called also when the queue is full or stopped.
        let mut carried = Waiter {
            callback: Some(callback),
            inline: false,
        };
        let _ = jobs.reply(Box::new(move || {
            if let Some(callback) = carried.callback.take() {
                callback(outcome);
            }
        }));
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(callback) = self.callback.take() {
            callback(Err(RequestError::Gone));
        }
    }
}

#[cfg(test)]
mod tests {
    use slackwater_wait::{Completion, Site, Waiting, now};

    use super::*;

    #[test]
    fn a_waiter_that_is_dropped_is_told_that_its_link_is_gone() {
        static SITE: Site = Site::new("dropped");
        let (completer, mut completion) = Completion::new();
        drop(Waiter::of(completer));
        let answer = completion.wait(&Waiting::at(&SITE).until(now()));
        assert_eq!(answer, Ok(Err(RequestError::Gone)));
    }
}
