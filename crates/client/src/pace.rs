//! How fast nodes send, as a reader has seen it.

use std::collections::BTreeMap;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_wire::{Incarnation, ReplicaAt};

/// What was seen of each node lately.
#[derive(Debug, Default)]
pub struct Paces {
    of: BTreeMap<Incarnation, Pace>,
}

#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Nanoseconds for 64 KiB, on average.
    nanos: u64,
    at: Instant,
}

/// How long a node's pace is believed: after that the node is tried again as one that nothing is known of.
const BELIEVED: Duration = Duration::from_secs(10);
/// Every read is taken to be longer by so many bytes, for the time that it takes whatever its length.
const PIECE: u64 = 64 << 10;
/// Nodes within this factor of the fastest are alike.
const ALIKE: u64 = 2;
/// The weight of what was known against a new reading of one.
const WEIGHT: u64 = 7;
/// The pace of a node whose bytes did not come.
const FAILED: u64 = u64::MAX >> 8;
/// Nodes that are known at once.
const NODES_MAX: usize = 4096;

impl Paces {
    /// So many bytes of a node came in this time.
    pub fn came(&mut self, now: Instant, node: Incarnation, bytes: u64, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX >> 16);
        let pieces = bytes / PIECE + 1;
        let nanos = (nanos / pieces).clamp(1, FAILED - 1);
        let known = self.known(now, node).filter(|known| *known != FAILED);
        let nanos = known.map_or(nanos, |known| {
            known / (WEIGHT + 1) * WEIGHT + nanos / (WEIGHT + 1)
        });
        self.keep(now, node, nanos);
    }

    /// Bytes of a node did not come.
    pub fn failed(&mut self, now: Instant, node: Incarnation) {
        self.keep(now, node, FAILED);
    }

    /// How much slower a node is than the fastest: zero for those like it and for those that nothing is known of.
    fn slowness(&self, now: Instant, node: Incarnation) -> u32 {
        let Some(known) = self.known(now, node) else {
            return 0;
        };
        let believed = self.of.values().filter(|pace| is_believed(now, **pace));
        let fastest = believed.map(|pace| pace.nanos).min().unwrap_or(known);
        let alike = fastest.saturating_mul(ALIKE);
        match known <= alike {
            true => 0,
            false => 1 + (known / alike.max(1)).ilog2(),
        }
    }

    /// The rank of a replica for a reader: memory before SSD, fast nodes before slow ones, and those that are alike in an order of
    /// the reader's own, so that several readers spread over them. `reader` is a number of its own for each reader.
    #[must_use]
    pub fn rank(&self, now: Instant, reader: u64, replica: &ReplicaAt) -> u32 {
        let ReplicaAt::Memory(extent) = replica else {
            return u32::MAX;
        };
        let slowness = self.slowness(now, extent.incarnation);
        // Any even spread will do: the constant is that of Fibonacci hashing (Knuth, volume 3, 6.4).
        let named = reader ^ extent.incarnation.0.rotate_left(17) ^ extent.generation;
        let mixed = named.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        slowness << 16 | mixed as u32
    }

    fn known(&self, now: Instant, node: Incarnation) -> Option<u64> {
        let pace = self.of.get(&node).filter(|pace| is_believed(now, **pace));
        pace.map(|pace| pace.nanos)
    }

    fn keep(&mut self, now: Instant, node: Incarnation, nanos: u64) {
        if self.of.len() >= NODES_MAX && !self.of.contains_key(&node) {
            self.of.retain(|_, pace| is_believed(now, *pace));
            if self.of.len() >= NODES_MAX {
                self.of.pop_first();
            }
        }
        self.of.insert(node, Pace { nanos, at: now });
    }
}

fn is_believed(now: Instant, pace: Pace) -> bool {
    now < pace.at + BELIEVED
}

