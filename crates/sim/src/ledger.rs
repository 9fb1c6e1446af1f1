//! What the log of one node owes: a model of it in a map, told of every promise as it is made.

use std::collections::BTreeMap;

use slackwater_wire::DiskEntry;

use crate::check::{Checked, Invariant, Violation};

/// The promises of one node's log.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    records: BTreeMap<DiskEntry, Promise>,
    forgotten: u64,
}

/// What the node has said about one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It is being written: a crash may keep it or not.
    Writing,
    /// It was reported as durable, or announced: only an order or damage takes it away.
    Durable,
    /// It was reported as durable and came from memory in which a bit had flipped: a reader finds that out, or the next
    /// opening of the log.
    Flawed,
    /// It was ordered to go, or reported as lost: a crash may keep it or not.
    Dropping,
    /// It was reported as dropped: nothing brings it back.
    Dropped,
}

/// How far what a disk gives can be taken for what it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// All of it.
    Honest,
    /// Some of it could not be read, and the process was told: what it did not find is given up for good.
    Unread,
    /// It may have lost or spoilt something, and the log can see that.
    Damaged,
    /// It reported writes as done that it lost: nobody can see that.
    Lying,
}

impl Ledger {
    /// The node was ordered to write a record.
    pub fn ordered(&mut self, entry: &DiskEntry) {
        let promise = self
            .records
            .entry(entry.clone())
            .or_insert(Promise::Writing);
        if *promise == Promise::Dropped {
            // It was evicted from SSD and comes again: the same put, written anew.
            *promise = Promise::Writing;
        }
    }

    /// The node reported a record as durable.
    pub fn durable(&mut self, entry: &DiskEntry) {
        let promise = self
            .records
            .entry(entry.clone())
            .or_insert(Promise::Writing);
        if *promise == Promise::Writing {
            *promise = Promise::Durable;
        }
    }

    /// The node reported a record as durable whose source has a flipped bit.
    pub fn flawed(&mut self, entry: &DiskEntry) {
        let promise = self
            .records
            .entry(entry.clone())
            .or_insert(Promise::Writing);
        if *promise == Promise::Writing {
            *promise = Promise::Flawed;
        }
    }

    /// The node was ordered to drop a record, or reported that it is lost.
    pub fn dropping(&mut self, entry: &DiskEntry) {
        let promise = self
            .records
            .entry(entry.clone())
            .or_insert(Promise::Dropping);
        if *promise != Promise::Dropped {
            *promise = Promise::Dropping;
        }
    }

    /// The node reported that no crash can bring a record back.
    pub fn dropped(&mut self, entry: &DiskEntry) {
        self.records.insert(entry.clone(), Promise::Dropped);
    }

    /// What was promised about a record.
    #[must_use]
    pub fn promise(&self, entry: &DiskEntry) -> Option<Promise> {
        self.records.get(entry).copied()
    }

    /// The disk was replaced: every promise is void.
    pub fn void(&mut self) {
        self.forgotten += self.records.len() as u64;
        self.records.clear();
    }

    /// Whether this record must be there, and no newer one of its key stands for it.
    #[must_use]
    pub fn owes(&self, entry: &DiskEntry) -> bool {
        let newer = |other: &DiskEntry| {
            (&other.tenant, &other.key) == (&entry.tenant, &entry.key)
                && other.version > entry.version
        };
        self.promise(entry) == Some(Promise::Durable) && !self.records.keys().any(newer)
    }

    /// Records that must be there.
    pub fn owed(&self) -> impl Iterator<Item = &DiskEntry> {
        self.records
            .iter()
            .filter(|(_, promise)| **promise == Promise::Durable)
            .map(|(entry, _)| entry)
    }

