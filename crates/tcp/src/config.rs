use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use slackwater_base::{Backoff, Jitter};
use slackwater_data_plane::protocol::{InitiatorLimits, ResponderLimits};
use slackwater_engine::SealConfig;
use slackwater_net::{LocalPorts, Topology, TopologyError};
use slackwater_wire::data::Segment;

/// How the TCP mover works; section `transfer.tcp` of the configuration.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Event loops, each with its thread and its own acceptor.
    pub io_threads: usize,
    /// Transfers under way at once, over all peers; further ones are queued.
    pub max_transfers: usize,
    /// Connections to one peer; where addresses of `local` are near memory of several NUMA nodes, for the memory of each, and as many
    /// from other addresses where those have much to do.
    pub lanes_per_peer: usize,
    /// Payload of one frame.
    pub slice_bytes: usize,
    /// Requests beyond this are spread over lanes.
    pub stripe_bytes_min: u64,
    /// For one connection attempt.
    pub connect_timeout: Duration,
    /// A peer that is not authenticated within this time is disconnected.
    pub greeting_timeout: Duration,
    /// Lanes that were idle for this long are closed.
    pub idle_timeout: Duration,
    /// Connections of peers that were idle for this long are closed.
    pub served_idle_timeout: Duration,
    /// How often idle lanes are collected, while there are lanes. Connections beyond a few that carried requests of callers
    /// are closed when none has borrowed them for this long.
    pub gc_interval: Duration,
    /// A connection on which no byte moves for this long, with requests under way, is closed, by either end.
    pub progress_timeout: Duration,
    /// How long an acknowledgement may take after the last byte of a write.
    pub ack_timeout: Duration,
    /// How long a cancelled write may wait for the target's answer before its connection is closed.
    pub drain_timeout: Duration,
    /// Pauses between attempts to connect.
    pub retry: Backoff,
    /// An address that failed rests at most this long while others are tried.
    pub address_rest: Duration,
    /// Small requests of a crowd of callers go together; a caller whose request has waited this long for another caller takes
    /// what is queued to a connection of its own.
    pub crowd_patience: Duration,
    /// Bytes queued for one peer.
    pub queue_bytes: u64,
    /// Requests queued for one peer.
    pub queue_entries: usize,
    /// Send and receive buffers of a connection beyond this machine: they bridge its round trip.
    pub socket_buffer_bytes: usize,
    /// Send and receive buffers of a connection within this machine, where bytes are best read while they are in a
    /// cache.
    pub loopback_buffer_bytes: usize,
    /// Connections that one loop accepts, from all peers.
    pub connections_max: usize,
    /// Connections of one peer, over all loops: of one key when they are sealed, which several processes may share, else of
    /// one incarnation. A process has up to 68 with callers, besides its lanes.
    pub connections_per_peer_max: usize,
    /// Requests of one connection that are served at once; a peer learns it in the greeting.
    pub requests_max: u32,
    /// Bytes of the requests of one connection that are served at once, at least 64 MiB; a peer learns it in the greeting.
    pub in_flight_bytes_max: u64,
    /// The addresses to listen on; port 0 means a free one. None for an engine that only initiates.
    pub bind: Vec<SocketAddr>,
    /// The addresses to publish instead of those that are listened on.
    pub advertise: Vec<SocketAddr>,
    /// Addresses of this host that connections leave from, one for each network that shall be used; each is paired with the
    /// addresses of a peer that are of its family. None for those that the kernel chooses.
    pub local: Vec<IpAddr>,
    /// A JSON file that says which interfaces are near which memory, for those locations that it names; `slackwater topology
    /// --file` checks one. Connections leave from addresses of `local` that are near the memory of a transfer, and from the
    /// others where those fail or have much to do.
    pub topology: Option<PathBuf>,
    /// The ports that connections leave from, where a firewall lets only some through; one of them serves connections to
    /// many peers. None for those that the kernel chooses.
    pub local_ports: Option<LocalPorts>,
    /// Seals every connection, in both directions. None sends bytes unencrypted, which is for this machine alone.
    pub seal: Option<SealConfig>,
    /// Allows unencrypted connections beyond this machine.
    pub insecure: bool,
}

impl TcpConfig {
    /// The topology of this machine, with the locations that the file of `topology` names ranked as it says. Where CUDA numbers the
    /// GPUs of this process otherwise, nothing is near any that the file does not name.
    ///
    /// # Errors
    /// The system does not tell it, or the file is wrong for this machine.
    pub fn topology(&self) -> Result<Topology, TopologyError> {
        self.rank(Topology::of_system()?, |name| std::env::var_os(name))
    }

