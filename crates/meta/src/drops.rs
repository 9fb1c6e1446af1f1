//! Records that must never come back: drops that were ordered, and drops to be ordered when a node comes back.

use std::collections::{BTreeMap, BTreeSet};

use regex::bytes::Regex;
use slackwater_base::{Instant, Map, Planted, planted};
use slackwater_wire::{DiskEntry, ErrorCode, Key, NodeId, Tenant, Version};

use crate::catalog::{Mark, SegmentIndex};
use crate::master::Master;
use crate::outbox::Waiter;

/// Records that nodes were told to drop and have not yet reported as dropped.
#[derive(Default)]
pub(crate) struct Drops {
    pending: BTreeMap<(u64, Version, SegmentIndex), PendingDrop>,
}

struct PendingDrop {
    entry: DiskEntry,
    waiters: Vec<Waiter>,
}

impl Drops {
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn is_pending(&self, hash: u64, version: Version, segment: SegmentIndex) -> bool {
        self.pending.contains_key(&(hash, version, segment))
    }
}

/// What was removed or replaced while a node was away, or before it had announced all its records.
///
/// Removals are kept by key up to a limit. Beyond it, all older records of the node are given up: a cache may lose
/// values, but must not bring back removed ones.
pub(crate) struct Owed {
    /// Nodes that have mounted an SSD since the master began.
    met: BTreeSet<NodeId>,
    /// Most nodes that may be met.
    nodes: usize,
    /// No record up to this version is accepted from nodes beyond them.
    beyond: Version,
    /// Removals since the master began, for nodes that it has not met: their records may be older.
    unmet: Removals,
    away: BTreeMap<NodeId, Away>,
    limit: usize,
}

struct Away {
    /// The node was met for the first time: [`Owed::unmet`] holds for it too.
    first: bool,
    since: Removals,
}

/// Versions that are dead, by key and by rule.
#[derive(Default)]
struct Removals {
    /// No record up to this version is accepted.
    floor: Version,
    keys: Map<u64, Version>,
    rules: Vec<Rule>,
}

/// A removal of all keys or by pattern.
struct Rule {
    tenant: Option<Tenant>,
    pattern: Option<Regex>,
    up_to: Version,
}

impl Owed {
    pub(crate) fn new(limit: usize, nodes: usize) -> Self {
        Self {
            met: BTreeSet::new(),
            nodes,
            beyond: Version(0),
            unmet: Removals::default(),
            away: BTreeMap::new(),
            limit,
        }
    }

    /// From now on removals are kept for this node; `newest` is the newest version given so far.
    pub(crate) fn begin(&mut self, node: NodeId, newest: Version) {
        let first = !self.met.contains(&node);
        if first && !self.is_open() {
            self.beyond = newest;
            return;
        }
        self.met.insert(node);
        self.away.entry(node).or_insert_with(|| Away {
            first,
            since: Removals::default(),
        });
    }

    /// The node has announced all its records.
    pub(crate) fn end(&mut self, node: NodeId) {
        self.away.remove(&node);
        if !self.is_open() && !self.away.values().any(|away| away.first) {
            self.unmet = Removals::default();
        }
    }

    /// Whether another node may come whose records are older than the master.
    fn is_open(&self) -> bool {
        self.met.len() < self.nodes
    }

    /// Whether removals are kept for any node.
    pub(crate) fn is_needed(&self) -> bool {
        self.is_open() || !self.away.is_empty()
    }

    fn lists(&mut self) -> impl Iterator<Item = &mut Removals> {
        let unmet = self.is_open().then_some(&mut self.unmet);
        let away = self.away.values_mut().map(|away| &mut away.since);
        unmet.into_iter().chain(away)
    }

    /// Versions of the key up to `up_to` are dead.
    pub(crate) fn key(&mut self, hash: u64, up_to: Version) {
        if planted(Planted::ForgetOwedRemoval) {
            return;
        }
        let limit = self.limit;
        for removals in self.lists() {
            if removals.keys.len() >= limit && !removals.keys.contains_key(&hash) {
                removals.give_up(up_to);
                continue;
            }
            let ceiling = removals.keys.entry(hash).or_default();
            *ceiling = up_to.max(*ceiling);
        }
    }

    /// Versions of all matching keys up to `up_to` are dead.
    pub(crate) fn matching(
        &mut self,
        tenant: Option<&Tenant>,
        pattern: Option<&Regex>,
        up_to: Version,
    ) {
        for removals in self.lists() {
            if removals.rules.len() >= RULES_MAX {
                removals.give_up(up_to);
                continue;
            }
            removals.rules.push(Rule {
                tenant: tenant.cloned(),
                pattern: pattern.cloned(),
                up_to,
            });
        }
    }

    /// Whether a record that this node announces was removed or replaced while the node could not be told.
    pub(crate) fn is_dead(&self, node: NodeId, hash: u64, entry: &DiskEntry) -> bool {
        match self.away.get(&node) {
            Some(away) => {
                away.since.covers(hash, entry) || (away.first && self.unmet.covers(hash, entry))
            }
            None => !self.met.contains(&node) && entry.version <= self.beyond,
        }
    }
}

