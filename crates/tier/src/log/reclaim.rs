use std::collections::VecDeque;
use std::time::Duration;

use slackwater_base::{BLOCK_BYTES, Instant, KeyHash, Planted, planted, round_to_block};
use slackwater_wire::Version;

use super::failed_reads::Verdict;
use super::files::{File, FileState, List, RESERVE};
use super::scan::{FileScan, Step};
use super::write::{Answer, Copied};
use super::{Log, LogOut, Purpose, fits_in_file};
use crate::format::{Batch, Entry, Record, TOMBSTONE_BYTES};
use crate::io::{DiskError, DiskOp, DiskOutcome, FileId, Target};

/// One file that is being emptied: its headers are read, what is needed of it is written again, and it is deleted
/// when all of that is durable.
#[derive(Debug)]
pub(crate) struct Reclaim {
    file: FileId,
    scan: FileScan,
    scanning: bool,
    scanned: bool,
    /// Records that are to be copied if they still live when their turn comes, and when that is at the earliest.
    pending: VecDeque<(Instant, Record)>,
    reading: usize,
    /// Bytes of records that are being read, queued or written.
    bytes_in_flight: u64,
    /// They were as many as may be, and have not come down to half of that.
    full: bool,
    /// Copies and tombstones that are queued or being written.
    settling: usize,
    names: Vec<KeyHash>,
    /// Entries that the headers no longer list were given up or written again.
    swept: bool,
    /// Nothing is read before: the device answered a read with an error.
    rest_until: Instant,
    /// Places at which the device could not read headers.
    unreadable: u32,
    /// [`Log::reach`] when it began: the room for its copies. A log that comes down to its capacity meanwhile, because
    /// other files are deleted, must not take it back.
    pub(super) reach: u64,
}

impl Log {
    pub(super) fn reclaim_step(&mut self, out: &mut Vec<LogOut>) {
        if self.stopping {
            return;
        }
        self.doom_abandoned();
        if self.reclaim.is_none() {
            let Some(file) = self.victim() else { return };
            let Some(bytes) = self.files.get(file).map(|file| file.bytes) else {
                return;
            };
            self.files
                .update(file, |file| file.state = FileState::Draining);
            let scan = FileScan::new(self.place(file), bytes);
            self.reclaim = Some(Reclaim::new(file, scan, self.reach()));
        }
        self.drain_scan(out);
        self.drain_copy(out);
        self.drain_finish();
    }

    /// Failed writes leave files behind in which nothing counts. They go at once and past the file that is being
    /// emptied: that one may be waiting for the very room that they take.
    fn doom_abandoned(&mut self) {
        let empty = |id: &FileId| {
            let file = self.files.get(*id);
            file.is_some_and(|file| {
                file.suspect && (file.live_bytes, file.live_records, file.tombstones) == (0, 0, 0)
            })
        };
        let easy = self
            .files
            .listed(List::Easy)
            .filter(|id| empty(id) && !self.writer.has_flights_in(*id));
        for file in easy.collect::<Vec<_>>() {
            self.make_deletable(file);
        }
    }

    /// The file that is worth emptying now: a suspect one or one of which nothing is needed; when files run short, also
    /// one of which copying it forward gains enough and has room. These come after those, and in both the one whose live
    /// bytes are the smallest part of it goes first. After the capacity was changed, files differ in length.
    ///
    /// Beyond the capacity that part alone counts. A process that ends again and again soon after it began leaves a file
    /// each time with the little that it had copied: each next life must be able to get rid of one.
    pub(super) fn victim(&self) -> Option<FileId> {
        let short = self.files_free() <= RESERVE + 1;
        let room = self.room_for_copies();
        let worthwhile = |file: &File| {
            let takes = self.copying_takes(file);
            let gains = takes <= file.bytes / 8 * 7;
            file.state == FileState::Sealed && gains && takes <= room
        };
        let easy = self.files.listed(List::Easy);
        let easy = easy.filter_map(|id| Some((id, self.files.get(id)?)));
        let others = short.then(|| self.files.iter()).into_iter().flatten();
        let others = others.filter(|(_, file)| !file.is_easy() && worthwhile(file));
        let candidates = easy.chain(others);
        let idle = candidates.filter(|(id, _)| !self.writer.has_flights_in(*id));
        let ranked = idle.map(|(id, file)| {
            let later = !file.is_easy() && self.overlong.is_none();
            (later, file.live_bytes as f64 / file.bytes as f64, id)
        });
        let first = ranked.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        first.map(|(.., id)| id)
    }

