//! Removals that nodes could not be told of: what they announce later must not bring back what was removed.

use std::collections::{BTreeMap, BTreeSet};

use regex::bytes::Regex;
use slackwater_base::{Map, Planted, planted};
use slackwater_wire::{DiskEntry, Incarnation, NodeId, SegmentId, SegmentKind, Tenant, Version};

use crate::journal::{Dead, Debt};

/// What was removed or replaced while a node was away, or before it had announced all its records.
///
/// Removals are kept by key up to a limit. Beyond it, all older records of the tenant with the most of them are given
/// up: a cache may lose values, but must not bring back removed ones.
pub(crate) struct Owed {
    /// Nodes that have mounted what may hold old values since the master began, and the kinds of those segments: what is on one that
    /// comes later may be as old.
    met: BTreeMap<NodeId, Vec<SegmentKind>>,
    /// Most nodes that may be met.
    nodes: usize,
    /// No record up to this version is accepted from nodes beyond them.
    beyond: Version,
    /// Removals since the master began, for nodes that it has not met: their records may be older.
    unmet: Removals,
    away: BTreeMap<NodeId, Away>,
    /// Nodes that were known and are forgotten, or that only an earlier master can have known: what they hold is dead.
    closed: bool,
    known: BTreeSet<NodeId>,
    /// What has come to be owed, and what was paid, since it was last asked for.
    debts: Vec<(NodeId, Option<Debt>)>,
    journaled: bool,
    /// Removals of many keys that are under way, by their scans.
    sweeps: BTreeMap<u64, Sweep>,
    limits: OwedLimits,
}

/// What a removal of many keys ends.
#[derive(Clone)]
pub(crate) struct Sweep {
    /// Whose keys; of all tenants without one.
    pub(crate) tenant: Option<Tenant>,
    /// Which of them; all without one.
    pub(crate) pattern: Option<Regex>,
    /// Versions up to this.
    pub(crate) up_to: Version,
}

impl Sweep {
    pub(crate) fn covers(&self, entry: &DiskEntry) -> bool {
        entry.version <= self.up_to && self.names(entry)
    }

    /// Whether it is one of the keys, whatever its version.
    pub(crate) fn names(&self, entry: &DiskEntry) -> bool {
        let (tenant, pattern) = (self.tenant.as_ref(), self.pattern.as_ref());
        tenant.is_none_or(|tenant| *tenant == entry.tenant)
            && pattern.is_none_or(|pattern| pattern.is_match(entry.key.as_bytes()))
    }
}

/// Limits of each list of removals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwedLimits {
    pub(crate) keys: usize,
    pub(crate) tenants: usize,
    /// Segments of a node that are waited for.
    pub(crate) segments: usize,
}

#[derive(Default)]
struct Away {
    /// A segment of the node was met for the first time: [`Owed::unmet`] holds for it too.
    first: bool,
    since: Removals,
    /// What may bring something back that it has not announced.
    expected: Vec<Expected>,
}

/// With what a node may bring back what is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Its SSD, or memory of which an earlier master did not say more.
    Any(SegmentKind),
    /// Memory that goes with the life in which it was lent.
    Memory(SegmentId, Incarnation),
}

/// Versions that are dead.
#[derive(Default)]
struct Removals {
    /// No record up to this version is accepted.
    floor: Version,
    tenants: BTreeMap<Tenant, TenantRemovals>,
    /// Keys of all tenants.
    keys: usize,
}

/// Versions of one tenant's objects that are dead, by key and by pattern.
#[derive(Default)]
struct TenantRemovals {
    /// No record of the tenant up to this version is accepted.
    floor: Version,
    keys: Map<u64, Version>,
    patterns: Vec<(Regex, Version)>,
}

impl Owed {
    pub(crate) fn new(limits: OwedLimits, nodes: usize) -> Self {
        Self {
            met: BTreeMap::new(),
            nodes,
            beyond: Version(0),
            unmet: Removals::default(),
            away: BTreeMap::new(),
            closed: false,
            known: BTreeSet::new(),
            debts: Vec::new(),
            journaled: false,
            sweeps: BTreeMap::new(),
            limits,
        }
    }

