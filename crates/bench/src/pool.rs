//! `bench pool`: bursts as in decoding with a mixture of experts, on this pool and on its peers.
//!
//! A token is 48 layers, a layer three bursts (gate and up, down, merge), and after each burst the caller is busy
//! elsewhere for the gap, as with attention on a GPU. Its own CPU in the gaps is not counted. The figures wanted are the
//! wall time of a pool that spins and the CPU time of one that sleeps.

mod bursts;
mod peers;
mod report;
mod samples;
mod spinning;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use slackwater_pool::{Config, Kind, Pool, PoolError};
use slackwater_wait::{Cpus, SiteCounts};
use thiserror::Error;

use crate::machine::Machine;
use crate::peer::Skipped;
use crate::usage::{median, quantile};
use bursts::{Bursts, Times, steps_of, task};
use peers::{Program, Workshop};
use samples::{Samples, computing};
use slackwater_report::{Bound, Compared};
use spinning::{Looking, Spinning};

/// The pools and settings of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Threads of the pools.
    pub threads: Vec<usize>,
    /// Lengths of a task.
    pub tasks: Vec<Duration>,
    /// Times between two bursts.
    pub gaps: Vec<Duration>,
    /// Runs of each pool in each setting, in turns; the median counts.
    pub rounds: usize,
    /// A run lasts at least about this long.
    pub run_min: Duration,
    /// An empty directory for the programs of peers; without one no peer runs.
    pub peers: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        let cores = Cpus::current().usable as usize;
        Self {
            threads: vec![cores, 4 * cores],
            tasks: vec![Duration::from_micros(2), Duration::from_micros(20)],
            gaps: vec![
                Duration::ZERO,
                Duration::from_micros(100),
                Duration::from_millis(1),
                Duration::from_millis(2),
                Duration::from_millis(10),
                Duration::from_millis(50),
                Duration::from_millis(100),
            ],
            rounds: 5,
            run_min: Duration::from_millis(120),
            peers: None,
        }
    }
}

/// One pool in one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `slackwater`, `rayon`, `openmp-active`, `openmp-passive`, `tbb`, `spinning` (50 ms, with a clock read at each look) or
    /// `spinning-sparse` (with a pause, and a clock read at each hundredth).
    pub pool: &'static str,
    /// Its threads.
    pub threads: usize,
    /// The length of a task.
    pub task_us: f64,
    /// The time between two bursts.
    pub gap_us: f64,
    /// Wall time of a token, the gaps included.
    pub wall_ms_per_token: f64,
    /// CPU time of a token, without the caller's own in the gaps.
    pub cpu_ms_per_token: f64,
    /// The time of a burst beyond the ideal split over the CPUs.
    pub overhead_p50_us: f64,
    /// As above, of the slowest hundredth.
    pub overhead_p99_us: f64,
    /// Clock reads for each look at the awaited word, where the pool counts them and has looked.
    pub clock_reads_per_spin: Option<f64>,
    /// What the threads' time went to, without the caller's in the gaps, where enough of it was sampled.
    #[serde(flatten)]
    pub shares: Option<Shares>,
}

/// What the time of a pool's threads went to; together 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shares {
    /// Tasks.
    pub compute_share: f64,
    /// Looking at words, the pool's own work, and the kernel.
    pub spin_share: f64,
    /// Reading the clock.
    pub clock_share: f64,
    /// On no CPU: asleep, or waiting for one.
    pub sleep_share: f64,
}

/// The ratios that matter, for one setting of threads, task and gap.
#[derive(Clone, Debug, Serialize)]
pub struct Ratios {
    /// The threads of the pools.
    pub threads: usize,
    /// The length of a task.
    pub task_us: f64,
    /// The time between two bursts.
    pub gap_us: f64,
    /// Wall time over that of OpenMP with active waiting.
    pub wall_over_openmp_active: Option<f64>,
    /// CPU time over that of OpenMP with passive waiting.
    pub cpu_over_openmp_passive: Option<f64>,
    /// Wall time over the better one of oneTBB and rayon.
    pub wall_over_best_of_tbb_rayon: Option<f64>,
    /// The share of a core that the pool takes in the gaps, by comparison with no gaps.
    pub gap_cores: Option<f64>,
}

