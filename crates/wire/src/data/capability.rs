use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;
use siphasher::sip128::SipHasher24;
use subtle::ConstantTimeEq;
use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Class, Incarnation};

/// What a capability allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights(u8);

impl Rights {
    /// Neither.
    pub const NONE: Rights = Rights(0);
    /// The bytes may be read.
    pub const READ: Rights = Rights(1);
    /// The bytes may be written.
    pub const WRITE: Rights = Rights(2);
    /// Both.
    pub const BOTH: Rights = Rights(3);

    /// Whether everything in `wanted` is allowed.
    #[must_use]
    pub const fn allow(self, wanted: Rights) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// Its bits, as a capability carries them.
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// The rights of these bits; of others nothing is known.
    pub(crate) const fn of_bits(bits: u8) -> Self {
        Self(bits & Self::BOTH.0)
    }

    /// The rights that both contain.
    #[must_use]
    pub const fn and(self, other: Rights) -> Rights {
        Rights(self.0 & other.0)
    }
}

/// What a node grants: the plain content of a [`Capability`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Which life of the owner's process grants it.
    pub incarnation: Incarnation,
    /// The region, by its place in the owner's table.
    pub region: u32,
    /// Which use of the region's bytes; a later one makes the capability void.
    pub generation: u64,
    /// First byte, from the start of the region.
    pub offset: u64,
    /// Bytes from there.
    pub bytes: u64,
    /// What may be done with them.
    pub rights: Rights,
    /// On whose behalf, by the granter's number for the tenant; 0 where it tells none, as masters do: they decide whose an extent
    /// is before they grant it, and no gate asks.
    pub tenant: u64,
    /// The incarnation that alone may use it; 0 for any bearer.
    pub holder: Incarnation,
    /// The owner's monotonic clock, in nanoseconds, from which on it is void; `u64::MAX` for never.
    pub expires_nanos: u64,
    /// Distinguishes grants of equal content.
    pub nonce: u64,
}

/// Leave to reach a range of a region from afar: a [`Grant`] and the MAC that only its owner can make or check.
///
/// The owner keeps no list of them. A capability ends when it expires, when the region's generation moves on, or, with
/// all others, when the owner takes a new [`CapabilityKey`]. The design follows Amoeba's sparse capabilities
/// (Tanenbaum, Mullender, van Renesse, 1986) and the keyed MACs of Gobioff's network-attached disks (1999).
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Capability {
    incarnation: U64,
    region: U32,
    rights: u8,
    kind: u8,
    padding: [u8; 2],
    generation: U64,
    offset: U64,
    bytes: U64,
    tenant: U64,
    holder: U64,
    expires_nanos: U64,
    nonce: U64,
    mac: [u8; MAC_BYTES],
}

/// Why a node does not do what a request asks.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Refusal {
    /// The MAC does not fit the content, or was made under a key that is no longer in use.
    #[error("the capability is not valid here")]
    Forged = 1,
    /// It was granted by another life of the process, or another process.
    #[error("the capability is from another life of the owner")]
    Incarnation = 2,
    /// It is bound to another holder.
    #[error("the capability belongs to another holder")]
    Holder = 3,
    /// Its time is over.
    #[error("the capability has expired")]
    Expired = 4,
    /// It does not allow reading, or writing; or the region does not.
    #[error("the capability does not allow this operation")]
    Rights = 5,
    /// The request reaches outside what was granted.
    #[error("the range is not within what the capability grants")]
    Range = 6,
    /// There is no such region any more.
    #[error("the region is gone")]
    Region = 7,
    /// The region's bytes have another use now, or are about to.
    #[error("the generation is over")]
    Generation = 8,
    /// The initiator gave it up.
    #[error("cancelled by the initiator")]
    Cancelled = 9,
    /// More at once than the target allows.
    #[error("over the target's limits")]
    Limit = 10,
    /// The region's memory failed; a device, usually.
    #[error("the memory behind the region failed")]
    Memory = 11,
    /// The target is closing.
    #[error("the target is closing")]
    Closing = 12,
    /// The target knows no such operation.
    #[error("unknown operation")]
    Unknown = 13,
    /// The request's time ran out at the target.
    #[error("the deadline passed at the target")]
    Deadline = 14,
}

