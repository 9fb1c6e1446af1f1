use std::sync::Arc;
use std::time::Duration;

use slackwater_base::{Checksum, Instant};
use slackwater_meta::{Input, Master};
use slackwater_tier::arena::{Access, AccessId};
use slackwater_tier::io::{DiskDone, DiskOp, OpId};
use slackwater_tier::{Agent, AgentInput, FormatError, Opened, ReadEnd, RecordRead};
use slackwater_wire::{
    ClientId, DiskEntry, Epoch, ErrorCode, ExtentRef, GetEnd, NodeId, ObjectName, Order, PutEnd,
    Reply, Report, Request, TicketId, Written,
};

use super::StoreError;
use super::remote::{Deliver, Outbound, RemoteRequest};
use super::slot::{Later, Owed};
use super::views::{Hold, ViewId, Views};
pub(super) use crate::host::Asked;
use crate::host::{MasterHost, NodeHost, Stopped};
use crate::kv_events::{EventQueue, MoreEvents, Rung};
use crate::serve::ExtentGate;

/// The only node of an embedded store.
pub(super) const NODE: NodeId = NodeId(1);

/// A node with the views that callers have open and, unless it is in another process, the master. Everything here
/// happens under one lock and none of it waits.
pub(super) struct Core {
    master: Option<MasterHost>,
    pub(super) node: NodeHost,
    pub(super) views: Views,
    /// For other processes, as soon as the lock is free.
    pub(super) outbound: Outbound,
    /// Callers that wait until nothing is under way between the tiers.
    resting: Vec<Owed<()>>,
    /// When the steward means to wake.
    pub(super) steward_wakes: Instant,
    /// What every waiter was told when there would be no more answers.
    pub(super) over: Option<StoreError>,
}

impl Core {
    pub(super) fn new(master: Option<Master>, agent: Agent, views: Views) -> Self {
        Self {
            master: master.map(MasterHost::new),
            node: NodeHost::new(agent),
            views,
            outbound: Outbound::default(),
            resting: Vec::new(),
            steward_wakes: Instant::NEVER,
            over: None,
        }
    }

    /// The same for a store whose extents other processes access too.
    pub(super) fn gated_by(self, gate: Arc<ExtentGate>) -> Self {
        Self {
            node: self.node.gated_by(gate),
            ..self
        }
    }

    /// The same with somebody who is told what becomes readable and what goes in this life of the master, where it is here.
    pub(super) fn telling(self, events: Option<Arc<EventQueue>>, epoch: Epoch) -> Self {
        Self {
            master: self.master.map(|master| master.telling(events, epoch)),
            ..self
        }
    }

    /// Has the readers of events told more of what there is.
    pub(super) fn tell_more_events(&mut self, more: MoreEvents) {
        if let Some(master) = &mut self.master {
            master.tell_more_events(more);
        }
    }

    /// The queue of events, if it is to be rung as soon as the lock is free, and what is to be freed then.
    pub(super) fn take_rung(&mut self) -> Option<Rung> {
        self.master.as_mut().and_then(MasterHost::take_rung)
    }

    /// The master; none when it is in another process.
    pub(super) fn master(&self) -> Option<&Master> {
        self.master.as_ref().map(|host| &host.core)
    }

    pub(super) fn master_mut(&mut self) -> Option<&mut Master> {
        self.master.as_mut().map(|host| &mut host.core)
    }

    /// Makes a request of the master and does whatever follows from it.
    pub(super) fn ask(&mut self, now: Instant, request: Request) -> Asked {
        if let Some(master) = &mut self.master {
            master.begin(now, request);
        }
        self.settle(now);
        match &mut self.master {
            Some(master) => master.end(),
            None => Asked::Now(Reply::Failed(ErrorCode::UnavailableInCurrentMode)),
        }
    }

    /// Ends the right of a client of another process to write what it says is complete: the bytes may be published from
    /// then on, and must not change any more. Each extent comes with the length and the checksum of its value.
    pub(super) fn seal(&mut self, now: Instant, client: ClientId, end: &PutEnd) -> Vec<Written> {
        let written = self.master.as_ref().map(|host| host.written(client, end));
        let written = written.unwrap_or_default();
        self.seal_all(now, &written);
        written
    }

