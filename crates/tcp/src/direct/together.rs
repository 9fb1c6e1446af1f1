//! Small requests of many callers to one peer, on a few connections.
//!
//! A caller that comes while others are on the connections of a crowd queues its request and sleeps. One that is there, a
//! leader, sends what has been queued with one call, receives the answers of all, and wakes each caller whose request has
//! ended. When it has its own answer it leaves, and the caller of the newest request leads. So a crowd pays for one send and
//! one receive call a round instead of one for each caller, at the target too (flat combining: Hendler, Incze, Shavit and
//! Tzafrir, SPAA 2010). A few lead at once, each on a connection: while one wakes callers the peer answers those of another.

use std::collections::VecDeque;
use std::sync::Arc;

use slackwater_base::Instant;
use slackwater_data_plane::protocol::CloseReason;
use slackwater_data_plane::{Cause, Deadline};
use slackwater_wait::{Completion, Site, Stopped, Waiting, now};
use slackwater_wire::Incarnation;
use slackwater_wire::data::Segment;

use super::Direct;
use super::client::{Answer, BorrowedConnection, LoneRequest, Outcome};
use crate::context::TcpContext;

/// The largest requests that go together: of larger ones the copy by several threads is worth more than the calls.
pub(super) const TOGETHER_BYTES: u64 = 16 << 10;
/// The callers of one peer whose requests go together at most, those that lead and wait among them.
pub(super) const TOGETHER_CALLERS: usize = 1024;
/// Further callers that make a crowd. Fewer have a connection each, on which nobody waits for another.
const CROWD: usize = 7;
/// Requests after which a crowd that was not met again is over: callers that were woken together come back one by one.
const CROWD_LASTS: u32 = 128;

/// Callers that lead at once however fast the peer is: one wakes others, one waits for the peer, and one sends. With one alone the
/// peer waits for wakes and callers for the peer; with twice as many each carries little more than its own request.
const LEADERS_ALWAYS: usize = 3;
/// The most callers that lead at once. More than those do where the peer is slow to answer them, as where it reads what is asked for
/// from a disk.
pub(super) const LEADERS: usize = 6;

/// Times its patience that a request stays queued while as many lead as may: those who lead take what is queued as soon as one
/// of them has an answer, and a lane costs two wakes.
const PATIENCE_FOR_LEADERS: u32 = 100;

/// Where callers wait for the one that carries their requests.
static TOGETHER: Site = Site::new("transfer together");

/// The callers of one peer whose requests go together.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// Requests that have not been started, each with its waiter.
    queue: VecDeque<Box<LoneRequest>>,
    /// Callers that lead.
    leaders: usize,
    /// Requests for which the crowd still counts as being there.
    lasts: u32,
    last_ticket: u64,
}

/// How a caller takes part.
#[derive(Debug)]
pub(super) enum Part {
    /// It leads.
    Lead(Box<LoneRequest>),
    /// It waits for one that leads; its request has this ticket.
    Wait(Completion<Answer>, u64),
}

/// The duty of a caller that leads. If it is dropped by a panic, the requests that nobody has started fail.
struct Leading<'a> {
    direct: &'a Direct,
    peer: Incarnation,
    /// The request of the caller itself, until it is started.
    own: Option<Box<LoneRequest>>,
    is_over: bool,
}

impl Crowd {
    /// Whether a caller that finds so many others is one of a crowd.
    pub(super) fn is_met(&mut self, others: usize) -> bool {
        self.lasts = match others >= CROWD {
            true => CROWD_LASTS,
            false => self.lasts.saturating_sub(1),
        };
        self.lasts > 0
    }

    /// The first callers lead; the requests of others are queued.
    pub(super) fn join(&mut self, mut lone: Box<LoneRequest>) -> Part {
        if self.leaders < LEADERS_ALWAYS {
            self.leaders += 1;
            return Part::Lead(lone);
        }
        let (completer, completion) = Completion::new();
        self.last_ticket += 1;
        (lone.ticket, lone.waiter) = (self.last_ticket, Some(completer));
        self.queue.push_back(lone);
        Part::Wait(completion, self.last_ticket)
    }

    /// Takes a request back that nobody has started.
    fn leave(&mut self, ticket: u64) -> Option<Box<LoneRequest>> {
        let index = self.queue.iter().position(|lone| lone.ticket == ticket)?;
        self.queue.remove(index)
    }

