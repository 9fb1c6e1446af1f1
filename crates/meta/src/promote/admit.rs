//! Admission of promotions: the requests of reads, retries and groups, the gates, and the consequences of their
//! verdict.

use slackwater_base::Instant;
use slackwater_wire::{ChainPlace, NodeId, SegmentKind};

use super::retry::Tried;
use super::{Promoting, Stage};
use crate::catalog::{Mark, ObjectId, ReplicaId, SegmentIndex};
use crate::config::{OnHit, PromotionAdmission};
use crate::decisions::{Choice, Kind, PromotionCause, PromotionRefusal};
use crate::evict::{Link, Slot};
use crate::master::{Due, Master};
use crate::pressure::Pass;

/// Most members of a group that are requested together with one of them. A group of one block has fewer; a larger group
/// is promoted as its members are read.
const GROUP_REQUESTED_MAX: usize = 1024;

/// A request to promote an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct PromotionRequest<'a> {
    pub(super) object: ObjectId,
    /// Reads that the sketch counts.
    pub(super) heat: u8,
    pub(super) chain: ChainPlace,
    pub(super) earned: Earned,
    /// The host of its reader, if that is known.
    pub(super) reader: Option<&'a str>,
}

/// Whether an object has met the condition for promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Earned {
    /// It was read; the number of its reads decides.
    ByHeat,
    /// It was read, and the policy of the memory has said whether it would keep it.
    ByIndex { kept: bool },
    /// It met the condition before, or another member of its group did.
    Before,
}

/// The result of the gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing is ever promoted.
    Off,
    /// It was not read often enough, or memory would not keep it.
    Unearned,
    /// The memory of its node is too full: room is made there.
    NoRoom(NodeId),
    /// The object is gone: it may have been evicted to make room for an earlier one.
    Gone,
    /// It is being put, is in memory already, or is no longer on SSD.
    Ineligible,
    /// It is being promoted already.
    InFlight,
    /// The limit of promotions in flight is reached.
    QueueFull,
    /// It is promoted from this record by this node.
    Admit(ReplicaId, NodeId),
    /// It is brought from this record of another host to this memory of the reader's.
    Bring(ReplicaId, SegmentIndex),
}

impl Verdict {
    pub(super) fn is_admitted(self) -> bool {
        matches!(self, Self::Admit(..) | Self::Bring(..))
    }
}

impl Master {
    /// Requests promotions for what a read found on SSD only.
    pub(crate) fn consider(
        &mut self,
        now: Instant,
        links: &[Link],
        cold: &[(ObjectId, u32)],
        chain: ChainPlace,
        reader: Option<&str>,
    ) {
        for (id, at) in cold {
            // It may have been evicted to make room for an earlier one.
            if !self.catalog.is_object(*id) {
                continue;
            }
            let Some(sketch) = &mut self.promotions.sketch else {
                return;
            };
            let heat = sketch.add(links[*at as usize].hash);
            let before = at.checked_sub(1).map(|before| links[before as usize].hash);
            let chain = ChainPlace {
                parent: before.or(chain.parent),
                position: chain.position.saturating_add(*at),
                ..chain
            };
            let earned = match self.config.promotion.admission {
                PromotionAdmission::Frequency => Earned::ByHeat,
                PromotionAdmission::Index => Earned::ByIndex {
                    kept: self.place_beside(now, *id, reader).is_some()
                        || self.memory_would_keep(now, *id),
                },
            };
            let request = PromotionRequest {
                object: *id,
                heat,
                chain,
                earned,
                reader,
            };
            let verdict = self.request_promotion(now, request, None);
            if let Verdict::NoRoom(_) | Verdict::QueueFull = verdict {
                self.remember(now, *id, chain);
            }
            if verdict.is_admitted() {
                self.request_group(now, *id, heat, None, reader);
            }
        }
    }

