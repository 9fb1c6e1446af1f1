use crate::command::{COMMAND, LONG, MORE};
use crate::message::RangesBuilder;
use crate::{Cause, Message};

/// Cuts the byte stream into frames and collects the parts of the message that is arriving.
///
/// Payload goes straight to the end of one buffer, which becomes the message; a command is read there and cut off
/// again. Nothing is allocated for bytes that have only been announced, beyond [`RESERVE_BYTES`].
#[derive(Default)]
pub(crate) struct Reader {
    header: [u8; 9],
    have: u8,
    frame: Option<Frame>,
    store: Vec<u8>,
    ranges: RangesBuilder,
}

/// A frame whose header is known; its payload goes from `start` to the end of the store when it is complete.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) flags: u8,
    pub(crate) start: usize,
    size: usize,
}

const RESERVE_BYTES: usize = 64 << 10;
/// A message of several small parts gets room for all of them at once.
const SMALL_BYTES: usize = 128;

impl Reader {
    /// Takes bytes off `input` up to the end of the next frame; none when the input ends first. `limit` bounds the
    /// frame of the given flags before anything is kept for it.
    pub(crate) fn next(
        &mut self,
        input: &mut &[u8],
        limit: impl FnOnce(u8) -> u64,
    ) -> Result<Option<Frame>, Cause> {
        let frame = match self.frame {
            Some(frame) => frame,
            None => match self.read_header(input)? {
                Some((flags, size)) => self.begin(flags, size, limit(flags), input.len())?,
                None => return Ok(None),
            },
        };
        let missing = frame.size - (self.store.len() - frame.start);
        let (take, rest) = input.split_at(missing.min(input.len()));
        self.store.extend_from_slice(take);
        *input = rest;
        if take.len() < missing {
            return Ok(None);
        }
        self.frame = None;
        Ok(Some(frame))
    }

    /// Whether nothing is half read.
    pub(crate) fn is_idle(&self) -> bool {
        self.have == 0 && self.frame.is_none() && self.store.is_empty() && self.ranges.len() == 0
    }

    /// The payload of the frame just returned.
    pub(crate) fn payload(&mut self, frame: Frame) -> &mut [u8] {
        &mut self.store[frame.start..]
    }

    /// Forgets the payload of the frame just returned.
    pub(crate) fn discard(&mut self, frame: Frame) {
        self.store.truncate(frame.start);
        if self.store.is_empty() {
            self.store = Vec::new();
        }
    }

    /// Makes everything from `start` to the end the next part of the message.
    pub(crate) fn keep(&mut self, start: usize) {
        self.ranges.add(start, self.store.len());
    }

    /// Parts of the message so far.
    pub(crate) fn parts(&self) -> usize {
        self.ranges.len()
    }

    /// Bytes of the message so far.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.store.len() as u64
    }

    /// The message, complete.
    pub(crate) fn finish(&mut self) -> Message {
        Message::from_store(
            std::mem::take(&mut self.store),
            std::mem::take(&mut self.ranges),
        )
    }

    /// Begins a frame; `coming` bytes are there already, the whole message perhaps.
    fn begin(&mut self, flags: u8, size: u64, limit: u64, coming: usize) -> Result<Frame, Cause> {
        if size > limit {
            return Err(Cause::FrameTooLarge { size, limit });
        }
        let size = usize::try_from(size).map_err(|_| Cause::FrameTooLarge { size, limit })?;
        self.store
            .reserve(size.max(coming.min(SMALL_BYTES)).min(RESERVE_BYTES));
        let frame = Frame {
            flags,
            start: self.store.len(),
            size,
        };
        self.frame = Some(frame);
        Ok(frame)
    }

    fn read_header(&mut self, input: &mut &[u8]) -> Result<Option<(u8, u64)>, Cause> {
        loop {
            if self.have > 0 {
                let flags = self.header[0];
                let whole = if flags & LONG == 0 { 2 } else { 9 };
                if self.have == whole {
                    self.have = 0;
                    let size = match whole {
                        2 => u64::from(self.header[1]),
                        _ => u64::from_be_bytes(std::array::from_fn(|i| self.header[i + 1])),
                    };
                    return Ok(Some((flags, size)));
                }
            }
            let Some((byte, rest)) = input.split_first() else {
                return Ok(None);
            };
            *input = rest;
            if self.have == 0
                && (*byte & !(MORE | LONG | COMMAND) != 0
                    || *byte & (MORE | COMMAND) == MORE | COMMAND)
            {
                return Err(Cause::Malformed {
                    what: "frame flags",
                });
            }
            self.header[usize::from(self.have)] = *byte;
            self.have += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_cut_at_any_split() {
        let wire = b"\x00\x03abc\x02\0\0\0\0\0\0\0\x02de\x04\x01x";
        for cut in 0..=wire.len() {
            let mut reader = Reader::default();
            let mut seen = Vec::new();
            for mut input in [&wire[..cut], &wire[cut..]] {
                while let Some(frame) = reader.next(&mut input, |_| 10).unwrap() {
                    seen.push((frame.flags, reader.payload(frame).to_vec()));
                    reader.discard(frame);
                }
            }
            assert_eq!(
                seen,
                [
                    (0, b"abc".to_vec()),
                    (2, b"de".to_vec()),
                    (4, b"x".to_vec())
                ],
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn announced_sizes_are_refused_before_they_are_kept() {
        let mut reader = Reader::default();
        let huge = [2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        let refused = reader.next(&mut &huge[..], |_| 100).err();
        assert_eq!(
            refused,
            Some(Cause::FrameTooLarge {
                size: u64::MAX,
                limit: 100
            })
        );
        assert_eq!(reader.store.capacity(), 0);
        let mut reader = Reader::default();
        let large = [2, 0, 0, 0, 0, 0x40, 0, 0, 0];
        assert!(reader.next(&mut &large[..], |_| 1 << 40).unwrap().is_none());
        assert!(reader.store.capacity() <= RESERVE_BYTES);
    }

    #[test]
    fn unknown_flags_are_refused_at_once() {
        for flags in [8u8, 0x80, MORE | COMMAND] {
            assert!(Reader::default().next(&mut &[flags][..], |_| 100).is_err());
        }
    }
}
