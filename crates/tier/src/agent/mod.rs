//! The agent of one node: carries out the master's orders on arena and log.

mod api;
mod asked;
mod inventory;
mod promote;

use std::collections::BTreeMap;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_wire::limits::BATCH_KEYS_MAX;
use slackwater_wire::{
    DiskEntry, DiskState, ExtentRef, OffloadTask, Order, Report, SegmentId, TaskFailure, TicketId,
};

pub use api::{AgentInput, AgentOutput, Opened, ReadEnd, ReadId, RecordRead, TierStats};

use crate::arena::{Access, AccessEnd, AccessId, Arena, MemorySegment, Stale};
use crate::config::AgentConfig;
use crate::log::{AtRest, Log, LogOut, Offload};
use inventory::{Inventory, OWN_FLUSH};
use promote::Promotions;

/// One node's tiers: the books of its memory segments, its SSD log, and the orders under way.
///
/// Three verbs drive it. Beside them, readers and writers inside the process begin and end their accesses here.
#[derive(Debug)]
pub struct Agent {
    config: AgentConfig,
    arena: Arena,
    log: Option<Log>,
    offloads: BTreeMap<TicketId, Offloading>,
    promotions: Promotions,
    inventory: Inventory,
    reported: Option<DiskState>,
    /// Records were dropped since then.
    dropped: bool,
    stopping: bool,
    stopped: bool,
    scratch: Vec<LogOut>,
}

/// An offload that has not ended.
#[derive(Debug)]
struct Offloading {
    /// The object and version that are written.
    entry: DiskEntry,
    /// The access that keeps its source in place.
    access: AccessId,
}

impl Agent {
    /// An agent without memory segments, whose log, if it has one, is yet to be opened.
    #[must_use]
    pub fn new(config: AgentConfig) -> Self {
        let log = config.log.clone().map(Log::new);
        let promotions = Promotions::new(&config);
        Self {
            config,
            arena: Arena::new(),
            log,
            offloads: BTreeMap::new(),
            promotions,
            inventory: Inventory::default(),
            reported: None,
            dropped: false,
            stopping: false,
            stopped: false,
            scratch: Vec::new(),
        }
    }

    /// Lends a memory segment: its extents can be accessed from now on.
    pub fn add_segment(&mut self, segment: MemorySegment) {
        self.arena.add(segment);
        self.tell_memory();
    }

    /// Takes a memory segment back: every access to it is stale from now on.
    pub fn remove_segment(&mut self, segment: SegmentId) {
        self.arena.remove(segment);
        self.inventory.forget_segment(segment);
        self.tell_memory();
    }

    fn tell_memory(&mut self) {
        if let Some(log) = &mut self.log {
            log.set_memory(self.arena.bytes());
        }
    }

    /// Takes an input.
    pub fn handle(&mut self, now: Instant, input: AgentInput, out: &mut Vec<AgentOutput>) {
        match input {
            AgentInput::Open { files, fresh } => match &self.log {
                Some(_) => self.with_log(out, |log, events| log.open(now, &files, fresh, events)),
                None => out.push(AgentOutput::Opened(Opened::default())),
            },
            AgentInput::Order(order) => self.order(now, order, out),
            AgentInput::Disk(done) => {
                self.with_log(out, |log, events| log.on_disk(now, done, events))
            }
            AgentInput::Flush(number) => match &self.log {
                Some(_) => self.with_log(out, |log, events| log.flush(number, events)),
                None => out.push(AgentOutput::Flushed(number)),
            },
            AgentInput::Stop => {
                self.stopping = true;
                for ticket in self.promotions.forget_waiting() {
                    self.cancel(now, ticket, out);
                }
                self.with_log(out, |log, _| log.stop());
            }
        }
        self.settle(now, out);
    }

    /// Does what is due by now.
    pub fn on_deadline(&mut self, now: Instant, out: &mut Vec<AgentOutput>) {
        self.with_log(out, |log, events| log.catch_up(now, events));
        self.settle(now, out);
    }

