//! The initiator's end of a connection: requests of this process that are under way at a peer.

use std::sync::Arc;

use slab::Slab;
use slackwater_base::Instant;
use slackwater_wire::data::{Ack, Data, Features, Frame, Greeting, Notify, Op, Request};

use super::config::REQUEST_BYTES_MAX;
use super::conn::{CloseReason, Payload};
use super::cursor::Cursor;
use super::record::{Opener, Sealer};
use super::scheduler::{Credit, Finished, LaneId, Moved};
use super::seal::{InitiatorHandshake, Keys, SealError};
use super::send_queue::{PayloadSource, SendQueue, Withdrawn};
use super::task::{Task, TaskKind};
use super::turn::Turn;
use crate::batch::BatchId;
use crate::cause::{Cause, Deadline};
use crate::segment::Segment;

/// The requests of this process on one connection.
#[derive(Debug)]
pub(crate) struct Initiator {
    pub(crate) id: LaneId,
    pub(crate) peer: Arc<Segment>,
    pub(crate) ready: bool,
    /// The handshake, until the answer to a greeting that asked for a sealed connection has come.
    handshake: Option<Box<InitiatorHandshake>>,
    flights: Slab<Flight>,
    next_generation: u32,
    /// When bytes last moved, or the first request was started.
    moved_at: Instant,
    idle_since: Instant,
}

#[derive(Debug)]
struct Flight {
    generation: u32,
    bytes: u64,
    /// None when the task has ended and only the target's answer is outstanding.
    task: Option<Task>,
    /// The local memory that the rest of a read goes to.
    cursor: Option<Cursor>,
    /// When the last byte of a write was handed to the kernel.
    sent_at: Option<Instant>,
    /// A write that was given up: the cause, and until when the target's answer is waited for.
    draining: Option<(Cause, Instant)>,
}

/// A task that has ended.
#[derive(Debug)]
pub(crate) struct FinishedTask {
    pub(crate) lane: LaneId,
    pub(crate) task: Task,
    pub(crate) outcome: Result<u64, Cause>,
}

/// The tasks of a lane that broke: those that can be started again, and those that failed.
#[derive(Debug, Default)]
pub(crate) struct LaneFailure {
    pub(crate) again: Vec<Task>,
    pub(crate) failed: Vec<(Task, Cause)>,
}

impl Initiator {
    pub(crate) fn new(id: LaneId, peer: Arc<Segment>, now: Instant) -> Self {
        let flights = Slab::new();
        Self {
            id,
            peer,
            ready: false,
            handshake: None,
            flights,
            next_generation: 1,
            moved_at: now,
            idle_since: now,
        }
    }

    pub(crate) fn hello(
        &mut self,
        queue: &mut SendQueue,
        turn: &Turn<'_>,
    ) -> Result<(), CloseReason> {
        let mut hello = turn
            .context
            .greeting(self.peer.incarnation, Features::default());
        if let Some(handshake) = turn
            .context
            .handshake(&self.peer, hello)
            .map_err(CloseReason::unsealed)?
        {
            hello = *handshake.hello();
            self.handshake = Some(Box::new(handshake));
        }
        queue.push_bytes(hello.to_bytes().to_vec());
        Ok(())
    }

    /// The greeting of the peer has come; returns what opens its records, if the connection is sealed.
    pub(crate) fn greeting(
        &mut self,
        greeting: &Greeting,
        queue: &mut SendQueue,
        turn: &mut Turn<'_>,
    ) -> Result<Option<Opener>, CloseReason> {
        let keys = match self.handshake.take() {
            Some(handshake) => Some(handshake.finish(greeting).map_err(CloseReason::unsealed)?),
            None if greeting.features.has(Features::SEALED) => {
                return Err(CloseReason::unsealed(SealError::Unsealed));
            }
            None => None,
        };
        let (expected, found) = (self.peer.incarnation, greeting.incarnation);
        if found != expected {
            return Err(CloseReason::Gone(Cause::Gone { expected, found }));
        }
        if greeting.in_flight_bytes_max < REQUEST_BYTES_MAX {
            return Err(CloseReason::protocol(
                "it takes smaller requests than any peer may ask for",
            ));
        }
        self.ready = true;
        self.idle_since = turn.now;
        turn.need(turn.now + turn.context.config.gc_interval);
        let requests = greeting.requests_max.min(turn.context.config.requests_max) as usize;
        turn.ready.push((
            self.id,
            Credit {
                requests,
                bytes: greeting.in_flight_bytes_max,
            },
        ));
        Ok(keys.map(|Keys { send, receive }| {
            queue.seal(Sealer::first(send));
            Opener::new(receive)
        }))
    }

