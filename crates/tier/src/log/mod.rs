//! The SSD log: append-only files, group commit, an index in memory, reclaim and recovery.

mod commit;
mod failed_reads;
mod files;
mod index;
mod pace;
mod pieces;
mod provide;
mod queue;
mod reads;
mod reclaim;
mod recover;
mod scan;
mod shield;
mod verify;
mod write;

use std::collections::BTreeMap;
use std::time::Duration;

use slackwater_base::{BLOCK_BYTES, Checksum, Instant, KeyHash, Planted, planted, round_to_block};
use slackwater_wire::{
    DiskEntry, DiskState, ExtentRef, NodeId, ReportedEntry, SegmentId, TaskFailure, TicketId,
    Version,
};

use crate::agent::{Opened, ReadId, TierStats};
use crate::config::LogConfig;
use crate::format::{FormatError, Identity, Record, alone_overhead, name_of};
use crate::io::{DiskDone, DiskError, DiskOp, DiskOutcome, FileId, LogFile, OpId};
use failed_reads::FailedReads;
use files::{File, FileState, Files, List, RESERVE};
use index::{Index, Slot};
use pace::{Pace, PieceMark};
use reads::Pin;
use reclaim::Reclaim;
use recover::Recovery;
use shield::Shields;
use write::{Answer, Writer};

/// How long an emptied file that cannot be deleted yet counts as room to come: plenty for the operations of the device that it
/// waits for, and less than a put waits for memory by default. What is queued meanwhile keeps its memory, so a reader that stalls, or
/// tombstones that have no room before the file goes, are not waited for.
const EMPTIED_COUNTS_FOR: Duration = Duration::from_secs(1);

/// Operations and answers of the log.
#[derive(Debug)]
pub(crate) enum LogOut {
    Disk(OpId, DiskOp),
    Written(TicketId, Result<(), TaskFailure>),
    Dropped(DiskEntry),
    Lost(DiskEntry),
    /// These live, and are about to be written again.
    Emptying(Vec<DiskEntry>),
    Read {
        ticket: TicketId,
        read: ReadId,
        result: Result<Checksum, DiskError>,
    },
    Announce(Vec<ReportedEntry>),
    Opened(Opened),
    Refused(FormatError),
    Flushed(u64),
}

/// What an operation under way is for.
#[derive(Debug)]
enum Purpose {
    Recover(FileId),
    Create(FileId),
    Delete(FileId),
    Write(u64, PieceMark),
    Sync(FileId),
    DrainScan,
    DrainRead(Record),
    Read(TicketId, ReadId),
}

/// The SSD log of one node.
#[derive(Debug)]
pub(crate) struct Log {
    config: LogConfig,
    file_bytes: u64,
    identity: u128,
    life: u64,
    highest_version: Version,
    now: Instant,
    next_op: u64,
    ops: BTreeMap<OpId, Purpose>,
    files: Files,
    index: Index,
    shields: Shields,
    writer: Writer,
    pace: Pace,
    reclaim: Option<Reclaim>,
    /// When reclaim may copy the next record.
    copy_at: Instant,
    recovery: Option<Recovery>,
    reads: BTreeMap<ReadId, Pin>,
    next_read: u64,
    failed_reads: FailedReads,
    /// Drops that were ordered before the log was open.
    early: Vec<DiskEntry>,
    stopping: bool,
    /// Bytes of all files while they are more than the capacity: that was larger once, or a crash found the log with the
    /// one file more that reclaim may begin.
    overlong: Option<u64>,
    value_bytes: u64,
    /// Bytes of the node's memory, from which records come.
    memory_bytes: u64,
    /// Header bytes of 64 records, on a running average.
    name_bytes: u64,
    stats: TierStats,
}

/// A value to be written.
#[derive(Debug)]
pub(crate) struct Offload {
    pub(crate) ticket: TicketId,
    pub(crate) entry: DiskEntry,
    pub(crate) bytes: u64,
    pub(crate) checksum: Checksum,
    pub(crate) source: ExtentRef,
    /// A caller was promised that it is durable before its end is reported.
    pub(crate) promised: bool,
}