/// What the benchmark found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `pool`.
    pub bench: &'static str,
    /// The machine of the run.
    pub machine: Machine,
    /// The pool that people come from, the same with its repair, and this one.
    pub compared: Vec<Compared>,
    /// One row for each pool and setting.
    pub rows: Vec<Row>,
    /// The ratios of each setting.
    pub ratios: Vec<Ratios>,
    /// The peers that are missing.
    pub skipped: Vec<Skipped>,
    /// What the figures should be, as far as the peers are there.
    pub bounds: Vec<Bound>,
}

/// Why the benchmark could not run.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The pool did not start.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// rayon did not start.
    #[error("rayon: {0}")]
    Rayon(String),
    /// The sources of the peers could not be written.
    #[error("directory for compiled peers: {0}")]
    Workshop(std::io::Error),
}

const LAYERS: usize = 48;
const WARMUP_LAYERS: usize = 8;
/// Gate and up, down, merge.
const TASKS: [usize; 3] = [192, 64, 1];
/// Tasks and gaps of a token take at most about this long; of a longer one only some layers are run.
const TOKEN_MAX: Duration = Duration::from_millis(500);
/// No further layer is begun after so long: a pool that spins on more threads than CPUs takes seconds for a token.
const RUN_MAX: Duration = Duration::from_secs(1);
/// Fewer samples say nothing.
const SAMPLES_MIN: u64 = 20;
const NAMES: [&str; 7] = [
    "slackwater",
    "rayon",
    "openmp-active",
    "openmp-passive",
    "tbb",
    "spinning",
    "spinning-sparse",
];

/// Runs the benchmark.
///
/// # Errors
/// A pool of this process could not be started. Missing peers are no error: the report names them.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let machine = Machine::detect();
    let mut skipped = Vec::new();
    if machine.nodes == 1 {
        skipped.push(Skipped {
            peer: "crews of several NUMA nodes",
            reason: "this machine has one node; tests run them on the description of a machine with more, and no figure is of them"
                .to_owned(),
        });
    }
    let programs = match &options.peers {
        Some(directory) => {
            let workshop = Workshop::new(directory).map_err(BenchError::Workshop)?;
            programs(&workshop, &mut skipped)
        }
        None => BTreeMap::new(),
    };
    let mut rows = Vec::new();
    for &threads in &options.threads {
        let pools = Pools::start(threads, options.peers.is_some(), &programs)?;
        for &task in &options.tasks {
            let steps = steps_of(task);
            for &gap in &options.gaps {
                rows.extend(pools.measure(
                    options,
                    Setting {
                        threads,
                        task,
                        gap,
                        steps,
                    },
                    &mut skipped,
                ));
            }
        }
    }
    let ratios = ratios(&rows);
    let bounds = report::bounds(&rows, &ratios);
    Ok(Report {
        bench: "pool",
        machine,
        compared: report::compared(&rows),
        rows,
        ratios,
        skipped,
        bounds,
    })
}

fn programs(workshop: &Workshop, skipped: &mut Vec<Skipped>) -> BTreeMap<&'static str, Program> {
    let built = [
        ("openmp-active", workshop.openmp("active")),
        ("openmp-passive", workshop.openmp("passive")),
        ("tbb", workshop.tbb()),
    ];
    let mut programs = BTreeMap::new();
    for (pool, program) in built {
        match program {
            Ok(program) => drop(programs.insert(pool, program)),
            Err(reason) => skipped.push(Skipped { peer: pool, reason }),
        }
    }
    programs
}

/// One setting of the table.
#[derive(Clone, Copy, Debug)]
struct Setting {
    threads: usize,
    task: Duration,
    gap: Duration,
    steps: u64,
}

/// The pools of one size.
struct Pools<'a> {
    slackwater: Pool,
    rayon: Option<rayon::ThreadPool>,
    /// Whether peers without a program of their own run.
    peers: bool,
    programs: &'a BTreeMap<&'static str, Program>,
}

impl<'a> Pools<'a> {
    fn start(
        threads: usize,
        peers: bool,
        programs: &'a BTreeMap<&'static str, Program>,
    ) -> Result<Self, BenchError> {
        let build = || rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let rayon = peers
            .then(build)
            .transpose()
            .map_err(|error| BenchError::Rayon(error.to_string()))?;
        Ok(Self {
            slackwater: Pool::start(&Config::threads(threads))?,
            rayon,
            peers,
            programs,
        })
    }

