//! The local ports of outgoing connections, where a firewall lets only some of them through.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use socket2::Socket;
use thiserror::Error;

/// A range of local ports, both ends within it. Displayed and read as `20000-20999`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPorts {
    first: u16,
    last: u16,
}

/// A text that names no range of ports.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is no range of ports such as 20000-20999")]
pub struct NoPorts(String);

impl FromStr for LocalPorts {
    type Err = NoPorts;

    fn from_str(text: &str) -> Result<Self, NoPorts> {
        let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
        let ends = text.split_once('-');
        ends.and_then(|(first, last)| Some((port(first)?, port(last)?)))
            .filter(|(first, last)| first <= last)
            .map(|(first, last)| Self { first, last })
            .ok_or_else(|| NoPorts(text.to_owned()))
    }
}

impl fmt::Display for LocalPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl LocalPorts {
    /// Connects to `to` from one of the ports, and from the address `from` where there is one. `open` gives an unbound socket,
    /// `connect` connects it or begins to.
    ///
    /// Ports are taken in turn, so that one which was left is not needed again soon. Connections to different peers may
    /// share a port.
    ///
    /// # Errors
    /// [`ErrorKind::AddrInUse`] when none of the ports can lead to `to`; else those of `open`, of binding and of `connect`.
    pub fn connect(
        self,
        to: SocketAddr,
        from: Option<IpAddr>,
        open: impl Fn() -> io::Result<Socket>,
        connect: impl Fn(&Socket) -> io::Result<()>,
    ) -> io::Result<Socket> {
        let from = from.unwrap_or(match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        });
        let mut unbound = None;
        for port in self.in_turn() {
            let socket = match unbound.take() {
                Some(socket) => socket,
                None => open()?,
            };
            // Else a port could not be bound while a connection of its past waits for late segments, or for a second peer.
            socket.set_reuse_address(true)?;
            match socket.bind(&SocketAddr::new(from, port).into()) {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    unbound = Some(socket);
                    continue;
                }
                bound => bound?,
            }
            match connect(&socket) {
                // From this port there is a connection to the same place.
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {}
                connected => return connected.map(|()| socket),
            }
        }
        let used_up = format!("every local port of {self} is in use, for {to}");
        Err(io::Error::new(ErrorKind::AddrInUse, used_up))
    }

    /// All of them, from another one on each time.
    fn in_turn(self) -> impl Iterator<Item = u16> {
        static TURN: AtomicU32 = AtomicU32::new(0);
        let count = u64::from(self.last - self.first) + 1;
        // Processes that share a range begin at different places in it.
        let begin = u64::from(std::process::id()) * 61;
        let begin = begin + u64::from(TURN.fetch_add(1, Ordering::Relaxed));
        (begin..begin + count).map(move |turn| self.first + (turn % count) as u16)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::TcpListener;

    use socket2::{Domain, Type};

    use super::*;

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    fn connect(ports: LocalPorts, to: SocketAddr) -> io::Result<(Socket, u16)> {
        let open = || Socket::new(Domain::IPV4, Type::STREAM, None);
        let socket = ports.connect(to, None, open, |socket| socket.connect(&to.into()))?;
        let port = socket.local_addr()?.as_socket().unwrap().port();
        Ok((socket, port))
    }

    /// A port that no process listens on or is connected from, below those that the kernel gives out: the port of a listener
    /// that had been dropped was given to another test.
    fn free() -> LocalPorts {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let own = 22_000 + std::process::id() % 1_000 * 8;
        let ports = std::iter::repeat_with(|| own + NEXT.fetch_add(1, Ordering::Relaxed));
        let mut ports = ports.take(100).map(|port| port as u16);
        let is_free = |port: &u16| TcpListener::bind(("0.0.0.0", *port)).is_ok();
        let port = ports.find(is_free).expect("one of them is free");
        LocalPorts {
            first: port,
            last: port,
        }
    }

    #[test]
    fn ranges_are_read_as_they_are_displayed_and_others_are_told_off() {
        for text in ["1-65535", "20000-20999", "7-7"] {
            assert_eq!(text.parse::<LocalPorts>().unwrap().to_string(), text);
        }
        for text in ["", "7", "0-7", "8-7", "1-65536", "a-b", "1-2-3", "-"] {
            let error = text.parse::<LocalPorts>().unwrap_err();
            assert_eq!(error, NoPorts(text.to_owned()));
        }
    }

    #[test]
    fn every_port_has_its_turn_once() {
        for text in ["7-7", "65530-65535", "1-1000"] {
            let ports: LocalPorts = text.parse().unwrap();
            let all: BTreeSet<u16> = ports.in_turn().collect();
            assert_eq!(all, (ports.first..=ports.last).collect());
            assert_eq!(ports.in_turn().count(), all.len());
        }
        let ports: LocalPorts = "100-199".parse().unwrap();
        assert_ne!(ports.in_turn().next(), ports.in_turn().next());
    }

    #[test]
    fn one_port_leads_to_many_peers_but_once_to_each() {
        let ((_one, one), (_two, two)) = (listener(), listener());
        let ports = free();
        let first = connect(ports, one).unwrap();
        let second = connect(ports, two).unwrap();
        assert_eq!([first.1, second.1], [ports.first; 2]);
        let error = connect(ports, one).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let said = format!("every local port of {ports} is in use, for {one}");
        assert_eq!(error.to_string(), said);
    }

    #[test]
    fn a_port_that_is_listened_at_is_passed_over() {
        let ((_taken, taken), (_peer, peer)) = (listener(), listener());
        let port = taken.port();
        let only = LocalPorts {
            first: port,
            last: port,
        };
        let error = connect(only, peer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let wider = LocalPorts {
            first: port - 5,
            last: port,
        };
        for _ in 0..12 {
            if let Ok((_, from)) = connect(wider, peer) {
                assert!((wider.first..port).contains(&from), "{from} of {wider}");
                return;
            }
        }
        panic!("none of five other ports is free");
    }
}
