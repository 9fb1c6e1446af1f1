use std::sync::Arc;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_net::is_inside_a_loop;
use slackwater_wait::{Completer, Completion, Site, Waiting, now};
use slackwater_zmtp::Message;
use thiserror::Error;

use crate::context::Context;
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

/// What a request ends with.
type Outcome = Result<Answer, RequestError>;
type Callback = Box<dyn FnOnce(Outcome) + Send>;

static STOPPED: Site = Site::new("answer of a layer that stopped");

/// A request that was begun, and whose caller waits for its reply when it likes. To drop it is to give it up: what still waits in
/// the queue of a link then is not sent.
#[must_use = "a request that is dropped is given up"]
pub struct BegunRequest {
    context: Arc<Context>,
    /// The loop that it went to.
    shard: u16,
    completion: Completion<Outcome>,
}

impl BegunRequest {
    pub(crate) fn new(context: Arc<Context>, shard: u16, completion: Completion<Outcome>) -> Self {
        Self {
            context,
            shard,
            completion,
        }
    }

    /// Waits for the outcome, until `deadline` at most, running the loop of its link where that is faster. `None` when there was
    /// none in time, or the request was given up before; but what was given up may have an outcome all the same: the answer,
    /// [`RequestError::Timeout`] where its time was over, or [`RequestError::Gone`] where its link, or the message layer, has
    /// dropped it.
    pub fn wait(&mut self, deadline: Instant) -> Option<Result<Answer, RequestError>> {
        if is_inside_a_loop() {
            return Some(Err(RequestError::InsideLoop));
        }
        let loops = self.context.loops.load();
        match loops.get(usize::from(self.shard)) {
            Some(looping) => looping.wait(&mut self.completion, deadline).ok(),
            // The message layer has stopped, perhaps after the answer.
            None => {
                let waiting = Waiting::at(&STOPPED).until(now());
                let told = self.completion.wait(&waiting);
                Some(told.unwrap_or(Err(RequestError::Gone)))
            }
        }
    }

    /// Awaits the outcome, as [`BegunRequest::wait`] waits for it: until the request's own time is over, on the loops alone.
    pub async fn outcome(&mut self) -> Option<Result<Answer, RequestError>> {
        (&mut self.completion).await.ok()
    }

    /// Whether it has its outcome, given up or not: a wait takes that at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.completion.is_done()
    }

    /// A handle that gives the request up from another thread, and ends the wait for it.
    pub fn canceller(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        self.completion.canceller()
    }
}

impl Drop for BegunRequest {
    fn drop(&mut self) {
        self.completion.cancel();
    }
}

impl std::fmt::Debug for BegunRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BegunRequest")
            .field("completion", &self.completion)
            .finish_non_exhaustive()
    }
}

/// The caller that waits for an answer. It is called exactly once: at the latest, with `Gone`, when this is dropped.
pub(crate) struct Waiter {
    /// Until it was told.
    told: Option<Told>,
}

/// How a waiter hears of the outcome.
enum Told {
    /// By a call, where the outcome is read if it is `inline`, else on a worker.
    Call { callback: Callback, inline: bool },
    /// By what its thread waits for.
    Thread(Completer<Outcome>),
}

impl Waiter {
    pub(crate) fn new(callback: Callback, inline: bool) -> Self {
        Self {
            told: Some(Told::Call { callback, inline }),
        }
    }

    /// A thread that waits for the other end of `completer`.
    pub(crate) fn of(completer: Completer<Outcome>) -> Self {
        Self {
            told: Some(Told::Thread(completer)),
        }
    }

    /// Whether nobody wants the outcome any more.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(&self.told, Some(Told::Thread(completer)) if completer.is_cancelled())
    }

    /// Reports the outcome, here or on a worker.
    pub(crate) fn tell(mut self, jobs: &crate::jobs::Jobs, outcome: Outcome) {
        if let Some(Told::Call { inline: false, .. }) = &self.told {
            // The job owns the waiter, so that the waiter is called also when the queue is full or stopped.
            let _ = jobs.reply(Box::new(move || self.tell_here(outcome)));
        } else {
            self.tell_here(outcome);
        }
    }

    fn tell_here(&mut self, outcome: Outcome) {
        match self.told.take() {
            Some(Told::Call { callback, .. }) => callback(outcome),
            Some(Told::Thread(completer)) => completer.complete(outcome),
            None => {}
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.tell_here(Err(RequestError::Gone));
    }
}

#[cfg(test)]
mod tests {
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
