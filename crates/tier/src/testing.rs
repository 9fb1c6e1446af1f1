//! A disk in memory that tears and loses unsynced writes, for the tests of this crate.
//!
//! Writes that were not synced live in a cache. A crash of the machine decides for every sector of each of them whether
//! it reached the medium, by seed. Operations end in the order in which they were submitted, or in any order by seed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use slackwater_base::{BLOCK_BYTES, Checksum, Rng, round_to_block};
use slackwater_wire::{DiskEntry, ExtentRef};

use crate::format::{Entry, Record};
use crate::io::{DiskDone, DiskError, DiskOp, DiskOutcome, FileId, LogFile, OpId, Part, Target};

/// The unit that a write is torn into.
pub const SECTOR_BYTES: usize = 512;

/// The memory that extents refer to.
pub trait Memory {
    /// The first `length` bytes of an extent.
    fn read(&self, extent: ExtentRef, length: u64) -> Vec<u8>;

    /// Writes `bytes` at the beginning of an extent.
    fn write(&mut self, extent: ExtentRef, bytes: &[u8]);
}

/// The records of a batch whose bytes do not match their checksums, when `parts` are written to `file` at `offset`; empty
/// for a write that does not begin with the headers of a batch. Values that come from an extent are not checked, so these
/// are copies of reclaim, and of those the ones of which this write has all.
#[must_use]
pub fn wrong_copies(file: FileId, offset: u64, parts: &[Part]) -> Vec<DiskEntry> {
    // The first batch of a file is written together with the file's first block.
    let (parts, start) = match parts {
        [_, rest @ ..] if offset == 0 => (rest, BLOCK_BYTES),
        parts => (parts, offset),
    };
    let [Part::Bytes(headers), payloads @ ..] = parts else {
        return Vec::new();
    };
    let Some(batch) = crate::format::decode_own_batch(file, start, headers) else {
        return Vec::new();
    };
    let records = batch.entries.into_iter().filter_map(|entry| match entry {
        Entry::Record(record) => Some(record),
        Entry::Tombstone { .. } => None,
    });
    let wrong = |record: &Record, part: &Part| match part {
        Part::Bytes(bytes) => bytes
            .get(..record.length as usize)
            .is_some_and(|value| Checksum::of(value) != record.checksum),
        Part::Extent { .. } => false,
    };
    records
        .zip(payloads)
        .filter(|(record, part)| wrong(record, part))
        .map(|(record, _)| record.entry)
        .collect()
}

/// What a crash does to writes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// They stay in the cache, and a later crash decides: the process died, the machine did not.
    Process,
    /// No unsynced write reached the medium.
    LoseAll,
    /// Each sector of them reached the medium or did not, by seed.
    Tear,
}

/// The disk.
#[derive(Clone, Debug)]
pub struct MemDisk {
    files: BTreeMap<FileId, MemFile>,
    /// Files whose names were removed, but not durably: a power cut brings them back.
    unlinked: BTreeMap<FileId, MemFile>,
    /// What the file held that was deleted last: the next one of its length is made out of it.
    spare: Option<Vec<u8>>,
    reuses: bool,
    capacity: u64,
    queue: VecDeque<Submitted>,
    rng: Rng,
    shuffled: bool,
    full: bool,
    read_only: bool,
    forgetful: bool,
    names_fail: bool,
    fail_at: BTreeMap<u64, DiskError>,
    fail_writing_at: Option<(u64, DiskError)>,
    fail_read_at: Option<(u64, DiskError)>,
    unreadable: BTreeSet<(FileId, u64)>,
    refusing: BTreeMap<FileId, DiskError>,
    outage: Option<DiskError>,
    completed: u64,
    writes: u64,
}

#[derive(Clone, Debug, Default)]
struct MemFile {
    /// What a power cut leaves.
    medium: Vec<u8>,
    /// What a read sees.
    cached: Vec<u8>,
    /// Writes that are in the cache and possibly not on the medium, in the order in which they
    /// completed.
    unsynced: Vec<Cached>,
}

