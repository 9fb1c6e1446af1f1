use std::sync::Arc;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_net::{ConnId, End, ListenerId, Net, Source};
use slackwater_zmtp::{Cause, Event, Input, Link, Message, Out, Peer as Facts};

use super::dial::Dialing;
use super::outbound::ROOM_BYTES;
use super::peer::{Kind, Opening, Outgoing, Peer, Probe, Role};
use super::peers::At;
use super::{Purpose, Shard, Token};
use crate::context::{LinkId, Opened, Origin};
use crate::deliver::Sending;
use crate::frames::{BYE, HI, PROPERTY};
use crate::{ConnectionId, Level, LinkEvent};

/// Time in which a link that ends may still write what is queued.
const ENDING: Duration = Duration::from_secs(1);

impl Shard {
    /// The peer whose connection this is.
    pub(super) fn at_of(&self, net: &Net, conn: ConnId) -> Option<At> {
        self.peers.of(conn, net.attached(conn)?)
    }

    pub(super) fn on_accepted(
        &mut self,
        net: &mut Net,
        conn: ConnId,
        listener: ListenerId,
        source: &Source,
    ) {
        let Some((config, purpose)) = self.listeners.get(&listener) else {
            return net.abort(conn);
        };
        let (role, admission) = match purpose.clone() {
            Purpose::Commands(admission) => (Role::Commands, admission),
            Purpose::Stream(stream, admission) => (Role::Subscriber(stream), admission),
            Purpose::Replay(stream, admission) => (Role::Replay(stream), admission),
        };
        let config = Arc::clone(config);
        let id = self.context.new_link(self.number);
        let origin = Origin {
            link: id,
            connection: ConnectionId::Link(id),
            remote: source.to_string(),
            key: None,
            extensions: false,
        };
        let kind = Kind::Incoming {
            admission,
            source: source.clone(),
            route: None,
        };
        let mut peer = Peer::new(role, kind, origin, net.now());
        peer.conn = Some(conn);
        peer.link = Some(Link::new(config, self.randomness.entropy(), net.now()));
        let at = self.peers.insert(peer);
        net.attach(conn, at.place());
        self.begin(net, at);
    }

    /// Opens a link for the first time.
    pub(super) fn open(&mut self, net: &mut Net, opening: Opening) {
        let id = opening.id;
        let connection = opening
            .node
            .map_or(ConnectionId::Link(id), ConnectionId::Node);
        let origin = Origin {
            link: id,
            connection,
            remote: opening.remote,
            key: opening.node,
            extensions: false,
        };
        let outgoing = Outgoing {
            dialing: Box::new(Dialing::new(
                opening.place,
                opening.from,
                opening.beside,
                opening.timeout,
            )),
            config: opening.config,
            node: opening.node,
            keep_alive: opening.keep_alive,
            probe: if opening.probe {
                Probe::Wanted
            } else {
                Probe::None
            },
            outcome: opening.outcome,
            established: false,
            give_up: net.now() + opening.timeout,
            retry: Instant::NEVER,
            attempt: 0,
            since: net.now(),
        };
        let role = opening.stream.map_or(Role::Commands, Role::Publisher);
        let mut peer = Peer::new(role, Kind::Outgoing(outgoing), origin, net.now());
        peer.level = opening.level;
        let at = self.peers.insert(peer);
        if self.stopping {
            return self.forget(net, at, "this side is stopping");
        }
        self.dial(net, at);
    }

    /// Makes both ends of a link within the process; both have the level admin.
    pub(super) fn open_local(&mut self, client: u64, server: u64) {
        for (own, twin) in [(client, server), (server, client)] {
            let id = LinkId {
                shard: self.number,
                serial: own,
            };
            let origin = Origin {
                link: id,
                connection: ConnectionId::Link(id),
                remote: "in-process".into(),
                key: Some(self.context.keys.public()),
                extensions: true,
            };
            let mut peer = Peer::new(Role::Twin(twin), Kind::Local, origin, Instant::ZERO);
            (peer.up, peer.level) = (true, Level::Admin);
            self.peers.insert(peer);
        }
    }

    pub(super) fn on_connected(&mut self, net: &mut Net, conn: ConnId) {
        let found = self
            .at_of(net, conn)
            .and_then(|at| Some((at, self.peers.get_mut(at)?)));
        let Some((at, peer)) = found else {
            return net.abort(conn);
        };
        let Some(outgoing) = peer.outgoing() else {
            return;
        };
        let config = Arc::clone(&outgoing.config);
        peer.link = Some(Link::new(config, self.randomness.entropy(), net.now()));
        self.begin(net, at);
    }

