//! `bench wait`: many waiters on real copies, by each strategy of waiting.
//!
//! Mover threads copy 1 MiB objects out of memory larger than the cache into the waiters' buffers; the waiters ask again
//! as soon as they are served. The whole process waits by the strategy of the row: waiters and movers. A strategy that
//! helps lets a waiter make the copy itself while fewer threads copy than there are movers, since the best wait is none.

mod engine;
mod report;

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use slackwater_pool::{Config, Pool};
use slackwater_wait::{Choice, ChoiceError, Countdown, Cpus, Site, Waiting, now};
use thiserror::Error;

use crate::machine::Machine;
use crate::process;
use crate::served::ServedError;
use crate::served::waits::{self, Waits};
use crate::usage::{Mark, median};
use engine::Engine;
use slackwater_report::{Bound, Compared};

/// The strategies and loads of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Numbers of waiters.
    pub concurrency: Vec<usize>,
    /// Strategies, by the text that configuration takes.
    pub strategies: Vec<String>,
    /// The size of an object, in bytes.
    pub object_bytes: usize,
    /// Memory the objects come from, in bytes: more than the last-level cache.
    pub source_bytes: usize,
    /// Threads that copy. Half of the cores by default, so that one waiter can spin beside them.
    pub movers: usize,
    /// Length of a run.
    pub run: Duration,
    /// Runs of each strategy, in turns; the medians count.
    pub rounds: usize,
    /// How long 64 parked waiters and an idle pool are watched; zero leaves it out.
    pub idle: Duration,
    /// Reads of 1 MiB from a served store by the same strategies: how to start this program so that it calls
    /// [`served::child`](crate::served::child); nothing leaves them out.
    pub store_child: Vec<OsString>,
}

impl Default for Options {
    fn default() -> Self {
        let strategies = [
            "spin",
            "sleep:100ns",
            "sleep:1us",
            "sleep:10us",
            "park",
            "adaptive",
        ];
        Self {
            concurrency: vec![1, 16, 64],
            strategies: strategies.map(str::to_owned).to_vec(),
            object_bytes: 1 << 20,
            source_bytes: 256 << 20,
            movers: (Cpus::current().usable as usize / 2).max(1),
            // Short runs in many turns: memory and neighbours on the host get slower and faster by the second.
            run: Duration::from_millis(100),
            rounds: 21,
            idle: Duration::from_secs(10),
            store_child: Vec::new(),
        }
    }
}

/// One strategy at one concurrency.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Waiters.
    pub concurrency: usize,
    /// The strategy's text.
    pub strategy: String,
    /// CPUs busy on average: user and system time over wall time.
    pub cores: f64,
    /// Bytes delivered in a nanosecond.
    pub gbps: f64,
    /// Mean time from asking to having.
    pub avg_us: f64,
    /// The same of the slowest hundredth.
    pub p99_us: f64,
    /// How often all waiters together looked for what they wait for in 100 ms, where that is counted.
    pub looks_per_100ms: Option<f64>,
}

/// Adaptive beside the others at one concurrency.
#[derive(Clone, Debug, Serialize)]
pub struct Ratios {
    /// Waiters.
    pub concurrency: usize,
    /// Mean latency over that of spin.
    pub avg_over_spin: Option<f64>,
    /// Cores over those of spin.
    pub cores_over_spin: Option<f64>,
    /// Throughput over that of spin.
    pub gbps_over_spin: Option<f64>,
    /// Mean latency over the lowest of all strategies.
    pub avg_over_best: f64,
    /// Throughput over the highest.
    pub gbps_over_best: f64,
    /// Cores over the fewest.
    pub cores_over_thriftiest: f64,
}

/// What waiting costs when nothing happens.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Idle {
    /// How long it was watched.
    pub seconds: f64,
    /// Parked waiters.
    pub waiters: usize,
    /// Threads of the idle pool beside them.
    pub pool_threads: usize,
    /// CPU time over wall time, in percent of a core.
    pub cpu_percent: f64,
    /// Context switches of all threads but the watching one.
    pub switches: u64,
}

