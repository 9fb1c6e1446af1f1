mod accept;
mod traffic;

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use mio::{Registry, Token};
use slab::Slab;
use slackwater_base::Instant;

use slackwater_wait::now;

use crate::limiter::{Limiter, Unproven};
use crate::outbox::{Outbox, Spare};
use crate::socket::{Listener, Stream};
use crate::wheel::Wheel;
use crate::{
    ConnId, Connect, Counters, End, Endpoint, Event, Limits, NetError, Protocol, Readiness, TimerId,
};

/// The connections, listeners and timers of one loop, as its protocol sees them.
pub struct Net {
    registry: Registry,
    now: Instant,
    limits: Limits,
    counters: Arc<Counters>,
    conns: Slab<Conn>,
    next_generation: NonZeroU32,
    listeners: Slab<Accepting>,
    limiter: Limiter,
    /// Listeners are to be looked at in this turn.
    accept_due: bool,
    /// Something is expected before a sleep would be over.
    expecting: bool,
    /// A listener was left with connections waiting; it is looked at again when a slot frees.
    accept_held: bool,
    /// When it is looked at again in any case.
    accept_alarm: Option<TimerId>,
    wheel: Wheel<Alarm>,
    ready: VecDeque<ConnId>,
    dirty: Vec<ConnId>,
    notices: VecDeque<Notice>,
    fired: Vec<Alarm>,
    spare: Spare,
    read_buffer: Vec<u8>,
}

/// Everything that reading a message needs is in one cache line: of thousands of connections each is cold when it
/// becomes ready.
#[repr(align(64))]
pub(crate) struct Conn {
    pub(crate) stream: Stream,
    generation: NonZeroU32,
    phase: Phase,
    /// What the protocol wants to find again with this connection.
    attached: u32,
    /// What waits to be written; none when nothing does.
    outbox: Option<Box<Outbox>>,
    alarm: Option<TimerId>,
    /// Set while it counts as unproven.
    unproven: Option<Unproven>,
    readable: bool,
    /// The kernel has said that no byte follows what it holds, or that the connection failed.
    ended: bool,
    in_ready: bool,
    in_dirty: bool,
    paused: bool,
    /// Whether the kernel accepts no more bytes; the next writable event continues.
    blocked: bool,
    /// Bytes were taken since the stall alarm was set.
    progressed: bool,
    call_when_drained: bool,
    /// The protocol reads and writes itself; what it has not been told yet.
    pub(crate) raw: Option<Readiness>,
}

// With debug assertions mio keeps more with a socket.
#[cfg(not(debug_assertions))]
const _: () = assert!(
    size_of::<Conn>() == 64,
    "a connection has outgrown its cache line"
);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Connecting,
    Open,
    /// Nothing is read any more; closes when the outbox is empty.
    Lingering,
}

struct Accepting {
    listener: Listener,
    endpoint: Endpoint,
    ready: bool,
}

enum Alarm {
    User(u64),
    Connect(ConnId),
    Linger(ConnId),
    Stall(ConnId),
    Accept,
}

/// Events that the protocol has not been given yet, as it is running.
enum Notice {
    Closed(ConnId, u32, End),
    Drained(ConnId),
}

const READ_BYTES: usize = 64 << 10;
const SERVED_PER_TURN: usize = 256;
const LISTENER_BIT: usize = 1 << 63;
pub(crate) const WAKER: Token = Token(usize::MAX);

impl Net {
    pub(crate) fn new(registry: Registry, limits: Limits, counters: Arc<Counters>) -> Self {
        let now = now();
        Self {
            registry,
            now,
            limits,
            counters,
            conns: Slab::new(),
            next_generation: NonZeroU32::MIN,
            listeners: Slab::new(),
            limiter: Limiter::new(limits.pre_auth, now),
            accept_due: false,
            expecting: false,
            accept_held: false,
            accept_alarm: None,
            wheel: Wheel::new(now),
            ready: VecDeque::new(),
            dirty: Vec::new(),
            notices: VecDeque::new(),
            fired: Vec::new(),
            spare: Spare::default(),
            read_buffer: vec![0; READ_BYTES],
        }
    }

