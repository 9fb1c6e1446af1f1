//! Calls that wait for room on several hosts at once. Each may wait for other hosts, so that none of them waits for the one before: after a
//! change all of them are tried, a limited number in each step. They are told apart by their numbers, which rise.

use std::collections::{BTreeMap, BTreeSet};

use crate::catalog::TenantIndex;

#[derive(Default)]
pub(super) struct Across {
    calls: BTreeSet<u64>,
    of_tenant: BTreeMap<TenantIndex, BTreeSet<u64>>,
    /// The first of those that are tried next, and how many are left of this round.
    turn: u64,
    left: usize,
    /// Whether the first call is tried again beside them.
    first_again: bool,
}

/// Calls that are tried in one step.
const STEP: usize = 16;

impl Across {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The call that came first.
    pub(super) fn first(&self) -> Option<u64> {
        self.calls.first().copied()
    }

    pub(super) fn insert(&mut self, number: u64, tenant: TenantIndex) {
        self.calls.insert(number);
        self.of_tenant.entry(tenant).or_default().insert(number);
        // The round that is under way may come to it instead of another.
        self.left += 1;
    }

    pub(super) fn remove(&mut self, number: u64, tenant: TenantIndex) {
        self.calls.remove(&number);
        if let Some(calls) = self.of_tenant.get_mut(&tenant) {
            calls.remove(&number);
            if calls.is_empty() {
                self.of_tenant.remove(&tenant);
            }
        }
    }

    pub(super) fn of(&self, tenant: TenantIndex) -> Option<&BTreeSet<u64>> {
        self.of_tenant.get(&tenant)
    }

    /// The calls of each tenant.
    pub(super) fn lists(&self) -> impl Iterator<Item = (TenantIndex, &BTreeSet<u64>)> {
        self.of_tenant
            .iter()
            .map(|(tenant, calls)| (*tenant, calls))
    }

    /// Whether the lists of the tenants have these calls, and no others.
    pub(super) fn balance<'a>(&'a self, calls: impl Iterator<Item = &'a u64>) -> bool {
        let listed: usize = self.of_tenant.values().map(BTreeSet::len).sum();
        listed == self.calls.len() && calls.eq(&self.calls)
    }

    /// All are tried again.
    pub(super) fn begin_round(&mut self) {
        self.left = self.calls.len();
    }

    /// The first is tried again.
    pub(super) fn try_first_again(&mut self) {
        self.first_again = true;
    }

    /// Whether any is to be tried in another step.
    pub(super) fn is_under_way(&self) -> bool {
        !self.calls.is_empty() && (self.left > 0 || self.first_again)
    }

    /// Those that are tried in this step.
    pub(super) fn next(&mut self) -> Vec<u64> {
        let again = std::mem::take(&mut self.first_again);
        let count = self.left.min(self.calls.len()).min(STEP);
        self.left = self.left.saturating_sub(STEP);
        let behind = self.calls.range(self.turn..);
        let next = behind.chain(self.calls.range(..self.turn)).take(count);
        let next: Vec<u64> = next.copied().collect();
        if let Some(last) = next.last() {
            self.turn = last + 1;
        }
        let first = self.first().filter(|first| again && !next.contains(first));
        first.into_iter().chain(next).collect()
    }
}
