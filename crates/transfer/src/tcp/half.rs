//! What one event loop drives: the connections it has taken in, and the lanes it has opened.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_net::{
    ConnId, Connect, Endpoint, Event, Listen, ListenerId, Net, NetError, Protocol, Readiness,
    TimerId, UnixAccess,
};
use slackwater_wait::now;
use socket2::SockRef;

use super::conn::{Broken, Conn, Role, Scratch};
use super::hub::{Credit, LaneId, Lost, Route, Why};
use super::lane::{Ended, Lane};
use super::outlet::Outlet;
use super::seal::SealError;
use super::serve::Serve;
use super::served::Served;
use super::shared::Shared;
use super::turn::Turn;
use super::work::{Work, end};
use crate::batch::{BatchId, Part};
use crate::cause::{Cause, Clock};
use crate::memory::{StageError, Staged};
use crate::region::RegionId;
use crate::segment::Segment;

/// The protocol of one loop.
pub(crate) struct Half {
    shared: Arc<Shared>,
    index: usize,
    conns: Vec<Option<Box<Conn>>>,
    lanes: BTreeMap<LaneId, ConnId>,
    listeners: Vec<ListenerId>,
    scratch: Scratch,
    ended: Vec<Ended>,
    ready: Vec<(LaneId, Credit)>,
    /// Orders for this loop, from its own questions to the hub.
    own: Vec<Command>,
    /// Connections with something to write.
    dirty: Vec<ConnId>,
    wake: Instant,
    alarm: Option<(Instant, TimerId)>,
    stopping: bool,
}

/// What others ask of a loop.
pub(crate) enum Command {
    /// Listen on these addresses.
    Listen {
        addresses: Vec<SocketAddr>,
        answer: std::sync::mpsc::Sender<Result<Vec<SocketAddr>, NetError>>,
    },
    Connect {
        lane: LaneId,
        peer: Arc<Segment>,
        route: Route,
    },
    Start {
        lane: LaneId,
        works: Vec<Work>,
    },
    /// Serve a connection that another loop has accepted and greeted.
    Adopt {
        stream: TcpStream,
        conn: Box<Conn>,
    },
    Cancel(BatchId),
    LetGo(RegionId),
    /// A device has room for payload of this connection, whose turn it is until it has looked.
    Resume(ConnId, crate::memory::Place),
    /// A chunk of a request is in the device.
    Stored {
        conn: ConnId,
        id: u64,
        result: Result<(), StageError>,
    },
    /// A chunk of a request is out of the device.
    Fetched {
        conn: ConnId,
        id: u64,
        result: Result<Staged, StageError>,
    },
    /// Everything before this fence is over.
    Fenced(Part),
    /// Look at the hub's clocks by then.
    Wake(Instant),
    /// There are borrowed connections: look for idle ones from now on.
    Watch,
    /// End everything.
    Close,
}

const TICK: u64 = 0;

impl Half {
    pub(crate) fn new(shared: Arc<Shared>, index: usize) -> Self {
        Self {
            shared,
            index,
            conns: Vec::new(),
            lanes: BTreeMap::new(),
            listeners: Vec::new(),
            scratch: Scratch::new(),
            ended: Vec::new(),
            ready: Vec::new(),
            own: Vec::new(),
            dirty: Vec::new(),
            wake: Instant::NEVER,
            alarm: None,
            stopping: false,
        }
    }

