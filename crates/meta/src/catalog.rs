use slackwater_base::{Checksum, Instant, Planted, planted};
use slackwater_wire::{ClientId, Key, ReplicaState, Version};

use crate::evict::{Link, Slot};
use crate::index::Index;
use crate::slab::Slab;

/// An object's number; reused after it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectId(pub(crate) u32);

/// A replica's number; reused after it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ReplicaId(pub(crate) u32);

/// A tenant's index in the master's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TenantIndex(pub(crate) u16);

/// A segment's index in the master's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SegmentIndex(pub(crate) u16);

/// One key of one tenant. What few objects have (a put in flight, a group, a soft pin, a promotion) is kept in side
/// tables, with a flag here that says whether there is an entry.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) hash: u64,
    pub(crate) key: Key,
    /// Zero until the first put is published.
    pub(crate) version: Version,
    pub(crate) checksum: Checksum,
    pub(crate) bytes: u64,
    /// End of the longest lease; [`Instant::ZERO`] when there never was one.
    pub(crate) lease: Instant,
    pub(crate) writer: ClientId,
    head: u32,
    pub(crate) tenant: TenantIndex,
    pub(crate) pin: PinKind,
    flags: u8,
}

/// The kind of pin, without its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinKind {
    None,
    Soft,
    Hard,
}

/// The side tables that have an entry for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mark {
    /// A put or upsert is in flight.
    Open = 1,
    /// It belongs to a group.
    Group = 2,
    /// A promotion is in flight.
    Promotion = 4,
    /// It is a candidate for a later promotion.
    Candidate = 8,
    /// A record of this version was dropped from an SSD. Its tombstone may still exist and would make a record of the
    /// same version dead.
    Shed = 16,
    /// An earlier master promised its writer a record.
    Promised = 32,
}

impl Object {
    pub(crate) fn is(&self, mark: Mark) -> bool {
        self.flags & mark as u8 != 0
    }

    pub(crate) fn mark(&mut self, mark: Mark) {
        self.flags |= mark as u8;
    }

    pub(crate) fn unmark(&mut self, mark: Mark) {
        self.flags &= !(mark as u8);
    }

    pub(crate) fn has_replicas(&self) -> bool {
        self.head != NONE
    }
}

/// One copy of an object's bytes in one segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replica {
    /// The object; none when the object was replaced or removed and this copy is still referenced.
    object: u32,
    next: u32,
    /// Its number within the segment and its policy.
    pub(crate) slot: u32,
    /// For memory replicas, the number of the extent within its segment.
    pub(crate) piece: u32,
    /// Readers, offloads and promotions that need it to stay.
    pub(crate) refs: u32,
    /// For memory replicas that are not on SSD yet, the number of the prospect on the SSD below.
    prospect: u32,
    pub(crate) segment: SegmentIndex,
    pub(crate) state: ReplicaState,
    pub(crate) excluded: Excluded,
}

/// Whether and why the policy was told not to name a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excluded {
    /// The policy may name it.
    No,
    /// It may not be evicted, for a reason that ends at a deadline or with a reference.
    Held,
    /// Its object has a soft pin.
    Soft,
    /// It is freed as soon as its SSD copy is durable.
    Leaving,
}

impl Replica {
    pub(crate) fn new(segment: SegmentIndex, slot: u32, piece: u32) -> Self {
        Self {
            object: NONE,
            next: NONE,
            slot,
            piece,
            refs: 0,
            prospect: NONE,
            segment,
            state: ReplicaState::Processing,
            excluded: Excluded::No,
        }
    }

    /// See [`crate::prospect`].
    pub(crate) fn prospect(&self) -> Option<Slot> {
        (self.prospect != NONE).then_some(Slot(self.prospect))
    }

    pub(crate) fn set_prospect(&mut self, slot: Option<Slot>) {
        self.prospect = slot.map_or(NONE, |slot| slot.0);
    }

    /// Whether it is referenced by more than the offload after which it is freed.
    pub(crate) fn is_needed(&self) -> bool {
        self.refs > u32::from(self.excluded == Excluded::Leaving)
    }

    pub(crate) fn object(&self) -> Option<ObjectId> {
        (self.object != NONE).then_some(ObjectId(self.object))
    }
}

/// Objects by key, and their replicas.
pub(crate) struct Catalog {
    index: Index,
    objects: Slab<Object>,
    replicas: Slab<Replica>,
}

