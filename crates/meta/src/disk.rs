//! Reports of nodes about their SSDs: records found, records lost, and the state of the device.

use slackwater_base::Instant;
use slackwater_wire::{
    DiskEntry, DiskState, NodeId, ReportedEntry, SegmentId, SegmentKind, Version,
};

use crate::catalog::{Mark, ObjectId, ReplicaId, SegmentIndex};
use crate::evict::Slot;
use crate::get::WARMED_AT_ONCE;
use crate::master::Master;
use crate::numbers::VERSION_MAX;
use crate::pressure::Evictable;
use crate::prospect;
use crate::publish::Fresh;
use crate::release::Reason;
use crate::segment::{SEGMENT_BYTES_MAX, record_bytes};
use crate::tenant::Ledger;

impl Master {
    /// Adds announced records of a node's SSD to the catalog.
    pub(crate) fn announce(
        &mut self,
        now: Instant,
        node: NodeId,
        segment: SegmentId,
        entries: &[ReportedEntry],
    ) {
        let Some(index) = self.segments.find(segment) else {
            return;
        };
        let owner = self.segments.at(index).node;
        if owner != node || self.segments.at(index).disk().is_none() {
            return;
        }
        self.ask_announcing(index);
        let mut fresh = Vec::with_capacity(entries.len());
        for entries in entries.chunks(WARMED_AT_ONCE) {
            self.read_ahead_of(entries.iter().map(|reported| &reported.entry));
            for reported in entries {
                self.numbers.start_above(reported.entry.version);
                if self.has_record(index, reported) {
                    continue;
                }
                self.metrics.records_announced += 1;
                match self.adopt(now, node, index, reported) {
                    Adopted::New(replica) => fresh.push(replica),
                    Adopted::Known => {}
                    Adopted::Stale => self.refuse_announced(index, reported),
                }
            }
        }
        self.introduce_announced(now, fresh);
    }

    /// An announced record is of no use: its node is told to drop it.
    fn refuse_announced(&mut self, index: SegmentIndex, reported: &ReportedEntry) {
        let entry = &reported.entry;
        self.metrics.records_stale += 1;
        let hash = self.tenants.hash_of(&entry.tenant, &entry.key);
        self.drop_record(index, hash, entry.clone(), None);
        if self.segments.at(index).outlives {
            self.keep_drop((hash, entry.version, index));
        }
    }

    /// Whether a record is in the catalog: it was announced before, ahead of its turn.
    fn has_record(&self, index: SegmentIndex, reported: &ReportedEntry) -> bool {
        let entry = &reported.entry;
        let hash = self.tenants.hash_of(&entry.tenant, &entry.key);
        let found = self.object_of(hash, entry);
        found.is_some_and(|id| self.replica_on(id, index).is_some())
    }

    fn adopt(
        &mut self,
        now: Instant,
        node: NodeId,
        index: SegmentIndex,
        reported: &ReportedEntry,
    ) -> Adopted {
        let ReportedEntry {
            entry,
            bytes,
            checksum,
        } = reported;
        let record = record_bytes(&entry.key, *bytes);
        let hash = self.tenants.hash_of(&entry.tenant, &entry.key);
        let fits = *bytes > 0
            && self.segments.at(index).disk().is_some_and(|disk| {
                let room = SEGMENT_BYTES_MAX.saturating_sub(disk.live + disk.reserved);
                record <= disk.capacity.min(room)
            });
        let dead = self.owed.is_dead(node, hash, entry)
            || self.drops.is_pending(hash, entry.version, index);
        let named = Version(1)..=VERSION_MAX;
        if dead || !fits || !named.contains(&entry.version) {
            return Adopted::Stale;
        }
        let Some(tenant) = self.tenants.find_or_add(&entry.tenant) else {
            return Adopted::Stale;
        };
        let found = self.catalog.find(tenant, &entry.key, hash);
        let standing = found.filter(|id| self.catalog.object(*id).has_replicas());
        if let Some(id) = standing {
            let object = self.catalog.object(id);
            if object.version > entry.version {
                return Adopted::Stale;
            }
            if object.version == entry.version {
                if (object.bytes, object.checksum) != (*bytes, *checksum) {
                    return Adopted::Stale;
                }
            } else {
                self.cancel_promotion(now, id);
                self.withdraw(now, id, Version(entry.version.0 - 1), None);
            }
        }
        if found.is_none() && self.catalog.len() >= self.config.limits.objects {
            return Adopted::Stale;
        }
        // An earlier master ended what is older.
        let older = Version(entry.version.0 - 1);
        self.end_spared(&entry.tenant, &entry.key, hash, older);
        let id = found.unwrap_or_else(|| {
            self.tenants.at_mut(tenant).objects += 1;
            self.catalog.add(tenant, entry.key.clone(), hash)
        });
        let object = self.catalog.object_mut(id);
        if object.version != entry.version {
            object.unmark(Mark::Shed);
        }
        (object.version, object.bytes, object.checksum) = (entry.version, *bytes, *checksum);
        self.tenants.charge(tenant, Ledger::Disk, record);
        self.segments
            .at_mut(index)
            .disk_mut()
            .expect("checked by the caller")
            .live += record;
        let replicas: Vec<ReplicaId> = self.catalog.replicas(id).map(|(id, _)| id).collect();
        let mut replicas = replicas.into_iter();
        let prospect =
            replicas.find_map(|it| prospect::take(&mut self.catalog, &self.segments, it, index));
        let added = self.add_disk_replica(id, index, prospect);
        self.held.heard(hash);
        match prospect {
            // The policy knows it, as what memory above it held.
            Some(_) => Adopted::Known,
            None => Adopted::New(added),
        }
    }

