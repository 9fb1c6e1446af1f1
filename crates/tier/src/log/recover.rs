use std::collections::{BTreeMap, BTreeSet, VecDeque};

use slackwater_base::{BLOCK_BYTES, Planted, planted};
use slackwater_wire::limits::BATCH_KEYS_MAX;
use slackwater_wire::{ReportedEntry, Version};

use super::files::{File, FileState};
use super::scan::{FileScan, Hole, Step};
use super::verify::Doubtful;
use super::{Log, LogOut, Purpose};
use crate::agent::Opened;
use crate::format::{
    Batch, Entry, FileHeader, FirstBlock, FormatError, Identity, Position, Record,
};
use crate::io::{DiskError, DiskOp, DiskOutcome, FileId, LogFile, Target};

/// Rebuilding the index from the files. It writes only what is there already, so it may be cut off anywhere and begun
/// again.
///
/// Six passes, each over as many files at a time as configured: first blocks, headers, the bytes of batches that
/// may not have been durable, the deletion of files that are given up, a sync, and the headers again to announce what
/// lives. What is not announced now must never be later, though the device may then read what it could not read today:
/// hence the deletion before the first word. A killed process leaves bytes in
/// the cache of the device that the next power cut takes: they must be durable before they are announced, the
/// tombstones above all, or what they keep dead comes back.
#[derive(Debug)]
pub(crate) struct Recovery {
    fresh: u128,
    pub(super) pass: Pass,
    pub(super) found: BTreeMap<FileId, Found>,
    /// Files that the pass has yet to begin.
    pub(super) waiting: VecDeque<FileId>,
    busy: usize,
    log: Option<u128>,
    /// How far each life is known to have been durable.
    pub(super) durable: BTreeMap<u64, Position>,
    /// Files that are given up whole.
    pub(super) condemned: BTreeSet<FileId>,
    announced: Vec<ReportedEntry>,
    pub(super) opened: Opened,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    FirstBlocks,
    Headers,
    Verify,
    Clear,
    Secure,
    Announce,
}

/// What is known of one file.
#[derive(Debug)]
pub(super) struct Found {
    bytes: u64,
    pub(super) first: Option<FirstBlock>,
    pub(super) lives: BTreeSet<u64>,
    scan: Option<FileScan>,
    /// Batches that may not have been durable when the log was cut off.
    pub(super) unsettled: VecDeque<Batch>,
    /// The same when their bytes are to be read.
    pub(super) doubtful: VecDeque<Doubtful>,
    pub(super) suspect: bool,
    /// Given up and deleted.
    gone: bool,
    /// Its records that were announced, and the last error on the way.
    announced: u64,
    error: Option<DiskError>,
}

impl Pass {
    /// How many operations may be under way.
    fn operations(self, most: usize) -> usize {
        if self == Self::Clear { 1 } else { most.max(1) }
    }
}

impl Recovery {
    pub(crate) fn new(files: &[LogFile], fresh: u128) -> Self {
        let mut found: BTreeMap<FileId, Found> = files
            .iter()
            .map(|file| (file.file, Found::new(file.bytes - file.bytes % BLOCK_BYTES)))
            .collect();
        // A crash between making a file and giving it its length leaves one of no bytes.
        for empty in found.values_mut().filter(|found| found.bytes == 0) {
            empty.first = Some(FirstBlock::Blank);
        }
        let waiting = found
            .iter()
            .filter(|(_, found)| found.first.is_none())
            .map(|(id, _)| *id)
            .collect();
        let opened = Opened {
            files: found.len() as u64,
            ..Opened::default()
        };
        Self {
            fresh,
            pass: Pass::FirstBlocks,
            found,
            waiting,
            busy: 0,
            log: None,
            durable: BTreeMap::new(),
            condemned: BTreeSet::new(),
            announced: Vec::new(),
            opened,
        }
    }

