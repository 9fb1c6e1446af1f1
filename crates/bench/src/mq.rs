//! The message layer under many links and in request and reply, beside libzmq through pyzmq.
//!
//! Every measured side is a process of its own, started from the same program ([`Options::child`]) before it has any
//! thread. All traffic stays on loopback.

mod bare;
mod bounds;
mod burst;
mod links;
mod page;
mod pairs;
mod process;
mod rpc;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;

use crate::process::ProcessError;
use slackwater_report::{Bound, Compared};

/// The measurements of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Numbers of outbound links of one client process; those beyond the descriptor limit are brought down to it.
    pub links: Vec<usize>,
    /// Messages a second, each to a random link.
    pub rates: Vec<u32>,
    /// How long each number and rate is measured in each round, in short slices that take turns with all others.
    pub window: Duration,
    /// Whether the links of the first part keep their heartbeats, which cost messages of their own: one pass each. With heartbeats
    /// only the first rate is measured.
    pub heartbeats: Vec<bool>,
    /// Numbers of links for requests, each with one request under way.
    pub rpc_links: Vec<usize>,
    /// Bytes of a request's body, which is echoed.
    pub rpc_sizes: Vec<usize>,
    /// How long each round of requests takes.
    pub rpc_window: Duration,
    /// Requests of a burst over the queue of a slow server; none for 0.
    pub burst: usize,
    /// Rounds of everything, taken in turn; the median counts.
    pub rounds: usize,
    /// A Python with pyzmq for the peer: `SLACKWATER_PYTHON`, else `python3`; left out when it has none.
    pub python: PathBuf,
    /// How to start this program so that it calls [`child`] with the arguments that follow.
    pub child: Vec<OsString>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            links: vec![200, 2_000, 20_000],
            rates: vec![1_000, 10_000],
            window: Duration::from_millis(1500),
            heartbeats: vec![false, true],
            rpc_links: vec![1, 64],
            rpc_sizes: vec![64, 65_536],
            rpc_window: Duration::from_millis(500),
            burst: 2_000,
            rounds: 3,
            python: std::env::var_os("SLACKWATER_PYTHON")
                .map_or_else(|| "python3".into(), PathBuf::from),
            child: Vec::new(),
        }
    }
}

impl Options {
    /// How long a measured process may be silent: what it is asked to measure, and plenty of time to start and connect.
    fn patience(&self) -> Duration {
        STARTING + 10 * self.window.max(self.rpc_window)
    }
}

/// Opening the most links takes a few seconds on an idle machine.
const STARTING: Duration = Duration::from_secs(60);

/// The figures of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// What must hold, with what was measured.
    pub bounds: Vec<Bound>,
    /// Clients that ask all their sockets in each turn, the same with epoll, and ours, a message each millisecond.
    pub compared: Vec<Compared>,
    /// One client, many links.
    pub links: Vec<LinksRow>,
    /// The physical limit of the same machine in the same minutes: a client that only waits with epoll and reads.
    pub bare: Vec<LinksRow>,
    /// What the most links cost over the least.
    pub ratios: Vec<LinksRatio>,
    /// Requests and replies.
    pub rpc: Vec<RpcRow>,
    /// A burst of requests over the queue of a slow server.
    pub bursts: Vec<BurstRow>,
    /// What was left out or brought down, and why.
    pub notes: Vec<String>,
}

/// What a message costs with many links over what it costs with few.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LinksRatio {
    /// `ours`, or `bare epoll` for the physical limit.
    pub client: &'static str,
    /// Few links.
    pub least: usize,
    /// Many links.
    pub most: usize,
    /// Messages a second.
    pub rate: u32,
    /// CPU per message with many over that with few: the middle one of slices measured one after the other.
    pub ratio: f64,
}

