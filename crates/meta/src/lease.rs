//! Who holds what: leases, soft pins, groups and guards.

use std::collections::BTreeSet;
use std::time::Duration;

use slackwater_base::{Instant, Map};
use slackwater_wire::{ClientId, ErrorCode, GuardId};

use crate::catalog::{ObjectId, ReplicaId, TenantIndex};
use crate::slab::Slab;

/// The end of a lease after a read.
pub(crate) fn after_read(lease: Instant, now: Instant, ttl: Duration) -> Instant {
    lease.max(now + ttl)
}

/// The end of a lease after a probe. A probe leases what had no lease for a whole ttl, and prolongs nothing: who asks
/// every second whether an object is there must not keep it there for ever.
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

#[derive(Default)]
struct Group {
    members: BTreeSet<ObjectId>,
    lease: Instant,
}

impl Groups {
    pub(crate) fn join(&mut self, group: GroupKey, object: ObjectId) {
        self.groups.entry(group).or_default().members.insert(object);
        self.of.insert(object, group.1);
    }

    pub(crate) fn leave(&mut self, tenant: TenantIndex, object: ObjectId) {
        let Some(number) = self.of.remove(&object) else { return };
        let group = self.groups.get_mut(&(tenant, number)).expect("members have a group");
        group.members.remove(&object);
        if group.members.is_empty() {
            self.groups.remove(&(tenant, number));
        }
    }

    pub(crate) fn of(&self, object: ObjectId) -> Option<u64> {
        self.of.get(&object).copied()
    }

    pub(crate) fn members(&self, tenant: TenantIndex, object: ObjectId) -> impl Iterator<Item = ObjectId> {
        let group = self.of(object).and_then(|number| self.groups.get(&(tenant, number)));
        group.into_iter().flat_map(|group| group.members.iter().copied())
    }

    pub(crate) fn size(&self, group: GroupKey) -> usize {
        self.groups.get(&group).map_or(0, |group| group.members.len())
    }

    pub(crate) fn lease(&self, tenant: TenantIndex, object: ObjectId) -> Instant {
        let group = self.of(object).and_then(|number| self.groups.get(&(tenant, number)));
        group.map_or(Instant::ZERO, |group| group.lease)
    }

    pub(crate) fn renew(&mut self, tenant: TenantIndex, object: ObjectId, renew: impl FnOnce(Instant) -> Instant) {
        let group = self.of(object).and_then(|number| self.groups.get_mut(&(tenant, number)));
        if let Some(group) = group {
            group.lease = renew(group.lease);
        }
    }
}

/// Reads that keep their replica in place until they end.
pub(crate) struct Guards {
    held: Slab<Guard>,
    of: Map<ClientId, BTreeSet<u32>>,
    limit: usize,
    stamp: u32,
}

struct Guard {
    replica: ReplicaId,
    client: ClientId,
    stamp: u32,
}

impl Guards {
    pub(crate) fn new(limit: usize) -> Self {
        Self { held: Slab::new(), of: Map::default(), limit, stamp: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn hold(&mut self, client: ClientId, replica: ReplicaId) -> Result<GuardId, ErrorCode> {
        if self.held.len() >= self.limit {
            return Err(ErrorCode::TaskPendingLimitExceeded);
        }
        self.stamp = self.stamp.wrapping_add(1);
        let id = self.held.insert(Guard { replica, client, stamp: self.stamp });
        self.of.entry(client).or_default().insert(id);
        Ok(GuardId(u64::from(self.stamp) << 32 | u64::from(id)))
    }

    /// Ends a guard of this client; `None` when it has no such guard (any more).
    pub(crate) fn end(&mut self, client: ClientId, guard: GuardId) -> Option<ReplicaId> {
        let id = guard.0 as u32;
        let held = self.held.get(id)?;
        if held.client != client || u64::from(held.stamp) != guard.0 >> 32 {
            return None;
        }
        let all = self.of.get_mut(&client).expect("clients with guards are listed");
        all.remove(&id);
        if all.is_empty() {
            self.of.remove(&client);
        }
        Some(self.held.remove(id).replica)
    }

    /// Ends every guard of a client that is gone.
    pub(crate) fn lose(&mut self, client: ClientId) -> Vec<ReplicaId> {
        let all = self.of.remove(&client).unwrap_or_default();
        all.into_iter().map(|id| self.held.remove(id).replica).collect()
    }

    /// Ends every guard on a replica that is lost with its segment.
    pub(crate) fn forget(&mut self, gone: impl Fn(ReplicaId) -> bool) {
        let ids: Vec<u32> = self.held.iter().filter(|(_, guard)| gone(guard.replica)).map(|(id, _)| id).collect();
        for id in ids {
            let guard = self.held.remove(id);
            let all = self.of.get_mut(&guard.client).expect("clients with guards are listed");
            all.remove(&id);
            if all.is_empty() {
                self.of.remove(&guard.client);
            }
        }
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
            assert_eq!(after_probe(at(lease), at(now), ttl), at(expect), "lease {lease} now {now}");
        };
        check(0, 1, 11);
        check(11, 5, 11);
        check(11, 11, 11);
        check(11, 20, 11);
        check(11, 21, 31);
        assert_eq!(after_read(at(11), at(5), ttl), at(15));
    }

    #[test]
    fn a_guard_ends_once_and_for_its_client_only() {
        let mut guards = Guards::new(2);
        let guard = guards.hold(ClientId(1), ReplicaId(7)).unwrap();
        assert_eq!(guards.end(ClientId(2), guard), None);
        assert_eq!(guards.end(ClientId(1), guard), Some(ReplicaId(7)));
        assert_eq!(guards.end(ClientId(1), guard), None);
        guards.hold(ClientId(1), ReplicaId(8)).unwrap();
        guards.hold(ClientId(1), ReplicaId(8)).unwrap();
        assert_eq!(guards.hold(ClientId(1), ReplicaId(8)), Err(ErrorCode::TaskPendingLimitExceeded));
        assert_eq!(guards.lose(ClientId(1)).len(), 2);
        assert_eq!(guards.len(), 0);
    }
}
