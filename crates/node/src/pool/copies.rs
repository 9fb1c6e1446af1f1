//! Copies that a master has nodes make: values that go from one node to another, of which no byte passes the master.

use std::sync::Weak;
use std::time::Duration;

use slackwater_mq::{Answer, Mq, RequestError, RequestOptions};
use slackwater_transfer::{Extent, Rights};
use slackwater_wire::data::Capability;
use slackwater_wire::{
    BytesCopied, ClientId, CopyBytes, CopyTask, ErrorCode, NodeId, ReadRecord, RecordStaged,
    Release, ReplicaAt, StageRecord, StagedRecord, TicketId, body,
};
use slackwater_zmtp::PublicKey;

use super::master::MasterShell;

/// The client under whose name records are staged for nodes.
const NODES: ClientId = ClientId(2);
/// How long a node may take to bring a value.
const COPY_TIME: Duration = Duration::from_secs(50);

impl MasterShell {
    /// Has nodes bring values. How each of them goes is told to the master by its steward.
    pub(super) fn begin_copies(&self, copies: Vec<(NodeId, CopyTask)>) {
        for (node, task) in copies {
            let ticket = task.ticket;
            if let Err(code) = self.begin_copy(node, task) {
                self.copied(ticket, Err(code));
            }
        }
    }

    /// A copy has ended. The master decides what follows on a thread of its own: here it may be the one that began it.
    pub(super) fn copied(&self, ticket: TicketId, result: Result<(), ErrorCode>) {
        self.copied_now().push((ticket, result));
        self.bell.notify_all();
    }

    fn begin_copy(&self, node: NodeId, task: CopyTask) -> Result<(), ErrorCode> {
        let reader = self.members.contact_of(node);
        let reader = reader.ok_or(ErrorCode::UnavailableInCurrentStatus)?;
        let holder = reader.public_key.map(PublicKey::from_bytes);
        match task.source {
            ReplicaAt::Memory(extent) => {
                let minter = self.outgoing.minters.find(extent.segment);
                let minter = minter.ok_or(ErrorCode::ReplicaIsGone)?;
                let named = Extent {
                    offset: extent.offset,
                    bytes: task.bytes,
                    generation: extent.generation,
                };
                let capability = minter.mint(named, Rights::READ, COPY_TIME, holder);
                self.bring(node, task, capability, extent.offset, None)
            }
            ReplicaAt::Disk { .. } => self.stage_for(node, task, holder),
        }
    }

    /// Has the node that has the record bring it into its memory first.
    fn stage_for(
        &self,
        node: NodeId,
        task: CopyTask,
        holder: Option<PublicKey>,
    ) -> Result<(), ErrorCode> {
        let (link, mq) = self.way_to(task.from)?;
        let record = ReadRecord {
            epoch: self.outgoing.epoch,
            client: NODES,
            entry: task.entry.clone(),
            bytes: task.bytes,
            checksum: task.checksum,
            trace: None,
        };
        let stage = StageRecord {
            record,
            holder: holder.map(|key| *key.as_bytes()),
            lease: COPY_TIME,
        };
        let body = body::encode(&stage).map_err(|_| ErrorCode::InvalidParams)?;
        let this = Weak::clone(&self.this);
        let heard = move |answer: Result<Answer, RequestError>| {
            let Some(shell) = this.upgrade() else { return };
            let ticket = task.ticket;
            let staged = decoded::<RecordStaged>(answer).and_then(|staged| staged.result);
            let begun = staged.and_then(|staged| {
                let StagedRecord {
                    capability, offset, ..
                } = staged;
                shell.bring(node, task, capability, offset, Some(staged))
            });
            if let Err(code) = begun {
                shell.copied(ticket, Err(code));
            }
        };
        mq.request(link, "bytes.stage", [body], &options(), heard);
        Ok(())
    }

    /// Has the target bring bytes for which it has the right.
    fn bring(
        &self,
        node: NodeId,
        task: CopyTask,
        capability: Capability,
        offset: u64,
        staged: Option<StagedRecord>,
    ) -> Result<(), ErrorCode> {
        let (link, mq) = self.way_to(node)?;
        let contact = self.members.contact_of(task.from);
        let copy = CopyBytes {
            epoch: self.outgoing.epoch,
            contact: contact.ok_or(ErrorCode::ReplicaIsGone)?,
            capability,
            offset,
            bytes: task.bytes,
            checksum: task.checksum,
            target: task.target,
        };
        let body = body::encode(&copy).map_err(|_| ErrorCode::InvalidParams)?;
        let (this, ticket, from) = (Weak::clone(&self.this), task.ticket, task.from);
        let heard = move |answer: Result<Answer, RequestError>| {
            let Some(shell) = this.upgrade() else { return };
            let copied = decoded::<BytesCopied>(answer).and_then(|copied| copied.result);
            if let Some(staged) = &staged {
                shell.give_back(from, staged.generation, copied.is_ok());
            }
            shell.copied(ticket, copied);
        };
        mq.request(link, "bytes.copy", [body], &options(), heard);
        Ok(())
    }

    /// The end of its lease would give it back too.
    fn give_back(&self, node: NodeId, generation: u64, fetched: bool) {
        let release = Release {
            client: NODES,
            generation,
            node,
            fetched,
        };
        if let (Ok((link, mq)), Ok(body)) = (self.way_to(node), body::encode(&release)) {
            mq.send(link, "node.release", [body]);
        }
    }

    fn way_to(&self, node: NodeId) -> Result<(slackwater_mq::ConnectionId, Mq), ErrorCode> {
        let link = self.members.link_of(node);
        let link = link.ok_or(ErrorCode::UnavailableInCurrentStatus)?;
        Ok((link, self.members.mq().ok_or(ErrorCode::ShuttingDown)?))
    }
}

fn options() -> RequestOptions {
    RequestOptions {
        timeout: Some(COPY_TIME),
        inline: true,
        ..RequestOptions::default()
    }
}

fn decoded<M: body::Message>(answer: Result<Answer, RequestError>) -> Result<M, ErrorCode> {
    let answer = answer.map_err(|error| match error {
        RequestError::Timeout => ErrorCode::RpcTimeout,
        _ => ErrorCode::UnavailableInCurrentStatus,
    })?;
    body::decode(answer.part(0).unwrap_or_default()).map_err(|_| ErrorCode::DeserializeFail)
}
