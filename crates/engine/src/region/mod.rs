//! Registered memory, and the count of accesses to it.
//!
//! Every read or write of a region's bytes happens under an [`Access`]. The region counts them, so that its owner can
//! wait for the last one before the bytes are reused: never on time alone.

mod gate;
mod generations;
mod table;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_base::Instant;
use slackwater_wait::{Event, Site, Waiting};
use slackwater_wire::data::{Grant, Refusal, Rights};
use thiserror::Error;

pub use gate::{Extent, Gate, GateAccess, Revocation};
pub use generations::GenerationTable;
pub use table::{Lookup, RegionSpec, Regions, RegisterError};

use crate::memory::Memory;

/// Names a region of this process. After the region is removed it names nothing, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId {
    index: u32,
    serial: u32,
}

/// One registered range of memory.
#[derive(Debug)]
pub struct Region {
    id: RegionId,
    memory: Memory,
    rights: Rights,
    /// Decides about the extents, if they have generations of their own.
    gate: Option<Arc<dyn Gate>>,
    /// New accesses are refused, and those under way shall end early.
    closing: AtomicBool,
    books: Mutex<RegionState>,
    /// Notified when the last access ended while the region was closing.
    drained: Event,
}

#[derive(Debug)]
struct RegionState {
    generation: u64,
    in_flight: u32,
    /// Removed from the table, or about to be: it never opens again.
    gone: bool,
}

/// The right to touch a range of a region, for as long as it lives.
///
/// Two accesses may overlap, also when both write: the bytes are then some mixture, as with any one-sided fabric.
#[derive(Debug)]
pub struct Access {
    region: Arc<Region>,
    offset: u64,
    bytes: u64,
    /// What a peer was granted that it is for; none for the owner.
    peer: Option<PeerRight>,
    /// Where the region has a gate, the extent that the peer was granted, and the gate's number for this access.
    admitted: Option<(Extent, GateAccess)>,
}

/// What the capability of an admitted access says that may end before the access does.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerRight {
    /// Of reads, writes or both.
    pub rights: Rights,
    /// The tenant that it was granted to.
    pub tenant: u64,
    /// By the clock of this process.
    pub expires_nanos: u64,
    /// How often the key of capabilities had been changed.
    pub rotations: u64,
    /// It is of the previous key, which is admitted for a while only.
    pub outdated: bool,
}

/// Why a local access was not given.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AccessError {
    /// There is no such region, or it was removed.
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
    /// The region that stays closed.
    pub region: RegionId,
    /// Accesses under way.
    pub in_flight: u32,
}

/// Why a closed region does not open again.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ReopenError {
    /// Accesses to it are still under way.
    #[error(transparent)]
    Busy(#[from] StillBusy),
    /// It was removed meanwhile.
    #[error("region {0:?} is gone")]
    Gone(RegionId),
}

pub(crate) static CLOSING: Site = Site::new("region closing");

