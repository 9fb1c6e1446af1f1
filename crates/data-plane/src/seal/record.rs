//! Sealed records: `length u32, ciphertext, tag`. The length is in the clear and authenticated; the nonce is the number
//! of the record in its direction, so one that is changed, repeated, left out or moved does not open.

use std::fmt;
use std::ops::Range;

use aws_lc_rs::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, Tag, UnboundKey};
use zeroize::Zeroizing;

use super::{SealError, expand};

/// How records are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-256-GCM (NIST SP 800-38D).
    Aes,
    /// ChaCha20-Poly1305 (RFC 8439), where a processor has no instructions for the other.
    ChaCha,
}

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
    /// Less safe since it leaves the nonces to us: they are the numbers of the records under the key.
    aead: LessSafeKey,
    count: u64,
}

/// Plain bytes of one record.
pub const RECORD_BYTES_MAX: usize = 64 << 10;
const LENGTH_BYTES: usize = 4;
const TAG_BYTES: usize = 16;
/// By so much a sealed packet is longer than its text.
pub const PACKET_OVERHEAD: usize = LENGTH_BYTES + TAG_BYTES;
/// Bytes of a connection whose peer has proven nothing.
const PROOF_SPACE: usize = 4 << 10;
const WIRE_BYTES_MAX: usize = LENGTH_BYTES + RECORD_BYTES_MAX + TAG_BYTES;
/// Sealed bytes that wait for the kernel before more are sealed.
const PENDING_BYTES: usize = 256 << 10;
/// A key seals 16 GiB, well within what GCM may with one (RFC 8446, section 5.5); then the next follows from it.
const RECORDS_PER_KEY: u64 = 1 << 18;

