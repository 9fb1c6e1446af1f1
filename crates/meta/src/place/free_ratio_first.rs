use std::cmp::Reverse;

use super::{Place, Seat};

/// The largest free share first.
pub(super) struct FreeRatioFirst;

impl Place for FreeRatioFirst {
    fn order(&mut self, seats: &mut [Seat<'_>], _writer_host: Option<&str>) {
        let share =
            |seat: &Seat<'_>| u128::from(seat.free) * (1 << 32) / u128::from(seat.capacity.max(1));
        seats.sort_by_key(|seat| (Reverse(share(seat)), seat.index));
    }
}