    /// Bytes of the files that copies may still begin, less what the tombstones take that are queued before them.
    fn room_for_copies(&self) -> u64 {
        let begun = self.files.listed(List::Spare).count() as u64;
        let more = self.reach().checked_sub(self.files.bytes());
        let files = begun + more.map_or(0, |bytes| bytes / self.file_bytes + 1);
        let queued = (self.writer.tombstones.len() + self.writer.moved.len()) as u64;
        (files * self.file_bytes).saturating_sub(2 * round_to_block(queued * TOMBSTONE_BYTES))
    }

    /// Bytes of the log that the live records of `file` will take when they are copied, headers and all.
    fn copying_takes(&self, file: &File) -> u64 {
        let batch = self
            .config
            .batch_bytes
            .min(self.config.reclaim_bytes_in_flight_max)
            .max(BLOCK_BYTES);
        let batches = file.live_bytes.div_ceil(batch) + 1;
        let names = (file.live_records + file.tombstones) * (self.name_bytes / 64);
        file.live_bytes + 2 * (names + batches * BLOCK_BYTES)
    }

    /// Whether reclaim goes on only when what it has read is written.
    pub(super) fn drain_waits(&self) -> bool {
        self.reclaim.as_ref().is_some_and(|reclaim| {
            let most = self.config.reclaim_bytes_in_flight_max;
            let crowded = reclaim
                .pending
                .front()
                .map_or(reclaim.scanned, |(_, record)| {
                    reclaim.bytes_in_flight > 0 && !reclaim.has_place(record.length, most)
                });
            reclaim.settling > 0 && reclaim.reading == 0 && crowded
        })
    }

    /// When the next record may be copied or the next headers read, if they wait for that alone.
    pub(super) fn copy_deadline(&self) -> Option<Instant> {
        let reclaim = self.reclaim.as_ref()?;
        let first = reclaim.pending.front();
        let copying = first.map(|(from, _)| self.copy_at.max(reclaim.rest_until).max(*from));
        copying.or((!reclaim.scanned).then_some(reclaim.rest_until))
    }

    /// The device answered a read of reclaim with an error. True when the place is to be read again after a pause, false
    /// when it counts as unreadable.
    fn drain_reads_again(&mut self, place: (FileId, u64), error: DiskError) -> bool {
        let verdict = self.failed_reads.note(self.now, place, error, &self.config);
        if let (Verdict::ReadAgain(at), Some(reclaim)) = (verdict, &mut self.reclaim) {
            reclaim.rest_until = at;
        }
        verdict != Verdict::Unreadable
    }

    fn drain_scan(&mut self, out: &mut Vec<LogOut>) {
        let Some(reclaim) = &mut self.reclaim else {
            return;
        };
        // A bound on what is remembered of a file: its headers are read no faster than its records are copied.
        let resting = reclaim.rest_until > self.now;
        if reclaim.scanning || reclaim.scanned || resting || reclaim.pending.len() > PENDING_MAX {
            return;
        }
        match reclaim.scan.read() {
            Some(read) => {
                reclaim.scanning = true;
                self.submit(Purpose::DrainScan, read, out);
            }
            None => reclaim.scanned = true,
        }
    }

    pub(super) fn drain_scanned(
        &mut self,
        result: Result<DiskOutcome, DiskError>,
        out: &mut Vec<LogOut>,
    ) {
        let Some(reclaim) = &mut self.reclaim else {
            return;
        };
        reclaim.scanning = false;
        let place = (reclaim.file, reclaim.scan.at());
        let read = match &result {
            Ok(DiskOutcome::Read { bytes, .. }) => Ok(&bytes[..]),
            Ok(DiskOutcome::Done | DiskOutcome::Reused) => Err(DiskError::Missing),
            Err(error) => Err(*error),
        };
        match read {
            Ok(_) => self.failed_reads.forget(place.0, place.1),
            Err(error) if self.drain_reads_again(place, error) => return,
            Err(_) => {}
        }
        let Some(reclaim) = &mut self.reclaim else {
            return;
        };
        reclaim.unreadable += u32::from(read.is_err());
        match reclaim.scan.take(read) {
            _ if reclaim.unreadable > UNREADABLE_MAX => reclaim.scanned = true,
            Step::Batch(batch) => self.drain_batch(batch, out),
            Step::More => {}
            Step::End => reclaim.scanned = true,
        }
    }