    pub(super) fn saw_version(&mut self, version: Version) {
        self.opened.highest_version = self.opened.highest_version.max(version);
    }
}

impl Found {
    fn new(bytes: u64) -> Self {
        Self {
            bytes,
            first: None,
            lives: BTreeSet::new(),
            scan: None,
            unsettled: VecDeque::new(),
            doubtful: VecDeque::new(),
            suspect: false,
            gone: false,
            announced: 0,
            error: None,
        }
    }
}

impl Log {
    /// Begins reads until enough files are being read, and goes on to the next pass when the last one ended.
    pub(super) fn recover_step(&mut self, out: &mut Vec<LogOut>) {
        loop {
            let Some(recovery) = &mut self.recovery else {
                return;
            };
            while recovery.busy < recovery.pass.operations(self.config.recovery_reads_max) {
                let Some(file) = recovery.waiting.pop_front() else {
                    break;
                };
                let Some(request) = recovery.next_request(file) else {
                    continue;
                };
                recovery.busy += 1;
                let op = crate::io::OpId(self.next_op);
                self.next_op += 1;
                self.ops.insert(op, Purpose::Recover(file));
                out.push(LogOut::Disk(op, request));
            }
            if recovery.busy > 0 {
                return;
            }
            match recovery.pass {
                Pass::FirstBlocks => self.begin_headers(),
                Pass::Headers => self.settle_lives(),
                Pass::Verify => self.begin_clearing(),
                Pass::Clear => self.begin_securing(),
                Pass::Secure => self.begin_announcing(),
                Pass::Announce => return self.finish_recovery(out),
            }
        }
    }

