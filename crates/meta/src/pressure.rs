//! Eviction from full segments: which replicas are evicted, and which may not be.

use slackwater_base::Instant;
use slackwater_wire::{Presence, ReplicaState, SegmentKind};

use crate::catalog::{Excluded, Mark, PinKind, Replica, ReplicaId, SegmentIndex};
use crate::config::{OffloadMode, SoftPinned};
use crate::evict::Slot;
use crate::lease::{GroupKey, Unfinished};
use crate::master::{Due, Master};
use crate::offload::{Cause, OffloadStart};
use crate::prospect;
use crate::release::Reason;
use crate::tenant::Ledger;

/// Whether a replica may be evicted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evictable {
    Now,
    NotBefore(Instant),
    /// Until the pin ends, only when nothing else can be evicted.
    SoftPinned(Instant),
    /// Not while it is referenced.
    Held,
}

/// Which replicas an eviction may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Those without a soft pin.
    Plain,
    /// Soft-pinned ones too, when there are no others.
    Last,
}

/// The outcome of an attempt to evict one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evicted {
    /// This many bytes are free, or will be without further action.
    Bytes(u64),
    /// Nothing can be evicted until something under way has ended.
    Stalled,
}

impl Master {
    /// Evicts from a segment over its high watermark until it is under the low one, in bounded steps.
    pub(crate) fn relieve(&mut self, now: Instant, index: SegmentIndex) {
        if self.segments.is_announcing(index) {
            return;
        }
        let (high, low) = self.marks(index);
        let pressure = self
            .segments
            .at(index)
            .disk()
            .map_or(0, |disk| disk.pressure);
        let staying = self.segments.at(index).staying();
        if staying <= high && pressure == 0 && !self.segments.at(index).relieving {
            return;
        }
        let mut budget = self.config.eviction.step;
        let wanted = staying.saturating_sub(low).max(pressure);
        let mut freed = self.evict(now, index, wanted, Pass::Plain, &mut budget);
        let staying = self.segments.at(index).staying();
        if freed < wanted && budget > 0 && staying > high {
            freed += self.evict(now, index, staying - high, Pass::Last, &mut budget);
        }
        let cut_short = budget == 0 && freed < wanted;
        let segment = self.segments.at_mut(index);
        segment.relieving = cut_short;
        if let Some(disk) = segment.disk_mut() {
            disk.pressure = disk.pressure.saturating_sub(freed);
        }
        if cut_short {
            self.due.set(Due::Relieve(index), now);
        }
    }

    /// Evicts at least `wanted` bytes from a segment, if that much may be evicted; returns how many were freed or are
    /// about to be.
    pub(crate) fn evict(
        &mut self,
        now: Instant,
        index: SegmentIndex,
        wanted: u64,
        pass: Pass,
        budget: &mut usize,
    ) -> u64 {
        let mut freed = 0;
        while freed < wanted && *budget > 0 {
            // Those that are in use are examined again the next time: counted, they could take every step for themselves.
            let Some(bytes) = self.evict_extra(now, index) else {
                break;
            };
            *budget -= 1;
            freed += bytes;
        }
        while freed < wanted && *budget > 0 {
            let segment = self.segments.at_mut(index);
            let id = match segment.policy.victim(now) {
                Some(slot) => segment.replica(slot),
                None => match self.soft_victim(index, pass) {
                    Some(id) => id,
                    None => break,
                },
            };
            *budget -= 1;
            if prospect::is(&self.catalog, index, id) {
                prospect::end(
                    &mut self.catalog,
                    &mut self.segments,
                    now,
                    id,
                    Reason::Evicted,
                );
                continue;
            }
            let evictable = self.evictable(now, id);
            match evictable {
                Evictable::Now => {}
                Evictable::SoftPinned(_)
                    if pass == Pass::Last
                        && self.catalog.replica(id).excluded == Excluded::Soft =>
                {
                    self.include(id);
                }
                other => {
                    self.set_aside(id, other);
                    continue;
                }
            }
            match self.evict_with_group(now, id, pass, budget) {
                Evicted::Bytes(bytes) => freed += bytes,
                Evicted::Stalled => {
                    // A soft-pinned replica stays set aside: a plain pass would spend its step on it and schedule
                    // another.
                    if let Evictable::SoftPinned(_) = evictable {
                        self.set_aside(id, evictable);
                    }
                    // The end of what it waits for resumes the eviction, so no further step is scheduled now.
                    *budget = (*budget).max(1);
                    break;
                }
            }
        }
        freed
    }