    /// From now on removals are kept for this node, which has a segment of this kind, or had one; `newest` is the newest version
    /// given so far.
    pub(crate) fn begin(&mut self, node: NodeId, kind: SegmentKind, newest: Version) {
        let is_open = self.is_open();
        if !is_open && !self.met.contains_key(&node) {
            self.beyond = newest;
            return;
        }
        let kinds = self.met.entry(node).or_default();
        let first = !kinds.contains(&kind);
        if first {
            kinds.push(kind);
        }
        let unknown = self.closed && (first || !self.known.contains(&node));
        self.known.insert(node);
        let is_new = !self.away.contains_key(&node);
        let away = self.away.entry(node).or_default();
        let mut debts = Vec::new();
        let comes_late = first && !away.first;
        if (is_new && unknown) || (comes_late && !is_open) {
            // Of what was removed before nothing is kept.
            away.since.give_up(newest, &mut debts);
        }
        away.first |= first;
        if is_new {
            // What is lost with it leaves the catalog, where they may not have come to it yet.
            for sweep in self.sweeps.values() {
                away.since.sweep(sweep, self.limits, &mut debts);
            }
        }
        if self.journaled && !planted(Planted::ForgetOwedRemoval) {
            // The next master knows the node, and must not believe more of it. What is of all keys takes the place of what is noted before.
            let unmet = comes_late.then(|| self.unmet.debts()).into_iter().flatten();
            let owed = unmet.chain(debts);
            self.debts.extend(owed.map(|debt| (node, Some(debt))));
        }
    }

    /// An earlier master knew this node, with an SSD or without one, and may owe it something.
    pub(crate) fn restore(&mut self, node: NodeId, ssd: bool) {
        (self.journaled, self.closed) = (true, true);
        self.met
            .insert(node, vec![SegmentKind::Memory, SegmentKind::Disk]);
        self.known.insert(node);
        self.away.entry(node).or_insert_with(|| Away {
            first: false,
            since: Removals::default(),
            expected: vec![Expected::Any(SegmentKind::Memory)],
        });
        if ssd {
            self.expect(node, Expected::Any(SegmentKind::Disk));
        }
    }

    /// What is kept for this node is paid only with this.
    pub(crate) fn expect(&mut self, node: NodeId, expected: Expected) {
        let Some(away) = self.away.get_mut(&node) else {
            return;
        };
        if let Expected::Memory(_, life) = expected {
            let is_over = |it: &Expected| matches!(it, Expected::Memory(_, of) if *of != life);
            away.expected.retain(|it| !is_over(it));
        }
        // Beside segments there is one of any kind.
        let most = self.limits.segments + 2;
        if !away.expected.contains(&expected) && away.expected.len() < most {
            away.expected.push(expected);
        }
    }

    /// What is waited for before what is kept for the node is paid.
    pub(crate) fn expected(&self, node: NodeId) -> &[Expected] {
        self.away.get(&node).map_or(&[], |away| &away.expected)
    }

    /// An earlier master owed this.
    pub(crate) fn restore_debt(&mut self, node: NodeId, debt: &Debt) {
        let limits = self.limits;
        let Some(away) = self.away.get_mut(&node) else {
            return;
        };
        let mut again = Vec::new();
        let since = &mut away.since;
        let up_to = debt.up_to;
        match &debt.of {
            Dead::Key(tenant, hash) => since.key(tenant, *hash, up_to, limits, &mut again),
            Dead::Pattern(tenant, pattern) => match Regex::new(pattern) {
                Ok(pattern) => since.pattern(tenant, &pattern, up_to, limits, &mut again),
                Err(_) => since.give_up_tenant(tenant, up_to, limits, &mut again),
            },
            Dead::Tenant(tenant) => since.give_up_tenant(tenant, up_to, limits, &mut again),
            Dead::All => since.give_up(up_to, &mut again),
        }
    }

    /// From now on debts are noted. `forgot` says whether an earlier master has forgotten nodes.
    pub(crate) fn keep_notes(&mut self, forgot: bool) {
        (self.journaled, self.closed) = (true, forgot);
    }

    /// What has come to be owed since the last call, and the nodes to which nothing is owed any more.
    pub(crate) fn take_debts(&mut self) -> Vec<(NodeId, Option<Debt>)> {
        std::mem::take(&mut self.debts)
    }

    /// Nothing is kept for this node any more. What it holds, should it come back, is dead.
    pub(crate) fn forget(&mut self, node: NodeId) {
        self.closed = true;
        self.known.remove(&node);
        self.away.remove(&node);
    }

