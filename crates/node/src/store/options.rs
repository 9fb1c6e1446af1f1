use std::time::Duration;

use serde::{Deserialize, Serialize};
use slackwater_wire::{Chain, Durability, Pin, PutMode, Tenant};

/// How values are put.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PutOptions {
    /// The tenant that the values belong to.
    pub tenant: Tenant,
    /// What an existing value of the same key means.
    pub mode: PutMode,
    /// Whether they may be evicted.
    pub pin: Pin,
    /// Values of one group are leased and evicted together.
    pub group: Option<u64>,
    /// What the return of the call means.
    pub durability: Durability,
    /// How long to wait for space; `None` means the configured time.
    pub wait: Option<Duration>,
    /// How the values of a batch hang together; their order is the chain.
    pub chain: Chain,
}

/// How values are read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GetOptions {
    /// The tenant that the values belong to.
    pub tenant: Tenant,
    /// How the keys of a batch hang together; their order is the chain.
    pub chain: Chain,
    /// Stop at the first key that is missing: the rest answer as missing. Eviction learns that they were wanted.
    pub prefix_only: bool,
}

/// How values are viewed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ViewOptions {
    /// How they are looked up, as for a read.
    pub read: GetOptions,
    /// When their bytes are compared with their checksum.
    pub verify: Verify,
}

/// When the bytes of a view are compared with the checksum of the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Once, on their arrival in memory: a put's checksum is taken of the bytes as they are stored, and that of a value
    /// from SSD is compared before anyone can see it.
    #[default]
    OnArrival,
    /// And again for this view, which reads them all. Bytes that differ are dropped, as in a read.
    Always,
}

/// How values are removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoveOptions {
    /// The tenant that the values belong to.
    pub tenant: Tenant,
    /// Also those that readers hold leases on.
    pub force: bool,
}

/// What a put did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The value is stored.
    New,
    /// A value of that key was there; it stays as it is.
    Existed,
}

/// A level of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// DRAM.
    Memory,
    /// SSD.
    #[serde(rename = "ssd")]
    Disk,
}

/// A value that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    /// Its length in bytes.
    pub bytes: usize,
    /// Where it was read from.
    pub tier: Tier,
}
