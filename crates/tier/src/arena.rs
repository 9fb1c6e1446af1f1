//! The state of the node's memory segments: which generations are dead, and which accesses are
//! under way.
//!
//! The master allocates and frees extents; only the owner of the bytes knows whether a late reader
//! or writer still uses them. [`Arena::fence`] makes a generation dead at once, and the end of the
//! last access under it is reported, so that the bytes can be allocated again. They are never
//! allocated again because of time alone.

use std::collections::BTreeMap;

use slackwater_base::{Checksum, Map, Planted, planted};
use slackwater_wire::{ExtentRef, Incarnation, SegmentId};
use thiserror::Error;

/// A run of memory that this node lends to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySegment {
    /// Its identity.
    pub segment: SegmentId,
    /// The incarnation of the process that lends it.
    pub incarnation: Incarnation,
    /// Its size in bytes.
    pub bytes: u64,
    /// What offsets and lengths of its extents are multiples of.
    pub granule: u64,
}

/// What an access does to the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads the bytes: any number of readers at a time.
    Read,
    /// Writes the bytes: one writer at a time, before any read.
    Write,
}

/// Identifies one access under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccessId(pub u64);

/// Why an extent may not be accessed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Stale {
    /// This node does not lend the segment, or no longer.
    #[error("segment {segment} is not lent by this node")]
    Segment {
        /// The segment that the extent names.
        segment: SegmentId,
    },
    /// An earlier incarnation of this process lent the segment.
    #[error(
        "segment {segment} of incarnation {named} is gone: the current incarnation is {current}"
    )]
    Incarnation {
        /// The segment that the extent names.
        segment: SegmentId,
        /// The incarnation that the extent names.
        named: Incarnation,
        /// The incarnation that lends the segment now.
        current: Incarnation,
    },
    /// The range is not an extent of the segment.
    #[error("{bytes} bytes at {offset} are not an extent of segment {segment}")]
    Range {
        /// The segment that the extent names.
        segment: SegmentId,
        /// Offset of the first byte within the segment.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// The extent was fenced: its bytes belong, or will belong, to another object.
    #[error("generation {generation} at {offset} of segment {segment} is fenced")]
    Generation {
        /// The segment that the extent names.
        segment: SegmentId,
        /// Offset of the first byte within the segment.
        offset: u64,
        /// The fenced generation.
        generation: u64,
    },
    /// The extent is being written.
    #[error("generation {generation} at {offset} of segment {segment} is being written")]
    Busy {
        /// The segment that the extent names.
        segment: SegmentId,
        /// Offset of the first byte within the segment.
        offset: u64,
        /// The generation of the extent.
        generation: u64,
    },
}

/// How an access ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct AccessEnd {
    /// Whether the extent was alive at the end of the access, so that the bytes read or written are
    /// valid.
    pub live: bool,
    /// A fenced extent whose last access this was: it is to be reported as fenced.
    pub fenced: Option<ExtentRef>,
}

/// Fences and accesses of the node's memory segments.
#[derive(Debug, Default)]
pub struct Arena {
    segments: BTreeMap<SegmentId, Lent>,
    accesses: Map<AccessId, (ExtentRef, Access)>,
    busy: Map<ExtentRef, Busy>,
    next_access: u64,
}

#[derive(Debug)]
struct Lent {
    incarnation: Incarnation,
    bytes: u64,
    granule: u64,
    /// Highest dead generation, plus one, of the extents that begin at each granule. Only the first
    /// granule of an extent is marked and checked: every access to the extent names it.
    dead_below: Vec<u64>,
}

/// Accesses under way on one extent.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    readers: u32,
    writing: bool,
    fenced: bool,
}

impl Arena {
    /// An arena without segments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a segment. A segment of the same id from an earlier incarnation is replaced, and
    /// accesses to that one end as stale.
    pub fn add(&mut self, segment: MemorySegment) {
        let granules = usize::try_from(segment.bytes / segment.granule)
            .expect("a segment is mapped, so it fits");
        self.segments.insert(
            segment.segment,
            Lent {
                incarnation: segment.incarnation,
                bytes: segment.bytes,
                granule: segment.granule,
                dead_below: vec![0; granules],
            },
        );
    }

    /// Removes a segment: every access to it is stale from now on.
    pub fn remove(&mut self, segment: SegmentId) {
        self.segments.remove(&segment);
    }

