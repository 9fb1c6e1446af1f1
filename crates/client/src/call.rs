use slackwater_base::Instant;
use slackwater_wire::{Class, ErrorCode, Reply, Request};

use crate::retry::Attempts;
use crate::{Action, FlowOptions};

/// One request that moves no bytes, asked again while that can help.
#[derive(Debug)]
pub struct CallFlow {
    request: Request,
    attempts: Attempts,
    answer: Option<Answer>,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The master's word.
    Reply(Reply),
    /// No answer came in time. Whether the request took effect is not known.
    Unknown,
}

impl CallFlow {
    /// Begins the call.
    pub fn start(request: Request, options: FlowOptions, out: &mut Vec<Action>) -> Self {
        out.push(Action::Ask(request.clone()));
        Self {
            request,
            attempts: Attempts::first(options),
            answer: None,
        }
    }

    /// The master answered.
    pub fn on_reply(&mut self, now: Instant, reply: Reply) {
        if self.answer.is_none() && !(worth_another(&reply) && self.attempts.plan(now)) {
            self.answer = Some(Answer::Reply(reply));
        }
    }

    /// The link to the master broke before an answer came.
    pub fn on_link_lost(&mut self, now: Instant) {
        if self.answer.is_none() && !self.attempts.plan(now) {
            self.answer = Some(Answer::Unknown);
        }
    }

    /// Time has passed.
    pub fn on_deadline(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.answer.is_some() {
            return;
        }
        if self.attempts.over(now) {
            self.answer = Some(Answer::Unknown);
        } else if self.attempts.take_due(now) {
            out.push(Action::Ask(self.request.clone()));
        }
    }

    /// When [`CallFlow::on_deadline`] wants to run; `None` when the call has ended.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.answer.is_none().then(|| self.attempts.next_deadline())
    }

    /// The answer, once there is one.
    #[must_use]
    pub fn answer(&self) -> Option<&Answer> {
        self.answer.as_ref()
    }

    /// The answer, taken out.
    #[must_use]
    pub fn into_answer(self) -> Option<Answer> {
        self.answer
    }
}

/// Only a refusal of the whole request is asked again: per-key outcomes belong to the caller.
fn worth_another(reply: &Reply) -> bool {
    matches!(reply, Reply::Failed(code) if retries(*code))
}

/// Whether the class of a code says to ask again.
pub(crate) fn retries(code: ErrorCode) -> bool {
    code.class() == Class::Retry
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slackwater_base::Rng;

    use super::*;

    fn options(attempts: u32) -> FlowOptions {
        FlowOptions {
            deadline: Instant::ZERO + Duration::from_secs(10),
            attempts,
            backoff: FlowOptions::BACKOFF,
            jitter: Rng::new(3),
        }
    }

    /// Every code at this call site: retried exactly when its class says so.
    #[test]
    fn the_class_alone_decides_whether_a_call_is_asked_again() {
        for code in ErrorCode::ALL {
            let mut out = vec![];
            let mut call = CallFlow::start(Request::Quotas, options(2), &mut out);
            call.on_reply(Instant::ZERO, Reply::Failed(*code));
            let again = code.class() == Class::Retry;
            assert_eq!(call.answer().is_none(), again, "{code}");
            if again {
                out.clear();
                call.on_deadline(call.next_deadline().unwrap(), &mut out);
                assert_eq!(out, [Action::Ask(Request::Quotas)]);
                call.on_reply(Instant::ZERO, Reply::Failed(*code));
                assert_eq!(
                    call.into_answer(),
                    Some(Answer::Reply(Reply::Failed(*code)))
                );
            }
        }
    }

    #[test]
    fn a_lost_link_ends_in_unknown_when_attempts_are_used_up() {
        let mut out = vec![];
        let mut call = CallFlow::start(Request::Quotas, options(1), &mut out);
        call.on_link_lost(Instant::ZERO);
        assert_eq!(call.into_answer(), Some(Answer::Unknown));
    }

    #[test]
    fn silence_ends_at_the_deadline() {
        let mut out = vec![];
        let mut call = CallFlow::start(Request::Quotas, options(5), &mut out);
        let deadline = call.next_deadline().unwrap();
        call.on_deadline(deadline - Duration::from_nanos(1), &mut out);
        assert!(call.answer().is_none());
        call.on_deadline(deadline, &mut out);
        assert_eq!(call.answer(), Some(&Answer::Unknown));
    }
}