    /// Measures every pool in turns and takes the medians.
    fn measure(&self, options: &Options, setting: Setting, skipped: &mut Vec<Skipped>) -> Vec<Row> {
        let work = TASKS.iter().sum::<usize>() as u32 * LAYERS as u32 * setting.task
            / Cpus::current().usable.min(setting.threads as u32);
        let token = work + setting.gap * (LAYERS * TASKS.len()) as u32;
        let tokens = (options.run_min.as_secs_f64() / token.as_secs_f64())
            .ceil()
            .max(1.0) as usize;
        let part = TOKEN_MAX.as_secs_f64() / token.as_secs_f64();
        let layers = ((LAYERS as f64 * part) as usize).clamp(2, LAYERS);
        let bursts = Bursts {
            steps: setting.steps,
            gap: setting.gap,
            tokens,
            layers,
            warmup: WARMUP_LAYERS.min(layers / 2),
            tasks: TASKS.to_vec(),
            time_max: RUN_MAX,
        };
        let kinds = TASKS.map(|_| Kind::new("expert"));
        let before = spins(&self.slackwater, &kinds);
        let mut found: BTreeMap<&'static str, Vec<Times>> = BTreeMap::new();
        for _ in 0..options.rounds {
            for name in NAMES {
                match self.run(name, setting.threads, &bursts, &kinds) {
                    Some(Ok(times)) => found.entry(name).or_default().push(times),
                    Some(Err(reason)) => skipped.push(Skipped { peer: name, reason }),
                    None => {}
                }
            }
        }
        let after = spins(&self.slackwater, &kinds);
        let looks = after.0 - before.0;
        let reads = (looks > 0).then(|| (after.1 - before.1) as f64 / looks as f64);
        let row = |(pool, times): (&'static str, Vec<Times>)| {
            let clock_reads_per_spin = reads.filter(|_| pool == "slackwater");
            Row {
                clock_reads_per_spin,
                ..row(pool, setting, &times)
            }
        };
        let in_order = NAMES.iter().filter_map(|name| found.remove_entry(name));
        in_order.map(row).collect()
    }

    /// One run of one pool, if it is there.
    fn run(
        &self,
        name: &str,
        threads: usize,
        bursts: &Bursts,
        kinds: &[Kind; 3],
    ) -> Option<Result<Times, String>> {
        let steps = bursts.steps;
        match name {
            "slackwater" => Some(Ok(bursts.run(|tasks| {
                let kind = TASKS
                    .iter()
                    .position(|&known| known == tasks)
                    .map_or(&kinds[0], |at| &kinds[at]);
                let result = self
                    .slackwater
                    .job(tasks)
                    .kind(kind)
                    .run(|_| computing(|| task(steps)));
                debug_assert!(result.is_ok(), "a task is arithmetic");
            }))),
            "rayon" => {
                let pool = self.rayon.as_ref()?;
                // From inside the pool, where it is faster than from outside.
                Some(Ok(
                    pool.install(|| bursts.run(|tasks| rayon_burst(tasks, steps)))
                ))
            }
            "spinning" => self.spinning(threads, bursts, Looking::ClockEachLook),
            "spinning-sparse" => self.spinning(threads, bursts, Looking::Sparse),
            program => Some(self.programs.get(program)?.run(threads, bursts)),
        }
    }

    /// Started for the run, because its idle threads take CPU time from whatever runs next.
    fn spinning(
        &self,
        threads: usize,
        bursts: &Bursts,
        looking: Looking,
    ) -> Option<Result<Times, String>> {
        self.peers.then(|| {
            let pool = Spinning::start(threads, looking);
            Ok(bursts.run(|tasks| pool.burst(tasks, bursts.steps)))
        })
    }
}

fn rayon_burst(tasks: usize, steps: u64) {
    use rayon::iter::{IntoParallelIterator, ParallelIterator};
    (0..tasks)
        .into_par_iter()
        .for_each(|_| computing(|| task(steps)));
}

/// Looks and clock reads of all waits of the pool so far.
fn spins(pool: &Pool, kinds: &[Kind; 3]) -> (u64, u64) {
    let threads = pool.counts().threads;
    let idle = threads.iter().map(|thread| thread.waits);
    let all: Vec<SiteCounts> = idle
        .chain(kinds.iter().map(|kind| kind.join_site().counts()))
        .collect();
    (
        all.iter().map(|waits| waits.looks).sum(),
        all.iter().map(|waits| waits.clock_reads).sum(),
    )
}

