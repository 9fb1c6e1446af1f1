//! A served store: master, node and client are processes of their own, beside a bare transfer, a socket, Redis and the incumbent in
//! the same run.

mod bounds;
mod client;
mod incumbent;
mod server;
pub(crate) mod waits;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use slackwater_base::ByteSize;
use slackwater_report::Bound;
use thiserror::Error;

use crate::cluster::ClusterError;
use crate::process::{Process, ProcessError};
use crate::store::redis::{Load, Redis};
use crate::transfer::grid::{Cell, Pair, Round};
use crate::transfer::limits::Bed;
use crate::transfer::{self, BenchError, Carrier, Direction};
use crate::usage::median;
use server::Server;

/// The load and sizes of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The calls that clients make, measured one kind after another.
    pub ops: Vec<Op>,
    /// Lengths of values.
    pub blocks: Vec<usize>,
    /// Calls under way at once, each on a thread of its own.
    pub concurrency: Vec<usize>,
    /// The ways between client and store.
    pub paths: Vec<Path>,
    /// Values of one call of a batch.
    pub batch: usize,
    /// How long each cell is measured in each round.
    pub window: Duration,
    /// Rounds, with the limits between them; the medians count.
    pub rounds: usize,
    /// Memory of the node.
    pub memory: ByteSize,
    /// Where the master's directory and the peer's socket are made.
    pub directory: PathBuf,
    /// Whether Redis and the incumbent are measured too.
    pub peers: bool,
    /// A Python with the incumbent's package: `SLACKWATER_PYTHON`, else `python3`; left out when it has none.
    pub python: PathBuf,
    /// How to start this program as `master` and as `node`; without it one process is both.
    pub program: Option<Vec<OsString>>,
    /// How to start this program so that it calls [`child`] with the arguments that follow.
    pub child: Vec<OsString>,
    /// The same for [`transfer::child`].
    pub transfer_child: Vec<OsString>,
}

impl Options {
    /// The whole grid, with files and sockets in `directory`.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self {
            ops: Op::ALL.to_vec(),
            blocks: vec![4 << 10, 64 << 10, 1 << 20, 4 << 20],
            concurrency: vec![1, 16, 64],
            paths: vec![Path::Tcp, Path::SameHost],
            batch: 16,
            window: Duration::from_millis(200),
            rounds: 3,
            memory: ByteSize::gib(1),
            directory,
            peers: true,
            python: std::env::var_os("SLACKWATER_PYTHON")
                .unwrap_or_else(|| "python3".into())
                .into(),
            program: None,
            child: Vec::new(),
            transfer_child: Vec::new(),
        }
    }

    /// How long a measured process may be silent.
    fn patience(&self) -> Duration {
        Duration::from_secs(60) + 10 * self.window
    }

    fn millis(&self) -> u128 {
        self.window.as_millis()
    }
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Puts a value from the caller's memory.
    PutFrom,
    /// Puts several in one call.
    PutBatch,
    /// Reads a value into the caller's memory.
    GetInto,
    /// The same by a client that remembers no location and asks each time.
    GetIntoAsked,
    /// Reads a value into fresh memory.
    Get,
    /// Reads several into the caller's memory in one call.
    GetBatchInto,
}

impl Op {
    /// Everything that is measured.
    pub const ALL: [Self; 6] = [
        Self::PutFrom,
        Self::PutBatch,
        Self::GetInto,
        Self::GetIntoAsked,
        Self::Get,
        Self::GetBatchInto,
    ];

    /// Its name in options and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PutFrom => "put_from",
            Self::PutBatch => "put_batch",
            Self::GetInto => "get_into",
            Self::GetIntoAsked => "get_into_asked",
            Self::Get => "get",
            Self::GetBatchInto => "get_batch_into",
        }
    }

    /// What a name stands for.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.name() == name)
    }

    fn is_batch(self) -> bool {
        matches!(self, Self::PutBatch | Self::GetBatchInto)
    }
}

/// A way between client and store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// Loopback TCP.
    Tcp,
    /// Memory that both map.
    SameHost,
}

impl Path {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Tcp, Self::SameHost];

    /// Its name in options and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::SameHost => "same_host",
        }
    }

    /// What a name stands for.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|path| path.name() == name)
    }

    fn carrier(self) -> Carrier {
        match self {
            Self::Tcp => Carrier::Tcp,
            Self::SameHost => Carrier::Shm,
        }
    }
}

