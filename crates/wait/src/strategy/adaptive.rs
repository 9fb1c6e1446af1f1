use std::time::Duration;

use super::{Plan, Then, Wait};
use crate::pace::wake_nanos;
use crate::rhythm::Beat;
use crate::routine::SOON;
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
        Self {
            max_spin: Duration::from_micros(100),
            cpu_price: 1.0,
        }
    }
}

/// Where so many sleep at a site, a completer that wakes them one by one keeps the others waiting.
const CROWD: u32 = 4;
/// Waits shorter than this are over before a nap would pay.
const NAPPED_NANOS_MIN: u64 = 150_000;
/// A wait that is expected to need more looks than this is not regular enough.
const LOOKS_MAX: u64 = 8;

/// How to sleep through a wait of this beat without a wake: look first when few waits are over, then again until nearly
/// all are. `None`: better be woken.
fn nap(beat: Beat) -> Option<Then> {
    let Beat {
        mean_nanos,
        deviation_nanos,
        asleep,
    } = beat;
    let (first, last) = (
        mean_nanos.saturating_sub(2 * deviation_nanos),
        mean_nanos + 4 * deviation_nanos,
    );
    let looks = (last - first) / SOON.as_nanos() as u64;
    (asleep >= CROWD && mean_nanos >= NAPPED_NANOS_MIN && looks <= LOOKS_MAX).then(|| Then::Nap {
        first: Duration::from_nanos(first),
        last: Duration::from_nanos(last),
    })
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
        let spin = if site.braked() {
            0
        } else {
            site.budget().unwrap_or(wake).min(max)
        };
        let beside = site.rhythm.is_beside_completer();
        let then = if beside {
            Then::Park
        } else {
            nap(site.rhythm.beat()).unwrap_or(Then::Park)
        };
        Plan {
            spin: Duration::from_nanos(spin),
            needs_cpu: true,
            then,
        }
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
        assert!(
            plan.spin > Duration::ZERO && plan.spin <= Adaptive::new().max_spin,
            "{plan:?}"
        );
        assert_eq!(plan.then, Then::Park);
    }

    #[test]
    fn a_lost_cpu_stops_the_spinning_for_a_while() {
        let (adaptive, site) = (Adaptive::new(), Site::new("braked"));
        adaptive.preempted(&site);
        let quiet = (0..BRAKED_WAITS)
            .filter(|_| adaptive.plan(&site).spin == Duration::ZERO)
            .count();
        assert_eq!(quiet as u32, BRAKED_WAITS);
        assert!(adaptive.plan(&site).spin > Duration::ZERO);
    }

    #[test]
    fn a_crowd_with_a_beat_naps() {
        let check = |mean: u64, deviation: u64, asleep: u32, expected: Option<(u64, u64)>| {
            let beat = Beat {
                mean_nanos: mean * 1_000,
                deviation_nanos: deviation * 1_000,
                asleep,
            };
            let micros = Duration::from_micros;
            let nap = expected.map(|(first, last)| Then::Nap {
                first: micros(first),
                last: micros(last),
            });
            assert_eq!(super::nap(beat), nap, "{beat:?}");
        };
        check(550, 40, 16, Some((470, 710)));
        check(550, 40, 1, None);
        check(550, 200, 16, None);
        check(100, 10, 16, None);
        check(200, 80, 16, Some((40, 520)));
    }
}
