//! One connection: received bytes become frames and payload, queued frames become bytes.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use slackwater_base::Instant;
use slackwater_net::ConnId;
use slackwater_wire::data::{Frame, GREETING_BYTES, Greeting};

use super::cursor::Cursor;
use super::initiator::Initiator;
use super::io::{Vectors, into_slice, receive, set_receive_low_water};
use super::record::Opener;
use super::seal::SealError;
use super::send_queue::{FlushLimits, Flushed, SendQueue};
use super::server::ServerConnection;
use super::turn::Turn;
use crate::cause::Cause;

/// A connection of a loop.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) id: ConnId,
    pub(crate) role: Role,
    pub(crate) queue: SendQueue,
    /// The time by which the peer must be authenticated.
    pub(crate) proof_by: Instant,
    greeted: bool,
    /// The peer is authenticated, as far as the configuration asks for it: on a sealed connection its first record has
    /// opened.
    proven: bool,
    /// The peer was refused.
    refused: bool,
    /// Opens everything that follows the greeting, on a sealed connection.
    opener: Option<Opener>,
    /// The start of an incomplete header.
    partial: Vec<u8>,
    payload: Option<Payload>,
    /// Received bytes that cannot be placed before a device has room.
    stash: Vec<u8>,
    /// The last frame was large: the next bytes are read in small pieces, so that little of them is copied.
    large: bool,
    /// The kernel takes more.
    pub(crate) writable: bool,
    /// The number of bytes from which on the kernel reports the socket readable.
    receive_low_water: usize,
}

/// Which end of a connection this is.
#[derive(Debug)]
pub(crate) enum Role {
    Server(ServerConnection),
    Client(Initiator),
}

/// Payload that is being received.
#[derive(Debug)]
pub(crate) struct Payload {
    /// The request; none for a notice.
    pub(crate) id: Option<u64>,
    pub(crate) left: usize,
    pub(crate) last: bool,
}

/// Why a connection is closed.
#[derive(Debug)]
pub(crate) enum CloseReason {
    /// It broke, or the peer broke the protocol.
    Lost(Cause),
    /// Another process answers at this address, or the handshake failed.
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

/// Buffers that the connections of a loop share.
#[derive(Debug)]
pub(crate) struct Scratch {
    bytes: Vec<u8>,
    vectors: Vectors,
    sent: Vec<u64>,
}

// SAFETY: the pointers in `vectors` are only meaningful during the call that they were gathered for, on one thread.
unsafe impl Send for Scratch {}

/// The most bytes that one connection reads, or writes, in one turn.
const TURN_BYTES: usize = 2 << 20;
const SCRATCH_BYTES: usize = 64 << 10;
/// The bytes that must have arrived before a connection in the middle of a large payload is read again.
pub(super) const LOW_WATER_BYTES: usize = 128 << 10;
/// The most bytes read behind a large payload, or before one: a few headers.
const SCRATCH_BYTES_LARGE: usize = 4 << 10;
/// The smallest payload that counts as large.
const LARGE_BYTES: usize = 64 << 10;

impl CloseReason {
    pub(crate) fn protocol(what: &str) -> Self {
        Self::Lost(Cause::Protocol(what.to_owned()))
    }

    /// No connection to this peer can be made, on any address.
    pub(crate) fn unsealed(error: SealError) -> Self {
        Self::Gone(Cause::Seal(error))
    }
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self {
            bytes: vec![0; SCRATCH_BYTES],
            vectors: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// A placeholder while the real one is in use.
    pub(crate) fn empty() -> Self {
        Self {
            bytes: Vec::new(),
            vectors: Vec::new(),
            sent: Vec::new(),
        }
    }
}

impl Conn {
    pub(crate) fn new(id: ConnId, role: Role, proof_by: Instant) -> Self {
        Self {
            id,
            role,
            queue: SendQueue::default(),
            proof_by,
            greeted: false,
            proven: false,
            refused: false,
            opener: None,
            partial: Vec::new(),
            payload: None,
            stash: Vec::new(),
            large: false,
            writable: false,
            receive_low_water: 1,
        }
    }

    /// Whether the peer is not authenticated yet.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        !self.proven
    }

