//! Batches on their way to the device: written in pieces, reported when they can be read, synced in groups.

use std::collections::VecDeque;

use slackwater_base::{Instant, Planted, planted};
use slackwater_wire::{DiskEntry, TaskFailure};

use super::commit::{Flight, Item, Stage};
use super::pace::{Need, PieceMark};
use super::queue::Queued;
use super::{Log, LogOut, Purpose};
use crate::format::{Position, name_of};
use crate::io::{DiskError, DiskOp, FileId, Part};

/// What is left to be written of a batch.
#[derive(Debug)]
pub(super) struct Writing {
    /// Where the next piece goes.
    at: u64,
    unsent: VecDeque<Part>,
    /// Pieces that the device has.
    pieces: u32,
}

impl Writing {
    pub(super) fn new(at: u64, parts: Vec<Part>) -> Self {
        Self {
            at,
            unsent: parts.into(),
            pieces: 0,
        }
    }

    /// The next piece, of at most `limit` bytes: where it goes, and its parts.
    fn next(&mut self, limit: u64) -> (u64, Vec<Part>, u64) {
        let (offset, mut parts, mut bytes) = (self.at, Vec::new(), 0);
        while let Some(part) = self.unsent.pop_front() {
            let room = limit - bytes;
            if part.padded() > room {
                if room > 0 && part.padded() > limit {
                    // All at once: what is behind a cut is moved by every cut.
                    for piece in part.cut(limit).into_iter().rev() {
                        self.unsent.push_front(piece);
                    }
                    if bytes == 0 {
                        continue;
                    }
                } else {
                    self.unsent.push_front(part);
                }
                break;
            }
            bytes += part.padded();
            parts.push(part);
        }
        self.at += bytes;
        self.pieces += 1;
        (offset, parts, bytes)
    }
}

impl Flight {
    fn has_unsent(&self) -> bool {
        matches!(&self.stage, Stage::Writing(writing) if !writing.unsent.is_empty())
    }

    fn is_written(&self) -> bool {
        matches!(self.stage, Stage::Written(_))
    }

    /// Whether its sync ended well: what counts of it no later failure takes back.
    pub(super) fn is_durable(&self) -> bool {
        matches!(self.stage, Stage::Over) && !self.abandoned
    }

    /// Whether records of it can be read whose ends were not reported.
    fn is_unreleased(&self) -> bool {
        !self.abandoned && self.released < self.items.len()
    }

    /// Nothing more of it is to be done, but what the device has of it comes back first.
    pub(super) fn abandon(&mut self) {
        self.abandoned = true;
        match &mut self.stage {
            Stage::Writing(writing) => {
                writing.unsent.clear();
                if writing.pieces == 0 {
                    self.stage = Stage::Over;
                }
            }
            Stage::Written(_) => self.stage = Stage::Over,
            Stage::Syncing | Stage::Over => {}
        }
    }
}

impl Item {
    /// Whether a caller waits until it is durable.
    pub(super) fn is_awaited(&self) -> bool {
        match self {
            Item::Tombstone(tombstone) => tombstone.order.is_some(),
            Item::Copy { .. } => false,
            Item::Offload(offload) => offload.promised,
        }
    }

    /// Its number among all orders; copies and what reclaim moves have none.
    pub(super) fn order(&self) -> Option<u64> {
        match self {
            Item::Tombstone(tombstone) => tombstone.order,
            Item::Copy { .. } => None,
            Item::Offload(offload) => Some(offload.order),
        }
    }
}

impl Log {
    /// Whether all that is queued is to be durable soon.
    pub(super) fn hurries(&self) -> bool {
        self.stopping || !self.writer.flushes.is_empty()
    }

    /// Whether no batch that the first flush waits for is still being written, or none at all when stopping, and one waits for
    /// its sync. Later flushes don't count, or the first would wait for as long as others come; nor does what is queued: it
    /// may have no place before something is durable.
    fn is_hurried_written(&self) -> bool {
        let first = self.writer.flushes.front().map_or(0, |(_, bound)| *bound);
        let hurried = |flight: &&Flight| self.stopping || flight.first_order < first;
        let mut all = self.writer.flights.iter().filter(hurried);
        let mut written = all.clone();
        written.any(Flight::is_written) && !all.any(|it| matches!(it.stage, Stage::Writing(_)))
    }

    /// Whether another batch may follow those that the device has.
    pub(super) fn may_begin_batch(&self) -> bool {
        let flights = &self.writer.flights;
        let writing = flights
            .iter()
            .filter(|flight| matches!(flight.stage, Stage::Writing(_)));
        let unsynced: u64 = flights.iter().map(|flight| flight.bytes).sum();
        writing.count() < self.config.batches_in_flight_max
            && flights.len() < FLIGHTS_MAX
            && unsynced
                < self
                    .config
                    .sync_bytes
                    .max(self.config.batch_bytes)
                    .saturating_mul(UNSYNCED_GROUPS)
    }