    fn rank(
        &self,
        mut topology: Topology,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Topology, TopologyError> {
        // The topology counts all GPUs in the order of their PCI addresses.
        let others = variable("CUDA_VISIBLE_DEVICES").is_some();
        let order = variable("CUDA_DEVICE_ORDER").unwrap_or_else(|| "PCI_BUS_ID".into());
        if others || order != "PCI_BUS_ID" {
            topology = topology.with_gpus_unknown();
        }
        match &self.topology {
            Some(file) => topology.ranked_by(file),
            None => Ok(topology),
        }
    }

    /// Send and receive buffers of a connection to an address.
    pub(crate) fn buffer_bytes(&self, peer: IpAddr) -> usize {
        if peer.is_loopback() {
            self.loopback_buffer_bytes
        } else {
            self.socket_buffer_bytes
        }
    }

    /// What the initiator's end of a connection to `peer` keeps to.
    pub(crate) fn initiator_limits(&self, peer: &Segment) -> InitiatorLimits {
        InitiatorLimits {
            peer: peer.incarnation,
            slice_bytes: self.slice_bytes,
            requests_max: self.requests_max,
            progress_timeout: self.progress_timeout,
            ack_timeout: self.ack_timeout,
            drain_timeout: self.drain_timeout,
            idle_timeout: self.idle_timeout,
            gc_interval: self.gc_interval,
        }
    }

    /// What the target's ends of connections keep to.
    pub(crate) fn responder_limits(&self) -> ResponderLimits {
        ResponderLimits {
            slice_bytes: self.slice_bytes,
            requests_max: self.requests_max as usize,
            in_flight_bytes_max: self.in_flight_bytes_max,
            progress_timeout: self.progress_timeout,
            idle_timeout: self.served_idle_timeout,
            grace: self.drain_timeout,
        }
    }

    /// Whether bytes may go to an address of a peer: it is within this machine, the connection is sealed, or the
    /// operator allows unencrypted ones.
    pub(crate) fn may_reach(&self, peer: &Segment, address: &SocketAddr) -> bool {
        let sealed = self.seal.is_some() && peer.public_key.is_some();
        address.ip().is_loopback() || sealed || self.insecure
    }
}

impl Default for TcpConfig {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            io_threads: cpus.min(8),
            max_transfers: 64,
            lanes_per_peer: 4,
            slice_bytes: 1 << 20,
            stripe_bytes_min: 1 << 20,
            connect_timeout: Duration::from_secs(5),
            greeting_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(60),
            served_idle_timeout: Duration::from_secs(120),
            gc_interval: Duration::from_secs(5),
            progress_timeout: Duration::from_secs(30),
            ack_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(1),
            retry: Backoff::doubling(Duration::from_millis(100), Duration::from_secs(2))
                .with_jitter(Jitter::UpperHalf),
            address_rest: Duration::from_secs(30),
            crowd_patience: Duration::from_millis(5),
            queue_bytes: 256 << 20,
            queue_entries: 65_536,
            socket_buffer_bytes: 4 << 20,
            loopback_buffer_bytes: 1 << 20,
            connections_max: 16_384,
            connections_per_peer_max: 4096,
            requests_max: 1024,
            in_flight_bytes_max: 256 << 20,
            bind: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            advertise: Vec::new(),
            local: Vec::new(),
            topology: None,
            local_ports: None,
            seal: None,
            insecure: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use slackwater_engine::Location;
    use tempfile::TempDir;

    use super::*;

    /// `cuda:0` was the first GPU by PCI address also for a process that was given another one, or counts them otherwise.
    #[test]
    fn nothing_is_near_gpus_that_have_other_numbers() {
        let folder = TempDir::new().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("devices/system/node/online", "0");
        write("devices/system/node/node0/cpulist", "0-3");
        write("class/net/eth0/ifindex", "2");
        let topology = || {
            let mut topology = Topology::read(folder.path(), &[(2, [10, 0, 0, 1].into())]).unwrap();
            let near = topology.locations[&Location::Cpu(0)].clone();
            assert_eq!(near.near, ["eth0"]);
            topology.locations.insert(Location::Cuda(0), near.clone());
            topology.locations.insert(Location::Cuda(1), near);
            topology
        };
        write("ranked.json", r#"{"cuda:1": [["eth0"], []]}"#);
        let (file, none) = (Some(folder.path().join("ranked.json")), None);
        let check = |set: &[(&str, &str)], file: &Option<PathBuf>, expected: [usize; 3]| {
            let config = TcpConfig {
                topology: file.clone(),
                ..TcpConfig::default()
            };
            let variable = |name: &str| {
                let mut set = set.iter();
                set.find(|(one, _)| *one == name)
                    .map(|(_, value)| (*value).into())
            };
            let ranked = config.rank(topology(), variable).unwrap();
            let ranked = ranked.by_name();
            let near = ["cpu:0", "cuda:0", "cuda:1"].map(|name| ranked[name].near.len());
            assert_eq!(near, expected, "{set:?} {file:?}");
            let all = |name: &str| ranked[name].near.len() + ranked[name].rest.len();
            assert_eq!((all("cuda:0"), all("cuda:1")), (1, 1));
        };
        check(&[], &none, [1, 1, 1]);
        check(&[("CUDA_DEVICE_ORDER", "PCI_BUS_ID")], &none, [1, 1, 1]);
        check(&[("CUDA_DEVICE_ORDER", "FASTEST_FIRST")], &none, [1, 0, 0]);
        check(&[("CUDA_VISIBLE_DEVICES", "1")], &none, [1, 0, 0]);
        check(&[("CUDA_VISIBLE_DEVICES", "")], &none, [1, 0, 0]);
        check(&[("CUDA_VISIBLE_DEVICES", "1")], &file, [1, 0, 1]);
    }
}
