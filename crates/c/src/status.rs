use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use slackwater_wire::ErrorCode;

/// How a call ended: `SW_OK`, or the negative number of an error code.
pub type sw_status = i32;

/// The call did what was asked.
pub const SW_OK: i32 = 0;
/// The other side cannot be reached or does not answer.
pub const SW_UNREACHABLE: i32 = -900;
/// An argument is wrong; the text says which.
pub const SW_INVALID: i32 = -600;
/// There is no such object.
pub const SW_NOT_FOUND: i32 = -704;
/// There is an object of that key already.
pub const SW_EXISTS: i32 = -705;
/// The caller's buffer is too small.
pub const SW_TOO_SMALL: i32 = -10;
/// There is no space, and none came free in time; or a queue is full.
pub const SW_FULL: i32 = -200;
/// Bytes could not be moved.
pub const SW_TRANSFER_FAILED: i32 = -800;
/// The caller's key has not the role, or the capability not the right, that this needs.
pub const SW_NOT_PERMITTED: i32 = -2007;
/// The deadline passed first.
pub const SW_TIMED_OUT: i32 = -2002;
/// The operation was cancelled.
pub const SW_CANCELLED: i32 = -2005;
/// The peer could not do what it was asked.
pub const SW_PEER_FAILED: i32 = -1010;
/// What was started is closed.
pub const SW_CLOSED: i32 = -2003;
/// A defect of the library; its text says more.
pub const SW_DEFECT: i32 = -1;

/// Why a call failed, for [`sw_last_error`].
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    code: ErrorCode,
    text: String,
}

impl Failure {
    pub(crate) fn new(code: ErrorCode, text: impl Display) -> Self {
        let text = text.to_string();
        Self { code, text }
    }

    pub(crate) fn invalid(text: impl Display) -> Self {
        Self::new(ErrorCode::InvalidParams, text)
    }

    /// Keeps the text for this thread and gives the number.
    pub(crate) fn tell(self) -> sw_status {
        let Self { code, text } = self;
        keep(text);
        code.number()
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps a text for [`sw_last_error`]. A thread that is about to end may have no place for it any more.
pub(crate) fn keep(text: String) {
    let _ = LAST.try_with(|last| *last.borrow_mut() = text_of(text));
}

/// The text as C reads it: up to its first zero byte.
fn text_of(text: String) -> CString {
    let mut bytes = text.into_bytes();
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(end);
    }
    CString::new(bytes).unwrap_or_default()
}

/// Runs the body of an interface function: failures and panics become a status.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> sw_status {
    // What a panic leaves behind is behind locks that are poisoned, or unreachable.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SW_OK,
        Ok(Err(failure)) => failure.tell(),
        Err(panic) => {
            let words = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or(panic.downcast_ref::<&str>().copied())
                .unwrap_or("no reason given");
            Failure::new(ErrorCode::InternalError, format!("a defect: {words}")).tell()
        }
    }
}

/// Runs the body of a function that cannot fail and returns nothing.
pub(crate) fn quietly(body: impl FnOnce()) {
    // Its text is what is left of a panic.
    let _ = guard(|| {
        body();
        Ok(())
    });
}

/// The text of the last failure in this thread; empty when there was none. It stays until the next failure in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn sw_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// The name of a status, as `OBJECT_NOT_FOUND`; `UNKNOWN` for a number that is none.
#[unsafe(no_mangle)]
pub extern "C" fn sw_status_name(status: sw_status) -> *const c_char {
    static NAMES: std::sync::OnceLock<Vec<(i32, CString)>> = std::sync::OnceLock::new();
    if status == SW_OK {
        return c"OK".as_ptr();
    }
    let name = |code: &ErrorCode| (code.number(), text_of(code.name().to_owned()));
    NAMES
        .get_or_init(|| ErrorCode::ALL.iter().map(name).collect())
        .iter()
        .find(|(number, _)| *number == status)
        .map_or(c"UNKNOWN", |(_, name)| name.as_c_str())
        .as_ptr()
}

/// The version of the library, as `1.2.3`.
#[unsafe(no_mangle)]
pub extern "C" fn sw_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> String {
        // SAFETY: the text of this thread, which nothing replaces meanwhile.
        let text = unsafe { CStr::from_ptr(sw_last_error()) };
        text.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_failure_leaves_its_text_and_a_panic_is_a_defect() {
        let failed = guard(|| Err(Failure::invalid("one\0two")));
        assert_eq!((failed, said()), (SW_INVALID, "one".to_owned()));
        let broken = guard(|| panic!("out of {}", "steps"));
        assert_eq!(
            (broken, said()),
            (SW_DEFECT, "a defect: out of steps".to_owned())
        );
        assert_eq!(guard(|| Ok(())), SW_OK);
        assert_eq!(said(), "a defect: out of steps", "until the next failure");
    }

    /// The header has to have numbers.
    #[test]
    fn the_constants_are_the_codes() {
        let check = |status: sw_status, code: ErrorCode| assert_eq!(status, code.number());
        check(SW_UNREACHABLE, ErrorCode::RpcFail);
        check(SW_INVALID, ErrorCode::InvalidParams);
        check(SW_NOT_FOUND, ErrorCode::ObjectNotFound);
        check(SW_EXISTS, ErrorCode::ObjectAlreadyExists);
        check(SW_TOO_SMALL, ErrorCode::BufferOverflow);
        check(SW_FULL, ErrorCode::NoAvailableHandle);
        check(SW_TRANSFER_FAILED, ErrorCode::TransferFail);
        check(SW_NOT_PERMITTED, ErrorCode::RoleNotPermitted);
        check(SW_TIMED_OUT, ErrorCode::DeadlinePassed);
        check(SW_CANCELLED, ErrorCode::Cancelled);
        check(SW_PEER_FAILED, ErrorCode::UnavailableInCurrentStatus);
        check(SW_CLOSED, ErrorCode::ShuttingDown);
        check(SW_DEFECT, ErrorCode::InternalError);
    }

    #[test]
    fn every_code_has_its_name() {
        let check = |status: i32, expected: &str| {
            // SAFETY: a name, which lives as long as the library.
            let name = unsafe { CStr::from_ptr(sw_status_name(status)) };
            assert_eq!(name.to_str(), Ok(expected));
        };
        check(SW_OK, "OK");
        check(SW_NOT_FOUND, "OBJECT_NOT_FOUND");
        check(SW_TIMED_OUT, "DEADLINE_PASSED");
        check(17, "UNKNOWN");
        for code in ErrorCode::ALL {
            check(code.number(), code.name());
        }
    }
}