    fn begin(&mut self, net: &mut Net, at: At) {
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        let (Some(conn), Some(link)) = (peer.conn, &mut peer.link) else {
            return;
        };
        let Some(wire) = net.wire(conn) else { return };
        link.start(&mut Out {
            wire,
            events: &mut self.events,
        });
        self.arm(net, at);
    }

    pub(super) fn on_bytes(&mut self, net: &mut Net, conn: ConnId, bytes: &[u8]) {
        if let Some(at) = self.at_of(net, conn) {
            self.feed(net, at, Input::Bytes(bytes));
        }
    }

    /// Gives a link an input and carries out what it answers.
    pub(super) fn feed(&mut self, net: &mut Net, at: At, input: Input<'_>) {
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        let Some(link) = &mut peer.link else { return };
        let (mut events, mut wire) = (
            std::mem::take(&mut self.events),
            std::mem::take(&mut self.scratch),
        );
        link.handle(
            net.now(),
            input,
            &mut Out {
                wire: &mut wire,
                events: &mut events,
            },
        );
        self.carry_out(net, at, wire, events);
    }

    fn carry_out(&mut self, net: &mut Net, at: At, mut wire: Vec<u8>, mut events: Vec<Event>) {
        if !wire.is_empty() {
            self.answer(net, at, &wire);
            wire.clear();
        }
        self.scratch = wire;
        for event in events.drain(..) {
            match event {
                Event::Message(message) => self.on_message(net, at, message),
                Event::Admission(facts) => self.on_admission(net, at, &facts),
                Event::Up(facts) => self.on_up(net, at, &facts),
                Event::Subscribe(topic) => self.on_subscription(net, at, &topic, true),
                Event::Cancel(topic) => self.on_subscription(net, at, &topic, false),
                Event::Closed(cause) => {
                    let refused = matches!(cause, Cause::RefusedByPeer { .. });
                    self.lost(net, at, cause.name(), &cause.to_string(), refused);
                }
            }
        }
        self.events = events;
    }

    /// Bytes that the protocol itself sends: the handshake and answers to PINGs. A peer that sends PINGs without reading
    /// the answers gets no more of them.
    fn answer(&mut self, net: &mut Net, at: At, wire: &[u8]) {
        let Some(conn) = self.peers.get(at).and_then(|peer| peer.conn) else {
            return;
        };
        if net.queued_bytes(conn) >= ROOM_BYTES {
            return self.context.metrics.rare(&self.context.metrics.queue_full);
        }
        if let Some(out) = net.wire(conn) {
            out.extend_from_slice(wire);
        }
        // A PING may have said that its sender wants to be given up earlier.
        self.arm(net, at);
    }

    fn on_up(&mut self, net: &mut Net, at: At, facts: &Facts) {
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        peer.up = true;
        peer.minor = facts.minor;
        peer.active = net.now();
        if let Some(conn) = peer.conn {
            net.proven(conn);
        }
        let id = peer.origin.link;
        let mut is_probing = false;
        if let Some(outgoing) = peer.outgoing() {
            outgoing.since = net.now();
            outgoing.dialing.succeeded();
            is_probing = outgoing.probe == Probe::Wanted;
            if is_probing {
                outgoing.probe = Probe::Sent;
            }
            let connection = outgoing
                .node
                .map_or(ConnectionId::Link(id), ConnectionId::Node);
            let (remote, extensions) = (
                peer.origin.remote.clone(),
                facts.property(PROPERTY).is_some(),
            );
            peer.origin = Arc::new(Origin {
                link: id,
                connection,
                remote,
                key: facts.key,
                extensions,
            });
        }
        let (origin, role, is_outgoing) =
            (Arc::clone(&peer.origin), peer.role, !peer.is_incoming());
        self.context.metrics.rare(&self.context.metrics.links_up);
        if let ConnectionId::Node(key) = origin.connection {
            self.context.add_link_of(
                key,
                id,
                if is_outgoing {
                    Opened::Here
                } else {
                    Opened::There
                },
            );
        }
        if is_probing {
            self.deliver_first(net, at, Message::of([HI]));
        } else if is_outgoing {
            self.established(net, at);
        }
        if let Role::Publisher(stream) = role {
            self.tell_interests(net, at, stream);
        }
        let Origin {
            connection,
            remote,
            key,
            ..
        } = &*origin;
        self.context.tell(LinkEvent::Up {
            connection: *connection,
            remote: remote.clone(),
            key: *key,
        });
        self.flush_queue(net, at);
        self.arm_anew(net, at);
    }

    /// Puts a message before those that wait.
    fn deliver_first(&mut self, net: &mut Net, at: At, message: Message) {
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        let queue = peer.queue.take();
        self.deliver(net, at, Sending::plain(message));
        if let Some(peer) = self.peers.get_mut(at) {
            peer.put_behind(queue);
        }
    }

