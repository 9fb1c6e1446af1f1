//! How two ends agree on the keys of a sealed connection, within the greetings, over whatever carries them.
//!
//! The initiator knows the target's static key beforehand and shows its own only to the target: the pattern IK of the
//! Noise protocol framework (Perrin, revision 34), with HKDF-SHA256 (RFC 5869) once over the whole transcript. The
//! initiator's proof is its first record, which nobody else could have sealed.

mod record;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use slackwater_keys::AllowList;
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Features, Greeting};
use slackwater_zmtp::{KeyPair, PublicKey, SecretKey};
use subtle::ConstantTimeEq;
use thiserror::Error;
use zeroize::Zeroizing;

pub(crate) use record::{
    Cipher, Opener, PACKET_OVERHEAD, PacketOpener, PacketSealer, RECORD_BYTES_MAX, RecordKey,
    Sealer,
};

/// The keys of an engine whose connections are sealed; every one of them is, in both directions.
#[derive(Clone, Debug)]
pub struct SealConfig {
    /// The key pair of this engine, as `slackwater keys` makes it.
    pub keys: KeyPair,
    /// The keys that may connect to it.
    pub clients: AllowList,
}

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
    /// The operating system gives no randomness.
    #[error("the operating system gives no randomness")]
    Randomness,
}

/// The keys of one end of a sealed connection.
pub(crate) struct Keys {
    pub(crate) send: RecordKey,
    pub(crate) receive: RecordKey,
}

/// What a handshake is bound to besides its greetings: one that was begun for one connection ends on no other.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    label: &'static [u8],
    prologue: Vec<u8>,
}

/// An initiator that waits for the answer to its greeting.
#[derive(Debug)]
pub(crate) struct InitiatorHandshake {
    own: KeyPair,
    ephemeral: KeyPair,
    target: PublicKey,
    shared: Zeroizing<[u8; 32]>,
    hello: Greeting,
    channel: Channel,
}

impl Channel {
    /// A connection of which both ends see nothing but its bytes.
    pub(crate) const TCP: Self = Self {
        label: b"slackwater data plane, sealed, 1",
        prologue: Vec::new(),
    };

