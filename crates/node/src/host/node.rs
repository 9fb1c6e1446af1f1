use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use slackwater_base::{Checksum, Instant};
use slackwater_tier::arena::{Access, AccessId};
use slackwater_tier::io::{DiskDone, DiskOp, OpId};
use slackwater_tier::{Agent, AgentInput, AgentOutput, FormatError, Opened, ReadEnd, RecordRead};
use slackwater_transfer::Extent;
use slackwater_wire::{DiskEntry, ExtentRef, Order, Report, TicketId};

use crate::StoreError;
use crate::serve::ExtentGate;
use crate::store::slot::{Later, Owed};

/// What an agent that came to rest could not write.
#[derive(Clone, Copy)]
pub(crate) struct Stopped {
    /// Records and drops.
    pub(crate) lost: usize,
    /// The records among them that a caller was promised.
    pub(crate) promised: usize,
    /// Records that were given back beside them: callers that waited for one were told.
    pub(crate) given_back: usize,
}

/// The agent of a node, its gate where other processes reach its memory, and the callers that wait for it.
pub(crate) struct NodeHost {
    pub(crate) agent: Agent,
    out: Vec<AgentOutput>,
    /// The accesses of other processes to extents.
    gate: Option<Arc<ExtentGate>>,
    /// For the device. The owner takes it.
    pub(crate) ops: Vec<(OpId, DiskOp)>,
    /// For the master, in order. The owner takes it.
    pub(crate) reports: Vec<Report>,
    /// Extents at which the transfers of other processes are to end. The owner takes them.
    pub(crate) released: Vec<Extent>,
    opening: Option<Owed<Result<Opened, FormatError>>>,
    flushing: VecDeque<(u64, Owed<()>)>,
    next_flush: u64,
    stopping: Option<Owed<Stopped>>,
    /// Whether the log last said that it takes records.
    pub(crate) accepting: bool,
}

impl NodeHost {
    pub(crate) fn new(agent: Agent) -> Self {
        Self {
            agent,
            out: Vec::new(),
            gate: None,
            ops: Vec::new(),
            reports: Vec::new(),
            released: Vec::new(),
            opening: None,
            flushing: VecDeque::new(),
            next_flush: 1,
            stopping: None,
            accepting: false,
        }
    }

    /// The same for memory that other processes reach too.
    pub(crate) fn gated_by(self, gate: Arc<ExtentGate>) -> Self {
        Self {
            gate: Some(gate),
            ..self
        }
    }

    /// Carries out an order of the master.
    pub(crate) fn order(&mut self, now: Instant, order: Order) {
        if let (Some(gate), Order::Fence(extents)) = (&self.gate, &order) {
            gate.fence(extents, &mut self.released);
        }
        self.tell(now, AgentInput::Order(order));
    }