/// Why there is no report.
#[derive(Debug, Error)]
pub enum ServedError {
    /// A measured process gave no figures.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The bare transfer or a limit gave none.
    #[error(transparent)]
    Bare(#[from] BenchError),
    /// Master and node could not be started.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The process that is both could not.
    #[error(transparent)]
    Serve(#[from] slackwater_node::serve::ServeError),
    /// The client could not connect.
    #[error(transparent)]
    Connect(#[from] slackwater_remote::ConnectError),
    /// A call failed, or brought other bytes than were put.
    #[error("{0}")]
    Call(String),
    /// A strategy of waiting that is none.
    #[error(transparent)]
    Strategy(#[from] slackwater_wait::ChoiceError),
    /// A child was started with arguments it does not know.
    #[error("unknown child arguments {0:?}")]
    Arguments(Vec<String>),
}

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was measured, a row each.
    pub rows: Vec<Row>,
    /// What the machine gives without a store.
    pub limits: Limits,
    /// Bare transfers between two processes, for each path, block and number of them at once.
    pub bare: Vec<Bare>,
    /// What other systems gave, or why there is nothing of them.
    pub peers: BTreeMap<&'static str, Peer>,
    /// What is promised, held against the figures.
    pub bounds: Vec<Bound>,
}

/// One cell of the grid.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What the client did.
    pub op: Op,
    /// Length of a value in bytes.
    pub block: usize,
    /// Calls under way at once.
    pub concurrency: usize,
    /// The way between client and store.
    pub path: Path,
    /// 10^9 bytes of values a second.
    pub gbps: f64,
    /// Values a second.
    pub ops_per_s: f64,
    /// Half of the calls took no longer.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// CPUs that the client's process used.
    pub client_cores: f64,
    /// CPUs that the node's process used.
    pub node_cores: f64,
    /// CPUs that the master's process used; none where that is the node's.
    pub master_cores: Option<f64>,
}

/// What the machine gives without a store.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Limits {
    /// A stream of 1 MiB messages over one blocking socket, 10^9 bytes a second.
    pub blocking_socket_gbps: f64,
    /// 4 KiB there and back over a blocking socket.
    pub blocking_socket_ping_us: f64,
    /// A copy past the cache in one process.
    pub streaming_copy_gbps: f64,
}

/// A bare transfer: a read of registered memory by a capability that is known.
#[derive(Clone, Debug, Serialize)]
pub struct Bare {
    /// Length in bytes.
    pub block: usize,
    /// Transfers under way at once.
    pub concurrency: usize,
    /// The way between the processes.
    pub path: Path,
    /// 10^9 bytes a second.
    pub gbps: f64,
    /// Half took no longer.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
}

/// What another system gave.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Peer {
    /// Its figures.
    Rows(Vec<PeerRow>),
    /// Why there are none.
    Skipped(String),
}

/// Reads from a peer, over TCP.
#[derive(Clone, Debug, Serialize)]
pub struct PeerRow {
    /// Its command.
    pub op: &'static str,
    /// Length of a value in bytes.
    pub block: usize,
    /// Connections, each with a thread of its own.
    pub concurrency: usize,
    /// 10^9 bytes of values a second.
    pub gbps: f64,
    /// Values a second.
    pub ops_per_s: f64,
    /// Half took no longer.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
}

/// Measures.
///
/// # Errors
/// When a process cannot be started, fails or falls silent.
pub fn run(options: &Options) -> Result<Report, ServedError> {
    let bare = transfer::Options {
        child: options.transfer_child.clone(),
        window: options.window,
        ..transfer::Options::default()
    };
    let mut limits = Bed::start(&bare)?;
    let mut samples = LimitSamples::default();
    let mut report = Report {
        rows: Vec::new(),
        limits: Limits::default(),
        bare: Vec::new(),
        peers: BTreeMap::new(),
        bounds: Vec::new(),
    };
    let mut redis = match options.peers {
        true => Redis::over_tcp(&options.directory),
        false => Err("left out, as asked".to_owned()),
    };
    let mut peer_rows = Vec::new();
    for &path in &options.paths {
        let mut ends = Ends::start(options, path)?;
        let mut pair = Pair::start(&bare, path.carrier(), "adaptive")?;
        for &block in &options.blocks {
            ends.fill(block)?;
            let mut cells = Cells::new(options, path, block);
            for _ in 0..options.rounds {
                samples.take(&mut limits)?;
                cells.round(options, &mut ends, &mut pair)?;
            }
            cells.finish(&mut report);
            if path == Path::Tcp
                && let Ok(peer) = &mut redis
            {
                match of_redis(options, peer, block) {
                    Ok(rows) => peer_rows.extend(rows),
                    Err(error) => redis = Err(error.to_string()),
                }
            }
        }
    }
    let peer = match redis {
        Ok(_) if options.paths.contains(&Path::Tcp) => Peer::Rows(peer_rows),
        Ok(_) => Peer::Skipped("it is measured over TCP".to_owned()),
        Err(reason) => Peer::Skipped(reason),
    };
    report.peers.insert("redis", peer);
    report.peers.insert("mooncake", incumbent::measure(options));
    report.limits = samples.finish();
    report.bounds = bounds::of(&report);
    Ok(report)
}

