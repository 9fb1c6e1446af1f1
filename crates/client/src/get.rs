use std::collections::VecDeque;
use std::time::Duration;

use slackwater_base::{Checksum, Instant, Planted, planted};
use slackwater_wire::{
    ErrorCode, Get, GetEnd, GuardId, Hold, Lookup, Object, OperationId, ReplicaAt, Reply, Request,
};

use crate::call::retries;
use crate::pick::{Pick, order};
use crate::retry::{Attempt, Attempts};
use crate::{Action, FlowOptions};

/// One batch read: looks up the objects, reads each from its best replica, checks what arrived, and tries the next
/// replica or looks up again where that can help.
pub struct GetFlow {
    get: Get,
    /// Nothing was asked: what was known before is read first.
    from_known: bool,
    items: Vec<Item>,
    /// Items of the operation that is not answered yet, in the order of the request.
    asked: Vec<usize>,
    attempts: Attempts,
    guards: Vec<GuardId>,
    /// Items without an outcome.
    unfinished: usize,
    /// Items whose bytes may be moving to the caller's buffer.
    moving: usize,
    pick: Box<dyn Pick>,
}

/// How one item of a read ended.
#[derive(Clone, Debug, PartialEq)]
pub enum GetOutcome {
    /// Its bytes are in the caller's buffer, verified.
    Hit {
        /// Length of the object in bytes.
        bytes: u64,
        /// Where it was read from.
        from: ReplicaAt,
    },
    /// There is no such object, or no replica of it could be read.
    Miss,
    /// It could not be read for this reason.
    Failed(ErrorCode),
}

/// What an earlier look-up said of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// The object.
    pub object: Object,
    /// Until when it may be read so.
    pub valid_until: Instant,
}

/// Why the read of a replica failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFailure {
    /// The caller's buffer is shorter than the object.
    BufferTooSmall,
    /// The replica is gone: its generation is dead or its record was dropped.
    Stale,
    /// The bytes are not those that were put.
    Corrupt,
    /// The device or the link failed.
    Transfer,
    /// The read was cancelled.
    Cancelled,
}

struct Item {
    state: State,
    /// The last failure of a replica or of a look-up: the outcome when no attempt is left.
    failure: Option<ErrorCode>,
}

enum State {
    Asking,
    Reading {
        object: Object,
        from: ReplicaAt,
        rest: VecDeque<ReplicaAt>,
        valid_until: Instant,
    },
    /// The flow has ended the read for this reason, but its bytes may still be moving.
    Cancelling(ErrorCode),
    Done(GetOutcome),
}

impl State {
    fn is_open(&self) -> bool {
        !matches!(self, State::Done(_))
    }

    fn is_moving(&self) -> bool {
        matches!(self, State::Reading { .. } | State::Cancelling(_))
    }
}

impl GetFlow {
    /// Begins the read.
    pub fn start(
        now: Instant,
        get: Get,
        options: FlowOptions,
        pick: Box<dyn Pick>,
        out: &mut Vec<Action>,
    ) -> Self {
        let mut flow = Self::new(get, options, pick);
        flow.asked = (0..flow.items.len()).collect();
        let operation = flow.attempts.begin(now);
        let request = Request::Get(flow.get.clone());
        out.push(Action::Ask { operation, request });
        flow
    }

    /// Begins a read, under leases, of objects that are all known, in the order of the keys. What cannot be read as it is
    /// known is looked up.
    pub fn start_known(
        now: Instant,
        get: Get,
        known: Vec<Known>,
        options: FlowOptions,
        pick: Box<dyn Pick>,
        out: &mut Vec<Action>,
    ) -> Self {
        debug_assert_eq!((known.len(), get.hold), (get.keys.len(), Hold::Lease));
        let mut flow = Self::new(get, options, pick);
        flow.from_known = true;
        for (index, known) in known.into_iter().enumerate() {
            let Known {
                object,
                valid_until,
            } = known;
            let rest = order(&*flow.pick, &object.replicas).into();
            let reading = Reading {
                object,
                rest,
                valid_until,
            };
            flow.read_next(now, index, reading, out);
        }
        flow.plan_next(now, out);
        flow
    }

