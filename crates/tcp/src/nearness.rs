//! Which addresses of this host are near which memory, and which loops run near which addresses.

use std::net::IpAddr;
use std::path::Path;

use slackwater_engine::Location;
use slackwater_net::{Interface, Topology};
use slackwater_wait::{Cpus, NodeCpus, NumaId, numa_nodes};

use super::TcpError;
use super::config::TcpConfig;

/// What the topology of the machine means for one mover. By default nothing is nearer than anything else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nearness {
    /// The addresses, of those that connections leave from, that are near a location, and those of which that is unknown.
    /// Locations without a choice are left out.
    near: Vec<(Location, Vec<IpAddr>)>,
    /// The NUMA node and the CPUs of each loop; none where loops run anywhere.
    loops: Vec<NodeCpus>,
    /// The nodes of the addresses that connections have here.
    nodes: Vec<(IpAddr, NumaId)>,
}

impl Nearness {
    /// What this machine's topology means; the machine is looked at only where it can mean something.
    pub(crate) fn of_system(config: &TcpConfig) -> Result<Self, TcpError> {
        let one_node = !matches!(numa_nodes(Path::new("/sys")), Ok(Some(nodes)) if nodes.len() > 1);
        let has_choice = config.local.len() > 1;
        if config.topology.is_none() && !has_choice && one_node {
            return Ok(Self::default());
        }
        let topology = match config.topology() {
            Ok(topology) => topology,
            Err(error) if config.topology.is_some() => {
                return Err(TcpError::Config(error.to_string()));
            }
            Err(error) => {
                tracing::warn!(%error, "no interface is preferred, and event loops run on any NUMA node");
                return Ok(Self::default());
            }
        };
        if let Some(why) = &topology.without_addresses {
            tracing::warn!(
                why,
                "no interface is preferred, and event loops run on any NUMA node"
            );
        }
        if config.topology.is_some() && !has_choice {
            tracing::warn!(
                "topology has no effect: fewer than two addresses in local leave no choice"
            );
        }
        Ok(Self::of(&topology, config, &Cpus::current().mask))
    }

    /// What a topology means for a process that may use the CPUs in `usable`.
    pub(crate) fn of(topology: &Topology, config: &TcpConfig, usable: &[usize]) -> Self {
        // Nothing speaks for or against the addresses of an interface that is not listed, such as a tunnel.
        let (known, unknown): (Vec<IpAddr>, Vec<IpAddr>) = config
            .local
            .iter()
            .partition(|address| topology.interface_of(**address).is_some());
        let mut near: Vec<(Location, Vec<IpAddr>)> = topology
            .locations
            .keys()
            .map(|location| (*location, topology.near(*location, &known)))
            .filter(|(_, near)| !near.is_empty() && near.len() < known.len())
            .map(|(location, near)| (location, [near, unknown.clone()].concat()))
            .collect();
        // Memory of a process that runs on one node alone is of that node.
        let own =
            topology.machine.nodes.iter().find(|(_, cpus)| {
                !usable.is_empty() && usable.iter().all(|cpu| cpus.contains(cpu))
            });
        let own = own.map(|(node, _)| Location::Cpu(node.0));
        let of_own = near.iter().find(|(location, _)| Some(*location) == own);
        near.extend(of_own.map(|(_, near)| (Location::Host, near.clone())));
        let nodes = nodes(topology, config);
        Self {
            loops: loops(topology, &nodes, usable, config.io_threads),
            near,
            nodes,
        }
    }

    /// Addresses that are preferred for memory.
    #[cfg(test)]
    pub(crate) fn preferring(near: Vec<(Location, Vec<IpAddr>)>) -> Self {
        Self {
            near,
            ..Self::default()
        }
    }

    /// Whether no address is preferred for any memory.
    pub(crate) fn is_indifferent(&self) -> bool {
        self.near.is_empty()
    }

    /// The addresses near a location; none where none is preferred.
    pub(crate) fn near(&self, location: Location) -> &[IpAddr] {
        let mut all = self.near.iter();
        all.find(|(of, _)| *of == location)
            .map_or(&[], |(_, near)| near)
    }

