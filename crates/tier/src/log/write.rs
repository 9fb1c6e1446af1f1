use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use slackwater_base::{BLOCK_BYTES, Instant, KeyHash, Map, round_to_block};
use slackwater_wire::{DiskEntry, ExtentRef, TaskFailure, TicketId, Version};

use super::files::{FileState, List, RESERVE};
use super::index::{Placed, Slot};
use super::{Log, LogOut, Offload, Purpose};
use crate::format::{
    BATCH_FIXED_BYTES, Batch, Entry, FileHeader, HEADER_BYTES_MAX, Position, Record, TOMBSTONE_BYTES, encode_batch,
    record_header_bytes,
};
use crate::io::{DiskError, DiskOp, FileId, Part};

/// What waits to be written, what is being written, and how the device takes it.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    burials: VecDeque<Burial>,
    copies: VecDeque<Copied>,
    offloads: VecDeque<Queued>,
    /// Payload bytes of queued copies and offloads.
    queued_bytes: u64,
    /// Batches in the order of the log; committed in that order too.
    flights: VecDeque<Flight>,
    next_flight: u64,
    /// Offloads of each key that are queued or being written.
    waiting: Map<KeyHash, u32>,
    active: Option<Active>,
    /// Everything of this life before it is durable.
    durable: Option<Position>,
    ail: Option<Ail>,
    retry_delay: Duration,
    /// Orders that are neither durable nor refused, by their number.
    unresolved: BTreeSet<u64>,
    next_order: u64,
    /// Flushes, each waiting for the orders below its bound.
    flushes: VecDeque<(u64, u64)>,
    /// Something waits for a file to be written to.
    needs_file: bool,
}

/// The file that batches are appended to.
#[derive(Clone, Copy, Debug)]
struct Active {
    file: FileId,
    bytes: u64,
    at: u64,
}

/// The device refused a write: a pause, then a try.
#[derive(Clone, Copy, Debug)]
struct Ail {
    error: DiskError,
    until: Instant,
}

/// A tombstone to be written.
#[derive(Debug)]
pub(crate) struct Burial {
    order: Option<u64>,
    since: Instant,
    hash: KeyHash,
    version: Version,
    answer: Answer,
}

/// Who waits for a tombstone.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Dropped(DiskEntry),
    Lost(DiskEntry),
    /// Reclaim moves it.
    Reclaim,
}

/// A live record that reclaim has read.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) since: Instant,
    pub(crate) record: Record,
    pub(crate) from: FileId,
    pub(crate) bytes: Vec<u8>,
}

/// A value that waits to be written.
#[derive(Debug)]
pub(crate) struct Queued {
    order: u64,
    since: Instant,
    ticket: TicketId,
    pub(crate) hash: KeyHash,
    pub(crate) version: Version,
    pub(crate) source: ExtentRef,
    record: Record,
}

/// A batch on its way.
#[derive(Debug)]
struct Flight {
    number: u64,
    file: FileId,
    end: u64,
    items: Vec<Item>,
    stage: Stage,
    error: Option<DiskError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Writing,
    Syncing,
    Over,
}

#[derive(Debug)]
enum Item {
    Burial(Burial),
    Copy { record: Record, from: (FileId, u64) },
    Offload { order: u64, ticket: TicketId, record: Record },
}

/// What was taken from the queues for one batch.
struct Load {
    items: Vec<Item>,
    payload: Vec<Part>,
    header_bytes: u64,
    payload_bytes: u64,
}

impl Answer {
    /// The entry that the answer names.
    pub(crate) fn entry(&self) -> Option<&DiskEntry> {
        match self {
            Answer::Dropped(entry) | Answer::Lost(entry) => Some(entry),
            Answer::Reclaim => None,
        }
    }

    /// The answer itself.
    ///
    /// # Panics
    /// For reclaim, which is told otherwise.
    pub(crate) fn given(self) -> LogOut {
        match self {
            Answer::Dropped(entry) => LogOut::Dropped(entry),
            Answer::Lost(entry) => LogOut::Lost(entry),
            Answer::Reclaim => unreachable!("reclaim counts its tombstones itself"),
        }
    }
}

impl Writer {
    pub(crate) fn offloads_queued(&self) -> usize {
        self.offloads.len()
    }

    /// Why nothing new is taken now, if so.
    pub(crate) fn ailing(&self) -> Option<TaskFailure> {
        self.ail.map(|ail| failure_of(ail.error))
    }

    pub(crate) fn is_waiting(&self, hash: KeyHash) -> bool {
        self.waiting.contains_key(&hash)
    }

