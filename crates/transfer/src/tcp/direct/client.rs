//! One borrowed connection, driven by its borrower.

use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_wait::now;
use slackwater_wire::data::{ACK_BYTES, Ack, DATA_BYTES, Data, Frame, Op, Request};
use socket2::SockRef;

use super::DirectRequest;
use crate::cause::{Cause, Deadline};
use crate::tcp::config::{SLICE_BYTES_MIN, TcpConfig};
use crate::tcp::conn::LOW_WATER_BYTES;
use crate::tcp::cursor::Cursor;
use crate::tcp::io::{
    Vectors, from_slice, into_slice, receive, send, set_receive_low_water, wait_readable,
};
use crate::tcp::send_queue::ZEROS;

#[derive(Debug)]
pub(super) struct ClientConnection {
    stream: Arc<TcpStream>,
    next_id: u64,
    /// What the kernel was told, so that it is told again only when it changes: how long it may block, and from how many
    /// bytes on it wakes a reader.
    timeout: Duration,
    receive_low_water: usize,
    idle_since: Instant,
    /// Headers that go out.
    head: Vec<u8>,
}

/// Why a line is of no more use: with what is to be told, unless the request can be tried again on a new one.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection broke, and nothing of the request counts: it is a read, or no byte of it has gone out.
    Retryable(Cause),
    Final(Cause),
}

/// How long a request may take, and how long its peer may be silent meanwhile.
#[derive(Clone, Copy)]
struct TimeLimits {
    until: Instant,
    silence: Duration,
}

/// A frame on its way out, without what the kernel has taken.
struct OutgoingFrame<'a> {
    head: &'a [u8],
    body: Cursor,
}

/// How much of a write has gone out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SendProgress {
    Nothing,
    /// Part of a header, which nothing can follow but its rest.
    Torn,
    /// Headers, and payload up to so many bytes before the end of a frame.
    But(u64),
}

impl ClientConnection {
    /// A connection that has been greeted.
    pub(super) fn new(stream: TcpStream) -> Self {
        let stream = Arc::new(stream);
        Self {
            stream,
            next_id: 1,
            timeout: Duration::ZERO,
            receive_low_water: 1,
            idle_since: now(),
            head: Vec::new(),
        }
    }

    pub(super) fn stream(&self) -> Arc<TcpStream> {
        Arc::clone(&self.stream)
    }

    pub(super) fn idle_since(&self) -> Instant {
        self.idle_since
    }

