//! Noise IK of `snow`, with the keys of the message layer, the AES-GCM of the records, and randomness as an argument.

use sha2::{Digest, Sha256};
use slackwater_zmtp::{KeyPair, PublicKey, SecretKey};
use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, Error, HandshakeState};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::Entropy;
use super::aead::{AeadKey, KEY_BYTES, NONCE_BYTES, TAG_BYTES};

/// What both ends name it: an end that implements another has other keys.
const PROTOCOL: &str = "Noise_IK_25519_AESGCM_SHA256";

/// An initiator with the key pair `own`, to the owner of `target`.
pub(super) fn initiator(
    own: &KeyPair,
    entropy: &Entropy,
    target: &PublicKey,
    prologue: &[u8],
) -> Result<HandshakeState, Error> {
    builder(own, entropy)?
        .local_private_key(own.secret().expose())?
        .remote_public_key(target.as_bytes())?
        .prologue(prologue)?
        .build_initiator()
}

/// A target with the key pair `own`.
pub(super) fn target(
    own: &KeyPair,
    entropy: &Entropy,
    prologue: &[u8],
) -> Result<HandshakeState, Error> {
    builder(own, entropy)?
        .local_private_key(own.secret().expose())?
        .prologue(prologue)?
        .build_responder()
}

fn builder<'a>(own: &KeyPair, entropy: &Entropy) -> Result<Builder<'a>, Error> {
    let params: NoiseParams = PROTOCOL.parse()?;
    let primitives = Primitives {
        own: own.clone(),
        entropy: entropy.clone(),
    };
    Ok(Builder::with_resolver(params, Box::new(primitives)))
}

/// What one handshake is computed with.
struct Primitives {
    own: KeyPair,
    entropy: Entropy,
}

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once(Some(self.entropy.clone()))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        let own = self.own.clone();
        matches!(choice, DHChoice::Curve25519).then(|| Box::new(Agreement::of(own)) as _)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::SHA256).then(|| Box::new(Digested(Sha256::new())) as _)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(choice, CipherChoice::AESGCM).then(|| Box::new(Sealing(None)) as _)
    }
}

/// The entropy of one key; it is given out once.
struct Once(Option<Entropy>);

impl Random for Once {
    fn try_fill_bytes(&mut self, into: &mut [u8]) -> Result<(), Error> {
        let entropy = self.0.take().filter(|entropy| entropy.len() == into.len());
        into.copy_from_slice(&*entropy.ok_or(Error::Rng)?);
        Ok(())
    }
}

/// X25519 (RFC 7748) with a key pair, at first that of this process.
struct Agreement {
    pair: KeyPair,
    public: PublicKey,
}

impl Agreement {
    fn of(pair: KeyPair) -> Self {
        let public = pair.public();
        Self { pair, public }
    }
}

impl Dh for Agreement {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_BYTES
    }

    fn priv_len(&self) -> usize {
        KEY_BYTES
    }

    fn set(&mut self, secret: &[u8]) {
        // The public half of the key of this process is known, and costs a multiplication to find again.
        if !bool::from(self.pair.secret().expose().as_slice().ct_eq(secret)) {
            let secret = Zeroizing::new(std::array::from_fn(|at| secret[at]));
            *self = Self::of(KeyPair::of(SecretKey::from_bytes(*secret)));
        }
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), Error> {
        let mut secret = Zeroizing::new([0; KEY_BYTES]);
        random.try_fill_bytes(secret.as_mut_slice())?;
        *self = Self::of(KeyPair::of(SecretKey::from_bytes(*secret)));
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        self.public.as_bytes()
    }

    fn privkey(&self) -> &[u8] {
        self.pair.secret().expose()
    }

    /// Refuses points of small order, with which any peer could compute the secret; Noise lets either be done.
    fn dh(&self, other: &[u8], secret: &mut [u8]) -> Result<(), Error> {
        let other = other.first_chunk().ok_or(Error::Dh)?;
        let agreed = self.pair.agree(&PublicKey::from_bytes(*other));
        secret
            .get_mut(..KEY_BYTES)
            .ok_or(Error::Dh)?
            .copy_from_slice(&*agreed.ok_or(Error::Dh)?);
        Ok(())
    }
}

/// SHA-256.
struct Digested(Sha256);

impl Hash for Digested {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0.reset();
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        out[..32].copy_from_slice(&self.0.finalize_reset());
    }
}

/// AES-256-GCM, with the nonces of Noise: 32 bits of zeros, and the number of the message, most significant byte first.
struct Sealing(Option<AeadKey>);

impl Sealing {
    fn key(&self) -> &AeadKey {
        self.0
            .as_ref()
            .expect("a cipher has a key before it is used")
    }

    fn nonce(number: u64) -> [u8; NONCE_BYTES] {
        let mut nonce = [0; NONCE_BYTES];
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        nonce
    }
}

