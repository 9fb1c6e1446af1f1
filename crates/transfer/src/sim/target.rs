//! The target: memory in extents, capabilities, and a responder for each connection.

use std::rc::Rc;

use slackwater_base::Instant;
use slackwater_wire::Incarnation;
use slackwater_wire::data::{
    Capability, CapabilityKey, Features, Frame, Grant, Greeting, Op, Refusal, Rights, VERSION,
};

use super::Bug;
use super::ledger::Ledger;
use crate::job::Buffers;
use crate::protocol::responding::{Input, Output};
use crate::protocol::{Admitted, ChunkRange, CloseReason, Responder, Span, Want};
use crate::tcp::shared::{Cursor, End, Greeted, Place, SpanMemory, Vectors};

pub(super) const EXTENTS: usize = 4;
pub(super) const EXTENT_BYTES: usize = 1024;
/// The last extents are a device's, which is reached by copies of so many bytes.
const DEVICE_FROM: usize = 2;
const CHUNK_BYTES: u64 = 200;
/// The most chunks that are lent.
const CHUNKS: usize = 3;

/// One process that owns memory.
pub(super) struct Target {
    pub(super) incarnation: Incarnation,
    key: CapabilityKey,
    rotations: u64,
    pub(super) extents: Vec<Extent>,
    pub(super) arena: Box<[u8]>,
    pub(super) copies: Vec<Copy>,
    /// Counts the chunks that are lent.
    pub(super) chunks: Rc<()>,
    pub(super) ledger: Ledger,
    pub(super) now: Instant,
    pub(super) step: u64,
    pub(super) bug: Option<Bug>,
    pub(super) found: Option<String>,
}

pub(super) struct Extent {
    pub(super) generation: u64,
    pub(super) closing: bool,
    /// Counts the accesses under way.
    pub(super) accesses: Rc<()>,
}

/// A copy between a chunk and the device.
pub(super) struct Copy {
    pub(super) conn: u64,
    pub(super) request: u64,
    job: usize,
    into_device: bool,
    at: usize,
    chunk: Box<[u8]>,
    _held: [Option<Rc<()>>; 2],
}

/// The memory of one request.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) job: usize,
    grant: Grant,
    rotations: u64,
    offset: u64,
    access: Rc<()>,
    buffers: Buffers,
    cursor: Cursor,
    /// The chunk that payload fills, or is sent from; none for memory that the processor reaches.
    chunk: Option<Chunk>,
    fetched: Option<Box<[u8]>>,
}

/// Host memory for a part of a request on a device.
#[derive(Debug)]
struct Chunk {
    offset: u64,
    memory: Box<[u8]>,
    buffers: Buffers,
    cursor: Cursor,
    /// Counts the chunks that are lent.
    loan: Option<Rc<()>>,
}

/// One connection, as the target sees it.
pub(super) struct Server<'a> {
    pub(super) conn: u64,
    pub(super) responder: &'a mut Responder<Held>,
    pub(super) target: &'a mut Target,
}

pub(super) fn greeting(incarnation: Incarnation, expects: Incarnation) -> Greeting {
    Greeting {
        version_min: VERSION,
        version_max: VERSION,
        features: Features::default(),
        incarnation,
        expects,
        frame_bytes_max: 64 << 10,
        requests_max: 8,
        in_flight_bytes_max: 64 << 20,
        public_key: [0; 32],
        proof: [0; 32],
    }
}

impl Target {
    pub(super) fn new(bug: Option<Bug>) -> Self {
        let mut target = Self {
            incarnation: Incarnation(1),
            key: CapabilityKey::new(&[1; 32]),
            rotations: 0,
            extents: Vec::new(),
            arena: vec![0; EXTENTS * EXTENT_BYTES].into(),
            copies: Vec::new(),
            chunks: Rc::new(()),
            ledger: Ledger::new(EXTENTS * EXTENT_BYTES),
            now: Instant::from_nanos(1),
            step: 0,
            bug,
            found: None,
        };
        target.extents = (0..EXTENTS).map(|_| Extent::new()).collect();
        (0..EXTENTS).for_each(|extent| target.reuse(extent));
        target
    }

