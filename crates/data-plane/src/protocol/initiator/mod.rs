mod ending;
mod vocabulary;

use std::time::Duration;

use slab::Slab;
use slackwater_base::Instant;
use slackwater_wire::data::{Data, Features, Frame, Greeting, Notify, Op, Request};

use super::send_queue::{PayloadSource, SendQueue};
use super::{
    CloseReason, Notice, Payload, Piece, REQUEST_BYTES_MAX, SLICE_BYTES_MAX, SLICE_BYTES_MIN, Span,
    Want,
};
use crate::{Cause, Deadline};
pub use vocabulary::{Call, Credit, InitiatorLimits, Input, Output};

use ending::finish;

/// The initiator's end of one connection: the requests that are under way on it, each with a task of the shell, which it
/// keeps until the request has ended and never looks at.
#[derive(Debug)]
pub struct Initiator<T> {
    limits: InitiatorLimits,
    ready: bool,
    /// The peer takes requests with a trace.
    traced: bool,
    queue: SendQueue,
    payload: Option<Payload>,
    flights: Slab<Flight<T>>,
    next_generation: u32,
    /// When bytes last moved, or the first request was started.
    moved_at: Instant,
    idle_since: Instant,
    wake: Instant,
    sent: Vec<u64>,
}

#[derive(Debug)]
struct Flight<T> {
    generation: u32,
    kind: Kind,
    bytes: u64,
    /// Payload of a read that has arrived.
    received: u64,
    /// None when the task has ended and only the target's answer is outstanding.
    task: Option<T>,
    deadline: Instant,
    /// When the last byte of a write was sent.
    sent_at: Option<Instant>,
    /// A write that was given up: the cause, and until when the target's answer is waited for.
    draining: Option<(Cause, Instant)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Notify,
    Ping,
}

impl<T> Initiator<T> {
    /// One end of a connection that was made now.
    pub fn new(limits: InitiatorLimits, now: Instant) -> Self {
        Self {
            limits,
            ready: false,
            traced: false,
            queue: SendQueue::new(limits.slice_bytes),
            payload: None,
            flights: Slab::new(),
            next_generation: 1,
            moved_at: now,
            idle_since: now,
            wake: Instant::NEVER,
            sent: Vec::new(),
        }
    }

    /// Whether requests may be started.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Whether nothing is under way: no request, and no byte of one.
    pub fn is_quiet(&self) -> bool {
        self.flights.is_empty() && self.queue.is_empty() && self.payload.is_none()
    }

    /// Requests that the peer has not answered yet, those that were given up here among them.
    pub fn under_way(&self) -> usize {
        self.flights.len()
    }

    /// Since when nothing is under way.
    pub fn idle_since(&self) -> Instant {
        self.idle_since
    }

    /// When [`Initiator::on_deadline`] is to be called.
    pub fn next_deadline(&self) -> Instant {
        self.wake
    }

    /// The greeting to begin with.
    pub fn greet(&mut self, hello: &Greeting) {
        self.queue.push_bytes(hello.to_bytes().to_vec());
    }

    /// The tasks that have not ended.
    pub fn tasks(&self) -> impl Iterator<Item = (u64, &T)> {
        self.flights.iter().filter_map(|(key, flight)| {
            let task = flight.task.as_ref()?;
            Some((flight.id(key), task))
        })
    }

    /// Whether any task has not ended. Where none is under way the room that many took is not walked through.
    pub fn has_tasks(&self) -> bool {
        !self.flights.is_empty() && self.tasks().next().is_some()
    }

    /// The task of a request.
    pub fn task(&mut self, id: u64) -> Option<&mut T> {
        find(&mut self.flights, id)?.task.as_mut()
    }

    /// What follows from an event.
    ///
    /// # Errors
    /// The connection is to be closed; [`Input::Closed`] says then what becomes of its tasks.
    pub fn handle(
        &mut self,
        now: Instant,
        input: Input<'_, T>,
        out: &mut Vec<Output<T>>,
    ) -> Result<(), CloseReason> {
        match input {
            Input::Greeting(greeting) => return self.greeting(now, greeting, out),
            Input::Frame(frame) => return self.frame(now, frame, out),
            Input::Arrived(bytes) => self.arrived(now, bytes),
            Input::Wrote(bytes) => self.wrote(now, bytes),
            Input::Start {
                call,
                deadline,
                task,
            } => self.start(now, call, (deadline, task), out),
            Input::GiveUp(id, cause) => self.abandon(now, id, cause, out),
            Input::Closed { cause, retry } => self.closed(cause, retry, out),
        }
        Ok(())
    }

