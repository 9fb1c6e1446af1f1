//! `bench transfer`: blocks between two processes by each mover, beside what sockets and copies reach in the same run.
//!
//! Initiator and target are processes of their own, started from the same program ([`Options::child`]). Everything is
//! measured in short rounds that take turns: the limit, then ours; medians count, and ratios are taken round by round.

mod bounds;
mod crowd;
mod ends;
mod far;
pub(crate) mod grid;
mod handshakes;
mod incumbent;
mod latency;
pub(crate) mod limits;
mod loops;
mod objects;
mod raw;
mod report;
mod trials;

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};
use slackwater_transfer::{AesLibrary, EngineError, StartError};
use slackwater_wait::ChoiceError;
use thiserror::Error;

pub use self::far::{Across, FarEnd, FarError, FarReport, ServeOptions, run_across};
pub use self::handshakes::Handshakes;
pub use self::loops::LoopsRow;
pub use self::objects::ObjectsRow;
pub use self::report::{Latency, Limits, PeerRow, Peers, Report, Row};
pub use self::trials::{DeadPeer, Idle, Torture};
use crate::process::ProcessError;

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// TCP over loopback.
    Tcp,
    /// The same-host mover; the target's memory is shared.
    Shm,
    /// The same-host mover; the target's memory is its own and is reached by cross-memory attach.
    Attach,
    /// TCP with device memory at both ends.
    Gpu,
}

/// Where the memory of both ends is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Host memory.
    Cpu,
    /// The first CUDA device.
    Cuda,
    /// The device that stands for one in tests: its figures say nothing about a GPU.
    Software,
}

/// Read from the target, or write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Out of the target's memory.
    Read,
    /// Into the target's memory.
    Write,
}

/// The rows and trials of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What carries the bytes, one after the other.
    pub carriers: Vec<Carrier>,
    /// Where the memory is; none for host memory, and a CUDA device for [`Carrier::Gpu`].
    pub place: Option<Place>,
    /// Whether rows are measured, and the peer beside them.
    pub rows: bool,
    /// Directions.
    pub directions: Vec<Direction>,
    /// Sizes of a block in bytes.
    pub blocks: Vec<usize>,
    /// Threads of the initiator, each with one batch under way.
    pub concurrency: Vec<usize>,
    /// Blocks of a batch.
    pub batches: Vec<usize>,
    /// How long each cell is measured in a round.
    pub window: Duration,
    /// Rounds, in turns with the limits; the medians count.
    pub rounds: usize,
    /// Memory of each end, in bytes: many times the last-level cache.
    pub memory_bytes: usize,
    /// Event loops of engines that are compared over TCP, a row each; none leaves them out.
    pub loops: Vec<usize>,
    /// Wait strategies over the first carrier, each with every concurrency and 1 MiB reads; none leaves them out.
    pub waits: Vec<String>,
    /// Watch an engine with a thousand open connections, send transfers to a peer that is down, and flood a target with connections
    /// that prove nothing.
    pub trials: bool,
    /// Times that a process is killed in the middle of a batch of 1 GiB; 0 leaves it out.
    pub torture: usize,
    /// A Python with the incumbent's package: `SLACKWATER_PYTHON`, else `python3`; none leaves the peer out.
    pub python: Option<PathBuf>,
    /// How to start this program so that it calls [`child`] with the arguments that follow.
    pub child: Vec<OsString>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            carriers: vec![Carrier::Tcp, Carrier::Shm],
            place: None,
            rows: true,
            directions: vec![Direction::Read, Direction::Write],
            blocks: vec![4 << 10, 64 << 10, 1 << 20, 4 << 20],
            concurrency: vec![1, 16, 64],
            batches: vec![1, 16, 128],
            window: Duration::from_millis(250),
            rounds: 3,
            memory_bytes: 256 << 20,
            loops: vec![1, 2, 4, 8, 16],
            waits: Vec::new(),
            trials: false,
            torture: 0,
            python: Some(
                std::env::var_os("SLACKWATER_PYTHON")
                    .map_or_else(|| "python3".into(), PathBuf::from),
            ),
            child: Vec::new(),
        }
    }
}

impl Options {
    /// How long a measured process may be silent: what it is asked to measure, and plenty of time for a slow machine.
    fn patience(&self) -> Duration {
        Duration::from_secs(60) + 10 * self.window
    }

    /// Whether anything can be measured with them.
    fn check(&self) -> Result<(), BenchError> {
        let none = |list: &[usize]| list.is_empty() || list.contains(&0);
        if self.loops.contains(&0) {
            return Err(BenchError::Options("an engine has one loop or more".into()));
        }
        if none(&self.blocks) || none(&self.concurrency) || none(&self.batches) {
            return Err(BenchError::Options(
                "blocks, threads and batches are each one or more".into(),
            ));
        }
        let largest = self
            .blocks
            .iter()
            .copied()
            .max()
            .unwrap_or(0)
            .max(raw::MESSAGE);
        if self.memory_bytes < largest {
            return Err(BenchError::Options(format!(
                "{} bytes of memory hold no block of {largest}",
                self.memory_bytes
            )));
        }
        Ok(())
    }

    fn place(&self, carrier: Carrier) -> Place {
        self.place.unwrap_or(if carrier == Carrier::Gpu {
            Place::Cuda
        } else {
            Place::Cpu
        })
    }
}

/// Why there is no report.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A measured process gave no figures.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The operating system refused something.
    #[error("{what}: {error}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// The engine could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The engine did not do what it was asked.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A transfer of a measured process failed, or brought the wrong bytes.
    #[error("transfer: {0}")]
    Transfer(String),
    /// The device is not there.
    #[error("{0}")]
    Device(String),
    /// A strategy that is none.
    #[error(transparent)]
    Strategy(#[from] ChoiceError),
    /// There is no far end on the other machine, or no longer one.
    #[error(transparent)]
    Far(Box<FarError>),
    /// Nothing can be measured with this.
    #[error("{0}")]
    Options(String),
    /// A child was started with arguments it does not know.
    #[error("unknown child arguments {0:?}")]
    Arguments(Vec<String>),
}

