//! The bytes of a log file, version 1. The layout and the reasons are in the crate's README.

use slackwater_base::{
    BLOCK_BYTES, Checksum, Checksummer, KeyHash, Planted, planted, round_to_block,
};
use slackwater_wire::{DiskEntry, Key, Tenant, Version};
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::io::{DiskError, FileId};

/// The format that this version writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 1;

/// Most bytes that the headers of one batch take.
pub(crate) const HEADER_BYTES_MAX: u64 = 256 << 10;

const FILE_MAGIC: [u8; 8] = *b"SLKWLOG\n";
const BATCH_MAGIC: [u8; 8] = *b"SLKWBAT\n";
const ENTRY_RECORD: u8 = 1;
const ENTRY_TOMBSTONE: u8 = 2;
const ENTRY_ALIGN: usize = 8;
/// The most flipped bits with which a first block still counts as one of this log.
const ROTTEN_BITS_MAX: u32 = 8;

/// Why a directory's files are not a log that this version may open. Nothing has been changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FormatError {
    /// The file is not a log file.
    #[error("log file {} is not a Slackwater log (it begins with \"{}\"): move it away, or choose another directory",
        .file.0, .begins.escape_ascii())]
    Foreign {
        /// Number of the file.
        file: FileId,
        /// Its first bytes.
        begins: [u8; 8],
    },
    /// A newer version wrote it.
    #[error("log file {} has format {found}, this version reads up to {known}: upgrade, or empty the directory to \
        start cold", .file.0)]
    Newer {
        /// Number of the file.
        file: FileId,
        /// Its format.
        found: u32,
        /// The newest format that this version reads.
        known: u32,
    },
    /// The file belongs to another log, or its name has another number than its header.
    #[error("log file {} belongs to another log or place: it was copied or renamed; move it away", .file.0)]
    Misplaced {
        /// Number of the file.
        file: FileId,
    },
    /// The file could not be read because the process is short of descriptors or memory.
    #[error("log file {} cannot be read now ({error}): raise the limit on open files (`ulimit -n`) or free memory, \
        and open again", .file.0)]
    Starved {
        /// Number of the file.
        file: FileId,
        /// The error of the device.
        error: DiskError,
    },
    /// The first block of the file cannot be read, so its log and its tombstones are unknown.
    #[error("log file {} cannot be read ({error}): repair the device and open again, or empty the directory to start \
        cold; without this file alone, removed values could come back", .file.0)]
    Unreadable {
        /// Number of the file.
        file: FileId,
        /// The error of the device.
        error: DiskError,
    },
}

impl FormatError {
    /// Whether opening again may succeed although nobody changed the files.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            FormatError::Starved { .. } | FormatError::Unreadable { .. }
        )
    }
}

/// The first block of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    /// Random identity of the log. A tenant does not know it, so no value that a tenant stores can
    /// look like a header.
    pub(crate) log: u128,
    pub(crate) file: FileId,
    /// The opening of the log that began the file, counted from its creation.
    pub(crate) life: u64,
    pub(crate) bytes: u64,
    /// The highest version that the log had seen when the file was begun.
    pub(crate) highest_version: Version,
}

/// What the first block of a file turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstBlock {
    Header(FileHeader),
    /// Never written.
    Blank,
    /// A header of this log that is damaged.
    Damaged,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct RawFile {
    magic: [u8; 8],
    format: U32,
    reserved: U32,
    log: U128,
    file: U64,
    life: U64,
    bytes: U64,
    highest_version: U64,
    checksum: U64,
}

