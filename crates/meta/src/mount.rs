//! Mounting of segments, and the loss of nodes: a node lends all that it lends in one life, and leaves as a whole.

use slackwater_base::{Instant, Planted, planted};
use slackwater_wire::{
    DiskEntry, ErrorCode, Mount, NodeId, Presence, Reply, SegmentKind, Watermarks,
};

use crate::catalog::{ReplicaId, SegmentIndex};
use crate::master::{Due, Master};
use crate::prospect;
use crate::release::Reason;
use crate::segment::{SEGMENT_BYTES_MAX, Segment};

impl Master {
    pub(crate) fn mount(&mut self, now: Instant, mount: &Mount) -> Reply {
        if let Some(index) = self.segments.find(mount.segment) {
            let mounted = self.segments.at(index);
            if mounted.node != mount.node || mounted.incarnation == mount.incarnation {
                return Reply::Failed(ErrorCode::SegmentAlreadyExists);
            }
        }
        let lives = self.segments.life_of(mount.node);
        if lives.is_some_and(|life| life != mount.incarnation) {
            // The node restarted before its loss was noticed: all that it had lent is gone.
            self.node_lost(now, mount.node);
        }
        let granule = self.config.granule;
        let granules = mount.bytes / granule;
        let sound = match mount.kind {
            SegmentKind::Memory => granules > 0 && granules < u64::from(u32::MAX),
            SegmentKind::Disk => mount.bytes > 0 && self.segments.disk_of(mount.node).is_none(),
        };
        let marks_are_sound = mount.watermarks.is_none_or(Watermarks::are_sound);
        if !sound || !marks_are_sound || mount.bytes > SEGMENT_BYTES_MAX {
            return Reply::Failed(ErrorCode::InvalidParams);
        }
        if self.segments.len() >= self.config.limits.segments {
            return Reply::Failed(ErrorCode::TaskPendingLimitExceeded);
        }
        let mut policy = self.config.eviction.policy.build(mount.bytes);
        policy.set_block_tokens(self.config.eviction.block_tokens);
        if mount.kind == SegmentKind::Disk || mount.generations.is_some() {
            let newest = self.numbers.newest_version();
            self.owed.begin(mount.node, mount.kind, newest);
            self.owe_pending_drops();
        }
        // Of a node beyond the limit nothing is known: noted, it would be believed by the next master.
        if self.owed.has(mount.node) {
            self.notes.met(mount.node, mount.kind == SegmentKind::Disk);
        }
        self.show(mount.node);
        let generations = self.numbers.generations_above(mount.generations);
        let mut segment = Segment::new(mount, granule, generations, policy);
        segment.draining = self.drained_before(mount);
        self.segments.add(segment);
        self.drain_again(mount.segment, mount.incarnation);
        self.capacity_changed();
        self.unsettled.room();
        // It announces nothing where it is memory that goes with this master.
        self.settle_owed(mount.node);
        Reply::Done
    }

    pub(crate) fn capacity_changed(&mut self) {
        let capacity = self.segments.capacity();
        self.tenants.rescale(capacity);
    }

    pub(crate) fn node_lost(&mut self, now: Instant, node: NodeId) {
        self.due.cancel(Due::Absence(node));
        self.lose_orders_of(now, node);
        for index in self.segments.of_node(node) {
            self.lose_segment(now, index);
        }
        self.lose_untaken(node, ErrorCode::ReplicaIsGone);
        self.outbox.forget_node(node);
        if self.notes.is_fleeting(node) {
            let until = now + self.config.absence.given_up_after;
            self.due.set(Due::Absence(node), until);
        }
    }

    /// The node has no link. Nothing new is placed there; after a while its replicas are hidden, and much later it is
    /// given up.
    pub(crate) fn node_away(&mut self, now: Instant, node: NodeId) {
        if !self.has_node(node) || self.due.at(&Due::Absence(node)).is_some() {
            return;
        }
        self.set_presence(node, Presence::Away);
        self.due
            .set(Due::Absence(node), now + self.config.absence.hidden_after);
    }

    /// The node has a link again, in the same life.
    pub(crate) fn node_back(&mut self, node: NodeId) {
        self.set_asked(node, false);
        if !planted(Planted::BackStaysAway) {
            self.show(node);
        }
        self.settle_owed(node);
    }

