use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use slackwater_tier::io::FileId;

/// Most files of the log that are kept open, whatever the process may have.
pub const HANDLES_MAX: usize = 512;
/// Fewest: what is being written, drained and read at a time.
const HANDLES_MIN: usize = 8;

/// Raises the soft limit on open files to the hard one, and says how many files of the log may stay open: half of it,
/// because the rest of the process needs descriptors too.
pub(super) fn raise_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let allowed = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::debug!(%error, "the limit on open files stays as it is");
            limit.current
        }
    };
    allowed.map_or(HANDLES_MAX, |allowed| {
        (allowed as usize / 2).clamp(HANDLES_MIN, HANDLES_MAX)
    })
}

/// One file of the log, open for as long as somebody uses it, even after it was deleted.
#[derive(Debug)]
pub(super) struct OpenFile {
    handle: OwnedFd,
    /// Writes begun, and writes ended well.
    begun: AtomicU64,
    ended: AtomicU64,
    /// How many of them a sync has covered.
    synced: AtomicU64,
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl OpenFile {
    pub(super) fn new(handle: OwnedFd) -> Self {
        let none = || AtomicU64::new(0);
        Self {
            handle,
            begun: none(),
            ended: none(),
            synced: none(),
        }
    }

    pub(super) fn begin_write(&self) {
        self.begun.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn end_write(&self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
    }

    /// What a sync that begins now will cover.
    pub(super) fn begin_sync(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn end_sync(&self, covers: u64) {
        self.synced.fetch_max(covers, Ordering::AcqRel);
    }

    /// Whether nothing written through it waits for a sync. The kernel tells of a failed write-back those who had the
    /// file open: a handle that is opened for the sync alone may not hear of it.
    fn is_settled(&self) -> bool {
        self.begun.load(Ordering::Acquire) == self.synced.load(Ordering::Acquire)
    }
}

/// The open files of a log. When there are too many, the one that was not used for longest is closed.
#[derive(Debug)]
pub(super) struct Handles {
    limit: usize,
    kept: BTreeMap<FileId, Kept>,
    turn: u64,
}

#[derive(Debug)]
struct Kept {
    file: Arc<OpenFile>,
    used: u64,
}

impl Kept {
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.file) == 1 && self.file.is_settled()
    }
}

impl Handles {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            kept: BTreeMap::new(),
            turn: 0,
        }
    }

    pub(super) fn get(&mut self, file: FileId) -> Option<Arc<OpenFile>> {
        self.turn += 1;
        let kept = self.kept.get_mut(&file)?;
        kept.used = self.turn;
        Some(Arc::clone(&kept.file))
    }

    /// Keeps the first of two handles when two threads opened the same file.
    pub(super) fn keep(&mut self, file: FileId, handle: OwnedFd) -> Arc<OpenFile> {
        if let Some(kept) = self.get(file) {
            return kept;
        }
        let open = Arc::new(OpenFile::new(handle));
        self.keep_open(file, Arc::clone(&open));
        open
    }

    /// Keeps a handle of a file of which there is no other.
    pub(super) fn keep_open(&mut self, file: FileId, open: Arc<OpenFile>) {
        while self.kept.len() >= self.limit && self.close_one() {}
        self.turn += 1;
        let used = self.turn;
        self.kept.insert(file, Kept { file: open, used });
    }

    pub(super) fn forget(&mut self, file: FileId) {
        self.kept.remove(&file);
    }

    /// Closes the file if nobody uses it and nothing that was written to it waits for a sync; false when it stays open.
    pub(super) fn forget_idle(&mut self, file: FileId) -> bool {
        let idle = self.kept.get(&file).is_none_or(Kept::is_idle);
        if idle {
            self.kept.remove(&file);
        }
        idle
    }

    /// Closes the file that was not used for longest, of those that nobody uses; false when there is none.
    pub(super) fn close_one(&mut self) -> bool {
        let oldest = self
            .kept
            .iter()
            .filter(|(_, kept)| kept.is_idle())
            .min_by_key(|(_, kept)| kept.used);
        let Some(file) = oldest.map(|(file, _)| *file) else {
            return false;
        };
        self.kept.remove(&file);
        true
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }
}
