//! One loop's share of the message layer: its links, and the requests, timers and streams that live with them.

mod admission;
mod dial;
mod dispatch;
mod links;
mod outbound;
mod peer;
mod peers;
mod streams;
mod together;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use slackwater_base::{Instant, Map, Rng};
use slackwater_net::{
    Endpoint, Event as NetEvent, Listen, ListenerId, Net, NetError, Protocol, TimerId,
};
use slackwater_zmtp::{Entropy, LinkConfig, Message, PublicKey};

pub(crate) use outbound::Tag;
pub(crate) use peer::Opening;
pub(crate) use streams::{StreamId, StreamSetup};

use crate::context::Context;
use crate::deliver::Sending;
use crate::stream::{Missed, Publishing};
use crate::timer::Ticking;
use crate::{Admission, Level};
use peer::{Peer, Role};
use peers::{At, Peers};
use streams::Stream;
use together::Gathered;

/// A command of another thread, or of another loop, to a loop.
pub(crate) enum LoopCommand {
    Listen(Box<Listening>),
    Open(Box<Opening>),
    OpenLocal {
        client: u64,
        server: u64,
    },
    Send(u64, Box<Sending>),
    /// The same of a message alone, such as a reply.
    SendPlainly(u64, Message),
    Verdict(u64, Option<Level>),
    /// The addresses of the name that a link waits for, or why there are none.
    Resolved(u64, Result<Vec<SocketAddr>, String>),
    Disconnect {
        serial: u64,
        linger: Duration,
    },
    /// The same, but the peer is to come back.
    Renew {
        serial: u64,
        linger: Duration,
    },
    HandedOver(u64),
    /// Rights or nodes have changed: look at every link again.
    Review,
    /// A reply that came on a node's link of another loop.
    StrayReply(PublicKey, Message),
    /// A message between the two ends of an in-process link.
    Local(u64, Message),
    AddTimer(u64, Ticking),
    CancelTimer(u64),
    OpenStream(StreamId, StreamSetup),
    Publish(StreamId, Box<Publishing>),
    WhenMissed(StreamId, Missed),
    Inspect(Sender<Inspection>),
    /// Stop listening; open links go on.
    Drain,
    /// Ends everything; `empty` is dropped when the last connection has gone.
    Shutdown {
        linger: Duration,
        empty: Sender<Infallible>,
    },
}

/// The use of the connections of a listener.
#[derive(Clone)]
pub(crate) enum Purpose {
    Commands(Admission),
    Stream(StreamId, Admission),
    Replay(StreamId, Admission),
}

pub(crate) struct Listening {
    pub(crate) listen: Listen,
    pub(crate) config: Arc<LinkConfig>,
    pub(crate) purpose: Purpose,
    pub(crate) answer: Sender<Result<Endpoint, NetError>>,
}

/// The numbers of all that is kept for peers, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inspection {
    pub(crate) peers: usize,
    pub(crate) up: usize,
    pub(crate) pending: usize,
    pub(crate) connections: usize,
    pub(crate) queued: usize,
    pub(crate) timers: usize,
}

pub(crate) struct Shard {
    context: Arc<Context>,
    number: u16,
    peers: Peers,
    listeners: Map<ListenerId, (Arc<LinkConfig>, Purpose)>,
    /// Which request a timer belongs to.
    requests: Map<u64, (At, Tag)>,
    next_request: u64,
    timers: Map<u64, (Ticking, TimerId)>,
    streams: Map<StreamId, Stream>,
    gathered: Gathered,
    events: Vec<slackwater_zmtp::Event>,
    scratch: Vec<u8>,
    randomness: Randomness,
    jitter: Rng,
    stopping: bool,
    /// Dropped when this loop has no connection left; a stop waits for that.
    empty: Option<Sender<Infallible>>,
}

/// The purpose of a timer of the loop, in the top bits of its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Peer(u64),
    Request(u64),
    User(u64),
}

impl Token {
    const KIND: u32 = 62;

    fn pack(self) -> u64 {
        match self {
            Token::Peer(serial) => serial,
            Token::Request(number) => number | 1 << Self::KIND,
            Token::User(number) => number | 2 << Self::KIND,
        }
    }

