//! The synchronous shortcut: a caller with one request borrows an idle connection and drives it itself, with blocking
//! calls. No thread of this process is woken, which is most of what a small request costs.
//!
//! It is the protocol of the lanes on another thread; the target sees no difference. What fails without effect goes to
//! the lanes, which try it again: only they have retries and pauses.

mod client;
mod summed;
mod together;

use std::collections::{BTreeMap, VecDeque};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_base::Instant;
use slackwater_data_plane::Cause;
use slackwater_engine::{Carried, SingleRequest};
use slackwater_wait::now;
use slackwater_wire::Incarnation;
use slackwater_wire::data::Segment;

use super::context::TcpContext;
pub(crate) use client::PAYLOAD;
use client::{BorrowedConnection, LoneRequest, Outcome};
use together::{Crowd, Part, TOGETHER_BYTES, TOGETHER_CALLERS};

/// Requests of no more than this cost their wake-ups more than their bytes, so that more callers carry theirs themselves.
const SMALL_BYTES: u64 = 64 << 10;
/// How many callers with small requests.
const SMALL_CALLERS: usize = 64;
/// The connections to one peer that outlast a burst of callers: many processes may have one key, under which the peer counts
/// all of their connections.
const KEPT_IDLE: usize = SMALL_CALLERS / 4;

/// The connections that callers borrow.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    state: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    closed: bool,
    peers: BTreeMap<Incarnation, PeerPool>,
    /// Requests that went with those of another caller.
    joined: u64,
}

#[derive(Debug, Default)]
struct PeerPool {
    #[expect(
        clippy::vec_box,
        reason = "they are handed from caller to caller, and are large"
    )]
    idle: Vec<Box<BorrowedConnection>>,
    /// Callers that carry a request now.
    callers: usize,
    /// The connections that they block on, which closing shuts down.
    borrowed: Vec<Arc<TcpStream>>,
    /// Those whose requests go together.
    crowd: Crowd,
}

/// How a caller carries its request.
#[derive(Debug)]
enum Begun {
    /// On a connection of its own, an idle one if there is one.
    Alone(Box<LoneRequest>, Option<Box<BorrowedConnection>>),
    /// With other callers.
    Together(Part),
}

/// Why a caller cannot borrow a connection.
enum Unavailable {
    /// The limit of callers is reached.
    Full(Box<SingleRequest>),
    Closed,
}

impl Direct {
    /// Carries one request; returns it when the limit of callers is reached, or when it had no effect and can be tried
    /// again.
    pub(crate) fn carry(
        &self,
        context: &TcpContext,
        segment: &Arc<Segment>,
        single: SingleRequest,
    ) -> Carried {
        let (peer, deadline) = (segment.incarnation, single.deadline);
        let outcome = match self.begin(peer, single, context.config.lanes_per_peer) {
            Ok(Begun::Alone(lone, idle)) => self.carry_alone(context, segment, lone, idle),
            Ok(Begun::Together(part)) => self.take_part(part, context, segment, deadline),
            Err(Unavailable::Full(single)) => return Carried::Back(*single),
            Err(Unavailable::Closed) => return Carried::Done(Err(Cause::Closed)),
        };
        let closed = self.end(peer);
        match outcome {
            Ok(checksum) => Carried::Done(Ok(checksum)),
            Err(_) if closed => Carried::Done(Err(Cause::Closed)),
            // The time that was over may have been that of the caller that led.
            Err((Cause::Lost(_) | Cause::Unreachable(_) | Cause::TimedOut(_), Some(again)))
                if now() < deadline =>
            {
                Carried::Back(again.single)
            }
            Err((cause, _)) => Carried::Done(Err(cause)),
        }
    }

