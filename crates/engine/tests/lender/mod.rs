//! An allocator of extents, as small as one can be: the gate of regions in tests.
#![allow(dead_code, reason = "no test that shares this file uses all of it")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use slackwater_engine::{
    Capability, CapabilityKey, Extent, Gate, GateAccess, GenerationTable, Grant, Home, Memory,
    Refusal, Region, RegionSpec, Rights,
};
use slackwater_wire::Incarnation;

/// The extents that are in use, and the accesses to those that are or were.
#[derive(Debug, Default)]
pub(crate) struct Lender {
    lent: Mutex<Lent>,
    /// Where readers of the host see which generations are dead, if they may.
    generations: Option<GenerationTable>,
}

#[derive(Debug, Default)]
struct Lent {
    extents: BTreeMap<u64, Extent>,
    accesses: BTreeMap<GateAccess, (Extent, Rights)>,
    generation: u64,
    next: u64,
}

impl Lender {
    /// One whose readers on this host look at the generations of `bytes` bytes by themselves.
    pub(crate) fn with_table(bytes: u64, granule: u64) -> Self {
        Self {
            generations: Some(GenerationTable::create(bytes, granule).unwrap()),
            ..Self::default()
        }
    }

    /// A region of this lender's.
    pub(crate) fn region(self: &Arc<Self>, memory: Memory, rights: Rights) -> RegionSpec {
        let gate = Some(Arc::clone(self) as Arc<dyn Gate>);
        RegionSpec {
            memory,
            rights,
            gate,
        }
    }

    /// Gives an extent its next use.
    pub(crate) fn lend(&self, offset: u64, bytes: u64) -> Extent {
        let mut lent = self.lent();
        lent.generation += 1;
        let generation = lent.generation;
        let extent = Extent {
            offset,
            bytes,
            generation,
        };
        lent.extents.insert(offset, extent);
        extent
    }

    /// Makes an extent dead; its bytes may be lent again once it is idle.
    pub(crate) fn fence(&self, extent: Extent) {
        self.lent().extents.remove(&extent.offset);
        if let Some(generations) = &self.generations {
            generations.raise(extent.offset, extent.generation + 1);
        }
    }

    /// The extent in use at an offset.
    pub(crate) fn live_at(&self, offset: u64) -> Option<Extent> {
        self.lent().extents.get(&offset).copied()
    }

    /// The rights of the accesses under way to an extent.
    pub(crate) fn accesses(&self, extent: Extent) -> Vec<Rights> {
        let lent = self.lent();
        let of = lent.accesses.values().filter(|(known, _)| *known == extent);
        of.map(|(_, rights)| *rights).collect()
    }

    pub(crate) fn is_idle(&self, extent: Extent) -> bool {
        self.accesses(extent).is_empty()
    }

    fn lent(&self) -> MutexGuard<'_, Lent> {
        self.lent.lock().unwrap()
    }
}

impl Gate for Lender {
    fn begin(&self, extent: Extent, rights: Rights) -> Result<GateAccess, Refusal> {
        let mut lent = self.lent();
        match lent.extents.get(&extent.offset) {
            Some(live) if *live == extent => {}
            Some(live) if live.bytes != extent.bytes => return Err(Refusal::Range),
            _ => return Err(Refusal::Generation),
        }
        lent.next += 1;
        let access = GateAccess(lent.next);
        lent.accesses.insert(access, (extent, rights));
        Ok(access)
    }

    fn is_live(&self, access: GateAccess) -> bool {
        let lent = self.lent();
        let (extent, _) = lent.accesses[&access];
        lent.extents.get(&extent.offset) == Some(&extent)
    }

    fn end(&self, access: GateAccess) {
        let ended = self.lent().accesses.remove(&access);
        assert!(ended.is_some(), "an access ends once");
    }

    fn generations(&self) -> Option<&GenerationTable> {
        self.generations.as_ref()
    }
}

/// A capability for an extent, minted as an authority does that has nothing but the secret.
pub(crate) fn mint(home: &Home, region: &Region, extent: Extent, rights: Rights) -> Capability {
    CapabilityKey::new(&home.capability_secret()).mint(&Grant {
        incarnation: home.incarnation(),
        region: region.id().index(),
        generation: extent.generation,
        offset: extent.offset,
        bytes: extent.bytes,
        rights,
        tenant: 0,
        holder: Incarnation(0),
        expires_nanos: u64::MAX,
        nonce: 0,
    })
}
