use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use slackwater_base::{Backoff, ByteSize, Rng};
use slackwater_memory::{FilePiece, RefusedFile, WatchEnd};
use slackwater_mq::{
    Access, Address, Builder, Call, Category, ConnectOptions, ConnectionId, Level, Options,
    Queueing, Run, RunOn, Running, TimerOptions,
};
use slackwater_transfer::Engine;
use slackwater_wait::now;
use slackwater_wire::{Attached, ErrorCode, NodeId, NodeLife, NodeName};
use slackwater_zmtp::PublicKey;
use thiserror::Error;

use super::at_once::AtOnce;
use super::identity;
use super::uplink::{Attempt, Happened, ON_WORKERS, Uplink};
use crate::serve::handlers::{NODES, NODES_FROM, node_of};
use crate::serve::memory::ServedMemory;
use crate::serve::{
    Links, RECORDS_QUEUED, ServeError, ServeKeys, ServeOptions, check_data, engine, message_options,
};
use crate::store::{GRANULE, Sharing, random};
use crate::{Config, OpenError, Stats, Store, StoreError};

/// What a node lends to which master.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Where the master is; with its public key (`curve://HOST:PORT/KEY`) everything is encrypted.
    pub master: Address,
    /// Where bytes come in and leave: an address that clients reach; a port of 0 means a free one.
    pub data: SocketAddr,
    /// Who this side is, and whose transfers it takes; none for a loopback.
    pub keys: Option<ServeKeys>,
    /// Memory for what is read from SSD on behalf of clients; the longest value they can read from SSD is half of it.
    pub staging: ByteSize,
    /// What its memory is called, for puts and jobs that name it; none for a name made of its number.
    pub name: Option<NodeName>,
    /// The file that its memory is a piece of; none for memory of this process.
    pub file: Option<FileMemory>,
    /// Processes of this host reach it as others do: by TCP.
    pub force_tcp: bool,
}

/// Memory that is a piece of a file, as long as the configuration says, of which two pages are for the node itself. Others
/// have the file too: when it is made shorter the node leaves its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMemory {
    /// The file.
    pub path: PathBuf,
    /// Where in it the memory begins.
    pub offset: u64,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            master: Address::tcp(ServeOptions::default().listen),
            data: (Ipv4Addr::LOCALHOST, 0).into(),
            keys: None,
            staging: ServeOptions::default().staging,
            name: None,
            file: None,
            force_tcp: false,
        }
    }
}

/// Why a node does not start.
#[derive(Debug, Error)]
pub enum NodeError {
    /// Its store, its keys or its address cannot be used.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Its file cannot be memory.
    #[error(transparent)]
    File(#[from] RefusedFile),
    /// Records of an SSD are read into memory that only the process has.
    #[error("memory of a file is lent without an SSD")]
    FileWithSsd,
    /// The number by which the master knows it again cannot be kept.
    #[error("the number of this node: {0}")]
    Number(io::Error),
    /// A master that proves a key asks for one.
    #[error("{master} proves a key, so this node needs one: give --key-file and --allow")]
    NeedsKeys {
        /// The address of the master.
        master: Address,
    },
}

/// A node that lends memory, and an SSD if it has one, to a master in another process. It stops when this is dropped.
///
/// It waits for a master that is not there, now or later. A link that breaks is made anew, and nothing is lost by that.
/// A master that does not know it, as after a restart of the master, is told what its memory and its SSD hold.
pub struct NodeServer {
    shared: Arc<Supervised>,
    supervisor: Option<JoinHandle<Result<(), StoreError>>>,
    /// Of the file that it lends: what ends it, and its thread.
    watch: Option<(WatchEnd, JoinHandle<()>)>,
}

/// What the supervisor and the owner of a node share.
struct Supervised {
    config: Config,
    options: NodeOptions,
    links: Links,
    node: NodeId,
    beside: ByteSize,
    piece: Option<FilePiece>,
    told: Box<dyn Fn(NodeId, Result<(), ErrorCode>) + Send + Sync>,
    current: Mutex<Current>,
}

#[derive(Default)]
struct Current {
    uplink: Option<Arc<Uplink>>,
    memory: Weak<ServedMemory>,
    stopping: bool,
}

/// One life of a node. Fields end in this order.
struct Life {
    messages: Running,
    uplink: Arc<Uplink>,
    memory: Arc<ServedMemory>,
    engine: Engine,
}

/// Why a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The node is to stop.
    Stopping,
    /// It cannot go on: another life is to begin.
    Broken,
}

