use std::collections::BTreeMap;

use serde::Serialize;
use slackwater_base::Instant;
use slackwater_wire::{QuotaState, ReplicaState, SegmentId, SegmentKind};
use thiserror::Error;

use crate::catalog::{Excluded, PinKind, Replica, ReplicaId, TenantIndex};
use crate::evict::RestoreError;
use crate::jobs::Whose;
use crate::master::Master;
use crate::metrics::{OffloadMetrics, PromotionMetrics, ReplicationMetrics};
use crate::prospect;
use crate::segment::Medium;
use crate::tenant::Ledger;

/// What a master holds, to be compared with nodes and metrics.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Books {
    /// Objects, including those being put for the first time.
    pub objects: u64,
    /// Replicas in any state.
    pub replicas: u64,
    /// Replicas without an object that are still referenced.
    pub orphans: u64,
    /// Puts in flight.
    pub open_puts: u64,
    /// Puts that wait for room.
    pub waiting_puts: u64,
    /// Guards that readers hold.
    pub guards: u64,
    /// Replies that wait until a crash cannot undo what they acknowledge.
    pub unanswered: u64,
    /// Records that nodes were told to drop and have not reported as dropped.
    pub drops: u64,
    /// Deadlines that are set.
    pub deadlines: u64,
    /// What each segment holds.
    pub segments: Vec<SegmentBooks>,
    /// What each tenant uses, and its quota.
    pub tenants: Vec<QuotaState>,
    /// Counters of offloads.
    pub offload: OffloadMetrics,
    /// Counters of promotions.
    pub promotion: PromotionMetrics,
}

/// Bytes of one segment: `capacity = free + live + quarantined` in memory; an SSD log has no quarantine, and `free`
/// is what its records leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentBooks {
    /// Its id.
    pub segment: SegmentId,
    /// Memory or SSD.
    pub kind: SegmentKind,
    /// Size in bytes.
    pub capacity: u64,
    /// Bytes that belong to no extent or record.
    pub free: u64,
    /// Bytes of replicas in any state, including those being written.
    pub live: u64,
    /// Bytes of freed extents that wait for their fence.
    pub quarantined: u64,
    /// Replicas in any state.
    pub replicas: u64,
}

/// Books that do not balance: a defect of the master.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the books do not balance: {0}")]
pub struct Imbalance(pub String);

