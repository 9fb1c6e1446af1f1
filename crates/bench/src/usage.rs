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

/// The value that `share` of the values do not exceed. Zero of nothing.
#[must_use]
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    let rank = (values.len() as f64 * share).ceil() as usize;
    let at = rank.saturating_sub(1).min(values.len().saturating_sub(1));
    if values.is_empty() {
        return 0.0;
    }
    *values.select_nth_unstable_by(at, f64::total_cmp).1
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
}