impl From<FarError> for BenchError {
    fn from(error: FarError) -> Self {
        Self::Far(Box::new(error))
    }
}

impl BenchError {
    fn io(what: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |error| Self::Io { what, error }
    }
}

/// Measures everything the options ask for.
///
/// # Errors
/// [`BenchError`]; a peer or a limit that this machine does not offer is a note, not an error.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    options.check()?;
    for &carrier in &options.carriers {
        check_place(carrier, options.place(carrier))?;
    }
    let mut report = Report::new();
    if options.rows {
        let mut limits = limits::Bed::start(options)?;
        latency::measure(options, &mut limits, &mut report)?;
        grid::measure(options, &mut limits, &mut report)?;
        limits.finish(&mut report);
        incumbent::measure(options, &mut report)?;
        loops::measure(options, &mut report)?;
        objects::measure(options, &mut report)?;
    }
    grid::measure_waits(options, &mut report)?;
    trials::measure(options, &mut report)?;
    if options
        .carriers
        .iter()
        .any(|&carrier| options.place(carrier) == Place::Software)
    {
        report
            .notes
            .push("memory of the software device: these figures say nothing of a GPU".into());
    }
    report.compare();
    report.judge();
    Ok(report)
}

/// Looks whether there is such memory before any process is started for it.
fn check_place(carrier: Carrier, place: Place) -> Result<(), BenchError> {
    match (carrier, place) {
        (_, Place::Cpu) => Ok(()),
        (Carrier::Shm | Carrier::Attach, _) => Err(BenchError::Device(format!(
            "{} carries host memory alone",
            carrier.name()
        ))),
        (_, Place::Cuda) => ends::cuda_is_there(),
        (_, Place::Software) => Ok(()),
    }
}

/// Plays the part of a measured process; ends when its input ends.
///
/// # Errors
/// [`BenchError`].
pub fn child(arguments: &[String]) -> Result<(), BenchError> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["limit-server", bytes] => raw::serve(bytes),
        ["limit-client", bytes, address, pid, start] => raw::drive(bytes, address, pid, start),
        ["target", carrier, place, bytes, loops] => {
            ends::serve(&ends::Words(carrier, place, bytes, loops), false)
        }
        ["lender", carrier, place, bytes, loops] => {
            ends::serve(&ends::Words(carrier, place, bytes, loops), true)
        }
        ["initiator", carrier, place, bytes, loops, wait, aes] => {
            let aes: Result<AesLibrary, _> = aes.parse();
            aes.map_err(|_| BenchError::Arguments(arguments.to_vec()))?
                .install();
            ends::initiate(&ends::Words(carrier, place, bytes, loops), wait)
        }
        ["crowd", count] => crowd::serve(count),
        ["holder"] => crowd::hold(),
        ["knocker"] => handshakes::knock(),
        ["despair", address, count, timeout_ms] => crowd::despair(address, count, timeout_ms),
        _ => Err(BenchError::Arguments(arguments.to_vec())),
    }
}

/// Ordinary memory of this process, with every page touched.
#[derive(Debug)]
struct Buffer(Vec<u8>);

impl Buffer {
    fn new(bytes: usize) -> Result<Self, BenchError> {
        if bytes < raw::MESSAGE {
            return Err(BenchError::Options(format!(
                "{bytes} bytes hold no message"
            )));
        }
        let mut buffer = vec![1; bytes];
        // Pages that differ: equal ones could be merged, and untouched ones would all be one page of zeros.
        for (at, page) in buffer.chunks_mut(4096).enumerate() {
            page[0] = (at % 251) as u8;
        }
        Ok(Self(buffer))
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn start(&self) -> *const u8 {
        self.0.as_ptr()
    }

    /// Where the piece of `length` bytes at `at` of an endless row of them lies.
    fn wrapped(&self, at: usize, length: usize) -> usize {
        wrapped(at, length, self.0.len())
    }

    fn piece(&self, at: usize, length: usize) -> &[u8] {
        &self.0[self.wrapped(at, length)..][..length]
    }

    fn piece_mut(&mut self, at: usize, length: usize) -> &mut [u8] {
        let offset = self.wrapped(at, length);
        &mut self.0[offset..][..length]
    }
}

/// Where the piece of `length` bytes, one or more, at `at` of an endless row of them lies in memory of `bytes`.
fn wrapped(at: usize, length: usize, bytes: usize) -> usize {
    at / length % (bytes / length) * length
}

/// Latencies in nanoseconds, up to two minutes, by 3 digits.
fn latencies() -> Histogram<u64> {
    Histogram::new_with_max(120_000_000_000, 3).expect("the bounds and digits are allowed")
}

/// The names that options, children and reports use.
macro_rules! named {
    ($kind:ident, $what:literal, $($variant:ident => $name:literal),+) => {
        impl $kind {
            /// Its name in options and reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl FromStr for $kind {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($name => Ok(Self::$variant),)+
                    _ => Err(format!("`{text}` is no {} (known: {})", $what, [$($name),+].join(", "))),
                }
            }
        }
    };
}

named!(Carrier, "mover", Tcp => "tcp", Shm => "shm", Attach => "attach", Gpu => "gpu");
named!(Place, "device", Cpu => "cpu", Cuda => "cuda", Software => "software");
named!(Direction, "direction", Read => "read", Write => "write");

impl Serialize for Carrier {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
