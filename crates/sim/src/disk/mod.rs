//! The disk of one node: the bytes in memory, with the caching and the failures of a device.
//!
//! A write lands in the cache of the device and becomes durable with a later sync. A power cut keeps, loses or tears
//! each write that was not synced, sector by sector and in any order; the end of a process keeps the cache. Faults are
//! windows that the world opens and closes.

mod damage;
mod file;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use slackwater_base::{BLOCK_BYTES, Checksum, Instant, Rng, round_to_block};
use slackwater_tier::io::{DiskError, DiskOp, DiskOutcome, FileId, OpId, Part, Target};

use crate::check::{Checked, Invariant, Violation};
use crate::ledger::Trust;
use crate::memory::Memory;

use file::{File, Span, Stretch, Unsynced, put};

/// The faults that are active now; all zero is a disk without faults.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DiskFaults {
    /// Probability that a read ends in an error.
    pub read_error: f64,
    /// Probability that a write or a creation ends in an error.
    pub write_error: f64,
    /// Probability that a sync ends in an error.
    pub sync_error: f64,
    /// Probability that a read returns a flipped bit that is not on the medium.
    pub read_flip: f64,
    /// Probability that a write lands elsewhere in its file and is reported as done.
    pub misdirect: f64,
    /// Every operation ends in an error.
    pub outage: bool,
    /// No file can be created.
    pub full: bool,
    /// Nothing can be written.
    pub read_only: bool,
    /// Longest time that an operation takes beyond the usual.
    pub stall: Duration,
}

/// The submitter of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Caller {
    /// The agent, by the name it gave the operation.
    Agent(OpId),
    /// A reader in the owner's process, numbered by the world.
    Reader(u64),
}

/// How an operation ended.
pub type Ended = Result<DiskOutcome, DiskError>;

/// What ends a process that uses the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process is killed: what it wrote stays in the cache.
    Process,
    /// The power is cut: what was not synced is kept, lost or torn.
    Power,
}

/// The disk of one node.
#[derive(Debug)]
pub struct Disk {
    rng: Rng,
    capacity: u64,
    files: BTreeMap<FileId, File>,
    /// Files whose names were removed, but not durably: a power cut may bring them back.
    unlinked: BTreeMap<FileId, File>,
    /// What the file held that was deleted last: the next one of its length is made out of it.
    spare: Option<Vec<u8>>,
    flights: BTreeMap<Caller, Flight>,
    /// Writes so far: orders them against syncs.
    writes: u64,
    last_op: Option<OpId>,
    faults: DiskFaults,
    spoilt_stretches: Vec<Stretch>,
    failing_sync: bool,
    intact: bool,
    loses_writes: bool,
    /// Reads of this life of the process that ended in errors or returned flipped bits: records that it did not find
    /// may be there.
    spoilt: Spoilt,
    /// The same for the lives before, back to the last one whose log was opened: that life may have begun to give up
    /// what it could not read.
    spoilt_before: Spoilt,
    /// Reads of this life of the process that ended in an error.
    read_errors: u64,
    /// Other operations of this life that ended in an error.
    write_errors: u64,
    /// Whether the log was opened in this life and its announcements were checked.
    judged: bool,
    stats: DiskStats,
}

/// Counters of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Operations submitted.
    pub operations: u64,
    /// Most operations that were under way at once.
    pub in_flight_max: usize,
    /// Operations that ended in an error.
    pub errors: u64,
    /// Power cuts that found writes not synced.
    pub torn: u64,
    /// Bits flipped and writes misdirected.
    pub rotten: u64,
}

impl DiskStats {
    /// Adds what another disk has done.
    pub(crate) fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.in_flight_max = self.in_flight_max.max(other.in_flight_max);
        self.errors += other.errors;
        self.torn += other.torn;
        self.rotten += other.rotten;
    }
}

/// The damage that reads returned in one life of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Spoilt {
    /// Some reads ended in an error, which the process sees.
    failed: bool,
    /// Some reads returned a flipped bit.
    flipped: bool,
}

#[derive(Debug)]
struct Flight {
    what: DiskOp,
    error: Option<DiskError>,
    /// Writes completed when this was submitted.
    barrier: u64,
    /// The bytes of a write as they were at submission.
    early: Vec<u8>,
    /// Take the bytes of a write at its completion instead.
    late: bool,
}

impl Disk {
    /// An empty disk of `capacity` bytes.
    #[must_use]
    pub fn new(rng: Rng, capacity: u64) -> Self {
        Self {
            rng,
            capacity,
            files: BTreeMap::new(),
            unlinked: BTreeMap::new(),
            spare: None,
            flights: BTreeMap::new(),
            writes: 0,
            last_op: None,
            faults: DiskFaults::default(),
            spoilt_stretches: Vec::new(),
            failing_sync: false,
            intact: true,
            loses_writes: false,
            spoilt: Spoilt::default(),
            spoilt_before: Spoilt::default(),
            read_errors: 0,
            write_errors: 0,
            judged: false,
            stats: DiskStats::default(),
        }
    }

