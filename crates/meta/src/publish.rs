//! How replicas become readable.

use slackwater_base::Instant;
use slackwater_wire::{ChainPlace, Durability, ReplicaState};

use crate::catalog::{Catalog, ObjectId, PinKind, ReplicaId, SegmentIndex};
use crate::config::OffloadMode;
use crate::evict::{self, Link, Slot, Walk};
use crate::master::Master;
use crate::prospect;
use crate::segment::Segments;
use crate::tenant::Ledger;

/// A replica that became readable and that its policy has not been told of yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh {
    pub(crate) segment: SegmentIndex,
    pub(crate) slot: u32,
    pub(crate) hash: u64,
    pub(crate) bytes: u64,
    pub(crate) chain: ChainPlace,
    /// Its standing with the policy of the tier that it came from.
    pub(crate) standing: Option<evict::Standing>,
}

/// Tells policies of new residents, in runs along their chains.
pub(crate) fn introduce(
    catalog: &mut Catalog,
    segments: &mut Segments,
    mode: OffloadMode,
    now: Instant,
    fresh: &mut [Fresh],
) {
    fresh.sort_by_key(|fresh| fresh.segment);
    let follows = |before: &Fresh, next: &Fresh| {
        before.segment == next.segment
            && next.chain.parent == Some(before.hash)
            && next.chain.position == before.chain.position.wrapping_add(1)
            && next.chain.hint == before.chain.hint
            && next.chain.expect == before.chain.expect
            && next.standing.is_none()
    };
    for run in fresh.chunk_by(follows) {
        let links: Vec<Link> = run
            .iter()
            .map(|fresh| Link {
                hash: fresh.hash,
                slot: Some(Slot(fresh.slot)),
                bytes: fresh.bytes,
            })
            .collect();
        if let (Some(standing), [link]) = (run[0].standing, links.as_slice()) {
            segments.tell_policy(run[0].segment, |policy| {
                policy.insert_as(now, *link, standing);
            });
            continue;
        }
        let chain = run[0].chain;
        let walk = Walk {
            now,
            links: &links,
            parent: chain.parent,
            position: chain.position,
            found: 0,
            hint: chain.hint,
            expect: chain.expect,
            output_tokens: chain.output_tokens,
            placed: None,
        };
        segments.tell_policy(run[0].segment, |policy| policy.insert(&walk));
        if mode != OffloadMode::Off {
            prospect::add(catalog, segments, run, &walk);
        }
    }
}

impl Master {
    /// Makes a replica readable: from now on look-ups find it.
    pub(crate) fn attach(&mut self, object: ObjectId, id: ReplicaId, ledger: Ledger) {
        self.tell_stored(object, id);
        self.catalog.replica_mut(id).state = ReplicaState::Complete;
        self.catalog.attach(object, id);
        let record = self.catalog.object(object);
        if record.pin != PinKind::Hard {
            self.tenants.touch(record.tenant, ledger, id);
        }
    }

    /// Makes a copy in memory readable whose bytes were brought from another replica of the object.
    pub(crate) fn publish_copy(
        &mut self,
        now: Instant,
        object: ObjectId,
        copy: ReplicaId,
        chain: ChainPlace,
        standing: Option<evict::Standing>,
    ) {
        self.attach(object, copy, Ledger::Memory);
        self.tell_published(now, copy, chain, Durability::Memory);
        self.wake_drains(copy);
        let replica = *self.catalog.replica(copy);
        let record = self.catalog.object(object);
        let fresh = Fresh {
            segment: replica.segment,
            slot: replica.slot,
            hash: record.hash,
            bytes: record.bytes,
            chain,
            standing,
        };
        introduce(
            &mut self.catalog,
            &mut self.segments,
            self.config.offload.mode,
            now,
            &mut [fresh],
        );
    }
}
