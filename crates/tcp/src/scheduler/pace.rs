//! How fast a lane is, by the transfers that it has carried.

use std::time::Duration;

use slackwater_base::Instant;

/// The throughput of one lane, as the time that it takes for a MiB. A transfer is taken to begin when the one before it on the
/// lane has ended: those under way share the lane. Those whose ends are told at once are one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// None before the first transfer that counts.
    nanos_per_mib: Option<u64>,
    measured_at: Instant,
    last_end: Instant,
    at_once: AtOnce,
}

/// Transfers whose ends were told at one time.
#[derive(Clone, Copy, Debug, Default)]
struct AtOnce {
    /// The end of the one before them.
    after: Instant,
    begun: Instant,
    /// Of those that count.
    bytes: u64,
    /// The average before them; none where it was unknown or old.
    average: Option<u64>,
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
        if now > self.last_end {
            self.at_once = AtOnce {
                after: self.last_end,
                begun: now,
                bytes: 0,
                // What was measured before a pause says little of a lane after it.
                average: self.nanos_per_mib.filter(|_| !self.is_old(now)),
            };
            self.last_end = now;
        }
        let at_once = &mut self.at_once;
        at_once.begun = at_once.begun.min(started.max(at_once.after));
        if !moved || bytes < MEASURED_BYTES {
            return;
        }
        at_once.bytes += bytes;
        let took = at_once.begun.until(now).as_nanos();
        let nanos = took.min(u128::from(u64::MAX >> 20)) as u64;
        let sample = (nanos << 20) / at_once.bytes;
        self.nanos_per_mib = Some(at_once.average.map_or(sample, |average| {
            average - average / AVERAGED_OVER + sample / AVERAGED_OVER
        }));
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
