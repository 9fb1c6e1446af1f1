//! Puts: started with room for their bytes, or waiting for it, and ended by their writer or without it.

use std::collections::BTreeSet;

use slackwater_base::{Instant, Map};
use slackwater_wire::{ClientId, Durability, Pin, Version};

use crate::catalog::{Catalog, ObjectId, ReplicaId, SegmentIndex};

mod end;
mod queue;
mod start;

pub(crate) use queue::Queue;

/// Puts in flight.
#[derive(Default)]
pub(crate) struct Puts {
    pub(crate) open: Map<ObjectId, OpenPut>,
    of: Map<ClientId, BTreeSet<ObjectId>>,
}

/// A put whose room was given and whose bytes are under way. Readers do not see it.
#[derive(Debug)]
pub(crate) struct OpenPut {
    pub(crate) version: Version,
    pub(crate) client: ClientId,
    pub(crate) bytes: u64,
    pub(crate) replicas: Vec<ReplicaId>,
    pub(crate) started: Instant,
    pub(crate) pin: Pin,
    pub(crate) group: Option<u64>,
    pub(crate) durability: Durability,
    pub(crate) chain: ChainPosition,
}

/// Where a block stands in its chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChainPosition {
    pub(crate) parent: Option<u64>,
    pub(crate) position: u32,
    pub(crate) hint: Option<u32>,
    pub(crate) output_tokens: Option<u32>,
}

impl Puts {
    pub(crate) fn add(&mut self, object: ObjectId, put: OpenPut) {
        self.of.entry(put.client).or_default().insert(object);
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
        let all = self
            .of
            .get_mut(&put.client)
            .expect("clients with puts are listed");
        all.remove(&object);
        if all.is_empty() {
            self.of.remove(&put.client);
        }
        put
    }

    /// The objects of which a client has a put in flight.
    pub(crate) fn of_client(&self, client: ClientId) -> Vec<ObjectId> {
        self.of
            .get(&client)
            .map_or_else(Vec::new, |objects| objects.iter().copied().collect())
    }

    /// The objects that are being put to this segment, in the order of their numbers.
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
