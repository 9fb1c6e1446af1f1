//! Checksums that are taken in passing.

use slackwater_base::Checksum;
use slackwater_engine::Buffers;
use slackwater_pool::copy::checksum;

use crate::wire::LOW_WATER_BYTES;

/// What is summed at a time: as much as arrives between two wakes of the caller, which is in a near cache still.
const PIECE_BYTES: u64 = LOW_WATER_BYTES as u64;

/// The checksum of the first bytes of a request, which is taken while more of them come, or the peer takes them in.
#[derive(Debug, Default)]
pub(super) struct Summed {
    bytes: u64,
    checksum: Option<Checksum>,
}

impl Summed {
    /// Sums the whole pieces of the first `moved` bytes. The memory is a slice that the caller of the request lends for its time
    /// (`SingleRequest::checksum`), into which only the calling thread receives.
    pub(super) fn pieces(&mut self, buffers: &Buffers, moved: u64) {
        self.reach(buffers, moved / PIECE_BYTES * PIECE_BYTES);
    }

    /// The checksum of all bytes, if some were summed in passing. The memory is as for [`Summed::pieces`].
    pub(super) fn whole(&mut self, buffers: &Buffers) -> Option<Checksum> {
        self.checksum?;
        self.reach(buffers, buffers.bytes());
        self.checksum
    }

    /// Those of several ranges are left to the caller.
    fn reach(&mut self, buffers: &Buffers, end: u64) {
        let ([span], true) = (buffers.spans(), end > self.bytes) else {
            return;
        };
        let more = end - self.bytes;
        // SAFETY: `end` is within the only range, which `buffers` keeps valid; nobody writes to it during the call, as the callers
        // of this say.
        let next = unsafe {
            let first = span.start().add(self.bytes as usize);
            checksum(std::slice::from_raw_parts(first, more as usize))
        };
        let both = self.checksum.map(|sum| sum.followed_by(next, more));
        *self = Self {
            bytes: end,
            checksum: Some(both.unwrap_or(next)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pieces_are_summed_in_passing_and_the_rest_at_the_end() {
        let mut bytes: Vec<u8> = (0..600_000u32).map(|at| (at * 7 / 8) as u8).collect();
        // SAFETY: the slice outlives the buffers, and is not touched through another name but by reading.
        let buffers = unsafe { Buffers::borrowed(bytes.as_mut_ptr(), bytes.len()) };
        let check = |moved: &[u64], pieces, expected| {
            let mut summed = Summed::default();
            for moved in moved {
                summed.pieces(&buffers, *moved);
            }
            assert_eq!(summed.bytes, pieces * PIECE_BYTES, "{moved:?}");
            assert_eq!(summed.whole(&buffers), expected, "{moved:?}");
        };
        let whole = Some(Checksum::of(&bytes));
        check(&[], 0, None);
        check(&[PIECE_BYTES - 1], 0, None);
        check(&[PIECE_BYTES], 1, whole);
        check(&[PIECE_BYTES + 1, 2 * PIECE_BYTES - 1], 1, whole);
        check(&[PIECE_BYTES, 3 * PIECE_BYTES + 9, 600_000], 4, whole);
    }
}
