//! What sysfs tells of NUMA nodes, network interfaces, RDMA devices and GPUs.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use slackwater_base::Location;
use slackwater_wait::{Cpus, NodeCpus, NumaId, SysfsError, numa_nodes, sysfs_text};

/// Parts of a machine that matter to where bytes go out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The NUMA nodes that are online, by number, with all their CPUs. A system that knows none has node 0.
    pub nodes: Vec<NodeCpus>,
    /// The network interfaces, by name: those on hardware, or else those with an address that others reach, as a container has.
    /// Where the kernel tells no addresses, the latter are all that are no loopback.
    pub interfaces: Vec<Interface>,
    /// The RDMA devices, by name.
    pub rdma: Vec<RdmaDevice>,
    /// The GPUs with the driver of CUDA, by PCI address.
    pub gpus: Vec<Gpu>,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its NUMA node; none where that is unknown, or where it is made of interfaces of several nodes.
    pub node: Option<NumaId>,
    /// Its speed in Mbit/s, if it tells.
    pub speed: Option<u32>,
    /// `up`, `down` and the like, as the kernel names it.
    pub state: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The PCI paths of the hardware beneath it.
    paths: Vec<PciPath>,
}

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaDevice {
    /// Its name.
    pub name: String,
    /// Its NUMA node, if known.
    pub node: Option<NumaId>,
    /// The network interfaces of the same hardware.
    pub interfaces: Vec<String>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number, in the order of PCI addresses: the `N` of `cuda:N`.
    pub index: u32,
    /// Its PCI address.
    pub address: String,
    /// Its NUMA node, if known.
    pub node: Option<NumaId>,
    path: PciPath,
}

impl Gpu {
    /// The place of its memory, where CUDA numbers the GPUs in that order.
    #[must_use]
    pub fn location(&self) -> Location {
        Location::Cuda(self.index)
    }
}

/// The PCI devices from the root of a bus down to one, that one included.
type PciPath = Vec<String>;

/// Entries of one folder that are looked at.
const ENTRIES_MAX: usize = 4096;
/// Interfaces under one another, such as a VLAN on a bond on two ports.
const LAYERS_MAX: u32 = 4;
/// The kind of a loopback interface (linux/if_arp.h).
const ARPHRD_LOOPBACK: u32 = 772;
const VENDOR_NVIDIA: &str = "0x10de";
/// The first byte of a PCI class: display controllers, of which 3D controllers are a kind.
const CLASS_DISPLAY: &str = "0x03";

impl Machine {
    /// Without `addresses` those of all interfaces are unknown.
    pub(super) fn read(
        root: &Path,
        addresses: Option<&[(u32, IpAddr)]>,
    ) -> Result<Self, SysfsError> {
        // Links within it lead to real paths.
        let root = &fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
        let nodes = match numa_nodes(root)? {
            Some(nodes) if !nodes.is_empty() => nodes,
            _ => vec![(NumaId(0), Cpus::current().mask.clone())],
        };
        let sysfs = Sysfs { root, nodes };
        let interfaces = sysfs.interfaces(addresses);
        Ok(Self {
            rdma: sysfs.rdma(),
            gpus: sysfs.gpus(),
            interfaces,
            nodes: sysfs.nodes,
        })
    }
}

impl Interface {
    fn is_reached(&self) -> bool {
        self.addresses.iter().any(|address| {
            !address.is_loopback()
                && match address {
                    IpAddr::V4(_) => true,
                    IpAddr::V6(address) => !address.is_unicast_link_local(),
                }
        })
    }
}

impl Gpu {
    /// Whether an interface is of the same NUMA node.
    pub(super) fn shares_node(&self, interface: &Interface) -> bool {
        self.node.is_some() && self.node == interface.node
    }

    /// The steps over PCI from the GPU to an interface of its NUMA node; none where one of them is not there.
    pub(super) fn distance(&self, interface: &Interface) -> Option<usize> {
        if !self.shares_node(interface) {
            return None;
        }
        let distances = interface
            .paths
            .iter()
            .filter_map(|path| distance(&self.path, path));
        distances.min()
    }
}

/// The steps from one PCI device up to the last that both are below, and down to the other; none where there is none.
fn distance(one: &[String], other: &[String]) -> Option<usize> {
    if one.is_empty() || other.is_empty() {
        return None;
    }
    let shared = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    Some(one.len() + other.len() - 2 * shared)
}

struct Sysfs<'a> {
    root: &'a Path,
    nodes: Vec<NodeCpus>,
}

