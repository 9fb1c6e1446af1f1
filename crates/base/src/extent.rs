use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use thiserror::Error;

/// A piece of a segment that belongs to one holder until it is retired.
///
/// `offset` and `bytes` are multiples of the allocator's granule. `generation` is unique within the allocator: when the
/// same bytes are allocated again they have another one, by which a late access is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First byte, from the start of the segment.
    pub offset: u64,
    /// Size, rounded up to granules.
    pub bytes: u64,
    /// The number of this allocation; never reused.
    pub generation: u64,
    slot: u32,
}

impl Extent {
    /// The allocator's 32-bit number of this extent, for holders that keep millions: see [`ExtentAllocator::held`].
    /// Reused after the extent was released.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.slot
    }
}

/// Why an allocation failed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AllocError {
    /// Zero bytes were asked for.
    #[error("an extent needs at least one byte")]
    Empty,
    /// No free piece is long enough now.
    #[error("no {want} contiguous bytes free ({free} free, the largest piece has {largest})")]
    NoSpace {
        /// Bytes asked for, rounded up to granules.
        want: u64,
        /// Free bytes of the segment.
        free: u64,
        /// Bytes of the largest free piece.
        largest: u64,
    },
    /// More than the segment holds when it is empty.
    #[error("{want} bytes do not fit a segment of {capacity}")]
    TooLarge {
        /// Bytes asked for, rounded up to granules.
        want: u64,
        /// Size of the whole segment.
        capacity: u64,
    },
}

/// The bytes of a segment by state; `free + live + quarantined = capacity` at every moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtentBooks {
    /// Bytes of the segment.
    pub capacity: u64,
    /// Bytes that can be allocated.
    pub free: u64,
    /// Bytes of live extents.
    pub live: u64,
    /// Bytes of retired extents that are not released.
    pub quarantined: u64,
}

/// Allocates extents of one segment in constant time and frees them through quarantine.
///
/// Two-level segregated fit (Masmano, Ripoll, Crespo and Real, 2004) over granules: free pieces are in lists by size
/// class, and neighbours are merged when they become free. Extents are numbers only; the allocator does not access
/// their memory.
#[derive(Clone, Debug)]
pub struct ExtentAllocator {
    granule: u64,
    pieces: Pieces,
    spare: u32,
    rows: u64,
    columns: [u32; ROWS],
    heads: Box<[[u32; COLUMNS]; ROWS]>,
    books: ExtentBooks,
    next_generation: u64,
    /// Free pieces of which extents may be taken over, by their first granules; none once something was allocated.
    gaps: BTreeMap<u32, u32>,
}

/// How extents that are taken over follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// In the order of their addresses: what is free before one stays so.
    InOrder,
    /// Before its turn.
    Ahead,
}

/// Twenty-eight bytes, because there is one for every extent: fields of free pieces and fields of held ones share their
/// room.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u32,
    len: u32,
    /// Neighbours by address.
    left: u32,
    right: u32,
    /// Of a free piece, the one before it in the list of its class; of a held one, the low half of its generation.
    prev_or_low: u32,
    /// Of a free piece, the one after it in the list of its class, and of a spare one the next spare; of a held one, the
    /// high half of its generation.
    next_or_high: u32,
    state: State,
}

impl Piece {
    fn generation(&self) -> u64 {
        u64::from(self.next_or_high) << 32 | u64::from(self.prev_or_low)
    }

    fn set_generation(&mut self, generation: u64) {
        (self.prev_or_low, self.next_or_high) = (generation as u32, (generation >> 32) as u32);
    }
}

/// Pieces in chunks, so that growing neither copies the existing pieces nor doubles the memory.
#[derive(Clone, Debug, Default)]
struct Pieces {
    chunks: Vec<Vec<Piece>>,
    count: u32,
}

const CHUNK_BITS: u32 = 12;
const CHUNK: usize = 1 << CHUNK_BITS;

impl Pieces {
    fn push(&mut self, piece: Piece) -> u32 {
        let index = self.count;
        if index as usize == self.chunks.len() * CHUNK {
            // A small segment has few pieces, so it allocates a small chunk.
            self.chunks.push(if index == 0 {
                Vec::new()
            } else {
                Vec::with_capacity(CHUNK)
            });
        }
        self.chunks[(index >> CHUNK_BITS) as usize].push(piece);
        self.count += 1;
        index
    }

    fn get(&self, index: usize) -> Option<&Piece> {
        self.chunks
            .get(index >> CHUNK_BITS)?
            .get(index & (CHUNK - 1))
    }

    fn overhead_bytes(&self) -> usize {
        self.chunks.iter().map(Vec::capacity).sum::<usize>() * size_of::<Piece>()
    }
}

impl Index<usize> for Pieces {
    type Output = Piece;