/// What the benchmark found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `wait`.
    pub bench: &'static str,
    /// The machine of the run.
    pub machine: Machine,
    /// Threads that copied.
    pub movers: usize,
    /// Callers that look all the time, callers that look now and then, and ours.
    pub compared: Vec<Compared>,
    /// One row for each strategy and concurrency.
    pub rows: Vec<Row>,
    /// The same for clients of a served store that read 1 MiB each; cores are those of the client's process.
    pub store_rows: Vec<Row>,
    /// Adaptive beside the others.
    pub ratios: Vec<Ratios>,
    /// The idle process, if it was watched.
    pub idle: Option<Idle>,
    /// What the figures should be.
    pub bounds: Vec<Bound>,
}

/// Why the benchmark could not run.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A strategy that is none.
    #[error(transparent)]
    Strategy(#[from] ChoiceError),
    /// Nothing can be measured with this.
    #[error("{0}")]
    Options(&'static str),
    /// The idle pool did not start.
    #[error(transparent)]
    Pool(#[from] slackwater_pool::PoolError),
    /// The store or a client of it gave no figures.
    #[error("a served store: {0}")]
    Store(Box<ServedError>),
}

/// Runs the benchmark.
///
/// # Errors
/// Names the option that is wrong.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    if options.movers == 0 {
        return Err(BenchError::Options("0 movers copy nothing"));
    }
    if options.object_bytes == 0 || options.source_bytes < options.object_bytes {
        return Err(BenchError::Options(
            "the source must hold at least one object of at least one byte",
        ));
    }
    let strategies = options.strategies.iter().map(|text| text.parse());
    let strategies: Vec<Choice> = strategies.collect::<Result<_, ChoiceError>>()?;
    // Written, not only zeroed: untouched pages would all be one page of zeros, in the cache.
    let source: Vec<u8> = (0..options.source_bytes).map(|at| at as u8).collect();
    let mut rows = Vec::new();
    for &concurrency in &options.concurrency {
        // The same buffers for all: where the kernel puts them makes a difference.
        let mut buffers = vec![vec![1u8; options.object_bytes]; concurrency];
        let mut runs = vec![Vec::new(); strategies.len()];
        for round in 0..options.rounds.max(1) {
            for step in 0..strategies.len() {
                // Everybody comes after everybody once.
                let at = (round + step) % strategies.len();
                runs[at].push(run_once(options, strategies[at], &source, &mut buffers));
            }
        }
        for (text, runs) in options.strategies.iter().zip(runs) {
            rows.push(row(concurrency, text, &runs));
        }
    }
    let ratios: Vec<Ratios> = options
        .concurrency
        .iter()
        .filter_map(|&concurrency| ratios(&rows, concurrency))
        .collect();
    let idle = if options.idle.is_zero() {
        None
    } else {
        Some(watch_idle(options.idle)?)
    };
    let bounds = report::bounds(&ratios, idle);
    let store_rows = store_rows(options)?;
    let mut compared = report::compared("", &rows);
    compared.extend(report::compared("reads of a served store, ", &store_rows));
    Ok(Report {
        bench: "wait",
        machine: Machine::detect(),
        movers: options.movers,
        compared,
        rows,
        store_rows,
        ratios,
        idle,
        bounds,
    })
}

/// The strategies over a served store, where a process for it can be started.
fn store_rows(options: &Options) -> Result<Vec<Row>, BenchError> {
    if options.store_child.is_empty() {
        return Ok(Vec::new());
    }
    let rows = waits::measure(Waits {
        child: &options.store_child,
        strategies: &options.strategies,
        concurrency: &options.concurrency,
        window: options.run,
        rounds: options.rounds,
    });
    let rows = rows.map_err(|error| BenchError::Store(Box::new(error)))?;
    let row = |row: waits::Waited| Row {
        concurrency: row.concurrency,
        strategy: row.strategy,
        cores: row.client_cores,
        gbps: row.gbps,
        avg_us: row.mean_us,
        p99_us: row.p99_us,
        looks_per_100ms: None,
    };
    Ok(rows.into_iter().map(row).collect())
}

