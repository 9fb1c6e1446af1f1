//! What must hold besides speed: nothing is spent when nothing happens, and dead peers cost only themselves.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde::Serialize;
use slackwater_base::{ByteSize, Rng};

use super::crowd::LANES;
use super::grid::{Pair, start_initiator, start_target};
use super::handshakes;
use super::report::table;
use super::{BenchError, Carrier, Direction, Options, Report};
use crate::process::{Process, switches};
use slackwater_report::Table;

/// An engine whose connections are open and unused.
#[derive(Clone, Debug, Serialize)]
pub struct Idle {
    /// Open connections.
    pub connections: usize,
    /// How long it was watched.
    pub seconds: f64,
    /// CPU time over wall time of the one engine that opened all of them, in percent of a core.
    pub initiator_cpu_percent: f64,
    /// Context switches of all its threads.
    pub initiator_switches: u64,
    /// The engines that serve them, in one process.
    pub target_engines: usize,
    /// The same of that process.
    pub target_cpu_percent: f64,
    /// Context switches of all its threads.
    pub target_switches: u64,
}

/// Transfers to a peer that is down.
#[derive(Clone, Debug, Serialize)]
pub struct DeadPeer {
    /// `refusing`: no process listens; `silent`: a process listens and never answers.
    pub peer: &'static str,
    /// Transfers submitted at once.
    pub transfers: u32,
    /// What each was given.
    pub timeout_seconds: f64,
    /// From the submission to the last end.
    pub seconds: f64,
    /// How many ended with which cause.
    pub causes: BTreeMap<String, u32>,
    /// The most resident memory beyond that before.
    pub growth_bytes: u64,
    /// The most sockets open at a time.
    pub sockets_max: u64,
    /// Ports of this machine left behind in TIME_WAIT.
    pub ports_left: u64,
}

/// Processes killed in the middle of a batch of 1 GiB.
#[derive(Clone, Debug, Serialize)]
pub struct Torture {
    /// What carried the bytes.
    pub mover: Carrier,
    /// Who was killed; the other one was looked at.
    pub killed: &'static str,
    /// How often.
    pub kills: usize,
    /// Requests that the survivor had submitted, where it was the initiator.
    pub requests: u32,
    /// Those that were complete.
    pub completed: u32,
    /// What ended the others.
    pub causes: BTreeMap<String, u32>,
    /// The longest time from a kill until every request of the batch was over.
    pub slowest_end_seconds: f64,
    /// Descriptors, mappings, resident bytes and threads of the survivor after the first kills.
    pub before: State,
    /// The same after the last.
    pub after: State,
}

/// What a leak would show in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct State {
    /// Open descriptors.
    pub files: u64,
    /// Mappings.
    pub mappings: u64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// Accesses to the region that are under way.
    pub accesses: u64,
}

/// Kills before the first look: what is kept for reuse has then been made.
const WARM_KILLS: usize = 3;

/// How long a survivor may take to release what a dead peer held; it collects closed connections every 5 s.
const SETTLING: Duration = Duration::from_secs(8);

/// Connections of an idle engine, and how long it is watched.
const CONNECTIONS: usize = 1000;
const IDLE: Duration = Duration::from_secs(10);
/// What a connection does after it was opened, such as learning of the other side's window, is over by then.
const CALMING: Duration = Duration::from_secs(2);

/// Transfers to a peer that is down, and what each is given.
const DESPERATE: u32 = 10_000;
const DESPERATE_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) fn measure(options: &Options, report: &mut Report) -> Result<(), BenchError> {
    if options.trials {
        report.idle = Some(watch_idle(options)?);
        for peer in ["refusing", "silent"] {
            report.dead_peers.push(despair(options, peer)?);
        }
        match handshakes::measure(options) {
            Ok(rows) => report.handshakes = rows,
            Err(error) => report
                .notes
                .push(format!("handshakes were not measured: {error}")),
        }
    }
    if options.torture > 0 {
        for &carrier in &options.carriers {
            report.torture.push(kill_targets(options, carrier)?);
            report.torture.push(kill_initiators(options, carrier)?);
        }
    }
    Ok(())
}

/// One engine with connections to many others, none of which has anything to do.
fn watch_idle(options: &Options) -> Result<Idle, BenchError> {
    let engines = CONNECTIONS.div_ceil(LANES);
    let arguments = ["crowd", &engines.to_string()];
    let mut crowd = Process::start(&options.child, &arguments, options.patience())?;
    let contacts = crowd.hear("serving")?;
    let mut holder = Process::start(&options.child, &["holder"], options.patience())?;
    holder.hear("ready")?;
    holder.say(&format!("connect {contacts} {CONNECTIONS}"))?;
    let [connections] = holder.numbers("connected")?;
    std::thread::sleep(CALMING);
    let look = |process: &Process| (process.cpu_seconds(), switches(process.id()));
    let (began, before) = (Instant::now(), [look(&holder), look(&crowd)]);
    std::thread::sleep(IDLE);
    let (seconds, after) = (began.elapsed().as_secs_f64(), [look(&holder), look(&crowd)]);
    let percent = |which: usize| 100.0 * (after[which].0 - before[which].0) / seconds;
    Ok(Idle {
        connections: connections as usize,
        seconds,
        initiator_cpu_percent: percent(0),
        initiator_switches: after[0].1 - before[0].1,
        target_engines: engines,
        target_cpu_percent: percent(1),
        target_switches: after[1].1 - before[1].1,
    })
}