    fn index(&self, index: usize) -> &Piece {
        &self.chunks[index >> CHUNK_BITS][index & (CHUNK - 1)]
    }
}

impl IndexMut<usize> for Pieces {
    fn index_mut(&mut self, index: usize) -> &mut Piece {
        &mut self.chunks[index >> CHUNK_BITS][index & (CHUNK - 1)]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Spare,
    Free,
    Live,
    Quarantined,
}

impl ExtentAllocator {
    /// An allocator over `capacity` bytes in granules of `granule` bytes; a partial granule at the end stays unused.
    /// Generations count up from `first_generation`.
    ///
    /// # Panics
    /// If the granule is not a power of two, or the segment has no whole granule or more than 2^32 - 2 of them.
    #[must_use]
    pub fn new(capacity: u64, granule: u64, first_generation: u64) -> Self {
        assert!(
            granule.is_power_of_two(),
            "granule {granule} is not a power of two"
        );
        let granules = capacity / granule;
        assert!(
            granules > 0 && granules < u64::from(NONE),
            "{capacity} bytes make {granules} granules of {granule}"
        );
        let capacity = granules * granule;
        let mut pieces = Pieces::default();
        pieces.push(Piece {
            start: 0,
            len: granules as u32,
            left: NONE,
            right: NONE,
            prev_or_low: NONE,
            next_or_high: NONE,
            state: State::Spare,
        });
        let mut allocator = Self {
            granule,
            pieces,
            spare: NONE,
            rows: 0,
            columns: [0; ROWS],
            heads: Box::new([[NONE; COLUMNS]; ROWS]),
            books: ExtentBooks {
                capacity,
                free: capacity,
                live: 0,
                quarantined: 0,
            },
            next_generation: first_generation,
            gaps: BTreeMap::from([(0, 0)]),
        };
        allocator.link(0);
        allocator
    }

    /// Allocates at least `bytes` contiguous bytes under a new generation.
    ///
    /// # Errors
    /// [`AllocError`] says whether waiting can help (`NoSpace`) or not (`TooLarge`, `Empty`).
    pub fn allocate(&mut self, bytes: u64) -> Result<Extent, AllocError> {
        if bytes == 0 {
            return Err(AllocError::Empty);
        }
        let want = bytes
            .checked_next_multiple_of(self.granule)
            .unwrap_or(u64::MAX);
        if want > self.books.capacity {
            return Err(AllocError::TooLarge {
                want,
                capacity: self.books.capacity,
            });
        }
        let len = (want / self.granule) as u32;
        let Some(index) = self.find(len) else {
            return Err(AllocError::NoSpace {
                want,
                free: self.books.free,
                largest: self.largest_free(),
            });
        };
        self.gaps.clear();
        self.unlink(index);
        if self.pieces[index as usize].len > len {
            self.split(index, len);
        }
        let generation = self.next_generation;
        self.next_generation += 1;
        let piece = &mut self.pieces[index as usize];
        piece.state = State::Live;
        piece.set_generation(generation);
        let extent = Extent {
            offset: u64::from(piece.start) * self.granule,
            bytes: want,
            generation,
            slot: index,
        };
        self.books.free -= want;
        self.books.live += want;
        Ok(extent)
    }

    /// Whether [`Self::allocate`] would find so many bytes.
    #[must_use]
    pub fn has_room(&self, bytes: u64) -> bool {
        let want = bytes.checked_next_multiple_of(self.granule);
        let want = want.filter(|want| (1..=self.books.capacity).contains(want));
        want.is_some_and(|want| self.find((want / self.granule) as u32).is_some())
    }

    /// Takes over an extent that an earlier allocator of the same bytes gave out, under the generation that it had there,
    /// before any other is allocated. None when its bytes are not whole granules that are free and whose turn has not
    /// passed, or when its generation is one that this allocator gives.
    pub fn adopt(
        &mut self,
        offset: u64,
        bytes: u64,
        generation: u64,
        turn: Turn,
    ) -> Option<Extent> {
        let end = offset.checked_add(bytes)?;
        let whole = offset.is_multiple_of(self.granule) && bytes.is_multiple_of(self.granule);
        let inside = bytes > 0 && end <= self.books.capacity;
        let known = generation < self.next_generation;
        if !whole || !inside || !known {
            return None;
        }
        let (start, len) = (
            (offset / self.granule) as u32,
            (bytes / self.granule) as u32,
        );
        let (gap_start, mut index) = self.gap_of(start, len)?;
        self.unlink(index);
        if start > gap_start {
            self.split(index, start - gap_start);
            self.link(index);
            index = self.pieces[index as usize].right;
            self.unlink(index);
        }
        if start == gap_start || turn == Turn::InOrder {
            self.gaps.remove(&gap_start);
        }
        if self.pieces[index as usize].len > len {
            self.split(index, len);
            let right = self.pieces[index as usize].right;
            self.gaps.insert(start + len, right);
        }
        if turn == Turn::InOrder {
            while let Some(passed) = self.gaps.first_entry().filter(|gap| *gap.key() < start) {
                passed.remove();
            }
        }
        let piece = &mut self.pieces[index as usize];
        piece.state = State::Live;
        piece.set_generation(generation);
        self.books.free -= bytes;
        self.books.live += bytes;
        Some(Extent {
            offset,
            bytes,
            generation,
            slot: index,
        })
    }

