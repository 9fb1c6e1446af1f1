//! Records and memory that must never come back, and whose nodes were told so.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use slackwater_base::{Instant, Planted, planted};
use slackwater_wire::{DiskEntry, ErrorCode, Key, NodeId, Presence, SegmentKind, Tenant, Version};

use crate::catalog::{Mark, ObjectId, SegmentIndex};
use crate::master::Master;
use crate::outbox::Waiter;
use crate::owed::{Expected, Sweep};

/// A version of a key, by its hash, and the segment that is to forget it.
pub(crate) type DropName = (u64, Version, SegmentIndex);

/// Records that nodes were told to drop and have not yet reported as dropped, and extents of memory that outlives this
/// master and that nodes have not yet forgotten.
#[derive(Default)]
pub(crate) struct Drops {
    pending: BTreeMap<DropName, PendingDrop>,
    /// How many of them nobody waits for because they are owed, by segment.
    owed: BTreeMap<SegmentIndex, usize>,
}

/// A place in the order of the drops under way.
#[derive(Clone, Copy)]
pub(crate) struct DropMark(DropName);

impl DropMark {
    pub(crate) const FIRST: Self = Self((0, Version(0), SegmentIndex(0)));
}

pub(crate) struct PendingDrop {
    pub(crate) entry: DiskEntry,
    /// Copies that are not forgotten yet: one record, or extents of one segment.
    copies: u32,
    /// It is kept for the node until it is forgotten there: see [`crate::owed::Owed`].
    owed: bool,
    /// Nothing has ended the version, though no copy of it is known: see [`crate::spared`].
    pub(crate) spared: bool,
    waiters: Vec<Waiter>,
}

impl PendingDrop {
    fn new(entry: DiskEntry) -> Self {
        Self {
            entry,
            copies: 0,
            owed: false,
            spared: false,
            waiters: Vec::new(),
        }
    }
}

impl Drops {
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// The node of a memory segment is about to be told to forget an extent.
    pub(crate) fn expect(&mut self, hash: u64, entry: DiskEntry, segment: SegmentIndex) {
        let key = (hash, entry.version, segment);
        let new = || PendingDrop::new(entry);
        self.pending.entry(key).or_insert_with(new).copies += 1;
    }

    /// The drops of these versions of a key.
    pub(crate) fn of(&self, hash: u64, versions: RangeInclusive<Version>) -> Vec<DropName> {
        let (first, last) = (SegmentIndex(0), SegmentIndex(u16::MAX));
        let range = (hash, *versions.start(), first)..=(hash, *versions.end(), last);
        self.pending.range(range).map(|(name, _)| *name).collect()
    }

    /// One of the drops that are listed.
    pub(crate) fn at_mut(&mut self, name: &DropName) -> &mut PendingDrop {
        let pending = self.pending.get_mut(name);
        pending.expect("listed drops are under way")
    }

    fn forget_owed(&mut self, segment: SegmentIndex) {
        if let Some(count) = self.owed.get_mut(&segment) {
            *count -= 1;
            if *count == 0 {
                self.owed.remove(&segment);
            }
        }
    }

    /// Whether something is owed on this segment.
    pub(crate) fn owes(&self, segment: SegmentIndex) -> bool {
        self.owed.contains_key(&segment)
    }

    pub(crate) fn is_pending(&self, hash: u64, version: Version, segment: SegmentIndex) -> bool {
        self.pending.contains_key(&(hash, version, segment))
    }
}