    /// Reads until the kernel has no more, or the budget of this turn is spent; says whether it is spent.
    pub(crate) fn read(
        &mut self,
        socket: BorrowedFd<'_>,
        scratch: &mut Scratch,
        turn: &mut Turn<'_>,
    ) -> Result<bool, CloseReason> {
        if self.opener.is_some() {
            return self.read_sealed(socket, scratch, turn);
        }
        let mut total = 0;
        let stash = std::mem::take(&mut self.stash);
        self.parse(&stash, turn)?;
        loop {
            // The kernel keeps the bytes for which there is no room; a command resumes the reading.
            if !self.stash.is_empty() || self.room(turn).is_none() {
                return Ok(false);
            }
            scratch.vectors.clear();
            let direct = self.payload_vectors(&mut scratch.vectors);
            let payload_left = self.payload.as_ref().map_or(0, |payload| payload.left);
            let mut asked = direct;
            if direct == payload_left || direct == 0 {
                let bytes = if self.large && payload_left == direct {
                    SCRATCH_BYTES_LARGE
                } else {
                    SCRATCH_BYTES
                };
                scratch
                    .vectors
                    .push(into_slice(&mut scratch.bytes[..bytes]));
                asked += bytes;
            }
            // SAFETY: the ranges are those of the payload's cursor, which its buffers keep valid for writes, and one of
            // the scratch buffer, which nobody else uses during the call.
            let Some(count) = (unsafe { receive_now(socket, &mut scratch.vectors) })? else {
                return Ok(false);
            };
            if let Role::Client(initiator) = &mut self.role {
                initiator.moved(turn.now);
            }
            let placed = count.min(direct);
            if placed > 0 {
                if let Some(cursor) = self.cursor() {
                    cursor.advance(placed);
                }
                self.payload_arrived(placed, turn)?;
            }
            self.parse(&scratch.bytes[..count - placed], turn)?;
            if self.opener.is_some() {
                return self.read_sealed(socket, scratch, turn);
            }
            total += count;
            if count < asked {
                self.wait_for_more(socket)?;
                return Ok(false);
            }
            if total >= TURN_BYTES {
                return Ok(true);
            }
        }
    }

    /// The same through sealed records.
    fn read_sealed(
        &mut self,
        socket: BorrowedFd<'_>,
        scratch: &mut Scratch,
        turn: &mut Turn<'_>,
    ) -> Result<bool, CloseReason> {
        let Some(mut opener) = self.opener.take() else {
            return Ok(false);
        };
        let read = self.read_records(&mut opener, socket, scratch, turn);
        self.opener = Some(opener);
        read
    }

    fn read_records(
        &mut self,
        opener: &mut Opener,
        socket: BorrowedFd<'_>,
        scratch: &mut Scratch,
        turn: &mut Turn<'_>,
    ) -> Result<bool, CloseReason> {
        let mut total = 0;
        loop {
            let stash = std::mem::take(&mut self.stash);
            self.parse(&stash, turn)?;
            if !self.stash.is_empty() || self.room(turn).is_none() {
                return Ok(false);
            }
            let opened = opener.next().map_err(|_| {
                turn.context.refused.records.fetch_add(1, Ordering::Relaxed);
                CloseReason::Forged
            })?;
            if let Some(plain) = opened {
                self.prove(turn)?;
                self.parse(plain, turn)?;
                continue;
            }
            if total >= TURN_BYTES {
                return Ok(true);
            }
            scratch.vectors.clear();
            scratch.vectors.push(into_slice(opener.space()));
            // SAFETY: the range is the opener's own, which nobody else uses during the call.
            let Some(count) = (unsafe { receive_now(socket, &mut scratch.vectors) })? else {
                return Ok(false);
            };
            if let Role::Client(initiator) = &mut self.role {
                initiator.moved(turn.now);
            }
            opener.received(count);
            total += count;
        }
    }

