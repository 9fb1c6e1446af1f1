//! Machines that are made of folders and links, as sysfs would show them.

use std::fs;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use super::*;

/// A made-up sysfs, removed with the value.
struct Sysfs(TempDir);

impl Sysfs {
    fn new() -> Self {
        let within = tempfile::tempdir().unwrap();
        fs::create_dir(within.path().join("sys")).unwrap();
        Self(within)
    }

    fn with(self, path: &str, bytes: impl AsRef<[u8]>) -> Self {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
        self
    }

    fn nodes(self, nodes: &[(u32, &str)]) -> Self {
        let ids: Vec<String> = nodes.iter().map(|(id, _)| id.to_string()).collect();
        let start = self.with("devices/system/node/online", ids.join(","));
        nodes.iter().fold(start, |sysfs, (id, cpus)| {
            sysfs.with(&format!("devices/system/node/node{id}/cpulist"), cpus)
        })
    }

    /// A link to a folder, which is made if it is not there.
    fn link(self, from: &str, to: &str) -> Self {
        let (from, to) = (self.root().join(from), self.root().join(to));
        fs::create_dir_all(&to).unwrap();
        fs::create_dir_all(from.parent().unwrap()).unwrap();
        symlink(to, from).unwrap();
        self
    }

    /// An interface on a device.
    fn interface(self, name: &str, index: u32, device: &str) -> Self {
        let own = format!("{device}/net/{name}");
        self.with(&format!("{own}/ifindex"), format!("{index}\n"))
            .with(&format!("{own}/operstate"), "up\n")
            .with(&format!("{own}/speed"), "100000\n")
            .link(&format!("{own}/device"), device)
            .link(&format!("class/net/{name}"), &own)
    }

    /// An interface without a device, on others.
    fn on(self, name: &str, index: u32, lower: &[&str]) -> Self {
        let own = format!("devices/virtual/net/{name}");
        let start = self
            .with(&format!("{own}/ifindex"), index.to_string())
            .link(&format!("class/net/{name}"), &own);
        lower.iter().fold(start, |sysfs, lower| {
            let from = sysfs.root().join(format!("{own}/lower_{lower}"));
            symlink(sysfs.root().join("class/net").join(lower), from).unwrap();
            sysfs
        })
    }

    fn gpu(self, address: &str, device: &str, driver: &str) -> Self {
        self.with(&format!("{device}/vendor"), "0x10de\n")
            .with(&format!("{device}/class"), "0x030200\n")
            .link(
                &format!("{device}/driver"),
                &format!("bus/pci/drivers/{driver}"),
            )
            .link(&format!("bus/pci/devices/{address}"), device)
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("sys")
    }

    fn read(&self, addresses: &[(u32, &str)]) -> Topology {
        let addresses = addresses
            .iter()
            .map(|(index, address)| (*index, address.parse().unwrap()))
            .collect::<Vec<(u32, IpAddr)>>();
        Topology::read(&self.root(), &addresses).unwrap()
    }
}

const NEAR_A: &str = "devices/pci0000:00/0000:00:01.0/0000:01:00.0";
const NEAR_B: &str = "devices/pci0000:00/0000:00:02.0/0000:02:00.0";
const FAR_A: &str = "devices/pci0000:80/0000:80:01.0/0000:81:00.0";
const FAR_B: &str = "devices/pci0000:80/0000:80:01.0/0000:82:00.0";

/// Two sockets with two interfaces and one GPU each; the first GPU shares a PCI switch with the second interface.
fn two_sockets() -> Sysfs {
    let devices = [(NEAR_A, 0), (NEAR_B, 0), (FAR_A, 1), (FAR_B, 1)];
    let first_gpu = "devices/pci0000:00/0000:00:02.0/0000:03:00.0";
    let second_gpu = "devices/pci0000:80/0000:80:01.0/0000:83:00.0";
    let sysfs = [(first_gpu, 0), (second_gpu, 1)]
        .into_iter()
        .chain(devices)
        .fold(Sysfs::new(), |sysfs, (device, node)| {
            sysfs.with(&format!("{device}/numa_node"), format!("{node}\n"))
        });
    sysfs
        .nodes(&[(0, "0-3"), (1, "4-7")])
        .interface("eth0", 2, NEAR_A)
        .interface("eth1", 3, NEAR_B)
        .interface("eth2", 4, FAR_A)
        .interface("eth3", 5, FAR_B)
        .gpu("0000:03:00.0", first_gpu, "nvidia")
        .gpu("0000:83:00.0", second_gpu, "nvidia")
        .on("lo", 1, &[])
}

