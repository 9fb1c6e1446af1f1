//! Blocks in memory as the policy of the SSD below them knows them: its prospects.
//!
//! The SSD's policy chooses from everything that its node holds, so that what it learns and what it prefers do not
//! depend on what happens to be written already. A block becomes a prospect when it comes into memory, and ages and is
//! read in the policy of the SSD as its own blocks are. When it leaves memory, it is either written, and the record
//! takes over its slot; or it is not worth writing, and the prospect ends as if evicted, which also happens when the
//! policy names it as victim before.

use slackwater_base::Instant;

use crate::catalog::{Catalog, ReplicaId, SegmentIndex};
use crate::evict::{Link, Slot, Walk};
use crate::publish::Fresh;
use crate::release::Reason;
use crate::segment::Segments;

/// Adds prospects to the SSD below a memory segment for new replicas there, a run along their chain. What has a record there
/// is known already.
pub(crate) fn add(catalog: &mut Catalog, segments: &mut Segments, run: &[Fresh], walk: &Walk<'_>) {
    let above = run[0].segment;
    let Some(below) = segments.at(above).below else {
        return;
    };
    let mut links: Vec<Link> = walk.links.to_vec();
    for (link, fresh) in links.iter_mut().zip(run) {
        let id = segments.at(above).replica(Slot(fresh.slot));
        link.slot = None;
        if has_record(catalog, id, below) {
            continue;
        }
        let slot = segments.at_mut(below).number(id);
        catalog.replica_mut(id).set_prospect(Some(slot));
        link.slot = Some(slot);
    }
    if links.iter().all(|link| link.slot.is_none()) {
        return;
    }
    let walk = Walk {
        links: &links,
        ..*walk
    };
    segments.tell_policy(below, |policy| policy.insert(&walk));
}

/// Whether the object of a memory replica has one on this SSD too.
fn has_record(catalog: &Catalog, id: ReplicaId, below: SegmentIndex) -> bool {
    let object = catalog.replica(id).object();
    let replicas = object.into_iter().flat_map(|id| catalog.replicas(id));
    replicas.into_iter().any(|(_, it)| it.segment == below)
}

/// Whether the slot of a segment is a prospect.
pub(crate) fn is(catalog: &Catalog, segment: SegmentIndex, id: ReplicaId) -> bool {
    catalog.replica(id).segment != segment
}

/// The replicas of a segment, without its prospects.
pub(crate) fn residents<'a>(
    catalog: &'a Catalog,
    segments: &'a Segments,
    index: SegmentIndex,
) -> impl Iterator<Item = ReplicaId> + use<'a> {
    let all = segments.at(index).replicas();
    all.filter(move |id| !is(catalog, index, *id))
}

/// Ends the prospect of a memory replica.
pub(crate) fn end(
    catalog: &mut Catalog,
    segments: &mut Segments,
    now: Instant,
    id: ReplicaId,
    reason: Reason,
) {
    let replica = catalog.replica_mut(id);
    let (Some(slot), above) = (replica.prospect(), replica.segment) else {
        return;
    };
    replica.set_prospect(None);
    let below = segments
        .at(above)
        .below
        .expect("prospects are those of an SSD");
    let segment = segments.at_mut(below);
    match reason {
        Reason::Evicted => segment.policy.evicted(now, slot),
        Reason::Removed => segment.policy.remove(slot),
    }
    segment.unnumber(slot.0);
}

/// The record of a memory replica is written: takes the slot of its prospect on that SSD.
pub(crate) fn take(
    catalog: &mut Catalog,
    segments: &Segments,
    id: ReplicaId,
    disk: SegmentIndex,
) -> Option<Slot> {
    let replica = catalog.replica_mut(id);
    let (slot, above) = (replica.prospect()?, replica.segment);
    if segments.at(above).below != Some(disk) {
        return None;
    }
    replica.set_prospect(None);
    Some(slot)
}

/// An SSD is gone: ends its prospects.
pub(crate) fn lose(catalog: &mut Catalog, segments: &mut Segments, below: SegmentIndex) {
    let all: Vec<ReplicaId> = segments.at(below).replicas().collect();
    for id in all {
        if is(catalog, below, id) {
            catalog.replica_mut(id).set_prospect(None);
        }
    }
    for (_, segment) in segments.iter_mut() {
        segment.below.take_if(|index| *index == below);
    }
}
