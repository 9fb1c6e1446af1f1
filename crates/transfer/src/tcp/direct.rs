//! The synchronous shortcut: a caller with one request borrows an idle connection and drives it itself, with blocking
//! calls. No thread of this process is woken, which is most of what a small request costs.
//!
//! The target sees no difference between such a connection and a lane.

mod client;
mod greet;

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_base::Instant;
use slackwater_wire::Incarnation;
use slackwater_wire::data::Op;

use super::context::TcpContext;
use crate::cause::Cause;
use crate::job::{Buffers, Remote};
use crate::segment::Segment;
use client::{ClientConnection, Failure};

/// The connections that callers borrow.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    state: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    closed: bool,
    peers: BTreeMap<Incarnation, PeerPool>,
}

#[derive(Debug, Default)]
struct PeerPool {
    idle: Vec<ClientConnection>,
    /// Callers that carry a request now.
    callers: usize,
    /// The connections that they block on, which closing shuts down.
    borrowed: Vec<Arc<TcpStream>>,
}

/// One transfer.
pub(crate) struct DirectRequest<'a> {
    pub(crate) op: Op,
    pub(crate) buffers: &'a Buffers,
    pub(crate) remote: &'a Remote,
    pub(crate) deadline: Instant,
}

/// Why a caller cannot borrow a connection.
enum Unavailable {
    /// The limit of callers is reached.
    Full,
    Closed,
}

impl Direct {
    /// Carries one request; none when the limit of callers is reached.
    pub(crate) fn carry(
        &self,
        context: &TcpContext,
        segment: &Segment,
        call: &DirectRequest<'_>,
    ) -> Option<Result<(), Cause>> {
        let peer = segment.incarnation;
        let idle = match self.begin(peer, context.config.lanes_per_peer) {
            Ok(idle) => idle,
            Err(Unavailable::Full) => return None,
            Err(Unavailable::Closed) => return Some(Err(Cause::Closed)),
        };
        let carried = match idle {
            Some(connection) => self.try_connection(context, peer, connection, call),
            None => self.try_new(context, segment, call),
        };
        // A peer may close an idle connection unnoticed; the request is then tried once more on a new one.
        let carried = match carried {
            Err(Failure::Retryable(_)) => self.try_new(context, segment, call),
            carried => carried,
        };
        let (connection, outcome) = match carried {
            Ok((connection, outcome)) => (Some(connection), outcome),
            Err(Failure::Retryable(cause) | Failure::Final(cause)) => (None, Err(cause)),
        };
        Some(self.end(peer, connection, outcome))
    }

    /// Closes connections that have been idle since `idle_before`, and those that their peer has closed.
    pub(crate) fn collect(&self, idle_before: Instant) {
        self.lock().peers.retain(|_, pool| {
            pool.idle.retain(|connection| {
                connection.idle_since() > idle_before && !connection.is_over()
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
        for pool in state.peers.values_mut() {
            pool.idle.clear();
            // A connection that the peer has closed meanwhile needs no shutdown.
            pool.borrowed
                .iter()
                .for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        }
    }

    fn begin(
        &self,
        peer: Incarnation,
        callers_max: usize,
    ) -> Result<Option<ClientConnection>, Unavailable> {
        let mut state = self.lock();
        if state.closed {
            return Err(Unavailable::Closed);
        }
        let pool = state.peers.entry(peer).or_default();
        if pool.callers >= callers_max {
            return Err(Unavailable::Full);
        }
        pool.callers += 1;
        let connection = pool.idle.pop();
        pool.borrowed
            .extend(connection.as_ref().map(ClientConnection::stream));
        Ok(connection)
    }

    fn end(
        &self,
        peer: Incarnation,
        connection: Option<ClientConnection>,
        outcome: Result<(), Cause>,
    ) -> Result<(), Cause> {
        let mut state = self.lock();
        let closed = state.closed;
        let pool = state.peers.entry(peer).or_default();
        pool.callers -= 1;
        if let Some(connection) = connection {
            pool.forget(&connection.stream());
            pool.idle.extend(Some(connection).filter(|_| !closed));
        }
        if closed {
            outcome.map_err(|_| Cause::Closed)
        } else {
            outcome
        }
    }

    fn try_new(&self, context: &TcpContext, segment: &Segment, call: &DirectRequest<'_>) -> Tried {
        if self.lock().closed {
            return Err(Failure::Final(Cause::Closed));
        }
        let connection = greet::connect(context, segment, call.deadline).map_err(Failure::Final)?;
        {
            let mut state = self.lock();
            if state.closed {
                return Err(Failure::Final(Cause::Closed));
            }
            state
                .peers
                .entry(segment.incarnation)
                .or_default()
                .borrowed
                .push(connection.stream());
        }
        self.try_connection(context, segment.incarnation, connection, call)
    }

    fn try_connection(
        &self,
        context: &TcpContext,
        peer: Incarnation,
        mut connection: ClientConnection,
        call: &DirectRequest<'_>,
    ) -> Tried {
        match connection.carry(&context.config, call) {
            Ok(outcome) => Ok((connection, outcome)),
            Err(broken) => {
                self.lock()
                    .peers
                    .entry(peer)
                    .or_default()
                    .forget(&connection.stream());
                connection.abort();
                Err(broken)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connection, which can be used again, with the outcome of its request; or the failure that ended the connection.
type Tried = Result<(ClientConnection, Result<(), Cause>), Failure>;

impl PeerPool {
    fn forget(&mut self, stream: &Arc<TcpStream>) {
        self.borrowed
            .retain(|borrowed| !Arc::ptr_eq(borrowed, stream));
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use slackwater_wait::now;

    use super::*;

    /// A process that had read from many peers, and outlived them, kept one socket for each in CLOSE_WAIT until its idle
    /// time was over: nobody looked at a connection between two callers.
    #[test]
    fn a_connection_that_its_peer_closed_is_collected_before_its_idle_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let direct = Direct::default();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        direct
            .lock()
            .peers
            .entry(Incarnation(1))
            .or_default()
            .idle
            .push(ClientConnection::new(stream));
        direct.collect(Instant::ZERO);
        assert!(!direct.is_empty());
        drop(peer);
        let started = now();
        while !direct.is_empty() {
            assert!(
                started.until(now()) < Duration::from_secs(20),
                "the end of the peer never came"
            );
            direct.collect(Instant::ZERO);
        }
    }
}
