//! Checks of the master's outputs against its earlier outputs.

use slackwater_meta::{Input, Master, Output};
use slackwater_wire::{
    ClientId, ErrorCode, ExtentRef, Hold, Key, Lookup, NodeId, OperationId, Order, PutStarted,
    ReplicaState, Reply, Report, Request, Version,
};

use crate::check::{Checked, Invariant, Violation};
use crate::history::Name;
use crate::value::PutId;
use slackwater_base::Instant;

use super::World;

/// One operation of a client, as it was requested.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// When the operation that it is part of began.
    pub(crate) began: Instant,
    pub(crate) request: Request,
    /// The put that each key of the operation stands for.
    pub(crate) puts: Vec<(Name, PutId)>,
    /// The first answer, while no other may be given.
    pub(crate) answer: Option<Reply>,
}

/// What a node announces, and how much the master had evicted before it heard of that.
pub(super) struct Said {
    node: NodeId,
    report: Report,
    evicted: u64,
}

impl Said {
    pub(super) fn of(input: &Input, core: &Master) -> Option<Self> {
        match input {
            Input::Report { node, report }
                if matches!(report, Report::Announce { .. } | Report::Holds { .. }) =>
            {
                Some(Self {
                    node: *node,
                    report: report.clone(),
                    evicted: evicted(core),
                })
            }
            _ => None,
        }
    }
}

fn evicted(core: &Master) -> u64 {
    let metrics = core.metrics();
    metrics.evictions + metrics.disk_evictions
}

impl World {
    /// Records what the master is asked to remove, when it takes that in.
    pub(super) fn note_removals(&mut self, input: &Input) {
        let Input::Request {
            client,
            operation,
            request,
            ..
        } = input
        else {
            return;
        };
        match request {
            Request::Remove(remove) => {
                let now = self.engine.now();
                for key in &remove.keys {
                    let name = (remove.tenant.clone(), key.clone());
                    self.history.removing(&name, now);
                }
            }
            Request::RemoveMatching(_) | Request::RemoveAll(_) => {
                self.history.sweep_began((*client, *operation));
            }
            _ => {}
        }
    }

    /// Checks that a master refuses no copy of a living value which no master has ordered away, unless it has another one.
    pub(super) fn judge_refusals(&self, said: &Said, out: &[Output]) -> Checked {
        let Some(core) = &self.master.core else {
            return Ok(());
        };
        // What makes room at once was not refused. What a node has that was forgotten, since it had no SSD, counts as removed.
        if evicted(core) != said.evicted || self.master.journal.forgot {
            return Ok(());
        }
        let orders = out.iter().filter_map(|output| match output {
            Output::Order { node, order } => (*node == said.node).then_some(order),
            _ => None,
        });
        let orders: Vec<&Order> = orders.collect();
        let refused = self.refusals.refused(said.node, &said.report, &orders);
        let lost = refused.into_iter().find(|entry| {
            let name = (entry.tenant.clone(), entry.key.clone());
            self.history.is_alive(&name, entry.version) && !core.has_version(entry)
        });
        match lost {
            None => Ok(()),
            Some(entry) => {
                let what = format!(
                    "node{} announces {entry:?}, which was acknowledged and neither removed nor replaced, and the master refuses it",
                    said.node
                );
                Err(Violation::new(Invariant::Acknowledgement, what))
            }
        }
    }

    /// Checks one output of the master and records what it promises.
    pub(crate) fn judge_output(&mut self, output: &Output) -> Checked {
        match output {
            Output::Reply {
                client,
                operation,
                reply,
            } => {
                let now = self.engine.now();
                self.history.sweep_ended((*client, *operation), now);
                self.judge_reply(*client, *operation, reply)
            }
            Output::Order {
                order: Order::Staged { extent, .. },
                ..
            } => self.grant(*extent),
            Output::Order { node, order } => {
                self.refusals.ordered(*node, order);
                Ok(())
            }
            Output::AwaitTaken { .. } | Output::AnnounceFirst { .. } => Ok(()),
            Output::Copy { task, .. } => self.grant(task.target),
        }
    }

    /// Records a request of a client, the first or a repeated one.
    pub(crate) fn note_request(
        &mut self,
        client: ClientId,
        operation: OperationId,
        asked: Asked,
    ) -> Checked {
        let first = self
            .asked
            .entry((client, operation))
            .or_insert_with(|| asked.clone());
        if first.request == asked.request {
            return Ok(());
        }
        let what = format!(
            "operation {operation} of client {client} was {:?} and is now {:?}",
            first.request, asked.request
        );
        Err(Violation::new(Invariant::Contract, what))
    }

    /// The master has forgotten these answers: a repeated operation may be answered otherwise.
    pub(crate) fn void_answers(&mut self, forgotten: impl Fn(ClientId, &Request) -> bool) {
        for ((client, _), asked) in &mut self.asked {
            if forgotten(*client, &asked.request) {
                asked.answer = None;
            }
        }
    }

