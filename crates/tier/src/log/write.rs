use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use slackwater_base::{BLOCK_BYTES, Instant, KeyHash, Map, Planted, planted, round_to_block};
use slackwater_wire::{DiskEntry, TaskFailure, Version};

use super::commit::{Flight, Item, Stage, failure_of};
use super::files::{FileState, List, RESERVE};
use super::pieces::Writing;
use super::queue::{OffloadQueue, Queued};
use super::{Log, LogOut, Offload};
use crate::format::{
    BATCH_FIXED_BYTES, Batch, Entry, FileHeader, HEADER_BYTES_MAX, Position, Record,
    TOMBSTONE_BYTES, alone_overhead, encode_batch, record_header_bytes,
};
use crate::io::{DiskError, FileId, Part};

/// What waits to be written, what is being written, and how the device takes it.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// Tombstones of drops that are to be answered, and those that reclaim moves.
    pub(super) tombstones: VecDeque<QueuedTombstone>,
    pub(super) moved: VecDeque<QueuedTombstone>,
    copies: VecDeque<Copied>,
    pub(super) offloads: OffloadQueue,
    /// Payload bytes of the copies.
    copy_bytes: u64,
    /// Batches in the order of the log; committed in that order too.
    pub(super) flights: VecDeque<Flight>,
    next_flight: u64,
    /// Offloads of each key that are queued or being written.
    waiting: Map<KeyHash, u32>,
    pub(super) active: Option<Active>,
    /// Everything of this life before it is durable.
    pub(super) durable: Option<Position>,
    pub(super) failing: Option<Failing>,
    /// Failures since a batch was last written.
    pub(super) failures: u32,
    /// Orders that are neither durable nor refused, by their number.
    pub(super) unresolved: BTreeSet<u64>,
    next_order: u64,
    /// Flushes, each waiting for the orders below its bound.
    pub(super) flushes: VecDeque<(u64, u64)>,
    /// Something waits for a file to be written to.
    pub(super) needs_file: bool,
    /// Records that were given back since the order to stop, because the device takes none.
    pub(super) given_back: usize,
}

/// The file that batches are appended to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Active {
    pub(super) file: FileId,
    pub(super) bytes: u64,
    pub(super) at: u64,
}

/// The device refused a write: a pause, then a try.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failing {
    pub(super) error: DiskError,
    pub(super) until: Instant,
}

/// A tombstone to be written.
#[derive(Debug)]
pub(crate) struct QueuedTombstone {
    pub(super) order: Option<u64>,
    since: Instant,
    pub(super) hash: KeyHash,
    pub(super) version: Version,
    pub(super) answer: Answer,
}

/// What is answered when a tombstone is durable.
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
    pub(crate) bytes: Bytes,
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
    /// For reclaim, which learns of it by other means.
    pub(crate) fn given(self) -> LogOut {
        match self {
            Answer::Dropped(entry) => LogOut::Dropped(entry),
            Answer::Lost(entry) => LogOut::Lost(entry),
            Answer::Reclaim => unreachable!("reclaim counts its tombstones itself"),
        }
    }
}

impl Writer {
    /// Why no new record is taken now: the device refused the last write.
    pub(crate) fn refusal(&self) -> Option<TaskFailure> {
        self.failing.map(|failing| failure_of(failing.error))
    }

    /// Whether that was for another reason than that it is full.
    pub(crate) fn is_failing(&self) -> bool {
        let error = self.failing.map(|failing| failing.error);
        error.is_some_and(|error| error != DiskError::Full)
    }

    pub(crate) fn is_waiting(&self, hash: KeyHash) -> bool {
        self.waiting.contains_key(&hash)
    }

    /// Whether a new record of the key is in a batch that is under way.
    pub(crate) fn is_being_written(&self, hash: KeyHash) -> bool {
        let mut items = self.flights.iter().flat_map(|flight| &flight.items);
        self.waiting.contains_key(&hash)
            && items.any(|item| matches!(item, Item::Offload(offload) if offload.hash() == hash))
    }

    /// Whether no batch is on its way to the device or being synced.
    fn is_quiet(&self) -> bool {
        self.flights
            .iter()
            .all(|flight| matches!(flight.stage, Stage::Written(_)))
    }