impl FileHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut raw = RawFile {
            magic: FILE_MAGIC,
            format: U32::new(FORMAT_VERSION),
            reserved: U32::ZERO,
            log: U128::new(self.log),
            file: U64::new(self.file.0),
            life: U64::new(self.life),
            bytes: U64::new(self.bytes),
            highest_version: U64::new(self.highest_version.0),
            checksum: U64::ZERO,
        };
        raw.checksum = U64::new(checksum_except(raw.as_bytes(), RAW_FILE_SUM).0);
        let mut block = raw.as_bytes().to_vec();
        block.resize(BLOCK_BYTES as usize, 0);
        block
    }

    /// Reads the first block of `file`.
    pub(crate) fn decode(file: FileId, block: &[u8]) -> Result<FirstBlock, FormatError> {
        let Ok((raw, _)) = RawFile::ref_from_prefix(block) else {
            return Ok(FirstBlock::Damaged);
        };
        // A few flipped bits must not make the file look foreign: the whole log could not be
        // opened.
        let set_bits: u32 = block.iter().map(|byte| byte.count_ones()).sum();
        let wrong_bits: u32 = raw
            .magic
            .iter()
            .zip(FILE_MAGIC)
            .map(|(found, ours)| (found ^ ours).count_ones())
            .sum();
        if set_bits == 0 {
            return Ok(FirstBlock::Blank);
        }
        // A faulty device can write a batch over the header: the file is still one of this log.
        if raw.magic == BATCH_MAGIC {
            return Ok(FirstBlock::Damaged);
        }
        if wrong_bits > ROTTEN_BITS_MAX && set_bits > ROTTEN_BITS_MAX {
            return Err(FormatError::Foreign {
                file,
                begins: raw.magic,
            });
        }
        if wrong_bits > 0
            || checksum_except(raw.as_bytes(), RAW_FILE_SUM) != Checksum(raw.checksum.get())
        {
            return Ok(FirstBlock::Damaged);
        }
        // Every later format keeps magic, number and checksum in these places, so that this version
        // can recognise it.
        if raw.format.get() != FORMAT_VERSION {
            return Err(FormatError::Newer {
                file,
                found: raw.format.get(),
                known: FORMAT_VERSION,
            });
        }
        if raw.file.get() != file.0 {
            return Err(FormatError::Misplaced { file });
        }
        Ok(FirstBlock::Header(FileHeader {
            log: raw.log.get(),
            file,
            life: raw.life.get(),
            bytes: raw.bytes.get(),
            highest_version: Version(raw.highest_version.get()),
        }))
    }
}

/// A position in the log: positions of one opening are ordered as the batches were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) file: FileId,
    pub(crate) offset: u64,
}

/// One value in a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) entry: DiskEntry,
    pub(crate) hash: KeyHash,
    /// First byte of its payload in the file.
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) checksum: Checksum,
}

/// One entry of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A record: where a value is.
    Record(Record),
    /// Every record of this key up to this version is dead.
    Tombstone { hash: KeyHash, version: Version },
}

/// The headers of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// First byte of the batch.
    pub(crate) start: u64,
    /// Its length in bytes: headers, payloads, headers again.
    pub(crate) bytes: u64,
    /// Bytes that the headers take at each end.
    pub(crate) header_bytes: u64,
    pub(crate) life: u64,
    /// Everything that this opening wrote before this position was durable when the batch was
    /// written.
    pub(crate) durable: Position,
    pub(crate) entries: Vec<Entry>,
}