    /// The time of this turn.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Connections of this loop.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Connections of unauthenticated peers.
    #[must_use]
    pub fn unproven(&self) -> usize {
        self.limiter.open()
    }

    /// The loop's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Begins a connection; [`Event::Connected`] or [`Event::Closed`] follows.
    ///
    /// # Errors
    /// When the kernel refuses at once; nothing follows then.
    pub fn connect(&mut self, connect: &Connect) -> Result<ConnId, NetError> {
        if self.conns.len() >= self.limits.connections {
            return Err(NetError::NoDescriptors);
        }
        self.counters.connects.add_alone(1);
        self.counters.socket_calls.add_alone(7);
        let stream = Stream::connect(connect, &self.limits.liveness)
            .map_err(|error| system_error(&connect.endpoint, error))?;
        let conn = self
            .insert(stream, Phase::Connecting)
            .map_err(|e| system_error(&connect.endpoint, e))?;
        let alarm = self
            .wheel
            .set(self.now + connect.timeout, Alarm::Connect(conn));
        let entry = &mut self.conns[conn.index()];
        entry.alarm = Some(alarm);
        if entry.stream.connects_at_once() {
            self.make_ready(conn);
        }
        Ok(conn)
    }

    /// The buffer to append bytes for the peer to; written when the turn ends. None when the connection is gone,
    /// not yet made, or closing.
    pub fn wire(&mut self, conn: ConnId) -> Option<&mut Vec<u8>> {
        let entry = entry(&mut self.conns, conn)?;
        if entry.phase != Phase::Open {
            return None;
        }
        if !entry.in_dirty {
            entry.in_dirty = true;
            self.dirty.push(conn);
        }
        Some(
            entry
                .outbox
                .get_or_insert_with(|| self.spare.outbox())
                .tail(&mut self.spare),
        )
    }

    /// Keeps a number with the connection: whatever arrives on it has just been looked up there, and finding the
    /// protocol's own state by that number instead of in a table of its own saves cold memory.
    pub fn attach(&mut self, conn: ConnId, number: u32) {
        if let Some(entry) = entry(&mut self.conns, conn) {
            entry.attached = number;
        }
    }

    /// The number that was attached; 0 before.
    #[must_use]
    pub fn attached(&self, conn: ConnId) -> Option<u32> {
        self.conns
            .get(conn.index())
            .filter(|entry| entry.generation == conn.generation)
            .map(|entry| entry.attached)
    }

    /// Bytes that wait to be written.
    #[must_use]
    pub fn queued_bytes(&self, conn: ConnId) -> usize {
        self.conns
            .get(conn.index())
            .filter(|c| c.generation == conn.generation)
            .map_or(0, Conn::queued_bytes)
    }

    /// Asks for one [`Event::Drained`] when the outbox comes down to the low mark.
    pub fn call_when_drained(&mut self, conn: ConnId) {
        if let Some(entry) = entry(&mut self.conns, conn) {
            entry.call_when_drained = true;
        }
    }

    /// Closes when everything queued is written, at the latest after `linger`; [`Event::Closed`] follows.
    pub fn close(&mut self, conn: ConnId, linger: Duration) {
        let at = self.now + linger;
        let Some(entry) = entry(&mut self.conns, conn) else {
            return;
        };
        if entry.queued_bytes() == 0 || entry.phase == Phase::Connecting {
            self.end(conn, End::Local);
        } else if entry.phase == Phase::Open {
            entry.phase = Phase::Lingering;
            let stall = entry.alarm.replace(self.wheel.set(at, Alarm::Linger(conn)));
            if let Some(stall) = stall {
                self.wheel.cancel(stall);
            }
        }
    }

