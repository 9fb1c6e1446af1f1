//! What clients did to each key and how they were answered; every read is checked against it.
//!
//! A cache may lose a value at any time, so a miss is never an error. A hit must fulfil two conditions: it is wholly
//! one put's value (I1, I2), and that value was not removed or replaced by a newer version before the read began (I4).
//! Times are those of the world; an answer counts from the time at which the master gave it, whether or not it arrived.

use std::collections::{BTreeMap, BTreeSet};

use slackwater_base::Instant;
use slackwater_wire::{ClientId, Key, OperationId, Tenant, Version};

use crate::check::{Checked, Invariant, Violation};
use crate::value::{self, PutId, Wrong};

/// A key of a tenant.
pub type Name = (Tenant, Key);

/// Every put, remove and read of a run.
#[derive(Debug, Default)]
pub struct History {
    puts: Vec<Put>,
    timelines: BTreeMap<Name, Timeline>,
    reads: u64,
    grants: u64,
    /// Whether a device lost a write that it had reported as done: the write may have held a tombstone, and dead
    /// records may come back.
    may_resurrect: bool,
    /// When a master last ended: what a read that began before returns proves nothing about its successor.
    master_ended: Instant,
    /// Removals of many keys that are under way at the master, and when the last one ended.
    sweeps: BTreeSet<Sweep>,
    swept: Option<Instant>,
}

/// The client and its number of a removal of many keys.
pub type Sweep = (ClientId, OperationId);

#[derive(Debug)]
struct Put {
    name: Name,
    began: Instant,
}

#[derive(Debug, Default)]
struct Timeline {
    /// The put that each version belongs to, and its outcome.
    versions: BTreeMap<Version, Fate>,
    removals: Vec<Removal>,
    /// When the master last took a removal in, whatever it answered.
    removing: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Fate {
    put: PutId,
    /// The life of the master that gave the version: a later one may give the same number again if no node has seen it.
    life: u64,
    /// Number of the grant within the run: orders versions over the lives of masters.
    rank: u64,
    /// When the master acknowledged it.
    published: Option<Instant>,
    /// When it was first read: it had been published by then, acknowledged or not.
    seen: Option<Instant>,
    /// As `seen`, while the master that published it lives: a value that was not acknowledged may be lost with that
    /// master.
    standing: Option<Instant>,
    /// When the master revoked the put.
    refused: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Removal {
    began: Instant,
    acknowledged: Instant,
}

/// A read that returned bytes.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// When its look-up was sent.
    pub began: Instant,
    /// When its last byte reached the client.
    pub ended: Instant,
    /// Tenant and key.
    pub name: &'a Name,
    /// The version that the master answered.
    pub version: Version,
    /// The value that arrived.
    pub bytes: &'a [u8],
}

impl History {
    /// A client begins to put a value; the number is written into the value.
    pub fn begin_put(&mut self, name: Name, now: Instant) -> PutId {
        self.puts.push(Put { name, began: now });
        PutId(self.puts.len() as u64 - 1)
    }

    /// The master gave the put of `name` a version.
    ///
    /// # Errors
    /// If the version was given before: two puts would have the same one.
    pub fn granted(&mut self, name: &Name, version: Version, put: PutId, life: u64) -> Checked {
        self.grants += 1;
        let timeline = self.timelines.entry(name.clone()).or_default();
        let fate = Fate {
            put,
            life,
            rank: self.grants,
            published: None,
            seen: None,
            standing: None,
            refused: None,
        };
        match timeline.versions.insert(version, fate) {
            Some(before) if before.put != put && before.life == life => {
                let what = format!(
                    "version {version} of {name:?} is given to {put:?} and was {:?}",
                    before.put
                );
                Err(Violation::new(Invariant::NoResurrection, what))
            }
            _ => Ok(()),
        }
    }

    /// The master acknowledged the put.
    pub fn published(&mut self, name: &Name, version: Version, now: Instant) {
        if let Some(fate) = self.fate(name, version) {
            fate.published.get_or_insert(now);
        }
    }

    /// The master revoked the put: no read may return it from now on.
    pub fn refused(&mut self, name: &Name, version: Version, now: Instant) {
        if let Some(fate) = self.fate(name, version) {
            fate.refused.get_or_insert(now);
        }
    }

