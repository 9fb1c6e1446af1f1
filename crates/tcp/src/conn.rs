//! One connection of a loop: its bytes, and the end of the protocol that they are for.

use std::os::fd::BorrowedFd;

use slackwater_base::Instant;
use slackwater_data_plane::protocol::CloseReason;
use slackwater_data_plane::{Cause, Deadline};
use slackwater_net::ConnId;

use super::client::{ClientConnection, ClientEnd};
use super::scheduler::LaneId;
use super::server::{ServerConnection, ServerEnd};
use super::task::Task;
use super::turn::Turn;
use super::wire::{Flushed, ReadEnd, Scratch, Wire};

/// A connection of a loop.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) id: ConnId,
    pub(crate) role: Role,
    /// The time by which the peer must be authenticated.
    pub(crate) proof_by: Instant,
    wire: Wire,
    /// The kernel takes more.
    pub(crate) writable: bool,
}

/// Which end of a connection this is.
#[derive(Debug)]
pub(crate) enum Role {
    Server(Box<ServerConnection>),
    Client(LaneId, Box<ClientConnection<Task>>),
}

impl Conn {
    pub(crate) fn new(id: ConnId, role: Role, proof_by: Instant) -> Self {
        Self {
            id,
            role,
            proof_by,
            wire: Wire::default(),
            writable: false,
        }
    }

    /// Whether the peer is not authenticated yet.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        !self.wire.is_proven()
    }

    /// Whether requests are under way on it.
    pub(crate) fn is_busy(&self) -> bool {
        match &self.role {
            Role::Server(server) => !server.responder.is_quiet(),
            Role::Client(_, client) => client.initiator.has_tasks(),
        }
    }

    /// When its deadlines must be checked.
    pub(crate) fn next_deadline(&self) -> Instant {
        let own = match self.is_unauthenticated() {
            true => self.proof_by,
            false => Instant::NEVER,
        };
        own.min(match &self.role {
            Role::Server(server) => server.responder.next_deadline(),
            Role::Client(_, client) => client.initiator.next_deadline(),
        })
    }

    pub(crate) fn on_deadline(&mut self, turn: &Turn<'_>) -> Result<(), CloseReason> {
        if self.is_unauthenticated() && self.proof_by <= turn.now {
            return Err(CloseReason::Lost(Cause::TimedOut(Deadline::Connect)));
        }
        match &mut self.role {
            Role::Server(server) => server.responder.on_deadline(turn.now),
            Role::Client(_, client) => client.on_deadline(turn.now),
        }
    }

    /// Reads until the kernel has no more, or the budget of this turn is spent.
    pub(crate) fn read(
        &mut self,
        socket: BorrowedFd<'_>,
        scratch: &mut Scratch,
        turn: &Turn<'_>,
    ) -> Result<ReadEnd, CloseReason> {
        match &mut self.role {
            Role::Server(server) => {
                let end = &mut ServerEnd {
                    server,
                    conn: self.id,
                    turn,
                };
                self.wire.read(end, socket, scratch)
            }
            Role::Client(_, client) => {
                let now = turn.now;
                self.wire
                    .read(&mut ClientEnd { client, now }, socket, scratch)
            }
        }
    }

    /// Writes what is queued, as far as the kernel takes it; says whether the budget of this turn is spent and more is
    /// queued.
    pub(crate) fn flush(
        &mut self,
        socket: BorrowedFd<'_>,
        scratch: &mut Scratch,
        turn: &Turn<'_>,
    ) -> Result<bool, CloseReason> {
        if !self.writable || self.has_sent_all() {
            return Ok(false);
        }
        let (wire, flags) = (&mut self.wire, libc::MSG_DONTWAIT);
        let flushed = match &mut self.role {
            Role::Server(server) => {
                let end = &mut ServerEnd {
                    server,
                    conn: self.id,
                    turn,
                };
                wire.flush(end, socket, scratch, flags)?
            }
            Role::Client(_, client) => {
                let end = &mut ClientEnd {
                    client,
                    now: turn.now,
                };
                wire.flush(end, socket, scratch, flags)?
            }
        };
        self.writable = flushed != Flushed::Blocked;
        Ok(flushed == Flushed::Spent)
    }

    fn has_sent_all(&self) -> bool {
        self.wire.has_sent_all()
            && match &self.role {
                Role::Server(server) => server.responder.has_sent_all(),
                Role::Client(_, client) => client.initiator.has_sent_all(),
            }
    }
}
