//! The synchronous shortcut: a caller with one request borrows an idle connection and drives it itself, with blocking
//! calls. No thread is woken on this side, which is most of what a small request costs.
//!
//! The target cannot tell such a connection from a lane.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_net::TcpLiveness;
use slackwater_wait::now;
use slackwater_wire::Incarnation;
use slackwater_wire::data::{ACK_BYTES, Ack, DATA_BYTES, Data, Features, Frame, GREETING_BYTES, Greeting, Op, Request};
use socket2::{SockRef, TcpKeepalive};

use super::config::SLICE_BYTES_MIN;
use super::cursor::Cursor;
use super::io::{Vectors, from_slice, into_slice, receive, send};
use super::seal::SealError;
use super::shared::Shared;
use crate::cause::{Cause, Clock};
use crate::job::{Buffers, Remote};
use crate::segment::Segment;

/// Connections that callers borrow.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    peers: Mutex<BTreeMap<Incarnation, Pool>>,
}

#[derive(Debug, Default)]
struct Pool {
    idle: Vec<Line>,
    borrowed: usize,
}

/// One connection.
#[derive(Debug)]
struct Line {
    stream: TcpStream,
    next_id: u64,
    /// What the kernel was told, so that it is told again only when it changes.
    timeout: Duration,
    idle_since: Instant,
}

/// One transfer.
pub(crate) struct Call<'a> {
    pub(crate) op: Op,
    pub(crate) buffers: Buffers,
    pub(crate) remote: &'a Remote,
    pub(crate) deadline: Instant,
}

/// Why a line is of no more use: with what is to be told, unless it can be tried again on a new one.
enum Broken {
    /// Nothing came back, as when the peer had closed an idle connection.
    Silent(Cause),
    Failed(Cause),
}

impl Direct {
    /// Carries one request; none when as many callers as may be have borrowed a connection.
    pub(crate) fn carry(&self, shared: &Shared, segment: &Segment, call: Call<'_>) -> Option<Result<(), Cause>> {
        let mut line = {
            let mut peers = self.lock();
            let pool = peers.entry(segment.incarnation).or_default();
            if pool.borrowed >= shared.config.lanes_per_peer {
                return None;
            }
            pool.borrowed += 1;
            pool.idle.pop()
        };
        let mut outcome = Err(Cause::Closed);
        for try_again in [true, false] {
            let was_idle = line.is_some();
            let ready = match line.take() {
                Some(line) => Ok(line),
                None => connect(shared, segment, call.deadline),
            };
            match ready.map_err(Broken::Failed).and_then(|ready| ready.carry(shared, &call)) {
                Ok((ready, result)) => {
                    (line, outcome) = (Some(ready), result);
                    break;
                }
                Err(Broken::Silent(_)) if was_idle && try_again => {}
                Err(Broken::Silent(cause) | Broken::Failed(cause)) => {
                    outcome = Err(cause);
                    break;
                }
            }
        }
        let mut peers = self.lock();
        let pool = peers.entry(segment.incarnation).or_default();
        pool.borrowed -= 1;
        pool.idle.extend(line);
        Some(outcome)
    }

    /// Closes connections that have been idle for too long, and those that their peer has closed.
    pub(crate) fn collect(&self, idle_before: Instant) {
        self.lock().retain(|_, pool| {
            pool.idle.retain(|line| line.idle_since > idle_before && !line.is_over());
            pool.borrowed > 0 || !pool.idle.is_empty()
        });
    }

