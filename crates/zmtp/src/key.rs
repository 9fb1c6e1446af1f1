use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use zeroize::Zeroizing;

use crate::crypto;

/// A long-term X25519 public key: the identity of a peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

/// A long-term X25519 secret key; wiped when dropped, never printed.
#[derive(Clone)]
pub struct SecretKey(Zeroizing<[u8; 32]>);

/// A secret key and the public key that belongs to it.
#[derive(Clone, Debug)]
pub struct KeyPair {
    secret: SecretKey,
    public: PublicKey,
}

/// Why a text or a pair is not a key.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum KeyTextError {
    /// No known form has this length.
    #[error(
        "a key of {chars} characters is none of hex (64), base32z (52), base64 (43 or 44), Z85 (40)"
    )]
    Length {
        /// Characters in the text.
        chars: usize,
    },
    /// A character that the form of this length does not have.
    #[error("character {position} does not belong into a key written as {form}")]
    Character {
        /// Counted from one.
        position: usize,
        /// The form meant by the length.
        form: &'static str,
    },
    /// The public key is not the one of the secret key.
    #[error("the public key does not belong to the secret key")]
    Mismatch,
}

impl PublicKey {
    /// The key with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 40-character form that ZeroMQ tools print (ZeroMQ RFC 32).
    #[must_use]
    pub fn to_z85(&self) -> String {
        z85_encode(&self.0)
    }

    /// The 52-character z-base-32 form of OxenMQ's addresses.
    #[must_use]
    pub fn to_base32z(&self) -> String {
        bits_encode(&self.0, 5, BASE32Z)
    }

    /// What people compare: the first 64 bits of the key's SHA-256, as four groups of hexadecimal digits. It tells keys apart
    /// that were not made to look alike; a right is given to the whole key.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let digest = crypto::sha256(&self.0);
        let groups = digest[..8].chunks_exact(2);
        let groups: Vec<String> = groups
            .map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]))
            .collect();
        groups.join("-")
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = KeyTextError;

    fn from_str(text: &str) -> Result<Self, KeyTextError> {
        Ok(Self(*decode(text)?))
    }
}

impl SecretKey {
    /// The key with these bytes; they should come from a cryptographic source.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Its bytes, for writing a key file.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(..)")
    }
}

impl FromStr for SecretKey {
    type Err = KeyTextError;

    fn from_str(text: &str) -> Result<Self, KeyTextError> {
        Ok(Self(decode(text)?))
    }
}

impl KeyPair {
    /// The pair of `secret`.
    #[must_use]
    pub fn of(secret: SecretKey) -> Self {
        let public = PublicKey(crypto::public_of(secret.expose()));
        Self { secret, public }
    }

    /// The pair of `secret`, which `public` must belong to.
    ///
    /// # Errors
    /// [`KeyTextError::Mismatch`] when it does not.
    pub fn checked(secret: SecretKey, public: PublicKey) -> Result<Self, KeyTextError> {
        let pair = Self::of(secret);
        if pair.public == public {
            Ok(pair)
        } else {
            Err(KeyTextError::Mismatch)
        }
    }

    /// The pair whose secret is in the text of a key file: the first line that is neither empty nor a comment (`# …`).
    ///
    /// # Errors
    /// [`KeyTextError`] when that is not a key, or empty.
    pub fn from_file(text: &str) -> Result<Self, KeyTextError> {
        let secret = text
            .lines()
            .map(str::trim)
            .find(|line| !line.is_empty() && !line.starts_with("# "));
        secret.unwrap_or_default().parse().map(Self::of)
    }

    /// The X25519 secret (RFC 7748) that only this pair and the owner of `other` can compute; none for a point of small
    /// order, with which any peer could.
    #[must_use]
    pub fn agree(&self, other: &PublicKey) -> Option<Zeroizing<[u8; 32]>> {
        crypto::agree(other.as_bytes(), self.secret.expose())
    }

    /// The public half.
    #[must_use]
    pub const fn public(&self) -> PublicKey {
        self.public
    }

