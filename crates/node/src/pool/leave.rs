//! A node that leaves its pool: what only its memory holds goes to others first.

use std::sync::Weak;
use std::time::Duration;

use slackwater_mq::Call;
use slackwater_wait::{Park, Site, Waiting, now};
use slackwater_wire::{
    ErrorCode, JobSpec, JobState, JobWork, NodeId, NodeLeave, NodeLeft, Reply, Request, body,
};

use super::master::MasterShell;
use crate::StoreError;
use crate::host::Asked;
use crate::serve::handlers::Handlers;
use crate::store::slot::Later;

/// Values that leave a node at a time.
const CONCURRENCY: u32 = 32;

/// How much later than its job a node is answered.
const SLACK: Duration = Duration::from_secs(2);

pub(crate) static LEAVING: Site = Site::new("master, leaving node");

impl MasterShell {
    /// `nodes.leave`, which is answered once everything has gone, or when the time of the node is over.
    pub(super) fn leave(&self, handlers: &Handlers, call: &Call<'_>) {
        let Some(leave) = handlers.read::<NodeLeave>(call) else {
            return;
        };
        let begun = handlers
            .permitted(call, leave.epoch)
            .and_then(|permissions| {
                let own = self.members.life_at(call.from());
                let own = own.filter(|(node, _)| permissions.node.covers(*node));
                own.ok_or(ErrorCode::RoleNotPermitted)
            })
            .and_then(|own| Ok((own, self.begin_leave(own.0, &leave)?)));
        let Ok(deferred) = call.defer() else { return };
        let epoch = self.outgoing.epoch;
        let answer = move |result: Result<JobState, ErrorCode>| {
            let left = NodeLeft {
                epoch,
                result: result.map(Box::new),
            };
            deferred.reply([body::encode(&left).expect("the state of a job of one node is short")]);
        };
        let ((node, life), later) = match begun {
            Ok(begun) => begun,
            Err(code) => return answer(Err(code)),
        };
        tracing::info!(%node, "a node leaves");
        // The job ends by itself at its time.
        let until = now() + leave.time + SLACK;
        let this = Weak::clone(&self.this);
        // It sleeps until the job is over: an event loop and its workers must not.
        let waits = std::thread::Builder::new()
            .name("slack-leaving".to_owned())
            .spawn(move || {
                let waiting = Waiting::at(&LEAVING).by(&Park);
                let left = later.wait_until(until, waiting);
                let left = left.unwrap_or(Err(StoreError::Closed));
                if let Some(shell) = this.upgrade() {
                    shell.members.leaves(node, life);
                }
                let left = left.map_err(|error| error.code()).and_then(state);
                answer(left.map(|state| of_node(node, state)));
            });
        if let Err(error) = waits {
            tracing::error!(%error, "no thread waits for a node that leaves");
        }
    }

    fn begin_leave(&self, node: NodeId, leave: &NodeLeave) -> Result<Later<Reply>, ErrorCode> {
        let spec = JobSpec {
            work: JobWork::Drain {
                places: vec![node.to_string()],
                targets: Vec::new(),
                disks: false,
            },
            concurrency: CONCURRENCY,
            bytes_per_second: None,
            time: Some(leave.time),
        };
        let begun = self.with(|host, now| {
            host.begin(now, Request::StartJob(spec));
            let begun = match host.end() {
                Asked::Now(reply) => state(reply).map(|state| state.job),
                Asked::Later(_) => return Err(ErrorCode::InternalError),
            };
            // Where an operator drains it already, it leaves with that.
            let job = begun.or_else(|code| host.core.drain_of(node).ok_or(code))?;
            host.begin(now, Request::AwaitJob { job });
            Ok(match host.end() {
                Asked::Now(reply) => {
                    let (owed, later) = Later::new();
                    owed.complete(Ok(reply));
                    later
                }
                Asked::Later(later) => later,
            })
        });
        begun?
    }
}

/// What a node is told of the drain that it leaves with. One of an operator may name so many others that no message of this
/// kind has room for them.
fn of_node(node: NodeId, state: JobState) -> JobState {
    let disks = matches!(state.spec.work, JobWork::Drain { disks: true, .. });
    let work = JobWork::Drain {
        places: vec![node.to_string()],
        targets: Vec::new(),
        disks,
    };
    JobState {
        spec: JobSpec { work, ..state.spec },
        ..state
    }
}

fn state(reply: Reply) -> Result<JobState, ErrorCode> {
    match reply {
        Reply::Job(state) => Ok(*state),
        Reply::Failed(code) => Err(code),
        _ => Err(ErrorCode::InternalError),
    }
}

#[cfg(test)]
mod tests {
    use slackwater_wire::{Epoch, JobId, JobStatus, Key};

    use super::*;

    /// A node left with the drain of an operator that named a thousand nodes. The answer was too long for a message, and the
    /// master's thread ended by a panic; the node waited for an answer that never came.
    #[test]
    fn a_node_is_told_of_a_drain_with_many_long_names() {
        let key = Key::new(&[0xff; 1024]).unwrap();
        let state = JobState {
            job: JobId(7),
            spec: JobSpec {
                work: JobWork::Drain {
                    places: vec!["a".repeat(260); 1024],
                    targets: vec!["b".repeat(260); 1024],
                    disks: true,
                },
                concurrency: 3,
                bytes_per_second: Some(9),
                time: None,
            },
            status: JobStatus::Failed,
            age: Duration::from_secs(1),
            unchanged: Duration::ZERO,
            active: 0,
            done: 5,
            done_bytes: 6,
            failed: 8,
            left_bytes: 7,
            errors: vec![(key, ErrorCode::NoAvailableHandle); 8],
        };
        let told = of_node(NodeId(300), state.clone());
        let work = JobWork::Drain {
            places: vec!["300".to_owned()],
            targets: Vec::new(),
            disks: true,
        };
        let spec = JobSpec {
            work,
            ..state.spec.clone()
        };
        let result = Ok(Box::new(told.clone()));
        assert_eq!(told, JobState { spec, ..state });
        let left = NodeLeft {
            epoch: Epoch(1),
            result,
        };
        assert!(body::encode(&left).is_ok());
    }
}