/// One number of links at one rate.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LinksRow {
    /// `ours`, `libzmq poll`, `libzmq epoll`, or `bare epoll` for the physical limit.
    pub client: &'static str,
    /// Links.
    pub n: usize,
    /// Processes of the client: more than one where descriptors run out.
    pub processes: usize,
    /// `on` or `off`.
    pub heartbeats: &'static str,
    /// `NULL` or `CURVE`.
    pub mechanism: &'static str,
    /// Messages a second that were asked for.
    pub rate: u32,
    /// Messages a second that arrived.
    pub arrived: f64,
    /// CPU of the whole client, all threads, in percent of one core.
    pub cpu_percent: f64,
    /// CPU per message.
    pub cpu_us_per_msg: f64,
    /// From the send to the handler.
    pub p50_us: f64,
    /// From the send to the handler.
    pub p99_us: f64,
    /// Waits, wake-ups, reads and writes of the client per message, by its own counters, where it has some.
    pub syscalls_per_msg: Option<f64>,
    /// Resident memory per link in the client.
    pub bytes_per_link: f64,
    /// How long it took until all links were made.
    pub connect_seconds: f64,
}

/// One way of asking.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RpcRow {
    /// Links, each with one request under way.
    pub links: usize,
    /// Bytes of the body.
    pub size: usize,
    /// `NULL` or `CURVE`.
    pub mechanism: &'static str,
    /// Round trip.
    pub p50_us: f64,
    /// Round trip.
    pub p99_us: f64,
    /// Replies a second.
    pub rps: f64,
    /// Replies per second of CPU of both processes.
    pub rps_per_cpu: f64,
    /// The same of pyzmq.
    pub peer_p50_us: Option<f64>,
    /// The same of pyzmq.
    pub peer_p99_us: Option<f64>,
    /// The same of pyzmq.
    pub peer_rps: Option<f64>,
    /// The same of pyzmq.
    pub peer_rps_per_cpu: Option<f64>,
}

/// A burst of requests over the queue of a server with one worker, which takes a millisecond for each.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BurstRow {
    /// `ours` or `libzmq`, both ends of it.
    pub client: &'static str,
    /// Requests of the burst.
    pub requests: usize,
    /// Requests that may wait at the server.
    pub queue: usize,
    /// Requests with an answer.
    pub answered: usize,
    /// Requests that the server refused because its queue was full.
    pub refused: usize,
    /// Requests that ended in another way, or not at all.
    pub failed: usize,
    /// Until the last was handed over.
    pub sent_ms: f64,
    /// Until the last that was refused knew it.
    pub last_refusal_ms: Option<f64>,
    /// Until the last outcome.
    pub last_ms: f64,
    /// Memory of the server after the burst beyond that before.
    pub server_bytes: u64,
}

/// Why there is no report.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A measured process gave no figures.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The message layer could not start or connect.
    #[error("{0}")]
    Mq(String),
    /// A child was started with arguments it does not know.
    #[error("unknown child arguments {0:?}")]
    Arguments(Vec<String>),
}

/// Measures everything the options ask for.
///
/// # Errors
/// [`BenchError`]; a missing peer is a note, not an error.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let mut report = Report::default();
    links::measure(options, &mut report)?;
    rpc::measure(options, &mut report)?;
    burst::measure(options, &mut report)?;
    report.compared = bounds::compared(&report.links);
    report.bounds = bounds::of(&report);
    Ok(report)
}

/// Plays the part of a measured process; ends when its input ends.
///
/// # Errors
/// [`BenchError`].
pub fn child(arguments: &[String]) -> Result<(), BenchError> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["links-server", mechanism, heartbeats] => links::serve(mechanism, heartbeats),
        ["links-client", address, count, heartbeats] => links::receive(address, count, heartbeats),
        ["bare-server", count] => bare::serve(count),
        ["bare-client", address, count] => bare::receive(address, count),
        ["burst-server", queue, work] => burst::serve(queue, work),
        ["burst-client", address, _] => burst::ask(address),
        ["rpc-server", mechanism] => rpc::serve(mechanism),
        ["rpc-client", address, count] => rpc::ask(address, count),
        _ => Err(BenchError::Arguments(arguments.to_vec())),
    }
}

impl Report {
    /// A page that shows the report and needs nothing else.
    #[must_use]
    pub fn to_html(&self) -> String {
        page::render(self)
    }
}
