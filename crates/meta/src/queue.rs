//! Those who wait for room, served in order the moment there is some.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use slackwater_base::Instant;
use slackwater_wire::{ClientId, ErrorCode, PutConfig, PutStarted, Reply};

use crate::catalog::TenantIndex;
use crate::grant::Wanted;
use crate::master::{Caller, Due, Master};
use crate::pressure::Pass;
use crate::segment::Segment;

/// Calls that wait, first in, first out: for space, and apart from these for quota, which is no other tenant's concern.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: BTreeMap<u64, Waiting>,
    next: u64,
    for_space: BTreeSet<u64>,
    for_quota: BTreeMap<TenantIndex, BTreeSet<u64>>,
}

/// A call some of whose entries have no room yet.
pub(crate) struct Waiting {
    pub(crate) caller: Caller,
    pub(crate) tenant: TenantIndex,
    pub(crate) config: PutConfig,
    pub(crate) entries: VecDeque<Wanted>,
    pub(crate) results: Vec<PutStarted>,
    pub(crate) short: Shortage,
}

/// What there is too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    Space,
    Quota,
}

impl Queue {
    pub(crate) fn anyone_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether somebody else waits for space before this caller.
    pub(crate) fn is_before(&self, caller: &Caller) -> bool {
        let head = self
            .for_space
            .first()
            .and_then(|number| self.waiting.get(number));
        head.is_some_and(|head| {
            (head.caller.client, head.caller.operation) != (caller.client, caller.operation)
        })
    }

    pub(crate) fn enqueue(&mut self, waiting: Waiting) -> u64 {
        let number = self.next;
        self.next += 1;
        self.list(number, waiting.tenant, waiting.short);
        self.waiting.insert(number, waiting);
        number
    }

    fn list(&mut self, number: u64, tenant: TenantIndex, short: Shortage) {
        match short {
            Shortage::Space => self.for_space.insert(number),
            Shortage::Quota => self.for_quota.entry(tenant).or_default().insert(number),
        };
    }

    fn unlist(&mut self, number: u64, tenant: TenantIndex) {
        self.for_space.remove(&number);
        if let Some(queue) = self.for_quota.get_mut(&tenant) {
            queue.remove(&number);
            if queue.is_empty() {
                self.for_quota.remove(&tenant);
            }
        }
    }

    fn dequeue(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&number)?;
        self.unlist(number, waiting.tenant);
        Some(waiting)
    }

    /// Bytes that calls wait for, at least those of the first.
    pub(crate) fn bytes_wanted(&self) -> u64 {
        let calls = self
            .for_space
            .iter()
            .take(WANTED_CALLS)
            .filter_map(|number| self.waiting.get(number));
        calls
            .flat_map(|call| {
                call.entries
                    .iter()
                    .take(WANTED_CALLS)
                    .map(|entry| entry.bytes)
            })
            .sum()
    }

    pub(crate) fn first_bytes(&self) -> u64 {
        let first = self
            .for_space
            .first()
            .and_then(|number| self.waiting.get(number));
        first
            .and_then(|call| call.entries.front())
            .map_or(0, |entry| entry.bytes)
    }
}

/// Calls and entries looked at when it is guessed how much room is wanted.
const WANTED_CALLS: usize = 64;

impl Master {
    /// Gives room to those who wait, first come first served.
    pub(crate) fn serve(&mut self, now: Instant) {
        while let Some(number) = self.queue.for_space.first().copied() {
            if !self.serve_one(now, number) {
                break;
            }
        }
        if self.queue.for_quota.is_empty() {
            return;
        }
        for tenant in self.queue.for_quota.keys().copied().collect::<Vec<_>>() {
            while let Some(number) = self
                .queue
                .for_quota
                .get(&tenant)
                .and_then(|queue| queue.first())
                .copied()
            {
                if !self.serve_one(now, number) {
                    break;
                }
            }
        }
    }

    /// Whether this call is answered, or waits for something else than before.
    fn serve_one(&mut self, now: Instant, number: u64) -> bool {
        let mut call = self
            .queue
            .waiting
            .remove(&number)
            .expect("queues name waiting calls");
        let Waiting {
            caller,
            tenant,
            config,
            entries,
            results,
            short,
        } = &mut call;
        let (caller, tenant, before) = (caller.clone(), *tenant, *short);
        let left = self.grant_all(now, &caller, tenant, config, entries, results);
        let Some(left) = left else {
            self.queue.unlist(number, tenant);
            self.due.cancel(Due::Wait(number));
            self.outbox.reply(
                caller.client,
                caller.operation,
                Reply::PutStart(call.results),
            );
            return true;
        };
        call.short = left;
        if left != before {
            self.queue.unlist(number, tenant);
            self.queue.list(number, tenant, left);
        }
        self.queue.waiting.insert(number, call);
        if left == Shortage::Space {
            self.make_room(now, self.queue.bytes_wanted(), self.queue.first_bytes());
        }
        left != before
    }

    /// Evicts what those who wait need, unless it is on its way already.
    pub(crate) fn make_room(&mut self, now: Instant, wanted: u64, first: u64) {
        let coming = |segment: &Segment| {
            let books = segment.memory().map(|memory| memory.extents.books())?;
            Some((books.free, books.quarantined + segment.leaving))
        };
        let all = self
            .segments
            .iter()
            .filter_map(|(index, segment)| Some((index, coming(segment)?)));
        let Some((index, (free, coming))) = all.max_by_key(|(_, (free, coming))| free + coming)
        else {
            return;
        };
        let missing = match coming {
            0 => wanted,
            _ => wanted.saturating_sub(free + coming),
        };
        let most = (self.segments.at(index).capacity() / 8).max(first);
        let mut budget = self.config.eviction.step;
        let missing = missing.min(most);
        let freed = self.evict(now, index, missing, Pass::Last, &mut budget);
        if freed < missing && budget == 0 {
            self.due.set(Due::Relieve(index), now);
        }
    }

    pub(crate) fn wait_expired(&mut self, number: u64) {
        let Some(call) = self.queue.dequeue(number) else {
            return;
        };
        self.metrics.puts_timed_out += 1;
        self.give_up(&call.caller, call.short, call.entries, call.results);
    }

    pub(crate) fn give_up(
        &mut self,
        caller: &Caller,
        short: Shortage,
        entries: VecDeque<Wanted>,
        mut results: Vec<PutStarted>,
    ) {
        let code = match short {
            Shortage::Space => ErrorCode::NoAvailableHandle,
            Shortage::Quota => ErrorCode::TenantQuotaExceeded,
        };
        for entry in entries {
            results[entry.at] = PutStarted::Failed(code);
        }
        self.outbox
            .reply(caller.client, caller.operation, Reply::PutStart(results));
    }

    /// The client is gone and waits no longer.
    pub(crate) fn stop_waiting(&mut self, client: ClientId) {
        let calls = self
            .queue
            .waiting
            .iter()
            .filter(|(_, call)| call.caller.client == client);
        for number in calls.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.due.cancel(Due::Wait(number));
            self.queue.dequeue(number);
        }
    }
}
