use std::ffi::OsStr;
use std::fmt;
use std::path::Path;

use slackwater_base::ByteSize;
use slackwater_transfer::AesLibrary;

use super::limits::{Bed, Rate};
use super::objects::Grants;
use super::raw::MESSAGE;
use super::{BenchError, Carrier, Direction, Options, Place, Report, Row};
use crate::process::Process;
use crate::usage::median;
use crate::wait;

/// One target and its initiator.
pub(crate) struct Pair {
    pub(super) target: Process,
    pub(super) initiator: Process,
}

/// One kind of load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) direction: Direction,
    pub(crate) block: usize,
    pub(crate) concurrency: usize,
    pub(crate) batch: usize,
}

impl Cell {
    /// Bytes under way at once.
    pub(super) fn bytes(self) -> f64 {
        self.block as f64 * self.concurrency as f64 * self.batch as f64
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (op, block) = (self.direction.name(), ByteSize(self.block as u64));
        let Self {
            concurrency, batch, ..
        } = self;
        write!(f, "{op} of {block} {concurrency}x{batch}")
    }
}

impl Options {
    /// The loads of a direction and a block.
    pub(super) fn cells(&self, direction: Direction, block: usize) -> Vec<Cell> {
        let of = |&concurrency: &usize| {
            self.batches.iter().map(move |&batch| Cell {
                direction,
                block,
                concurrency,
                batch,
            })
        };
        self.concurrency.iter().flat_map(of).collect()
    }
}

/// One round of one cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) gbps: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(super) mean_us: f64,
    pub(super) initiator_cores: f64,
    pub(super) target_cores: f64,
    pub(super) seconds: f64,
}

/// The limits beside one round of cells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beside {
    pub(super) limit: Option<Rate>,
    pub(super) request: Option<Rate>,
}

impl Pair {
    pub(crate) fn start(
        options: &Options,
        carrier: Carrier,
        wait: &str,
    ) -> Result<Self, BenchError> {
        Self::with_loops(options, carrier, wait, None)
    }

    /// With so many event loops at both ends instead of what a user has.
    pub(super) fn with_loops(
        options: &Options,
        carrier: Carrier,
        wait: &str,
        loops: Option<usize>,
    ) -> Result<Self, BenchError> {
        let target = start_target(options, carrier, loops)?;
        Self::of(options, carrier, wait, loops, target)
    }

    /// With a target whose memory is lent object by object, as a store's is.
    pub(super) fn lending(options: &Options, carrier: Carrier) -> Result<Self, BenchError> {
        let target = start_target_in("lender", options, carrier, None, &[])?;
        Self::of(options, carrier, "adaptive", None, target)
    }

    fn of(
        options: &Options,
        carrier: Carrier,
        wait: &str,
        loops: Option<usize>,
        target: Process,
    ) -> Result<Self, BenchError> {
        let initiator = start_initiator(options, carrier, wait, loops, None)?;
        let mut pair = Self { target, initiator };
        pair.open()?;
        Ok(pair)
    }

    /// Tells the initiator of the target, which has just started.
    pub(super) fn open(&mut self) -> Result<(), BenchError> {
        let contact = self.target.hear("serving")?;
        self.initiator.say(&format!("open {contact}"))?;
        self.initiator.hear("opened")?;
        Ok(())
    }

    /// Holds all threads of each process to a CPU, or lets them go anywhere again.
    pub(super) fn pin(
        &mut self,
        initiator: Option<usize>,
        target: Option<usize>,
    ) -> Result<(), BenchError> {
        self.initiator.pin(initiator)?;
        Ok(self.target.pin(target)?)
    }

    pub(crate) fn round(&mut self, cell: Cell, millis: u128) -> Result<Round, BenchError> {
        let target = &self.target;
        round(&mut self.initiator, ("memory", cell), millis, || {
            Ok(target.cpu_seconds())
        })
    }

    /// Has the target grant each of its objects of this length, and tells the initiator of them.
    pub(super) fn name_objects(&mut self, block: usize) -> Result<(), BenchError> {
        self.target.say(&format!("grant {block}"))?;
        let granted = self.target.hear("granted")?;
        self.initiator.say(&format!("objects {granted}"))?;
        self.initiator.hear("named")?;
        Ok(())
    }

    /// The same of the objects that were named.
    pub(super) fn objects_round(
        &mut self,
        cell: Cell,
        grants: Grants,
        millis: u128,
    ) -> Result<Round, BenchError> {
        let target = &self.target;
        let what = match grants {
            Grants::One => "one",
            Grants::Each => "each",
        };
        round(&mut self.initiator, (what, cell), millis, || {
            Ok(target.cpu_seconds())
        })
    }
}

