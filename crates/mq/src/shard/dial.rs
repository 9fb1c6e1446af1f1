//! How an outgoing link is connected: its name is looked up, then its addresses are tried one after the other.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_net::{Connect, Endpoint, Net};

use super::Shard;
use super::peers::At;
use crate::{Attempt, ConnectFailure, Place};

/// The address of an outgoing link, and the progress of the current round of attempts.
///
/// A round tries every address once, in the resolver's order (RFC 6724), and shares the time that is left evenly among
/// those still untried, so that one that does not answer leaves time for the others. Its time begins when the addresses
/// are known and ends, for a link that has never been up, when that one is given up.
pub(super) struct Dialing {
    place: Place,
    from: Option<SocketAddr>,
    /// Whether a loopback address is tried by the Unix socket beside it first.
    beside: bool,
    /// Time of a round.
    timeout: Duration,
    /// When the present round is to be over.
    until: Instant,
    /// What the name stood for when it was last looked up.
    known: Vec<SocketAddr>,
    is_resolving: bool,
    untried: VecDeque<Endpoint>,
    /// When a try by the socket beside an address gives way to TCP: what listens there may say nothing.
    gives_way: Instant,
    /// The outcomes of the addresses of this round so far.
    attempts: Vec<Attempt>,
    /// Why the name could not be looked up in this round.
    unresolved: Option<String>,
}

/// What comes next on the way to a connection.
pub(super) enum Next {
    /// Connect there.
    Try(Connect),
    /// The name must be looked up first.
    Resolve(String, u16),
    /// Every address has been tried.
    Exhausted,
}

impl Dialing {
    pub(super) fn new(
        place: Place,
        from: Option<SocketAddr>,
        beside: bool,
        timeout: Duration,
    ) -> Self {
        Self {
            place,
            from,
            beside,
            timeout,
            until: Instant::ZERO,
            known: Vec::new(),
            is_resolving: false,
            untried: VecDeque::new(),
            gives_way: Instant::NEVER,
            attempts: Vec::new(),
            unresolved: None,
        }
    }

    /// Whether what is tried now is the socket beside an address, which is tried by TCP after it.
    pub(super) fn is_beside(&self) -> bool {
        self.gives_way < Instant::NEVER
    }

    pub(super) fn gives_way(&self) -> Instant {
        self.gives_way
    }

    /// Begins a round of a link that is given up at `give_up`.
    pub(super) fn begin(&mut self, now: Instant, give_up: Instant) -> Next {
        self.until = give_up.min(now + self.timeout);
        self.attempts.clear();
        self.gives_way = Instant::NEVER;
        self.untried.clear();
        self.unresolved = None;
        match &self.place {
            Place::Ipc(path) => self.untried.push_back(Endpoint::Unix(path.clone())),
            Place::Tcp { host, port } => match host.parse::<IpAddr>() {
                Ok(ip) => self.untried.extend(ways(self.beside, (ip, *port).into())),
                Err(_) => {
                    self.is_resolving = true;
                    return Next::Resolve(host.clone(), *port);
                }
            },
        }
        self.next(now)
    }

    /// The name's addresses have come, or the reason why not; a name that is not known any more keeps those it had. The
    /// time of the round begins: a resolver may have taken longer than that. Whether the round waited for the name.
    fn resolved(
        &mut self,
        outcome: Result<Vec<SocketAddr>, String>,
        now: Instant,
        give_up: Instant,
    ) -> bool {
        if !std::mem::take(&mut self.is_resolving) {
            return false;
        }
        self.until = give_up.min(now + self.timeout);
        match outcome {
            Ok(addresses) => self.known = addresses,
            Err(error) => self.unresolved = Some(error),
        }
        let known = self.known.iter();
        self.untried = known
            .flat_map(|address| ways(self.beside, *address))
            .collect();
        true
    }

    /// The next address of the round.
    pub(super) fn next(&mut self, now: Instant) -> Next {
        let shares = self.untried.len() as u32;
        let Some(endpoint) = self.untried.pop_front() else {
            return Next::Exhausted;
        };
        let timeout = now.until(self.until) / shares;
        self.forget_beside();
        self.gives_way = match (&self.place, &endpoint) {
            (Place::Tcp { .. }, Endpoint::Unix(_)) => now + timeout,
            _ => Instant::NEVER,
        };
        self.attempts.push(Attempt {
            endpoint: endpoint.clone(),
            error: "no answer".into(),
        });
        Next::Try(Connect {
            endpoint,
            timeout,
            from: self.from,
            ports: None,
        })
    }

    /// The address that was tried last does not lead to the peer.
    pub(super) fn failed(&mut self, reason: &str) {
        if let Some(attempt) = self.attempts.last_mut() {
            reason.clone_into(&mut attempt.error);
        }
    }

    /// The link is up: frees the state of the round, which thousands of idle links would otherwise keep.
    pub(super) fn succeeded(&mut self) {
        self.attempts = Vec::new();
        self.gives_way = Instant::NEVER;
        self.untried = VecDeque::new();
    }

