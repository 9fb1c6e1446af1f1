use slackwater_base::{BLOCK_BYTES, Checksum, KeyHash, Map, Planted, planted, round_to_block};
use slackwater_wire::Version;

use crate::io::FileId;

/// Where the newest record of a key is, and how many records of the key lie on the device.
///
/// Small on purpose: with its hash an entry of the table has 48 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) version: Version,
    pub(crate) checksum: Checksum,
    file: u32,
    block: u32,
    length: u32,
    /// Records of the key in existing files, dead ones included.
    copies: u32,
}

/// Every record of the key up to `version` is dead, and some still lie on the device.
#[derive(Clone, Copy, Debug)]
struct Tombstone {
    version: Version,
    /// The file that holds the tombstone; [`NOWHERE`] until it is durable.
    file: u32,
    /// As [`Slot::copies`], when no record of the key is live; else the slot counts.
    copies: u32,
}

/// Whether a record that was found or written is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// It is the one to be read now.
    Live {
        /// The one that was read until now.
        replaced: Option<Slot>,
    },
    /// A tombstone or a newer record makes it dead.
    Dead,
}

/// Which records live, and which tombstones are still needed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    records: Map<KeyHash, Slot>,
    tombstones: Map<KeyHash, Tombstone>,
    /// Tombstones that nothing needs any more, as long as their files exist: the next opening will find them.
    spent: Map<KeyHash, (Version, FileId)>,
}

const NOWHERE: u32 = u32::MAX;

impl Slot {
    /// A slot for a value of `length` bytes, or `None` for what no index entry can name.
    pub(crate) fn new(
        version: Version,
        checksum: Checksum,
        at: (FileId, u64),
        length: u64,
    ) -> Option<Self> {
        let (file, block) = (
            u32::try_from(at.0.0).ok()?,
            u32::try_from(at.1 / BLOCK_BYTES).ok()?,
        );
        Some(Self {
            version,
            checksum,
            file,
            block,
            length: u32::try_from(length).ok()?,
            copies: 0,
        })
    }

    pub(crate) fn file(&self) -> FileId {
        FileId(u64::from(self.file))
    }

    pub(crate) fn offset(&self) -> u64 {
        u64::from(self.block) * BLOCK_BYTES
    }

    pub(crate) fn length(&self) -> u64 {
        u64::from(self.length)
    }

    /// Bytes of the payload on the device.
    pub(crate) fn padded(&self) -> u64 {
        round_to_block(self.length())
    }

    pub(crate) fn is_at(&self, file: FileId, offset: u64) -> bool {
        self.file() == file && self.offset() == offset
    }
}

impl Index {
    pub(crate) fn get(&self, hash: KeyHash) -> Option<&Slot> {
        self.records.get(&hash)
    }

    /// Counts a record on the device, and makes it the live one if nothing newer is known: a later version wins, and
    /// of two equal ones the later written, because the earlier may be on its way out.
    pub(crate) fn place(&mut self, hash: KeyHash, mut slot: Slot) -> Placed {
        let tombstone = self.tombstones.get_mut(&hash);
        let dead = tombstone
            .as_ref()
            .is_some_and(|tombstone| slot.version <= tombstone.version);
        match self.records.get_mut(&hash) {
            Some(old) => {
                let newer =
                    (slot.version, slot.file, slot.block) > (old.version, old.file, old.block);
                let newer = newer != planted(Planted::OldestWinsAtRecovery);
                slot.copies = old.copies + 1;
                if dead || !newer {
                    old.copies += 1;
                    return Placed::Dead;
                }
                Placed::Live {
                    replaced: Some(std::mem::replace(old, slot)),
                }
            }
            None if dead => {
                if let Some(tombstone) = tombstone {
                    tombstone.copies += 1;
                }
                Placed::Dead
            }
            None => {
                slot.copies =
                    tombstone.map_or(0, |tombstone| std::mem::take(&mut tombstone.copies)) + 1;
                self.records.insert(hash, slot);
                Placed::Live { replaced: None }
            }
        }
    }