/// Plays the part of a measured process.
///
/// # Errors
/// When the part cannot be played.
pub fn child(arguments: &[String]) -> Result<(), ServedError> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let unknown = || ServedError::Arguments(arguments.to_vec());
    match words[..] {
        ["server", memory] => server::run(memory.parse().map_err(|_| unknown())?),
        ["client", address, path, wait] => {
            let path = Path::parse(path).ok_or_else(unknown)?;
            let choice: slackwater_wait::Choice = wait.parse()?;
            slackwater_wait::install(choice.strategy(), None);
            client::run(address, path)
        }
        _ => Err(unknown()),
    }
}

/// What serves, and its client.
struct Ends {
    server: Server,
    client: Process,
}

impl Ends {
    fn start(options: &Options, path: Path) -> Result<Self, ServedError> {
        let (server, address) = Server::start(options, path)?;
        let client = Self::ask(options, &address, path, "adaptive")?;
        Ok(Self { server, client })
    }

    /// A client that waits by a strategy.
    fn ask(
        options: &Options,
        address: &str,
        path: Path,
        wait: &str,
    ) -> Result<Process, ServedError> {
        let words = ["client", address, path.name(), wait];
        let mut client = Process::start(&options.child, &words, options.patience())?;
        client.hear("ready")?;
        Ok(client)
    }

    fn fill(&mut self, block: usize) -> Result<(), ProcessError> {
        self.client.say(&format!("fill {block}"))?;
        self.client.hear("filled").map(drop)
    }

    fn round(
        &mut self,
        options: &Options,
        cell: (Op, usize, usize),
    ) -> Result<Sample, ProcessError> {
        let (op, block, concurrency) = cell;
        let (batch, millis) = (options.batch, options.millis());
        let op = op.name();
        self.client
            .say(&format!("run {op} {block} {concurrency} {batch} {millis}"))?;
        self.client.hear("begun")?;
        let (client, server) = (self.client.cpu_seconds(), self.server.cpu_seconds());
        self.client.say("go")?;
        let [values, seconds, p50_us, p99_us, mean_us] = self.client.numbers("ran")?;
        let after = self.server.cpu_seconds();
        let master = after.master.zip(server.master);
        Ok(Sample {
            ops_per_s: values / seconds,
            p50_us,
            p99_us,
            mean_us,
            client_cores: (self.client.cpu_seconds() - client) / seconds,
            node_cores: (after.node - server.node) / seconds,
            master_cores: master.map(|(after, before)| (after - before) / seconds),
        })
    }
}

/// One round of one cell.
#[derive(Clone, Copy)]
struct Sample {
    ops_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    mean_us: f64,
    client_cores: f64,
    node_cores: f64,
    master_cores: Option<f64>,
}

/// The cells of a path and a block, and the bare transfers beside them.
struct Cells {
    path: Path,
    block: usize,
    served: Vec<((Op, usize), Vec<Sample>)>,
    bare: Vec<(usize, Vec<Round>)>,
}

impl Cells {
    fn new(options: &Options, path: Path, block: usize) -> Self {
        let both = |op: &Op| {
            let op = *op;
            let all = options.concurrency.iter();
            all.map(move |concurrency| ((op, *concurrency), Vec::new()))
                .collect::<Vec<_>>()
        };
        Self {
            path,
            block,
            served: options.ops.iter().flat_map(both).collect(),
            bare: options
                .concurrency
                .iter()
                .map(|concurrency| (*concurrency, Vec::new()))
                .collect(),
        }
    }

