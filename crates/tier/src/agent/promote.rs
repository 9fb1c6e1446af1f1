use std::collections::BTreeMap;
use std::time::Duration;

use slackwater_base::{Checksum, Instant, Planted, planted};
use slackwater_wire::{DiskEntry, ExtentRef, PromoteTask, PromotionFailure, Report, TicketId};

use super::{Agent, AgentOutput, ReadEnd, ReadId, RecordRead, report_fence};
use crate::arena::Reserved;
use crate::config::AgentConfig;
use crate::io::DiskError;

/// Promotions under way: waiting for their turn, waiting for an extent, or being read.
#[derive(Debug, Default)]
pub(super) struct Promotions {
    waiting: Waiting,
    staging: BTreeMap<TicketId, PromoteTask>,
    reading: BTreeMap<TicketId, Reading>,
    /// Those that wait for a reader, by what it reads.
    expected: BTreeMap<DiskEntry, TicketId>,
    reader_wait: Duration,
    came: Vec<(TicketId, ReadId, Result<Checksum, DiskError>)>,
    copied: u64,
    bytes_in_flight: u64,
    in_flight_max: usize,
    bytes_in_flight_max: u64,
    queued_max: usize,
}

/// A promotion whose bytes are on their way into its extent.
#[derive(Debug)]
struct Reading {
    task: PromoteTask,
    reserved: Reserved,
    source: Source,
    /// The master cancelled it: its end is not reported.
    cancelled: bool,
}

/// Who brings the bytes of a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The reader that earned it, if it comes by then.
    Reader(Instant),
    /// A reader, which copies them now.
    Copying,
    /// A read of the device.
    Device,
}

/// Promotions that wait for their turn, in the order in which they came. One is cancelled without walking the others:
/// a master that withdraws everything cancels each of them.
#[derive(Debug, Default)]
struct Waiting {
    tasks: BTreeMap<u64, PromoteTask>,
    places: BTreeMap<TicketId, u64>,
    next_place: u64,
}

impl Waiting {
    fn push(&mut self, task: PromoteTask) {
        self.places.insert(task.ticket, self.next_place);
        self.tasks.insert(self.next_place, task);
        self.next_place += 1;
    }

    fn first(&self) -> Option<&PromoteTask> {
        self.tasks.values().next()
    }

    fn pop_first(&mut self) -> Option<PromoteTask> {
        let (_, task) = self.tasks.pop_first()?;
        self.places.remove(&task.ticket);
        Some(task)
    }

    fn remove(&mut self, ticket: TicketId) {
        if let Some(place) = self.places.remove(&ticket) {
            self.tasks.remove(&place);
        }
    }

    fn len(&self) -> usize {
        self.tasks.len()
    }

    fn clear(&mut self) {
        self.tasks.clear();
        self.places.clear();
    }
}

impl Promotions {
    pub(super) fn new(config: &AgentConfig) -> Self {
        Self {
            in_flight_max: config.promotions_in_flight_max.max(1),
            bytes_in_flight_max: config.promotion_bytes_in_flight_max,
            queued_max: config.promotions_queued_max,
            reader_wait: config.promotion_reader_wait,
            ..Self::default()
        }
    }

    /// The read of a promotion ended.
    pub(super) fn came(
        &mut self,
        ticket: TicketId,
        read: ReadId,
        result: Result<Checksum, DiskError>,
    ) {
        self.came.push((ticket, read, result));
    }

    /// Forgets the promotions that are not being read yet: the process is stopping, and the
    /// master's deadlines end them. Returns those that have an extent already.
    pub(super) fn forget_waiting(&mut self) -> Vec<TicketId> {
        self.waiting.clear();
        for task in std::mem::take(&mut self.staging).into_values() {
            self.bytes_in_flight -= task.bytes;
        }
        let expecting = std::mem::take(&mut self.expected);
        for reading in self.reading.values_mut() {
            reading.cancelled |= reading.source != Source::Device;
        }
        expecting.into_values().collect()
    }

    /// Promotions whose bytes a reader brought.
    pub(super) fn copied(&self) -> u64 {
        self.copied
    }