    fn command(&mut self, net: &mut Net, command: Command) {
        match command {
            Command::Listen { addresses, answer } => {
                // Nobody listening any more for the answer is nobody's loss.
                let _ = answer.send(self.listen(net, &addresses));
            }
            Command::Connect { lane, peer, route } => self.connect(net, lane, peer, route),
            Command::Start { lane, works } => self.start(lane, works),
            Command::Adopt { stream, mut conn } => {
                if let Some(id) = net.adopt(stream) {
                    conn.id = id;
                    self.keep(conn);
                    net.take_over(id);
                }
            }
            Command::Cancel(batch) => self.each(|conn, turn| {
                if let Role::Lane(lane) = &mut conn.role {
                    lane.cancel(batch, &mut conn.outlet, turn);
                }
            }),
            Command::LetGo(region) => self.each(|conn, _| {
                if let Role::Serve(serve) = &mut conn.role {
                    serve.served.let_go(region, &mut conn.outlet);
                }
            }),
            Command::Resume(conn, _place) => {
                self.served(conn, |served, _, _| served.resumed());
                self.serve(
                    net,
                    conn,
                    Readiness {
                        readable: true,
                        ..Readiness::default()
                    },
                );
            }
            Command::Stored { conn, id, result } => self.served(conn, |served, outlet, turn| {
                served.stored(id, result, outlet, turn);
            }),
            Command::Fetched { conn, id, result } => self.served(conn, |served, outlet, turn| {
                served.fetched(id, result, conn, outlet, turn);
            }),
            Command::Fenced(part) => end(part, Ok(0)),
            Command::Watch => self.wake = self.wake.min(now() + self.shared.config.gc_interval),
            Command::Wake(at) => self.wake = self.wake.min(at),
            Command::Close => self.close(net),
        }
    }

    fn listen(
        &mut self,
        net: &mut Net,
        addresses: &[SocketAddr],
    ) -> Result<Vec<SocketAddr>, NetError> {
        let mut bound = Vec::new();
        for address in addresses {
            let listen = Listen {
                endpoint: Endpoint::Tcp(*address),
                shared: true,
                access: UnixAccess::default(),
            };
            let (id, endpoint) = net.listen(&listen)?;
            self.listeners.push(id);
            if let Endpoint::Tcp(address) = endpoint {
                bound.push(address);
            }
        }
        Ok(bound)
    }

    fn connect(&mut self, net: &mut Net, lane: LaneId, peer: Arc<Segment>, route: Route) {
        let config = &self.shared.config;
        let from = route.from.map(|from| SocketAddr::new(from, 0));
        let connect = Connect {
            endpoint: Endpoint::Tcp(route.to),
            timeout: config.connect_timeout,
            from,
        };
        let begun = match config.may_reach(&peer, &route.to) {
            true => net.connect(&connect).map_err(|error| error.to_string()),
            false => Err(format!(
                "{}: it is beyond this machine, and there are no keys",
                route.to
            )),
        };
        match begun {
            Ok(conn) => {
                let proof_by = now() + config.connect_timeout + config.greeting_timeout;
                self.lanes.insert(lane, conn);
                self.insert(conn, Role::Lane(Lane::new(lane, peer, now())), proof_by);
            }
            Err(error) => {
                let why = Why::Peer(Cause::Unreachable(error));
                self.lost(Lost {
                    lane,
                    why,
                    again: Vec::new(),
                    failed: Vec::new(),
                });
            }
        }
    }

    fn start(&mut self, lane: LaneId, works: Vec<Work>) {
        let Some(conn) = self.lanes.get(&lane).copied() else {
            // The lane broke while the order was on its way; the hub, told since, has uncounted it.
            return self
                .shared
                .ask(Some((self.index, &mut self.own)), |hub, now, orders| {
                    hub.put_back(works, now, orders)
                });
        };
        self.with(conn, |conn, turn| {
            if let Role::Lane(lane) = &mut conn.role {
                works
                    .into_iter()
                    .for_each(|work| lane.start(work, &mut conn.outlet, turn));
            }
            Ok(())
        });
        self.dirty.push(conn);
    }

    fn insert(&mut self, id: ConnId, role: Role, proof_by: Instant) {
        self.keep(Box::new(Conn::new(id, role, proof_by)));
    }

    fn keep(&mut self, conn: Box<Conn>) {
        let index = conn.id.index();
        if self.conns.len() <= index {
            self.conns.resize_with(index + 1, || None);
        }
        self.conns[index] = Some(conn);
    }

