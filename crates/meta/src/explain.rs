//! What is known about one object, and why policies keep or evict it, for people to read.

use slackwater_base::Instant;
use slackwater_wire::{Description, ErrorCode, Key, Pin, ReplicaAt, Reply, SegmentKind, Tenant};

use crate::catalog::{PinKind, ReplicaId, SegmentIndex};
use crate::evict::{Explanation, Slot};
use crate::master::Master;
use crate::segment::Medium;

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

    /// Everything known about an object. Does not count as a read.
    pub(crate) fn describe(&self, now: Instant, tenant: &Tenant, key: &Key) -> Reply {
        let Some(id) = self.find(tenant, key) else {
            return Reply::Failed(ErrorCode::ObjectNotFound);
        };
        let object = self.catalog.object(id);
        let place = |id: ReplicaId| {
            let replica = self.catalog.replica(id);
            let segment = self.segments.at(replica.segment);
            let at = match segment.medium {
                Medium::Memory(_) => ReplicaAt::Memory(self.extent_of(id)),
                Medium::Disk(_) => ReplicaAt::Disk {
                    node: segment.node,
                    segment: segment.id,
                },
            };
            ((at, replica.state, replica.refs), segment.name.to_string())
        };
        let put = self.puts.open.get(&id);
        let written = put.iter().flat_map(|put| &put.replicas).copied();
        let there = self.catalog.replicas(id).map(|(replica, _)| replica);
        let all = there.chain(written).chain(self.promotions.staged_of(id));
        let (replicas, names) = all.map(place).unzip();
        let pin = match object.pin {
            PinKind::None => Pin::None,
            PinKind::Hard => Pin::Hard,
            PinKind::Soft => Pin::Soft(self.soft_until.get(&id).map(|until| now.until(*until))),
        };
        let whole = object.has_replicas();
        Reply::Describe(Box::new(Description {
            key: object.key.clone(),
            tenant: self.tenants.at(object.tenant).tenant.clone(),
            version: if whole {
                object.version
            } else {
                put.map_or(object.version, |put| put.version)
            },
            bytes: if whole {
                object.bytes
            } else {
                put.map_or(object.bytes, |put| put.bytes)
            },
            checksum: object.checksum,
            group: self.groups.of(id),
            pin,
            lease: now.until(self.lease_end(id)),
            replicas,
            names,
        }))
    }
}
