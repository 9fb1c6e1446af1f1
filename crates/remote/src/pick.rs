//! Which replica a read of this process tries first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use slackwater_base::Instant;
use slackwater_client::{Distance, Paces, Pick};
use slackwater_transfer::{Home, HostContact, Segment};
use slackwater_wire::{ClientId, Incarnation, ReplicaAt};

/// The nearest, and of those the fastest, as this process has seen them; see [`Paces::order`].
pub(crate) struct Nearest {
    pub(crate) paces: Arc<Mutex<Paces>>,
    pub(crate) near: Arc<BTreeMap<Incarnation, Distance>>,
    pub(crate) reader: ClientId,
    pub(crate) now: Instant,
}

impl Pick for Nearest {
    fn order(&self, replicas: &mut [ReplicaAt]) {
        if replicas.len() > 1 {
            let distance = |node| self.near.get(&node).copied().unwrap_or_default();
            let paces = self.paces.lock().unwrap_or_else(PoisonError::into_inner);
            paces.order(self.now, self.reader.0, distance, replicas);
        }
    }
}

/// How far the memory of a node is. `own` is how processes of its host reach the reader; one that nobody reaches so, as with
/// `force_tcp`, takes all nodes for equally far.
pub(crate) fn distance(own: Option<&HostContact>, node: &Segment) -> Distance {
    let is_own = |host: &HostContact| own.is_some_and(|own| own.boot_id == host.boot_id);
    if !node.host.as_ref().is_some_and(is_own) {
        Distance::Network
    } else if Home::in_process(node.incarnation).is_some() {
        Distance::Process
    } else {
        Distance::Host
    }
}

#[cfg(test)]
mod tests {
    use slackwater_transfer::EngineConfig;

    use super::*;

    #[test]
    fn nodes_are_of_the_process_of_the_host_or_far() {
        let engine = EngineConfig::new("node").start().unwrap();
        let here = engine.segment().clone();
        let contact = |boot_id: &str| HostContact {
            boot_id: boot_id.to_owned(),
            // Processes of two containers of a host may have one number.
            pid: std::process::id(),
            socket: "socket".to_owned(),
        };
        let node = |host: Option<HostContact>, incarnation| Segment {
            host,
            incarnation,
            ..here.clone()
        };
        let own = here.host.clone().expect("the mover within the host starts");
        let other = Incarnation(here.incarnation.0.wrapping_add(1));
        let check = |own: Option<&HostContact>, node: Segment, expected| {
            assert_eq!(distance(own, &node), expected, "{own:?} {node:?}");
        };
        check(Some(&own), here.clone(), Distance::Process);
        check(
            Some(&own),
            node(Some(contact(&own.boot_id)), other),
            Distance::Host,
        );
        check(
            Some(&own),
            node(Some(contact("elsewhere")), other),
            Distance::Network,
        );
        check(Some(&own), node(None, other), Distance::Network);
        check(None, here.clone(), Distance::Network);
    }
}
