//! What a stretch of time cost in CPU.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use slackwater_base::Instant;

/// Wall and CPU time of this process at one point.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    wall: Instant,
    cpu: Duration,
}

/// What passed between two marks.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// Wall time.
    pub wall: Duration,
    /// User and system time of all threads.
    pub cpu: Duration,
}

impl Mark {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        Self {
            wall: slackwater_wait::now(),
            cpu: clock(ClockId::ProcessCPUTime),
        }
    }

    /// The time and CPU spent since.
    #[must_use]
    pub fn spent(self) -> Spent {
        let now = Self::now();
        Spent {
            wall: now.wall.since(self.wall),
            cpu: now.cpu.saturating_sub(self.cpu),
        }
    }
}

impl Spent {
    /// CPUs busy on average.
    #[must_use]
    pub fn cores(&self) -> f64 {
        self.cpu.as_secs_f64() / self.wall.as_secs_f64().max(1e-9)
    }
}

/// CPU time of the calling thread.
#[must_use]
pub fn thread_cpu() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

/// CPU time of this process so far, in microseconds.
///
/// While a timer of CPU time is set, the kernel's clock of the process stands still between two ticks; this account goes on.
#[must_use]
pub fn process_cpu() -> Duration {
    // SAFETY: all zeros is a value of this plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes one rusage. It cannot fail for the process itself.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs())
            + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// The middle value; of two, the lower. Zero of nothing.
#[must_use]
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values
        .get(values.len().saturating_sub(1) / 2)
        .copied()
        .unwrap_or_default()
}

/// Between which two of the values the median of what they are drawn from lies, wrong in one of twenty cases at most:
/// the interval of the sign test (Conover, Practical Nonparametric Statistics, 3.2). All of them where they are fewer
/// than six, which can't tell.
#[must_use]
pub fn median_interval(values: &mut [f64]) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    // How likely it is that no more than so many of `count` throws of a coin show heads.
    let mut exactly = 0.5f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let (mut at_most, mut beyond) = (exactly, 0);
    while at_most <= 0.025 && beyond < count / 2 {
        exactly *= (count - beyond) as f64 / (beyond + 1) as f64;
        beyond += 1;
        at_most += exactly;
    }
    let outer = beyond.saturating_sub(1);
    let at = |index: usize| values.get(index).copied().unwrap_or_default();
    [at(outer), at(count.saturating_sub(1 + outer))]
}

/// The value that `share` of the values do not exceed. Zero of nothing.
#[must_use]
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * share).ceil() as usize;
    values
        .get(rank.saturating_sub(1).min(values.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_there() {
        let mut values = [5.0, 1.0, 3.0, 4.0, 2.0];
        assert_eq!(median(&mut values), 3.0);
        assert_eq!(quantile(&mut values, 0.99), 5.0);
        assert_eq!(quantile(&mut values, 0.5), 3.0);
        assert_eq!(median(&mut []), 0.0);
    }

    #[test]
    fn a_median_lies_between_the_ranks_of_the_sign_test() {
        // Ranks from one, as tables of the sign test have them.
        let ranks = [
            (1, [1, 1]),
            (5, [1, 5]),
            (6, [1, 6]),
            (9, [2, 8]),
            (20, [6, 15]),
            (36, [12, 25]),
        ];
        for (count, [low, high]) in ranks {
            let mut values: Vec<f64> = (1..=count).rev().map(f64::from).collect();
            let between = [low, high].map(f64::from);
            assert_eq!(median_interval(&mut values), between, "{count} values");
        }
        assert_eq!(median_interval(&mut []), [0.0, 0.0]);
    }
}
