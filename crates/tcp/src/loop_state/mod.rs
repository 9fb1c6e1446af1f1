//! What one event loop owns: the connections that it accepted, and the lanes that it opened.

mod command;
mod deadlines;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_data_plane::Cause;
use slackwater_data_plane::protocol::{CloseReason, Credit, initiating::Output};
use slackwater_net::{ConnId, Event, ListenerId, Net, Protocol, Readiness, TimerId};
use slackwater_wait::now;
use socket2::SockRef;

use super::conn::{Conn, Role};
use super::context::TcpContext;
use super::scheduler::{LaneEnd, LaneId, LostLane};
use super::server::{ServerConnection, ServerEnd};
use super::turn::{FinishedTask, Turn};
use super::wire::{ReadEnd, Scratch};

pub(crate) use command::Command;
use deadlines::Deadlines;

/// The connections of one loop, and what they have left to be done.
pub(crate) struct LoopState {
    context: Arc<TcpContext>,
    index: usize,
    conns: Vec<Option<Box<Conn>>>,
    lanes: BTreeMap<LaneId, ConnId>,
    /// The connections with requests under way, by index: the only ones that a cancellation or a closing region concerns.
    busy: BTreeSet<usize>,
    listeners: Vec<ListenerId>,
    scratch: Scratch,
    ended: Vec<FinishedTask>,
    /// Lanes that became ready, with their credit.
    ready: Vec<(LaneId, Credit)>,
    /// Commands for this loop, from its own calls of the scheduler.
    own: Vec<Command>,
    /// Connections with something to write.
    dirty: Vec<ConnId>,
    deadlines: Deadlines,
    /// When something is due.
    wake: Instant,
    alarm: Option<(Instant, TimerId)>,
    stopping: bool,
}

const TICK: u64 = 0;
/// Bytes that are read at once when no large payload is expected.
const SCRATCH_BYTES: usize = 64 << 10;

/// The loop for a connection that was accepted, near its address here where loops are placed.
fn loop_near(context: &TcpContext, net: &mut Net, id: ConnId, turn: usize) -> usize {
    let nearness = &context.nearness;
    if !nearness.places_loops() {
        return turn;
    }
    let address = net.descriptor(id).and_then(|socket| {
        let address = SockRef::from(&socket).local_addr().ok()?;
        Some(address.as_socket()?.ip().to_canonical())
    });
    nearness.loop_of(address, turn, context.config.io_threads)
}

impl LoopState {
    pub(crate) fn new(context: Arc<TcpContext>, index: usize) -> Self {
        Self {
            context,
            index,
            conns: Vec::new(),
            lanes: BTreeMap::new(),
            busy: BTreeSet::new(),
            listeners: Vec::new(),
            scratch: Scratch::new(SCRATCH_BYTES),
            ended: Vec::new(),
            ready: Vec::new(),
            own: Vec::new(),
            dirty: Vec::new(),
            deadlines: Deadlines::default(),
            wake: Instant::NEVER,
            alarm: None,
            stopping: false,
        }
    }

    fn keep(&mut self, conn: Box<Conn>) {
        let index = conn.id.index();
        if self.conns.len() <= index {
            self.conns.resize_with(index + 1, || None);
        }
        self.need_look(now(), index, conn.next_deadline());
        self.conns[index] = Some(conn);
    }

    fn need_look(&mut self, now: Instant, index: usize, at: Instant) {
        self.deadlines.set(now, index, at);
        self.need(self.deadlines.next());
    }

