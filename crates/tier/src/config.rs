use std::time::Duration;

use slackwater_base::{BLOCK_BYTES, Backoff, ByteSize};
use slackwater_wire::{NodeId, SegmentId};

/// The limits and the log of an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentConfig {
    /// The node that it belongs to.
    pub node: NodeId,
    /// Its SSD log, if it has one.
    pub log: Option<LogConfig>,
    /// Whether it lives on when its master is gone, and announces what it holds with
    /// [`Agent::announce`](crate::Agent::announce). Otherwise what a log holds is reported as it is opened.
    pub outlives: bool,
    /// Most extents in one report of what memory holds.
    pub announce_extents_max: usize,
    /// Promotions that are staged or being read at a time.
    pub promotions_in_flight_max: usize,
    /// Bytes of promotions that are staged or being read at a time; a larger promotion runs alone.
    pub promotion_bytes_in_flight_max: u64,
    /// Promotions that may be queued; more are answered as busy.
    pub promotions_queued_max: usize,
    /// How long a promotion waits for the reader that earned it, whose bytes it takes, before it reads the device itself.
    pub promotion_reader_wait: Duration,
}

impl AgentConfig {
    /// The defaults for `node`, without an SSD log.
    #[must_use]
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            log: None,
            outlives: false,
            announce_extents_max: 1024,
            promotions_in_flight_max: 32,
            promotion_bytes_in_flight_max: ByteSize::mib(64).0,
            promotions_queued_max: 50_000,
            promotion_reader_wait: Duration::from_millis(5),
        }
    }
}

/// The size and the limits of an SSD log.
#[derive(Clone, Debug, PartialEq)]
pub struct LogConfig {
    /// The segment that represents it at the master.
    pub segment: SegmentId,
    /// Bytes of all its files together.
    pub capacity: u64,
    /// Length of a file, when the capacity holds enough of them and not too many; see [`LogConfig::file_bytes_used`].
    pub file_bytes: u64,
    /// Payload at which a batch is written without waiting for more.
    pub batch_bytes: u64,
    /// Longest time that a record waits for others to share its batch.
    pub batch_delay: Duration,
    /// Most batches that are being written and synced at a time.
    pub batches_in_flight_max: usize,
    /// Bytes written since the last sync at which a file is synced, where no caller waits for that.
    pub sync_bytes: u64,
    /// Longest time that what was written waits for its sync, where no caller waits for that.
    pub sync_delay: Duration,
    /// How much of the device writes take while readers wait.
    pub pace: PaceConfig,
    /// Records that wait to be written; more are refused for want of room.
    pub records_queued_max: usize,
    /// Rate at which reclaim copies live records forward.
    pub reclaim_bytes_per_second: u64,
    /// Live bytes that reclaim reads or holds at a time; a larger record is copied alone.
    pub reclaim_bytes_in_flight_max: u64,
    /// How long what is to be written again waits for the master to drop what is not worth it.
    pub reclaim_answer_wait: Duration,
    /// Files that recovery reads at a time.
    pub recovery_reads_max: usize,
    /// Most records in one announcement; no more than one message carries.
    pub announce_entries_max: usize,
    /// Pause after the first error of the device, doubled after each further one up to
    /// [`LogConfig::retry_delay_max`].
    pub retry_delay_min: Duration,
    /// Longest pause after an error of the device. A record whose write failed is kept that long,
    /// to be written again.
    pub retry_delay_max: Duration,
    /// Failed reads of one place, each after a pause and on a device that did other operations
    /// well, after which the place counts as unreadable.
    pub read_tries_max: u32,
}