impl Master {
    /// Orders that a record is dropped; the waiter's answer waits for that.
    pub(crate) fn drop_record(
        &mut self,
        segment: SegmentIndex,
        hash: u64,
        entry: DiskEntry,
        waiter: Option<Waiter>,
    ) {
        let waiter = waiter.filter(|_| !planted(Planted::RemoveBeforeDropped));
        let kept = self.is_kept(segment);
        let hidden = self.segments.at(segment).presence == Presence::Hidden && !kept;
        if let Some(waiter) = waiter.filter(|_| hidden) {
            self.acks
                .fail(waiter, ErrorCode::UnavailableInCurrentStatus);
        }
        let waiters: Vec<Waiter> = waiter
            .filter(|_| !hidden && !kept)
            .into_iter()
            .map(|waiter| self.acks.wait(waiter))
            .collect();
        let name = (hash, entry.version, segment);
        self.begin_drop(name, &entry).waiters.extend(waiters);
        if kept {
            self.keep_drop(name);
        }
    }

    /// Orders that a record is dropped, unless that was ordered before.
    pub(crate) fn begin_drop(&mut self, name: DropName, entry: &DiskEntry) -> &mut PendingDrop {
        let node = self.segments.at(name.2).node;
        self.drops.pending.entry(name).or_insert_with(|| {
            self.outbox.drop(node, entry.clone());
            let mut drop = PendingDrop::new(entry.clone());
            drop.copies = 1;
            drop
        })
    }

    /// Whether what waits for a drop at this segment need not: the node has been away for long, and the removal is kept for
    /// it until it is back. Where nothing is noted this would not outlive the master, and what is on an SSD well might.
    fn is_kept(&self, segment: SegmentIndex) -> bool {
        let segment = self.segments.at(segment);
        let kept = self.notes.is_on() || segment.memory().is_some();
        segment.presence == Presence::Hidden && segment.outlives && kept
    }

    /// Keeps a drop for the node until it has forgotten the copy, instead of having anything wait for that. The version is dead at
    /// the node unless it lives on: when a removal ends it, the node is owed that as all are for which removals are kept.
    pub(crate) fn keep_drop(&mut self, name: DropName) {
        let (hash, version, segment) = name;
        let (node, kind) = (
            self.segments.at(segment).node,
            self.segments.at(segment).kind(),
        );
        self.owed.begin(node, kind, self.numbers.newest_version());
        let Some(drop) = self.drops.pending.get(&name) else {
            return;
        };
        let counts = planted(Planted::KeptCountsAsRemoved);
        if counts || self.is_ended(name.0, drop) {
            self.owed.key_of(node, &drop.entry.tenant, hash, version);
        }
        if let Some(drop) = self.drops.pending.get_mut(&name)
            && !std::mem::replace(&mut drop.owed, true)
        {
            *self.drops.owed.entry(segment).or_default() += 1;
        }
    }

    /// Removals are kept for a node no longer when it has a link, has announced everything that it has in this life, and has
    /// forgotten what was kept for it.
    pub(crate) fn settle_owed(&mut self, node: NodeId) {
        if !self.owed.has(node) {
            return;
        }
        let paid = |index: &SegmentIndex| {
            let segment = self.segments.at(*index);
            segment.presence == Presence::Here && !segment.unannounced && !self.drops.owes(*index)
        };
        let segments = self.segments.of_node(node);
        let is_back = |expected: &Expected| {
            let mut mounted = segments.iter().map(|it| self.segments.at(*it));
            match *expected {
                Expected::Any(kind) => mounted.any(|it| it.kind() == kind),
                Expected::Memory(id, life) => {
                    mounted.any(|it| it.id == id || it.incarnation != life)
                }
            }
        };
        let is_whole = self.owed.expected(node).iter().all(is_back);
        if !segments.is_empty() && is_whole && segments.iter().all(paid) {
            self.owed.end(node);
        }
    }

    /// Marks the version so that it is not offered to an SSD again.
    pub(crate) fn shed(&mut self, hash: u64, entry: &DiskEntry) {
        if let Some(id) = self.object_of(hash, entry) {
            self.catalog.object_mut(id).mark(Mark::Shed);
        }
    }

    /// The object of this very put.
    pub(crate) fn object_of(&self, hash: u64, entry: &DiskEntry) -> Option<ObjectId> {
        let tenant = self.tenants.find_exact(&entry.tenant)?;
        let found = self.catalog.find(tenant, &entry.key, hash)?;
        (self.catalog.object(found).version == entry.version).then_some(found)
    }