#[derive(Clone, Debug)]
struct Cached {
    serial: u64,
    offset: usize,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Submitted {
    op: OpId,
    request: DiskOp,
    /// Writes that had completed when it was submitted: what a sync covers.
    writes: u64,
}

impl MemDisk {
    /// An empty disk of `capacity` bytes; `seed` determines its choices.
    #[must_use]
    pub fn new(capacity: u64, seed: u64) -> Self {
        Self {
            files: BTreeMap::new(),
            unlinked: BTreeMap::new(),
            spare: None,
            reuses: true,
            capacity,
            queue: VecDeque::new(),
            rng: Rng::new(seed),
            shuffled: false,
            full: false,
            read_only: false,
            forgetful: false,
            names_fail: false,
            fail_at: BTreeMap::new(),
            fail_writing_at: None,
            fail_read_at: None,
            unreadable: BTreeSet::new(),
            refusing: BTreeMap::new(),
            outage: None,
            completed: 0,
            writes: 0,
        }
    }

    /// Lets operations end in any order, by seed.
    pub fn shuffle(&mut self) {
        self.shuffled = true;
    }

    /// Whether no space is left for another file.
    pub fn set_full(&mut self, full: bool) {
        self.full = full;
    }

    /// Whether writes are refused.
    pub fn set_read_only(&mut self, read_only: bool) {
        self.read_only = read_only;
    }

    /// Whether files are made out of deleted ones.
    pub fn set_reuses(&mut self, reuses: bool) {
        self.reuses = reuses;
    }

    /// Whether a sync that fails loses what it should have written, though reads see it until the
    /// power is cut.
    pub fn set_forgetful(&mut self, forgetful: bool) {
        self.forgetful = forgetful;
    }

    /// Whether syncs of the directory fail: a deletion then removes a name that a power cut may bring back.
    pub fn set_names_fail(&mut self, names_fail: bool) {
        self.names_fail = names_fail;
    }

    /// Makes the operation fail that ends as number `nth`, counted since the disk was made.
    pub fn fail_at(&mut self, nth: u64, error: DiskError) {
        self.fail_at.insert(nth, error);
    }

    /// Makes the first operation fail that is not a read and ends as number `nth` or later.
    pub fn fail_writing_at(&mut self, nth: u64, error: DiskError) {
        self.fail_writing_at = Some((nth, error));
    }

    /// Makes the first read fail that ends as number `nth` or later.
    pub fn fail_read_at(&mut self, nth: u64, error: DiskError) {
        self.fail_read_at = Some((nth, error));
    }

    /// Whether the failure of a read is yet to come.
    #[must_use]
    pub fn is_read_failure_pending(&self) -> bool {
        self.fail_read_at.is_some()
    }

    /// Whether the failure of a writing operation is yet to come.
    #[must_use]
    pub fn is_failure_pending(&self) -> bool {
        self.fail_writing_at.is_some()
    }

    /// Makes the block at `offset` of `file` unreadable.
    pub fn make_unreadable(&mut self, file: FileId, offset: u64) {
        self.unreadable
            .insert((file, offset - offset % slackwater_base::BLOCK_BYTES));
    }

    /// Makes all blocks readable again.
    pub fn mend(&mut self) {
        self.unreadable.clear();
    }

    /// Makes every read of `file` fail, or ends that.
    pub fn refuse_reads(&mut self, file: FileId, error: Option<DiskError>) {
        match error {
            Some(error) => self.refusing.insert(file, error),
            None => self.refusing.remove(&file),
        };
    }

    /// Makes every operation fail with `error`, or ends that: an outage of the device.
    pub fn set_outage(&mut self, error: Option<DiskError>) {
        self.outage = error;
    }

    /// Flips one bit of the medium and of what reads see.
    pub fn flip(&mut self, file: FileId, byte: u64, bit: u8) {
        if let Some(file) = self.files.get_mut(&file) {
            for bytes in [&mut file.medium, &mut file.cached] {
                if let Some(byte) = bytes.get_mut(byte as usize) {
                    *byte ^= 1 << (bit % 8);
                }
            }
        }
    }

    /// Makes the removal of names durable, and removes what an earlier process kept to make files out of: what a process does
    /// before it lists the directory. Otherwise a log that begins again would number a file as one that it is made of.
    pub fn sync_names(&mut self) {
        self.unlinked.clear();
        self.spare = None;
    }

    /// The files there are.
    #[must_use]
    pub fn files(&self) -> Vec<LogFile> {
        self.files
            .iter()
            .map(|(file, content)| LogFile {
                file: *file,
                bytes: content.cached.len() as u64,
            })
            .collect()
    }

    /// The bytes of a file as reads see them.
    #[must_use]
    pub fn content(&self, file: FileId) -> &[u8] {
        self.files.get(&file).map_or(&[], |file| &file.cached)
    }

