//! What a master gives over its address: look-ups, truths and puts by processes of their own, beside requests of the same
//! length over blocking sockets.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use slackwater_report::Bound;

use super::{Cluster, ClusterError, Programs, Shape, failed, memory_for, start_load};
use crate::process::{Process, resident_bytes_of};
use crate::usage::median;

/// The load and sizes of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// With how many objects in the catalog, one after another. Each takes a block of the nodes' memory.
    pub objects: Vec<usize>,
    /// Processes that lend memory, a segment each.
    pub nodes: usize,
    /// Kinds of requests that clients make, measured one after another.
    pub ops: Vec<Op>,
    /// Keys of one call.
    pub batches: Vec<usize>,
    /// Look-ups of one key that each client has under way at once on its link, beside one: as many threads ask that share a client.
    pub in_flight: Vec<usize>,
    /// Clients, each with a link and a thread of its own.
    pub clients: Vec<usize>,
    /// How long each cell is measured in each round.
    pub window: Duration,
    /// Rounds, with the limits between them; the medians count.
    pub rounds: usize,
    /// Where the master's directory is made.
    pub directory: PathBuf,
    /// How the processes are started.
    pub programs: Programs,
}

impl Options {
    /// A million objects on 64 nodes, with the master's files in `directory`.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self {
            objects: vec![1_000_000],
            nodes: 64,
            ops: Op::ALL.to_vec(),
            batches: vec![1, 1024],
            in_flight: vec![16],
            clients: vec![1, 16, 64],
            window: Duration::from_millis(500),
            rounds: 3,
            directory,
            programs: Programs::default(),
        }
    }
}

/// What clients ask of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Where objects are, with the rights to read them; nothing is read.
    Lookup,
    /// Whether objects are there.
    Exists,
    /// Whole puts of 64 bytes, whose bytes go to the nodes.
    Put,
}

impl Op {
    /// Everything that is measured.
    pub const ALL: [Self; 3] = [Self::Lookup, Self::Exists, Self::Put];

    /// Its name in options and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Exists => "exists",
            Self::Put => "put",
        }
    }

    /// What a name stands for.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.name() == name)
    }
}

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was measured, a row each.
    pub rows: Vec<Row>,
    /// What the catalog takes.
    pub memory: Vec<Memory>,
    /// Requests over blocking sockets, for each number of clients.
    pub bare: Vec<Bare>,
    /// What is promised, held against the figures.
    pub bounds: Vec<Bound>,
}

/// One cell of the grid.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What clients asked the master for.
    pub op: Op,
    /// Objects in the catalog.
    pub objects: usize,
    /// Keys of one call.
    pub batch: usize,
    /// Calls that each of them had under way.
    pub in_flight: usize,
    /// Clients that asked at once.
    pub clients: usize,
    /// Keys a second.
    pub ops_per_s: f64,
    /// Half of the calls took no longer.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// Keys for each second of the master's CPU time.
    pub ops_per_master_cpu_s: f64,
    /// The same, of calls of one key, over what a server without a store does with requests of that length.
    pub of_bare: Option<f64>,
    /// CPUs that the clients' process used.
    pub client_cores: f64,
    /// CPUs that the nodes' processes used together.
    pub node_cores: f64,
    /// CPUs that the master's process used.
    pub master_cores: f64,
}

/// What a catalog takes.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// Objects in it.
    pub objects: usize,
    /// What the master's process grew by for each, its key among it.
    pub resident_bytes_per_object: f64,
}

/// Requests without a master.
#[derive(Clone, Debug, Serialize)]
pub struct Bare {
    /// Sockets, each with a thread at both ends.
    pub clients: usize,
    /// Requests a second.
    pub ops_per_s: f64,
    /// Half took no longer.
    pub p50_us: f64,
    /// Requests for each second of the server's CPU time.
    pub ops_per_cpu_s: f64,
}

/// Keys of the call whose time is promised.
const MANY_KEYS: usize = 10_000;

