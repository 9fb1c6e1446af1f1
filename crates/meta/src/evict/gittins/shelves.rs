//! The order of eviction: segments of one class and bin of age in a list, lists found by the rank of their index.

use super::class::CELLS;
use super::class::Tick;
use super::segments::{By, ChainSegments, List, NONE, Place};
use super::tables::Tables;

/// One shelf for each octave of block length that occurs, since indices are compared per byte. On a shelf, a bitmap of
/// ranks and a bitmap of its words name the non-empty lists by the least that their blocks can be worth. The lists are
/// looked at from the lowest on, until none that follows can hold a lower value than the lowest found.
#[derive(Debug, Default)]
pub(super) struct Shelves {
    shelves: Vec<Shelf>,
    /// Place of the shelf that was used last: blocks mostly are of one octave.
    latest: usize,
    /// The last answer of [`Shelves::take_lowest`] and its time, until a list changes.
    lowest: Option<(Tick, u32)>,
}

#[derive(Debug)]
struct Shelf {
    octave: u8,
    lists: Vec<List>,
    ranks: Bitmap,
    /// Resident blocks of this octave.
    blocks: usize,
    /// Mean length of the blocks that were added lately.
    block_bytes: f64,
    blocks_seen: u32,
}

#[derive(Debug)]
struct Bitmap {
    words: [u64; WORDS],
    summary: [u64; WORDS.div_ceil(64)],
}

const WORDS: usize = CELLS.div_ceil(64);
/// Blocks over which the mean length is taken.
const MEAN_BLOCKS: u32 = 1024;

/// The octave of a block length.
pub(super) const fn octave(bytes: u64) -> u8 {
    64 - bytes.leading_zeros() as u8
}

impl Shelves {
    /// Counts a block of this length.
    pub(super) fn add_block(&mut self, bytes: u64) {
        let shelf = self.shelf(octave(bytes));
        shelf.blocks += 1;
        shelf.blocks_seen = (shelf.blocks_seen + 1).min(MEAN_BLOCKS);
        let difference = bytes as f64 - shelf.block_bytes;
        // Blocks mostly are of one length, and a division takes as long as the rest.
        if difference != 0.0 {
            shelf.block_bytes += difference / f64::from(shelf.blocks_seen);
        }
    }

    /// Counts off a block of this octave.
    pub(super) fn remove_block(&mut self, octave: u8) {
        self.shelf(octave).blocks -= 1;
    }

    /// Mean length of the blocks of an octave.
    pub(super) fn block_bytes(&self, octave: u8) -> f64 {
        let found = self.shelves.iter().find(|shelf| shelf.octave == octave);
        found.map_or_else(
            || 0.75 * f64::from(octave).exp2(),
            |shelf| shelf.block_bytes,
        )
    }

    pub(super) fn push_newest(
        &mut self,
        segments: &mut ChainSegments,
        tables: &Tables,
        number: u32,
    ) {
        let (shelf, cell) = self.enter(segments, tables, number);
        shelf.lists[cell].push_newest(segments, By::Place, number);
    }

    pub(super) fn push_oldest(
        &mut self,
        segments: &mut ChainSegments,
        tables: &Tables,
        number: u32,
    ) {
        let (shelf, cell) = self.enter(segments, tables, number);
        shelf.lists[cell].push_oldest(segments, By::Place, number);
    }

    fn enter(
        &mut self,
        segments: &mut ChainSegments,
        tables: &Tables,
        number: u32,
    ) -> (&mut Shelf, usize) {
        self.lowest = None;
        let segment = &mut segments[number];
        segment.place = Place::Shelved;
        let cell = segment.kept_as.cell(segment.bin);
        let shelf = self.shelf(segment.octave);
        if shelf.lists[cell].is_empty() {
            shelf.ranks.set(tables.rank(cell));
        }
        (shelf, cell)
    }

    pub(super) fn remove(&mut self, segments: &mut ChainSegments, tables: &Tables, number: u32) {
        self.lowest = None;
        let segment = &segments[number];
        let cell = segment.kept_as.cell(segment.bin);
        let shelf = self.shelf(segment.octave);
        shelf.lists[cell].remove(segments, By::Place, number);
        if shelf.lists[cell].is_empty() {
            shelf.ranks.clear(tables.rank(cell));
        }
    }

    /// Moves a segment from the list of the bin of age before its own to that of its own.
    pub(super) fn pass_on(&mut self, segments: &mut ChainSegments, tables: &Tables, number: u32) {
        self.lowest = None;
        let segment = &segments[number];
        let cell = segment.kept_as.cell(segment.bin);
        let shelf = self.shelf(segment.octave);
        let [from, to, ..] = &mut shelf.lists[cell - 1..] else {
            return;
        };
        from.remove(segments, By::Place, number);
        if from.is_empty() {
            shelf.ranks.clear(tables.rank(cell - 1));
        }
        if to.is_empty() {
            shelf.ranks.set(tables.rank(cell));
        }
        to.push_newest(segments, By::Place, number);
    }