/// Has an initiator move one cell for a time, of the target's memory or of its objects; `target_cpu` says how much CPU time its
/// target has used.
pub(super) fn round(
    initiator: &mut Process,
    (what, cell): (&str, Cell),
    millis: u128,
    target_cpu: impl Fn() -> Result<f64, BenchError>,
) -> Result<Round, BenchError> {
    let Cell {
        direction,
        block,
        concurrency,
        batch,
    } = cell;
    initiator.say(&format!(
        "run {what} {} {block} {concurrency} {batch} {millis}",
        direction.name()
    ))?;
    initiator.hear("begun")?;
    let before = (initiator.cpu_seconds(), target_cpu()?);
    initiator.say("go")?;
    let [bytes, seconds, p50_us, p99_us, mean_us] = initiator.numbers("ran")?;
    let after = (initiator.cpu_seconds(), target_cpu()?);
    Ok(Round {
        gbps: bytes / seconds / 1e9,
        p50_us,
        p99_us,
        mean_us,
        initiator_cores: (after.0 - before.0) / seconds,
        target_cores: (after.1 - before.1) / seconds,
        seconds,
    })
}

/// The number of event loops as a child reads it.
fn word(loops: Option<usize>) -> String {
    loops.map_or_else(|| "any".to_owned(), |loops| loops.to_string())
}

pub(super) fn start_target(
    options: &Options,
    carrier: Carrier,
    loops: Option<usize>,
) -> Result<Process, BenchError> {
    start_target_in("target", options, carrier, loops, &[])
}

/// The same, in one of the parts of a target, with more in its environment.
pub(super) fn start_target_in(
    part: &str,
    options: &Options,
    carrier: Carrier,
    loops: Option<usize>,
    environment: &[(&str, &OsStr)],
) -> Result<Process, BenchError> {
    let (place, bytes) = (options.place(carrier), options.memory_bytes.to_string());
    let words = [part, carrier.name(), place.name(), &bytes, &word(loops)];
    let (program, patience) = (&options.child, options.patience());
    Ok(Process::start_in(program, &words, environment, patience)?)
}

/// With a key, all its connections are sealed.
pub(super) fn start_initiator(
    options: &Options,
    carrier: Carrier,
    wait: &str,
    loops: Option<usize>,
    key_file: Option<&Path>,
) -> Result<Process, BenchError> {
    let (place, bytes) = (options.place(carrier), options.memory_bytes.to_string());
    let loops = word(loops);
    let words = [
        "initiator",
        carrier.name(),
        place.name(),
        &bytes,
        &loops,
        wait,
        AesLibrary::current().name(),
    ];
    let environment = key_file.map(|key_file| ("SLACKWATER_TCP_SEAL_KEY", key_file.as_os_str()));
    let (program, patience) = (&options.child, options.patience());
    let mut initiator = Process::start_in(program, &words, environment.as_slice(), patience)?;
    initiator.hear("ready")?;
    Ok(initiator)
}

/// Every cell, block by block: the limits of a block are measured between its rounds.
pub(super) fn measure(
    options: &Options,
    limits: &mut Bed,
    report: &mut Report,
) -> Result<(), BenchError> {
    for _ in 0..options.rounds {
        limits.iperf3();
        // It is a limit of every report, also of one that has no row beside it.
        limits.copies()?;
    }
    for &carrier in &options.carriers {
        let mut pair = Pair::start(options, carrier, "adaptive")?;
        for &block in &options.blocks {
            for &direction in &options.directions {
                let cells = options.cells(direction, block);
                report
                    .rows
                    .extend(measure_block(options, limits, &mut pair, carrier, &cells)?);
            }
        }
    }
    Ok(())
}

fn measure_block(
    options: &Options,
    limits: &mut Bed,
    pair: &mut Pair,
    carrier: Carrier,
    cells: &[Cell],
) -> Result<Vec<Row>, BenchError> {
    let millis = options.window.as_millis();
    let mut rounds: Vec<Vec<(Round, Beside)>> = vec![Vec::new(); cells.len()];
    for _ in 0..options.rounds.max(1) {
        let beside = beside(limits, carrier, cells[0])?;
        for (cell, rounds) in cells.iter().zip(&mut rounds) {
            // A batch that outlasts the window many times over is measured by itself, once.
            let long = rounds
                .last()
                .is_some_and(|(round, _)| round.seconds > 8.0 * options.window.as_secs_f64());
            if !long {
                rounds.push((pair.round(*cell, millis)?, beside));
            }
        }
    }
    let device = options.place(carrier);
    Ok(cells
        .iter()
        .zip(rounds)
        .map(|(cell, rounds)| row((carrier, device), *cell, &rounds))
        .collect())
}

