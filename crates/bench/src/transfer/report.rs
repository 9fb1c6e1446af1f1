use std::fmt::Write;

use serde::Serialize;

use super::{
    Carrier, DeadPeer, Direction, FarReport, Handshakes, Idle, LoopsRow, ObjectsRow, Place, Torture,
};
use crate::machine::Machine;
use crate::wait;
use slackwater_report::{
    Axis, Better, Bound, Chart, Compared, Line, Mark, Page, Table, Tile, Tone, Unit, figure,
};

/// What the benchmark found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `transfer`.
    pub bench: &'static str,
    /// The machine of the run.
    pub machine: Machine,
    /// The far end, of a run between two machines.
    pub across: Option<FarReport>,
    /// The incumbent's engine and ours, where its package is there.
    pub compared: Vec<Compared>,
    /// One row for each mover, direction, block, concurrency and batch.
    pub rows: Vec<Row>,
    /// What the machine does without an engine.
    pub limits: Limits,
    /// A lone small read or write beside a ping-pong.
    pub latency: Vec<Latency>,
    /// The figures of other engines on the same machine.
    pub peers: Peers,
    /// What the project promises, as far as this run can tell.
    pub bounds: Vec<Bound>,
    /// Engines with more and more event loops.
    pub loops: Vec<LoopsRow>,
    /// Reads of objects with a capability each.
    pub objects: Vec<ObjectsRow>,
    /// The strategies of waiting, over transfers.
    pub waits: Vec<wait::Row>,
    /// Adaptive beside the others.
    pub wait_ratios: Vec<wait::Ratios>,
    /// An engine that does nothing.
    pub idle: Option<Idle>,
    /// Transfers to peers that are down.
    pub dead_peers: Vec<DeadPeer>,
    /// A sealed connection beside connections that prove nothing.
    pub handshakes: Vec<Handshakes>,
    /// Processes that were killed in the middle of it.
    pub torture: Vec<Torture>,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

/// One kind of load.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What carried the bytes.
    pub mover: Carrier,
    /// Where the memory of both ends is.
    pub device: Place,
    /// The direction, seen from the initiator.
    pub op: Direction,
    /// Bytes of a block.
    pub block: usize,
    /// Threads, each with one batch under way.
    pub concurrency: usize,
    /// Blocks of a batch.
    pub batch: usize,
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
    /// CPU of both for 10⁹ bytes.
    pub cpu_s_per_gb: f64,
    /// Throughput over the limit beside it: a blocking socket (tcp, gpu), a copy past the cache (shm), cross-memory
    /// attach (attach).
    pub gbps_over_limit: Option<f64>,
    /// CPU per byte over that of the limit.
    pub cpu_over_limit: Option<f64>,
    /// Throughput over that of a blocking socket that is asked for 1 MiB after 1 MiB, where one such block is under way.
    pub gbps_over_request: Option<f64>,
    /// CPU per byte over that.
    pub cpu_over_request: Option<f64>,
}

/// What the machine does without an engine; medians. What could not be measured is left empty, with a note.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Limits {
    /// A stream of 1 MiB messages over one blocking TCP socket with the fastest buffers found.
    pub blocking_socket_gbps: Option<f64>,
    /// CPU of both sides.
    pub blocking_socket_cpu_s_per_gb: Option<f64>,
    /// A stream the other way, to the far end of a run between two machines.
    pub blocking_socket_write_gbps: Option<f64>,
    /// CPU of both sides.
    pub blocking_socket_write_cpu_s_per_gb: Option<f64>,
    /// Those buffers; 0 is the kernel's own choice.
    pub blocking_socket_buffer_bytes: usize,
    /// 1 MiB messages over the same socket, each asked for after the last has come.
    pub blocking_request_gbps: Option<f64>,
    /// CPU of both sides.
    pub blocking_request_cpu_s_per_gb: Option<f64>,
    /// One stream of iperf3.
    pub iperf3_gbps: Option<f64>,
    /// The same to the far end of a run between two machines; the one above is then from it.
    pub iperf3_write_gbps: Option<f64>,
    /// 1 MiB pieces from memory to memory, one thread.
    pub memcpy_gbps: Option<f64>,
    /// The same past the cache.
    pub nt_memcpy_gbps: Option<f64>,
    /// 1 MiB pieces out of another process.
    pub cma_gbps: Option<f64>,
    /// CPU of both processes.
    pub cma_cpu_s_per_gb: Option<f64>,
}

