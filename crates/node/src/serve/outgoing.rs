use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackwater_mq::{ConnectionId, Deferred};
use slackwater_transfer::{
    Capability, CapabilityKey, Engine, Extent, Grant, RegionId, Rights, holder_of,
};
use slackwater_wait::now;
use slackwater_wire::{
    Answered, ClientId, Epoch, ErrorCode, ExtentUse, Incarnation, OperationId, Reply, body,
};
use slackwater_zmtp::PublicKey;

use super::clients::Clients;
use crate::store::remote::{Deliver, Outbound};

/// What leaves a served store: answers, with the capabilities for the extents that they name, and the ends of transfers.
pub(super) struct Outgoing {
    pub(super) epoch: Epoch,
    pub(super) engine: Engine,
    pub(super) region: RegionId,
    /// How long a granted extent may be written.
    pub(super) write_time: Duration,
    key: CapabilityKey,
    nonce: AtomicU64,
    clients: Mutex<Clients<ConnectionId, PublicKey, Deferred>>,
}

impl Outgoing {
    pub(super) fn new(
        epoch: Epoch,
        engine: Engine,
        region: RegionId,
        write_time: Duration,
    ) -> Self {
        let key = CapabilityKey::new(&engine.home().capability_secret());
        Self {
            epoch,
            engine,
            region,
            write_time,
            key,
            nonce: AtomicU64::new(1),
            clients: Mutex::new(Clients::new()),
        }
    }

    pub(super) fn clients(&self) -> MutexGuard<'_, Clients<ConnectionId, PublicKey, Deferred>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the transfers at extents that were fenced or sealed.
    pub(super) fn release(&self, extents: &[Extent]) {
        for extent in extents {
            self.engine.release_extent(self.region, *extent);
        }
    }

    /// Answers an operation, at every place that waits for it.
    pub(super) fn answer(&self, client: ClientId, operation: OperationId, reply: Reply) {
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
    pub(super) fn body(&self, reply: Reply, key: Option<PublicKey>) -> Vec<u8> {
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
        self.mint(extent, named.rights, time, key)
    }

    /// The right to reach an extent for a time: of the holder of `key` alone, where there is one.
    pub(super) fn mint(
        &self,
        extent: Extent,
        rights: Rights,
        time: Duration,
        key: Option<PublicKey>,
    ) -> Capability {
        self.key.mint(&Grant {
            incarnation: self.engine.home().incarnation(),
            region: self.region.index(),
            generation: extent.generation,
            offset: extent.offset,
            bytes: extent.bytes,
            rights,
            tenant: 0,
            holder: key.map_or(Incarnation(0), |key| holder_of(&key)),
            expires_nanos: (now() + time).as_nanos(),
            nonce: self.nonce.fetch_add(1, Ordering::Relaxed),
        })
    }
}

/// The bytes of a refusal.
pub(super) fn refused(epoch: Epoch, code: ErrorCode) -> Vec<u8> {
    let answered = Answered {
        epoch,
        reply: Reply::Failed(code),
        capabilities: Vec::new(),
    };
    body::encode(&answered).expect("a refusal is short")
}

impl Deliver for Outgoing {
    fn deliver(&self, outbound: Outbound) {
        self.release(&outbound.released);
        for (client, operation, reply) in outbound.replies {
            self.answer(client, operation, reply);
        }
    }
}