    /// When the first that waits for a reader has waited long enough.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let expected = self.expected.values();
        let until = expected.filter_map(|ticket| match self.reading.get(ticket)?.source {
            Source::Reader(until) => (until < Instant::NEVER).then_some(until),
            Source::Copying | Source::Device => None,
        });
        until.min()
    }

    /// The promotions that were ordered and have not ended.
    pub(super) fn open(&self) -> Vec<TicketId> {
        let waiting = self.waiting.places.keys();
        let under_way = self.staging.keys().chain(self.reading.keys());
        waiting.chain(under_way).copied().collect()
    }

    /// Whether the promotion was ordered before and has not ended.
    fn is_open(&self, ticket: TicketId) -> bool {
        self.waiting.places.contains_key(&ticket)
            || self.staging.contains_key(&ticket)
            || self.reading.contains_key(&ticket)
    }

    fn next(&mut self) -> Option<PromoteTask> {
        let bytes = self.waiting.first()?.bytes;
        let in_flight = self.staging.len() + self.reading.len();
        let fits = in_flight == 0 || self.bytes_in_flight + bytes <= self.bytes_in_flight_max;
        if in_flight >= self.in_flight_max || !fits {
            return None;
        }
        self.waiting.pop_first()
    }
}

impl Agent {
    pub(super) fn promote(&mut self, now: Instant, task: PromoteTask, out: &mut Vec<AgentOutput>) {
        let ticket = task.ticket;
        if self.promotions.is_open(ticket) {
            return;
        }
        let is_opening = self.log.as_ref().is_some_and(|log| !log.is_open());
        let is_full = self.promotions.waiting.len() >= self.promotions.queued_max;
        let failure = if self.stopping || is_opening || is_full {
            Some(PromotionFailure::Busy)
        } else {
            self.unfit(&task)
        };
        match failure {
            Some(failure) => {
                out.push(failed(ticket, failure));
                self.report_missing(now, task, failure, out);
            }
            None => self.promotions.waiting.push(task),
        }
    }

    /// Why the log cannot serve `task`; `None` if it can.
    fn unfit(&self, task: &PromoteTask) -> Option<PromotionFailure> {
        let Some(record) = self.log.as_ref().and_then(|log| log.find(&task.entry)) else {
            return Some(PromotionFailure::Missing);
        };
        let fits = task.bytes > 0 && record.0 == task.bytes;
        match (fits, record.1 == task.checksum) {
            (true, true) => None,
            (false, _) => Some(PromotionFailure::Size),
            // The log holds another value than the master believes.
            (true, false) => Some(PromotionFailure::Missing),
        }
    }

    /// Reports a record as lost that the master believes is here and that is not.
    fn report_missing(
        &mut self,
        now: Instant,
        task: PromoteTask,
        failure: PromotionFailure,
        out: &mut Vec<AgentOutput>,
    ) {
        if failure == PromotionFailure::Missing {
            self.with_log(out, |log, events| log.missed(now, task.entry, events));
        }
    }

    /// Asks for the extents of the promotions whose turn it is.
    pub(super) fn begin_promotions(&mut self, now: Instant, out: &mut Vec<AgentOutput>) {
        while let Some(task) = self.promotions.next() {
            if let Some(failure) = self.unfit(&task) {
                out.push(failed(task.ticket, failure));
                self.report_missing(now, task, failure, out);
                continue;
            }
            self.promotions.bytes_in_flight += task.bytes;
            out.push(AgentOutput::Report(Report::Stage {
                ticket: task.ticket,
                bytes: task.bytes,
            }));
            self.promotions.staging.insert(task.ticket, task);
        }
    }

    /// Takes the extent that the master allocated. The record is about to be read by the reader that earned the promotion:
    /// the device is asked once only if that one brings the bytes. An extent that
    /// was not asked for is not touched; the master fences it when it frees it.
    pub(super) fn staged(
        &mut self,
        now: Instant,
        ticket: TicketId,
        extent: ExtentRef,
        out: &mut Vec<AgentOutput>,
    ) {
        let Some(task) = self.promotions.staging.remove(&ticket) else {
            return;
        };
        match self.begin_staged(&task, extent) {
            Ok(reserved) => {
                let until = now + self.promotions.reader_wait;
                let expected = &mut self.promotions.expected;
                let source = if expected.contains_key(&task.entry) {
                    Source::Device
                } else {
                    expected.insert(task.entry.clone(), ticket);
                    Source::Reader(until)
                };
                let reading = Reading {
                    task,
                    reserved,
                    source,
                    cancelled: false,
                };
                self.promotions.reading.insert(ticket, reading);
                if source == Source::Device {
                    self.read_for(now, ticket, out);
                }
            }
            Err(failure) => {
                self.promotions.bytes_in_flight -= task.bytes;
                out.push(failed(ticket, failure));
                self.report_missing(now, task, failure, out);
            }
        }
    }

