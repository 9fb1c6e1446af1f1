use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use slackwater_base::{ByteSize, parse_duration};
use slackwater_bench::{meta, mq, pool, promotion, store, tiers, transfer, wait};
use slackwater_node::config::{IoBackend, Value as _};
use slackwater_pool::copy::{IsaChoice, IsaError};
use slackwater_replay::{TraceReader, Traffic};
use slackwater_transfer::AesLibrary;

use super::across::Machines;
use super::all::All;
use super::cluster::{Idle, Master, Page, Restart};
use super::copy::Copy;
use super::served::Grid;
use crate::args::block_bytes;

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Every benchmark several times, and one page of all figures with how far their runs lie apart; goes on where it was when it
    /// was interrupted
    All(All),
    /// Reads from memory beside a plain copy, reads from SSD beside direct reads of a plain file; with --served, calls to
    /// a master and a node beside bare transfers
    Store(Store),
    /// Latency of a read before promotion on hit and after it, and how long it takes; with --served, in a pool of processes
    Promotion(Promotion),
    /// A trace on memory over SSD beside a peer, and beside what the raw device gives for the same bytes
    Tiers(Tiers),
    /// Copies with a checksum beside plain ones: each path of instructions, into buffers of every alignment
    Copy(Copy),
    /// Time of a lookup, a put and an eviction in the catalog, and its memory an object
    Meta(Meta),
    /// Throughput and CPU of each way of waiting for a completion
    Wait(Wait),
    /// Bursts of short tasks on the worker pool beside rayon, OpenMP, oneTBB and a pool that spins for 50 ms
    Pool(Pool),
    /// Thousands of links and requests on the message layer beside pyzmq
    Mq(Mq),
    /// Blocks between two processes by each mover, beside sockets, copies and the incumbent's bench
    Transfer(Box<Transfer>),
    /// Look-ups, truths and puts of clients at a master with many nodes, each a process, and what its catalog takes
    Master(Master),
    /// What a master, its nodes and its clients cost while nobody asks for anything, and a client's memory at the master
    Idle(Idle),
    /// What pages that are open cost a master with ten nodes and a million objects, and the gets of its clients
    Page(Page),
    /// How soon a killed master serves again what the memory and SSDs of its nodes hold
    Restart(Restart),
    /// Plays the part of a process that `master`, `idle`, `page`, `restart` and `promotion --served` measure
    #[command(hide = true)]
    ClusterChild {
        /// The part.
        arguments: Vec<String>,
    },
    /// Plays the part of a process that `transfer` measures
    #[command(hide = true)]
    TransferChild {
        /// The part.
        arguments: Vec<String>,
    },
    /// Plays the part of a process that `store --served` and `wait` measure
    #[command(hide = true)]
    ServedChild {
        /// The part.
        arguments: Vec<String>,
    },
    /// Plays the part of a process that `mq` measures
    #[command(hide = true)]
    MqChild {
        /// The part.
        arguments: Vec<String>,
    },
    /// Removes the directory of a benchmark when its standard input ends
    #[command(hide = true)]
    RemoveChild {
        /// The directory.
        directory: PathBuf,
    },
}

/// Where a report goes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Output {
    /// Print one JSON object on standard output instead of tables
    #[arg(long)]
    pub(super) json: bool,

    /// Directory for a JSON file, and a page where there is one [default: none is written]
    #[arg(long, value_name = "DIR")]
    pub(super) report: Option<PathBuf>,

    /// End with exit code 1 where a bound does not hold
    #[arg(long)]
    pub(super) strict: bool,
}

/// The instructions of a benchmark that copies.
#[derive(Clone, Debug, Args)]
pub(crate) struct Instructions {
    /// Instructions of copies and checksums: auto, portable, sse, neon, avx2, avx512; those of the machine are in its report
    #[arg(long, default_value = "auto", env = IsaChoice::ENV, hide_env_values = true, value_name = "PATH")]
    isa: IsaChoice,
}

