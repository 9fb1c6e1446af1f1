use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use slackwater_net::Endpoint;
use slackwater_zmtp::{KeyTextError, PublicKey};
use thiserror::Error;

/// Where a peer is and, for an encrypted link, which key it must prove.
///
/// Texts: `tcp://HOST:PORT`, `ipc://PATH`, `curve://HOST:PORT/KEY` (also `tcp+curve://`), `ipc+curve://PATH/KEY`; keys
/// as 64 hex, 52 base32z, 43 or 44 base64 or 40 Z85 characters. The QR form is upper case with `$…$` in the place of
/// the brackets of an IPv6 address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The host and port, or the path.
    pub place: Place,
    /// The key the peer must prove; none for a plain link.
    pub key: Option<PublicKey>,
}

/// The place of an [`Address`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A host by name or number, and a port above zero.
    Tcp {
        /// Name or number, without brackets.
        host: String,
        /// 1 to 65535.
        port: u16,
    },
    /// A Unix socket.
    Ipc(PathBuf),
}

/// Why a text is no address.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AddressError {
    /// The part before `://` is unknown.
    #[error("`{0}` does not begin with tcp://, ipc://, curve://, tcp+curve:// or ipc+curve://")]
    Scheme(String),
    /// There is no host, or brackets do not match.
    #[error("`{0}` has no host")]
    Host(String),
    /// There is no port between 1 and 65535.
    #[error("`{0}` has no port between 1 and 65535")]
    Port(String),
    /// There is no path.
    #[error("`{0}` has no path")]
    Path(String),
    /// An encrypted address needs the key of the peer behind a slash.
    #[error("`{0}` has no key behind the last slash")]
    NoKey(String),
    /// The key cannot be read.
    #[error("the key of the address: {0}")]
    Key(#[from] KeyTextError),
    /// Something follows the port of a plain address.
    #[error("`{0}` has more behind its port")]
    Trailing(String),
    /// The host has no address.
    #[error("host `{host}`: {reason}")]
    Resolve {
        /// The host.
        host: String,
        /// What the resolver said.
        reason: String,
    },
}

impl Address {
    /// A plain TCP address.
    #[must_use]
    pub fn tcp(address: SocketAddr) -> Self {
        Self {
            place: Place::Tcp {
                host: address.ip().to_string(),
                port: address.port(),
            },
            key: None,
        }
    }

    /// The address of what listens on `endpoint`, with the key it proves.
    #[must_use]
    pub fn of(endpoint: &Endpoint, key: Option<PublicKey>) -> Self {
        let place = match endpoint {
            Endpoint::Tcp(address) => Place::Tcp {
                host: address.ip().to_string(),
                port: address.port(),
            },
            Endpoint::Unix(path) => Place::Ipc(path.clone()),
        };
        Self { place, key }
    }

    /// Where to listen: the first address of a host name, which is looked up now, on the calling thread.
    ///
    /// # Errors
    /// [`AddressError::Resolve`] when the name has no address.
    pub fn endpoint(&self) -> Result<Endpoint, AddressError> {
        match &self.place {
            Place::Ipc(path) => Ok(Endpoint::Unix(path.clone())),
            Place::Tcp { host, port } => {
                let failed = |reason: String| AddressError::Resolve {
                    host: host.clone(),
                    reason,
                };
                let mut found = (host.as_str(), *port)
                    .to_socket_addrs()
                    .map_err(|error| failed(error.to_string()))?;
                found
                    .next()
                    .map(Endpoint::Tcp)
                    .ok_or_else(|| failed("no address".into()))
            }
        }
    }

    /// The form for QR codes, whose alphabet has upper case letters and `$` but no brackets. None for a Unix socket
    /// whose path would not survive upper case.
    #[must_use]
    pub fn to_qr(&self) -> Option<String> {
        let Place::Tcp { host, port } = &self.place else {
            return None;
        };
        let host = if host.contains(':') {
            format!("${host}$")
        } else {
            host.clone()
        };
        let text = match &self.key {
            None => format!("tcp://{host}:{port}"),
            Some(key) => format!("curve://{host}:{port}/{}", key.to_base32z()),
        };
        Some(text.to_uppercase())
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let text = text.trim();
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| AddressError::Scheme(text.into()))?;
        let scheme = scheme.to_ascii_lowercase();
        let (rest, key) = match scheme.as_str() {
            "tcp" | "ipc" => (rest, None),
            "curve" | "tcp+curve" | "ipc+curve" => {
                // A base64 key may itself contain slashes, so the host part ends at the first one; a path at the last
                // that leaves a key.
                let (place, key) = split_key(rest, scheme == "ipc+curve")
                    .ok_or(AddressError::NoKey(text.into()))?;
                (place, Some(key.parse()?))
            }
            _ => return Err(AddressError::Scheme(text.into())),
        };
        if scheme.starts_with("ipc") {
            return match rest {
                "" => Err(AddressError::Path(text.into())),
                path => Ok(Self {
                    place: Place::Ipc(path.into()),
                    key,
                }),
            };
        }
        let place = parse_host_port(text, rest)?;
        Ok(Self { place, key })
    }
}

