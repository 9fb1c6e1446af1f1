//! The latest decisions about single objects with their reasons, for people who look.
//!
//! They cost one comparison each while nobody looks. A caller that looks takes the latest from time to time, and each time
//! allows the next few of each kind to be kept, so that their cost follows the looks and not the load.

use std::collections::VecDeque;

use slackwater_base::Instant;
use slackwater_wire::{Key, SegmentId, SegmentKind, Tenant};

use crate::catalog::{ObjectId, Replica, ReplicaId};
use crate::evict::{Explanation, Slot};
use crate::master::Master;
use crate::offload::{Cause, OffloadStart};

/// Decisions of each kind that are kept between two looks, and in all.
pub(crate) const KEPT_A_LOOK: u32 = 16;
const KINDS: usize = 5;

/// One decision about one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Its number among all decisions of this master, of which not every one is kept.
    pub number: u64,
    /// When it was made.
    pub at: Instant,
    /// The tenant that the object belongs to.
    pub tenant: Tenant,
    /// The object.
    pub key: Key,
    /// Length of its value.
    pub bytes: u64,
    /// The segment of the replica that it is about: the one that is evicted, or the source of a copy.
    pub segment: SegmentId,
    /// What that segment is made of.
    pub tier: SegmentKind,
    /// What was decided, and why.
    pub choice: Choice,
    /// How the policy of that segment rated the object then; `None` for policies that only keep an order.
    pub rating: Option<Explanation>,
}

/// What was decided about an object, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A replica is evicted.
    Evicted {
        /// Why something had to go.
        cause: EvictionCause,
        /// Whether it was the only replica: the object is gone with it.
        last: bool,
    },
    /// A value is written to SSD.
    Offloaded(Cause),
    /// A value is not written to SSD.
    NotOffloaded(OffloadRefusal),
    /// A value is brought back to memory.
    Promoted(PromotionCause),
    /// A value stays on SSD alone.
    NotPromoted(PromotionRefusal),
}

/// Why something had to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionCause {
    /// The segment is above its watermark, something else needs the room, or the file of an SSD is emptied and it was not worth
    /// being written again.
    #[default]
    Room,
    /// Its tenant holds more than its quota allows.
    Quota,
    /// It was to go, and has been written to SSD meanwhile.
    Written,
}

/// The gate at which a value was refused for SSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadRefusal {
    /// Too many are under way, or an older record is still being dropped.
    Busy,
    /// No SSD of the node accepts it.
    NoDisk,
    /// It is longer than the SSD.
    TooLong,
    /// The SSD would evict it first.
    NotWorth,
}

/// Why a value is brought back to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromotionCause {
    /// It was read so often lately.
    Reads(u8),
    /// Memory would keep it longer than something that it holds.
    Worth,
    /// It was refused for lack of room before, or belongs to a group of which another member is promoted.
    Earlier,
}

/// The gate at which a promotion was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromotionRefusal {
    /// It was read so often lately, which is too rare.
    Reads(u8),
    /// It is worth less than what memory holds.
    NotWorth,
    /// Memory is above the watermark of admission.
    Watermark,
    /// Too many are under way.
    Busy,
}

/// Kinds of which none keeps the others from being shown.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Eviction,
    Offload,
    OffloadRefusal,
    Promotion,
    PromotionRefusal,
}

/// The latest decisions, and how many more are kept.
#[derive(Default)]
pub(crate) struct Decisions {
    made: u64,
    /// How many of each kind are kept until the next look.
    left: [u32; KINDS],
    latest: [VecDeque<Decision>; KINDS],
    /// Why what is evicted now has to go.
    pub(crate) cause: EvictionCause,
}

impl Decisions {
    /// Counts a decision; whether it is kept.
    fn count(&mut self, kind: Kind) -> bool {
        self.made += 1;
        let left = &mut self.left[kind as usize];
        let kept = *left > 0;
        *left -= u32::from(kept);
        kept
    }