impl RegionId {
    /// Its index in the table: capabilities name it by this index and a generation.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// The id as one number, for language bindings that can hold no other form.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        (self.serial as u64) << 32 | self.index as u64
    }

    /// The id with this number; it may name nothing.
    #[must_use]
    pub const fn from_u64(number: u64) -> Self {
        Self {
            index: number as u32,
            serial: (number >> 32) as u32,
        }
    }
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

    /// Whether its extents have generations of their own.
    #[must_use]
    pub fn is_gated(&self) -> bool {
        self.gate.is_some()
    }

    /// The generations of its extents, where readers of this host may look at them.
    pub fn generations(&self) -> Option<&GenerationTable> {
        self.gate.as_ref()?.generations()
    }

    /// The generation: which use of its bytes this is. Of no meaning where a gate decides about each extent.
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

    /// Refuses new accesses from now on. Movers that are told release those under way.
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
        self.begin(None, offset, bytes)
            .map_err(|_| AccessError::Closing(self.id))
    }

    /// An access to a range by a peer that was granted it.
    fn admit(
        self: &Arc<Self>,
        grant: &Grant,
        wanted: Rights,
        (offset, bytes): (u64, u64),
    ) -> Result<Access, Refusal> {
        if !self.rights.allow(wanted) {
            return Err(Refusal::Rights);
        }
        self.contains(offset, bytes).map_err(|_| Refusal::Range)?;
        let Some(gate) = &self.gate else {
            return self.begin(Some(grant.generation), offset, bytes);
        };
        let mut access = self.begin(None, offset, bytes)?;
        let extent = Extent::of(grant);
        access.admitted = Some((extent, gate.begin(extent, wanted)?));
        Ok(access)
    }

    fn contains(&self, offset: u64, bytes: u64) -> Result<(), AccessError> {
        let region_bytes = self.bytes();
        match offset.checked_add(bytes) {
            Some(end) if end <= region_bytes => Ok(()),
            _ => Err(AccessError::Range {
                offset,
                bytes,
                region_bytes,
            }),
        }
    }

    fn begin(
        self: &Arc<Self>,
        generation: Option<u64>,
        offset: u64,
        bytes: u64,
    ) -> Result<Access, Refusal> {
        let mut books = self.books();
        if self.is_closing() || generation.is_some_and(|named| named != books.generation) {
            return Err(Refusal::Generation);
        }
        books.in_flight += 1;
        Ok(Access {
            region: Arc::clone(self),
            offset,
            bytes,
            peer: None,
            admitted: None,
        })
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

    /// Waits until no access to a closed region is under way. None begins while the result is held.
    fn drain(&self, deadline: Instant) -> Result<MutexGuard<'_, RegionState>, StillBusy> {
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
            if self
                .drained
                .wait(seen, &Waiting::at(&CLOSING).until(deadline))
                .is_err()
                && self.in_flight() > 0
            {
                return Err(StillBusy {
                    region: self.id,
                    in_flight: self.in_flight(),
                });
            }
        }
    }

    fn books(&self) -> MutexGuard<'_, RegionState> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Access {
    /// The same on behalf of a peer.
    #[must_use]
    pub fn for_peer(self, right: PeerRight) -> Self {
        let mut access = self;
        access.peer = Some(right);
        access
    }

    /// What the peer was granted that it is for.
    pub fn peer(&self) -> Option<&PeerRight> {
        self.peer.as_ref()
    }

    /// Whether it is on behalf of a peer.
    #[must_use]
    pub fn is_for_peer(&self) -> bool {
        self.peer.is_some()
    }

    /// The extent of a gated region that its peer was granted.
    #[must_use]
    pub fn extent(&self) -> Option<Extent> {
        self.admitted.map(|(extent, _)| extent)
    }

    /// The tenant on whose behalf it is, as the capability says; 0 for the owner itself.
    #[must_use]
    pub fn tenant(&self) -> u64 {
        self.peer.map_or(0, |right| right.tenant)
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
    #[inline]
    pub fn start(&self) -> *mut u8 {
        // Inside the region, as checked when the access began; one past its end at most.
        self.region
            .memory
            .start()
            .as_ptr()
            .wrapping_add(self.offset as usize)
    }

    /// Whether what is done under it still counts. A mover checks it whenever it goes on and before it commits, and
    /// drops the access when it does not.
    #[must_use]
    #[inline]
    pub fn is_live(&self) -> bool {
        let admits = |(gate, (_, admitted)): (&Arc<dyn Gate>, _)| gate.is_live(admitted);
        !self.region.is_closing()
            && self
                .region
                .gate
                .as_ref()
                .zip(self.admitted)
                .is_none_or(admits)
    }

    /// Copies from host memory into the region.
    ///
    /// # Panics
    /// The range is not inside the access, or the region is not host memory.
    pub fn copy_in(&self, offset: u64, from: &[u8]) {
        self.check_copy(offset, from.len());
        // SAFETY: the range is inside the access, so inside memory valid for writes while the access lives; a borrowed
        // slice cannot overlap it, as nobody holds references to registered memory.
        unsafe {
            std::ptr::copy_nonoverlapping(
                from.as_ptr(),
                self.start().add(offset as usize),
                from.len(),
            )
        }
    }

    /// Copies from the region into host memory.
    ///
    /// # Panics
    /// The range is not inside the access, or the region is not host memory.
    pub fn copy_out(&self, offset: u64, into: &mut [u8]) {
        self.check_copy(offset, into.len());
        // SAFETY: as for `copy_in`, for reads.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.start().add(offset as usize),
                into.as_mut_ptr(),
                into.len(),
            )
        }
    }

    fn check_copy(&self, offset: u64, bytes: usize) {
        assert!(
            self.region.memory.location().is_host(),
            "the CPU cannot reach {}",
            self.region.memory.location()
        );
        let inside = offset
            .checked_add(bytes as u64)
            .is_some_and(|end| end <= self.bytes);
        assert!(
            inside,
            "{bytes} bytes at {offset} are not inside an access of {}",
            self.bytes
        );
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        if let Some((gate, (_, admitted))) = self.region.gate.as_ref().zip(self.admitted) {
            gate.end(admitted);
        }
        // Only now: the thread that unregisters the region waits for this, and may drop what the gate belongs to.
        self.region.end();
    }
}
