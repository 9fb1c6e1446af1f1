//! Promotion on hit: an object that is on SSD only and is read often gets a copy in memory, without delaying the read
//! that causes it.
//!
//! `admit` requests a promotion and applies the verdict of `plan_promotion`, which checks all gates; `run` sends,
//! stages and ends what was admitted; `bring` has a node of the reader's host take the value in place of the one that has
//! the record; `retry` requests again what was refused for lack of room. A promotion ends in
//! exactly one of four ways, each through [`Promotions::remove`], so that `admitted = completed + failed + cancelled +
//! expired + in flight` holds always.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use slackwater_base::{Instant, Map, Planted, Sketch, planted};
use slackwater_wire::{ChainPlace, DiskEntry, NodeId, TicketId};

use crate::budget::Budget;
use crate::catalog::{Catalog, ObjectId, ReplicaId, SegmentIndex, TenantIndex};
use crate::config::{OnHit, Promotion};

mod admit;
mod bring;
mod retry;
mod run;

use retry::{Candidates, Tried};

/// Promotions under way, and the state of admission.
pub(crate) struct Promotions {
    sketch: Option<Sketch>,
    tickets: Map<TicketId, Promoting>,
    of: Map<ObjectId, TicketId>,
    holders: BTreeMap<NodeId, Holder>,
    budget: Budget,
    candidates: Candidates,
}

/// One promotion in flight. The record that it reads is referenced until its end.
struct Promoting {
    object: ObjectId,
    entry: DiskEntry,
    /// Length of the value in bytes.
    bytes: u64,
    tenant: TenantIndex,
    source: ReplicaId,
    node: NodeId,
    /// Reads that the sketch counted at the last request.
    heat: u8,
    chain: ChainPlace,
    stage: Stage,
    /// The retries before its admission: a promotion that fails for lack of room continues their count.
    tried: Option<Tried>,
}

/// The progress of a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Admitted; the order is not sent to the node yet.
    Queued,
    /// The order is sent to the node.
    Sent,
    /// The node may write to this replica, and no other may be published.
    Staged(ReplicaId),
}

/// The promotions that a node works on, and those that wait for it: hottest first, then oldest.
#[derive(Debug, Default, PartialEq, Eq)]
struct Holder {
    queue: BTreeSet<(Reverse<u8>, TicketId)>,
    /// Slots in use: promotions sent or staged.
    active: usize,
    /// Bytes admitted and not yet staged.
    coming: u64,
}

/// How a promotion ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Completed,
    Failed,
    Cancelled,
    Expired,
}

/// The promotion that a node may be sent next.
enum Next {
    Task(TicketId),
    /// None before this time, because of the byte budget.
    NotBefore(Instant),
    Nothing,
}

impl Promotions {
    pub(crate) fn new(config: &Promotion) -> Self {
        let on = config.on_hit == OnHit::Promote;
        Self {
            sketch: on.then(|| Sketch::for_keys(config.sketch_keys)),
            tickets: Map::default(),
            of: Map::default(),
            holders: BTreeMap::new(),
            budget: Budget::new(config.bytes_per_second),
            candidates: Candidates::default(),
        }
    }

    /// The object is not a candidate any more; returns how many there are.
    pub(crate) fn forget_candidate(&mut self, id: ObjectId) -> usize {
        self.candidates.of.remove(&id);
        self.candidates.of.len()
    }

    pub(crate) fn sketch_bytes(&self) -> usize {
        self.sketch.as_ref().map_or(0, Sketch::bytes)
    }

    /// How often a key was read lately, without counting this as a read.
    fn heat_of(&self, hash: u64) -> u8 {
        self.sketch
            .as_ref()
            .map_or(0, |sketch| sketch.estimate(hash))
    }

    /// Promotions that a node works on or is to work on.
    fn load(&self, node: NodeId) -> usize {
        self.holders
            .get(&node)
            .map_or(0, |holder| holder.active + holder.queue.len())
    }

    /// Bytes admitted for a node's memory that have no extent yet.
    fn coming(&self, node: NodeId) -> u64 {
        self.holders.get(&node).map_or(0, |holder| holder.coming)
    }

    fn holder(&mut self, node: NodeId) -> &mut Holder {
        self.holders.entry(node).or_default()
    }

    fn at_mut(&mut self, ticket: TicketId) -> &mut Promoting {
        self.tickets.get_mut(&ticket).expect("the ticket is open")
    }

    /// The promotion of this ticket, if it is this node's.
    fn of_node(&self, node: NodeId, ticket: TicketId) -> Option<&Promoting> {
        let promoting = self.tickets.get(&ticket)?;
        (promoting.node == node).then_some(promoting)
    }

    fn add(&mut self, ticket: TicketId, promoting: Promoting) {
        let holder = self.holder(promoting.node);
        holder.queue.insert((Reverse(promoting.heat), ticket));
        holder.coming += promoting.bytes;
        self.of.insert(promoting.object, ticket);
        self.tickets.insert(ticket, promoting);
    }

