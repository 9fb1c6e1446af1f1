use slackwater_base::Rng;

use super::random::shuffle;
use super::{Place, Seat};

/// Segments of the writer's host first; among equals any order.
pub(super) struct LocalFirst {
    pub(super) rng: Rng,
}

impl Place for LocalFirst {
    fn order(&mut self, seats: &mut [Seat<'_>], writer_host: Option<&str>) {
        shuffle(&mut self.rng, seats);
        seats.sort_by_key(|seat| writer_host != Some(seat.host));
    }
}
