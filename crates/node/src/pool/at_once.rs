//! Which puts a node checks where it hears the question, on the loop that its master's orders come on.

use slackwater_base::Instant;
use slackwater_memory::FilePiece;
use slackwater_wire::Written;

/// A worker's wake takes as long as the reading of a small put, where processors sleep while they wait. But the loop must stay
/// free for orders, and a crowd of puts has all workers read.
#[derive(Default)]
pub(super) struct AtOnce {
    /// The loop rests from checks until then.
    rests_until: Instant,
}

/// The most bytes: some 60 to 100 microseconds of reading.
const BYTES_MAX: u64 = 1 << 20;
/// The most values: the right to write ends for each of them.
const VALUES_MAX: usize = 8;

impl AtOnce {
    /// For the memory of a node, which may be a piece of a file. Where that may have to be read from a device first, the loop
    /// checks nothing.
    pub(super) fn of(piece: Option<&FilePiece>) -> Self {
        let may_block = piece.is_some_and(|piece| !piece.is_in_memory());
        let rests_until = match may_block {
            true => Instant::NEVER,
            false => Instant::ZERO,
        };
        Self { rests_until }
    }

    /// Whether the loop checks these itself.
    pub(super) fn admits(&self, now: Instant, written: &[Written]) -> bool {
        let bytes = written.iter().map(|written| written.bytes);
        now >= self.rests_until
            && written.len() <= VALUES_MAX
            && bytes.fold(0, u64::saturating_add) <= BYTES_MAX
    }

    /// A check began and ended then. The next one is the workers' for as long again, so that the loop has half of its time.
    pub(super) fn took(&mut self, begun: Instant, ended: Instant) {
        self.rests_until = ended + begun.until(ended);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slackwater_base::Checksum;
    use slackwater_wire::{ExtentRef, Incarnation, SegmentId};

    use super::*;

    fn written(bytes: u64) -> Written {
        Written {
            extent: ExtentRef {
                segment: SegmentId(1),
                incarnation: Incarnation(1),
                offset: 0,
                bytes,
                generation: 0,
            },
            bytes,
            checksum: Checksum::of(&[]),
        }
    }

    /// A put of a thousand small values is short, and ends a thousand rights to write.
    #[test]
    fn the_loop_checks_little_at_a_time() {
        let check = |values: usize, bytes: u64, expected: bool| {
            let admitted = AtOnce::default().admits(Instant::ZERO, &vec![written(bytes); values]);
            assert_eq!(admitted, expected, "{values} of {bytes} bytes");
        };
        check(0, 0, true);
        check(1, 1 << 20, true);
        check(1, (1 << 20) + 1, false);
        check(2, 1 << 20, false);
        check(8, 1 << 17, true);
        check(9, 1, false);
        check(2, u64::MAX, false);
    }

    /// Sixteen questions that came together were answered when the last of them was checked.
    #[test]
    fn the_loop_has_half_of_its_time_for_other_things() {
        let at = |micros| Instant::ZERO + Duration::from_micros(micros);
        let mut at_once = AtOnce::default();
        let one = [written(1 << 20)];
        at_once.took(at(100), at(180));
        let admitted = [180, 259, 260].map(|now| at_once.admits(at(now), &one));
        assert_eq!(admitted, [false, false, true]);
    }
}
