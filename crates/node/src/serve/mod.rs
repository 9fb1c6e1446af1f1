//! A store that clients in other processes use: the master answers their requests on links of the message layer, and
//! their bytes go from and to the arena by the transfer engine, under capabilities that come with the answers.
//!
//! It is the embedded store with one more entrance: the same `Core` under the same lock, driven by the same steward.

pub(crate) mod backend;
mod clients;
pub(crate) mod epoch;
mod error;
mod gate;
pub(crate) mod handlers;
pub(crate) mod memory;
pub(crate) mod minter;
mod operated;
pub(crate) mod outgoing;
mod staging;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slackwater_base::ByteSize;
use slackwater_mq::{
    Access, Admission, AllowList, AllowListError, Builder, Category, Level, ListenError,
    ListenOptions, Mq, Options, Queueing, Run, Running, load_key,
};
use slackwater_net::{Endpoint, UnixAccess};
use slackwater_transfer::{Engine, EngineConfig, SealConfig, TcpConfig};
use slackwater_wire::{Epoch, limits};
use slackwater_zmtp::{KeyPair, Limits, PublicKey};

pub use error::ServeError;
pub(crate) use gate::{ExtentGate, WRITTEN};
pub use operated::ServedStore;

use self::handlers::Handlers;
use self::memory::ServedMemory;
use self::outgoing::{Leaving, Outgoing};
use crate::kv_events::KvEvents;
use crate::store::{GRANULE, Sharing};
use crate::{Config, KvEventsOptions, KvEventsPlaces, Store, StoreError};

/// How a store is served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Where requests come in; a port of 0 means a free one.
    pub listen: SocketAddr,
    /// Where bytes come in and leave; a free port at the address of `listen` when none.
    pub data: Option<SocketAddr>,
    /// Who this side is and who may connect; none for a loopback, where every process of the machine may.
    pub keys: Option<ServeKeys>,
    /// Memory for what is read from SSD on behalf of clients; the longest value they can read from SSD is half of it.
    pub staging: ByteSize,
    /// Tells routers of requests what it holds; nobody when none.
    pub kv_events: Option<KvEventsOptions>,
}

/// The files with keys, as `slackwater keys` makes them.
#[derive(Clone, Debug)]
pub struct ServeKeys {
    /// The secret key of this side.
    pub key_file: PathBuf,
    /// The keys that may connect.
    pub allowed: PathBuf,
}

impl ServeOptions {
    /// The port of requests when nothing else is said.
    pub const PORT: u16 = 50_051;
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], Self::PORT).into(),
            data: None,
            keys: None,
            staging: ByteSize::mib(64),
            kv_events: None,
        }
    }
}

/// A store that is being served. It stops when this is dropped; [`Server::close`] says how that went.
pub struct Server {
    messages: Running,
    engine: Engine,
    store: Store,
    outgoing: Arc<Outgoing>,
    allowed: Option<AllowList>,
    address: SocketAddr,
    public_key: Option<PublicKey>,
    events: Option<KvEvents>,
}

/// Messages of up to this many bytes are taken: the longest request, and the longest answer to it.
const MESSAGE_BYTES: u64 = 2 * limits::REQUEST_BYTES_MAX as u64;
/// Reads of records that wait for a worker.
pub(crate) const RECORDS_QUEUED: usize = 4_096;

impl Server {
    /// Opens the store of `config` and serves it.
    ///
    /// # Errors
    /// When the store cannot be opened, an address cannot be listened on or needs keys, or a key or list of keys cannot
    /// be read.
    pub fn start(config: Config, options: &ServeOptions) -> Result<Self, ServeError> {
        let address = options.listen;
        let data = options.data.unwrap_or((address.ip(), 0).into());
        let links = Links::read(options.keys.as_ref())?;
        links.check(address)?;
        let beside = check_data(&links, data, options.staging)?;
        // It is told of what the log of the store holds too.
        let events = KvEvents::start(options.kv_events.as_ref(), &links, config.tenants)?;
        let sharing = Sharing {
            beside,
            piece: None,
            identity: None,
            events: events.as_ref().map(KvEvents::queue),
        };
        let store = Store::open_for(config, Some(sharing))?;
        let engine = engine(data, &links, false)?;
        let memory = ServedMemory::new(store.clone(), engine.clone(), beside)?;
        let handlers = Arc::new(handlers(&store, memory, links.allowed.clone()));
        let messages = builder(&handlers, links.keys.clone())?.start()?;
        let address = links.listen(&messages, address)?;
        Ok(Self {
            messages,
            engine,
            store,
            outgoing: Arc::clone(&handlers.outgoing),
            public_key: links.public_key(),
            allowed: links.allowed,
            address,
            events,
        })
    }

    /// Where requests come in.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The key that clients must name, when links are encrypted.
    #[must_use]
    pub fn public_key(&self) -> Option<PublicKey> {
        self.public_key
    }

