//! The world of one seed: callers, connections, the owner's orders, and everything that goes wrong.

mod faults;
mod network;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use slackwater_base::{Instant, Rng};
use slackwater_data_plane::{
    Cause,
    protocol::{
        Call, CloseReason, InitiatorLimits, Piece, Responder, ResponderLimits, Want,
        initiating::{Input, Output},
        responding::Input as Answer,
    },
};
use slackwater_engine::Buffers;
use slackwater_wire::data::{Op, Refusal, Rights, Segment};
use slackwater_wire::{Incarnation, TraceContext};

use super::ledger::{Job, value_of};
use super::target::{EXTENT_BYTES, EXTENTS, Held, Server, Target, greeting};
use super::{Bug, Met};
use crate::client::ClientConnection;
use crate::cursor::{Cursor, Place, SpanMemory};
use crate::io::Vectors;
use crate::wire::Wire;

pub(super) struct World {
    rng: Rng,
    bug: Option<Bug>,
    target: Box<Target>,
    conns: BTreeMap<u64, Conn>,
    next_conn: u64,
    /// Tasks that wait for a connection.
    waiting: VecDeque<Task>,
    pub(super) met: Met,
}

/// A connection: two ends, each until it has seen the end of the connection, and the bytes on their way.
struct Conn {
    client: Option<(ClientConnection<Task>, Wire)>,
    server: Option<(Responder<Held>, Wire)>,
    up: VecDeque<u8>,
    down: VecDeque<u8>,
    /// No byte is sent any more; those on their way may arrive.
    cut: bool,
}

/// A request on its way through the lanes.
#[derive(Debug)]
struct Task {
    job: usize,
    op: Op,
    call: Transfer,
    deadline: Instant,
    buffers: Buffers,
    cursor: Cursor,
}

#[derive(Clone, Copy, Debug)]
struct Transfer {
    offset: u64,
    bytes: u64,
    capability: slackwater_wire::data::Capability,
    urgent: bool,
}

const STEPS: usize = 800;
/// Steps without faults, after which everything has come to rest.
const REST_STEPS: usize = 6000;
const CONNS: usize = 3;
const JOBS_OPEN: usize = 12;

impl SpanMemory for Task {
    fn place(&mut self, offset: u64) -> Option<Place<'_>> {
        Some(Place {
            buffers: &self.buffers,
            cursor: &mut self.cursor,
            offset,
        })
    }
}

impl World {
    pub(super) fn new(seed: u64, bug: Option<Bug>) -> Self {
        Self {
            rng: Rng::new(seed),
            bug,
            target: Box::new(Target::new(bug)),
            conns: BTreeMap::new(),
            next_conn: 1,
            waiting: VecDeque::new(),
            met: Met::default(),
        }
    }

