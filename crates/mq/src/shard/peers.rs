use slab::Slab;
use slackwater_base::Map;
use slackwater_net::ConnId;

use super::peer::Peer;

/// The links of one loop. The loop finds them by their place, which is attached to the connection; other
/// threads name a link by its serial number.
#[derive(Default)]
pub(super) struct Peers {
    places: Slab<Peer>,
    by_serial: Map<u64, u32>,
}

/// Where a peer is. Once it has been removed this finds nothing, also when another has taken the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    place: u32,
    serial: u64,
}

impl At {
    /// What to attach to the peer's connection.
    pub(super) const fn place(self) -> u32 {
        self.place
    }

    /// The peer's number.
    pub(super) const fn serial(self) -> u64 {
        self.serial
    }
}

impl Peers {
    pub(super) fn insert(&mut self, peer: Peer) -> At {
        let serial = peer.serial;
        let place = self.places.insert(peer) as u32;
        self.by_serial.insert(serial, place);
        At { place, serial }
    }

    /// Where the peer of this number is; of an unknown one, a place where nothing is found.
    pub(super) fn find(&self, serial: u64) -> At {
        let place = self.by_serial.get(&serial).copied().unwrap_or(u32::MAX);
        At { place, serial }
    }

    /// Where the peer is whose connection this is, by what is attached to it.
    pub(super) fn of(&self, conn: ConnId, attached: u32) -> Option<At> {
        let peer = self
            .places
            .get(attached as usize)
            .filter(|peer| peer.conn == Some(conn))?;
        Some(At {
            place: attached,
            serial: peer.serial,
        })
    }

    pub(super) fn get(&self, at: At) -> Option<&Peer> {
        self.places
            .get(at.place as usize)
            .filter(|peer| peer.serial == at.serial)
    }

    pub(super) fn get_mut(&mut self, at: At) -> Option<&mut Peer> {
        self.places
            .get_mut(at.place as usize)
            .filter(|peer| peer.serial == at.serial)
    }

    pub(super) fn remove(&mut self, at: At) -> Option<Peer> {
        self.get(at)?;
        self.by_serial.remove(&at.serial);
        Some(self.places.remove(at.place as usize))
    }

    /// Where all of them are.
    pub(super) fn all(&self) -> Vec<At> {
        self.places
            .iter()
            .map(|(place, peer)| At {
                place: place as u32,
                serial: peer.serial,
            })
            .collect()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Peer> {
        self.places.iter().map(|(_, peer)| peer)
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }
}