    /// Makes every record of the key up to `version` dead at once, and gives back the one that was live.
    pub(crate) fn kill(&mut self, hash: KeyHash, version: Version) -> Option<Slot> {
        let killed = match self.records.get(&hash) {
            Some(slot) if slot.version <= version => self.records.remove(&hash),
            _ => None,
        };
        let tombstone = self.tombstones.entry(hash).or_insert(Tombstone {
            version,
            file: NOWHERE,
            copies: 0,
        });
        tombstone.version = tombstone.version.max(version);
        tombstone.copies += killed.map_or(0, |slot| slot.copies);
        killed
    }

    /// Whether a tombstone makes this version of the key dead.
    pub(crate) fn is_dead(&self, hash: KeyHash, version: Version) -> bool {
        self.tombstones
            .get(&hash)
            .is_some_and(|tombstone| version <= tombstone.version)
    }

    /// Whether the device may hold a record of the key up to `version`, which a drop must keep dead. A newer one does not
    /// do that: should its bytes rot where no later batch confirms it, an opening takes it for a torn write.
    pub(crate) fn may_hold(&self, hash: KeyHash, version: Version) -> bool {
        match self.records.get(&hash) {
            Some(slot) => slot.version <= version || slot.copies > 1,
            None => self.tombstones.contains_key(&hash),
        }
    }

    /// The tombstone of the key is in `file` now. Returns the file where it was before, and whether it is in `file`
    /// as asked: not when it is needed no longer, or a higher one was written.
    pub(crate) fn place_tombstone(
        &mut self,
        hash: KeyHash,
        version: Version,
        file: FileId,
    ) -> (Option<FileId>, bool) {
        match self.tombstones.get_mut(&hash) {
            Some(tombstone) if tombstone.version == version => {
                let before =
                    (tombstone.file != NOWHERE).then_some(FileId(u64::from(tombstone.file)));
                tombstone.file = file.0 as u32;
                (before, true)
            }
            _ => {
                self.note_spent(hash, version, file);
                (None, false)
            }
        }
    }

    fn note_spent(&mut self, hash: KeyHash, version: Version, file: FileId) {
        let spent = self.spent.entry(hash).or_insert((version, file));
        *spent = (*spent).max((version, file));
    }

    /// As [`Index::kill`] and [`Index::place_tombstone`] for tombstones that are found in any order: the highest
    /// version counts, and of equal ones the last file.
    pub(crate) fn find_tombstone(&mut self, hash: KeyHash, version: Version, file: FileId) {
        let before = self
            .tombstones
            .get(&hash)
            .map(|tombstone| (tombstone.version, tombstone.file));
        self.kill(hash, version);
        if let Some(tombstone) = self.tombstones.get_mut(&hash)
            && before.is_none_or(|before| before < (version, file.0 as u32))
        {
            tombstone.file = file.0 as u32;
        }
    }

    /// The version up to which the records of the key are dead, if `file` holds its needed tombstone.
    pub(crate) fn tombstone_at(&self, hash: KeyHash, file: FileId) -> Option<Version> {
        let tombstone = self.tombstones.get(&hash)?;
        (u64::from(tombstone.file) == file.0).then_some(tombstone.version)
    }

    /// The needed tombstones that lie in `file`. Walks all of them.
    pub(crate) fn tombstones_in(&self, file: FileId) -> Vec<(KeyHash, Version)> {
        let mut found: Vec<_> = self
            .tombstones
            .iter()
            .filter(|(_, tombstone)| u64::from(tombstone.file) == file.0)
            .collect();
        found.sort_unstable_by_key(|(hash, _)| **hash);
        found
            .into_iter()
            .map(|(hash, tombstone)| (*hash, tombstone.version))
            .collect()
    }

    /// A record lies on the device that is not to be read, though its key has a live one.
    pub(crate) fn note_copy(&mut self, hash: KeyHash) {
        if let Some(slot) = self.records.get_mut(&hash) {
            slot.copies += 1;
        }
    }