    /// Whether [`Agent::on_deadline`] has something to do at once: more of what the device did than one step took in.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.log.as_ref().is_some_and(Log::is_behind)
    }

    /// When [`Agent::on_deadline`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let log = self.log.as_ref().and_then(Log::next_deadline);
        let promotions = self.promotions.next_deadline();
        log.into_iter().chain(promotions).min()
    }

    /// Begins an access to an extent by code of this process. It must be ended.
    ///
    /// # Errors
    /// Why the extent may not be accessed.
    pub fn begin_access(&mut self, extent: ExtentRef, access: Access) -> Result<AccessId, Stale> {
        self.arena.begin(extent, access)
    }

    /// Ends an access; true when the extent was alive until now, so that the bytes count.
    ///
    /// # Panics
    /// When the access was ended before.
    pub fn end_access(&mut self, access: AccessId, out: &mut Vec<AgentOutput>) -> bool {
        let end = self.arena.end(access);
        report_fence(end, out)
    }

    /// Where the bytes of a record are, for a read by the caller's own device; its file stays until the read is ended.
    /// `None` when there is no such record: that is reported to the master as lost, unless it was dropped.
    pub fn begin_read(
        &mut self,
        now: Instant,
        entry: &DiskEntry,
        out: &mut Vec<AgentOutput>,
    ) -> Option<RecordRead> {
        let plan = (self.log.as_mut()).and_then(|log| log.begin_read(now, entry));
        if plan.is_none() {
            self.with_log(out, |log, events| log.missed(now, entry.clone(), events));
            self.settle(now, out);
        }
        plan
    }

    /// Ends a read that [`Agent::begin_read`] began and for which the device took `took`, zero when it was not asked; true
    /// when the bytes were the right ones. A record whose bytes
    /// are wrong or unreadable is dropped, and reported as lost once no crash can bring it back.
    ///
    /// # Panics
    /// When the read was ended before.
    pub fn end_read(
        &mut self,
        now: Instant,
        read: RecordRead,
        (end, took): (ReadEnd, Duration),
        out: &mut Vec<AgentOutput>,
    ) -> bool {
        let entry = self
            .log
            .as_ref()
            .and_then(|log| log.entry_of(read.read).cloned());
        self.with_log(out, |log, events| {
            log.end_read(now, read.read, (end, took), events);
        });
        if let Some(entry) = entry {
            self.reader_left(now, &entry, out);
        }
        self.settle(now, out);
        matches!(end, ReadEnd::Checked(checksum) if checksum == read.checksum)
    }

    /// Whether a record can be read.
    #[must_use]
    pub fn holds(&self, entry: &DiskEntry) -> bool {
        self.log
            .as_ref()
            .is_some_and(|log| log.find(entry).is_some())
    }

    /// Whether a record can be read and no crash can take it back.
    #[must_use]
    pub fn holds_durably(&self, entry: &DiskEntry) -> bool {
        self.log.as_ref().is_some_and(|log| log.is_durable(entry))
    }

    /// What the tiers are doing.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        let stats = self.log.as_ref().map(Log::stats).unwrap_or_default();
        TierStats {
            promotions_copied: self.promotions.copied(),
            ..stats
        }
    }

    /// The books of the memory segments.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    fn order(&mut self, now: Instant, order: Order, out: &mut Vec<AgentOutput>) {
        match order {
            Order::Offload(tasks) => self.offload(now, tasks, out),
            Order::Promote(tasks) => {
                for task in tasks {
                    self.promote(now, task, out);
                }
            }
            Order::Staged { ticket, extent } => self.staged(now, ticket, extent, out),
            Order::Cancel { ticket } => self.cancel(now, ticket, out),
            Order::Drop(entries) => match &self.log {
                Some(_) => self.with_log(out, |log, events| {
                    for entry in entries {
                        log.drop_entry(now, entry, events);
                    }
                }),
                None => out.push(AgentOutput::Report(Report::Dropped(entries))),
            },
            Order::Fence(extents) => self.fence(extents, out),
            Order::Published(entries) => {
                let live = entries.into_iter();
                let live = live.filter(|it| self.arena.check(it.extent).is_ok());
                live.for_each(|it| self.inventory.publish(now, it));
            }
        }
    }

    fn offload(&mut self, now: Instant, tasks: Vec<OffloadTask>, out: &mut Vec<AgentOutput>) {
        let mut stale = Vec::new();
        let mut queued = Vec::with_capacity(tasks.len());
        for OffloadTask {
            ticket,
            entry,
            bytes,
            checksum,
            source,
            promised,
        } in tasks
        {
            let fits =
                bytes <= source.bytes && self.log.is_some() && !self.offloads.contains_key(&ticket);
            match self.arena.begin(source, Access::Read) {
                Ok(access) if fits => {
                    let offloading = Offloading {
                        entry: entry.clone(),
                        access,
                    };
                    self.offloads.insert(ticket, offloading);
                    queued.push(Offload {
                        ticket,
                        entry,
                        bytes,
                        checksum,
                        source,
                        promised,
                    });
                }
                refused => {
                    if let Ok(access) = refused {
                        report_fence(self.arena.end(access), out);
                    }
                    stale.push((ticket, Err(TaskFailure::Stale)));
                }
            }
        }
        report_in_parts(stale, Report::Offloaded, out);
        self.with_log(out, |log, events| {
            for offload in queued {
                log.offload(now, offload, events);
            }
        });
    }

    fn fence(&mut self, extents: Vec<ExtentRef>, out: &mut Vec<AgentOutput>) {
        let (mut idle, mut busy) = (Vec::new(), Vec::new());
        for extent in extents {
            self.inventory.forget(&extent);
            if self.arena.fence(extent) {
                idle.push(extent);
            } else {
                busy.push(extent);
                self.with_log(out, |log, events| log.source_died(extent, events));
            }
        }
        report_in_parts(idle, Report::Fenced, out);
        if self.config.outlives {
            report_in_parts(busy, Report::Retired, out);
        }
    }

    /// Lets `act` use the log, and carries out its effects.
    fn with_log(
        &mut self,
        out: &mut Vec<AgentOutput>,
        act: impl FnOnce(&mut Log, &mut Vec<LogOut>),
    ) {
        let Some(log) = &mut self.log else { return };
        let mut events = std::mem::take(&mut self.scratch);
        act(log, &mut events);
        let (mut written, mut dropped, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        for event in events.drain(..) {
            match event {
                LogOut::Disk(op, request) => out.push(AgentOutput::Disk { op, request }),
                LogOut::Written(ticket, result) => {
                    let offloading = self.offloads.remove(&ticket);
                    let entry = offloading.map(|offloading| {
                        report_fence(self.arena.end(offloading.access), out);
                        offloading.entry
                    });
                    if let (Some(entry), Ok(()), true) = (&entry, result, self.config.outlives) {
                        self.inventory.name(entry);
                    }
                    match self.inventory.end_orphan(ticket) {
                        Some(entry) if result == Err(TaskFailure::Device) => {
                            self.inventory.doubt(entry);
                        }
                        Some(_) => {}
                        None => written.push((ticket, result)),
                    }
                }
                LogOut::Dropped(entry) => dropped.push(entry),
                LogOut::Lost(entry) => lost.push(entry),
                LogOut::Emptying(entries) => report_in_parts(entries, Report::Emptying, out),
                LogOut::Read {
                    ticket,
                    read,
                    result,
                } => self.promotions.came(ticket, read, result),
                LogOut::Announce(entries) if self.config.outlives => {
                    entries.iter().for_each(|it| self.inventory.name(&it.entry));
                }
                LogOut::Announce(entries) => {
                    let segment = self
                        .config
                        .log
                        .as_ref()
                        .map(|log| log.segment)
                        .unwrap_or_default();
                    out.push(AgentOutput::Report(Report::Announce { segment, entries }));
                }
                LogOut::Opened(opened) if self.config.outlives => {
                    out.push(AgentOutput::Opened(opened));
                }
                LogOut::Opened(opened) => {
                    let segment = self
                        .config
                        .log
                        .as_ref()
                        .map(|log| log.segment)
                        .unwrap_or_default();
                    let highest = opened.highest_version;
                    out.push(AgentOutput::Report(Report::Announced { segment, highest }));
                    out.push(AgentOutput::Opened(opened));
                }
                LogOut::Refused(error) => out.push(AgentOutput::Refused(error)),
                LogOut::Flushed(number) if number >= OWN_FLUSH => self.inventory.flushed(number),
                LogOut::Flushed(number) => out.push(AgentOutput::Flushed(number)),
            }
        }
        self.scratch = events;
        self.dropped |= !dropped.is_empty();
        if self.config.outlives {
            self.forget_names(dropped.iter().chain(&lost));
        }
        report_in_parts(written, Report::Offloaded, out);
        report_in_parts(dropped, Report::Dropped, out);
        report_in_parts(lost, Report::Lost, out);
    }

    /// What follows from an input: ends promotions, begins others, lets the log go on, reports changes to the master.
    fn settle(&mut self, now: Instant, out: &mut Vec<AgentOutput>) {
        self.finish_promotions(now, out);
        self.begin_promotions(now, out);
        self.stop_expecting(now, out);
        loop {
            self.with_log(out, |log, events| log.step(now, events));
            if !self.settle_announcing(now, out) {
                break;
            }
        }
        self.tell_state(out);
        let rest = self
            .log
            .as_ref()
            .map_or(Some(AtRest::default()), Log::at_rest);
        if self.stopping
            && !self.stopped
            && let Some(rest) = rest
        {
            self.stopped = true;
            out.push(AgentOutput::Stopped {
                lost: rest.lost,
                promised: rest.promised,
                given_back: rest.given_back,
            });
        }
    }

    /// Reports the state of the log when the master would act otherwise on it: small changes of pressure are not
    /// worth a message each, but pressure that is left when records were dropped is asked for again. The master acts once on
    /// what it was told.
    fn tell_state(&mut self, out: &mut Vec<AgentOutput>) {
        let Some(log) = self.log.as_ref().filter(|log| log.is_open()) else {
            return;
        };
        let state = log.state(self.config.node);
        let same = self.reported.is_some_and(|reported| {
            let near = state.pressure.abs_diff(reported.pressure) <= reported.pressure / 4;
            // Those of one sync are reported in steps: the last of them asks.
            let again = self.dropped && state.pressure > 0 && !log.is_behind();
            let alike = reported.accepting == state.accepting
                && reported.failing == state.failing
                && reported.capacity == state.capacity;
            alike && near && !again
        });
        if !same {
            self.dropped = false;
            self.reported = Some(state);
            out.push(AgentOutput::Report(Report::Disk(state)));
        }
    }
}

/// Reports as many items at a time as one message carries.
fn report_in_parts<T>(items: Vec<T>, report: fn(Vec<T>) -> Report, out: &mut Vec<AgentOutput>) {
    let mut items = items.into_iter().peekable();
    while items.peek().is_some() {
        let part = items.by_ref().take(BATCH_KEYS_MAX).collect();
        out.push(AgentOutput::Report(report(part)));
    }
}

/// Reports a fence that waited for this access to the master; true when the access counts.
fn report_fence(end: AccessEnd, out: &mut Vec<AgentOutput>) -> bool {
    if let Some(extent) = end.fenced {
        out.push(AgentOutput::Report(Report::Fenced(vec![extent])));
    }
    end.live
}
