//! Answers that are kept, so that a repeated operation is answered again and not executed again.
//!
//! A client repeats an operation when no answer arrives: the request or the answer may be lost. Executing it twice is
//! wrong for whatever changes or grants something: a second put start finds the open put of the first, a second removal
//! removes what was put since. The master keeps the last answers of each client and gives a repetition the first one
//! (RIFL: Lee et al., "Implementing Linearizability at Large Scale and Low Latency", SOSP 2015; here the window is
//! bounded by count, and an operation older than what is kept is refused, never executed again).
//!
//! A client gives back what a lost answer granted with [`slackwater_wire::Request::Revoke`], which may arrive before
//! the operation itself, as requests may overtake each other.

use std::collections::{BTreeMap, BTreeSet};

use slackwater_base::{Instant, Map, Planted, planted};
use slackwater_wire::{ClientId, ErrorCode, Get, Hold, OperationId, PutStarted, Reply, Request};

use crate::Output;
use crate::config::Limits;
use crate::master::Master;

/// The last answers of each client.
pub(crate) struct Answers {
    operations_max: usize,
    keys_max: usize,
    clients_max: usize,
    of: Map<ClientId, Window>,
    /// Clients by the time of their last request: when there are too many, the client with the oldest one is dropped.
    silent: BTreeSet<(Instant, ClientId)>,
    /// Clients by the keys in their kept answers: the one with most gives up its oldest answers first, so that no client
    /// can push out the answers of others.
    heavy: BTreeSet<(usize, ClientId)>,
    /// Number of keys in all kept answers.
    keys: usize,
}

#[derive(Default)]
struct Window {
    last: Instant,
    operations: BTreeMap<OperationId, Kept>,
    pending: usize,
    /// Keys in the kept answers.
    keys: usize,
    /// The highest operation whose answer was dropped: an operation up to this one without a kept answer is too old.
    forgotten: OperationId,
}

enum Kept {
    /// Not answered yet, and whether the answer may grant something.
    Pending(Granting),
    Answered(Reply),
}

impl Kept {
    fn is_pending(&self) -> bool {
        matches!(self, Self::Pending(_))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Granting {
    Yes,
    No,
}

/// How an operation that has arrived is handled.
pub(crate) enum Arrival {
    /// Execute it.
    New,
    /// Nothing: it is being executed and will be answered.
    Pending,
    /// Give this answer and do nothing else.
    Answered(Reply),
}

impl Answers {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            operations_max: limits.reply_window,
            keys_max: limits.reply_keys,
            clients_max: limits.clients,
            of: Map::default(),
            silent: BTreeSet::new(),
            heavy: BTreeSet::new(),
            keys: 0,
        }
    }

    /// Says how to handle an operation, and records it if executing it twice would be wrong.
    pub(crate) fn arrive(
        &mut self,
        now: Instant,
        client: ClientId,
        operation: OperationId,
        request: &Request,
    ) -> Arrival {
        let executed_twice = planted(Planted::RepeatedOperationExecutedTwice);
        if !self.covers(operation) || !must_not_repeat(request) || executed_twice {
            return Arrival::New;
        }
        let operations_max = self.operations_max;
        let window = self.window(now, client);
        match window.operations.get(&operation) {
            Some(Kept::Answered(reply)) => return Arrival::Answered(reply.clone()),
            Some(Kept::Pending(_)) => return Arrival::Pending,
            None => {}
        }
        if operation <= window.forgotten {
            return Arrival::Answered(Reply::Failed(ErrorCode::OperationTooOld));
        }
        if window.pending < operations_max {
            window.pending += 1;
            let granting = granting(request);
            window.operations.insert(operation, Kept::Pending(granting));
            return Arrival::New;
        }
        // Kept as any answer: the client takes it for the end of the operation, so a copy must not be executed.
        let refused = Reply::Failed(ErrorCode::TaskPendingLimitExceeded);
        self.insert(client, operation, refused.clone());
        Arrival::Answered(refused)
    }

    /// Keeps the answers among these outputs.
    pub(crate) fn keep(&mut self, outputs: &[Output]) {
        for output in outputs {
            if let Output::Reply {
                client,
                operation,
                reply,
            } = output
                && self.covers(*operation)
            {
                self.keep_one(*client, *operation, reply);
            }
        }
    }

