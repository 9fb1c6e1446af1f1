//! How many values hold each block in each tier.

use std::collections::BTreeMap;

use super::BlockHash;
use crate::{SegmentKind, Tenant};

/// The numbers of values by block, memory and SSD. A tree, because clients choose the keys of values and could choose such
/// whose hashes collide.
#[derive(Debug, Default)]
pub(super) struct Holders(BTreeMap<(Option<Tenant>, BlockHash), [u32; 2]>);

impl Holders {
    /// Another value holds a block. Whether it is the first there.
    pub(super) fn add(
        &mut self,
        tenant: Option<Tenant>,
        hash: BlockHash,
        tier: SegmentKind,
    ) -> bool {
        let count = &mut self.0.entry((tenant, hash)).or_default()[at(tier)];
        *count = count.saturating_add(1);
        *count == 1
    }

    /// A value holds a block no more. Whether it was the last there; also true of one that was not known.
    pub(super) fn remove(
        &mut self,
        tenant: Option<Tenant>,
        hash: BlockHash,
        tier: SegmentKind,
    ) -> bool {
        let key = (tenant, hash);
        let Some(counts) = self.0.get_mut(&key) else {
            return true;
        };
        let count = &mut counts[at(tier)];
        *count = count.saturating_sub(1);
        let is_last = *count == 0;
        if *counts == [0; 2] {
            self.0.remove(&key);
        }
        is_last
    }

    /// Blocks that are held.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Nothing is held any more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

fn at(tier: SegmentKind) -> usize {
    usize::from(tier == SegmentKind::Disk)
}