    fn replica_on(&self, id: ObjectId, index: SegmentIndex) -> Option<ReplicaId> {
        self.catalog
            .replicas(id)
            .find(|(_, replica)| replica.segment == index)
            .map(|(replica, _)| replica)
    }

    /// Records turned out to be unreadable: their replicas are removed, and promotions that read them are cancelled.
    pub(crate) fn lost(&mut self, now: Instant, node: NodeId, entries: &[DiskEntry]) {
        let Some(index) = self.segments.disk_of(node) else {
            return;
        };
        for entry in entries {
            let hash = self.tenants.hash_of(&entry.tenant, &entry.key);
            let Some(id) = self.object_of(hash, entry) else {
                continue;
            };
            self.catalog.object_mut(id).mark(Mark::Shed);
            let Some(replica) = self.replica_on(id, index) else {
                continue;
            };
            self.metrics.records_lost += 1;
            self.cancel_promotions_from(now, replica);
            self.discard(now, replica, Reason::Removed);
            self.erase_if_empty(now, id);
        }
    }

    /// An SSD empties a file, and writes these records again unless they are dropped now: evicts those that are not worth it, down to
    /// where the SSD is relieved to.
    pub(crate) fn emptying(&mut self, now: Instant, node: NodeId, entries: &[DiskEntry]) {
        let Some(index) = self.segments.disk_of(node) else {
            return;
        };
        if self.segments.is_announcing(index) {
            return;
        }
        let low = self.marks(index).1;
        for entry in entries {
            if self.segments.at(index).staying() <= low {
                return;
            }
            let hash = self.tenants.hash_of(&entry.tenant, &entry.key);
            let object = self.object_of(hash, entry);
            let found = object.and_then(|id| Some((id, self.replica_on(id, index)?)));
            if let Some((_, replica)) = found.filter(|(id, it)| !self.is_to_move(now, *id, *it)) {
                self.metrics.disk_evictions_at_reclaim += 1;
                self.evict_now(now, replica);
            }
        }
    }

    /// Whether a record is worth being written again, or may not be evicted. A group is evicted as a whole, and its other members may
    /// lie elsewhere; what memory has too is not old there.
    fn is_to_move(&mut self, now: Instant, id: ObjectId, record: ReplicaId) -> bool {
        let (object, mut replicas) = (self.catalog.object(id), self.catalog.replicas(id));
        let in_memory = |index: SegmentIndex| self.segments.at(index).kind() == SegmentKind::Memory;
        if object.is(Mark::Group)
            || replicas.any(|(_, it)| in_memory(it.segment))
            || self.evictable(now, record) != Evictable::Now
        {
            return true;
        }
        let (bytes, replica) = (object.bytes, *self.catalog.replica(record));
        let policy = &mut self.segments.at_mut(replica.segment).policy;
        policy.would_move(now, Slot(replica.slot), bytes)
    }

    pub(crate) fn disk_state(&mut self, node: NodeId, state: &DiskState) {
        let Some(index) = self.segments.disk_of(node) else {
            return;
        };
        let segment = self.segments.at_mut(index);
        let disk = segment.disk_mut().expect("found as SSD");
        (disk.accepting, disk.failing) = (state.accepting, state.failing);
        disk.pressure = state.pressure;
        let capacity = state.capacity.min(SEGMENT_BYTES_MAX);
        if disk.capacity != capacity {
            disk.capacity = capacity;
            segment.policy.set_capacity(capacity);
            self.capacity_changed();
        }
        self.unsettled.resume(&self.segments, node);
    }
}

/// How the catalog treats an announced record.
enum Adopted {
    /// As a new replica.
    New(Fresh),
    /// As the record of what it knows as a prospect.
    Known,
    /// As removed, replaced or of no use: the node is to drop it.
    Stale,
}
