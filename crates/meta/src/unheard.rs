//! Drops under way of versions that nothing has ended: their last known copies went with a segment. What their node has of them is
//! as good as before, so it is owed none of them when it goes too.
//!
//! Among them are records that were being written from the memory that went. They are ordered away only when something ends
//! their versions, or when nothing is heard of them in time; a record that is written by then counts as one that is announced.

use std::collections::BTreeMap;

use slackwater_base::{Checksum, Instant, Planted, planted};
use slackwater_wire::{
    DiskEntry, Key, NodeId, ReportedEntry, TaskFailure, Tenant, TicketId, Version,
};

use crate::catalog::SegmentIndex;
use crate::disk::Adopted;
use crate::drops::DropName;
use crate::master::{Due, Master};
use crate::owed::Sweep;

#[derive(Default)]
pub(crate) struct Spared {
    names: BTreeMap<DropName, Option<Unheard>>,
    tickets: BTreeMap<TicketId, DropName>,
}

/// A record that may be written.
#[derive(Clone, Copy)]
pub(crate) struct Unheard {
    /// The offload that writes it.
    pub(crate) ticket: TicketId,
    /// When nothing more is expected of it.
    pub(crate) until: Instant,
    pub(crate) bytes: u64,
    pub(crate) checksum: Checksum,
}

impl Spared {
    pub(crate) fn has(&self, name: &DropName) -> bool {
        self.names.contains_key(name)
    }

    /// Whether the node was not told to drop it.
    pub(crate) fn is_unheard(&self, name: &DropName) -> bool {
        self.names.get(name).is_some_and(Option::is_some)
    }

    /// Whether all of them are of drops under way, and both tables agree.
    pub(crate) fn balance(&self, is_pending: impl Fn(&DropName) -> bool) -> bool {
        let unheard = self
            .names
            .iter()
            .filter_map(|(name, it)| Some((name, (*it)?)));
        self.names.keys().all(is_pending)
            && unheard.clone().count() == self.tickets.len()
            && unheard
                .into_iter()
                .all(|(name, it)| self.tickets.get(&it.ticket) == Some(name))
    }

    pub(crate) fn name(&self, ticket: TicketId) -> Option<DropName> {
        self.tickets.get(&ticket).copied()
    }
}

impl Master {
    /// The last copy of a version is gone with a segment: nothing has ended it.
    pub(crate) fn spare_drops(&mut self, hash: u64, entry: &DiskEntry) {
        if planted(Planted::LostOffloadsAreDropped) || self.owed.is_swept(entry) {
            return;
        }
        for name in self.drops.of(hash, entry.version..=entry.version) {
            if *self.drops.entry(&name) == *entry {
                self.drops.spared.names.entry(name).or_insert(None);
            }
        }
    }

    /// Memory is being removed from which the last copy of a version is written to an SSD that stays. False when the record is to
    /// be dropped all the same.
    pub(crate) fn await_unheard(&mut self, name: DropName, entry: &DiskEntry, of: Unheard) -> bool {
        let swept = self.owed.is_swept(entry) || planted(Planted::LostOffloadsAreDropped);
        if swept || !self.drops.begin_unordered(name, entry) {
            return false;
        }
        self.drops.spared.names.insert(name, Some(of));
        self.drops.spared.tickets.insert(of.ticket, name);
        self.due.set(Due::Offload(of.ticket), of.until);
        true
    }

    /// A drop is over, or gone with its segment.
    pub(crate) fn unspare(&mut self, name: &DropName) {
        if let Some(Some(unheard)) = self.drops.spared.names.remove(name) {
            self.drops.spared.tickets.remove(&unheard.ticket);
            self.due.cancel(Due::Offload(unheard.ticket));
        }
    }

    /// Orders that a record is dropped of which nothing was heard.
    pub(crate) fn drop_unheard(&mut self, name: DropName) {
        let unheard = self.drops.spared.names.get_mut(&name);
        let Some(unheard) = unheard.and_then(Option::take) else {
            return;
        };
        self.drops.spared.tickets.remove(&unheard.ticket);
        self.due.cancel(Due::Offload(unheard.ticket));
        let node = self.segments.at(name.2).node;
        self.outbox.drop(node, self.drops.entry(&name).clone());
    }

    /// A record that may be written is there, or will not be: nothing is to be dropped.
    pub(crate) fn hear_of(&mut self, name: &DropName) -> Option<Unheard> {
        let unheard = (*self.drops.spared.names.get(name)?)?;
        self.unspare(name);
        self.drops.forget(name);
        Some(unheard)
    }

    /// Versions of a key up to `up_to` have ended, wherever they are.
    pub(crate) fn end_spared(&mut self, tenant: &Tenant, key: &Key, hash: u64, up_to: Version) {
        let range = (hash, Version(0), SegmentIndex(0))..=(hash, up_to, SegmentIndex(u16::MAX));
        let names = self.drops.spared.names.range(range);
        let names: Vec<DropName> = names.map(|(name, _)| *name).collect();
        for name in names {
            let entry = self.drops.entry(&name);
            if entry.key == *key && entry.tenant == *tenant {
                self.drop_unheard(name);
                self.unspare(&name);
            }
        }
    }

    /// All that a removal of many keys is to end has ended.
    pub(crate) fn end_swept(&mut self, sweep: &Sweep) {
        let names = self.drops.spared.names.keys();
        let swept = names.filter(|name| sweep.covers(self.drops.entry(name)));
        let swept: Vec<DropName> = swept.copied().collect();
        for name in swept {
            self.drop_unheard(name);
            self.unspare(&name);
        }
    }

    /// An offload has ended whose source is gone.
    pub(crate) fn unheard_offloaded(
        &mut self,
        now: Instant,
        node: NodeId,
        ticket: TicketId,
        result: Result<(), TaskFailure>,
    ) {
        let name = self.drops.spared.name(ticket);
        let Some(name) = name.filter(|name| self.segments.at(name.2).node == node) else {
            return;
        };
        let (hash, _, index) = name;
        let entry = self.drops.entry(&name).clone();
        let Some(Unheard {
            bytes, checksum, ..
        }) = self.hear_of(&name)
        else {
            return;
        };
        match result {
            Ok(()) => {
                let reported = ReportedEntry {
                    entry,
                    bytes,
                    checksum,
                };
                match self.adopt(now, node, index, &reported) {
                    Adopted::New(fresh) => self.introduce_announced(now, vec![fresh]),
                    Adopted::Known => {}
                    Adopted::Stale => self.drop_record(index, hash, reported.entry, None),
                }
            }
            // The next opening of the log may find it.
            Err(TaskFailure::Device) => {
                self.drop_record(index, hash, entry.clone(), None);
                self.spare_drops(hash, &entry);
            }
            Err(_) => {}
        }
    }
}
