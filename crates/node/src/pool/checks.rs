//! Puts that their writers have ended, while nodes look whether the bytes are there.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use slackwater_mq::{Answer, RequestError};
use slackwater_wire::{ErrorCode, WrittenChecked, body};

/// The outcome of questions to several nodes: told once, when the last has answered.
pub(super) struct Checks {
    left: AtomicUsize,
    worst: Mutex<Option<ErrorCode>>,
    done: Mutex<Option<Done>>,
}

/// Takes the outcome.
type Done = Box<dyn FnOnce(Result<(), ErrorCode>) + Send>;

impl Checks {
    /// Waits for so many answers, one at least.
    pub(super) fn new(
        answers: usize,
        done: impl FnOnce(Result<(), ErrorCode>) + Send + 'static,
    ) -> Arc<Self> {
        assert!(answers > 0, "nobody would ever tell");
        Arc::new(Self {
            left: AtomicUsize::new(answers),
            worst: Mutex::new(None),
            done: Mutex::new(Some(Box::new(done))),
        })
    }

    /// Takes one answer in.
    pub(super) fn answered(&self, answer: Result<(), ErrorCode>) {
        if let Err(code) = answer {
            let mut worst = self.worst.lock().unwrap_or_else(PoisonError::into_inner);
            // A put that is over, or whose bytes are wrong, is so whatever else is said.
            if worst
                .is_none_or(|worst| code.class() != slackwater_wire::Class::Retry || worst == code)
            {
                *worst = Some(code);
            }
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let worst = *self.worst.lock().unwrap_or_else(PoisonError::into_inner);
        let done = self
            .done
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(done) = done {
            done(worst.map_or(Ok(()), Err));
        }
    }
}

/// What a node's answer says. Without one the bytes do not count as moved: the node may be gone with them, or be asked
/// again.
pub(super) fn outcome(answer: Result<Answer, RequestError>) -> Result<(), ErrorCode> {
    let answer = answer.map_err(|_| ErrorCode::TransferFail)?;
    let checked: WrittenChecked =
        body::decode(answer.part(0).unwrap_or_default()).map_err(|_| ErrorCode::DeserializeFail)?;
    checked.result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A put whose segment was taken back while its end was checked failed with "not possible in the present status",
    /// which says neither what happened nor what to do.
    #[test]
    fn a_node_that_cannot_be_asked_has_not_the_bytes_yet() {
        for error in [
            RequestError::Gone,
            RequestError::Timeout,
            RequestError::Full,
        ] {
            assert_eq!(outcome(Err(error)), Err(ErrorCode::TransferFail));
        }
    }

    /// The first refusal was forgotten when a later node could only be asked again: the put was asked about for ever.
    #[test]
    fn the_outcome_is_told_once_and_what_is_final_wins() {
        use ErrorCode::{ChecksumMismatch, ReplicaIsNotReady};
        let check = |answers: &[Result<(), ErrorCode>], expected| {
            let told = Arc::new(Mutex::new(Vec::new()));
            let heard = Arc::clone(&told);
            let checks = Checks::new(answers.len(), move |outcome| {
                heard.lock().unwrap().push(outcome);
            });
            for answer in answers {
                assert!(told.lock().unwrap().is_empty());
                checks.answered(*answer);
            }
            assert_eq!(*told.lock().unwrap(), [expected], "{answers:?}");
        };
        check(&[Ok(())], Ok(()));
        check(&[Ok(()), Ok(())], Ok(()));
        check(
            &[Ok(()), Err(ReplicaIsNotReady), Ok(())],
            Err(ReplicaIsNotReady),
        );
        let (later, never) = (Err(ReplicaIsNotReady), Err(ChecksumMismatch));
        check(&[later, never], never);
        check(&[never, later], never);
    }
}