/// What the machine does at this moment without an engine.
fn beside(limits: &mut Bed, carrier: Carrier, cell: Cell) -> Result<Beside, BenchError> {
    let request = match (carrier, cell.block) {
        (Carrier::Tcp, MESSAGE) => Some(limits.request()?),
        _ => None,
    };
    let limit = match carrier {
        Carrier::Tcp | Carrier::Gpu => Some(limits.stream()?),
        Carrier::Shm => Some(limits.copies()?.0),
        Carrier::Attach => limits.copies()?.1,
    };
    Ok(Beside { limit, request })
}

pub(super) fn row(
    (mover, device): (Carrier, Place),
    cell: Cell,
    rounds: &[(Round, Beside)],
) -> Row {
    let middle = |value: &dyn Fn(&Round) -> f64| {
        median(
            &mut rounds
                .iter()
                .map(|(round, _)| value(round))
                .collect::<Vec<_>>(),
        )
    };
    let against = |value: &dyn Fn(&Round, &Beside) -> Option<f64>| {
        let mut ratios: Vec<f64> = rounds
            .iter()
            .filter_map(|(round, beside)| value(round, beside))
            .collect();
        (!ratios.is_empty()).then(|| median(&mut ratios))
    };
    let lone = |value: &dyn Fn(&Round, &Beside) -> Option<f64>| {
        (cell.concurrency * cell.batch == 1)
            .then(|| against(value))
            .flatten()
    };
    Row {
        mover,
        device,
        op: cell.direction,
        block: cell.block,
        concurrency: cell.concurrency,
        batch: cell.batch,
        gbps: middle(&|round| round.gbps),
        p50_us: middle(&|round| round.p50_us),
        p99_us: middle(&|round| round.p99_us),
        initiator_cores: middle(&|round| round.initiator_cores),
        target_cores: middle(&|round| round.target_cores),
        cpu_s_per_gb: middle(&Round::cpu_s_per_gb),
        gbps_over_limit: against(&|round, beside| Some(round.gbps / beside.limit?.gbps)),
        cpu_over_limit: against(&|round, beside| {
            Some(round.cpu_s_per_gb() / beside.limit?.cpu_s_per_gb)
        }),
        gbps_over_request: lone(&|round, beside| Some(round.gbps / beside.request?.gbps)),
        cpu_over_request: lone(&|round, beside| {
            Some(round.cpu_s_per_gb() / beside.request?.cpu_s_per_gb)
        }),
    }
}

impl Round {
    fn cpu_s_per_gb(&self) -> f64 {
        (self.initiator_cores + self.target_cores) / self.gbps
    }
}

/// The table of `bench wait` with real transfers: 1 MiB reads, the initiator waits by the strategy of the row.
pub(super) fn measure_waits(options: &Options, report: &mut Report) -> Result<(), BenchError> {
    let Some(&carrier) = options
        .carriers
        .first()
        .filter(|_| !options.waits.is_empty())
    else {
        return Ok(());
    };
    let start = |wait: &String| Pair::start(options, carrier, wait);
    let mut pairs: Vec<Pair> = options.waits.iter().map(start).collect::<Result<_, _>>()?;
    for &concurrency in &options.concurrency {
        let cell = Cell {
            direction: Direction::Read,
            block: MESSAGE,
            concurrency,
            batch: 1,
        };
        let mut rounds: Vec<Vec<Round>> = vec![Vec::new(); pairs.len()];
        for _ in 0..options.rounds.max(1) {
            for (pair, rounds) in pairs.iter_mut().zip(&mut rounds) {
                rounds.push(pair.round(cell, options.window.as_millis())?);
            }
        }
        for (strategy, rounds) in options.waits.iter().zip(&rounds) {
            let middle = |value: fn(&Round) -> f64| {
                median(&mut rounds.iter().map(value).collect::<Vec<_>>())
            };
            report.waits.push(wait::Row {
                concurrency,
                strategy: strategy.clone(),
                cores: middle(|round| round.initiator_cores),
                gbps: middle(|round| round.gbps),
                avg_us: middle(|round| round.mean_us),
                p99_us: middle(|round| round.p99_us),
                looks_per_100ms: None,
            });
        }
        report
            .wait_ratios
            .extend(wait::ratios(&report.waits, concurrency));
    }
    Ok(())
}
