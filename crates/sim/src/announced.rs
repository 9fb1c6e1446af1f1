//! What a node must say to a master that knows nothing of it: all that it holds, and nothing that is dead.
//!
//! The node's process lives on, so no fault of its disk or its memory excuses what is missing: what a read has found to be wrong,
//! or a removal has ended, the node has reported by then.

use std::collections::{BTreeMap, BTreeSet};

use slackwater_wire::{DiskEntry, ExtentRef, Incarnation, Published, ReportedEntry, SegmentId};

use crate::check::{Checked, Invariant, Violation};
use crate::ledger::{Ledger, Promise};

/// The memory of a node as its master has spoken of it, and what is still to be announced to the present one.
#[derive(Clone, Debug, Default)]
pub struct Announced {
    /// Extents that were published and not fenced, by their first bytes.
    published: BTreeMap<(SegmentId, u64), ExtentRef>,
    /// Some while an announcement is under way.
    owed: Option<Owed>,
}

/// What was there when the announcement began, and has not been said.
#[derive(Clone, Debug, Default)]
struct Owed {
    extents: BTreeMap<(SegmentId, u64), ExtentRef>,
    records: BTreeSet<DiskEntry>,
}

impl Announced {
    /// The master said that these extents hold objects.
    ///
    /// # Errors
    /// When one of them lies over another, which holds an object still.
    pub fn publish(&mut self, all: &[Published]) -> Checked {
        for Published { extent, .. } in all {
            let end = (extent.segment, extent.offset + extent.bytes);
            let before = self.published.range(..end).next_back();
            let over = before.filter(|((segment, offset), held)| {
                *segment == extent.segment && offset + held.bytes > extent.offset
            });
            if let Some((_, held)) = over {
                let what = format!("{extent:?} is published over {held:?}, which is not fenced");
                return Err(Violation::new(Invariant::Extents, what));
            }
            self.published.insert(place(extent), *extent);
        }
        Ok(())
    }

    /// The master ordered that these extents are dead, with all generations before them.
    pub fn fence(&mut self, extents: &[ExtentRef]) {
        for extent in extents {
            let dead = |held: &ExtentRef| held.generation <= extent.generation;
            if self.published.get(&place(extent)).is_some_and(dead) {
                self.published.remove(&place(extent));
            }
        }
    }

    /// The extents of a segment that hold objects.
    pub fn extents(&self, segment: SegmentId) -> impl Iterator<Item = &ExtentRef> {
        let all = self.published.values();
        all.filter(move |extent| extent.segment == segment)
    }

    /// Compares what the master believes to be in the memory of the node with what the node was told of it, and what the node
    /// `knows` itself and would announce to the next one.
    ///
    /// # Errors
    /// When one of them has an extent that another does not have.
    pub fn reconcile(&self, believed: &[ExtentRef], knows: &[ExtentRef]) -> Checked {
        let wrong = |what: String| Err(Violation::new(Invariant::BooksBalance, what));
        let told: BTreeSet<_> = self.published.values().map(identity).collect();
        let knows: BTreeSet<_> = knows.iter().map(identity).collect();
        if told != knows {
            let differ: Vec<_> = told.symmetric_difference(&knows).collect();
            return wrong(format!("a node and what it was told differ in {differ:?}"));
        }
        for extent in believed {
            if self.published.get(&place(extent)) != Some(extent) {
                return wrong(format!(
                    "the master's catalog has {extent:?}, which its node would not announce"
                ));
            }
        }
        let believed: BTreeSet<_> = believed.iter().map(place).collect();
        match self.published.iter().find(|(at, _)| !believed.contains(at)) {
            None => Ok(()),
            Some((_, extent)) => wrong(format!(
                "a node would announce {extent:?}, which the master's catalog does not have"
            )),
        }
    }

    /// A master that knows nothing of the node has taken it.
    pub fn begin(&mut self, ledger: &Ledger) {
        self.owed = Some(Owed {
            extents: self.published.clone(),
            records: ledger.owed().cloned().collect(),
        });
    }

    /// No master takes in any more what is still to be announced.
    pub fn stop(&mut self) {
        self.owed = None;
    }

    /// The node announces memory.
    ///
    /// # Errors
    /// When an extent of it is dead, or no master ever said that it holds anything.
    pub fn holds(&mut self, entries: &[Published]) -> Checked {
        for Published { extent, entry, .. } in entries {
            if self.published.get(&place(extent)) != Some(extent) {
                let what = format!("{entry:?} is announced at {extent:?}, which is dead");
                return Err(Violation::new(Invariant::NoResurrection, what));
            }
            if let Some(owed) = &mut self.owed {
                owed.extents.remove(&place(extent));
            }
        }
        Ok(())
    }

    /// The node announces records. Those that an earlier master ordered, and of which it heard nothing, count as `durable` says.
    ///
    /// # Errors
    /// When one of them was reported as dropped, or was never ordered.
    pub fn records(
        &mut self,
        ledger: &mut Ledger,
        entries: &[ReportedEntry],
        durable: impl Fn(&DiskEntry) -> Option<Promise>,
    ) -> Checked {
        for ReportedEntry { entry, .. } in entries {
            match ledger.promise(entry) {
                Some(Promise::Dropped) => {
                    let what = format!("{entry:?} was reported as dropped and is announced");
                    return Err(Violation::new(Invariant::NoResurrection, what));
                }
                None => {
                    let what = format!("{entry:?} is announced and was never ordered");
                    return Err(Violation::new(Invariant::NoWrongBytes, what));
                }
                Some(Promise::Writing) => match durable(entry) {
                    Some(Promise::Durable) => ledger.durable(entry),
                    Some(Promise::Flawed) => ledger.flawed(entry),
                    _ => ledger.written(entry),
                },
                Some(_) => {}
            }
            if let Some(owed) = &mut self.owed {
                owed.records.remove(entry);
            }
        }
        Ok(())
    }

