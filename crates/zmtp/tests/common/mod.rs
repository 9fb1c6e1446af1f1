//! Two links joined by a wire that splits the bytes at given sizes.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::sync::Arc;

use slackwater_base::Instant;
use slackwater_zmtp::*;

/// A link and everything that it returned.
pub(crate) struct End {
    pub(crate) link: Link,
    pub(crate) wire: Vec<u8>,
    pub(crate) events: Vec<Event>,
}

impl End {
    pub(crate) fn new(config: LinkConfig, entropy: u8) -> Self {
        let mut end = Self {
            link: Link::new(
                Arc::new(config),
                Entropy::new(random_like(entropy)),
                Instant::ZERO,
            ),
            wire: Vec::new(),
            events: Vec::new(),
        };
        let Self { link, wire, events } = &mut end;
        link.start(&mut Out { wire, events });
        end
    }

    pub(crate) fn handle(&mut self, input: Input<'_>) {
        self.handle_at(Instant::ZERO, input);
    }

    pub(crate) fn handle_at(&mut self, now: Instant, input: Input<'_>) {
        let Self { link, wire, events } = self;
        link.handle(now, input, &mut Out { wire, events });
    }

    pub(crate) fn deadline(&mut self, now: Instant) {
        let Self { link, wire, events } = self;
        link.on_deadline(now, &mut Out { wire, events });
    }

    pub(crate) fn send(&mut self, parts: &[&[u8]]) -> Result<(), SendError> {
        let Self { link, wire, events } = self;
        link.send(parts.iter().copied(), &mut Out { wire, events })
    }

    pub(crate) fn subscribe(&mut self, prefix: &[u8], wanted: bool, minor: u8) {
        let Self { link, wire, events } = self;
        link.subscribe(prefix, wanted, minor, &mut Out { wire, events })
            .expect("the link is up");
    }

    pub(crate) fn cause(&self) -> Option<&Cause> {
        self.events.iter().find_map(|event| {
            if let Event::Closed(cause) = event {
                Some(cause)
            } else {
                None
            }
        })
    }

    pub(crate) fn messages(&self) -> Vec<Message> {
        self.events
            .iter()
            .filter_map(|e| {
                if let Event::Message(m) = e {
                    Some(m.clone())
                } else {
                    None
                }
            })
            .collect()
    }

    pub(crate) fn peer(&self) -> Option<&Peer> {
        self.events.iter().find_map(|event| {
            if let Event::Up(peer) = event {
                Some(peer)
            } else {
                None
            }
        })
    }
}

/// Fixed bytes, different for each seed, instead of random ones.
pub(crate) fn random_like(seed: u8) -> [u8; Entropy::BYTES] {
    std::array::from_fn(|at| random_byte(seed, at))
}

/// The byte at `at` of [`random_like`].
pub(crate) fn random_byte(seed: u8, at: usize) -> u8 {
    seed.wrapping_mul(31)
        .wrapping_add((at as u8).wrapping_mul(7))
        ^ 0x5a
}

pub(crate) fn pair(seed: u8) -> KeyPair {
    KeyPair::of(SecretKey::from_bytes([seed; 32]))
}

pub(crate) fn null(socket: SocketType, side: Side) -> LinkConfig {
    LinkConfig::new(socket, Mechanism::Null(side))
}

pub(crate) fn curve_client(socket: SocketType, client: u8, server: u8) -> LinkConfig {
    LinkConfig::new(
        socket,
        Mechanism::CurveClient {
            keys: pair(client),
            server: pair(server).public(),
        },
    )
}

pub(crate) fn curve_server(socket: SocketType, server: u8) -> LinkConfig {
    LinkConfig::new(socket, Mechanism::CurveServer(pair(server)))
}

/// Carries bytes both ways, split into the given sizes in turn, and admits every peer, until there are no more bytes.
pub(crate) fn run(a: &mut End, b: &mut End, cuts: &[usize]) {
    let mut turn = 0;
    loop {
        let mut moved = false;
        for flip in [false, true] {
            let (from, to) = if flip {
                (&mut *b, &mut *a)
            } else {
                (&mut *a, &mut *b)
            };
            let bytes = std::mem::take(&mut from.wire);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let cut = cuts[turn % cuts.len()].clamp(1, rest.len());
                turn += 1;
                to.handle(Input::Bytes(&rest[..cut]));
                rest = &rest[cut..];
                moved = true;
            }
            if to
                .events
                .last()
                .is_some_and(|event| matches!(event, Event::Admission(_)))
            {
                to.handle(Input::Admit(Verdict::Accept));
                moved = true;
            }
        }
        if !moved {
            return;
        }
    }
}

/// A DEALER and a ROUTER with their handshake done, plain or encrypted.
pub(crate) fn joined(curve: bool) -> (End, End) {
    let (client, server) = match curve {
        false => (
            null(SocketType::Dealer, Side::Connect),
            null(SocketType::Router, Side::Listen),
        ),
        true => (
            curve_client(SocketType::Dealer, 1, 2),
            curve_server(SocketType::Router, 2),
        ),
    };
    let (mut client, mut server) = (End::new(client, 3), End::new(server, 4));
    run(&mut client, &mut server, &[usize::MAX]);
    assert!(
        client.link.is_up() && server.link.is_up(),
        "{:?} {:?}",
        client.cause(),
        server.cause()
    );
    (client, server)
}
