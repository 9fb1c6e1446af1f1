use std::collections::BTreeMap;
use std::sync::Arc;

use slackwater_base::{
    AllocError, Extent, ExtentAllocator, Instant, Map, Planted, planted, round_to_block,
};
use slackwater_wire::{
    Draining, ExtentRef, Incarnation, Key, Mount, NodeId, Presence, SegmentId, SegmentKind,
    SegmentState, Version, Watermarks,
};

use crate::catalog::{Catalog, ObjectId, Replica, ReplicaId, SegmentIndex};
use crate::due::Deadlines;
use crate::evict::{Evict, Slot};
use crate::tenant::Ledger;

/// A run of memory, or the SSD log of one node, with the policy that decides what is evicted from it.
pub(crate) struct Segment {
    pub(crate) id: SegmentId,
    pub(crate) name: Arc<str>,
    pub(crate) host: String,
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) medium: Medium,
    pub(crate) presence: Presence,
    /// Its node lives on without this master, and is told what it holds.
    pub(crate) outlives: bool,
    /// Its node has not announced yet everything that it holds: nothing new is placed there, and nothing is evicted.
    pub(crate) announcing: bool,
    /// Removals are kept until all of it is announced.
    pub(crate) unannounced: bool,
    /// Its node has begun to announce, or resumed on a new link, and was asked for what was missed by then.
    pub(crate) asked: bool,
    pub(crate) draining: Draining,
    /// When it is evicted from, where its node says so.
    pub(crate) watermarks: Option<Watermarks>,
    pub(crate) policy: Box<dyn Evict>,
    /// The SSD to which evicted objects may be written.
    pub(crate) below: Option<SegmentIndex>,
    /// Soft-pinned replicas that the policy named and that wait for the end of their pins.
    pub(crate) soft: Deadlines<ReplicaId>,
    /// Bytes of replicas that are freed as soon as their SSD copy is durable.
    pub(crate) leaving: u64,
    /// Whether an eviction is in progress that has not reached the low watermark.
    pub(crate) relieving: bool,
    slots: Vec<u32>,
    spare: Vec<u32>,
}

/// What fails together: a replica on another one survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Domain<'a> {
    Host(&'a str),
    /// A node that does not say its host.
    Node(NodeId),
}

/// Memory or SSD, with the allocations in it.
pub(crate) enum Medium {
    Memory(Box<MemoryExtents>),
    Disk(DiskLog),
}

/// Extents of a memory segment, and freed extents that wait for their fence.
pub(crate) struct MemoryExtents {
    pub(crate) extents: ExtentAllocator,
    /// Generations of extents that were announced ahead of their turn, by their first bytes.
    pub(crate) ahead: Map<u64, u64>,
    /// By their first bytes.
    pub(crate) fencing: Map<u64, Extent>,
    /// Published extents that were withdrawn and that the node may still announce to another master, by their first
    /// bytes: the generation, and the hash and version of the object.
    pub(crate) forgetting: Map<u64, (u64, (u64, Version))>,
}

/// What the master knows of an SSD log; the node has the exact state of its files.
pub(crate) struct DiskLog {
    pub(crate) capacity: u64,
    pub(crate) accepting: bool,
    /// It takes nothing because its device fails.
    pub(crate) failing: bool,
    /// Until then no offload goes to it, because of failures.
    pub(crate) refusing_until: Instant,
    /// Bytes of records in the catalog.
    pub(crate) live: u64,
    /// Bytes of records being written.
    pub(crate) reserved: u64,
    /// Bytes that the node asked to have freed in addition to the watermarks.
    pub(crate) pressure: u64,
}

/// Largest segment: the bytes of as many as there may be are still a number.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 1 << 50;

const NONE: u32 = u32::MAX;