    /// The gap that these granules lie in: its first granule and its piece.
    fn gap_of(&self, start: u32, len: u32) -> Option<(u32, u32)> {
        let (gap, index) = self.gaps.range(..=start).next_back()?;
        let end = gap + self.pieces[*index as usize].len;
        (start + len <= end).then_some((*gap, *index))
    }

    /// The generation of the next extent.
    #[must_use]
    pub fn next_generation(&self) -> u64 {
        self.next_generation
    }

    /// Retires `extent`: its generation is dead at once, its bytes stay in quarantine until [`Self::release`].
    ///
    /// # Panics
    /// If `extent` is not live: it was retired twice, which is a bug of the caller.
    pub fn retire(&mut self, extent: Extent) {
        self.expect(extent, State::Live);
        self.pieces[extent.slot as usize].state = State::Quarantined;
        self.books.live -= extent.bytes;
        self.books.quarantined += extent.bytes;
    }

    /// Frees the bytes of a retired extent, once no access under its generation can still arrive.
    ///
    /// # Panics
    /// If `extent` is not in quarantine.
    pub fn release(&mut self, extent: Extent) {
        self.expect(extent, State::Quarantined);
        self.books.quarantined -= extent.bytes;
        self.books.free += extent.bytes;
        let mut index = extent.slot;
        let Piece { left, right, .. } = self.pieces[index as usize];
        let mut gap = None;
        if right != NONE && self.pieces[right as usize].state == State::Free {
            gap = self.gaps.remove(&self.pieces[right as usize].start);
            self.unlink(right);
            self.merge(index, right);
        }
        if left != NONE && self.pieces[left as usize].state == State::Free {
            self.unlink(left);
            self.merge(left, index);
            index = left;
        }
        self.link(index);
        if gap.is_some() {
            self.gaps.insert(self.pieces[index as usize].start, index);
        }
    }

    /// The extent of the number that [`Extent::slot`] returned, until it is released.
    ///
    /// # Panics
    /// If there is no live or retired extent of this number, which is a bug of the caller.
    #[must_use]
    pub fn held(&self, slot: u32) -> Extent {
        let piece = &self.pieces[slot as usize];
        assert!(
            matches!(piece.state, State::Live | State::Quarantined),
            "slot {slot} holds no extent"
        );
        Extent {
            offset: u64::from(piece.start) * self.granule,
            bytes: u64::from(piece.len) * self.granule,
            generation: piece.generation(),
            slot,
        }
    }

    /// Reads what [`Self::held`] will need, so that a caller with many extents overlaps their cache misses.
    #[must_use]
    pub fn warm(&self, slot: u32) -> u64 {
        self.pieces
            .get(slot as usize)
            .map_or(0, |piece| u64::from(piece.start))
    }

    /// Whether `extent` is still held under its generation.
    #[must_use]
    pub fn is_live(&self, extent: Extent) -> bool {
        self.pieces.get(extent.slot as usize).is_some_and(|piece| {
            piece.state == State::Live && piece.generation() == extent.generation
        })
    }

    /// The bytes by state now.
    #[must_use]
    pub fn books(&self) -> ExtentBooks {
        self.books
    }

    /// Size of the largest free piece, in bytes, rounded down to a size class (at most 6 % too small).
    #[must_use]
    pub fn largest_free(&self) -> u64 {
        if self.rows == 0 {
            return 0;
        }
        let row = 63 - self.rows.leading_zeros() as usize;
        let column = 31 - self.columns[row].leading_zeros() as usize;
        u64::from(class_floor(row, column)) * self.granule
    }

    /// Memory of the allocator itself, in bytes.
    #[must_use]
    pub fn overhead_bytes(&self) -> usize {
        let gaps = self.gaps.len() * size_of::<(u32, u32)>();
        self.pieces.overhead_bytes() + size_of::<[[u32; COLUMNS]; ROWS]>() + gaps
    }