    fn new(get: Get, options: FlowOptions, pick: Box<dyn Pick>) -> Self {
        let items: Vec<Item> = get
            .keys
            .iter()
            .map(|_| Item {
                state: State::Asking,
                failure: None,
            })
            .collect();
        let unfinished = items.len();
        Self {
            get,
            from_known: false,
            items,
            asked: Vec::new(),
            attempts: Attempts::new(options),
            guards: Vec::new(),
            unfinished,
            moving: 0,
            pick,
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
        let asked = std::mem::take(&mut self.asked);
        match reply {
            Reply::Get(lookups) if lookups.len() == asked.len() => {
                for (index, lookup) in asked.into_iter().zip(lookups) {
                    self.on_lookup(now, index, lookup, out);
                }
                self.plan_next(now, out);
            }
            Reply::Failed(code) => {
                // An answer that granted something may have been lost.
                if code == ErrorCode::OperationTooOld {
                    self.revoke(operation, out);
                }
                self.ask_again_or(now, asked, code, out);
            }
            _ => {
                self.revoke(operation, out);
                self.ask_again_or(now, asked, ErrorCode::InternalError, out);
            }
        }
        self.end_guards(out);
    }

    /// The link to the master broke. Without an answer, the operation is repeated if it may be.
    pub fn on_link_lost(&mut self, now: Instant, out: &mut Vec<Action>) {
        let Some(operation) = self.attempts.unanswered() else {
            return;
        };
        if self.attempts.plan(now) {
            return;
        }
        self.attempts.answered(operation);
        self.revoke(operation, out);
        let asked = std::mem::take(&mut self.asked);
        self.ask_again_or(now, asked, ErrorCode::RpcFail, out);
        self.end_guards(out);
    }

    /// A read ended, with the checksum of what arrived or a failure. From now on no I/O of it touches the caller's
    /// buffer. Called exactly once for each [`Action::Read`], cancelled or not.
    pub fn on_read(
        &mut self,
        now: Instant,
        index: usize,
        result: Result<Checksum, ReadFailure>,
        out: &mut Vec<Action>,
    ) {
        if let State::Cancelling(code) = self.items[index].state {
            self.finish(index, GetOutcome::Failed(code));
            return self.end_guards(out);
        }
        let State::Reading {
            object,
            from,
            valid_until,
            ..
        } = &self.items[index].state
        else {
            return;
        };
        let (from, expired) = (*from, now > *valid_until);
        match result {
            Ok(checksum) if checksum == object.checksum && expired => {
                self.ask_again_or(now, vec![index], ErrorCode::LeaseExpired, out);
            }
            Ok(checksum)
                if checksum == object.checksum || planted(Planted::ReadWithoutChecksum) =>
            {
                let bytes = object.bytes;
                self.finish(index, GetOutcome::Hit { bytes, from });
            }
            Ok(_) | Err(ReadFailure::Corrupt) => {
                let (tenant, key) = (self.get.tenant.clone(), self.get.keys[index].clone());
                // After its lease a reader may have read bytes of another object, which prove nothing about the
                // replica.
                if !expired {
                    let version = object.version;
                    let request = Request::Suspect {
                        tenant,
                        key,
                        version,
                        at: from,
                    };
                    self.tell(request, out);
                }
                self.next_replica(now, index, ErrorCode::ChecksumMismatch, out);
            }
            Err(ReadFailure::BufferTooSmall) => {
                self.finish(index, GetOutcome::Failed(ErrorCode::InvalidParams))
            }
            Err(ReadFailure::Stale) => self.next_replica(now, index, ErrorCode::ReplicaIsGone, out),
            Err(ReadFailure::Transfer | ReadFailure::Cancelled) => {
                self.next_replica(now, index, ErrorCode::TransferFail, out)
            }
        }
        self.plan_next(now, out);
        self.end_guards(out);
    }

    /// Takes over the guard under which an item is being read, before its read is reported: its reader keeps the replica
    /// in place and ends the guard itself. `None` unless a read under a guard is under way.
    pub fn take_guard(&mut self, index: usize) -> Option<GuardId> {
        let State::Reading { object, .. } = &self.items[index].state else {
            return None;
        };
        let guard = object.guard?;
        let at = self.guards.iter().position(|held| *held == guard)?;
        Some(self.guards.swap_remove(at))
    }

    /// Time has passed. At the deadline reads under way are cancelled: the flow has its outcomes when all have ended.
    pub fn on_deadline(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.attempts.over(now) {
            return self.give_up(ErrorCode::DeadlinePassed, out);
        }
        match self.attempts.take_due(now) {
            Some(Attempt::Repeat(operation)) => self.ask(operation, out),
            Some(Attempt::Another(operation)) => {
                self.asked = self.unanswered();
                self.ask(operation, out);
            }
            None => {}
        }
    }

    /// The caller gives up. Reads under way are cancelled: the flow has its outcomes when all have ended.
    pub fn cancel(&mut self, out: &mut Vec<Action>) {
        self.give_up(ErrorCode::Cancelled, out);
    }

    /// When [`GetFlow::on_deadline`] wants to run; `None` when the read has ended or is being cancelled.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.attempts
            .next_deadline()
            .filter(|_| self.unfinished > 0)
    }

