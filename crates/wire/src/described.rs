//! What is known of an object, for people and tools: field names are a contract with scripts.

use serde::Serialize;

use crate::{Description, ReplicaAt, ReplicaState};

/// A [`Description`] as JSON and Python have it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Described<'a> {
    /// [`crate::Key::line`].
    pub key: String,
    /// The name of its tenant.
    pub tenant: &'a str,
    /// Its length in bytes.
    pub bytes: u64,
    /// The version of the put that wrote it.
    pub version: u64,
    /// The checksum of its bytes, as 16 hexadecimal digits.
    pub checksum: String,
    /// [`crate::Pin::name`].
    pub pin: &'static str,
    /// Time left of the longest lease, in milliseconds.
    pub lease_ms: u64,
    /// Its replicas.
    pub replicas: Vec<DescribedReplica<'a>>,
}

/// A replica of a [`Described`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DescribedReplica<'a> {
    /// [`crate::SegmentKind::tier`].
    pub tier: &'static str,
    /// The name of its segment; none where the master told none.
    pub segment: Option<&'a str>,
    /// [`ReplicaState::name`].
    pub state: &'static str,
    /// How many read it now, or keep it.
    pub readers: u32,
}

impl<'a> From<&'a Description> for Described<'a> {
    fn from(found: &'a Description) -> Self {
        let replica = |(place, (at, state, readers)): (usize, &(ReplicaAt, ReplicaState, u32))| {
            DescribedReplica {
                tier: at.kind().tier(),
                segment: found.names.get(place).map(String::as_str),
                state: state.name(),
                readers: *readers,
            }
        };
        Self {
            key: found.key.line(),
            tenant: found.tenant.name(),
            bytes: found.bytes,
            version: found.version.0,
            checksum: format!("{:016x}", found.checksum.0),
            pin: found.pin.name(),
            lease_ms: found.lease.as_millis() as u64,
            replicas: found.replicas.iter().enumerate().map(replica).collect(),
        }
    }
}
