//! The ciphers of sealed connections, and which library computes AES-256-GCM on which processor. Every library gives the
//! same bytes; they differ in speed only.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};

use aws_lc_rs::aead as aws_lc;
#[cfg(target_arch = "x86_64")]
use ring::aead as ring;
use thiserror::Error;

/// How records are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-256-GCM (NIST SP 800-38D).
    Aes,
    /// ChaCha20-Poly1305 (RFC 8439), where the processor of one end has no instructions for the other.
    ChaCha,
}

/// Whose AES-256-GCM seals and opens. ChaCha20-Poly1305 is AWS-LC's everywhere: the two are equally fast at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AesLibrary {
    /// AWS-LC: AVX-512 where the processor has it, else 16-byte vectors. It wipes its keys.
    AwsLc = 1,
    /// *ring*: 32-byte vectors by VAES and AVX2. It leaves expanded keys in memory that is freed.
    Ring,
}

/// A name that is no library of this build.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{name}` is no AES of this build; it has {}", AesLibrary::names())]
pub struct UnknownAes {
    /// The name as it was given.
    name: String,
}

/// A key of one of the ciphers, made ready. Its callers use each nonce once.
pub(super) enum AeadKey {
    AwsLc(aws_lc::LessSafeKey),
    /// Boxed: half a KiB that would be copied wherever the key goes.
    #[cfg(target_arch = "x86_64")]
    Ring(Box<ring::LessSafeKey>),
}

/// The instructions of a processor that the libraries choose by, where the operating system keeps their registers.
#[derive(Clone, Copy, Debug, Default)]
struct Instructions {
    avx2: bool,
    /// VAES and VPCLMULQDQ: AES and GHASH on vectors of any width.
    wide_aes: bool,
    /// What AWS-LC calls AVX-512: F, BW, DQ and VL.
    avx512: bool,
}

pub(super) const KEY_BYTES: usize = 32;
pub(super) const NONCE_BYTES: usize = 12;
pub(super) const TAG_BYTES: usize = 16;

/// The library that [`AesLibrary::install`] was given; 0 is none.
static INSTALLED: AtomicU8 = AtomicU8::new(0);

impl Cipher {
    /// Whether this processor has the instructions that the libraries make AES-256-GCM of: for AES, and for products without
    /// carries.
    pub fn has_aes() -> bool {
        #[cfg(target_arch = "x86_64")]
        return std::arch::is_x86_feature_detected!("aes")
            && std::arch::is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        return std::arch::is_aarch64_feature_detected!("aes")
            && std::arch::is_aarch64_feature_detected!("pmull");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        false
    }
}

impl AesLibrary {
    /// Those that this build has.
    pub const ALL: &[Self] = &[
        Self::AwsLc,
        #[cfg(target_arch = "x86_64")]
        Self::Ring,
    ];

    /// The library of keys that are made now: the installed one, or else the fastest on this processor.
    #[must_use]
    pub fn current() -> Self {
        let installed = INSTALLED.load(Ordering::Relaxed);
        let mut all = Self::ALL.iter().copied();
        all.find(|library| *library as u8 == installed)
            .unwrap_or_else(Self::fastest)
    }

    /// The fastest on this processor.
    #[must_use]
    pub fn fastest() -> Self {
        Instructions::detected().fastest()
    }

    /// Has the keys that are made from now on use this library, in the whole process: for tests and benchmarks.
    pub fn install(self) {
        INSTALLED.store(self as u8, Ordering::Relaxed);
    }

    /// The name that [`AesLibrary::from_str`] reads.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AwsLc => "aws-lc",
            Self::Ring => "ring",
        }
    }

    fn names() -> String {
        let names: Vec<_> = Self::ALL.iter().map(|library| library.name()).collect();
        names.join(", ")
    }
}

impl fmt::Display for AesLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for AesLibrary {
    type Err = UnknownAes;

    fn from_str(name: &str) -> Result<Self, UnknownAes> {
        let mut all = Self::ALL.iter().copied();
        all.find(|library| library.name().eq_ignore_ascii_case(name.trim()))
            .ok_or_else(|| UnknownAes { name: name.into() })
    }
}

