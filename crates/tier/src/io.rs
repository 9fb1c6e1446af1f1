//! The operations that the tiers ask of a disk, and their outcomes.

use bytes::Bytes;
use slackwater_base::{Checksum, round_to_block};
use slackwater_wire::ExtentRef;
use thiserror::Error;

/// Names an operation in its completion; never reused while the device is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// The number of a file of the log: numbers are given in the order of creation and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// A file that the device found in the log's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// Its number.
    pub file: FileId,
    /// Its length in bytes.
    pub bytes: u64,
}

/// One operation on the log's files. All offsets and lengths are multiples of [`slackwater_base::BLOCK_BYTES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskOp {
    /// Make a file of this length, all of it allocated, and make its existence durable. It reads as zeros; or only its first
    /// block does and the rest are bytes of a file of the log that was deleted ([`DiskOutcome::Reused`]): a file system
    /// overwrites such blocks faster than it gives and takes them.
    Create {
        /// The file to be made; no file had its number before.
        file: FileId,
        /// Its length in bytes.
        bytes: u64,
    },
    /// Write the parts one after another, beginning at `offset`. Durable only after a later [`DiskOp::Sync`].
    Write {
        /// The file to be written to.
        file: FileId,
        /// Where the first part goes, in bytes from the beginning of the file.
        offset: u64,
        /// What is written, without gaps.
        parts: Vec<Part>,
    },
    /// Make every write completed before this was submitted durable.
    Sync {
        /// The file whose writes become durable.
        file: FileId,
    },
    /// Read `bytes` bytes to where `into` says, and take the checksum of the first `length` of them after they arrived.
    Read {
        /// The file to be read.
        file: FileId,
        /// Where the first byte is, from the beginning of the file.
        offset: u64,
        /// Length of the read in bytes.
        bytes: u64,
        /// Length of the value within it; the rest is padding.
        length: u64,
        /// Where the bytes go.
        into: Target,
    },
    /// Remove the file, durably. When the name is gone already, an earlier try may have removed it
    /// and failed to make that durable: a power cut would bring it back. The operation then
    /// succeeds once the absence is durable, and not before.
    Delete {
        /// The file to be removed.
        file: FileId,
        /// Bytes of files that the log may have beside those that are left. The device may keep so much of what was removed,
        /// to make new files out of.
        room: u64,
    },
}

/// A piece of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// These bytes, a whole number of blocks. Those of a read need no copy on their way to a write.
    Bytes(Bytes),
    /// The first `length` bytes of an extent, then zeros up to a whole block.
    Extent {
        /// Where the bytes are. The agent keeps the extent from being reused until the completion.
        extent: ExtentRef,
        /// Length of the value in bytes.
        length: u64,
    },
}

impl Part {
    /// Bytes that it takes on the device, padding included.
    #[must_use]
    pub fn padded(&self) -> u64 {
        match self {
            Part::Bytes(bytes) => bytes.len() as u64,
            Part::Extent { length, .. } => round_to_block(*length),
        }
    }

    /// The same bytes in pieces of `bytes` bytes, whole blocks, the last one with the rest.
    pub(crate) fn cut(self, bytes: u64) -> Vec<Part> {
        match self {
            Part::Bytes(mut all) => {
                let mut pieces = Vec::new();
                while !all.is_empty() {
                    let piece = all.split_to(all.len().min(bytes as usize));
                    pieces.push(Part::Bytes(piece));
                }
                pieces
            }
            Part::Extent { extent, length } => {
                let starts = (0..length.div_ceil(bytes)).map(|nth| nth * bytes);
                let piece = |start| Part::Extent {
                    extent: ExtentRef {
                        offset: extent.offset + start,
                        bytes: extent.bytes - start,
                        ..extent
                    },
                    length: bytes.min(length - start),
                };
                starts.map(piece).collect()
            }
        }
    }
}

/// Where the bytes of a read go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Into the completion.
    Completion,
    /// Into this extent, from its first byte and never past its last: padding that does not fit is
    /// left out.
    Extent(ExtentRef),
    /// Nowhere: only the checksum is wanted.
    Nowhere,
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskDone {
    /// The name of the operation.
    pub op: OpId,
    /// Its outcome.
    pub result: Result<DiskOutcome, DiskError>,
}

/// What an operation that succeeded returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskOutcome {
    /// The operation is done and returns nothing.
    Done,
    /// A file was made out of a deleted one: behind its first block, which is durably zeros, it has the bytes of that one.
    Reused,
    /// A read is done.
    Read {
        /// All the bytes, when the target was the completion; empty otherwise.
        bytes: Bytes,
        /// Checksum of the first `length` bytes.
        checksum: Checksum,
    },
}

/// Why an operation did not succeed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
pub enum DiskError {
    /// No space left on the device, or a quota is used up.
    #[error("no space left")]
    Full,
    /// The file system is mounted read-only.
    #[error("read-only file system")]
    ReadOnly,
    /// No such file, or it ends before the offset.
    #[error("no such file, or it is too short")]
    Missing,
    /// The operating system was short of descriptors or memory, or the call was interrupted. This
    /// says nothing about the file: the same operation may succeed a moment later, so nothing is
    /// given up after such a read.
    #[error("short of descriptors or memory, os error {errno}")]
    Resources {
        /// The operating system's error number.
        errno: i32,
    },
    /// Any other error. After a sync that failed so, the file takes no more writes.
    #[error("os error {errno}")]
    Device {
        /// The operating system's error number, for the log line.
        errno: i32,
    },
}

impl DiskError {
    /// Whether the error says nothing about the file or the device: the same operation may succeed
    /// a moment later.
    #[must_use]
    pub fn is_passing(self) -> bool {
        matches!(self, DiskError::Resources { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_cut_are_the_same_one_after_another() {
        let all: Vec<u8> = (0..=255).cycle().take(5 * 4096).collect();
        let check = |limit: u64, lengths: &[usize]| {
            let pieces = Part::Bytes(all.clone().into()).cut(limit);
            let pieces = pieces.into_iter().map(|piece| match piece {
                Part::Bytes(bytes) => bytes,
                Part::Extent { .. } => panic!("bytes stay bytes"),
            });
            let pieces: Vec<Bytes> = pieces.collect();
            assert_eq!(pieces.concat(), all, "{limit}");
            let found: Vec<usize> = pieces.iter().map(Bytes::len).collect();
            assert_eq!(found, lengths, "{limit}");
        };
        check(4096, &[4096; 5]);
        check(2 * 4096, &[8192, 8192, 4096]);
        check(5 * 4096, &[20_480]);
        check(1 << 20, &[20_480]);
    }
}