/// The file in a node's directory that keeps its number.
const NAME: &str = "node";
/// Pauses between attempts to reach the master.
const RETRY: Backoff = Backoff::doubling(Duration::from_millis(100), Duration::from_secs(2));
/// How long one attempt to connect may take.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Memory for records of an SSD, which a node that lends a file does not have: the least that there can be.
const STAGING_OF_FILES: ByteSize = ByteSize(2 * GRANULE);
/// How often a master is told what the clock of its node shows, by which capabilities expire.
const CLOCK_EVERY: Duration = Duration::from_secs(60);

impl NodeServer {
    /// Opens memory and SSD, and begins to look for the master; returns at once. `told` is called each time that the
    /// master has taken what the node lends, and when it refuses that.
    ///
    /// # Errors
    /// When the memory, the directory, a key or an address cannot be used.
    pub fn start(
        config: Config,
        options: NodeOptions,
        told: impl Fn(NodeId, Result<(), ErrorCode>) + Send + Sync + 'static,
    ) -> Result<Self, NodeError> {
        let shared = Arc::new(Supervised::new(config, options, told)?);
        let life = Life::begin(&shared)?;
        let other = Arc::clone(&shared);
        let supervisor = std::thread::Builder::new()
            .name("slack-node".to_owned())
            .spawn(move || other.run(life))
            .map_err(|why| {
                let what = "a thread";
                ServeError::from(OpenError::System { what, why })
            })?;
        Ok(Self {
            watch: shared.watch_file(),
            shared,
            supervisor: Some(supervisor),
        })
    }

    /// Its number, by which the master knows it again.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.shared.node
    }

    /// What its memory is called, if it was given a name.
    #[must_use]
    pub fn name(&self) -> Option<&NodeName> {
        self.shared.options.name.as_ref()
    }

    /// What it counts of its memory, its SSD and what it was ordered; what the master decides is counted there. `None` between two
    /// lives of it.
    #[must_use]
    pub fn stats(&self) -> Option<Stats> {
        let memory = self.shared.current().memory.upgrade()?;
        Some(memory.store.stats())
    }

    /// Its key, when links are encrypted.
    #[must_use]
    pub fn public_key(&self) -> Option<PublicKey> {
        self.shared.links.public_key()
    }

    /// Reads the list of keys again when it is called, on any thread. When the file cannot be read, the old list stays in
    /// force.
    pub fn reloader(
        &self,
    ) -> impl Fn() -> Result<(), slackwater_mq::AllowListError> + Send + Sync + use<> {
        let allowed = self.shared.links.allowed.clone();
        move || allowed.as_ref().map_or(Ok(()), |allowed| allowed.reload())
    }

    /// Has what only this node's memory holds go to other nodes, where there is room, for at most `time`. The master
    /// places nothing new here from then on.
    pub fn leave(&self, time: Duration) {
        self.shared.leave(time);
    }

    /// Makes everything queued for SSD durable and stops.
    ///
    /// # Errors
    /// As [`Store::close`].
    pub fn close(mut self) -> Result<(), StoreError> {
        self.stop()
    }

    fn stop(&mut self) -> Result<(), StoreError> {
        let Some(supervisor) = self.supervisor.take() else {
            return Ok(());
        };
        let watch = self.watch.take().map(|(_end, thread)| thread);
        self.shared.end();
        // One that panicked watches no more either.
        let _ = watch.map(JoinHandle::join);
        supervisor.join().unwrap_or(Err(StoreError::Closed))
    }
}

impl Drop for NodeServer {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!(%error, "the node was not closed cleanly");
        }
    }
}

impl Supervised {
    fn new(
        mut config: Config,
        options: NodeOptions,
        told: impl Fn(NodeId, Result<(), ErrorCode>) + Send + Sync + 'static,
    ) -> Result<Self, NodeError> {
        let links = Links::read(options.keys.as_ref())?;
        let staging = options
            .file
            .as_ref()
            .map_or(options.staging, |_| STAGING_OF_FILES);
        let beside = check_data(&links, options.data, staging)?;
        let piece = match &options.file {
            Some(_) if config.ssd.0 > 0 => return Err(NodeError::FileWithSsd),
            Some(file) => Some(FilePiece::open(&file.path, file.offset, config.memory.0)?),
            None => None,
        };
        if let Some(piece) = &piece {
            config.memory = ByteSize((piece.bytes() as u64).saturating_sub(beside.0));
        }
        if options.master.key.is_some() && links.keys.is_none() {
            let master = options.master;
            return Err(NodeError::NeedsKeys { master });
        }
        let node = match links.public_key() {
            Some(key) => node_of(&key),
            None => number(config.dir.as_deref().filter(|_| config.ssd.0 > 0))?,
        };
        Ok(Self {
            config,
            options,
            links,
            node,
            beside,
            piece,
            told: Box::new(told),
            current: Mutex::default(),
        })
    }

