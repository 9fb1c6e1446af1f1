use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackwater_mq::{ConnectionId, Deferred};
use slackwater_trace::TraceSpan;
use slackwater_transfer::{Capability, Extent};
use slackwater_wait::now;
use slackwater_wire::{Answered, ClientId, Epoch, ErrorCode, OperationId, Reply, body};
use slackwater_zmtp::PublicKey;

use super::clients::Clients;
use super::memory::Transfers;
use super::minter::{Minters, holder};
use crate::store::remote::{Deliver, Outbound};

/// What leaves a master for clients: answers, with the capabilities for the extents that they name.
pub(crate) struct Outgoing {
    pub(crate) epoch: Epoch,
    pub(crate) minters: Minters,
    /// How long a granted extent may be written.
    write_time: Duration,
    clients: Mutex<Clients<ConnectionId, PublicKey, Unanswered>>,
}

/// A request that waits for its answer, which ends its span too.
pub(crate) struct Unanswered {
    pub(crate) deferred: Deferred,
    pub(crate) span: TraceSpan,
    /// The latest format that its client reads.
    pub(crate) reads: u8,
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

    pub(crate) fn clients(&self) -> MutexGuard<'_, Clients<ConnectionId, PublicKey, Unanswered>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers an operation, at every place that waits for it.
    pub(crate) fn answer(&self, client: ClientId, operation: OperationId, reply: Reply) {
        let (waiting, key) = self.clients().answer(client, operation);
        let Some(waiting) = waiting else { return };
        let failure = match &reply {
            Reply::Failed(code) => Some(*code),
            _ => None,
        };
        // Repetitions are of one client, which reads what it always did.
        let reads = waiting.iter().map(|unanswered| unanswered.reads).min();
        let body = self.body(reply, key, reads.unwrap_or(body::FORMAT));
        for unanswered in waiting.into_iter() {
            let Unanswered {
                deferred, mut span, ..
            } = unanswered;
            if let Some(code) = failure {
                span.fail(&code);
            }
            deferred.reply([&body]);
        }
    }

    /// The bytes of an answer to the holder of a key.
    fn body(&self, reply: Reply, key: Option<PublicKey>, reads: u8) -> Vec<u8> {
        let capabilities = self.permit(&reply, key);
        let epoch = self.epoch;
        let answered = Answered {
            epoch,
            reply,
            capabilities,
        };
        body::encode_for(reads, &answered).unwrap_or_else(|error| {
            tracing::error!(%error, "an answer could not be sent");
            refused(epoch, ErrorCode::InternalError)
        })
    }

    /// The rights to the extents that an answer names, in their order.
    fn permit(&self, reply: &Reply, key: Option<PublicKey>) -> Vec<Capability> {
        // About an extent for each key; which replies name any is each_extent's to know.
        let about = match reply {
            Reply::Get(lookups) => lookups.len(),
            Reply::PutStart(started) => started.len(),
            _ => 0,
        };
        let (minters, now, holder) = (self.minters.all(), now(), holder(key));
        let mut rights = Vec::with_capacity(about);
        reply.each_extent(|named| {
            let extent = Extent {
                offset: named.extent.offset,
                bytes: named.bytes,
                generation: named.extent.generation,
            };
            let until = now + named.lease.unwrap_or(self.write_time);
            rights.push(match minters.get(&named.extent.segment) {
                Some(minter) => minter.mint_until(extent, named.rights, until, holder),
                // Its node has left since: a capability of no node is as good as one of a node that is gone.
                None => Capability::VOID,
            });
        });
        rights
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use slackwater_base::Checksum;
    use slackwater_transfer::{CapabilityKey, Grant, Rights, holder_of};
    use slackwater_wire::data::{MacKind, Segment};
    use slackwater_wire::{
        ExtentRef, Incarnation, Lookup, MemoryAccess, Object, PutStarted, ReplicaAt, Secret,
        SegmentId, Version,
    };

    use super::super::minter::Minter;
    use super::*;

    #[test]
    fn each_extent_of_an_answer_gets_a_right_of_its_own_node_and_holder_and_time() {
        let outgoing = Outgoing::new(Epoch(1), Duration::from_secs(1000));
        let secret = |of: u32| Secret([of as u8; 32]);
        for of in [1, 2] {
            let contact = Segment {
                name: "a".into(),
                incarnation: Incarnation(of.into()),
                addresses: Vec::new(),
                public_key: None,
                host: None,
            };
            let memory = MemoryAccess {
                contact,
                region: 4,
                secret: secret(of),
                clock_nanos: now().as_nanos(),
                macs: if of == 2 { 0 } else { MacKind::LATEST.number() },
            };
            let minter = Arc::new(Minter::of(&memory));
            outgoing.minters.add(SegmentId(of), minter);
        }
        let extent = |of: u32| ExtentRef {
            segment: SegmentId(of),
            incarnation: Incarnation(of.into()),
            offset: 4096,
            bytes: 4096,
            generation: 7,
        };
        let found = |of: u32| {
            Lookup::Found(Object {
                version: Version(1),
                bytes: 100,
                checksum: Checksum(7),
                replicas: [ReplicaAt::Memory(extent(of))].as_slice().into(),
                lease: Duration::from_secs(100),
                guard: None,
            })
        };
        let read = Reply::Get(vec![found(2), Lookup::Missing, found(9)]);
        let granted = PutStarted::Granted {
            version: Version(1),
            extents: vec![extent(1)],
        };
        let written = Reply::PutStart(vec![PutStarted::Exists, granted]);
        let check = |key: Option<PublicKey>| {
            let permit = |reply| outgoing.permit(reply, key);
            let rights = [permit(&read), permit(&written), permit(&Reply::Done)].concat();
            assert_eq!(rights.len(), 3);
            let granted = |at: usize, of: u32| -> Grant {
                let verified = CapabilityKey::new(&secret(of).0).verify(&rights[at]);
                verified.unwrap()
            };
            let (read, write) = (granted(0, 2), granted(2, 1));
            assert_eq!((read.rights, write.rights), (Rights::READ, Rights::WRITE));
            assert_eq!((read.offset, read.bytes, read.generation), (4096, 100, 7));
            assert_eq!((write.offset, write.bytes), (4096, 4096));
            // The one node is of an earlier release.
            for (at, grant, kind) in [(0, read, 0), (2, write, 1)] {
                let key = CapabilityKey::new(&secret(2 - at / 2).0);
                let minted = key.making(MacKind::up_to(kind)).mint(&grant);
                assert_eq!(rights[at as usize], minted);
            }
            for (grant, seconds) in [(read, 100), (write, 1000)] {
                let left = grant.expires_nanos.saturating_sub(now().as_nanos());
                let left = Duration::from_nanos(left).as_secs();
                assert!((seconds - 60..=seconds).contains(&left), "{left}");
                let holder = key.map_or(Incarnation(0), |key| holder_of(&key));
                assert_eq!(grant.holder, holder);
            }
            assert_eq!(rights[1], Capability::VOID);
        };
        check(None);
        check(Some(PublicKey::from_bytes([5; 32])));
    }
}