    pub(super) fn grant(
        &self,
        job: usize,
        extent: usize,
        rights: Rights,
        expires: Instant,
    ) -> Capability {
        self.key.mint(&Grant {
            incarnation: self.incarnation,
            region: extent as u32,
            generation: self.extents[extent].generation,
            offset: 0,
            bytes: EXTENT_BYTES as u64,
            rights,
            tenant: 0,
            holder: Incarnation(0),
            expires_nanos: expires.as_nanos(),
            nonce: job as u64,
        })
    }

    /// Gives an extent another use.
    pub(super) fn reuse(&mut self, extent: usize) {
        let place = &mut self.extents[extent];
        (place.generation, place.closing) = (place.generation + 1, false);
        let range = extent * EXTENT_BYTES..(extent + 1) * EXTENT_BYTES;
        self.arena[range.clone()].fill(0);
        self.ledger.reused(range, place.generation, self.step);
    }

    pub(super) fn rotate(&mut self) {
        self.rotations += 1;
        self.key = CapabilityKey::new(&[self.rotations as u8; 32]);
    }

    /// The process ends and another takes its place.
    pub(super) fn restart(&mut self) {
        self.incarnation.0 += 1;
        self.copies.clear();
        self.chunks = Rc::new(());
        for extent in 0..EXTENTS {
            self.extents[extent].accesses = Rc::new(());
            self.reuse(extent);
        }
        self.rotate();
    }

    fn admit(
        &mut self,
        capability: &Capability,
        op: Op,
        range: (u64, u64),
    ) -> Result<Admitted<Held>, Refusal> {
        let verified = self.key.verify(capability);
        let grant = match (verified, self.bug) {
            (Err(_), Some(Bug::RotationIgnored)) if self.rotations > 0 => {
                CapabilityKey::new(&[self.rotations as u8 - 1; 32]).verify(capability)?
            }
            _ => verified?,
        };
        let job = &mut self.ledger.jobs[grant.nonce as usize];
        job.counts =
            op == Op::Read && verified.is_ok() && grant.expires_nanos > self.now.as_nanos();
        if grant.incarnation != self.incarnation {
            return Err(Refusal::Incarnation);
        }
        let now = match self.bug {
            Some(Bug::ExpiryIgnored) => 0,
            _ => self.now.as_nanos(),
        };
        grant.covers(op.right(), range, Incarnation(0), now)?;
        let extent = grant.region as usize;
        let place = &self.extents[extent];
        if place.closing || place.generation != grant.generation {
            return Err(Refusal::Generation);
        }
        let at = extent * EXTENT_BYTES + range.0 as usize;
        // SAFETY: the arena is as long as the world, and only one thread touches it.
        let buffers = unsafe { Buffers::borrowed(self.arena[at..].as_mut_ptr(), range.1 as usize) };
        Ok(Admitted {
            memory: Held {
                job: grant.nonce as usize,
                grant,
                rotations: self.rotations,
                offset: range.0,
                access: Rc::clone(&place.accesses),
                buffers,
                cursor: Cursor::default(),
                chunk: None,
                fetched: None,
            },
            chunk_bytes: (extent >= DEVICE_FROM).then_some(CHUNK_BYTES),
        })
    }

    /// Whether what is done under a right counts.
    fn confirm(&self, held: &Held) -> Result<(), Refusal> {
        if self.extents[held.extent()].closing {
            return Err(Refusal::Generation);
        }
        if held.grant.expires_nanos <= self.now.as_nanos() {
            return Err(Refusal::Expired);
        }
        match held.rotations == self.rotations {
            true => Ok(()),
            false => Err(Refusal::Forged),
        }
    }