    fn begin_staged(
        &mut self,
        task: &PromoteTask,
        extent: ExtentRef,
    ) -> Result<Reserved, PromotionFailure> {
        if let Some(failure) = self.unfit(task) {
            return Err(failure);
        }
        if extent.bytes < task.bytes {
            return Err(PromotionFailure::Size);
        }
        let reserved = self.arena.reserve(extent);
        reserved.map_err(|_| PromotionFailure::Stale)
    }

    /// Has the device read the record of a promotion.
    fn read_for(&mut self, now: Instant, ticket: TicketId, out: &mut Vec<AgentOutput>) {
        let Some(reading) = self.promotions.reading.get_mut(&ticket) else {
            return;
        };
        reading.source = Source::Device;
        let (entry, extent) = (&reading.task.entry, reading.reserved.extent());
        let plan = self.log.as_mut().and_then(|log| log.begin_promotion(entry));
        match plan {
            Some(plan) => self.with_log(out, |log, events| {
                log.read_into(ticket, plan, extent, events);
            }),
            None => self.finish(now, ticket, Err(PromotionFailure::Missing), out),
        }
    }

    /// Has the device read for those that waited long enough for a reader, unless a reader of the record is at it.
    pub(super) fn stop_expecting(&mut self, now: Instant, out: &mut Vec<AgentOutput>) {
        if self.promotions.next_deadline().is_none_or(|at| at > now) {
            return;
        }
        let reading = &self.promotions.reading;
        let due = self.promotions.expected.iter().filter(|(_, ticket)| {
            let source = reading.get(ticket).map(|reading| reading.source);
            matches!(source, Some(Source::Reader(until)) if until <= now)
        });
        let due: Vec<(DiskEntry, TicketId)> = due
            .map(|(entry, ticket)| (entry.clone(), *ticket))
            .collect();
        for (entry, ticket) in due {
            let log = self.log.as_ref();
            if log.is_some_and(|log| log.is_read_by_caller(&entry)) {
                if let Some(reading) = self.promotions.reading.get_mut(&ticket) {
                    reading.source = Source::Reader(Instant::NEVER);
                }
            } else {
                self.promotions.expected.remove(&entry);
                self.read_for(now, ticket, out);
            }
        }
    }

    /// Whether a promotion waits for a reader.
    #[must_use]
    pub fn expects_readers(&self) -> bool {
        !self.promotions.expected.is_empty()
    }

    /// A reader has the bytes of a record, and their checksum was right: where they are wanted as well. The reader copies
    /// them there and says so with [`Agent::copied`].
    pub fn promotion_of(&mut self, read: &RecordRead) -> Option<(TicketId, ExtentRef)> {
        let entry = self.log.as_ref()?.entry_of(read.read)?;
        let ticket = self.promotions.expected.remove(entry)?;
        let reading = self.promotions.reading.get_mut(&ticket)?;
        reading.source = Source::Copying;
        Some((ticket, reading.reserved.extent()))
    }

    /// A reader has copied a record to the extent of its promotion; `found` is the checksum of what is there now. A wrong one
    /// says nothing about the record: the reader's buffer is its owner's, who may have written to it meanwhile. The device
    /// is read then.
    pub fn copied(
        &mut self,
        now: Instant,
        ticket: TicketId,
        found: Checksum,
        out: &mut Vec<AgentOutput>,
    ) {
        let reading = self.promotions.reading.get(&ticket);
        let wanted = reading.filter(|reading| !reading.cancelled);
        let is_wrong = wanted.is_some_and(|reading| found != reading.task.checksum);
        self.promotions.copied += u64::from(wanted.is_some() && !is_wrong);
        if is_wrong {
            self.read_for(now, ticket, out);
        } else {
            self.finish(now, ticket, Ok(found), out);
        }
        self.settle(now, out);
    }

    /// A reader of a record is gone, and took the bytes with it.
    pub(super) fn reader_left(
        &mut self,
        now: Instant,
        entry: &DiskEntry,
        out: &mut Vec<AgentOutput>,
    ) {
        if let Some(ticket) = self.promotions.expected.remove(entry) {
            self.read_for(now, ticket, out);
        }
    }

