use thiserror::Error;

use crate::command::{MORE, write_header};
use crate::curve::{MESSAGE_OVERHEAD, Session};

/// Why a message was not put on the wire.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SendError {
    /// The handshake is not through, or the link is closed.
    #[error("the link is not up")]
    NotUp,
    /// ZMTP has no message without parts.
    #[error("a message needs at least one part")]
    Empty,
}

/// Bytes that a message of `parts` takes on the wire.
pub(crate) fn wire_bytes<'a>(parts: impl Iterator<Item = &'a [u8]>, sealed: bool) -> usize {
    let overhead = 9 + if sealed { MESSAGE_OVERHEAD } else { 0 };
    parts.map(|part| part.len() + overhead).sum()
}

/// Appends the frames of a message.
pub(crate) fn write<'a>(
    parts: impl ExactSizeIterator<Item = &'a [u8]>,
    session: Option<&mut Session>,
    wire: &mut Vec<u8>,
) {
    let last = parts.len().saturating_sub(1);
    let flags = |index: usize| if index < last { MORE } else { 0 };
    match session {
        None => {
            for (index, part) in parts.enumerate() {
                write_header(flags(index), part.len(), wire);
                wire.extend_from_slice(part);
            }
        }
        Some(session) => {
            for (index, part) in parts.enumerate() {
                session.seal(flags(index), part, wire);
            }
        }
    }
}
