//! What keeps replicas in place: leases, groups and guards.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use slackwater_base::{Instant, Map};
use slackwater_wire::{ClientId, ErrorCode, GuardId, OperationId};

use crate::catalog::{ObjectId, PinKind, ReplicaId, TenantIndex};
use crate::pressure::{Evictable, Pass};
use crate::slab::Slab;
use crate::tenant::Ledger;

/// The end of a lease after a read.
pub(crate) fn after_read(lease: Instant, now: Instant, ttl: Duration) -> Instant {
    lease.max(now + ttl)
}

/// The end of a lease after a probe. A probe gives an object without a lease one for the whole ttl, and does not
/// prolong a lease: probes every second must not keep an object for ever.
pub(crate) fn after_probe(lease: Instant, now: Instant, ttl: Duration) -> Instant {
    let cold = lease == Instant::ZERO || now >= lease + ttl;
    if cold { now + ttl } else { lease }
}

/// A group's name within its tenant.
pub(crate) type GroupKey = (TenantIndex, u64);

/// Objects that are leased and evicted together.
#[derive(Default)]
pub(crate) struct Groups {
    groups: Map<GroupKey, Group>,
    of: Map<ObjectId, u64>,
}

/// What eviction needs to know is kept as sums, because a group may have tens of thousands of members.
#[derive(Default)]
struct Group {
    members: BTreeSet<ObjectId>,
    /// End of the group's lease; no member's own lease ends later.
    lease: Instant,
    /// End of the longest soft pin that a member ever had.
    soft: Instant,
    /// Replicas that are referenced, and members pinned hard.
    held: usize,
    /// Replicas that were set aside until nothing is held.
    aside: BTreeSet<ReplicaId>,
    /// Evictions of the group that need more than one step, from memory and from SSD.
    unfinished: [Option<Unfinished>; 2],
}

/// The progress of the eviction of a large group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unfinished {
    /// The last member that was examined.
    pub(crate) after: ObjectId,
    pub(crate) pass: Pass,
}

impl Groups {
    /// Adds an object whose soft pin, if it has one, ends at `soft`.
    pub(crate) fn join(&mut self, group: GroupKey, object: ObjectId, pin: PinKind, soft: Instant) {
        let joined = self.groups.entry(group).or_default();
        joined.members.insert(object);
        joined.held += usize::from(pin == PinKind::Hard);
        joined.soft = joined.soft.max(soft);
        self.of.insert(object, group.1);
    }

    /// Removes an object without replicas; returns its group if nothing is held there now that the object's pin is
    /// gone.
    pub(crate) fn remove(
        &mut self,
        tenant: TenantIndex,
        object: ObjectId,
        pin: PinKind,
    ) -> Option<GroupKey> {
        let released = if pin == PinKind::Hard {
            self.unhold(tenant, object)
        } else {
            None
        };
        if let Some(number) = self.of.remove(&object) {
            let group = self
                .groups
                .get_mut(&(tenant, number))
                .expect("members have a group");
            group.members.remove(&object);
            if group.members.is_empty() {
                self.groups.remove(&(tenant, number));
            }
        }
        released
    }

    pub(crate) fn of(&self, object: ObjectId) -> Option<u64> {
        self.of.get(&object).copied()
    }

    /// The name of a member's group.
    pub(crate) fn key(&self, tenant: TenantIndex, object: ObjectId) -> GroupKey {
        let number = self
            .of(object)
            .expect("the object's mark says that it has a group");
        (tenant, number)
    }

    fn group(&self, tenant: TenantIndex, object: ObjectId) -> Option<&Group> {
        self.groups.get(&(tenant, self.of(object)?))
    }

    fn group_mut(&mut self, tenant: TenantIndex, object: ObjectId) -> Option<&mut Group> {
        let number = self.of(object)?;
        self.groups.get_mut(&(tenant, number))
    }

    pub(crate) fn members(
        &self,
        tenant: TenantIndex,
        object: ObjectId,
    ) -> impl Iterator<Item = ObjectId> {
        self.group(tenant, object)
            .into_iter()
            .flat_map(|group| group.members.iter().copied())
    }