    fn judge_reply(&mut self, client: ClientId, id: OperationId, reply: &Reply) -> Checked {
        let Some(operation) = self.asked.get_mut(&(client, id)) else {
            return Ok(());
        };
        if let Some(first) = &operation.answer {
            let refused = Reply::Failed(ErrorCode::Cancelled);
            let too_old = Reply::Failed(ErrorCode::OperationTooOld);
            if id.may_repeat() && [first, &refused, &too_old].contains(&reply) {
                return Ok(());
            }
            let what = format!(
                "operation {id} of client {client} was answered {first:?} and now {reply:?}"
            );
            return Err(Violation::new(Invariant::Contract, what));
        }
        if !id.may_repeat() || has_one_answer(&operation.request) {
            operation.answer = Some(reply.clone());
        }
        let operation = operation.clone();
        match (&operation.request, reply) {
            (Request::PutStart(start), Reply::PutStart(started)) => {
                check_length(start.entries.len(), started.len(), reply)?;
                let names = start
                    .entries
                    .iter()
                    .map(|entry| (start.tenant.clone(), entry.key.clone()));
                for (name, started) in names.zip(started) {
                    self.judge_grant(&operation, &name, started)?;
                }
                Ok(())
            }
            (Request::PutEnd(end), Reply::Each(results)) => {
                check_length(end.puts.len(), results.len(), reply)?;
                for (put, result) in end.puts.iter().zip(results) {
                    let name = (end.tenant.clone(), put.key.clone());
                    self.judge_end(&name, put.version, end.hosts, *result)?;
                }
                Ok(())
            }
            (Request::PutRevoke { tenant, puts }, Reply::Each(results)) => {
                check_length(puts.len(), results.len(), reply)?;
                let now = self.engine.now();
                for ((key, version), result) in puts.iter().zip(results) {
                    if result.is_ok() {
                        self.history
                            .refused(&(tenant.clone(), key.clone()), *version, now);
                    }
                }
                Ok(())
            }
            (Request::Remove(remove), Reply::Each(results)) => {
                check_length(remove.keys.len(), results.len(), reply)?;
                let now = self.engine.now();
                for (key, result) in remove.keys.iter().zip(results) {
                    if result.is_ok() {
                        self.history.removed(
                            &(remove.tenant.clone(), key.clone()),
                            operation.began,
                            now,
                        );
                    }
                }
                Ok(())
            }
            (Request::Get(get), Reply::Get(lookups)) => {
                check_length(get.keys.len(), lookups.len(), reply)?;
                for (key, lookup) in get.keys.iter().zip(lookups) {
                    self.judge_lookup(&(get.tenant.clone(), key.clone()), lookup)?;
                }
                Ok(())
            }
            (Request::Exists(exists), Reply::Exists(truths)) => {
                check_length(exists.keys.len(), truths.len(), reply)?;
                for (key, truth) in exists.keys.iter().zip(truths) {
                    if *truth {
                        let key = Key::new(key).expect("a list of keys has keys");
                        self.history
                            .judge_presence(&(exists.tenant.clone(), key), self.engine.now())?;
                    }
                }
                Ok(())
            }
            (Request::Describe { tenant, key }, Reply::Describe(description)) => {
                let readable = description
                    .replicas
                    .iter()
                    .any(|(_, state, _)| *state == ReplicaState::Complete);
                if !readable {
                    return Ok(());
                }
                let name = (tenant.clone(), key.clone());
                self.history
                    .judge_age(&name, description.version, self.engine.now())
            }
            _ => Ok(()),
        }
    }

    fn judge_grant(&mut self, operation: &Asked, name: &Name, started: &PutStarted) -> Checked {
        let PutStarted::Granted { version, extents } = started else {
            return Ok(());
        };
        let Some((_, put)) = operation.puts.iter().find(|(of, _)| of == name) else {
            return Err(Violation::new(
                Invariant::Contract,
                format!("{name:?} was granted and not asked for"),
            ));
        };
        self.history
            .granted(name, *version, *put, self.master.life)?;
        for extent in extents {
            self.grant(*extent)?;
        }
        Ok(())
    }

    fn judge_end(
        &mut self,
        name: &Name,
        version: Version,
        hosts: Option<u32>,
        result: Result<(), ErrorCode>,
    ) -> Checked {
        let now = self.engine.now();
        // After an error the put may still have been published, when only its durability or
        // replicas could not be had.
        if result.is_ok() {
            self.history.published(name, version, now);
            if let Some(hosts) = hosts {
                self.promised.promise(name, version, hosts)?;
            }
        }
        Ok(())
    }

    fn judge_lookup(&mut self, name: &Name, lookup: &Lookup) -> Checked {
        let Lookup::Found(object) = lookup else {
            return Ok(());
        };
        self.history
            .judge_age(name, object.version, self.engine.now())
    }

    /// The master allocates an extent: its bytes must be free in the shadow of the node's memory.
    fn grant(&mut self, extent: ExtentRef) -> Checked {
        let owner = self.options.owner(extent.segment);
        self.nodes[owner as usize].memory.grant(extent)
    }
}

/// Whether the master answers a repeated operation with its first answer.
fn has_one_answer(request: &Request) -> bool {
    match request {
        Request::PutStart(_)
        | Request::PutEnd(_)
        | Request::Remove(_)
        | Request::RemoveMatching(_)
        | Request::RemoveAll(_) => true,
        Request::Get(get) => get.hold == Hold::Guard,
        _ => false,
    }
}

fn check_length(asked: usize, answered: usize, reply: &Reply) -> Checked {
    if asked == answered {
        return Ok(());
    }
    let what = format!("{asked} keys were asked for and {answered} answered: {reply:?}");
    Err(Violation::new(Invariant::Contract, what))
}