    pub(super) fn recovered(
        &mut self,
        file: FileId,
        result: Result<DiskOutcome, DiskError>,
        out: &mut Vec<LogOut>,
    ) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        recovery.busy -= 1;
        // What was not read for want of a descriptor is there all the same: taken for a hole, it would be deleted.
        if let Err(error @ DiskError::Resources { .. }) = result {
            return self.refuse(FormatError::Starved { file, error }, out);
        }
        match recovery.pass {
            Pass::FirstBlocks => {
                if let Err(error) = recovery.first_block(file, &result) {
                    self.refuse(error, out);
                    return;
                }
            }
            Pass::Headers => self.took_headers(file, &result),
            Pass::Verify => {
                if let Err(error) = self.verified(file, result) {
                    return self.refuse(error, out);
                }
            }
            Pass::Clear => {
                if let Err(error) = recovery.cleared(file, &result) {
                    return self.refuse(error, out);
                }
            }
            // The next power cut may take back entries of a file that cannot be synced, its tombstones above all.
            Pass::Secure => {
                if let Err(error) = result {
                    return self.refuse(FormatError::Unreadable { file, error }, out);
                }
            }
            Pass::Announce => self.announce_batch(file, &result, out),
        }
        self.recover_step(out);
    }

    /// The files are not ours to open: nothing was changed, and nothing will be.
    fn refuse(&mut self, error: FormatError, out: &mut Vec<LogOut>) {
        self.recovery = None;
        self.ops.clear();
        out.push(LogOut::Refused(error));
    }

    fn begin_headers(&mut self) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        self.identity = recovery.log.unwrap_or(recovery.fresh);
        recovery.pass = Pass::Headers;
        for (id, found) in &mut recovery.found {
            if found.first != Some(FirstBlock::Blank) {
                let identity = Identity {
                    log: self.identity,
                    file: *id,
                };
                found.scan = Some(FileScan::new(identity, found.bytes));
                recovery.waiting.push_back(*id);
            }
        }
    }

    fn took_headers(&mut self, file: FileId, result: &Result<DiskOutcome, DiskError>) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        let Some(found) = recovery.found.get_mut(&file) else {
            return;
        };
        let Some(scan) = &mut found.scan else { return };
        let step = scan.take(bytes_of(result));
        if !matches!(step, Step::End) {
            recovery.waiting.push_front(file);
        }
        let Step::Batch(batch) = step else { return };
        found.lives.insert(batch.life);
        let durable = recovery.durable.entry(batch.life).or_insert(batch.durable);
        *durable = (*durable).max(batch.durable);
        found.unsettled.push_back(batch);
        // What a later batch of the same life says was durable need not wait for the end of the pass.
        let mut settled = Vec::new();
        while let Some(first) = found.unsettled.front()
            && recovery
                .durable
                .get(&first.life)
                .is_some_and(|durable| is_before(file, first.end(), durable))
        {
            settled.extend(found.unsettled.pop_front());
        }
        for batch in settled {
            self.apply(file, batch);
        }
    }

    /// Takes in a batch whose bytes are known to be right.
    pub(super) fn apply(&mut self, file: FileId, batch: Batch) {
        for entry in batch.entries {
            match entry {
                Entry::Record(record) => self.apply_record(file, &record),
                Entry::Tombstone { hash, version } => self.apply_tombstone(file, hash, version),
            }
        }
    }

    pub(super) fn apply_record(&mut self, file: FileId, record: &Record) {
        if let Some(recovery) = &mut self.recovery {
            recovery.saw_version(record.entry.version);
        }
        let at = (file, record.offset);
        if let Some(slot) =
            super::index::Slot::new(record.entry.version, record.checksum, at, record.length)
        {
            self.index.place(record.hash, slot);
        }
    }

    fn apply_tombstone(&mut self, file: FileId, hash: slackwater_base::KeyHash, version: Version) {
        if let Some(recovery) = &mut self.recovery {
            recovery.saw_version(version);
        }
        self.index.find_tombstone(hash, version, file);
    }

    /// All headers are read, and holes are judged. A hole that was durable once may have held a tombstone, so everything
    /// older is given up.
    fn settle_lives(&mut self) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        let mut again = VecDeque::new();
        let mut rotten_up_to = None;
        for (id, found) in &mut recovery.found {
            let Some(scan) = &mut found.scan else {
                continue;
            };
            let known = found
                .lives
                .iter()
                .filter_map(|life| recovery.durable.get(life))
                .max()
                .copied();
            let end = known.map_or(0, |durable| match durable.file.cmp(id) {
                std::cmp::Ordering::Greater => 0,
                std::cmp::Ordering::Equal => durable.offset,
                std::cmp::Ordering::Less => 0,
            });
            if scan.at() < end && scan.read().is_none() {
                scan.sweep_on();
                again.push_back(*id);
                continue;
            }
            let was_durable = |hole: &Hole| known.is_some_and(|d| is_before(*id, hole.at + 1, &d));
            // A write that a crash cut off can be read; a batch that cannot be read may have been durable.
            let rotten = scan
                .holes
                .iter()
                .filter(|hole| hole.unreadable || was_durable(hole))
                .count();
            if rotten > 0 {
                rotten_up_to = Some(*id);
            }
            recovery.opened.rotten += rotten as u64;
            recovery.opened.torn += (scan.holes.len() - rotten) as u64;
            recovery.opened.repaired += scan.repaired;
            // One copy of headers is left of two: the file is written again while it can be read.
            found.suspect |= !scan.holes.is_empty()
                || scan.repaired > 0
                || found.first == Some(FirstBlock::Damaged);
        }
        if !again.is_empty() {
            recovery.waiting = again;
            return;
        }
        if let Some(last) = rotten_up_to {
            recovery.condemned = recovery.found.range(..=last).map(|(id, _)| *id).collect();
        }
        self.begin_verifying();
    }

    /// Gives up unverified records for good. The files go in ascending order: while the one with the unreadable
    /// header exists, all older ones are doubtful.
    fn begin_clearing(&mut self) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        recovery.pass = Pass::Clear;
        let condemned = &recovery.condemned;
        recovery.opened.doubtful = self.index.give_up(|file| condemned.contains(&file));
        self.index
            .give_up_tombstones(|file| condemned.contains(&file));
        recovery.waiting = condemned.iter().copied().collect();
    }

    fn begin_securing(&mut self) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        recovery.pass = Pass::Secure;
        let secure = !planted(Planted::RecoveryWithoutSync);
        let written =
            |found: &Found| secure && !found.gone && found.first != Some(FirstBlock::Blank);
        let written = recovery.found.iter().filter(|(_, found)| written(found));
        recovery.waiting = written.map(|(id, _)| *id).collect();
    }

    /// The index is complete: takes the files in, and reads headers again for the names of what lives.
    fn begin_announcing(&mut self) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        recovery.pass = Pass::Announce;
        for (id, found) in &recovery.found {
            // Records behind a lost first block were not counted, so it must not be counted off: the file goes unread.
            let state = match found.first {
                Some(FirstBlock::Blank) if !planted(Planted::UncountedRecordsCountedOff) => {
                    FileState::Deletable(self.now)
                }
                _ => FileState::Sealed,
            };
            let mut file = File::new(found.bytes, state);
            file.suspect = found.suspect;
            self.files.adopt(*id, file);
            if found.gone {
                // Its number stays used.
                self.files.remove(*id);
            }
        }
        if !self.files.any_suspect() {
            for name in self.index.needless_tombstones() {
                self.index.release_tombstone(name);
            }
        }
        for file in self.index.tombstone_files().collect::<Vec<_>>() {
            self.files.add_tombstone(file);
        }
        for slot in self.index.slots() {
            self.files.live(slot.file(), slot.padded());
            self.value_bytes += slot.length();
        }
        recovery.opened.records = self.index.records() as u64;
        recovery.opened.bytes = self.value_bytes;
        recovery.opened.tombstones = self.index.tombstones() as u64;
        for (id, found) in &mut recovery.found {
            if self
                .files
                .get(*id)
                .is_some_and(|file| file.live_records > 0)
            {
                found.scan = Some(FileScan::new(
                    Identity {
                        log: self.identity,
                        file: *id,
                    },
                    found.bytes,
                ));
                recovery.waiting.push_back(*id);
            }
        }
    }

    fn announce_batch(
        &mut self,
        file: FileId,
        result: &Result<DiskOutcome, DiskError>,
        out: &mut Vec<LogOut>,
    ) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        let Some(found) = recovery.found.get_mut(&file) else {
            return;
        };
        let Some(scan) = &mut found.scan else { return };
        found.error = result.as_ref().err().copied().or(found.error);
        let step = scan.take(bytes_of(result));
        if !matches!(step, Step::End) {
            recovery.waiting.push_front(file);
        }
        let Step::Batch(batch) = step else { return };
        for record in batch.entries.into_iter().filter_map(into_record) {
            if self
                .index
                .get(record.hash)
                .is_some_and(|slot| slot.is_at(file, record.offset))
            {
                let Record {
                    entry,
                    length,
                    checksum,
                    ..
                } = record;
                found.announced += 1;
                recovery.announced.push(ReportedEntry {
                    entry,
                    bytes: length,
                    checksum,
                });
                let most = self.config.announce_entries_max.min(BATCH_KEYS_MAX);
                if recovery.announced.len() >= most {
                    out.push(LogOut::Announce(std::mem::take(&mut recovery.announced)));
                }
            }
        }
    }

    /// A file of which not all that lives can be named, though its headers were read a moment ago, keeps the log shut:
    /// the master would not know what a later life announces.
    fn finish_recovery(&mut self, out: &mut Vec<LogOut>) {
        let Some(mut recovery) = self.recovery.take() else {
            return;
        };
        let unnamed = |(id, found): &(&FileId, &Found)| {
            self.files
                .get(**id)
                .is_some_and(|file| file.live_records != found.announced)
        };
        if let Some((file, found)) = recovery.found.iter().find(unnamed) {
            let error = found.error.unwrap_or(DiskError::Missing);
            return self.refuse(FormatError::Unreadable { file: *file, error }, out);
        }
        if !recovery.announced.is_empty() {
            out.push(LogOut::Announce(recovery.announced));
        }
        let lives = recovery
            .found
            .values()
            .flat_map(|found| found.lives.iter().copied());
        self.life = (opening_of(lives.max().unwrap_or(0)) + 1) * LIVES_AN_OPENING;
        self.highest_version = recovery.opened.highest_version;
        recovery.opened.files = self.files.len() as u64;
        self.measure(u64::MAX);
        out.push(LogOut::Opened(recovery.opened));
        for entry in std::mem::take(&mut self.early) {
            self.drop_entry(self.now, entry, out);
        }
    }
}

