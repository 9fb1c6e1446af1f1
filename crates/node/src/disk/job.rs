use std::ffi::{CString, c_char};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, FallocateFlags, fallocate, fdatasync, fsync, ftruncate, unlinkat};
use rustix::io::Errno;
use slackwater_base::{BLOCK_BYTES, Checksum, Planted, planted};
use slackwater_tier::io::{DiskError, DiskOp, DiskOutcome, FileId, Part};

use super::directory::Directory;
use super::handles::OpenFile;
use super::scratch::Buffers;
use super::transfer::{Place, Progress, Segment, Transfer, disk_error, errno_error};

/// A disk operation under way, one system call at a time: the device makes the call that [`Job::call`] names, by
/// whatever means it has, and tells [`Job::after`] the outcome.
#[derive(Debug)]
pub(super) enum Job {
    Move(Transfer),
    Sync {
        handle: Arc<OpenFile>,
        covers: u64,
    },
    Create {
        directory: Arc<Directory>,
        file: FileId,
        handle: Arc<OpenFile>,
        bytes: u64,
        step: Step,
        /// The deleted file that it is made of, and the write that clears its first block.
        made_of: Option<(FileId, Box<Transfer>)>,
    },
    Delete {
        directory: Arc<Directory>,
        file: FileId,
        name: CString,
        step: Removal,
    },
}

/// Where a removal is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Removal {
    /// The call that removes the name gives back the file's blocks too, which takes as long as the device takes to write
    /// megabytes: it is a call like a write, and not made where operations are begun.
    Unlink,
    SyncDirectory,
}

/// Where a creation is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Of a file that is made of a deleted one: under the new name its first block would be that of another file.
    Clear,
    Allocate,
    SyncFile,
    SyncDirectory,
}

/// The next system call of a job.
#[derive(Debug)]
pub(super) enum Call {
    Move(super::transfer::Window),
    Allocate {
        file: i32,
        bytes: u64,
    },
    SyncData {
        file: i32,
    },
    SyncAll {
        file: i32,
    },
    /// The name lives in the job.
    Unlink {
        directory: i32,
        name: *const c_char,
    },
}

impl Job {
    /// The job that does `op`. Names are made here: that neither waits for the device nor is durable yet.
    ///
    /// # Safety
    /// Until the job is dropped, nobody writes the extents that `op` writes out, and nobody else touches the one that
    /// it reads into.
    pub(super) unsafe fn begin(
        op: DiskOp,
        directory: &Arc<Directory>,
        segment: &Segment,
        buffers: &Arc<Buffers>,
    ) -> Result<Self, DiskError> {
        let open = |file| directory.open(file).map_err(errno_error);
        match op {
            DiskOp::Create { file, bytes } => {
                let spare = directory.take_spare(bytes);
                let (handle, step, made_of) = match spare {
                    Some((spare, handle)) => {
                        let zeros = vec![Part::Bytes(vec![0; BLOCK_BYTES as usize].into())];
                        // SAFETY: no extent is written out.
                        let clear =
                            unsafe { Transfer::write(Arc::clone(&handle), 0, zeros, segment) }?;
                        let keeps = planted(Planted::ReusedFileKeepsHeader);
                        let step = if keeps { Step::SyncFile } else { Step::Clear };
                        (handle, step, Some((spare, Box::new(clear))))
                    }
                    None => {
                        let handle = directory.create(file).map_err(errno_error)?;
                        (handle, Step::Allocate, None)
                    }
                };
                let directory = Arc::clone(directory);
                Ok(Job::Create {
                    directory,
                    file,
                    handle,
                    bytes,
                    step,
                    made_of,
                })
            }
            DiskOp::Write {
                file,
                offset,
                parts,
            } => {
                // SAFETY: the caller's promise about extents written out.
                unsafe { Transfer::write(open(file)?, offset, parts, segment) }.map(Job::Move)
            }
            DiskOp::Sync { file } => {
                let handle = open(file)?;
                let covers = handle.begin_sync();
                Ok(Job::Sync { handle, covers })
            }
            DiskOp::Read {
                file,
                offset,
                bytes,
                length,
                into,
            } => {
                let place = Place {
                    offset,
                    bytes,
                    length,
                };
                // SAFETY: the caller's promise about the extent read into.
                unsafe { Transfer::read(open(file)?, place, &into, segment, buffers) }
                    .map(Job::Move)
            }
            DiskOp::Delete { file, room } => {
                let step = if directory.retire(file, room) {
                    Removal::SyncDirectory
                } else {
                    Removal::Unlink
                };
                Ok(Job::Delete {
                    name: directory.forget(file),
                    directory: Arc::clone(directory),
                    file,
                    step,
                })
            }
        }
    }

