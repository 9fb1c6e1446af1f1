//! The records that the log of one node must keep: a model of the log, updated with every report.

use std::collections::BTreeMap;

use slackwater_wire::DiskEntry;

use crate::check::{Checked, Invariant, Violation};

/// What one node's log has promised about its records.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    records: BTreeMap<DiskEntry, Promise>,
    forgotten: u64,
}

/// What the node has reported about one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It is being written: after a crash it may be there or not.
    Writing,
    /// It was reported as written: its reader finds it until the process ends, and a power cut may take it.
    Written,
    /// It was reported as durable, or announced: only an order or damage may remove it.
    Durable,
    /// It counts as there, but its bytes may be wrong: it was written from memory in which a bit had flipped, or it was
    /// never reported as durable and announced by an opening that could not read everything. A reader detects that, or
    /// the next opening of the log.
    Flawed,
    /// It was ordered to be dropped, or reported as lost: after a crash it may be there or not.
    Dropping,
    /// It was reported as dropped: it must never come back.
    Dropped,
}

/// How far a disk can be expected to return what was written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// It returned everything.
    Intact,
    /// Some reads ended in errors: what the process could not read is given up for good.
    Unread,
    /// It may have lost or damaged something in a way that the log can detect.
    Damaged,
    /// It lost writes that it had reported as done, which cannot be detected.
    LosesWrites,
}

impl Ledger {
    /// The node was ordered to write a record.
    pub fn ordered(&mut self, entry: &DiskEntry) {
        let promise = self
            .records
            .entry(entry.clone())
            .or_insert(Promise::Writing);
        if *promise == Promise::Dropped {
            // It was evicted from SSD and is offloaded again: the same put, written anew.
            *promise = Promise::Writing;
        }
    }

    /// The node reported a record as written, and promised no more.
    pub fn written(&mut self, entry: &DiskEntry) {
        let promise = self
            .records
            .entry(entry.clone())
            .or_insert(Promise::Writing);
        if *promise == Promise::Writing {
            *promise = Promise::Written;
        }
    }

    /// The records that were written and may be durable by now.
    pub fn unsynced(&self) -> Vec<DiskEntry> {
        let written = self
            .records
            .iter()
            .filter(|(_, promise)| **promise == Promise::Written);
        written.map(|(entry, _)| entry.clone()).collect()
    }

    /// Whether a reader must find the record while the process lives, and no newer one of its key.
    #[must_use]
    pub fn is_written(&self, entry: &DiskEntry) -> bool {
        self.promise(entry) == Some(Promise::Written) && !self.is_replaced(entry)
    }

    fn is_replaced(&self, entry: &DiskEntry) -> bool {
        let newer = |other: &DiskEntry| {
            (&other.tenant, &other.key) == (&entry.tenant, &entry.key)
                && other.version > entry.version
        };
        self.records.keys().any(newer)
    }

