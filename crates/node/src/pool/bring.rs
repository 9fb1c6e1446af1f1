//! Bringing a value of another node into an extent of this one, as its master says.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_transfer::{Cause, Engine, PeerId, Segment as Contact, Target};
use slackwater_wait::now;
use slackwater_wire::{Class, CopyBytes, ErrorCode, Incarnation};

use crate::serve::memory::ServedMemory;

/// How long one value may take.
const BRING_TIME: Duration = Duration::from_secs(45);

/// The nodes that values came from: a place has one node at a time.
#[derive(Default)]
pub(super) struct Sources(Mutex<BTreeMap<Vec<SocketAddr>, (Incarnation, PeerId)>>);

impl Sources {
    /// Brings a value, verified.
    ///
    /// # Errors
    /// When the extent is dead, the source is gone or fails, or the bytes are not those that were put.
    pub(super) fn bring(&self, memory: &ServedMemory, copy: &CopyBytes) -> Result<(), ErrorCode> {
        let engine = &memory.transfers.engine;
        let peer = self.peer(engine, &copy.contact);
        let until = now() + BRING_TIME;
        let read = |offset: u64, into: &mut [u8]| {
            let target = Target {
                peer,
                offset: copy.offset + offset,
                capability: copy.capability,
                key: None,
            };
            read(engine, &target, into, until)
        };
        memory
            .store
            .fill(&copy.target, (copy.bytes, copy.checksum), read)
    }

    fn peer(&self, engine: &Engine, contact: &Contact) -> PeerId {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let peer = engine.open(contact.clone());
        let place = contact.addresses.clone();
        let before = known.insert(place, (contact.incarnation, peer));
        if let Some((incarnation, before)) = before
            && incarnation != contact.incarnation
        {
            engine.forget(before);
        }
        peer
    }
}

fn read(
    engine: &Engine,
    target: &Target,
    into: &mut [u8],
    until: Instant,
) -> Result<(), ErrorCode> {
    let left = now().until(until);
    engine.read_now(target, into, left).map_err(|cause: Cause| {
        tracing::debug!(%cause, "a value was not brought");
        match cause.class() {
            Class::Gone => ErrorCode::ReplicaIsGone,
            _ => ErrorCode::TransferFail,
        }
    })
}
