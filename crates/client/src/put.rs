use slackwater_base::{Checksum, Instant, Planted, planted};
use slackwater_wire::{
    Durability, ErrorCode, OperationId, PutDone, PutEnd, PutStart, PutStarted, Reply, Request,
    Version,
};

use crate::call::retries;
use crate::retry::{Attempt, Attempts};
use crate::{Action, FlowOptions};

/// One batch put: requests room, writes, and publishes what was written completely; the rest is revoked.
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
    /// It is not stored, or not as durably as was asked, for this reason. This includes a put that was given up before
    /// its end was requested: the master publishes nothing before that, and frees the room when it receives the
    /// revocation.
    Failed(ErrorCode),
    /// The end of the put was requested and its outcome is not known: it may or may not be stored.
    Unknown,
}

/// Why bytes did not reach an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFailure {
    /// The extent no longer belongs to the put, which was revoked meanwhile.
    Stale,
    /// The link failed.
    Transfer,
    /// The write was cancelled.
    Cancelled,
}

#[derive(Clone, Copy, Debug)]
enum Item {
    Asking,
    Writing(Version),
    /// The flow has ended the write for this reason, but its bytes may still be moving.
    Cancelling(Version, ErrorCode),
    Written(Version, Checksum),
    /// To be revoked, with this outcome for the caller.
    Spoilt(Version, PutOutcome),
    Done(PutOutcome),
}

/// The current stage of the flow.
#[derive(Clone, Debug, PartialEq)]
enum Stage {
    /// Requesting room for these items.
    Start(Vec<usize>),
    /// The caller is writing.
    Write,
    /// Publishing these items.
    End(Vec<usize>),
    /// Nothing.
    Over,
}

impl PutFlow {
    /// Begins the put.
    pub fn start(
        now: Instant,
        start: PutStart,
        options: FlowOptions,
        out: &mut Vec<Action>,
    ) -> Self {
        let mut attempts = Attempts::new(options);
        let operation = attempts.begin(now);
        let request = Request::PutStart(start.clone());
        out.push(Action::Ask { operation, request });
        let items = vec![Item::Asking; start.entries.len()];
        let stage = Stage::Start((0..items.len()).collect());
        Self {
            unwritten: items.len(),
            start,
            items,
            stage,
            attempts,
        }
    }

    /// The master answered an operation. A late or second answer changes nothing: what it granted was granted by the
    /// first, or is revoked.
    pub fn on_reply(
        &mut self,
        now: Instant,
        operation: OperationId,
        reply: Reply,
        out: &mut Vec<Action>,
    ) {
        if !self.attempts.answered(operation) {
            return;
        }
        match (std::mem::replace(&mut self.stage, Stage::Write), reply) {
            (Stage::Start(asked), Reply::PutStart(started)) if started.len() == asked.len() => {
                for (index, started) in asked.into_iter().zip(started) {
                    self.on_started(index, started, out);
                }
                self.publish_when_written(now, out);
            }
            (Stage::End(asked), Reply::Each(results)) if results.len() == asked.len() => {
                for (index, result) in asked.into_iter().zip(results) {
                    let outcome = match result {
                        Ok(()) => PutOutcome::Stored,
                        Err(code) => self.refused(code),
                    };
                    self.enter(index, Item::Done(outcome));
                }
                self.end();
            }
            (stage @ Stage::Start(_), Reply::Failed(code @ ErrorCode::OperationTooOld)) => {
                self.tell(Request::Revoke { operation }, out);
                self.fail(&stage, PutOutcome::Failed(code), out);
            }
            (stage, Reply::Failed(code)) if retries(code) && self.attempts.plan(now) => {
                self.stage = stage;
            }
            (stage @ Stage::End(_), Reply::Failed(code)) => {
                self.fail(&stage, self.refused(code), out);
            }
            (stage, Reply::Failed(code)) => self.fail(&stage, PutOutcome::Failed(code), out),
            (stage, _) => {
                if matches!(stage, Stage::Start(_)) {
                    self.tell(Request::Revoke { operation }, out);
                }
                self.fail(&stage, PutOutcome::Failed(ErrorCode::InternalError), out);
            }
        }
    }

    /// The write of one item to every extent has ended, with the checksum of the caller's bytes or a failure. From now
    /// on no I/O of it touches the caller's buffer. Called exactly once for each [`Action::Write`], cancelled or not.
    pub fn on_written(
        &mut self,
        now: Instant,
        index: usize,
        result: Result<Checksum, WriteFailure>,
        out: &mut Vec<Action>,
    ) {
        let item = match (self.items[index], result) {
            (Item::Cancelling(version, code), _) => Item::Spoilt(version, PutOutcome::Failed(code)),
            (Item::Writing(version), Ok(checksum)) => Item::Written(version, checksum),
            (Item::Writing(version), Err(failure)) => {
                let code = match failure {
                    WriteFailure::Stale => ErrorCode::InvalidWrite,
                    WriteFailure::Transfer => ErrorCode::TransferFail,
                    WriteFailure::Cancelled => ErrorCode::Cancelled,
                };
                Item::Spoilt(version, PutOutcome::Failed(code))
            }
            _ => return,
        };
        self.enter(index, item);
        self.publish_when_written(now, out);
    }

    /// The link to the master broke. Without an answer, the operation is repeated if it may be.
    pub fn on_link_lost(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.attempts.unanswered().is_some() && !self.attempts.plan(now) {
            self.give_up(ErrorCode::RpcFail, out);
        }
    }

