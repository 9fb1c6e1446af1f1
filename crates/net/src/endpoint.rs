use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Where to listen or connect.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoint {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => write!(f, "tcp://{address}"),
            Endpoint::Unix(path) => write!(f, "ipc://{}", path.display()),
        }
    }
}

/// Who a connection came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A TCP peer.
    Ip(SocketAddr),
    /// A process on this machine, by the kernel's word.
    Process {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Process id.
        pid: i32,
    },
}

impl Source {
    /// The address that limits count by; an IPv4 address mapped into IPv6 is the IPv4 one.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Source::Ip(address) => Some(address.ip().to_canonical()),
            Source::Process { .. } => None,
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