    pub(super) fn has_untried(&self) -> bool {
        !self.untried.is_empty()
    }

    /// That a listener has no socket beside it is nothing to tell.
    fn forget_beside(&mut self) {
        if self.is_beside() {
            self.attempts.pop();
        }
    }

    /// Why there is no link, for its opener.
    pub(super) fn failure(&mut self, reason: &str) -> ConnectFailure {
        self.forget_beside();
        match (&self.place, self.unresolved.take()) {
            (Place::Tcp { host, .. }, Some(error)) if self.attempts.is_empty() => {
                ConnectFailure::Unresolved {
                    host: host.clone(),
                    error,
                }
            }
            _ => ConnectFailure::Ended {
                reason: reason.to_owned(),
                attempts: std::mem::take(&mut self.attempts),
            },
        }
    }
}

/// How an address is tried, in order.
fn ways(beside: bool, address: SocketAddr) -> impl Iterator<Item = Endpoint> {
    let beside = Endpoint::beside(address).filter(|_| beside);
    beside.into_iter().chain([Endpoint::Tcp(address)])
}

impl Shard {
    /// Begins a round of attempts to connect.
    pub(super) fn dial(&mut self, net: &mut Net, at: At) {
        let now = net.now();
        let Some(outgoing) = self.peers.get_mut(at).and_then(|peer| peer.outgoing()) else {
            return;
        };
        outgoing.retry = Instant::NEVER;
        let next = outgoing.dialing.begin(now, outgoing.gives_up());
        self.go_on_dialing(net, at, next);
    }

    /// A name has been looked up.
    pub(super) fn on_resolved(
        &mut self,
        net: &mut Net,
        at: At,
        outcome: Result<Vec<SocketAddr>, String>,
    ) {
        let now = net.now();
        let Some(outgoing) = self.peers.get_mut(at).and_then(|peer| peer.outgoing()) else {
            return;
        };
        let give_up = outgoing.gives_up();
        if outgoing.dialing.resolved(outcome, now, give_up) {
            let next = outgoing.dialing.next(now);
            self.go_on_dialing(net, at, next);
        }
    }

    /// Tries the next address, unless there is none.
    pub(super) fn dial_next(&mut self, net: &mut Net, at: At) {
        let now = net.now();
        if let Some(outgoing) = self.peers.get_mut(at).and_then(|peer| peer.outgoing()) {
            let next = outgoing.dialing.next(now);
            self.go_on_dialing(net, at, next);
        }
    }

    fn go_on_dialing(&mut self, net: &mut Net, at: At, next: Next) {
        match next {
            Next::Try(connect) => match net.connect(&connect) {
                Ok(conn) => {
                    if let Some(peer) = self.peers.get_mut(at) {
                        peer.conn = Some(conn);
                    }
                    net.attach(conn, at.place());
                    self.arm(net, at);
                }
                Err(error) => self.lost(net, at, "connect_failed", &error.to_string(), false),
            },
            Next::Resolve(host, port) => {
                let link = crate::LinkId {
                    shard: self.number,
                    serial: at.serial(),
                };
                self.arm(net, at);
                if let Err(error) = self.context.resolve(&host, port, link) {
                    self.on_resolved(net, at, Err(error));
                }
            }
            Next::Exhausted => self.unresolved(net, at),
        }
    }

    /// The name has no address. A link that was never up ends with that; another is tried again later.
    fn unresolved(&mut self, net: &mut Net, at: At) {
        let Some(outgoing) = self.peers.get_mut(at).and_then(|peer| peer.outgoing()) else {
            return;
        };
        let reason = outgoing.dialing.unresolved.clone().unwrap_or_default();
        if outgoing.established {
            return self.lost(net, at, "unresolved", &reason, false);
        }
        self.context.metrics.count("link", "unresolved");
        self.forget(net, at, &reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(count)
    }

    /// A round's time went by while its name was looked up. Where the resolver took longer than a connection may, each
    /// address was given no time at all, and a link that was lost never came back.
    #[test]
    fn addresses_share_the_time_from_when_they_are_known_until_the_link_is_given_up() {
        let check = |begun, known, give_up, share| {
            let host = "somewhere.example".to_owned();
            let place = Place::Tcp { host, port: 7 };
            let mut dialing = Dialing::new(place, None, false, Duration::from_secs(10));
            assert!(matches!(
                dialing.begin(seconds(begun), give_up),
                Next::Resolve(..)
            ));
            let addresses = vec![([127, 0, 0, 1], 7).into(); 2];
            assert!(dialing.resolved(Ok(addresses), seconds(known), give_up));
            let Next::Try(connect) = dialing.next(seconds(known)) else {
                panic!("two addresses are untried");
            };
            assert_eq!(connect.timeout, Duration::from_secs(share));
        };
        check(0, 0, Instant::NEVER, 5);
        check(0, 30, Instant::NEVER, 5);
        check(0, 4, seconds(10), 3);
        check(6, 6, seconds(10), 2);
    }
}
