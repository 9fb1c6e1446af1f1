use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use slackwater_base::{Instant, Map};
use slackwater_transfer::holder_of;
use slackwater_transfer::{Capability, CapabilityKey, Engine, Extent, Grant, RegionId, Rights};
use slackwater_wait::now;
use slackwater_wire::data::MacKind;
use slackwater_wire::{Incarnation, MemoryAccess, SegmentId};
use slackwater_zmtp::PublicKey;

/// Makes the capabilities for the extents of one process's memory: in that process, or with the secret that it gave away.
pub(crate) struct Minter {
    key: CapabilityKey,
    incarnation: Incarnation,
    region: u32,
    /// Nanoseconds that its clock, by which capabilities expire, is ahead of ours.
    ahead: AtomicI64,
    nonce: AtomicU64,
}

impl Minter {
    /// That of a region of this process.
    pub(crate) fn own(engine: &Engine, region: RegionId) -> Self {
        let home = engine.home();
        Self {
            key: CapabilityKey::new(&home.capability_secret()),
            incarnation: home.incarnation(),
            region: region.index(),
            ahead: AtomicI64::new(0),
            nonce: AtomicU64::new(1),
        }
    }

    /// That of the memory of a node.
    pub(crate) fn of(memory: &MemoryAccess) -> Self {
        let minter = Self {
            key: CapabilityKey::new(&memory.secret.0).making(MacKind::up_to(memory.macs)),
            incarnation: memory.contact.incarnation,
            region: memory.region,
            ahead: AtomicI64::new(0),
            nonce: AtomicU64::new(1),
        };
        minter.hear(memory.clock_nanos);
        minter
    }

    /// Its clock showed this a moment ago. What is counted from here is never ahead of it.
    pub(crate) fn hear(&self, clock_nanos: u64) {
        let ahead = clock_nanos.wrapping_sub(now().as_nanos()).cast_signed();
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    /// The right to reach an extent for a time: of the holder of `key` alone, where there is one.
    pub(crate) fn mint(
        &self,
        extent: Extent,
        rights: Rights,
        time: Duration,
        key: Option<PublicKey>,
    ) -> Capability {
        self.mint_until(extent, rights, now() + time, holder(key))
    }

    /// The same until a moment of our clock, for what [`holder`] says: these are found once for a whole answer.
    pub(crate) fn mint_until(
        &self,
        extent: Extent,
        rights: Rights,
        until: Instant,
        holder: Incarnation,
    ) -> Capability {
        let expires = until.as_nanos();
        self.key.mint(&Grant {
            incarnation: self.incarnation,
            region: self.region,
            generation: extent.generation,
            offset: extent.offset,
            bytes: extent.bytes,
            rights,
            tenant: 0,
            holder,
            expires_nanos: expires.saturating_add_signed(self.ahead.load(Ordering::Relaxed)),
            nonce: self.nonce.fetch_add(1, Ordering::Relaxed),
        })
    }
}

/// Whom a capability is for: the holder of a key, or without one any bearer.
pub(crate) fn holder(key: Option<PublicKey>) -> Incarnation {
    key.map_or(Incarnation(0), |key| holder_of(&key))
}

/// The minters of all segments of memory: one is looked up for every extent of an answer.
#[derive(Default)]
pub(crate) struct Minters(RwLock<Map<SegmentId, Arc<Minter>>>);

impl Minters {
    pub(crate) fn add(&self, segment: SegmentId, minter: Arc<Minter>) {
        let mut minters = self.0.write().unwrap_or_else(PoisonError::into_inner);
        minters.insert(segment, minter);
    }

    pub(crate) fn remove(&self, segment: SegmentId) {
        let mut minters = self.0.write().unwrap_or_else(PoisonError::into_inner);
        minters.remove(&segment);
    }

    pub(crate) fn find(&self, segment: SegmentId) -> Option<Arc<Minter>> {
        self.all().get(&segment).cloned()
    }

    /// All of them, for the capabilities of one answer. None comes or goes meanwhile.
    pub(crate) fn all(&self) -> RwLockReadGuard<'_, Map<SegmentId, Arc<Minter>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use slackwater_wire::Secret;
    use slackwater_wire::data::Segment;

    use super::*;

    const HOUR: u64 = 3600 * 1_000_000_000;

    /// Clocks of machines begin when they start: a capability that was made by the master's was refused, or good for days.
    #[test]
    fn capabilities_expire_by_the_clock_of_their_node() {
        let now = now().as_nanos();
        for clock_nanos in [now, now + 100 * HOUR, now / 2] {
            let secret = Secret([3; 32]);
            let contact = Segment {
                name: "a".into(),
                incarnation: Incarnation(9),
                addresses: Vec::new(),
                public_key: None,
                host: None,
            };
            let memory = MemoryAccess {
                contact,
                region: 4,
                secret: secret.clone(),
                clock_nanos,
                macs: MacKind::LATEST.number(),
            };
            let extent = Extent {
                offset: 4096,
                bytes: 100,
                generation: 7,
            };
            let minter = Minter::of(&memory);
            let time = Duration::from_nanos(HOUR);
            let capability = minter.mint(extent, Rights::READ, time, None);
            let key = CapabilityKey::new(&secret.0);
            let grant = key.verify(&capability).unwrap();
            assert_eq!((grant.incarnation, grant.region), (Incarnation(9), 4));
            let left = grant.expires_nanos - clock_nanos;
            assert!((HOUR..2 * HOUR).contains(&left), "{left}");
        }
    }
}