fn row(pool: &'static str, setting: Setting, runs: &[Times]) -> Row {
    let cpus = setting.threads.min(Cpus::current().usable as usize);
    let per_token = |run: &Times, time: Duration| {
        time.as_secs_f64() * 1e3 * LAYERS as f64 / run.layers.max(1) as f64
    };
    let mut overheads: Vec<f64> = runs
        .iter()
        .flat_map(|run| run.lengths.iter().zip(TASKS.iter().cycle()))
        .map(|(length, &tasks)| {
            let ideal = setting.task * tasks.div_ceil(cpus) as u32;
            length.saturating_sub(ideal).as_secs_f64() * 1e6
        })
        .collect();
    Row {
        pool,
        threads: setting.threads,
        task_us: setting.task.as_secs_f64() * 1e6,
        gap_us: setting.gap.as_secs_f64() * 1e6,
        wall_ms_per_token: median(
            &mut runs
                .iter()
                .map(|run| per_token(run, run.wall))
                .collect::<Vec<_>>(),
        ),
        cpu_ms_per_token: median(
            &mut runs
                .iter()
                .map(|run| per_token(run, run.cpu))
                .collect::<Vec<_>>(),
        ),
        overhead_p50_us: quantile(&mut overheads, 0.5),
        overhead_p99_us: quantile(&mut overheads, 0.99),
        clock_reads_per_spin: None,
        shares: shares(setting, runs),
    }
}

/// What the time of the threads went to: the kernel's own account says how much of it was on a CPU, the samples what for.
fn shares(setting: Setting, runs: &[Times]) -> Option<Shares> {
    let samples = runs.iter().map(|run| run.samples);
    let samples = samples.sum::<Option<Samples>>()?;
    if samples.all() < SAMPLES_MIN {
        return None;
    }
    let seconds = |run: &Times| {
        let gaps = setting.gap.as_secs_f64() * run.lengths.len() as f64;
        setting.threads as f64 * run.wall.as_secs_f64() - gaps
    };
    let all: f64 = runs.iter().map(seconds).sum();
    let cpu: f64 = runs.iter().map(|run| run.cpu.as_secs_f64()).sum();
    let running = (cpu / all).min(1.0);
    let share = |count: u64| running * count as f64 / samples.all() as f64;
    Some(Shares {
        compute_share: share(samples.compute),
        spin_share: share(samples.rest),
        clock_share: share(samples.clock),
        sleep_share: 1.0 - running,
    })
}