    fn carry_alone(
        &self,
        context: &TcpContext,
        segment: &Arc<Segment>,
        mut lone: Box<LoneRequest>,
        mut connection: Option<Box<BorrowedConnection>>,
    ) -> Outcome {
        let deadline = lone.single.deadline;
        loop {
            let fresh = connection.is_none();
            let mut borrowed = match connection.take() {
                Some(connection) => connection,
                None => match self.connect(context, segment, deadline) {
                    Ok(connection) => connection,
                    Err(cause) => return Err((cause, Some(lone))),
                },
            };
            let (outcome, reusable) = borrowed.carry(*lone);
            self.give_back(segment.incarnation, borrowed, reusable);
            match outcome {
                // A peer may close an idle connection unnoticed; the request is tried once more on a new one.
                Err((_, Some(again))) if !fresh => lone = again,
                outcome => return outcome,
            }
        }
    }

    /// Closes connections that have been idle since `idle_before`, those that their peer has closed, and of more than
    /// [`KEPT_IDLE`] those that nobody has used since `spare_before`.
    pub(crate) fn collect(&self, idle_before: Instant, spare_before: Instant) {
        self.lock().peers.retain(|_, pool| {
            // The one that was used last is borrowed next, so the first ones are those that a burst has left.
            let mut spare = pool.idle.len().saturating_sub(KEPT_IDLE);
            pool.idle.retain(|connection| {
                let since = connection.idle_since();
                let before = match spare > 0 {
                    true => spare_before.max(idle_before),
                    false => idle_before,
                };
                spare = spare.saturating_sub(1);
                since > before && !connection.is_over()
            });
            pool.callers > 0 || !pool.idle.is_empty()
        });
    }