impl LogConfig {
    /// The defaults for a log of `capacity` bytes.
    #[must_use]
    pub fn new(segment: SegmentId, capacity: ByteSize) -> Self {
        Self {
            segment,
            capacity: capacity.0,
            file_bytes: ByteSize::mib(64).0,
            batch_bytes: ByteSize::mib(4).0,
            batch_delay: Self::BATCH_DELAY,
            batches_in_flight_max: 2,
            sync_bytes: ByteSize::mib(64).0,
            sync_delay: Duration::from_millis(100),
            pace: PaceConfig::default(),
            records_queued_max: 50_000,
            reclaim_bytes_per_second: ByteSize::mib(512).0,
            reclaim_bytes_in_flight_max: Self::RECLAIM_BYTES,
            reclaim_answer_wait: Duration::from_millis(2),
            recovery_reads_max: 16,
            announce_entries_max: 1024,
            retry_delay_min: Duration::from_millis(100),
            retry_delay_max: Duration::from_secs(10),
            read_tries_max: 6,
        }
    }

    /// The pauses after errors of the device. They are not jittered, because only one log uses the device.
    pub(crate) fn retries(&self) -> Backoff {
        Backoff::doubling(self.retry_delay_min, self.retry_delay_max)
    }

    /// Length of a new file. A small log has smaller files, so that the files kept free for reclaim
    /// are a small part of it. A large log has larger files, up to 1 GiB, so that opening it reads
    /// hundreds of files and not thousands.
    #[must_use]
    pub fn file_bytes_used(&self) -> u64 {
        let fair = (self.capacity / FILES_MIN).max(FILE_BYTES_MIN);
        let few = (self.capacity / FILES_MAX).min(FILE_BYTES_MAX);
        let bytes = self.file_bytes.max(few).min(fair);
        (bytes - bytes % BLOCK_BYTES).max(8 * BLOCK_BYTES)
    }

    /// The default of [`LogConfig::batch_delay`].
    pub const BATCH_DELAY: Duration = Duration::from_millis(5);

    /// The default of [`LogConfig::reclaim_bytes_in_flight_max`].
    pub const RECLAIM_BYTES: u64 = ByteSize::mib(16).0;

    /// Smallest capacity of a log: four of the smallest files.
    pub const CAPACITY_MIN: u64 = 4 * FILE_BYTES_MIN;
}

/// How much of the device writes take while readers wait for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaceConfig {
    /// How many times as long as without writes reads may take, on average.
    pub slowdown_max: f64,
    /// Share of the time that writes have, however long reads take.
    pub share_min: f64,
    /// Part of the memory that may wait to be written before writes have as many bytes under way as readers: what waits takes
    /// it from the values that are read.
    pub backlog_max: f64,
    /// Most pieces of writes that are under way at a time, where they are not as many as readers have.
    pub pieces_max: usize,
    /// How long the device may take for one piece.
    pub piece_time: Duration,
    /// Shortest piece in bytes, however slow the device; a write that is shorter is one piece.
    pub piece_bytes_min: u64,
    /// Longest piece in bytes, however fast the device.
    pub piece_bytes_max: u64,
}

impl PaceConfig {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        slowdown_max: 1.5,
        share_min: 0.1,
        backlog_max: 0.02,
        pieces_max: 2,
        piece_time: Duration::from_millis(1),
        piece_bytes_min: 64 << 10,
        piece_bytes_max: 2 << 20,
    };
}

impl Default for PaceConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const FILES_MIN: u64 = 32;
const FILES_MAX: u64 = 512;
const FILE_BYTES_MAX: u64 = 1 << 30;
const FILE_BYTES_MIN: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_neither_too_few_files_nor_thousands() {
        let files = |capacity: ByteSize| {
            capacity.0 / LogConfig::new(SegmentId(1), capacity).file_bytes_used()
        };
        assert_eq!(files(ByteSize::mib(64)), 32);
        assert_eq!(files(ByteSize::gib(16)), 256);
        assert_eq!(files(ByteSize::gib(200)), 512);
        assert_eq!(
            LogConfig::new(SegmentId(1), ByteSize::gib(4096)).file_bytes_used(),
            FILE_BYTES_MAX
        );
    }
}
