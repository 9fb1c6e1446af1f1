//! The protocol of one connection, without the connection: what each end sends, and what it does about what it receives.
//!
//! [`Initiator`] and [`Responder`] are pure. They take inputs and the time, and return outputs; neither touches a socket,
//! memory, or a clock. Payload is named by a [`Span`] of the memory of one request, which only a shell turns into ranges
//! for the kernel, so no byte is copied on its way through. The same initiator is driven by an event loop, by a caller
//! that waits for its own request, and by tests that cut its bytes anywhere.
//!
//! A shell receives what [`Want`] asks for, gives headers to the [`FrameReader`] and the frames to the core, reports
//! payload as arrived once it is placed, and sends what `gather` shows, reporting how much the kernel has taken.
//!
//! The ends are generic, so they are compiled with their shell; what they call for each frame is marked `#[inline]`, to be
//! compiled there too.

mod frames;
mod initiator;
mod responder;
mod send_queue;
mod staging;
#[cfg(test)]
mod tests;

pub use frames::FrameReader;
pub use initiator::{Call, Credit, Initiator, InitiatorLimits};
pub use responder::{Admitted, Responder, ResponderLimits};
pub use staging::ChunkRange;

use crate::Cause;

/// Inputs and outputs of an [`Initiator`], whose names are those of a responder's.
pub mod initiating {
    pub use super::initiator::{Input, Output};
}
/// Inputs and outputs of a [`Responder`].
pub mod responding {
    pub use super::responder::{Input, Output};
}

/// A part of the memory of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The request.
    pub id: u64,
    /// First byte, from the start of the request.
    pub offset: u64,
    /// Length.
    pub bytes: usize,
}

/// A message that follows a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Its name, by which the receiver tells notices apart.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// What the next received bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// A header.
    Header,
    /// Payload for this memory.
    Memory(Span),
    /// So many bytes of payload that nobody waits for any more.
    Discard(usize),
    /// So many bytes of a notice.
    Text(usize),
    /// Payload for which host memory must be lent first: all bytes of the span, or those that there are.
    Room(Span),
    /// Nothing, until a device has room.
    Nothing,
}

/// The next bytes to send.
#[derive(Debug)]
pub enum Piece<'a, M> {
    /// Bytes of the core.
    Bytes(&'a [u8]),
    /// Payload.
    Memory(M, Span),
    /// So many zeros: the memory of a frame that was begun is released.
    Zeros(usize),
}

/// Why a connection is closed.
#[derive(Debug)]
pub enum CloseReason {
    /// It broke, or the peer broke the protocol.
    Lost(Cause),
    /// Another process answers at this address, one of another version, or the handshake failed.
    Gone(Cause),
    /// A record was changed on its way: no request on the connection is tried again without the caller's knowledge.
    Forged,
    /// The peer exceeded a limit; it is told, if it reads.
    Limit(&'static str),
    /// The peer's key was removed from the allow-list.
    KeyRevoked,
    /// It was idle for too long.
    Idle,
}

impl CloseReason {
    /// The peer broke the protocol in this way.
    pub fn protocol(what: &str) -> Self {
        Self::Lost(Cause::Protocol(what.to_owned()))
    }
}

/// Payload that is being received.
#[derive(Debug)]
struct Payload {
    id: u64,
    left: usize,
    last: bool,
}

/// The smallest slice, so a smaller request is one frame.
pub const SLICE_BYTES_MIN: usize = 64 << 10;
/// The largest slice: no larger payload of one frame is accepted.
pub const SLICE_BYTES_MAX: usize = 16 << 20;
/// The largest request on the wire; larger ones are cut. Every target accepts this much on one connection.
pub const REQUEST_BYTES_MAX: u64 = 64 << 20;
/// Longest name and message of a notice.
pub const NOTICE_BYTES_MAX: u64 = 64 << 10;
