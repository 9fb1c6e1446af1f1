//! The incumbent's store by its own Python API, where its package is installed: a master, a node and a client, each a process.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Options, Peer, PeerRow, values_of};
use crate::peer::incumbent_program;
use crate::process::{Process, ProcessError};

const SCRIPT: &str = include_str!("incumbent.py");

/// How long a part may take to start, and to fill what is read.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most values that are read.
const VALUES_MAX: usize = 1024;

/// A master, a node that lends memory, and a client that reads it over TCP.
struct Incumbent {
    client: Process,
    node: Process,
    _master: Process,
}

/// Its reads, or why there are none. It runs after everything else, as its processes are not still while they wait.
pub(super) fn measure(options: &Options) -> Peer {
    if !options.peers {
        return Peer::Skipped("left out, as asked".to_owned());
    }
    if !options.paths.contains(&super::Path::Tcp) {
        return Peer::Skipped("it is measured over TCP".to_owned());
    }
    if !options.ops.contains(&super::Op::GetInto) {
        return Peer::Skipped("only get_into is compared".to_owned());
    }
    match rows(options) {
        Ok(rows) => Peer::Rows(rows),
        Err(reason) => Peer::Skipped(reason),
    }
}

fn rows(options: &Options) -> Result<Vec<PeerRow>, String> {
    let master = incumbent_program(&options.python, "mooncake_master")?;
    let failed = |error: ProcessError| format!("{}: {error}", master.display());
    let mut incumbent = Incumbent::start(options, &master).map_err(failed)?;
    let mut rows = Vec::new();
    for &block in &options.blocks {
        rows.extend(incumbent.gets(options, block).map_err(failed)?);
    }
    Ok(rows)
}

impl Incumbent {
    fn start(options: &Options, master: &Path) -> Result<Self, ProcessError> {
        let (port, metrics_port) = (free_port()?, free_port()?);
        let mut command = Command::new(master);
        command
            .stderr(Stdio::piped())
            .args(["--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1"])
            .arg(format!("--rpc_port={port}"))
            .arg(format!("--metrics_port={metrics_port}"));
        let mut master = Process::spawn(command, "mooncake_master", PATIENCE)?;
        master.hear_of("service_ready=true")?;
        let part = |part: &'static str| {
            let mut command = Command::new(&options.python);
            command
                .args(["-c", SCRIPT, part])
                .arg(format!("127.0.0.1:{port}"))
                .arg(options.memory.0.to_string())
                .stderr(Stdio::null());
            let mut process = Process::spawn(command, part, PATIENCE)?;
            process.hear("ready")?;
            Ok::<_, ProcessError>(process)
        };
        Ok(Self {
            node: part("node")?,
            client: part("client")?,
            _master: master,
        })
    }

    fn gets(&mut self, options: &Options, block: usize) -> Result<Vec<PeerRow>, ProcessError> {
        let count = values_of(block).min(VALUES_MAX);
        self.node.say(&format!("fill {block} {count} 0 0"))?;
        self.node.hear("filled")?;
        let mut rows = Vec::new();
        for &concurrency in &options.concurrency {
            let order = format!("run {block} {count} {concurrency} {}", options.millis());
            let mut taken = Vec::new();
            for _ in 0..options.rounds {
                self.client.say(&order)?;
                let [values, seconds, p50_us, p99_us] = self.client.numbers("ran")?;
                taken.push([values / seconds, p50_us, p99_us]);
            }
            rows.push(PeerRow::of("get_into", block, concurrency, &taken));
        }
        Ok(rows)
    }
}

/// A port that was free a moment ago: the master takes none of its own choice.
fn free_port() -> Result<u16, ProcessError> {
    let bound = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = bound.map_err(|error| ProcessError::Io {
        what: "find a free port",
        error,
    })?;
    Ok(address.port())
}