const NONE: u32 = u32::MAX;

impl Catalog {
    pub(crate) fn new() -> Self {
        Self {
            index: Index::new(),
            objects: Slab::new(),
            replicas: Slab::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn replica_count(&self) -> usize {
        self.replicas.len()
    }

    pub(crate) fn find(
        &self,
        tenant: TenantIndex,
        key: impl AsRef<[u8]>,
        hash: u64,
    ) -> Option<ObjectId> {
        let key = key.as_ref();
        let same = |id: u32| {
            let object = self.objects.get(id).expect("the index names live objects");
            let same_tenant = object.tenant == tenant || planted(Planted::TenantsShareKeys);
            object.hash == hash && same_tenant && object.key.as_bytes() == key
        };
        self.index.find(hash, same).map(ObjectId)
    }

    /// Adds an object without bytes.
    pub(crate) fn add(&mut self, tenant: TenantIndex, key: Key, hash: u64) -> ObjectId {
        let id = self.objects.insert(Object {
            hash,
            key,
            version: Version(0),
            checksum: Checksum(0),
            bytes: 0,
            lease: Instant::ZERO,
            writer: ClientId(0),
            head: NONE,
            tenant,
            pin: PinKind::None,
            flags: 0,
        });
        self.index.insert(hash, id);
        ObjectId(id)
    }

    /// Removes an object that has no replica left.
    pub(crate) fn take(&mut self, id: ObjectId) -> Object {
        let object = self.objects.remove(id.0);
        assert!(
            object.head == NONE,
            "invariant broken: {:?} is removed while it has replicas",
            object.key
        );
        assert!(
            self.index.remove(object.hash, id.0),
            "every live object is in the index"
        );
        object
    }

    pub(crate) fn object(&self, id: ObjectId) -> &Object {
        self.objects
            .get(id.0)
            .expect("object numbers are held by live objects only")
    }

    pub(crate) fn object_mut(&mut self, id: ObjectId) -> &mut Object {
        self.objects
            .get_mut(id.0)
            .expect("object numbers are held by live objects only")
    }

    pub(crate) fn replica(&self, id: ReplicaId) -> &Replica {
        self.replicas
            .get(id.0)
            .expect("replica numbers are held by live replicas only")
    }

    pub(crate) fn replica_mut(&mut self, id: ReplicaId) -> &mut Replica {
        self.replicas
            .get_mut(id.0)
            .expect("replica numbers are held by live replicas only")
    }

    pub(crate) fn is_object(&self, id: ObjectId) -> bool {
        self.objects.get(id.0).is_some()
    }

    pub(crate) fn is_replica(&self, id: ReplicaId) -> bool {
        self.replicas.get(id.0).is_some()
    }

    pub(crate) fn add_replica(&mut self, replica: Replica) -> ReplicaId {
        ReplicaId(self.replicas.insert(replica))
    }

    pub(crate) fn take_replica(&mut self, id: ReplicaId) -> Replica {
        let replica = self.replicas.remove(id.0);
        assert!(
            replica.object == NONE && replica.refs == 0,
            "invariant broken: a replica is freed while it is referenced: {replica:?}"
        );
        replica
    }

    /// Attaches a replica to its object: from now on look-ups find it.
    pub(crate) fn attach(&mut self, object: ObjectId, id: ReplicaId) {
        let head = std::mem::replace(&mut self.object_mut(object).head, id.0);
        let replica = self.replica_mut(id);
        assert!(replica.object == NONE, "a replica belongs to one object");
        (replica.object, replica.next) = (object.0, head);
    }

    /// Detaches a replica from its object.
    pub(crate) fn detach(&mut self, id: ReplicaId) -> ObjectId {
        let Replica { object, next, .. } = *self.replica(id);
        let object = ObjectId(object);
        let head = self.object(object).head;
        if head == id.0 {
            self.object_mut(object).head = next;
        } else {
            let mut before = ReplicaId(head);
            while self.replica(before).next != id.0 {
                before = ReplicaId(self.replica(before).next);
            }
            self.replica_mut(before).next = next;
        }
        let replica = self.replica_mut(id);
        (replica.object, replica.next) = (NONE, NONE);
        object
    }

    pub(crate) fn replicas(&self, id: ObjectId) -> Replicas<'_> {
        Replicas {
            catalog: self,
            next: self.object(id).head,
        }
    }

    /// Objects with the numbers from `from` on, at most `step` numbers, and the number to continue from.
    pub(crate) fn scan(
        &self,
        from: u32,
        step: usize,
    ) -> (impl Iterator<Item = (ObjectId, &Object)>, Option<u32>) {
        let end = self.objects.end().min(from.saturating_add(step as u32));
        let found = (from..end).filter_map(|id| Some((ObjectId(id), self.objects.get(id)?)));
        (found, (end < self.objects.end()).then_some(end))
    }

    pub(crate) fn objects(&self) -> impl Iterator<Item = (ObjectId, &Object)> {
        self.objects
            .iter()
            .map(|(id, object)| (ObjectId(id), object))
    }

    pub(crate) fn all_replicas(&self) -> impl Iterator<Item = (ReplicaId, &Replica)> {
        self.replicas
            .iter()
            .map(|(id, replica)| (ReplicaId(id), replica))
    }

    /// Reads what look-ups of these keys will need, one table at a time, so that the cache misses of many keys overlap
    /// instead of following one another. Calls `more` with the likely replicas.
    pub(crate) fn warm(
        &self,
        links: &[Link],
        ids: &mut Vec<u32>,
        mut more: impl FnMut(&Replica) -> u64,
    ) {
        let mut seen = 0;
        if links.len() > 1 {
            for link in links {
                seen ^= self.index.begin(link.hash);
            }
        }
        ids.clear();
        ids.extend(
            links
                .iter()
                .filter_map(|link| self.index.find(link.hash, |_| true)),
        );
        for id in &*ids {
            seen ^= self
                .objects
                .get(*id)
                .map_or(0, |object| object.lease.as_nanos());
            // An object and its only replica mostly have the same number, because they are added and removed together.
            seen ^= self
                .replicas
                .get(*id)
                .map_or(0, |replica| u64::from(replica.slot));
        }
        for id in &*ids {
            seen ^= self.replicas.get(*id).map_or(0, &mut more);
        }
        for object in ids.iter().filter_map(|id| self.objects.get(*id)) {
            seen ^= u64::from(object.key.as_bytes()[0]);
        }
        std::hint::black_box(seen);
    }

    /// The replicas with the numbers of these objects, which mostly are theirs: an object and its only replica are added together.
    pub(crate) fn likely_replicas(&self, ids: &[u32]) -> impl Iterator<Item = &Replica> {
        ids.iter().filter_map(|id| self.replicas.get(*id))
    }

    /// Memory of index, objects and replicas, and of the reference counts before each key's bytes.
    pub(crate) fn overhead_bytes(&self) -> usize {
        let counts = self.objects.len() * 2 * size_of::<usize>();
        self.index.overhead_bytes()
            + counts
            + self.objects.overhead_bytes()
            + self.replicas.overhead_bytes()
    }
}

/// The replicas of one object.
pub(crate) struct Replicas<'a> {
    catalog: &'a Catalog,
    next: u32,
}

