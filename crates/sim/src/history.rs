//! What clients did to each key and what they were told: the judge of every read.
//!
//! A cache may forget at any time, so a miss proves nothing. What a read may give is bounded from two sides: it must be
//! wholly one put's value (I1, I2), and that put must not have been over, by removal or by a newer version, before the
//! read began (I4). Times are the world's; an answer counts from when the master gave it, whether or not it arrived.

use std::collections::BTreeMap;

use slackwater_base::Instant;
use slackwater_wire::{Key, Tenant, Version};

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
    /// A device lost a write that it reported as done: records that its tombstones made dead may come back.
    excused: bool,
    /// When something was last forgiven: who looked before may yet tell of it.
    forgiven: Instant,
}

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
}

#[derive(Clone, Copy, Debug)]
struct Fate {
    put: PutId,
    /// Which life of the master gave it: a later one may give the same number again when nobody can remember it.
    life: u64,
    /// Which grant of the run this was: orders versions over the lives of masters.
    rank: u64,
    /// When the master acknowledged it.
    published: Option<Instant>,
    /// When it was first read: it had been published by then, acknowledged or not.
    seen: Option<Instant>,
    /// The same, if the master that published it still lives: an unacknowledged value may go with it.
    standing: Option<Instant>,
    /// When the master said that it never would be.
    refused: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Removal {
    began: Instant,
    acknowledged: Instant,
}

/// A read that gave bytes.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// When its look-up was sent.
    pub began: Instant,
    /// When its last byte was with the client.
    pub ended: Instant,
    /// Tenant and key.
    pub name: &'a Name,
    /// The version that the master named.
    pub version: Version,
    /// The value that arrived.
    pub bytes: &'a [u8],
}

impl History {
    /// A client begins to put a value; the number goes into the value.
    pub fn begin_put(&mut self, name: Name, now: Instant) -> PutId {
        self.puts.push(Put { name, began: now });
        PutId(self.puts.len() as u64 - 1)
    }

    /// The master gave the put of `name` a version.
    ///
    /// # Errors
    /// When the version was given before: two puts would answer to one name.
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

    /// The master revoked the put: nobody may ever read it.
    pub fn refused(&mut self, name: &Name, version: Version, now: Instant) {
        if let Some(fate) = self.fate(name, version) {
            fate.refused.get_or_insert(now);
        }
    }

    /// The master acknowledged a removal that its client began at `began`.
    pub fn removed(&mut self, name: &Name, began: Instant, acknowledged: Instant) {
        // It may have been decided before, when the master knew nothing of a node that had yet to come.
        if began < self.forgiven {
            return;
        }
        let timeline = self.timelines.entry(name.clone()).or_default();
        timeline.removals.push(Removal {
            began,
            acknowledged,
        });
    }

    /// A device misreports writes from now on: records that their tombstones made dead may come back.
    pub fn excuse(&mut self) {
        self.excused = true;
    }

    /// Removals and overwrites acknowledged since then, while a node was away, were known to nobody but a master that
    /// has ended: what they replaced may come back with the node.
    pub fn forgive(&mut self, since: Instant, now: Instant) {
        self.forgiven = now;
        for timeline in self.timelines.values_mut() {
            timeline
                .removals
                .retain(|removal| removal.acknowledged < since);
            for fate in timeline.versions.values_mut() {
                fate.published = fate.published.filter(|at| *at < since);
                fate.standing = fate.standing.filter(|at| *at < since);
            }
        }
    }

    /// The master has ended: what it published and did not acknowledge may be gone.
    pub fn master_ended(&mut self) {
        for fate in self
            .timelines
            .values_mut()
            .flat_map(|timeline| timeline.versions.values_mut())
        {
            fate.standing = None;
        }
    }

    /// Which put a version belongs to.
    #[must_use]
    pub fn put_of(&self, name: &Name, version: Version) -> Option<PutId> {
        Some(self.timelines.get(name)?.versions.get(&version)?.put)
    }

    /// Names that were ever given a version.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.timelines.keys()
    }

    /// Reads that were judged.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// Judges a read that gave bytes.
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
            None => return Err(wrong("nobody put that".into())),
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
        let standing = read.began >= self.forgiven;
        let fate = self
            .fate(read.name, read.version)
            .expect("its owner was found");
        fate.seen.get_or_insert(read.ended);
        if standing {
            fate.standing.get_or_insert(read.ended);
        }
        Ok(put)
    }

    /// Judges what somebody who looked at `began` or later may be told of: that version, and not one that was over.
    ///
    /// # Errors
    /// Says since when the version is over.
    pub fn judge_age(&self, name: &Name, version: Version, began: Instant) -> Checked {
        if self.excused {
            return Ok(());
        }
        let stale = |why: String| {
            let what = format!("{name:?} gave version {version} to a reader of {began}: {why}");
            Err(Violation::new(Invariant::NoResurrection, what))
        };
        let Some(timeline) = self.timelines.get(name) else {
            return stale("it was never put".into());
        };
        let Some(fate) = timeline.versions.get(&version) else {
            return stale("nobody was given that version".into());
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

    /// Judges that a key is said to be there at `now`: some version of it must not be over.
    ///
    /// # Errors
    /// Says why the latest version is over.
    pub fn judge_presence(&self, name: &Name, now: Instant) -> Checked {
        if self.excused {
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

    /// An overwrite is read before it is acknowledged, and then everything loses power: the old value, which the log
    /// still has, may come back, for nobody was promised otherwise.
    #[test]
    fn what_was_only_read_may_go_with_its_master() {
        let mut history = history();
        history.published(&name(), Version(5), at(12));
        assert_eq!(read(&mut history, 1, 6, 30), Ok(PutId(1)));
        history.master_ended();
        assert_eq!(read(&mut history, 0, 5, 40), Ok(PutId(0)));
    }

    /// A node came back whose old value no removal was remembered for. A read that had begun before ended after, and was
    /// taken for a promise that the removed, newer value stands (seed 7602).
    #[test]
    fn a_read_that_began_before_it_was_forgiven_promises_nothing() {
        let mut history = history();
        history.published(&name(), Version(6), at(22));
        history.removed(&name(), at(31), at(33));
        history.forgive(at(10), at(32));
        assert_eq!(read(&mut history, 1, 6, 30), Ok(PutId(1)));
        assert_eq!(read(&mut history, 0, 5, 40), Ok(PutId(0)));
    }

    /// A new master removed a value while it did not know of a node that held another copy. The node came before the
    /// removal was acknowledged, and the removal was held to bind it (seed 193).
    #[test]
    fn a_removal_that_began_before_it_was_forgiven_promises_nothing() {
        let mut history = history();
        history.published(&name(), Version(5), at(12));
        history.forgive(at(10), at(32));
        assert_eq!(read(&mut history, 0, 5, 34), Ok(PutId(0)));
        history.removed(&name(), at(31), at(40));
        assert_eq!(read(&mut history, 0, 5, 41), Ok(PutId(0)));
        history.removed(&name(), at(42), at(44));
        assert_eq!(read(&mut history, 0, 5, 45), Err(Invariant::NoResurrection));
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
    fn a_version_given_twice_is_seen() {
        let mut history = history();
        let put = history.begin_put(name(), at(50));
        assert!(history.granted(&name(), Version(6), put, 1).is_err());
        assert!(
            history.granted(&name(), Version(6), put, 2).is_ok(),
            "in another life nobody remembers"
        );
    }
}
