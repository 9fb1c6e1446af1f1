//! How fast nodes send, as a reader has seen it.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_wire::{ExtentRef, Incarnation, ReplicaAt};

use crate::pick::Distance;

/// What was seen of each node lately.
#[derive(Debug, Default)]
pub struct Paces {
    of: BTreeMap<Incarnation, Pace>,
    /// The nodes that extents of these lives are reached at.
    nodes: BTreeMap<Incarnation, Incarnation>,
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

    /// Extents of the life `extents` are reached at the process `node`: a node's memory and its data plane have lives of their own,
    /// and what is seen of the node is told by the second.
    pub fn reached(&mut self, extents: Incarnation, node: Incarnation) {
        let known = self.nodes.get(&extents);
        if known == Some(&node) {
            return;
        }
        if self.nodes.len() >= NODES_MAX && known.is_none() {
            self.nodes.pop_first();
        }
        self.nodes.insert(extents, node);
    }

    /// How long so many bytes of a node should take; none while nothing is known of it, or after a failure.
    #[must_use]
    pub fn expected(&self, now: Instant, node: Incarnation, bytes: u64) -> Option<Duration> {
        let nanos = self.known(now, node).filter(|nanos| *nanos != FAILED)?;
        Some(Duration::from_nanos(
            nanos.saturating_mul(bytes / PIECE + 1),
        ))
    }

    /// Orders the replicas of an object for a reader: memory before SSD, near memory before far memory, and of equally near
    /// memory fast nodes before slow ones. Nodes whose bytes did not come are last in memory, however near. Those that are
    /// alike are in an order of the reader's own, so that several readers spread over them. `reader` is a number of its own for
    /// each reader.
    pub fn order(
        &self,
        now: Instant,
        reader: u64,
        distance: impl Fn(Incarnation) -> Distance,
        replicas: &mut [ReplicaAt],
    ) {
        if replicas.len() < 2 {
            return;
        }
        // A node is slow or fast beside nodes that are as near: what comes from this host is faster than any network.
        let mut fastest: BTreeMap<Distance, u64> = BTreeMap::new();
        for replica in &*replicas {
            let ReplicaAt::Memory(extent) = replica else {
                continue;
            };
            let node = self.node_of(extent);
            if let Some(nanos) = self.known(now, node).filter(|nanos| *nanos != FAILED) {
                let least = fastest.entry(distance(node)).or_insert(nanos);
                *least = nanos.min(*least);
            }
        }
        replicas.sort_by_cached_key(|replica| {
            let ReplicaAt::Memory(extent) = replica else {
                return (true, true, Distance::default(), 0, 0);
            };
            let (node, mut mixed) = (self.node_of(extent), DefaultHasher::new());
            (reader, extent.incarnation, extent.generation).hash(&mut mixed);
            let far = distance(node);
            let failed = self.known(now, node) == Some(FAILED);
            let slowness = self.slowness(now, node, fastest.get(&far).copied());
            (false, failed, far, slowness, mixed.finish())
        });
    }

    /// How much slower a node is than the fastest of some: zero for those like it, for those that nothing is known of, and for
    /// those whose bytes did not come.
    fn slowness(&self, now: Instant, node: Incarnation, fastest: Option<u64>) -> u32 {
        match (self.known(now, node), fastest) {
            (Some(FAILED), _) => 0,
            (Some(nanos), Some(fastest)) if nanos > ALIKE * fastest => {
                1 + (nanos / (ALIKE * fastest)).ilog2()
            }
            _ => 0,
        }
    }

