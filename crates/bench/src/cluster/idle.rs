//! What a pool costs in which nobody asks for anything: the CPU of all its processes, and the memory of a client at the
//! master.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use slackwater_base::ByteSize;
use slackwater_mq::Address;
use slackwater_report::Bound;
use slackwater_wait::now;
use slackwater_wire::Key;

use super::caller::Caller;
use super::load::{connect, put_all};
use super::{Cluster, ClusterError, Programs, Shape, failed, key};
use crate::process::{Process, orders, resident_bytes_of, tell};

/// The sizes of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Processes that lend memory and an SSD.
    pub nodes: usize,
    /// Clients, a process each.
    pub clients: usize,
    /// Links whose memory at the master is measured, before there are clients on them and after.
    pub links: usize,
    /// How long nobody asks for anything before that counts: longer than leases last.
    pub settle: Duration,
    /// How long CPU time is counted.
    pub window: Duration,
    /// Where the directories of master and nodes are made.
    pub directory: PathBuf,
    /// How the processes are started.
    pub programs: Programs,
}

impl Options {
    /// Three nodes and a hundred clients, with the files of the pool in `directory`.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self {
            nodes: 3,
            clients: 100,
            links: 1000,
            settle: Duration::from_secs(15),
            window: Duration::from_secs(30),
            directory,
            programs: Programs::default(),
        }
    }
}

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Nodes.
    pub nodes: usize,
    /// Clients, a process each.
    pub clients: usize,
    /// How long CPU time was counted.
    pub seconds: f64,
    /// CPU of the master, in percent of a core.
    pub master_core_percent: f64,
    /// CPU of all nodes together.
    pub node_core_percent: f64,
    /// CPU of all clients together.
    pub client_core_percent: f64,
    /// Links whose memory was measured.
    pub links: usize,
    /// What the master grew by for each link of which it knows no client.
    pub bytes_per_link: f64,
    /// What it grew by more for each when there was a client on it that had asked and put, and had stopped.
    pub bytes_per_client: f64,
    /// What is promised, held against the figures.
    pub bounds: Vec<Bound>,
}

/// Bytes of SSD and of memory of each node.
const NODE_BYTES: ByteSize = ByteSize(256 << 20);

/// Measures.
///
/// # Errors
/// When a process cannot be started, fails or falls silent.
pub fn run(options: &Options) -> Result<Report, ClusterError> {
    let Options { nodes, clients, .. } = *options;
    let cluster = Cluster::start(&Shape {
        program: &options.programs.program,
        nodes,
        memory: NODE_BYTES,
        ssd: Some(NODE_BYTES),
        directory: options.directory.clone(),
        is_administered: false,
    })?;
    let child = |part: &str| -> Result<Process, ClusterError> {
        let words = [part, &cluster.address];
        let mut child = Process::start(&options.programs.child, &words, super::PATIENCE)?;
        child.hear("ready")?;
        Ok(child)
    };
    let processes: Vec<Process> = (0..clients)
        .map(|_| child("client"))
        .collect::<Result<_, _>>()?;
    std::thread::sleep(options.settle);
    let seconds = || {
        let [master, nodes] = cluster.cpu_seconds();
        let clients: f64 = processes.iter().map(Process::cpu_seconds).sum();
        [master, nodes, clients]
    };
    let (begun, before) = (now(), seconds());
    std::thread::sleep(options.window);
    let (took, after) = (now().since(begun).as_secs_f64(), seconds());
    let used = [0, 1, 2].map(|at| 100.0 * (after[at] - before[at]) / took);
    drop(processes);
    let memory = memory(&cluster, &mut child("crowd")?, options.links)?;
    let report = Report {
        nodes,
        clients,
        seconds: took,
        master_core_percent: used[0],
        node_core_percent: used[1],
        client_core_percent: used[2],
        links: options.links,
        bytes_per_link: memory[0],
        bytes_per_client: memory[1],
        bounds: Vec::new(),
    };
    Ok(Report {
        bounds: bounds(&report),
        ..report
    })
}