    /// Whether a caller waits for something that is queued.
    pub(super) fn is_awaited(&self) -> bool {
        !self.tombstones.is_empty() || self.offloads.promised() > 0
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

    pub(crate) fn deadlines(&self, delay: Duration) -> [Option<Instant>; 4] {
        let first = self.offloads.first();
        [
            self.oldest_maintenance().map(|since| since + delay),
            first.map(|offload| offload.since + delay),
            first.and_then(|offload| offload.kept_until),
            self.failing
                .map(|failing| failing.until)
                .filter(|_| !planted(Planted::OutageNeverEnds)),
        ]
    }

    fn oldest_maintenance(&self) -> Option<Instant> {
        let tombstones = self
            .tombstones
            .front()
            .into_iter()
            .chain(self.moved.front())
            .map(|tombstone| tombstone.since);
        tombstones
            .chain(self.copies.front().map(|copy| copy.since))
            .min()
    }

    /// Whether tombstones or copies wait: without them no room is made.
    pub(super) fn needs_maintenance(&self) -> bool {
        !self.tombstones.is_empty() || !self.moved.is_empty() || !self.copies.is_empty()
    }

    fn new_order(&mut self) -> u64 {
        let order = self.next_order;
        self.next_order += 1;
        self.unresolved.insert(order);
        order
    }
}

impl Log {
    pub(super) fn queue_offload(&mut self, offload: Offload, hash: KeyHash) {
        let Offload {
            ticket,
            entry,
            bytes,
            checksum,
            source,
            promised,
        } = offload;
        self.name_bytes = self.name_bytes - self.name_bytes / 64 + record_header_bytes(&entry);
        self.highest_version = self.highest_version.max(entry.version);
        *self.writer.waiting.entry(hash).or_insert(0) += 1;
        let record = Record {
            entry,
            hash,
            offset: 0,
            length: bytes,
            checksum,
        };
        let order = self.writer.new_order();
        self.writer.offloads.insert(Queued {
            order,
            since: self.now,
            ticket,
            source,
            record,
            promised,
            kept_until: None,
        });
    }

    pub(super) fn queue_tombstone(&mut self, hash: KeyHash, version: Version, answer: Answer) {
        let order = answer.entry().is_some().then(|| self.writer.new_order());
        let queue = if order.is_some() {
            &mut self.writer.tombstones
        } else {
            &mut self.writer.moved
        };
        queue.push_back(QueuedTombstone {
            order,
            since: self.now,
            hash,
            version,
            answer,
        });
    }

    pub(super) fn queue_copy(&mut self, copy: Copied) {
        self.writer.copy_bytes += copy.bytes.len() as u64;
        self.writer.copies.push_back(copy);
    }

    /// Takes queued values back, and answers them. A record that may lie in an abandoned file fails as `Device`, whatever
    /// the reason, unless it is being dropped anyway: the master has to order its drop.
    pub(super) fn withdraw(&mut self, orders: &[u64], failure: TaskFailure, out: &mut Vec<LogOut>) {
        for order in orders {
            let Some(offload) = self.writer.offloads.remove(*order) else {
                continue;
            };
            self.no_longer_waiting(offload.hash());
            self.writer.unresolved.remove(order);
            let failure = match failure {
                TaskFailure::Cancelled => failure,
                _ if offload.kept_until.is_some() => TaskFailure::Device,
                _ => failure,
            };
            out.push(LogOut::Written(offload.ticket, Err(failure)));
        }
    }

    /// An offload of the key came to its end: a tombstone that was kept for it may go.
    pub(super) fn no_longer_waiting(&mut self, hash: KeyHash) {
        if let Some(count) = self.writer.waiting.get_mut(&hash) {
            *count -= 1;
            if *count == 0 {
                self.writer.waiting.remove(&hash);
                self.release_tombstone(hash);
            }
        }
    }

