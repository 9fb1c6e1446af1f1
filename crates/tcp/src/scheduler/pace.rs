//! How fast a lane is, by the transfers that it has carried.

use std::time::Duration;

use slackwater_base::Instant;

/// The throughput of one lane, as the time that it takes for a MiB. A transfer is taken to begin when the one before it on the
/// lane has ended: those under way share the lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// None before the first transfer that counts.
    nanos_per_mib: Option<u64>,
    measured_at: Instant,
    last_end: Instant,
}

/// Smaller transfers say more of wakes and round trips than of throughput.
const MEASURED_BYTES: u64 = 256 << 10;
/// A lane counts as slower from this on. Lanes that are alike differ by less, since one that is given less to do waits more
/// for each transfer.
const SLOWER_FROM: u64 = 2;
/// A slow lane is given something too where all have much to do.
const SLOWER_MOST: u64 = 16;
/// A slow lane is tried again after this long.
const LASTS: Duration = Duration::from_secs(1);
/// How much of the average the newest transfer is: one in so many.
const AVERAGED_OVER: u64 = 8;

impl Pace {
    /// A transfer has ended. `moved` says whether all of its bytes have been moved.
    pub(super) fn ended(&mut self, bytes: u64, moved: bool, started: Instant, now: Instant) {
        let begun = started.max(self.last_end);
        self.last_end = now;
        if !moved || bytes < MEASURED_BYTES {
            return;
        }
        let nanos = begun.until(now).as_nanos().min(u128::from(u64::MAX >> 20)) as u64;
        let sample = (nanos << 20) / bytes;
        self.nanos_per_mib = Some(match self.nanos_per_mib {
            // What was measured before a pause says little of a lane after it.
            Some(average) if !self.is_old(now) => {
                average - average / AVERAGED_OVER + sample / AVERAGED_OVER
            }
            _ => sample,
        });
        self.measured_at = now;
    }

    /// The time for a MiB; none while it is unknown.
    pub(super) fn nanos_per_mib(&self) -> Option<u64> {
        self.nanos_per_mib
    }

    /// How many times slower than a lane with this time for a MiB; 1 where that cannot be told. An idle lane whose measurement
    /// is old is as good as any, so that it is tried again.
    pub(super) fn times_slower(&self, fastest: Option<u64>, is_idle: bool, now: Instant) -> u64 {
        let (Some(own), Some(fastest)) = (self.nanos_per_mib, fastest) else {
            return 1;
        };
        match own / fastest.max(1) {
            _ if is_idle && self.is_old(now) => 1,
            times if times < SLOWER_FROM => 1,
            times => times.min(SLOWER_MOST),
        }
    }

    fn is_old(&self, now: Instant) -> bool {
        self.measured_at + LASTS <= now
    }
}
