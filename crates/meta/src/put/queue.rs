//! Calls that wait for room, served in order as soon as there is some.
//!
//! Within a tenant calls that wait for space are served in the order of their arrival. Tenants take turns: room is made
//! for the call whose turn it is, and while it waits, calls of other tenants may pass it until they were given as many bytes
//! as its next entry needs. So no tenant waits for another's whole queue, and no large call waits for ever while small ones
//! pass (the idea of deficit round robin: Shreedhar and Varghese, 1995). A call across hosts, which needs room on several at once,
//! waits apart, as one full host is nothing that calls with room elsewhere wait for: later calls pass it as long as they leave it
//! the room that it has found. The queue is bounded by calls and by the bytes that
//! they take here. When it is full, the newest call of the tenant whose calls take most is refused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_wire::{ClientId, ErrorCode, OperationId, PutStarted, Reply};

use super::across::Across;
use super::room::RoomWanted;
use super::start::{PutCall, Shortage};
use crate::catalog::TenantIndex;
use crate::master::{Caller, Due, Master};

/// Calls that wait: for space, and apart from these for quota, for a node or for several hosts, which holds nobody else up.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: BTreeMap<u64, Waiting>,
    next: u64,
    for_space: BTreeMap<TenantIndex, BTreeSet<u64>>,
    apart: BTreeMap<(TenantIndex, Shortage), BTreeSet<u64>>,
    across: Across,
    /// The calls apart that were tried last, and how many lists of them are left of this round.
    apart_turn: Option<(TenantIndex, Shortage)>,
    apart_left: usize,
    /// Tenants with calls that wait for space, in the order of their turns.
    turns: VecDeque<TenantIndex>,
    /// Bytes that other tenants were given since the tenant whose turn it is was given any.
    passed: u64,
    /// Bytes that the calls of each tenant take in this process, and all of them together.
    held: BTreeMap<TenantIndex, usize>,
    held_bytes: usize,
}

/// A call with entries that have no room yet.
struct Waiting {
    call: PutCall,
    short: Shortage,
    /// Bytes that the call took in this process when it came.
    held: usize,
}

impl Queue {
    pub(crate) fn anyone_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a call must wait for earlier ones: for one of its own tenant, or for the one whose turn it is, if `charge` more
    /// bytes would exceed what may pass that one. The call that is being served is not listed.
    pub(crate) fn holds_back(&self, call: &PutCall, charge: u64) -> bool {
        let is_later =
            |first: &PutCall| call.number.is_none_or(|number| first.number < Some(number));
        if let Some(first) = self.first_of(call.tenant) {
            return is_later(first);
        }
        let Some(next) = self.first() else {
            return false;
        };
        let entry = next.entries.front();
        let may_not_pass =
            entry.is_some_and(|next| self.passed.saturating_add(charge) > next.charge);
        // Its tenant has no turn.
        let is_before = call.is_across_hosts() && !is_later(next);
        may_not_pass && !is_before && self.turns.front() != Some(&call.tenant)
    }

    /// Bytes of the value for which a call across hosts waits, if that came before this one: what it has found of room is left
    /// to it.
    pub(crate) fn spared(&self, call: &PutCall) -> Option<u64> {
        let first = self.first_across()?;
        let is_later = call.number.is_none_or(|number| first.number < Some(number));
        let entry = first.entries.front().filter(|_| is_later)?;
        Some(entry.bytes)
    }

    /// Counts room that a tenant was given.
    pub(crate) fn granted(&mut self, tenant: TenantIndex, charge: u64) {
        match self.turns.front() {
            Some(turn) if *turn != tenant => self.passed += charge,
            _ => self.passed = 0,
        }
    }

    /// Whether each call that waits is in the list of what it waits for and in no other, none of these is empty, and what
    /// the calls take here is what is counted.
    pub(crate) fn balance(&self) -> bool {
        let of_space = self.for_space.iter();
        let space = of_space.map(|(tenant, calls)| (*tenant, Shortage::Space, calls));
        let of_apart = self.apart.iter();
        let apart = of_apart.map(|((tenant, short), calls)| (*tenant, *short, calls));
        let hosts = self.across.lists();
        let hosts = hosts.map(|(tenant, calls)| (tenant, Shortage::Hosts, calls));
        let (mut listed, mut held) = (0, BTreeMap::<TenantIndex, usize>::new());
        let right = space
            .chain(apart)
            .chain(hosts)
            .all(|(tenant, short, calls)| {
                listed += calls.len();
                let mut waiting = calls.iter().map(|number| self.waiting.get(number));
                !calls.is_empty()
                    && waiting.all(|waiting| {
                        waiting.is_some_and(|of| of.short == short && of.call.tenant == tenant)
                    })
            });
        for waiting in self.waiting.values() {
            *held.entry(waiting.call.tenant).or_default() += waiting.held;
        }
        let across = self.waiting.iter();
        let across = across.filter(|(_, waiting)| waiting.short == Shortage::Hosts);
        let mut turns: Vec<TenantIndex> = self.turns.iter().copied().collect();
        turns.sort_unstable();
        right
            && listed == self.waiting.len()
            && turns.iter().eq(self.for_space.keys())
            && self.across.balance(across.map(|(number, _)| number))
            && held == self.held
            && held.values().sum::<usize>() == self.held_bytes
    }

