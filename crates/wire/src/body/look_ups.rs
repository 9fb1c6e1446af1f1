//! Answers to look-ups in a fixed layout, which is format 2: what the answer of a batch repeats is said once.
//!
//! After the format byte come a [`Header`], the [`Owner`]s, and an item for each key: a byte that says what was found, and
//! what belongs to it. All numbers are little-endian. An extent and the capability for it are one [`Place`]: the owner's
//! row says whose memory it is and until when for whom it may be read, and the object how many bytes. What an answer says
//! beyond that is written as MessagePack, as everything was by earlier releases: a guard, leases of different lengths.

use std::time::Duration;

use slackwater_base::{Checksum, Map};
use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fixed::{Reader, malformed};
use super::{BodyError, LOOK_UPS};
use crate::data::{Capability, Grant, Rights};
use crate::limits::BATCH_KEYS_MAX;
use crate::{
    Answered, Epoch, ErrorCode, ExtentRef, Incarnation, Lookup, NodeId, Object, ReplicaAt,
    Replicas, Reply, SegmentId, Version,
};

/// What is said once of a whole answer.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    epoch: U64,
    lease_nanos: U64,
    owners: U16,
    items: U32,
}

/// What the places of one segment have in common.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Owner {
    segment: U32,
    incarnation: U64,
    /// What follows is of the capabilities; all zero where there are none.
    granted_by: U64,
    region: U32,
    rights: u8,
    kind: u8,
    tenant: U64,
    holder: U64,
    expires_nanos: U64,
}

/// An object that was found. `replicas` records follow: [`Place`]s, and [`Log`]s.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Found {
    version: U64,
    bytes: U64,
    checksum: U64,
    replicas: u8,
}

/// A replica in memory and the right to read it, after the number of its owner.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Place {
    offset: U64,
    bytes: U64,
    generation: U64,
    nonce: U64,
    mac: [u8; 16],
}

/// A replica in an SSD log, after [`IN_LOG`].
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Log {
    node: U32,
    segment: U32,
}

const MISSING: u8 = 0;
const NOT_READY: u8 = 1;
const FAILED: u8 = 2;
const FOUND: u8 = 3;
/// Stands for the number of an owner. None has it, since a [`Header`] has no room for so many.
const IN_LOG: u16 = u16::MAX;
/// Bytes of an item with one replica in memory.
const ITEM_BYTES: usize = 1 + size_of::<Found>() + size_of::<u16>() + size_of::<Place>();

/// The answer in this layout; none when it says what the layout has no place for.
pub(super) fn encode(epoch: Epoch, lookups: &[Lookup], rights: &[Capability]) -> Option<Vec<u8>> {
    if lookups.len() > BATCH_KEYS_MAX {
        return None;
    }
    let lease = lookups.iter().find_map(|lookup| match lookup {
        Lookup::Found(object) => Some(object.lease),
        _ => None,
    });
    let lease = lease.unwrap_or_default();
    let lease_nanos = u64::try_from(lease.as_nanos()).ok()?;
    let mut writer = Writer {
        owners: Vec::with_capacity(1),
        by_segment: Map::default(),
        items: Vec::with_capacity(lookups.len() * ITEM_BYTES),
    };
    let mut rights = rights.iter();
    for lookup in lookups {
        writer.item(lookup, lease, &mut rights)?;
    }
    if rights.next().is_some() {
        return None;
    }
    let header = Header {
        epoch: epoch.0.into(),
        lease_nanos: lease_nanos.into(),
        owners: u16::try_from(writer.owners.len()).ok()?.into(),
        items: (lookups.len() as u32).into(),
    };
    let parts = [header.as_bytes(), writer.owners.as_bytes(), &writer.items];
    let mut body = Vec::with_capacity(1 + parts.iter().map(|part| part.len()).sum::<usize>());
    body.push(LOOK_UPS);
    parts.iter().for_each(|part| body.extend_from_slice(part));
    Some(body)
}

struct Writer {
    owners: Vec<Owner>,
    /// The latest owner of each segment.
    by_segment: Map<u32, u16>,
    items: Vec<u8>,
}

