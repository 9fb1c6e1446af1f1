//! Registration and its end: what all movers are told of a region.

use std::sync::Arc;
use std::time::Duration;

use slackwater_wait::now;
use slackwater_wire::data::Capability;

use super::{Engine, EngineError, lock};
use crate::home::GrantSpec;
use crate::job::RegionKey;
use crate::region::{Extent, Region, RegionId, RegionSpec, RegisterError};

impl Engine {
    /// Registers memory with every mover that takes its kind.
    ///
    /// # Errors
    /// It is empty, overlaps, or no mover takes it.
    pub fn register(&self, spec: RegionSpec) -> Result<Arc<Region>, RegisterError> {
        let location = spec.memory.location();
        if !self
            .0
            .movers
            .iter()
            .any(|mover| mover.abilities().takes(location))
        {
            return Err(RegisterError::Unsupported(location));
        }
        let region = self.home().regions().register(spec)?;
        if let Err(error) = self.register_keys(&region) {
            region.close();
            self.0.release(region.id(), None);
            // The region is not known to anyone yet, so no access is under way.
            let removed = self.home().regions().remove(&region, now());
            debug_assert!(
                removed.is_ok(),
                "a region that was never granted has no accesses"
            );
            return Err(error);
        }
        Ok(region)
    }

    /// Unregisters a region: peers and local requests are refused from now on, and when this returns nothing touches
    /// its bytes any more.
    ///
    /// # Errors
    /// There is no such region, or accesses are still under way after `timeout`; the region stays closed then, and
    /// another call goes on.
    pub fn unregister(&self, id: RegionId, timeout: Duration) -> Result<(), EngineError> {
        let region = self.close_region(id)?;
        self.home().regions().remove(&region, now() + timeout)?;
        lock(&self.0.keys).remove(&id);
        Ok(())
    }

    /// Revokes everything that was granted of a region and waits until nothing under it can touch a byte: the bytes may
    /// be reused then. Returns the new generation.
    ///
    /// # Errors
    /// As for [`Engine::unregister`]; or the region is gated, so its gate fences each extent by itself.
    pub fn invalidate(&self, id: RegionId, timeout: Duration) -> Result<u64, EngineError> {
        self.ungated(id)?;
        let region = self.close_region(id)?;
        let generation = self.home().regions().reopen(&region, now() + timeout)?;
        self.register_keys(&region)?;
        Ok(generation)
    }

    /// Has all movers end what is under way at an extent that the gate of its region has fenced, and returns at once:
    /// the gate is told of the end of each access. A copy of another process of this host that is under way, and one
    /// of a device, is waited for; everything else ends soon, whatever its peer does. Other extents are not touched.
    pub fn release_extent(&self, id: RegionId, extent: Extent) {
        self.0.release(id, Some(extent));
    }

    /// Grants a range of a region under its present generation.
    ///
    /// # Errors
    /// There is no such region, or it is gated: capabilities for its extents are minted
    /// ([`Home::capability_secret`]).
    pub fn grant(&self, id: RegionId, spec: &GrantSpec) -> Result<Capability, EngineError> {
        let region = self.ungated(id)?;
        Ok(self.home().grant(&region, spec))
    }

    /// The keys that movers gave a region, by mover.
    #[must_use]
    pub fn region_keys(&self, id: RegionId) -> Vec<(&'static str, RegionKey)> {
        lock(&self.0.keys).get(&id).cloned().unwrap_or_default()
    }

    fn register_keys(&self, region: &Arc<Region>) -> Result<(), RegisterError> {
        let mut keys = Vec::new();
        for mover in self
            .0
            .movers
            .iter()
            .filter(|mover| mover.abilities().takes(region.memory().location()))
        {
            keys.extend(mover.register(region)?.map(|key| (mover.name(), key)));
        }
        if !keys.is_empty() {
            lock(&self.0.keys).insert(region.id(), keys);
        }
        Ok(())
    }

    fn region(&self, id: RegionId) -> Result<Arc<Region>, EngineError> {
        let region = self.home().regions().get(id);
        region.ok_or(EngineError::NoRegion(id))
    }

    fn ungated(&self, id: RegionId) -> Result<Arc<Region>, EngineError> {
        let region = self.region(id)?;
        match region.is_gated() {
            true => Err(EngineError::Gated(id)),
            false => Ok(region),
        }
    }

    fn close_region(&self, id: RegionId) -> Result<Arc<Region>, EngineError> {
        let region = self.region(id)?;
        region.close();
        self.0.release(id, None);
        Ok(region)
    }
}
