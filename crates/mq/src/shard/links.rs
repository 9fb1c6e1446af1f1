use std::sync::Arc;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_net::{ConnId, End, ListenerId, Net, Source};
use slackwater_zmtp::{Cause, Entry, Event, Input, Link, Message, Out, Peer as Facts, PublicKey, Verdict};

use super::dispatch::connection_of;
use super::peer::{Kind, Opening, Outgoing, Peer, Probe, Role};
use super::peers::At;
use super::{Order, Purpose, Shard, Token, back_off};
use crate::deliver::Sending;
use crate::frames::{BYE, HI, PROPERTY};
use crate::hub::{LinkId, Opened, Origin};
use crate::{Admission, Applicant, ConnectionId, Level, LinkEvent};

/// How long a link that has said its last word may go on writing it.
const LAST_WORD: Duration = Duration::from_secs(1);

impl Shard {
    /// The peer whose connection this is.
    pub(super) fn at_of(&self, net: &Net, conn: ConnId) -> Option<At> {
        self.peers.of(conn, net.attached(conn)?)
    }

    pub(super) fn on_accepted(&mut self, net: &mut Net, conn: ConnId, listener: ListenerId, source: &Source) {
        let Some((config, purpose)) = self.listeners.get(&listener) else { return net.abort(conn) };
        let (role, admission) = match purpose.clone() {
            Purpose::Commands(admission) => (Role::Commands, admission),
            Purpose::Stream(stream, admission) => (Role::Stream(stream), admission),
            Purpose::Replay(stream, admission) => (Role::Replay(stream), admission),
        };
        let config = Arc::clone(config);
        let id = self.hub.new_link(self.number);
        let origin = Origin {
            link: id,
            connection: ConnectionId::Link(id),
            level: Level::None,
            remote: source.to_string(),
            key: None,
            extensions: false,
        };
        let mut peer = Peer::new(id, Kind::Incoming { role, admission, route: None }, origin, net.now());
        peer.conn = Some(conn);
        peer.link = Some(Link::new(config, self.randomness.entropy(), net.now()));
        let at = self.peers.insert(peer);
        net.attach(conn, at.place());
        self.begin(net, at);
    }

    /// Opens a link for the first time.
    pub(super) fn open(&mut self, net: &mut Net, opening: Opening) {
        let id = opening.id;
        let connection = opening.node.map_or(ConnectionId::Link(id), ConnectionId::Node);
        let origin = Origin {
            link: id,
            connection,
            level: opening.level,
            remote: opening.remote,
            key: opening.node,
            extensions: false,
        };
        let outgoing = Outgoing {
            connect: opening.connect,
            config: opening.config,
            node: opening.node,
            keep_alive: opening.keep_alive,
            probe: if opening.probe { Probe::Wanted } else { Probe::None },
            stream: opening.stream,
            outcome: opening.outcome,
            established: false,
            give_up: net.now() + opening.timeout,
            retry: Instant::NEVER,
            attempt: 0,
        };
        let peer = Peer::new(id, Kind::Outgoing(Box::new(outgoing)), origin, net.now());
        let at = self.peers.insert(peer);
        if self.stopping {
            return self.forget(net, at, "this side is stopping");
        }
        self.dial(net, at);
    }

    /// Makes both ends of a link within the process; whoever is on it may do everything.
    pub(super) fn open_local(&mut self, client: u64, server: u64) {
        for (own, twin) in [(client, server), (server, client)] {
            let id = LinkId { shard: self.number, serial: own };
            let origin = Origin {
                link: id,
                connection: ConnectionId::Link(id),
                level: Level::Admin,
                remote: "in-process".into(),
                key: Some(self.hub.keys.public()),
                extensions: true,
            };
            let mut peer = Peer::new(id, Kind::Local { twin }, origin, Instant::ZERO);
            peer.up = true;
            self.peers.insert(peer);
        }
    }

