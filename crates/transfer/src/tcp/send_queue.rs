//! What a connection has to send: frames, and requests whose payload has not been cut into frames yet.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use slackwater_wire::data::{ACK_BYTES, Ack, DATA_BYTES, Data, Frame, Greeting, Refusal};

use super::config::SLICE_BYTES_MIN;
use super::conn::CloseReason;
use super::cursor::Cursor;
use super::io::{VECTORS_MAX, Vectors, from_slice, send};
use super::record::Sealer;

/// Frames in order, and the payload that the next frames are cut from, a frame of each request in turn.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    frames: VecDeque<QueuedFrame>,
    /// Bytes of the frames, without those already written.
    queued: usize,
    sources: VecDeque<PayloadSource>,
    /// Seals everything that is sent, on a sealed connection.
    sealer: Option<Sealer>,
    /// The largest payload of one frame that the peer accepts.
    frame_bytes_max: Option<u32>,
}

/// Payload of one request that is to be sent.
#[derive(Debug)]
pub(crate) struct PayloadSource {
    pub(crate) id: u64,
    pub(crate) cursor: Cursor,
    /// The offset within the request at which the cursor begins.
    pub(crate) base: u64,
    /// Another source follows with the next part of the payload.
    pub(crate) more: bool,
    /// The request itself, before its first frame.
    pub(crate) request: Option<Frame>,
    /// The acknowledgement that follows its last frame, with this credit.
    pub(crate) ack_credit: Option<u32>,
    pub(crate) urgent: bool,
}

#[derive(Debug)]
struct QueuedFrame {
    /// The request that its payload belongs to.
    id: Option<u64>,
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
    /// Zeros: part of the frame was sent, and its memory has been released since.
    Zeros,
}

/// How a flush ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    All,
    /// The kernel takes no more.
    Blocked,
    /// The budget of this turn is spent.
    Spent,
}

/// A request header and the header of its first frame.
const HEAD_BYTES_MAX: usize = Frame::BYTES_MAX + DATA_BYTES;
/// Frames are cut while fewer bytes are queued: enough for one system call, few enough that requests take turns.
const QUEUED_BYTES_MIN: usize = 512 << 10;