impl Instructions {
    /// Puts the path in force, for the processes too that this one starts.
    pub(super) fn install(&self) -> Result<(), IsaError> {
        self.isa.install()
    }
}

/// See [`Bench::Store`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Store {
    /// Where files are made and removed again: on the device to be measured
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(super) dir: PathBuf,

    /// Length of a value
    #[arg(long, default_value = "1MiB", value_name = "SIZE", value_parser = block_bytes)]
    value_bytes: ByteSize,

    /// Passes of each kind; the median counts
    #[arg(long, default_value_t = 7, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    passes: u32,

    /// Reads under way at once in the deep pass over the SSD
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    depth: u32,

    /// Leave the peers out
    #[arg(long)]
    pub(super) no_peers: bool,

    /// Measure a store whose master, node and client are processes of their own, and the paths to it
    #[arg(long, conflicts_with_all = ["value_bytes", "passes", "depth"])]
    pub(super) served: bool,

    #[command(flatten)]
    pub(super) grid: Grid,

    #[command(flatten)]
    pub(super) instructions: Instructions,

    #[command(flatten)]
    pub(super) output: Output,
}

/// See [`Bench::Promotion`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Promotion {
    /// Where the store's directory is made and removed again: on the device to be measured
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(super) dir: PathBuf,

    /// Objects, each read in every state; all of them take space on SSD and in memory
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    samples: u32,

    /// Length of each
    #[arg(long, default_value = "1MiB", value_name = "SIZE", value_parser = block_bytes)]
    value_bytes: ByteSize,

    /// Measure a master and two nodes, each a process: the values are on the SSD of one of them, and are read over TCP
    #[arg(long)]
    pub(super) served: bool,

    #[command(flatten)]
    pub(super) instructions: Instructions,

    #[command(flatten)]
    pub(super) output: Output,
}

/// See [`Bench::Tiers`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Tiers {
    /// Where directories are made and removed again: on the device to be measured
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(super) dir: PathBuf,

    /// A trace of requests [default: traffic is generated]
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,

    /// Generated requests
    #[arg(
        long,
        default_value_t = 5000,
        value_name = "N",
        conflicts_with = "trace"
    )]
    requests: u64,

    /// Conversations at a time of generated traffic
    #[arg(long, default_value_t = 200, value_name = "N", conflicts_with = "trace", value_parser = clap::value_parser!(u32).range(1..))]
    sessions: u32,

    /// Length of a block
    #[arg(long, default_value = "64KiB", value_name = "SIZE", value_parser = block_bytes)]
    block_bytes: ByteSize,

    /// Memory for values
    #[arg(long, default_value = "512MiB", value_name = "SIZE", value_parser = block_bytes)]
    memory: ByteSize,

    /// SSD space for values
    #[arg(long, default_value = "8GiB", value_name = "SIZE")]
    ssd: ByteSize,

    /// How the store reads and writes its SSD, as the option `io` has it: auto, uring, pread
    #[arg(long, default_value = "auto", value_name = "NAME", value_parser = IoBackend::parse)]
    io: IoBackend,

    /// Requests under way at once, a row each
    #[arg(long, default_value = "1,8", value_name = "N,…", value_delimiter = ',', value_parser = one_or_more)]
    in_flight: Vec<usize>,

    /// How often the systems take turns; the middle wall time counts
    #[arg(long, default_value = "1", value_name = "N", value_parser = one_or_more)]
    rounds: usize,

    /// The program that plays the peers: `make peers` leaves it at `bench/peers/target/release/slackwater-peers` [default: none]
    #[arg(long, value_name = "PROGRAM")]
    peers: Option<PathBuf>,

    /// Leave out reads beside a stream of offloads
    #[arg(long)]
    no_contention: bool,

    #[command(flatten)]
    pub(super) output: Output,
}

