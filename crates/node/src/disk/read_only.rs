use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use slackwater_tier::io::{DiskError, DiskOp, DiskOutcome, FileId, Target};

use super::directory::file_name;

/// Reads a log without changing it. What recovery would write, sync or delete is answered as done and left as it is: the
/// log in memory becomes the one that a store would have.
#[derive(Debug)]
pub(crate) struct ReadOnlyDisk {
    directory: PathBuf,
}

impl ReadOnlyDisk {
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Does one operation before it returns.
    pub(crate) fn perform(&self, request: &DiskOp) -> Result<DiskOutcome, DiskError> {
        match request {
            DiskOp::Read {
                file,
                offset,
                bytes,
                length,
                into,
            } => {
                let read = self.read(*file, *offset, *bytes);
                let bytes = read.map_err(|error| match error.raw_os_error() {
                    Some(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => {
                        DiskError::Resources { errno }
                    }
                    Some(errno) if errno != libc::ENOENT => DiskError::Device { errno },
                    _ => DiskError::Missing,
                })?;
                let length =
                    usize::try_from(*length).map_or(bytes.len(), |length| length.min(bytes.len()));
                let checksum = slackwater_pool::copy::checksum(&bytes[..length]);
                let wanted = *into == Target::Completion;
                Ok(DiskOutcome::Read {
                    bytes: if wanted { bytes.into() } else { Bytes::new() },
                    checksum,
                })
            }
            // Recovery writes what it has just read, to be sure of it, and only before it is open.
            DiskOp::Write { .. } | DiskOp::Sync { .. } | DiskOp::Delete { .. } => {
                Ok(DiskOutcome::Done)
            }
            DiskOp::Create { .. } => Err(DiskError::ReadOnly),
        }
    }

    fn read(&self, file: FileId, offset: u64, bytes: u64) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
        File::open(self.directory.join(file_name(file)))?.read_exact_at(&mut buffer, offset)?;
        Ok(buffer)
    }
}
