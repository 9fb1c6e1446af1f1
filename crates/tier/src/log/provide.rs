//! Files for what is to be written: made before they are needed, within the capacity.

use super::files::{FileState, List};
use super::{Log, LogOut, Purpose};
use crate::io::{DiskError, DiskOp, DiskOutcome, FileId};

impl Log {
    /// Has a spare file made before it is needed, and tries again after the device refused.
    pub(super) fn provide_file(&mut self, out: &mut Vec<LogOut>) {
        let resting = self
            .writer
            .failing
            .is_some_and(|failing| failing.until > self.now);
        if resting || self.files.has(List::Creating) {
            return;
        }
        let used = self.files.bytes();
        let fits = used + self.file_bytes <= self.config.capacity;
        if self.files.has(List::Spare) || !fits {
            // Nothing to try it with but the next batch.
            self.writer.failing = None;
        }
        let maintenance = self.writer.needs_maintenance();
        // What is being deleted gives its room first: else a process that ends soon after each beginning adds a file to
        // those of its earlier lives.
        let beyond = maintenance
            && self.writer.needs_file
            && used <= self.reach()
            && !self.files.has(List::Deleting);
        let filling = self
            .writer
            .active
            .is_some_and(|active| active.at > active.bytes / 2);
        let wanted = self.writer.failing.is_some() || self.writer.needs_file || filling;
        if wanted && !self.files.has(List::Spare) && (fits || beyond) {
            let file = self.files.begin(self.file_bytes);
            self.submit(
                Purpose::Create(file),
                DiskOp::Create {
                    file,
                    bytes: self.file_bytes,
                },
                out,
            );
        }
    }

    /// Bytes of files up to which tombstones and copies may begin another: one beyond the capacity. A log whose capacity
    /// was lowered is longer than that already, as may be one that a crash found with one file more, and only these bring
    /// it down: it has what one drain may need on top of its length, which each drain lessens. A file that was abandoned
    /// gives no room until it is emptied, and takes nothing: each allows one more.
    pub(super) fn reach(&self) -> u64 {
        let abandoned = self.files.suspects().min(ABANDONED_MAX) as u64 * self.file_bytes;
        let within = self.config.capacity.max(self.file_bytes) + abandoned;
        let longest = || {
            self.files
                .iter()
                .map(|(_, file)| file.bytes)
                .max()
                .unwrap_or_default()
        };
        let begun = self.reclaim.as_ref().map_or(0, |reclaim| reclaim.reach);
        self.overlong
            .map_or(within, |length| within.max(length + longest()))
            .max(begun)
    }

    /// Notes how far the files are beyond the capacity, if they are; never further than `before`.
    pub(super) fn measure(&mut self, before: u64) {
        let length = self.files.bytes().min(before);
        self.overlong = (length > self.config.capacity).then_some(length);
    }

    pub(super) fn created(&mut self, file: FileId, result: Result<DiskOutcome, DiskError>) {
        match result {
            Ok(outcome) => {
                self.writer.failing = None;
                self.writer.needs_file = false;
                let reused = outcome == DiskOutcome::Reused;
                self.stats.files_reused += u64::from(reused);
                self.files.update(file, |file| {
                    (file.state, file.reused) = (FileState::Spare, reused);
                });
            }
            Err(error) => {
                // Something of it may be there: its number stays used, and it is deleted before another try.
                self.make_deletable(file);
                self.note_failure(error);
            }
        }
    }
}

/// Abandoned files for which others may be begun beyond the capacity: a device that fails every other write makes one
/// for each batch, and a file that is emptied has some ten batches.
const ABANDONED_MAX: usize = 32;
