use std::collections::BTreeMap;
use std::hash::Hash;

use slackwater_base::{Instant, KeyHash, Map, round_to_block};
use slackwater_wire::{ExtentRef, SegmentId, TicketId, Version};

use crate::format::Record;

/// Values that wait to be written, in the order in which they were ordered.
///
/// They are found by key and by source as well: dropping one of 50,000 must not walk the others, because removing
/// everything drops each of them.
#[derive(Debug, Default)]
pub(super) struct OffloadQueue {
    /// Behind pointers: each removal moves half of a node's values on average, and a value has hundreds of bytes.
    queued: BTreeMap<u64, Box<Queued>>,
    by_key: Orders<KeyHash>,
    by_source: Orders<Source>,
    bytes: u64,
    promised: usize,
}

/// A value that waits to be written.
#[derive(Debug)]
pub(crate) struct Queued {
    /// Its number among all orders.
    pub(super) order: u64,
    pub(super) since: Instant,
    pub(super) ticket: TicketId,
    pub(super) source: ExtentRef,
    pub(super) record: Record,
    /// A caller was promised that it is durable before its end is reported.
    pub(super) promised: bool,
    /// Set once a write of the record has failed: the record may lie in a file that was abandoned, and until this moment
    /// another try is waited for.
    pub(super) kept_until: Option<Instant>,
}

/// What tells an extent from every other of this life.
type Source = (SegmentId, u64, u64);

impl Queued {
    pub(super) fn hash(&self) -> KeyHash {
        self.record.hash
    }

    pub(super) fn version(&self) -> Version {
        self.record.entry.version
    }

    /// Bytes of its payload on the device.
    pub(super) fn padded(&self) -> u64 {
        round_to_block(self.record.length)
    }
}

impl OffloadQueue {
    /// Puts a value in its place: at the end, or at the front again when a write of it failed.
    pub(super) fn insert(&mut self, queued: Queued) {
        let order = queued.order;
        self.bytes += queued.padded();
        self.promised += usize::from(queued.promised);
        self.by_key.insert(queued.hash(), order);
        self.by_source.insert(source(&queued.source), order);
        self.queued.insert(order, Box::new(queued));
    }

    pub(super) fn first(&self) -> Option<&Queued> {
        self.iter().next()
    }

    pub(super) fn pop_first(&mut self) -> Option<Queued> {
        let order = *self.queued.keys().next()?;
        self.remove(order)
    }

    pub(super) fn remove(&mut self, order: u64) -> Option<Queued> {
        let queued = self.queued.remove(&order)?;
        self.bytes -= queued.padded();
        self.promised -= usize::from(queued.promised);
        self.by_key.remove(queued.hash(), order);
        self.by_source.remove(source(&queued.source), order);
        Some(*queued)
    }

    pub(super) fn len(&self) -> usize {
        self.queued.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// Payload bytes of all that is queued.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many of them a caller waits for.
    pub(super) fn promised(&self) -> usize {
        self.promised
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Queued> {
        self.queued.values().map(|queued| &**queued)
    }

    /// The orders of a key up to `version`.
    pub(super) fn of_key(&self, hash: KeyHash, version: Version) -> Vec<u64> {
        let orders = self.by_key.of(hash).iter().copied();
        orders
            .filter(|order| self.queued[order].version() <= version)
            .collect()
    }

    /// All orders.
    pub(super) fn orders(&self) -> Vec<u64> {
        self.queued.keys().copied().collect()
    }

    /// The orders whose value is in `extent`.
    pub(super) fn of_source(&self, extent: ExtentRef) -> Vec<u64> {
        let orders = self.by_source.of(source(&extent)).iter().copied();
        orders
            .filter(|order| self.queued[order].source == extent)
            .collect()
    }
}

/// The orders of each name, ascending; mostly one.
#[derive(Debug)]
struct Orders<K>(Map<K, Vec<u64>>);

impl<K> Default for Orders<K> {
    fn default() -> Self {
        Self(Map::default())
    }
}

impl<K: Hash + Eq> Orders<K> {
    fn insert(&mut self, name: K, order: u64) {
        let orders = self.0.entry(name).or_insert_with(|| Vec::with_capacity(1));
        orders.insert(orders.partition_point(|other| *other < order), order);
    }

    fn remove(&mut self, name: K, order: u64) {
        let Some(orders) = self.0.get_mut(&name) else {
            return;
        };
        if let Ok(at) = orders.binary_search(&order) {
            orders.remove(at);
        }
        if orders.is_empty() {
            self.0.remove(&name);
        }
    }

    fn of(&self, name: K) -> &[u64] {
        self.0.get(&name).map_or(&[], Vec::as_slice)
    }
}

fn source(extent: &ExtentRef) -> Source {
    (extent.segment, extent.offset, extent.generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_of_a_name_ascend_in_whatever_order_they_came() {
        let mut orders = Orders::default();
        for (name, order) in [('a', 5), ('b', 6), ('a', 7), ('a', 3), ('a', 4)] {
            orders.insert(name, order);
        }
        assert_eq!(
            (orders.of('a'), orders.of('b')),
            (&[3, 4, 5, 7][..], &[6][..])
        );
        for order in [4, 7, 9] {
            orders.remove('a', order);
        }
        orders.remove('c', 1);
        assert_eq!((orders.of('a'), orders.of('c')), (&[3, 5][..], &[][..]));
        orders.remove('b', 6);
        assert!(
            !orders.0.contains_key(&'b'),
            "a name without orders takes no room"
        );
    }
}
