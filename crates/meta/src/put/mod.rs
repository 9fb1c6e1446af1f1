//! Puts: they start with room for their bytes or wait for it, and are ended by their writer or by the master.

use std::collections::{BTreeMap, BTreeSet};

use slackwater_base::{Instant, Map};
use slackwater_wire::{ChainPlace, ClientId, Durability, OperationId, Pin, Version};

use crate::catalog::{Catalog, ObjectId, ReplicaId, SegmentIndex};
use crate::placement::Wish;

mod across;
mod end;
mod left;
mod queue;
mod room;
mod start;

pub(crate) use queue::Queue;

/// Puts in flight.
#[derive(Default)]
pub(crate) struct Puts {
    pub(crate) open: Map<ObjectId, OpenPut>,
    /// The puts in flight, by client and by the operation that was granted the room.
    of: BTreeSet<(ClientId, OperationId, ObjectId)>,
    /// Clients whose links are gone and whose puts are being ended, step by step.
    pub(crate) lost: BTreeMap<ClientId, Losing>,
}

/// How far the ends of a lost client's puts are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Losing {
    /// The put to be looked at next.
    pub(crate) next: (OperationId, ObjectId),
    /// Versions up to this one were granted before the client was lost. It may be back since, and put again.
    pub(crate) newest: Version,
}

/// A put that has its room and whose bytes are being written. Readers do not see it.
#[derive(Debug)]
pub(crate) struct OpenPut {
    pub(crate) version: Version,
    pub(crate) client: ClientId,
    /// The operation that was granted the room.
    pub(crate) operation: OperationId,
    pub(crate) bytes: u64,
    pub(crate) replicas: Vec<ReplicaId>,
    pub(crate) started: Instant,
    pub(crate) pin: Pin,
    pub(crate) group: Option<u64>,
    pub(crate) durability: Durability,
    /// Replicas without which it is not published.
    pub(crate) needed: usize,
    pub(crate) chain: ChainPlace,
    pub(crate) wish: Wish,
}

impl Puts {
    pub(crate) fn add(&mut self, object: ObjectId, put: OpenPut) {
        self.of.insert((put.client, put.operation, object));
        assert!(
            self.open.insert(object, put).is_none(),
            "an object has one put in flight"
        );
    }

    pub(crate) fn at_mut(&mut self, object: ObjectId) -> &mut OpenPut {
        self.open
            .get_mut(&object)
            .expect("the object's mark says that a put is open")
    }

    pub(crate) fn take(&mut self, object: ObjectId) -> OpenPut {
        let put = self
            .open
            .remove(&object)
            .expect("the object's mark says that a put is open");
        self.of.remove(&(put.client, put.operation, object));
        put
    }

    /// The first of the puts in flight of a client from `next` on.
    pub(crate) fn of_client(
        &self,
        client: ClientId,
        next: (OperationId, ObjectId),
        count: usize,
    ) -> Vec<(OperationId, ObjectId)> {
        let range = (client, next.0, next.1)..=(client, OperationId(u64::MAX), ObjectId(u32::MAX));
        let puts = self.of.range(range).take(count);
        puts.map(|(_, operation, object)| (*operation, *object))
            .collect()
    }

    /// The objects with a put in flight that was granted to one operation of a client.
    pub(crate) fn of_operation(&self, client: ClientId, operation: OperationId) -> Vec<ObjectId> {
        let range = (client, operation, ObjectId(0))..=(client, operation, ObjectId(u32::MAX));
        let puts = self.of.range(range);
        puts.map(|(.., object)| *object).collect()
    }

    /// The objects with a put in flight on this segment, in the order of their numbers.
    pub(crate) fn on(&self, catalog: &Catalog, index: SegmentIndex) -> Vec<ObjectId> {
        let hit = |put: &OpenPut| {
            let mut segments = put.replicas.iter().map(|id| catalog.replica(*id).segment);
            segments.any(|segment| segment == index)
        };
        let open = self.open.iter().filter(|(_, put)| hit(put));
        let mut objects: Vec<ObjectId> = open.map(|(object, _)| *object).collect();
        objects.sort_unstable();
        objects
    }
}
