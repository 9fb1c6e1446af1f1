//! One borrowed connection, driven with blocking calls by the thread that borrowed it.

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
    /// The socket options in force, so that they are set again only when they change: the timeout of blocking calls,
    /// and the number of bytes from which on the kernel wakes a reader.
    timeout: Duration,
    receive_low_water: usize,
    idle_since: Instant,
    /// Headers to be sent.
    head: Vec<u8>,
}

/// Why a connection cannot be used any more, with the cause for the caller.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection broke, and the request can be tried again on a new one: it is a read, or no byte of it was sent.
    Retryable(Cause),
    Final(Cause),
}

/// How long a request may take, and how long its peer may be silent meanwhile.
#[derive(Clone, Copy)]
struct TimeLimits {
    until: Instant,
    silence: Duration,
}

/// A frame being sent: the part that the kernel has not taken yet.
struct OutgoingFrame<'a> {
    head: &'a [u8],
    body: Cursor,
}

/// How much of a write was sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SendProgress {
    Nothing,
    /// Part of a header. Only the rest of that header can follow.
    Torn,
    /// Headers, and payload up to this many bytes before the end of a frame.
    But(u64),
}

impl ClientConnection {
    /// A connection on which both greetings were exchanged.
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

    /// Whether an idle connection has ended, or has received bytes that no request asked for. No loop watches it.
    pub(super) fn is_over(&self) -> bool {
        let seen = SockRef::from(&*self.stream).recv_with_flags(
            &mut [MaybeUninit::uninit()],
            libc::MSG_PEEK | libc::MSG_DONTWAIT,
        );
        !seen.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Closes it and discards what the kernel has not sent yet: no byte of a failed request is sent after its caller
    /// has the error. What the peer's kernel has received by then may still be applied; see rule 2 in the README.
    pub(super) fn abort(self) {
        // Without the option the kernel sends the rest first, which the peer must expect anyway.
        let _ = SockRef::from(&*self.stream).set_linger(Some(Duration::ZERO));
    }

    /// Carries one request. After an error the connection is closed.
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
        // A small answer is one frame and its acknowledgement: one call receives all of it, each part into its own
        // buffer. A refusal is shorter, and its last bytes are received into the local ranges, whose contents are
        // undefined after a failed read.
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

    /// The answer to a small read is an acknowledgement alone, `got` bytes of which are received: the first in `head`,
    /// the others at the start of the local ranges, and behind those in `tail`.
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

    /// Gives up a write whose time has passed: the rest of its frame is sent as zeros, then `cancel`. Waits up to
    /// `drain` for the target's answer, after which the target applies nothing more.
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

    /// Receives the payload of a frame into the local ranges, and the start of what follows it into the receive buffer.
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
        // At least this many bytes follow in every case, so one call can wait for both.
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

    /// Receives into ranges that the caller keeps valid, as soon as any bytes have arrived.
    fn receive(&mut self, vectors: &mut Vectors, limits: TimeLimits) -> Result<usize, Failure> {
        self.check_deadline(limits)?;
        self.set_receive_low_water(1)?;
        self.receive_now(vectors, 0)
            .map_err(|error| limits.broken(&error))
    }

    /// The same once `bytes` bytes have arrived, or the connection has ended. A wake for each segment costs both ends
    /// more than the copy of its bytes.
    fn receive_many(
        &mut self,
        vectors: &mut Vectors,
        bytes: usize,
        limits: TimeLimits,
    ) -> Result<usize, Failure> {
        self.check_deadline(limits)?;
        self.set_receive_low_water(bytes)?;
        // A blocking receive would wait for this many bytes beyond those it has already taken, possibly for ever.
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

    /// Sets the timeout of the next blocking call to the time left; an error when there is none.
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
        // Rounded up, so that calls with the same limits find the option already set.
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
    /// The failure that an error of the kernel stands for.
    fn broken(self, error: &io::Error) -> Failure {
        Failure::Final(match error.kind() {
            io::ErrorKind::WouldBlock if now() < self.until => Cause::TimedOut(Deadline::Progress),
            io::ErrorKind::WouldBlock => Cause::TimedOut(Deadline::Total),
            _ => lost(error),
        })
    }
}

impl Failure {
    /// Lets the request be tried again, if the connection broke.
    fn without_effect(self) -> Self {
        match self {
            Self::Final(cause @ Cause::Lost(_)) => Self::Retryable(cause),
            other => other,
        }
    }
}

/// Bytes that were received behind a payload.
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