/// Measures.
///
/// # Errors
/// When a process cannot be started, fails or falls silent, or a call brings what it should not.
pub fn run(options: &Options) -> Result<Report, ClusterError> {
    let mut report = Report {
        rows: Vec::new(),
        memory: Vec::new(),
        bare: Vec::new(),
        bounds: Vec::new(),
    };
    let mut bare: Vec<(usize, Vec<Sample>)> =
        options.clients.iter().map(|of| (*of, Vec::new())).collect();
    for &objects in &options.objects {
        let cluster = Cluster::start(&Shape {
            program: &options.programs.program,
            nodes: options.nodes,
            memory: memory_for(objects, options.nodes),
            ssd: None,
            directory: options.directory.join(objects.to_string()),
            is_administered: false,
        })?;
        let mut load = start_load(&options.programs, &cluster.address)?;
        let before = resident_bytes_of(cluster.master.id());
        load.say(&format!("fill {objects} 64 0"))?;
        load.hear("filled")?;
        let grown = resident_bytes_of(cluster.master.id()).saturating_sub(before);
        report.memory.push(Memory {
            objects,
            resident_bytes_per_object: grown as f64 / objects as f64,
        });
        let mut cells = cells(options);
        for _ in 0..options.rounds {
            let mut echo = Echo::start(&options.programs)?;
            for (clients, samples) in &mut bare {
                samples.push(echo.round(&mut load, *clients, options.window)?);
            }
            for (cell, samples) in &mut cells {
                samples.push(round(&cluster, &mut load, *cell, objects, options.window)?);
            }
        }
        report.rows.extend(
            cells
                .into_iter()
                .map(|(cell, samples)| row(cell, objects, &samples)),
        );
    }
    report.bare = bare
        .into_iter()
        .map(|(clients, samples)| summed(clients, &samples))
        .collect();
    let alone = |row: &&mut Row| (row.batch, row.in_flight) == (1, 1);
    for row in report.rows.iter_mut().filter(alone) {
        let bare = report.bare.iter().find(|bare| bare.clients == row.clients);
        row.of_bare = bare.map(|bare| row.ops_per_master_cpu_s / bare.ops_per_cpu_s);
    }
    report.bounds = bounds(&report);
    Ok(report)
}

#[derive(Clone, Copy)]
struct Cell {
    op: Op,
    batch: usize,
    in_flight: usize,
    clients: usize,
}

/// One round of one cell.
pub(super) struct Sample {
    pub(super) ops_per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    client_cores: f64,
    node_cores: f64,
    pub(super) server_cores: f64,
    /// Microseconds of each call, where they were told.
    pub(super) calls: Vec<f64>,
}

fn cells(options: &Options) -> Vec<(Cell, Vec<Sample>)> {
    let mut cells = Vec::new();
    for &op in &options.ops {
        for &batch in &options.batches {
            // One by one is measured in any case, several only of look-ups of one key.
            let several = options.in_flight.iter().filter(|count| **count > 1);
            for &in_flight in [1].iter().chain(several) {
                if in_flight > 1 && (op, batch) != (Op::Lookup, 1) {
                    continue;
                }
                let cell = |clients| Cell {
                    op,
                    batch,
                    in_flight,
                    clients,
                };
                cells.extend(options.clients.iter().map(|of| (cell(*of), Vec::new())));
            }
        }
        if op == Op::Exists {
            let cell = Cell {
                op,
                batch: MANY_KEYS,
                in_flight: 1,
                clients: 1,
            };
            cells.push((cell, Vec::new()));
        }
    }
    cells
}

fn round(
    cluster: &Cluster,
    load: &mut Process,
    cell: Cell,
    objects: usize,
    window: Duration,
) -> Result<Sample, ClusterError> {
    let Cell {
        op,
        batch,
        in_flight,
        clients,
    } = cell;
    let (op, millis) = (op.name(), window.as_millis());
    load.say(&format!(
        "run {op} {batch} {in_flight} {clients} {objects} {millis}"
    ))?;
    measured(load, || cluster.cpu_seconds())
}

/// Has the load run, and takes the CPU seconds of the server and of the nodes before and after.
pub(super) fn measured(
    load: &mut Process,
    cpu: impl Fn() -> [f64; 2],
) -> Result<Sample, ClusterError> {
    load.hear("begun")?;
    let (client, [server, nodes]) = (load.cpu_seconds(), cpu());
    load.say("go")?;
    let [items, seconds, p50_us, p99_us] = load.numbers("ran")?;
    let (client_after, [server_after, nodes_after]) = (load.cpu_seconds(), cpu());
    load.say("end")?;
    let calls = load.hear("ended")?;
    let calls = calls.split_whitespace().map(str::parse);
    Ok(Sample {
        ops_per_s: items / seconds,
        p50_us,
        p99_us,
        client_cores: (client_after - client) / seconds,
        node_cores: (nodes_after - nodes) / seconds,
        server_cores: (server_after - server) / seconds,
        calls: calls.collect::<Result<_, _>>().map_err(failed)?,
    })
}

/// A server that answers and does nothing else.
struct Echo {
    server: Process,
    address: String,
}

impl Echo {
    fn start(programs: &Programs) -> Result<Self, ClusterError> {
        let mut server = Process::start(&programs.child, &["echo"], super::PATIENCE)?;
        let address = server.hear("listening")?;
        Ok(Self { server, address })
    }

    fn round(
        &mut self,
        load: &mut Process,
        clients: usize,
        window: Duration,
    ) -> Result<Sample, ClusterError> {
        let (address, millis) = (&self.address, window.as_millis());
        load.say(&format!("echo {address} {clients} {millis}"))?;
        measured(load, || [self.server.cpu_seconds(), 0.0])
    }
}