    /// The link is up; probes it if its opener asked for that.
    pub(super) fn established(&mut self, net: &mut Net, at: At) {
        let Some(outgoing) = self.peers.get_mut(at).and_then(|peer| peer.outgoing()) else {
            return;
        };
        outgoing.established = true;
        if let Some(outcome) = outgoing.outcome.take() {
            outcome(Ok(()));
        }
        self.arm_anew(net, at);
    }

    pub(super) fn on_conn_closed(&mut self, net: &mut Net, at: At, end: &End) {
        if let Some(peer) = self.peers.get_mut(at) {
            peer.conn = None;
        }
        let name = match end {
            End::ConnectFailed(_) => "connect_failed",
            End::ConnectTimeout => "connect_timeout",
            End::Eof => "peer_gone",
            End::Failed(_) => "socket_failed",
            End::Stalled => "stalled",
            End::Local => "local",
        };
        self.lost(net, at, name, &end.to_string(), false);
    }

    /// A connection is lost. One that never was up makes room for the peer's next address. Otherwise requests on the link
    /// end, and an outgoing link is opened again unless it never stood and its time is over.
    pub(super) fn lost(
        &mut self,
        net: &mut Net,
        at: At,
        cause: &'static str,
        reason: &str,
        refused: bool,
    ) {
        // What the link has asked for came before its end.
        self.gathered.carry_out(&self.context);
        let backoff = self.context.options.reconnect;
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        // What listens beside an address does not speak for what listens at it.
        let gives_way = peer.outgoing().is_some_and(|it| it.dialing.is_beside());
        let refused = refused && !gives_way;
        if !gives_way {
            self.context.metrics.count("link", cause);
        }
        peer.link = None;
        let was_up = std::mem::take(&mut peer.up);
        if let Some(conn) = peer.conn.take() {
            net.close(conn, ENDING);
        }
        let (stopping, now) = (self.stopping, net.now());
        if let Some(outgoing) = peer.outgoing().filter(|_| !was_up) {
            outgoing.dialing.failed(reason);
            let is_late = !outgoing.established && now >= outgoing.give_up;
            if !refused && !stopping && !is_late && outgoing.dialing.has_untried() {
                return self.dial_next(net, at);
            }
        }
        let delay = match peer.outgoing() {
            Some(_) if refused => backoff.max,
            Some(outgoing) => {
                // A peer that accepts links only to drop them is not connected to again at once.
                if was_up && now.since(outgoing.since) >= backoff.max {
                    outgoing.attempt = 0;
                }
                backoff.pause(outgoing.attempt, &mut self.jitter)
            }
            None => Duration::ZERO,
        };
        let again = match peer.outgoing() {
            Some(outgoing)
                if !stopping && (outgoing.established || !refused && now < outgoing.give_up) =>
            {
                outgoing.attempt += 1;
                outgoing.retry = now + delay;
                if outgoing.probe == Probe::Sent {
                    outgoing.probe = Probe::Wanted;
                }
                true
            }
            _ => false,
        };
        if !again {
            return self.remove(net, at, was_up, reason);
        }
        self.fail_sent(net, at);
        self.context.metrics.rare(&self.context.metrics.reconnects);
        if was_up {
            self.down(at, reason, true);
        }
        self.arm(net, at);
    }

    /// Ends a link; it is not opened again.
    pub(super) fn forget(&mut self, net: &mut Net, at: At, reason: &str) {
        self.gathered.carry_out(&self.context);
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        let was_up = std::mem::take(&mut peer.up);
        peer.link = None;
        let conn = peer.conn.take();
        self.remove(net, at, was_up, reason);
        // The peer sees the end only now: what it then asks of this process finds the link no longer.
        if let Some(conn) = conn {
            net.close(conn, ENDING);
        }
    }

    /// The only place that removes a link. A caller that is told of the end finds the link no longer.
    fn remove(&mut self, net: &mut Net, at: At, was_up: bool, reason: &str) {
        let Some(peer) = self.peers.get(at) else {
            return;
        };
        if let Some(key) = peer.node() {
            self.context.remove_link_of(&key, peer.origin.link);
        }
        self.fail_pending(net, at);
        if was_up {
            self.down(at, reason, false);
        }
        self.forget_subscriber(at);
        let Some(mut peer) = self.peers.remove(at) else {
            return;
        };
        self.context.metrics.changed().notify_all();
        let id = peer.origin.link;
        if let Some((timer, _)) = peer.rest.timer.take() {
            net.cancel_timer(timer);
        }
        match &mut peer.rest.kind {
            Kind::Incoming { route, .. } => {
                if let Some(route) = route {
                    self.context.routes().leave(route, id);
                }
                if !was_up {
                    let remote = peer.origin.remote.clone();
                    self.context.tell(LinkEvent::Refused {
                        remote,
                        reason: reason.to_owned(),
                    });
                }
            }
            Kind::Outgoing(outgoing) => {
                if let Some(outcome) = outgoing.outcome.take() {
                    outcome(Err(outgoing.dialing.failure(reason)));
                }
                if !outgoing.established {
                    let remote = peer.origin.remote.clone();
                    self.context.tell(LinkEvent::Refused {
                        remote,
                        reason: reason.to_owned(),
                    });
                }
            }
            Kind::Local => {
                if let Role::Twin(twin) = peer.role {
                    self.forget(net, self.peers.find(twin), reason);
                }
            }
        }
    }