    /// Bytes were sent or received.
    pub(crate) fn moved(&mut self, now: Instant) {
        self.moved_at = now;
    }

    /// Starts a task.
    pub(crate) fn start(&mut self, task: Task, queue: &mut SendQueue, turn: &mut Turn<'_>) {
        if task.part().is_cancelled() {
            return self.end_unbegun(task, Cause::Cancelled, turn);
        }
        if task.deadline() <= turn.now {
            return self.end_unbegun(task, Cause::TimedOut(Deadline::Total), turn);
        }
        if self.flights.is_empty() {
            self.moved_at = turn.now;
        }
        let generation = self.next_generation;
        self.next_generation = self.next_generation.checked_add(1).unwrap_or(1);
        let entry = self.flights.vacant_entry();
        let id = u64::from(generation) << 32 | entry.key() as u64;
        task.part().started();
        let mut cursor = None;
        match &task.kind {
            TaskKind::Job(job) => {
                let request = Frame::Request(Request {
                    id,
                    op: job.op,
                    urgent: task.is_urgent(),
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
                        queue.push(&request);
                        cursor = Some(memory);
                    }
                    Op::Write => queue.push_source(PayloadSource {
                        id,
                        cursor: memory,
                        base: 0,
                        more: false,
                        request: Some(request),
                        ack_credit: None,
                        urgent: task.is_urgent(),
                    }),
                }
            }
            TaskKind::Notify { notice, .. } => {
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
                queue.push_bytes(frame);
            }
            TaskKind::Probe { .. } => queue.push(&Frame::Ping { token: id }),
        }
        let bytes = task.bytes();
        turn.need(task.deadline());
        turn.need(turn.now + turn.context.config.progress_timeout);
        entry.insert(Flight {
            generation,
            bytes,
            task: Some(task),
            cursor,
            sent_at: None,
            draining: None,
        });
    }

    pub(crate) fn frame(
        &mut self,
        frame: Frame,
        queue: &mut SendQueue,
        turn: &mut Turn<'_>,
    ) -> Result<Option<Payload>, CloseReason> {
        match frame {
            Frame::Data(data) => return self.data(&data, turn).map(Some),
            Frame::Ack(ack) => self.ack(&ack, queue, turn)?,
            Frame::Pong { token } => {
                let asked =
                    |flight: &Flight| flight.task.as_ref().is_none_or(|task| task.is_probe());
                let flight = match self.flight(token) {
                    Some(flight) if asked(flight) => self.remove(token, turn.now),
                    _ => None,
                };
                self.finish(
                    flight.ok_or(CloseReason::protocol("an answer to no question"))?,
                    Ok(0),
                    turn,
                );
            }
            Frame::Goaway => {
                let reason = "the peer takes no more requests on this connection";
                return Err(CloseReason::Lost(Cause::Lost(reason.to_owned())));
            }
            Frame::Request(_) | Frame::Cancel { .. } | Frame::Notify(_) | Frame::Ping { .. } => {
                return Err(CloseReason::protocol("a request from a target"));
            }
        }
        Ok(None)
    }

    /// The cursor that payload of a read goes to; none when it is discarded.
    pub(crate) fn cursor(&mut self, id: u64) -> Option<&mut Cursor> {
        self.flight(id)?.cursor.as_mut()
    }

    /// The last byte of a write was handed to the kernel.
    pub(crate) fn sent(&mut self, id: u64, turn: &mut Turn<'_>) {
        let now = turn.now;
        if let Some(flight) = self.flight(id) {
            flight.sent_at = Some(now);
            turn.need(now + turn.context.config.ack_timeout);
        }
    }