    /// The living records of a batch are to be copied, but for those that the master drops when it hears of them.
    fn drain_batch(&mut self, batch: Batch, out: &mut Vec<LogOut>) {
        let Some(file) = self.reclaim.as_ref().map(|reclaim| reclaim.file) else {
            return;
        };
        let mut living = Vec::new();
        let from = self.now + self.config.reclaim_answer_wait;
        for entry in batch.entries {
            match entry {
                Entry::Record(record) => {
                    let live = self
                        .index
                        .get(record.hash)
                        .is_some_and(|slot| slot.is_at(file, record.offset));
                    let Some(reclaim) = &mut self.reclaim else {
                        return;
                    };
                    reclaim.names.push(record.hash);
                    if live {
                        living.push(record.entry.clone());
                        reclaim.pending.push_back((from, record));
                    }
                }
                // It may be waiting for a higher one to become durable: that one is written in its place.
                Entry::Tombstone { hash, .. } => {
                    if let Some(version) = self.index.tombstone_at(hash, file) {
                        self.write_tombstone_again(hash, version);
                    }
                }
            }
        }
        if !living.is_empty() {
            out.push(LogOut::Emptying(living));
        }
    }

    fn write_tombstone_again(&mut self, hash: KeyHash, version: Version) {
        if let Some(reclaim) = self
            .reclaim
            .as_mut()
            .filter(|_| !planted(Planted::TombstoneDroppedEarly))
        {
            reclaim.settling += 1;
            self.queue_tombstone(hash, version, Answer::Reclaim);
        }
    }

    /// Reads records to be copied, as fast as the rate and the bound on bytes in flight allow.
    fn drain_copy(&mut self, out: &mut Vec<LogOut>) {
        while let Some(reclaim) = &mut self.reclaim
            && let Some((from, record)) = reclaim.pending.front()
        {
            let file = reclaim.file;
            if !self
                .index
                .get(record.hash)
                .is_some_and(|slot| slot.is_at(file, record.offset))
            {
                reclaim.pending.pop_front();
                continue;
            }
            // The files were longer before the capacity was lowered.
            if !fits_in_file(&record.entry, record.length, self.file_bytes) {
                let entry = record.entry.clone();
                reclaim.pending.pop_front();
                self.lose(entry, out);
                continue;
            }
            let most = self.config.reclaim_bytes_in_flight_max;
            reclaim.full = !reclaim.has_place(record.length, most);
            if reclaim.full
                || self.copy_at.max(reclaim.rest_until).max(*from) > self.now
                || self.writer.is_being_written(record.hash)
            {
                return;
            }
            let Some((_, record)) = reclaim.pending.pop_front() else {
                return;
            };
            reclaim.reading += 1;
            reclaim.bytes_in_flight += record.length;
            let rate = self.config.reclaim_bytes_per_second as f64 * self.pace.share(self.now);
            let seconds = record.length as f64 / rate.max(1.0);
            let idle_since = self.now - COPY_BURST;
            self.copy_at = self.copy_at.max(idle_since) + Duration::from_secs_f64(seconds);
            let (offset, length) = (record.offset, record.length);
            let bytes = round_to_block(length);
            let read = DiskOp::Read {
                file,
                offset,
                bytes,
                length,
                into: Target::Completion,
            };
            self.submit(Purpose::DrainRead(record), read, out);
        }
    }

