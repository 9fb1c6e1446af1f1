//! Why a transfer did not complete.

use std::fmt;

use slackwater_wire::data::Refusal;
use slackwater_wire::{Class, Incarnation};
use thiserror::Error;

use crate::seal::SealError;

/// Why a request did not complete.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Cause {
    /// The request itself is invalid: a range outside its region, an unknown or freed id.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// The target refused.
    #[error("refused by the target: {0}")]
    Refused(Refusal),
    /// The peer is another process than the one that was opened.
    #[error("the peer was incarnation {expected}, {found} answers now")]
    Gone {
        /// The incarnation that was opened.
        expected: Incarnation,
        /// The incarnation that answers.
        found: Incarnation,
    },
    /// No connection to the peer could be made in time.
    #[error("the peer cannot be reached: {0}")]
    Unreachable(String),
    /// The connection broke under the request, and no other was found in time.
    #[error("the connection broke: {0}")]
    Lost(String),
    /// Time ran out.
    #[error("{0}")]
    TimedOut(Deadline),
    /// The batch was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The queue to the peer is full, and the caller asked not to wait.
    #[error("{queued} bytes wait for the peer, no more are taken")]
    Full {
        /// Bytes queued for the peer.
        queued: u64,
    },
    /// No mover reaches the peer, or this kind of memory.
    #[error("no mover for {0}")]
    NoMover(String),
    /// Local memory failed; a device, usually.
    #[error("local memory: {0}")]
    Memory(String),
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// A connection could not be sealed, or lost its integrity.
    #[error("sealed connection: {0}")]
    Seal(SealError),
    /// A mover dropped the request without a result: it panicked, which was reported where it happened.
    #[error("the mover died with the request")]
    Dropped,
    /// The engine is closing.
    #[error("the engine is closed")]
    Closed,
}

/// The four deadlines of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Deadline {
    /// No connection in time.
    Connect,
    /// No byte moved for too long.
    Progress,
    /// All bytes went out, no acknowledgement came.
    Acknowledgement,
    /// The request's own deadline.
    Total,
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "no connection in time",
            Self::Progress => "no byte moved in time",
            Self::Acknowledgement => "no acknowledgement in time",
            Self::Total => "the deadline passed",
        })
    }
}

impl Cause {
    /// The class of the error: what a caller can do about it.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Refused(refusal) => refusal.class(),
            Self::Gone { .. } => Class::Gone,
            Self::Seal(SealError::Record) => Class::Retry,
            Self::Seal(_) => Class::Refused,
            Self::Unreachable(_)
            | Self::Lost(_)
            | Self::TimedOut(_)
            | Self::Full { .. }
            | Self::Memory(_) => Class::Retry,
            Self::Invalid(_) | Self::Cancelled | Self::NoMover(_) | Self::Closed => Class::Refused,
            Self::Protocol(_) | Self::Dropped => Class::Fatal,
        }
    }
}