    /// The only entry: applies the verdict of the gates. The caller records for a retry what is refused for lack of
    /// room.
    pub(super) fn request_promotion(
        &mut self,
        now: Instant,
        request: PromotionRequest<'_>,
        tried: Option<Tried>,
    ) -> Verdict {
        let verdict = self.plan_promotion(now, request);
        if let Some(refusal) = refusal(verdict, request) {
            self.decided_not_to_promote(now, request.object, refusal);
        }
        let metrics = &mut self.metrics.promotion;
        match verdict {
            Verdict::Off => {}
            Verdict::Unearned => match request.earned {
                Earned::ByIndex { .. } => metrics.rejected_index += 1,
                Earned::ByHeat | Earned::Before => metrics.rejected_frequency += 1,
            },
            Verdict::NoRoom(node) => {
                metrics.rejected_watermark += 1;
                self.make_room_for_promotion(now, node);
            }
            Verdict::QueueFull => metrics.rejected_cap += 1,
            Verdict::Gone => {}
            Verdict::Ineligible => self.forget_candidate(request.object),
            Verdict::InFlight => {
                self.promotions.reheat(request.object, request.heat);
                self.forget_candidate(request.object);
            }
            Verdict::Admit(source, node) => {
                self.begin_promotion(now, request, (source, node), tried);
                self.deliver(now, node);
                self.forget_candidate(request.object);
            }
            Verdict::Bring(source, target) => {
                if !self.begin_bringing(now, request, source, target) {
                    let reader = None;
                    return self.request_promotion(
                        now,
                        PromotionRequest { reader, ..request },
                        tried,
                    );
                }
                self.forget_candidate(request.object);
            }
        }
        verdict
    }

    /// Checks every gate, in the documented order, without changing anything.
    fn plan_promotion(&self, now: Instant, request: PromotionRequest<'_>) -> Verdict {
        let config = &self.config.promotion;
        if config.on_hit == OnHit::Stay {
            return Verdict::Off;
        }
        let has_earned = match request.earned {
            Earned::ByHeat => u32::from(request.heat) >= config.threshold,
            Earned::ByIndex { kept } => kept,
            Earned::Before => true,
        };
        if !has_earned {
            return Verdict::Unearned;
        }
        if let Some((source, target)) = self.place_beside(now, request.object, request.reader) {
            return Verdict::Bring(source, target);
        }
        let is_there = self.catalog.is_object(request.object);
        let sources = if is_there {
            self.sources(request.object)
        } else {
            Vec::new()
        };
        let roomy = sources.iter().find(|(_, node)| self.has_room(*node));
        if let (None, Some((_, node))) = (roomy, sources.first()) {
            return Verdict::NoRoom(*node);
        }
        if !is_there {
            return Verdict::Gone;
        }
        let object = self.catalog.object(request.object);
        if object.is(Mark::Open) {
            return Verdict::Ineligible;
        }
        if object.is(Mark::Promotion) || self.is_brought(request.object) {
            return Verdict::InFlight;
        }
        let mut replicas = self.catalog.replicas(request.object);
        if replicas.any(|(_, it)| self.segments.at(it.segment).kind() == SegmentKind::Memory) {
            return Verdict::Ineligible;
        }
        let Some((source, node)) = roomy else {
            return Verdict::Ineligible;
        };
        if self.is_queue_full() {
            return Verdict::QueueFull;
        }
        Verdict::Admit(*source, *node)
    }

    /// The SSD copies of an object whose nodes have memory to promote to: those beside a segment that the put preferred, then the
    /// least busy.
    fn sources(&self, id: ObjectId) -> Vec<(ReplicaId, NodeId)> {
        let mut sources: Vec<((usize, usize), ReplicaId, NodeId)> = Vec::new();
        for (replica, facts) in self.catalog.replicas(id) {
            let segment = self.segments.at(facts.segment);
            let fits = |index| {
                let above = self.segments.at(index);
                let memory = above.memory().filter(|_| above.takes_new());
                memory.is_some_and(|memory| {
                    memory.extents.books().capacity >= self.catalog.object(id).bytes
                })
            };
            if segment.kind() != SegmentKind::Disk || !segment.takes_new() {
                continue;
            }
            let mut above = self.segments.of_node(segment.node);
            above.retain(|index| fits(*index));
            let ranks = above
                .iter()
                .map(|index| self.wishes.rank(id, &self.segments.at(*index).name));
            if let Some(rank) = ranks.min() {
                let first = (rank, self.promotions.load(segment.node));
                sources.push((first, replica, segment.node));
            }
        }
        sources.sort_unstable();
        sources
            .into_iter()
            .map(|(_, replica, node)| (replica, node))
            .collect()
    }

    /// Whether a node's memory, including what is promised already, is below the watermark of admission, and what leaves it has
    /// made room.
    pub(super) fn has_room(&self, node: NodeId) -> bool {
        let (mut staying, mut used, mut capacity, mut most) = (0, 0, 0, 0.0);
        for index in self.segments.of_node(node) {
            let segment = self.segments.at(index);
            if segment.kind() == SegmentKind::Memory {
                staying += segment.staying();
                used += segment.used();
                capacity += segment.capacity();
                // What comes where eviction has begun would go again.
                let high = self.watermarks_of(segment).high;
                most += segment.capacity() as f64 * self.config.promotion.watermark.min(high);
            }
        }
        let coming = self.promotions.coming(node);
        let below = ((staying + coming) as f64) < most;
        below && used + coming < capacity
    }