    /// Whether a call of this tenant waits.
    pub(crate) fn has_calls_of(&self, tenant: TenantIndex) -> bool {
        self.held.contains_key(&tenant)
    }

    fn enqueue(&mut self, mut call: PutCall, short: Shortage) -> u64 {
        let number = self.next;
        self.next += 1;
        call.number = Some(number);
        self.list(number, call.tenant, short);
        let held = call.held_bytes();
        self.held_bytes += held;
        *self.held.entry(call.tenant).or_default() += held;
        let waiting = Waiting { call, short, held };
        self.waiting.insert(number, waiting);
        number
    }

    /// Counts a call no longer.
    fn release(&mut self, tenant: TenantIndex, held: usize) {
        self.held_bytes -= held;
        if let Some(of_tenant) = self.held.get_mut(&tenant) {
            *of_tenant -= held;
            if *of_tenant == 0 {
                self.held.remove(&tenant);
            }
        }
    }

    fn list(&mut self, number: u64, tenant: TenantIndex, short: Shortage) {
        match short {
            Shortage::Space => {
                let calls = self.for_space.entry(tenant).or_insert_with(|| {
                    self.turns.push_back(tenant);
                    BTreeSet::new()
                });
                calls.insert(number);
            }
            Shortage::Hosts => self.across.insert(number, tenant),
            Shortage::Quota | Shortage::Node => {
                let calls = self.apart.entry((tenant, short)).or_insert_with(|| {
                    // The round that is under way may come to it instead of another.
                    self.apart_left += 1;
                    BTreeSet::new()
                });
                calls.insert(number);
            }
        }
    }

    /// Removes a call from its list; if it was its turn, the next tenant's turn begins.
    fn unlist(&mut self, number: u64, tenant: TenantIndex) {
        if let Some(calls) = self.for_space.get_mut(&tenant) {
            let was_first = calls.first() == Some(&number);
            calls.remove(&number);
            let is_empty = calls.is_empty();
            let its_turn = self.turns.front() == Some(&tenant);
            if is_empty {
                self.for_space.remove(&tenant);
                self.turns.retain(|other| *other != tenant);
            } else if was_first && its_turn {
                self.turns.rotate_left(1);
            }
            if was_first && its_turn {
                self.passed = 0;
            }
        }
        self.across.remove(number, tenant);
        for short in Shortage::APART {
            if let Some(calls) = self.apart.get_mut(&(tenant, short)) {
                calls.remove(&number);
                if calls.is_empty() {
                    self.apart.remove(&(tenant, short));
                }
            }
        }
    }