    fn round(
        &mut self,
        options: &Options,
        ends: &mut Ends,
        pair: &mut Pair,
    ) -> Result<(), ServedError> {
        for (concurrency, rounds) in &mut self.bare {
            let cell = Cell {
                direction: Direction::Read,
                block: self.block,
                concurrency: *concurrency,
                batch: 1,
            };
            rounds.push(pair.round(cell, options.millis())?);
        }
        for ((op, concurrency), samples) in &mut self.served {
            samples.push(ends.round(options, (*op, self.block, *concurrency))?);
        }
        Ok(())
    }

    fn finish(self, report: &mut Report) {
        let Self { path, block, .. } = self;
        for (concurrency, rounds) in self.bare {
            let middle = |value: fn(&Round) -> f64| middle(&rounds, value);
            report.bare.push(Bare {
                block,
                concurrency,
                path,
                gbps: middle(|round| round.gbps),
                p50_us: middle(|round| round.p50_us),
                p99_us: middle(|round| round.p99_us),
            });
        }
        for ((op, concurrency), samples) in self.served {
            let middle = |value: fn(&Sample) -> f64| middle(&samples, value);
            let ops_per_s = middle(|sample| sample.ops_per_s);
            report.rows.push(Row {
                op,
                block,
                concurrency,
                path,
                gbps: ops_per_s * block as f64 / 1e9,
                ops_per_s,
                p50_us: middle(|sample| sample.p50_us),
                p99_us: middle(|sample| sample.p99_us),
                client_cores: middle(|sample| sample.client_cores),
                node_cores: middle(|sample| sample.node_cores),
                master_cores: median_of(samples.iter().map(|sample| sample.master_cores)),
            });
        }
    }
}

/// The limits, measured between the rounds.
#[derive(Default)]
struct LimitSamples(Vec<Limits>);

impl LimitSamples {
    fn take(&mut self, bed: &mut Bed) -> Result<(), BenchError> {
        let (streaming, _) = bed.copies()?;
        self.0.push(Limits {
            blocking_socket_gbps: bed.stream()?.gbps,
            blocking_socket_ping_us: bed.ping()?.p50_us,
            streaming_copy_gbps: streaming.gbps,
        });
        Ok(())
    }

    fn finish(self) -> Limits {
        let middle = |value: fn(&Limits) -> f64| middle(&self.0, value);
        Limits {
            blocking_socket_gbps: middle(|taken| taken.blocking_socket_gbps),
            blocking_socket_ping_us: middle(|taken| taken.blocking_socket_ping_us),
            streaming_copy_gbps: middle(|taken| taken.streaming_copy_gbps),
        }
    }
}

impl PeerRow {
    /// The middle of rounds: values a second, and the microseconds that half and 99 of 100 took at most.
    fn of(op: &'static str, block: usize, concurrency: usize, taken: &[[f64; 3]]) -> Self {
        let middle = |at: usize| middle(taken, |taken| taken[at]);
        Self {
            op,
            block,
            concurrency,
            gbps: middle(0) * block as f64 / 1e9,
            ops_per_s: middle(0),
            p50_us: middle(1),
            p99_us: middle(2),
        }
    }
}

/// GETs of a peer with values of this length.
fn of_redis(
    options: &Options,
    redis: &mut Redis<std::net::TcpStream>,
    block: usize,
) -> std::io::Result<Vec<PeerRow>> {
    let count = values_of(block).min(1024);
    let value = vec![7; block];
    for number in 0..count {
        redis.set(&number.to_string(), &value)?;
    }
    let mut rows = Vec::new();
    for &concurrency in &options.concurrency {
        let load = Load {
            count,
            block,
            concurrency,
            window: options.window,
        };
        let taken = (0..options.rounds)
            .map(|_| redis.gets(load))
            .collect::<Result<Vec<_>, _>>()?;
        rows.push(PeerRow::of("GET", block, concurrency, &taken));
    }
    Ok(rows)
}

fn middle<T>(taken: &[T], value: impl Fn(&T) -> f64) -> f64 {
    median(&mut taken.iter().map(value).collect::<Vec<_>>())
}

/// The median, where each has a value.
fn median_of(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect::<Option<_>>()?;
    Some(median(&mut values))
}

/// How many values of a length are read in turn: more than a cache holds, where they are large.
fn values_of(block: usize) -> usize {
    (VALUES_BYTES / block).min(VALUES_MAX)
}

const VALUES_BYTES: usize = 256 << 20;
const VALUES_MAX: usize = 4096;
