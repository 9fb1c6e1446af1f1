//! The one place that names the crypto crates: X25519, NaCl boxes and secret boxes, SHA-256, constant-time
//! equality.
//!
//! A box is XSalsa20-Poly1305 as in NaCl (Bernstein, "Cryptography in NaCl", 2009), put together here from X25519,
//! HSalsa20, Salsa20 and Poly1305 because the messages of one direction share the first 16 bytes of their nonces: the
//! key that HSalsa20 makes of those is derived once ([`Lane`]), not once a message. Poly1305 is the one implementation
//! that does not prepare for long messages before the first byte of a short one.

use cryptoxide::poly1305::Poly1305;
use curve25519_dalek::montgomery::MontgomeryPoint;
use salsa20::cipher::consts::U10;
use salsa20::cipher::{KeyIvInit, StreamCipher};
use salsa20::{Salsa20, hsalsa};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

pub(crate) const TAG_BYTES: usize = 16;
pub(crate) type Nonce = [u8; 24];

/// The public key that belongs to `secret`.
pub(crate) fn public_of(secret: &[u8; 32]) -> [u8; 32] {
    MontgomeryPoint::mul_base_clamped(*secret).to_bytes()
}

/// SHA-256 (FIPS 180-4).
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// X25519 (RFC 7748) of both; none for a point of small order, with which it would be the same for every key.
pub(crate) fn agree(public: &[u8; 32], secret: &[u8; 32]) -> Option<Zeroizing<[u8; 32]>> {
    let point = Zeroizing::new(MontgomeryPoint(*public).mul_clamped(*secret).to_bytes());
    (!equal(point.as_slice(), &[0; 32])).then_some(point)
}

/// The shared key of two parties; wiped when dropped.
pub(crate) struct Shared(Zeroizing<[u8; 32]>);

/// The key of all boxes whose nonces begin with the same 16 bytes; wiped when dropped.
pub(crate) struct Lane(Zeroizing<[u8; 32]>);

impl Shared {
    /// The key both `secret`'s owner and `public`'s owner can derive; none for a point of small order, with which the
    /// key would be the same for every peer.
    pub(crate) fn agree(public: &[u8; 32], secret: &[u8; 32]) -> Option<Self> {
        Some(Self(derive(&*agree(public, secret)?, &[0; 16])))
    }

    /// The key of the boxes whose nonces begin with `prefix`.
    pub(crate) fn lane(&self, prefix: &[u8; 16]) -> Lane {
        Lane(derive(&self.0, prefix))
    }

    /// Appends the box of `pieces` (joined) to `out`: tag, then ciphertext, as NaCl lays it out.
    pub(crate) fn seal(&self, nonce: &Nonce, pieces: &[&[u8]], out: &mut Vec<u8>) {
        let (prefix, counter) = split(nonce);
        self.lane(&prefix).seal(&counter, pieces, out);
    }

    /// Opens the box in place: afterwards the bytes behind the tag are the plain text. False, and the bytes
    /// unchanged, when it does not open.
    pub(crate) fn open(&self, nonce: &Nonce, sealed: &mut [u8]) -> bool {
        let (prefix, counter) = split(nonce);
        self.lane(&prefix).open(&counter, sealed)
    }
}

impl Lane {
    /// As [`Shared::seal`], with the last 8 bytes of the nonce.
    pub(crate) fn seal(&self, counter: &[u8; 8], pieces: &[&[u8]], out: &mut Vec<u8>) {
        let tag_at = out.len();
        out.extend_from_slice(&[0; TAG_BYTES]);
        for piece in pieces {
            out.extend_from_slice(piece);
        }
        let (mut stream, one_time) = self.begin(counter);
        let (head, text) = out.split_at_mut(tag_at + TAG_BYTES);
        stream.apply_keystream(text);
        head[tag_at..].copy_from_slice(&tag_of(&one_time, text));
    }

    /// As [`Shared::open`], with the last 8 bytes of the nonce.
    pub(crate) fn open(&self, counter: &[u8; 8], sealed: &mut [u8]) -> bool {
        let Some((tag, text)) = sealed.split_at_mut_checked(TAG_BYTES) else {
            return false;
        };
        let (mut stream, one_time) = self.begin(counter);
        if !equal(tag, &tag_of(&one_time, text)) {
            return false;
        }
        stream.apply_keystream(text);
        true
    }

    /// The key stream behind its first 32 bytes, and those, which are the key of the tag.
    fn begin(&self, counter: &[u8; 8]) -> (Salsa20, Zeroizing<[u8; 32]>) {
        let mut stream = Salsa20::new(self.0.as_slice().into(), counter.into());
        let mut one_time = Zeroizing::new([0; 32]);
        stream.apply_keystream(one_time.as_mut_slice());
        (stream, one_time)
    }
}

/// Appends the secret box of `plain` under `key` to `out`.
pub(crate) fn seal_secret(key: &[u8; 32], nonce: &Nonce, plain: &[u8], out: &mut Vec<u8>) {
    let (prefix, counter) = split(nonce);
    Lane(derive(key, &prefix)).seal(&counter, &[plain], out);
}