/// What the master grows by for each link, and for each client beside its link.
fn memory(cluster: &Cluster, crowd: &mut Process, links: usize) -> Result<[f64; 2], ClusterError> {
    let resident = || resident_bytes_of(cluster.master.id());
    let begun = resident();
    crowd.say(&format!("link {links}"))?;
    crowd.hear("linked")?;
    let linked = resident();
    crowd.say("ask")?;
    crowd.hear("asked")?;
    let grown = |from: u64, to: u64| to.saturating_sub(from) as f64 / links as f64;
    Ok([grown(begun, linked), grown(linked, resident())])
}

/// What an idle pool promises, held against a report.
fn bounds(report: &Report) -> Vec<Bound> {
    let Report { nodes, clients, .. } = *report;
    let used = report.master_core_percent + report.node_core_percent + report.client_core_percent;
    vec![
        Bound::at_most(
            format!("CPU of a master, {nodes} nodes and {clients} clients at rest: % of a core"),
            used,
            1.0,
        ),
        Bound::at_most(
            "memory of a client at rest at its master, beside its link: bytes".to_owned(),
            report.bytes_per_client,
            4096.0,
        ),
    ]
}

/// A client that has put and read, and rests until its input ends.
pub(super) fn client(address: &str) -> Result<(), ClusterError> {
    let client = connect(&parsed(address)?)?;
    let number = u64::from(std::process::id());
    put_all(&client, &[number], 64, slackwater_wire::Durability::Memory)?;
    let got = client.get(&key(number), &slackwater_remote::GetOptions::default());
    if got.map_err(failed)?.is_none() {
        return Err(failed("what was put is not there"));
    }
    tell("ready")?;
    orders().for_each(drop);
    Ok(())
}

/// So many links, on which there are clients when they are told to ask.
pub(super) fn crowd(address: &str) -> Result<(), ClusterError> {
    let address = parsed(address)?;
    let layer = Arc::new(Caller::layer()?);
    // What the first client of a master makes it allocate is no other's.
    asks(&mut Caller::link(&layer, &address)?)?;
    tell("ready")?;
    let mut links = Vec::new();
    for order in orders() {
        let words: Vec<&str> = order.iter().map(String::as_str).collect();
        match words[..] {
            ["link", count] => {
                let count: usize = count.parse().map_err(failed)?;
                let open = (0..count).map(|_| Caller::link(&layer, &address));
                links = open.collect::<Result<_, _>>()?;
                tell("linked")?;
            }
            ["ask"] => {
                links.iter_mut().try_for_each(asks)?;
                tell("asked")?;
            }
            _ => return Err(ClusterError::Arguments(order)),
        }
    }
    Ok(())
}

fn asks(caller: &mut Caller) -> Result<(), ClusterError> {
    caller.greet()?;
    caller.look_up(Vec::<Key>::new())?;
    caller.put_nothing()
}

fn parsed(address: &str) -> Result<Address, ClusterError> {
    let wrong = |_| failed(format!("`{address}` is no address"));
    address.parse().map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_promise_is_held_against_its_figures() {
        let check = |cores: [f64; 3], bytes: f64, expected: [bool; 2]| {
            let report = Report {
                nodes: 3,
                clients: 100,
                seconds: 30.0,
                master_core_percent: cores[0],
                node_core_percent: cores[1],
                client_core_percent: cores[2],
                links: 10,
                bytes_per_link: 1e6,
                bytes_per_client: bytes,
                bounds: Vec::new(),
            };
            let holds: Vec<bool> = bounds(&report).iter().map(Bound::holds).collect();
            assert_eq!(holds, expected, "{cores:?} {bytes}");
        };
        check([0.3, 0.3, 0.4], 4096.0, [true, true]);
        check([0.3, 0.3, 0.41], 4096.0, [false, true]);
        check([1.1, 0.0, 0.0], 4097.0, [false, false]);
        check([0.0, 1.1, 0.0], 0.0, [false, true]);
    }
}