impl Refusal {
    /// Every one there is.
    pub const ALL: [Refusal; 14] = [
        Self::Forged,
        Self::Incarnation,
        Self::Holder,
        Self::Expired,
        Self::Rights,
        Self::Range,
        Self::Region,
        Self::Generation,
        Self::Cancelled,
        Self::Limit,
        Self::Memory,
        Self::Closing,
        Self::Unknown,
        Self::Deadline,
    ];

    /// The number on the wire; 0 is no refusal.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// The refusal of a number.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|refusal| refusal.number() == number)
    }

    /// What an initiator does about it.
    #[must_use]
    pub const fn class(self) -> Class {
        match self {
            // A node takes another key when another master takes it: what there is may be asked for again.
            Self::Forged | Self::Incarnation | Self::Expired | Self::Region | Self::Generation => {
                Class::Gone
            }
            Self::Limit | Self::Memory | Self::Closing | Self::Deadline => Class::Retry,
            Self::Holder | Self::Rights | Self::Range | Self::Cancelled | Self::Unknown => {
                Class::Refused
            }
        }
    }
}

/// How the MAC of a capability is computed. A capability says it of itself, as a part of what its MAC covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MacKind {
    /// HMAC-SHA-256 (RFC 2104), its first 128 bits: the only one of earlier releases.
    #[default]
    HmacSha256 = 0,
    /// SipHash-2-4 with 128 bits (Aumasson and Bernstein, INDOCRYPT 2012), whole, under a key of its own.
    SipHash = 1,
}

impl MacKind {
    /// The latest one.
    pub const LATEST: Self = Self::SipHash;

    const ALL: [Self; 2] = [Self::HmacSha256, Self::SipHash];

    /// Its number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The latest one for an owner who verifies all kinds up to this number, of which some may be unknown here.
    #[must_use]
    pub fn up_to(number: u8) -> Self {
        let mut known = Self::ALL.into_iter().rev();
        known
            .find(|kind| kind.number() <= number)
            .unwrap_or_default()
    }

    fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }
}

/// The secret under which a node grants; a new one revokes everything granted before. It verifies every kind of MAC, and
/// makes the newest unless it is told otherwise.
#[derive(Clone)]
pub struct CapabilityKey {
    kind: MacKind,
    hmac: Hmac<Sha256>,
    sip: SipHasher24,
}

const MAC_BYTES: usize = 16;
const SIGNED_BYTES: usize = size_of::<Capability>() - MAC_BYTES;
/// What the key of the second kind of MAC is derived with, so that neither MAC says anything about the other: it is not as
/// long as what is signed.
const SIP_LABEL: &[u8] = b"slackwater capability, SipHash-2-4-128";

impl Capability {
    /// Its size on the wire.
    pub const BYTES: usize = size_of::<Self>();

    /// A capability of nothing, which no owner takes for genuine.
    pub const VOID: Self = Self {
        incarnation: U64::ZERO,
        region: U32::ZERO,
        rights: 0,
        kind: 0,
        padding: [0; 2],
        generation: U64::ZERO,
        offset: U64::ZERO,
        bytes: U64::ZERO,
        tenant: U64::ZERO,
        holder: U64::ZERO,
        expires_nanos: U64::ZERO,
        nonce: U64::ZERO,
        mac: [0; MAC_BYTES],
    };

    /// The content that it claims to grant; nothing is checked.
    #[must_use]
    pub fn claims(&self) -> Grant {
        Grant {
            incarnation: Incarnation(self.incarnation.get()),
            region: self.region.get(),
            generation: self.generation.get(),
            offset: self.offset.get(),
            bytes: self.bytes.get(),
            rights: Rights::of_bits(self.rights),
            tenant: self.tenant.get(),
            holder: Incarnation(self.holder.get()),
            expires_nanos: self.expires_nanos.get(),
            nonce: self.nonce.get(),
        }
    }

