//! All regions of a process, by name and by address.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use slackwater_base::{Instant, Location};
use slackwater_wait::Event;
use slackwater_wire::data::{Grant, Refusal, Rights};
use thiserror::Error;

use super::{Access, AccessError, Gate, Region, RegionId, RegionState, ReopenError, StillBusy};
use crate::memory::Memory;

/// A region to be registered.
#[derive(Debug)]
pub struct RegionSpec {
    /// The memory to register.
    pub memory: Memory,
    /// The most that peers may ever be granted.
    pub rights: Rights,
    /// Decides about each extent by itself; none for one generation of all bytes.
    pub gate: Option<Arc<dyn Gate>>,
}

/// All regions of a process.
#[derive(Debug)]
pub struct Regions {
    table: RwLock<Table>,
    /// The next generation; none is used twice.
    next_generation: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    slots: Vec<TableEntry>,
    free: Vec<u32>,
    /// First address → table entry. Ranges do not overlap, so the last one at or before an address is the only
    /// candidate.
    by_start: BTreeMap<usize, u32>,
}

#[derive(Debug, Default)]
struct TableEntry {
    serial: u32,
    region: Option<Arc<Region>>,
}

/// The region and offset of an address of this process.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The region that contains it.
    pub region: Arc<Region>,
    /// Its distance from the start of the region, in bytes.
    pub offset: u64,
}

/// Why memory was not registered.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RegisterError {
    /// There is nothing to register.
    #[error("a region of no bytes")]
    Empty,
    /// The range wraps around the end of the address space.
    #[error("{bytes} bytes from {start:#x} reach beyond the address space")]
    Wraps {
        /// First address.
        start: usize,
        /// Length.
        bytes: usize,
    },
    /// Some of it is registered already.
    #[error("overlaps region {other:?}")]
    Overlap {
        /// The region that has those bytes.
        other: RegionId,
    },
    /// No mover reaches memory of this kind.
    #[error("no mover for memory at {0}")]
    Unsupported(Location),
    /// A mover refused it.
    #[error("mover {mover}: {reason}")]
    Mover {
        /// The name of the mover.
        mover: &'static str,
        /// The mover's reason.
        reason: String,
    },
    /// Every index of the table is in use.
    #[error("too many regions")]
    TooMany,
}

impl Default for Regions {
    fn default() -> Self {
        Self {
            table: RwLock::default(),
            next_generation: AtomicU64::new(1),
        }
    }
}

impl Regions {
    /// Registers memory.
    ///
    /// # Errors
    /// It is empty, wraps, or overlaps another region.
    pub fn register(&self, spec: RegionSpec) -> Result<Arc<Region>, RegisterError> {
        let (start, bytes) = (spec.memory.start().as_ptr().addr(), spec.memory.bytes());
        if bytes == 0 {
            return Err(RegisterError::Empty);
        }
        let end = start
            .checked_add(bytes)
            .ok_or(RegisterError::Wraps { start, bytes })?;
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let has_addresses = spec.memory.has_addresses();
        if has_addresses && let Some(other) = table.overlapping(start, end) {
            return Err(RegisterError::Overlap { other });
        }
        let index = match table.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(table.slots.len()).map_err(|_| RegisterError::TooMany)?;
                table.slots.push(TableEntry::default());
                index
            }
        };
        let slot = &mut table.slots[index as usize];
        let region = Arc::new(Region {
            id: RegionId {
                index,
                serial: slot.serial,
            },
            memory: spec.memory,
            rights: spec.rights,
            gate: spec.gate,
            closing: AtomicBool::new(false),
            books: Mutex::new(RegionState {
                generation: self.new_generation(),
                in_flight: 0,
                gone: false,
            }),
            drained: Event::new(),
        });
        slot.region = Some(Arc::clone(&region));
        if has_addresses {
            table.by_start.insert(start, index);
        }
        Ok(region)
    }

    /// The region of an id.
    #[must_use]
    pub fn get(&self, id: RegionId) -> Option<Arc<Region>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table
            .slots
            .get(id.index as usize)
            .filter(|slot| slot.serial == id.serial)?
            .region
            .clone()
    }

    /// The region at an index of the table at present.
    #[must_use]
    pub fn by_index(&self, index: u32) -> Option<Arc<Region>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.slots.get(index as usize)?.region.clone()
    }

    /// The region that holds all of `bytes` bytes from the address `start`; in O(log n).
    #[must_use]
    pub fn find(&self, start: usize, bytes: usize) -> Option<Lookup> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let (first, index) = table.by_start.range(..=start).next_back()?;
        let region = table.slots[*index as usize].region.as_ref()?;
        let offset = start - first;
        let inside = offset.checked_add(bytes)? <= region.memory.bytes();
        inside.then(|| Lookup {
            region: Arc::clone(region),
            offset: offset as u64,
        })
    }

    /// Regions there are.
    #[must_use]
    pub fn len(&self) -> usize {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.slots.len() - table.free.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An access to local memory, by its owner.
    ///
    /// # Errors
    /// The region is gone or closing, or the range is not inside.
    pub fn access(&self, id: RegionId, offset: u64, bytes: u64) -> Result<Access, AccessError> {
        self.get(id)
            .ok_or(AccessError::Gone(id))?
            .access(offset, bytes)
    }

    /// An access to a range for a peer to whom `grant` was granted. Whether the grant covers the range is the caller's to
    /// check.
    ///
    /// # Errors
    /// The region or the extent is gone, closing, or allows less.
    pub fn admit(
        &self,
        grant: &Grant,
        wanted: Rights,
        range: (u64, u64),
    ) -> Result<Access, Refusal> {
        let region = self.by_index(grant.region).ok_or(Refusal::Region)?;
        region.admit(grant, wanted, range)
    }

    /// Waits until no access to a region that [`Region::close`] closed is under way, then gives it a new generation and
    /// opens it again: everything granted before is revoked, and nothing under it can touch a byte any more.
    ///
    /// # Errors
    /// Accesses are still under way at the deadline, or the region was removed meanwhile.
    pub fn reopen(&self, region: &Region, deadline: Instant) -> Result<u64, ReopenError> {
        let mut books = region.drain(deadline)?;
        if books.gone {
            return Err(ReopenError::Gone(region.id));
        }
        books.generation = self.new_generation();
        region.closing.store(false, Ordering::Release);
        Ok(books.generation)
    }

    /// Waits until no access to a closed region is under way, then takes it out of the table.
    ///
    /// # Errors
    /// Accesses are still under way at the deadline; the region stays, closed.
    pub fn remove(&self, region: &Region, deadline: Instant) -> Result<(), StillBusy> {
        region.drain(deadline)?.gone = true;
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let index = region.id.index;
        let slot = &mut table.slots[index as usize];
        if slot.serial != region.id.serial || slot.region.take().is_none() {
            return Ok(());
        }
        slot.serial = slot.serial.wrapping_add(1);
        if region.memory.has_addresses() {
            table
                .by_start
                .remove(&region.memory.start().as_ptr().addr());
        }
        table.free.push(index);
        Ok(())
    }

    /// All regions, for a mover that is added after they were registered.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Region>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table
            .slots
            .iter()
            .filter_map(|slot| slot.region.clone())
            .collect()
    }

    fn new_generation(&self) -> u64 {
        self.next_generation.fetch_add(1, Ordering::Relaxed)
    }
}