/// What a log that stopped leaves undone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AtRest {
    /// Orders that the device did not take.
    pub(crate) lost: usize,
    /// The records among them that were promised to be durable.
    pub(crate) promised: usize,
    /// Records that were given back since the order to stop.
    pub(crate) given_back: usize,
}

impl Log {
    pub(crate) fn new(config: LogConfig) -> Self {
        Self {
            file_bytes: config.file_bytes_used(),
            identity: 0,
            life: 0,
            highest_version: Version(0),
            now: Instant::ZERO,
            next_op: 0,
            ops: BTreeMap::new(),
            files: Files::default(),
            index: Index::default(),
            shields: Shields::default(),
            writer: Writer::default(),
            pace: Pace::new(config.pace),
            config,
            reclaim: None,
            copy_at: Instant::ZERO,
            recovery: None,
            reads: BTreeMap::new(),
            next_read: 0,
            failed_reads: FailedReads::default(),
            early: Vec::new(),
            stopping: false,
            overlong: None,
            value_bytes: 0,
            memory_bytes: 0,
            name_bytes: 64 * 128,
            stats: TierStats::default(),
        }
    }

    /// The node lends this much memory now.
    pub(crate) fn set_memory(&mut self, bytes: u64) {
        self.memory_bytes = bytes;
    }

    /// Begins recovery over the files there are.
    pub(crate) fn open(
        &mut self,
        now: Instant,
        files: &[LogFile],
        fresh: u128,
        out: &mut Vec<LogOut>,
    ) {
        self.now = now;
        if let Some(file) = files
            .iter()
            .map(|file| file.file)
            .find(|file| file.0 >= u64::from(u32::MAX))
        {
            return out.push(LogOut::Refused(FormatError::Misplaced { file }));
        }
        if let Some(LogFile { file, .. }) = files
            .iter()
            .find(|file| (1..BLOCK_BYTES).contains(&file.bytes))
        {
            return out.push(LogOut::Refused(FormatError::Foreign {
                file: *file,
                begins: [0; 8],
            }));
        }
        self.recovery = Some(Recovery::new(files, fresh));
        self.recover_step(out);
    }

    /// Whether records can be read and written.
    pub(crate) fn is_open(&self) -> bool {
        self.recovery.is_none() && self.life > 0
    }

    /// Queues a value; the answer is [`LogOut::Written`].
    pub(crate) fn offload(&mut self, now: Instant, offload: Offload, out: &mut Vec<LogOut>) {
        self.now = now;
        let ticket = offload.ticket;
        let hash = name_of(&offload.entry);
        if let Some(slot) = self.index.get(hash)
            && slot.version == offload.entry.version
            && (slot.length(), slot.checksum) == (offload.bytes, offload.checksum)
            && (!offload.promised || self.is_durable(&offload.entry))
        {
            out.push(LogOut::Written(ticket, Ok(())));
            return;
        }
        match self.refusal(&offload, hash) {
            Some(failure) => out.push(LogOut::Written(ticket, Err(failure))),
            None => self.queue_offload(offload, hash),
        }
    }

    fn refusal(&self, offload: &Offload, hash: KeyHash) -> Option<TaskFailure> {
        let moved_on = self
            .index
            .get(hash)
            .is_some_and(|slot| slot.version > offload.entry.version)
            || self.index.would_die(hash, offload.entry.version);
        if !self.is_open() || self.stopping || moved_on {
            return Some(TaskFailure::Cancelled);
        }
        if offload.bytes == 0 {
            return Some(TaskFailure::Stale);
        }
        if !fits_in_file(&offload.entry, offload.bytes, self.file_bytes) {
            return Some(TaskFailure::TooLarge);
        }
        if let Some(failure) = self.writer.refusal() {
            return Some(failure);
        }
        let full = self.writer.offloads.len() >= self.config.records_queued_max || !self.has_room();
        full.then_some(TaskFailure::NoRoom)
    }

