//! Reports of readers about wrong bytes.

use slackwater_base::Instant;
use slackwater_wire::{Key, ReplicaAt, ReplicaState, Reply, Tenant, Version};

use crate::catalog::{ReplicaId, SegmentIndex};
use crate::master::Master;
use crate::segment::Medium;

impl Master {
    /// Drops the replica that returned wrong bytes, if it still holds what was read. A report about another version or
    /// generation is late and changes nothing.
    pub(crate) fn suspect(
        &mut self,
        now: Instant,
        tenant: &Tenant,
        key: &Key,
        version: Version,
        at: &ReplicaAt,
    ) -> Reply {
        let Some(id) = self
            .find(tenant, key)
            .filter(|id| self.catalog.object(*id).version == version)
        else {
            return Reply::Done;
        };
        let accused: Option<(ReplicaId, SegmentIndex)> = self
            .catalog
            .replicas(id)
            .filter(|(_, replica)| replica.state == ReplicaState::Complete)
            .find(|(_, replica)| self.is_at(replica.segment, replica.piece, at))
            .map(|(accused, replica)| (accused, replica.segment));
        if let Some((accused, segment)) = accused {
            self.metrics.replicas_suspected += 1;
            self.cancel_promotions_from(now, accused);
            // A record that is being written from these bytes is wrong too.
            self.cancel_offloads(id, |source| source == accused, None);
            self.withdraw_replica(now, id, accused, segment, None);
            self.erase_if_empty(now, id);
            self.unsettled.room();
        }
        Reply::Done
    }

    fn is_at(&self, index: SegmentIndex, piece: u32, at: &ReplicaAt) -> bool {
        let segment = self.segments.at(index);
        match (&segment.medium, at) {
            (Medium::Memory(_), ReplicaAt::Memory(extent)) => {
                segment.reference(segment.extent(piece)) == *extent
            }
            (Medium::Disk(_), ReplicaAt::Disk { node, segment: id }) => {
                (segment.node, segment.id) == (*node, *id)
            }
            _ => false,
        }
    }
}
