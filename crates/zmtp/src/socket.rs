/// The socket types this engine plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketType {
    /// Round-robin out, fair-queued in; what a client is.
    Dealer,
    /// Addresses its peers by routing id; what a server is.
    Router,
    /// Sends to subscribers by topic prefix.
    Pub,
    /// Receives what it subscribed to.
    Sub,
}

impl SocketType {
    /// The canonical spelling: libzmq compares it exactly.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SocketType::Dealer => "DEALER",
            SocketType::Router => "ROUTER",
            SocketType::Pub => "PUB",
            SocketType::Sub => "SUB",
        }
    }

    /// Whether a peer that calls itself `theirs` may talk to this type (ZMTP 3.1, "The Socket Type Property").
    #[must_use]
    pub fn accepts(self, theirs: &[u8]) -> bool {
        let peers: &[&str] = match self {
            SocketType::Dealer => &["REP", "DEALER", "ROUTER"],
            SocketType::Router => &["REQ", "DEALER", "ROUTER"],
            SocketType::Pub => &["SUB", "XSUB"],
            SocketType::Sub => &["PUB", "XPUB"],
        };
        peers.iter().any(|peer| peer.as_bytes() == theirs)
    }

    /// Whether READY carries an `Identity` for this type.
    pub(crate) const fn has_identity(self) -> bool {
        matches!(self, SocketType::Dealer | SocketType::Router)
    }
}