    /// Writes what is queued, as far as the kernel takes it; says whether the budget of this turn is spent and more is
    /// queued.
    pub(crate) fn flush(
        &mut self,
        socket: BorrowedFd<'_>,
        scratch: &mut Scratch,
        turn: &mut Turn<'_>,
    ) -> Result<bool, CloseReason> {
        if !self.writable || self.queue.is_empty() {
            return Ok(false);
        }
        let limits = FlushLimits {
            frame_bytes_max: turn.context.config.slice_bytes,
            budget: TURN_BYTES,
        };
        scratch.sent.clear();
        let flushed = self
            .queue
            .flush(socket, limits, &mut scratch.vectors, &mut scratch.sent);
        let (flushed, bytes) =
            flushed.map_err(|error| CloseReason::Lost(Cause::Lost(error.to_string())))?;
        self.writable = flushed != Flushed::Blocked;
        match &mut self.role {
            Role::Client(initiator) => {
                if bytes > 0 {
                    initiator.moved(turn.now);
                }
                scratch.sent.iter().for_each(|id| initiator.sent(*id, turn));
                Ok(flushed == Flushed::Spent)
            }
            Role::Server(server) => {
                scratch
                    .sent
                    .iter()
                    .for_each(|id| server.responder.sent(*id, self.id, &mut self.queue, turn));
                // The bytes that were sent may have made room for more.
                Ok(self.writable && !self.queue.is_empty())
            }
        }
    }

    /// How many bytes of payload can be placed now; none while a device has no room.
    fn room(&mut self, turn: &Turn<'_>) -> Option<usize> {
        match (&self.payload, &mut self.role) {
            (Some(Payload { id: Some(id), .. }), Role::Server(server)) => {
                server.responder.room(*id, self.id, &mut self.queue, turn)
            }
            _ => Some(usize::MAX),
        }
    }

    /// The kernel has no more bytes. In the middle of a large payload it need not report every segment: a wake for each
    /// costs more than the copy of its bytes.
    fn wait_for_more(&mut self, socket: BorrowedFd<'_>) -> Result<(), CloseReason> {
        let left = self.payload.as_ref().map_or(0, |payload| payload.left);
        let from = if left >= 2 * LOW_WATER_BYTES {
            LOW_WATER_BYTES
        } else {
            1
        };
        if from != self.receive_low_water {
            set_receive_low_water(socket, from)
                .map_err(|error| CloseReason::Lost(Cause::Lost(error.to_string())))?;
            self.receive_low_water = from;
        }
        Ok(())
    }

    /// Adds the ranges for the rest of the payload; returns their bytes.
    fn payload_vectors(&mut self, vectors: &mut Vectors) -> usize {
        let Some(left) = self.payload.as_ref().map(|payload| payload.left) else {
            return 0;
        };
        self.cursor()
            .map_or(0, |cursor| cursor.vectors(left, vectors))
    }

    /// The cursor that payload goes to; none when it is discarded, or kept by the role.
    fn cursor(&mut self) -> Option<&mut Cursor> {
        let payload = self.payload.as_ref()?;
        match &mut self.role {
            Role::Server(server) => server.cursor(payload, &mut self.queue),
            Role::Client(initiator) => initiator.cursor(payload.id?),
        }
    }

    fn parse(&mut self, mut bytes: &[u8], turn: &mut Turn<'_>) -> Result<(), CloseReason> {
        while !bytes.is_empty() {
            if let Some(left) = self.payload.as_ref().map(|payload| payload.left) {
                let Some(room) = self.room(turn) else {
                    self.stash = bytes.to_vec();
                    return Ok(());
                };
                let (piece, rest) = bytes.split_at(left.min(bytes.len()).min(room));
                match self.cursor() {
                    Some(cursor) => cursor.copy_in(piece),
                    None => {
                        if let Role::Server(server) = &mut self.role {
                            server.take(piece);
                        }
                    }
                }
                bytes = rest;
                self.payload_arrived(piece.len(), turn)?;
            } else if self.refused {
                return Err(CloseReason::protocol("a request from a refused peer"));
            } else if !self.greeted {
                bytes = self.parse_greeting(bytes, turn)?;
                if let Some(opener) = &mut self.opener {
                    opener.space()[..bytes.len()].copy_from_slice(bytes);
                    opener.received(bytes.len());
                    return Ok(());
                }
            } else {
                bytes = self.parse_frame(bytes, turn)?;
            }
        }
        Ok(())
    }

