use std::time::Duration;

use slackwater_base::Checksum;
use slackwater_wire::{Order, Report, Version};

use crate::format::FormatError;
use crate::io::{DiskDone, DiskError, DiskOp, FileId, LogFile, OpId};

/// An event that the shell reports to an agent.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentInput {
    /// Open the log over the files that its directory holds; answered by [`AgentOutput::Opened`] or
    /// [`AgentOutput::Refused`]. First of all inputs, for an agent with a log.
    Open {
        /// The files, in any order. The directory was synced before it was listed: a name that an earlier process
        /// removed does not come back.
        files: Vec<LogFile>,
        /// 128 random bits, which become the identity of the log when there is none yet.
        fresh: u128,
    },
    /// An order of the master.
    Order(Order),
    /// An operation of the device has ended.
    Disk(DiskDone),
    /// Make durable what was ordered until now; answered by [`AgentOutput::Flushed`] with the same number.
    Flush(u64),
    /// Accept nothing new, make durable what was ordered, and end all work; answered by
    /// [`AgentOutput::Stopped`].
    Stop,
}

/// What an agent wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentOutput {
    /// An operation for the device.
    Disk {
        /// Its name in the completion.
        op: OpId,
        /// The operation.
        request: DiskOp,
    },
    /// A message for the master.
    Report(Report),
    /// The log is open, and all its records have been announced.
    Opened(Opened),
    /// The directory's files are not a log that may be opened. Nothing was changed.
    Refused(FormatError),
    /// Everything ordered before [`AgentInput::Flush`] of this number is durable, or was reported as failed.
    Flushed(u64),
    /// No operation is under way and none will follow.
    Stopped {
        /// Ordered records and drops that could not be made durable.
        lost: usize,
        /// The records among them that a caller was promised.
        promised: usize,
        /// Records beside them that were given back since the order to stop: the device had no room for them, or was failing.
        given_back: usize,
    },
}

/// What was found when the log was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Files of the log.
    pub files: u64,
    /// Records that can be read.
    pub records: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Tombstones that still keep a record dead.
    pub tombstones: u64,
    /// Writes that a crash interrupted before they were acknowledged: records without their bytes,
    /// and headers.
    pub torn: u64,
    /// Headers that were durable once and are unreadable now, both copies.
    pub rotten: u64,
    /// Headers that were read from their second copy.
    pub repaired: u64,
    /// Records that were given up because a rotten header may have held their tombstone.
    pub doubtful: u64,
    /// The highest version that the log has seen, in records and tombstones: the next put must be above it.
    pub highest_version: Version,
}

/// One read of a record by the caller's own device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub(crate) u64);

/// Where the bytes of a record are. The file stays until the read is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a read that is begun must be ended"]
pub struct RecordRead {
    /// Identifies the read; [`Agent::end_read`](super::Agent::end_read) takes it.
    pub read: ReadId,
    /// The file that holds the record.
    pub file: FileId,
    /// First byte, a multiple of a block.
    pub offset: u64,
    /// Bytes to be read, a multiple of a block.
    pub bytes: u64,
    /// Length of the value within them.
    pub length: u64,
    /// The checksum that the value must have: together with key and version, by which the record
    /// was found, it proves that the bytes are those of this record and not of another.
    pub checksum: Checksum,
}

/// The outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// The bytes were read, or are no longer wanted.
    Done,
    /// The bytes have this checksum: if it is not the record's, the record is dropped and reported as lost.
    Checked(Checksum),
    /// The read failed. The record stays, unless other operations show that the device works and
    /// only this place cannot be read: then it is dropped and reported as lost.
    Failed(DiskError),
}

/// Counters and sizes of the tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Records that can be read.
    pub records: u64,
    /// Bytes that they take on the device, padding included.
    pub live_bytes: u64,
    /// Bytes of all files.
    pub file_bytes: u64,
    /// Files of the log.
    pub files: u64,
    /// Tombstones that still keep a record dead.
    pub tombstones: u64,
    /// Records written since opening, copies of reclaim left out.
    pub records_written: u64,
    /// Bytes of their values.
    pub value_bytes_written: u64,
    /// Bytes written since opening: headers, padding, tombstones and copies too.
    pub device_bytes_written: u64,
    /// Syncs of files with new records, copies and tombstones in them.
    pub syncs: u64,
    /// Pieces of writes that may be under way while somebody reads, in thousandths: below 1000 a share of the time.
    pub write_window_milli: u64,
    /// How many times as long as without writes the last reads took, in thousandths.
    pub read_slowdown_milli: u64,
    /// What the device writes in a second, as measured.
    pub write_bytes_per_second: u64,
    /// Time that readers waited longer for the device than without writes, in sum.
    pub reads_delayed: Duration,
    /// Bytes that reclaim copied forward.
    pub copied_bytes: u64,
    /// Files that were reclaimed.
    pub files_reclaimed: u64,
    /// Files that were given up after a failed write or sync.
    pub files_abandoned: u64,
    /// Files that were made out of deleted ones.
    pub files_reused: u64,
    /// Records that were given up: their bytes were wrong or unreadable, or their headers were.
    pub records_lost: u64,
    /// The lost records whose bytes were read and were not the bytes that were put.
    pub records_corrupt: u64,
    /// Reads of records begun, by promotions and by callers.
    pub reads: u64,
    /// Promotions whose bytes the reader brought that had earned them.
    pub promotions_copied: u64,
    /// Memory of the index, in bytes.
    pub index_bytes: u64,
}