impl Sysfs<'_> {
    fn interfaces(&self, addresses: Option<&[(u32, IpAddr)]>) -> Vec<Interface> {
        let folder = self.root.join("class/net");
        let (mut hard, mut soft) = (Vec::new(), Vec::new());
        for name in names(&folder) {
            let dir = folder.join(&name);
            let mut devices = Vec::new();
            self.devices_beneath(&dir, LAYERS_MAX, &mut devices);
            let index: Option<u32> = number(&dir.join("ifindex"));
            let told = addresses.unwrap_or_default().iter();
            let own = told.filter(|(of, _)| Some(*of) == index);
            let kind: Option<u32> = number(&dir.join("type"));
            let may_be_reached = addresses.is_none() && kind != Some(ARPHRD_LOOPBACK);
            let interface = Interface {
                node: self.common_node(&devices),
                // -1 where the driver does not tell.
                speed: number(&dir.join("speed")).filter(|mbits| *mbits > 0),
                state: text(&dir.join("operstate")).unwrap_or_else(|| "unknown".to_owned()),
                addresses: own.map(|(_, address)| *address).collect(),
                paths: devices.iter().map(|device| self.pci_path(device)).collect(),
                name,
            };
            match devices.is_empty() {
                false => hard.push(interface),
                true if interface.is_reached() || may_be_reached => soft.push(interface),
                true => {}
            }
        }
        if hard.is_empty() { soft } else { hard }
    }

    fn rdma(&self) -> Vec<RdmaDevice> {
        let folder = self.root.join("class/infiniband");
        let device = |name: String| {
            let dir = folder.join(&name);
            let device = self.device(&dir);
            RdmaDevice {
                node: self.common_node(device.as_slice()),
                interfaces: names(&dir.join("device/net")),
                name,
            }
        };
        names(&folder).into_iter().map(device).collect()
    }

    fn gpus(&self) -> Vec<Gpu> {
        let folder = self.root.join("bus/pci/devices");
        let is_gpu = |name: &String| {
            let dir = folder.join(name);
            let is =
                |file, start| text(&dir.join(file)).is_some_and(|text| text.starts_with(start));
            let driver = fs::read_link(dir.join("driver")).ok();
            // A GPU that was given to a virtual machine has another driver, and CUDA does not count it.
            let by_nvidia = driver.is_some_and(|driver| driver.ends_with("nvidia"));
            by_nvidia && is("vendor", VENDOR_NVIDIA) && is("class", CLASS_DISPLAY)
        };
        let gpu = |(index, address): (u32, String)| {
            let device = self.inside(&folder.join(&address));
            Gpu {
                index,
                node: self.common_node(device.as_slice()),
                path: device.map_or_else(Vec::new, |device| self.pci_path(&device)),
                address,
            }
        };
        (0..)
            .zip(names(&folder).into_iter().filter(is_gpu))
            .map(gpu)
            .collect()
    }

    /// The hardware of an interface: its own, or that of the interfaces that it is made of.
    fn devices_beneath(&self, dir: &Path, layers: u32, found: &mut Vec<PathBuf>) {
        if let Some(device) = self.device(dir) {
            if !found.contains(&device) {
                found.push(device);
            }
            return;
        }
        if layers == 0 || found.len() >= ENTRIES_MAX {
            return;
        }
        for lower in names(dir).iter().filter(|name| name.starts_with("lower_")) {
            self.devices_beneath(&dir.join(lower), layers - 1, found);
        }
    }

    /// The device that an entry of a class stands for.
    fn device(&self, dir: &Path) -> Option<PathBuf> {
        self.inside(&dir.join("device"))
    }

    /// The real path, within the root.
    fn inside(&self, path: &Path) -> Option<PathBuf> {
        let real = fs::canonicalize(path).ok();
        real.filter(|real| real.starts_with(self.root))
    }

    /// The NUMA node of all of the devices.
    fn common_node(&self, devices: &[PathBuf]) -> Option<NumaId> {
        // The kernel often says nothing where there is no choice.
        if let [(only, _)] = self.nodes.as_slice() {
            return Some(*only);
        }
        let mut nodes = devices.iter().map(|device| self.node(device));
        let first = nodes.next()??;
        nodes.all(|node| node == Some(first)).then_some(first)
    }

    /// The node of a device or of the closest device above it: of one on virtio, only the PCI device has one.
    fn node(&self, device: &Path) -> Option<NumaId> {
        device
            .ancestors()
            .take_while(|dir| *dir != self.root)
            .filter_map(|dir| number(&dir.join("numa_node")))
            .map(NumaId)
            .find(|node| self.nodes.iter().any(|(id, _)| id == node))
    }

    fn pci_path(&self, device: &Path) -> PciPath {
        let below = device.strip_prefix(self.root).unwrap_or(device);
        let names = below.iter().filter_map(|name| name.to_str());
        let is_pci = |name: &&str| name.starts_with("pci") || is_pci_address(name);
        names.filter(is_pci).map(str::to_owned).collect()
    }
}

/// Whether a name is one of a PCI device, such as `0000:3b:00.0`.
fn is_pci_address(name: &str) -> bool {
    let mut parts = name.split([':', '.']);
    parts.clone().count() == 4
        && parts.all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The names in a folder, in order; none where it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.take(ENTRIES_MAX).collect();
    names.sort_unstable();
    names
}

fn text(path: &Path) -> Option<String> {
    let text = sysfs_text(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty() && text.len() <= TEXT_MAX)
}

/// The longest attribute that is used here.
const TEXT_MAX: usize = 64;

fn number(path: &Path) -> Option<u32> {
    text(path)?.parse().ok()
}
