//! Jobs on a kernel that the test plays: each system call is answered by seed, and what is durable is kept in a model.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use slackwater_base::{BLOCK_BYTES, Rng, plant};
use slackwater_tier::io::Part;
use slackwater_wire::{Incarnation, SegmentId};

use super::*;
use crate::config::HugePages;
use crate::region;

/// Answers system calls in place of the kernel.
struct Kernel {
    _root: tempfile::TempDir,
    directory: Arc<Directory>,
    segment: Segment,
    rng: Rng,
    is_full: bool,
    /// Files whose names a power cut leaves.
    durable: BTreeSet<FileId>,
    /// What the job under way has had done: bytes written, and descriptors synced.
    written: u64,
    synced: BTreeSet<i32>,
    /// Files whose first block was cleared, and those of which that is durable.
    cleared: BTreeSet<i32>,
    blank: BTreeSet<i32>,
    /// Files that were made out of deleted ones.
    reused: u64,
    /// A file had its name before its first block was blank.
    named_early: bool,
}

impl Kernel {
    fn new(seed: u64) -> Self {
        let root = tempfile::tempdir().unwrap();
        let directory = Arc::new(Directory::hold(root.path()).unwrap());
        let segment = Segment {
            id: SegmentId(1),
            incarnation: Incarnation(5),
            region: Arc::new(region::map(1 << 20, HugePages::Off).unwrap().0),
        };
        Self {
            _root: root,
            directory,
            segment,
            rng: Rng::new(seed),
            is_full: false,
            durable: BTreeSet::new(),
            written: 0,
            synced: BTreeSet::new(),
            cleared: BTreeSet::new(),
            blank: BTreeSet::new(),
            reused: 0,
            named_early: false,
        }
    }

    fn names(&self) -> BTreeSet<FileId> {
        let files = self.directory.list().unwrap();
        files.into_iter().map(|(file, _)| file).collect()
    }

    /// Answers a call: it is interrupted, fails, or does all or a part of what it was asked for.
    fn answer(&mut self, call: &Call) -> Result<usize, i32> {
        match self.rng.below(10) {
            0 => return Err(libc::EINTR),
            1 | 2 => return Err(libc::EIO),
            _ => {}
        }
        match call {
            Call::Move(window) => {
                // SAFETY: the window's entries live in the job, which outlives this call.
                let pieces =
                    unsafe { std::slice::from_raw_parts(window.pieces, window.count as usize) };
                let left: usize = pieces.iter().map(|piece| piece.iov_len).sum();
                let blocks = left as u64 / BLOCK_BYTES;
                let done = (1 + self.rng.below(blocks)) * BLOCK_BYTES;
                self.written += done;
                let zeros = |piece: &libc::iovec| {
                    // SAFETY: the piece is memory of the job, which nobody writes to.
                    let bytes = unsafe {
                        std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len)
                    };
                    bytes.iter().all(|byte| *byte == 0)
                };
                if window.write && window.offset == 0 && pieces.iter().all(zeros) {
                    self.cleared.insert(window.file);
                }
                Ok(done as usize)
            }
            Call::SyncAll { file } if *file == self.directory.handle().as_raw_fd() => {
                self.durable = self.names();
                Ok(0)
            }
            Call::SyncAll { file } | Call::SyncData { file } => {
                self.synced.insert(*file);
                self.blank.extend(self.cleared.take(file));
                Ok(0)
            }
            Call::Unlink { directory, name } => {
                assert_eq!(*directory, self.directory.handle().as_raw_fd());
                // SAFETY: the name lives in the job, which outlives this call.
                let name = unsafe { CStr::from_ptr(*name) };
                unlinkat(self.directory.handle(), name, AtFlags::empty())
                    .map(|()| 0)
                    .map_err(Errno::raw_os_error)
            }
            Call::Allocate { .. } if self.is_full => Err(libc::ENOSPC),
            Call::Allocate { file, bytes } => {
                // SAFETY: the job has the file open.
                let file = unsafe { BorrowedFd::borrow_raw(*file) };
                let made = ftruncate(file, *bytes).map(|()| 0);
                made.map_err(Errno::raw_os_error)
            }
        }
    }

    /// Runs `op` to its end.
    fn run(&mut self, op: DiskOp) -> Result<(), DiskError> {
        (self.written, self.synced) = (0, BTreeSet::new());
        (self.cleared, self.blank) = (BTreeSet::new(), BTreeSet::new());
        let made = match &op {
            DiskOp::Create { file, .. } => Some(*file),
            _ => None,
        };
        let mut job = self.begin(op)?;
        loop {
            let answer = self.answer(&job.call());
            let progress = job.after(answer);
            let reused = job.outcome() == DiskOutcome::Reused;
            if reused && self.blank.is_empty() && made.is_some_and(|it| self.names().contains(&it))
            {
                self.named_early = true;
            }
            match progress {
                Progress::Again => {}
                Progress::Done => {
                    self.reused += u64::from(reused);
                    return Ok(());
                }
                Progress::Failed(error) => return Err(error),
            }
        }
    }

    fn begin(&self, op: DiskOp) -> Result<Job, DiskError> {
        let buffers = Buffers::new(BLOCK_BYTES as usize);
        // SAFETY: no operation of these tests names an extent.
        unsafe { Job::begin(op, &self.directory, &self.segment, &buffers) }
    }

    fn begin_deletion(&self, file: FileId) -> Result<Job, DiskError> {
        self.begin(DiskOp::Delete { file, room: ROOM })
    }

    /// Runs `op`, and says what it promised and did not keep.
    fn check(&mut self, op: DiskOp) -> Result<(), String> {
        let what = op.clone();
        let kept = match (self.run(op), &what) {
            (Ok(()), DiskOp::Create { file, .. }) => {
                self.durable.contains(file) && !self.synced.is_empty() && !self.named_early
            }
            (Ok(()), DiskOp::Write { .. }) => self.written == WRITTEN_BYTES,
            (Ok(()), DiskOp::Sync { .. }) => !self.synced.is_empty(),
            (Ok(()), DiskOp::Delete { file, .. }) => !self.durable.contains(file),
            (Err(error), DiskOp::Delete { .. }) => error != DiskError::Missing,
            (Ok(()), DiskOp::Read { .. }) | (Err(_), _) => true,
        };
        if kept {
            Ok(())
        } else {
            Err(format!("{what:?}"))
        }
    }
}

