//! Drops under way of versions that nothing has ended: their last known copies went with a node. What another node has of them is
//! as good as before, so it is owed none of them when it goes too.

use std::collections::BTreeSet;

use slackwater_base::{Planted, planted};
use slackwater_wire::{DiskEntry, Key, Tenant, Version};

use crate::catalog::SegmentIndex;
use crate::drops::DropName;
use crate::master::Master;
use crate::owed::Sweep;

#[derive(Default)]
pub(crate) struct Spared(BTreeSet<DropName>);

impl Spared {
    pub(crate) fn has(&self, name: &DropName) -> bool {
        self.0.contains(name)
    }

    /// A drop is over, or gone with its segment, or its version has ended.
    pub(crate) fn remove(&mut self, name: &DropName) {
        self.0.remove(name);
    }

    /// Whether all of them are of drops under way.
    pub(crate) fn balance(&self, is_pending: impl Fn(&DropName) -> bool) -> bool {
        self.0.iter().all(is_pending)
    }
}

impl Master {
    /// The last copy of a version is gone with a node: nothing has ended it.
    pub(crate) fn spare_drops(&mut self, hash: u64, entry: &DiskEntry) {
        if planted(Planted::LostOffloadsAreDropped) || self.owed.is_swept(entry) {
            return;
        }
        for name in self.drops.of(hash, entry.version..=entry.version) {
            if *self.drops.entry(&name) == *entry {
                self.drops.spared.0.insert(name);
            }
        }
    }

    /// Versions of a key up to `up_to` have ended, wherever they are.
    pub(crate) fn end_spared(&mut self, tenant: &Tenant, key: &Key, hash: u64, up_to: Version) {
        let range = (hash, Version(0), SegmentIndex(0))..=(hash, up_to, SegmentIndex(u16::MAX));
        let names = self.drops.spared.0.range(range);
        let names: Vec<DropName> = names.copied().collect();
        for name in names {
            let entry = self.drops.entry(&name);
            if entry.key == *key && entry.tenant == *tenant {
                self.drops.spared.remove(&name);
            }
        }
    }

    /// All that a removal of many keys is to end has ended.
    pub(crate) fn end_swept(&mut self, sweep: &Sweep) {
        let names = self.drops.spared.0.iter();
        let swept = names.filter(|name| sweep.covers(self.drops.entry(name)));
        let swept: Vec<DropName> = swept.copied().collect();
        for name in swept {
            self.drops.spared.remove(&name);
        }
    }
}
