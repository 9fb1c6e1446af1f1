mod ending;
mod payload;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::collections::BTreeMap;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_wire::data::{Ack, Frame, Greeting, Op, Refusal, Request};

use super::send_queue::{PayloadSource, SendQueue};
use super::staging::{StagedRead, StagedWrite};
use super::{CloseReason, Payload, Piece, Span, Want};
use crate::{Cause, Deadline};

pub use vocabulary::{Admitted, Input, Output, ResponderLimits};

/// The target's end of one connection: the requests that a peer has on it, each with the memory that was admitted for
/// it, which is dropped as soon as nothing touches it any more.
#[derive(Debug)]
pub struct Responder<M> {
    limits: ResponderLimits,
    queue: SendQueue,
    incoming: Option<Incoming>,
    requests: BTreeMap<u64, IncomingRequest<M>>,
    /// The requests whose memory is held, and their bytes.
    held: usize,
    held_bytes: u64,
    /// Payload waits until a device has room.
    stalled: bool,
    /// When a frame last came.
    heard_at: Instant,
    /// When payload of a write last came. Other frames do not count: with them a peer could keep a write that stands
    /// still, and the memory that it holds, for ever.
    arrived_at: Instant,
    /// When the peer last took bytes, or there were none for it.
    wrote_at: Instant,
    wake: Instant,
    sent: Vec<u64>,
}

#[derive(Debug)]
enum Incoming {
    Payload(Payload),
    Notice {
        id: u64,
        begun_at: Instant,
        name_bytes: usize,
        text: Vec<u8>,
        left: usize,
    },
}

#[derive(Debug)]
struct IncomingRequest<M> {
    bytes: u64,
    begun_at: Instant,
    urgent: bool,
    /// When the initiator has stopped waiting.
    late_at: Instant,
    memory: Option<M>,
    state: RequestState,
}

#[derive(Debug)]
enum RequestState {
    /// A write whose payload is arriving.
    Write { received: u64, complete: bool },
    /// A write whose payload goes to a device.
    StagedWrite(StagedWrite),
    /// A read; the send queue names its memory.
    Read,
    /// A read of device memory.
    StagedRead(StagedRead),
    /// The request has ended for its memory, which is released.
    Ending(Ending),
}

/// What is still outstanding for a request that has ended. Its id is taken until then.
#[derive(Debug)]
struct Ending {
    /// Device copies under way, plus one for a frame that was partly sent.
    waits: u32,
    /// The refusal that the peer gets when those are over.
    owed: Option<Refusal>,
    /// Payload may still arrive, and is discarded.
    payload: bool,
}

impl<M> Responder<M> {
    /// One end of a connection that was made now.
    pub fn new(limits: ResponderLimits, now: Instant) -> Self {
        Self {
            limits,
            queue: SendQueue::new(limits.slice_bytes),
            incoming: None,
            requests: BTreeMap::new(),
            held: 0,
            held_bytes: 0,
            stalled: false,
            heard_at: now,
            arrived_at: now,
            wrote_at: now,
            wake: now + limits.idle_timeout,
            sent: Vec::new(),
        }
    }

    /// Whether nothing is under way but answers.
    pub fn is_quiet(&self) -> bool {
        self.requests.is_empty() && self.incoming.is_none()
    }

    /// When [`Responder::on_deadline`] is to be called.
    pub fn next_deadline(&self) -> Instant {
        self.wake
    }

    /// The greeting to answer with.
    pub fn greet(&mut self, own: &Greeting) {
        self.queue.push_bytes(own.to_bytes().to_vec());
    }

    /// Tells the peer that nothing is taken on this connection.
    pub fn turn_away(&mut self) {
        self.queue.push(&Frame::Goaway);
    }

    /// The memory of a request, until it is released.
    pub fn memory(&mut self, id: u64) -> Option<&mut M> {
        self.requests.get_mut(&id)?.memory.as_mut()
    }

    /// All memory that is held, with the ids of its requests.
    pub fn memories(&self) -> impl Iterator<Item = (u64, &M)> {
        self.requests
            .iter()
            .filter_map(|(id, request)| Some((*id, request.memory.as_ref()?)))
    }