impl Cipher for Sealing {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; KEY_BYTES]) {
        self.0 = Some(AeadKey::new(super::Cipher::Aes, key));
    }

    fn encrypt(&self, number: u64, authentic: &[u8], text: &[u8], out: &mut [u8]) -> usize {
        let (sealed, rest) = out.split_at_mut(text.len());
        sealed.copy_from_slice(text);
        let tag = self.key().seal(Self::nonce(number), authentic, sealed);
        rest[..TAG_BYTES].copy_from_slice(&tag);
        text.len() + TAG_BYTES
    }

    fn decrypt(
        &self,
        number: u64,
        authentic: &[u8],
        sealed: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let (text, tag) = sealed.split_last_chunk().ok_or(Error::Decrypt)?;
        let out = out.get_mut(..text.len()).ok_or(Error::Decrypt)?;
        out.copy_from_slice(text);
        match self.key().open(Self::nonce(number), authentic, out, tag) {
            true => Ok(text.len()),
            false => Err(Error::Decrypt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::aead::AesLibrary;
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digit).collect()
    }

    fn secret(hex: &str) -> Entropy {
        Zeroizing::new(bytes(hex).try_into().unwrap())
    }

    fn pair(hex: &str) -> KeyPair {
        KeyPair::of(SecretKey::from_bytes(*secret(hex)))
    }

    const INITIATOR: &str = "e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1";
    const TARGET: &str = "4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893";
    const PROLOGUE: &str = "4a6f686e2047616c74";

    fn ends() -> [HandshakeState; 2] {
        let [initiating, answering] = [
            "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a",
            "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b",
        ]
        .map(secret);
        let (own, other, prologue) = (pair(INITIATOR), pair(TARGET), bytes(PROLOGUE));
        [
            initiator(&own, &initiating, &other.public(), &prologue).unwrap(),
            target(&other, &answering, &prologue).unwrap(),
        ]
    }

    /// The vector of Noise_IK_25519_AESGCM_SHA256 of cacophony, a Noise of Haskell, as `tests/vectors/cacophony.txt` of
    /// snow 0.10 has it: two messages of the handshake, two each way under the keys that both ends have then, and the hash
    /// of it all.
    #[test]
    fn messages_and_keys_are_those_of_the_published_vector() {
        let known = pair(TARGET).public();
        assert_eq!(
            known.as_bytes().as_slice(),
            bytes("31e0303fd6418d2f8c0e78b91f22e8caed0fbe48656dcf4767e4834f701b8f62")
        );
        let handshake = [
            (
                "4c756477696720766f6e204d69736573",
                "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c79444e417bc55c7a8166c9\
                 93356c1be41ef67818a292426f301556c7f26b21d25ddb097153891a9a956cff47b83e63ad8d701c13\
                 42c209cff1ca5ecd43402762ac249e3bd3a4c0a145fe07cb5dae28ea13a3",
            ),
            (
                "4d757272617920526f746862617264",
                "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843af2ccf9972e22afc67\
                 aeafcd25162f7f98c363b7762e3e4cb7d272e39f27a5",
            ),
        ];
        let [mut says, mut hears] = ends();
        for (payload, message) in handshake.map(|(text, sealed)| (bytes(text), bytes(sealed))) {
            let (mut sent, mut heard) = ([0; 256], [0; 256]);
            let sent_bytes = says.write_message(&payload, &mut sent).unwrap();
            assert_eq!(sent[..sent_bytes], message);
            let heard_bytes = hears.read_message(&message, &mut heard).unwrap();
            assert_eq!(heard[..heard_bytes], payload);
            (says, hears) = (hears, says);
        }
        let (initiator, target) = (&mut says, &mut hears);
        assert_eq!(
            target.get_remote_static(),
            Some(pair(INITIATOR).public().as_bytes().as_slice())
        );
        let hash = bytes("669c8640d9e42a3cda2f232f78597ceefb01daa6e3df81181ccce6fc6b5026bf");
        assert_eq!(initiator.get_handshake_hash(), hash);
        assert_eq!(target.get_handshake_hash(), hash);
        let (sends, answers) = initiator.dangerously_get_raw_split();
        assert_eq!(target.dangerously_get_raw_split(), (sends, answers));
        let transport = [
            (
                (sends, 0),
                "462e20412e20486179656b",
                "66acfc92e3197de166809e6d4d5d003dcc819a84bc3522ca53c9d9",
            ),
            (
                (answers, 0),
                "4361726c204d656e676572",
                "71f89aa6533a6de70b0826864dd75f60806ee40170c16290189eb3",
            ),
            (
                (sends, 1),
                "4a65616e2d426170746973746520536179",
                "4795a3423550c8bf00386bd496a3e2c76c10669d2a75ab8f79b5094c5412a25705",
            ),
            (
                (answers, 1),
                "457567656e2042f6686d20766f6e2042617765726b",
                "aa0bb39097555c918e40be82abc2b909eb79d9eb87adb07e268fc37323a6cf904fd01fb391",
            ),
        ];
        for ((key, number), text, sealed) in transport {
            let (text, sealed) = (bytes(text), bytes(sealed));
            for library in AesLibrary::ALL {
                let cipher = Sealing(Some(AeadKey::aes(*library, &key)));
                let mut out = [0; 64];
                let length = cipher.encrypt(number, &[], &text, &mut out);
                assert_eq!(out[..length], sealed, "{library}");
                let length = cipher.decrypt(number, &[], &sealed, &mut out);
                assert_eq!(length, Ok(text.len()), "{library}");
                assert_eq!(out[..text.len()], text, "{library}");
            }
        }
    }

    /// With a point of small order anybody could compute the secrets that it is part of.
    #[test]
    fn points_of_small_order_are_refused() {
        let [_, mut hears] = ends();
        for point in [[0; 32], std::array::from_fn(|at| u8::from(at == 0))] {
            let message = [point.as_slice(), &[0; 64]].concat();
            assert_eq!(hears.read_message(&message, &mut []), Err(Error::Dh));
        }
    }

    #[test]
    fn entropy_makes_one_key() {
        let mut once = Once(Some(secret(TARGET)));
        let mut key = [0; KEY_BYTES];
        assert_eq!(once.try_fill_bytes(&mut key), Ok(()));
        assert_eq!(key.as_slice(), bytes(TARGET));
        assert_eq!(once.try_fill_bytes(&mut key), Err(Error::Rng));
    }
}