    /// Has its values go to other nodes, for at most `time`.
    fn leave(&self, time: Duration) {
        let uplink = self.current().uplink.clone();
        match uplink.and_then(|uplink| uplink.leave(time)) {
            None => tracing::info!("there is no master to leave"),
            Some(Ok(left)) => tracing::info!(
                values = left.done,
                bytes = left.done_bytes,
                left_bytes = left.left_bytes,
                "values have gone to other nodes"
            ),
            Some(Err(why)) => tracing::warn!(why, "values have not gone to other nodes"),
        }
    }

    /// Ends what it lends; its supervisor ends by itself.
    fn end(&self) {
        let mut current = self.current();
        current.stopping = true;
        if let Some(uplink) = &current.uplink {
            uplink.close();
        }
    }

    /// Leaves the pool when the file that is lent becomes shorter: every access behind its end would fail.
    fn watch_file(self: &Arc<Self>) -> Option<(WatchEnd, JoinHandle<()>)> {
        let piece = self.piece.as_ref()?;
        let watch = piece.watch();
        let watch = watch.inspect_err(|error| {
            tracing::warn!(%error, "nobody tells when the file that is lent becomes shorter");
        });
        let watch = watch.ok()?;
        let (end, shared) = (watch.end(), Arc::clone(self));
        let path = piece.path().to_owned();
        let waits = move || {
            if watch.wait() {
                tracing::error!(path = %path.display(), "the file that is lent became shorter: it is taken back");
                shared.leave(Duration::ZERO);
                shared.end();
            }
        };
        let thread = std::thread::Builder::new().name("slack-file".to_owned());
        let started = thread.spawn(waits);
        let started = started.inspect_err(|error| {
            tracing::warn!(%error, "no thread waits for the file that is lent to become shorter");
        });
        Some((end, started.ok()?))
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lives, one after another, until it is to stop.
    fn run(&self, mut life: Life) -> Result<(), StoreError> {
        let mut pause = Pauses::new(self.node);
        loop {
            let ended = life.run(self);
            let closed = life.end();
            if ended == Ended::Stopping {
                return closed;
            }
            if let Err(error) = closed {
                tracing::warn!(%error, "the last life was not closed cleanly");
            }
            life = loop {
                match Life::begin(self) {
                    Ok(life) => break life,
                    Err(error) => {
                        tracing::error!(%error, "a new life could not begin");
                        std::thread::sleep(pause.next());
                    }
                }
                if self.current().stopping {
                    return Ok(());
                }
            };
        }
    }
}

impl Life {
    fn begin(shared: &Supervised) -> Result<Self, ServeError> {
        let Supervised { options, links, .. } = shared;
        let sharing = Sharing {
            beside: shared.beside,
            piece: shared.piece.clone(),
            identity: Some(identity(shared.node)),
            events: None,
        };
        let store = Store::open_for(shared.config.clone(), Some(sharing))?;
        let engine = engine(options.data, links, options.force_tcp)?;
        let memory = ServedMemory::new(store.clone(), engine.clone(), shared.beside)?;
        let memory = Arc::new(memory);
        let name = shared.options.name.clone();
        let life = NodeLife(random()?);
        let at_once = AtOnce::of(shared.piece.as_ref());
        let uplink = Uplink::new(memory.transfers.clone(), life, name, at_once);
        let uplink = Arc::new(uplink);
        store.deliver_to(Arc::clone(&uplink) as _);
        let messages = messages(&memory, &uplink, links)?;
        uplink.send_by(messages.handle());
        // Orders come later, and what the log holds is announced when there is a master to hear it.
        store.recover()?;
        let clock = Arc::downgrade(&uplink);
        let every = TimerOptions {
            interval: CLOCK_EVERY,
            squelch: true,
            on: RunOn::default(),
        };
        // It ends with the message layer.
        let _ = messages.handle().add_timer(every, move || {
            if let Some(uplink) = clock.upgrade() {
                uplink.send(true);
            }
        });
        let mut current = shared.current();
        current.uplink = Some(Arc::clone(&uplink));
        current.memory = Arc::downgrade(&memory);
        if current.stopping {
            uplink.close();
        }
        drop(current);
        Ok(Self {
            messages,
            uplink,
            memory,
            engine,
        })
    }

