use slackwater_mq::ConnectionId;
use slackwater_trace::within;
use slackwater_transfer::Segment as Contact;
use slackwater_wire::{
    ClientId, ErrorCode, OperationId, ReadRecord, Release, StagedRecord, Traceparent,
};
use slackwater_zmtp::PublicKey;

use super::memory::ServedMemory;
use crate::store::remote::RemoteRequest;

/// What answers the requests of clients in other processes, whose rights have been checked.
pub(crate) trait Backend: Send + Sync {
    /// How the memory of each node is reached, and the length of the longest value.
    fn nodes(&self) -> (Vec<Contact>, u64);

    /// Whether tenants are separate.
    fn tells_tenants_apart(&self) -> bool;

    /// Whether it reads bytes of values itself, so that ends of puts and reads of records take the time of a worker.
    fn reads_bytes(&self) -> bool;

    /// Whether there is an SSD.
    fn has_ssd(&self) -> bool;

    /// Makes a request of the master, which may be the end of a put. The answer is outgoing, unless this refuses.
    ///
    /// # Errors
    /// Why the request is not made.
    fn ask_for(&self, remote: RemoteRequest) -> Result<(), ErrorCode>;

    /// Makes requests that came together, in their order; none is the end of a put. Takes all out of `requests`, each of which
    /// belongs to a trace, and tells `refused` of those that are refused.
    fn ask_for_all(
        &self,
        requests: &mut Vec<(Traceparent, RemoteRequest)>,
        refused: &dyn Fn(ClientId, OperationId, ErrorCode),
    ) {
        for (parent, remote) in requests.drain(..) {
            let (client, operation) = (remote.client, remote.operation);
            if let Err(code) = within(parent, || self.ask_for(remote)) {
                refused(client, operation, code);
            }
        }
    }

    /// Ends what a client holds, whose last link is gone.
    fn lose_client(&self, client: ClientId);

    /// A link is gone.
    fn lose_link(&self, link: ConnectionId);

    /// Has a record of an SSD read into memory that is lent to the holder of a key.
    fn stage(&self, key: Option<PublicKey>, record: ReadRecord, answer: Staged);

    /// Takes that memory back.
    fn release(&self, release: &Release);
}

/// Takes the outcome of reading a record.
pub(crate) type Staged = Box<dyn FnOnce(Result<StagedRecord, ErrorCode>) + Send>;

/// A store with its master in this process.
impl Backend for ServedMemory {
    fn nodes(&self) -> (Vec<Contact>, u64) {
        let memory = self.store.config().memory.0;
        (vec![self.contact().clone()], memory)
    }

    fn tells_tenants_apart(&self) -> bool {
        self.store.config().tenants
    }

    fn reads_bytes(&self) -> bool {
        true
    }

    fn has_ssd(&self) -> bool {
        self.store.has_ssd()
    }

    fn ask_for(&self, remote: RemoteRequest) -> Result<(), ErrorCode> {
        self.store.ask_for(remote)
    }

    fn lose_client(&self, client: ClientId) {
        self.store.lose_client(client);
    }

    fn lose_link(&self, _: ConnectionId) {}

    fn stage(&self, key: Option<PublicKey>, record: ReadRecord, answer: Staged) {
        let lease = self.store.config().lease_ttl;
        answer(ServedMemory::stage(self, key, &record, lease));
    }

    fn release(&self, release: &Release) {
        self.give_back(release);
    }
}
