//! What the live page costs a master with many nodes and objects, and the gets of clients, with and without viewers.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use slackwater_base::Rng;
use slackwater_report::Bound;
use slackwater_wait::now;

use super::master::{Sample, measured};
use super::viewer::Viewer;
use super::{Cluster, ClusterError, Programs, Shape, failed, memory_for, start_load};
use crate::process::Process;
use crate::usage::{median, quantile};

/// The load and sizes of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Objects in the catalog. Each takes a block of the nodes' memory.
    pub objects: usize,
    /// Processes that lend memory, a segment each.
    pub nodes: usize,
    /// With how many viewers the gets are measured, beside none; a row of none says how much that differs from itself.
    pub viewers: Vec<usize>,
    /// Clients, each with a link and a thread of its own.
    pub clients: usize,
    /// From one get of a client to its next one.
    pub every: Duration,
    /// How long gets are measured with so many viewers in a round. A viewer is told a sample a second.
    pub window: Duration,
    /// Rounds, in each of which all numbers of viewers take turns with none; the medians count.
    pub rounds: usize,
    /// Where the master's directory is made.
    pub directory: PathBuf,
    /// How the processes are started.
    pub programs: Programs,
}

impl Options {
    /// A million objects on ten nodes, with the master's files in `directory`.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self {
            objects: 1_000_000,
            nodes: 10,
            viewers: vec![0, 1, 10],
            clients: 4,
            every: Duration::from_millis(2),
            window: Duration::from_secs(4),
            rounds: 7,
            directory,
            programs: Programs::default(),
        }
    }
}

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Objects in the catalog.
    pub objects: usize,
    /// Nodes.
    pub nodes: usize,
    /// Clients that read.
    pub clients: usize,
    /// Rounds, whose medians these are.
    pub rounds: usize,
    /// What was measured, a row for each number of viewers.
    pub rows: Vec<Row>,
    /// What is promised, held against the figures.
    pub bounds: Vec<Bound>,
}

/// So many viewers, beside none in the same rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Pages that were open.
    pub viewers: usize,
    /// Samples that each was told in a second.
    pub samples_per_s: f64,
    /// Length of a sample.
    pub sample_bytes: f64,
    /// CPUs that the master used, and without viewers.
    pub master_cores: f64,
    /// The same without viewers.
    pub master_cores_without: f64,
    /// CPU of the master for each viewer, in percent of a core.
    pub core_percent_per_viewer: f64,
    /// Gets a second.
    pub gets_per_s: f64,
    /// Half of the gets took no longer.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// The same without viewers.
    pub p99_without_us: f64,
    /// That of all gets of all rounds beside viewers over that of all without. A round has too few gets for one: the
    /// 99th of 100 of 4,000 gets is one of 40.
    pub p99_ratio: f64,
    /// The least that it would be of many more rounds, wrong (here or at the most) in one of twenty cases.
    pub p99_ratio_least: f64,
    /// The most.
    pub p99_ratio_most: f64,
}

/// Gets beside some viewers, and those without in the same round.
struct Turn {
    without: Sample,
    with: Watched,
}

/// Gets while pages are open.
struct Watched {
    sample: Sample,
    /// Samples that a viewer was told, and their bytes.
    seen: [f64; 2],
    seconds: f64,
}

/// How long viewers may be told nothing after the gets.
const SILENCE: Duration = Duration::from_secs(60);
/// How often rounds are drawn to say how far a ratio may be off.
const DRAWS: usize = 200;

