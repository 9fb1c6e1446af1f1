//! Connections to the master: each is opened once, and each of its ends detects by itself that it is broken.

use std::collections::BTreeMap;
use std::time::Duration;

use slackwater_wire::ClientId;

use crate::check::Checked;
use crate::net::Process;

use super::World;
use super::event::{Control, Event, SessionId};

/// All connections that are open at one end at least.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    next: u64,
    open: BTreeMap<SessionId, Session>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    /// The process that connected.
    pub(crate) peer: Process,
    /// Lives of the two processes that the connection belongs to.
    pub(crate) peer_life: u64,
    master_life: u64,
    at_peer: bool,
    at_master: bool,
}

impl World {
    /// Opens a connection of `peer` to the master. If the master is not running, the connection breaks soon.
    pub(crate) fn connect(&mut self, peer: Process) -> SessionId {
        self.sessions.next += 1;
        let id = SessionId(self.sessions.next);
        let (peer_life, _) = self.life(peer);
        let (master_life, up) = self.life(Process::Master);
        self.sessions.open.insert(
            id,
            Session {
                peer,
                peer_life,
                master_life,
                at_peer: true,
                at_master: up,
            },
        );
        self.net.reconnect(peer, Process::Master);
        self.net.reconnect(Process::Master, peer);
        let now = self.engine.now();
        if up {
            // A connection that is made while the link is cut breaks if the cut lasts longer than the time-out.
            for (from, to) in [(peer, Process::Master), (Process::Master, peer)] {
                if self.net.cut_until(from, to) > now + self.options.link_timeout {
                    self.break_session(id, self.options.link_timeout, self.options.link_timeout);
                }
            }
        } else {
            self.break_session(id, REFUSED, REFUSED);
        }
        id
    }

    /// Breaks a connection: each end detects it after a time of its own.
    pub(crate) fn break_session(
        &mut self,
        session: SessionId,
        peer_after: Duration,
        master_after: Duration,
    ) {
        let Some(found) = self.sessions.open.get(&session) else {
            return;
        };
        let (now, peer) = (self.engine.now(), found.peer);
        self.engine
            .push(now + peer_after, Event::SessionEnd { session, at: peer });
        self.engine.push(
            now + master_after,
            Event::SessionEnd {
                session,
                at: Process::Master,
            },
        );
    }

    /// Connections of a process, or all of them for the master.
    pub(crate) fn sessions_of(&self, process: Process) -> Vec<SessionId> {
        let of = |session: &Session| process == Process::Master || session.peer == process;
        self.sessions
            .open
            .iter()
            .filter(|(_, session)| of(session))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Whether `at` still holds its end of the connection.
    pub(crate) fn session_open(&self, session: SessionId, at: Process) -> bool {
        let Some(found) = self.sessions.open.get(&session) else {
            return false;
        };
        match at {
            Process::Master => found.at_master && self.lives(at, found.master_life),
            _ => found.at_peer && found.peer == at && self.lives(at, found.peer_life),
        }
    }

    /// The process that connected.
    pub(crate) fn session_peer(&self, session: SessionId) -> Option<Process> {
        self.sessions.open.get(&session).map(|session| session.peer)
    }

    /// Sends a message on a connection.
    pub(crate) fn say(&mut self, session: SessionId, from: Process, body: Control) {
        let Some(found) = self.sessions.open.get(&session) else {
            return;
        };
        let (peer, now, bytes) = (found.peer, self.engine.now(), body.bytes());
        let to = if from == Process::Master {
            peer
        } else {
            Process::Master
        };
        let arrivals = match peer {
            Process::Client(_) => self.net.message(now, from, to, bytes),
            _ => vec![self.net.stream(now, from, to, bytes)],
        };
        for at in arrivals {
            let body = body.clone();
            self.engine.push(at, Event::Control { session, to, body });
        }
    }

    /// The name under which the master knows the process at the other end: a client's life has one name on all its
    /// connections.
    pub(crate) fn client_id(&self, session: SessionId) -> ClientId {
        match self.sessions.open.get(&session) {
            Some(found) => match found.peer {
                Process::Client(index) => client_name(index, found.peer_life),
                _ => ClientId(NODE_NAMES | session.0),
            },
            None => ClientId(NODE_NAMES | session.0),
        }
    }

    /// Whether the process at the other end has another connection that the master considers open.
    pub(crate) fn has_another_session(&self, session: SessionId) -> bool {
        let name = self.client_id(session);
        let peer = self.session_peer(session);
        let mut others = peer
            .map_or(Vec::new(), |peer| self.sessions_of(peer))
            .into_iter();
        others.any(|other| {
            other != session
                && self.client_id(other) == name
                && self.session_open(other, Process::Master)
        })
    }

    pub(super) fn on_session_end(&mut self, session: SessionId, at: Process) -> Checked {
        if !self.session_open(session, at) {
            return Ok(());
        }
        let now = self.engine.now();
        self.trace
            .note(now, format_args!("{at:?} finds {session:?} broken"));
        self.close(session, at);
        match at {
            Process::Master => self.master_lost(session),
            Process::Node(node) => {
                self.node_lost_master(node, session);
                Ok(())
            }
            Process::Client(client) => self.client_lost_master(client, session),
        }
    }

    fn close(&mut self, session: SessionId, at: Process) {
        if let Some(found) = self.sessions.open.get_mut(&session) {
            match at {
                Process::Master => found.at_master = false,
                _ => found.at_peer = false,
            }
        }
    }
}

/// The name of one life of a client.
pub(crate) fn client_name(index: u32, life: u64) -> ClientId {
    ClientId((u64::from(index) + 1) << 32 | life)
}

/// Set in the names of connections of nodes.
const NODE_NAMES: u64 = 1 << 63;
/// Time until a process detects that the master is not running.
const REFUSED: Duration = Duration::from_millis(2);