    /// Plays the seed to its end.
    pub(super) fn run(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            self.step(true)?;
        }
        for _ in 0..REST_STEPS {
            if self.is_at_rest() {
                break;
            }
            self.step(false)?;
        }
        self.target.ledger.check_rest()?;
        self.check_nothing_left()
    }

    fn step(&mut self, faults: bool) -> Result<(), String> {
        self.target.step += 1;
        match self.rng.below(100) {
            0..8 if faults => self.submit(),
            8 if faults && self.rng.chance(0.4) => self.cancel(),
            9 if faults && self.rng.chance(0.4) => self.cut(),
            10 if faults => self.close_extent(),
            11 if faults && self.rng.chance(0.3) => self.rotate(),
            12 if faults && self.rng.chance(0.08) => self.kill_target(),
            13 if faults && self.rng.chance(0.08) => self.kill_initiator(),
            18..24 => self.connect(),
            24..32 => self.start_waiting(),
            32..40 => self.end_copy(),
            40..44 => self.pass_time(faults),
            44..50 => self.reuse_extents(),
            50..56 => self.resume(),
            _ => self.carry(),
        }
        self.notice_ends();
        self.target.found.take().map_or(Ok(()), Err)
    }

    fn submit(&mut self) {
        if self.target.ledger.open.len() >= JOBS_OPEN {
            return;
        }
        let job = self.target.ledger.jobs.len();
        let extent = self.rng.below(EXTENTS as u64) as usize;
        let offset = self.rng.below(EXTENT_BYTES as u64 - 1);
        let bytes = 1 + self.rng.below((EXTENT_BYTES as u64 - offset).min(700));
        let (op, value) = match self.rng.chance(0.6) {
            true => (Op::Write, value_of(job)),
            false => (Op::Read, 0xff),
        };
        let rights = match self.rng.chance(0.05) {
            true => Rights::NONE,
            false => Rights::BOTH,
        };
        let time = |rng: &mut Rng| Duration::from_millis(1 + rng.below(40_000));
        let (until, deadline) = (time(&mut self.rng), time(&mut self.rng));
        let now = self.target.now;
        let capability = self.target.grant(job, extent, rights, now + until);
        let mut memory = vec![value; bytes as usize].into_boxed_slice();
        // SAFETY: the memory is kept by the ledger for as long as the world, and only one thread touches it.
        let buffers = unsafe { Buffers::borrowed(memory.as_mut_ptr(), memory.len()) };
        let generation = self.target.extents[extent].generation;
        let ledger = &mut self.target.ledger;
        ledger.jobs.push(Job {
            op,
            extent,
            offset,
            generation,
            memory,
            started: self.target.step,
            ended: None,
            seen: None,
            counts: false,
            unanswered: false,
        });
        ledger.open.insert(job);
        self.waiting.push_back(Task {
            job,
            op,
            call: Transfer {
                offset: (extent * EXTENT_BYTES) as u64 + offset,
                bytes,
                capability,
                urgent: self.rng.chance(0.2),
            },
            deadline: now + deadline,
            buffers,
            cursor: Cursor::default(),
        });
    }

    fn connect(&mut self) {
        let open = self.conns.values().filter(|conn| !conn.cut).count();
        if open >= CONNS {
            return;
        }
        let now = self.target.now;
        // An initiator may know the target by an incarnation that has ended.
        let stale = self.rng.chance(0.02) && self.target.incarnation.0 > 1;
        let peer = Incarnation(self.target.incarnation.0 - u64::from(stale));
        let limits = InitiatorLimits {
            peer,
            slice_bytes: 300,
            requests_max: 8,
            progress_timeout: Duration::from_secs(30),
            ack_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(60),
            gc_interval: Duration::from_secs(5),
        };
        let segment = Arc::new(Segment {
            name: String::new(),
            incarnation: peer,
            addresses: Vec::new(),
            public_key: None,
            host: None,
        });
        let mut client = ClientConnection::new(segment, limits, now);
        client
            .initiator
            .greet(&greeting(Incarnation(1 << 32), peer));
        let limits = ResponderLimits {
            slice_bytes: 300,
            requests_max: 8,
            in_flight_bytes_max: 64 << 20,
            progress_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(120),
            grace: Duration::from_secs(1),
        };
        let conn = Conn {
            client: Some((client, Wire::default())),
            server: Some((Responder::new(limits, now), Wire::default())),
            up: VecDeque::new(),
            down: VecDeque::new(),
            cut: false,
        };
        self.conns.insert(self.next_conn, conn);
        self.next_conn += 1;
    }

    fn start_waiting(&mut self) {
        let now = self.target.now;
        let (late, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|task| task.deadline <= now);
        self.waiting = waiting;
        let late: VecDeque<Task> = late;
        late.into_iter().for_each(|task| {
            let outcome = Err(Cause::TimedOut(slackwater_data_plane::Deadline::Total));
            self.ended(&task, outcome);
        });
        let rng = &mut self.rng;
        let ready = self.conns.values_mut().filter_map(|conn| {
            let (client, _) = conn.client.as_mut()?;
            (client.initiator.is_ready() && client.initiator.tasks().count() < 6).then_some(client)
        });
        let Some(client) = pick(rng, ready) else {
            return;
        };
        let Some(task) = self.waiting.pop_front() else {
            return;
        };
        let Transfer {
            offset,
            bytes,
            capability,
            urgent,
        } = task.call;
        let start = Input::Start {
            call: Call::Transfer {
                op: task.op,
                urgent,
                offset,
                bytes,
                capability,
                // Some headers are longer than others.
                trace: TraceContext::new(1, bytes).filter(|_| urgent),
            },
            deadline: task.deadline,
            task,
        };
        let started = client.handle(now, start);
        assert!(started.is_ok(), "a start is no fault of the peer's");
    }

    fn cancel(&mut self) {
        let (now, rng) = (self.target.now, &mut self.rng);
        let clients = self
            .conns
            .values_mut()
            .filter_map(|conn| conn.client.as_mut());
        let Some((client, _)) = pick(rng, clients) else {
            return;
        };
        let Some((id, _)) = pick(rng, client.initiator.tasks()) else {
            return;
        };
        let cancelled = client.handle(now, Input::GiveUp(id, Cause::Cancelled));
        assert!(
            cancelled.is_ok(),
            "a cancellation is no fault of the peer's"
        );
    }

    /// Moves bytes on one connection: from an end to the network, or from the network to an end.
    fn take_outputs(&mut self, id: u64) {
        let Some((client, _)) = self
            .conns
            .get_mut(&id)
            .and_then(|conn| conn.client.as_mut())
        else {
            return;
        };
        let outputs = std::mem::take(&mut client.out);
        self.perform(outputs);
    }

    fn perform(&mut self, outputs: Vec<Output<Task>>) {
        for output in outputs {
            match output {
                Output::Ready(_) => {}
                Output::Ended { task, outcome } => self.ended(&task, outcome),
                Output::Again(task) => {
                    self.met.again += 1;
                    self.waiting.push_front(task);
                }
            }
        }
    }

    fn ended(&mut self, task: &Task, outcome: Result<u64, Cause>) {
        let counter = match &outcome {
            Ok(_) => &mut self.met.completed,
            Err(Cause::Refused(_)) => &mut self.met.refused,
            Err(Cause::Cancelled) => &mut self.met.cancelled,
            Err(Cause::TimedOut(_)) => &mut self.met.late,
            Err(_) => &mut self.met.lost,
        };
        *counter += 1;
        let target = &mut *self.target;
        let job = &target.ledger.jobs[task.job];
        let in_use = target.extents[job.extent].generation == job.generation
            && !target.is_fenced(job.extent);
        if in_use && outcome == Err(Cause::Refused(Refusal::Generation)) {
            let found = format!("job {} was refused, and its extent is in use", task.job);
            target.found.get_or_insert(found);
        }
        let base = target.ledger.jobs[task.job].extent * EXTENT_BYTES;
        let ended = target.ledger.ended(task.job, outcome, base);
        target.found = target.found.take().or(ended.err());
    }

    /// The client's end sees the end of its connection.
    fn end_client(&mut self, id: u64, reason: &CloseReason) {
        self.take_outputs(id);
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.cut = true;
        let Some((mut client, _)) = conn.client.take() else {
            return;
        };
        client.close(self.target.now, reason);
        let mut outputs = std::mem::take(&mut client.out);
        match self.bug {
            Some(Bug::TasksForgotten) => outputs.clear(),
            Some(Bug::BegunWritesAgain) => {
                for output in &mut outputs {
                    *output = match std::mem::replace(output, Output::Ready(no_credit())) {
                        Output::Ended {
                            task,
                            outcome: Err(Cause::Lost(_)),
                        } => Output::Again(task),
                        other => other,
                    };
                }
            }
            Some(Bug::EndedTwice) => {
                for output in &outputs {
                    if let Output::Ended { task, outcome } = output {
                        self.ended(task, outcome.clone());
                    }
                }
            }
            _ => {}
        }
        for output in &outputs {
            if let Output::Ended { task, .. } = output {
                self.target.ledger.jobs[task.job].unanswered = true;
            }
        }
        self.perform(outputs);
    }

    fn end_server(&mut self, id: u64) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.cut = true;
            conn.server = None;
            conn.up.clear();
        }
        self.met.staged += self
            .target
            .copies
            .iter()
            .filter(|copy| copy.conn == id)
            .count() as u64;
    }

    fn pass_time(&mut self, faults: bool) {
        let longest = if faults && self.rng.chance(0.04) {
            20_000
        } else {
            300
        };
        let passed = Duration::from_millis(1 + self.rng.below(longest));
        self.target.now += passed;
        let now = self.target.now;
        let ids: Vec<u64> = self.conns.keys().copied().collect();
        for id in ids {
            let Some(conn) = self.conns.get_mut(&id) else {
                continue;
            };
            let mut ends = [None, None];
            if let Some((client, _)) = &mut conn.client
                && client.initiator.next_deadline() <= now
            {
                ends[0] = client.on_deadline(now).err();
            }
            if let Some((responder, _)) = &mut conn.server
                && responder.next_deadline() <= now
            {
                ends[1] = responder.on_deadline(now).err();
            }
            match &ends[0] {
                Some(reason) => self.end_client(id, reason),
                None => self.take_outputs(id),
            }
            if ends[1].is_some() {
                self.end_server(id);
            }
        }
    }

    fn end_copy(&mut self) {
        if self.target.copies.is_empty() {
            return;
        }
        let index = self.rng.below(self.target.copies.len() as u64) as usize;
        let mut copy = self.target.copies.swap_remove(index);
        let failed = self.rng.chance(0.05);
        self.met.staged += 1;
        let id = copy.conn;
        let server = self
            .conns
            .get_mut(&id)
            .and_then(|conn| conn.server.as_mut());
        let Some((responder, _)) = server else {
            // Its connection has ended meanwhile; the device goes on to the end.
            return self.target.end_copy(&mut copy, failed);
        };
        let mut server = Server {
            conn: id,
            responder,
            target: &mut self.target,
        };
        if server.copied(copy, failed).is_err() {
            self.end_server(id);
        }
    }

    fn resume(&mut self) {
        let room = self.target.has_room();
        let mut ended = Vec::new();
        for (id, conn) in &mut self.conns {
            if let Some((responder, wire)) = &mut conn.server
                && responder.want() == Want::Nothing
                && room
            {
                let mut server = Server {
                    conn: *id,
                    responder,
                    target: &mut self.target,
                };
                let resumed = server.handle(Answer::Resumed);
                if resumed.and_then(|()| wire.take(&mut server, &[])).is_err() {
                    ended.push(*id);
                }
            }
        }
        ended.into_iter().for_each(|id| self.end_server(id));
    }

    fn is_at_rest(&self) -> bool {
        self.target.ledger.open.is_empty()
            && self.target.copies.is_empty()
            && self.conns.values().all(Conn::is_quiet)
            && (0..EXTENTS).all(|extent| !self.target.is_fenced(extent))
    }

    fn check_nothing_left(&self) -> Result<(), String> {
        let quiet = |conn: &&Conn| !conn.is_quiet();
        if let Some(conn) = self.conns.values().find(quiet) {
            return Err(format!(
                "something is left: {:?} {:?}",
                conn.client, conn.server
            ));
        }
        match (0..EXTENTS).find(|extent| !self.target.is_drained(*extent)) {
            Some(extent) => Err(format!("an access to extent {extent} is left")),
            None => Ok(()),
        }
    }
}

