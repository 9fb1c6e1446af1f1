//! Drops under way of versions that nothing has ended: their last known copies went with a node. What another node has of them is
//! as good as before, so it is owed none of them when it goes too.
//!
//! A removal of many keys comes to the drops that it covers step by step. For a node that goes before that it counts nevertheless: it is
//! owed the removal as a whole.

use slackwater_base::{Planted, planted};
use slackwater_wire::{Key, Tenant, Version};

use crate::catalog::ObjectId;
use crate::master::Master;

impl Master {
    /// The last copy of a value is gone with a node: nothing has ended it. That counts also for records of it that other nodes are
    /// writing, and that are to be dropped once they are written.
    pub(crate) fn spare_drops(&mut self, id: ObjectId) {
        let nothing = self.drops.len() == 0 && self.offloads.is_empty();
        if nothing || planted(Planted::LostOffloadsAreDropped) {
            return;
        }
        let entry = self.entry(id);
        let hash = self.catalog.object(id).hash;
        for disk in self.offloads.disks_of(entry.version) {
            self.begin_drop((hash, entry.version, disk), &entry);
        }
        for name in self.drops.of(hash, entry.version..=entry.version) {
            let drop = self.drops.at_mut(&name);
            drop.spared |= drop.entry == entry;
        }
    }

    /// Versions of a key up to `up_to` have ended, wherever they are.
    pub(crate) fn end_spared(&mut self, tenant: &Tenant, key: &Key, hash: u64, up_to: Version) {
        for name in self.drops.of(hash, Version(0)..=up_to) {
            let drop = self.drops.at_mut(&name);
            let same = drop.entry.key == *key && drop.entry.tenant == *tenant;
            drop.spared &= !same;
        }
    }
}
