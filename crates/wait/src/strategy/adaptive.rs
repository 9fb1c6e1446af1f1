use std::fmt;
use std::time::Duration;

use slackwater_base::{format_duration, parse_duration};

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
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adaptive {
    /// The longest spin ever (`adaptive:max_spin=DURATION`).
    pub max_spin: Duration,
    /// What a second of CPU is worth in seconds of latency (`adaptive:cpu_price=NUMBER`).
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

    /// The defaults, changed by settings such as `max_spin=20us,cpu_price=4`.
    pub(super) fn with(settings: &str) -> Result<Self, String> {
        let mut adaptive = Self::new();
        for setting in settings.split(',') {
            let Some((name, value)) = setting.split_once('=') else {
                return Err(format!("`{setting}` is not SETTING=VALUE"));
            };
            match name.trim() {
                "max_spin" => {
                    adaptive.max_spin = parse_duration(value.trim())
                        .map_err(|error| error.to_string())
                        .and_then(|time| match time <= MAX_SPIN_MAX {
                            true => Ok(time),
                            false => Err(format!(
                                "max_spin must be at most {}",
                                format_duration(MAX_SPIN_MAX)
                            )),
                        })?;
                }
                "cpu_price" => {
                    let price = value.trim().parse().ok();
                    let price = price.filter(|price| (0.0..=CPU_PRICE_MAX).contains(price));
                    adaptive.cpu_price = price.ok_or_else(|| {
                        format!("cpu_price must be a number from 0 to {CPU_PRICE_MAX}")
                    })?;
                }
                other => return Err(format!("`{other}` is none of max_spin, cpu_price")),
            }
        }
        Ok(adaptive)
    }
}

/// What differs from the defaults.
impl fmt::Display for Adaptive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            max_spin,
            cpu_price,
        } = *self;
        let standard = Self::new();
        let spin = (max_spin != standard.max_spin)
            .then(|| format!("max_spin={}", format_duration(max_spin)));
        let price = (cpu_price != standard.cpu_price).then(|| format!("cpu_price={cpu_price}"));
        let settings: Vec<String> = spin.into_iter().chain(price).collect();
        f.write_str("adaptive")?;
        match settings.is_empty() {
            true => Ok(()),
            false => write!(f, ":{}", settings.join(",")),
        }
    }
}

/// Nobody waits longer than this without sleeping, whatever is asked for.
const MAX_SPIN_MAX: Duration = Duration::from_millis(100);
/// Beyond this no spin pays.
const CPU_PRICE_MAX: f64 = 1e6;

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
        let (sleep, max) = (
            site.sleep_nanos(wake_nanos()),
            self.max_spin.as_nanos() as u64,
        );
        site.relearn(sleep, max, self.cpu_price);
        let spin = if site.braked() {
            0
        } else {
            site.budget().unwrap_or(sleep).min(max)
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