    fn seal_all(&mut self, now: Instant, written: &[Written]) {
        self.node
            .seal(now, written.iter().map(|written| &written.extent));
        self.outbound.released.append(&mut self.node.released);
    }

    /// Does the same for a master in another process, and keeps the extents from being used for anything else until the
    /// accesses are ended. `None` when one of them is dead.
    pub(super) fn hold_written(
        &mut self,
        now: Instant,
        written: &[Written],
    ) -> Option<Vec<AccessId>> {
        let mut held = Vec::with_capacity(written.len());
        for one in written {
            match self.begin_access(&one.extent, Access::Read) {
                Some(access) => held.push(access),
                None => {
                    self.let_go(now, held);
                    return None;
                }
            }
        }
        self.seal_all(now, written);
        Some(held)
    }

    /// Begins to fill an extent for a master in another process, which nobody else may write any more; `None` when it is dead.
    pub(super) fn begin_fill(&mut self, now: Instant, target: &ExtentRef) -> Option<AccessId> {
        if self.node.is_dead(target) {
            return None;
        }
        let access = self.begin_access(target, Access::Write)?;
        self.node.seal(now, [target]);
        self.outbound.released.append(&mut self.node.released);
        Some(access)
    }

    /// Ends accesses.
    pub(super) fn let_go(&mut self, now: Instant, accesses: Vec<AccessId>) {
        for access in accesses {
            self.end_access(now, access);
        }
    }

    /// Carries out orders of a master in another process.
    pub(super) fn obey(&mut self, now: Instant, orders: Vec<Order>) {
        for order in orders {
            self.node.order(now, order);
        }
        self.settle(now);
    }

    /// A master in another process that knows nothing of this node is to be told what it holds.
    pub(super) fn begin_announcing(&mut self, now: Instant, floor: u64) {
        self.node.begin_announcing(now, floor);
        self.settle(now);
    }

    /// It wants to hear of these keys first.
    pub(super) fn announce_first(&mut self, names: &[ObjectName]) {
        self.node.agent.announce_first(names);
    }

    /// The master in another process that was being told does not know this node any more.
    pub(super) fn stop_announcing(&mut self) {
        self.node.stop_announcing();
    }

    /// Queues what a master in another process is to be told, and as much of what is to be announced as there is room for.
    /// Whether there was anything.
    pub(super) fn queue_reports(&mut self, now: Instant, deliver: &dyn Deliver) -> bool {
        let mut told = false;
        loop {
            let reports = self.take_reports();
            if !reports.is_empty() {
                told = true;
                deliver.queue(reports);
            }
            let announces = self.master.is_none() && self.node.agent.is_announcing();
            if !announces || !deliver.has_room() || !self.node.announce(now) {
                self.settle(now);
                return told;
            }
        }
    }

    /// Takes what a master in another process is to be told, in order.
    pub(super) fn take_reports(&mut self) -> Vec<Report> {
        match self.master {
            Some(_) => Vec::new(),
            None => std::mem::take(&mut self.node.reports),
        }
    }

    /// Makes a request of another process of the master. Its answer, now or later, is outbound.
    pub(super) fn ask_for(&mut self, now: Instant, remote: RemoteRequest) {
        if let Some(master) = &mut self.master {
            master.ask_for(now, remote);
        }
        self.settle(now);
    }

    /// Ends puts of another process without values; nobody waits for the answer.
    pub(super) fn abandon(&mut self, now: Instant, remote: &RemoteRequest, end: &PutEnd) {
        if let Some(master) = &mut self.master {
            master.abandon(now, remote, end);
        }
        self.settle(now);
    }

    /// The last link to a client of another process is gone.
    pub(super) fn lose_client(&mut self, now: Instant, client: ClientId) {
        if let Some(master) = &mut self.master {
            master.lose_client(now, client);
        }
        self.settle(now);
    }

    /// Takes in what the device did.
    pub(super) fn disk_done(&mut self, now: Instant, done: &mut Vec<DiskDone>) {
        self.node.disk_done(now, done);
        self.settle(now);
    }

    /// Takes the next step of what the device did; false when there is none.
    pub(super) fn catch_up(&mut self, now: Instant) -> bool {
        let behind = self.node.catch_up(now);
        if behind {
            self.settle(now);
        }
        behind
    }