    pub(crate) fn size(&self, group: GroupKey) -> usize {
        self.groups
            .get(&group)
            .map_or(0, |group| group.members.len())
    }

    pub(crate) fn lease(&self, tenant: TenantIndex, object: ObjectId) -> Instant {
        self.group(tenant, object)
            .map_or(Instant::ZERO, |group| group.lease)
    }

    /// Renews the group's lease; it stays at least as long as the member's own.
    pub(crate) fn renew(
        &mut self,
        tenant: TenantIndex,
        object: ObjectId,
        own: Instant,
        renew: impl FnOnce(Instant) -> Instant,
    ) {
        if let Some(group) = self.group_mut(tenant, object) {
            group.lease = renew(group.lease).max(own);
        }
    }

    /// Whether the members may be evicted now: all of them or none.
    pub(crate) fn evictable(&self, group: GroupKey, now: Instant) -> Evictable {
        match self.groups.get(&group) {
            Some(group) if group.held > 0 => Evictable::Held,
            Some(group) if group.lease > now => Evictable::NotBefore(group.lease),
            Some(group) if group.soft > now => Evictable::SoftPinned(group.soft),
            _ => Evictable::Now,
        }
    }

    /// Up to `limit` members behind `after`, in the order of their numbers.
    pub(crate) fn members_after(
        &self,
        group: GroupKey,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Vec<ObjectId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.groups.get(&group).map_or_else(Vec::new, |group| {
            let members = group.members.range((from, Bound::Unbounded));
            members.take(limit).copied().collect()
        })
    }

    pub(crate) fn unfinished(&self, group: GroupKey, ledger: Ledger) -> Option<Unfinished> {
        self.groups.get(&group)?.unfinished[ledger as usize]
    }

    pub(crate) fn set_unfinished(
        &mut self,
        group: GroupKey,
        ledger: Ledger,
        unfinished: Option<Unfinished>,
    ) {
        if let Some(group) = self.groups.get_mut(&group) {
            group.unfinished[ledger as usize] = unfinished;
        }
    }

    /// Counts a replica of this member that has its first reference.
    pub(crate) fn hold(&mut self, tenant: TenantIndex, object: ObjectId) {
        if let Some(group) = self.group_mut(tenant, object) {
            group.held += 1;
        }
    }

    /// Counts off a replica that has no reference any more; returns the group if nothing is held there now.
    pub(crate) fn unhold(&mut self, tenant: TenantIndex, object: ObjectId) -> Option<GroupKey> {
        let key = (tenant, self.of(object)?);
        let group = self.groups.get_mut(&key)?;
        group.held -= 1;
        (group.held == 0).then_some(key)
    }

    /// Up to `limit` replicas that were set aside because something was held, if nothing is held now.
    pub(crate) fn released(&self, group: GroupKey, limit: usize) -> Vec<ReplicaId> {
        match self.groups.get(&group) {
            Some(group) if group.held == 0 => group.aside.iter().take(limit).copied().collect(),
            _ => Vec::new(),
        }
    }

    /// Records a member's replica that was set aside because something is held.
    pub(crate) fn set_aside(&mut self, tenant: TenantIndex, object: ObjectId, replica: ReplicaId) {
        if let Some(group) = self.group_mut(tenant, object) {
            group.aside.insert(replica);
        }
    }

    /// Removes a replica that is no longer set aside.
    pub(crate) fn take_back(&mut self, tenant: TenantIndex, object: ObjectId, replica: ReplicaId) {
        if let Some(group) = self.group_mut(tenant, object) {
            group.aside.remove(&replica);
        }
    }

    /// Every member with the count of what is held in its group, for the check of the books.
    pub(crate) fn counts(
        &self,
    ) -> impl Iterator<Item = (GroupKey, usize, impl Iterator<Item = ObjectId>)> {
        self.groups
            .iter()
            .map(|(key, group)| (*key, group.held, group.members.iter().copied()))
    }
}

/// Reads that keep their replica in place until they end.
pub(crate) struct Guards {
    held: Slab<Guard>,
    /// Indices in `held` by client, ordered by the operation that was granted the guard.
    of: Map<ClientId, BTreeSet<(OperationId, u32)>>,
    limit: usize,
    stamp: u32,
}

