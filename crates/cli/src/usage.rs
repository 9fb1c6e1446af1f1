//! What this process has used so far.

use rustix::time::{ClockId, clock_gettime};

/// Processor time of all threads, in seconds.
pub(crate) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The most memory that was resident at a time, in bytes; zero where the system does not say.
pub(crate) fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    peak(&status)
}

fn peak(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .unwrap_or(0)
        << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_in_bytes() {
        assert_eq!(
            peak("Name:\tx\nVmHWM:\t   2048 kB\nVmRSS:\t 1 kB\n"),
            2 << 20
        );
        assert_eq!(peak(""), 0);
    }

    #[test]
    fn this_process_uses_something() {
        assert!(peak_rss_bytes() > 100_000);
        let before = cpu_seconds();
        let mut sum = 0u64;
        while cpu_seconds() - before < 0.001 {
            sum = sum.wrapping_add(1);
        }
        assert!(sum > 0);
    }
}
