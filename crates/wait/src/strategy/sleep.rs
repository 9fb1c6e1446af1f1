use std::time::Duration;

use super::{Plan, Then, Wait};
use crate::site::Site;

/// Looks, sleeps, looks: what was tried elsewhere, kept to compare with. Linux adds its timer slack, 50 µs by default.
#[derive(Clone, Copy, Debug)]
pub struct Sleep(pub Duration);

impl Wait for Sleep {
    fn plan(&self, _site: &Site) -> Plan {
        Plan {
            spin: Duration::ZERO,
            needs_cpu: false,
            then: Then::Sleep(self.0),
        }
    }
}
