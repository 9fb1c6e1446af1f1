//! Where new replicas go: the seam and the choice between its implementations.

use slackwater_base::Rng;

use crate::catalog::SegmentIndex;
use crate::config::Placement;
use crate::segment::Segments;

mod free_ratio_first;
mod local_first;
mod random;

/// A memory segment as a placement policy sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat<'a> {
    pub(crate) index: SegmentIndex,
    pub(crate) free: u64,
    pub(crate) capacity: u64,
    pub(crate) host: &'a str,
}

/// A policy of placement. It only orders segments; whether a replica fits is found by trying.
pub(crate) trait Place: Send {
    /// Puts the seats in the order in which they are to be tried.
    fn order(&mut self, seats: &mut [Seat<'_>], writer_host: Option<&str>);
}

pub(crate) fn build(placement: Placement, rng: Rng) -> Box<dyn Place> {
    match placement {
        Placement::Random => Box::new(random::Random { rng }),
        Placement::FreeRatioFirst => Box::new(free_ratio_first::FreeRatioFirst),
        Placement::LocalFirst => Box::new(local_first::LocalFirst { rng }),
    }
}

/// Memory segments in the order in which they are to be tried for a put: those that it prefers, then as the policy says.
pub(crate) fn order(
    segments: &Segments,
    policy: &mut dyn Place,
    writer_host: Option<&str>,
    preferred: &[String],
) -> Vec<SegmentIndex> {
    let mut seats: Vec<Seat<'_>> = segments
        .iter()
        .filter_map(|(index, segment)| {
            let books = segment.memory()?.extents.books();
            Some(Seat {
                index,
                free: books.free,
                capacity: books.capacity,
                host: &segment.host,
            })
        })
        .collect();
    if let [only] = seats[..] {
        return vec![only.index];
    }
    policy.order(&mut seats, writer_host);
    let mut order: Vec<SegmentIndex> = seats.into_iter().map(|seat| seat.index).collect();
    if !preferred.is_empty() {
        order.sort_by_key(|index| {
            let name = &segments.at(*index).name;
            preferred
                .iter()
                .position(|wish| wish == name)
                .unwrap_or(usize::MAX)
        });
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(placement: Placement, seed: u64) -> Vec<u16> {
        let seat = |index, free, host| Seat {
            index: SegmentIndex(index),
            free,
            capacity: 100,
            host,
        };
        let mut seats = [
            seat(0, 10, "a"),
            seat(1, 90, "b"),
            seat(2, 50, "a"),
            seat(3, 0, "b"),
        ];
        build(placement, Rng::new(seed)).order(&mut seats, Some("b"));
        seats.iter().map(|seat| seat.index.0).collect()
    }

    #[test]
    fn every_policy_orders_all_seats() {
        for placement in [
            Placement::Random,
            Placement::FreeRatioFirst,
            Placement::LocalFirst,
        ] {
            for seed in 0..20 {
                let mut seen = order(placement, seed);
                seen.sort_unstable();
                assert_eq!(seen, [0, 1, 2, 3], "{placement:?}");
            }
        }
    }

    #[test]
    fn each_policy_keeps_its_promise() {
        assert_eq!(order(Placement::FreeRatioFirst, 1), [1, 2, 0, 3]);
        for seed in 0..20 {
            let mut first = order(Placement::LocalFirst, seed)[..2].to_vec();
            first.sort_unstable();
            assert_eq!(first, [1, 3], "the writer's host comes first");
        }
        let firsts: std::collections::BTreeSet<u16> = (0..50)
            .map(|seed| order(Placement::Random, seed)[0])
            .collect();
        assert_eq!(firsts.len(), 4, "any seat may come first");
    }
}
