//! The incumbent's own benchmark program, where its package is installed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::grid::{Cell, Pair};
use super::raw::MESSAGE;
use super::{BenchError, Carrier, Options, PeerRow, Peers, Report};
use crate::peer::incumbent_program;
use crate::process::{Process, ProcessError};
use crate::usage::median;

/// It counts in whole seconds.
const SECONDS: u32 = 1;
const PATIENCE: Duration = Duration::from_secs(20);

/// Threads and batches that are compared, at 1 MiB.
const CELLS: [(usize, usize); 4] = [(1, 1), (1, 16), (1, 128), (4, 128)];

/// One run.
#[derive(Clone, Copy)]
struct Ran {
    gbps: f64,
    initiator_cores: f64,
    target_cores: f64,
}

/// Its rows and ours in turns; says why where there is none.
pub(super) fn measure(options: &Options, report: &mut Report) -> Result<(), BenchError> {
    let Some(python) = options.python.as_deref() else {
        report
            .notes
            .push("the incumbent's bench was left out, as asked".into());
        return Ok(());
    };
    if !options.carriers.contains(&Carrier::Tcp) || !options.blocks.contains(&MESSAGE) {
        return Ok(());
    }
    let program = match incumbent_program(python, "transfer_engine_bench") {
        Ok(program) => program,
        Err(why) => {
            report.notes.push(format!("no peer: {why}"));
            return Ok(());
        }
    };
    let mut pair = Pair::start(options, Carrier::Tcp, "adaptive")?;
    let mut rows = Vec::new();
    for &direction in &options.directions {
        for (concurrency, batch) in CELLS {
            let cell = Cell {
                direction,
                block: MESSAGE,
                concurrency,
                batch,
            };
            let mut rounds = Vec::new();
            for _ in 0..options.rounds.max(1) {
                let theirs = match run(&program, cell) {
                    Ok(ran) => ran,
                    Err(error) => {
                        report
                            .notes
                            .push(format!("no peer: {}: {error}", program.display()));
                        return Ok(());
                    }
                };
                rounds.push((theirs, pair.round(cell, options.window.as_millis())?.gbps));
            }
            let middle = |value: fn(&(Ran, f64)) -> f64| {
                median(&mut rounds.iter().map(value).collect::<Vec<_>>())
            };
            rows.push(PeerRow {
                op: direction,
                block: MESSAGE,
                threads: concurrency,
                batch,
                gbps: middle(|(theirs, _)| theirs.gbps),
                initiator_cores: middle(|(theirs, _)| theirs.initiator_cores),
                target_cores: middle(|(theirs, _)| theirs.target_cores),
                cpu_s_per_gb: middle(|(theirs, _)| {
                    (theirs.initiator_cores + theirs.target_cores) / theirs.gbps
                }),
                ours_gbps: middle(|(_, ours)| *ours),
                ours_over_peer: middle(|(theirs, ours)| ours / theirs.gbps),
            });
        }
    }
    report.peers = Peers {
        mooncake_transfer_engine: Some(rows),
    };
    Ok(())
}

fn run(program: &Path, cell: Cell) -> Result<Ran, ProcessError> {
    let bytes = (cell.concurrency * cell.batch * cell.block).max(256 << 20);
    let command = |mode: &str| {
        let mut command = Command::new(program);
        command
            .stderr(Stdio::piped())
            .arg(format!("--mode={mode}"))
            .arg(format!("--buffer_size={bytes}"));
        command.args([
            "--metadata_server=P2PHANDSHAKE",
            "--protocol=tcp",
            "--local_server_name=127.0.0.1",
        ]);
        command
    };
    let mut target = Process::spawn(command("target"), "transfer_engine_bench target", PATIENCE)?;
    let listening = target.hear_of("listening on ")?;
    let segment = listening
        .rsplit("listening on ")
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned();
    target.hear_of("DRAM is used")?;
    let mut initiator = command("initiator");
    initiator
        .arg(format!("--segment_id={segment}"))
        .arg(format!("--operation={}", cell.direction.name()));
    initiator.args(
        [
            ("threads", cell.concurrency),
            ("batch_size", cell.batch),
            ("block_size", cell.block),
        ]
        .map(|(name, value)| format!("--{name}={value}")),
    );
    initiator.arg(format!("--duration={SECONDS}"));
    let mut initiator = Process::spawn(initiator, "transfer_engine_bench initiator", PATIENCE)?;
    initiator.hear_of("DRAM is used")?;
    // It reports neither when its memory has been touched nor when its threads run, a moment later.
    std::thread::sleep(Duration::from_millis(200));
    let (began, own, other) = (
        Instant::now(),
        initiator.cpu_seconds(),
        target.cpu_seconds(),
    );
    std::thread::sleep(Duration::from_millis(500));
    let seconds = began.elapsed().as_secs_f64();
    let (own, other) = (initiator.cpu_seconds() - own, target.cpu_seconds() - other);
    let done = initiator.hear_of("throughput")?;
    let gbps = done
        .rsplit("throughput ")
        .next()
        .and_then(|text| text.split_whitespace().next()?.parse().ok());
    let gbps = gbps.ok_or_else(|| ProcessError::Said(done.clone()))?;
    Ok(Ran {
        gbps,
        initiator_cores: own / seconds,
        target_cores: other / seconds,
    })
}
