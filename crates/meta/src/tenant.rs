use slackwater_base::{KeyHash, Map, Planted, hash64, planted};
use slackwater_wire::{QuotaState, Tenant};

use crate::catalog::{ReplicaId, TenantIndex};
use crate::config::Tenancy;

/// Tenants with their quotas and what they use.
pub(crate) struct Tenants {
    list: Vec<Option<TenantState>>,
    by_name: Map<Tenant, TenantIndex>,
    tenancy: Tenancy,
    limit: usize,
    rings: Rings,
}

/// A tenant's quota, and what it uses.
pub(crate) struct TenantState {
    pub(crate) tenant: Tenant,
    number: u32,
    quota: Option<[u64; 2]>,
    /// The quota after scaling to what is mounted.
    allowed: Option<[u64; 2]>,
    used: [u64; 2],
    pub(crate) objects: u64,
}

/// The two accounts of a tenant's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Ledger {
    Memory = 0,
    Disk = 1,
}

impl Tenants {
    pub(crate) fn new(tenancy: Tenancy, limit: usize) -> Self {
        let mut tenants = Self {
            list: Vec::new(),
            by_name: Map::default(),
            tenancy,
            limit,
            rings: Rings::default(),
        };
        tenants.add(Tenant::DEFAULT);
        tenants
    }

    /// The tenant's index, if a tenant of that name is known.
    pub(crate) fn find(&self, tenant: &Tenant) -> Option<TenantIndex> {
        match self.tenancy {
            Tenancy::Off => Some(TenantIndex(0)),
            Tenancy::On if tenant.is_default() => Some(TenantIndex(0)),
            Tenancy::On => self.by_name.get(tenant).copied(),
        }
    }

    /// The index of the tenant of exactly this name, which is added if it is new; `None` at the limit.
    pub(crate) fn find_or_add(&mut self, tenant: &Tenant) -> Option<TenantIndex> {
        self.find_exact(tenant)
            .or_else(|| (self.by_name.len() < self.limit).then(|| self.add(tenant.clone())))
    }

    /// The tenant of exactly this name, also while tenancy is off: an SSD may hold its records.
    pub(crate) fn find_exact(&self, tenant: &Tenant) -> Option<TenantIndex> {
        self.by_name.get(tenant).copied()
    }