    fn dequeue(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&number)?;
        self.unlist(number, waiting.call.tenant);
        self.release(waiting.call.tenant, waiting.held);
        Some(waiting)
    }

    fn first_of(&self, tenant: TenantIndex) -> Option<&PutCall> {
        let number = self.for_space.get(&tenant)?.first()?;
        self.waiting.get(number).map(|waiting| &waiting.call)
    }

    /// The call whose turn it is.
    fn first(&self) -> Option<&PutCall> {
        self.first_of(*self.turns.front()?)
    }

    fn first_number(&self) -> Option<u64> {
        self.for_space.get(self.turns.front()?)?.first().copied()
    }

    /// The first call of the next tenant that may pass the one whose turn it is; the tenant goes to the end of the turns.
    fn next_passing(&mut self) -> Option<u64> {
        let tenant = self.turns.remove(1)?;
        self.turns.push_back(tenant);
        self.for_space.get(&tenant)?.first().copied()
    }

    fn first_apart(&self, list: (TenantIndex, Shortage)) -> Option<u64> {
        self.apart.get(&list)?.first().copied()
    }

    /// Of the calls across hosts the one that came first. Room is made for it.
    fn first_across(&self) -> Option<&PutCall> {
        let waiting = self.waiting.get(&self.across.first()?)?;
        Some(&waiting.call)
    }

    /// All calls apart are tried again.
    fn begin_round(&mut self) {
        self.apart_left = self.apart.len();
        self.across.begin_round();
    }

    /// The next calls of this round.
    fn next_apart(&mut self) -> Option<(TenantIndex, Shortage)> {
        self.apart_left = self.apart_left.checked_sub(1)?;
        let after = self.apart_turn.map_or(Bound::Unbounded, Bound::Excluded);
        let mut behind = self.apart.range((after, Bound::Unbounded));
        let next = behind.next().or_else(|| self.apart.first_key_value());
        self.apart_turn = next.map(|(list, _)| *list);
        self.apart_turn
    }

    /// The newest call of the tenant whose calls take most, if these take more than those of `tenant` would with one of
    /// this size.
    fn displaced_by(&self, tenant: TenantIndex, bytes: usize) -> Option<u64> {
        let (largest, held) = self.held.iter().max_by_key(|(_, held)| **held)?;
        let own = self.held.get(&tenant).copied().unwrap_or_default();
        if *held <= own.saturating_add(bytes) {
            return None;
        }
        let space = self.for_space.get(largest);
        let apart = Shortage::APART.map(|short| self.apart.get(&(*largest, short)));
        let lists = space.into_iter().chain(self.across.of(*largest));
        let lists = lists.chain(apart.into_iter().flatten());
        lists.filter_map(BTreeSet::last).max().copied()
    }

    /// The room that calls wait for which need one host.
    pub(super) fn wanted(&self) -> Option<RoomWanted> {
        let first = self.first()?;
        let bytes = first.entries.front().map_or(0, |entry| entry.bytes);
        let first = bytes.saturating_add(self.spared(first).unwrap_or(0));
        Some(RoomWanted {
            bytes: self.bytes_wanted().max(first),
            first,
            across_hosts: false,
        })
    }

    /// The room that the first call across hosts waits for.
    pub(super) fn wanted_across(&self) -> Option<RoomWanted> {
        let bytes = self.first_across()?.entries.front()?.bytes;
        Some(RoomWanted {
            bytes,
            first: bytes,
            across_hosts: true,
        })
    }

    /// Bytes that the first calls wait for, at least those of the first one.
    fn bytes_wanted(&self) -> u64 {
        let calls = self.for_space.values().flatten().take(WANTED_CALLS);
        calls
            .filter_map(|number| self.waiting.get(number))
            .flat_map(|waiting| waiting.call.entries.iter().take(WANTED_CALLS))
            .map(|entry| entry.bytes)
            .fold(0, u64::saturating_add)
    }
}

/// Calls and entries that are counted to estimate how much room is wanted.
const WANTED_CALLS: usize = 64;

/// Calls that are refused at most for one that comes.
const DISPLACED_MAX: usize = 16;

/// Lists of calls apart that are tried in one step.
const APART_STEP: usize = 16;

/// Tenants whose calls are tried without success in a row while another has its turn.
const PASSING_TENANTS_MAX: usize = 16;

impl Master {
    /// Queues or refuses a call for which there is no room now.
    pub(crate) fn wait_or_refuse(&mut self, now: Instant, call: PutCall, short: Shortage) {
        let limits = &self.config.put;
        let wait = call.config.wait.unwrap_or(limits.wait).min(limits.wait_max);
        let (limit, bytes_limit) = (limits.queue_limit, limits.queue_bytes);
        if wait > Duration::ZERO {
            self.displace(&call, limit, bytes_limit);
        }
        let full = self.queue.len() >= limit
            || self.queue.held_bytes.saturating_add(call.held_bytes()) > bytes_limit;
        if wait == Duration::ZERO || full {
            self.metrics.puts_refused += call.entries.len() as u64;
            if short.is_of_room() {
                // The call does not wait, but room is made all the same: otherwise the next one would find none either.
                let lengths = call.entries.iter().map(|entry| entry.bytes);
                let wanted = RoomWanted {
                    bytes: lengths.fold(0, u64::saturating_add),
                    first: call.entries[0].bytes,
                    across_hosts: call.is_across_hosts(),
                };
                let budget = self.config.eviction.only_step();
                self.make_room_within(now, wanted, budget);
            }
            return self.give_up(call, short);
        }
        self.metrics.puts_waited += 1;
        let number = self.queue.enqueue(call, short);
        self.due.set(Due::Wait(number), now + wait);
        if short.is_of_room() {
            self.make_room(now);
        }
    }

    /// Refuses calls of tenants whose calls take more than their part of a full queue, so that this one may wait.
    fn displace(&mut self, call: &PutCall, limit: usize, bytes_limit: usize) {
        let bytes = call.held_bytes();
        for _ in 0..DISPLACED_MAX {
            let full = self.queue.len() >= limit
                || self.queue.held_bytes.saturating_add(bytes) > bytes_limit;
            let displaced = full.then(|| self.queue.displaced_by(call.tenant, bytes));
            let Some(number) = displaced.flatten() else {
                return;
            };
            if let Some(Waiting { call, short, .. }) = self.stop_wait(number) {
                self.metrics.puts_refused += call.entries.len() as u64;
                self.give_up(call, short);
                self.unsettled.room();
            }
        }
    }

