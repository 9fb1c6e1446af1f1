//! What a master does for the clients of its pool: it answers from its own books, and asks nodes where bytes are
//! concerned.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::vec::Drain;

use slackwater_meta::{Input, single_key};
use slackwater_mq::{ConnectionId, RequestOptions};
use slackwater_trace::within;
use slackwater_transfer::Segment as Contact;
use slackwater_wire::limits::BATCH_KEYS_MAX;
use slackwater_wire::{
    CheckWritten, ClientId, ErrorCode, NodeId, OperationId, PutEnd, ReadRecord, RecordStaged,
    Release, Reply, Request, SegmentKind, StageRecord, Traceparent, Written, body,
};
use slackwater_zmtp::PublicKey;

use super::checks::{Checks, outcome};
use super::master::MasterShell;
use super::owner_of;
use crate::serve::backend::{Backend, Staged};
use crate::store::remote::RemoteRequest;

/// How long a node may take to look at what was written.
const CHECK_TIME: Duration = Duration::from_secs(5);
/// How long a node may take to read a record.
const STAGE_TIME: Duration = Duration::from_secs(10);

impl MasterShell {
    /// Asks the nodes of a put whether they hold what was written, and has it published if they do.
    fn publish_checked(
        &self,
        remote: RemoteRequest,
        end: &PutEnd,
        written: &[Written],
    ) -> Result<(), ErrorCode> {
        let mut by_node: BTreeMap<NodeId, Vec<Written>> = BTreeMap::new();
        for one in written {
            by_node
                .entry(owner_of(one.extent.segment))
                .or_default()
                .push(*one);
        }
        let mut questions = Vec::new();
        for (node, written) in &by_node {
            let link = self.members.link_of(*node);
            let link = link.ok_or(ErrorCode::TransferFail)?;
            for part in written.chunks(BATCH_KEYS_MAX) {
                let check = CheckWritten {
                    epoch: self.outgoing.epoch,
                    written: part.to_vec(),
                };
                let body = body::encode(&check).map_err(|_| ErrorCode::InvalidParams)?;
                questions.push((link, body));
            }
        }
        let (this, end) = (Weak::clone(&self.this), end.clone());
        let checks = Checks::new(questions.len(), move |outcome| {
            if let Some(shell) = this.upgrade() {
                shell.publish(remote, &end, outcome);
            }
        });
        let options = RequestOptions {
            timeout: Some(CHECK_TIME),
            inline: true,
            ..RequestOptions::default()
        };
        let mq = self.members.mq().ok_or(ErrorCode::ShuttingDown)?;
        for (link, body) in questions {
            let checks = Arc::clone(&checks);
            let heard = move |answer| checks.answered(outcome(answer));
            mq.request(link, "bytes.check", [body], &options, heard);
        }
        Ok(())
    }

    /// Makes requests under one lock, and tells `refused` of each where the master is broken.
    fn ask_at_once(
        &self,
        requests: Drain<'_, (Traceparent, RemoteRequest)>,
        refused: &dyn Fn(ClientId, OperationId, ErrorCode),
    ) {
        let all = requests.as_slice().iter();
        let all: Vec<_> = all
            .map(|(parent, remote)| {
                let look_up = matches!(remote.request, Request::Get(_)).then_some(*parent);
                (remote.client, remote.operation, look_up)
            })
            .collect();
        let begun = Instant::now();
        let asked = self.with(|host, now| {
            let each = requests.as_slice().iter();
            host.core
                .read_ahead(each.map(|(_, remote)| &remote.request));
            for (_, remote) in requests {
                host.ask_for(now, remote);
            }
        });
        let took = begun.elapsed();
        for (client, operation, look_up) in all {
            if let Some(parent) = look_up {
                within(parent, || self.phases.look_up.add(took));
            }
            if let Err(code) = asked {
                refused(client, operation, code);
            }
        }
    }

    fn publish(&self, remote: RemoteRequest, end: &PutEnd, checked: Result<(), ErrorCode>) {
        let (client, operation) = (remote.client, remote.operation);
        let published = match checked {
            Ok(()) => self.with(|host, now| host.ask_for(now, remote)),
            Err(code) => {
                if code == ErrorCode::InvalidWrite {
                    let _ = self.with(|host, now| host.abandon(now, &remote, end));
                }
                Err(code)
            }
        };
        if let Err(code) = published {
            self.outgoing.answer(client, operation, Reply::Failed(code));
        }
    }
}

impl Backend for MasterShell {
    fn nodes(&self) -> (Vec<Contact>, u64) {
        let (contacts, largest) = self.members.contacts();
        // Without nodes nothing can be put, but a node may come at any moment.
        (contacts, largest.unwrap_or(u64::MAX))
    }

    fn tells_tenants_apart(&self) -> bool {
        self.tenants
    }

    fn reads_bytes(&self) -> bool {
        false
    }

    fn has_ssd(&self) -> bool {
        let segments = self.with(|host, _| host.core.segments());
        let is_disk = |segment: &slackwater_wire::SegmentState| segment.kind == SegmentKind::Disk;
        segments.is_ok_and(|segments| segments.iter().any(is_disk))
    }

    fn ask_for(&self, remote: RemoteRequest) -> Result<(), ErrorCode> {
        if let Request::PutEnd(end) = &remote.request {
            let written = self.with(|host, _| host.written(remote.client, end))?;
            if !written.is_empty() {
                let end = end.clone();
                return self.publish_checked(remote, &end, &written);
            }
        }
        self.with(|host, now| host.ask_for(now, remote))
    }

