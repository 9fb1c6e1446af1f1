use std::path::Path;

use slackwater_wait::{NodeCpus, NumaId, SysfsError, numa_nodes, sysfs_list};
use thiserror::Error;

/// The CPUs of one node that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The number that the operating system gives the node.
    pub id: NumaId,
    /// One group for each physical core, its hardware threads in ascending order; cores in the order of their first.
    pub cores: Vec<Vec<usize>>,
}

/// Nodes, cores and hardware threads, as sysfs tells them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuTopology {
    /// The nodes with at least one usable CPU, by id.
    pub nodes: Vec<Node>,
}

/// Why the topology could not be read.
#[derive(Debug, Error)]
pub enum CpuTopologyError {
    /// A file that cannot be used.
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
    /// None of the CPUs that may be used was found.
    #[error("none of the CPUs {allowed:?} is in the topology")]
    NoCpus {
        /// The CPUs that may be used.
        allowed: Vec<usize>,
    },
}

impl CpuTopology {
    /// Reads sysfs under `root` (`/sys` in production) and keeps the CPUs in `allowed`.
    ///
    /// A system without node directories is one node 0; a CPU without topology files is a core of its own.
    ///
    /// # Errors
    /// Names the file that cannot be read or understood, or says that no allowed CPU was found.
    pub fn read(root: &Path, allowed: &[usize]) -> Result<Self, CpuTopologyError> {
        let mut nodes = Vec::new();
        for (id, cpus) in node_cpus(root, allowed)? {
            let mut cores: Vec<Vec<usize>> = Vec::new();
            for &cpu in cpus.iter().filter(|cpu| allowed.contains(cpu)) {
                if cores.iter().any(|core| core.contains(&cpu)) {
                    continue;
                }
                let mut threads = siblings(root, cpu)?;
                threads.retain(|thread| allowed.contains(thread));
                cores.push(threads);
            }
            if !cores.is_empty() {
                nodes.push(Node { id, cores });
            }
        }
        if nodes.is_empty() {
            return Err(CpuTopologyError::NoCpus {
                allowed: allowed.to_vec(),
            });
        }
        Ok(Self { nodes })
    }
}

impl Node {
    /// All CPUs of the node.
    #[must_use]
    pub fn cpus(&self) -> Vec<usize> {
        self.cores.concat()
    }
}

/// The CPUs of every node that is online.
fn node_cpus(root: &Path, allowed: &[usize]) -> Result<Vec<NodeCpus>, SysfsError> {
    let nodes = numa_nodes(root)?;
    Ok(nodes.unwrap_or_else(|| vec![(NumaId(0), allowed.to_vec())]))
}

/// The hardware threads of the core that `cpu` belongs to.
fn siblings(root: &Path, cpu: usize) -> Result<Vec<usize>, SysfsError> {
    let list = format!("devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    match sysfs_list(&root.join(list)) {
        Err(error) if error.is_missing() => Ok(vec![cpu]),
        other => other,
    }
}

#[cfg(test)]
pub(crate) mod fixture {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// A made-up sysfs, removed with the value.
    pub(crate) struct Sysfs(PathBuf);

    impl Sysfs {
        pub(crate) fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir()
                .join(format!("slackwater-topology-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join("devices/system").join(path);
                fs::create_dir_all(path.parent().expect("a file has a directory"))
                    .expect("the fixture is ours");
                fs::write(path, text).expect("the fixture is ours");
            }
            Self(root)
        }

        pub(crate) fn root(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fixture::Sysfs;
    use super::*;

    fn node(id: u32, cores: &[&[usize]]) -> Node {
        Node {
            id: NumaId(id),
            cores: cores.iter().map(|core| core.to_vec()).collect(),
        }
    }

    #[test]
    fn nodes_with_holes_keep_their_own_numbers() {
        let sysfs = Sysfs::new(
            "holes",
            &[
                ("node/online", "1,3\n"),
                ("node/node1/cpulist", "4-5\n"),
                ("node/node3/cpulist", "0-1\n"),
            ],
        );
        let topology = CpuTopology::read(sysfs.root(), &[0, 1, 4, 5]).unwrap();
        assert_eq!(
            topology.nodes,
            [node(1, &[&[4], &[5]]), node(3, &[&[0], &[1]])]
        );
    }

    #[test]
    fn hardware_threads_of_a_core_stay_together() {
        let sysfs = Sysfs::new(
            "siblings",
            &[
                ("node/online", "0\n"),
                ("node/node0/cpulist", "0-3\n"),
                ("cpu/cpu0/topology/thread_siblings_list", "0,2\n"),
                ("cpu/cpu1/topology/thread_siblings_list", "1,3\n"),
            ],
        );
        let topology = CpuTopology::read(sysfs.root(), &[0, 1, 2, 3]).unwrap();
        assert_eq!(topology.nodes, [node(0, &[&[0, 2], &[1, 3]])]);
        let masked = CpuTopology::read(sysfs.root(), &[0, 2, 3]).unwrap();
        assert_eq!(masked.nodes, [node(0, &[&[0, 2], &[3]])]);
    }

    #[test]
    fn without_node_directories_there_is_one_node() {
        let sysfs = Sysfs::new("flat", &[("cpu/online", "0-1\n")]);
        assert_eq!(
            CpuTopology::read(sysfs.root(), &[0, 1]).unwrap().nodes,
            [node(0, &[&[0], &[1]])]
        );
    }

    #[test]
    fn wrong_files_are_named() {
        let sysfs = Sysfs::new("wrong", &[("node/online", "zero\n")]);
        let error = CpuTopology::read(sysfs.root(), &[0])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("node/online") && error.contains("zero"),
            "{error}"
        );
        let sysfs = Sysfs::new(
            "elsewhere",
            &[("node/online", "0\n"), ("node/node0/cpulist", "0\n")],
        );
        let error = CpuTopology::read(sysfs.root(), &[7])
            .unwrap_err()
            .to_string();
        assert_eq!(error, "none of the CPUs [7] is in the topology");
    }

    #[test]
    fn this_machine_has_a_topology() {
        let allowed = &slackwater_wait::Cpus::current().mask;
        let topology = CpuTopology::read(Path::new("/sys"), allowed).unwrap();
        let mut cpus: Vec<_> = topology.nodes.iter().flat_map(Node::cpus).collect();
        cpus.sort_unstable();
        assert_eq!(&cpus, allowed);
    }
}