    /// Withdraws the queued values whose source is `extent`; those that are being written go on.
    pub(crate) fn source_died(&mut self, extent: ExtentRef, out: &mut Vec<LogOut>) {
        let orders = self.writer.offloads.of_source(extent);
        self.withdraw(&orders, TaskFailure::Stale, out);
    }

    /// Makes every record of the entry's key up to its version dead; the answer comes when no crash can undo it.
    pub(crate) fn drop_entry(&mut self, now: Instant, entry: DiskEntry, out: &mut Vec<LogOut>) {
        self.now = now;
        if self.recovery.is_some() {
            return self.early.push(entry);
        }
        self.drop_as(Answer::Dropped(entry), out);
    }

    /// Withdraws all values that wait to be written.
    pub(crate) fn withdraw_all(&mut self, out: &mut Vec<LogOut>) {
        let orders = self.writer.offloads.orders();
        self.withdraw(&orders, TaskFailure::Stale, out);
    }

    /// The segment that represents the log at the master.
    pub(crate) fn segment(&self) -> SegmentId {
        self.config.segment
    }

    /// Most records in one report.
    pub(crate) fn announced_at_once(&self) -> usize {
        self.config.announce_entries_max
    }

    /// The newest version that the log has seen, of records that are gone too.
    pub(crate) fn highest_version(&self) -> Version {
        self.highest_version
    }

    /// Version, length and checksum of the record of a name.
    pub(crate) fn newest_of(&self, name: KeyHash) -> Option<(Version, u64, Checksum)> {
        let slot = self.index.get(name).filter(|_| self.is_open())?;
        Some((slot.version, slot.length(), slot.checksum))
    }

    /// As [`Log::drop_entry`] for a record whose bytes are wrong.
    fn lose(&mut self, entry: DiskEntry, out: &mut Vec<LogOut>) {
        self.stats.records_lost += 1;
        self.drop_as(Answer::Lost(entry), out);
    }

    /// The master named a record that the log does not have: reports it as dropped, once no crash can bring it back.
    pub(crate) fn missed(&mut self, now: Instant, entry: DiskEntry, out: &mut Vec<LogOut>) {
        self.now = now;
        if self.is_open() {
            self.drop_as(Answer::Lost(entry), out);
        }
    }

    fn drop_as(&mut self, answer: Answer, out: &mut Vec<LogOut>) {
        let Some(entry) = answer.entry() else { return };
        let (hash, version) = (name_of(entry), entry.version);
        self.highest_version = self.highest_version.max(version);
        if self.writer.is_waiting(hash) {
            let orders = self.writer.offloads.of_key(hash, version);
            self.withdraw(&orders, TaskFailure::Cancelled, out);
        }
        let nothing_there = !self.index.may_hold(hash, version)
            && !self.files.any_suspect()
            && !self.writer.is_waiting(hash);
        let newer = |slot: &Slot| slot.version > version;
        let superseded =
            planted(Planted::NewerRecordIsEnough) && self.index.get(hash).is_some_and(newer);
        if nothing_there || superseded {
            out.push(answer.given());
            return;
        }
        if let Some(slot) = self.index.kill(hash, version) {
            self.died(&slot);
            self.shields.raise(hash, slot.file());
        }
        if planted(Planted::DropWithoutTombstone) {
            out.push(answer.given());
            return;
        }
        self.queue_tombstone(hash, version, answer);
    }

    /// The record of exactly this version, once the index is complete.
    fn slot_of(&self, hash: KeyHash, version: Version) -> Option<&Slot> {
        self.index
            .get(hash)
            .filter(|slot| slot.version == version && self.is_open())
    }

    /// Length and checksum of a record.
    pub(crate) fn find(&self, entry: &DiskEntry) -> Option<(u64, Checksum)> {
        let slot = self.slot_of(name_of(entry), entry.version)?;
        Some((slot.length(), slot.checksum))
    }

