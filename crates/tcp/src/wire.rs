//! The bytes of one connection: what is received becomes headers and payload for one end of the protocol, what that end
//! has to send goes to the kernel, through sealed records where the connection is sealed.

mod receive;

use std::io;
use std::os::fd::BorrowedFd;

use slackwater_data_plane::Cause;
use slackwater_data_plane::protocol::{CloseReason, FrameReader, Want};
use slackwater_data_plane::seal::{Opener, RECORD_BYTES_MAX, Sealer};
use slackwater_wire::data::{Frame, GreetingError};

use super::end::End;
use super::io::{Vectors, append, from_slice, send, set_receive_low_water};

/// What a connection keeps beside the protocol.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    frames: FrameReader,
    /// The peer's greeting has come.
    greeted: bool,
    /// The peer is authenticated, as far as the configuration asks for it: on a sealed connection its first record has
    /// opened.
    proven: bool,
    /// The peer was refused.
    refused: bool,
    sealer: Option<Sealer>,
    opener: Option<Opener>,
    /// Received bytes that cannot be placed before a device has room.
    stash: Vec<u8>,
    /// The last frame was large: the next bytes are read in small pieces, so that little of its successor is copied.
    large: bool,
    /// The number of bytes from which on the kernel reports the socket readable; 0 before it was set.
    receive_low_water: usize,
    /// The turn before this one brought much of a large payload.
    fast: bool,
}

/// Buffers that the connections of a thread share.
#[derive(Debug)]
pub(crate) struct Scratch {
    bytes: Vec<u8>,
    vectors: Vectors,
}

// SAFETY: the pointers in `vectors` are only meaningful during the call that they were gathered for, on one thread.
unsafe impl Send for Scratch {}

/// How a flush ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    All,
    /// The kernel takes no more.
    Blocked,
    /// The budget of this turn is spent.
    Spent,
}

/// Why a turn reads no more of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadEnd {
    /// Its budget is spent.
    Spent,
    /// The kernel has no more; but much of a large payload has come just now, and its rest or the next one is not far.
    Soon,
    /// The kernel has no more.
    Empty,
}

/// What one call received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    /// Whether the kernel may have more.
    pub(crate) more: bool,
}

/// The most bytes that one connection reads, or writes, in one turn.
const TURN_BYTES: usize = 2 << 20;
/// The bytes that must have arrived before a connection in the middle of a large payload is read again.
pub(crate) const LOW_WATER_BYTES: usize = 128 << 10;
/// A large payload of which a turn has brought so much goes on in microseconds, or another follows it. A peer that sends byte by byte
/// is not waited for so, and of small requests a look costs more than their bytes.
const SOON_BYTES: usize = 32 << 10;
/// The most bytes read behind a large payload: a few headers.
const BEHIND_LARGE_BYTES: usize = 4 << 10;
/// The smallest payload that counts as large.
const LARGE_BYTES: usize = 64 << 10;

impl Scratch {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes],
            vectors: Vec::new(),
        }
    }

    /// Has room for at least so many bytes.
    pub(crate) fn widen(&mut self, bytes: usize) {
        self.bytes.resize(self.bytes.len().max(bytes), 0);
    }
}

impl Wire {
    /// Whether the peer is authenticated.
    pub(crate) fn is_proven(&self) -> bool {
        self.proven
    }

    /// Reads until the kernel has no more, or the budget of this turn is spent. Never blocks.
    pub(crate) fn read(
        &mut self,
        end: &mut impl End,
        socket: BorrowedFd<'_>,
        scratch: &mut Scratch,
    ) -> Result<ReadEnd, CloseReason> {
        let mut total = 0;
        loop {
            let received = self.receive(end, socket, scratch, libc::MSG_DONTWAIT)?;
            total += received.map_or(0, |received| received.bytes);
            if !received.is_some_and(|received| received.more) {
                self.wait_for_more(end, socket)?;
                return Ok(self.nothing_left(total));
            }
            if total >= TURN_BYTES {
                self.fast = self.large;
                return Ok(ReadEnd::Spent);
            }
        }
    }

    /// The kernel has no more in a turn that has brought so many bytes.
    fn nothing_left(&mut self, total: usize) -> ReadEnd {
        let fast = self.large && total >= SOON_BYTES;
        // The last bytes of a large payload may be few.
        let soon = fast || (self.fast && total > 0);
        self.fast = fast;
        match soon {
            true => ReadEnd::Soon,
            false => ReadEnd::Empty,
        }
    }

