//! What seals the packets of a host link.

use std::io;
use std::os::fd::BorrowedFd;

use slackwater_wire::Incarnation;
use slackwater_wire::data::{Features, Greeting, VERSION};

use super::packets::Packets;
use crate::seal::{Keys, PacketOpener, PacketSealer, SealError};

/// One end of a link that has proven its key to the other, and the other to it.
#[derive(Debug)]
pub(super) struct LinkSeal {
    sealer: PacketSealer,
    opener: PacketOpener,
}

impl LinkSeal {
    pub(super) fn new(Keys { send, receive }: Keys) -> Self {
        Self {
            sealer: PacketSealer::new(send),
            opener: PacketOpener::new(receive),
        }
    }
}

/// Sends one packet: sealed, on a link with keys.
pub(super) fn send(
    packets: &Packets,
    seal: Option<&mut LinkSeal>,
    parts: &[&[u8]],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let Some(seal) = seal else {
        return packets.send(parts, descriptors);
    };
    packets.send(&[seal.sealer.seal(parts)], descriptors)?;
    seal.sealer.sent();
    Ok(())
}

/// Opens a packet of `len` bytes: its text is moved to the start of the buffer. Says how long that is.
pub(super) fn open(
    seal: Option<&mut LinkSeal>,
    buffer: &mut [u8],
    len: usize,
) -> Result<usize, SealError> {
    let Some(seal) = seal else {
        return Ok(len);
    };
    let text = seal.opener.open(&mut buffer[..len])?;
    buffer.copy_within(text.clone(), 0);
    Ok(text.len())
}

/// What the ends of a link say of themselves before they have keys. It is the greeting of a connection over TCP, of whose
/// payload a link has none.
pub(super) fn greeting(own: Incarnation, expects: Incarnation) -> Greeting {
    Greeting {
        version_min: VERSION,
        version_max: VERSION,
        features: Features::default(),
        incarnation: own,
        expects,
        frame_bytes_max: 0,
        requests_max: 0,
        in_flight_bytes_max: 0,
        public_key: [0; 32],
        proof: [0; 32],
    }
}
