//! Records that must never come back, and whose nodes were told so.

use std::collections::BTreeMap;

use slackwater_base::{Planted, planted};
use slackwater_wire::{DiskEntry, ErrorCode, Key, NodeId, Presence, Tenant, Version};

use crate::catalog::{Mark, SegmentIndex};
use crate::master::Master;
use crate::outbox::Waiter;

/// Records that nodes were told to drop and have not yet reported as dropped.
#[derive(Default)]
pub(crate) struct Drops {
    pending: BTreeMap<(u64, Version, SegmentIndex), PendingDrop>,
}

/// A place in the order of the drops under way.
#[derive(Clone, Copy)]
pub(crate) struct DropMark((u64, Version, SegmentIndex));

impl DropMark {
    pub(crate) const FIRST: Self = Self((0, Version(0), SegmentIndex(0)));
}

struct PendingDrop {
    entry: DiskEntry,
    waiters: Vec<Waiter>,
}

impl Drops {
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn is_pending(&self, hash: u64, version: Version, segment: SegmentIndex) -> bool {
        self.pending.contains_key(&(hash, version, segment))
    }
}

impl Master {
    /// Orders that a record is dropped; the waiter's answer waits for that.
    pub(crate) fn drop_record(
        &mut self,
        segment: SegmentIndex,
        hash: u64,
        entry: DiskEntry,
        waiter: Option<Waiter>,
    ) {
        let waiter = waiter.filter(|_| !planted(Planted::RemoveBeforeDropped));
        let hidden = self.segments.at(segment).presence == Presence::Hidden;
        if let Some(waiter) = waiter.filter(|_| hidden) {
            self.acks
                .fail(waiter, ErrorCode::UnavailableInCurrentStatus);
        }
        let waiters: Vec<Waiter> = waiter
            .filter(|_| !hidden)
            .into_iter()
            .map(|waiter| self.acks.wait(waiter))
            .collect();
        let node = self.segments.at(segment).node;
        let pending = self
            .drops
            .pending
            .entry((hash, entry.version, segment))
            .or_insert_with(|| {
                self.outbox.drop(node, entry.clone());
                PendingDrop {
                    entry,
                    waiters: Vec::new(),
                }
            });
        pending.waiters.extend(waiters);
    }

    /// Marks the version so that it is not offered to an SSD again.
    pub(crate) fn shed(&mut self, hash: u64, entry: &DiskEntry) {
        let tenant = self.tenants.find_exact(&entry.tenant);
        let found = tenant.and_then(|tenant| self.catalog.find(tenant, &entry.key, hash));
        if let Some(id) = found.filter(|id| self.catalog.object(*id).version == entry.version) {
            self.catalog.object_mut(id).mark(Mark::Shed);
        }
    }

    /// Makes the waiter wait for every drop of the key that is under way.
    pub(crate) fn await_drops(&mut self, tenant: &Tenant, key: &Key, hash: u64, waiter: Waiter) {
        if planted(Planted::RemoveBeforeDropped) {
            return;
        }
        let range =
            (hash, Version(0), SegmentIndex(0))..=(hash, Version(u64::MAX), SegmentIndex(u16::MAX));
        for ((.., segment), drop) in self.drops.pending.range_mut(range) {
            let same = drop.entry.key == *key && drop.entry.tenant == *tenant;
            if same && self.segments.at(*segment).presence == Presence::Hidden {
                self.acks
                    .fail(waiter, ErrorCode::UnavailableInCurrentStatus);
            } else if same && !drop.waiters.contains(&waiter) {
                drop.waiters.push(self.acks.wait(waiter));
            }
        }
    }

    pub(crate) fn dropped(&mut self, node: NodeId, entries: &[DiskEntry]) {
        let Some(segment) = self.segments.disk_of(node) else {
            return;
        };
        for entry in entries {
            let hash = self.tenants.hash_of(&entry.tenant, &entry.key);
            let Some(drop) = self.drops.pending.remove(&(hash, entry.version, segment)) else {
                continue;
            };
            self.metrics.records_dropped += 1;
            for waiter in drop.waiters {
                self.acks.done(waiter.ack, &mut self.outbox);
            }
        }
        self.unsettled.resume(&self.segments, node);
    }

    /// The node that was to drop records is gone. Waiting requests fail; the node is told to drop them when it comes
    /// back.
    pub(crate) fn lose_drops(&mut self, segment: SegmentIndex) {
        let lost: Vec<_> = self
            .drops
            .pending
            .keys()
            .filter(|(.., at)| *at == segment)
            .copied()
            .collect();
        for key in lost {
            let drop = self.drops.pending.remove(&key).expect("found above");
            self.owed.key(&drop.entry.tenant, key.0, key.1);
            for waiter in drop.waiters {
                self.acks
                    .fail(waiter, ErrorCode::UnavailableInCurrentStatus);
                self.acks.done(waiter.ack, &mut self.outbox);
            }
        }
    }

    /// The node that was to drop records is hidden: it may be long before it can be told. Waiting requests fail; it is
    /// told as soon as it comes back.
    pub(crate) fn hide_drops(&mut self, segment: SegmentIndex) {
        let of_segment = self.drops.pending.iter_mut();
        let of_segment = of_segment.filter(|((.., at), _)| *at == segment);
        for waiter in of_segment.flat_map(|(_, drop)| std::mem::take(&mut drop.waiters)) {
            self.acks
                .fail(waiter, ErrorCode::UnavailableInCurrentStatus);
            self.acks.done(waiter.ack, &mut self.outbox);
        }
    }

    /// Also keeps the removals under way for a node that mounts: it was not told of them, and may hold copies.
    pub(crate) fn owe_pending_drops(&mut self) {
        for ((hash, version, _), drop) in &self.drops.pending {
            if !drop.waiters.is_empty() {
                self.owed.key(&drop.entry.tenant, *hash, *version);
            }
        }
    }
}

impl Master {
    /// Makes the waiter wait for those of the next `count` drops under way that a removal of many keys covers. Says where
    /// to go on, if anywhere.
    pub(crate) fn await_drops_from(
        &mut self,
        next: DropMark,
        count: usize,
        waiter: Waiter,
        covers: impl Fn(&DiskEntry) -> bool,
    ) -> Option<DropMark> {
        let mut drops = self.drops.pending.range_mut(next.0..);
        for ((.., segment), drop) in drops.by_ref().take(count) {
            let covered = covers(&drop.entry);
            if covered && self.segments.at(*segment).presence == Presence::Hidden {
                self.acks
                    .fail(waiter, ErrorCode::UnavailableInCurrentStatus);
            } else if covered {
                drop.waiters.push(self.acks.wait(waiter));
            }
        }
        drops.next().map(|(key, _)| DropMark(*key))
    }
}
