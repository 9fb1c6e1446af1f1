//! The ends of the operations of clients, and their checks.

use std::time::Duration;

use slackwater_client::{Answer, GetOutcome, PutOutcome};
use slackwater_wire::{ReplicaAt, Reply};

use crate::check::{Checked, Invariant, Violation};
use crate::history::Read;
use crate::net::Process;

use super::World;
use super::client::{Flow, Running};

impl World {
    pub(super) fn finish_if_over(&mut self, index: u32) -> Checked {
        let Some(running) = self.clients[index as usize].running.take() else {
            return Ok(());
        };
        let over = match &running.flow {
            Flow::Get(flow) => flow
                .outcomes()
                .map(|outcomes| self.got(index, &running, &outcomes)),
            Flow::Put(flow) => flow
                .outcomes()
                .map(|outcomes| Ok(self.put(index, &running, &outcomes))),
            Flow::Call(flow) => flow.answer().map(|answer| Ok(self.called(index, answer))),
        };
        let Some(checked) = over else {
            self.clients[index as usize].running = Some(running);
            return Ok(());
        };
        let success = checked?;
        self.check_deadline(index, &running)?;
        if !running.transfers.is_empty() {
            let what = format!(
                "an operation of client{index} ended while {:?} move bytes of its caller's buffers",
                running.transfers.keys()
            );
            return Err(Violation::new(Invariant::Contract, what));
        }
        if let Some(probe) = running.probe {
            return self.go_on_probing(index, probe, success);
        }
        self.schedule_next(index);
        Ok(())
    }

    fn got(&mut self, index: u32, running: &Running, outcomes: &[GetOutcome]) -> Checked<bool> {
        let now = self.engine.now();
        for (item, outcome) in outcomes.iter().enumerate() {
            let name = &running.names[item];
            self.trace
                .note(now, format_args!("client{index} got {name:?} {outcome:?}"));
            let tally = &mut self.clients[index as usize].tally;
            match outcome {
                GetOutcome::Hit {
                    from,
                    bytes: length,
                } => {
                    tally.hits += 1;
                    tally.disk_hits += u64::from(matches!(from, ReplicaAt::Disk { .. }));
                    let arrived = running.reads.get(&item).cloned().unwrap_or_default();
                    let bytes = arrived.bytes.unwrap_or_default();
                    if bytes.len() as u64 != *length {
                        let what =
                            format!("a hit on {name:?} of {length} bytes has {}", bytes.len());
                        return Err(Violation::new(Invariant::NoWrongBytes, what));
                    }
                    let read = Read {
                        began: arrived.began,
                        ended: now,
                        name,
                        version: arrived.version,
                        bytes: &bytes,
                    };
                    self.history.judge(&read)?;
                }
                GetOutcome::Miss => tally.misses += 1,
                GetOutcome::Failed(_) => tally.failed += 1,
            }
        }
        Ok(outcomes
            .iter()
            .all(|outcome| matches!(outcome, GetOutcome::Hit { .. })))
    }

    fn put(&mut self, index: u32, running: &Running, outcomes: &[PutOutcome]) -> bool {
        let now = self.engine.now();
        for (name, outcome) in running.names.iter().zip(outcomes) {
            self.trace
                .note(now, format_args!("client{index} put {name:?} {outcome:?}"));
            let tally = &mut self.clients[index as usize].tally;
            match outcome {
                PutOutcome::Stored => tally.stored += 1,
                PutOutcome::Existed => {}
                PutOutcome::Failed(_) => tally.failed += 1,
                PutOutcome::Unknown => tally.unknown += 1,
            }
        }
        outcomes
            .iter()
            .all(|outcome| *outcome == PutOutcome::Stored)
    }

    fn called(&mut self, index: u32, answer: &Answer) -> bool {
        let now = self.engine.now();
        self.trace
            .note(now, format_args!("client{index} received {answer:?}"));
        let tally = &mut self.clients[index as usize].tally;
        match answer {
            Answer::Reply(Reply::Failed(_)) => tally.failed += 1,
            Answer::Reply(_) => {}
            Answer::Unknown => tally.unknown += 1,
        }
        *answer != Answer::Unknown
    }

    /// Checks that an operation ended at most [`TICK`] after its deadline, unless its process was
    /// paused.
    fn check_deadline(&mut self, index: u32, running: &Running) -> Checked {
        let local = self.local(Process::Client(index));
        let late = local.since(running.deadline);
        let stood = self
            .last_pause
            .get(&Process::Client(index))
            .is_some_and(|end| *end >= running.began);
        if late > TICK && !stood {
            let what = format!("an operation of client{index} ended {late:?} after its deadline");
            return Err(Violation::new(Invariant::Liveness, what));
        }
        Ok(())
    }
}

/// How late an operation may end.
const TICK: Duration = Duration::from_millis(5);
