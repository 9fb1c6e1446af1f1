//! Strategies of waiting over a served store: each is that of a client process of its own, and all take turns at one server.

use std::ffi::OsString;
use std::time::Duration;

use super::server::Server;
use super::{Ends, Op, Options, Path, Sample, ServedError};
use crate::usage::median;

/// Bytes of a value that is read.
const BLOCK: usize = 1 << 20;

/// Strategies, loads and lengths of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits<'a> {
    /// How to start this program so that it calls [`child`](super::child).
    pub(crate) child: &'a [OsString],
    pub(crate) strategies: &'a [String],
    pub(crate) concurrency: &'a [usize],
    /// Length of a run.
    pub(crate) window: Duration,
    /// Runs of each strategy, in turns; the medians count.
    pub(crate) rounds: usize,
}

/// One strategy with so many threads that read.
#[derive(Clone, Debug)]
pub(crate) struct Waited {
    pub(crate) concurrency: usize,
    pub(crate) strategy: String,
    pub(crate) client_cores: f64,
    pub(crate) gbps: f64,
    pub(crate) mean_us: f64,
    pub(crate) p99_us: f64,
}

/// Reads of 1 MiB over TCP.
pub(crate) fn measure(waits: Waits<'_>) -> Result<Vec<Waited>, ServedError> {
    let options = Options {
        child: waits.child.to_vec(),
        window: waits.window,
        ..Options::new(std::path::PathBuf::new())
    };
    let (mut server, address) = Server::start(&options, Path::Tcp)?;
    let mut clients = Vec::new();
    for strategy in waits.strategies {
        clients.push(Ends::ask(&options, &address, Path::Tcp, strategy)?);
    }
    if let Some(client) = clients.first_mut() {
        client.say(&format!("fill {BLOCK}"))?;
        client.hear("filled")?;
    }
    let mut rows = Vec::new();
    for &concurrency in waits.concurrency {
        let mut samples = vec![Vec::new(); clients.len()];
        for round in 0..waits.rounds.max(1) {
            for step in 0..clients.len() {
                // Everybody comes after everybody once.
                let at = (round + step) % clients.len();
                let mut ends = Ends {
                    server,
                    client: clients.remove(at),
                };
                let sample = ends.round(&options, (Op::GetInto, BLOCK, concurrency));
                clients.insert(at, ends.client);
                server = ends.server;
                samples[at].push(sample?);
            }
        }
        for (strategy, samples) in waits.strategies.iter().zip(samples) {
            let middle = |value: fn(&Sample) -> f64| {
                median(&mut samples.iter().map(value).collect::<Vec<_>>())
            };
            rows.push(Waited {
                concurrency,
                strategy: strategy.clone(),
                client_cores: middle(|sample| sample.client_cores),
                gbps: middle(|sample| sample.ops_per_s) * BLOCK as f64 / 1e9,
                mean_us: middle(|sample| sample.mean_us),
                p99_us: middle(|sample| sample.p99_us),
            });
        }
    }
    Ok(rows)
}
