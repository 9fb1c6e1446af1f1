//! What a store does for clients in other processes: their requests come in by [`Store::ask_for`], and what they are to
//! be told leaves by [`Deliver`], outside the lock.

use std::sync::Arc;
use std::time::{self, Duration};

use slackwater_base::{Checksum, Instant};
use slackwater_transfer::Extent;
use slackwater_wait::now;
use slackwater_wire::{
    ClientId, Epoch, ErrorCode, ExtentRef, Lookup, Mount, NodeId, NodeName, Object, ObjectName,
    OperationId, Order, Permissions, PutEnd, ReadRecord, Reply, Report, Request, Written,
};

use super::get::Reader;
use super::sink::Sink;
use super::{GetOptions, OpenError, Store, StoreError};
use crate::disk::Segment;
use crate::region::{Access, Grant};
use crate::serve::ExtentGate;

/// What a store has that other processes reach too.
pub(crate) struct Served {
    /// Admits and fences their accesses.
    pub(crate) gate: Arc<ExtentGate>,
    /// The life of its master; zero when that is in another process.
    pub(crate) epoch: Epoch,
}

/// A request of a client in another process.
pub(crate) struct RemoteRequest {
    pub(crate) client: ClientId,
    /// The host that it is on, if it has said so.
    pub(crate) host: Option<Arc<str>>,
    pub(crate) operation: OperationId,
    /// What the key of its link permits.
    pub(crate) permissions: Permissions,
    pub(crate) request: Request,
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

/// How long the end of a put waits for the ends of its writes.
const WRITES_WAIT: Duration = Duration::from_millis(10);
/// How long after its seal an extent may still be written before its put is given up.
const WRITES_TIME: Duration = Duration::from_secs(1);

/// Bytes of a value that are on their way between two nodes at a time.
const FILL_PIECE: u64 = 1 << 20;

/// Takes what leaves a store, on any thread, outside its lock.
pub(crate) trait Deliver: Send + Sync {
    /// Queues what a master in another process is to be told, in order: under the store's lock.
    fn queue(&self, reports: Vec<Report>) {
        drop(reports);
    }

    /// Whether more may be queued of what can wait. When not, the store is told as soon as there is room.
    fn has_room(&self) -> bool {
        true
    }