impl Table {
    fn overlapping(&self, start: usize, end: usize) -> Option<RegionId> {
        let (_, index) = self.by_start.range(..end).next_back()?;
        let region = self.slots[*index as usize].region.as_ref()?;
        let region_end = region.memory.start().as_ptr().addr() + region.memory.bytes();
        (region_end > start).then_some(region.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> (Regions, Arc<Region>) {
        let regions = Regions::default();
        let memory = Memory::anonymous(4096).unwrap();
        let region = regions
            .register(RegionSpec {
                memory,
                rights: Rights::BOTH,
                gate: None,
            })
            .unwrap();
        (regions, region)
    }

    /// An unregistration had drained its region when an invalidation beside it opened the region again. The
    /// unregistration still took it out of the table, and threads that held it began accesses to memory that its owner
    /// freed.
    #[test]
    fn a_region_that_was_opened_again_is_removed_closed() {
        let (regions, region) = one();
        region.close();
        regions.reopen(&region, Instant::NEVER).unwrap();
        let access = region.access(0, 1).unwrap();
        let busy = StillBusy {
            region: region.id(),
            in_flight: 1,
        };
        assert_eq!(regions.remove(&region, Instant::ZERO), Err(busy));
        assert!(!access.is_live(), "its accesses are told to end");
        drop(access);
        regions.reopen(&region, Instant::NEVER).unwrap();
        regions.remove(&region, Instant::NEVER).unwrap();
        assert_eq!(
            region.access(0, 1).unwrap_err(),
            AccessError::Closing(region.id())
        );
    }

    /// An invalidation that was slower than the unregistration beside it opened a region that was no longer in the table.
    #[test]
    fn a_region_that_is_gone_does_not_open() {
        let (regions, region) = one();
        region.close();
        regions.remove(&region, Instant::NEVER).unwrap();
        assert_eq!(
            regions.reopen(&region, Instant::NEVER),
            Err(ReopenError::Gone(region.id()))
        );
        assert!(region.access(0, 1).is_err() && region.in_flight() == 0);
    }

    /// Two invalidations at once: the slower one found the region drained, and gave out its next generation while an
    /// access under the faster one's was under way.
    #[test]
    fn an_access_that_began_between_two_invalidations_is_waited_for() {
        let (regions, region) = one();
        region.close();
        regions.reopen(&region, Instant::NEVER).unwrap();
        let _access = region.access(0, 1).unwrap();
        let busy = StillBusy {
            region: region.id(),
            in_flight: 1,
        };
        assert_eq!(
            regions.reopen(&region, Instant::ZERO),
            Err(ReopenError::Busy(busy))
        );
    }
}