    /// What follows from an event.
    ///
    /// # Errors
    /// The connection is to be closed.
    pub fn handle(
        &mut self,
        now: Instant,
        input: Input<'_, M>,
        out: &mut Vec<Output>,
    ) -> Result<(), CloseReason> {
        if self.queue.is_empty() {
            self.wrote_at = now;
        }
        match input {
            Input::Greeting(greeting) => self.queue.agree(greeting.frame_bytes_max)?,
            Input::Frame(frame) => return self.frame(now, frame, out),
            Input::Request(request, admitted) => return self.begin(now, request, admitted, out),
            Input::Arrived(bytes) => return self.arrived(now, bytes, out),
            Input::Text(bytes) => return self.text(bytes, out),
            Input::Wrote(bytes) => self.wrote(now, bytes, out),
            Input::Committed(id, result) => self.committed(id, result),
            Input::Delivered(id, taken) => {
                let refusal = (!taken).then_some(Refusal::Limit);
                self.answer(id, refusal, 0);
            }
            Input::Lent(id) => {
                if let Some(RequestState::StagedWrite(staged)) = self.state(id) {
                    staged.lent();
                }
            }
            Input::NoRoom => self.stalled = true,
            Input::Resumed => (self.stalled, self.arrived_at) = (false, now),
            Input::Stored(id, stored) => self.stored(id, stored, out),
            Input::Fetched(id, fetched) => self.fetched(id, fetched, out),
            Input::Revoked(id, refusal) => self.give_up(id, refusal),
        }
        Ok(())
    }

    /// Checks the deadlines.
    pub fn on_deadline(&mut self, now: Instant) -> Result<(), CloseReason> {
        let held = self
            .requests
            .iter()
            .filter(|(_, request)| request.memory.is_some());
        let late: Vec<u64> = held
            .filter(|(_, request)| request.late_at <= now)
            .map(|(id, _)| *id)
            .collect();
        late.into_iter()
            .for_each(|id| self.give_up(id, Refusal::Deadline));
        let quiet = self.is_quiet() && self.queue.is_empty();
        let closes_at = if quiet {
            self.heard_at.max(self.wrote_at).max(self.arrived_at) + self.limits.idle_timeout
        } else {
            // The devices that are waited for have clocks of their own.
            let waits = self.waits_for_peer().unwrap_or(now);
            waits + self.limits.progress_timeout
        };
        if closes_at <= now {
            return Err(match quiet {
                true => CloseReason::Idle,
                false => CloseReason::Lost(Cause::TimedOut(Deadline::Progress)),
            });
        }
        let late_at = self
            .requests
            .values()
            .filter(|request| request.memory.is_some());
        let first = late_at.map(|request| request.late_at).min();
        self.wake = closes_at.min(first.unwrap_or(Instant::NEVER));
        Ok(())
    }

    /// What the next received bytes are.
    pub fn want(&self) -> Want {
        let payload = match &self.incoming {
            None => return Want::Header,
            Some(Incoming::Notice { left, .. }) => return Want::Text(*left),
            Some(Incoming::Payload(payload)) => payload,
        };
        let (id, left) = (payload.id, payload.left);
        let span = |offset, bytes: usize| Span { id, offset, bytes };
        match self.requests.get(&id).map(|request| &request.state) {
            Some(RequestState::Write { received, .. }) => Want::Memory(span(*received, left)),
            Some(RequestState::StagedWrite(_)) if self.stalled => Want::Nothing,
            Some(RequestState::StagedWrite(staged)) => match staged.room() {
                Ok(room) => Want::Memory(span(room.offset, room.bytes.min(left))),
                Err(chunk) => Want::Room(span(chunk.offset, chunk.bytes)),
            },
            _ => Want::Discard(left),
        }
    }

