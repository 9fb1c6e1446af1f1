use slackwater_base::Instant;
use slackwater_wire::{Class, ErrorCode, OperationId, Reply, Request};

use crate::retry::{Attempt, Attempts};
use crate::{Action, FlowOptions};

/// One request that moves no bytes, sent again while that can help.
#[derive(Debug)]
pub struct CallFlow {
    request: Request,
    attempts: Attempts,
    answer: Option<Answer>,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The master's answer.
    Reply(Reply),
    /// No answer came in time. Whether the request took effect is not known.
    Unknown,
}

impl CallFlow {
    /// Begins the call.
    pub fn start(
        now: Instant,
        request: Request,
        options: FlowOptions,
        out: &mut Vec<Action>,
    ) -> Self {
        let mut attempts = Attempts::new(options);
        let operation = attempts.begin(now);
        out.push(Action::Ask {
            operation,
            request: request.clone(),
        });
        Self {
            request,
            attempts,
            answer: None,
        }
    }

    /// The master answered an operation. A late or second answer changes nothing.
    pub fn on_reply(&mut self, now: Instant, operation: OperationId, reply: Reply) {
        if self.attempts.answered(operation) && !(worth_another(&reply) && self.attempts.plan(now))
        {
            self.end(Answer::Reply(reply));
        }
    }

    /// The link to the master broke. Without an answer, the operation is repeated if it may be.
    pub fn on_link_lost(&mut self, now: Instant) {
        if self.attempts.unanswered().is_some() && !self.attempts.plan(now) {
            self.end(Answer::Unknown);
        }
    }

    /// Time has passed.
    pub fn on_deadline(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.answer.is_some() {
            return;
        }
        if self.attempts.over(now) {
            return self.end(Answer::Unknown);
        }
        if let Some(Attempt::Repeat(operation) | Attempt::Another(operation)) =
            self.attempts.take_due(now)
        {
            out.push(Action::Ask {
                operation,
                request: self.request.clone(),
            });
        }
    }

    /// The caller gives up.
    pub fn cancel(&mut self) {
        if self.answer.is_none() {
            self.end(Answer::Unknown);
        }
    }

    fn end(&mut self, answer: Answer) {
        self.attempts.stop();
        self.answer = Some(answer);
    }

    /// When [`CallFlow::on_deadline`] wants to run; `None` when the call has ended.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.attempts.next_deadline()
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

/// Whether to try again: only after a refusal of the whole request. Outcomes of single keys are returned to the caller.
fn worth_another(reply: &Reply) -> bool {
    matches!(reply, Reply::Failed(code) if retries(*code))
}

/// Whether the class of a code is [`Class::Retry`](slackwater_wire::Class::Retry).
pub(crate) fn retries(code: ErrorCode) -> bool {
    code.class() == Class::Retry
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slackwater_base::Rng;

    use super::*;
    use crate::Operations;

    fn options(attempts: u32) -> FlowOptions {
        FlowOptions {
            deadline: Instant::ZERO + Duration::from_secs(10),
            attempts,
            answer_timeout: Duration::from_secs(1),
            backoff: FlowOptions::BACKOFF,
            jitter: Rng::new(3),
            operations: Operations::remote(),
        }
    }

    fn start(attempts: u32) -> (CallFlow, OperationId) {
        let mut out = vec![];
        let call = CallFlow::start(Instant::ZERO, Request::Quotas, options(attempts), &mut out);
        (call, asked(&out))
    }

    fn asked(out: &[Action]) -> OperationId {
        match out {
            [Action::Ask { operation, request }] if *request == Request::Quotas => *operation,
            other => panic!("unexpected {other:?}"),
        }
    }

    /// Every code as an answer to a call: retried exactly when its class is `Retry`, and then as another operation.
    #[test]
    fn the_class_alone_decides_whether_a_call_is_asked_again() {
        for code in ErrorCode::ALL {
            let (mut call, first) = start(2);
            call.on_reply(Instant::ZERO, first, Reply::Failed(*code));
            let again = code.class() == Class::Retry;
            assert_eq!(call.answer().is_none(), again, "{code}");
            if again {
                let mut out = vec![];
                call.on_deadline(call.next_deadline().unwrap(), &mut out);
                let second = asked(&out);
                assert_ne!(first, second, "{code}: the first operation is answered");
                call.on_reply(Instant::ZERO, second, Reply::Failed(*code));
                let answer = Answer::Reply(Reply::Failed(*code));
                assert_eq!(call.into_answer(), Some(answer));
            }
        }
    }

    #[test]
    fn a_lost_link_ends_in_unknown_when_attempts_are_used_up() {
        let (mut call, _) = start(1);
        call.on_link_lost(Instant::ZERO);
        assert_eq!(call.into_answer(), Some(Answer::Unknown));
    }

    /// A removal was sent again under another number when its link broke, and removed a value that had been put since.
    #[test]
    fn what_is_not_answered_is_repeated_under_its_number() {
        let (mut call, first) = start(3);
        call.on_link_lost(Instant::ZERO);
        let mut out = vec![];
        call.on_deadline(call.next_deadline().unwrap(), &mut out);
        assert_eq!(asked(&out), first);
        call.on_reply(Instant::ZERO, OperationId(first.0 + 1), Reply::Done);
        assert_eq!(call.answer(), None, "the answer to something else");
        call.on_reply(Instant::ZERO, first, Reply::Done);
        assert_eq!(call.into_answer(), Some(Answer::Reply(Reply::Done)));
    }

    #[test]
    fn silence_ends_at_the_deadline() {
        let (mut call, _) = start(1);
        let deadline = call.next_deadline().unwrap();
        assert_eq!(deadline, options(1).deadline);
        let mut out = vec![];
        call.on_deadline(deadline - Duration::from_nanos(1), &mut out);
        assert!(call.answer().is_none());
        call.on_deadline(deadline, &mut out);
        assert_eq!(call.answer(), Some(&Answer::Unknown));
        assert_eq!((call.next_deadline(), out), (None, vec![]));
    }

    #[test]
    fn a_cancelled_call_ends_at_once() {
        let (mut call, first) = start(3);
        call.cancel();
        call.on_reply(Instant::ZERO, first, Reply::Done);
        assert_eq!(call.into_answer(), Some(Answer::Unknown));
    }
}