    /// Whether a memory segment of a node that has the object on SSD has room for it, or would keep it longer than
    /// something that it holds. Policies advance their time when they are asked; nothing else changes.
    fn memory_would_keep(&mut self, now: Instant, id: ObjectId) -> bool {
        let object = self.catalog.object(id);
        let link = Link {
            hash: object.hash,
            slot: None,
            bytes: object.bytes,
        };
        self.sources(id).into_iter().any(|(source, node)| {
            let record = *self.catalog.replica(source);
            let below = &self.segments.at(record.segment).policy;
            let standing = below.standing(now, Slot(record.slot));
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
        })
    }

    /// Requests the other members of an object's group, as a part of a block is of no use without the others. A retry
    /// passes on how often it was tried: members that push each other out of a short queue would otherwise be tried
    /// for ever.
    pub(super) fn request_group(
        &mut self,
        now: Instant,
        id: ObjectId,
        heat: u8,
        tried: Option<Tried>,
        reader: Option<&str>,
    ) {
        let object = self.catalog.object(id);
        if !object.is(Mark::Group) {
            return;
        }
        let members = self.groups.members(object.tenant, id);
        let others = members
            .filter(|member| *member != id)
            .take(GROUP_REQUESTED_MAX);
        for member in others.collect::<Vec<_>>() {
            let chain = ChainPlace::default();
            let request = PromotionRequest {
                object: member,
                heat,
                chain,
                earned: Earned::Before,
                reader,
            };
            let verdict = self.request_promotion(now, request, tried);
            if let Verdict::NoRoom(_) | Verdict::QueueFull = verdict {
                self.remember_again(now, member, chain, tried);
            }
        }
    }

    /// Evicts from a node's memory down to the low watermark, after a promotion was refused for lack of room.
    pub(super) fn make_room_for_promotion(&mut self, now: Instant, node: NodeId) {
        for index in self.segments.of_node(node) {
            let segment = self.segments.at(index);
            let low = self.marks(index).1;
            if segment.kind() == SegmentKind::Memory && segment.staying() > low {
                let wanted = segment.staying() - low;
                let mut budget = self.config.eviction.only_step();
                self.evict(now, index, wanted, Pass::Plain, &mut budget);
            }
        }
    }

    fn begin_promotion(
        &mut self,
        now: Instant,
        request: PromotionRequest<'_>,
        (source, node): (ReplicaId, NodeId),
        tried: Option<Tried>,
    ) {
        self.decided_to_promote(now, request, source);
        let ticket = self.numbers.ticket();
        let entry = self.entry(request.object);
        let object = self.catalog.object_mut(request.object);
        object.mark(Mark::Promotion);
        let promoting = Promoting {
            object: request.object,
            entry,
            bytes: object.bytes,
            tenant: object.tenant,
            source,
            node,
            heat: request.heat,
            chain: request.chain,
            stage: Stage::Queued,
            tried,
        };
        self.hold(source);
        self.promotions.add(ticket, promoting);
        self.due
            .set(Due::Promotion(ticket), now + self.config.promotion.window);
        self.metrics.promotion.admitted += 1;
        self.metrics.promotion.in_flight += 1;
    }

    pub(super) fn decided_to_promote(
        &mut self,
        now: Instant,
        request: PromotionRequest<'_>,
        source: ReplicaId,
    ) {
        let cause = match request.earned {
            Earned::ByHeat => PromotionCause::Reads(request.heat),
            Earned::ByIndex { .. } => PromotionCause::Worth,
            Earned::Before => PromotionCause::Earlier,
        };
        self.decided(now, source, Kind::Promotion, Choice::Promoted(cause));
    }
}

/// The gate that a verdict names, as people are told.
fn refusal(verdict: Verdict, request: PromotionRequest<'_>) -> Option<PromotionRefusal> {
    match verdict {
        Verdict::Unearned => Some(match request.earned {
            Earned::ByIndex { .. } => PromotionRefusal::NotWorth,
            Earned::ByHeat | Earned::Before => PromotionRefusal::Reads(request.heat),
        }),
        Verdict::NoRoom(_) => Some(PromotionRefusal::Watermark),
        Verdict::QueueFull => Some(PromotionRefusal::Busy),
        Verdict::Off
        | Verdict::Gone
        | Verdict::Ineligible
        | Verdict::InFlight
        | Verdict::Admit(..)
        | Verdict::Bring(..) => None,
    }
}
