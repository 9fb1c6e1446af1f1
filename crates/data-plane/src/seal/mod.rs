//! How two ends agree on the keys of a sealed connection, within the greetings, over whatever carries them.
//!
//! The initiator knows the target's static key beforehand and shows its own only to the target: the pattern IK of the
//! Noise protocol framework (Perrin, revision 34), as `snow` implements it. Each greeting carries one of its two messages.
//! The terms of the first are in the prologue, and those of the second are the payload of its message, so both ends
//! have keys only if each has heard what the other has said. The initiator's proof that it is there now is its first
//! record: what it has sent before may be somebody's repetition.

mod aead;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod noise;
mod question;
mod record;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Features, Greeting, HANDSHAKE_BYTES, TERMS_BYTES};
use slackwater_zmtp::{KeyPair, PublicKey};
use snow::HandshakeState;
use thiserror::Error;
use zeroize::Zeroizing;

pub use aead::{AesLibrary, Cipher, UnknownAes};
pub use question::{AnsweredQuestions, Asked, Question};
pub use record::{
    Opener, PACKET_OVERHEAD, PacketOpener, PacketSealer, RECORD_BYTES_MAX, RecordKey, Sealer,
};

/// Why a connection is not sealed, or has lost its integrity.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SealError {
    /// One end seals its connections, and the other does not.
    #[error("one end asks for it, the other has no keys")]
    Unsealed,
    /// The target's allow-list lacks this key, or the target does not own the key that was expected of it.
    #[error("the target does not know our key, or has another than was expected of it")]
    Refused,
    /// The target did not prove that it owns the key that is expected of it.
    #[error("the target does not prove the key that is expected of it")]
    Proof,
    /// A record was changed, repeated, or left out on its way.
    #[error("a record is not the one that was sent")]
    Record,
    /// The key that a peer says is its own is not on our list.
    #[error("its key is not on our list of keys")]
    Unlisted,
    /// The operating system gives no randomness.
    #[error("the operating system gives no randomness")]
    Randomness,
}

/// The keys of one end of a sealed connection.
pub struct Keys {
    /// For what this end sends.
    pub send: RecordKey,
    /// For what it receives.
    pub receive: RecordKey,
}

/// What a handshake is bound to besides its greetings: one that was begun for one connection ends on no other.
#[derive(Clone, Debug)]
pub struct Channel {
    label: &'static [u8],
    prologue: Vec<u8>,
}

/// Random bytes for the key of one connection.
pub type Entropy = Zeroizing<[u8; 32]>;

/// An initiator that waits for the answer to its greeting.
#[derive(Debug)]
pub struct InitiatorHandshake {
    noise: HandshakeState,
    hello: Greeting,
}

/// A target that has read an initiator's greeting, and has yet to decide whether it lets its key in.
#[derive(Debug)]
pub struct TargetHandshake {
    noise: HandshakeState,
    hello: Greeting,
    client: PublicKey,
}

impl Channel {
    /// A connection of which both ends see nothing but its bytes.
    pub const TCP: Self = Self {
        label: b"slackwater data plane, sealed, 3",
        prologue: Vec::new(),
    };

    /// A link between two processes of a host that have exchanged `hello`, and that the kernel names so: both ends must
    /// have seen the same.
    pub fn host(hello: &[u8], initiator: &[u8], target: &[u8]) -> Self {
        Self {
            label: b"slackwater host link, sealed, 3",
            prologue: hash(&[hello, initiator, target]).to_vec(),
        }
    }

    /// The prologue of a handshake on this channel that begins with `hello`.
    fn prologue(&self, hello: &Greeting) -> Vec<u8> {
        [self.label, &self.prologue, &hello.terms()].concat()
    }
}

/// The holder that a key stands for on sealed connections: it follows from the key, so that nobody can claim it without
/// the key.
#[must_use]
pub fn holder_of(key: &PublicKey) -> Incarnation {
    let digest = hash(&[b"slackwater holder", key.as_bytes()]);
    let number = digest.first_chunk().copied().map_or(1, u64::from_le_bytes);
    // Zero stands for any bearer.
    Incarnation(number.max(1))
}