    /// The epoch of the master, which grows with each start.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.outgoing.epoch
    }

    /// Where bytes come in and leave.
    #[must_use]
    pub fn data_addresses(&self) -> &[SocketAddr] {
        &self.engine.segment().addresses
    }

    /// The store, for callers in this process.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Clients that have a link.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.outgoing.clients().len()
    }

    /// Reads the list of keys again when it is called, on any thread, and ends the links of those that may not connect any
    /// more. When the file cannot be read, the old list stays in force.
    pub fn reloader(&self) -> impl Fn() -> Result<(), AllowListError> + Send + Sync + use<> {
        reloader(self.allowed.clone(), self.messages.handle())
    }

    /// Where KV events are told, if anywhere.
    #[must_use]
    pub fn kv_events(&self) -> Option<KvEventsPlaces> {
        self.events.as_ref().map(KvEvents::places)
    }

    /// Takes no more requests, answers those that have come, for at most `limit`, and closes the store.
    ///
    /// # Errors
    /// As [`Store::close`].
    pub fn close(self, limit: Duration) -> Result<(), StoreError> {
        // What is not answered within the limit is told that its link is gone.
        let _ = self.messages.drain(limit);
        self.messages.stop();
        self.engine.close();
        self.store.clone().close()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.messages.stop();
        self.engine.close();
    }
}

/// Who a process is on its links, and who may connect.
pub(crate) struct Links {
    pub(crate) keys: Option<KeyPair>,
    pub(crate) allowed: Option<AllowList>,
}

impl Links {
    /// Reads the files; without any, every process of the machine may connect.
    pub(crate) fn read(files: Option<&ServeKeys>) -> Result<Self, ServeError> {
        let Some(files) = files else {
            let (keys, allowed) = (None, None);
            return Ok(Self { keys, allowed });
        };
        Ok(Self {
            keys: Some(load_key(&files.key_file)?),
            allowed: Some(AllowList::load(&files.allowed)?),
        })
    }

    /// Refuses an address that other machines reach, unless peers are authenticated.
    pub(crate) fn check(&self, address: SocketAddr) -> Result<(), ServeError> {
        if self.keys.is_none() && !address.ip().is_loopback() {
            return Err(ServeError::NeedsKeys { address });
        }
        Ok(())
    }

    pub(crate) fn public_key(&self) -> Option<PublicKey> {
        self.keys.as_ref().map(KeyPair::public)
    }

    /// Listens for messages; says where.
    pub(crate) fn listen(
        &self,
        messages: &Running,
        address: SocketAddr,
    ) -> Result<SocketAddr, ServeError> {
        let admission = match &self.allowed {
            Some(list) => Admission::Listed(list.clone()),
            None => Admission::Everybody(Level::Admin),
        };
        let listening = ListenOptions {
            admission,
            encrypted: self.keys.is_some(),
            plain_anywhere: false,
            access: UnixAccess::default(),
            beside: true,
        };
        let refused = |why: ListenError| ServeError::Listen { address, why };
        let listens = messages.listen(&Endpoint::Tcp(address), &listening);
        let Endpoint::Tcp(address) = listens.map_err(refused)? else {
            unreachable!("a TCP address is listened on as one")
        };
        if self.keys.is_none() {
            tracing::info!(%address, "without keys, every process of this machine may use the store");
        }
        Ok(address)
    }
}

/// Checks where bytes come in and how much memory there is for records; says how much is mapped for them.
pub(crate) fn check_data(
    links: &Links,
    data: SocketAddr,
    staging: ByteSize,
) -> Result<ByteSize, ServeError> {
    links.check(data)?;
    if data.ip().is_unspecified() {
        return Err(ServeError::Unspecified { address: data });
    }
    if !(STAGING_MIN..=STAGING_MAX).contains(&staging.0) {
        return Err(ServeError::Staging { bytes: staging });
    }
    Ok(ByteSize(staging.0.next_multiple_of(GRANULE)))
}

/// The transfer engine of a process whose memory others reach.
pub(crate) fn engine(
    data: SocketAddr,
    links: &Links,
    force_tcp: bool,
) -> Result<Engine, ServeError> {
    let sealed = links.keys.as_ref().zip(links.allowed.as_ref());
    let seal = sealed.map(|(keys, clients)| SealConfig {
        keys: keys.clone(),
        clients: clients.clone(),
    });
    let mut config = EngineConfig::new("node");
    config.force_tcp = force_tcp;
    config.tcp = TcpConfig {
        bind: vec![data],
        seal,
        ..TcpConfig::default()
    };
    config
        .start()
        .map_err(|why| ServeError::Data { address: data, why })
}

/// Reads a list of keys again when it is called, and ends the links of those that may not connect any more.
pub(crate) fn reloader(
    allowed: Option<AllowList>,
    messages: Mq,
) -> impl Fn() -> Result<(), AllowListError> + Send + Sync + use<> {
    move || {
        if let Some(allowed) = &allowed {
            allowed.reload()?;
            messages.rights_changed();
        }
        Ok(())
    }
}