impl Conn {
    fn is_quiet(&self) -> bool {
        let client = self.client.as_ref();
        let server = self.server.as_ref();
        let both = client.is_some() == server.is_some();
        both && client.is_none_or(|(client, _)| client.initiator.is_quiet())
            && server.is_none_or(|(responder, _)| responder.is_quiet() && responder.has_sent_all())
    }
}

fn no_credit() -> slackwater_data_plane::protocol::Credit {
    slackwater_data_plane::protocol::Credit {
        requests: 0,
        bytes: 0,
    }
}

fn pick<T>(rng: &mut Rng, all: impl Iterator<Item = T>) -> Option<T> {
    let mut all: Vec<T> = all.collect();
    match all.len() {
        0 => None,
        count => Some(all.swap_remove(rng.below(count as u64) as usize)),
    }
}

/// Takes a piece, as far as `many` bytes in all have room.
fn show<M: SpanMemory>(piece: Piece<'_, &mut M>, many: usize, out: &mut Vec<u8>) -> usize {
    let (room, before) = (many - out.len(), out.len());
    match piece {
        Piece::Bytes(bytes) => out.extend_from_slice(&bytes[..bytes.len().min(room)]),
        Piece::Zeros(count) => out.resize(before + count.min(room), 0),
        Piece::Memory(memory, span) => {
            let mut bytes = vec![0; span.bytes.min(room)];
            if let Some(mut place) = memory.place(span.offset) {
                let (mut ranges, whole) = (Vectors::new(), bytes.len());
                assert_eq!(
                    place.vectors(whole, &mut ranges),
                    whole,
                    "memory is missing"
                );
                place.copy_out(&mut bytes);
            }
            out.extend_from_slice(&bytes);
        }
    }
    out.len() - before
}