    /// One receive call, and what follows from its bytes. None when the kernel has none, or a device has no room for
    /// what arrived before.
    pub(crate) fn receive(
        &mut self,
        end: &mut impl End,
        socket: BorrowedFd<'_>,
        scratch: &mut Scratch,
        flags: i32,
    ) -> Result<Option<Received>, CloseReason> {
        self.take(end, &[])?;
        if self.opener.is_some() {
            self.open(end)?;
        }
        // The kernel keeps the bytes for which there is no room; a command resumes the reading.
        if !self.stash.is_empty() || self.greeted && end.want() == Want::Nothing {
            return Ok(None);
        }
        match (&self.opener, self.greeted.then(|| end.expected()).flatten()) {
            (Some(_), _) => self.receive_records(end, socket, scratch, flags),
            (None, Some(span)) if self.frames.is_empty() => {
                self.receive_expected(end, span, socket, scratch, flags)
            }
            (None, _) => self.receive_plain(end, socket, scratch, flags),
        }
    }

    /// Takes received bytes, behind those that had no room.
    pub(crate) fn take(&mut self, end: &mut impl End, bytes: &[u8]) -> Result<(), CloseReason> {
        let stash = std::mem::take(&mut self.stash);
        self.parse(end, &stash)?;
        match self.stash.is_empty() {
            true => self.parse(end, bytes)?,
            false => self.stash.extend_from_slice(bytes),
        }
        Ok(())
    }

    /// Opens the records that are whole, as long as their bytes can be placed.
    fn open(&mut self, end: &mut impl End) -> Result<(), CloseReason> {
        let Some(mut opener) = self.opener.take() else {
            return Ok(());
        };
        let opened = self.open_with(end, &mut opener);
        self.opener = Some(opener);
        opened
    }

    fn open_with(&mut self, end: &mut impl End, opener: &mut Opener) -> Result<(), CloseReason> {
        while self.stash.is_empty() && end.want() != Want::Nothing {
            let opened = opener.open_next().map_err(|_| CloseReason::Forged)?;
            let Some(plain) = opened else { break };
            self.prove(end)?;
            self.parse(end, plain)?;
        }
        Ok(())
    }

    fn parse(&mut self, end: &mut impl End, mut bytes: &[u8]) -> Result<(), CloseReason> {
        while !bytes.is_empty() {
            if self.refused {
                return Err(CloseReason::protocol("a request from a refused peer"));
            }
            if !self.greeted {
                bytes = self.parse_greeting(end, bytes)?;
                if let Some(opener) = &mut self.opener {
                    let space = opener.space().get_mut(..bytes.len());
                    let early = CloseReason::protocol("more than a proof behind the greeting");
                    space.ok_or(early)?.copy_from_slice(bytes);
                    opener.received(bytes.len());
                    return self.open(end);
                }
                continue;
            }
            let want = end.want();
            let piece = |count: usize| bytes.split_at(count.min(bytes.len()));
            bytes = match want {
                Want::Header => {
                    let (frame, rest) = self.frames.frame(bytes)?;
                    if let Some(frame) = frame {
                        if let Frame::Data(data) = &frame {
                            self.large = data.bytes as usize >= LARGE_BYTES;
                        }
                        end.frame(frame)?;
                    }
                    rest
                }
                Want::Memory(span) => {
                    let (piece, rest) = piece(span.bytes);
                    if let Some(mut place) = end.place(span) {
                        place.copy_in(piece);
                    }
                    end.arrived(piece.len())?;
                    rest
                }
                Want::Discard(count) => {
                    let (piece, rest) = piece(count);
                    end.arrived(piece.len())?;
                    rest
                }
                Want::Text(count) => {
                    let (piece, rest) = piece(count);
                    end.text(piece)?;
                    rest
                }
                Want::Room(_) | Want::Nothing => {
                    self.stash = bytes.to_vec();
                    return Ok(());
                }
            };
        }
        Ok(())
    }

