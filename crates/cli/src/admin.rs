//! What a served store tells operators.

use serde_json::Value;
use slackwater_admin::{Failure, Segment, Source};
use slackwater_node::serve::Server;
use slackwater_node::{RemoveOptions, Store, StoreError};
use slackwater_wire::{Description, ErrorCode, Key, List, Listed, QuotaState, Tenant};

/// A store, and where its clients reach it.
pub(crate) struct ServedStore {
    store: Store,
    epoch: u64,
    address: String,
    data: String,
}

impl ServedStore {
    /// The store of a server whose clients connect to `address`.
    pub(crate) fn of(server: &Server, address: String) -> Self {
        let data = server.data_addresses().first();
        Self {
            store: server.store().clone(),
            epoch: server.epoch().0,
            address,
            data: data.map(ToString::to_string).unwrap_or_default(),
        }
    }
}

fn failure(error: StoreError) -> Failure {
    Failure {
        code: error.code(),
        message: error.to_string(),
    }
}

fn json(value: &impl serde::Serialize) -> Result<Value, Failure> {
    serde_json::to_value(value).map_err(|error| Failure {
        code: ErrorCode::SerializeFail,
        message: error.to_string(),
    })
}

impl Source for ServedStore {
    fn ready(&self) -> Result<(), String> {
        self.store
            .check_serving()
            .map_err(|error| error.to_string())
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn metrics(&self) -> String {
        self.store.metrics_text()
    }

    fn stats(&self) -> Result<Value, Failure> {
        json(&self.store.stats())
    }

    fn books(&self) -> Result<Value, Failure> {
        match self.store.check_books().map_err(failure)? {
            Ok(books) => json(&books),
            Err(imbalance) => Err(Failure {
                code: ErrorCode::InternalError,
                message: imbalance.to_string(),
            }),
        }
    }

    fn segments(&self) -> Result<Vec<Segment>, Failure> {
        let states = self.store.segments().map_err(failure)?;
        // Values on SSD come and go through memory of the same process.
        let segment = |state| Segment {
            state,
            endpoint: self.data.clone(),
            protocol: "tcp",
        };
        Ok(states.into_iter().map(segment).collect())
    }

    fn list(&self, list: List) -> Result<Listed, Failure> {
        self.store.list(list).map_err(failure)
    }

    fn describe(&self, tenant: &Tenant, key: &Key) -> Result<Option<Description>, Failure> {
        let found = self.store.describe(key.as_bytes(), tenant);
        found.map_err(failure)
    }

    fn explain(&self, tenant: &Tenant, key: &Key) -> Result<Option<Value>, Failure> {
        let found = self.store.explain(key.as_bytes(), tenant);
        let found = found.map_err(failure)?;
        found.map(|reasons| json(&reasons)).transpose()
    }

    fn quotas(&self) -> Result<Vec<QuotaState>, Failure> {
        self.store.quotas().map_err(failure)
    }

    fn set_quota(&self, tenant: &Tenant, memory: u64, disk: u64) -> Result<(), Failure> {
        let set = self.store.set_quota(tenant, memory, disk);
        set.map_err(failure)
    }

    fn delete_quota(&self, tenant: &Tenant) -> Result<(), Failure> {
        self.store.delete_quota(tenant).map_err(failure)
    }

    fn remove_all(&self, tenant: Option<&Tenant>, force: bool) -> Result<u64, Failure> {
        let removed = match tenant {
            Some(tenant) => self.store.remove_all(&RemoveOptions {
                tenant: tenant.clone(),
                force,
            }),
            None => self.store.remove_all_of_all(force),
        };
        removed.map_err(failure)
    }
}
