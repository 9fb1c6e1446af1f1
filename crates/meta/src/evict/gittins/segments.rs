//! ChainSegments of chains, and the lists that they are in.

use super::class::{Class, Features, Tick};

/// A run of blocks of one chain that were last used together and are of one class. The first `cached` blocks are
/// resident; the rest of `blocks` is gone and kept as ghosts. Forty-four bytes, most of the policy's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainSegment {
    /// The last resident block's slot; once nothing is resident, the reuse count that the first block had.
    pub(super) tail: u32,
    /// Number and, in the low eight bits, generation of the segment that continues the chain, as it was when both were
    /// last used; [`NONE`] without one.
    pub(super) continued_by: u32,
    /// Position of the first block in its chain.
    pub(super) start: u32,
    pub(super) last_use: Tick,
    /// Links of the list of its bin of age, and of the list that [`Place`] names.
    pub(super) links: [Links; 2],
    pub(super) blocks: u16,
    pub(super) cached: u16,
    pub(super) features: Features,
    pub(super) class: Class,
    /// The class whose index it is kept by: no lower than that of its descendants.
    pub(super) kept_as: Class,
    pub(super) bin: u8,
    pub(super) place: Place,
    /// Octave of the blocks' length in bytes.
    pub(super) octave: u8,
    /// Distinguishes the segment from an earlier one of the same number.
    pub(super) generation: u8,
}

/// The list that a segment is in beside that of its bin of age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A free record.
    Free,
    /// In the order of eviction.
    Shelved,
    /// Not in that order because its tail is excluded.
    Aside,
    /// In no list: every resident block of it is excluded.
    Stuck,
    /// Nothing is resident; in the order in which ghosts are removed.
    Ghost,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    older: u32,
    newer: u32,
}

/// Which of a segment's two pairs of links a list uses.
#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    Age = 0,
    Place = 1,
}

/// A list of segments from old to new.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) oldest: u32,
    newest: u32,
}

/// No slot, no segment.
pub(super) const NONE: u32 = u32::MAX;

impl List {
    pub(super) const EMPTY: Self = Self {
        oldest: NONE,
        newest: NONE,
    };

    pub(super) const fn is_empty(&self) -> bool {
        self.oldest == NONE
    }

    pub(super) fn push_newest(&mut self, segments: &mut ChainSegments, by: By, number: u32) {
        let newest = std::mem::replace(&mut self.newest, number);
        segments.records[number as usize].links[by as usize] = Links {
            older: newest,
            newer: NONE,
        };
        match newest {
            NONE => self.oldest = number,
            _ => segments.records[newest as usize].links[by as usize].newer = number,
        }
    }

    pub(super) fn push_oldest(&mut self, segments: &mut ChainSegments, by: By, number: u32) {
        let oldest = std::mem::replace(&mut self.oldest, number);
        segments.records[number as usize].links[by as usize] = Links {
            older: NONE,
            newer: oldest,
        };
        match oldest {
            NONE => self.newest = number,
            _ => segments.records[oldest as usize].links[by as usize].older = number,
        }
    }

    /// Moves the oldest ones, up to `last`, to the new end of another list.
    pub(super) fn pass_on(
        &mut self,
        to: &mut Self,
        segments: &mut ChainSegments,
        by: By,
        last: u32,
    ) {
        let links = &mut segments.records[last as usize].links[by as usize];
        let rest = std::mem::replace(&mut links.newer, NONE);
        let first = std::mem::replace(&mut self.oldest, rest);
        match rest {
            NONE => self.newest = NONE,
            _ => segments.records[rest as usize].links[by as usize].older = NONE,
        }
        let newest = std::mem::replace(&mut to.newest, last);
        segments.records[first as usize].links[by as usize].older = newest;
        match newest {
            NONE => to.oldest = first,
            _ => segments.records[newest as usize].links[by as usize].newer = first,
        }
    }

    pub(super) fn remove(&mut self, segments: &mut ChainSegments, by: By, number: u32) {
        let Links { older, newer } = segments.records[number as usize].links[by as usize];
        match older {
            NONE => self.oldest = newer,
            _ => segments.records[older as usize].links[by as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            _ => segments.records[newer as usize].links[by as usize].older = older,
        }
    }
}

/// All segments, numbered densely, records reused.
#[derive(Debug, Default)]
pub(super) struct ChainSegments {
    records: Vec<ChainSegment>,
    free: Vec<u32>,
}

impl ChainSegments {
    /// Adds `segment`, sets its generation and returns its number.
    pub(super) fn add(&mut self, segment: ChainSegment) -> u32 {
        if let Some(number) = self.free.pop() {
            let record = &mut self.records[number as usize];
            let generation = record.generation.wrapping_add(1);
            *record = ChainSegment {
                generation,
                ..segment
            };
            return number;
        }
        let number = self.records.len();
        crate::evict::queues::grow(&mut self.records, number, segment);
        number as u32
    }

