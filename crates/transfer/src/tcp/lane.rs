//! The active end of a connection: requests of this process that are under way at a peer.

use std::sync::Arc;

use slab::Slab;
use slackwater_base::Instant;
use slackwater_wire::data::{Ack, Data, Features, Frame, Greeting, Notify, Op, Request};

use super::config::REQUEST_BYTES_MAX;
use super::conn::{Broken, Payload};
use super::cursor::Cursor;
use super::hub::{Credit, Finished, LaneId, Moved};
use super::outlet::{Outlet, Source, Withdrawn};
use super::record::{Opener, Sealer};
use super::seal::{Initiator, Keys, SealError};
use super::turn::Turn;
use super::work::{Kind, Work};
use crate::batch::BatchId;
use crate::cause::{Cause, Clock};
use crate::segment::Segment;

/// Requests under way on one connection to one peer.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) id: LaneId,
    pub(crate) peer: Arc<Segment>,
    pub(crate) ready: bool,
    /// While the answer to a greeting that asked for a sealed connection is on its way.
    initiator: Option<Box<Initiator>>,
    flights: Slab<Flight>,
    next_generation: u32,
    /// When bytes last moved, or when the first flight began.
    moved_at: Instant,
    idle_since: Instant,
}

#[derive(Debug)]
struct Flight {
    generation: u32,
    bytes: u64,
    /// None when the work is over and only the peer's last word is missing.
    work: Option<Work>,
    /// Where the rest of a read goes.
    cursor: Option<Cursor>,
    /// The last byte of a write has left, then.
    sent_at: Option<Instant>,
    /// A write that was given up: why, and until when its peer's word is waited for.
    draining: Option<(Cause, Instant)>,
}

/// Work that is over.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) lane: LaneId,
    pub(crate) work: Work,
    pub(crate) outcome: Result<u64, Cause>,
}

/// Work of a lane that broke: what can be begun again, and what has failed.
#[derive(Debug, Default)]
pub(crate) struct Wreck {
    pub(crate) again: Vec<Work>,
    pub(crate) failed: Vec<(Work, Cause)>,
}

impl Lane {
    pub(crate) fn new(id: LaneId, peer: Arc<Segment>, now: Instant) -> Self {
        let flights = Slab::new();
        Self {
            id,
            peer,
            ready: false,
            initiator: None,
            flights,
            next_generation: 1,
            moved_at: now,
            idle_since: now,
        }
    }

    pub(crate) fn hello(&mut self, outlet: &mut Outlet, turn: &Turn<'_>) -> Result<(), Broken> {
        let mut hello = turn
            .shared
            .greeting(self.peer.incarnation, Features::default());
        if let Some(initiator) = turn
            .shared
            .initiator(&self.peer, hello)
            .map_err(Broken::unsealed)?
        {
            hello = *initiator.hello();
            self.initiator = Some(Box::new(initiator));
        }
        outlet.push_bytes(hello.to_bytes().to_vec());
        Ok(())
    }

    /// The peer has said who it is; what it sends from now on is sealed if there is an opener for it.
    pub(crate) fn greeting(
        &mut self,
        greeting: &Greeting,
        outlet: &mut Outlet,
        turn: &mut Turn<'_>,
    ) -> Result<Option<Opener>, Broken> {
        let keys = match self.initiator.take() {
            Some(initiator) => Some(initiator.finish(greeting).map_err(Broken::unsealed)?),
            None if greeting.features.has(Features::SEALED) => {
                return Err(Broken::unsealed(SealError::Unsealed));
            }
            None => None,
        };
        let (expected, found) = (self.peer.incarnation, greeting.incarnation);
        if found != expected {
            return Err(Broken::Gone(Cause::Gone { expected, found }));
        }
        if greeting.in_flight_bytes_max < REQUEST_BYTES_MAX {
            return Err(Broken::protocol(
                "it takes smaller requests than any peer may ask for",
            ));
        }
        self.ready = true;
        self.idle_since = turn.now;
        turn.need(turn.now + turn.shared.config.gc_interval);
        let requests = greeting.requests_max.min(turn.shared.config.requests_max) as usize;
        turn.ready.push((
            self.id,
            Credit {
                requests,
                bytes: greeting.in_flight_bytes_max,
            },
        ));
        Ok(keys.map(|Keys { send, receive }| {
            outlet.seal(Sealer::first(send));
            Opener::new(receive)
        }))
    }