    pub(crate) fn unresolved(&self) -> usize {
        self.unresolved.len()
    }

    /// Bytes that the file being appended to still takes.
    pub(crate) fn active_room(&self) -> u64 {
        self.active.map_or(0, |active| active.bytes - active.at)
    }

    pub(crate) fn has_flights_in(&self, file: FileId) -> bool {
        self.flights.iter().any(|flight| flight.file == file)
    }

    pub(crate) fn begin_flush(&mut self, number: u64) {
        self.flushes.push_back((number, self.next_order));
    }

    pub(crate) fn deadlines(&self, delay: Duration) -> [Option<Instant>; 2] {
        let batch = self.oldest().map(|since| since + delay);
        [batch, self.ail.map(|ail| ail.until)]
    }

    fn oldest(&self) -> Option<Instant> {
        let burial = self.burials.front().map(|burial| burial.since);
        let copy = self.copies.front().map(|copy| copy.since);
        let offload = self.offloads.front().map(|offload| offload.since);
        [burial, copy, offload].into_iter().flatten().min()
    }

    fn new_order(&mut self) -> u64 {
        let order = self.next_order;
        self.next_order += 1;
        self.unresolved.insert(order);
        order
    }

    fn no_longer_waiting(&mut self, hash: KeyHash) {
        if let Some(count) = self.waiting.get_mut(&hash) {
            *count -= 1;
            if *count == 0 {
                self.waiting.remove(&hash);
            }
        }
    }
}

impl Log {
    pub(super) fn queue_offload(&mut self, offload: Offload, hash: KeyHash) {
        let Offload { ticket, entry, bytes, checksum, source } = offload;
        let (version, order) = (entry.version, self.writer.new_order());
        self.highest_version = self.highest_version.max(version);
        *self.writer.waiting.entry(hash).or_insert(0) += 1;
        self.writer.queued_bytes += round_to_block(bytes);
        let record = Record { entry, hash, offset: 0, length: bytes, checksum };
        let since = self.now;
        self.writer.offloads.push_back(Queued { order, since, ticket, hash, version, source, record });
    }

    pub(super) fn queue_burial(&mut self, hash: KeyHash, version: Version, answer: Answer) {
        let order = answer.entry().is_some().then(|| self.writer.new_order());
        self.writer.burials.push_back(Burial { order, since: self.now, hash, version, answer });
    }

    pub(super) fn queue_copy(&mut self, copy: Copied) {
        self.writer.queued_bytes += copy.bytes.len() as u64;
        self.writer.copies.push_back(copy);
    }

    /// Takes the queued values that `unwanted` names back, and answers them.
    pub(super) fn withdraw(&mut self, unwanted: impl Fn(&Queued) -> bool, failure: TaskFailure, out: &mut Vec<LogOut>) {
        let queued = std::mem::take(&mut self.writer.offloads);
        for offload in queued {
            if !unwanted(&offload) {
                self.writer.offloads.push_back(offload);
                continue;
            }
            self.writer.queued_bytes -= round_to_block(offload.record.length);
            self.writer.no_longer_waiting(offload.hash);
            self.writer.unresolved.remove(&offload.order);
            out.push(LogOut::Written(offload.ticket, Err(failure)));
        }
    }

    /// Writes every batch that is due, while batches may be begun.
    pub(super) fn write_batches(&mut self, out: &mut Vec<LogOut>) {
        while self.writer.flights.len() < self.config.batches_in_flight_max && self.is_batch_due() {
            let load = match self.writer.active {
                Some(active) => self.load(active.bytes - active.at),
                None => Load::new(),
            };
            if !load.items.is_empty() {
                self.fly(load, out);
            } else if !self.next_file() {
                break;
            }
        }
    }

    fn is_batch_due(&self) -> bool {
        let Some(oldest) = self.writer.oldest() else { return false };
        let hurry = !self.writer.flushes.is_empty() || self.stopping;
        // Whoever removes waits for the answer: tombstones share a batch only with what comes while one is written.
        let idle = self.writer.flights.is_empty() && !(self.writer.burials.is_empty() && self.writer.copies.is_empty());
        hurry
            || idle
            || self.writer.queued_bytes >= self.config.batch_bytes
            || oldest + self.config.batch_delay <= self.now
    }

    /// Whether new records may use the file that is appended to now: not when it was begun from the reserve.
    fn offloads_may_fill(&self) -> bool {
        self.files_free() >= RESERVE && self.writer.ail.is_none()
    }