    /// The master acknowledged a removal that its client began at `began`.
    pub fn removed(&mut self, name: &Name, began: Instant, acknowledged: Instant) {
        let timeline = self.timelines.entry(name.clone()).or_default();
        timeline.removals.push(Removal {
            began,
            acknowledged,
        });
    }

    /// The master takes in a removal of a key.
    pub fn removing(&mut self, name: &Name, now: Instant) {
        let timeline = self.timelines.entry(name.clone()).or_default();
        timeline.removing = Some(now);
    }

    /// The master takes in a removal of many keys.
    pub fn sweep_began(&mut self, sweep: Sweep) {
        self.sweeps.insert(sweep);
    }

    /// The master answers, if that was about a removal of many keys.
    pub fn sweep_ended(&mut self, sweep: Sweep, now: Instant) {
        if self.sweeps.remove(&sweep) {
            self.swept = Some(now);
        }
    }

    /// Whether a version was acknowledged, and nothing has begun since its put that could have removed or replaced it.
    #[must_use]
    pub fn is_alive(&self, name: &Name, version: Version) -> bool {
        let Some(timeline) = self.timelines.get(name) else {
            return false;
        };
        let Some(fate) = timeline.versions.get(&version) else {
            return false;
        };
        let began = self.puts[fate.put.0 as usize].began;
        let removed = self
            .swept
            .max(timeline.removing)
            .is_some_and(|at| at >= began);
        let newer = |other: &Fate| other.rank > fate.rank && other.refused.is_none();
        let replaced = timeline.versions.values().any(newer);
        let acknowledged = fate.published.is_some() && fate.refused.is_none();
        acknowledged && !removed && !replaced && self.sweeps.is_empty()
    }

    /// A device has lost a write that it reported as done: from now on dead records may come back.
    pub fn allow_resurrection(&mut self) {
        self.may_resurrect = true;
    }

    /// The master has ended: what it published and did not acknowledge may be gone.
    pub fn master_ended(&mut self, now: Instant) {
        self.master_ended = now;
        if !std::mem::take(&mut self.sweeps).is_empty() {
            self.swept = Some(now);
        }
        for fate in self
            .timelines
            .values_mut()
            .flat_map(|timeline| timeline.versions.values_mut())
        {
            fate.standing = None;
        }
    }

    /// The put that a version belongs to.
    #[must_use]
    pub fn put_of(&self, name: &Name, version: Version) -> Option<PutId> {
        Some(self.timelines.get(name)?.versions.get(&version)?.put)
    }

    /// Names that were ever given a version.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.timelines.keys()
    }

    /// Number of reads that were checked.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// Checks a read that returned bytes.
    ///
    /// # Errors
    /// The invariant that it breaks.
    pub fn judge(&mut self, read: &Read<'_>) -> Checked<PutId> {
        self.reads += 1;
        let (tenant, key) = read.name;
        let put = value::check(tenant, key, read.bytes).map_err(|wrong| {
            let invariant = if wrong == Wrong::Tenant {
                Invariant::TenantWall
            } else {
                Invariant::NoWrongBytes
            };
            Violation::new(
                invariant,
                format!(
                    "a read of {key} of {tenant} version {} gave {wrong:?}",
                    read.version
                ),
            )
        })?;
        let wrong = |why: String| {
            let what = format!(
                "a read of {key} of {tenant} gave {put:?} as version {}: {why}",
                read.version
            );
            Violation::new(Invariant::NoWrongBytes, what)
        };
        match self.puts.get(put.0 as usize) {
            None => return Err(wrong("there is no such put".into())),
            Some(known) if known.name != *read.name => {
                return Err(wrong("that is a put of another key".into()));
            }
            Some(known) if known.began > read.ended => {
                return Err(wrong("the put had not begun".into()));
            }
            Some(_) => {}
        }
        match self.put_of(read.name, read.version) {
            Some(owner) if owner == put => {}
            owner => return Err(wrong(format!("that version belongs to {owner:?}"))),
        }
        self.judge_age(read.name, read.version, read.began)?;
        let standing = read.began >= self.master_ended;
        let fate = self
            .fate(read.name, read.version)
            .expect("its owner was found");
        fate.seen.get_or_insert(read.ended);
        if standing {
            fate.standing.get_or_insert(read.ended);
        }
        Ok(put)
    }

