//! What becomes readable in a tier and what leaves it, for those who are told of it outside.
//!
//! It costs one comparison a replica while nobody is told. The owner takes what was told after each step, so that as much
//! waits here as one step brings.
//!
//! Readers who have lost what they were told are told anew what there is, object by object in the order of their numbers: a
//! number divides the objects whose turn has come, which are told of as they change, from the others, which are not. So
//! what readers know is at any time what can be read of the objects below that number, whatever changes in between, and
//! nothing is kept for it but the number. The same way they are told of a node whose replicas are hidden or shown again:
//! behind the number, objects are told of as if it had not happened yet.
//!
//! Readers who have missed something that is not kept for them are told of all objects once more, between what changes.
//! For the others this is no news.

use slackwater_wire::kv_events::{Held, KvEvent};
use slackwater_wire::{NodeId, Presence, SegmentKind};

use crate::catalog::{ObjectId, ReplicaId, SegmentIndex};
use crate::master::Master;

/// What was told and not taken yet, and how far readers have been told.
pub(crate) struct Feed {
    wanted: bool,
    told: Vec<KvEvent>,
    /// Objects from this number on have yet to be told of.
    below: u32,
    walks: Vec<Walk>,
    /// Objects from this number on have yet to be told of once more; none when all have been.
    repeats: Option<u32>,
}

/// A node whose replicas were hidden or are shown again, of which readers are being told.
#[derive(Clone, Copy)]
struct Walk {
    node: NodeId,
    /// What has become of its replicas.
    shown: bool,
    /// For objects from this number on, readers have yet to be told.
    below: u32,
}

/// No object has a number from this one on.
const ALL: u32 = u32::MAX;
/// Nodes of which readers are told one by one; when there are more, telling everything anew is less.
const WALKS_MAX: usize = 4;

impl Default for Feed {
    fn default() -> Self {
        Self {
            wanted: false,
            told: Vec::new(),
            below: ALL,
            walks: Vec::new(),
            repeats: None,
        }
    }
}

impl Feed {
    /// A node has no segment any more.
    pub(crate) fn forget(&mut self, node: NodeId) {
        self.walks.retain(|walk| walk.node != node);
    }
}

impl Master {
    /// Tells from now on what becomes readable in a tier and what leaves it, beginning with the news that nothing is held.
    /// What there is already is told by [`Self::tell_more`].
    pub fn tell_events(&mut self) {
        self.feed.wanted = true;
        self.feed.told.push(KvEvent::Cleared);
        self.tell_again();
    }

    /// Takes what was told since the last call, in order.
    pub fn take_events(&mut self) -> Vec<KvEvent> {
        std::mem::take(&mut self.feed.told)
    }

    /// Readers take for held nothing at all, because what they were told is lost or they were told so: from now on they are
    /// told of an object from its turn in [`Self::tell_more`] on.
    pub fn tell_again(&mut self) {
        self.feed.walks.clear();
        self.feed.repeats = None;
        self.feed.below = if self.catalog.len() == 0 { ALL } else { 0 };
    }

    /// Whether readers know less than there is, so that [`Self::tell_more`] is to be called.
    #[must_use]
    pub fn has_more_to_tell(&self) -> bool {
        let Feed { walks, repeats, .. } = &self.feed;
        self.feed.below != ALL || !walks.is_empty() || repeats.is_some()
    }

    /// Has [`Self::tell_more`] tell once more of all that readers were told is held.
    pub fn repeat_events(&mut self) {
        self.feed.repeats = (self.catalog.len() > 0).then_some(0);
    }

    /// Tells of the next objects: it looks at as many as `count`, and each brings up to two events.
    pub fn tell_more(&mut self, count: usize) {
        if self.feed.below != ALL {
            self.tell_held(count);
        } else if !self.feed.walks.is_empty() {
            self.go_on_walking(count);
        } else if let Some(from) = self.feed.repeats {
            self.go_on_repeating(from, count);
        }
    }

    /// A replica is about to become its object's.
    pub(crate) fn tell_stored(&mut self, object: ObjectId, id: ReplicaId) {
        if self.feed.wanted {
            self.tell(object, id, KvEvent::Stored);
        }
    }

    /// A replica is its object's no more.
    pub(crate) fn tell_removed(&mut self, object: ObjectId, id: ReplicaId) {
        if self.feed.wanted {
            self.tell(object, id, KvEvent::Removed);
        }
    }

    /// A removal of everything has looked at every object: where that left none, readers who missed something know again
    /// what there is.
    pub(crate) fn tell_if_cleared(&mut self) {
        if self.feed.wanted && self.catalog.len() == 0 {
            self.feed.told.push(KvEvent::Cleared);
            self.tell_again();
        }
    }