    /// Whether there are no connections.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().peers.is_empty()
    }

    /// Refuses callers from now on, and ends the waits of those that carry a request: they fail as closed.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let mut waiting = VecDeque::new();
        for pool in state.peers.values_mut() {
            waiting.append(&mut pool.crowd.take_queued());
            pool.idle.clear();
            // A connection that the peer has closed meanwhile needs no shutdown.
            pool.borrowed
                .iter()
                .for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        }
        drop(state);
        together::fail(waiting, &Cause::Closed);
    }

    /// Requests that went with those of another caller.
    pub(crate) fn joined(&self) -> u64 {
        self.lock().joined
    }

    fn begin(
        &self,
        peer: Incarnation,
        single: SingleRequest,
        lanes_per_peer: usize,
    ) -> Result<Begun, Unavailable> {
        let bytes = single.buffers.bytes();
        let mut state = self.lock();
        let PoolState {
            closed,
            peers,
            joined,
        } = &mut *state;
        if *closed {
            return Err(Unavailable::Closed);
        }
        let pool = peers.entry(peer).or_default();
        let together = bytes <= TOGETHER_BYTES && pool.crowd.is_met(pool.callers);
        let callers_max = match together {
            true => TOGETHER_CALLERS,
            false => callers_max(bytes, lanes_per_peer),
        };
        if pool.callers >= callers_max {
            return Err(Unavailable::Full(Box::new(single)));
        }
        pool.callers += 1;
        let lone = Box::new(LoneRequest::new(single));
        if !together {
            return Ok(Begun::Alone(lone, pool.borrow()));
        }
        let part = pool.crowd.join(lone);
        *joined += u64::from(matches!(part, Part::Wait(..)));
        Ok(Begun::Together(part))
    }

    /// A caller is done; says whether the mover is closed.
    fn end(&self, peer: Incarnation) -> bool {
        let mut state = self.lock();
        state.peers.entry(peer).or_default().callers -= 1;
        state.closed
    }

    fn connect(
        &self,
        context: &TcpContext,
        segment: &Arc<Segment>,
        deadline: Instant,
    ) -> Result<Box<BorrowedConnection>, Cause> {
        if self.lock().closed {
            return Err(Cause::Closed);
        }
        let connection = Box::new(BorrowedConnection::connect(context, segment, deadline)?);
        let mut state = self.lock();
        if state.closed {
            return Err(Cause::Closed);
        }
        let pool = state.peers.entry(segment.incarnation).or_default();
        pool.borrowed.push(connection.stream());
        Ok(connection)
    }

    fn give_back(&self, peer: Incarnation, connection: Box<BorrowedConnection>, reusable: bool) {
        let mut state = self.lock();
        let reusable = reusable && !state.closed;
        let pool = state.peers.entry(peer).or_default();
        pool.take_back(connection, reusable);
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeerPool {
    fn borrow(&mut self) -> Option<Box<BorrowedConnection>> {
        let connection = self.idle.pop();
        self.borrowed
            .extend(connection.as_ref().map(|connection| connection.stream()));
        connection
    }

    fn take_back(&mut self, connection: Box<BorrowedConnection>, reusable: bool) {
        let stream = connection.stream();
        self.borrowed
            .retain(|borrowed| !Arc::ptr_eq(borrowed, &stream));
        match reusable {
            true => self.idle.push(connection),
            false => connection.abort(),
        }
    }
}

/// How many callers at once may carry requests of this length to one peer.
fn callers_max(bytes: u64, lanes_per_peer: usize) -> usize {
    match bytes <= SMALL_BYTES {
        true => lanes_per_peer.max(SMALL_CALLERS),
        false => lanes_per_peer,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use slackwater_wait::now;

    use super::*;

    /// Of 64 threads with small requests 60 went by the loops, each with a wake of one of them and a wake back.
    #[test]
    fn many_callers_carry_small_requests_and_few_carry_large_ones() {
        let check = |bytes, lanes, expected| assert_eq!(callers_max(bytes, lanes), expected);
        check(1, 4, 64);
        check(64 << 10, 4, 64);
        check((64 << 10) + 1, 4, 4);
        check(4096, 100, 100);
        check(1 << 20, 100, 100);
    }

    /// One idle connection to the peer that `stream` leads to.
    fn idle(direct: &Direct, stream: TcpStream) {
        let segment = crate::scheduler::peer(1);
        let limits = crate::TcpConfig::default().initiator_limits(&segment);
        let client = crate::client::ClientConnection::new(segment, limits, now());
        let connection = BorrowedConnection::new(stream, client);
        let mut state = direct.lock();
        let pool = state.peers.entry(Incarnation(1)).or_default();
        pool.idle.push(Box::new(connection));
    }

    /// A burst of 64 callers left 64 connections that were kept for a minute: of sixteen processes with one key the last was
    /// refused by the peer, which counts them by key.
    #[test]
    fn a_burst_of_callers_leaves_few_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let direct = Direct::default();
        let begun = now();
        let peers: Vec<TcpStream> = (0..SMALL_CALLERS)
            .map(|_| {
                idle(
                    &direct,
                    TcpStream::connect(listener.local_addr().unwrap()).unwrap(),
                );
                listener.accept().unwrap().0
            })
            .collect();
        let left = |spare_before| {
            direct.collect(Instant::ZERO, spare_before);
            direct.lock().peers[&Incarnation(1)].idle.len()
        };
        assert_eq!(left(begun), SMALL_CALLERS, "they may be borrowed again");
        let of_all = || {
            direct.lock().peers[&Incarnation(1)]
                .idle
                .iter()
                .map(|one| one.idle_since())
                .collect::<Vec<_>>()
        };
        let latest = of_all().split_off(SMALL_CALLERS - KEPT_IDLE);
        assert_eq!(left(now()), KEPT_IDLE);
        assert_eq!(of_all(), latest, "those that were used last");
        let processes = crate::TcpConfig::default().connections_per_peer_max
            / (SMALL_CALLERS + together::LEADERS + 4);
        assert!(
            processes >= 32,
            "as many processes with one key may be busy: {processes}"
        );
        drop(peers);
    }

    /// A process that had read from many peers, and outlived them, kept one socket for each in CLOSE_WAIT until its idle
    /// time was over: nobody looked at a connection between two callers.
    #[test]
    fn a_connection_that_its_peer_closed_is_collected_before_its_idle_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let direct = Direct::default();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        idle(&direct, stream);
        direct.collect(Instant::ZERO, Instant::ZERO);
        assert!(!direct.is_empty());
        drop(peer);
        let started = now();
        while !direct.is_empty() {
            assert!(
                started.until(now()) < Duration::from_secs(20),
                "the end of the peer never came"
            );
            direct.collect(Instant::ZERO, Instant::ZERO);
        }
    }
}