    /// Bytes of a job are in the arena now.
    fn placed(&mut self, job: usize, at: usize, bytes: usize) {
        let now = (self.extents[at / EXTENT_BYTES].generation, self.step);
        let placed = self
            .ledger
            .placed(job, at, &self.arena[at..at + bytes], now);
        self.found = self.found.take().or(placed.err());
    }

    /// Ends a copy; returns the chunk of one out of the device.
    pub(super) fn end_copy(&mut self, copy: &mut Copy, failed: bool) {
        if failed {
            return;
        }
        let (at, bytes) = (copy.at, copy.chunk.len());
        match copy.into_device {
            true => {
                self.arena[at..at + bytes].copy_from_slice(&copy.chunk);
                self.placed(copy.job, at, bytes);
            }
            false => copy.chunk.copy_from_slice(&self.arena[at..at + bytes]),
        }
    }
}

impl Extent {
    fn new() -> Self {
        Self {
            generation: 0,
            closing: false,
            accesses: Rc::new(()),
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        Rc::strong_count(&self.accesses) == 1
    }
}

impl Chunk {
    fn new(offset: u64, mut memory: Box<[u8]>, loan: Option<Rc<()>>) -> Self {
        // SAFETY: the memory is kept beside the buffers, and only one thread touches it.
        let buffers = unsafe { Buffers::borrowed(memory.as_mut_ptr(), memory.len()) };
        Self {
            offset,
            memory,
            buffers,
            cursor: Cursor::default(),
            loan,
        }
    }
}

impl SpanMemory for Held {
    fn place(&mut self, offset: u64) -> Option<Place<'_>> {
        match &mut self.chunk {
            Some(chunk) => Some(Place {
                buffers: &chunk.buffers,
                cursor: &mut chunk.cursor,
                offset: offset - chunk.offset,
            }),
            None => Some(Place {
                buffers: &self.buffers,
                cursor: &mut self.cursor,
                offset,
            }),
        }
    }
}

impl Held {
    pub(super) fn extent(&self) -> usize {
        self.grant.region as usize
    }

    fn at(&self, offset: u64) -> usize {
        self.extent() * EXTENT_BYTES + (self.offset + offset) as usize
    }
}

impl Server<'_> {
    pub(super) fn handle(&mut self, input: Input<'_, Held>) -> Result<(), CloseReason> {
        let mut out = Vec::new();
        self.responder.handle(self.target.now, input, &mut out)?;
        out.into_iter().try_for_each(|output| self.perform(output))
    }

    fn perform(&mut self, output: Output) -> Result<(), CloseReason> {
        if let Output::Notice(id, _) = output {
            return self.handle(Input::Delivered(id, true));
        }
        let Some(held) = self.responder.memory(output.id()) else {
            return Ok(());
        };
        match output {
            Output::Commit(id) => {
                let truth = self.target.confirm(held);
                self.target.ledger.jobs[held.job].counts = truth.is_ok();
                let counts = match self.target.bug {
                    Some(Bug::CommitUnchecked) => Ok(()),
                    _ => truth,
                };
                return self.handle(Input::Committed(id, counts));
            }
            Output::Store(id, range) => {
                let chunk = held.chunk.take();
                let copy = self.target.copy(held, (self.conn, id), range, chunk);
                self.target.copies.push(copy);
            }
            Output::Fetch(id, range) => {
                let copy = self.target.copy(held, (self.conn, id), range, None);
                self.target.copies.push(copy);
            }
            Output::Send(_, range) => {
                let fetched = held.fetched.take();
                held.chunk = fetched.map(|memory| Chunk::new(range.offset, memory, None));
            }
            Output::Sent(_) => held.chunk = None,
            Output::Notice(..) => {}
        }
        Ok(())
    }

    /// A copy has ended.
    pub(super) fn copied(&mut self, mut copy: Copy, failed: bool) -> Result<(), CloseReason> {
        self.target.end_copy(&mut copy, failed);
        let (id, held) = (copy.request, self.responder.memory(copy.request));
        if held.is_none() && self.target.bug == Some(Bug::CopyNotReported) {
            return Ok(());
        }
        match (copy.into_device, held) {
            (true, _) => self.handle(Input::Stored(id, !failed)),
            (false, held) => {
                if let Some(held) = held.filter(|_| !failed) {
                    held.fetched = Some(copy.chunk);
                }
                self.handle(Input::Fetched(id, !failed))
            }
        }
    }
}

