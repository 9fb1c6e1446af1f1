//! What a node that outlives its master holds, so that the next master learns it.
//!
//! Of memory this is what the master has said; of the log, the keys, which its index does not have. Both are announced in
//! parts, when the shell has room for them. Memory is announced at once, and counts as announced when nothing that nobody
//! published is accessed any more. The log is announced when everything that an earlier master ordered is durable or over:
//! what is removed from then on is either announced or gone for good.
//!
//! What somebody waits for is announced ahead of its turn, and once more in its turn.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use slackwater_base::{Instant, KeyHash, Planted, planted};
use slackwater_wire::{
    DiskEntry, ExtentRef, Key, Pin, Published, Report, ReportedEntry, SegmentId, Tenant, TicketId,
};

use super::asked::Asked;
use super::{Agent, AgentOutput};
use crate::format::name_of;

/// Flushes of the agent itself have numbers from here on.
pub(super) const OWN_FLUSH: u64 = 1 << 63;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    pub(super) memory: BTreeMap<Place, Held>,
    pub(super) names: BTreeMap<KeyHash, (Tenant, Key)>,
    /// The highest generation that any extent was seen to have.
    generation: u64,
    pub(super) announcing: Option<Announcing>,
    /// Offloads that an earlier master ordered.
    orphaned: BTreeMap<TicketId, DiskEntry>,
    /// What the device may hold of them or not, and no master would have dropped.
    doubtful: Vec<DiskEntry>,
    flushes: u64,
}

/// The segment and first byte of an extent.
pub(super) type Place = (SegmentId, u64);

#[derive(Debug)]
pub(super) struct Held {
    published: Published,
    /// The end of its soft pin.
    soft_until: Instant,
}

#[derive(Debug)]
pub(super) struct Announcing {
    pub(super) memory: Memory,
    pub(super) disk: Disk,
    pub(super) asked: Asked,
}

/// How far the announcement of memory is.
#[derive(Debug)]
pub(super) enum Memory {
    /// What lies behind this place is still to be announced.
    Behind(Option<Place>),
    /// All is said, and the end of accesses is awaited.
    Draining,
    Done,
}

/// How far the announcement of the log is.
#[derive(Debug)]
pub(super) enum Disk {
    /// Offloads of an earlier master are under way.
    Ending,
    /// This flush is under way.
    Flushing(u64),
    /// Records of names behind this one are still to be announced.
    Behind(Option<KeyHash>),
    Done,
}

impl Memory {
    /// Whether what lies there is still to be announced.
    pub(super) fn is_to_come(&self, place: Place) -> bool {
        match self {
            Self::Behind(said) => said.is_none_or(|said| said < place),
            Self::Draining | Self::Done => false,
        }
    }
}

impl Disk {
    /// Whether a record of this name is still to be announced.
    pub(super) fn is_to_come(&self, name: KeyHash) -> bool {
        match self {
            Self::Ending | Self::Flushing(_) => true,
            Self::Behind(said) => said.is_none_or(|said| said < name),
            Self::Done => false,
        }
    }
}

impl Held {
    pub(super) fn entry(&self) -> &DiskEntry {
        &self.published.entry
    }

    /// What is said of it now.
    pub(super) fn announced(&self, now: Instant) -> Published {
        let pin = match self.published.pin {
            Pin::Soft(_) => Pin::Soft(Some(now.until(self.soft_until))),
            pin => pin,
        };
        Published {
            pin,
            ..self.published.clone()
        }
    }
}

impl Inventory {
    /// These extents hold objects.
    pub(super) fn publish(&mut self, now: Instant, published: Published) {
        let soft_until = match published.pin {
            Pin::Soft(left) => now + left.unwrap_or_default(),
            Pin::None | Pin::Hard => Instant::ZERO,
        };
        let extent = published.extent;
        self.generation = self.generation.max(extent.generation);
        let held = Held {
            published,
            soft_until,
        };
        self.memory.insert((extent.segment, extent.offset), held);
    }

    /// An extent is dead, with all generations before it.
    pub(super) fn forget(&mut self, extent: &ExtentRef) {
        self.generation = self.generation.max(extent.generation);
        let place = (extent.segment, extent.offset);
        let held = self.memory.get(&place);
        let dead = held.is_some_and(|it| it.published.extent.generation <= extent.generation);
        if dead && !planted(Planted::FencedIsAnnounced) {
            self.memory.remove(&place);
        }
    }