    /// Takes what fits into a batch of at most `room` bytes: tombstones first, then copies, then new records.
    fn load(&mut self, room: u64) -> Load {
        let mut load = Load::new();
        let limit = self.config.batch_bytes;
        while self.writer.burials.front().is_some() && load.takes(TOMBSTONE_BYTES, 0, limit, room) {
            let Some(burial) = self.writer.burials.pop_front() else { break };
            load.items.push(Item::Burial(burial));
        }
        while let Some(copy) = self.writer.copies.front() {
            let bytes = copy.bytes.len() as u64;
            if !load.takes(record_header_bytes(&copy.record.entry), bytes, limit, room) {
                return load;
            }
            let Some(copy) = self.writer.copies.pop_front() else { break };
            self.writer.queued_bytes -= bytes;
            load.items.push(Item::Copy { from: (copy.from, copy.record.offset), record: copy.record });
            load.payload.push(Part::Bytes(copy.bytes));
        }
        if !self.offloads_may_fill() {
            return load;
        }
        while let Some(offload) = self.writer.offloads.front() {
            let bytes = round_to_block(offload.record.length);
            if !load.takes(record_header_bytes(&offload.record.entry), bytes, limit, room) {
                break;
            }
            let Some(Queued { order, ticket, source, record, .. }) = self.writer.offloads.pop_front() else { break };
            self.writer.queued_bytes -= bytes;
            load.payload.push(Part::Extent { extent: source, length: record.length });
            load.items.push(Item::Offload { order, ticket, record });
        }
        load
    }

    /// Gives `load` its place in the file that is appended to, and writes it.
    fn fly(&mut self, load: Load, out: &mut Vec<LogOut>) {
        let Load { mut items, payload, header_bytes, payload_bytes } = load;
        let header_bytes = round_to_block(header_bytes);
        let Some(active) = &mut self.writer.active else { return };
        let (file, start) = (active.file, active.at);
        let mut offset = start + header_bytes;
        let mut entries = Vec::with_capacity(items.len());
        for item in &mut items {
            entries.push(match item {
                Item::Burial(burial) => Entry::Tombstone { hash: burial.hash, version: burial.version },
                Item::Copy { record, .. } | Item::Offload { record, .. } => {
                    record.offset = offset;
                    offset += round_to_block(record.length);
                    Entry::Record(record.clone())
                }
            });
        }
        let bytes = 2 * header_bytes + payload_bytes;
        let durable = *self.writer.durable.get_or_insert(Position { file, offset: 0 });
        let batch = Batch { start, bytes, life: self.life, durable, entries };
        active.at = batch.end();
        let file_bytes = active.bytes;
        let [first, last] = encode_batch(self.place(file), &batch, header_bytes);
        let mut parts = Vec::with_capacity(payload.len() + 3);
        let mut from = start;
        if start == BLOCK_BYTES {
            parts.push(Part::Bytes(self.file_header(file, file_bytes)));
            from = 0;
        }
        parts.push(Part::Bytes(first));
        parts.extend(payload);
        parts.push(Part::Bytes(last));
        let number = self.writer.next_flight;
        self.writer.next_flight += 1;
        self.stats.device_bytes_written += batch.end() - from;
        self.writer.flights.push_back(Flight {
            number,
            file,
            end: batch.end(),
            items,
            stage: Stage::Writing,
            error: None,
        });
        self.submit(Purpose::Write(number), DiskOp::Write { file, offset: from, parts }, out);
    }

    fn file_header(&self, file: FileId, bytes: u64) -> Vec<u8> {
        let highest_version = self.highest_version;
        FileHeader { log: self.identity, file, life: self.life, bytes, highest_version }.encode()
    }

    /// Seals the file that is appended to and goes on in the spare one, if what waits may use it.
    fn next_file(&mut self) -> bool {
        let maintenance = !self.writer.burials.is_empty() || !self.writer.copies.is_empty();
        let offloads = !self.writer.offloads.is_empty() && self.offloads_may_fill() && self.files_free() > RESERVE;
        if !maintenance && !offloads {
            return false;
        }
        let Some(spare) = self.files.listed(List::Spare).next() else {
            self.writer.needs_file = true;
            return false;
        };
        self.seal_active();
        self.files.update(spare, |file| file.state = FileState::Active);
        self.writer.active = Some(Active { file: spare, bytes: self.file_bytes, at: BLOCK_BYTES });
        true
    }

    fn seal_active(&mut self) {
        if let Some(active) = self.writer.active.take() {
            self.files.update(active.file, |file| file.state = FileState::Sealed);
        }
    }