/// See [`Bench::Meta`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Meta {
    /// Objects in the catalog, one row each [default: 1000000,10000000]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = one_or_more)]
    objects: Vec<usize>,

    /// Operations timed for each figure
    #[arg(long, default_value = "1000000", value_name = "N", value_parser = one_or_more)]
    samples: usize,

    /// What the random choice of keys follows from
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    #[command(flatten)]
    pub(super) output: Output,
}

/// See [`Bench::Wait`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Wait {
    /// Numbers of waiters [default: 1,16,64]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = one_or_more)]
    concurrency: Vec<usize>,

    /// Strategies: adaptive, spin, park, sleep:TIME [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    strategies: Vec<String>,

    /// Threads that copy [default: half of the CPUs]
    #[arg(long, value_name = "N", value_parser = one_or_more)]
    movers: Option<usize>,

    /// Length of a run
    #[arg(long, default_value = "100ms", value_name = "TIME", value_parser = parse_duration)]
    run: Duration,

    /// Runs of each strategy, in turns; the medians count
    #[arg(long, default_value = "21", value_name = "N", value_parser = one_or_more)]
    rounds: usize,

    /// How long 64 parked waiters and an idle pool are watched; 0 leaves it out
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = parse_duration)]
    idle: Duration,

    /// Leave out the clients of a served store
    #[arg(long)]
    pub(super) copies_only: bool,

    #[command(flatten)]
    pub(super) instructions: Instructions,

    #[command(flatten)]
    pub(super) output: Output,
}

/// See [`Bench::Pool`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Pool {
    /// Threads of the pools [default: as many as CPUs, and four times as many]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = one_or_more)]
    threads: Vec<usize>,

    /// Lengths of a task [default: 2us,20us]
    #[arg(long, value_name = "TIME,…", value_delimiter = ',', value_parser = parse_duration)]
    tasks: Vec<Duration>,

    /// Times between two bursts [default: 0,100us,1ms,2ms,10ms,50ms,100ms]
    #[arg(long, value_name = "TIME,…", value_delimiter = ',', value_parser = parse_duration)]
    gaps: Vec<Duration>,

    /// Runs of each pool in each setting, in turns; the median counts
    #[arg(long, default_value = "5", value_name = "N", value_parser = one_or_more)]
    rounds: usize,

    /// Leave the peers out
    #[arg(long)]
    no_peers: bool,

    #[command(flatten)]
    pub(super) output: Output,
}

/// See [`Bench::Mq`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Mq {
    /// Numbers of links of one client [default: 200,2000,20000]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = one_or_more)]
    links: Vec<usize>,

    /// Messages a second, each to a random link [default: 1000,10000]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    rates: Vec<u32>,

    /// Heartbeats of the links, a pass each: off, on; with them only the first rate is measured [default: off,on]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = off_or_on)]
    heartbeats: Vec<bool>,

    /// How long each number and rate is measured
    #[arg(long, default_value = "3s", value_name = "TIME", value_parser = parse_duration)]
    window: Duration,

    /// Rounds of requests, ours and the peer's in turn; the median counts
    #[arg(long, default_value = "3", value_name = "N", value_parser = one_or_more)]
    rounds: usize,

    /// Requests of a burst over a queue of 100; 0 for none
    #[arg(long, default_value = "2000", value_name = "N")]
    burst: u16,

    /// A Python with pyzmq for the peer [default: $SLACKWATER_PYTHON, else python3]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,

    #[command(flatten)]
    pub(super) output: Output,
}

/// See [`Bench::Transfer`].
#[derive(Clone, Debug, Args)]
pub(crate) struct Transfer {
    /// What carries the bytes: tcp, shm (memory of the target shared), attach (not shared), gpu (tcp between devices)
    /// [default: tcp,shm]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    mover: Vec<transfer::Carrier>,