impl Instructions {
    #[cfg(target_arch = "x86_64")]
    fn detected() -> Self {
        use std::arch::is_x86_feature_detected as has;
        Self {
            avx2: has!("avx2"),
            wide_aes: has!("vaes") && has!("vpclmulqdq"),
            avx512: has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl"),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn detected() -> Self {
        Self::default()
    }

    /// AWS-LC has a path for VAES in AVX-512 and none in AVX2; *ring* has the one in AVX2 alone. Without VAES both run the
    /// same code.
    const fn fastest(self) -> AesLibrary {
        if self.wide_aes && self.avx2 && !self.avx512 {
            AesLibrary::Ring
        } else {
            AesLibrary::AwsLc
        }
    }
}

impl AeadKey {
    /// A key of a cipher, by the library in force for it.
    pub(super) fn new(cipher: Cipher, secret: &[u8; KEY_BYTES]) -> Self {
        match cipher {
            Cipher::Aes => Self::aes(AesLibrary::current(), secret),
            Cipher::ChaCha => Self::aws_lc(&aws_lc::CHACHA20_POLY1305, secret),
        }
    }

    /// A key of AES-256-GCM by the library named.
    pub(super) fn aes(library: AesLibrary, secret: &[u8; KEY_BYTES]) -> Self {
        match library {
            #[cfg(target_arch = "x86_64")]
            AesLibrary::Ring => {
                let key = ring::UnboundKey::new(&ring::AES_256_GCM, secret);
                let key = key.expect("AES-256 has keys of 32 bytes");
                Self::Ring(Box::new(ring::LessSafeKey::new(key)))
            }
            _ => Self::aws_lc(&aws_lc::AES_256_GCM, secret),
        }
    }

    fn aws_lc(algorithm: &'static aws_lc::Algorithm, secret: &[u8; KEY_BYTES]) -> Self {
        let key = aws_lc::UnboundKey::new(algorithm, secret);
        let key = key.expect("both ciphers have keys of 32 bytes");
        Self::AwsLc(aws_lc::LessSafeKey::new(key))
    }

    /// Encrypts `text` in place; the tag is of it and of what is `authentic` beside it.
    pub(super) fn seal(
        &self,
        nonce: [u8; NONCE_BYTES],
        authentic: &[u8],
        text: &mut [u8],
    ) -> [u8; TAG_BYTES] {
        const SHORT: &str = "a text is far below the 64 GiB that a nonce is good for";
        let mut bytes = [0; TAG_BYTES];
        match self {
            Self::AwsLc(key) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                let authentic = aws_lc::Aad::from(authentic);
                let tag = key.seal_in_place_separate_tag(nonce, authentic, text);
                bytes.copy_from_slice(tag.expect(SHORT).as_ref());
            }
            #[cfg(target_arch = "x86_64")]
            Self::Ring(key) => {
                let nonce = ring::Nonce::assume_unique_for_key(nonce);
                let authentic = ring::Aad::from(authentic);
                let tag = key.seal_in_place_separate_tag(nonce, authentic, text);
                bytes.copy_from_slice(tag.expect(SHORT).as_ref());
            }
        }
        bytes
    }

    /// Decrypts `text` in place if the tag is right; otherwise its bytes are undefined.
    #[must_use]
    pub(super) fn open(
        &self,
        nonce: [u8; NONCE_BYTES],
        authentic: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> bool {
        match self {
            Self::AwsLc(key) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                let authentic = aws_lc::Aad::from(authentic);
                key.open_in_place_separate_tag(nonce, authentic, tag, text)
                    .is_ok()
            }
            #[cfg(target_arch = "x86_64")]
            Self::Ring(key) => {
                let nonce = ring::Nonce::assume_unique_for_key(nonce);
                let authentic = ring::Aad::from(authentic);
                let tag = ring::Tag::from(*tag);
                key.open_in_place_separate_tag(nonce, authentic, tag, text, 0..)
                    .is_ok()
            }
        }
    }
}

#[cfg(test)]
mod tests;