    /// Has a spare file made before it is needed, and tries again after the device refused.
    pub(super) fn provide_file(&mut self, out: &mut Vec<LogOut>) {
        let resting = self.writer.ail.is_some_and(|ail| ail.until > self.now);
        if resting || self.files.has(List::Creating) {
            return;
        }
        let used = self.files.bytes();
        let fits = used + self.file_bytes <= self.config.capacity;
        if self.files.has(List::Spare) || !fits {
            // Nothing to try it with but the next batch.
            self.writer.ail = None;
        }
        // A log whose capacity was lowered has no room for another file: one more lets reclaim bring it down.
        let maintenance = !self.writer.burials.is_empty() || !self.writer.copies.is_empty();
        let beyond = maintenance && self.writer.needs_file && used <= self.config.capacity.max(self.file_bytes);
        let filling = self.writer.active.is_some_and(|active| active.at > active.bytes / 2);
        let wanted = self.writer.ail.is_some() || self.writer.needs_file || filling;
        if wanted && !self.files.has(List::Spare) && (fits || beyond) {
            let file = self.files.begin(self.file_bytes);
            self.submit(Purpose::Create(file), DiskOp::Create { file, bytes: self.file_bytes }, out);
        }
    }

    pub(super) fn created(&mut self, file: FileId, result: Result<(), DiskError>) {
        match result {
            Ok(()) => {
                self.writer.ail = None;
                self.writer.needs_file = false;
                self.files.update(file, |file| file.state = FileState::Spare);
            }
            Err(error) => {
                // Something of it may be there: its number stays used, and it is deleted before another try.
                self.doom(file);
                self.ail(error);
            }
        }
    }

    pub(super) fn written(&mut self, number: u64, result: Result<(), DiskError>, out: &mut Vec<LogOut>) {
        let Some(flight) = self.writer.flights.iter_mut().find(|flight| flight.number == number) else { return };
        let file = flight.file;
        match (result, flight.error) {
            (Ok(()), None) if !cfg!(planted = "acknowledge_before_sync") => {
                flight.stage = Stage::Syncing;
                self.submit(Purpose::Sync(number), DiskOp::Sync { file }, out);
                return;
            }
            (result, _) => {
                flight.stage = Stage::Over;
                if let Err(error) = result {
                    self.abandon(file, error);
                }
            }
        }
        self.settle(out);
    }

    pub(super) fn synced(&mut self, number: u64, result: Result<(), DiskError>, out: &mut Vec<LogOut>) {
        let Some(flight) = self.writer.flights.iter_mut().find(|flight| flight.number == number) else { return };
        let file = flight.file;
        flight.stage = Stage::Over;
        if let Err(error) = result {
            self.abandon(file, error);
        }
        self.settle(out);
    }

    /// After a failed write or sync nothing that was not acknowledged counts in `file`, and nothing more goes there:
    /// the kernel may have dropped the pages and will call the next sync a success (Rebello et al., 2020).
    fn abandon(&mut self, file: FileId, error: DiskError) {
        for flight in self.writer.flights.iter_mut().filter(|flight| flight.file == file) {
            flight.error.get_or_insert(error);
        }
        if self.writer.active.is_some_and(|active| active.file == file) {
            self.seal_active();
        }
        if self.files.get(file).is_some_and(|file| !file.suspect) {
            self.files.update(file, |file| file.suspect = true);
            self.stats.files_abandoned += 1;
        }
        // What later batches say was durable must not vouch for this file: their life is another one.
        self.life += 1;
        self.writer.durable = None;
        self.ail(error);
    }

    fn ail(&mut self, error: DiskError) {
        let (min, max) = (self.config.retry_delay_min, self.config.retry_delay_max);
        let delay = self.writer.retry_delay.max(min);
        self.writer.retry_delay = (delay * 2).min(max);
        self.writer.ail = Some(Ail { error, until: self.now + delay });
    }

    /// Commits or fails the batches that are over, in the order of the log.
    fn settle(&mut self, out: &mut Vec<LogOut>) {
        while self.writer.flights.front().is_some_and(|flight| flight.stage == Stage::Over) {
            let Some(flight) = self.writer.flights.pop_front() else { break };
            match flight.error {
                None => self.commit(flight, out),
                Some(error) => self.fail(flight, error, out),
            }
        }
    }