impl Removals {
    fn covers(&self, hash: u64, entry: &DiskEntry) -> bool {
        let by_rule = |rule: &Rule| {
            entry.version <= rule.up_to
                && rule
                    .tenant
                    .as_ref()
                    .is_none_or(|tenant| *tenant == entry.tenant)
                && rule
                    .pattern
                    .as_ref()
                    .is_none_or(|pattern| pattern.is_match(entry.key.as_bytes()))
        };
        entry.version <= self.floor
            || self
                .keys
                .get(&hash)
                .is_some_and(|up_to| entry.version <= *up_to)
            || self.rules.iter().any(by_rule)
    }

    fn give_up(&mut self, up_to: Version) {
        self.floor = self.floor.max(up_to);
        self.keys.clear();
        self.rules.clear();
    }
}

/// Most removals by pattern that are kept for a node: each is matched with every record that it announces.
const RULES_MAX: usize = 64;

impl Master {
    /// Orders that a record is dropped; the waiter's answer waits for that.
    pub(crate) fn drop_record(
        &mut self,
        segment: SegmentIndex,
        hash: u64,
        entry: DiskEntry,
        waiter: Option<Waiter>,
    ) {
        let waiter = waiter.filter(|_| !planted(Planted::RemoveBeforeDropped));
        let waiters: Vec<Waiter> = waiter
            .into_iter()
            .map(|waiter| self.acks.wait(waiter))
            .collect();
        let node = self.segments.at(segment).node;
        let pending = self
            .drops
            .pending
            .entry((hash, entry.version, segment))
            .or_insert_with(|| {
                self.outbox.drop(node, entry.clone());
                PendingDrop {
                    entry,
                    waiters: Vec::new(),
                }
            });
        pending.waiters.extend(waiters);
    }

    /// Marks the version so that it is not offered to an SSD again.
    pub(crate) fn shed(&mut self, hash: u64, entry: &DiskEntry) {
        let tenant = self.tenants.find_exact(&entry.tenant);
        let found = tenant.and_then(|tenant| self.catalog.find(tenant, &entry.key, hash));
        if let Some(id) = found.filter(|id| self.catalog.object(*id).version == entry.version) {
            self.catalog.object_mut(id).mark(Mark::Shed);
        }
    }

    /// Makes the waiter wait for every drop of the key that is under way.
    pub(crate) fn await_drops(&mut self, tenant: &Tenant, key: &Key, hash: u64, waiter: Waiter) {
        if planted(Planted::RemoveBeforeDropped) {
            return;
        }
        let range =
            (hash, Version(0), SegmentIndex(0))..=(hash, Version(u64::MAX), SegmentIndex(u16::MAX));
        for (_, drop) in self.drops.pending.range_mut(range) {
            if drop.entry.key == *key
                && drop.entry.tenant == *tenant
                && !drop.waiters.contains(&waiter)
            {
                drop.waiters.push(self.acks.wait(waiter));
            }
        }
    }

    pub(crate) fn dropped(&mut self, now: Instant, node: NodeId, entries: &[DiskEntry]) {
        let Some(segment) = self.segments.disk_of(node) else {
            return;
        };
        for entry in entries {
            let hash = self.tenants.hash_of(&entry.tenant, &entry.key);
            let Some(drop) = self.drops.pending.remove(&(hash, entry.version, segment)) else {
                continue;
            };
            self.metrics.records_dropped += 1;
            for waiter in drop.waiters {
                self.acks.done(waiter.ack, &mut self.outbox);
            }
        }
        self.resume(now, node);
    }

    /// The node that was to drop records is gone. Waiting requests fail; the node is told to drop them when it comes
    /// back.
    pub(crate) fn lose_drops(&mut self, segment: SegmentIndex) {
        let lost: Vec<_> = self
            .drops
            .pending
            .keys()
            .filter(|(.., at)| *at == segment)
            .copied()
            .collect();
        for key in lost {
            let drop = self.drops.pending.remove(&key).expect("found above");
            self.owed.key(key.0, key.1);
            for waiter in drop.waiters {
                self.acks
                    .fail(waiter, ErrorCode::UnavailableInCurrentStatus);
                self.acks.done(waiter.ack, &mut self.outbox);
            }
        }
    }

    /// Also keeps the removals under way for a node that mounts: it was not told of them, and may hold copies.
    pub(crate) fn owe_pending_drops(&mut self) {
        for ((hash, version, _), drop) in &self.drops.pending {
            if !drop.waiters.is_empty() {
                self.owed.key(*hash, *version);
            }
        }
    }

    /// The newest version given so far: what is removed now is not newer.
    pub(crate) fn newest_version(&self) -> Version {
        Version(self.next_version - 1)
    }
}

impl Master {
    /// Makes the waiter wait for every drop under way that a removal of many keys covers.
    pub(crate) fn await_all_drops(
        &mut self,
        tenant: Option<&Tenant>,
        pattern: Option<&Regex>,
        waiter: Waiter,
    ) {
        for drop in self.drops.pending.values_mut() {
            let entry = &drop.entry;
            let covered = tenant.is_none_or(|tenant| *tenant == entry.tenant)
                && pattern.is_none_or(|pattern| pattern.is_match(entry.key.as_bytes()));
            if covered {
                drop.waiters.push(self.acks.wait(waiter));
            }
        }
    }
}