    /// Makes the waiter wait for every drop of the key that is under way.
    pub(crate) fn await_drops(&mut self, tenant: &Tenant, key: &Key, hash: u64, waiter: Waiter) {
        if planted(Planted::RemoveBeforeDropped) {
            return;
        }
        for name in self.drops.of(hash, Version(0)..=Version(u64::MAX)) {
            let drop = &self.drops.pending[&name];
            let same = drop.entry.key == *key && drop.entry.tenant == *tenant;
            if drop.owed || !same || drop.waiters.contains(&waiter) {
                continue;
            }
            self.await_drop(name, waiter);
        }
    }

    fn await_drop(&mut self, name: DropName, waiter: Waiter) {
        if self.is_kept(name.2) {
            self.keep_drop(name);
        } else if self.segments.at(name.2).presence == Presence::Hidden {
            self.acks
                .fail(waiter, ErrorCode::UnavailableInCurrentStatus);
        } else if let Some(drop) = self.drops.pending.get_mut(&name) {
            drop.waiters.push(self.acks.wait(waiter));
        }
    }

    pub(crate) fn dropped(&mut self, node: NodeId, entries: &[DiskEntry]) {
        let Some(segment) = self.segments.disk_of(node) else {
            return;
        };
        for entry in entries {
            let hash = self.tenants.hash_of(&entry.tenant, &entry.key);
            if self.drop_ended((hash, entry.version, segment)) {
                self.metrics.records_dropped += 1;
            }
        }
        self.unsettled.resume(&self.segments, node);
    }

    /// One copy is forgotten; false when none was to be. What waits for the last is answered.
    pub(crate) fn drop_ended(&mut self, name: DropName) -> bool {
        let Some(drop) = self.drops.pending.get_mut(&name) else {
            return false;
        };
        drop.copies -= 1;
        if drop.copies == 0 {
            let (waiters, owed) = (std::mem::take(&mut drop.waiters), drop.owed);
            self.drops.pending.remove(&name);
            for waiter in waiters {
                self.acks.done(waiter.ack, &mut self.outbox);
            }
            if owed {
                self.drops.forget_owed(name.2);
                self.settle_owed(self.segments.at(name.2).node);
            }
        }
        true
    }

    /// A node is gone with all that it was to write and to forget, of which [`Master::lose_drops`] asks what lives on: before
    /// anything of the node is given up.
    pub(crate) fn lose_orders_of(&mut self, now: Instant, node: NodeId) {
        let lost = self.segments.of_node(node);
        if !planted(Planted::LostOffloadsAreDropped) {
            self.lose_offloads(now, &lost);
        }
        for index in lost {
            self.begin_owing(index);
            self.lose_drops(index);
        }
    }

    /// What is removed from now on is kept for the node of a segment that is lost, if the node may have it still when it comes
    /// back.
    pub(crate) fn begin_owing(&mut self, segment: SegmentIndex) {
        let segment = self.segments.at(segment);
        if segment.kind() == SegmentKind::Disk || segment.outlives {
            let (node, kind) = (segment.node, segment.kind());
            let expected = match kind {
                SegmentKind::Disk => Expected::Any(kind),
                SegmentKind::Memory => Expected::Memory(segment.id, segment.incarnation),
            };
            let newest = self.numbers.newest_version();
            self.owed.begin(node, kind, newest);
            self.owed.expect(node, expected);
        }
    }

