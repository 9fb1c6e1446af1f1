//! Replicas that were made because their objects are read much. They are the first to go when memory is short.

use std::collections::BTreeMap;

use slackwater_base::Map;

use crate::catalog::{ReplicaId, SegmentIndex};

/// The extra replicas of each segment, those first that were made, or hot again, longest ago.
#[derive(Default)]
pub(super) struct Extras {
    of: Map<ReplicaId, (SegmentIndex, u64)>,
    in_order: BTreeMap<(SegmentIndex, u64), ReplicaId>,
    next: u64,
}

impl Extras {
    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    pub(super) fn has(&self, id: ReplicaId) -> bool {
        self.of.contains_key(&id)
    }

    /// Adds a replica, or puts it behind the others.
    pub(super) fn renew(&mut self, id: ReplicaId, segment: SegmentIndex) {
        self.remove(id);
        self.of.insert(id, (segment, self.next));
        self.in_order.insert((segment, self.next), id);
        self.next += 1;
    }

    pub(super) fn remove(&mut self, id: ReplicaId) -> bool {
        let place = self.of.remove(&id);
        place.is_some_and(|place| self.in_order.remove(&place).is_some())
    }

    /// Those of a segment.
    pub(super) fn at(&self, segment: SegmentIndex) -> impl Iterator<Item = ReplicaId> {
        let range = (segment, 0)..=(segment, u64::MAX);
        self.in_order.range(range).map(|(_, id)| *id)
    }

    /// Those of all segments.
    pub(super) fn all(&self) -> impl Iterator<Item = ReplicaId> {
        self.in_order.values().copied()
    }
}