    /// Shows what to send, with the memory that it is from; see [`Piece`]. `take` says how many bytes of a piece it has
    /// room for, and is not called again after one that was not taken whole.
    pub fn gather(&mut self, mut take: impl FnMut(Piece<'_, &mut M>) -> usize) -> usize {
        let requests = &mut self.requests;
        self.queue.gather(|piece| match piece {
            Piece::Bytes(bytes) => take(Piece::Bytes(bytes)),
            Piece::Zeros(count) => take(Piece::Zeros(count)),
            Piece::Memory((), span) => requests
                .get_mut(&span.id)
                .and_then(|request| request.memory.as_mut())
                .map_or(0, |memory| take(Piece::Memory(memory, span))),
        })
    }

    /// Whether there is nothing to send.
    pub fn has_sent_all(&self) -> bool {
        self.queue.is_empty()
    }

    fn frame(
        &mut self,
        now: Instant,
        frame: Frame,
        out: &mut Vec<Output>,
    ) -> Result<(), CloseReason> {
        self.check_answers(now)?;
        match frame {
            Frame::Data(data) => return self.data(&data, out),
            Frame::Notify(notify) => return self.notify(now, &notify, out),
            Frame::Cancel { id } => self.cancel(id),
            Frame::Ping { token } => self.queue.push(&Frame::Pong { token }),
            Frame::Goaway | Frame::Pong { .. } => {}
            Frame::Request(_) => {
                return Err(CloseReason::protocol("a request that was not looked at"));
            }
            Frame::Ack(_) => {
                return Err(CloseReason::protocol(
                    "an acknowledgement from an initiator",
                ));
            }
        }
        Ok(())
    }

    /// A peer that sends requests and reads no answers must not fill memory here.
    fn check_answers(&mut self, now: Instant) -> Result<(), CloseReason> {
        self.heard_at = now;
        match self.queue.len() > 2 * self.limits.requests_max + SendQueue::FRAMES_MAX {
            true => Err(CloseReason::Limit(
                "more questions than answers that were read",
            )),
            false => Ok(()),
        }
    }

    /// Begins a request, or refuses it as `admitted` says.
    fn begin(
        &mut self,
        now: Instant,
        request: &Request,
        admitted: Result<Admitted<M>, Refusal>,
        out: &mut Vec<Output>,
    ) -> Result<(), CloseReason> {
        self.check_answers(now)?;
        let limits = self.limits;
        let (id, bytes) = (request.id, request.bytes);
        let over = self.held_bytes.saturating_add(bytes) > limits.in_flight_bytes_max
            || self.held >= limits.requests_max
            || self.requests.len() >= 2 * limits.requests_max;
        if self.requests.contains_key(&id) {
            // Copies of the first request may be under way, and their ends would count for the second.
            return Err(CloseReason::protocol(
                "a request under a number that is taken",
            ));
        }
        if over {
            self.answer(id, Some(Refusal::Limit), 0);
            return Err(CloseReason::Limit("more at once than was allowed"));
        }
        let Admitted {
            memory,
            chunk_bytes,
        } = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => {
                if request.op == Op::Write && bytes > 0 {
                    self.requests.insert(id, IncomingRequest::refused(now));
                }
                self.answer(id, Some(refusal), 0);
                return Ok(());
            }
        };
        if bytes == 0 {
            self.answer(id, None, 0);
            return Ok(());
        }
        let state = match (request.op, chunk_bytes) {
            (Op::Write, None) => RequestState::Write {
                received: 0,
                complete: false,
            },
            (Op::Write, Some(chunk)) => RequestState::StagedWrite(StagedWrite::new(bytes, chunk)),
            (Op::Read, Some(chunk)) => {
                let mut read = StagedRead::new(bytes, chunk);
                out.extend(read.fetch().map(|chunk| Output::Fetch(id, chunk)));
                RequestState::StagedRead(read)
            }
            (Op::Read, None) => {
                self.queue.push_source(PayloadSource {
                    id,
                    from: 0,
                    to: bytes,
                    more: false,
                    request: None,
                    acknowledged: true,
                    urgent: request.urgent,
                });
                RequestState::Read
            }
        };
        let late_at = match request.time_left_nanos {
            u64::MAX => Instant::NEVER,
            nanos => now + Duration::from_nanos(nanos) + limits.grace,
        };
        self.wake = self.wake.min(late_at).min(now + limits.progress_timeout);
        self.held += 1;
        self.held_bytes += bytes;
        let request = IncomingRequest {
            bytes,
            begun_at: now,
            urgent: request.urgent,
            late_at,
            memory: Some(memory),
            state,
        };
        self.requests.insert(id, request);
        Ok(())
    }

    fn answer(&mut self, id: u64, refusal: Option<Refusal>, bytes: u64) {
        self.queue.push(&Frame::Ack(Ack { id, refusal, bytes }));
    }

    fn state(&mut self, id: u64) -> Option<&mut RequestState> {
        self.requests.get_mut(&id).map(|request| &mut request.state)
    }

    /// Since when the peer has sent and read nothing that it has to; `None` when nothing waits for it.
    fn waits_for_peer(&self) -> Option<Instant> {
        let arriving = |request: &&IncomingRequest<M>| match &request.state {
            RequestState::Write { complete, .. } => !complete,
            RequestState::StagedWrite(staged) => !staged.is_complete(),
            RequestState::Ending(over) => over.payload,
            RequestState::Read | RequestState::StagedRead(_) => false,
        };
        let notice = match &self.incoming {
            Some(Incoming::Notice { begun_at, .. }) => Some(*begun_at),
            Some(Incoming::Payload(_)) | None => None,
        };
        let mut writes = self.requests.values().filter(arriving);
        let oldest = writes.by_ref().map(|write| write.begun_at).min();
        let write = oldest
            .filter(|_| !self.stalled)
            .map(|begun_at| begun_at.max(self.arrived_at));
        let unread = (!self.queue.is_empty()).then_some(self.wrote_at);
        [notice, write, unread].into_iter().flatten().min()
    }
}

impl<M> IncomingRequest<M> {
    /// A write that was refused at its header, whose payload may still come.
    fn refused(now: Instant) -> Self {
        Self {
            bytes: 0,
            begun_at: now,
            urgent: false,
            late_at: Instant::NEVER,
            memory: None,
            state: RequestState::Ending(Ending {
                waits: 0,
                owed: None,
                payload: true,
            }),
        }
    }
}
