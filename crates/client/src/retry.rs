use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slackwater_base::{Backoff, Instant, Planted, Rng, planted};
use slackwater_wire::{Class, ErrorCode, OperationId};

/// The deadline of a flow and how it retries.
#[derive(Clone, Debug)]
pub struct FlowOptions {
    /// When the flow ends, whatever its state.
    pub deadline: Instant,
    /// Most attempts, including the first; 1 or more.
    pub attempts: u32,
    /// How long an answer may take before the operation is repeated; `Duration::MAX` for ever.
    pub answer_timeout: Duration,
    /// Pauses between attempts.
    pub backoff: Backoff,
    /// Randomness of the pauses.
    pub jitter: Rng,
    /// The source of the numbers of its operations.
    pub operations: Operations,
}

/// The numbers of one client's operations: each is used once, and all flows of the client share the count.
#[derive(Clone, Debug)]
pub enum Operations {
    /// The flow's operations are not numbered: for a caller in the master's process, where each request is answered
    /// exactly once and before the flow is told of its deadline. The shell numbers the requests by
    /// [`OperationId::unrepeated`].
    Unnumbered,
    /// The flow's operations are numbered by a shared counter.
    Counted {
        /// The last number that was used.
        last: Arc<AtomicU64>,
        /// Whether a request or its answer can be lost, repeated or late.
        may_repeat: bool,
    },
}

impl Operations {
    /// The operations of a client whose requests and answers can be lost, repeated or late.
    #[must_use]
    pub fn remote() -> Self {
        Self::Counted {
            last: Arc::default(),
            may_repeat: true,
        }
    }

    /// The operations of a caller in the master's process whose answers may come after its deadline.
    #[must_use]
    pub fn in_process() -> Self {
        Self::Counted {
            last: Arc::default(),
            may_repeat: false,
        }
    }

    /// A number that was not used before.
    #[must_use]
    pub fn next(&self) -> OperationId {
        match self {
            Self::Unnumbered => OperationId::unrepeated(0),
            Self::Counted { last, may_repeat } => {
                let number = last.fetch_add(1, Ordering::Relaxed) + 1;
                if *may_repeat {
                    OperationId(number)
                } else {
                    OperationId::unrepeated(number)
                }
            }
        }
    }
}

impl FlowOptions {
    /// The usual pauses: from at most 5 ms growing to at most 1 s.
    pub const BACKOFF: Backoff =
        Backoff::doubling(Duration::from_millis(5), Duration::from_secs(1));

    /// One attempt until `deadline`, for a master in the same process, where a retry cannot help.
    #[must_use]
    pub fn once(deadline: Instant) -> Self {
        Self {
            deadline,
            attempts: 1,
            answer_timeout: Duration::MAX,
            backoff: Self::BACKOFF,
            jitter: Rng::new(0),
            operations: Operations::Unnumbered,
        }
    }
}

/// The successive operations of a flow: counts attempts, holds the time of the next one, and keeps the number of an
/// operation over its repetitions.
#[derive(Clone, Debug)]
pub(crate) struct Attempts {
    options: FlowOptions,
    used: u32,
    step: Step,
    /// When the current operation was first sent.
    first_asked: Instant,
    /// Whether the current operation was sent more than once.
    repeated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// No answer is awaited and no attempt is planned.
    Idle,
    /// Waits for the answer to this operation, and repeats it at that time.
    Asked(OperationId, Instant),
    /// The operation is repeated at that time, unless its answer arrives before.
    Repeat(OperationId, Instant),
    /// Another operation is sent at that time: the last one was answered.
    Another(Instant),
    /// The flow has ended.
    Over,
}

/// An operation to be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The same operation, and so the same request, as before.
    Repeat(OperationId),
    /// A new operation.
    Another(OperationId),
}

impl Attempts {
    pub(crate) fn new(options: FlowOptions) -> Self {
        Self {
            options,
            used: 1,
            step: Step::Idle,
            first_asked: Instant::ZERO,
            repeated: false,
        }
    }

    /// Begins an operation that is sent now.
    pub(crate) fn begin(&mut self, now: Instant) -> OperationId {
        let operation = self.options.operations.next();
        self.first_asked = now;
        self.repeated = false;
        self.step = Step::Asked(operation, self.repeat_at(now));
        operation
    }

    fn repeat_at(&self, now: Instant) -> Instant {
        if self.used < self.options.attempts {
            now + self.options.answer_timeout
        } else {
            Instant::NEVER
        }
    }