fn split_key(rest: &str, is_path: bool) -> Option<(&str, &str)> {
    if !is_path {
        return rest.split_once('/');
    }
    let candidates = rest.match_indices('/').map(|(at, _)| rest.split_at(at));
    let mut keys = candidates.map(|(path, key)| (path, &key[1..]));
    keys.find(|(path, key)| !path.is_empty() && key.parse::<PublicKey>().is_ok())
        .or_else(|| rest.rsplit_once('/'))
}

fn parse_host_port(text: &str, rest: &str) -> Result<Place, AddressError> {
    let bracketed = [('[', ']'), ('$', '$')]
        .into_iter()
        .find(|(open, _)| rest.starts_with(*open));
    let (host, port) = match bracketed {
        Some((_, close)) => {
            let (host, after) = rest[1..]
                .split_once(close)
                .ok_or_else(|| AddressError::Host(text.into()))?;
            (host, after.strip_prefix(':').unwrap_or_default())
        }
        None => rest
            .rsplit_once(':')
            .ok_or_else(|| AddressError::Port(text.into()))?,
    };
    if host.is_empty() || bracketed.is_none() && host.contains([':', '/']) {
        return Err(AddressError::Host(text.into()));
    }
    if port.contains('/') {
        return Err(AddressError::Trailing(text.into()));
    }
    let port = port
        .parse::<u16>()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| AddressError::Port(text.into()))?;
    Ok(Place::Tcp {
        host: host.to_ascii_lowercase(),
        port,
    })
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.place, &self.key) {
            (Place::Tcp { .. }, None) => f.write_str("tcp://")?,
            (Place::Tcp { .. }, Some(_)) => f.write_str("curve://")?,
            (Place::Ipc(_), None) => f.write_str("ipc://")?,
            (Place::Ipc(_), Some(_)) => f.write_str("ipc+curve://")?,
        }
        match &self.place {
            Place::Tcp { host, port } if host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) => {
                write!(f, "[{host}]:{port}")?;
            }
            Place::Tcp { host, port } => write!(f, "{host}:{port}")?,
            Place::Ipc(path) => write!(f, "{}", path.display())?,
        }
        match &self.key {
            Some(key) => write!(f, "/{key}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: &str = "54fcba24e93249969316fb617c872bb0c1d1ff14800427c594cbfacf1bc2d652";

    #[test]
    fn addresses_read_and_print() {
        let check = |text: &str, prints: &str| {
            let address: Address = text
                .parse()
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(address.to_string(), prints);
            assert_eq!(prints.parse(), Ok(address));
        };
        check("tcp://127.0.0.1:5000", "tcp://127.0.0.1:5000");
        check("tcp://[::1]:5000", "tcp://[::1]:5000");
        check("TCP://EXAMPLE.ORG:1", "tcp://example.org:1");
        check(
            &format!("tcp+curve://h:9/{KEY}"),
            &format!("curve://h:9/{KEY}"),
        );
        check("ipc:///run/x.sock", "ipc:///run/x.sock");
        check(
            &format!("ipc+curve:///run/x.sock/{KEY}"),
            &format!("ipc+curve:///run/x.sock/{KEY}"),
        );
    }

    #[test]
    fn wrong_addresses_say_what_is_wrong() {
        let check = |text: &str, want: AddressError| {
            assert_eq!(text.parse::<Address>(), Err(want), "{text}")
        };
        check("127.0.0.1:1", AddressError::Scheme("127.0.0.1:1".into()));
        check("udp://h:1", AddressError::Scheme("udp://h:1".into()));
        check("tcp://h", AddressError::Port("tcp://h".into()));
        check("tcp://h:0", AddressError::Port("tcp://h:0".into()));
        check("tcp://h:65536", AddressError::Port("tcp://h:65536".into()));
        check("tcp://:1", AddressError::Host("tcp://:1".into()));
        check("tcp://::1:1", AddressError::Host("tcp://::1:1".into()));
        check("tcp://h:1/x", AddressError::Trailing("tcp://h:1/x".into()));
        check("curve://h:1", AddressError::NoKey("curve://h:1".into()));
        check(
            "curve://h:1/abc",
            AddressError::Key(KeyTextError::Length { chars: 3 }),
        );
        check("ipc://", AddressError::Path("ipc://".into()));
    }

    proptest! {
        #[test]
        fn qr_texts_read_back(key: Option<[u8; 32]>, ip: IpAddr, port in 1u16..) {
            let key = key.map(PublicKey::from_bytes);
            let address = Address { key, ..Address::tcp((ip, port).into()) };
            let qr = address.to_qr().unwrap();
            prop_assert!(qr.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b"$:/.".contains(&b)));
            prop_assert_eq!(qr.parse(), Ok(address.clone()));
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }

        #[test]
        fn any_text_parses_or_is_refused(text in "\\PC{0,80}") {
            let _ = text.parse::<Address>();
        }
    }
}
