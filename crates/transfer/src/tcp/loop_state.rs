//! What one event loop owns: the connections that it accepted, and the lanes that it opened.

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

use super::conn::{CloseReason, Conn, Role, Scratch};
use super::context::TcpContext;
use super::initiator::{FinishedTask, Initiator};
use super::responder::Responder;
use super::scheduler::{Credit, LaneEnd, LaneId, LostLane, Route};
use super::seal::SealError;
use super::send_queue::SendQueue;
use super::server::ServerConnection;
use super::task::{Task, end};
use super::turn::Turn;
use crate::batch::{BatchId, Part};
use crate::cause::{Cause, Deadline};
use crate::memory::{StageError, Staged};
use crate::region::RegionId;
use crate::segment::Segment;

/// The protocol of one loop.
pub(crate) struct LoopState {
    context: Arc<TcpContext>,
    index: usize,
    conns: Vec<Option<Box<Conn>>>,
    lanes: BTreeMap<LaneId, ConnId>,
    listeners: Vec<ListenerId>,
    scratch: Scratch,
    ended: Vec<FinishedTask>,
    ready: Vec<(LaneId, Credit)>,
    /// Commands for this loop, from its own calls of the scheduler.
    own: Vec<Command>,
    /// Connections with something to write.
    dirty: Vec<ConnId>,
    wake: Instant,
    alarm: Option<(Instant, TimerId)>,
    stopping: bool,
}

/// What other threads ask of a loop.
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
        tasks: Vec<Task>,
    },
    /// Serve a connection that another loop has accepted and greeted.
    Adopt {
        stream: TcpStream,
        conn: Box<Conn>,
    },
    Cancel(BatchId),
    ReleaseRegion(RegionId),
    /// A device has room for payload of this connection, which holds the turn until it has been served.
    Resume(ConnId, crate::memory::StagingTurn),
    /// A copy into the device has ended.
    Stored {
        conn: ConnId,
        id: u64,
        result: Result<(), StageError>,
    },
    /// A copy out of the device has ended.
    Fetched {
        conn: ConnId,
        id: u64,
        result: Result<Staged, StageError>,
    },
    /// Every task before this fence has ended.
    Fenced(Part),
    /// Check the scheduler's deadlines at this time.
    Wake(Instant),
    /// There are borrowed connections: collect idle ones from now on.
    Watch,
    /// Close all connections and listeners.
    Close,
}

const TICK: u64 = 0;

