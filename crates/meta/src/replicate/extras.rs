//! Replicas that were made because their objects are read much. They are the first to go when memory is short.

use std::collections::BTreeMap;

use slackwater_base::Map;

use crate::catalog::{ReplicaId, SegmentIndex, TenantIndex};

/// The extra replicas of each segment and of each tenant, those first that were made, or hot again, longest ago.
#[derive(Default)]
pub(super) struct Extras {
    of: Map<ReplicaId, Place>,
    at: BTreeMap<(SegmentIndex, u64), ReplicaId>,
    by: BTreeMap<(TenantIndex, u64), ReplicaId>,
    next: u64,
}

#[derive(Clone, Copy)]
struct Place {
    segment: SegmentIndex,
    tenant: TenantIndex,
    number: u64,
}

impl Extras {
    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    /// Adds a replica.
    pub(super) fn add(&mut self, id: ReplicaId, segment: SegmentIndex, tenant: TenantIndex) {
        self.remove(id);
        let number = self.next;
        self.next += 1;
        let place = Place {
            segment,
            tenant,
            number,
        };
        self.of.insert(id, place);
        self.at.insert((segment, number), id);
        self.by.insert((tenant, number), id);
    }

    /// Puts a replica behind the others, if it is one of these.
    pub(super) fn renew(&mut self, id: ReplicaId) {
        if let Some(Place {
            segment, tenant, ..
        }) = self.of.get(&id).copied()
        {
            self.add(id, segment, tenant);
        }
    }

    /// Whether it was one of these.
    pub(super) fn remove(&mut self, id: ReplicaId) -> bool {
        let place = self.of.remove(&id);
        if let Some(place) = place {
            self.at.remove(&(place.segment, place.number));
            self.by.remove(&(place.tenant, place.number));
        }
        place.is_some()
    }

    /// Those of a segment.
    pub(super) fn at(&self, segment: SegmentIndex) -> impl Iterator<Item = ReplicaId> {
        let range = (segment, 0)..=(segment, u64::MAX);
        self.at.range(range).map(|(_, id)| *id)
    }

    /// Those of a tenant.
    pub(super) fn of_tenant(&self, tenant: TenantIndex) -> impl Iterator<Item = ReplicaId> {
        let range = (tenant, 0)..=(tenant, u64::MAX);
        self.by.range(range).map(|(_, id)| *id)
    }
}