    /// Whether there is anything to collect.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(crate) fn close(&self) {
        self.lock().values_mut().for_each(|pool| pool.idle.clear());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Incarnation, Pool>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Whether an idle connection is of no more use: no loop watches it, and there is nothing that it should receive.
    fn is_over(&self) -> bool {
        let seen = SockRef::from(&self.stream)
            .recv_with_flags(&mut [MaybeUninit::uninit()], libc::MSG_PEEK | libc::MSG_DONTWAIT);
        !seen.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Carries one request; gives itself back when it can carry another.
    fn carry(mut self, shared: &Shared, call: &Call<'_>) -> Result<(Self, Result<(), Cause>), Broken> {
        let time_left = now().until(call.deadline);
        if time_left.is_zero() {
            return Ok((self, Err(Cause::TimedOut(Clock::Total))));
        }
        let limit = time_left.min(shared.config.progress_timeout);
        self.set_timeout(limit).map_err(|error| Broken::Silent(lost(&error)))?;
        let id = self.next_id;
        self.next_id += 1;
        let request = Request {
            id,
            op: call.op,
            urgent: false,
            offset: call.remote.offset,
            bytes: call.buffers.bytes(),
            time_left_nanos: time_left.as_nanos().try_into().unwrap_or(u64::MAX),
            capability: call.remote.capability,
        };
        let ack = match call.op {
            Op::Read => self.read(&request, call)?,
            Op::Write => self.write(&request, call, shared.config.slice_bytes)?,
        };
        self.idle_since = now();
        let outcome = match ack.refusal {
            Some(refusal) => Err(Cause::Refused(refusal)),
            None if ack.bytes == request.bytes => Ok(()),
            None => return Err(Broken::Failed(Cause::Protocol("an acknowledgement of other bytes".to_owned()))),
        };
        Ok((self, outcome))
    }

    fn read(&mut self, request: &Request, call: &Call<'_>) -> Result<Ack, Broken> {
        let mut bytes = Vec::with_capacity(Frame::BYTES_MAX);
        Frame::Request(*request).write(&mut bytes);
        (&self.stream).write_all(&bytes).map_err(|error| Broken::Silent(lost(&error)))?;
        let mut cursor = Cursor::new(call.buffers.clone());
        let mut inlet = Inlet::default();
        // A small answer is one frame and its acknowledgement: all of it is taken in one call, each part where it
        // belongs. A refusal is shorter, and its last bytes lie where payload would have: of no meaning, like all
        // memory of a failed read.
        if request.bytes <= SLICE_BYTES_MIN as u64 {
            return self.read_small(request, &mut cursor, call);
        }
        loop {
            match self.frame(&mut inlet, call)? {
                Frame::Ack(ack) if ack.id == request.id && (ack.refusal.is_some() || cursor.left() == 0) => {
                    return Ok(ack);
                }
                Frame::Data(data) if fits(&data, request.id, &cursor) => {
                    self.fill(&mut cursor, data.bytes as usize, &mut inlet, call)?;
                }
                _ => return Err(protocol()),
            }
        }
    }

    fn read_small(&mut self, request: &Request, cursor: &mut Cursor, call: &Call<'_>) -> Result<Ack, Broken> {
        let (mut head, mut tail) = ([0u8; DATA_BYTES], [0u8; ACK_BYTES]);
        let body = request.bytes as usize;
        let whole = DATA_BYTES + body + ACK_BYTES;
        let start = Cursor::new(call.buffers.clone());
        let mut got = 0;
        let mut vectors = Vectors::new();
        while got < whole {
            vectors.clear();
            if got < DATA_BYTES {
                vectors.push(into_slice(&mut head[got..]));
            }
            cursor.vectors(cursor.left() as usize, &mut vectors);
            let tail_from = got.saturating_sub(DATA_BYTES + body);
            vectors.push(into_slice(&mut tail[tail_from..]));
            let count = self.receive(&mut vectors, got == 0)?;
            let placed = (got + count).clamp(DATA_BYTES, DATA_BYTES + body) - got.clamp(DATA_BYTES, DATA_BYTES + body);
            cursor.advance(placed);
            got += count;
            if got >= DATA_BYTES && got < whole && head[0] != Data::KIND {
                return self.refused(&head, &start, &tail, got);
            }
        }
        let (data, ack) = (Frame::read(&head), Frame::read(&tail));
        match (data, ack) {
            (Ok(Some((Frame::Data(data), _))), Ok(Some((Frame::Ack(ack), _))))
                if data.id == request.id && data.last && ack.id == request.id && data.bytes as usize == body =>
            {
                Ok(ack)
            }
            _ => Err(protocol()),
        }
    }

    /// The answer to a small read is an acknowledgement alone, `got` bytes of which are taken: the first in `head`, the
    /// others at the start of the payload's place, and behind that.
    fn refused(&mut self, head: &[u8; DATA_BYTES], place: &Cursor, tail: &[u8], got: usize) -> Result<Ack, Broken> {
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
            at += self.receive(&mut vectors, false)?;
        }
        match Frame::read(&bytes) {
            Ok(Some((Frame::Ack(ack), _))) if ack.refusal.is_some() => Ok(ack),
            _ => Err(protocol()),
        }
    }