    /// Ends a connection now; nothing follows.
    pub fn abort(&mut self, conn: ConnId) {
        self.remove(conn);
    }

    /// The peer is authenticated: its connection frees a slot for unauthenticated ones.
    pub fn proven(&mut self, conn: ConnId) {
        let Some(entry) = entry(&mut self.conns, conn) else {
            return;
        };
        if let Some(unproven) = entry.unproven.take() {
            self.limiter.leave(unproven, self.now);
            self.accept_due |= self.accept_held;
        }
    }

    /// Stops reading; the kernel's buffer fills and the peer is slowed down.
    pub fn pause(&mut self, conn: ConnId) {
        if let Some(entry) = entry(&mut self.conns, conn) {
            entry.paused = true;
        }
    }

    /// Reads again.
    pub fn resume(&mut self, conn: ConnId) {
        if let Some(entry) = entry(&mut self.conns, conn) {
            entry.paused = false;
        }
        self.make_ready(conn);
    }

    /// Sets a timer; [`Event::Timer`] comes with `token` when it fires.
    pub fn set_timer(&mut self, at: Instant, token: u64) -> TimerId {
        self.wheel.set(at, Alarm::User(token))
    }

    /// Takes a timer back; whether it was still set.
    pub fn cancel_timer(&mut self, id: TimerId) -> bool {
        self.wheel.cancel(id).is_some()
    }

    /// Ends everything without events: the loop stops.
    pub(crate) fn shut(&mut self) {
        self.stop_listening_everywhere();
        self.conns.clear();
    }

    /// What a connection waits for is expected in microseconds: for a time that pays, the loop looks for it before it sleeps.
    pub fn expect_soon(&mut self) {
        self.expecting = true;
    }

    pub(crate) fn take_expecting(&mut self) -> bool {
        std::mem::take(&mut self.expecting)
    }

    /// When the loop must turn again without an event; `ZERO` for at once.
    pub(crate) fn next_turn(&self) -> Instant {
        if !self.ready.is_empty() || !self.notices.is_empty() || self.accept_due {
            return Instant::ZERO;
        }
        self.wheel.next_deadline().unwrap_or(Instant::NEVER)
    }

    pub(crate) fn set_now(&mut self) {
        self.now = now();
    }

    /// Notes what the kernel says; nothing is read or told yet.
    pub(crate) fn note(&mut self, token: Token, event: &mio::event::Event) {
        self.counters.events.add_alone(1);
        if token == WAKER {
            return;
        }
        if token.0 & LISTENER_BIT != 0 {
            if let Some(accepting) = self.listeners.get_mut(token.0 & !LISTENER_BIT) {
                accepting.ready = true;
                self.accept_due = true;
            }
            return;
        }
        let Some(generation) = NonZeroU32::new((token.0 >> 32) as u32) else {
            return;
        };
        let conn = ConnId {
            index: token.0 as u32,
            generation,
        };
        let Some(entry) = entry(&mut self.conns, conn) else {
            return;
        };
        entry.ended |= event.is_read_closed() || event.is_error();
        entry.readable |= event.is_readable() || entry.ended;
        if let Some(raw) = &mut entry.raw {
            raw.readable |= entry.readable;
            raw.writable |= event.is_writable() || entry.ended;
            return self.make_ready(conn);
        }
        if event.is_writable() || event.is_write_closed() || event.is_error() {
            entry.blocked = false;
            if entry.outbox.is_some() && !entry.in_dirty {
                entry.in_dirty = true;
                self.dirty.push(conn);
            }
        }
        self.make_ready(conn);
    }

