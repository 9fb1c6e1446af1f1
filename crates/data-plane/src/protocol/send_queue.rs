//! What a connection has to send: frames, and requests whose payload has not been cut into frames yet.

use std::collections::VecDeque;

use slackwater_wire::data::{ACK_BYTES, Ack, DATA_BYTES, Data, Frame, Refusal};

use super::{CloseReason, Piece, SLICE_BYTES_MIN, Span};

/// Frames in order, and the payload that the next frames are cut from, a frame of each request in turn.
#[derive(Debug)]
pub(super) struct SendQueue {
    frames: VecDeque<QueuedFrame>,
    /// Bytes of the frames, without those already written.
    queued: usize,
    sources: VecDeque<PayloadSource>,
    /// The largest payload of one frame: our own choice, and no more than the peer accepts.
    frame_bytes_max: usize,
}

/// Payload of one request that is to be sent.
#[derive(Debug)]
pub(super) struct PayloadSource {
    pub(super) id: u64,
    /// The bytes of the request that it covers.
    pub(super) from: u64,
    pub(super) to: u64,
    /// Another source follows with the next part of the payload.
    pub(super) more: bool,
    /// The request itself, before its first frame.
    pub(super) request: Option<Frame>,
    /// The acknowledgement follows its last frame.
    pub(super) acknowledged: bool,
    pub(super) urgent: bool,
}

#[derive(Debug)]
struct QueuedFrame {
    /// The request that its payload belongs to.
    id: Option<u64>,
    head: Head,
    body: Body,
    /// Payload bytes.
    body_bytes: usize,
    tail: Option<[u8; ACK_BYTES]>,
    written: usize,
    /// The last frame of its source.
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
    /// The memory of the request from this offset on.
    Memory(u64),
    Owned(Vec<u8>),
    /// Zeros: part of the frame was sent, and its memory has been released since.
    Zeros,
}

/// How much of a request had been sent when it was withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Withdrawn {
    /// All of it, or there was none.
    Nothing,
    /// Whole frames, or none.
    Unbegun,
    /// A part of a frame.
    Begun,
}

/// A request header and the header of its first frame.
const HEAD_BYTES_MAX: usize = Frame::BYTES_MAX + DATA_BYTES;
/// Frames are cut while fewer bytes are queued: enough for one system call, few enough that requests take turns.
const QUEUED_BYTES_MIN: usize = 512 << 10;

impl SendQueue {
    /// The most frames that are cut ahead.
    pub(super) const FRAMES_MAX: usize = 64;

    pub(super) fn new(frame_bytes_max: usize) -> Self {
        Self {
            frames: VecDeque::new(),
            queued: 0,
            sources: VecDeque::new(),
            frame_bytes_max,
        }
    }

