//! Registered memory, and the books of who is at it.
//!
//! Every touch of a region's bytes happens under an [`Access`]. The region counts them, so that its owner can wait for
//! the last one before the bytes get another use: never on time alone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use slackwater_base::Instant;
use slackwater_wait::{Event, Site, Waiting};
use slackwater_wire::data::{Refusal, Rights};
use thiserror::Error;

use crate::memory::{Location, Memory};

/// Names a region of this process. Of a region that is gone it names nothing, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId {
    index: u32,
    serial: u32,
}

/// What to register.
#[derive(Debug)]
pub struct RegionSpec {
    /// The memory.
    pub memory: Memory,
    /// The most that peers may ever be granted.
    pub rights: Rights,
}

/// One registered range of memory.
#[derive(Debug)]
pub struct Region {
    id: RegionId,
    memory: Memory,
    rights: Rights,
    /// New accesses are refused and those under way shall end early.
    closing: AtomicBool,
    books: Mutex<Books>,
    /// Notified when the last access ended while the region was closing.
    drained: Event,
}

#[derive(Debug)]
struct Books {
    generation: u64,
    in_flight: u32,
    /// Taken out of the table, or about to be: it never opens again.
    gone: bool,
}

/// All regions of a process.
#[derive(Debug)]
pub struct Regions {
    table: RwLock<Table>,
    /// The generation that is given out next; none is ever given out twice.
    next_generation: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// First address → slot. Ranges do not overlap, so the last one at or before an address is the only candidate.
    by_start: BTreeMap<usize, u32>,
}

#[derive(Debug, Default)]
struct Slot {
    serial: u32,
    region: Option<Arc<Region>>,
}

/// Leave to touch a range of a region, for as long as it lives.
///
/// Two accesses may overlap, also when both write: the bytes are then some mixture, as with any one-sided fabric.
#[derive(Debug)]
pub struct Access {
    region: Arc<Region>,
    offset: u64,
    bytes: u64,
    /// On behalf of a peer, and of which tenant.
    peer: Option<u64>,
}

/// Where an address of this process lies.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// In which region.
    pub region: Arc<Region>,
    /// How far from its start.
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
        /// Whose bytes they are.
        other: RegionId,
    },
    /// No mover reaches memory of this kind.
    #[error("no mover for memory at {0}")]
    Unsupported(Location),
    /// A mover refused it.
    #[error("mover {mover}: {reason}")]
    Mover {
        /// Which.
        mover: &'static str,
        /// Why.
        reason: String,
    },
    /// Every name of a region is in use.
    #[error("too many regions")]
    TooMany,
}

/// Why a local access was not given.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AccessError {
    /// There is no such region, or no more.
    #[error("region {0:?} is gone")]
    Gone(RegionId),
    /// The region is closing.
    #[error("region {0:?} is closing")]
    Closing(RegionId),
    /// The range is not inside.
    #[error("{bytes} bytes at {offset} are not inside a region of {region_bytes}")]
    Range {
        /// First byte.
        offset: u64,
        /// Length.
        bytes: u64,
        /// Length of the region.
        region_bytes: u64,
    },
}

/// The deadline passed with accesses still under way; the region goes on closing.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{in_flight} accesses to region {region:?} are still under way")]
pub struct StillBusy {
    /// Which region.
    pub region: RegionId,
    /// Accesses under way.
    pub in_flight: u32,
}

/// Why a closed region does not open again.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ReopenError {
    /// Somebody is still at it.
    #[error(transparent)]
    Busy(#[from] StillBusy),
    /// It was taken out of the table meanwhile.
    #[error("region {0:?} is gone")]
    Gone(RegionId),
}

static CLOSING: Site = Site::new("region closing");

impl RegionId {
    /// Its place in the table: the name that capabilities carry, together with a generation.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// The id as one number, for faces that can hold no other.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        (self.serial as u64) << 32 | self.index as u64
    }

    /// The id of a number; it may name nothing.
    #[must_use]
    pub const fn from_u64(number: u64) -> Self {
        Self { index: number as u32, serial: (number >> 32) as u32 }
    }
}

impl Default for Regions {
    fn default() -> Self {
        Self { table: RwLock::default(), next_generation: AtomicU64::new(1) }
    }
}

