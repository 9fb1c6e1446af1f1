//! Blocks in memory as the policy of the SSD below them knows them: its prospects.
//!
//! The SSD's policy chooses from everything that its node holds, so that what it learns and what it prefers do not
//! depend on what happens to be written already. A block becomes a prospect when it comes into memory, and ages and is
//! read in the policy of the SSD as its own blocks are. Leaving memory it is written, and the record takes over its
//! place there; or it is not worth that and ends, remembered as gone, as it does when the policy names it first.

use slackwater_base::Instant;

use crate::catalog::{ReplicaId, SegmentIndex};
use crate::config::OffloadMode;
use crate::evict::{Link, Slot, Walk};
use crate::master::Master;
use crate::publish::Fresh;
use crate::release::Reason;

impl Master {
    /// Tells the SSD below a memory segment of new residents there, a run along their chain.
    pub(crate) fn add_prospects(&mut self, run: &[Fresh], walk: &Walk<'_>) {
        let above = run[0].segment;
        let Some(below) = self
            .segments
            .at(above)
            .below
            .filter(|_| self.config.offload.mode != OffloadMode::Off)
        else {
            return;
        };
        let mut links: Vec<Link> = walk.links.to_vec();
        for (link, fresh) in links.iter_mut().zip(run) {
            let id = self.segments.at(above).replica(Slot(fresh.slot));
            let slot = self.segments.at_mut(below).number(id);
            self.catalog.replica_mut(id).set_prospect(Some(slot));
            link.slot = Some(slot);
        }
        self.segments.at_mut(below).policy.insert(&Walk {
            links: &links,
            ..*walk
        });
    }

    /// Whether the slot of a segment is the prospect of a block above it.
    pub(crate) fn is_prospect(&self, segment: SegmentIndex, id: ReplicaId) -> bool {
        self.catalog.replica(id).segment != segment
    }

    /// The replicas that a segment holds, without its prospects.
    pub(crate) fn residents(&self, index: SegmentIndex) -> impl Iterator<Item = ReplicaId> {
        self.segments
            .at(index)
            .replicas()
            .filter(move |id| !self.is_prospect(index, *id))
    }

    /// A memory replica goes, or the SSD gives it up: it is no prospect any more.
    pub(crate) fn end_prospect(&mut self, now: Instant, id: ReplicaId, reason: Reason) {
        let replica = self.catalog.replica_mut(id);
        let (Some(slot), above) = (replica.prospect(), replica.segment) else {
            return;
        };
        replica.set_prospect(None);
        let below = self
            .segments
            .at(above)
            .below
            .expect("prospects are those of an SSD");
        let segment = self.segments.at_mut(below);
        match reason {
            Reason::Evicted => segment.policy.evicted(now, slot),
            Reason::Removed => segment.policy.remove(slot),
        }
        segment.unnumber(slot.0);
    }

    /// The record of a memory replica is written: gives the place that its prospect had on that SSD.
    pub(crate) fn take_prospect(&mut self, id: ReplicaId, disk: SegmentIndex) -> Option<Slot> {
        let replica = self.catalog.replica_mut(id);
        let (slot, above) = (replica.prospect()?, replica.segment);
        if self.segments.at(above).below != Some(disk) {
            return None;
        }
        replica.set_prospect(None);
        Some(slot)
    }

    /// An SSD is gone: nothing in memory is its prospect any more.
    pub(crate) fn lose_prospects(&mut self, below: SegmentIndex) {
        let all: Vec<ReplicaId> = self.segments.at(below).replicas().collect();
        for id in all {
            if self.is_prospect(below, id) {
                self.catalog.replica_mut(id).set_prospect(None);
            }
        }
        for (_, segment) in self.segments.iter_mut() {
            segment.below.take_if(|index| *index == below);
        }
    }
}