/// Other engines that are installed here.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Peers {
    /// The incumbent's own benchmark program over TCP.
    pub mooncake_transfer_engine: Option<Vec<PeerRow>>,
}

/// One kind of load on a peer, and ours beside it.
#[derive(Clone, Debug, Serialize)]
pub struct PeerRow {
    /// The direction, seen from the initiator.
    pub op: Direction,
    /// Bytes of a block.
    pub block: usize,
    /// Threads, each with one batch under way.
    pub threads: usize,
    /// Blocks of a batch.
    pub batch: usize,
    /// Bytes moved in a nanosecond.
    pub gbps: f64,
    /// CPUs busy on average in the initiator.
    pub initiator_cores: f64,
    /// The same in the target.
    pub target_cores: f64,
    /// CPU of both for 10⁹ bytes.
    pub cpu_s_per_gb: f64,
    /// Ours, in turns with it.
    pub ours_gbps: f64,
    /// The median of the rounds' ratios.
    pub ours_over_peer: f64,
}

/// One block of 4 KiB at a time beside a plain ping-pong, where the threads of both ends are held to the same CPUs as
/// those of the ping-pong: by the scheduler's choice alone either is three times the other.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// The direction, seen from the initiator.
    pub op: Direction,
    /// Where the two ends run: `one cpu`, `two cpus`, or `free`.
    pub placement: &'static str,
    /// Rounds of either, in turns.
    pub rounds: usize,
    /// Median of the rounds' p50.
    pub p50_us: f64,
    /// The same of a plain 4 KiB TCP ping-pong.
    pub ping_pong_p50_us: f64,
    /// The median of the rounds' ratios.
    pub ratio: f64,
    /// The least and the most of them.
    pub ratio_spread: (f64, f64),
}