    fn down(&mut self, at: At, reason: &str, reconnecting: bool) {
        let Some(peer) = self.peers.get(at) else {
            return;
        };
        self.context.metrics.rare(&self.context.metrics.links_down);
        let connection = peer.origin.connection;
        self.context.tell(LinkEvent::Down {
            connection,
            reason: reason.to_owned(),
            reconnecting,
        });
    }

    /// Closes a link as its owner wants: what is queued is still written, an inbound peer is told not to come back. One of a
    /// stream would take these words for a message.
    pub(super) fn disconnect(&mut self, net: &mut Net, at: At, linger: Duration) {
        let Some(peer) = self.peers.get(at) else {
            return;
        };
        if peer.is_incoming() && peer.up && peer.role == Role::Commands {
            self.deliver(net, at, Sending::plain(Message::of([BYE])));
        }
        self.close(net, at, linger);
    }

    /// Closes a link as [`Self::disconnect`] does, and has an inbound peer come back: to this process, or the next one at this address.
    pub(super) fn close(&mut self, net: &mut Net, at: At, linger: Duration) {
        if let Some(conn) = self.peers.get_mut(at).and_then(|peer| peer.conn.take()) {
            net.close(conn, linger);
        }
        self.forget(net, at, "closed by this side");
    }

    pub(super) fn hand_over(&mut self, net: &mut Net, at: At) {
        self.context.metrics.count("link", "handed_over");
        // After a goodbye the older one does not reconnect and take the id over in turn.
        self.disconnect(net, at, ENDING);
    }

    pub(super) fn on_tick(&mut self, net: &mut Net, at: At) {
        let now = net.now();
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        peer.rest.timer = None;
        let is_expired = peer.up && now >= peer.expires();
        let (mut is_late, mut is_due) = (false, false);
        let up = peer.up;
        if let Some(outgoing) = peer.outgoing() {
            if !up && now >= outgoing.dialing.gives_way() {
                return self.lost(net, at, "connect_timeout", "no answer", false);
            }
            is_late = !outgoing.established && now >= outgoing.give_up;
            is_due = now >= outgoing.retry;
        }
        if is_late {
            self.context.metrics.count("link", "connect_timeout");
            return self.forget(net, at, "not connected in time");
        }
        if is_expired {
            self.context.metrics.count("link", "idle");
            return self.forget(net, at, "idle");
        }
        if is_due {
            return self.dial(net, at);
        }
        if let Some(peer) = self.peers.get_mut(at)
            && let Some(link) = &mut peer.link
        {
            let (mut events, mut wire) = (
                std::mem::take(&mut self.events),
                std::mem::take(&mut self.scratch),
            );
            link.on_deadline(
                now,
                &mut Out {
                    wire: &mut wire,
                    events: &mut events,
                },
            );
            self.carry_out(net, at, wire, events);
        }
        self.arm(net, at);
    }

    /// Sees to it that a timer fires no later than the peer is due. One that fires early sets itself again, so that
    /// traffic, which only ever moves a heartbeat back, costs no timer operation.
    pub(super) fn arm(&mut self, net: &mut Net, at: At) {
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        let due = peer.due();
        if peer.rest.timer.is_some_and(|(_, at)| at <= due) || due == Instant::NEVER {
            return;
        }
        if let Some((timer, _)) = peer.rest.timer.take() {
            net.cancel_timer(timer);
        }
        peer.rest.timer = Some((net.set_timer(due, Token::Peer(at.serial()).pack()), due));
    }

    /// As above after a deadline has passed, spread over time: otherwise thousands of links that came up together would
    /// all fire together.
    fn arm_anew(&mut self, net: &mut Net, at: At) {
        if let Some((timer, _)) = self
            .peers
            .get_mut(at)
            .and_then(|peer| peer.rest.timer.take())
        {
            net.cancel_timer(timer);
        }
        self.arm(net, at);
    }
}