    /// Records the answer to an operation; false when no such answer is awaited, because it is late or a copy.
    pub(crate) fn answered(&mut self, operation: OperationId) -> bool {
        let awaited = self.unanswered() == Some(operation);
        if awaited {
            self.step = Step::Idle;
        }
        awaited
    }

    /// The operation that was sent and is not answered.
    pub(crate) fn unanswered(&self) -> Option<OperationId> {
        match self.step {
            Step::Asked(operation, _) | Step::Repeat(operation, _) => Some(operation),
            Step::Idle | Step::Another(_) | Step::Over => None,
        }
    }

    /// When the current operation was first sent: what it grants may have been granted since then.
    pub(crate) fn first_asked(&self) -> Instant {
        self.first_asked
    }

    /// Whether the current operation may have been executed although it was answered with this code: its first answer
    /// is no longer kept, or was given by a master that has ended since, and the present one does not know what the
    /// request names.
    pub(crate) fn may_have_been_executed(&self, code: ErrorCode) -> bool {
        code == ErrorCode::OperationTooOld || (self.repeated && code.class() == Class::Gone)
    }

    /// Plans another attempt after a pause, unless one is planned already; false when there may be none. An operation
    /// without an answer is repeated; after an answer, the attempt is another operation.
    pub(crate) fn plan(&mut self, now: Instant) -> bool {
        if matches!(self.step, Step::Repeat(..) | Step::Another(_)) {
            return true;
        }
        if self.step == Step::Over || self.used >= self.options.attempts {
            return false;
        }
        let options = &mut self.options;
        let pause = options.backoff.pause(self.used - 1, &mut options.jitter);
        let at = now + pause;
        if at >= options.deadline {
            return false;
        }
        self.used += 1;
        self.step = match self.unanswered() {
            Some(operation) if !planted(Planted::RetryIsAnotherOperation) => {
                Step::Repeat(operation, at)
            }
            _ => Step::Another(at),
        };
        true
    }