    /// Gives up the tasks of a batch.
    pub(crate) fn cancel(&mut self, batch: BatchId, queue: &mut SendQueue, turn: &mut Turn<'_>) {
        let of_batch = |flight: &Flight| {
            flight.draining.is_none()
                && flight
                    .task
                    .as_ref()
                    .is_some_and(|task| task.batch() == batch)
        };
        let keys: Vec<usize> = self
            .flights
            .iter()
            .filter(|(_, flight)| of_batch(flight))
            .map(|(key, _)| key)
            .collect();
        keys.into_iter()
            .for_each(|key| self.abandon(key, Cause::Cancelled, queue, turn));
    }

    /// Checks the deadlines.
    pub(crate) fn sweep(
        &mut self,
        queue: &mut SendQueue,
        turn: &mut Turn<'_>,
    ) -> Result<(), CloseReason> {
        let (now, config) = (turn.now, turn.context.config.clone());
        if self.flights.is_empty() {
            let idle_until = self.idle_since + config.idle_timeout;
            if self.ready && idle_until <= now {
                return Err(CloseReason::Idle);
            }
            turn.need(idle_until.max(now + config.gc_interval));
            return Ok(());
        }
        let stalled_at = self.moved_at + config.progress_timeout;
        if stalled_at <= now {
            return Err(CloseReason::Lost(Cause::TimedOut(Deadline::Progress)));
        }
        turn.need(stalled_at.min(now + config.gc_interval));
        let mut late = Vec::new();
        for (key, flight) in &self.flights {
            if let Some(until) = flight.sent_at.map(|at| at + config.ack_timeout) {
                if until <= now {
                    return Err(CloseReason::Lost(Cause::TimedOut(
                        Deadline::Acknowledgement,
                    )));
                }
                turn.need(until);
            }
            if let Some((_, until)) = &flight.draining {
                if *until <= now {
                    return Err(CloseReason::Lost(Cause::Lost(
                        "no word about a cancelled write".to_owned(),
                    )));
                }
                turn.need(*until);
            } else if let Some(task) = &flight.task {
                match task.deadline() <= now {
                    true => late.push(key),
                    false => turn.need(task.deadline()),
                }
            }
        }
        late.into_iter()
            .for_each(|key| self.abandon(key, Cause::TimedOut(Deadline::Total), queue, turn));
        Ok(())
    }

    /// Takes all tasks off a lane that broke. Its send queue is dropped by now; `untouched` says of which requests no
    /// byte was sent.
    pub(crate) fn fail_tasks(
        &mut self,
        cause: &Cause,
        untouched: impl Fn(u64) -> bool,
    ) -> LaneFailure {
        let mut failure = LaneFailure::default();
        for (key, flight) in std::mem::take(&mut self.flights) {
            let id = u64::from(flight.generation) << 32 | key as u64;
            let Some(task) = flight.task else { continue };
            let again = match &task.kind {
                TaskKind::Job(job) => job.op == Op::Read || untouched(id),
                TaskKind::Notify { .. } => false,
                TaskKind::Probe { .. } => true,
            };
            match flight.draining {
                Some((given_up, _)) => failure.failed.push((task, given_up)),
                None if again => failure.again.push(task),
                None => failure.failed.push((task, cause.clone())),
            }
        }
        failure
    }

    /// Gives up one request. The memory of a read is released at once, and payload that still comes is discarded; a
    /// write waits a little for the target's answer, so that nothing of it is applied after its end was reported.
    fn abandon(&mut self, key: usize, cause: Cause, queue: &mut SendQueue, turn: &mut Turn<'_>) {
        let flight = &mut self.flights[key];
        let id = u64::from(flight.generation) << 32 | key as u64;
        let writes = matches!(&flight.task, Some(Task { kind: TaskKind::Job(job), .. }) if job.op == Op::Write);
        let untouched = queue.is_untouched(id);
        let withdrawn = queue.withdraw(id, None);
        if untouched && withdrawn == Withdrawn::Unbegun {
            if let Some(flight) = self.remove(id, turn.now) {
                self.finish(flight, Err(cause), turn);
            }
            return;
        }
        queue.push(&Frame::Cancel { id });
        if writes {
            let until = turn.now + turn.context.config.drain_timeout;
            flight.draining = Some((cause, until));
            turn.need(until);
            return;
        }
        flight.cursor = None;
        if let Some(task) = flight.task.take() {
            turn.ended.push(FinishedTask {
                lane: self.id,
                task,
                outcome: Err(cause),
            });
        }
    }