    pub(super) fn call(&self) -> Call {
        let raw = |file: &Arc<OpenFile>| file.as_fd().as_raw_fd();
        match self {
            Job::Move(transfer) => Call::Move(transfer.window()),
            Job::Sync { handle, .. } => Call::SyncData { file: raw(handle) },
            Job::Create {
                step: Step::Clear,
                made_of: Some((_, clear)),
                ..
            } => Call::Move(clear.window()),
            Job::Create {
                handle,
                bytes,
                step: Step::Clear | Step::Allocate,
                ..
            } => Call::Allocate {
                file: raw(handle),
                bytes: *bytes,
            },
            Job::Create {
                handle,
                step: Step::SyncFile,
                ..
            } => Call::SyncAll { file: raw(handle) },
            Job::Create {
                directory,
                step: Step::SyncDirectory,
                ..
            }
            | Job::Delete {
                directory,
                step: Removal::SyncDirectory,
                ..
            } => Call::SyncAll {
                file: directory.handle().as_raw_fd(),
            },
            Job::Delete {
                directory,
                name,
                step: Removal::Unlink,
                ..
            } => Call::Unlink {
                directory: directory.handle().as_raw_fd(),
                name: name.as_ptr(),
            },
        }
    }

    /// Makes the next system call and waits for it.
    pub(super) fn once(&mut self) -> Progress {
        let told = |result: Result<(), Errno>| result.map(|()| 0).map_err(Errno::raw_os_error);
        let result = match self {
            Job::Move(transfer) => return transfer.once(),
            Job::Sync { handle, .. } => told(fdatasync(handle)),
            Job::Create {
                step: Step::Clear,
                made_of: Some((_, clear)),
                ..
            } => {
                let progress = clear.once();
                return self.cleared(progress);
            }
            Job::Create {
                handle,
                bytes,
                step: Step::Clear | Step::Allocate,
                ..
            } => told(fallocate(handle, FallocateFlags::empty(), 0, *bytes)),
            Job::Create {
                handle,
                step: Step::SyncFile,
                ..
            } => told(fsync(handle)),
            Job::Create {
                directory,
                step: Step::SyncDirectory,
                ..
            }
            | Job::Delete {
                directory,
                step: Removal::SyncDirectory,
                ..
            } => told(directory.sync()),
            Job::Delete {
                directory,
                name,
                step: Removal::Unlink,
                ..
            } => told(unlinkat(
                directory.handle(),
                name.as_c_str(),
                AtFlags::empty(),
            )),
        };
        self.after(result)
    }

