//! What a store does for clients in other processes: their requests come in by [`Store::ask_for`], and what they are to
//! be told leaves by [`Deliver`], outside the lock.

use std::sync::Arc;
use std::time::Duration;

use slackwater_base::Checksum;
use slackwater_transfer::Extent;
use slackwater_wire::{
    ClientId, Epoch, ErrorCode, ExtentRef, Lookup, Object, OperationId, Permissions, ReadRecord,
    Reply, Request,
};

use super::get::Reader;
use super::open::DISK_REPLICA;
use super::sink::Sink;
use super::{GetOptions, Store, StoreError};
use crate::disk::Segment;
use crate::region::{Access, Grant};
use crate::serve::ExtentGate;

/// What a store has that other processes reach too.
pub(crate) struct Served {
    /// Admits and fences their accesses.
    pub(crate) gate: Arc<ExtentGate>,
    /// The life of its master.
    pub(crate) epoch: Epoch,
}

/// A request of a client in another process.
pub(crate) struct RemoteRequest {
    pub(crate) client: ClientId,
    pub(crate) operation: OperationId,
    /// What the key of its link permits.
    pub(crate) permissions: Permissions,
    pub(crate) request: Request,
}

/// An extent of a put that is being ended.
pub(crate) struct Sealed {
    pub(crate) extent: ExtentRef,
    /// Length of the value.
    pub(crate) bytes: u64,
    /// What the client says of the value.
    pub(crate) checksum: Checksum,
}

/// What leaves a store.
#[derive(Default)]
pub(crate) struct Outbound {
    /// Answers to requests of other processes.
    pub(crate) replies: Vec<(ClientId, OperationId, Reply)>,
    /// Extents at which the transfers of other processes are to end.
    pub(crate) released: Vec<Extent>,
}

impl Outbound {
    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty() && self.released.is_empty()
    }
}

/// Takes what leaves a store, on any thread, outside its lock.
pub(crate) trait Deliver: Send + Sync {
    fn deliver(&self, outbound: Outbound);
}

impl Store {
    /// Makes a request of a client in another process; the answer is delivered. The end of a put takes the time of
    /// reading its bytes.
    ///
    /// # Errors
    /// When the store is closed or broken, and for the end of a put whose bytes are not there: then nothing is delivered.
    pub(crate) fn ask_for(&self, remote: RemoteRequest) -> Result<(), ErrorCode> {
        let shared = self.shared();
        shared.check_open().map_err(|error| error.code())?;
        if let Request::PutEnd(end) = &remote.request {
            let sealed = shared.with(|core, _| core.seal(remote.client, end));
            let sealed = sealed.map_err(|error| error.code())?;
            if !sealed.iter().all(|sealed| self.holds(sealed)) {
                return Err(ErrorCode::ChecksumMismatch);
            }
        }
        let asked = shared.with(|core, now| core.ask_for(now, remote));
        asked.map_err(|error| error.code())
    }

    /// Whether memory holds what a client says that it has written. Without this, the end of a put that was never written
    /// would give its client what the last owner of the memory left there.
    fn holds(&self, sealed: &Sealed) -> bool {
        let region = &self.segment().region;
        // SAFETY: the extent takes no writes any more, and is not freed before the client's put is over. Where a hostile
        // client ends its put meanwhile, the checksum is that of some bytes, and the end of the put is refused.
        let grant = unsafe { Grant::new(region, sealed.extent.offset, sealed.bytes, Access::Read) };
        grant.is_some_and(|grant| grant.checksum(sealed.bytes as usize) == sealed.checksum)
    }

    /// Ends what a client in another process holds, whose last link is gone.
    pub(crate) fn lose_client(&self, client: ClientId) {
        // A store that is closed or broken holds nothing for it.
        let _ = self
            .shared()
            .with(|core, now| core.lose_client(now, client));
    }

    /// Has what is for other processes taken by `deliver` from now on.
    ///
    /// # Panics
    /// When that was said before, or the store was not opened for other processes.
    pub(crate) fn deliver_to(&self, deliver: Arc<dyn Deliver>) {
        self.shared().deliver_to(deliver);
        let shared = Arc::downgrade(&self.handle.shared);
        let served = self.served().expect("it was opened to be served");
        // The steward tells the master: an event loop that ends an access must not wait for the store's lock.
        served.gate.on_drained(move || {
            if let Some(shared) = shared.upgrade() {
                shared.ring();
            }
        });
    }

    /// What it has that other processes reach too; `None` unless it was opened for that.
    pub(crate) fn served(&self) -> Option<&Served> {
        self.shared().served.as_ref()
    }

    /// Its memory.
    pub(crate) fn segment(&self) -> &Segment {
        &self.shared().segment
    }

    /// How long a put that was granted room may be written.
    pub(crate) fn write_time(&self) -> Duration {
        super::open::master_config(self.config())
            .put
            .release_timeout
    }

    /// Whether the store has an SSD tier.
    pub(crate) fn has_ssd(&self) -> bool {
        self.shared().disk.is_some()
    }

    /// Reads a record that the master has named, verified; `None` when it is gone. Promotions that wait for its bytes
    /// get them.
    ///
    /// # Errors
    /// When the store is closed or broken.
    pub(crate) fn read_record(&self, record: &ReadRecord) -> Result<Option<Vec<u8>>, StoreError> {
        let ReadRecord {
            entry,
            bytes,
            checksum,
            ..
        } = record;
        let found = Lookup::Found(Object {
            version: entry.version,
            bytes: *bytes,
            checksum: *checksum,
            replicas: vec![DISK_REPLICA],
            lease: Duration::ZERO,
            guard: None,
        });
        let options = GetOptions {
            tenant: entry.tenant.clone(),
            ..GetOptions::default()
        };
        let mut sinks = [Sink::Fresh(Vec::new())];
        let reader = Reader::new(self.shared(), &options, &mut sinks);
        let reader = reader.answered(Some(Reply::Get(vec![found])));
        let outcomes = reader.run(&[entry.key.as_bytes()], &options.chain);
        let [Sink::Fresh(value)] = sinks else {
            unreachable!("a sink stays what it is")
        };
        let outcome = outcomes.into_iter().next().unwrap_or(Ok(None));
        outcome.map(|got| got.map(|_| value))
    }
}