    fn write(&mut self, request: &Request, call: &Call<'_>, slice: usize) -> Result<Ack, Broken> {
        let mut cursor = Cursor::new(call.buffers.clone());
        let mut head = Vec::with_capacity(Frame::BYTES_MAX + DATA_BYTES);
        Frame::Request(*request).write(&mut head);
        let mut vectors = Vectors::new();
        while cursor.left() > 0 {
            let bytes = cursor.left().min(slice as u64);
            let offset = request.bytes - cursor.left();
            let last = bytes == cursor.left();
            Frame::Data(Data { id: request.id, bytes: bytes as u32, last, offset }).write(&mut head);
            let mut frame = cursor.take(bytes);
            let mut written = 0;
            while written < head.len() || frame.left() > 0 {
                vectors.clear();
                if written < head.len() {
                    vectors.push(from_slice(&head[written..]));
                }
                frame.vectors(frame.left() as usize, &mut vectors);
                // SAFETY: the ranges are of `head` and of the frame's cursor, both kept for the call.
                let count = match unsafe { send(self.stream.as_fd(), &mut vectors, 0) } {
                    Ok(count) => count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(Broken::Silent(self.cause(&error, call))),
                };
                let of_head = count.min(head.len() - written);
                written += of_head;
                frame.advance(count - of_head);
            }
            head.clear();
        }
        match self.frame(&mut Inlet::default(), call)? {
            Frame::Ack(ack) if ack.id == request.id => Ok(ack),
            _ => Err(protocol()),
        }
    }

    /// The next header.
    fn frame(&mut self, inlet: &mut Inlet, call: &Call<'_>) -> Result<Frame, Broken> {
        loop {
            if let Some((frame, length)) = Frame::read(&inlet.bytes[..inlet.length]).map_err(|_| protocol())? {
                inlet.take(length);
                return Ok(frame);
            }
            let mut vectors = vec![into_slice(&mut inlet.bytes[inlet.length..])];
            inlet.length += self.receive_in_time(&mut vectors, call)?;
        }
    }

    /// The next `bytes` bytes of payload, straight to their place; what follows them goes to the inlet.
    fn fill(&mut self, cursor: &mut Cursor, bytes: usize, inlet: &mut Inlet, call: &Call<'_>) -> Result<(), Broken> {
        let early = inlet.length.min(bytes);
        cursor.copy_in(&inlet.bytes[..early]);
        inlet.take(early);
        let mut left = bytes - early;
        let mut vectors = Vectors::new();
        while left > 0 {
            vectors.clear();
            let direct = cursor.vectors(left, &mut vectors);
            if direct == left {
                vectors.push(into_slice(&mut inlet.bytes));
            }
            let count = self.receive_in_time(&mut vectors, call)?;
            cursor.advance(count.min(direct));
            inlet.length = count.saturating_sub(direct);
            left -= count.min(direct);
        }
        Ok(())
    }

    fn receive_in_time(&mut self, vectors: &mut Vectors, call: &Call<'_>) -> Result<usize, Broken> {
        if now() >= call.deadline {
            return Err(Broken::Failed(Cause::TimedOut(Clock::Total)));
        }
        self.receive(vectors, false)
    }

