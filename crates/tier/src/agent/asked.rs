//! What is announced ahead of its turn, because somebody waits for it.

use std::collections::{BTreeMap, BTreeSet};

use slackwater_base::{Instant, KeyHash, Map};
use slackwater_wire::{Key, Report, Tenant};

use super::inventory::{Announcing, Disk, Held, Inventory, Memory, Place};
use super::{Agent, AgentOutput};
use crate::format::{name_of, named};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Where the newest value of each name was when something was asked for the first time: until all of memory is
    /// announced. Without it each message would be a walk over all values.
    places: Option<Map<KeyHash, Place>>,
    extents: BTreeSet<Place>,
    records: BTreeSet<KeyHash>,
}

/// Extents, and records, that may wait. Of more each has its turn.
const ASKED_MAX: usize = 16_384;

impl Agent {
    /// Has these keys announced ahead of their turn, as far as they are here and it has not come.
    pub fn announce_first<'a>(&mut self, names: impl IntoIterator<Item = &'a (Tenant, Key)>) {
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
        match said {
            Memory::Behind(_) => _ = asked.places.get_or_insert_with(|| places_of(memory)),
            Memory::Draining | Memory::Done => asked.places = None,
        }
        for (tenant, key) in names {
            let name = named(tenant, key);
            let place = asked.places.as_ref().and_then(|places| places.get(&name));
            if let Some(place) = place.copied().filter(|place| said.is_to_come(*place))
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

/// The newest value of each name in memory.
fn places_of(memory: &BTreeMap<Place, Held>) -> Map<KeyHash, Place> {
    let mut places: Map<KeyHash, Place> = Map::default();
    places.reserve(memory.len());
    for (place, held) in memory {
        let name = name_of(held.entry());
        let Some(other) = places.insert(name, *place) else {
            continue;
        };
        let is_newer = |other: &Held| other.entry().version > held.entry().version;
        if memory.get(&other).is_some_and(is_newer) {
            places.insert(name, other);
        }
    }
    places
}