    /// Where the memory is: cpu, cuda, or software, which stands for a device in tests and says nothing of a real one
    /// [default: cpu, and cuda for gpu]
    #[arg(long, value_name = "NAME")]
    device: Option<transfer::Place>,

    /// Directions: read, write [default: both]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    op: Vec<transfer::Direction>,

    /// Sizes of a block [default: 4KiB,64KiB,1MiB,4MiB]
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = block_bytes)]
    blocks: Vec<ByteSize>,

    /// Threads of the initiator, each with one batch under way [default: 1,16,64]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = one_or_more)]
    concurrency: Vec<usize>,

    /// Blocks of a batch [default: 1,16,128]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = one_or_more)]
    batch: Vec<usize>,

    /// How long each combination is measured in a round
    #[arg(long, default_value = "250ms", value_name = "TIME", value_parser = parse_duration)]
    window: Duration,

    /// Rounds, in turns with the limits; the medians count
    #[arg(long, default_value = "3", value_name = "N", value_parser = one_or_more)]
    rounds: usize,

    /// Event loops of engines to compare over TCP, a row each [default: 1,2,4,8,16]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = one_or_more)]
    loops: Vec<usize>,

    /// A taste in a few seconds: 1 MiB and 4 KiB, 1 and 16 threads, batches of 1 and 16, one short round, no peer
    #[arg(long)]
    quick: bool,

    /// Compare the strategies of waiting over the first mover as well
    #[arg(long)]
    waits: bool,

    /// Watch an engine with 1,000 idle connections, send 10,000 transfers to peers that are down, and knock at a sealed target 10,000
    /// times a second, as well
    #[arg(long)]
    trials: bool,

    /// Kill either process in the middle of a batch of 1 GiB, this many times each, as well
    #[arg(long, default_value_t = 0, default_missing_value = "100", num_args = 0..=1, value_name = "N")]
    torture: usize,

    /// Leave the rows out: only what `--waits`, `--trials` and `--torture` ask for
    #[arg(long)]
    no_rows: bool,

    /// A Python with the incumbent's package [default: $SLACKWATER_PYTHON, else python3]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,

    /// Leave the incumbent's bench out
    #[arg(long)]
    no_peers: bool,

    #[command(flatten)]
    pub(super) instructions: Instructions,

    /// Whose AES-256-GCM seals: aws-lc, ring; each end has its own [default: the fastest on the processor]
    #[arg(long, requires = "key_file", value_name = "NAME")]
    pub(super) aes: Option<AesLibrary>,

    #[command(flatten)]
    pub(super) output: Output,

    #[command(flatten)]
    pub(super) machines: Machines,
}

impl Store {
    pub(super) fn options(&self, directory: &Path) -> store::Options {
        let mut options = store::Options::new(directory.to_owned());
        options.value_bytes = self.value_bytes.0 as usize;
        options.passes = self.passes as usize;
        options.depth = self.depth as usize;
        options.peers = !self.no_peers;
        options
    }
}

impl Promotion {
    pub(super) fn options(&self, directory: &Path) -> promotion::Options {
        let mut options = promotion::Options::new(directory.to_owned());
        options.samples = self.samples as usize;
        options.value_bytes = self.value_bytes.0 as usize;
        options
    }
}

impl Tiers {
    pub(super) fn options(&self, directory: &Path) -> anyhow::Result<tiers::Options> {
        let generated = || {
            tiers::Source::Generated(Traffic {
                requests: self.requests,
                sessions: self.sessions,
                ..Traffic::default()
            })
        };
        let source = match &self.trace {
            None => generated(),
            Some(path) => {
                let open = || format!("cannot open {}", path.display());
                let file = std::fs::File::open(path).with_context(open)?;
                let name = path.display().to_string();
                let requests = TraceReader::new(name, std::io::BufReader::new(file));
                tiers::Source::Trace {
                    path: path.clone(),
                    requests: requests.collect::<Result<_, _>>()?,
                }
            }
        };
        Ok(tiers::Options {
            directory: directory.to_owned(),
            source,
            block_bytes: self.block_bytes.0 as usize,
            memory_bytes: self.memory.0,
            ssd_bytes: self.ssd.0,
            io: self.io,
            in_flight: self.in_flight.clone(),
            rounds: self.rounds,
            peers: self.peers.clone(),
            contention: (!self.no_contention).then_some(tiers::CONTENTION),
        })
    }
}