    /// Files and their lengths: what a process finds when it opens the directory.
    #[must_use]
    pub fn files(&self) -> Vec<(FileId, u64)> {
        self.files
            .iter()
            .map(|(id, file)| (*id, file.cached.len() as u64))
            .collect()
    }

    /// How far reads can have returned what was written: not after a bit rotted or a write was misdirected, nor in a
    /// life whose reads were spoilt, nor in the next life.
    #[must_use]
    pub fn trust(&self) -> Trust {
        let [now, before] = [self.spoilt, self.spoilt_before];
        if self.loses_writes {
            Trust::LosesWrites
        } else if !self.intact || now.flipped || before.flipped {
            Trust::Damaged
        } else if now.failed || before.failed {
            Trust::Unread
        } else {
            Trust::Intact
        }
    }

    /// Reads that ended in an error since the process began.
    #[must_use]
    pub fn read_errors(&self) -> u64 {
        self.read_errors
    }

    /// Writes, syncs, creations and deletions that ended in an error since the process began.
    #[must_use]
    pub fn write_errors(&self) -> u64 {
        self.write_errors
    }

    /// The log of this life was opened and its announcements were checked: reads that were spoilt before no longer
    /// matter.
    pub fn was_judged(&mut self) {
        self.judged = true;
    }

    /// Counters of the disk.
    #[must_use]
    pub fn stats(&self) -> DiskStats {
        self.stats
    }

    /// Operations under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Whether an operation under way is a write.
    #[must_use]
    pub fn is_write(&self, caller: Caller) -> bool {
        self.flights
            .get(&caller)
            .is_some_and(|flight| matches!(flight.what, DiskOp::Write { .. }))
    }

    /// Whether an operation under way is a sync.
    #[must_use]
    pub fn is_sync(&self, caller: Caller) -> bool {
        self.flights
            .get(&caller)
            .is_some_and(|flight| matches!(flight.what, DiskOp::Sync { .. }))
    }

    /// Makes the next sync end in an error.
    pub fn fail_next_sync(&mut self) {
        self.failing_sync = true;
    }

    /// Replaces the active faults.
    pub fn set_faults(&mut self, faults: DiskFaults) {
        (self.faults, self.failing_sync) = (faults, false);
    }

    /// Submits an operation and returns when it completes.
    ///
    /// # Errors
    /// If the operation breaks the contract of the device: alignment, or an id used twice.
    pub fn submit(
        &mut self,
        now: Instant,
        caller: Caller,
        what: DiskOp,
        memory: &Memory,
    ) -> Checked<Instant> {
        if let Caller::Agent(op) = caller {
            if self.last_op.is_some_and(|last| last >= op) {
                return Err(contract(format!(
                    "{op:?} is not newer than {:?}",
                    self.last_op
                )));
            }
            self.last_op = Some(op);
        }
        check_alignment(&what)?;
        let early = match &what {
            DiskOp::Write { parts, .. } => gather(parts, memory)?,
            _ => Vec::new(),
        };
        let (error, late) = (self.fate(&what), self.rng.chance(0.5));
        self.flights.insert(
            caller,
            Flight {
                what,
                error,
                barrier: self.writes,
                early,
                late,
            },
        );
        self.stats.operations += 1;
        self.stats.in_flight_max = self.stats.in_flight_max.max(self.flights.len());
        let mut latency = LATENCY_MIN + self.rng.below(LATENCY_SPREAD);
        let stall = u64::try_from(self.faults.stall.as_nanos()).unwrap_or(u64::MAX);
        if stall > 0 {
            latency += self.rng.below(stall);
        }
        Ok(now + Duration::from_nanos(latency))
    }

    /// Ends an operation; `None` when a crash discarded it.
    ///
    /// # Errors
    /// If the operation accesses memory outside its extent.
    pub fn complete(&mut self, caller: Caller, memory: &mut Memory) -> Checked<Option<Ended>> {
        let Some(flight) = self.flights.remove(&caller) else {
            return Ok(None);
        };
        let reads = matches!(flight.what, DiskOp::Read { .. });
        let result = match flight.what.clone() {
            DiskOp::Create { file, bytes } => self.create(file, bytes, flight.error),
            DiskOp::Write {
                file,
                offset,
                parts,
            } => {
                let bytes = if flight.late {
                    gather(&parts, memory)?
                } else {
                    flight.early
                };
                self.write(file, offset, bytes, flight.error)
            }
            DiskOp::Sync { file } => self.sync(file, flight.barrier, flight.error),
            DiskOp::Delete { file, .. } => self.delete(file, flight.error),
            DiskOp::Read {
                file,
                offset,
                bytes,
                length,
                into,
            } => {
                let span = Span {
                    file,
                    offset: offset as usize,
                    bytes: bytes as usize,
                    length: length as usize,
                };
                self.read(&span, into, memory, flight.error)?
            }
        };
        self.stats.errors += u64::from(result.is_err());
        self.write_errors += u64::from(result.is_err() && !reads);
        Ok(Some(result))
    }