impl<'a> Iterator for Replicas<'a> {
    type Item = (ReplicaId, &'a Replica);

    fn next(&mut self) -> Option<Self::Item> {
        let id = ReplicaId(self.next);
        let replica = (self.next != NONE).then(|| self.catalog.replica(id))?;
        self.next = replica.next;
        Some((id, replica))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_and_a_replica_are_small() {
        assert_eq!((size_of::<Object>(), size_of::<Option<Object>>()), (72, 72));
        assert_eq!(
            (size_of::<Replica>(), size_of::<Option<Replica>>()),
            (28, 28)
        );
    }

    #[test]
    fn replicas_come_and_go_in_any_order() {
        let mut catalog = Catalog::new();
        let object = catalog.add(TenantIndex(0), Key::new(b"a").unwrap(), 7);
        let ids: Vec<_> = (0..3)
            .map(|n| catalog.add_replica(Replica::new(SegmentIndex(n), 0, 0)))
            .collect();
        for id in &ids {
            catalog.attach(object, *id);
        }
        for (gone, left) in [(1, vec![2, 0]), (0, vec![2]), (2, vec![])] {
            catalog.detach(ids[gone]);
            let segments: Vec<u16> = catalog
                .replicas(object)
                .map(|(_, replica)| replica.segment.0)
                .collect();
            assert_eq!(segments, left);
        }
        assert!(!catalog.object(object).has_replicas());
    }
}