    /// One outcome a key, in the order of the request, once all are known.
    #[must_use]
    pub fn outcomes(&self) -> Option<Vec<GetOutcome>> {
        self.items
            .iter()
            .map(|item| match &item.state {
                State::Done(outcome) => Some(outcome.clone()),
                _ => None,
            })
            .collect()
    }

    fn on_lookup(&mut self, now: Instant, index: usize, lookup: Lookup, out: &mut Vec<Action>) {
        match lookup {
            Lookup::Found(object) => {
                self.guards.extend(object.guard);
                let valid_until = match self.get.hold {
                    Hold::Guard => Instant::NEVER,
                    // The master may have counted the lease from any of the repetitions, so the first one is used.
                    Hold::Lease => self.attempts.first_asked() + usable(object.lease),
                };
                let rest = order(&*self.pick, &object.replicas).into();
                self.read_next(
                    now,
                    index,
                    Reading {
                        object,
                        rest,
                        valid_until,
                    },
                    out,
                );
            }
            Lookup::Missing => self.finish(index, GetOutcome::Miss),
            Lookup::NotReady => self.set_aside(index, ErrorCode::ReplicaIsNotReady),
            Lookup::Failed(code) if retries(code) => self.set_aside(index, code),
            Lookup::Failed(code) => self.finish(index, GetOutcome::Failed(code)),
        }
    }

    fn read_next(
        &mut self,
        now: Instant,
        index: usize,
        mut reading: Reading,
        out: &mut Vec<Action>,
    ) {
        let Some(from) = reading.rest.pop_front() else {
            let code = self.items[index]
                .failure
                .unwrap_or(ErrorCode::InvalidReplica);
            return self.ask_again_or(now, vec![index], code, out);
        };
        let object = &reading.object;
        out.push(Action::Read {
            index,
            key: self.get.keys[index].clone(),
            version: object.version,
            bytes: object.bytes,
            checksum: object.checksum,
            from,
            is_last: reading.rest.is_empty(),
        });
        let Reading {
            object,
            rest,
            valid_until,
        } = reading;
        self.enter(
            index,
            State::Reading {
                object,
                from,
                rest,
                valid_until,
            },
        );
    }

    fn next_replica(
        &mut self,
        now: Instant,
        index: usize,
        failure: ErrorCode,
        out: &mut Vec<Action>,
    ) {
        self.items[index].failure = Some(failure);
        let state = self.enter(index, State::Asking);
        if let State::Reading {
            object,
            rest,
            valid_until,
            ..
        } = state
        {
            self.read_next(
                now,
                index,
                Reading {
                    object,
                    rest,
                    valid_until,
                },
                out,
            );
        }
    }

    /// Keeps an item for the next look-up.
    fn set_aside(&mut self, index: usize, failure: ErrorCode) {
        self.enter(index, State::Asking);
        self.items[index].failure = Some(failure);
    }

    fn ask_again_or(
        &mut self,
        now: Instant,
        indices: Vec<usize>,
        failure: ErrorCode,
        out: &mut Vec<Action>,
    ) {
        for index in indices {
            if matches!(self.items[index].state, State::Done(_)) {
                continue;
            }
            if retries(failure) || failure.class() == slackwater_wire::Class::Gone {
                self.set_aside(index, failure);
            } else {
                self.finish(index, GetOutcome::Failed(failure));
            }
        }
        self.plan_next(now, out);
    }

