//! Questions about the whole that change nothing.

use slackwater_base::Instant;
use slackwater_wire::{DiskEntry, ErrorCode, ExtentRef, Key, SegmentKind, Tenant, Watermarks};

use crate::catalog::{Mark, ObjectId, ReplicaId, SegmentIndex};
use crate::master::Master;
use crate::segment::{Segment, record_bytes};

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
        let segment = self.segments.at(index);
        let Watermarks { low, high } = self.watermarks_of(segment);
        let share = |of: f64| (segment.capacity() as f64 * of) as u64;
        (share(high), share(low))
    }

    /// The watermarks of a segment: its node's, or those of all segments of its kind.
    pub(crate) fn watermarks_of(&self, segment: &Segment) -> Watermarks {
        let eviction = &self.config.eviction;
        segment.watermarks.unwrap_or(match segment.kind() {
            SegmentKind::Memory => Watermarks {
                low: eviction.low_watermark,
                high: eviction.high_watermark,
            },
            SegmentKind::Disk => Watermarks {
                low: eviction.disk_low_watermark,
                high: eviction.disk_high_watermark,
            },
        })
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