    fn unpack(token: u64) -> Self {
        let number = token & ((1 << Self::KIND) - 1);
        match token >> Self::KIND {
            0 => Token::Peer(number),
            1 => Token::Request(number),
            _ => Token::User(number),
        }
    }
}

impl Protocol for Shard {
    type Command = LoopCommand;

    fn handle(&mut self, net: &mut Net, event: NetEvent<'_, LoopCommand>) {
        if !matches!(event, NetEvent::Bytes { .. }) {
            self.gathered.carry_out(&self.context);
        }
        match event {
            NetEvent::Bytes { conn, bytes } => self.on_bytes(net, conn, bytes),
            NetEvent::Command(order) => self.on_command_from_thread(net, order),
            NetEvent::Accepted {
                conn,
                listener,
                source,
            } => self.on_accepted(net, conn, listener, source),
            NetEvent::Connected { conn } => self.on_connected(net, conn),
            NetEvent::Drained { conn } => {
                if let Some(at) = self.at_of(net, conn) {
                    self.flush_queue(net, at);
                    if let Some(Role::Replay(stream)) = self.peers.get(at).map(|peer| peer.role) {
                        self.go_on_with_replay(net, at, stream);
                    }
                }
            }
            NetEvent::Closed {
                conn,
                attached,
                end,
            } => {
                if let Some(at) = self.peers.of(conn, attached) {
                    self.on_conn_closed(net, at, &end);
                }
                self.context.metrics.changed().notify_all();
                self.check_empty(net);
            }
            NetEvent::Timer { token } => match Token::unpack(token) {
                Token::Peer(serial) => self.on_tick(net, self.peers.find(serial)),
                Token::Request(number) => self.on_request_timeout(net, number),
                Token::User(number) => self.on_user_timer(net, number),
            },
        }
    }

    fn turn_ends(&mut self, _: &mut Net) {
        self.gathered.carry_out(&self.context);
    }
}

impl Shard {
    pub(crate) fn new(context: Arc<Context>, number: u16) -> Result<Self, getrandom::Error> {
        let mut seed = [0; 8];
        getrandom::fill(&mut seed)?;
        Ok(Self {
            context,
            number,
            peers: Peers::default(),
            listeners: Map::default(),
            requests: Map::default(),
            next_request: 0,
            timers: Map::default(),
            streams: Map::default(),
            gathered: Gathered::default(),
            events: Vec::new(),
            scratch: Vec::new(),
            randomness: Randomness::new()?,
            jitter: Rng::new(u64::from_le_bytes(seed)),
            stopping: false,
            empty: None,
        })
    }

    fn on_command_from_thread(&mut self, net: &mut Net, order: LoopCommand) {
        match order {
            LoopCommand::Send(serial, sending) => {
                self.deliver(net, self.peers.find(serial), *sending)
            }
            LoopCommand::SendPlainly(serial, message) => {
                self.deliver(net, self.peers.find(serial), Sending::plain(message))
            }
            LoopCommand::Local(serial, message) => {
                self.on_message(net, self.peers.find(serial), message)
            }
            LoopCommand::Publish(stream, publishing) => self.publish(net, stream, &publishing),
            LoopCommand::WhenMissed(stream, called) => {
                if let Some(Stream::Publisher { missed, .. }) = self.streams.get_mut(&stream) {
                    *missed = Some(called);
                }
            }
            LoopCommand::Verdict(serial, level) => {
                self.on_verdict(net, self.peers.find(serial), level)
            }
            LoopCommand::Resolved(serial, outcome) => {
                self.on_resolved(net, self.peers.find(serial), outcome)
            }
            LoopCommand::Open(opening) => self.open(net, *opening),
            LoopCommand::OpenLocal { client, server } => self.open_local(client, server),
            LoopCommand::Listen(listening) => self.listen(net, *listening),
            LoopCommand::Disconnect { serial, linger } => {
                self.disconnect(net, self.peers.find(serial), linger)
            }
            LoopCommand::Renew { serial, linger } => {
                self.close(net, self.peers.find(serial), linger)
            }
            LoopCommand::HandedOver(serial) => self.hand_over(net, self.peers.find(serial)),
            LoopCommand::Review => self.review(net),
            LoopCommand::StrayReply(key, message) => self.on_stray_reply(net, key, message),
            LoopCommand::AddTimer(number, ticking) => self.add_timer(net, number, ticking),
            LoopCommand::CancelTimer(number) => {
                if let Some((_, timer)) = self.timers.remove(&number) {
                    net.cancel_timer(timer);
                }
            }
            LoopCommand::OpenStream(id, setup) => {
                self.streams.insert(id, Stream::new(setup));
            }
            LoopCommand::Inspect(answer) => {
                // The caller may have given up.
                let _ = answer.send(self.inspect(net));
            }
            LoopCommand::Drain => net.stop_listening_everywhere(),
            LoopCommand::Shutdown { linger, empty } => self.shut_down(net, linger, empty),
        }
    }

