//! How many handshakes of sealed connections one core makes in a second, without the sockets.
//!
//! ```text
//! cargo run --release -p slackwater-tcp --example handshakes
//! ```

#![expect(
    clippy::print_stdout,
    reason = "an example prints what it has measured"
)]
#![expect(
    clippy::unwrap_used,
    reason = "an example ends where something is wrong"
)]

use std::time::Instant;

use slackwater_data_plane::seal::{Channel, InitiatorHandshake, SealError, TargetHandshake};
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Features, Greeting, HANDSHAKE_BYTES, VERSION};
use slackwater_zmtp::{KeyPair, SecretKey};

const ROUNDS: u32 = 2000;

fn pair(byte: u8) -> KeyPair {
    KeyPair::of(SecretKey::from_bytes([byte; 32]))
}

fn greeting() -> Greeting {
    Greeting {
        version_min: VERSION,
        version_max: VERSION,
        features: Features::default(),
        incarnation: Incarnation(1),
        expects: Incarnation(2),
        frame_bytes_max: 1 << 20,
        requests_max: 8,
        in_flight_bytes_max: 1 << 28,
        handshake: [0; HANDSHAKE_BYTES],
    }
}

fn begin(own: &KeyPair, target: &KeyPair) -> InitiatorHandshake {
    let target = target.public();
    InitiatorHandshake::begin(own, &[9; 32].into(), target, greeting(), &Channel::TCP).unwrap()
}

fn measure(what: &str, mut once: impl FnMut()) {
    let start = Instant::now();
    (0..ROUNDS).for_each(|_| once());
    let each = start.elapsed() / ROUNDS;
    let rate = 1.0 / each.as_secs_f64();
    println!(
        "{what:<40} {:>7.1} us {rate:>9.0} a second",
        each.as_secs_f64() * 1e6
    );
}

fn main() {
    let [own, target, other] = [1, 2, 3].map(pair);
    let (listed, unlisted) = (begin(&own, &target), begin(&other, &target));
    let junk = Greeting {
        handshake: [7; HANDSHAKE_BYTES],
        ..*listed.hello()
    };
    let answered = |hello: &Greeting| {
        let handshake = TargetHandshake::begin(&target, &[8; 32].into(), hello, &Channel::TCP)?;
        if handshake.client() != own.public() {
            return Err(SealError::Refused);
        }
        handshake.finish(greeting()).map(|(reply, _)| reply)
    };
    measure("the target, a key that is listed", || {
        assert!(answered(listed.hello()).is_ok());
    });
    measure("the target, a key that is not listed", || {
        assert!(answered(unlisted.hello()).is_err());
    });
    measure("the target, bytes of nobody", || {
        assert!(answered(&junk).is_err());
    });
    measure("both ends", || {
        let asks = begin(&own, &target);
        let reply = answered(asks.hello()).unwrap();
        assert!(asks.finish(&reply).is_ok());
    });
}