    /// The lowest value a byte of the lists' oldest segments, and that segment.
    pub(super) fn lowest(
        &self,
        segments: &ChainSegments,
        tables: &Tables,
        now: Tick,
    ) -> Option<(f64, u32)> {
        let ranked = tables.ranked();
        let mut best: Option<(f64, u32)> = None;
        for shelf in &self.shelves {
            // What a block of this shelf has to be worth less than.
            let mut limit = best.map_or(f64::INFINITY, |(lowest, _)| lowest * shelf.block_bytes);
            let mut found = NONE;
            for rank in shelf.ranks.members() {
                let ranked = ranked[rank];
                if f64::from(ranked.key) > limit {
                    break;
                }
                let cell = usize::from(ranked.cell);
                let oldest = shelf.lists[cell].oldest;
                let age = now.since(segments[oldest].last_use);
                let value = tables.value(cell, age);
                if value < limit {
                    (limit, found) = (value, oldest);
                }
            }
            if found != NONE {
                best = Some((limit / shelf.block_bytes, found));
            }
        }
        best
    }

    /// The segment that [`Shelves::lowest`] names; found again without a search while no list has changed.
    pub(super) fn take_lowest(
        &mut self,
        segments: &ChainSegments,
        tables: &Tables,
        now: Tick,
    ) -> Option<u32> {
        if let Some((then, number)) = self.lowest
            && then == now
        {
            return Some(number);
        }
        let (_, number) = self.lowest(segments, tables, now)?;
        self.lowest = Some((now, number));
        Some(number)
    }

    /// Sorts the lists again after the ranks have changed.
    pub(super) fn rank_anew(&mut self, tables: &Tables) {
        self.lowest = None;
        for shelf in &mut self.shelves {
            shelf.ranks = Bitmap::new();
            for (rank, ranked) in tables.ranked().iter().enumerate() {
                if !shelf.lists[usize::from(ranked.cell)].is_empty() {
                    shelf.ranks.set(rank);
                }
            }
        }
    }

    pub(super) fn overhead_bytes(&self) -> usize {
        let shelf = |shelf: &Shelf| size_of::<Shelf>() + shelf.lists.capacity() * size_of::<List>();
        self.shelves.iter().map(shelf).sum()
    }

    /// The shelf of an octave. Empty shelves are reused, so that octaves that no longer occur cost no memory.
    fn shelf(&mut self, octave: u8) -> &mut Shelf {
        let latest = self.shelves.get(self.latest);
        if latest.is_none_or(|shelf| shelf.octave != octave) {
            self.latest = self.find(octave);
        }
        &mut self.shelves[self.latest]
    }

    #[cold]
    fn find(&mut self, octave: u8) -> usize {
        let found = self.shelves.iter().position(|shelf| shelf.octave == octave);
        found.unwrap_or_else(|| {
            self.shelves.retain(|shelf| shelf.blocks > 0);
            self.shelves.push(Shelf {
                octave,
                lists: vec![List::EMPTY; CELLS],
                ranks: Bitmap::new(),
                blocks: 0,
                // Until blocks are counted, the middle of the octave.
                block_bytes: 0.75 * f64::from(octave).exp2(),
                blocks_seen: 0,
            });
            self.shelves.len() - 1
        })
    }
}

impl Bitmap {
    const fn new() -> Self {
        Self {
            words: [0; WORDS],
            summary: [0; WORDS.div_ceil(64)],
        }
    }

    fn set(&mut self, at: usize) {
        self.words[at / 64] |= 1 << (at % 64);
        self.summary[at / 4096] |= 1 << (at / 64 % 64);
    }

    fn clear(&mut self, at: usize) {
        self.words[at / 64] &= !(1 << (at % 64));
        if self.words[at / 64] == 0 {
            self.summary[at / 4096] &= !(1 << (at / 64 % 64));
        }
    }

    /// The members from the lowest to the highest.
    fn members(&self) -> impl Iterator<Item = usize> {
        let words = self.summary.iter().enumerate();
        let words = words.flat_map(|(at, &word)| bits(word).map(move |bit| at * 64 + bit));
        words.flat_map(|at| bits(self.words[at]).map(move |bit| at * 64 + bit))
    }
}

/// The bits that are set, from the lowest.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize);
        word &= word.wrapping_sub(1);
        bit
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmap_lists_its_members_from_the_lowest() {
        let mut bitmap = Bitmap::new();
        assert_eq!(bitmap.members().count(), 0);
        for at in [CELLS - 1, 4096, 70, 69] {
            bitmap.set(at);
        }
        assert!(bitmap.members().eq([69, 70, 4096, CELLS - 1]));
        bitmap.clear(69);
        bitmap.clear(70);
        assert!(bitmap.members().eq([4096, CELLS - 1]));
    }
}
