use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::cpus::current_cpu;

/// How regular the waits of a site are, how many of them sleep, and where they are ended.
///
/// Average and distance follow Jacobson ("Congestion Avoidance and Control", SIGCOMM 1988). Updates by several threads may
/// overwrite each other: then a sample is lost.
#[derive(Debug)]
pub(crate) struct Rhythm {
    mean_nanos: AtomicU64,
    /// The average distance from the mean.
    deviation_nanos: AtomicU64,
    asleep: AtomicU32,
    /// The CPU of the last completer that found a sleeper.
    completer_cpu: AtomicU32,
}

/// What was learned, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Beat {
    pub(crate) mean_nanos: u64,
    pub(crate) deviation_nanos: u64,
    pub(crate) asleep: u32,
}

/// A sample moves the averages by this part.
const GAIN: u64 = 16;

impl Rhythm {
    pub(crate) const fn new() -> Self {
        Self {
            mean_nanos: AtomicU64::new(0),
            deviation_nanos: AtomicU64::new(0),
            asleep: AtomicU32::new(0),
            completer_cpu: AtomicU32::new(u32::MAX),
        }
    }

    /// Takes in how long a wait lasted.
    pub(crate) fn learn(&self, nanos: u64) {
        let mean = self.mean_nanos.load(Relaxed);
        if mean == 0 {
            self.mean_nanos.store(nanos, Relaxed);
            self.deviation_nanos.store(nanos / 2, Relaxed);
            return;
        }
        let deviation = self.deviation_nanos.load(Relaxed);
        self.mean_nanos
            .store(mean - mean / GAIN + nanos / GAIN, Relaxed);
        self.deviation_nanos.store(
            deviation - deviation / GAIN + nanos.abs_diff(mean) / GAIN,
            Relaxed,
        );
    }

    pub(crate) fn beat(&self) -> Beat {
        Beat {
            mean_nanos: self.mean_nanos.load(Relaxed),
            deviation_nanos: self.deviation_nanos.load(Relaxed),
            asleep: self.asleep.load(Relaxed),
        }
    }

    pub(crate) fn before_park(&self) {
        self.asleep.fetch_add(1, Relaxed);
    }

    pub(crate) fn after_park(&self) {
        self.asleep.fetch_sub(1, Relaxed);
    }

    pub(crate) fn completed_on(&self, cpu: u32) {
        if self.completer_cpu.load(Relaxed) != cpu {
            self.completer_cpu.store(cpu, Relaxed);
        }
    }

    /// Whether the calling thread runs where the waits of this kind are ended.
    pub(crate) fn is_beside_completer(&self) -> bool {
        self.completer_cpu.load(Relaxed) as usize == current_cpu()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beat_follows_the_waits() {
        let rhythm = Rhythm::new();
        let check =
            |nanos: [u64; 2], mean: std::ops::Range<u64>, deviation: std::ops::Range<u64>| {
                (0..200).for_each(|wait| rhythm.learn(nanos[wait % 2]));
                let beat = rhythm.beat();
                assert!(
                    mean.contains(&beat.mean_nanos) && deviation.contains(&beat.deviation_nanos),
                    "{nanos:?}: {beat:?}"
                );
            };
        check([500_000, 500_000], 499_000..501_000, 0..1_000);
        check([450_000, 550_000], 490_000..510_000, 45_000..55_000);
        check([2_000, 2_000], 1_900..2_100, 0..100);
    }
}