    /// The secret half.
    #[must_use]
    pub const fn secret(&self) -> &SecretKey {
        &self.secret
    }
}

/// One line of a list of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyLine<'a> {
    /// Its position in the text, counted from one.
    pub number: usize,
    /// The key.
    pub key: Result<PublicKey, KeyTextError>,
    /// What is said about it, in words.
    pub about: Vec<&'a str>,
}

/// The entries of a list of keys: one a line, the key first; `#` begins a comment.
pub fn key_lines(text: &str) -> impl Iterator<Item = KeyLine<'_>> {
    text.lines().enumerate().filter_map(|(index, line)| {
        // Z85 keys may contain `#`, so only one at the beginning of a word opens a comment.
        let is_comment = |word: &str| word.starts_with('#') && word.parse::<PublicKey>().is_err();
        let mut words = line.split_whitespace().take_while(|word| !is_comment(word));
        let key = words.next()?.parse();
        Some(KeyLine {
            number: index + 1,
            key,
            about: words.collect(),
        })
    })
}

/// Reads a key in any of its forms; the length distinguishes them.
fn decode(text: &str) -> Result<Zeroizing<[u8; 32]>, KeyTextError> {
    let text = text.trim();
    match text.len() {
        64 => bits_decode(text, 4, HEX, "hex"),
        52 => bits_decode(text, 5, BASE32Z, "base32z"),
        43 => bits_decode(text, 6, BASE64, "base64"),
        44 if text.ends_with('=') => bits_decode(&text[..43], 6, BASE64, "base64"),
        40 => z85_decode(text),
        _ => Err(KeyTextError::Length {
            chars: text.chars().count(),
        }),
    }
}

const HEX: &[u8] = b"0123456789abcdef";
const BASE32Z: &[u8] = b"ybndrfg8ejkmcpqxot1uwisza345h769";
const BASE64: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const Z85: &[u8] =
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

fn bits_encode(bytes: &[u8; 32], width: u32, alphabet: &[u8]) -> String {
    let (mut text, mut held, mut bits) = (String::new(), 0u32, 0);
    let symbol = |index: u32| alphabet[(index & ((1 << width) - 1)) as usize] as char;
    for byte in bytes {
        held = (held << 8) | u32::from(*byte);
        bits += 8;
        while bits >= width {
            bits -= width;
            text.push(symbol(held >> bits));
        }
    }
    if bits > 0 {
        text.push(symbol(held << (width - bits)));
    }
    text
}

/// Reads 32 bytes of `width`-bit symbols; bits left over must be zero, so that a key has one text per form.
fn bits_decode(
    text: &str,
    width: u32,
    alphabet: &[u8],
    form: &'static str,
) -> Result<Zeroizing<[u8; 32]>, KeyTextError> {
    // QR codes carry upper case only, so case counts in base64 alone.
    let folds = width < 6;
    let (mut key, mut at, mut held, mut bits) = (Zeroizing::new([0u8; 32]), 0, 0u32, 0);
    for (index, byte) in text.bytes().enumerate() {
        let wanted = if folds {
            byte.to_ascii_lowercase()
        } else {
            byte
        };
        let bad = KeyTextError::Character {
            position: index + 1,
            form,
        };
        let value = alphabet
            .iter()
            .position(|symbol| *symbol == wanted)
            .ok_or(bad)?;
        held = (held << width) | value as u32;
        bits += width;
        if bits >= 8 && at < 32 {
            bits -= 8;
            key[at] = (held >> bits) as u8;
            at += 1;
        }
        held &= (1 << bits) - 1;
    }
    if held == 0 {
        Ok(key)
    } else {
        Err(KeyTextError::Character {
            position: text.len(),
            form,
        })
    }
}

fn z85_encode(bytes: &[u8; 32]) -> String {
    let mut text = String::with_capacity(40);
    for chunk in bytes.chunks_exact(4) {
        let mut value = u32::from_be_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        let mut symbols = [0u8; 5];
        for symbol in symbols.iter_mut().rev() {
            *symbol = Z85[(value % 85) as usize];
            value /= 85;
        }
        text.extend(symbols.iter().map(|symbol| *symbol as char));
    }
    text
}

