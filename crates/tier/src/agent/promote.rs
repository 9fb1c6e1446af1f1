use std::collections::BTreeMap;

use slackwater_base::{Checksum, Instant, Planted, planted};
use slackwater_wire::{ExtentRef, PromoteTask, PromotionFailure, Report, TicketId};

use super::{Agent, AgentOutput, ReadEnd, ReadId, report_fence};
use crate::arena::Reserved;
use crate::config::AgentConfig;
use crate::io::DiskError;

/// Promotions under way: waiting for their turn, waiting for an extent, or being read.
#[derive(Debug, Default)]
pub(super) struct Promotions {
    waiting: Waiting,
    staging: BTreeMap<TicketId, PromoteTask>,
    reading: BTreeMap<TicketId, Reading>,
    came: Vec<(TicketId, ReadId, Result<Checksum, DiskError>)>,
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
    /// The master cancelled it: its end is not reported.
    cancelled: bool,
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
    /// master's deadlines end them.
    pub(super) fn forget_waiting(&mut self) {
        self.waiting.clear();
        for task in std::mem::take(&mut self.staging).into_values() {
            self.bytes_in_flight -= task.bytes;
        }
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

    /// Reads the record of a promotion into the extent that the master allocated. An extent that
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
        let read = self.begin_staged(&task, extent);
        match read {
            Ok((reserved, plan)) => {
                self.with_log(out, |log, events| {
                    log.read_into(ticket, plan, extent, events)
                });
                self.promotions.reading.insert(
                    ticket,
                    Reading {
                        task,
                        reserved,
                        cancelled: false,
                    },
                );
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
    ) -> Result<(Reserved, super::RecordRead), PromotionFailure> {
        if let Some(failure) = self.unfit(task) {
            return Err(failure);
        }
        if extent.bytes < task.bytes {
            return Err(PromotionFailure::Size);
        }
        let reserved = self
            .arena
            .reserve(extent)
            .map_err(|_| PromotionFailure::Stale)?;
        match self
            .log
            .as_mut()
            .and_then(|log| log.begin_read(&task.entry))
        {
            Some(plan) => Ok((reserved, plan)),
            None => {
                let end = self.arena.abandon(reserved);
                debug_assert!(end.fenced.is_none(), "nothing was fenced between the two");
                Err(PromotionFailure::Missing)
            }
        }
    }

    pub(super) fn cancel(&mut self, ticket: TicketId, out: &mut Vec<AgentOutput>) {
        self.promotions.waiting.remove(ticket);
        if let Some(task) = self.promotions.staging.remove(&ticket) {
            self.promotions.bytes_in_flight -= task.bytes;
        }
        if let Some(reading) = self.promotions.reading.get_mut(&ticket) {
            reading.cancelled = true;
        }
        if planted(Planted::CancelledPromotionLetsGo)
            && let Some(reading) = self.promotions.reading.remove(&ticket)
        {
            self.promotions.bytes_in_flight -= reading.task.bytes;
            report_fence(self.arena.abandon(reading.reserved), out);
        }
    }

    /// Ends the promotions whose reads are done. A promotion is published only if the bytes are
    /// right and the extent is still alive.
    pub(super) fn finish_promotions(&mut self, now: Instant, out: &mut Vec<AgentOutput>) {
        for (ticket, read, came) in std::mem::take(&mut self.promotions.came) {
            let end = came.map_or_else(ReadEnd::Failed, ReadEnd::Checked);
            self.with_log(out, |log, events| log.end_read(now, read, end, events));
            let Some(Reading {
                task,
                reserved,
                cancelled,
            }) = self.promotions.reading.remove(&ticket)
            else {
                continue;
            };
            self.promotions.bytes_in_flight -= task.bytes;
            let extent = reserved.extent();
            let filled = match came {
                Ok(found) => reserved
                    .fill(found, task.checksum)
                    .map_err(|back| (back, PromotionFailure::Corrupt)),
                Err(error) if error.is_passing() => Err((reserved, PromotionFailure::Busy)),
                Err(_) => Err((reserved, PromotionFailure::Device)),
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
                Err(failure) => out.push(failed(ticket, failure)),
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
