//! Requests of a peer on device memory of this process: their bytes pass through host memory that a stage lends, a chunk
//! at a time, and the loop never waits for the device.

use std::sync::Arc;

use slackwater_base::Instant;
use slackwater_net::ConnId;

use super::cursor::Cursor;
use super::loop_state::Command;
use super::turn::Turn;
use crate::job::Buffers;
use crate::memory::{Stage, StageError, Staged};
use crate::region::{Access, RegionId};

/// A request's device memory, and the connection that it came on.
#[derive(Clone, Debug)]
pub(crate) struct DeviceRange {
    stage: Arc<dyn Stage>,
    access: Arc<Access>,
}

/// A write whose payload goes to a device.
#[derive(Debug)]
pub(crate) struct StagedWrite {
    range: DeviceRange,
    /// Payload that was handed to the device.
    handed: u64,
    chunk: Option<Chunk>,
    /// Copies to the device that are under way.
    storing: u32,
    /// The last byte of the payload has arrived.
    complete: bool,
}

/// Lent host memory that is being filled.
#[derive(Debug)]
struct Chunk {
    cursor: Cursor,
    staged: Staged,
}

/// A read whose payload comes from a device: one chunk is on the wire while the next is fetched.
#[derive(Debug)]
pub(crate) struct StagedRead {
    range: DeviceRange,
    /// Up to here chunks were asked for.
    asked: u64,
    /// Up to here they were handed to the wire.
    handed: u64,
    /// A copy out of the device is under way.
    fetching: bool,
    /// A chunk that waits for the one before it to be sent.
    ready: Option<Staged>,
    /// A chunk is on the wire.
    sending: bool,
    pub(crate) urgent: bool,
}

/// What follows a step of a staged request.
#[derive(Debug)]
pub(crate) enum Next {
    /// Nothing yet.
    Wait,
    /// Send this part of the payload, from byte `base` of the request on; `more` says whether parts follow.
    Send {
        cursor: Cursor,
        base: u64,
        more: bool,
    },
}

impl DeviceRange {
    /// The device memory of an access; none for what the processor reaches, or what has no stage.
    pub(crate) fn of(access: Access) -> Result<Self, Access> {
        let memory = access.region().memory();
        match memory
            .stage()
            .filter(|_| !memory.location().is_host())
            .map(Arc::clone)
        {
            Some(stage) => Ok(Self {
                stage,
                access: Arc::new(access),
            }),
            None => Err(access),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.access.bytes()
    }

    pub(crate) fn is_live(&self) -> bool {
        self.access.is_live()
    }

    pub(crate) fn is_of(&self, region: RegionId) -> bool {
        self.access.region().id() == region
    }

    /// The bytes of the chunk that begins at `at`.
    fn chunk_bytes(&self, at: u64) -> usize {
        (self.bytes() - at).min(self.stage.chunk_bytes() as u64) as usize
    }
}

impl StagedWrite {
    pub(crate) fn new(range: DeviceRange) -> Self {
        Self {
            range,
            handed: 0,
            chunk: None,
            storing: 0,
            complete: false,
        }
    }

    pub(crate) fn range(&self) -> &DeviceRange {
        &self.range
    }

    /// Bytes of payload that have arrived.
    pub(crate) fn received(&self) -> u64 {
        let filled = self
            .chunk
            .as_ref()
            .map_or(0, |chunk| chunk.staged.bytes() as u64 - chunk.cursor.left());
        self.handed + filled
    }

    pub(crate) fn cursor(&mut self) -> Option<&mut Cursor> {
        self.chunk.as_mut().map(|chunk| &mut chunk.cursor)
    }

    /// How many bytes of host memory the next chunk has left; none while the stage lends nothing, in which case the
    /// connection is resumed once it does.
    pub(crate) fn room(&mut self, conn: ConnId, turn: &Turn<'_>) -> Option<usize> {
        if let Some(chunk) = &self.chunk {
            return Some(chunk.cursor.left() as usize);
        }
        let bytes = self.range.chunk_bytes(self.handed);
        if bytes == 0 {
            return Some(0);
        }
        let resume = turn.command_with(move |call| Command::Resume(conn, call));
        let staged = self
            .range
            .stage
            .lend(&self.range.access, bytes, Instant::NEVER, resume)?;
        // SAFETY: the loan is that long and nobody else's; the cursor is dropped before it, in `hand_over` or with the
        // chunk, whose fields are dropped in that order.
        let buffers = unsafe { Buffers::borrowed(staged.start().as_ptr(), bytes) };
        self.chunk = Some(Chunk {
            cursor: Cursor::new(buffers),
            staged,
        });
        Some(bytes)
    }