    /// The number of its kind of MAC, and the MAC: with [`Self::claims`] all that it is.
    pub(crate) fn seal(&self) -> (u8, [u8; MAC_BYTES]) {
        (self.kind, self.mac)
    }

    /// The capability that says this of itself. Whether it is genuine only its owner can say.
    pub(crate) fn claiming(grant: &Grant, (kind, mac): (u8, [u8; MAC_BYTES])) -> Self {
        Self {
            incarnation: grant.incarnation.0.into(),
            region: grant.region.into(),
            rights: grant.rights.0,
            kind,
            padding: [0; 2],
            generation: grant.generation.into(),
            offset: grant.offset.into(),
            bytes: grant.bytes.into(),
            tenant: grant.tenant.into(),
            holder: grant.holder.0.into(),
            expires_nanos: grant.expires_nanos.into(),
            nonce: grant.nonce.into(),
            mac,
        }
    }

    /// The bytes that travel.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes.copy_from_slice(self.as_bytes());
        bytes
    }

    /// The capability of these bytes. Whether it is genuine only its owner can say.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        match Self::read_from_bytes(bytes) {
            Ok(capability) => capability,
            Err(_) => unreachable!("the length is that of the layout, which takes any bytes"),
        }
    }
}

impl CapabilityKey {
    /// The key of these secret bytes.
    #[must_use]
    pub fn new(secret: &[u8; 32]) -> Self {
        let Ok(hmac) = Hmac::<Sha256>::new_from_slice(secret) else {
            unreachable!("HMAC takes keys of every length")
        };
        let derived = hmac.clone().chain_update(SIP_LABEL).finalize();
        let derived = derived.into_bytes();
        let mut key = [0; 16];
        key.copy_from_slice(&derived[..16]);
        Self {
            kind: MacKind::LATEST,
            hmac,
            sip: SipHasher24::new_with_key(&key),
        }
    }

    /// The same key, which makes this kind of MAC from now on: the one that its owner can verify.
    #[must_use]
    pub fn making(self, kind: MacKind) -> Self {
        Self { kind, ..self }
    }

    /// Makes the capability of a grant.
    #[must_use]
    pub fn mint(&self, grant: &Grant) -> Capability {
        let mut capability = Capability::claiming(grant, (self.kind.number(), [0; MAC_BYTES]));
        let signed = &capability.as_bytes()[..SIGNED_BYTES];
        capability.mac = match self.kind {
            MacKind::HmacSha256 => {
                let tag = self.hmac.clone().chain_update(signed).finalize();
                let mut mac = [0; MAC_BYTES];
                mac.copy_from_slice(&tag.into_bytes()[..MAC_BYTES]);
                mac
            }
            MacKind::SipHash => self.sip.hash(signed).as_bytes(),
        };
        capability
    }

    /// What the capability grants, if it was made under this key.
    ///
    /// # Errors
    /// [`Refusal::Forged`].
    pub fn verify(&self, capability: &Capability) -> Result<Grant, Refusal> {
        let signed = &capability.as_bytes()[..SIGNED_BYTES];
        let is_genuine = match MacKind::of_number(capability.kind) {
            Some(MacKind::HmacSha256) => {
                let mac = self.hmac.clone().chain_update(signed);
                mac.verify_truncated_left(&capability.mac).is_ok()
            }
            Some(MacKind::SipHash) => {
                let mac = self.sip.hash(signed).as_bytes();
                mac.ct_eq(&capability.mac).into()
            }
            None => false,
        };
        if is_genuine {
            Ok(capability.claims())
        } else {
            Err(Refusal::Forged)
        }
    }
}

