use core::net::SocketAddr;

use crate::Incarnation;
use serde::{Deserialize, Serialize};

/// How to reach the memory of one process: what its engine publishes, and what others open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Its name.
    pub name: String,
    /// The incarnation of the process. A later one under the same name is another segment.
    pub incarnation: Incarnation,
    /// TCP addresses of its data plane, best first.
    #[serde(default)]
    pub addresses: Vec<SocketAddr>,
    /// The public key of its data plane, if its connections are sealed.
    #[serde(default)]
    pub public_key: Option<[u8; 32]>,
    /// How processes of the same host reach it.
    #[serde(default)]
    pub host: Option<HostContact>,
}

/// How processes of the same host reach a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostContact {
    /// The host's boot id: another one means another host, or another boot of it.
    pub boot_id: String,
    /// Process id in the namespace of its owner.
    pub pid: u32,
    /// Name of the abstract Unix socket over which descriptors are passed.
    pub socket: String,
}
