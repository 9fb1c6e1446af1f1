use slackwater_base::Rng;

use super::{Place, Seat};

/// Any order, each as likely as the other.
pub(super) struct Random {
    pub(super) rng: Rng,
}

impl Place for Random {
    fn order(&mut self, seats: &mut [Seat<'_>], _writer_host: Option<&str>) {
        shuffle(&mut self.rng, seats);
    }
}

/// The shuffle of Fisher and Yates.
pub(super) fn shuffle(rng: &mut Rng, seats: &mut [Seat<'_>]) {
    for last in (1..seats.len()).rev() {
        seats.swap(last, rng.below(last as u64 + 1) as usize);
    }
}