/// One strategy, once.
#[derive(Clone, Copy, Debug)]
struct Run {
    cores: f64,
    gbps: f64,
    avg_us: f64,
    p99_us: f64,
    looks_per_100ms: f64,
}

fn run_once(options: &Options, choice: Choice, source: &[u8], buffers: &mut [Vec<u8>]) -> Run {
    let engine = Engine::new(source, choice, options.movers);
    let (stop, concurrency) = (AtomicBool::new(false), buffers.len());
    let ask = |waiter: usize, buffer: &mut [u8]| {
        let mut latencies = latencies();
        let mut object = waiter * 7919;
        while !stop.load(Ordering::Relaxed) {
            let start = now();
            engine.get(object, buffer);
            latencies.saturating_record(now().since(start).as_nanos() as u64);
            object += concurrency;
        }
        latencies
    };
    let (spent, served, looks, latencies) = std::thread::scope(|threads| {
        (0..options.movers).for_each(|_| drop(threads.spawn(|| engine.move_until_closed())));
        let waiters: Vec<_> = buffers
            .iter_mut()
            .enumerate()
            .map(|(waiter, buffer)| {
                let ask = &ask;
                threads.spawn(move || ask(waiter, buffer))
            })
            .collect();
        // The first part is warm-up for caches and for what is learned; its latencies stay in, its time and CPU do not.
        std::thread::sleep(options.run / 4);
        let (mark, served, looks) = (Mark::now(), engine.served(), engine.looks());
        std::thread::sleep(options.run);
        let (spent, served) = (mark.spent(), engine.served() - served);
        let looks = engine.looks() - looks;
        stop.store(true, Ordering::Relaxed);
        let waiters: Vec<_> = waiters.into_iter().map(|waiter| waiter.join()).collect();
        engine.close();
        let mut latencies = latencies();
        for waiter in waiters {
            let own = waiter.expect("a waiter only waits and counts");
            latencies.add(own).expect("all have the same bounds");
        }
        (spent, served, looks, latencies)
    });
    Run {
        cores: spent.cores(),
        gbps: (served * options.object_bytes as u64) as f64 / spent.wall.as_nanos() as f64,
        avg_us: latencies.mean() / 1e3,
        p99_us: latencies.value_at_quantile(0.99) as f64 / 1e3,
        looks_per_100ms: looks as f64 / (10.0 * spent.wall.as_secs_f64()),
    }
}

/// Latencies in nanoseconds, up to a minute, by 3 digits.
fn latencies() -> Histogram<u64> {
    Histogram::new_with_max(60_000_000_000, 3).expect("the bounds and digits are allowed")
}

fn row(concurrency: usize, strategy: &str, runs: &[Run]) -> Row {
    let middle = |value: fn(&Run) -> f64| median(&mut runs.iter().map(value).collect::<Vec<_>>());
    Row {
        concurrency,
        strategy: strategy.to_owned(),
        cores: middle(|run| run.cores),
        gbps: middle(|run| run.gbps),
        avg_us: middle(|run| run.avg_us),
        p99_us: middle(|run| run.p99_us),
        looks_per_100ms: Some(middle(|run| run.looks_per_100ms)),
    }
}

pub(crate) fn ratios(rows: &[Row], concurrency: usize) -> Option<Ratios> {
    let rows: Vec<&Row> = rows
        .iter()
        .filter(|row| row.concurrency == concurrency)
        .collect();
    let adaptive = rows.iter().find(|row| row.strategy == "adaptive")?;
    let spin = rows.iter().find(|row| row.strategy == "spin");
    let least = |value: fn(&Row) -> f64| {
        rows.iter()
            .map(|row| value(row))
            .fold(f64::INFINITY, f64::min)
    };
    let most = |value: fn(&Row) -> f64| rows.iter().map(|row| value(row)).fold(0.0, f64::max);
    Some(Ratios {
        concurrency,
        avg_over_spin: spin.map(|spin| adaptive.avg_us / spin.avg_us),
        cores_over_spin: spin.map(|spin| adaptive.cores / spin.cores),
        gbps_over_spin: spin.map(|spin| adaptive.gbps / spin.gbps),
        avg_over_best: adaptive.avg_us / least(|row| row.avg_us),
        gbps_over_best: adaptive.gbps / most(|row| row.gbps),
        cores_over_thriftiest: adaptive.cores / least(|row| row.cores),
    })
}

