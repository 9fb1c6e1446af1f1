use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use slackwater_base::{Instant, Map};
use slackwater_net::{ConnId, Connect, TimerId};
use slackwater_zmtp::{Link, LinkConfig, Message, PublicKey};

use super::outbound::{Pending, Tag};
use super::streams::StreamId;
use crate::Admission;
use crate::hub::{LinkId, Origin};

/// What comes of opening a link: the peer's word for why not.
pub(crate) type ConnectOutcome = Box<dyn FnOnce(Result<(), String>) + Send>;

/// A link to be opened.
pub(crate) struct Opening {
    pub(crate) id: LinkId,
    pub(crate) connect: Connect,
    pub(crate) config: Arc<LinkConfig>,
    pub(crate) remote: String,
    pub(crate) node: Option<PublicKey>,
    pub(crate) level: crate::Level,
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) probe: bool,
    pub(crate) timeout: Duration,
    pub(crate) stream: Option<StreamId>,
    pub(crate) outcome: Option<ConnectOutcome>,
}

/// One link, from its first byte to its last; an outgoing one also between its connections.
pub(super) struct Peer {
    pub(super) id: LinkId,
    pub(super) conn: Option<ConnId>,
    pub(super) link: Option<Link>,
    pub(super) kind: Kind,
    pub(super) origin: Arc<Origin>,
    pub(super) up: bool,
    /// Minor version of the peer's greeting.
    pub(super) minor: u8,
    pub(super) queue: VecDeque<Queued>,
    pub(super) queue_bytes: usize,
    pub(super) pending: Map<Tag, Pending>,
    pub(super) active: Instant,
    pub(super) timer: Option<(TimerId, Instant)>,
}

/// A message that waits for its link, and how many of its leading parts are not for this peer.
pub(super) struct Queued {
    pub(super) message: Arc<Message>,
    pub(super) skip: usize,
}

pub(super) enum Kind {
    Incoming {
        role: Role,
        admission: Admission,
        route: Option<Vec<u8>>,
    },
    Outgoing(Box<Outgoing>),
    /// One end of an in-process link.
    Local {
        twin: u64,
    },
}

/// What an incoming link is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Commands,
    Stream(StreamId),
    Replay(StreamId),
}

pub(super) struct Outgoing {
    pub(super) connect: Connect,
    pub(super) config: Arc<LinkConfig>,
    pub(super) node: Option<PublicKey>,
    pub(super) keep_alive: Option<Duration>,
    pub(super) probe: Probe,
    pub(super) stream: Option<StreamId>,
    pub(super) outcome: Option<ConnectOutcome>,
    /// It has been up once: from now on it is opened again whenever it is lost.
    pub(super) established: bool,
    pub(super) give_up: Instant,
    pub(super) retry: Instant,
    pub(super) attempt: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Probe {
    None,
    /// HI is to be sent when the link is up.
    Wanted,
    Sent,
}

impl Peer {
    pub(super) fn new(id: LinkId, kind: Kind, origin: Origin, now: Instant) -> Self {
        Self {
            id,
            conn: None,
            link: None,
            kind,
            origin: Arc::new(origin),
            up: false,
            minor: 1,
            queue: VecDeque::new(),
            queue_bytes: 0,
            pending: Map::default(),
            active: now,
            timer: None,
        }
    }

    pub(super) fn outgoing(&mut self) -> Option<&mut Outgoing> {
        match &mut self.kind {
            Kind::Outgoing(outgoing) => Some(outgoing),
            _ => None,
        }
    }

    pub(super) fn is_incoming(&self) -> bool {
        matches!(self.kind, Kind::Incoming { .. })
    }

    /// The node at the other end, if it is one.
    pub(super) fn node(&self) -> Option<PublicKey> {
        match &self.kind {
            Kind::Outgoing(outgoing) => outgoing.node,
            _ => match self.origin.connection {
                crate::ConnectionId::Node(key) => Some(key),
                crate::ConnectionId::Link(_) => None,
            },
        }
    }

    /// When something is to be done about this peer.
    pub(super) fn due(&self) -> Instant {
        let link = self.link.as_ref().map_or(Instant::NEVER, Link::next_deadline);
        let Kind::Outgoing(outgoing) = &self.kind else { return link };
        let give_up = if outgoing.established { Instant::NEVER } else { outgoing.give_up };
        link.min(give_up).min(outgoing.retry).min(self.expires())
    }

    /// When an idle link is closed: not while anybody waits for an answer on it.
    pub(super) fn expires(&self) -> Instant {
        match &self.kind {
            Kind::Outgoing(outgoing) if outgoing.established && self.pending.is_empty() && self.queue.is_empty() => {
                super::later(self.active, outgoing.keep_alive)
            }
            _ => Instant::NEVER,
        }
    }
}