    /// Hands pieces to the device, as many as readers leave room for.
    pub(super) fn send_pieces(&mut self, out: &mut Vec<LogOut>) {
        while let Some(at) = self.writer.flights.iter().position(Flight::has_unsent) {
            if !self.pace.may_send(self.now, self.need(at)) {
                return;
            }
            let limit = self.pace.piece_bytes(self.now);
            let flight = &mut self.writer.flights[at];
            let (number, file) = (flight.number, flight.file);
            let Stage::Writing(writing) = &mut flight.stage else {
                return;
            };
            let (offset, parts, bytes) = writing.next(limit);
            let piece = self.pace.piece_begun(self.now, bytes);
            let request = DiskOp::Write {
                file,
                offset,
                parts,
            };
            self.submit(Purpose::Write(number, piece), request, out);
        }
    }

    /// How much depends on what is unsent from the flight at `at` on.
    fn need(&self, at: usize) -> Need {
        let writing = |flight: &&Flight| matches!(flight.stage, Stage::Writing(_));
        let flights = self.writer.flights.iter().filter(writing);
        let unwritten = self.writer.offloads.bytes() + flights.map(|it| it.bytes).sum::<u64>();
        if unwritten > (self.memory_bytes as f64 * self.config.pace.backlog_max) as u64 {
            return Need::Pressing;
        }
        let mut behind = self.writer.flights.iter().skip(at);
        // What is queued can only follow what is being written.
        let awaited = self.hurries()
            || self.writer.is_awaited()
            || behind.any(|it| it.awaited && it.has_unsent());
        if awaited {
            Need::Awaited
        } else {
            Need::Background
        }
    }

    /// When a piece may go that readers are in the way of now.
    pub(super) fn piece_deadline(&self) -> Option<Instant> {
        let waits = self.writer.flights.iter().any(Flight::has_unsent);
        waits.then(|| self.pace.next_chance(self.now)).flatten()
    }

    pub(super) fn piece_written(
        &mut self,
        number: u64,
        piece: PieceMark,
        result: Result<(), DiskError>,
        out: &mut Vec<LogOut>,
    ) {
        self.pace.piece_ended(self.now, piece);
        let now = self.now;
        let mut flights = self.writer.flights.iter_mut();
        let Some(flight) = flights.find(|flight| flight.number == number) else {
            return;
        };
        let (file, abandoned) = (flight.file, flight.abandoned);
        if let Stage::Writing(writing) = &mut flight.stage {
            writing.pieces -= 1;
            if writing.pieces == 0 && writing.unsent.is_empty() {
                let over = abandoned || planted(Planted::DurableBeforeSync);
                flight.stage = if over {
                    Stage::Over
                } else {
                    Stage::Written(now)
                };
            }
        }
        if let (Err(error), false) = (result, abandoned) {
            self.abandon(file, error);
        }
        self.release_written(out);
        self.settle(out);
    }

    /// Lets the memory of written records go: they can be read. Those that were promised to be durable wait for the sync,
    /// as do tombstones and copies, whose sources are the only thing that is durable until then.
    /// A part of them, see [`Log::is_behind`].
    pub(super) fn release_written(&mut self, out: &mut Vec<LogOut>) {
        let mut left = ITEMS_A_STEP;
        for at in 0..self.writer.flights.len() {
            let flight = &mut self.writer.flights[at];
            if matches!(flight.stage, Stage::Writing(_))
                && !planted(Planted::MemoryGoesBeforeRecord)
            {
                return;
            }
            if !flight.is_unreleased() {
                continue;
            }
            let (file, items) = (flight.file, std::mem::take(&mut flight.items));
            let mut released = flight.released;
            while let Some(item) = items.get(released)
                && left > 0
            {
                released += 1;
                if let Item::Offload(offload) = item
                    && !offload.promised
                {
                    self.end_offload(offload, file, out);
                    left -= 1;
                }
            }
            let flight = &mut self.writer.flights[at];
            (flight.items, flight.released) = (items, released);
        }
    }

    /// Whether there is more to be reported or committed than one step did. Readers take turns with these steps: what a sync of
    /// thousands of tombstones brings about takes several milliseconds.
    pub(crate) fn is_behind(&self) -> bool {
        let flights = &self.writer.flights;
        let written = |flight: &&Flight| !matches!(flight.stage, Stage::Writing(_));
        let over = |flight: &Flight| matches!(flight.stage, Stage::Over);
        let mut written = flights.iter().take_while(written);
        flights.front().is_some_and(over) || written.any(Flight::is_unreleased)
    }

    /// Goes on where the step before ended.
    pub(crate) fn catch_up(&mut self, now: Instant, out: &mut Vec<LogOut>) {
        self.now = now;
        self.release_written(out);
        self.settle(out);
    }

