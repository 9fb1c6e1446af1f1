//! Reading ahead for requests that came together.

use slackwater_wire::{DiskEntry, Exists, Get, Request, Tenant};

use crate::evict::{Slot, WARM_STEPS};
use crate::get::WARMED_AT_ONCE;
use crate::master::Master;

impl Master {
    /// Reads what look-ups of single keys will need that are handled next, one table at a time, so that the cache misses of
    /// requests that came together overlap instead of following one another. Nothing follows from it but time.
    pub fn read_ahead<'a>(&mut self, requests: impl Iterator<Item = &'a Request>) {
        let mut reading = self.reading.take().unwrap_or_default();
        // Calls of many keys read ahead for themselves.
        reading.begin(requests.filter_map(single_key).filter_map(|(tenant, key)| {
            let tenant = self.tenants.find(tenant)?;
            Some(self.tenants.hash(tenant, key))
        }));
        // Nothing overlaps with one alone.
        let keys = if reading.keys() > 1 {
            reading.keys()
        } else {
            0
        };
        for from in (0..keys).step_by(WARMED_AT_ONCE) {
            self.warm(&mut reading, from);
            let mut seen = 0;
            for step in 0..WARM_STEPS {
                for replica in self.catalog.likely_replicas(reading.found()) {
                    let policy = &self.segments.at(replica.segment).policy;
                    seen ^= policy.warm(Slot(replica.slot), step);
                }
            }
            std::hint::black_box(seen);
        }
        self.reading = Some(reading);
    }

    /// The same of the catalog alone, for as many objects as are read ahead for at once that a node announces next: mostly they are
    /// not there yet, or on another medium.
    pub(crate) fn read_ahead_of<'a>(&mut self, named: impl Iterator<Item = &'a DiskEntry>) {
        let mut reading = self.reading.take().unwrap_or_default();
        reading.begin(named.map(|entry| self.tenants.hash_of(&entry.tenant, &entry.key)));
        self.warm(&mut reading, 0);
        self.reading = Some(reading);
    }
}

/// The key of a look-up of one, or of the question whether one is there: what a master has answered in a microsecond, if it need
/// not wait for the cache.
#[must_use]
pub fn single_key(request: &Request) -> Option<(&Tenant, &[u8])> {
    match request {
        Request::Get(Get { tenant, keys, .. }) if keys.len() == 1 => {
            Some((tenant, keys[0].as_bytes()))
        }
        Request::Exists(Exists { tenant, keys }) if keys.len() == 1 => {
            Some((tenant, keys.iter().next()?))
        }
        _ => None,
    }
}