/// The filling of frames whose memory was released.
pub(super) static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl SendQueue {
    /// The most frames that are cut ahead.
    pub(crate) const FRAMES_MAX: usize = 64;

    /// Whether there is nothing to send.
    pub(crate) fn is_empty(&self) -> bool {
        let sealed = self
            .sealer
            .as_ref()
            .is_none_or(|sealer| sealer.pending().is_empty());
        self.frames.is_empty() && self.sources.is_empty() && sealed
    }

    /// Keeps frames within what the peer accepts; an error if that is less than the smallest slice.
    pub(crate) fn agree(&mut self, peer: &Greeting) -> Result<(), CloseReason> {
        self.frame_bytes_max = Some(peer.frame_bytes_max);
        let enough = peer.frame_bytes_max as usize >= SLICE_BYTES_MIN;
        if enough {
            Ok(())
        } else {
            Err(CloseReason::protocol(
                "it takes smaller frames than any peer may ask for",
            ))
        }
    }

    /// Seals everything from now on.
    pub(crate) fn seal(&mut self, sealer: Sealer) {
        debug_assert!(
            self.is_empty(),
            "what was pushed before would be sealed as well"
        );
        self.sealer = Some(sealer);
    }

    /// The number of frames and sources in it.
    pub(crate) fn len(&self) -> usize {
        self.frames.len() + self.sources.len()
    }

    /// A header without payload.
    pub(crate) fn push(&mut self, frame: &Frame) {
        self.push_frame(QueuedFrame::new(&[frame], Body::None, 0));
    }

    /// A header together with its payload, as bytes.
    pub(crate) fn push_bytes(&mut self, bytes: Vec<u8>) {
        let length = bytes.len();
        self.push_frame(QueuedFrame::new(&[], Body::Owned(bytes), length));
    }

    /// Queues a request's payload: urgent sources before the others, each kind in the order of arrival.
    pub(crate) fn push_source(&mut self, source: PayloadSource) {
        let at = if source.urgent {
            self.sources.partition_point(|other| other.urgent)
        } else {
            self.sources.len()
        };
        self.sources.insert(at, source);
    }

    /// Releases a request's memory. The rest of a frame that was partly sent goes out as zeros, followed by `refusal`
    /// as the acknowledgement, and counts as a source that was sent. Says how much had been sent.
    pub(crate) fn withdraw(&mut self, id: u64, refusal: Option<Refusal>) -> Withdrawn {
        let before = self.sources.len();
        self.sources.retain(|source| source.id != id);
        let mut found = if self.sources.len() < before {
            Withdrawn::Unbegun
        } else {
            Withdrawn::Nothing
        };
        let mut index = 0;
        while index < self.frames.len() {
            let frame = &mut self.frames[index];
            // After its payload there is no memory to release, and the acknowledgement may be half sent.
            if frame.id != Some(id) || frame.payload_left() == 0 {
                index += 1;
            } else if frame.written == 0 {
                self.queued -= frame.left();
                self.frames.remove(index);
                found = found.max(Withdrawn::Unbegun);
            } else {
                found = Withdrawn::Begun;
                let before = frame.left();
                frame.body = Body::Zeros;
                frame.tail = refusal.map(|refusal| ack_bytes(id, Some(refusal), 0, 0));
                frame.last |= refusal.is_some();
                self.queued = self.queued - before + frame.left();
                index += 1;
            }
        }
        found
    }

    /// The requests of which no byte was sent, not even of the request header.
    pub(crate) fn untouched(&self) -> impl Iterator<Item = u64> {
        let framed = self
            .frames
            .iter()
            .filter(|frame| frame.written == 0 && frame.head.length > DATA_BYTES);
        let whole = self
            .sources
            .iter()
            .filter(|source| source.request.is_some());
        framed
            .filter_map(|frame| frame.id)
            .chain(whole.map(|source| source.id))
    }

    /// Whether no byte of this request was sent.
    pub(crate) fn is_untouched(&self, id: u64) -> bool {
        self.untouched().any(|untouched| untouched == id)
    }

    /// The requests whose memory is still to be sent, with that memory.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (u64, &Cursor)> {
        let framed = self.frames.iter().filter_map(|frame| match &frame.body {
            Body::Memory(cursor) => frame.id.map(|id| (id, cursor)),
            _ => None,
        });
        framed.chain(
            self.sources
                .iter()
                .map(|source| (source.id, &source.cursor)),
        )
    }

    /// Sends until nothing is left, the kernel takes no more, or `budget` bytes are sent. Adds to `sent` the requests
    /// whose sources were handed to the kernel; returns the number of bytes.
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
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok((Flushed::Blocked, total));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The same through sealed records. A source counts as sent when it is sealed.
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
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok((Flushed::Blocked, total));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Cuts sources into frames, one frame of each in turn.
    fn cut(&mut self, frame_bytes_max: usize) {
        let frame_bytes_max = self
            .frame_bytes_max
            .map_or(frame_bytes_max, |peers| frame_bytes_max.min(peers as usize));
        while self.queued < QUEUED_BYTES_MIN && self.frames.len() < Self::FRAMES_MAX {
            let Some(mut source) = self.sources.pop_front() else {
                return;
            };
            let offset = source.base + source.cursor.buffers().bytes() - source.cursor.left();
            let total = source.base + source.cursor.buffers().bytes();
            let bytes = source.cursor.left().min(frame_bytes_max as u64);
            let spent = bytes == source.cursor.left();
            let last = spent && !source.more;
            let data = Frame::Data(Data {
                id: source.id,
                bytes: bytes as u32,
                last,
                offset,
            });
            let request = source.request.take();
            let heads: &[&Frame] = match &request {
                Some(request) => &[request, &data],
                None => &[&data],
            };
            let mut frame = QueuedFrame::new(
                heads,
                Body::Memory(source.cursor.take(bytes)),
                bytes as usize,
            );
            frame.id = Some(source.id);
            frame.last = spent;
            frame.tail = source
                .ack_credit
                .filter(|_| last)
                .map(|credit| ack_bytes(source.id, None, total, credit));
            self.push_frame(frame);
            if !spent {
                self.push_source(source);
            }
        }
    }

    fn push_frame(&mut self, frame: QueuedFrame) {
        self.queued += frame.left();
        self.frames.push_back(frame);
    }

    fn gather(&self, out: &mut Vectors) -> usize {
        let mut total = 0;
        for frame in &self.frames {
            let (added, left) = (frame.gather(out), frame.left());
            total += added;
            // A frame that was gathered only in part must be the last; another one needs up to three ranges.
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
            sent.extend(frame.id.filter(|_| frame.last));
            self.frames.pop_front();
        }
    }
}

