use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use slackwater_base::{Instant, Map};
use slackwater_net::{ConnId, Source, TimerId};
use slackwater_zmtp::{Link, LinkConfig, Message, PublicKey};

use super::dial::Dialing;
use super::outbound::{Pending, Tag};
use super::streams::StreamId;
use crate::context::{LinkId, Origin};
use crate::{Admission, ConnectFailure, Level, Place};

/// Called once with the outcome of opening a link.
pub(crate) type ConnectOutcome = Box<dyn FnOnce(Result<(), ConnectFailure>) + Send>;

/// A link to be opened.
pub(crate) struct Opening {
    pub(crate) id: LinkId,
    pub(crate) place: Place,
    pub(crate) from: Option<SocketAddr>,
    pub(crate) beside: bool,
    pub(crate) config: Arc<LinkConfig>,
    pub(crate) remote: String,
    pub(crate) node: Option<PublicKey>,
    pub(crate) level: Level,
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) probe: bool,
    pub(crate) timeout: Duration,
    pub(crate) stream: Option<StreamId>,
    pub(crate) outcome: Option<ConnectOutcome>,
}

/// One link, from its first byte to its last; an outgoing one also between its connections.
///
/// The fields that a message needs are here, in two cache lines; all others are behind a pointer. See `net`'s
/// connections.
#[repr(align(64))]
pub(super) struct Peer {
    pub(super) serial: u64,
    pub(super) conn: Option<ConnId>,
    pub(super) link: Option<Link>,
    pub(super) role: Role,
    pub(super) origin: Arc<Origin>,
    /// When a message last went either way.
    pub(super) active: Instant,
    /// Messages that wait for the link; none when none do.
    pub(super) queue: Option<Box<Queue>>,
    pub(super) rest: Box<Rest>,
    /// What the peer may call.
    pub(super) level: Level,
    pub(super) up: bool,
    /// Minor version of the peer's greeting.
    pub(super) minor: u8,
}

const _: () = assert!(
    size_of::<Peer>() == 128,
    "a link has outgrown its two cache lines"
);

/// The fields that a message does not need.
pub(super) struct Rest {
    pub(super) kind: Kind,
    pub(super) pending: Map<Tag, Pending>,
    pub(super) timer: Option<(TimerId, Instant)>,
}

/// Messages that wait for their link.
#[derive(Default)]
pub(super) struct Queue {
    messages: VecDeque<Queued>,
    bytes: usize,
}

/// A message that waits for its link, and how many of its leading parts are not for this peer.
pub(super) struct Queued {
    pub(super) message: Arc<Message>,
    pub(super) skip: usize,
    /// The number of the request that this message asks, if it is one.
    pub(super) request: Option<u64>,
}

pub(super) enum Kind {
    Incoming {
        admission: Admission,
        source: Source,
        route: Option<Vec<u8>>,
    },
    Outgoing(Outgoing),
    /// One end of an in-process link.
    Local,
}

/// What messages on a link are for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Commands and their answers.
    Commands,
    /// A subscriber of a stream that this side publishes.
    Subscriber(StreamId),
    /// Replays of such a stream.
    Replay(StreamId),
    /// A stream that this side listens to.
    Publisher(StreamId),
    /// Commands to the other end within the process.
    Twin(u64),
}

pub(super) struct Outgoing {
    pub(super) dialing: Box<Dialing>,
    pub(super) config: Arc<LinkConfig>,
    pub(super) node: Option<PublicKey>,
    pub(super) keep_alive: Option<Duration>,
    pub(super) probe: Probe,
    pub(super) outcome: Option<ConnectOutcome>,
    /// It has been up once: from now on it is opened again whenever it is lost.
    pub(super) established: bool,
    pub(super) give_up: Instant,
    pub(super) retry: Instant,
    pub(super) attempt: u32,
    /// When it last came up.
    pub(super) since: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Probe {
    None,
    /// HI is to be sent when the link is up.
    Wanted,
    Sent,
}

/// What a message takes in a queue beside its payload, so that many small ones count too.
const QUEUED_BYTES: usize = 128;

impl Outgoing {
    /// When it is given up unless it has been up by then.
    pub(super) fn gives_up(&self) -> Instant {
        if self.established {
            Instant::NEVER
        } else {
            self.give_up
        }
    }
}

impl Peer {
    pub(super) fn new(role: Role, kind: Kind, origin: Origin, now: Instant) -> Self {
        Self {
            serial: origin.link.serial,
            conn: None,
            link: None,
            role,
            origin: Arc::new(origin),
            active: now,
            queue: None,
            rest: Box::new(Rest {
                kind,
                pending: Map::default(),
                timer: None,
            }),
            level: Level::None,
            up: false,
            minor: 1,
        }
    }

