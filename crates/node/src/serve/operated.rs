use std::sync::Arc;

use slackwater_base::Instant;
use slackwater_meta::Master;
use slackwater_wire::kv_events::KvEventCounts;
use slackwater_wire::{Epoch, ErrorCode, Key, MetricsFormat, NodeId, Reply, Request, Tenant};

use super::{Server, epoch};
use crate::kv_events::{EventQueue, KvEvents};
use crate::operated::Operated;
use crate::prometheus::Text;
use crate::store::Reason;
use crate::{Stats, Store, StoreError};

/// A store with its master in this process, as its operators see it.
pub struct ServedStore {
    store: Store,
    epoch: Epoch,
    data: String,
    events: Option<Arc<EventQueue>>,
}

impl Server {
    /// The store as its operators see it.
    #[must_use]
    pub fn operated(&self) -> ServedStore {
        let data = self.data_addresses().first();
        ServedStore {
            store: self.store.clone(),
            epoch: self.epoch(),
            data: data.map(ToString::to_string).unwrap_or_default(),
            events: self.events.as_ref().map(KvEvents::queue),
        }
    }
}

impl ServedStore {
    /// A store that no other process uses.
    #[must_use]
    pub fn alone(store: &Store) -> Self {
        Self {
            store: store.clone(),
            epoch: epoch::now(),
            data: String::new(),
            events: None,
        }
    }
}

impl Operated for ServedStore {
    type Stats = Stats;

    fn ask(&self, what: &'static str, request: Request) -> Result<Reply, StoreError> {
        self.store.ask(what, request)
    }

    fn with_master<T>(
        &self,
        step: impl FnOnce(&mut Master, Instant) -> T,
    ) -> Result<T, StoreError> {
        let done = self.store.with_master(step)?;
        done.ok_or(StoreError::RefusedCall(ErrorCode::UnavailableInCurrentMode))
    }

    fn check_serving(&self) -> Result<(), String> {
        self.look(|_, _| ()).map_err(|error| error.to_string())
    }

    fn explain(&self, tenant: &Tenant, key: &Key) -> Result<Option<Vec<Reason>>, StoreError> {
        self.store.explain(key.as_bytes(), tenant)
    }

    fn stats(&self) -> Stats {
        self.store.stats()
    }

    fn metrics_text(&self, format: MetricsFormat) -> String {
        let mut text = Text::new(format);
        self.store.write_metrics(&mut text);
        text.kv_events(&self.kv_events());
        text.finish()
    }

    fn kv_events(&self) -> KvEventCounts {
        let events = self.events.as_ref();
        events.map_or_else(KvEventCounts::default, |events| events.counts())
    }

    fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Values on SSD come and go through memory of the same process.
    fn data_address(&self, _: NodeId) -> String {
        self.data.clone()
    }
}