    fn keep_one(&mut self, client: ClientId, operation: OperationId, reply: &Reply) {
        let Some(window) = self.of.get_mut(&client) else {
            return;
        };
        let Some(kept @ Kept::Pending(_)) = window.operations.get_mut(&operation) else {
            return;
        };
        *kept = Kept::Answered(reply.clone());
        window.pending -= 1;
        let total = window.keys + keys(reply);
        self.weigh(client, total);
        self.trim(client);
    }

    /// Keeps the answer to an operation that is not in the window.
    fn insert(&mut self, client: ClientId, operation: OperationId, reply: Reply) {
        let Some(window) = self.of.get_mut(&client) else {
            return;
        };
        let total = window.keys + keys(&reply);
        window.operations.insert(operation, Kept::Answered(reply));
        self.weigh(client, total);
        self.trim(client);
    }

    /// The operation is revoked: from now on a repetition, or a first arrival, is refused.
    pub(crate) fn revoke(&mut self, now: Instant, client: ClientId, operation: OperationId) {
        if !self.covers(operation) {
            return;
        }
        let window = self.window(now, client);
        let cancelled = Reply::Failed(ErrorCode::Cancelled);
        let revoked = Kept::Answered(cancelled.clone());
        match window.operations.get_mut(&operation) {
            Some(kept @ Kept::Pending(Granting::Yes)) => {
                window.pending -= 1;
                *kept = revoked;
                let total = window.keys + 1;
                self.weigh(client, total);
                self.trim(client);
            }
            Some(kept @ Kept::Answered(Reply::PutStart(_) | Reply::Get(_))) => {
                let answered = std::mem::replace(kept, revoked);
                let total = window.keys + 1 - weight(&answered);
                self.weigh(client, total);
            }
            Some(_) => {}
            None if operation <= window.forgotten => {}
            None => {
                if !planted(Planted::UnknownRevokeForgotten) {
                    self.insert(client, operation, cancelled);
                }
            }
        }
    }

    /// The client's links are gone, and what it was granted has been taken back: a repeated operation that granted
    /// something is executed anew. Other answers stay, as the client may come back and repeat operations that it had no
    /// answer to.
    pub(crate) fn lose(&mut self, client: ClientId) {
        let Some(window) = self.of.get_mut(&client) else {
            return;
        };
        let mut dropped = 0;
        let pending = &mut window.pending;
        window.operations.retain(|_, kept| match kept {
            Kept::Pending(Granting::Yes) => {
                *pending -= 1;
                false
            }
            Kept::Answered(reply) if grants(reply) => {
                dropped += keys(reply);
                false
            }
            _ => true,
        });
        let total = window.keys - dropped;
        self.weigh(client, total);
    }

    /// Whether every count equals a recount, and no limit is exceeded.
    pub(crate) fn balance(&self) -> bool {
        let count = |window: &Window| {
            let pending = window.operations.values().filter(|kept| kept.is_pending());
            let weights = window.operations.values().map(weight);
            window.pending == pending.count()
                && window.pending <= self.operations_max
                && window.operations.len() - window.pending <= self.operations_max
                && window.keys == weights.sum::<usize>()
        };
        let heavy =
            |(client, window): (&ClientId, &Window)| self.heavy.contains(&(window.keys, *client));
        self.keys == self.of.values().map(|window| window.keys).sum::<usize>()
            && self.keys <= self.keys_max
            && self.of.len() == self.silent.len()
            && self.of.len() == self.heavy.len()
            && self.of.iter().all(heavy)
            && self.of.len() <= self.clients_max.max(1)
            && self.of.values().all(count)
    }

    fn covers(&self, operation: OperationId) -> bool {
        operation.may_repeat() && self.operations_max > 0
    }

    /// The window of a client that has just sent something.
    fn window(&mut self, now: Instant, client: ClientId) -> &mut Window {
        if !self.of.contains_key(&client)
            && self.of.len() >= self.clients_max
            && let Some((_, longest)) = self.silent.pop_first()
        {
            self.forget(longest);
        }
        let window = self.of.entry(client).or_default();
        self.heavy.insert((window.keys, client));
        self.silent.remove(&(window.last, client));
        window.last = now;
        self.silent.insert((now, client));
        window
    }

    fn forget(&mut self, client: ClientId) {
        self.weigh(client, 0);
        self.heavy.remove(&(0, client));
        self.of.remove(&client);
    }