impl Segment {
    /// `generations` is the generation of its first extent.
    pub(crate) fn new(
        mount: &Mount,
        granule: u64,
        generations: u64,
        policy: Box<dyn Evict>,
    ) -> Self {
        let medium = match mount.kind {
            SegmentKind::Memory => Medium::Memory(Box::new(MemoryExtents {
                extents: ExtentAllocator::new(mount.bytes, granule, generations),
                ahead: Map::default(),
                fencing: Map::default(),
                forgetting: Map::default(),
            })),
            SegmentKind::Disk => Medium::Disk(DiskLog {
                capacity: mount.bytes,
                accepting: true,
                failing: false,
                refusing_until: Instant::ZERO,
                live: 0,
                reserved: 0,
                pressure: 0,
            }),
        };
        Self {
            id: mount.segment,
            name: mount.name.as_str().into(),
            host: mount.host.clone(),
            node: mount.node,
            incarnation: mount.incarnation,
            medium,
            presence: Presence::Here,
            outlives: mount.generations.is_some(),
            announcing: mount.generations.is_some(),
            unannounced: mount.generations.is_some() || mount.kind == SegmentKind::Disk,
            asked: false,
            draining: Draining::No,
            watermarks: mount.watermarks,
            policy,
            below: None,
            soft: Deadlines::new(),
            leaving: 0,
            relieving: false,
            slots: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Whether something may be placed there now.
    pub(crate) fn takes_new(&self) -> bool {
        let placed_early = planted(Planted::PlacedBeforeAnnounced);
        let may = self.presence == Presence::Here && self.draining == Draining::No;
        may && (!self.announcing || placed_early)
    }

    pub(crate) fn domain(&self) -> Domain<'_> {
        match self.host.as_str() {
            "" => Domain::Node(self.node),
            host => Domain::Host(host),
        }
    }

    pub(crate) fn kind(&self) -> SegmentKind {
        match self.medium {
            Medium::Memory(_) => SegmentKind::Memory,
            Medium::Disk(_) => SegmentKind::Disk,
        }
    }

    /// The ledger to which its bytes are charged.
    pub(crate) fn ledger(&self) -> Ledger {
        match self.medium {
            Medium::Memory(_) => Ledger::Memory,
            Medium::Disk(_) => Ledger::Disk,
        }
    }

    pub(crate) fn memory(&self) -> Option<&MemoryExtents> {
        if let Medium::Memory(memory) = &self.medium {
            Some(memory)
        } else {
            None
        }
    }

    pub(crate) fn memory_mut(&mut self) -> Option<&mut MemoryExtents> {
        if let Medium::Memory(memory) = &mut self.medium {
            Some(memory)
        } else {
            None
        }
    }

    pub(crate) fn disk(&self) -> Option<&DiskLog> {
        if let Medium::Disk(disk) = &self.medium {
            Some(disk)
        } else {
            None
        }
    }

    pub(crate) fn disk_mut(&mut self) -> Option<&mut DiskLog> {
        if let Medium::Disk(disk) = &mut self.medium {
            Some(disk)
        } else {
            None
        }
    }

    pub(crate) fn capacity(&self) -> u64 {
        match &self.medium {
            Medium::Memory(memory) => memory.extents.books().capacity,
            Medium::Disk(disk) => disk.capacity,
        }
    }

    /// Bytes of replicas, including those being written.
    pub(crate) fn used(&self) -> u64 {
        match &self.medium {
            Medium::Memory(memory) => memory.extents.books().live,
            Medium::Disk(disk) => disk.live + disk.reserved,
        }
    }

    /// Bytes that are still used when everything that is being evicted has been freed.
    pub(crate) fn staying(&self) -> u64 {
        self.used().saturating_sub(self.leaving)
    }

    /// Whether it is memory with room for an extent of `bytes`.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.memory().is_some_and(|it| it.extents.has_room(bytes))
    }