impl Report {
    pub(super) fn new() -> Self {
        Self {
            bench: "transfer",
            machine: Machine::detect(),
            across: None,
            compared: Vec::new(),
            rows: Vec::new(),
            limits: Limits::default(),
            latency: Vec::new(),
            peers: Peers::default(),
            bounds: Vec::new(),
            loops: Vec::new(),
            objects: Vec::new(),
            waits: Vec::new(),
            wait_ratios: Vec::new(),
            idle: None,
            dead_peers: Vec::new(),
            handshakes: Vec::new(),
            torture: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Sets ours beside the incumbent's engine.
    pub(super) fn compare(&mut self) {
        let peers = self.peers.mooncake_transfer_engine.iter().flatten();
        let row = |row: &PeerRow| {
            let (op, threads, batch) = (row.op.name(), row.threads, row.batch);
            let what = format!("tcp {op} of 1 MiB, {threads} threads x {batch} blocks: GB/s");
            Compared::new(what, Better::More, row.ours_gbps).before(Some(row.gbps))
        };
        self.compared = peers.map(row).collect();
    }

    /// The report as JSON.
    ///
    /// # Panics
    /// Never: every field is a number or a text.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("numbers and texts are always JSON")
    }

    /// The report as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for table in self.tables() {
            let _ = write!(text, "{}\n{}\n", table.title, table.text());
        }
        for note in &self.notes {
            let _ = writeln!(text, "{note}");
        }
        text
    }

    /// The report as a page with charts.
    #[must_use]
    pub fn to_html(&self) -> String {
        let held = self.bounds.iter().filter(|bound| bound.holds()).count();
        let ends = if self.across.is_some() {
            "machines"
        } else {
            "processes"
        };
        let mut tiles = match self.across {
            Some(_) => self.network_tiles(),
            None => self.machine_tiles(),
        };
        tiles.push(Tile::new(
            "bounds",
            format!("{held} of {}", self.bounds.len()),
            "hold in this run",
        ));
        let page = Page {
            title: format!("Transfers between two {ends}"),
            lead: format!(
                "{}. Initiator and target are processes of their own; limits and rows were measured in turns, medians \
                 count.",
                self.machine.line()
            ),
            alert: None,
            tiles,
            charts: self.charts(),
            bars: Vec::new(),
            tables: self.tables(),
            notes: self.notes.clone(),
        };
        page.html()
    }

    fn machine_tiles(&self) -> Vec<Tile> {
        vec![
            Tile::new(
                "blocking socket, 1 MiB",
                gbps(self.limits.blocking_socket_gbps),
                "the limit of TCP here",
            ),
            Tile::new(
                "cross-memory attach",
                gbps(self.limits.cma_gbps),
                "1 MiB pieces, one thread",
            ),
            Tile::new(
                "copy past the cache",
                gbps(self.limits.nt_memcpy_gbps),
                "1 MiB pieces, one thread",
            ),
        ]
    }

    fn charts(&self) -> Vec<Chart> {
        let mut charts = Vec::new();
        for mover in [Carrier::Tcp, Carrier::Shm, Carrier::Attach, Carrier::Gpu] {
            for op in [Direction::Read, Direction::Write] {
                let rows: Vec<&Row> = self
                    .rows
                    .iter()
                    .filter(|row| row.mover == mover && row.op == op)
                    .collect();
                let batch = rows.iter().map(|row| row.batch).find(|batch| *batch > 1);
                let Some(batch) = batch.or(rows.first().map(|row| row.batch)) else {
                    continue;
                };
                let rows: Vec<&Row> = rows.into_iter().filter(|row| row.batch == batch).collect();
                let device = match rows.first().map(|row| row.device) {
                    None | Some(Place::Cpu) => String::new(),
                    Some(device) => format!(" ({})", device.name()),
                };
                let what = format!(
                    "{}{device}, {}, batches of {batch}",
                    mover.name(),
                    op.name()
                );
                let limit = match mover {
                    Carrier::Tcp | Carrier::Gpu => self.limits.blocking_socket_gbps,
                    Carrier::Shm => self.limits.nt_memcpy_gbps,
                    Carrier::Attach => self.limits.cma_gbps,
                };
                charts.push(by_block(
                    format!("Throughput: {what}"),
                    Axis::new("bytes a second", Unit::BytesPerSecond),
                    (&rows, |row| row.gbps * 1e9),
                    limit.map(|gbps| gbps * 1e9),
                ));
                charts.push(by_block(
                    format!("CPU: {what}"),
                    Axis::new("CPU-seconds of both processes per GB", Unit::Seconds),
                    (&rows, |row| row.cpu_s_per_gb),
                    self.limits
                        .blocking_socket_cpu_s_per_gb
                        .filter(|_| limit == self.limits.blocking_socket_gbps),
                ));
            }
        }
        charts
    }

    fn tables(&self) -> Vec<Table> {
        let across = self.across.iter();
        let mut tables: Vec<Table> = across.map(|far| far.table(self.machine.aes)).collect();
        if !self.bounds.is_empty() {
            tables.push(Bound::table(&self.bounds));
        }
        if !self.rows.is_empty() {
            tables.extend([self.limits_table(), self.rows_table()]);
        }
        tables.extend(Latency::table(&self.latency));
        tables.extend(self.peers_table());
        tables.extend(LoopsRow::table(&self.loops));
        tables.extend(ObjectsRow::table(&self.objects));
        tables.extend(self.waits_table());
        tables.extend(self.idle.as_ref().map(Idle::table));
        tables.extend(DeadPeer::table(&self.dead_peers));
        tables.extend(Handshakes::table(&self.handshakes));
        tables.extend(Torture::table(&self.torture));
        tables
    }

    fn limits_table(&self) -> Table {
        let limits = &self.limits;
        let rows = [
            (
                "blocking socket, stream of 1 MiB, GB/s",
                limits.blocking_socket_gbps,
            ),
            ("… CPU-seconds per GB", limits.blocking_socket_cpu_s_per_gb),
            (
                "… buffers in KiB (0: the kernel's choice)",
                Some(limits.blocking_socket_buffer_bytes as f64 / 1024.0),
            ),
            (
                "blocking socket, 1 MiB asked for one by one, GB/s",
                limits.blocking_request_gbps,
            ),
            ("… CPU-seconds per GB", limits.blocking_request_cpu_s_per_gb),
            ("iperf3, one stream, GB/s", limits.iperf3_gbps),
            ("memcpy, GB/s", limits.memcpy_gbps),
            ("copy past the cache, GB/s", limits.nt_memcpy_gbps),
            ("cross-memory attach, GB/s", limits.cma_gbps),
            ("… CPU-seconds per GB", limits.cma_cpu_s_per_gb),
        ];
        table(
            "Limits",
            &["limit", "figure"],
            rows.iter()
                .map(|(name, value)| vec![(*name).to_owned(), figure_of(*value)])
                .chain(self.network_limits()),
        )
    }

    fn rows_table(&self) -> Table {
        let head = [
            "mover",
            "memory",
            "op",
            "block",
            "threads",
            "batch",
            "GB/s",
            "p50 µs",
            "p99 µs",
            "initiator cores",
            "target cores",
            "CPU-s/GB",
            "GB/s / limit",
            "CPU / limit",
            "GB/s / one by one",
        ];
        let row = |row: &Row| {
            let names = [row.mover.name(), row.device.name(), row.op.name()];
            let mut cells: Vec<String> = names.map(str::to_owned).into();
            cells.push(block(row.block));
            cells.extend([row.concurrency, row.batch].map(|number| number.to_string()));
            let own = [
                row.gbps,
                row.p50_us,
                row.p99_us,
                row.initiator_cores,
                row.target_cores,
                row.cpu_s_per_gb,
            ];
            cells.extend(own.map(figure));
            cells.extend(
                [
                    row.gbps_over_limit,
                    row.cpu_over_limit,
                    row.gbps_over_request,
                ]
                .map(figure_of),
            );
            cells
        };
        table("Rows", &head, self.rows.iter().map(row))
    }

    fn peers_table(&self) -> Option<Table> {
        let rows = self.peers.mooncake_transfer_engine.as_ref()?;
        let head = [
            "op",
            "block",
            "threads",
            "batch",
            "its GB/s",
            "its cores",
            "its CPU-s/GB",
            "ours GB/s",
            "ratio",
        ];
        let row = |row: &PeerRow| {
            let mut cells = vec![row.op.name().to_owned(), block(row.block)];
            cells.extend([row.threads, row.batch].map(|number| number.to_string()));
            let cores = format!(
                "{}+{}",
                figure(row.initiator_cores),
                figure(row.target_cores)
            );
            cells.extend([figure(row.gbps), cores]);
            cells.extend([row.cpu_s_per_gb, row.ours_gbps, row.ours_over_peer].map(figure));
            cells
        };
        Some(table(
            "The incumbent's transfer_engine_bench",
            &head,
            rows.iter().map(row),
        ))
    }

    fn waits_table(&self) -> Option<Table> {
        let head = ["strategy", "readers", "cores", "GB/s", "mean µs", "p99 µs"];
        let row = |row: &wait::Row| {
            let figures = [row.cores, row.gbps, row.avg_us, row.p99_us].map(figure);
            [row.strategy.clone(), row.concurrency.to_string()]
                .into_iter()
                .chain(figures)
                .collect()
        };
        (!self.waits.is_empty())
            .then(|| table("Waiting, 1 MiB reads", &head, self.waits.iter().map(row)))
    }
}