impl Regions {
    /// Takes memory in.
    ///
    /// # Errors
    /// It is empty, wraps, or overlaps another region.
    pub fn register(&self, spec: RegionSpec) -> Result<Arc<Region>, RegisterError> {
        let (start, bytes) = (spec.memory.start().as_ptr().addr(), spec.memory.bytes());
        if bytes == 0 {
            return Err(RegisterError::Empty);
        }
        let end = start.checked_add(bytes).ok_or(RegisterError::Wraps { start, bytes })?;
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = table.overlapping(start, end) {
            return Err(RegisterError::Overlap { other });
        }
        let index = match table.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(table.slots.len()).map_err(|_| RegisterError::TooMany)?;
                table.slots.push(Slot::default());
                index
            }
        };
        let slot = &mut table.slots[index as usize];
        let region = Arc::new(Region {
            id: RegionId { index, serial: slot.serial },
            memory: spec.memory,
            rights: spec.rights,
            closing: AtomicBool::new(false),
            books: Mutex::new(Books { generation: self.new_generation(), in_flight: 0, gone: false }),
            drained: Event::new(),
        });
        slot.region = Some(Arc::clone(&region));
        table.by_start.insert(start, index);
        Ok(region)
    }

    /// The region of an id.
    #[must_use]
    pub fn get(&self, id: RegionId) -> Option<Arc<Region>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.slots.get(id.index as usize).filter(|slot| slot.serial == id.serial)?.region.clone()
    }

    /// The region at a place in the table, whichever it is now.
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
        inside.then(|| Lookup { region: Arc::clone(region), offset: offset as u64 })
    }

    /// Regions there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.read().unwrap_or_else(PoisonError::into_inner).by_start.len()
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
        self.get(id).ok_or(AccessError::Gone(id))?.access(offset, bytes)
    }

    /// An access for a peer under `generation`, by the place of the region in the table.
    ///
    /// # Errors
    /// What does not fit.
    pub fn admit(&self, index: u32, generation: u64, wanted: Rights, range: (u64, u64)) -> Result<Access, Refusal> {
        let region = self.by_index(index).ok_or(Refusal::Region)?;
        if !region.rights.allow(wanted) {
            return Err(Refusal::Rights);
        }
        region.contains(range.0, range.1).map_err(|_| Refusal::Range)?;
        region.begin(Some(generation), range.0, range.1).map_err(|closed| match closed {
            Closed::Closing | Closed::Generation => Refusal::Generation,
        })
    }

    /// Waits until nobody is at a region that [`Region::close`] closed, then gives it a new generation and opens it
    /// again: everything granted before is void, and nothing under it can touch a byte any more.
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

    /// Waits until nobody is at a closed region, then takes it out of the table.
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
        table.by_start.remove(&region.memory.start().as_ptr().addr());
        table.free.push(index);
        Ok(())
    }

    /// All regions, for a mover that comes later than they did.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Region>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.slots.iter().filter_map(|slot| slot.region.clone()).collect()
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

/// Why an access did not begin.
enum Closed {
    Closing,
    Generation,
}

impl Region {
    /// Its name in this process.
    #[must_use]
    pub fn id(&self) -> RegionId {
        self.id
    }

