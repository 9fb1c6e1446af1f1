//! What is announced ahead of its turn, because somebody waits for it.

use std::collections::{BTreeMap, BTreeSet};

use slackwater_base::{Instant, KeyHash};
use slackwater_wire::{Key, ObjectName, Report, Tenant};

use super::inventory::{Announcing, Disk, Held, Inventory, Memory, Place};
use super::{Agent, AgentOutput};
use crate::format::{name_of, named};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// From the first time that something is asked for until all of memory is announced.
    places: Option<Places>,
    extents: BTreeSet<Place>,
    records: BTreeSet<KeyHash>,
}

/// The places of memory by the names of what is there: without it each message would be a walk over all values. Made in one
/// go while somebody waits, so it touches as little memory as it can.
#[derive(Debug)]
struct Places {
    /// For the low bits of a name's hash, one more than the number of the last place of it; zero for none.
    last: Vec<u32>,
    places: Vec<Named>,
}

/// A place, by its number.
#[derive(Clone, Copy, Debug)]
struct Named {
    place: Place,
    /// Other bits of its name's hash.
    high: u32,
    /// What [`Places::last`] says of the place before it.
    before: u32,
}

/// Extents, and records, that may wait. Of more each has its turn.
const ASKED_MAX: usize = 16_384;

/// Places that are looked at for one name. Only names that were made for it have so many of one hash.
const ALIKE_MAX: usize = 64;

impl Agent {
    /// Has these keys announced ahead of their turn, as far as they are here and it has not come.
    pub fn announce_first<'a>(&mut self, names: impl IntoIterator<Item = &'a ObjectName>) {
        let Inventory {
            memory,
            names: records,
            announcing,
            ..
        } = &mut self.inventory;
        let Some(Announcing {
            memory: said,
            disk,
            asked,
        }) = announcing
        else {
            return;
        };
        if matches!(said, Memory::Behind(_)) {
            asked.places.get_or_insert_with(|| Places::of(memory));
        }
        for (tenant, key) in names {
            let name = named(tenant, key);
            let found = |places: &Places| places.newest(memory, name, (tenant, key));
            let place = asked.places.as_ref().and_then(found);
            if let Some(place) = place.filter(|place| said.is_to_come(*place))
                && asked.extents.len() < ASKED_MAX
            {
                asked.extents.insert(place);
            }
            if records.contains_key(&name)
                && disk.is_to_come(name)
                && asked.records.len() < ASKED_MAX
            {
                asked.records.insert(name);
            }
        }
    }

    /// Reports what was asked for; false when there is nothing of it that can be said now. Of records nothing is said before
    /// all of them could be.
    pub(super) fn announce_asked(&mut self, now: Instant, out: &mut Vec<AgentOutput>) -> bool {
        let Inventory {
            memory, announcing, ..
        } = &mut self.inventory;
        let Some(Announcing { disk, asked, .. }) = announcing else {
            return false;
        };
        if let Some((segment, _)) = asked.extents.first().copied() {
            let of_one = |place: &Place| place.0 == segment;
            let mut entries = Vec::new();
            while entries.len() < self.config.announce_extents_max
                && let Some(place) = asked.extents.first().copied().filter(of_one)
            {
                asked.extents.remove(&place);
                // It may have died since it was asked for.
                let held = memory.get(&place);
                entries.extend(held.map(|held| held.announced(now)));
            }
            let report = (!entries.is_empty()).then_some(Report::Holds {
                segment,
                entries,
                ahead: true,
            });
            out.extend(report.map(AgentOutput::Report));
            return true;
        }
        let Some(log) = self
            .log
            .as_ref()
            .filter(|_| matches!(disk, Disk::Behind(_)))
        else {
            return false;
        };
        let (segment, most) = (log.segment(), log.announced_at_once());
        let mut names = Vec::new();
        while names.len() < most
            && let Some(name) = asked.records.pop_first()
        {
            names.push(name);
        }
        let entries = names.iter().filter_map(|name| {
            let called = self.inventory.names.get(name)?;
            self.record_announced(*name, called)
        });
        let entries: Vec<_> = entries.collect();
        let report = (!entries.is_empty()).then_some(Report::Announce { segment, entries });
        out.extend(report.map(AgentOutput::Report));
        !names.is_empty()
    }
}

impl Asked {
    /// All of memory is announced.
    pub(super) fn end_of_memory(&mut self) {
        self.places = None;
    }
}

impl Places {
    fn of(memory: &BTreeMap<Place, Held>) -> Self {
        let mut all = Self {
            last: vec![0; memory.len().next_power_of_two()],
            places: Vec::with_capacity(memory.len()),
        };
        for (place, held) in memory {
            let name = name_of(held.entry());
            let last = all.last_of(name);
            let number = all.places.len() as u32 + 1;
            let before = std::mem::replace(&mut all.last[last], number);
            all.places.push(Named {
                place: *place,
                high: high_of(name),
                before,
            });
        }
        all
    }

    fn last_of(&self, name: KeyHash) -> usize {
        name.low64() as usize & (self.last.len() - 1)
    }

    /// Where the newest value of a name is.
    fn newest(
        &self,
        memory: &BTreeMap<Place, Held>,
        name: KeyHash,
        (tenant, key): (&Tenant, &Key),
    ) -> Option<Place> {
        let mut next = self.last[self.last_of(name)];
        let places = std::iter::from_fn(|| {
            let named = *self.places.get((next as usize).checked_sub(1)?)?;
            next = named.before;
            Some(named)
        });
        let places = places.take(ALIKE_MAX);
        let places = places
            .filter(|it| it.high == high_of(name))
            .map(|it| it.place);
        let values = places.filter_map(|place| Some((place, memory.get(&place)?.entry())));
        let of_name = values.filter(|(_, it)| (&it.tenant, &it.key) == (tenant, key));
        let newest = of_name.max_by_key(|(_, it)| it.version);
        newest.map(|(place, _)| place)
    }
}

fn high_of(name: KeyHash) -> u32 {
    (name.low64() >> 32) as u32
}