    /// Checks the deadlines.
    pub fn on_deadline(
        &mut self,
        now: Instant,
        out: &mut Vec<Output<T>>,
    ) -> Result<(), CloseReason> {
        self.wake = Instant::NEVER;
        let limits = self.limits;
        if self.flights.is_empty() {
            let idle_until = self.idle_since + limits.idle_timeout;
            if self.ready && idle_until <= now {
                return Err(CloseReason::Idle);
            }
            self.need(idle_until.max(now + limits.gc_interval));
            return Ok(());
        }
        let stalled_at = self.moved_at + limits.progress_timeout;
        if stalled_at <= now {
            return Err(CloseReason::Lost(Cause::TimedOut(Deadline::Progress)));
        }
        let (mut wake, mut late) = (stalled_at, Vec::new());
        for (key, flight) in &self.flights {
            if let Some(until) = flight.sent_at.map(|at| at + limits.ack_timeout) {
                if until <= now {
                    return Err(CloseReason::Lost(Cause::TimedOut(
                        Deadline::Acknowledgement,
                    )));
                }
                wake = wake.min(until);
            }
            match &flight.draining {
                Some((_, until)) if *until <= now => {
                    let reason = "no word about a cancelled write";
                    return Err(CloseReason::Lost(Cause::Lost(reason.to_owned())));
                }
                Some((_, until)) => wake = wake.min(*until),
                None if flight.task.is_none() => {}
                None if flight.deadline <= now => late.push(flight.id(key)),
                None => wake = wake.min(flight.deadline),
            }
        }
        self.need(wake);
        late.into_iter()
            .for_each(|id| self.abandon(now, id, Cause::TimedOut(Deadline::Total), out));
        Ok(())
    }

    /// What the next received bytes are.
    pub fn want(&self) -> Want {
        let Some(payload) = &self.payload else {
            return Want::Header;
        };
        let flight = get(&self.flights, payload.id).filter(|flight| flight.task.is_some());
        flight.map_or(Want::Discard(payload.left), |flight| {
            Want::Memory(Span {
                id: payload.id,
                offset: flight.received,
                bytes: payload.left,
            })
        })
    }

    /// The payload that a small read which is alone will be answered with, behind one data header: a shell may receive
    /// it into its memory together with that header. If other bytes arrive, they are headers, and it must say so.
    pub fn expected(&self) -> Option<Span> {
        let (key, flight) = self.flights.iter().next()?;
        let alone = self.flights.len() == 1 && self.payload.is_none();
        let small = flight.bytes <= SLICE_BYTES_MIN as u64;
        let whole = flight.kind == Kind::Read && flight.received == 0 && flight.task.is_some();
        (alone && small && whole).then(|| Span {
            id: flight.id(key),
            offset: 0,
            bytes: flight.bytes as usize,
        })
    }