impl Master {
    /// Number of objects, including those being put for the first time. Takes constant time, unlike [`Self::books`].
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.catalog.len() as u64
    }

    /// What the policy of each segment has learned; segments whose policy learns nothing are left out.
    #[must_use]
    pub fn learned(&self) -> Vec<(SegmentId, Vec<u8>)> {
        let saved = self
            .segments
            .iter()
            .map(|(_, segment)| (segment.id, segment.policy.save()));
        saved.filter(|(_, bytes)| !bytes.is_empty()).collect()
    }

    /// Gives a mounted segment's policy what [`Self::learned`] returned for it before a restart.
    ///
    /// # Errors
    /// If the bytes are damaged or of another policy; the policy then starts fresh. For a segment that is not mounted
    /// nothing is done.
    pub fn restore_learned(
        &mut self,
        segment: SegmentId,
        bytes: &[u8],
    ) -> Result<(), RestoreError> {
        match self.segments.find(segment) {
            Some(index) => (self.segments).tell_policy(index, |policy| policy.restore(bytes)),
            None => Ok(()),
        }
    }

    /// What the master holds now.
    #[must_use]
    pub fn books(&self) -> Books {
        let segments = self.segments.iter().map(|(index, segment)| {
            let (free, quarantined) = match &segment.medium {
                Medium::Memory(memory) => (
                    memory.extents.books().free,
                    memory.extents.books().quarantined,
                ),
                Medium::Disk(disk) => (disk.capacity.saturating_sub(segment.used()), 0),
            };
            SegmentBooks {
                segment: segment.id,
                kind: segment.kind(),
                capacity: segment.capacity(),
                free,
                live: segment.used(),
                quarantined,
                replicas: prospect::residents(&self.catalog, &self.segments, index).count() as u64,
            }
        });
        Books {
            objects: self.catalog.len() as u64,
            replicas: self.catalog.replica_count() as u64,
            orphans: self.orphans.len() as u64,
            open_puts: self.puts.open.len() as u64,
            waiting_puts: self.queue.len() as u64,
            guards: self.guards.len() as u64,
            unanswered: self.acks.len() as u64,
            drops: self.drops.len() as u64,
            deadlines: self.due.len() as u64,
            segments: segments.collect(),
            tenants: self.tenants.states().collect(),
            offload: self.metrics.offload,
            promotion: self.metrics.promotion,
        }
    }

    /// Counts everything again from the catalog and compares. Takes time linear in the number of objects: for tests,
    /// the simulator, and operators who ask for it.
    ///
    /// # Errors
    /// Says which sum is wrong.
    pub fn check_books(&self) -> Result<Books, Imbalance> {
        let books = self.books();
        self.check_segments(&books)?;
        self.check_tenants()?;
        self.check_tickets(&books)?;
        self.check_groups()?;
        ensure(self.answers.balance(), || {
            "the answers that are kept are not those that are counted".to_owned()
        })?;
        ensure(self.queue.balance(), || {
            "the puts that wait are not those that are listed or counted".to_owned()
        })?;
        Ok(books)
    }

    /// Whether the put whose turn it is waits for room although there are values to evict and nothing is under way. Takes time
    /// linear in the number of objects, as above.
    ///
    /// # Errors
    /// Names a replica that could be evicted.
    pub fn check_waits(&self, now: Instant) -> Result<(), Imbalance> {
        match self.overlooked_room(now) {
            None => Ok(()),
            Some(id) => Err(Imbalance(format!(
                "a put waits for room and {id:?} is not evicted: {:?}",
                self.catalog.replica(id)
            ))),
        }
    }

    fn check_segments(&self, books: &Books) -> Result<(), Imbalance> {
        for (at, (index, segment)) in self.segments.iter().enumerate() {
            let mut bytes = 0;
            let mut leaving = 0;
            for id in segment.replicas() {
                let replica = self.catalog.replica(id);
                if prospect::is(&self.catalog, index, id) {
                    let above = self.segments.at(replica.segment).below == Some(index);
                    let named = replica
                        .prospect()
                        .is_some_and(|slot| segment.replica(slot) == id);
                    ensure(above && named, || {
                        format!("{id:?} is numbered in {}", segment.id)
                    })?;
                    continue;
                }
                bytes += self.bytes_of(id, replica);
                if replica.excluded == Excluded::Leaving {
                    leaving += segment.extent(replica.piece).bytes;
                }
            }
            let SegmentBooks {
                capacity,
                free,
                live,
                quarantined,
                ..
            } = books.segments[at];
            let reserved = segment.disk().map_or(0, |disk| disk.reserved);
            ensure(live == bytes + reserved, || {
                format!("{}: {live} live, {bytes} counted", segment.id)
            })?;
            ensure(segment.leaving == leaving, || {
                format!("{}: leaving {leaving}", segment.id)
            })?;
            let whole = segment.memory().is_none() || free + live + quarantined == capacity;
            ensure(whole, || {
                format!(
                    "{}: {free} + {live} + {quarantined} of {capacity}",
                    segment.id
                )
            })?;
        }
        Ok(())
    }

    /// What a replica takes where it is.
    fn bytes_of(&self, id: ReplicaId, replica: &Replica) -> u64 {
        match &self.segments.at(replica.segment).medium {
            Medium::Memory(memory) => memory.extents.held(replica.piece).bytes,
            Medium::Disk(_) => {
                let orphan = self.orphans.get(&id).map(|orphan| orphan.record);
                let object = replica.object().map(|object| self.record_of(object));
                object.or(orphan).unwrap_or(0)
            }
        }
    }

    fn check_tenants(&self) -> Result<(), Imbalance> {
        for index in self.tenants.indices() {
            let state = self.tenants.at(index);
            let objects = self
                .catalog
                .objects()
                .filter(|(_, object)| object.tenant == index)
                .count() as u64;
            ensure(state.objects == objects, || {
                format!("{}: {objects} objects counted", state.tenant)
            })?;
        }
        // What is in writing is charged to its tenant as well, and not counted here.
        let mut counted: BTreeMap<(TenantIndex, Ledger), u64> = BTreeMap::new();
        for (id, replica) in self.catalog.all_replicas() {
            let object = replica.object().map(|it| self.catalog.object(it).tenant);
            let orphan = self.orphans.get(&id).map(|orphan| orphan.tenant);
            if let Some(tenant) = object.or(orphan) {
                let ledger = self.segments.at(replica.segment).ledger();
                *counted.entry((tenant, ledger)).or_default() += self.bytes_of(id, replica);
            }
        }
        for ((tenant, ledger), bytes) in counted {
            let state = self.tenants.at(tenant);
            let used = state.used(ledger);
            ensure(used >= bytes, || {
                format!(
                    "{}: {used} charged, {bytes} used of {ledger:?}",
                    state.tenant
                )
            })?;
        }
        let used = |ledger| {
            self.tenants
                .indices()
                .map(|index| self.tenants.at(index).used(ledger))
                .sum::<u64>()
        };
        for (ledger, kind) in [
            (Ledger::Memory, SegmentKind::Memory),
            (Ledger::Disk, SegmentKind::Disk),
        ] {
            let of_kind = self
                .segments
                .iter()
                .filter(|(_, segment)| segment.kind() == kind);
            let live: u64 = of_kind.map(|(_, segment)| segment.used()).sum();
            ensure(used(ledger) == live, || {
                format!("{kind:?}: {live} used, {} charged", used(ledger))
            })?;
        }
        Ok(())
    }

    fn check_tickets(&self, books: &Books) -> Result<(), Imbalance> {
        let OffloadMetrics {
            started,
            completed,
            failed,
            cancelled,
            expired,
            in_flight,
            ..
        } = books.offload;
        ensure(
            started == completed + failed + cancelled + expired + in_flight,
            || format!("{:?}", books.offload),
        )?;
        let PromotionMetrics {
            admitted,
            completed,
            failed,
            cancelled,
            expired,
            in_flight,
            ..
        } = books.promotion;
        ensure(
            admitted == completed + failed + cancelled + expired + in_flight,
            || format!("{:?}", books.promotion),
        )?;
        let ReplicationMetrics {
            admitted,
            completed,
            failed,
            in_flight,
            ..
        } = self.metrics.replication;
        let copies = self.jobs.copies_of(Whose::Heat) as u64;
        ensure(
            admitted == completed + failed + in_flight && in_flight == copies,
            || format!("{copies} copies: {:?}", self.metrics.replication),
        )?;
        self.promotions.check().map_err(Imbalance)?;
        ensure(self.segments.are_policies_noted(), || {
            "a policy wants to run before anybody knows".to_owned()
        })?;
        ensure(self.jobs.balance(), || {
            "jobs count other copies than there are".to_owned()
        })?;
        for id in self.wishes.objects() {
            let known = self.catalog.is_object(id) && self.catalog.object(id).has_replicas();
            ensure(known, || format!("a wish for {id:?}, which has no value"))?;
        }
        for (id, replica) in self.catalog.all_replicas() {
            let orphan = self.orphans.contains_key(&id);
            let sound = match replica.state {
                ReplicaState::Processing => replica.object().is_none() && !orphan,
                ReplicaState::Complete => replica.object().is_some() && !orphan,
                ReplicaState::Removed => replica.object().is_none() && orphan && replica.refs > 0,
            };
            ensure(sound, || format!("{id:?}: {replica:?}"))?;
        }
        Ok(())
    }

    fn check_groups(&self) -> Result<(), Imbalance> {
        for (group, held, members) in self.groups.counts() {
            let of = |member| {
                let replicas = self
                    .catalog
                    .replicas(member)
                    .filter(|(_, replica)| replica.is_needed())
                    .count();
                replicas + usize::from(self.catalog.object(member).pin == PinKind::Hard)
            };
            let counted: usize = members.map(of).sum();
            ensure(held == counted, || {
                format!("{group:?}: {held} held, {counted} counted")
            })?;
        }
        Ok(())
    }

    /// Memory of the metadata itself, in bytes: table, objects, replicas, allocators, policies and the sketch of
    /// promotion, without the bytes of the keys.
    #[must_use]
    pub fn overhead_bytes(&self) -> usize {
        let segments: usize = self
            .segments
            .iter()
            .map(|(_, segment)| segment.overhead_bytes())
            .sum();
        self.catalog.overhead_bytes()
            + segments
            + self.tenants.overhead_bytes()
            + self.promotions.sketch_bytes()
    }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Imbalance> {
    if holds {
        Ok(())
    } else {
        Err(Imbalance(what()))
    }
}
