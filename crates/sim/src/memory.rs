//! The memory that a node lends, with a shadow that records the owner of every byte.
//!
//! The shadow is updated when the master allocates an extent and when the node reports it as fenced. An access under
//! any other generation is the late access that fencing must prevent.

use std::collections::BTreeMap;

use slackwater_wire::{ExtentRef, Incarnation, SegmentId};

use crate::check::{Checked, Invariant, Violation};

/// The memory segments of one node.
#[derive(Debug, Default)]
pub struct Memory {
    segments: BTreeMap<SegmentId, Segment>,
}

#[derive(Debug)]
struct Segment {
    incarnation: Incarnation,
    bytes: Vec<u8>,
    /// The owner of each granule.
    shadow: Vec<Owner>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Owner {
    /// Zero: never allocated.
    generation: u64,
    fenced: bool,
}

impl Memory {
    /// Adds a segment of `bytes`, lent under `incarnation`, or replaces the segment of an earlier incarnation: no
    /// access under that one is allowed any more.
    pub fn mount(&mut self, segment: SegmentId, incarnation: Incarnation, bytes: u64) {
        let granules = (bytes / GRANULE) as usize;
        let shadow = vec![Owner::default(); granules];
        self.segments.insert(
            segment,
            Segment {
                incarnation,
                bytes: vec![POISON; bytes as usize],
                shadow,
            },
        );
    }

    /// The master has allocated `extent`.
    ///
    /// # Errors
    /// If some of its bytes still belong to an extent that is not fenced.
    pub fn grant(&mut self, extent: ExtentRef) -> Checked {
        let Some(segment) = self.segments.get_mut(&extent.segment) else {
            return Err(Violation::new(
                Invariant::Extents,
                format!("{extent:?} is allocated, but its segment is not mounted"),
            ));
        };
        if segment.incarnation != extent.incarnation {
            return Ok(());
        }
        for owner in segment.shadow(extent)? {
            if owner.generation >= extent.generation {
                // The answer was delayed until after the extent had been fenced, or its bytes allocated again.
                continue;
            }
            if owner.generation != 0 && !owner.fenced {
                let what = format!(
                    "{extent:?} is allocated while generation {} of its bytes is not fenced",
                    owner.generation
                );
                return Err(Violation::new(Invariant::Extents, what));
            }
            *owner = Owner {
                generation: extent.generation,
                fenced: false,
            };
        }
        Ok(())
    }

    /// The node has reported `extent` as fenced.
    ///
    /// # Errors
    /// If the extent lies outside its segment.
    pub fn fence(&mut self, extent: ExtentRef) -> Checked {
        let Some(segment) = self.segments.get_mut(&extent.segment) else {
            return Ok(());
        };
        if segment.incarnation != extent.incarnation {
            return Ok(());
        }
        for owner in segment.shadow(extent)? {
            if owner.generation <= extent.generation {
                *owner = Owner {
                    generation: extent.generation,
                    fenced: true,
                };
            }
        }
        Ok(())
    }

    /// Whether a segment is here.
    #[must_use]
    pub fn has(&self, segment: SegmentId) -> bool {
        self.segments.contains_key(&segment)
    }

    /// The node has told another master everything that the segment holds, which is `held`. Of generations below `floor`, which
    /// are those of earlier masters, the rest is dead, and nobody accesses it any more.
    pub fn outlive<'a>(
        &mut self,
        segment: SegmentId,
        floor: u64,
        held: impl Iterator<Item = &'a ExtentRef>,
    ) {
        let Some(segment) = self.segments.get_mut(&segment) else {
            return;
        };
        let mut dead = vec![true; segment.shadow.len()];
        for extent in held {
            let (first, end) = (
                extent.offset / GRANULE,
                (extent.offset + extent.bytes) / GRANULE,
            );
            dead[first as usize..end as usize].fill(false);
        }
        for (owner, dead) in segment.shadow.iter_mut().zip(dead) {
            owner.fenced |= dead && owner.generation < floor;
        }
    }

