use std::time::Duration;

use slackwater_wire::{Chain, Durability, Pin, PutConfig, PutMode, Tenant};

use crate::Cancel;

/// How a call is made, whatever it does.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    /// The tenant that the keys belong to.
    pub tenant: Tenant,
    /// How long it may take; none for the time of the connection.
    pub deadline: Option<Duration>,
    /// Ends it from another thread.
    pub cancel: Option<Cancel>,
}

/// How values are put.
#[derive(Clone, Debug)]
pub struct PutOptions {
    /// How the call is made.
    pub call: CallOptions,
    /// What an existing value of the same key means.
    pub mode: PutMode,
    /// Copies in memory, on different nodes; fewer nodes give fewer copies, but with [`Durability::Replicated`], which is refused
    /// then.
    pub replicas: u32,
    /// Names of segments to be tried first; unknown ones are passed over.
    pub preferred: Vec<String>,
    /// Whether they may be evicted.
    pub pin: Pin,
    /// Values of one group are leased and evicted together.
    pub group: Option<u64>,
    /// What the return of the call means.
    pub durability: Durability,
    /// How long to wait for space; none for the server's time.
    pub wait: Option<Duration>,
    /// How the values of a batch hang together; their order is the chain.
    pub chain: Chain,
}

impl Default for PutOptions {
    fn default() -> Self {
        let PutConfig {
            mode,
            replicas,
            preferred,
            pin,
            group,
            durability,
            wait,
        } = PutConfig::default();
        Self {
            call: CallOptions::default(),
            mode,
            replicas,
            preferred,
            pin,
            group,
            durability,
            wait,
            chain: Chain::default(),
        }
    }
}

/// How values are read.
#[derive(Clone, Debug, Default)]
pub struct GetOptions {
    /// How the call is made.
    pub call: CallOptions,
    /// How the keys of a batch hang together; their order is the chain.
    pub chain: Chain,
    /// Stop at the first key that is missing: the rest answer as missing.
    pub prefix_only: bool,
}

/// How values are removed.
#[derive(Clone, Debug, Default)]
pub struct RemoveOptions {
    /// How the call is made.
    pub call: CallOptions,
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