impl Batch {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// The place of a batch, as its headers state it, so that headers that the device wrote to a wrong
/// place are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) log: u128,
    pub(crate) file: FileId,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct RawBatch {
    magic: [u8; 8],
    log: U128,
    file: U64,
    life: U64,
    start: U64,
    bytes: U64,
    durable_file: U64,
    durable_offset: U64,
    header_bytes: U32,
    entries: U32,
    /// The offset of this copy of the headers: at the start or at the end of the batch.
    own_offset: U64,
    checksum: U64,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct RawEntry {
    hash: U128,
    version: U64,
    offset: U64,
    length: U64,
    checksum: U64,
    kind: u8,
    tenant_bytes: u8,
    key_bytes: U16,
    reserved: U32,
}

const RAW_FILE_SUM: usize = size_of::<RawFile>() - size_of::<U64>();
const RAW_BATCH_SUM: usize = size_of::<RawBatch>() - size_of::<U64>();

/// Bytes of headers before the first entry.
pub(crate) const BATCH_FIXED_BYTES: u64 = size_of::<RawBatch>() as u64;

/// Bytes of headers that `entry` takes.
pub(crate) fn record_header_bytes(entry: &DiskEntry) -> u64 {
    let names = entry.key.as_bytes().len() + entry_tenant(entry).len();
    (size_of::<RawEntry>() + names).next_multiple_of(ENTRY_ALIGN) as u64
}

/// Bytes of headers that a tombstone takes.
pub(crate) const TOMBSTONE_BYTES: u64 = size_of::<RawEntry>() as u64;

/// Most bytes of a batch of one record that are not the payload.
pub(crate) fn alone_overhead(entry: &DiskEntry) -> u64 {
    2 * round_to_block(BATCH_FIXED_BYTES + record_header_bytes(entry))
}

/// The stable name of a record: a hash over key and tenant, so that equal keys of two tenants are
/// two records.
pub(crate) fn name_of(entry: &DiskEntry) -> KeyHash {
    named(&entry.tenant, &entry.key)
}

/// The same of a tenant and a key.
pub(crate) fn named(tenant: &Tenant, key: &Key) -> KeyHash {
    if tenant.is_default() {
        return KeyHash::of(0, key.as_bytes());
    }
    // A tenant's name has no NUL, so the last NUL separates the two whatever the key contains.
    let mut joined = key.as_bytes().to_vec();
    joined.push(0);
    joined.extend_from_slice(tenant.name().as_bytes());
    KeyHash::of(1, &joined)
}

/// The headers of `batch`, once for its start and once for its end.
///
/// # Panics
/// If the entries do not fit the headers: the batch was closed too late.
pub(crate) fn encode_batch(identity: Identity, batch: &Batch) -> [Vec<u8>; 2] {
    let header_bytes = batch.header_bytes;
    let mut area = Vec::with_capacity(header_bytes as usize);
    area.resize(size_of::<RawBatch>(), 0);
    for entry in &batch.entries {
        encode_entry(entry, &mut area);
    }
    assert!(
        area.len() as u64 <= header_bytes,
        "{} bytes of entries in {header_bytes}",
        area.len()
    );
    area.resize(header_bytes as usize, 0);
    [batch.start, batch.end() - header_bytes].map(|own_offset| {
        let mut copy = area.clone();
        let raw = RawBatch {
            magic: BATCH_MAGIC,
            log: U128::new(identity.log),
            file: U64::new(identity.file.0),
            life: U64::new(batch.life),
            start: U64::new(batch.start),
            bytes: U64::new(batch.bytes),
            durable_file: U64::new(batch.durable.file.0),
            durable_offset: U64::new(batch.durable.offset),
            header_bytes: U32::new(header_bytes as u32),
            entries: U32::new(batch.entries.len() as u32),
            own_offset: U64::new(own_offset),
            checksum: U64::ZERO,
        };
        copy[..size_of::<RawBatch>()].copy_from_slice(raw.as_bytes());
        let checksum = checksum_except(&copy, RAW_BATCH_SUM);
        copy[RAW_BATCH_SUM..size_of::<RawBatch>()].copy_from_slice(&checksum.0.to_le_bytes());
        copy
    })
}

fn encode_entry(entry: &Entry, area: &mut Vec<u8>) {
    let (hash, version, record) = match entry {
        Entry::Record(record) => (record.hash, record.entry.version, Some(record)),
        Entry::Tombstone { hash, version } => (*hash, *version, None),
    };
    let tenant = record.map_or("", |record| entry_tenant(&record.entry));
    let key = record.map_or(&[][..], |record| record.entry.key.as_bytes());
    let raw = RawEntry {
        hash: U128::new(hash.0),
        version: U64::new(version.0),
        offset: U64::new(record.map_or(0, |record| record.offset)),
        length: U64::new(record.map_or(0, |record| record.length)),
        checksum: U64::new(record.map_or(0, |record| record.checksum.0)),
        kind: if record.is_some() {
            ENTRY_RECORD
        } else {
            ENTRY_TOMBSTONE
        },
        tenant_bytes: tenant.len() as u8,
        key_bytes: U16::new(key.len() as u16),
        reserved: U32::ZERO,
    };
    area.extend_from_slice(raw.as_bytes());
    area.extend_from_slice(tenant.as_bytes());
    area.extend_from_slice(key);
    area.resize(area.len().next_multiple_of(ENTRY_ALIGN), 0);
}

/// The content of a place where headers of a batch may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    Batch(Batch),
    /// Possibly headers of this many bytes, more than were given: the caller reads so many and
    /// tries again.
    Longer(u64),
    /// A block of zeros.
    Blank,
    /// Anything else.
    Other,
}

/// Reads headers that are about to be written at `start` of `file`, whichever log they are of.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn decode_own_batch(file: FileId, start: u64, headers: &[u8]) -> Option<Batch> {
    let (raw, _) = RawBatch::ref_from_prefix(headers).ok()?;
    let log = raw.log.get();
    match decode_batch(Identity { log, file }, u64::MAX, start, headers) {
        Decoded::Batch(batch) => Some(batch),
        _ => None,
    }
}

