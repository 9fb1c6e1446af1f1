//! Which replica a read of this process tries first.

use std::sync::{Arc, Mutex, PoisonError};

use slackwater_base::Instant;
use slackwater_client::{Paces, Pick};
use slackwater_wire::{ClientId, ReplicaAt};

/// The fastest, as this process has seen them; see [`Paces::order`].
pub(crate) struct Fastest {
    pub(crate) paces: Arc<Mutex<Paces>>,
    pub(crate) reader: ClientId,
    pub(crate) now: Instant,
}

impl Pick for Fastest {
    fn order(&self, replicas: &mut [ReplicaAt]) {
        if replicas.len() > 1 {
            let paces = self.paces.lock().unwrap_or_else(PoisonError::into_inner);
            paces.order(self.now, self.reader.0, replicas);
        }
    }
}
