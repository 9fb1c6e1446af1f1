//! One borrowed connection, driven with blocking calls by the thread that borrowed it.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use slackwater_base::{Checksum, Instant};
use slackwater_data_plane::{
    Cause, Deadline,
    protocol::{
        Call, CloseReason, Want,
        initiating::{Input, Output},
    },
};
use slackwater_engine::SingleRequest;
use slackwater_net::{LocalPorts, TcpLiveness};
use slackwater_wait::{Arrival, Completer, Site, Waiting, now, wait_for};
use slackwater_wire::data::{Op, Segment};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::client::{ClientConnection, ClientEnd};
use crate::context::TcpContext;
use crate::cursor::{Cursor, Place, SpanMemory};
use crate::direct::summed::Summed;
use crate::io::{is_readable, wait_readable};
use crate::wire::{Flushed, LOW_WATER_BYTES, Scratch, Wire};

#[derive(Debug)]
pub(super) struct BorrowedConnection {
    stream: Arc<TcpStream>,
    wire: Wire,
    client: ClientConnection<LoneRequest>,
    scratch: Scratch,
    /// The timeout of blocking calls that is in force, so that it is set again only when it changes.
    timeout: Duration,
    /// Requests that the peer takes at once.
    requests_max: usize,
}

/// The request of a caller.
#[derive(Debug)]
pub(super) struct LoneRequest {
    pub(super) single: SingleRequest,
    cursor: Cursor,
    summed: Summed,
    /// Of a request that another caller carries: how its own caller learns of its end. Behind the memory, which is released
    /// before the caller is told.
    pub(super) waiter: Option<Completer<Answer>>,
    /// Its number among the requests that go together.
    pub(super) ticket: u64,
}

/// What a caller learns of a request that another one carries.
#[derive(Debug)]
pub(super) enum Answer {
    Ended(Outcome),
    /// The caller carries the requests from now on, on this connection if there is one; its own is among those that are under
    /// way there, or is given back to be started.
    Lead {
        own: Option<Box<LoneRequest>>,
        connection: Option<Box<BorrowedConnection>>,
    },
}

/// Where callers wait for the rest of a payload.
pub(crate) static PAYLOAD: Site = Site::new("transfer payload");

/// A sleep without a deadline ends too, and is begun again.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// The next bytes of a payload.
struct Payload<'a> {
    socket: BorrowedFd<'a>,
    /// A sleeper is woken by so many bytes: a wake for each segment costs both ends more than the copy of its bytes.
    low_water: usize,
    wire: RefCell<&'a mut Wire>,
    /// Why the socket cannot be waited for.
    failed: RefCell<Option<CloseReason>>,
}

impl Payload<'_> {
    fn sleep_until_readable(&self, longest: Option<Duration>) -> Result<(), CloseReason> {
        let wire = &mut self.wire.borrow_mut();
        wire.report_from(self.low_water, self.socket)?;
        wait_readable(self.socket, longest.unwrap_or(SLEEP_MAX))
            .map(drop)
            .map_err(|error| CloseReason::Lost(Cause::Lost(error.to_string())))
    }
}

impl Arrival for Payload<'_> {
    fn has_come(&self) -> bool {
        self.failed.borrow().is_some() || is_readable(self.socket)
    }

    fn sleep(&self, longest: Option<Duration>) {
        *self.failed.borrow_mut() = self.sleep_until_readable(longest).err();
    }
}

/// How a request ended, with the checksum of its bytes if that was taken in passing; the request itself, if it had no effect and
/// can be started elsewhere.
pub(super) type Outcome = Result<Option<Checksum>, (Cause, Option<Box<LoneRequest>>)>;

/// Bytes read behind a payload: an acknowledgement, and little more.
const SCRATCH_BYTES: usize = 4 << 10;
/// Bytes read at once where small payloads of many callers come one behind the other.
const TOGETHER_SCRATCH_BYTES: usize = 64 << 10;

impl LoneRequest {
    pub(super) fn new(single: SingleRequest) -> Self {
        Self {
            single,
            cursor: Cursor::default(),
            summed: Summed::default(),
            waiter: None,
            ticket: 0,
        }
    }

    /// The first `moved` bytes have come, or are sent.
    fn sum(&mut self, moved: u64) {
        if self.single.checksum {
            self.summed.pieces(&self.single.buffers, moved);
        }
    }
}

impl SpanMemory for LoneRequest {
    fn place(&mut self, offset: u64) -> Option<Place<'_>> {
        Some(Place {
            buffers: &self.single.buffers,
            cursor: &mut self.cursor,
            offset,
        })
    }
}