    fn parse_greeting<'b>(
        &mut self,
        end: &mut impl End,
        bytes: &'b [u8],
    ) -> Result<&'b [u8], CloseReason> {
        let (greeting, rest) = match self.frames.greeting(bytes) {
            Ok(greeting) => greeting,
            Err(error @ GreetingError::Version { .. }) => return Err(end.other_version(&error)),
            Err(error) => return Err(CloseReason::protocol(&error.to_string())),
        };
        let Some(greeting) = greeting else {
            return Ok(rest);
        };
        self.greeted = true;
        let greeted = end.greeting(&greeting)?;
        self.refused = greeted.refused;
        if let Some((sealer, opener)) = greeted.sealed {
            (self.sealer, self.opener) = (Some(sealer), Some(opener));
        }
        if greeted.proven {
            self.prove(end)?;
        }
        Ok(rest)
    }

    fn prove(&mut self, end: &mut impl End) -> Result<(), CloseReason> {
        if self.proven {
            return Ok(());
        }
        self.proven = true;
        end.proven()
    }

    /// The kernel has no more bytes. In the middle of a large payload it need not report every segment: a wake for each
    /// costs more than the copy of its bytes.
    fn wait_for_more(
        &mut self,
        end: &mut impl End,
        socket: BorrowedFd<'_>,
    ) -> Result<(), CloseReason> {
        let left = match end.want() {
            Want::Memory(span) if self.opener.is_none() => span.bytes,
            _ => 0,
        };
        let from = match left >= 2 * LOW_WATER_BYTES {
            true => LOW_WATER_BYTES,
            false => 1,
        };
        self.report_from(from, socket)
    }

    /// Has the kernel report the socket readable from `bytes` bytes on.
    pub(crate) fn report_from(
        &mut self,
        bytes: usize,
        socket: BorrowedFd<'_>,
    ) -> Result<(), CloseReason> {
        if bytes == self.receive_low_water.max(1) {
            return Ok(());
        }
        self.receive_low_water = bytes;
        set_receive_low_water(socket, bytes).map_err(|error| lost(&error))
    }

    /// Sends what there is, as far as the kernel takes it, with these flags.
    pub(crate) fn flush(
        &mut self,
        end: &mut impl End,
        socket: BorrowedFd<'_>,
        scratch: &mut Scratch,
        flags: i32,
    ) -> Result<Flushed, CloseReason> {
        let (mut total, vectors) = (0, &mut scratch.vectors);
        loop {
            vectors.clear();
            let gathered = match &mut self.sealer {
                Some(sealer) => seal(sealer, end, vectors)?,
                None => end.gather(vectors),
            };
            if gathered == 0 {
                return Ok(Flushed::All);
            }
            if total >= TURN_BYTES {
                return Ok(Flushed::Spent);
            }
            // SAFETY: every range is one of a queued frame, of static zeros, of memory that its request keeps valid, or
            // of the sealer. None of them is changed during the call.
            let count = match unsafe { send(socket, vectors, flags) } {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Flushed::Blocked);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(lost(&error)),
            };
            total += count;
            match &mut self.sealer {
                Some(sealer) => sealer.wrote(count),
                None => end.wrote(count)?,
            }
            if count < gathered {
                return Ok(Flushed::Blocked);
            }
        }
    }

    /// Whether the kernel has all that was sealed.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.sealer
            .as_ref()
            .is_none_or(|sealer| sealer.pending().is_empty())
    }
}

/// Seals what there is to send; adds the records, and returns how many bytes of them wait for the kernel. What is sealed
/// counts as sent.
fn seal(
    sealer: &mut Sealer,
    end: &mut impl End,
    vectors: &mut Vectors,
) -> Result<usize, CloseReason> {
    while !sealer.is_full() {
        vectors.clear();
        if end.gather(vectors) == 0 {
            break;
        }
        // SAFETY: as in `flush`.
        let sealed = sealer.seal(|record| unsafe { append(vectors, RECORD_BYTES_MAX, record) });
        end.wrote(sealed)?;
    }
    vectors.clear();
    vectors.push(from_slice(sealer.pending()));
    Ok(sealer.pending().len())
}

fn lost(error: &io::Error) -> CloseReason {
    CloseReason::Lost(Cause::Lost(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look for every turn with 32 KiB cost requests of 4 KiB that go together a third more CPU, and one for any bytes would have a
    /// peer that trickles keep a core busy.
    #[test]
    fn more_is_expected_soon_while_large_payloads_come_fast() {
        let check = |turns: &[(bool, usize, ReadEnd)]| {
            let mut wire = Wire::default();
            for (number, (large, bytes, expected)) in turns.iter().enumerate() {
                wire.large = *large;
                assert_eq!(
                    wire.nothing_left(*bytes),
                    *expected,
                    "{number} of {turns:?}"
                );
            }
        };
        let (soon, empty) = (ReadEnd::Soon, ReadEnd::Empty);
        check(&[(true, 128 << 10, soon), (true, 40, soon), (true, 40, empty)]);
        check(&[
            (true, 128 << 10, soon),
            (false, 24, soon),
            (false, 24, empty),
        ]);
        check(&[(false, 64 << 10, empty), (false, 64 << 10, empty)]);
        check(&[(true, 1, empty), (true, 1, empty)]);
        check(&[(true, 32 << 10, soon), (true, 0, empty)]);
    }
}