    pub(super) fn drain_read(
        &mut self,
        record: Record,
        result: Result<DiskOutcome, DiskError>,
        out: &mut Vec<LogOut>,
    ) {
        let Some(reclaim) = &mut self.reclaim else {
            return;
        };
        let file = reclaim.file;
        reclaim.reading -= 1;
        let place = (file, record.offset);
        match &result {
            Ok(_) => self.failed_reads.forget(file, record.offset),
            Err(error) if self.drain_reads_again(place, *error) => {
                if let Some(reclaim) = &mut self.reclaim {
                    reclaim.bytes_in_flight -= record.length;
                    reclaim.pending.push_front((self.now, record));
                }
                return;
            }
            Err(_) => {}
        }
        let Some(reclaim) = &mut self.reclaim else {
            return;
        };
        let live = self
            .index
            .get(record.hash)
            .is_some_and(|slot| slot.is_at(file, record.offset));
        let was_read = result.is_ok();
        let right = match result {
            Ok(DiskOutcome::Read { bytes, checksum })
                if (checksum == record.checksum || planted(Planted::CopyWithoutChecksum))
                    && bytes.len() as u64 == round_to_block(record.length) =>
            {
                Some(bytes)
            }
            _ => None,
        };
        match right {
            // A copy must not be written after a newer record: if the newer one's headers rot, only what precedes it is
            // given up. Its turn comes again when the batch has ended.
            Some(_) if live && self.writer.is_being_written(record.hash) => {
                reclaim.bytes_in_flight -= record.length;
                reclaim.pending.push_front((self.now, record));
            }
            Some(bytes) if live => {
                reclaim.settling += 1;
                self.queue_copy(Copied {
                    since: self.now,
                    record,
                    from: file,
                    bytes,
                });
            }
            Some(_) => reclaim.bytes_in_flight -= record.length,
            None => {
                reclaim.bytes_in_flight -= record.length;
                if live {
                    self.stats.records_corrupt += u64::from(was_read);
                    self.lose(record.entry, out);
                }
            }
        }
    }

    /// A copy, or a tombstone of no bytes, is durable.
    pub(super) fn drain_settled(&mut self, bytes: u64) {
        if let Some(reclaim) = &mut self.reclaim {
            reclaim.settling -= 1;
            reclaim.bytes_in_flight -= bytes;
        }
    }

    /// A copy was not written: its source is kept.
    pub(super) fn drain_again(&mut self, record: Record) {
        if let Some(reclaim) = &mut self.reclaim {
            reclaim.settling -= 1;
            reclaim.bytes_in_flight -= record.length;
            reclaim.pending.push_front((self.now, record));
        }
    }

    fn drain_finish(&mut self) {
        let Some(reclaim) = &mut self.reclaim else {
            return;
        };
        if !reclaim.scanned || !reclaim.pending.is_empty() || reclaim.reading + reclaim.settling > 0
        {
            return;
        }
        let file = reclaim.file;
        let (live, tombstones) = self
            .files
            .get(file)
            .map_or((0, 0), |file| (file.live_bytes, file.tombstones));
        if !std::mem::replace(&mut reclaim.swept, true) && live + tombstones > 0 {
            self.sweep(file);
            return;
        }
        let names = self
            .reclaim
            .take()
            .map_or(Vec::new(), |reclaim| reclaim.names);
        self.files.update(file, |file| file.names = names);
        self.stats.files_reclaimed += 1;
        self.make_deletable(file);
    }

    /// Rot took headers of a file that were readable when it was opened. Its tombstones are known and written again;
    /// its records cannot be copied without their names, so they are given up: a later read of one
    /// reports it as lost. Each leaves a tombstone, for it kept older records of its key dead.
    fn sweep(&mut self, file: FileId) {
        for (hash, version) in self.index.tombstones_in(file) {
            self.write_tombstone_again(hash, version);
        }
        if planted(Planted::GiveUpForgetsCopies) {
            self.index.give_up(|of| of == file);
        }
        for (hash, version) in self.index.live_in(file) {
            if let Some(slot) = self.index.kill(hash, version) {
                self.died(&slot);
                self.stats.records_lost += 1;
                self.write_tombstone_again(hash, version);
            }
        }
        self.files.update(file, |file| file.suspect = true);
    }

    /// Nothing is needed of `file` any more.
    pub(super) fn make_deletable(&mut self, file: FileId) {
        let now = self.now;
        self.files
            .update(file, |file| file.state = FileState::Deletable(now));
    }

    /// Deletes the files that are due.
    pub(super) fn delete_files(&mut self, out: &mut Vec<LogOut>) {
        let due: Vec<FileId> = self
            .files
            .listed(List::Deletable)
            .filter(|id| self.may_delete(*id))
            .collect();
        for file in due {
            self.files
                .update(file, |file| file.state = FileState::Deleting);
            let going = self.files.listed(List::Deleting);
            let bytes: u64 = going
                .filter_map(|id| self.files.get(id))
                .map(|file| file.bytes)
                .sum();
            let left = self.files.bytes() - bytes;
            let room = self.config.capacity.saturating_sub(left);
            self.submit(Purpose::Delete(file), DiskOp::Delete { file, room }, out);
        }
    }