    /// The tenant under which objects of `tenant` are kept: the default one while tenancy is off.
    pub(crate) fn effective<'a>(&self, tenant: &'a Tenant) -> &'a Tenant {
        if self.is_on() { tenant } else { &DEFAULT }
    }

    fn add(&mut self, tenant: Tenant) -> TenantIndex {
        let number = number_of(&tenant);
        let state = TenantState {
            tenant: tenant.clone(),
            number,
            quota: None,
            allowed: None,
            used: [0; 2],
            objects: 0,
        };
        let free = self
            .list
            .iter()
            .position(Option::is_none)
            .unwrap_or_else(|| {
                self.list.push(None);
                self.list.len() - 1
            });
        self.list[free] = Some(state);
        let index = TenantIndex(free as u16);
        self.by_name.insert(tenant, index);
        index
    }

    /// Removes a tenant that has neither objects, bytes nor a quota.
    pub(crate) fn forget_if_idle(&mut self, index: TenantIndex) {
        let state = self.at(index);
        let idle = state.objects == 0 && state.used == [0; 2] && state.quota.is_none();
        if idle && !state.tenant.is_default() {
            let state = self.list[usize::from(index.0)].take().expect("found above");
            self.by_name.remove(&state.tenant);
        }
    }

    pub(crate) fn at(&self, index: TenantIndex) -> &TenantState {
        self.list[usize::from(index.0)]
            .as_ref()
            .expect("tenant numbers are held by known tenants")
    }

    pub(crate) fn at_mut(&mut self, index: TenantIndex) -> &mut TenantState {
        self.list[usize::from(index.0)]
            .as_mut()
            .expect("tenant numbers are held by known tenants")
    }

    pub(crate) fn hash(&self, index: TenantIndex, key: impl AsRef<[u8]>) -> u64 {
        let number = if planted(Planted::TenantsShareKeys) {
            0
        } else {
            self.at(index).number
        };
        KeyHash::of(number, key.as_ref()).low64()
    }

    /// The hash of a key of a tenant that may be unknown.
    pub(crate) fn hash_of(&self, tenant: &Tenant, key: impl AsRef<[u8]>) -> u64 {
        let number = if planted(Planted::TenantsShareKeys) {
            0
        } else {
            number_of(tenant)
        };
        KeyHash::of(number, key.as_ref()).low64()
    }

    /// Whether the tenant may put.
    pub(crate) fn registered(&self, index: TenantIndex) -> bool {
        let state = self.at(index);
        state.tenant.is_default() || state.quota.is_some()
    }

    pub(crate) fn is_on(&self) -> bool {
        self.tenancy == Tenancy::On
    }

    /// Bytes by which the tenant would exceed its quota with `more`.
    pub(crate) fn excess(&self, index: TenantIndex, ledger: Ledger, more: u64) -> u64 {
        let state = self.at(index);
        let used = state.used[ledger as usize].saturating_add(more);
        state
            .allowed
            .map_or(0, |allowed| used.saturating_sub(allowed[ledger as usize]))
    }

    /// The quota as it is enforced.
    pub(crate) fn allowed(&self, index: TenantIndex, ledger: Ledger) -> Option<u64> {
        self.at(index)
            .allowed
            .map(|allowed| allowed[ledger as usize])
    }

    pub(crate) fn charge(&mut self, index: TenantIndex, ledger: Ledger, bytes: u64) {
        self.at_mut(index).used[ledger as usize] += bytes;
    }

    pub(crate) fn refund(&mut self, index: TenantIndex, ledger: Ledger, bytes: u64) {
        let used = &mut self.at_mut(index).used[ledger as usize];
        *used = used
            .checked_sub(bytes)
            .expect("what is refunded was charged");
    }

    /// Sets or removes a quota, and scales all quotas to what is mounted.
    pub(crate) fn set_quota(
        &mut self,
        index: TenantIndex,
        quota: Option<[u64; 2]>,
        capacity: [u64; 2],
    ) {
        self.at_mut(index).quota = quota;
        self.rescale(capacity);
    }

    /// When quotas add up to more than is mounted, each is scaled in proportion, by the largest remainder.
    pub(crate) fn rescale(&mut self, capacity: [u64; 2]) {
        for state in self.list.iter_mut().flatten() {
            state.allowed = state.quota;
        }
        for (ledger, capacity) in capacity.into_iter().enumerate() {
            let total: u128 = self
                .list
                .iter()
                .flatten()
                .filter_map(|state| Some(u128::from(state.quota?[ledger])))
                .sum();
            if capacity == 0 || total <= u128::from(capacity) {
                continue;
            }
            let mut remainders = Vec::new();
            let mut given = 0;
            for (at, state) in self.list.iter_mut().enumerate() {
                let Some(TenantState {
                    quota: Some(quota),
                    allowed: Some(allowed),
                    ..
                }) = state
                else {
                    continue;
                };
                let product = u128::from(quota[ledger]) * u128::from(capacity);
                allowed[ledger] = (product / total) as u64;
                given += allowed[ledger];
                remainders.push((std::cmp::Reverse(product % total), at));
            }
            remainders.sort_unstable();
            for (_, at) in remainders.into_iter().take((capacity - given) as usize) {
                if let Some(TenantState {
                    allowed: Some(allowed),
                    ..
                }) = &mut self.list[at]
                {
                    allowed[ledger] += 1;
                }
            }
        }
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = QuotaState> {
        self.list.iter().flatten().map(|state| QuotaState {
            tenant: state.tenant.clone(),
            memory_quota: state.quota.map(|quota| quota[0]),
            disk_quota: state.quota.map(|quota| quota[1]),
            memory_bytes: state.used[0],
            disk_bytes: state.used[1],
            objects: state.objects,
        })
    }

    pub(crate) fn indices(&self) -> impl Iterator<Item = TenantIndex> {
        self.list
            .iter()
            .enumerate()
            .filter(|(_, state)| state.is_some())
            .map(|(at, _)| TenantIndex(at as u16))
    }

    /// The replica became its tenant's most recently used one.
    pub(crate) fn touch(&mut self, index: TenantIndex, ledger: Ledger, id: ReplicaId) {
        if self.is_on() {
            self.rings.touch(index, ledger, id);
        }
    }

    pub(crate) fn untouch(&mut self, id: ReplicaId) {
        if self.is_on() {
            self.rings.remove(id);
        }
    }

    /// Up to `limit` of the tenant's replicas, least recently used first.
    pub(crate) fn oldest(
        &self,
        index: TenantIndex,
        ledger: Ledger,
        limit: usize,
    ) -> Vec<ReplicaId> {
        self.rings.oldest(index, ledger, limit)
    }

    pub(crate) fn overhead_bytes(&self) -> usize {
        self.rings.links.capacity() * size_of::<[u32; 2]>()
    }
}