    /// The node has announced all its records.
    pub(crate) fn end(&mut self, node: NodeId) {
        if self.away.remove(&node).is_some() && self.journaled {
            self.debts.push((node, None));
        }
        if !self.is_open() && !self.away.values().any(|away| away.first) {
            self.unmet = Removals::default();
        }
    }

    /// Whether removals are kept for this node.
    pub(crate) fn has(&self, node: NodeId) -> bool {
        self.away.contains_key(&node)
    }

    /// Whether another node may come whose records are older than the master.
    fn is_open(&self) -> bool {
        self.met.len() < self.nodes
    }

    /// Whether removals are kept for any node.
    pub(crate) fn is_needed(&self) -> bool {
        self.is_open() || !self.away.is_empty()
    }

    /// Has `change` made in each list, and keeps what it says of those that are noted.
    fn change(&mut self, change: impl Fn(&mut Removals, &mut Vec<Debt>)) {
        let mut debts = Vec::new();
        if self.is_open() {
            change(&mut self.unmet, &mut debts);
            debts.clear();
        }
        for (node, away) in &mut self.away {
            change(&mut away.since, &mut debts);
            let noted = debts.drain(..).map(|debt| (*node, Some(debt)));
            if self.journaled {
                self.debts.extend(noted);
            }
        }
    }

    /// Versions of the key up to `up_to` are dead.
    pub(crate) fn key(&mut self, tenant: &Tenant, hash: u64, up_to: Version) {
        if planted(Planted::ForgetOwedRemoval) {
            return;
        }
        let limits = self.limits;
        self.change(|removals, debts| removals.key(tenant, hash, up_to, limits, debts));
    }

    /// Versions of the key up to `up_to` are dead at this node, if anything is kept for it.
    pub(crate) fn key_of(&mut self, node: NodeId, tenant: &Tenant, hash: u64, up_to: Version) {
        if planted(Planted::ForgetOwedRemoval) {
            return;
        }
        let limits = self.limits;
        let Some(away) = self.away.get_mut(&node) else {
            return;
        };
        let mut debts = Vec::new();
        away.since.key(tenant, hash, up_to, limits, &mut debts);
        if self.journaled {
            let noted = debts.into_iter().map(|debt| (node, Some(debt)));
            self.debts.extend(noted);
        }
    }

    /// All that a removal of many keys is to end is dead.
    pub(crate) fn matching(&mut self, sweep: &Sweep) {
        let limits = self.limits;
        self.change(|removals, debts| removals.sweep(sweep, limits, debts));
    }

    /// The removal is under way, by this scan: also nodes for which removals come to be kept meanwhile are owed it.
    pub(crate) fn begin_sweep(&mut self, scan: u64, sweep: Sweep) {
        self.sweeps.insert(scan, sweep);
    }

    /// What the removal of this scan is to end.
    pub(crate) fn sweep(&self, scan: u64) -> Option<&Sweep> {
        self.sweeps.get(&scan)
    }

    /// The removal has come to its end.
    pub(crate) fn end_sweep(&mut self, scan: u64) {
        self.sweeps.remove(&scan);
    }

    /// Whether a record that this node announces was removed or replaced while the node could not be told.
    pub(crate) fn is_dead(&self, node: NodeId, hash: u64, entry: &DiskEntry) -> bool {
        match self.away.get(&node) {
            Some(away) => {
                away.since.covers(hash, entry) || (away.first && self.unmet.covers(hash, entry))
            }
            None => !self.met.contains_key(&node) && entry.version <= self.beyond,
        }
    }
}

impl Removals {
    /// All that is dead, what takes the place of other debts before these.
    fn debts(&self) -> Vec<Debt> {
        let of_all = (self.floor > Version(0)).then_some((Dead::All, self.floor));
        let of_tenants = self.tenants.iter().flat_map(|(tenant, removals)| {
            let floor = (removals.floor > Version(0)).then_some(removals.floor);
            let whole = floor.map(|up_to| (Dead::Tenant(tenant.clone()), up_to));
            let patterns = removals.patterns.iter().map(|(pattern, up_to)| {
                let pattern = pattern.as_str().to_owned();
                (Dead::Pattern(tenant.clone(), pattern), *up_to)
            });
            let keys = removals.keys.iter();
            let keys = keys.map(|(hash, up_to)| (Dead::Key(tenant.clone(), *hash), *up_to));
            whole.into_iter().chain(patterns).chain(keys)
        });
        let all = of_all.into_iter().chain(of_tenants);
        all.map(|(of, up_to)| Debt { of, up_to }).collect()
    }

