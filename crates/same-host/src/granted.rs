use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fd::BorrowedFd;
use rustix::fs::fstat;
use slackwater_engine::{Access, RegionId};
use slackwater_memory::read_only;
use slackwater_wire::data::{Refusal, Rights};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::message::{
    Attached, BEFORE, Detach, ENTRY_DESCRIPTOR, ENTRY_REGION, ENTRY_SHARED, Entry, NO_SLOT,
    NOT_HERE,
};
use super::page::ControlPage;

/// The windows that one peer has: the owner's side of its control page.
#[derive(Debug)]
pub(crate) struct GrantedWindows {
    page: Arc<ControlPage>,
    slots: Vec<Option<GrantedWindow>>,
    free: Vec<u32>,
    lent: BTreeMap<u64, LentMemory>,
}

#[derive(Debug)]
struct GrantedWindow {
    /// Held while the peer may be copying: the region's owner waits for its end.
    access: Access,
    memory: Option<u64>,
    /// No copy can begin under it; it is released when none is in flight.
    revoked: bool,
    /// A thread waits for that.
    awaited: bool,
}

/// A shared memory that the peer has mapped, as far as this side knows, and the number of windows on it.
#[derive(Debug)]
struct LentMemory {
    #[expect(
        dead_code,
        reason = "held so that no other file gets its address, which is its name here"
    )]
    fd: Arc<OwnedFd>,
    windows: u32,
}

/// One revoked window on which a copy is in flight.
#[derive(Clone, Debug)]
pub(crate) struct Revoked {
    pub(crate) page: Arc<ControlPage>,
    pub(crate) slot: u32,
    epoch: u32,
}

impl GrantedWindows {
    pub(crate) fn new(page: Arc<ControlPage>) -> Self {
        let slots = page.slots();
        Self {
            page,
            slots: (0..slots).map(|_| None).collect(),
            free: (0..slots).rev().collect(),
            lent: BTreeMap::new(),
        }
    }

    pub(crate) fn page(&self) -> &Arc<ControlPage> {
        &self.page
    }

    /// The windows in force.
    pub(crate) fn windows(&self) -> usize {
        self.slots
            .iter()
            .flatten()
            .filter(|granted| !granted.revoked)
            .count()
    }

    /// Releases windows as the peer asks. A window on which a copy is in flight, against the protocol, keeps its slot
    /// until the copy ends.
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

    /// Opens a window for a peer whose capability was admitted: on all of the region where readers see for themselves
    /// which extents are dead, otherwise on what it grants.
    pub(crate) fn open(&mut self, access: Access, answer: &mut Answer) {
        let reads = |access: &Access| {
            let right = access.peer().copied();
            right.filter(|right| !right.outdated && !right.rights.allow(Rights::WRITE))
        };
        let region = Arc::clone(access.region());
        let (Some(right), Some(table)) = (reads(&access), region.generations()) else {
            let (entry, memory) = self.grant(access);
            return answer.push(&entry, memory);
        };
        if answer.regions.contains(&region.id()) {
            return answer.refuse(BEFORE);
        }
        let whole = region.access(0, region.bytes());
        let (Ok(whole), Ok(dead)) = (whole, table.descriptor()) else {
            let (entry, memory) = self.grant(access);
            return answer.push(&entry, memory);
        };
        let (mut entry, memory) = self.grant(whole.for_peer(right));
        if entry.refused.get() != 0 {
            return answer.push(&entry, memory);
        }
        entry.flags |= U32::new(ENTRY_REGION);
        entry.granule = U64::new(table.granule());
        entry.granules = U64::new(table.granules());
        answer.push(&entry, memory);
        answer.memories.push(dead);
        answer.regions.push(region.id());
    }

    /// Opens a window on `access`; returns the entry for the answer, and the descriptor that has to be sent with it.
    pub(crate) fn grant(&mut self, access: Access) -> (Entry, Option<Arc<OwnedFd>>) {
        let mut entry = Entry::new_zeroed();
        let region = access.region();
        // A right of the previous key ends at a time that the initiator does not know, so each use has to be asked for.
        let outdated = access.peer().is_some_and(|right| right.outdated);
        if outdated || !region.memory().location().is_host() {
            entry.refused = U32::new(NOT_HERE);
            return (entry, None);
        }
        let file = region.memory().file().cloned();
        let file_len = match file.as_ref().map(|file| fstat(&file.fd)) {
            Some(Err(_)) => {
                entry.refused = U32::new(Refusal::Memory.number().into());
                return (entry, None);
            }
            Some(Ok(stat)) => stat.st_size.unsigned_abs(),
            None => 0,
        };
        let writable = access
            .peer()
            .is_none_or(|right| right.rights.allow(Rights::WRITE));
        // Without a descriptor for reading alone the memory is read as that of another process is.
        let shared = file.and_then(|file| Some((self.name(&file.fd, writable)?, file)));
        let Some(slot) = self.take_slot() else {
            entry.refused = U32::new(NO_SLOT);
            return (entry, None);
        };
        entry.slot = U32::new(slot);
        entry.epoch = U32::new(self.page.epoch(slot));
        entry.len = U64::new(access.bytes());
        let (mut memory, mut passed) = (None, None);
        if let Some(((id, unknown), file)) = shared {
            passed = unknown;
            let lent = self.lent.entry(id).or_insert_with(|| LentMemory {
                fd: Arc::clone(&file.fd),
                windows: 0,
            });
            lent.windows += 1;
            entry.flags = U32::new(
                ENTRY_SHARED
                    | if passed.is_some() {
                        ENTRY_DESCRIPTOR
                    } else {
                        0
                    },
            );
            entry.memory = U64::new(id);
            entry.memory_len = U64::new(file_len);
            entry.start = U64::new(file.offset + access.offset());
            memory = Some(id);
        } else {
            entry.start = U64::new(access.start().expose_provenance() as u64);
        }
        self.slots[slot as usize] = Some(GrantedWindow {
            access,
            memory,
            revoked: false,
            awaited: false,
        });
        (entry, passed)
    }