    /// Replaces or makes a file, as a user does who copies files into the directory.
    pub fn plant(&mut self, file: FileId, bytes: Vec<u8>) {
        self.files.insert(
            file,
            MemFile {
                medium: bytes.clone(),
                cached: bytes,
                unsynced: Vec::new(),
            },
        );
    }

    /// Operations that ended since the disk was made.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Whether the operation that ends next is a sync; for a disk that ends them in order.
    #[must_use]
    pub fn next_is_sync(&self) -> bool {
        self.queue
            .front()
            .is_some_and(|first| matches!(first.request, DiskOp::Sync { .. }))
    }

    /// Whether a file is being deleted.
    #[must_use]
    pub fn is_deleting(&self) -> bool {
        let mut requests = self.queue.iter().map(|submitted| &submitted.request);
        requests.any(|request| matches!(request, DiskOp::Delete { .. }))
    }

    /// Operations under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.queue.len()
    }

    /// Whether no operation is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether the cache holds writes that no sync has covered.
    #[must_use]
    pub fn has_unsynced(&self) -> bool {
        self.files.values().any(|file| !file.unsynced.is_empty())
    }

    /// Submits an operation.
    pub fn submit(&mut self, op: OpId, request: DiskOp) {
        self.queue.push_back(Submitted {
            op,
            request,
            writes: self.writes,
        });
    }

    /// Ends one operation, if any is under way.
    pub fn complete(&mut self, memory: &mut impl Memory) -> Option<DiskDone> {
        let at = if self.shuffled && !self.queue.is_empty() {
            self.rng.below(self.queue.len() as u64)
        } else {
            0
        };
        let Submitted {
            op,
            request,
            writes,
        } = self.queue.remove(at as usize)?;
        let nth = self.completed;
        self.completed += 1;
        let writing = !matches!(request, DiskOp::Read { .. });
        let failing = self
            .fail_writing_at
            .take_if(|(at, _)| writing && nth >= *at)
            .map(|(_, error)| error);
        let unread = self
            .fail_read_at
            .take_if(|(at, _)| !writing && nth >= *at)
            .map(|(_, error)| error);
        let failing = failing.or(unread).or_else(|| self.fail_at.remove(&nth));
        let result = match failing.or(self.outage) {
            Some(error) => {
                self.half_do(&request, memory);
                Err(error)
            }
            None => self.perform(request, writes, memory),
        };
        Some(DiskDone { op, result })
    }

    /// Crashes: each operation under way may have been done wholly, in part or not at all.
    pub fn crash(&mut self, crash: Crash, memory: &impl Memory) {
        for Submitted { request, .. } in std::mem::take(&mut self.queue) {
            if crash != Crash::LoseAll && self.rng.chance(0.5) {
                self.half_do(&request, memory);
            }
        }
        if crash == Crash::Process {
            return;
        }
        for (id, file) in std::mem::take(&mut self.unlinked) {
            if crash == Crash::LoseAll || self.rng.chance(0.5) {
                self.files.entry(id).or_insert(file);
            }
        }
        for file in self.files.values_mut() {
            for Cached { offset, bytes, .. } in std::mem::take(&mut file.unsynced) {
                for (sector, piece) in bytes.chunks(SECTOR_BYTES).enumerate() {
                    if crash == Crash::Tear && self.rng.chance(0.7) {
                        let at = offset + sector * SECTOR_BYTES;
                        file.medium[at..at + piece.len()].copy_from_slice(piece);
                    }
                }
            }
            file.cached.clone_from(&file.medium);
        }
    }

    /// Does part of an operation that failed or that a crash interrupted.
    fn half_do(&mut self, request: &DiskOp, memory: &impl Memory) {
        match request {
            // The kernel counts its pages as clean from now on: reads succeed, and no later sync
            // writes them (Rebello et al., 2020).
            DiskOp::Sync { file } if self.forgetful => {
                self.files
                    .get_mut(file)
                    .into_iter()
                    .for_each(|file| file.unsynced.clear());
            }
            DiskOp::Create { file, bytes } if self.rng.chance(0.5) => {
                let _unheard = self.make(*file, *bytes);
            }
            DiskOp::Write {
                file,
                offset,
                parts,
            } => {
                let mut bytes = joined(parts, memory);
                let kept =
                    self.rng.below(bytes.len() as u64 + 1) as usize / SECTOR_BYTES * SECTOR_BYTES;
                bytes.truncate(kept);
                self.cache(*file, *offset, bytes);
            }
            DiskOp::Delete { file, .. } if self.rng.chance(0.5) => {
                let removed = self.files.remove(file);
                self.unlinked
                    .extend(removed.map(|content| (*file, content)));
            }
            _ => {}
        }
    }

