//! The routes to one peer, and the order in which they are tried.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use slackwater_base::{Backoff, Instant, Rng};
use slackwater_wire::data::Segment;

use super::Limits;

/// One route to a peer: an address of this host, where one is configured, and an address of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// None lets the kernel choose.
    pub(crate) from: Option<IpAddr>,
    pub(crate) to: SocketAddr,
}

impl Route {
    /// Whether it leaves from one of the addresses that are preferred, if any are.
    pub(super) fn is_near(&self, near: &[IpAddr]) -> bool {
        near.is_empty() || self.from.is_some_and(|from| near.contains(&from))
    }
}

/// The routes to one peer. Lanes take them in turn. A route that fails rests while others are tried; when all have
/// failed there is a pause, which grows until the peer has answered a request.
#[derive(Debug)]
pub(super) struct Routes {
    states: Vec<RouteState>,
    next: usize,
    backoff: Backoff,
    jitter: Rng,
    /// How often all routes have failed since the peer last answered.
    failures: u32,
    /// The end of the pause.
    retry_at: Instant,
}

#[derive(Debug)]
struct RouteState {
    route: Route,
    rests_until: Instant,
}

impl Routes {
    pub(super) fn new(segment: &Segment, limits: &Limits, jitter: Rng) -> Self {
        let routes = segment
            .addresses
            .iter()
            .flat_map(|to| routes_to(*to, &limits.local));
        // A route is found by what it is, so none may be there twice.
        let mut states: Vec<RouteState> = Vec::new();
        for route in routes {
            if !states.iter().any(|state| state.route == route) {
                states.push(RouteState {
                    route,
                    rests_until: Instant::ZERO,
                });
            }
        }
        Self {
            states,
            next: 0,
            backoff: limits.retry,
            jitter,
            failures: 0,
            retry_at: Instant::ZERO,
        }
    }

    /// The route to try now, from one of the addresses that are near if one of those does not rest; none during a pause.
    /// It is the next one again until it is taken.
    pub(super) fn next(&self, now: Instant, near: &[IpAddr]) -> Option<Route> {
        // The first of equals is the one whose turn it is.
        self.awake(now).min_by_key(|route| !route.is_near(near))
    }

    /// The next route to try from an address that is not near; none during a pause, or while all of those rest.
    pub(super) fn next_far(&self, now: Instant, near: &[IpAddr]) -> Option<Route> {
        self.awake(now).find(|route| !route.is_near(near))
    }

    /// The routes that may be tried now, from the one whose turn it is.
    fn awake(&self, now: Instant) -> impl Iterator<Item = Route> {
        let count = match self.retry_at > now {
            true => 0,
            false => self.states.len(),
        };
        let turn = (0..count).map(move |step| &self.states[(self.next + step) % count]);
        turn.filter(move |state| state.rests_until <= now)
            .map(|state| state.route)
    }

    /// A connection is made by this route: it is the turn of the one after it.
    pub(super) fn take(&mut self, route: Route) {
        let taken = self.states.iter().position(|state| state.route == route);
        self.next = taken.map_or(self.next, |index| index + 1);
    }

    /// The end of the pause.
    pub(super) fn retry_at(&self) -> Instant {
        self.retry_at
    }

    /// A connection was made. That does not end the growth of the pauses: a peer may greet and then close the
    /// connection at the first request.
    pub(super) fn stood(&mut self, route: Route) {
        self.retry_at = Instant::ZERO;
        self.states
            .iter_mut()
            .filter(|state| state.route == route)
            .for_each(|state| state.rests_until = Instant::ZERO);
    }

    /// No connection could be made, or it broke before a request was answered.
    pub(super) fn failed(&mut self, route: Route, now: Instant, rest: Duration) {
        self.states
            .iter_mut()
            .filter(|state| state.route == route)
            .for_each(|state| state.rests_until = now + rest);
        if self.states.iter().any(|state| state.rests_until <= now) {
            self.retry_at = now;
            return;
        }
        self.states
            .iter_mut()
            .for_each(|state| state.rests_until = Instant::ZERO);
        self.retry_at = now + self.backoff.pause(self.failures, &mut self.jitter);
        self.failures = self.failures.saturating_add(1);
    }

    /// The peer has answered a request.
    pub(super) fn answered(&mut self) {
        self.failures = 0;
    }
}