    /// Allocates an extent of `bytes`; returns its number.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Result<Extent, AllocError> {
        self.memory_mut()
            .expect("only memory has extents")
            .extents
            .allocate(bytes)
    }

    pub(crate) fn extent(&self, piece: u32) -> Extent {
        self.memory()
            .expect("only memory has extents")
            .extents
            .held(piece)
    }

    pub(crate) fn reference(&self, extent: Extent) -> ExtentRef {
        ExtentRef {
            segment: self.id,
            incarnation: self.incarnation,
            offset: extent.offset,
            bytes: extent.bytes,
            generation: extent.generation,
        }
    }

    /// Retires an extent; its bytes are free after [`Self::fenced`].
    pub(crate) fn retire(&mut self, piece: u32) -> ExtentRef {
        let extent = self.extent(piece);
        let reference = self.reference(extent);
        let memory = self.memory_mut().expect("only memory has extents");
        memory.extents.retire(extent);
        if planted(Planted::FreeWithoutQuarantine) {
            memory.extents.release(extent);
            return reference;
        }
        memory.fencing.insert(extent.offset, extent);
        reference
    }

    /// Frees the bytes of a retired extent. False when there is no such extent, or it was freed before.
    pub(crate) fn fenced(&mut self, extent: ExtentRef) -> bool {
        if extent.incarnation != self.incarnation {
            return false;
        }
        let Some(memory) = self.memory_mut() else {
            return false;
        };
        let retired = memory.fencing.get(&extent.offset).copied();
        let Some(retired) = retired.filter(|it| it.generation == extent.generation) else {
            return false;
        };
        memory.fencing.remove(&extent.offset);
        memory.extents.release(retired);
        true
    }

    /// Gives a replica a slot in this segment.
    pub(crate) fn number(&mut self, id: ReplicaId) -> Slot {
        match self.spare.pop() {
            Some(slot) => {
                self.slots[slot as usize] = id.0;
                Slot(slot)
            }
            None => {
                self.slots.push(id.0);
                Slot(self.slots.len() as u32 - 1)
            }
        }
    }

    /// Gives the slot of one replica to another.
    pub(crate) fn renumber(&mut self, slot: Slot, id: ReplicaId) {
        self.slots[slot.0 as usize] = id.0;
    }

    pub(crate) fn unnumber(&mut self, slot: u32) {
        assert_ne!(self.slots[slot as usize], NONE, "a slot is given back once");
        self.slots[slot as usize] = NONE;
        self.spare.push(slot);
    }

    pub(crate) fn replica(&self, slot: Slot) -> ReplicaId {
        let id = self.slots[slot.0 as usize];
        assert_ne!(id, NONE, "policies name resident slots only");
        ReplicaId(id)
    }

    pub(crate) fn holds(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).is_some_and(|id| *id != NONE)
    }

    /// The replicas at some of its slots, from `from` on, and the slot to continue from.
    pub(crate) fn replicas_from(
        &self,
        from: usize,
        step: usize,
    ) -> (Vec<ReplicaId>, Option<usize>) {
        let end = self.slots.len().min(from.saturating_add(step));
        let some = self.slots.get(from..end).unwrap_or_default();
        let held = some.iter().filter(|id| **id != NONE);
        let next = (end < self.slots.len()).then_some(end);
        (held.map(|id| ReplicaId(*id)).collect(), next)
    }

    pub(crate) fn replicas(&self) -> impl Iterator<Item = ReplicaId> {
        self.slots
            .iter()
            .filter(|id| **id != NONE)
            .map(|id| ReplicaId(*id))
    }

    pub(crate) fn state(&self) -> SegmentState {
        SegmentState {
            segment: self.id,
            node: self.node,
            presence: self.presence,
            draining: self.draining,
            name: self.name.to_string(),
            kind: self.kind(),
            bytes: self.capacity(),
            used_bytes: self.used(),
        }
    }

    pub(crate) fn overhead_bytes(&self) -> usize {
        let slots = (self.slots.capacity() + self.spare.capacity()) * size_of::<u32>();
        slots
            + self.policy.overhead_bytes()
            + self
                .memory()
                .map_or(0, |memory| memory.extents.overhead_bytes())
    }
}

/// Bytes that the record of a value of `bytes` takes in a log: whole blocks of payload, and its part of the headers of its batch,
/// which are written twice. That part is 56 bytes and the names; it counts in steps of 512, of which the first has room for a
/// key of 128 bytes and a tenant of 72.
pub(crate) fn record_bytes(key: &Key, bytes: u64) -> u64 {
    let header = 128 + key.as_bytes().len() as u64;
    round_to_block(bytes).saturating_add((2 * header).next_multiple_of(512))
}

