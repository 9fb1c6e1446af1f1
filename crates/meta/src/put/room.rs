//! Room that is made in memory for puts that wait, by eviction.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use slackwater_base::Instant;

use crate::catalog::{ReplicaId, SegmentIndex};
use crate::master::{Due, Master};
use crate::pressure::{Evictable, Pass};
use crate::prospect;
use crate::segment::{Domain, Segment};

/// Room that is to be made in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoomWanted {
    /// All bytes that are waited for.
    pub(super) bytes: u64,
    /// Those of the value that is the next.
    pub(super) first: u64,
    /// The next value needs several hosts: what is free on one of them does not help.
    pub(super) across_hosts: bool,
}

/// A segment of memory in which room can be made.
struct Room {
    index: SegmentIndex,
    free: u64,
    /// Bytes that are being freed.
    coming: u64,
}

impl Master {
    /// Evicts as much as the waiting calls need, unless that much is being freed already.
    pub(super) fn make_room(&mut self, now: Instant) {
        let step = self.config.eviction.step;
        let wanted = [self.queue.wanted(), self.queue.wanted_across()];
        for wanted in wanted.into_iter().flatten() {
            self.make_room_within(now, wanted, step);
        }
    }

    pub(super) fn make_room_within(&mut self, now: Instant, wanted: RoomWanted, mut budget: usize) {
        let RoomWanted {
            bytes: wanted,
            first,
            across_hosts,
        } = wanted;
        // Pins give way only where no segment has anything else.
        for pass in [Pass::Plain, Pass::Last] {
            for Room {
                index,
                free,
                coming,
            } in self.rooms(first, across_hosts)
            {
                let missing = match coming {
                    0 => wanted,
                    _ => wanted.saturating_sub(free + coming),
                };
                let most = (self.segments.at(index).capacity() / 8).max(first);
                let missing = missing.min(most);
                let freed = self.evict(now, index, missing, pass, &mut budget);
                if freed < missing && budget == 0 {
                    self.due.set(Due::Relieve(index), now);
                }
                // Where nothing can be evicted, the next segment may have something.
                let comes = coming > 0 && free + coming >= first;
                if freed > 0 || comes || budget == 0 {
                    return;
                }
            }
        }
    }

    /// The segments in which room for a value of this length can be made, the one with most of it first; of hosts that have none,
    /// where it needs several of them.
    fn rooms(&self, bytes: u64, across_hosts: bool) -> Vec<Room> {
        let all = self.segments.iter().map(|(_, segment)| segment);
        let roomy =
            all.filter(|segment| across_hosts && segment.takes_new() && segment.has_room(bytes));
        let roomy: BTreeSet<Domain<'_>> = roomy.map(Segment::domain).collect();
        let room = |(index, segment): (SegmentIndex, &Segment)| {
            let books = segment.memory()?.extents.books();
            let can = segment.takes_new() && books.capacity >= bytes;
            let can = can && !roomy.contains(&segment.domain());
            can.then_some(Room {
                index,
                free: books.free,
                coming: books.quarantined + segment.leaving,
            })
        };
        let mut rooms: Vec<Room> = self.segments.iter().filter_map(room).collect();
        rooms.sort_by_key(|room| Reverse(room.free + room.coming));
        rooms
    }

    /// A replica that could be evicted for a put for which room is made, while nothing happens that would make room for it.
    pub(crate) fn overlooked_room(&self, now: Instant) -> Option<ReplicaId> {
        let wanted = [self.queue.wanted(), self.queue.wanted_across()];
        let mut wanted = wanted.into_iter().flatten();
        wanted.find_map(|wanted| self.overlooked_for(now, wanted))
    }

    fn overlooked_for(&self, now: Instant, wanted: RoomWanted) -> Option<ReplicaId> {
        let rooms = self.rooms(wanted.first, wanted.across_hosts);
        // A value whose earlier record is still being dropped is written, and evicted, after that.
        let goes_on = self.due.next().is_some_and(|at| at <= now)
            || self.metrics.offload.in_flight + self.metrics.promotion.in_flight > 0
            || self.drops.len() > 0
            || rooms.iter().any(|room| room.coming > 0);
        if goes_on {
            return None;
        }
        let mut all = rooms
            .iter()
            .flat_map(|room| prospect::residents(&self.catalog, &self.segments, room.index));
        all.find(|id| {
            let replica = self.catalog.replica(*id);
            replica.object().is_some() && self.evictable(now, *id) == Evictable::Now
        })
    }
}
