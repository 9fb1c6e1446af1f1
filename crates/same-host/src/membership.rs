//! Who is let in, by keys and room, and who has to go when the list of keys changes.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use slackwater_zmtp::PublicKey;
use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::{U32, U64};

use super::attached_peer::AttachedPeer;
use super::doorway::{Entrant, say_goodbye};
use super::granted::GrantedWindows;
use super::link_seal;
use super::message::{
    GOODBYE_CLOSING, GOODBYE_FULL, GOODBYE_KEY, GOODBYE_MAPS, MAGIC, VERSION, Welcome,
};
use super::page::ControlPage;
use super::service::ServiceState;

impl ServiceState {
    /// Lets a process in, unless there is no room or its key may not map memory.
    pub(super) fn let_in(&self, token: u64, mut entrant: Entrant) {
        // Under the lock under which a change of the list looks at the keys: either the new list is read here, or the new
        // peer is found there.
        let mut peers = self.peers();
        let welcomed = match self.objection(entrant.key.as_ref()) {
            Some(reason) => Err(reason),
            None if self.closing.load(Ordering::Relaxed) => Err(GOODBYE_CLOSING),
            None if peers.len() >= self.limits.peers => Err(GOODBYE_FULL),
            None => self.welcome(&mut entrant),
        };
        match welcomed {
            Ok(granted) => {
                let peer = AttachedPeer {
                    packets: entrant.packets,
                    holder: entrant.holder,
                    key: entrant.key,
                    seal: entrant.seal,
                    granted,
                    expelled: false,
                };
                peers.insert(token, peer);
            }
            Err(reason) => say_goodbye(&entrant.packets, entrant.seal.as_mut(), reason),
        }
    }

    /// Why the holder of a key is not let in, if it is not.
    fn objection(&self, key: Option<&PublicKey>) -> Option<u32> {
        let (key, list) = (key?, &self.seal.as_ref()?.clients);
        let reason = match (list.admits(key), list.maps(key)) {
            (true, true) => return None,
            (true, false) => GOODBYE_MAPS,
            (false, _) => GOODBYE_KEY,
        };
        self.refused.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(%key, reason, "the holder of a key does not map memory");
        Some(reason)
    }

    /// The list of keys has changed: ends the links of those that it does not let in any more.
    pub(super) fn look_up_keys(self: &Arc<Self>) {
        let mut busy = Vec::new();
        for (token, peer) in self.peers().iter_mut() {
            if let Some(reason) = self.objection(peer.key.as_ref().filter(|_| !peer.expelled)) {
                say_goodbye(&peer.packets, peer.seal.as_mut(), reason);
                busy.extend(self.expel(*token, peer));
            }
        }
        self.wait_for(busy);
    }

    /// Gives a process its control page, the first descriptor that it gets.
    fn welcome(&self, entrant: &mut Entrant) -> Result<GrantedWindows, u32> {
        let page =
            Arc::new(ControlPage::create(self.limits.windows_per_peer).map_err(|_| GOODBYE_FULL)?);
        let welcome = Welcome {
            magic: U64::new(MAGIC),
            version: U32::new(VERSION),
            slots: U32::new(page.slots()),
            incarnation: U64::new(self.home.incarnation().0),
            started: U64::new(self.started),
            probe_address: U64::new(self.probe.as_ptr().expose_provenance() as u64),
            probe: *self.probe,
        };
        let (seal, parts) = (entrant.seal.as_mut(), [welcome.as_bytes()]);
        link_seal::send(&entrant.packets, seal, &parts, &[page.as_fd()])
            .map_err(|_| GOODBYE_FULL)?;
        Ok(GrantedWindows::new(page))
    }
}