    /// An operation has ended. Unknown ones are ignored: they were not submitted here, or ended before.
    pub(crate) fn on_disk(&mut self, now: Instant, done: DiskDone, out: &mut Vec<LogOut>) {
        self.now = now;
        let Some(purpose) = self.ops.remove(&done.op) else {
            return;
        };
        let result = done.result;
        if result.is_ok() {
            self.failed_reads.note_success();
        }
        match purpose {
            Purpose::Recover(file) => self.recovered(file, result, out),
            Purpose::Create(file) => self.created(file, result),
            Purpose::Delete(file) => self.deleted(file, result.map(drop)),
            Purpose::Write(flight, piece) => {
                self.piece_written(flight, piece, result.map(drop), out)
            }
            Purpose::Sync(file) => self.synced(file, result.map(drop), out),
            Purpose::DrainScan => self.drain_scanned(result, out),
            Purpose::DrainRead(record) => self.drain_read(record, result, out),
            Purpose::Read(ticket, read) => {
                out.push(LogOut::Read {
                    ticket,
                    read,
                    result: checksum_in(&result),
                });
            }
        }
    }

    /// Does whatever can be done now. Called after every input.
    pub(crate) fn step(&mut self, now: Instant, out: &mut Vec<LogOut>) {
        self.now = now;
        if !self.is_open() {
            return;
        }
        self.provide_file(out);
        self.reclaim_step(out);
        self.write_batches(out);
        self.end_stopped_file();
        self.send_pieces(out);
        self.provide_file(out);
        self.delete_files(out);
        self.refuse_when_stuck(out);
        self.answer_flushes(out);
        // After the answers: what the next flush waits for may be written already, and nothing else would tell.
        self.sync_written(out);
    }

