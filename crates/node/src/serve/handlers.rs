use std::collections::BTreeSet;
use std::sync::Arc;

use slackwater_mq::{AllowList, Call, Level, LinkEvent};
use slackwater_transfer::{Rights, Segment as Contact};
use slackwater_wait::now;
use slackwater_wire::{
    Asked, ClientId, Durability, Epoch, ErrorCode, Hello, Hold, Permissions, ReadRecord,
    RecordStaged, Release, Request, StagedRecord, Tenant, Welcome, body,
};
use slackwater_zmtp::PublicKey;

use super::outgoing::{Outgoing, refused};
use super::staging::{Borrower, Staging};
use crate::region::{Access, Grant};
use crate::store::remote::RemoteRequest;
use crate::{Store, StoreError};

/// Most keys in one page of a list, so that a page fits into a message.
const PAGE_KEYS_MAX: u32 = 4096;

/// What a served store does about each message.
pub(super) struct Handlers {
    pub(super) store: Store,
    pub(super) outgoing: Arc<Outgoing>,
    pub(super) staging: Staging,
    pub(super) contact: Contact,
    /// The keys that may connect; none on a loopback without keys.
    pub(super) allowed: Option<AllowList>,
    pub(super) value_bytes_max: u64,
}

impl Handlers {
    /// `pool.hello`.
    pub(super) fn hello(&self, call: &Call<'_>) {
        let Some(hello) = self.read::<Hello>(call) else {
            return;
        };
        if let Err(code) = self.admit(call, hello.epoch, hello.client) {
            return self.refuse(call, code);
        }
        let welcome = Welcome {
            epoch: self.outgoing.epoch,
            nodes: vec![self.contact.clone()],
            value_bytes_max: self.value_bytes_max,
        };
        reply(call, &body::encode(&welcome).expect("a welcome is short"));
    }

    /// `pool.request`: the answer leaves when the store delivers it.
    pub(super) fn request(&self, call: &Call<'_>) {
        let Some(asked) = self.read::<Asked>(call) else {
            return;
        };
        if let Request::PutEnd(_) = asked.request {
            return self.refuse(call, ErrorCode::NotSupported);
        }
        let admitted = self.admit(call, asked.epoch, asked.client);
        self.ask_for(call, admitted, asked);
    }

    /// `records.put_end`: runs on a worker, as it reads the bytes that were written.
    pub(super) fn put_end(&self, call: &Call<'_>) {
        let Some(asked) = self.read::<Asked>(call) else {
            return;
        };
        let Request::PutEnd(_) = asked.request else {
            return self.refuse(call, ErrorCode::NotSupported);
        };
        let admitted = self.recognise(call, asked.epoch, asked.client);
        self.ask_for(call, admitted, asked);
    }

    fn ask_for(&self, call: &Call<'_>, admitted: Result<Permissions, ErrorCode>, asked: Asked) {
        let Asked {
            client,
            operation,
            mut request,
            ..
        } = asked;
        let permissions = admitted.and_then(|permissions| {
            // Every request of a link may come twice, and the bounds of what is kept for a client count on its numbers.
            if !operation.may_repeat() {
                return Err(ErrorCode::InvalidParams);
            }
            self.check(&mut request).map(|()| permissions)
        });
        let permissions = match permissions {
            Ok(permissions) => permissions,
            Err(code) => return self.refuse(call, code),
        };
        let Ok(deferred) = call.defer() else {
            return;
        };
        self.outgoing
            .clients()
            .wait(call.from(), client, operation, deferred);
        let remote = RemoteRequest {
            client,
            operation,
            permissions,
            request,
        };
        if let Err(code) = self.store.ask_for(remote) {
            let reply = slackwater_wire::Reply::Failed(code);
            self.outgoing.answer(client, operation, reply);
        }
    }

    /// `records.read`: runs on a worker, as it waits for the SSD.
    pub(super) fn read_record(&self, call: &Call<'_>) {
        let Some(record) = self.read::<ReadRecord>(call) else {
            return;
        };
        let result = self
            .recognise(call, record.epoch, record.client)
            .and_then(|permissions| self.stage(call.key(), &permissions, &record));
        let staged = RecordStaged {
            epoch: self.outgoing.epoch,
            result,
        };
        reply(call, &body::encode(&staged).expect("a place is short"));
    }

    /// `records.release`, which is not answered.
    pub(super) fn release(&self, call: &Call<'_>) {
        let release: Release = match call.part(0).map(body::decode) {
            Some(Ok(release)) => release,
            _ => return,
        };
        if self.recognise(call, Epoch(0), release.client).is_ok() {
            let mut released = Vec::new();
            self.staging
                .give_back(release.client, release.generation, &mut released);
            self.outgoing.release(&released);
        }
    }

    /// A link came or went.
    pub(super) fn link(&self, event: &LinkEvent) {
        if let LinkEvent::Down { connection, .. } = event {
            let gone = self.outgoing.clients().leave(*connection);
            if let Some(client) = gone {
                self.store.lose_client(client);
            }
        }
    }

