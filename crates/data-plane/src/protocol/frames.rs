use slackwater_wire::data::{Frame, GREETING_BYTES, Greeting, GreetingError};

use super::CloseReason;

/// Cuts received bytes into headers. Payload goes past it.
#[derive(Debug, Default)]
pub struct FrameReader {
    /// The start of an incomplete header.
    partial: Vec<u8>,
}

impl FrameReader {
    /// Whether no header has begun.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.partial.is_empty()
    }

    /// Takes bytes of the greeting; returns it once it is whole, and the bytes behind it. One of another version is known by
    /// its first bytes, and need not have as many.
    pub fn greeting<'b>(
        &mut self,
        bytes: &'b [u8],
    ) -> Result<(Option<Greeting>, &'b [u8]), GreetingError> {
        let (piece, rest) = bytes.split_at((GREETING_BYTES - self.partial.len()).min(bytes.len()));
        self.partial.extend_from_slice(piece);
        Greeting::check(&self.partial)?;
        let Ok(whole) = <&[u8; GREETING_BYTES]>::try_from(self.partial.as_slice()) else {
            return Ok((None, rest));
        };
        let greeting = Greeting::from_bytes(whole)?;
        self.partial = Vec::new();
        Ok((Some(greeting), rest))
    }

    /// Takes bytes of one header; returns it once it is whole, and the bytes behind it.
    #[inline]
    pub fn frame<'b>(&mut self, bytes: &'b [u8]) -> Result<(Option<Frame>, &'b [u8]), CloseReason> {
        let read = |bytes: &[u8]| {
            Frame::read(bytes).map_err(|error| CloseReason::protocol(&error.to_string()))
        };
        if self.partial.is_empty() {
            return Ok(match read(bytes)? {
                Some((frame, length)) => (Some(frame), &bytes[length..]),
                None => {
                    self.partial.extend_from_slice(bytes);
                    (None, &[])
                }
            });
        }
        let before = self.partial.len();
        let more = bytes.len().min(Frame::BYTES_MAX);
        self.partial.extend_from_slice(&bytes[..more]);
        Ok(match read(&self.partial)? {
            Some((frame, length)) => {
                self.partial.clear();
                (Some(frame), &bytes[length - before..])
            }
            // Fewer bytes than the longest header have arrived, or it would have been read.
            None => (None, &bytes[more..]),
        })
    }
}
