use std::collections::BTreeMap;

use slackwater_base::{Instant, Planted, planted};

use crate::config::LogConfig;
use crate::io::{DiskError, FileId};

/// Reads that the device answered with errors, by the place of their first byte.
///
/// An error says nothing of the bytes: a loose cable or a resetting controller answers every read so, and all is well a
/// second later. So a place counts as unreadable only after [`LogConfig::read_tries_max`] reads of it have failed, each
/// after a pause that doubles, and only if the device has done other operations well between one of them and the next.
/// While the whole device fails nothing is concluded, however long that lasts.
#[derive(Debug, Default)]
pub(super) struct FailedReads {
    places: BTreeMap<(FileId, u64), Failed>,
    /// Operations of any kind that the device has done well.
    done_well: u64,
    /// When places may be forgotten again.
    forget_at: Instant,
}

#[derive(Debug)]
struct Failed {
    tries: u32,
    /// How often it was waited for.
    pauses: u32,
    /// Failures before this moment do not count: they belong to the same disturbance.
    again_at: Instant,
    /// [`FailedReads::done_well`] at the last try.
    done_well: u64,
}

/// What a failed read means for the place that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing yet: it should be read again, not before this moment.
    ReadAgain(Instant),
    /// The device works and cannot read it.
    Unreadable,
}

impl FailedReads {
    /// The device did an operation well.
    pub(super) fn note_success(&mut self) {
        self.done_well += 1;
    }

    /// A read of this place succeeded.
    pub(super) fn forget(&mut self, file: FileId, offset: u64) {
        self.places.remove(&(file, offset));
    }

    /// The file is deleted.
    pub(super) fn forget_file(&mut self, file: FileId) {
        self.places.retain(|(of, _), _| *of != file);
    }

    /// A read of this place failed.
    pub(super) fn note(
        &mut self,
        now: Instant,
        (file, offset): (FileId, u64),
        error: DiskError,
        config: &LogConfig,
    ) -> Verdict {
        let retries = config.retries();
        let again_at = now + retries.ceiling(0);
        if error.is_passing() {
            return Verdict::ReadAgain(again_at);
        }
        if planted(Planted::ErrorTakenForRot) {
            return Verdict::Unreadable;
        }
        let done_well = self.done_well;
        let Some(failed) = self.places.get_mut(&(file, offset)) else {
            if self.places.len() >= PLACES_MAX && now >= self.forget_at {
                let is_tried = |failed: &Failed| failed.again_at + config.retry_delay_max > now;
                self.places.retain(|_, failed| is_tried(failed));
                self.forget_at = again_at;
            }
            if self.places.len() < PLACES_MAX {
                let first = Failed {
                    tries: 1,
                    pauses: 1,
                    again_at,
                    done_well,
                };
                self.places.insert((file, offset), first);
            }
            return Verdict::ReadAgain(again_at);
        };
        if now < failed.again_at {
            return Verdict::ReadAgain(failed.again_at);
        }
        if done_well > failed.done_well {
            failed.tries += 1;
        }
        if failed.tries >= config.read_tries_max {
            self.places.remove(&(file, offset));
            return Verdict::Unreadable;
        }
        failed.done_well = done_well;
        failed.again_at = now + retries.ceiling(failed.pauses);
        failed.pauses = failed.pauses.saturating_add(1);
        Verdict::ReadAgain(failed.again_at)
    }
}

/// Places remembered at a time; a failed read of another counts for nothing. Those that nobody reads again are forgotten.
const PLACES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slackwater_base::ByteSize;
    use slackwater_wire::SegmentId;

    use super::*;

    const EIO: DiskError = DiskError::Device { errno: 5 };

    /// During an outage more places were read than are remembered, and never again. After it no other place could be given
    /// up: one bad sector kept the file that was being emptied, and with it all room.
    #[test]
    fn a_place_can_be_given_up_whatever_was_read_in_an_outage() {
        let config = LogConfig::new(SegmentId(1), ByteSize::gib(1));
        let mut failed = FailedReads::default();
        let mut now = Instant::from_nanos(1);
        for place in 0..2 * PLACES_MAX as u64 {
            failed.note(now, (FileId(place % 7), place), EIO, &config);
        }
        assert!(failed.places.len() <= PLACES_MAX);
        let place = (FileId(3), 1 << 40);
        let end = now + Duration::from_secs(60);
        while let Verdict::ReadAgain(at) = failed.note(now, place, EIO, &config) {
            assert!(at < end, "the place is still read again");
            now = at;
            failed.note_success();
            for other in 0..PLACES_MAX as u64 / 20 {
                failed.note(now, (FileId(9), at.as_nanos() + other), EIO, &config);
            }
            assert!(failed.places.len() <= PLACES_MAX);
        }
    }
}
