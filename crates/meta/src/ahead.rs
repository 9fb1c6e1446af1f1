//! Reading ahead for requests that came together.

use slackwater_wire::{DiskEntry, Exists, Get, Request};

use crate::evict::{Slot, WARM_STEPS};
use crate::get::WARMED_AT_ONCE;
use crate::master::Master;

impl Master {
    /// Reads what look-ups of single keys will need that are handled next, one table at a time, so that the cache misses of
    /// requests that came together overlap instead of following one another. Nothing follows from it but time.
    pub fn read_ahead<'a>(&mut self, requests: impl Iterator<Item = &'a Request>) {
        let mut reading = self.reading.take().unwrap_or_default();
        reading.begin(requests.filter_map(|request| self.hash_of_single(request)));
        let keys = reading.keys();
        // Nothing overlaps with one alone, and calls of many keys read ahead for themselves.
        for from in (0..keys).step_by(WARMED_AT_ONCE).filter(|_| keys > 1) {
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

    fn hash_of_single(&self, request: &Request) -> Option<u64> {
        let (tenant, key) = match request {
            Request::Get(Get { tenant, keys, .. }) if keys.len() == 1 => {
                (tenant, keys[0].as_bytes())
            }
            Request::Exists(Exists { tenant, keys }) if keys.len() == 1 => {
                (tenant, keys.iter().next()?)
            }
            _ => return None,
        };
        Some(self.tenants.hash(self.tenants.find(tenant)?, key))
    }
}
