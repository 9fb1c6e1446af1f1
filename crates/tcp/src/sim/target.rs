//! The target: memory in extents, capabilities, and a responder for each connection.

mod server;

use std::rc::Rc;
use std::sync::Arc;

use slackwater_base::Instant;
use slackwater_data_plane::protocol::{Admitted, ChunkRange};
use slackwater_engine::{
    Access, Buffers, Extent, Gate, Location, Memory, RegionId, RegionSpec, Regions, Revocation,
};
use slackwater_wire::Incarnation;
use slackwater_wire::data::{
    Capability, CapabilityKey, Features, Grant, Greeting, HANDSHAKE_BYTES, Op, Refusal, Rights,
    VERSION,
};

use super::Bug;
use super::gate::SimulatedGate;
use super::ledger::Ledger;
use crate::cursor::{Cursor, Place, SpanMemory};
use crate::lender::Lender;

pub(super) use server::Server;

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
    regions: Regions,
    region: RegionId,
    gate: Arc<SimulatedGate>,
    /// What each extent is lent as, or was before it was fenced.
    pub(super) extents: Vec<Extent>,
    /// The memory of the region.
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

/// A copy between a chunk and the device.
pub(super) struct Copy {
    pub(super) conn: u64,
    pub(super) request: u64,
    job: usize,
    into_device: bool,
    at: usize,
    chunk: Box<[u8]>,
    _access: Option<Arc<Access>>,
    _loan: Option<Rc<()>>,
}

/// The memory of one request.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) job: usize,
    grant: Grant,
    rotations: u64,
    pub(super) access: Arc<Access>,
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

pub(super) fn greeting(incarnation: Incarnation, expects: Incarnation) -> Greeting {
    Greeting {
        version_min: VERSION,
        version_max: VERSION,
        features: Features::TRACED,
        incarnation,
        expects,
        frame_bytes_max: 64 << 10,
        requests_max: 8,
        in_flight_bytes_max: 64 << 20,
        handshake: [0; HANDSHAKE_BYTES],
    }
}

impl Target {
    pub(super) fn new(bug: Option<Bug>) -> Self {
        let mut arena: Box<[u8]> = vec![0; EXTENTS * EXTENT_BYTES].into();
        let start = std::ptr::NonNull::from(&mut arena[0]);
        // SAFETY: the arena is as long as the world, and only one thread touches it.
        let memory = unsafe { Memory::borrowed(start, arena.len(), Location::Host) };
        let gate = Arc::new(SimulatedGate {
            lender: Lender::default(),
            bug,
        });
        let regions = Regions::default();
        let spec = RegionSpec {
            memory,
            rights: Rights::BOTH,
            gate: Some(Arc::clone(&gate) as Arc<dyn Gate>),
        };
        let region = regions.register(spec).expect("it is the only region");
        let lend = |extent| {
            gate.lender
                .lend((extent * EXTENT_BYTES) as u64, EXTENT_BYTES as u64)
        };
        let mut target = Self {
            incarnation: Incarnation(1),
            key: CapabilityKey::new(&[1; 32]),
            rotations: 0,
            region: region.id(),
            regions,
            extents: (0..EXTENTS).map(lend).collect(),
            gate,
            arena,
            copies: Vec::new(),
            chunks: Rc::new(()),
            ledger: Ledger::new(EXTENTS * EXTENT_BYTES),
            now: Instant::from_nanos(1),
            step: 0,
            bug,
            found: None,
        };
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
            region: self.region.index(),
            generation: self.extents[extent].generation,
            offset: self.extents[extent].offset,
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
        let offset = self.extents[extent].offset;
        self.extents[extent] = self.gate.lender.lend(offset, EXTENT_BYTES as u64);
        let generation = self.extents[extent].generation;
        let range = extent * EXTENT_BYTES..(extent + 1) * EXTENT_BYTES;
        self.arena[range.clone()].fill(0);
        self.ledger.reused(range, generation, self.step);
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
        (0..EXTENTS).for_each(|extent| self.reuse(extent));
        self.rotate();
    }

    /// Makes an extent dead; returns what is to be released.
    pub(super) fn fence(&mut self, extent: usize) -> Revocation {
        self.gate.lender.fence(self.extents[extent]);
        Revocation {
            region: self.region,
            extent: (self.bug != Some(Bug::NeighboursReleased)).then_some(self.extents[extent]),
        }
    }

    pub(super) fn is_fenced(&self, extent: usize) -> bool {
        self.gate
            .lender
            .live_at(self.extents[extent].offset)
            .is_none()
    }

    /// Whether no access to an extent is under way.
    pub(super) fn is_drained(&self, extent: usize) -> bool {
        self.gate.lender.is_idle(self.extents[extent])
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
        let access = Arc::new(self.regions.admit(&grant, op.right(), range)?);
        let held = Held {
            job: grant.nonce as usize,
            grant,
            rotations: self.rotations,
            buffers: Buffers::shared(Arc::clone(&access)),
            access,
            cursor: Cursor::default(),
            chunk: None,
            fetched: None,
        };
        Ok(Admitted {
            chunk_bytes: (held.extent() >= DEVICE_FROM).then_some(CHUNK_BYTES),
            memory: held,
        })
    }

    /// Whether what is done under a right counts.
    fn confirm(&self, held: &Held) -> Result<(), Refusal> {
        if !held.access.is_live() {
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
        self.grant.offset as usize / EXTENT_BYTES
    }

    fn at(&self, offset: u64) -> usize {
        (self.access.offset() + offset) as usize
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
        let access = (self.bug != Some(Bug::CopyWithoutAccess)).then(|| Arc::clone(&held.access));
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
            _access: access,
            _loan: loan,
        }
    }

    /// Whether a chunk can be lent.
    pub(super) fn has_room(&self) -> bool {
        Rc::strong_count(&self.chunks) <= CHUNKS
    }
}