    /// Begins an access, unless the extent is dead. The access must be ended by [`Arena::end`],
    /// also when the copy fails.
    ///
    /// # Errors
    /// Why the extent may not be accessed.
    pub fn begin(&mut self, extent: ExtentRef, access: Access) -> Result<AccessId, Stale> {
        self.check(extent)?;
        let busy = self.busy.entry(extent).or_default();
        match access {
            Access::Read if !busy.writing => busy.readers += 1,
            Access::Write if !busy.writing && busy.readers == 0 => busy.writing = true,
            Access::Read | Access::Write => {
                let ExtentRef {
                    segment,
                    offset,
                    generation,
                    ..
                } = extent;
                return Err(Stale::Busy {
                    segment,
                    offset,
                    generation,
                });
            }
        }
        let id = AccessId(self.next_access);
        self.next_access += 1;
        self.accesses.insert(id, (extent, access));
        Ok(id)
    }

    /// Whether the extent of an access under way is still alive, so that what is done under the access still counts.
    #[must_use]
    pub fn is_live(&self, id: AccessId) -> bool {
        let extent = self.accesses.get(&id).map(|(extent, _)| *extent);
        extent.is_some_and(|extent| self.check(extent).is_ok())
    }

    /// Ends an access: says whether its bytes are valid, and whether a fence was waiting for it.
    ///
    /// # Panics
    /// If the access was ended before: memory in use would be freed.
    pub fn end(&mut self, id: AccessId) -> AccessEnd {
        let (extent, access) = self.accesses.remove(&id).expect("an access ends once");
        let busy = self
            .busy
            .get_mut(&extent)
            .expect("an access under way is counted at its extent");
        match access {
            Access::Read => busy.readers -= 1,
            Access::Write => busy.writing = false,
        }
        let Busy {
            readers,
            writing,
            fenced,
        } = *busy;
        let idle = readers == 0 && !writing;
        if idle {
            self.busy.remove(&extent);
        }
        AccessEnd {
            live: self.check(extent).is_ok(),
            fenced: (idle && fenced).then_some(extent),
        }
    }

    /// Makes dead `extent` and every older generation that began at its first byte. Returns true
    /// when no access to them is under way, so that the extent can be reported as fenced at once;
    /// otherwise the last [`Arena::end`] reports it.
    ///
    /// An extent of another incarnation, or of no segment of this node, counts as fenced.
    pub fn fence(&mut self, extent: ExtentRef) -> bool {
        if self.place(extent).is_ok() {
            let lent = self
                .segments
                .get_mut(&extent.segment)
                .expect("an extent that was found is in a segment");
            let first = (extent.offset / lent.granule) as usize;
            lent.dead_below[first] =
                lent.dead_below[first].max(extent.generation.saturating_add(1));
        }
        match self.busy.get_mut(&extent) {
            Some(busy) if !planted(Planted::FenceDuringAccess) => {
                busy.fenced = true;
                false
            }
            Some(_) | None => true,
        }
    }

    /// Whether `extent` may be accessed.
    ///
    /// # Errors
    /// The part of the reference that is out of date: segment, incarnation or generation.
    pub fn check(&self, extent: ExtentRef) -> Result<(), Stale> {
        let lent = self.place(extent)?;
        let ExtentRef {
            segment,
            offset,
            generation,
            ..
        } = extent;
        if generation < lent.dead_below[(offset / lent.granule) as usize]
            && !planted(Planted::AccessWithoutGeneration)
        {
            return Err(Stale::Generation {
                segment,
                offset,
                generation,
            });
        }
        Ok(())
    }

    /// Begins to fill an extent, for a writer inside this process.
    ///
    /// # Errors
    /// Why the extent may not be written.
    pub fn reserve(&mut self, extent: ExtentRef) -> Result<Reserved, Stale> {
        Ok(Reserved {
            access: self.begin(extent, Access::Write)?,
            extent,
        })
    }

    /// Ends the writing of an extent whose bytes are right: they are valid only if the extent is
    /// still alive.
    pub fn publish(&mut self, filled: Filled) -> (Option<Published>, AccessEnd) {
        let end = self.end(filled.reserved.access);
        let published = end.live.then_some(Published {
            extent: filled.reserved.extent,
            checksum: filled.checksum,
        });
        (published, end)
    }

