//! What earns an object on SSD a copy in memory.

use slackwater_base::Instant;
use slackwater_wire::{NodeId, SegmentKind};

use crate::catalog::{Aside, ObjectId, ReplicaId};
use crate::config::{Promotion, PromotionAdmission};
use crate::evict::{Link, Slot};
use crate::master::Master;
use crate::promote::Admission;
use crate::put::ChainPlace;

impl Master {
    /// Gate 2: whether the read of an object that is on SSD only earns it a copy in memory.
    pub(crate) fn has_earned(&mut self, now: Instant, id: ObjectId, heat: u8) -> bool {
        let Promotion {
            admission,
            threshold,
            ..
        } = self.config.promotion;
        let metrics = &mut self.metrics.promotion;
        match admission {
            PromotionAdmission::Frequency if u32::from(heat) >= threshold => true,
            PromotionAdmission::Frequency => {
                metrics.rejected_frequency += 1;
                false
            }
            PromotionAdmission::Index => {
                let kept = self
                    .sources(id)
                    .iter()
                    .any(|(source, node)| self.memory_would_keep(now, id, *source, *node));
                self.metrics.promotion.rejected_index += u64::from(!kept);
                kept
            }
        }
    }

    /// Whether a memory segment of the node has room, or would keep the object longer than something that it holds.
    fn memory_would_keep(
        &mut self,
        now: Instant,
        id: ObjectId,
        source: ReplicaId,
        node: NodeId,
    ) -> bool {
        let object = self.catalog.object(id);
        let link = Link {
            hash: object.hash,
            slot: None,
            bytes: object.bytes,
        };
        let record = *self.catalog.replica(source);
        let standing = self
            .segments
            .at(record.segment)
            .policy
            .standing(now, Slot(record.slot));
        self.segments.of_node(node).into_iter().any(|index| {
            let low = self.marks(index).1;
            let segment = self.segments.at_mut(index);
            let roomy = segment.staying() + link.bytes <= low;
            match standing {
                _ if segment.kind() != SegmentKind::Memory => false,
                _ if roomy => true,
                Some(standing) => segment.policy.would_keep_as(now, link, standing),
                None => segment.policy.would_keep(now, link),
            }
        })
    }

    /// What was put as one comes back as one: a part of a block is of no use without the others.
    pub(crate) fn admit_group(&mut self, now: Instant, id: ObjectId, heat: u8) {
        let object = self.catalog.object(id);
        if !object.is(Aside::Group) {
            return;
        }
        let members: Vec<ObjectId> = self
            .groups
            .members(object.tenant, id)
            .filter(|member| *member != id)
            .collect();
        for member in members {
            if !self.catalog.is_object(member) || !self.catalog.object(member).has_replicas() {
                continue;
            }
            let place = ChainPlace::default();
            match self.admit(now, member, heat, place) {
                Admission::Rejected(reason) if self.catalog.is_object(member) => {
                    self.remember(now, member, reason, place);
                }
                Admission::Rejected(_) => {}
                Admission::Admitted | Admission::Ineligible => self.forget_candidate(member),
            }
        }
    }
}
