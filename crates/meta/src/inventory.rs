//! Memory that outlives its master: nodes are told what is published there, announce it to the next master, and say when
//! they have forgotten what was withdrawn.

use slackwater_base::{Instant, Map, Planted, Turn, planted};
use slackwater_wire::{
    ChainPlace, Durability, ExtentRef, NodeId, Pin, Presence, Published, SegmentId, Version,
};

use crate::catalog::{Mark, ObjectId, PinKind, Replica, ReplicaId, SegmentIndex, TenantIndex};
use crate::get::WARMED_AT_ONCE;
use crate::master::Master;
use crate::numbers::VERSION_MAX;
use crate::publish::{self, Fresh};
use crate::segment::Segment;
use crate::tenant::Ledger;

impl Master {
    /// Whether a node has not announced everything yet that it holds: what nobody finds may be there.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        let mut segments = self.segments.iter();
        let announcing = |it: &Segment| it.announcing && it.presence != Presence::Hidden;
        self.notes.awaits_any() || segments.any(|(_, it)| announcing(it))
    }

    /// Generations of extents of a segment below this one are those of earlier masters. None when it is not mounted, or no
    /// memory.
    #[must_use]
    pub fn generations_from(&self, segment: SegmentId) -> Option<u64> {
        let segment = self.segments.at(self.segments.find(segment)?);
        Some(segment.memory()?.extents.next_generation())
    }

    /// Tells the node of a replica in memory that it holds an object now.
    pub(crate) fn tell_published(
        &mut self,
        now: Instant,
        id: ReplicaId,
        chain: ChainPlace,
        durability: Durability,
    ) {
        let replica = self.catalog.replica(id);
        let segment = self.segments.at(replica.segment);
        let Some(object) = replica.object().filter(|_| segment.outlives) else {
            return;
        };
        let (node, extent) = (segment.node, self.extent_of(id));
        let record = self.catalog.object(object);
        let left = || self.soft_until.get(&object).map(|until| now.until(*until));
        let published = Published {
            extent,
            entry: self.entry(object),
            bytes: record.bytes,
            checksum: record.checksum,
            writer: record.writer,
            pin: match record.pin {
                PinKind::None => Pin::None,
                PinKind::Soft => Pin::Soft(left()),
                PinKind::Hard => Pin::Hard,
            },
            durability: match durability {
                // It was about the answer, and nodes of earlier releases know the other two alone.
                Durability::Replicated => Durability::Memory,
                other => other,
            },
            group: record
                .is(Mark::Group)
                .then(|| self.groups.of(object))
                .flatten(),
            chain,
        };
        self.outbox.publish(node, published);
    }

    /// Adds announced extents of a node's memory to the catalog.
    pub(crate) fn holds(
        &mut self,
        now: Instant,
        node: NodeId,
        segment: SegmentId,
        entries: &[Published],
        turn: Turn,
    ) {
        let Some(index) = self.segments.find(segment) else {
            return;
        };
        let segment = self.segments.at(index);
        if segment.node != node || !segment.announcing || segment.memory().is_none() {
            return;
        }
        self.ask_announcing(index);
        let mut fresh = Vec::with_capacity(entries.len());
        for entries in entries.chunks(WARMED_AT_ONCE) {
            self.read_ahead_of(entries.iter().map(|published| &published.entry));
            for published in entries {
                self.numbers.start_above(published.entry.version);
                if self.was_ahead(index, &published.extent) {
                    continue;
                }
                fresh.extend(self.adopt_extent(now, node, index, published, turn));
            }
        }
        self.introduce_announced(now, fresh);
    }

    /// Whether an extent was announced before, ahead of its turn. What happened to it since then, its node is told.
    fn was_ahead(&self, index: SegmentIndex, extent: &ExtentRef) -> bool {
        let segment = self.segments.at(index);
        let ahead = segment.memory().map(|memory| &memory.ahead);
        segment.incarnation == extent.incarnation
            && !planted(Planted::AheadIsForgotten)
            && ahead.is_some_and(|ahead| ahead.get(&extent.offset) == Some(&extent.generation))
    }

    /// Takes an announced extent over; none when its object was removed or replaced, or is of no use: the node is told to
    /// forget it.
    fn adopt_extent(
        &mut self,
        now: Instant,
        node: NodeId,
        index: SegmentIndex,
        published: &Published,
        turn: Turn,
    ) -> Option<Fresh> {
        let Published { extent, entry, .. } = published;
        let segment = self.segments.at_mut(index);
        let (id, incarnation) = (segment.id, segment.incarnation);
        let of_it = (extent.segment, extent.incarnation) == (id, incarnation);
        let memory = segment.memory_mut().filter(|_| of_it);
        let adopted = memory.and_then(|memory| {
            let ExtentRef {
                offset,
                bytes,
                generation,
                ..
            } = *extent;
            let held = memory.extents.adopt(offset, bytes, generation, turn)?;
            if turn == Turn::Ahead {
                memory.ahead.insert(offset, generation);
            }
            Some(held)
        });
        let Some(held) = adopted else {
            // Whether it is of any use is judged in its turn.
            if turn == Turn::InOrder {
                self.metrics.extents_announced += 1;
                self.metrics.extents_stale += 1;
                self.outbox.fence(node, *extent);
            }
            return None;
        };
        self.metrics.extents_announced += 1;
        let named = Version(1)..=VERSION_MAX;
        let sound = (1..=extent.bytes).contains(&published.bytes) && named.contains(&entry.version);
        let object = sound.then(|| self.object_announced(now, node, index, published));
        let Some((tenant, object)) = object.flatten() else {
            self.metrics.extents_stale += 1;
            let dead = self.segments.at_mut(index).retire(held.slot());
            self.outbox.fence(node, dead);
            if sound {
                // Until the node has forgotten it, another master would be told of it again.
                let hash = self.tenants.hash_of(&entry.tenant, &entry.key);
                let name = (hash, entry.version);
                if let Some(memory) = self.segments.at_mut(index).memory_mut() {
                    let place = (dead.generation, name);
                    memory.forgetting.insert(dead.offset, place);
                }
                self.drops.expect(hash, entry.clone(), index);
                self.keep_drop((hash, entry.version, index));
            }
            return None;
        };
        self.tenants.charge(tenant, Ledger::Memory, held.bytes);
        let replica = self
            .catalog
            .add_replica(Replica::new(index, 0, held.slot()));
        let slot = self.segments.at_mut(index).number(replica).0;
        self.catalog.replica_mut(replica).slot = slot;
        self.attach(object, replica, Ledger::Memory);
        self.held.heard(self.catalog.object(object).hash);
        Some(Fresh {
            segment: index,
            slot,
            hash: self.catalog.object(object).hash,
            bytes: published.bytes,
            chain: published.chain,
            standing: None,
        })
    }

    /// The object of an announced extent, as the extent says that it is; none when it is dead, or another version is newer.
    fn object_announced(
        &mut self,
        now: Instant,
        node: NodeId,
        index: SegmentIndex,
        published: &Published,
    ) -> Option<(TenantIndex, ObjectId)> {
        let entry = &published.entry;
        let hash = self.tenants.hash_of(&entry.tenant, &entry.key);
        if self.owed.is_dead(node, hash, entry) {
            return None;
        }
        let tenant = self.tenants.find_or_add(&entry.tenant)?;
        let found = self.catalog.find(tenant, &entry.key, hash);
        if let Some(id) = found.filter(|id| self.catalog.object(*id).has_replicas()) {
            let object = self.catalog.object(id);
            let same = (object.bytes, object.checksum) == (published.bytes, published.checksum);
            let again = || self.catalog.replicas(id).any(|(_, it)| it.segment == index);
            if object.version > entry.version {
                return None;
            }
            if object.version < entry.version {
                self.cancel_promotion(now, id);
                self.withdraw(now, id, Version(entry.version.0 - 1), None);
            } else if !same || again() {
                return None;
            }
        } else if found.is_none() && self.catalog.len() >= self.config.limits.objects {
            return None;
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
        object.version = entry.version;
        (object.bytes, object.checksum) = (published.bytes, published.checksum);
        object.writer = published.writer;
        if published.durability == Durability::Disk {
            object.mark(Mark::Promised);
        }
        if object.pin == PinKind::None {
            self.apply_pin(now, id, published.pin);
        }
        self.join_group(id, published.group);
        Some((tenant, id))
    }

    /// Tells policies of replicas that were announced in one report.
    pub(crate) fn introduce_announced(&mut self, now: Instant, mut fresh: Vec<Fresh>) {
        // A newer version may have replaced one from the same report, and taken its slot.
        let mut slots = std::collections::BTreeSet::new();
        fresh.reverse();
        fresh.retain(|it| {
            let resident = self.segments.at(it.segment).holds(it.slot);
            resident && slots.insert((it.segment, it.slot))
        });
        fresh.reverse();
        let segment = fresh.first().map(|fresh| fresh.segment);
        publish::introduce(
            &mut self.catalog,
            &mut self.segments,
            self.config.offload.mode,
            now,
            &mut fresh,
        );
        segment
            .into_iter()
            .for_each(|index| self.unsettled.press(index));
    }

    /// A node has announced everything that a segment holds. `highest` is the newest version that a log has seen, also of
    /// records that are gone: a record of a put with an older version could be dead from the start because of a tombstone
    /// in the log.
    pub(crate) fn announced(&mut self, node: NodeId, segment: SegmentId, highest: Version) {
        let found = self.segments.find(segment);
        let Some(index) = found.filter(|index| self.segments.at(*index).node == node) else {
            return;
        };
        self.numbers.start_above(highest);
        let segment = self.segments.at_mut(index);
        (segment.announcing, segment.unannounced) = (false, false);
        if let Some(memory) = segment.memory_mut() {
            memory.ahead = Map::default();
        }
        let mut of_node = self.segments.of_node(node).into_iter();
        if of_node.all(|index| !self.segments.at(index).unannounced) {
            self.notes.complete(node);
        }
        self.settle_owed(node);
        self.unsettled.jobs();
        self.unsettled.resume(&self.segments, node);
    }

    /// A published replica leaves memory that outlives its master: what waits for the end of its object waits until the
    /// node has forgotten it, or the next master would be told of it.
    pub(crate) fn expect_forgotten(&mut self, id: ReplicaId, object: ObjectId) {
        let Replica { segment, piece, .. } = *self.catalog.replica(id);
        let outlives = self.segments.at(segment).outlives;
        let is_memory = self.segments.at(segment).memory().is_some();
        if !(outlives && is_memory) || planted(Planted::RemoveBeforeForgotten) {
            return;
        }
        let (entry, hash) = (self.entry(object), self.catalog.object(object).hash);
        let extent = self.segments.at(segment).extent(piece);
        let name = (hash, entry.version);
        let memory = self.segments.at_mut(segment).memory_mut();
        if let Some(memory) = memory {
            memory
                .forgetting
                .insert(extent.offset, (extent.generation, name));
            self.drops.expect(hash, entry, segment);
        }
    }

    /// A node will not announce these extents.
    pub(crate) fn forgotten(&mut self, node: NodeId, extents: &[ExtentRef]) {
        for extent in extents {
            let Some(index) = self.segments.find(extent.segment) else {
                continue;
            };
            let segment = self.segments.at_mut(index);
            if segment.node != node || segment.incarnation != extent.incarnation {
                continue;
            }
            let Some(memory) = segment.memory_mut() else {
                continue;
            };
            let found = memory.forgetting.get(&extent.offset).copied();
            if let Some((_, name)) = found.filter(|(of, _)| *of == extent.generation) {
                memory.forgetting.remove(&extent.offset);
                self.drop_ended((name.0, name.1, index));
            }
        }
    }
}
