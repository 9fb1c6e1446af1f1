use std::sync::Arc;

use slackwater_base::Instant;
use slackwater_data_plane::Cause;
use slackwater_wire::data::Op;

use super::context::TcpContext;
use super::loop_state::Command;
use super::scheduler::{Finished, LaneId, Moved};
use super::task::{Task, TaskKind};

/// What one turn of a loop works with.
pub(crate) struct Turn<'a> {
    pub(crate) context: &'a Arc<TcpContext>,
    /// The index of the loop.
    pub(crate) index: usize,
    pub(crate) now: Instant,
}

impl Turn<'_> {
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

/// A task that has ended.
#[derive(Debug)]
pub(crate) struct FinishedTask {
    pub(crate) lane: LaneId,
    pub(crate) task: Task,
    pub(crate) outcome: Result<u64, Cause>,
}

impl FinishedTask {
    /// The end of the task, for the scheduler's counters.
    pub(crate) fn finished(&self) -> Finished {
        let moved = match (&self.outcome, &self.task.kind) {
            (Err(Cause::Refused(_)), _) => Moved::Refused,
            (Err(_), _) => Moved::Nothing,
            (Ok(bytes), TaskKind::Job(job)) if job.op == Op::Read => Moved::Read(*bytes),
            (Ok(bytes), TaskKind::Job(_)) => Moved::Written(*bytes),
            (Ok(_), TaskKind::Notify { .. } | TaskKind::Probe { .. }) => Moved::Answered,
        };
        Finished {
            peer: self.task.peer,
            epoch: self.task.epoch,
            bytes: self.task.bytes(),
            started: self.task.started,
            moved,
        }
    }
}