    /// Whether there is nothing to send.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.sources.is_empty()
    }

    /// Keeps frames within what the peer accepts; an error if that is less than the smallest slice.
    pub(super) fn agree(&mut self, peers: u32) -> Result<(), CloseReason> {
        self.frame_bytes_max = self.frame_bytes_max.min(peers as usize);
        match peers as usize >= SLICE_BYTES_MIN {
            true => Ok(()),
            false => Err(CloseReason::protocol(
                "it takes smaller frames than any peer may ask for",
            )),
        }
    }

    /// The number of frames and sources in it.
    pub(super) fn len(&self) -> usize {
        self.frames.len() + self.sources.len()
    }

    /// A header without payload.
    #[inline]
    pub(super) fn push(&mut self, frame: &Frame) {
        self.push_frame(QueuedFrame::new(&[frame], Body::None, 0));
    }

    /// A header together with its payload, as bytes.
    pub(super) fn push_bytes(&mut self, bytes: Vec<u8>) {
        let length = bytes.len();
        self.push_frame(QueuedFrame::new(&[], Body::Owned(bytes), length));
    }

    /// Queues a request's payload: urgent sources before the others, each kind in the order of arrival.
    #[inline]
    pub(super) fn push_source(&mut self, source: PayloadSource) {
        let at = match source.urgent {
            true => self.sources.partition_point(|other| other.urgent),
            false => self.sources.len(),
        };
        self.sources.insert(at, source);
    }

    /// Releases a request's memory. The rest of a frame that was partly sent goes out as zeros, followed by `refusal`
    /// as the acknowledgement, and counts as a source that was sent. Says how much had been sent.
    pub(super) fn withdraw(&mut self, id: u64, refusal: Option<Refusal>) -> Withdrawn {
        let before = self.sources.len();
        self.sources.retain(|source| source.id != id);
        let mut found = match self.sources.len() < before {
            true => Withdrawn::Unbegun,
            false => Withdrawn::Nothing,
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
                frame.tail = refusal.map(|refusal| ack_bytes(id, Some(refusal), 0));
                frame.last |= refusal.is_some();
                self.queued = self.queued - before + frame.left();
                index += 1;
            }
        }
        found
    }

    /// The requests of which no byte was sent, not even of the request header.
    pub(super) fn untouched(&self) -> impl Iterator<Item = u64> {
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
    pub(super) fn is_untouched(&self, id: u64) -> bool {
        self.untouched().any(|untouched| untouched == id)
    }

    /// Shows what to send, in order; `take` says how many bytes of a piece it has room for. Ends with the first piece that
    /// is not taken whole; returns how many bytes were taken.
    pub(super) fn gather(&mut self, mut take: impl FnMut(Piece<'_, ()>) -> usize) -> usize {
        self.cut();
        let mut total = 0;
        for frame in &self.frames {
            let (taken, left) = (frame.gather(&mut take), frame.left());
            total += taken;
            if taken < left {
                break;
            }
        }
        total
    }

    /// `count` bytes were sent; adds to `sent` the requests whose sources were sent with them.
    #[inline]
    pub(super) fn wrote(&mut self, mut count: usize, sent: &mut Vec<u64>) {
        self.queued -= count;
        while let Some(frame) = self.frames.front_mut() {
            let step = frame.left().min(count);
            frame.written += step;
            count -= step;
            if frame.left() > 0 {
                return;
            }
            sent.extend(frame.id.filter(|_| frame.last));
            self.frames.pop_front();
        }
    }

    /// Cuts sources into frames, one frame of each in turn.
    #[inline]
    fn cut(&mut self) {
        while self.queued < QUEUED_BYTES_MIN && self.frames.len() < Self::FRAMES_MAX {
            let Some(mut source) = self.sources.pop_front() else {
                return;
            };
            let (offset, left) = (source.from, source.to - source.from);
            let bytes = left.min(self.frame_bytes_max as u64);
            let spent = bytes == left;
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
            let mut frame = QueuedFrame::new(heads, Body::Memory(offset), bytes as usize);
            frame.id = Some(source.id);
            frame.last = spent;
            frame.tail =
                (source.acknowledged && last).then(|| ack_bytes(source.id, None, source.to));
            self.push_frame(frame);
            if !spent {
                source.from += bytes;
                self.push_source(source);
            }
        }
    }

    #[inline]
    fn push_frame(&mut self, frame: QueuedFrame) {
        self.queued += frame.left();
        self.frames.push_back(frame);
    }
}

fn ack_bytes(id: u64, refusal: Option<Refusal>, bytes: u64) -> [u8; ACK_BYTES] {
    let mut out = Vec::with_capacity(ACK_BYTES);
    Frame::Ack(Ack { id, refusal, bytes }).write(&mut out);
    let mut ack = [0; ACK_BYTES];
    ack.copy_from_slice(&out);
    ack
}

impl QueuedFrame {
    #[inline]
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

    #[inline]
    fn left(&self) -> usize {
        self.head.length + self.body_bytes + self.tail.map_or(0, |tail| tail.len()) - self.written
    }

    /// Bytes of payload that are not written yet.
    #[inline]
    fn payload_left(&self) -> usize {
        let written = self.written.saturating_sub(self.head.length);
        self.body_bytes - written.min(self.body_bytes)
    }

    /// Shows what is not written yet; says how many bytes were taken.
    fn gather(&self, take: &mut impl FnMut(Piece<'_, ()>) -> usize) -> usize {
        let (mut taken, head) = (0, &self.head.bytes[..self.head.length]);
        if let Some(rest) = head.get(self.written..).filter(|rest| !rest.is_empty()) {
            taken += take(Piece::Bytes(rest));
            if taken < rest.len() {
                return taken;
            }
        }
        let bytes = self.payload_left();
        let written = self.body_bytes - bytes;
        if bytes > 0 {
            let of_body = match &self.body {
                Body::None => 0,
                Body::Memory(offset) => {
                    let id = self.id.unwrap_or_default();
                    let span = Span {
                        id,
                        offset: offset + written as u64,
                        bytes,
                    };
                    take(Piece::Memory((), span))
                }
                Body::Owned(bytes) => take(Piece::Bytes(&bytes[written..])),
                Body::Zeros => take(Piece::Zeros(bytes)),
            };
            taken += of_body;
            // The acknowledgement follows only when all of the payload was taken.
            if of_body < bytes {
                return taken;
            }
        }
        if let Some(tail) = &self.tail {
            let from = self.written.saturating_sub(head.len() + self.body_bytes);
            taken += take(Piece::Bytes(&tail[from..]));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 100;

    fn source(id: u64, urgent: bool) -> PayloadSource {
        PayloadSource {
            id,
            from: 0,
            to: BYTES as u64,
            more: false,
            request: None,
            acknowledged: true,
            urgent,
        }
    }

    /// A send queue in which one read of `BYTES` bytes was cut into a frame.
    fn answering() -> SendQueue {
        let mut queue = SendQueue::new(1 << 20);
        queue.push_source(source(5, false));
        queue.cut();
        queue
    }

    fn bytes(queue: &mut SendQueue) -> Vec<u8> {
        let mut out = Vec::new();
        queue.gather(|piece| {
            let before = out.len();
            match piece {
                Piece::Bytes(bytes) => out.extend_from_slice(bytes),
                Piece::Memory((), span) => out.resize(before + span.bytes, 7),
                Piece::Zeros(count) => out.resize(before + count, 0),
            }
            out.len() - before
        });
        out
    }

    /// Of two urgent requests the second was served first, and of many the first was served last.
    #[test]
    fn urgent_requests_go_first_and_each_kind_in_turn() {
        let mut queue = SendQueue::new(60);
        for (id, urgent) in [(1, false), (2, true), (3, false), (4, true)] {
            queue.push_source(source(id, urgent));
        }
        queue.cut();
        let cut: Vec<u64> = queue.frames.iter().filter_map(|frame| frame.id).collect();
        assert_eq!(cut, [2, 4, 2, 4, 1, 3, 1, 3]);
    }

    /// A read was withdrawn when half of the acknowledgement behind its last byte was out; the other half became that of a
    /// refusal, and the two together said that less had been read than was.
    #[test]
    fn an_acknowledgement_that_is_half_out_stays_what_it_was() {
        let (mut queue, mut sent) = (answering(), Vec::new());
        let whole = bytes(&mut queue);
        let state = DATA_BYTES + BYTES + ACK_BYTES / 2;
        queue.wrote(state, &mut sent);
        assert_eq!(
            queue.withdraw(5, Some(Refusal::Cancelled)),
            Withdrawn::Nothing
        );
        assert_eq!(bytes(&mut queue), whole[state..]);
        queue.wrote(whole.len() - state, &mut sent);
        assert_eq!(sent, [5]);
    }

    #[test]
    fn a_frame_that_was_begun_goes_on_as_zeros_and_ends_as_a_refusal() {
        let (mut queue, mut sent) = (answering(), Vec::new());
        let whole = bytes(&mut queue);
        queue.wrote(DATA_BYTES + 40, &mut sent);
        assert_eq!(
            queue.withdraw(5, Some(Refusal::Cancelled)),
            Withdrawn::Begun
        );
        let rest = bytes(&mut queue);
        assert_eq!(rest.len(), whole.len() - DATA_BYTES - 40);
        assert!(rest[..60].iter().all(|byte| *byte == 0));
        let (ack, _) = Frame::read(&rest[60..]).unwrap().unwrap();
        let expected = Ack {
            id: 5,
            refusal: Some(Refusal::Cancelled),
            bytes: 0,
        };
        assert_eq!(ack, Frame::Ack(expected));
        queue.wrote(rest.len(), &mut sent);
        assert_eq!((sent.as_slice(), queue.is_empty()), ([5].as_slice(), true));
        assert_eq!(answering().withdraw(5, None), Withdrawn::Unbegun);
    }
}
