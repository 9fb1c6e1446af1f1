use thiserror::Error;

/// Why a link ended. Every end has exactly one cause, and every cause a [`name`](Cause::name) to count it under.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Cause {
    /// The owner asked for it.
    #[error("closed by this side")]
    Local,
    /// The peer ended the stream.
    #[error("closed by the peer")]
    PeerGone,
    /// The first bytes are not a ZMTP greeting.
    #[error("not a ZMTP peer: the greeting begins with {first:#04x}")]
    NotZmtp {
        /// The byte that cannot begin a greeting.
        first: u8,
    },
    /// The peer speaks an older major version.
    #[error("ZMTP {major}.x is not spoken here, only 3.x")]
    Version {
        /// The peer's major version.
        major: u8,
    },
    /// The peer wants another security mechanism.
    #[error("the peer wants mechanism {theirs}, this side {ours}")]
    Mechanism {
        /// Ours.
        ours: &'static str,
        /// Theirs, printable part only.
        theirs: String,
    },
    /// The greeting and handshake took too long.
    #[error("handshake not finished in time")]
    HandshakeTimeout,
    /// The admission decision took too long.
    #[error("no decision on admission in time")]
    AdmissionTimeout,
    /// Nothing arrived for the heartbeat timeout, although the peer was asked.
    #[error("no sign of life within the heartbeat timeout")]
    HeartbeatLost,
    /// One frame is larger than allowed.
    #[error("frame of {size} bytes over the limit of {limit}")]
    FrameTooLarge {
        /// Its size as announced.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// The frames of one message together are larger than allowed.
    #[error("message over the limit of {limit} bytes")]
    MessageTooLarge {
        /// The limit.
        limit: u64,
    },
    /// One message has more parts than allowed.
    #[error("message of more than {limit} parts")]
    TooManyParts {
        /// The limit.
        limit: usize,
    },
    /// Bytes that no peer following the protocol sends.
    #[error("malformed {what}")]
    Malformed {
        /// What was being read.
        what: &'static str,
    },
    /// A command that has no place in the link's state.
    #[error("unexpected command `{name}`")]
    UnexpectedCommand {
        /// Its name, printable part only.
        name: String,
    },
    /// A box that does not open: a wrong key, or tampered bytes.
    #[error("the box of {what} does not open (wrong key or altered bytes)")]
    BoxClosed {
        /// The handshake step or MESSAGE.
        what: &'static str,
    },
    /// A counter that does not rise: a replayed or reordered frame.
    #[error("nonce {got} is not above {last}")]
    Replayed {
        /// The highest counter seen.
        last: u64,
        /// The counter that came.
        got: u64,
    },
    /// The socket types do not fit together.
    #[error("a {theirs} peer cannot talk to a {ours} socket")]
    SocketPair {
        /// Ours.
        ours: &'static str,
        /// Theirs, printable part only.
        theirs: String,
    },
    /// The owner refused admission.
    #[error("refused by this side with status {status}")]
    Refused {
        /// The three-digit status sent to the peer.
        status: String,
    },
    /// The peer refused admission or reported an error.
    #[error("refused by the peer: {reason}")]
    RefusedByPeer {
        /// Its reason, printable part only; libzmq sends a three-digit status.
        reason: String,
    },
}

impl Cause {
    /// A short stable name, for counters.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Cause::Local => "local",
            Cause::PeerGone => "peer_gone",
            Cause::NotZmtp { .. } => "not_zmtp",
            Cause::Version { .. } => "version",
            Cause::Mechanism { .. } => "mechanism",
            Cause::HandshakeTimeout => "handshake_timeout",
            Cause::AdmissionTimeout => "admission_timeout",
            Cause::HeartbeatLost => "heartbeat_lost",
            Cause::FrameTooLarge { .. } => "frame_too_large",
            Cause::MessageTooLarge { .. } => "message_too_large",
            Cause::TooManyParts { .. } => "too_many_parts",
            Cause::Malformed { .. } => "malformed",
            Cause::UnexpectedCommand { .. } => "unexpected_command",
            Cause::BoxClosed { .. } => "box_closed",
            Cause::Replayed { .. } => "replayed",
            Cause::SocketPair { .. } => "socket_pair",
            Cause::Refused { .. } => "refused",
            Cause::RefusedByPeer { .. } => "refused_by_peer",
        }
    }
}

/// The printable ASCII of `bytes`, at most 64 of them: what may enter a log line from outside.
pub(crate) fn printable(bytes: &[u8]) -> String {
    bytes
        .iter()
        .take(64)
        .map(|b| {
            if b.is_ascii_graphic() || *b == b' ' {
                *b as char
            } else {
                '?'
            }
        })
        .collect()
}