    /// Has the caller of a queued request lead beside those that do; none where too many lead, or its request was started.
    fn lead_too(&mut self, ticket: u64) -> Option<Box<LoneRequest>> {
        if self.leaders >= LEADERS {
            return None;
        }
        let mut lone = self.leave(ticket)?;
        lone.waiter = None;
        self.leaders += 1;
        Some(lone)
    }

    /// A caller leads no more, and no other one in its place. Returns the requests that nobody is left to start.
    fn end_lead(&mut self) -> VecDeque<Box<LoneRequest>> {
        self.leaders -= 1;
        match self.leaders {
            0 => std::mem::take(&mut self.queue),
            _ => VecDeque::new(),
        }
    }

    /// Takes the requests that have not been started.
    pub(super) fn take_queued(&mut self) -> VecDeque<Box<LoneRequest>> {
        std::mem::take(&mut self.queue)
    }
}

impl Direct {
    /// Carries the request that its caller has joined the crowd with.
    pub(super) fn take_part(
        &self,
        part: Part,
        context: &TcpContext,
        segment: &Arc<Segment>,
        deadline: Instant,
    ) -> Outcome {
        let peer = segment.incarnation;
        let (begun, patience) = (now(), context.config.crowd_patience);
        let limits = [
            begun + patience,
            begun + patience.saturating_mul(PATIENCE_FOR_LEADERS),
            deadline,
        ];
        let (own, connection) = match part {
            Part::Lead(lone) => (Some(lone), None),
            Part::Wait(completion, ticket) => {
                match self.wait_for_answer(peer, completion, ticket, limits) {
                    Answer::Ended(outcome) => return outcome,
                    Answer::Lead { own, connection } => (own, connection),
                }
            }
        };
        let mut leading = Leading {
            direct: self,
            peer,
            own,
            is_over: false,
        };
        let connection = connection.or_else(|| self.idle(peer));
        let connected = match connection {
            Some(connection) => Ok(connection),
            None => self.connect(context, segment, deadline),
        };
        match connected {
            Ok(connection) => leading.carry(connection),
            Err(cause) => leading.refuse_all(&cause),
        }
    }

    fn wait_for_answer(
        &self,
        peer: Incarnation,
        mut completion: Completion<Answer>,
        ticket: u64,
        [patient_until, lanes_at, deadline]: [Instant; 3],
    ) -> Answer {
        let waiting = Waiting::at(&TOGETHER);
        let mut answer = completion.wait(&waiting.until(deadline.min(patient_until)));
        if matches!(answer, Err(Stopped::Ended(_))) && patient_until < deadline {
            if let Some(lone) = self.crowd(peer, |crowd| crowd.lead_too(ticket)) {
                let (own, connection) = (Some(lone), None);
                return Answer::Lead { own, connection };
            }
            answer = completion.wait(&waiting.until(deadline.min(lanes_at)));
            // All who may lead wait for the peer themselves: the request goes by the lanes, unless it was started.
            if matches!(answer, Err(Stopped::Ended(_))) && lanes_at < deadline {
                if let Some(mut lone) = self.crowd(peer, |crowd| crowd.leave(ticket)) {
                    lone.waiter = None;
                    let cause = Cause::Lost("those who lead wait for the peer".into());
                    return Answer::Ended(Err((cause, Some(lone))));
                }
                answer = completion.wait(&waiting.until(deadline));
            }
        }
        if matches!(answer, Err(Stopped::Ended(_))) {
            if self.crowd(peer, |crowd| crowd.leave(ticket)).is_some() {
                return Answer::Ended(Err((Cause::TimedOut(Deadline::Total), None)));
            }
            // It was started: the caller that leads ends it, as it is late, or this one is to lead.
            answer = completion.wait(&waiting);
        }
        answer.unwrap_or(Answer::Ended(Err((Cause::Dropped, None))))
    }

    /// An idle connection, borrowed.
    fn idle(&self, peer: Incarnation) -> Option<Box<BorrowedConnection>> {
        self.lock().peers.entry(peer).or_default().borrow()
    }

