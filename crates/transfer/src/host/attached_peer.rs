use slackwater_base::Instant;
use slackwater_wire::Incarnation;

use super::granted::GrantedWindows;
use super::packets::Packets;

/// A process that has this one's memory open, or asks for it.
pub(super) struct AttachedPeer {
    pub(super) packets: Packets,
    /// The incarnation that its greeting claims.
    pub(super) incarnation: Incarnation,
    pub(super) state: AttachState,
}

/// The state of an attached peer.
pub(super) enum AttachState {
    /// It has not greeted yet, which it must do before this time.
    Unauthenticated(Instant),
    /// It may ask for windows.
    Open(GrantedWindows),
    /// It broke the protocol. It gets no more answers and everything is taken back from it; but it may still be
    /// copying, so its accesses are held until its copies, or the process, have ended.
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