    /// Gives a connection that was just greeted to the loop whose turn it is. Which loop accepts is by the kernel's hash,
    /// and by that all lanes of a peer may come to one.
    fn hand_over(&mut self, net: &mut Net, id: ConnId) {
        let slot = self
            .conns
            .get_mut(id.index())
            .filter(|slot| slot.as_ref().is_some_and(|conn| conn.id == id));
        let Some(slot) = slot else { return };
        let Some(Role::Serve(serve)) = slot.as_ref().map(|conn| &conn.role) else {
            return;
        };
        let Some(to) = serve
            .idle_peer()
            .map(|peer| self.shared.turns.next(peer, self.index))
        else {
            return;
        };
        if to == self.index {
            return;
        }
        let Some(target) = self.shared.event_loop(to) else {
            return;
        };
        let Some(Ok(socket)) = net.descriptor(id).map(|socket| socket.try_clone_to_owned()) else {
            return;
        };
        let Some(conn) = slot.take() else { return };
        net.abort(id);
        target.command(Command::Adopt {
            stream: socket.into(),
            conn,
        });
    }

    /// Takes a connection over: from now on this reads and writes it.
    fn take_over(&mut self, net: &mut Net, conn: ConnId) {
        if let Some(socket) = net.descriptor(conn) {
            let (socket, config) = (SockRef::from(&socket), &self.shared.config);
            let peer = socket
                .peer_addr()
                .ok()
                .and_then(|address| address.as_socket());
            let bytes = peer.map_or(config.socket_buffer_bytes, |peer| {
                config.buffer_bytes(peer.ip())
            });
            // A kernel that gives less than was asked for is slower, no worse.
            let _ = socket.set_send_buffer_size(bytes);
            let _ = socket.set_recv_buffer_size(bytes);
        }
        net.take_over(conn);
    }

