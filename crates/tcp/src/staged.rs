//! The memory that a request of a peer was admitted to. Bytes for a device pass through host memory that a stage lends,
//! a chunk at a time, and the loop never waits for the device.

use std::sync::Arc;

use slackwater_base::Instant;
use slackwater_data_plane::protocol::{Admitted, ChunkRange, Span};
use slackwater_engine::{Access, Buffers, Stage, StageError, Staged};
use slackwater_net::ConnId;
use slackwater_trace::TraceSpan;
use slackwater_wire::data::Refusal;

use super::cursor::{Cursor, Place, SpanMemory};
use super::loop_state::Command;
use super::turn::Turn;

/// The memory of one request.
#[derive(Debug)]
pub(crate) struct AdmittedMemory {
    pub(crate) access: Arc<Access>,
    reach: Reach,
    /// Ends with the request, when nothing touches the memory any more.
    _trace: TraceSpan,
}

#[derive(Debug)]
enum Reach {
    Host(Buffers, Cursor),
    Device(Box<Device>),
}

#[derive(Debug)]
struct Device {
    stage: Arc<dyn Stage>,
    /// The chunk that payload fills, or is sent from. The cursor's memory is the loan's, so it is dropped first.
    chunk: Option<Chunk>,
    /// The loan of a chunk that is being filled.
    loan: Option<Staged>,
    /// A chunk that was fetched and is sent after the present one.
    fetched: Option<Staged>,
}

#[derive(Debug)]
struct Chunk {
    buffers: Buffers,
    cursor: Cursor,
    /// First byte, from the start of the request.
    offset: u64,
}

impl Chunk {
    fn new(buffers: Buffers, offset: u64) -> Option<Self> {
        Some(Self {
            buffers,
            cursor: Cursor::default(),
            offset,
        })
    }
}

impl AdmittedMemory {
    /// The memory under an access; refused for what neither the processor nor a stage reaches.
    pub(crate) fn of(access: Access, trace: TraceSpan) -> Result<Admitted<Self>, Refusal> {
        let memory = access.region().memory();
        if memory.location().is_host() {
            let access = Arc::new(access);
            let buffers = Buffers::shared(Arc::clone(&access));
            let reach = Reach::Host(buffers, Cursor::default());
            return Ok(Admitted {
                memory: Self {
                    access,
                    reach,
                    _trace: trace,
                },
                chunk_bytes: None,
            });
        }
        let stage = Arc::clone(memory.stage().ok_or(Refusal::Memory)?);
        let chunk_bytes = Some(stage.chunk_bytes() as u64);
        let device = Device {
            stage,
            chunk: None,
            loan: None,
            fetched: None,
        };
        Ok(Admitted {
            memory: Self {
                access: Arc::new(access),
                reach: Reach::Device(Box::new(device)),
                _trace: trace,
            },
            chunk_bytes,
        })
    }

    /// Lends host memory for a chunk; says whether there was any. Otherwise the connection is resumed once there is.
    pub(crate) fn lend(&mut self, chunk: Span, conn: ConnId, turn: &Turn<'_>) -> bool {
        let Reach::Device(device) = &mut self.reach else {
            return false;
        };
        let resume = turn.command_with(move |call| Command::Resume(conn, call));
        let lent = device
            .stage
            .lend(&self.access, chunk.bytes, Instant::NEVER, resume);
        let Some(staged) = lent else { return false };
        // SAFETY: the loan is that long and nobody else's; the buffers are dropped before it, in `store` or with the
        // device, whose fields are dropped in that order.
        let buffers = unsafe { Buffers::borrowed(staged.start().as_ptr(), chunk.bytes) };
        device.chunk = Chunk::new(buffers, chunk.offset);
        device.loan = Some(staged);
        true
    }

    /// Hands the chunk that was filled to the device.
    pub(crate) fn store(&mut self, id: u64, chunk: ChunkRange, conn: ConnId, turn: &Turn<'_>) {
        let Reach::Device(device) = &mut self.reach else {
            return;
        };
        device.chunk = None;
        let Some(staged) = device.loan.take() else {
            return;
        };
        let stored = turn.command_with(move |result| Command::Stored { conn, id, result });
        let access = Arc::clone(&self.access);
        device
            .stage
            .store(access, chunk.offset, staged, chunk.bytes, stored);
    }

    /// Asks the device for a chunk.
    pub(crate) fn fetch(&mut self, id: u64, chunk: ChunkRange, conn: ConnId, turn: &Turn<'_>) {
        let Reach::Device(device) = &mut self.reach else {
            return;
        };
        let fetched = turn.command_with(move |result: Result<Staged, StageError>| {
            Command::Fetched { conn, id, result }
        });
        let access = Arc::clone(&self.access);
        device
            .stage
            .fetch(access, chunk.offset, chunk.bytes, fetched);
    }

    /// A chunk has come out of the device.
    pub(crate) fn fetched(&mut self, staged: Staged) {
        if let Reach::Device(device) = &mut self.reach {
            device.fetched = Some(staged);
        }
    }

    /// The chunk that was fetched last is sent from now on.
    pub(crate) fn send(&mut self, chunk: ChunkRange) {
        if let Reach::Device(device) = &mut self.reach {
            let staged = device.fetched.take();
            let buffers =
                staged.map(|staged| Buffers::staged(staged, chunk.bytes, Arc::clone(&self.access)));
            device.chunk = buffers.and_then(|buffers| Chunk::new(buffers, chunk.offset));
        }
    }

    /// The chunk was sent.
    pub(crate) fn sent(&mut self) {
        if let Reach::Device(device) = &mut self.reach {
            device.chunk = None;
        }
    }
}

impl SpanMemory for AdmittedMemory {
    fn place(&mut self, offset: u64) -> Option<Place<'_>> {
        match &mut self.reach {
            Reach::Host(buffers, cursor) => Some(Place {
                buffers,
                cursor,
                offset,
            }),
            Reach::Device(device) => device.chunk.as_mut().map(|chunk| Place {
                buffers: &chunk.buffers,
                cursor: &mut chunk.cursor,
                offset: offset - chunk.offset,
            }),
        }
    }
}