    /// The segment that copies were to leave is gone. Waiting requests fail; the node is told to drop them when it comes
    /// back. A copy that only made room is none of a dead version: what else the node has of the object is as good as before.
    pub(crate) fn lose_drops(&mut self, segment: SegmentIndex) {
        let lost: Vec<_> = self
            .drops
            .pending
            .keys()
            .filter(|(.., at)| *at == segment)
            .copied()
            .collect();
        for key in lost {
            let is_ended = self.is_ended(key.0, &self.drops.pending[&key]);
            let drop = self.drops.pending.remove(&key).expect("found above");
            if drop.owed {
                self.drops.forget_owed(segment);
            }
            let counts = planted(Planted::LostCountsAsRemoved);
            if counts || is_ended {
                // Of other nodes it may be the last copy of what is not dead: what is was noted for all of them when it ended.
                let node = self.segments.at(segment).node;
                match planted(Planted::LostCountsForAll) {
                    true => self.owed.key(&drop.entry.tenant, key.0, key.1),
                    false => self.owed.key_of(node, &drop.entry.tenant, key.0, key.1),
                }
            }
            for waiter in drop.waiters {
                self.acks
                    .fail(waiter, ErrorCode::UnavailableInCurrentStatus);
                self.acks.done(waiter.ack, &mut self.outbox);
            }
        }
    }

    /// Whether what a drop under way is of was removed, replaced or evicted everywhere: a copy that only made room is of none such,
    /// nor is one whose last sibling was lost.
    fn is_ended(&self, hash: u64, drop: &PendingDrop) -> bool {
        !drop.spared && !self.lives_on(hash, &drop.entry)
    }

    /// Whether the object of this very put has copies.
    pub(crate) fn lives_on(&self, hash: u64, entry: &DiskEntry) -> bool {
        let object = self.object_of(hash, entry);
        object.is_some_and(|id| self.catalog.object(id).has_replicas())
    }

    /// The node that was to drop records is hidden: it may be long before it can be told. Waiting requests fail; it is
    /// told as soon as it comes back.
    pub(crate) fn hide_drops(&mut self, segment: SegmentIndex) {
        if self.is_kept(segment) {
            let names = self.drops.pending.iter();
            let waited = names.filter(|((.., at), it)| *at == segment && !it.waiters.is_empty());
            let waited: Vec<_> = waited.map(|(name, _)| *name).collect();
            for name in waited {
                self.keep_drop(name);
                let drop = self.drops.pending.get_mut(&name).expect("found above");
                for waiter in std::mem::take(&mut drop.waiters) {
                    self.acks.done(waiter.ack, &mut self.outbox);
                }
            }
            return;
        }
        let of_segment = self.drops.pending.iter_mut();
        let of_segment = of_segment.filter(|((.., at), _)| *at == segment);
        for waiter in of_segment.flat_map(|(_, drop)| std::mem::take(&mut drop.waiters)) {
            self.acks
                .fail(waiter, ErrorCode::UnavailableInCurrentStatus);
            self.acks.done(waiter.ack, &mut self.outbox);
        }
    }

    /// Also keeps the removals under way for a node that mounts: it was not told of them, and may hold copies.
    pub(crate) fn owe_pending_drops(&mut self) {
        for (name, drop) in &self.drops.pending {
            if !drop.waiters.is_empty() && self.is_ended(name.0, drop) {
                self.owed.key(&drop.entry.tenant, name.0, name.1);
            }
        }
    }
}

impl Master {
    /// Makes the waiter wait for those of the next `count` drops under way that a removal of many keys names: none that it covers is
    /// spared. Says where to go on, if anywhere.
    pub(crate) fn await_drops_from(
        &mut self,
        next: DropMark,
        count: usize,
        waiter: Waiter,
        sweep: &Sweep,
    ) -> Option<DropMark> {
        let mut drops = self.drops.pending.range(next.0..);
        let some: Vec<_> = drops.by_ref().take(count).map(|(name, _)| *name).collect();
        let next = drops.next().map(|(name, _)| DropMark(*name));
        for name in some {
            let drop = self.drops.at_mut(&name);
            drop.spared &= !sweep.covers(&drop.entry);
            if drop.owed || !sweep.names(&drop.entry) || drop.waiters.contains(&waiter) {
                continue;
            }
            self.await_drop(name, waiter);
        }
        next
    }
}
