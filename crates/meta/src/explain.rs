//! What the policies think of one object, for people.

use slackwater_base::Instant;
use slackwater_wire::{Key, SegmentKind, Tenant};

use crate::catalog::SegmentIndex;
use crate::evict::{Explanation, Slot};
use crate::master::Master;

/// What the policy of one segment thinks of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Opinion {
    /// What the segment is made of.
    pub kind: SegmentKind,
    /// Whether it holds the object, or would be asked to once that leaves the memory above.
    pub held: Held,
    /// The name of its policy.
    pub policy: &'static str,
    /// The reasons, of policies that have others than an order.
    pub explanation: Option<Explanation>,
}

/// Whether a segment holds an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The replica is in the segment of this policy.
    Here,
    /// It is an SSD whose policy knows the object from the memory above.
    Above,
}

impl Master {
    /// What each segment that knows an object thinks of it, memory first; `None` when there is no such object. Neither
    /// a read nor a lease.
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
