use std::sync::Arc;

use slackwater_keys::{AllowList, Level};
use slackwater_zmtp::PublicKey;

/// The permissions that a category asks of its callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The least level.
    pub level: Level,
    /// The caller must be an active node.
    pub remote_node: bool,
    /// This side must be a node.
    pub local_node: bool,
}

/// A peer that asks for admission.
#[derive(Clone, Debug)]
pub struct Applicant {
    /// Its address as text: an IP, or uid, gid and pid on a Unix socket.
    pub remote: String,
    /// The key it has proven; none on a plain listener.
    pub key: Option<PublicKey>,
    /// Whether the key is an active node's.
    pub is_node: bool,
}

/// The decision on a peer; none refuses it.
pub type Decide = Arc<dyn Fn(&Applicant) -> Option<Level> + Send + Sync>;

/// How a listener decides on peers that connect.
#[derive(Clone)]
pub enum Admission {
    /// Every peer is admitted, with this level.
    Everybody(Level),
    /// Keys in the list are admitted, with the level it gives; see [`AllowList::reload`].
    Listed(AllowList),
    /// A function decides. It runs on a worker, never on a loop, and may block: only the peer waits.
    Ask(Decide),
}