    fn stage(
        &self,
        key: Option<PublicKey>,
        permissions: &Permissions,
        record: &ReadRecord,
    ) -> Result<StagedRecord, ErrorCode> {
        if !permissions.client {
            return Err(ErrorCode::RoleNotPermitted);
        }
        if !permissions.tenants.covers(&record.entry.tenant) {
            return Err(ErrorCode::TenantNotPermitted);
        }
        if record.bytes == 0 || record.bytes > self.staging.bytes_max() {
            return Err(ErrorCode::ValueTooLong);
        }
        let (client, mut released) = (record.client, Vec::new());
        let borrower = Borrower { client, key };
        let room = self
            .staging
            .take(now(), borrower, record.bytes, &mut released);
        self.outgoing.release(&released);
        let room = room.ok_or(ErrorCode::TaskPendingLimitExceeded)?;
        let filled = self.store.read_record(record).map_err(code);
        let value = filled.and_then(|value| value.ok_or(ErrorCode::ReplicaIsGone));
        let value = match value {
            Ok(value) => value,
            Err(code) => {
                self.staging
                    .give_back(client, room.generation, &mut Vec::new());
                return Err(code);
            }
        };
        let mapping = &self.store.segment().region;
        // SAFETY: the room was taken for this record alone, and nobody has a right to it before it is lent below.
        let grant = unsafe { Grant::new(mapping, room.offset, room.bytes, Access::Write) };
        let mut grant = grant.ok_or(ErrorCode::InternalError)?;
        // The store has compared the checksum of what it read; the reader compares that of what it gets.
        let _ = grant.copy_in(&value);
        drop(grant);
        let lease = self.store.config().lease_ttl;
        self.staging.lend(now(), room.generation, lease);
        let extent = slackwater_transfer::Extent {
            bytes: record.bytes,
            ..room
        };
        Ok(StagedRecord {
            generation: room.generation,
            offset: room.offset,
            capability: self.outgoing.mint(extent, Rights::READ, lease, key),
        })
    }

    /// What the client of a message may do, of which something came on the same link before. A worker asks this: the link
    /// may be gone by then, and must not be entered again.
    fn recognise(
        &self,
        call: &Call<'_>,
        epoch: Epoch,
        client: ClientId,
    ) -> Result<Permissions, ErrorCode> {
        let permissions = self.permitted(call, epoch)?;
        if self.outgoing.clients().is(call.from(), client) {
            Ok(permissions)
        } else {
            Err(ErrorCode::IllegalClient)
        }
    }

    /// What the client of a message may do, which may be the first of its link.
    fn admit(
        &self,
        call: &Call<'_>,
        epoch: Epoch,
        client: ClientId,
    ) -> Result<Permissions, ErrorCode> {
        let permissions = self.permitted(call, epoch)?;
        let mut clients = self.outgoing.clients();
        clients.arrive(call.from(), client, call.key())?;
        Ok(permissions)
    }

    /// What a message may ask for by its key, unless its sender knows a later master than this one.
    fn permitted(&self, call: &Call<'_>, epoch: Epoch) -> Result<Permissions, ErrorCode> {
        if epoch > self.outgoing.epoch {
            return Err(ErrorCode::StaleEpoch);
        }
        let permissions = self.permissions(call.key());
        permissions.ok_or(ErrorCode::RoleNotPermitted)
    }

    /// The permissions of a key; none for one that is not in the list, or not any more.
    fn permissions(&self, key: Option<PublicKey>) -> Option<Permissions> {
        let Some(list) = &self.allowed else {
            // Segments are lent by nodes, and the only one is in this process.
            return Some(Permissions::admin());
        };
        let allowed = list.find(&key?)?;
        match allowed.level {
            Level::None => None,
            Level::Basic => Some(Permissions::client(self.tenants(&allowed.tenants))),
            Level::Admin => Some(Permissions::admin()),
        }
    }

    /// The tenants that a key may name. While the store does not tell tenants apart, every name is the default tenant's,
    /// so a key of other tenants has none.
    fn tenants(&self, names: &[String]) -> BTreeSet<Tenant> {
        if names.is_empty() {
            return BTreeSet::from([Tenant::DEFAULT]);
        }
        let told_apart = self.store.config().tenants;
        let named = names.iter().filter_map(|name| Tenant::new(name).ok());
        named
            .filter(|tenant| told_apart || tenant.is_default())
            .collect()
    }

    /// Refuses what only callers in the master's process may ask for, and bounds what would not fit into an answer.
    fn check(&self, request: &mut Request) -> Result<(), ErrorCode> {
        match request {
            // A guard has no end in time: a client that is stopped would hold its replicas for ever.
            Request::Get(get) if get.hold == Hold::Guard => Err(ErrorCode::NotSupported),
            // The segments of this process come and go with it.
            Request::Mount(_) | Request::Unmount { .. } => Err(ErrorCode::RoleNotPermitted),
            Request::PutStart(start)
                if start.config.durability == Durability::Disk && !self.store.has_ssd() =>
            {
                Err(ErrorCode::UnavailableInCurrentMode)
            }
            Request::List(list) => {
                list.limit = list.limit.min(PAGE_KEYS_MAX);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The message of a call; what is none is refused.
    fn read<M: body::Message>(&self, call: &Call<'_>) -> Option<M> {
        let bytes = call.part(0).unwrap_or_default();
        body::decode(bytes)
            .inspect_err(|error| {
                tracing::debug!(%error, remote = call.remote(), "a message that is none");
                self.refuse(call, ErrorCode::DeserializeFail);
            })
            .ok()
    }

    fn refuse(&self, call: &Call<'_>, code: ErrorCode) {
        reply(call, &refused(self.outgoing.epoch, code));
    }
}

fn reply(call: &Call<'_>, body: &[u8]) {
    // Every command that replies is registered as a request.
    let _ = call.reply([body]);
}

fn code(error: StoreError) -> ErrorCode {
    error.code()
}
