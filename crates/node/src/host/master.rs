use slackwater_base::{Instant, Map};
use slackwater_meta::{Input, Master, Output};
use slackwater_wire::{
    ClientId, CopyTask, Epoch, NodeId, ObjectName, OperationId, Order, Permissions, PutEnd, Reply,
    Report, Request, Written,
};

use std::sync::Arc;

use crate::StoreError;
use crate::kv_events::{Dropped, EventQueue, MoreEvents, Rung};
use crate::store::remote::RemoteRequest;
use crate::store::slot::{Later, Owed};

/// The client that is the process itself.
const CLIENT: ClientId = ClientId(1);
/// Outputs whose memory is kept from one step to the next.
const KEPT_OUTPUTS: usize = 64;

/// How a request went.
pub(crate) enum Asked {
    /// It is answered.
    Now(Reply),
    /// It will be.
    Later(Later<Reply>),
}

/// A master, and the callers that wait for its answers.
pub(crate) struct MasterHost {
    pub(crate) core: Master,
    out: Vec<Output>,
    /// The operation that is being asked now, and its answer if it comes at once.
    current: Option<(OperationId, Option<Reply>)>,
    next_operation: u64,
    unanswered: Map<OperationId, Owed<Reply>>,
    /// What nodes are to do, in order. The owner takes it.
    pub(crate) orders: Vec<(NodeId, Order)>,
    /// What is to be said once nodes have taken the orders before. The owner takes it.
    pub(crate) marks: Vec<(NodeId, u64)>,
    /// Values that nodes are to bring from others. The owner takes them.
    pub(crate) copies: Vec<(NodeId, CopyTask)>,
    /// What nodes that outlive their master are to announce first. The owner takes it, where it has such nodes.
    pub(crate) awaited: Vec<(Vec<NodeId>, Vec<ObjectName>)>,
    /// Answers to clients of other processes. The owner takes them.
    pub(crate) replies: Vec<(ClientId, OperationId, Reply)>,
    /// Where it is told what becomes readable and what goes; none when nobody wants to know.
    events: Option<Arc<EventQueue>>,
    /// Whether the queue was told that there is more to tell.
    has_more_events: bool,
    /// Whether the queue is to be rung.
    rings: bool,
    /// Events that are to be freed then.
    dropped: Dropped,
}

impl MasterHost {
    pub(crate) fn new(core: Master) -> Self {
        Self {
            core,
            out: Vec::new(),
            current: None,
            next_operation: 1,
            unanswered: Map::default(),
            orders: Vec::new(),
            marks: Vec::new(),
            copies: Vec::new(),
            awaited: Vec::new(),
            replies: Vec::new(),
            events: None,
            has_more_events: false,
            rings: false,
            dropped: Dropped::default(),
        }
    }

    /// The same with somebody who is told what becomes readable and what goes in this life of the master, if anybody.
    pub(crate) fn telling(mut self, events: Option<Arc<EventQueue>>, epoch: Epoch) -> Self {
        if let Some(events) = &events {
            events.begin_life(epoch);
            self.core.tell_events();
        }
        self.events = events;
        self.tell_events();
        if let Some((events, _)) = self.take_rung() {
            events.ring();
        }
        self
    }

    /// Has the readers of events told more of what there is.
    pub(crate) fn tell_more_events(&mut self, more: MoreEvents) {
        let Some(events) = &self.events else { return };
        match more {
            MoreEvents::Repeated => self.core.repeat_events(),
            MoreEvents::Objects(count) if events.is_empty() => {
                self.core.tell_more(count);
                events.push_asked(self.core.take_events());
            }
            MoreEvents::Objects(_) => {}
        }
        self.tell_events();
    }

    /// The queue of events, if it is to be rung, and what it had no room for. The owner does that once others may use the
    /// master again: to wake the thread that takes events is a system call.
    pub(crate) fn take_rung(&mut self) -> Option<Rung> {
        if !std::mem::take(&mut self.rings) {
            return None;
        }
        let events = self.events.as_ref().map(Arc::clone)?;
        Some((events, std::mem::take(&mut self.dropped)))
    }

    /// Makes a request of the process itself. Nothing between the two can lose or repeat the request, so the master
    /// keeps no answer for it. What follows is carried by the owner before it takes the answer.
    pub(crate) fn begin(&mut self, now: Instant, request: Request) {
        let operation = OperationId::unrepeated(self.next_operation);
        self.next_operation += 1;
        self.current = Some((operation, None));
        self.take(
            now,
            Input::Request {
                client: CLIENT,
                host: None,
                permissions: Permissions::FULL,
                operation,
                request,
            },
        );
    }

