//! Offload: what is written to SSD and when, and its effects on memory.

use std::collections::BTreeMap;

use slackwater_base::Map;
use slackwater_wire::{DiskEntry, TicketId, Version};

use crate::catalog::{ObjectId, ReplicaId, SegmentIndex, TenantIndex};
use crate::outbox::Waiter;
use crate::segment::record_bytes;

mod end;
mod start;

/// Offloads under way, at most one for each version and SSD.
#[derive(Default)]
pub(crate) struct Offloads {
    tickets: Map<TicketId, Offloading>,
    of: BTreeMap<(Version, SegmentIndex), TicketId>,
}

/// One object on its way to SSD. Its source replica is held until the report.
struct Offloading {
    /// None when the object was removed or replaced meanwhile.
    object: Option<ObjectId>,
    entry: DiskEntry,
    hash: u64,
    bytes: u64,
    tenant: TenantIndex,
    source: ReplicaId,
    disk: SegmentIndex,
    cause: Cause,
    waiters: Vec<Waiter>,
}

impl Offloading {
    /// What its record takes.
    fn record(&self) -> u64 {
        record_bytes(&self.entry.key, self.bytes)
    }
}

/// Why an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its put ended.
    Eager,
    /// It is evicted from memory.
    Eviction,
    /// A put or a drain waits until it is on SSD.
    Promise,
}

/// The outcome of a request for an offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffloadStart {
    Queued(TicketId),
    /// The queue is full, or an older record is still being dropped.
    NotNow,
    /// There is no SSD that accepts it.
    NoDisk,
    /// The value is too long for the SSD, however empty it is.
    TooLong,
    /// The SSD would evict it first.
    NotWorth,
}

impl Offloads {
    pub(crate) fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    /// The SSDs to which this version is being written.
    pub(crate) fn disks_of(&self, version: Version) -> Vec<SegmentIndex> {
        let range = (version, SegmentIndex(0))..=(version, SegmentIndex(u16::MAX));
        let under_way = self.of.range(range);
        let under_way = under_way.filter(|(_, ticket)| self.tickets[*ticket].object.is_some());
        under_way.map(|((_, disk), _)| *disk).collect()
    }

    /// Number of offloads of this version that hold this replica.
    pub(crate) fn from(&self, version: Version, source: ReplicaId) -> usize {
        let range = (version, SegmentIndex(0))..=(version, SegmentIndex(u16::MAX));
        self.of
            .range(range)
            .filter(|(_, ticket)| self.tickets[*ticket].source == source)
            .count()
    }
}
