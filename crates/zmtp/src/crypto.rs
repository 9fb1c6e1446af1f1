//! The one place that names the crypto crates: X25519 key pairs, NaCl boxes, secret boxes, constant-time equality.

use crypto_box::aead::generic_array::GenericArray;
use crypto_box::aead::{AeadInPlace, KeyInit};
use crypto_box::{PublicKey as BoxPublic, SalsaBox, SecretKey as BoxSecret};
use subtle::ConstantTimeEq;

pub(crate) const TAG_BYTES: usize = 16;
pub(crate) type Nonce = [u8; 24];

/// The public key that belongs to `secret`.
pub(crate) fn public_of(secret: &[u8; 32]) -> [u8; 32] {
    *BoxSecret::from(*secret).public_key().as_bytes()
}

/// The shared key of two parties; wiped when dropped (by the crate it comes from).
pub(crate) struct Shared(SalsaBox);

impl Shared {
    /// The key both `secret`'s owner and `public`'s owner can derive; none for a point of small order, with which
    /// the key would be the same for everybody.
    pub(crate) fn agree(public: &[u8; 32], secret: &[u8; 32]) -> Option<Self> {
        if SMALL_ORDER.iter().any(|point| same_point(point, public)) {
            return None;
        }
        Some(Self(SalsaBox::new(&BoxPublic::from(*public), &BoxSecret::from(*secret))))
    }

    /// Appends the box of `pieces` (joined) to `out`: tag, then ciphertext, as NaCl lays it out.
    pub(crate) fn seal(&self, nonce: &Nonce, pieces: &[&[u8]], out: &mut Vec<u8>) {
        let tag_at = out.len();
        out.extend_from_slice(&[0; TAG_BYTES]);
        for piece in pieces {
            out.extend_from_slice(piece);
        }
        let (head, text) = out.split_at_mut(tag_at + TAG_BYTES);
        let tag = self
            .0
            .encrypt_in_place_detached(GenericArray::from_slice(nonce), &[], text)
            .expect("a box without associated data seals any length");
        head[tag_at..].copy_from_slice(&tag);
    }

    /// Opens the box in place: afterwards the bytes behind the tag are the plain text. False, and the bytes
    /// unchanged, when it does not open.
    pub(crate) fn open(&self, nonce: &Nonce, sealed: &mut [u8]) -> bool {
        let Some((tag, text)) = sealed.split_at_mut_checked(TAG_BYTES) else { return false };
        self.0
            .decrypt_in_place_detached(GenericArray::from_slice(nonce), &[], text, GenericArray::from_slice(tag))
            .is_ok()
    }
}

/// Appends the secret box of `plain` under `key` to `out`.
pub(crate) fn seal_secret(key: &[u8; 32], nonce: &Nonce, plain: &[u8], out: &mut Vec<u8>) {
    let tag_at = out.len();
    out.extend_from_slice(&[0; TAG_BYTES]);
    out.extend_from_slice(plain);
    let (head, text) = out.split_at_mut(tag_at + TAG_BYTES);
    let tag = crypto_secretbox(key)
        .encrypt_in_place_detached(GenericArray::from_slice(nonce), &[], text)
        .expect("a box without associated data seals any length");
    head[tag_at..].copy_from_slice(&tag);
}

fn crypto_secretbox(key: &[u8; 32]) -> crypto_secretbox::XSalsa20Poly1305 {
    crypto_secretbox::XSalsa20Poly1305::new(GenericArray::from_slice(key))
}

/// Equality whose time does not depend on where the difference is.
pub(crate) fn equal(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

fn same_point(point: &[u8; 32], public: &[u8; 32]) -> bool {
    let mut masked = *public;
    masked[31] &= 0x7f;
    *point == masked
}

/// The encodings of points of small order on Curve25519 (the list libsodium refuses).
const SMALL_ORDER: [[u8; 32]; 7] = [
    [0; 32],
    low(1),
    [
        0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4, 0x6a, 0xda, 0x09,
        0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49, 0xb8, 0x00,
    ],
    [
        0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83, 0xef, 0x5b, 0x04, 0x44,
        0x5c, 0xc4, 0x58, 0x1c, 0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd, 0xd0, 0x9f, 0x11, 0x57,
    ],
    near_prime(0xec),
    near_prime(0xed),
    near_prime(0xee),
];

const fn low(first: u8) -> [u8; 32] {
    let mut point = [0; 32];
    point[0] = first;
    point
}

const fn near_prime(first: u8) -> [u8; 32] {
    let mut point = [0xff; 32];
    point[0] = first;
    point[31] = 0x7f;
    point
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
    }

    fn key(text: &str) -> [u8; 32] {
        hex(text).try_into().unwrap()
    }

    /// The box of Bernstein, "Cryptography in NaCl" (2009), section 10.
    #[test]
    fn box_matches_the_published_vector() {
        let alice = key("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
        let bob = key("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
        let nonce: Nonce = hex("69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37").try_into().unwrap();
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
        assert_eq!(public_of(&alice).to_vec(), hex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"));
    }

    /// With these points two different secrets derive one key; that is what makes them unfit.
    #[test]
    fn points_of_small_order_are_refused() {
        let shared_of = |point: &[u8; 32], secret: [u8; 32]| {
            let shared = Shared(SalsaBox::new(&BoxPublic::from(*point), &BoxSecret::from(secret)));
            let mut out = Vec::new();
            shared.seal(&[0; 24], &[b"same"], &mut out);
            out
        };
        for point in &SMALL_ORDER {
            assert_eq!(shared_of(point, [7; 32]), shared_of(point, [9; 32]), "{point:02x?}");
            assert!(Shared::agree(point, &[7; 32]).is_none());
            let mut high_bit = *point;
            high_bit[31] |= 0x80;
            assert!(Shared::agree(&high_bit, &[7; 32]).is_none());
        }
    }
}