    fn fate(&mut self, what: &DiskOp) -> Option<DiskError> {
        let eio = Some(DiskError::Device { errno: EIO });
        match what {
            _ if self.faults.outage => eio,
            DiskOp::Read { .. } if self.rng.chance(self.faults.read_error) => eio,
            DiskOp::Create { .. } | DiskOp::Write { .. } | DiskOp::Delete { .. }
                if self.faults.read_only =>
            {
                Some(DiskError::ReadOnly)
            }
            DiskOp::Create { .. } if self.faults.full => Some(DiskError::Full),
            DiskOp::Create { .. } | DiskOp::Write { .. }
                if self.rng.chance(self.faults.write_error) =>
            {
                eio
            }
            DiskOp::Sync { .. } if std::mem::take(&mut self.failing_sync) => eio,
            // A deletion ends with a sync of the directory.
            DiskOp::Sync { .. } | DiskOp::Delete { .. }
                if self.rng.chance(self.faults.sync_error) =>
            {
                eio
            }
            _ => None,
        }
    }

    fn create(&mut self, file: FileId, bytes: u64, error: Option<DiskError>) -> Ended {
        let used: u64 = self
            .files
            .values()
            .map(|file| file.cached.len() as u64)
            .sum();
        let error = error.or((used + bytes > self.capacity).then_some(DiskError::Full));
        if let Some(error) = error {
            // A creation that failed may leave a short file behind.
            if error != DiskError::ReadOnly
                && self.rng.chance(0.3)
                && !self.files.contains_key(&file)
            {
                let short = self.rng.below(bytes / BLOCK_BYTES + 1) * BLOCK_BYTES;
                self.files.insert(
                    file,
                    File::of(short.min(self.capacity.saturating_sub(used))),
                );
            }
            return Err(error);
        }
        if self.files.contains_key(&file) {
            return Err(DiskError::Device { errno: EEXIST });
        }
        Ok(self.make(file, bytes))
    }

    /// Makes a file, out of the one that was deleted last where it has the same length.
    fn make(&mut self, id: FileId, bytes: u64) -> DiskOutcome {
        let mut file = File::of(bytes);
        let old = self.spare.take_if(|old| old.len() as u64 == bytes);
        let Some(mut old) = old.filter(|_| bytes >= BLOCK_BYTES) else {
            self.files.insert(id, file);
            return DiskOutcome::Done;
        };
        old[..BLOCK_BYTES as usize].fill(0);
        file.durable.clone_from(&old);
        file.cached = old;
        self.files.insert(id, file);
        DiskOutcome::Reused
    }

    /// Removes the name, then syncs the directory: when that fails, the name is gone until a power cut.
    fn delete(&mut self, id: FileId, error: Option<DiskError>) -> Ended {
        if error == Some(DiskError::ReadOnly) {
            return Err(DiskError::ReadOnly);
        }
        let removed = self.files.remove(&id);
        self.unlinked.extend(removed.map(|file| (id, file)));
        match error {
            Some(error) => Err(error),
            None => {
                self.spare = self.unlinked.remove(&id).map(|file| file.durable);
                self.sync_names();
                Ok(DiskOutcome::Done)
            }
        }
    }

    /// Makes the removal of names durable, as a process does before it lists the directory.
    pub fn sync_names(&mut self) {
        self.unlinked.clear();
    }

    fn write(
        &mut self,
        id: FileId,
        offset: u64,
        mut bytes: Vec<u8>,
        error: Option<DiskError>,
    ) -> Ended {
        let file = self.files.get_mut(&id).ok_or(DiskError::Missing)?;
        if offset + bytes.len() as u64 > file.cached.len() as u64 {
            return Err(DiskError::Missing);
        }
        if error == Some(DiskError::ReadOnly) {
            return Err(DiskError::ReadOnly);
        }
        let mut offset = offset;
        if error.is_some() {
            let blocks = bytes.len() as u64 / BLOCK_BYTES;
            bytes.truncate((self.rng.below(blocks + 1) * BLOCK_BYTES) as usize);
        } else if self.rng.chance(self.faults.misdirect) {
            // A piece from the middle of a batch does not fall on the first block, which says whose file it is: the log
            // refuses a file that is not its own, and is right to.
            let magic = BLOCK_BYTES as usize..BLOCK_BYTES as usize + 8;
            let begins_batch = bytes.get(..8) == file.cached.get(magic);
            let first = u64::from(!begins_batch);
            let places = (file.cached.len() - bytes.len()) as u64 / BLOCK_BYTES + 1;
            offset = self.rng.below(places).max(first.min(places - 1)) * BLOCK_BYTES;
            self.loses_writes = true;
            self.stats.rotten += 1;
        }
        self.writes += 1;
        file.apply(Unsynced {
            number: self.writes,
            offset,
            bytes,
        });
        error.map_or(Ok(DiskOutcome::Done), Err)
    }