    /// A record of the key is gone from the device.
    pub(crate) fn forget_copy(&mut self, hash: KeyHash) {
        if let Some(slot) = self.records.get_mut(&hash) {
            slot.copies = slot.copies.saturating_sub(1).max(1);
        } else if let Some(tombstone) = self.tombstones.get_mut(&hash) {
            tombstone.copies = tombstone.copies.saturating_sub(1);
        }
    }

    /// Lets the tombstone of the key go if no record is left that it keeps dead. Gives back the file where it lay.
    pub(crate) fn release_tombstone(&mut self, hash: KeyHash) -> Option<FileId> {
        let tombstone = self.tombstones.get(&hash)?;
        if !is_needless(&self.records, hash, tombstone) {
            return None;
        }
        let tombstone = self.tombstones.remove(&hash)?;
        let file = (tombstone.file != NOWHERE).then_some(FileId(u64::from(tombstone.file)))?;
        self.note_spent(hash, tombstone.version, file);
        Some(file)
    }

    /// `file` is gone, and the tombstones in it. Walks those that nothing needs.
    pub(crate) fn forget_spent(&mut self, file: FileId) {
        self.spent.retain(|_, (_, lies_in)| *lies_in != file);
    }

    /// Whether a record of this version would be dead, now or when the log is opened again.
    pub(crate) fn would_die(&self, hash: KeyHash, version: Version) -> bool {
        let spent = self.spent.get(&hash);
        self.is_dead(hash, version) || spent.is_some_and(|(up_to, _)| version <= *up_to)
    }

    /// The keys whose tombstones keep nothing dead. Walks all of them.
    pub(crate) fn needless_tombstones(&self) -> Vec<KeyHash> {
        let needless = self
            .tombstones
            .iter()
            .filter(|(hash, tombstone)| is_needless(&self.records, **hash, tombstone));
        needless.map(|(hash, _)| *hash).collect()
    }

    /// Gives up every record in the files that `doubted` names, files that are deleted before anything else is decided:
    /// no other file has an older record of these keys. Walks all of them.
    pub(crate) fn give_up(&mut self, doubted: impl Fn(FileId) -> bool) -> u64 {
        let before = self.records.len();
        self.records.retain(|_, slot| !doubted(slot.file()));
        (before - self.records.len()) as u64
    }

    /// The live records in `file`. Walks all of them.
    pub(crate) fn live_in(&self, file: FileId) -> Vec<(KeyHash, Version)> {
        let mut found: Vec<_> = self
            .records
            .iter()
            .filter(|(_, slot)| slot.file() == file)
            .map(|(hash, slot)| (*hash, slot.version))
            .collect();
        found.sort_unstable();
        found
    }

    /// Records of the key in existing files when none of them is live.
    pub(crate) fn dead_copies(&self, hash: KeyHash) -> Option<u32> {
        match self.records.get(&hash) {
            Some(_) => None,
            None => self.tombstones.get(&hash).map(|tombstone| tombstone.copies),
        }
    }

    /// Forgets the tombstones that lie in the files that `doubted` names: all they keep dead goes with these files.
    pub(crate) fn give_up_tombstones(&mut self, doubted: impl Fn(FileId) -> bool) {
        self.tombstones.retain(|_, tombstone| {
            tombstone.file == NOWHERE || !doubted(FileId(u64::from(tombstone.file)))
        });
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.records.values()
    }

    pub(crate) fn tombstone_files(&self) -> impl Iterator<Item = FileId> {
        self.tombstones
            .values()
            .filter(|tombstone| tombstone.file != NOWHERE)
            .map(|tombstone| FileId(u64::from(tombstone.file)))
    }

    pub(crate) fn records(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn tombstones(&self) -> usize {
        self.tombstones.len()
    }

    /// Memory of the tables, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.records.allocation_size()
            + self.tombstones.allocation_size()
            + self.spent.allocation_size()
    }
}

