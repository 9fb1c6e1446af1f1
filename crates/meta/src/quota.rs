//! Tenants' quotas: setting, listing, and enforcing them by evicting the tenant's own objects.

use slackwater_base::Instant;
use slackwater_wire::{ErrorCode, Reply, Tenant};

use crate::catalog::{Excluded, TenantIndex};
use crate::decisions::EvictionCause;
use crate::journal::Note;
use crate::master::{Due, Master};
use crate::pressure::{Evictable, Evicted, Pass};
use crate::tenant::Ledger;

/// Most replicas of a tenant that are examined, oldest first, for ones that may be evicted.
const OLDEST_EXAMINED: usize = 256;

impl Master {
    pub(crate) fn set_quota(&mut self, now: Instant, tenant: &Tenant, quota: [u64; 2]) -> Reply {
        if !self.tenants.is_on() {
            return Reply::Failed(ErrorCode::UnavailableInCurrentMode);
        }
        let Some(index) = self.tenants.find_or_add(tenant) else {
            return Reply::Failed(ErrorCode::TaskPendingLimitExceeded);
        };
        let capacity = self.segments.capacity();
        self.tenants.set_quota(index, Some(quota), capacity);
        self.notes.note(|| Note::Quota {
            tenant: tenant.clone(),
            quota: Some(quota),
        });
        for ledger in [Ledger::Memory, Ledger::Disk] {
            self.trim(now, index, ledger);
        }
        self.unsettled.room();
        Reply::Done
    }

    pub(crate) fn delete_quota(&mut self, tenant: &Tenant) -> Reply {
        if !self.tenants.is_on() {
            return Reply::Failed(ErrorCode::UnavailableInCurrentMode);
        }
        let index = self
            .tenants
            .find(tenant)
            .filter(|index| self.tenants.at(*index).has_quota());
        let Some(index) = index else {
            return Reply::Failed(ErrorCode::TenantNotRegistered);
        };
        let state = self.tenants.at(index);
        let holds =
            state.objects > 0 || state.used(Ledger::Memory) > 0 || state.used(Ledger::Disk) > 0;
        // A put that waits would be given its room under a number that is another tenant's by then.
        if holds || self.queue.has_calls_of(index) {
            return Reply::Failed(ErrorCode::TenantNotEmpty);
        }
        let capacity = self.segments.capacity();
        self.tenants.set_quota(index, None, capacity);
        self.notes.note(|| Note::Quota {
            tenant: tenant.clone(),
            quota: None,
        });
        self.tenants.forget_if_idle(index);
        // What it had is shared out among the others.
        self.unsettled.room();
        Reply::Done
    }

    /// Whether `more` bytes fit the tenant's quota, after evicting its own if need be.
    pub(crate) fn fit_quota(
        &mut self,
        now: Instant,
        tenant: TenantIndex,
        ledger: Ledger,
        more: u64,
    ) -> bool {
        let excess = self.tenants.excess(tenant, ledger, more);
        if excess == 0 {
            return true;
        }
        let later = self.evict_tenant(now, tenant, ledger, excess);
        let fits = self.tenants.excess(tenant, ledger, more) == 0;
        // Puts wait for memory alone.
        if let Some(at) = later.filter(|_| !fits && ledger == Ledger::Memory) {
            let set = self.due.at(&Due::Quota);
            self.due.set(Due::Quota, set.map_or(at, |set| set.min(at)));
        }
        fits
    }

    /// Keeps a tenant below the watermarks of its own quota, so that its puts rarely wait.
    pub(crate) fn trim(&mut self, now: Instant, tenant: TenantIndex, ledger: Ledger) {
        let Some(allowed) = self.tenants.allowed(tenant, ledger) else {
            return;
        };
        let eviction = &self.config.eviction;
        let used = self.tenants.at(tenant).used(ledger);
        let share = |of: f64| (allowed as f64 * of) as u64;
        if used > share(eviction.high_watermark) {
            let low = share(eviction.low_watermark);
            self.evict_tenant(now, tenant, ledger, used - low);
        }
    }

    /// Evicts `wanted` bytes of a tenant's replicas, least recently used first, if that many may be evicted; when the first
    /// of the others may be.
    fn evict_tenant(
        &mut self,
        now: Instant,
        tenant: TenantIndex,
        ledger: Ledger,
        wanted: u64,
    ) -> Option<Instant> {
        let before = std::mem::replace(&mut self.decisions.cause, EvictionCause::Quota);
        let (mut missing, mut later) = (wanted, None);
        let mut budget = self.config.eviction.step.max(OLDEST_EXAMINED);
        while ledger == Ledger::Memory && missing > 0 && budget > 0 {
            let Some(bytes) = self.evict_extra_of(now, tenant) else {
                break;
            };
            budget -= 1;
            self.metrics.quota_evictions += 1;
            missing = missing.saturating_sub(bytes);
        }
        for id in self.tenants.oldest(tenant, ledger, OLDEST_EXAMINED) {
            if missing == 0 || budget == 0 {
                break;
            }
            if !self.catalog.is_replica(id) {
                continue;
            }
            if self.catalog.replica(id).excluded == Excluded::Leaving {
                missing = missing.saturating_sub(self.extent_of(id).bytes);
                continue;
            }
            match self.evictable(now, id) {
                Evictable::Now => {
                    self.metrics.quota_evictions += 1;
                    let evicted = self.evict_with_group(now, id, Pass::Plain, &mut budget);
                    if let Evicted::Bytes(bytes) = evicted {
                        missing = missing.saturating_sub(bytes);
                    }
                }
                Evictable::NotBefore(at) | Evictable::SoftPinned(at) => {
                    later = later.into_iter().chain([at]).min();
                }
                Evictable::Held => {}
            }
        }
        self.decisions.cause = before;
        later
    }
}
