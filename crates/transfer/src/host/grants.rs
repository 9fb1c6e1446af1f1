use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fd::BorrowedFd;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::memory::SharedMemory;
use super::message::{Attached, Detach, ENTRY_DESCRIPTOR, ENTRY_SHARED, Entry};
use super::page::ControlPage;

/// Who knows what a capability opens: the owner of the memory.
pub trait Authority: Send + Sync {
    /// Checks a capability as it came from a peer, and says which memory it opens.
    ///
    /// Called on the thread that serves all peers, so it must not block.
    ///
    /// # Errors
    /// It opens nothing; a number other than 0 that the authority's counterpart at the initiator understands.
    /// [`NO_SLOT`] is taken.
    fn admit(&self, capability: &[u8]) -> Result<Window, u32>;
}

/// Every slot of the control page is in use: the initiator has to forget a window first.
pub const NO_SLOT: u32 = u32::MAX;

/// Memory that a capability opens.
#[derive(Clone, Debug)]
pub struct Window {
    /// What it is fenced by: together with the range, as the authority counts them.
    pub region: u64,
    /// First byte from the start of the region.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Where the first byte is.
    pub at: At,
}

/// Where a window begins.
#[derive(Clone, Debug)]
pub enum At {
    /// So many bytes into shared memory.
    Shared {
        /// The memory.
        memory: Arc<SharedMemory>,
        /// The first byte.
        offset: u64,
    },
    /// At this address of the owner's process.
    Own {
        /// The address of the first byte.
        address: u64,
    },
}

/// What one peer may reach at present: the owner's side of its control page.
#[derive(Debug)]
pub(crate) struct Grants {
    page: Arc<ControlPage>,
    slots: Vec<Option<Granted>>,
    free: Vec<u32>,
    lent: BTreeMap<u64, Lent>,
}

#[derive(Debug)]
struct Granted {
    region: u64,
    start: u64,
    len: u64,
    memory: Option<u64>,
    /// Nothing can begin under it; it ends when nothing is in flight.
    revoked: bool,
}

/// A memory that the peer has mapped, as far as this side knows, and by how many windows.
#[derive(Debug)]
struct Lent {
    memory: Arc<SharedMemory>,
    windows: u32,
}

/// One window under revocation.
#[derive(Clone, Debug)]
pub(crate) struct Revoked {
    pub(crate) page: Arc<ControlPage>,
    pub(crate) slot: u32,
    epoch: u32,
}

impl Grants {
    pub(crate) fn new(page: Arc<ControlPage>) -> Self {
        let slots = page.slots();
        Self { page, slots: (0..slots).map(|_| None).collect(), free: (0..slots).rev().collect(), lent: BTreeMap::new() }
    }

    pub(crate) fn page(&self) -> &Arc<ControlPage> {
        &self.page
    }

    /// The windows in force.
    pub(crate) fn windows(&self) -> usize {
        self.slots.iter().flatten().filter(|granted| !granted.revoked).count()
    }

    /// Forgets windows as the peer asks. What is still in flight, against the protocol, keeps its slot until it ends.
    pub(crate) fn detach(&mut self, detached: &[Detach]) {
        for detach in detached {
            let slot = detach.slot.get();
            let named = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
            if let Some(granted) = named
                && !granted.revoked
                && self.page.epoch(slot) == detach.epoch.get()
            {
                granted.revoked = true;
                self.page.revoke(slot);
                self.release_if_idle(slot);
            }
        }
    }

    /// Grants a window and tells of it; says whether the descriptor of its memory has to come with the answer.
    pub(crate) fn grant(&mut self, window: &Window) -> (Entry, Option<Arc<SharedMemory>>) {
        let mut entry = Entry::new_zeroed();
        let Some(slot) = self.take_slot() else {
            entry.refused = U32::new(NO_SLOT);
            return (entry, None);
        };
        entry.slot = U32::new(slot);
        entry.epoch = U32::new(self.page.epoch(slot));
        entry.len = U64::new(window.len);
        let (mut id, mut passed) = (None, None);
        match &window.at {
            At::Own { address } => entry.start = U64::new(*address),
            At::Shared { memory, offset } => {
                let memory_id = Arc::as_ptr(memory).addr() as u64;
                let lent = self.lent.entry(memory_id).or_insert_with(|| {
                    passed = Some(Arc::clone(memory));
                    Lent { memory: Arc::clone(memory), windows: 0 }
                });
                lent.windows += 1;
                let descriptor = if passed.is_some() { ENTRY_DESCRIPTOR } else { 0 };
                entry.flags = U32::new(ENTRY_SHARED | descriptor);
                entry.memory = U64::new(memory_id);
                entry.memory_len = U64::new(lent.memory.len() as u64);
                entry.start = U64::new(*offset);
                id = Some(memory_id);
            }
        }
        let Window { region, start, len, .. } = *window;
        self.slots[slot as usize] = Some(Granted { region, start, len, memory: id, revoked: false });
        (entry, passed)
    }

    /// From now on nothing can begin on these bytes under what was granted. Whatever may be in flight is named.
    pub(crate) fn revoke(&mut self, region: u64, start: u64, len: u64) -> Vec<Revoked> {
        let mut revoked = Vec::new();
        for (slot, granted) in (0u32..).zip(&mut self.slots) {
            let Some(granted) = granted else { continue };
            let apart = granted.start.saturating_add(granted.len) <= start || start.saturating_add(len) <= granted.start;
            if granted.region != region || apart {
                continue;
            }
            if !granted.revoked {
                granted.revoked = true;
                self.page.revoke(slot);
            }
            revoked.push(Revoked { page: Arc::clone(&self.page), slot, epoch: self.page.epoch(slot) });
        }
        revoked
    }

