//! How calls fail.

use slackwater_transfer::{Batch, BatchError, Cause};

/// What a call gives that failed.
pub(super) const FAILED: i64 = -1;
/// What it gives when the peer is to be described again: it is not open, its memory is not known, or it is another process.
pub(super) const STALE: i64 = -2;
const TIMED_OUT: i64 = -3;

/// Why a call failed, and its code.
pub(super) struct Failure {
    pub(super) code: i64,
    pub(super) reason: String,
    /// What is known of the peer does not hold, or it was not reached: another process may have its name by now.
    pub(super) asks_again: bool,
}

impl Failure {
    pub(super) fn stale() -> Self {
        Self {
            code: STALE,
            reason: "the peer has no such memory".to_owned(),
            asks_again: true,
        }
    }
}

impl From<BatchError> for Failure {
    fn from(error: BatchError) -> Self {
        let code = match &error {
            BatchError::Failed(Cause::Refused(_) | Cause::Gone { .. }) => STALE,
            BatchError::Failed(Cause::TimedOut(_)) => TIMED_OUT,
            BatchError::TimedOut => TIMED_OUT,
            BatchError::Failed(_) | BatchError::Cancelled => FAILED,
        };
        let asks_again = matches!(
            &error,
            BatchError::Failed(
                Cause::Refused(_) | Cause::Gone { .. } | Cause::Unreachable(_) | Cause::Lost(_)
            )
        );
        let reason = error.to_string();
        Self {
            code,
            reason,
            asks_again,
        }
    }
}

/// The result of a batch that is over.
pub(super) fn result(batch: &Batch) -> Result<i64, Failure> {
    let causes = (0..batch.len()).filter_map(|request| batch.outcome(request)?.cause);
    let failures = causes.map(|cause| Failure::from(BatchError::Failed(cause)));
    let worst = failures.reduce(|one, other| {
        let asks_again = one.asks_again || other.asks_again;
        let worse = if other.code < one.code { other } else { one };
        Failure {
            asks_again,
            ..worse
        }
    });
    worst.map_or(Ok(0), Err)
}
