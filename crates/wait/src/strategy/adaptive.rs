use std::time::Duration;

use super::{Plan, Then, Wait};
use crate::pace::wake_nanos;
use crate::site::Site;

/// The waits that park at once after a spinner lost its CPU: the CPUs are wanted by others. Few, because one loss may be a
/// hypervisor's whim, and where it is not the next one follows soon.
const BRAKED_WAITS: u32 = 16;

/// Learns how long the waits of a site last and what a park costs here, spins only while that is expected to pay, and
/// only where a CPU is free.
#[derive(Clone, Copy, Debug)]
pub struct Adaptive {
    /// The longest spin ever (`wait.max_spin`).
    pub max_spin: Duration,
    /// What a second of CPU is worth in seconds of latency (`wait.cpu_price`).
    pub cpu_price: f64,
}

impl Adaptive {
    /// The defaults: at most 100 µs, CPU and latency worth the same.
    #[must_use]
    pub const fn new() -> Self {
        Self { max_spin: Duration::from_micros(100), cpu_price: 1.0 }
    }
}

impl Default for Adaptive {
    fn default() -> Self {
        Self::new()
    }
}

impl Wait for Adaptive {
    fn plan(&self, site: &Site) -> Plan {
        let (wake, max) = (wake_nanos(), self.max_spin.as_nanos() as u64);
        site.relearn(wake, max, self.cpu_price);
        let spin = if site.braked() { 0 } else { site.budget().unwrap_or(wake).min(max) };
        Plan { spin: Duration::from_nanos(spin), needs_cpu: true, then: Then::Park }
    }

    fn preempted(&self, site: &Site) {
        site.brake(BRAKED_WAITS);
    }

    fn helps(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_waits_spin_as_long_as_a_park_costs() {
        let plan = Adaptive::new().plan(&Site::new("fresh"));
        assert!(plan.spin > Duration::ZERO && plan.spin <= Adaptive::new().max_spin, "{plan:?}");
        assert_eq!(plan.then, Then::Park);
    }

    #[test]
    fn a_lost_cpu_stops_the_spinning_for_a_while() {
        let (adaptive, site) = (Adaptive::new(), Site::new("braked"));
        adaptive.preempted(&site);
        let quiet = (0..BRAKED_WAITS).filter(|_| adaptive.plan(&site).spin == Duration::ZERO).count();
        assert_eq!(quiet as u32, BRAKED_WAITS);
        assert!(adaptive.plan(&site).spin > Duration::ZERO);
    }
}