    fn data(&mut self, data: &Data, turn: &Turn<'_>) -> Result<Payload, CloseReason> {
        if data.bytes as usize > turn.context.frame_bytes_max() {
            return Err(CloseReason::protocol("a frame over the limit"));
        }
        let flight = self
            .flight(data.id)
            .ok_or(CloseReason::protocol("data of no request"))?;
        if let Some(cursor) = &flight.cursor {
            let at = flight.bytes - cursor.left();
            if data.offset != at || u64::from(data.bytes) > cursor.left() {
                return Err(CloseReason::protocol(
                    "data that does not follow what came before",
                ));
            }
        } else if flight.task.is_some() {
            return Err(CloseReason::protocol(
                "data of a request that reads nothing",
            ));
        }
        Ok(Payload {
            id: Some(data.id),
            left: data.bytes as usize,
            last: data.last,
        })
    }

    fn ack(
        &mut self,
        ack: &Ack,
        queue: &mut SendQueue,
        turn: &mut Turn<'_>,
    ) -> Result<(), CloseReason> {
        let flight = self
            .remove(ack.id, turn.now)
            .ok_or(CloseReason::protocol("an acknowledgement of no request"))?;
        let Some(task) = &flight.task else {
            return Ok(());
        };
        let outcome = match (ack.refusal, &task.kind) {
            (Some(refusal), kind) => {
                let unsent = matches!(kind, TaskKind::Job(job) if job.op == Op::Write)
                    && flight.sent_at.is_none();
                if unsent && flight.draining.is_none() {
                    // The rest need not be sent; the target discards what is on its way.
                    queue.withdraw(ack.id, None);
                    queue.push(&Frame::Cancel { id: ack.id });
                }
                Err(Cause::Refused(refusal))
            }
            (None, TaskKind::Job(job)) => {
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
            (None, TaskKind::Notify { .. } | TaskKind::Probe { .. }) => Ok(0),
        };
        self.finish(flight, outcome, turn);
        Ok(())
    }

    /// The target acknowledged other bytes than it was asked for.
    fn contradict(&mut self, flight: Flight, turn: &mut Turn<'_>) -> Result<(), CloseReason> {
        let reason = "an acknowledgement of more or less than was asked for";
        self.finish(flight, Err(Cause::Protocol(reason.to_owned())), turn);
        Err(CloseReason::protocol(reason))
    }

    fn finish(&mut self, mut flight: Flight, outcome: Result<u64, Cause>, turn: &mut Turn<'_>) {
        flight.cursor = None;
        let outcome = match flight.draining.take() {
            Some((cause, _)) => Err(cause),
            None => outcome,
        };
        if let Some(task) = flight.task {
            turn.ended.push(FinishedTask {
                lane: self.id,
                task,
                outcome,
            });
        }
    }

    fn end_unbegun(&mut self, task: Task, cause: Cause, turn: &mut Turn<'_>) {
        turn.ended.push(FinishedTask {
            lane: self.id,
            task,
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

impl FinishedTask {
    /// The end of the task, for the scheduler's counters.
    pub(crate) fn finished(&self) -> Finished {
        let moved = match (&self.outcome, &self.task.kind) {
            (Err(Cause::Refused(_)), _) => Moved::Refused,
            (Err(_), _) => Moved::Nothing,
            (Ok(bytes), TaskKind::Job(job)) if job.op == Op::Read => Moved::Read(*bytes),
            (Ok(bytes), TaskKind::Job(_)) => Moved::Written(*bytes),
            (Ok(_), TaskKind::Notify { .. } | TaskKind::Probe { .. }) => Moved::Answered,
        };
        Finished {
            peer: self.task.peer,
            epoch: self.task.epoch,
            bytes: self.task.bytes(),
            moved,
        }
    }
}
