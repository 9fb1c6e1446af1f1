use std::sync::Arc;

use slackwater_keys::{AllowList, Level};
use slackwater_zmtp::PublicKey;

/// What a category asks of its callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The least level.
    pub level: Level,
    /// The caller must be an active node.
    pub remote_node: bool,
    /// This side must be a node.
    pub local_node: bool,
}

/// A peer that asks to come in.
#[derive(Clone, Debug)]
pub struct Applicant {
    /// Its address as text: an IP, or uid, gid and pid on a Unix socket.
    pub remote: String,
    /// The key it has proven; none on a plain listener.
    pub key: Option<PublicKey>,
    /// Whether the key is an active node's.
    pub is_node: bool,
}

/// A decision on an applicant; none refuses it.
pub type Decide = Arc<dyn Fn(&Applicant) -> Option<Level> + Send + Sync>;

/// How a listener decides who may come in.
#[derive(Clone)]
pub enum Admission {
    /// Everybody, with this level.
    Everybody(Level),
    /// Those in the list, with the level it gives; re-read whenever it is reloaded.
    Listed(AllowList),
    /// A function decides. It runs on a worker, never on a loop, and may take its time: the peer waits alone.
    Ask(Decide),
}