    fn show(&mut self, node: NodeId) {
        self.due.cancel(Due::Absence(node));
        self.set_presence(node, Presence::Here);
        self.resume_jobs();
    }

    /// A node has had no link for as long as is waited for it.
    pub(crate) fn absence_due(&mut self, now: Instant, node: NodeId) {
        let segments = self.segments.of_node(node);
        if segments.is_empty() {
            return self.stop_waiting_for(node);
        }
        let hidden = |index: &SegmentIndex| self.segments.at(*index).presence == Presence::Hidden;
        if segments.iter().any(hidden) {
            self.metrics.nodes_given_up += 1;
            return self.node_lost(now, node);
        }
        self.metrics.nodes_hidden += 1;
        self.set_presence(node, Presence::Hidden);
        self.resume_jobs();
        segments
            .into_iter()
            .for_each(|index| self.hide_drops(index));
        self.lose_untaken(node, ErrorCode::UnavailableInCurrentStatus);
        self.due
            .set(Due::Absence(node), now + self.config.absence.given_up_after);
    }

    /// Whether a node lends anything. Of one that was given up nothing is known any more.
    #[must_use]
    pub fn has_node(&self, node: NodeId) -> bool {
        self.segments.iter().any(|(_, it)| it.node == node)
    }

    /// The nodes that have the record of an object on SSD.
    #[must_use]
    pub fn nodes_with_record(&self, entry: &DiskEntry) -> Vec<NodeId> {
        let found = self.find(&entry.tenant, &entry.key);
        let found = found.filter(|id| self.catalog.object(*id).version == entry.version);
        let replicas = found.into_iter().flat_map(|id| self.catalog.replicas(id));
        let segments = replicas.map(|(_, replica)| self.segments.at(replica.segment));
        let disks = segments.filter(|segment| segment.disk().is_some());
        disks.map(|segment| segment.node).collect()
    }

    /// Whether there is an object of the put that a record names.
    #[must_use]
    pub fn has_version(&self, entry: &DiskEntry) -> bool {
        self.lives_on(self.tenants.hash_of(&entry.tenant, &entry.key), entry)
    }

    /// Removes a segment that is gone, with everything on it.
    fn lose_segment(&mut self, now: Instant, index: SegmentIndex) {
        let (id, node) = (self.segments.at(index).id, self.segments.at(index).node);
        self.begin_owing(index);
        let segment = self.segments.at_mut(index);
        // What it holds may come back with its node.
        segment.outlives = false;
        let given = segment.memory().map(|it| it.extents.next_generation());
        self.numbers.note_generation(given.unwrap_or(0));
        self.lose_promotions(now, index);
        if planted(Planted::LostOffloadsAreDropped) {
            self.lose_offloads(now, &[index]);
        }
        self.lose_copies(now, index);
        self.lose_open_puts(now, index);
        prospect::lose(&mut self.catalog, &mut self.segments, index);
        let lost: Vec<ReplicaId> =
            prospect::residents(&self.catalog, &self.segments, index).collect();
        let catalog = &self.catalog;
        self.guards
            .forget(|id| catalog.replica(id).segment == index);
        for id in lost {
            let replica = self.catalog.replica_mut(id);
            let needed = replica.is_needed();
            replica.refs = 0;
            if let Some(orphan) = self.orphans.remove(&id) {
                self.free(id, orphan.tenant, orphan.record);
                continue;
            }
            let object = self
                .catalog
                .replica(id)
                .object()
                .expect("published replicas have an object");
            if needed {
                self.unhold_group(now, object);
            }
            self.discard(now, id, Reason::Removed);
            self.lost_in_drain(index, object);
            if !self.catalog.object(object).has_replicas() {
                self.spare_drops(object);
            }
            self.erase_if_empty(now, object);
        }
        self.lose_drops(index);
        self.segments.take(index);
        if !self.has_node(node) {
            self.feed.forget(node);
        }
        self.outbox.forget_segment(id);
        self.due.cancel(Due::Relieve(index));
        self.unsettled.forget(index);
        self.unsettled.room();
        self.capacity_changed();
    }
}