    /// Serves what is ready: new connections, connections with bytes (one read each, in turn), timers, notices.
    pub(crate) fn serve<P: Protocol>(&mut self, protocol: &mut P) {
        if self.accept_due {
            self.accept_all(protocol);
        }
        for _ in 0..self.ready.len().min(SERVED_PER_TURN) {
            let Some(conn) = self.ready.pop_front() else {
                break;
            };
            self.serve_one(conn, protocol);
        }
        let mut fired = std::mem::take(&mut self.fired);
        self.wheel.advance(self.now, &mut fired);
        for alarm in fired.drain(..) {
            self.ring(alarm, protocol);
        }
        self.fired = fired;
        self.settle(protocol);
    }

    /// Ends the turn: writes what is queued and reports the outcome to the protocol, until nothing is left to report.
    pub(crate) fn settle<P: Protocol>(&mut self, protocol: &mut P) {
        protocol.turn_ends(self);
        while !self.dirty.is_empty() || !self.notices.is_empty() {
            let dirty = std::mem::take(&mut self.dirty);
            for conn in &dirty {
                if let Some(entry) = entry(&mut self.conns, *conn) {
                    entry.in_dirty = false;
                    self.flush(*conn);
                }
            }
            while let Some(notice) = self.notices.pop_front() {
                match notice {
                    Notice::Closed(conn, attached, end) => {
                        protocol.handle(
                            self,
                            Event::Closed {
                                conn,
                                attached,
                                end,
                            },
                        );
                    }
                    Notice::Drained(conn) => protocol.handle(self, Event::Drained { conn }),
                }
            }
            protocol.turn_ends(self);
        }
    }

    fn serve_one<P: Protocol>(&mut self, conn: ConnId, protocol: &mut P) {
        let Some(entry) = entry(&mut self.conns, conn) else {
            return;
        };
        entry.in_ready = false;
        match entry.phase {
            Phase::Connecting => match entry.stream.is_connected() {
                Ok(true) => {
                    entry.phase = Phase::Open;
                    entry.blocked = false;
                    let alarm = entry.alarm.take();
                    if let Some(alarm) = alarm {
                        self.wheel.cancel(alarm);
                    }
                    protocol.handle(self, Event::Connected { conn });
                    self.make_ready(conn);
                }
                Ok(false) => {}
                Err(error) => self.end(conn, End::ConnectFailed(error)),
            },
            Phase::Open if entry.raw.is_some() => {
                let readiness = entry.raw.replace(Readiness::default()).unwrap_or_default();
                entry.readable = false;
                protocol.ready(self, conn, readiness);
            }
            Phase::Open if entry.readable && !entry.paused => self.read(conn, protocol),
            Phase::Open | Phase::Lingering => {}
        }
    }

    fn ring<P: Protocol>(&mut self, alarm: Alarm, protocol: &mut P) {
        match alarm {
            Alarm::User(token) => protocol.handle(self, Event::Timer { token }),
            Alarm::Connect(conn) => self.end(conn, End::ConnectTimeout),
            Alarm::Linger(conn) => self.end(conn, End::Local),
            Alarm::Stall(conn) => {
                let again = self.now + self.limits.write_stall;
                let Some(entry) = entry(&mut self.conns, conn) else {
                    return;
                };
                entry.alarm = None;
                if entry.queued_bytes() == 0 {
                    return;
                }
                // One that is not blocked has room that has only not been used yet in this turn.
                if entry.blocked && !entry.progressed {
                    self.counters.stalled.add_alone(1);
                    return self.end(conn, End::Stalled);
                }
                entry.progressed = false;
                entry.alarm = Some(self.wheel.set(again, Alarm::Stall(conn)));
            }
            Alarm::Accept => self.accept_due = true,
        }
    }