    fn ask_for_all(
        &self,
        requests: &mut Vec<(Traceparent, RemoteRequest)>,
        refused: &dyn Fn(ClientId, OperationId, ErrorCode),
    ) {
        // A lock for each that takes long, so that none waits for more than one of them, and one for those that do not.
        while !requests.is_empty() {
            let short = (requests.iter())
                .take_while(|(_, remote)| single_key(&remote.request).is_some())
                .count();
            let few = short.max(1);
            self.ask_at_once(requests.drain(..few), refused);
        }
    }

    fn lose_client(&self, client: ClientId) {
        // A broken master holds nothing for it.
        let _ = self.with(|host, now| host.lose_client(now, client));
    }

    fn lose_link(&self, link: ConnectionId) {
        if !self.members.is_link(link) {
            return;
        }
        let _ = self.with(|host, now| {
            let Some(node) = self.members.unlink(link) else {
                return;
            };
            if self.members.has_left(node) {
                tracing::info!(%node, "a node has left");
                self.forget(node);
                host.take(now, Input::NodeLost(node));
            } else {
                tracing::warn!(%node, "the link to a node is gone");
                host.take(now, Input::NodeAway(node));
            }
        });
    }

    fn stage(&self, key: Option<PublicKey>, record: ReadRecord, answer: Staged) {
        let nodes = self.with(|host, _| host.core.nodes_with_record(&record.entry));
        let nodes = match nodes {
            Ok(nodes) if nodes.is_empty() => return answer(Err(ErrorCode::ReplicaIsGone)),
            Ok(nodes) => nodes,
            Err(code) => return answer(Err(code)),
        };
        let Some(link) = nodes
            .into_iter()
            .find_map(|node| self.members.link_of(node))
        else {
            return answer(Err(ErrorCode::TransferFail));
        };
        // The node works for what this thread is within, which ends with the answer.
        let trace = slackwater_trace::current();
        let stage = StageRecord {
            record: ReadRecord { trace, ..record },
            holder: key.map(|key| *key.as_bytes()),
            lease: self.lease,
        };
        let Ok(body) = body::encode(&stage) else {
            return answer(Err(ErrorCode::InvalidParams));
        };
        let options = RequestOptions {
            timeout: Some(STAGE_TIME),
            inline: true,
            ..RequestOptions::default()
        };
        let heard = move |heard: Result<slackwater_mq::Answer, _>| {
            let staged = heard.map_err(|_| ErrorCode::TransferFail);
            let staged = staged.and_then(|heard| {
                let staged = body::decode::<RecordStaged>(heard.part(0).unwrap_or_default());
                staged.map_err(|_| ErrorCode::DeserializeFail)
            });
            answer(staged.and_then(|staged| staged.result));
        };
        if let Some(mq) = self.members.mq() {
            mq.request(link, "bytes.stage", [body], &options, heard);
        }
    }

    fn release(&self, release: &Release) {
        let (link, mq) = (self.members.link_of(release.node), self.members.mq());
        if let (Some(link), Some(mq), Ok(body)) = (link, mq, body::encode(release)) {
            mq.send(link, "node.release", [body]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use slackwater_wire::{Chain, Exists, Get, Hold, Key, OperationId, Permissions, Tenant};

    use super::*;
    use crate::Config;
    use crate::pool::{MasterOptions, MasterServer};

    /// Requests of one client: a look-up, a question whether the object is there, one that takes longer, and a look-up.
    fn requests() -> Vec<(Traceparent, RemoteRequest)> {
        let keys = || vec![Key::new(b"k").unwrap()];
        let look_up = || {
            Request::Get(Get {
                tenant: Tenant::DEFAULT,
                keys: keys(),
                chain: Chain::default(),
                hold: Hold::Lease,
                prefix_only: false,
            })
        };
        let exists = Request::Exists(Exists {
            tenant: Tenant::DEFAULT,
            keys: keys().into(),
        });
        let each = [look_up(), exists, Request::Quotas, look_up()];
        let each = each.into_iter().zip(1..);
        each.map(|(request, operation)| {
            let remote = RemoteRequest {
                client: ClientId(1 << 40),
                host: None,
                operation: OperationId(operation),
                permissions: Permissions::FULL,
                request,
            };
            (
                Traceparent(slackwater_wire::TraceContext::new(7, operation)),
                remote,
            )
        })
        .collect()
    }

    #[test]
    fn what_came_together_is_counted_one_by_one_and_each_is_refused_by_a_broken_master() {
        let options = MasterOptions {
            listen: ([127, 0, 0, 1], 0).into(),
            ..MasterOptions::default()
        };
        let master = MasterServer::start(&Config::default(), &options).unwrap();
        let shell = master.shell();
        let check = |expected: &[u64], look_ups| {
            let (mut requests, refused) = (requests(), RefCell::new(Vec::new()));
            shell.ask_for_all(&mut requests, &|client, operation, code| {
                assert_eq!(
                    (client, code),
                    (ClientId(1 << 40), ErrorCode::InternalError)
                );
                refused.borrow_mut().push(operation.0);
            });
            assert_eq!(
                (&*refused.borrow(), requests.len()),
                (&expected.to_vec(), 0)
            );
            assert_eq!(shell.phases.times().look_up.count, look_ups);
        };
        check(&[], 2);
        let asked = shell.with(|host, _| {
            let metrics = host.core.metrics();
            (metrics.get_misses, metrics.probes)
        });
        assert_eq!(asked, Ok((2, 1)));
        let panics: Result<(), _> = shell.with(|_, _| panic!("on purpose"));
        assert_eq!(panics, Err(ErrorCode::InternalError));
        check(&[1, 2, 3, 4], 4);
    }
}
