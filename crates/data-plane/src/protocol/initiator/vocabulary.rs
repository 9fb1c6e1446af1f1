//! What an initiator is told, and what it says.

use std::time::Duration;

use slackwater_base::Instant;
use slackwater_wire::data::{Capability, Frame, Greeting, Op};
use slackwater_wire::{Incarnation, TraceContext};

use crate::Cause;
use crate::protocol::Notice;

/// What an initiator keeps to.
#[derive(Clone, Copy, Debug)]
pub struct InitiatorLimits {
    /// The incarnation that must answer.
    pub peer: Incarnation,
    /// Payload of one frame.
    pub slice_bytes: usize,
    /// Requests under way.
    pub requests_max: u32,
    /// With requests under way a byte moves within this time.
    pub progress_timeout: Duration,
    /// After the last byte of a write its acknowledgement arrives within this time.
    pub ack_timeout: Duration,
    /// After a write was given up the target answers within this time.
    pub drain_timeout: Duration,
    /// A connection without requests is closed after this time.
    pub idle_timeout: Duration,
    /// The least time between two looks at an idle connection.
    pub gc_interval: Duration,
}

/// What is to be done at the peer.
#[derive(Debug)]
pub enum Call {
    /// Move bytes between the task's memory and the peer's.
    Transfer {
        /// Read or write.
        op: Op,
        /// Before others of this connection.
        urgent: bool,
        /// First byte, from the start of the peer's region.
        offset: u64,
        /// Bytes from there.
        bytes: u64,
        /// The right to reach them.
        capability: Capability,
        /// The trace that it belongs to; peers that take none are not told.
        trace: Option<TraceContext>,
    },
    /// Deliver a notice.
    Notify(Notice),
    /// Find out whether the peer answers.
    Ping,
}

/// An event, and what is known of it.
#[derive(Debug)]
pub enum Input<'a, T> {
    /// The greeting of the peer, proven where that is asked for.
    Greeting(&'a Greeting),
    /// A header of the peer, whose payload, if it has any, has not been looked at.
    Frame(Frame),
    /// So many bytes of payload were placed, or discarded, as [`Initiator::want`] said.
    Arrived(usize),
    /// So many bytes of what [`Initiator::gather`] showed were sent.
    Wrote(usize),
    /// A task is to be carried.
    Start {
        /// What the peer is asked for.
        call: Call,
        /// The task ends at this time, whatever the peer does.
        deadline: Instant,
        /// The shell's name for it, or its memory.
        task: T,
    },
    /// A request is given up.
    GiveUp(u64, Cause),
    /// The connection has ended. `retry` says whether what had no effect may be started on another.
    Closed {
        /// The reason, for tasks that had begun.
        cause: &'a Cause,
        /// Whether another connection may do what this one has not.
        retry: bool,
    },
}

/// An action for the shell.
#[derive(Debug)]
pub enum Output<T> {
    /// Requests may be started, within this.
    Ready(Credit),
    /// A task has ended: nothing touches its memory any more, here or at the peer.
    Ended {
        /// The task.
        task: T,
        /// Bytes that are where they belong; or why not all are.
        outcome: Result<u64, Cause>,
    },
    /// A task had no effect and may be started on another connection.
    Again(T),
}

/// What a peer allows one lane to have under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Requests.
    pub requests: usize,
    /// Bytes of all of them.
    pub bytes: u64,
}
