//! A run against a far end: the rows of the benchmark over the network between, beside the limits of the same turn.

use std::path::PathBuf;

use slackwater_mq::Address;

use super::bare::{self, Flow, Opening};
use super::link::Link;
use super::{FarError, FarReport};
use crate::process::{Process, cpu_seconds};
use crate::transfer::grid::{self, Beside, Cell, Round};
use crate::transfer::limits::{Rate, SOCKET_BYTES, iperf3_client};
use crate::transfer::{
    BenchError, Buffer, Carrier, Direction, Latency, LoopsRow, Options, Place, Report, loops,
};
use crate::usage::median;

/// The other machine, and the way to it.
#[derive(Clone, Debug)]
pub struct Across {
    /// What its far end printed.
    pub far: Address,
    /// The file of our secret key, for one that expects a key.
    pub key_file: Option<PathBuf>,
    /// What people should know of the link, for the report.
    pub link: Option<String>,
}

/// Where the latency of a run between two machines belongs.
pub(in crate::transfer) const ACROSS: &str = "across";

/// A batch of every thread that takes longer than this at the limit leaves its row out.
const BATCHES_SECONDS_MAX: f64 = 1.0;

/// Memory of each engine at the rows of loops, which are all there at the same time.
const LOOPS_MEMORY: usize = 64 << 20;

/// Turns that find the best socket buffers.
const TUNING_TURNS: usize = 2;

/// This machine's end of a run.
struct Near<'a> {
    options: &'a Options,
    link: Link,
    memory: Buffer,
    /// The buffers with which a stream to this machine was fastest at the start.
    socket_bytes: u32,
    reads: Vec<Rate>,
    writes: Vec<Rate>,
    iperf3: [Vec<f64>; 2],
}

/// An engine at either end, and the process that drives them.
struct Ends(Process);

/// Measures everything the options ask for over TCP against a far end.
///
/// # Errors
/// [`BenchError`]; a limit that cannot be measured is a note, not an error.
pub fn run_across(options: &Options, across: &Across) -> Result<Report, BenchError> {
    options.check()?;
    let mut near = Near::new(options, across)?;
    let mut report = Report::new();
    report.across = Some(FarReport {
        address: near.link.place(),
        link: across.link.clone(),
        sealed: near.link.key_file.is_some(),
        far_machine: near.link.begun.machine.clone(),
    });
    near.latency(&mut report)?;
    near.rows(&mut report)?;
    near.loops(&mut report)?;
    near.finish(&mut report)?;
    report.judge_across();
    Ok(report)
}

impl<'a> Near<'a> {
    fn new(options: &'a Options, across: &Across) -> Result<Self, BenchError> {
        let link = Link::open(&across.far, across.key_file.as_deref())?;
        let mut near = Self {
            options,
            link,
            memory: Buffer::new(bare::BARE_BYTES)?,
            socket_bytes: 0,
            reads: Vec::new(),
            writes: Vec::new(),
            iperf3: [Vec::new(), Vec::new()],
        };
        near.tune()?;
        Ok(near)
    }

    /// Takes the socket buffers with which the network between is fastest.
    fn tune(&mut self) -> Result<(), BenchError> {
        let mut best = (0.0, 0);
        for socket_bytes in [SOCKET_BYTES; TUNING_TURNS].concat() {
            self.socket_bytes = socket_bytes as u32;
            let gbps = self.bare(Flow::Read)?.gbps;
            if gbps > best.0 {
                best = (gbps, self.socket_bytes);
            }
        }
        self.socket_bytes = best.1;
        Ok(())
    }

    /// One run without an engine, with the CPU time of both ends.
    fn bare(&mut self, flow: Flow) -> Result<Rate, BenchError> {
        let during = "a bare socket";
        let length = self.options.window / 2;
        let opening = Opening {
            token: self.link.begun.bare_token,
            flow,
            socket_bytes: self.socket_bytes,
            warm: length / 4,
            length,
        };
        let cpu = |link: &Link| {
            Ok::<_, FarError>(link.cpu_seconds(during)? + cpu_seconds(std::process::id()))
        };
        let before = cpu(&self.link)?;
        let ran = bare::run(self.link.bare, opening, &mut self.memory);
        let ran = ran.map_err(|error| {
            let what = "copy over a bare socket to the far end; the ports above 1023 of its address must be open to this machine";
            self.blame(BenchError::io(what)(error), during)
        })?;
        let spent = cpu(&self.link)? - before;
        Ok(Rate {
            gbps: ran.bytes as f64 / ran.seconds / 1e9,
            cpu_s_per_gb: spent / (ran.bytes_in_all as f64 / 1e9),
            p50_us: ran.p50_us,
        })
    }