    /// Checks that `version` was neither removed nor replaced when a read that began at `began` returned it.
    ///
    /// # Errors
    /// Says since when the version is removed or replaced.
    pub fn judge_age(&self, name: &Name, version: Version, began: Instant) -> Checked {
        if self.may_resurrect {
            return Ok(());
        }
        let stale = |why: String| {
            let what =
                format!("{name:?}: a read that began at {began} returned version {version}: {why}");
            Err(Violation::new(Invariant::NoResurrection, what))
        };
        let Some(timeline) = self.timelines.get(name) else {
            return stale("it was never put".into());
        };
        let Some(fate) = timeline.versions.get(&version) else {
            return stale("no put was given that version".into());
        };
        if let Some(refused) = fate.refused.filter(|at| *at <= began) {
            return stale(format!("refused at {refused}"));
        }
        for (newer, other) in timeline
            .versions
            .iter()
            .filter(|(_, other)| other.rank > fate.rank)
        {
            let there = other.published.into_iter().chain(other.standing).min();
            if let Some(published) = there.filter(|at| *at <= began) {
                return stale(format!("version {newer} was there at {published}"));
            }
        }
        let Some(published) = fate.published.into_iter().chain(fate.seen).min() else {
            return Ok(());
        };
        for removal in &timeline.removals {
            if published <= removal.began && removal.acknowledged <= began {
                let (from, to) = (removal.began, removal.acknowledged);
                return stale(format!(
                    "published by {published}, removed between {from} and {to}"
                ));
            }
        }
        Ok(())
    }

    /// Checks an answer at `now` that a key is there: some version of it must be neither removed nor replaced.
    ///
    /// # Errors
    /// Says why the latest version cannot be there.
    pub fn judge_presence(&self, name: &Name, now: Instant) -> Checked {
        if self.may_resurrect {
            return Ok(());
        }
        let versions = self
            .timelines
            .get(name)
            .map(|timeline| timeline.versions.keys().rev());
        let mut last = Violation::new(
            Invariant::NoResurrection,
            format!("{name:?} is there and was never put"),
        );
        for version in versions.into_iter().flatten() {
            match self.judge_age(name, *version, now) {
                Ok(()) => return Ok(()),
                Err(violation) => last = violation,
            }
        }
        Err(last)
    }