/// Watches 64 parked waiters and an idle pool, and does nothing meanwhile.
fn watch_idle(length: Duration) -> Result<Idle, BenchError> {
    const WAITERS: usize = 64;
    static SITE: Site = Site::new("idle waiter");
    let pool = Pool::start(&Config::default())?;
    // A job first, so that its threads are past their first spin.
    pool.run(1_000, |index| {
        std::hint::black_box(index);
    });
    let batch = Arc::new(Countdown::<()>::new(1));
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| {
            let batch = Arc::clone(&batch);
            std::thread::spawn(move || batch.wait(&Waiting::at(&SITE)).is_ok())
        })
        .collect();
    // They spin for a moment, learn nothing, and park.
    std::thread::sleep(Duration::from_millis(200));
    let own = std::process::id();
    let (switches, mark) = (process::switches(own), Mark::now());
    std::thread::sleep(length);
    let (spent, after) = (mark.spent(), process::switches(own));
    batch.complete();
    for waiter in waiters {
        let done = waiter.join().expect("a waiter only waits");
        debug_assert!(done);
    }
    Ok(Idle {
        seconds: spent.wall.as_secs_f64(),
        waiters: WAITERS,
        pool_threads: pool.threads(),
        cpu_percent: spent.cores() * 100.0,
        // The watcher itself sleeps once.
        switches: after.saturating_sub(switches + 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_fills_every_row() {
        let options = Options {
            concurrency: vec![1, 3],
            strategies: vec!["spin".to_owned(), "park".to_owned(), "adaptive".to_owned()],
            object_bytes: 64 << 10,
            source_bytes: 1 << 20,
            run: Duration::from_millis(100),
            rounds: 1,
            idle: Duration::from_millis(20),
            ..Options::default()
        };
        let report = run(&options).unwrap();
        assert_eq!(report.rows.len(), 6);
        let looks = |strategy: &str| {
            let mut rows = report.rows.iter();
            let row = rows.find(|row| row.strategy == strategy && row.concurrency == 3);
            row.and_then(|row| row.looks_per_100ms).unwrap()
        };
        assert!(
            looks("spin") > 10.0 * looks("park") && looks("park") > 0.0,
            "{report:?}"
        );
        assert!(
            report
                .rows
                .iter()
                .all(|row| row.gbps > 0.0 && row.avg_us > 0.0 && row.p99_us > 0.0),
            "{report:?}"
        );
        assert_eq!(report.ratios.len(), 2);
        assert_eq!(
            report.bounds.len(),
            6,
            "two of a lone waiter, three of the crowd, one of the idle process: {:?}",
            report.bounds
        );
        let json = serde_json::to_value(&report).unwrap();
        for field in [
            "concurrency",
            "strategy",
            "cores",
            "gbps",
            "avg_us",
            "p99_us",
            "looks_per_100ms",
        ] {
            assert!(!json["rows"][0][field].is_null(), "{field}");
        }
        assert!(report.to_html().contains("adaptive") && report.to_text().contains("park"));
    }

    #[test]
    fn wrong_options_are_named() {
        let wrong = Options {
            strategies: vec!["spinn".to_owned()],
            ..Options::default()
        };
        assert!(run(&wrong).unwrap_err().to_string().contains("`spinn`"));
        let wrong = Options {
            movers: 0,
            ..Options::default()
        };
        assert_eq!(
            run(&wrong).unwrap_err().to_string(),
            "0 movers copy nothing"
        );
    }
}
