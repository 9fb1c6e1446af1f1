//! What seals the packets of a host link.

use std::io;
use std::os::fd::BorrowedFd;

use slackwater_data_plane::seal::{Keys, PacketOpener, PacketSealer, SealError};
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Features, Greeting, HANDSHAKE_BYTES, VERSION};

use super::packets::Packets;

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
        handshake: [0; HANDSHAKE_BYTES],
    }
}

#[cfg(test)]
mod tests {
    use slackwater_zmtp::{KeyPair, SecretKey};

    use slackwater_data_plane::seal::{Channel, InitiatorHandshake, TargetHandshake};

    use super::super::packets::{Listener, Received};
    use super::*;

    fn ends() -> (LinkSeal, LinkSeal) {
        let [own, other] = [1, 2].map(|byte| KeyPair::of(SecretKey::from_bytes([byte; 32])));
        let said = greeting(Incarnation(1), Incarnation(2));
        let asks =
            InitiatorHandshake::begin(&own, &[3; 32].into(), other.public(), said, &Channel::TCP)
                .unwrap();
        let target =
            TargetHandshake::begin(&other, &[4; 32].into(), asks.hello(), &Channel::TCP).unwrap();
        let (answered, target) = target.finish(said).unwrap();
        let initiator = asks.finish(&answered).unwrap();
        (LinkSeal::new(initiator), LinkSeal::new(target))
    }

    /// A packet that could not be sent had taken the number of its record: nothing that was sent later opened any more.
    #[test]
    fn a_packet_that_finds_the_socket_full_takes_no_number() {
        let name = format!("slackwater-seal-{}", std::process::id());
        let listener = Listener::bind(&name).unwrap();
        let near = Packets::connect(&name).unwrap();
        let far = listener.accept().unwrap().expect("it has connected");
        let (mut ours, mut theirs) = ends();
        let long = [7; 32 << 10];
        let mut say = |text: &[u8]| send(&near, Some(&mut ours), &[text], &[]);
        let sent = (0..).take_while(|_| say(&long).is_ok()).count();
        assert!(say(&long).is_err(), "the socket is full");
        let mut buffer = vec![0; 64 << 10];
        let mut hear = || match far.receive(&mut buffer) {
            Ok(Received::Packet(len, _)) => open(Some(&mut theirs), &mut buffer, len),
            other => panic!("a packet waits: {other:?}"),
        };
        (0..sent).for_each(|_| assert_eq!(hear(), Ok(long.len())));
        say(b"next").unwrap();
        assert_eq!(hear(), Ok(4));
    }
}