    /// The soft-pinned replica whose pin ends first, if soft-pinned ones may be evicted.
    fn soft_victim(&mut self, index: SegmentIndex, pass: Pass) -> Option<ReplicaId> {
        let allowed = pass == Pass::Last && self.config.eviction.soft_pinned == SoftPinned::Last;
        if allowed {
            self.segments.at(index).soft.first()
        } else {
            None
        }
    }

    /// Whether a published replica may be evicted now.
    pub(crate) fn evictable(&self, now: Instant, id: ReplicaId) -> Evictable {
        let replica = self.catalog.replica(id);
        let object = replica.object().expect("published replicas have an object");
        if replica.state != ReplicaState::Complete || replica.refs > 0 {
            return Evictable::Held;
        }
        if let Some(grace) = self
            .due
            .at(&Due::Include(id))
            .filter(|at| replica.excluded == Excluded::Held && *at > now)
        {
            return Evictable::NotBefore(grace);
        }
        let record = self.catalog.object(object);
        if record.is(Mark::Group) {
            let group = self.groups.key(record.tenant, object);
            return self.groups.evictable(group, now);
        }
        match record.pin {
            PinKind::Hard => Evictable::Held,
            _ if record.lease > now => Evictable::NotBefore(record.lease),
            PinKind::Soft => match self.soft_until.get(&object) {
                Some(until) if *until > now => Evictable::SoftPinned(*until),
                _ => Evictable::Now,
            },
            PinKind::None => Evictable::Now,
        }
    }

    /// Tells the policy not to name a replica until it may be evictable.
    pub(crate) fn set_aside(&mut self, id: ReplicaId, evictable: Evictable) {
        self.metrics.victims_excluded += 1;
        let replica = self.catalog.replica(id);
        let (slot, index, excluded) = (replica.slot, replica.segment, replica.excluded);
        if excluded == Excluded::No {
            self.segments.at_mut(index).policy.exclude(Slot(slot));
        } else {
            self.segments.at_mut(index).soft.cancel(id);
        }
        let reason = match evictable {
            Evictable::Now => unreachable!("a replica that may be evicted is not set aside"),
            Evictable::Held => {
                let object = replica.object().expect("published replicas have an object");
                let record = self.catalog.object(object);
                if record.is(Mark::Group) {
                    self.groups.set_aside(record.tenant, object, id);
                }
                Excluded::Held
            }
            Evictable::NotBefore(at) => {
                self.due.set(Due::Include(id), at);
                Excluded::Held
            }
            Evictable::SoftPinned(at) => {
                self.due.set(Due::Include(id), at);
                self.segments.at_mut(index).soft.set(id, at);
                Excluded::Soft
            }
        };
        self.catalog.replica_mut(id).excluded = reason;
    }

    pub(crate) fn include_due(&mut self, id: ReplicaId) {
        let index = self.catalog.replica(id).segment;
        self.include(id);
        self.unsettled.press(index);
    }

    /// Evicts a replica, and with it those of its group on the same kind of medium. Of a large group as many are
    /// evicted as one step allows, and the rest in later steps.
    pub(crate) fn evict_with_group(
        &mut self,
        now: Instant,
        id: ReplicaId,
        pass: Pass,
        budget: &mut usize,
    ) -> Evicted {
        let replica = self.catalog.replica(id);
        let object = replica.object().expect("published replicas have an object");
        let record = self.catalog.object(object);
        if !record.is(Mark::Group) {
            return self.evict_one(now, id);
        }
        let group = self.groups.key(record.tenant, object);
        let ledger = self.segments.at(replica.segment).ledger();
        self.evict_group(now, group, ledger, pass, budget)
    }

    /// Evicts the members of a group that one step allows, from where the step before ended.
    fn evict_group(
        &mut self,
        now: Instant,
        group: GroupKey,
        ledger: Ledger,
        pass: Pass,
        budget: &mut usize,
    ) -> Evicted {
        let begun = self.groups.unfinished(group, ledger);
        let mut after = begun.map(|begun| begun.after);
        let members = self
            .groups
            .members_after(group, after, self.config.eviction.step);
        *budget = budget.saturating_sub(members.len().saturating_sub(1));
        let (mut freed, mut stalled) = (0, false);
        for member in members {
            // Making room for one member's offload may have evicted the record of another, and with it the object.
            if self.groups.of(member) != Some(group.1) {
                continue;
            }
            // A replica that is leaving already frees nothing more: counted again, it would hide that the others wait.
            let of_kind = |(id, replica): (ReplicaId, &Replica)| {
                let stays = replica.excluded != Excluded::Leaving;
                (stays && self.segments.at(replica.segment).ledger() == ledger).then_some(id)
            };
            let ids: Vec<ReplicaId> = self.catalog.replicas(member).filter_map(of_kind).collect();
            for id in ids {
                match self.evict_one(now, id) {
                    Evicted::Bytes(bytes) => freed += bytes,
                    Evicted::Stalled => stalled = true,
                }
            }
            if !stalled {
                after = Some(member);
            }
        }
        // A member that stalls is tried again when what it waits for is reported, and not at once: it would stall again
        // without end.
        let is_more = !self.groups.members_after(group, after, 1).is_empty();
        let unfinished = after
            .filter(|_| is_more)
            .map(|after| Unfinished { after, pass });
        self.groups.set_unfinished(group, ledger, unfinished);
        if unfinished.is_some() && !stalled {
            self.due.set(Due::Group(group, ledger), now);
        }
        let nothing_to_do = begun.is_none() && unfinished.is_none();
        if freed == 0 && (stalled || nothing_to_do) {
            Evicted::Stalled
        } else {
            Evicted::Bytes(freed)
        }
    }