    /// The stream that a direction cannot be faster than.
    fn limit(&mut self, direction: Direction) -> Result<Rate, BenchError> {
        let (flow, rates): (_, fn(&mut Self) -> &mut Vec<Rate>) = match direction {
            Direction::Read => (Flow::Read, |near| &mut near.reads),
            Direction::Write => (Flow::Write, |near| &mut near.writes),
        };
        let rate = self.bare(flow)?;
        rates(self).push(rate);
        Ok(rate)
    }

    /// Engines with so many event loops, or as a user has them.
    fn start(&self, bytes: usize, loops: Option<usize>) -> Result<Ends, BenchError> {
        let contact = self.link.target(bytes, loops)?;
        let contact = serde_json::to_string(&contact).expect("plain fields are always JSON");
        let options = Options {
            memory_bytes: bytes,
            ..self.options.clone()
        };
        let key_file = self.link.key_file.as_deref();
        let initiator = grid::start_initiator(&options, Carrier::Tcp, "adaptive", loops, key_file);
        let mut initiator = initiator?;
        self.guarded(
            &mut initiator,
            "the first bytes of an engine",
            |initiator| {
                initiator.say(&format!("open {contact}"))?;
                Ok(initiator.hear("opened").map(drop)?)
            },
        )?;
        Ok(Ends(initiator))
    }

    /// Does something with an initiator, which is ended when the far end is lost.
    fn guarded<T>(
        &self,
        initiator: &mut Process,
        during: &str,
        act: impl FnOnce(&mut Process) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        self.link.guard(Some(initiator.id()));
        let done = act(initiator);
        self.link.guard(None);
        done.map_err(|error| self.blame(error, during))
    }

    /// The loss of the far end, if that is where an error comes from.
    fn blame(&self, error: BenchError, during: &str) -> BenchError {
        self.link
            .cpu_seconds(during)
            .map_or_else(BenchError::from, |_| error)
    }

    fn round(&self, ends: &mut Ends, cell: Cell) -> Result<Round, BenchError> {
        let during = cell.to_string();
        let millis = self.options.window.as_millis();
        self.guarded(&mut ends.0, &during, |initiator| {
            grid::round(initiator, ("memory", cell), millis, || {
                Ok(self.link.cpu_seconds(&during)?)
            })
        })
    }

    /// 4 KiB at a time beside a plain ping-pong.
    fn latency(&mut self, report: &mut Report) -> Result<(), BenchError> {
        let mut ends = self.start(self.options.memory_bytes, None)?;
        for &direction in &self.options.directions {
            let cell = Cell {
                direction,
                block: crate::transfer::limits::PING,
                concurrency: 1,
                batch: 1,
            };
            let mut measured = Vec::new();
            for _ in 0..self.options.rounds.max(1) {
                let ping = self.bare(Flow::Ping)?.p50_us;
                measured.push((self.round(&mut ends, cell)?.p50_us, ping));
            }
            report
                .latency
                .push(Latency::of(direction, ACROSS, &measured));
        }
        Ok(self.link.close_targets()?)
    }

    fn rows(&mut self, report: &mut Report) -> Result<(), BenchError> {
        let options = self.options;
        let mut ends = self.start(options.memory_bytes, None)?;
        let mut slow = Vec::new();
        for &block in &options.blocks {
            for &direction in &options.directions {
                let cells = options.cells(direction, block);
                let mut rounds: Vec<Vec<(Round, Beside)>> = vec![Vec::new(); cells.len()];
                for _ in 0..options.rounds.max(1) {
                    let limit = self.limit(direction)?;
                    let beside = Beside {
                        limit: Some(limit),
                        request: None,
                    };
                    for (cell, rounds) in cells.iter().zip(&mut rounds) {
                        if rounds.is_empty()
                            && cell.bytes() / limit.gbps / 1e9 > BATCHES_SECONDS_MAX
                        {
                            continue;
                        }
                        rounds.push((self.round(&mut ends, *cell)?, beside));
                    }
                }
                for (cell, rounds) in cells.into_iter().zip(rounds) {
                    match rounds.is_empty() {
                        true => slow.push(cell.to_string()),
                        false => {
                            report
                                .rows
                                .push(grid::row((Carrier::Tcp, Place::Cpu), cell, &rounds))
                        }
                    }
                }
            }
        }
        if !slow.is_empty() {
            report.notes.push(format!(
                "left out, as a batch of every thread takes more than {BATCHES_SECONDS_MAX} s at the limit: {}",
                slow.join("; ")
            ));
        }
        Ok(self.link.close_targets()?)
    }