    /// Its memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.bytes() as u64
    }

    /// The most that peers may be granted.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The present use of its bytes.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.books().generation
    }

    /// Accesses under way.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.books().in_flight
    }

    /// Whether it takes no new accesses.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Refuses new accesses from now on. Movers that hear of it let go of those under way.
    pub fn close(&self) {
        // Under the lock, so that no access that looked before begins after.
        let _books = self.books();
        self.closing.store(true, Ordering::Release);
    }

    /// An access by the owner.
    ///
    /// # Errors
    /// The region is closing, or the range is not inside.
    pub fn access(self: &Arc<Self>, offset: u64, bytes: u64) -> Result<Access, AccessError> {
        self.contains(offset, bytes)?;
        self.begin(None, offset, bytes).map_err(|_| AccessError::Closing(self.id))
    }

    fn contains(&self, offset: u64, bytes: u64) -> Result<(), AccessError> {
        let region_bytes = self.bytes();
        match offset.checked_add(bytes) {
            Some(end) if end <= region_bytes => Ok(()),
            _ => Err(AccessError::Range { offset, bytes, region_bytes }),
        }
    }

    fn begin(self: &Arc<Self>, generation: Option<u64>, offset: u64, bytes: u64) -> Result<Access, Closed> {
        let mut books = self.books();
        if self.is_closing() {
            return Err(Closed::Closing);
        }
        if generation.is_some_and(|named| named != books.generation) {
            return Err(Closed::Generation);
        }
        books.in_flight += 1;
        Ok(Access { region: Arc::clone(self), offset, bytes, peer: None })
    }

    fn end(&self) {
        let mut books = self.books();
        books.in_flight -= 1;
        let drained = books.in_flight == 0 && self.is_closing();
        drop(books);
        if drained {
            self.drained.notify_all();
        }
    }

    /// Waits until nobody is at a closed region. Until the books are let go of, nobody begins.
    fn drain(&self, deadline: Instant) -> Result<MutexGuard<'_, Books>, StillBusy> {
        loop {
            let seen = self.drained.seen();
            let books = self.books();
            // Another invalidation may have opened it again since it was closed.
            self.closing.store(true, Ordering::Release);
            let in_flight = books.in_flight;
            if in_flight == 0 {
                return Ok(books);
            }
            drop(books);
            if self.drained.wait(seen, &Waiting::at(&CLOSING).until(deadline)).is_err() && self.in_flight() > 0 {
                return Err(StillBusy { region: self.id, in_flight: self.in_flight() });
            }
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Access {
    /// The same on behalf of a peer, for a tenant.
    #[must_use]
    pub(crate) fn for_peer(self, tenant: u64) -> Self {
        let mut access = self;
        access.peer = Some(tenant);
        access
    }

    /// Whether it is on behalf of a peer.
    #[must_use]
    pub fn is_for_peer(&self) -> bool {
        self.peer.is_some()
    }

    /// On whose behalf it is, as the capability says; 0 for the owner itself.
    #[must_use]
    pub fn tenant(&self) -> u64 {
        self.peer.unwrap_or(0)
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// First byte of the access, from the start of the region.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of the access.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Address of its first byte. Valid as long as the access lives, for whatever the region's location says.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        // Inside the region, as checked when the access began; one past its end at most.
        self.region.memory.start().as_ptr().wrapping_add(self.offset as usize)
    }

    /// Whether what is done under it still counts. A mover looks again before it commits and whenever it goes on, and
    /// lets go of the access when it does not.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.region.is_closing()
    }

    /// Copies from host memory into the region.
    ///
    /// # Panics
    /// The range is not inside the access, or the region is not host memory.
    pub fn copy_in(&self, offset: u64, from: &[u8]) {
        self.check_copy(offset, from.len());
        // SAFETY: the range is inside the access, so inside memory valid for writes while the access lives; a borrowed
        // slice cannot overlap it, as nobody holds references to registered memory.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.start().add(offset as usize), from.len()) }
    }

    /// Copies from the region into host memory.
    ///
    /// # Panics
    /// The range is not inside the access, or the region is not host memory.
    pub fn copy_out(&self, offset: u64, into: &mut [u8]) {
        self.check_copy(offset, into.len());
        // SAFETY: as for `copy_in`, for reads.
        unsafe { std::ptr::copy_nonoverlapping(self.start().add(offset as usize), into.as_mut_ptr(), into.len()) }
    }

    fn check_copy(&self, offset: u64, bytes: usize) {
        assert!(self.region.memory.location().is_host(), "the CPU cannot reach {}", self.region.memory.location());
        let inside = offset.checked_add(bytes as u64).is_some_and(|end| end <= self.bytes);
        assert!(inside, "{bytes} bytes at {offset} are not inside an access of {}", self.bytes);
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        self.region.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> (Regions, Arc<Region>) {
        let regions = Regions::default();
        let memory = Memory::anonymous(4096).unwrap();
        let region = regions.register(RegionSpec { memory, rights: Rights::BOTH }).unwrap();
        (regions, region)
    }

    /// An unregistration had drained its region when an invalidation beside it opened the region again. It took the
    /// region out of the table all the same, and whoever still held it began accesses to memory that its owner freed.
    #[test]
    fn a_region_that_was_opened_again_is_removed_closed() {
        let (regions, region) = one();
        region.close();
        regions.reopen(&region, Instant::NEVER).unwrap();
        let access = region.access(0, 1).unwrap();
        let busy = StillBusy { region: region.id(), in_flight: 1 };
        assert_eq!(regions.remove(&region, Instant::ZERO), Err(busy));
        assert!(!access.is_live(), "whoever is at it is told to let go");
        drop(access);
        regions.reopen(&region, Instant::NEVER).unwrap();
        regions.remove(&region, Instant::NEVER).unwrap();
        assert_eq!(region.access(0, 1).unwrap_err(), AccessError::Closing(region.id()));
    }

    /// An invalidation that was slower than the unregistration beside it opened a region that was no longer in the table.
    #[test]
    fn a_region_that_is_gone_does_not_open() {
        let (regions, region) = one();
        region.close();
        regions.remove(&region, Instant::NEVER).unwrap();
        assert_eq!(regions.reopen(&region, Instant::NEVER), Err(ReopenError::Gone(region.id())));
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
        let busy = StillBusy { region: region.id(), in_flight: 1 };
        assert_eq!(regions.reopen(&region, Instant::ZERO), Err(ReopenError::Busy(busy)));
    }
}
