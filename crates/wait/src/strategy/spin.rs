use std::time::Duration;

use super::{Plan, Then, Wait};
use crate::site::Site;

/// Spins until the deadline: for callers that own the cores they spin on. The brakes are counted, not applied.
#[derive(Clone, Copy, Debug)]
pub struct Spin;

/// A wait without a deadline spins this long and then parks: nothing spins without a bound.
const BOUND: Duration = Duration::from_secs(60);

impl Wait for Spin {
    fn plan(&self, _site: &Site) -> Plan {
        Plan {
            spin: BOUND,
            needs_cpu: false,
            then: Then::Park,
        }
    }
}
