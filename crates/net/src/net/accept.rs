//! Listeners and the connections that they accept.

use std::io;
use std::time::Duration;

use mio::Token;
use slackwater_base::Instant;

use super::{Accepting, Alarm, LISTENER_BIT, Phase, is_out_of_descriptors, system_error};
use crate::limiter::Refused;
use crate::socket::{Listener, Stream, check_free, is_abstract};
use crate::{ConnId, Endpoint, Event, Listen, ListenerId, Net, NetError, Protocol};

const ACCEPTS_PER_TURN: usize = 64;
/// Without descriptors accepting is tried again this often, besides whenever a connection of this loop ends.
const DESCRIPTOR_RETRY: Duration = Duration::from_millis(100);

impl Net {
    /// Opens a listener and says where it listens (a port of 0 has become a real one).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn listen(&mut self, listen: &Listen) -> Result<(ListenerId, Endpoint), NetError> {
        self.counters.socket_calls.add_alone(10);
        let opened = Listener::open(
            &listen.endpoint,
            listen.shared,
            &listen.access,
            &self.limits.liveness,
        );
        let (listener, endpoint) = opened.map_err(|error| system_error(&listen.endpoint, error))?;
        let entry = self.listeners.vacant_entry();
        let id = ListenerId(entry.key() as u32);
        let mut accepting = Accepting {
            listener,
            endpoint: endpoint.clone(),
            ready: true,
        };
        accepting
            .listener
            .register(&self.registry, Token(LISTENER_BIT | entry.key()))
            .map_err(|error| system_error(&listen.endpoint, error))?;
        entry.insert(accepting);
        self.accept_due = true;
        Ok((id, endpoint))
    }

    /// Fails when anybody listens on this TCP address already. Listeners that share a port among loops would
    /// otherwise share it with another process of the same user, too.
    ///
    /// # Errors
    /// When the address is taken or not ours.
    pub fn check_free(endpoint: &Endpoint) -> Result<(), NetError> {
        match endpoint {
            Endpoint::Tcp(address) if address.port() != 0 => {
                check_free(*address).map_err(|error| system_error(endpoint, error))
            }
            _ => Ok(()),
        }
    }

    /// Closes a listener. A Unix socket file is removed.
    pub fn stop_listening(&mut self, id: ListenerId) {
        if let Some(accepting) = self.listeners.try_remove(id.0 as usize) {
            self.counters.socket_calls.add_alone(1);
            if let Endpoint::Unix(path) = &accepting.endpoint
                && !is_abstract(path)
            {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// Closes all listeners.
    pub fn stop_listening_everywhere(&mut self) {
        let all: Vec<ListenerId> = self
            .listeners
            .iter()
            .map(|(key, _)| ListenerId(key as u32))
            .collect();
        all.into_iter().for_each(|id| self.stop_listening(id));
    }

    /// Adopts an established connection, such as one from another loop; it counts as proven. None when this loop has no
    /// room for it, or the kernel refuses: it is closed then.
    #[must_use]
    pub fn adopt(&mut self, stream: std::net::TcpStream) -> Option<ConnId> {
        let has_room = self.conns.len() < self.limits.connections;
        let fit = has_room && stream.set_nonblocking(true).is_ok();
        let stream = Stream::Tcp(mio::net::TcpStream::from_std(stream));
        fit.then(|| self.insert(stream, Phase::Open).ok()).flatten()
    }

    pub(super) fn accept_all<P: Protocol>(&mut self, protocol: &mut P) {
        (self.accept_due, self.accept_held) = (false, false);
        let ready: Vec<usize> = self
            .listeners
            .iter()
            .filter(|(_, a)| a.ready)
            .map(|(key, _)| key)
            .collect();
        for key in ready {
            let taken = (0..ACCEPTS_PER_TURN)
                .take_while(|_| self.accept_one(key, protocol))
                .count();
            self.accept_due |= taken == ACCEPTS_PER_TURN;
        }
    }

    /// Takes one connection in; false when there is none, or none may be taken now. A listener that may not take
    /// more stays ready and goes on when a slot frees.
    fn accept_one<P: Protocol>(&mut self, key: usize, protocol: &mut P) -> bool {
        let slot = match self.conns.len() < self.limits.connections {
            true => self.limiter.next_slot(self.now),
            false => Instant::NEVER,
        };
        if slot > self.now {
            self.pause_accepting(slot);
            return false;
        }
        let Some(accepting) = self.listeners.get_mut(key) else {
            return false;
        };
        self.counters.accepts.add_alone(1);
        let (stream, source) = match accepting.listener.accept() {
            Ok(taken) => taken,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                accepting.ready = false;
                return false;
            }
            Err(error) if is_out_of_descriptors(&error) => {
                self.pause_accepting(self.now + DESCRIPTOR_RETRY);
                return false;
            }
            // The peer was gone before it was taken; the next one may be there.
            Err(_) => return true,
        };
        let unproven = match self.limiter.enter(source.origin(), self.now) {
            Ok(unproven) => unproven,
            Err(Refused::SourceFull) => {
                self.counters.refused_source_full.add_alone(1);
                return true;
            }
            Err(Refused::SourceTooFast) => {
                self.counters.refused_source_rate.add_alone(1);
                return true;
            }
        };
        match self.insert(stream, Phase::Open) {
            Ok(conn) => {
                self.conns[conn.index()].unproven = Some(unproven);
                let listener = ListenerId(key as u32);
                protocol.handle(
                    self,
                    Event::Accepted {
                        conn,
                        listener,
                        source: &source,
                    },
                );
            }
            Err(_) => self.limiter.leave(unproven, self.now),
        }
        true
    }

    fn pause_accepting(&mut self, until: Instant) {
        self.counters.accept_paused.add_alone(1);
        self.accept_held = true;
        if let Some(alarm) = self.accept_alarm.take() {
            self.wheel.cancel(alarm);
        }
        self.accept_alarm = (until < Instant::NEVER).then(|| self.wheel.set(until, Alarm::Accept));
    }
}