    /// Takes in what the system call said: a count of bytes, or an error number.
    pub(super) fn after(&mut self, result: Result<usize, i32>) -> Progress {
        match (self, result) {
            (Job::Move(transfer), result) => transfer.after(result),
            (_, Err(libc::EINTR | libc::EAGAIN)) if planted(Planted::InterruptedCountsAsDone) => {
                Progress::Done
            }
            (_, Err(libc::EINTR | libc::EAGAIN)) => Progress::Again,
            // An earlier try may have removed the name without making that durable: the sync is to be done.
            (
                Job::Delete {
                    step: step @ Removal::Unlink,
                    ..
                },
                Ok(_) | Err(libc::ENOENT),
            ) => {
                *step = Removal::SyncDirectory;
                Progress::Again
            }
            (
                Job::Delete {
                    step: Removal::SyncDirectory,
                    ..
                },
                Err(_),
            ) if planted(Planted::UnlinkWithoutSync) => Progress::Done,
            (
                Job::Create {
                    handle,
                    bytes,
                    step: step @ Step::Allocate,
                    ..
                },
                Err(libc::EOPNOTSUPP),
            ) => {
                // A file system without allocation still makes a file of this length; it may run full later.
                match ftruncate(handle, *bytes) {
                    Ok(()) => {
                        *step = Step::SyncFile;
                        Progress::Again
                    }
                    Err(error) => Progress::Failed(errno_error(error)),
                }
            }
            (job @ Job::Create { .. }, Err(errno)) => {
                job.give_up();
                Progress::Failed(disk_error(errno))
            }
            (_, Err(errno)) => Progress::Failed(disk_error(errno)),
            (
                job @ Job::Create {
                    step: Step::Clear, ..
                },
                Ok(bytes),
            ) => {
                let Job::Create {
                    made_of: Some((_, clear)),
                    ..
                } = job
                else {
                    return Progress::Failed(DiskError::Missing);
                };
                let progress = clear.after(Ok(bytes));
                job.cleared(progress)
            }
            (job @ Job::Create { .. }, Ok(_)) => job.created(),
            (Job::Sync { handle, covers }, Ok(_)) => {
                handle.end_sync(*covers);
                Progress::Done
            }
            (
                Job::Delete {
                    directory, file, ..
                },
                Ok(_),
            ) => {
                directory.retired(*file);
                Progress::Done
            }
        }
    }

    /// Goes on with a creation after a call that succeeded.
    fn created(&mut self) -> Progress {
        let Job::Create {
            directory,
            file,
            handle,
            step,
            made_of,
            ..
        } = self
        else {
            return Progress::Done;
        };
        match step {
            Step::Clear | Step::Allocate => *step = Step::SyncFile,
            Step::SyncFile => {
                handle.end_sync(handle.begin_sync());
                if let Some((spare, _)) = made_of
                    && let Err(error) = directory.adopt(*spare, *file, handle)
                {
                    self.give_up();
                    return Progress::Failed(errno_error(error));
                }
                if planted(Planted::CreateWithoutDirectorySync) {
                    return Progress::Done;
                }
                *step = Step::SyncDirectory;
            }
            Step::SyncDirectory => return Progress::Done,
        }
        Progress::Again
    }

    /// Goes on with a creation after a part of the write that clears the first block.
    fn cleared(&mut self, progress: Progress) -> Progress {
        match progress {
            Progress::Again => Progress::Again,
            Progress::Done => self.created(),
            failed @ Progress::Failed(_) => {
                self.give_up();
                failed
            }
        }
    }

    /// The name of a file that never came to be must not be found by the next opener; if this fails too, it is found as a
    /// file without records.
    fn give_up(&mut self) {
        if let Job::Create {
            directory,
            file,
            made_of,
            ..
        } = self
        {
            let _ = directory.unlink(*file);
            if let Some((spare, _)) = made_of {
                directory.remove_spare(*spare);
            }
        }
    }

    /// What the job gave, once it is done.
    pub(super) fn outcome(&mut self) -> DiskOutcome {
        match self {
            Job::Move(transfer) => transfer.outcome(),
            Job::Create {
                made_of: Some(_), ..
            } => DiskOutcome::Reused,
            Job::Sync { .. } | Job::Create { .. } | Job::Delete { .. } => DiskOutcome::Done,
        }
    }

    /// The checksums of the values that a read for callers gave, once it is done.
    pub(super) fn settle(&self) -> Vec<Checksum> {
        match self {
            Job::Move(transfer) => transfer.settle(),
            Job::Sync { .. } | Job::Create { .. } | Job::Delete { .. } => Vec::new(),
        }
    }

    /// Runs to the end on this thread.
    pub(super) fn finish(&mut self) -> Result<(), DiskError> {
        loop {
            match self.once() {
                Progress::Again => {}
                Progress::Done => return Ok(()),
                Progress::Failed(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
