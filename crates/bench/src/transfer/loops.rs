//! Engines with more and more event loops, over one load.

use serde::Serialize;

use super::grid::{Cell, Pair, Round};
use super::raw::MESSAGE;
use super::{BenchError, Carrier, Direction, Options, Report};
use crate::usage::median;
use slackwater_report::{Table, figure};

/// Threads of the initiator: more than one loop can serve at once.
const THREADS: usize = 16;
/// Blocks of 1 MiB in each of their batches.
const BATCH: usize = 16;

/// Engines with so many event loops at both ends.
#[derive(Clone, Debug, Serialize)]
pub struct LoopsRow {
    /// Event loops of each end, and connections between them where that is more than the default.
    pub loops: usize,
    /// The direction, seen from the initiator.
    pub op: Direction,
    /// Bytes moved in a nanosecond.
    pub gbps: f64,
    /// From the submission of a batch to its end.
    pub p50_us: f64,
    /// The same of the slowest hundredth.
    pub p99_us: f64,
    /// CPUs busy on average in the initiator.
    pub initiator_cores: f64,
    /// The same in the target.
    pub target_cores: f64,
    /// Throughput over that of one loop, in turns with it.
    pub gbps_over_one: Option<f64>,
    /// Between two machines, throughput over a stream of a bare socket in the same turn.
    pub gbps_over_limit: Option<f64>,
}

/// The load of each row: threads and blocks that one loop cannot serve at once.
pub(super) fn cell(direction: Direction) -> Cell {
    Cell {
        direction,
        block: MESSAGE,
        concurrency: THREADS,
        batch: BATCH,
    }
}

/// All engines are there at the same time and take turns.
pub(super) fn measure(options: &Options, report: &mut Report) -> Result<(), BenchError> {
    let start = |&loops: &usize| Pair::with_loops(options, Carrier::Tcp, "adaptive", Some(loops));
    let mut pairs: Vec<Pair> = options.loops.iter().map(start).collect::<Result<_, _>>()?;
    for &direction in &options.directions {
        let cell = cell(direction);
        let mut rounds = vec![Vec::new(); pairs.len()];
        for _ in 0..options.rounds.max(1) {
            for (pair, rounds) in pairs.iter_mut().zip(&mut rounds) {
                rounds.push(pair.round(cell, options.window.as_millis())?);
            }
        }
        report
            .loops
            .extend(LoopsRow::of(direction, &options.loops, &rounds, &[]));
    }
    Ok(())
}

impl LoopsRow {
    /// The rows of a direction: the rounds of each number of loops, and the limit of each round where there is one.
    pub(super) fn of(
        op: Direction,
        loops: &[usize],
        rounds: &[Vec<Round>],
        limits: &[f64],
    ) -> Vec<Self> {
        let one = loops.iter().position(|&loops| loops == 1);
        let row = |(&loops, own): (&usize, &Vec<Round>)| {
            let middle =
                |value: fn(&Round) -> f64| median(&mut own.iter().map(value).collect::<Vec<_>>());
            let over = |others: Vec<f64>| {
                let turns = own.iter().zip(&others);
                let mut ratios: Vec<f64> = turns.map(|(own, other)| own.gbps / other).collect();
                (!ratios.is_empty()).then(|| median(&mut ratios))
            };
            let of_one = one.map(|one| rounds[one].iter().map(|one| one.gbps).collect());
            Self {
                loops,
                op,
                gbps: middle(|round| round.gbps),
                p50_us: middle(|round| round.p50_us),
                p99_us: middle(|round| round.p99_us),
                initiator_cores: middle(|round| round.initiator_cores),
                target_cores: middle(|round| round.target_cores),
                gbps_over_one: of_one.and_then(over),
                gbps_over_limit: over(limits.to_vec()),
            }
        };
        loops.iter().zip(rounds).map(row).collect()
    }

    pub(super) fn table(rows: &[Self]) -> Option<Table> {
        let cells = |row: &Self| {
            let figures = [
                row.gbps,
                row.p50_us,
                row.p99_us,
                row.initiator_cores,
                row.target_cores,
            ];
            let ratios = [row.gbps_over_one, row.gbps_over_limit];
            let ratios = ratios.map(|ratio| ratio.map_or_else(|| "-".to_owned(), figure));
            [row.loops.to_string(), row.op.name().to_owned()]
                .into_iter()
                .chain(figures.map(figure))
                .chain(ratios)
                .collect()
        };
        let heading = [
            "loops",
            "op",
            "GB/s",
            "p50 µs",
            "p99 µs",
            "initiator cores",
            "target cores",
            "over one loop",
            "over the limit",
        ];
        (!rows.is_empty()).then(|| {
            let title =
                format!("Event loops: {THREADS} threads, batches of {BATCH} x 1 MiB over TCP");
            Table::new(&title, &heading, rows.iter().map(cells))
        })
    }
}