    /// Judges what the log announces after it was opened, all of it. On an honest disk everything owed must be
    /// there; what was dropped must not be, unless the disk lies. From now on all of it is owed.
    ///
    /// # Errors
    /// The promise that is broken.
    pub fn judge(&mut self, announced: &[DiskEntry], trust: Trust) -> Checked {
        let mut seen = std::collections::BTreeSet::new();
        for entry in announced {
            if !seen.insert(entry) {
                return Err(Violation::new(
                    Invariant::BooksBalance,
                    format!("{entry:?} is announced twice"),
                ));
            }
            match self.promise(entry) {
                Some(Promise::Dropped) if trust != Trust::Lying => {
                    let what = format!("{entry:?} was reported as dropped and is announced");
                    return Err(Violation::new(Invariant::NoResurrection, what));
                }
                None if self.forgotten == 0 => {
                    let what = format!("{entry:?} is announced and nobody ordered it");
                    return Err(Violation::new(Invariant::NoWrongBytes, what));
                }
                _ => {}
            }
        }
        // The newest record of a key stands for all of them: the order to drop the older may not have come.
        let replaced = |entry: &DiskEntry| {
            let newer = |other: &&DiskEntry| {
                other.key == entry.key
                    && other.tenant == entry.tenant
                    && other.version > entry.version
            };
            announced.iter().any(|other| newer(&other))
        };
        if trust == Trust::Honest
            && let Some(missing) = self
                .owed()
                .find(|entry| !seen.contains(entry) && !replaced(entry))
        {
            let what =
                format!("{missing:?} was reported as durable and is not there after a restart");
            return Err(Violation::new(Invariant::Acknowledgement, what));
        }
        // Found records are owed, except those with wrong bytes: a read of one drops it.
        let found: Vec<(DiskEntry, Promise)> = announced
            .iter()
            .map(|entry| match self.promise(entry) {
                Some(Promise::Flawed) => (entry.clone(), Promise::Flawed),
                _ => (entry.clone(), Promise::Durable),
            })
            .collect();
        // What was not announced is gone for good, and nobody will have it removed.
        if matches!(trust, Trust::Honest | Trust::Unread) {
            self.records
                .retain(|_, promise| *promise == Promise::Dropped);
        }
        for promise in self
            .records
            .values_mut()
            .filter(|promise| **promise != Promise::Dropped)
        {
            *promise = Promise::Writing;
        }
        self.records.extend(found);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use slackwater_wire::{Key, Tenant, Version};

    use super::*;

    fn entry(version: u64) -> DiskEntry {
        DiskEntry {
            tenant: Tenant::DEFAULT,
            key: Key::try_from("k").unwrap(),
            version: Version(version),
        }
    }

    #[test]
    fn what_is_durable_is_owed_until_it_is_ordered_away() {
        let mut ledger = Ledger::default();
        ledger.ordered(&entry(1));
        assert_eq!(ledger.judge(&[], Trust::Honest), Ok(()));
        ledger.ordered(&entry(1));
        ledger.durable(&entry(1));
        assert_eq!(
            ledger
                .clone()
                .judge(&[], Trust::Honest)
                .unwrap_err()
                .invariant,
            Invariant::Acknowledgement
        );
        assert_eq!(
            ledger.clone().judge(&[], Trust::Damaged),
            Ok(()),
            "a rotten disk owes nothing"
        );
        ledger.dropping(&entry(1));
        assert_eq!(ledger.clone().judge(&[], Trust::Honest), Ok(()));
        assert_eq!(ledger.judge(&[entry(1)], Trust::Honest), Ok(()));
        assert_eq!(
            ledger.promise(&entry(1)),
            Some(Promise::Durable),
            "announced, so owed again"
        );
    }

    /// A value was written from memory in which a bit had flipped. The log was opened and announced it, and took it for
    /// lost when it was read; the next opening was then held to have forgotten a durable record (seed 55710).
    #[test]
    fn a_value_that_was_written_wrong_is_not_owed_because_it_was_announced() {
        let mut ledger = Ledger::default();
        ledger.ordered(&entry(1));
        ledger.flawed(&entry(1));
        assert_eq!(ledger.judge(&[entry(1)], Trust::Honest), Ok(()));
        assert_eq!(ledger.promise(&entry(1)), Some(Promise::Flawed));
        assert_eq!(ledger.judge(&[], Trust::Honest), Ok(()));
    }

    #[test]
    fn what_was_dropped_never_returns() {
        let mut ledger = Ledger::default();
        ledger.ordered(&entry(1));
        ledger.durable(&entry(1));
        ledger.dropped(&entry(1));
        assert_eq!(ledger.judge(&[], Trust::Honest), Ok(()));
        assert_eq!(
            ledger
                .judge(&[entry(1)], Trust::Damaged)
                .unwrap_err()
                .invariant,
            Invariant::NoResurrection
        );
    }

    #[test]
    fn unknown_and_repeated_entries_are_seen() {
        let mut ledger = Ledger::default();
        assert!(ledger.judge(&[entry(1)], Trust::Honest).is_err());
        ledger.ordered(&entry(1));
        assert!(ledger.judge(&[entry(1), entry(1)], Trust::Honest).is_err());
    }
}