    /// Takes the slot of a window back, unless somebody else has done so.
    pub(crate) fn release(&mut self, revoked: &Revoked) {
        if self.page.epoch(revoked.slot) == revoked.epoch {
            self.release_if_idle(revoked.slot);
        }
    }

    fn release_if_idle(&mut self, slot: u32) {
        let over = self.slots[slot as usize].as_ref().is_some_and(|granted| granted.revoked) && !self.page.is_busy(slot);
        if !over {
            return;
        }
        if let Some(memory) = self.slots[slot as usize].take().and_then(|granted| granted.memory)
            && let Some(lent) = self.lent.get_mut(&memory)
        {
            lent.windows -= 1;
            if lent.windows == 0 {
                self.lent.remove(&memory);
            }
        }
        if !self.page.is_worn(slot) {
            self.free.push(slot);
        }
    }

    fn take_slot(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            // What was detached while still in flight may have ended by now.
            (0..self.page.slots()).for_each(|slot| self.release_if_idle(slot));
        }
        self.free.pop()
    }
}

/// The answer to a question: its bytes, and the memories whose descriptors go with it.
pub(crate) struct Answer {
    pub(crate) bytes: Vec<u8>,
    memories: Vec<Arc<SharedMemory>>,
}

impl Answer {
    pub(crate) fn new(question: U64, attached: usize) -> Self {
        let head = Attached { question, attached: U32::new(attached as u32), reserved: U32::ZERO };
        Self { bytes: head.as_bytes().to_vec(), memories: Vec::new() }
    }

    pub(crate) fn push(&mut self, (entry, memory): (Entry, Option<Arc<SharedMemory>>)) {
        self.bytes.extend_from_slice(entry.as_bytes());
        self.memories.extend(memory);
    }

    pub(crate) fn refuse(&mut self, reason: u32) {
        let mut entry = Entry::new_zeroed();
        entry.refused = U32::new(reason);
        self.bytes.extend_from_slice(entry.as_bytes());
    }

    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.memories.iter().map(AsFd::as_fd).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(slots: u32) -> (Grants, Arc<ControlPage>) {
        let page = Arc::new(ControlPage::create(slots).unwrap());
        let peer = ControlPage::open(page.as_fd().try_clone_to_owned().unwrap(), slots).unwrap();
        (Grants::new(page), Arc::new(peer))
    }

    fn own(start: u64, len: u64) -> Window {
        Window { region: 1, start, len, at: At::Own { address: 0x1000 + start } }
    }

    #[test]
    fn a_revocation_meets_what_it_overlaps_and_nothing_else() {
        let (mut grants, peer) = grants(4);
        let entries = [own(0, 100), own(100, 100), own(250, 50)].map(|window| grants.grant(&window).0);
        let revoked: Vec<u32> = grants.revoke(1, 150, 100).iter().map(|revoked| revoked.slot).collect();
        assert_eq!(revoked, [entries[1].slot.get()]);
        assert!(grants.revoke(2, 0, 1000).is_empty(), "another region");
        let begins = entries.map(|entry| peer.mark(entry.slot.get(), entry.epoch.get()).is_ok());
        assert_eq!(begins, [true, false, true]);
    }

    #[test]
    fn a_slot_is_taken_back_once_nothing_is_in_flight() {
        let (mut grants, peer) = grants(1);
        let entry = grants.grant(&own(0, 10)).0;
        let (slot, epoch) = (entry.slot.get(), entry.epoch.get());
        let mark = peer.mark(slot, epoch).unwrap();
        grants.detach(&[Detach { slot: U32::new(slot), epoch: U32::new(epoch) }]);
        assert_eq!(grants.grant(&own(0, 10)).0.refused.get(), NO_SLOT);
        drop(mark);
        let again = grants.grant(&own(0, 10)).0;
        assert_eq!((again.refused.get(), again.slot.get()), (0, slot));
        assert_ne!(again.epoch.get(), epoch);
        // A late word about the window before, and a revocation that was under way, do not hit the one after.
        grants.detach(&[Detach { slot: U32::new(slot), epoch: U32::new(epoch) }]);
        grants.release(&Revoked { page: Arc::clone(grants.page()), slot, epoch });
        assert_eq!(grants.windows(), 1);
    }

    #[test]
    fn a_memory_is_passed_once_as_long_as_the_peer_has_a_window_on_it() {
        let (mut grants, _peer) = grants(4);
        let memory = Arc::new(SharedMemory::create(4096).unwrap());
        let window = |start| Window { region: 1, start, len: 8, at: At::Shared { memory: Arc::clone(&memory), offset: start } };
        let mut passed = Vec::new();
        let entries = [0, 8].map(|start| {
            let (entry, memory) = grants.grant(&window(start));
            passed.push(memory.is_some());
            entry
        });
        assert_eq!(passed, [true, false]);
        for entry in entries {
            grants.detach(&[Detach { slot: entry.slot, epoch: entry.epoch }]);
        }
        assert_eq!(Arc::strong_count(&memory), 1, "nothing keeps memory that nobody has a window on");
        assert!(grants.grant(&window(0)).1.is_some());
    }

    #[test]
    fn slots_that_no_peer_can_name_are_ignored() {
        let (mut grants, _peer) = grants(1);
        grants.detach(&[Detach { slot: U32::new(9), epoch: U32::new(0) }, Detach { slot: U32::new(0), epoch: U32::new(0) }]);
        assert_eq!(grants.windows(), 0);
    }
}