impl Meta {
    pub(super) fn options(&self) -> meta::Options {
        let mut options = meta::Options {
            samples: self.samples,
            seed: self.seed,
            ..Default::default()
        };
        given(&mut options.objects, &self.objects);
        options
    }
}

impl Wait {
    pub(super) fn options(&self) -> wait::Options {
        let mut options = wait::Options {
            run: self.run,
            rounds: self.rounds,
            idle: self.idle,
            ..Default::default()
        };
        given(&mut options.concurrency, &self.concurrency);
        given(&mut options.strategies, &self.strategies);
        options.movers = self.movers.unwrap_or(options.movers);
        options
    }
}

impl Pool {
    /// Whether peers run, for which there is to be a directory.
    pub(super) fn has_peers(&self) -> bool {
        !self.no_peers
    }

    pub(super) fn options(&self, peers: Option<&Path>) -> pool::Options {
        let mut options = pool::Options {
            rounds: self.rounds,
            peers: peers.map(Path::to_owned),
            ..Default::default()
        };
        given(&mut options.threads, &self.threads);
        given(&mut options.tasks, &self.tasks);
        given(&mut options.gaps, &self.gaps);
        options
    }
}

impl Mq {
    pub(super) fn options(&self, child: Vec<std::ffi::OsString>) -> mq::Options {
        let mut options = mq::Options {
            window: self.window,
            rounds: self.rounds,
            burst: usize::from(self.burst),
            child,
            ..Default::default()
        };
        given(&mut options.links, &self.links);
        given(&mut options.rates, &self.rates);
        given(&mut options.heartbeats, &self.heartbeats);
        options.python = self.python.clone().unwrap_or(options.python);
        options
    }
}

impl Transfer {
    pub(super) fn options(&self, child: Vec<std::ffi::OsString>) -> transfer::Options {
        let defaults = transfer::Options::default();
        let mut options = transfer::Options {
            window: self.window,
            rounds: self.rounds,
            child,
            ..defaults
        };
        if self.quick {
            options.blocks = vec![4 << 10, 1 << 20];
            options.concurrency = vec![1, 16];
            options.batches = vec![1, 16];
            options.window = options.window.min(Duration::from_millis(100));
            options.rounds = 1;
            options.memory_bytes = 64 << 20;
            options.loops = Vec::new();
        }
        given(&mut options.loops, &self.loops);
        given(&mut options.carriers, &self.mover);
        given(&mut options.directions, &self.op);
        given(
            &mut options.blocks,
            &self
                .blocks
                .iter()
                .map(|size| size.0 as usize)
                .collect::<Vec<_>>(),
        );
        given(&mut options.concurrency, &self.concurrency);
        given(&mut options.batches, &self.batch);
        options.place = self.device;
        options.rows = !self.no_rows;
        options.trials = self.trials;
        options.torture = self.torture;
        options.waits = if self.waits {
            wait::Options::default().strategies
        } else {
            Vec::new()
        };
        options.python = match (self.no_peers || self.quick, &self.python) {
            (_, Some(python)) => Some(python.clone()),
            (true, None) => None,
            (false, None) => options.python,
        };
        options
    }
}

/// A list that was given takes the place of the default.
pub(super) fn given<T: Clone>(option: &mut Vec<T>, list: &[T]) {
    if !list.is_empty() {
        *option = list.to_vec();
    }
}

fn off_or_on(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
}

pub(super) fn one_or_more(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "expected a whole number, one or more".to_owned())
}