fn handlers(store: &Store, memory: ServedMemory, allowed: Option<AllowList>) -> Handlers {
    let served = store.served().expect("it was opened to be served");
    let outgoing = Arc::new(Outgoing::new(served.epoch, store.write_time()));
    outgoing.minters.add(store.segment().id, memory.minter());
    store.deliver_to(Arc::new(Leaving {
        outgoing: Arc::clone(&outgoing),
        transfers: memory.transfers.clone(),
    }));
    Handlers {
        backend: Arc::new(memory),
        outgoing,
        allowed,
        gathered: Mutex::default(),
    }
}

/// Least and most memory for records of the SSD that other processes read: two of the smallest, and a tebibyte.
const STAGING_MIN: u64 = 2 * GRANULE;
const STAGING_MAX: u64 = 1 << 40;

/// The message layer of a pool's processes.
pub(crate) fn message_options(keys: Option<KeyPair>) -> Options {
    Options {
        keys,
        limits: Limits {
            frame_bytes: MESSAGE_BYTES,
            message_bytes: MESSAGE_BYTES,
            ..Limits::default()
        },
        queue_bytes: 2 * MESSAGE_BYTES as usize,
        ..Options::default()
    }
}

/// A message layer that takes what clients ask of a master.
pub(crate) fn builder(
    handlers: &Arc<Handlers>,
    keys: Option<KeyPair>,
) -> Result<Builder, ServeError> {
    let mut builder = Builder::new(message_options(keys));
    let access = Access {
        level: Level::Basic,
        ..Access::default()
    };
    // The master decides within microseconds and waits for nobody.
    let at_once = Category {
        access,
        run: Run::Inline,
        ..Category::default()
    };
    let on_workers = Category {
        access,
        queueing: Queueing {
            queue: Some(RECORDS_QUEUED),
            ..Queueing::default()
        },
        ..Category::default()
    };
    builder.category("pool", at_once.clone())?;
    let records = match handlers.backend.reads_bytes() {
        true => on_workers,
        false => at_once,
    };
    builder.category("records", records)?;
    let with = |handle: fn(&Handlers, &slackwater_mq::Call<'_>)| {
        let handlers = Arc::clone(handlers);
        move |call: &slackwater_mq::Call<'_>| handle(&handlers, call)
    };
    builder.request_command("pool.hello", with(Handlers::hello))?;
    let together = Arc::clone(handlers);
    builder.request_command_together("pool.request", move |calls| together.requests(calls))?;
    builder.request_command("records.put_end", with(Handlers::put_end))?;
    builder.request_command("records.read", with(Handlers::read_record))?;
    builder.command("records.release", with(Handlers::release))?;
    let linked = Arc::clone(handlers);
    builder.on_link(move |event| linked.link(&event));
    Ok(builder)
}

#[cfg(test)]
mod tests {
    use slackwater_base::ByteSize;
    use slackwater_transfer::{Extent, Gate, Rights};
    use slackwater_wire::{ReplicaAt, Tenant};

    use super::*;
    use crate::{PutOptions, RemoveOptions, Stored};

    /// A put waited for room until its time was over, although the last reader of that room had long ended: nobody told
    /// the steward.
    #[test]
    fn room_comes_back_when_its_last_reader_in_another_process_ends() {
        let config = Config {
            memory: ByteSize::mib(16),
            ssd: ByteSize(0),
            ..Config::default()
        };
        let options = ServeOptions {
            listen: ([127, 0, 0, 1], 0).into(),
            ..ServeOptions::default()
        };
        let server = Server::start(config, &options).unwrap();
        let (store, large) = (server.store(), vec![1; 10 << 20]);
        let put = |key: &[u8], wait| {
            let options = PutOptions {
                wait: Some(wait),
                ..PutOptions::default()
            };
            store.put(key, &large, &options)
        };
        assert_eq!(put(b"k", Duration::ZERO), Ok(Stored::New));
        let found = store.describe(b"k", &Tenant::DEFAULT).unwrap().unwrap();
        let ReplicaAt::Memory(at) = found.replicas[0].0 else {
            panic!("{found:?}");
        };
        let extent = Extent {
            offset: at.offset,
            bytes: at.bytes,
            generation: at.generation,
        };
        let gate = &store.served().unwrap().gate;
        let access = gate.begin(extent, Rights::READ).unwrap();
        let force = RemoveOptions {
            force: true,
            ..RemoveOptions::default()
        };
        assert_eq!(store.remove(&[b"k"], &force), [Ok(())]);
        assert!(put(b"next", Duration::ZERO).is_err(), "it is still read");
        let long = store.config().deadline;
        std::thread::scope(|scope| {
            let begun = slackwater_wait::now();
            let waiting = scope.spawn(|| put(b"next", long));
            // Most likely the put waits by then; if not, it finds the room at once.
            std::thread::sleep(Duration::from_millis(200));
            gate.end(access);
            assert_eq!(waiting.join().unwrap(), Ok(Stored::New));
            assert!(begun.until(slackwater_wait::now()) < long / 2);
        });
    }
}