    /// Whether loops run on nodes of their own.
    pub(crate) fn places_loops(&self) -> bool {
        !self.loops.is_empty()
    }

    /// The CPUs of a loop; none for any.
    pub(crate) fn cpus(&self, loop_index: usize) -> &[usize] {
        self.loops.get(loop_index).map_or(&[], |(_, cpus)| cpus)
    }

    /// The loop for the connection whose turn is `turn`, of `count` loops: one on the node of the connection's address here
    /// where there is one.
    pub(crate) fn loop_of(&self, address: Option<IpAddr>, turn: usize, count: usize) -> usize {
        let mut nodes = self.nodes.iter();
        let node = nodes
            .find(|(of, _)| Some(*of) == address)
            .map(|(_, node)| *node);
        let turn = turn % count;
        let circle = (turn..self.loops.len()).chain(0..turn);
        let mut on_node = circle
            .filter(|index| self.loops.get(*index).map(|(on, _)| *on) == node && node.is_some());
        on_node.next().unwrap_or(turn)
    }
}

/// The addresses that connections may have here, with the nodes of their interfaces.
fn nodes(topology: &Topology, config: &TcpConfig) -> Vec<(IpAddr, NumaId)> {
    let bound = config.bind.iter().chain(&config.advertise);
    let own: Vec<IpAddr> = bound
        .map(std::net::SocketAddr::ip)
        .chain(config.local.iter().copied())
        .collect();
    let any = own.iter().any(IpAddr::is_unspecified);
    let addresses = |interface: &Interface| {
        let node = interface.node;
        let used = interface.addresses.iter();
        let used = used.filter(|address| any || own.contains(address)).copied();
        let found: Vec<(IpAddr, NumaId)> = used.filter_map(|used| Some((used, node?))).collect();
        found
    };
    topology
        .machine
        .interfaces
        .iter()
        .flat_map(addresses)
        .collect()
}

