//! Objects that are to have another replica and wait for a free slot: tenants take turns, and of each what is read most for its
//! bytes goes first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use slackwater_base::Instant;
use slackwater_wire::Version;

use crate::catalog::{ObjectId, TenantIndex};

/// What waits, by tenant.
pub(super) struct Queue {
    limit: usize,
    of: BTreeMap<TenantIndex, BTreeSet<Proposal>>,
    /// Every tenant that has something that waits, once; the next first.
    turns: VecDeque<TenantIndex>,
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
    /// When it was read so much.
    pub(super) at: Instant,
}

impl Queue {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            of: BTreeMap::new(),
            turns: VecDeque::new(),
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
        at: Instant,
        tenant: TenantIndex,
        (object, version): (ObjectId, Version),
        (reads, bytes): (u32, u64),
    ) -> Option<Proposal> {
        let worth = Reverse((u64::from(reads) << 32) / bytes.max(1));
        let number = self.next;
        self.next += 1;
        self.len += 1;
        let waiting = self.of.entry(tenant).or_default();
        if waiting.is_empty() {
            self.turns.push_back(tenant);
        }
        waiting.insert(Proposal {
            worth,
            number,
            object,
            version,
            at,
        });
        if self.len <= self.limit {
            return None;
        }
        let (most, _) = self.of.iter().max_by_key(|(_, waiting)| waiting.len())?;
        let most = *most;
        let dropped = self.take(most, BTreeSet::pop_last);
        if !self.of.contains_key(&most) {
            self.turns.retain(|turn| *turn != most);
        }
        dropped
    }

    /// The next proposal.
    pub(super) fn pop(&mut self) -> Option<Proposal> {
        let tenant = self.turns.pop_front()?;
        let taken = self.take(tenant, BTreeSet::pop_first);
        if self.of.contains_key(&tenant) {
            self.turns.push_back(tenant);
        }
        taken
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
        let object = (ObjectId(id), Version(1));
        let dropped = queue.add(Instant::ZERO, tenant, object, (reads, bytes));
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
        let order = std::iter::from_fn(|| queue.pop());
        let order: Vec<u32> = order.map(|next| next.object.0).collect();
        assert_eq!((order, queue.len()), (vec![2, 4, 1, 5, 3], 0));
        assert_eq!(add(&mut queue, ONE, 6, 8, 4096), None);
        assert_eq!(queue.pop().map(|next| next.object.0), Some(6));
    }

    /// With more tenants than slots those with the highest numbers were never served.
    #[test]
    fn every_tenant_has_its_turn() {
        let mut queue = Queue::new(1000);
        for round in 0..2 {
            for tenant in 0..40 {
                add(
                    &mut queue,
                    TenantIndex(tenant),
                    100 * round + u32::from(tenant),
                    8,
                    4096,
                );
            }
        }
        let first = (0..40).filter_map(|_| queue.pop());
        let mut first: Vec<u32> = first.map(|next| next.object.0 % 100).collect();
        first.sort_unstable();
        assert_eq!(first, (0..40).collect::<Vec<_>>());
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
        let mut none = Queue::new(0);
        assert_eq!(add(&mut none, ONE, 1, 8, 4096), Some(1));
        assert!(none.pop().is_none() && none.turns.is_empty());
    }
}