    /// A segment is gone.
    pub(super) fn forget_segment(&mut self, segment: SegmentId) {
        self.memory.retain(|(of, _), _| *of != segment);
    }

    /// The log has a record of this object.
    pub(super) fn name(&mut self, entry: &DiskEntry) {
        let name = (entry.tenant.clone(), entry.key.clone());
        self.names.insert(name_of(entry), name);
    }

    /// An offload has ended; true when the master that ordered it is another one now.
    pub(super) fn end_orphan(&mut self, ticket: TicketId) -> Option<DiskEntry> {
        self.orphaned.remove(&ticket)
    }

    /// An earlier master's offload failed, and the device may hold the record or not.
    pub(super) fn doubt(&mut self, entry: DiskEntry) {
        self.doubtful.push(entry);
    }

    /// A flush of the agent itself has ended.
    pub(super) fn flushed(&mut self, number: u64) {
        if let Some(Announcing { disk, .. }) = &mut self.announcing
            && matches!(disk, Disk::Flushing(awaited) if *awaited == number)
        {
            *disk = Disk::Behind(None);
        }
    }

    fn memory_behind(&self, now: Instant, place: Option<Place>, most: usize) -> Vec<Published> {
        let from = place.map_or(Unbounded, Excluded);
        let mut behind = self.memory.range((from, Unbounded)).peekable();
        let segment = behind.peek().map(|((segment, _), _)| *segment);
        let of_one = behind.take_while(|((of, _), _)| Some(*of) == segment);
        let entries = of_one.take(most);
        entries.map(|(_, held)| held.announced(now)).collect()
    }
}

impl Agent {
    /// A master that knows nothing of this node is to be told what it holds, with [`Agent::announce`]. What an earlier
    /// master ordered and is not done yet is given up.
    pub fn begin_announcing(&mut self, now: Instant, out: &mut Vec<AgentOutput>) {
        for ticket in self.promotions.open() {
            self.cancel(now, ticket, out);
        }
        for (ticket, offload) in &self.offloads {
            self.inventory
                .orphaned
                .insert(*ticket, offload.entry.clone());
        }
        self.inventory.announcing = Some(Announcing {
            memory: Memory::Behind(None),
            disk: match self.log {
                Some(_) => Disk::Ending,
                None => Disk::Done,
            },
            asked: Asked::default(),
        });
        self.reported = None;
        self.with_log(out, |log, events| log.withdraw_all(events));
        self.settle(now, out);
    }

    /// The master that was being told does not know this node any more: what is left would reach the next one before
    /// [`Agent::begin_announcing`], and pass for its own.
    pub fn stop_announcing(&mut self) {
        if !planted(Planted::AnnouncementGoesOn) {
            self.inventory.announcing = None;
        }
    }

    /// Whether something is still to be announced.
    #[must_use]
    pub fn is_announcing(&self) -> bool {
        self.inventory.announcing.is_some()
    }

    /// Reports the next part of what is to be announced; false when there is nothing to be said now. `quiet` says that no
    /// other process accesses memory that nobody published.
    pub fn announce(&mut self, now: Instant, quiet: bool, out: &mut Vec<AgentOutput>) -> bool {
        if self.announce_asked(now, out) {
            return true;
        }
        let Some(announcing) = &mut self.inventory.announcing else {
            return false;
        };
        if let Memory::Behind(place) = announcing.memory {
            let most = self.config.announce_extents_max;
            let entries = self.inventory.memory_behind(now, place, most);
            let last = entries
                .last()
                .map(|it| (it.extent.segment, it.extent.offset));
            self.inventory.go_on_behind(last);
            if let Some((segment, _)) = last {
                out.push(AgentOutput::Report(Report::Holds {
                    segment,
                    entries,
                    ahead: false,
                }));
            }
            return true;
        }
        let drained = quiet && self.arena.writers() == 0;
        if matches!(announcing.memory, Memory::Draining) && drained {
            announcing.memory = Memory::Done;
            for segment in self.arena.segments() {
                let highest = Default::default();
                out.push(AgentOutput::Report(Report::Announced { segment, highest }));
            }
            return true;
        }
        let announced = match announcing.disk {
            Disk::Behind(name) => self.announce_records(name, out),
            Disk::Ending | Disk::Flushing(_) | Disk::Done => false,
        };
        let over =
            |it: &mut Announcing| matches!((&it.memory, &it.disk), (Memory::Done, Disk::Done));
        self.inventory.announcing.take_if(over);
        announced
    }