/// Reads the headers at `offset` of the file that `identity` names, from `bytes` that begin there.
pub(crate) fn decode_batch(
    identity: Identity,
    file_bytes: u64,
    offset: u64,
    bytes: &[u8],
) -> Decoded {
    let Ok((raw, _)) = RawBatch::ref_from_prefix(bytes) else {
        return Decoded::Other;
    };
    if raw.magic != BATCH_MAGIC {
        let first = &bytes[..bytes.len().min(BLOCK_BYTES as usize)];
        return if first.iter().all(|byte| *byte == 0) {
            Decoded::Blank
        } else {
            Decoded::Other
        };
    }
    let (start, length, header_bytes) = (
        raw.start.get(),
        raw.bytes.get(),
        u64::from(raw.header_bytes.get()),
    );
    let end = start.saturating_add(length);
    let placed = raw.log.get() == identity.log
        && (raw.file.get() == identity.file.0 || planted(Planted::StaleHeadersCount))
        && raw.own_offset.get() == offset
        && header_bytes >= BATCH_FIXED_BYTES
        && [start, length, header_bytes]
            .iter()
            .all(|number| number.is_multiple_of(BLOCK_BYTES))
        && header_bytes <= HEADER_BYTES_MAX.min(length / 2)
        && end <= file_bytes
        && (offset == start || offset == end - header_bytes);
    if !placed {
        return Decoded::Other;
    }
    let Some(area) = bytes.get(..header_bytes as usize) else {
        return Decoded::Longer(header_bytes);
    };
    if checksum_except(area, RAW_BATCH_SUM) != Checksum(raw.checksum.get()) {
        return Decoded::Other;
    }
    let payloads = start + header_bytes..end - header_bytes;
    match decode_entries(&area[size_of::<RawBatch>()..], raw.entries.get(), &payloads) {
        Some(entries) => Decoded::Batch(Batch {
            start,
            bytes: length,
            header_bytes,
            life: raw.life.get(),
            durable: Position {
                file: FileId(raw.durable_file.get()),
                offset: raw.durable_offset.get(),
            },
            entries,
        }),
        None => Decoded::Other,
    }
}

fn decode_entries(
    mut area: &[u8],
    count: u32,
    payloads: &std::ops::Range<u64>,
) -> Option<Vec<Entry>> {
    let mut entries = Vec::with_capacity((count as usize).min(area.len() / size_of::<RawEntry>()));
    for _ in 0..count {
        let (raw, rest) = RawEntry::ref_from_prefix(area).ok()?;
        let names = raw.tenant_bytes as usize + raw.key_bytes.get() as usize;
        let (tenant, key) = rest.get(..names)?.split_at(raw.tenant_bytes as usize);
        let (hash, version) = (KeyHash(raw.hash.get()), Version(raw.version.get()));
        entries.push(match raw.kind {
            ENTRY_TOMBSTONE => Entry::Tombstone { hash, version },
            ENTRY_RECORD => {
                let tenant = Tenant::new(std::str::from_utf8(tenant).ok()?).ok()?;
                let entry = DiskEntry {
                    tenant,
                    key: Key::new(key).ok()?,
                    version,
                };
                let (offset, length) = (raw.offset.get(), raw.length.get());
                let inside =
                    offset >= payloads.start && offset.checked_add(length)? <= payloads.end;
                if !inside
                    || !offset.is_multiple_of(BLOCK_BYTES)
                    || length == 0
                    || name_of(&entry) != hash
                {
                    return None;
                }
                Entry::Record(Record {
                    entry,
                    hash,
                    offset,
                    length,
                    checksum: Checksum(raw.checksum.get()),
                })
            }
            _ => return None,
        });
        area = area.get((size_of::<RawEntry>() + names).next_multiple_of(ENTRY_ALIGN)..)?;
    }
    Some(entries)
}

/// The tenant's name as it is written: empty for the default tenant.
fn entry_tenant(entry: &DiskEntry) -> &str {
    if entry.tenant.is_default() {
        ""
    } else {
        entry.tenant.name()
    }
}

