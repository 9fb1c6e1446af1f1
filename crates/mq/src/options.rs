use std::time::Duration;

use slackwater_base::Backoff;
use slackwater_net::{PreAuthLimits, StartError as LoopError, TcpLiveness};
use slackwater_wait::{Choice, ChoiceError};
use slackwater_zmtp::{Heartbeat, KeyPair, Limits};
use thiserror::Error;

use crate::Workers;

/// Everything that can be set about a message layer; the defaults are upstream's where it has any.
#[derive(Clone, Debug)]
pub struct Options {
    /// This side's long-term keys; made up when none.
    pub keys: Option<KeyPair>,
    /// Whether this side is a node of the fleet: then `keys` must be given.
    pub is_node: bool,
    /// Event loops. A link belongs to one of them.
    pub loops: usize,
    /// Worker threads.
    pub workers: Workers,
    /// Connections of each loop.
    pub connections: usize,
    /// Bounds on what a peer may send and how long it may take.
    pub limits: Limits,
    /// Heartbeats, or none.
    pub heartbeat: Option<Heartbeat>,
    /// Bounds on unauthenticated peers.
    pub pre_auth: PreAuthLimits,
    /// How dead TCP peers are noticed.
    pub liveness: TcpLiveness,
    /// Messages that wait for a link that is full or not up.
    pub queue_messages: usize,
    /// Bytes that wait for a link, the kernel's buffers not counted.
    pub queue_bytes: usize,
    /// A peer that takes nothing for this long is dropped.
    pub write_stall: Duration,
    /// Silence after which a link opened by a send is closed.
    pub keep_alive_implicit: Duration,
    /// Silence after which a link opened to a node on request is closed.
    pub keep_alive_node: Duration,
    /// How long a connection may take, handshake and probe included.
    pub connect_timeout: Duration,
    /// How long a request may take when it does not say.
    pub request_timeout: Duration,
    /// Pauses before a lost link is opened again; the longest after a refusal.
    pub reconnect: Backoff,
    /// How long closing links may go on writing.
    pub linger: Duration,
    /// Whether links announce no routing id, so that several links of one key can be up at the same time.
    pub ephemeral_ids: bool,
    /// Whether a newcomer on a plain listener takes over the routing id of an older link.
    pub plain_handover: bool,
    /// Topics that one subscriber of a stream may ask for.
    pub stream_topics: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            keys: None,
            is_node: false,
            loops: 1,
            workers: Workers::default(),
            connections: 65_536,
            limits: Limits::default(),
            heartbeat: Some(Heartbeat::default()),
            pre_auth: PreAuthLimits::default(),
            liveness: TcpLiveness::default(),
            queue_messages: 1_000,
            queue_bytes: 8 << 20,
            write_stall: Duration::from_secs(30),
            keep_alive_implicit: Duration::from_secs(30),
            keep_alive_node: Duration::from_secs(300),
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(15),
            reconnect: Backoff::doubling(Duration::from_millis(250), Duration::from_secs(5)),
            linger: Duration::from_secs(5),
            ephemeral_ids: false,
            plain_handover: false,
            stream_topics: 1_024,
        }
    }
}

/// Why a message layer could not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// A node is identified by its key, so it must be given one.
    #[error("a node needs its keys")]
    NodeWithoutKeys,
    /// The operating system gives no randomness.
    #[error("no randomness from the operating system: {0}")]
    Randomness(getrandom::Error),
    /// `SLACKWATER_WAIT` names no wait strategy.
    #[error("{name}: {0}", name = Choice::ENV)]
    Wait(#[from] ChoiceError),
    /// A loop could not start.
    #[error(transparent)]
    Loop(#[from] LoopError),
    /// A thread could not start.
    #[error("thread `{name}`: {error}")]
    Thread {
        /// Its name.
        name: String,
        /// The error of the operating system.
        error: std::io::Error,
    },
}
