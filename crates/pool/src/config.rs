use std::path::{Path, PathBuf};

use slackwater_wait::{Choice, Cpus, NumaId};
use thiserror::Error;

use crate::claim::SEATS_MAX;
use crate::topology::{CpuTopology, CpuTopologyError, Node};

/// How many threads, and where.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads that take part in a job, the caller among them. Default: as many as the process has usable CPUs.
    pub threads: Option<usize>,
    /// The NUMA nodes to use; empty means all. More than one makes a crew of each.
    pub nodes: Vec<NumaId>,
    /// Where workers may run.
    pub pin: Pin,
    /// Whether memory that a worker touches first comes from its node. Only matters with several nodes.
    pub bind_memory: bool,
    /// The most background tasks that wait.
    pub background_max: usize,
    /// How the threads wait; `None` is the strategy of the process.
    pub wait: Option<Choice>,
    /// The directory in which sysfs is mounted.
    pub sysfs: PathBuf,
}

/// Where workers may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// Anywhere on their node; with one node, anywhere.
    #[default]
    Node,
    /// Each on a physical core of its own. Refused if there are more workers than cores.
    Core,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: None,
            nodes: Vec::new(),
            pin: Pin::default(),
            bind_memory: true,
            background_max: 1024,
            wait: None,
            sysfs: PathBuf::from("/sys"),
        }
    }
}

