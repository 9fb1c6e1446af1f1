use std::collections::BTreeMap;

use slackwater_base::{Backoff, Instant, Rng};
use slackwater_wire::{OperationId, Reply, Request};

use crate::call::retries;

/// Requests of a client whose answers no caller waits for: each is sent again until the master has answered.
///
/// Most of them give something back: a guard, an open put, what a lost answer granted. If one were lost while the
/// client's link is open, the master would keep that for ever.
#[derive(Debug)]
pub struct Tells {
    limit: usize,
    backoff: Backoff,
    jitter: Rng,
    unanswered: BTreeMap<OperationId, Told>,
}

#[derive(Debug)]
struct Told {
    request: Request,
    attempts: u32,
    again: Instant,
}

impl Tells {
    /// No requests. After each attempt the answer is awaited for a pause of `backoff`; `limit` is the most unanswered
    /// requests.
    #[must_use]
    pub fn new(limit: usize, backoff: Backoff, jitter: Rng) -> Self {
        Self {
            limit,
            backoff,
            jitter,
            unanswered: BTreeMap::new(),
        }
    }

    /// Adds a request that is sent now.
    pub fn tell(&mut self, now: Instant, operation: OperationId, request: Request) {
        let again = now + self.backoff.pause(0, &mut self.jitter);
        let told = Told {
            request,
            attempts: 1,
            again,
        };
        self.unanswered.insert(operation, told);
    }

    /// The master answered; true when the answer was to one of these requests.
    pub fn on_reply(&mut self, operation: OperationId, reply: &Reply) -> bool {
        let known = self.unanswered.contains_key(&operation);
        if known && !matches!(reply, Reply::Failed(code) if retries(*code)) {
            self.unanswered.remove(&operation);
        }
        known
    }

    /// Time has passed: appends what is to be sent again.
    pub fn on_deadline(&mut self, now: Instant, out: &mut Vec<(OperationId, Request)>) {
        for (operation, told) in &mut self.unanswered {
            if told.again <= now {
                let pause = self.backoff.pause(told.attempts, &mut self.jitter);
                told.attempts = told.attempts.saturating_add(1);
                told.again = now + pause;
                out.push((*operation, told.request.clone()));
            }
        }
    }

    /// When [`Tells::on_deadline`] wants to run; `None` when everything is answered.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.unanswered.values().map(|told| told.again).min()
    }

    /// Whether so many requests are unanswered that the client must begin nothing new.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.unanswered.len() >= self.limit
    }

    /// Whether everything is answered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.unanswered.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slackwater_wire::{Class, ErrorCode};

    use super::*;

    #[test]
    fn a_request_is_sent_until_it_is_answered() {
        let backoff = Backoff::doubling(Duration::from_millis(10), Duration::from_millis(40));
        let mut tells = Tells::new(2, backoff, Rng::new(3));
        let (mut now, mut out) = (Instant::ZERO, vec![]);
        tells.tell(now, OperationId(7), Request::Quotas);
        assert!(!tells.is_empty() && !tells.is_full());
        let mut longest = Duration::ZERO;
        for _ in 0..20 {
            let before = now;
            now = tells.next_deadline().unwrap();
            assert!(now > before && now <= before + Duration::from_millis(40));
            tells.on_deadline(now, &mut out);
            assert_eq!(out, [(OperationId(7), Request::Quotas)]);
            out.clear();
            longest = longest.max(before.until(now));
        }
        assert!(longest > Duration::from_millis(20), "pauses grow");
        let busy = Reply::Failed(ErrorCode::TaskPendingLimitExceeded);
        assert!(tells.on_reply(OperationId(7), &busy), "known, and not done");
        assert!(!tells.on_reply(OperationId(8), &Reply::Done));
        tells.tell(now, OperationId(8), Request::Quotas);
        assert!(tells.is_full());
        for number in [7, 8] {
            assert!(tells.on_reply(OperationId(number), &Reply::Done));
        }
        assert!(tells.is_empty() && tells.next_deadline().is_none());
    }

    /// Every code as an answer: the request is sent again exactly when the class is `Retry`.
    #[test]
    fn the_class_alone_decides_whether_a_request_is_sent_again() {
        for code in ErrorCode::ALL {
            let mut tells = Tells::new(1, crate::FlowOptions::BACKOFF, Rng::new(3));
            tells.tell(Instant::ZERO, OperationId(1), Request::Quotas);
            assert!(tells.on_reply(OperationId(1), &Reply::Failed(*code)));
            let again = code.class() == Class::Retry;
            assert_eq!(tells.is_empty(), !again, "{code}");
            assert_eq!(tells.next_deadline().is_some(), again, "{code}");
        }
    }
}