    pub(super) fn free(&mut self, number: u32) {
        self.records[number as usize].place = Place::Free;
        if self.free.len() == self.free.capacity() {
            self.free.reserve_exact(self.free.len() / 8 + 16);
        }
        self.free.push(number);
    }

    /// How many segments there are.
    pub(super) const fn in_use(&self) -> usize {
        self.records.len() - self.free.len()
    }

    /// The segment of that number and generation, if it still exists.
    pub(super) fn living(&self, number: u32, generation: u8) -> Option<&ChainSegment> {
        let segment = self.records.get(number as usize)?;
        (segment.place != Place::Free && segment.generation == generation).then_some(segment)
    }

    /// Records that the blocks of `below` come after those of `above`.
    pub(super) fn join(&mut self, above: u32, below: u32) {
        self.records[above as usize].continued_by =
            below << 8 | u32::from(self.records[below as usize].generation);
    }

    /// The last segment in the order of eviction of those that continue the chain of `number` and were last used with
    /// it. Without the blocks before them they are of no use.
    pub(super) fn deepest(&self, mut number: u32) -> u32 {
        loop {
            let above = &self[number];
            let below = above.continued_by;
            let Some(next) = self.living(below >> 8, below as u8) else {
                return number;
            };
            let continues = next.place == Place::Shelved
                && next.last_use == above.last_use
                && above.blocks == above.cached
                && next.start == above.end();
            if !continues {
                return number;
            }
            number = below >> 8;
        }
    }

    /// Reads a segment ahead of need.
    pub(super) fn warm(&self, number: u32) -> u32 {
        let segment = self.records.get(number as usize);
        segment.map_or(0, |segment| segment.blocks.into())
    }

    /// Reads the neighbours of a segment in its lists, which its moves will change.
    pub(super) fn warm_beside(&self, number: u32) -> u32 {
        let segment = self.records.get(number as usize);
        segment.map_or(0, |segment| {
            let beside = segment.links.iter();
            beside.fold(0, |seen, at| {
                seen ^ self.warm(at.older) ^ self.warm(at.newer)
            })
        })
    }

    pub(super) fn overhead_bytes(&self) -> usize {
        self.records.capacity() * size_of::<ChainSegment>()
            + self.free.capacity() * size_of::<u32>()
    }
}

impl std::ops::Index<u32> for ChainSegments {
    type Output = ChainSegment;

    fn index(&self, number: u32) -> &ChainSegment {
        &self.records[number as usize]
    }
}

impl std::ops::IndexMut<u32> for ChainSegments {
    fn index_mut(&mut self, number: u32) -> &mut ChainSegment {
        &mut self.records[number as usize]
    }
}

/// Every eighth block of a chain is a checkpoint: gone blocks are found by these and by the last block of their
/// segment.
pub(super) const CHECKPOINT_SPACING: u32 = 8;

impl ChainSegment {
    /// A segment of no blocks yet, in no list.
    pub(super) const fn new(start: u32, last_use: Tick, class: Class, features: Features) -> Self {
        Self {
            tail: NONE,
            continued_by: NONE,
            start,
            last_use,
            links: [Links {
                older: NONE,
                newer: NONE,
            }; 2],
            blocks: 0,
            cached: 0,
            features,
            class,
            kept_as: class,
            bin: 0,
            place: Place::Stuck,
            octave: 0,
            generation: 0,
        }
    }

    /// The next newer one of a list.
    pub(super) const fn newer(&self, by: By) -> u32 {
        self.links[by as usize].newer
    }

    /// Position of the first block that is gone.
    pub(super) const fn ghost_start(&self) -> u32 {
        self.start + self.cached as u32
    }

    /// Position after the last block.
    pub(super) const fn end(&self) -> u32 {
        self.start + self.blocks as u32
    }

    /// Whether the gone block at `position` is kept by its hash.
    pub(super) const fn is_checkpoint(&self, position: u32) -> bool {
        position % CHECKPOINT_SPACING == CHECKPOINT_SPACING - 1 || position + 1 == self.end()
    }

    /// How many of its gone blocks are kept by their hash.
    pub(super) const fn checkpoints(&self) -> usize {
        let (from, to) = (self.ghost_start(), self.end());
        if from == to {
            return 0;
        }
        let spaced = to / CHECKPOINT_SPACING - from / CHECKPOINT_SPACING;
        (spaced + (to % CHECKPOINT_SPACING != 0) as u32) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_counted_as_they_are_placed() {
        assert_eq!(size_of::<ChainSegment>(), 44);
        for start in 0..20 {
            for blocks in 1..30u16 {
                for cached in 0..=blocks {
                    let mut segment = ChainSegment::new(start, Tick(0), Class(0), Features(0));
                    (segment.blocks, segment.cached) = (blocks, cached);
                    let placed = (segment.ghost_start()..segment.end())
                        .filter(|&at| segment.is_checkpoint(at))
                        .count();
                    assert_eq!(segment.checkpoints(), placed, "{start} {blocks} {cached}");
                }
            }
        }
    }
}