    /// Bytes went or came.
    pub(crate) fn moved(&mut self, now: Instant) {
        self.moved_at = now;
    }

    /// Begins work.
    pub(crate) fn start(&mut self, work: Work, outlet: &mut Outlet, turn: &mut Turn<'_>) {
        if work.part().is_cancelled() {
            return self.end_unbegun(work, Cause::Cancelled, turn);
        }
        if work.deadline() <= turn.now {
            return self.end_unbegun(work, Cause::TimedOut(Clock::Total), turn);
        }
        if self.flights.is_empty() {
            self.moved_at = turn.now;
        }
        let generation = self.next_generation;
        self.next_generation = self.next_generation.checked_add(1).unwrap_or(1);
        let entry = self.flights.vacant_entry();
        let id = u64::from(generation) << 32 | entry.key() as u64;
        work.part().started();
        let mut cursor = None;
        match &work.kind {
            Kind::Job(job) => {
                let request = Frame::Request(Request {
                    id,
                    op: job.op,
                    urgent: work.is_urgent(),
                    offset: job.remote.offset,
                    bytes: job.buffers.bytes(),
                    time_left_nanos: turn
                        .now
                        .until(job.deadline)
                        .as_nanos()
                        .try_into()
                        .unwrap_or(u64::MAX),
                    capability: job.remote.capability,
                });
                let memory = Cursor::new(job.buffers.clone());
                match job.op {
                    Op::Read => {
                        outlet.push(&request);
                        cursor = Some(memory);
                    }
                    Op::Write => outlet.push_source(Source {
                        id,
                        cursor: memory,
                        base: 0,
                        more: false,
                        request: Some(request),
                        ack_credit: None,
                        urgent: work.is_urgent(),
                    }),
                }
            }
            Kind::Notify { notice, .. } => {
                let (name_bytes, bytes) = (notice.name.len() as u32, notice.bytes.len() as u32);
                let mut frame = Vec::new();
                Frame::Notify(Notify {
                    id,
                    name_bytes,
                    bytes,
                })
                .write(&mut frame);
                frame.extend_from_slice(notice.name.as_bytes());
                frame.extend_from_slice(&notice.bytes);
                outlet.push_bytes(frame);
            }
            Kind::Probe { .. } => outlet.push(&Frame::Ping { token: id }),
        }
        let bytes = work.bytes();
        turn.need(work.deadline());
        turn.need(turn.now + turn.shared.config.progress_timeout);
        entry.insert(Flight {
            generation,
            bytes,
            work: Some(work),
            cursor,
            sent_at: None,
            draining: None,
        });
    }

    pub(crate) fn frame(
        &mut self,
        frame: Frame,
        outlet: &mut Outlet,
        turn: &mut Turn<'_>,
    ) -> Result<Option<Payload>, Broken> {
        match frame {
            Frame::Data(data) => return self.data(&data, turn).map(Some),
            Frame::Ack(ack) => self.ack(&ack, outlet, turn)?,
            Frame::Pong { token } => {
                let asked =
                    |flight: &Flight| flight.work.as_ref().is_none_or(|work| work.is_probe());
                let flight = match self.flight(token) {
                    Some(flight) if asked(flight) => self.remove(token, turn.now),
                    _ => None,
                };
                self.finish(
                    flight.ok_or(Broken::protocol("an answer to no question"))?,
                    Ok(0),
                    turn,
                );
            }
            Frame::Goaway => {
                let reason = "the peer takes no more requests on this connection";
                return Err(Broken::Lost(Cause::Lost(reason.to_owned())));
            }
            Frame::Request(_) | Frame::Cancel { .. } | Frame::Notify(_) | Frame::Ping { .. } => {
                return Err(Broken::protocol("a request from a target"));
            }
        }
        Ok(None)
    }

    /// Where the payload of a read goes; none when it is thrown away.
    pub(crate) fn cursor(&mut self, id: u64) -> Option<&mut Cursor> {
        self.flight(id)?.cursor.as_mut()
    }

    /// The last byte of a write is with the kernel.
    pub(crate) fn sent(&mut self, id: u64, turn: &mut Turn<'_>) {
        let now = turn.now;
        if let Some(flight) = self.flight(id) {
            flight.sent_at = Some(now);
            turn.need(now + turn.shared.config.ack_timeout);
        }
    }

