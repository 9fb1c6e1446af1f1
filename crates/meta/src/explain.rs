//! Why policies keep or evict one object, for people to read.

use slackwater_base::Instant;
use slackwater_wire::{Key, SegmentKind, Tenant};

use crate::catalog::SegmentIndex;
use crate::evict::{Explanation, Slot};
use crate::master::Master;

/// How the policy of one segment rates an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Opinion {
    /// What the segment is made of.
    pub kind: SegmentKind,
    /// Whether the segment holds the object, or is the SSD below the memory that holds it.
    pub held: Held,
    /// The name of its policy.
    pub policy: &'static str,
    /// The reasons; `None` for policies that only keep an order.
    pub explanation: Option<Explanation>,
}

/// Whether a segment holds an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The replica is in the segment of this policy.
    Here,
    /// The segment is an SSD whose policy knows the object from the memory above.
    Above,
}

impl Master {
    /// The rating of an object by each segment that knows it, memory first; `None` when there is no such object. Does
    /// not count as a read and gives no lease.
    #[must_use]
    pub fn explain(&self, now: Instant, tenant: &Tenant, key: &Key) -> Option<Vec<Opinion>> {
        let object = self
            .find(tenant, key)
            .filter(|id| self.catalog.object(*id).has_replicas())?;
        let mut opinions = Vec::new();
        for (_, replica) in self.catalog.replicas(object) {
            opinions.push(self.opinion(now, replica.segment, Slot(replica.slot), Held::Here));
            if let (Some(below), Some(slot)) =
                (self.segments.at(replica.segment).below, replica.prospect())
            {
                opinions.push(self.opinion(now, below, slot, Held::Above));
            }
        }
        opinions.sort_by_key(|opinion| opinion.kind != SegmentKind::Memory);
        Some(opinions)
    }

    fn opinion(&self, now: Instant, index: SegmentIndex, slot: Slot, held: Held) -> Opinion {
        let segment = self.segments.at(index);
        let policy = &segment.policy;
        Opinion {
            kind: segment.kind(),
            held,
            policy: policy.name(),
            explanation: policy.explain(now, slot),
        }
    }
}
