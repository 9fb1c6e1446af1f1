use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_mq::{AllowList, Call, Level, LinkEvent};
use slackwater_trace::{SpanKind, TraceSpan, within};
use slackwater_transfer::holder_of;
use slackwater_wire::{
    Asked, ClientId, Durability, Epoch, ErrorCode, Hello, Hold, NodeId, OperationId, Permissions,
    ReadRecord, RecordStaged, Release, Request, StagedRecord, Tenant, Traceparent, Welcome, body,
};
use slackwater_zmtp::PublicKey;

use super::backend::Backend;
use super::outgoing::{Outgoing, Unanswered, refused};
use crate::store::remote::RemoteRequest;

/// Most keys in one page of a list, so that a page fits into a message.
const PAGE_KEYS_MAX: u32 = 4096;

/// What a master does about each message of a client.
pub(crate) struct Handlers {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) outgoing: Arc<Outgoing>,
    /// The keys that may connect; none on a loopback without keys.
    pub(crate) allowed: Option<AllowList>,
    /// Empty: the memory in which requests that came together are gathered.
    pub(crate) gathered: Mutex<Vec<(Traceparent, RemoteRequest)>>,
}

impl Handlers {
    /// `pool.hello`.
    pub(crate) fn hello(&self, call: &Call<'_>) {
        let Some(hello) = self.read::<Hello>(call) else {
            return;
        };
        if let Err(code) = self.admit(call, hello.epoch, hello.client) {
            return self.refuse(call, code);
        }
        (self.outgoing.clients()).place(hello.client, hello.host.as_deref());
        let (nodes, value_bytes_max) = self.backend.nodes();
        let welcome = Welcome {
            epoch: self.outgoing.epoch,
            nodes,
            value_bytes_max,
        };
        reply(call, &body::encode(&welcome).expect("a welcome is short"));
    }

