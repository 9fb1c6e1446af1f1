//! The client's flows as state machines: what a get and a put do, step by step. The shell moves the bytes.
//!
//! A flow is told what happened (`on_reply`, `on_read`, `on_deadline`) and pushes what is to be done next into the
//! caller's list of [`Action`]s. It uses no bytes of objects, no socket and no clock, so the embedded store, a remote
//! client and the simulator run the same code.
//!
//! # Operations
//!
//! Every request of a flow to the master is an operation with a number ([`Operations`]). When no answer arrives, the
//! flow repeats the operation under the same number, and the master answers the repetition as it answered the first.
//! After an answer whose class is `Retry`, the next attempt is another operation. When a flow ends without an answer,
//! it tells the master to revoke the operation, so that a late answer grants nothing.
//!
//! # The caller's buffers
//!
//! At the deadline, and when the caller cancels, a flow pushes [`Action::Cancel`] for each movement of bytes under way.
//! It has its outcomes, and gives its guards and extents back, only when the shell has reported the end of every one of
//! them. No I/O touches a caller's buffer after its call has returned.
#![forbid(unsafe_code)]

mod call;
mod get;
mod locations;
mod pace;
mod pick;
mod put;
mod retry;
mod tells;

pub use call::{Answer, CallFlow};
pub use get::{GetFlow, GetOutcome, Known, ReadFailure, usable};
pub use locations::{Located, Locations, Stamp};
pub use pace::Paces;
pub use pick::{Distance, LocalFirst, Pick};
pub use put::{PutFlow, PutOutcome, WriteFailure};
pub use retry::{FlowOptions, Operations};
pub use tells::Tells;

use slackwater_base::Checksum;
use slackwater_wire::{ExtentRef, Key, OperationId, ReplicaAt, Request, Version};

/// What the shell is to do for a flow.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send this to the master; its answer comes back through `on_reply`.
    Ask {
        /// The number of the operation.
        operation: OperationId,
        /// The request.
        request: Request,
    },
    /// Send this to the master until it has answered; the flow does not wait for that. See [`Tells`].
    Tell {
        /// The number of the operation.
        operation: OperationId,
        /// The request.
        request: Request,
    },
    /// Move the bytes of one object from a replica to the caller; the end comes back through `on_read`.
    Read {
        /// The position of the item in its batch.
        index: usize,
        /// Its key.
        key: Key,
        /// The version of the put that wrote it.
        version: Version,
        /// Its length in bytes.
        bytes: u64,
        /// The checksum that its bytes must have.
        checksum: Checksum,
        /// The replica to be read.
        from: ReplicaAt,
        /// Whether no other one is known: while there is, a node that sends nothing is not worth a long wait.
        is_last: bool,
    },
    /// Move the caller's bytes of one object to every extent; the end comes back through `on_written`.
    Write {
        /// The position of the item in its batch.
        index: usize,
        /// The extents, one a replica; the bytes go to each.
        extents: Vec<ExtentRef>,
    },
    /// Stop moving the bytes of this item as soon as possible. The movement still ends through `on_read` or
    /// `on_written`, once no I/O can touch the caller's buffer any more.
    Cancel {
        /// The position of the item in its batch.
        index: usize,
    },
}