    fn commit(&mut self, flight: Flight, out: &mut Vec<LogOut>) {
        let file = flight.file;
        self.writer.durable = Some(Position { file, offset: flight.end });
        self.writer.retry_delay = Duration::ZERO;
        for item in flight.items {
            match item {
                Item::Burial(burial) => self.bury(burial, file, out),
                Item::Copy { record, .. } => {
                    self.place_record(&record, file);
                    self.stats.copied_bytes += record.length;
                    self.drain_settled(record.length);
                }
                Item::Offload { order, ticket, record } => {
                    let live = self.place_record(&record, file);
                    self.writer.no_longer_waiting(record.hash);
                    self.writer.unresolved.remove(&order);
                    self.stats.records_written += 1;
                    self.stats.value_bytes_written += record.length;
                    out.push(LogOut::Written(ticket, if live { Ok(()) } else { Err(TaskFailure::Cancelled) }));
                }
            }
        }
    }

    /// A record lies durably in `file`. True when it is the one to be read.
    pub(super) fn place_record(&mut self, record: &Record, file: FileId) -> bool {
        let (version, at) = (record.entry.version, (file, record.offset));
        let Some(slot) = Slot::new(version, record.checksum, at, record.length) else { return false };
        match self.index.place(record.hash, slot) {
            Placed::Live { replaced } => {
                self.files.live(file, slot.padded(), 0);
                self.value_bytes += slot.length();
                if let Some(old) = replaced {
                    self.files.live(old.file(), 0, old.padded());
                    self.value_bytes -= old.length();
                }
                true
            }
            Placed::Dead => false,
        }
    }

    fn bury(&mut self, burial: Burial, file: FileId, out: &mut Vec<LogOut>) {
        let (before, here) = self.index.bury(burial.hash, burial.version, file);
        if let Some(before) = before {
            self.files.unburied(before);
        }
        if here {
            self.files.buried(file);
        }
        if let Some(order) = burial.order {
            self.writer.unresolved.remove(&order);
        }
        match burial.answer {
            Answer::Reclaim => self.drain_settled(0),
            answer => out.push(answer.given()),
        }
    }

    /// A batch that is not durable: drops are kept until they are, copies are read again, records are given up.
    fn fail(&mut self, flight: Flight, error: DiskError, out: &mut Vec<LogOut>) {
        for item in flight.items.into_iter().rev() {
            match item {
                Item::Burial(burial) => self.writer.burials.push_front(burial),
                Item::Copy { mut record, from } => {
                    record.offset = from.1;
                    self.drain_again(record);
                }
                Item::Offload { order, ticket, record } => {
                    self.writer.no_longer_waiting(record.hash);
                    self.writer.unresolved.remove(&order);
                    out.push(LogOut::Written(ticket, Err(failure_of(error))));
                }
            }
        }
    }

    /// Gives the queued records up when waiting will not help: their sources are pinned in memory all the while.
    pub(super) fn refuse_when_stuck(&mut self, out: &mut Vec<LogOut>) {
        if self.writer.offloads.is_empty() {
            return;
        }
        if let Some(failure) = self.writer.ailing() {
            self.withdraw(|_| true, failure, out);
        } else if !self.has_room() && self.writer.flights.is_empty() {
            self.withdraw(|_| true, TaskFailure::NoRoom, out);
        }
    }

    pub(super) fn answer_flushes(&mut self, out: &mut Vec<LogOut>) {
        let first = self.writer.unresolved.first().copied().unwrap_or(u64::MAX);
        while let Some((number, bound)) = self.writer.flushes.front().copied()
            && first >= bound
        {
            self.writer.flushes.pop_front();
            out.push(LogOut::Flushed(number));
        }
    }
}

impl Load {
    fn new() -> Self {
        Self { items: Vec::new(), payload: Vec::new(), header_bytes: BATCH_FIXED_BYTES, payload_bytes: 0 }
    }

    /// Makes room for an item, if the batch stays within `room` and, but for a first payload, within `limit`.
    fn takes(&mut self, header: u64, payload: u64, limit: u64, room: u64) -> bool {
        let (headers, payloads) = (self.header_bytes + header, self.payload_bytes + payload);
        let too_long = payload > 0 && self.payload_bytes > 0 && payloads > limit;
        let fits = 2 * round_to_block(headers) + payloads <= room && headers <= HEADER_BYTES_MAX && !too_long;
        if fits {
            (self.header_bytes, self.payload_bytes) = (headers, payloads);
        }
        fits
    }
}

fn failure_of(error: DiskError) -> TaskFailure {
    match error {
        DiskError::Full | DiskError::ReadOnly => TaskFailure::NoRoom,
        DiskError::Missing | DiskError::Device { .. } => TaskFailure::Device,
    }
}