    /// A free piece of at least `len` granules: the head of the first class all of whose pieces are long enough, or,
    /// when there is none, a long enough piece of the class that `len` itself falls in.
    fn find(&self, len: u32) -> Option<u32> {
        let (row, column) = class_of(len);
        let exact = class_floor(row, column) == len;
        let above = self.first_from(row, if exact { column } else { column + 1 });
        above.or_else(|| {
            let mut index = self.heads[row][column];
            for _ in 0..SCAN_LIMIT {
                if index == NONE {
                    return None;
                }
                if self.pieces[index as usize].len >= len {
                    return Some(index);
                }
                index = self.pieces[index as usize].next_or_high;
            }
            None
        })
    }

    fn first_from(&self, row: usize, column: usize) -> Option<u32> {
        let here = if column < COLUMNS {
            self.columns[row] & (u32::MAX << column)
        } else {
            0
        };
        if here != 0 {
            return Some(self.heads[row][here.trailing_zeros() as usize]);
        }
        let higher = self.rows & u64::MAX.checked_shl(row as u32 + 1).unwrap_or(0);
        if higher == 0 {
            return None;
        }
        let row = higher.trailing_zeros() as usize;
        Some(self.heads[row][self.columns[row].trailing_zeros() as usize])
    }

    /// Cuts `index` down to `len` granules; the rest becomes a free piece to its right.
    fn split(&mut self, index: u32, len: u32) {
        let whole = self.pieces[index as usize];
        let rest = Piece {
            start: whole.start + len,
            len: whole.len - len,
            left: index,
            right: whole.right,
            prev_or_low: NONE,
            next_or_high: NONE,
            state: State::Spare,
        };
        let rest_index = if self.spare == NONE {
            self.pieces.push(rest)
        } else {
            let slot = self.spare;
            self.spare = self.pieces[slot as usize].next_or_high;
            self.pieces[slot as usize] = rest;
            slot
        };
        if whole.right != NONE {
            self.pieces[whole.right as usize].left = rest_index;
        }
        let piece = &mut self.pieces[index as usize];
        piece.len = len;
        piece.right = rest_index;
        self.link(rest_index);
    }

    /// Merges `right` into its neighbour `left` and frees its slot.
    fn merge(&mut self, left: u32, right: u32) {
        let gone = self.pieces[right as usize];
        let piece = &mut self.pieces[left as usize];
        piece.len += gone.len;
        piece.right = gone.right;
        if gone.right != NONE {
            self.pieces[gone.right as usize].left = left;
        }
        let slot = &mut self.pieces[right as usize];
        slot.state = State::Spare;
        slot.next_or_high = self.spare;
        self.spare = right;
    }

    fn link(&mut self, index: u32) {
        let (row, column) = class_of(self.pieces[index as usize].len);
        let head = self.heads[row][column];
        let piece = &mut self.pieces[index as usize];
        piece.state = State::Free;
        piece.prev_or_low = NONE;
        piece.next_or_high = head;
        if head != NONE {
            self.pieces[head as usize].prev_or_low = index;
        }
        self.heads[row][column] = index;
        self.columns[row] |= 1 << column;
        self.rows |= 1 << row;
    }

    fn unlink(&mut self, index: u32) {
        let Piece {
            len,
            prev_or_low: prev,
            next_or_high: next,
            ..
        } = self.pieces[index as usize];
        if next != NONE {
            self.pieces[next as usize].prev_or_low = prev;
        }
        if prev != NONE {
            self.pieces[prev as usize].next_or_high = next;
            return;
        }
        let (row, column) = class_of(len);
        self.heads[row][column] = next;
        if next == NONE {
            self.columns[row] &= !(1 << column);
            if self.columns[row] == 0 {
                self.rows &= !(1 << row);
            }
        }
    }

    fn expect(&self, extent: Extent, state: State) {
        let piece = self.pieces.get(extent.slot as usize);
        let found = piece.map(|piece| (piece.state, piece.generation()));
        assert_eq!(
            found,
            Some((state, extent.generation)),
            "books of {extent:?}"
        );
    }
}

/// Size class of a piece: one class for each length below 16 granules, 16 classes for each octave above.
const fn class_of(len: u32) -> (usize, usize) {
    if len < COLUMNS as u32 {
        return (0, len as usize);
    }
    let octave = 31 - len.leading_zeros();
    let column = (len >> (octave - COLUMN_BITS)) as usize - COLUMNS;
    ((octave - COLUMN_BITS + 1) as usize, column)
}

/// The shortest piece of a class, in granules.
const fn class_floor(row: usize, column: usize) -> u32 {
    if row == 0 {
        column as u32
    } else {
        ((COLUMNS + column) as u32) << (row - 1)
    }
}

const NONE: u32 = u32::MAX;
const COLUMN_BITS: u32 = 4;
const COLUMNS: usize = 1 << COLUMN_BITS;
const ROWS: usize = 30;
/// Most pieces examined in the class whose pieces may not fit, which keeps the worst case constant.
const SCAN_LIMIT: usize = 16;

#[cfg(test)]
mod tests;