    /// The record of an offload can be read, or is dead already: reports its end.
    pub(super) fn end_offload(&mut self, offload: &Queued, file: FileId, out: &mut Vec<LogOut>) {
        let live = self.place_record(&offload.record, file);
        self.no_longer_waiting(offload.hash());
        let result = if live {
            Ok(())
        } else {
            Err(TaskFailure::Cancelled)
        };
        out.push(LogOut::Written(offload.ticket, result));
    }

    /// A record whose memory was given up, and that its file could not be synced with: it counts as lost, because the
    /// device may show it now and not after the next power cut.
    pub(super) fn lose_unsynced(&mut self, offload: Queued, file: FileId, out: &mut Vec<LogOut>) {
        self.writer.unresolved.remove(&offload.order);
        let hash = offload.hash();
        let there = |slot: &super::Slot| slot.is_at(file, offload.record.offset);
        if self.index.get(hash).is_some_and(there) {
            self.lose(offload.record.entry, out);
        }
        // While its file is suspect every tombstone stays, and the end of such a file counts no records off.
        self.index.forget_copy(hash);
    }

    /// Syncs the written batches at the front of the log when a caller waits for one of them, when they are enough or old
    /// enough, or when all batches are written that the first flush waits for. One sync covers all of them that are in one file.
    pub(super) fn sync_written(&mut self, out: &mut Vec<LogOut>) {
        let flights = &self.writer.flights;
        let over = self.over();
        let Some((file, Stage::Written(since))) =
            flights.get(over).map(|first| (first.file, &first.stage))
        else {
            return;
        };
        let due = self.is_hurried_written()
            || self.drain_waits()
            || self.now >= *since + self.config.sync_delay;
        let in_group = |flight: &&Flight| flight.file == file && flight.is_written();
        let group = flights.iter().skip(over).take_while(in_group);
        let (mut number, mut bytes, mut awaited) = (0, 0, false);
        for flight in group {
            (number, bytes) = (number + 1, bytes + flight.bytes);
            awaited |= flight.awaited;
        }
        let followed = flights
            .get(over + number)
            .is_some_and(|next| next.file != file);
        if !(due || awaited || followed || bytes >= self.config.sync_bytes) {
            return;
        }
        if awaited && planted(Planted::TombstoneBeforeSync) {
            let group = self.writer.flights.iter_mut().skip(over).take(number);
            group.for_each(|flight| flight.stage = Stage::Over);
            return self.settle(out);
        }
        let group = self.writer.flights.iter_mut().skip(over).take(number);
        group.for_each(|flight| flight.stage = Stage::Syncing);
        self.stats.syncs += 1;
        self.submit(Purpose::Sync(file), DiskOp::Sync { file }, out);
    }

    /// When written batches have waited long enough for their sync.
    pub(super) fn sync_deadline(&self) -> Option<Instant> {
        match self.writer.flights.get(self.over())?.stage {
            Stage::Written(since) => Some(since + self.config.sync_delay),
            _ => None,
        }
    }

    pub(super) fn synced(
        &mut self,
        file: FileId,
        result: Result<(), DiskError>,
        out: &mut Vec<LogOut>,
    ) {
        // First of all: what is over and was not abandoned counts.
        if let Err(error) = result {
            self.abandon(file, error);
        }
        for flight in &mut self.writer.flights {
            if flight.file == file && matches!(flight.stage, Stage::Syncing) {
                flight.stage = Stage::Over;
                if !flight.abandoned {
                    let offset = flight.end;
                    self.writer.durable = Some(Position { file, offset });
                    self.writer.failures = 0;
                }
            }
        }
        self.settle(out);
    }

    /// How many batches at the front are over and not committed yet.
    fn over(&self) -> usize {
        let over = |flight: &&Flight| matches!(flight.stage, Stage::Over);
        self.writer.flights.iter().take_while(over).count()
    }

    /// Whether no crash can take a record back that can be read.
    pub(crate) fn is_durable(&self, entry: &DiskEntry) -> bool {
        let hash = name_of(entry);
        let unsynced = |item: &Item| match item {
            Item::Offload(offload) => (offload.hash(), offload.version()) == (hash, entry.version),
            Item::Tombstone(_) | Item::Copy { .. } => false,
        };
        let mut items = self.writer.flights.iter().flat_map(|flight| &flight.items);
        self.find(entry).is_some() && !items.any(unsynced)
    }
}

/// Most items that are reported, and as many that are committed, in one step: some 100 us. Those of a batch that failed, which is
/// rare, are taken back at once.
pub(super) const ITEMS_A_STEP: usize = 16;
/// Most batches between the queue and their commit: far more than a device needs, and few enough to be looked through.
const FLIGHTS_MAX: usize = 64;
/// Groups of bytes that may wait for their sync, however long the one under way takes.
const UNSYNCED_GROUPS: u64 = 4;
