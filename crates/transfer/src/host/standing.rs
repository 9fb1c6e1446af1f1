use slackwater_base::Instant;
use slackwater_wire::Incarnation;

use super::grants::Grants;
use super::packets::Packets;

/// A process that has, or asks for, this one's memory.
pub(super) struct Peer {
    pub(super) packets: Packets,
    /// Who it says it is.
    pub(super) incarnation: Incarnation,
    pub(super) standing: Standing,
}

/// How a peer stands.
pub(super) enum Standing {
    /// It has not said who it is, which it has to by then.
    Stranger(Instant),
    /// It may ask.
    Open(Grants),
    /// It broke the protocol. It is told nothing more and everything is taken back from it; but it may be at memory still,
    /// so what it was granted is kept until it lets go of it, or ends.
    Expelled(Grants),
}

impl Standing {
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Stranger(deadline) => Some(*deadline),
            Self::Open(_) | Self::Expelled(_) => None,
        }
    }

    pub(super) fn grants(&self) -> Option<&Grants> {
        match self {
            Self::Stranger(_) => None,
            Self::Open(grants) | Self::Expelled(grants) => Some(grants),
        }
    }

    pub(super) fn grants_mut(&mut self) -> Option<&mut Grants> {
        match self {
            Self::Stranger(_) => None,
            Self::Open(grants) | Self::Expelled(grants) => Some(grants),
        }
    }
}
