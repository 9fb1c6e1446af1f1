use std::collections::VecDeque;
use std::time::Duration;

use slackwater_base::{Instant, Map, hash64};
use slackwater_wire::{Chain, Key, ReadCall, Reads, Tenant, Version};

use crate::get::Known;

/// Where objects are that were looked up before, with the rights `R` to read them, until their leases end.
///
/// What a client put or removed itself is forgotten with [`Locations::forget`] when the master has acknowledged it. A
/// look-up that was under way meanwhile is not kept either: [`Locations::keep`] takes the [`Stamp`] from before it was sent.
/// What others do to an object is learnt when its extent refuses the reader, or when the lease ends.
///
/// Reads that needed no look-up are noted, and told to the master together: its policies learn from them, and its answer
/// brings the next leases. What is put in the place of an object later has another version, which the report is not about.
#[derive(Debug)]
pub struct Locations<R> {
    limit: usize,
    kept: Map<Key, Kept<R>>,
    /// Keys in the order in which they were kept, with the number of that time.
    order: VecDeque<(Key, u64)>,
    next: u64,
    /// How often keys were forgotten, by hash.
    forgotten: Vec<u64>,
    /// Reads that the master does not know of.
    untold: Vec<(Tenant, ReadCall)>,
    untold_keys: usize,
    /// When the first of them was noted.
    untold_since: Option<Instant>,
}

/// Where one object is.
#[derive(Clone, Debug, PartialEq)]
pub struct Located<R> {
    /// The object, and until when it may be read.
    pub known: Known,
    /// The rights to its replicas.
    pub rights: R,
}

/// The moment before a look-up of a key was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

#[derive(Debug)]
struct Kept<R> {
    number: u64,
    tenant: Tenant,
    located: Located<R>,
    /// A read of it is noted.
    noted: bool,
}

/// Counters of forgotten keys: keys that share one are looked up once more than needed.
const STAMPS: usize = 1024;
/// How long reads are collected before the master is told of them.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// The most keys in one message to the master.
const TELL_KEYS: usize = 1024;
/// The most keys of noted reads; more are not told.
const UNTOLD_KEYS_MAX: usize = 16 * TELL_KEYS;