    fn fate(&mut self, name: &Name, version: Version) -> Option<&mut Fate> {
        self.timelines.get_mut(name)?.versions.get_mut(&version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    fn name() -> Name {
        (Tenant::DEFAULT, Key::try_from("k").unwrap())
    }

    /// A history in which put 0 got version 5 at time 10 and put 1 got version 6 at time 20.
    fn history() -> History {
        let mut history = History::default();
        for (version, began) in [(5, 10), (6, 20)] {
            let put = history.begin_put(name(), at(began));
            history.granted(&name(), Version(version), put, 1).unwrap();
        }
        history
    }

    fn read(history: &mut History, put: u64, version: u64, began: u64) -> Result<PutId, Invariant> {
        let bytes = value::make(&Tenant::DEFAULT, &name().1, PutId(put), 64);
        let version = Version(version);
        let (began, ended) = (at(began), at(began + 5));
        history
            .judge(&Read {
                began,
                ended,
                name: &name(),
                version,
                bytes: &bytes,
            })
            .map_err(|v| v.invariant)
    }

    #[test]
    fn a_read_may_give_any_put_that_is_not_over() {
        let mut history = history();
        history.published(&name(), Version(5), at(12));
        assert_eq!(read(&mut history, 0, 5, 30), Ok(PutId(0)));
        assert_eq!(read(&mut history, 1, 6, 30), Ok(PutId(1)));
    }

    #[test]
    fn once_a_newer_version_was_seen_the_older_is_gone() {
        let mut history = history();
        assert_eq!(read(&mut history, 1, 6, 30), Ok(PutId(1)));
        assert_eq!(
            read(&mut history, 0, 5, 34),
            Ok(PutId(0)),
            "begun before the other ended"
        );
        assert_eq!(read(&mut history, 0, 5, 35), Err(Invariant::NoResurrection));
    }

    /// An overwrite is read before it is acknowledged, and then everything loses power. The old value, which the log
    /// still has, may come back: the overwrite was never acknowledged.
    #[test]
    fn a_value_that_was_only_read_may_be_lost_with_its_master() {
        let mut history = history();
        history.published(&name(), Version(5), at(12));
        assert_eq!(read(&mut history, 1, 6, 30), Ok(PutId(1)));
        history.master_ended(at(36));
        assert_eq!(read(&mut history, 0, 5, 40), Ok(PutId(0)));
    }

    /// The look-up was answered by the master, and its bytes came from a node after the master had ended. They were taken as
    /// proof that the overwrite, which nobody had acknowledged, outlived it (seed 757573).
    #[test]
    fn a_read_that_began_before_its_master_ended_proves_nothing() {
        let mut history = history();
        history.published(&name(), Version(5), at(12));
        history.master_ended(at(31));
        assert_eq!(read(&mut history, 1, 6, 30), Ok(PutId(1)));
        assert_eq!(read(&mut history, 0, 5, 40), Ok(PutId(0)));
        assert_eq!(read(&mut history, 1, 6, 41), Ok(PutId(1)));
        assert_eq!(read(&mut history, 0, 5, 60), Err(Invariant::NoResurrection));
    }

    #[test]
    fn what_was_removed_or_refused_never_comes_back() {
        let mut history = history();
        history.published(&name(), Version(5), at(12));
        history.removed(&name(), at(13), at(18));
        assert_eq!(read(&mut history, 0, 5, 17), Ok(PutId(0)));
        assert_eq!(read(&mut history, 0, 5, 18), Err(Invariant::NoResurrection));
        assert_eq!(
            read(&mut history, 1, 6, 30),
            Ok(PutId(1)),
            "published after the removal"
        );
        history.refused(&name(), Version(6), at(40));
        assert_eq!(read(&mut history, 1, 6, 40), Err(Invariant::NoResurrection));
    }

    #[test]
    fn what_was_acknowledged_lives_until_something_may_have_ended_it() {
        let check = |what: fn(&mut History), lives: bool| {
            let mut history = history();
            history.published(&name(), Version(6), at(25));
            what(&mut history);
            assert_eq!(history.is_alive(&name(), Version(6)), lives);
            assert!(!history.is_alive(&name(), Version(5)), "it was replaced");
        };
        let sweep = (ClientId(1), OperationId(1));
        check(|_| (), true);
        check(|it| it.removing(&name(), at(19)), true);
        check(|it| it.removing(&name(), at(26)), false);
        check(
            |it| it.sweep_ended((ClientId(1), OperationId(1)), at(30)),
            true,
        );
        check(|it| it.sweep_began((ClientId(1), OperationId(1))), false);
        check(
            |it| {
                it.sweep_began((ClientId(1), OperationId(1)));
                it.master_ended(at(30));
            },
            false,
        );
        let mut history = history();
        history.published(&name(), Version(5), at(12));
        assert!(!history.is_alive(&name(), Version(5)), "it may be replaced");
        history.refused(&name(), Version(6), at(40));
        assert!(history.is_alive(&name(), Version(5)));
        history.sweep_began(sweep);
        history.sweep_ended(sweep, at(9));
        assert!(history.is_alive(&name(), Version(5)), "put after it");
    }

    #[test]
    fn bytes_of_another_put_key_or_time_are_wrong() {
        let mut history = history();
        assert_eq!(read(&mut history, 0, 6, 30), Err(Invariant::NoWrongBytes));
        assert_eq!(read(&mut history, 7, 6, 30), Err(Invariant::NoWrongBytes));
        assert_eq!(read(&mut history, 1, 6, 2), Err(Invariant::NoWrongBytes));
        let acme = Tenant::new("acme").unwrap();
        let bytes = value::make(&acme, &name().1, PutId(0), 64);
        let foreign = Read {
            began: at(30),
            ended: at(31),
            name: &name(),
            version: Version(5),
            bytes: &bytes,
        };
        assert_eq!(
            history.judge(&foreign).unwrap_err().invariant,
            Invariant::TenantWall
        );
    }

    #[test]
    fn a_version_given_twice_is_detected() {
        let mut history = history();
        let put = history.begin_put(name(), at(50));
        assert!(history.granted(&name(), Version(6), put, 1).is_err());
        assert!(
            history.granted(&name(), Version(6), put, 2).is_ok(),
            "a later life of the master may give it again"
        );
    }
}
