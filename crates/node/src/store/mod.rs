//! The embedded store.

mod error;
mod options;
mod stats;

use std::sync::Arc;
use std::time::Duration;

use slackwater_wire::{Description, List, Listed, QuotaState, Tenant};

pub use error::{DirectoryError, OpenError, StoreError};
pub use options::{GetOptions, Got, PutOptions, RemoveOptions, Stored, Tier};
pub use stats::{Choice, Flow, Latencies, Latency, PromotionStats, PutStats, ReadStats, SsdStats, Stats, TierStats};

use crate::config::Config;

/// A tiered store inside this process. Clones share it; the last one that goes closes it.
#[derive(Clone)]
pub struct Store {
    #[expect(dead_code, reason = "filled by the commit that opens the store")]
    shared: Arc<Config>,
}

macro_rules! not_open {
    () => {
        Err(StoreError::Closed)
    };
}

#[expect(unused_variables, clippy::missing_errors_doc, reason = "signatures first")]
impl Store {
    /// Opens a store.
    pub fn open(config: Config) -> Result<Store, OpenError> {
        Ok(Self { shared: Arc::new(config) })
    }

    /// Puts one value.
    pub fn put(&self, key: &[u8], value: &[u8], options: &PutOptions) -> Result<Stored, StoreError> {
        not_open!()
    }

    /// Puts values, a result each.
    pub fn put_batch(&self, entries: &[(&[u8], &[u8])], options: &PutOptions) -> Vec<Result<Stored, StoreError>> {
        entries.iter().map(|_| not_open!()).collect()
    }

    /// Reads one value into fresh memory.
    pub fn get(&self, key: &[u8], options: &GetOptions) -> Result<Option<Vec<u8>>, StoreError> {
        not_open!()
    }

    /// Reads one value into the caller's buffer.
    pub fn get_into(&self, key: &[u8], buffer: &mut [u8], options: &GetOptions) -> Result<Option<Got>, StoreError> {
        not_open!()
    }

    /// Reads values into the caller's buffers, a result each.
    pub fn get_batch_into(
        &self,
        keys: &[&[u8]],
        buffers: &mut [&mut [u8]],
        options: &GetOptions,
    ) -> Vec<Result<Option<Got>, StoreError>> {
        keys.iter().map(|_| not_open!()).collect()
    }

    /// Whether objects are there, a truth each.
    pub fn exists(&self, keys: &[&[u8]], tenant: &Tenant) -> Result<Vec<bool>, StoreError> {
        not_open!()
    }

    /// Removes objects, a result each.
    pub fn remove(&self, keys: &[&[u8]], options: &RemoveOptions) -> Vec<Result<(), StoreError>> {
        keys.iter().map(|_| not_open!()).collect()
    }

    /// Removes every object in whose key the regular expression is found; says how many.
    pub fn remove_matching(&self, pattern: &str, options: &RemoveOptions) -> Result<u64, StoreError> {
        not_open!()
    }

    /// Removes every object of the tenant; says how many.
    pub fn remove_all(&self, options: &RemoveOptions) -> Result<u64, StoreError> {
        not_open!()
    }

    /// Keys in byte order, a page at a time.
    pub fn list(&self, list: List) -> Result<Listed, StoreError> {
        not_open!()
    }

    /// Everything known about one object; neither a read nor a lease.
    pub fn describe(&self, key: &[u8], tenant: &Tenant) -> Result<Option<Description>, StoreError> {
        not_open!()
    }

    /// Sets or changes the byte quota of a tenant.
    pub fn set_quota(&self, tenant: &Tenant, memory_bytes: u64, disk_bytes: u64) -> Result<(), StoreError> {
        not_open!()
    }

    /// Forgets the quota of a tenant that has no objects.
    pub fn delete_quota(&self, tenant: &Tenant) -> Result<(), StoreError> {
        not_open!()
    }

    /// Quotas and use of every tenant that has either.
    pub fn quotas(&self) -> Result<Vec<QuotaState>, StoreError> {
        not_open!()
    }

    /// What the store counts.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Metrics in the text form of Prometheus.
    #[must_use]
    pub fn metrics_text(&self) -> String {
        String::new()
    }

    /// Returns when everything queued for SSD is durable.
    pub fn flush(&self, deadline: Duration) -> Result<(), StoreError> {
        not_open!()
    }

    /// Flushes and closes; later calls on clones answer [`StoreError::Closed`].
    pub fn close(self) -> Result<(), StoreError> {
        Ok(())
    }
}
