//! A peer as it described itself.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use slackwater_transfer::{Capability, Engine, PeerId, Segment, Target};

use super::failure::Failure;

/// A peer, by one of its descriptions.
pub(super) struct Peer {
    pub(super) id: PeerId,
    /// The key that it has proven, which has to be on the list as long as it is used.
    pub(super) key: Option<[u8; 32]>,
    /// Where its memory is registered, in the order of registration.
    ranges: Vec<PeerRange>,
    /// Index in `ranges`, by first address.
    by_start: BTreeMap<u64, usize>,
    /// Whether the peer refused what the description grants, or was not reached.
    is_stale: AtomicBool,
}

struct PeerRange {
    start: u64,
    bytes: u64,
    capability: Capability,
}

/// What a peer says of itself.
pub(super) struct Described {
    pub(super) segment: Segment,
    ranges: Vec<PeerRange>,
}

impl Peer {
    /// What a peer says, the owner of `key` if that is proven; otherwise what is wrong with the description. Where the peer
    /// listens at every address its bytes go to the one at which it was reached.
    pub(super) fn read(
        described: &[u8],
        reached: IpAddr,
        key: Option<[u8; 32]>,
    ) -> Result<Described, String> {
        let described: Value =
            serde_json::from_slice(described).map_err(|error| error.to_string())?;
        let mut segment: Segment = serde_json::from_value(described["segment"].clone())
            .map_err(|error| error.to_string())?;
        if segment.public_key != key {
            return Err("another key than the one that it proves".to_owned());
        }
        let addresses = segment.addresses.iter_mut();
        for address in addresses.filter(|address| address.ip().is_unspecified()) {
            address.set_ip(reached);
        }
        let mut addresses = segment.addresses.iter();
        if key.is_none() && addresses.any(|address| !address.ip().is_loopback()) {
            return Err("it is on another machine, and proves no key".to_owned());
        }
        let ranges = described["ranges"].as_array();
        let ranges: Option<Vec<PeerRange>> =
            ranges.and_then(|ranges| ranges.iter().map(PeerRange::of).collect());
        let ranges = ranges.ok_or_else(|| "its memory".to_owned())?;
        Ok(Described { segment, ranges })
    }

    /// Opens the peer that is described so.
    pub(super) fn open(engine: &Engine, described: Described) -> Self {
        let Described { segment, ranges } = described;
        let starts = ranges.iter().enumerate();
        Self {
            key: segment.public_key,
            id: engine.open(segment),
            by_start: starts.map(|(index, range)| (range.start, index)).collect(),
            ranges,
            is_stale: AtomicBool::new(false),
        }
    }

    /// The address of the memory that it registered first.
    pub(super) fn first(&self) -> Option<u64> {
        self.ranges.first().map(|range| range.start)
    }

    /// Whether it is to be described again.
    pub(super) fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Relaxed)
    }

    /// Takes in how a call about it failed: whether it is to be described again before the next one.
    pub(super) fn heed(&self, failure: Failure) -> Failure {
        self.is_stale
            .fetch_or(failure.asks_again, Ordering::Relaxed);
        failure
    }

    pub(super) fn target(&self, address: u64, bytes: u64) -> Result<Target, Failure> {
        let found = self.by_start.range(..=address).next_back();
        let (start, index) = found.ok_or_else(Failure::stale)?;
        let (offset, range) = (address - start, &self.ranges[*index]);
        match offset.checked_add(bytes) {
            Some(end) if end <= range.bytes => Ok(Target {
                peer: self.id,
                offset,
                capability: range.capability,
                key: None,
            }),
            _ => Err(Failure::stale()),
        }
    }
}

impl PeerRange {
    fn of(described: &Value) -> Option<Self> {
        let bytes = described[2].as_array()?.iter();
        let bytes: Option<Vec<u8>> = bytes
            .map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok()))
            .collect();
        Some(Self {
            start: described[0].as_u64()?,
            bytes: described[1].as_u64()?,
            capability: Capability::from_bytes(bytes?.as_slice().try_into().ok()?),
        })
    }
}