/// The mounted segments, by number, id and node.
pub(crate) struct Segments {
    list: Vec<Option<Segment>>,
    by_id: BTreeMap<SegmentId, SegmentIndex>,
    /// Segments that are hidden.
    hidden: usize,
    /// When policies want to run, or earlier: nobody asks all of them after each request.
    policies_due: Deadlines<SegmentIndex>,
}

impl Default for Segments {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            by_id: BTreeMap::new(),
            hidden: 0,
            policies_due: Deadlines::new(),
        }
    }
}

impl Segments {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn find(&self, id: SegmentId) -> Option<SegmentIndex> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn add(&mut self, segment: Segment) -> SegmentIndex {
        let free = self
            .list
            .iter()
            .position(Option::is_none)
            .unwrap_or_else(|| {
                self.list.push(None);
                self.list.len() - 1
            });
        let index = SegmentIndex(free as u16);
        assert!(
            self.by_id.insert(segment.id, index).is_none(),
            "segment {} is mounted already",
            segment.id
        );
        let (node, kind) = (segment.node, segment.kind());
        self.list[free] = Some(segment);
        match kind {
            SegmentKind::Memory => self.at_mut(index).below = self.disk_of(node),
            SegmentKind::Disk => {
                for (_, above) in self
                    .iter_mut()
                    .filter(|(_, it)| it.node == node && it.kind() == SegmentKind::Memory)
                {
                    above.below = Some(index);
                }
            }
        }
        index
    }

    pub(crate) fn take(&mut self, index: SegmentIndex) -> Segment {
        let segment = self.list[usize::from(index.0)]
            .take()
            .expect("segment numbers are held by mounted segments");
        self.by_id.remove(&segment.id);
        self.policies_due.cancel(index);
        self.hidden -= usize::from(segment.presence == Presence::Hidden);
        segment
    }

    /// Tells the policy of a segment of a read or of new blocks, or gives it what it knew: what may bring its deadline forward.
    pub(crate) fn tell_policy<T>(
        &mut self,
        index: SegmentIndex,
        tell: impl FnOnce(&mut dyn Evict) -> T,
    ) -> T {
        let told = tell(&mut *self.at_mut(index).policy);
        self.note_deadline(index);
        told
    }

    /// When the first policy wants to run, or earlier.
    pub(crate) fn policies_due(&self) -> Option<Instant> {
        self.policies_due.next()
    }

    /// Runs each policy whose time has come, once.
    pub(crate) fn run_policies(&mut self, now: Instant) {
        let due = std::iter::from_fn(|| self.policies_due.pop(now));
        for index in due.collect::<Vec<_>>() {
            let policy = &mut self.at_mut(index).policy;
            if policy.next_deadline().is_some_and(|at| at <= now) {
                policy.on_deadline(now);
            }
            self.note_deadline(index);
        }
    }

    /// Whether no policy wants to run before it is known to.
    pub(crate) fn are_policies_noted(&self) -> bool {
        let noted = |(index, segment): (SegmentIndex, &Segment)| {
            let wanted = segment.policy.next_deadline();
            let noted = self.policies_due.at(&index);
            wanted.is_none_or(|wanted| noted.is_some_and(|noted| noted <= wanted))
        };
        self.iter().all(noted)
    }

    fn note_deadline(&mut self, index: SegmentIndex) {
        let Some(wanted) = self.at(index).policy.next_deadline() else {
            return;
        };
        if self
            .policies_due
            .at(&index)
            .is_none_or(|noted| wanted < noted)
        {
            self.policies_due.set(index, wanted);
        }
    }

    /// Says of every segment of a node how present it is.
    pub(crate) fn set_presence(&mut self, node: NodeId, presence: Presence) {
        for index in self.of_node(node) {
            let before = std::mem::replace(&mut self.at_mut(index).presence, presence);
            self.hidden += usize::from(presence == Presence::Hidden);
            self.hidden -= usize::from(before == Presence::Hidden);
        }
    }