    /// Has what was queued sent, and takes what else leaves.
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
            let sealed = shared.with(|core, now| core.seal(now, remote.client, end));
            let sealed = sealed.map_err(|error| error.code())?;
            self.await_writes(&remote, end, &sealed)?;
            if !sealed.iter().all(|sealed| self.holds(sealed)) {
                return Err(ErrorCode::ChecksumMismatch);
            }
        }
        let look_up = matches!(&remote.request, Request::Get(_)).then(time::Instant::now);
        let asked = shared.with(|core, now| core.ask_for(now, remote));
        if let Some(begun) = look_up {
            shared.meters.phases.look_up.add(begun.elapsed());
        }
        asked.map_err(|error| error.code())
    }

    /// Another process has fetched a value that was read for it from SSD, so long after it was told where that is.
    pub(crate) fn fetched(&self, took: Duration) {
        self.shared().meters.phases.wire.add(took);
    }

    /// Takes no more writes to extents of puts that a master in another process is about to publish, and says whether they
    /// hold what their writers say.
    ///
    /// # Errors
    /// [`ErrorCode::ReplicaIsNotReady`] when writes are still under way, [`ErrorCode::InvalidWrite`] when they are for so
    /// long that the put is to be given up or its extent is dead, and [`ErrorCode::ChecksumMismatch`].
    pub(crate) fn check_written(&self, written: &[Written]) -> Result<(), ErrorCode> {
        self.check_within(written, WRITES_WAIT)
    }

    /// The same without a wait; none while writes are under way.
    pub(crate) fn check_now(&self, written: &[Written]) -> Option<Result<(), ErrorCode>> {
        let checked = self.check_within(written, Duration::ZERO);
        (checked != Err(ErrorCode::ReplicaIsNotReady)).then_some(checked)
    }

    fn check_within(&self, written: &[Written], patience: Duration) -> Result<(), ErrorCode> {
        let shared = self.shared();
        let failed = |error: StoreError| error.code();
        let held = shared.with(|core, now| core.hold_written(now, written));
        let held = held.map_err(failed)?.ok_or(ErrorCode::InvalidWrite)?;
        let result = match self.writers_since(written, patience) {
            None if written.iter().all(|written| self.holds(written)) => Ok(()),
            None => Err(ErrorCode::ChecksumMismatch),
            Some(since) if since.until(now()) >= WRITES_TIME => Err(ErrorCode::InvalidWrite),
            Some(_) => Err(ErrorCode::ReplicaIsNotReady),
        };
        let ended = shared.with(|core, now| core.let_go(now, held));
        ended.map_err(failed).and(result)
    }

    /// Fills an extent with a value, piece by piece: `read` is given the place of each piece in the value. Nobody else may
    /// write the extent from then on, and its bytes are not given out again before this returns.
    ///
    /// # Errors
    /// What `read` says; [`ErrorCode::ReplicaIsGone`] when the extent is dead, [`ErrorCode::InvalidParams`] when it is too
    /// short, and [`ErrorCode::ChecksumMismatch`].
    pub(crate) fn fill(
        &self,
        target: &ExtentRef,
        (bytes, checksum): (u64, Checksum),
        read: impl FnMut(u64, &mut [u8]) -> Result<(), ErrorCode>,
    ) -> Result<(), ErrorCode> {
        if bytes == 0 || bytes > target.bytes {
            return Err(ErrorCode::InvalidParams);
        }
        let (shared, failed) = (self.shared(), |error: StoreError| error.code());
        let access = shared.with(|core, now| core.begin_fill(now, target));
        let access = access.map_err(failed)?.ok_or(ErrorCode::ReplicaIsGone)?;
        let filled = self.fill_pieces(target, bytes, read).and_then(|()| {
            let written = Written {
                extent: *target,
                bytes,
                checksum,
            };
            match self.holds(&written) {
                true => Ok(()),
                false => Err(ErrorCode::ChecksumMismatch),
            }
        });
        let live = shared.with(|core, now| core.end_access(now, access));
        match live.map_err(failed)? {
            true => filled,
            false => Err(ErrorCode::ReplicaIsGone),
        }
    }

    fn fill_pieces(
        &self,
        target: &ExtentRef,
        bytes: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), ErrorCode>,
    ) -> Result<(), ErrorCode> {
        let region = &self.segment().region;
        let mut piece = vec![0; bytes.min(FILL_PIECE) as usize];
        let mut at = 0;
        while at < bytes {
            let length = FILL_PIECE.min(bytes - at);
            let piece = &mut piece[..length as usize];
            read(at, piece)?;
            // SAFETY: the access was begun for writing, so that nobody else writes the extent and it is not given out
            // again, and nobody reads it before it is published.
            let grant = unsafe { Grant::new(region, target.offset + at, length, Access::Write) };
            let _ = grant.ok_or(ErrorCode::InvalidParams)?.copy_in(piece);
            at += length;
        }
        Ok(())
    }

    /// Carries out orders of a master in another process.
    ///
    /// # Errors
    /// When the store is closed or broken.
    pub(crate) fn obey(&self, orders: Vec<Order>) -> Result<(), StoreError> {
        self.shared().with(|core, now| core.obey(now, orders))
    }

    /// A master in another process has taken what this node lends, and knows nothing else of it: it is told what the node
    /// holds. Generations of extents below `floor` are dead, except those of what was published.
    ///
    /// # Errors
    /// When the store is closed or broken.
    pub(crate) fn begin_announcing(&self, floor: u64) -> Result<(), StoreError> {
        self.shared()
            .with(|core, now| core.begin_announcing(now, floor))
    }

    /// A master in another process that is being told what this node holds wants to hear of these keys first.
    ///
    /// # Errors
    /// When the store is closed or broken.
    pub(crate) fn announce_first(&self, names: &[ObjectName]) -> Result<(), StoreError> {
        self.shared().with(|core, _| core.announce_first(names))
    }

    /// A master in another process does not know this node any more: nothing is announced until one takes what it lends.
    ///
    /// # Errors
    /// When the store is closed or broken.
    pub(crate) fn stop_announcing(&self) -> Result<(), StoreError> {
        self.shared().with(|core, _| core.stop_announcing())
    }

    /// The number of the node that it is.
    pub(crate) fn node(&self) -> NodeId {
        self.shared().identity.node
    }

    /// Waits until nothing writes to what was sealed: bytes that land after the check would be published unseen.
    ///
    /// A write ends within microseconds of the seal, unless its process was stopped in the middle of a copy to memory that
    /// it shares with this one. A worker does not wait for that: the client is told to ask again, and in the end that its
    /// put is over.
    fn await_writes(
        &self,
        remote: &RemoteRequest,
        end: &PutEnd,
        sealed: &[Written],
    ) -> Result<(), ErrorCode> {
        let Some(since) = self.writers_since(sealed, WRITES_WAIT) else {
            return Ok(());
        };
        let shared = self.shared();
        let over = shared.with(|core, now| {
            let over = since.until(now) >= WRITES_TIME;
            if over {
                core.abandon(now, remote, end);
            }
            over
        });
        match over.map_err(|error| error.code())? {
            true => Err(ErrorCode::InvalidWrite),
            false => Err(ErrorCode::ReplicaIsNotReady),
        }
    }

    /// Waits a moment for the ends of writes to what was sealed; since when they should have ended, if they have not.
    fn writers_since(&self, sealed: &[Written], patience: Duration) -> Option<Instant> {
        let extents: Vec<_> = sealed.iter().map(|sealed| sealed.extent).collect();
        let gate = &self.served()?.gate;
        match patience {
            Duration::ZERO => gate.written_since(&extents),
            patience => gate.await_writers(&extents, now() + patience),
        }
    }

    /// Whether memory holds what a client says that it has written. Without this, the end of a put that was never written
    /// would give its client what the last owner of the memory left there.
    fn holds(&self, sealed: &Written) -> bool {
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

    /// Opens the log of a store whose master is in another process.
    ///
    /// # Errors
    /// When the log cannot be opened.
    pub(crate) fn recover(&self) -> Result<(), OpenError> {
        super::open::recover(self.shared())
    }

    /// What it lends to a master in another process, as the node of that name.
    pub(crate) fn mounts(&self, name: Option<&NodeName>) -> Vec<Mount> {
        let shared = self.shared();
        let generation = shared.with(|core, _| core.node.agent.highest_generation());
        let generations = Some(generation.unwrap_or_default());
        let (identity, incarnation) = (&shared.identity, shared.segment.incarnation);
        let mut mounts = super::open::mounts(&shared.config, identity, incarnation);
        for mount in &mut mounts {
            mount.generations = generations;
            mount.watermarks = shared.config.own_watermarks(mount.kind);
            mount.name = match name {
                Some(name) => name.of_segment(mount.kind),
                // The segments of every node would have the same two names.
                None => NodeName::of_unnamed(mount.node, mount.kind),
            };
        }
        mounts
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

    /// Reads a record as a client says that the master has named it, verified; `None` when it is gone, or there is none of
    /// that length and checksum. Promotions that wait for its bytes get them.
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
            replicas: [self.shared().identity.disk_replica()].as_slice().into(),
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use slackwater_base::ByteSize;
    use slackwater_transfer::{Gate, Rights as Reach};
    use slackwater_wire::{
        Chain, DiskEntry, Key, PutConfig, PutDone, PutEntry, PutStart, PutStarted, Tenant, Version,
    };

    use super::*;
    use crate::{Config, GetOptions, store::Sharing};

    const CLIENT: ClientId = ClientId(1 << 40);
    const BYTES: usize = 8192;

    #[derive(Default)]
    struct Replies(Mutex<Vec<Reply>>);

    impl Deliver for Replies {
        fn deliver(&self, outbound: Outbound) {
            let replies = outbound.replies.into_iter().map(|(.., reply)| reply);
            self.0.lock().unwrap().extend(replies);
        }
    }

    /// A put of another process that was granted room.
    struct Put {
        store: Store,
        replies: Arc<Replies>,
        version: Version,
        extent: ExtentRef,
    }

    impl Put {
        fn start() -> Self {
            let config = Config {
                memory: ByteSize::mib(16),
                ssd: ByteSize(0),
                ..Config::default()
            };
            let beside = ByteSize::mib(1);
            let store = Store::open_for(
                config,
                Some(Sharing {
                    beside,
                    piece: None,
                    identity: None,
                    events: None,
                }),
            )
            .unwrap();
            let replies = Arc::new(Replies::default());
            store.deliver_to(Arc::clone(&replies) as _);
            let entry = PutEntry {
                key: Key::new(b"k").unwrap(),
                bytes: BYTES as u64,
            };
            let start = Request::PutStart(PutStart {
                tenant: Tenant::DEFAULT,
                entries: vec![entry],
                chain: Chain::default(),
                config: PutConfig::default(),
            });
            ask(&store, 1, start).unwrap();
            let reply = replies.0.lock().unwrap().pop();
            let Some(Reply::PutStart(mut started)) = reply else {
                panic!("{reply:?}");
            };
            let Some(PutStarted::Granted { version, extents }) = started.pop() else {
                panic!("{started:?}");
            };
            Self {
                store,
                replies,
                version,
                extent: extents[0],
            }
        }

        fn named(&self) -> Extent {
            Extent {
                offset: self.extent.offset,
                bytes: self.extent.bytes,
                generation: self.extent.generation,
            }
        }

        fn gate(&self) -> &ExtentGate {
            &self.store.served().unwrap().gate
        }

        /// What a write that a peer has in the air does to memory.
        fn land(&self, byte: u8) {
            let region = &self.store.segment().region;
            // SAFETY: nobody else touches the extent: the test's put is the only one.
            let grant =
                unsafe { Grant::new(region, self.extent.offset, BYTES as u64, Access::Write) };
            let _ = grant.unwrap().copy_in(&[byte; BYTES]);
        }

        /// Ends the put as one of this byte.
        fn end(&self, byte: u8) -> Result<(), ErrorCode> {
            let done = PutDone {
                key: Key::new(b"k").unwrap(),
                version: self.version,
                checksum: slackwater_pool::copy::checksum(&[byte; BYTES]),
            };
            let end = Request::PutEnd(PutEnd {
                tenant: Tenant::DEFAULT,
                puts: vec![done],
                hosts: None,
            });
            ask(&self.store, 2, end)
        }
    }

    fn ask(store: &Store, operation: u64, request: Request) -> Result<(), ErrorCode> {
        store.ask_for(RemoteRequest {
            client: CLIENT,
            host: None,
            operation: OperationId(operation),
            permissions: Permissions::admin(),
            request,
        })
    }

    /// A client asked for a record with a wrong length. The bytes that were read for it had another checksum than the
    /// record's, which therefore counted as rotten and was dropped.
    #[test]
    fn a_wrong_word_about_a_record_does_not_harm_it() {
        let root = tempfile::tempdir().unwrap();
        let config = Config {
            memory: ByteSize::mib(16),
            ssd: ByteSize::mib(16),
            dir: Some(root.path().to_owned()),
            ..Config::default()
        };
        let store = Store::open(config).unwrap();
        let value = vec![7; BYTES];
        store.put(b"k", &value, &Default::default()).unwrap();
        store.flush(Duration::from_secs(60)).unwrap();
        let found = store.describe(b"k", &Tenant::DEFAULT).unwrap().unwrap();
        let check = |bytes: usize, byte: u8, expected: Option<&Vec<u8>>| {
            let record = ReadRecord {
                epoch: Epoch(0),
                client: CLIENT,
                entry: DiskEntry {
                    tenant: Tenant::DEFAULT,
                    key: Key::new(b"k").unwrap(),
                    version: found.version,
                },
                bytes: bytes as u64,
                checksum: slackwater_pool::copy::checksum(&[byte; BYTES]),
                trace: None,
            };
            let read = store.read_record(&record).unwrap();
            assert_eq!(read.as_ref(), expected, "{bytes} bytes of {byte}");
            assert_eq!(store.stats().corrupt, 0);
        };
        check(BYTES / 2, 7, None);
        check(BYTES * 2, 7, None);
        check(BYTES, 8, None);
        check(BYTES, 7, Some(&value));
        let there = store.describe(b"k", &Tenant::DEFAULT).unwrap().unwrap();
        assert_eq!(there.replicas.len(), found.replicas.len());
    }

    /// A writer ended its put while a write of it was in the air. It landed after the bytes had been compared, and what
    /// was published changed.
    #[test]
    fn nothing_is_published_while_it_may_still_be_written() {
        let put = Put::start();
        let write = put.gate().begin(put.named(), Reach::WRITE).unwrap();
        put.land(1);
        assert_eq!(put.end(1), Err(ErrorCode::ReplicaIsNotReady));
        put.land(2);
        put.gate().end(write);
        assert_eq!(put.end(1), Err(ErrorCode::ChecksumMismatch));
        assert!(put.gate().begin(put.named(), Reach::WRITE).is_err());
        assert_eq!(put.end(2), Ok(()));
        let got = put.store.get(b"k", &GetOptions::default()).unwrap();
        assert!(got.is_some_and(|got| *got == [2; BYTES]));
        assert_eq!(put.replies.0.lock().unwrap().len(), 1);
    }

    /// A node had a worker woken for each put that its master asked about, on machines where the wake takes as long as the
    /// reading. What has to wait is still left to workers: the loop that the master's orders come on must not.
    #[test]
    fn a_check_that_would_wait_is_not_made_at_once() {
        let put = Put::start();
        let write = put.gate().begin(put.named(), Reach::WRITE).unwrap();
        put.land(1);
        let written = |byte: u8| Written {
            extent: put.extent,
            bytes: BYTES as u64,
            checksum: slackwater_pool::copy::checksum(&[byte; BYTES]),
        };
        let took = [(); 5].map(|()| {
            let begun = now();
            assert_eq!(put.store.check_now(&[written(1)]), None);
            begun.until(now())
        });
        assert!(took.iter().any(|took| *took < WRITES_WAIT), "{took:?}");
        put.gate().end(write);
        let mismatch = Some(Err(ErrorCode::ChecksumMismatch));
        assert_eq!(put.store.check_now(&[written(2)]), mismatch);
        assert_eq!(put.store.check_now(&[written(1)]), Some(Ok(())));
        assert!(put.gate().begin(put.named(), Reach::WRITE).is_err());
    }

    #[test]
    fn a_write_that_does_not_end_ends_its_put() {
        let put = Put::start();
        let write = put.gate().begin(put.named(), Reach::WRITE).unwrap();
        put.land(1);
        let ended = std::iter::repeat_with(|| put.end(1));
        let mut ended = ended.skip_while(|end| *end == Err(ErrorCode::ReplicaIsNotReady));
        assert_eq!(ended.next(), Some(Err(ErrorCode::InvalidWrite)));
        let key = put.store.describe(b"k", &Tenant::DEFAULT);
        assert!(key.unwrap().is_none(), "its room is not its any more");
        assert!(put.gate().begin(put.named(), Reach::READ).is_err());
        put.gate().end(write);
        put.end(1).unwrap();
        let reply = put.replies.0.lock().unwrap().pop();
        assert_eq!(
            reply,
            Some(Reply::Each(vec![Err(ErrorCode::ObjectNotFound)]))
        );
    }
}