    fn crowd<T>(&self, peer: Incarnation, act: impl FnOnce(&mut Crowd) -> T) -> T {
        act(&mut self.lock().peers.entry(peer).or_default().crowd)
    }
}

impl Leading<'_> {
    /// Carries requests until the leader's own has ended, and leaves the others to another caller.
    fn carry(&mut self, mut connection: Box<BorrowedConnection>) -> Outcome {
        connection.widen();
        loop {
            let carried = self.start_queued(&mut connection);
            let carried = carried.and_then(|()| match connection.has_ended() {
                true => Ok(()),
                false => connection.turn(self.own_deadline()),
            });
            let cause = match &carried {
                Ok(()) => Cause::Dropped,
                Err(reason) => connection.close(reason),
            };
            let mut own = None;
            for (waiter, outcome) in connection.ended(&cause) {
                match waiter {
                    Some(waiter) => waiter.complete(Answer::Ended(outcome)),
                    None => own = Some(outcome),
                }
            }
            match (carried, own) {
                // The peer takes no more requests until it has answered some.
                (Ok(()), None) if self.own_deadline() <= now() => {
                    self.own = None;
                    self.pass_on(connection, true);
                    return Err((Cause::TimedOut(Deadline::Total), None));
                }
                (Ok(()), None) => {}
                (Ok(()), Some(own)) => {
                    self.pass_on(connection, true);
                    return own;
                }
                (Err(_), own) => {
                    let own = own.unwrap_or_else(|| Err((cause, self.own.take())));
                    self.pass_on(connection, false);
                    return own;
                }
            }
        }
    }

    /// Until when the leader's own request can be started.
    fn own_deadline(&self) -> Instant {
        let own = self.own.as_ref();
        own.map_or(Instant::NEVER, |lone| lone.single.deadline)
    }

    /// Starts the leader's own request and what is queued, as far as the peer takes it.
    fn start_queued(&mut self, connection: &mut BorrowedConnection) -> Result<(), CloseReason> {
        if connection.room() > 0
            && let Some(own) = self.own.take()
        {
            connection.start(*own)?;
        }
        let room = connection.room();
        let queued: Vec<Box<LoneRequest>> = self.direct.crowd(self.peer, |crowd| {
            let count = crowd.queue.len().min(room);
            crowd.queue.drain(..count).collect()
        });
        queued
            .into_iter()
            .try_for_each(|lone| connection.start(*lone))
    }

    /// Has the caller of the newest request lead: most of the others end before that one, so few callers lead in turn. If none
    /// waits, the connection is given back. One that is not `usable` is closed.
    fn pass_on(&mut self, mut connection: Box<BorrowedConnection>, usable: bool) {
        self.is_over = true;
        let mut state = self.direct.lock();
        let closed = state.closed;
        let pool = state.peers.entry(self.peer).or_default();
        let next = match pool.crowd.queue.pop_back() {
            Some(mut own) => own.waiter.take().map(|waiter| (waiter, Some(own))),
            None => connection
                .newest()
                .and_then(|lone| lone.waiter.take())
                .map(|waiter| (waiter, None)),
        };
        let connection = match (usable, &next) {
            (true, Some(_)) => Some(connection),
            _ => {
                let reusable = usable && !closed && connection.is_quiet();
                pool.take_back(connection, reusable);
                None
            }
        };
        if next.is_none() {
            // Nothing is queued.
            pool.crowd.leaders -= 1;
        }
        drop(state);
        if let Some((waiter, own)) = next {
            waiter.complete(Answer::Lead { own, connection });
        }
    }

    /// No connection can be made: the requests of all callers are returned to them.
    fn refuse_all(&mut self, cause: &Cause) -> Outcome {
        self.is_over = true;
        fail(self.direct.crowd(self.peer, Crowd::end_lead), cause);
        Err((cause.clone(), self.own.take()))
    }
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            // Their waiters learn that they were dropped.
            drop(self.direct.crowd(self.peer, Crowd::end_lead));
        }
    }
}

/// Returns requests that nobody has started to their callers.
pub(super) fn fail(requests: VecDeque<Box<LoneRequest>>, cause: &Cause) {
    for mut lone in requests {
        if let Some(waiter) = lone.waiter.take() {
            waiter.complete(Answer::Ended(Err((cause.clone(), Some(lone)))));
        }
    }
}