    /// The node that an extent is reached at.
    fn node_of(&self, extent: &ExtentRef) -> Incarnation {
        let life = extent.incarnation;
        self.nodes.get(&life).copied().unwrap_or(life)
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
    use slackwater_wire::{NodeId, SegmentId};

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

    fn on(node: u32, generation: u64) -> ReplicaAt {
        ReplicaAt::Memory(ExtentRef {
            segment: SegmentId(node),
            incarnation: Incarnation(node.into()),
            offset: 0,
            bytes: 4096,
            generation,
        })
    }

    fn ordered(paces: &Paces, now: Instant, mut replicas: Vec<ReplicaAt>) -> Vec<ReplicaAt> {
        paces.order(now, 1, |_| Distance::Network, &mut replicas);
        replicas
    }

    /// Near replicas were read no sooner than far ones, until a read had shown how much slower those are, and again ten seconds
    /// later.
    #[test]
    fn near_memory_is_read_first_unless_its_bytes_did_not_come() {
        use Distance::{Host, Network, Process};
        let disk = ReplicaAt::Disk {
            node: NodeId(9),
            segment: SegmentId(9),
        };
        // Of each node: its distance, and the microseconds of 1 MiB; none where nothing is known of it, 0 where it failed.
        type Nodes<'a> = &'a [(Distance, Option<u64>)];
        let check = |nodes: Nodes<'_>, expected: &[u32]| {
            let mut paces = Paces::default();
            let numbered = (1..).zip(nodes);
            for (node, (_, micros)) in numbered {
                match micros {
                    Some(0) => paces.failed(at(0), Incarnation(node)),
                    Some(micros) => {
                        let time = Duration::from_micros(*micros);
                        paces.came(at(0), Incarnation(node), 1 << 20, time);
                    }
                    None => {}
                }
            }
            let distance = |node: Incarnation| nodes[node.0 as usize - 1].0;
            // In whatever order the master names them, and for every reader.
            for reader in 0..16 {
                let memory = (1..=nodes.len() as u32).map(|node| on(node, 1));
                let mut replicas: Vec<ReplicaAt> = std::iter::once(disk).chain(memory).collect();
                replicas.rotate_left(reader as usize % (nodes.len() + 1));
                paces.order(at(1), reader, distance, &mut replicas);
                let order = replicas.iter().filter_map(|replica| match replica {
                    ReplicaAt::Memory(extent) => Some(extent.segment.0),
                    ReplicaAt::Disk { .. } => None,
                });
                assert_eq!(order.collect::<Vec<_>>(), expected, "{nodes:?}");
                assert_eq!(replicas.last(), Some(&disk), "{nodes:?}");
            }
        };
        let unknown = [(Network, None), (Host, None), (Process, None)];
        check(&unknown, &[3, 2, 1]);
        // Also where a far one was seen to be as fast, or faster.
        check(&[(Network, Some(50)), (Host, Some(100))], &[2, 1]);
        check(&[(Network, Some(50)), (Host, Some(5000))], &[2, 1]);
        check(&[(Host, Some(50)), (Process, Some(5000))], &[2, 1]);
        // Speed decides between those that are as near.
        check(
            &[(Host, Some(500)), (Host, Some(50)), (Network, None)],
            &[2, 1, 3],
        );
        check(
            &[(Network, Some(900)), (Network, Some(100)), (Host, Some(50))],
            &[3, 2, 1],
        );
        // What did not come is last, and the nearest of those is first.
        check(&[(Network, Some(900)), (Process, Some(0))], &[1, 2]);
        check(
            &[(Network, Some(0)), (Host, Some(0)), (Network, None)],
            &[3, 2, 1],
        );
    }

    /// Nodes of one host were alike, and a node of another host was slower than they are: one of two readers took it for alike.
    #[test]
    fn readers_spread_over_nodes_that_are_equally_near() {
        let paces = paces(&[(1, 1 << 20, 10), (2, 1 << 20, 600), (3, 1 << 20, 850)]);
        let distance = |node: Incarnation| match node.0 {
            1 => Distance::Host,
            _ => Distance::Network,
        };
        let seconds = (0..64).filter(|name| {
            let mut replicas = [on(2, *name), on(3, *name), on(1, *name)];
            paces.order(at(1), 1, distance, &mut replicas);
            assert_eq!(replicas[0], on(1, *name));
            replicas[1] == on(2, *name)
        });
        assert!((10..54).contains(&seconds.count()));
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
        let fastest = paces.known(at(1), Incarnation(1));
        let slowness = |paces: &Paces| {
            [1, 2, 3, 4, 5].map(|node| paces.slowness(at(1), Incarnation(node), fastest))
        };
        assert_eq!(slowness(&paces), [0, 0, 1, 4, 0]);
        let replicas = vec![on(4, 1), on(3, 1), on(1, 1)];
        assert_eq!(
            ordered(&paces, at(1), replicas),
            [on(1, 1), on(3, 1), on(4, 1)]
        );
        paces.failed(at(1), Incarnation(1));
        let replicas = vec![on(1, 1), on(4, 1), on(3, 1)];
        assert_eq!(
            ordered(&paces, at(1), replicas),
            [on(3, 1), on(4, 1), on(1, 1)]
        );
        // A read that went well is believed at once after a failure.
        paces.came(at(2), Incarnation(1), 1 << 20, Duration::from_micros(100));
        assert_eq!(
            ordered(&paces, at(2), vec![on(3, 1), on(1, 1)]),
            [on(1, 1), on(3, 1)]
        );
    }

    /// A node whose bytes did not come was the fastest of those that were known, and tried first again.
    #[test]
    fn a_node_that_failed_is_tried_last_though_nothing_is_known_of_the_others() {
        let mut paces = Paces::default();
        paces.failed(at(1), Incarnation(1));
        for generation in 0..64 {
            let (failed, other) = (on(1, generation), on(2, generation));
            assert_eq!(ordered(&paces, at(2), vec![failed, other]), [other, failed]);
        }
        let firsts = (0..64).filter(|generation| {
            let (one, other) = (on(1, *generation), on(2, *generation));
            ordered(&paces, at(10_002), vec![one, other])[0] == one
        });
        assert!(firsts.count() > 10, "it is tried again after a while");
    }

