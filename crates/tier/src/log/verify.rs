//! Batches that no header confirms: their bytes are read, and written again where they may be in a cache alone.
//!
//! A sync that failed may have left pages clean that were never written: they read well until the power goes, and the
//! next sync has nothing to do (Rebello et al., 2020). So the last opening's batches that are not known to
//! be durable are written again, the same bytes to the same place, before the sync that makes them so. Those of
//! earlier openings need it no more: a later one wrote only after it had done this itself.
//!
//! Records that turn out torn are left out of the headers that are written. They were never announced, and a later
//! opening that cannot read them would take them for whole ones.

use std::collections::VecDeque;

use bytes::Bytes;
use slackwater_base::{BLOCK_BYTES, Planted, planted, round_to_block};

use super::Log;
use super::recover::{Found, Pass, is_before, opening_of};
use crate::format::{
    Batch, Entry, FileHeader, FirstBlock, FormatError, Identity, Record, encode_batch,
};
use crate::io::{DiskError, DiskOp, DiskOutcome, FileId, Part, Target};

/// A batch that may not have been durable: its records are read one by one, and those that are right written again;
/// then its headers.
#[derive(Debug)]
pub(super) struct Doubtful {
    batch: Batch,
    records: VecDeque<Record>,
    writes: VecDeque<(u64, Bytes)>,
    /// What its headers say of themselves, and the first block if it went with this batch, until they are written.
    again: Option<(Identity, Option<FileHeader>)>,
    /// Whether what is read is to be written.
    renewed: bool,
}

impl Doubtful {
    fn new(batch: Batch, again: Option<(Identity, Option<FileHeader>)>) -> Self {
        let records = batch.entries.iter().filter_map(|entry| match entry {
            Entry::Record(record) => Some(record.clone()),
            Entry::Tombstone { .. } => None,
        });
        let renewed = again.is_some();
        let mut doubtful = Self {
            records: records.collect(),
            batch,
            writes: VecDeque::new(),
            again,
            renewed,
        };
        doubtful.close();
        doubtful
    }

    fn is_settled(&self) -> bool {
        self.records.is_empty() && self.writes.is_empty()
    }

    /// What to ask of the device next.
    pub(super) fn request(&mut self, file: FileId) -> Option<DiskOp> {
        if let Some((offset, bytes)) = self.writes.front_mut() {
            return Some(DiskOp::Write {
                file,
                offset: *offset,
                parts: vec![Part::Bytes(std::mem::take(bytes))],
            });
        }
        let Record { offset, length, .. } = self.records.front()?;
        let into = if self.renewed {
            Target::Completion
        } else {
            Target::Nowhere
        };
        Some(DiskOp::Read {
            file,
            offset: *offset,
            bytes: round_to_block(*length),
            length: *length,
            into,
        })
    }

    /// The bytes of a record are wrong.
    fn leave_out(&mut self, torn: &Record) {
        self.batch.entries.retain(
            |entry| !matches!(entry, Entry::Record(record) if record.offset == torn.offset),
        );
    }

    /// Has the headers written when every record was looked at.
    fn close(&mut self) {
        if !self.is_settled() {
            return;
        }
        if let Some((place, first)) = self.again.take() {
            let [head, tail] = encode_batch(place, &self.batch);
            let first = first.map(|header| (0, header.encode().into()));
            let ends = [
                (self.batch.start, head.into()),
                (self.batch.end() - self.batch.header_bytes, tail.into()),
            ];
            self.writes.extend(first.into_iter().chain(ends));
        }
    }
}

impl Found {
    /// The first block, if it was written with this batch: it would take all that follows along.
    fn first_with(&self, batch: &Batch) -> Option<FileHeader> {
        match self.first {
            Some(FirstBlock::Header(header)) if batch.start == BLOCK_BYTES => Some(header),
            _ => None,
        }
    }
}

impl Log {
    /// All headers are read: batches that no later header of their life confirms are in doubt.
    pub(super) fn begin_verifying(&mut self) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        recovery.pass = Pass::Verify;
        let lives = recovery
            .found
            .values()
            .filter_map(|found| found.lives.last());
        let last = lives.max().copied().map(opening_of);
        let mut settled = Vec::new();
        for (id, found) in &mut recovery.found {
            let place = Identity {
                log: self.identity,
                file: *id,
            };
            for mut batch in std::mem::take(&mut found.unsettled) {
                let confirmed = recovery
                    .durable
                    .get(&batch.life)
                    .is_some_and(|d| is_before(*id, batch.end(), d));
                let renewed = Some(opening_of(batch.life)) == last
                    && !recovery.condemned.contains(id)
                    && !planted(Planted::RecoveryTrustsCache);
                if !confirmed {
                    let again = renewed.then(|| (place, found.first_with(&batch)));
                    found
                        .doubtful
                        .push_back(Doubtful::new(batch.clone(), again));
                    batch
                        .entries
                        .retain(|entry| matches!(entry, Entry::Tombstone { .. }));
                }
                settled.push((*id, batch));
            }
            found.doubtful.retain(|doubtful| !doubtful.is_settled());
            if !found.doubtful.is_empty() {
                recovery.waiting.push_back(*id);
            }
        }
        for (file, batch) in settled {
            self.apply(file, batch);
        }
    }

    /// A part of a doubtful batch was read or written.
    ///
    /// # Errors
    /// The case that it cannot be written: nothing may be announced that the next power cut takes.
    pub(super) fn verified(
        &mut self,
        file: FileId,
        result: Result<DiskOutcome, DiskError>,
    ) -> Result<(), FormatError> {
        let Some(recovery) = &mut self.recovery else {
            return Ok(());
        };
        let Some(found) = recovery.found.get_mut(&file) else {
            return Ok(());
        };
        let Some(doubtful) = found.doubtful.front_mut() else {
            return Ok(());
        };
        let mut right = None;
        if doubtful.writes.pop_front().is_some() {
            result.map_err(|error| FormatError::Unreadable { file, error })?;
        } else if let Some(record) = doubtful.records.pop_front() {
            match result {
                Ok(DiskOutcome::Read { bytes, checksum }) if checksum == record.checksum => {
                    if doubtful.renewed {
                        doubtful.writes.push_back((record.offset, bytes));
                    }
                    right = Some(record);
                }
                // It may be right, and read well in a later life: it counts as live, and a read of it checks it. But it
                // does not take the place of a record that is durable, such as the one that reclaim copied it from.
                Err(_) => {
                    found.suspect = true;
                    let durable = self.index.get(record.hash);
                    if durable.is_none_or(|slot| slot.version < record.entry.version) {
                        right = Some(record);
                    } else if doubtful.renewed {
                        doubtful.leave_out(&record);
                    } else {
                        self.index.note_copy(record.hash);
                    }
                }
                Ok(_) => {
                    found.suspect = true;
                    doubtful.leave_out(&record);
                    recovery.opened.torn += 1;
                    recovery.opened.highest_version =
                        recovery.opened.highest_version.max(record.entry.version);
                }
            }
        }
        doubtful.close();
        if doubtful.is_settled() {
            found.doubtful.pop_front();
        }
        if !found.doubtful.is_empty() {
            recovery.waiting.push_front(file);
        }
        if let Some(record) = right {
            self.apply_record(file, &record);
        }
        Ok(())
    }
}