    /// The next step of a group's eviction, unless the group was leased or referenced meanwhile.
    pub(crate) fn go_on_evicting(&mut self, now: Instant, group: GroupKey, ledger: Ledger) {
        let Some(begun) = self.groups.unfinished(group, ledger) else {
            return;
        };
        let may_go = match self.groups.evictable(group, now) {
            Evictable::Now => true,
            Evictable::SoftPinned(_) => begun.pass == Pass::Last,
            Evictable::NotBefore(_) | Evictable::Held => false,
        };
        if may_go {
            let mut budget = self.config.eviction.step;
            self.evict_group(now, group, ledger, begun.pass, &mut budget);
            self.unsettled.room();
        } else {
            self.groups.set_unfinished(group, ledger, None);
        }
    }

    fn evict_one(&mut self, now: Instant, id: ReplicaId) -> Evicted {
        let in_memory =
            self.segments.at(self.catalog.replica(id).segment).kind() == SegmentKind::Memory;
        if in_memory && !self.is_clean(id) {
            return self.evict_dirty(now, id);
        }
        self.metrics.evictions_clean += u64::from(in_memory);
        self.evict_now(now, id)
    }

    /// Evicts the last memory copy of an object that is not on SSD.
    pub(crate) fn evict_dirty(&mut self, now: Instant, id: ReplicaId) -> Evicted {
        let mode = self.config.offload.mode;
        let start = match mode {
            OffloadMode::Off => OffloadStart::NoDisk,
            // In eager mode it was offered when its put ended, and refused.
            OffloadMode::Eager | OffloadMode::OnEvict | OffloadMode::OnEvictForced => {
                self.offload(now, id, Cause::Eviction)
            }
        };
        match (start, mode) {
            (OffloadStart::Queued(_), _) => Evicted::Bytes(self.mark_leaving(now, id)),
            // It remains the next victim; the report that makes room in the queue resumes the eviction.
            (OffloadStart::NotNow, OffloadMode::Eager | OffloadMode::OnEvict) => Evicted::Stalled,
            _ => self.evict_now(now, id),
        }
    }

    /// Whether an eviction may drop the replica at once, because its object has another copy that can be read. What is on a node
    /// without a link may be gone.
    pub(crate) fn is_clean(&self, id: ReplicaId) -> bool {
        let object = self
            .catalog
            .replica(id)
            .object()
            .expect("published replicas have an object");
        let others = self.catalog.replicas(object).filter(|(it, _)| *it != id);
        let mut segments = others.map(|(_, replica)| self.segments.at(replica.segment));
        segments.any(|segment| segment.presence == Presence::Here)
    }

    /// Frees a replica that may be evicted.
    pub(crate) fn evict_now(&mut self, now: Instant, id: ReplicaId) -> Evicted {
        self.decided_to_evict(now, id);
        let replica = *self.catalog.replica(id);
        let object = replica.object().expect("published replicas have an object");
        let bytes = match self.segments.at(replica.segment).kind() {
            SegmentKind::Memory => {
                let bytes = self
                    .segments
                    .at(replica.segment)
                    .extent(replica.piece)
                    .bytes;
                self.metrics.evictions += 1;
                self.metrics.eviction_bytes += bytes;
                bytes
            }
            SegmentKind::Disk => {
                let bytes = self.record_of(object);
                self.metrics.disk_evictions += 1;
                self.metrics.disk_eviction_bytes += bytes;
                let (hash, entry) = (self.catalog.object(object).hash, self.entry(object));
                // The log refuses the version that it was told to drop as long as the tombstone exists, and an object
                // that the SSD evicts is old in memory too.
                self.shed(hash, &entry);
                self.drop_record(replica.segment, hash, entry, None);
                bytes
            }
        };
        self.discard(now, id, Reason::Evicted);
        self.erase_if_empty(now, object);
        Evicted::Bytes(bytes)
    }
}
