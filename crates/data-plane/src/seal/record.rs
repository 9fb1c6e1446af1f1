//! Sealed records: `length u32, ciphertext, tag`. The length is in the clear and authenticated; the nonce is the number
//! of the record in its direction, so one that is changed, repeated, left out or moved does not open.

use std::fmt;
use std::ops::Range;

use zeroize::Zeroizing;

use super::aead::{AeadKey, Cipher, NONCE_BYTES, TAG_BYTES};
use super::{SealError, expand};

/// The key of one direction.
pub struct RecordKey {
    /// The key itself.
    pub secret: Zeroizing<[u8; 32]>,
    /// What it is a key of.
    pub cipher: Cipher,
}

/// Seals what goes out.
#[derive(Debug)]
pub struct Sealer {
    direction: Direction,
    pending: Vec<u8>,
    written: usize,
}

/// Opens what comes in.
#[derive(Debug)]
pub struct Opener {
    direction: Direction,
    buffer: Vec<u8>,
    /// What of the buffer is not opened yet.
    rest: Range<usize>,
}

/// Seals what goes out over a socket that keeps packets apart, one record a packet.
#[derive(Debug)]
pub struct PacketSealer {
    direction: Direction,
    packet: Vec<u8>,
}

/// Opens such packets.
#[derive(Debug)]
pub struct PacketOpener {
    direction: Direction,
}

/// One direction of a connection, and how far it is.
struct Direction {
    key: RecordKey,
    /// The nonces are the numbers of the records under it.
    aead: AeadKey,
    count: u64,
}

/// Plain bytes of one record.
pub const RECORD_BYTES_MAX: usize = 64 << 10;
const LENGTH_BYTES: usize = 4;
/// By so much a sealed packet is longer than its text.
pub const PACKET_OVERHEAD: usize = LENGTH_BYTES + TAG_BYTES;
/// Bytes of a connection whose peer has proven nothing.
const PROOF_SPACE: usize = 4 << 10;
const WIRE_BYTES_MAX: usize = LENGTH_BYTES + RECORD_BYTES_MAX + TAG_BYTES;
/// Sealed bytes that wait for the kernel before more are sealed.
const PENDING_BYTES: usize = 256 << 10;
/// A key seals 16 GiB, well within what GCM may with one (RFC 8446, section 5.5); then the next follows from it.
const RECORDS_PER_KEY: u64 = 1 << 18;

impl Sealer {
    /// Sends `first` unsealed, and seals everything after it.
    pub fn after(key: RecordKey, first: Vec<u8>) -> Self {
        Self {
            direction: Direction::new(key),
            pending: first,
            written: 0,
        }
    }

    /// Begins with an empty record, which proves that its sender has the key.
    pub fn first(key: RecordKey) -> Self {
        let mut sealer = Self::after(key, Vec::new());
        sealer.seal(|_| {});
        sealer
    }

    /// Bytes for the kernel.
    pub fn pending(&self) -> &[u8] {
        &self.pending[self.written..]
    }

    /// Whether it is time to hand over what is pending.
    pub fn is_full(&self) -> bool {
        self.pending().len() >= PENDING_BYTES
    }

    /// The kernel has taken `count` bytes.
    pub fn wrote(&mut self, count: usize) {
        self.written += count;
        if self.written == self.pending.len() {
            self.pending.clear();
            self.written = 0;
        }
    }

    /// Seals what `append` adds to the bytes it is given, at most [`RECORD_BYTES_MAX`] of it, as one record; says how long
    /// that is. Nothing is an empty record.
    pub fn seal(&mut self, append: impl FnOnce(&mut Vec<u8>)) -> usize {
        self.pending.drain(..std::mem::take(&mut self.written));
        let start = self.pending.len();
        self.pending.extend_from_slice(&[0; LENGTH_BYTES]);
        let text_at = start + LENGTH_BYTES;
        append(&mut self.pending);
        let bytes = self.pending.len() - text_at;
        assert!(bytes <= RECORD_BYTES_MAX, "a record of {bytes} bytes");
        let length = (bytes as u32).to_le_bytes();
        let (head, text) = self.pending.split_at_mut(text_at);
        head[start..].copy_from_slice(&length);
        let tag = self.direction.seal(length, text);
        self.pending.extend_from_slice(&tag);
        bytes
    }
}

impl Opener {
    /// For records of a peer that has not proven itself: there is room for its proof alone until that has opened.
    pub fn new(key: RecordKey) -> Self {
        Self {
            direction: Direction::new(key),
            buffer: vec![0; PROOF_SPACE],
            rest: 0..0,
        }
    }

    /// For records of a peer that has proven itself.
    pub fn proven(key: RecordKey) -> Self {
        Self {
            buffer: vec![0; 2 * WIRE_BYTES_MAX],
            ..Self::new(key)
        }
    }