/// Why a pool could not be started.
#[derive(Debug, Error)]
pub enum PoolError {
    /// A pool has at least its caller.
    #[error("a pool of 0 threads cannot run anything")]
    NoThreads,
    /// More than a job can have participants.
    #[error("{threads} threads are more than a pool takes ({max})")]
    TooManyThreads {
        /// The threads asked for.
        threads: usize,
        /// The most there can be.
        max: usize,
    },
    /// No such node, or none of its CPUs may be used.
    #[error("unknown NUMA node {node} (usable: {})", list(known))]
    UnknownNode {
        /// The node asked for.
        node: NumaId,
        /// The nodes there are.
        known: Vec<NumaId>,
    },
    /// A node was named twice.
    #[error("NUMA node {0} is named twice")]
    RepeatedNode(NumaId),
    /// More nodes than a job can be spread over.
    #[error("{nodes} NUMA nodes are more than a pool takes ({max})")]
    TooManyNodes {
        /// The nodes asked for.
        nodes: usize,
        /// The most there can be.
        max: usize,
    },
    /// Each worker shall have a core, and there are too few.
    #[error("{threads} threads cannot each have a core of NUMA node {node}, which has {cores}")]
    TooFewCores {
        /// The node.
        node: NumaId,
        /// The threads on it, the caller among them.
        threads: usize,
        /// Its usable cores.
        cores: usize,
    },
    /// The topology could not be read.
    #[error(transparent)]
    Topology(#[from] CpuTopologyError),
    /// A thread could not be started or placed.
    #[error("pool thread {thread}: {cause}")]
    Thread {
        /// The index of the thread.
        thread: usize,
        /// The error of the operating system.
        cause: std::io::Error,
    },
}

fn list(nodes: &[NumaId]) -> String {
    nodes
        .iter()
        .map(NumaId::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// The most NUMA nodes of one pool.
pub(crate) const NODES_MAX: usize = 16;

/// The part of a pool on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CrewPlan {
    pub(crate) node: Node,
    /// Threads including, in the first crew, the caller.
    pub(crate) threads: usize,
}

impl Config {
    /// A pool of `threads` threads, the caller among them.
    #[must_use]
    pub fn threads(threads: usize) -> Self {
        Self {
            threads: Some(threads),
            ..Self::default()
        }
    }

    /// Checks the configuration against the machine and splits the threads over the nodes, in proportion to their cores.
    pub(crate) fn plan(&self) -> Result<Vec<CrewPlan>, PoolError> {
        let cpus = Cpus::current();
        self.plan_for(&self.sysfs, &cpus.mask, cpus.usable as usize)
    }

    fn plan_for(
        &self,
        sysfs: &Path,
        allowed: &[usize],
        usable: usize,
    ) -> Result<Vec<CrewPlan>, PoolError> {
        let threads = self.threads.unwrap_or(usable);
        if threads == 0 {
            return Err(PoolError::NoThreads);
        }
        if threads > SEATS_MAX {
            return Err(PoolError::TooManyThreads {
                threads,
                max: SEATS_MAX,
            });
        }
        let nodes = self.chosen(CpuTopology::read(sysfs, allowed)?)?;
        let cores: usize = nodes.iter().map(|node| node.cores.len()).sum();
        let mut crews = Vec::new();
        let (mut threads_left, mut cores_left) = (threads, cores);
        for node in nodes {
            let share = (threads_left * node.cores.len()).div_ceil(cores_left);
            threads_left -= share;
            cores_left -= node.cores.len();
            if self.pin == Pin::Core && share > node.cores.len() {
                return Err(PoolError::TooFewCores {
                    node: node.id,
                    threads: share,
                    cores: node.cores.len(),
                });
            }
            if share > 0 {
                crews.push(CrewPlan {
                    node,
                    threads: share,
                });
            }
        }
        Ok(crews)
    }

    /// The nodes asked for, in the order asked for.
    fn chosen(&self, topology: CpuTopology) -> Result<Vec<Node>, PoolError> {
        let wanted = if self.nodes.is_empty() {
            topology.nodes.iter().map(|node| node.id).collect()
        } else {
            self.nodes.clone()
        };
        if wanted.len() > NODES_MAX {
            return Err(PoolError::TooManyNodes {
                nodes: wanted.len(),
                max: NODES_MAX,
            });
        }
        let mut chosen: Vec<Node> = Vec::new();
        for id in wanted {
            if chosen.iter().any(|node| node.id == id) {
                return Err(PoolError::RepeatedNode(id));
            }
            let Some(node) = topology.nodes.iter().find(|node| node.id == id) else {
                let known = topology.nodes.iter().map(|node| node.id).collect();
                return Err(PoolError::UnknownNode { node: id, known });
            };
            chosen.push(node.clone());
        }
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::fixture::Sysfs;

    /// Nodes 1 and 3, of one and three cores.
    fn lopsided(name: &str) -> Sysfs {
        Sysfs::new(
            name,
            &[
                ("node/online", "1,3\n"),
                ("node/node1/cpulist", "0\n"),
                ("node/node3/cpulist", "1-3\n"),
            ],
        )
    }

    fn split(config: &Config, sysfs: &Sysfs) -> Result<Vec<(u32, usize)>, String> {
        let plan = config.plan_for(sysfs.root(), &[0, 1, 2, 3], 4);
        plan.map(|crews| {
            crews
                .iter()
                .map(|crew| (crew.node.id.0, crew.threads))
                .collect()
        })
        .map_err(|error| error.to_string())
    }

    #[test]
    fn threads_are_split_by_cores_and_nodes_keep_their_numbers() {
        let sysfs = lopsided("split");
        assert_eq!(split(&Config::threads(4), &sysfs), Ok(vec![(1, 1), (3, 3)]));
        assert_eq!(split(&Config::threads(8), &sysfs), Ok(vec![(1, 2), (3, 6)]));
        assert_eq!(split(&Config::default(), &sysfs), Ok(vec![(1, 1), (3, 3)]));
        let permuted = Config {
            nodes: vec![NumaId(3), NumaId(1)],
            ..Config::threads(4)
        };
        assert_eq!(split(&permuted, &sysfs), Ok(vec![(3, 3), (1, 1)]));
        let one = Config {
            nodes: vec![NumaId(3)],
            ..Config::threads(2)
        };
        assert_eq!(split(&one, &sysfs), Ok(vec![(3, 2)]));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let sysfs = lopsided("wrong-config");
        let check = |config: Config, message: &str| {
            assert_eq!(split(&config, &sysfs), Err(message.to_owned()))
        };
        check(
            Config::threads(0),
            "a pool of 0 threads cannot run anything",
        );
        check(
            Config {
                nodes: vec![NumaId(2)],
                ..Config::default()
            },
            "unknown NUMA node 2 (usable: 1, 3)",
        );
        check(
            Config {
                nodes: vec![NumaId(1), NumaId(1)],
                ..Config::default()
            },
            "NUMA node 1 is named twice",
        );
        check(
            Config {
                pin: Pin::Core,
                ..Config::threads(8)
            },
            "2 threads cannot each have a core of NUMA node 1, which has 1",
        );
        check(
            Config::threads(100_000),
            "100000 threads are more than a pool takes (4096)",
        );
    }
}