    fn sync(&mut self, id: FileId, barrier: u64, error: Option<DiskError>) -> Ended {
        let file = self.files.get_mut(&id).ok_or(DiskError::Missing)?;
        let waiting = std::mem::take(&mut file.unsynced);
        for write in waiting {
            if write.number > barrier {
                file.unsynced.push(write);
            } else if error.is_none() || self.rng.chance(0.5) {
                put(&mut file.durable, write.offset, &write.bytes);
            }
            // A failed sync marks its pages clean: they stay readable and are lost with the next power cut
            // (Rebello et al., "Can Applications Recover from fsync Failures?", 2020).
        }
        error.map_or(Ok(DiskOutcome::Done), Err)
    }

    fn read(
        &mut self,
        span: &Span,
        into: Target,
        memory: &mut Memory,
        error: Option<DiskError>,
    ) -> Checked<Ended> {
        let Some(file) = self.files.get(&span.file) else {
            return Ok(Err(DiskError::Missing));
        };
        let Some(found) = file.cached.get(span.offset..span.offset + span.bytes) else {
            return Ok(Err(DiskError::Missing));
        };
        let mut bytes = found.to_vec();
        if !bytes.is_empty() && self.rng.chance(self.faults.read_flip) {
            let at = self.rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.rng.below(8);
            self.stats.rotten += 1;
            self.spoilt.flipped = true;
        }
        for stretch in &self.spoilt_stretches {
            let hit = stretch.spoil(span, &mut bytes);
            self.stats.rotten += u64::from(hit);
            self.spoilt.flipped |= hit;
        }
        self.spoilt.failed |= error.is_some();
        self.read_errors += u64::from(error.is_some());
        if error.is_some() {
            bytes.truncate(self.rng.below(bytes.len() as u64 + 1) as usize);
        }
        if let Target::Extent(extent) = into {
            memory.write(extent, 0, &bytes[..bytes.len().min(extent.bytes as usize)])?;
        }
        if let Some(error) = error {
            return Ok(Err(error));
        }
        if span.length > bytes.len() {
            return Err(contract(format!(
                "a read of {} bytes wants the checksum of {}",
                bytes.len(),
                span.length
            )));
        }
        let checksum = Checksum::of(&bytes[..span.length]);
        let wanted = into == Target::Completion;
        let bytes = if wanted { bytes.into() } else { Bytes::new() };
        Ok(Ok(DiskOutcome::Read { bytes, checksum }))
    }
}

/// The bytes of a write as they are now.
fn gather(parts: &[Part], memory: &Memory) -> Checked<Vec<u8>> {
    let mut all = Vec::new();
    for part in parts {
        match part {
            Part::Bytes(bytes) => all.extend_from_slice(bytes),
            Part::Extent { extent, length } => {
                all.extend_from_slice(&memory.read(*extent, 0, *length as usize)?);
                all.resize(round_to_block(all.len() as u64) as usize, 0);
            }
        }
    }
    Ok(all)
}

fn check_alignment(what: &DiskOp) -> Checked {
    let numbers: Vec<u64> = match what {
        DiskOp::Create { bytes, .. } => vec![*bytes],
        DiskOp::Write { offset, parts, .. } => {
            let lengths = parts.iter().map(|part| match part {
                Part::Bytes(bytes) => bytes.len() as u64,
                Part::Extent { .. } => 0,
            });
            std::iter::once(*offset).chain(lengths).collect()
        }
        DiskOp::Read { offset, bytes, .. } => vec![*offset, *bytes],
        DiskOp::Sync { .. } | DiskOp::Delete { .. } => Vec::new(),
    };
    if numbers
        .iter()
        .all(|number| number.is_multiple_of(BLOCK_BYTES))
    {
        return Ok(());
    }
    Err(contract(format!(
        "an operation is not aligned to blocks: {what:?}"
    )))
}

fn contract(what: String) -> Violation {
    Violation::new(Invariant::Contract, what)
}

const EIO: i32 = 5;
const EEXIST: i32 = 17;
const LATENCY_MIN: u64 = 20_000;
const LATENCY_SPREAD: u64 = 400_000;

#[cfg(test)]
mod tests;
