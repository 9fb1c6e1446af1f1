//! Look-ups just after a restart of the master. What they do not find may be on a node that has yet to say what it holds, so
//! they wait until it is found, until no such node is left, or until the master has waited for long enough.
//!
//! What is awaited is listed by the hash of its key: an announcement finds the calls that it ends, and asks no other.

use std::collections::{BTreeMap, BTreeSet};

use slackwater_base::Instant;
use slackwater_wire::{ClientId, Key, ObjectName, OperationId, Request, Tenant};

use crate::asking::{ASKED_FIRST, Asking};
use crate::config::Limits;
use crate::master::{Caller, Due, Master};

/// The look-ups that wait. None does without an earlier master.
#[derive(Default)]
pub(crate) struct Held {
    /// Nothing waits longer than until then.
    until: Option<Instant>,
    calls: BTreeMap<CallName, HeldCall>,
    /// Hashes of keys that are not found, with the calls that wait for them.
    awaited: BTreeSet<(u64, CallName)>,
    /// Calls for which everything is found.
    found: BTreeSet<CallName>,
    all: Kept,
    of_client: BTreeMap<ClientId, Kept>,
    pub(crate) asking: Asking,
}

/// What is kept: the requests whole, whatever few of their keys are awaited.
#[derive(Clone, Copy, Default, PartialEq)]
struct Kept {
    calls: usize,
    keys: usize,
}

/// A client and its number for the call.
type CallName = (ClientId, OperationId);

struct HeldCall {
    caller: Caller,
    /// Under which its objects are kept, and nodes know them.
    tenant: Tenant,
    request: Request,
    /// Keys of the request.
    keys: usize,
    /// What was not found, each once, in the order of the request.
    missing: Vec<Missing>,
    /// How many of the first of them the call waits for: of a prefix one.
    waits_for: usize,
    /// How many of those are awaited still.
    awaited: usize,
}

/// A key that nobody can read now.
#[derive(Clone, Copy)]
struct Missing {
    hash: u64,
    /// Its place in the request.
    at: usize,
}

/// Keys of the calls that are answered in one step, beyond which no other call is begun.
const STEP: usize = 4096;
/// One client may keep one part of this of what may wait.
const SHARE: usize = 4;
/// Missing keys that are looked at when a node begins to announce: a few milliseconds.
const LOOKED_AT: usize = 64 << 10;

impl Kept {
    fn add(&mut self, keys: usize) {
        self.calls += 1;
        self.keys += keys;
    }

    fn remove(&mut self, keys: usize) {
        self.calls -= 1;
        self.keys -= keys;
    }

    /// Whether one more call of so many keys fits in one part of `share` of the limits.
    fn fits(self, keys: usize, limits: &Limits, share: usize) -> bool {
        self.calls < limits.held_calls.div_ceil(share)
            && self.keys.saturating_add(keys) <= limits.held_keys / share
    }
}

impl HeldCall {
    fn awaits(&self) -> &[Missing] {
        &self.missing[..self.waits_for]
    }

    /// The names of keys that it misses.
    fn names<'a>(
        &'a self,
        missing: impl Iterator<Item = &'a Missing> + 'a,
    ) -> impl Iterator<Item = ObjectName> + 'a {
        let keys: Vec<&[u8]> = match &self.request {
            Request::Get(get) => get.keys.iter().map(Key::as_bytes).collect(),
            Request::Exists(exists) => exists.keys.iter().collect(),
            Request::Describe { key, .. } => vec![key.as_bytes()],
            _ => Vec::new(),
        };
        missing.filter_map(move |missing| {
            let key = Key::new(keys.get(missing.at)?).ok()?;
            Some((self.tenant.clone(), key))
        })
    }
}

impl Held {
    /// A replica of a key has become readable.
    pub(crate) fn heard(&mut self, hash: u64) {
        if self.awaited.is_empty() {
            return;
        }
        let (first, last) = (ClientId(0), ClientId(u64::MAX));
        let of_hash = (hash, (first, OperationId(0)))..=(hash, (last, OperationId(u64::MAX)));
        let waiting: Vec<(u64, CallName)> = self.awaited.range(of_hash).copied().collect();
        for entry in waiting {
            self.awaited.remove(&entry);
            let (_, name) = entry;
            if let Some(call) = self.calls.get_mut(&name) {
                call.awaited -= 1;
                if call.awaited == 0 {
                    self.found.insert(name);
                }
            }
        }
    }

    fn take(&mut self, name: CallName) -> Option<HeldCall> {
        let call = self.calls.remove(&name)?;
        self.found.remove(&name);
        self.all.remove(call.keys);
        if let Some(kept) = self.of_client.get_mut(&name.0) {
            kept.remove(call.keys);
            if *kept == Kept::default() {
                self.of_client.remove(&name.0);
            }
        }
        for missing in call.awaits() {
            self.awaited.remove(&(missing.hash, name));
        }
        Some(call)
    }

    fn keep(&mut self, name: CallName, call: HeldCall) {
        let room = self.asking.room(name.0);
        if room > 0 {
            let asking = &mut self.asking;
            let is_new = |missing: &&Missing| asking.is_new(missing.hash);
            let names = call.names(call.missing.iter().filter(is_new));
            let names = names.take(room).collect();
            self.asking.add(name.0, names);
        }
        let entries = call.awaits().iter().map(|missing| (missing.hash, name));
        self.awaited.extend(entries);
        self.all.add(call.keys);
        self.of_client.entry(name.0).or_default().add(call.keys);
        self.calls.insert(name, call);
    }

