use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use slackwater_base::{Checksum, Instant, Map};
use slackwater_meta::{Input, Master, Output};
use slackwater_tier::arena::{Access, AccessId};
use slackwater_tier::io::{DiskDone, DiskOp, OpId};
use slackwater_tier::{Agent, AgentInput, AgentOutput, FormatError, Opened, ReadEnd, RecordRead};
use slackwater_wire::{
    ClientId, DiskEntry, ExtentRef, GetEnd, NodeId, OperationId, Order, Permissions, PutEnd, Reply,
    Report, Request, TicketId,
};

use super::StoreError;
use super::remote::{Outbound, RemoteRequest, Sealed};
use super::slot::{Later, Owed};
use super::views::{Hold, ViewId, Views};
use crate::serve::ExtentGate;

/// The only node of an embedded store.
pub(super) const NODE: NodeId = NodeId(1);
/// The client that is the process itself; the only one of an embedded store.
pub(crate) const CLIENT: ClientId = ClientId(1);

/// What an agent that came to rest could not write.
#[derive(Clone, Copy)]
pub(super) struct Stopped {
    /// Records and drops.
    pub(super) lost: usize,
    /// The records among them that a caller was promised.
    pub(super) promised: usize,
}

/// How a request went.
pub(super) enum Asked {
    /// It is answered.
    Now(Reply),
    /// It will be.
    Later(Later<Reply>),
}

/// The master, the node's agent, and the messages between them and the callers. Everything here happens
/// under one lock and none of it waits.
pub(super) struct Core {
    pub(super) master: Master,
    pub(super) agent: Agent,
    /// The views that callers have open.
    pub(super) views: Views,
    from_master: Vec<Output>,
    from_agent: Vec<AgentOutput>,
    /// For the device, as soon as the lock is free.
    pub(super) ops: Vec<(OpId, DiskOp)>,
    /// The operation that is being asked now, and its answer if it comes at once.
    current: Option<(OperationId, Option<Reply>)>,
    next_operation: u64,
    unanswered: Map<OperationId, Owed<Reply>>,
    /// The accesses of other processes to extents, where the store is served.
    gate: Option<Arc<ExtentGate>>,
    /// For other processes, as soon as the lock is free.
    pub(super) outbound: Outbound,
    opening: Option<Owed<Result<Opened, FormatError>>>,
    flushing: VecDeque<(u64, Owed<()>)>,
    next_flush: u64,
    /// Callers that wait until nothing is under way between the tiers.
    resting: Vec<Owed<()>>,
    stopping: Option<Owed<Stopped>>,
    /// Whether the log last said that it takes records.
    pub(super) accepting: bool,
    /// When the steward means to wake.
    pub(super) steward_wakes: Instant,
    /// What every waiter was told when there would be no more answers.
    pub(super) over: Option<StoreError>,
}

impl Core {
    pub(super) fn new(master: Master, agent: Agent, views: Views) -> Self {
        Self {
            master,
            agent,
            views,
            from_master: Vec::new(),
            from_agent: Vec::new(),
            ops: Vec::new(),
            current: None,
            next_operation: 1,
            unanswered: Map::default(),
            gate: None,
            outbound: Outbound::default(),
            opening: None,
            flushing: VecDeque::new(),
            next_flush: 1,
            resting: Vec::new(),
            stopping: None,
            accepting: false,
            steward_wakes: Instant::NEVER,
            over: None,
        }
    }

    /// The same for a store whose extents other processes access too.
    pub(super) fn gated_by(self, gate: Arc<ExtentGate>) -> Self {
        Self {
            gate: Some(gate),
            ..self
        }
    }

    /// Makes a request of the master and does whatever follows from it. Nothing between the two can lose or repeat the
    /// request, so the master keeps no answer for it.
    pub(super) fn ask(&mut self, now: Instant, request: Request) -> Asked {
        let operation = OperationId::unrepeated(self.next_operation);
        self.next_operation += 1;
        self.current = Some((operation, None));
        self.master.handle(
            now,
            Input::Request {
                client: CLIENT,
                host: None,
                permissions: Permissions::FULL,
                operation,
                request,
            },
            &mut self.from_master,
        );
        self.settle(now);
        if let Some((_, Some(reply))) = self.current.take() {
            return Asked::Now(reply);
        }
        let (owed, later) = Later::new();
        self.unanswered.insert(operation, owed);
        Asked::Later(later)
    }

    /// Ends the right of a client of another process to write what it says is complete: the bytes may be published from
    /// then on, and must not change any more. Each extent comes with the length and the checksum of its value.
    pub(super) fn seal(&mut self, now: Instant, client: ClientId, end: &PutEnd) -> Vec<Sealed> {
        let Some(gate) = &self.gate else {
            return Vec::new();
        };
        let mut sealed = Vec::new();
        for done in &end.puts {
            for (extent, bytes) in self.master.extents_being_written(client, &end.tenant, done) {
                gate.seal(now, &extent, &mut self.outbound.released);
                sealed.push(Sealed {
                    extent,
                    bytes,
                    checksum: done.checksum,
                });
            }
        }
        sealed
    }

