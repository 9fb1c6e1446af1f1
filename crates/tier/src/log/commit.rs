use std::collections::VecDeque;

use slackwater_base::{Instant, Planted, planted};
use slackwater_wire::TaskFailure;

use super::index::{Placed, Slot};
use super::pieces::{ITEMS_A_STEP, Writing};
use super::queue::Queued;
use super::write::{Answer, Failing, QueuedTombstone};
use super::{Log, LogOut};
use crate::format::Record;
use crate::io::{DiskError, FileId};

/// A batch on its way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) number: u64,
    pub(super) file: FileId,
    /// Where the batch ends.
    pub(super) end: u64,
    /// Its length on the device.
    pub(super) bytes: u64,
    pub(super) items: VecDeque<Item>,
    /// The lowest number of an order in it.
    pub(super) first_order: u64,
    pub(super) stage: Stage,
    /// A caller waits until some of it is durable.
    pub(super) awaited: bool,
    /// How many of the first items were looked through for records that nobody was promised: their ends were reported.
    pub(super) released: usize,
    /// A write or sync of its file failed: nothing of it counts, whatever its operations give.
    pub(super) abandoned: bool,
}

#[derive(Debug)]
pub(super) enum Stage {
    Writing(Writing),
    /// All of it is written, since then; a later sync will cover it.
    Written(Instant),
    Syncing,
    Over,
}

#[derive(Debug)]
pub(super) enum Item {
    Tombstone(QueuedTombstone),
    Copy { record: Record, from: (FileId, u64) },
    Offload(Queued),
}

impl Log {
    /// After a failed write or sync nothing that was not acknowledged counts in `file`, and nothing more goes there:
    /// the kernel may have dropped the pages and will call the next sync a success (Rebello et al., 2020).
    pub(super) fn abandon(&mut self, file: FileId, error: DiskError) {
        if self.writer.active.is_some_and(|active| active.file == file) {
            self.seal_active();
        }
        if planted(Planted::TrustAfterFailedSync) {
            return;
        }
        let flights = self.writer.flights.iter_mut();
        flights
            .filter(|flight| flight.file == file && !flight.is_durable())
            .for_each(Flight::abandon);
        if self.files.get(file).is_some_and(|file| !file.suspect) {
            self.files.update(file, |file| file.suspect = true);
            self.stats.files_abandoned += 1;
        }
        // The durable positions of later batches must not cover this file: they belong to another life.
        self.life += 1;
        self.writer.durable = None;
        self.note_failure(error);
    }

    pub(super) fn note_failure(&mut self, error: DiskError) {
        let pause = self.config.retries().ceiling(self.writer.failures);
        self.writer.failures = self.writer.failures.saturating_add(1);
        self.writer.failing = Some(Failing {
            error,
            until: self.now + pause,
        });
    }

    /// Commits or fails the batches that are over, in the order of the log: a part of them, see [`Log::is_behind`].
    pub(super) fn settle(&mut self, out: &mut Vec<LogOut>) {
        let mut left = ITEMS_A_STEP;
        while let Some(flight) = self.writer.flights.front_mut()
            && matches!(flight.stage, Stage::Over)
        {
            let file = flight.file;
            if flight.is_durable()
                && let Some(item) = flight.items.pop_front()
            {
                let released = flight.released > 0;
                flight.released = flight.released.saturating_sub(1);
                self.commit(item, file, released, out);
                left -= 1;
                if left == 0 {
                    return;
                }
                continue;
            }
            let Some(flight) = self.writer.flights.pop_front() else {
                return;
            };
            if flight.abandoned {
                self.fail(flight, out);
            }
        }
    }

    fn commit(&mut self, item: Item, file: FileId, released: bool, out: &mut Vec<LogOut>) {
        match item {
            Item::Tombstone(tombstone) => self.tombstone_committed(tombstone, file, out),
            Item::Copy { record, .. } => {
                self.place_record(&record, file);
                self.stats.copied_bytes += record.length;
                self.drain_settled(record.length);
            }
            Item::Offload(offload) => {
                if !released || offload.promised {
                    self.end_offload(&offload, file, out);
                }
                self.writer.unresolved.remove(&offload.order);
                self.stats.records_written += 1;
                self.stats.value_bytes_written += offload.record.length;
            }
        }
    }

