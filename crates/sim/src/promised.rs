//! Values that were promised on several hosts: what is left of them when some of these are lost.
//!
//! A promise holds whatever happens to the master, so what counts is what nodes have heard: a master that knows nothing finds
//! what its nodes announce, and they announce what an earlier one has told them.

use std::collections::BTreeMap;

use slackwater_base::Instant;
use slackwater_wire::{ExtentRef, Published, Version};

use crate::check::{Checked, Invariant, Violation};
use crate::history::Name;
use crate::refusals::place;

/// What nodes have heard that they hold, and how many hosts callers were promised for it. Each node is a host.
#[derive(Debug, Default)]
pub struct Promised {
    values: BTreeMap<(Name, Version), Value>,
    /// When the last master ended.
    master_ended: Instant,
}

#[derive(Debug, Default)]
struct Value {
    copies: BTreeMap<u32, Copy>,
    /// The hosts that were promised, once that was.
    hosts: Option<u32>,
}

/// What a node was last told that it holds of a value.
#[derive(Clone, Copy, Debug)]
struct Copy {
    extent: ExtentRef,
    /// When the node lost its memory.
    lost: Option<Instant>,
    /// A master has given it up, as it evicts and ends objects.
    given_up: bool,
}

impl Promised {
    /// A node has heard that its memory holds these.
    pub fn publish(&mut self, node: u32, all: &[Published]) {
        for Published { extent, entry, .. } in all {
            let name = (entry.tenant.clone(), entry.key.clone());
            let copy = Copy {
                extent: *extent,
                lost: None,
                given_up: false,
            };
            let value = self.values.entry((name, entry.version)).or_default();
            value.copies.insert(node, copy);
        }
    }

    /// A node has heard that these extents are dead, with all generations before them.
    pub fn fence(&mut self, node: u32, extents: &[ExtentRef]) {
        let copies = self.values.values_mut();
        for copy in copies.filter_map(|value| value.copies.get_mut(&node)) {
            copy.given_up |= extents.iter().any(|dead| {
                place(dead) == place(&copy.extent) && copy.extent.generation <= dead.generation
            });
        }
    }

    /// The memory of a node is gone.
    pub fn lose(&mut self, node: u32, now: Instant) {
        let copies = self.values.values_mut();
        for copy in copies.filter_map(|value| value.copies.get_mut(&node)) {
            copy.lost.get_or_insert(now);
        }
    }

    /// The master has ended.
    pub fn master_ended(&mut self, now: Instant) {
        self.master_ended = now;
    }

    /// A put is acknowledged that so many hosts have to hold.
    ///
    /// # Errors
    /// When fewer have heard of it: of the master that acknowledges it at the latest, which knows what was lost before it.
    pub fn promise(&mut self, name: &Name, version: Version, hosts: u32) -> Checked {
        let value = self.values.entry((name.clone(), version)).or_default();
        let counts = |copy: &&Copy| copy.lost.is_none_or(|at| at >= self.master_ended);
        let heard = value.copies.values().filter(counts).count();
        if heard < hosts as usize {
            let what = format!(
                "version {version} of {name:?} is acknowledged on {hosts} hosts, and {heard} have heard of it"
            );
            return Err(Violation::new(Invariant::Acknowledgement, what));
        }
        value.hosts = Some(hosts);
        Ok(())
    }

    /// Values that must be there: fewer hosts than they were promised on have lost their memory, and no master has given any
    /// copy up.
    pub fn owed(&self) -> impl Iterator<Item = &(Name, Version)> {
        let owed = self.values.iter().filter(|(_, value)| {
            let mut copies = value.copies.values();
            let lost = copies.clone().filter(|copy| copy.lost.is_some()).count();
            let few = value.hosts.is_some_and(|hosts| lost < hosts as usize);
            few && copies.all(|copy| !copy.given_up)
        });
        owed.map(|(name, _)| name)
    }

    /// How many values were promised.
    #[must_use]
    pub fn count(&self) -> u64 {
        let promised = self.values.values().filter(|value| value.hosts.is_some());
        promised.count() as u64
    }
}

#[cfg(test)]
mod tests {
    use slackwater_wire::SegmentId;

    use super::*;
    use crate::samples::{self, entry};

    const VERSION: Version = Version(7);

    fn name() -> Name {
        let of = entry(VERSION.0);
        (of.tenant, of.key)
    }

    fn published(node: u32, generation: u64) -> Published {
        let extent = samples::extent(SegmentId(node), 0, generation);
        samples::published(extent, VERSION.0)
    }

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    /// A value that these nodes have heard of.
    fn heard_by(nodes: &[u32]) -> Promised {
        let mut promised = Promised::default();
        for node in nodes {
            promised.publish(*node, &[published(*node, 2)]);
        }
        promised
    }

    #[test]
    fn as_many_hosts_have_heard_of_a_value_as_were_promised() {
        let check = |promised: &mut Promised, hosts, right: bool| {
            let found = promised.promise(&name(), VERSION, hosts);
            assert_eq!(found.is_ok(), right, "{found:?}");
        };
        check(&mut heard_by(&[]), 1, false);
        check(&mut heard_by(&[1]), 2, false);
        check(&mut heard_by(&[1, 1]), 2, false);
        check(&mut heard_by(&[1, 2]), 2, true);
        // The master has not heard yet that one is lost; the next one must have.
        let mut lost = heard_by(&[1, 2]);
        lost.lose(2, at(5));
        check(&mut lost, 2, true);
        lost.master_ended(at(6));
        check(&mut lost, 2, false);
        lost.publish(3, &[published(3, 1)]);
        check(&mut lost, 2, true);
    }

    #[test]
    fn a_value_is_owed_until_all_its_hosts_are_lost_or_a_master_gives_it_up() {
        let check = |change: &dyn Fn(&mut Promised), expected: usize| {
            let mut promised = heard_by(&[1, 2]);
            assert_eq!(promised.owed().count(), 0, "it is not promised yet");
            promised.promise(&name(), VERSION, 2).unwrap();
            change(&mut promised);
            assert_eq!(promised.owed().count(), expected);
        };
        check(&|_| {}, 1);
        check(&|it| it.lose(1, at(1)), 1);
        check(
            &|it| [1, 2].into_iter().for_each(|node| it.lose(node, at(1))),
            0,
        );
        check(&|it| it.fence(2, &[published(2, 2).extent]), 0);
        check(&|it| it.fence(2, &[published(2, 1).extent]), 1);
        check(&|it| it.fence(3, &[published(2, 2).extent]), 1);
    }
}