    /// Gives up the work of a batch.
    pub(crate) fn cancel(&mut self, batch: BatchId, outlet: &mut Outlet, turn: &mut Turn<'_>) {
        let of_batch = |flight: &Flight| {
            flight.draining.is_none()
                && flight
                    .work
                    .as_ref()
                    .is_some_and(|work| work.batch() == batch)
        };
        let keys: Vec<usize> = self
            .flights
            .iter()
            .filter(|(_, flight)| of_batch(flight))
            .map(|(key, _)| key)
            .collect();
        keys.into_iter()
            .for_each(|key| self.abandon(key, Cause::Cancelled, outlet, turn));
    }

    /// Looks at the clocks.
    pub(crate) fn sweep(&mut self, outlet: &mut Outlet, turn: &mut Turn<'_>) -> Result<(), Broken> {
        let (now, config) = (turn.now, turn.shared.config.clone());
        if self.flights.is_empty() {
            let idle_until = self.idle_since + config.idle_timeout;
            if self.ready && idle_until <= now {
                return Err(Broken::Idle);
            }
            turn.need(idle_until.max(now + config.gc_interval));
            return Ok(());
        }
        let stalled_at = self.moved_at + config.progress_timeout;
        if stalled_at <= now {
            return Err(Broken::Lost(Cause::TimedOut(Clock::Progress)));
        }
        turn.need(stalled_at.min(now + config.gc_interval));
        let mut late = Vec::new();
        for (key, flight) in &self.flights {
            if let Some(until) = flight.sent_at.map(|at| at + config.ack_timeout) {
                if until <= now {
                    return Err(Broken::Lost(Cause::TimedOut(Clock::Acknowledgement)));
                }
                turn.need(until);
            }
            if let Some((_, until)) = &flight.draining {
                if *until <= now {
                    return Err(Broken::Lost(Cause::Lost(
                        "no word about a cancelled write".to_owned(),
                    )));
                }
                turn.need(*until);
            } else if let Some(work) = &flight.work {
                match work.deadline() <= now {
                    true => late.push(key),
                    false => turn.need(work.deadline()),
                }
            }
        }
        late.into_iter()
            .for_each(|key| self.abandon(key, Cause::TimedOut(Clock::Total), outlet, turn));
        Ok(())
    }

    /// Takes everything off a lane that broke. Its outlet is dropped by now, except for what `untouched` tells of it.
    pub(crate) fn wreck(&mut self, cause: &Cause, untouched: impl Fn(u64) -> bool) -> Wreck {
        let mut wreck = Wreck::default();
        for (key, flight) in std::mem::take(&mut self.flights) {
            let id = u64::from(flight.generation) << 32 | key as u64;
            let Some(work) = flight.work else { continue };
            let again = match &work.kind {
                Kind::Job(job) => job.op == Op::Read || untouched(id),
                Kind::Notify { .. } => false,
                Kind::Probe { .. } => true,
            };
            match flight.draining {
                Some((given_up, _)) => wreck.failed.push((work, given_up)),
                None if again => wreck.again.push(work),
                None => wreck.failed.push((work, cause.clone())),
            }
        }
        wreck
    }

    /// Gives up one flight. A read's memory is let go of at once and what still comes is thrown away; a write waits a
    /// little for its peer's word, so that nothing of it is applied after it was reported over.
    fn abandon(&mut self, key: usize, cause: Cause, outlet: &mut Outlet, turn: &mut Turn<'_>) {
        let flight = &mut self.flights[key];
        let id = u64::from(flight.generation) << 32 | key as u64;
        let writes =
            matches!(&flight.work, Some(Work { kind: Kind::Job(job), .. }) if job.op == Op::Write);
        let untouched = outlet.is_untouched(id);
        let withdrawn = outlet.withdraw(id, None);
        if untouched && withdrawn == Withdrawn::Unbegun {
            if let Some(flight) = self.remove(id, turn.now) {
                self.finish(flight, Err(cause), turn);
            }
            return;
        }
        outlet.push(&Frame::Cancel { id });
        if writes {
            let until = turn.now + turn.shared.config.drain_timeout;
            flight.draining = Some((cause, until));
            turn.need(until);
            return;
        }
        flight.cursor = None;
        if let Some(work) = flight.work.take() {
            turn.ended.push(Ended {
                lane: self.id,
                work,
                outcome: Err(cause),
            });
        }
    }