impl BorrowedConnection {
    /// Connects to the first of the peer's addresses that answers.
    pub(super) fn connect(
        context: &TcpContext,
        segment: &Arc<Segment>,
        deadline: Instant,
    ) -> Result<Self, Cause> {
        let mut last = Cause::Unreachable("no address".to_owned());
        let addresses = segment.addresses.iter();
        for address in addresses.filter(|address| context.config.may_reach(segment, address)) {
            let until = deadline.min(now() + context.config.connect_timeout);
            if until <= now() {
                return Err(Cause::TimedOut(Deadline::Connect));
            }
            match Self::greet(context, segment, *address, until) {
                Ok(connection) => return Ok(connection),
                Err(gone @ (Cause::Gone { .. } | Cause::Seal(_))) => return Err(gone),
                Err(cause) => last = cause,
            }
        }
        Err(last)
    }

    fn greet(
        context: &TcpContext,
        segment: &Arc<Segment>,
        address: SocketAddr,
        until: Instant,
    ) -> Result<Self, Cause> {
        let unreachable = |error: io::Error| Cause::Unreachable(format!("{address}: {error}"));
        let stream = connect(address, context.config.local_ports, until).map_err(unreachable)?;
        set_options(&stream, context.config.buffer_bytes(address.ip())).map_err(unreachable)?;
        let limits = context.config.initiator_limits(segment);
        let client = ClientConnection::new(Arc::clone(segment), limits, now());
        let mut connection = Self::new(stream, client);
        let greeted = connection
            .client
            .hello(context)
            .and_then(|()| connection.drive_until_ready(until));
        match greeted {
            Ok(()) => Ok(connection),
            Err(CloseReason::Gone(cause)) => Err(cause),
            Err(CloseReason::Lost(cause)) => Err(Cause::Unreachable(format!("{address}: {cause}"))),
            Err(reason) => Err(connection.client.close(now(), &reason)),
        }
    }

    pub(super) fn new(stream: TcpStream, client: ClientConnection<LoneRequest>) -> Self {
        Self {
            stream: Arc::new(stream),
            wire: Wire::default(),
            client,
            scratch: Scratch::new(SCRATCH_BYTES),
            timeout: Duration::ZERO,
            requests_max: 1,
        }
    }

    pub(super) fn stream(&self) -> Arc<TcpStream> {
        Arc::clone(&self.stream)
    }

    pub(super) fn idle_since(&self) -> Instant {
        self.client.initiator.idle_since()
    }

    /// Whether an idle connection has ended, or has received bytes that no request asked for. No loop watches it.
    pub(super) fn is_over(&self) -> bool {
        is_readable(self.stream.as_fd())
    }

    /// Closes it and discards what the kernel has not sent yet: no byte of a failed request is sent after its caller
    /// has the error. What the peer's kernel has received by then may still be applied; see rule 2 in the README.
    pub(super) fn abort(self) {
        // Without the option the kernel sends the rest first, which the peer must expect anyway.
        let _ = SockRef::from(&*self.stream).set_linger(Some(Duration::ZERO));
    }

    /// Carries one request; says too whether the connection can be used again.
    pub(super) fn carry(&mut self, lone: LoneRequest) -> (Outcome, bool) {
        let carried = self.start(lone).and_then(|()| self.drive());
        let cause = match &carried {
            Ok(()) => Cause::Dropped,
            Err(reason) => self.close(reason),
        };
        let ended = self.ended(&cause).next();
        let outcome = ended.map(|(_, outcome)| outcome);
        let reusable = carried.is_ok() && self.is_quiet();
        (outcome.unwrap_or(Err((cause, None))), reusable)
    }

    /// Queues one request, to be sent in the next turn.
    pub(super) fn start(&mut self, mut lone: LoneRequest) -> Result<(), CloseReason> {
        lone.summed = Summed::default();
        let SingleRequest {
            op,
            buffers,
            remote,
            deadline,
            ..
        } = &lone.single;
        let call = Call::Transfer {
            op: *op,
            urgent: false,
            offset: remote.offset,
            bytes: buffers.bytes(),
            capability: remote.capability,
            trace: remote.trace,
        };
        let start = Input::Start {
            call,
            deadline: *deadline,
            task: lone,
        };
        self.client.handle(now(), start)
    }