    /// A link between two processes of a host that have exchanged `hello`, and that the kernel names so: both ends must
    /// have seen the same.
    pub(crate) fn host(hello: &[u8], initiator: &[u8], target: &[u8]) -> Self {
        Self {
            label: b"slackwater host link, sealed, 1",
            prologue: hash(&[hello, initiator, target]).to_vec(),
        }
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
    /// Makes `hello` one that asks for a sealed connection to the owner of `target`.
    pub(crate) fn begin(
        own: &KeyPair,
        target: PublicKey,
        hello: Greeting,
        channel: Channel,
    ) -> Result<Self, SealError> {
        Self::with(own, fresh()?, target, hello, channel)
    }

    fn with(
        own: &KeyPair,
        ephemeral: KeyPair,
        target: PublicKey,
        hello: Greeting,
        channel: Channel,
    ) -> Result<Self, SealError> {
        let shared = ephemeral.agree(&target).ok_or(SealError::Proof)?;
        let mut hello = offer(hello, &ephemeral);
        hello.proof = masked(own.public().as_bytes(), &shared, &target, &hello, &channel);
        Ok(Self {
            own: own.clone(),
            ephemeral,
            target,
            shared,
            hello,
            channel,
        })
    }

    pub(crate) fn hello(&self) -> &Greeting {
        &self.hello
    }

    /// The keys, if the answer comes from the owner of the expected key.
    pub(crate) fn finish(self, answer: &Greeting) -> Result<Keys, SealError> {
        if !answer.features.has(Features::SEALED) {
            return Err(SealError::Unsealed);
        }
        if answer.public_key == [0; 32] {
            return Err(SealError::Refused);
        }
        let theirs = PublicKey::from_bytes(answer.public_key);
        let agree = |pair: &KeyPair, key| pair.agree(key).ok_or(SealError::Proof);
        let secrets = [
            self.shared,
            agree(&self.ephemeral, &theirs)?,
            agree(&self.own, &theirs)?,
            agree(&self.own, &self.target)?,
        ];
        let made = schedule(
            &secrets,
            [&self.target, &self.own.public()],
            &self.hello,
            answer,
            &self.channel,
        );
        if !bool::from(made.proof.ct_eq(&answer.proof)) {
            return Err(SealError::Proof);
        }
        Ok(Keys {
            send: made.initiator,
            receive: made.target,
        })
    }
}

/// The target's side: the key of the initiator, the answer to send, and the connection's keys. The initiator has proven
/// nothing before its first record opens.
pub(crate) fn answer(
    seal: &SealConfig,
    hello: &Greeting,
    answer: Greeting,
    channel: &Channel,
) -> Result<(PublicKey, Greeting, Keys), SealError> {
    answer_with(seal, fresh, hello, answer, channel)
}

fn answer_with(
    seal: &SealConfig,
    ephemeral: impl FnOnce() -> Result<KeyPair, SealError>,
    hello: &Greeting,
    answer: Greeting,
    channel: &Channel,
) -> Result<(PublicKey, Greeting, Keys), SealError> {
    if !hello.features.has(Features::SEALED) {
        return Err(SealError::Unsealed);
    }
    let (own, theirs) = (&seal.keys, PublicKey::from_bytes(hello.public_key));
    let agree = |pair: &KeyPair, key| pair.agree(key).ok_or(SealError::Refused);
    let shared = agree(own, &theirs)?;
    let client = masked(&hello.proof, &shared, &own.public(), hello, channel);
    let client = PublicKey::from_bytes(client);
    if !seal.clients.admits(&client) {
        return Err(SealError::Refused);
    }
    // Only now: a peer without a key that is listed costs one agreement.
    let ephemeral = ephemeral()?;
    let secrets = [
        shared,
        agree(&ephemeral, &theirs)?,
        agree(&ephemeral, &client)?,
        agree(own, &client)?,
    ];
    let mut answer = offer(answer, &ephemeral);
    let parties = [&own.public(), &client];
    let made = schedule(&secrets, parties, hello, &answer, channel);
    answer.proof = *made.proof;
    Ok((
        client,
        answer,
        Keys {
            send: made.target,
            receive: made.initiator,
        },
    ))
}

/// The answer to an initiator that is refused.
pub(crate) fn refusal(answer: Greeting) -> Greeting {
    Greeting {
        features: Features::SEALED,
        public_key: [0; 32],
        proof: [0; 32],
        ..answer
    }
}

/// A first block of HKDF-Expand: 32 bytes for one purpose.
fn expand(key: &[u8; 32], purpose: &[u8]) -> Zeroizing<[u8; 32]> {
    mac(key, &[purpose, &[1]])
}

fn fresh() -> Result<KeyPair, SealError> {
    let mut bytes = Zeroizing::new([0; 32]);
    getrandom::fill(bytes.as_mut_slice()).map_err(|_| SealError::Randomness)?;
    Ok(KeyPair::of(SecretKey::from_bytes(*bytes)))
}

fn offer(greeting: Greeting, ephemeral: &KeyPair) -> Greeting {
    let aes = match Cipher::has_aes() {
        true => Features::AES,
        false => Features::default(),
    };
    Greeting {
        features: greeting.features.with(Features::SEALED).with(aes),
        public_key: *ephemeral.public().as_bytes(),
        proof: [0; 32],
        ..greeting
    }
}

/// Masks or unmasks a static key: the mask is used once, with the initiator's key for one connection.
fn masked(
    key: &[u8; 32],
    shared: &[u8; 32],
    target: &PublicKey,
    hello: &Greeting,
    channel: &Channel,
) -> [u8; 32] {
    let Channel { label, prologue } = channel;
    let salt = hash(&[label, prologue, target.as_bytes(), &unproven(hello)]);
    let mask = expand(&mac(&salt, &[shared]), b"identity");
    std::array::from_fn(|index| key[index] ^ mask[index])
}

struct Schedule {
    initiator: RecordKey,
    target: RecordKey,
    proof: Zeroizing<[u8; 32]>,
}

/// HKDF over everything that both ends have sent and every secret they share. `parties` are the static keys of target
/// and initiator, `secrets` es, ee, se and ss in the terms of Noise.
fn schedule(
    secrets: &[Zeroizing<[u8; 32]>; 4],
    parties: [&PublicKey; 2],
    hello: &Greeting,
    answer: &Greeting,
    Channel { label, prologue }: &Channel,
) -> Schedule {
    let [target, initiator] = parties.map(PublicKey::as_bytes);
    let transcript = hash(&[
        label,
        prologue,
        target,
        initiator,
        &hello.to_bytes(),
        &unproven(answer),
    ]);
    let [es, ee, se, ss] = secrets;
    let key = mac(
        &transcript,
        &[es.as_slice(), ee.as_slice(), se.as_slice(), ss.as_slice()],
    );
    let both_aes = hello.features.has(Features::AES) && answer.features.has(Features::AES);
    let cipher = if both_aes {
        Cipher::Aes
    } else {
        Cipher::ChaCha
    };
    let direction = |purpose| RecordKey {
        secret: expand(&key, purpose),
        cipher,
    };
    Schedule {
        initiator: direction(b"records of the initiator"),
        target: direction(b"records of the target"),
        proof: expand(&key, b"proof of the target"),
    }
}

fn unproven(greeting: &Greeting) -> Vec<u8> {
    Greeting {
        proof: [0; 32],
        ..*greeting
    }
    .to_bytes()
    .to_vec()
}

fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

fn mac(key: &[u8; 32], parts: &[&[u8]]) -> Zeroizing<[u8; 32]> {
    let mut mac =
        <Hmac<Sha256> as Mac>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    Zeroizing::new(mac.finalize().into_bytes().into())
}

#[cfg(test)]
mod tests {
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
            public_key: [0; 32],
            proof: [0; 32],
        }
    }

    fn seal(own: u8, clients: &[u8]) -> SealConfig {
        SealConfig {
            keys: pair(own),
            clients: clients.iter().map(|byte| pair(*byte).public()).collect(),
        }
    }

    fn initiator(own: u8, target: u8) -> InitiatorHandshake {
        initiator_on(own, target, Channel::TCP)
    }

    fn initiator_on(own: u8, target: u8, channel: Channel) -> InitiatorHandshake {
        let target = pair(target).public();
        InitiatorHandshake::with(&pair(own), pair(9), target, greeting(1), channel).unwrap()
    }

    fn answered(
        seal: &SealConfig,
        hello: &Greeting,
        channel: &Channel,
    ) -> Result<(PublicKey, Greeting, Keys), SealError> {
        answer_with(seal, || Ok(pair(8)), hello, greeting(2), channel)
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn both_ends_agree_on_keys_and_the_target_learns_that_of_the_initiator() {
        let asks = initiator(1, 2);
        assert_ne!(asks.hello().proof, *pair(1).public().as_bytes());
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
    fn extraction_and_expansion_are_those_of_the_rfc() {
        let mut salt = [0; 32];
        // HMAC fills short keys up with zeros.
        (0..13).for_each(|index| salt[usize::from(index)] = index);
        let key = mac(&salt, &[&[0x0b; 22]]);
        assert_eq!(
            hex(&*key),
            "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5"
        );
        let info: Vec<u8> = (0xf0..=0xf9).collect();
        assert_eq!(
            hex(&*expand(&key, &info)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
        );
    }

    /// The schedule itself may not change without a new label.
    #[test]
    fn the_schedule_gives_the_known_answer() {
        let said = Greeting {
            features: Features::SEALED,
            ..greeting(1)
        };
        let secrets = [1, 2, 3, 4].map(|byte| Zeroizing::new([byte; 32]));
        let parties = [&pair(2).public(), &pair(1).public()];
        let made = schedule(&secrets, parties, &said, &said, &Channel::TCP);
        let found =
            [made.initiator.secret, made.target.secret, made.proof].map(|bytes| hex(&*bytes));
        // From an independent calculation with Python's hashlib and hmac.
        let expected = [
            "3da3e2f116481d43009b5ed28d1f7bc4f108ef24cf560fa87df8cb61eb8542fc",
            "c8356b2d3c978e42a9347e13357c01b08554fd7e218cea83fa4be2c4ff875c16",
            "bc57a2b17c9e9fd2f2741fb805d2e1aab202c897ac21358c96c33992bd4bfb9a",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn an_unexpected_or_unknown_key_makes_no_connection() {
        let refused =
            |seal: &SealConfig, hello: &Greeting| answered(seal, hello, &Channel::TCP).err();
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
            proof: [7; 32],
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
                let asks = initiator_on(1, 2, ours.clone());
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
        let reply = answered(
            &seal(2, &[1]),
            initiator_on(1, 2, theirs.clone()).hello(),
            &theirs,
        );
        let ended = initiator_on(1, 2, ours).finish(&reply.unwrap().1);
        assert_eq!(ended.err(), Some(SealError::Proof));
    }

    #[test]
    fn a_holder_follows_from_its_key() {
        assert_eq!(holder_of(&pair(1).public()), holder_of(&pair(1).public()));
        assert_ne!(holder_of(&pair(1).public()), holder_of(&pair(2).public()));
    }
}