/// Rows by the size of their block, one line for each concurrency, the limit dashed.
fn by_block(
    title: String,
    y: Axis,
    (rows, value): (&[&Row], fn(&Row) -> f64),
    limit: Option<f64>,
) -> Chart {
    let place = |block: usize| (block as f64).log2();
    let mut blocks: Vec<usize> = rows.iter().map(|row| row.block).collect();
    blocks.sort_unstable();
    blocks.dedup();
    let mut threads: Vec<usize> = rows.iter().map(|row| row.concurrency).collect();
    threads.sort_unstable();
    threads.dedup();
    let line = |(concurrency, tone): (&usize, Tone)| {
        let mine = rows.iter().filter(|row| row.concurrency == *concurrency);
        let mut points: Vec<(f64, f64)> = mine.map(|row| (place(row.block), value(row))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let plural = if *concurrency == 1 { "" } else { "s" };
        Line {
            name: format!("{concurrency} thread{plural}"),
            tone,
            mark: Mark::Solid,
            points,
        }
    };
    let mut lines: Vec<Line> = threads
        .iter()
        .zip(Tone::SERIES.into_iter().cycle())
        .map(line)
        .collect();
    lines.extend(limit.map(|limit| Line {
        name: "limit at 1 MiB".to_owned(),
        tone: Tone::Grey,
        mark: Mark::Dashed,
        points: blocks.iter().map(|at| (place(*at), limit)).collect(),
    }));
    let mut x = Axis::new("block", Unit::Count);
    x.ticks = blocks.iter().map(|at| (place(*at), block(*at))).collect();
    Chart {
        title,
        note: String::new(),
        x,
        y,
        lines,
    }
}

pub(super) fn table(title: &str, head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Table {
    let head = head.iter().map(|name| (*name).to_owned()).collect();
    Table {
        title: title.to_owned(),
        head,
        rows: rows.collect(),
    }
}

fn block(bytes: usize) -> String {
    slackwater_base::ByteSize(bytes as u64).to_string()
}

pub(super) fn figure_of(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), figure)
}

/// A throughput of a tile.
pub(super) fn gbps(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2} GB/s"))
}