    /// When nothing is under way but items still need an answer: plans another look-up, or ends them.
    fn plan_next(&mut self, now: Instant, out: &mut Vec<Action>) {
        let idle = self.asked.is_empty() && self.moving == 0;
        if !idle || self.unfinished == 0 {
            return;
        }
        if std::mem::take(&mut self.from_known) {
            // It is out of date, which no pause mends.
            let operation = self.attempts.begin(now);
            self.asked = self.unanswered();
            return self.ask(operation, out);
        }
        if self.attempts.plan(now) {
            return;
        }
        for index in 0..self.items.len() {
            if matches!(self.items[index].state, State::Asking) {
                let outcome = match self.items[index].failure {
                    // Every replica is gone or corrupt: for a cache that is a miss.
                    Some(
                        ErrorCode::ReplicaIsGone
                        | ErrorCode::ChecksumMismatch
                        | ErrorCode::InvalidReplica,
                    ) => GetOutcome::Miss,
                    Some(code) => GetOutcome::Failed(code),
                    None => GetOutcome::Failed(ErrorCode::InternalError),
                };
                self.finish(index, outcome);
            }
        }
    }

    fn unanswered(&self) -> Vec<usize> {
        let asking = |index: &usize| matches!(self.items[*index].state, State::Asking);
        (0..self.items.len()).filter(asking).collect()
    }

    /// Looks up the items in `asked`, which are the same as before for a repeated operation.
    fn ask(&mut self, operation: OperationId, out: &mut Vec<Action>) {
        let mut get = self.get.clone();
        get.keys = self
            .asked
            .iter()
            .map(|index| self.get.keys[*index].clone())
            .collect();
        if let Some(first) = self.asked.first().filter(|first| **first > 0) {
            get.chain.parent = Some(self.get.keys[first - 1].clone());
            get.chain.position = get.chain.position.saturating_add(*first as u32);
        }
        let request = Request::Get(get);
        out.push(Action::Ask { operation, request });
    }

    /// Ends every item: at once, or when its bytes have stopped moving.
    fn give_up(&mut self, code: ErrorCode, out: &mut Vec<Action>) {
        if let Some(operation) = self.attempts.unanswered() {
            self.revoke(operation, out);
        }
        self.attempts.stop();
        self.asked.clear();
        for index in 0..self.items.len() {
            match self.items[index].state {
                State::Reading { .. } if !planted(Planted::GuardsEndWhileReading) => {
                    out.push(Action::Cancel { index });
                    self.enter(index, State::Cancelling(code));
                }
                State::Asking | State::Reading { .. } => {
                    self.finish(index, GetOutcome::Failed(code));
                }
                State::Cancelling(_) | State::Done(_) => {}
            }
        }
        self.end_guards(out);
    }

    /// Gives back what the answer to an operation granted, or would grant. A lease ends by itself.
    fn revoke(&self, operation: OperationId, out: &mut Vec<Action>) {
        if self.get.hold == Hold::Guard && !planted(Planted::LostGrantNotRevoked) {
            self.tell(Request::Revoke { operation }, out);
        }
    }

    fn tell(&self, request: Request, out: &mut Vec<Action>) {
        let operation = self.attempts.number();
        out.push(Action::Tell { operation, request });
    }

    fn finish(&mut self, index: usize, outcome: GetOutcome) {
        self.enter(index, State::Done(outcome));
    }

    /// The only place where an item changes its state, so that the counts, which every read of a batch needs, stay
    /// right.
    fn enter(&mut self, index: usize, state: State) -> State {
        let left = std::mem::replace(&mut self.items[index].state, state);
        let entered = &self.items[index].state;
        self.unfinished =
            self.unfinished + usize::from(entered.is_open()) - usize::from(left.is_open());
        self.moving =
            self.moving + usize::from(entered.is_moving()) - usize::from(left.is_moving());
        left
    }

    /// Gives all guards back, once no read of this flow can still touch a replica.
    fn end_guards(&mut self, out: &mut Vec<Action>) {
        if self.moving == 0 && !self.guards.is_empty() {
            let guards = std::mem::take(&mut self.guards);
            self.tell(Request::GetEnd(GetEnd { guards }), out);
        }
    }
}

struct Reading {
    object: Object,
    rest: VecDeque<ReplicaAt>,
    valid_until: Instant,
}

/// The part of a lease that its holder may use, from its first request: with ±5 % drift of both clocks, 9.5 % is the
/// smallest safe margin.
#[must_use]
pub fn usable(lease: Duration) -> Duration {
    lease.saturating_sub((lease / 10).max(Duration::from_millis(100)))
}

#[cfg(test)]
#[path = "get_tests.rs"]
mod tests;
