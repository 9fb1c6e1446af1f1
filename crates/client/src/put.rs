use slackwater_base::{Checksum, Instant};
use slackwater_wire::{ErrorCode, PutDone, PutEnd, PutStart, PutStarted, Reply, Request, Version};

use crate::call::retries;
use crate::retry::Attempts;
use crate::{Action, FlowOptions};

/// One batch put: asks for room, writes, and publishes what was written whole; what was not is revoked.
pub struct PutFlow {
    start: PutStart,
    items: Vec<Item>,
    /// Items that await room or their bytes.
    unwritten: usize,
    stage: Stage,
    attempts: Attempts,
}

/// How one entry of a put ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// It is published.
    Stored,
    /// An object of that key was there already and stays as it is.
    Existed,
    /// It is not stored, for this reason.
    Failed(ErrorCode),
    /// No answer came in time: it may or may not be stored.
    Unknown,
}

/// Why bytes did not reach an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFailure {
    /// The extent is not ours any more: the put was revoked meanwhile.
    Stale,
    /// The link failed.
    Transfer,
}

#[derive(Clone, Copy, Debug)]
enum Item {
    Asking,
    Writing(Version),
    Written(Version, Checksum),
    /// To be revoked: the failure that the caller hears.
    Spoilt(Version, ErrorCode),
    Done(PutOutcome),
}

/// Which answer is awaited.
#[derive(Clone, Debug, PartialEq)]
enum Stage {
    /// To `PutStart`, for these items.
    Start(Vec<usize>),
    /// The caller is writing.
    Write,
    /// To `PutEnd`, for these items.
    End(Vec<usize>),
    /// Nothing.
    Over,
}

impl PutFlow {
    /// Begins the put.
    pub fn start(start: PutStart, options: FlowOptions, out: &mut Vec<Action>) -> Self {
        out.push(Action::Ask(Request::PutStart(start.clone())));
        let items = vec![Item::Asking; start.entries.len()];
        let stage = Stage::Start((0..items.len()).collect());
        Self {
            unwritten: items.len(),
            start,
            items,
            stage,
            attempts: Attempts::first(options),
        }
    }

    /// The master answered.
    pub fn on_reply(&mut self, now: Instant, reply: Reply, out: &mut Vec<Action>) {
        match (std::mem::replace(&mut self.stage, Stage::Write), reply) {
            (Stage::Start(asked), Reply::PutStart(started)) if started.len() == asked.len() => {
                for (index, started) in asked.into_iter().zip(started) {
                    self.on_started(index, started, out);
                }
                self.publish_when_written(out);
            }
            (Stage::Start(asked), Reply::Failed(code)) => {
                if retries(code) && self.attempts.plan(now) {
                    self.stage = Stage::Start(asked);
                } else {
                    self.fail(&asked, PutOutcome::Failed(code));
                }
            }
            (Stage::End(asked), Reply::Each(results)) if results.len() == asked.len() => {
                for (index, result) in asked.into_iter().zip(results) {
                    let outcome = match result {
                        Ok(()) => PutOutcome::Stored,
                        Err(code) => PutOutcome::Failed(code),
                    };
                    self.enter(index, Item::Done(outcome));
                }
                self.stage = Stage::Over;
            }
            (Stage::End(asked), Reply::Failed(code)) => {
                if retries(code) && self.attempts.plan(now) {
                    self.stage = Stage::End(asked);
                } else {
                    self.fail(&asked, PutOutcome::Failed(code));
                }
            }
            (Stage::Start(asked) | Stage::End(asked), _) => {
                self.fail(&asked, PutOutcome::Failed(ErrorCode::InternalError));
            }
            (stage, _) => self.stage = stage,
        }
    }

    /// The caller's bytes of one item reached every extent, or not.
    pub fn on_written(
        &mut self,
        index: usize,
        result: Result<Checksum, WriteFailure>,
        out: &mut Vec<Action>,
    ) {
        let Item::Writing(version) = self.items[index] else {
            return;
        };
        let item = match result {
            Ok(checksum) => Item::Written(version, checksum),
            Err(WriteFailure::Stale) => Item::Spoilt(version, ErrorCode::InvalidWrite),
            Err(WriteFailure::Transfer) => Item::Spoilt(version, ErrorCode::TransferFail),
        };
        self.enter(index, item);
        self.publish_when_written(out);
    }

