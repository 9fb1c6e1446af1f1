//! What a connection has to write: frames that wait, and requests whose payload has not been cut into frames yet.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use slackwater_wire::data::{ACK_BYTES, Ack, DATA_BYTES, Data, Frame, Refusal};

use super::cursor::Cursor;
use super::io::{VECTORS_MAX, Vectors, from_slice, send};
use super::record::Sealer;

/// Frames, in order, and the requests they are cut from, in turn.
#[derive(Debug, Default)]
pub(crate) struct Outlet {
    frames: VecDeque<Outgoing>,
    /// Bytes of the frames, without those already written.
    queued: usize,
    sources: VecDeque<Source>,
    /// Seals all that goes out, if anything is sealed.
    sealer: Option<Sealer>,
}

/// Payload of one request that goes out.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) id: u64,
    pub(crate) cursor: Cursor,
    /// Where in the request the cursor begins.
    pub(crate) base: u64,
    /// Another source follows with what comes after.
    pub(crate) more: bool,
    /// The request itself, before its first frame.
    pub(crate) request: Option<Frame>,
    /// The acknowledgement that follows its last frame, with this credit.
    pub(crate) ack_credit: Option<u32>,
    pub(crate) urgent: bool,
}

#[derive(Debug)]
struct Outgoing {
    id: u64,
    head: Head,
    body: Body,
    /// Payload bytes, of which `body` may have given some already.
    body_bytes: usize,
    tail: Option<[u8; ACK_BYTES]>,
    written: usize,
    last: bool,
}

#[derive(Debug)]
struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    length: usize,
}

#[derive(Debug)]
enum Body {
    None,
    Memory(Cursor),
    Owned(Vec<u8>),
    /// Bytes of no meaning: the frame was begun, and what it came from is let go of.
    Void,
}

/// How a flush ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    All,
    /// The kernel takes no more.
    Blocked,
    /// The share of this turn is spent.
    Spent,
}

/// A request header and the header of its first frame.
const HEAD_BYTES_MAX: usize = Frame::BYTES_MAX + DATA_BYTES;
/// Frames are cut while less than this waits: enough for one system call, little enough to be fair.
const QUEUED_BYTES_MIN: usize = 512 << 10;
const FRAMES_MAX: usize = 64;