    /// Sends what there is, or waits for bytes, for no longer than until `until`; ends what is late.
    pub(super) fn turn(&mut self, until: Instant) -> Result<(), CloseReason> {
        match self.client.initiator.next_deadline() {
            due if due <= now() => self.client.on_deadline(now()),
            due => self.step(due.min(until)),
        }
    }

    /// The requests that have ended, each with its waiter; `cause` is why those that can be started elsewhere have.
    pub(super) fn ended(
        &mut self,
        cause: &Cause,
    ) -> impl Iterator<Item = (Option<Completer<Answer>>, Outcome)> {
        self.client
            .out
            .drain(..)
            .filter_map(move |output| match output {
                Output::Ended { mut task, outcome } => {
                    let outcome = outcome.map(|_| task.summed.whole(&task.single.buffers));
                    let LoneRequest { single, waiter, .. } = task;
                    // Nothing of the caller's memory is held when the caller is told.
                    drop(single);
                    Some((waiter, outcome.map_err(|cause| (cause, None))))
                }
                Output::Again(mut lone) => {
                    let waiter = lone.waiter.take();
                    Some((waiter, Err((cause.clone(), Some(Box::new(lone))))))
                }
                Output::Ready(_) => None,
            })
    }

    /// Whether some have ended that [`BorrowedConnection::ended`] has not told of.
    pub(super) fn has_ended(&self) -> bool {
        !self.client.out.is_empty()
    }

    /// Ends all requests on it; returns the cause of those that fail.
    pub(super) fn close(&mut self, reason: &CloseReason) -> Cause {
        self.client.close(now(), reason)
    }

    /// Whether nothing is under way on it.
    pub(super) fn is_quiet(&self) -> bool {
        self.client.initiator.is_quiet()
    }

    /// How many more requests the peer takes now.
    pub(super) fn room(&self) -> usize {
        let under_way = self.client.initiator.under_way();
        self.requests_max.saturating_sub(under_way)
    }

    /// The request that was started last, of those under way that have a caller waiting.
    pub(super) fn newest(&mut self) -> Option<&mut LoneRequest> {
        let tasks = self.client.initiator.tasks();
        let (id, _) = tasks
            .filter(|(_, lone)| lone.waiter.is_some())
            .max_by_key(|(id, _)| *id)?;
        self.client.initiator.task(id)
    }

    /// Has small payloads of many callers read with one call.
    pub(super) fn widen(&mut self) {
        self.scratch.widen(TOGETHER_SCRATCH_BYTES);
    }

    /// Drives the connection until a request has ended.
    fn drive(&mut self) -> Result<(), CloseReason> {
        while !self.has_ended() {
            self.turn(Instant::NEVER)?;
        }
        Ok(())
    }

    fn drive_until_ready(&mut self, until: Instant) -> Result<(), CloseReason> {
        while !self.client.initiator.is_ready() {
            if until <= now() {
                return Err(CloseReason::Lost(Cause::TimedOut(Deadline::Connect)));
            }
            self.step(until)?;
        }
        for output in self.client.out.drain(..) {
            if let Output::Ready(credit) = output {
                self.requests_max = credit.requests;
            }
        }
        Ok(())
    }

    /// Sends what there is, or else waits until bytes arrive; neither for longer than until `until`.
    fn step(&mut self, until: Instant) -> Result<(), CloseReason> {
        self.set_timeout(now().until(until))?;
        let (stream, now) = (Arc::clone(&self.stream), now());
        let (socket, client) = (stream.as_fd(), &mut self.client);
        let large = match client.initiator.want() {
            Want::Memory(span) => span.bytes.min(LOW_WATER_BYTES),
            _ => 1,
        };
        let end = &mut ClientEnd { client, now };
        let flushed = self.wire.flush(end, socket, &mut self.scratch, 0)?;
        if flushed != Flushed::All {
            return Ok(());
        }
        sum_in_passing(end.client);
        let flags = match large > 1 {
            // It would wait for the low water mark beyond what it has already taken, possibly for ever.
            true => libc::MSG_DONTWAIT,
            false => {
                self.wire.report_from(1, socket)?;
                0
            }
        };
        end.now = slackwater_wait::now();
        let received = self.wire.receive(end, socket, &mut self.scratch, flags)?;
        match received.is_none() && large > 1 {
            true => self.wait_for_payload(large, until),
            false => Ok(()),
        }
    }