    /// `pool.request`, those that came together: the answers leave when the store delivers them.
    pub(crate) fn requests(&self, calls: &[Call<'_>]) {
        let asked = calls.iter().filter_map(|call| {
            let asked = self.read::<Asked>(call)?;
            if let Request::PutEnd(_) = asked.request {
                self.refuse(call, ErrorCode::NotSupported);
                return None;
            }
            let admitted = self.admit(call, asked.epoch, asked.client);
            self.take_in(call, admitted, asked)
        });
        let mut requests = std::mem::take(&mut *self.gathered());
        requests.extend(asked);
        let refused = |client, operation, code| self.fail(client, operation, code);
        self.backend.ask_for_all(&mut requests, &refused);
        *self.gathered() = requests;
    }

    fn gathered(&self) -> MutexGuard<'_, Vec<(Traceparent, RemoteRequest)>> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `records.put_end`: runs on a worker where the bytes that were written are read in this process.
    pub(crate) fn put_end(&self, call: &Call<'_>) {
        let Some(asked) = self.read::<Asked>(call) else {
            return;
        };
        let Request::PutEnd(_) = asked.request else {
            return self.refuse(call, ErrorCode::NotSupported);
        };
        let admitted = self.recognise(call, asked.epoch, asked.client);
        let Some((parent, remote)) = self.take_in(call, admitted, asked) else {
            return;
        };
        let (client, operation) = (remote.client, remote.operation);
        if let Err(code) = within(parent, || self.backend.ask_for(remote)) {
            self.fail(client, operation, code);
        }
    }

    /// A request waits for its answer from now on, unless it is refused.
    fn take_in(
        &self,
        call: &Call<'_>,
        admitted: Result<Permissions, ErrorCode>,
        asked: Asked,
    ) -> Option<(Traceparent, RemoteRequest)> {
        let Asked {
            client,
            operation,
            mut request,
            reads,
            trace,
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
            Err(code) => {
                self.refuse(call, code);
                return None;
            }
        };
        let deferred = call.defer().ok()?;
        let span = TraceSpan::of(trace, span_name(&request), SpanKind::Server);
        let parent = Traceparent(span.context());
        let unanswered = Unanswered {
            deferred,
            span,
            reads,
        };
        let (over, host) = {
            let mut clients = self.outgoing.clients();
            let over = clients.wait(call.from(), client, operation, unanswered);
            (over, clients.host_of(client))
        };
        // Its refusal goes by the message layer, which may have an answer to another client to give first.
        drop(over);
        let remote = RemoteRequest {
            client,
            host,
            operation,
            permissions,
            request,
        };
        Some((parent, remote))
    }

    fn fail(&self, client: ClientId, operation: OperationId, code: ErrorCode) {
        let reply = slackwater_wire::Reply::Failed(code);
        self.outgoing.answer(client, operation, reply);
    }

    /// `records.read`: runs on a worker where it waits for the SSD.
    pub(crate) fn read_record(&self, call: &Call<'_>) {
        let Some(record) = self.read::<ReadRecord>(call) else {
            return;
        };
        let epoch = self.outgoing.epoch;
        let staged = move |result: Result<StagedRecord, ErrorCode>| {
            body::encode(&RecordStaged { epoch, result }).expect("a place is short")
        };
        let permitted = self.recognise(call, record.epoch, record.client);
        let permitted = permitted.and_then(|permissions| may_read(&permissions, &record));
        if let Err(code) = permitted {
            return reply(call, &staged(Err(code)));
        }
        if let Ok(deferred) = call.defer() {
            let mut span = TraceSpan::of(record.trace, "slackwater.master.stage", SpanKind::Server);
            let parent = Traceparent(span.context());
            let answer = Box::new(move |result: Result<StagedRecord, ErrorCode>| {
                if let Err(code) = &result {
                    span.fail(code);
                }
                deferred.reply([staged(result)]);
            });
            within(parent, || self.backend.stage(call.key(), record, answer));
        }
    }

    /// `records.release`, which is not answered.
    pub(crate) fn release(&self, call: &Call<'_>) {
        let release: Release = match call.part(0).map(body::decode) {
            Some(Ok(release)) => release,
            _ => return,
        };
        if self.recognise(call, Epoch(0), release.client).is_ok() {
            self.backend.release(&release);
        }
    }

    /// A link came or went.
    pub(crate) fn link(&self, event: &LinkEvent) {
        if let LinkEvent::Down { connection, .. } = event {
            let gone = self.outgoing.clients().leave(*connection);
            if let Some((client, waiting)) = gone {
                drop(waiting);
                self.backend.lose_client(client);
            }
            self.backend.lose_link(*connection);
        }
    }

    /// What the client of a message may do, of which something came on the same link before. A worker may ask this:
    /// the link may be gone by then, and must not be entered again.
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
    pub(crate) fn permitted(
        &self,
        call: &Call<'_>,
        epoch: Epoch,
    ) -> Result<Permissions, ErrorCode> {
        if epoch > self.outgoing.epoch {
            return Err(ErrorCode::StaleEpoch);
        }
        let permissions = self.permissions(call.key());
        permissions.ok_or(ErrorCode::RoleNotPermitted)
    }

    /// The permissions of a key; none for one that is not in the list, or not any more.
    fn permissions(&self, key: Option<PublicKey>) -> Option<Permissions> {
        let Some(list) = &self.allowed else {
            return Some(Permissions::FULL);
        };
        let allowed = list.find(&key?)?;
        match allowed.level {
            Level::None => None,
            Level::Node => Some(Permissions::node(node_of(&key?))),
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
        let told_apart = self.backend.tells_tenants_apart();
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
            // Nodes say what they lend on their own links.
            Request::Mount(_) => Err(ErrorCode::RoleNotPermitted),
            Request::PutStart(start)
                if start.config.durability == Durability::Disk && !self.backend.has_ssd() =>
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
    pub(crate) fn read<M: body::Message>(&self, call: &Call<'_>) -> Option<M> {
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

pub(crate) fn reply(call: &Call<'_>, body: &[u8]) {
    // Every command that replies is registered as a request.
    let _ = call.reply([body]);
}

/// What a master does for a request, in traces.
fn span_name(request: &Request) -> &'static str {
    match request {
        Request::Get(_) => "slackwater.master.look_up",
        Request::PutStart(_) => "slackwater.master.put_start",
        Request::PutEnd(_) => "slackwater.master.put_end",
        Request::Exists(_) => "slackwater.master.exists",
        Request::Remove(_)
        | Request::RemoveMatching(_)
        | Request::RemoveAll(_)
        | Request::ReplicaClear(_) => "slackwater.master.remove",
        _ => "slackwater.master.request",
    }
}

fn may_read(permissions: &Permissions, record: &ReadRecord) -> Result<(), ErrorCode> {
    if !permissions.client {
        return Err(ErrorCode::RoleNotPermitted);
    }
    if !permissions.tenants.covers(&record.entry.tenant) {
        return Err(ErrorCode::TenantNotPermitted);
    }
    Ok(())
}

/// The node whose links prove this key.
pub(crate) fn node_of(key: &PublicKey) -> NodeId {
    NodeId(NODES_FROM + (holder_of(key).0 % u64::from(NODES)) as u32)
}

/// Numbers of nodes: below are those of nodes in the process of their master. Each has two segments.
pub(crate) const NODES_FROM: u32 = 1 << 8;
pub(crate) const NODES: u32 = (1 << 31) - NODES_FROM;