/// What voided frames are filled with.
pub(super) static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl Outlet {
    /// Whether there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        let sealed = self.sealer.as_ref().is_none_or(|sealer| sealer.pending().is_empty());
        self.frames.is_empty() && self.sources.is_empty() && sealed
    }

    /// Seals all that goes out from now on.
    pub(crate) fn seal(&mut self, sealer: Sealer) {
        debug_assert!(self.is_empty(), "what was pushed before would be sealed as well");
        self.sealer = Some(sealer);
    }

    /// Frames and requests in it.
    pub(crate) fn len(&self) -> usize {
        self.frames.len() + self.sources.len()
    }

    /// A header without payload.
    pub(crate) fn push(&mut self, frame: &Frame) {
        self.push_outgoing(Outgoing::new(0, &[frame], Body::None, 0));
    }

    /// A header, or something else of up to the size of two, that is already bytes, with a payload of its own.
    pub(crate) fn push_bytes(&mut self, bytes: Vec<u8>) {
        let length = bytes.len();
        self.push_outgoing(Outgoing::new(0, &[], Body::Owned(bytes), length));
    }

    /// A request's payload, to be cut into frames.
    pub(crate) fn push_source(&mut self, source: Source) {
        match source.urgent {
            true => self.sources.push_front(source),
            false => self.sources.push_back(source),
        }
    }

    /// Lets go of a request's memory: what is left of a frame that was begun goes out as zeros, with `refusal` as its
    /// acknowledgement. Says how much had been begun.
    pub(crate) fn withdraw(&mut self, id: u64, refusal: Option<Refusal>) -> Withdrawn {
        let before = self.sources.len();
        self.sources.retain(|source| source.id != id);
        let mut found = if self.sources.len() < before { Withdrawn::Unbegun } else { Withdrawn::Nothing };
        let mut index = 0;
        while index < self.frames.len() {
            let frame = &mut self.frames[index];
            if frame.id != id || frame.body_bytes == 0 && frame.tail.is_none() {
                index += 1;
            } else if frame.written == 0 {
                self.queued -= frame.left();
                self.frames.remove(index);
                found = found.max(Withdrawn::Unbegun);
            } else {
                found = Withdrawn::Begun;
                let before = frame.left();
                frame.body = Body::Void;
                frame.tail = refusal.map(|refusal| ack_bytes(id, Some(refusal), 0, 0));
                self.queued = self.queued - before + frame.left();
                index += 1;
            }
        }
        found
    }

    /// Requests of which no byte has gone out, not even the request itself.
    pub(crate) fn untouched(&self) -> impl Iterator<Item = u64> {
        let framed = self.frames.iter().filter(|frame| frame.written == 0 && frame.head.length > DATA_BYTES);
        let whole = self.sources.iter().filter(|source| source.request.is_some());
        framed.map(|frame| frame.id).chain(whole.map(|source| source.id))
    }

    /// Whether a request is one of those.
    pub(crate) fn is_untouched(&self, id: u64) -> bool {
        self.untouched().any(|untouched| untouched == id)
    }

    /// Every request whose memory is still to be read from, with that memory.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (u64, &Cursor)> {
        let framed = self.frames.iter().filter_map(|frame| match &frame.body {
            Body::Memory(cursor) => Some((frame.id, cursor)),
            _ => None,
        });
        framed.chain(self.sources.iter().map(|source| (source.id, &source.cursor)))
    }

    /// Writes until nothing is left, the kernel takes no more, or `budget` bytes are written. Tells in `sent` which
    /// sources have left this process, and counts the bytes.
    pub(crate) fn flush(
        &mut self,
        socket: BorrowedFd<'_>,
        limits: FlushLimits,
        vectors: &mut Vectors,
        sent: &mut Vec<u64>,
    ) -> io::Result<(Flushed, usize)> {
        if let Some(mut sealer) = self.sealer.take() {
            let flushed = self.flush_sealed(&mut sealer, socket, limits, vectors, sent);
            self.sealer = Some(sealer);
            return flushed;
        }
        let mut total = 0;
        loop {
            self.cut(limits.frame_bytes_max);
            if self.frames.is_empty() {
                return Ok((Flushed::All, total));
            }
            if total >= limits.budget {
                return Ok((Flushed::Spent, total));
            }
            vectors.clear();
            let gathered = self.gather(vectors);
            // SAFETY: every range is one of a frame in `self.frames`: its own bytes, static zeros, or memory that its
            // cursor's buffers keep valid. None of them is changed during the call.
            match unsafe { send(socket, vectors, libc::MSG_DONTWAIT) } {
                Ok(count) => {
                    total += count;
                    self.advance(count, sent);
                    if count < gathered {
                        return Ok((Flushed::Blocked, total));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok((Flushed::Blocked, total)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The same by way of records. A source has left its memory when it is sealed.
    fn flush_sealed(
        &mut self,
        sealer: &mut Sealer,
        socket: BorrowedFd<'_>,
        limits: FlushLimits,
        vectors: &mut Vectors,
        sent: &mut Vec<u64>,
    ) -> io::Result<(Flushed, usize)> {
        let mut total = 0;
        loop {
            while !sealer.is_full() {
                self.cut(limits.frame_bytes_max);
                if self.frames.is_empty() {
                    break;
                }
                vectors.clear();
                self.gather(vectors);
                // SAFETY: as in `flush`.
                let sealed = unsafe { sealer.seal(vectors) };
                self.advance(sealed, sent);
            }
            if sealer.pending().is_empty() {
                return Ok((Flushed::All, total));
            }
            if total >= limits.budget {
                return Ok((Flushed::Spent, total));
            }
            vectors.clear();
            vectors.push(from_slice(sealer.pending()));
            let asked = sealer.pending().len();
            // SAFETY: the range is the sealer's own, which is not changed during the call.
            match unsafe { send(socket, vectors, libc::MSG_DONTWAIT) } {
                Ok(count) => {
                    total += count;
                    sealer.wrote(count);
                    if count < asked {
                        return Ok((Flushed::Blocked, total));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok((Flushed::Blocked, total)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Cuts requests into frames, one frame of each in turn.
    fn cut(&mut self, frame_bytes_max: usize) {
        while self.queued < QUEUED_BYTES_MIN && self.frames.len() < FRAMES_MAX {
            let Some(mut source) = self.sources.pop_front() else { return };
            let offset = source.base + source.cursor.buffers().bytes() - source.cursor.left();
            let total = source.base + source.cursor.buffers().bytes();
            let bytes = source.cursor.left().min(frame_bytes_max as u64);
            let spent = bytes == source.cursor.left();
            let last = spent && !source.more;
            let data = Frame::Data(Data { id: source.id, bytes: bytes as u32, last, offset });
            let request = source.request.take();
            let heads: &[&Frame] = match &request {
                Some(request) => &[request, &data],
                None => &[&data],
            };
            let mut frame = Outgoing::new(source.id, heads, Body::Memory(source.cursor.take(bytes)), bytes as usize);
            frame.last = spent;
            frame.tail = source.ack_credit.filter(|_| last).map(|credit| ack_bytes(source.id, None, total, credit));
            self.push_outgoing(frame);
            if !spent {
                match source.urgent {
                    true => self.sources.push_front(source),
                    false => self.sources.push_back(source),
                }
            }
        }
    }

    fn push_outgoing(&mut self, frame: Outgoing) {
        self.queued += frame.left();
        self.frames.push_back(frame);
    }

    fn gather(&self, out: &mut Vectors) -> usize {
        let mut total = 0;
        for frame in &self.frames {
            let (added, left) = (frame.gather(out), frame.left());
            total += added;
            // A frame that is only partly in must be the last, and one more takes up to three ranges.
            if added < left || out.len() + 3 > VECTORS_MAX {
                break;
            }
        }
        total
    }

    fn advance(&mut self, mut count: usize, sent: &mut Vec<u64>) {
        self.queued -= count;
        while let Some(frame) = self.frames.front_mut() {
            let step = frame.left().min(count);
            frame.advance(step);
            count -= step;
            if frame.left() > 0 {
                return;
            }
            if frame.last {
                sent.push(frame.id);
            }
            self.frames.pop_front();
        }
    }
}

/// How much of a request had gone out when it was withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Withdrawn {
    /// All of it, or there was none.
    Nothing,
    /// Whole frames, or none.
    Unbegun,
    /// A part of a frame.
    Begun,
}

/// What a flush may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlushLimits {
    pub(crate) frame_bytes_max: usize,
    pub(crate) budget: usize,
}

fn ack_bytes(id: u64, refusal: Option<Refusal>, bytes: u64, credit: u32) -> [u8; ACK_BYTES] {
    let mut out = Vec::with_capacity(ACK_BYTES);
    Frame::Ack(Ack { id, refusal, bytes, checksum: 0, credit }).write(&mut out);
    let mut ack = [0; ACK_BYTES];
    ack.copy_from_slice(&out);
    ack
}

impl Outgoing {
    fn new(id: u64, heads: &[&Frame], body: Body, body_bytes: usize) -> Self {
        let mut bytes = Vec::with_capacity(HEAD_BYTES_MAX);
        heads.iter().for_each(|head| head.write(&mut bytes));
        let mut head = Head { bytes: [0; HEAD_BYTES_MAX], length: bytes.len() };
        head.bytes[..bytes.len()].copy_from_slice(&bytes);
        Self { id, head, body, body_bytes, tail: None, written: 0, last: false }
    }

    fn left(&self) -> usize {
        self.head.length + self.body_bytes + self.tail.map_or(0, |tail| tail.len()) - self.written
    }

    /// Adds what is not written yet; says how many bytes it is.
    fn gather(&self, out: &mut Vectors) -> usize {
        let mut added = 0;
        let head = &self.head.bytes[..self.head.length];
        if let Some(rest) = head.get(self.written..).filter(|rest| !rest.is_empty()) {
            out.push(from_slice(rest));
            added += rest.len();
        }
        let body_written = self.written.saturating_sub(head.len()).min(self.body_bytes);
        let body_left = self.body_bytes - body_written;
        let body_added = match &self.body {
            Body::None => 0,
            Body::Memory(cursor) => cursor.vectors(body_left, out),
            Body::Owned(bytes) => {
                out.push(from_slice(&bytes[body_written..]));
                body_left
            }
            Body::Void => {
                let piece = body_left.min(ZEROS.len());
                out.push(from_slice(&ZEROS[..piece]));
                piece
            }
        };
        added += body_added;
        // What follows may only go along when nothing before it was left out.
        if body_added == body_left
            && let Some(tail) = &self.tail
        {
            let tail_written = self.written.saturating_sub(head.len() + self.body_bytes);
            out.push(from_slice(&tail[tail_written..]));
            added += tail.len() - tail_written;
        }
        added
    }

    fn advance(&mut self, count: usize) {
        let body_from = self.head.length;
        let body_end = body_from + self.body_bytes;
        let (from, to) = (self.written.clamp(body_from, body_end), (self.written + count).clamp(body_from, body_end));
        if let Body::Memory(cursor) = &mut self.body {
            cursor.advance(to - from);
        }
        self.written += count;
        if self.written >= body_end && matches!(self.body, Body::Memory(_)) {
            // Its last byte is with the kernel: the memory is let go of.
            self.body = Body::None;
        }
    }
}