#[cfg(test)]
mod tests {
    use slackwater_wire::{ExtentRef, NodeId, SegmentId};

    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(milliseconds)
    }

    fn paces(times: &[(u64, u64, u64)]) -> Paces {
        let mut paces = Paces::default();
        for (node, bytes, micros) in times {
            let time = Duration::from_micros(*micros);
            paces.came(at(0), Incarnation(*node), *bytes, time);
        }
        paces
    }

    #[test]
    fn nodes_are_ranked_against_the_fastest_whatever_was_read_of_them() {
        // 1 MiB in 100 us, 4 KiB in 10 us, 1 MiB in 300 us and in 2 ms.
        let times = [
            (1, 1 << 20, 100),
            (2, 4 << 10, 10),
            (3, 1 << 20, 300),
            (4, 1 << 20, 2000),
        ];
        let mut paces = paces(&times);
        let ranks =
            |paces: &Paces| [1, 2, 3, 4, 5].map(|node| paces.slowness(at(1), Incarnation(node)));
        assert_eq!(ranks(&paces), [0, 0, 1, 4, 0]);
        paces.failed(at(1), Incarnation(1));
        let ranks = ranks(&paces);
        assert!(ranks[0] > ranks[3], "{ranks:?}");
        // A read that went well is believed at once after a failure.
        paces.came(at(2), Incarnation(1), 1 << 20, Duration::from_micros(100));
        assert_eq!(paces.slowness(at(2), Incarnation(1)), 0);
    }

    #[test]
    fn a_pace_is_believed_for_a_while_and_moves_slowly() {
        let mut paces = paces(&[(1, 1 << 20, 100), (2, 1 << 20, 100)]);
        paces.came(at(1), Incarnation(2), 1 << 20, Duration::from_micros(700));
        assert_eq!(paces.slowness(at(1), Incarnation(2)), 0, "it was one read");
        for _ in 0..8 {
            paces.came(at(1), Incarnation(2), 1 << 20, Duration::from_micros(700));
        }
        assert!(paces.slowness(at(1), Incarnation(2)) > 0);
        assert_eq!(paces.slowness(at(10_001), Incarnation(2)), 0);
        paces.came(
            at(10_001),
            Incarnation(2),
            1 << 20,
            Duration::from_micros(90),
        );
        paces.came(
            at(10_001),
            Incarnation(1),
            1 << 20,
            Duration::from_micros(100),
        );
        assert_eq!(paces.slowness(at(10_001), Incarnation(2)), 0);
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut paces = Paces::default();
        for node in 0..2 * NODES_MAX as u64 {
            paces.failed(at(node), Incarnation(node));
            assert!(paces.of.len() <= NODES_MAX);
        }
    }

    #[test]
    fn readers_spread_over_nodes_that_are_alike_and_leave_the_slow_one() {
        let on = |node, generation| {
            let (segment, incarnation) = (SegmentId(node), Incarnation(node.into()));
            ReplicaAt::Memory(ExtentRef {
                segment,
                incarnation,
                offset: 0,
                bytes: 4096,
                generation,
            })
        };
        let disk = ReplicaAt::Disk {
            node: NodeId(1),
            segment: SegmentId(9),
        };
        let now = at(1);
        let mut paces = Paces::default();
        for (node, micros) in [(1, 100), (2, 150), (3, 900)] {
            let time = Duration::from_micros(micros);
            paces.came(now, Incarnation(node), 1 << 20, time);
        }
        let ordered = |reader, mut replicas: Vec<ReplicaAt>| {
            replicas.sort_by_key(|replica| paces.rank(now, reader, replica));
            replicas
        };
        let mut first = [0; 4];
        for reader in 0..1000 {
            let ordered = ordered(reader, vec![disk, on(3, 7), on(1, 5), on(2, 6)]);
            let ReplicaAt::Memory(extent) = ordered[0] else {
                panic!("memory comes before SSD");
            };
            first[extent.segment.0 as usize] += 1;
            assert_eq!(ordered[2..], [on(3, 7), disk]);
        }
        assert!(first[1] > 300 && first[2] > 300, "{first:?}");
        // One reader spreads over them too, by object.
        let objects = (0..1000).map(|number| (on(1, 10 * number), on(2, 10 * number + 1)));
        let firsts = objects.filter(|(one, other)| ordered(1, vec![*one, *other])[0] == *one);
        let firsts = firsts.count();
        assert!((300..700).contains(&firsts), "{firsts}");
    }
}
