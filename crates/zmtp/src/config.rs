use std::time::Duration;

use zeroize::Zeroize;

use crate::{KeyPair, PublicKey, SocketType};

/// Which end of the connection a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This side opened the connection.
    Connect,
    /// This side accepted it; the owner is asked for admission.
    Listen,
}

/// How the link is secured, and which end of it this side is.
#[derive(Clone, Debug)]
pub enum Mechanism {
    /// No encryption, no identity.
    Null(Side),
    /// CURVE on the accepting side: `keys` is the server's long-term pair.
    CurveServer(KeyPair),
    /// CURVE on the connecting side.
    CurveClient {
        /// This side's long-term pair, its identity.
        keys: KeyPair,
        /// The server's long-term key, known beforehand.
        server: PublicKey,
    },
}

impl Mechanism {
    /// The name in the greeting.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Mechanism::Null(_) => "NULL",
            Mechanism::CurveServer(_) | Mechanism::CurveClient { .. } => "CURVE",
        }
    }

    /// Which end of the connection this is.
    #[must_use]
    pub const fn side(&self) -> Side {
        match self {
            Mechanism::Null(side) => *side,
            Mechanism::CurveServer(_) => Side::Listen,
            Mechanism::CurveClient { .. } => Side::Connect,
        }
    }
}

/// What a peer may make this side hold or wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Payload of one frame, in bytes.
    pub frame_bytes: u64,
    /// All frames of one message together, in bytes; below 4 GiB.
    pub message_bytes: u64,
    /// Parts of one message.
    pub parts: usize,
    /// Any one command, and everything before the link is up, in bytes.
    pub command_bytes: u64,
    /// From the start to the end of the handshake, without the admission decision.
    pub handshake_time: Duration,
    /// How long the owner may take to decide on admission; then the peer is refused.
    pub admission_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            frame_bytes: 1 << 20,
            message_bytes: 16 << 20,
            parts: 64,
            command_bytes: 4096,
            handshake_time: Duration::from_secs(5),
            admission_time: Duration::from_secs(5),
        }
    }
}

/// When to ask a silent peer for a sign of life, and when to give it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Silence after which PING is sent.
    pub interval: Duration,
    /// Silence after which the link is closed.
    pub timeout: Duration,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(15),
            timeout: Duration::from_secs(30),
        }
    }
}

/// Everything that links of one kind share; one value behind an `Arc` for all of them.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Our socket type.
    pub socket: SocketType,
    /// Security and side.
    pub mechanism: Mechanism,
    /// Our routing id, for DEALER and ROUTER; may be empty.
    pub identity: Vec<u8>,
    /// Application properties announced in READY or INITIATE; names begin with `X-`.
    pub properties: Vec<(String, Vec<u8>)>,
    /// Bounds on the peer.
    pub limits: Limits,
    /// Heartbeats, or none.
    pub heartbeat: Option<Heartbeat>,
}

impl LinkConfig {
    /// A configuration with default limits and heartbeats and no identity.
    #[must_use]
    pub fn new(socket: SocketType, mechanism: Mechanism) -> Self {
        Self {
            socket,
            mechanism,
            identity: Vec::new(),
            properties: Vec::new(),
            limits: Limits::default(),
            heartbeat: Some(Heartbeat::default()),
        }
    }
}

/// The randomness of one link's handshake: fresh from the operating system for every link, wiped after use.
pub struct Entropy([u8; Entropy::BYTES]);

impl Entropy {
    /// How many random bytes a handshake takes.
    pub const BYTES: usize = 112;

    /// Takes `bytes`, which must come from a cryptographic source and be used for nothing else.
    #[must_use]
    pub const fn new(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    pub(crate) fn ephemeral(&self) -> [u8; 32] {
        self.take(0)
    }

    pub(crate) fn cookie_key(&self) -> [u8; 32] {
        self.take(32)
    }

    pub(crate) fn nonce(&self, number: usize) -> [u8; 16] {
        self.take(64 + 16 * number)
    }

    fn take<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0[at + i])
    }
}

impl Drop for Entropy {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for Entropy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entropy(..)")
    }
}