struct Guard {
    replica: ReplicaId,
    client: ClientId,
    operation: OperationId,
    stamp: u32,
}

impl Guards {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            held: Slab::new(),
            of: Map::default(),
            limit,
            stamp: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn hold(
        &mut self,
        (client, operation): (ClientId, OperationId),
        replica: ReplicaId,
    ) -> Result<GuardId, ErrorCode> {
        if self.held.len() >= self.limit {
            return Err(ErrorCode::TaskPendingLimitExceeded);
        }
        self.stamp = self.stamp.wrapping_add(1);
        let id = self.held.insert(Guard {
            replica,
            client,
            operation,
            stamp: self.stamp,
        });
        self.of.entry(client).or_default().insert((operation, id));
        Ok(GuardId(u64::from(self.stamp) << 32 | u64::from(id)))
    }

    /// Ends a guard of this client; `None` when it does not have that guard.
    pub(crate) fn end(&mut self, client: ClientId, guard: GuardId) -> Option<ReplicaId> {
        let id = guard.0 as u32;
        let held = self.held.get(id)?;
        if held.client != client || u64::from(held.stamp) != guard.0 >> 32 {
            return None;
        }
        Some(self.remove(id).replica)
    }

    /// Ends every guard that one operation of a client was granted.
    pub(crate) fn revoke(&mut self, client: ClientId, operation: OperationId) -> Vec<ReplicaId> {
        let granted: Vec<u32> = self.of.get(&client).map_or_else(Vec::new, |all| {
            let granted = all.range((operation, 0)..=(operation, u32::MAX));
            granted.map(|(_, id)| *id).collect()
        });
        granted
            .into_iter()
            .map(|id| self.remove(id).replica)
            .collect()
    }

    /// Ends every guard of a client that is gone.
    pub(crate) fn lose(&mut self, client: ClientId) -> Vec<ReplicaId> {
        let all = self.of.remove(&client).unwrap_or_default();
        all.into_iter()
            .map(|(_, id)| self.held.remove(id).replica)
            .collect()
    }

    /// Ends every guard on a replica that is lost with its segment.
    pub(crate) fn forget(&mut self, gone: impl Fn(ReplicaId) -> bool) {
        let ids: Vec<u32> = self
            .held
            .iter()
            .filter(|(_, guard)| gone(guard.replica))
            .map(|(id, _)| id)
            .collect();
        for id in ids {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: u32) -> Guard {
        let guard = self.held.remove(id);
        let all = self
            .of
            .get_mut(&guard.client)
            .expect("clients with guards are listed");
        all.remove(&(guard.operation, id));
        if all.is_empty() {
            self.of.remove(&guard.client);
        }
        guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_prolong_no_lease() {
        let ttl = Duration::from_secs(10);
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let check = |lease: u64, now: u64, expect: u64| {
            assert_eq!(
                after_probe(at(lease), at(now), ttl),
                at(expect),
                "lease {lease} now {now}"
            );
        };
        check(0, 1, 11);
        check(11, 5, 11);
        check(11, 11, 11);
        check(11, 20, 11);
        check(11, 21, 31);
        assert_eq!(after_read(at(11), at(5), ttl), at(15));
    }

    #[test]
    fn a_guard_is_ended_once_and_by_its_client_only() {
        let mut guards = Guards::new(2);
        let guard = guards
            .hold((ClientId(1), OperationId(1)), ReplicaId(7))
            .unwrap();
        assert_eq!(guards.end(ClientId(2), guard), None);
        assert_eq!(guards.end(ClientId(1), guard), Some(ReplicaId(7)));
        assert_eq!(guards.end(ClientId(1), guard), None);
        guards
            .hold((ClientId(1), OperationId(1)), ReplicaId(8))
            .unwrap();
        guards
            .hold((ClientId(1), OperationId(1)), ReplicaId(8))
            .unwrap();
        assert_eq!(
            guards.hold((ClientId(1), OperationId(1)), ReplicaId(8)),
            Err(ErrorCode::TaskPendingLimitExceeded)
        );
        assert_eq!(guards.lose(ClientId(1)).len(), 2);
        assert_eq!(guards.len(), 0);
    }
}