    /// The rest of a payload that has begun to arrive is often some microseconds away, and a sleep costs both ends more.
    fn wait_for_payload(&mut self, low_water: usize, until: Instant) -> Result<(), CloseReason> {
        let payload = Payload {
            socket: self.stream.as_fd(),
            low_water,
            wire: RefCell::new(&mut self.wire),
            failed: RefCell::default(),
        };
        // Without a byte the deadlines are looked at, and it is waited for again.
        let _ = wait_for(&payload, &Waiting::at(&PAYLOAD).until(until));
        payload.failed.into_inner().map_or(Ok(()), Err)
    }

    fn set_timeout(&mut self, limit: Duration) -> Result<(), CloseReason> {
        if let Some(timeout) = next_timeout(self.timeout, limit) {
            let set = self
                .stream
                .set_read_timeout(Some(timeout))
                .and_then(|()| self.stream.set_write_timeout(Some(timeout)));
            set.map_err(|error| CloseReason::Lost(Cause::Lost(error.to_string())))?;
            self.timeout = timeout;
        }
        Ok(())
    }
}

/// Sums what a read has brought so far, and what a write has sent, while the peer sends more or takes it in.
fn sum_in_passing(client: &mut ClientConnection<LoneRequest>) {
    let reached = match client.initiator.want() {
        Want::Memory(span) => Some((span.id, span.offset)),
        _ => {
            let mut tasks = client.initiator.tasks();
            let write = tasks.next().filter(|(_, lone)| lone.single.op == Op::Write);
            write.map(|(id, lone)| (id, lone.single.buffers.bytes()))
        }
    };
    if let Some((id, bytes)) = reached
        && let Some(lone) = client.initiator.task(id)
    {
        lone.sum(bytes);
    }
}

/// The timeout to set for calls that may block up to `limit`; none where the one in force (zero: none is yet) serves.
///
/// A shorter one serves as well: deadlines are looked at after each call. So a new one is the power of two below its limit, and
/// lasts while a deadline comes nearer with each request.
fn next_timeout(in_force: Duration, limit: Duration) -> Option<Duration> {
    let limit = limit.max(Duration::from_millis(1));
    if (in_force..=in_force * 8).contains(&limit) {
        return None;
    }
    Some(Duration::from_millis(1 << limit.as_millis().ilog2()))
}

fn connect(to: SocketAddr, ports: Option<LocalPorts>, until: Instant) -> io::Result<TcpStream> {
    let left = || now().until(until);
    let Some(ports) = ports else {
        return TcpStream::connect_timeout(&to, left());
    };
    let open = || Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP));
    let connect = |socket: &Socket| socket.connect_timeout(&to.into(), left());
    ports.connect(to, None, open, connect).map(TcpStream::from)
}

fn set_options(stream: &TcpStream, buffer_bytes: usize) -> io::Result<()> {
    TcpLiveness::default().apply(stream)?;
    let socket = SockRef::from(stream);
    socket.set_send_buffer_size(buffer_bytes)?;
    socket.set_recv_buffer_size(buffer_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// The earliest deadline of a connection comes nearer while requests come and go: each of them set both timeouts again, a
    /// millisecond shorter, which was two of its four calls of the kernel.
    #[test]
    fn timeouts_are_set_now_and_then_while_a_deadline_comes_nearer() {
        for seconds in [1, 10, 60] {
            let (mut in_force, mut set) = (Duration::ZERO, 0);
            let mut left = Duration::from_secs(seconds);
            while !left.is_zero() {
                if let Some(timeout) = next_timeout(in_force, left) {
                    (in_force, set) = (timeout, set + 1);
                }
                assert!(
                    in_force <= left.max(MILLISECOND),
                    "{in_force:?} of {left:?}"
                );
                left = left.saturating_sub(Duration::from_micros(100));
            }
            assert!(set <= 16, "{set} times in {seconds} s");
        }
    }

    #[test]
    fn one_wait_until_a_deadline_is_woken_few_times() {
        let check = |in_force: u64, limit: Duration| {
            let (mut in_force, mut left) = (Duration::from_millis(in_force), limit);
            let mut waits = 0;
            while !left.is_zero() {
                in_force = next_timeout(in_force, left).unwrap_or(in_force);
                left = left.saturating_sub(in_force);
                waits += 1;
            }
            assert!(waits <= 40, "{waits} waits for {limit:?}");
        };
        for in_force in [0, 1, 256, 1 << 20] {
            check(in_force, Duration::from_nanos(1));
            check(in_force, MILLISECOND);
            check(in_force, Duration::from_secs(1));
            check(in_force, Duration::from_secs(3600));
        }
    }
}
