use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// Where to listen or connect.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoint {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix stream socket. What begins with `@` is no file but an abstract name, as elsewhere in ZeroMQ: it belongs to the
    /// network namespace, and ends with its listener.
    Unix(PathBuf),
}

impl Endpoint {
    /// The Unix socket beside a TCP listener on a loopback address, through which a message within the host costs about half.
    /// None for an address that other hosts reach: theirs may have a listener on the same port.
    #[must_use]
    pub fn beside(address: SocketAddr) -> Option<Self> {
        let is_here = address.ip().to_canonical().is_loopback();
        is_here.then(|| Self::Unix(format!("@slackwater-{address}").into()))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => write!(f, "tcp://{address}"),
            Endpoint::Unix(path) => write!(f, "ipc://{}", path.display()),
        }
    }
}

/// A text that names no endpoint.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is neither tcp://IP:PORT nor ipc://PATH")]
pub struct NoEndpoint(String);

impl FromStr for Endpoint {
    type Err = NoEndpoint;

    /// Reads what is displayed. A port of 0 is one that the system chooses.
    fn from_str(text: &str) -> Result<Self, NoEndpoint> {
        let no_endpoint = || NoEndpoint(text.to_owned());
        match text.split_once("://").ok_or_else(no_endpoint)? {
            ("tcp", address) => address
                .parse()
                .map(Endpoint::Tcp)
                .map_err(|_| no_endpoint()),
            ("ipc", path) if !path.is_empty() => Ok(Endpoint::Unix(path.into())),
            _ => Err(no_endpoint()),
        }
    }
}

/// The peer of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A TCP peer.
    Ip(SocketAddr),
    /// A process on this machine, as the kernel reports it.
    Process {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Process id; 0 for a process in a namespace out of sight.
        pid: i32,
    },
}

/// Where a peer comes from, as far as limits tell sources apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A host, or the network that it may pick its address from.
    Host(IpAddr),
    /// A user of this machine.
    User(u32),
}

impl Source {
    /// What limits count it by. An IPv4 address mapped into IPv6 is the IPv4 one; an IPv6 address stands for its network of
    /// 64 bits, within which every host may pick as many addresses as it likes (RFC 4862).
    #[must_use]
    pub fn origin(&self) -> Origin {
        match self {
            Source::Ip(address) => Origin::Host(match address.ip().to_canonical() {
                IpAddr::V6(host) => Ipv6Addr::from_bits(host.to_bits() >> 64 << 64).into(),
                host => host,
            }),
            Source::Process { uid, .. } => Origin::User(*uid),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Ip(address) => write!(f, "{}", address.ip().to_canonical()),
            Source::Process { uid, gid, pid } => write!(f, "uid {uid} gid {gid} pid {pid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_they_are_displayed() {
        for text in [
            "tcp://127.0.0.1:0",
            "tcp://[::1]:7",
            "ipc:///run/x",
            "ipc://x y",
        ] {
            let endpoint: Endpoint = text.parse().expect("an endpoint");
            assert_eq!(endpoint.to_string(), text);
        }
        for text in [
            "",
            "127.0.0.1:1",
            "tcp://localhost:1",
            "tcp://127.0.0.1",
            "ipc://",
            "udp://1.1.1.1:1",
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(NoEndpoint(text.to_owned())));
        }
    }

    /// A name made of a port alone would have led clients of another host's listener to that of their own.
    #[test]
    fn only_a_loopback_address_has_a_socket_beside_it() {
        let check = |address: &str, beside: Option<&str>| {
            let found = Endpoint::beside(address.parse().expect("an address"));
            assert_eq!(found.map(|it| it.to_string()).as_deref(), beside);
        };
        check("127.0.0.1:7", Some("ipc://@slackwater-127.0.0.1:7"));
        check("127.0.0.2:7", Some("ipc://@slackwater-127.0.0.2:7"));
        check("[::1]:7", Some("ipc://@slackwater-[::1]:7"));
        check("10.0.0.1:7", None);
        check("0.0.0.0:7", None);
    }

    /// A host with an IPv6 network of its own used a new address for every connection, and no limit applied.
    #[test]
    fn addresses_of_one_network_and_processes_of_one_user_count_as_one_source() {
        let ip =
            |text: &str| Source::Ip(SocketAddr::new(text.parse().expect("an address"), 1)).origin();
        assert_eq!(ip("2001:db8:1:2::7"), ip("2001:db8:1:2:ffff::9"));
        assert_ne!(ip("2001:db8:1:2::7"), ip("2001:db8:1:3::7"));
        assert_eq!(ip("::ffff:127.0.0.1"), ip("127.0.0.1"));
        assert_ne!(ip("127.0.0.1"), ip("127.0.0.2"));
        let process = |uid, pid| Source::Process { uid, gid: 0, pid }.origin();
        assert_eq!(process(7, 1), process(7, 2));
        assert_ne!(process(7, 1), process(8, 1));
    }
}
