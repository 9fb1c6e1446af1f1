//! Sealed records: `length u32, ciphertext, tag`. The length is in the clear and authenticated; the nonce is the number
//! of the record in its direction, so one that is changed, repeated, left out or moved does not open.

use std::fmt;
use std::ops::Range;

use aes_gcm::aead::AeadInPlace;
use aes_gcm::{Aes256Gcm, KeyInit};
use cryptoxide::chacha20poly1305::{Context, DecryptionResult};
use cryptoxide::poly1305::Tag;
use zeroize::Zeroizing;

use super::io::Vectors;
use super::seal::{SealError, expand};

/// How records are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cipher {
    /// AES-256-GCM (NIST SP 800-38D).
    Aes,
    /// ChaCha20-Poly1305 (RFC 8439), where a processor has no instructions for the other.
    ChaCha,
}

/// The key of one direction.
pub(crate) struct RecordKey {
    pub(crate) secret: Zeroizing<[u8; 32]>,
    pub(crate) cipher: Cipher,
}

/// Seals what goes out.
#[derive(Debug)]
pub(crate) struct Sealer {
    direction: Direction,
    pending: Vec<u8>,
    written: usize,
}

/// Opens what comes in.
#[derive(Debug)]
pub(crate) struct Opener {
    direction: Direction,
    buffer: Vec<u8>,
    /// What of the buffer is not opened yet.
    rest: Range<usize>,
}

/// One direction of a connection, and how far it is.
struct Direction {
    key: RecordKey,
    aead: Aead,
    count: u64,
}

enum Aead {
    Aes(Box<Aes256Gcm>),
    ChaCha,
}

/// Plain bytes of one record.
pub(crate) const RECORD_BYTES_MAX: usize = 64 << 10;
const LENGTH_BYTES: usize = 4;
const TAG_BYTES: usize = 16;
const WIRE_BYTES_MAX: usize = LENGTH_BYTES + RECORD_BYTES_MAX + TAG_BYTES;
/// Sealed bytes that wait for the kernel before more are sealed.
const PENDING_BYTES: usize = 256 << 10;
/// A key seals 16 GiB, well within what GCM may with one (RFC 8446, section 5.5); then the next follows from it.
const RECORDS_PER_KEY: u64 = 1 << 18;

impl Cipher {
    /// Whether this processor has the instructions.
    pub(crate) fn has_aes() -> bool {
        #[cfg(target_arch = "x86_64")]
        return std::arch::is_x86_feature_detected!("aes")
            && std::arch::is_x86_feature_detected!("pclmulqdq");
        #[cfg(not(target_arch = "x86_64"))]
        false
    }
}

impl Sealer {
    /// Sends `first` unsealed, and seals everything after it.
    pub(crate) fn after(key: RecordKey, first: Vec<u8>) -> Self {
        Self {
            direction: Direction::new(key),
            pending: first,
            written: 0,
        }
    }

    /// Begins with an empty record, which proves that its sender has the key.
    pub(crate) fn first(key: RecordKey) -> Self {
        let mut sealer = Self::after(key, Vec::new());
        // SAFETY: there are no ranges.
        unsafe { sealer.seal(&Vectors::new()) };
        sealer
    }

    /// Bytes for the kernel.
    pub(crate) fn pending(&self) -> &[u8] {
        &self.pending[self.written..]
    }

    /// Whether it is time to hand over what is pending.
    pub(crate) fn is_full(&self) -> bool {
        self.pending().len() >= PENDING_BYTES
    }

    /// The kernel has taken `count` bytes.
    pub(crate) fn wrote(&mut self, count: usize) {
        self.written += count;
        if self.written == self.pending.len() {
            self.pending.clear();
            self.written = 0;
        }
    }

    /// Seals the start of the ranges as one record; says how many bytes of them it is. No ranges are an empty record.
    ///
    /// # Safety
    /// Every range is valid for reads during the call.
    pub(crate) unsafe fn seal(&mut self, from: &Vectors) -> usize {
        self.pending.drain(..std::mem::take(&mut self.written));
        let start = self.pending.len();
        self.pending.extend_from_slice(&[0; LENGTH_BYTES]);
        let text_at = start + LENGTH_BYTES;
        for range in from {
            let room = RECORD_BYTES_MAX - (self.pending.len() - text_at);
            let take = range.iov_len.min(room);
            self.pending.reserve(take);
            // SAFETY: the source is valid by the caller's word; room for it was reserved, and the vector is our own. The
            // memory may be written by others meanwhile: only the copy is looked at.
            unsafe {
                let to = self.pending.as_mut_ptr().add(self.pending.len());
                std::ptr::copy_nonoverlapping(range.iov_base.cast_const().cast::<u8>(), to, take);
                self.pending.set_len(self.pending.len() + take);
            }
            if take < range.iov_len {
                break;
            }
        }
        let bytes = self.pending.len() - text_at;
        let length = (bytes as u32).to_le_bytes();
        let (head, text) = self.pending.split_at_mut(text_at);
        head[start..].copy_from_slice(&length);
        let tag = self.direction.seal(length, text);
        self.pending.extend_from_slice(&tag);
        bytes
    }
}

impl Opener {
    /// Begins with what was received behind the greeting.
    pub(crate) fn new(key: RecordKey) -> Self {
        Self {
            direction: Direction::new(key),
            buffer: vec![0; 2 * WIRE_BYTES_MAX],
            rest: 0..0,
        }
    }