    fn sweep(&mut self, sweep: &Sweep, limits: OwedLimits, debts: &mut Vec<Debt>) {
        let up_to = sweep.up_to;
        match (&sweep.tenant, &sweep.pattern) {
            (None, _) => self.give_up(up_to, debts),
            (Some(tenant), None) => self.give_up_tenant(tenant, up_to, limits, debts),
            (Some(tenant), Some(pattern)) => self.pattern(tenant, pattern, up_to, limits, debts),
        }
    }

    fn covers(&self, hash: u64, entry: &DiskEntry) -> bool {
        let dead = |up_to: &Version| entry.version <= *up_to;
        let by_pattern = |(pattern, up_to): &(Regex, Version)| {
            dead(up_to) && pattern.is_match(entry.key.as_bytes())
        };
        let of_tenant = |removals: &TenantRemovals| {
            dead(&removals.floor)
                || removals.keys.get(&hash).is_some_and(dead)
                || removals.patterns.iter().any(by_pattern)
        };
        dead(&self.floor) || self.tenants.get(&entry.tenant).is_some_and(of_tenant)
    }

    fn key(
        &mut self,
        tenant: &Tenant,
        hash: u64,
        up_to: Version,
        limits: OwedLimits,
        debts: &mut Vec<Debt>,
    ) {
        let Some(removals) = self.of(tenant, up_to, limits, debts) else {
            return;
        };
        let before = removals.keys.len();
        let ceiling = removals.keys.entry(hash).or_default();
        if up_to > *ceiling {
            *ceiling = up_to;
            let of = Dead::Key(tenant.clone(), hash);
            debts.push(Debt { of, up_to });
        }
        self.keys += removals.keys.len() - before;
        if self.keys > limits.keys {
            // The tenant with the most of them pays, so that none can take the records of another.
            let most = self.tenants.iter().max_by_key(|(_, of)| of.keys.len());
            if let Some(most) = most.map(|(tenant, _)| tenant.clone()) {
                self.give_up_tenant(&most, up_to, limits, debts);
            }
        }
    }

    fn pattern(
        &mut self,
        tenant: &Tenant,
        pattern: &Regex,
        up_to: Version,
        limits: OwedLimits,
        debts: &mut Vec<Debt>,
    ) {
        let Some(removals) = self.of(tenant, up_to, limits, debts) else {
            return;
        };
        if removals.patterns.len() < PATTERNS_MAX {
            removals.patterns.push((pattern.clone(), up_to));
            let of = Dead::Pattern(tenant.clone(), pattern.as_str().to_owned());
            debts.push(Debt { of, up_to });
        } else {
            self.give_up_tenant(tenant, up_to, limits, debts);
        }
    }

    /// The removals of a tenant; `None` when there are too many tenants, so that all older records are given up.
    fn of(
        &mut self,
        tenant: &Tenant,
        up_to: Version,
        limits: OwedLimits,
        debts: &mut Vec<Debt>,
    ) -> Option<&mut TenantRemovals> {
        if self.tenants.len() >= limits.tenants && !self.tenants.contains_key(tenant) {
            self.give_up(up_to, debts);
            return None;
        }
        Some(self.tenants.entry(tenant.clone()).or_default())
    }

    fn give_up_tenant(
        &mut self,
        tenant: &Tenant,
        up_to: Version,
        limits: OwedLimits,
        debts: &mut Vec<Debt>,
    ) {
        let Some(removals) = self.of(tenant, up_to, limits, debts) else {
            return;
        };
        let keys = removals.keys.len();
        *removals = TenantRemovals {
            floor: removals.floor.max(up_to),
            ..TenantRemovals::default()
        };
        let (of, up_to) = (Dead::Tenant(tenant.clone()), removals.floor);
        debts.push(Debt { of, up_to });
        self.keys -= keys;
    }

    fn give_up(&mut self, up_to: Version, debts: &mut Vec<Debt>) {
        *self = Self {
            floor: self.floor.max(up_to),
            ..Self::default()
        };
        let (of, up_to) = (Dead::All, self.floor);
        debts.push(Debt { of, up_to });
    }
}

/// Most removals by pattern that are kept for a tenant: each is matched with every record of the tenant that a node
/// announces.
const PATTERNS_MAX: usize = 64;
