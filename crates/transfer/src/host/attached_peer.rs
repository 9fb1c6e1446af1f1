use slackwater_base::Instant;
use slackwater_wire::Incarnation;

use super::granted::GrantedWindows;
use super::packets::Packets;

/// A process that has, or asks for, this one's memory.
pub(super) struct AttachedPeer {
    pub(super) packets: Packets,
    /// Who it says it is.
    pub(super) incarnation: Incarnation,
    pub(super) state: AttachState,
}

/// How a peer stands.
pub(super) enum AttachState {
    /// It has not said who it is, which it has to by then.
    Unauthenticated(Instant),
    /// It may ask.
    Open(GrantedWindows),
    /// It broke the protocol. It is told nothing more and everything is taken back from it; but it may be at memory still,
    /// so what it was granted is kept until it lets go of it, or ends.
    Expelled(GrantedWindows),
}

impl AttachState {
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Unauthenticated(deadline) => Some(*deadline),
            Self::Open(_) | Self::Expelled(_) => None,
        }
    }

    pub(super) fn granted(&self) -> Option<&GrantedWindows> {
        match self {
            Self::Unauthenticated(_) => None,
            Self::Open(granted) | Self::Expelled(granted) => Some(granted),
        }
    }

    pub(super) fn granted_mut(&mut self) -> Option<&mut GrantedWindows> {
        match self {
            Self::Unauthenticated(_) => None,
            Self::Open(granted) | Self::Expelled(granted) => Some(granted),
        }
    }
}