    /// Where the next bytes of the connection belong; there is room, since a record that is whole was opened before.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.rest.is_empty() || self.buffer.len() - self.rest.end < WIRE_BYTES_MAX {
            self.buffer.copy_within(self.rest.clone(), 0);
            self.rest = 0..self.rest.len();
        }
        &mut self.buffer[self.rest.end..]
    }

    /// `count` bytes were received.
    pub(crate) fn received(&mut self, count: usize) {
        self.rest.end += count;
    }

    /// The plain bytes of the next record; none while it is not all there.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, SealError> {
        let waiting = &mut self.buffer[self.rest.clone()];
        let Some((length, sealed)) = waiting.split_first_chunk_mut::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let bytes = u32::from_le_bytes(*length) as usize;
        if bytes > RECORD_BYTES_MAX {
            return Err(SealError::Record);
        }
        let Some((text, behind)) = sealed.split_at_mut_checked(bytes) else {
            return Ok(None);
        };
        let Some(tag) = behind.first_chunk::<TAG_BYTES>() else {
            return Ok(None);
        };
        if !self.direction.open(*length, text, *tag) {
            return Err(SealError::Record);
        }
        let start = self.rest.start + LENGTH_BYTES;
        self.rest.start = start + bytes + TAG_BYTES;
        Ok(Some(&self.buffer[start..start + bytes]))
    }
}

impl Direction {
    fn new(key: RecordKey) -> Self {
        let aead = Aead::of(&key);
        Self {
            key,
            aead,
            count: 0,
        }
    }

    fn seal(&mut self, length: [u8; LENGTH_BYTES], text: &mut [u8]) -> [u8; TAG_BYTES] {
        let nonce = self.next_nonce();
        match &self.aead {
            Aead::Aes(aes) => {
                let sealed = aes.encrypt_in_place_detached(&nonce.into(), &length, text);
                sealed
                    .expect("a record is far below the 64 GiB that GCM takes")
                    .into()
            }
            Aead::ChaCha => {
                let mut context = Context::<20>::new(self.key.secret.as_slice(), &nonce);
                context.add_data(&length);
                let mut context = context.to_encryption();
                context.encrypt_mut(text);
                context.finalize().0
            }
        }
    }

    /// Opens in place; on failure the bytes are undefined.
    fn open(&mut self, length: [u8; LENGTH_BYTES], text: &mut [u8], tag: [u8; TAG_BYTES]) -> bool {
        let nonce = self.next_nonce();
        match &self.aead {
            Aead::Aes(aes) => aes
                .decrypt_in_place_detached(&nonce.into(), &length, text, &tag.into())
                .is_ok(),
            Aead::ChaCha => {
                let mut context = Context::<20>::new(self.key.secret.as_slice(), &nonce);
                context.add_data(&length);
                let mut context = context.to_decryption();
                context.decrypt_mut(text);
                matches!(context.finalize(&Tag(tag)), DecryptionResult::Match)
            }
        }
    }

    /// The number of the record under the present key.
    fn next_nonce(&mut self) -> [u8; 12] {
        if self.count == RECORDS_PER_KEY {
            self.key.secret = expand(&self.key.secret, b"next");
            self.aead = Aead::of(&self.key);
            self.count = 0;
        }
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.count.to_le_bytes());
        self.count += 1;
        nonce
    }
}

impl Aead {
    fn of(key: &RecordKey) -> Self {
        match key.cipher {
            Cipher::Aes => Self::Aes(Box::new(Aes256Gcm::new(key.secret.as_slice().into()))),
            Cipher::ChaCha => Self::ChaCha,
        }
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
    use super::super::io::from_slice;
    use super::*;

    fn ends(cipher: Cipher) -> (Sealer, Opener) {
        let key = || RecordKey {
            secret: Zeroizing::new([5; 32]),
            cipher,
        };
        (Sealer::after(key(), Vec::new()), Opener::new(key()))
    }

    fn record(sealer: &mut Sealer, text: &[u8]) -> Vec<u8> {
        // SAFETY: the slices live through the call.
        let taken = unsafe {
            sealer.seal(&vec![
                from_slice(&text[..text.len() / 2]),
                from_slice(&text[text.len() / 2..]),
            ])
        };
        assert_eq!(taken, text.len().min(RECORD_BYTES_MAX));
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
                assert_eq!(opener.next(), Ok(None));
                arrive(&mut opener, second);
                assert_eq!(opener.next(), Ok(Some(text.as_slice())));
            }
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
                let opened = opener.next().map(|text| text.map(<[u8]>::to_vec));
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
            assert_eq!(opener.next(), Ok(Some(b"first".as_slice())));
            assert_eq!(opener.next(), Err(SealError::Record));
            let mut opener = ends(cipher).1;
            arrive(&mut opener, &second);
            assert_eq!(opener.next(), Err(SealError::Record));
        }
    }

    #[test]
    fn both_ends_take_the_next_key_at_the_same_record() {
        let (mut sealer, mut opener) = ends(Cipher::ChaCha);
        sealer.direction.count = RECORDS_PER_KEY - 1;
        opener.direction.count = RECORDS_PER_KEY - 1;
        for text in [b"last".as_slice(), b"first of the next", b"second"] {
            arrive(&mut opener, &record(&mut sealer, text));
            assert_eq!(opener.next(), Ok(Some(text)));
        }
        assert_ne!(*sealer.direction.key.secret, [5; 32]);
        assert_eq!(sealer.direction.count, 2);
    }
}
