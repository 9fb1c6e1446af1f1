use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use slackwater_net::{Endpoint, NetError, UnixAccess};
use slackwater_zmtp::PublicKey;
use thiserror::Error;

use crate::{Address, Admission, Level};

/// How to listen.
#[derive(Clone)]
pub struct ListenOptions {
    /// The decision on peers that connect.
    pub admission: Admission,
    /// Whether links are encrypted with this side's keys.
    pub encrypted: bool,
    /// Whether other machines may connect although links are not encrypted: for streams that everybody may read.
    pub plain_anywhere: bool,
    /// The owner and mode of a Unix socket.
    pub access: UnixAccess,
    /// Whether to listen beside a loopback address too, by [`Endpoint::beside`], with the same rights. Where that name is
    /// taken it goes without.
    pub beside: bool,
}

/// Why this side does not listen.
#[derive(Debug, Error)]
pub enum ListenError {
    /// The address is taken or not ours.
    #[error(transparent)]
    Net(#[from] NetError),
    /// Other machines could reach it, and without keys no peer would be authenticated.
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
    /// Whether a loopback address is first tried by the Unix socket beside it ([`Endpoint::beside`]).
    pub beside: bool,
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
            beside: false,
        }
    }
}

/// The cause for which a link was not made.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ConnectFailure {
    /// The name of the host could not be looked up.
    #[error("host `{host}`: {error}")]
    Unresolved {
        /// The name.
        host: String,
        /// What the resolver said.
        error: String,
    },
    /// It ended before it was up.
    #[error("{reason}{}", Tried(.reason, .attempts))]
    Ended {
        /// Why, for people.
        reason: String,
        /// The outcome of each address of the last round, in order.
        attempts: Vec<Attempt>,
    },
}

/// An address of a peer that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The address.
    pub endpoint: Endpoint,
    /// Why it did not lead to a link, for people.
    pub error: String,
}

/// Prints attempts behind a reason, unless the only one says the same.
struct Tried<'a>(&'a str, &'a [Attempt]);

impl fmt::Display for Tried<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(reason, attempts) = self;
        if matches!(attempts, [only] if only.error == *reason) {
            return Ok(());
        }
        let mut separator = "; tried";
        for Attempt { endpoint, error } in *attempts {
            write!(f, "{separator} {endpoint} ({error})")?;
            separator = ",";
        }
        Ok(())
    }
}

/// Why there is no link.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The peer did not answer, or refused.
    #[error("{address}: {failure}")]
    Failed {
        /// The address of the peer.
        address: Address,
        /// The cause.
        failure: Box<ConnectFailure>,
    },
    /// It was asked for from inside a loop, which would wait for itself.
    #[error("a handler that runs inline must not wait for a connection")]
    InsideLoop,
}

/// Why there is no link to a node.
#[derive(Debug, Error)]
pub enum NodeError {
    /// The key is no active node's.
    #[error("{0} is not an active node")]
    NotANode(PublicKey),
    /// Neither the hint nor the look-up gives an address.
    #[error("no address is known for {0}")]
    NoAddress(PublicKey),
}