    /// The keys in the kept answers of a client are now this many.
    fn weigh(&mut self, client: ClientId, keys: usize) {
        let Some(window) = self.of.get_mut(&client) else {
            return;
        };
        self.heavy.remove(&(window.keys, client));
        self.keys = self.keys - window.keys + keys;
        window.keys = keys;
        self.heavy.insert((keys, client));
    }

    /// Drops the oldest answers until no more than the limits are kept.
    fn trim(&mut self, client: ClientId) {
        while self
            .of
            .get(&client)
            .is_some_and(|window| window.operations.len() - window.pending > self.operations_max)
        {
            self.drop_oldest(client);
        }
        while self.keys > self.keys_max
            && let Some((_, heaviest)) = self.heavy.last().copied()
        {
            self.drop_oldest(heaviest);
        }
    }

    /// Drops the oldest answer of a client. Pending operations stay: a repetition must find them.
    fn drop_oldest(&mut self, client: ClientId) {
        let Some(window) = self.of.get_mut(&client) else {
            return;
        };
        let oldest = window
            .operations
            .iter()
            .find_map(|(operation, kept)| match kept {
                Kept::Answered(reply) => Some((*operation, keys(reply))),
                Kept::Pending(_) => None,
            });
        if let Some((oldest, dropped)) = oldest {
            window.operations.remove(&oldest);
            window.forgotten = window.forgotten.max(oldest);
            let total = window.keys - dropped;
            self.weigh(client, total);
        }
    }
}

impl Master {
    /// Takes back what an operation of the client was granted, and prevents that it is granted anything later.
    pub(crate) fn revoke_operation(
        &mut self,
        now: Instant,
        client: ClientId,
        operation: OperationId,
    ) -> Reply {
        self.stop_waiting(client, Some(operation));
        self.held.forget(client, Some(operation));
        for object in self.puts.of_operation(client, operation) {
            self.metrics.puts_revoked += 1;
            let tenant = self.catalog.object(object).tenant;
            self.close_put(tenant, object);
            self.erase_if_empty(now, object);
        }
        // The kept answer cannot tell what was granted: old answers are dropped, and none is kept for an operation that
        // cannot repeat.
        for replica in self.guards.revoke(client, operation) {
            self.unhold(now, replica);
        }
        self.answers.revoke(now, client, operation);
        self.unsettled.room();
        Reply::Done
    }
}

/// Whether executing the request a second time would change or grant something that the first time did not. A read by
/// lease may be repeated: the holder counts each lease from its first request. Requests that give back or report wrong
/// bytes name a guard, an operation or a version, which are never reused.
fn must_not_repeat(request: &Request) -> bool {
    match request {
        Request::Get(Get { hold, .. }) => *hold == Hold::Guard,
        Request::Reads(_)
        | Request::GetEnd(_)
        | Request::PutRevoke { .. }
        | Request::Revoke { .. }
        | Request::Suspect { .. }
        | Request::Exists(_)
        | Request::List(_)
        | Request::Describe { .. }
        | Request::Quotas
        | Request::QueryJob { .. }
        | Request::AwaitJob { .. }
        | Request::CancelJob { .. }
        | Request::Jobs => false,
        Request::PutStart(_)
        | Request::PutEnd(_)
        | Request::Remove(_)
        | Request::RemoveMatching(_)
        | Request::RemoveAll(_)
        | Request::ReplicaClear(_)
        | Request::StartJob(_)
        | Request::Mount(_)
        | Request::SetQuota { .. }
        | Request::DeleteQuota { .. } => true,
    }
}

fn granting(request: &Request) -> Granting {
    match request {
        Request::PutStart(_) | Request::Get(_) => Granting::Yes,
        _ => Granting::No,
    }
}

fn grants(reply: &Reply) -> bool {
    match reply {
        Reply::PutStart(started) => started
            .iter()
            .any(|started| matches!(started, PutStarted::Granted { .. })),
        Reply::Get(lookups) => lookups.iter().any(|lookup| lookup.guard().is_some()),
        _ => false,
    }
}

/// What an answer counts towards the limit of keys: its entries plus one.
fn keys(reply: &Reply) -> usize {
    1 + match reply {
        Reply::Get(lookups) => lookups.len(),
        Reply::PutStart(started) => started.len(),
        Reply::Each(results) => results.len(),
        _ => 0,
    }
}

fn weight(kept: &Kept) -> usize {
    match kept {
        Kept::Pending(_) => 0,
        Kept::Answered(reply) => keys(reply),
    }
}