impl InitiatorHandshake {
    /// Makes `hello` one that asks for a sealed connection to the owner of `target`. The entropy may be used but once.
    pub fn begin(
        own: &KeyPair,
        entropy: &Entropy,
        target: PublicKey,
        hello: Greeting,
        channel: &Channel,
    ) -> Result<Self, SealError> {
        let mut hello = offer(hello);
        let prologue = channel.prologue(&hello);
        let begun = noise::initiator(own, entropy, &target, &prologue);
        let mut noise = begun.map_err(|_| SealError::Proof)?;
        let written = noise.write_message(&[], &mut hello.handshake);
        written.map_err(|_| SealError::Proof)?;
        Ok(Self { noise, hello })
    }

    /// The greeting to send.
    pub fn hello(&self) -> &Greeting {
        &self.hello
    }

    /// The keys, if the answer comes from the owner of the expected key.
    pub fn finish(mut self, answer: &Greeting) -> Result<Keys, SealError> {
        if !answer.features.has(Features::SEALED) {
            return Err(SealError::Unsealed);
        }
        if answer.handshake == [0; HANDSHAKE_BYTES] {
            return Err(SealError::Refused);
        }
        let mut terms = [0; TERMS_BYTES];
        let read = self.noise.read_message(&answer.handshake, &mut terms);
        if read != Ok(TERMS_BYTES) || terms != answer.terms() {
            return Err(SealError::Proof);
        }
        let [initiator, target] = record_keys(&mut self.noise, &self.hello, answer);
        Ok(Keys {
            send: initiator,
            receive: target,
        })
    }
}

impl TargetHandshake {
    /// Reads the greeting of an initiator. The entropy may be used but once.
    pub fn begin(
        own: &KeyPair,
        entropy: &Entropy,
        hello: &Greeting,
        channel: &Channel,
    ) -> Result<Self, SealError> {
        if !hello.features.has(Features::SEALED) {
            return Err(SealError::Unsealed);
        }
        let begun = noise::target(own, entropy, &channel.prologue(hello));
        let mut noise = begun.map_err(|_| SealError::Refused)?;
        // One agreement of keys for bytes that no owner of a key has made, and a second one for a key that is not listed.
        let read = noise.read_message(&hello.handshake, &mut []);
        read.map_err(|_| SealError::Refused)?;
        let client = noise
            .get_remote_static()
            .and_then(|key| key.try_into().ok());
        let client = PublicKey::from_bytes(client.ok_or(SealError::Refused)?);
        let hello = *hello;
        Ok(Self {
            noise,
            hello,
            client,
        })
    }

    /// The key that the initiator claims; it has proven nothing before its first record opens.
    pub fn client(&self) -> PublicKey {
        self.client
    }

    /// Lets the initiator in: the answer to send, and the connection's keys.
    pub fn finish(mut self, answer: Greeting) -> Result<(Greeting, Keys), SealError> {
        let mut answer = offer(answer);
        let terms = answer.terms();
        let written = self.noise.write_message(&terms, &mut answer.handshake);
        written.map_err(|_| SealError::Refused)?;
        let [initiator, target] = record_keys(&mut self.noise, &self.hello, &answer);
        let keys = Keys {
            send: target,
            receive: initiator,
        };
        Ok((answer, keys))
    }
}

/// The answer to an initiator that is refused.
pub fn refusal(answer: Greeting) -> Greeting {
    Greeting {
        features: Features::SEALED,
        handshake: [0; HANDSHAKE_BYTES],
        ..answer
    }
}

/// Adds to a greeting what a sealed connection needs.
fn offer(greeting: Greeting) -> Greeting {
    let aes = match Cipher::has_aes() {
        true => Features::AES,
        false => Features::default(),
    };
    Greeting {
        features: greeting.features.with(Features::SEALED).with(aes),
        ..greeting
    }
}