/// Whether no record but the live one is left of a key.
fn is_needless(records: &Map<KeyHash, Slot>, hash: KeyHash, tombstone: &Tombstone) -> bool {
    records
        .get(&hash)
        .map_or(tombstone.copies == 0, |slot| slot.copies == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: KeyHash = KeyHash(9);

    fn slot(version: u64, file: u64) -> Slot {
        Slot::new(
            Version(version),
            Checksum(version),
            (FileId(file), BLOCK_BYTES),
            100,
        )
        .unwrap()
    }

    fn live(index: &Index) -> Option<(u64, u64)> {
        index.get(KEY).map(|slot| (slot.version.0, slot.file().0))
    }

    #[test]
    fn an_entry_has_48_bytes() {
        assert_eq!(size_of::<(KeyHash, Slot)>(), 48);
    }

    #[test]
    fn the_newest_record_above_the_highest_tombstone_lives_in_whatever_order_they_are_met() {
        let steps = [
            (1, 1, false),
            (2, 2, false),
            (2, 3, true),
            (4, 4, false),
            (4, 6, false),
            (3, 5, false),
        ];
        let mut order: Vec<usize> = (0..steps.len()).collect();
        for turn in 0..steps.len() {
            order.rotate_left(1);
            order.swap(0, turn);
            let mut index = Index::default();
            for (version, file, tombstone) in order.iter().map(|at| steps[*at]) {
                if tombstone {
                    index.kill(KEY, Version(version));
                    index.place_tombstone(KEY, Version(version), FileId(file));
                } else {
                    index.place(KEY, slot(version, file));
                }
            }
            assert_eq!(live(&index), Some((4, 6)), "{order:?}");
            assert_eq!(index.get(KEY).unwrap().copies, 5, "{order:?}");
        }
    }

    /// Opened after a crash, a log took the place of a key's older tombstone, in a later file, for that of its highest
    /// one. The file that alone held the highest was deleted as needless, and the next opening announced the removed record.
    #[test]
    fn the_highest_tombstone_lies_where_it_was_found_whatever_lower_ones_lie_behind_it() {
        let found = [(2, 5), (3, 7), (2, 8), (3, 6)];
        let mut order = found;
        for turn in 0..found.len() {
            order.rotate_left(1);
            order.swap(0, turn);
            let mut index = Index::default();
            for (version, file) in order {
                index.find_tombstone(KEY, Version(version), FileId(file));
            }
            assert_eq!(
                index.tombstone_at(KEY, FileId(7)),
                Some(Version(3)),
                "{order:?}"
            );
        }
    }

    #[test]
    fn a_tombstone_goes_with_the_last_record_that_it_keeps_dead() {
        let mut index = Index::default();
        index.place(KEY, slot(1, 1));
        index.place(KEY, slot(1, 2));
        assert_eq!(index.kill(KEY, Version(1)).unwrap().file(), FileId(2));
        assert_eq!(
            index.place_tombstone(KEY, Version(1), FileId(3)),
            (None, true)
        );
        index.forget_copy(KEY);
        assert_eq!(index.release_tombstone(KEY), None);
        assert_eq!(index.tombstone_at(KEY, FileId(3)), Some(Version(1)));
        index.forget_copy(KEY);
        assert_eq!(index.needless_tombstones(), [KEY]);
        assert_eq!(index.release_tombstone(KEY), Some(FileId(3)));
        assert!(!index.may_hold(KEY, Version(9)));
    }

    #[test]
    fn a_tombstone_stays_under_a_newer_record_until_the_old_one_is_gone() {
        let mut index = Index::default();
        index.place(KEY, slot(1, 1));
        index.kill(KEY, Version(1));
        index.place_tombstone(KEY, Version(1), FileId(2));
        assert_eq!(
            index.place(KEY, slot(2, 3)),
            Placed::Live { replaced: None }
        );
        assert_eq!(index.release_tombstone(KEY), None);
        index.forget_copy(KEY);
        assert_eq!(index.release_tombstone(KEY), Some(FileId(2)));
        assert_eq!(live(&index), Some((2, 3)));
    }
}