    /// The answer to the request that was begun last.
    pub(crate) fn end(&mut self) -> Asked {
        let (operation, reply) = self.current.take().expect("a request was begun");
        if let Some(reply) = reply {
            return Asked::Now(reply);
        }
        let (owed, later) = Later::new();
        self.unanswered.insert(operation, owed);
        Asked::Later(later)
    }

    /// Makes a request of another process.
    pub(crate) fn ask_for(&mut self, now: Instant, remote: RemoteRequest) {
        let RemoteRequest {
            client,
            host,
            operation,
            permissions,
            request,
        } = remote;
        let input = Input::Request {
            client,
            host,
            permissions,
            operation,
            request,
        };
        self.take(now, input);
    }

    /// What a client says that it has written, as the master granted it: its extents, with the length and the checksum
    /// of the value.
    pub(crate) fn written(&self, client: ClientId, end: &PutEnd) -> Vec<Written> {
        let each = end.puts.iter().flat_map(|done| {
            let extents = self.core.extents_being_written(client, &end.tenant, done);
            extents.into_iter().map(|(extent, bytes)| Written {
                extent,
                bytes,
                checksum: done.checksum,
            })
        });
        each.collect()
    }

    /// Ends puts of another process without values; nobody waits for the answer.
    pub(crate) fn abandon(&mut self, now: Instant, remote: &RemoteRequest, end: &PutEnd) {
        let puts = end.puts.iter().map(|put| (put.key.clone(), put.version));
        let operation = OperationId::unrepeated(self.next_operation);
        self.next_operation += 1;
        self.ask_for(
            now,
            RemoteRequest {
                client: remote.client,
                host: None,
                operation,
                permissions: remote.permissions.clone(),
                request: Request::PutRevoke {
                    tenant: end.tenant.clone(),
                    puts: puts.collect(),
                },
            },
        );
    }

    /// The last link to a client of another process is gone.
    pub(crate) fn lose_client(&mut self, now: Instant, client: ClientId) {
        self.take(now, Input::ClientLost(client));
    }

    /// Takes the report of a node in.
    pub(crate) fn report(&mut self, now: Instant, node: NodeId, report: Report) {
        self.take(now, Input::Report { node, report });
    }

    /// Does what has fallen due.
    pub(crate) fn on_deadline(&mut self, now: Instant) {
        if self.core.next_deadline().is_some_and(|at| at <= now) {
            self.core.on_deadline(now, &mut self.out);
            self.sort();
        }
    }

    /// Whether an offload or a promotion is under way.
    pub(crate) fn is_moving(&self) -> bool {
        let metrics = self.core.metrics();
        metrics.offload.in_flight + metrics.promotion.in_flight > 0
    }

    /// Tells every waiter that there will be no answer.
    pub(crate) fn fail_waiters(&mut self, error: &StoreError) {
        self.unanswered
            .drain()
            .for_each(|(_, owed)| owed.complete(Err(error.clone())));
    }

    /// Takes an event in.
    pub(crate) fn take(&mut self, now: Instant, input: Input) {
        self.core.handle(now, input, &mut self.out);
        self.sort();
    }

    /// Gives on what readers of events were told.
    fn tell_events(&mut self) {
        let Some(events) = &self.events else { return };
        let told = self.core.take_events();
        if !told.is_empty() {
            self.rings = true;
            if let Err(dropped) = events.push(told) {
                self.dropped = dropped;
                self.core.tell_again();
            }
        }
        let has_more = self.core.has_more_to_tell();
        if has_more != self.has_more_events {
            self.has_more_events = has_more;
            self.rings = true;
            events.set_more(has_more);
        }
    }

    fn sort(&mut self) {
        self.tell_events();
        // Few steps have more than a few, whose memory is kept for the next one.
        let mut out = std::mem::take(&mut self.out);
        for output in out.drain(..) {
            match output {
                Output::Reply {
                    client,
                    operation,
                    reply,
                } if client != CLIENT => self.replies.push((client, operation, reply)),
                Output::Reply {
                    operation, reply, ..
                } => self.reply(operation, reply),
                Output::Order { node, order } => self.orders.push((node, order)),
                Output::AwaitTaken { node, mark } => self.marks.push((node, mark)),
                Output::Copy { node, task } => self.copies.push((node, task)),
                Output::AnnounceFirst { nodes, names } => self.awaited.push((nodes, names)),
            }
        }
        out.shrink_to(KEPT_OUTPUTS);
        self.out = out;
    }

    fn reply(&mut self, operation: OperationId, reply: Reply) {
        match &mut self.current {
            Some((current, answer)) if *current == operation => *answer = Some(reply),
            _ => {
                if let Some(owed) = self.unanswered.remove(&operation) {
                    owed.complete(Ok(reply));
                }
            }
        }
    }
}