    /// Hands the chunk to the device if it is full.
    pub(crate) fn hand_over(&mut self, id: u64, conn: ConnId, turn: &Turn<'_>) {
        let Some(Chunk { cursor, staged }) = self.chunk.take_if(|chunk| chunk.cursor.left() == 0)
        else {
            return;
        };
        drop(cursor);
        let (at, bytes) = (
            self.handed,
            staged.bytes().min(self.range.chunk_bytes(self.handed)),
        );
        self.handed += bytes as u64;
        self.storing += 1;
        let stored = turn.command_with(move |result| Command::Stored { conn, id, result });
        self.range
            .stage
            .store(Arc::clone(&self.range.access), at, staged, bytes, stored);
    }

    /// The payload is complete; says whether the device has all of it.
    pub(crate) fn finish(&mut self) -> bool {
        self.complete = true;
        self.storing == 0
    }

    /// Copies to the device that are under way.
    pub(crate) fn storing(&self) -> u32 {
        self.storing
    }

    /// Whether the last byte of the payload has come.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// A copy to the device has ended; says whether all is done.
    pub(crate) fn stored(&mut self) -> bool {
        self.storing -= 1;
        self.complete && self.storing == 0
    }
}

impl StagedRead {
    pub(crate) fn new(range: DeviceRange, urgent: bool) -> Self {
        Self {
            range,
            asked: 0,
            handed: 0,
            fetching: false,
            ready: None,
            sending: false,
            urgent,
        }
    }

    pub(crate) fn range(&self) -> &DeviceRange {
        &self.range
    }

    /// Asks the device for the next chunk, if there is one.
    pub(crate) fn fetch(&mut self, id: u64, conn: ConnId, turn: &Turn<'_>) {
        let bytes = self.range.chunk_bytes(self.asked);
        if bytes == 0 {
            return;
        }
        let at = self.asked;
        self.asked += bytes as u64;
        self.fetching = true;
        let fetched = turn.command_with(move |result: Result<Staged, StageError>| {
            Command::Fetched { conn, id, result }
        });
        self.range
            .stage
            .fetch(Arc::clone(&self.range.access), at, bytes, fetched);
    }

    /// A chunk is out of the device.
    pub(crate) fn fetched(
        &mut self,
        id: u64,
        staged: Staged,
        conn: ConnId,
        turn: &Turn<'_>,
    ) -> Next {
        self.fetching = false;
        if self.sending {
            self.ready = Some(staged);
            return Next::Wait;
        }
        self.send(id, staged, conn, turn)
    }

    /// The copy of a chunk out of the device has failed.
    pub(crate) fn failed(&mut self) {
        self.fetching = false;
    }

    /// Whether a copy out of the device is under way.
    pub(crate) fn is_fetching(&self) -> bool {
        self.fetching
    }

    /// The last chunk was handed to the kernel.
    pub(crate) fn sent(&mut self, id: u64, conn: ConnId, turn: &Turn<'_>) -> Next {
        self.sending = false;
        match self.ready.take() {
            Some(staged) => self.send(id, staged, conn, turn),
            None => Next::Wait,
        }
    }

    fn send(&mut self, id: u64, staged: Staged, conn: ConnId, turn: &Turn<'_>) -> Next {
        let base = self.handed;
        let bytes = self.range.chunk_bytes(base);
        self.handed += bytes as u64;
        self.sending = true;
        self.fetch(id, conn, turn);
        let buffers = Buffers::staged(staged, bytes, Arc::clone(&self.range.access));
        Next::Send {
            cursor: Cursor::new(buffers),
            base,
            more: self.handed < self.range.bytes(),
        }
    }
}
