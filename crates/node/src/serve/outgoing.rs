use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackwater_mq::{ConnectionId, Deferred};
use slackwater_transfer::{Capability, Extent};
use slackwater_wire::{Answered, ClientId, Epoch, ErrorCode, ExtentUse, OperationId, Reply, body};
use slackwater_zmtp::PublicKey;

use super::clients::Clients;
use super::memory::Transfers;
use super::minter::Minters;
use crate::store::remote::{Deliver, Outbound};

/// What leaves a master for clients: answers, with the capabilities for the extents that they name.
pub(crate) struct Outgoing {
    pub(crate) epoch: Epoch,
    pub(crate) minters: Minters,
    /// How long a granted extent may be written.
    write_time: Duration,
    clients: Mutex<Clients<ConnectionId, PublicKey, Deferred>>,
}

impl Outgoing {
    pub(crate) fn new(epoch: Epoch, write_time: Duration) -> Self {
        Self {
            epoch,
            minters: Minters::default(),
            write_time,
            clients: Mutex::new(Clients::new()),
        }
    }

    pub(crate) fn clients(&self) -> MutexGuard<'_, Clients<ConnectionId, PublicKey, Deferred>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers an operation, at every place that waits for it.
    pub(crate) fn answer(&self, client: ClientId, operation: OperationId, reply: Reply) {
        let (waiting, key) = self.clients().answer(client, operation);
        if waiting.is_empty() {
            return;
        }
        let body = self.body(reply, key);
        for deferred in waiting {
            deferred.reply([&body]);
        }
    }

    /// The bytes of an answer to the holder of a key.
    fn body(&self, reply: Reply, key: Option<PublicKey>) -> Vec<u8> {
        let uses = reply.extents();
        let capabilities = uses.iter().map(|named| self.permit(named, key)).collect();
        let epoch = self.epoch;
        let answered = Answered {
            epoch,
            reply,
            capabilities,
        };
        body::encode(&answered).unwrap_or_else(|error| {
            tracing::error!(%error, "an answer could not be sent");
            refused(epoch, ErrorCode::InternalError)
        })
    }

    fn permit(&self, named: &ExtentUse, key: Option<PublicKey>) -> Capability {
        let extent = Extent {
            offset: named.extent.offset,
            bytes: named.bytes,
            generation: named.extent.generation,
        };
        let time = named.lease.unwrap_or(self.write_time);
        match self.minters.find(named.extent.segment) {
            Some(minter) => minter.mint(extent, named.rights, time, key),
            // Its node has left since: a capability of no node is as good as one of a node that is gone.
            None => Capability::from_bytes(&[0; Capability::BYTES]),
        }
    }
}

/// The bytes of a refusal.
pub(crate) fn refused(epoch: Epoch, code: ErrorCode) -> Vec<u8> {
    let answered = Answered {
        epoch,
        reply: Reply::Failed(code),
        capabilities: Vec::new(),
    };
    body::encode(&answered).expect("a refusal is short")
}

/// Takes what leaves a store whose master is in this process.
pub(super) struct Leaving {
    pub(super) outgoing: std::sync::Arc<Outgoing>,
    pub(super) transfers: Transfers,
}

impl Deliver for Leaving {
    fn deliver(&self, outbound: Outbound) {
        self.transfers.release(&outbound.released);
        for (client, operation, reply) in outbound.replies {
            self.outgoing.answer(client, operation, reply);
        }
    }
}