    fn may_delete(&self, id: FileId) -> bool {
        self.files.get(id).is_some_and(|file| match file.state {
            FileState::Deletable(not_before) => {
                let shields =
                    self.shields_any(id, file) && !planted(Planted::DeleteBeforeTombstone);
                file.pins == 0 && not_before <= self.now && !shields
            }
            _ => false,
        })
    }

    /// Whether a killed record in the file is all that keeps an older one in another file dead.
    fn shields_any(&self, id: FileId, file: &File) -> bool {
        let uncounted = self.files.suspects_but(file) > 0;
        self.shields.in_file(id).any(|hash| {
            self.index
                .dead_copies(hash)
                .is_some_and(|copies| copies > 1 || uncounted)
        })
    }

    pub(super) fn deleted(&mut self, id: FileId, result: Result<(), DiskError>) {
        if result.is_err() && !planted(Planted::UnlinkCountsAsDurable) {
            let not_before = self.now + self.config.retry_delay_max;
            self.files
                .update(id, |file| file.state = FileState::Deletable(not_before));
            return;
        }
        let Some(file) = self.files.remove(id) else {
            return;
        };
        self.shields.forget(id);
        self.index.forget_spent(id);
        self.failed_reads.forget_file(id);
        if let Some(before) = self.overlong {
            self.measure(before);
        }
        if !file.suspect {
            for name in &file.names {
                self.index.forget_copy(*name);
                self.release_tombstone(*name);
            }
        } else if !self.files.any_suspect() {
            for name in self.index.needless_tombstones() {
                self.release_tombstone(name);
            }
        }
    }

    /// Lets the tombstone of a key go when nothing is left for it to keep dead: no counted record, none that is being
    /// written, and no file in which one may lie uncounted.
    pub(super) fn release_tombstone(&mut self, hash: KeyHash) {
        if self.files.any_suspect() || self.writer.is_waiting(hash) {
            return;
        }
        if let Some(file) = self.index.release_tombstone(hash) {
            self.files.remove_tombstone(file);
        }
        if self.index.dead_copies(hash).is_none() {
            self.shields.lower(hash);
        }
    }
}

impl Reclaim {
    fn new(file: FileId, scan: FileScan, reach: u64) -> Self {
        Self {
            file,
            scan,
            scanning: false,
            scanned: false,
            pending: VecDeque::new(),
            reading: 0,
            bytes_in_flight: 0,
            full: false,
            settling: 0,
            names: Vec::new(),
            swept: false,
            rest_until: Instant::ZERO,
            unreadable: 0,
            reach,
        }
    }

    /// Whether a record of so many bytes may be read, of `most` under way. A batch that was cut by the end of a file would
    /// otherwise be followed by such as short for ever, whose headers take the room that was counted on for copies.
    fn has_place(&self, length: u64, most: u64) -> bool {
        let freed = !self.full || self.bytes_in_flight <= most / 2;
        self.bytes_in_flight == 0 || (freed && self.bytes_in_flight + length <= most)
    }
}

/// Records that are remembered for copying while more headers are read.
const PENDING_MAX: usize = 4096;
/// Places of a file at which the device may fail to read headers before those after them are given up as well: each
/// takes seconds to distinguish from a short failure, and no other file is emptied meanwhile.
const UNREADABLE_MAX: u32 = 16;
/// Time that reclaim may have been idle and still make up for.
const COPY_BURST: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Identity;

    /// Copies came to be read one by one and five by five, in turns, each in a batch with headers of its own.
    #[test]
    fn what_was_full_is_filled_again_when_half_of_it_is_free() {
        let identity = Identity {
            log: 1,
            file: FileId(1),
        };
        let mut reclaim = Reclaim::new(FileId(1), FileScan::new(identity, 1 << 20), 0);
        let mut check = |bytes_in_flight, full, expected| {
            (reclaim.bytes_in_flight, reclaim.full) = (bytes_in_flight, full);
            let found = reclaim.has_place(4, 24);
            assert_eq!(found, expected, "{bytes_in_flight} under way, {full}");
        };
        check(0, false, true);
        check(20, false, true);
        check(24, false, false);
        check(20, true, false);
        check(13, true, false);
        check(12, true, true);
        check(0, true, true);
    }
}
