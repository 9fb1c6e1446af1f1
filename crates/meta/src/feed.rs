//! What becomes readable in a tier and what leaves it, for those who are told of it outside.
//!
//! It costs one comparison a replica while nobody is told. The owner takes what was told after each step, so that as much
//! waits here as one step brings.

use slackwater_wire::SegmentKind;
use slackwater_wire::kv_events::{Held, KvEvent};

use crate::catalog::{ObjectId, ReplicaId};
use crate::master::Master;

/// What was told and not taken yet.
#[derive(Default)]
pub(crate) struct Feed {
    wanted: bool,
    told: Vec<KvEvent>,
}

impl Master {
    /// Tells from now on what becomes readable in a tier and what leaves it, beginning with the news that nothing is held: a
    /// master that has just begun knows of nothing.
    pub fn tell_events(&mut self) {
        self.feed.wanted = true;
        self.feed.told.push(KvEvent::Cleared);
    }

    /// Takes what was told since the last call, in order.
    pub fn take_events(&mut self) -> Vec<KvEvent> {
        std::mem::take(&mut self.feed.told)
    }

    /// A replica is about to become its object's.
    pub(crate) fn tell_stored(&mut self, object: ObjectId, id: ReplicaId) {
        if self.feed.wanted {
            self.tell(object, id, KvEvent::Stored);
        }
    }

    /// A replica is its object's no more.
    pub(crate) fn tell_removed(&mut self, object: ObjectId, id: ReplicaId) {
        if self.feed.wanted {
            self.tell(object, id, KvEvent::Removed);
        }
    }

    /// A removal of everything has looked at every object: where that left none, readers who missed something know again
    /// what there is.
    pub(crate) fn tell_if_cleared(&mut self) {
        if self.feed.wanted && self.catalog.len() == 0 {
            self.feed.told.push(KvEvent::Cleared);
        }
    }

    /// Tells of the only replica of an object in a tier.
    #[cold]
    fn tell(&mut self, object: ObjectId, id: ReplicaId, event: fn(Held) -> KvEvent) {
        let kind_of = |segment| self.segments.at(segment).kind();
        let tier: SegmentKind = kind_of(self.catalog.replica(id).segment);
        let mut others = self.catalog.replicas(object);
        if others.any(|(_, other)| kind_of(other.segment) == tier) {
            return;
        }
        let record = self.catalog.object(object);
        let held = Held {
            tenant: self.tenants.at(record.tenant).tenant.clone(),
            key: record.key.clone(),
            tier,
        };
        self.feed.told.push(event(held));
    }
}