impl LoopState {
    pub(crate) fn new(context: Arc<TcpContext>, index: usize) -> Self {
        Self {
            context,
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
                // The caller may have gone; then nobody needs the answer.
                let _ = answer.send(self.listen(net, &addresses));
            }
            Command::Connect { lane, peer, route } => self.connect(net, lane, peer, route),
            Command::Start { lane, tasks } => self.start(lane, tasks),
            Command::Adopt { stream, mut conn } => {
                if let Some(id) = net.adopt(stream) {
                    conn.id = id;
                    self.keep(conn);
                    net.take_over(id);
                }
            }
            Command::Cancel(batch) => self.each(|conn, turn| {
                if let Role::Client(initiator) = &mut conn.role {
                    initiator.cancel(batch, &mut conn.queue, turn);
                }
            }),
            Command::ReleaseRegion(region) => self.each(|conn, _| {
                if let Role::Server(server) = &mut conn.role {
                    server.responder.release_region(region, &mut conn.queue);
                }
            }),
            Command::Resume(conn, _place) => {
                self.responder(conn, |responder, _, _| responder.resumed());
                self.serve(
                    net,
                    conn,
                    Readiness {
                        readable: true,
                        ..Readiness::default()
                    },
                );
            }
            Command::Stored { conn, id, result } => {
                self.responder(conn, |responder, queue, turn| {
                    responder.stored(id, result, queue, turn);
                })
            }
            Command::Fetched { conn, id, result } => {
                self.responder(conn, |responder, queue, turn| {
                    responder.fetched(id, result, conn, queue, turn);
                })
            }
            Command::Fenced(part) => end(part, Ok(0)),
            Command::Watch => self.wake = self.wake.min(now() + self.context.config.gc_interval),
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
        let config = &self.context.config;
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
                self.insert(
                    conn,
                    Role::Client(Initiator::new(lane, peer, now())),
                    proof_by,
                );
            }
            Err(error) => {
                let why = LaneEnd::Peer(Cause::Unreachable(error));
                self.lost(LostLane {
                    lane,
                    why,
                    again: Vec::new(),
                    failed: Vec::new(),
                });
            }
        }
    }

    fn start(&mut self, lane: LaneId, tasks: Vec<Task>) {
        let Some(conn) = self.lanes.get(&lane).copied() else {
            // The lane broke before the command arrived; the scheduler knows that and no longer counts these tasks.
            return self.context.schedule(
                Some((self.index, &mut self.own)),
                |scheduler, now, actions| scheduler.put_back(tasks, now, actions),
            );
        };
        self.with(conn, |conn, turn| {
            if let Role::Client(initiator) = &mut conn.role {
                tasks
                    .into_iter()
                    .for_each(|task| initiator.start(task, &mut conn.queue, turn));
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

    /// Gives a connection that was just authenticated to the loop whose turn it is. The kernel chooses the accepting
    /// loop by a hash, so all lanes of a peer may arrive at one loop.
    fn hand_over(&mut self, net: &mut Net, id: ConnId) {
        let slot = self
            .conns
            .get_mut(id.index())
            .filter(|slot| slot.as_ref().is_some_and(|conn| conn.id == id));
        let Some(slot) = slot else { return };
        let Some(Role::Server(server)) = slot.as_ref().map(|conn| &conn.role) else {
            return;
        };
        let Some(to) = server
            .idle_peer()
            .map(|peer| self.context.rotation.next(peer, self.index))
        else {
            return;
        };
        if to == self.index {
            return;
        }
        let Some(target) = self.context.event_loop(to) else {
            return;
        };
        let Some(conn) = slot.take() else { return };
        // Without a stream the connection is closed, and its peer connects again.
        let Some(stream) = net.release(id) else {
            return;
        };
        target.command(Command::Adopt { stream, conn });
    }

    /// Takes a connection over: from now on this type reads and writes it.
    fn take_over(&mut self, net: &mut Net, conn: ConnId) {
        if let Some(socket) = net.descriptor(conn) {
            let (socket, config) = (SockRef::from(&socket), &self.context.config);
            let peer = socket
                .peer_addr()
                .ok()
                .and_then(|address| address.as_socket());
            let bytes = peer.map_or(config.socket_buffer_bytes, |peer| {
                config.buffer_bytes(peer.ip())
            });
            // Smaller buffers than asked for only cost speed.
            let _ = socket.set_send_buffer_size(bytes);
            let _ = socket.set_recv_buffer_size(bytes);
        }
        net.take_over(conn);
    }

    /// Runs `act` on a connection; ends the connection if that fails.
    fn with(
        &mut self,
        id: ConnId,
        act: impl FnOnce(&mut Conn, &mut Turn<'_>) -> Result<(), CloseReason>,
    ) {
        let Some(mut conn) = self.conns.get_mut(id.index()).and_then(Option::take) else {
            return;
        };
        if conn.id != id {
            self.conns[id.index()] = Some(conn);
            return;
        }
        let context = Arc::clone(&self.context);
        let mut turn = Turn {
            context: &context,
            index: self.index,
            now: now(),
            ended: &mut self.ended,
            ready: &mut self.ready,
            wake: &mut self.wake,
        };
        // A panic ends the connection and its requests; the loop goes on.
        let acted = catch_unwind(AssertUnwindSafe(|| act(&mut conn, &mut turn)));
        match acted.unwrap_or(Err(CloseReason::Lost(Cause::Dropped))) {
            Ok(()) => self.conns[id.index()] = Some(conn),
            Err(reason) => self.broke(*conn, reason),
        }
    }

    /// Runs `act` on the responder of a connection, for a device copy that has ended.
    fn responder(
        &mut self,
        id: ConnId,
        act: impl FnOnce(&mut Responder, &mut SendQueue, &mut Turn<'_>),
    ) {
        self.with(id, |conn, turn| {
            if let Role::Server(server) = &mut conn.role {
                act(&mut server.responder, &mut conn.queue, turn);
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
                return Err(CloseReason::protocol("no socket"));
            };
            let unauthenticated = conn.is_unauthenticated();
            conn.writable |= readiness.writable;
            if readiness.readable {
                again.readable = match conn.read(socket, &mut scratch, turn) {
                    Err(limit @ CloseReason::Limit(_)) => {
                        // The refusal is sent as far as the kernel takes it.
                        let _ = conn.flush(socket, &mut scratch, turn);
                        return Err(limit);
                    }
                    read => read?,
                };
            }
            again.writable = conn.flush(socket, &mut scratch, turn)?;
            greeted = unauthenticated && !conn.is_unauthenticated();
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

    /// Ends a connection: its tasks are started again on another lane, or fail.
    fn broke(&mut self, conn: Conn, reason: CloseReason) {
        let Conn { role, queue, .. } = conn;
        let Role::Client(mut initiator) = role else {
            return self.refused(&reason);
        };
        self.lanes.remove(&initiator.id);
        let untouched: BTreeSet<u64> = queue.untouched().collect();
        drop(queue);
        let cause = match &reason {
            CloseReason::Lost(cause) | CloseReason::Gone(cause) => cause.clone(),
            CloseReason::Forged => Cause::Seal(SealError::Record),
            CloseReason::Idle | CloseReason::Limit(_) | CloseReason::KeyRevoked => Cause::Closed,
        };
        let mut failure = initiator.fail_tasks(&cause, |id| untouched.contains(&id));
        if matches!(reason, CloseReason::Forged) {
            failure
                .failed
                .extend(failure.again.drain(..).map(|task| (task, cause.clone())));
        }
        let why = match reason {
            CloseReason::Idle => LaneEnd::Idle,
            CloseReason::Lost(cause) if initiator.ready => LaneEnd::Peer(cause),
            CloseReason::Lost(cause) => LaneEnd::Peer(Cause::Unreachable(cause.to_string())),
            CloseReason::Gone(cause) => LaneEnd::Gone(cause),
            CloseReason::Forged | CloseReason::Limit(_) | CloseReason::KeyRevoked => {
                LaneEnd::Peer(cause.clone())
            }
        };
        let failed = failure.failed.iter().map(|(task, _)| task.epoch).collect();
        // Tasks that ended before the lane broke are reported first, while the scheduler still counts the lane.
        self.settle_ended();
        let again = match self.stopping {
            true => {
                failure
                    .again
                    .into_iter()
                    .for_each(|task| task.end(Err(Cause::Closed)));
                Vec::new()
            }
            false => failure.again,
        };
        self.lost(LostLane {
            lane: initiator.id,
            why,
            again,
            failed,
        });
        failure
            .failed
            .into_iter()
            .for_each(|(task, cause)| task.end(Err(cause)));
    }

    /// Counts why the connection of a peer was ended.
    fn refused(&self, reason: &CloseReason) {
        let (counter, why) = match reason {
            CloseReason::Limit(why) => (&self.context.refused.limits, *why),
            CloseReason::KeyRevoked => (
                &self.context.refused.peers,
                "its key was removed from the allow-list",
            ),
            CloseReason::Lost(_)
            | CloseReason::Gone(_)
            | CloseReason::Forged
            | CloseReason::Idle => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(why, "the connection of a peer is ended");
    }

    fn lost(&mut self, lost: LostLane) {
        self.context.schedule(
            Some((self.index, &mut self.own)),
            |scheduler, now, actions| scheduler.lane_lost(lost, now, actions),
        );
        self.context.room.notify_all();
    }

    /// Reports the ended tasks to the scheduler, and then to their callers.
    fn settle_ended(&mut self) {
        if self.ended.is_empty() && self.ready.is_empty() {
            return;
        }
        let (ended, ready) = (
            std::mem::take(&mut self.ended),
            std::mem::take(&mut self.ready),
        );
        self.context.schedule(
            Some((self.index, &mut self.own)),
            |scheduler, now, actions| {
                ended.iter().for_each(|ended| {
                    scheduler.finished(ended.lane, &ended.finished(), now, actions)
                });
                ready
                    .iter()
                    .for_each(|(lane, credit)| scheduler.lane_ready(*lane, *credit, now, actions));
            },
        );
        ended
            .into_iter()
            .for_each(|FinishedTask { task, outcome, .. }| task.end(outcome));
    }

    /// Performs everything that follows from an event, until nothing does.
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
        // A late check is better than an early one, which would find nothing due and come again.
        let at = self.wake + Duration::from_millis(1);
        self.alarm = Some((self.wake, net.set_timer(at, TICK)));
    }

    fn tick(&mut self) {
        self.alarm = None;
        self.wake = Instant::NEVER;
        let all: Vec<ConnId> = self.conns.iter().flatten().map(|conn| conn.id).collect();
        for id in all {
            self.with(id, |conn, turn| {
                if conn.is_unauthenticated() {
                    if conn.proof_by <= turn.now {
                        return Err(CloseReason::Lost(Cause::TimedOut(Deadline::Connect)));
                    }
                    turn.need(conn.proof_by);
                }
                match &mut conn.role {
                    Role::Client(initiator) => initiator.sweep(&mut conn.queue, turn),
                    Role::Server(_) => Ok(()),
                }
            });
            self.dirty.push(id);
        }
        if self.index == 0 {
            let at = now();
            self.context
                .direct
                .collect(at - self.context.config.idle_timeout);
            if !self.context.direct.is_empty() {
                self.wake = self.wake.min(at + self.context.config.gc_interval);
            }
            if self.context.disarm(at) {
                self.context.schedule(
                    Some((self.index, &mut self.own)),
                    |scheduler, now, actions| scheduler.tick(now, actions),
                );
            } else {
                self.wake = self.wake.min(self.context.armed());
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
            self.with(id, |_, _| Err(CloseReason::Lost(Cause::Closed)));
            net.abort(id);
        }
    }
}

impl Protocol for LoopState {
    type Command = Command;

    fn handle(&mut self, net: &mut Net, event: Event<'_, Command>) {
        match event {
            Event::Accepted { conn, .. } => {
                let proof_by = now() + self.context.config.greeting_timeout;
                self.insert(conn, Role::Server(ServerConnection::default()), proof_by);
                self.wake = self.wake.min(proof_by);
                self.take_over(net, conn);
            }
            Event::Connected { conn } => {
                self.with(conn, |conn, turn| {
                    conn.proof_by = turn.now + turn.context.config.greeting_timeout;
                    turn.need(conn.proof_by);
                    match &mut conn.role {
                        Role::Client(initiator) => initiator.hello(&mut conn.queue, turn),
                        Role::Server(_) => Ok(()),
                    }
                });
                match self.is_there(conn) {
                    true => self.take_over(net, conn),
                    false => net.abort(conn),
                }
            }
            Event::Closed { conn, end, .. } => {
                self.with(conn, |_, _| {
                    Err(CloseReason::Lost(Cause::Lost(end.to_string())))
                });
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
