//! Reads of records: by callers with their own device, and for promotions.

use std::time::Duration;

use slackwater_base::{Instant, KeyHash};
use slackwater_wire::{DiskEntry, ExtentRef, TicketId};

use super::failed_reads::Verdict;
use super::pace::ReadMark;
use super::{Log, LogOut, Purpose};
use crate::agent::{ReadEnd, ReadId, RecordRead};
use crate::format::name_of;
use crate::io::{DiskOp, Target};

/// A read that keeps its file in place.
#[derive(Debug)]
pub(super) struct Pin {
    entry: DiskEntry,
    hash: KeyHash,
    plan: RecordRead,
    /// What a reader met when it began; a promotion is no reader.
    mark: Option<ReadMark>,
}

impl Log {
    /// Where a record is, for a read by the caller's own device; it waits for that device beside what the log writes.
    pub(crate) fn begin_read(&mut self, now: Instant, entry: &DiskEntry) -> Option<RecordRead> {
        let plan = self.begin_promotion(entry)?;
        let mark = self.pace.read_begun(now, plan.bytes);
        if let Some(pin) = self.reads.get_mut(&plan.read) {
            pin.mark = Some(mark);
        }
        Some(plan)
    }

    /// Where a record is, for [`Log::read_into`].
    pub(crate) fn begin_promotion(&mut self, entry: &DiskEntry) -> Option<RecordRead> {
        let hash = name_of(entry);
        let slot = self.slot_of(hash, entry.version)?;
        let plan = RecordRead {
            read: ReadId(self.next_read),
            file: slot.file(),
            offset: slot.offset(),
            bytes: slot.padded(),
            length: slot.length(),
            checksum: slot.checksum,
        };
        self.files.update(plan.file, |file| file.pins += 1);
        self.next_read += 1;
        self.stats.reads += 1;
        let pin = Pin {
            entry: entry.clone(),
            hash,
            plan,
            mark: None,
        };
        self.reads.insert(plan.read, pin);
        Some(plan)
    }

    /// Ends a read for which the device took `took`: a record whose bytes were wrong is lost, unless it is in another place by
    /// now. One that could not be read may be as right as ever, until the device shows that it works and cannot read it.
    ///
    /// # Panics
    /// When the read was ended before: its file would be deleted under another reader.
    pub(crate) fn end_read(
        &mut self,
        now: Instant,
        read: ReadId,
        (end, took): (ReadEnd, Duration),
        out: &mut Vec<LogOut>,
    ) {
        self.now = now;
        let Pin {
            entry,
            hash,
            plan,
            mark,
        } = self.reads.remove(&read).expect("a read ends once");
        if let Some(mark) = mark {
            // How soon a read fails, or how late, says nothing of those that bring bytes.
            let took = match end {
                ReadEnd::Failed(_) => Duration::ZERO,
                ReadEnd::Done | ReadEnd::Checked(_) => took,
            };
            self.pace.read_ended(now, mark, plan.bytes, took);
        }
        self.files.update(plan.file, |file| file.pins -= 1);
        let place = (plan.file, plan.offset);
        let right = match end {
            ReadEnd::Done => true,
            ReadEnd::Checked(checksum) => {
                self.failed_reads.note_success();
                self.failed_reads.forget(plan.file, plan.offset);
                checksum == plan.checksum
            }
            ReadEnd::Failed(error) => {
                self.failed_reads.note(now, place, error, &self.config) != Verdict::Unreadable
            }
        };
        let there = self
            .index
            .get(hash)
            .is_some_and(|slot| slot.is_at(plan.file, plan.offset));
        if !right && there {
            self.stats.records_corrupt += u64::from(matches!(end, ReadEnd::Checked(_)));
            self.lose(entry, out);
        }
    }

    /// What a read that was begun reads.
    pub(crate) fn entry_of(&self, read: ReadId) -> Option<&DiskEntry> {
        self.reads.get(&read).map(|pin| &pin.entry)
    }

    /// Whether a reader, and not a promotion, has begun to read this record.
    pub(crate) fn is_read_by_caller(&self, entry: &DiskEntry) -> bool {
        let mut callers = self.reads.values().filter(|pin| pin.mark.is_some());
        callers.any(|pin| pin.entry == *entry)
    }

    /// Reads a record that was found by [`Log::begin_promotion`] into an extent; the answer is [`LogOut::Read`], after
    /// which the read must be ended.
    pub(crate) fn read_into(
        &mut self,
        ticket: TicketId,
        plan: RecordRead,
        extent: ExtentRef,
        out: &mut Vec<LogOut>,
    ) {
        let RecordRead {
            read,
            file,
            offset,
            bytes,
            length,
            ..
        } = plan;
        let request = DiskOp::Read {
            file,
            offset,
            bytes,
            length,
            into: Target::Extent(extent),
        };
        self.submit(Purpose::Read(ticket, read), request, out);
    }
}
