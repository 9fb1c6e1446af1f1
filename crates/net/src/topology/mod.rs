//! The network interfaces that are near each location of memory, as the system tells or a file says.

mod addresses;
mod file;
mod machine;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, Serializer};
use slackwater_base::Location;
use slackwater_wait::{NumaId, SysfsError};
use thiserror::Error;

pub use machine::{Gpu, Interface, Machine, RdmaDevice};

/// What a machine has, and the interfaces of each location of memory: `cpu:N` for the memory of a NUMA node, `cuda:N` for that
/// of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// What the system tells.
    pub machine: Machine,
    /// The interfaces by location, as the system or a file ranks them.
    pub locations: BTreeMap<Location, Ranked>,
    /// Why the interfaces are without addresses, where the kernel does not tell those.
    pub without_addresses: Option<String>,
}

/// The interfaces of a location of memory. Serialized as a list of both lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "(Vec<String>, Vec<String>)")]
pub struct Ranked {
    /// The interfaces to prefer.
    pub near: Vec<String>,
    /// The others, to fall back on.
    pub rest: Vec<String>,
}

/// Why there is no topology.
#[derive(Debug, Error)]
pub enum TopologyError {
    /// The NUMA nodes cannot be read.
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
    /// The file that ranks interfaces cannot be used.
    #[error("topology file {file}: {problem}")]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong, and what the file has to say instead.
        problem: String,
    },
}

impl Topology {
    /// The topology of this machine.
    ///
    /// # Errors
    /// The NUMA nodes cannot be read.
    pub fn of_system() -> Result<Self, TopologyError> {
        Self::told(Path::new("/sys"), addresses::all())
    }

    /// Reads sysfs under `root`, with the addresses that the kernel tells, or without.
    fn told(root: &Path, addresses: io::Result<Vec<(u32, IpAddr)>>) -> Result<Self, TopologyError> {
        let why = |error: io::Error| {
            format!(
                "the kernel tells no addresses of interfaces: {error} (a unit with RestrictAddressFamilies has to name AF_NETLINK)"
            )
        };
        match addresses {
            Ok(addresses) => Self::read(root, &addresses),
            Err(error) => Ok(Self {
                without_addresses: Some(why(error)),
                ..Self::ranked(Machine::read(root, None)?)
            }),
        }
    }

    /// Reads sysfs under `root`. `addresses` are those of interfaces, each with the number of its interface.
    ///
    /// What is missing or makes no sense is unknown, except which NUMA nodes there are.
    ///
    /// # Errors
    /// Names the file of NUMA nodes that cannot be read or understood.
    pub fn read(root: &Path, addresses: &[(u32, IpAddr)]) -> Result<Self, TopologyError> {
        Ok(Self::ranked(Machine::read(root, Some(addresses))?))
    }

    /// The interfaces of each location, as the parts of the machine lie to each other.
    fn ranked(machine: Machine) -> Self {
        let of_nodes = machine.nodes.iter().map(|(node, _)| {
            let near = |one: &Interface| one.node == Some(*node);
            (Location::Cpu(node.0), machine.ranked(near))
        });
        let of_gpus = machine.gpus.iter().map(|gpu| {
            let distances = machine
                .interfaces
                .iter()
                .filter_map(|one| gpu.distance(one));
            let nearest = distances.min();
            let near = |one: &Interface| gpu.shares_node(one) && gpu.distance(one) == nearest;
            (gpu.location(), machine.ranked(near))
        });
        let locations = of_nodes.chain(of_gpus).collect();
        Self {
            machine,
            locations,
            without_addresses: None,
        }
    }

    /// The topology with the locations that a JSON file names ranked as it says: an object of locations, each with two lists of
    /// interfaces, near ones and the rest.
    ///
    /// # Errors
    /// The file cannot be read, is no such object, or names a location or an interface that this machine lacks.
    pub fn ranked_by(mut self, file: &Path) -> Result<Self, TopologyError> {
        let ranked = file::read(file)
            .and_then(|ranked| file::check(&ranked, &self.machine).map(|()| ranked))
            .map_err(|problem| TopologyError::File {
                file: file.to_owned(),
                problem,
            })?;
        self.locations.extend(ranked);
        Ok(self)
    }

    /// The topology with no interface near a GPU, for a process whose GPUs have other numbers than those here.
    #[must_use]
    pub fn with_gpus_unknown(mut self) -> Self {
        let none = self.machine.ranked(|_| false);
        let of_gpus = self
            .locations
            .iter_mut()
            .filter(|(location, _)| matches!(location, Location::Cuda(_)));
        of_gpus.for_each(|(_, ranked)| ranked.clone_from(&none));
        self
    }

    /// The interface with an address.
    #[must_use]
    pub fn interface_of(&self, address: IpAddr) -> Option<&Interface> {
        let mut interfaces = self.machine.interfaces.iter();
        interfaces.find(|one| one.addresses.contains(&address))
    }

    /// The interfaces by the names of locations, as JSON has them.
    #[must_use]
    pub fn by_name(&self) -> BTreeMap<String, &Ranked> {
        let named = |(location, ranked): (&Location, _)| (location.to_string(), ranked);
        self.locations.iter().map(named).collect()
    }

    /// The addresses, of `local`, of the interfaces near a location of memory.
    #[must_use]
    pub fn near(&self, location: Location, local: &[IpAddr]) -> Vec<IpAddr> {
        let Some(ranked) = self.locations.get(&location) else {
            return Vec::new();
        };
        let is_near = |address: &&IpAddr| {
            self.interface_of(**address)
                .is_some_and(|interface| ranked.near.contains(&interface.name))
        };
        local.iter().filter(is_near).copied().collect()
    }
}

impl Machine {
    fn ranked(&self, is_near: impl Fn(&Interface) -> bool) -> Ranked {
        let names = |near: bool| {
            let some = self.interfaces.iter().filter(|one| is_near(one) == near);
            some.map(|one| one.name.clone()).collect()
        };
        Ranked {
            near: names(true),
            rest: names(false),
        }
    }

    /// The CPUs of a node; none for a node that the machine lacks.
    #[must_use]
    pub fn cpus(&self, node: NumaId) -> &[usize] {
        let mut nodes = self.nodes.iter();
        nodes
            .find(|(id, _)| *id == node)
            .map_or(&[], |(_, cpus)| cpus)
    }
}

impl From<(Vec<String>, Vec<String>)> for Ranked {
    fn from((near, rest): (Vec<String>, Vec<String>)) -> Self {
        Self { near, rest }
    }
}

impl Serialize for Ranked {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.near, &self.rest).serialize(serializer)
    }
}
