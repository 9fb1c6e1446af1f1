//! How often objects are read from memory: each in a window of its own that its first read begins.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use slackwater_base::{Instant, Map};
use slackwater_wire::Version;

use crate::catalog::ObjectId;

/// The objects that were read within a window, or rest after something was decided on them.
pub(super) struct Heat {
    window: Duration,
    limit: usize,
    of: Map<ObjectId, Reads>,
    /// Objects by the beginning of a window of theirs. What was begun anew or rests since is not what it was here.
    windows: VecDeque<(Instant, ObjectId)>,
    /// The same by the ends of rests, which are not equally long.
    rests: BTreeSet<(Instant, ObjectId)>,
}

struct Reads {
    version: Version,
    since: Instant,
    reads: u32,
    /// Until then reads do not count.
    rests_until: Instant,
}

/// Entries that one read may forget: more than it adds, so that the queues stay short.
const FORGOTTEN_EACH: usize = 2;

impl Heat {
    pub(super) fn new(window: Duration, limit: usize) -> Self {
        Self {
            window,
            limit,
            of: Map::default(),
            windows: VecDeque::new(),
            rests: BTreeSet::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    /// Counts a read of an object: how many it had in this window. Zero while it rests. With too many objects, those whose windows
    /// began first are forgotten; none where all of them rest.
    pub(super) fn read(&mut self, now: Instant, id: ObjectId, version: Version) -> Option<u32> {
        self.forget(now);
        if !self.of.contains_key(&id) && self.of.len() >= self.limit && !self.make_room() {
            return None;
        }
        let begun = Reads {
            version,
            since: Instant::ZERO,
            reads: 0,
            rests_until: Instant::ZERO,
        };
        let reads = self.of.entry(id).or_insert(begun);
        if reads.version != version {
            (reads.version, reads.reads, reads.rests_until) = (version, 0, Instant::ZERO);
        }
        if reads.rests_until > now {
            return Some(0);
        }
        if reads.reads == 0 || reads.since + self.window <= now {
            (reads.since, reads.reads) = (now, 0);
            self.windows.push_back((now, id));
        }
        reads.reads += 1;
        let counted = reads.reads;
        self.shorten();
        Some(counted)
    }

    /// Reads of an object do not count until then.
    pub(super) fn rest(&mut self, id: ObjectId, version: Version, until: Instant) {
        if !self.of.contains_key(&id) && self.of.len() >= self.limit && !self.make_room() {
            return;
        }
        self.rests.insert((until, id));
        self.of.insert(
            id,
            Reads {
                version,
                since: Instant::ZERO,
                reads: 0,
                rests_until: until,
            },
        );
        self.shorten();
    }

    fn forget(&mut self, now: Instant) {
        let window = self.window;
        for _ in 0..FORGOTTEN_EACH {
            if let Some((since, id)) = self.windows.pop_front_if(|at| at.0 + window <= now) {
                self.end_window(since, id);
            }
            if self.rests.first().is_some_and(|(until, _)| *until <= now) {
                self.end_first_rest();
            }
        }
    }

    /// Keeps the queues as short as twice the table, whatever begins anew how often.
    fn shorten(&mut self) {
        while self.windows.len() > 2 * self.limit {
            if let Some((since, id)) = self.windows.pop_front() {
                self.end_window(since, id);
            }
        }
        while self.rests.len() > 2 * self.limit {
            self.end_first_rest();
        }
    }

    fn end_first_rest(&mut self) {
        let Some((until, id)) = self.rests.pop_first() else {
            return;
        };
        let rested = |reads: &Reads| reads.rests_until == until && reads.reads == 0;
        if self.of.get(&id).is_some_and(rested) {
            self.of.remove(&id);
        }
    }

    /// Forgets an object whose window this is; whether it was.
    fn end_window(&mut self, since: Instant, id: ObjectId) -> bool {
        let same = |reads: &Reads| reads.reads > 0 && reads.since == since;
        self.of.get(&id).is_some_and(same) && self.of.remove(&id).is_some()
    }

    fn make_room(&mut self) -> bool {
        while let Some((since, id)) = self.windows.pop_front() {
            if self.end_window(since, id) {
                return true;
            }
        }
        false
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
        heat.rest(id, Version(2), at(141));
        assert_eq!(heat.read(at(140), id, Version(2)), Some(0));
        assert_eq!(heat.read(at(141), id, Version(2)), Some(1));
        heat.rest(id, Version(2), at(171));
        assert_eq!(heat.read(at(142), id, Version(3)), Some(1), "another value");
    }

    /// Windows waited behind rests for their end, and a flood of other keys stopped the count.
    #[test]
    fn what_is_counted_is_bounded_and_forgotten_in_time() {
        let mut heat = Heat::new(WINDOW, 4);
        heat.rest(ObjectId(1), FIRST, at(1000));
        for name in 2..=4 {
            assert_eq!(heat.read(at(100), ObjectId(name), FIRST), Some(1));
        }
        // The window that began first gives way; those of what goes on do not.
        assert_eq!(heat.read(at(101), ObjectId(5), FIRST), Some(1));
        assert!(!heat.of.contains_key(&ObjectId(2)));
        assert_eq!(heat.read(at(102), ObjectId(3), FIRST), Some(2));
        for second in 111..400 {
            let name = ObjectId(u32::try_from(second).unwrap());
            assert_eq!(heat.read(at(second), name, FIRST), Some(1));
            assert!(heat.len() <= 4 && heat.windows.len() <= 16, "{second}");
        }
        assert_eq!(heat.read(at(999), ObjectId(1), FIRST), Some(0));
        let mut resting = Heat::new(WINDOW, 1);
        resting.rest(ObjectId(1), FIRST, at(1000));
        assert_eq!(resting.read(at(1), ObjectId(2), FIRST), None);
        assert_eq!(resting.read(at(1000), ObjectId(2), FIRST), Some(1));
    }

    /// Rests of 30 s waited for the end of one of 60 s that had begun before. The table was full of what rested no more, and
    /// nothing else was counted.
    #[test]
    fn a_short_rest_ends_before_a_long_one_that_began_earlier() {
        let mut heat = Heat::new(WINDOW, 2);
        heat.rest(ObjectId(1), FIRST, at(160));
        heat.rest(ObjectId(2), FIRST, at(131));
        assert_eq!(heat.read(at(130), ObjectId(3), FIRST), None);
        assert_eq!(heat.read(at(131), ObjectId(3), FIRST), Some(1));
        assert_eq!(heat.read(at(132), ObjectId(1), FIRST), Some(0));
    }

    /// One object whose windows begin again and again must not fill the queue.
    #[test]
    fn queues_stay_as_short_as_the_table() {
        let mut heat = Heat::new(WINDOW, 8);
        for round in 0..1000 {
            for name in 0..4 {
                heat.read(at(11 * round), ObjectId(name), Version(round));
                heat.rest(ObjectId(name), Version(round), at(11 * round + 5));
            }
        }
        let lengths = (heat.windows.len(), heat.rests.len());
        assert!(lengths.0 <= 16 && lengths.1 <= 16, "{lengths:?}");
    }
}
