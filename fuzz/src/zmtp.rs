//! ZMTP links under hostile bytes: no panic, one end at most, and the same events however the bytes are cut.

use std::sync::Arc;

use slackwater_base::Instant;
use slackwater_zmtp::*;

/// What one target does with its bytes.
pub type Target = fn(&[u8]);

/// Every target, by the name of its corpus.
pub const TARGETS: [(&str, Target); 4] = [
    ("zmtp_greeting", greeting),
    ("zmtp_handshake", handshake),
    ("zmtp_commands", commands),
    ("zmtp_frames", frames),
];

/// The first bytes a listener ever sees, plain and encrypted.
pub fn greeting(bytes: &[u8]) {
    for make in [plain_listener, curve_listener] {
        same_at_any_cut(make, bytes);
    }
}

/// A genuine CURVE handshake of which one command is changed: the first three bytes say which and where, the rest is
/// laid over it by exclusive or.
pub fn handshake(bytes: &[u8]) {
    let [step, at_high, at_low, change @ ..] = bytes else {
        return;
    };
    let (mut client, mut server) = (curve_client(), curve_listener());
    for round in 0..8u8 {
        let (from, to) = if round % 2 == 0 {
            (&mut client, &mut server)
        } else {
            (&mut server, &mut client)
        };
        let mut wire = std::mem::take(&mut from.wire);
        if round == *step {
            let at = usize::from(u16::from_be_bytes([*at_high, *at_low]));
            wire.iter_mut()
                .skip(at)
                .zip(change)
                .for_each(|(byte, change)| *byte ^= change);
        }
        to.feed(&wire);
        to.admit();
    }
    let untouched = change.iter().all(|byte| *byte == 0);
    assert!(!untouched || *step >= 8 || (client.link.is_up() && server.link.is_up()));
}

/// Commands on a plain link that is up; the first byte chooses the socket type.
pub fn commands(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else {
        return;
    };
    let frame = match u8::try_from(body.len()) {
        Ok(short) => [&[4, short], body].concat(),
        Err(_) => [&[6][..], &(body.len() as u64).to_be_bytes(), body].concat(),
    };
    let make = if kind % 2 == 0 {
        router_that_is_up
    } else {
        publisher_that_is_up
    };
    same_at_any_cut(make, &frame);
}

/// Raw frames on a link that is up: the first byte chooses plain or encrypted.
pub fn frames(bytes: &[u8]) {
    let Some((kind, wire)) = bytes.split_first() else {
        return;
    };
    same_at_any_cut(
        if kind % 2 == 0 {
            router_that_is_up
        } else {
            curve_router_that_is_up
        },
        wire,
    );
}

struct End {
    link: Link,
    wire: Vec<u8>,
    events: Vec<Event>,
}

impl End {
    fn new(socket: SocketType, mechanism: Mechanism, seed: u8) -> Self {
        let mut config = LinkConfig::new(socket, mechanism);
        config.limits = Limits {
            frame_bytes: 4096,
            message_bytes: 8192,
            parts: 8,
            ..config.limits
        };
        let entropy = Entropy::new(std::array::from_fn(|i| seed.wrapping_add(i as u8)));
        let link = Link::new(Arc::new(config), entropy, Instant::ZERO);
        let mut end = Self {
            link,
            wire: Vec::new(),
            events: Vec::new(),
        };
        end.link.start(&mut Out {
            wire: &mut end.wire,
            events: &mut end.events,
        });
        end
    }

    fn feed(&mut self, bytes: &[u8]) {
        let Self { link, wire, events } = self;
        link.handle(
            Instant::ZERO,
            Input::Bytes(bytes),
            &mut Out { wire, events },
        );
    }

    fn admit(&mut self) {
        let Self { link, wire, events } = self;
        link.handle(
            Instant::ZERO,
            Input::Admit(Verdict::Accept),
            &mut Out { wire, events },
        );
    }
}

fn keys(seed: u8) -> KeyPair {
    KeyPair::of(SecretKey::from_bytes([seed; 32]))
}

fn plain_listener() -> End {
    End::new(SocketType::Router, Mechanism::Null(Side::Listen), 4)
}

fn curve_listener() -> End {
    End::new(SocketType::Router, Mechanism::CurveServer(keys(2)), 4)
}

fn curve_client() -> End {
    End::new(
        SocketType::Dealer,
        Mechanism::CurveClient {
            keys: keys(1),
            server: keys(2).public(),
        },
        3,
    )
}

fn router_that_is_up() -> End {
    up(
        End::new(SocketType::Dealer, Mechanism::Null(Side::Connect), 3),
        plain_listener(),
    )
}

fn publisher_that_is_up() -> End {
    let publisher = End::new(SocketType::Pub, Mechanism::Null(Side::Listen), 4);
    up(
        End::new(SocketType::Sub, Mechanism::Null(Side::Connect), 3),
        publisher,
    )
}

fn curve_router_that_is_up() -> End {
    up(curve_client(), curve_listener())
}

fn up(mut client: End, mut server: End) -> End {
    for _ in 0..4 {
        server.feed(&std::mem::take(&mut client.wire));
        server.admit();
        client.feed(&std::mem::take(&mut server.wire));
    }
    assert!(server.link.is_up());
    server.events.clear();
    server
}

fn same_at_any_cut(make: fn() -> End, bytes: &[u8]) {
    let run = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut end = make();
        pieces.for_each(|piece| end.feed(piece));
        end.admit();
        let ends = end
            .events
            .iter()
            .filter(|event| matches!(event, Event::Closed(_)))
            .count();
        assert!(ends <= 1 && (ends == 1) == end.link.is_closed());
        (end.events, end.wire)
    };
    let whole = run(&mut std::iter::once(bytes));
    let middle = bytes.len() / 2;
    for cut in [1, middle] {
        if cut > 0 && cut < bytes.len() {
            assert_eq!(
                run(&mut [&bytes[..cut], &bytes[cut..]].into_iter()),
                whole,
                "cut at {cut}"
            );
        }
    }
    assert_eq!(run(&mut bytes.chunks(1)), whole, "byte by byte");
}