fn z85_decode(text: &str) -> Result<Zeroizing<[u8; 32]>, KeyTextError> {
    let mut key = Zeroizing::new([0u8; 32]);
    for (group, chunk) in text.as_bytes().chunks(5).enumerate() {
        let bad = |at: usize| KeyTextError::Character {
            position: group * 5 + at + 1,
            form: "Z85",
        };
        let mut value = 0u64;
        for (at, byte) in chunk.iter().enumerate() {
            let digit = Z85
                .iter()
                .position(|symbol| symbol == byte)
                .ok_or_else(|| bad(at))?;
            value = value * 85 + digit as u64;
        }
        let word = u32::try_from(value).map_err(|_| bad(4))?;
        key[group * 4..group * 4 + 4].copy_from_slice(&word.to_be_bytes());
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The server key of the libzmq CURVE documentation, in Z85 and in hex.
    const Z85_TEXT: &str = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
    const HEX_TEXT: &str = "54fcba24e93249969316fb617c872bb0c1d1ff14800427c594cbfacf1bc2d652";

    #[test]
    fn z85_and_hex_of_the_documented_key_agree() {
        let key: PublicKey = Z85_TEXT.parse().unwrap();
        assert_eq!(key.to_string(), HEX_TEXT);
        assert_eq!(key.to_z85(), Z85_TEXT);
        assert_eq!(HEX_TEXT.to_uppercase().parse(), Ok(key));
    }

    #[test]
    fn a_fingerprint_begins_the_digest_of_the_key() {
        // `head -c 32 /dev/zero | sha256sum`
        let none = PublicKey::from_bytes([0; 32]);
        assert_eq!(none.fingerprint(), "6668-7aad-f862-bd77");
        let key: PublicKey = HEX_TEXT.parse().unwrap();
        assert_ne!(key.fingerprint(), none.fingerprint());
    }

    proptest! {
        #[test]
        fn every_form_reads_back(bytes: [u8; 32]) {
            let key = PublicKey(bytes);
            prop_assert_eq!(key.to_string().parse(), Ok(key));
            prop_assert_eq!(key.to_z85().parse(), Ok(key));
            prop_assert_eq!(key.to_base32z().parse(), Ok(key));
            prop_assert_eq!(key.to_base32z().to_uppercase().parse(), Ok(key));
            let base64 = bits_encode(&bytes, 6, BASE64);
            prop_assert_eq!(base64.parse(), Ok(key));
            prop_assert_eq!(format!("{base64}=").parse(), Ok(key));
        }

        #[test]
        fn any_text_parses_or_is_refused(text in "\\PC{0,70}") {
            let _ = text.parse::<PublicKey>();
        }
    }

    #[test]
    fn errors_name_the_place() {
        let error = |text: &str| text.parse::<PublicKey>().unwrap_err();
        assert_eq!(error("abc"), KeyTextError::Length { chars: 3 });
        let mut hex = HEX_TEXT.to_owned();
        hex.replace_range(4..5, "g");
        assert_eq!(
            error(&hex),
            KeyTextError::Character {
                position: 5,
                form: "hex"
            }
        );
        assert_eq!(
            error(&"#".repeat(40)),
            KeyTextError::Character {
                position: 5,
                form: "Z85"
            }
        );
    }

    #[test]
    fn a_pair_is_checked_and_its_secret_is_not_printed() {
        let pair = KeyPair::of(SecretKey::from_bytes([5; 32]));
        assert!(KeyPair::checked(SecretKey::from_bytes([5; 32]), pair.public()).is_ok());
        let other = KeyPair::checked(SecretKey::from_bytes([6; 32]), pair.public());
        assert_eq!(other.unwrap_err(), KeyTextError::Mismatch);
        assert!(!format!("{pair:?}").contains("0505"));
    }
}