    /// Gives room to the calls that wait.
    pub(crate) fn serve(&mut self, now: Instant) {
        if !self.queue.anyone_waits() {
            return;
        }
        // Others pass the first call across hosts: what that is given, or leaves to them, is known then.
        while let Some(number) = self.queue.across.first() {
            if !self.serve_one(now, number) {
                break;
            }
        }
        while let Some(number) = self.queue.first_number() {
            if !self.serve_one(now, number) {
                break;
            }
        }
        let mut refused = 0;
        while refused < PASSING_TENANTS_MAX.min(self.queue.turns.len().saturating_sub(1)) {
            match self.queue.next_passing() {
                Some(number) if self.serve_one(now, number) => refused = 0,
                Some(_) => refused += 1,
                None => break,
            }
        }
        self.queue.begin_round();
        self.serve_apart(now);
    }

    /// Tries some of the calls apart; the others are another step.
    pub(crate) fn serve_apart(&mut self, now: Instant) {
        for number in self.queue.across.next() {
            self.serve_one(now, number);
        }
        for _ in 0..APART_STEP {
            let Some(list) = self.queue.next_apart() else {
                break;
            };
            while let Some(number) = self.queue.first_apart(list) {
                if !self.serve_one(now, number) {
                    break;
                }
            }
        }
        if self.queue.apart_left > 0 || self.queue.across.is_under_way() {
            self.due.set(Due::Apart, now);
        }
    }

    /// Room was taken that the first call across hosts may have found: it is tried again, which has room made where there is none
    /// now.
    pub(crate) fn room_taken(&mut self, now: Instant) {
        if !self.queue.across.is_empty() {
            self.queue.across.try_first_again();
            self.due.set(Due::Apart, now);
        }
    }

    /// Serves one call; returns whether it was answered or now waits for something else.
    fn serve_one(&mut self, now: Instant, number: u64) -> bool {
        let Waiting {
            mut call,
            short,
            held,
        } = self
            .queue
            .waiting
            .remove(&number)
            .expect("queues name waiting calls");
        let tenant = call.tenant;
        let Some(left) = self.grant_all(now, &mut call) else {
            self.queue.unlist(number, tenant);
            self.queue.release(tenant, held);
            self.due.cancel(Due::Wait(number));
            self.answer_put(call);
            return true;
        };
        if left != short {
            self.queue.unlist(number, tenant);
            self.queue.list(number, tenant, left);
        }
        let waiting = Waiting {
            call,
            short: left,
            held,
        };
        self.queue.waiting.insert(number, waiting);
        let of_first = [self.queue.first_number(), self.queue.across.first()];
        if of_first.contains(&Some(number)) {
            self.make_room(now);
        }
        left != short
    }

    pub(crate) fn wait_expired(&mut self, number: u64) {
        let Some(Waiting { call, short, .. }) = self.queue.dequeue(number) else {
            return;
        };
        self.metrics.puts_timed_out += 1;
        self.give_up(call, short);
        self.unsettled.room();
    }

    fn give_up(&mut self, mut call: PutCall, short: Shortage) {
        let code = match short {
            Shortage::Space | Shortage::Node | Shortage::Hosts => ErrorCode::NoAvailableHandle,
            Shortage::Quota => ErrorCode::TenantQuotaExceeded,
        };
        for entry in &call.entries {
            call.results[entry.at] = PutStarted::Failed(code);
        }
        self.answer_put(call);
    }

    fn stop_wait(&mut self, number: u64) -> Option<Waiting> {
        self.due.cancel(Due::Wait(number));
        self.queue.dequeue(number)
    }

    /// The client no longer waits for `operation`, or for anything if that is `None`.
    pub(crate) fn stop_waiting(&mut self, client: ClientId, operation: Option<OperationId>) {
        let stops = |caller: &Caller| {
            caller.client == client && operation.is_none_or(|it| caller.operation == it)
        };
        let waiting = self.queue.waiting.iter();
        let numbers: Vec<u64> = waiting
            .filter(|(_, waiting)| stops(&waiting.call.caller))
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            self.stop_wait(number);
            // A client that is still there holds the right to an answer open until it comes.
            if let Some(operation) = operation {
                let reply = Reply::Failed(ErrorCode::Cancelled);
                self.outbox.reply(client, operation, reply);
            }
        }
    }
}