/// Measures.
///
/// # Errors
/// When a process cannot be started, fails or falls silent, or a viewer is told nothing.
pub fn run(options: &Options) -> Result<Report, ClusterError> {
    let Options { objects, nodes, .. } = *options;
    let cluster = Cluster::start(&Shape {
        program: &options.programs.program,
        nodes,
        memory: memory_for(objects, nodes),
        ssd: None,
        directory: options.directory.clone(),
        is_administered: true,
    })?;
    let mut load = start_load(&options.programs, &cluster.address)?;
    load.say(&format!("fill {objects} 64 0"))?;
    load.hear("filled")?;
    let mut turns: Vec<(usize, Vec<Turn>)> =
        options.viewers.iter().map(|of| (*of, Vec::new())).collect();
    for round in 0..options.rounds {
        for (viewers, turns) in &mut turns {
            // What grows or falls with time is for as many rounds as against the viewers.
            turns.push(match round % 2 {
                0 => {
                    let without = gets(&cluster, &mut load, options)?;
                    Turn {
                        without,
                        with: watched(&cluster, &mut load, *viewers, options)?,
                    }
                }
                _ => {
                    let with = watched(&cluster, &mut load, *viewers, options)?;
                    Turn {
                        without: gets(&cluster, &mut load, options)?,
                        with,
                    }
                }
            });
        }
    }
    let rows: Vec<Row> = turns
        .iter()
        .map(|(viewers, turns)| row(*viewers, turns))
        .collect();
    Ok(Report {
        objects,
        nodes,
        clients: options.clients,
        rounds: options.rounds,
        bounds: bounds(&rows),
        rows,
    })
}