/// The routes to one address: from each configured local address of the same family and reach, or from the one that the
/// kernel chooses.
fn routes_to(to: SocketAddr, local: &[IpAddr]) -> Vec<Route> {
    let fits = |from: &&IpAddr| {
        from.is_ipv4() == to.is_ipv4() && from.is_loopback() == to.ip().is_loopback()
    };
    let routes: Vec<Route> = local
        .iter()
        .filter(fits)
        .map(|from| Route {
            from: Some(*from),
            to,
        })
        .collect();
    if routes.is_empty() {
        vec![Route { from: None, to }]
    } else {
        routes
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NOW, limits, peer};
    use super::*;

    const REST: Duration = Duration::from_secs(30);

    fn routes(local: &[&str], addresses: &[&str]) -> Routes {
        let local = local.iter().map(|text| text.parse().unwrap()).collect();
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let segment = Segment {
            addresses,
            ..Segment::clone(&peer(1))
        };
        Routes::new(&segment, &Limits { local, ..limits() }, Rng::new(1))
    }

    fn pick(routes: &mut Routes, now: Instant) -> Option<Route> {
        let route = routes.next(now, &[])?;
        routes.take(route);
        Some(route)
    }

    #[test]
    fn lanes_spread_over_pairs_of_one_family_and_reach() {
        let mut routes = routes(
            &["10.0.0.1", "10.0.0.2", "127.0.0.9"],
            &["10.0.1.1:1", "[2001:db8::1]:1", "127.0.0.1:1"],
        );
        let taken: Vec<String> = (0..5)
            .map(|_| pick(&mut routes, NOW).unwrap())
            .map(|route| {
                format!(
                    "{} > {}",
                    route.from.map_or_else(String::new, |from| from.to_string()),
                    route.to
                )
            })
            .collect();
        let expected = [
            "10.0.0.1 > 10.0.1.1:1",
            "10.0.0.2 > 10.0.1.1:1",
            " > [2001:db8::1]:1",
            "127.0.0.9 > 127.0.0.1:1",
            "10.0.0.1 > 10.0.1.1:1",
        ];
        assert_eq!(taken, expected);
    }

    /// Whose turn comes next was found by equality, from the front: with an address that was configured or published twice the
    /// turn went back to the first of the two, and the routes after the second were never taken.
    #[test]
    fn addresses_that_are_there_twice_do_not_hide_the_others() {
        let check = |local: &[&str], addresses: &[&str], expected: [&str; 3]| {
            let mut routes = routes(local, addresses);
            let taken = [(); 3].map(|()| pick(&mut routes, NOW).unwrap());
            let taken = taken.map(|route| match route.from {
                Some(from) => from.to_string(),
                None => route.to.to_string(),
            });
            assert_eq!(taken, expected, "{local:?} {addresses:?}");
        };
        let (one, other) = ("10.0.0.1", "10.0.0.2");
        check(&[one, one, other], &["10.0.1.1:1"], [one, other, one]);
        let (one, other) = ("10.0.1.1:1", "10.0.1.2:1");
        check(&[], &[one, one, other], [one, other, one]);
    }

    #[test]
    fn a_way_that_fails_rests_and_pauses_grow_until_something_is_answered() {
        let mut routes = routes(&[], &["10.0.1.1:1", "10.0.1.2:1"]);
        let first = pick(&mut routes, NOW).unwrap();
        routes.failed(first, NOW, REST);
        let second = pick(&mut routes, NOW).unwrap();
        assert_ne!(first, second);
        routes.stood(second);
        assert_eq!(
            pick(&mut routes, NOW),
            Some(second),
            "the first still rests"
        );
        let pause = |routes: &mut Routes| {
            [first, second]
                .into_iter()
                .for_each(|route| routes.failed(route, NOW, REST));
            assert_eq!(pick(routes, NOW), None);
            NOW.until(routes.retry_at())
        };
        let pauses: Vec<Duration> = (0..12).map(|_| pause(&mut routes)).collect();
        assert!(pauses[0] <= Duration::from_millis(100), "{pauses:?}");
        assert!(
            pauses
                .iter()
                .any(|pause| *pause >= Duration::from_millis(500)),
            "{pauses:?}"
        );
        routes.answered();
        assert!(pause(&mut routes) <= Duration::from_millis(100));
        assert!(pick(&mut routes, NOW + REST).is_some());
    }

    #[test]
    fn a_peer_without_an_address_is_never_tried() {
        assert_eq!(pick(&mut routes(&[], &[]), NOW), None);
    }

    #[test]
    fn near_addresses_come_first_and_the_others_while_those_rest() {
        let mut routes = routes(
            &["10.0.0.1", "10.0.0.2", "10.0.0.3"],
            &["10.0.1.1:1", "10.0.1.2:1"],
        );
        let near: Vec<IpAddr> = ["10.0.0.2", "10.0.0.3"]
            .map(|text| text.parse().unwrap())
            .to_vec();
        let taken = |routes: &mut Routes, now: Instant, count: usize| -> Vec<String> {
            let turn = (0..count).map(|_| {
                let route = routes.next(now, &near).unwrap();
                routes.take(route);
                let from = route.from.unwrap().to_string();
                format!("{} > {}", from.trim_start_matches("10.0.0."), route.to)
            });
            turn.collect()
        };
        let all = taken(&mut routes, NOW, 5);
        let expected = [
            "2 > 10.0.1.1:1",
            "3 > 10.0.1.1:1",
            "2 > 10.0.1.2:1",
            "3 > 10.0.1.2:1",
            "2 > 10.0.1.1:1",
        ];
        assert_eq!(all, expected);
        for state in routes
            .states
            .iter()
            .map(|state| state.route)
            .collect::<Vec<_>>()
        {
            if state.is_near(&near) {
                routes.failed(state, NOW, REST);
            }
        }
        assert_eq!(
            taken(&mut routes, NOW, 2),
            ["1 > 10.0.1.2:1", "1 > 10.0.1.1:1"]
        );
        assert_eq!(taken(&mut routes, NOW + REST, 1), ["2 > 10.0.1.1:1"]);
    }
}