    /// Makes a request of another process of the master. Its answer, now or later, is outbound.
    pub(super) fn ask_for(&mut self, now: Instant, remote: RemoteRequest) {
        let RemoteRequest {
            client,
            operation,
            permissions,
            request,
        } = remote;
        let input = Input::Request {
            client,
            host: None,
            permissions,
            operation,
            request,
        };
        self.master.handle(now, input, &mut self.from_master);
        self.settle(now);
    }

    /// Ends puts of another process without values; nobody waits for the answer.
    pub(super) fn abandon(&mut self, now: Instant, remote: &RemoteRequest, end: &PutEnd) {
        let puts = end.puts.iter().map(|put| (put.key.clone(), put.version));
        let operation = OperationId::unrepeated(self.next_operation);
        self.next_operation += 1;
        let input = Input::Request {
            client: remote.client,
            host: None,
            permissions: remote.permissions.clone(),
            operation,
            request: Request::PutRevoke {
                tenant: end.tenant.clone(),
                puts: puts.collect(),
            },
        };
        self.master.handle(now, input, &mut self.from_master);
        self.settle(now);
    }

    /// The last link to a client of another process is gone.
    pub(super) fn lose_client(&mut self, now: Instant, client: ClientId) {
        self.master
            .handle(now, Input::ClientLost(client), &mut self.from_master);
        self.settle(now);
    }

    /// Takes in what the device did.
    pub(super) fn disk_done(&mut self, now: Instant, done: &mut Vec<DiskDone>) {
        for done in done.drain(..) {
            self.agent
                .handle(now, AgentInput::Disk(done), &mut self.from_agent);
        }
        self.settle(now);
    }

    /// Opens the log over the files of its directory.
    pub(super) fn open(
        &mut self,
        now: Instant,
        open: AgentInput,
    ) -> Later<Result<Opened, FormatError>> {
        let (owed, later) = Later::new();
        self.opening = Some(owed);
        self.tell(now, open);
        later
    }

    /// Whether the log is being opened.
    pub(super) fn is_opening(&self) -> bool {
        self.opening.is_some()
    }

    /// Asks for everything ordered until now to be durable.
    pub(super) fn flush(&mut self, now: Instant) -> Later<()> {
        let number = self.next_flush;
        self.next_flush += 1;
        let (owed, later) = Later::new();
        self.flushing.push_back((number, owed));
        self.tell(now, AgentInput::Flush(number));
        later
    }

    /// Asks for everything on its way from one tier to the other to arrive.
    pub(super) fn rest(&mut self, now: Instant) -> Later<()> {
        let (owed, later) = Later::new();
        self.resting.push(owed);
        self.settle(now);
        later
    }

    /// Brings the agent to rest.
    pub(super) fn stop(&mut self, now: Instant) -> Later<Stopped> {
        let (owed, later) = Later::new();
        self.stopping = Some(owed);
        self.tell(now, AgentInput::Stop);
        later
    }

    /// Begins an access to an extent; `None` when it is dead.
    pub(super) fn begin_access(&mut self, extent: &ExtentRef, access: Access) -> Option<AccessId> {
        self.agent.begin_access(*extent, access).ok()
    }

    /// Ends an access; true when the extent was alive until now, so that the bytes count.
    pub(super) fn end_access(&mut self, now: Instant, access: AccessId) -> bool {
        let live = self.agent.end_access(access, &mut self.from_agent);
        self.settle(now);
        live
    }

    /// Ends a view: what it held in place may go.
    pub(super) fn close_view(&mut self, now: Instant, id: ViewId) {
        let Some(view) = self.views.close(id) else {
            return;
        };
        if let Hold::Extent { access, guard } = view.hold {
            self.end_access(now, access);
            if let Some(guard) = guard {
                let guards = vec![guard];
                self.ask(now, Request::GetEnd(GetEnd { guards }));
            }
        }
    }

    /// Begins a read of a record; `None` when there is none.
    pub(super) fn begin_read(&mut self, now: Instant, entry: &DiskEntry) -> Option<RecordRead> {
        let read = self.agent.begin_read(now, entry, &mut self.from_agent);
        self.settle(now);
        read
    }

    /// Whether a promotion waits for the bytes of a reader.
    pub(super) fn expects_readers(&self) -> bool {
        self.agent.expects_readers()
    }

    /// Where a record that was read, and whose bytes are right, is wanted as well.
    pub(super) fn promotion_of(&mut self, read: &RecordRead) -> Option<(TicketId, ExtentRef)> {
        self.agent.promotion_of(read)
    }

    /// A record was copied to where it was wanted.
    pub(super) fn copied(&mut self, now: Instant, ticket: TicketId, found: Checksum) {
        self.agent.copied(now, ticket, found, &mut self.from_agent);
        self.settle(now);
    }