/// Gets while so many pages are open.
fn watched(
    cluster: &Cluster,
    load: &mut Process,
    viewers: usize,
    options: &Options,
) -> Result<Watched, ClusterError> {
    let admin = cluster.admin.as_deref().unwrap_or_default();
    let open: Vec<Viewer> = (0..viewers)
        .map(|_| Viewer::open(admin))
        .collect::<Result<_, _>>()?;
    let told = || {
        let each = open.iter().map(Viewer::seen);
        each.fold([0; 2], |all, one| [all[0] + one[0], all[1] + one[1]])
    };
    let (before, begun) = (told(), now());
    let sample = gets(cluster, load, options)?;
    // A master that takes long for a sample takes the next one later.
    while viewers > 0 && told()[0] == before[0] {
        let waited = now().since(begun);
        if waited > options.window + SILENCE {
            return Err(failed(format!(
                "{viewers} viewers were told nothing in {waited:?}"
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let seconds = now().since(begun).as_secs_f64();
    let after = told();
    let seen = [0, 1].map(|at| (after[at] - before[at]) as f64 / viewers.max(1) as f64);
    Ok(Watched {
        sample,
        seen,
        seconds,
    })
}

fn gets(cluster: &Cluster, load: &mut Process, options: &Options) -> Result<Sample, ClusterError> {
    let Options {
        clients, objects, ..
    } = options;
    let (millis, every) = (options.window.as_millis(), options.every.as_micros());
    load.say(&format!("get {clients} {objects} {millis} {every}"))?;
    measured(load, || cluster.cpu_seconds())
}

fn row(viewers: usize, turns: &[Turn]) -> Row {
    let middle =
        |value: &dyn Fn(&Turn) -> f64| median(&mut turns.iter().map(value).collect::<Vec<_>>());
    let per_viewer = |turn: &Turn| {
        let more = turn.with.sample.server_cores - turn.without.server_cores;
        100.0 * more / viewers.max(1) as f64
    };
    let [p99_ratio_least, p99_ratio_most] = ratio_interval(turns);
    Row {
        viewers,
        samples_per_s: middle(&|turn| turn.with.seen[0] / turn.with.seconds),
        sample_bytes: middle(&|turn| turn.with.seen[1] / turn.with.seen[0].max(1.0)),
        master_cores: middle(&|turn| turn.with.sample.server_cores),
        master_cores_without: middle(&|turn| turn.without.server_cores),
        core_percent_per_viewer: middle(&per_viewer),
        gets_per_s: middle(&|turn| turn.with.sample.ops_per_s),
        p50_us: middle(&|turn| turn.with.sample.p50_us),
        p99_us: middle(&|turn| turn.with.sample.p99_us),
        p99_without_us: middle(&|turn| turn.without.p99_us),
        p99_ratio: p99_ratio(turns.iter()),
        p99_ratio_least,
        p99_ratio_most,
    }
}

/// The p99 of all gets of these rounds beside viewers over that of those without.
fn p99_ratio<'a>(turns: impl Iterator<Item = &'a Turn> + Clone) -> f64 {
    let p99 = |calls: fn(&Turn) -> &[f64]| {
        let mut all: Vec<f64> = turns.clone().flat_map(calls).copied().collect();
        quantile(&mut all, 0.99)
    };
    p99(|turn| &turn.with.sample.calls) / p99(|turn| &turn.without.calls)
}

/// Between which two values [`p99_ratio`] of many more rounds would lie, wrong in one of twenty cases: of as many rounds
/// drawn from these, again and again (Efron, Bootstrap methods, 1979). Gets of a round are alike, so rounds are drawn.
fn ratio_interval(turns: &[Turn]) -> [f64; 2] {
    let mut rng = Rng::new(turns.len() as u64);
    let mut ratios: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let draw = |_| rng.below(turns.len() as u64) as usize;
            let drawn: Vec<usize> = (0..turns.len()).map(draw).collect();
            p99_ratio(drawn.iter().map(|at| &turns[*at]))
        })
        .collect();
    [0.025, 0.975].map(|share| quantile(&mut ratios, share))
}

/// What the page promises, held against the rows.
fn bounds(rows: &[Row]) -> Vec<Bound> {
    let mut held: Vec<Bound> = rows
        .iter()
        .filter(|row| row.viewers > 0)
        .map(|row| {
            let what = format!(
                "CPU of the master for each of {} viewers, % of a core",
                row.viewers
            );
            Bound::at_most(what, row.core_percent_per_viewer, 1.0)
        })
        .collect();
    let most = rows.iter().max_by_key(|row| row.viewers);
    if let Some(row) = most.filter(|row| row.viewers > 0) {
        let what = format!(
            "p99 of gets beside {} viewers over that without",
            row.viewers
        );
        held.push(Bound::at_most(what, row.p99_ratio, 1.05));
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_viewers_cost_is_what_is_more_than_without_them() {
        // Slow gets of which no round has enough to tell: two of 100 in one, none in the others.
        let calls =
            |slow: usize, micros: f64| [vec![micros; slow], vec![50.0; 100 - slow]].concat();
        let turns: Vec<Turn> = [(0.30, 2), (0.25, 1), (0.26, 1)]
            .map(|(cores, slow)| Turn {
                without: Sample::of(0.20, &calls(2, 100.0)),
                with: Watched {
                    sample: Sample::of(cores, &calls(slow, 105.0)),
                    seen: [4.0, 4000.0],
                    seconds: 4.0,
                },
            })
            .into();
        let row = row(10, &turns);
        assert!((row.core_percent_per_viewer - 0.6).abs() < 1e-9, "{row:?}");
        assert!((row.p99_ratio - 1.05).abs() < 1e-9, "{row:?}");
        assert_eq!(
            row.p99_ratio_most, 1.05,
            "three rounds tell little: {row:?}"
        );
        assert_eq!(row.p99_ratio_least, 0.5, "{row:?}");
        assert_eq!((row.samples_per_s, row.sample_bytes), (1.0, 1000.0));
        let dear = Row {
            viewers: 1,
            core_percent_per_viewer: 1.1,
            ..row.clone()
        };
        let none = Row {
            viewers: 0,
            core_percent_per_viewer: 2.0,
            ..row.clone()
        };
        assert!(bounds(std::slice::from_ref(&none)).is_empty());
        let held = bounds(&[none, dear, row]);
        let holds: Vec<bool> = held.iter().map(Bound::holds).collect();
        assert_eq!(holds, [false, true, true]);
    }
}
