use slackwater_wire::Incarnation;
use slackwater_zmtp::PublicKey;

use super::granted::GrantedWindows;
use super::link_seal::LinkSeal;
use super::packets::Packets;

/// A process that was let in: it has this one's memory open, or may ask for it.
pub(super) struct AttachedPeer {
    pub(super) packets: Packets,
    /// The holder whose capabilities it may use.
    pub(super) holder: Incarnation,
    /// The key that it has proven, on a link with keys.
    pub(super) key: Option<PublicKey>,
    pub(super) seal: Option<LinkSeal>,
    pub(super) granted: GrantedWindows,
    /// It broke the protocol, or its key is not listed any more. It gets no more answers and everything is taken back from
    /// it; but it may still be copying, so its accesses are held until its copies, or the process, have ended.
    pub(super) expelled: bool,
}
