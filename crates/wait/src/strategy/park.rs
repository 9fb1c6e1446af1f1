use std::time::Duration;

use super::{Plan, Then, Wait};
use crate::site::Site;

/// Parks at once: for hosts that have no CPU to spare.
#[derive(Clone, Copy, Debug)]
pub struct Park;

impl Wait for Park {
    fn plan(&self, _site: &Site) -> Plan {
        Plan {
            spin: Duration::ZERO,
            needs_cpu: false,
            then: Then::Park,
        }
    }
}