    fn listen(&mut self, net: &mut Net, listening: Listening) {
        let Listening {
            listen,
            config,
            purpose,
            answer,
        } = listening;
        let outcome = net.listen(&listen).map(|(id, endpoint)| {
            self.listeners.insert(id, (config, purpose));
            endpoint
        });
        // The caller may have given up.
        let _ = answer.send(outcome);
    }

    fn inspect(&self, net: &Net) -> Inspection {
        Inspection {
            peers: self.peers.len(),
            up: self.peers.values().filter(|peer| peer.up).count(),
            pending: self
                .peers
                .values()
                .map(|peer| peer.rest.pending.len())
                .sum(),
            connections: net.connections(),
            queued: self.peers.values().map(Peer::queued).sum(),
            timers: self.timers.len(),
        }
    }

    fn add_timer(&mut self, net: &mut Net, number: u64, ticking: Ticking) {
        let timer = net.set_timer(net.now() + ticking.interval, Token::User(number).pack());
        self.timers.insert(number, (ticking, timer));
    }

    fn on_user_timer(&mut self, net: &mut Net, number: u64) {
        let Some((ticking, timer)) = self.timers.get_mut(&number) else {
            return;
        };
        *timer = net.set_timer(net.now() + ticking.interval, Token::User(number).pack());
        let ticking = ticking.clone();
        ticking.fire(&self.context);
    }

    /// Ends everything: requests end with `Gone`, links close with linger, nothing reconnects. Peers may: who restarts a process
    /// means its peers to stay.
    fn shut_down(&mut self, net: &mut Net, linger: Duration, empty: Sender<Infallible>) {
        self.stopping = true;
        net.stop_listening_everywhere();
        for at in self.peers.all() {
            self.close(net, at, linger);
        }
        for (_, (_, timer)) in self.timers.drain() {
            net.cancel_timer(timer);
        }
        self.empty = Some(empty);
        self.check_empty(net);
    }

    fn check_empty(&mut self, net: &Net) {
        if net.connections() == 0 {
            self.empty = None;
        }
    }
}

/// Random bytes of the operating system, fetched in blocks.
struct Randomness {
    block: Box<[u8; 4096]>,
    used: usize,
}

impl Randomness {
    fn new() -> Result<Self, getrandom::Error> {
        let mut block = Box::new([0; 4096]);
        getrandom::fill(block.as_mut_slice())?;
        Ok(Self { block, used: 0 })
    }

    /// Bytes that are used nowhere else: each is wiped as it is given out.
    ///
    /// # Panics
    /// When the operating system, which gave randomness at the start, no longer does.
    fn take<const N: usize>(&mut self) -> [u8; N] {
        if self.used + N > self.block.len() {
            getrandom::fill(self.block.as_mut_slice())
                .expect("the operating system gave randomness before");
            self.used = 0;
        }
        let taken = std::array::from_fn(|i| std::mem::take(&mut self.block[self.used + i]));
        self.used += N;
        taken
    }

    fn entropy(&mut self) -> Entropy {
        Entropy::new(self.take())
    }
}

fn later(now: Instant, after: Option<Duration>) -> Instant {
    after.map_or(Instant::NEVER, |after| now + after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_keep_their_kind() {
        for token in [Token::Peer(7), Token::Request(7), Token::User(7)] {
            assert_eq!(Token::unpack(token.pack()), token);
        }
    }

    #[test]
    fn randomness_is_not_given_twice() {
        let mut randomness = Randomness::new().unwrap();
        let drawn: std::collections::BTreeSet<[u8; 15]> =
            (0..1_000).map(|_| randomness.take()).collect();
        assert_eq!(drawn.len(), 1_000);
    }
}