    /// Ends a read of a record, for which the device took a while.
    pub(super) fn end_read(&mut self, now: Instant, read: RecordRead, end: (ReadEnd, Duration)) {
        self.agent.end_read(now, read, end, &mut self.from_agent);
        self.settle(now);
    }

    /// Does what has fallen due.
    pub(super) fn on_deadline(&mut self, now: Instant) {
        if self.master.next_deadline().is_some_and(|at| at <= now) {
            self.master.on_deadline(now, &mut self.from_master);
        }
        if self.agent.next_deadline().is_some_and(|at| at <= now) {
            self.agent.on_deadline(now, &mut self.from_agent);
        }
        self.views.on_deadline(now);
        self.report_drained(now);
        self.settle(now);
    }

    /// Tells the master of dead extents whose last access by another process has ended.
    fn report_drained(&mut self, now: Instant) {
        let drained = self.gate.as_ref().map(|gate| gate.take_drained());
        if let Some(extents) = drained.filter(|extents| !extents.is_empty()) {
            let report = Report::Fenced(extents);
            self.master.handle(
                now,
                Input::Report { node: NODE, report },
                &mut self.from_master,
            );
        }
    }

    pub(super) fn next_deadline(&self) -> Instant {
        let deadlines = self
            .master
            .next_deadline()
            .into_iter()
            .chain(self.agent.next_deadline())
            .chain(self.views.next_deadline());
        deadlines.min().unwrap_or(Instant::NEVER)
    }

    /// Tells every waiter that there will be no answer.
    pub(super) fn fail_waiters(&mut self, error: &StoreError) {
        self.over.get_or_insert_with(|| error.clone());
        self.unanswered
            .drain()
            .for_each(|(_, owed)| owed.complete(Err(error.clone())));
        self.flushing
            .drain(..)
            .for_each(|(_, owed)| owed.complete(Err(error.clone())));
        self.resting
            .drain(..)
            .for_each(|owed| owed.complete(Err(error.clone())));
        self.opening
            .take()
            .into_iter()
            .for_each(|owed| owed.complete(Err(error.clone())));
        self.stopping
            .take()
            .into_iter()
            .for_each(|owed| owed.complete(Err(error.clone())));
    }

    /// Tells the agent something.
    fn tell(&mut self, now: Instant, input: AgentInput) {
        self.agent.handle(now, input, &mut self.from_agent);
        self.settle(now);
    }

    /// Carries messages between master and agent until neither has anything more to say.
    fn settle(&mut self, now: Instant) {
        while !(self.from_master.is_empty() && self.from_agent.is_empty()) {
            for output in std::mem::take(&mut self.from_master) {
                match output {
                    Output::Reply {
                        client,
                        operation,
                        reply,
                    } if client != CLIENT => {
                        self.outbound.replies.push((client, operation, reply));
                    }
                    Output::Reply {
                        operation, reply, ..
                    } => self.reply(operation, reply),
                    Output::Order { order, .. } => {
                        if let (Some(gate), Order::Fence(extents)) = (&self.gate, &order) {
                            gate.fence(extents, &mut self.outbound.released);
                        }
                        self.agent
                            .handle(now, AgentInput::Order(order), &mut self.from_agent);
                    }
                }
            }
            for output in std::mem::take(&mut self.from_agent) {
                self.agent_says(now, output);
            }
        }
        let metrics = self.master.metrics();
        if !self.resting.is_empty() && metrics.offload.in_flight + metrics.promotion.in_flight == 0
        {
            self.resting
                .drain(..)
                .for_each(|owed| owed.complete(Ok(())));
        }
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

    fn agent_says(&mut self, now: Instant, output: AgentOutput) {
        match output {
            AgentOutput::Disk { op, request } => self.ops.push((op, request)),
            AgentOutput::Report(mut report) => {
                if let Report::Disk(state) = &report {
                    self.accepting = state.accepting;
                }
                if let (Some(gate), Report::Fenced(extents)) = (&self.gate, &mut report) {
                    gate.keep_back(extents);
                }
                self.master.handle(
                    now,
                    Input::Report { node: NODE, report },
                    &mut self.from_master,
                );
            }
            AgentOutput::Opened(opened) => self.opened(Ok(opened)),
            AgentOutput::Refused(error) => self.opened(Err(error)),
            AgentOutput::Flushed(number) => {
                while self
                    .flushing
                    .front()
                    .is_some_and(|(first, _)| *first <= number)
                {
                    self.flushing
                        .pop_front()
                        .into_iter()
                        .for_each(|(_, owed)| owed.complete(Ok(())));
                }
            }
            AgentOutput::Stopped { lost, promised } => {
                self.stopping
                    .take()
                    .into_iter()
                    .for_each(|owed| owed.complete(Ok(Stopped { lost, promised })));
            }
        }
    }

    fn opened(&mut self, result: Result<Opened, FormatError>) {
        if let Some(owed) = self.opening.take() {
            owed.complete(Ok(result));
        }
    }
}