/// How much of a request had been sent when it was withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Withdrawn {
    /// All of it, or there was none.
    Nothing,
    /// Whole frames, or none.
    Unbegun,
    /// A part of a frame.
    Begun,
}

/// The bounds of one flush.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlushLimits {
    pub(crate) frame_bytes_max: usize,
    pub(crate) budget: usize,
}

fn ack_bytes(id: u64, refusal: Option<Refusal>, bytes: u64, credit: u32) -> [u8; ACK_BYTES] {
    let mut out = Vec::with_capacity(ACK_BYTES);
    Frame::Ack(Ack {
        id,
        refusal,
        bytes,
        checksum: 0,
        credit,
    })
    .write(&mut out);
    let mut ack = [0; ACK_BYTES];
    ack.copy_from_slice(&out);
    ack
}

impl QueuedFrame {
    fn new(heads: &[&Frame], body: Body, body_bytes: usize) -> Self {
        let mut bytes = Vec::with_capacity(HEAD_BYTES_MAX);
        heads.iter().for_each(|head| head.write(&mut bytes));
        let mut head = Head {
            bytes: [0; HEAD_BYTES_MAX],
            length: bytes.len(),
        };
        head.bytes[..bytes.len()].copy_from_slice(&bytes);
        Self {
            id: None,
            head,
            body,
            body_bytes,
            tail: None,
            written: 0,
            last: false,
        }
    }

    fn left(&self) -> usize {
        self.head.length + self.body_bytes + self.tail.map_or(0, |tail| tail.len()) - self.written
    }

    /// Bytes of payload that are not written yet.
    fn payload_left(&self) -> usize {
        self.body_bytes
            - self
                .written
                .saturating_sub(self.head.length)
                .min(self.body_bytes)
    }

