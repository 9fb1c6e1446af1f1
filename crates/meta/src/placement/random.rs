use slackwater_base::Rng;

use super::{PlacementPolicy, SegmentRoom};

/// Any order, each as likely as the other.
pub(super) struct Random {
    pub(super) rng: Rng,
}

impl PlacementPolicy for Random {
    fn rank(&mut self, rooms: &mut [SegmentRoom<'_>], _writer_host: Option<&str>) {
        shuffle(&mut self.rng, rooms);
    }
}

/// The shuffle of Fisher and Yates.
pub(super) fn shuffle(rng: &mut Rng, rooms: &mut [SegmentRoom<'_>]) {
    for last in (1..rooms.len()).rev() {
        rooms.swap(last, rng.below(last as u64 + 1) as usize);
    }
}
