//! The client's flows as state machines: what a get and a put do, step by step, whoever moves the bytes.
//!
//! A flow is told what happened (`on_reply`, `on_read`, `on_deadline`) and pushes what it wants next into the caller's
//! list of [`Action`]s. It never touches a byte, a socket or a clock, so the embedded store, a remote client and the
//! simulator run the same one.
#![forbid(unsafe_code)]

mod call;
mod get;
mod pick;
mod put;
mod retry;

pub use call::{Answer, CallFlow};
pub use get::{GetFlow, GetOutcome, ReadFailure};
pub use pick::{LocalFirst, Pick};
pub use put::{PutFlow, PutOutcome, WriteFailure};
pub use retry::FlowOptions;

use slackwater_base::Checksum;
use slackwater_wire::{ExtentRef, Key, ReplicaAt, Request, Version};

/// What a flow wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send this to the master; its answer comes back through `on_reply`.
    Ask(Request),
    /// Send this to the master; nobody waits for the answer.
    Tell(Request),
    /// Move the bytes of one object from a replica to the caller; the end comes back through `on_read`.
    Read {
        /// Which item of the batch.
        index: usize,
        /// Its key.
        key: Key,
        /// Which put wrote it.
        version: Version,
        /// Its length in bytes.
        bytes: u64,
        /// The checksum that its bytes must have.
        checksum: Checksum,
        /// Where from.
        from: ReplicaAt,
    },
    /// Move the caller's bytes of one object to every extent; the end comes back through `on_written`.
    Write {
        /// Which item of the batch.
        index: usize,
        /// Where to.
        extents: Vec<ExtentRef>,
    },
}