    /// Where the next bytes of the connection belong; there is room, since a record that is whole was opened before, but
    /// for a first record that is no proof.
    pub fn space(&mut self) -> &mut [u8] {
        if self.buffer.len() == PROOF_SPACE && self.direction.count > 0 {
            self.buffer.resize(2 * WIRE_BYTES_MAX, 0);
        }
        if self.rest.is_empty() || self.buffer.len() - self.rest.end < WIRE_BYTES_MAX {
            self.buffer.copy_within(self.rest.clone(), 0);
            self.rest = 0..self.rest.len();
        }
        &mut self.buffer[self.rest.end..]
    }

    /// `count` bytes were received.
    pub fn received(&mut self, count: usize) {
        self.rest.end += count;
    }

    /// The plain bytes of the next record; none while it is not all there.
    pub fn open_next(&mut self) -> Result<Option<&[u8]>, SealError> {
        let waiting = &mut self.buffer[self.rest.clone()];
        let Some((length, sealed)) = waiting.split_first_chunk_mut::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let bytes = u32::from_le_bytes(*length) as usize;
        if bytes > RECORD_BYTES_MAX {
            return Err(SealError::Record);
        }
        let Some(record) = sealed.get_mut(..bytes + TAG_BYTES) else {
            return Ok(None);
        };
        if !self.direction.open(*length, record) {
            return Err(SealError::Record);
        }
        let start = self.rest.start + LENGTH_BYTES;
        self.rest.start = start + bytes + TAG_BYTES;
        Ok(Some(&self.buffer[start..start + bytes]))
    }
}

impl PacketSealer {
    /// For the packets of one direction.
    pub fn new(key: RecordKey) -> Self {
        Self {
            direction: Direction::new(key),
            packet: Vec::new(),
        }
    }

    /// The parts as one packet of at most [`RECORD_BYTES_MAX`]. Its number is taken by [`PacketSealer::sent`]; a packet
    /// that could not be sent has not left this process, and the next one gets its number.
    pub fn seal(&mut self, parts: &[&[u8]]) -> &[u8] {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        assert!(bytes <= RECORD_BYTES_MAX, "a packet of {bytes} bytes");
        let length = (bytes as u32).to_le_bytes();
        self.packet.clear();
        self.packet.extend_from_slice(&length);
        parts
            .iter()
            .for_each(|part| self.packet.extend_from_slice(part));
        let nonce = self.direction.nonce();
        let text = &mut self.packet[LENGTH_BYTES..];
        let tag = self.direction.aead.seal(nonce, &length, text);
        self.packet.extend_from_slice(&tag);
        &self.packet
    }

    /// The last packet has gone out.
    pub fn sent(&mut self) {
        self.direction.count += 1;
    }
}

impl PacketOpener {
    /// For the packets of one direction.
    pub fn new(key: RecordKey) -> Self {
        Self {
            direction: Direction::new(key),
        }
    }

    /// Opens a packet in place; says where in it the text is.
    pub fn open(&mut self, packet: &mut [u8]) -> Result<Range<usize>, SealError> {
        let bytes = packet.len().checked_sub(PACKET_OVERHEAD);
        let (length, record) = packet
            .split_first_chunk_mut::<LENGTH_BYTES>()
            .ok_or(SealError::Record)?;
        if bytes != Some(u32::from_le_bytes(*length) as usize)
            || !self.direction.open(*length, record)
        {
            return Err(SealError::Record);
        }
        let end = LENGTH_BYTES + record.len() - TAG_BYTES;
        Ok(LENGTH_BYTES..end)
    }
}

impl Direction {
    fn new(key: RecordKey) -> Self {
        let aead = AeadKey::new(key.cipher, &key.secret);
        Self {
            key,
            aead,
            count: 0,
        }
    }

    fn seal(&mut self, length: [u8; LENGTH_BYTES], text: &mut [u8]) -> [u8; TAG_BYTES] {
        let nonce = self.next_nonce();
        self.aead.seal(nonce, &length, text)
    }

    /// Opens a ciphertext with its tag, in place; on failure the bytes are undefined.
    fn open(&mut self, length: [u8; LENGTH_BYTES], record: &mut [u8]) -> bool {
        let nonce = self.next_nonce();
        record
            .split_last_chunk_mut()
            .is_some_and(|(text, tag)| self.aead.open(nonce, &length, text, tag))
    }

    /// The number of the next record, which is then taken.
    fn next_nonce(&mut self) -> [u8; NONCE_BYTES] {
        let nonce = self.nonce();
        self.count += 1;
        nonce
    }

    /// The number of the next record under its key.
    fn nonce(&mut self) -> [u8; NONCE_BYTES] {
        if self.count == RECORDS_PER_KEY {
            self.key.secret = expand(&self.key.secret, b"next");
            self.aead = AeadKey::new(self.key.cipher, &self.key.secret);
            self.count = 0;
        }
        let mut nonce = [0; NONCE_BYTES];
        nonce[..8].copy_from_slice(&self.count.to_le_bytes());
        nonce
    }
}

impl fmt::Debug for Direction {
    /// Prints without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direction")
            .field("cipher", &self.key.cipher)
            .field("count", &self.count)
            .finish()
    }
}

#[cfg(test)]
mod tests;