    /// Adds what is not written yet; says how many bytes it is.
    fn gather(&self, out: &mut Vectors) -> usize {
        let mut added = 0;
        let head = &self.head.bytes[..self.head.length];
        if let Some(rest) = head.get(self.written..).filter(|rest| !rest.is_empty()) {
            out.push(from_slice(rest));
            added += rest.len();
        }
        let body_left = self.payload_left();
        let body_written = self.body_bytes - body_left;
        let body_added = match &self.body {
            Body::None => 0,
            Body::Memory(cursor) => cursor.vectors(body_left, out),
            Body::Owned(bytes) => {
                out.push(from_slice(&bytes[body_written..]));
                body_left
            }
            Body::Zeros => {
                let piece = body_left.min(ZEROS.len());
                out.push(from_slice(&ZEROS[..piece]));
                piece
            }
        };
        added += body_added;
        // The acknowledgement may follow only when all of the payload was gathered.
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
        let (from, to) = (
            self.written.clamp(body_from, body_end),
            (self.written + count).clamp(body_from, body_end),
        );
        if let Body::Memory(cursor) = &mut self.body {
            cursor.advance(to - from);
        }
        self.written += count;
        if self.written >= body_end && matches!(self.body, Body::Memory(_)) {
            // The kernel has its last byte: the memory is released.
            self.body = Body::None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Buffers;

    const BYTES: usize = 100;

    fn source(id: u64, urgent: bool) -> PayloadSource {
        static MEMORY: [u8; BYTES] = [7; BYTES];
        // SAFETY: the memory is static, and a source is only read from.
        let buffers = unsafe { Buffers::borrowed(MEMORY.as_ptr().cast_mut(), BYTES) };
        PayloadSource {
            id,
            cursor: Cursor::new(buffers),
            base: 0,
            more: false,
            request: None,
            ack_credit: Some(1),
            urgent,
        }
    }

    /// A send queue in which one read of `BYTES` bytes was cut into a frame.
    fn answering() -> SendQueue {
        let mut queue = SendQueue::default();
        queue.push_source(source(5, false));
        queue.cut(1 << 20);
        queue
    }

    /// Of two urgent requests the second was served first, and of many the first was served last.
    #[test]
    fn urgent_requests_go_first_and_each_kind_in_turn() {
        let mut queue = SendQueue::default();
        for (id, urgent) in [(1, false), (2, true), (3, false), (4, true)] {
            queue.push_source(source(id, urgent));
        }
        queue.cut(60);
        let cut: Vec<u64> = queue.frames.iter().filter_map(|frame| frame.id).collect();
        assert_eq!(cut, [2, 4, 2, 4, 1, 3, 1, 3]);
    }

    fn bytes(queue: &SendQueue) -> Vec<u8> {
        let mut vectors = Vectors::new();
        queue.gather(&mut vectors);
        // SAFETY: the ranges are of the queue's frames, of static memory, and of zeros.
        let slice = |range: &libc::iovec| unsafe {
            std::slice::from_raw_parts(range.iov_base.cast::<u8>(), range.iov_len)
        };
        vectors
            .iter()
            .flat_map(|range| slice(range).to_vec())
            .collect()
    }

    /// A read was withdrawn when half of the acknowledgement behind its last byte was out; the other half became that of a
    /// refusal, and the two together said that less had been read than was.
    #[test]
    fn an_acknowledgement_that_is_half_out_stays_what_it_was() {
        let (mut queue, mut sent) = (answering(), Vec::new());
        let whole = bytes(&queue);
        let state = DATA_BYTES + BYTES + ACK_BYTES / 2;
        queue.advance(state, &mut sent);
        assert_eq!(
            queue.withdraw(5, Some(Refusal::Cancelled)),
            Withdrawn::Nothing
        );
        assert_eq!(bytes(&queue), whole[state..]);
        queue.advance(whole.len() - state, &mut sent);
        assert_eq!(sent, [5]);
    }

    #[test]
    fn a_frame_that_was_begun_goes_on_as_zeros_and_ends_as_a_refusal() {
        let (mut queue, mut sent) = (answering(), Vec::new());
        let whole = bytes(&queue);
        queue.advance(DATA_BYTES + 40, &mut sent);
        assert_eq!(
            queue.withdraw(5, Some(Refusal::Cancelled)),
            Withdrawn::Begun
        );
        assert_eq!(queue.sources().count(), 0, "its memory is let go of");
        let rest = bytes(&queue);
        assert_eq!(rest.len(), whole.len() - DATA_BYTES - 40);
        assert!(rest[..60].iter().all(|byte| *byte == 0));
        let (ack, _) = Frame::read(&rest[60..]).unwrap().unwrap();
        assert_eq!(
            ack,
            Frame::Ack(Ack {
                id: 5,
                refusal: Some(Refusal::Cancelled),
                bytes: 0,
                checksum: 0,
                credit: 0
            })
        );
        queue.advance(rest.len(), &mut sent);
        assert_eq!((sent.as_slice(), queue.is_empty()), ([5].as_slice(), true));
        assert_eq!(answering().withdraw(5, None), Withdrawn::Unbegun);
    }
}
