use std::cmp::Reverse;

use super::{PlacementPolicy, SegmentRoom};

/// The largest free share first.
pub(super) struct FreeRatioFirst;

impl PlacementPolicy for FreeRatioFirst {
    fn rank(&mut self, rooms: &mut [SegmentRoom<'_>], _writer_host: Option<&str>) {
        let share = |room: &SegmentRoom<'_>| {
            u128::from(room.free) * (1 << 32) / u128::from(room.capacity.max(1))
        };
        rooms.sort_by_key(|room| (Reverse(share(room)), room.index));
    }
}
