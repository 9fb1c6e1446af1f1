use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use slackwater_wait::{Countdown, Ended, Site, Stopped, Waiting};
use slackwater_wire::ErrorCode;

use crate::status::{Failure, SW_OK, guard, keep, quietly, sw_status};
use crate::transfer::{hook, sw_ended};
use crate::values::{at, deadline, give, take};

/// The end of work in several parts: each is reported by the thread that does it, and all waiters wake with the last. Waiters stand still:
/// they spin no longer than pays and then sleep.
pub struct sw_completion(Arc<Parts>);

struct Parts {
    countdown: Countdown<sw_status>,
    /// Parts that nobody has ended: a caller may end too many, which the countdown must not see.
    open: AtomicU32,
}

static SITE: Site = Site::new("c, completions");

/// Makes one of `parts` parts; one without parts is over at once.
///
/// # Safety
/// `completion` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_completion_new(
    parts: u32,
    completion: *mut *mut sw_completion,
) -> sw_status {
    guard(|| {
        let most = Countdown::<sw_status>::PARTS_MAX;
        if parts > most {
            return Err(Failure::invalid(format_args!(
                "{parts} parts, at most {most} can be"
            )));
        }
        let made = sw_completion(Arc::new(Parts {
            countdown: Countdown::new(parts),
            open: AtomicU32::new(parts),
        }));
        // SAFETY: as the caller promises.
        unsafe { give(completion, made, "completion") }
    })
}

/// Makes another handle to the same one, for a thread that may end its part after the waiters have given up.
///
/// # Safety
/// Pointers are valid, with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_completion_share(
    completion: *const sw_completion,
    other: *mut *mut sw_completion,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let shared = unsafe { at(completion, "completion") }?;
        // SAFETY: as the caller promises.
        unsafe { give(other, sw_completion(Arc::clone(&shared.0)), "other") }
    })
}

/// Says that one part is over: done for `SW_OK`, failed for another status. The first failure is what waiters get. With the
/// last part the handle may be given back by a waiter at once.
///
/// # Safety
/// `completion` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_completion_end(
    completion: *const sw_completion,
    status: sw_status,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let completion = unsafe { at(completion, "completion") }?;
        // The waiter may give its handle back before this returns.
        let completion = Arc::clone(&completion.0);
        let ended = completion
            .open
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
                open.checked_sub(1)
            });
        if ended.is_err() {
            return Err(Failure::invalid("all parts are over already"));
        }
        match status {
            SW_OK => completion.countdown.complete(),
            failed => completion.countdown.fail(failed),
        }
        Ok(())
    })
}

/// Waits until all parts are over: `SW_OK`, or the first failure. `SW_TIMED_OUT` after `timeout` nanoseconds and
/// `SW_CANCELLED` after `sw_completion_cancel` mean that parts may still be under way.
///
/// # Safety
/// `completion` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_completion_wait(
    completion: *const sw_completion,
    timeout: u64,
) -> sw_status {
    // The status of a part is the caller's own, which need not be one of ours.
    let mut failed = SW_OK;
    let waited = guard(|| {
        // SAFETY: as the caller promises.
        let completion = unsafe { at(completion, "completion") }?;
        let waiting = Waiting::at(&SITE).until(deadline(timeout));
        match completion.0.countdown.wait(&waiting) {
            Ok(()) => Ok(()),
            Err(Stopped::Failed(status)) => {
                keep(format!("a part ended with the status {status}"));
                failed = status;
                Ok(())
            }
            Err(Stopped::Ended(Ended::TimedOut)) => {
                Err(Failure::new(ErrorCode::DeadlinePassed, Ended::TimedOut))
            }
            Err(Stopped::Ended(Ended::Cancelled)) => {
                Err(Failure::new(ErrorCode::Cancelled, Ended::Cancelled))
            }
        }
    });
    if waited == SW_OK { failed } else { waited }
}

/// Ends present and future waits, while parts go on.
///
/// # Safety
/// `completion` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_completion_cancel(completion: *const sw_completion) {
    quietly(|| {
        // SAFETY: as the caller promises.
        if let Ok(completion) = unsafe { at(completion, "completion") } {
            completion.0.countdown.cancel();
        }
    });
}

/// Whether all parts are over; false for null.
///
/// # Safety
/// `completion` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_completion_is_done(completion: *const sw_completion) -> bool {
    // SAFETY: as the caller promises.
    unsafe { at(completion, "completion") }.is_ok_and(|completion| completion.0.countdown.is_done())
}

/// Has a function called once when all parts are over, or now if they are; waiters may return before it does. A completion
/// has one at most.
///
/// # Safety
/// `completion` is valid; `call` may be called with `context` on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_completion_on_end(
    completion: *const sw_completion,
    call: sw_ended,
    context: *mut c_void,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let completion = unsafe { at(completion, "completion") }?;
        // The function may give the handle back.
        let completion = Arc::clone(&completion.0);
        // SAFETY: as the caller promises.
        let hook = unsafe { hook(call, context) }?;
        completion.countdown.hook(hook).map_err(Failure::invalid)
    })
}

/// Gives a handle back; null is nothing.
///
/// # Safety
/// `completion` is null or came from `sw_completion_new` or `sw_completion_share`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_completion_free(completion: *mut sw_completion) {
    // SAFETY: as the caller promises.
    quietly(|| drop(unsafe { take(completion) }));
}