    #[test]
    fn a_pace_is_believed_for_a_while_and_moves_slowly() {
        let first = |paces: &Paces, now| {
            let order = (0..64).map(|name| ordered(paces, now, vec![on(1, name), on(2, name)])[0]);
            order
                .filter(|first| matches!(first, ReplicaAt::Memory(it) if it.segment.0 == 2))
                .count()
        };
        let mut paces = paces(&[(1, 1 << 20, 100), (2, 1 << 20, 100)]);
        paces.came(at(1), Incarnation(2), 1 << 20, Duration::from_micros(700));
        assert!(first(&paces, at(1)) > 10, "it was one read");
        for _ in 0..8 {
            paces.came(at(1), Incarnation(2), 1 << 20, Duration::from_micros(700));
        }
        assert_eq!(first(&paces, at(1)), 0);
        assert!(first(&paces, at(10_001)) > 10);
    }

    /// Nodes that are alike but far from a node on this host were told apart, and one of them had all readers.
    #[test]
    fn replicas_are_compared_with_each_other_and_with_no_other_node() {
        let paces = paces(&[(1, 1 << 20, 10), (2, 1 << 20, 600), (3, 1 << 20, 850)]);
        let firsts = (0..64).filter(|name| {
            ordered(&paces, at(1), vec![on(2, *name), on(3, *name)])[0] == on(2, *name)
        });
        assert!((10..54).contains(&firsts.count()));
    }

    #[test]
    fn what_is_to_be_expected_follows_from_what_was_seen() {
        let mut paces = paces(&[(1, 1 << 20, 170)]);
        let expected = |paces: &Paces, bytes| paces.expected(at(1), Incarnation(1), bytes);
        let micros = |count| Some(Duration::from_micros(count));
        assert_eq!(expected(&paces, 1 << 20), micros(170));
        assert_eq!(expected(&paces, 100), micros(10));
        assert_eq!(paces.expected(at(1), Incarnation(2), 100), None);
        paces.failed(at(1), Incarnation(1));
        assert_eq!(expected(&paces, 100), None);
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut paces = Paces::default();
        for node in 0..2 * NODES_MAX as u64 {
            paces.failed(at(node), Incarnation(node));
            paces.reached(Incarnation(node), Incarnation(node + 1));
            assert!(paces.of.len().max(paces.nodes.len()) <= NODES_MAX);
        }
    }

    /// The speed of a node was noted under the life of its data plane and looked for under that of its memory: no replica was ever
    /// tried earlier or later because of it.
    #[test]
    fn what_was_seen_of_a_node_counts_for_the_extents_of_its_memory() {
        let mut paces = paces(&[(101, 1 << 20, 100), (102, 1 << 20, 900)]);
        let firsts = |paces: &Paces| {
            let names = 0..64;
            let replicas = names.map(|name| ordered(paces, at(1), vec![on(2, name), on(1, name)]));
            replicas
                .filter(|order| matches!(order[0], ReplicaAt::Memory(it) if it.segment.0 == 1))
                .count()
        };
        assert!((10..54).contains(&firsts(&paces)));
        for node in [1, 2] {
            paces.reached(Incarnation(node), Incarnation(100 + node));
        }
        assert_eq!(firsts(&paces), 64);
        let far = |node| match node {
            Incarnation(102) => Distance::Process,
            _ => Distance::Network,
        };
        let mut replicas = [on(1, 1), on(2, 1)];
        paces.order(at(1), 1, far, &mut replicas);
        assert_eq!(replicas, [on(2, 1), on(1, 1)]);
    }

    #[test]
    fn readers_spread_over_nodes_that_are_alike_and_leave_the_slow_one() {
        let disk = ReplicaAt::Disk {
            node: NodeId(1),
            segment: SegmentId(9),
        };
        let paces = paces(&[(1, 1 << 20, 100), (2, 1 << 20, 150), (3, 1 << 20, 900)]);
        let mut first = [0; 4];
        for reader in 0..1000 {
            let mut replicas = vec![disk, on(3, 7), on(1, 5), on(2, 6)];
            paces.order(at(1), reader, |_| Distance::Network, &mut replicas);
            let ReplicaAt::Memory(extent) = replicas[0] else {
                panic!("memory comes before SSD");
            };
            first[extent.segment.0 as usize] += 1;
            assert_eq!(replicas[2..], [on(3, 7), disk]);
        }
        assert!(first[1] > 300 && first[2] > 300, "{first:?}");
        // One reader spreads over them too, by object.
        let objects = (0..1000).map(|number| (on(1, 10 * number), on(2, 10 * number + 1)));
        let firsts =
            objects.filter(|(one, other)| ordered(&paces, at(1), vec![*one, *other])[0] == *one);
        let firsts = firsts.count();
        assert!((300..700).contains(&firsts), "{firsts}");
    }
}