    pub(super) fn outgoing(&mut self) -> Option<&mut Outgoing> {
        match &mut self.rest.kind {
            Kind::Outgoing(outgoing) => Some(outgoing),
            _ => None,
        }
    }

    pub(super) fn is_incoming(&self) -> bool {
        matches!(self.rest.kind, Kind::Incoming { .. })
    }

    /// The node at the other end, if it is one.
    pub(super) fn node(&self) -> Option<PublicKey> {
        match &self.rest.kind {
            Kind::Outgoing(outgoing) => outgoing.node,
            _ => match self.origin.connection {
                crate::ConnectionId::Node(key) => Some(key),
                crate::ConnectionId::Link(_) => None,
            },
        }
    }

    /// When something is to be done about this peer.
    pub(super) fn due(&self) -> Instant {
        let link = self
            .link
            .as_ref()
            .map_or(Instant::NEVER, Link::next_deadline);
        let Kind::Outgoing(outgoing) = &self.rest.kind else {
            return link;
        };
        link.min(outgoing.gives_up())
            .min(outgoing.retry)
            .min(outgoing.dialing.gives_way())
            .min(self.expires())
    }

    /// When an idle link is closed: not while anybody waits for an answer on it.
    pub(super) fn expires(&self) -> Instant {
        match &self.rest.kind {
            Kind::Outgoing(outgoing)
                if outgoing.established && self.rest.pending.is_empty() && self.queue.is_none() =>
            {
                super::later(self.active, outgoing.keep_alive)
            }
            _ => Instant::NEVER,
        }
    }

    /// Whether so many messages or bytes wait that one more of `bytes` is too many. A first one always fits.
    pub(super) fn is_full_for(&self, bytes: usize, most: (usize, usize)) -> bool {
        let Some(queue) = &self.queue else {
            return most.0 == 0;
        };
        queue.messages.len() >= most.0 || queue.bytes + bytes + QUEUED_BYTES > most.1
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.messages.len())
    }

    /// Puts what waited before behind what waits now.
    pub(super) fn put_behind(&mut self, earlier: Option<Box<Queue>>) {
        for queued in earlier.into_iter().flat_map(|queue| queue.messages) {
            self.enqueue(queued);
        }
    }

    pub(super) fn enqueue(&mut self, queued: Queued) {
        let queue = self.queue.get_or_insert_default();
        queue.bytes += queued.message.payload_bytes() + QUEUED_BYTES;
        queue.messages.push_back(queued);
    }

    /// Takes the message of a request out, if it still waits here.
    pub(super) fn withdraw(&mut self, request: u64) {
        let Some(queue) = &mut self.queue else { return };
        // Requests time out roughly in the order in which they were queued, so the search ends early.
        let found = queue
            .messages
            .iter()
            .position(|queued| queued.request == Some(request));
        let Some(withdrawn) = found.and_then(|index| queue.messages.remove(index)) else {
            return;
        };
        queue.bytes -= withdrawn.message.payload_bytes() + QUEUED_BYTES;
        if queue.messages.is_empty() {
            self.queue = None;
        }
    }

    /// Takes the oldest out.
    pub(super) fn dequeue(&mut self) -> Option<Queued> {
        let queue = self.queue.as_mut()?;
        let oldest = queue.messages.pop_front()?;
        queue.bytes -= oldest.message.payload_bytes() + QUEUED_BYTES;
        if queue.messages.is_empty() {
            self.queue = None;
        }
        Some(oldest)
    }
}

impl Queue {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn messages(&self) -> impl Iterator<Item = &Queued> {
        self.messages.iter()
    }
}
