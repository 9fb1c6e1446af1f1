use std::collections::{BTreeMap, BTreeSet};

use slackwater_base::{Instant, KeyHash};

use crate::io::FileId;

/// New records leave this many files unbegun: reclaim and tombstones need them to make room again.
pub(crate) const RESERVE: u64 = 2;

/// The life of a log file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileState {
    /// Being made.
    Creating,
    /// Made, and empty.
    Spare,
    /// Batches are appended to it.
    Active,
    /// Full, or of an earlier life, or abandoned.
    Sealed,
    /// Reclaim copies what lives in it forward.
    Draining,
    /// Nothing in it is live; it is deleted when no read is using it, and not before this time.
    Deletable(Instant),
    /// Being deleted.
    Deleting,
}

/// One file and what is in it.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) bytes: u64,
    pub(crate) state: FileState,
    /// Payload bytes of live records, padding included.
    pub(crate) live_bytes: u64,
    pub(crate) live_records: u64,
    /// Needed tombstones.
    pub(crate) tombstones: u64,
    /// Reads under way.
    pub(crate) pins: u32,
    /// It may hold records that were not counted: after a failed write or sync, or an unreadable header.
    pub(crate) suspect: bool,
    /// Where nothing was written it has bytes of a deleted file, and not zeros.
    pub(crate) reused: bool,
    /// Names of its records, collected while it was drained: one copy of each goes with the file.
    pub(crate) names: Vec<KeyHash>,
}

/// The files of the log, with the sums and lists that every step asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    table: BTreeMap<FileId, File>,
    next: u64,
    lists: BTreeMap<List, BTreeSet<FileId>>,
    bytes: u64,
    live_bytes: u64,
    suspects: usize,
}

/// Files that something is to be done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum List {
    Creating,
    Spare,
    /// [`File::is_easy`].
    Easy,
    Draining,
    Deletable,
    Deleting,
}

impl File {
    pub(crate) fn new(bytes: u64, state: FileState) -> Self {
        Self {
            bytes,
            state,
            live_bytes: 0,
            live_records: 0,
            tombstones: 0,
            pins: 0,
            suspect: false,
            reused: false,
            names: Vec::new(),
        }
    }

    /// Whether it is to be emptied first of all: nothing is needed of it, or it is suspect.
    pub(crate) fn is_easy(&self) -> bool {
        let needless = self.live_bytes == 0 && self.tombstones == 0;
        self.state == FileState::Sealed && (self.suspect || needless)
    }

    fn list(&self) -> Option<List> {
        match self.state {
            FileState::Creating => Some(List::Creating),
            FileState::Spare => Some(List::Spare),
            FileState::Sealed if self.is_easy() => Some(List::Easy),
            FileState::Active | FileState::Sealed => None,
            FileState::Draining => Some(List::Draining),
            FileState::Deletable(_) => Some(List::Deletable),
            FileState::Deleting => Some(List::Deleting),
        }
    }
}

impl Files {
    /// Takes in a file; new ones are numbered above it.
    pub(crate) fn adopt(&mut self, id: FileId, file: File) {
        self.next = self.next.max(id.0 + 1);
        self.count(id, &file);
        self.table.insert(id, file);
    }

    /// Numbers a new file.
    pub(crate) fn begin(&mut self, bytes: u64) -> FileId {
        let id = self.next();
        self.adopt(id, File::new(bytes, FileState::Creating));
        id
    }

    /// The number of the next file.
    pub(crate) fn next(&self) -> FileId {
        FileId(self.next)
    }

    pub(crate) fn get(&self, id: FileId) -> Option<&File> {
        self.table.get(&id)
    }

    /// Changes a file, and with it the sums and lists. Does nothing when it is gone.
    pub(crate) fn update(&mut self, id: FileId, change: impl FnOnce(&mut File)) {
        if let Some(mut file) = self.table.remove(&id) {
            self.discount(id, &file);
            change(&mut file);
            self.count(id, &file);
            self.table.insert(id, file);
        }
    }

    pub(crate) fn remove(&mut self, id: FileId) -> Option<File> {
        let file = self.table.remove(&id)?;
        self.discount(id, &file);
        Some(file)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (FileId, &File)> {
        self.table.iter().map(|(id, file)| (*id, file))
    }

    /// The files of a list, in ascending order.
    pub(crate) fn listed(&self, list: List) -> impl Iterator<Item = FileId> {
        self.lists.get(&list).into_iter().flatten().copied()
    }

    pub(crate) fn has(&self, list: List) -> bool {
        self.listed(list).next().is_some()
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Payload bytes of all live records.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn suspects(&self) -> usize {
        self.suspects
    }

    pub(crate) fn any_suspect(&self) -> bool {
        self.suspects > 0
    }

    /// Suspect files other than `file`.
    pub(crate) fn suspects_but(&self, file: &File) -> usize {
        self.suspects - usize::from(file.suspect)
    }

    /// A record came to live in `id`.
    pub(crate) fn live(&mut self, id: FileId, bytes: u64) {
        self.update(id, |file| {
            file.live_bytes += bytes;
            file.live_records += 1;
        });
    }

    /// A record that lived in `id` does so no longer.
    pub(crate) fn died(&mut self, id: FileId, bytes: u64) {
        self.update(id, |file| {
            file.live_bytes = file.live_bytes.saturating_sub(bytes);
            file.live_records = file.live_records.saturating_sub(1);
        });
    }

    /// A needed tombstone came to lie in `id`.
    pub(crate) fn add_tombstone(&mut self, id: FileId) {
        self.update(id, |file| file.tombstones += 1);
    }

    /// A tombstone in `id` is needed no longer.
    pub(crate) fn remove_tombstone(&mut self, id: FileId) {
        self.update(id, |file| {
            file.tombstones = file.tombstones.saturating_sub(1)
        });
    }

    fn count(&mut self, id: FileId, file: &File) {
        self.bytes += file.bytes;
        self.live_bytes += file.live_bytes;
        self.suspects += usize::from(file.suspect);
        if let Some(list) = file.list() {
            self.lists.entry(list).or_default().insert(id);
        }
    }

    fn discount(&mut self, id: FileId, file: &File) {
        self.bytes -= file.bytes;
        self.live_bytes -= file.live_bytes;
        self.suspects -= usize::from(file.suspect);
        if let Some(files) = file.list().and_then(|list| self.lists.get_mut(&list)) {
            files.remove(&id);
        }
    }
}
