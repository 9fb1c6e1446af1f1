use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Incarnation;

/// The version of the data plane that this code speaks.
pub const VERSION: u16 = 3;

/// What both ends can do beyond the version; the pair uses what both have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u32);

impl Features {
    /// Everything after the greetings is sealed under keys that both ends derive from their handshakes.
    pub const SEALED: Features = Features(1);
    /// Its processor has instructions for AES and GCM; when both ends' have, records are AES-256-GCM.
    pub const AES: Features = Features(2);
    /// As a target it takes requests with the context of a trace.
    pub const TRACED: Features = Features(4);

    /// Whether all of `other` is in it.
    #[must_use]
    pub const fn has(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// What is in either.
    #[must_use]
    pub const fn with(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }
}

/// The first bytes of either end of a data connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Oldest version it speaks.
    pub version_min: u16,
    /// Newest version it speaks.
    pub version_max: u16,
    /// What else it can do.
    pub features: Features,
    /// Which life of which process speaks.
    pub incarnation: Incarnation,
    /// The id of the peer that it expects; 0 when it asks for it.
    pub expects: Incarnation,
    /// The largest payload of one frame that it takes.
    pub frame_bytes_max: u32,
    /// Requests it takes before it has acknowledged one.
    pub requests_max: u32,
    /// Bytes of requests, read or written, that it takes on one connection before it has acknowledged them.
    pub in_flight_bytes_max: u64,
    /// When sealed: its message of the handshake that agrees on the keys. Zeros otherwise, and in the answer of a target
    /// that takes no sealed connection from this initiator.
    pub handshake: [u8; HANDSHAKE_BYTES],
}

/// Why a greeting is not one.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum GreetingError {
    /// The other end is something else.
    #[error("the peer speaks another protocol")]
    NotOurs,
    /// No version in common.
    #[error("the peer speaks versions {min} to {max} of the data plane, we speak {VERSION}")]
    Version {
        /// Oldest of the peer.
        min: u16,
        /// Newest of the peer.
        max: u16,
    },
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    magic: [u8; 8],
    version_min: U16,
    version_max: U16,
    features: U32,
    incarnation: U64,
    expects: U64,
    frame_bytes_max: U32,
    requests_max: U32,
    in_flight_bytes_max: U64,
    handshake: [u8; HANDSHAKE_BYTES],
}

const MAGIC: [u8; 8] = *b"SLKWDATA";

/// Its size, in bytes.
pub const GREETING_BYTES: usize = size_of::<Layout>();

/// The size of one message of the handshake, in bytes: both messages of Noise IK, the answer with the terms in it.
pub const HANDSHAKE_BYTES: usize = 96;

/// The size of a greeting without the handshake, in bytes.
pub const TERMS_BYTES: usize = GREETING_BYTES - HANDSHAKE_BYTES;

/// The bytes from which on the version of a greeting is known.
const VERSION_BYTES: usize = 12;

impl Greeting {
    /// The bytes that travel.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; GREETING_BYTES] {
        let layout = Layout {
            magic: MAGIC,
            version_min: self.version_min.into(),
            version_max: self.version_max.into(),
            features: self.features.0.into(),
            incarnation: self.incarnation.0.into(),
            expects: self.expects.0.into(),
            frame_bytes_max: self.frame_bytes_max.into(),
            requests_max: self.requests_max.into(),
            in_flight_bytes_max: self.in_flight_bytes_max.into(),
            handshake: self.handshake,
        };
        let mut bytes = [0; GREETING_BYTES];
        bytes.copy_from_slice(layout.as_bytes());
        bytes
    }

    /// Everything but the handshake, as it travels.
    #[must_use]
    pub fn terms(&self) -> [u8; TERMS_BYTES] {
        let bytes = self.to_bytes();
        std::array::from_fn(|at| bytes[at])
    }

    /// Whether these bytes begin a greeting of a version that we speak, as far as they go. Greetings of other versions may
    /// be shorter, and the rest of one would never come.
    ///
    /// # Errors
    /// They begin none, or one of a version that we do not speak.
    pub fn check(start: &[u8]) -> Result<(), GreetingError> {
        let Some(start) = start.first_chunk::<VERSION_BYTES>() else {
            return Ok(());
        };
        if !start.starts_with(&MAGIC) {
            return Err(GreetingError::NotOurs);
        }
        let [.., min_low, min_high, max_low, max_high] = *start;
        let min = u16::from_le_bytes([min_low, min_high]);
        let max = u16::from_le_bytes([max_low, max_high]);
        match (min..=max).contains(&VERSION) {
            true => Ok(()),
            false => Err(GreetingError::Version { min, max }),
        }
    }

    /// The greeting of these bytes.
    ///
    /// # Errors
    /// They are none, or one of a version that we do not speak.
    pub fn from_bytes(bytes: &[u8; GREETING_BYTES]) -> Result<Self, GreetingError> {
        let layout = Layout::read_from_bytes(bytes).map_err(|_| GreetingError::NotOurs)?;
        Self::check(bytes)?;
        Ok(Self {
            version_min: layout.version_min.get(),
            version_max: layout.version_max.get(),
            features: Features(layout.features.get()),
            incarnation: Incarnation(layout.incarnation.get()),
            expects: Incarnation(layout.expects.get()),
            frame_bytes_max: layout.frame_bytes_max.get(),
            requests_max: layout.requests_max.get(),
            in_flight_bytes_max: layout.in_flight_bytes_max.get(),
            handshake: layout.handshake,
        })
    }
}