    /// Belongs to the master's pool until it is to stop, or the master does not know it any more.
    fn run(&self, shared: &Supervised) -> Ended {
        let (mut pause, mut told) = (Pauses::new(shared.node), None);
        while !self.uplink.is_closed() {
            let attempt = self.uplink.begin_attempt();
            let link = match self.connect(shared) {
                Ok(link) => link,
                Err(error) => {
                    tracing::warn!(%error, "the master is not there");
                    self.uplink.rest(now() + pause.next());
                    continue;
                }
            };
            if let Some(ended) = self.attend(shared, attempt, (&mut pause, &mut told)) {
                return ended;
            }
            self.messages.handle().disconnect(link);
            // A master that welcomes the node and breaks each link at once is not asked without a pause.
            self.uplink.rest(now() + pause.next());
        }
        Ended::Stopping
    }

    fn connect(&self, shared: &Supervised) -> Result<ConnectionId, slackwater_mq::ConnectError> {
        let options = ConnectOptions {
            // The master orders.
            level: Level::Admin,
            timeout: Some(CONNECT_TIME),
            beside: !shared.options.force_tcp,
            ..ConnectOptions::default()
        };
        let master = &shared.options.master;
        self.messages.handle().connect_wait(master, &options)
    }

    /// Does what the link asks for; none when it must be made anew. `told` is what was last told of the node.
    fn attend(
        &self,
        shared: &Supervised,
        attempt: Attempt,
        (pause, told): (&mut Pauses, &mut Option<Result<(), ErrorCode>>),
    ) -> Option<Ended> {
        let mut up = None;
        loop {
            let Some(happened) = self.uplink.next(slackwater_base::Instant::NEVER) else {
                return Some(Ended::Stopping);
            };
            if !happened.concerns(up, attempt) {
                continue;
            }
            match happened {
                Happened::Up(link) => {
                    up = Some(link);
                    self.uplink.greet(link, &self.memory);
                }
                Happened::Answered(_, Attached::New { .. }) => {
                    *pause = Pauses::new(shared.node);
                    *told = Some(Ok(()));
                    (shared.told)(shared.node, Ok(()));
                }
                Happened::Answered(_, Attached::Resumed { .. }) => {
                    *pause = Pauses::new(shared.node);
                    tracing::info!("the link to the master goes on");
                    // The welcome may have come on a link that broke before it was looked at.
                    if told.replace(Ok(())) != Some(Ok(())) {
                        (shared.told)(shared.node, Ok(()));
                    }
                }
                Happened::Answered(link, Attached::Unknown) => match random() {
                    Ok(life) => {
                        tracing::warn!("the master does not know what this node holds: it is told");
                        let again = self.uplink.begin_again(NodeLife(life), &self.memory);
                        if again.is_err() {
                            return Some(Ended::Broken);
                        }
                        self.uplink.greet(link, &self.memory);
                    }
                    Err(error) => {
                        tracing::error!(%error, "the node cannot go on");
                        return Some(Ended::Broken);
                    }
                },
                Happened::Answered(link, Attached::Refused(code)) => {
                    if told.replace(Err(code)) != Some(Err(code)) {
                        tracing::error!(%code, "the master refuses this node{}", hint(code));
                        (shared.told)(shared.node, Err(code));
                    }
                    self.greet_later(link, pause);
                }
                Happened::Unanswered(link) => self.greet_later(link, pause),
                Happened::Broken(_) => return None,
                Happened::StoreBroken => return Some(Ended::Broken),
            }
        }
    }

    fn greet_later(&self, link: ConnectionId, pause: &mut Pauses) {
        self.uplink.rest(now() + pause.next());
        self.uplink.greet(link, &self.memory);
    }

    /// Makes everything queued for SSD durable and ends.
    fn end(self) -> Result<(), StoreError> {
        let closed = self.memory.store.clone().close();
        self.messages.stop();
        self.uplink.end();
        self.engine.close();
        closed
    }
}

/// Growing pauses between attempts.
struct Pauses {
    attempt: u32,
    random: Rng,
}

impl Pauses {
    fn new(node: NodeId) -> Self {
        Self {
            attempt: 0,
            random: Rng::new(u64::from(node.0)),
        }
    }

    fn next(&mut self) -> Duration {
        let pause = RETRY.pause(self.attempt, &mut self.random);
        self.attempt = self.attempt.saturating_add(1);
        pause
    }
}

/// What to do about a refusal.
fn hint(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::RoleNotPermitted => {
            ": enter its key into the master's list with the level `node`"
        }
        ErrorCode::IllegalClient => ": another process has its key or directory",
        ErrorCode::NotSupported => {
            ": it is a store that takes no nodes, as `slackwater serve` runs"
        }
        ErrorCode::StaleEpoch => {
            ": it began anew while its clock was behind. Set the clock and start it again, or start this node anew; a master \
             with `--directory` counts its lives by itself"
        }
        _ => "",
    }
}