    fn need(&mut self, at: Instant) {
        self.wake = self.wake.min(at);
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
        let Some(turn) = server
            .idle_peer()
            .map(|peer| self.context.rotation.next(peer, self.index))
        else {
            return;
        };
        let to = loop_near(&self.context, net, id, turn);
        if to == self.index {
            return;
        }
        let Some(target) = self.context.event_loop(to) else {
            return;
        };
        let Some(conn) = slot.take() else { return };
        self.deadlines.forget(id.index());
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
        act: impl FnOnce(&mut Conn, &Turn<'_>) -> Result<(), CloseReason>,
    ) {
        let Some(mut conn) = self.conns.get_mut(id.index()).and_then(Option::take) else {
            return;
        };
        if conn.id != id {
            self.conns[id.index()] = Some(conn);
            return;
        }
        let context = Arc::clone(&self.context);
        let turn = Turn {
            context: &context,
            index: self.index,
            now: now(),
        };
        // A panic ends the connection and its requests; the loop goes on.
        let acted = catch_unwind(AssertUnwindSafe(|| act(&mut conn, &turn)));
        self.take_outputs(&mut conn);
        match acted.unwrap_or(Err(CloseReason::Lost(Cause::Dropped))) {
            Ok(()) => {
                match conn.is_busy() {
                    true => self.busy.insert(id.index()),
                    false => self.busy.remove(&id.index()),
                };
                self.need_look(turn.now, id.index(), conn.next_deadline());
                self.conns[id.index()] = Some(conn);
            }
            Err(reason) => {
                self.busy.remove(&id.index());
                self.deadlines.forget(id.index());
                self.broke(*conn, &reason);
            }
        }
    }

    fn take_outputs(&mut self, conn: &mut Conn) {
        let Role::Client(lane, client) = &mut conn.role else {
            return;
        };
        let lane = *lane;
        for output in client.out.drain(..) {
            match output {
                Output::Ready(credit) => self.ready.push((lane, credit)),
                Output::Ended { task, outcome } => self.ended.push(FinishedTask {
                    lane,
                    task,
                    outcome,
                }),
                // Only of a connection that has ended; see `broke`.
                Output::Again(_) => {}
            }
        }
    }

    /// Runs `act` on a connection of a peer.
    fn server(
        &mut self,
        id: ConnId,
        act: impl FnOnce(&mut ServerEnd<'_>) -> Result<(), CloseReason>,
    ) {
        self.with(id, |conn, turn| match &mut conn.role {
            Role::Server(server) => act(&mut ServerEnd {
                server,
                conn: id,
                turn,
            }),
            Role::Client(..) => Ok(()),
        });
        self.dirty.push(id);
    }

    fn busy_connections(&self) -> Vec<ConnId> {
        let busy = self.busy.iter().filter_map(|index| self.conns.get(*index));
        busy.flatten().map(|conn| conn.id).collect()
    }

    fn serve(&mut self, net: &mut Net, id: ConnId, readiness: Readiness) {
        let mut scratch = std::mem::replace(&mut self.scratch, Scratch::new(0));
        let (mut again, mut greeted, mut soon) = (Readiness::default(), false, false);
        self.with(id, |conn, turn| {
            let Some(socket) = net.descriptor(id) else {
                return Err(CloseReason::protocol("no socket"));
            };
            let unauthenticated = conn.is_unauthenticated();
            conn.writable |= readiness.writable;
            if readiness.readable {
                let end = match conn.read(socket, &mut scratch, turn) {
                    Err(reason) => {
                        // A refusal is sent as far as the kernel takes it.
                        if unauthenticated || matches!(reason, CloseReason::Limit(_)) {
                            let _ = conn.flush(socket, &mut scratch, turn);
                        }
                        return Err(reason);
                    }
                    Ok(end) => end,
                };
                again.readable = end == ReadEnd::Spent;
                soon = end == ReadEnd::Soon;
            }
            again.writable = conn.flush(socket, &mut scratch, turn)?;
            greeted = unauthenticated && !conn.is_unauthenticated();
            if greeted {
                net.proven(id);
            }
            Ok(())
        });
        self.scratch = scratch;
        if soon {
            net.expect_soon();
        }
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
    fn broke(&mut self, mut conn: Conn, reason: &CloseReason) {
        if matches!(
            (&conn.role, reason),
            (Role::Server(_), _) | (_, CloseReason::Forged)
        ) {
            self.context.refused.count(reason);
        }
        let Role::Client(lane, client) = &mut conn.role else {
            return;
        };
        let lane = *lane;
        self.lanes.remove(&lane);
        let was_ready = client.initiator.is_ready();
        let cause = client.close(now(), reason);
        let (mut again, mut failed) = (Vec::new(), Vec::new());
        for output in client.out.drain(..) {
            match output {
                Output::Ready(_) => {}
                Output::Ended { task, outcome } => failed.push((task, outcome)),
                Output::Again(task) if self.stopping => failed.push((task, Err(Cause::Closed))),
                Output::Again(task) => again.push(task),
            }
        }
        let why = match reason {
            CloseReason::Idle => LaneEnd::Idle,
            CloseReason::Lost(_) if !was_ready => {
                LaneEnd::Peer(Cause::Unreachable(cause.to_string()))
            }
            CloseReason::Gone(_) => LaneEnd::Gone(cause),
            _ => LaneEnd::Peer(cause),
        };
        // Tasks that ended before the lane broke are reported first, while the scheduler still counts the lane.
        self.settle_ended();
        self.lost(LostLane {
            lane,
            why,
            again,
            failed: failed.iter().map(|(task, _)| task.epoch).collect(),
        });
        failed
            .into_iter()
            .for_each(|(task, outcome)| task.end(outcome));
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
        let (mut due, at) = (Vec::new(), now());
        while let Some(index) = self.deadlines.take_due(at) {
            let Some(Some(conn)) = self.conns.get(index) else {
                continue;
            };
            match conn.next_deadline() {
                late if late <= at => due.push(conn.id),
                later => self.deadlines.set(at, index, later),
            }
        }
        self.need(self.deadlines.next());
        for id in due {
            self.with(id, |conn, turn| conn.on_deadline(turn));
            self.dirty.push(id);
        }
        if self.index == 0 {
            let config = &self.context.config;
            let [idle, spare] = [config.idle_timeout, config.gc_interval];
            self.context.direct.collect(at - idle, at - spare);
            if !self.context.direct.is_empty() {
                self.need(at + self.context.config.gc_interval);
            }
            if self.context.disarm(at) {
                self.context.schedule(
                    Some((self.index, &mut self.own)),
                    |scheduler, now, actions| scheduler.tick(now, actions),
                );
            } else {
                self.need(self.context.armed());
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
                let server = ServerConnection::new(&self.context, now());
                let proof_by = now() + self.context.config.greeting_timeout;
                let role = Role::Server(Box::new(server));
                self.keep(Box::new(Conn::new(conn, role, proof_by)));
                self.take_over(net, conn);
            }
            Event::Connected { conn } => {
                self.with(conn, |conn, turn| {
                    conn.proof_by = turn.now + turn.context.config.greeting_timeout;
                    match &mut conn.role {
                        Role::Client(_, client) => client.hello(turn.context),
                        Role::Server(_) => Ok(()),
                    }
                });
                match self.is_there(conn) {
                    true => self.take_over(net, conn),
                    false => net.abort(conn),
                }
            }
            Event::Closed { conn, end, .. } => {
                self.with(conn, |conn, _| {
                    Err(match &conn.role {
                        Role::Client(_, client) => client.ended(&end),
                        Role::Server(_) => CloseReason::Lost(Cause::Lost(end.to_string())),
                    })
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