    /// For the device, as soon as the lock is free.
    pub(super) fn take_ops(&mut self) -> Vec<(OpId, DiskOp)> {
        std::mem::take(&mut self.node.ops)
    }

    /// Opens the log over the files of its directory.
    pub(super) fn open(
        &mut self,
        now: Instant,
        open: AgentInput,
    ) -> Later<Result<Opened, FormatError>> {
        let opening = self.node.open(now, open);
        self.settle(now);
        opening
    }

    /// Asks for everything ordered until now to be durable.
    pub(super) fn flush(&mut self, now: Instant) -> Later<()> {
        let flushing = self.node.flush(now);
        self.settle(now);
        flushing
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
        let stopping = self.node.stop(now);
        self.settle(now);
        stopping
    }

    /// Begins an access to an extent; `None` when it is dead.
    pub(super) fn begin_access(&mut self, extent: &ExtentRef, access: Access) -> Option<AccessId> {
        self.node.begin_access(extent, access)
    }

    /// Ends an access; true when the extent was alive until now, so that the bytes count.
    pub(super) fn end_access(&mut self, now: Instant, access: AccessId) -> bool {
        let live = self.node.end_access(access);
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
        let read = self.node.begin_read(now, entry);
        self.settle(now);
        read
    }

    /// Whether a promotion waits for the bytes of a reader.
    pub(super) fn expects_readers(&self) -> bool {
        self.node.agent.expects_readers()
    }

    /// Where a record that was read, and whose bytes are right, is wanted as well.
    pub(super) fn promotion_of(&mut self, read: &RecordRead) -> Option<(TicketId, ExtentRef)> {
        self.node.agent.promotion_of(read)
    }

    /// A record was copied to where it was wanted.
    pub(super) fn copied(&mut self, now: Instant, ticket: TicketId, found: Checksum) {
        self.node.copied(now, ticket, found);
        self.settle(now);
    }

    /// Ends a read of a record, for which the device took a while.
    pub(super) fn end_read(&mut self, now: Instant, read: RecordRead, end: (ReadEnd, Duration)) {
        self.node.end_read(now, read, end);
        self.settle(now);
    }

    /// Does what has fallen due.
    pub(super) fn on_deadline(&mut self, now: Instant) {
        if let Some(master) = &mut self.master {
            master.on_deadline(now);
        }
        self.node.on_deadline(now);
        self.views.on_deadline(now);
        self.settle(now);
    }

    pub(super) fn next_deadline(&self) -> Instant {
        let deadlines = self
            .master()
            .and_then(Master::next_deadline)
            .into_iter()
            .chain(self.node.agent.next_deadline())
            .chain(self.views.next_deadline());
        deadlines.min().unwrap_or(Instant::NEVER)
    }

    /// Tells every waiter that there will be no answer.
    pub(super) fn fail_waiters(&mut self, error: &StoreError) {
        self.over.get_or_insert_with(|| error.clone());
        if let Some(master) = &mut self.master {
            master.fail_waiters(error);
        }
        self.node.fail_waiters(error);
        self.resting
            .drain(..)
            .for_each(|owed| owed.complete(Err(error.clone())));
    }

    /// Carries messages between master and node until neither has anything more to say, where both are here.
    fn settle(&mut self, now: Instant) {
        let Self {
            master,
            node,
            outbound,
            ..
        } = self;
        let Some(master) = master else {
            outbound.released.append(&mut node.released);
            return;
        };
        while !(master.orders.is_empty() && node.reports.is_empty() && master.copies.is_empty()) {
            for (_, task) in std::mem::take(&mut master.copies) {
                // There is one node, which has no other to bring values from.
                let (ticket, result) = (task.ticket, Err(ErrorCode::NotSupported));
                master.take(now, Input::Copied { ticket, result });
            }
            for (_, order) in std::mem::take(&mut master.orders) {
                node.order(now, order);
            }
            for report in std::mem::take(&mut node.reports) {
                master.report(now, NODE, report);
            }
        }
        outbound.replies.append(&mut master.replies);
        outbound.released.append(&mut node.released);
        if !self.resting.is_empty() && !master.is_moving() {
            self.resting
                .drain(..)
                .for_each(|owed| owed.complete(Ok(())));
        }
    }
}