    /// Says how present a node is, of which readers are told where that hides what it holds or shows it again.
    pub(crate) fn set_presence(&mut self, node: NodeId, presence: Presence) {
        let was_shown = self.segments.is_shown(node);
        self.segments.set_presence(node, presence);
        // Puts that waited for room there look elsewhere.
        self.unsettled.room();
        let shown = self.segments.is_shown(node);
        // Where no object was told of yet, none is to be told of again.
        if !self.feed.wanted || was_shown == shown || self.feed.below == 0 {
            return;
        }
        let is_walked = self.feed.walks.iter().any(|walk| walk.node == node);
        if is_walked || self.feed.walks.len() == WALKS_MAX {
            self.feed.told.push(KvEvent::Cleared);
            return self.tell_again();
        }
        self.feed.walks.push(Walk {
            node,
            shown,
            below: 0,
        });
    }

    /// Tells of the only replica of an object in a tier.
    #[cold]
    fn tell(&mut self, object: ObjectId, id: ReplicaId, event: fn(Held) -> KvEvent) {
        let segment = self.catalog.replica(id).segment;
        if object.0 >= self.feed.below || !self.is_told(object, segment) {
            return;
        }
        let tier = self.segments.at(segment).kind();
        if !self.tiers_told(object)[usize::from(tier == SegmentKind::Disk)] {
            self.push(object, tier, event);
        }
    }

    /// Tells of objects whose turn has come.
    fn tell_held(&mut self, count: usize) {
        let (objects, next) = self.catalog.scan(self.feed.below, count);
        let there = objects.filter(|(_, object)| object.has_replicas());
        let there: Vec<ObjectId> = there.map(|(id, _)| id).collect();
        for object in there {
            self.tell_difference(object, [false; 2]);
        }
        self.feed.below = next.unwrap_or(ALL);
    }

    /// Tells of the next objects of a node whose replicas were hidden or are shown again.
    fn go_on_walking(&mut self, count: usize) {
        let Walk { node, below, .. } = self.feed.walks[0];
        let (objects, next) = self.catalog.scan(below, count);
        let is_there = |id: &ObjectId| {
            let mut replicas = self.catalog.replicas(*id);
            replicas.any(|(_, replica)| self.segments.at(replica.segment).node == node)
        };
        let there: Vec<ObjectId> = objects.map(|(id, _)| id).filter(is_there).collect();
        for object in there {
            let before = self.tiers_told(object);
            self.feed.walks[0].below = object.0 + 1;
            self.tell_difference(object, before);
        }
        match next {
            Some(next) => self.feed.walks[0].below = next,
            None => {
                self.feed.walks.remove(0);
            }
        }
    }

    /// Tells once more of the next objects.
    fn go_on_repeating(&mut self, from: u32, count: usize) {
        let (objects, next) = self.catalog.scan(from, count);
        let there = objects.filter(|(_, object)| object.has_replicas());
        let there: Vec<ObjectId> = there.map(|(id, _)| id).collect();
        for object in there {
            let told = TIERS.into_iter().zip(self.tiers_told(object));
            for (tier, _) in told.filter(|(_, is_told)| *is_told) {
                self.push(object, tier, KvEvent::Repeated);
            }
        }
        self.feed.repeats = next;
    }

    /// Tells in which tiers readers take an object for held from now on, who took it for held in those of `before`.
    fn tell_difference(&mut self, object: ObjectId, before: [bool; 2]) {
        let now = self.tiers_told(object);
        for (at, tier) in TIERS.into_iter().enumerate() {
            match (before[at], now[at]) {
                (false, true) => self.push(object, tier, KvEvent::Stored),
                (true, false) => self.push(object, tier, KvEvent::Removed),
                _ => {}
            }
        }
    }

    /// The tiers that readers are told to hold an object whose turn has come: memory, SSD.
    fn tiers_told(&self, object: ObjectId) -> [bool; 2] {
        let mut told = [false; 2];
        for (_, replica) in self.catalog.replicas(object) {
            let disk = self.segments.at(replica.segment).kind() == SegmentKind::Disk;
            told[usize::from(disk)] |= self.is_told(object, replica.segment);
        }
        told
    }

    /// Whether readers are told of an object's replica on a segment, where the object's turn has come.
    fn is_told(&self, object: ObjectId, segment: SegmentIndex) -> bool {
        let segment = self.segments.at(segment);
        let mut walks = self.feed.walks.iter();
        match walks.find(|walk| walk.node == segment.node) {
            Some(walk) => walk.shown == (object.0 < walk.below),
            None => segment.presence != Presence::Hidden,
        }
    }

    fn push(&mut self, object: ObjectId, tier: SegmentKind, event: fn(Held) -> KvEvent) {
        let record = self.catalog.object(object);
        let held = Held {
            tenant: self.tenants.at(record.tenant).tenant.clone(),
            key: record.key.clone(),
            tier,
        };
        self.feed.told.push(event(held));
    }
}

/// In the order of what is said of both.
const TIERS: [SegmentKind; 2] = [SegmentKind::Memory, SegmentKind::Disk];
