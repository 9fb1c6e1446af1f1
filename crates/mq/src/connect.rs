use std::net::SocketAddr;
use std::time::Duration;

use slackwater_net::{NetError, UnixAccess};
use slackwater_zmtp::PublicKey;
use thiserror::Error;

use crate::{Address, AddressError, Admission, Level};

/// How to listen.
#[derive(Clone)]
pub struct ListenOptions {
    /// Who may come in.
    pub admission: Admission,
    /// Whether links are encrypted with this side's keys.
    pub encrypted: bool,
    /// Who may use a Unix socket.
    pub access: UnixAccess,
}

/// Why this side does not listen.
#[derive(Debug, Error)]
pub enum ListenError {
    /// The address is taken or not ours.
    #[error(transparent)]
    Net(#[from] NetError),
    /// Others than this machine could reach it, and nothing would tell them apart.
    #[error("{0} can be reached from other machines: listen with keys, or on a loopback address")]
    NeedsKeys(SocketAddr),
    /// The message layer has been stopped.
    #[error("the message layer is stopped")]
    Stopped,
    /// It was asked for from inside a loop, which would wait for itself.
    #[error("a handler that runs inline must not listen")]
    InsideLoop,
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// What the other side may call here.
    pub level: Level,
    /// How long it may take; the option of the message layer when none.
    pub timeout: Option<Duration>,
    /// Silence after which the link is closed; links by address stay when none.
    pub keep_alive: Option<Duration>,
    /// Whether the peer must answer HI with HELLO before the link counts as connected. Plain ZeroMQ peers do not.
    pub probe: bool,
    /// Whether no routing id is announced; the option of the message layer when none.
    pub ephemeral_id: Option<bool>,
    /// Local address, for more links than one address has ports.
    pub from: Option<SocketAddr>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            level: Level::None,
            timeout: None,
            keep_alive: None,
            probe: true,
            ephemeral_id: None,
            from: None,
        }
    }
}

/// Why there is no link.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The address leads nowhere.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The peer did not answer, or refused.
    #[error("{address}: {reason}")]
    Failed {
        /// Which peer.
        address: Address,
        /// Why.
        reason: String,
    },
    /// It was asked for from inside a loop, which would wait for itself.
    #[error("a handler that runs inline must not wait for a connection")]
    InsideLoop,
}

/// Why there is no link to a node.
#[derive(Debug, Error)]
pub enum NodeError {
    /// The key is no active node's.
    #[error("{0} is no active node")]
    NotANode(PublicKey),
    /// Neither the hint nor the look-up knows where it is.
    #[error("nobody knows where {0} is")]
    NoAddress(PublicKey),
    /// Its address leads nowhere.
    #[error(transparent)]
    Address(#[from] AddressError),
}