    /// The number of a memory, which differs for peers that may write it and for those that may not; and its descriptor,
    /// if the peer has none yet. None where there is no descriptor for reading alone.
    fn name(&self, fd: &Arc<OwnedFd>, writable: bool) -> Option<(u64, Option<Arc<OwnedFd>>)> {
        let id = Arc::as_ptr(fd).addr() as u64 + u64::from(!writable);
        let unknown = match (self.lent.contains_key(&id), writable) {
            (true, _) => None,
            (false, true) => Some(Arc::clone(fd)),
            (false, false) => Some(Arc::new(read_only(fd).ok()?)),
        };
        Some((id, unknown))
    }

    /// Revokes the windows of the accesses that `which` selects: no copy can begin under them. Idle windows are
    /// released; the others are returned, once each, and the caller waits for them.
    pub(crate) fn revoke(&mut self, which: impl Fn(&Access) -> bool) -> Vec<Revoked> {
        let mut busy = Vec::new();
        for slot in 0..self.page.slots() {
            let Some(granted) = &mut self.slots[slot as usize] else {
                continue;
            };
            if !which(&granted.access) {
                continue;
            }
            if !granted.revoked {
                granted.revoked = true;
                self.page.revoke(slot);
            }
            self.release_if_idle(slot);
            if let Some(granted) = &mut self.slots[slot as usize]
                && !granted.awaited
            {
                granted.awaited = true;
                busy.push(Revoked {
                    page: Arc::clone(&self.page),
                    slot,
                    epoch: self.page.epoch(slot),
                });
            }
        }
        busy
    }

    /// Whether a copy is in flight that can still touch memory.
    pub(crate) fn is_busy(&self) -> bool {
        (0..self.page.slots())
            .any(|slot| self.slots[slot as usize].is_some() && self.page.is_busy(slot))
    }

    /// Releases the slot of a window, unless that was done already.
    pub(crate) fn release(&mut self, revoked: &Revoked) {
        if self.page.epoch(revoked.slot) == revoked.epoch {
            self.release_if_idle(revoked.slot);
        }
    }

    fn release_if_idle(&mut self, slot: u32) {
        let over = self.slots[slot as usize]
            .as_ref()
            .is_some_and(|granted| granted.revoked)
            && !self.page.is_busy(slot);
        if !over {
            return;
        }
        if let Some(memory) = self.slots[slot as usize]
            .take()
            .and_then(|granted| granted.memory)
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
            // A window that was detached with a copy in flight may be idle by now.
            (0..self.page.slots()).for_each(|slot| self.release_if_idle(slot));
        }
        self.free.pop()
    }
}

/// The answer to a question: its bytes, and the memories whose descriptors go with it.
pub(crate) struct Answer {
    pub(crate) bytes: Vec<u8>,
    memories: Vec<Arc<OwnedFd>>,
    /// Regions on all of which it has a window.
    regions: Vec<RegionId>,
}

impl Answer {
    pub(crate) fn new(question: U64, attached: usize, noticed: bool) -> Self {
        let head = Attached {
            question,
            attached: U32::new(attached as u32),
            noticed: U32::new(u32::from(noticed)),
        };
        Self {
            bytes: head.as_bytes().to_vec(),
            memories: Vec::new(),
            regions: Vec::new(),
        }
    }

    fn push(&mut self, entry: &Entry, memory: Option<Arc<OwnedFd>>) {
        self.bytes.extend_from_slice(entry.as_bytes());
        self.memories.extend(memory);
    }

    /// No window; `reason` is one of those that [`Entry::refused`] names.
    pub(crate) fn refuse(&mut self, reason: u32) {
        let mut entry = Entry::new_zeroed();
        entry.refused = U32::new(reason);
        self.bytes.extend_from_slice(entry.as_bytes());
    }

    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.memories.iter().map(|fd| fd.as_fd()).collect()
    }
}

