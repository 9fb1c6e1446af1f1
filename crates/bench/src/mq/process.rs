use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use slackwater_mq::{Address, Builder, Level, ListenOptions, Mq, Options};
use slackwater_net::{Endpoint, PreAuthLimits, UnixAccess};
use slackwater_zmtp::{KeyPair, SecretKey};

use super::BenchError;

/// A measured process that is spoken to in lines.
pub(super) struct Process {
    child: Child,
    lines: Receiver<io::Result<String>>,
    input: ChildStdin,
    part: String,
    patience: Duration,
}

impl Process {
    /// Starts one whose lines may each take as long as `patience`.
    pub(super) fn start(command: &[OsString], arguments: &[&str], patience: Duration) -> Result<Self, BenchError> {
        let (program, leading) = command.split_first().ok_or(BenchError::NoChild)?;
        let mut command = Command::new(program);
        command.args(leading).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| BenchError::Io { what: "start a process", error })?;
        let (Some(output), Some(input)) = (child.stdout.take(), child.stdin.take()) else {
            return Err(BenchError::Said("nothing: it has no pipes".into()));
        };
        let (heard, lines) = channel();
        // Ends with the process, whose pipe it reads.
        std::thread::spawn(move || BufReader::new(output).lines().try_for_each(|line| heard.send(line)));
        Ok(Self { child, lines, input, part: arguments.join(" "), patience })
    }

    pub(super) fn say(&mut self, line: &str) -> Result<(), BenchError> {
        writeln!(self.input, "{line}").map_err(|error| BenchError::Io { what: "speak to a process", error })
    }

    /// The rest of the next line after `word`.
    pub(super) fn hear(&mut self, word: &'static str) -> Result<String, BenchError> {
        let line = self.lines.recv_timeout(self.patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => BenchError::Silent { part: self.part.clone(), word, after: self.patience },
            RecvTimeoutError::Disconnected => BenchError::Ended { part: self.part.clone(), word },
        })?;
        let line = line.map_err(|error| BenchError::Io { what: "listen to a process", error })?;
        let said = line.trim().strip_prefix(word).ok_or_else(|| BenchError::Said(line.trim().to_owned()))?;
        Ok(said.trim().to_owned())
    }

    /// The numbers in the rest of the next line after `word`.
    pub(super) fn numbers<const N: usize>(&mut self, word: &'static str) -> Result<[f64; N], BenchError> {
        let said = self.hear(word)?;
        let numbers: Vec<f64> = said.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        numbers.try_into().map_err(|_| BenchError::Said(said))
    }

    /// CPU time used so far by all its threads, in seconds.
    pub(super) fn cpu_seconds(&self) -> f64 {
        cpu_seconds(&self.child.id().to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time of a process, over its threads (`/proc/PID/task/TID/schedstat`, nanoseconds on a CPU).
pub(super) fn cpu_seconds(pid: &str) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    nanos.sum::<u64>() as f64 / 1e9
}

/// Resident memory of this process.
pub(super) fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = pages.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// Raises the soft limit of descriptors to the hard one and returns it.
pub(super) fn descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    current.map_or(1 << 20, |limit| limit as usize)
}

/// The clock that both ends of a message can read.
pub(super) fn monotonic_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A message layer for one side: a fixed key each, links without ids, no limits on strangers.
pub(super) fn builder(seed: u8, heartbeats: bool) -> Builder {
    let pre_auth = PreAuthLimits { total: 1 << 20, per_source: 1 << 20, rate: 1 << 30, rate_per_source: 1 << 30 };
    let keys = KeyPair::of(SecretKey::from_bytes([seed; 32]));
    let heartbeat = Options::default().heartbeat.filter(|_| heartbeats);
    Builder::new(Options { keys: Some(keys), ephemeral_ids: true, pre_auth, heartbeat, ..Options::default() })
}

/// Listens on loopback and tells the parent where.
pub(super) fn listen(mq: &Mq, mechanism: &str) -> Result<(), BenchError> {
    let encrypted = mechanism == "CURVE";
    let listen = ListenOptions {
        admission: slackwater_mq::Admission::Everybody(Level::Basic),
        encrypted,
        access: UnixAccess::default(),
    };
    let any = Endpoint::Tcp(([127, 0, 0, 1], 0).into());
    let endpoint = mq.listen(&any, &listen).map_err(mq_error)?;
    tell(&format!("listening {}", Address::of(&endpoint, encrypted.then(|| mq.public_key()))))
}

pub(super) fn tell(line: &str) -> Result<(), BenchError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| BenchError::Io { what: "speak", error })
}

/// The lines of the parent, until it ends.
pub(super) fn orders() -> impl Iterator<Item = Vec<String>> {
    io::stdin().lines().map_while(Result::ok).map(|line| line.split_whitespace().map(str::to_owned).collect())
}

pub(super) fn mq_error(error: impl std::fmt::Display) -> BenchError {
    BenchError::Mq(error.to_string())
}