    fn dial(&mut self, net: &mut Net, at: At) {
        let Some(outgoing) = self.peers.get_mut(at).and_then(|peer| peer.outgoing()) else { return };
        outgoing.retry = Instant::NEVER;
        let connect = outgoing.connect.clone();
        match net.connect(&connect) {
            Ok(conn) => {
                if let Some(peer) = self.peers.get_mut(at) {
                    peer.conn = Some(conn);
                }
                net.attach(conn, at.place());
                self.arm(net, at);
            }
            Err(error) => self.lost(net, at, "connect_failed", &error.to_string(), false),
        }
    }

    pub(super) fn on_connected(&mut self, net: &mut Net, conn: ConnId) {
        let found = self.at_of(net, conn).and_then(|at| Some((at, self.peers.get_mut(at)?)));
        let Some((at, peer)) = found else { return net.abort(conn) };
        let Some(outgoing) = peer.outgoing() else { return };
        let config = Arc::clone(&outgoing.config);
        peer.link = Some(Link::new(config, self.randomness.entropy(), net.now()));
        self.begin(net, at);
    }

    fn begin(&mut self, net: &mut Net, at: At) {
        let Some(peer) = self.peers.get_mut(at) else { return };
        let (Some(conn), Some(link)) = (peer.conn, &mut peer.link) else { return };
        let Some(wire) = net.wire(conn) else { return };
        link.start(&mut Out { wire, events: &mut self.events });
        self.arm(net, at);
    }

    pub(super) fn on_bytes(&mut self, net: &mut Net, conn: ConnId, bytes: &[u8]) {
        if let Some(at) = self.at_of(net, conn) {
            self.feed(net, at, Input::Bytes(bytes));
        }
    }

    /// Gives a link an input and carries out what it answers.
    fn feed(&mut self, net: &mut Net, at: At, input: Input<'_>) {
        let Some(peer) = self.peers.get_mut(at) else { return };
        let Some(link) = &mut peer.link else { return };
        let (mut events, mut wire) = (std::mem::take(&mut self.events), std::mem::take(&mut self.scratch));
        link.handle(net.now(), input, &mut Out { wire: &mut wire, events: &mut events });
        self.carry_out(net, at, wire, events);
    }

