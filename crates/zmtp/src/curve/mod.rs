//! CURVE (ZeroMQ RFC 26): the handshake of both ends and the session it leaves behind.
//!
//! Letters as in the RFC: C and S are the long-term keys, C' and S' those of the connection, small letters their
//! secrets.

mod client;
mod server;

pub(crate) use client::{AwaitReady, AwaitWelcome};
pub(crate) use server::{AwaitInitiate, Initiated, hello};

use crate::Cause;
use crate::command::write_header;
use crate::crypto::{Lane, Nonce, Shared, TAG_BYTES};

/// Bytes a MESSAGE adds to the payload: name, counter, tag, flags.
pub(crate) const MESSAGE_OVERHEAD: usize = 33;

const CLIENT_LANE: &[u8; 16] = b"CurveZMQMESSAGEC";
const SERVER_LANE: &[u8; 16] = b"CurveZMQMESSAGES";
const MESSAGE_NAME: &[u8; 8] = b"\x07MESSAGE";
const SEALED_AT: usize = 16;

/// An established CURVE connection: the keys of both directions, derived from that of C' and S', and both counters.
/// It stays where it was made, so that its keys are wiped there and nowhere else.
pub(crate) struct Session {
    out: Lane,
    back: Lane,
    sent: u64,
    seen: u64,
}

impl Session {
    fn of_client(shared: &Shared, sent: u64, seen: u64) -> Box<Self> {
        Box::new(Self {
            out: shared.lane(CLIENT_LANE),
            back: shared.lane(SERVER_LANE),
            sent,
            seen,
        })
    }

    fn of_server(shared: &Shared, sent: u64, seen: u64) -> Box<Self> {
        Box::new(Self {
            out: shared.lane(SERVER_LANE),
            back: shared.lane(CLIENT_LANE),
            sent,
            seen,
        })
    }

    /// Appends the frame of a MESSAGE with `flags` and `payload`. Neither MORE nor COMMAND show outside, as in libzmq.
    pub(crate) fn seal(&mut self, flags: u8, payload: &[u8], wire: &mut Vec<u8>) {
        self.sent += 1;
        write_header(0, MESSAGE_OVERHEAD + payload.len(), wire);
        wire.extend_from_slice(MESSAGE_NAME);
        wire.extend_from_slice(&self.sent.to_be_bytes());
        self.out
            .seal(&self.sent.to_be_bytes(), &[&[flags], payload], wire);
    }

    /// Opens the body of a MESSAGE in place and returns its inner flags; the payload is then from
    /// [`MESSAGE_OVERHEAD`] on.
    pub(crate) fn open(&mut self, body: &mut [u8]) -> Result<u8, Cause> {
        let Some((head, sealed)) = body.split_at_mut_checked(SEALED_AT) else {
            return Err(Cause::Malformed { what: "MESSAGE" });
        };
        if &head[..8] != MESSAGE_NAME || sealed.len() <= TAG_BYTES {
            return Err(Cause::Malformed { what: "MESSAGE" });
        }
        let counter = rising(counter_of(&head[8..]), self.seen)?;
        if !self.back.open(&counter.to_be_bytes(), sealed) {
            return Err(Cause::BoxClosed { what: "MESSAGE" });
        }
        self.seen = counter;
        Ok(sealed[TAG_BYTES])
    }
}

/// A nonce of a counter: strictly rising per direction, so that no nonce serves twice under one key.
fn counter_nonce(prefix: &[u8; 16], counter: u64) -> Nonce {
    let mut nonce = [0; 24];
    nonce[..16].copy_from_slice(prefix);
    nonce[16..].copy_from_slice(&counter.to_be_bytes());
    nonce
}

/// A nonce of random bytes.
fn random_nonce(prefix: &[u8; 8], random: &[u8; 16]) -> Nonce {
    let mut nonce = [0; 24];
    nonce[..8].copy_from_slice(prefix);
    nonce[8..].copy_from_slice(random);
    nonce
}

fn counter_of(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|i| bytes[i]))
}

fn rising(got: u64, last: u64) -> Result<u64, Cause> {
    if got > last {
        Ok(got)
    } else {
        Err(Cause::Replayed { last, got })
    }
}

/// The 32 bytes of a key at `at`; the caller has checked the length.
fn key_at(bytes: &[u8], at: usize) -> [u8; 32] {
    std::array::from_fn(|i| bytes[at + i])
}