    fn announce_records(&mut self, behind: Option<KeyHash>, out: &mut Vec<AgentOutput>) -> bool {
        let Some(log) = &self.log else { return false };
        let from = behind.map_or(Unbounded, Excluded);
        let names = self.inventory.names.range((from, Unbounded));
        let part: Vec<_> = names.take(log.announced_at_once()).collect();
        let last = part.last().map(|(name, _)| **name);
        let entries = part.into_iter();
        let entries = entries.filter_map(|(name, called)| self.record_announced(*name, called));
        let entries: Vec<_> = entries.collect();
        let (segment, highest) = (log.segment(), log.highest_version());
        let report = match last {
            Some(_) if entries.is_empty() => None,
            Some(_) => Some(Report::Announce { segment, entries }),
            None => Some(Report::Announced { segment, highest }),
        };
        out.extend(report.map(AgentOutput::Report));
        if let Some(announcing) = &mut self.inventory.announcing {
            announcing.disk = last.map_or(Disk::Done, |last| Disk::Behind(Some(last)));
        }
        true
    }

    /// What is said of a record now; none when it is gone.
    pub(super) fn record_announced(
        &self,
        name: KeyHash,
        (tenant, key): &(Tenant, Key),
    ) -> Option<ReportedEntry> {
        let (version, bytes, checksum) = self.log.as_ref()?.newest_of(name)?;
        let (tenant, key) = (tenant.clone(), key.clone());
        Some(ReportedEntry {
            entry: DiskEntry {
                tenant,
                key,
                version,
            },
            bytes,
            checksum,
        })
    }

    /// Has what earlier masters ordered made durable as soon as it is over, before the log is announced. True when that gave
    /// the log something to do.
    #[must_use]
    pub(super) fn settle_announcing(&mut self, now: Instant, out: &mut Vec<AgentOutput>) -> bool {
        let doubtful = std::mem::take(&mut self.inventory.doubtful);
        let dropped = !doubtful.is_empty();
        self.with_log(out, |log, events| {
            let each = doubtful.into_iter();
            each.for_each(|entry| log.drop_entry(now, entry, events));
        });
        let Inventory {
            announcing,
            orphaned,
            flushes,
            ..
        } = &mut self.inventory;
        let Some(Announcing { disk, .. }) = announcing else {
            return dropped;
        };
        let is_open = self.log.as_ref().is_some_and(|log| log.is_open());
        if matches!(disk, Disk::Ending) && orphaned.is_empty() && is_open {
            *flushes += 1;
            let number = OWN_FLUSH + *flushes;
            *disk = Disk::Flushing(number);
            self.with_log(out, |log, events| log.flush(number, events));
            return true;
        }
        dropped
    }

    /// Keys whose records are gone are not remembered.
    pub(super) fn forget_names<'a>(&mut self, entries: impl IntoIterator<Item = &'a DiskEntry>) {
        let gone: BTreeSet<KeyHash> = entries.into_iter().map(name_of).collect();
        for name in gone {
            if self
                .log
                .as_ref()
                .is_none_or(|log| log.newest_of(name).is_none())
            {
                self.inventory.names.remove(&name);
            }
        }
    }

    /// The records of the log of a node that outlives its master, as they would be announced now.
    pub fn records(&self) -> impl Iterator<Item = ReportedEntry> {
        let names = self.inventory.names.iter();
        names.filter_map(|(name, called)| self.record_announced(*name, called))
    }

    /// The highest generation that any extent of the node was seen to have.
    #[must_use]
    pub fn highest_generation(&self) -> u64 {
        self.inventory.generation
    }

    /// The extents that hold objects, as the master said.
    pub fn published(&self) -> impl Iterator<Item = &ExtentRef> {
        self.inventory
            .memory
            .values()
            .map(|it| &it.published.extent)
    }
}

impl Inventory {
    fn go_on_behind(&mut self, last: Option<Place>) {
        if let Some(announcing) = &mut self.announcing {
            announcing.memory = match last {
                Some(place) => Memory::Behind(Some(place)),
                None => {
                    announcing.asked.end_of_memory();
                    Memory::Draining
                }
            };
        }
    }
}