    /// The node reported a record as durable.
    pub fn durable(&mut self, entry: &DiskEntry) {
        let promise = self
            .records
            .entry(entry.clone())
            .or_insert(Promise::Writing);
        if matches!(*promise, Promise::Writing | Promise::Written) {
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

    /// Whether this record must be there: it is promised, and no newer one of its key is there in its place.
    #[must_use]
    pub fn owes(&self, entry: &DiskEntry) -> bool {
        self.promise(entry) == Some(Promise::Durable) && !self.is_replaced(entry)
    }

    /// Records that must be there.
    pub fn owed(&self) -> impl Iterator<Item = &DiskEntry> {
        self.records
            .iter()
            .filter(|(_, promise)| **promise == Promise::Durable)
            .map(|(entry, _)| entry)
    }

    /// Checks everything that the log announces after it was opened. On an intact disk every record that is owed must
    /// be there. A dropped record must not be, unless the disk loses writes. From now on all announced records are
    /// owed.
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
                Some(Promise::Dropped) if trust != Trust::LosesWrites => {
                    let what = format!("{entry:?} was reported as dropped and is announced");
                    return Err(Violation::new(Invariant::NoResurrection, what));
                }
                None if self.forgotten == 0 => {
                    let what = format!("{entry:?} is announced and was never ordered");
                    return Err(Violation::new(Invariant::NoWrongBytes, what));
                }
                _ => {}
            }
        }
        // The newest record of a key counts for all of them: the order to drop the older ones may not have arrived. That
        // one may be lost, if it was written and not synced: its tombstone makes the older ones dead as well.
        let replaced = |entry: &DiskEntry| {
            let newer = |other: &DiskEntry| {
                other.key == entry.key
                    && other.tenant == entry.tenant
                    && other.version > entry.version
            };
            let gone = |(other, promise): (&DiskEntry, &Promise)| {
                let written = matches!(
                    promise,
                    Promise::Written | Promise::Dropping | Promise::Dropped
                );
                written && newer(other)
            };
            announced.iter().any(newer) || self.records.iter().any(gone)
        };
        if trust == Trust::Intact
            && let Some(missing) = self
                .owed()
                .find(|entry| !seen.contains(entry) && !replaced(entry))
        {
            let what =
                format!("{missing:?} was reported as durable and is not there after a restart");
            return Err(Violation::new(Invariant::Acknowledgement, what));
        }
        // Found records are owed, except those that may have wrong bytes: a read of one drops it.
        let found: Vec<(DiskEntry, Promise)> = announced
            .iter()
            .map(|entry| {
                let flawed = match self.promise(entry) {
                    Some(Promise::Flawed) => true,
                    Some(Promise::Durable) => false,
                    _ => trust == Trust::Unread,
                };
                let promise = if flawed {
                    Promise::Flawed
                } else {
                    Promise::Durable
                };
                (entry.clone(), promise)
            })
            .collect();
        // What was not announced is gone for good, and the master will not order its removal.
        if matches!(trust, Trust::Intact | Trust::Unread) {
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
    fn a_durable_record_is_owed_until_its_drop_is_ordered() {
        let mut ledger = Ledger::default();
        ledger.ordered(&entry(1));
        assert_eq!(ledger.judge(&[], Trust::Intact), Ok(()));
        ledger.ordered(&entry(1));
        ledger.durable(&entry(1));
        assert_eq!(
            ledger
                .clone()
                .judge(&[], Trust::Intact)
                .unwrap_err()
                .invariant,
            Invariant::Acknowledgement
        );
        assert_eq!(
            ledger.clone().judge(&[], Trust::Damaged),
            Ok(()),
            "on a damaged disk nothing is owed"
        );
        ledger.dropping(&entry(1));
        assert_eq!(ledger.clone().judge(&[], Trust::Intact), Ok(()));
        assert_eq!(ledger.judge(&[entry(1)], Trust::Intact), Ok(()));
        assert_eq!(
            ledger.promise(&entry(1)),
            Some(Promise::Durable),
            "announced, so owed again"
        );
    }

    /// A value was written from memory in which a bit had flipped. An opening announced it, and a read found that it
    /// was wrong and reported it as lost. The ledger then required the next opening to announce it as a durable record
    /// (seed 55710).
    #[test]
    fn a_value_that_was_written_wrong_is_not_owed_because_it_was_announced() {
        let mut ledger = Ledger::default();
        ledger.ordered(&entry(1));
        ledger.flawed(&entry(1));
        assert_eq!(ledger.judge(&[entry(1)], Trust::Intact), Ok(()));
        assert_eq!(ledger.promise(&entry(1)), Some(Promise::Flawed));
        assert_eq!(ledger.judge(&[], Trust::Intact), Ok(()));
    }

    /// The power went while a batch was written, and one record of it was torn. Two openings could not read the record
    /// and announced it; a read in the second found it torn. The ledger took that for a broken promise, though the
    /// record had never been reported as durable (seed 506366).
    #[test]
    fn a_record_that_no_opening_could_read_is_not_owed() {
        let mut ledger = Ledger::default();
        ledger.ordered(&entry(1));
        ledger.ordered(&entry(2));
        ledger.durable(&entry(2));
        for trust in [Trust::Unread, Trust::Intact] {
            assert_eq!(ledger.judge(&[entry(1), entry(2)], trust), Ok(()));
            assert_eq!(ledger.promise(&entry(1)), Some(Promise::Flawed));
            assert!(ledger.owes(&entry(2)));
        }
        assert_eq!(ledger.judge(&[entry(2)], Trust::Intact), Ok(()));
    }

    /// The announcement of a record was late, and a newer one of its key was written and dropped meanwhile: its tombstone
    /// covers both. The ledger required the older one all the same (seed 629617 of churn).
    #[test]
    fn the_drop_of_a_newer_record_covers_the_older_ones() {
        let mut ledger = Ledger::default();
        ledger.ordered(&entry(1));
        ledger.durable(&entry(1));
        ledger.ordered(&entry(2));
        ledger.durable(&entry(2));
        let lost = ledger.clone().judge(&[], Trust::Intact);
        assert!(lost.is_err(), "nothing was dropped");
        ledger.dropping(&entry(2));
        assert_eq!(ledger.clone().judge(&[], Trust::Intact), Ok(()));
        ledger.dropped(&entry(2));
        assert_eq!(ledger.judge(&[], Trust::Intact), Ok(()));
    }

    /// A newer value was written, its sync failed, and the log gave it up with a tombstone. The ledger still required the
    /// older value that it had replaced (seed 701354 of churn).
    #[test]
    fn a_record_that_was_replaced_is_not_owed_although_its_successor_was_lost() {
        let mut ledger = Ledger::default();
        ledger.ordered(&entry(1));
        ledger.durable(&entry(1));
        ledger.ordered(&entry(2));
        assert!(ledger.clone().judge(&[], Trust::Intact).is_err());
        ledger.written(&entry(2));
        assert_eq!(ledger.clone().judge(&[], Trust::Intact), Ok(()));
        assert_eq!(ledger.unsynced(), [entry(2)]);
        ledger.durable(&entry(2));
        assert!(ledger.judge(&[], Trust::Intact).is_err());
    }

    #[test]
    fn what_was_dropped_never_returns() {
        let mut ledger = Ledger::default();
        ledger.ordered(&entry(1));
        ledger.durable(&entry(1));
        ledger.dropped(&entry(1));
        assert_eq!(ledger.judge(&[], Trust::Intact), Ok(()));
        assert_eq!(
            ledger
                .judge(&[entry(1)], Trust::Damaged)
                .unwrap_err()
                .invariant,
            Invariant::NoResurrection
        );
    }

    #[test]
    fn unknown_and_repeated_entries_are_detected() {
        let mut ledger = Ledger::default();
        assert!(ledger.judge(&[entry(1)], Trust::Intact).is_err());
        ledger.ordered(&entry(1));
        assert!(ledger.judge(&[entry(1), entry(1)], Trust::Intact).is_err());
    }
}