/// The keys of the records of the initiator and of the target, after the last message.
fn record_keys(noise: &mut HandshakeState, hello: &Greeting, answer: &Greeting) -> [RecordKey; 2] {
    let both_aes = hello.features.has(Features::AES) && answer.features.has(Features::AES);
    let cipher = match both_aes {
        true => Cipher::Aes,
        false => Cipher::ChaCha,
    };
    let (initiator, target) = noise.dangerously_get_raw_split();
    [initiator, target].map(|secret| RecordKey {
        secret: Zeroizing::new(secret),
        cipher,
    })
}

/// A first block of HKDF-Expand: 32 bytes for one purpose.
fn expand(key: &[u8; 32], purpose: &[u8]) -> Zeroizing<[u8; 32]> {
    let mut mac =
        <Hmac<Sha256> as Mac>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(purpose);
    mac.update(&[1]);
    Zeroizing::new(mac.finalize().into_bytes().into())
}

fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use slackwater_zmtp::SecretKey;

    use super::*;

    fn pair(byte: u8) -> KeyPair {
        KeyPair::of(SecretKey::from_bytes([byte; 32]))
    }

    fn greeting(incarnation: u64) -> Greeting {
        Greeting {
            version_min: 1,
            version_max: 1,
            features: Features::default(),
            incarnation: Incarnation(incarnation),
            expects: Incarnation(0),
            frame_bytes_max: 1 << 20,
            requests_max: 8,
            in_flight_bytes_max: 1 << 28,
            handshake: [0; HANDSHAKE_BYTES],
        }
    }

    /// A target, and the keys that it lets in.
    struct Target {
        keys: KeyPair,
        clients: Vec<PublicKey>,
    }

    fn seal(own: u8, clients: &[u8]) -> Target {
        Target {
            keys: pair(own),
            clients: clients.iter().map(|byte| pair(*byte).public()).collect(),
        }
    }

    fn initiator(own: u8, target: u8) -> InitiatorHandshake {
        initiator_on(own, target, &Channel::TCP)
    }

    fn initiator_on(own: u8, target: u8, channel: &Channel) -> InitiatorHandshake {
        let target = pair(target).public();
        InitiatorHandshake::begin(&pair(own), &[9; 32].into(), target, greeting(1), channel)
            .unwrap()
    }

    fn answered(
        seal: &Target,
        hello: &Greeting,
        channel: &Channel,
    ) -> Result<(PublicKey, Greeting, Keys), SealError> {
        let handshake = TargetHandshake::begin(&seal.keys, &[8; 32].into(), hello, channel)?;
        let client = handshake.client();
        if !seal.clients.contains(&client) {
            return Err(SealError::Refused);
        }
        let (answer, keys) = handshake.finish(greeting(2))?;
        Ok((client, answer, keys))
    }

    #[test]
    fn both_ends_agree_on_keys_and_the_target_learns_that_of_the_initiator() {
        let asks = initiator(1, 2);
        let shown = |key: PublicKey| {
            let mut windows = asks.hello().handshake.windows(32);
            windows.any(|window| window == key.as_bytes())
        };
        assert!(shown(pair(9).public()) && !shown(pair(1).public()));
        let (client, reply, target) =
            answered(&seal(2, &[1]), asks.hello(), &Channel::TCP).unwrap();
        assert_eq!(client, pair(1).public());
        let initiator = asks.finish(&reply).unwrap();
        assert_eq!(initiator.send.secret, target.receive.secret);
        assert_eq!(initiator.receive.secret, target.send.secret);
        assert_ne!(initiator.send.secret, initiator.receive.secret);
    }

    /// HKDF-SHA256 of RFC 5869, appendix A.1, as far as the first block goes.
    #[test]
    fn the_next_key_follows_by_the_expansion_of_the_rfc() {
        let bytes = |hex: &str| -> Vec<u8> {
            let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            (0..hex.len()).step_by(2).map(digit).collect()
        };
        let key = bytes("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5");
        let expected = bytes("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
        let info: Vec<u8> = (0xf0..=0xf9).collect();
        let found = expand(key.first_chunk().unwrap(), &info);
        assert_eq!(found.as_slice(), expected);
    }

    #[test]
    fn an_unexpected_or_unknown_key_makes_no_connection() {
        let refused = |seal: &Target, hello: &Greeting| answered(seal, hello, &Channel::TCP).err();
        // An unknown client, a client that expects another target, and one that seals nothing.
        assert_eq!(
            refused(&seal(2, &[3]), initiator(1, 2).hello()),
            Some(SealError::Refused)
        );
        assert_eq!(
            refused(&seal(2, &[1]), initiator(1, 3).hello()),
            Some(SealError::Refused)
        );
        assert_eq!(
            refused(&seal(2, &[1]), &greeting(1)),
            Some(SealError::Unsealed)
        );
        let ends = |answer: Greeting| initiator(1, 2).finish(&answer).err();
        assert_eq!(ends(greeting(2)), Some(SealError::Unsealed));
        assert_eq!(ends(refusal(greeting(2))), Some(SealError::Refused));
        // A target that has not the key, and a greeting that was changed in any byte on either way.
        let (_, reply, _) =
            answered(&seal(2, &[1]), initiator(1, 2).hello(), &Channel::TCP).unwrap();
        let forged = Greeting {
            handshake: [7; HANDSHAKE_BYTES],
            ..reply
        };
        assert_eq!(ends(forged), Some(SealError::Proof));
        for at in 8..reply.to_bytes().len() {
            let mut bytes = reply.to_bytes();
            bytes[at] ^= 1;
            let Ok(changed) = Greeting::from_bytes(&bytes) else {
                continue;
            };
            assert!(ends(changed).is_some(), "byte {at} of the answer");
            let mut bytes = initiator(1, 2).hello().to_bytes();
            bytes[at] ^= 1;
            let Ok(changed) = Greeting::from_bytes(&bytes) else {
                continue;
            };
            if let Ok((_, reply, _)) = answered(&seal(2, &[1]), &changed, &Channel::TCP) {
                assert!(ends(reply).is_some(), "byte {at} of the greeting");
            }
        }
    }

    /// What was said on one link is of no use on another, nor is what was said over TCP: descriptors of memory go with a
    /// link to the process at its other end, which need not be able to open its records.
    #[test]
    fn a_handshake_of_one_channel_ends_on_no_other() {
        let host = |hello: &[u8]| Channel::host(hello, b"one", b"two");
        let channels = [
            Channel::TCP,
            host(b"hello"),
            host(b"other"),
            Channel::host(b"hello", b"two", b"one"),
            Channel::host(b"hello", b"one", b"relay"),
        ];
        for (at, ours) in channels.iter().enumerate() {
            for (other, theirs) in channels.iter().enumerate() {
                let asks = initiator_on(1, 2, ours);
                // The key of an initiator is not even found under another channel.
                let reply = answered(&seal(2, &[1]), asks.hello(), theirs);
                assert_eq!(reply.is_ok(), at == other, "{at} and {other}");
                if let Ok((_, reply, _)) = reply {
                    assert!(asks.finish(&reply).is_ok());
                }
            }
        }
        // Nor does a target's answer count that was made for another.
        let (ours, theirs) = (host(b"hello"), host(b"other"));
        let reply = answered(&seal(2, &[1]), initiator_on(1, 2, &theirs).hello(), &theirs);
        let ended = initiator_on(1, 2, &ours).finish(&reply.unwrap().1);
        assert_eq!(ended.err(), Some(SealError::Proof));
    }

    #[test]
    fn a_holder_follows_from_its_key() {
        assert_eq!(holder_of(&pair(1).public()), holder_of(&pair(1).public()));
        assert_ne!(holder_of(&pair(1).public()), holder_of(&pair(2).public()));
    }
}
