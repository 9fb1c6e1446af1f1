//! Regions whose extents are lent out one by one, each with a generation of its own.

use std::fmt;

use slackwater_wire::data::{Grant, Refusal, Rights};

use super::{Access, GenerationTable, RegionId};

/// A part of a gated region as a capability names it, and which use of its bytes is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First byte, from the start of the region.
    pub offset: u64,
    /// Bytes from there.
    pub bytes: u64,
    /// Which use of these bytes.
    pub generation: u64,
}

/// The gate's own number for an access that it admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GateAccess(pub u64);

/// Admits, watches and fences the accesses of peers to a region, for each extent by itself. It is the allocator's: only
/// the allocator knows which generation of an extent is in use.
///
/// Every access that begins is ended once, after the last touch of its bytes. To give an extent another use the
/// allocator makes its generation dead, so that [`Gate::begin`] refuses it and [`Gate::is_live`] is false; calls
/// [`Engine::release_extent`](crate::Engine::release_extent), so that transfers under way end soon; and waits for
/// [`Gate::end`] of the accesses to that extent. Other extents are not concerned.
///
/// The calls come from event loops and from threads that copy, some under locks of the movers: they must not block, nor
/// call the engine. An allocator must not call the engine while it holds a lock that the gate takes.
pub trait Gate: Send + Sync + fmt::Debug {
    /// Begins an access with these rights. `extent` is all that the capability grants, of which the request may be a
    /// part; several accesses to one extent may be under way, of one capability too, also such that write.
    ///
    /// # Errors
    /// [`Refusal::Generation`] for an extent that has another use; [`Refusal::Range`] for what is no extent.
    fn begin(&self, extent: Extent, rights: Rights) -> Result<GateAccess, Refusal>;

    /// Whether what is done under an access still counts.
    fn is_live(&self, access: GateAccess) -> bool;

    /// Nothing is done under this access any more.
    fn end(&self, access: GateAccess);

    /// Where processes of this host see for themselves which generations are dead. With it such a process may read all of
    /// the region once it has shown one capability: its reads do not begin and end here, and nobody waits for them. Only
    /// for memory whose readers may read everything in it. Its words are raised before the bytes get another use.
    fn generations(&self) -> Option<&GenerationTable> {
        None
    }
}

/// What movers are told to release: all accesses of peers to a region that closes, or those to one extent that its gate
/// has fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The region.
    pub region: RegionId,
    /// The only extent that is concerned, with all generations that began at its first byte before; none for all.
    pub extent: Option<Extent>,
}

impl Extent {
    /// What a capability grants.
    pub(super) fn of(grant: &Grant) -> Self {
        Self {
            offset: grant.offset,
            bytes: grant.bytes,
            generation: grant.generation,
        }
    }
}

impl Revocation {
    /// Whether an access is one of those to be released.
    #[must_use]
    pub fn covers(&self, access: &Access) -> bool {
        let of_extent = |revoked: Extent| {
            access.extent().is_some_and(|extent| {
                extent.offset == revoked.offset && extent.generation <= revoked.generation
            })
        };
        access.region().id() == self.region && self.extent.is_none_or(of_extent)
    }
}