    fn keep(&mut self, kind: Kind, decision: Decision) {
        let latest = &mut self.latest[kind as usize];
        if latest.len() == KEPT_A_LOOK as usize {
            latest.pop_front();
        }
        latest.push_back(decision);
    }

    /// The latest, the oldest first. The next ones are kept from now on.
    fn look(&mut self) -> Vec<Decision> {
        self.left = [KEPT_A_LOOK; KINDS];
        let mut latest: Vec<Decision> = self.latest.iter().flatten().cloned().collect();
        latest.sort_unstable_by_key(|decision| decision.number);
        latest
    }
}

impl Master {
    /// The latest decisions, the oldest first, and how many were made in all. Decisions are kept only for callers that
    /// look again and again: after each call the next few of each kind.
    pub fn decisions(&mut self) -> (Vec<Decision>, u64) {
        (self.decisions.look(), self.decisions.made)
    }

    /// Notes that a replica is offloaded or promoted, before anything is changed by it.
    pub(crate) fn decided(&mut self, now: Instant, id: ReplicaId, kind: Kind, choice: Choice) {
        if self.decisions.count(kind) {
            self.keep_decision(now, id, kind, choice);
        }
    }

    #[cold]
    fn keep_decision(&mut self, now: Instant, id: ReplicaId, kind: Kind, choice: Choice) {
        let replica = *self.catalog.replica(id);
        let object = replica.object().expect("decisions are about objects");
        let object = self.catalog.object(object);
        let segment = self.segments.at(replica.segment);
        let decision = Decision {
            number: self.decisions.made,
            at: now,
            tenant: self.tenants.at(object.tenant).tenant.clone(),
            key: object.key.clone(),
            bytes: object.bytes,
            segment: segment.id,
            tier: segment.kind(),
            choice,
            rating: segment.policy.explain(now, Slot(replica.slot)),
        };
        self.decisions.keep(kind, decision);
    }

    /// Notes the eviction of a replica.
    pub(crate) fn decided_to_evict(&mut self, now: Instant, id: ReplicaId) {
        if self.decisions.count(Kind::Eviction) {
            // What is on a node without a link may be there again.
            let object = self.catalog.replica(id).object();
            let object = object.expect("decisions are about objects");
            let mut all = self.catalog.replicas(object);
            let choice = Choice::Evicted {
                cause: self.decisions.cause,
                last: all.all(|(other, _)| other == id),
            };
            self.keep_decision(now, id, Kind::Eviction, choice);
        }
    }

    /// Notes that a replica in memory is not written to SSD, where that was asked for and refused.
    pub(crate) fn decided_not_to_offload(
        &mut self,
        now: Instant,
        id: ReplicaId,
        start: OffloadStart,
    ) {
        let refusal = match start {
            OffloadStart::Queued(_) => return,
            OffloadStart::NotNow => OffloadRefusal::Busy,
            OffloadStart::NoDisk => OffloadRefusal::NoDisk,
            OffloadStart::TooLong => OffloadRefusal::TooLong,
            OffloadStart::NotWorth => OffloadRefusal::NotWorth,
        };
        let choice = Choice::NotOffloaded(refusal);
        self.decided(now, id, Kind::OffloadRefusal, choice);
    }

    /// Notes that an object on SSD is not promoted.
    pub(crate) fn decided_not_to_promote(
        &mut self,
        now: Instant,
        id: ObjectId,
        refusal: PromotionRefusal,
    ) {
        if !self.decisions.count(Kind::PromotionRefusal) || !self.catalog.is_object(id) {
            return;
        }
        let on_disk = |(id, replica): (ReplicaId, &Replica)| {
            (self.segments.at(replica.segment).kind() == SegmentKind::Disk).then_some(id)
        };
        let source = self.catalog.replicas(id).find_map(on_disk);
        if let Some(source) = source {
            let choice = Choice::NotPromoted(refusal);
            self.keep_decision(now, source, Kind::PromotionRefusal, choice);
        }
    }
}
