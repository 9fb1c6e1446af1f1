//! What a responder is told, and what it says.

use std::time::Duration;

use slackwater_wire::data::{Frame, Greeting, Refusal, Request};

use crate::protocol::{ChunkRange, Notice};

/// What a responder keeps to, and its peers have to.
#[derive(Clone, Copy, Debug)]
pub struct ResponderLimits {
    /// Payload of one frame.
    pub slice_bytes: usize,
    /// Requests that hold memory.
    pub requests_max: usize,
    /// Bytes of the memory that they hold.
    pub in_flight_bytes_max: u64,
    /// While the peer has to send or to read, a byte moves within this time.
    pub progress_timeout: Duration,
    /// A connection without requests is closed after this time.
    pub idle_timeout: Duration,
    /// A request ends so long after the time that its initiator gave it: the initiator, who also knows when it began,
    /// is to end it first.
    pub grace: Duration,
}

/// Memory for one request.
#[derive(Debug)]
pub struct Admitted<M> {
    /// Held until the request has ended.
    pub memory: M,
    /// The most bytes of one copy, for memory that the processor cannot reach.
    pub chunk_bytes: Option<u64>,
}

/// An event, and what is known of it.
#[derive(Debug)]
pub enum Input<'a, M> {
    /// The greeting of the peer.
    Greeting(&'a Greeting),
    /// A header of the peer other than a request.
    Frame(Frame),
    /// A request, and whether its capability allows it.
    Request(&'a Request, Result<Admitted<M>, Refusal>),
    /// So many bytes of payload were placed, or discarded, as [`Responder::want`] said.
    Arrived(usize),
    /// Bytes of a notice.
    Text(&'a [u8]),
    /// So many bytes of what [`Responder::gather`] showed were sent.
    Wrote(usize),
    /// Whether the bytes of a write count; answers [`Output::Commit`].
    Committed(u64, Result<(), Refusal>),
    /// Whether a notice was taken; answers [`Output::Notice`].
    Delivered(u64, bool),
    /// Memory was lent for the chunk that [`Want::Room`] names.
    Lent(u64),
    /// None is to be had now.
    NoRoom,
    /// There is room again.
    Resumed,
    /// A copy into the device has ended; answers [`Output::Store`].
    Stored(u64, bool),
    /// A copy out of the device has ended; answers [`Output::Fetch`].
    Fetched(u64, bool),
    /// A request is not allowed any more.
    Revoked(u64, Refusal),
}

/// An action for the shell.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Every byte of this write is in place: say whether they count.
    Commit(u64),
    /// Deliver a notice.
    Notice(u64, Notice),
    /// Copy a full chunk into the device.
    Store(u64, ChunkRange),
    /// Copy a chunk out of the device.
    Fetch(u64, ChunkRange),
    /// The chunk that was fetched last is the one that is sent from now on.
    Send(u64, ChunkRange),
    /// That chunk was sent: its memory goes back, since the next may need it.
    Sent(u64),
}

impl Output {
    /// The request that it is about.
    pub fn id(&self) -> u64 {
        match self {
            Self::Commit(id)
            | Self::Notice(id, _)
            | Self::Store(id, _)
            | Self::Fetch(id, _)
            | Self::Send(id, _)
            | Self::Sent(id) => *id,
        }
    }
}
