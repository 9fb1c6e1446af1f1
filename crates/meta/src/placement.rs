//! Where new replicas are placed: the trait of placement policies, and its implementations.

use std::sync::Arc;

use slackwater_base::{Map, Rng};
use slackwater_wire::SegmentKind;

use crate::catalog::{ObjectId, SegmentIndex};
use crate::config::Placement;
use crate::segment::Segments;

mod free_ratio_first;
mod local_first;
mod random;

/// A memory segment as a placement policy sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentRoom<'a> {
    pub(crate) index: SegmentIndex,
    pub(crate) free: u64,
    pub(crate) capacity: u64,
    pub(crate) host: &'a str,
}

/// A placement policy. It only orders segments; whether a replica fits is found by trying.
pub(crate) trait PlacementPolicy: Send {
    /// Puts the rooms in the order in which they are to be tried.
    fn rank(&mut self, rooms: &mut [SegmentRoom<'_>], writer_host: Option<&str>);
}

pub(crate) fn build(placement: Placement, rng: Rng) -> Box<dyn PlacementPolicy> {
    match placement {
        Placement::Random => Box::new(random::Random { rng }),
        Placement::FreeRatioFirst => Box::new(free_ratio_first::FreeRatioFirst),
        Placement::LocalFirst => Box::new(local_first::LocalFirst { rng }),
    }
}

/// Memory segments in the order in which they are to be tried for a put: those that it prefers, then as the policy says.
pub(crate) fn rank(
    segments: &Segments,
    policy: &mut dyn PlacementPolicy,
    writer_host: Option<&str>,
    preferred: &[String],
) -> Vec<SegmentIndex> {
    let mut rooms: Vec<SegmentRoom<'_>> = segments
        .iter()
        .filter(|(_, segment)| segment.takes_new())
        .filter_map(|(index, segment)| {
            let books = segment.memory()?.extents.books();
            Some(SegmentRoom {
                index,
                free: books.free,
                capacity: books.capacity,
                host: &segment.host,
            })
        })
        .collect();
    if let [only] = rooms[..] {
        return vec![only.index];
    }
    policy.rank(&mut rooms, writer_host);
    let mut order: Vec<SegmentIndex> = rooms.into_iter().map(|room| room.index).collect();
    if !preferred.is_empty() {
        order.sort_by_key(|index| wished(preferred, &segments.at(*index).name));
    }
    order
}

/// Where a segment comes among those that are preferred: others are last.
fn wished(preferred: &[impl AsRef<str>], name: &str) -> usize {
    let mut names = preferred.iter();
    let found = names.position(|wish| wish.as_ref() == name);
    found.unwrap_or(usize::MAX)
}

/// Names of segments that a put may prefer: each is looked for among all segments.
pub(crate) const PREFERRED_MAX: usize = 16;

/// Names of segments that are kept of one put.
const WISHES_MAX: usize = 4;

/// The memory segments that puts preferred, for later copies of their objects. A wish is not kept over a restart of the master.
#[derive(Debug, Default)]
pub(crate) struct Wishes(Map<ObjectId, Wish>);

/// Memory segments that a put preferred, the first most; only those that were there then.
pub(crate) type Wish = Box<[Arc<str>]>;

impl Wishes {
    /// What is kept of the names that a put prefers.
    pub(crate) fn of(segments: &Segments, preferred: &[String]) -> Wish {
        let known = |name: &String| {
            let mut all = segments.iter().map(|(_, segment)| segment);
            let found = all.find(|it| it.kind() == SegmentKind::Memory && *it.name == **name);
            found.map(|segment| Arc::clone(&segment.name))
        };
        let mut wish = Vec::new();
        for name in preferred.iter().filter_map(known) {
            if wish.len() < WISHES_MAX && !wish.contains(&name) {
                wish.push(name);
            }
        }
        wish.into()
    }

    /// An object has the value of a put that had this wish.
    pub(crate) fn set(&mut self, object: ObjectId, wish: Wish) {
        if wish.is_empty() {
            self.0.remove(&object);
        } else {
            self.0.insert(object, wish);
        }
    }

    pub(crate) fn forget(&mut self, object: ObjectId) {
        self.0.remove(&object);
    }

    /// Where a segment comes among those that an object's put preferred: the least is tried first.
    pub(crate) fn rank(&self, object: ObjectId, name: &str) -> usize {
        let wish = self.0.get(&object);
        wish.map_or(usize::MAX, |wish| wished(wish, name))
    }

    /// The objects that have a wish.
    pub(crate) fn objects(&self) -> impl Iterator<Item = ObjectId> {
        self.0.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranked(placement: Placement, seed: u64) -> Vec<u16> {
        let room = |index, free, host| SegmentRoom {
            index: SegmentIndex(index),
            free,
            capacity: 100,
            host,
        };
        let mut rooms = [
            room(0, 10, "a"),
            room(1, 90, "b"),
            room(2, 50, "a"),
            room(3, 0, "b"),
        ];
        build(placement, Rng::new(seed)).rank(&mut rooms, Some("b"));
        rooms.iter().map(|room| room.index.0).collect()
    }

    #[test]
    fn every_policy_orders_all_segments() {
        for placement in [
            Placement::Random,
            Placement::FreeRatioFirst,
            Placement::LocalFirst,
        ] {
            for seed in 0..20 {
                let mut seen = ranked(placement, seed);
                seen.sort_unstable();
                assert_eq!(seen, [0, 1, 2, 3], "{placement:?}");
            }
        }
    }

    #[test]
    fn each_policy_orders_as_documented() {
        assert_eq!(ranked(Placement::FreeRatioFirst, 1), [1, 2, 0, 3]);
        for seed in 0..20 {
            let mut first = ranked(Placement::LocalFirst, seed)[..2].to_vec();
            first.sort_unstable();
            assert_eq!(first, [1, 3], "the writer's host comes first");
        }
        let firsts: std::collections::BTreeSet<u16> = (0..50)
            .map(|seed| ranked(Placement::Random, seed)[0])
            .collect();
        assert_eq!(firsts.len(), 4, "any segment may come first");
    }
}