#[cfg(test)]
mod tests {

    use slackwater_engine::{Memory, Region, RegionSpec, Regions};

    use super::*;

    fn granted(slots: u32) -> (GrantedWindows, Arc<ControlPage>) {
        let page = Arc::new(ControlPage::create(slots).unwrap());
        let peer = ControlPage::open(page.as_fd().try_clone_to_owned().unwrap(), slots).unwrap();
        (GrantedWindows::new(page), Arc::new(peer))
    }

    fn region(regions: &Regions, memory: Memory) -> Arc<Region> {
        regions
            .register(RegionSpec {
                memory,
                rights: Rights::BOTH,
                gate: None,
            })
            .unwrap()
    }

    fn own(regions: &Regions) -> Arc<Region> {
        region(regions, Memory::anonymous(4096).unwrap())
    }

    #[test]
    fn a_revocation_ends_the_windows_of_its_region_and_lets_go_of_it() {
        let regions = Regions::default();
        let (one, two) = (own(&regions), own(&regions));
        let (mut granted, peer) = granted(4);
        let entries =
            [&one, &two, &one].map(|region| granted.grant(region.access(0, 8).unwrap()).0);
        let mark = peer
            .mark(entries[2].slot.get(), entries[2].epoch.get())
            .unwrap();
        assert_eq!((one.in_flight(), two.in_flight()), (2, 1));
        let of_one = |access: &Access| access.region().id() == one.id();
        let busy: Vec<u32> = granted
            .revoke(of_one)
            .iter()
            .map(|revoked| revoked.slot)
            .collect();
        assert_eq!(busy, [entries[2].slot.get()]);
        // Each repeated attempt to unregister a region started one more thread that waited for the same window.
        assert!(
            granted.revoke(of_one).is_empty() && granted.is_busy(),
            "it is waited for already"
        );
        assert_eq!((one.in_flight(), two.in_flight()), (1, 1));
        let begins = entries.map(|entry| peer.mark(entry.slot.get(), entry.epoch.get()).is_ok());
        assert_eq!(begins, [false, true, false]);
        drop(mark);
        assert!(granted.revoke(of_one).is_empty() && !granted.is_busy());
        assert_eq!(one.in_flight(), 0);
    }

    #[test]
    fn a_slot_is_taken_back_once_nothing_is_in_flight() {
        let regions = Regions::default();
        let region = own(&regions);
        let (mut granted, peer) = granted(1);
        let entry = granted.grant(region.access(0, 8).unwrap()).0;
        let (slot, epoch) = (entry.slot.get(), entry.epoch.get());
        let mark = peer.mark(slot, epoch).unwrap();
        granted.detach(&[Detach {
            slot: U32::new(slot),
            epoch: U32::new(epoch),
        }]);
        assert_eq!(
            granted.grant(region.access(0, 8).unwrap()).0.refused.get(),
            NO_SLOT
        );
        drop(mark);
        let again = granted.grant(region.access(0, 8).unwrap()).0;
        assert_eq!((again.refused.get(), again.slot.get()), (0, slot));
        assert_ne!(again.epoch.get(), epoch);
        // A late detach of the previous window in a slot, or a revocation that was under way, must not hit the next
        // window.
        granted.detach(&[Detach {
            slot: U32::new(slot),
            epoch: U32::new(epoch),
        }]);
        granted.release(&Revoked {
            page: Arc::clone(granted.page()),
            slot,
            epoch,
        });
        assert_eq!(granted.windows(), 1);
    }

    #[test]
    fn a_file_is_passed_once_as_long_as_the_peer_has_a_window_on_it() {
        let regions = Regions::default();
        let region = region(&regions, Memory::shared(4096).unwrap());
        let (mut granted, _peer) = granted(4);
        let mut passed = Vec::new();
        let entries = [0, 8].map(|start| {
            let (entry, fd) = granted.grant(region.access(start, 8).unwrap());
            passed.push(fd.is_some());
            entry
        });
        assert_eq!(passed, [true, false]);
        assert_eq!(
            entries.map(|entry| (entry.start.get(), entry.memory_len.get())),
            [(0, 4096), (8, 4096)]
        );
        for entry in entries {
            granted.detach(&[Detach {
                slot: entry.slot,
                epoch: entry.epoch,
            }]);
        }
        assert!(
            granted.grant(region.access(0, 8).unwrap()).1.is_some(),
            "forgotten with the last window on it"
        );
    }

    #[test]
    fn slots_that_no_peer_can_name_are_ignored() {
        let (mut granted, _peer) = granted(1);
        granted.detach(&[
            Detach {
                slot: U32::new(9),
                epoch: U32::new(0),
            },
            Detach {
                slot: U32::new(0),
                epoch: U32::new(0),
            },
        ]);
        assert_eq!(granted.windows(), 0);
    }
}