    fn data(&mut self, data: &Data, turn: &Turn<'_>) -> Result<Payload, Broken> {
        if data.bytes as usize > turn.shared.frame_bytes_max() {
            return Err(Broken::protocol("a frame over the limit"));
        }
        let flight = self
            .flight(data.id)
            .ok_or(Broken::protocol("data of no request"))?;
        if let Some(cursor) = &flight.cursor {
            let at = flight.bytes - cursor.left();
            if data.offset != at || u64::from(data.bytes) > cursor.left() {
                return Err(Broken::protocol(
                    "data that does not follow what came before",
                ));
            }
        } else if flight.work.is_some() {
            return Err(Broken::protocol("data of a request that reads nothing"));
        }
        Ok(Payload {
            id: Some(data.id),
            left: data.bytes as usize,
            last: data.last,
        })
    }

    fn ack(&mut self, ack: &Ack, outlet: &mut Outlet, turn: &mut Turn<'_>) -> Result<(), Broken> {
        let flight = self
            .remove(ack.id, turn.now)
            .ok_or(Broken::protocol("an acknowledgement of no request"))?;
        let Some(work) = &flight.work else {
            return Ok(());
        };
        let outcome = match (ack.refusal, &work.kind) {
            (Some(refusal), kind) => {
                let unsent = matches!(kind, Kind::Job(job) if job.op == Op::Write)
                    && flight.sent_at.is_none();
                if unsent && flight.draining.is_none() {
                    // The rest need not be sent; the peer throws away what is on its way.
                    outlet.withdraw(ack.id, None);
                    outlet.push(&Frame::Cancel { id: ack.id });
                }
                Err(Cause::Refused(refusal))
            }
            (None, Kind::Job(job)) => {
                let whole = match job.op {
                    Op::Read => flight
                        .cursor
                        .as_ref()
                        .is_some_and(|cursor| cursor.left() == 0),
                    Op::Write => flight.sent_at.is_some(),
                };
                if !whole && flight.draining.is_none() || ack.bytes != flight.bytes {
                    return self.contradict(flight, turn);
                }
                Ok(flight.bytes)
            }
            (None, Kind::Notify { .. } | Kind::Probe { .. }) => Ok(0),
        };
        self.finish(flight, outcome, turn);
        Ok(())
    }

    /// The peer acknowledges what did not happen.
    fn contradict(&mut self, flight: Flight, turn: &mut Turn<'_>) -> Result<(), Broken> {
        let reason = "an acknowledgement of more or less than was asked for";
        self.finish(flight, Err(Cause::Protocol(reason.to_owned())), turn);
        Err(Broken::protocol(reason))
    }

    fn finish(&mut self, mut flight: Flight, outcome: Result<u64, Cause>, turn: &mut Turn<'_>) {
        flight.cursor = None;
        let outcome = match flight.draining.take() {
            Some((cause, _)) => Err(cause),
            None => outcome,
        };
        if let Some(work) = flight.work {
            turn.ended.push(Ended {
                lane: self.id,
                work,
                outcome,
            });
        }
    }

    fn end_unbegun(&mut self, work: Work, cause: Cause, turn: &mut Turn<'_>) {
        turn.ended.push(Ended {
            lane: self.id,
            work,
            outcome: Err(cause),
        });
    }

    fn flight(&mut self, id: u64) -> Option<&mut Flight> {
        self.flights
            .get_mut(id as u32 as usize)
            .filter(|flight| u64::from(flight.generation) == id >> 32)
    }

    fn remove(&mut self, id: u64, now: Instant) -> Option<Flight> {
        self.flight(id)?;
        let flight = self.flights.remove(id as u32 as usize);
        if self.flights.is_empty() {
            self.idle_since = now;
        }
        Some(flight)
    }
}

impl Ended {
    /// For the books.
    pub(crate) fn finished(&self) -> Finished {
        let moved = match (&self.outcome, &self.work.kind) {
            (Err(Cause::Refused(_)), _) => Moved::Refused,
            (Err(_), _) => Moved::Nothing,
            (Ok(bytes), Kind::Job(job)) if job.op == Op::Read => Moved::Read(*bytes),
            (Ok(bytes), Kind::Job(_)) => Moved::Written(*bytes),
            (Ok(_), Kind::Notify { .. } | Kind::Probe { .. }) => Moved::Answered,
        };
        Finished {
            peer: self.work.peer,
            epoch: self.work.epoch,
            bytes: self.work.bytes(),
            moved,
        }
    }
}