    /// Begins the attempt whose time has come.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Attempt> {
        match self.step {
            Step::Asked(operation, at) if at <= now => {
                if !self.plan(now) {
                    // There is no time for a repetition before the deadline; the answer may still come until then.
                    self.step = Step::Asked(operation, Instant::NEVER);
                }
                None
            }
            Step::Repeat(operation, at) if at <= now => {
                self.repeated = true;
                self.step = Step::Asked(operation, self.repeat_at(now));
                Some(Attempt::Repeat(operation))
            }
            Step::Another(at) if at <= now => Some(Attempt::Another(self.begin(now))),
            _ => None,
        }
    }

    /// The flow has ended: nothing more is sent.
    pub(crate) fn stop(&mut self) {
        self.step = Step::Over;
    }

    /// Whether the flow's time is over.
    pub(crate) fn over(&self, now: Instant) -> bool {
        now >= self.options.deadline
    }

    /// When the flow's `on_deadline` is to be called next; `None` when it has ended.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match self.step {
            Step::Over => None,
            Step::Idle => Some(self.options.deadline),
            Step::Asked(_, at) | Step::Repeat(_, at) | Step::Another(at) => {
                Some(at.min(self.options.deadline))
            }
        }
    }

    /// The number of one more operation, whose answer the flow does not await.
    pub(crate) fn number(&self) -> OperationId {
        self.options.operations.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(attempts: u32) -> FlowOptions {
        FlowOptions {
            deadline: Instant::ZERO + Duration::from_secs(1),
            attempts,
            answer_timeout: Duration::from_millis(100),
            backoff: FlowOptions::BACKOFF,
            jitter: Rng::new(1),
            operations: Operations::remote(),
        }
    }

    #[test]
    fn attempts_end_by_count_and_by_deadline() {
        let deadline = options(1).deadline;
        let mut one = Attempts::new(options(1));
        one.begin(Instant::ZERO);
        assert!(!one.plan(Instant::ZERO));
        let mut three = Attempts::new(options(3));
        three.begin(Instant::ZERO);
        assert!(three.plan(Instant::ZERO));
        assert_eq!(three.take_due(Instant::ZERO), None);
        assert!(three.take_due(deadline).is_some());
        assert_eq!(three.take_due(deadline), None);
        let mut late = Attempts::new(options(3));
        late.begin(Instant::ZERO);
        assert!(!late.plan(deadline));
    }

    #[test]
    fn an_operation_keeps_its_number_until_it_is_answered() {
        let mut attempts = Attempts::new(options(4));
        let first = attempts.begin(Instant::ZERO);
        let silent = attempts.next_deadline().unwrap();
        assert_eq!(silent, Instant::ZERO + Duration::from_millis(100));
        assert_eq!(attempts.take_due(silent), None, "a pause comes first");
        let again = attempts.next_deadline().unwrap();
        assert_eq!(attempts.take_due(again), Some(Attempt::Repeat(first)));
        assert!(attempts.plan(again), "the link was lost");
        let again = attempts.next_deadline().unwrap();
        assert_eq!(attempts.take_due(again), Some(Attempt::Repeat(first)));
        assert_eq!(attempts.first_asked(), Instant::ZERO);
        assert!(attempts.may_have_been_executed(ErrorCode::InvalidVersion));
        assert!(attempts.answered(first) && !attempts.answered(first));
        assert!(attempts.plan(again));
        let Some(Attempt::Another(second)) = attempts.take_due(attempts.next_deadline().unwrap())
        else {
            panic!("an answered operation is not repeated");
        };
        assert_ne!(first, second);
        assert!(!attempts.may_have_been_executed(ErrorCode::InvalidVersion));
        assert!(!attempts.answered(first), "a copy of the first answer");
    }

    /// A repetition may be lost too: silence after it is waited for no longer than after the first request.
    #[test]
    fn silence_is_met_with_a_repetition_until_the_attempts_are_used_up() {
        let mut attempts = Attempts::new(options(4));
        let first = attempts.begin(Instant::ZERO);
        let mut repeated = Vec::new();
        for _ in 0..20 {
            let at = attempts.next_deadline().unwrap();
            if attempts.over(at) {
                break;
            }
            repeated.extend(attempts.take_due(at));
        }
        assert_eq!(repeated, [Attempt::Repeat(first); 3]);
        assert_eq!(attempts.unanswered(), Some(first));
    }

    /// The shell tells a flow the time for many reasons; before its own deadline nothing may be sent.
    #[test]
    fn nothing_is_due_before_its_time() {
        let mut attempts = Attempts::new(options(4));
        attempts.begin(Instant::ZERO);
        let mut check = |step: &str| {
            let due = attempts.next_deadline().unwrap();
            let early = due - Duration::from_nanos(1);
            assert_eq!(attempts.take_due(early), None, "{step}");
            assert_eq!(attempts.next_deadline(), Some(due), "{step}");
            let taken = attempts.take_due(due);
            if let Some(Attempt::Repeat(operation)) = taken {
                assert!(attempts.answered(operation) && attempts.plan(due));
            }
            taken
        };
        assert_eq!(check("an answer is awaited"), None);
        assert!(matches!(check("a repetition"), Some(Attempt::Repeat(_))));
        let another = check("another operation");
        assert!(matches!(another, Some(Attempt::Another(_))));
    }

    #[test]
    fn pauses_begin_with_the_first_ceiling_and_grow() {
        let mut longest = [Duration::ZERO; 2];
        for seed in 0..100 {
            let jitter = Rng::new(seed);
            let mut attempts = Attempts::new(FlowOptions {
                jitter,
                ..options(3)
            });
            let mut now = Instant::ZERO;
            attempts.begin(now);
            for longest in &mut longest {
                assert!(attempts.plan(now));
                let at = attempts.next_deadline().unwrap();
                *longest = (*longest).max(now.until(at));
                now = at;
                attempts.take_due(now);
            }
        }
        let first = FlowOptions::BACKOFF.first;
        assert!(longest[0] <= first && longest[0] > first / 2, "{longest:?}");
        assert!(longest[1] > first, "{longest:?}");
    }

    #[test]
    fn every_number_is_used_once_and_none_is_that_of_what_is_not_numbered() {
        for operations in [Operations::remote(), Operations::in_process()] {
            let shared = operations.clone();
            let numbers = [
                operations.next(),
                shared.next(),
                operations.next(),
                Operations::Unnumbered.next(),
            ];
            for (at, number) in numbers.iter().enumerate() {
                assert!(!numbers[..at].contains(number), "{numbers:?}");
            }
        }
    }

    #[test]
    fn operations_of_one_process_are_marked_as_not_repeatable() {
        let check = |operations: Operations, may_repeat: bool| {
            assert_eq!(operations.next().may_repeat(), may_repeat);
        };
        check(Operations::remote(), true);
        check(Operations::in_process(), false);
        check(Operations::Unnumbered, false);
    }
}
