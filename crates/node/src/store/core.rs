use std::sync::Arc;
use std::time::Duration;

use slackwater_base::{Checksum, Instant};
use slackwater_meta::Master;
use slackwater_tier::arena::{Access, AccessId};
use slackwater_tier::io::{DiskDone, DiskOp, OpId};
use slackwater_tier::{Agent, AgentInput, FormatError, Opened, ReadEnd, RecordRead};
use slackwater_wire::{ClientId, DiskEntry, ExtentRef, GetEnd, NodeId, PutEnd, Request, TicketId};

use super::StoreError;
use super::remote::{Outbound, RemoteRequest, Sealed};
use super::slot::{Later, Owed};
use super::views::{Hold, ViewId, Views};
pub(super) use crate::host::Asked;
use crate::host::{MasterHost, NodeHost, Stopped};
use crate::serve::ExtentGate;

/// The only node of an embedded store.
pub(super) const NODE: NodeId = NodeId(1);

/// The master, the node, and the views that callers have open. Everything here happens under one lock and none of it
/// waits.
pub(super) struct Core {
    master: MasterHost,
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
    pub(super) fn new(master: Master, agent: Agent, views: Views) -> Self {
        Self {
            master: MasterHost::new(master),
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

    pub(super) fn master(&self) -> &Master {
        &self.master.core
    }

    pub(super) fn master_mut(&mut self) -> &mut Master {
        &mut self.master.core
    }

    /// Makes a request of the master and does whatever follows from it.
    pub(super) fn ask(&mut self, now: Instant, request: Request) -> Asked {
        self.master.begin(now, request);
        self.settle(now);
        self.master.end()
    }

    /// Ends the right of a client of another process to write what it says is complete: the bytes may be published from
    /// then on, and must not change any more. Each extent comes with the length and the checksum of its value.
    pub(super) fn seal(&mut self, now: Instant, client: ClientId, end: &PutEnd) -> Vec<Sealed> {
        let sealed = self.master.written(client, end);
        self.node
            .seal(now, sealed.iter().map(|sealed| &sealed.extent));
        self.outbound.released.append(&mut self.node.released);
        sealed
    }

    /// Makes a request of another process of the master. Its answer, now or later, is outbound.
    pub(super) fn ask_for(&mut self, now: Instant, remote: RemoteRequest) {
        self.master.ask_for(now, remote);
        self.settle(now);
    }

    /// Ends puts of another process without values; nobody waits for the answer.
    pub(super) fn abandon(&mut self, now: Instant, remote: &RemoteRequest, end: &PutEnd) {
        self.master.abandon(now, remote, end);
        self.settle(now);
    }

    /// The last link to a client of another process is gone.
    pub(super) fn lose_client(&mut self, now: Instant, client: ClientId) {
        self.master.lose_client(now, client);
        self.settle(now);
    }

    /// Takes in what the device did.
    pub(super) fn disk_done(&mut self, now: Instant, done: &mut Vec<DiskDone>) {
        self.node.disk_done(now, done);
        self.settle(now);
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
        self.master.on_deadline(now);
        self.node.on_deadline(now);
        self.views.on_deadline(now);
        self.settle(now);
    }

    pub(super) fn next_deadline(&self) -> Instant {
        let deadlines = self
            .master()
            .next_deadline()
            .into_iter()
            .chain(self.node.agent.next_deadline())
            .chain(self.views.next_deadline());
        deadlines.min().unwrap_or(Instant::NEVER)
    }

    /// Tells every waiter that there will be no answer.
    pub(super) fn fail_waiters(&mut self, error: &StoreError) {
        self.over.get_or_insert_with(|| error.clone());
        self.master.fail_waiters(error);
        self.node.fail_waiters(error);
        self.resting
            .drain(..)
            .for_each(|owed| owed.complete(Err(error.clone())));
    }

    /// Carries messages between master and node until neither has anything more to say.
    fn settle(&mut self, now: Instant) {
        let Self {
            master,
            node,
            outbound,
            ..
        } = self;
        while !(master.orders.is_empty() && node.reports.is_empty()) {
            for (_, order) in std::mem::take(&mut master.orders) {
                node.order(now, order);
            }
            for report in std::mem::take(&mut node.reports) {
                master.report(now, NODE, report);
            }
        }
        outbound.replies.append(&mut master.replies);
        outbound.released.append(&mut node.released);
        if !self.resting.is_empty() && !self.master.is_moving() {
            self.resting
                .drain(..)
                .for_each(|owed| owed.complete(Ok(())));
        }
    }
}
