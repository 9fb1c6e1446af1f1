//! What a master may refuse of what a node announces: copies that a master has ordered to be forgotten, and versions that were
//! removed or replaced. Of any other the refusal may be the loss of the last copy.

use std::collections::{BTreeMap, BTreeSet};

use slackwater_wire::{DiskEntry, ExtentRef, Incarnation, NodeId, Order, Report, SegmentId};

/// The copies that masters of a run have ordered to be forgotten, whether their nodes have heard of it or not.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    records: BTreeSet<(NodeId, DiskEntry)>,
    /// By the first byte, the newest generation.
    extents: BTreeMap<(SegmentId, Incarnation, u64), u64>,
}

impl Refusals {
    /// A master gives an order.
    pub fn ordered(&mut self, node: NodeId, order: &Order) {
        match order {
            Order::Drop(entries) => {
                let each = entries.iter().map(|entry| (node, entry.clone()));
                self.records.extend(each);
            }
            Order::Fence(extents) => {
                for extent in extents {
                    let newest = self.extents.entry(place(extent)).or_default();
                    *newest = extent.generation.max(*newest);
                }
            }
            // What is written anew is another copy.
            Order::Offload(tasks) => {
                for task in tasks {
                    self.records.remove(&(node, task.entry.clone()));
                }
            }
            _ => {}
        }
    }

    /// Versions of which a copy is refused by one of the orders that answer a report, and no master has ordered that before.
    #[must_use]
    pub fn refused<'a>(
        &self,
        node: NodeId,
        report: &'a Report,
        orders: &[&Order],
    ) -> Vec<&'a DiskEntry> {
        match report {
            Report::Announce { entries, .. } => {
                let entries = entries.iter().map(|reported| &reported.entry);
                let drops = |entry: &DiskEntry| {
                    let mut orders = orders.iter();
                    orders.any(|it| matches!(it, Order::Drop(all) if all.contains(entry)))
                };
                let is_new = |entry: &DiskEntry| !self.records.contains(&(node, entry.clone()));
                entries.filter(|it| drops(it) && is_new(it)).collect()
            }
            Report::Holds { entries, .. } => {
                let fences = |extent: &ExtentRef| {
                    let mut orders = orders.iter();
                    orders.any(|it| matches!(it, Order::Fence(all) if all.contains(extent)))
                };
                let is_new = |extent: &ExtentRef| {
                    let before = self.extents.get(&place(extent));
                    before.is_none_or(|before| *before < extent.generation)
                };
                let refused = entries
                    .iter()
                    .filter(|it| fences(&it.extent) && is_new(&it.extent));
                refused.map(|published| &published.entry).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// What the generations of an extent have in common.
pub(crate) fn place(extent: &ExtentRef) -> (SegmentId, Incarnation, u64) {
    (extent.segment, extent.incarnation, extent.offset)
}

#[cfg(test)]
mod tests {
    use slackwater_base::Checksum;
    use slackwater_wire::{OffloadTask, TicketId};

    use super::*;
    use crate::samples::{self, entry, published, reported};

    const NODE: NodeId = NodeId(1);
    const OTHER: NodeId = NodeId(2);

    fn extent(generation: u64) -> ExtentRef {
        samples::extent(SegmentId(1), 4096, generation)
    }

    fn announce(version: u64) -> Report {
        Report::Announce {
            segment: SegmentId(2),
            entries: vec![reported(version)],
        }
    }

    fn holds(generation: u64) -> Report {
        Report::Holds {
            segment: SegmentId(1),
            entries: vec![published(extent(generation), generation)],
            ahead: false,
        }
    }

    fn offload(version: u64) -> Order {
        Order::Offload(vec![OffloadTask {
            ticket: TicketId(1),
            source: extent(1),
            entry: entry(version),
            bytes: 1,
            checksum: Checksum(0),
            promised: false,
        }])
    }

    #[test]
    fn a_copy_is_refused_by_the_order_that_answers_it_unless_it_was_ordered_away_before() {
        let check = |before: &[(NodeId, Order)], report: Report, order: Order, refused: bool| {
            let mut refusals = Refusals::default();
            let each = before.iter();
            each.for_each(|(node, order)| refusals.ordered(*node, order));
            let found = refusals.refused(NODE, &report, &[&order]).len();
            assert_eq!(found, usize::from(refused), "{before:?}, {report:?}");
        };
        let drop = |version| Order::Drop(vec![entry(version)]);
        check(&[], announce(1), drop(1), true);
        check(&[], announce(1), drop(2), false);
        check(&[(NODE, drop(1))], announce(1), drop(1), false);
        check(&[(OTHER, drop(1))], announce(1), drop(1), true);
        let anew = [(NODE, drop(1)), (NODE, offload(1))];
        check(&anew, announce(1), drop(1), true);
        let fence = |generation| Order::Fence(vec![extent(generation)]);
        check(&[], holds(2), fence(2), true);
        check(&[], holds(2), fence(1), false);
        check(&[(NODE, fence(1))], holds(2), fence(2), true);
        check(&[(NODE, fence(2))], holds(2), fence(2), false);
        check(&[(NODE, drop(2))], holds(2), fence(2), true);
    }
}