    /// Does something with a connection; when it breaks in that, ends it.
    fn with(
        &mut self,
        id: ConnId,
        act: impl FnOnce(&mut Conn, &mut Turn<'_>) -> Result<(), Broken>,
    ) {
        let Some(mut conn) = self.conns.get_mut(id.index()).and_then(Option::take) else {
            return;
        };
        if conn.id != id {
            self.conns[id.index()] = Some(conn);
            return;
        }
        let shared = Arc::clone(&self.shared);
        let mut turn = Turn {
            shared: &shared,
            index: self.index,
            now: now(),
            ended: &mut self.ended,
            ready: &mut self.ready,
            wake: &mut self.wake,
        };
        // A panic ends the connection and the requests on it, and nothing else: the loop serves on.
        let acted = catch_unwind(AssertUnwindSafe(|| act(&mut conn, &mut turn)));
        match acted.unwrap_or(Err(Broken::Lost(Cause::Dropped))) {
            Ok(()) => self.conns[id.index()] = Some(conn),
            Err(broken) => self.broke(*conn, broken),
        }
    }

    /// A device has ended a copy for a request on this connection.
    fn served(&mut self, id: ConnId, act: impl FnOnce(&mut Served, &mut Outlet, &mut Turn<'_>)) {
        self.with(id, |conn, turn| {
            if let Role::Serve(serve) = &mut conn.role {
                act(&mut serve.served, &mut conn.outlet, turn);
            }
            Ok(())
        });
        self.dirty.push(id);
    }

    fn each(&mut self, mut act: impl FnMut(&mut Conn, &mut Turn<'_>)) {
        let all: Vec<ConnId> = self.conns.iter().flatten().map(|conn| conn.id).collect();
        for id in all {
            self.with(id, |conn, turn| {
                act(conn, turn);
                Ok(())
            });
            self.dirty.push(id);
        }
    }

    fn serve(&mut self, net: &mut Net, id: ConnId, readiness: Readiness) {
        let mut scratch = std::mem::replace(&mut self.scratch, Scratch::empty());
        let (mut again, mut greeted) = (Readiness::default(), false);
        self.with(id, |conn, turn| {
            let Some(socket) = net.descriptor(id) else {
                return Err(Broken::protocol("no socket"));
            };
            let stranger = conn.is_stranger();
            conn.writable |= readiness.writable;
            if readiness.readable {
                again.readable = match conn.read(socket, &mut scratch, turn) {
                    Err(limit @ Broken::Limit(_)) => {
                        // What it is told goes as far as the kernel takes it.
                        let _ = conn.flush(socket, &mut scratch, turn);
                        return Err(limit);
                    }
                    read => read?,
                };
            }
            again.writable = conn.flush(socket, &mut scratch, turn)?;
            greeted = stranger && !conn.is_stranger();
            if greeted {
                net.proven(id);
            }
            Ok(())
        });
        self.scratch = scratch;
        if greeted {
            self.hand_over(net, id);
        }
        match self.is_there(id) {
            true if again != Readiness::default() => net.serve_again(id, again),
            true => {}
            false => net.abort(id),
        }
    }

    fn flush_dirty(&mut self, net: &mut Net) {
        while let Some(id) = self.dirty.pop() {
            self.serve(net, id, Readiness::default());
        }
    }

    fn is_there(&self, id: ConnId) -> bool {
        self.conns
            .get(id.index())
            .is_some_and(|slot| slot.as_ref().is_some_and(|conn| conn.id == id))
    }

    /// A connection is of no more use: what it carried is begun again elsewhere, or fails.
    fn broke(&mut self, conn: Conn, broken: Broken) {
        let Conn { role, outlet, .. } = conn;
        let Role::Lane(mut lane) = role else {
            return self.refused(&broken);
        };
        self.lanes.remove(&lane.id);
        let untouched: BTreeSet<u64> = outlet.untouched().collect();
        drop(outlet);
        let cause = match &broken {
            Broken::Lost(cause) | Broken::Gone(cause) => cause.clone(),
            Broken::Forged => Cause::Seal(SealError::Record),
            Broken::Idle | Broken::Limit(_) | Broken::Struck => Cause::Closed,
        };
        let mut wreck = lane.wreck(&cause, |id| untouched.contains(&id));
        if matches!(broken, Broken::Forged) {
            wreck
                .failed
                .extend(wreck.again.drain(..).map(|work| (work, cause.clone())));
        }
        let why = match broken {
            Broken::Idle => Why::Idle,
            Broken::Lost(cause) if lane.ready => Why::Peer(cause),
            Broken::Lost(cause) => Why::Peer(Cause::Unreachable(cause.to_string())),
            Broken::Gone(cause) => Why::Gone(cause),
            Broken::Forged | Broken::Limit(_) | Broken::Struck => Why::Peer(cause.clone()),
        };
        let failed = wreck.failed.iter().map(|(work, _)| work.epoch).collect();
        // What ended on the lane before it broke is told first: the books still know the lane.
        self.settle_ended();
        let again = match self.stopping {
            true => {
                wreck
                    .again
                    .into_iter()
                    .for_each(|work| work.end(Err(Cause::Closed)));
                Vec::new()
            }
            false => wreck.again,
        };
        self.lost(Lost {
            lane: lane.id,
            why,
            again,
            failed,
        });
        wreck
            .failed
            .into_iter()
            .for_each(|(work, cause)| work.end(Err(cause)));
    }

    /// A connection of a peer was ended; counts for what.
    fn refused(&self, broken: &Broken) {
        let (counter, why) = match broken {
            Broken::Limit(why) => (&self.shared.refused.limits, *why),
            Broken::Struck => (
                &self.shared.refused.peers,
                "its key is not in the list any more",
            ),
            Broken::Lost(_) | Broken::Gone(_) | Broken::Forged | Broken::Idle => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(why, "the connection of a peer is ended");
    }

    fn lost(&mut self, lost: Lost) {
        self.shared
            .ask(Some((self.index, &mut self.own)), |hub, now, orders| {
                hub.lane_lost(lost, now, orders)
            });
        self.shared.room.notify_all();
    }

    /// Tells the hub, and then those who wait, what has ended.
    fn settle_ended(&mut self) {
        if self.ended.is_empty() && self.ready.is_empty() {
            return;
        }
        let (ended, ready) = (
            std::mem::take(&mut self.ended),
            std::mem::take(&mut self.ready),
        );
        self.shared
            .ask(Some((self.index, &mut self.own)), |hub, now, orders| {
                ended
                    .iter()
                    .for_each(|ended| hub.finished(ended.lane, &ended.finished(), now, orders));
                ready
                    .iter()
                    .for_each(|(lane, credit)| hub.lane_ready(*lane, *credit, now, orders));
            });
        ended
            .into_iter()
            .for_each(|Ended { work, outcome, .. }| work.end(outcome));
    }

    /// Everything that follows from what was done, until nothing does.
    fn settle(&mut self, net: &mut Net) {
        loop {
            self.settle_ended();
            for command in std::mem::take(&mut self.own) {
                self.command(net, command);
            }
            self.flush_dirty(net);
            if self.ended.is_empty()
                && self.ready.is_empty()
                && self.own.is_empty()
                && self.dirty.is_empty()
            {
                break;
            }
        }
        self.set_alarm(net);
    }

    fn set_alarm(&mut self, net: &mut Net) {
        if self.alarm.is_some_and(|(at, _)| at <= self.wake) || self.wake == Instant::NEVER {
            return;
        }
        if let Some((_, timer)) = self.alarm.take() {
            net.cancel_timer(timer);
        }
        // A little late rather than a little early: an early look would find nothing and come again.
        let at = self.wake + Duration::from_millis(1);
        self.alarm = Some((self.wake, net.set_timer(at, TICK)));
    }

    fn tick(&mut self) {
        self.alarm = None;
        self.wake = Instant::NEVER;
        let all: Vec<ConnId> = self.conns.iter().flatten().map(|conn| conn.id).collect();
        for id in all {
            self.with(id, |conn, turn| {
                if conn.is_stranger() {
                    if conn.proof_by <= turn.now {
                        return Err(Broken::Lost(Cause::TimedOut(Clock::Connect)));
                    }
                    turn.need(conn.proof_by);
                }
                match &mut conn.role {
                    Role::Lane(lane) => lane.sweep(&mut conn.outlet, turn),
                    Role::Serve(_) => Ok(()),
                }
            });
            self.dirty.push(id);
        }
        if self.index == 0 {
            let at = now();
            self.shared
                .direct
                .collect(at - self.shared.config.idle_timeout);
            if !self.shared.direct.is_empty() {
                self.wake = self.wake.min(at + self.shared.config.gc_interval);
            }
            if self.shared.disarm(at) {
                self.shared
                    .ask(Some((self.index, &mut self.own)), |hub, now, orders| {
                        hub.tick(now, orders)
                    });
            } else {
                self.wake = self.wake.min(self.shared.armed());
            }
        }
    }

    fn close(&mut self, net: &mut Net) {
        self.stopping = true;
        self.listeners
            .drain(..)
            .for_each(|listener| net.stop_listening(listener));
        let all: Vec<ConnId> = self.conns.iter().flatten().map(|conn| conn.id).collect();
        for id in all {
            self.with(id, |_, _| Err(Broken::Lost(Cause::Closed)));
            net.abort(id);
        }
    }
}

impl Protocol for Half {
    type Command = Command;

    fn handle(&mut self, net: &mut Net, event: Event<'_, Command>) {
        match event {
            Event::Accepted { conn, .. } => {
                let proof_by = now() + self.shared.config.greeting_timeout;
                self.insert(conn, Role::Serve(Serve::default()), proof_by);
                self.wake = self.wake.min(proof_by);
                self.take_over(net, conn);
            }
            Event::Connected { conn } => {
                self.with(conn, |conn, turn| {
                    conn.proof_by = turn.now + turn.shared.config.greeting_timeout;
                    turn.need(conn.proof_by);
                    match &mut conn.role {
                        Role::Lane(lane) => lane.hello(&mut conn.outlet, turn),
                        Role::Serve(_) => Ok(()),
                    }
                });
                match self.is_there(conn) {
                    true => self.take_over(net, conn),
                    false => net.abort(conn),
                }
            }
            Event::Closed { conn, end, .. } => {
                self.with(conn, |_, _| Err(Broken::Lost(Cause::Lost(end.to_string()))));
            }
            Event::Command(command) => self.command(net, command),
            Event::Timer { .. } => self.tick(),
            Event::Bytes { .. } | Event::Drained { .. } => {}
        }
        self.settle(net);
    }

    fn ready(&mut self, net: &mut Net, conn: ConnId, readiness: Readiness) {
        self.serve(net, conn, readiness);
        self.settle(net);
    }
}
