//! A lone small request beside a ping-pong, in short rounds that take turns on the same CPUs.

use super::grid::{Cell, Pair};
use super::limits::{Bed, PING};
use super::report::table;
use super::{BenchError, Carrier, Direction, Latency, Options, Report};
use crate::process::allowed_cpus;
use crate::usage::median;
use slackwater_report::{Table, figure};

/// Rounds of each placement, and how many of them fit into the rounds that a row has.
const ROUNDS: usize = 9;

/// The placement that is the scheduler's choice.
pub(super) const FREE: &str = "free";

/// Measures reads and writes of 4 KiB over TCP, if they are asked for.
pub(super) fn measure(
    options: &Options,
    limits: &mut Bed,
    report: &mut Report,
) -> Result<(), BenchError> {
    if !options.carriers.contains(&Carrier::Tcp) || !options.blocks.contains(&PING) {
        return Ok(());
    }
    let cpus = allowed_cpus();
    let mut placements = vec![("one cpu", [cpus.first(), cpus.first()])];
    match cpus.get(1) {
        Some(second) => placements.push(("two cpus", [cpus.first(), Some(second)])),
        None => report.notes.push("one CPU: no latency between two".into()),
    }
    placements.push((FREE, [None, None]));
    let rounds = if options.rounds > 1 { ROUNDS } else { 1 };
    let millis = (options.window / 4).as_millis().max(10);
    let mut pair = Pair::start(options, Carrier::Tcp, "adaptive")?;
    for (placement, [initiator, target]) in placements {
        pair.pin(initiator.copied(), target.copied())?;
        limits.pin(initiator.copied(), target.copied())?;
        for &op in &options.directions {
            let cell = Cell {
                direction: op,
                block: PING,
                concurrency: 1,
                batch: 1,
            };
            let mut measured = Vec::new();
            for _ in 0..rounds {
                let ping = limits.ping()?.p50_us;
                measured.push((pair.round(cell, millis)?.p50_us, ping));
            }
            report.latency.push(Latency::of(op, placement, &measured));
        }
    }
    limits.pin(None, None)
}

impl Latency {
    pub(super) fn of(op: Direction, placement: &'static str, measured: &[(f64, f64)]) -> Self {
        let middle = |value: fn(&(f64, f64)) -> f64| {
            median(&mut measured.iter().map(value).collect::<Vec<_>>())
        };
        let ratios = measured.iter().map(|(ours, ping)| ours / ping);
        Self {
            op,
            placement,
            rounds: measured.len(),
            p50_us: middle(|(ours, _)| *ours),
            ping_pong_p50_us: middle(|(_, ping)| *ping),
            ratio: middle(|(ours, ping)| ours / ping),
            ratio_spread: (
                ratios.clone().fold(f64::INFINITY, f64::min),
                ratios.fold(0.0, f64::max),
            ),
        }
    }

    pub(super) fn table(all: &[Self]) -> Option<Table> {
        let head = [
            "op",
            "ends",
            "rounds",
            "p50 µs",
            "ping-pong p50 µs",
            "ratio",
            "least",
            "most",
        ];
        let row = |row: &Self| {
            let mut cells = vec![
                row.op.name().to_owned(),
                row.placement.to_owned(),
                row.rounds.to_string(),
            ];
            let (least, most) = row.ratio_spread;
            cells.extend([row.p50_us, row.ping_pong_p50_us, row.ratio, least, most].map(figure));
            cells
        };
        (!all.is_empty())
            .then(|| table("4 KiB over TCP, one at a time", &head, all.iter().map(row)))
    }
}
