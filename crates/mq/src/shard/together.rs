//! Requests that came together and are carried out together.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use slackwater_zmtp::Message;

use super::dispatch;
use crate::context::{Context, Origin};
use crate::registry::TogetherHandler;
use crate::{Call, Level};

/// Most requests that are carried out together.
const TOGETHER: usize = 16;
/// The same, in bytes: when they are as many, no more are added.
const TOGETHER_BYTES: usize = 16 << 10;

/// Requests of one command, in the order in which they came, that are not carried out yet: before any other command or answer
/// is, before a link ends, and at the end of the turn.
#[derive(Default)]
pub(super) struct Gathered {
    handler: Option<TogetherHandler>,
    requests: Vec<Request>,
    bytes: usize,
}

struct Request {
    origin: Arc<Origin>,
    level: Level,
    message: Message,
}

impl Gathered {
    /// Takes a request that is carried out with others of its command, perhaps at once.
    pub(super) fn take(
        &mut self,
        context: &Arc<Context>,
        handler: &TogetherHandler,
        (origin, level): (&Arc<Origin>, Level),
        message: Message,
    ) {
        if (self.handler.as_ref()).is_some_and(|other| !Arc::ptr_eq(other, handler)) {
            self.carry_out(context);
        }
        self.handler.get_or_insert_with(|| Arc::clone(handler));
        self.bytes += message.payload_bytes();
        self.requests.push(Request {
            origin: Arc::clone(origin),
            level,
            message,
        });
        if self.requests.len() >= TOGETHER || self.bytes >= TOGETHER_BYTES {
            self.carry_out(context);
        }
    }

    /// Carries out what was gathered: what comes next came later.
    pub(super) fn carry_out(&mut self, context: &Arc<Context>) {
        let Some(handler) = self.handler.take() else {
            return;
        };
        self.bytes = 0;
        let mut requests = std::mem::take(&mut self.requests);
        let calls: Vec<Call<'_>> = (requests.iter())
            .map(|request| Call {
                context,
                origin: &request.origin,
                level: request.level,
                message: &request.message,
                is_request: true,
            })
            .collect();
        if catch_unwind(AssertUnwindSafe(|| handler(&calls))).is_err() {
            calls.iter().for_each(dispatch::failed);
        }
        drop(calls);
        requests.clear();
        self.requests = requests;
    }
}