    /// The link to the master broke before an answer came.
    pub fn on_link_lost(&mut self, now: Instant) {
        if let Stage::Start(asked) | Stage::End(asked) = self.stage.clone()
            && !self.attempts.plan(now)
        {
            self.fail(&asked, PutOutcome::Unknown);
        }
    }

    /// Time has passed. Writes still under way must be stopped by whoever runs them.
    pub fn on_deadline(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.stage == Stage::Over {
            return;
        }
        if self.attempts.over(now) {
            self.give_up(out);
        } else if self.attempts.take_due(now) {
            match self.stage.clone() {
                Stage::Start(asked) => {
                    let mut start = self.start.clone();
                    start.entries = asked
                        .iter()
                        .map(|index| self.start.entries[*index].clone())
                        .collect();
                    out.push(Action::Ask(Request::PutStart(start)));
                }
                Stage::End(asked) => out.push(self.end_request(&asked)),
                Stage::Write | Stage::Over => {}
            }
        }
    }

    /// When [`PutFlow::on_deadline`] wants to run; `None` when the put has ended.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        (self.stage != Stage::Over).then(|| self.attempts.next_deadline())
    }

    /// One outcome an entry, in the order of the request, once all are known.
    #[must_use]
    pub fn outcomes(&self) -> Option<Vec<PutOutcome>> {
        self.items
            .iter()
            .map(|item| match item {
                Item::Done(outcome) => Some(*outcome),
                _ => None,
            })
            .collect()
    }

    fn on_started(&mut self, index: usize, started: PutStarted, out: &mut Vec<Action>) {
        let item = match started {
            PutStarted::Granted { version, extents } => {
                out.push(Action::Write { index, extents });
                Item::Writing(version)
            }
            PutStarted::Exists => Item::Done(PutOutcome::Existed),
            PutStarted::Failed(code) => Item::Done(PutOutcome::Failed(code)),
        };
        self.enter(index, item);
    }

    fn publish_when_written(&mut self, out: &mut Vec<Action>) {
        if self.unwritten > 0 {
            return;
        }
        self.revoke(out);
        let written: Vec<usize> = (0..self.items.len())
            .filter(|index| matches!(self.items[*index], Item::Written(..)))
            .collect();
        if written.is_empty() {
            self.stage = Stage::Over;
        } else {
            out.push(self.end_request(&written));
            self.stage = Stage::End(written);
        }
    }

    fn end_request(&self, indices: &[usize]) -> Action {
        let puts = indices.iter().filter_map(|index| match self.items[*index] {
            Item::Written(version, checksum) => Some(PutDone {
                key: self.start.entries[*index].key.clone(),
                version,
                checksum,
            }),
            _ => None,
        });
        Action::Ask(Request::PutEnd(PutEnd {
            tenant: self.start.tenant.clone(),
            puts: puts.collect(),
        }))
    }

    fn revoke(&mut self, out: &mut Vec<Action>) {
        let mut puts = Vec::new();
        for (item, entry) in self.items.iter_mut().zip(&self.start.entries) {
            if let Item::Spoilt(version, code) = *item {
                puts.push((entry.key.clone(), version));
                *item = Item::Done(PutOutcome::Failed(code));
            }
        }
        if !puts.is_empty() {
            out.push(Action::Tell(Request::PutRevoke {
                tenant: self.start.tenant.clone(),
                puts,
            }));
        }
    }

    /// The deadline: what is written but not acknowledged is unknown, what is half written is revoked.
    fn give_up(&mut self, out: &mut Vec<Action>) {
        for index in 0..self.items.len() {
            let item = match self.items[index] {
                Item::Writing(version) => Item::Spoilt(version, ErrorCode::DeadlinePassed),
                Item::Asking | Item::Written(..) => Item::Done(PutOutcome::Unknown),
                done => done,
            };
            self.enter(index, item);
        }
        self.revoke(out);
        self.stage = Stage::Over;
    }

    fn fail(&mut self, indices: &[usize], outcome: PutOutcome) {
        for index in indices {
            self.enter(*index, Item::Done(outcome));
        }
        self.stage = Stage::Over;
    }

    /// The only place where an item that awaits its bytes changes: that none does is asked at every write of a batch.
    fn enter(&mut self, index: usize, item: Item) {
        let unwritten = |item: &Item| usize::from(matches!(item, Item::Writing(_) | Item::Asking));
        self.unwritten = self.unwritten + unwritten(&item) - unwritten(&self.items[index]);
        self.items[index] = item;
    }
}

#[cfg(test)]
#[path = "put_tests.rs"]
mod tests;