impl Grant {
    /// Whether the grant covers this access, by `holder`, at `now_nanos` of the owner's clock.
    ///
    /// # Errors
    /// What it does not cover.
    pub fn covers(
        &self,
        wanted: Rights,
        range: (u64, u64),
        holder: Incarnation,
        now_nanos: u64,
    ) -> Result<(), Refusal> {
        if self.holder != Incarnation(0) && self.holder != holder {
            return Err(Refusal::Holder);
        }
        if now_nanos >= self.expires_nanos && self.expires_nanos != u64::MAX {
            return Err(Refusal::Expired);
        }
        if !self.rights.allow(wanted) {
            return Err(Refusal::Rights);
        }
        let (offset, bytes) = range;
        let inside = offset
            .checked_add(bytes)
            .zip(self.offset.checked_add(self.bytes));
        match inside {
            Some((end, granted_end)) if offset >= self.offset && end <= granted_end => Ok(()),
            _ => Err(Refusal::Range),
        }
    }
}

impl fmt::Debug for Capability {
    /// Without the MAC: a log must not be a source of capabilities.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Capability").field(&self.claims()).finish()
    }
}

impl fmt::Debug for CapabilityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CapabilityKey")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn grant() -> Grant {
        Grant {
            incarnation: Incarnation(0x1111_2222_3333_4444),
            region: 7,
            generation: 9,
            offset: 4096,
            bytes: 8192,
            rights: Rights::READ,
            tenant: 3,
            holder: Incarnation(0),
            expires_nanos: 1_000,
            nonce: 5,
        }
    }

    #[test]
    fn what_is_minted_verifies_and_says_what_was_granted() {
        let key = CapabilityKey::new(&[1; 32]);
        let capability = Capability::from_bytes(&key.mint(&grant()).to_bytes());
        assert_eq!(key.verify(&capability), Ok(grant()));
        assert_eq!(
            CapabilityKey::new(&[2; 32]).verify(&capability),
            Err(Refusal::Forged)
        );
        assert!(!format!("{capability:?}").contains("mac"));
    }

    /// Nodes of earlier releases verify the first kind alone, and masters of earlier releases make no other.
    #[test]
    fn every_kind_of_mac_is_verified_and_is_of_its_kind_alone() {
        let key = CapabilityKey::new(&[1; 32]);
        for kind in MacKind::ALL {
            let making = key.clone().making(kind);
            let capability = making.mint(&grant());
            assert_eq!(capability.kind, kind.number());
            assert_eq!(key.verify(&capability), Ok(grant()), "{kind:?}");
            for other in 0..=u8::MAX {
                let claimed = Capability {
                    kind: other,
                    ..capability
                };
                let genuine = other == kind.number();
                assert_eq!(key.verify(&claimed).is_ok(), genuine, "{kind:?} as {other}");
            }
        }
    }

    /// A master that mixes kinds up makes nothing that an owner takes: not by a number that the owner does not know, nor by the
    /// other kind's MAC under a number that it does.
    #[test]
    fn a_mac_counts_under_the_number_of_its_kind_alone() {
        let key = CapabilityKey::new(&[1; 32]);
        for number in 0..=u8::MAX {
            let claimed = Capability::claiming(&grant(), (number, [0; MAC_BYTES]));
            let signed = &claimed.as_bytes()[..SIGNED_BYTES];
            let mut hmac = [0; MAC_BYTES];
            let tag = key.hmac.clone().chain_update(signed).finalize();
            hmac.copy_from_slice(&tag.into_bytes()[..MAC_BYTES]);
            let sip = key.sip.hash(signed).as_bytes();
            for (kind, mac) in [(MacKind::HmacSha256, hmac), (MacKind::SipHash, sip)] {
                let sealed = Capability { mac, ..claimed };
                let genuine = number == kind.number();
                assert_eq!(key.verify(&sealed).is_ok(), genuine, "{kind:?} as {number}");
            }
        }
    }

    #[test]
    fn rights_of_unknown_bits_are_none() {
        let rights = [0, 1, 2, 3, 4, u8::MAX].map(Rights::of_bits);
        let [none, both] = [Rights::NONE, Rights::BOTH];
        assert_eq!(
            rights,
            [none, Rights::READ, Rights::WRITE, both, none, both]
        );
    }

    /// As computed elsewhere, from RFC 2104 and the reference of SipHash: earlier releases made the first, and what both ends of
    /// a pool derive of a secret stays what it is.
    #[test]
    fn macs_stay_what_they_were() {
        let key = CapabilityKey::new(&[1; 32]);
        let check = |kind, expected: u128| {
            let (_, mac) = key.clone().making(kind).mint(&grant()).seal();
            let mac = u128::from_be_bytes(mac);
            assert_eq!(mac, expected, "{kind:?}: {mac:#034x}");
        };
        check(MacKind::HmacSha256, 0x5ad8fae5_6212a2ca_5a590b99_9c76da8b);
        check(MacKind::SipHash, 0x100c0ad7_9b273f2b_d5e5442e_aab1d373);
    }

    #[test]
    fn an_owner_of_another_release_gets_the_latest_kind_that_both_know() {
        let known = [0, 1, 2, u8::MAX].map(MacKind::up_to);
        let latest = MacKind::LATEST;
        assert_eq!(known, [MacKind::HmacSha256, latest, latest, latest]);
        assert_eq!(
            MacKind::default(),
            MacKind::up_to(0),
            "of the first release"
        );
    }

    #[test]
    fn the_void_is_nobodys() {
        let of_bytes = Capability::from_bytes(&[0; Capability::BYTES]);
        assert_eq!(Capability::VOID, of_bytes);
        let key = CapabilityKey::new(&[0; 32]);
        assert_eq!(key.verify(&Capability::VOID), Err(Refusal::Forged));
    }

    #[test]
    fn a_grant_covers_its_range_its_rights_its_holder_and_its_time() {
        let bound = Grant {
            holder: Incarnation(8),
            ..grant()
        };
        let check = |grant: &Grant, rights, range, holder, now, expected| {
            assert_eq!(
                grant.covers(rights, range, Incarnation(holder), now),
                expected,
                "{range:?} at {now}"
            );
        };
        check(&grant(), Rights::READ, (4096, 8192), 1, 999, Ok(()));
        check(&grant(), Rights::READ, (12_288, 0), 1, 0, Ok(()));
        check(
            &grant(),
            Rights::WRITE,
            (4096, 1),
            1,
            0,
            Err(Refusal::Rights),
        );
        check(&grant(), Rights::READ, (4095, 1), 1, 0, Err(Refusal::Range));
        check(
            &grant(),
            Rights::READ,
            (4096, 8193),
            1,
            0,
            Err(Refusal::Range),
        );
        check(
            &grant(),
            Rights::READ,
            (u64::MAX, 2),
            1,
            0,
            Err(Refusal::Range),
        );
        check(
            &grant(),
            Rights::READ,
            (4096, 1),
            1,
            1_000,
            Err(Refusal::Expired),
        );
        check(&bound, Rights::READ, (4096, 1), 8, 0, Ok(()));
        check(&bound, Rights::READ, (4096, 1), 9, 0, Err(Refusal::Holder));
    }

    #[test]
    fn refusals_keep_their_numbers() {
        for (index, refusal) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal.number() as usize, index + 1);
            assert_eq!(Refusal::from_number(refusal.number()), Some(refusal));
        }
        assert_eq!(Refusal::from_number(0), None);
        assert_eq!(Refusal::from_number(15), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_changed_bit_survives(at in 0..Capability::BYTES * 8, newest in any::<bool>()) {
            let kind = if newest { MacKind::SipHash } else { MacKind::HmacSha256 };
            let key = CapabilityKey::new(&[1; 32]).making(kind);
            let mut bytes = key.mint(&grant()).to_bytes();
            bytes[at / 8] ^= 1 << (at % 8);
            prop_assert_eq!(key.verify(&Capability::from_bytes(&bytes)), Err(Refusal::Forged));
        }
    }
}