/// The loops over the nodes of the addresses, in turn; none on a machine with one node, and none where the loops of a node
/// would share a CPU while others of the process are idle.
fn loops(
    topology: &Topology,
    nodes: &[(IpAddr, NumaId)],
    usable: &[usize],
    count: usize,
) -> Vec<NodeCpus> {
    if topology.machine.nodes.len() < 2 {
        return Vec::new();
    }
    let mut ids: Vec<NumaId> = nodes.iter().map(|(_, node)| *node).collect();
    ids.sort_unstable();
    ids.dedup();
    let usable_of = |id: NumaId| {
        let cpus = topology.machine.cpus(id).iter().copied();
        let cpus: Vec<usize> = cpus.filter(|cpu| usable.contains(cpu)).collect();
        (id, cpus)
    };
    let on = ids.into_iter().map(usable_of);
    let on: Vec<NodeCpus> = on.filter(|(_, cpus)| !cpus.is_empty()).collect();
    let nodes = on.len();
    let has_room = |(turn, (_, cpus)): (usize, &NodeCpus)| {
        cpus.len() >= count.saturating_sub(turn).div_ceil(nodes)
    };
    if !on.iter().enumerate().all(has_room) {
        return Vec::new();
    }
    on.into_iter().cycle().take(count).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpListener;
    use std::os::unix::fs::symlink;
    use std::ptr::NonNull;
    use std::sync::Arc;
    use std::time::Duration;

    use slackwater_base::Instant;
    use slackwater_engine::{
        Batch, Buffers, Home, Job, Location, Memory, Mover, RegionSpec, Regions, Submission,
        WhenFull,
    };
    use slackwater_wait::now;
    use slackwater_wire::data::{Rights, Segment};
    use tempfile::TempDir;

    use super::*;
    use crate::Tcp;
    use crate::scheduler::{self, peer};

    /// A machine with an interface for each of the nodes: 10.0.N.1 and 10.0.N.2 are those of node N.
    fn machine(nodes: &[&str]) -> Topology {
        let folder = TempDir::new().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let mut addresses = Vec::new();
        for (node, cpus) in nodes.iter().enumerate() {
            write(&format!("devices/system/node/node{node}/cpulist"), cpus);
            write(&format!("devices/card{node}/numa_node"), &node.to_string());
            write(&format!("class/net/eth{node}/ifindex"), &node.to_string());
            let device = folder.path().join(format!("class/net/eth{node}/device"));
            symlink(folder.path().join(format!("devices/card{node}")), device).unwrap();
            for last in [1, 2] {
                addresses.push((node as u32, IpAddr::from([10, 0, node as u8, last])));
            }
        }
        write(
            "devices/system/node/online",
            &format!("0-{}", nodes.len() - 1),
        );
        Topology::read(folder.path(), &addresses).unwrap()
    }

    fn config(bind: &[&str], local: &[&str]) -> TcpConfig {
        TcpConfig {
            io_threads: 4,
            bind: bind.iter().map(|text| (ip(text), 0).into()).collect(),
            local: local.iter().map(|text| ip(text)).collect(),
            ..TcpConfig::default()
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_near_the_memory_of_the_node_of_their_interface() {
        let machine = machine(&["0-1", "2-3"]);
        let check = |local: &[&str], usable: &[usize], location: Location, near: &[&str]| {
            let nearness = Nearness::of(&machine, &config(&[], local), usable);
            let near: Vec<IpAddr> = near.iter().map(|text| ip(text)).collect();
            assert_eq!(
                nearness.near(location),
                near,
                "{local:?} {usable:?} {location}"
            );
        };
        let (all, both) = (&[0, 1, 2, 3][..], &["10.0.0.1", "10.0.1.1", "10.9.9.9"][..]);
        check(both, all, Location::Cpu(0), &["10.0.0.1", "10.9.9.9"]);
        check(both, all, Location::Cpu(1), &["10.0.1.1", "10.9.9.9"]);
        check(both, all, Location::Cpu(2), &[]);
        check(both, all, Location::Host, &[]);
        check(both, all, Location::Cuda(0), &[]);
        check(both, &[2], Location::Host, &["10.0.1.1", "10.9.9.9"]);
        check(both, &[], Location::Host, &[]);
        check(&["10.0.0.1", "10.0.0.2"], all, Location::Cpu(0), &[]);
        check(&["10.0.0.1", "10.0.0.2"], all, Location::Cpu(1), &[]);
        check(&[], all, Location::Cpu(0), &[]);
    }

    /// The addresses of interfaces that are not listed, such as those of a tunnel, counted as far from all memory: on a machine
    /// with one node, lanes left from the others alone.
    #[test]
    fn on_one_node_no_address_is_preferred() {
        let local = config(&[], &["10.0.0.1", "10.0.0.2", "10.9.9.9"]);
        let nearness = Nearness::of(&machine(&["0-3"]), &local, &[0, 1, 2, 3]);
        assert_eq!(
            nearness,
            Nearness {
                nodes: nearness.nodes.clone(),
                ..Nearness::default()
            }
        );
        assert!(nearness.is_indifferent());
    }

    #[test]
    fn a_file_says_what_is_near() {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("ranked.json");
        fs::write(
            &file,
            r#"{"cpu:0": [["eth1"], []], "cuda:0": [["eth0"], []]}"#,
        )
        .unwrap();
        let machine = machine(&["0-1", "2-3"]).ranked_by(&file).unwrap();
        let local = config(&[], &["10.0.0.1", "10.0.1.1"]);
        let nearness = Nearness::of(&machine, &local, &[0, 1, 2, 3]);
        assert_eq!(nearness.near(Location::Cpu(0)), [ip("10.0.1.1")]);
        assert_eq!(nearness.near(Location::Cpu(1)), [ip("10.0.1.1")]);
        assert_eq!(nearness.near(Location::Cuda(0)), [ip("10.0.0.1")]);
    }

    #[test]
    fn loops_run_on_the_nodes_of_the_interfaces_that_are_used() {
        let check =
            |nodes: &[&str], config: &TcpConfig, usable: &[usize], expected: &[&[usize]]| {
                let nearness = Nearness::of(&machine(nodes), config, usable);
                let found: Vec<&[usize]> = (0..4).map(|index| nearness.cpus(index)).collect();
                let expected: Vec<&[usize]> = match expected {
                    [] => vec![&[]; 4],
                    some => some.iter().copied().cycle().take(4).collect(),
                };
                assert_eq!(found, expected, "{nodes:?} {usable:?}");
            };
        let (two, all) = (&["0-3", "4-7"][..], &[0, 1, 2, 3, 4, 5, 6, 7][..]);
        let (first, second) = (&[0, 1, 2, 3][..], &[4, 5, 6, 7][..]);
        check(two, &config(&["10.0.1.2"], &[]), all, &[second]);
        check(two, &config(&["0.0.0.0"], &[]), all, &[first, second]);
        let some = [1, 2, 4, 5, 6, 7];
        check(two, &config(&["0.0.0.0"], &[]), &some, &[&[1, 2], second]);
        check(two, &config(&["0.0.0.0"], &[]), second, &[second]);
        check(two, &config(&["127.0.0.1"], &["10.0.0.1"]), all, &[first]);
        check(two, &config(&["127.0.0.1"], &[]), all, &[]);
        check(&["0-7"], &config(&["0.0.0.0"], &[]), all, &[]);
        // Loops were placed on one CPU in turns, or all on one node, whatever the others of the process had to do.
        check(two, &config(&["0.0.0.0"], &[]), &all[3..], &[]);
        check(two, &config(&["0.0.0.0"], &[]), &[7], &[]);
        check(two, &config(&["10.0.1.2"], &[]), &all[..7], &[]);
        let advertised = TcpConfig {
            advertise: vec![(ip("10.0.1.1"), 7).into()],
            ..config(&["127.0.0.1"], &[])
        };
        check(two, &advertised, all, &[second]);
    }

    #[test]
    fn a_connection_goes_to_a_loop_on_the_node_of_its_address() {
        let check = |nodes: &[&str], from: Option<&str>, expected: [usize; 5]| {
            let config = config(&["0.0.0.0"], &[]);
            let nearness = Nearness::of(&machine(nodes), &config, &[0, 1, 2, 3]);
            let found = [0, 1, 2, 3, 4].map(|turn| nearness.loop_of(from.map(ip), turn, 4));
            assert_eq!(found, expected, "{nodes:?} {from:?}");
        };
        check(&["0-1", "2-3"], Some("10.0.0.1"), [0, 2, 2, 0, 0]);
        check(&["0-1", "2-3"], Some("10.0.1.2"), [1, 1, 3, 3, 1]);
        check(&["0-1", "2-3"], Some("10.7.7.7"), [0, 1, 2, 3, 0]);
        check(&["0-1", "2-3"], None, [0, 1, 2, 3, 0]);
        check(&["0-3"], Some("10.0.0.1"), [0, 1, 2, 3, 0]);
    }

    /// The turn counts the connections of all nodes, and chose among the loops of one: where the connections of two nodes took
    /// turns, half of the loops of each got none.
    #[test]
    fn connections_of_two_nodes_in_turn_go_to_all_loops() {
        let config = config(&["0.0.0.0"], &[]);
        let nearness = Nearness::of(&machine(&["0-1", "2-3"]), &config, &[0, 1, 2, 3]);
        for addresses in [["10.0.0.1", "10.0.1.1"], ["10.0.1.1", "10.0.0.1"]] {
            let loop_of = |turn: usize| nearness.loop_of(Some(ip(addresses[turn % 2])), turn, 4);
            let mut loops = [0, 1, 2, 3].map(loop_of);
            loops.sort_unstable();
            assert_eq!(loops, [0, 1, 2, 3], "{addresses:?}");
        }
    }

    /// The CPUs of each thread of this process that is called like a loop.
    fn loops() -> Vec<String> {
        let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
        let status =
            threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
        let named = status.filter(|status| status.contains("Name:\ttransfer-"));
        let cpus = named.filter_map(|status| {
            let mut lines = status.lines();
            let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            Some(list.trim().to_owned())
        });
        cpus.collect()
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no CPU sets")]
    fn threads_of_loops_run_where_they_are_placed() {
        let [first, second, ..] = Cpus::current().mask[..] else {
            return;
        };
        let machine = machine(&[&first.to_string(), &second.to_string()]);
        let home = Home::open().unwrap();
        let placed = TcpConfig {
            io_threads: 2,
            bind: Vec::new(),
            advertise: vec![(ip("10.0.0.1"), 7).into(), (ip("10.0.1.1"), 7).into()],
            ..config(&[], &[])
        };
        let nearness = Nearness::of(&machine, &placed, &Cpus::current().mask);
        let mover = Tcp::start_near(&home, placed, nearness).unwrap();
        // No call waits for the first act of a thread, which takes its CPUs.
        let on = |cpu: usize| {
            loops()
                .iter()
                .filter(|list| **list == cpu.to_string())
                .count()
        };
        let until = now() + Duration::from_secs(10);
        while (on(first) < 1 || on(second) < 1) && now() < until {
            std::thread::yield_now();
        }
        assert_eq!((on(first), on(second)), (1, 1));
        drop(mover);
    }

    /// A mover whose scheduler was not told what is near passed all tests.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no sockets")]
    fn a_connection_leaves_from_the_address_near_its_memory() {
        let home = Home::open().unwrap();
        let local = TcpConfig {
            bind: Vec::new(),
            ..config(&[], &["127.0.0.2", "127.0.0.3"])
        };
        let near = vec![
            (Location::Cpu(0), vec![ip("127.0.0.2")]),
            (Location::Cpu(1), vec![ip("127.0.0.3")]),
        ];
        let mover = Tcp::start_near(&home, local, Nearness::preferring(near)).unwrap();
        let (mut regions, mut batches) = (Regions::default(), Vec::new());
        // Each is a peer of its own, which says nothing: the other address would be the next in turn.
        for (number, node, from) in [(1, 1, "127.0.0.3"), (2, 0, "127.0.0.2")] {
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let peer = Segment {
                addresses: vec![listener.local_addr().unwrap()],
                ..Segment::clone(&peer(number))
            };
            let memory = Box::leak(Box::new([0u8; 64]));
            // SAFETY: the memory is leaked, and nothing else uses it.
            let memory =
                unsafe { Memory::borrowed(NonNull::from(memory).cast(), 64, Location::Cpu(node)) };
            let (batch, job) = read(&mut regions, memory, number);
            batches.push(batch);
            let submission = Submission {
                jobs: vec![job],
                when_full: WhenFull::Wait,
            };
            assert!(mover.submit(&Arc::new(peer), submission).is_empty());
            let (_, address) = listener.accept().unwrap();
            assert_eq!(address.ip(), ip(from), "memory of node {node}");
        }
        drop(mover);
    }

    /// A read into memory, from a peer.
    fn read(regions: &mut Regions, memory: Memory, peer: u64) -> (Batch, Job) {
        let bytes = memory.bytes() as u64;
        let spec = RegionSpec {
            memory,
            rights: Rights::BOTH,
            gate: None,
        };
        let region = regions.register(spec).unwrap();
        let buffers = Buffers::held([region.access(0, bytes).unwrap()]);
        scheduler::read(peer, bytes, buffers, Instant::NEVER)
    }

    #[test]
    fn a_wrong_file_of_topology_is_no_start() {
        let wrong = TcpConfig {
            topology: Some("/nowhere/topology.json".into()),
            ..TcpConfig::default()
        };
        let error = Tcp::start(&Home::open().unwrap(), wrong)
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "topology file /nowhere/topology.json: No such file or directory (os error 2)"
        );
    }
}
