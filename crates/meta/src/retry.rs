//! Calls that are asked again because their answer was lost: answered again, not done again.

use std::collections::BTreeMap;

use slackwater_base::{Instant, Map};
use slackwater_wire::{ClientId, OperationId, Reply, Request};

use crate::Output;

/// The last answers of each client, for as many calls as are configured.
pub(crate) struct Retries {
    window: usize,
    clients_max: usize,
    of: Map<ClientId, Window>,
    /// Clients by when they last called, so that the one longest silent is forgotten first.
    silent: BTreeMap<(Instant, ClientId), ()>,
}

#[derive(Default)]
struct Window {
    last: Instant,
    /// None while the answer is still to come.
    calls: BTreeMap<OperationId, Option<Reply>>,
}

/// What a call is.
pub(crate) enum Call {
    New,
    /// It is being worked on: its answer will come.
    Pending,
    Answered(Reply),
}

impl Retries {
    pub(crate) fn new(window: usize, clients_max: usize) -> Self {
        Self {
            window,
            clients_max,
            of: Map::default(),
            silent: BTreeMap::new(),
        }
    }

    /// Says whether a call was seen before, and remembers it. Only calls that change something are remembered.
    pub(crate) fn note(
        &mut self,
        now: Instant,
        client: ClientId,
        operation: OperationId,
        request: &Request,
    ) -> Call {
        if self.window == 0 || !changes_something(request) {
            return Call::New;
        }
        if !self.of.contains_key(&client)
            && self.of.len() >= self.clients_max
            && let Some(((_, longest), ())) = self.silent.pop_first()
        {
            self.of.remove(&longest);
        }
        let window = self.of.entry(client).or_default();
        self.silent.remove(&(window.last, client));
        window.last = now;
        self.silent.insert((now, client), ());
        match window.calls.get(&operation) {
            Some(Some(reply)) => Call::Answered(reply.clone()),
            Some(None) => Call::Pending,
            None => {
                window.calls.insert(operation, None);
                while window.calls.len() > self.window {
                    window.calls.pop_first();
                }
                Call::New
            }
        }
    }

    /// Keeps the answers among these outputs.
    pub(crate) fn keep(&mut self, outputs: &[Output]) {
        if self.window == 0 {
            return;
        }
        for output in outputs {
            let Output::Reply {
                client,
                operation,
                reply,
            } = output
            else {
                continue;
            };
            if let Some(slot) = self
                .of
                .get_mut(client)
                .and_then(|window| window.calls.get_mut(operation))
            {
                *slot = Some(reply.clone());
            }
        }
    }
}

fn changes_something(request: &Request) -> bool {
    !matches!(
        request,
        Request::Get(_)
            | Request::GetEnd(_)
            | Request::Exists(_)
            | Request::List(_)
            | Request::Describe { .. }
            | Request::Quotas
    )
}