    fn parse_greeting<'b>(
        &mut self,
        bytes: &'b [u8],
        turn: &mut Turn<'_>,
    ) -> Result<&'b [u8], CloseReason> {
        let (piece, rest) = bytes.split_at((GREETING_BYTES - self.partial.len()).min(bytes.len()));
        self.partial.extend_from_slice(piece);
        let Ok(whole) = <&[u8; GREETING_BYTES]>::try_from(self.partial.as_slice()) else {
            return Ok(rest);
        };
        let greeting = Greeting::from_bytes(whole)
            .map_err(|error| CloseReason::protocol(&error.to_string()))?;
        self.partial.clear();
        self.greeted = true;
        self.queue.agree(&greeting)?;
        match &mut self.role {
            Role::Server(server) => match server.greeting(&greeting, &mut self.queue, turn) {
                Ok(None) => self.prove(turn)?,
                Ok(opener) => self.opener = opener,
                Err(error) => {
                    // The peer reads the reason and closes; if it sends anything else the connection is closed here.
                    tracing::debug!(%error, incarnation = %greeting.incarnation, "an initiator is not let in");
                    turn.context.refused.peers.fetch_add(1, Ordering::Relaxed);
                    self.refused = true;
                }
            },
            Role::Client(initiator) => {
                self.opener = initiator.greeting(&greeting, &mut self.queue, turn)?;
                self.proven = true;
            }
        }
        Ok(rest)
    }

    /// The peer is authenticated now.
    fn prove(&mut self, turn: &Turn<'_>) -> Result<(), CloseReason> {
        if let Role::Server(server) = &mut self.role
            && !self.proven
        {
            self.proven = true;
            server.proven(&mut self.queue, turn)?;
        }
        Ok(())
    }

    fn parse_frame<'b>(
        &mut self,
        bytes: &'b [u8],
        turn: &mut Turn<'_>,
    ) -> Result<&'b [u8], CloseReason> {
        let reason =
            |error: slackwater_wire::data::FrameError| CloseReason::protocol(&error.to_string());
        let (frame, rest) = if self.partial.is_empty() {
            match Frame::read(bytes).map_err(reason)? {
                Some((frame, length)) => (frame, &bytes[length..]),
                None => {
                    self.partial.extend_from_slice(bytes);
                    return Ok(&[]);
                }
            }
        } else {
            let before = self.partial.len();
            let more = bytes.len().min(Frame::BYTES_MAX);
            self.partial.extend_from_slice(&bytes[..more]);
            match Frame::read(&self.partial).map_err(reason)? {
                Some((frame, length)) => {
                    self.partial.clear();
                    (frame, &bytes[length - before..])
                }
                // Fewer bytes than the longest header have arrived, or it would have been read.
                None => return Ok(&bytes[more..]),
            }
        };
        let payload = match &mut self.role {
            Role::Server(server) => server.frame(frame, self.id, &mut self.queue, turn)?,
            Role::Client(initiator) => initiator.frame(frame, &mut self.queue, turn)?,
        };
        if let Some(payload) = payload {
            self.large = payload.left >= LARGE_BYTES;
            self.payload = Some(payload);
            self.payload_arrived(0, turn)?;
        }
        Ok(rest)
    }

    fn payload_arrived(&mut self, bytes: usize, turn: &mut Turn<'_>) -> Result<(), CloseReason> {
        let Some(payload) = &mut self.payload else {
            return Ok(());
        };
        payload.left -= bytes;
        if let (Some(id), Role::Server(server)) = (payload.id, &mut self.role) {
            server.responder.arrived(id, self.id, turn);
        }
        if payload.left > 0 {
            return Ok(());
        }
        let Some(payload) = self.payload.take() else {
            return Ok(());
        };
        match &mut self.role {
            Role::Server(server) => server.payload_done(&payload, &mut self.queue, turn),
            Role::Client(_) => Ok(()),
        }
    }
}

/// One receive call; none when the kernel has no bytes.
///
/// # Safety
/// As for [`receive`].
unsafe fn receive_now(
    socket: BorrowedFd<'_>,
    into: &mut Vectors,
) -> Result<Option<usize>, CloseReason> {
    loop {
        // SAFETY: the caller's promise.
        return match unsafe { receive(socket, into, libc::MSG_DONTWAIT) } {
            Ok(0) => Err(CloseReason::Lost(Cause::Lost(
                "closed by the peer".to_owned(),
            ))),
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(CloseReason::Lost(Cause::Lost(error.to_string()))),
        };
    }
}