    /// When [`Log::step`] has something to do that no completion brings about.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if !self.is_open() {
            return None;
        }
        let deletable = self
            .files
            .listed(List::Deletable)
            .filter_map(|id| self.files.get(id));
        // When it may be deleted, and when it is no longer counted on.
        let deletes = deletable.filter_map(|file| match file.state {
            FileState::Deletable(since) if since > self.now => Some(since),
            FileState::Deletable(since) => Some(since + EMPTIED_COUNTS_FOR),
            _ => None,
        });
        let waits = self
            .writer
            .deadlines(self.config.batch_delay)
            .into_iter()
            .chain([
                self.copy_deadline(),
                self.piece_deadline(),
                self.sync_deadline(),
            ])
            .flatten();
        if self.is_behind() {
            return Some(self.now);
        }
        // What is due already waits for a completion, which will bring the next step.
        waits.chain(deletes).filter(|at| *at > self.now).min()
    }

    pub(crate) fn flush(&mut self, number: u64, out: &mut Vec<LogOut>) {
        self.writer.begin_flush(number);
        self.answer_flushes(out);
    }

    /// Takes nothing new from now on, writes what is queued at once, and leaves reclaim and recovery where they are.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
        self.recovery = None;
    }

    /// What a log that was ordered to stop leaves undone, once it has nothing under way. Nothing waits for company then, so what
    /// no operation is under way for stays undone.
    pub(crate) fn at_rest(&self) -> Option<AtRest> {
        let rest = || AtRest {
            lost: self.writer.unresolved() + self.early.len(),
            promised: self.writer.offloads.promised(),
            given_back: self.writer.given_back,
        };
        (self.ops.is_empty() && !self.is_behind()).then(rest)
    }

    /// What the master should know.
    pub(crate) fn state(&self, node: NodeId) -> DiskState {
        DiskState {
            node,
            accepting: self.is_open()
                && !self.stopping
                && self.writer.refusal().is_none()
                && self.has_room(),
            failing: self.writer.is_failing(),
            capacity: self.usable_bytes(),
            pressure: self.pressure(),
        }
    }

    pub(crate) fn stats(&self) -> TierStats {
        TierStats {
            records: self.index.records() as u64,
            live_bytes: self.files.live_bytes(),
            file_bytes: self.files.bytes(),
            files: self.files.len() as u64,
            tombstones: self.index.tombstones() as u64,
            index_bytes: self.index.bytes() as u64,
            write_window_milli: (self.pace.window() * 1e3) as u64,
            read_slowdown_milli: (self.pace.slowdown() * 1e3) as u64,
            write_bytes_per_second: self.pace.bytes_per_second(),
            reads_delayed: self.pace.delayed(),
            ..self.stats
        }
    }

    fn submit(&mut self, purpose: Purpose, request: DiskOp, out: &mut Vec<LogOut>) {
        let op = OpId(self.next_op);
        self.next_op += 1;
        self.ops.insert(op, purpose);
        out.push(LogOut::Disk(op, request));
    }

    fn place(&self, file: FileId) -> Identity {
        Identity {
            log: self.identity,
            file,
        }
    }

    /// Files that could be begun now, the spare one included.
    fn files_free(&self) -> u64 {
        let begun = self
            .files
            .listed(List::Spare)
            .chain(self.files.listed(List::Creating))
            .count() as u64;
        self.config.capacity.saturating_sub(self.files.bytes()) / self.file_bytes + begun
    }

    /// Whether new records can be written, now or when what is under way has made room.
    fn has_room(&self) -> bool {
        if self.overlong.is_some() {
            return false;
        }
        let free = self.files_free();
        let growing = free > RESERVE
            || (free >= RESERVE && self.writer.active_room() >= self.config.batch_bytes);
        growing || self.is_making_room()
    }

    /// Whether what is under way will leave a file less. An emptied file goes when its readers have ended and the tombstones
    /// for which it stands are durable. A log that stops empties no file, and waits for neither.
    fn is_making_room(&self) -> bool {
        if self.files.has(List::Deleting) {
            return true;
        }
        let emptied = self.files.listed(List::Deletable);
        let mut emptied = emptied.filter_map(|id| self.files.get(id));
        let counts = |file: &File| match file.state {
            FileState::Deletable(since) => {
                since <= self.now && self.now < since + EMPTIED_COUNTS_FOR
            }
            _ => false,
        };
        !self.stopping && (self.files.has(List::Draining) || emptied.any(counts))
    }

    /// Bytes of records that the log takes: a part is kept for reclaim, batches take their fixed parts, and a sixteenth of the rest
    /// is for what is dead but not yet reclaimed. With the master's watermark of .85 files are live by .8 of their
    /// bytes at the most, on average, so that reclaim finds some worth their copying.
    fn usable_bytes(&self) -> u64 {
        let kept = (RESERVE + 1) * self.file_bytes;
        let batch = self
            .config
            .batch_bytes
            .min(self.config.reclaim_bytes_in_flight_max)
            .max(BLOCK_BYTES);
        let left = u128::from(self.config.capacity.saturating_sub(kept));
        (left * u128::from(batch) / u128::from(batch + 2 * BLOCK_BYTES) / 16 * 15) as u64
    }

    /// Bytes of records to be dropped before reclaim can make room. Their headers are left out: what is missing is asked for again,
    /// and what was dropped without need would be gone.
    fn pressure(&self) -> u64 {
        if !self.is_open()
            || self.files_free() > RESERVE
            || self.victim().is_some()
            || self.is_making_room()
        {
            return 0;
        }
        let live = self.files.live_bytes();
        live.saturating_sub(self.usable_bytes() / 8 * 7)
            .max(self.file_bytes / 4)
            .min(live)
    }
}

/// Whether an empty file of `file_bytes` can hold a record of `bytes`.
fn fits_in_file(entry: &DiskEntry, bytes: u64, file_bytes: u64) -> bool {
    let around = BLOCK_BYTES + alone_overhead(entry);
    bytes <= u64::from(u32::MAX) && round_to_block(bytes).saturating_add(around) <= file_bytes
}

/// The checksum that a read gave.
fn checksum_in(result: &Result<DiskOutcome, DiskError>) -> Result<Checksum, DiskError> {
    match result {
        Ok(DiskOutcome::Read { checksum, .. }) => Ok(*checksum),
        Ok(DiskOutcome::Done | DiskOutcome::Reused) => Err(DiskError::Missing),
        Err(error) => Err(*error),
    }
}