    fn insert(&mut self, mut stream: Stream, phase: Phase) -> io::Result<ConnId> {
        let generation = self.next_generation;
        // The top bit tells listeners from connections.
        self.next_generation = generation
            .checked_add(1)
            .filter(|next| next.get() >> 31 == 0)
            .unwrap_or(NonZeroU32::MIN);
        let vacant = self.conns.vacant_entry();
        let conn = ConnId {
            index: vacant.key() as u32,
            generation,
        };
        self.counters.socket_calls.add_alone(2);
        stream.stagger(generation.get(), &self.limits.liveness)?;
        stream.register(&self.registry, conn.token())?;
        vacant.insert(Conn {
            stream,
            generation,
            attached: 0,
            phase,
            outbox: None,
            unproven: None,
            alarm: None,
            readable: false,
            ended: false,
            in_ready: false,
            in_dirty: false,
            paused: false,
            blocked: false,
            progressed: false,
            call_when_drained: false,
            raw: None,
        });
        Ok(conn)
    }

    /// The connection of an id, if it is still there.
    pub(crate) fn entry(&mut self, conn: ConnId) -> Option<&mut Conn> {
        entry(&mut self.conns, conn)
    }

    /// Has a connection be told when there is room to write, or not any more.
    pub(crate) fn await_room(&mut self, conn: ConnId, awaits: bool) {
        let awaited = match entry(&mut self.conns, conn) {
            Some(entry) => entry
                .stream
                .await_room(&self.registry, conn.token(), awaits),
            None => Ok(()),
        };
        if let Err(error) = awaited {
            self.end(conn, End::Failed(error));
        }
    }

    pub(crate) fn make_ready(&mut self, conn: ConnId) {
        let Some(entry) = entry(&mut self.conns, conn) else {
            return;
        };
        let raw = entry.raw.is_some_and(|raw| raw != Readiness::default());
        let due = entry.phase == Phase::Connecting || raw || entry.readable && !entry.paused;
        if due && !entry.in_ready {
            entry.in_ready = true;
            self.ready.push_back(conn);
        }
    }

    fn end(&mut self, conn: ConnId, end: End) {
        if let Some(attached) = self.remove(conn) {
            self.notices.push_back(Notice::Closed(conn, attached, end));
        }
    }

    /// Closes a connection; what was attached to it, if there was one.
    fn remove(&mut self, conn: ConnId) -> Option<u32> {
        // Closing the descriptor takes it out of the kernel's interest list.
        self.take(conn).map(|gone| gone.attached)
    }

    /// The stream of a connection that this loop forgets.
    pub(crate) fn take_stream(&mut self, conn: ConnId) -> Option<Stream> {
        self.take(conn).map(|gone| gone.stream)
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Takes a connection out of the table, with everything that the loop keeps for it.
    fn take(&mut self, conn: ConnId) -> Option<Conn> {
        entry(&mut self.conns, conn)?;
        self.counters.socket_calls.add_alone(1);
        let mut gone = self.conns.remove(conn.index());
        if let Some(outbox) = gone.outbox.take() {
            self.spare.take_back(outbox);
        }
        if let Some(alarm) = gone.alarm {
            self.wheel.cancel(alarm);
        }
        if let Some(unproven) = gone.unproven.take() {
            self.limiter.leave(unproven, self.now);
        }
        self.accept_due |= self.accept_held;
        Some(gone)
    }
}

impl Conn {
    fn queued_bytes(&self) -> usize {
        self.outbox.as_ref().map_or(0, |outbox| outbox.bytes())
    }
}

fn entry(conns: &mut Slab<Conn>, conn: ConnId) -> Option<&mut Conn> {
    conns
        .get_mut(conn.index())
        .filter(|entry| entry.generation == conn.generation)
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    [
        rustix::io::Errno::MFILE,
        rustix::io::Errno::NFILE,
        rustix::io::Errno::NOBUFS,
        rustix::io::Errno::NOMEM,
    ]
    .iter()
    .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn system_error(endpoint: &Endpoint, error: io::Error) -> NetError {
    if is_out_of_descriptors(&error) {
        return NetError::NoDescriptors;
    }
    NetError::System {
        endpoint: endpoint.clone(),
        error,
    }
}