/// Any number of deleted files is within the room of the log.
const ROOM: u64 = u64::MAX;
/// Length of every write.
const WRITTEN_BYTES: u64 = 8 * BLOCK_BYTES;

/// Does operations on a few files by seed: how many were made out of deleted ones, or the first broken promise.
fn history(seed: u64) -> Result<u64, String> {
    let mut kernel = Kernel::new(seed);
    for _ in 0..80 {
        let file = FileId(kernel.rng.below(3));
        let op = match kernel.rng.below(4) {
            0 => DiskOp::Create {
                file,
                bytes: 1 << 20,
            },
            1 => DiskOp::Write {
                file,
                offset: 0,
                parts: vec![Part::Bytes(vec![1; WRITTEN_BYTES as usize].into())],
            },
            2 => DiskOp::Sync { file },
            _ => DiskOp::Delete { file, room: ROOM },
        };
        // The log makes no file that it has.
        if !matches!(&op, DiskOp::Create { file, .. } if kernel.names().contains(file)) {
            kernel.check(op)?;
        }
    }
    Ok(kernel.reused)
}

const SEEDS: u64 = 40;

#[test]
fn jobs_keep_what_they_promise_on_a_kernel_that_fails() {
    let played = |seed| history(seed).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    let reused: u64 = (0..SEEDS).map(played).sum();
    assert!(
        reused > SEEDS / 2,
        "{reused} files were made out of deleted ones"
    );
}

#[test]
fn every_planted_bug_of_disk_jobs_is_caught() {
    for bug in Planted::DISK_JOBS {
        plant(Some(*bug));
        let caught = (0..SEEDS).any(|seed| history(seed).is_err());
        plant(None);
        assert!(caught, "{bug:?}");
    }
}

/// The name of a file was removed, and the sync of the directory failed. The retry found no name and gave that as its
/// result, which the log took for a durable deletion: the next power cut could bring the file back, with records whose
/// tombstones were gone.
#[test]
fn a_deletion_that_failed_half_way_ends_with_a_sync_of_the_directory() {
    let kernel = Kernel::new(0);
    let directory = &kernel.directory;
    directory.create(FileId(7)).unwrap();
    let delete = || kernel.begin_deletion(FileId(7));
    let directory_handle = directory.handle().as_raw_fd();
    let device = Progress::Failed(DiskError::Device { errno: libc::EIO });
    let is_sync = |call: Call| matches!(call, Call::SyncAll { file } if file == directory_handle);
    let mut first = delete().unwrap();
    assert_eq!(first.once(), Progress::Again);
    assert_eq!(kernel.names(), BTreeSet::new(), "the name is gone");
    assert!(is_sync(first.call()));
    assert_eq!(first.after(Err(libc::EIO)), device);
    let mut again = delete().unwrap();
    assert!(!is_sync(again.call()), "the name is looked for once more");
    assert_eq!(again.once(), Progress::Again, "there is none");
    assert!(is_sync(again.call()), "what is left of it is done");
    assert_eq!(again.after(Ok(0)), Progress::Done);
}

/// Files were removed where operations are begun, on the thread that drives the ring: for as long as the file system took
/// to give back 64 MiB, some 13 ms, no write was begun and none that had ended was reported.
#[test]
fn beginning_a_deletion_removes_nothing() {
    let kernel = Kernel::new(0);
    kernel.directory.create(FileId(7)).unwrap();
    let mut job = kernel.begin_deletion(FileId(7)).unwrap();
    assert_eq!(kernel.names(), BTreeSet::from([FileId(7)]));
    assert!(matches!(job.call(), Call::Unlink { .. }));
    assert_eq!(job.after(Err(libc::EINTR)), Progress::Again);
    assert!(
        matches!(job.call(), Call::Unlink { .. }),
        "it is made again"
    );
    let failed = job.after(Err(libc::EROFS));
    assert_eq!(failed, Progress::Failed(DiskError::ReadOnly));
}

/// The test of this asked the file system of the machine for more than it has, which for a moment took all room of it
/// from everybody else.
#[test]
fn a_file_for_which_there_is_no_room_leaves_no_name() {
    let mut full = 0;
    for seed in 0..SEEDS {
        let mut kernel = Kernel::new(seed);
        kernel.is_full = true;
        let created = kernel.run(DiskOp::Create {
            file: FileId(1),
            bytes: 1 << 20,
        });
        assert!(
            matches!(
                created,
                Err(DiskError::Full | DiskError::Device { errno: libc::EIO })
            ),
            "{created:?}"
        );
        assert_eq!(kernel.names(), BTreeSet::new(), "seed {seed}");
        full += u64::from(created == Err(DiskError::Full));
    }
    assert!(full > SEEDS / 2, "{full} of {SEEDS}");
}
