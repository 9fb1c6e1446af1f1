//! What serves: a master and a node, each a process, or one that is both.

use std::io::{Read, Write};
use std::time::Duration;

use slackwater_base::ByteSize;
use slackwater_node::Config;
use slackwater_node::serve::{self, ServeOptions};

use super::{Options, Path, ServedError};
use crate::cluster::{Cluster, Shape};
use crate::process::Process;

pub(super) enum Server {
    /// A master and its only node.
    Apart(Cluster),
    /// A process that is master and node.
    Fused(Process),
}

/// CPU seconds that were used so far.
#[derive(Clone, Copy)]
pub(super) struct CpuSeconds {
    pub(super) node: f64,
    /// None where the node's process is the master's.
    pub(super) master: Option<f64>,
}

impl Server {
    /// Starts it, and says where clients reach it. Servers of several paths share no directory.
    pub(super) fn start(options: &Options, path: Path) -> Result<(Self, String), ServedError> {
        let Some(program) = &options.program else {
            let memory = options.memory.0.to_string();
            let words = ["server", &memory];
            let mut server = Process::start(&options.child, &words, options.patience())?;
            let address = server.hear("serving")?;
            return Ok((Self::Fused(server), address));
        };
        let cluster = Cluster::start(&Shape {
            program,
            nodes: 1,
            memory: options.memory,
            ssd: None,
            directory: options.directory.join(path.name()),
            is_administered: false,
        })?;
        let address = cluster.address.clone();
        Ok((Self::Apart(cluster), address))
    }

    pub(super) fn cpu_seconds(&self) -> CpuSeconds {
        match self {
            Self::Apart(cluster) => {
                let [master, node] = cluster.cpu_seconds();
                CpuSeconds {
                    node,
                    master: Some(master),
                }
            }
            Self::Fused(server) => CpuSeconds {
                node: server.cpu_seconds(),
                master: None,
            },
        }
    }
}

/// Serves a store of this much memory until standard input ends.
pub(super) fn run(memory: u64) -> Result<(), ServedError> {
    let config = Config {
        memory: ByteSize(memory),
        ssd: ByteSize(0),
        ..Config::default()
    };
    let options = ServeOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        ..ServeOptions::default()
    };
    let server = serve::Server::start(config, &options)?;
    let mut out = std::io::stdout();
    let said = writeln!(out, "serving tcp://{}", server.address()).and_then(|()| out.flush());
    said.map_err(|error| ServedError::Call(error.to_string()))?;
    // The run has ended, or the process that measures: either closes the pipe.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let closed = server.close(Duration::from_secs(1));
    closed.map_err(|error| ServedError::Call(error.to_string()))
}
