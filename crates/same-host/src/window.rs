use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::link::{Link, WindowError};
use super::message::{ENTRY_REGION, Entry};
use super::page::{Mark, Stale};
use super::process::Process;
use slackwater_engine::GenerationTable;
use slackwater_memory::Mapping;
use slackwater_wire::data::Grant;

/// A slot of the owner's page that this process was given. The owner is told when it is dropped.
#[derive(Debug)]
pub(crate) struct WindowSlot {
    link: Arc<Link>,
    slot: u32,
    epoch: u32,
}

/// Memory of the peer that this process may reach.
#[derive(Debug)]
pub(crate) struct OpenWindow {
    // Declared first and so dropped first: the owner is told of the end before the memory is unmapped, so memory that
    // the owner assumes to be mapped here is.
    slot: WindowSlot,
    at: WindowMemory,
    len: u64,
    /// Of a window on all of a region: which of its extents are dead.
    generations: Option<GenerationTable>,
}

#[derive(Debug)]
enum WindowMemory {
    Shared { memory: Arc<Mapping>, offset: usize },
    Process { address: u64 },
}

/// How bytes of a window are reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach<'a> {
    /// By this address.
    Mapped(*mut u8),
    /// In that process, at that address.
    Process(&'a Process, u64),
}

impl WindowSlot {
    /// The slot is one of the link's page.
    pub(crate) fn new(link: &Arc<Link>, slot: u32, epoch: u32) -> Self {
        Self {
            link: Arc::clone(link),
            slot,
            epoch,
        }
    }
}

impl Drop for WindowSlot {
    fn drop(&mut self) {
        self.link.detach(self.slot, self.epoch);
    }
}

impl OpenWindow {
    /// A window of `len` bytes of shared memory from `offset`, all of which it has.
    pub(crate) fn in_shared(
        slot: WindowSlot,
        memory: Arc<Mapping>,
        offset: usize,
        len: u64,
    ) -> Self {
        Self {
            slot,
            at: WindowMemory::Shared { memory, offset },
            len,
            generations: None,
        }
    }

    /// A window of `len` bytes of the owner's own memory from `address`, which do not wrap.
    pub(crate) fn in_process(slot: WindowSlot, address: u64, len: u64) -> Self {
        Self {
            slot,
            at: WindowMemory::Process { address },
            len,
            generations: None,
        }
    }

    /// The same, on all of a region if there are generations of its extents.
    pub(crate) fn on_region(self, generations: Option<GenerationTable>) -> Self {
        Self {
            generations,
            ..self
        }
    }

    /// Whether it is on all of a region, and so for all capabilities to read there.
    pub(crate) fn is_on_region(&self) -> bool {
        self.generations.is_some()
    }

    /// Where in the window the byte at this offset of the region is, which a capability grants.
    pub(crate) fn position(&self, offset: u64, granted: &Grant) -> u64 {
        match self.is_on_region() {
            true => offset,
            false => offset - granted.offset,
        }
    }

    /// Whether the extent of a capability is in the use that is meant, as far as the window itself does not say it. What was
    /// read of it before counts, if it is.
    pub(crate) fn is_live(&self, granted: &Grant) -> bool {
        let live = |table: &GenerationTable| table.is_live(granted.offset, granted.generation);
        self.generations.as_ref().is_none_or(live)
    }

    /// The memory that is mapped for it.
    pub(crate) fn memory(&self) -> Option<&Arc<Mapping>> {
        match &self.at {
            WindowMemory::Shared { memory, .. } => Some(memory),
            WindowMemory::Process { .. } => None,
        }
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.slot.link
    }

    /// Announces a copy.
    pub(crate) fn mark(&self) -> Result<Mark<'_>, Stale> {
        self.slot.link.page().mark(self.slot.slot, self.slot.epoch)
    }

    /// Whether the owner has taken the window back.
    pub(crate) fn is_over(&self) -> bool {
        self.slot.link.page().epoch(self.slot.slot) != self.slot.epoch
    }

    /// Whether its owner lets this process write there. A write through a mapping for reading would end the process.
    pub(crate) fn is_writable(&self) -> bool {
        match &self.at {
            WindowMemory::Shared { memory, .. } => memory.is_writable(),
            WindowMemory::Process { .. } => true,
        }
    }

    /// How `len` bytes from `offset` are reached; `None` where the window ends before them.
    pub(crate) fn reach(&self, offset: u64, len: u64) -> Option<Reach<'_>> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        match &self.at {
            WindowMemory::Shared {
                memory,
                offset: start,
            } => {
                // SAFETY: the window was found to lie within the memory, and the bytes to lie within the window.
                Some(Reach::Mapped(unsafe {
                    memory.start().as_ptr().add(start + offset as usize)
                }))
            }
            WindowMemory::Process { address } => Some(Reach::Process(
                self.slot.link.process().ok()?,
                address + offset,
            )),
        }
    }
}

/// The generations of the extents of a region, where an entry is on all of one.
pub(super) fn generations(
    entry: &Entry,
    descriptors: &mut impl Iterator<Item = OwnedFd>,
) -> Result<Option<GenerationTable>, WindowError> {
    if entry.flags.get() & ENTRY_REGION == 0 {
        return Ok(None);
    }
    let passed = descriptors.next().ok_or(WindowError::Garbled)?;
    let (granule, granules) = (entry.granule.get(), entry.granules.get());
    Ok(Some(GenerationTable::open(passed, granule, granules)?))
}
