use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use mio::Token;
use thiserror::Error;

use crate::{Endpoint, LocalPorts, Net, PreAuthLimits, Readiness, Source, TcpLiveness, UnixAccess};

/// What a loop drives: a state machine that takes events and acts through [`Net`]. It must not block.
pub trait Protocol: Send + 'static {
    /// What other threads ask of it.
    type Command: Send;

    /// Takes one event.
    fn handle(&mut self, net: &mut Net, event: Event<'_, Self::Command>);

    /// What the loop had to tell is told, and it will write what was queued for it; this is called again when it has told how that
    /// went, or anything else, so always before it sleeps. A protocol that gathers what belongs together acts now.
    fn turn_ends(&mut self, net: &mut Net) {
        let _ = net;
    }

    /// A connection that [`Net::take_over`] gave to the protocol may be read or written.
    fn ready(&mut self, net: &mut Net, conn: ConnId, readiness: Readiness) {
        let _ = (net, conn, readiness);
    }
}

/// What happens to a [`Protocol`].
#[derive(Debug)]
pub enum Event<'a, C> {
    /// A listener took a connection in.
    Accepted {
        /// The new connection. It counts as unproven until [`Net::proven`].
        conn: ConnId,
        /// The listener that accepted it.
        listener: ListenerId,
        /// The address or process of the peer.
        source: &'a Source,
    },
    /// An outgoing connection stands.
    Connected {
        /// The connection, now open for writing.
        conn: ConnId,
    },
    /// Bytes came.
    Bytes {
        /// On which connection.
        conn: ConnId,
        /// At least one byte.
        bytes: &'a [u8],
    },
    /// The outbox of a connection has come down to the low mark, as asked by [`Net::call_when_drained`].
    Drained {
        /// Of which connection.
        conn: ConnId,
    },
    /// A connection is over; its id is dead. Not told for connections that [`Net::abort`] ended.
    Closed {
        /// The connection; its id is not used again.
        conn: ConnId,
        /// The cause.
        end: End,
        /// What was attached to it, see [`Net::attach`].
        attached: u32,
    },
    /// A timer set by [`Net::set_timer`] fired.
    Timer {
        /// What it was set with.
        token: u64,
    },
    /// Another thread asks something.
    Command(C),
}

/// Why a connection ended.
#[derive(Debug, Error)]
pub enum End {
    /// It could not be made.
    #[error("connect: {0}")]
    ConnectFailed(io::Error),
    /// It was not made in time.
    #[error("connect: not answered in time")]
    ConnectTimeout,
    /// The peer ended it.
    #[error("closed by the peer")]
    Eof,
    /// The kernel ended it.
    #[error("{0}")]
    Failed(io::Error),
    /// The peer did not read for too long.
    #[error("the peer does not read")]
    Stalled,
    /// This side closed it, and what was queued is written or its time is over.
    #[error("closed by this side")]
    Local,
}

/// Why an operation on a loop did nothing.
#[derive(Debug, Error)]
pub enum NetError {
    /// The connection is gone.
    #[error("the connection is gone")]
    Gone,
    /// The process has no descriptor left.
    #[error("no file descriptor left")]
    NoDescriptors,
    /// The kernel refused.
    #[error("{endpoint}: {error}")]
    System {
        /// The address that was listened at or connected to.
        endpoint: Endpoint,
        /// The error of the operating system.
        error: io::Error,
    },
}

/// A connection of one loop; ids of ended connections are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    pub(crate) index: u32,
    pub(crate) generation: NonZeroU32,
}

impl ConnId {
    /// The place in a table of all connections of the loop; reused once the connection has ended.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// By which the kernel's events name it.
    pub(crate) fn token(self) -> Token {
        Token((self.generation.get() as usize) << 32 | self.index())
    }
}

/// A listener of one loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub(crate) u32);

/// How to open a connection.
#[derive(Clone, Debug)]
pub struct Connect {
    /// The address to connect to.
    pub endpoint: Endpoint,
    /// Give up after this long.
    pub timeout: Duration,
    /// Local address, for more links than one address has ports.
    pub from: Option<SocketAddr>,
    /// Local ports, of which one is taken in place of that of `from`.
    pub ports: Option<LocalPorts>,
}

/// How to open a listener.
#[derive(Clone, Debug)]
pub struct Listen {
    /// The address to listen at; port 0 takes any free port.
    pub endpoint: Endpoint,
    /// Whether listeners of other loops share this port (TCP only).
    pub shared: bool,
    /// The owner and mode of a Unix socket.
    pub access: UnixAccess,
}

/// Bounds of one loop.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections, accepted and opened.
    pub connections: usize,
    /// Commands of other threads that may wait while one is inside the loop; a thread with more waits for the loop.
    pub waiting_commands: usize,
    /// Bounds on unauthenticated peers.
    pub pre_auth: PreAuthLimits,
    /// A connection whose peer takes nothing for this long is closed.
    pub write_stall: Duration,
    /// [`Event::Drained`] comes when the outbox is at or below this many bytes.
    pub low_mark_bytes: usize,
    /// TCP probes.
    pub liveness: TcpLiveness,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 65_536,
            waiting_commands: 4_096,
            pre_auth: PreAuthLimits::default(),
            write_stall: Duration::from_secs(30),
            low_mark_bytes: 64 << 10,
            liveness: TcpLiveness::default(),
        }
    }
}