impl Target {
    /// A copy of a chunk into the device, or out of it into a new one.
    fn copy(
        &self,
        held: &Held,
        (conn, request): (u64, u64),
        range: ChunkRange,
        chunk: Option<Chunk>,
    ) -> Copy {
        let access = (self.bug != Some(Bug::CopyWithoutAccess)).then(|| Rc::clone(&held.access));
        let into_device = chunk.is_some();
        let (chunk, loan) = match chunk {
            Some(chunk) => (chunk.memory, chunk.loan),
            None => (vec![0; range.bytes].into(), None),
        };
        Copy {
            conn,
            request,
            job: held.job,
            into_device,
            at: held.at(range.offset),
            chunk,
            _held: [access, loan],
        }
    }

    /// Whether a chunk can be lent.
    pub(super) fn has_room(&self) -> bool {
        Rc::strong_count(&self.chunks) <= CHUNKS
    }
}

impl End for Server<'_> {
    fn greeting(&mut self, greeting: &Greeting) -> Result<Greeted, CloseReason> {
        self.handle(Input::Greeting(greeting))?;
        let own = self::greeting(self.target.incarnation, greeting.incarnation);
        self.responder.greet(&own);
        Ok(Greeted {
            proven: true,
            ..Greeted::default()
        })
    }

    fn proven(&mut self) -> Result<(), CloseReason> {
        Ok(())
    }

    fn frame(&mut self, frame: Frame) -> Result<(), CloseReason> {
        let Frame::Request(request) = frame else {
            return self.handle(Input::Frame(frame));
        };
        let range = (request.offset, request.bytes);
        let admitted = self.target.admit(&request.capability, request.op, range);
        self.handle(Input::Request(&request, admitted))
    }

    fn want(&mut self) -> Want {
        loop {
            let want = self.responder.want();
            let input = match want {
                Want::Room(span) if self.target.has_room() => {
                    let Some(held) = self.responder.memory(span.id) else {
                        return want;
                    };
                    let loan = Some(Rc::clone(&self.target.chunks));
                    let memory = vec![0; span.bytes].into();
                    held.chunk = Some(Chunk::new(span.offset, memory, loan));
                    Input::Lent(span.id)
                }
                Want::Room(_) => Input::NoRoom,
                Want::Memory(span) => match self.responder.memory(span.id) {
                    Some(held) if self.target.extents[held.extent()].closing => {
                        Input::Revoked(span.id, Refusal::Generation)
                    }
                    _ => return want,
                },
                _ => return want,
            };
            let _ = self.handle(input);
        }
    }

    fn place(&mut self, span: Span) -> Option<Place<'_>> {
        self.responder.memory(span.id)?.place(span.offset)
    }

    fn arrived(&mut self, bytes: usize) -> Result<(), CloseReason> {
        if let Want::Memory(span) = self.responder.want()
            && let Some(held) = self.responder.memory(span.id)
            && held.extent() < DEVICE_FROM
        {
            let (job, at) = (held.job, held.at(span.offset));
            if self.target.bug == Some(Bug::ByteNotPlaced) {
                self.target.arena[at + bytes - 1] = 0;
            }
            self.target.placed(job, at, bytes);
        }
        self.handle(Input::Arrived(bytes))
    }

    fn text(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        self.handle(Input::Text(bytes))
    }

    fn gather(&mut self, _: &mut Vectors) -> usize {
        0
    }

    fn wrote(&mut self, bytes: usize) -> Result<(), CloseReason> {
        self.handle(Input::Wrote(bytes))
    }
}
