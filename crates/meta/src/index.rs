/// Object numbers by hash: the objects that may have a key. The caller compares the keys themselves.
///
/// Open addressing with linear probing. An entry is one word of 32 bits of the hash and the number, so a search costs
/// one cache miss, where tables with separate control bytes cost two, and growing reads no object. The index is split
/// by hash into many tables that grow one at a time: a single table of ten million entries would stop all requests for
/// a good part of a second each time it doubles.
#[derive(Debug)]
pub(crate) struct Index {
    tables: Vec<Table>,
}

#[derive(Clone, Debug, Default)]
struct Table {
    entries: Vec<u64>,
    len: usize,
}

const TABLE_BITS: u32 = 8;
const EMPTY: u64 = u64::MAX;
const SMALLEST: usize = 8;

impl Index {
    pub(crate) fn new() -> Self {
        Self {
            tables: vec![Table::default(); 1 << TABLE_BITS],
        }
    }

    /// The first number under `hash` that `same` accepts.
    pub(crate) fn find(&self, hash: u64, same: impl FnMut(u32) -> bool) -> Option<u32> {
        self.tables[table_of(hash)]
            .find(tag_of(hash), same)
            .map(|(_, id)| id)
    }

    /// Adds a number that is not there yet.
    pub(crate) fn insert(&mut self, hash: u64, id: u32) {
        let table = &mut self.tables[table_of(hash)];
        if (table.len + 1) * 8 > table.entries.len() * 7 {
            table.grow();
        }
        table.place(u64::from(tag_of(hash)) << 32 | u64::from(id));
        table.len += 1;
    }

    /// Removes a number; false when it is not there.
    pub(crate) fn remove(&mut self, hash: u64, id: u32) -> bool {
        let table = &mut self.tables[table_of(hash)];
        let Some((at, _)) = table.find(tag_of(hash), |other| other == id) else {
            return false;
        };
        table.close_gap(at);
        table.len -= 1;
        true
    }

    /// The word where a search for `hash` begins: reading it ahead of need overlaps the cache misses of many searches.
    pub(crate) fn begin(&self, hash: u64) -> u64 {
        let table = &self.tables[table_of(hash)];
        table
            .entries
            .get(tag_of(hash) as usize & table.mask())
            .copied()
            .unwrap_or(EMPTY)
    }

    pub(crate) fn overhead_bytes(&self) -> usize {
        self.tables
            .iter()
            .map(|table| table.entries.capacity() * size_of::<u64>())
            .sum()
    }
}

impl Table {
    fn mask(&self) -> usize {
        self.entries.len().wrapping_sub(1)
    }

    fn find(&self, tag: u32, mut same: impl FnMut(u32) -> bool) -> Option<(usize, u32)> {
        let mask = self.mask();
        let mut at = tag as usize & mask;
        while let Some(entry) = self.entries.get(at).filter(|entry| **entry != EMPTY) {
            if (*entry >> 32) as u32 == tag && same(*entry as u32) {
                return Some((at, *entry as u32));
            }
            at = (at + 1) & mask;
        }
        None
    }

    fn place(&mut self, entry: u64) {
        let mask = self.mask();
        let mut at = (entry >> 32) as usize & mask;
        while self.entries[at] != EMPTY {
            at = (at + 1) & mask;
        }
        self.entries[at] = entry;
    }

    fn grow(&mut self) {
        let larger = vec![EMPTY; (self.entries.len() * 2).max(SMALLEST)];
        for entry in std::mem::replace(&mut self.entries, larger) {
            if entry != EMPTY {
                self.place(entry);
            }
        }
    }

    /// Moves entries back that were displaced past the gap, so that no search ends at it too early.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.mask();
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let entry = self.entries[at];
            if entry == EMPTY {
                break;
            }
            let home = (entry >> 32) as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.entries[gap] = entry;
                gap = at;
            }
        }
        self.entries[gap] = EMPTY;
    }
}

fn table_of(hash: u64) -> usize {
    hash as usize & ((1 << TABLE_BITS) - 1)
}

fn tag_of(hash: u64) -> u32 {
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few tags in few tables, so that runs are long and gaps are everywhere.
        #[test]
        fn agrees_with_a_list(steps in prop::collection::vec((0..40u32, 0..6u64, any::<bool>()), 1..400)) {
            let mut index = Index::new();
            let mut model: Vec<(u64, u32)> = Vec::new();
            for (id, tag, add) in steps {
                let hash = tag << 32 | u64::from(id % 2);
                let known = model.iter().position(|entry| *entry == (hash, id));
                prop_assert_eq!(index.find(hash, |other| other == id), known.map(|_| id));
                match (known, add) {
                    (None, true) => {
                        index.insert(hash, id);
                        model.push((hash, id));
                    }
                    (None, false) => prop_assert!(!index.remove(hash, id)),
                    (Some(_), true) => {}
                    (Some(at), false) => {
                        prop_assert!(index.remove(hash, id));
                        model.swap_remove(at);
                    }
                }
                for (hash, id) in &model {
                    prop_assert_eq!(index.find(*hash, |other| other == *id), Some(*id));
                }
            }
        }
    }
}
