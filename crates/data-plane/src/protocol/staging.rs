//! Requests on memory that the processor cannot reach: which chunk is where on its way between the connection and the
//! device.

/// The part of a request that one chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRange {
    /// First byte, from the start of the request.
    pub offset: u64,
    /// Length.
    pub bytes: usize,
}

/// A write whose payload goes to a device.
#[derive(Debug)]
pub(super) struct StagedWrite {
    bytes: u64,
    chunk_bytes: u64,
    /// Payload that was handed to the device.
    handed: u64,
    /// Bytes of the chunk that is being filled; none while no memory is lent for it.
    filled: Option<usize>,
    /// Copies to the device that are under way.
    storing: u32,
    /// The last byte of the payload has arrived.
    complete: bool,
}

/// A read whose payload comes from a device: one chunk is on the wire while the next is fetched.
#[derive(Debug)]
pub(super) struct StagedRead {
    bytes: u64,
    chunk_bytes: u64,
    /// Up to here chunks were asked for.
    asked: u64,
    /// Up to here they were handed to the wire.
    handed: u64,
    /// A copy out of the device is under way.
    fetching: bool,
    /// A chunk waits for the one before it to be sent.
    ready: bool,
    /// A chunk is on the wire.
    sending: bool,
}

fn chunk(offset: u64, bytes: u64, chunk_bytes: u64) -> ChunkRange {
    ChunkRange {
        offset,
        bytes: (bytes - offset).min(chunk_bytes) as usize,
    }
}

impl StagedWrite {
    pub(super) fn new(bytes: u64, chunk_bytes: u64) -> Self {
        Self {
            bytes,
            chunk_bytes,
            handed: 0,
            filled: None,
            storing: 0,
            complete: false,
        }
    }

    /// Bytes of payload that have arrived.
    pub(super) fn received(&self) -> u64 {
        self.handed + self.filled.unwrap_or(0) as u64
    }

    /// Whether the last byte of the payload has come.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Copies to the device that are under way.
    pub(super) fn storing(&self) -> u32 {
        self.storing
    }

    /// The chunk that the next payload belongs to; an error while no memory is lent for it.
    pub(super) fn room(&self) -> Result<ChunkRange, ChunkRange> {
        let whole = chunk(self.handed, self.bytes, self.chunk_bytes);
        let filled = self.filled.ok_or(whole)?;
        Ok(ChunkRange {
            offset: whole.offset + filled as u64,
            bytes: whole.bytes - filled,
        })
    }

    /// Memory is lent for the chunk.
    pub(super) fn lent(&mut self) {
        self.filled = Some(0);
    }

    /// Payload has arrived in the chunk; returns the chunk once it is full and goes to the device.
    pub(super) fn arrived(&mut self, bytes: usize) -> Option<ChunkRange> {
        let whole = chunk(self.handed, self.bytes, self.chunk_bytes);
        let filled = self.filled? + bytes;
        self.filled = Some(filled);
        if filled < whole.bytes {
            return None;
        }
        self.filled = None;
        self.handed += whole.bytes as u64;
        self.storing += 1;
        Some(whole)
    }

    /// The payload is complete; says whether the device has all of it.
    pub(super) fn finish(&mut self) -> bool {
        self.complete = true;
        self.storing == 0
    }

    /// A copy to the device has ended; says whether all is done.
    pub(super) fn stored(&mut self) -> bool {
        self.storing -= 1;
        self.complete && self.storing == 0
    }
}

impl StagedRead {
    pub(super) fn new(bytes: u64, chunk_bytes: u64) -> Self {
        Self {
            bytes,
            chunk_bytes,
            asked: 0,
            handed: 0,
            fetching: false,
            ready: false,
            sending: false,
        }
    }

    /// The next chunk to be copied out of the device, if there is one.
    pub(super) fn fetch(&mut self) -> Option<ChunkRange> {
        let next = chunk(self.asked, self.bytes, self.chunk_bytes);
        if next.bytes == 0 {
            return None;
        }
        self.asked += next.bytes as u64;
        self.fetching = true;
        Some(next)
    }

    /// Whether a copy out of the device is under way.
    pub(super) fn is_fetching(&self) -> bool {
        self.fetching
    }

    /// A copy out of the device has ended.
    pub(super) fn fetched(&mut self) {
        (self.fetching, self.ready) = (false, true);
    }

    /// The copy of a chunk out of the device has failed.
    pub(super) fn failed(&mut self) {
        self.fetching = false;
    }

    /// The last chunk was sent.
    pub(super) fn sent(&mut self) {
        self.sending = false;
    }

    /// The chunk to send now, and whether others follow it; none while there is nothing to send.
    pub(super) fn next(&mut self) -> Option<(ChunkRange, bool)> {
        if self.sending || !self.ready {
            return None;
        }
        let next = chunk(self.handed, self.bytes, self.chunk_bytes);
        (self.sending, self.ready) = (true, false);
        self.handed += next.bytes as u64;
        Some((next, self.handed < self.bytes))
    }
}