    /// Writes every batch that is due, while batches may be begun.
    pub(super) fn write_batches(&mut self, out: &mut Vec<LogOut>) {
        while self.may_begin_batch() && self.is_batch_due() {
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
        let writer = &self.writer;
        // Records that have no place yet must not make a batch due: copies would be written one by one, and make no room.
        let offload = writer
            .offloads
            .first()
            .filter(|offload| self.may_go(offload));
        let due = |since: Option<Instant>| {
            since.is_some_and(|since| since + self.config.batch_delay <= self.now)
        };
        let hurry = self.hurries();
        // A removal is answered when its tombstone is durable: it is written at once unless a batch is under way.
        let waited_for = !writer.tombstones.is_empty() || self.drain_waits();
        let ready_bytes = writer.copy_bytes + offload.map_or(0, |_| writer.offloads.bytes());
        (waited_for && (writer.is_quiet() || hurry))
            || (hurry && offload.is_some())
            || ready_bytes >= self.config.batch_bytes
            || due(writer.oldest_maintenance())
            || due(offload.map(|offload| offload.since))
    }

    /// Whether the first queued record has a place to go to.
    fn may_go(&self, first: &Queued) -> bool {
        let around = alone_overhead(&first.record.entry);
        let fits = round_to_block(first.record.length) + around <= self.writer.active_room();
        self.offloads_may_fill() && (fits || self.files_free() > RESERVE)
    }

    /// Whether new records may use the file that is appended to now: not when it was begun from the reserve.
    fn offloads_may_fill(&self) -> bool {
        self.files_free() >= RESERVE && self.writer.failing.is_none()
    }

    /// Takes what fits into a batch of at most `room` bytes: tombstones first, then copies, then new records.
    fn load(&mut self, room: u64) -> Load {
        let mut load = Load::new();
        let limit = self.config.batch_bytes;
        for queue in [&mut self.writer.tombstones, &mut self.writer.moved] {
            while !queue.is_empty() && load.takes(TOMBSTONE_BYTES, 0, limit, room) {
                load.items.extend(queue.pop_front().map(Item::Tombstone));
            }
        }
        while let Some(Copied {
            record,
            from,
            bytes,
            ..
        }) = self.writer.copies.front()
        {
            let length = bytes.len() as u64;
            // One that died while it was queued must not come to lie after its tombstone.
            let lives = self
                .index
                .get(record.hash)
                .is_some_and(|slot| slot.is_at(*from, record.offset));
            if lives && !load.takes(record_header_bytes(&record.entry), length, limit, room) {
                return load;
            }
            let Some(Copied {
                record,
                from,
                bytes,
                ..
            }) = self.writer.copies.pop_front()
            else {
                break;
            };
            self.writer.copy_bytes -= length;
            if lives {
                load.items.push(Item::Copy {
                    from: (from, record.offset),
                    record,
                });
                load.payload.push(Part::Bytes(bytes));
            } else {
                self.drain_settled(record.length);
            }
        }
        if !self.offloads_may_fill() {
            return load;
        }
        while let Some(offload) = self.writer.offloads.first() {
            let header = record_header_bytes(&offload.record.entry);
            if !load.takes(header, offload.padded(), limit, room) {
                break;
            }
            let Some(offload) = self.writer.offloads.pop_first() else {
                break;
            };
            load.payload.push(Part::Extent {
                extent: offload.source,
                length: offload.record.length,
            });
            load.items.push(Item::Offload(offload));
        }
        load
    }

    /// Gives `load` its place in the file that is appended to, and writes it.
    fn fly(&mut self, load: Load, out: &mut Vec<LogOut>) {
        let Load {
            mut items,
            payload,
            header_bytes,
            payload_bytes,
        } = load;
        let header_bytes = round_to_block(header_bytes);
        let Some(active) = &mut self.writer.active else {
            return;
        };
        let (file, start) = (active.file, active.at);
        let mut offset = start + header_bytes;
        let mut entries = Vec::with_capacity(items.len());
        for item in &mut items {
            entries.push(match item {
                Item::Tombstone(tombstone) => Entry::Tombstone {
                    hash: tombstone.hash,
                    version: tombstone.version,
                },
                Item::Copy { record, .. } | Item::Offload(Queued { record, .. }) => {
                    record.offset = offset;
                    offset += round_to_block(record.length);
                    Entry::Record(record.clone())
                }
            });
        }
        let bytes = 2 * header_bytes + payload_bytes;
        let durable = *self
            .writer
            .durable
            .get_or_insert(Position { file, offset: 0 });
        let batch = Batch {
            start,
            bytes,
            header_bytes,
            life: self.life,
            durable,
            entries,
        };
        active.at = batch.end();
        let file_bytes = active.bytes;
        let [first, last] = encode_batch(self.place(file), &batch);
        let mut parts = Vec::with_capacity(payload.len() + 3);
        let mut from = start;
        if start == BLOCK_BYTES {
            parts.push(Part::Bytes(self.file_header(file, file_bytes).into()));
            from = 0;
        }
        parts.push(Part::Bytes(first.into()));
        parts.extend(payload);
        parts.push(Part::Bytes(last.into()));
        self.stats.device_bytes_written += batch.end() - from;
        let awaited = items.iter().any(Item::is_awaited);
        let number = self.writer.next_flight;
        self.writer.next_flight += 1;
        self.writer.flights.push_back(Flight {
            number,
            file,
            end: batch.end(),
            bytes,
            first_order: items
                .iter()
                .filter_map(Item::order)
                .min()
                .unwrap_or(u64::MAX),
            items: items.into(),
            stage: Stage::Writing(Writing::new(from, parts)),
            awaited,
            released: 0,
            abandoned: false,
        });
        self.send_pieces(out);
        if planted(Planted::MemoryGoesBeforeRecord) {
            self.release_written(out);
        }
    }

    fn file_header(&self, file: FileId, bytes: u64) -> Vec<u8> {
        let highest_version = self.highest_version;
        FileHeader {
            log: self.identity,
            file,
            life: self.life,
            bytes,
            highest_version,
        }
        .encode()
    }

    /// Seals the file that is appended to and goes on in the spare one, if what waits may use it.
    fn next_file(&mut self) -> bool {
        let maintenance = self.writer.needs_maintenance();
        let offloads = !self.writer.offloads.is_empty()
            && self.offloads_may_fill()
            && self.files_free() > RESERVE;
        if !maintenance && !offloads {
            return false;
        }
        let Some(spare) = self.files.listed(List::Spare).next() else {
            self.writer.needs_file = true;
            return false;
        };
        self.end_active();
        self.files
            .update(spare, |file| file.state = FileState::Active);
        self.writer.active = Some(Active {
            file: spare,
            bytes: self.file_bytes,
            at: BLOCK_BYTES,
        });
        true
    }

    /// Seals the file that is appended to, because it takes no more. Behind its batches a reused file has old bytes, and an
    /// opening that finds them cannot tell whether a batch was torn there; so zeros end what counts. They go the way of a
    /// batch, so that its sync covers them.
    fn end_active(&mut self) {
        let Some(active) = self.writer.active else {
            return;
        };
        self.seal_active();
        let reused = self.files.get(active.file).is_some_and(|file| file.reused);
        if !reused || active.at >= active.bytes || planted(Planted::ReusedFileNotEnded) {
            return;
        }
        self.stats.device_bytes_written += BLOCK_BYTES;
        let end = vec![Part::Bytes(vec![0; BLOCK_BYTES as usize].into())];
        let number = self.writer.next_flight;
        self.writer.next_flight += 1;
        self.writer.flights.push_back(Flight {
            number,
            file: active.file,
            end: active.at,
            bytes: BLOCK_BYTES,
            items: VecDeque::new(),
            first_order: u64::MAX,
            stage: Stage::Writing(Writing::new(active.at, end)),
            awaited: false,
            released: 0,
            abandoned: false,
        });
    }

    /// A log that stops ends its last file too, once nothing more is to be written.
    pub(super) fn end_stopped_file(&mut self) {
        let writer = &self.writer;
        let done = writer.flights.is_empty() && writer.offloads.is_empty();
        if self.stopping && done && !writer.needs_maintenance() && writer.failing.is_none() {
            self.end_active();
        }
    }

    pub(super) fn seal_active(&mut self) {
        if let Some(active) = self.writer.active.take() {
            self.files
                .update(active.file, |file| file.state = FileState::Sealed);
        }
    }
}

impl Load {
    fn new() -> Self {
        Self {
            items: Vec::new(),
            payload: Vec::new(),
            header_bytes: BATCH_FIXED_BYTES,
            payload_bytes: 0,
        }
    }

    /// Makes room for an item, if the batch stays within `room` and, but for a first payload, within `limit`.
    fn takes(&mut self, header: u64, payload: u64, limit: u64, room: u64) -> bool {
        let (headers, payloads) = (self.header_bytes + header, self.payload_bytes + payload);
        let too_long = payload > 0 && self.payload_bytes > 0 && payloads > limit;
        let fits = 2 * round_to_block(headers) + payloads <= room
            && headers <= HEADER_BYTES_MAX
            && !too_long;
        if fits {
            (self.header_bytes, self.payload_bytes) = (headers, payloads);
        }
        fits
    }
}