impl Writer {
    fn item<'a>(
        &mut self,
        lookup: &Lookup,
        lease: Duration,
        rights: &mut impl Iterator<Item = &'a Capability>,
    ) -> Option<()> {
        let object = match lookup {
            Lookup::Found(object) => object,
            Lookup::Missing => {
                self.items.push(MISSING);
                return Some(());
            }
            Lookup::NotReady => {
                self.items.push(NOT_READY);
                return Some(());
            }
            Lookup::Failed(code) => {
                self.items.push(FAILED);
                self.items.extend_from_slice(&code.number().to_le_bytes());
                return Some(());
            }
        };
        if object.guard.is_some() || object.lease != lease {
            return None;
        }
        self.items.push(FOUND);
        let found = Found {
            version: object.version.0.into(),
            bytes: object.bytes.into(),
            checksum: object.checksum.0.into(),
            replicas: u8::try_from(object.replicas.len()).ok()?,
        };
        self.items.extend_from_slice(found.as_bytes());
        for at in &object.replicas {
            match at {
                ReplicaAt::Memory(extent) => self.place(extent, object.bytes, rights.next()?)?,
                ReplicaAt::Disk { node, segment } => {
                    let log = Log {
                        node: node.0.into(),
                        segment: segment.0.into(),
                    };
                    self.items.extend_from_slice(&IN_LOG.to_le_bytes());
                    self.items.extend_from_slice(log.as_bytes());
                }
            }
        }
        Some(())
    }

    fn place(&mut self, extent: &ExtentRef, bytes: u64, right: &Capability) -> Option<()> {
        let (grant, (kind, mac)) = (right.claims(), right.seal());
        let owner = Owner {
            segment: extent.segment.0.into(),
            incarnation: extent.incarnation.0.into(),
            granted_by: grant.incarnation.0.into(),
            region: grant.region.into(),
            rights: grant.rights.bits(),
            kind,
            tenant: grant.tenant.into(),
            holder: grant.holder.0.into(),
            expires_nanos: grant.expires_nanos.into(),
        };
        let place = Place {
            offset: extent.offset.into(),
            bytes: extent.bytes.into(),
            generation: extent.generation.into(),
            nonce: grant.nonce.into(),
            mac,
        };
        // The reader makes it of the same.
        if owner.right_to(&place, bytes) != *right {
            return None;
        }
        let number = self.number(owner)?;
        self.items.extend_from_slice(&number.to_le_bytes());
        self.items.extend_from_slice(place.as_bytes());
        Some(())
    }

    /// The number of an owner, which is written where it is new.
    fn number(&mut self, owner: Owner) -> Option<u16> {
        let number = u16::try_from(self.owners.len()).ok()?;
        // The answer to a look-up of one key has one, which needs no index.
        match self.owners.as_slice() {
            [] => {
                self.owners.push(owner);
                return Some(0);
            }
            [only] if *only == owner => return Some(0),
            [only] => drop(self.by_segment.insert(only.segment.get(), 0)),
            _ => {}
        }
        let known = self.by_segment.get(&owner.segment.get()).copied();
        if let Some(known) = known.filter(|at| self.owners[usize::from(*at)] == owner) {
            return Some(known);
        }
        self.owners.push(owner);
        self.by_segment.insert(owner.segment.get(), number);
        Some(number)
    }
}

impl Owner {
    /// The right to read the bytes of an object at a place.
    fn right_to(&self, place: &Place, bytes: u64) -> Capability {
        if self.rights == 0 {
            return Capability::VOID;
        }
        let grant = Grant {
            incarnation: Incarnation(self.granted_by.get()),
            region: self.region.get(),
            generation: place.generation.get(),
            offset: place.offset.get(),
            bytes,
            rights: Rights::of_bits(self.rights),
            tenant: self.tenant.get(),
            holder: Incarnation(self.holder.get()),
            expires_nanos: self.expires_nanos.get(),
            nonce: place.nonce.get(),
        };
        Capability::claiming(&grant, (self.kind, place.mac))
    }
}

/// The answer of these bytes, which follow the format byte.
pub(super) fn decode(body: &[u8]) -> Result<Answered, BodyError> {
    let mut reader = Reader(body);
    let header: &Header = reader.take()?;
    let items = header.items.get() as usize;
    if items > BATCH_KEYS_MAX {
        return Err(malformed("more items than a look-up has keys"));
    }
    let owners = reader.all::<Owner>(header.owners.get().into())?;
    let lease = Duration::from_nanos(header.lease_nanos.get());
    // An item has a byte at least: what is read allocates in proportion to what is there.
    let mut lookups = Vec::with_capacity(items.min(reader.0.len() / ITEM_BYTES + 1));
    let mut capabilities = Vec::with_capacity(lookups.capacity());
    for _ in 0..items {
        lookups.push(match *reader.take::<u8>()? {
            MISSING => Lookup::Missing,
            NOT_READY => Lookup::NotReady,
            FAILED => Lookup::Failed(ErrorCode::of_peer(reader.take::<I32>()?.get())),
            FOUND => Lookup::Found(reader.object(owners, lease, &mut capabilities)?),
            _ => return Err(malformed("an unknown kind of item")),
        });
    }
    reader.end()?;
    Ok(Answered {
        epoch: Epoch(header.epoch.get()),
        reply: Reply::Get(lookups),
        capabilities,
    })
}

impl Reader<'_> {
    fn object(
        &mut self,
        owners: &[Owner],
        lease: Duration,
        capabilities: &mut Vec<Capability>,
    ) -> Result<Object, BodyError> {
        let found: &Found = self.take()?;
        let bytes = found.bytes.get();
        let mut replica = || {
            let number = self.take::<U16>()?.get();
            if number == IN_LOG {
                let log: &Log = self.take()?;
                return Ok(ReplicaAt::Disk {
                    node: NodeId(log.node.get()),
                    segment: SegmentId(log.segment.get()),
                });
            }
            let owner = owners.get(usize::from(number));
            let owner = owner.ok_or_else(|| malformed("a place without an owner"))?;
            let place: &Place = self.take()?;
            capabilities.push(owner.right_to(place, bytes));
            Ok(ReplicaAt::Memory(ExtentRef {
                segment: SegmentId(owner.segment.get()),
                incarnation: Incarnation(owner.incarnation.get()),
                offset: place.offset.get(),
                bytes: place.bytes.get(),
                generation: place.generation.get(),
            }))
        };
        let replicas = (0..found.replicas).map(|_| replica());
        Ok(Object {
            version: Version(found.version.get()),
            bytes,
            checksum: Checksum(found.checksum.get()),
            replicas: replicas.collect::<Result<Replicas, _>>()?,
            lease,
            guard: None,
        })
    }
}