fn messages(
    memory: &Arc<ServedMemory>,
    uplink: &Arc<Uplink>,
    links: &Links,
) -> Result<Running, ServeError> {
    let mut builder = Builder::new(Options {
        reconnect: RETRY,
        ..message_options(links.keys.clone())
    });
    let access = Access {
        level: Level::Admin,
        ..Access::default()
    };
    let on_workers = Category {
        access,
        queueing: Queueing {
            queue: Some(RECORDS_QUEUED),
            ..Queueing::default()
        },
        ..Category::default()
    };
    let at_once = Category {
        access,
        run: Run::Inline,
        ..Category::default()
    };
    builder.category("node", at_once.clone())?;
    builder.category("bytes", at_once)?;
    builder.category(ON_WORKERS, on_workers)?;
    let with = |handle: fn(&Uplink, &ServedMemory, &Call<'_>)| {
        let (uplink, memory) = (Arc::clone(uplink), Arc::clone(memory));
        move |call: &Call<'_>| handle(&uplink, &memory, call)
    };
    builder.command("node.orders", with(Uplink::orders))?;
    builder.command("node.announce_first", with(Uplink::announce_first))?;
    builder.command(
        "node.release",
        with(|_, memory, call| Uplink::release(memory, call)),
    )?;
    let waits = |answer: fn(&Uplink, &ServedMemory, &[u8]) -> Vec<u8>| {
        let (uplink, memory) = (Arc::clone(uplink), Arc::clone(memory));
        move |call: &Call<'_>| uplink.on_worker(&memory, call, answer)
    };
    let (checks, checked) = (Arc::clone(uplink), Arc::clone(memory));
    builder.request_command("bytes.check", move |call| checks.check(&checked, call))?;
    builder.request_command("bytes.stage", waits(Uplink::stage))?;
    builder.request_command("bytes.copy", waits(Uplink::copy))?;
    let linked = Arc::clone(uplink);
    builder.on_link(move |event| linked.link(&event));
    Ok(builder.start()?)
}

/// The number of a node without a key: the one that its directory keeps, or a new one.
fn number(directory: Option<&Path>) -> Result<NodeId, NodeError> {
    let [fresh, _] = random().map_err(ServeError::from)?;
    let fresh = NodeId(NODES_FROM + (fresh % u64::from(NODES)) as u32);
    let Some(directory) = directory else {
        return Ok(fresh);
    };
    let path = directory.join(NAME);
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let number = text.trim().parse().ok();
            let number = number.filter(|number| (NODES_FROM..1 << 31).contains(number));
            number.map(NodeId).ok_or_else(|| {
                let what = format!("{}: `{}` is none", path.display(), text.trim());
                NodeError::Number(io::Error::new(io::ErrorKind::InvalidData, what))
            })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            keep(directory, &path, fresh).map_err(NodeError::Number)?;
            Ok(fresh)
        }
        Err(error) => Err(NodeError::Number(error)),
    }
}

fn keep(directory: &Path, path: &Path, number: NodeId) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let mut file = std::fs::File::create(path)?;
    writeln!(file, "{number}")?;
    file.sync_all()?;
    std::fs::File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    mod checks;

    use super::*;

    #[test]
    fn a_node_keeps_its_number_where_it_keeps_its_records() {
        let folder = tempfile::tempdir().unwrap();
        let first = number(Some(folder.path())).unwrap();
        assert_eq!(number(Some(folder.path())).unwrap(), first);
        assert_ne!(number(None).unwrap(), first);
        assert!(first.0 >= NODES_FROM && first.0 < 1 << 31);
        std::fs::write(folder.path().join(NAME), "7\n").unwrap();
        let error = number(Some(folder.path())).unwrap_err().to_string();
        assert!(error.contains("`7` is none"), "{error}");
    }

    #[test]
    fn a_file_that_cannot_be_lent_is_told_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "short").unwrap();
        let check = |ssd, expected: &str| {
            let config = Config {
                memory: ByteSize::mib(2),
                ssd,
                dir: Some(folder.path().join("ssd")),
                ..Config::default()
            };
            let file = FileMemory {
                path: path.clone(),
                offset: 0,
            };
            let options = NodeOptions {
                file: Some(file),
                ..NodeOptions::default()
            };
            let error = NodeServer::start(config, options, |_, _| {}).err();
            let error = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expected), "{error}");
        };
        check(ByteSize(0), "file has 5 bytes: 2097152 from byte 0 on");
        check(ByteSize::gib(1), "lent without an SSD");
        assert!(!folder.path().join("ssd").exists());
    }
}