    fn perform(
        &mut self,
        request: DiskOp,
        writes: u64,
        memory: &mut impl Memory,
    ) -> Result<DiskOutcome, DiskError> {
        if self.read_only && !matches!(request, DiskOp::Read { .. }) {
            return Err(DiskError::ReadOnly);
        }
        match request {
            DiskOp::Create { file, bytes } => {
                let used: u64 = self
                    .files
                    .values()
                    .map(|file| file.cached.len() as u64)
                    .sum();
                if self.full || used + bytes > self.capacity {
                    return Err(DiskError::Full);
                }
                Ok(self.make(file, bytes))
            }
            DiskOp::Write {
                file,
                offset,
                parts,
            } => {
                let bytes = joined(&parts, memory);
                if self.cache(file, offset, bytes) {
                    Ok(DiskOutcome::Done)
                } else {
                    Err(DiskError::Missing)
                }
            }
            DiskOp::Sync { file } => {
                let content = self.files.get_mut(&file).ok_or(DiskError::Missing)?;
                let covered = content
                    .unsynced
                    .partition_point(|cached| cached.serial < writes);
                for Cached { offset, bytes, .. } in content.unsynced.drain(..covered) {
                    content.medium[offset..offset + bytes.len()].copy_from_slice(&bytes);
                }
                Ok(DiskOutcome::Done)
            }
            DiskOp::Read {
                file,
                offset,
                bytes,
                length,
                into,
            } => self.read(file, (offset, bytes, length), into, memory),
            DiskOp::Delete { file, .. } => {
                let removed = self.files.remove(&file);
                self.unlinked.extend(removed.map(|content| (file, content)));
                if self.names_fail {
                    return Err(DiskError::Device { errno: 5 });
                }
                self.spare = self.unlinked.remove(&file).map(|content| content.medium);
                self.unlinked.clear();
                Ok(DiskOutcome::Done)
            }
        }
    }

    fn read(
        &self,
        file: FileId,
        (offset, bytes, length): (u64, u64, u64),
        into: Target,
        memory: &mut impl Memory,
    ) -> Result<DiskOutcome, DiskError> {
        let content = &self.files.get(&file).ok_or(DiskError::Missing)?.cached;
        if let Some(error) = self.refusing.get(&file) {
            return Err(*error);
        }
        let range = offset as usize..(offset + bytes) as usize;
        if self
            .unreadable
            .range((file, offset)..(file, offset + bytes))
            .next()
            .is_some()
        {
            return Err(DiskError::Device { errno: 5 });
        }
        let read = content.get(range).ok_or(DiskError::Missing)?;
        let checksum = Checksum::of(&read[..length as usize]);
        let bytes = match into {
            Target::Completion => Bytes::copy_from_slice(read),
            Target::Extent(extent) => {
                memory.write(extent, &read[..(bytes.min(extent.bytes)) as usize]);
                Bytes::new()
            }
            Target::Nowhere => Bytes::new(),
        };
        Ok(DiskOutcome::Read { bytes, checksum })
    }

    fn make(&mut self, file: FileId, bytes: u64) -> DiskOutcome {
        let fits = |old: &mut Vec<u8>| old.len() as u64 == bytes && self.reuses;
        let old = self.spare.take_if(fits).map(|mut old| {
            old[..BLOCK_BYTES as usize].fill(0);
            old
        });
        let (outcome, content) = match old {
            Some(old) => (DiskOutcome::Reused, old),
            None => (DiskOutcome::Done, vec![0; bytes as usize]),
        };
        self.plant(file, content);
        outcome
    }

    fn cache(&mut self, file: FileId, offset: u64, bytes: Vec<u8>) -> bool {
        let Some(file) = self.files.get_mut(&file) else {
            return false;
        };
        let offset = offset as usize;
        let Some(place) = file.cached.get_mut(offset..offset + bytes.len()) else {
            return false;
        };
        place.copy_from_slice(&bytes);
        file.unsynced.push(Cached {
            serial: self.writes,
            offset,
            bytes,
        });
        self.writes += 1;
        true
    }
}

fn joined(parts: &[Part], memory: &impl Memory) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        match part {
            Part::Bytes(piece) => bytes.extend_from_slice(piece),
            Part::Extent { extent, length } => {
                bytes.extend_from_slice(&memory.read(*extent, *length));
                bytes.resize(round_to_block(bytes.len() as u64) as usize, 0);
            }
        }
    }
    bytes
}