    /// Whether what a node holds can be read, as far as it holds anything.
    pub(crate) fn is_shown(&self, node: NodeId) -> bool {
        let mut of_node = self.iter().filter(|(_, segment)| segment.node == node);
        of_node.all(|(_, segment)| segment.presence != Presence::Hidden)
    }

    /// Whether the node of a segment may announce more that belongs there, or to the SSD below it.
    pub(crate) fn is_announcing(&self, index: SegmentIndex) -> bool {
        let segment = self.at(index);
        segment.announcing || segment.below.is_some_and(|below| self.at(below).announcing)
    }

    /// Whether one of an object's replicas can be read.
    pub(crate) fn is_readable(&self, catalog: &Catalog, id: ObjectId) -> bool {
        let shown = |index| self.at(index).presence != Presence::Hidden;
        catalog.object(id).has_replicas()
            && (self.hidden == 0 || catalog.replicas(id).any(|(_, it)| shown(it.segment)))
    }

    pub(crate) fn at(&self, index: SegmentIndex) -> &Segment {
        self.list[usize::from(index.0)]
            .as_ref()
            .expect("segment numbers are held by mounted segments")
    }

    pub(crate) fn at_mut(&mut self, index: SegmentIndex) -> &mut Segment {
        self.list[usize::from(index.0)]
            .as_mut()
            .expect("segment numbers are held by mounted segments")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SegmentIndex, &Segment)> {
        self.list
            .iter()
            .enumerate()
            .filter_map(|(at, segment)| Some((SegmentIndex(at as u16), segment.as_ref()?)))
    }

    /// The first mounted segment from this number on.
    pub(crate) fn from(&self, index: SegmentIndex) -> Option<SegmentIndex> {
        let rest = self.list.get(usize::from(index.0)..)?;
        let skipped = rest.iter().position(Option::is_some)?;
        Some(SegmentIndex(index.0 + skipped as u16))
    }

    /// Bytes mounted, memory and SSD.
    pub(crate) fn capacity(&self) -> [u64; 2] {
        let mut capacity = [0; 2];
        for (_, segment) in self.iter() {
            capacity[usize::from(segment.disk().is_some())] += segment.capacity();
        }
        capacity
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (SegmentIndex, &mut Segment)> {
        let all = self.list.iter_mut().enumerate();
        all.filter_map(|(at, segment)| Some((SegmentIndex(at as u16), segment.as_mut()?)))
    }

    /// Allocates a replica on this memory segment, if there is room.
    pub(crate) fn allocate(
        &mut self,
        catalog: &mut Catalog,
        index: SegmentIndex,
        bytes: u64,
    ) -> Option<ReplicaId> {
        let segment = self.at_mut(index);
        let extent = segment.allocate(bytes).ok()?;
        let id = catalog.add_replica(Replica::new(index, 0, extent.slot()));
        catalog.replica_mut(id).slot = segment.number(id).0;
        Some(id)
    }

    /// Where a memory replica's bytes are.
    pub(crate) fn extent_of(&self, replica: &Replica) -> ExtentRef {
        let segment = self.at(replica.segment);
        segment.reference(segment.extent(replica.piece))
    }

    /// The SSD log of a node.
    pub(crate) fn disk_of(&self, node: NodeId) -> Option<SegmentIndex> {
        self.iter()
            .find(|(_, segment)| segment.node == node && segment.disk().is_some())
            .map(|(index, _)| index)
    }

    /// The life in which a node mounted its segments: all of them are of one.
    pub(crate) fn life_of(&self, node: NodeId) -> Option<Incarnation> {
        let mut of_node = self.iter().filter(|(_, segment)| segment.node == node);
        of_node.next().map(|(_, segment)| segment.incarnation)
    }

    pub(crate) fn of_node(&self, node: NodeId) -> Vec<SegmentIndex> {
        self.iter()
            .filter(|(_, segment)| segment.node == node)
            .map(|(index, _)| index)
            .collect()
    }
}

#[cfg(test)]
mod tests;