/// Equality whose time does not depend on where the difference is.
pub(crate) fn equal(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

fn derive(key: &[u8; 32], input: &[u8; 16]) -> Zeroizing<[u8; 32]> {
    Zeroizing::new(hsalsa::<U10>(key.into(), input.into()).into())
}

fn tag_of(one_time: &[u8; 32], text: &[u8]) -> [u8; TAG_BYTES] {
    let mut mac = Poly1305::new(one_time);
    mac.update_mut(text);
    mac.finalize().0
}

fn split(nonce: &Nonce) -> ([u8; 16], [u8; 8]) {
    (
        std::array::from_fn(|i| nonce[i]),
        std::array::from_fn(|i| nonce[16 + i]),
    )
}

#[cfg(test)]
mod tests {
    use crypto_box::aead::AeadInPlace;
    use crypto_box::{PublicKey, SalsaBox, SecretKey};
    use proptest::prelude::*;

    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
            .collect()
    }

    fn key(text: &str) -> [u8; 32] {
        hex(text).try_into().unwrap()
    }

    /// The box of Bernstein, "Cryptography in NaCl" (2009), section 10.
    #[test]
    fn box_matches_the_published_vector() {
        let alice = key("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
        let bob = key("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
        let nonce: Nonce = hex("69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37")
            .try_into()
            .unwrap();
        let plain = hex(concat!(
            "be075fc53c81f2d5cf141316ebeb0c7b5228c52a4c62cbd44b66849b64244ffce5ecbaaf33bd751a1ac728d45e6c6129",
            "6cdc3c01233561f41db66cce314adb310e3be8250c46f06dceea3a7fa1348057e2f6556ad6b1318a024a838f21af1fde",
            "048977eb48f59ffd4924ca1c60902e52f0a089bc76897040e082f937763848645e0705",
        ));
        let sealed = hex(concat!(
            "f3ffc7703f9400e52a7dfb4b3d3305d98e993b9f48681273c29650ba32fc76ce48332ea7164d96a4476fb8c531a1186a",
            "c0dfc17c98dce87b4da7f011ec48c97271d2c20f9b928fe2270d6fb863d51738b48eeee314a7cc8ab932164548e526ae",
            "90224368517acfeabd6bb3732bc0e9da99832b61ca01b6de56244a9e88d5f9b37973f622a43d14a6599b1f654cb45a74",
            "e355a5",
        ));
        let shared = Shared::agree(&bob, &alice).unwrap();
        let mut out = Vec::new();
        shared.seal(&nonce, &[&plain[..7], &plain[7..]], &mut out);
        assert_eq!(out, sealed);
        assert!(shared.open(&nonce, &mut out));
        assert_eq!(&out[TAG_BYTES..], plain);
        let mut altered = sealed.clone();
        altered[20] ^= 1;
        assert!(!shared.open(&nonce, &mut altered));
        assert!(!shared.open(&nonce, &mut [0; 15]));
    }

    #[test]
    fn public_key_follows_from_the_secret_one() {
        let alice = key("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
        assert_eq!(
            public_of(&alice).to_vec(),
            hex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
        );
    }

    proptest! {
        /// Against the audited box of `crypto_box`, both ways.
        #[test]
        fn boxes_are_those_of_crypto_box(
            ours: [u8; 32],
            theirs: [u8; 32],
            nonce: [u8; 24],
            text in prop::collection::vec(any::<u8>(), 0..700),
            cut in any::<prop::sample::Index>(),
        ) {
            let reference = SalsaBox::new(&PublicKey::from(public_of(&theirs)), &SecretKey::from(ours));
            let shared = Shared::agree(&public_of(&theirs), &ours).unwrap();
            let mut sealed = Vec::new();
            let (first, second) = text.split_at(cut.index(text.len() + 1));
            shared.seal(&nonce, &[first, second], &mut sealed);
            let mut other = text.clone();
            let tag = reference.encrypt_in_place_detached(&nonce.into(), &[], &mut other).unwrap();
            prop_assert_eq!(&sealed, &[tag.as_slice(), &other].concat());
            let back = Shared::agree(&public_of(&ours), &theirs).unwrap();
            prop_assert!(back.open(&nonce, &mut sealed));
            prop_assert_eq!(&sealed[TAG_BYTES..], &text);
        }
    }

    #[test]
    fn points_of_small_order_are_refused() {
        let near_prime = |first: u8| {
            let mut point = [0xff; 32];
            (point[0], point[31]) = (first, 0x7f);
            point
        };
        let mut one = [0; 32];
        one[0] = 1;
        let eight = key("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800");
        let other = key("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157");
        for mut point in [
            [0; 32],
            one,
            eight,
            other,
            near_prime(0xec),
            near_prime(0xed),
            near_prime(0xee),
        ] {
            assert!(Shared::agree(&point, &[7; 32]).is_none(), "{point:02x?}");
            point[31] |= 0x80;
            assert!(Shared::agree(&point, &[9; 32]).is_none(), "{point:02x?}");
        }
    }
}
