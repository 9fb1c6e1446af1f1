//! What nodes are told and say, for tests.

use slackwater_base::Checksum;
use slackwater_wire::{
    ChainPlace, ClientId, DiskEntry, Durability, ExtentRef, Incarnation, Key, Pin, Published,
    ReportedEntry, SegmentId, Tenant, Version,
};

/// A version of `k`.
pub(crate) fn entry(version: u64) -> DiskEntry {
    DiskEntry {
        tenant: Tenant::DEFAULT,
        key: Key::try_from("k").expect("it is short"),
        version: Version(version),
    }
}

/// A page of a segment.
pub(crate) fn extent(segment: SegmentId, offset: u64, generation: u64) -> ExtentRef {
    ExtentRef {
        segment,
        incarnation: Incarnation(1),
        offset,
        bytes: 4096,
        generation,
    }
}

/// A version in an extent.
pub(crate) fn published(extent: ExtentRef, version: u64) -> Published {
    Published {
        extent,
        entry: entry(version),
        bytes: 1,
        checksum: Checksum(0),
        writer: ClientId(1),
        pin: Pin::None,
        durability: Durability::Memory,
        group: None,
        chain: ChainPlace::default(),
    }
}

/// A version on an SSD.
pub(crate) fn reported(version: u64) -> ReportedEntry {
    ReportedEntry {
        entry: entry(version),
        bytes: 1,
        checksum: Checksum(0),
    }
}
