//! Objects that are to have another replica and wait for a free slot: of the tenant with fewest under way, what is read most for
//! its bytes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use slackwater_wire::Version;

use crate::catalog::{ObjectId, TenantIndex};

/// What waits, by tenant.
pub(super) struct Queue {
    limit: usize,
    of: BTreeMap<TenantIndex, BTreeSet<Proposal>>,
    len: usize,
    next: u64,
}

/// An object that is read much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Proposal {
    /// Reads for so many bytes, the most first.
    worth: Reverse<u64>,
    number: u64,
    pub(super) object: ObjectId,
    pub(super) version: Version,
}

impl Queue {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            of: BTreeMap::new(),
            len: 0,
            next: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a proposal; one that has no place: the least of the tenant with most.
    pub(super) fn add(
        &mut self,
        tenant: TenantIndex,
        (object, version): (ObjectId, Version),
        reads: u32,
        bytes: u64,
    ) -> Option<Proposal> {
        let worth = Reverse((u64::from(reads) << 32) / bytes.max(1));
        let number = self.next;
        self.next += 1;
        self.len += 1;
        self.of.entry(tenant).or_default().insert(Proposal {
            worth,
            number,
            object,
            version,
        });
        if self.len <= self.limit {
            return None;
        }
        let (most, _) = self.of.iter().max_by_key(|(_, waiting)| waiting.len())?;
        self.take(*most, BTreeSet::pop_last)
    }

    /// The next proposal, if `active` says how many of a tenant are under way.
    pub(super) fn pop(&mut self, active: impl Fn(TenantIndex) -> usize) -> Option<Proposal> {
        let tenant = *self.of.keys().min_by_key(|tenant| active(**tenant))?;
        self.take(tenant, BTreeSet::pop_first)
    }

    fn take(
        &mut self,
        tenant: TenantIndex,
        take: impl FnOnce(&mut BTreeSet<Proposal>) -> Option<Proposal>,
    ) -> Option<Proposal> {
        let waiting = self.of.get_mut(&tenant)?;
        let taken = take(waiting)?;
        if waiting.is_empty() {
            self.of.remove(&tenant);
        }
        self.len -= 1;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: TenantIndex = TenantIndex(1);
    const TWO: TenantIndex = TenantIndex(2);

    fn add(queue: &mut Queue, tenant: TenantIndex, id: u32, reads: u32, bytes: u64) -> Option<u32> {
        let dropped = queue.add(tenant, (ObjectId(id), Version(1)), reads, bytes);
        dropped.map(|dropped| dropped.object.0)
    }

    #[test]
    fn tenants_take_turns_and_each_begins_with_what_is_read_most_for_its_bytes() {
        let mut queue = Queue::new(10);
        for (tenant, id, reads, bytes) in [
            (ONE, 1, 8, 4096),
            (ONE, 2, 16, 4096),
            (ONE, 3, 16, 1 << 20),
            (TWO, 4, 8, 1 << 30),
            (ONE, 5, 8, 4096),
        ] {
            assert_eq!(add(&mut queue, tenant, id, reads, bytes), None);
        }
        let mut active = BTreeMap::from([(ONE, 0), (TWO, 0)]);
        let mut order = Vec::new();
        while let Some(next) = queue.pop(|tenant| active[&tenant]) {
            let tenant = if next.object.0 == 4 { TWO } else { ONE };
            *active.get_mut(&tenant).unwrap() += 1;
            order.push(next.object.0);
        }
        assert_eq!((order, queue.len()), (vec![2, 4, 1, 5, 3], 0));
    }

    #[test]
    fn beyond_the_limit_the_tenant_with_most_gives_way() {
        let mut queue = Queue::new(3);
        for (id, reads) in [(1, 10), (2, 8), (3, 9)] {
            assert_eq!(add(&mut queue, ONE, id, reads, 4096), None);
        }
        assert_eq!(add(&mut queue, TWO, 4, 8, 1 << 20), Some(2));
        assert_eq!(add(&mut queue, ONE, 5, 20, 4096), Some(3));
        assert_eq!(queue.len(), 3);
    }
}