fn row(cell: Cell, objects: usize, samples: &[Sample]) -> Row {
    let middle = |value: fn(&Sample) -> f64| middle(samples, value);
    Row {
        op: cell.op,
        objects,
        batch: cell.batch,
        in_flight: cell.in_flight,
        clients: cell.clients,
        ops_per_s: middle(|sample| sample.ops_per_s),
        p50_us: middle(|sample| sample.p50_us),
        p99_us: middle(|sample| sample.p99_us),
        ops_per_master_cpu_s: middle(Sample::per_cpu_second),
        of_bare: None,
        client_cores: middle(|sample| sample.client_cores),
        node_cores: middle(|sample| sample.node_cores),
        master_cores: middle(|sample| sample.server_cores),
    }
}

fn summed(clients: usize, samples: &[Sample]) -> Bare {
    Bare {
        clients,
        ops_per_s: middle(samples, |sample| sample.ops_per_s),
        p50_us: middle(samples, |sample| sample.p50_us),
        ops_per_cpu_s: middle(samples, Sample::per_cpu_second),
    }
}

impl Sample {
    #[cfg(test)]
    pub(super) fn of(server_cores: f64, calls: &[f64]) -> Self {
        Self {
            ops_per_s: 1.0,
            p50_us: crate::usage::quantile(&mut calls.to_vec(), 0.5),
            p99_us: crate::usage::quantile(&mut calls.to_vec(), 0.99),
            client_cores: 0.0,
            node_cores: 0.0,
            server_cores,
            calls: calls.to_vec(),
        }
    }

    fn per_cpu_second(&self) -> f64 {
        self.ops_per_s / self.server_cores.max(1e-9)
    }
}

fn middle(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> f64 {
    median(&mut samples.iter().map(value).collect::<Vec<_>>())
}

/// What a master promises, held against a report; what was not measured is left out.
fn bounds(report: &Report) -> Vec<Bound> {
    let mut held = Vec::new();
    let largest = report.rows.iter().map(|row| row.objects).max();
    let rows = || {
        report
            .rows
            .iter()
            .filter(|row| Some(row.objects) == largest)
    };
    let looked_up = || rows().filter(|row| row.op == Op::Lookup);
    let single = |is_alone: bool| {
        let rows =
            looked_up().filter(move |row| row.batch == 1 && (row.in_flight == 1) == is_alone);
        rows.max_by_key(|row| (row.in_flight, row.clients))
    };
    for row in single(true).into_iter().chain(single(false)) {
        held.push(Bound::at_least(
            format!(
                "look-ups of one key by {} clients, {} at once by each, for each second of the master's CPU",
                row.clients, row.in_flight
            ),
            row.ops_per_master_cpu_s,
            200_000.0,
        ));
    }
    let batched = looked_up()
        .filter(|row| row.batch > 1)
        .max_by_key(|row| (row.batch, row.clients));
    if let Some(row) = batched {
        held.push(Bound::at_least(
            format!(
                "keys of look-ups of {} by {} clients for each second of the master's CPU",
                row.batch, row.clients
            ),
            row.ops_per_master_cpu_s,
            5e6,
        ));
    }
    if let Some(row) = rows().find(|row| (row.op, row.batch) == (Op::Exists, MANY_KEYS)) {
        held.push(Bound::at_most(
            "exists of 10,000 keys in one call: p50 in ms",
            row.p50_us / 1e3,
            5.0,
        ));
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(op: Op, batch: usize, clients: usize, per_cpu: f64, p50_us: f64) -> Row {
        Row {
            op,
            objects: 10,
            batch,
            in_flight: 1,
            clients,
            ops_per_s: 1.0,
            p50_us,
            p99_us: p50_us,
            ops_per_master_cpu_s: per_cpu,
            of_bare: None,
            client_cores: 1.0,
            node_cores: 1.0,
            master_cores: 1.0,
        }
    }

    #[test]
    fn each_promise_is_held_against_its_figures() {
        let mut report = Report {
            rows: vec![
                row(Op::Lookup, 1, 1, 1e6, 1.0),
                row(Op::Lookup, 1, 64, 199_999.0, 1.0),
                row(Op::Lookup, 1024, 64, 5e6, 1.0),
                row(Op::Lookup, 1024, 1, 1.0, 1.0),
                row(Op::Exists, 1024, 1, 1.0, 1e6),
                row(Op::Exists, MANY_KEYS, 1, 1.0, 4_999.0),
                row(Op::Put, 1024, 64, 1.0, 1.0),
            ],
            memory: Vec::new(),
            bare: Vec::new(),
            bounds: Vec::new(),
        };
        let holds =
            |report: &Report| -> Vec<bool> { bounds(report).iter().map(Bound::holds).collect() };
        assert_eq!(holds(&report), [false, true, true]);
        let several = |in_flight, per_cpu| Row {
            in_flight,
            ..row(Op::Lookup, 1, 1, per_cpu, 1.0)
        };
        report.rows.push(several(16, 200_000.0));
        report.rows.push(several(4, 1.0));
        assert_eq!(holds(&report), [false, true, true, true]);
        report.rows.truncate(1);
        assert_eq!(
            holds(&report),
            [true],
            "nothing is claimed of what was not measured"
        );
    }
}