    /// The node says that it has announced all of a segment.
    ///
    /// # Errors
    /// When something is missing that was there all the time.
    pub fn complete(&mut self, ledger: &Ledger, segment: SegmentId, is_memory: bool) -> Checked {
        let Some(owed) = &self.owed else {
            return Ok(());
        };
        let missing = match is_memory {
            true => {
                let mut extents = owed.extents.values();
                let there = |extent: &&ExtentRef| {
                    extent.segment == segment && self.published.get(&place(extent)) == Some(extent)
                };
                extents.find(there).map(|extent| format!("{extent:?}"))
            }
            false => {
                let mut records = owed.records.iter();
                let missing = records.find(|entry| ledger.owes(entry));
                missing.map(|entry| format!("{entry:?}"))
            }
        };
        match missing {
            None => Ok(()),
            Some(missing) => {
                let what = format!("{missing} is there and is not announced");
                Err(Violation::new(Invariant::Acknowledgement, what))
            }
        }
    }
}

fn place(extent: &ExtentRef) -> (SegmentId, u64) {
    (extent.segment, extent.offset)
}

/// All that tells extents apart.
fn identity(extent: &ExtentRef) -> (SegmentId, Incarnation, u64, u64, u64) {
    let ExtentRef {
        segment,
        incarnation,
        offset,
        bytes,
        generation,
    } = *extent;
    (segment, incarnation, offset, bytes, generation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{self, entry, extent, reported};

    const MEMORY: SegmentId = SegmentId(1);
    const DISK: SegmentId = SegmentId(2);

    fn published(offset: u64, generation: u64) -> Published {
        samples::published(extent(MEMORY, offset, generation), generation)
    }

    #[test]
    fn memory_is_announced_as_far_as_it_is_alive() {
        let mut announced = Announced::default();
        let all = [published(0, 1), published(4096, 2)];
        announced.publish(&all).unwrap();
        announced.begin(&Ledger::default());
        let mut partly = announced.clone();
        partly.holds(&all[..1]).unwrap();
        let missing = partly.complete(&Ledger::default(), MEMORY, true);
        assert_eq!(missing.unwrap_err().invariant, Invariant::Acknowledgement);
        partly.fence(&[all[1].extent]);
        partly.complete(&Ledger::default(), MEMORY, true).unwrap();
        let dead = partly.holds(&all[1..]).unwrap_err();
        assert_eq!(dead.invariant, Invariant::NoResurrection);
        let newer = published(0, 3);
        assert!(announced.holds(&[newer]).is_err(), "nobody published it");
        announced.holds(&all).unwrap();
        announced
            .complete(&Ledger::default(), MEMORY, true)
            .unwrap();
    }

    #[test]
    fn a_master_and_its_nodes_agree_about_memory() {
        let mut announced = Announced::default();
        let [first, second] = [published(0, 1), published(4096, 2)];
        announced.publish(&[first.clone(), second.clone()]).unwrap();
        let both = [second.extent, first.extent];
        announced.reconcile(&both, &both).unwrap();
        assert!(announced.reconcile(&[first.extent], &both).is_err());
        assert!(announced.reconcile(&both, &[first.extent]).is_err());
        announced.fence(&[first.extent]);
        assert!(announced.reconcile(&both, &both).is_err());
        assert!(announced.reconcile(&[second.extent], &both).is_err());
        let only = [second.extent];
        announced.reconcile(&only, &only).unwrap();
    }

    #[test]
    fn nothing_is_published_over_what_is_not_fenced() {
        let check = |offset: u64, bytes: u64, fits: bool| {
            let mut announced = Announced::default();
            let held = published(8192, 1);
            announced.publish(std::slice::from_ref(&held)).unwrap();
            let mut next = published(offset, 2);
            next.extent.bytes = bytes;
            let published = announced.publish(std::slice::from_ref(&next));
            assert_eq!(published.is_ok(), fits, "{bytes} at {offset}");
            announced = Announced::default();
            announced.publish(std::slice::from_ref(&held)).unwrap();
            announced.fence(&[held.extent]);
            announced.publish(&[next]).unwrap();
        };
        check(4096, 4096, true);
        check(12_288, 4096, true);
        check(8192, 4096, false);
        check(4096, 8192, false);
        check(4096, 65_536, false);
        check(10_240, 4096, false);
    }

    #[test]
    fn records_are_announced_as_far_as_they_are_owed() {
        let (mut announced, mut ledger) = (Announced::default(), Ledger::default());
        ledger.ordered(&entry(1));
        ledger.durable(&entry(1));
        announced.begin(&ledger);
        let missing = announced.complete(&ledger, DISK, false).unwrap_err();
        assert_eq!(missing.invariant, Invariant::Acknowledgement);
        let durable = |_: &DiskEntry| Some(Promise::Durable);
        let unknown = announced.records(&mut ledger, &[reported(2)], durable);
        assert_eq!(unknown.unwrap_err().invariant, Invariant::NoWrongBytes);
        // Of this one no master has heard.
        ledger.ordered(&entry(2));
        announced
            .records(&mut ledger, &[reported(2)], durable)
            .unwrap();
        assert!(ledger.owes(&entry(2)), "announced, so owed");
        announced.complete(&ledger, DISK, false).unwrap();
        ledger.dropped(&entry(2));
        let dead = announced.records(&mut ledger, &[reported(2)], durable);
        assert_eq!(dead.unwrap_err().invariant, Invariant::NoResurrection);
    }
}
