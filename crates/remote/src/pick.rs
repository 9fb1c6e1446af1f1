//! Which replica a read of this process tries first.

use std::sync::{Arc, Mutex, PoisonError};

use slackwater_base::Instant;
use slackwater_client::{Paces, Pick};
use slackwater_wire::{ClientId, ReplicaAt};

/// The fastest, as this process has seen them; see [`Paces::rank`].
pub(crate) struct Fastest {
    pub(crate) paces: Arc<Mutex<Paces>>,
    pub(crate) reader: ClientId,
    pub(crate) now: Instant,
}

impl Pick for Fastest {
    fn rank(&self, replica: &ReplicaAt) -> u32 {
        let paces = self.paces.lock().unwrap_or_else(PoisonError::into_inner);
        paces.rank(self.now, self.reader.0, replica)
    }
}
