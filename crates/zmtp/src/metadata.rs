use crate::cause::printable;
use crate::{Cause, LinkConfig, PublicKey};

/// What is known of a peer once its handshake is through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its long-term key; none without CURVE.
    pub key: Option<PublicKey>,
    /// Its socket type, as it spells it.
    pub socket: String,
    /// Its routing id; may be empty.
    pub identity: Vec<u8>,
    /// Its application properties (`X-…`).
    pub properties: Vec<(String, Vec<u8>)>,
    /// Minor version of its greeting: 0 subscribes by data frames.
    pub minor: u8,
}

impl Peer {
    /// The value of the application property `name`.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&[u8]> {
        self.properties
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_slice())
    }

    /// Reads the metadata of READY or INITIATE and checks that the socket types fit.
    pub(crate) fn read(mut bytes: &[u8], config: &LinkConfig, minor: u8) -> Result<Self, Cause> {
        let mut peer = Self {
            minor,
            ..Self::default()
        };
        let mut socket: Option<&[u8]> = None;
        while !bytes.is_empty() {
            let (name, value) =
                property(&mut bytes).ok_or(Cause::Malformed { what: "metadata" })?;
            if name.eq_ignore_ascii_case(b"Socket-Type") {
                socket = socket.or(Some(value));
            } else if name.eq_ignore_ascii_case(b"Identity") {
                // Ids that begin with zero are those that a ROUTER makes up for peers without one.
                if value.len() > 255 || value.first() == Some(&0) {
                    return Err(Cause::Malformed { what: "identity" });
                }
                peer.identity = value.to_vec();
            } else if name.len() > 2 && name[..2].eq_ignore_ascii_case(b"X-") && name.is_ascii() {
                peer.properties.push((printable(name), value.to_vec()));
            }
        }
        let socket = socket.ok_or(Cause::Malformed {
            what: "metadata without a socket type",
        })?;
        if !config.socket.accepts(socket) {
            return Err(Cause::SocketPair {
                ours: config.socket.name(),
                theirs: printable(socket),
            });
        }
        peer.socket = printable(socket);
        Ok(peer)
    }
}

/// Our metadata, in the spelling libzmq compares exactly.
pub(crate) fn write(config: &LinkConfig, out: &mut Vec<u8>) {
    let mut put = |name: &str, value: &[u8]| {
        out.push(name.len() as u8);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(&(value.len() as u32).to_be_bytes());
        out.extend_from_slice(value);
    };
    put("Socket-Type", config.socket.name().as_bytes());
    if config.socket.has_identity() {
        put("Identity", &config.identity);
    }
    for (name, value) in &config.properties {
        put(name, value);
    }
}

fn property<'a>(bytes: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (length, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    *bytes = rest;
    if name.is_empty() {
        None
    } else {
        Some((name, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mechanism, Side, SocketType};

    fn config(socket: SocketType) -> LinkConfig {
        LinkConfig::new(socket, Mechanism::Null(Side::Connect))
    }

    #[test]
    fn metadata_reads_back() {
        let mut ours = config(SocketType::Dealer);
        ours.identity = b"L1".to_vec();
        ours.properties = vec![("X-Slackwater".into(), b"1".to_vec())];
        let mut bytes = Vec::new();
        write(&ours, &mut bytes);
        let peer = Peer::read(&bytes, &config(SocketType::Router), 1).unwrap();
        assert_eq!(
            (peer.socket.as_str(), peer.identity.as_slice()),
            ("DEALER", &b"L1"[..])
        );
        assert_eq!(peer.property("X-Slackwater"), Some(&b"1"[..]));
        assert_eq!(peer.property("X-Other"), None);
        for cut in 1..bytes.len() {
            let whole = Peer::read(&bytes[..cut], &config(SocketType::Router), 1);
            assert!(
                whole.is_ok_and(|peer| peer.socket == "DEALER") == [22, 37].contains(&cut),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let check = |bytes: &[u8], want: Cause| {
            assert_eq!(Peer::read(bytes, &config(SocketType::Router), 1), Err(want));
        };
        check(
            b"\x0bSocket-Type\0\0\0\x03PUB",
            Cause::SocketPair {
                ours: "ROUTER",
                theirs: "PUB".into(),
            },
        );
        check(
            b"",
            Cause::Malformed {
                what: "metadata without a socket type",
            },
        );
        check(
            b"\x08Identity\0\0\0\x02\0x",
            Cause::Malformed { what: "identity" },
        );
        check(b"\0\0\0\0\0", Cause::Malformed { what: "metadata" });
        check(
            b"\x01x\xff\xff\xff\xff",
            Cause::Malformed { what: "metadata" },
        );
    }
}