/// The ratios of the rows of this pool to its peers in the same setting.
fn ratios(rows: &[Row]) -> Vec<Ratios> {
    let find = |of: &Row, pool: &str, gap_us: f64| {
        let same = |row: &&Row| {
            row.pool == pool
                && row.threads == of.threads
                && row.task_us == of.task_us
                && row.gap_us == gap_us
        };
        rows.iter().find(same)
    };
    let ours = rows.iter().filter(|row| row.pool == "slackwater");
    ours.map(|row| {
        let peer = |pool: &str| find(row, pool, row.gap_us);
        let best = [peer("tbb"), peer("rayon")]
            .into_iter()
            .flatten()
            .map(|peer| peer.wall_ms_per_token);
        let best = best.fold(f64::INFINITY, f64::min);
        let gaps_ms = row.gap_us / 1e3 * (LAYERS * TASKS.len()) as f64;
        let gapless = find(row, "slackwater", 0.0).filter(|_| gaps_ms > 0.0);
        Ratios {
            threads: row.threads,
            task_us: row.task_us,
            gap_us: row.gap_us,
            wall_over_openmp_active: peer("openmp-active")
                .map(|peer| row.wall_ms_per_token / peer.wall_ms_per_token),
            cpu_over_openmp_passive: peer("openmp-passive")
                .map(|peer| row.cpu_ms_per_token / peer.cpu_ms_per_token),
            wall_over_best_of_tbb_rayon: best.is_finite().then(|| row.wall_ms_per_token / best),
            gap_cores: gapless.map(|gapless| {
                (row.cpu_ms_per_token - gapless.cpu_ms_per_token).max(0.0) / gaps_ms
            }),
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_fills_every_row_and_says_what_is_missing() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            threads: vec![2],
            tasks: vec![Duration::from_nanos(200)],
            gaps: vec![Duration::ZERO, Duration::from_micros(10)],
            rounds: 1,
            run_min: Duration::from_millis(1),
            peers: Some(directory.path().to_owned()),
        };
        let report = run(&options).unwrap();
        let ours = report
            .rows
            .iter()
            .filter(|row| row.pool == "slackwater")
            .count();
        assert_eq!((ours, report.ratios.len()), (2, 2));
        for name in NAMES {
            let ran = report.rows.iter().any(|row| row.pool == name);
            let skipped = report
                .skipped
                .iter()
                .any(|skipped| skipped.peer == name && !skipped.reason.is_empty());
            assert!(
                ran != skipped,
                "{name} either ran or is said to be missing: {:?}",
                report.skipped
            );
        }
        assert!(
            report
                .rows
                .iter()
                .all(|row| row.wall_ms_per_token > 0.0 && row.cpu_ms_per_token >= 0.0),
            "{report:?}"
        );
        let json = serde_json::to_value(&report).unwrap();
        for field in [
            "pool",
            "threads",
            "task_us",
            "gap_us",
            "wall_ms_per_token",
            "overhead_p50_us",
            "overhead_p99_us",
        ] {
            assert!(!json["rows"][0][field].is_null(), "{field}");
        }
        assert!(
            report.to_html().contains("CPU time per token")
                && report.to_text().contains("slackwater")
        );
    }

    #[test]
    fn ratios_compare_rows_of_the_same_setting() {
        let row = |pool, gap_us, wall, cpu| Row {
            pool,
            threads: Cpus::current().usable as usize,
            task_us: 2.0,
            gap_us,
            wall_ms_per_token: wall,
            cpu_ms_per_token: cpu,
            overhead_p50_us: 0.0,
            overhead_p99_us: 0.0,
            clock_reads_per_spin: None,
            shares: None,
        };
        let rows = [
            row("slackwater", 0.0, 12.0, 24.0),
            row("openmp-active", 0.0, 10.0, 40.0),
            row("rayon", 0.0, 16.0, 24.0),
            row("slackwater", 2_000.0, 300.0, 31.2),
        ];
        let ratios = ratios(&rows);
        assert_eq!(ratios[0].wall_over_openmp_active, Some(1.2));
        assert_eq!(ratios[0].cpu_over_openmp_passive, None);
        assert_eq!(ratios[0].wall_over_best_of_tbb_rayon, Some(0.75));
        assert_eq!(ratios[1].wall_over_openmp_active, None);
        let gap_cores = ratios[1].gap_cores.unwrap();
        assert!((gap_cores - 7.2 / 288.0).abs() < 1e-9, "{gap_cores}");
        let holds: Vec<bool> = report::bounds(&rows, &ratios)
            .iter()
            .map(Bound::holds)
            .collect();
        assert_eq!(
            holds,
            [false, true],
            "slower than active OpenMP, and thrifty in the gaps"
        );
    }

    #[test]
    fn shares_are_of_the_threads_time_without_the_callers_gaps() {
        let setting = Setting {
            threads: 2,
            task: Duration::from_micros(2),
            gap: Duration::from_millis(10),
            steps: 1,
        };
        let run = Times {
            wall: Duration::from_millis(100),
            cpu: Duration::from_millis(60),
            lengths: vec![Duration::from_millis(1); 8],
            layers: 1,
            samples: Some(Samples {
                compute: 10,
                clock: 20,
                rest: 30,
            }),
        };
        // 2 threads for 100 ms, of which the caller spends 80 ms elsewhere: 60 of 120 ms on a CPU.
        let shares = shares(setting, std::slice::from_ref(&run)).unwrap();
        let close = |value: f64, wanted: f64| assert!((value - wanted).abs() < 1e-9, "{shares:?}");
        close(shares.compute_share, 0.5 / 6.0);
        close(shares.clock_share, 1.0 / 6.0);
        close(shares.spin_share, 0.25);
        close(shares.sleep_share, 0.5);
        let few = Times {
            samples: Some(Samples {
                compute: 1,
                ..Samples::default()
            }),
            ..run
        };
        assert_eq!(super::shares(setting, &[few]), None);
    }
}