    /// A record can be read in `file`. True when it is the live one.
    pub(super) fn place_record(&mut self, record: &Record, file: FileId) -> bool {
        let (version, at) = (record.entry.version, (file, record.offset));
        let Some(slot) = Slot::new(version, record.checksum, at, record.length) else {
            return false;
        };
        match self.index.place(record.hash, slot) {
            Placed::Live { replaced } => {
                self.files.live(file, slot.padded());
                self.value_bytes += slot.length();
                if let Some(old) = replaced {
                    self.died(&old);
                }
                true
            }
            Placed::Dead => false,
        }
    }

    /// The record that `slot` named is dead.
    pub(super) fn died(&mut self, slot: &Slot) {
        self.files.died(slot.file(), slot.padded());
        self.value_bytes -= slot.length();
    }

    fn tombstone_committed(
        &mut self,
        tombstone: QueuedTombstone,
        file: FileId,
        out: &mut Vec<LogOut>,
    ) {
        let (before, here) = self
            .index
            .place_tombstone(tombstone.hash, tombstone.version, file);
        if let Some(before) = before {
            self.files.remove_tombstone(before);
        }
        if here {
            self.files.add_tombstone(file);
            self.shields.lower(tombstone.hash);
        }
        if let Some(order) = tombstone.order {
            self.writer.unresolved.remove(&order);
        }
        match tombstone.answer {
            Answer::Reclaim => self.drain_settled(0),
            answer => out.push(answer.given()),
        }
    }

    /// A batch that is not durable: drops are kept until they are, copies are read again, and records wait for one more
    /// try, for a time. They may lie in the abandoned file as well, which does no harm: both are the same bytes under the
    /// same version, and that file goes.
    fn fail(&mut self, flight: Flight, out: &mut Vec<LogOut>) {
        let (file, released) = (flight.file, flight.released);
        for (nth, item) in flight.items.into_iter().enumerate().rev() {
            match item {
                Item::Tombstone(tombstone) if tombstone.order.is_some() => {
                    self.writer.tombstones.push_front(tombstone)
                }
                Item::Tombstone(tombstone) => self.writer.moved.push_front(tombstone),
                Item::Copy { mut record, from } => {
                    record.offset = from.1;
                    self.drain_again(record);
                }
                Item::Offload(offload) if nth < released && !offload.promised => {
                    self.lose_unsynced(offload, file, out)
                }
                Item::Offload(mut offload) => {
                    let again = offload.kept_until.is_none();
                    offload.kept_until = Some(self.now + self.config.retry_delay_max);
                    let order = offload.order;
                    self.writer.offloads.insert(offload);
                    if !again {
                        self.writer.given_back += usize::from(self.stopping);
                        self.withdraw(&[order], TaskFailure::Device, out);
                    }
                }
            }
        }
    }

    /// Gives the queued records back when waiting will not help: their sources are pinned in memory all the while. Those
    /// of a failed batch, which are few, are kept for a time to be written again.
    pub(super) fn refuse_when_stuck(&mut self, out: &mut Vec<LogOut>) {
        if self.writer.offloads.is_empty() {
            return;
        }
        let failure = match self.writer.refusal() {
            Some(failure) => failure,
            None if !self.has_room() && self.writer.flights.is_empty() => TaskFailure::NoRoom,
            None => return,
        };
        let now = self.now;
        let given_back = |offload: &&Queued| offload.kept_until.is_none_or(|until| until <= now);
        let queued = self.writer.offloads.iter().filter(given_back);
        let orders: Vec<u64> = queued.map(|offload| offload.order).collect();
        if self.stopping {
            self.writer.given_back += orders.len();
        }
        self.withdraw(&orders, failure, out);
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

/// What an error of the device means to a record of which nothing was written.
pub(super) fn failure_of(error: DiskError) -> TaskFailure {
    match error {
        DiskError::Full | DiskError::ReadOnly => TaskFailure::NoRoom,
        DiskError::Missing | DiskError::Resources { .. } | DiskError::Device { .. } => {
            TaskFailure::Failing
        }
    }
}