    /// Engines with more and more event loops, in turns.
    fn loops(&mut self, report: &mut Report) -> Result<(), BenchError> {
        let options = self.options;
        let bytes = options.memory_bytes.min(LOOPS_MEMORY);
        let mut ends = Vec::new();
        for &loops in &options.loops {
            ends.push(self.start(bytes, Some(loops))?);
        }
        if ends.is_empty() {
            return Ok(());
        }
        for &direction in &options.directions {
            let mut limits = vec![self.limit(direction)?.gbps];
            let cell = within(loops::cell(direction), limits[0]);
            if cell.batch < loops::cell(direction).batch {
                report.notes.push(format!(
                    "the rows of event loops are of {cell}: the link is slow"
                ));
            }
            let mut rounds: Vec<Vec<Round>> = vec![Vec::new(); ends.len()];
            for round in 0..options.rounds.max(1) {
                if round > 0 {
                    limits.push(self.limit(direction)?.gbps);
                }
                for (ends, rounds) in ends.iter_mut().zip(&mut rounds) {
                    rounds.push(self.round(ends, cell)?);
                }
            }
            report
                .loops
                .extend(LoopsRow::of(direction, &options.loops, &rounds, &limits));
        }
        Ok(self.link.close_targets()?)
    }

    /// iperf3 to the same far end, where both machines have it.
    fn iperf3(&mut self, report: &mut Report) -> Result<(), BenchError> {
        for &direction in &self.options.directions {
            for _ in 0..self.options.rounds.max(1) {
                let gbps = match self.link.iperf3()? {
                    Ok(server) => iperf3_client(server, direction),
                    Err(why) => Err(why),
                };
                match gbps {
                    Ok(gbps) => self.iperf3[direction as usize].push(gbps),
                    Err(why) => {
                        report.notes.push(format!("no iperf3: {why}"));
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    fn finish(mut self, report: &mut Report) -> Result<(), BenchError> {
        self.iperf3(report)?;
        self.link.end()?;
        let of = |rates: &[Rate], value: fn(&Rate) -> f64| {
            (!rates.is_empty()).then(|| median(&mut rates.iter().map(value).collect::<Vec<_>>()))
        };
        let limits = &mut report.limits;
        limits.blocking_socket_gbps = of(&self.reads, |rate| rate.gbps);
        limits.blocking_socket_cpu_s_per_gb = of(&self.reads, |rate| rate.cpu_s_per_gb);
        limits.blocking_socket_write_gbps = of(&self.writes, |rate| rate.gbps);
        limits.blocking_socket_write_cpu_s_per_gb = of(&self.writes, |rate| rate.cpu_s_per_gb);
        limits.blocking_socket_buffer_bytes = self.socket_bytes as usize;
        let [reads, writes] = self
            .iperf3
            .map(|mut all| (!all.is_empty()).then(|| median(&mut all)));
        (limits.iperf3_gbps, limits.iperf3_write_gbps) = (reads, writes);
        report
            .notes
            .push("the incumbent's bench is left out: it is started on this machine alone".into());
        Ok(())
    }
}

/// The load with smaller batches, if its own would take too long at a limit.
fn within(cell: Cell, limit_gbps: f64) -> Cell {
    let one = Cell { batch: 1, ..cell };
    let batches = (limit_gbps * 1e9 * BATCHES_SECONDS_MAX / one.bytes()) as usize;
    Cell {
        batch: batches.clamp(1, cell.batch),
        ..cell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_smaller_on_a_slow_link() {
        let whole = loops::cell(Direction::Read);
        for (gbps, batch) in [(10.0, 16), (0.1, 5), (0.001, 1)] {
            let cell = within(whole, gbps);
            assert_eq!(
                (cell.batch, cell.concurrency, cell.block),
                (batch, whole.concurrency, whole.block)
            );
        }
    }
}