    /// Time has passed. At the deadline writes under way are cancelled: the flow has its outcomes when all have ended.
    pub fn on_deadline(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.attempts.over(now) {
            return self.give_up(ErrorCode::DeadlinePassed, out);
        }
        let Some(Attempt::Repeat(operation) | Attempt::Another(operation)) =
            self.attempts.take_due(now)
        else {
            return;
        };
        let request = match &self.stage {
            Stage::Start(_) => Request::PutStart(self.start.clone()),
            Stage::End(written) => self.end_request(written),
            Stage::Write | Stage::Over => return,
        };
        out.push(Action::Ask { operation, request });
    }

    /// The caller gives up. Writes under way are cancelled: the flow has its outcomes when all have ended.
    pub fn cancel(&mut self, out: &mut Vec<Action>) {
        self.give_up(ErrorCode::Cancelled, out);
    }

    /// When [`PutFlow::on_deadline`] wants to run; `None` when the put has ended or is being cancelled.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.attempts.next_deadline()
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

    fn publish_when_written(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.unwritten > 0 {
            return;
        }
        self.revoke_spoilt(out);
        let written: Vec<usize> = (0..self.items.len())
            .filter(|index| matches!(self.items[*index], Item::Written(..)))
            .collect();
        if written.is_empty() {
            return self.end();
        }
        let operation = self.attempts.begin(now);
        let request = self.end_request(&written);
        out.push(Action::Ask { operation, request });
        self.stage = Stage::End(written);
    }

    fn end_request(&self, indices: &[usize]) -> Request {
        let puts = indices.iter().filter_map(|index| match self.items[*index] {
            Item::Written(version, checksum) => Some(PutDone {
                key: self.start.entries[*index].key.clone(),
                version,
                checksum,
            }),
            _ => None,
        });
        Request::PutEnd(PutEnd {
            tenant: self.start.tenant.clone(),
            puts: puts.collect(),
            hosts: self.hosts(),
        })
    }

    /// Hosts that have to hold each of the values.
    fn hosts(&self) -> Option<u32> {
        let config = &self.start.config;
        (config.durability == Durability::Replicated).then_some(config.replicas)
    }

    fn revoke_spoilt(&mut self, out: &mut Vec<Action>) {
        let mut puts = Vec::new();
        for (item, entry) in self.items.iter_mut().zip(&self.start.entries) {
            if let Item::Spoilt(version, outcome) = *item {
                puts.push((entry.key.clone(), version));
                *item = Item::Done(outcome);
            }
        }
        if !puts.is_empty() {
            let tenant = self.start.tenant.clone();
            self.tell(Request::PutRevoke { tenant, puts }, out);
        }
    }

    /// Ends every item: at once, or when its bytes have stopped moving. The outcome of what was written and may be
    /// published is unknown; everything else is not stored. All grants are given back, also what an unanswered
    /// operation was or will be granted.
    fn give_up(&mut self, code: ErrorCode, out: &mut Vec<Action>) {
        if self.stage == Stage::Over {
            return;
        }
        let unanswered = self.attempts.unanswered();
        self.attempts.stop();
        if let (Stage::Start(_), Some(operation)) = (&self.stage, unanswered)
            && !planted(Planted::LostGrantNotRevoked)
        {
            self.tell(Request::Revoke { operation }, out);
        }
        let written = match (&self.stage, unanswered) {
            (Stage::End(_), Some(_)) => PutOutcome::Unknown,
            _ => PutOutcome::Failed(code),
        };
        for index in 0..self.items.len() {
            let item = match self.items[index] {
                Item::Asking => Item::Done(PutOutcome::Failed(code)),
                Item::Writing(version) => {
                    out.push(Action::Cancel { index });
                    Item::Cancelling(version, code)
                }
                Item::Written(_, _) if planted(Planted::UnansweredEndNotRevoked) => {
                    Item::Done(written)
                }
                Item::Written(version, _) => Item::Spoilt(version, written),
                other => other,
            };
            self.enter(index, item);
        }
        self.stage = Stage::Write;
        if self.unwritten == 0 {
            self.revoke_spoilt(out);
            self.end();
        }
    }

    /// The outcome of a put whose end was answered with this code.
    fn refused(&self, code: ErrorCode) -> PutOutcome {
        if self.attempts.may_have_been_executed(code) {
            PutOutcome::Unknown
        } else {
            PutOutcome::Failed(code)
        }
    }

    /// The master refused the request of this stage as a whole.
    fn fail(&mut self, stage: &Stage, outcome: PutOutcome, out: &mut Vec<Action>) {
        let (Stage::Start(asked) | Stage::End(asked)) = stage else {
            return;
        };
        for index in asked {
            let item = match self.items[*index] {
                Item::Written(version, _) => Item::Spoilt(version, outcome),
                _ => Item::Done(outcome),
            };
            self.enter(*index, item);
        }
        self.revoke_spoilt(out);
        self.end();
    }

    fn end(&mut self) {
        self.attempts.stop();
        self.stage = Stage::Over;
    }

    fn tell(&self, request: Request, out: &mut Vec<Action>) {
        let operation = self.attempts.number();
        out.push(Action::Tell { operation, request });
    }

    /// The only place where an item that awaits its bytes changes, so that the count, which every write of a batch
    /// needs, stays right.
    fn enter(&mut self, index: usize, item: Item) {
        let unwritten = |item: &Item| {
            usize::from(matches!(
                item,
                Item::Asking | Item::Writing(_) | Item::Cancelling(..)
            ))
        };
        self.unwritten = self.unwritten + unwritten(&item) - unwritten(&self.items[index]);
        self.items[index] = item;
    }
}

#[cfg(test)]
#[path = "put_tests.rs"]
mod tests;
