use std::panic::{AssertUnwindSafe, catch_unwind};

use slackwater_base::Instant;
use slackwater_data_plane::Cause;
use slackwater_data_plane::protocol::Call;
use slackwater_engine::{BatchId, Job, Location, Notice, Part, Priority};
use slackwater_wait::now;
use slackwater_wire::Incarnation;

use super::cursor::{Cursor, Place, SpanMemory};

/// What a lane carries: one request, notice or probe.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) peer: Incarnation,
    /// The fence epoch that it was submitted in.
    pub(crate) epoch: u64,
    pub(crate) since: Instant,
    /// When it was given to a lane.
    pub(crate) started: Instant,
    pub(crate) kind: TaskKind,
    /// Where in its memory a lane is.
    cursor: Cursor,
}

#[derive(Debug)]
pub(crate) enum TaskKind {
    /// Move bytes.
    Job(Job),
    /// Deliver a notice.
    Notify {
        notice: Notice,
        part: Part,
        deadline: Instant,
    },
    /// Find out whether the peer answers.
    Probe { part: Part, deadline: Instant },
}

impl Task {
    pub(crate) fn new(peer: Incarnation, kind: TaskKind) -> Self {
        Self {
            peer,
            epoch: 0,
            since: now(),
            started: Instant::ZERO,
            kind,
            cursor: Cursor::default(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        match &self.kind {
            TaskKind::Job(job) => job.buffers.bytes(),
            TaskKind::Notify { notice, .. } => (notice.name.len() + notice.bytes.len()) as u64,
            TaskKind::Probe { .. } => 0,
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        match &self.kind {
            TaskKind::Job(job) => job.deadline,
            TaskKind::Notify { deadline, .. } | TaskKind::Probe { deadline, .. } => *deadline,
        }
    }

    pub(crate) fn is_urgent(&self) -> bool {
        match &self.kind {
            TaskKind::Job(job) => job.priority == Priority::Urgent,
            TaskKind::Notify { .. } | TaskKind::Probe { .. } => true,
        }
    }

    /// What is to be done at the peer.
    pub(crate) fn call(&self) -> Call {
        match &self.kind {
            TaskKind::Job(job) => Call::Transfer {
                op: job.op,
                urgent: self.is_urgent(),
                offset: job.remote.offset,
                bytes: job.buffers.bytes(),
                capability: job.remote.capability,
                trace: job.remote.trace,
            },
            TaskKind::Notify { notice, .. } => Call::Notify(notice.clone()),
            TaskKind::Probe { .. } => Call::Ping,
        }
    }

    pub(crate) fn part(&self) -> &Part {
        match &self.kind {
            TaskKind::Job(job) => &job.part,
            TaskKind::Notify { part, .. } | TaskKind::Probe { part, .. } => part,
        }
    }

    /// The location of its first range of registered memory; none where it has none.
    pub(crate) fn location(&self) -> Option<Location> {
        let TaskKind::Job(job) = &self.kind else {
            return None;
        };
        let access = job.buffers.spans().first()?.access();
        Some(access.map_or(Location::Host, |access| access.region().memory().location()))
    }

    /// Why its local memory may not be used any more, if it may not.
    pub(crate) fn closing(&self) -> Option<Cause> {
        let TaskKind::Job(job) = &self.kind else {
            return None;
        };
        job.buffers.closing()
    }

    /// Why it must not be started, if it must not.
    pub(crate) fn given_up(&self) -> Option<Cause> {
        let cancelled = self.part().is_cancelled().then_some(Cause::Cancelled);
        cancelled.or_else(|| self.closing())
    }

    pub(crate) fn batch(&self) -> BatchId {
        self.part().batch()
    }

    /// Releases local memory, and reports how the task ended.
    pub(crate) fn end(self, outcome: Result<u64, Cause>) {
        let part = match self.kind {
            TaskKind::Job(Job { buffers, part, .. }) => {
                drop(buffers);
                part
            }
            TaskKind::Notify { part, .. } | TaskKind::Probe { part, .. } => part,
        };
        end(part, outcome);
    }
}

impl SpanMemory for Task {
    fn place(&mut self, offset: u64) -> Option<Place<'_>> {
        match &self.kind {
            TaskKind::Job(job) => Some(Place {
                buffers: &job.buffers,
                cursor: &mut self.cursor,
                offset,
            }),
            TaskKind::Notify { .. } | TaskKind::Probe { .. } => None,
        }
    }
}

/// Reports the end of a part. Hooks of its batch run in this call, and a panic of one must not end the loop.
pub(crate) fn end(part: Part, outcome: Result<u64, Cause>) {
    let told = catch_unwind(AssertUnwindSafe(|| match outcome {
        Ok(bytes) => part.complete(bytes),
        Err(cause) => part.fail(cause),
    }));
    if told.is_err() {
        tracing::error!("a callback of a transfer panicked");
    }
}