impl<R: Clone> Locations<R> {
    /// None yet, and never more than `limit`.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            kept: Map::default(),
            order: VecDeque::new(),
            next: 0,
            forgotten: vec![0; STAMPS],
            untold: Vec::new(),
            untold_keys: 0,
            untold_since: None,
        }
    }

    /// The stamp to be taken before a key is looked up.
    #[must_use]
    pub fn stamp(&self, key: &Key) -> Stamp {
        Stamp(self.forgotten[slot(key)])
    }

    /// Keeps what a look-up found, unless the key was forgotten since its stamp was taken.
    pub fn keep(
        &mut self,
        now: Instant,
        tenant: &Tenant,
        key: &Key,
        stamp: Stamp,
        located: Located<R>,
    ) {
        if self.limit == 0 || self.stamp(key) != stamp || located.known.valid_until <= now {
            return;
        }
        if let Some(kept) = self.kept.get_mut(key).filter(|kept| kept.tenant == *tenant) {
            // An answer may have been overtaken by a later one.
            if kept.located.known.object.version <= located.known.object.version {
                kept.located = located;
            }
            return;
        }
        self.next += 1;
        let kept = Kept {
            number: self.next,
            tenant: tenant.clone(),
            located,
            noted: false,
        };
        self.kept.insert(key.clone(), kept);
        self.order.push_back((key.clone(), self.next));
        while self.order.len() > self.limit
            || self
                .order
                .front()
                .is_some_and(|first| self.is_over(now, first))
        {
            if let Some(first) = self.order.pop_front() {
                self.drop_kept(&first);
            }
        }
    }

    /// Where all of these keys are; `None` unless that is known of each. Their reads are noted.
    pub fn find(
        &mut self,
        now: Instant,
        tenant: &Tenant,
        keys: &[Key],
        chain: &Chain,
    ) -> Option<Vec<Located<R>>> {
        let known = |key: &Key| self.valid(now, tenant, key).cloned();
        let found: Vec<Located<R>> = keys.iter().map(known).collect::<Option<_>>()?;
        self.note(now, tenant, keys, &found, chain);
        Some(found)
    }

    /// The length of an object that [`Locations::find`] would find alone. Nothing is noted.
    #[must_use]
    pub fn length(&self, now: Instant, tenant: &Tenant, key: &Key) -> Option<u64> {
        self.valid(now, tenant, key)
            .map(|located| located.known.object.bytes)
    }

    fn valid(&self, now: Instant, tenant: &Tenant, key: &Key) -> Option<&Located<R>> {
        let kept = self.kept.get(key)?;
        let valid = kept.tenant == *tenant && kept.located.known.valid_until > now;
        valid.then_some(&kept.located)
    }

    /// Forgets where an object is: it was put or removed, or is not there.
    pub fn forget(&mut self, key: &Key) {
        self.forgotten[slot(key)] += 1;
        self.kept.remove(key);
    }

    /// The same, where it is not known to be a later version than this one, which is not there.
    pub fn forget_version(&mut self, key: &Key, version: Version) {
        let known = |kept: &Kept<R>| kept.located.known.object.version;
        if self
            .kept
            .get(key)
            .map(known)
            .is_none_or(|known| known <= version)
        {
            self.forget(key);
        }
    }

    /// Forgets where anything is: objects were removed that nobody has named.
    pub fn forget_all(&mut self) {
        self.forgotten.iter_mut().for_each(|count| *count += 1);
        self.kept.clear();
        self.order.clear();
    }

    /// Time has passed: what to tell the master, and the stamps for its answer.
    pub fn on_deadline(&mut self, now: Instant) -> Vec<(Reads, Vec<Stamp>)> {
        if self.next_deadline().is_none_or(|at| now < at) {
            return Vec::new();
        }
        self.untold_since = None;
        self.untold_keys = 0;
        let mut told: Vec<Reads> = Vec::new();
        let mut keys = 0;
        for (tenant, call) in std::mem::take(&mut self.untold) {
            for key in &call.keys {
                if let Some(kept) = self.kept.get_mut(key) {
                    kept.noted = false;
                }
            }
            match told.last_mut() {
                Some(last) if last.tenant == tenant && keys + call.keys.len() <= TELL_KEYS => {
                    keys += call.keys.len();
                    last.calls.push(call);
                }
                _ => {
                    keys = call.keys.len();
                    let calls = vec![call];
                    told.push(Reads { tenant, calls });
                }
            }
        }
        let stamped = told.into_iter().map(|reads| {
            let stamps = reads.keys().map(|key| self.stamp(key)).collect();
            (reads, stamps)
        });
        stamped.collect()
    }

    /// When [`Locations::on_deadline`] wants to run; `None` while the master knows of all reads.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.untold_since.map(|since| since + TELL_AFTER)
    }

    /// How many are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    fn note(
        &mut self,
        now: Instant,
        tenant: &Tenant,
        keys: &[Key],
        found: &[Located<R>],
        chain: &Chain,
    ) {
        // A key that is marked and not told would never be told again.
        if self.untold_keys + keys.len() > UNTOLD_KEYS_MAX {
            return;
        }
        let mut fresh = false;
        for key in keys {
            if let Some(kept) = self.kept.get_mut(key) {
                fresh |= !std::mem::replace(&mut kept.noted, true);
            }
        }
        if !fresh {
            return;
        }
        self.untold_keys += keys.len();
        self.untold_since.get_or_insert(now);
        let call = ReadCall {
            keys: keys.to_vec(),
            versions: (found.iter())
                .map(|located| located.known.object.version)
                .collect(),
            chain: chain.clone(),
        };
        self.untold.push((tenant.clone(), call));
    }

    fn is_over(&self, now: Instant, (key, number): &(Key, u64)) -> bool {
        let kept = self.kept.get(key).filter(|kept| kept.number == *number);
        kept.is_none_or(|kept| kept.located.known.valid_until <= now)
    }

    fn drop_kept(&mut self, (key, number): &(Key, u64)) {
        if self
            .kept
            .get(key)
            .is_some_and(|kept| kept.number == *number)
        {
            self.kept.remove(key);
        }
    }
}

fn slot(key: &Key) -> usize {
    hash64(key.as_bytes()) as usize % STAMPS
}

#[cfg(test)]
#[path = "locations_tests.rs"]
mod tests;
