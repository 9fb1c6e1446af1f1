//! Replicas that gave a reader wrong bytes.

use slackwater_base::Instant;
use slackwater_wire::{Key, ReplicaAt, ReplicaState, Reply, Tenant, Version};

use crate::catalog::ReplicaId;
use crate::master::Master;
use crate::segment::Medium;

impl Master {
    /// Drops the replica that a reader accuses, if it still is what the reader read. The object lives on in the
    /// others; a last one takes it along, for wrong bytes are a miss.
    pub(crate) fn suspect(
        &mut self,
        now: Instant,
        tenant: &Tenant,
        key: &Key,
        version: Version,
        at: &ReplicaAt,
    ) -> Reply {
        let found = self.find(tenant, key).filter(|id| self.catalog.object(*id).version == version);
        let Some(id) = found else { return Reply::Done };
        let accused = |replica: ReplicaId| {
            let facts = self.catalog.replica(replica);
            let segment = self.segments.at(facts.segment);
            let same = match (&segment.medium, at) {
                (Medium::Memory(_), ReplicaAt::Memory(extent)) => self.extent_of(replica) == *extent,
                (Medium::Disk(_), ReplicaAt::Disk { segment: named, .. }) => segment.id == *named,
                _ => false,
            };
            same && facts.state == ReplicaState::Complete
        };
        let replica = self.catalog.replicas(id).map(|(replica, _)| replica).find(|replica| accused(*replica));
        if let Some(replica) = replica {
            let segment = self.catalog.replica(replica).segment;
            self.cancel_promotions_from(now, replica);
            self.withdraw_replica(now, id, replica, segment, None);
            self.erase_if_empty(id);
            self.metrics.replicas_suspected += 1;
            self.serve(now);
        }
        Reply::Done
    }
}