    /// Writes `bytes` at `offset` from the start of `extent`, as an access that the node's arena permitted.
    ///
    /// # Errors
    /// If a byte of it does not belong to `extent`.
    pub fn write(&mut self, extent: ExtentRef, offset: u64, bytes: &[u8]) -> Checked {
        let at = self.permit(extent, offset, bytes.len(), "write")?;
        let segment = self
            .segments
            .get_mut(&extent.segment)
            .expect("permitted, so mounted");
        segment.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Reads `length` bytes at `offset` from the start of `extent`, as an access that the node's arena permitted.
    ///
    /// # Errors
    /// If a byte of it does not belong to `extent`.
    pub fn read(&self, extent: ExtentRef, offset: u64, length: usize) -> Checked<Vec<u8>> {
        let at = self.permit(extent, offset, length, "read")?;
        Ok(self.segments[&extent.segment].bytes[at..at + length].to_vec())
    }

    /// Flips one bit of memory, as a failing DIMM does.
    pub fn flip(&mut self, segment: SegmentId, bit: u64) {
        if let Some(segment) = self.segments.get_mut(&segment) {
            let bit = bit % (segment.bytes.len() as u64 * 8);
            segment.bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }

    fn permit(&self, extent: ExtentRef, offset: u64, length: usize, verb: &str) -> Checked<usize> {
        let wrong = |why: String| {
            Violation::new(
                Invariant::Extents,
                format!("{verb} of {length} bytes at {offset} of {extent:?}: {why}"),
            )
        };
        let segment = self
            .segments
            .get(&extent.segment)
            .ok_or_else(|| wrong("not mounted".into()))?;
        if segment.incarnation != extent.incarnation {
            return Err(wrong(format!(
                "the segment is lent under incarnation {}",
                segment.incarnation
            )));
        }
        if offset + length as u64 > extent.bytes {
            return Err(wrong("past the end of the extent".into()));
        }
        let first = (extent.offset + offset) / GRANULE;
        let last = (extent.offset + offset + length as u64).div_ceil(GRANULE);
        for granule in first..last {
            match segment.shadow.get(granule as usize) {
                None => return Err(wrong("past the end of the segment".into())),
                Some(owner) if owner.generation != extent.generation => {
                    return Err(wrong(format!(
                        "the bytes belong to generation {}",
                        owner.generation
                    )));
                }
                Some(owner) if owner.fenced => return Err(wrong("the extent is fenced".into())),
                Some(_) => {}
            }
        }
        Ok((extent.offset + offset) as usize)
    }
}

impl Segment {
    fn shadow(&mut self, extent: ExtentRef) -> Checked<&mut [Owner]> {
        let (first, last) = (
            extent.offset / GRANULE,
            (extent.offset + extent.bytes).div_ceil(GRANULE),
        );
        let outside = || {
            Violation::new(
                Invariant::Extents,
                format!("{extent:?} lies outside its segment"),
            )
        };
        self.shadow
            .get_mut(first as usize..last as usize)
            .ok_or_else(outside)
    }
}

/// Smallest unit of memory that the shadow tracks.
const GRANULE: u64 = 64;
/// The content of memory that was never written.
const POISON: u8 = 0xa5;

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, generation: u64) -> ExtentRef {
        ExtentRef {
            segment: SegmentId(1),
            incarnation: Incarnation(1),
            offset,
            bytes: 4096,
            generation,
        }
    }

    fn memory() -> Memory {
        let mut memory = Memory::default();
        memory.mount(SegmentId(1), Incarnation(1), 16384);
        memory
    }

    #[test]
    fn a_write_under_a_dead_generation_is_detected() {
        let mut memory = memory();
        memory.grant(extent(0, 1)).unwrap();
        memory.write(extent(0, 1), 0, &[7; 4096]).unwrap();
        assert_eq!(memory.read(extent(0, 1), 10, 2).unwrap(), [7, 7]);
        memory.fence(extent(0, 1)).unwrap();
        assert!(memory.write(extent(0, 1), 0, &[8]).is_err());
        memory.grant(extent(0, 2)).unwrap();
        assert!(memory.write(extent(0, 1), 0, &[8]).is_err());
        assert!(memory.read(extent(0, 1), 0, 1).is_err());
        memory.write(extent(0, 2), 0, &[9]).unwrap();
    }

    #[test]
    fn bytes_that_are_not_fenced_may_not_be_allocated() {
        let mut memory = memory();
        memory.grant(extent(4096, 1)).unwrap();
        assert_eq!(
            memory.grant(extent(4096, 2)).unwrap_err().invariant,
            Invariant::Extents
        );
        assert!(memory.grant(extent(0, 3)).is_ok());
    }

    /// What an earlier master granted and nobody published is allocated again without a fence.
    #[test]
    fn of_earlier_masters_only_what_is_held_is_alive() {
        let mut memory = memory();
        let (held, granted) = (extent(0, 1), extent(4096, 2));
        memory.grant(held).unwrap();
        memory.grant(granted).unwrap();
        memory.grant(extent(8192, 5)).unwrap();
        memory.outlive(SegmentId(1), 5, [held].iter());
        memory.grant(extent(4096, 6)).unwrap();
        for alive in [held, extent(8192, 5)] {
            memory.read(alive, 0, 1).unwrap();
            let again = extent(alive.offset, 7);
            assert!(memory.grant(again).is_err());
        }
    }

    /// A put of two values waits for room for the second. Meanwhile the first is replaced and its extent fenced, before
    /// the answer names it.
    #[test]
    fn an_extent_may_be_named_after_it_was_fenced() {
        let mut memory = memory();
        memory.fence(extent(0, 1)).unwrap();
        memory.grant(extent(0, 1)).unwrap();
        assert!(memory.write(extent(0, 1), 0, &[1]).is_err());
        memory.grant(extent(0, 2)).unwrap();
        memory.grant(extent(0, 1)).unwrap();
        memory.write(extent(0, 2), 0, &[1]).unwrap();
    }

    #[test]
    fn an_access_ends_where_its_extent_ends() {
        let mut memory = memory();
        memory.grant(extent(0, 1)).unwrap();
        memory.grant(extent(4096, 2)).unwrap();
        assert!(memory.write(extent(0, 1), 4095, &[1, 2]).is_err());
        let mut wide = extent(0, 1);
        wide.bytes = 8192;
        assert!(memory.write(wide, 4096, &[1]).is_err());
    }

    #[test]
    fn a_new_incarnation_permits_no_old_extent() {
        let mut memory = memory();
        memory.grant(extent(0, 1)).unwrap();
        memory.mount(SegmentId(1), Incarnation(2), 16384);
        assert!(memory.write(extent(0, 1), 0, &[1]).is_err());
    }
}