    /// Ends the writing of an extent whose bytes are wrong or not wanted.
    pub fn abandon(&mut self, reserved: Reserved) -> AccessEnd {
        self.end(reserved.access)
    }

    /// Bytes of all segments.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.bytes).sum()
    }

    /// The segments.
    pub fn segments(&self) -> impl Iterator<Item = SegmentId> {
        self.segments.keys().copied()
    }

    /// Number of extents that are being written.
    #[must_use]
    pub fn writers(&self) -> usize {
        self.busy.values().filter(|busy| busy.writing).count()
    }

    /// Number of accesses under way.
    #[must_use]
    pub fn accesses(&self) -> usize {
        self.accesses.len()
    }

    fn place(&self, extent: ExtentRef) -> Result<&Lent, Stale> {
        let ExtentRef {
            segment,
            incarnation,
            offset,
            bytes,
            ..
        } = extent;
        let lent = self
            .segments
            .get(&segment)
            .ok_or(Stale::Segment { segment })?;
        if lent.incarnation != incarnation {
            return Err(Stale::Incarnation {
                segment,
                named: incarnation,
                current: lent.incarnation,
            });
        }
        let whole =
            bytes > 0 && offset.is_multiple_of(lent.granule) && bytes.is_multiple_of(lent.granule);
        if !whole || offset.checked_add(bytes).is_none_or(|end| end > lent.bytes) {
            return Err(Stale::Range {
                segment,
                offset,
                bytes,
            });
        }
        Ok(lent)
    }
}

/// An extent that one writer is filling. It must become [`Filled`] or be abandoned; it can be
/// neither cloned nor ignored.
#[derive(Debug)]
#[must_use = "an access that is begun must be ended"]
pub struct Reserved {
    access: AccessId,
    extent: ExtentRef,
}

impl Reserved {
    /// Where the bytes go.
    #[must_use]
    pub fn extent(&self) -> ExtentRef {
        self.extent
    }

    /// States that the bytes are in place and have the checksum `found`; they are right if
    /// `expected` is the same.
    ///
    /// # Errors
    /// Returns the reservation when the checksums differ.
    pub fn fill(self, found: Checksum, expected: Checksum) -> Result<Filled, Reserved> {
        if found == expected || planted(Planted::PromoteWithoutVerify) {
            Ok(Filled {
                reserved: self,
                checksum: found,
            })
        } else {
            Err(self)
        }
    }
}

/// An extent whose bytes are in place and verified.
#[derive(Debug)]
#[must_use = "an access that is begun must be ended"]
pub struct Filled {
    reserved: Reserved,
    checksum: Checksum,
}

