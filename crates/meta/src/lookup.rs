//! Questions about the whole that change nothing.

use slackwater_base::Instant;
use slackwater_wire::{DiskEntry, ErrorCode, ExtentRef, Key, SegmentKind, Tenant};

use crate::catalog::{Mark, ObjectId, ReplicaId, SegmentIndex};
use crate::master::Master;
use crate::segment::record_bytes;

impl Master {
    pub(crate) fn find(&self, tenant: &Tenant, key: &Key) -> Option<ObjectId> {
        let tenant = self.tenants.find(tenant)?;
        self.catalog
            .find(tenant, key, self.tenants.hash(tenant, key))
    }

    /// The key, tenant and version of an object's record.
    pub(crate) fn entry(&self, id: ObjectId) -> DiskEntry {
        let object = self.catalog.object(id);
        let tenant = self.tenants.at(object.tenant).tenant.clone();
        DiskEntry {
            tenant,
            key: object.key.clone(),
            version: object.version,
        }
    }

    /// What the record of an object takes on SSD.
    pub(crate) fn record_of(&self, id: ObjectId) -> u64 {
        let object = self.catalog.object(id);
        record_bytes(&object.key, object.bytes)
    }

    /// Where a memory replica's bytes are.
    pub(crate) fn extent_of(&self, id: ReplicaId) -> ExtentRef {
        self.segments.extent_of(self.catalog.replica(id))
    }

    /// Bytes that a replica of `bytes` takes in memory.
    pub(crate) fn charge_of(&self, bytes: u64) -> u64 {
        bytes
            .checked_next_multiple_of(self.config.granule)
            .unwrap_or(u64::MAX)
    }

    /// The watermarks of a segment, in bytes.
    pub(crate) fn marks(&self, index: SegmentIndex) -> (u64, u64) {
        let eviction = &self.config.eviction;
        let segment = self.segments.at(index);
        let (high, low) = match segment.kind() {
            SegmentKind::Memory => (eviction.high_watermark, eviction.low_watermark),
            SegmentKind::Disk => (eviction.disk_high_watermark, eviction.disk_low_watermark),
        };
        let share = |of: f64| (segment.capacity() as f64 * of) as u64;
        (share(high), share(low))
    }

    /// End of the longest lease on an object, its group's included.
    pub(crate) fn lease_end(&self, id: ObjectId) -> Instant {
        let object = self.catalog.object(id);
        if object.is(Mark::Group) {
            self.groups.lease(object.tenant, id)
        } else {
            object.lease
        }
    }

    /// Number of offloads that hold this replica.
    pub(crate) fn offloads_from(&self, id: ReplicaId) -> usize {
        match self.catalog.replica(id).object() {
            Some(object) => self.offloads.from(self.catalog.object(object).version, id),
            None => 0,
        }
    }

    /// Checks the limits of requests whose answer for each key waits for its record.
    pub(crate) fn each_limits(&self, keys: usize) -> Result<(), ErrorCode> {
        if keys > self.config.limits.batch_keys {
            return Err(ErrorCode::InvalidParams);
        }
        if self.acks.len() >= self.config.limits.acks {
            Err(ErrorCode::TaskPendingLimitExceeded)
        } else {
            Ok(())
        }
    }
}
