//! Engines with more and more event loops, over one load.

use serde::Serialize;

use super::grid::{Cell, Pair};
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
}

/// All engines are there at the same time and take turns.
pub(super) fn measure(options: &Options, report: &mut Report) -> Result<(), BenchError> {
    let start = |&loops: &usize| Pair::with_loops(options, Carrier::Tcp, "adaptive", Some(loops));
    let mut pairs: Vec<Pair> = options.loops.iter().map(start).collect::<Result<_, _>>()?;
    let one = options.loops.iter().position(|&loops| loops == 1);
    for &direction in &options.directions {
        let cell = Cell {
            direction,
            block: MESSAGE,
            concurrency: THREADS,
            batch: BATCH,
        };
        let mut rounds = vec![Vec::new(); pairs.len()];
        for _ in 0..options.rounds.max(1) {
            for (pair, rounds) in pairs.iter_mut().zip(&mut rounds) {
                rounds.push(pair.round(cell, options.window.as_millis())?);
            }
        }
        for (&loops, own) in options.loops.iter().zip(&rounds) {
            let middle = |value: fn(&super::grid::Round) -> f64| {
                median(&mut own.iter().map(value).collect::<Vec<_>>())
            };
            let over_one = one.map(|one| {
                let turns = own.iter().zip(&rounds[one]);
                median(
                    &mut turns
                        .map(|(own, one)| own.gbps / one.gbps)
                        .collect::<Vec<_>>(),
                )
            });
            report.loops.push(LoopsRow {
                loops,
                op: direction,
                gbps: middle(|round| round.gbps),
                p50_us: middle(|round| round.p50_us),
                p99_us: middle(|round| round.p99_us),
                initiator_cores: middle(|round| round.initiator_cores),
                target_cores: middle(|round| round.target_cores),
                gbps_over_one: over_one,
            });
        }
    }
    Ok(())
}

impl LoopsRow {
    pub(super) fn table(rows: &[Self]) -> Option<Table> {
        let cells = |row: &Self| {
            let figures = [
                row.gbps,
                row.p50_us,
                row.p99_us,
                row.initiator_cores,
                row.target_cores,
            ];
            let over_one = row.gbps_over_one.map_or_else(|| "-".to_owned(), figure);
            [row.loops.to_string(), row.op.name().to_owned()]
                .into_iter()
                .chain(figures.map(figure))
                .chain([over_one])
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
        ];
        (!rows.is_empty()).then(|| {
            let title =
                format!("Event loops: {THREADS} threads, batches of {BATCH} x 1 MiB over TCP");
            Table::new(&title, &heading, rows.iter().map(cells))
        })
    }
}