    /// Ends the right of other processes to write extents that are about to be published.
    pub(crate) fn seal<'a>(
        &mut self,
        now: Instant,
        extents: impl IntoIterator<Item = &'a ExtentRef>,
    ) {
        if let Some(gate) = &self.gate {
            for extent in extents {
                gate.seal(now, extent, &mut self.released);
            }
        }
    }

    /// A master that knows nothing of this node is to be told what it holds. Generations below `floor` are dead, except those
    /// of published extents.
    pub(crate) fn begin_announcing(&mut self, now: Instant, floor: u64) {
        if let Some(gate) = &self.gate {
            let published = self.agent.published();
            gate.outlive(
                self.agent.arena().bytes(),
                floor,
                published,
                &mut self.released,
            );
        }
        self.agent.begin_announcing(now, &mut self.out);
        self.sort();
    }

    /// The master that was being told does not know this node any more.
    pub(crate) fn stop_announcing(&mut self) {
        self.agent.stop_announcing();
    }

    /// Reports the next part of what is to be announced; false when there is nothing to be said now.
    pub(crate) fn announce(&mut self, now: Instant) -> bool {
        let quiet = self.gate.as_ref().is_none_or(|gate| !gate.is_outlived());
        let announced = self.agent.announce(now, quiet, &mut self.out);
        self.sort();
        announced
    }

    /// Takes in what the device did.
    pub(crate) fn disk_done(&mut self, now: Instant, done: &mut Vec<DiskDone>) {
        for done in done.drain(..) {
            self.agent
                .handle(now, AgentInput::Disk(done), &mut self.out);
        }
        self.sort();
    }

    /// Opens the log over the files of its directory.
    pub(crate) fn open(
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
    pub(crate) fn is_opening(&self) -> bool {
        self.opening.is_some()
    }

    /// Asks for everything ordered until now to be durable.
    pub(crate) fn flush(&mut self, now: Instant) -> Later<()> {
        let number = self.next_flush;
        self.next_flush += 1;
        let (owed, later) = Later::new();
        self.flushing.push_back((number, owed));
        self.tell(now, AgentInput::Flush(number));
        later
    }

    /// Brings the agent to rest.
    pub(crate) fn stop(&mut self, now: Instant) -> Later<Stopped> {
        let (owed, later) = Later::new();
        self.stopping = Some(owed);
        self.tell(now, AgentInput::Stop);
        later
    }

    /// Whether an extent is dead to other processes. The books of the agent do not know of what an earlier master granted
    /// and nobody has written.
    pub(crate) fn is_dead(&self, extent: &ExtentRef) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.is_dead(extent))
    }

    /// Begins an access to an extent; `None` when it is dead.
    pub(crate) fn begin_access(&mut self, extent: &ExtentRef, access: Access) -> Option<AccessId> {
        self.agent.begin_access(*extent, access).ok()
    }

    /// Ends an access; true when the extent was alive until now, so that the bytes count.
    pub(crate) fn end_access(&mut self, access: AccessId) -> bool {
        let live = self.agent.end_access(access, &mut self.out);
        self.sort();
        live
    }

    /// Begins a read of a record; `None` when there is none.
    pub(crate) fn begin_read(&mut self, now: Instant, entry: &DiskEntry) -> Option<RecordRead> {
        let read = self.agent.begin_read(now, entry, &mut self.out);
        self.sort();
        read
    }

    /// A record was copied to where it was wanted.
    pub(crate) fn copied(&mut self, now: Instant, ticket: TicketId, found: Checksum) {
        self.agent.copied(now, ticket, found, &mut self.out);
        self.sort();
    }

    /// Ends a read of a record, for which the device took a while.
    pub(crate) fn end_read(&mut self, now: Instant, read: RecordRead, end: (ReadEnd, Duration)) {
        self.agent.end_read(now, read, end, &mut self.out);
        self.sort();
    }

    /// Takes the next step of what the device did; false when there is none.
    pub(crate) fn catch_up(&mut self, now: Instant) -> bool {
        let behind = self.agent.is_behind();
        if behind {
            self.agent.on_deadline(now, &mut self.out);
            self.sort();
        }
        behind
    }

    /// Does what has fallen due.
    pub(crate) fn on_deadline(&mut self, now: Instant) {
        if self.agent.next_deadline().is_some_and(|at| at <= now) {
            self.agent.on_deadline(now, &mut self.out);
            self.sort();
        }
        // Dead extents whose last access by another process has ended.
        let drained = self.gate.as_ref().map(|gate| gate.take_drained());
        if let Some(extents) = drained.filter(|extents| !extents.is_empty()) {
            self.reports.push(Report::Fenced(extents));
        }
    }

    /// Tells every waiter that there will be no answer.
    pub(crate) fn fail_waiters(&mut self, error: &StoreError) {
        self.flushing
            .drain(..)
            .for_each(|(_, owed)| owed.complete(Err(error.clone())));
        self.opening
            .take()
            .into_iter()
            .for_each(|owed| owed.complete(Err(error.clone())));
        self.stopping
            .take()
            .into_iter()
            .for_each(|owed| owed.complete(Err(error.clone())));
    }

    fn tell(&mut self, now: Instant, input: AgentInput) {
        self.agent.handle(now, input, &mut self.out);
        self.sort();
    }

    fn sort(&mut self) {
        for output in std::mem::take(&mut self.out) {
            match output {
                AgentOutput::Disk { op, request } => self.ops.push((op, request)),
                AgentOutput::Report(mut report) => {
                    if let Report::Disk(state) = &report {
                        self.accepting = state.accepting;
                    }
                    let kept = match (&self.gate, &mut report) {
                        (Some(gate), Report::Fenced(extents)) => gate.keep_back(extents),
                        _ => Vec::new(),
                    };
                    self.reports.push(report);
                    if !kept.is_empty() {
                        self.reports.push(Report::Retired(kept));
                    }
                }
                AgentOutput::Opened(opened) => self.opened(Ok(opened)),
                AgentOutput::Refused(error) => self.opened(Err(error)),
                AgentOutput::Flushed(number) => self.flushed(number),
                AgentOutput::Stopped {
                    lost,
                    promised,
                    given_back,
                } => {
                    let stopped = Stopped {
                        lost,
                        promised,
                        given_back,
                    };
                    self.stopping
                        .take()
                        .into_iter()
                        .for_each(|owed| owed.complete(Ok(stopped)));
                }
            }
        }
    }

    fn flushed(&mut self, number: u64) {
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

    fn opened(&mut self, result: Result<Opened, FormatError>) {
        if let Some(owed) = self.opening.take() {
            owed.complete(Ok(result));
        }
    }
}
