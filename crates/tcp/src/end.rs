//! One end of the protocol as a connection's bytes meet it.

use slackwater_data_plane::protocol::{CloseReason, Piece, Span, Want};
use slackwater_data_plane::seal::{Opener, Sealer};
use slackwater_wire::data::{Frame, Greeting, GreetingError};

use super::cursor::{Place, SpanMemory};
use super::io::{VECTORS_MAX, Vectors, from_slice};

/// One end of the protocol, with what its shell knows.
pub(crate) trait End {
    /// The peer's greeting has come.
    fn greeting(&mut self, greeting: &Greeting) -> Result<Greeted, CloseReason>;

    /// The peer's greeting is of a version that is not spoken here.
    fn other_version(&mut self, error: &GreetingError) -> CloseReason {
        CloseReason::protocol(&error.to_string())
    }

    /// The peer is authenticated.
    fn proven(&mut self) -> Result<(), CloseReason>;

    fn frame(&mut self, frame: Frame) -> Result<(), CloseReason>;

    fn want(&mut self) -> Want;

    /// The payload that will follow the next header alone; see `Initiator::expected`.
    fn expected(&self) -> Option<Span> {
        None
    }

    /// The memory of a span that [`End::want`] or [`End::expected`] named.
    fn place(&mut self, span: Span) -> Option<Place<'_>>;

    fn arrived(&mut self, bytes: usize) -> Result<(), CloseReason>;

    fn text(&mut self, bytes: &[u8]) -> Result<(), CloseReason>;

    /// Adds what is to be sent; returns how many bytes it is.
    fn gather(&mut self, out: &mut Vectors) -> usize;

    fn wrote(&mut self, bytes: usize) -> Result<(), CloseReason>;
}

/// What follows from a greeting.
#[derive(Debug, Default)]
pub(crate) struct Greeted {
    /// Seals what is sent from now on, and opens what is received.
    pub(crate) sealed: Option<(Sealer, Opener)>,
    /// The peer is authenticated.
    pub(crate) proven: bool,
    /// The peer is refused: nothing more is taken from it.
    pub(crate) refused: bool,
}

/// The filling of frames whose memory was released.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Adds a piece of the protocol's to the ranges of a call; says how many bytes of it had room.
pub(crate) fn add<M: SpanMemory>(piece: Piece<'_, &mut M>, out: &mut Vectors) -> usize {
    if out.len() >= VECTORS_MAX {
        return 0;
    }
    match piece {
        Piece::Bytes(bytes) => {
            out.push(from_slice(bytes));
            bytes.len()
        }
        Piece::Memory(memory, span) => memory
            .place(span.offset)
            .map_or(0, |mut place| place.vectors(span.bytes, out)),
        Piece::Zeros(count) => {
            let count = count.min(ZEROS.len());
            out.push(from_slice(&ZEROS[..count]));
            count
        }
    }
}
