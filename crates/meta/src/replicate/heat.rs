//! How often objects are read from memory: each in a window of its own that its first read begins.

use std::collections::VecDeque;
use std::time::Duration;

use slackwater_base::{Instant, Map};
use slackwater_wire::Version;

use crate::catalog::ObjectId;

/// The objects that were read within a window, or rest after something was decided on them.
pub(super) struct Heat {
    window: Duration,
    limit: usize,
    of: Map<ObjectId, Reads>,
    /// Every object at least once, by the time from which it may be forgotten.
    order: VecDeque<(Instant, ObjectId)>,
}

struct Reads {
    version: Version,
    since: Instant,
    reads: u32,
    /// Until then reads do not count.
    rests_until: Instant,
}

/// Entries that one read may forget: more than it adds, so that the order stays short.
const FORGOTTEN_EACH: usize = 2;

impl Heat {
    pub(super) fn new(window: Duration, limit: usize) -> Self {
        Self {
            window,
            limit,
            of: Map::default(),
            order: VecDeque::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    /// Counts a read of an object: how many it had in this window. Zero while it rests, none if too many others are counted.
    pub(super) fn read(&mut self, now: Instant, id: ObjectId, version: Version) -> Option<u32> {
        self.forget(now);
        let full = self.of.len() >= self.limit;
        let reads = match self.of.get_mut(&id) {
            Some(reads) => reads,
            None if full => return None,
            None => {
                self.order.push_back((now + self.window, id));
                self.of.entry(id).or_insert(Reads {
                    version,
                    since: now,
                    reads: 0,
                    rests_until: Instant::ZERO,
                })
            }
        };
        if reads.version != version {
            reads.rests_until = Instant::ZERO;
        }
        if reads.version != version || reads.since + self.window <= now {
            (reads.version, reads.since, reads.reads) = (version, now, 0);
        }
        if reads.rests_until > now {
            return Some(0);
        }
        reads.reads += 1;
        Some(reads.reads)
    }

    /// Reads of an object do not count until then.
    pub(super) fn rest(&mut self, now: Instant, id: ObjectId, version: Version, until: Instant) {
        if !self.of.contains_key(&id) {
            if self.of.len() >= self.limit {
                return;
            }
            self.order.push_back((until, id));
        }
        let reads = self.of.entry(id).or_insert(Reads {
            version,
            since: now,
            reads: 0,
            rests_until: until,
        });
        (reads.version, reads.reads, reads.rests_until) = (version, 0, until);
    }

    fn forget(&mut self, now: Instant) {
        for _ in 0..FORGOTTEN_EACH {
            let Some((_, id)) = self.order.pop_front_if(|(at, _)| *at <= now) else {
                return;
            };
            let Some(reads) = self.of.get(&id) else {
                continue;
            };
            let needed = reads.rests_until.max(reads.since + self.window);
            match needed > now {
                true => self.order.push_back((needed, id)),
                false => drop(self.of.remove(&id)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);
    const FIRST: Version = Version(1);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn reads_count_in_the_window_that_the_first_of_them_begins() {
        let mut heat = Heat::new(WINDOW, 2);
        let id = ObjectId(1);
        let mut read = |seconds, version| heat.read(at(seconds), id, version);
        let counted = [
            read(100, FIRST),
            read(105, FIRST),
            read(109, FIRST),
            read(110, FIRST),
        ];
        assert_eq!(counted, [Some(1), Some(2), Some(3), Some(1)]);
        // A number of an object is used again.
        assert_eq!(read(111, Version(2)), Some(1));
        heat.rest(at(111), id, Version(2), at(141));
        assert_eq!(heat.read(at(140), id, Version(2)), Some(0));
        assert_eq!(heat.read(at(141), id, Version(2)), Some(1));
        heat.rest(at(141), id, Version(2), at(171));
        assert_eq!(heat.read(at(142), id, Version(3)), Some(1), "another value");
    }

    #[test]
    fn what_is_counted_is_bounded_and_forgotten_in_time() {
        let mut heat = Heat::new(WINDOW, 2);
        assert_eq!(heat.read(at(100), ObjectId(1), FIRST), Some(1));
        heat.rest(at(100), ObjectId(2), FIRST, at(150));
        heat.rest(at(100), ObjectId(3), FIRST, at(150));
        assert_eq!(heat.read(at(109), ObjectId(4), FIRST), None);
        assert_eq!(heat.read(at(110), ObjectId(4), FIRST), Some(1));
        assert_eq!(heat.read(at(149), ObjectId(2), FIRST), Some(0));
        for second in 150..400 {
            heat.read(at(second), ObjectId(u32::try_from(second).unwrap()), FIRST);
            assert!(heat.len() <= 2 && heat.order.len() <= 4, "{second}");
        }
        assert!(!heat.of.contains_key(&ObjectId(2)));
    }
}