    /// Shows what to send, with the task whose memory it is; see [`Piece`]. `take` says how many bytes of a piece it has
    /// room for, and is not called again after one that was not taken whole.
    pub fn gather(&mut self, mut take: impl FnMut(Piece<'_, &mut T>) -> usize) -> usize {
        let flights = &mut self.flights;
        self.queue.gather(|piece| match piece {
            Piece::Bytes(bytes) => take(Piece::Bytes(bytes)),
            Piece::Zeros(count) => take(Piece::Zeros(count)),
            Piece::Memory((), span) => find(flights, span.id)
                .and_then(|flight| flight.task.as_mut())
                .map_or(0, |task| take(Piece::Memory(task, span))),
        })
    }

    /// Whether there is nothing to send.
    pub fn has_sent_all(&self) -> bool {
        self.queue.is_empty()
    }

    fn greeting(
        &mut self,
        now: Instant,
        greeting: &Greeting,
        out: &mut Vec<Output<T>>,
    ) -> Result<(), CloseReason> {
        let (expected, found) = (self.limits.peer, greeting.incarnation);
        if found != expected {
            return Err(CloseReason::Gone(Cause::Gone { expected, found }));
        }
        if greeting.in_flight_bytes_max < REQUEST_BYTES_MAX {
            return Err(CloseReason::protocol(
                "it takes smaller requests than any peer may ask for",
            ));
        }
        self.queue.agree(greeting.frame_bytes_max)?;
        self.ready = true;
        self.traced = greeting.features.has(Features::TRACED);
        self.idle_since = now;
        self.need(now + self.limits.idle_timeout);
        out.push(Output::Ready(Credit {
            requests: greeting.requests_max.min(self.limits.requests_max).max(1) as usize,
            bytes: greeting.in_flight_bytes_max,
        }));
        Ok(())
    }

    fn start(
        &mut self,
        now: Instant,
        call: Call,
        (deadline, task): (Instant, T),
        out: &mut Vec<Output<T>>,
    ) {
        if deadline <= now {
            let outcome = Err(Cause::TimedOut(Deadline::Total));
            return out.push(Output::Ended { task, outcome });
        }
        if self.flights.is_empty() {
            self.moved_at = now;
        }
        let generation = self.next_generation;
        self.next_generation = self.next_generation.checked_add(1).unwrap_or(1);
        let entry = self.flights.vacant_entry();
        let id = u64::from(generation) << 32 | entry.key() as u64;
        let (kind, bytes) = match &call {
            Call::Transfer { op, bytes, .. } => match op {
                Op::Read => (Kind::Read, *bytes),
                Op::Write => (Kind::Write, *bytes),
            },
            Call::Notify(_) => (Kind::Notify, 0),
            Call::Ping => (Kind::Ping, 0),
        };
        entry.insert(Flight {
            generation,
            kind,
            bytes,
            received: 0,
            task: Some(task),
            deadline,
            sent_at: None,
            draining: None,
        });
        self.send(id, call, now.until(deadline));
        self.need(deadline.min(now + self.limits.progress_timeout));
    }

    fn send(&mut self, id: u64, call: Call, time_left: Duration) {
        match call {
            Call::Transfer {
                op,
                urgent,
                offset,
                bytes,
                capability,
                trace,
            } => {
                let request = Frame::Request(Request {
                    id,
                    op,
                    urgent,
                    offset,
                    bytes,
                    time_left_nanos: time_left.as_nanos().try_into().unwrap_or(u64::MAX),
                    capability,
                    trace: trace.filter(|_| self.traced),
                });
                match op {
                    Op::Read => self.queue.push(&request),
                    Op::Write => self.queue.push_source(PayloadSource {
                        id,
                        from: 0,
                        to: bytes,
                        more: false,
                        request: Some(request),
                        acknowledged: false,
                        urgent,
                    }),
                }
            }
            Call::Notify(Notice { name, bytes }) => {
                let mut frame = Vec::new();
                Frame::Notify(Notify {
                    id,
                    name_bytes: name.len() as u32,
                    bytes: bytes.len() as u32,
                })
                .write(&mut frame);
                frame.extend_from_slice(name.as_bytes());
                frame.extend_from_slice(&bytes);
                self.queue.push_bytes(frame);
            }
            Call::Ping => self.queue.push(&Frame::Ping { token: id }),
        }
    }

    fn frame(
        &mut self,
        now: Instant,
        frame: Frame,
        out: &mut Vec<Output<T>>,
    ) -> Result<(), CloseReason> {
        self.moved_at = now;
        match frame {
            Frame::Data(data) => self.data(&data),
            Frame::Ack(ack) => self.ack(now, &ack, out),
            Frame::Pong { token } => {
                let asked =
                    get(&self.flights, token).is_some_and(|flight| flight.kind == Kind::Ping);
                let flight = asked.then(|| self.remove(token, now)).flatten();
                finish(
                    flight.ok_or(CloseReason::protocol("an answer to no question"))?,
                    Ok(0),
                    out,
                );
                Ok(())
            }
            Frame::Goaway => {
                let reason = "the peer takes no more requests on this connection";
                Err(CloseReason::Lost(Cause::Lost(reason.to_owned())))
            }
            Frame::Request(_) | Frame::Cancel { .. } | Frame::Notify(_) | Frame::Ping { .. } => {
                Err(CloseReason::protocol("a request from a target"))
            }
        }
    }

    fn data(&mut self, data: &Data) -> Result<(), CloseReason> {
        if data.bytes as usize > SLICE_BYTES_MAX {
            return Err(CloseReason::protocol("a frame over the limit"));
        }
        let flight =
            get(&self.flights, data.id).ok_or(CloseReason::protocol("data of no request"))?;
        if flight.kind != Kind::Read {
            return Err(CloseReason::protocol(
                "data of a request that reads nothing",
            ));
        }
        let left = flight.bytes - flight.received;
        if data.offset != flight.received || u64::from(data.bytes) > left {
            return Err(CloseReason::protocol(
                "data that does not follow what came before",
            ));
        }
        self.payload = (data.bytes > 0).then_some(Payload {
            id: data.id,
            left: data.bytes as usize,
            last: data.last,
        });
        Ok(())
    }

    fn arrived(&mut self, now: Instant, bytes: usize) {
        self.moved_at = now;
        let Some(payload) = &mut self.payload else {
            return;
        };
        payload.left -= bytes;
        if let Some(flight) = find(&mut self.flights, payload.id) {
            flight.received += bytes as u64;
        }
        if payload.left == 0 {
            self.payload = None;
        }
    }

    fn wrote(&mut self, now: Instant, bytes: usize) {
        self.moved_at = now;
        self.queue.wrote(bytes, &mut self.sent);
        let mut wake = Instant::NEVER;
        for id in self.sent.drain(..) {
            if let Some(flight) = find(&mut self.flights, id) {
                flight.sent_at = Some(now);
                wake = now + self.limits.ack_timeout;
            }
        }
        self.need(wake);
    }

    fn need(&mut self, at: Instant) {
        self.wake = self.wake.min(at);
    }
}

impl<T> Flight<T> {
    fn id(&self, key: usize) -> u64 {
        u64::from(self.generation) << 32 | key as u64
    }
}

fn get<T>(flights: &Slab<Flight<T>>, id: u64) -> Option<&Flight<T>> {
    flights
        .get(id as u32 as usize)
        .filter(|flight| u64::from(flight.generation) == id >> 32)
}

fn find<T>(flights: &mut Slab<Flight<T>>, id: u64) -> Option<&mut Flight<T>> {
    flights
        .get_mut(id as u32 as usize)
        .filter(|flight| u64::from(flight.generation) == id >> 32)
}
