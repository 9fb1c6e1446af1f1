use slackwater_base::Rng;

use super::random::shuffle;
use super::{PlacementPolicy, SegmentRoom};

/// Segments of the writer's host first; among equals any order.
pub(super) struct LocalFirst {
    pub(super) rng: Rng,
}

impl PlacementPolicy for LocalFirst {
    fn rank(&mut self, rooms: &mut [SegmentRoom<'_>], writer_host: Option<&str>) {
        shuffle(&mut self.rng, rooms);
        rooms.sort_by_key(|room| writer_host != Some(room.host));
    }
}
