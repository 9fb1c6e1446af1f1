//! A master and its nodes as processes of their own: what its look-ups cost, what it costs at rest, and how soon it serves
//! again after a kill.

mod caller;
pub(crate) mod counted;
mod echo;
pub mod idle;
mod load;
pub mod master;
pub mod page;
pub mod restart;
mod viewer;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use slackwater_base::{BLOCK_BYTES, ByteSize};
use thiserror::Error;

use crate::process::{Process, ProcessError};

/// Why there is no report.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// A process gave no figures.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The client could not connect.
    #[error(transparent)]
    Connect(#[from] slackwater_remote::ConnectError),
    /// A directory could not be made.
    #[error("cannot make {path}: {why}")]
    Directory {
        /// Its path.
        path: PathBuf,
        /// What the system says.
        why: std::io::Error,
    },
    /// A call failed, or brought other bytes than were put.
    #[error("{0}")]
    Call(String),
    /// A child was started with arguments it does not know.
    #[error("unknown child arguments {0:?}")]
    Arguments(Vec<String>),
}

fn failed(error: impl ToString) -> ClusterError {
    ClusterError::Call(error.to_string())
}

/// How the processes are started.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    /// This program: it has to know `master` and `node`.
    pub program: Vec<OsString>,
    /// The same so that it calls [`child`] with the arguments that follow.
    pub child: Vec<OsString>,
}

/// Plays the part of a measured process.
///
/// # Errors
/// When the part cannot be played.
pub fn child(arguments: &[String]) -> Result<(), ClusterError> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["load", address] => load::run(address),
        ["client", address] => idle::client(address),
        ["crowd", address] => idle::crowd(address),
        ["echo"] => echo::serve(),
        ["master"] => counted::master(),
        ["node", master, memory, ssd, directory] => counted::node(master, memory, ssd, directory),
        _ => Err(ClusterError::Arguments(arguments.to_vec())),
    }
}

/// How many nodes there are, and what they lend.
pub(crate) struct Shape<'a> {
    /// See [`Programs::program`].
    pub(crate) program: &'a [OsString],
    pub(crate) nodes: usize,
    /// Of each node.
    pub(crate) memory: ByteSize,
    /// Of each node; none for memory alone.
    pub(crate) ssd: Option<ByteSize>,
    /// Where the master's journal is and the nodes' SSDs are.
    pub(crate) directory: PathBuf,
    /// Whether the master has an address for operators.
    pub(crate) is_administered: bool,
}

/// A master with its nodes.
pub(crate) struct Cluster {
    program: Vec<OsString>,
    directory: PathBuf,
    master: Process,
    /// Where clients reach it.
    pub(crate) address: String,
    /// Where operators look, `HOST:PORT`; none without such an address.
    admin: Option<String>,
    nodes: Vec<Process>,
}

/// How long a process may be silent: one that fills a catalog is, for as long as that takes.
const PATIENCE: Duration = Duration::from_secs(600);

impl Cluster {
    pub(crate) fn start(shape: &Shape<'_>) -> Result<Self, ClusterError> {
        let directory = shape.directory.join("master");
        made(&directory)?;
        let program = shape.program.to_vec();
        let free = "127.0.0.1:0";
        let admin = if shape.is_administered { free } else { NOBODY };
        let (mut master, address) = start_master(&program, [free, admin], Some(&directory))?;
        let admin = match shape.is_administered {
            true => Some(master.hear("admin at http://")?),
            false => None,
        };
        let mut cluster = Self {
            program,
            directory,
            master,
            address,
            admin,
            nodes: Vec::with_capacity(shape.nodes),
        };
        for number in 0..shape.nodes {
            let kept = shape.directory.join(format!("node-{number}"));
            let (memory, master) = (shape.memory.0.to_string(), cluster.address.clone());
            let mut words = vec!["node", "--master", &master, "--memory", &memory];
            // That a master is new to them is what is measured, and no warning.
            words.extend(["--log", "error", "--leave-time", "0s"]);
            let (ssd, place);
            match shape.ssd {
                Some(bytes) => {
                    made(&kept)?;
                    (ssd, place) = (bytes.0.to_string(), kept.display().to_string());
                    words.extend(["--ssd", &ssd, "--dir", &place]);
                }
                // Whatever the environment says.
                None => words.extend(["--ssd", "0"]),
            }
            let mut node = Process::start(&cluster.program, &words, PATIENCE)?;
            node.hear("node")?;
            cluster.nodes.push(node);
        }
        Ok(cluster)
    }

    /// Kills the master, as a crash would.
    fn kill_master(&mut self) -> Result<(), ClusterError> {
        Ok(self.master.kill()?)
    }

    /// Starts it again where it was.
    fn restart_master(&mut self) -> Result<(), ClusterError> {
        let listen = self.address.trim_start_matches("tcp://");
        let (master, _) = start_master(&self.program, [listen, NOBODY], Some(&self.directory))?;
        self.master = master;
        Ok(())
    }

    /// CPU seconds of the master, and of all nodes.
    pub(crate) fn cpu_seconds(&self) -> [f64; 2] {
        let nodes = self.nodes.iter().map(Process::cpu_seconds).sum();
        [self.master.cpu_seconds(), nodes]
    }
}

/// No address for operators.
const NOBODY: &str = "none";

/// A master that listens to clients and operators there, and where clients reach it; without a directory it keeps nothing.
fn start_master(
    program: &[OsString],
    [listen, admin]: [&str; 2],
    directory: Option<&PathBuf>,
) -> Result<(Process, String), ClusterError> {
    let mut words = vec!["master", "--listen", listen, "--admin", admin];
    words.extend(["--log", "warn"]);
    let kept = directory.map(|directory| directory.display().to_string());
    if let Some(kept) = &kept {
        words.extend(["--directory", kept]);
    }
    let mut master = Process::start(program, &words, PATIENCE)?;
    let address = master.hear("serving at")?;
    Ok((master, address))
}

/// The process that fills and asks.
fn start_load(programs: &Programs, address: &str) -> Result<Process, ClusterError> {
    let mut load = Process::start(&programs.child, &["load", address], PATIENCE)?;
    load.hear("ready")?;
    Ok(load)
}

/// Memory that each of so many nodes needs for short objects: each takes a block, and nothing is to be evicted.
fn memory_for(objects: usize, nodes: usize) -> ByteSize {
    let each = objects.div_ceil(nodes) as u64 * BLOCK_BYTES;
    ByteSize((each + each / 2 + (16 << 20)).next_multiple_of(1 << 20))
}

fn made(path: &PathBuf) -> Result<(), ClusterError> {
    std::fs::create_dir_all(path).map_err(|why| ClusterError::Directory {
        path: path.clone(),
        why,
    })
}

fn key(number: u64) -> Vec<u8> {
    format!("object-{number:010}").into_bytes()
}