/// The checksum of `area` without the eight bytes at `hole`, which hold the checksum itself.
fn checksum_except(area: &[u8], hole: usize) -> Checksum {
    let mut sum = Checksummer::new();
    sum.update(&area[..hole]);
    sum.update(&area[hole + size_of::<U64>()..]);
    sum.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OURS: Identity = Identity {
        log: 0x0123_4567_89ab_cdef_0011_2233_4455_6677,
        file: FileId(42),
    };
    const FILE_BYTES: u64 = 1 << 20;
    const START: u64 = 3 * BLOCK_BYTES;

    fn record(key: &[u8], tenant: &str, offset: u64, length: u64) -> Entry {
        let tenant = Tenant::new(tenant).unwrap();
        let entry = DiskEntry {
            tenant,
            key: Key::new(key).unwrap(),
            version: Version(7),
        };
        let (hash, checksum) = (name_of(&entry), Checksum(length * 31));
        Entry::Record(Record {
            entry,
            hash,
            offset,
            length,
            checksum,
        })
    }

    fn sample() -> Batch {
        let payload = START + BLOCK_BYTES;
        let entries = vec![
            record(b"prompt/0001", "", payload, 5000),
            Entry::Tombstone {
                hash: KeyHash(99),
                version: Version(6),
            },
            record(&[0xff; 1024], "acme", payload + 2 * BLOCK_BYTES, 1),
        ];
        let durable = Position {
            file: FileId(41),
            offset: 8192,
        };
        Batch {
            start: START,
            bytes: 5 * BLOCK_BYTES,
            header_bytes: BLOCK_BYTES,
            life: 3,
            durable,
            entries,
        }
    }

    #[test]
    fn a_batch_reads_as_it_was_written_from_either_copy() {
        let batch = sample();
        let [first, last] = encode_batch(OURS, &batch);
        assert_eq!(
            decode_batch(OURS, FILE_BYTES, START, &first),
            Decoded::Batch(batch.clone())
        );
        let at = batch.end() - batch.header_bytes;
        assert_eq!(
            decode_batch(OURS, FILE_BYTES, at, &last),
            Decoded::Batch(batch.clone())
        );
        assert_eq!(
            decode_batch(OURS, FILE_BYTES, at, &first),
            Decoded::Other,
            "a header in a wrong place"
        );
        assert_eq!(
            decode_batch(OURS, batch.end() - 1, START, &first),
            Decoded::Other,
            "beyond the file"
        );
        assert_eq!(
            decode_batch(OURS, FILE_BYTES, START, &first[..512]),
            Decoded::Longer(BLOCK_BYTES)
        );
        assert_eq!(
            decode_batch(OURS, FILE_BYTES, START, &[0; 4096]),
            Decoded::Blank
        );
    }

    #[test]
    fn a_first_block_reads_as_it_was_written() {
        let header = FileHeader {
            log: OURS.log,
            file: OURS.file,
            life: 3,
            bytes: FILE_BYTES,
            highest_version: Version(9),
        };
        let block = header.encode();
        assert_eq!(block.len() as u64, BLOCK_BYTES);
        assert_eq!(
            FileHeader::decode(OURS.file, &block),
            Ok(FirstBlock::Header(header))
        );
        assert_eq!(
            FileHeader::decode(FileId(1), &block),
            Err(FormatError::Misplaced { file: FileId(1) })
        );
        assert_eq!(
            FileHeader::decode(OURS.file, &[0; 4096]),
            Ok(FirstBlock::Blank)
        );
        for byte in [0, 8, 11, 30, 50, 71] {
            let mut rotten = block.clone();
            rotten[byte] ^= 0x42;
            assert_eq!(
                FileHeader::decode(OURS.file, &rotten),
                Ok(FirstBlock::Damaged),
                "byte {byte}"
            );
        }
        let mut rotten = vec![0; 4096];
        rotten[3] ^= 0x10;
        assert_eq!(
            FileHeader::decode(OURS.file, &rotten),
            Ok(FirstBlock::Damaged),
            "a blank one"
        );
    }

    /// What version 1 wrote must stay readable: these are its bytes.
    #[test]
    fn the_bytes_of_version_1_do_not_change() {
        let header = FileHeader {
            log: OURS.log,
            file: OURS.file,
            life: 3,
            bytes: FILE_BYTES,
            highest_version: Version(9),
        };
        let [first, last] = encode_batch(OURS, &sample());
        let sums = [header.encode(), first, last].map(|bytes| Checksum::of(&bytes).0);
        assert_eq!(
            sums,
            [
                0x49bd_06c3_1920_72d0,
                0xbadc_426b_1d8a_c82b,
                0x62ae_68b1_b0c3_dce6
            ]
        );
    }

    proptest! {
        /// Whatever the device returns, the decoders neither panic nor return records that were not
        /// written.
        #[test]
        fn damaged_headers_are_no_headers(at in 0usize..4096, flip in 1u8.., cut in 0usize..4097) {
            let [mut bytes, _] = encode_batch(OURS, &sample());
            bytes[at] ^= flip;
            let decoded = decode_batch(OURS, FILE_BYTES, START, &bytes[..cut]);
            prop_assert!(!matches!(decoded, Decoded::Batch(_)), "{decoded:?}");
        }

        #[test]
        fn noise_is_no_header(noise in prop::collection::vec(any::<u8>(), 0..5000)) {
            prop_assert!(!matches!(decode_batch(OURS, FILE_BYTES, START, &noise), Decoded::Batch(_)));
            prop_assert!(!matches!(FileHeader::decode(OURS.file, &noise), Ok(FirstBlock::Header(_))));
        }
    }
}
