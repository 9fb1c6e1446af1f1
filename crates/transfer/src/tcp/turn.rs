use std::sync::Arc;

use slackwater_base::Instant;

use super::context::TcpContext;
use super::initiator::FinishedTask;
use super::loop_state::Command;
use super::scheduler::{Credit, LaneId};

/// The state that one turn of a loop works with, and what it leaves to be done afterwards.
pub(crate) struct Turn<'a> {
    pub(crate) context: &'a Arc<TcpContext>,
    /// The index of the loop.
    pub(crate) index: usize,
    pub(crate) now: Instant,
    pub(crate) ended: &'a mut Vec<FinishedTask>,
    /// Lanes that became ready in this turn, with their credit.
    pub(crate) ready: &'a mut Vec<(LaneId, Credit)>,
    /// When the loop must check its deadlines again.
    pub(crate) wake: &'a mut Instant,
}

impl Turn<'_> {
    /// Has the loop check its deadlines at `at`.
    pub(crate) fn need(&mut self, at: Instant) {
        *self.wake = (*self.wake).min(at);
    }

    /// A call that gives this loop a command, from any thread.
    pub(crate) fn command_with<T: Send + 'static>(
        &self,
        command: impl FnOnce(T) -> Command + Send + 'static,
    ) -> Box<dyn FnOnce(T) + Send> {
        let (context, index) = (Arc::downgrade(self.context), self.index);
        Box::new(move |value| {
            if let Some(target) = context
                .upgrade()
                .and_then(|context| context.event_loop(index))
            {
                target.command(command(value));
            }
        })
    }
}
