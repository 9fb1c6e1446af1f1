//! Room that is left to a call across hosts which came earlier, where it has found some.

use std::collections::{BTreeMap, BTreeSet};

use crate::catalog::SegmentIndex;
use crate::segment::{Domain, Segment, Segments};

/// The segments that have room for the next value of such a call, counted by host: looked at once for a put, not for each segment of it.
pub(super) struct LeftRoom {
    bytes: u64,
    charge: u64,
    roomy: BTreeSet<SegmentIndex>,
    /// The host of each memory segment, and how many segments of each have room.
    host_of: BTreeMap<SegmentIndex, usize>,
    of_host: Vec<usize>,
}

impl LeftRoom {
    /// `charge` is what a value of so many bytes takes.
    pub(super) fn new(segments: &Segments, bytes: u64, charge: u64) -> Self {
        let mut left = Self {
            bytes,
            charge,
            roomy: BTreeSet::new(),
            host_of: BTreeMap::new(),
            of_host: Vec::new(),
        };
        let mut hosts = BTreeMap::<Domain<'_>, usize>::new();
        let memory = segments.iter().filter(|(_, it)| it.memory().is_some());
        for (index, segment) in memory {
            let next = left.of_host.len();
            let host = *hosts.entry(segment.domain()).or_insert(next);
            if host == next {
                left.of_host.push(0);
            }
            left.host_of.insert(index, host);
            if left.has_room(segment) {
                left.roomy.insert(index);
                left.of_host[host] += 1;
            }
        }
        left
    }

    /// Whether the host of a segment still has the room when a value is taken there that is charged so much. On a host that has none
    /// now, it is being made; one that is too small for it can never serve it, and leaves nothing.
    pub(super) fn stays(&self, index: SegmentIndex, segment: &Segment, charge: u64) -> bool {
        let own = usize::from(self.roomy.contains(&index));
        let host = self.host_of.get(&index).map(|host| self.of_host[*host]);
        segment.capacity() < self.charge
            || segment.has_room(self.charge.saturating_add(charge))
            || host.is_some_and(|roomy| roomy > own)
    }

    /// A value was given room in this segment.
    pub(super) fn taken(&mut self, index: SegmentIndex, segment: &Segment) {
        if !self.has_room(segment)
            && self.roomy.remove(&index)
            && let Some(host) = self.host_of.get(&index)
        {
            self.of_host[*host] -= 1;
        }
    }

    fn has_room(&self, segment: &Segment) -> bool {
        segment.takes_new() && segment.has_room(self.bytes)
    }
}