    fn has_room(&self, client: ClientId, keys: usize, limits: &Limits) -> bool {
        let own = self.of_client.get(&client).copied().unwrap_or_default();
        self.all.fits(keys, limits, 1) && own.fits(keys, limits, SHARE)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// What calls miss, each once and from all clients in turns, as far as nodes are asked for it at first.
    pub(crate) fn missed(&self) -> Vec<ObjectName> {
        let mut asking = Asking::default();
        let mut left = LOOKED_AT;
        for (name, call) in &self.calls {
            let room = asking.room(name.0);
            if room == 0 || left == 0 {
                continue;
            }
            let awaited = |at: usize, hash| {
                let is_tail = at >= call.waits_for;
                is_tail || self.awaited.contains(&(hash, *name))
            };
            let missing = call.missing.iter().enumerate().take(left);
            left -= missing.len();
            let missing = missing.filter(|(at, missing)| awaited(*at, missing.hash));
            let missing = missing.map(|(_, missing)| missing);
            let names = call.names(missing.filter(|missing| asking.is_new(missing.hash)));
            let names = names.take(room).collect();
            asking.add(name.0, names);
        }
        std::iter::from_fn(|| asking.pop())
            .take(ASKED_FIRST)
            .collect()
    }

    /// Ends the wait of a client, or of one operation of it, without an answer.
    pub(crate) fn forget(&mut self, client: ClientId, operation: Option<OperationId>) {
        let (first, last) = match operation {
            Some(operation) => (operation, operation),
            None => (OperationId(0), OperationId(u64::MAX)),
        };
        let calls = self.calls.range((client, first)..=(client, last));
        let calls: Vec<CallName> = calls.map(|(name, _)| *name).collect();
        calls.into_iter().for_each(|name| drop(self.take(name)));
    }
}

impl Master {
    /// From now on look-ups wait for the nodes of an earlier master.
    pub(crate) fn begin_holding(&mut self, now: Instant) {
        self.held.until = Some(now + self.config.absence.restart_wait);
    }

    /// Gives a request back that is to be carried out now. A look-up waits when a node may have what it does not find.
    pub(crate) fn unless_held(
        &mut self,
        now: Instant,
        caller: &Caller,
        request: Request,
    ) -> Option<Request> {
        let Some(until) = self.held.until.filter(|until| now < *until) else {
            return Some(request);
        };
        let name = (caller.client, caller.operation);
        // Of a request that is repeated the last one waits.
        drop(self.held.take(name));
        if !self.is_partial() {
            return Some(request);
        }
        let (tenant, keys, missing, is_prefix) = match &request {
            Request::Get(get) => (
                &get.tenant,
                get.keys.len(),
                self.not_found(&get.tenant, &get.keys),
                get.prefix_only,
            ),
            Request::Exists(exists) => (
                &exists.tenant,
                exists.keys.len(),
                self.not_found(&exists.tenant, exists.keys.iter()),
                false,
            ),
            Request::Describe { tenant, key } => (tenant, 1, self.not_found(tenant, [key]), false),
            _ => return Some(request),
        };
        // One of too many keys is refused.
        let room = keys <= self.config.limits.batch_keys
            && self.held.has_room(caller.client, keys, &self.config.limits);
        if missing.is_empty() || !room {
            return Some(request);
        }
        let waits_for = if is_prefix { 1 } else { missing.len() };
        let call = HeldCall {
            caller: caller.clone(),
            tenant: self.tenants.effective(tenant).clone(),
            request,
            keys,
            missing,
            waits_for,
            awaited: waits_for,
        };
        self.held.keep(name, call);
        self.metrics.look_ups_held += 1;
        self.due.set(Due::Held, until);
        None
    }

    /// The keys that nobody can read now, each once.
    fn not_found<K: AsRef<[u8]>>(
        &self,
        tenant: &Tenant,
        keys: impl IntoIterator<Item = K>,
    ) -> Vec<Missing> {
        let index = self.tenants.find(tenant);
        let missing = keys.into_iter().enumerate().filter_map(|(at, key)| {
            let hash = self.tenants.hash_of(tenant, &key);
            let found = index.and_then(|index| self.catalog.find(index, key, hash));
            // An object without replicas is being put, and answered as such.
            let known = found.is_some_and(|id| {
                let object = self.catalog.object(id);
                !object.has_replicas() || self.segments.is_readable(&self.catalog, id)
            });
            (!known).then_some(Missing { hash, at })
        });
        let mut missing: Vec<Missing> = missing.collect();
        missing.sort_unstable_by_key(|missing| (missing.hash, missing.at));
        missing.dedup_by_key(|missing| missing.hash);
        missing.sort_unstable_by_key(|missing| missing.at);
        missing
    }

    /// Answers what has waited for long enough: a limited number in each step.
    pub(crate) fn answer_held(&mut self, now: Instant) {
        if self.held.calls.is_empty() {
            return;
        }
        let over = self.held.until.is_none_or(|until| until <= now) || !self.is_partial();
        let mut left = STEP;
        while left > 0 {
            let next = match over {
                true => self.held.calls.keys().next().copied(),
                false => self.held.found.first().copied(),
            };
            let Some(call) = next.and_then(|name| self.held.take(name)) else {
                break;
            };
            left = left.saturating_sub(call.keys.max(1));
            self.request(now, &call.caller, call.request);
        }
        match (self.held.calls.is_empty(), self.held.found.is_empty()) {
            (true, _) => self.due.cancel(Due::Held),
            (false, empty) if over || !empty => self.due.set(Due::Held, now),
            (false, _) => {}
        }
    }
}
