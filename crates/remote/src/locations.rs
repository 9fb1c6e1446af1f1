//! The locations of a client, which its calls share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use slackwater_base::Instant;
use slackwater_client::{Known, Located, Locations, Stamp, usable};
use slackwater_transfer::Capability;
use slackwater_wait::now;
use slackwater_wire::{Chain, ExtentRef, Key, Lookup, Object, Reads, ReplicaAt, Tenant, Version};

/// The rights to the extents of one object.
pub(crate) type Rights = Vec<(ExtentRef, Capability)>;

/// See the module. Its lock is held for look-ups alone.
pub(crate) struct LocationCache {
    locations: Mutex<Locations<Rights>>,
    /// Called when there is something to tell the master after a silence.
    noted: Box<dyn Fn() + Send + Sync>,
}

impl LocationCache {
    pub(crate) fn new(
        locations: Locations<Rights>,
        noted: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self {
            locations: Mutex::new(locations),
            noted: Box::new(noted),
        }
    }

    /// Where all of these keys are, if that is known of each.
    pub(crate) fn find(
        &self,
        tenant: &Tenant,
        keys: &[Key],
        chain: &Chain,
    ) -> Option<Vec<Located<Rights>>> {
        let mut locations = self.lock();
        let silent = locations.next_deadline().is_none();
        let found = locations.find(now(), tenant, keys, chain)?;
        let noted = silent && locations.next_deadline().is_some();
        drop(locations);
        if noted {
            (self.noted)();
        }
        Some(found)
    }

    /// [`LocationCache::find`] for one key, whose value is no longer than `bytes_max`.
    pub(crate) fn find_short(
        &self,
        tenant: &Tenant,
        key: &Key,
        chain: &Chain,
        bytes_max: usize,
    ) -> Option<Located<Rights>> {
        let length = self.lock().length(now(), tenant, key)?;
        // Another value may take its place before it is found; it is as long as it says then.
        let short = |bytes: u64| usize::try_from(bytes).is_ok_and(|bytes| bytes <= bytes_max);
        let key = std::slice::from_ref(key);
        let found = short(length).then(|| self.find(tenant, key, chain));
        let found = found??.pop();
        found.filter(|located| short(located.known.object.bytes))
    }

    /// The stamps of keys that are about to be looked up.
    pub(crate) fn stamps(&self, keys: &[Key]) -> Vec<Stamp> {
        let locations = self.lock();
        keys.iter().map(|key| locations.stamp(key)).collect()
    }

    /// Keeps what a look-up found that was first sent at `at`, with the rights that came with its answer; of a report of reads
    /// with the versions that were read.
    pub(crate) fn keep<'a>(
        &self,
        tenant: &Tenant,
        keys: impl Iterator<Item = &'a Key>,
        (stamps, read): (&[Stamp], &[Version]),
        at: Instant,
        (lookups, extents): (&[Lookup], &[(ExtentRef, Capability)]),
    ) {
        let now = now();
        let mut extents = extents.iter();
        let mut locations = self.lock();
        for (place, ((key, stamp), lookup)) in keys.zip(stamps).zip(lookups).enumerate() {
            let Lookup::Found(object) = lookup else {
                match read.get(place) {
                    Some(version) => locations.forget_version(key, *version),
                    None => locations.forget(key),
                }
                continue;
            };
            // The rights are in the order of the extents that the answer names.
            let memory = |replica: &&ReplicaAt| matches!(replica, ReplicaAt::Memory(_));
            let named = object.replicas.iter().filter(memory).count();
            let rights: Rights = extents.by_ref().take(named).copied().collect();
            // A read from SSD is staged, which the server must be asked for each time.
            if rights.len() == named && named > 0 {
                let located = located(object, at, rights);
                locations.keep(now, tenant, key, *stamp, located);
            }
        }
    }

    /// Forgets where objects are.
    pub(crate) fn forget(&self, keys: &[Key]) {
        let mut locations = self.lock();
        keys.iter().for_each(|key| locations.forget(key));
    }

    /// Forgets where anything is.
    pub(crate) fn forget_all(&self) {
        self.lock().forget_all();
    }

    /// What is to be told now of reads that needed no look-up.
    pub(crate) fn on_deadline(&self) -> Vec<(Reads, Vec<Stamp>)> {
        self.lock().on_deadline(now())
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.lock().next_deadline()
    }

    fn lock(&self) -> MutexGuard<'_, Locations<Rights>> {
        self.locations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn located(object: &Object, at: Instant, rights: Rights) -> Located<Rights> {
    Located {
        known: Known {
            object: object.clone(),
            valid_until: at + usable(object.lease),
        },
        rights,
    }
}