/// `cpu:0 eth0,eth1 | eth2` and so on.
fn lines(topology: &Topology) -> Vec<String> {
    let ranked = topology.locations.iter();
    ranked
        .map(|(location, Ranked { near, rest })| {
            format!("{location} {} | {}", near.join(","), rest.join(","))
        })
        .collect()
}

#[test]
fn interfaces_are_ranked_by_node_and_for_gpus_by_steps_over_pci() {
    let sysfs = two_sockets();
    let topology = sysfs.read(&[
        (1, "127.0.0.1"),
        (2, "10.0.0.1"),
        (2, "fd00::1"),
        (5, "10.0.3.1"),
    ]);
    assert_eq!(
        lines(&topology),
        [
            "cpu:0 eth0,eth1 | eth2,eth3",
            "cpu:1 eth2,eth3 | eth0,eth1",
            "cuda:0 eth1 | eth0,eth2,eth3",
            "cuda:1 eth2,eth3 | eth0,eth1",
        ]
    );
    let first = &topology.machine.interfaces[0];
    assert_eq!((first.node, first.speed), (Some(NumaId(0)), Some(100_000)));
    assert_eq!(first.state, "up");
    let local: Vec<IpAddr> = ["10.0.0.1", "fd00::1", "10.0.3.1", "10.7.7.7"]
        .map(|text| text.parse().unwrap())
        .to_vec();
    assert_eq!(topology.near(Location::Cpu(0), &local), local[..2]);
    assert_eq!(topology.near(Location::Cpu(1), &local), local[2..3]);
    assert!(topology.near(Location::Cpu(7), &local).is_empty());
    assert_eq!(topology.machine.cpus(NumaId(1)), [4, 5, 6, 7]);
    let json = serde_json::to_string(topology.by_name()["cuda:0"]).unwrap();
    assert_eq!(json, r#"[["eth1"],["eth0","eth2","eth3"]]"#);
}

#[test]
fn on_one_node_every_interface_is_near() {
    // A device on virtio: the kernel says -1, and only for the PCI device above it.
    let device = "devices/pci0000:00/0000:00:03.0/virtio2";
    let sysfs = Sysfs::new()
        .nodes(&[(0, "0-1")])
        .with("devices/pci0000:00/0000:00:03.0/numa_node", "-1\n")
        .interface("eth0", 2, device)
        .with(&format!("{device}/net/eth0/speed"), "-1\n")
        .on("ifb0", 3, &[]);
    let topology = sysfs.read(&[]);
    assert_eq!(lines(&topology), ["cpu:0 eth0 | "]);
    assert_eq!(topology.machine.interfaces[0].speed, None);
}

#[test]
fn a_bond_is_of_the_node_of_its_ports_and_a_vlan_of_that_of_its_bond() {
    let sysfs = two_sockets()
        .on("bond0", 10, &["eth0", "eth1"])
        .on("bond0.7", 11, &["bond0"])
        .on("bond1", 12, &["eth0", "eth3"]);
    let topology = sysfs.read(&[]);
    assert_eq!(
        lines(&topology)[0],
        "cpu:0 bond0,bond0.7,eth0,eth1 | bond1,eth2,eth3"
    );
    assert_eq!(
        lines(&topology)[1],
        "cpu:1 eth2,eth3 | bond0,bond0.7,bond1,eth0,eth1"
    );
    assert_eq!(
        lines(&topology)[2],
        "cuda:0 bond0,bond0.7,eth1 | bond1,eth0,eth2,eth3"
    );
}

#[test]
fn a_container_has_the_interfaces_that_others_reach() {
    let sysfs = Sysfs::new()
        .nodes(&[(0, "0"), (1, "1")])
        .on("lo", 1, &[])
        .on("eth0", 2, &[])
        .on("tunl0", 3, &[])
        .on("veth1", 4, &[]);
    let topology = sysfs.read(&[(1, "127.0.0.1"), (2, "172.17.0.2"), (4, "fe80::1")]);
    assert_eq!(lines(&topology), ["cpu:0  | eth0", "cpu:1  | eth0"]);
    assert_eq!(topology.machine.interfaces[0].node, None);
}

#[test]
fn gpus_are_those_that_cuda_would_count() {
    let sysfs = two_sockets()
        .gpu("0000:02:00.0", NEAR_B, "vfio-pci")
        .gpu("0000:01:00.0", NEAR_A, "nvidia")
        .with(&format!("{NEAR_A}/class"), "0x040300\n");
    let gpus = sysfs.read(&[]).machine.gpus;
    let found: Vec<(u32, &str)> = gpus
        .iter()
        .map(|gpu| (gpu.index, gpu.address.as_str()))
        .collect();
    assert_eq!(found, [(0, "0000:03:00.0"), (1, "0000:83:00.0")]);
}

#[test]
fn rdma_devices_are_told_with_the_interfaces_of_their_hardware() {
    let sysfs = two_sockets()
        .link("class/infiniband/mlx5_1/device", FAR_A)
        .link(
            "class/infiniband/mlx5_9/device",
            "devices/pci0000:00/0000:00:09.0",
        );
    let rdma = sysfs.read(&[]).machine.rdma;
    let expected = [
        ("mlx5_1", Some(NumaId(1)), vec!["eth2".to_owned()]),
        ("mlx5_9", None, vec![]),
    ]
    .map(|(name, node, interfaces)| RdmaDevice {
        name: name.to_owned(),
        node,
        interfaces,
    });
    assert_eq!(rdma, expected);
}

#[test]
fn a_system_that_tells_nothing_has_one_node_and_no_interfaces() {
    let sysfs = Sysfs::new();
    let topology = sysfs.read(&[(2, "10.0.0.1")]);
    assert_eq!(lines(&topology), ["cpu:0  | "]);
    assert_eq!(
        topology.machine.nodes[0].1,
        slackwater_wait::Cpus::current().mask
    );
}

#[test]
fn what_makes_no_sense_is_unknown() {
    let huge = "9".repeat(1 << 20);
    let check = |node: &[u8]| {
        let sysfs = two_sockets()
            .with(&format!("{NEAR_A}/numa_node"), node)
            .with(&format!("{NEAR_A}/net/eth0/speed"), node)
            .with(&format!("{NEAR_A}/net/eth0/operstate"), node);
        let topology = sysfs.read(&[]);
        let eth0 = &topology.machine.interfaces[0];
        assert_eq!((eth0.node, eth0.name.as_str()), (None, "eth0"));
        assert!(eth0.state.len() <= 64, "{}", eth0.state);
        assert_eq!(lines(&topology)[0], "cpu:0 eth1 | eth0,eth2,eth3");
    };
    for node in ["", "-1\n", "7\n", "99999999999\n", "0 0\n", "zero", &huge] {
        check(node.as_bytes());
    }
    check(b"\xff\xfe");
    check(b"0\0");

    let sysfs = two_sockets()
        .link("class/net/away/device", "../elsewhere")
        .with("class/net/bonding_masters", "bond0\n");
    symlink("loop", sysfs.root().join("class/net/loop")).unwrap();
    let unnamed = std::ffi::OsStr::from_bytes(b"eth\xff");
    symlink(NEAR_A, sysfs.root().join("class/net").join(unnamed)).unwrap();
    let found = sysfs.read(&[]).machine.interfaces;
    let found: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(found, ["eth0", "eth1", "eth2", "eth3"]);
}

#[test]
fn interfaces_on_one_another_in_a_circle_have_no_hardware() {
    let sysfs = Sysfs::new()
        .on("a", 2, &["b"])
        .on("b", 3, &["a"])
        .nodes(&[(0, "0"), (1, "1")]);
    assert_eq!(sysfs.read(&[]).machine.interfaces, []);
}

#[test]
fn a_wrong_list_of_nodes_is_named() {
    let check = |list: &str, file: &str| {
        let sysfs = two_sockets().with("devices/system/node/online", list);
        let error = Topology::read(&sysfs.root(), &[]).unwrap_err().to_string();
        assert!(error.contains(file), "{list}: {error}");
    };
    check("zero", "node/online is no CPU list: `zero`");
    check("0-1048576", "node/node2/cpulist: No such file");
    check("0,5", "node/node5/cpulist");
}

fn ranked_by(text: impl AsRef<[u8]>) -> Result<Topology, String> {
    let sysfs = two_sockets().with("ranked.json", text);
    let file = sysfs.root().join("ranked.json");
    let ranked = sysfs.read(&[]).ranked_by(&file);
    ranked.map_err(|error| {
        error
            .to_string()
            .replace(&file.display().to_string(), "FILE")
    })
}

#[test]
fn a_file_ranks_the_places_that_it_names() {
    let ranked =
        ranked_by(r#" {"cpu:1": [["eth0"], ["eth3", "eth2"]], "cuda:5": [[], ["eth1"]]} "#);
    assert_eq!(
        lines(&ranked.unwrap()),
        [
            "cpu:0 eth0,eth1 | eth2,eth3",
            "cpu:1 eth0 | eth3,eth2",
            "cuda:0 eth1 | eth0,eth2,eth3",
            "cuda:1 eth2,eth3 | eth0,eth1",
            "cuda:5  | eth1",
        ]
    );
}

#[test]
fn a_wrong_file_says_what_is_wrong_and_what_is_right() {
    let check = |text: &[u8], problem: &str| {
        let error = ranked_by(text).unwrap_err();
        let (file, found) = error.split_once(": ").unwrap();
        assert_eq!(file, "topology file FILE");
        assert!(found.contains(problem), "{found}");
    };
    let shape = r#"expected {"cpu:0": [["near interface", …], ["another", …]], …}"#;
    check(b"", shape);
    check(b"[]", shape);
    check(b"{\"cpu:0\": [[\"eth0\"]]}", shape);
    check(b"{\"cpu:0\": [[\"eth0\"], [7]]}", "line 1 column 23");
    check(b"{\"cpu:0\": [[], [], []]}", "trailing");
    check(b"{} x", "trailing");
    check(b"\xff", "UTF-8");
    check(&vec![b' '; (1 << 20) + 1], "more than 1048576 bytes");
    check(
        b"{\"cpu:0\": [[\"eth9\"], []]}",
        "cpu:0: this machine has no interface `eth9` (it has: eth0, eth1, eth2, eth3)",
    );
    check(
        b"{\"cpu:2\": [[], []]}",
        "`cpu:2`: this machine has no NUMA node 2 (it has: 0, 1)",
    );
    check(
        b"{\"cpu:0\": [[\"eth0\"], [\"eth0\"]]}",
        "cpu:0: `eth0` is there twice",
    );
    check(
        b"{\"cpu:0\": [[], []], \"cpu:0\": [[], []]}",
        "`cpu:0` is there twice",
    );
    for location in [
        "gpu:0", "cpu", "cpu:", "cpu:-1", "cpu:01", "cpu:+1", "cuda:x", "*",
    ] {
        let text = format!("{{\"{location}\": [[], []]}}");
        check(
            text.as_bytes(),
            "write `cpu:N` for a NUMA node or `cuda:N` for a GPU",
        );
    }
    let missing = two_sockets()
        .read(&[])
        .ranked_by(Path::new("/nowhere/x.json"));
    let error = missing.unwrap_err().to_string();
    assert_eq!(
        error,
        "topology file /nowhere/x.json: No such file or directory (os error 2)"
    );
}

/// Where the kernel refuses to tell addresses there was no topology at all, although sysfs has the names.
#[test]
fn interfaces_have_names_where_the_kernel_tells_no_addresses() {
    let refused = || Err(io::Error::from_raw_os_error(97));
    let container = || {
        Sysfs::new()
            .on("eth0", 2, &[])
            .on("lo", 1, &[])
            .with("devices/virtual/net/lo/type", "772\n")
            .with("devices/virtual/net/eth0/type", "1\n")
    };
    for (sysfs, expected) in [
        (two_sockets(), &["eth0", "eth1", "eth2", "eth3"][..]),
        (container(), &["eth0"]),
    ] {
        let topology = Topology::told(&sysfs.root(), refused()).unwrap();
        let interfaces = &topology.machine.interfaces;
        let names: Vec<&str> = interfaces.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, expected);
        assert!(interfaces.iter().all(|one| one.addresses.is_empty()));
        assert_eq!(
            topology.without_addresses.as_deref(),
            Some(
                "the kernel tells no addresses of interfaces: Address family not supported by protocol (os error 97) (a unit with RestrictAddressFamilies has to name AF_NETLINK)"
            )
        );
        let told = Topology::told(&sysfs.root(), Ok(Vec::new())).unwrap();
        assert_eq!(told, sysfs.read(&[]));
        assert_eq!(told.without_addresses, None);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no sysfs")]
fn this_machine_has_a_topology() {
    let topology = Topology::of_system().unwrap();
    assert!(!topology.machine.nodes.is_empty());
    let named = |location: &Ranked| location.near.len() + location.rest.len();
    let all = topology.machine.interfaces.len();
    assert!(
        topology
            .locations
            .values()
            .all(|location| named(location) == all),
        "{topology:?}"
    );
}