    pub(super) fn cancel(&mut self, now: Instant, ticket: TicketId, out: &mut Vec<AgentOutput>) {
        self.promotions.waiting.remove(ticket);
        if let Some(task) = self.promotions.staging.remove(&ticket) {
            self.promotions.bytes_in_flight -= task.bytes;
        }
        let reading = self.promotions.reading.get_mut(&ticket);
        match reading.map(|reading| {
            reading.cancelled = true;
            (reading.source, reading.task.entry.clone())
        }) {
            Some((Source::Reader(_), entry)) => {
                self.promotions.expected.remove(&entry);
                // Nobody touches the extent yet.
                self.finish(now, ticket, Err(PromotionFailure::Stale), out);
            }
            Some((Source::Copying | Source::Device, _)) | None => {}
        }
        if planted(Planted::CancelledPromotionLetsGo)
            && let Some(reading) = self.promotions.reading.remove(&ticket)
        {
            self.promotions.bytes_in_flight -= reading.task.bytes;
            report_fence(self.arena.abandon(reading.reserved), out);
        }
    }

    /// Ends the promotions whose reads are done.
    pub(super) fn finish_promotions(&mut self, now: Instant, out: &mut Vec<AgentOutput>) {
        for (ticket, read, came) in std::mem::take(&mut self.promotions.came) {
            let end = came.map_or_else(ReadEnd::Failed, ReadEnd::Checked);
            self.with_log(out, |log, events| {
                log.end_read(now, read, (end, Duration::ZERO), events);
            });
            let found = came.map_err(|error| {
                if error.is_passing() {
                    PromotionFailure::Busy
                } else {
                    PromotionFailure::Device
                }
            });
            self.finish(now, ticket, found, out);
        }
    }

    /// Ends a promotion. It is published only if the bytes are right and the extent is still alive.
    fn finish(
        &mut self,
        now: Instant,
        ticket: TicketId,
        found: Result<Checksum, PromotionFailure>,
        out: &mut Vec<AgentOutput>,
    ) {
        let Some(Reading {
            task,
            reserved,
            cancelled,
            ..
        }) = self.promotions.reading.remove(&ticket)
        else {
            return;
        };
        self.promotions.bytes_in_flight -= task.bytes;
        let extent = reserved.extent();
        let filled = match found {
            Ok(found) => reserved
                .fill(found, task.checksum)
                .map_err(|back| (back, PromotionFailure::Corrupt)),
            Err(failure) => Err((reserved, failure)),
        };
        let (access, result) = match filled {
            Ok(filled) => {
                let (published, end) = self.arena.publish(filled);
                (end, published.map(drop).ok_or(PromotionFailure::Stale))
            }
            Err((reserved, failure)) => (self.arena.abandon(reserved), Err(failure)),
        };
        report_fence(access, out);
        match result {
            _ if cancelled => {}
            Ok(()) => out.push(AgentOutput::Report(Report::Promoted { ticket, extent })),
            Err(failure) => {
                out.push(failed(ticket, failure));
                self.report_missing(now, task, failure, out);
            }
        }
    }
}

fn failed(ticket: TicketId, failure: PromotionFailure) -> AgentOutput {
    AgentOutput::Report(Report::PromotionFailed { ticket, failure })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;
    use slackwater_wire::{DiskEntry, Key, Tenant, Version};

    use super::*;

    fn task(ticket: u64) -> PromoteTask {
        PromoteTask {
            ticket: TicketId(ticket),
            entry: DiskEntry {
                tenant: Tenant::DEFAULT,
                key: Key::new(b"a").unwrap(),
                version: Version(1),
            },
            bytes: 1,
            checksum: Checksum(1),
        }
    }

    proptest! {
        #[test]
        fn waiting_promotions_are_a_queue_from_which_any_is_taken(
            steps in prop::collection::vec((0u8..3, 0u64..12), 0..60),
        ) {
            let (mut waiting, mut model) = (Waiting::default(), VecDeque::new());
            for (step, ticket) in steps {
                match step {
                    0 if !model.contains(&ticket) => {
                        waiting.push(task(ticket));
                        model.push_back(ticket);
                    }
                    1 => {
                        let first = waiting.pop_first().map(|task| task.ticket.0);
                        prop_assert_eq!(first, model.pop_front());
                    }
                    _ => {
                        waiting.remove(TicketId(ticket));
                        model.retain(|waits| *waits != ticket);
                    }
                }
                let first = waiting.first().map(|task| task.ticket.0);
                prop_assert_eq!(first, model.front().copied());
                prop_assert_eq!((waiting.len(), waiting.places.len()), (model.len(), model.len()));
            }
        }
    }
}