/// An extent whose bytes are valid: verified, and the extent was alive when the writing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Where the bytes are.
    pub extent: ExtentRef,
    /// Their checksum.
    pub checksum: Checksum,
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANULE: u64 = 4096;

    fn arena() -> Arena {
        let mut arena = Arena::new();
        let (segment, incarnation) = (SegmentId(1), Incarnation(7));
        arena.add(MemorySegment {
            segment,
            incarnation,
            bytes: 64 * GRANULE,
            granule: GRANULE,
        });
        arena
    }

    fn extent(granule: u64, granules: u64, generation: u64) -> ExtentRef {
        ExtentRef {
            segment: SegmentId(1),
            incarnation: Incarnation(7),
            offset: granule * GRANULE,
            bytes: granules * GRANULE,
            generation,
        }
    }

    #[test]
    fn an_idle_extent_is_fenced_at_once_and_stays_dead() {
        let mut arena = arena();
        assert!(arena.fence(extent(3, 2, 5)));
        assert!(matches!(
            arena.begin(extent(3, 2, 5), Access::Read),
            Err(Stale::Generation { generation: 5, .. })
        ));
        assert!(matches!(
            arena.begin(extent(3, 2, 4), Access::Read),
            Err(Stale::Generation { .. })
        ));
        assert!(
            arena.fence(extent(3, 1, 2)),
            "a fence of an older generation is answered"
        );
        assert!(
            arena.begin(extent(3, 2, 5), Access::Read).is_err(),
            "and does not revive the newer generation"
        );
        assert!(arena.begin(extent(3, 1, 6), Access::Read).is_ok());
    }

    #[test]
    fn a_fence_waits_for_the_last_access_whose_bytes_then_do_not_count() {
        let mut arena = arena();
        let first = arena.begin(extent(0, 1, 1), Access::Read).unwrap();
        let second = arena.begin(extent(0, 1, 1), Access::Read).unwrap();
        assert!(!arena.fence(extent(0, 1, 1)));
        assert_eq!(
            arena.end(first),
            AccessEnd {
                live: false,
                fenced: None
            }
        );
        assert_eq!(
            arena.end(second),
            AccessEnd {
                live: false,
                fenced: Some(extent(0, 1, 1))
            }
        );
        assert!(
            arena.fence(extent(0, 1, 1)),
            "a second fence finds it fenced"
        );
        assert_eq!(arena.accesses(), 0);
    }

    #[test]
    fn reuse_under_another_generation_does_not_wait_for_nor_feel_the_old_one() {
        let mut arena = arena();
        arena.fence(extent(0, 4, 1));
        let new = arena.begin(extent(0, 2, 2), Access::Write).unwrap();
        assert!(
            arena.begin(extent(0, 4, 1), Access::Write).is_err(),
            "the late writer changes nothing"
        );
        assert_eq!(
            arena.end(new),
            AccessEnd {
                live: true,
                fenced: None
            }
        );
    }

    #[test]
    fn a_writer_is_alone() {
        let mut arena = arena();
        let writer = arena.begin(extent(0, 1, 1), Access::Write).unwrap();
        assert!(matches!(
            arena.begin(extent(0, 1, 1), Access::Write),
            Err(Stale::Busy { .. })
        ));
        assert!(matches!(
            arena.begin(extent(0, 1, 1), Access::Read),
            Err(Stale::Busy { .. })
        ));
        assert!(arena.end(writer).live);
        let reader = arena.begin(extent(0, 1, 1), Access::Read).unwrap();
        assert!(matches!(
            arena.begin(extent(0, 1, 1), Access::Write),
            Err(Stale::Busy { .. })
        ));
        assert!(arena.end(reader).live);
    }

    #[test]
    fn what_is_no_extent_of_this_life_is_refused_and_needs_no_fence() {
        let mut arena = arena();
        let foreign = ExtentRef {
            incarnation: Incarnation(6),
            ..extent(0, 1, 1)
        };
        let absent = ExtentRef {
            segment: SegmentId(9),
            ..extent(0, 1, 1)
        };
        let crooked = ExtentRef {
            offset: 100,
            ..extent(0, 1, 1)
        };
        let long = ExtentRef {
            bytes: u64::MAX - 4095,
            ..extent(4, 1, 1)
        };
        for (what, named) in [
            ("foreign", foreign),
            ("absent", absent),
            ("crooked", crooked),
            ("long", long),
        ] {
            assert!(arena.begin(named, Access::Read).is_err(), "{what}");
            assert!(arena.fence(named), "{what}");
        }
        assert!(arena.check(extent(0, 1, 1)).is_ok());
    }

    #[test]
    fn an_access_to_a_segment_that_left_does_not_count() {
        let mut arena = arena();
        let reader = arena.begin(extent(0, 1, 1), Access::Read).unwrap();
        arena.remove(SegmentId(1));
        assert_eq!(
            arena.end(reader),
            AccessEnd {
                live: false,
                fenced: None
            }
        );
    }

    #[test]
    fn only_right_bytes_in_a_live_extent_are_published() {
        let mut arena = arena();
        let (right, wrong) = (Checksum(1), Checksum(2));
        let reserved = arena.reserve(extent(0, 1, 1)).unwrap();
        let reserved = reserved.fill(wrong, right).unwrap_err();
        let filled = reserved.fill(right, right).unwrap();
        let (published, _) = arena.publish(filled);
        assert_eq!(
            published,
            Some(Published {
                extent: extent(0, 1, 1),
                checksum: right
            })
        );

        let filled = arena
            .reserve(extent(0, 1, 1))
            .unwrap()
            .fill(right, right)
            .unwrap();
        assert!(!arena.fence(extent(0, 1, 1)));
        let (published, end) = arena.publish(filled);
        assert_eq!((published, end.fenced), (None, Some(extent(0, 1, 1))));

        let reserved = arena.reserve(extent(1, 1, 1)).unwrap();
        assert!(arena.abandon(reserved).live);
    }
}