impl Cipher {
    /// Whether this processor has the instructions.
    pub fn has_aes() -> bool {
        #[cfg(target_arch = "x86_64")]
        return std::arch::is_x86_feature_detected!("aes")
            && std::arch::is_x86_feature_detected!("pclmulqdq");
        #[cfg(not(target_arch = "x86_64"))]
        false
    }
}

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
        self.pending.extend_from_slice(tag.as_ref());
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
        let tag = self.direction.seal_as(nonce, length, text);
        self.packet.extend_from_slice(tag.as_ref());
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
        let aead = key.cipher();
        Self {
            key,
            aead,
            count: 0,
        }
    }

    fn seal(&mut self, length: [u8; LENGTH_BYTES], text: &mut [u8]) -> Tag {
        let nonce = self.next_nonce();
        self.seal_as(nonce, length, text)
    }

    fn seal_as(&self, nonce: Nonce, length: [u8; LENGTH_BYTES], text: &mut [u8]) -> Tag {
        self.aead
            .seal_in_place_separate_tag(nonce, Aad::from(length), text)
            .expect("a record is far below the 64 GiB that GCM takes")
    }

    /// Opens a ciphertext with its tag, in place; on failure the bytes are undefined.
    fn open(&mut self, length: [u8; LENGTH_BYTES], record: &mut [u8]) -> bool {
        let nonce = self.next_nonce();
        self.aead
            .open_in_place(nonce, Aad::from(length), record)
            .is_ok()
    }

    /// The number of the next record, which is then taken.
    fn next_nonce(&mut self) -> Nonce {
        let nonce = self.nonce();
        self.count += 1;
        nonce
    }

    /// The number of the next record under its key.
    fn nonce(&mut self) -> Nonce {
        if self.count == RECORDS_PER_KEY {
            self.key.secret = expand(&self.key.secret, b"next");
            self.aead = self.key.cipher();
            self.count = 0;
        }
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.count.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

impl RecordKey {
    fn cipher(&self) -> LessSafeKey {
        let algorithm = match self.cipher {
            Cipher::Aes => &AES_256_GCM,
            Cipher::ChaCha => &CHACHA20_POLY1305,
        };
        let key = UnboundKey::new(algorithm, self.secret.as_slice());
        LessSafeKey::new(key.expect("both ciphers have keys of 32 bytes"))
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
mod tests {
    use super::*;

    fn ends(cipher: Cipher) -> (Sealer, Opener) {
        let key = || RecordKey {
            secret: Zeroizing::new([5; 32]),
            cipher,
        };
        (Sealer::after(key(), Vec::new()), Opener::proven(key()))
    }

    fn record(sealer: &mut Sealer, text: &[u8]) -> Vec<u8> {
        let taken = sealer.seal(|record| record.extend_from_slice(text));
        assert_eq!(taken, text.len());
        let bytes = sealer.pending().to_vec();
        sealer.wrote(bytes.len());
        bytes
    }

    fn arrive(opener: &mut Opener, bytes: &[u8]) {
        opener.space()[..bytes.len()].copy_from_slice(bytes);
        opener.received(bytes.len());
    }

    #[test]
    fn records_open_in_order_whole_or_in_pieces() {
        for cipher in [Cipher::Aes, Cipher::ChaCha] {
            let (mut sealer, mut opener) = ends(cipher);
            for bytes in [0, 1, 17, RECORD_BYTES_MAX - 1, RECORD_BYTES_MAX, 5] {
                let text: Vec<u8> = (0..bytes).map(|index| index as u8).collect();
                let sealed = record(&mut sealer, &text);
                let (first, second) = sealed.split_at(sealed.len() / 3);
                arrive(&mut opener, first);
                assert_eq!(opener.open_next(), Ok(None));
                arrive(&mut opener, second);
                assert_eq!(opener.open_next(), Ok(Some(text.as_slice())));
            }
        }
    }

    /// A connection took 128 KiB as soon as its peer had greeted, before the peer had proven anything.
    #[test]
    fn a_peer_has_little_room_before_its_proof_has_opened() {
        let key = || RecordKey {
            secret: Zeroizing::new([5; 32]),
            cipher: Cipher::ChaCha,
        };
        let (mut sealer, mut opener) = (Sealer::after(key(), Vec::new()), Opener::new(key()));
        assert_eq!(opener.space().len(), PROOF_SPACE);
        // The start of the second record comes with the first one.
        let (proof, text) = (record(&mut sealer, b""), vec![7; RECORD_BYTES_MAX]);
        let second = record(&mut sealer, &text);
        let (with_proof, rest) = second.split_at(PROOF_SPACE - proof.len());
        arrive(&mut opener, &[&proof, with_proof].concat());
        assert!(
            opener.space().is_empty(),
            "what is not opened takes no more"
        );
        assert_eq!(opener.open_next(), Ok(Some(&b""[..])));
        assert_eq!(opener.open_next(), Ok(None));
        arrive(&mut opener, rest);
        assert_eq!(opener.open_next(), Ok(Some(text.as_slice())));
    }

    /// A record may not depend on which library seals it.
    #[test]
    fn records_are_those_of_other_libraries() {
        // From RustCrypto's aes-gcm 0.10 and from ring 0.17.
        let known = [
            (
                Cipher::Aes,
                "140000007d9a30f0a921ea3eb65467024db1caaf4bc0c9c3ab758a5e8e8167bc130abefa496960cb",
            ),
            (
                Cipher::ChaCha,
                "14000000a541fb4bda503557fd8097900ee070f61dae979d2247d069cb90372a80eba4b4969090d0",
            ),
        ];
        for (cipher, expected) in known {
            let sealed = record(&mut ends(cipher).0, b"twenty bytes of text");
            let found: String = sealed.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, expected, "{cipher:?}");
        }
    }

    #[test]
    fn what_is_changed_repeated_or_left_out_does_not_open() {
        for cipher in [Cipher::Aes, Cipher::ChaCha] {
            let sealed = record(&mut ends(cipher).0, b"twenty bytes of text");
            for bit in 0..sealed.len() * 8 {
                let (mut opener, mut changed) = (ends(cipher).1, sealed.clone());
                changed[bit / 8] ^= 1 << (bit % 8);
                arrive(&mut opener, &changed);
                // With a longer length the opener waits for more bytes, and the record fails then.
                let opened = opener.open_next().map(|text| text.map(<[u8]>::to_vec));
                assert!(
                    matches!(opened, Err(SealError::Record) | Ok(None)),
                    "{cipher:?}, bit {bit}"
                );
            }
            let (mut sealer, mut opener) = ends(cipher);
            let (first, second) = (
                record(&mut sealer, b"first"),
                record(&mut sealer, b"second"),
            );
            arrive(&mut opener, &[first.as_slice(), &first].concat());
            assert_eq!(opener.open_next(), Ok(Some(b"first".as_slice())));
            assert_eq!(opener.open_next(), Err(SealError::Record));
            let mut opener = ends(cipher).1;
            arrive(&mut opener, &second);
            assert_eq!(opener.open_next(), Err(SealError::Record));
        }
    }

    fn packet_ends() -> (PacketSealer, PacketOpener) {
        let key = || RecordKey {
            secret: Zeroizing::new([5; 32]),
            cipher: Cipher::ChaCha,
        };
        (PacketSealer::new(key()), PacketOpener::new(key()))
    }

    #[test]
    fn a_packet_is_one_record_and_one_that_was_not_sent_has_no_number() {
        let (mut sealer, mut opener) = packet_ends();
        let mut exchange = |parts: &[&[u8]]| {
            let mut packet = sealer.seal(parts).to_vec();
            sealer.sent();
            let text = opener.open(&mut packet)?;
            Ok::<_, SealError>(packet[text].to_vec())
        };
        assert_eq!(exchange(&[b"one", b" packet"]).unwrap(), b"one packet");
        assert_eq!(exchange(&[]).unwrap(), b"");
        let long = vec![7; RECORD_BYTES_MAX];
        assert_eq!(exchange(&[&long]).unwrap(), long);
        let stream = record(&mut ends(Cipher::ChaCha).0, b"twenty bytes of text");
        let (mut sealer, mut opener) = packet_ends();
        assert_eq!(sealer.seal(&[b"twenty bytes of text"]), stream);
        // The socket was full: another question goes out in its place.
        let mut other = sealer.seal(&[b"other"]).to_vec();
        sealer.sent();
        assert!(opener.open(&mut other).is_ok());
    }

    #[test]
    fn a_packet_that_was_changed_cut_repeated_or_left_out_does_not_open() {
        let (mut sealer, _) = packet_ends();
        let first = sealer.seal(&[b"first"]).to_vec();
        sealer.sent();
        let second = sealer.seal(&[b"second"]).to_vec();
        let check = |packets: &[&[u8]], opened: usize| {
            let mut opener = packet_ends().1;
            let opens = |packet: &&&[u8]| opener.open(&mut packet.to_vec()).is_ok();
            assert_eq!(packets.iter().take_while(opens).count(), opened);
        };
        check(&[&first, &second], 2);
        check(&[&first, &first], 1);
        check(&[&second], 0);
        for bytes in 0..first.len() {
            check(&[&first[..bytes]], 0);
        }
        for bit in 0..first.len() * 8 {
            let mut changed = first.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            check(&[&changed], 0);
        }
        check(&[&[first.as_slice(), &second].concat()], 0);
    }

    #[test]
    fn both_ends_of_packets_take_the_next_key_at_the_same_packet() {
        let (mut sealer, mut opener) = packet_ends();
        sealer.direction.count = RECORDS_PER_KEY - 1;
        opener.direction.count = RECORDS_PER_KEY - 1;
        for text in [b"last".as_slice(), b"first of the next", b"second"] {
            // The second time is that which goes out.
            sealer.seal(&[b"not sent"]);
            let mut packet = sealer.seal(&[text]).to_vec();
            sealer.sent();
            let found = opener.open(&mut packet).unwrap();
            assert_eq!(&packet[found], text);
        }
        assert_eq!(sealer.direction.count, 2);
    }

    #[test]
    fn both_ends_take_the_next_key_at_the_same_record() {
        let (mut sealer, mut opener) = ends(Cipher::ChaCha);
        sealer.direction.count = RECORDS_PER_KEY - 1;
        opener.direction.count = RECORDS_PER_KEY - 1;
        for text in [b"last".as_slice(), b"first of the next", b"second"] {
            arrive(&mut opener, &record(&mut sealer, text));
            assert_eq!(opener.open_next(), Ok(Some(text)));
        }
        assert_ne!(*sealer.direction.key.secret, [5; 32]);
        assert_eq!(sealer.direction.count, 2);
    }
}