    fn carry_out(&mut self, net: &mut Net, at: At, mut wire: Vec<u8>, mut events: Vec<Event>) {
        if !wire.is_empty()
            && let Some(conn) = self.peers.get(at).and_then(|peer| peer.conn)
            && let Some(out) = net.wire(conn)
        {
            out.extend_from_slice(&wire);
        }
        wire.clear();
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

    /// A peer has proven who it is: decide whether it may come in, here if that is quick, else on a worker.
    fn on_admission(&mut self, net: &mut Net, at: At, facts: &Facts) {
        let Some(peer) = self.peers.get_mut(at) else { return };
        let Kind::Incoming { admission, route, .. } = &mut peer.kind else { return };
        if !facts.identity.is_empty() {
            *route = Some(facts.identity.clone());
        }
        let origin = &peer.origin;
        let link = origin.link;
        let remote = origin.remote.clone();
        let admission = admission.clone();
        let extensions = facts.property(PROPERTY).is_some();
        peer.origin = Arc::new(Origin {
            link,
            connection: connection_of(&self.hub, link, facts.key),
            level: Level::None,
            remote: remote.clone(),
            key: facts.key,
            extensions,
        });
        match &admission {
            Admission::Everybody(level) => self.on_verdict(net, at, Some(*level)),
            Admission::Listed(_) => {
                let level = listed(&admission, facts.key);
                self.on_verdict(net, at, level);
            }
            Admission::Ask(decide) => {
                let is_node = self.hub.is_node(facts.key.as_ref());
                let applicant = Applicant { remote, key: facts.key, is_node };
                let (hub, decide) = (Arc::clone(&self.hub), Arc::clone(decide));
                let asked = self.hub.jobs.reply(Box::new(move || {
                    let level = decide(&applicant);
                    hub.order(link.shard, Order::Verdict(link.serial, level));
                }));
                if asked.is_err() {
                    self.on_verdict(net, at, None);
                }
            }
        }
    }

    pub(super) fn on_verdict(&mut self, net: &mut Net, at: At, level: Option<Level>) {
        let level = level.filter(|_| self.take_route(at));
        let Some(level) = level else {
            self.hub.metrics.refused.add(1);
            return self.feed(net, at, Input::Admit(Verdict::Refuse(400)));
        };
        self.set_level(at, level);
        self.feed(net, at, Input::Admit(Verdict::Accept));
    }

    /// Enters the peer under the routing id it announced. An id that another peer has is refused; one that the same
    /// key has is taken over.
    fn take_route(&mut self, at: At) -> bool {
        let Some(peer) = self.peers.get(at) else { return false };
        let Kind::Incoming { route: Some(id), role: Role::Commands, .. } = &peer.kind else { return true };
        let entered = self.hub.routes().enter(id, peer.origin.key, peer.id);
        match entered {
            Entry::New(_) => true,
            Entry::Handover { from, .. } => {
                self.hub.order(from.shard, Order::HandedOver(from.serial));
                true
            }
            Entry::Taken => {
                self.hub.metrics.count("link", "identity_taken");
                if let Some(Kind::Incoming { route, .. }) = self.peers.get_mut(at).map(|peer| &mut peer.kind) {
                    *route = None;
                }
                false
            }
        }
    }

    fn set_level(&mut self, at: At, level: Level) {
        let Some(peer) = self.peers.get_mut(at) else { return };
        let old = &peer.origin;
        peer.origin = Arc::new(Origin {
            link: old.link,
            connection: connection_of(&self.hub, old.link, old.key),
            level,
            remote: old.remote.clone(),
            key: old.key,
            extensions: old.extensions,
        });
    }

    fn on_up(&mut self, net: &mut Net, at: At, facts: &Facts) {
        let Some(peer) = self.peers.get_mut(at) else { return };
        peer.up = true;
        peer.minor = facts.minor;
        peer.active = net.now();
        if let Some(conn) = peer.conn {
            net.proven(conn);
        }
        let id = peer.id;
        let (mut is_probing, mut stream) = (false, None);
        if let Some(outgoing) = peer.outgoing() {
            outgoing.attempt = 0;
            is_probing = outgoing.probe == Probe::Wanted;
            if is_probing {
                outgoing.probe = Probe::Sent;
            }
            stream = outgoing.stream;
            let connection = outgoing.node.map_or(ConnectionId::Link(id), ConnectionId::Node);
            let (level, remote) = (peer.origin.level, peer.origin.remote.clone());
            let extensions = facts.property(PROPERTY).is_some();
            peer.origin = Arc::new(Origin { link: id, connection, level, remote, key: facts.key, extensions });
        }
        let origin = Arc::clone(&peer.origin);
        let is_outgoing = !peer.is_incoming();
        self.hub.metrics.links_up.add(1);
        if let ConnectionId::Node(key) = origin.connection {
            self.hub.add_link_of(key, id, if is_outgoing { Opened::Here } else { Opened::There });
        }
        if is_probing {
            self.deliver_first(net, at, Message::of([HI]));
        } else if is_outgoing {
            self.established(at);
        }
        if let Some(stream) = stream {
            self.tell_interests(net, at, stream);
        }
        let Origin { connection, remote, key, .. } = &*origin;
        self.hub.tell(LinkEvent::Up { connection: *connection, remote: remote.clone(), key: *key });
        self.flush_queue(net, at);
        self.arm(net, at);
    }

    /// Puts a message before those that wait.
    fn deliver_first(&mut self, net: &mut Net, at: At, message: Message) {
        let Some(peer) = self.peers.get_mut(at) else { return };
        let (queue, bytes) = (std::mem::take(&mut peer.queue), std::mem::take(&mut peer.queue_bytes));
        self.deliver(net, at, Sending::plain(message));
        if let Some(peer) = self.peers.get_mut(at) {
            peer.queue.extend(queue);
            peer.queue_bytes += bytes;
        }
    }

    /// The link is as good as its opener asked for.
    pub(super) fn established(&mut self, at: At) {
        let Some(outgoing) = self.peers.get_mut(at).and_then(|peer| peer.outgoing()) else { return };
        outgoing.established = true;
        if let Some(outcome) = outgoing.outcome.take() {
            outcome(Ok(()));
        }
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

    /// A link is lost: whoever waits on it hears so, and an outgoing one is opened again unless it never stood and
    /// its time is over.
    fn lost(&mut self, net: &mut Net, at: At, cause: &'static str, reason: &str, refused: bool) {
        self.hub.metrics.count("link", cause);
        let (first, most) = (self.hub.options.reconnect_first, self.hub.options.reconnect_most);
        let Some(peer) = self.peers.get_mut(at) else { return };
        peer.link = None;
        let was_up = std::mem::take(&mut peer.up);
        if let Some(conn) = peer.conn.take() {
            net.close(conn, LAST_WORD);
        }
        let (stopping, now) = (self.stopping, net.now());
        let delay = match refused {
            true => most,
            false => {
                let attempt = peer.outgoing().map_or(0, |outgoing| outgoing.attempt);
                back_off(first, most, attempt, &mut self.jitter)
            }
        };
        let again = match peer.outgoing() {
            Some(outgoing) if !stopping && (outgoing.established || !refused && now < outgoing.give_up) => {
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
            self.fail_pending(net, at);
            return self.remove(net, at, was_up, reason);
        }
        self.fail_sent(net, at);
        self.hub.metrics.reconnects.add(1);
        if was_up {
            self.down(at, reason, true);
        }
        self.arm(net, at);
    }

    /// Ends a link for good.
    pub(super) fn forget(&mut self, net: &mut Net, at: At, reason: &str) {
        let Some(peer) = self.peers.get_mut(at) else { return };
        let was_up = std::mem::take(&mut peer.up);
        peer.link = None;
        if let Some(conn) = peer.conn.take() {
            net.close(conn, LAST_WORD);
        }
        self.fail_pending(net, at);
        self.remove(net, at, was_up, reason);
    }

    /// The one place where a link leaves the books.
    fn remove(&mut self, net: &mut Net, at: At, was_up: bool, reason: &str) {
        if was_up {
            self.down(at, reason, false);
        }
        self.forget_subscriber(at);
        let Some(mut peer) = self.peers.remove(at) else { return };
        if let Some((timer, _)) = peer.timer.take() {
            net.cancel_timer(timer);
        }
        if let Some(key) = peer.node() {
            self.hub.remove_link_of(&key, peer.id);
        }
        match &mut peer.kind {
            Kind::Incoming { route, .. } => {
                if let Some(route) = route {
                    self.hub.routes().leave(route, peer.id);
                }
                if !was_up {
                    let remote = peer.origin.remote.clone();
                    self.hub.tell(LinkEvent::Refused { remote, reason: reason.to_owned() });
                }
            }
            Kind::Outgoing(outgoing) => {
                if let Some(outcome) = outgoing.outcome.take() {
                    outcome(Err(reason.to_owned()));
                }
            }
            Kind::Local { twin } => {
                let twin = self.peers.find(*twin);
                self.forget(net, twin, reason);
            }
        }
    }

    fn down(&mut self, at: At, reason: &str, reconnecting: bool) {
        let Some(peer) = self.peers.get(at) else { return };
        self.hub.metrics.links_down.add(1);
        let connection = peer.origin.connection;
        self.hub.tell(LinkEvent::Down { connection, reason: reason.to_owned(), reconnecting });
    }

    /// Closes a link as its owner wants: what is queued is still written, an inbound peer is told not to come back.
    pub(super) fn disconnect(&mut self, net: &mut Net, at: At, linger: Duration) {
        let Some(peer) = self.peers.get(at) else { return };
        if peer.is_incoming() && peer.up {
            self.deliver(net, at, Sending::plain(Message::of([BYE])));
        }
        if let Some(conn) = self.peers.get_mut(at).and_then(|peer| peer.conn.take()) {
            net.close(conn, linger);
        }
        self.forget(net, at, "closed by this side");
    }

    pub(super) fn hand_over(&mut self, net: &mut Net, at: At) {
        self.hub.metrics.count("link", "handed_over");
        // Told goodbye, the older one does not come back and take the id over in turn.
        self.disconnect(net, at, LAST_WORD);
    }

    /// Looks at every link again after rights or nodes have changed.
    pub(super) fn review(&mut self, net: &mut Net) {
        for at in self.peers.all() {
            let Some(peer) = self.peers.get(at) else { continue };
            let key = peer.origin.key;
            let was_node = matches!(peer.origin.connection, ConnectionId::Node(_));
            if was_node && !self.hub.is_node(key.as_ref()) {
                self.hub.metrics.count("link", "node_removed");
                self.forget(net, at, "no longer a node");
                continue;
            }
            let Kind::Incoming { admission, .. } = &peer.kind else { continue };
            let level = match admission {
                Admission::Listed(_) if peer.up => listed(admission, key),
                _ => Some(peer.origin.level),
            };
            match level {
                Some(level) => {
                    self.set_level(at, level);
                    self.enter_node(at);
                }
                None => {
                    self.hub.metrics.count("link", "right_removed");
                    self.forget(net, at, "no longer in the list");
                }
            }
        }
    }

    fn enter_node(&mut self, at: At) {
        let Some(peer) = self.peers.get(at).filter(|peer| peer.up) else { return };
        if let ConnectionId::Node(key) = peer.origin.connection {
            self.hub.add_link_of(key, peer.id, if peer.is_incoming() { Opened::There } else { Opened::Here });
        }
    }

    pub(super) fn on_tick(&mut self, net: &mut Net, at: At) {
        let now = net.now();
        let Some(peer) = self.peers.get_mut(at) else { return };
        peer.timer = None;
        let is_expired = peer.up && now >= peer.expires();
        let (mut is_late, mut is_due) = (false, false);
        if let Some(outgoing) = peer.outgoing() {
            is_late = !outgoing.established && now >= outgoing.give_up;
            is_due = now >= outgoing.retry;
        }
        if is_late {
            self.hub.metrics.count("link", "connect_timeout");
            return self.forget(net, at, "not connected in time");
        }
        if is_expired {
            self.hub.metrics.count("link", "idle");
            return self.forget(net, at, "idle");
        }
        if is_due {
            return self.dial(net, at);
        }
        if let Some(peer) = self.peers.get_mut(at)
            && let Some(link) = &mut peer.link
        {
            let (mut events, mut wire) = (std::mem::take(&mut self.events), std::mem::take(&mut self.scratch));
            link.on_deadline(now, &mut Out { wire: &mut wire, events: &mut events });
            self.carry_out(net, at, wire, events);
        }
        self.arm(net, at);
    }

    /// Sees to it that a timer fires no later than the peer is due. One that fires early sets itself again, so that
    /// traffic, which only ever moves a heartbeat back, costs no timer operation.
    pub(super) fn arm(&mut self, net: &mut Net, at: At) {
        let Some(peer) = self.peers.get_mut(at) else { return };
        let due = peer.due();
        if peer.timer.is_some_and(|(_, at)| at <= due) || due == Instant::NEVER {
            return;
        }
        if let Some((timer, _)) = peer.timer.take() {
            net.cancel_timer(timer);
        }
        peer.timer = Some((net.set_timer(due, Token::Peer(at.serial()).pack()), due));
    }
}

fn listed(admission: &Admission, key: Option<PublicKey>) -> Option<Level> {
    match admission {
        Admission::Listed(list) => key.and_then(|key| list.find(&key)).map(|allowed| allowed.level),
        Admission::Everybody(level) => Some(*level),
        Admission::Ask(_) => None,
    }
}
