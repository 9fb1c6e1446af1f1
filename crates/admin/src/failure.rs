use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use slackwater_wire::{Class, ErrorCode};

use crate::json::Json;

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The code, whose numbers are the same on every face of the store.
    pub code: ErrorCode,
    /// What went wrong with what, and what to do.
    pub message: String,
}

impl Failure {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// An argument is missing or wrong.
    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidParams, message)
    }
}

impl From<ErrorCode> for Failure {
    fn from(code: ErrorCode) -> Self {
        Self::new(code, code.meaning())
    }
}

/// The status of a code: a request that is wrong, what is not there, what is not possible now, and the rest.
pub(crate) fn status(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::InvalidParams | ErrorCode::InvalidKey => StatusCode::BAD_REQUEST,
        ErrorCode::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::UnavailableInCurrentStatus
        | ErrorCode::UnavailableInCurrentMode
        | ErrorCode::ObjectHasLease
        | ErrorCode::TenantNotEmpty => StatusCode::CONFLICT,
        ErrorCode::TenantNotRegistered => StatusCode::NOT_FOUND,
        code if code.class() == Class::Gone => StatusCode::NOT_FOUND,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = json!({
            "success": false,
            "error_code": self.code.number(),
            "error_name": self.code.name(),
            "error_message": self.message,
        });
        (status(self.code), Json(body)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_failure_has_its_status() {
        let check = |code: ErrorCode, expected: u16| {
            assert_eq!(status(code).as_u16(), expected, "{code:?}");
        };
        check(ErrorCode::InvalidParams, 400);
        check(ErrorCode::InvalidKey, 400);
        check(ErrorCode::ObjectNotFound, 404);
        check(ErrorCode::SegmentNotFound, 404);
        check(ErrorCode::TenantNotRegistered, 404);
        check(ErrorCode::UnavailableInCurrentStatus, 409);
        check(ErrorCode::UnavailableInCurrentMode, 409);
        check(ErrorCode::TenantNotEmpty, 409);
        check(ErrorCode::ObjectHasLease, 409);
        check(ErrorCode::ShuttingDown, 503);
        check(ErrorCode::InternalError, 500);
        check(ErrorCode::FileReadFail, 500);
    }
}