impl Recovery {
    /// The next operation on `file` in this pass.
    fn next_request(&mut self, file: FileId) -> Option<DiskOp> {
        let found = self.found.get_mut(&file)?;
        match self.pass {
            Pass::FirstBlocks => {
                let bytes = BLOCK_BYTES;
                Some(DiskOp::Read {
                    file,
                    offset: 0,
                    bytes,
                    length: bytes,
                    into: Target::Completion,
                })
            }
            Pass::Headers | Pass::Announce => found.scan.as_ref()?.read(),
            Pass::Clear => Some(DiskOp::Delete { file, room: 0 }),
            Pass::Secure => Some(DiskOp::Sync { file }),
            Pass::Verify => found.doubtful.front_mut()?.request(file),
        }
    }

    /// While a file that is given up may be found again, nothing is announced: the log stays shut.
    fn cleared(
        &mut self,
        file: FileId,
        result: &Result<DiskOutcome, DiskError>,
    ) -> Result<(), FormatError> {
        match result {
            Ok(_) => {
                if let Some(found) = self.found.get_mut(&file) {
                    found.gone = true;
                }
                Ok(())
            }
            Err(error) => Err(FormatError::Unreadable {
                file,
                error: *error,
            }),
        }
    }

    fn first_block(
        &mut self,
        file: FileId,
        result: &Result<DiskOutcome, DiskError>,
    ) -> Result<(), FormatError> {
        let Some(found) = self.found.get_mut(&file) else {
            return Ok(());
        };
        let bytes = bytes_of(result).map_err(|error| FormatError::Unreadable { file, error })?;
        let first = FileHeader::decode(file, bytes)?;
        found.first = Some(first);
        if let FirstBlock::Header(header) = first {
            if *self.log.get_or_insert(header.log) != header.log {
                return Err(FormatError::Misplaced { file });
            }
            found.lives.insert(header.life);
            self.saw_version(header.highest_version);
        }
        Ok(())
    }
}

pub(super) fn into_record(entry: Entry) -> Option<Record> {
    match entry {
        Entry::Record(record) => Some(record),
        Entry::Tombstone { .. } => None,
    }
}

fn bytes_of(result: &Result<DiskOutcome, DiskError>) -> Result<&[u8], DiskError> {
    match result {
        Ok(DiskOutcome::Read { bytes, .. }) => Ok(bytes),
        Ok(DiskOutcome::Done | DiskOutcome::Reused) => Err(DiskError::Missing),
        Err(error) => Err(*error),
    }
}

/// Each opening of the log begins so many lives further on: a failed write or sync begins the next one.
const LIVES_AN_OPENING: u64 = 1 << 32;

/// Which opening a life belongs to.
pub(super) fn opening_of(life: u64) -> u64 {
    life / LIVES_AN_OPENING
}

/// Whether the bytes of `file` up to `end` are before `position`.
pub(super) fn is_before(file: FileId, end: u64, position: &Position) -> bool {
    (file, end) <= (position.file, position.offset)
}