fn despair(options: &Options, peer: &'static str) -> Result<DeadPeer, BenchError> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(BenchError::io("listen"))?;
    let address = listener
        .local_addr()
        .map_err(BenchError::io("listen"))?
        .to_string();
    // The kernel answers for a listener that never accepts; without one it refuses.
    let _silent = (peer == "silent").then_some(listener);
    let (count, timeout) = (
        DESPERATE.to_string(),
        DESPERATE_TIMEOUT.as_millis().to_string(),
    );
    let ports = ports_in_time_wait();
    let mut process = Process::start(
        &options.child,
        &["despair", &address, &count, &timeout],
        options.patience(),
    )?;
    let said = process.hear("despaired")?;
    let unclear = || BenchError::Transfer(format!("a despairing engine said `{said}`"));
    let mut words = said.splitn(4, ' ');
    let mut number = || {
        words
            .next()
            .and_then(|word| word.parse::<f64>().ok())
            .ok_or_else(unclear)
    };
    let (seconds, growth, sockets) = (number()?, number()?, number()?);
    let causes = words
        .next()
        .and_then(|json| serde_json::from_str(json).ok())
        .ok_or_else(unclear)?;
    Ok(DeadPeer {
        peer,
        transfers: DESPERATE,
        timeout_seconds: DESPERATE_TIMEOUT.as_secs_f64(),
        seconds,
        causes,
        growth_bytes: growth as u64,
        sockets_max: sockets as u64,
        ports_left: ports_in_time_wait().saturating_sub(ports),
    })
}

/// Sockets of this machine in TIME_WAIT (`/proc/net/sockstat`).
fn ports_in_time_wait() -> u64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let line = text
        .lines()
        .find(|line| line.starts_with("TCP:"))
        .unwrap_or_default();
    let mut words = line.split_whitespace().skip_while(|word| *word != "tw");
    words.nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The initiator survives, and has to report the outcome of each request.
fn kill_targets(options: &Options, carrier: Carrier) -> Result<Torture, BenchError> {
    let mut torture = Torture::new(carrier, "target");
    let mut rng = Rng::new(1);
    let mut initiator = start_initiator(options, carrier, "adaptive", None, None)?;
    for kill in 0..options.torture {
        let mut pair = Pair {
            target: start_target(options, carrier, None)?,
            initiator,
        };
        pair.open()?;
        let Pair {
            mut target,
            initiator: survivor,
        } = pair;
        initiator = survivor;
        initiator.say(&format!("flood {}", direction(kill).name()))?;
        initiator.hear("flooding")?;
        std::thread::sleep(moment(&mut rng));
        target.kill()?;
        let killed = Instant::now();
        let said = initiator.hear("flooded")?;
        torture.slowest_end_seconds =
            f64::max(torture.slowest_end_seconds, killed.elapsed().as_secs_f64());
        torture.count(&said)?;
        torture.look((kill, options.torture), &mut initiator)?;
    }
    Ok(torture)
}

/// The target survives, and has to release the accesses of the initiator.
fn kill_initiators(options: &Options, carrier: Carrier) -> Result<Torture, BenchError> {
    let mut torture = Torture::new(carrier, "initiator");
    let mut rng = Rng::new(2);
    let mut target = start_target(options, carrier, None)?;
    let contact = target.hear("serving")?;
    for kill in 0..options.torture {
        let mut initiator = start_initiator(options, carrier, "adaptive", None, None)?;
        initiator.say(&format!("open {contact}"))?;
        initiator.hear("opened")?;
        initiator.say(&format!("flood {}", direction(kill).name()))?;
        initiator.hear("flooding")?;
        std::thread::sleep(moment(&mut rng));
        initiator.kill()?;
        torture.kills += 1;
        torture.look((kill, options.torture), &mut target)?;
    }
    Ok(torture)
}

fn direction(kill: usize) -> Direction {
    if kill.is_multiple_of(2) {
        Direction::Read
    } else {
        Direction::Write
    }
}

/// When to kill: within the time that 1 GiB takes at the speed of memory.
fn moment(rng: &mut Rng) -> Duration {
    Duration::from_micros(rng.below(40_000))
}

impl Torture {
    fn new(mover: Carrier, killed: &'static str) -> Self {
        Self {
            mover,
            killed,
            kills: 0,
            requests: 0,
            completed: 0,
            causes: BTreeMap::new(),
            slowest_end_seconds: 0.0,
            before: State::default(),
            after: State::default(),
        }
    }

