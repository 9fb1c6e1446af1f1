use std::collections::{BTreeMap, BTreeSet};

use slackwater_base::{KeyHash, Map};

use crate::io::FileId;

/// Killed records that still keep older records of their keys dead, because their own tombstones are not durable yet.
///
/// A live record needs no tombstone for what it replaced. When it is killed, its file must not go before the tombstone
/// that takes its place is durable: a crash in between would bring the older record back.
#[derive(Debug, Default)]
pub(crate) struct Shields {
    files: BTreeMap<FileId, BTreeSet<KeyHash>>,
    keys: Map<KeyHash, FileId>,
}

impl Shields {
    /// The newest record of the key, in `file`, was killed, and its tombstone is queued.
    pub(crate) fn raise(&mut self, hash: KeyHash, file: FileId) {
        self.lower(hash);
        self.keys.insert(hash, file);
        self.files.entry(file).or_default().insert(hash);
    }

    /// A tombstone of the key is durable, or there is nothing left for it to keep dead.
    pub(crate) fn lower(&mut self, hash: KeyHash) {
        let Some(file) = self.keys.remove(&hash) else {
            return;
        };
        if let Some(keys) = self.files.get_mut(&file) {
            keys.remove(&hash);
            if keys.is_empty() {
                self.files.remove(&file);
            }
        }
    }

    /// Keys of the killed records in `file` whose tombstones are not durable.
    pub(crate) fn in_file(&self, file: FileId) -> impl Iterator<Item = KeyHash> {
        self.files.get(&file).into_iter().flatten().copied()
    }

    /// `file` was deleted, durably.
    pub(crate) fn forget(&mut self, file: FileId) {
        for hash in self.files.remove(&file).into_iter().flatten() {
            self.keys.remove(&hash);
        }
    }
}