    /// Reads into ranges that the caller keeps.
    fn receive(&mut self, vectors: &mut Vectors, first: bool) -> Result<usize, Broken> {
        loop {
            // SAFETY: every caller passes ranges of its own buffers and of cursors that it holds.
            let error = match unsafe { receive(self.stream.as_fd(), vectors, 0) } {
                Ok(0) => io::ErrorKind::UnexpectedEof.into(),
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            let timed_out = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
            return Err(match timed_out {
                true => Broken::Failed(Cause::TimedOut(Clock::Total)),
                false if first => Broken::Silent(lost(&error)),
                false => Broken::Failed(lost(&error)),
            });
        }
    }

    fn cause(&self, error: &io::Error, call: &Call<'_>) -> Cause {
        match now() >= call.deadline || error.kind() == io::ErrorKind::WouldBlock {
            true => Cause::TimedOut(Clock::Total),
            false => lost(error),
        }
    }

    fn set_timeout(&mut self, limit: Duration) -> io::Result<()> {
        // Rounded up, so that calls with the same patience find it set.
        let limit = Duration::from_millis(limit.as_millis() as u64 / 100 * 100 + 100);
        if limit != self.timeout {
            self.stream.set_read_timeout(Some(limit))?;
            self.stream.set_write_timeout(Some(limit))?;
            self.timeout = limit;
        }
        Ok(())
    }
}

/// What was read behind a payload.
#[derive(Debug)]
struct Inlet {
    bytes: [u8; 256],
    length: usize,
}

impl Default for Inlet {
    fn default() -> Self {
        Self { bytes: [0; 256], length: 0 }
    }
}

impl Inlet {
    fn take(&mut self, count: usize) {
        self.bytes.copy_within(count..self.length, 0);
        self.length -= count;
    }
}

fn fits(data: &Data, id: u64, cursor: &Cursor) -> bool {
    let at = cursor.buffers().bytes() - cursor.left();
    data.id == id && data.offset == at && u64::from(data.bytes) <= cursor.left()
}

fn connect(shared: &Shared, segment: &Segment, deadline: Instant) -> Result<Line, Cause> {
    let mut last = Cause::Unreachable("no address".to_owned());
    for address in segment.addresses.iter().filter(|address| shared.config.may_reach(segment, address)) {
        let limit = now().until(deadline).min(shared.config.connect_timeout);
        if limit.is_zero() {
            return Err(Cause::TimedOut(Clock::Connect));
        }
        match greet(shared, segment, *address, limit) {
            Ok(line) => return Ok(line),
            Err(gone @ (Cause::Gone { .. } | Cause::Seal(_))) => return Err(gone),
            Err(cause) => last = cause,
        }
    }
    Err(last)
}

fn greet(shared: &Shared, segment: &Segment, address: SocketAddr, limit: Duration) -> Result<Line, Cause> {
    let unreachable = |error: io::Error| Cause::Unreachable(format!("{address}: {error}"));
    let mut stream = TcpStream::connect_timeout(&address, limit).map_err(unreachable)?;
    set_options(&stream, shared.config.socket_buffer_bytes).map_err(unreachable)?;
    stream.set_read_timeout(Some(limit)).map_err(unreachable)?;
    let hello = shared.greeting(segment.incarnation, Features::default());
    stream.write_all(&hello.to_bytes()).map_err(unreachable)?;
    let mut answer = [0; GREETING_BYTES];
    stream.read_exact(&mut answer).map_err(unreachable)?;
    let answer = Greeting::from_bytes(&answer).map_err(|error| Cause::Protocol(error.to_string()))?;
    if answer.features.has(Features::SEALED) {
        return Err(Cause::Seal(SealError::Unsealed));
    }
    if answer.incarnation != segment.incarnation {
        return Err(Cause::Gone { expected: segment.incarnation, found: answer.incarnation });
    }
    Ok(Line { stream, next_id: 1, timeout: Duration::ZERO, idle_since: now() })
}

fn set_options(stream: &TcpStream, buffer_bytes: usize) -> io::Result<()> {
    let (socket, liveness) = (SockRef::from(stream), TcpLiveness::default());
    let keepalive = TcpKeepalive::new()
        .with_time(liveness.keepalive_idle)
        .with_interval(liveness.keepalive_interval)
        .with_retries(liveness.keepalive_count);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(liveness.user_timeout))?;
    socket.set_send_buffer_size(buffer_bytes)?;
    socket.set_recv_buffer_size(buffer_bytes)
}

fn lost(error: &io::Error) -> Cause {
    Cause::Lost(error.to_string())
}

fn protocol() -> Broken {
    Broken::Failed(Cause::Protocol("an answer to something else".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A process that had read from many peers, and outlived them, kept one socket for each in CLOSE_WAIT until its idle
    /// time was over: nobody looked at a connection between two callers.
    #[test]
    fn a_connection_that_its_peer_closed_is_collected_before_its_idle_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let direct = Direct::default();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        let line = Line { stream, next_id: 0, timeout: Duration::ZERO, idle_since: now() };
        direct.lock().entry(Incarnation(1)).or_default().idle.push(line);
        direct.collect(Instant::ZERO);
        assert!(!direct.is_empty());
        drop(peer);
        let started = now();
        while !direct.is_empty() {
            assert!(started.until(now()) < Duration::from_secs(20), "the end of the peer never came");
            direct.collect(Instant::ZERO);
        }
    }
}