impl TenantState {
    pub(crate) fn has_quota(&self) -> bool {
        self.quota.is_some()
    }

    pub(crate) fn used(&self, ledger: Ledger) -> u64 {
        self.used[ledger as usize]
    }
}

/// Follows from the name, so that a key's hash is the same after a restart.
fn number_of(tenant: &Tenant) -> u32 {
    if tenant.is_default() {
        0
    } else {
        hash64(tenant.name().as_bytes()) as u32 | 1
    }
}

static DEFAULT: Tenant = Tenant::DEFAULT;

/// Each tenant's replicas in the order of their last use, as rings through one array: eviction for a quota must find
/// the tenant's own replicas, and the segments' policies do not know tenants.
#[derive(Default)]
struct Rings {
    /// Previous and next replica, by replica; both none when it is in no ring.
    links: Vec<[u32; 2]>,
    /// The oldest, by tenant and ledger.
    heads: Map<(u16, u8), u32>,
    home: Map<u32, (u16, u8)>,
}

const NONE: u32 = u32::MAX;

impl Rings {
    fn touch(&mut self, index: TenantIndex, ledger: Ledger, id: ReplicaId) {
        self.remove(id);
        let home = (index.0, ledger as u8);
        if self.links.len() <= id.0 as usize {
            self.links.resize(id.0 as usize + 1, [NONE; 2]);
        }
        self.home.insert(id.0, home);
        let head = *self.heads.entry(home).or_insert(id.0);
        let last = if head == id.0 {
            id.0
        } else {
            self.links[head as usize][0]
        };
        self.links[id.0 as usize] = [last, head];
        self.links[last as usize][1] = id.0;
        self.links[head as usize][0] = id.0;
    }

    fn remove(&mut self, id: ReplicaId) {
        let Some(home) = self.home.remove(&id.0) else {
            return;
        };
        let [before, after] = std::mem::replace(&mut self.links[id.0 as usize], [NONE; 2]);
        if after == id.0 {
            self.heads.remove(&home);
            return;
        }
        self.links[before as usize][1] = after;
        self.links[after as usize][0] = before;
        if self.heads[&home] == id.0 {
            self.heads.insert(home, after);
        }
    }

    fn oldest(&self, index: TenantIndex, ledger: Ledger, limit: usize) -> Vec<ReplicaId> {
        let Some(head) = self.heads.get(&(index.0, ledger as u8)) else {
            return Vec::new();
        };
        let mut found = vec![ReplicaId(*head)];
        let mut at = self.links[*head as usize][1];
        while at != *head && found.len() < limit {
            found.push(ReplicaId(at));
            at = self.links[at as usize][1];
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_keep_the_order_of_last_use() {
        let mut rings = Rings::default();
        let oldest = |rings: &Rings| {
            let ids = rings.oldest(TenantIndex(1), Ledger::Memory, 9);
            ids.into_iter().map(|id| id.0).collect::<Vec<_>>()
        };
        for id in [3, 5, 4] {
            rings.touch(TenantIndex(1), Ledger::Memory, ReplicaId(id));
        }
        assert_eq!(oldest(&rings), [3, 5, 4]);
        rings.touch(TenantIndex(1), Ledger::Memory, ReplicaId(3));
        assert_eq!(oldest(&rings), [5, 4, 3]);
        rings.remove(ReplicaId(4));
        rings.remove(ReplicaId(5));
        assert_eq!(oldest(&rings), [3]);
        rings.remove(ReplicaId(3));
        assert!(oldest(&rings).is_empty());
    }

    #[test]
    fn quotas_over_capacity_are_scaled_by_largest_remainder() {
        let check = |quotas: &[u64], capacity: u64, expect: &[u64]| {
            let mut tenants = Tenants::new(Tenancy::On, 10);
            for (at, quota) in quotas.iter().enumerate() {
                let index = tenants
                    .find_or_add(&Tenant::new(&format!("t{at}")).unwrap())
                    .unwrap();
                tenants.set_quota(index, Some([*quota, 0]), [capacity, 0]);
            }
            let allowed: Vec<u64> = (1..=quotas.len())
                .map(|at| {
                    tenants
                        .allowed(TenantIndex(at as u16), Ledger::Memory)
                        .unwrap()
                })
                .collect();
            assert_eq!(allowed, expect);
        };
        check(&[10, 20], 100, &[10, 20]);
        check(&[100, 200], 100, &[33, 67]);
        check(&[1, 1, 1], 2, &[1, 1, 0]);
        check(&[5, 5], 0, &[5, 5]);
    }
}