    /// Whether an idle connection is of no more use: no loop watches it, and there is nothing that it should receive.
    pub(super) fn is_over(&self) -> bool {
        let seen = SockRef::from(&*self.stream).recv_with_flags(
            &mut [MaybeUninit::uninit()],
            libc::MSG_PEEK | libc::MSG_DONTWAIT,
        );
        !seen.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Closes it and throws away what the kernel still has to send: nothing of a request that has failed goes out after
    /// its caller was told. What the peer's kernel holds by then is its own; see rule 2 in the README.
    pub(super) fn abort(self) {
        // Without it the close is a slower one, no worse than what a peer may see anyway.
        let _ = SockRef::from(&*self.stream).set_linger(Some(Duration::ZERO));
    }

    /// Carries one request. An error ends the line.
    pub(super) fn carry(
        &mut self,
        config: &TcpConfig,
        call: &DirectRequest<'_>,
    ) -> Result<Result<(), Cause>, Failure> {
        let limits = TimeLimits {
            until: call.deadline,
            silence: config.progress_timeout,
        };
        let time_left = now().until(call.deadline);
        if time_left.is_zero() {
            return Ok(Err(Cause::TimedOut(Deadline::Total)));
        }
        self.set_timeout(time_left.min(limits.silence))?;
        let request = Request {
            id: self.next_id,
            op: call.op,
            urgent: false,
            offset: call.remote.offset,
            bytes: call.buffers.bytes(),
            time_left_nanos: time_left.as_nanos().try_into().unwrap_or(u64::MAX),
            capability: call.remote.capability,
        };
        self.next_id += 1;
        let ack = match call.op {
            Op::Read => self
                .read(&request, call, limits)
                .map_err(Failure::without_effect)?,
            Op::Write => self.write(&request, call, limits, config)?,
        };
        self.idle_since = now();
        match ack.refusal {
            Some(refusal) => Ok(Err(Cause::Refused(refusal))),
            None if ack.bytes == request.bytes => Ok(Ok(())),
            None => Err(Failure::Final(Cause::Protocol(
                "an acknowledgement of other bytes".to_owned(),
            ))),
        }
    }

    fn read(
        &mut self,
        request: &Request,
        call: &DirectRequest<'_>,
        limits: TimeLimits,
    ) -> Result<Ack, Failure> {
        let mut cursor = Cursor::new(call.buffers.clone());
        self.begin_head(request);
        self.send_head(limits)?;
        // A small answer is one frame and its acknowledgement: all of it is taken in one call, each part where it
        // belongs. A refusal is shorter, and its last bytes lie where payload would have: of no meaning, like all
        // memory of a failed read.
        if request.bytes <= SLICE_BYTES_MIN as u64 {
            return self.read_small(request, &mut cursor, limits);
        }
        let mut received = ReceiveBuffer::default();
        loop {
            match self.frame(&mut received, limits)? {
                Frame::Ack(ack)
                    if ack.id == request.id && (ack.refusal.is_some() || cursor.left() == 0) =>
                {
                    return Ok(ack);
                }
                Frame::Data(data) if fits(&data, request.id, &cursor) => {
                    self.fill(&mut cursor, &data, &mut received, limits)?;
                }
                _ => return Err(protocol()),
            }
        }
    }

    fn read_small(
        &mut self,
        request: &Request,
        cursor: &mut Cursor,
        limits: TimeLimits,
    ) -> Result<Ack, Failure> {
        let (mut head, mut tail) = ([0u8; DATA_BYTES], [0u8; ACK_BYTES]);
        let body = request.bytes as usize;
        let whole = DATA_BYTES + body + ACK_BYTES;
        let mut got = 0;
        let mut vectors = Vectors::new();
        while got < whole {
            vectors.clear();
            if got < DATA_BYTES {
                vectors.push(into_slice(&mut head[got..]));
            }
            let left = cursor.left() as usize;
            // The acknowledgement follows the last byte of payload, not the last range that had room in this call.
            if cursor.vectors(left, &mut vectors) == left {
                let tail_from = got.saturating_sub(DATA_BYTES + body);
                vectors.push(into_slice(&mut tail[tail_from..]));
            }
            let count = self.receive(&mut vectors, limits)?;
            let placed = (got + count).clamp(DATA_BYTES, DATA_BYTES + body)
                - got.clamp(DATA_BYTES, DATA_BYTES + body);
            cursor.advance(placed);
            got += count;
            if got >= DATA_BYTES && got < whole && head[0] != Data::KIND {
                return self.refused(&head, cursor, &tail, (got, limits));
            }
        }
        let (data, ack) = (Frame::read(&head), Frame::read(&tail));
        match (data, ack) {
            (Ok(Some((Frame::Data(data), _))), Ok(Some((Frame::Ack(ack), _))))
                if data.id == request.id
                    && data.last
                    && ack.id == request.id
                    && data.bytes as usize == body =>
            {
                Ok(ack)
            }
            _ => Err(protocol()),
        }
    }

    /// The answer to a small read is an acknowledgement alone, `got` bytes of which are taken: the first in `head`, the
    /// others at the start of the payload's place, and behind that.
    fn refused(
        &mut self,
        head: &[u8; DATA_BYTES],
        place: &Cursor,
        tail: &[u8],
        (got, limits): (usize, TimeLimits),
    ) -> Result<Ack, Failure> {
        let mut bytes = [0; ACK_BYTES];
        bytes[..DATA_BYTES].copy_from_slice(head);
        let (mut at, got) = (DATA_BYTES, got.min(ACK_BYTES));
        for span in place.buffers().spans() {
            let take = span.bytes().min(got - at);
            // SAFETY: `take` bytes of the span were just received; the span is held by the call's buffers, and `bytes`
            // is a local array with room for them.
            unsafe { std::ptr::copy_nonoverlapping(span.start(), bytes[at..].as_mut_ptr(), take) };
            at += take;
        }
        bytes[at..got].copy_from_slice(&tail[..got - at]);
        let mut at = got;
        while at < ACK_BYTES {
            let mut vectors = vec![into_slice(&mut bytes[at..])];
            at += self.receive(&mut vectors, limits)?;
        }
        match Frame::read(&bytes) {
            Ok(Some((Frame::Ack(ack), _))) if ack.refusal.is_some() => Ok(ack),
            _ => Err(protocol()),
        }
    }

    fn write(
        &mut self,
        request: &Request,
        call: &DirectRequest<'_>,
        limits: TimeLimits,
        config: &TcpConfig,
    ) -> Result<Ack, Failure> {
        let mut sent = SendProgress::Nothing;
        let written = self.write_frames(request, call, (limits, config.slice_bytes), &mut sent);
        let answered = written.and_then(|()| self.answer(request.id, limits));
        match (&answered, sent) {
            (Err(Failure::Final(Cause::TimedOut(_))), SendProgress::But(owed)) => {
                if let Err(Failure::Retryable(cause) | Failure::Final(cause)) =
                    self.take_back(request.id, owed, config.drain_timeout)
                {
                    tracing::debug!(%cause, "no word about a write that was given up");
                }
                answered
            }
            (Err(_), SendProgress::Nothing) => answered.map_err(Failure::without_effect),
            _ => answered,
        }
    }

    fn write_frames(
        &mut self,
        request: &Request,
        call: &DirectRequest<'_>,
        (limits, slice): (TimeLimits, usize),
        sent: &mut SendProgress,
    ) -> Result<(), Failure> {
        let mut cursor = Cursor::new(call.buffers.clone());
        self.begin_head(request);
        while cursor.left() > 0 {
            let bytes = cursor.left().min(slice as u64);
            let offset = request.bytes - cursor.left();
            let last = bytes == cursor.left();
            let mut head = std::mem::take(&mut self.head);
            Frame::Data(Data {
                id: request.id,
                bytes: bytes as u32,
                last,
                offset,
            })
            .write(&mut head);
            let mut frame = OutgoingFrame {
                head: &head,
                body: cursor.take(bytes),
            };
            let done = self.send(&mut frame, limits);
            *sent = match (frame.head.len(), *sent) {
                (0, _) => SendProgress::But(frame.body.left()),
                (left, before) if left == head.len() => before,
                _ => SendProgress::Torn,
            };
            done?;
            head.clear();
            self.head = head;
        }
        Ok(())
    }

    /// A write that was not over in time: as on a lane, the rest of its frame goes out as zeros, and then that it is
    /// given up; the peer's word is waited for a little, after which it applies nothing more.
    fn take_back(&mut self, id: u64, owed: u64, drain: Duration) -> Result<Ack, Failure> {
        let limits = TimeLimits {
            until: now() + drain,
            silence: drain,
        };
        let mut left = owed as usize;
        while left > 0 {
            let zeros = &ZEROS[..left.min(ZEROS.len())];
            self.send_bytes(zeros, limits)?;
            left -= zeros.len();
        }
        let mut cancel = Vec::new();
        Frame::Cancel { id }.write(&mut cancel);
        self.send_bytes(&cancel, limits)?;
        self.answer(id, limits)
    }

    fn answer(&mut self, id: u64, limits: TimeLimits) -> Result<Ack, Failure> {
        match self.frame(&mut ReceiveBuffer::default(), limits)? {
            Frame::Ack(ack) if ack.id == id => Ok(ack),
            _ => Err(protocol()),
        }
    }

    fn begin_head(&mut self, request: &Request) {
        self.head.clear();
        Frame::Request(*request).write(&mut self.head);
    }

    fn send_head(&mut self, limits: TimeLimits) -> Result<(), Failure> {
        let head = std::mem::take(&mut self.head);
        let sent = self.send_bytes(&head, limits);
        self.head = head;
        sent
    }

    fn send_bytes(&mut self, bytes: &[u8], limits: TimeLimits) -> Result<(), Failure> {
        self.send(
            &mut OutgoingFrame {
                head: bytes,
                body: Cursor::new(Default::default()),
            },
            limits,
        )
    }

    fn send(&mut self, frame: &mut OutgoingFrame<'_>, limits: TimeLimits) -> Result<(), Failure> {
        let mut vectors = Vectors::new();
        while !frame.head.is_empty() || frame.body.left() > 0 {
            self.check_deadline(limits)?;
            vectors.clear();
            if !frame.head.is_empty() {
                vectors.push(from_slice(frame.head));
            }
            frame.body.vectors(frame.body.left() as usize, &mut vectors);
            // SAFETY: the ranges are of the frame's header and cursor, both kept for the call.
            let count = match unsafe { send(self.stream.as_fd(), &mut vectors, 0) } {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(limits.broken(&error)),
            };
            let of_head = count.min(frame.head.len());
            frame.head = &frame.head[of_head..];
            frame.body.advance(count - of_head);
        }
        Ok(())
    }

    /// The next header.
    fn frame(
        &mut self,
        received: &mut ReceiveBuffer,
        limits: TimeLimits,
    ) -> Result<Frame, Failure> {
        loop {
            if let Some((frame, length)) =
                Frame::read(&received.bytes[..received.length]).map_err(|_| protocol())?
            {
                received.take(length);
                return Ok(frame);
            }
            let mut vectors = vec![into_slice(&mut received.bytes[received.length..])];
            received.length += self.receive(&mut vectors, limits)?;
        }
    }

    /// The payload of a frame, straight to its place; the start of what follows it goes to the inlet.
    fn fill(
        &mut self,
        cursor: &mut Cursor,
        data: &Data,
        received: &mut ReceiveBuffer,
        limits: TimeLimits,
    ) -> Result<(), Failure> {
        let bytes = data.bytes as usize;
        let early = received.length.min(bytes);
        cursor.copy_in(&received.bytes[..early]);
        received.take(early);
        let mut left = bytes - early;
        // So many bytes come behind it whatever happens, so they can be waited for together with it.
        let behind = if data.last {
            ACK_BYTES
        } else {
            ACK_BYTES.min(DATA_BYTES)
        };
        let mut vectors = Vectors::new();
        while left > 0 {
            vectors.clear();
            let direct = cursor.vectors(left, &mut vectors);
            let mut asked = direct;
            if direct == left {
                vectors.push(into_slice(&mut received.bytes[..behind]));
                asked += behind;
            }
            let count = self.receive_many(&mut vectors, asked.min(LOW_WATER_BYTES), limits)?;
            cursor.advance(count.min(direct));
            received.length = count.saturating_sub(direct);
            left -= count.min(direct);
        }
        Ok(())
    }

    /// Reads into ranges that the caller keeps, as soon as anything is there.
    fn receive(&mut self, vectors: &mut Vectors, limits: TimeLimits) -> Result<usize, Failure> {
        self.check_deadline(limits)?;
        self.set_receive_low_water(1)?;
        self.receive_now(vectors, 0)
            .map_err(|error| limits.broken(&error))
    }

    /// The same once `bytes` are there, unless the connection ends: to be woken for each segment costs both sides more
    /// than its copy.
    fn receive_many(
        &mut self,
        vectors: &mut Vectors,
        bytes: usize,
        limits: TimeLimits,
    ) -> Result<usize, Failure> {
        self.check_deadline(limits)?;
        self.set_receive_low_water(bytes)?;
        // A read that blocks would wait for so many beyond those that it has taken already, and may wait for ever.
        let ready =
            wait_readable(self.stream.as_fd(), self.timeout).and_then(|ready| match ready {
                true => self.receive_now(vectors, libc::MSG_DONTWAIT),
                false => Err(io::ErrorKind::WouldBlock.into()),
            });
        ready.map_err(|error| limits.broken(&error))
    }

    fn receive_now(&mut self, vectors: &mut Vectors, flags: i32) -> io::Result<usize> {
        loop {
            // SAFETY: every caller passes ranges of its own buffers and of cursors that it holds.
            return match unsafe { receive(self.stream.as_fd(), vectors, flags) } {
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                received => received,
            };
        }
    }

    fn set_receive_low_water(&mut self, bytes: usize) -> Result<(), Failure> {
        if bytes != self.receive_low_water {
            set_receive_low_water(self.stream.as_fd(), bytes)
                .map_err(|error| Failure::Final(lost(&error)))?;
            self.receive_low_water = bytes;
        }
        Ok(())
    }

    /// Before every call that may block: that it blocks no longer than there is time, however little it did before.
    fn check_deadline(&mut self, limits: TimeLimits) -> Result<(), Failure> {
        let left = now().until(limits.until);
        if left.is_zero() {
            return Err(Failure::Final(Cause::TimedOut(Deadline::Total)));
        }
        if left < self.timeout {
            self.set_timeout(left)
        } else {
            Ok(())
        }
    }

    fn set_timeout(&mut self, limit: Duration) -> Result<(), Failure> {
        // Rounded up, so that calls with the same patience find it set.
        let granule = if limit < Duration::from_secs(1) {
            1
        } else {
            100
        };
        let limit = Duration::from_millis((limit.as_millis() as u64 / granule + 1) * granule);
        if limit != self.timeout {
            let set = self
                .stream
                .set_read_timeout(Some(limit))
                .and_then(|()| self.stream.set_write_timeout(Some(limit)));
            set.map_err(|error| Failure::Final(lost(&error)))?;
            self.timeout = limit;
        }
        Ok(())
    }
}

impl TimeLimits {
    /// What it means that the kernel did not do it.
    fn broken(self, error: &io::Error) -> Failure {
        Failure::Final(match error.kind() {
            io::ErrorKind::WouldBlock if now() < self.until => Cause::TimedOut(Deadline::Progress),
            io::ErrorKind::WouldBlock => Cause::TimedOut(Deadline::Total),
            _ => lost(error),
        })
    }
}

impl Failure {
    /// The request can be tried again if it was the connection that broke.
    fn without_effect(self) -> Self {
        match self {
            Self::Final(cause @ Cause::Lost(_)) => Self::Retryable(cause),
            other => other,
        }
    }
}

/// What was read behind a payload.
#[derive(Debug)]
struct ReceiveBuffer {
    bytes: [u8; 256],
    length: usize,
}

impl Default for ReceiveBuffer {
    fn default() -> Self {
        Self {
            bytes: [0; 256],
            length: 0,
        }
    }
}

impl ReceiveBuffer {
    fn take(&mut self, count: usize) {
        self.bytes.copy_within(count..self.length, 0);
        self.length -= count;
    }
}

fn fits(data: &Data, id: u64, cursor: &Cursor) -> bool {
    let at = cursor.buffers().bytes() - cursor.left();
    data.id == id && data.offset == at && u64::from(data.bytes) <= cursor.left()
}

fn lost(error: &io::Error) -> Cause {
    Cause::Lost(error.to_string())
}

fn protocol() -> Failure {
    Failure::Final(Cause::Protocol("an answer to something else".to_owned()))
}