    /// Adds what the survivor reported of one batch.
    fn count(&mut self, said: &str) -> Result<(), BenchError> {
        let unclear = || BenchError::Transfer(format!("a survivor said `{said}`"));
        let mut words = said.splitn(3, ' ');
        let completed: u32 = words
            .next()
            .and_then(|word| word.parse().ok())
            .ok_or_else(unclear)?;
        let causes: BTreeMap<String, u32> = words
            .nth(1)
            .and_then(|json| serde_json::from_str(json).ok())
            .ok_or_else(unclear)?;
        self.kills += 1;
        self.completed += completed;
        self.requests += completed;
        for (cause, count) in causes {
            self.requests += count;
            *self.causes.entry(cause).or_default() += count;
        }
        Ok(())
    }

    /// Records the resources of the survivor: after the first kills, and after the last, once it has released what the
    /// dead peer held.
    fn look(
        &mut self,
        (kill, kills): (usize, usize),
        survivor: &mut Process,
    ) -> Result<(), BenchError> {
        let (warm, last) = (kill < WARM_KILLS, kill + 1 == kills);
        if !warm && !last {
            return Ok(());
        }
        let began = Instant::now();
        loop {
            self.after = State::ask(survivor)?;
            if warm {
                self.before = self.after;
            }
            let no_more = self.after.files <= self.before.files
                && self.after.mappings <= self.before.mappings;
            if (self.after.accesses == 0 && no_more) || began.elapsed() > SETTLING {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn table(all: &[Self]) -> Option<Table> {
        let head = [
            "mover",
            "killed",
            "kills",
            "requests",
            "completed",
            "causes",
            "slowest end s",
            "before",
            "after",
        ];
        let row = |torture: &Self| {
            let mut cells = vec![
                torture.mover.name().to_owned(),
                torture.killed.to_owned(),
                torture.kills.to_string(),
            ];
            cells.extend([torture.requests, torture.completed].map(|number| number.to_string()));
            cells.extend([
                causes(&torture.causes),
                format!("{:.3}", torture.slowest_end_seconds),
            ]);
            cells.extend([torture.before, torture.after].map(State::text));
            cells
        };
        (!all.is_empty())
            .then(|| table("Killed in the middle of 1 GiB", &head, all.iter().map(row)))
    }
}

impl State {
    fn ask(process: &mut Process) -> Result<Self, BenchError> {
        process.say("state")?;
        let [files, mappings, resident_bytes, threads, accesses] =
            process.numbers("state")?.map(|n| n as u64);
        Ok(Self {
            files,
            mappings,
            resident_bytes,
            threads,
            accesses,
        })
    }

    fn text(self) -> String {
        let Self {
            files,
            mappings,
            resident_bytes,
            threads,
            accesses,
        } = self;
        let resident = ByteSize(resident_bytes >> 20 << 20);
        format!(
            "{files} files, {mappings} maps, {resident}, {threads} threads, {accesses} accesses"
        )
    }
}

impl Idle {
    /// CPU of the one engine, or of one of those that serve it in the mean, whichever is more, in percent of a core.
    pub(super) fn engine_cpu_percent(&self) -> f64 {
        f64::max(
            self.initiator_cpu_percent,
            self.target_cpu_percent / self.target_engines as f64,
        )
    }

    pub(super) fn table(&self) -> Table {
        let head = [
            "process",
            "CPU %",
            "context switches",
            "connections",
            "seconds",
        ];
        let row = |name: &str, percent: f64, switches: u64| {
            let own = [
                format!("{percent:.3}"),
                switches.to_string(),
                self.connections.to_string(),
            ];
            [name.to_owned()]
                .into_iter()
                .chain(own)
                .chain([format!("{:.1}", self.seconds)])
                .collect()
        };
        let rows = [
            row(
                "one engine, all connections its own",
                self.initiator_cpu_percent,
                self.initiator_switches,
            ),
            row(
                &format!("{} engines that serve them", self.target_engines),
                self.target_cpu_percent,
                self.target_switches,
            ),
        ];
        table("Idle", &head, rows.into_iter())
    }
}

impl DeadPeer {
    pub(super) fn table(all: &[Self]) -> Option<Table> {
        let head = [
            "peer",
            "transfers",
            "timeout s",
            "all over after s",
            "causes",
            "growth",
            "sockets",
            "ports left",
        ];
        let row = |dead: &Self| {
            let mut cells = vec![dead.peer.to_owned(), dead.transfers.to_string()];
            cells.extend(
                [dead.timeout_seconds, dead.seconds].map(|seconds| format!("{seconds:.2}")),
            );
            cells.extend([
                causes(&dead.causes),
                ByteSize(dead.growth_bytes).to_string(),
            ]);
            cells.extend([dead.sockets_max, dead.ports_left].map(|number| number.to_string()));
            cells
        };
        (!all.is_empty()).then(|| table("Peers that are down", &head, all.iter().map(row)))
    }
}

fn causes(causes: &BTreeMap<String, u32>) -> String {
    let texts: Vec<String> = causes
        .iter()
        .map(|(cause, count)| format!("{count} {cause}"))
        .collect();
    if texts.is_empty() {
        "none".to_owned()
    } else {
        texts.join(", ")
    }
}