    /// A promotion was requested again: if it waits, it moves up.
    fn reheat(&mut self, id: ObjectId, heat: u8) {
        // What is brought to its reader waits for nobody.
        let Some(ticket) = self.of.get(&id).copied() else {
            return;
        };
        let promoting = self.at_mut(ticket);
        let before = std::mem::replace(&mut promoting.heat, heat);
        let (node, stage) = (promoting.node, promoting.stage);
        if stage == Stage::Queued {
            let queue = &mut self.holder(node).queue;
            queue.remove(&(Reverse(before), ticket));
            queue.insert((Reverse(heat), ticket));
        }
    }

    /// Takes the hottest promotion that waits for a node, if the node has a free slot of `slots`.
    fn take_next(&mut self, now: Instant, node: NodeId, slots: usize) -> Next {
        let holder = self.holder(node);
        let first = holder.queue.first().copied();
        let Some((heat, ticket)) = first.filter(|_| holder.active < slots) else {
            return Next::Nothing;
        };
        let bytes = self.tickets[&ticket].bytes;
        if let Err(at) = self.budget.take(now, bytes) {
            return Next::NotBefore(at);
        }
        let holder = self.holder(node);
        holder.queue.remove(&(heat, ticket));
        holder.active += 1;
        self.at_mut(ticket).stage = Stage::Sent;
        Next::Task(ticket)
    }

    /// A sent promotion has its extent.
    fn stage(&mut self, ticket: TicketId, staged: ReplicaId) {
        let promoting = self.at_mut(ticket);
        promoting.stage = Stage::Staged(staged);
        let (node, bytes) = (promoting.node, promoting.bytes);
        self.holder(node).coming -= bytes;
    }

    /// The only exit: removes a promotion from all tables and frees its node's slot.
    fn remove(&mut self, ticket: TicketId, exit: Exit) -> Promoting {
        let promoting = self.tickets.remove(&ticket).expect("only open tickets end");
        self.of.remove(&promoting.object);
        let holder = self.holder(promoting.node);
        match promoting.stage {
            Stage::Queued => {
                holder.queue.remove(&(Reverse(promoting.heat), ticket));
                holder.coming -= promoting.bytes;
            }
            Stage::Sent => {
                if exit != Exit::Expired || !planted(Planted::ExpiredPromotionKeepsSlot) {
                    holder.active -= 1;
                }
                holder.coming -= promoting.bytes;
            }
            Stage::Staged(_) => holder.active -= 1,
        }
        promoting
    }

    /// Nodes for which promotions wait.
    fn waited_for(&self) -> Vec<NodeId> {
        let waiting = self.holders.iter();
        let waiting = waiting.filter(|(_, holder)| !holder.queue.is_empty());
        waiting.map(|(node, _)| *node).collect()
    }

    /// Promotions from or to a segment, in the order of their tickets.
    fn touching(&self, catalog: &Catalog, index: SegmentIndex) -> Vec<TicketId> {
        let on = |id: ReplicaId| catalog.replica(id).segment == index;
        let hit = |promoting: &Promoting| {
            on(promoting.source) || matches!(promoting.stage, Stage::Staged(staged) if on(staged))
        };
        let touching = self.tickets.iter().filter(|(_, it)| hit(it));
        let mut tickets: Vec<TicketId> = touching.map(|(ticket, _)| *ticket).collect();
        tickets.sort_unstable();
        tickets
    }

    /// The replica into which an object is being promoted.
    pub(crate) fn staged_of(&self, id: ObjectId) -> Option<ReplicaId> {
        match self.tickets[self.of.get(&id)?].stage {
            Stage::Staged(staged) => Some(staged),
            Stage::Queued | Stage::Sent => None,
        }
    }

    /// Promotions of an object that hold this replica.
    pub(crate) fn holding(&self, object: Option<ObjectId>, id: ReplicaId) -> usize {
        let ticket = object.and_then(|object| self.of.get(&object));
        usize::from(ticket.is_some_and(|ticket| self.tickets[ticket].source == id))
    }

    /// Recounts what each node works on and compares.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut counted: BTreeMap<NodeId, Holder> = BTreeMap::new();
        for (ticket, promoting) in &self.tickets {
            let holder = counted.entry(promoting.node).or_default();
            match promoting.stage {
                Stage::Queued => {
                    holder.queue.insert((Reverse(promoting.heat), *ticket));
                }
                Stage::Sent | Stage::Staged(_) => holder.active += 1,
            }
            if !matches!(promoting.stage, Stage::Staged(_)) {
                holder.coming += promoting.bytes;
            }
        }
        for (node, holder) in &self.holders {
            let counted = counted.remove(node).unwrap_or_default();
            if *holder != counted {
                return Err(format!("{node}: {holder:?}, but {counted:?} counted"));
            }
        }
        if counted.is_empty() {
            Ok(())
        } else {
            Err(format!("not listed: {counted:?}"))
        }
    }
}
